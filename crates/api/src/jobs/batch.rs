//! Many jobs in one request. This instance accepts those without a session; the owner of each session accepts its own.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use actix_web::body::MessageBody;
use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::{Accepted, Jobs, Submission};
use domain::lane::SessionState;
use domain::limits::BATCH_JOBS_MAX;
use domain::{IdempotencyKey, SessionId};
use futures_util::StreamExt;
use futures_util::future::join;
use ledger::{JobKey, SessionRecord};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};
use wire::jobs as shape;
use wire::{Code, FORWARDED_PLACES, Object};

use super::{Answer, Forwarding, submit_free, submit_in};
use crate::auth::{Principal, Sees};
use crate::extract::{self, Query};
use crate::forwarder::{ForwardedRequest, Forwarder, Routed};
use crate::idempotency::{KEY, admit, body_hash, job_key};
use crate::job_fields;
use crate::limits::{BATCH_SESSIONS_AT_ONCE, FORWARD_SLACK};
use crate::peer_credential::PLACES;
use crate::refusal::{Refusal, count_defect};
use crate::state::{State, answered};
use crate::traces;
use crate::visibility;

/// Submits many jobs
///
/// 1 to 1,000 jobs, each accepted or refused on its own, and answered in the order of the request. Repetitions of the same
/// request under one `Idempotency-Key` get the same jobs; a batch with other jobs under that key is refused (`key_reused`).
/// Jobs of sessions that are not served within the time of one request are refused (`ledger_unavailable`, or `overloaded` where
/// there was no time to begin): send the same request again under its key. Without a key it submits the other jobs twice.
#[utoipa::path(
    post, path = "/v1/jobs/batch", tag = "jobs", operation_id = "submit_jobs",
    params(("Idempotency-Key" = Option<String>, Header, description = KEY)),
    request_body = shape::JobsRequest,
    responses((status = 202, description = "One answer for each job", body = shape::JobsAnswer)),
)]
pub async fn submit_batch(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::bytes(&request, payload, state.batch_limits()).await?;
    let asked: shape::JobsRequest = extract::object(&request, &body)?;
    let places = sent_places(&request, asked.jobs.len())?;
    let principal = Principal::of(&request);
    let sees = principal.sees();
    // The instance that has forwarded a part of a batch has looked at the whole.
    let whole = key.clone().filter(|_| places.is_empty());
    let whole = whole.map(|key| job_key(principal.name(), "jobs_batch", key, batch_hash(&asked.jobs)));
    let mut batch = Batch::read(state, &principal, asked.jobs, key.as_ref(), &places);
    let begun = Instant::now();
    let looks = Looks {
        read: async |id: &SessionId| state.call(state.ledger.session(id)).await,
        until: begun + state.settings.request_timeout / 2,
    };
    let takes_jobs = batch.look_at_sessions(state, &principal, &looks).await;
    if let Some(whole) = &whole {
        let submits = !batch.free.is_empty()
            || takes_jobs
            || (sees.everything() && looks.any_may_take_jobs(&batch.sessions).await);
        keep_body(state, whole, submits, begun + state.settings.request_timeout).await?;
    }
    let forwarded = ForwardedRequest::of(&request, Vec::new());
    if !places.is_empty()
        && batch.sessions.len() == 1
        && let Some((session, parts)) = batch.sessions.pop_first()
    {
        // A part that another instance has forwarded: that one judges a refusal.
        let ats = ats_of(&parts);
        let answers = submit_part(&forwarder, &forwarded, &session, parts).await?;
        batch.answer(ats, answers);
    }
    // One time for all. An owner that does not answer is given up by then; if nothing took time before, its own refusal comes
    // first.
    let until = begun + state.settings.request_timeout + FORWARD_SLACK * 2;
    let submit = async |session: &SessionId, parts: Vec<Part>| {
        submit_part(&forwarder, &forwarded, session, parts).await
    };
    let in_sessions = submit_parts(std::mem::take(&mut batch.sessions), until, submit);
    let (ats, free): (Vec<_>, Vec<_>) = std::mem::take(&mut batch.free).into_iter().unzip();
    let continues = traces::of_request(request.headers());
    let submit = timeout_at(until, submit_free(state, continues, free, principal.submissions()));
    let (in_sessions, answers) = join(in_sessions, submit).await;
    let late = |_| ats.iter().map(|_| Err(actors::jobs::Refusal::LedgerUnavailable)).collect();
    let answers = answers.unwrap_or_else(late);
    let answers = seen(state, sees, answers, until).await;
    log_hidden(answers.iter());
    batch.answer(ats, answers);
    in_sessions.into_iter().for_each(|(ats, answers)| batch.answer(ats, answers));
    let results = batch.results.into_iter();
    let results = results.map(|result| result.unwrap_or_else(|| refused(Refusal::internal())));
    Ok(HttpResponse::Accepted().json(shape::JobsAnswer { results: results.collect() }))
}

