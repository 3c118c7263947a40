//! Plans, tasks and tenants as the ledger has them, read for one answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use domain::plan::{StageSpec, TaskStatus};
use domain::{PlanId, Resource, TaskId, TenantId, Token};
use ledger::{Lease, PlanRecord, TaskRecord};
use wire::Code;
use wire::plans as shape;

use crate::auth::Sees;
use crate::limits::{ATTENTION_TASKS_MAX, LISTED_ATTENTION_TASKS_MAX, PIECE_RECORDS_MAX};
use crate::plan_fields::to_wire::{self, TaskDetails};
use crate::refusal::Refusal;
use crate::state::State;
use crate::visibility;

/// The row of a plan.
pub async fn plan_record(state: &State, id: PlanId) -> Result<PlanRecord, Refusal> {
    let record = state.read(state.ledger.plan(id)).await?;
    record.ok_or_else(|| actors::plans::Refusal::UnknownPlan.into())
}

/// A plan for its reader.
pub async fn plan(state: &State, id: PlanId) -> Result<shape::Plan, Refusal> {
    let record = plan_record(state, id).await?;
    let progress = progress(state, &[id]).await?.remove(&id).unwrap_or_default();
    let attention = if wants_attention(&progress) {
        state.read(state.ledger.tasks_of_plans(&[id], &ATTENTION, ATTENTION_TASKS_MAX)).await?
    } else {
        Vec::new()
    };
    let attention = attention.iter().map(to_wire::attention).collect();
    Ok(to_wire::plan(&record, progress, attention))
}

/// Plans for the reader of a list, in their order.
pub async fn plans(state: &State, records: &[PlanRecord]) -> Result<Vec<shape::Plan>, Refusal> {
    let ids: Vec<_> = records.iter().map(|record| record.plan.id).collect();
    let progress = progress(state, &ids).await?;
    let wanting: Vec<_> = progress.iter().filter(|(_, of)| wants_attention(of)).map(|(id, _)| *id).collect();
    let mut attention = HashMap::<PlanId, Vec<_>>::new();
    if !wanting.is_empty() {
        let found = state.ledger.tasks_of_plans(&wanting, &ATTENTION, LISTED_ATTENTION_TASKS_MAX);
        for task in state.read(found).await? {
            attention.entry(task.plan).or_default().push(to_wire::attention(&task));
        }
    }
    let shown = |record: &PlanRecord| {
        let id = record.plan.id;
        let attention = attention.remove(&id).unwrap_or_default();
        to_wire::plan(record, progress.get(&id).copied().unwrap_or_default(), attention)
    };
    Ok(records.iter().map(shown).collect())
}

/// The statuses of tasks that somebody must look at.
const ATTENTION: [TaskStatus; 2] = [TaskStatus::Failed, TaskStatus::Interrupted];

const fn wants_attention(progress: &shape::PlanProgress) -> bool {
    progress.failed + progress.interrupted > 0
}

/// The tasks of plans, counted.
async fn progress(state: &State, plans: &[PlanId]) -> Result<HashMap<PlanId, shape::PlanProgress>, Refusal> {
    let mut counts = HashMap::<PlanId, Vec<(TaskStatus, u64)>>::new();
    for (plan, status, tasks) in state.read(state.ledger.plan_progress(plans)).await? {
        counts.entry(plan).or_default().push((status, tasks));
    }
    Ok(counts.into_iter().map(|(plan, counts)| (plan, to_wire::progress(counts))).collect())
}

/// The plan of a task.
pub async fn plan_of_task(state: &State, id: TaskId) -> Result<PlanId, Refusal> {
    let plan = state.read(state.ledger.plan_of_task(id)).await?;
    plan.ok_or_else(|| actors::plans::Refusal::UnknownTask.into())
}

/// The row of a task, without payloads.
pub async fn task_record(state: &State, id: TaskId) -> Result<TaskRecord, Refusal> {
    whole_task_record(state, id).await.map(without_payloads)
}

/// The row of a task with the payloads of its stages. Nothing is to be waited for while it is kept.
pub async fn whole_task_record(state: &State, id: TaskId) -> Result<TaskRecord, Refusal> {
    let record = state.read(state.ledger.plan_task(id)).await?;
    record.ok_or_else(|| actors::plans::Refusal::UnknownTask.into())
}

