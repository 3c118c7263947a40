//! Retries by hand: one finished job, many by their ids, or many by a filter.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use actix_web::body::MessageBody;
use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::{Accepted, Submission};
use domain::job::{Due, Retry, State as JobState};
use domain::limits::BATCH_JOBS_MAX;
use domain::{AuditEntry, IdempotencyKey, JobId, JobKind, PoolName, SessionId, TenantId};
use futures_util::{StreamExt, TryStreamExt};
use ledger::{JobFilter, JobKey, JobRecord, KeptJobKey, KeyScope};
use sha2::{Digest, Sha256};
use wire::Code;
use wire::jobs as shape;

use super::{Answer, Forwarding, ID, accept, accepted_answer, job, own};
use crate::audit;
use crate::auth::{Principal, Sees};
use crate::extract::{self, Query};
use crate::forwarder::{ForwardedRequest, Forwarder, Routed};
use crate::from_wire;
use crate::idempotency::{KEY, admit, body_hash, job_key};
use crate::limits::{RETRY_PART_BYTES, RETRY_PART_JOBS, RETRY_READS_AT_ONCE};
use crate::peer_credential;
use crate::refusal::{Refusal, count_defects};
use crate::seen_pages;
use crate::shares::{Kind, Share};
use crate::state::State;
use crate::traces;
use crate::visibility;

/// Why the job of a plan's stage is not retried.
const A_STAGE: &str = "the job is a stage of a plan; retry the task of the plan";

