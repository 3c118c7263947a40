//! Bulk operations: one action on all jobs that match a filter, done in the background by one owner at a time.
//!
//! A bulk operation is a row: what is to be done, who owns it, how far it has come, and the jobs that its owner is working on.
//! The row's token is the fence: each new owner raises it, and every write of an owner names the token that it knows, in the
//! transaction that also dismisses or deletes. The new owner of a dead one begins with the jobs that that one was working on.
//! A job that was retried or cancelled is found so, and is not retried again.

use domain::job::{Outcome, State};
use domain::{AuditEntry, BulkId, InstanceId, JobId, JobKind, PoolName, SessionId, TenantId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::jobs::JobFilter;
use crate::records::{self, impossible};
use crate::sql::{BulkKey, Id, Moment, record};
use crate::{Error, Result};

/// Bulk operations under way in the whole cluster.
pub const BULKS_OPEN_MAX: u32 = 100;
/// Those of one token, so that none keeps the others from theirs. Without tokens all are one caller's.
pub const BULKS_OPEN_OF_ONE_MAX: u32 = 50;

/// What is done to each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BulkAction {
    /// A finished job that no other job has retried is retried.
    Retry,
    /// An unfinished job is cancelled.
    Cancel,
    /// A finished job is deleted.
    Delete,
    /// A dead job is dismissed.
    Dismiss,
}

impl BulkAction {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Retry, Self::Cancel, Self::Delete, Self::Dismiss];

    /// The name in the tables and in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Cancel => "cancel",
            Self::Delete => "delete",
            Self::Dismiss => "dismiss",
        }
    }

    fn parse(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|action| action.as_str() == text);
        found.ok_or_else(|| impossible(format!("no bulk operation does {text:?}")))
    }
}

/// How a bulk operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BulkStatus {
    /// Its owner works on it.
    Running,
    /// Its owner ends it after the jobs that it is working on.
    Cancelling,
    /// All jobs were worked on.
    Done,
    /// It ended before that, as somebody asked.
    Cancelled,
    /// It ended before that, because it could not go on.
    Failed,
}

impl BulkStatus {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Running, Self::Cancelling, Self::Done, Self::Cancelled, Self::Failed];

    /// The name in the tables and in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Cancelling => "CANCELLING",
            Self::Done => "DONE",
            Self::Cancelled => "CANCELLED",
            Self::Failed => "FAILED",
        }
    }

    /// Whether nothing more is done.
    #[must_use]
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Cancelled | Self::Failed)
    }

    fn parse(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|status| status.as_str() == text);
        found.ok_or_else(|| impossible(format!("no bulk operation is {text:?}")))
    }
}

/// A bulk operation to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewBulk {
    /// Its id, never used before.
    pub id: BulkId,
    /// The name of the token that asks; empty without tokens.
    pub principal: String,
    /// What is done.
    pub action: BulkAction,
    /// To which jobs. `before` and `limit` do not count.
    pub filter: JobFilter,
    /// To those that finished before this time, or, for [`BulkAction::Cancel`], were submitted before it.
    pub before: Timestamp,
    /// Jobs per second at most.
    pub rate: u32,
    /// How many jobs match when it is made.
    pub matched: u64,
    /// The instance that works on it.
    pub owner: InstanceId,
    /// The hash of its idempotency key and of who gave it.
    pub key_hash: Option<String>,
    /// The hash of the request.
    pub body_hash: String,
}

/// What became of the wish for a bulk operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkMade {
    /// It is made, and its entry is in the audit.
    Made(Box<BulkRecord>),
    /// The key made this one before.
    Kept(Box<BulkRecord>),
    /// There are [`BULKS_OPEN_MAX`] under way, or [`BULKS_OPEN_OF_ONE_MAX`] of this caller.
    TooMany,
}

/// A bulk operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkRecord {
    /// The operation's id.
    pub id: BulkId,
    /// See [`NewBulk::principal`].
    pub principal: String,
    /// See [`NewBulk::action`].
    pub action: BulkAction,
    /// See [`NewBulk::filter`].
    pub filter: JobFilter,
    /// See [`NewBulk::before`].
    pub before: Timestamp,
    /// See [`NewBulk::rate`].
    pub rate: u32,
    /// How it stands.
    pub status: BulkStatus,
    /// See [`NewBulk::matched`].
    pub matched: u64,
    /// Jobs to which the action was done.
    pub done: u64,
    /// Jobs to which it was not, because they did not match any more or do not allow it.
    pub skipped: u64,
    /// Jobs to which it could not be done.
    pub failed: u64,
    /// The newest error, in words.
    pub error: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was over.
    pub finished_at: Option<Timestamp>,
    /// The instance that works on it, or did last; none where [`Self::is_left`].
    pub owner: InstanceId,
    /// Rises with each owner.
    pub token: u64,
    /// All jobs up to this one were worked on.
    pub behind: Option<JobId>,
    /// The jobs that its owner is working on, or that its last owner was.
    pub page: Vec<JobId>,
    /// The hash of the request.
    pub body_hash: String,
}

