//! Jobs: their writes, what the owner of a lane loads, and what anybody may read.
//!
//! A job is one row among the few that are unfinished, and is moved to the many that are finished by the commit
//! that ends it. The writes of a lane's owner are fenced by the lane's lease; what the holder of a node's socket
//! writes is fenced by attempt, node and state alone.

mod cargo;
pub(crate) mod rows;
pub(crate) mod sorted;
pub(crate) mod write;

use std::sync::Arc;

use domain::job::{Attempt, Change, Newest, Outcome, PastAttempt, Placed, Spec, State};
use domain::{
    ClientRef, InstanceId, JobId, NodeId, PoolName, Resource, SessionId, TenantId, Timestamp, Token,
};

use crate::{KeyScope, Result};

/// Bytes of payloads and results after which a page of jobs ends: one more may be on it, no more.
pub const PAGE_BYTES_MAX: u64 = 16 << 20;
/// Bytes of text in a batch that take the room of one row.
const BYTES_PER_ROW: usize = 4 << 10;
/// Days ahead for which the finished jobs have a partition of their own.
pub const PARTITION_DAYS_AHEAD: u64 = 3;

/// One owner's time with a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The session, or the instance, whose jobs these are.
    pub resource: Resource,
    /// Who writes.
    pub owner: InstanceId,
    /// Under which tenure. The commit locks the lane's lease at exactly this token.
    pub token: Token,
}

/// What one commit writes for one lane, or for the holder of some nodes' sockets. Fenced as a whole; else each
/// write has a fate of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobBatch {
    /// Whose jobs; `None` for a holder, who may write only what is not the lanes'.
    pub lane: Option<Lane>,
    /// At most one for each job, and together at most [`crate::BATCH_ROWS_MAX`] [rows](JobWrite::rows) less one.
    /// Shared, since whoever sends a batch wants to know afterwards what was in it.
    pub writes: Arc<[JobWrite]>,
}

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

/// A submit's key that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptJobKey {
    /// SHA-256 of what was asked.
    pub body_hash: [u8; 32],
    /// The job that came of it.
    pub job: JobId,
    /// Its lane.
    pub lane: Resource,
    /// Its place in its session.
    pub seq: Option<u64>,
    /// When it was written down.
    pub created_at: Timestamp,
}

/// What became of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobsVerdict {
    /// It is durable, as far as its writes were possible.
    Written {
        /// The transaction's time.
        at: Timestamp,
        /// What became of each write, in their order.
        jobs: Vec<JobVerdict>,
    },
    /// The lane's lease is another's by now, or released. Nothing was written, nor will anything be.
    Fenced,
    /// The lease's row was locked; nothing was written, the same may be sent again.
    Again,
}

/// What became of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobVerdict {
    /// It is durable.
    Written,
    /// Its idempotency key is taken. Read what is kept under it.
    KeyTaken,
    /// The job is not as the change says it was: not in that lane, attempt, node or state any more, finished, or gone.
    Stale,
}

/// A job that is not finished, with all that it takes to dispatch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveJob {
    /// Which.
    pub id: JobId,
    /// Whose owner dispatches it.
    pub lane: Resource,
    /// Its place in its session.
    pub seq: Option<u64>,
    /// What its client calls it.
    pub client_ref: Option<ClientRef>,
    /// What was asked.
    pub spec: Spec,
    /// State and attempts.
    pub newest: Newest,
    /// Where the newest attempt is; `None` in CREATED.
    pub placed: Option<Placed>,
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
}

/// An attempt that is DISPATCHED or RUNNING.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnderWay {
    /// Of which job.
    pub job: JobId,
    /// Which.
    pub attempt: Attempt,
    /// Whether its node has acknowledged it.
    pub state: State,
}

