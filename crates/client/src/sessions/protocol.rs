//! The session socket's protocol, as a client keeps it: the jobs that are not accepted yet, the results that
//! were seen, and what the caller gets of both. Pure.

use std::collections::VecDeque;

use tokio_tungstenite::tungstenite::Utf8Bytes;
use wire::Code;
use wire::sessions::{JobProblem, JobResult, JobTaken, SessionFrame};

use super::happening::Happening;
use super::places::Places;
use super::send_window::SendPermit;

/// A job that is not accepted.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) client_ref: String,
    /// Its frame.
    pub(super) text: Utf8Bytes,
    /// Its part of the window, until it is accepted.
    pub(super) _permit: SendPermit,
}

/// A job that waits for its answer.
#[derive(Debug)]
struct Waiting {
    sent: Sent,
    /// The id of a job of its name whose result came first: the caller was told then that the job is accepted.
    told: Option<String>,
}

/// The jobs that are not accepted, and the results that were seen.
#[derive(Debug)]
pub(super) struct Protocol {
    /// In the order in which they are sent.
    waiting: VecDeque<Waiting>,
    /// How many of them were written to the present connection.
    written: usize,
    places: Places,
    /// A job that was refused for now, and has to be written again in its place.
    refused_for_now: Option<JobProblem>,
}

impl Protocol {
    /// Results up to this place were seen.
    pub(super) const fn new(after_seq: u64, is_ordered: bool) -> Self {
        let places = Places::up_to(after_seq, is_ordered);
        Self { waiting: VecDeque::new(), written: 0, places, refused_for_now: None }
    }

