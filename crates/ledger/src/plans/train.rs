//! What a train needs to know of the steps of plans that it carries.

use std::sync::Arc;

use domain::plan::TaskState;
use domain::{Resource, shard_of};

use super::{PlanBatch, PlanVerdict, lock_of};
use crate::Result;
use crate::train::{CommitBatch, FenceClaim};

/// So many bytes of contexts and payloads count as one more row: a train has some 20 MB of them before its last step.
const BYTES_OF_A_ROW: usize = 4 << 10;

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
        let locks = self.writes.held.iter().chain(&self.writes.free);
        locks.map(|(place, _)| lock_of(&self.next.tasks[*place]))
    }

    /// Its lease's row among them.
    fn rows(&self) -> usize {
        let writes = &self.writes;
        let rows = 1 + writes.tasks.len() + writes.checkpoints.len() + writes.events.len() + self.jobs.len();
        let bytes_of_jobs = self
            .jobs
            .iter()
            .map(|job| job.spec.payload.len() + job.spec.stage.as_ref().map_or(0, |stage| stage.len()));
        let contexts = writes.checkpoints.iter().map(|(_, checkpoint)| checkpoint.context.len());
        rows + bytes_of_jobs.chain(contexts).sum::<usize>() / BYTES_OF_A_ROW
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