/// The row of a task without the payloads of its stages, which may be 16 MiB. One answer alone shows them, and a request keeps
/// the row while it waits for its next read or for another instance.
fn without_payloads(mut record: TaskRecord) -> TaskRecord {
    let none: Arc<str> = Arc::default();
    let stages = record.task.spec.stages.iter();
    let stages = stages.map(|stage| StageSpec { payload: Arc::clone(&none), ..stage.clone() }).collect();
    Arc::make_mut(&mut record.task.spec).stages = stages;
    record
}

/// A task for its reader.
pub async fn task(state: &State, id: TaskId) -> Result<shape::Task, Refusal> {
    let record = task_record(state, id).await?;
    shown_task(state, &record).await
}

/// The same, for a task that was read already or that would be.
pub async fn shown_task(state: &State, record: &TaskRecord) -> Result<shape::Task, Refusal> {
    let lock = lock_of(state, &record.task.spec.tenant).await?;
    shown_with_lock(state, record, lock.as_ref()).await
}

async fn shown_with_lock(
    state: &State,
    record: &TaskRecord,
    lock: Option<&Lease>,
) -> Result<shape::Task, Refusal> {
    let task = &record.task;
    let jobs: Vec<_> = task.stages.iter().filter_map(|stage| stage.job).collect();
    let attempts =
        if jobs.is_empty() { Vec::new() } else { state.read(state.ledger.stage_attempts(&jobs)).await? };
    let version = task.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.version);
    let checkpoints = if version == 0 {
        Vec::new()
    } else {
        state.read(state.ledger.checkpoints(task.id, Some(version + 1), 1)).await?
    };
    let saved = checkpoints.into_iter().find(|saved| saved.checkpoint.version == version);
    let details = TaskDetails {
        attempts: attempts.into_iter().map(|(job, attempt)| (job, attempt.get())).collect(),
        saved,
        lock: lock.and_then(|lock| to_wire::task_lock(lock, task.id)),
    };
    to_wire::task(record, &details)
}

/// The newest task of a tenant that is seen. The gate has found that the tenant's name is.
///
/// # Errors
/// `not_found` where none is seen, and `overloaded` where none is found in the time of a request.
pub async fn newest_task(state: &State, sees: &Sees, tenant: &TenantId) -> Result<TaskRecord, Refusal> {
    newest_task_until(state, sees, tenant, Instant::now() + state.settings.request_timeout).await
}

/// The same, in this time. The first piece is looked at in any case.
async fn newest_task_until(
    state: &State,
    sees: &Sees,
    tenant: &TenantId,
    give_up: Instant,
) -> Result<TaskRecord, Refusal> {
    // Where some are not seen, the newest that is may come in many reads.
    let piece = if sees.pools.is_all() { 1 } else { PIECE_RECORDS_MAX };
    let mut behind = None;
    loop {
        let read = state.read(state.ledger.tenant_tasks(tenant, behind, piece)).await?;
        let Some(last) = read.last() else { return Err(no_task(state, sees, tenant).await) };
        behind = Some(last.task.id);
        if let Some(newest) = read.into_iter().find(|record| visibility::task(sees, record)) {
            return Ok(without_payloads(newest));
        }
        if Instant::now() >= give_up {
            let detail = format!(
                "the token sees so few of the tenant's tasks that finding the newest one takes too long; \
                 /v1/tenants/{tenant}/tasks lists it page by page, and by its id a task is shown and retried at once"
            );
            return Err(Refusal::new(Code::Overloaded, detail));
        }
    }
}

/// The refusal for a tenant of which no task is seen. The gate has found that the tenant's name is.
pub async fn no_task(state: &State, sees: &Sees, tenant: &TenantId) -> Refusal {
    if sees.pools.is_all() {
        return Refusal::new(Code::NotFound, "no task was ever made for this tenant");
    }
    let detail = "no task was ever made for this tenant, or this token sees none";
    let unknown = Refusal::new(Code::NotFound, detail);
    match state.read(state.ledger.tenant_tasks(tenant, None, 1)).await {
        Ok(tasks) if tasks.is_empty() => unknown,
        Ok(_) => visibility::hidden(unknown),
        Err(refusal) => refusal,
    }
}