    /// The place up to which all results were seen.
    pub(super) const fn after_seq(&self) -> u64 {
        self.places.low()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub(super) fn add(&mut self, sent: Sent) {
        self.waiting.push_back(Waiting { sent, told: None });
    }

    /// There is a new connection, which sends again what is not accepted.
    pub(super) const fn connected(&mut self) {
        self.written = 0;
    }

    /// The next frame to write, if there is one.
    pub(super) fn next(&mut self) -> Option<Utf8Bytes> {
        let waiting = self.waiting.get(self.written)?;
        self.written += 1;
        Some(waiting.sent.text.clone())
    }

    /// What the caller gets for a frame.
    pub(super) fn heard(&mut self, frame: SessionFrame) -> Vec<Happening> {
        match frame {
            SessionFrame::Accepted(taken) => {
                // A job that is not waited for was answered before. One whose result came first was told of then.
                let answered = self.answered(&taken.client_ref);
                let is_news = answered.is_some_and(|waiting| waiting.told.as_ref() != Some(&taken.id));
                if is_news { vec![Happening::Accepted(taken)] } else { Vec::new() }
            }
            SessionFrame::Progress(progress) => vec![Happening::Progress(progress)],
            SessionFrame::Result(result) => self.result(result),
            SessionFrame::Problem(problem) if self.keeps_its_place(&problem) => {
                self.refused_for_now = Some(problem);
                Vec::new()
            }
            SessionFrame::Problem(problem) => {
                let is_known = match &problem.client_ref {
                    Some(client_ref) => self.answered(client_ref).is_some(),
                    None => true,
                };
                if is_known { vec![Happening::Problem(problem)] } else { Vec::new() }
            }
        }
    }

    /// Whether a refusal may pass and jobs have an order: the job, and what was written behind it, is written again.
    fn keeps_its_place(&self, problem: &JobProblem) -> bool {
        self.places.is_ordered()
            && Code::parse(&problem.code).is_some_and(Code::is_retryable)
            && problem.client_ref.as_ref().is_some_and(|client_ref| self.is_waiting(client_ref))
    }

    fn is_waiting(&self, client_ref: &str) -> bool {
        self.waiting.iter().any(|waiting| waiting.sent.client_ref == client_ref)
    }

    /// A job that was refused for now since this was last asked: what waits goes out again, on a new connection.
    pub(super) fn refused_for_now(&mut self) -> Option<JobProblem> {
        self.refused_for_now.take()
    }

    fn result(&mut self, result: JobResult) -> Vec<Happening> {
        let mut happenings = Vec::with_capacity(2);
        // The job was sent before, on an earlier connection or by another socket: `accepted` is lost, or comes behind
        // this. The job is written all the same, since the result may be that of another job of its name.
        if let Some(client_ref) = &result.client_ref
            && let Some(waiting) = self
                .waiting
                .iter_mut()
                .find(|waiting| waiting.told.is_none() && waiting.sent.client_ref == *client_ref)
        {
            waiting.told = Some(result.id.clone());
            let taken = JobTaken { client_ref: client_ref.clone(), id: result.id.clone(), seq: result.seq };
            happenings.push(Happening::Accepted(taken));
        }
        if self.places.see(result.seq) {
            happenings.push(Happening::Result(result));
        }
        happenings
    }

    /// Removes the first job of this name, which was answered; `None` if there is none.
    fn answered(&mut self, client_ref: &str) -> Option<Waiting> {
        let at = self.waiting.iter().position(|waiting| waiting.sent.client_ref == client_ref)?;
        self.written -= usize::from(at < self.written);
        self.waiting.remove(at)
    }

    /// The session is closed: no other job will be accepted. Those were whose results came.
    pub(super) fn closed(&mut self) -> Vec<Happening> {
        let refused = |client_ref| {
            let (code, detail) = (Code::Conflict.as_str().to_owned(), "the session is closed".to_owned());
            Happening::Problem(JobProblem { client_ref: Some(client_ref), code, detail })
        };
        self.waiting.retain(|waiting| waiting.told.is_none());
        self.left().into_iter().map(refused).collect()
    }

    /// The names of the jobs that are not accepted.
    pub(super) fn left(&mut self) -> Vec<String> {
        self.written = 0;
        self.waiting.drain(..).map(|waiting| waiting.sent.client_ref).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn protocol(is_ordered: bool, refs: &[&str]) -> Protocol {
        let mut protocol = Protocol::new(0, is_ordered);
        for client_ref in refs {
            let (client_ref, text) = ((*client_ref).to_owned(), (*client_ref).into());
            protocol.add(Sent { client_ref, text, _permit: SendPermit::default() });
        }
        protocol
    }

    fn written(protocol: &mut Protocol) -> Vec<String> {
        std::iter::from_fn(|| protocol.next().map(|text| text.to_string())).collect()
    }

    /// The event, in short.
    fn seen(protocol: &mut Protocol, frame: &str) -> Vec<String> {
        let frame = match frame.split_once(' ').unwrap() {
            ("accepted", rest) => {
                let (client_ref, id) = rest.split_once(' ').unwrap_or((rest, "i"));
                format!(r#"{{"type":"accepted","ref":"{client_ref}","id":"{id}","seq":1}}"#)
            }
            ("problem", rest) => {
                let (client_ref, code) = rest.split_once(' ').unwrap_or((rest, "overloaded"));
                format!(r#"{{"type":"problem","ref":"{client_ref}","code":"{code}","detail":""}}"#)
            }
            ("result", rest) => {
                let (seq, client_ref) = rest.split_once(' ').unwrap();
                format!(
                    r#"{{"type":"result","id":"i","seq":{seq},"ref":"{client_ref}","outcome":"succeeded"}}"#
                )
            }
            _ => panic!("{frame}"),
        };
        let short = |happening| match happening {
            Happening::Accepted(it) => format!("accepted {}", it.client_ref),
            Happening::Result(it) => format!("result {} {}", it.seq, it.client_ref.unwrap()),
            Happening::Problem(it) => format!("problem {}: {}", it.client_ref.unwrap(), it.code),
            other => format!("{other:?}"),
        };
        protocol.heard(serde_json::from_str(&frame).unwrap()).into_iter().map(short).collect()
    }

    #[test]
    fn what_has_no_answer_is_written_once_on_each_connection_in_its_order() {
        let mut protocol = protocol(true, &["a", "b", "c"]);
        protocol.connected();
        assert_eq!(written(&mut protocol), ["a", "b", "c"]);
        assert_eq!(seen(&mut protocol, "accepted a"), ["accepted a"]);
        assert_eq!(seen(&mut protocol, "problem c invalid"), ["problem c: invalid"]);
        assert!(written(&mut protocol).is_empty());
        protocol.add(Sent { client_ref: "d".to_owned(), text: "d".into(), _permit: SendPermit::default() });
        assert_eq!(written(&mut protocol), ["d"]);
        protocol.connected();
        assert_eq!(protocol.next().as_deref(), Some("b"));
        protocol.connected();
        assert_eq!(written(&mut protocol), ["b", "d"]);
        assert_eq!(protocol.left(), ["b", "d"]);
        assert!(protocol.is_empty());
    }

    #[test]
    fn a_result_says_that_its_job_is_accepted_where_that_word_got_lost_or_comes_later() {
        let mut protocol = protocol(true, &["a", "b"]);
        protocol.connected();
        assert_eq!(protocol.next().as_deref(), Some("a"));
        protocol.connected();
        assert_eq!(seen(&mut protocol, "result 1 a"), ["accepted a", "result 1 a"]);
        assert!(seen(&mut protocol, "result 1 a").is_empty(), "each is told once");
        assert_eq!(written(&mut protocol), ["a", "b"]);
        assert!(seen(&mut protocol, "accepted a").is_empty() && seen(&mut protocol, "problem a").is_empty());
        // Another socket had sent this one before, and it had ended before this connection had brought it.
        assert_eq!(seen(&mut protocol, "result 2 b"), ["accepted b", "result 2 b"]);
        assert!(seen(&mut protocol, "accepted b").is_empty());
        assert!(protocol.is_empty());
    }

    #[test]
    fn a_job_goes_out_again_though_the_result_of_another_one_of_its_name_came() {
        for (answer, told) in
            [("accepted a other", "accepted a"), ("problem a invalid", "problem a: invalid")]
        {
            let mut protocol = protocol(false, &["a"]);
            protocol.connected();
            assert_eq!(written(&mut protocol), ["a"]);
            protocol.connected();
            assert_eq!(seen(&mut protocol, "result 1 a"), ["accepted a", "result 1 a"]);
            assert_eq!(written(&mut protocol), ["a"], "the daemon may not have read it");
            assert_eq!(seen(&mut protocol, answer), [told]);
            assert!(protocol.is_empty());
        }
    }

    #[test]
    fn a_result_is_told_once_whatever_the_order() {
        for is_ordered in [true, false] {
            let mut protocol = protocol(is_ordered, &[]);
            assert_eq!(seen(&mut protocol, "result 2 b"), ["result 2 b"]);
            assert!(seen(&mut protocol, "result 2 b").is_empty());
            assert_eq!(protocol.after_seq(), if is_ordered { 2 } else { 0 });
            assert_eq!(seen(&mut protocol, "result 1 a").is_empty(), is_ordered);
            assert_eq!(protocol.after_seq(), 2);
        }
    }

    #[test]
    fn two_of_one_name_are_two_answers() {
        let mut protocol = protocol(true, &["a", "a"]);
        protocol.connected();
        assert_eq!(written(&mut protocol), ["a", "a"]);
        assert_eq!(seen(&mut protocol, "accepted a"), ["accepted a"]);
        assert_eq!(seen(&mut protocol, "problem a invalid"), ["problem a: invalid"]);
        assert!(seen(&mut protocol, "accepted a").is_empty());
    }

    #[test]
    fn what_is_refused_for_now_keeps_its_place_where_jobs_have_an_order() {
        for is_ordered in [true, false] {
            let mut protocol = protocol(is_ordered, &["a", "b", "c"]);
            protocol.connected();
            assert_eq!(written(&mut protocol), ["a", "b", "c"]);
            assert_eq!(seen(&mut protocol, "accepted a"), ["accepted a"]);
            let told = seen(&mut protocol, "problem b");
            assert_eq!(told.is_empty(), is_ordered, "{told:?}");
            assert_eq!(protocol.refused_for_now().is_some(), is_ordered);
            assert!(protocol.refused_for_now().is_none());
            protocol.connected();
            let again: &[&str] = if is_ordered { &["b", "c"] } else { &["c"] };
            assert_eq!(written(&mut protocol), again);
            // Nobody waits for these.
            assert!(seen(&mut protocol, "problem a").is_empty() && protocol.refused_for_now().is_none());
        }
    }

    #[test]
    fn what_is_not_accepted_when_the_session_is_closed_is_refused() {
        let mut protocol = protocol(false, &["a", "b"]);
        seen(&mut protocol, "result 1 b");
        let happenings = protocol.closed();
        let [Happening::Problem(problem)] = &happenings[..] else { panic!("{happenings:?}") };
        assert_eq!((problem.client_ref.as_deref(), problem.code.as_str()), (Some("a"), "conflict"));
        assert!(protocol.is_empty());
    }
}
