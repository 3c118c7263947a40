//! The states of plans, tasks and stages, and what people want of them.

use crate::named::named;

named!(
    /// The status of a plan. It follows from the plan's intent and the statuses of its tasks.
    PlanStatus, "status" {
        /// It was never started.
        Created = "CREATED",
        /// Its tasks run, or wait for their turn.
        Running = "RUNNING",
        /// No stage of it begins until somebody resumes it.
        Paused = "PAUSED",
        /// Somebody must look: a task failed or was interrupted, tasks wait for the plan's resumption, or it ran over its time.
        Attention = "ATTENTION",
        /// Every task has ended, at least one succeeded, and nobody cancelled the plan.
        Succeeded = "SUCCEEDED",
        /// Every task has ended, and somebody cancelled the plan or all its tasks.
        Cancelled = "CANCELLED",
    }
);

named!(
    /// The status of a task.
    TaskStatus, "status" {
        /// It waits for its turn.
        Pending = "PENDING",
        /// Its stages run.
        Running = "RUNNING",
        /// All its stages are completed.
        Succeeded = "SUCCEEDED",
        /// A stage failed, or the run took too long.
        Failed = "FAILED",
        /// It stopped between two stages, because somebody paused it.
        Paused = "PAUSED",
        /// Its owner died or changed while it ran, or it lost its tenant's lock.
        Interrupted = "INTERRUPTED",
        /// Somebody called it off.
        Cancelled = "CANCELLED",
    }
);

named!(
    /// What people want of a plan or a task. It takes effect between two stages.
    Intent, "intent" {
        /// It runs.
        Run = "run",
        /// It stops after the stage that is under way.
        Pause = "pause",
        /// It ends; the stage that is under way is called off.
        Cancel = "cancel",
    }
);

named!(
    /// The status of a stage within a run.
    StageStatus, "status" {
        /// It has not begun.
        Pending = "PENDING",
        /// Its job is accepted and has no result yet.
        Running = "RUNNING",
        /// It is completed; a checkpoint says so.
        Succeeded = "SUCCEEDED",
        /// Its job ended without success.
        Failed = "FAILED",
        /// An earlier run completed it.
        Skipped = "SKIPPED",
        /// Its job was under way when the plan's owner died or changed, or the task lost its tenant's lock; nobody knows what it
        /// did.
        Unknown = "UNKNOWN",
    }
);

named!(
    /// What a plan does about its other tasks once one failed or was interrupted.
    OnFailure, "on_failure" {
        /// Those that run go on; no further one starts.
        StopNew = "stop_new",
        /// All others go on.
        Continue = "continue",
        /// Those that run are paused, and no further one starts.
        Pause = "pause",
    }
);

named!(
    /// Whether a retry may run a stage again of which nobody knows what it did.
    OnUnknown, "on_unknown" {
        /// Only after a person resolved the stage.
        Confirm = "confirm",
        /// Yes.
        Rerun = "rerun",
    }
);

impl PlanStatus {
    /// Whether nothing follows but a retry.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled)
    }
}

impl TaskStatus {
    /// Whether the task has ended well or was given up: its tenant's lock is free.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Cancelled)
    }

    /// Whether the task's run may go on: it runs, waits for its turn, or is paused.
    #[must_use]
    pub const fn may_go_on(self) -> bool {
        matches!(self, Self::Pending | Self::Running | Self::Paused)
    }

    /// Whether somebody must look at the task.
    #[must_use]
    pub const fn wants_attention(self) -> bool {
        matches!(self, Self::Failed | Self::Interrupted)
    }

    /// Whether the task may be retried.
    #[must_use]
    pub const fn may_retry(self) -> bool {
        matches!(self, Self::Failed | Self::Interrupted | Self::Paused | Self::Cancelled)
    }
}

impl StageStatus {
    /// Whether a job of the stage may be under way.
    #[must_use]
    pub const fn is_in_flight(self) -> bool {
        matches!(self, Self::Running | Self::Unknown)
    }

    /// Whether a checkpoint covers it.
    #[must_use]
    pub const fn is_completed(self) -> bool {
        matches!(self, Self::Succeeded | Self::Skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_read_back_what_they_print() {
        macro_rules! reads_back {
            ($($name:ident),+) => { $(
                for one in $name::ALL {
                    assert_eq!($name::parse(one.as_str()), Ok(*one));
                }
                assert!($name::parse("").is_err());
            )+ };
        }
        reads_back!(PlanStatus, TaskStatus, Intent, StageStatus, OnFailure, OnUnknown);
        let refused = OnFailure::parse("stop").unwrap_err();
        assert_eq!(refused.to_string(), "on_failure must be one of stop_new, continue, pause");
    }
}