/// The jobs of one request that are not answered yet, and the answers to the others.
struct Batch {
    /// Those without a session, each with its place in the request.
    free: Vec<(usize, Submission)>,
    sessions: BTreeMap<SessionId, Vec<Part>>,
    /// By the jobs' places.
    results: Vec<Option<shape::BatchResult>>,
}

impl Batch {
    /// Reads each job on its own, under a key that is made of the request's and of the job's place.
    fn read(
        state: &State,
        principal: &Principal,
        jobs: Vec<shape::BatchJob>,
        key: Option<&IdempotencyKey>,
        places: &[usize],
    ) -> Self {
        let results = jobs.iter().map(|_| None).collect();
        let mut batch = Self { free: Vec::new(), sessions: BTreeMap::new(), results };
        for (at, job) in jobs.into_iter().enumerate() {
            let place = places.get(at).copied().unwrap_or(at);
            let read =
                job.0.map_err(|text| extract::refused_part::<Object<shape::JobRequest>>(text.as_str()));
            let read = read.and_then(|job| {
                let known = |key| job_key(principal.name(), &format!("jobs {place}"), key, body_hash(&job));
                let key = key.cloned().map(known);
                let submission = job_fields::submission(&job, key, principal)?;
                // A job of a session uses its key later, once the session is seen.
                if principal.sees().everything() || submission.spec.session.is_none() {
                    admit(state, principal, submission.key.as_ref())?;
                }
                Ok((submission, job))
            });
            match read {
                Ok((submission, job)) => match submission.spec.session.clone() {
                    None => batch.free.push((at, submission)),
                    Some(session) => {
                        let part = Part { at, place, job, submission };
                        batch.sessions.entry(session).or_default().push(part);
                    }
                },
                Err(refusal) => batch.results[at] = Some(refused(refusal)),
            }
        }
        batch
    }

    /// Refuses jobs of sessions that the caller does not see; the others use their keys. Whether one of the sessions that were
    /// looked at may take one of its jobs.
    async fn look_at_sessions<R>(&mut self, state: &State, principal: &Principal, looks: &Looks<R>) -> bool
    where
        R: AsyncFn(&SessionId) -> ledger::Result<Option<SessionRecord>>,
    {
        let sees = principal.sees();
        let ids = if sees.everything() { Vec::new() } else { self.sessions.keys().cloned().collect() };
        let (mut takes_jobs, mut absent) = (false, Vec::new());
        for (session, found) in looks.all(ids).await {
            let is_there = !matches!(found, Ok(None));
            let parts = self.sessions.remove(&session).unwrap_or_default();
            match found.and_then(|found| visibility::of_found_in(state, sees, &session, found)) {
                Ok(record) => {
                    let parts = admitted(state, principal, parts, &mut self.results);
                    takes_jobs |= may_take(&record, &parts);
                    if !parts.is_empty() {
                        self.sessions.insert(session, parts);
                    }
                }
                Err(refusal) => {
                    let (ats, answers) = (ats_of(&parts), vec![refused(refusal); parts.len()]);
                    if is_there {
                        self.answer(ats, answers);
                    } else {
                        absent.push((ats, answers));
                    }
                }
            }
        }
        log_hidden(self.results.iter().flatten());
        absent.into_iter().for_each(|(ats, answers)| self.answer(ats, answers));
        takes_jobs
    }

    /// The answers to the jobs at these places.
    fn answer(&mut self, ats: Vec<usize>, answers: Vec<shape::BatchResult>) {
        for (at, answer) in ats.into_iter().zip(answers) {
            self.results[at] = Some(answer);
        }
    }
}

