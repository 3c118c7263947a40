//! Jobs over HTTP: read the request, ask the lanes (or, for what is only looked at, the ledger), show the answer.

pub mod batch;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::body::MessageBody;
use actix_web::http::header::LOCATION;
use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::{Accepted, Jobs, Submission};
use domain::job::{Backoff, Due, Needs, OnRecovery, Outcome, Priority, Route, Spec, State as JobState};
use domain::limits::{BATCH_JOBS_MAX, JOB_TIMEOUT_MS_DEFAULT, MAX_ATTEMPTS_DEFAULT};
use domain::{ClientRef, IdempotencyKey, JobId, Label, Language, PoolName, SessionId, TenantId, Timestamp};
use ledger::{JobFilter, JobKey, JobRecord, KeyScope};
use serde::Serialize;
use sha2::{Digest, Sha256};
use wire::jobs as shape;
use wire::{Code, Json};

use crate::extract::{self, Query};
use crate::limits::{JOB_WAIT_MS_MAX, WAIT_PIECE};
use crate::refusal::Refusal;
use crate::routing::{Errand, Routed};
use crate::shown;
use crate::state::State;

pub use batch::{Part, submit_part};

type Answer = Result<HttpResponse, Refusal>;
type Shared = web::Data<State>;

/// Submits a job
///
/// Accepted means durable. Under an `Idempotency-Key` every repetition of the same request gets the same job for 24
/// hours, on any instance; the same key with another request is `key_reused`.
#[utoipa::path(
    post, path = "/v1/jobs", tag = "jobs", operation_id = "submit_job",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 128, description = KEY)),
    request_body = shape::JobRequest,
    responses((status = 202, description = "Accepted, and durable", body = shape::JobAccepted)),
)]
pub async fn submit(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::bytes(&request, payload, state.job_limits()).await?;
    let asked: shape::JobRequest = extract::object(&request, &body)?;
    let principal = principal(&request, &state);
    let key = key.map(|key| kept(&principal, "job", key, hash(&asked)));
    let submission = read(&asked, key, &principal)?;
    match accept(&state, submission, || Errand::of(&request, body)).await? {
        Routed::Here(accepted) => Ok(accepted_answer(&accepted, None)),
        Routed::There(answer) => Ok(answer),
    }
}

/// Shows a job
///
/// With `wait_ms` the answer waits until the job is FINISHED, so long at most.
#[utoipa::path(
    get, path = "/v1/jobs/{id}", tag = "jobs", operation_id = "show_job",
    params(
        ("id" = String, Path, description = ID),
        ("wait_ms" = Option<u64>, Query, minimum = 0, maximum = 60000, description = "How long to wait for its end"),
    ),
    responses((status = 200, description = "The job", body = shape::Job)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    let id = job(&request)?;
    let wait = Query::read(&request, &["wait_ms"])?.number("wait_ms", JOB_WAIT_MS_MAX)?.unwrap_or(0);
    let until = Instant::now() + Duration::from_millis(wait);
    // In pieces, so that an instance that is asked to stop is not kept from it.
    let record = loop {
        let left = until.saturating_duration_since(Instant::now());
        let waited = state.call(state.incarnation().jobs.wait(id, left.min(WAIT_PIECE))).await?;
        if waited.state == JobState::Finished || Instant::now() >= until || state.traffic.is_draining() {
            break waited;
        }
    };
    let progress = state.call(state.incarnation().jobs.progress(&record)).await;
    Ok(HttpResponse::Ok().json(shown::job(&record, progress)?))
}

/// Lists jobs
///
/// Newest first, without payloads, results and past attempts. All conditions together.
#[utoipa::path(
    get, path = "/v1/jobs", tag = "jobs", operation_id = "list_jobs",
    params(
        ("state" = Option<shape::JobState>, Query, description = "In this state only"),
        ("outcome" = Option<shape::Outcome>, Query, description = "That ended so"),
        ("session" = Option<String>, Query, description = "Of this session"),
        ("tenant" = Option<String>, Query, description = "Of this tenant"),
        ("pool" = Option<String>, Query, description = "That asked for this pool"),
        ("dead" = Option<bool>, Query, description = "Only those whose attempts are used up"),
        ("cursor" = Option<String>, Query, description = "A next_cursor of this list, unchanged"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = "Most items of the page; 100 without it"),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Job>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query =
        Query::read(&request, &["state", "outcome", "session", "tenant", "pool", "dead", "cursor", "limit"])?;
    let limit = query.limit()?;
    let filter = JobFilter {
        state: query.get("state").map(JobState::parse).transpose()?,
        outcome: query.get("outcome").map(Outcome::parse).transpose()?,
        session: query.get("session").map(SessionId::parse).transpose()?,
        tenant: query.get("tenant").map(TenantId::parse).transpose()?,
        pool: query.get("pool").map(PoolName::parse).transpose()?,
        dead: query.flag("dead")?.unwrap_or(false),
        before: query.cursor("j", JobId::parse)?,
        limit: limit + 1,
    };
    let records = state.read(state.ledger.jobs(&filter)).await?;
    let page = extract::page("j", records, limit, |record| record.id.to_string(), shown::listed_job);
    Ok(HttpResponse::Ok().json(page))
}

