//! When each event happened to each of many numbered jobs. Every thread writes what it sees, without a lock; a job's number
//! is in its payload.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use testkit::sim_nodes::Observer;
use tokio::sync::Notify;

use crate::figures::{Latencies, Latency};

/// What happens to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is to be submitted: from here on it is waited for.
    Due,
    /// The answer 202 is here.
    Accepted,
    /// A node has it.
    There,
    /// Its node knows that the result is recorded.
    Recorded,
}

/// The moments of many jobs, in nanoseconds since the beginning; 0 for what has not happened.
#[derive(Debug)]
pub struct Moments {
    began: Instant,
    steps: [Vec<AtomicU64>; 4],
    recorded: AtomicUsize,
    /// What happened twice.
    twice: AtomicUsize,
    another: Notify,
}

impl Moments {
    /// For so many jobs.
    #[must_use]
    pub fn new(jobs: usize) -> Arc<Self> {
        let column = || (0..jobs).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self {
            began: Instant::now(),
            steps: [column(), column(), column(), column()],
            recorded: AtomicUsize::new(0),
            twice: AtomicUsize::new(0),
            another: Notify::new(),
        })
    }

    /// It happens now.
    pub fn now(&self, step: Step, job: usize) {
        self.at(step, job, Instant::now());
    }

    /// It happened then. What is no job of these is left alone.
    pub fn at(&self, step: Step, job: usize, at: Instant) {
        let ns = at.saturating_duration_since(self.began).as_nanos() as u64;
        let Some(moment) = self.steps[step as usize].get(job) else { return };
        if moment.swap(ns.max(1), Ordering::Relaxed) != 0 {
            self.twice.fetch_add(1, Ordering::Relaxed);
        } else if step == Step::Recorded {
            self.recorded.fetch_add(1, Ordering::Release);
            self.another.notify_one();
        }
    }

    /// How many are recorded.
    #[must_use]
    pub fn recorded(&self) -> usize {
        self.recorded.load(Ordering::Acquire)
    }

    /// Steps that happened twice: a second attempt, or an answer that came again.
    #[must_use]
    pub fn twice(&self) -> usize {
        self.twice.load(Ordering::Relaxed)
    }

    /// Until so many are recorded. One waits at a time.
    ///
    /// # Errors
    /// None is, for `patience`.
    pub async fn until_recorded(&self, jobs: usize, patience: Duration) -> Result<()> {
        while self.recorded() < jobs {
            if tokio::time::timeout(patience, self.another.notified()).await.is_err() {
                bail!("{} of {jobs} jobs are recorded, and no other for {patience:?}", self.recorded());
            }
        }
        Ok(())
    }

    /// When it happened to the job, if it did.
    #[must_use]
    pub fn of(&self, step: Step, job: usize) -> Option<Duration> {
        let ns = self.steps[step as usize].get(job)?.load(Ordering::Relaxed);
        (ns > 0).then(|| Duration::from_nanos(ns))
    }

    /// How long it took from one step to another, of these jobs.
    ///
    /// # Errors
    /// As for [`Latencies::gather`].
    pub fn between(&self, from: Step, to: Step, jobs: std::ops::Range<usize>) -> Result<Latency> {
        let took = |job| Some(self.of(to, job)?.saturating_sub(self.of(from, job)?).as_micros() as u64);
        Ok(Latencies::gather(jobs.filter_map(took))?.summary())
    }

    /// From the first that was due to the last that was recorded, of these jobs.
    #[must_use]
    pub fn length(&self, jobs: std::ops::Range<usize>) -> Duration {
        let first = jobs.clone().filter_map(|job| self.of(Step::Due, job)).min().unwrap_or_default();
        let last = jobs.filter_map(|job| self.of(Step::Recorded, job)).max().unwrap_or_default();
        last.saturating_sub(first)
    }
}

impl Observer for Moments {
    fn dispatched(&self, number: usize, at: Instant) {
        self.at(Step::There, number, at);
    }

    fn committed(&self, number: usize, at: Instant) {
        self.at(Step::Recorded, number, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn latencies_are_between_the_steps_and_what_is_recorded_is_counted_once() {
        let moments = Moments::new(3);
        let at = |ms| moments.began + Duration::from_millis(ms);
        for job in 0..2 {
            moments.at(Step::Due, job, at(10));
            moments.at(Step::There, job, at(20 + 10 * job as u64));
            moments.at(Step::Recorded, job, at(50));
        }
        moments.at(Step::Due, 2, at(15));
        moments.at(Step::Recorded, 1, at(60));
        moments.at(Step::Recorded, 7, at(60));
        assert_eq!((moments.recorded(), moments.twice()), (2, 1));
        let there = moments.between(Step::Due, Step::There, 0..3).unwrap();
        assert_eq!((there.count, there.max_us / 100), (2, 200));
        assert_eq!(moments.length(0..3), Duration::from_millis(50));
        moments.until_recorded(2, Duration::from_secs(1)).await.unwrap();
        assert!(moments.until_recorded(3, Duration::from_millis(1)).await.is_err());
    }
}
