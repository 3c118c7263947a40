//! Why the owner of a signer does not do as asked. Nothing has changed then, unless it says so.

use std::fmt;

use crate::id::{HoldId, InstanceId, Nonce};
use crate::limits::REFUSAL_NONCE_RUNS_MAX;
use crate::nonce::{GrantAnswer, ResolveRefusal};

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Another instance has the signer's lease.
    LeaseHeld {
        /// The instance that has the lease.
        owner: InstanceId,
        /// How long it still runs, in milliseconds.
        expires_in_ms: u64,
    },
    /// Another instance owns the signer, and serves it for as long as there is work (worker-queue mode).
    NotOwner {
        /// The owner.
        owner: InstanceId,
        /// How long its lease still runs unless it is renewed, in milliseconds.
        expires_in_ms: u64,
    },
    /// The ledger did not answer in time. Whether anything was written is not known.
    LedgerUnavailable,
    /// The lease was taken while the request was served; nothing was written.
    Fenced,
    /// The signer has no window left.
    WindowFull {
        /// HELD and QUARANTINED now.
        in_flight: u64,
        /// The policy's window.
        max_in_flight: u64,
        /// The nonces that the grant asks for.
        asked: u64,
    },
    /// There are fewer nonces left than the grant asks for.
    Exhausted {
        /// How many.
        left: u64,
    },
    /// The ledger was recovered, and the signer's next nonce is not confirmed yet.
    Recovering,
    /// The grant under this idempotency key moved on: a hold was settled, ran out, or is another's. Or nobody can tell how old
    /// a hold is, since the database's clock was set back and repeats the time at which it was granted.
    StaleReplay {
        /// All that it granted, in the order granted: the nonces, and the holds that they had then. Its caller may have sent
        /// transactions with them.
        grants: Vec<(Nonce, HoldId)>,
    },
    /// The idempotency key was used for another request.
    KeyReused,
    /// Too much is waiting.
    Overloaded,
    /// The signer has neither a grant nor a policy.
    UnknownSigner,
    /// The nonce was never granted.
    UnknownNonce,
    /// The hold named is not the nonce's last one.
    StaleHold,
    /// The nonce is not QUARANTINED.
    NotQuarantined(ResolveRefusal),
    /// The first nonce is fixed since the first grant, or the confirmation after a recovery.
    FirstNonceFixed {
        /// Where they begin.
        first_nonce: Nonce,
    },
    /// A defect, logged where it was seen.
    Internal,
}

impl Refusal {
    /// The refusal of a request that repeats the one that got this answer.
    #[must_use]
    pub fn stale_replay(answer: &GrantAnswer) -> Self {
        Self::StaleReplay { grants: answer.grants.clone() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::LeaseHeld { owner, expires_in_ms } => {
                write!(f, "the signer's lease is held by {owner} for another {expires_in_ms} ms")
            }
            Self::NotOwner { owner, .. } => write!(f, "the signer is owned by {owner}"),
            Self::LedgerUnavailable => f.write_str("the ledger did not answer in time"),
            Self::Fenced => f.write_str("the signer's lease was taken over while the request was served"),
            Self::WindowFull { max_in_flight, asked, .. } if asked > max_in_flight => write!(
                f,
                "the grant asks for {asked} nonces, and at most {max_in_flight} may be held or quarantined: ask for fewer, or \
                 widen the signer's window"
            ),
            Self::WindowFull { in_flight, max_in_flight, asked: 1 } => {
                write!(f, "{in_flight} nonces are held or quarantined, and at most {max_in_flight} may be")
            }
            Self::WindowFull { in_flight, max_in_flight, asked } => write!(
                f,
                "the grant asks for {asked} nonces; {in_flight} are held or quarantined, and at most {max_in_flight} may be"
            ),
            Self::Exhausted { left: 0 } => f.write_str("the signer's nonces are used up"),
            Self::Exhausted { left } => {
                write!(f, "the grant asks for more nonces than the signer has left: {left}")
            }
            Self::Recovering => f.write_str(
                "the ledger was recovered from an earlier state; the signer grants again when an operator has confirmed \
                 its next nonce",
            ),
            Self::StaleReplay { grants } => {
                let nonces: Vec<_> = grants.iter().map(|(nonce, _)| *nonce).collect();
                write!(
                    f,
                    "a hold of this grant was settled, has expired, or cannot be dated since the database's clock was set \
                     back; ask under a new key only once it is known that no transaction was sent with what was granted: {}",
                    runs(&nonces)
                )
            }
            Self::KeyReused => f.write_str(
                "the Idempotency-Key was used for another request; repeat the first request unchanged, or, if this one is to be \
                 done as well, send it under a new key",
            ),
            Self::Overloaded => f.write_str("too many requests are waiting"),
            Self::UnknownSigner => f.write_str("no such signer"),
            Self::UnknownNonce => f.write_str("no such nonce"),
            Self::StaleHold => f.write_str("the hold is not the nonce's last one"),
            Self::NotQuarantined(refused) => {
                write!(f, "the nonce is {}, not QUARANTINED", refused.0.as_str())
            }
            Self::FirstNonceFixed { first_nonce } => write!(f, "nonces were granted from {first_nonce} on"),
            Self::Internal => f.write_str("internal error"),
        }
    }
}

impl std::error::Error for Refusal {}

/// The nonces, those that follow one another as the first and the last of them.
fn runs(nonces: &[Nonce]) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for nonce in nonces.iter().copied().map(Nonce::get) {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == nonce => *last = nonce,
            _ => runs.push((nonce, nonce)),
        }
    }
    let shown = runs.iter().take(REFUSAL_NONCE_RUNS_MAX).map(|&(first, last)| match first == last {
        true => format!("nonce {first}"),
        false => format!("nonces {first} to {last}"),
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    match runs.len().saturating_sub(REFUSAL_NONCE_RUNS_MAX) {
        0 => shown,
        _ => format!("{shown} and others, {} in all", nonces.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repetition_that_is_refused_is_told_all_that_may_be_the_reason() {
        let grants = vec![(Nonce::new(7).unwrap(), HoldId::from_u128(1))];
        let text = Refusal::StaleReplay { grants }.to_string();
        assert!(text.ends_with(": nonce 7"), "{text}");
        for reason in
            ["was settled", "has expired", "cannot be dated since the database's clock was set back"]
        {
            assert!(text.contains(reason), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_how_many_nonces_are_left() {
        let said = |left: u64| Refusal::Exhausted { left }.to_string();
        assert_eq!(said(0), "the signer's nonces are used up");
        assert_eq!(said(1), "the grant asks for more nonces than the signer has left: 1");
    }

    #[test]
    fn a_refusal_names_nonces_by_their_runs() {
        let named = |numbers: &[u64]| {
            let nonces: Vec<_> = numbers.iter().map(|number| Nonce::new(*number).unwrap()).collect();
            runs(&nonces)
        };
        assert_eq!(named(&[7]), "nonce 7");
        assert_eq!(named(&[2, 5, 6, 7, 9]), "nonce 2, nonces 5 to 7, nonce 9");
        let apart: Vec<u64> = (0..1_000).map(|number| 2 * number).collect();
        assert!(named(&apart).ends_with("nonce 18 and others, 1000 in all"), "{}", named(&apart));
    }
}
