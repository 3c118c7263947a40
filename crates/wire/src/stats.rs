//! Statistics for people: jobs, plans and tasks by state, and how fast jobs come and go.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Jobs, plans and tasks by state, and the rates of jobs. Figures that are zero are included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    /// The instance that answers. The figures are of the whole cluster.
    pub instance: String,
    /// All jobs of the cluster, by state.
    pub jobs: JobStates,
    /// The CREATED jobs that are not due yet, or that wait for a person's decision. `jobs` includes them.
    pub delayed: u64,
    /// How long the job that waits longest had been due when the jobs were counted, in milliseconds. A job waits when
    /// it is due and no attempt is under way. `null` when no job waits. A job that was delayed and passed on through the
    /// ledger, or was in the ledger alone when its time came, counts from its acceptance.
    #[schema(required)]
    pub oldest_waiting_ms: Option<u64>,
    /// How fast all live instances together accept and finish jobs; those with a `problem` in `instances` are left out.
    pub rates: JobRates,
    /// The live instances, the one that answers first, each with its own part of `rates`.
    #[serde(default)]
    #[schema(required)]
    pub instances: Vec<InstanceRates>,
    /// Since when the instances in `rates` count: the start of the oldest of them, but not before the first step of
    /// `history`. An instance that starts anew has forgotten what it counted before.
    #[serde(default)]
    #[schema(required)]
    pub history_since: Option<String>,
    /// The jobs of these instances over the last 15 minutes.
    #[serde(default)]
    #[schema(required)]
    pub history: JobHistory,
    /// The same figures for each pool. The jobs that name no pool come first; then come the pools that are configured
    /// or that a job names, in the order of their names. There are at most 1,000: the configured pools are included
    /// first, then those with the most jobs.
    pub pools: Vec<PoolStats>,
    /// The same figures for each tenant, in the order of their names, after those of the jobs without a tenant. There are at most
    /// 1,000: those with the most jobs. An instance of 0.1.0 leaves them out.
    #[serde(default)]
    #[schema(required)]
    pub tenants: Vec<TenantStats>,
    /// The slots of all connected nodes, as the instance that answers knows them now. An instance of 0.1.0 leaves them out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required, value_type = SlotStats)]
    pub slots: Option<SlotStats>,
    /// All plans that are kept, by status.
    pub plans: PlanStatuses,
    /// The tasks of plans that are not over, by status.
    pub tasks: TaskStatuses,
    /// The UNKNOWN stages of tasks of plans that are not over. Stages of cancelled tasks are not counted.
    pub unknown_stages: u64,
    /// How long ago the unfinished jobs were counted, in milliseconds: usually a few seconds. With a million jobs it may be a
    /// minute, and it grows while the ledger does not answer.
    pub counted_ms_ago: u64,
    /// How long ago the FINISHED jobs were counted, in milliseconds. With millions of them it may be minutes. `null` while an
    /// instance that has just started counts them for the first time, and that takes longer than 0.1 s.
    #[schema(required)]
    pub finished_counted_ms_ago: Option<u64>,
    /// How long ago plans and tasks were counted, in milliseconds: usually up to 15 s.
    pub plans_counted_ms_ago: u64,
}

/// What one instance has counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InstanceRates {
    /// The instance.
    pub instance: String,
    /// Since when it counts. `null` if it did not say.
    #[schema(required)]
    pub counting_since: Option<String>,
    /// How fast it accepts and finishes jobs. `null` if it did not say.
    #[schema(required)]
    pub rates: Option<JobRates>,
    /// Why `rates` and `history` are without this instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<String>,
}

/// Numbers of jobs in the past, one for each step of time, the newest last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobHistory {
    /// The length of a step, in milliseconds.
    pub step_ms: u64,
    /// How long ago the newest step ended, in milliseconds. Those of other instances may end some seconds earlier or later.
    pub ended_ms_ago: u64,
    /// Jobs that were accepted.
    pub accepted: Vec<u64>,
    /// Jobs that a node completed.
    pub succeeded: Vec<u64>,
    /// Jobs that failed.
    pub failed: Vec<u64>,
    /// Jobs that a caller cancelled.
    pub cancelled: Vec<u64>,
    /// Jobs whose last attempts ran too long.
    pub timed_out: Vec<u64>,
}

