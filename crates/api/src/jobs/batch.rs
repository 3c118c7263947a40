//! Many jobs in one request. This instance accepts those without a session; the owner of each session accepts its own.

use std::cell::LazyCell;
use std::collections::BTreeMap;

use actix_web::body::MessageBody;
use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::{Accepted, Jobs, Submission};
use domain::SessionId;
use domain::lane::SessionState;
use domain::limits::BATCH_JOBS_MAX;
use futures_util::StreamExt;
use futures_util::future::join;
use ledger::JobKey;
use sha2::{Digest, Sha256};
use wire::FORWARDED_PLACES;
use wire::jobs as shape;

use super::{Answer, Forwarding};
use crate::auth::Principal;
use crate::extract::{self, Query};
use crate::forwarder::{ForwardedRequest, Forwarder, Routed};
use crate::idempotency::{KEY, admit, body_hash, job_key};
use crate::job_fields;
use crate::limits::BATCH_SESSIONS_AT_ONCE;
use crate::refusal::{Refusal, count_defect};
use crate::state::State;
use crate::traces;
use crate::visibility;

/// Submits many jobs
///
/// 1 to 1,000 jobs, each accepted or refused on its own, and answered in the order of the request. Repetitions of the same
/// request under one `Idempotency-Key` get the same jobs; a batch with other jobs under that key is refused (`key_reused`).
#[utoipa::path(
    post, path = "/v1/jobs/batch", tag = "jobs", operation_id = "submit_jobs",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 128, description = KEY)),
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
    // The instance that has forwarded a part of a batch has looked at the whole.
    let whole = key.clone().filter(|_| places.is_empty());
    let whole = whole.map(|key| job_key(principal.name(), "jobs_batch", key, batch_hash(&asked.jobs)));
    let mut results: Vec<Option<shape::BatchResult>> = asked.jobs.iter().map(|_| None).collect();
    let (mut free, mut sessions) = (Vec::new(), BTreeMap::<SessionId, Vec<Part>>::new());
    for (at, job) in asked.jobs.into_iter().enumerate() {
        let place = places.get(at).copied().unwrap_or(at);
        let read = job.0.map_err(|message| Refusal::unreadable("", &message)).and_then(|job| {
            let known = |key| job_key(principal.name(), &format!("jobs {place}"), key, body_hash(&job));
            let key = key.clone().map(known);
            let submission = job_fields::submission(&job, key, &principal)?;
            admit(state, &principal, submission.key.as_ref())?;
            Ok((submission, job))
        });
        match read {
            Ok((submission, job)) => match submission.spec.session.clone() {
                None => free.push((at, submission)),
                Some(session) => {
                    sessions.entry(session).or_default().push(Part { at, place, job, submission });
                }
            },
            Err(refusal) => results[at] = Some(refused(refusal)),
        }
    }
    let mut refused_sessions = Vec::new();
    for session in sessions.keys() {
        if let Err(refusal) = visibility::of_new_in(state, principal.sees(), session).await {
            refused_sessions.push((session.clone(), refusal));
        }
    }
    for (session, refusal) in refused_sessions {
        let answer = refused(refusal);
        for part in sessions.remove(&session).unwrap_or_default() {
            results[part.at] = Some(answer.clone());
        }
    }
    if let Some(whole) = &whole {
        let submits = !free.is_empty() || any_may_take_jobs(state, &sessions).await;
        keep_body(state, whole, submits).await?;
    }
    let forwarded = ForwardedRequest::of(&request, Vec::new());
    if !places.is_empty()
        && sessions.len() == 1
        && let Some((session, parts)) = sessions.pop_first()
    {
        // A part that another instance has forwarded: that one judges a refusal.
        let ats: Vec<_> = parts.iter().map(|part| part.at).collect();
        let answers = submit_part(&forwarder, &forwarded, &session, parts).await?;
        ats.into_iter().zip(answers).for_each(|(at, answer)| results[at] = Some(answer));
    }
    let in_sessions = futures_util::stream::iter(sessions.into_iter().map(async |(session, parts)| {
        let ats: Vec<_> = parts.iter().map(|part| part.at).collect();
        let ats_count = ats.len();
        let answers = submit_part(&forwarder, &forwarded, &session, parts).await;
        ats.into_iter().zip(answers.unwrap_or_else(|refusal| vec![refused(refusal); ats_count]))
    }));
    let in_sessions = in_sessions.buffer_unordered(BATCH_SESSIONS_AT_ONCE).collect::<Vec<_>>();
    let (ats, mut free): (Vec<_>, Vec<_>) = free.into_iter().unzip();
    let span = traces::submit(traces::of_request(request.headers()), &mut free);
    let incarnation = state.incarnation();
    let submit = incarnation.jobs.submit(free, principal.submissions());
    let (in_sessions, answers) = join(in_sessions, state.call(submit)).await;
    traces::submitted(span, &answers);
    for (at, answer) in ats.into_iter().zip(answers) {
        results[at] = Some(result(answer));
    }
    for (at, answer) in in_sessions.into_iter().flatten() {
        results[at] = Some(answer);
    }
    let results = results.into_iter().map(|result| result.unwrap_or_else(|| refused(Refusal::internal())));
    Ok(HttpResponse::Accepted().json(shape::JobsAnswer { results: results.collect() }))
}

