//! Whether the ledger takes writes: what the last failure of a write said about the disk, the file or the role's rights, until a
//! look finds that all writes pass.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::Error;

/// Bytes that a probe writes into a SQLite file: the largest payload of a job.
pub(crate) const PROBE_BYTES: i64 = domain::limits::PAYLOAD_BYTES_MAX as i64;
/// The row of `setting` that a probe writes and removes.
pub(crate) const PROBE_NAME: &str = "write-probe";

/// What PostgreSQL says where the role lacks a right.
pub(crate) const INSUFFICIENT_PRIVILEGE: &str = "42501";
/// What PostgreSQL says where a table or a view is not there.
pub(crate) const UNDEFINED_TABLE: &str = "42P01";

/// How long after its last failure a reason is given to callers without an answer. Later failures may have another reason.
const TOLD_FOR: Duration = Duration::from_secs(10);
/// How long a refusal whose cause no look finds still counts, after the last such refusal.
const DENIED_FOR: Duration = Duration::from_secs(60);

/// Why the ledger answers reads and takes no writes. Each reason but [`Self::Corrupt`] ends without a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// The disk has no room.
    DiskFull,
    /// The file, its file system or the server takes reads only.
    ReadOnly,
    /// The disk answers with errors.
    InputOutput,
    /// The role lacks a right that it needs, also one to read.
    Denied,
    /// PostgreSQL's database lacks a table: somebody has dropped it, or restores the database, or another one has its name.
    Incomplete,
    /// What is read of the SQLite file is no database, or makes no sense. It counts until the file is opened again: what else is
    /// wrong in it nobody knows before all of it was read.
    Corrupt,
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DiskFull => "the ledger's disk is full",
            Self::ReadOnly => "the ledger is read-only",
            Self::InputOutput => "the ledger's disk answers with errors",
            Self::Denied => "the ledger's database denies its role a right",
            Self::Incomplete => "the ledger's database lacks a table",
            Self::Corrupt => "the ledger's file is corrupt",
        })
    }
}

impl Unwritable {
    /// Why the ledger takes no writes, where that is why a call failed.
    #[must_use]
    pub fn why(error: &Error) -> Option<Self> {
        Self::of(error.driver()?)
    }

    /// What a failure of the driver says. `None` where it says something else.
    fn of(error: &sqlx::Error) -> Option<Self> {
        let database = error.as_database_error()?;
        let code = database.code()?;
        if let Some(database) = database.try_downcast_ref::<PgDatabaseError>() {
            return match code.as_ref() {
                "53100" => Some(Self::DiskFull),
                "25006" => Some(Self::ReadOnly),
                "58030" => Some(Self::InputOutput),
                // The role may not connect: there is no connection, as where the server is away.
                INSUFFICIENT_PRIVILEGE if matches!(database.severity(), PgSeverity::Fatal) => None,
                INSUFFICIENT_PRIVILEGE => Some(Self::Denied),
                UNDEFINED_TABLE => Some(Self::Incomplete),
                _ => None,
            };
        }
        Self::of_sqlite(code.parse().ok()?)
    }

    /// What a result code of SQLite says. The low byte is the primary one.
    fn of_sqlite(code: i32) -> Option<Self> {
        // IOERR_SHMSIZE: the index of the log (`-shm`) could not be made longer, which needs room.
        const SHM_SIZE: i32 = 10 | (19 << 8);
        match code & 0xff {
            _ if code == SHM_SIZE => Some(Self::DiskFull),
            8 => Some(Self::ReadOnly),
            10 | 14 => Some(Self::InputOutput),
            11 | 26 => Some(Self::Corrupt),
            13 => Some(Self::DiskFull),
            _ => None,
        }
    }
}

/// What the writes of a ledger have come to. All clones share it.
///
/// A small write may succeed on a disk that is too full for a large one, so a success alone proves nothing:
/// only [`Self::passed`], after a probe, clears the reason.
#[derive(Clone, Default)]
pub(crate) struct WriteWatch(Arc<Mutex<Option<WriteFailure>>>);

/// Why a write failed.
#[derive(Clone)]
pub(crate) struct WriteFailure {
    pub(crate) reason: Unwritable,
    /// What the database said when it first failed for this reason.
    pub(crate) words: String,
    /// When a call failed for it last, or a look found it.
    at: Instant,
    /// Whether a look has found it. Then a look also finds its end.
    is_seen: bool,
}

impl WriteWatch {
    /// Why writes failed last; `None` while they are not known to fail.
    pub(crate) fn reason(&self) -> Option<Unwritable> {
        self.0.lock().as_ref().map(|found| found.reason)
    }

    /// Why writes failed last, as long as that may be why a call of this moment has no answer.
    pub(crate) fn recent_reason(&self) -> Option<Unwritable> {
        self.recent_reason_at(Instant::now())
    }

    fn recent_reason_at(&self, now: Instant) -> Option<Unwritable> {
        let found = self.0.lock();
        found.as_ref().filter(|found| now.duration_since(found.at) < TOLD_FOR).map(|found| found.reason)
    }

    /// Why writes failed last, with what the database said; `None` while they are not known to fail.
    pub(crate) fn failure(&self) -> Option<WriteFailure> {
        self.0.lock().clone()
    }

