//! Whether the ledger takes writes: what the last failure of a write said about the disk, until a probe succeeds.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use sqlx::postgres::PgDatabaseError;

use crate::{Error, Result};

/// Bytes that a probe writes into a SQLite file: the largest payload of a job.
pub(crate) const PROBE_BYTES: i64 = domain::limits::PAYLOAD_BYTES_MAX as i64;
/// The row of `setting` that a probe writes and removes.
pub(crate) const PROBE_NAME: &str = "write-probe";

/// Why the ledger answers reads and takes no writes. Each reason ends without a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// The disk has no room.
    DiskFull,
    /// The file, its file system or the server takes reads only.
    ReadOnly,
    /// The disk answers with errors.
    InputOutput,
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DiskFull => "the ledger's disk is full",
            Self::ReadOnly => "the ledger is read-only",
            Self::InputOutput => "the ledger's disk answers with errors",
        })
    }
}

impl Unwritable {
    /// What a failure of the driver says. `None` where it says something else.
    pub(crate) fn of(error: &sqlx::Error) -> Option<Self> {
        let database = error.as_database_error()?;
        let code = database.code()?;
        if database.try_downcast_ref::<PgDatabaseError>().is_some() {
            return match code.as_ref() {
                "53100" => Some(Self::DiskFull),
                "25006" => Some(Self::ReadOnly),
                "58030" => Some(Self::InputOutput),
                _ => None,
            };
        }
        // SQLite: the low byte is the primary result code.
        match code.parse::<i32>().ok()? & 0xff {
            8 => Some(Self::ReadOnly),
            10 | 14 => Some(Self::InputOutput),
            13 => Some(Self::DiskFull),
            _ => None,
        }
    }
}

/// What the writes of a ledger have come to. All clones share it.
///
/// A small write may succeed on a disk that is too full for a large one, so a success alone proves nothing:
/// only [`Self::recovered`], after a probe, clears the reason.
#[derive(Clone, Default)]
pub(crate) struct WriteWatch(Arc<Mutex<Option<Unwritable>>>);

impl WriteWatch {
    /// Why writes failed last; `None` while they are not known to fail.
    pub(crate) fn reason(&self) -> Option<Unwritable> {
        *self.0.lock()
    }

    /// A probe was written.
    pub(crate) fn recovered(&self) {
        *self.0.lock() = None;
        tracing::info!("the ledger takes writes again");
    }

    /// Notes what a write came to.
    pub(crate) fn saw<T>(&self, answer: Result<T>) -> Result<T> {
        if let Err(error) = &answer {
            self.failed(error);
        }
        answer
    }

    /// Notes why a write failed.
    pub(crate) fn failed(&self, error: &Error) {
        let Some(reason) = error.driver().and_then(Unwritable::of) else { return };
        let before = self.0.lock().replace(reason);
        if before != Some(reason) {
            tracing::error!(%reason, %error, "the ledger takes no writes");
        }
    }
}
