//! Plans: written step by step, read and listed.

use std::sync::Arc;

use domain::job::Attempt;
use domain::plan::{EventKind, PlanEvent, PlanState, PlanStatus, StageSpec, TaskState, TaskStatus};
use domain::{AuditEntry, InstanceId, JobId, LaneId, PlanId, Resource, TaskId, TenantId, Timestamp, Token};

use super::fence::{fence, keep_keys};
use super::{Store, Way, audit};
use crate::jobs::columns;
use crate::jobs::plan::New;
use crate::jobs::rows::AttemptRow;
use crate::keys::Keeping;
use crate::plans::rows::{
    self, CheckpointRow, EventRow, PlanRow, TaskRow, event_document, kept_plan, kept_plan_text,
    plan_document, stages, stages_document, task_document,
};
use crate::plans::{
    Author, CheckpointRecord, LockBreak, Locker, NewPlan, PlanBatch, PlanCount, PlanCreated, PlanFilter,
    PlanRecord, PlanVerdict, Plans, TaskRecord, TimedEvent, changed_stages, lock_of, lock_owner,
};
use crate::records;
use crate::sql::{Ask, Id, Moment, PlanKey, Statement, TaskKey, Transaction, statement};
use crate::store::jobs::{SUBMIT, between, removal};
use crate::train::{Fence, FenceClaim};
use crate::{Error, Kind, Ledger as _, Result, batch_limits, sql};

const CREATE: Statement = statement!("plan_create");
const CHANGE: Statement = statement!("plan_change");
const TASK_CREATE: Statement = statement!("plan_task_create");
const TASK_CHANGE: Statement = statement!("plan_task_change");
const DEFINITION_ADD: Statement = statement!("plan_definition_add");
const STAGE_RUN_SET: Statement = statement!("plan_stage_run_set");
const CHECKPOINT_ADD: Statement = statement!("plan_checkpoint_add");
const EVENT_ADD: Statement = statement!("plan_event_add");
const LOCK: Statement = statement!("tenant_lock");
const RENEW: Statement = statement!("tenant_renew");
const UNLOCK: Statement = statement!("tenant_unlock");
const HELD: Statement = statement!("tenant_held");
const PURGE: Statement = statement!("plan_purge");
const FREE: Statement = Statement::only(sql::sql_file!("sqlite-only", "plan_free"));
const LEASES_LOCK: Statement = Statement::only(sql::sql_file!("postgres-only", "leases_lock"));
const OWNER: Statement = Statement::only(sql::sql_file!("both", "lease_owner"));
const SHOW: Statement = statement!(both "plan_show");
const LIST: Statement = statement!(both "plan_list");
const TASKS: Statement = statement!(both "plan_tasks");
const TASKS_WITH: Statement = statement!("plan_tasks_with");
const COUNTS: Statement = statement!("plan_counts");
const STATUSES: Statement = statement!(both "plan_statuses");
const PROGRESS: Statement = statement!("plan_progress");
const STAGE_ATTEMPTS: Statement = statement!("plan_stage_attempts");
const TASK_SHOW: Statement = statement!(both "plan_task_show");
const TENANT_TASKS: Statement = statement!(both "plan_tenant_tasks");
const CHECKPOINTS: Statement = statement!(both "plan_checkpoints");
const DEFINITION: Statement = statement!(both "plan_definition_show");
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

/// What a transaction has come to, before its end.
enum Ending {
    Written { at: Timestamp, locks: Vec<(usize, Token)> },
    Undone(PlanVerdict),
}

#[async_trait::async_trait]
impl Plans for Store {
    async fn create_plan(&self, plan: NewPlan) -> Result<PlanCreated> {
        batch_limits::check_keys(plan.key.iter().map(|key| &key.scope))?;
        let (id, key) = (plan.plan.id, plan.key.clone());
        let made = self.with(Way::Writes, move |mut session| {
            Box::pin(async move {
                let mut transaction = session.begin().await?;
                let making = make(&mut transaction, &plan).await?;
                match making {
                    Making::Made { .. } => transaction.commit().await?,
                    Making::Locked(_) | Making::KeyTaken => transaction.rollback().await?,
                }
                Ok(making)
            })
        });
        match (made.await?, key) {
            (Making::Made { at, locks }, _) => Ok(PlanCreated::Made { at, locks }),
            (Making::Locked(locker), _) => Ok(PlanCreated::Locked(locker)),
            (Making::KeyTaken, key) => {
                let scopes: Vec<_> = key.into_iter().map(|key| key.scope).collect();
                match self.key_rows(&scopes).await?.first() {
                    Some(row) => Ok(PlanCreated::Kept { body_hash: row.body_hash()?, plan: kept_plan(row)? }),
                    // It was purged between the two looks.
                    None => Err(changed_meanwhile(id)),
                }
            }
        }
    }

