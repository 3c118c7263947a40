//! Why a wish about a job was not fulfilled.

use domain::{InstanceId, LaneId};

use crate::ledger_failure::refusal_of;

/// A wish that was not fulfilled. Where it does not say otherwise, nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Another instance owns the job's lane.
    #[error("the job's lane is owned by {owner}")]
    NotOwner {
        /// The owner.
        owner: InstanceId,
    },
    /// The job's lane has no owner at the moment; another instance adopts it within seconds.
    #[error("{lane} has no owner at the moment")]
    NoOwner {
        /// The lane.
        lane: LaneId,
    },
    /// The ledger did not answer in time. Whether anything was written is not known.
    #[error("the ledger did not answer in time")]
    LedgerUnavailable,
    /// This incarnation has ended, or the lane was taken over; nothing was written.
    #[error("the lane was taken over while the request was served")]
    Fenced,
    /// The idempotency key, or the `ref` that is a job's in its session, was used for another request.
    #[error(
        "the key (the Idempotency-Key, or a job's ref in its session) was used for another request; repeat the first request \
         unchanged, or, if this one is to be done as well, send it under a new key"
    )]
    KeyReused,
    /// Too much is on its way into the ledger.
    #[error("too many jobs wait to be written to the ledger")]
    Overloaded,
    /// As much is watched here as may be.
    #[error("this instance serves too many event streams")]
    TooManyWatched,
    /// There never was such a session, or it was purged.
    #[error("no such session")]
    UnknownSession,
    /// The token has as many open sessions as it may have.
    #[error("the token has as many open sessions as it may have; close those that are not needed")]
    TooManySessions,
    /// The session takes no new jobs.
    #[error("the session is closed; open another one, under another key, and submit the job there")]
    SessionClosed,
    /// The session has as many unfinished jobs as it may have.
    #[error(
        "the session has {} unfinished jobs, the largest number allowed",
        super::limits::SESSION_JOBS_MAX
    )]
    SessionFull,
    /// In a strict session the order of submission is the only one.
    #[error("a job of a strict session has no priority; its jobs run in the order of their submission")]
    StrictPriority,
    /// A job requires its session's labels as well as its own.
    #[error(
        "`requires` of the job and of its session have more than {} labels together",
        domain::limits::JOB_LABELS_MAX
    )]
    TooManyLabels,
    /// Sessions of several instances need the bus.
    #[error("sessions need Redis where several instances may run; start this one with --redis-url")]
    NoBus,
    /// There never was such a job, or it was purged.
    #[error("no such job")]
    UnknownJob,
    /// Only a finished job is repeated.
    #[error("the job is {}, not FINISHED", .0.as_str())]
    NotFinished(domain::job::State),
    /// The retry was to be the only one, and another job has retried the same job.
    #[error("another job has retried this one")]
    AlreadyRetried,
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

impl From<domain::lane::Refused> for Refusal {
    fn from(refused: domain::lane::Refused) -> Self {
        use domain::lane::Refused;
        match refused {
            Refused::OutcomeUnknown => Self::LedgerUnavailable,
            Refused::Defect => Self::Internal,
            Refused::Fenced => Self::Fenced,
            Refused::Overloaded => Self::Overloaded,
            Refused::UnknownSession => Self::UnknownSession,
            Refused::SessionClosed => Self::SessionClosed,
            Refused::SessionFull => Self::SessionFull,
            Refused::StrictPriority => Self::StrictPriority,
            Refused::TooManyLabels => Self::TooManyLabels,
            Refused::AlreadyRetried => Self::AlreadyRetried,
        }
    }
}
