//! Jobs over HTTP: each handler reads the request, asks the lanes (or, for a read, the ledger), and shows the answer.

pub mod batch;
mod own;
pub mod retries;

use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::http::header::LOCATION;
use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::{Accepted, Jobs, Submission, TokenSubmissions};
use domain::job::{Outcome, State as JobState};
use domain::{JobId, JobKind, PoolName, SessionId, TenantId, TraceParent};
use ledger::{JobFilter, JobRecord};
use wire::Code;
use wire::jobs as shape;

use crate::audit;
use crate::auth::{Principal, Scope};
use crate::cursors::Cursors;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::forwarder::{ForwardedRequest, Forwarder, Forwarding, Routed};
use crate::idempotency::{KEY, admit, body_hash, job_key};
use crate::job_fields;
use crate::refusal::{Answer, Refusal};
use crate::seen_pages;
use crate::state::{Shared, State, of_read};
use crate::to_wire;
use crate::traces;
use crate::visibility;

pub use batch::{Part, submit_part};

/// Submits a job
///
/// An accepted job is durable. Repetitions of the same request under one `Idempotency-Key` get the same job for 24 hours,
/// on any instance, also when it has ended: nothing runs then. The same key with another request is refused as `key_reused`.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs", operation_id = "submit_job",
    params(("Idempotency-Key" = Option<String>, Header, description = KEY)),
    request_body = shape::JobRequest,
    responses((status = 202, description = "The job is accepted and durable", body = shape::JobAccepted)),
)]
pub async fn submit(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::bytes(&request, payload, state.job_limits()).await?;
    let asked: shape::JobRequest = extract::object(&request, &body)?;
    let principal = Principal::of(&request);
    let key = key.map(|key| job_key(principal.name(), "job", key, body_hash(&asked)));
    let submission =
        job_fields::submission(&asked, key, &principal).map_err(visibility::hidden_if_not_found)?;
    if let Some(session) = &submission.spec.session {
        visibility::of_new_in(state, principal.sees(), session).await?;
    }
    admit(state, &principal, submission.key.as_ref())?;
    let continues = traces::of_request(request.headers());
    let forwarded = || ForwardedRequest::of(&request, body);
    match accept(&forwarder, &principal, continues, submission, forwarded).await? {
        Routed::Here(accepted) => {
            visibility::admit_repeated(state, principal.sees(), &accepted)
                .await
                .map_err(visibility::hidden_if_not_found)?;
            Ok(accepted_answer(&accepted, None))
        }
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// Shows a job
///
/// `waiting_for` says why a job waits. With `wait_ms` the answer waits until the job is FINISHED, for at most that time.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "show_job",
    params(
        ("id" = String, Path, description = ID),
        ("wait_ms" = Option<u64>, Query, description = "How long to wait for the job's end"),
    ),
    responses((status = 200, description = "The job", body = shape::Job)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    let id = job(&request)?;
    let wait = Query::read(&request, &["wait_ms"])?.wait_ms()?;
    let mut principal = Principal::of(&request);
    let waited = waited(&state, &mut principal, id, Duration::from_millis(wait)).await;
    let record = waited.map_err(of_read)?;
    let jobs = &state.incarnation().jobs;
    let progress = state.call(jobs.progress(&record)).await;
    let sees = &principal.sees().pools;
    let waits = state.call(jobs.waiting_for(&record, |pool| sees.have(Some(pool.as_str())))).await;
    let shown = job_fields::job(&record, progress)?;
    Ok(HttpResponse::Ok()
        .json(shape::Job { waiting_for: waits.as_ref().map(job_fields::waiting_for), ..shown }))
}

/// Lists jobs
///
/// The newest jobs come first. Payloads, results and past attempts are left out. A job is listed if it meets every
/// condition that the request names.
#[utoipa::path(
    get, path = "/v1/jobs", tag = "jobs", operation_id = "list_jobs",
    params(
        ("state" = Option<shape::JobState>, Query, description = "Jobs in this state"),
        ("outcome" = Option<shape::Outcome>, Query, description = "Jobs with this outcome"),
        ("session" = Option<String>, Query, description = "Jobs of this session"),
        ("tenant" = Option<String>, Query, description = "Jobs of this tenant"),
        ("pool" = Option<String>, Query, description = "Jobs that asked for this pool"),
        ("kind" = Option<String>, Query, description = "Jobs of this kind"),
        ("dead" = Option<bool>, Query, description = "`true`: dead jobs, which failed or timed out and were neither retried nor dismissed. `false`: all others"),
        ("retriable" = Option<bool>, Query, description = "`true`: finished jobs that `POST /v1/jobs/retry` with a filter may select: those that were not retried and are neither stages of plans nor of closed sessions. `false`: as if absent"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Job>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(
        &request,
        &["state", "outcome", "session", "tenant", "pool", "kind", "dead", "retriable", "cursor", "limit"],
    )?;
    let limit = query.limit()?;
    let is_retriable = query.is_set("retriable")?;
    let principal = Principal::of(&request);
    let (sees, cursors) = (principal.sees(), Cursors::of("j", &state.cursor_seal, &principal));
    let filter = JobFilter {
        state: query.in_either_case("state", JobState::parse)?,
        outcome: query.get("outcome").map(Outcome::parse).transpose()?,
        session: query.get("session").map(SessionId::parse).transpose()?,
        tenant: query.get("tenant").map(TenantId::parse).transpose()?,
        pool: query.get("pool").map(PoolName::parse).transpose()?,
        kind: query.get("kind").map(JobKind::parse).transpose()?,
        dead: query.flag("dead")?,
        retried: is_retriable.then_some(false),
        without_stages: is_retriable,
        in_open_session: is_retriable,
        before: cursors.read(&query, JobId::parse)?,
        ..JobFilter::default()
    };
    let (names, sessions) = (own::Names::default(), visibility::SeenSessions::default());
    let read = async |before: Option<JobId>, limit| {
        let filter = JobFilter { before: before.or(filter.before), limit, ..filter.clone() };
        own::page(&state, sees, &names, &sessions, &filter).await
    };
    let is_seen = |record: &JobRecord| sessions.job(sees, record);
    let page = seen_pages::page(&state, &principal, limit, read, |record| record.id, is_seen).await?;
    Ok(HttpResponse::Ok().json(cursors.page(page, JobId::to_string, job_fields::listed_job)))
}

/// Cancels a job
///
/// A job can be cancelled in every state. The node that runs it gets a cancel frame. A finished job stays as it is.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/cancel", tag = "jobs", operation_id = "cancel_job",
    params(("id" = String, Path, description = ID)),
    responses((status = 200, description = "The job as it stands now", body = shape::Job)),
)]
pub async fn cancel(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    let id = job(&request)?;
    Query::read(&request, &[])?;
    let body = extract::no_fields(&request, payload, state.body_limits()).await?;
    if let Some(entry) = audit::operators_entry(&request, "cancel_job", format!("job:{id}")) {
        let before = state.look_up(state.incarnation().jobs.get(id)).await?.state;
        // A finished job stays as it is.
        if before != JobState::Finished {
            let before = to_wire::job_state(before).to_string();
            let after = Outcome::Cancelled.as_str().to_owned();
            audit::note(state, &request, &entry.changed(before, after)).await?;
        }
    }
    match state.call(state.incarnation().jobs.cancel(id)).await {
        Ok(record) => Ok(HttpResponse::Ok().json(job_fields::job(&record, None)?)),
        Err(actors::jobs::Refusal::NotOwner { owner }) => {
            forwarder.to_instance(&ForwardedRequest::of(&request, body), &owner).await
        }
        Err(refusal) => Err(refusal.into()),
    }
}

/// Dismisses a dead job
///
/// The job failed or timed out, and need not be retried: from now on it is not dead. It can still be retried. The dismissal
/// of a dismissed job changes nothing. Other jobs are not dismissed (`conflict`).
#[utoipa::path(
    post, path = "/v1/jobs/{id}/dismiss", tag = "jobs", operation_id = "dismiss_job",
    params(("id" = String, Path, description = ID)),
    responses((status = 200, description = "The job as it stands now", body = shape::Job)),
)]
pub async fn dismiss(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    let id = job(&request)?;
    Query::read(&request, &[])?;
    extract::no_fields(&request, payload, state.body_limits()).await?;
    let jobs = &state.incarnation().jobs;
    let mut record = state.look_up(jobs.get(id)).await?;
    let is_dismissed =
        |record: &JobRecord| record.finished.as_ref().is_some_and(|finished| finished.dismissed_at.is_some());
    // Also where it is dismissed: what a request without an answer may have done is answered when it is settled.
    if record.is_dead() || is_dismissed(&record) {
        let by = audit::operators_entry(&request, "dismiss_job", format!("job:{id}"));
        state.write(state.ledger.dismiss_jobs(&[id], by.as_ref())).await?;
        record = state.call(jobs.get(id)).await?;
    }
    if record.finished.is_none() {
        return Err(actors::jobs::Refusal::NotFinished(record.state).into());
    }
    if !is_dismissed(&record) {
        let detail = "only a job that failed or timed out, and that no other job has retried, is dismissed";
        return Err(Refusal::new(Code::Conflict, detail));
    }
    Ok(HttpResponse::Ok().json(job_fields::job(&record, None)?))
}

