//! Counts of rows in the ledger that are taken now and then, so that no request counts anything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ledger::jittered;
use tokio::sync::watch;

/// The longest pause after a count that failed, before jitter: what it took says nothing of the next one.
pub(crate) const FAILED_PAUSE_MAX: Duration = Duration::from_secs(30);

/// The newest count, if there was one yet.
pub(crate) struct Counted<T>(watch::Sender<Option<Arc<Count<T>>>>);

/// One count.
pub(crate) struct Count<T> {
    /// When it began, by this process's own clock.
    since: Instant,
    /// What was counted.
    pub(crate) found: T,
}

impl<T> Default for Counted<T> {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl<T> Counted<T> {
    /// Counts, and keeps what is found. Where the ledger does not answer, the last count stays. Answers how long it took.
    pub(crate) async fn renew(
        &self,
        count: impl Future<Output = ledger::Result<T>>,
    ) -> (Duration, ledger::Result<Arc<Count<T>>>) {
        let since = Instant::now();
        let counted = count.await.map(|found| Arc::new(Count { since, found }));
        if let Ok(count) = &counted {
            self.0.send_replace(Some(Arc::clone(count)));
        }
        (since.elapsed(), counted)
    }

    /// The newest count. Waits for the first.
    pub(crate) async fn newest(&self) -> Arc<Count<T>> {
        let mut counts = self.0.subscribe();
        let first = counts.wait_for(Option::is_some).await.map(|count| count.clone());
        match first {
            Ok(Some(count)) => count,
            // The sender lives as long as this.
            Ok(None) | Err(_) => std::future::pending().await,
        }
    }
}

impl<T> Count<T> {
    /// How old it is.
    pub(crate) fn age(&self) -> Duration {
        self.since.elapsed()
    }
}

/// How long to wait between two counts.
pub(crate) struct Pauses {
    at_least: Duration,
    multiple: u32,
    /// How long the last count took; `None` before the first.
    last: Option<Duration>,
}

impl Pauses {
    /// Pauses of at least `at_least`, and of `multiple` times what a count takes; both before jitter.
    pub(crate) const fn new((at_least, multiple): (Duration, u32)) -> Self {
        Self { at_least, multiple, last: None }
    }

    /// Until the next count, after one that took so long. Counts that are slow are so each time; one that hung with the ledger
    /// is alone, and the one before it says what a count takes.
    pub(crate) fn after(&mut self, took: Duration, is_counted: bool) -> Duration {
        let takes = self.last.map_or(took, |before| before.min(took));
        if is_counted {
            self.last = Some(took);
        }
        let pause = self.at_least.max(takes * self.multiple);
        jittered(if is_counted { pause } else { pause.min(FAILED_PAUSE_MAX) })
    }
}
