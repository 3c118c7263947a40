//! What a caller is shown: plans, tasks, checkpoints, tenants and their locks, events.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Intent, OnFailure, PlanStatus, StageRequest, StageStatus, TaskStatus};
use crate::json::Json;
use crate::lenient;
use crate::limits::{CONTEXT_BYTES_MAX, TASK_CONFIG_BYTES_MAX};
use crate::strict;

/// A plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Plan {
    /// Its id.
    pub id: String,
    /// Its name.
    #[schema(required)]
    pub name: Option<String>,
    /// Its status, which follows from the statuses of its tasks.
    #[serde(deserialize_with = "lenient::read")]
    pub status: PlanStatus,
    /// How many tasks may run at once.
    pub max_concurrency: u32,
    /// What the plan does with its other tasks once one failed or was interrupted.
    #[serde(deserialize_with = "lenient::read")]
    pub on_failure: OnFailure,
    /// How long after its start the plan starts further tasks, in milliseconds. It does not count once a task is retried of a
    /// plan that had ended in time.
    pub timeout_ms: u64,
    /// What people want of the plan.
    #[serde(deserialize_with = "lenient::read")]
    pub intent: Intent,
    /// The plan's owner died or changed while tasks ran or waited, or a task of a plan that was paused or cancelled was
    /// retried alone. No further task starts until somebody resumes the plan. It is over once no task waits for that.
    pub halted: bool,
    /// The plan ran over its time. No further task starts, whether the plan is resumed or not; each can be retried.
    pub over_time: bool,
    /// The plan's tasks, counted.
    pub progress: PlanProgress,
    /// When the plan was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When the plan was started. `null` before that.
    #[schema(required, format = DateTime)]
    pub started_at: Option<String>,
    /// When the plan became SUCCEEDED or CANCELLED. `null` before that.
    #[schema(required, format = DateTime)]
    pub finished_at: Option<String>,
    /// The first 100 tasks that somebody must look at, those that are FAILED or INTERRUPTED, in the order of the plan. A list of
    /// plans has the first 10 of each. Absent in lists of older daemons.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, max_items = 100)]
    pub attention: Option<Vec<AttentionTask>>,
}

/// The number of a plan's tasks, and of those with each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanProgress {
    /// All tasks.
    pub total: u64,
    /// Tasks that wait for their turn.
    pub pending: u64,
    /// Tasks that run.
    pub running: u64,
    /// Tasks whose stages are all completed.
    pub succeeded: u64,
    /// Tasks that failed.
    pub failed: u64,
    /// Tasks that are paused.
    pub paused: u64,
    /// Tasks that were interrupted.
    pub interrupted: u64,
    /// Tasks that were cancelled.
    pub cancelled: u64,
}

/// A task that somebody must look at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AttentionTask {
    /// The task's id.
    pub task: String,
    /// The tenant that the task is for.
    pub tenant: String,
    /// FAILED or INTERRUPTED.
    #[serde(deserialize_with = "lenient::read")]
    pub status: TaskStatus,
    /// Why, in words.
    #[schema(required)]
    pub reason: Option<String>,
    /// The first stage that is not completed, counted from 1.
    #[schema(required)]
    pub stage: Option<u32>,
    /// The name of that stage.
    #[schema(required)]
    pub stage_name: Option<String>,
}

/// A task in its newest run. Lists leave out `checkpoint.context`, `checkpoint.saved_at`, `context`, `config`, `lock` and
/// the `attempts` of stages. Of the lock they have `lock_token`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// The id of its plan.
    pub plan: String,
    /// Its place in the plan, counted from 1.
    pub place: u64,
    /// The tenant that the task is for.
    pub tenant: String,
    /// Its name.
    #[schema(required)]
    pub name: Option<String>,
    /// Its status.
    #[serde(deserialize_with = "lenient::read")]
    pub status: TaskStatus,
    /// What people want of the task.
    #[serde(deserialize_with = "lenient::read")]
    pub intent: Intent,
    /// Why the task failed or was interrupted, in words; or, until the stage is resolved, how its job ended after the task had
    /// lost its tenant's lock. A task that was cancelled has one only while its stage is UNKNOWN.
    #[schema(required)]
    pub reason: Option<String>,
    /// The number of the newest run, counted from 1. Each retry opens the next run.
    pub run: u32,
    /// When the newest run began, or went on after its last pause. `null` while it waits for its first turn.
    #[schema(required, format = DateTime)]
    pub run_at: Option<String>,
    /// How long one run may take, in milliseconds, counted from `run_at`.
    pub timeout_ms: u64,
    /// The number of the definition that the newest run has. 1 is the definition in the plan; each correction has the
    /// next number.
    pub definition: u32,
    /// The first stage that is not completed, counted from 1. `null` when all stages are completed.
    #[schema(required)]
    pub stage: Option<u32>,
    /// The stages, in order.
    pub stages: Vec<TaskStage>,
    /// Whether the newest run has a checkpoint, from which a retry continues.
    pub has_checkpoint: bool,
    /// The checkpoint that the newest run continues from. `null` for none.
    #[schema(required)]
    pub checkpoint: Option<TaskCheckpoint>,
    /// The version of the task's newest checkpoint in any run, as a retry expects it. 0 for none.
    pub checkpoint_version: u32,
    /// The context that the next stage gets.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<CONTEXT_BYTES_MAX, _>"
    )]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub context: Option<Json>,
    /// The tenant's configuration. `null` for none.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<TASK_CONFIG_BYTES_MAX, _>"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub config: Option<Json>,
    /// The tenant's lock. `null` unless this task holds it.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(value_type = Option<TaskLock>)]
    pub lock: Option<Option<TaskLock>>,
    /// The token of the tenant's lock. Absent unless this task holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lock_token: Option<u64>,
    /// A job of an earlier run that may still be under way. No stage begins before it has ended.
    #[schema(required)]
    pub waits_for: Option<String>,
    /// When the task changed last.
    #[schema(format = DateTime)]
    pub updated_at: String,
}

