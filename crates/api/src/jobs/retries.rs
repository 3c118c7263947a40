//! Retries by hand: one finished job, many by their ids, or many by a filter.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use actix_web::body::MessageBody;
use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::Submission;
use domain::job::{Due, Retry, State as JobState};
use domain::limits::BATCH_JOBS_MAX;
use domain::{IdempotencyKey, JobId, PoolName, SessionId, TenantId};
use ledger::{JobFilter, JobKey, JobRecord};
use sha2::{Digest, Sha256};
use wire::Code;
use wire::jobs as shape;

use super::{Answer, Forwarding, ID, accept, accepted_answer, job};
use crate::audit;
use crate::auth::{Principal, Sees};
use crate::extract::{self, Query};
use crate::forwarder::{ForwardedRequest, Forwarder, Routed};
use crate::from_wire;
use crate::idempotency::{KEY, body_hash, job_key};
use crate::refusal::Refusal;
use crate::state::State;
use crate::visibility;

/// Retries a finished job
///
/// The retry is a new job, due at once. It goes to the end of the session's lane, or else of a lane of this instance. The
/// finished job names the new one as `retried_as`; after several retries it names the newest. The job of a plan's stage is
/// not retried (`conflict`): retry its task.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/retry", tag = "jobs", operation_id = "retry_job",
    params(
        ("id" = String, Path, description = ID),
        ("once" = Option<bool>, Query, description = "Whether to refuse (`conflict`) the retry of a job that was retried before; false by default"),
        ("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 128, description = KEY),
    ),
    responses((status = 202, description = "The new job", body = shape::JobAccepted)),
)]
pub async fn retry(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    let id = job(&request)?;
    let once = Query::read(&request, &["once"])?.flag("once")?.unwrap_or(false);
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::bytes(&request, payload, state.body_limits()).await?;
    extract::no_fields(&request, &body)?;
    let principal = Principal::of(&request);
    let retry = Retry { of: id, once };
    let key = key.map(|key| job_key(principal.name(), "retry", key, retry_hash(retry)));
    let record = state.call(state.incarnation().jobs.get(id)).await?;
    if record.state != JobState::Finished {
        return Err(actors::jobs::Refusal::NotFinished(record.state).into());
    }
    if record.spec.stage.is_some() {
        return Err(Refusal::new(Code::Conflict, "the job is a stage of a plan; retry the task of the plan"));
    }
    audit::note_operators(state, &request, "retry_job", format!("job:{id}")).await?;
    match accept(&forwarder, again(record, retry, key), || ForwardedRequest::of(&request, body)).await? {
        Routed::Here(accepted) => Ok(accepted_answer(&accepted, Some(id))),
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// Retries many finished jobs
///
/// The request names jobs by their ids or by a filter. A filter selects the newest 1,000 finished jobs that match, were
/// not retried and are no stages of plans; the same filter again selects the next 1,000. If the request names ids, jobs
/// that are not finished, no longer kept, or stages of plans are left out. Under one `Idempotency-Key` each job is
/// retried once, and a repetition of the request gets the same new jobs.
#[utoipa::path(
    post, path = "/v1/jobs/retry", tag = "jobs", operation_id = "retry_jobs",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 128, description = KEY)),
    request_body = shape::RetryRequest,
    responses((status = 202, description = "The new jobs", body = shape::RetryAnswer)),
)]
pub async fn retry_many(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let asked: shape::RetryRequest = extract::body(&request, payload, state.body_limits()).await?;
    let filters = shape::RetryRequest { ids: Vec::new(), ..asked.clone() };
    if !asked.ids.is_empty() && filters != shape::RetryRequest::default() {
        return Err(Refusal::invalid("name ids or a filter, not both"));
    }
    let keys = RetryKeys { key, principal: Principal::of(&request), body_hash: body_hash(&asked) };
    let once = asked.ids.is_empty();
    let (mut ids, records) = match once {
        true => retried_and_not(state, &asked, &keys).await?,
        false => (Vec::new(), named(state, &asked.ids, keys.principal.sees()).await?),
    };
    // A stage runs again only with its task, under the lock of its tenant.
    let may_retry = |record: &JobRecord| record.state == JobState::Finished && record.spec.stage.is_none();
    let finished = records.into_iter().filter(may_retry);
    let (of_sessions, free): (Vec<_>, Vec<_>) = finished.partition(|record| record.spec.session.is_some());
    let submission = |record: JobRecord| {
        let retry = Retry { of: record.id, once };
        let key = keys.of(&record, once)?;
        Ok::<_, Refusal>(again(record, retry, key))
    };
    let free = free.into_iter().map(submission).collect::<Result<Vec<_>, _>>()?;
    let count = free.len() + of_sessions.len();
    audit::note_operators(state, &request, "retry_jobs", format!("jobs:{count}")).await?;
    let answers = state.call(state.incarnation().jobs.submit(free)).await;
    let answers = answers.into_iter().map(|answer| match answer {
        Ok(accepted) => Ok(Some(accepted.id.to_string())),
        Err(actors::jobs::Refusal::AlreadyRetried) => Ok(None),
        Err(refusal) => Err(refusal.into()),
    });
    let mut answers: Vec<Result<Option<String>, Refusal>> = answers.collect();
    let forwarded = ForwardedRequest::of(&request, Vec::new());
    for record in of_sessions {
        answers.push(retry_in_session(&forwarder, &forwarded, submission(record)?).await);
    }
    for answer in answers {
        match answer {
            Ok(id) => ids.extend(id),
            Err(refusal) if ids.is_empty() => return Err(refusal),
            // Some are durable already: a repetition of the request answers these, and retries the others.
            Err(refusal) => tracing::debug!(%refusal, "a job was not retried"),
        }
    }
    Ok(HttpResponse::Accepted().json(shape::RetryAnswer { retried: ids.len() as u64, ids }))
}

