//! The frames of the worker socket as a node reads and writes them. Pure.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter, Write as _};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// Frames in one message.
const MESSAGE_FRAMES_MAX: usize = 1_000;

/// One attempt of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt {
    /// The job's id, a UUID.
    pub job: u128,
    /// Which of its attempts.
    pub number: u32,
}

impl Attempt {
    /// The job's id as text.
    #[must_use]
    pub fn job_id(&self) -> String {
        Uuid(self.job).to_string()
    }
}

/// As the members of an object.
impl Display for Attempt {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        write!(to, "\"job\":\"{}\",\"attempt\":{}", Uuid(self.job), self.number)
    }
}

/// A frame of any type, from the scheduler.
#[derive(Debug, Deserialize)]
pub struct Received<'a> {
    /// Its `type`.
    #[serde(rename = "type")]
    pub kind: &'a str,
    job: Option<&'a str>,
    attempt: Option<u32>,
    /// A dispatch's.
    #[serde(borrow)]
    pub payload: Option<&'a RawValue>,
    /// A dispatch's, with `seq`.
    pub session: Option<Cow<'a, str>>,
    /// A dispatch's, with `session`.
    pub seq: Option<u64>,
    /// A dispatch's, if the job is a stage of a plan.
    #[serde(borrow)]
    pub stage: Option<&'a RawValue>,
    /// A welcome's.
    pub heartbeat_ms: Option<u64>,
    /// A problem's.
    pub detail: Option<Cow<'a, str>>,
}

/// All frames of a message.
///
/// # Errors
/// It is no message of this protocol.
pub fn read(text: &str) -> Result<Vec<Received<'_>>> {
    let read = match text.starts_with('[') {
        true => serde_json::from_str(text),
        false => serde_json::from_str(text).map(|frame| vec![frame]),
    };
    read.context("no message of this protocol")
}

impl Received<'_> {
    /// The attempt that it is about.
    ///
    /// # Errors
    /// It names none.
    pub fn attempt(&self) -> Result<Attempt> {
        let job = self.job.and_then(id).context("a job")?;
        Ok(Attempt { job, number: self.attempt.context("an attempt")? })
    }
}

/// A UUID in its usual form.
fn id(text: &str) -> Option<u128> {
    let mut id = 0;
    let mut digits = 0;
    for byte in text.bytes() {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'-' => continue,
            _ => return None,
        };
        id = id << 4 | u128::from(digit);
        digits += 1;
    }
    (digits == 32).then_some(id)
}

/// What a node says of itself when it connects.
#[derive(Clone, Debug, Serialize)]
pub struct Hello {
    /// Its name.
    pub node_id: String,
    /// How many attempts it takes at once.
    pub capacity: usize,
    /// Whether several frames may be in one message.
    pub batch: bool,
    /// What it offers.
    pub labels: Vec<&'static str>,
}

/// Frames of a node, in the messages that carry them.
#[derive(Debug)]
pub struct Messages {
    /// Each is one frame, or those of an array without its brackets.
    messages: Vec<String>,
    /// How many frames are in the last message.
    frames: usize,
    frames_max: usize,
}

impl Messages {
    /// For a node that has or has not said `"batch": true`.
    #[must_use]
    pub const fn new(batch: bool) -> Self {
        let frames_max = if batch { MESSAGE_FRAMES_MAX } else { 1 };
        Self { messages: Vec::new(), frames: 0, frames_max }
    }

    /// Whether there is nothing to be sent.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The first frame of a connection.
    pub fn hello(&mut self, hello: &Hello, running: impl Iterator<Item = Attempt>) {
        let said = serde_json::to_string(hello).expect("texts and numbers always serialise");
        let _ = write!(self.next(), "{{\"type\":\"hello\",{}", &said[1..said.len() - 1]);
        self.running(running);
    }

    /// It lives, and has these.
    pub fn heartbeat(&mut self, running: impl Iterator<Item = Attempt>) {
        self.next().push_str("{\"type\":\"heartbeat\"");
        self.running(running);
    }

    /// It has the attempt.
    pub fn ack(&mut self, attempt: Attempt) {
        let _ = write!(self.next(), "{{\"type\":\"ack\",{attempt}}}");
    }

    /// It does not take the attempt.
    pub fn reject(&mut self, attempt: Attempt, reason: &str) {
        let _ = write!(self.next(), "{{\"type\":\"reject\",{attempt},\"reason\":\"{reason}\"}}");
    }

    /// How far the attempt is.
    pub fn progress(&mut self, attempt: Attempt, percent: u8) {
        let _ = write!(self.next(), "{{\"type\":\"progress\",{attempt},\"percent\":{percent}}}");
    }

    /// The attempt succeeded, with this output (JSON text).
    pub fn output(&mut self, attempt: Attempt, output: &str) {
        let _ = write!(self.next(), "{{\"type\":\"result\",{attempt},\"ok\":true,\"output\":{output}}}");
    }

    /// The attempt failed.
    pub fn failure(&mut self, attempt: Attempt, message: &str, retryable: bool) {
        let _ = write!(
            self.next(),
            "{{\"type\":\"result\",{attempt},\"ok\":false,\"error\":{{\"message\":\"{message}\",\"retryable\":{retryable}}}}}"
        );
    }

