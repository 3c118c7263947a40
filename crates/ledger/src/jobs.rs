//! Jobs: their writes, what the owner of a lane loads, and what anybody may read.
//!
//! An unfinished job is one row in a small table. The commit that ends the job moves the row to the large table of
//! finished jobs. The writes of a lane's owner are fenced by the lane's lease. The instance that holds a node's socket
//! writes without a lease; its writes are fenced by attempt, node and state.

mod batch_limits;
pub(crate) mod columns;
pub(crate) mod plan;
pub(crate) mod rows;

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use domain::job::{Assignment, Attempt, Outcome, PastAttempt, Spec, State};
use domain::limits::RUN_AT_MICROS_MAX;
use domain::{
    AuditEntry, ClientRef, InstanceId, JobId, JobKind, LaneId, NodeId, PoolName, SessionId, TenantId,
    Timestamp, Token,
};

pub use domain::job::{
    JobKey, JobVerdict, JobWrite, LiveJob, PromotedJob, RevokedAttempt, UnderWay, WaitingGroup,
};

use crate::train::Link;
use crate::{KeyScope, Result};

/// Bytes after which a page ends. The item that crosses this limit is the last one of its page. What counts are payloads and
/// results of jobs, definitions and contexts of tasks, and changes in the audit.
pub const PAGE_BYTES_MAX: u64 = 16 << 20;
/// When a held job is due that is CREATED, in microseconds since 1970: in the year 2255. No submit says so late a time.
pub(crate) const HELD_DUE_MICROS: i64 = RUN_AT_MICROS_MAX + 1;
/// Days ahead for which the finished jobs have a partition of their own.
pub const PARTITION_DAYS_AHEAD: u64 = 3;

/// A lane, its owner, and the token of the lease by which it owns the lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    /// The lane's name.
    pub id: LaneId,
    /// The instance that writes.
    pub owner: InstanceId,
    /// The token of its lease. The commit locks the lane's lease at exactly this token.
    pub token: Token,
}

/// What one commit writes for one lane, or for an instance that holds nodes' sockets. The fence rejects all of it or
/// nothing; apart from that each write has a verdict of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobBatch {
    /// The lane; `None` for the holder of a socket, which must not write the changes that belong to lanes.
    pub lane: Option<Lane>,
    /// At most one for each job, and together at most [`crate::BATCH_ROWS_MAX`] [rows](JobWrite::rows) less one.
    /// Shared, since the sender looks up afterwards what was in it.
    pub writes: Arc<[JobWrite]>,
}

/// A submit's key that was kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptJobKey {
    /// SHA-256 of what was asked.
    pub body_hash: [u8; 32],
    /// The job that came of it.
    pub job: JobId,
    /// Its lane.
    pub lane: LaneId,
    /// Its place in its session.
    pub seq: Option<u64>,
    /// When it was written down.
    pub created_at: Timestamp,
}

/// The jobs that a request about many of them selected, kept under its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptSelection {
    /// SHA-256 of what was asked.
    pub body_hash: [u8; 32],
    /// The jobs, in the order of the selection.
    pub jobs: Vec<JobId>,
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
    /// Another instance holds the lane's lease by now, or it was released. Nothing was written, nor will be.
    Fenced,
    /// The lease's row was locked; nothing was written, the same may be sent again.
    Again,
}

/// Why a lane's owner has written nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritten {
    /// The lane's lease is another's by now, or released.
    Fenced,
    /// The lease's row was locked; the same may be asked again.
    Again,
}

/// A job for the reader, finished or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRecord {
    /// The job's id.
    pub id: JobId,
    /// Whose owner dispatches it, or did last.
    pub lane: LaneId,
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
    pub charged_attempts: u32,
    /// Where the newest attempt is, or was when the job ended.
    pub placed: Option<Assignment>,
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