/// Retries a finished job
///
/// The retry is a new job, due at once. It goes to the end of the session's lane, or else of a lane of this instance. The
/// finished job names the new one as `retried_as`; after several retries it names the newest. The job of a plan's stage is
/// not retried (`conflict`): retry its task. A repetition under its `Idempotency-Key` has the same answer, also when the
/// finished job was deleted since.
#[utoipa::path(
    post, path = "/v1/jobs/{id}/retry", tag = "jobs", operation_id = "retry_job",
    params(
        ("id" = String, Path, description = ID),
        ("once" = Option<bool>, Query, description = "Whether to refuse (`conflict`) the retry of a job that was retried before; false by default"),
        ("Idempotency-Key" = Option<String>, Header, description = KEY),
    ),
    responses((status = 202, description = "The new job", body = shape::JobAccepted)),
)]
pub async fn retry(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    let id = job(&request)?;
    let once = Query::read(&request, &["once"])?.is_set("once")?;
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::no_fields(&request, payload, state.body_limits()).await?;
    let principal = Principal::of(&request);
    let retry = Retry { of: id, once };
    let key = key.map(|key| job_key(principal.name(), "retry", key, retry_hash(retry)));
    if let Some(key) = &key
        && let Some(accepted) = kept_retry(state, key).await?
    {
        if !sees_retry(state, principal.sees(), id, accepted.id).await? {
            visibility::admit_job(state, principal.sees(), id).await?;
        }
        return Ok(accepted_answer(&accepted, Some(id)));
    }
    visibility::admit_job(state, principal.sees(), id).await?;
    // The keys of a bulk operation are its own, not its caller's.
    if !peer_credential::is_for_bulk(&request) {
        admit(state, &principal, key.as_ref())?;
    }
    let record = state.look_up(state.incarnation().jobs.get(id)).await?;
    if record.state != JobState::Finished {
        return Err(actors::jobs::Refusal::NotFinished(record.state).into());
    }
    if record.spec.stage.is_some() {
        return Err(Refusal::new(Code::Conflict, A_STAGE));
    }
    audit::note_operators(state, &request, "retry_job", format!("job:{id}")).await?;
    let continues = traces::of_request(request.headers());
    let forwarded = || ForwardedRequest::of(&request, body);
    match accept(&forwarder, &principal, continues, again(record, retry, key), forwarded).await? {
        Routed::Here(accepted) => Ok(accepted_answer(&accepted, Some(id))),
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// Retries many finished jobs
///
/// The request names jobs by their ids or by a filter of one condition at least. A filter selects the newest 1,000 finished
/// jobs that match, were not retried and are neither stages of plans nor of closed sessions; the same filter again selects the
/// next 1,000. Jobs are read and retried in parts, all within the time of one request. `results` names the jobs that were not
/// retried: those that are not finished, are stages of plans or are of closed sessions (`conflict`), that are not kept
/// (`not_found`), or for which there was no room or no time (`overloaded`, `ledger_unavailable`): send the same request again
/// under its `Idempotency-Key`. Under one key each job is retried once: a repetition of the request is about the jobs that the
/// first one selected, and gets the same new ones. Without a key, a repetition with `ids` retries the others twice.
#[utoipa::path(
    post, path = "/v1/jobs/retry", tag = "jobs", operation_id = "retry_jobs",
    params(("Idempotency-Key" = Option<String>, Header, description = KEY)),
    request_body = shape::RetryRequest,
    responses((status = 202, description = "The new jobs", body = shape::RetryAnswer)),
)]
pub async fn retry_many(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let asked: shape::RetryRequest = extract::body(&request, payload, state.body_limits()).await?;
    let begun = Instant::now();
    let filters = shape::RetryRequest { ids: Vec::new(), ..asked.clone() };
    if !asked.ids.is_empty() && filters != shape::RetryRequest::default() {
        return Err(Refusal::invalid("name ids or a filter, not both"));
    }
    let keys = RetryKeys { key, principal: Principal::of(&request), body_hash: body_hash(&asked) };
    let once = asked.ids.is_empty();
    let deadline = begun + state.settings.request_timeout;
    let list_until = begun + state.settings.request_timeout / 2;
    let jobs = selected(state, &asked, &keys, list_until).await?;
    // A job that was retried before may be gone by now, or would be left out.
    let earlier = keys.made(state, &jobs, once).await?;
    let earlier = seen_retries(state, keys.principal.sees(), earlier, deadline).await?;
    let left: Vec<_> = jobs.iter().copied().filter(|job| !earlier.contains_key(job)).collect();
    let made = earlier.into_iter().map(|(job, retry)| (job, retry.to_string())).collect();
    let entry = audit::operators_entry(&request, "retry_jobs", format!("jobs:{}", left.len()));
    let what = entry.is_some().then(|| serde_json::to_string(&asked)).transpose();
    let what = what.map_err(|_| Refusal::internal())?;
    let mut retries = Retries {
        to_note: entry.map(|entry| (&request, entry.changed(None::<String>, what))),
        once,
        made,
        ..Retries::new(&forwarder, ForwardedRequest::noted(&request), keys, false, deadline)
    };
    let noted = retries.run(&left).await;
    let Retries { mut made, not_retried, defects, hidden, failure, .. } = retries;
    visibility::log_hidden_jobs(&unknown_job(), &hidden);
    let refused = noted.err().or_else(|| failure.filter(|_| made.is_empty()));
    // The gate counts a defect that refuses the whole request.
    if refused.as_ref().is_none_or(|refusal| !refusal.is_own_defect()) {
        count_defects(defects);
    }
    match refused {
        Some(refusal) => Err(refusal),
        // Some are durable: a repetition of the request answers these, and retries the others.
        None => {
            // In the order of the selection, so that a repetition has the same one.
            let ids: Vec<_> = jobs.iter().filter_map(|job| made.remove(job)).collect();
            Ok(HttpResponse::Accepted().json(shape::RetryAnswer {
                retried: ids.len() as u64,
                ids,
                results: not_retried.into_iter().map(not_retried_to_wire).collect(),
            }))
        }
    }
}

/// Retries of one request or bulk operation, in parts that are small in memory.
pub struct Retries<'f> {
    forwarder: &'f Forwarder,
    /// The request with its entry, until the audit has it.
    to_note: Option<(&'f HttpRequest, AuditEntry)>,
    forwarded: ForwardedRequest,
    keys: RetryKeys,
    /// Whether a job that was retried before is left out.
    once: bool,
    /// Whether a job that was dismissed before is left out.
    leaves_dismissed: bool,
    /// When the answer is due, whatever is done by then.
    deadline: Instant,
    /// The new jobs, by those that they retry.
    made: HashMap<JobId, String>,
    /// The other jobs, each with the reason.
    not_retried: Vec<(JobId, Refusal)>,
    /// For how many of them the reason was a defect of this instance.
    defects: u64,
    /// Those of them that the caller does not see.
    hidden: Vec<JobId>,
    /// The first refusal that is not about its job, of a retry that was tried, or for which there was no time; the first one of
    /// a retry that may be done, if there is one.
    failure: Option<Refusal>,
}

