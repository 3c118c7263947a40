//! Plans: made, read and listed. Their steps leave by train.

mod write;

use std::collections::HashMap;
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use domain::job::Attempt;
use domain::plan::{EventKind, PlanEvent, PlanState, PlanStatus, StageSpec, TaskStatus};
use domain::{AuditEntry, InstanceId, JobId, PlanId, PoolName, Resource, TaskId, TenantId, Timestamp, Token};

use super::committer::Written;
use super::fence::keep_keys;
use super::{Decided, Store, Way, audit};
use crate::jobs::PAGE_BYTES_MAX;
use crate::jobs::rows::AttemptRow;
use crate::keys::Keeping;
use crate::plans::rows::{
    self, AttentionRow, CheckpointRow, EventRow, PlanRow, TaskRow, kept_plan, kept_plan_text, kept_retry,
    kept_retry_text, plan_document, stages, task_document,
};
use crate::plans::{
    Author, CheckpointRecord, FoundTask, KeptPlan, KeptRetry, LockBreak, Locker, NewPlan, PlanAccess,
    PlanBatch, PlanCount, PlanCreated, PlanFilter, PlanRecord, PlanVerdict, Plans, RetryKey, TaskRecord,
    TimedEvent, lock_owner,
};
use crate::records::{self, number};
use crate::sql::{Moment, PlanKey, Statement, TaskKey, Transaction, narrowed, statement};
use crate::store::jobs::{between, ids};
use crate::train::{FenceClaim, Link, lease_ended};
use crate::{Error, JobKey, KeyScope, Kind, Ledger as _, Result, batch_limits};
use write::{Ending, NewEvents, define, lock, locker, tell, unlock, write};

const CREATE: Statement = statement!("plan_create");
const TASK_CREATE: Statement = statement!("plan_task_create");
const HELD: Statement = statement!("tenant_held");
const PURGE: Statement = statement!("plan_purge");
const FREE: Statement = statement!(sqlite "plan_free");
const OLDEST: Statement = statement!("plan_oldest");
const TRIMS: [Statement; 3] = [
    statement!(both "plan_trim_events"),
    statement!(both "plan_trim_checkpoints"),
    statement!(both "plan_trim_stages"),
];
const LEASES_LOCK: Statement = statement!(postgres "leases_lock");
const SHOW: Statement = statement!(both "plan_show");
const LIST: Statement = statement!(both "plan_list");
const ACCESS: Statement = statement!("plan_access");
const TASKS: Statement = statement!(both "plan_tasks");
const TASKS_WITH: Statement = statement!("plan_tasks_with");
const COUNTS: Statement = statement!("plan_counts");
const STATUSES: Statement = statement!(both "plan_statuses");
const ATTENTION: Statement = statement!("plan_attention");
const PROGRESS: Statement = statement!("plan_progress");
const STAGE_ATTEMPTS: Statement = statement!("plan_stage_attempts");
const OF_TASK: Statement = statement!(both "plan_of_task");
const TASK_SHOW: Statement = statement!(both "plan_task_show");
const TENANT_TASKS: Statement = statement!(both "plan_tenant_tasks");
const CHECKPOINTS: Statement = statement!(both "plan_checkpoints");
const DEFINITION: Statement = statement!(both "plan_definition_show");
const STAGE_NAMES: Statement = statement!("plan_stage_names");
const EVENTS: Statement = statement!(both "plan_events");
const LEFT: Statement = statement!("plan_left");

/// Tasks on one page of a plan that is loaded.
const PAGE_TASKS: u32 = 200;

/// What became of the rows of a new plan.
enum Making {
    Made { at: Timestamp, locks: Vec<(usize, Token)> },
    Locked(Locker),
    KeyTaken,
}

#[async_trait::async_trait]
impl Plans for Store {
    async fn create_plan(&self, plan: NewPlan) -> Result<PlanCreated> {
        batch_limits::check_keys(plan.key.iter().map(|key| &key.scope))?;
        let (id, key) = (plan.plan.id, plan.key.clone());
        let made = self.in_transaction(move |transaction| {
            Box::pin(async move {
                let making = make(transaction, &plan).await?;
                Ok(match making {
                    Making::Made { .. } => Decided::Commit(making),
                    Making::Locked(_) | Making::KeyTaken => Decided::Rollback(making),
                })
            })
        });
        match (made.await?, key) {
            (Making::Made { at, locks }, _) => Ok(PlanCreated::Made { at, locks }),
            (Making::Locked(locker), _) => Ok(PlanCreated::Locked(locker)),
            (Making::KeyTaken, key) => {
                let scopes: Vec<_> = key.into_iter().map(|key| key.scope).collect();
                match self.key_rows(&scopes).await?.first() {
                    Some(row) => Ok(PlanCreated::Kept(kept_plan(row)?)),
                    // It was purged between the two looks.
                    None => Err(changed_meanwhile(id)),
                }
            }
        }
    }

