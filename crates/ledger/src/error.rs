//! Why the ledger did not answer, in two kinds.
//!
//! **Retryable** ([`Error::is_retryable`]): the database was away, busy, full or read-only, denies its role a right, lacks a
//! table, or is corrupt. The same request may succeed later as it is. The variants differ in what was written: nothing
//! ([`Error::Unavailable`], [`Error::Aborted`]), or it is not known ([`Error::Unknown`]).
//!
//! **Final** (all others): the data, the tables, the address or the file is wrong. Nothing was written, and
//! the same request fails again until a person removes the cause.

use std::borrow::Cow;
use std::sync::Arc;

/// Why the ledger did not answer as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// Retryable. The database was not reached, or did not answer a read in time. Nothing was written.
    #[error("the ledger is unavailable: {source}")]
    Unavailable {
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// Retryable, after a reload. A write was sent and its outcome is not known: it may have been committed, it may
    /// still be, or it never will be. The writer acquires its lease anew and reloads before its next decision (I9).
    #[error("the outcome of a write is unknown: {source}")]
    Unknown {
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// Retryable at once. The database undid the transaction (deadlock, lock time-out, serialisation). Nothing was
    /// written.
    #[error("the ledger aborted the transaction: {source}")]
    Aborted {
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// Final. The database refused the statement or the data: a defect here, or somebody changed the tables by hand.
    #[error("the ledger refused: {source}")]
    Refused {
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// Final. A row that no version of Fencepost can have written, such as one with an unknown state.
    #[error("impossible data in the ledger: {0}")]
    Impossible(Cow<'static, str>),
    /// Final. A newer Fencepost made the tables, or somebody changed them by hand.
    #[error("{0}")]
    Migration(String),
    /// Final. The server lacks the role, the database or the rights, or the database cannot keep every text; the text has the SQL
    /// that mends it.
    #[error("{0}")]
    Unprepared(String),
    /// Final until that process ends. Another process has the SQLite file.
    #[error("the ledger {path} is in use by the process with pid {pid}")]
    InUse {
        /// The file.
        path: String,
        /// The other process, as it wrote itself down.
        pid: String,
    },
    /// Final until an operator recovers the ledger: it is behind what this process knew of it. Nothing was written.
    #[error("the ledger went back in time")]
    WentBack,
    /// Final. The ledger's address is not one that can be used.
    #[error("{0}")]
    Address(String),
    /// Final. The file system refused.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: String,
        /// What the system said.
        #[source]
        source: Arc<std::io::Error>,
    },
}

impl Error {
    /// [`Error::Unavailable`] for the driver's reason.
    #[must_use]
    pub fn unavailable(source: impl Into<sqlx::Error>) -> Self {
        Self::Unavailable { source: Arc::new(source.into()) }
    }

    /// [`Error::Unknown`] for the driver's reason.
    #[must_use]
    pub fn unknown(source: impl Into<sqlx::Error>) -> Self {
        Self::Unknown { source: Arc::new(source.into()) }
    }

    /// [`Error::Aborted`] for the driver's reason.
    #[must_use]
    pub fn aborted(source: impl Into<sqlx::Error>) -> Self {
        Self::Aborted { source: Arc::new(source.into()) }
    }

    /// [`Error::Refused`] for the driver's reason.
    #[must_use]
    pub fn refused(source: impl Into<sqlx::Error>) -> Self {
        Self::Refused { source: Arc::new(source.into()) }
    }

    /// Whether the same request may succeed later as it is.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Unknown { .. } | Self::Aborted { .. } => true,
            Self::Refused { .. }
            | Self::Impossible(_)
            | Self::Migration(_)
            | Self::Unprepared(_)
            | Self::InUse { .. }
            | Self::WentBack
            | Self::Address(_)
            | Self::File { .. } => false,
        }
    }

    /// Whether the call took too long: the database ended its statement, or did not answer in time.
    #[must_use]
    pub fn is_late(&self) -> bool {
        const QUERY_CANCELED: &str = "57014";
        const SQLITE_INTERRUPT: &str = "9";
        match self.driver() {
            Some(sqlx::Error::Io(source)) => source.kind() == std::io::ErrorKind::TimedOut,
            Some(sqlx::Error::Database(source)) => {
                matches!(source.code().as_deref(), Some(QUERY_CANCELED | SQLITE_INTERRUPT))
            }
            _ => false,
        }
    }

    /// Whether no connection to the database was had in time.
    #[must_use]
    pub fn lacks_connection(&self) -> bool {
        matches!(self.driver(), Some(sqlx::Error::PoolTimedOut))
    }

    /// What the driver said, where it was the driver that failed.
    pub(crate) fn driver(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Unavailable { source }
            | Self::Unknown { source }
            | Self::Aborted { source }
            | Self::Refused { source } => Some(source),
            Self::Impossible(_)
            | Self::Migration(_)
            | Self::Unprepared(_)
            | Self::InUse { .. }
            | Self::WentBack
            | Self::Address(_)
            | Self::File { .. } => None,
        }
    }

    /// Whether something may have been written although this is an error.
    #[must_use]
    pub const fn may_have_written(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

/// Shorthand for the ledger's answers.
pub type Result<T, E = Error> = std::result::Result<T, E>;