impl JobRecord {
    /// Whether the job failed or timed out, no other job has retried it, and nobody has dismissed it.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.finished.as_ref().is_some_and(|finished| {
            let is_failed = matches!(finished.outcome, Outcome::Failed | Outcome::TimedOut);
            is_failed && finished.retried_as.is_none() && finished.dismissed_at.is_none()
        })
    }
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The outcome.
    pub outcome: Outcome,
    /// Its attempts were used up.
    pub exhausted: bool,
    /// What the node gave: JSON text.
    pub result: Option<String>,
    /// What went wrong, in words.
    pub error: Option<String>,
    /// When the job ended, by the database's clock.
    pub finished_at: Timestamp,
    /// When its slot was free again. At once where its node ended it or no node had it.
    pub released_at: Option<Timestamp>,
    /// The newest job that retries it.
    pub retried_as: Option<JobId>,
    /// When somebody said that it need not be retried.
    pub dismissed_at: Option<Timestamp>,
}

/// An unfinished attempt of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldAttempt {
    /// The job.
    pub job: JobId,
    /// Whose owner waits for it.
    pub lane: LaneId,
    /// The attempt's number.
    pub attempt: Attempt,
    /// DISPATCHED or RUNNING.
    pub state: State,
    /// The instance that holds the node's socket, as the attempt was dispatched, or as [`Jobs::note_holder`] said last.
    pub holder: InstanceId,
}

/// A lane that has something due, and no live owner but perhaps the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrphanedLane {
    /// The lane's name.
    pub lane: LaneId,
    /// The instance that still has its lease: one that is not live, where the caller judges whether to take the lane over
    /// at once; or the caller, which may serve another lane under it. `None` where the lease is free.
    pub owner: Option<InstanceId>,
}

/// Pools that jobs are counted by at most, beside those that the caller names; and tenants. Clients make up any number of them.
pub const NAMES_COUNTED_MAX: usize = 10_000;

/// Unfinished jobs by their states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UnfinishedCount {
    /// The jobs that are CREATED.
    pub created: u64,
    /// Those of them that are not due yet, or are held.
    pub delayed: u64,
    /// The jobs that are DISPATCHED.
    pub dispatched: u64,
    /// The jobs that are RUNNING.
    pub running: u64,
    /// For how long the job that waits longest has been due, in milliseconds; `None` where no job waits.
    pub oldest_ms: Option<u64>,
}

impl UnfinishedCount {
    /// Adds others.
    pub fn add(&mut self, others: &Self) {
        self.created += others.created;
        self.delayed += others.delayed;
        self.dispatched += others.dispatched;
        self.running += others.running;
        self.oldest_ms = self.oldest_ms.max(others.oldest_ms);
    }
}

/// The unfinished jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnfinishedCounts {
    /// All of them.
    pub all: UnfinishedCount,
    /// Those that name each pool, and those that name none.
    pub of_pools: BTreeMap<Option<PoolName>, UnfinishedCount>,
    /// Those whose pools are not among these, since there are too many.
    pub of_further_pools: UnfinishedCount,
    /// Those of each tenant, and those of none. If there are too many tenants, some are left out.
    pub of_tenants: BTreeMap<Option<TenantId>, UnfinishedCount>,
}

impl UnfinishedCounts {
    /// Adds jobs of a tenant that name this pool. The pools in `counted` have room however many others there are.
    pub(crate) fn add(
        &mut self,
        (pool, tenant): (Option<PoolName>, Option<TenantId>),
        jobs: &UnfinishedCount,
        counted: &HashSet<PoolName>,
    ) {
        self.all.add(jobs);
        let has_room = pool.as_ref().is_none_or(|pool| counted.contains(pool));
        if !add_to(&mut self.of_pools, pool, jobs, has_room) {
            self.of_further_pools.add(jobs);
        }
        let has_room = tenant.is_none();
        add_to(&mut self.of_tenants, tenant, jobs, has_room);
    }
}