/// Those of these jobs that may use their keys. The others are refused.
fn admitted(
    state: &State,
    principal: &Principal,
    mut parts: Vec<Part>,
    results: &mut [Option<shape::BatchResult>],
) -> Vec<Part> {
    parts.retain(|part| {
        let refusal = admit(state, principal, part.key()).err();
        let is_admitted = refusal.is_none();
        if let Some(refusal) = refusal {
            results[part.at] = Some(refused(refusal));
        }
        is_admitted
    });
    parts
}

/// The answers to jobs without a session, as the caller sees them, whose patterns may have changed since an earlier request under
/// its key made some of the jobs. Those that are not looked at in time are refused.
async fn seen(
    state: &State,
    sees: &Sees,
    answers: Vec<Result<Accepted, actors::jobs::Refusal>>,
    until: Instant,
) -> Vec<shape::BatchResult> {
    if sees.everything() {
        return answers.into_iter().map(result).collect();
    }
    let look = |answer: Result<Accepted, actors::jobs::Refusal>| async move {
        let checked = match &answer {
            Ok(accepted) => timeout_at(until, visibility::admit_repeated(state, sees, accepted)).await,
            Err(_) => Ok(Ok(())),
        };
        match checked {
            Ok(Ok(())) => result(answer),
            Ok(Err(refusal)) => refused(refusal),
            Err(_late) => result(Err(actors::jobs::Refusal::LedgerUnavailable)),
        }
    };
    futures_util::stream::iter(answers).map(look).buffered(BATCH_SESSIONS_AT_ONCE).collect().await
}

/// Refuses a batch under the key of another one. What its jobs are is kept before any of them is, each under a key of its own:
/// if the instance dies in between, a repetition goes on. A batch of which no job can be accepted keeps nothing. A release that
/// keeps only the keys of the jobs has none of it, and its batches are judged job by job.
async fn keep_body(state: &State, whole: &JobKey, submits: bool, until: Instant) -> Result<(), Refusal> {
    let left = until.saturating_duration_since(Instant::now());
    let kept = if submits {
        answered(state.ask(left, state.ledger.keep_selection(whole, &[])).await).map(Some)?
    } else {
        answered(state.ask(left, state.ledger.kept_selection(&whole.scope)).await)?
    };
    if kept.is_some_and(|kept| kept.body_hash != whole.body_hash) {
        return Err(actors::jobs::Refusal::KeyReused.into());
    }
    Ok(())
}

/// Reads the sessions of one batch, all of them within half of the time that a request may take: the rest is for the jobs. Then
/// those that were not read are refused, and no read begins any more: the ledger goes on with each that did.
struct Looks<R> {
    read: R,
    until: Instant,
}

impl<R: AsyncFn(&SessionId) -> ledger::Result<Option<SessionRecord>>> Looks<R> {
    async fn one(&self, id: &SessionId) -> Result<Option<SessionRecord>, Refusal> {
        let is_late = Instant::now() >= self.until;
        answered(if is_late { None } else { timeout_at(self.until, (self.read)(id)).await.ok() })
    }

    /// What is found of each.
    async fn all(&self, ids: Vec<SessionId>) -> Vec<(SessionId, Result<Option<SessionRecord>, Refusal>)> {
        let looks = ids.into_iter().map(|id| async move {
            let found = self.one(&id).await;
            (id, found)
        });
        futures_util::stream::iter(looks).buffer_unordered(BATCH_SESSIONS_AT_ONCE).collect().await
    }

    /// Whether one of these sessions may take one of its jobs. One that does not exist never will, since no id is given twice;
    /// one that cannot be read may. Most take jobs, so that the first is looked at alone.
    async fn any_may_take_jobs(&self, sessions: &BTreeMap<SessionId, Vec<Part>>) -> bool {
        let mut looks = sessions.iter().map(|(session, parts)| async move {
            let Ok(found) = self.one(session).await else { return true };
            found.is_some_and(|found| may_take(&found, parts))
        });
        let Some(first) = looks.next() else { return false };
        let others = futures_util::stream::iter(looks).buffer_unordered(BATCH_SESSIONS_AT_ONCE);
        first.await || others.any(std::future::ready).await
    }
}