impl<'f> Retries<'f> {
    /// Retries of each job once that the audit has noted. `leaves_dismissed` says whether they are about dead jobs alone, so
    /// that those that were dismissed since they were found are left out.
    pub fn new(
        forwarder: &'f Forwarder,
        forwarded: ForwardedRequest,
        keys: RetryKeys,
        leaves_dismissed: bool,
        deadline: Instant,
    ) -> Self {
        Self {
            forwarder,
            to_note: None,
            forwarded,
            keys,
            once: true,
            leaves_dismissed,
            deadline,
            made: HashMap::new(),
            not_retried: Vec::new(),
            defects: 0,
            hidden: Vec::new(),
            failure: None,
        }
    }

    /// How many new jobs there are, and which jobs were not retried. Jobs that another request has retried are in neither.
    /// Counts the defects.
    pub fn into_outcome(self) -> (u64, Vec<(JobId, Refusal)>) {
        count_defects(self.defects);
        (self.made.len() as u64, self.not_retried)
    }

    /// Reads the jobs and retries them, part by part. The audit has its entry before the first one is retried; without it
    /// none is.
    ///
    /// # Errors
    /// The audit takes no entry.
    pub async fn run(&mut self, jobs: &[JobId]) -> Result<(), Refusal> {
        let forwarder = self.forwarder;
        let state = forwarder.state();
        let (principal, leaves_dismissed) = (Arc::clone(&self.keys.principal), self.leaves_dismissed);
        let principal = &*principal;
        let read = |id: JobId| async move {
            let found = retriable(state, principal.sees(), id, leaves_dismissed).await?;
            let Some(record) = found else { return Ok(None) };
            let share = state.shares.take(Kind::Reading, principal.used(), record.spec.text_bytes())?;
            Ok::<_, Refusal>(Some((record, share)))
        };
        let mut records = std::pin::pin!(
            futures_util::stream::iter(jobs.iter().copied()).map(read).buffered(RETRY_READS_AT_ONCE)
        );
        let mut done = 0;
        while done < jobs.len() {
            let begun = Instant::now();
            // The rest of the time is for the retries of what was read.
            let half_time = begun + self.deadline.saturating_duration_since(begun) / 2;
            let (mut part, mut bytes) = (Vec::new(), 0);
            while done < jobs.len()
                && part.len() < RETRY_PART_JOBS
                && bytes < RETRY_PART_BYTES
                && Instant::now() < self.deadline
            {
                let until = if part.is_empty() { self.deadline } else { half_time };
                let Ok(read) = tokio::time::timeout_at(until.into(), records.next()).await else { break };
                match read {
                    Some(Ok(Some((record, share)))) => {
                        bytes += share.amount();
                        part.push((record, share));
                    }
                    Some(Ok(None)) => {
                        self.hidden.push(jobs[done]);
                        self.leave_out(jobs[done], unknown_job());
                    }
                    Some(Err(refusal)) if refusal.code().is_retryable() => self.failed(jobs[done], refusal),
                    Some(Err(refusal)) => self.leave_out(jobs[done], refusal),
                    None => return Ok(()),
                }
                done += 1;
            }
            if Instant::now() >= self.deadline {
                let detail = "there was no time left for this job; send the same request again under its Idempotency-Key";
                let read = part.iter().map(|(record, _)| record.id);
                for id in read.chain(jobs[done..].iter().copied()) {
                    self.failed(id, Refusal::new(Code::Overloaded, detail));
                }
                return Ok(());
            }
            if !part.is_empty()
                && let Some((request, entry)) = self.to_note.take()
            {
                audit::note(state, request, &entry).await?;
            }
            self.retry(part).await;
        }
        Ok(())
    }

