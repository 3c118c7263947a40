//! Plans: how to create, start, steer and show them; their tasks, which people resolve and retry; and tenants, whose locks
//! keep two tasks from changing one tenant at once.
//!
//! What lives here: one method for each call about plans ([`Client::plans`]), tasks ([`Client::tasks`]) and tenants
//! ([`Client::tenants`]). What must never: a decision whether a task is retried. Nothing of a plan is run again unless a
//! caller asks for it.

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use wire::List;
use wire::plans::{
    Checkpoint, ExpectedRun, ExpectedTask, Plan, PlanEvent, PlanRequest, PlanResumeRequest, PlanStatus,
    ReasonRequest, StageResolveRequest, Task, TaskCancelRequest, TaskDefinition, TaskRetryRequest,
    TaskStatus, Tenant, UnlockRequest,
};

use crate::events::PlanEvents;
use crate::observe::Page;
use crate::transport::{Call, key_or_new};
use crate::{Client, Result};

/// The pause between two reads of a plan that is waited for.
const WAIT_PAUSE: Duration = Duration::from_millis(500);

/// Which plans to list.
#[derive(Clone, Debug, Default)]
pub struct PlanQuery {
    /// With this status only.
    pub status: Option<PlanStatus>,
    /// Which part.
    pub page: Page,
}

/// Which tasks of a plan to list.
#[derive(Clone, Debug, Default)]
pub struct TaskQuery {
    /// With this status only.
    pub status: Option<TaskStatus>,
    /// Which part.
    pub page: Page,
}

/// The calls about plans.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// use client::Client;
/// use client::wire::Json;
/// use client::wire::plans::{PlanRequest, PlanStatus, StageRequest, TaskRequest};
///
/// let fencepost = Client::new(["http://127.0.0.1:7070"], None)?;
/// let stages = vec![
///     StageRequest::new("backup", Json::of("pg_dump acme")?),
///     StageRequest::new("migrate", Json::of("psql acme -f 7.sql")?),
/// ];
/// let request = PlanRequest { start: Some(true), ..PlanRequest::new(vec![TaskRequest::new("acme", stages)]) };
/// // Under its key the plan is there once, however often this is repeated.
/// let plan = fencepost.plans().create(&request, Some("roll-out-7")).await?;
/// let plan = fencepost.plans().wait(&plan.id, Duration::from_secs(3_600)).await?;
/// if plan.status == PlanStatus::Attention {
///     // A person looks, corrects, and retries from the checkpoint: nothing runs again by itself.
///     for task in plan.attention.unwrap_or_default() {
///         eprintln!("{}: {}", task.tenant, task.reason.unwrap_or_default());
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Plans<'a>(&'a Client);

/// The calls about tasks of plans.
#[derive(Clone, Copy, Debug)]
pub struct Tasks<'a>(&'a Client);

/// The calls about tenants.
#[derive(Clone, Copy, Debug)]
pub struct Tenants<'a>(&'a Client);

impl Client {
    /// The calls about plans.
    #[must_use]
    pub const fn plans(&self) -> Plans<'_> {
        Plans(self)
    }

    /// The calls about tasks of plans.
    #[must_use]
    pub const fn tasks(&self) -> Tasks<'_> {
        Tasks(self)
    }

    /// The calls about tenants.
    #[must_use]
    pub const fn tenants(&self) -> Tenants<'_> {
        Tenants(self)
    }

    /// A change that may be repeated as it is.
    async fn change<B: Serialize, T: DeserializeOwned>(&self, path: &[&str], body: &B) -> Result<T> {
        self.call(&Call::post(path, body)).await
    }

    /// The retry of a task, once under its key.
    async fn retry_task(&self, path: &[&str], retry: &TaskRetryRequest, key: Option<&str>) -> Result<Task> {
        let key = key_or_new(key);
        let changes_nothing = retry.dry_run == Some(true);
        self.call(&Call { changes_nothing, ..Call::post(path, retry).under(Some(&key)) }).await
    }
}

