//! Results of plans' stages that their nodes have sent and the ledger has not taken yet. Their nodes keep them until they are
//! committed; the alarm about checkpoints shows them meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dashmap::DashMap;
use domain::{JobId, PlanId};

/// The late results of one instance.
#[derive(Debug, Default)]
pub(super) struct LateResults {
    /// By the writer that tries to commit them: a node that reconnects sends a result again while the first is tried still.
    since: DashMap<(u64, JobId), (PlanId, Instant)>,
    writers: AtomicU64,
}

/// The late results of one writer, which are late no more when this is dropped.
#[derive(Debug)]
pub(super) struct LateOfWriter {
    all: Arc<LateResults>,
    number: u64,
    jobs: Vec<JobId>,
}

impl LateResults {
    /// What one writer finds late.
    pub(super) fn of_writer(self: &Arc<Self>) -> LateOfWriter {
        let number = self.writers.fetch_add(1, Ordering::Relaxed);
        LateOfWriter { all: Arc::clone(self), number, jobs: Vec::new() }
    }

    /// The plans of all late results, each with the time since which one of its results is late.
    pub(super) fn plans(&self) -> Vec<(PlanId, Instant)> {
        self.since.iter().map(|late| *late.value()).collect()
    }
}

impl LateOfWriter {
    /// The ledger could not take the result of this job, a stage of the plan. Tells whether that is new.
    pub(super) fn insert(&mut self, job: JobId, plan: PlanId) -> bool {
        let is_new = !self.jobs.contains(&job);
        if is_new {
            self.jobs.push(job);
            self.all.since.insert((self.number, job), (plan, Instant::now()));
        }
        is_new
    }
}

impl Drop for LateOfWriter {
    fn drop(&mut self) {
        for job in &self.jobs {
            self.all.since.remove(&(self.number, *job));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_late_until_every_writer_of_it_is_done() {
        let (late, job, plan) = (Arc::<LateResults>::default(), JobId::from_u128(1), PlanId::from_u128(2));
        let (mut first, mut again) = (late.of_writer(), late.of_writer());
        assert!(first.insert(job, plan));
        assert!(!first.insert(job, plan), "it is late already");
        assert!(again.insert(job, plan));
        drop(first);
        assert_eq!(late.plans().iter().map(|(plan, _)| *plan).collect::<Vec<_>>(), [plan]);
        drop(again);
        assert!(late.plans().is_empty());
    }
}
