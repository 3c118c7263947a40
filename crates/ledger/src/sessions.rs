//! Sessions: their rows, and what is read of their jobs by place.
//!
//! A session's jobs are a lane of their own, `session:<id>`; [`crate::Jobs`] writes them. The session's row has its
//! specification, and says whether it still takes jobs; the lane's owner writes that, fenced like all its writes. A
//! session without a row never was, or was purged. Callers look for the row before they acquire the lease, since the
//! leases of sessions are forgotten with their rows.

pub(crate) mod rows;

use domain::job::Outcome;
use domain::limits::{JOB_LABELS_MAX, SESSION_IDLE_MS_MAX, SESSION_IDLE_MS_MIN};
use domain::session::Spec;
use domain::{ClientRef, JobId, LaneId, NodeId, PoolName, SessionId, TenantId, Timestamp};

use crate::batch_limits::refuse;
use crate::jobs::{JobKey, Lane, LiveJob, RevokedAttempt, Unwritten};
use crate::keys::Keeping;
use crate::{Error, Result};
use rows::KeptSession;

/// Places of finished jobs that are looked at for the node that a session used last. That node is a preference, no more: among
/// a million jobs that were cancelled before they had one it is not looked for.
pub const LAST_NODE_PLACES: u64 = 256;

/// Which sessions to list. All conditions together.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    /// Only open ones (`true`), or only closed ones (`false`).
    pub open: Option<bool>,
    /// Of this tenant.
    pub tenant: Option<TenantId>,
    /// That asked for this pool.
    pub pool: Option<PoolName>,
    /// Behind this one, in the order of their ids.
    pub after: Option<SessionId>,
    /// The most sessions to list.
    pub limit: u32,
}

/// A session for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// The session's id.
    pub id: SessionId,
    /// What was asked.
    pub spec: Spec,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when it takes no more jobs; `None` while it does.
    pub closed_at: Option<Timestamp>,
    /// Milliseconds by the database's clock since the session was made, its newest job was submitted, or one of its jobs
    /// ended, whichever was last.
    pub idle_for_ms: u64,
}

/// The names by which it is decided who sees a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionAccess {
    /// Which session.
    pub id: SessionId,
    /// Its tenant.
    pub tenant: Option<TenantId>,
    /// The pool that it asks for.
    pub pool: Option<PoolName>,
}

/// The token that opens a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opener {
    /// Its name.
    pub principal: String,
    /// Open sessions that it may have.
    pub sessions_max: u32,
}

/// The answer to a request for a new session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The session exists.
    Made {
        /// The transaction's time.
        created_at: Timestamp,
    },
    /// Its idempotency key was taken; nothing was written.
    Kept {
        /// SHA-256 of what was asked under the key.
        body_hash: [u8; 32],
        /// The session that came of it.
        session: SessionId,
    },
    /// Its token has as many open sessions as it may have; nothing was written.
    TooMany,
}

/// How many unfinished jobs of a session are where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Those that are CREATED.
    pub created: u64,
    /// Those that are DISPATCHED.
    pub dispatched: u64,
    /// Those that are RUNNING.
    pub running: u64,
    /// The highest place given, 0 for none.
    pub last_seq: u64,
    /// The node of the newest job that has, or ended on, one. Of the finished jobs those count that have the last
    /// [`LAST_NODE_PLACES`] places.
    pub last_node: Option<NodeId>,
}

impl SessionCounts {
    /// All of them.
    #[must_use]
    pub const fn unfinished(&self) -> u64 {
        self.created + self.dispatched + self.running
    }
}

/// How a session's job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionResult {
    /// Which job.
    pub id: JobId,
    /// Its place.
    pub seq: u64,
    /// What its client calls it.
    pub client_ref: Option<ClientRef>,
    /// How it ended.
    pub outcome: Outcome,
    /// What the node gave: JSON text.
    pub result: Option<String>,
    /// What went wrong, in words.
    pub error: Option<String>,
}

/// Results of a session, as of one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionResults {
    /// In the order of their places, all below `first_unfinished`.
    pub results: Vec<SessionResult>,
    /// The lowest place of an unfinished job. What is missing below it never was, or was purged.
    pub first_unfinished: Option<u64>,
    /// Whether it takes jobs: it is neither closed nor forgotten.
    pub is_open: bool,
}

/// All sessions. A page of jobs or results may have fewer than were asked for, see [`crate::PAGE_BYTES_MAX`]; only an
/// empty one is the end.
#[async_trait::async_trait]
pub trait Sessions: Send + Sync {
    /// Makes a session, and keeps its idempotency key with it, in one transaction. One that is there already, made from
    /// the same words, is as good as made. Of an opener's open sessions two transactions at once may make some more than
    /// it may have.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, made: ask the same again.
    async fn open_session(
        &self,
        id: &SessionId,
        spec: &Spec,
        key: Option<&JobKey>,
        opener: Option<&Opener>,
    ) -> Result<Opened>;

    /// One session; `None` if it never was, or was purged.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session(&self, id: &SessionId) -> Result<Option<SessionRecord>>;