/// The token of a tenant's lock and the plan of the task that has it, if one has it. Refused if that task is not seen.
pub async fn locker(
    state: &State,
    sees: &Sees,
    tenant: &TenantId,
) -> Result<Option<(Token, PlanId)>, Refusal> {
    let Some(lock) = lock_of(state, tenant).await? else { return Ok(None) };
    let Some(task) = to_wire::lock_holder(&lock) else { return Ok(None) };
    let Some(record) = state.read(state.ledger.plan_task(task)).await? else { return Ok(None) };
    if !sees.pools.is_all() && !visibility::task(sees, &record) {
        let detail = "this token does not see the task that has the tenant's lock";
        return Err(visibility::hidden(Refusal::new(Code::NotFound, detail)));
    }
    Ok(Some((lock.token, record.plan)))
}

/// A tenant for its reader.
pub async fn tenant(state: &State, sees: &Sees, tenant: &TenantId) -> Result<shape::Tenant, Refusal> {
    let record = newest_task(state, sees, tenant).await?;
    let lock = lock_of(state, tenant).await?;
    let task = shown_with_lock(state, &record, lock.as_ref()).await?;
    let lock = match &lock {
        Some(lock) => tenant_lock(state, sees, lock, &record).await?,
        None => None,
    };
    Ok(shape::Tenant { tenant: tenant.to_string(), has_checkpoint: task.has_checkpoint, task, lock })
}

async fn lock_of(state: &State, tenant: &TenantId) -> Result<Option<Lease>, Refusal> {
    state.read(state.ledger.lease(&Resource::tenant(tenant))).await
}

/// The lock of a tenant with the task that holds it, which need not be the tenant's newest. `None` also where its reader does not
/// see that task.
async fn tenant_lock(
    state: &State,
    sees: &Sees,
    lock: &Lease,
    newest: &TaskRecord,
) -> Result<Option<shape::TenantLock>, Refusal> {
    let Some(task) = to_wire::lock_holder(lock) else { return Ok(None) };
    let plan = if task == newest.task.id {
        Some(newest.plan)
    } else {
        let record = state.read(state.ledger.plan_task(task)).await?;
        if record.as_ref().is_some_and(|record| !visibility::task(sees, record)) {
            return Ok(None);
        }
        record.map(|record| record.plan)
    };
    Ok(Some(shape::TenantLock {
        token: lock.token.get().cast_unsigned(),
        expires_in_ms: lock.expires_in_ms,
        task: task.to_string(),
        plan: plan.map(|plan| plan.to_string()),
    }))
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;
    use domain::plan::TaskSpec;
    use domain::{Names, Pattern};

    use super::*;
    use crate::auth::{Auth, Principal};
    use crate::settings::Settings;

    #[actix_web::test]
    async fn what_a_request_keeps_of_a_task_has_no_payloads() {
        let dir = tempfile::TempDir::new().unwrap();
        let state = crate::tests::state_with(&dir, Settings::new(Auth::open())).await;
        let (id, tenant) = (TaskId::from_u128(2), TenantId::parse("t").unwrap());
        let stages = ["a", "b"].map(|name| StageSpec::new(name, "\"large\""));
        crate::tests::make_plan(&state, 2, TaskSpec::new(tenant.clone(), stages)).await;
        let anybody = Principal::of(&TestRequest::default().to_http_request());
        let newest = newest_task(&state, anybody.sees(), &tenant).await.unwrap();
        for record in [task_record(&state, id).await.unwrap(), newest] {
            let stages = record.task.spec.stages.iter().map(|stage| (&*stage.name, &*stage.payload));
            assert!(stages.eq([("a", ""), ("b", "")]), "{record:?}");
        }
    }

    #[actix_web::test]
    async fn a_token_that_sees_too_few_tasks_for_a_search_learns_of_the_list_that_goes_on() {
        let dir = tempfile::TempDir::new().unwrap();
        let state = crate::tests::state_with(&dir, Settings::new(Auth::open())).await;
        let tenant = TenantId::parse("t").unwrap();
        let stages = ["a"].map(|name| StageSpec::new(name, "1"));
        crate::tests::make_plan(&state, 2, TaskSpec::new(tenant.clone(), stages)).await;
        let pools = Names::Some(vec![Pattern::parse("other").unwrap()].into());
        let sees = Sees { pools, ..Sees::default() };
        let refused = newest_task_until(&state, &sees, &tenant, Instant::now()).await.unwrap_err();
        assert_eq!(refused.code(), Code::Overloaded);
        assert!(refused.to_string().contains("/v1/tenants/t/tasks"), "{refused}");
        let refused = newest_task(&state, &sees, &tenant).await.unwrap_err();
        assert_eq!(refused.code(), Code::NotFound, "in time the end is found");
    }
}
