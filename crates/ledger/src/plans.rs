//! Plans: their rows, the write of one step under the plan's lease and the tenants' locks, and what anybody may read.
//!
//! A step is one transaction: it locks the lease `plan:<id>` at exactly the owner's token, and the lease `tenant:<id>` of
//! every task whose work goes on at exactly the task's token; it compares the versions of the rows that it changes; and
//! it writes all of it or nothing, the jobs of the next stages included.

pub(crate) mod rows;
mod train;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use domain::job::{Attempt, NewJob};
use domain::plan::{PlanEvent, PlanState, PlanStatus, StageSpec, TaskState, TaskStatus, Writes};
use domain::{
    AuditEntry, InstanceId, JobId, PlanId, PoolName, Resource, TaskId, TenantId, Timestamp, Token,
    TraceParent,
};

use crate::jobs::JobKey;
use crate::train::Link;
use crate::{KeyScope, Result};

/// Who asked for a step, for the history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Author {
    /// The name of the token that was used; `None` without one, and for what an owner does by itself.
    pub principal: Option<Arc<str>>,
    /// The id of the request.
    pub request_id: Option<Arc<str>>,
    /// Why, in the author's words.
    pub reason: Option<Arc<str>>,
    /// The span of the request, which is not in the history: the stages of what it starts or retries continue it.
    pub traceparent: Option<TraceParent>,
}

/// A plan to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPlan {
    /// The plan with all its tasks, each at version 1.
    pub plan: Arc<PlanState>,
    /// The tasks, by their places, whose tenants' locks are taken in the same commit.
    pub take: Vec<usize>,
    /// How long these locks last, in milliseconds.
    pub lock_ms: u64,
    /// What happened in making it, for the history.
    pub events: Vec<PlanEvent>,
    /// The request's idempotency key.
    pub key: Option<JobKey>,
    /// Who asked for it.
    pub author: Author,
    /// What the audit says of it: written in the same commit.
    pub audit: Option<AuditEntry>,
}

/// What became of a plan that was to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanCreated {
    /// It is durable.
    Made {
        /// The transaction's time.
        at: Timestamp,
        /// The tokens of the locks that it took, by the tasks' places.
        locks: Vec<(usize, Token)>,
    },
    /// The key was used before. Nothing was written.
    Kept(KeptPlan),
    /// Somebody else has the lock of a tenant. Nothing was written.
    Locked(Locker),
}

/// What is kept under the idempotency key of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptPlan {
    /// The hash of what was asked then.
    pub body_hash: [u8; 32],
    /// The plan that was made then.
    pub plan: PlanId,
}

/// What became of a lock that was to be broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LockBreak {
    /// It is free by now. It was this task's, of this plan.
    Broken {
        /// The task.
        task: TaskId,
        /// Its plan; `None` where that was purged.
        plan: Option<PlanId>,
    },
    /// It is held at this token. Nothing was written.
    OtherToken(Token),
    /// Nobody holds it. Nothing was written.
    NotHeld,
}

/// The idempotency key of a retry, and the task that it runs again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryKey {
    /// The key.
    pub key: JobKey,
    /// The task.
    pub task: TaskId,
}

/// What is kept under the idempotency key of a retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRetry {
    /// The hash of what was asked then.
    pub body_hash: [u8; 32],
    /// The task that was run again.
    pub task: TaskId,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanBatch {
    /// The instance that owns the plan.
    pub owner: InstanceId,
    /// The token of the plan's lease.
    pub token: Token,
    /// The plan once the step is committed.
    pub next: Arc<PlanState>,
    /// What the step writes.
    pub writes: Writes,
    /// The jobs of the stages that begin, in the order of [`Writes::starts`].
    pub jobs: Vec<NewJob>,
    /// How long the tenants' locks last that the step takes or renews, in milliseconds.
    pub lock_ms: u64,
    /// The idempotency key of the retry that it carries out: kept in the same commit.
    pub key: Option<RetryKey>,
    /// Who asked for it.
    pub author: Author,
    /// What the audit says of it: written in the same commit.
    pub audit: Option<AuditEntry>,
}

/// What became of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanVerdict {
    /// It is durable.
    Written {
        /// The transaction's time.
        at: Timestamp,
        /// The tokens of the locks that it took, by the tasks' places.
        locks: Vec<(usize, Token)>,
    },
    /// The plan's lease is another's by now, or released. Nothing was written.
    Fenced,
    /// The locks of these tasks, by their places, were broken, or ran out and were taken. Nothing was written.
    LockLost(Vec<usize>),
    /// Somebody else has the lock of a tenant. Nothing was written.
    Locked(Locker),
    /// The retry's key was used before. Nothing was written.
    KeyTaken,
    /// A row is not at the version that the step was decided on. Nothing was written.
    Diverged,
    /// The row of a lease was locked; nothing was written, the same may be sent again.
    Again,
}