    async fn commit_plan_linked(&self, batch: PlanBatch, link: Link) -> Result<PlanVerdict> {
        batch_limits::check_keys(batch.key.iter().map(|key| &key.key.scope))?;
        if batch.writes.take.is_empty() && batch.key.is_none() {
            return self.plan_trains.commit_linked(batch, link, self.call_timeout).await;
        }
        // It waits for no train. It may wait for a step that takes the same locks or the same key, and is undone where it cannot
        // get one: no other step is to wait for that.
        let written = self.in_transaction(move |transaction| {
            Box::pin(async move {
                // It has waited for a connection.
                if !link.may_leave(Instant::now()) {
                    return Ok(Decided::Rollback(None));
                }
                Ok(match write(transaction, slice::from_ref(&batch)).await? {
                    Ending::Written(Written { anything: false, mut verdicts }) => {
                        Decided::Rollback(Some(verdicts.remove(0)))
                    }
                    Ending::Written(Written { anything: true, mut verdicts }) => {
                        let is_new = match &batch.key {
                            Some(RetryKey { key, task }) => {
                                keep(transaction, key, kept_retry_text(*task)).await?
                            }
                            None => true,
                        };
                        if !is_new {
                            return Ok(Decided::Rollback(Some(PlanVerdict::KeyTaken)));
                        }
                        Decided::Commit(Some(verdicts.remove(0)))
                    }
                    Ending::Undone(verdict) => Decided::Rollback(Some(verdict)),
                })
            })
        });
        written.await?.ok_or_else(lease_ended)
    }

    async fn kept_plan(&self, scope: &KeyScope) -> Result<Option<KeptPlan>> {
        self.key_rows(slice::from_ref(scope)).await?.first().map(kept_plan).transpose()
    }

    async fn kept_retry(&self, scope: &KeyScope) -> Result<Option<KeptRetry>> {
        self.key_rows(slice::from_ref(scope)).await?.first().map(kept_retry).transpose()
    }

    async fn plan(&self, id: PlanId) -> Result<Option<PlanRecord>> {
        self.record::<PlanRow, _>(Way::KeyReads, self.ask(&SHOW).bind(PlanKey(id))).await
    }

    async fn load_plan(&self, id: PlanId) -> Result<Option<PlanState>> {
        let Some(PlanRecord { mut plan, .. }) = self.plan(id).await? else { return Ok(None) };
        loop {
            let after = plan.tasks.len().checked_sub(1);
            let page = self.plan_tasks(id, after, PAGE_TASKS).await?;
            if page.is_empty() {
                return Ok(Some(plan));
            }
            plan.tasks.extend(page.into_iter().map(|record| Arc::new(record.task)));
        }
    }

    async fn plans(&self, filter: &PlanFilter) -> Result<Vec<PlanRecord>> {
        let before = filter.before.unwrap_or(PlanId::from_u128(u128::MAX));
        let status = filter.status.map(PlanStatus::as_str);
        let asks_for = |mark: &str| match mark {
            "status" => status.is_some(),
            "tenant" => filter.tenant.is_some(),
            other => unreachable!("no list has a mark {other}"),
        };
        let ask = self
            .ask(&LIST)
            .reworded(|text| narrowed(text, asks_for))
            .bind(PlanKey(before))
            .bind(status)
            .bind(i64::from(filter.limit))
            .bind(filter.tenant.as_ref().map(TenantId::as_str));
        records::all(self.all::<PlanRow>(Way::Reads, ask).await?)
    }

    async fn plan_access(&self, plans: &[PlanId], with_pools: bool) -> Result<HashMap<PlanId, PlanAccess>> {
        let asks_for = |mark: &str| match mark {
            "pools" => with_pools,
            other => unreachable!("no statement has a mark {other}"),
        };
        let ask = self.ask(&ACCESS).reworded(|text| narrowed(text, asks_for));
        let ask = ask.array(plans.iter().copied().map(PlanKey).collect());
        let mut access = HashMap::<_, PlanAccess>::new();
        for (plan, is_pool, name) in self.all::<(PlanKey, bool, Option<String>)>(Way::Reads, ask).await? {
            let of = access.entry(plan.0).or_default();
            let name = name.as_deref();
            if is_pool {
                let pool = name.map(PoolName::parse).transpose();
                of.pools.insert(pool.map_err(records::impossible)?);
            } else {
                let tenant = TenantId::parse(name.unwrap_or_default());
                of.tenants.insert(tenant.map_err(records::impossible)?);
            }
        }
        Ok(access)
    }