    /// A look has found that writes fail still.
    pub(crate) fn seen(&self) {
        if let Some(found) = self.0.lock().as_mut() {
            (found.at, found.is_seen) = (Instant::now(), true);
        }
    }

    /// A look has found nothing, and has written a probe.
    pub(crate) fn passed(&self) {
        self.passed_at(Instant::now());
    }

    fn passed_at(&self, now: Instant) {
        let mut found = self.0.lock();
        let is_over = found.as_ref().is_some_and(|found| match found.reason {
            Unwritable::DiskFull | Unwritable::ReadOnly | Unwritable::InputOutput => true,
            // A look writes to one table alone, and does not know of each kind of right, nor always which table is missing.
            Unwritable::Denied | Unwritable::Incomplete => {
                found.is_seen || now.duration_since(found.at) >= DENIED_FOR
            }
            Unwritable::Corrupt => false,
        });
        if is_over {
            *found = None;
            tracing::info!("the ledger takes writes again");
        }
    }

    /// Notes why a write failed.
    pub(crate) fn failed(&self, error: &Error) {
        if let Some(reason) = Unwritable::why(error) {
            self.note_at(reason, error, Instant::now());
        }
    }

    /// Notes why a read failed, if no write can be decided on without it.
    pub(crate) fn read_failed(&self, error: &Error) {
        let Some(reason) = Unwritable::why(error) else { return };
        if matches!(reason, Unwritable::Denied | Unwritable::Incomplete | Unwritable::Corrupt) {
            self.note_at(reason, error, Instant::now());
        }
    }

    fn note_at(&self, reason: Unwritable, error: &Error, now: Instant) {
        let mut found = self.0.lock();
        let lasting = [reason, Unwritable::Corrupt];
        if let Some(known) = found.as_mut().filter(|known| lasting.contains(&known.reason)) {
            known.at = now;
            return;
        }
        let words = error.driver().map(ToString::to_string).unwrap_or_default();
        *found = Some(WriteFailure { reason, words, at: now, is_seen: false });
        tracing::error!(%reason, %error, "the ledger takes no writes");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A watch of a ledger that has failed for this reason, and when that was.
    fn failed(reason: Unwritable) -> (WriteWatch, Instant) {
        let (watch, at) = (WriteWatch::default(), Instant::now());
        fails(&watch, reason, at);
        (watch, at)
    }

    fn fails(watch: &WriteWatch, reason: Unwritable, at: Instant) {
        watch.note_at(reason, &Error::refused(sqlx::Error::RowNotFound), at);
    }

    #[test]
    fn an_index_of_the_log_that_finds_no_room_is_a_full_disk_and_other_errors_are_the_disks() {
        // IOERR_READ, IOERR_WRITE, IOERR_FSYNC, IOERR_SHMMAP, CANTOPEN.
        for code in [10, 266, 778, 1_034, 5_386, 14] {
            assert_eq!(Unwritable::of_sqlite(code), Some(Unwritable::InputOutput), "{code}");
        }
        for code in [13, 4_874] {
            assert_eq!(Unwritable::of_sqlite(code), Some(Unwritable::DiskFull), "{code}");
        }
        assert_eq!(Unwritable::of_sqlite(5), None, "busy");
    }

    #[test]
    fn callers_are_told_of_a_reason_for_a_while_after_the_last_failure_that_had_it() {
        let (watch, at) = failed(Unwritable::DiskFull);
        let half = TOLD_FOR / 2;
        assert_eq!(watch.recent_reason_at(at + half), Some(Unwritable::DiskFull));
        fails(&watch, Unwritable::DiskFull, at + half);
        assert_eq!(watch.recent_reason_at(at + TOLD_FOR), Some(Unwritable::DiskFull));
        assert_eq!(watch.recent_reason_at(at + half + TOLD_FOR), None);
        assert_eq!(watch.reason(), Some(Unwritable::DiskFull), "only a look finds that it is over");
        watch.passed_at(at);
        assert_eq!(watch.reason(), None);
    }

    #[test]
    fn what_no_look_has_found_missing_is_there_again_some_time_after_the_last_refusal() {
        for reason in [Unwritable::Denied, Unwritable::Incomplete] {
            let (watch, at) = failed(reason);
            watch.passed_at(at);
            fails(&watch, reason, at + DENIED_FOR / 2);
            watch.passed_at(at + DENIED_FOR);
            assert_eq!(watch.reason(), Some(reason));
            watch.passed_at(at + DENIED_FOR / 2 + DENIED_FOR);
            assert_eq!(watch.reason(), None);
            let (watch, at) = failed(reason);
            watch.seen();
            watch.passed_at(at);
            assert_eq!(watch.reason(), None, "a look that has found it missing finds it there");
        }
    }

    #[test]
    fn a_corrupt_file_stays_so_whatever_fails_or_passes_later() {
        let (watch, at) = failed(Unwritable::Corrupt);
        fails(&watch, Unwritable::DiskFull, at);
        watch.seen();
        watch.passed_at(at + DENIED_FOR);
        assert_eq!(watch.reason(), Some(Unwritable::Corrupt));
    }
}