    /// Retries jobs that were read, which keep their shares until all are retried.
    async fn retry(&mut self, part: Vec<(JobRecord, Share)>) {
        let (records, _shares): (Vec<JobRecord>, Vec<Share>) = part.into_iter().unzip();
        let (of_sessions, free): (Vec<_>, Vec<_>) =
            records.into_iter().partition(|record| record.spec.session.is_some());
        let state = self.forwarder.state();
        let (mut ids, mut submissions) = (Vec::with_capacity(free.len()), Vec::with_capacity(free.len()));
        for record in free {
            let id = record.id;
            match self.submission(record) {
                Ok(submission) => {
                    ids.push(id);
                    submissions.push(submission);
                }
                Err(refusal) => self.failed(id, refusal),
            }
        }
        if !ids.is_empty() {
            let incarnation = state.incarnation();
            let submit = incarnation.jobs.submit(submissions, self.forwarded.principal().submissions());
            let submit = tokio::time::timeout_at(self.deadline.into(), submit);
            match state.call(submit).await {
                Ok(answers) => {
                    for (id, answer) in ids.into_iter().zip(answers) {
                        match answer {
                            Ok(accepted) => {
                                self.made.insert(id, accepted.id.to_string());
                            }
                            Err(actors::jobs::Refusal::AlreadyRetried) => {}
                            Err(refusal) => self.failed(id, refusal.into()),
                        }
                    }
                }
                Err(_late) => {
                    for id in ids {
                        self.failed(id, actors::jobs::Refusal::LedgerUnavailable.into());
                    }
                }
            }
        }
        for record in of_sessions {
            let id = record.id;
            let retried = match self.submission(record) {
                Ok(submission) => {
                    let retry = retry_in_session(self.forwarder, &self.forwarded, submission);
                    let retried = tokio::time::timeout_at(self.deadline.into(), retry).await;
                    retried.unwrap_or_else(|_late| Err(actors::jobs::Refusal::LedgerUnavailable.into()))
                }
                Err(refusal) => Err(refusal),
            };
            match retried {
                Ok(retry) => self.made.extend(retry.map(|retry| (id, retry))),
                Err(refusal) => self.failed(id, refusal),
            }
        }
    }

    fn submission(&self, record: JobRecord) -> Result<Submission, Refusal> {
        let retry = Retry { of: record.id, once: self.once };
        let key = self.keys.of(record.id, record.spec.session.is_some(), self.once)?;
        // The keys of a bulk operation are its own, not its caller's.
        if !self.forwarded.is_for_bulk() {
            admit(self.forwarder.state(), &self.keys.principal, key.as_ref())?;
        }
        Ok(again(record, retry, key))
    }

    fn failed(&mut self, id: JobId, refusal: Refusal) {
        tracing::debug!(%refusal, job = %id, "a job was not retried");
        // That the job or its session does not allow it, or is gone, is no answer to a request about many.
        if !matches!(refusal.code(), Code::Conflict | Code::NotFound)
            && self.failure.as_ref().is_none_or(|first| outweighs(&refusal, first))
        {
            self.failure = Some(refusal.clone());
        }
        self.leave_out(id, refusal);
    }

    fn leave_out(&mut self, id: JobId, refusal: Refusal) {
        self.defects += u64::from(refusal.is_own_defect());
        self.not_retried.push((id, refusal));
    }
}

/// Whether this refusal of one retry is the answer to a request about many rather than the first one: that one says that
/// nothing was done, and this one that its retry may be.
fn outweighs(refusal: &Refusal, first: &Refusal) -> bool {
    let may_be_done = |refusal: &Refusal| matches!(refusal.code(), Code::LedgerUnavailable | Code::Internal);
    may_be_done(refusal) && !may_be_done(first)
}

fn not_retried_to_wire((id, refusal): (JobId, Refusal)) -> shape::NotRetried {
    let (owner, owner_url) = refusal.owner_and_url();
    let (code, detail) = refusal.code_and_detail();
    shape::NotRetried { retry_of: id.to_string(), code: code.to_string(), detail, owner, owner_url }
}

