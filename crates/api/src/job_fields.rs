//! The fields of a job between the wire and the domain: as a request gives them, as an answer shows them, and as the job's
//! node gets them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::nodes::connection::{Dispatch, Percent, Progress};
use actors::jobs::Submission;
use domain::job::{Backoff, Due, Metadata, NodeJob, OnRecovery, PastAttempt, Priority, Spec};
use domain::limits::{JOB_TIMEOUT_MS_DEFAULT, MAX_ATTEMPTS_DEFAULT};
use domain::{ClientRef, IdempotencyKey, JobKind, SessionId, TenantId};
use ledger::{JobKey, JobRecord};
use wire::jobs as shape;
use wire::worker;

use crate::auth::Principal;
use crate::from_wire;
use crate::idempotency::{body_hash, job_key};
use crate::refusal::Refusal;
use crate::to_wire::{self, json, time};
use crate::visibility;

/// A job to be submitted. In a session its `ref` is its idempotency key, unless it has another.
///
/// # Errors
/// `not_found` for names that the token does not see, which the caller logs; `invalid`.
pub fn submission(
    asked: &shape::JobRequest,
    key: Option<JobKey>,
    principal: &Principal,
) -> Result<Submission, Refusal> {
    let session = asked.session.as_deref().map(SessionId::parse).transpose()?;
    let client_ref = asked.client_ref.as_deref().map(ClientRef::parse).transpose()?;
    let key = match (&session, &client_ref) {
        (None, Some(_)) => return Err(Refusal::invalid("ref is for jobs of a session; name the session")),
        (Some(session), Some(client_ref)) if key.is_none() => {
            let key = IdempotencyKey::parse(client_ref.as_str())?;
            Some(job_key(principal.name(), &format!("session {session}"), key, body_hash(asked)))
        }
        _ => key,
    };
    let due = match (asked.delay_ms, asked.run_at.as_deref()) {
        (None, None) => Due::Now,
        (Some(ms), None) => Due::InMs(ms),
        (None, Some(at)) => Due::At(from_wire::time_of("run_at", at)?),
        (Some(_), Some(_)) => return Err(Refusal::invalid("delay_ms and run_at exclude each other")),
    };
    let mut spec = Spec {
        payload: Arc::from(asked.payload.as_str()),
        kind: asked.kind.as_deref().map(JobKind::parse).transpose()?,
        metadata: Metadata::new(asked.metadata.clone())?,
        session,
        tenant: asked.tenant.as_deref().map(TenantId::parse).transpose()?,
        needs: from_wire::requirements(asked.pool.as_deref(), asked.route.as_ref(), &asked.requires)?,
        priority: Priority::new(asked.priority.unwrap_or(0))?,
        timeout_ms: asked.timeout_ms.unwrap_or(JOB_TIMEOUT_MS_DEFAULT),
        max_attempts: asked.max_attempts.unwrap_or(MAX_ATTEMPTS_DEFAULT),
        backoff: backoff(asked.backoff.clone().unwrap_or_default())?,
        on_recovery: OnRecovery::Run,
        stage: None,
        traceparent: None,
    };
    visibility::of_new_job(principal.sees(), &mut spec)?;
    Ok(Submission { spec, client_ref, due, key, retry: None })
}

/// A job with everything that is known of it.
pub fn job(record: &JobRecord, progress: Option<Progress>) -> Result<shape::Job, Refusal> {
    let payload = Some(json(&record.spec.payload)?);
    Ok(shape::Job { payload, ..job_without_payload(record, progress)? })
}

/// Why a job waits.
pub fn waiting_for(waits: &actors::jobs::WaitingFor) -> shape::WaitingFor {
    shape::WaitingFor {
        reason: waits.reason.as_str().to_owned(),
        detail: waits.detail.clone(),
        until: waits.until.map(time),
    }
}

/// A job with all but what it is given.
pub fn job_without_payload(record: &JobRecord, progress: Option<Progress>) -> Result<shape::Job, Refusal> {
    let result = record.finished.as_ref().and_then(|finished| finished.result.as_deref());
    let progress = progress
        .map(|Progress { percent, note }| shape::Progress { percent: percent.map(Percent::get), note });
    Ok(shape::Job {
        result: Some(result.map_or_else(|| Ok(wire::Json::null()), json)?),
        attempts: Some(record.attempts.iter().map(past_attempt).collect()),
        progress,
        ..listed_job(record)
    })
}

