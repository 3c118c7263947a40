//! A source of worker numbers whose calls may panic: each costs its own answer, and not the keeper.

use std::sync::Arc;

use domain::InstanceId;
use ledger::{Marked, WorkerRecord};

use super::numbers::{Candidate, Numbers, WorkerLease};
use crate::calls::answer_of;

/// What the log calls the calls.
const WORK: &str = "the worker number of snowflakes";

/// The numbers of the source within. A call that panics is answered as one whose outcome is unknown.
pub(super) struct GuardedNumbers(pub(super) Arc<dyn Numbers>);

#[async_trait::async_trait]
impl Numbers for GuardedNumbers {
    async fn epoch_ms(&self, wanted_ms: u64) -> ledger::Result<u64> {
        answer_of(WORK, self.0.epoch_ms(wanted_ms)).await
    }

    async fn clock_ms(&self) -> ledger::Result<u64> {
        answer_of(WORK, self.0.clock_ms()).await
    }

    async fn is_current(&self) -> ledger::Result<bool> {
        answer_of(WORK, self.0.is_current()).await
    }

    async fn survey(&self) -> ledger::Result<Vec<WorkerRecord>> {
        answer_of(WORK, self.0.survey()).await
    }

    fn cluster(&self) -> &str {
        self.0.cluster()
    }

    fn identity(&self) -> (&InstanceId, &str) {
        self.0.identity()
    }

    async fn acquire(&self, candidate: &Candidate) -> ledger::Result<Option<WorkerLease>> {
        answer_of(WORK, self.0.acquire(candidate)).await
    }

    async fn open(&self, worker_lease: &WorkerLease) -> ledger::Result<Option<Marked>> {
        answer_of(WORK, self.0.open(worker_lease)).await
    }

    async fn mark(
        &self,
        worker_lease: &WorkerLease,
        mark_ms: u64,
        ahead_max_ms: u64,
    ) -> ledger::Result<Option<Marked>> {
        answer_of(WORK, self.0.mark(worker_lease, mark_ms, ahead_max_ms)).await
    }

    async fn renew(&self, worker_lease: &WorkerLease) -> ledger::Result<bool> {
        answer_of(WORK, self.0.renew(worker_lease)).await
    }

    async fn give_back(&self, worker_lease: &WorkerLease, mark_ms: u64) -> ledger::Result<bool> {
        answer_of(WORK, self.0.give_back(worker_lease, mark_ms)).await
    }
}
