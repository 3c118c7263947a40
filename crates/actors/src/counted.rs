//! Counts of rows in the ledger that are taken now and then, so that no request counts anything.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

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