/// Adds jobs to those of this name, unless there are too many names already; says whether it did. A name may have room in any
/// case.
fn add_to<N: Ord>(
    of: &mut BTreeMap<N, UnfinishedCount>,
    name: N,
    jobs: &UnfinishedCount,
    has_room: bool,
) -> bool {
    let has_room = has_room || of.len() < NAMES_COUNTED_MAX;
    match of.entry(name) {
        Entry::Occupied(mut known) => known.get_mut().add(jobs),
        Entry::Vacant(new) if has_room => {
            new.insert(*jobs);
        }
        Entry::Vacant(_) => return false,
    }
    true
}

/// The finished jobs that are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FinishedCounts {
    /// All of them.
    pub all: u64,
    /// Those that name a pool.
    pub pools: FinishedBy<PoolName>,
    /// Those of tenants.
    pub tenants: FinishedBy<TenantId>,
}

/// Finished jobs that have names of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedBy<N> {
    /// All of them.
    pub all: u64,
    /// Those of each name; if there are too many, of the names with the most.
    pub of: Vec<(N, u64)>,
}

impl<N> Default for FinishedBy<N> {
    fn default() -> Self {
        Self { all: 0, of: Vec::new() }
    }
}

impl<N: Eq + Hash> FinishedBy<N> {
    /// Adds jobs of the last name, or of the one behind it.
    pub(crate) fn add(&mut self, name: N, jobs: u64) {
        self.all += jobs;
        match self.of.last_mut() {
            Some((last, sum)) if *last == name => *sum += jobs,
            _ => self.of.push((name, jobs)),
        }
    }

    /// Forgets the names with the fewest jobs, if there are too many. Those in `counted` stay, and so does the last one, of which
    /// more jobs may be found.
    pub(crate) fn forget_smallest(&mut self, counted: &HashSet<N>) {
        if self.of.len() < NAMES_COUNTED_MAX * 2 + counted.len() {
            return;
        }
        let newest = self.of.pop();
        self.of.sort_by_key(|(name, jobs)| (!counted.contains(name), Reverse(*jobs)));
        self.of.truncate(NAMES_COUNTED_MAX + counted.len());
        self.of.extend(newest);
    }
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
    /// Of this kind.
    pub kind: Option<JobKind>,
    /// Only those that are [dead](JobRecord::is_dead) (`true`), or only the others (`false`).
    pub dead: Option<bool>,
    /// Only those that another job has retried (`true`), or only the others (`false`).
    pub retried: Option<bool>,
    /// Only those that are no stage of a plan.
    pub without_stages: bool,
    /// Finished ones of an open session, or of none: those of a closed session are not retried.
    pub in_open_session: bool,
    /// Of a session of this tenant, or of no session and of this tenant. Only a bulk operation looks at it.
    pub only_tenant: Option<TenantId>,
    /// The same of the pool.
    pub only_pool: Option<PoolName>,
    /// In one of these sessions: each costs a step of an index. A bulk operation looks neither at it nor at the next one.
    pub sessions: Option<Vec<SessionId>>,
    /// Newer than this one.
    pub after: Option<JobId>,
    /// Older than this one.
    pub before: Option<JobId>,
    /// The most jobs to list.
    pub limit: u32,
}

/// The jobs of all lanes. A page of jobs with their payloads may have fewer than were asked for, see [`PAGE_BYTES_MAX`]; only
/// an empty one is the end.
#[async_trait::async_trait]
pub trait Jobs: Send + Sync {
    /// One transaction: locks the lane's lease at exactly the batch's token, then writes each change if its job is
    /// still as the change says it was.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, committed. A lane's owner acquires anew and
    /// reloads. The holder of a socket may send the same again; what was written before is then stale. Where a write of its
    /// batch is not possible since the ledger is behind what this process knows, it gets [`crate::Error::WentBack`], and
    /// nothing was written.
    async fn commit_jobs(&self, batch: JobBatch) -> Result<JobsVerdict> {
        self.commit_jobs_linked(batch, Link::default()).await
    }

