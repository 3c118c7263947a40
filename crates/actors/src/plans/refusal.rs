//! Why a wish about a plan was not fulfilled.

use domain::plan::Refused;
use domain::{InstanceId, Token};
use ledger::Locker;

use crate::ledger_failure::refusal_of;

/// A wish about a plan that was not fulfilled. Where it does not say otherwise, nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There never was such a plan, or it was purged.
    #[error("no such plan")]
    UnknownPlan,
    /// There never was such a task, or it was purged.
    #[error("no such task")]
    UnknownTask,
    /// The tenant has no lock that is held.
    #[error("the tenant is not locked")]
    NotLocked,
    /// The tenant's lock is at another token than the one that was named.
    #[error("the tenant's lock is held at token {0}, not at the one that was named")]
    OtherToken(Token),
    /// Not in this state, or not by this request.
    #[error("{0}")]
    Refused(Refused),
    /// Another task has the tenant's lock.
    #[error("the tenant {} is locked by another task", .0.tenant.as_str())]
    TenantLocked(Locker),
    /// The context that a retry asks for cannot be kept.
    #[error("{0}")]
    Unfit(String),
    /// The context that a retry asks for has more bytes than are kept.
    #[error("{0}")]
    TooLarge(String),
    /// Another instance owns the plan.
    #[error("the plan is owned by {owner}")]
    NotOwner {
        /// The owner.
        owner: InstanceId,
    },
    /// The plan has no owner at the moment; an instance adopts it within seconds.
    #[error("the plan has no owner at the moment")]
    NoOwner,
    /// The idempotency key was used for another request.
    #[error(
        "the Idempotency-Key was used for another request; repeat the first request unchanged, or, if this one is to be done \
         as well, send it under a new key"
    )]
    KeyReused,
    /// Too many requests wait for the plan, or it was to be started where the plans that are owned, or those of them that the
    /// same token has started, have too many bytes.
    #[error(
        "too many requests wait for the plan, or this instance owns too many plans, in all or of one token, to start another one"
    )]
    Overloaded,
    /// The ledger did not answer in time. Whether anything was written is not known.
    #[error("the ledger did not answer in time")]
    LedgerUnavailable,
    /// This incarnation has ended, or the plan was taken over; nothing was written.
    #[error("the plan was taken over while the request was served")]
    Fenced,
    /// A defect, logged where it was seen.
    #[error("internal error")]
    Internal,
}

/// What a failure of the ledger means to the caller. Logs it.
impl From<ledger::Error> for Refusal {
    fn from(error: ledger::Error) -> Self {
        refusal_of(&error, Self::LedgerUnavailable, Self::Internal)
    }
}
