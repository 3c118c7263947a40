//! What a handler gets, and what it returns.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use wire::Json;
use wire::limits::{ERROR_MESSAGE_CHARS_MAX, PAYLOAD_BYTES_MAX, PROGRESS_NOTE_CHARS_MAX};
use wire::worker::{AttemptFailure, AttemptOutcome, AttemptProgress, AttemptRef, Dispatch};

/// One attempt at one job, for the handler.
#[derive(Debug)]
#[non_exhaustive]
pub struct Job {
    /// The job's id. A retry by hand is another job, with an id of its own: what the handler does outside is known again by a
    /// key of the work, in `metadata` or the payload, not by this.
    pub id: String,
    /// The attempt's number, counted from 1. A job may be tried again, here or elsewhere, while an earlier attempt still
    /// runs that has not heard of it. Each attempt has a higher number than those before it: a database that the handler
    /// writes to can keep it with the job's id, and refuse a lower one. docs/jobs.md shows how.
    pub attempt: u32,
    /// The payload, byte for byte as it was submitted.
    pub payload: Json,
    /// What the job does, as its client called it.
    pub kind: Option<String>,
    /// The strings that the job's client noted on it.
    pub metadata: BTreeMap<String, String>,
    /// The session it belongs to.
    pub session: Option<String>,
    /// Its sequence number in the session, counted from 1.
    pub seq: Option<u64>,
    /// How long it may run.
    pub timeout: Duration,
    /// Of a plan's stage: an object with `plan`, `task`, `tenant`, `run`, `name`, `number`, `context`, `config` and
    /// `tenant_token`.
    pub stage: Option<Json>,
    /// The span that the handler's own spans continue, as the header `traceparent` of W3C Trace Context.
    pub traceparent: Option<String>,
    /// The job that this one repeats by hand, which may have done its work. That one may be such a repetition itself: this is no
    /// key of the work either. Older daemons never say it.
    pub retry_of: Option<String>,
    /// Tells the handler to stop. A handler that ignores it is dropped after [`super::Times::stop_grace`].
    pub stop: Stop,
    /// Reports how far the attempt has come.
    pub progress: ProgressSender,
}

impl Job {
    /// A first attempt outside any worker, for a handler's own tests; and what stops it.
    #[must_use]
    pub fn detached(id: &str, payload: Json, timeout: Duration) -> (Self, Stopper) {
        let (stopper, stop) = Stopper::new();
        // Progress goes nowhere.
        let progress = ProgressSender::new(AttemptRef { job: id.to_owned(), attempt: 1 }, mpsc::channel(1).0);
        let dispatch = Dispatch::new(id, 1, payload, timeout.as_millis() as u64);
        (Self { timeout, ..Self::of(dispatch, stop, progress) }, stopper)
    }

    /// What the scheduler sent, for the handler.
    pub(super) fn of(dispatch: Dispatch, stop: Stop, progress: ProgressSender) -> Self {
        let Dispatch {
            job: id,
            attempt,
            payload,
            kind,
            metadata,
            session,
            seq,
            timeout_ms,
            stage,
            traceparent,
            retry_of,
        } = dispatch;
        let timeout = Duration::from_millis(timeout_ms);
        Self {
            id,
            attempt,
            payload,
            kind,
            metadata,
            session,
            seq,
            timeout,
            stage,
            traceparent,
            retry_of,
            stop,
            progress,
        }
    }
}

/// Why a handler is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// The scheduler cancelled or revoked the attempt.
    CalledOff,
    /// It has run for too long.
    TimedOut,
    /// The worker stops, and its drain time is over.
    Stopping,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CalledOff => "the attempt was cancelled",
            Self::TimedOut => "the attempt ran for too long",
            Self::Stopping => "the node stopped before the attempt had finished",
        })
    }
}

/// Tells a handler whether to stop. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stop(watch::Receiver<Option<Why>>);

impl Stop {
    /// Why the handler has to stop, if it has to.
    #[must_use]
    pub fn why(&self) -> Option<Why> {
        *self.0.borrow()
    }

    /// Waits until the handler has to stop.
    pub async fn requested(&self) -> Why {
        let mut hears = self.0.clone();
        // The sender is gone, so the worker is too.
        hears.wait_for(Option::is_some).await.ok().and_then(|why| *why).unwrap_or(Why::Stopping)
    }
}

/// Tells a handler to stop. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Stopper(watch::Sender<Option<Why>>);

impl Stopper {
    pub(super) fn new() -> (Self, Stop) {
        let (sender, receiver) = watch::channel(None);
        (Self(sender), Stop(receiver))
    }