impl BulkRecord {
    /// Whether its last owner has [left](Bulks::leave_bulk) it to the others. Its owner is no instance then.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.owner.as_str() == NO_OWNER
    }
}

/// How many jobs a bulk operation is about, among some rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BulkCount {
    /// The jobs that match.
    pub jobs: u64,
    /// Where the next count begins. `None` where no row is left.
    pub read_to: Option<JobId>,
}

/// A part of the rows that a bulk operation looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkScan {
    /// Rows up to this job are behind it.
    pub behind: Option<JobId>,
    /// Jobs that are found at most.
    pub jobs_max: u32,
    /// Rows that are read at most.
    pub rows_max: u32,
}

/// What a [`BulkScan`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BulkFound {
    /// The jobs that match, the oldest first.
    pub jobs: Vec<JobId>,
    /// Where the next scan begins if there are fewer jobs than it looked for. `None` where no row is left.
    pub read_to: Option<JobId>,
}

impl BulkFound {
    /// Behind which job the next scan begins; `None` where no job can match any more.
    #[must_use]
    pub fn next(&self, scan: &BulkScan) -> Option<JobId> {
        let is_full = self.jobs.len() >= scan.jobs_max as usize;
        if is_full { self.jobs.last().copied() } else { self.read_to }
    }
}

/// A bulk operation under way, and whether its owner is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenBulk {
    /// The operation's id.
    pub id: BulkId,
    /// See [`BulkRecord::principal`].
    pub principal: String,
    /// The instance that works on it.
    pub owner: InstanceId,
    /// See [`BulkRecord::token`].
    pub token: u64,
    /// Whether the owner's lease is live.
    pub is_owned: bool,
    /// Whether somebody cancelled it.
    pub is_cancelling: bool,
}

/// The owner of an operation that its last owner has left. No instance has such a name: theirs end in a unique part.
const NO_OWNER: &str = "nobody";

impl OpenBulk {
    /// Whether its last owner has [left](Bulks::leave_bulk) it to the others.
    #[must_use]
    pub fn is_left(&self) -> bool {
        self.owner.as_str() == NO_OWNER
    }
}

/// What was done to the jobs of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BulkStep {
    /// See [`BulkRecord::done`].
    pub done: u64,
    /// See [`BulkRecord::skipped`].
    pub skipped: u64,
    /// See [`BulkRecord::failed`].
    pub failed: u64,
    /// The newest error, in words.
    pub error: Option<String>,
}

/// Bulk operations. What an owner writes answers `None` where it is the owner no more; then nothing was written.
#[async_trait::async_trait]
pub trait Bulks: Send + Sync {
    /// The database's time, before which jobs count that a bulk operation without a time of its own is about.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn bulk_now(&self) -> Result<Timestamp>;