    /// The same for a batch that leaves only while a lease surely lasts: see [`Link::under`].
    ///
    /// # Errors
    /// As for [`Self::commit_jobs`]; [`crate::Error::Unavailable`] where it did not leave.
    async fn commit_jobs_linked(&self, batch: JobBatch, link: Link) -> Result<JobsVerdict>;

    /// Locks the lane's lease at exactly its token, and holds those of the lane's jobs that were submitted with
    /// [`OnRecovery::Hold`](domain::job::OnRecovery::Hold): from now on they are
    /// [`Held`](domain::job::OnRecovery::Held), and no attempt of theirs begins any more. A dispatch of a held job is
    /// [`JobVerdict::Stale`]; the list of jobs that wait and [`Self::orphaned_lanes`] leave held jobs out.
    ///
    /// A lane's new owner asks this after its acquire and before it loads or submits anything. An owner that acquires
    /// its own lease anew does not. Answers how many jobs were not held before.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, written: acquire anew and ask again.
    async fn hold_jobs(&self, lane: &Lane) -> Result<Result<u64, Unwritten>>;

    /// Has the first `limit` delayed jobs of a lane that are due wait, as if they had never been delayed: they lose their due
    /// time, and are in a group from then on. Answers them.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, written: acquire anew and read again.
    async fn promote_jobs(&self, lane: &Lane, limit: u32) -> Result<Result<Vec<PromotedJob>, Unwritten>>;

    /// One job, finished or not; `None` if it never was, or was purged.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn job(&self, id: JobId) -> Result<Option<JobRecord>>;

    /// The same, to answer as done what an earlier call may have written of it: on PostgreSQL that call may have been cut off
    /// while its commit waited for a synchronous standby. It is answered once the standby has what is answered.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`], also as long as such a standby is away, and defects.
    async fn settled_job(&self, id: JobId) -> Result<Option<JobRecord>>;

    /// The states of these jobs, in any order, without reading what makes their rows large. One that never was, or was
    /// purged, is missing from it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn job_states(&self, jobs: &[JobId]) -> Result<Vec<(JobId, State)>>;

    /// Jobs, newest first, without what makes rows large: payload, stage and result are empty. Of the past attempts there is one
    /// at most: the last one of an unfinished job, or the one that succeeded. A page has as many jobs as were asked for, or is
    /// the last.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRecord>>;

    /// What is kept under the idempotency keys of submits; one never kept is missing from it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn kept_job_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptJobKey)>>;

    /// What [`Self::keep_selection`] has kept there.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn kept_selection(&self, scope: &KeyScope) -> Result<Option<KeptSelection>>;

    /// Keeps the selection of a request under its key, unless one is kept there; returns the one that is.
    ///
    /// # Errors
    /// [`crate::Error::Refused`]: a key that no such request can have. [`crate::Error::Unavailable`] and defects.
    async fn keep_selection(&self, key: &JobKey, jobs: &[JobId]) -> Result<KeptSelection>;

    /// A lane's jobs that are DISPATCHED or RUNNING, in the order of their ids, with how long they have been RUNNING. Call
    /// this and all that follow after the acquire was answered, never together with it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn in_flight(&self, lane: &LaneId, after: Option<JobId>, limit: u32) -> Result<Vec<LiveJob>>;

    /// The same jobs, with their attempts and states alone.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn under_way(&self, lane: &LaneId, after: Option<JobId>, limit: u32) -> Result<Vec<UnderWay>>;