    async fn plan_tasks(&self, plan: PlanId, after: Option<usize>, limit: u32) -> Result<Vec<TaskRecord>> {
        let after = after.map_or(-1, |place| place as i64);
        let ask = self.ask(&TASKS).bind(PlanKey(plan)).bind(after).bind(i64::from(limit));
        let ask = ask.bind(PAGE_BYTES_MAX as i64);
        records::all(self.all::<TaskRow>(Way::Reads, ask).await?)
    }

    async fn plan_tasks_with(
        &self,
        plan: PlanId,
        statuses: &[TaskStatus],
        after: Option<usize>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>> {
        let after = after.map_or(-1, |place| place as i64);
        let ask = self.ask(&TASKS_WITH).bind(PlanKey(plan)).bind(after).bind(i64::from(limit));
        let ask = ask.array(statuses.iter().map(|status| status.as_str()).collect());
        let ask = ask.bind(PAGE_BYTES_MAX as i64);
        records::all(self.all::<TaskRow>(Way::Reads, ask).await?)
    }

    async fn tasks_of_plans(
        &self,
        plans: &[PlanId],
        statuses: &[TaskStatus],
        of_each: u32,
    ) -> Result<Vec<FoundTask>> {
        let ask = self.ask(&ATTENTION).array(plans.iter().copied().map(PlanKey).collect());
        let ask = ask.bind(i64::from(of_each));
        let ask = ask.array(statuses.iter().map(|status| status.as_str()).collect());
        records::all(self.all::<AttentionRow>(Way::Reads, ask).await?)
    }

    async fn plan_progress(&self, plans: &[PlanId]) -> Result<Vec<(PlanId, TaskStatus, u64)>> {
        let ask = self.ask(&PROGRESS).array(plans.iter().copied().map(PlanKey).collect());
        let rows: Vec<(PlanKey, String, i64)> = self.all(Way::Reads, ask).await?;
        let read = |(plan, status, tasks): (PlanKey, String, i64)| {
            let status = TaskStatus::parse(&status).map_err(records::impossible)?;
            Ok((plan.0, status, records::count(tasks)?))
        };
        rows.into_iter().map(read).collect()
    }

    async fn stage_attempts(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Attempt)>> {
        let ask = self.ask(&STAGE_ATTEMPTS).array(ids(jobs));
        let ask = between(ask, self.kind(), jobs.iter().min(), jobs.iter().max());
        records::all(self.all::<AttemptRow>(Way::Reads, ask).await?)
    }

    async fn plan_of_task(&self, task: TaskId) -> Result<Option<PlanId>> {
        let plan: Option<(PlanKey,)> =
            self.optional(Way::KeyReads, self.ask(&OF_TASK).bind(TaskKey(task))).await?;
        Ok(plan.map(|(plan,)| plan.0))
    }

    async fn plan_task(&self, task: TaskId) -> Result<Option<TaskRecord>> {
        self.record::<TaskRow, _>(Way::KeyReads, self.ask(&TASK_SHOW).bind(TaskKey(task))).await
    }

    async fn tenant_tasks(
        &self,
        tenant: &TenantId,
        before: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>> {
        let before = before.unwrap_or(TaskId::from_u128(u128::MAX));
        let ask = self.ask(&TENANT_TASKS).bind(tenant.as_str()).bind(TaskKey(before)).bind(i64::from(limit));
        let ask = ask.bind(PAGE_BYTES_MAX as i64);
        records::all(self.all::<TaskRow>(Way::Reads, ask).await?)
    }

    async fn checkpoints(
        &self,
        task: TaskId,
        before: Option<u32>,
        limit: u32,
    ) -> Result<Vec<CheckpointRecord>> {
        let before = before.map_or(i64::MAX, i64::from);
        let ask = self.ask(&CHECKPOINTS).bind(TaskKey(task)).bind(before).bind(i64::from(limit));
        records::all(self.all::<CheckpointRow>(Way::Reads, ask).await?)
    }

    async fn definition(&self, task: TaskId, version: u32) -> Result<Option<Arc<[StageSpec]>>> {
        let ask = self.ask(&DEFINITION).bind(TaskKey(task)).bind(i64::from(version));
        let row: Option<(String,)> = self.optional(Way::Reads, ask).await?;
        row.map(|(document,)| stages(&document)).transpose()
    }

    async fn stage_names(&self, task: TaskId, versions: &[u32]) -> Result<HashMap<u32, Vec<Arc<str>>>> {
        let versions: Vec<_> = versions.iter().copied().map(i64::from).collect();
        let ask = self.ask(&STAGE_NAMES).bind(TaskKey(task)).array(versions);
        let mut names = HashMap::<_, Vec<Arc<str>>>::new();
        for (version, name) in self.all::<(i64, String)>(Way::Reads, ask).await? {
            names.entry(number(version)?).or_default().push(name.into());
        }
        Ok(names)
    }

    async fn plan_events(
        &self,
        plan: PlanId,
        task: Option<TaskId>,
        after: u64,
        limit: u32,
    ) -> Result<Vec<TimedEvent>> {
        let task = task.map(|task| task.to_string());
        let ask = self.ask(&EVENTS).bind(PlanKey(plan)).bind(task).bind(after as i64).bind(i64::from(limit));
        records::all(self.all::<EventRow>(Way::Reads, ask).await?)
    }

    async fn break_lock(&self, tenant: &TenantId, token: Token, author: &Author) -> Result<LockBreak> {
        let (lock, author) = (Resource::tenant(tenant), author.clone());
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let broken = break_lock(transaction, &lock, token, &author).await?;
                Ok(match broken {
                    LockBreak::Broken { .. } => Decided::Commit(broken),
                    LockBreak::OtherToken(_) | LockBreak::NotHeld => Decided::Rollback(broken),
                })
            })
        })
        .await
    }

    async fn plan_counts(&self) -> Result<Vec<PlanCount>> {
        let rows: Vec<(String, i64, i64)> = self.all(Way::Reads, self.ask(&COUNTS)).await?;
        let count = |(status, count, oldest_ms): (String, i64, i64)| PlanCount {
            status,
            count: count.unsigned_abs(),
            // A clock may have been set back.
            oldest_ms: u64::try_from(oldest_ms).unwrap_or(0),
        };
        Ok(rows.into_iter().map(count).collect())
    }

    async fn plan_statuses(&self) -> Result<Vec<(PlanStatus, u64)>> {
        let rows: Vec<(String, i64)> = self.all(Way::Reads, self.ask(&STATUSES)).await?;
        rows.into_iter()
            .map(|(status, plans)| Ok((rows::plan_status(&status)?, records::count(plans)?)))
            .collect()
    }

    async fn purge_plans(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let (kind, at) = (transaction.kind(), transaction.at());
                let purge = PURGE.on(kind).bind(age_ms as i64).bind(i64::from(limit)).at(at);
                let purged: Vec<(PlanKey,)> = transaction.all(purge).await?;
                if kind == Kind::Sqlite {
                    // SQLite has no statement that deletes from two tables.
                    let leases = purged.iter().map(|(id,)| Resource::plan(id.0).as_str().to_owned());
                    transaction.touch(FREE.on(kind).array::<String>(leases.collect())).await?;
                }
                Ok(Decided::Commit(purged.len() as u64))
            })
        })
        .await
    }

    async fn trim_plan(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.in_transaction(move |transaction| {
            Box::pin(async move {
                let (kind, at) = (transaction.kind(), transaction.at());
                let oldest: Vec<(PlanKey,)> =
                    transaction.all(OLDEST.on(kind).bind(age_ms as i64).at(at)).await?;
                let mut deleted = 0;
                for (plan,) in oldest {
                    for trim in &TRIMS {
                        let trim = trim.on(kind).bind(PlanKey(plan.0)).bind(i64::from(limit));
                        deleted += transaction.touch(trim).await?;
                    }
                }
                Ok(Decided::Commit(deleted))
            })
        })
        .await
    }

    async fn left_plans(&self, me: &InstanceId, limit: u32) -> Result<Vec<(PlanId, Option<InstanceId>)>> {
        let ask = self.ask(&LEFT).bind(me.as_str()).bind(i64::from(limit));
        let rows: Vec<(PlanKey, Option<String>)> = self.all(Way::VitalReads, ask).await?;
        let owner = |text: &str| InstanceId::parse(text).map_err(records::impossible);
        rows.into_iter().map(|(id, held)| Ok((id.0, held.as_deref().map(owner).transpose()?))).collect()
    }
}

