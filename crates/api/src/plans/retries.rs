//! Retries over HTTP: a task is run again, by its id or as the newest of its tenant.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};
use actors::plans::RetryRequest;
use domain::{TaskId, TenantId};
use ledger::{JobKey, TaskRecord};
use wire::Code;
use wire::plans as shape;

use super::{Answer, Forwarding, author, behind_write, records};
use super::{tasks, tenants};
use crate::auth::{Principal, Sees};
use crate::extract::{self, Query};
use crate::forwarder::{ForwardedRequest, Routed};
use crate::idempotency::{KEY, admit, body_hash, job_key};
use crate::plan_fields::from_wire;
use crate::read_turn::ReadTurn;
use crate::refusal::Refusal;
use crate::state::{State, of_read};
use crate::visibility;

/// Retries a task
///
/// The retry opens the next run of a task that is FAILED, INTERRUPTED, PAUSED or CANCELLED, or that is PENDING and was never
/// begun in a plan that is over its time (`over_time`). The task's plan must have been started (else `conflict`). The retry takes
/// the tenant's lock anew, and waits for a job of an earlier run that may still be under way. An UNKNOWN stage must be resolved
/// first, unless its `on_unknown` is `rerun`. With `"dry_run": true` nothing is changed; the answer is 200 with the task as the
/// retry would make it, or `overloaded` where too many dry runs come at once. Repetitions of the same request under one
/// `Idempotency-Key` open one run, for 24 hours. A stage that is FAILED runs again, also where it did its work: leave it out of
/// `stages` then. Tasks that the failure of this one has kept from their turn start too, unless the plan is paused before.
#[utoipa::path(
    post, path = "/v1/tasks/{task}/retry", tag = "plans", operation_id = "retry_task",
    params(
        ("task" = String, Path, description = tasks::ID),
        ("Idempotency-Key" = Option<String>, Header, description = KEY),
    ),
    request_body(content = shape::TaskRetryRequest, description = "At most 16 MiB"),
    responses(
        (status = 202, description = "The task with its new run", body = shape::Task),
        (status = 200, description = "With `dry_run`: the task as it would be", body = shape::Task),
    ),
)]
pub async fn of_task(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let task = Named::Task(tasks::task(&request)?);
    retry(&request, payload, &forwarder, task).await
}

/// Retries the newest task of a tenant
///
/// This does the same as the retry of that task by its id. For a token with patterns it is the newest task that it sees. If the
/// plan of the newest task was never started, the retry is refused as `conflict`, and `detail` names the task and the plan: an
/// earlier task is retried by its id.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/retry", tag = "plans", operation_id = "retry_tenant",
    params(
        ("tenant" = String, Path, description = tenants::ID),
        ("Idempotency-Key" = Option<String>, Header, description = KEY),
    ),
    request_body(content = shape::TaskRetryRequest, description = "At most 16 MiB"),
    responses(
        (status = 202, description = "The task with its new run", body = shape::Task),
        (status = 200, description = "With `dry_run`: the task as it would be", body = shape::Task),
    ),
)]
pub async fn of_tenant(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let task = Named::NewestOf(tenants::tenant(&request)?);
    retry(&request, payload, &forwarder, task).await
}

/// The task that a path names.
enum Named {
    Task(TaskId),
    NewestOf(TenantId),
}

impl Named {
    /// Its row; of a tenant's tasks, of the newest that is seen.
    async fn record(&self, state: &State, sees: &Sees) -> Result<TaskRecord, Refusal> {
        match self {
            Self::Task(id) => records::task_record(state, *id).await,
            Self::NewestOf(tenant) => records::newest_task(state, sees, tenant).await,
        }
    }
}

/// As the scopes of idempotency keys name it.
impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(id) => write!(f, "task:{id}"),
            Self::NewestOf(tenant) => write!(f, "tenant:{}", tenant.as_str()),
        }
    }
}

/// A retry as it was asked for.
struct Asked {
    /// As it came, for the owner of the plan.
    body: Vec<u8>,
    retry: shape::TaskRetryRequest,
    /// Its idempotency key. A dry run has none.
    key: Option<JobKey>,
}

