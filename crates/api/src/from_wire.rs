//! From the wire's shapes to the domain's types, for requests. What the domain refuses is refused as `invalid`, in its
//! words. The fields of a job are in [`crate::job_fields`].

use ::nodes::Pool;
use domain::job::{Outcome, Requirements, Route};
use domain::limits::{RUN_AT_MICROS_MAX, SESSION_IDLE_MS_DEFAULT};
use domain::nonce::{self, OnExpiry, PolicyPatch, Resolution, Settlement};
use domain::session::{self, Ordering};
use domain::{HoldId, Invalid, Label, Language, Nonce, PoolName, TenantId, Timestamp, TxHash};
use wire::{jobs, nodes, nonces, sessions};

use crate::refusal::Refusal;

/// What a job requires of its node; the labels sorted, each once.
pub fn requirements(
    pool: Option<&str>,
    route: Option<&jobs::Route>,
    requires: &[String],
) -> Result<Requirements, Refusal> {
    let named = |what: &'static str| move |invalid: Invalid| Invalid { what, ..invalid };
    let route = route.map(|route| {
        Ok::<_, Refusal>(Route {
            source: Language::parse(&route.source).map_err(named("route.source"))?,
            target: Language::parse(&route.target).map_err(named("route.target"))?,
        })
    });
    let of_labels =
        |Invalid { expected, .. }| Invalid { what: "requires", expected: format!("labels of {expected}") };
    let labels = requires.iter().map(|label| Label::parse(label).map_err(of_labels));
    let mut requires = labels.collect::<Result<Vec<_>, _>>()?;
    requires.sort_unstable();
    requires.dedup();
    Ok(Requirements { pool: pool.map(PoolName::parse).transpose()?, route: route.transpose()?, requires })
}

/// How jobs ended, as a filter says it.
pub fn outcome(asked: jobs::Outcome) -> Result<Outcome, Refusal> {
    Ok(Outcome::parse(asked.as_str())?)
}

/// A session to be opened.
pub fn session(asked: &sessions::SessionRequest) -> Result<session::Spec, Refusal> {
    Ok(session::Spec {
        tenant: asked.tenant.as_deref().map(TenantId::parse).transpose()?,
        needs: requirements(asked.pool.as_deref(), asked.route.as_ref(), &asked.requires)?,
        ordering: Ordering::parse(asked.ordering.unwrap_or(sessions::Ordering::Strict).as_str())?,
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
        on_expiry: asked.on_expiry.map(|on_expiry| OnExpiry::parse(on_expiry.as_str())).transpose()?,
        max_in_flight: match asked.max_in_flight {
            Some(Some(nonces)) => Some(Some(nonce::check_max_in_flight(nonces)?)),
            Some(None) => Some(None),
            None => None,
        },
        shared_keys: asked.shared_keys,
    })
}

/// What a time in a request must be.
pub const TIME: &str = "a time as in 2026-01-31T08:00:00Z, from 1970 to 2255";

/// How many characters a day has, as in `2026-01-31`.
const DAY_CHARS: usize = 10;

/// A time in a request; `None` if the text is none.
#[must_use]
pub fn time_in(text: &str) -> Option<Timestamp> {
    // What reads it takes any character between the day and the time of the day.
    if !matches!(text.get(DAY_CHARS..=DAY_CHARS), Some("T" | "t")) {
        return None;
    }
    let read = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339);
    let micros = read.ok().and_then(|at| i64::try_from(at.unix_timestamp_nanos() / 1_000).ok());
    micros.filter(|micros| (0..=RUN_AT_MICROS_MAX).contains(micros)).map(Timestamp::from_micros)
}

/// The time that this field of a request, or this parameter of its query, gives.
///
/// # Errors
/// `invalid`, with the field and [`TIME`].
pub fn time_of(field: &str, text: &str) -> Result<Timestamp, Refusal> {
    time_in(text).ok_or_else(|| Refusal::invalid(format!("{field} must be {TIME}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_may_be_due_until_the_ledger_takes_no_later_time() {
        let last = time_of("run_at", "2255-06-05T23:47:34.740991Z").unwrap();
        assert_eq!(last.as_micros(), RUN_AT_MICROS_MAX);
        for late in ["2255-06-05T23:47:34.740992Z", "1969-12-31T23:59:59.999999Z"] {
            assert!(time_of("run_at", late).is_err(), "{late}");
        }
    }

    #[test]
    fn a_time_is_separated_from_its_day_by_a_t() {
        let read = |separator: &str| time_in(&format!("2026-01-31{separator}08:00:00Z"));
        assert_eq!(read("t"), read("T"));
        assert!(read("T").is_some());
        for bad in [" ", "_", "x", "", "TT", "ä"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