/// A job for the reader, finished or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// Which.
    pub id: JobId,
    /// Whose owner dispatches it, or did last.
    pub lane: Resource,
    /// Its place in its session.
    pub seq: Option<u64>,
    /// What its client calls it.
    pub client_ref: Option<ClientRef>,
    /// What was asked.
    pub spec: Spec,
    /// Its state.
    pub state: State,
    /// The number of its newest attempt.
    pub attempt: Attempt,
    /// How many attempts that are over count.
    pub counted: u32,
    /// Where the newest attempt is, or was when the job ended.
    pub placed: Option<Placed>,
    /// The job that it repeats by hand.
    pub retry_of: Option<JobId>,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When it may be, or would have been, dispatched; `None` at once.
    pub due_at: Option<Timestamp>,
    /// When the newest attempt was placed.
    pub dispatched_at: Option<Timestamp>,
    /// When its node acknowledged it.
    pub running_at: Option<Timestamp>,
    /// Attempts that are over, in order; of very many the newest.
    pub attempts: Vec<PastAttempt>,
    /// How it ended; `None` before.
    pub finished: Option<Finished>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How.
    pub outcome: Outcome,
    /// Its attempts were used up.
    pub dead: bool,
    /// What the node gave: JSON text.
    pub result: Option<String>,
    /// What went wrong, in words.
    pub error: Option<String>,
    /// When.
    pub finished_at: Timestamp,
    /// When its slot was free again. At once where its node ended it or no node had it.
    pub released_at: Option<Timestamp>,
}

/// The waiting jobs of a lane that may run in one pool, for one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitingGroup {
    /// The pool asked for.
    pub pool: Option<PoolName>,
    /// On whose behalf.
    pub tenant: Option<TenantId>,
}

/// A lane that has something due and no live owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftLane {
    /// Which.
    pub lane: Resource,
    /// Whoever has its lease still and shows no life: whether to take it over at once is for the caller to judge.
    /// `None`: the lease is free.
    pub owner: Option<InstanceId>,
}

/// Which jobs to list. All conditions together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobFilter {
    /// In this state.
    pub state: Option<State>,
    /// That ended so.
    pub outcome: Option<Outcome>,
    /// Of this session.
    pub session: Option<SessionId>,
    /// Of this tenant.
    pub tenant: Option<TenantId>,
    /// That asked for this pool.
    pub pool: Option<PoolName>,
    /// Only those whose attempts were used up.
    pub dead: bool,
    /// Older than this one.
    pub before: Option<JobId>,
    /// So many at most.
    pub limit: u32,
}

/// The jobs of all lanes. A page of jobs may have fewer than were asked for, see [`PAGE_BYTES_MAX`]; only an empty
/// one is the end.
#[async_trait::async_trait]
pub trait Jobs: Send + Sync {
    /// One transaction: locks the lane's lease at exactly the batch's token, then writes each change if its job is
    /// still as the change says it was.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, committed. A lane's owner acquires anew and
    /// reloads; a holder may say the same again, and is told that it is stale if it was done.
    async fn commit_jobs(&self, batch: JobBatch) -> Result<JobsVerdict>;

    /// One job, finished or not; `None` if it never was, or was purged.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn job(&self, id: JobId) -> Result<Option<JobRecord>>;

    /// Jobs, newest first.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRecord>>;

    /// What is kept under the idempotency keys of submits; one never kept is missing from it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn kept_job_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptJobKey)>>;

    /// A lane's jobs that are DISPATCHED or RUNNING, in the order of their ids. Call this and all that follow after
    /// the acquire was answered, never together with it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn in_flight(&self, lane: &Resource, after: Option<JobId>, limit: u32) -> Result<Vec<LiveJob>>;

    /// The same jobs, with their attempts and states alone.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn under_way(&self, lane: &Resource, after: Option<JobId>, limit: u32) -> Result<Vec<UnderWay>>;