    /// The groups of a lane that have a job that is due at once (none of the delayed ones), without a pool, without a
    /// tenant and without requirements first. Quick, whatever the number of jobs.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn waiting_groups(
        &self,
        lane: &LaneId,
        after: Option<&WaitingGroup>,
        limit: u32,
    ) -> Result<Vec<WaitingGroup>>;

    /// The first of a group's jobs that are due at once: by priority, then by place in the session, then by id.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn waiting(&self, lane: &LaneId, group: &WaitingGroup, limit: u32) -> Result<Vec<LiveJob>>;

    /// A lane's delayed jobs that are due within `within_ms` milliseconds, each with the milliseconds until then. The
    /// earliest is first; the page begins behind the job `after` of that due time.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn coming_due(
        &self,
        lane: &LaneId,
        after: Option<(Timestamp, JobId)>,
        within_ms: u64,
        limit: u32,
    ) -> Result<Vec<(LiveJob, u64)>>;

    /// Looks at `look_at` lanes that have unfinished jobs, in the order of their names behind `after`. Answers the lanes
    /// that have a job due within `due_within_ms` milliseconds and no live owner, or whose lease `me` has; and the lane
    /// behind which the next page begins: `None` after the last page.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn orphaned_lanes(
        &self,
        me: &InstanceId,
        after: Option<&LaneId>,
        due_within_ms: u64,
        look_at: u32,
    ) -> Result<(Vec<OrphanedLane>, Option<LaneId>)>;

    /// The highest place that a lane has given in its session; 0 for none. The place of a purged job counts for as long
    /// as the session is open.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn lane_seq(&self, lane: &LaneId) -> Result<u64>;

    /// The unfinished attempts that a node has. There may be more than it has slots, where instances placed jobs on it
    /// without knowing of each other.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn attempts_on(&self, node: &NodeId) -> Result<Vec<HeldAttempt>>;

    /// Notes that an instance holds the node, which says that it has these attempts. An attempt that is not the job's newest, or
    /// not this node's, stays as it is. It is written under no lease, like what the node says of an attempt: no decision
    /// about a job is fenced by it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects; repeating is harmless.
    async fn note_holder(
        &self,
        node: &NodeId,
        holder: &InstanceId,
        attempts: &[(JobId, Attempt)],
    ) -> Result<()>;

    /// Those of these jobs that are not finished, by id, with how long they have been RUNNING. Bound the number of jobs by
    /// what their payloads may be.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn live_jobs(&self, jobs: &[JobId]) -> Result<Vec<LiveJob>>;

    /// The attempts of these jobs that are under way, by id.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn attempts_of(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Attempt)>>;

    /// The unfinished jobs, by pool and by tenant: these pools, and [`NAMES_COUNTED_MAX`] others at most. Reads all jobs, `piece`
    /// of them in a statement, so that it ends however many there are: not for every request. What changes meanwhile may be
    /// counted twice, or not.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn unfinished_counts(&self, piece: u32, pools: &HashSet<PoolName>) -> Result<UnfinishedCounts>;

    /// The finished jobs, by pool and by tenant: these pools, and a few times [`NAMES_COUNTED_MAX`] others at most. Reads three
    /// indexes from end to end in the same way: seldom where there are many.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn finished_counts(&self, piece: u32, pools: &HashSet<PoolName>) -> Result<FinishedCounts>;

    /// Purges jobs that finished longer ago than `age_ms`. PostgreSQL drops the partition of each day that is
    /// wholly that old; of the jobs of days before the last one of these, and of those without a partition, `limit` at most are
    /// deleted. Returns how many were deleted. The jobs of stages
    /// whose results their plans still wait for stay. A partition that cannot be dropped, as where that would keep others
    /// waiting, is no error, nor are more of them than there is time for: a later call tries them again.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects; [`crate::Error::Aborted`] where it would have kept others waiting.
    async fn purge_jobs(&self, age_ms: u64, limit: u32) -> Result<u64>;

    /// Dismisses those of these jobs that are [dead](JobRecord::is_dead), a few thousand at most; answers them. If there are any,
    /// the audit's entry is in the same commit. If there are none, an earlier call may have dismissed them: it is answered as
    /// [`Self::settled_job`] is.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn dismiss_jobs(&self, jobs: &[JobId], by: Option<&AuditEntry>) -> Result<Vec<JobId>>;

    /// Deletes those of these jobs that are finished, a few thousand at most, with payload and result; answers them. The
    /// jobs of stages whose results their plans still wait for stay. Their places in their sessions are not given again. If any
    /// is deleted, the audit's entry is in the same commit. If none is, an earlier call may have deleted them: on PostgreSQL it
    /// is answered once a synchronous standby has that.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn delete_jobs(&self, jobs: &[JobId], by: Option<&AuditEntry>) -> Result<Vec<JobId>>;

    /// Makes the partitions for the finished jobs of the next [`PARTITION_DAYS_AHEAD`] days, on PostgreSQL. Without
    /// them nothing fails, but forgetting the jobs takes longer.
    ///
    /// # Errors
    /// As [`Self::purge_jobs`].
    async fn make_job_partitions(&self) -> Result<()>;
}

