//! Plans over HTTP: any instance makes and shows them, their owners steer them. Every answer shows what the ledger has.

pub mod events;
mod records;
pub mod retries;
pub mod tasks;
pub mod tenants;

use std::cell::RefCell;
use std::collections::HashSet;
use std::sync::Arc;

use actix_web::http::header::LOCATION;
use actix_web::{HttpRequest, HttpResponse, web};
use actors::plans::NewPlan;
use actors::uncut::uncut;
use domain::PlanId;
use domain::plan::{Command, PlanStatus, TaskStatus};
use ledger::{Author, PlanFilter};
use wire::Code;
use wire::plans as shape;

use crate::auth::Principal;
use crate::cursors::Cursors;
use crate::extract::{self, CURSOR, LIMIT, Page, Query};
use crate::forwarder::{ForwardedRequest, Forwarder, Forwarding, Routed};
use crate::idempotency::{KEY, admit, body_hash, job_key};
use crate::large_pages;
use crate::plan_fields::{from_wire, to_wire};
use crate::refusal::{Answer, Refusal};
use crate::request_id::RequestId;
use crate::seen_pages;
use crate::state::{Shared, State};
use crate::{audit, traces, visibility};

/// Makes a plan
///
/// The plan and all its tasks are made in one commit. With `"start": true` the plan is started in the same commit, which
/// takes the locks of all its tenants, or none: the plan is refused as `tenant_locked`, and not made, if another task has
/// one of the locks. Repetitions of the same request under one `Idempotency-Key` get the same plan for 24 hours.
#[utoipa::path(
    post, path = "/v1/plans", tag = "plans", operation_id = "create_plan",
    params(("Idempotency-Key" = Option<String>, Header, description = KEY)),
    request_body(content = shape::PlanRequest, description = "At most 16 MiB"),
    responses((status = 201, description = "The plan is made and durable", body = shape::Plan)),
)]
pub async fn create(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::bytes(&request, payload, state.plan_limits()).await?;
    let asked: shape::PlanRequest = extract::object(&request, &body)?;
    let length = body.len();
    drop(body);
    let principal = Principal::of(&request);
    let key = key.map(|key| job_key(principal.name(), "plan", key, body_hash(&asked)));
    visibility::of_new_tasks(principal.sees(), &asked.tasks)?;
    let (spec, tasks) = from_wire::plan(&asked)?;
    admit(&state, &principal, key.as_ref())?;
    let has_key = key.is_some();
    let plan = NewPlan { spec, tasks, is_started: asked.start.unwrap_or(false), key };
    let (plans, author) = (state.incarnation().plans.clone(), author(&request, None));
    let is_operator = audit::is_operator(&request);
    let bytes = extract::kept_bytes(&request, &state.shares, length)?;
    // The plan is in memory until it is made, also where the caller leaves.
    let made = uncut(async move {
        let made = if is_operator {
            plans.create_for_operator(plan, author).await
        } else {
            plans.create(plan, author).await
        };
        (made, bytes)
    });
    let (made, _bytes) = state.call(made).await;
    let id = made?;
    // Under a key it may have been made long ago: its stages may be in other pools since.
    if has_key && !visibility::plan(&state, principal.sees(), id).await.map_err(behind_write)? {
        return Err(visibility::hidden(actors::plans::Refusal::UnknownPlan));
    }
    let location = (LOCATION, format!("/v1/plans/{id}"));
    let plan = records::plan(&state, id).await.map_err(behind_write)?;
    Ok(HttpResponse::Created().insert_header(location).json(plan))
}

/// Lists plans
///
/// The newest plans come first. `attention` has the first 10 such tasks of each plan.
#[utoipa::path(
    get, path = "/v1/plans", tag = "plans", operation_id = "list_plans",
    params(
        ("status" = Option<shape::PlanStatus>, Query, description = "Plans with this status"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Plan>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["status", "cursor", "limit"])?;
    let limit = query.limit()?;
    let principal = Principal::of(&request);
    let (sees, cursors) = (principal.sees(), Cursors::of("p", &state.cursor_seal, &principal));
    let filter = PlanFilter {
        status: query.in_either_case("status", PlanStatus::parse)?,
        tenant: visibility::only(sees).0,
        before: cursors.read(&query, PlanId::parse)?,
        limit: 0,
    };
    let until = seen_pages::until(&state);
    // Those of the plans read last.
    let seen = RefCell::new(HashSet::new());
    let read = async |before: Option<PlanId>, limit| {
        let filter = PlanFilter { before: before.or(filter.before), limit, ..filter.clone() };
        let mut records = state.read(state.ledger.plans(&filter)).await?;
        let ids: Vec<_> = records.iter().map(|record| record.plan.id).collect();
        let (seen_now, looked_at) = visibility::plans(&state, sees, &ids, until).await?;
        records.truncate(looked_at);
        *seen.borrow_mut() = seen_now;
        Ok(records)
    };
    let is_seen = |record: &ledger::PlanRecord| seen.borrow().contains(&record.plan.id);
    let page = seen_pages::page(&state, &principal, limit, read, |record| record.plan.id, is_seen).await?;
    let page = Page { records: records::plans(&state, &page.records).await?, next: page.next };
    Ok(HttpResponse::Ok().json(cursors.page(page, PlanId::to_string, Clone::clone)))
}

