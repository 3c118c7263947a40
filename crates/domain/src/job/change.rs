//! What is written of a job. The ledger carries each out only if the row is still as the change says it was.

use super::{Assignment, Attempt, Due, Ended, Outcome, Revoked, Spec};
use crate::id::{ClientRef, JobId, NodeId};

/// What a new job retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The finished job. The commit that makes the new job names it on this one as `retried_as`.
    pub of: JobId,
    /// Make the new job only if no other job has retried this one.
    pub once: bool,
}

/// A job to be written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewJob {
    /// Its id, chosen by the instance that accepted it, and never used before.
    pub id: JobId,
    /// What was asked.
    pub spec: Spec,
    /// Its place in its session, counted from 1; `None` without a session.
    pub seq: Option<u64>,
    /// What its client calls it.
    pub client_ref: Option<ClientRef>,
    /// When it may be dispatched.
    pub due: Due,
    /// The finished job that it retries, if it retries one.
    pub retry: Option<Retry>,
    /// Where its first attempt already has a slot: it is then written as DISPATCHED, attempt 1, at once. Only for
    /// one that is due.
    pub placed: Option<Assignment>,
}

/// One write to one job. `Submit`, `Dispatch`, `Revoke` and `End` are for the owner of the job's lane alone, fenced by the
/// lane's lease. `Run`, `Fail` and `Release` are for the instance that holds the node's socket, under no lease: the first two
/// are fenced by attempt, node and state, the last one by the attempt. `Complete` is for either of them: fenced by attempt,
/// node and state, and by the lane's lease as well where the lane's owner writes it.
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
        placed: Assignment,
        /// Only where the same commit ends this job: the one before it in a strict session.
        behind: Option<JobId>,
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
    /// FINISHED without a result: cancelled, timed out, or dead.
    End {
        /// Which job.
        job: JobId,
        /// How the job ended.
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
        /// The node that has the attempt.
        node: NodeId,
    },
    /// FINISHED with the output of the newest attempt.
    Complete {
        /// Which job.
        job: JobId,
        /// Which attempt.
        attempt: Attempt,
        /// The node that has the attempt.
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
        /// The node that has the attempt.
        node: NodeId,
        /// How: `Failed` as its node says, or revoked, where the node is lost or does not list it and the lane's owner does not
        /// hear of that. It counts.
        ended: Ended,
        /// The node's error message, or the reason in words.
        error: String,
        /// When the next attempt is due, in milliseconds from the commit; `None` for none.
        due_in_ms: Option<u64>,
        /// All its attempts are used up.
        dead: bool,
    },
    /// The slot that the last attempt of a FINISHED job had is free again. Noted once.
    Release {
        /// Which job.
        job: JobId,
        /// Which attempt.
        attempt: Attempt,
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
            | Self::Release { job, .. } => *job,
        }
    }

    /// The jobs whose rows it writes: its own, and the one that it retries.
    pub fn written_jobs(&self) -> impl Iterator<Item = JobId> {
        let retried = match self {
            Self::Submit(new) => new.retry.map(|retry| retry.of),
            _ => None,
        };
        [self.job()].into_iter().chain(retried)
    }

    /// Whether only the owner of the job's lane may write it.
    #[must_use]
    pub const fn is_the_lanes(&self) -> bool {
        matches!(self, Self::Submit(_) | Self::Dispatch { .. } | Self::Revoke { .. } | Self::End { .. })
    }
}