    /// The groups of a lane that have a job that is due at once (none of the delayed ones), without a pool and
    /// without a tenant first. Quick, whatever the number of jobs.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn waiting_groups(
        &self,
        lane: &Resource,
        after: Option<&WaitingGroup>,
        limit: u32,
    ) -> Result<Vec<WaitingGroup>>;

    /// The first of a group's jobs that are due at once: by priority, then by place in the session, then by id.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn waiting(&self, lane: &Resource, group: &WaitingGroup, limit: u32) -> Result<Vec<LiveJob>>;

    /// A lane's delayed jobs that are due now or within so many milliseconds, and in how many each is: the earliest
    /// first, behind the job `after` of that due time.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn coming_due(
        &self,
        lane: &Resource,
        after: Option<(Timestamp, JobId)>,
        within_ms: u64,
        limit: u32,
    ) -> Result<Vec<(LiveJob, u64)>>;

    /// Looks at so many lanes that have unfinished jobs, in the order of their names behind `after`. Answers those
    /// that have something to do within so many milliseconds and no live owner, and the lane to go on behind; `None`
    /// when all were looked at.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn left_lanes(
        &self,
        after: Option<&Resource>,
        due_within_ms: u64,
        look_at: u32,
    ) -> Result<(Vec<LeftLane>, Option<Resource>)>;

    /// The highest place that a lane has given in its session; 0 for none. That of a job that is purged counts for as
    /// long as the session is open.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn lane_seq(&self, lane: &Resource) -> Result<u64>;

    /// The unfinished attempts that a node has: as many as it has slots, and those that were given to it since by who
    /// did not know.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn attempts_on(&self, node: &NodeId) -> Result<Vec<(JobId, Attempt)>>;

    /// The attempts of these jobs that are under way, by id.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn attempts_of(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Attempt)>>;

    /// Forgets jobs that finished longer ago than `age_ms`: as many as are cheap to forget together (a whole day's,
    /// where the ledger keeps days apart, which it does once the whole day is that old), and `limit` others at most.
    /// Answers how many others.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects; [`crate::Error::Aborted`] where it would have kept others waiting.
    async fn purge_jobs(&self, age_ms: u64, limit: u32) -> Result<u64>;

    /// Makes room for the finished jobs of the next [`PARTITION_DAYS_AHEAD`] days, where days are kept apart. Without
    /// it nothing fails; forgetting them takes longer.
    ///
    /// # Errors
    /// As [`Self::purge_jobs`].
    async fn make_job_partitions(&self) -> Result<()>;
}

impl WaitingGroup {
    /// The pool as it is kept: an empty text for none.
    pub(crate) fn pool_text(&self) -> &str {
        self.pool.as_ref().map_or("", PoolName::as_str)
    }

    /// The tenant as it is kept: an empty text for none.
    pub(crate) fn tenant_text(&self) -> &str {
        self.tenant.as_ref().map_or("", TenantId::as_str)
    }
}

impl JobFilter {
    /// Whether a job that is not finished may be among them.
    pub(crate) fn allows_unfinished(&self) -> bool {
        self.state != Some(State::Finished) && self.outcome.is_none() && !self.dead
    }

    /// Whether a finished job may be among them.
    pub(crate) fn allows_finished(&self) -> bool {
        matches!(self.state, None | Some(State::Finished))
    }

    /// A list's statement for this filter: without the marked lines that it does not ask for.
    pub(crate) fn narrowed(&self, statement: &str) -> String {
        let asks_for = |mark: &str| match mark {
            "session" => self.session.is_some(),
            "tenant" => self.tenant.is_some(),
            "pool" => self.pool.is_some(),
            "state" => self.state.is_some(),
            "outcome" => self.outcome.is_some(),
            "unsuccessful" => self.outcome.is_some_and(|outcome| outcome != Outcome::Succeeded),
            "dead" => self.dead,
            other => unreachable!("no list has a mark {other}"),
        };
        let stays = |line: &&str| line.split_once("--? ").is_none_or(|(_, mark)| asks_for(mark));
        statement.lines().filter(stays).collect::<Vec<_>>().join("\n")
    }
}