/// Shows a plan
#[utoipa::path(
    get, path = "/v1/plans/{plan}", tag = "plans", operation_id = "show_plan",
    params(("plan" = String, Path, description = ID)),
    responses((status = 200, description = "The plan", body = shape::Plan)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    let id = plan(&request)?;
    Query::read(&request, &[])?;
    Ok(HttpResponse::Ok().json(records::plan(&state, id).await?))
}

/// Lists the tasks of a plan
///
/// The tasks come in the order of the plan. A page ends early when its tasks are long.
#[utoipa::path(
    get, path = "/v1/plans/{plan}/tasks", tag = "plans", operation_id = "list_plan_tasks",
    params(
        ("plan" = String, Path, description = ID),
        ("status" = Option<shape::TaskStatus>, Query, description = "Tasks with this status"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Task>)),
)]
pub async fn tasks(request: HttpRequest, state: Shared) -> Answer {
    let id = plan(&request)?;
    let query = Query::read(&request, &["status", "cursor", "limit"])?;
    let limit = query.limit()?;
    let status = query.in_either_case("status", TaskStatus::parse)?;
    let begin = query.cursor("k", place)?;
    records::plan_record(&state, id).await?;
    let read = async |after, limit| match status {
        Some(status) => state.read(state.ledger.plan_tasks_with(id, &[status], after, limit)).await,
        None => state.read(state.ledger.plan_tasks(id, after, limit)).await,
    };
    let shown = |record: &ledger::TaskRecord| Ok((record.place, Some(to_wire::listed_task(record))));
    let room = large_pages::room(&state, &request);
    let cursors = Cursors::in_clear("k");
    Ok(HttpResponse::Ok().json(large_pages::page(room, &cursors, begin, limit, read, shown).await?))
}

/// Starts a plan
///
/// The start takes the locks of all tenants of the plan, or none: it is refused as `tenant_locked` if another task has one
/// of the locks. Starting a plan that was started before changes nothing. A plan that was cancelled, or all of whose tasks were,
/// is not started (`conflict`).
#[utoipa::path(
    post, path = "/v1/plans/{plan}/start", tag = "plans", operation_id = "start_plan",
    params(("plan" = String, Path, description = ID)),
    request_body(content = shape::ReasonRequest, description = "The body may be absent"),
    responses((status = 200, description = "The plan as it stands now", body = shape::Plan)),
)]
pub async fn start(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    change(request, payload, forwarder, Command::Start).await
}

/// Pauses a plan
///
/// No further task and no further stage starts. Stages that are under way end, and their tasks become PAUSED after that.
/// Pausing a paused plan changes nothing. A task that has changed 10,000 times becomes PENDING instead, and goes on when the
/// plan is resumed. A plan that has changed 100,000 times is not paused any more (`conflict`).
#[utoipa::path(
    post, path = "/v1/plans/{plan}/pause", tag = "plans", operation_id = "pause_plan",
    params(("plan" = String, Path, description = ID)),
    request_body(content = shape::ReasonRequest, description = "The body may be absent"),
    responses((status = 200, description = "The plan as it stands now", body = shape::Plan)),
)]
pub async fn pause(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    change(request, payload, forwarder, Command::Pause).await
}

/// Resumes a plan
///
/// Paused tasks wait for their turn and go on, also those that wait for a person, unless `keep_paused` is `true`. A plan whose
/// owner changed starts further tasks again. Tasks that are FAILED or INTERRUPTED stay so until they are retried; unless
/// `on_failure` is `continue`, no task that had no turn starts as long as there is one. Resuming a plan that is RUNNING changes
/// nothing: a task that was paused alone stays paused. With `on_failure` `pause`, paused tasks go on also then, because a failure
/// may have paused them.
#[utoipa::path(
    post, path = "/v1/plans/{plan}/resume", tag = "plans", operation_id = "resume_plan",
    params(("plan" = String, Path, description = ID)),
    request_body(content = shape::PlanResumeRequest, description = "The body may be absent"),
    responses((status = 200, description = "The plan as it stands now", body = shape::Plan)),
)]
pub async fn resume(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let id = plan(&request)?;
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, forwarder.state().body_limits()).await?;
    let asked: shape::PlanResumeRequest = extract::optional_object(&request, &body)?.unwrap_or_default();
    let command = if asked.keep_paused == Some(true) { Command::ResumeButPaused } else { Command::Resume };
    steer(&request, body, &forwarder, id, command, asked.reason.as_deref()).await
}

