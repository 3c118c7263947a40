//! Plans, their tasks and tenants: how a plan is made and steered, how a task is run again, and how all of it is shown.
//!
//! Stages are counted from 1. JSON that belongs to the caller (payloads, configurations, contexts) stays as it was written.

mod answers;
mod requests;

pub use answers::{
    AttentionTask, Checkpoint, Plan, PlanEvent, PlanProgress, Task, TaskCheckpoint, TaskDefinition, TaskLock,
    TaskStage, Tenant, TenantLock,
};
pub use requests::{
    CheckpointVersion, ExpectedRun, ExpectedTask, PlanRequest, PlanResumeRequest, ReasonRequest, RetryFrom,
    StageRequest, StageResolveRequest, TaskCancelRequest, TaskRequest, TaskRetryRequest, UnlockRequest,
};

use crate::strict::words;

words! {
    /// The status of a plan. It follows from the statuses of its tasks, and from what people want of it.
    pub growing enum PlanStatus {
        /// The plan was never started.
        Created = "CREATED",
        /// Tasks run, or wait for their turn.
        Running = "RUNNING",
        /// No stage begins until somebody resumes the plan. Those that were under way go on to their end.
        Paused = "PAUSED",
        /// Somebody must look: a task failed or was interrupted, the plan's owner changed, or the plan ran over its time.
        Attention = "ATTENTION",
        /// Every task has ended, at least one succeeded, and nobody cancelled the plan.
        Succeeded = "SUCCEEDED",
        /// Every task has ended, and somebody cancelled the plan or all its tasks. Tasks that had succeeded stay SUCCEEDED.
        Cancelled = "CANCELLED",
    }
}

words! {
    /// The status of a task.
    pub growing enum TaskStatus {
        /// The task waits for its turn.
        Pending = "PENDING",
        /// The task's stages run.
        Running = "RUNNING",
        /// All stages of the task are completed.
        Succeeded = "SUCCEEDED",
        /// A stage failed, or the run took longer than the task's `timeout_ms`.
        Failed = "FAILED",
        /// The task stopped between two stages, because somebody paused it.
        Paused = "PAUSED",
        /// The plan's owner died or changed while the task ran, or the task lost its tenant's lock.
        Interrupted = "INTERRUPTED",
        /// Somebody cancelled the task.
        Cancelled = "CANCELLED",
    }
}

words! {
    /// The status of a stage within a run.
    pub growing enum StageStatus {
        /// The stage has not begun.
        Pending = "PENDING",
        /// The stage's job is accepted and has no result yet.
        Running = "RUNNING",
        /// The stage is completed; a checkpoint covers it.
        Succeeded = "SUCCEEDED",
        /// The stage's job ended without success. It may have done its work all the same, or a part of it.
        Failed = "FAILED",
        /// An earlier run completed the stage.
        Skipped = "SKIPPED",
        /// The plan's owner died or changed, or the task lost its tenant's lock, while the stage's job was under way. Nobody
        /// knows what the job did.
        Unknown = "UNKNOWN",
    }
}

words! {
    /// What people want of a plan or a task. It takes effect between two stages.
    pub growing enum Intent {
        /// The stages run.
        Run = "run",
        /// No further stage begins.
        Pause = "pause",
        /// It ends; the jobs of stages that are under way are cancelled.
        Cancel = "cancel",
    }
}

words! {
    /// What a plan does with its other tasks once one failed or was interrupted.
    pub growing enum OnFailure {
        /// Running tasks go on; no further task starts as long as one is FAILED or INTERRUPTED.
        StopNew = "stop_new",
        /// All other tasks go on.
        Continue = "continue",
        /// Running tasks are paused; no further task starts as long as one is FAILED or INTERRUPTED.
        Pause = "pause",
    }
}

words! {
    /// Whether a retry may run an UNKNOWN stage again.
    pub enum OnUnknown {
        /// Only after a person resolved the stage.
        Confirm = "confirm",
        /// Yes: the stage may run twice without harm.
        Rerun = "rerun",
    }
}

words! {
    /// What an UNKNOWN stage did, as a person says.
    pub enum StageOutcome {
        /// The stage is done: it becomes SUCCEEDED, and a checkpoint covers it.
        Done = "done",
        /// The stage did nothing: it becomes PENDING, and a retry runs it.
        NotDone = "not_done",
    }
}

words! {
    /// Where a retry continues.
    pub enum RetryPoint {
        /// After the last completed stage.
        Checkpoint = "checkpoint",
        /// At the first stage.
        Start = "start",
    }
}

#[cfg(test)]
mod tests;