    /// How many jobs match behind this one, among `rows_max` rows of one index or of the table: one bounded statement.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn count_bulk(
        &self,
        action: BulkAction,
        filter: &JobFilter,
        before: Timestamp,
        behind: Option<JobId>,
        rows_max: u32,
    ) -> Result<BulkCount>;

    /// Makes a bulk operation, with the entry of the audit in the same transaction.
    ///
    /// # Errors
    /// [`crate::Error`]. After [`crate::Error::Unknown`] it may be made.
    async fn create_bulk(&self, new: &NewBulk, by: Option<&AuditEntry>) -> Result<BulkMade>;

    /// The one that was made under a key, by [`NewBulk::key_hash`], as long as the key is kept.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn kept_bulk(&self, key_hash: &str) -> Result<Option<BulkRecord>>;

    /// One of them.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn bulk(&self, id: BulkId) -> Result<Option<BulkRecord>>;

    /// Bulk operations before an id, newest first; those of one principal, or all. Those that cannot be read, such as a later
    /// release's, are left out.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn bulks(
        &self,
        before: Option<BulkId>,
        limit: u32,
        principal: Option<&str>,
    ) -> Result<Vec<BulkRecord>>;

    /// Those under way.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn open_bulks(&self) -> Result<Vec<OpenBulk>>;

    /// Makes `me` the owner in place of one without a live lease, or of itself. `None` where somebody else was quicker or the
    /// owner lives, and on PostgreSQL where the ledger went back. One that cannot be read stays as it is.
    ///
    /// # Errors
    /// [`crate::Error`]; [`crate::Error::Impossible`] for one that cannot be read. After [`crate::Error::Unknown`] it may be the
    /// owner.
    async fn take_bulk(&self, open: &OpenBulk, me: &InstanceId) -> Result<Option<BulkRecord>>;

    /// Leaves it to whichever instance takes it next. From then on nobody is its owner.
    ///
    /// # Errors
    /// [`crate::Error`]. After [`crate::Error::Unknown`] it may be left.
    async fn leave_bulk(&self, bulk: &BulkRecord) -> Result<Option<BulkRecord>>;

    /// The next jobs that match, the oldest first, among so many rows of one index or of the table: one bounded statement,
    /// however few of them match.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn next_of_bulk(
        &self,
        action: BulkAction,
        filter: &JobFilter,
        before: Timestamp,
        scan: BulkScan,
    ) -> Result<BulkFound>;

    /// Notes the jobs that the owner is about to work on. `None` also where it is to end.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn begin_page(&self, bulk: &BulkRecord, page: &[JobId]) -> Result<Option<BulkRecord>>;

    /// Dismisses or deletes jobs, as the action says, and notes in the same transaction that all up to `behind` were worked
    /// on. Those are left out that are not dead, or dead, where the filter says the contrary.
    ///
    /// # Errors
    /// As [`Self::note_progress`].
    async fn remove_page(
        &self,
        bulk: &BulkRecord,
        jobs: &[JobId],
        behind: JobId,
    ) -> Result<Option<BulkRecord>>;

    /// Notes that all jobs up to this one were worked on. `None` on PostgreSQL also where the ledger went back.
    ///
    /// # Errors
    /// [`crate::Error`]. After [`crate::Error::Unknown`] it may be noted, or be noted later: take the operation anew before
    /// repeating ([`Self::take_bulk`]).
    async fn note_progress(
        &self,
        bulk: &BulkRecord,
        behind: JobId,
        step: &BulkStep,
    ) -> Result<Option<BulkRecord>>;

    /// Ends it. `None` on PostgreSQL also where the ledger went back.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn finish_bulk(
        &self,
        bulk: &BulkRecord,
        status: BulkStatus,
        error: Option<&str>,
    ) -> Result<Option<BulkRecord>>;

    /// Has its owner end it, with the entry of the audit in the same transaction. One that is over, or is to end already, stays
    /// as it is; then there is no entry, and it is answered once a synchronous standby has that.
    ///
    /// # Errors
    /// [`crate::Error`], also as long as such a standby is away; repeating is harmless.
    async fn cancel_bulk(&self, id: BulkId, by: Option<&AuditEntry>) -> Result<()>;

    /// Forgets those that were over longer ago than `age_ms`, `limit` at most; answers how many.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn purge_bulks(&self, age_ms: u64, limit: u32) -> Result<u64>;
}

/// A filter as it is kept: JSON text. A condition that the next release adds is an error for this one, which may take such an
/// operation over: without it, it would be done to more jobs than were meant.
#[derive(Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct KeptFilter {
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dead: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retried: Option<bool>,
    without_stages: bool,
}

pub(crate) fn filter_text(filter: &JobFilter) -> String {
    let kept = KeptFilter {
        state: filter.state.map(|state| state.as_str().to_owned()),
        outcome: filter.outcome.map(|outcome| outcome.as_str().to_owned()),
        session: filter.session.as_ref().map(ToString::to_string),
        tenant: filter.tenant.as_ref().map(ToString::to_string),
        pool: filter.pool.as_ref().map(ToString::to_string),
        kind: filter.kind.as_ref().map(ToString::to_string),
        dead: filter.dead,
        retried: filter.retried,
        without_stages: filter.without_stages,
    };
    serde_json::to_string(&kept).expect("texts always serialise")
}

fn filter(text: &str) -> Result<JobFilter> {
    // An object and nothing else: an empty array would be read as a filter that matches all jobs.
    let fields: serde_json::Map<String, serde_json::Value> =
        serde_json::from_str(text).map_err(impossible)?;
    let kept: KeptFilter = serde_json::from_value(fields.into()).map_err(impossible)?;
    Ok(JobFilter {
        state: kept.state.as_deref().map(State::parse).transpose().map_err(impossible)?,
        outcome: kept.outcome.as_deref().map(Outcome::parse).transpose().map_err(impossible)?,
        session: kept.session.as_deref().map(SessionId::parse).transpose().map_err(impossible)?,
        tenant: kept.tenant.as_deref().map(TenantId::parse).transpose().map_err(impossible)?,
        pool: kept.pool.as_deref().map(PoolName::parse).transpose().map_err(impossible)?,
        kind: kept.kind.as_deref().map(JobKind::parse).transpose().map_err(impossible)?,
        dead: kept.dead,
        retried: kept.retried,
        without_stages: kept.without_stages,
        // Whether their session is open follows from the action.
        ..JobFilter::default()
    })
}

