//! The messages from the owner of a lane to the instance that holds a node's socket: an attempt, and its
//! withdrawal. Between instances they are entries of an inbox (`instance_message`), which name the attempt; the holder reads
//! the job from the ledger. Both may arrive twice without harm, because each slot is sent once.

use domain::job::{Assignment, Attempt, Backoff, Class, CurrentAttempt, NodeJob};
use domain::{InstanceId, JobId, LaneId};
use ledger::LiveJob;

/// An attempt to be sent to its node.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// The job.
    pub job: JobId,
    /// Which attempt.
    pub attempt: Attempt,
    /// Who gets it, and who holds its socket.
    pub placed: Assignment,
    /// What the node gets.
    pub node_job: NodeJob,
    /// What the holder of the node's socket must know of the job.
    pub(super) policy: RetryPolicy,
}

/// What is needed to decide about a job whose attempt failed, and to report it.
#[derive(Clone, Debug)]
pub(super) struct RetryPolicy {
    /// The lane that the job belongs to.
    pub(super) lane: LaneId,
    /// The instance that owned the lane when it dispatched the attempt; `None` for this one.
    pub(super) owner: Option<InstanceId>,
    /// As [`Noticed::was_read`].
    pub(super) was_read: bool,
    /// What the job is counted by.
    pub(super) class: Class,
    pub(super) charged_attempts: u32,
    pub(super) max_attempts: u32,
    pub(super) backoff: Backoff,
}

/// An attempt to be sent to its node, for the instance that holds the node's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DispatchNotice {
    pub(super) job: JobId,
    pub(super) attempt: Attempt,
    pub(super) placed: Assignment,
    /// The lane that the job belongs to, which hears of an attempt that cannot be sent.
    pub(super) lane: LaneId,
    /// The instance that owned the lane when it dispatched the attempt; `None` for this one.
    pub(super) owner: Option<InstanceId>,
}

/// A [`DispatchNotice`] as it was read from an inbox.
#[derive(Clone, Debug)]
pub(super) struct Noticed {
    pub(super) notice: DispatchNotice,
    /// It was read before, or may have been, by this instance or by the dead one whose inbox it lies in: the node may have been
    /// sent the attempt, and nobody may say that it never was.
    pub(super) was_read: bool,
}

impl Noticed {
    /// The attempt, where it is still the job's newest, on this node.
    pub(super) fn dispatch(self, job: &LiveJob) -> Option<Dispatch> {
        let Self { notice: DispatchNotice { attempt, placed, owner, .. }, was_read } = self;
        let is_current = job.newest.attempt == attempt && job.placed.as_ref() == Some(&placed);
        is_current.then(|| {
            let mut dispatch = Dispatch::new(job, job.newest, placed);
            (dispatch.policy.owner, dispatch.policy.was_read) = (owner, was_read);
            dispatch
        })
    }
}

/// An attempt that its node must stop.
#[derive(Clone, Debug)]
pub(super) struct Withdrawal {
    pub(super) job: JobId,
    pub(super) attempt: Attempt,
    pub(super) placed: Assignment,
}

impl Dispatch {
    /// Whether a lane of another instance dispatched it.
    #[must_use]
    pub const fn is_foreign(&self) -> bool {
        self.policy.owner.is_some()
    }

    /// The notice to the instance that holds the node's socket.
    pub(super) fn notice(&self) -> DispatchNotice {
        let RetryPolicy { lane, owner, .. } = &self.policy;
        DispatchNotice {
            job: self.job,
            attempt: self.attempt,
            placed: self.placed.clone(),
            lane: lane.clone(),
            owner: owner.clone(),
        }
    }

    pub(super) fn new(job: &LiveJob, newest: CurrentAttempt, placed: Assignment) -> Self {
        Self {
            job: job.id,
            attempt: newest.attempt,
            placed,
            node_job: job.spec.node_job(job.seq, job.retry_of),
            policy: RetryPolicy::of(job, newest),
        }
    }
}

impl RetryPolicy {
    /// The policy of a job with this attempt, dispatched by a lane of this instance or by one that is not known.
    pub(super) fn of(job: &LiveJob, newest: CurrentAttempt) -> Self {
        Self {
            lane: job.lane.clone(),
            owner: None,
            was_read: false,
            class: job.spec.class(),
            charged_attempts: newest.charged_attempts,
            max_attempts: job.spec.max_attempts,
            backoff: job.spec.backoff,
        }
    }
}
