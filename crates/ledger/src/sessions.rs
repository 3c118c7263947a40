//! Sessions: their rows, and what is read of their jobs by place.
//!
//! A session's jobs are a lane of their own, `session:<id>`; what is written of them is in [`crate::Jobs`]. Its row says
//! what was asked of it, and whether it still takes jobs; that is written by the lane's owner, fenced as all it writes.
//! A session without a row never was, or was purged: look for the row before the lease is acquired, since the leases of
//! sessions are forgotten with their rows.

pub(crate) mod rows;

use domain::job::Outcome;
use domain::limits::{JOB_LABELS_MAX, SESSION_IDLE_MS_MAX, SESSION_IDLE_MS_MIN};
use domain::session::Spec;
use domain::{ClientRef, JobId, NodeId, Resource, ResourceKind, SessionId, Timestamp};

use crate::baggage::{check_keys, refuse};
use crate::jobs::{JobKey, Lane, LiveJob};
use crate::keys::Keeping;
use crate::records::KeyRow;
use crate::{Error, KeyScope, Result};
use rows::KeptSession;

/// A session for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Which.
    pub id: SessionId,
    /// What was asked.
    pub spec: Spec,
    /// When it was made.
    pub created_at: Timestamp,
    /// Since when it takes no more jobs; `None` while it does.
    pub closed_at: Option<Timestamp>,
    /// How long ago, in milliseconds by the database's clock, something last happened: it was made, its newest job was
    /// submitted, or any of its jobs ended.
    pub idle_for_ms: u64,
}

/// What became of a session that was to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// It is there.
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
}

/// What became of a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    /// It takes no more jobs, from now on or from earlier on; also where there is no such session.
    Yes,
    /// The lane's lease is another's by now, or released. Nothing was written.
    Fenced,
    /// The lease's row was locked; nothing was written, the same may be asked again.
    Again,
}

/// How many jobs of a session are where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionCounts {
    /// Those that are CREATED.
    pub created: u64,
    /// Those that are DISPATCHED.
    pub dispatched: u64,
    /// Those that are RUNNING.
    pub running: u64,
    /// Those that are FINISHED and not purged.
    pub finished: u64,
    /// The highest place given, 0 for none.
    pub last_seq: u64,
    /// The node of the newest job that has, or ended on, one.
    pub last_node: Option<NodeId>,
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
    /// In the order of their places.
    pub results: Vec<SessionResult>,
    /// The lowest place of an unfinished job. What is missing below it never was, or was purged.
    pub first_unfinished: Option<u64>,
}

/// All sessions. A page of jobs or results may have fewer than were asked for, see [`crate::PAGE_BYTES_MAX`]; only an
/// empty one is the end.
#[async_trait::async_trait]
pub trait Sessions: Send + Sync {
    /// Makes a session, and keeps its idempotency key with it, in one transaction. One that is there already, made from
    /// the same words, is as good as made.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, made: ask the same again.
    async fn open_session(&self, id: &SessionId, spec: &Spec, key: Option<&JobKey>) -> Result<Opened>;

    /// One session; `None` if it never was, or was purged.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session(&self, id: &SessionId) -> Result<Option<SessionRecord>>;

    /// How many of its jobs are where. Reads an index entry of every one.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session_counts(&self, id: &SessionId) -> Result<SessionCounts>;

    /// Locks the lane's lease at exactly its token, and says that the session takes no more jobs.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] it may have been, or may yet be, closed: acquire anew.
    async fn close_session(&self, lane: &Lane) -> Result<Closed>;

    /// A lane's CREATED jobs in the order of their places behind `after_seq`, and in how many milliseconds each is due,
    /// 0 for now. Call this after the acquire was answered, never together with it.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn line(&self, lane: &Resource, after_seq: u64, limit: u32) -> Result<Vec<(LiveJob, u64)>>;

    /// The finished jobs of a session in the order of their places behind `after_seq`, and its lowest unfinished place.
    /// Both are as of one moment: a job is in one of them, whatever ends meanwhile.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn session_results(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<SessionResults>;

