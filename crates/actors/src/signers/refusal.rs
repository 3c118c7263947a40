//! Why the owner of a signer does not do as asked. Nothing has changed then, unless it says so.

use domain::nonce::ResolveRefusal;
use domain::{InstanceId, Nonce};

/// Why a request is refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// Another instance has the signer's lease.
    #[error("the signer's lease is held by {owner} for another {expires_in_ms} ms")]
    LeaseHeld {
        /// Which.
        owner: InstanceId,
        /// How long it still runs, in milliseconds.
        expires_in_ms: u64,
    },
    /// Another instance owns the signer, and serves it for as long as there is work (worker-queue mode).
    #[error("the signer is owned by {owner}")]
    NotOwner {
        /// Which.
        owner: InstanceId,
        /// How long its lease still runs unless it is renewed, in milliseconds.
        expires_in_ms: u64,
    },
    /// The ledger did not answer in time. Whether anything was written is not known.
    #[error("the ledger did not answer in time")]
    LedgerUnavailable,
    /// The lease was taken while the request was served; nothing was written.
    #[error("the signer's lease was taken over while the request was served")]
    Fenced,
    /// The signer has no window left.
    #[error("{in_flight} nonces are held or quarantined, and {max_in_flight} may be")]
    WindowFull {
        /// HELD and QUARANTINED now.
        in_flight: u64,
        /// The policy's window.
        max_in_flight: u64,
    },
    /// There are no nonces left.
    #[error("the signer's nonces are used up")]
    Exhausted,
    /// The grant under this idempotency key moved on: a hold was settled, ran out, or is another's.
    #[error("a hold of this grant was settled or ran out; ask again under a new key")]
    StaleReplay,
    /// The idempotency key was used for another request.
    #[error("the idempotency key was used for another request")]
    KeyReused,
    /// Too much is waiting.
    #[error("too many requests are waiting")]
    Overloaded,
    /// Nobody granted anything to this signer, nor set its policy.
    #[error("no such signer")]
    UnknownSigner,
    /// The nonce was never granted.
    #[error("no such nonce")]
    UnknownNonce,
    /// The hold named is not the nonce's last one.
    #[error("the hold is not the nonce's last one")]
    StaleHold,
    /// The nonce is not QUARANTINED.
    #[error("the nonce is {}, not QUARANTINED", .0.0.as_str())]
    NotQuarantined(ResolveRefusal),
    /// The first nonce is fixed since the first grant.
    #[error("nonces were granted from {first_nonce} on")]
    FirstNonceFixed {
        /// Where they begin.
        first_nonce: Nonce,
    },
    /// A defect, logged where it was seen.
    #[error("internal error")]
    Internal,
}

/// What a failure of the ledger means to the caller.
pub(super) fn of_ledger(error: &ledger::Error) -> Refusal {
    if error.is_retryable() {
        tracing::debug!(%error, "the ledger did not answer");
        return Refusal::LedgerUnavailable;
    }
    tracing::error!(%error, "the ledger failed");
    Refusal::Internal
}