pub(crate) fn page_text(page: &[JobId]) -> String {
    let ids: Vec<_> = page.iter().map(ToString::to_string).collect();
    serde_json::to_string(&ids).expect("texts always serialise")
}

fn page(text: &str) -> Result<Vec<JobId>> {
    let ids: Vec<String> = serde_json::from_str(text).map_err(impossible)?;
    let read = |id: &String| JobId::parse(id).ok_or_else(|| impossible(format!("no job is {id:?}")));
    ids.iter().map(read).collect()
}

record! {
    /// As `sql/parts/bulk.sql` names the columns.
    pub(crate) struct BulkRow {
        pub(crate) id: BulkKey,
        principal: String,
        action: String,
        filter: String,
        before: Moment,
        rate: i64,
        status: String,
        matched: i64,
        done: i64,
        skipped: i64,
        failed: i64,
        error: Option<String>,
        created_at: Moment,
        finished_at: Option<Moment>,
        owner: String,
        token: i64,
        page: Option<String>,
        body_hash: String,
        behind: Option<Id>,
    }
}

impl TryFrom<BulkRow> for BulkRecord {
    type Error = Error;

    fn try_from(row: BulkRow) -> Result<Self> {
        Ok(Self {
            id: row.id.0,
            principal: row.principal,
            action: BulkAction::parse(&row.action)?,
            filter: filter(&row.filter)?,
            before: row.before.0,
            rate: u32::try_from(row.rate).map_err(impossible)?,
            status: BulkStatus::parse(&row.status)?,
            matched: records::count(row.matched)?,
            done: records::count(row.done)?,
            skipped: records::count(row.skipped)?,
            failed: records::count(row.failed)?,
            error: row.error,
            created_at: row.created_at.0,
            finished_at: row.finished_at.map(|at| at.0),
            owner: InstanceId::parse(&row.owner).map_err(impossible)?,
            token: records::count(row.token)?,
            behind: row.behind.map(|id| id.0),
            page: row.page.as_deref().map(page).transpose()?.unwrap_or_default(),
            body_hash: row.body_hash,
        })
    }
}

record! {
    pub(crate) struct OpenRow {
        id: BulkKey,
        principal: String,
        owner: String,
        token: i64,
        is_owned: bool,
        is_cancelling: bool,
    }
}

impl TryFrom<OpenRow> for OpenBulk {
    type Error = Error;

    fn try_from(row: OpenRow) -> Result<Self> {
        Ok(Self {
            id: row.id.0,
            principal: row.principal,
            owner: InstanceId::parse(&row.owner).map_err(impossible)?,
            token: records::count(row.token)?,
            is_owned: row.is_owned,
            is_cancelling: row.is_cancelling,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_and_a_page_read_back_as_they_were_kept() {
        let full = JobFilter {
            state: Some(State::Finished),
            outcome: Some(Outcome::TimedOut),
            session: Some(SessionId::parse("s").unwrap()),
            tenant: Some(TenantId::parse("t").unwrap()),
            pool: Some(PoolName::parse("p").unwrap()),
            kind: Some(JobKind::parse("k/\"").unwrap()),
            dead: Some(true),
            retried: Some(false),
            without_stages: true,
            ..JobFilter::default()
        };
        for kept in [full, JobFilter::default()] {
            assert_eq!(filter(&filter_text(&kept)).unwrap(), kept);
        }
        let ids = [JobId::from_u128(1), JobId::from_u128(u128::MAX)];
        assert_eq!(page(&page_text(&ids)).unwrap(), ids);
        assert!(page("[1]").is_err() && page("[\"x\"]").is_err() && filter("[]").is_err());
        assert!(
            filter(r#"{"colour":"blue","without_stages":true}"#).is_err(),
            "a condition of a later release"
        );
    }

    #[test]
    fn names_read_back() {
        for action in BulkAction::ALL {
            assert_eq!(BulkAction::parse(action.as_str()).unwrap(), action);
        }
        for status in BulkStatus::ALL {
            assert_eq!(BulkStatus::parse(status.as_str()).unwrap(), status);
        }
        assert!(BulkAction::parse("drop").is_err() && BulkStatus::parse("").is_err());
    }
}