/// Deletes a finished job
///
/// The job is forgotten, with its payload, its result and its attempts, before its retention is over. A job that is not
/// finished is refused (`conflict`), and so is the job of a stage whose plan still waits for its result, or for the end of its
/// attempts.
#[utoipa::path(
    delete, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "delete_job",
    params(("id" = String, Path, description = ID)),
    responses((status = 204, description = "The job is forgotten")),
)]
pub async fn delete(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    let id = job(&request)?;
    Query::read(&request, &[])?;
    extract::no_fields(&request, payload, state.body_limits()).await?;
    let jobs = &state.incarnation().jobs;
    match state.look_up(jobs.get(id)).await {
        Ok(record) if record.state != JobState::Finished => {
            return Err(actors::jobs::Refusal::NotFinished(record.state).into());
        }
        // Also where there is none: what a request without an answer may have done is answered when it is settled.
        Err(refusal) if refusal.code() != Code::NotFound => return Err(refusal),
        Ok(_) | Err(_) => {}
    }
    let by = audit::operators_entry(&request, "delete_job", format!("job:{id}"));
    if state.write(state.ledger.delete_jobs(&[id], by.as_ref())).await?.is_empty() {
        // Either it is gone, or it stays.
        state.call(jobs.get(id)).await?;
        let detail =
            "the job is a stage whose plan still waits for its result, or for the end of its attempts";
        return Err(Refusal::new(Code::Conflict, detail));
    }
    Ok(HttpResponse::NoContent().finish())
}