/// The figures of the jobs that name one pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct PoolStats {
    /// The pool. `null` for the jobs that name none.
    #[schema(required)]
    pub pool: Option<String>,
    /// These jobs, of the whole cluster, by state.
    pub jobs: JobStates,
    /// Those of these jobs that are CREATED and not due yet, or wait for a person's decision.
    pub delayed: u64,
    /// How long the one that waits longest had been due when they were counted, in milliseconds. `null` when none
    /// waits.
    #[schema(required)]
    pub oldest_waiting_ms: Option<u64>,
    /// How fast all live instances together accept and finish them.
    pub rates: JobRates,
    /// Whether the pool is paused.
    #[serde(default)]
    #[schema(required)]
    pub paused: bool,
}

/// The figures of the jobs of one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TenantStats {
    /// The tenant. `null` for the jobs that have none.
    #[schema(required)]
    pub tenant: Option<String>,
    /// These jobs, of the whole cluster, by state.
    pub jobs: JobStates,
    /// Those of these jobs that are CREATED and not due yet, or wait for a person's decision.
    pub delayed: u64,
    /// How long the one that waits longest had been due when they were counted, in milliseconds. `null` when none
    /// waits.
    #[schema(required)]
    pub oldest_waiting_ms: Option<u64>,
    /// How fast all live instances together accept and finish them.
    pub rates: JobRates,
}

/// Slots of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SlotStats {
    /// Slots that are taken, reserved ones included.
    pub used: u64,
    /// All slots.
    pub all: u64,
}

/// Numbers of jobs, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub struct JobStates {
    /// Accepted; no attempt is under way.
    pub created: u64,
    /// The newest attempt was sent to a node. An attempt that ends within 1.5 s, or within half of `nodes.ack_ms` where that is
    /// shorter, is never counted as RUNNING.
    pub dispatched: u64,
    /// The node has acknowledged the newest attempt.
    pub running: u64,
    /// The job has its one result, and was not purged yet. `null` as long as `finished_counted_ms_ago` is.
    #[schema(required)]
    pub finished: Option<u64>,
}

/// The rates over three lengths of time. An instance that is younger than that has the rates since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobRates {
    /// Over the last minute.
    #[serde(rename = "1m")]
    pub one_minute: JobRate,
    /// Over the last 5 minutes.
    #[serde(rename = "5m")]
    pub five_minutes: JobRate,
    /// Over the last 15 minutes.
    #[serde(rename = "15m")]
    pub fifteen_minutes: JobRate,
}

/// Jobs per second, over one length of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct JobRate {
    /// Jobs that were accepted, the stages of plans included.
    pub accepted_per_second: f64,
    /// Jobs whose end was written, by outcome.
    pub finished_per_second: OutcomeRates,
}

/// Jobs per second, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OutcomeRates {
    /// A node completed them.
    pub succeeded: f64,
    /// They failed, and are not tried again.
    pub failed: f64,
    /// A caller cancelled them.
    pub cancelled: f64,
    /// Their last attempts ran longer than `timeout_ms`.
    pub timed_out: f64,
}

/// Numbers of plans, by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub struct PlanStatuses {
    /// The plan was never started.
    pub created: u64,
    /// Tasks run, or wait for their turn.
    pub running: u64,
    /// No stage begins until somebody resumes the plan.
    pub paused: u64,
    /// Somebody must look: a task failed or was interrupted, the plan's owner changed, or the plan ran over its time.
    pub attention: u64,
    /// Every task has ended, at least one succeeded, and nobody cancelled the plan.
    pub succeeded: u64,
    /// Every task has ended, and somebody cancelled the plan or all its tasks. Tasks that had succeeded stay SUCCEEDED.
    pub cancelled: u64,
}

/// Numbers of tasks, by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "UPPERCASE")]
pub struct TaskStatuses {
    /// The task waits for its turn.
    pub pending: u64,
    /// The task's stages run.
    pub running: u64,
    /// All stages of the task are completed.
    pub succeeded: u64,
    /// A stage failed, or the run took too long.
    pub failed: u64,
    /// The task stopped between two stages, because somebody paused it.
    pub paused: u64,
    /// The plan's owner died or changed while the task ran, or the task lost its tenant's lock.
    pub interrupted: u64,
    /// Somebody cancelled the task.
    pub cancelled: u64,
}