/// What a retry of one job made under this key. The job may be gone by now.
async fn kept_retry(state: &State, key: &JobKey) -> Result<Option<Accepted>, Refusal> {
    let kept = state.read(state.ledger.kept_job_keys(std::slice::from_ref(&key.scope))).await?;
    let Some((_, kept)) = kept.into_iter().next() else { return Ok(None) };
    if kept.body_hash != key.body_hash {
        return Err(actors::jobs::Refusal::KeyReused.into());
    }
    let KeptJobKey { job, lane, seq, created_at, .. } = kept;
    Ok(Some(Accepted { id: job, lane, seq, created_at, is_repeated: true }))
}

/// Whether the caller sees a retry that was made, by its job or by the job that it retries. The caller's patterns may have
/// changed since. Where both jobs are gone, the answer tells nothing of any job, and this caller got it before: then it is seen.
async fn sees_retry(state: &State, sees: &Sees, of: JobId, retry: JobId) -> Result<bool, Refusal> {
    if sees.everything() {
        return Ok(true);
    }
    let sees_new = visibility::job_of_many(state, sees, retry).await?;
    if sees_new == Some(true) {
        return Ok(true);
    }
    let sees_old = visibility::job_of_many(state, sees, of).await?;
    Ok(sees_old == Some(true) || (sees_new.is_none() && sees_old.is_none()))
}

/// Those of the retries that were made which the caller sees, each by the job that it retries. All are looked at in time, or
/// none counts.
async fn seen_retries(
    state: &State,
    sees: &Sees,
    made: HashMap<JobId, JobId>,
    until: Instant,
) -> Result<HashMap<JobId, JobId>, Refusal> {
    let look = |(of, retry): (JobId, JobId)| async move {
        Ok::<_, Refusal>(sees_retry(state, sees, of, retry).await?.then_some((of, retry)))
    };
    let looks = futures_util::stream::iter(made).map(look).buffered(RETRY_READS_AT_ONCE);
    let seen = looks.try_filter_map(async |seen| Ok(seen)).try_collect();
    tokio::time::timeout_at(until.into(), seen).await.unwrap_or_else(|_late| {
        let detail = "there was no time left to look at the jobs that were retried before; send the same request again";
        Err(Refusal::new(Code::Overloaded, detail))
    })
}

/// A job that may be retried, without what came of it; `None` for one that the caller does not see.
async fn retriable(
    state: &State,
    sees: &Sees,
    id: JobId,
    leaves_dismissed: bool,
) -> Result<Option<JobRecord>, Refusal> {
    let mut record = state.read(state.ledger.job(id)).await?.ok_or_else(unknown_job)?;
    if !visibility::job(state, sees, &record).await? {
        return Ok(None);
    }
    if record.state != JobState::Finished {
        return Err(actors::jobs::Refusal::NotFinished(record.state).into());
    }
    // A stage runs again only with its task, under the lock of its tenant.
    if record.spec.stage.is_some() {
        return Err(Refusal::new(Code::Conflict, A_STAGE));
    }
    let finished = record.finished.take();
    if leaves_dismissed && finished.is_some_and(|finished| finished.dismissed_at.is_some()) {
        return Err(Refusal::new(Code::Conflict, "the job was dismissed"));
    }
    Ok(Some(record))
}