/// Whether a session may take one of its jobs. A closed one stays closed, and what was asked of a session never changes.
fn may_take(session: &SessionRecord, parts: &[Part]) -> bool {
    let takes = |part: &Part| SessionState::judge(&session.spec, &part.submission.spec).is_ok();
    session.closed_at.is_none() && parts.iter().any(takes)
}

/// The hash of what a batch asks for, each job in the form in which its own key counts. One that cannot be read is none,
/// whatever it is.
fn batch_hash(jobs: &[shape::BatchJob]) -> [u8; 32] {
    let hashes: Vec<_> = jobs.iter().map(|job| job.0.as_ref().map_or([0; 32], body_hash)).collect();
    Sha256::digest(hashes.concat()).into()
}

/// A job of a session, among others in one request.
pub struct Part {
    at: usize,
    /// Its place in the request that the caller sent.
    place: usize,
    job: shape::JobRequest,
    submission: Submission,
}

impl Part {
    /// A job as it came in, under no key but its `ref`.
    pub fn of_client(at: usize, job: shape::JobRequest, principal: &Principal) -> Result<Self, Refusal> {
        let submission =
            job_fields::submission(&job, None, principal).map_err(visibility::hidden_if_not_found)?;
        Ok(Self { at, place: at, job, submission })
    }

    /// The key under which it is remembered.
    pub const fn key(&self) -> Option<&JobKey> {
        self.submission.key.as_ref()
    }
}

fn ats_of(parts: &[Part]) -> Vec<usize> {
    parts.iter().map(|part| part.at).collect()
}

/// Has the owner of each of these sessions accept its jobs, a few at once. When the time is up, it is not known what became of
/// the jobs for which an owner was asked, and none is asked for the others. Gives the places of each one's jobs, and the answers
/// to them.
async fn submit_parts(
    sessions: BTreeMap<SessionId, Vec<Part>>,
    until: Instant,
    submit: impl AsyncFn(&SessionId, Vec<Part>) -> Result<Vec<shape::BatchResult>, Refusal>,
) -> Vec<(Vec<usize>, Vec<shape::BatchResult>)> {
    let submit = &submit;
    let submitted = sessions.into_iter().map(|(session, parts)| async move {
        let ats = ats_of(&parts);
        let answers = if Instant::now() >= until {
            let detail =
                "there was no time left for this job; send it again, or all under their Idempotency-Key";
            Err(Refusal::new(Code::Overloaded, detail))
        } else {
            let late = |_| Err(Refusal::perhaps_written());
            timeout_at(until, submit(&session, parts)).await.unwrap_or_else(late)
        };
        let answers = answers.unwrap_or_else(|refusal| vec![refused(refusal); ats.len()]);
        (ats, answers)
    });
    futures_util::stream::iter(submitted).buffer_unordered(BATCH_SESSIONS_AT_ONCE).collect().await
}

/// Has the owner of a session accept its jobs, in their order. Gives one answer for each.
///
/// # Errors
/// The refusal of all of them, if the owner was not found.
pub async fn submit_part(
    forwarder: &Forwarder,
    forwarded: &ForwardedRequest,
    session: &SessionId,
    parts: Vec<Part>,
) -> Result<Vec<shape::BatchResult>, Refusal> {
    let count = parts.len();
    let places: Vec<_> = parts.iter().map(|part| part.place).collect();
    let (jobs, submissions): (Vec<_>, Vec<_>) =
        parts.into_iter().map(|part| (shape::BatchJob(Ok(part.job)), part.submission)).unzip();
    let (continues, is_forwarded) = (forwarded.continues(), forwarded.is_forwarded());
    let of_token = forwarded.principal().submissions();
    // Jobs whose session is served here are not written again.
    let part = LazyCell::new(|| {
        let body = serde_json::to_vec(&shape::JobsRequest { jobs }).expect("what was read can be written");
        forwarded.part(&places, body)
    });
    let serve = async |jobs: &Jobs| submit_in(jobs, session, continues, submissions.clone(), of_token).await;
    let answers = match forwarder.to_session(part, is_forwarded, session, serve).await? {
        Routed::Here(answers) => answers.into_iter().map(result).collect(),
        Routed::Elsewhere(answer) => answers_of(answer)?,
    };
    if answers.len() == count { Ok(answers) } else { Err(Refusal::internal()) }
}

