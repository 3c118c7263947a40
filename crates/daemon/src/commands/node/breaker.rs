//! How many attempts in a row have failed: a node on which all fail is to take no more of them.

use std::sync::atomic::{AtomicU64, Ordering};

use client::node::{AttemptEnd, Event};
use tokio::sync::Notify;

/// Counts attempts that failed one after the other.
#[derive(Debug, Default)]
pub struct Breaker {
    /// After how many it breaks; `None` for never.
    most: Option<u64>,
    failed: AtomicU64,
    breaks: Notify,
}

impl Breaker {
    /// Breaks after so many failures in a row, if after any.
    pub fn new(most: Option<u32>) -> Self {
        Self { most: most.map(u64::from), ..Self::default() }
    }

    /// Notes how an attempt has ended. One that would fail on any node, or that was called off, says nothing about this one.
    pub fn note(&self, event: &Event) {
        let Event::Finished { end, .. } = event else { return };
        match end {
            AttemptEnd::Succeeded => self.failed.store(0, Ordering::Relaxed),
            AttemptEnd::Failed { retryable: true, .. } => {
                let failed = self.failed.fetch_add(1, Ordering::Relaxed) + 1;
                if self.most == Some(failed) {
                    self.breaks.notify_one();
                }
            }
            _ => {}
        }
    }

    /// Waits until it breaks; how many have failed by then.
    pub async fn broken(&self) -> u64 {
        self.breaks.notified().await;
        self.failed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    fn ended(end: AttemptEnd) -> Event {
        Event::Finished { job: "j".to_owned(), attempt: 1, took: Duration::ZERO, end }
    }

    fn failed(retryable: bool) -> Event {
        ended(AttemptEnd::Failed { message: "no".to_owned(), retryable })
    }

    #[test]
    fn it_breaks_after_failures_without_a_success_between_them() {
        let breaker = Breaker::new(Some(2));
        let notes = |events: &[Event]| {
            events.iter().for_each(|event| breaker.note(event));
            breaker.broken().now_or_never()
        };
        let started = Event::Started { job: "j".to_owned(), attempt: 1 };
        assert_eq!(notes(&[failed(true), ended(AttemptEnd::Succeeded), failed(true)]), None);
        // Neither an end of its own nor one that is the job's fault counts, and neither is a success.
        assert_eq!(notes(&[failed(false), ended(AttemptEnd::CalledOff), started]), None);
        assert_eq!(notes(&[failed(true)]), Some(2));
        assert_eq!(notes(&[failed(true)]), None, "once");
    }

    #[test]
    fn one_without_a_number_never_breaks() {
        let breaker = Breaker::new(None);
        (0..100).for_each(|_| breaker.note(&failed(true)));
        assert_eq!(breaker.broken().now_or_never(), None);
    }
}