fn unknown_job() -> Refusal {
    Refusal::new(Code::NotFound, "no such job, or this token does not see it")
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

/// The idempotency keys under which the jobs of one request or bulk operation are retried.
pub struct RetryKeys {
    key: Option<IdempotencyKey>,
    principal: Arc<Principal>,
    body_hash: [u8; 32],
}

impl RetryKeys {
    pub const fn new(key: Option<IdempotencyKey>, principal: Arc<Principal>, body_hash: [u8; 32]) -> Self {
        Self { key, principal, body_hash }
    }

    /// What the request itself is kept under: its selection of jobs.
    fn of_selection(&self) -> Option<JobKey> {
        let key = self.key.clone()?;
        Some(job_key(self.principal.name(), "retry_jobs", key, self.body_hash))
    }

    /// Those of these jobs that were retried under these keys, each with the new job.
    pub async fn made(
        &self,
        state: &State,
        jobs: &[JobId],
        once: bool,
    ) -> Result<HashMap<JobId, JobId>, Refusal> {
        if self.key.is_none() {
            return Ok(HashMap::new());
        }
        let mut of_scopes = HashMap::new();
        for id in jobs {
            for is_in_session in [false, true] {
                if let Some(JobKey { scope, body_hash }) = self.of(*id, is_in_session, once)? {
                    of_scopes.insert((scope.scope, scope.key), (*id, body_hash));
                }
            }
        }
        let scopes: Vec<_> = of_scopes
            .keys()
            .map(|(scope, key)| KeyScope { scope: scope.clone(), key: key.clone() })
            .collect();
        let kept = state.read(state.ledger.kept_job_keys(&scopes)).await?;
        let retried = |(at, kept): (KeyScope, KeptJobKey)| {
            let (id, body_hash) = of_scopes.get(&(at.scope, at.key))?;
            // A key that another request used is refused when the job is retried.
            (kept.body_hash == *body_hash).then_some((*id, kept.job))
        };
        Ok(kept.into_iter().filter_map(retried).collect())
    }

    fn of(&self, id: JobId, is_in_session: bool, once: bool) -> Result<Option<JobKey>, Refusal> {
        let Some(key) = &self.key else { return Ok(None) };
        if !is_in_session {
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

/// The jobs with these ids, each once.
fn named(ids: &[String]) -> Result<Vec<JobId>, Refusal> {
    let read =
        |id: &String| JobId::parse(id).ok_or_else(|| Refusal::invalid(format!("ids: {id:?} is no job's id")));
    Ok(ids.iter().map(read).collect::<Result<BTreeSet<_>, _>>()?.into_iter().collect())
}

/// The jobs that a request retries, in time: those that it names, or the newest that its filter finds. What a request with a
/// key has selected is kept under that, and a repetition selects nothing more.
async fn selected(
    state: &State,
    asked: &shape::RetryRequest,
    keys: &RetryKeys,
    until: Instant,
) -> Result<Vec<JobId>, Refusal> {
    let filter = JobFilter {
        state: Some(JobState::Finished),
        outcome: asked.outcome.map(from_wire::outcome).transpose()?,
        session: asked.session.as_deref().map(SessionId::parse).transpose()?,
        tenant: asked.tenant.as_deref().map(TenantId::parse).transpose()?,
        pool: asked.pool.as_deref().map(PoolName::parse).transpose()?,
        kind: asked.kind.as_deref().map(JobKind::parse).transpose()?,
        dead: asked.dead,
        retried: Some(false),
        // A stage runs again only with its task, under the lock of its tenant.
        without_stages: true,
        in_open_session: true,
        limit: BATCH_JOBS_MAX as u32,
        ..JobFilter::default()
    };
    if *asked == shape::RetryRequest::default() {
        return Err(Refusal::invalid(
            "name ids, or one condition at least; a filter that matches all jobs is refused",
        ));
    }
    if asked.state.is_some_and(|state| state != shape::JobState::Finished) {
        return Err(Refusal::invalid("only finished jobs are retried; name no state, or FINISHED"));
    }
    let named = named(&asked.ids)?;
    let select = async || match named.is_empty() {
        true => seen(state, &keys.principal, &filter, until).await,
        false => Ok(named.clone()),
    };
    let Some(key) = keys.of_selection() else { return select().await };
    admit(state, &keys.principal, Some(&key))?;
    let kept = match state.read(state.ledger.kept_selection(&key.scope)).await? {
        Some(kept) => kept,
        None => state.read(state.ledger.keep_selection(&key, &select().await?)).await?,
    };
    if kept.body_hash != key.body_hash {
        return Err(actors::jobs::Refusal::KeyReused.into());
    }
    Ok(kept.jobs)
}

/// The newest jobs that match the filter and are seen, as many as are found in time. One page is in memory at a
/// time, and takes its bytes meanwhile.
async fn seen(
    state: &State,
    principal: &Principal,
    filter: &JobFilter,
    until: Instant,
) -> Result<Vec<JobId>, Refusal> {
    let (mut found, mut before) = (Vec::new(), None);
    let (sees, mut room) = (principal.sees(), state.shares.none(Kind::Reading, principal.used()));
    let (sessions, names) = (visibility::SeenSessions::default(), own::Names::default());
    loop {
        let limit = filter.limit - found.len() as u32;
        let page = JobFilter { before, limit, ..filter.clone() };
        let records = own::page(state, sees, &names, &sessions, &page).await?;
        seen_pages::take(&mut room, seen_pages::bytes_of(&records))?;
        let Some(last) = records.last() else { return Ok(found) };
        before = Some(last.id);
        found.extend(records.iter().filter(|record| sessions.job(sees, record)).map(|record| record.id));
        if found.len() >= filter.limit as usize {
            return Ok(found);
        }
        if Instant::now() >= until {
            if found.is_empty() {
                let detail = "no job that matches was found in time; narrow the filter";
                return Err(Refusal::new(Code::Overloaded, detail));
            }
            return Ok(found);
        }
    }
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
    let passed = || forwarded.within("POST", format!("/v1/jobs/{id}/retry{query}"), key.as_ref());
    let answer = accept(forwarder, forwarded.principal(), forwarded.continues(), again, passed).await;
    let retried = match answer {
        Ok(Routed::Here(accepted)) => Ok(accepted.id.to_string()),
        Ok(Routed::Elsewhere(answer)) => retried_elsewhere(id, answer),
        Err(refusal) => Err(refusal),
    };
    match retried {
        Err(refusal) if retry.once && may_be_anothers(refusal.code()) => {
            if is_retried(forwarder.state(), id).await? { Ok(None) } else { Err(refusal) }
        }
        retried => retried.map(Some),
    }
}

/// The new job that another instance has answered.
fn retried_elsewhere(id: JobId, answer: HttpResponse) -> Result<String, Refusal> {
    let body = answer.into_body().try_into_bytes().map_err(|_| Refusal::internal())?;
    if let Ok(accepted) = serde_json::from_slice::<shape::JobAccepted>(&body) {
        return Ok(accepted.id);
    }
    let unread = || {
        let detail = format!("the owner of the session of job {id} did not retry the job");
        Refusal::new(Code::NotOwner, detail)
    };
    Err(Refusal::passed_back(&body).unwrap_or_else(unread))
}

/// Whether a retry may be refused so because another request has retried the job. A session that is closed refuses with the same
/// code. Of one whose outcome is unknown the job may have been retried by this request.
fn may_be_anothers(code: Code) -> bool {
    code == Code::Conflict
}

async fn is_retried(state: &State, id: JobId) -> Result<bool, Refusal> {
    let record = state.read(state.ledger.job(id)).await?;
    Ok(record.and_then(|record| record.finished?.retried_as).is_some())
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderMap;

    use super::*;
    use crate::request_id::RequestId;

    #[test]
    fn of_many_retries_one_that_may_be_done_is_told_of_whichever_was_refused_first() {
        let full = Refusal::new(Code::Overloaded, "full");
        for unsure in [Refusal::perhaps_written(), Refusal::internal()] {
            assert!(outweighs(&unsure, &full), "{unsure}");
            assert!(!outweighs(&full, &unsure) && !outweighs(&unsure, &unsure), "{unsure}");
        }
        assert!(!outweighs(&full, &full), "the first is told of");
    }

    #[test]
    fn a_retry_of_unknown_outcome_is_not_taken_for_another_requests() {
        let id = JobId::from_u128(1);
        let told = |refusal: Refusal| {
            let answer = refusal.respond(&RequestId::of(&HeaderMap::new()));
            let refused = retried_elsewhere(id, answer).unwrap_err();
            assert_eq!(refused.to_string(), refusal.to_string());
            may_be_anothers(refused.code())
        };
        assert!(told(actors::jobs::Refusal::AlreadyRetried.into()));
        for refusal in [Refusal::perhaps_written(), Refusal::internal(), Refusal::not_read()] {
            assert!(!told(refusal.clone()), "{refusal}");
        }
        let unread = retried_elsewhere(id, HttpResponse::BadGateway().body("x")).unwrap_err();
        assert!(unread.code() == Code::NotOwner && !may_be_anothers(unread.code()), "{unread}");
        let accepted = serde_json::json!({"id": "j", "state": "CREATED", "lane": "l", "created_at": "t"});
        assert_eq!(retried_elsewhere(id, HttpResponse::Accepted().json(accepted)).unwrap(), "j");
    }
}