/// The submission that repeats a finished job.
fn again(record: JobRecord, retry: Retry, key: Option<JobKey>) -> Submission {
    let JobRecord { spec, client_ref, .. } = record;
    Submission { spec, client_ref, due: Due::Now, key, retry: Some(retry) }
}

/// The hash of one retry, for its idempotency key.
fn retry_hash(retry: Retry) -> [u8; 32] {
    let once = if retry.once { " once" } else { "" };
    Sha256::digest(format!("{}{once}", retry.of)).into()
}

/// The idempotency keys under which the jobs of one request are retried.
struct RetryKeys {
    key: Option<IdempotencyKey>,
    principal: Arc<Principal>,
    body_hash: [u8; 32],
}

impl RetryKeys {
    fn of(&self, record: &JobRecord, once: bool) -> Result<Option<JobKey>, Refusal> {
        let Some(key) = &self.key else { return Ok(None) };
        let id = record.id;
        if record.spec.session.is_none() {
            return Ok(Some(job_key(
                self.principal.name(),
                &format!("retry {id}"),
                key.clone(),
                self.body_hash,
            )));
        }
        // The session's owner may be another instance, which gets a request to retry this one job.
        let digest = Sha256::digest(format!("{key} {id}"));
        let key: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let body_hash = retry_hash(Retry { of: id, once });
        Ok(Some(job_key(self.principal.name(), "retry", IdempotencyKey::parse(&key)?, body_hash)))
    }
}

/// The jobs with these ids; ids without a job are left out.
async fn named(state: &State, ids: &[String], sees: &Sees) -> Result<Vec<JobRecord>, Refusal> {
    let read =
        |id: &String| JobId::parse(id).ok_or_else(|| Refusal::invalid(format!("ids: {id:?} is no job's id")));
    let ids = ids.iter().map(read).collect::<Result<BTreeSet<_>, _>>()?;
    let mut records = Vec::new();
    for id in ids {
        if let Some(record) = state.read(state.ledger.job(id)).await?
            && visibility::job(state, sees, &record).await?
        {
            records.push(record);
        }
    }
    Ok(records)
}