/// Refuses a batch under the key of another one. What its jobs are is kept before any of them is, each under a key of its own:
/// if the instance dies in between, a repetition goes on. A batch of which no job can be accepted keeps nothing. A release that
/// keeps only the keys of the jobs has none of it, and its batches are judged job by job.
async fn keep_body(state: &State, whole: &JobKey, submits: bool) -> Result<(), Refusal> {
    let kept = if submits {
        Some(state.read(state.ledger.keep_selection(whole, &[])).await?)
    } else {
        state.read(state.ledger.kept_selection(&whole.scope)).await?
    };
    if kept.is_some_and(|kept| kept.body_hash != whole.body_hash) {
        return Err(actors::jobs::Refusal::KeyReused.into());
    }
    Ok(())
}

/// Whether one of these sessions may take one of its jobs. A closed one stays closed, one that does not exist never will, since
/// no id is given twice, and what was asked of a session never changes. One that cannot be read may.
async fn any_may_take_jobs(state: &State, sessions: &BTreeMap<SessionId, Vec<Part>>) -> bool {
    let looks = sessions.iter().map(|(session, parts)| async move {
        let Ok(found) = state.read(state.ledger.session(session)).await else { return true };
        found.filter(|found| found.closed_at.is_none()).is_some_and(|found| {
            parts.iter().any(|part| SessionState::judge(&found.spec, &part.submission.spec).is_ok())
        })
    });
    let looks = futures_util::stream::iter(looks).buffer_unordered(BATCH_SESSIONS_AT_ONCE);
    looks.any(std::future::ready).await
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
        let submission = job_fields::submission(&job, None, principal)?;
        Ok(Self { at, place: at, job, submission })
    }

    /// The key under which it is remembered.
    pub const fn key(&self) -> Option<&JobKey> {
        self.submission.key.as_ref()
    }
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
    let serve = async |jobs: &Jobs| {
        let mut submissions = submissions.clone();
        let span = traces::submit(continues, &mut submissions);
        let answers = jobs.submit_in(session, submissions, of_token).await;
        traces::submitted(span, answers.as_deref().unwrap_or_default());
        answers
    };
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

fn refused(refusal: Refusal) -> shape::BatchResult {
    let (owner, owner_url) = refusal.owner_and_url();
    let (code, detail) = refusal.code_and_detail();
    count_defect(code);
    shape::BatchResult::Refused { code, detail, owner, owner_url }
}

/// The places of the jobs in the caller's batch, where an instance has forwarded a part of it. Nothing proves that one did: the
/// places only choose among the caller's own keys. Jobs at one place are as jobs under one `ref`.
fn sent_places(request: &HttpRequest, count: usize) -> Result<Vec<usize>, Refusal> {
    let Some(header) = request.headers().get(FORWARDED_PLACES) else { return Ok(Vec::new()) };
    let read = header.to_str().ok().and_then(|text| {
        let places = text.split(',').map(|place| place.parse().ok().filter(|place| *place < BATCH_JOBS_MAX));
        places.collect::<Option<Vec<usize>>>()
    });
    read.filter(|places| places.len() == count)
        .ok_or_else(|| Refusal::invalid(format!("the header {FORWARDED_PLACES} is for instances")))
}

#[cfg(test)]
mod tests {
    use actix_web::test::TestRequest;

    use super::*;

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