    async fn commit_plan(&self, batch: PlanBatch) -> Result<PlanVerdict> {
        self.with(Way::Writes, move |mut session| {
            Box::pin(async move {
                let mut transaction = session.begin().await?;
                match write(&mut transaction, &batch).await? {
                    Ending::Written { at, locks } => {
                        transaction.commit().await?;
                        Ok(PlanVerdict::Written { at, locks })
                    }
                    Ending::Undone(verdict) => {
                        transaction.rollback().await?;
                        Ok(verdict)
                    }
                }
            })
        })
        .await
    }

    async fn plan(&self, id: PlanId) -> Result<Option<PlanRecord>> {
        let row: Option<PlanRow> = self.optional(Way::KeyReads, self.ask(&SHOW).bind(PlanKey(id))).await?;
        row.map(PlanRecord::try_from).transpose()
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
        let ask = self.ask(&LIST).bind(PlanKey(before)).bind(status).bind(i64::from(filter.limit));
        records::all(self.all::<PlanRow>(Way::Reads, ask).await?)
    }

    async fn plan_tasks(&self, plan: PlanId, after: Option<usize>, limit: u32) -> Result<Vec<TaskRecord>> {
        let after = after.map_or(-1, |place| place as i64);
        let ask = self.ask(&TASKS).bind(PlanKey(plan)).bind(after).bind(i64::from(limit));
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
        records::all(self.all::<TaskRow>(Way::Reads, ask).await?)
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
        let ask = self.ask(&STAGE_ATTEMPTS).array(jobs.iter().copied().map(Id).collect());
        let ask = between(ask, self.kind(), jobs.iter().min(), jobs.iter().max());
        records::all(self.all::<AttemptRow>(Way::Reads, ask).await?)
    }

    async fn plan_task(&self, task: TaskId) -> Result<Option<TaskRecord>> {
        let row: Option<TaskRow> =
            self.optional(Way::KeyReads, self.ask(&TASK_SHOW).bind(TaskKey(task))).await?;
        row.map(TaskRecord::try_from).transpose()
    }

