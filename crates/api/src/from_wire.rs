//! From the wire's shapes to the domain's types, for requests. What the domain refuses is refused as `invalid`, in its
//! words.

use std::sync::Arc;

use ::nodes::Pool;
use actors::jobs::Submission;
use domain::job::{Backoff, Due, OnRecovery, Outcome, Priority, Requirements, Route, Spec};
use domain::limits::{JOB_TIMEOUT_MS_DEFAULT, MAX_ATTEMPTS_DEFAULT, SESSION_IDLE_MS_DEFAULT};
use domain::nonce::{self, OnExpiry, PolicyPatch, Resolution, Settlement};
use domain::session::{self, Ordering};
use domain::{
    ClientRef, HoldId, IdempotencyKey, Label, Language, Nonce, PoolName, SessionId, TenantId, Timestamp,
    TxHash,
};
use ledger::JobKey;
use wire::{jobs, nodes, nonces, sessions};

use crate::idempotency::{body_hash, job_key};
use crate::refusal::Refusal;

/// A job to be submitted. In a session its `ref` is its idempotency key, unless it has another.
pub fn submission(
    asked: &jobs::JobRequest,
    key: Option<JobKey>,
    principal: &str,
) -> Result<Submission, Refusal> {
    let session = asked.session.as_deref().map(SessionId::parse).transpose()?;
    let client_ref = asked.client_ref.as_deref().map(ClientRef::parse).transpose()?;
    let key = match (&session, &client_ref) {
        (None, Some(_)) => return Err(Refusal::invalid("ref is for jobs of a session; name the session")),
        (Some(session), Some(client_ref)) if key.is_none() => {
            let key = IdempotencyKey::parse(client_ref.as_str())?;
            Some(job_key(principal, &format!("session {session}"), key, body_hash(asked)))
        }
        _ => key,
    };
    let due = match (asked.delay_ms, asked.run_at.as_deref()) {
        (None, None) => Due::Now,
        (Some(ms), None) => Due::InMs(ms),
        (None, Some(at)) => Due::At(time(at)?),
        (Some(_), Some(_)) => return Err(Refusal::invalid("delay_ms and run_at exclude each other")),
    };
    let spec = Spec {
        payload: Arc::from(asked.payload.as_str()),
        session,
        tenant: asked.tenant.as_deref().map(TenantId::parse).transpose()?,
        needs: requirements(asked.pool.as_deref(), asked.route.as_ref(), &asked.requires)?,
        priority: Priority::new(asked.priority.unwrap_or(0))?,
        timeout_ms: asked.timeout_ms.unwrap_or(JOB_TIMEOUT_MS_DEFAULT),
        max_attempts: asked.max_attempts.unwrap_or(MAX_ATTEMPTS_DEFAULT),
        backoff: backoff(asked.backoff.clone().unwrap_or_default())?,
        on_recovery: OnRecovery::Run,
    };
    Ok(Submission { spec, client_ref, due, key, retry: None })
}

/// What a job requires of its node; the labels sorted, each once.
pub fn requirements(
    pool: Option<&str>,
    route: Option<&jobs::Route>,
    requires: &[String],
) -> Result<Requirements, Refusal> {
    let route = route.map(|route| {
        Ok::<_, Refusal>(Route {
            source: Language::parse(&route.source)?,
            target: Language::parse(&route.target)?,
        })
    });
    let mut requires = requires.iter().map(|label| Label::parse(label)).collect::<Result<Vec<_>, _>>()?;
    requires.sort_unstable();
    requires.dedup();
    Ok(Requirements { pool: pool.map(PoolName::parse).transpose()?, route: route.transpose()?, requires })
}

fn backoff(asked: jobs::Backoff) -> Result<Backoff, Refusal> {
    let default = Backoff::default();
    let initial_ms = asked.initial_ms.unwrap_or(default.initial_ms);
    let factor_percent =
        asked.factor.map_or(default.factor_percent, |factor| (factor * 100.0).round() as u32);
    // A caller that asks for a longer first pause has not asked for a longer one to be cut.
    let max_ms = asked.max_ms.unwrap_or(default.max_ms.max(initial_ms));
    Ok(Backoff { initial_ms, factor_percent, max_ms }.check()?)
}

fn time(text: &str) -> Result<Timestamp, Refusal> {
    let read = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339);
    let micros = read.ok().and_then(|at| i64::try_from(at.unix_timestamp_nanos() / 1_000).ok());
    let at = micros.filter(|micros| (0..=RUN_AT_MICROS_MAX).contains(micros)).map(Timestamp::from_micros);
    at.ok_or_else(|| Refusal::invalid("run_at must be a time as in 2026-01-31T08:00:00Z, from 1970 to 2255"))
}

/// Both databases keep times up to the year 2255 exactly.
const RUN_AT_MICROS_MAX: i64 = 1 << 53;

