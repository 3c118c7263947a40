//! A job as its lane's owner knows it, and the writes of a commit.

use super::{Assignment, Attempt, Change, CurrentAttempt, Priority, Requirements, Spec, State};
use crate::{ClientRef, JobId, KeyScope, LaneId, NodeId, PoolName, TenantId, Timestamp};

/// Bytes of text in a batch that take the room of one row.
const BYTES_PER_ROW: usize = 4 << 10;

/// One write to one job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobWrite {
    /// What is written.
    pub change: Change,
    /// For a submit: the idempotency key to keep with it; nothing is written if it is not new.
    pub key: Option<JobKey>,
}

/// An idempotency key to be kept with a submit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobKey {
    /// Where it counts.
    pub scope: KeyScope,
    /// SHA-256 of what was asked.
    pub body_hash: [u8; 32],
}

/// What became of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobVerdict {
    /// It is durable.
    Written,
    /// Its idempotency key is taken. Read what is kept under it.
    KeyTaken,
    /// It was to retry a job once, and another job has retried that one, or it is gone. Its idempotency key, if it has
    /// one, may be taken: read what is kept under it.
    AlreadyRetried,
    /// The job is not as the change says it was: not in that lane, attempt, node or state any more, finished, or gone.
    Stale,
    /// It is wrong in itself, which is a defect of its sender: the ledger takes no such write.
    Refused,
}

/// A job that is not finished, with all that it takes to dispatch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveJob {
    /// The job's id.
    pub id: JobId,
    /// Whose owner dispatches it.
    pub lane: LaneId,
    /// Its place in its session.
    pub seq: Option<u64>,
    /// What its client calls it.
    pub client_ref: Option<ClientRef>,
    /// What was asked.
    pub spec: Spec,
    /// State and attempts.
    pub newest: CurrentAttempt,
    /// Where the newest attempt is; `None` in CREATED.
    pub placed: Option<Assignment>,
    /// The node of its last attempt that was over when the job was read; `None` without one, and where it was not read.
    pub last_node: Option<NodeId>,
    /// The job that it repeats by hand.
    pub retry_of: Option<JobId>,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it may be dispatched; `None` at once.
    pub due_at: Option<Timestamp>,
    /// When the newest attempt was placed.
    pub dispatched_at: Option<Timestamp>,
    /// When its node acknowledged it.
    pub running_at: Option<Timestamp>,
    /// How long before the job was read that was, in milliseconds by the database's clock; 0 where it was not read.
    pub running_for_ms: u64,
}

/// An attempt that is DISPATCHED or RUNNING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// The job.
    pub job: JobId,
    /// The attempt's number.
    pub attempt: Attempt,
    /// Whether its node has acknowledged it.
    pub state: State,
}

/// An attempt that was taken back and may never have been sent to its node: then its reservation stands until it is
/// removed or runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RevokedAttempt {
    /// The job.
    pub job: JobId,
    /// The attempt's number.
    pub attempt: Attempt,
    /// How long ago it was taken back, in milliseconds by the database's clock.
    pub ago_ms: u64,
}

/// The waiting jobs of a lane that need the same, for one tenant: where one of them finds no node, none of them does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct WaitingGroup {
    /// On whose behalf.
    pub tenant: Option<TenantId>,
    /// What they require of a node.
    pub needs: Requirements,
}

/// A delayed job that waits from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromotedJob {
    /// The job's id.
    pub job: JobId,
    /// Its priority.
    pub priority: Priority,
    /// Which jobs it waits with.
    pub group: WaitingGroup,
}

impl LiveJob {
    /// A job in CREATED without an attempt, a session and a delay. Its time of creation is 0: only the database knows it.
    #[must_use]
    pub const fn created(id: JobId, lane: LaneId, spec: Spec) -> Self {
        Self {
            id,
            lane,
            seq: None,
            client_ref: None,
            spec,
            newest: CurrentAttempt { state: State::Created, attempt: Attempt::NONE, charged_attempts: 0 },
            placed: None,
            last_node: None,
            retry_of: None,
            created_at: Timestamp::from_micros(0),
            due_at: None,
            dispatched_at: None,
            running_at: None,
            running_for_ms: 0,
        }
    }
}

impl JobWrite {
    /// How much room it takes in a batch: a row, one for its key, one for the job that it retries, and more for a
    /// long text.
    #[must_use]
    pub fn rows(&self) -> usize {
        let text = match &self.change {
            Change::Submit(new) => new.spec.text_bytes(),
            Change::Complete { output, .. } => output.len(),
            Change::Dispatch { .. }
            | Change::Revoke { .. }
            | Change::End { .. }
            | Change::Run { .. }
            | Change::Fail { .. }
            | Change::Release { .. } => 0,
        };
        self.change.written_jobs().count() + usize::from(self.key.is_some()) + text / BYTES_PER_ROW
    }
}

impl WaitingGroup {
    /// The pool as it is kept: an empty text for none.
    #[must_use]
    pub fn pool_text(&self) -> &str {
        self.needs.pool.as_ref().map_or("", PoolName::as_str)
    }

    /// The tenant as it is kept: an empty text for none.
    #[must_use]
    pub fn tenant_text(&self) -> &str {
        self.tenant.as_ref().map_or("", TenantId::as_str)
    }
}