    /// The messages, whole.
    #[must_use]
    pub fn into_texts(self) -> Vec<String> {
        let (last, frames, batch) = (self.messages.len(), self.frames, self.frames_max > 1);
        let whole = self.messages.into_iter().enumerate().map(|(at, message)| {
            let is_array = batch && (at + 1 < last || frames > 1);
            if is_array { format!("[{message}]") } else { message }
        });
        whole.collect()
    }

    fn running(&mut self, running: impl Iterator<Item = Attempt>) {
        let frame = self.messages.last_mut().expect("a frame was begun");
        frame.push_str(",\"running\":[");
        for (at, attempt) in running.enumerate() {
            let _ = write!(frame, "{}{{{attempt}}}", if at > 0 { "," } else { "" });
        }
        frame.push_str("]}");
    }

    /// Where the next frame is written.
    fn next(&mut self) -> &mut String {
        if self.messages.is_empty() || self.frames == self.frames_max {
            self.messages.push(String::new());
            self.frames = 0;
        } else if let Some(last) = self.messages.last_mut() {
            last.push(',');
        }
        self.frames += 1;
        self.messages.last_mut().expect("one was just put in")
    }
}

struct Uuid(u128);

impl Display for Uuid {
    fn fmt(&self, to: &mut Formatter<'_>) -> fmt::Result {
        let id = self.0;
        let part = |from: u32, digits: u32| (id >> (4 * from)) & ((1 << (4 * digits)) - 1);
        let (a, b, c, d, e) = (part(24, 8), part(20, 4), part(16, 4), part(12, 4), part(0, 12));
        write!(to, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn frames_are_read_one_or_many_at_once() {
        let one = r#"{"type":"dispatch","job":"0190163d-8694-739b-aea5-966c26f8ad91","attempt":2,"payload":{"n":7},"session":"s","seq":3,"timeout_ms":1}"#;
        let read_one = read(one).unwrap();
        let attempt = read_one[0].attempt().unwrap();
        assert_eq!((attempt.number, attempt.job_id().as_str()), (2, "0190163d-8694-739b-aea5-966c26f8ad91"));
        assert_eq!(read_one[0].payload.unwrap().get(), r#"{"n":7}"#);
        assert_eq!((read_one[0].session.as_deref(), read_one[0].seq), (Some("s"), Some(3)));
        let of_plan = one.replace("\"timeout_ms\"", "\"stage\":{\"number\":4},\"timeout_ms\"");
        assert_eq!(read(&of_plan).unwrap()[0].stage.unwrap().get(), r#"{"number":4}"#);
        assert!(read_one[0].stage.is_none());
        let many = format!("[{one},{{\"type\":\"problem\",\"detail\":\"a \\\"b\\\"\"}}]");
        let read_many = read(&many).unwrap();
        assert_eq!((read_many.len(), read_many[1].detail.as_deref()), (2, Some("a \"b\"")));
        assert!(read_many[1].attempt().is_err() && read("no").is_err());
    }

    fn parsed(messages: Messages) -> Vec<Value> {
        messages.into_texts().iter().map(|text| serde_json::from_str(text).unwrap()).collect()
    }

    #[test]
    fn many_frames_are_arrays_that_are_not_too_long() {
        let mut messages = Messages::new(true);
        for job in 0..1_500 {
            messages.output(Attempt { job, number: 1 }, "null");
        }
        messages.ack(Attempt { job: 1, number: 1 });
        messages.heartbeat([(1, 2), (3, 4)].map(|(job, number)| Attempt { job, number }).into_iter());
        let read = parsed(messages);
        assert_eq!((read.len(), read[0].as_array().unwrap().len()), (2, 1_000));
        assert_eq!(read[1].as_array().unwrap().len(), 502);
        assert_eq!(read[1][501]["running"][1]["attempt"], 4);
        assert!(Messages::new(true).into_texts().is_empty());
    }

    #[test]
    fn one_frame_is_no_array_and_a_node_without_batches_sends_each_by_itself() {
        let attempt = Attempt { job: 9, number: 3 };
        let of = json!({ "job": attempt.job_id(), "attempt": 3 });
        let with = |more: Value| {
            let mut frame = of.clone();
            frame.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            frame
        };
        let mut one = Messages::new(true);
        one.reject(attempt, "unable");
        assert_eq!(parsed(one), [with(json!({"type": "reject", "reason": "unable"}))]);
        let mut each = Messages::new(false);
        let hello = Hello { node_id: "n \"1\"".to_owned(), capacity: 2, batch: false, labels: vec!["l"] };
        each.hello(&hello, [attempt].into_iter());
        each.progress(attempt, 50);
        each.failure(attempt, "no", true);
        let expected = [
            json!({"type": "hello", "node_id": "n \"1\"", "capacity": 2, "batch": false, "labels": ["l"], "running": [of]}),
            with(json!({"type": "progress", "percent": 50})),
            with(json!({"type": "result", "ok": false, "error": {"message": "no", "retryable": true}})),
        ];
        assert_eq!(parsed(each), expected);
    }
}