    async fn tenant_tasks(
        &self,
        tenant: &TenantId,
        before: Option<TaskId>,
        limit: u32,
    ) -> Result<Vec<TaskRecord>> {
        let before = before.unwrap_or(TaskId::from_u128(u128::MAX));
        let ask = self.ask(&TENANT_TASKS).bind(tenant.as_str()).bind(TaskKey(before)).bind(i64::from(limit));
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
        self.with(Way::Writes, move |mut session| {
            Box::pin(async move {
                let mut transaction = session.begin().await?;
                let broken = break_lock(&mut transaction, &lock, token, &author).await?;
                match broken {
                    LockBreak::Broken { .. } => transaction.commit().await?,
                    LockBreak::OtherToken(_) | LockBreak::NotHeld => transaction.rollback().await?,
                }
                Ok(broken)
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
        self.with(Way::Writes, move |mut session| {
            Box::pin(async move {
                let mut transaction = session.begin().await?;
                let (kind, at) = (transaction.kind(), transaction.at());
                let purge = PURGE.on(kind).bind(age_ms as i64).bind(i64::from(limit)).at(at);
                let purged: Vec<(PlanKey,)> = transaction.all(purge).await?;
                if kind == Kind::Sqlite {
                    // SQLite has no statement that deletes from two tables.
                    let leases = purged.iter().map(|(id,)| Resource::plan(id.0).as_str().to_owned());
                    transaction.touch(FREE.on(kind).array::<String>(leases.collect())).await?;
                }
                transaction.commit().await?;
                Ok(purged.len() as u64)
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

/// Everything between BEGIN and COMMIT. Leases are locked first, those that are held before those that are taken.
async fn write(transaction: &mut Transaction<'_>, batch: &PlanBatch) -> sqlx::Result<Ending> {
    let PlanBatch { next, writes, .. } = batch;
    let (kind, at) = (transaction.kind(), transaction.at());
    let task = |place: &usize| &next.tasks[*place];
    let written_at = match fenced(transaction, batch).await? {
        Ok(at) => at,
        Err(verdict) => return Ok(Ending::Undone(verdict)),
    };
    let locks = match lock(transaction, next, &writes.take, batch.lock_ms).await? {
        Ok(locks) => locks,
        Err(locker) => return Ok(Ending::Undone(PlanVerdict::Locked(locker))),
    };
    if writes.renews && !writes.held.is_empty() {
        let ask = RENEW.on(kind).rows(&writes.held, |rows| {
            rows.column("resource", |(place, _)| lock_of(task(place)).as_str().to_owned())
                .column("token", |(_, token)| token.get());
        });
        transaction.touch(ask.bind(batch.lock_ms as i64).at(at)).await?;
    }
    if !writes.free.is_empty() {
        let freed: Vec<_> = writes
            .free
            .iter()
            .map(|(place, token)| (lock_of(task(place)), *token, lock_owner(task(place).id)))
            .collect();
        let ask = UNLOCK.on(kind).rows(&freed, |rows| {
            rows.column("resource", |(lock, _, _)| lock.as_str())
                .column("token", |(_, token, _)| token.get())
                .column("owner", |(_, _, owner)| owner.as_str());
        });
        transaction.touch(ask.at(at)).await?;
    }
    for (ask, rows) in changes(transaction, batch) {
        if transaction.touch(ask).await? != rows as u64 {
            return Ok(Ending::Undone(PlanVerdict::Diverged));
        }
    }
    if !writes.superseded.is_empty() {
        // Those that were dismissed before, or are forgotten, stay as they are.
        removal::dismiss(transaction, &writes.superseded).await?;
    }
    Ok(Ending::Written { at: written_at, locks })
}

/// Takes the locks of these tasks' tenants, all or none; answers their tokens, or who has one that was not to be had.
async fn lock(
    transaction: &mut Transaction<'_>,
    plan: &PlanState,
    take: &[usize],
    lock_ms: u64,
) -> sqlx::Result<std::result::Result<Vec<(usize, Token)>, Locker>> {
    let taken: Vec<_> = take.iter().map(|place| &plan.tasks[*place]).collect();
    let taken: Vec<_> = taken.into_iter().map(|task| (lock_of(task), lock_owner(task.id))).collect();
    if taken.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let ask = LOCK
        .on(transaction.kind())
        .rows(&taken, |rows| {
            rows.column("resource", |(lock, _)| lock.as_str()).column("owner", |(_, owner)| owner.as_str());
        })
        .bind(lock_ms as i64);
    let rows: Vec<(String, i64)> = transaction.all(ask.at(transaction.at())).await?;
    let mut locks = Vec::with_capacity(taken.len());
    for (place, (lock, _)) in take.iter().zip(&taken) {
        let Some((_, token)) = rows.iter().find(|(name, _)| name == lock.as_str()) else {
            return Ok(Err(locker(transaction, lock).await?));
        };
        locks.push((*place, Token::new(*token)));
    }
    Ok(Ok(locks))
}

/// The rows of a new plan, its key and its locks: between BEGIN and COMMIT.
async fn make(transaction: &mut Transaction<'_>, new: &NewPlan) -> sqlx::Result<Making> {
    let NewPlan { plan, take, lock_ms, events, key, author } = new;
    let (kind, at) = (transaction.kind(), transaction.at());
    if let Some(key) = key {
        let keeping =
            Keeping { scope: &key.scope, body_hash: &key.body_hash, answer: kept_plan_text(plan.id) };
        if keep_keys(transaction, &[keeping]).await? != [true] {
            return Ok(Making::KeyTaken);
        }
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
    transaction.touch(define(transaction, &defined)).await?;
    if !events.is_empty() {
        let events: Vec<_> = events.iter().map(|event| (event.task, event_document(event, author))).collect();
        transaction.touch(tell(transaction, plan.id, &events)).await?;
    }
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
    let locker = locker(transaction, lock).await?;
    if kind == Kind::Postgres {
        let plan = locker.plan.map(|plan| Resource::plan(plan).as_str().to_owned());
        let names: Vec<_> = plan.into_iter().chain([lock.as_str().to_owned()]).collect();
        transaction.touch(LEASES_LOCK.on(kind).array(names)).await?;
    }
    let held: Option<(String, i64)> =
        transaction.all(HELD.on(kind).bind(lock.as_str()).at(at)).await?.into_iter().next();
    let Some((owner, held)) = held else { return Ok(LockBreak::NotHeld) };
    let task = owner.strip_prefix("task:").and_then(TaskId::parse);
    let (Some(task), true) = (task, Token::new(held) == token) else {
        return Ok(LockBreak::OtherToken(Token::new(held)));
    };
    let freed = [(lock.as_str(), held, owner.as_str())];
    let ask = UNLOCK.on(kind).rows(&freed, |rows| {
        rows.column("resource", |(lock, ..)| *lock)
            .column("token", |(_, token, _)| *token)
            .column("owner", |(.., owner)| *owner);
    });
    transaction.touch(ask.at(at)).await?;
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
    let plan = locker.plan.filter(|_| locker.task == Some(task));
    if let Some(plan) = plan {
        let event = PlanEvent {
            task: Some(task),
            kind: EventKind::LockBroken,
            run: None,
            stage: None,
            before: None,
            after: None,
            reason: None,
        };
        let event = [(event.task, event_document(&event, author))];
        transaction.touch(tell(transaction, plan, &event)).await?;
    }
    Ok(LockBreak::Broken { task, plan })
}

/// Locks the plan's lease and the locks that must be held. The transaction's time, or the verdict where one is not held.
async fn fenced(
    transaction: &mut Transaction<'_>,
    batch: &PlanBatch,
) -> sqlx::Result<std::result::Result<Timestamp, PlanVerdict>> {
    let held: Vec<_> = batch
        .writes
        .held
        .iter()
        .chain(&batch.writes.free)
        .map(|(place, token)| (*place, *token, lock_owner(batch.next.tasks[*place].id)))
        .collect();
    let plan =
        FenceClaim { resource: Resource::plan(batch.next.id), owner: &batch.owner, token: batch.token };
    let locks = held.iter().map(|(place, token, owner)| {
        Some(FenceClaim { resource: lock_of(&batch.next.tasks[*place]), owner, token: *token })
    });
    let claims: Vec<_> = [Some(plan)].into_iter().chain(locks).collect();
    let (fences, at) = fence(transaction, &claims).await?;
    let lost: Vec<_> = fences[1..]
        .iter()
        .zip(&held)
        .filter(|(fence, _)| **fence == Fence::Fenced)
        .map(|(_, (place, ..))| *place)
        .collect();
    Ok(match (fences[0], at) {
        (Fence::Fenced, _) => Err(PlanVerdict::Fenced),
        _ if !lost.is_empty() => Err(PlanVerdict::LockLost(lost)),
        // Without a time no lease was locked.
        (_, Some(at)) if !fences.contains(&Fence::Again) => Ok(at),
        _ => Err(PlanVerdict::Again),
    })
}

/// Who has a lock that was not to be had.
async fn locker(transaction: &mut Transaction<'_>, lock: &Resource) -> sqlx::Result<Locker> {
    let owner: Option<(Option<String>,)> =
        transaction.all(OWNER.on(transaction.kind()).bind(lock.as_str())).await?.into_iter().next();
    let owner = owner.and_then(|(owner,)| owner).unwrap_or_default();
    let task = owner.strip_prefix("task:").and_then(TaskId::parse);
    let plan = match task {
        Some(task) => {
            let ask = TASK_SHOW.on(transaction.kind()).bind(TaskKey(task));
            transaction.all::<TaskRow>(ask).await?.into_iter().next().map(|row| row.plan())
        }
        None => None,
    };
    let tenant = TenantId::parse(lock.id()).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Locker { tenant, task, plan })
}

/// The writes of rows, each with the number of rows that it must touch.
fn changes(transaction: &Transaction<'_>, batch: &PlanBatch) -> Vec<(Ask, usize)> {
    let PlanBatch { next, writes, .. } = batch;
    let (kind, at) = (transaction.kind(), transaction.at());
    let mut asks = Vec::new();
    if writes.plan {
        let status = next.status();
        let change = CHANGE
            .on(kind)
            .bind(PlanKey(next.id))
            .bind(next.version as i64)
            .bind(status.as_str())
            .bind(next.needs_owner())
            .bind(status.is_over())
            .bind(plan_document(next));
        asks.push((change.at(at), 1));
    }
    let tasks: Vec<_> = writes.tasks.iter().map(|place| &next.tasks[*place]).collect();
    if !tasks.is_empty() {
        let change = TASK_CHANGE.on(kind).rows(&tasks, |rows| {
            rows.column("id", |task| TaskKey(task.id))
                .column("version", |task| task.version as i64)
                .column("status", |task| task.status.as_str())
                .column("run", |task| i64::from(task.run))
                .column("definition", |task| i64::from(task.definition))
                .column("document", |task| task_document(task));
        });
        asks.push((change.at(at), tasks.len()));
    }
    let defined: Vec<_> = writes.definitions.iter().map(|place| &next.tasks[*place]).collect();
    if !defined.is_empty() {
        asks.push((define(transaction, &defined), defined.len()));
    }
    let stages = changed_stages(next, &writes.events);
    if !stages.is_empty() {
        let set = STAGE_RUN_SET.on(kind).rows(&stages, |rows| {
            rows.column("task", |(place, ..)| TaskKey(next.tasks[*place].id))
                .column("run", |(_, run, _)| i64::from(*run))
                .column("stage", |(.., stage)| *stage as i64)
                .column("status", |(place, _, stage)| next.tasks[*place].stages[*stage].status.as_str())
                .column("job", |(place, _, stage)| next.tasks[*place].stages[*stage].job.map(Id));
        });
        asks.push((set.at(at), stages.len()));
    }
    if !writes.checkpoints.is_empty() {
        let add = CHECKPOINT_ADD.on(kind).rows(&writes.checkpoints, |rows| {
            rows.column("task", |(place, _)| TaskKey(next.tasks[*place].id))
                .column("version", |(_, checkpoint)| i64::from(checkpoint.version))
                .column("run", |(place, _)| i64::from(next.tasks[*place].run))
                .column("definition", |(place, _)| i64::from(next.tasks[*place].definition))
                .column("completed", |(_, checkpoint)| i64::from(checkpoint.completed))
                .column("context", |(_, checkpoint)| &*checkpoint.context);
        });
        asks.push((add.at(at), writes.checkpoints.len()));
    }
    if !writes.events.is_empty() {
        let events: Vec<_> =
            writes.events.iter().map(|event| (event.task, event_document(event, &batch.author))).collect();
        asks.push((tell(transaction, next.id, &events), events.len()));
    }
    if !batch.jobs.is_empty() {
        let lane = LaneId::plan(next.id);
        let new = batch.jobs.iter().map(|job| New { lane: lane.as_str(), job, key: None, due_at: None });
        let new: Vec<_> = new.collect();
        asks.push((SUBMIT.on(kind).rows(&new, columns::give).at(at), new.len()));
    }
    asks
}

fn define(transaction: &Transaction<'_>, tasks: &[&Arc<TaskState>]) -> Ask {
    let add = DEFINITION_ADD.on(transaction.kind()).rows(tasks, |rows| {
        rows.column("task", |task| TaskKey(task.id))
            .column("version", |task| i64::from(task.definition))
            .column("stages", |task| stages_document(&task.spec.stages));
    });
    add.at(transaction.at())
}

fn tell(transaction: &Transaction<'_>, plan: PlanId, events: &[(Option<TaskId>, String)]) -> Ask {
    let events: Vec<_> = events.iter().enumerate().collect();
    let add = EVENT_ADD.on(transaction.kind()).bind(PlanKey(plan)).rows(&events, |rows| {
        rows.column("task", |(_, (task, _))| task.map(TaskKey))
            .column("document", |(_, (_, document))| document.as_str())
            .column("place", |(place, _)| *place as i64 + 1);
    });
    add.at(transaction.at())
}

/// A plan that was there at one look and not at the next.
fn changed_meanwhile(id: PlanId) -> Error {
    Error::aborted(std::io::Error::other(format!("plan {id} changed too quickly")))
}
