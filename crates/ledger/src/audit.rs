//! The audit: what operators changed. A change and its entry are one commit, so that neither is there without the other.

use domain::{AuditEntry, Timestamp};

use crate::Result;
use crate::sql::{Moment, record};

/// An entry for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRecord {
    /// In the order of writing.
    pub id: i64,
    /// When it was written.
    pub at: Timestamp,
    /// Who changed something: the name of a token, or empty.
    pub principal: String,
    /// See [`AuditEntry::action`].
    pub action: String,
    /// See [`AuditEntry::subject`].
    pub subject: String,
    /// How it was.
    pub before: Option<String>,
    /// How it is.
    pub after: Option<String>,
    /// The reason that was given.
    pub reason: Option<String>,
    /// The id of the request.
    pub request_id: Option<String>,
}

/// Which entries to list, the newest first.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Of this caller.
    pub principal: Option<String>,
    /// Of this action.
    pub action: Option<String>,
    /// About this.
    pub subject: Option<String>,
    /// Written then or later.
    pub since: Option<Timestamp>,
    /// Older than this one.
    pub before: Option<i64>,
    /// The most entries to list.
    pub limit: u32,
}

/// What operators changed.
#[async_trait::async_trait]
pub trait Audits: Send + Sync {
    /// Notes what is about to be done outside the ledger.
    ///
    /// # Errors
    /// [`crate::Error`]; then it must not be done.
    async fn audit(&self, entry: &AuditEntry) -> Result<()>;

    /// The same, unless an equal request of this principal noted the same before: for a request that another instance has
    /// passed on.
    ///
    /// # Errors
    /// As [`Audits::audit`].
    async fn audit_once(&self, entry: &AuditEntry) -> Result<()>;

    /// Lists entries. A page with long ones may have fewer than were asked for, see [`crate::PAGE_BYTES_MAX`]; only an empty one
    /// is the end.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn audits(&self, filter: &AuditFilter) -> Result<Vec<AuditRecord>>;

    /// Deletes entries older than `age_ms`, `limit` at most; answers how many.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn purge_audits(&self, age_ms: u64, limit: u32) -> Result<u64>;
}

record! {
    pub(crate) struct AuditRow {
        id: i64,
        at: Moment,
        principal: String,
        action: String,
        subject: String,
        before: Option<String>,
        after: Option<String>,
        reason: Option<String>,
        request_id: Option<String>,
    }
}

impl From<AuditRow> for AuditRecord {
    fn from(row: AuditRow) -> Self {
        let AuditRow { id, at, principal, action, subject, before, after, reason, request_id } = row;
        Self { id, at: at.0, principal, action, subject, before, after, reason, request_id }
    }
}