    /// Tells the handler to stop. The first reason counts.
    pub fn stop(&self, why: Why) {
        self.0.send_if_modified(|reason| {
            let first = reason.is_none();
            reason.get_or_insert(why);
            first
        });
    }
}

/// Reports an attempt's progress. Reports that cannot be sent at once are dropped. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ProgressSender {
    attempt: AttemptRef,
    to: mpsc::Sender<AttemptProgress>,
}

impl ProgressSender {
    pub(super) const fn new(attempt: AttemptRef, to: mpsc::Sender<AttemptProgress>) -> Self {
        Self { attempt, to }
    }

    /// Reports a percentage (0 to 100) and a note of at most 1,024 characters; a longer one is cut off.
    pub fn send(&self, percent: Option<f64>, note: Option<&str>) {
        let AttemptRef { job, attempt } = self.attempt.clone();
        let percent = percent.filter(|percent| !percent.is_nan()).map(|percent| percent.clamp(0.0, 100.0));
        let note = note.filter(|note| !note.is_empty()).map(|note| cut(note, PROGRESS_NOTE_CHARS_MAX));
        // If the queue is full, later reports replace this one.
        let _ = self.to.try_send(AttemptProgress { job, attempt, percent, note });
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Why, in words; the first 8,192 characters count.
    pub message: String,
    /// Whether trying again may help.
    pub retryable: bool,
}

impl Failure {
    /// A failure after which another attempt may succeed.
    pub fn passing(message: impl Into<String>) -> Self {
        Self { message: message.into(), retryable: true }
    }

    /// A failure that another attempt would have again.
    pub fn lasting(message: impl Into<String>) -> Self {
        Self { message: message.into(), retryable: false }
    }
}

/// A handler's answer, as the frame that carries it.
pub(super) fn outcome(given: Result<Json, Failure>) -> AttemptOutcome {
    let Failure { message, retryable } = match given {
        Ok(output) if output.as_str().len() <= PAYLOAD_BYTES_MAX => return AttemptOutcome::Done(output),
        Ok(output) => Failure::lasting(format!(
            "the output has {} bytes of JSON text; the limit is {PAYLOAD_BYTES_MAX}",
            output.as_str().len()
        )),
        Err(failure) => failure,
    };
    let message = match message.as_str() {
        "" => "the handler failed without a message".to_owned(),
        message => cut(message, ERROR_MESSAGE_CHARS_MAX),
    };
    AttemptOutcome::Failed(AttemptFailure { message, retryable })
}

fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_scheduler_would_refuse_is_made_fit() {
        let failed = |message: &str, retryable| {
            AttemptOutcome::Failed(AttemptFailure { message: message.to_owned(), retryable })
        };
        assert_eq!(outcome(Err(Failure::passing(""))), failed("the handler failed without a message", true));
        let long = "ä".repeat(ERROR_MESSAGE_CHARS_MAX + 1);
        assert_eq!(
            outcome(Err(Failure::lasting(&long))),
            failed(&long[..2 * ERROR_MESSAGE_CHARS_MAX], false)
        );
        let largest = Json::of(&"x".repeat(PAYLOAD_BYTES_MAX - 2)).unwrap();
        assert_eq!(outcome(Ok(largest.clone())), AttemptOutcome::Done(largest));
        let larger = outcome(Ok(Json::of(&"x".repeat(PAYLOAD_BYTES_MAX - 1)).unwrap()));
        assert!(matches!(larger, AttemptOutcome::Failed(failure) if !failure.retryable));
    }

    #[tokio::test]
    async fn progress_is_made_fit_and_dropped_rather_than_waited_for() {
        let (to, mut hears) = mpsc::channel(2);
        let sender = ProgressSender::new(AttemptRef { job: "j".to_owned(), attempt: 1 }, to);
        sender.send(Some(120.0), Some(""));
        sender.send(Some(f64::NAN), Some(&"x".repeat(2_000)));
        sender.send(Some(3.0), None);
        let first = hears.recv().await.unwrap();
        assert_eq!((first.percent, first.note), (Some(100.0), None));
        let second = hears.recv().await.unwrap();
        assert_eq!((second.percent, second.note.unwrap().len()), (None, PROGRESS_NOTE_CHARS_MAX));
        assert!(hears.try_recv().is_err());
    }

    #[tokio::test]
    async fn the_first_reason_to_stop_stays() {
        let (stopper, stop) = Stopper::new();
        assert_eq!(stop.why(), None);
        stopper.stop(Why::TimedOut);
        stopper.stop(Why::CalledOff);
        assert_eq!((stop.why(), stop.requested().await), (Some(Why::TimedOut), Why::TimedOut));
        let (gone, stop) = Stopper::new();
        drop(gone);
        assert_eq!(stop.requested().await, Why::Stopping);
    }
}
