//! Callers that wait for a job to be finished. A notification wakes them; since it may be lost, each reads the ledger now and
//! then in any case.

use std::sync::Arc;

use dashmap::DashMap;
use domain::JobId;
use tokio::sync::Notify;

/// Cheap to share.
#[derive(Default)]
pub(super) struct Waiters {
    waiting: DashMap<JobId, Arc<Notify>>,
}

/// A waiting caller. It is registered before the job is read, so that no notification is missed in between.
pub(super) struct Waiter<'w> {
    waiters: &'w Waiters,
    job: JobId,
    finished: Arc<Notify>,
}

impl Waiters {
    pub(super) fn wait_for(&self, job: JobId) -> Waiter<'_> {
        let finished = Arc::clone(&self.waiting.entry(job).or_default());
        Waiter { waiters: self, job, finished }
    }

    /// Wakes all who wait for it.
    pub(super) fn finished(&self, job: JobId) {
        if let Some(waiting) = self.waiting.get(&job) {
            waiting.notify_waiters();
        }
    }
}

impl Waiter<'_> {
    /// Comes back when the job is said to be finished. To be registered (polled, or enabled) before the look.
    pub(super) fn finished(&self) -> tokio::sync::futures::Notified<'_> {
        self.finished.notified()
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        // Two: the map's and this one's.
        self.waiters.waiting.remove_if(&self.job, |_, finished| Arc::strong_count(finished) <= 2);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn all_who_wait_are_woken_and_forgotten() {
        let waiters = Waiters::default();
        let job = JobId::from_u128(1);
        let (one, other) = (waiters.wait_for(job), waiters.wait_for(job));
        {
            let (mut first, mut second) = (pin!(one.finished()), pin!(other.finished()));
            first.as_mut().enable();
            second.as_mut().enable();
            waiters.finished(JobId::from_u128(2));
            waiters.finished(job);
            first.await;
            second.await;
        }
        drop(one);
        assert_eq!(waiters.waiting.len(), 1);
        drop(other);
        assert!(waiters.waiting.is_empty());
    }
}