/// How jobs ended, as a filter says it.
pub const fn outcome(outcome: jobs::Outcome) -> Outcome {
    match outcome {
        jobs::Outcome::Succeeded => Outcome::Succeeded,
        jobs::Outcome::Failed => Outcome::Failed,
        jobs::Outcome::Cancelled => Outcome::Cancelled,
        jobs::Outcome::TimedOut => Outcome::TimedOut,
    }
}

/// A session to be opened.
pub fn session(asked: &sessions::SessionRequest) -> Result<session::Spec, Refusal> {
    Ok(session::Spec {
        needs: requirements(asked.pool.as_deref(), asked.route.as_ref(), &asked.requires)?,
        ordering: match asked.ordering.unwrap_or(sessions::Ordering::Strict) {
            sessions::Ordering::Strict => Ordering::Strict,
            sessions::Ordering::Results => Ordering::Results,
            sessions::Ordering::Free => Ordering::Free,
        },
        idle_ms: asked.idle_ms.unwrap_or(SESSION_IDLE_MS_DEFAULT),
    })
}

/// A pool to be configured.
pub fn pool(asked: &nodes::Pool) -> Result<Pool, Refusal> {
    Ok(Pool {
        name: PoolName::parse(&asked.name)?,
        routes: asked.routes.iter().map(|route| Route::parse(route)).collect::<Result<_, _>>()?,
        requires: asked.requires.iter().map(|label| Label::parse(label)).collect::<Result<_, _>>()?,
        weight: asked.weight,
    })
}

/// A settlement, or what is wrong with it: the field, and why.
pub fn settlement(item: &nonces::Settlement) -> Result<Settlement, String> {
    let nonce = Nonce::new(item.nonce).map_err(|wrong| wrong.to_string())?;
    let outcome = match item.outcome {
        nonces::Outcome::Consumed => nonce::Outcome::Consumed(tx_hash(item.tx_hash.as_deref())?),
        nonces::Outcome::NeverSent | nonces::Outcome::Unknown if item.tx_hash.is_some() => {
            return Err(TX_HASH_MISPLACED.to_owned());
        }
        nonces::Outcome::NeverSent => nonce::Outcome::NeverSent,
        nonces::Outcome::Unknown => nonce::Outcome::Unknown,
    };
    Ok(Settlement { nonce, hold: HoldId::parse(&item.hold), outcome })
}

/// A nonce that was used.
pub fn consumed(nonce: Nonce, asked: &nonces::ConsumeRequest) -> Result<Settlement, Refusal> {
    let tx_hash = tx_hash(asked.tx_hash.as_deref()).map_err(Refusal::invalid)?;
    let outcome = nonce::Outcome::Consumed(tx_hash);
    Ok(Settlement { nonce, hold: HoldId::parse(&asked.hold), outcome })
}

/// A nonce that is given back.
pub fn released(nonce: Nonce, asked: &nonces::ReleaseRequest) -> Settlement {
    let outcome = match asked.outcome {
        nonces::ReleaseOutcome::NeverSent => nonce::Outcome::NeverSent,
        nonces::ReleaseOutcome::Unknown => nonce::Outcome::Unknown,
    };
    Settlement { nonce, hold: HoldId::parse(&asked.hold), outcome }
}

/// An operator's decision on a nonce.
pub fn resolution(asked: &nonces::ResolveRequest) -> Result<Resolution, Refusal> {
    match asked.outcome {
        nonces::Resolution::Consumed => {
            Ok(Resolution::Consumed(tx_hash(asked.tx_hash.as_deref()).map_err(Refusal::invalid)?))
        }
        nonces::Resolution::NeverSent if asked.tx_hash.is_some() => Err(Refusal::invalid(TX_HASH_MISPLACED)),
        nonces::Resolution::NeverSent => Ok(Resolution::NeverSent),
    }
}

const TX_HASH_MISPLACED: &str = "tx_hash goes with the outcome consumed only";

fn tx_hash(text: Option<&str>) -> Result<Option<TxHash>, String> {
    text.map(TxHash::parse).transpose().map_err(|wrong| wrong.to_string())
}

/// A change of a signer's policy.
pub fn policy(asked: &nonces::PolicyRequest) -> Result<PolicyPatch, Refusal> {
    Ok(PolicyPatch {
        first_nonce: asked.first_nonce.map(Nonce::new).transpose()?,
        hold_ms: asked.hold_ms.map(nonce::check_hold_ms).transpose()?,
        on_expiry: asked.on_expiry.map(|on_expiry| match on_expiry {
            nonces::OnExpiry::Release => OnExpiry::Release,
            nonces::OnExpiry::Quarantine => OnExpiry::Quarantine,
        }),
        max_in_flight: match asked.max_in_flight {
            Some(Some(nonces)) => Some(Some(nonce::check_max_in_flight(nonces)?)),
            Some(None) => Some(None),
            None => None,
        },
    })
}
