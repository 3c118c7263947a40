//! What can go wrong between a decision and its row. What each means for the writer is the point:
//! whether anything was written, and whether to ask again.

use std::borrow::Cow;
use std::sync::Arc;

/// Why the ledger did not answer as asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// It could not be reached or did not answer in time; nothing was written.
    #[error("the ledger is unavailable: {source}")]
    Unavailable {
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// A write was sent and its outcome is not known: it may have been committed, may still be, or
    /// not. The writer must acquire its lease anew and reload before its next decision (I9).
    #[error("the outcome of a write is unknown: {source}")]
    Unknown {
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The server undid the transaction (deadlock, lock time-out, serialisation); nothing was written
    /// and the same may be sent again.
    #[error("the ledger aborted the transaction: {source}")]
    Aborted {
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// The database refused the statement or the data: a defect, or a foreign hand in the tables.
    #[error("the ledger refused: {source}")]
    Refused {
        /// What the driver said.
        #[source]
        source: Arc<sqlx::Error>,
    },
    /// A row that cannot be, such as an unknown state.
    #[error("impossible data in the ledger: {0}")]
    Impossible(Cow<'static, str>),
    /// The tables were made by a newer Fencepost, or by another hand.
    #[error("{0}")]
    Migration(String),
    /// Another process has the SQLite file.
    #[error("the ledger {path} is in use by the process with pid {pid}")]
    InUse {
        /// The file.
        path: String,
        /// Its holder, as it wrote it down.
        pid: String,
    },
    /// The ledger's address is not one that can be used.
    #[error("{0}")]
    Address(String),
    /// The file system stands in the way.
    #[error("{path}: {source}")]
    File {
        /// The file or folder.
        path: String,
        /// What the system said.
        #[source]
        source: Arc<std::io::Error>,
    },
}

/// What a failure of the driver says of the database's state. Each dialect tells them apart in its own way.
pub(crate) enum Failure {
    /// The database undid what was asked and said so.
    Undone,
    /// The connection is gone, or never was, or what was done is not known.
    Lost,
    /// The database refused.
    Refused,
}

impl Failure {
    /// What it means to who only read.
    pub(crate) fn of_read(self, source: sqlx::Error) -> Error {
        match self {
            Self::Undone | Self::Lost => Error::unavailable(source),
            Self::Refused => Error::refused(source),
        }
    }

    /// What it means of a statement that commits by itself, of a COMMIT, or of anything after a BEGIN: a
    /// connection lost there may leave a statement running in the server.
    pub(crate) fn of_write(self, source: sqlx::Error) -> Error {
        match self {
            // No connection was had, so nothing was sent.
            _ if matches!(source, sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed) => {
                Error::unavailable(source)
            }
            Self::Undone => Error::aborted(source),
            Self::Lost => Error::unknown(source),
            Self::Refused => Error::refused(source),
        }
    }
}

impl Error {
    /// Nothing was written; the driver's reason.
    #[must_use]
    pub fn unavailable(source: impl Into<sqlx::Error>) -> Self {
        Self::Unavailable { source: Arc::new(source.into()) }
    }

    /// Nobody knows what was written; the driver's reason.
    #[must_use]
    pub fn unknown(source: impl Into<sqlx::Error>) -> Self {
        Self::Unknown { source: Arc::new(source.into()) }
    }

    /// The server undid it; the driver's reason.
    #[must_use]
    pub fn aborted(source: impl Into<sqlx::Error>) -> Self {
        Self::Aborted { source: Arc::new(source.into()) }
    }

    /// The server refused; the driver's reason.
    #[must_use]
    pub fn refused(source: impl Into<sqlx::Error>) -> Self {
        Self::Refused { source: Arc::new(source.into()) }
    }

    /// Whether the same may succeed later without anybody changing anything.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::Unknown { .. } | Self::Aborted { .. } => true,
            Self::Refused { .. }
            | Self::Impossible(_)
            | Self::Migration(_)
            | Self::InUse { .. }
            | Self::Address(_)
            | Self::File { .. } => false,
        }
    }

    /// Whether something may have been written although this is an error.
    #[must_use]
    pub const fn may_have_written(&self) -> bool {
        matches!(self, Self::Unknown { .. })
    }
}

/// Shorthand for the ledger's answers.
pub type Result<T> = std::result::Result<T, Error>;