/// Keeps an idempotency key with its answer; says whether it is new.
async fn keep(transaction: &mut Transaction<'_>, key: &JobKey, answer: String) -> sqlx::Result<bool> {
    let keeping = Keeping { scope: &key.scope, body_hash: &key.body_hash, answer };
    Ok(keep_keys(transaction, &[keeping]).await? == [true])
}

/// The rows of a new plan, its key, its locks and its entry in the audit: between BEGIN and COMMIT.
async fn make(transaction: &mut Transaction<'_>, new: &NewPlan) -> sqlx::Result<Making> {
    let NewPlan { plan, take, lock_ms, events, key, author, audit: entry } = new;
    let (kind, at) = (transaction.kind(), transaction.at());
    if let Some(key) = key
        && !keep(transaction, key, kept_plan_text(plan.id)).await?
    {
        return Ok(Making::KeyTaken);
    }
    let locks = match lock(transaction, plan, take, *lock_ms).await? {
        Ok(locks) => locks,
        Err(locker) => return Ok(Making::Locked(locker)),
    };
    let id = PlanKey(plan.id);
    let create = CREATE.on(kind).bind(id).bind(plan.status().as_str()).bind(plan.needs_owner());
    let create = create.bind(plan_document(plan)).at(at);
    let (created_at,): (Moment,) = transaction.session().one(create).await?;
    let tasks: Vec<_> = plan.tasks.iter().enumerate().collect();
    let create = TASK_CREATE.on(kind).bind(id).rows(&tasks, |rows| {
        rows.column("id", |(_, task)| TaskKey(task.id))
            .column("place", |(place, _)| *place as i64)
            .column("tenant", |(_, task)| task.spec.tenant.as_str())
            .column("status", |(_, task)| task.status.as_str())
            .column("document", |(_, task)| task_document(task));
    });
    transaction.touch(create.at(at)).await?;
    let defined: Vec<_> = plan.tasks.iter().collect();
    transaction.touch(define(kind, &defined).at(at)).await?;
    if !events.is_empty() {
        let events = [NewEvents::new(plan.id, events, author)];
        transaction.touch(tell(kind, &events).at(at)).await?;
    }
    audit::add(transaction, entry.as_ref().as_slice()).await?;
    Ok(Making::Made { at: created_at.0, locks })
}