/// The job when it is finished, when that time is up, or when this instance stops. It is read then: thousands may wait for large
/// ones. A caller whose token may do or see less by then is refused as it would be if it asked again, or goes on as it stands.
async fn waited(
    state: &State,
    principal: &mut Arc<Principal>,
    id: JobId,
    at_most: Duration,
) -> Result<JobRecord, Refusal> {
    let auth = &state.settings.auth;
    let until = Instant::now() + at_most;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            let finished = state.incarnation().jobs.until_finished(id, left);
            tokio::select! {
                finished = state.call(finished) => finished?,
                () = state.traffic.until_draining() => {}
                () = auth.until_less(principal) => {}
            }
            if !auth.knows(principal) {
                *principal = auth.again(principal)?;
                principal.require(Scope::Read)?;
                visibility::admit_job(state, principal.sees(), id).await?;
            }
        }
        let job = state.call(state.incarnation().jobs.get(id)).await?;
        if job.state == JobState::Finished || Instant::now() >= until || state.traffic.is_draining() {
            return Ok(job);
        }
    }
}

/// Accepts one job on this instance, or, if the job belongs to a session, on the session's owner. Its attempts continue the
/// span that the request continues.
async fn accept(
    forwarder: &Forwarder,
    principal: &Principal,
    continues: Option<TraceParent>,
    submission: Submission,
    forwarded: impl FnOnce() -> ForwardedRequest,
) -> Result<Routed<Accepted>, Refusal> {
    let (state, of_token) = (forwarder.state(), principal.submissions());
    let mut answers = match submission.spec.session.clone() {
        None => submit_free(state, continues, vec![submission], of_token).await,
        Some(session) => {
            let serve = async |jobs: &Jobs| {
                submit_in(jobs, &session, continues, vec![submission.clone()], of_token).await
            };
            let forwarded = forwarded();
            let is_forwarded = forwarded.is_forwarded();
            // Boxed: most jobs have no session.
            match Box::pin(forwarder.to_session(&forwarded, is_forwarded, &session, serve)).await? {
                Routed::Here(answers) => answers,
                Routed::Elsewhere(answer) => return Ok(Routed::Elsewhere(answer)),
            }
        }
    };
    Ok(Routed::Here(answers.pop().ok_or_else(Refusal::internal)??))
}

/// Has this instance accept jobs without a session, under a span that their attempts continue.
async fn submit_free(
    state: &State,
    continues: Option<TraceParent>,
    mut submissions: Vec<Submission>,
    of_token: Option<&TokenSubmissions>,
) -> Vec<Result<Accepted, actors::jobs::Refusal>> {
    let span = traces::submit(continues, &mut submissions);
    let answers = state.call(state.incarnation().jobs.submit(submissions, of_token)).await;
    traces::submitted(span, &answers);
    answers
}

/// The same for jobs of a session that this instance is to own.
async fn submit_in(
    jobs: &Jobs,
    session: &SessionId,
    continues: Option<TraceParent>,
    mut submissions: Vec<Submission>,
    of_token: Option<&TokenSubmissions>,
) -> Result<Vec<Result<Accepted, actors::jobs::Refusal>>, actors::jobs::Refusal> {
    let span = traces::submit(continues, &mut submissions);
    let answers = jobs.submit_in(session, submissions, of_token).await;
    traces::submitted(span, answers.as_deref().unwrap_or_default());
    answers
}

fn accepted_answer(accepted: &Accepted, retry_of: Option<JobId>) -> HttpResponse {
    let Accepted { id, lane, seq, created_at, is_repeated: _ } = accepted;
    HttpResponse::Accepted().insert_header((LOCATION, format!("/v1/jobs/{id}"))).json(shape::JobAccepted {
        id: id.to_string(),
        state: shape::JobState::Created,
        lane: lane.to_string(),
        seq: *seq,
        created_at: to_wire::time(*created_at),
        retry_of: retry_of.map(|id| id.to_string()),
    })
}

/// The job in the path.
pub fn job(request: &HttpRequest) -> Result<JobId, Refusal> {
    JobId::parse(extract::segment(request, "id"))
        .ok_or_else(|| Refusal::new(Code::NotFound, "no job has an id of this form"))
}

const ID: &str = "The job's id";
