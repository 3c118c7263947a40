//! Callers that wait for a job to be finished. A notification wakes them; since it may be lost, each reads the ledger now and
//! then in any case.

use std::pin::pin;
use std::sync::{Arc, OnceLock};

use dashmap::DashMap;
use domain::JobId;
use tokio::sync::Notify;

/// Cheap to share.
#[derive(Default)]
pub(super) struct Waiters {
    /// Each with the number of those who wait.
    waiting: DashMap<JobId, (Arc<Waiting>, usize)>,
}

/// What those share who wait for one job.
#[derive(Default)]
struct Waiting {
    finished: Notify,
    /// The result of a stage that its lane has written.
    output: OnceLock<Arc<str>>,
}

/// A waiting caller. It is registered before the job is read, so that no notification is missed in between.
pub(crate) struct Waiter {
    waiters: Arc<Waiters>,
    job: JobId,
    shared: Arc<Waiting>,
}

impl Waiters {
    pub(super) fn wait_for(self: &Arc<Self>, job: JobId) -> Waiter {
        let mut waiting = self.waiting.entry(job).or_default();
        waiting.1 += 1;
        let shared = Arc::clone(&waiting.0);
        drop(waiting);
        Waiter { waiters: Arc::clone(self), job, shared }
    }

    /// Tells all who wait for it what its result is, before they are woken.
    pub(super) fn set_output(&self, job: JobId, output: Arc<str>) {
        if let Some(waiting) = self.waiting.get(&job) {
            // A job has one result.
            let _ = waiting.0.output.set(output);
        }
    }

    /// Wakes all who wait for it.
    pub(super) fn finished(&self, job: JobId) {
        if let Some(waiting) = self.waiting.get(&job) {
            waiting.0.finished.notify_waiters();
        }
    }
}

impl Waiter {
    /// Comes back when the job is said to be finished. To be registered (polled, or enabled) before the look.
    pub(crate) fn finished(&self) -> tokio::sync::futures::Notified<'_> {
        self.shared.finished.notified()
    }

    /// Comes back when the job's lane has written its result here; for another end never.
    pub(crate) async fn output(&self) -> Arc<str> {
        loop {
            let mut finished = pin!(self.finished());
            finished.as_mut().enable();
            if let Some(output) = self.shared.output.get() {
                return Arc::clone(output);
            }
            finished.await;
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.waiters.waiting.remove_if_mut(&self.job, |_, (_, waiters)| {
            *waiters -= 1;
            *waiters == 0
        });
    }
}

#[cfg(test)]
mod tests {
    use std::task::Poll;

    use super::*;

    #[tokio::test]
    async fn all_who_wait_are_woken_and_forgotten() {
        let waiters = Arc::<Waiters>::default();
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

    #[tokio::test]
    async fn a_result_is_there_when_its_waiters_are_woken() {
        let waiters = Arc::<Waiters>::default();
        let (job, other) = (JobId::from_u128(1), JobId::from_u128(2));
        let (waiter, failed) = (waiters.wait_for(job), waiters.wait_for(other));
        let (mut output, mut never) = (pin!(waiter.output()), pin!(failed.output()));
        assert_eq!(futures_util::poll!(&mut output), Poll::Pending);
        assert_eq!(futures_util::poll!(&mut never), Poll::Pending);
        waiters.set_output(job, "1".into());
        [job, other].into_iter().for_each(|job| waiters.finished(job));
        assert_eq!(&*output.await, "1");
        assert_eq!(futures_util::poll!(&mut never), Poll::Pending);
        // Nobody waits for it: it is not kept.
        waiters.set_output(JobId::from_u128(3), "3".into());
        assert!(!waiters.waiting.contains_key(&JobId::from_u128(3)));
    }
}