impl JobFilter {
    /// Whether a job that is not finished may be among them.
    pub(crate) fn allows_unfinished(&self) -> bool {
        self.state != Some(State::Finished)
            && self.outcome.is_none()
            && self.dead != Some(true)
            && self.retried != Some(true)
            && !self.in_open_session
    }

    /// Whether a finished job may be among them.
    pub(crate) fn allows_finished(&self) -> bool {
        matches!(self.state, None | Some(State::Finished))
    }

    /// The mark of the one condition by whose index a bounded scan reads, for the others to be looked at row by row.
    fn leading(&self) -> &'static str {
        match self {
            Self { session: Some(_), .. } => "by_session",
            // Those of a session are the fewest, and these are few next to the jobs of a tenant, a pool or a kind.
            Self { dead: Some(true), .. } => "by_dead",
            Self { outcome: Some(outcome), .. } if *outcome != Outcome::Succeeded => "by_unsuccessful",
            Self { tenant: Some(_), .. } => "by_tenant",
            Self { pool: Some(_), .. } => "by_pool",
            Self { kind: Some(_), .. } => "by_kind",
            Self { retried: Some(true), .. } => "by_retried",
            _ => "",
        }
    }

    /// Whether all of them are jobs that nodes have, which are few next to those that wait; those of a session are fewer still.
    pub(crate) fn is_on_nodes(&self) -> bool {
        self.session.is_none() && matches!(self.state, Some(State::Dispatched | State::Running))
    }

    /// Whether all of them are read and then sorted: they are few, and lie anywhere among the others.
    fn is_sorted(&self) -> bool {
        self.is_on_nodes() || self.sessions.is_some()
    }

    /// A list's statement for this filter: without the marked lines that it does not ask for.
    pub(crate) fn narrowed(&self, statement: &str) -> String {
        let asks_for = |mark: &str| match mark {
            "session" => self.session.is_some(),
            "tenant" => self.tenant.is_some(),
            "pool" => self.pool.is_some(),
            "kind" => self.kind.is_some(),
            "state" => self.state.is_some(),
            "on_nodes" => self.is_on_nodes(),
            "anywhere" => !self.is_sorted(),
            "sorted" => self.is_sorted(),
            "outcome" => self.outcome.is_some(),
            "unsuccessful" => self.outcome.is_some_and(|outcome| outcome != Outcome::Succeeded),
            "dead" => self.dead == Some(true),
            "not_dead" => self.dead == Some(false),
            "retried" => self.retried == Some(true),
            "not_retried" => self.retried == Some(false),
            "no_stage" => self.without_stages,
            "open_session" => self.in_open_session,
            "only_tenant" => self.only_tenant.is_some(),
            "only_pool" => self.only_pool.is_some(),
            "sessions" => self.sessions.is_some(),
            "after" => self.after.is_some(),
            mark if mark.starts_with("by_") => self.leading() == mark,
            other => unreachable!("no list has a mark {other}"),
        };
        crate::sql::narrowed(statement, asks_for)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(number: usize) -> PoolName {
        PoolName::parse(&format!("p{number}")).unwrap()
    }

    #[test]
    fn unfinished_jobs_of_made_up_pools_are_counted_together_where_the_pools_are_too_many() {
        let counted = HashSet::from([PoolName::parse("configured").unwrap()]);
        let one = UnfinishedCount { created: 1, oldest_ms: Some(5), ..UnfinishedCount::default() };
        let mut counts = UnfinishedCounts::default();
        for number in 0..NAMES_COUNTED_MAX + 7 {
            let tenant = TenantId::parse(&format!("t{number}")).unwrap();
            counts.add((Some(pool(number)), Some(tenant)), &one, &counted);
        }
        for pool in [counted.iter().next().cloned(), None, Some(pool(0))] {
            counts.add((pool, None), &one, &counted);
        }
        let further = UnfinishedCount { created: 7, ..one };
        assert_eq!((counts.of_pools.len(), counts.of_further_pools), (NAMES_COUNTED_MAX + 2, further));
        let all: u64 = counts.of_pools.values().map(|count| count.created).sum();
        assert_eq!((counts.all.created, all), (NAMES_COUNTED_MAX as u64 + 10, counts.all.created - 7));
        assert_eq!(counts.of_pools[&Some(pool(0))].created, 2, "one that is known has room");
        assert_eq!((counts.of_tenants.len(), counts.of_tenants[&None].created), (NAMES_COUNTED_MAX + 1, 3));
    }

    #[test]
    fn of_too_many_pools_of_finished_jobs_the_smallest_are_forgotten() {
        let counted = HashSet::from([pool(0)]);
        let (mut counts, mut all) = (FinishedBy::default(), 0);
        for number in 0..NAMES_COUNTED_MAX * 5 {
            for jobs in [1, number as u64] {
                counts.add(pool(number), jobs);
                counts.forget_smallest(&counted);
                all += jobs;
            }
            assert_eq!(counts.of.last(), Some(&(pool(number), 1 + number as u64)), "more of it may be found");
            assert!(counts.of.len() <= NAMES_COUNTED_MAX * 2 + 1);
        }
        assert_eq!(counts.all, all);
        let kept: HashSet<_> = counts.of.into_iter().map(|(pool, _)| pool).collect();
        let largest = (0..NAMES_COUNTED_MAX).map(|n| NAMES_COUNTED_MAX * 5 - 1 - n);
        assert!(kept.contains(&pool(0)) && largest.map(pool).all(|pool| kept.contains(&pool)));
    }

    #[test]
    fn a_bounded_scan_reads_the_index_of_the_condition_that_the_fewest_jobs_meet() {
        let all = JobFilter {
            session: Some(SessionId::parse("s").unwrap()),
            tenant: Some(TenantId::parse("t").unwrap()),
            pool: Some(PoolName::parse("p").unwrap()),
            kind: Some(JobKind::parse("k").unwrap()),
            dead: Some(true),
            outcome: Some(Outcome::Failed),
            ..JobFilter::default()
        };
        let marks = ["session", "tenant", "pool", "kind", "dead", "unsuccessful", "retried"];
        let lines = marks.map(|mark| format!("{mark} --? by_{mark}")).join("\n");
        let read_by = |filter: &JobFilter| filter.narrowed(&lines).split(' ').next().unwrap().to_owned();
        assert_eq!(read_by(&all), "session");
        let all = JobFilter { session: None, ..all };
        assert_eq!(read_by(&all), "dead");
        let all = JobFilter { dead: Some(false), ..all };
        assert_eq!(read_by(&all), "unsuccessful");
        let all = JobFilter { outcome: Some(Outcome::Succeeded), ..all };
        assert_eq!(read_by(&all), "tenant", "most jobs succeed");
        let of_kind = JobFilter { tenant: None, pool: None, ..all };
        assert_eq!(read_by(&of_kind), "kind");
    }
}