/// For a request's filter: the new jobs that the same request has made before under its key, and the jobs that it still
/// has to retry.
async fn retried_and_not(
    state: &State,
    asked: &shape::RetryRequest,
    keys: &RetryKeys,
) -> Result<(Vec<String>, Vec<JobRecord>), Refusal> {
    let filter = JobFilter {
        state: Some(JobState::Finished),
        outcome: asked.outcome.map(from_wire::outcome),
        session: asked.session.as_deref().map(SessionId::parse).transpose()?,
        tenant: asked.tenant.as_deref().map(TenantId::parse).transpose()?,
        pool: asked.pool.as_deref().map(PoolName::parse).transpose()?,
        dead: asked.dead,
        retried: Some(false),
        // A stage runs again only with its task, under the lock of its tenant.
        without_stages: true,
        before: None,
        limit: BATCH_JOBS_MAX as u32,
    };
    if filter.outcome.is_none() && filter.dead != Some(true) {
        return Err(Refusal::invalid(
            "name ids, an outcome, or \"dead\": true; a filter that matches all jobs is refused",
        ));
    }
    // In this order: a job that is retried between the two reads is in both, not in none.
    let sees = keys.principal.sees();
    let mut records = seen(state, sees, &filter).await?;
    if keys.key.is_none() {
        return Ok((Vec::new(), records));
    }
    // A retried job is not dead any more.
    let retried = JobFilter { retried: Some(true), dead: None, ..filter };
    let retried = seen(state, sees, &retried).await?;
    let job_keys = retried.iter().map(|record| keys.of(record, true)).collect::<Result<Vec<_>, _>>()?;
    let job_keys: Vec<_> = job_keys.into_iter().flatten().collect();
    let scopes: Vec<_> = job_keys.iter().map(|key| key.scope.clone()).collect();
    let earlier = state.read(state.ledger.kept_job_keys(&scopes)).await?;
    let hashes: HashMap<_, _> =
        job_keys.iter().map(|key| ((&key.scope.scope, &key.scope.key), key.body_hash)).collect();
    if earlier.iter().any(|(at, kept)| hashes.get(&(&at.scope, &at.key)) != Some(&kept.body_hash)) {
        return Err(actors::jobs::Refusal::KeyReused.into());
    }
    if let Some(first) = earlier.iter().map(|(_, kept)| kept.created_at).min() {
        // This request was served before. It does not retry jobs that ended since, its own retries among them.
        let made: HashSet<_> = retried.iter().map(|record| record.id).collect();
        records.retain(|record| {
            let finished_at = record.finished.as_ref().map(|finished| finished.finished_at);
            finished_at.is_some_and(|at| at <= first) && !made.contains(&record.id)
        });
    }
    Ok((earlier.into_iter().map(|(_, kept)| kept.job.to_string()).collect(), records))
}

/// The newest jobs that match the filter and are seen.
async fn seen(state: &State, sees: &Sees, filter: &JobFilter) -> Result<Vec<JobRecord>, Refusal> {
    let read = async |before: Option<JobId>| {
        state.read(state.ledger.jobs(&JobFilter { before, ..filter.clone() })).await
    };
    let is_seen = async |record: &JobRecord| visibility::job(state, sees, record).await;
    let mut records = visibility::seen(state, sees, filter.limit, read, |record| record.id, is_seen).await?;
    records.truncate(filter.limit as usize);
    Ok(records)
}

/// Retries a job of a session at the end of the session's lane, on whichever instance owns it. `None` if the job was to be
/// retried once and another request has retried it.
async fn retry_in_session(
    forwarder: &Forwarder,
    forwarded: &ForwardedRequest,
    again: Submission,
) -> Result<Option<String>, Refusal> {
    let retry = again.retry.ok_or_else(Refusal::internal)?;
    let id = retry.of;
    let key = again.key.as_ref().map(|known| known.scope.key.clone());
    let query = if retry.once { "?once=true" } else { "" };
    let passed = || forwarded.within("POST", format!("/v1/jobs/{id}/retry{query}"), Vec::new(), key.as_ref());
    let state = forwarder.state();
    match accept(forwarder, again, passed).await {
        Ok(Routed::Here(accepted)) => Ok(Some(accepted.id.to_string())),
        Ok(Routed::Elsewhere(answer)) => {
            let body = answer.into_body().try_into_bytes().map_err(|_| Refusal::internal())?;
            if let Ok(accepted) = serde_json::from_slice::<shape::JobAccepted>(&body) {
                return Ok(Some(accepted.id));
            }
            if retry.once && is_retried(state, id).await? {
                return Ok(None);
            }
            let detail = format!("the owner of the session of job {id} did not retry the job");
            Err(Refusal::new(Code::NotOwner, detail))
        }
        Err(refusal) => {
            // A session that is closed refuses with the same code.
            let may_be_retried = retry.once && refusal.code() == Code::Conflict;
            if may_be_retried && is_retried(state, id).await? { Ok(None) } else { Err(refusal) }
        }
    }
}

async fn is_retried(state: &State, id: JobId) -> Result<bool, Refusal> {
    let record = state.read(state.ledger.job(id)).await?;
    Ok(record.and_then(|record| record.finished?.retried_as).is_some())
}
