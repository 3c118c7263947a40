//! Retries over HTTP: a task is run again, by its id or as the newest of its tenant.

use actix_web::{HttpRequest, HttpResponse, web};
use domain::TaskId;
use ledger::TaskRecord;
use wire::Code;
use wire::plans as shape;

use super::{Answer, Forwarding, author, records};
use super::{tasks, tenants};
use crate::audit;
use crate::auth::Principal;
use crate::extract::{self, Query};
use crate::forwarder::{ForwardedRequest, Routed};
use crate::plan_fields::from_wire;
use crate::refusal::Refusal;
use crate::state::State;
use crate::visibility;

/// Retries a task
///
/// The retry opens the next run of a task that is FAILED, INTERRUPTED, PAUSED or CANCELLED. It takes the tenant's lock anew,
/// and waits for a job of an earlier run that may still be under way. An UNKNOWN stage must be resolved first, unless its
/// `on_unknown` is `rerun`. With `"dry_run": true` nothing is changed; the answer is 200 with the task as the retry would
/// make it.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/retry", tag = "plans", operation_id = "retry_task",
    params(("task" = String, Path, description = tasks::ID)),
    request_body(content = shape::TaskRetryRequest, description = "At most 16 MiB"),
    responses(
        (status = 202, description = "The task with its new run", body = shape::Task),
        (status = 200, description = "With `dry_run`: the task as it would be", body = shape::Task),
    ),
)]
pub async fn of_task(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let id = tasks::task(&request)?;
    let (body, asked) = read(&request, payload, forwarder.state()).await?;
    let record = records::task_record(forwarder.state(), id).await?;
    retry(&request, body, &forwarder, record, &asked).await
}

/// Retries the newest task of a tenant
///
/// This does the same as the retry of that task by its id. For a token with patterns it is the newest task that it sees.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/retry", tag = "plans", operation_id = "retry_tenant",
    params(("tenant" = String, Path, min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:@-]+$", description = tenants::ID)),
    request_body(content = shape::TaskRetryRequest, description = "At most 16 MiB"),
    responses(
        (status = 202, description = "The task with its new run", body = shape::Task),
        (status = 200, description = "With `dry_run`: the task as it would be", body = shape::Task),
    ),
)]
pub async fn of_tenant(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let tenant = tenants::tenant(&request)?;
    let (body, asked) = read(&request, payload, forwarder.state()).await?;
    let principal = Principal::of(&request);
    let record = records::newest_task(forwarder.state(), principal.sees(), &tenant).await?;
    retry(&request, body, &forwarder, record, &asked).await
}

async fn read(
    request: &HttpRequest,
    payload: web::Payload,
    state: &State,
) -> Result<(Vec<u8>, shape::TaskRetryRequest), Refusal> {
    Query::read(request, &[])?;
    let body = extract::bytes(request, payload, state.plan_limits()).await?;
    let asked = extract::object(request, &body)?;
    Ok((body, asked))
}

async fn retry(
    request: &HttpRequest,
    body: Vec<u8>,
    forwarder: &Forwarding,
    record: TaskRecord,
    asked: &shape::TaskRetryRequest,
) -> Answer {
    let state = forwarder.state();
    visibility::of_new_stages(Principal::of(request).sees(), asked.stages.as_deref().unwrap_or_default())?;
    let wanted = from_wire::retry(asked)?;
    let (plan, task) = (record.plan, record.task.id);
    if asked.dry_run.unwrap_or(false) {
        let preview = state.call(state.incarnation().plans.preview_retry(plan, task, wanted)).await;
        let preview = preview.map_err(|refusal| of(task, refusal.into()))?;
        let task = preview.tasks.into_iter().find(|one| one.id == task).ok_or_else(Refusal::internal)?;
        let record = TaskRecord { task: (*task).clone(), ..record };
        return Ok(HttpResponse::Ok().json(records::shown_task(state, &record).await?));
    }
    let mut entry = audit::entry(request, "retry_task", format!("task:{task}"));
    entry.reason = Some(asked.reason.as_str().into());
    audit::note(state, request, &entry).await?;
    let author = author(request, Some(&asked.reason));
    let serve =
        async |plans: &actors::plans::Plans| plans.retry(plan, task, wanted.clone(), author.clone()).await;
    let served = forwarder.to_plan(&ForwardedRequest::of(request, body), plan, serve).await;
    match served.map_err(|refusal| of(task, refusal))? {
        Routed::Here(()) => Ok(HttpResponse::Accepted().json(records::task(state, task).await?)),
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// A refusal of a retry. One for the sake of an UNKNOWN stage names the task, which the caller need not have named.
fn of(task: TaskId, refusal: Refusal) -> Refusal {
    if refusal.code() == Code::StageUnknown {
        return refusal.with(|problem| problem.task = Some(task.to_string()));
    }
    refusal
}