impl Plans<'_> {
    /// Creates a plan with all its tasks; when this returns the plan is durable, and started if the request says so. Under
    /// one `key` (1 to 128 visible ASCII characters) the same request is the same plan for 24 hours, on any instance.
    /// Without it the library makes one for this call, so that its own retries are harmless.
    ///
    /// # Errors
    /// [`crate::Error`]; `tenant_locked` for a plan that starts while another task has the lock of one of its tenants.
    pub async fn create(&self, plan: &PlanRequest, key: Option<&str>) -> Result<Plan> {
        let key = key_or_new(key);
        self.0.call(&Call::post(&["v1", "plans"], plan).under(Some(&key))).await
    }

    /// One plan, as it is now, without its tasks.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a plan that does not exist, or was purged.
    pub async fn get(&self, id: &str) -> Result<Plan> {
        self.0.call(&Call::get(&["v1", "plans", id], &[])).await
    }

    /// One plan, as soon as it is SUCCEEDED or CANCELLED, which it stays unless a task is retried, or ATTENTION, which waits for
    /// a person; or as it is when the time is over. It is read twice in a second; failures in between are retried as for any
    /// call, also beyond the time: an absence of the daemon that outlasts [`crate::Retry::total_max`] ends the wait with an
    /// error that is retryable, and the caller waits again.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` as for [`Plans::get`].
    pub async fn wait(&self, id: &str, at_most: Duration) -> Result<Plan> {
        let began = Instant::now();
        loop {
            let plan = self.get(id).await?;
            let left = at_most.saturating_sub(began.elapsed());
            let is_over =
                matches!(plan.status, PlanStatus::Succeeded | PlanStatus::Cancelled | PlanStatus::Attention);
            if is_over || left.is_zero() {
                return Ok(plan);
            }
            tokio::time::sleep(left.min(WAIT_PAUSE)).await;
        }
    }

    /// The plans, newest first.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn list(&self, wanted: &PlanQuery) -> Result<List<Plan>> {
        let mut query = wanted.page.query();
        query.extend(wanted.status.map(|status| ("status", status.to_string())));
        self.0.call(&Call::get(&["v1", "plans"], &query)).await
    }

    /// The tasks of a plan, in its order.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn tasks(&self, id: &str, wanted: &TaskQuery) -> Result<List<Task>> {
        let mut query = wanted.page.query();
        query.extend(wanted.status.map(|status| ("status", status.to_string())));
        self.0.call(&Call::get(&["v1", "plans", id, "tasks"], &query)).await
    }

    /// What happened to a plan and its tasks, oldest first.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn events(&self, id: &str, page: &Page) -> Result<List<PlanEvent>> {
        self.0.call(&Call::get(&["v1", "plans", id, "events"], &page.query())).await
    }

    /// Follows what happens to a plan and its tasks, from its beginning. Nothing is sent before the first
    /// [`PlanEvents::next`]. The stream does not end with the plan: the status of the plan may have changed with any event, and
    /// [`Plans::get`] shows it. [`Plans::wait`] waits for the plan's end.
    #[must_use]
    pub fn follow(&self, id: &str) -> PlanEvents {
        PlanEvents::of(self.0, "plans", id)
    }

    /// Starts a plan: locks all its tenants, all or none, and returns the plan as it is then. Starting it again changes
    /// nothing. The `reason` (1 to 1,024 characters) is for the history.
    ///
    /// # Errors
    /// [`crate::Error`]; `tenant_locked` while another task has the lock of one of its tenants.
    pub async fn start(&self, id: &str, reason: Option<&str>) -> Result<Plan> {
        self.steer(id, "start", reason).await
    }

    /// Pauses a plan: its stages under way end, and no other stage begins. Pausing it again changes nothing. The `reason` is
    /// as for [`Plans::start`].
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn pause(&self, id: &str, reason: Option<&str>) -> Result<Plan> {
        self.steer(id, "pause", reason).await
    }

    /// Resumes a plan that was paused, or whose owner has changed. Resuming it again changes nothing, unless it was paused
    /// meanwhile: then it goes on, also by the library's own repetition after a lost answer. The `reason` is as for
    /// [`Plans::start`].
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn resume(&self, id: &str, reason: Option<&str>) -> Result<Plan> {
        self.steer(id, "resume", reason).await
    }

    /// Resumes a plan as [`Plans::resume`] does, and leaves its paused tasks paused, such as those that wait for a person: each
    /// goes on by [`Tasks::resume`]. A daemon of 0.1.0 refuses that (`invalid`).
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn resume_but_paused(&self, id: &str, reason: Option<&str>) -> Result<Plan> {
        let request = PlanResumeRequest { reason: reason.map(str::to_owned), keep_paused: Some(true) };
        self.0.change(&["v1", "plans", id, "resume"], &request).await
    }

    /// Cancels a plan: the jobs of its stages under way are cancelled, and no other stage begins. Cancelling it again changes
    /// nothing, unless a task was retried meanwhile: then that run is cancelled, also by the library's own repetition after a
    /// lost answer. The `reason` is as for [`Plans::start`].
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn cancel(&self, id: &str, reason: Option<&str>) -> Result<Plan> {
        self.steer(id, "cancel", reason).await
    }

    async fn steer(&self, id: &str, verb: &str, reason: Option<&str>) -> Result<Plan> {
        let request = ReasonRequest { reason: reason.map(str::to_owned) };
        self.0.change(&["v1", "plans", id, verb], &request).await
    }
}