/// Cancels a plan
///
/// No further stage starts. The jobs of stages that are under way are cancelled, and their tasks become CANCELLED when these
/// jobs have ended. Cancelling a cancelled plan changes nothing.
#[utoipa::path(
    post, path = "/v1/plans/{plan}/cancel", tag = "plans", operation_id = "cancel_plan",
    params(("plan" = String, Path, description = ID)),
    request_body(content = shape::ReasonRequest, description = "The body may be absent"),
    responses((status = 200, description = "The plan as it stands now", body = shape::Plan)),
)]
pub async fn cancel(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    change(request, payload, forwarder, Command::Cancel).await
}

async fn change(
    request: HttpRequest,
    payload: web::Payload,
    forwarder: Forwarding,
    command: Command,
) -> Answer {
    let id = plan(&request)?;
    Query::read(&request, &[])?;
    let (body, reason) = reason(&request, payload, forwarder.state()).await?;
    steer(&request, body, &forwarder, id, command, reason.as_deref()).await
}

/// Has the owner of a plan carry out a command, and shows the plan as it is then.
async fn steer(
    request: &HttpRequest,
    body: Vec<u8>,
    forwarder: &Forwarder,
    id: PlanId,
    command: Command,
    reason: Option<&str>,
) -> Answer {
    match carry_out(forwarder, request, body, id, command, reason).await? {
        Routed::Here(()) => {
            let plan = records::plan(forwarder.state(), id).await.map_err(behind_write)?;
            Ok(HttpResponse::Ok().json(plan))
        }
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// The refusal of what is read for the answer behind a write, when that is done: where the ledger did not answer, the outcome
/// counts as unknown.
fn behind_write(refusal: Refusal) -> Refusal {
    if refusal.code() != Code::LedgerUnavailable {
        return refusal;
    }
    actors::plans::Refusal::LedgerUnavailable.into()
}

/// Has the owner of a plan carry out a command.
async fn carry_out(
    forwarder: &Forwarder,
    request: &HttpRequest,
    body: Vec<u8>,
    plan: PlanId,
    command: Command,
    reason: Option<&str>,
) -> Result<Routed<()>, Refusal> {
    let (author, is_operator) = (author(request, reason), audit::is_operator(request));
    let serve = async |plans: &actors::plans::Plans| {
        let (command, author) = (command.clone(), author.clone());
        if is_operator {
            plans.carry_out_for_operator(plan, command, author).await
        } else {
            plans.carry_out(plan, command, author).await
        }
    };
    forwarder.to_plan(&ForwardedRequest::of(request, body), plan, serve).await
}

/// The body of a change, and the reason in it.
async fn reason(
    request: &HttpRequest,
    payload: web::Payload,
    state: &State,
) -> Result<(Vec<u8>, Option<String>), Refusal> {
    let body = extract::bytes(request, payload, state.body_limits()).await?;
    let asked: shape::ReasonRequest = extract::optional_object(request, &body)?.unwrap_or_default();
    Ok((body, asked.reason))
}

/// Who asks, for the history, and the span that the request continues.
fn author(request: &HttpRequest, reason: Option<&str>) -> Author {
    let principal = Principal::of(request);
    Author {
        principal: Some(principal.name()).filter(|name| !name.is_empty()).map(Arc::from),
        request_id: Some(Arc::from(RequestId::of(request.headers()).to_string())),
        reason: reason.map(Arc::from),
        traceparent: traces::of_request(request.headers()),
    }
}

/// The place of a task, as cursors write it. The ledger's numbers have 63 bits.
fn place(text: &str) -> Option<usize> {
    usize::try_from(i64::try_from(extract::number(text)?).ok()?).ok()
}

/// The plan in the path.
fn plan(request: &HttpRequest) -> Result<PlanId, Refusal> {
    PlanId::parse(extract::segment(request, "plan"))
        .ok_or_else(|| Refusal::new(Code::NotFound, "no plan has an id of this form"))
}

const ID: &str = "The plan's id";
