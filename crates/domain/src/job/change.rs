//! What is written of a job. The ledger carries each out only if the row is still as the change says it was.

use super::{Attempt, Due, Outcome, Placed, Revoked, Spec};
use crate::id::{ClientRef, JobId, NodeId};

/// A job to be written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Its id, drawn by whoever accepted it, and never used before.
    pub id: JobId,
    /// What was asked.
    pub spec: Spec,
    /// Its place in its session, counted from 1; `None` without a session.
    pub seq: Option<u64>,
    /// What its client calls it.
    pub client_ref: Option<ClientRef>,
    /// When it may be dispatched.
    pub due: Due,
    /// The job that it repeats by hand.
    pub retry_of: Option<JobId>,
    /// Where its first attempt already has a slot: it is then written as DISPATCHED, attempt 1, at once. Only for
    /// one that is due.
    pub placed: Option<Placed>,
}

/// One write to one job. The first four are the lane's, fenced by its lease; the last three belong to whoever
/// holds the node's socket and are fenced by attempt, node and state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// CREATED, or at once DISPATCHED.
    Submit(Box<NewJob>),
    /// From CREATED after `attempt - 1` to DISPATCHED under `attempt`.
    Dispatch {
        /// Which job.
        job: JobId,
        /// The number of the new attempt.
        attempt: Attempt,
        /// Who gets it.
        placed: Placed,
    },
    /// Attempt `attempt` is over; back to CREATED.
    Revoke {
        /// Which job.
        job: JobId,
        /// Which attempt.
        attempt: Attempt,
        /// Why; it also says from which states.
        why: Revoked,
        /// The reason in words.
        reason: String,
        /// When the next is due, in milliseconds from the commit.
        due_in_ms: u64,
    },
    /// FINISHED without a result: called off, timed out, or dead.
    End {
        /// Which job.
        job: JobId,
        /// How.
        outcome: Outcome,
        /// All its attempts are used up.
        dead: bool,
        /// The attempt that must be under way; `None` ends it in whatever unfinished state it is.
        attempt: Option<(Attempt, Revoked)>,
        /// The reason in words.
        reason: String,
    },
    /// From DISPATCHED to RUNNING.
    Run {
        /// Which job.
        job: JobId,
        /// Which attempt.
        attempt: Attempt,
        /// Whose.
        node: NodeId,
    },
    /// FINISHED with the output of the newest attempt.
    Complete {
        /// Which job.
        job: JobId,
        /// Which attempt.
        attempt: Attempt,
        /// Whose.
        node: NodeId,
        /// What it gave: JSON text.
        output: String,
    },
    /// The newest attempt failed: back to CREATED, or FINISHED.
    Fail {
        /// Which job.
        job: JobId,
        /// Which attempt.
        attempt: Attempt,
        /// Whose.
        node: NodeId,
        /// What went wrong, in the node's words.
        error: String,
        /// When the next attempt is due, in milliseconds from the commit; `None` for none.
        due_in_ms: Option<u64>,
        /// All its attempts are used up.
        dead: bool,
    },
    /// The slot of a FINISHED job is free again. Noted once.
    Release {
        /// Which job.
        job: JobId,
    },
}

impl Change {
    /// The job that it writes.
    #[must_use]
    pub const fn job(&self) -> JobId {
        match self {
            Self::Submit(new) => new.id,
            Self::Dispatch { job, .. }
            | Self::Revoke { job, .. }
            | Self::End { job, .. }
            | Self::Run { job, .. }
            | Self::Complete { job, .. }
            | Self::Fail { job, .. }
            | Self::Release { job } => *job,
        }
    }

    /// Whether only the owner of the job's lane may write it.
    #[must_use]
    pub const fn is_the_lanes(&self) -> bool {
        matches!(self, Self::Submit(_) | Self::Dispatch { .. } | Self::Revoke { .. } | Self::End { .. })
    }
}