/// What another instance has answered to a part of a batch, job by job or as a whole.
fn answers_of(answer: HttpResponse) -> Result<Vec<shape::BatchResult>, Refusal> {
    let is_accepted = answer.status().is_success();
    let body = answer.into_body().try_into_bytes().map_err(|_| Refusal::internal())?;
    if is_accepted {
        let answers = serde_json::from_slice::<shape::JobsAnswer>(&body);
        return answers.map(|answers| answers.results).map_err(|_| Refusal::internal());
    }
    Err(Refusal::passed_back(&body).unwrap_or_else(Refusal::internal))
}

fn result(answer: Result<Accepted, actors::jobs::Refusal>) -> shape::BatchResult {
    match answer {
        Ok(accepted) => shape::BatchResult::Accepted { id: accepted.id.to_string(), seq: accepted.seq },
        Err(refusal) => refused(refusal.into()),
    }
}

/// Logs once how many jobs of a batch were refused because the caller does not see what they name, with the first refusal.
fn log_hidden<'r>(results: impl Iterator<Item = &'r shape::BatchResult>) {
    let mut hidden = results.filter_map(|result| match result {
        shape::BatchResult::Refused { detail, .. } if result.known_code() == Some(Code::NotFound) => {
            Some(detail)
        }
        _ => None,
    });
    if let Some(first) = hidden.next() {
        let refusal = Refusal::new(Code::NotFound, first);
        let jobs = 1 + hidden.count();
        tracing::info!(%refusal, jobs, "access is refused");
    }
}

fn refused(refusal: Refusal) -> shape::BatchResult {
    count_defect(&refusal);
    let (owner, owner_url) = refusal.owner_and_url();
    let (code, detail) = refusal.code_and_detail();
    shape::BatchResult::Refused { code: code.to_string(), detail, owner, owner_url }
}