/// Who has a tenant's lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locker {
    /// Whose lock.
    pub tenant: TenantId,
    /// The task that has it.
    pub task: Option<TaskId>,
    /// Its plan.
    pub plan: Option<PlanId>,
}

/// A plan for the reader, without its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanRecord {
    /// The plan; [`PlanState::tasks`] is empty.
    pub plan: PlanState,
    /// Its status.
    pub status: PlanStatus,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when nothing follows but a retry.
    pub finished_at: Option<Timestamp>,
}

/// The names by which it is decided who sees a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanAccess {
    /// The tenants of its tasks.
    pub tenants: BTreeSet<TenantId>,
    /// The pools that their stages ask for; `None` among them if a stage asks for none. Empty if pools were not asked for.
    pub pools: BTreeSet<Option<PoolName>>,
}

/// A task for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// Its plan.
    pub plan: PlanId,
    /// Its place there, from 0.
    pub place: usize,
    /// The task.
    pub task: TaskState,
    /// Whether its tenant's lock, where it has that, has not run out.
    pub is_lock_live: bool,
    /// When its row was written last.
    pub updated_at: Timestamp,
}

/// What a plan shows of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundTask {
    /// Its plan.
    pub plan: PlanId,
    /// The task.
    pub id: TaskId,
    /// Its tenant.
    pub tenant: TenantId,
    /// Its status.
    pub status: TaskStatus,
    /// Why it has this status.
    pub reason: Option<Box<str>>,
    /// The place and the name of the first stage that is not completed.
    pub stage: Option<(usize, Box<str>)>,
}

/// A checkpoint for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointRecord {
    /// The checkpoint.
    pub checkpoint: domain::plan::Checkpoint,
    /// In which run it was written.
    pub run: u32,
    /// Under which definition of the task.
    pub definition: u32,
    /// When it was written, by the database's clock.
    pub saved_at: Timestamp,
}

/// An event for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimedEvent {
    /// Its number in the plan, from 1. A recovery of the ledger leaves numbers out.
    pub seq: u64,
    /// When it was written, by the database's clock.
    pub at: Timestamp,
    /// The task, if it is about one.
    pub task: Option<TaskId>,
    /// What happened: JSON text as it is shown.
    pub document: String,
}

/// The tasks with one status in plans that are not over; or the stages that are UNKNOWN.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanCount {
    /// The status.
    pub status: String,
    /// How many there are.
    pub count: u64,
    /// For how long the oldest one has not been written, in milliseconds.
    pub oldest_ms: u64,
}

/// Which plans to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlanFilter {
    /// With this status.
    pub status: Option<PlanStatus>,
    /// With a task of this tenant.
    pub tenant: Option<TenantId>,
    /// Older than this one.
    pub before: Option<PlanId>,
    /// The most plans to list.
    pub limit: u32,
}

/// Plans, their tasks, and their history. A page of tasks, with their definitions and contexts, may have fewer than were asked
/// for, see [`crate::PAGE_BYTES_MAX`]; only an empty one is the end.
#[async_trait::async_trait]
pub trait Plans: Send + Sync {
    /// Writes a new plan and all its tasks in one commit, and takes its tenants' locks, all or none.
    ///
    /// # Errors
    /// [`crate::Error::Refused`] where there is such a plan or task. After [`crate::Error::Unknown`] it may have been, or
    /// may yet be, written.
    async fn create_plan(&self, plan: NewPlan) -> Result<PlanCreated>;

    /// Writes one step, all of it or nothing.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, written: acquire the lease anew and read the plan.
    async fn commit_plan(&self, batch: PlanBatch) -> Result<PlanVerdict> {
        self.commit_plan_linked(batch, Link::default()).await
    }

    /// The same for a batch that leaves only while a lease surely lasts: see [`Link::under`]. A step that takes locks or keeps a
    /// key waits for no train, only for a connection.
    ///
    /// # Errors
    /// As for [`Self::commit_plan`]; [`crate::Error::Unavailable`] where it did not leave.
    async fn commit_plan_linked(&self, batch: PlanBatch, link: Link) -> Result<PlanVerdict>;

    /// Which plan was made under an idempotency key; `None` if it was not used, or is forgotten.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn kept_plan(&self, scope: &KeyScope) -> Result<Option<KeptPlan>>;

    /// What was retried under an idempotency key; `None` if it was not used, or is forgotten.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn kept_retry(&self, scope: &KeyScope) -> Result<Option<KeptRetry>>;

    /// A plan without its tasks; `None` if it never was, or was purged.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan(&self, id: PlanId) -> Result<Option<PlanRecord>>;

    /// A plan with all its tasks, as its owner loads it. Call this after the acquire was answered.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn load_plan(&self, id: PlanId) -> Result<Option<PlanState>>;