impl Asked {
    /// Reads a retry of this task.
    async fn read(
        request: &HttpRequest,
        payload: web::Payload,
        state: &State,
        task: &Named,
    ) -> Result<Self, Refusal> {
        Query::read(request, &[])?;
        let key = extract::idempotency_key(request.headers())?;
        let body = extract::bytes(request, payload, state.plan_limits()).await?;
        let retry: shape::TaskRetryRequest = extract::object(request, &body)?;
        let principal = Principal::of(request);
        visibility::of_new_stages(principal.sees(), retry.stages.as_deref().unwrap_or_default())?;
        let key = key.filter(|_| !retry.dry_run.unwrap_or(false));
        let key = key.map(|key| job_key(principal.name(), &format!("retry_{task}"), key, body_hash(&retry)));
        admit(state, &principal, key.as_ref())?;
        Ok(Self { body, retry, key })
    }

    /// The answer to a repetition: the task that was retried then, as it is now.
    async fn kept(&self, request: &HttpRequest, state: &State) -> Result<Option<HttpResponse>, Refusal> {
        let Some(key) = &self.key else { return Ok(None) };
        match state.look_up(state.incarnation().plans.kept_retry(key)).await? {
            Some(task) => Ok(Some(accepted(request, state, task).await?)),
            None => Ok(None),
        }
    }
}

/// Carries a retry out, or answers its dry run.
async fn retry(request: &HttpRequest, payload: web::Payload, forwarder: &Forwarding, task: Named) -> Answer {
    let state = forwarder.state();
    let asked = Asked::read(request, payload, state, &task).await?;
    if let Some(answer) = asked.kept(request, state).await? {
        return Ok(answer);
    }
    let Asked { body, retry: asked, key } = asked;
    let wanted = from_wire::retry(&asked)?;
    let principal = Principal::of(request);
    if asked.dry_run.unwrap_or(false) {
        let task = dry_run(state, principal, task, wanted).await?;
        return Ok(HttpResponse::Ok().json(task));
    }
    let record = task.record(state, principal.sees()).await?;
    let (plan, task) = (record.plan, record.task.id);
    let author = author(request, Some(&asked.reason));
    let serve = async |plans: &actors::plans::Plans| {
        plans.retry(plan, task, wanted.clone(), key.clone(), author.clone()).await
    };
    let served = forwarder.to_plan(&ForwardedRequest::of(request, body), plan, serve).await;
    match served.map_err(|refusal| of(task, refusal))? {
        Routed::Here(retried) => accepted(request, state, retried).await,
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// The task as its retry would make it, read under a turn: few dry runs have a plan in memory at once.
async fn dry_run(
    state: &Arc<State>,
    principal: Arc<Principal>,
    task: Named,
    wanted: RetryRequest,
) -> Result<shape::Task, Refusal> {
    let until = Instant::now() + state.settings.request_timeout;
    let of_token = principal.used().map(|used| &used.retry_dry_run);
    let Some(turn) = ReadTurn::take(of_token, &state.retry_dry_runs, until).await else {
        let detail = "too many dry runs of retries come at once, in all or of this token; try again";
        return Err(Refusal::new(Code::Overloaded, detail));
    };
    let retried = would_be(state, principal.sees(), &task, wanted);
    state.call(ledger::keeping(turn, retried)).await
}

/// The task as the retry would make it.
async fn would_be(
    state: &State,
    sees: &Sees,
    task: &Named,
    wanted: RetryRequest,
) -> Result<shape::Task, Refusal> {
    let record = task.record(state, sees).await?;
    let (plan, task) = (record.plan, record.task.id);
    let preview = state.incarnation().plans.preview_retry(plan, task, wanted).await;
    let preview = preview.map_err(|refusal| of(task, of_read(refusal.into())))?;
    let task = preview.tasks.into_iter().find(|one| one.id == task).ok_or_else(Refusal::internal)?;
    let record = TaskRecord { task: (*task).clone(), ..record };
    records::shown_task(state, &record).await
}

/// The answer with the task that was retried, which under a key may be long ago: its stages may be in other pools since.
async fn accepted(request: &HttpRequest, state: &State, task: TaskId) -> Answer {
    let record = records::task_record(state, task).await.map_err(behind_write)?;
    if !visibility::task(Principal::of(request).sees(), &record) {
        return Err(visibility::hidden(actors::plans::Refusal::UnknownTask));
    }
    let task = records::shown_task(state, &record).await.map_err(behind_write)?;
    Ok(HttpResponse::Accepted().json(task))
}

/// A refusal of a retry. One for the sake of an UNKNOWN stage names the task, which the caller need not have named.
fn of(task: TaskId, refusal: Refusal) -> Refusal {
    if refusal.code() == Code::StageUnknown {
        return refusal.with(|problem| problem.task = Some(task.to_string()));
    }
    refusal
}