impl Tasks<'_> {
    /// One task, as it is now, with its checkpoint and the lock of its tenant.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a task that does not exist, or was purged.
    pub async fn get(&self, id: &str) -> Result<Task> {
        self.0.call(&Call::get(&["v1", "tasks", id], &[])).await
    }

    /// The stages of a task with their payloads, as its newest run has them and as a retry takes them: each reads as a
    /// [`wire::plans::StageRequest`], unless a newer daemon says more of it. A daemon of 0.1.0 does not show them
    /// (`not_found`).
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` as for [`Tasks::get`].
    pub async fn stages(&self, id: &str) -> Result<TaskDefinition> {
        self.0.call(&Call::get(&["v1", "tasks", id, "stages"], &[])).await
    }

    /// The checkpoints of a task in all its runs, newest first.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn checkpoints(&self, id: &str, page: &Page) -> Result<List<Checkpoint>> {
        self.0.call(&Call::get(&["v1", "tasks", id, "checkpoints"], &page.query())).await
    }

    /// What happened to a task, oldest first.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn events(&self, id: &str, page: &Page) -> Result<List<PlanEvent>> {
        self.0.call(&Call::get(&["v1", "tasks", id, "events"], &page.query())).await
    }

    /// Follows what happens to a task, as [`Plans::follow`].
    #[must_use]
    pub fn follow(&self, id: &str) -> PlanEvents {
        PlanEvents::of(self.0, "tasks", id)
    }

    /// Pauses a task: its stage under way ends, and no other stage begins. Pausing it again changes nothing. The `reason` is
    /// as for [`Plans::start`].
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn pause(&self, id: &str, reason: Option<&str>) -> Result<Task> {
        self.steer(id, "pause", reason).await
    }

    /// Resumes a task that was paused. Resuming it again changes nothing, unless it was paused meanwhile: then it goes on, as
    /// for [`Plans::resume`]. The `reason` is as for [`Plans::start`].
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn resume(&self, id: &str, reason: Option<&str>) -> Result<Task> {
        self.steer(id, "resume", reason).await
    }

    /// Cancels a task: the job of its stage under way is cancelled. Cancelling it again changes nothing, unless the task was
    /// retried meanwhile: then that run is cancelled, as for [`Plans::cancel`]; [`Tasks::cancel_run`] cancels no other. The
    /// `reason` is as for [`Plans::start`].
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn cancel(&self, id: &str, reason: Option<&str>) -> Result<Task> {
        self.steer(id, "cancel", reason).await
    }

    /// Cancels a task as [`Tasks::cancel`] does, if this is its newest run. A daemon of 0.1.0 refuses that (`invalid`).
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` for a task that has another run by now.
    pub async fn cancel_run(&self, id: &str, run: u32, reason: Option<&str>) -> Result<Task> {
        let expect = Some(ExpectedRun { run });
        let request = TaskCancelRequest { reason: reason.map(str::to_owned), expect };
        self.0.change(&["v1", "tasks", id, "cancel"], &request).await
    }

    /// Says what an UNKNOWN stage did. `stage` is its name, or its number, counted from 1. Name the job: without it a repetition
    /// could be about a later attempt, so that the call ends as soon as an answer was lost.
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` unless the stage is UNKNOWN, so also for a repetition. [`crate::Error::Lost`] where the
    /// library's own repetition after a lost answer is refused so. `tenant_locked` where the stage is done, and another task has
    /// the tenant's lock, which the stage's task has lost.
    pub async fn resolve(&self, id: &str, stage: &str, resolution: &StageResolveRequest) -> Result<Task> {
        let path = ["v1", "tasks", id, "stages", stage, "resolve"];
        self.0.call(&Call { once: resolution.job.is_none(), ..Call::post(&path, resolution) }).await
    }

    /// Runs a task again, and returns it with its new run; for a dry run, as it would be. Under one `key` (1 to 128 visible
    /// ASCII characters) the same request opens one run within 24 hours, on any instance.
    ///
    /// Without a `key` the library makes one for this call, so that its own retries are harmless. A request that has no
    /// `expect` either goes out with the run and the checkpoint that the task has when this is called.
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` for a task that has another run or checkpoint by now, `still_running`,
    /// `stage_unknown`, `definition_changed`, `tenant_locked`.
    pub async fn retry(&self, id: &str, retry: &TaskRetryRequest, key: Option<&str>) -> Result<Task> {
        let retry = match (retry.expect, key) {
            (None, None) => expecting(retry, &self.get(id).await?),
            _ => retry.clone(),
        };
        self.0.retry_task(&["v1", "tasks", id, "retry"], &retry, key).await
    }

    async fn steer(&self, id: &str, verb: &str, reason: Option<&str>) -> Result<Task> {
        let request = ReasonRequest { reason: reason.map(str::to_owned) };
        self.0.change(&["v1", "tasks", id, verb], &request).await
    }
}