    /// Plans, newest first.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plans(&self, filter: &PlanFilter) -> Result<Vec<PlanRecord>>;

    /// Who sees these plans, by the tenants of their tasks and, `with_pools`, by the pools that the stages of these ask for as
    /// they are defined now. A plan without tasks is missing, as one that there is not. No task is read.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan_access(&self, plans: &[PlanId], with_pools: bool) -> Result<HashMap<PlanId, PlanAccess>>;

    /// The tasks of a plan behind a place, in their order.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan_tasks(&self, plan: PlanId, after: Option<usize>, limit: u32) -> Result<Vec<TaskRecord>>;

    /// The same, of those tasks that have one of these statuses.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan_tasks_with(
        &self,
        plan: PlanId,
        statuses: &[TaskStatus],
        after: Option<usize>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>>;

    /// The first tasks of each of these plans that have one of these statuses, so many of each, in the order of the plan.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn tasks_of_plans(
        &self,
        plans: &[PlanId],
        statuses: &[TaskStatus],
        of_each: u32,
    ) -> Result<Vec<FoundTask>>;

    /// How many tasks of each status these plans have. A status that no task of a plan has is missing.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan_progress(&self, plans: &[PlanId]) -> Result<Vec<(PlanId, TaskStatus, u64)>>;

    /// The newest attempts of the jobs of stages, finished or not, in no order. A job that was purged is missing.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn stage_attempts(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Attempt)>>;

    /// The plan of a task; `None` if there is no such task. No more of it is read.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan_of_task(&self, task: TaskId) -> Result<Option<PlanId>>;

    /// One task.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan_task(&self, task: TaskId) -> Result<Option<TaskRecord>>;

    /// The tasks of a tenant, newest first.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn tenant_tasks(
        &self,
        tenant: &TenantId,
        before: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>>;

    /// A task's checkpoints, newest first.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn checkpoints(
        &self,
        task: TaskId,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Vec<CheckpointRecord>>;

    /// The stages of a task's definition with this number; `None` where there is none.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn definition(&self, task: TaskId, version: u32) -> Result<Option<Arc<[StageSpec]>>>;

    /// The names of the stages in a task's definitions with these numbers, in their order. A definition that there is not is
    /// missing.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn stage_names(&self, task: TaskId, versions: &[u32]) -> Result<HashMap<u32, Vec<Arc<str>>>>;

    /// What happened to a plan, or to one of its tasks, behind a number, in order.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan_events(
        &self,
        plan: PlanId,
        task: Option<TaskId>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TimedEvent>>;

    /// Breaks the lock of a tenant that is held at this token, and notes it in the history of the plan that had it.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, broken.
    async fn break_lock(&self, tenant: &TenantId, token: Token, author: &Author) -> Result<LockBreak>;

    /// The tasks of plans that are not over, and the stages of them that are UNKNOWN, by status.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan_counts(&self) -> Result<Vec<PlanCount>>;

    /// How many plans are kept, by status; a status that no plan has is missing from it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn plan_statuses(&self) -> Result<Vec<(PlanStatus, u64)>>;

    /// Deletes plans that ended so long ago, with all that belongs to them; answers how many. The leases of their tenants
    /// stay: their tokens must not start over, and 0.1.0, which may serve beside this release or after a rollback, begins with
    /// 1 where there is no row.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn purge_plans(&self, age_ms: u64, limit: u32) -> Result<u64>;

    /// Deletes so many rows at most of each kind of the history of the plan that [`Self::purge_plans`] deletes next: its oldest
    /// events, but not the last one, its checkpoints, and the stages of its runs. Answers how many rows are deleted: none where
    /// no plan is to be deleted, or nothing is left of it but what goes with its row.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn trim_plan(&self, age_ms: u64, limit: u32) -> Result<u64>;

    /// Plans that need an owner and have none that lives, each with the instance that still has its lease.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn left_plans(&self, me: &InstanceId, limit: u32) -> Result<Vec<(PlanId, Option<InstanceId>)>>;
}

/// The owner of a task's lock on its tenant. No instance has such a name: theirs end in a unique part.
pub(crate) fn lock_owner(task: TaskId) -> InstanceId {
    InstanceId::parse(&format!("task:{task}")).expect("a UUID is made of safe characters")
}

/// The lease that is a tenant's lock.
pub(crate) fn lock_of(task: &TaskState) -> Resource {
    Resource::tenant(&task.spec.tenant)
}

/// The stages that a step changes, by their tasks' places, runs and places in the task: each once.
pub(crate) fn changed_stages(next: &PlanState, events: &[PlanEvent]) -> Vec<(usize, u32, usize)> {
    let changed = |event: &PlanEvent| Some((next.place_of(event.task?)?, event.run?, event.stage?));
    let mut stages: Vec<_> = events.iter().filter_map(changed).collect();
    stages.sort_unstable();
    stages.dedup();
    stages
}