    /// The places and ids of the finished jobs of a session behind `after_seq`, in their order. Reads no job.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn finished_places(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<(u64, JobId)>>;

    /// Looks at so many open sessions, in the order of their names behind `after`. Answers those in which nothing has
    /// happened for longer than they allow, without unfinished jobs and without a live lease, and the one to go on
    /// behind; `None` when all were looked at.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn idle_sessions(
        &self,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<(Vec<SessionId>, Option<SessionId>)>;

    /// Forgets so many sessions at most that were closed, and last leased, longer ago than `age_ms` and that no job
    /// names, with their leases. Answers how many. Those that jobs still name are looked at each time: let the age be
    /// days more than that of finished jobs that are forgotten.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn purge_sessions(&self, age_ms: u64, limit: u32) -> Result<u64>;
}

/// What became of the rows of a new session.
pub(crate) enum Making {
    Made(Timestamp),
    KeyTaken,
    Exists,
}

/// The transaction and the look of an opening, as a backend sends them.
#[async_trait::async_trait]
pub(crate) trait Make: Sessions {
    /// `key_keep`, then `session_create`, together or not at all.
    async fn make(&self, id: &SessionId, spec: &Spec, key: Option<&JobKey>) -> Result<Making>;
    /// `key_show`.
    async fn shown_keys(&self, scopes: &[KeyScope]) -> Result<Vec<KeyRow>>;
}

/// Makes, else looks why not. What is wrong in itself is refused before.
pub(crate) async fn open(
    ledger: &impl Make,
    id: &SessionId,
    spec: &Spec,
    key: Option<&JobKey>,
) -> Result<Opened> {
    check(spec)?;
    check_keys(key.iter().map(|key| &key.scope))?;
    match (ledger.make(id, spec, key).await?, key) {
        (Making::Made(created_at), _) => Ok(Opened::Made { created_at }),
        (Making::KeyTaken, Some(key)) => {
            match ledger.shown_keys(std::slice::from_ref(&key.scope)).await?.first() {
                Some(row) => {
                    Ok(Opened::Kept { body_hash: row.body_hash()?, session: KeptSession::session(row)? })
                }
                // It was purged between the two looks.
                None => Err(changed_meanwhile(id)),
            }
        }
        _ => match ledger.session(id).await? {
            Some(SessionRecord { spec: made, created_at, .. }) if made == *spec => {
                Ok(Opened::Made { created_at })
            }
            Some(_) => {
                let what = format!("session {id} is there, and another");
                Err(Error::refused(sqlx::Error::InvalidArgument(what)))
            }
            None => Err(changed_meanwhile(id)),
        },
    }
}

fn changed_meanwhile(id: &SessionId) -> Error {
    Error::aborted(std::io::Error::other(format!("session {id} changed too quickly")))
}

fn check(spec: &Spec) -> Result<()> {
    if spec.needs.requires.len() > JOB_LABELS_MAX {
        return refuse(format!("{} labels, {JOB_LABELS_MAX} at most", spec.needs.requires.len()));
    }
    if !(SESSION_IDLE_MS_MIN..=SESSION_IDLE_MS_MAX).contains(&spec.idle_ms) {
        let range = format!("{SESSION_IDLE_MS_MIN} to {SESSION_IDLE_MS_MAX}");
        return refuse(format!("an idle time of {} ms, {range}", spec.idle_ms));
    }
    Ok(())
}

/// The key of a session that is to be made, with the answer to give again.
pub(crate) fn keeping<'a>(id: &SessionId, key: &'a JobKey) -> Keeping<'a> {
    Keeping { scope: &key.scope, body_hash: &key.body_hash, answer: KeptSession::text(id) }
}

/// Refuses to close what is no session.
pub(crate) fn check_is_session(lane: &Lane) -> Result<()> {
    if lane.resource.kind() == ResourceKind::Session {
        return Ok(());
    }
    refuse(format!("{} is no session", lane.resource))
}