    /// The same, to answer as done what an earlier call may have written of it, as [`crate::Jobs::settled_job`].
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`], also as long as a synchronous standby is away, and defects.
    async fn settled_session(&self, id: &SessionId) -> Result<Option<SessionRecord>>;

    /// Sessions in the order of their ids. Each costs a few steps of indexes.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn sessions(&self, filter: &SessionFilter) -> Result<Vec<SessionRecord>>;

    /// The names alone of what [`Self::sessions`] lists. Each costs a step of an index.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session_names(&self, filter: &SessionFilter) -> Result<Vec<SessionId>>;

    /// Who sees these sessions, in no order. One that never was, or was purged, is missing from it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session_access(&self, sessions: &[SessionId]) -> Result<Vec<SessionAccess>>;

    /// How many of its unfinished jobs are where. Reads an index entry of each of these. For the highest place alone there is
    /// [`crate::Jobs::lane_seq`].
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session_counts(&self, id: &SessionId) -> Result<SessionCounts>;

    /// How many of its jobs are FINISHED and not purged. Reads an index entry of every one: not for what must be quick.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session_finished(&self, id: &SessionId) -> Result<u64>;

    /// Locks the lane's lease at exactly its token, and says that the session takes no more jobs, if there is one.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, closed: acquire anew.
    async fn close_session(&self, lane: &Lane) -> Result<Result<(), Unwritten>>;

    /// A lane's CREATED jobs in the order of their places behind `after_seq`, and in how many milliseconds each is due,
    /// 0 for now. Call this after the acquire was answered, never together with it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn line(&self, lane: &LaneId, after_seq: u64, limit: u32) -> Result<Vec<(LiveJob, u64)>>;

    /// The attempt that was taken back last in a strict session that has no attempt under way, if its reservation may still
    /// stand: it may never have been sent, and its node has not acknowledged it. Of the jobs that ended longer than `within_ms`
    /// ago, for which a reservation stands, none is looked at. Call this after the acquire was answered, never together with it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn last_revoked(&self, id: &SessionId, within_ms: u64) -> Result<Option<RevokedAttempt>>;

    /// The finished jobs of a session in the order of their places behind `after_seq`, below its lowest unfinished place, and
    /// that place, and whether the session is open. All are as of one moment: no job is passed over, whatever ends meanwhile.
    /// No result behind that place is read.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session_results(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<SessionResults>;

    /// The places and ids of the finished jobs of a session behind `after_seq`, in their order. Reads no job.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn finished_places(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<(u64, JobId)>>;

    /// The places of the unfinished jobs of a session behind `after_seq`, in order.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn unfinished_places(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<u64>>;

    /// What the clients of a session call its jobs behind `after_seq`, finished or not, in the order of their places. Jobs
    /// without such a name are left out.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session_refs(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<ClientRef>>;

    /// Looks at `limit` open sessions, in the order of their names behind `after`. Answers the sessions in which nothing
    /// has happened for longer than they allow and that have neither an unfinished job nor a live lease, and the session
    /// behind which the next page begins: `None` after the last page. What is written may look older than it is by `ahead_ms`.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn idle_sessions(
        &self,
        ahead_ms: u64,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<(Vec<SessionId>, Option<SessionId>)>;

    /// Forgets sessions that were closed, and last leased, longer ago than `age_ms` and that no job names, with their
    /// leases: `limit` at most. Answers how many. Sessions that jobs still name are looked at each time, so `age_ms`
    /// should be days more than the age at which finished jobs are forgotten.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn purge_sessions(&self, age_ms: u64, limit: u32) -> Result<u64>;
}

/// A session that was purged or made between two looks: the same may be asked again.
pub(crate) fn changed_meanwhile(id: &SessionId) -> Error {
    Error::aborted(std::io::Error::other(format!("session {id} changed too quickly")))
}

/// Refuses a session that is wrong in itself.
pub(crate) fn check(spec: &Spec) -> Result<()> {
    if spec.needs.requires.len() > JOB_LABELS_MAX {
        return refuse(format!(
            "{} labels are required; at most {JOB_LABELS_MAX} are allowed",
            spec.needs.requires.len()
        ));
    }
    if !(SESSION_IDLE_MS_MIN..=SESSION_IDLE_MS_MAX).contains(&spec.idle_ms) {
        let range = format!("{SESSION_IDLE_MS_MIN} to {SESSION_IDLE_MS_MAX}");
        return refuse(format!("the idle time is {} ms; {range} are allowed", spec.idle_ms));
    }
    Ok(())
}

/// The key of a session that is to be made, with the answer to give again.
pub(crate) fn keeping<'a>(id: &SessionId, key: &'a JobKey) -> Keeping<'a> {
    Keeping { scope: &key.scope, body_hash: &key.body_hash, answer: KeptSession::text(id) }
}

/// Refuses to close what is no session.
pub(crate) fn check_is_session(lane: &Lane) -> Result<()> {
    if lane.id.is_session() {
        return Ok(());
    }
    refuse(format!("{} is not a session", lane.id))
}