/// Breaks a lock at this token: between BEGIN and COMMIT. The plan's lease is locked first, as its owner's steps do it.
async fn break_lock(
    transaction: &mut Transaction<'_>,
    lock: &Resource,
    token: Token,
    author: &Author,
) -> sqlx::Result<LockBreak> {
    let (kind, at) = (transaction.kind(), transaction.at());
    let mut by = locker(transaction, lock).await?;
    if kind == Kind::Postgres {
        let plan = by.plan.map(|plan| Resource::plan(plan).as_str().to_owned());
        let names: Vec<_> = plan.into_iter().chain([lock.as_str().to_owned()]).collect();
        transaction.touch(LEASES_LOCK.on(kind).array(names)).await?;
        // The plan may have been purged meanwhile.
        by = locker(transaction, lock).await?;
    }
    let held: Option<(String, i64)> = transaction.optional(HELD.on(kind).bind(lock.as_str()).at(at)).await?;
    let Some((owner, held)) = held else { return Ok(LockBreak::NotHeld) };
    let task = owner.strip_prefix("task:").and_then(TaskId::parse);
    let (Some(task), true) = (task, Token::new(held) == token) else {
        return Ok(LockBreak::OtherToken(Token::new(held)));
    };
    let freed = FenceClaim { resource: lock.clone(), owner: &lock_owner(task), token };
    transaction.touch(unlock(kind, &[freed]).at(at)).await?;
    let entry = AuditEntry {
        principal: author.principal.clone().unwrap_or_default(),
        action: "break_lock",
        subject: lock.as_str().to_owned(),
        before: Some(format!("task {task}, token {held}")),
        after: None,
        reason: author.reason.clone(),
        request_id: author.request_id.clone(),
    };
    audit::add(transaction, &[&entry]).await?;
    let plan = by.plan.filter(|_| by.task == Some(task));
    if let Some(plan) = plan {
        let event = PlanEvent {
            task: Some(task),
            kind: EventKind::LockBroken,
            run: None,
            stage: None,
            before: None,
            after: None,
            reason: None,
            is_own: false,
        };
        let event = [NewEvents::new(plan, &[event], author)];
        transaction.touch(tell(kind, &event).at(at)).await?;
    }
    Ok(LockBreak::Broken { task, plan })
}

/// A plan that was there at one look and not at the next.
fn changed_meanwhile(id: PlanId) -> Error {
    Error::aborted(std::io::Error::other(format!("plan {id} changed too quickly")))
}