/// Calls a job off
///
/// In whatever state it is; the node that runs it is told. Of a job that is finished nothing changes.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/cancel", tag = "jobs", operation_id = "cancel_job",
    params(("id" = String, Path, description = ID)),
    responses((status = 200, description = "The job as it stands now", body = shape::Job)),
)]
pub async fn cancel(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    let id = job(&request)?;
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, state.body_limits()).await?;
    extract::no_fields(&request, &body)?;
    match state.call(state.incarnation().jobs.cancel(id)).await {
        Ok(record) => Ok(HttpResponse::Ok().json(shown::job(&record, None)?)),
        Err(actors::jobs::Refusal::NotOwner { owner }) => state.pass_on(&request, body, &owner).await,
        Err(refusal) => Err(refusal.into()),
    }
}

/// Tries a finished job again
///
/// As a new job, due at once, at the end of its session's lane or else of this instance's.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/retry", tag = "jobs", operation_id = "retry_job",
    params(
        ("id" = String, Path, description = ID),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 128, description = KEY),
    ),
    responses((status = 202, description = "The new job", body = shape::JobAccepted)),
)]
pub async fn retry(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    let id = job(&request)?;
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::bytes(&request, payload, state.body_limits()).await?;
    extract::no_fields(&request, &body)?;
    let principal = principal(&request, &state);
    let key = key.map(|key| kept(&principal, "retry", key, Sha256::digest(id.to_string()).into()));
    let record = state.call(state.incarnation().jobs.get(id)).await?;
    if record.state != JobState::Finished {
        return Err(actors::jobs::Refusal::NotFinished(record.state).into());
    }
    let again = Submission {
        spec: record.spec,
        client_ref: record.client_ref,
        due: Due::Now,
        key,
        retry_of: Some(id),
    };
    match accept(&state, again, || Errand::of(&request, body)).await? {
        Routed::Here(accepted) => Ok(accepted_answer(&accepted, Some(id))),
        Routed::There(answer) => Ok(answer),
    }
}

/// Tries many finished jobs again
///
/// Those that are named, or the newest that fit a filter, 1,000 at most. Those that are not finished, or gone, are left
/// out. The jobs that were tried again stay as they are, and fit the filter still: beyond 1,000, name ids. Under an
/// `Idempotency-Key` each job is tried again once, however often the same request is repeated.
#[utoipa::path(
    post, path = "/v1/jobs/retry", tag = "jobs", operation_id = "retry_jobs",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 128, description = KEY)),
    request_body = shape::RetryRequest,
    responses((status = 202, description = "The new jobs", body = shape::RetryAnswer)),
)]
pub async fn retry_many(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let asked: shape::RetryRequest = extract::body(&request, payload, state.body_limits()).await?;
    let body_hash = hash(&asked);
    let filters = shape::RetryRequest { ids: Vec::new(), ..asked.clone() };
    if !asked.ids.is_empty() && filters != shape::RetryRequest::default() {
        return Err(Refusal::invalid("name ids or a filter, not both"));
    }
    let records = if asked.ids.is_empty() {
        let filter = JobFilter {
            state: Some(JobState::Finished),
            outcome: asked.outcome.map(shown::outcome_of),
            session: asked.session.as_deref().map(SessionId::parse).transpose()?,
            tenant: asked.tenant.as_deref().map(TenantId::parse).transpose()?,
            pool: asked.pool.as_deref().map(PoolName::parse).transpose()?,
            dead: asked.dead.unwrap_or(false),
            before: None,
            limit: BATCH_JOBS_MAX as u32,
        };
        if filter.outcome.is_none() && !filter.dead {
            return Err(Refusal::invalid(
                "name ids, an outcome, or \"dead\": true; all jobs are never tried again",
            ));
        }
        state.read(state.ledger.jobs(&filter)).await?
    } else {
        let read = |id: &String| {
            JobId::parse(id).ok_or_else(|| Refusal::invalid(format!("ids: {id:?} is no job's id")))
        };
        let ids = asked.ids.iter().map(read).collect::<Result<BTreeSet<_>, _>>()?;
        let mut records = Vec::new();
        for id in ids {
            records.extend(state.read(state.ledger.job(id)).await?);
        }
        records
    };
    let principal = principal(&request, &state);
    let again = |record: JobRecord| Submission {
        key: key.clone().map(|key| kept(&principal, &format!("retry {}", record.id), key, body_hash)),
        client_ref: record.client_ref,
        retry_of: Some(record.id),
        spec: record.spec,
        due: Due::Now,
    };
    let finished = records.into_iter().filter(|record| record.state == JobState::Finished);
    let (of_sessions, free): (Vec<_>, Vec<_>) = finished.partition(|record| record.spec.session.is_some());
    let free = free.into_iter().map(again).collect();
    let answers = state.call(state.incarnation().jobs.submit(free)).await;
    let answers = answers.into_iter().map(|answer| Ok(answer.map(|accepted| accepted.id.to_string())?));
    let mut answers: Vec<Result<String, Refusal>> = answers.collect();
    let errand = Errand::of(&request, Vec::new());
    for record in of_sessions {
        // Under a key for each that is the same whoever serves it.
        let id = record.id.to_string();
        let key = key.as_ref().map(|key| {
            let digest = Sha256::digest(format!("{key} {id}"));
            let key: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
            let key = IdempotencyKey::parse(&key)?;
            Ok::<_, Refusal>(kept(&principal, "retry", key, Sha256::digest(&id).into()))
        });
        let again = Submission { key: key.transpose()?, ..again(record) };
        answers.push(retry_in_session(&state, &errand, again).await);
    }
    let mut ids = Vec::with_capacity(answers.len());
    for answer in answers {
        match answer {
            Ok(id) => ids.push(id),
            Err(refusal) if ids.is_empty() => return Err(refusal),
            // Some are on their way: whoever asks again gets the others.
            Err(refusal) => tracing::debug!(%refusal, "a job was not tried again"),
        }
    }
    Ok(HttpResponse::Accepted().json(shape::RetryAnswer { retried: ids.len() as u64, ids }))
}