impl Tenants<'_> {
    /// One tenant: its newest task, whether that has a checkpoint, and the lock.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a tenant that no kept plan names.
    pub async fn get(&self, tenant: &str) -> Result<Tenant> {
        self.0.call(&Call::get(&["v1", "tenants", tenant], &[])).await
    }

    /// The tasks of a tenant in all plans, newest first.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` as for [`Tenants::get`].
    pub async fn tasks(&self, tenant: &str, page: &Page) -> Result<List<Task>> {
        self.0.call(&Call::get(&["v1", "tenants", tenant, "tasks"], &page.query())).await
    }

    /// Runs the newest task of a tenant again, as [`Tasks::retry`] does.
    ///
    /// # Errors
    /// As [`Tasks::retry`], and `not_found` as for [`Tenants::get`].
    pub async fn retry(&self, tenant: &str, retry: &TaskRetryRequest, key: Option<&str>) -> Result<Task> {
        let retry = match (retry.expect, key) {
            (None, None) => expecting(retry, &self.get(tenant).await?.task),
            _ => retry.clone(),
        };
        self.0.retry_task(&["v1", "tenants", tenant, "retry"], &retry, key).await
    }

    /// Breaks the lock of a tenant, if its token is the one named; needs the scope `admin`. The task that has the lock is
    /// interrupted before its next stage, but nothing stops what its node does at the moment.
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` if the lock has another token, or is not held, so also for a repetition.
    /// [`crate::Error::Lost`] where the library's own repetition after a lost answer is refused so.
    pub async fn unlock(&self, tenant: &str, unlock: &UnlockRequest) -> Result<Tenant> {
        self.0.change(&["v1", "tenants", tenant, "unlock"], unlock).await
    }
}

/// The same retry, of the task as it was seen.
fn expecting(retry: &TaskRetryRequest, seen: &Task) -> TaskRetryRequest {
    let expect = ExpectedTask { run: seen.run, checkpoint_version: seen.checkpoint_version };
    TaskRetryRequest { expect: Some(expect), ..retry.clone() }
}

#[cfg(test)]
mod tests;