/// A stage of a task's newest run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskStage {
    /// Its name.
    pub name: String,
    /// Its status.
    #[serde(deserialize_with = "lenient::read")]
    pub status: StageStatus,
    /// The job that runs the stage, or ran it. `null` before it begins, and for a stage that an earlier run completed.
    #[schema(required)]
    pub job: Option<String>,
    /// The number of the job's newest attempt; 0 before the first. Absent once the job is not kept any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub attempts: Option<u32>,
}

/// The stages of a task as its newest run has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskDefinition {
    /// The task's id.
    pub task: String,
    /// The number of the newest run, as a retry expects it.
    pub run: u32,
    /// The version of the task's newest checkpoint in any run, as a retry expects it. 0 for none.
    pub checkpoint_version: u32,
    /// The number of the definition. 1 is the definition in the plan; each correction has the next number.
    pub definition: u32,
    /// All stages, in order, as a retry takes them. Each has all fields of a stage, but for `requires`, `pool` and `route`
    /// that it does not ask for.
    // As they were written: of a newer daemon they may have more than a `StageRequest`, which a retry must not lose.
    #[schema(value_type = Vec<StageRequest>, min_items = 1, max_items = 100)]
    pub stages: Vec<Json>,
}

/// The checkpoint that a run continues from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskCheckpoint {
    /// Its version, counted from 1 in all runs of the task.
    pub version: u32,
    /// The names of the completed stages, in order.
    pub completed_stages: Vec<String>,
    /// The last completed stage, counted from 1.
    pub last_completed: u32,
    /// When the checkpoint was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub saved_at: Option<String>,
    /// The context that the completed stages left. The next stage gets the task's `context`, which a retry may have patched.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<CONTEXT_BYTES_MAX, _>"
    )]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub context: Option<Json>,
}

/// A checkpoint in the history of a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checkpoint {
    /// Its version, counted from 1 in all runs of the task.
    pub version: u32,
    /// The run that wrote the checkpoint.
    pub run: u32,
    /// The names of the completed stages, in order, as the task's definition had them when the checkpoint was written.
    pub completed_stages: Vec<String>,
    /// The last completed stage, counted from 1.
    pub last_completed: u32,
    /// When the checkpoint was written.
    #[schema(format = DateTime)]
    pub saved_at: String,
    /// The context that the completed stages left.
    #[serde(deserialize_with = "strict::json::<CONTEXT_BYTES_MAX, _>")]
    #[schema(value_type = Object)]
    pub context: Json,
}

/// The lock of a task on its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskLock {
    /// The fencing token of the lock. The stages pass it on to the systems that they change.
    pub token: u64,
    /// The time until the lock expires unless it is renewed, in milliseconds.
    pub expires_in_ms: u64,
}

/// A tenant: its newest task, and its lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tenant {
    /// Its id.
    pub tenant: String,
    /// The tenant's newest task, of any plan.
    pub task: Task,
    /// Whether the newest task has a checkpoint, from which a retry continues.
    pub has_checkpoint: bool,
    /// The lock. `null` while no task holds it.
    #[schema(required)]
    pub lock: Option<TenantLock>,
}

/// The lock of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TenantLock {
    /// The fencing token of the lock.
    pub token: u64,
    /// The time until the lock expires unless it is renewed, in milliseconds.
    pub expires_in_ms: u64,
    /// The task that holds the lock.
    pub task: String,
    /// The plan of that task. `null` if the plan is not kept any more.
    #[schema(required)]
    pub plan: Option<String>,
}

/// An event of a plan: something that happened to it, or to one of its tasks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlanEvent {
    /// The event's number in the plan, counted from 1. A recovery of the ledger leaves numbers out.
    pub seq: u64,
    /// When it happened.
    #[schema(format = DateTime)]
    pub at: String,
    /// The task that it happened to. `null` if it happened to the plan.
    #[schema(required)]
    pub task: Option<String>,
    /// What happened: `status`, `intent`, `stage`, `checkpoint`, `resolved`, `retried`, `lock_lost`, `lock_broken`,
    /// `taken_over` or `over_time`. Newer daemons may add kinds.
    pub kind: String,
    /// The number of the task's run.
    #[schema(required)]
    pub run: Option<u32>,
    /// The stage that it happened to, counted from 1.
    #[schema(required)]
    pub stage: Option<u32>,
    /// The status or intent before the change.
    #[schema(required)]
    pub before: Option<String>,
    /// The status or intent after the change.
    #[schema(required)]
    pub after: Option<String>,
    /// Why, in words.
    #[schema(required)]
    pub reason: Option<String>,
    /// The name of the caller's token. `null` without tokens, and for what the daemon did by itself.
    #[schema(required)]
    pub principal: Option<String>,
    /// The id of the request that caused it. `null` for what the daemon did by itself.
    #[schema(required)]
    pub request_id: Option<String>,
}