/// A job as a list shows it.
pub fn listed_job(record: &JobRecord) -> shape::Job {
    let (spec, finished) = (&record.spec, record.finished.as_ref());
    let last_error =
        || record.attempts.last().map(|past| past.reason.clone()).filter(|reason| !reason.is_empty());
    shape::Job {
        id: record.id.to_string(),
        state: to_wire::job_state(record.state),
        outcome: finished.map(|finished| to_wire::outcome(finished.outcome)),
        lane: record.lane.to_string(),
        session: spec.session.as_ref().map(ToString::to_string),
        seq: record.seq,
        client_ref: record.client_ref.as_ref().map(ToString::to_string),
        tenant: spec.tenant.as_ref().map(ToString::to_string),
        pool: spec.needs.pool.as_ref().map(ToString::to_string),
        route: spec.needs.route.as_ref().map(to_wire::route),
        requires: spec.needs.requires.iter().map(ToString::to_string).collect(),
        priority: i64::from(spec.priority.get()),
        timeout_ms: spec.timeout_ms,
        attempt: record.attempt.get(),
        max_attempts: spec.max_attempts,
        node: record.placed.as_ref().map(|placed| placed.node.to_string()),
        kind: spec.kind.as_ref().map(ToString::to_string),
        metadata: strings(&spec.metadata),
        traceparent: spec.traceparent.map(|parent| parent.to_string()),
        payload: None,
        result: None,
        error: finished.map_or_else(last_error, |finished| finished.error.clone()),
        dead: record.is_dead(),
        waiting_for: None,
        progress: None,
        created_at: time(record.created_at),
        run_at: record.due_at.map(time),
        dispatched_at: record.dispatched_at.map(time),
        running_at: record.running_at.map(time),
        finished_at: finished.map(|finished| time(finished.finished_at)),
        released_at: finished.and_then(|finished| finished.released_at).map(time),
        retry_of: record.retry_of.map(|id| id.to_string()),
        retried_as: finished.and_then(|finished| finished.retried_as).map(|id| id.to_string()),
        dismissed_at: finished.and_then(|finished| finished.dismissed_at).map(time),
        attempts: None,
    }
}

/// An attempt for its node; `None` for a payload that is not JSON, which the ledger never has.
pub fn dispatch(dispatch: Dispatch) -> Option<worker::Dispatch> {
    let Dispatch { slot, node_job } = dispatch;
    let NodeJob { payload, kind, metadata, session, timeout_ms, stage, traceparent, retry_of } = node_job;
    let (session, seq) = session.map(|(session, seq)| (session.to_string(), seq)).unzip();
    Some(worker::Dispatch {
        job: slot.job.to_string(),
        attempt: slot.attempt.get(),
        payload: wire::Json::parse(&payload).ok()?,
        kind: kind.map(|kind| kind.to_string()),
        metadata: strings(&metadata),
        session,
        seq,
        timeout_ms,
        stage: stage.map(|stage| wire::Json::parse(&stage)).transpose().ok()?,
        traceparent: traceparent.map(|parent| parent.to_string()),
        retry_of: retry_of.map(|id| id.to_string()),
    })
}

fn strings(metadata: &Metadata) -> BTreeMap<String, String> {
    metadata.strings().cloned().unwrap_or_default()
}

/// The delay between attempts, with defaults for what is absent.
pub fn backoff(asked: shape::Backoff) -> Result<Backoff, Refusal> {
    let default = Backoff::default();
    let initial_ms = asked.initial_ms.unwrap_or(default.initial_ms);
    let factor_percent =
        asked.factor.map_or(default.factor_percent, |factor| (factor * 100.0).round() as u32);
    // A caller that asks for a longer first pause has not asked for a longer one to be cut.
    let max_ms = asked.max_ms.unwrap_or(default.max_ms.max(initial_ms));
    Ok(Backoff { initial_ms, factor_percent, max_ms }.check()?)
}

fn past_attempt(past: &PastAttempt) -> shape::PastAttempt {
    shape::PastAttempt {
        attempt: past.attempt.get(),
        node: past.node.to_string(),
        state: past.ended.as_str().to_owned(),
        reason: past.reason.clone(),
        at: time(past.at),
    }
}