/// Tries a job of a session again, at the end of the session's lane, wherever its owner is.
async fn retry_in_session(state: &State, errand: &Errand, again: Submission) -> Result<String, Refusal> {
    let id = again.retry_of.ok_or_else(Refusal::internal)?;
    let key = again.key.as_ref().map(|kept| kept.scope.key.clone());
    let passed = || errand.within("POST", format!("/v1/jobs/{id}/retry"), Vec::new(), key.as_ref());
    match accept(state, again, passed).await? {
        Routed::Here(accepted) => Ok(accepted.id.to_string()),
        Routed::There(answer) => {
            let body = answer.into_body().try_into_bytes().map_err(|_| Refusal::internal())?;
            let accepted = serde_json::from_slice::<shape::JobAccepted>(&body);
            accepted.map(|accepted| accepted.id).map_err(|_| {
                let detail = format!("the job {id} could not be tried again by the owner of its session");
                Refusal::new(Code::NotOwner, detail)
            })
        }
    }
}

/// Has one job accepted: here, or, if it is one of a session, by whoever owns that, to whom the errand is sent on.
async fn accept(
    state: &State,
    submission: Submission,
    errand: impl FnOnce() -> Errand,
) -> Result<Routed<Accepted>, Refusal> {
    let mut answers = match submission.spec.session.clone() {
        None => state.call(state.incarnation().jobs.submit(vec![submission])).await,
        Some(session) => {
            let serve = async |jobs: &Jobs| jobs.submit_in(&session, vec![submission.clone()]).await;
            match state.to_session(&errand(), &session, serve).await? {
                Routed::Here(answers) => answers,
                Routed::There(answer) => return Ok(Routed::There(answer)),
            }
        }
    };
    Ok(Routed::Here(answers.pop().ok_or_else(Refusal::internal)??))
}

fn accepted_answer(accepted: &Accepted, retry_of: Option<JobId>) -> HttpResponse {
    let Accepted { id, lane, seq, created_at } = accepted;
    HttpResponse::Accepted().insert_header((LOCATION, format!("/v1/jobs/{id}"))).json(shape::JobAccepted {
        id: id.to_string(),
        state: shape::JobState::Created,
        lane: lane.to_string(),
        seq: *seq,
        created_at: shown::time(*created_at),
        retry_of: retry_of.map(|id| id.to_string()),
    })
}

/// An idempotency key and what it is for. Keys count per route and caller.
pub fn kept(principal: &str, route: &str, key: IdempotencyKey, body_hash: [u8; 32]) -> JobKey {
    JobKey { scope: KeyScope { scope: format!("{route} {principal}"), key }, body_hash }
}

/// Who asks.
pub fn principal(request: &HttpRequest, state: &State) -> String {
    state.settings.auth.principal(request.headers()).to_owned()
}

