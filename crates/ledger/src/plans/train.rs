//! What a train needs to know of the steps of plans that it carries.

use std::sync::Arc;

use domain::plan::TaskState;
use domain::{Resource, shard_of};

use super::{PlanBatch, PlanVerdict, lock_of};
use crate::Result;
use crate::train::{CommitBatch, FenceClaim};

/// So many bytes of contexts, configurations and payloads count as one more row: a train has some 20 MB of them before its
/// last step.
const BYTES_OF_A_ROW: usize = 4 << 10;
/// What a task's document has of one stage.
const STAGE_BYTES: usize = 70;

impl CommitBatch for PlanBatch {
    type Verdict = PlanVerdict;
    type Claim = Resource;

    const NAME: &'static str = "plans";

    /// Whatever follows from a command fits: plans are checked when they are made.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    fn line(&self) -> Option<Resource> {
        Some(Resource::plan(self.next.id))
    }

    fn shard(&self, committers: usize) -> Option<usize> {
        Some(shard_of(Resource::plan(self.next.id).as_str(), committers))
    }

    /// The tenants' locks that it needs: two that know one by different tokens cannot both be right.
    fn claims(&self) -> impl Iterator<Item = Resource> {
        self.writes.needed_locks().map(|(place, _)| lock_of(&self.next.tasks[*place]))
    }

    /// Its lease's row among them.
    fn rows(&self) -> usize {
        let writes = &self.writes;
        let rows = 1 + writes.tasks.len() + writes.checkpoints.len() + writes.events.len() + self.jobs.len();
        let rows = rows + usize::from(self.audit.is_some());
        let bytes_of_jobs = self
            .jobs
            .iter()
            .map(|job| job.spec.payload.len() + job.spec.stage.as_ref().map_or(0, |stage| stage.len()));
        let contexts = writes.checkpoints.iter().map(|(_, checkpoint)| checkpoint.context.len());
        let documents = self.tasks(&writes.tasks).map(|task| document_bytes(task));
        let defined = self.tasks(&writes.definitions).flat_map(|task| task.spec.stages.iter());
        let payloads = defined.map(|stage| stage.payload.len());
        let bytes = bytes_of_jobs.chain(contexts).chain(documents).chain(payloads).sum::<usize>();
        rows + bytes / BYTES_OF_A_ROW
    }

    fn fence_claim(&self) -> Option<FenceClaim<'_>> {
        Some(FenceClaim { resource: Resource::plan(self.next.id), owner: &self.owner, token: self.token })
    }
}

impl PlanBatch {
    /// The tasks at these places, as they are once the step is committed.
    pub(crate) fn tasks<'p>(&'p self, places: &'p [usize]) -> impl Iterator<Item = &'p Arc<TaskState>> {
        places.iter().map(|place| &self.next.tasks[*place])
    }
}

/// The bytes of a task's document, which every write of its row carries, nearly.
fn document_bytes(task: &TaskState) -> usize {
    task.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.context.len())
        + task.spec.config.as_deref().map_or(0, str::len)
        + task.stages.len() * STAGE_BYTES
}

#[cfg(test)]
mod tests {
    use domain::limits::CONTEXT_BYTES_MAX;
    use domain::plan::{Checkpoint, PlanState, StageSpec, TaskSpec, Writes};
    use domain::{InstanceId, PlanId, TaskId, TenantId, Token};

    use super::*;
    use crate::Author;

    #[test]
    fn what_a_task_carries_counts_whenever_its_row_is_written() {
        let spec = TaskSpec::new(TenantId::parse("t").unwrap(), [StageSpec::new("only", "{}")]);
        let mut task = TaskState::new(TaskId::from_u128(1), Arc::new(spec));
        let context = "x".repeat(CONTEXT_BYTES_MAX).into();
        task.checkpoint = Some(Checkpoint { version: 1, completed: 1, context });
        let next = Arc::new(PlanState::new(PlanId::from_u128(1), Arc::default(), vec![task]));
        let batch = |tasks| PlanBatch {
            owner: InstanceId::parse("a").unwrap(),
            token: Token::FIRST,
            next: Arc::clone(&next),
            writes: Writes { tasks, ..Writes::default() },
            jobs: Vec::new(),
            lock_ms: 1,
            key: None,
            author: Author::default(),
            audit: None,
        };
        assert_eq!(batch(Vec::new()).rows(), 1, "its lease's");
        assert_eq!(batch(vec![0]).rows(), 2 + CONTEXT_BYTES_MAX / BYTES_OF_A_ROW);
    }
}
