//! The frames of the worker socket, as little of them as a node needs whose jobs do nothing. Pure.

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// Frames in one message.
const MESSAGE_FRAMES_MAX: usize = 1_000;

/// A frame of any type.
#[derive(Debug, Deserialize)]
pub struct Heard<'a> {
    #[serde(rename = "type")]
    pub kind: &'a str,
    job: Option<&'a str>,
    attempt: Option<u32>,
    payload: Option<Payload>,
    pub heartbeat_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Payload {
    n: usize,
}

/// All frames of a message.
///
/// # Errors
/// It is none.
pub fn read(text: &str) -> Result<Vec<Heard<'_>>> {
    let read = match text.starts_with('[') {
        true => serde_json::from_str(text),
        false => serde_json::from_str(text).map(|frame| vec![frame]),
    };
    read.context("no message of this protocol")
}

impl Heard<'_> {
    /// Job and attempt.
    pub fn attempt(&self) -> Result<(u128, u32)> {
        let job = self.job.and_then(id).context("a job")?;
        Ok((job, self.attempt.context("an attempt")?))
    }

    /// Job, attempt, and the job's number.
    pub fn dispatch(&self) -> Result<(u128, u32, usize)> {
        let (job, attempt) = self.attempt()?;
        Ok((job, attempt, self.payload.as_ref().context("a payload with a number")?.n))
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

/// What is to be said, in messages.
#[derive(Debug, Default)]
pub struct Said {
    messages: Vec<String>,
    frames: usize,
}

impl Said {
    /// It has the attempt.
    pub fn ack(&mut self, job: u128, attempt: u32) {
        let of = Uuid(job);
        let _ = write!(self.next(), "{{\"type\":\"ack\",\"job\":\"{of}\",\"attempt\":{attempt}}}");
    }

    /// It is done.
    pub fn result(&mut self, job: u128, attempt: u32) {
        let of = Uuid(job);
        let _ = write!(
            self.next(),
            "{{\"type\":\"result\",\"job\":\"{of}\",\"attempt\":{attempt},\"ok\":true,\"output\":null}}"
        );
    }

    /// It lives, and has these.
    pub fn heartbeat(&mut self, running: impl Iterator<Item = (u128, u32)>) {
        let frame = self.next();
        frame.push_str("{\"type\":\"heartbeat\",\"running\":[");
        for (at, (job, attempt)) in running.enumerate() {
            let (comma, of) = (if at > 0 { "," } else { "" }, Uuid(job));
            let _ = write!(frame, "{comma}{{\"job\":\"{of}\",\"attempt\":{attempt}}}");
        }
        frame.push_str("]}");
    }

    /// The messages, whole.
    pub fn messages(mut self) -> Vec<String> {
        if let Some(last) = self.messages.last_mut() {
            last.push(']');
        }
        self.messages
    }

    /// Where the next frame is written.
    fn next(&mut self) -> &mut String {
        if self.frames.is_multiple_of(MESSAGE_FRAMES_MAX) {
            if let Some(last) = self.messages.last_mut() {
                last.push(']');
            }
            self.messages.push("[".to_owned());
        } else if let Some(last) = self.messages.last_mut() {
            last.push(',');
        }
        self.frames += 1;
        self.messages.last_mut().expect("one was just put in")
    }
}

struct Uuid(u128);

impl std::fmt::Display for Uuid {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let id = self.0;
        let part = |from: u32, digits: u32| (id >> (4 * from)) & ((1 << (4 * digits)) - 1);
        let (a, b, c, d, e) = (part(24, 8), part(20, 4), part(16, 4), part(12, 4), part(0, 12));
        write!(to, "{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_one_or_many_at_once() {
        let one = r#"{"type":"dispatch","job":"0190163d-8694-739b-aea5-966c26f8ad91","attempt":2,"payload":{"n":7},"timeout_ms":1}"#;
        let read_one = read(one).unwrap();
        let (job, attempt, number) = read_one[0].dispatch().unwrap();
        assert_eq!((attempt, number), (2, 7));
        assert_eq!(Uuid(job).to_string(), "0190163d-8694-739b-aea5-966c26f8ad91");
        let many = format!("[{one},{{\"type\":\"heartbeat_ok\"}}]");
        assert_eq!(read(&many).unwrap().len(), 2);
        assert!(read("no").is_err());
    }

    #[test]
    fn what_is_said_is_json_in_messages_that_are_not_too_long() {
        let mut said = Said::default();
        for job in 0..1_500 {
            said.result(job, 1);
        }
        said.ack(1, 1);
        said.heartbeat([(1, 2), (3, 4)].into_iter());
        let messages = said.messages();
        let read: Vec<Vec<serde_json::Value>> =
            messages.iter().map(|message| serde_json::from_str(message).unwrap()).collect();
        assert_eq!((read.len(), read[0].len(), read[1].len()), (2, 1_000, 502));
        assert_eq!(read[1][501]["running"][1]["attempt"], 4);
        assert!(Said::default().messages().is_empty());
    }
}