/// What was asked, in one form: the fields in their order, the payload as it was written.
pub fn hash(asked: &impl Serialize) -> [u8; 32] {
    Sha256::digest(serde_json::to_vec(asked).expect("what was read can be written")).into()
}

/// The job in the path.
pub fn job(request: &HttpRequest) -> Result<JobId, Refusal> {
    JobId::parse(extract::segment(request, "id"))
        .ok_or_else(|| Refusal::new(Code::NotFound, "no job has an id of this form"))
}

/// A job as it was asked for. In a session its `ref` is its key, unless it has another.
fn read(asked: &shape::JobRequest, key: Option<JobKey>, principal: &str) -> Result<Submission, Refusal> {
    let session = asked.session.as_deref().map(SessionId::parse).transpose()?;
    let client_ref = asked.client_ref.as_deref().map(ClientRef::parse).transpose()?;
    let key = match (&session, &client_ref) {
        (None, Some(_)) => return Err(Refusal::invalid("ref is for jobs of a session; name the session")),
        (Some(session), Some(client_ref)) if key.is_none() => {
            let key = IdempotencyKey::parse(client_ref.as_str())?;
            Some(kept(principal, &format!("session {session}"), key, hash(asked)))
        }
        _ => key,
    };
    let due = match (asked.delay_ms, asked.run_at.as_deref()) {
        (None, None) => Due::Now,
        (Some(ms), None) => Due::InMs(ms),
        (None, Some(at)) => Due::At(moment(at)?),
        (Some(_), Some(_)) => return Err(Refusal::invalid("delay_ms and run_at exclude each other")),
    };
    let spec = Spec {
        payload: Arc::from(asked.payload.as_str()),
        session,
        tenant: asked.tenant.as_deref().map(TenantId::parse).transpose()?,
        needs: needs(asked.pool.as_deref(), asked.route.as_ref(), &asked.requires)?,
        priority: Priority::new(asked.priority.unwrap_or(0))?,
        timeout_ms: asked.timeout_ms.unwrap_or(JOB_TIMEOUT_MS_DEFAULT),
        max_attempts: asked.max_attempts.unwrap_or(MAX_ATTEMPTS_DEFAULT),
        backoff: backoff(asked.backoff.clone().unwrap_or_default())?,
        on_recovery: OnRecovery::Run,
    };
    Ok(Submission { spec, client_ref, due, key, retry_of: None })
}

/// What a job asks of whoever runs it; its labels sorted, each once.
pub fn needs(
    pool: Option<&str>,
    route: Option<&shape::Route>,
    requires: &[String],
) -> Result<Needs, Refusal> {
    let route = route.map(|route| {
        Ok::<_, Refusal>(Route {
            source: Language::parse(&route.source)?,
            target: Language::parse(&route.target)?,
        })
    });
    let mut requires = requires.iter().map(|label| Label::parse(label)).collect::<Result<Vec<_>, _>>()?;
    requires.sort_unstable();
    requires.dedup();
    Ok(Needs { pool: pool.map(PoolName::parse).transpose()?, route: route.transpose()?, requires })
}

fn backoff(asked: shape::Backoff) -> Result<Backoff, Refusal> {
    let default = Backoff::default();
    let initial_ms = asked.initial_ms.unwrap_or(default.initial_ms);
    let factor_percent =
        asked.factor.map_or(default.factor_percent, |factor| (factor * 100.0).round() as u32);
    // Whoever asks for a longer first pause has not asked for a longer one to be cut.
    let max_ms = asked.max_ms.unwrap_or(default.max_ms.max(initial_ms));
    Ok(Backoff { initial_ms, factor_percent, max_ms }.check()?)
}

fn moment(text: &str) -> Result<Timestamp, Refusal> {
    let read = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339);
    let micros = read.ok().and_then(|at| i64::try_from(at.unix_timestamp_nanos() / 1_000).ok());
    let at = micros.filter(|micros| (0..=RUN_AT_MICROS_MAX).contains(micros)).map(Timestamp::from_micros);
    at.ok_or_else(|| Refusal::invalid("run_at must be a time as in 2026-01-31T08:00:00Z, from 1970 to 2255"))
}

/// What both databases keep exactly: in the year 2255.
const RUN_AT_MICROS_MAX: i64 = 1 << 53;

/// The text of a payload or result that the ledger has.
pub fn json(text: &str) -> Result<Json, Refusal> {
    Json::parse(text).map_err(|error| {
        tracing::error!(%error, "the ledger has a text that is not JSON");
        Refusal::internal()
    })
}

const ID: &str = "The job's id";
pub const KEY: &str = "The caller's name for this request: 1 to 128 visible ASCII characters";