/// The places of the jobs in the caller's batch, where an instance has forwarded a part of it. Nothing proves that one did: the
/// places only choose among the caller's own keys. Jobs at one place are as jobs under one `ref`.
fn sent_places(request: &HttpRequest, count: usize) -> Result<Vec<usize>, Refusal> {
    let Some(header) = request.headers().get(&PLACES) else { return Ok(Vec::new()) };
    let read = header.to_str().ok().and_then(|text| {
        let places = text.split(',').map(|place| place.parse().ok().filter(|place| *place < BATCH_JOBS_MAX));
        places.collect::<Option<Vec<usize>>>()
    });
    read.filter(|places| places.len() == count)
        .ok_or_else(|| Refusal::invalid(format!("the header {FORWARDED_PLACES} is for instances")))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use actix_web::test::TestRequest;
    use domain::Timestamp;
    use domain::job::Requirements;
    use domain::session::{Ordering, Spec};

    use super::*;

    /// So many sessions, each with one job.
    fn of_sessions(count: usize) -> BTreeMap<SessionId, Vec<Part>> {
        let principal = Principal::of(&TestRequest::default().to_http_request());
        let part = |at: usize| {
            let session = format!("s-{at:02}");
            let job = serde_json::json!({"payload": 1, "session": session}).to_string();
            let part = Part::of_client(at, serde_json::from_str(&job).unwrap(), &principal).unwrap();
            (SessionId::parse(&session).unwrap(), vec![part])
        };
        (0..count).map(part).collect()
    }

    #[test]
    fn a_code_of_a_newer_instance_is_passed_on_as_it_came() {
        let body =
            r#"{"results":[{"id":"a","seq":1},{"code":"sun_unavailable","detail":"d","extra":1}],"extra":1}"#;
        let results = answers_of(HttpResponse::Accepted().body(body)).unwrap();
        let text = r#"{"results":[{"id":"a","seq":1},{"code":"sun_unavailable","detail":"d"}]}"#;
        assert_eq!(serde_json::to_string(&shape::JobsAnswer { results }).unwrap(), text);
    }

    fn record(id: &SessionId, is_closed: bool) -> SessionRecord {
        let at = Timestamp::from_micros(0);
        let (needs, ordering) = (Requirements::default(), Ordering::Strict);
        let spec = Spec { tenant: None, needs, ordering, idle_ms: 60_000 };
        SessionRecord {
            id: id.clone(),
            spec,
            created_at: at,
            closed_at: is_closed.then_some(at),
            idle_for_ms: 0,
        }
    }

    #[tokio::test]
    async fn sessions_that_are_not_read_in_time_are_refused_and_no_read_begins_after_it() {
        let reads = Cell::new(0);
        let read = async |_: &SessionId| {
            reads.set(reads.get() + 1);
            std::future::pending::<ledger::Result<Option<SessionRecord>>>().await
        };
        let looks = Looks { read, until: Instant::now() + std::time::Duration::from_millis(100) };
        let found = looks.all(of_sessions(40).into_keys().collect()).await;
        assert_eq!(found.len(), 40);
        for (id, found) in found {
            assert_eq!(found.unwrap_err().code(), Code::LedgerUnavailable, "{id}");
        }
        assert!(reads.get() <= BATCH_SESSIONS_AT_ONCE, "{} reads", reads.get());
    }

    #[tokio::test]
    async fn jobs_whose_sessions_are_not_served_in_time_are_refused_and_no_owner_is_asked_after_it() {
        let asked = Cell::new(0);
        let submit = async |_: &SessionId, _: Vec<Part>| {
            asked.set(asked.get() + 1);
            std::future::pending::<Result<Vec<shape::BatchResult>, Refusal>>().await
        };
        let until = Instant::now() + std::time::Duration::from_millis(100);
        let answered = submit_parts(of_sessions(40), until, submit).await;
        let answers: Vec<_> = answered.into_iter().flat_map(|(_, answers)| answers).collect();
        let count = |code| answers.iter().filter(|answer| answer.known_code() == Some(code)).count();
        assert_eq!(count(Code::LedgerUnavailable), asked.get(), "nobody knows what became of them");
        assert_eq!(count(Code::Overloaded), 40 - asked.get(), "nothing was done about them");
        assert!(asked.get() <= BATCH_SESSIONS_AT_ONCE, "{} owners", asked.get());
    }

    #[tokio::test]
    async fn others_are_looked_at_only_where_the_first_session_of_a_batch_takes_no_job() {
        let sessions = of_sessions(BATCH_SESSIONS_AT_ONCE);
        for (closed, takes, reads_max) in [
            (0, true, 1),
            (1, true, BATCH_SESSIONS_AT_ONCE),
            (BATCH_SESSIONS_AT_ONCE, false, BATCH_SESSIONS_AT_ONCE),
        ] {
            let reads = Cell::new(0);
            let read = async |id: &SessionId| {
                reads.set(reads.get() + 1);
                let place = sessions.keys().position(|one| one == id).unwrap();
                Ok::<_, ledger::Error>(Some(record(id, place < closed)))
            };
            let until = Instant::now() + std::time::Duration::from_secs(3_600);
            assert_eq!(Looks { read, until }.any_may_take_jobs(&sessions).await, takes, "{closed}");
            assert!(reads.get() <= reads_max, "{closed}: {} reads", reads.get());
        }
        let read = async |id: &SessionId| Ok::<_, ledger::Error>(Some(record(id, true)));
        let late = Looks { read, until: Instant::now() };
        assert!(late.any_may_take_jobs(&sessions).await, "what is not read in time may take jobs");
    }

    #[test]
    fn a_part_names_the_place_of_each_of_its_jobs_without_saying_who_forwarded_it() {
        let read = |places: &str, count| {
            let request = TestRequest::default().insert_header((FORWARDED_PLACES, places)).to_http_request();
            sent_places(&request, count).ok()
        };
        assert_eq!(read("0", 1), Some(vec![0]));
        assert_eq!(read("2,7,999", 3), Some(vec![2, 7, 999]));
        for (places, count) in [("2,7", 1), ("2", 2), ("1000", 1), ("-1", 1), ("2,", 2), ("", 1), ("x", 1)] {
            assert_eq!(read(places, count), None, "{places}");
        }
        let whole = TestRequest::default().to_http_request();
        assert_eq!(sent_places(&whole, 2).unwrap(), Vec::<usize>::new());
    }
}
