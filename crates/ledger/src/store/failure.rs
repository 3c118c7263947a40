//! What a failure of the driver says about what was written, on either database.

use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::Error;
use crate::records::impossible;
use crate::unwritable::{INSUFFICIENT_PRIVILEGE, UNDEFINED_TABLE};

/// What a failure says of the database's state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// The database undid what was asked and said so.
    Undone,
    /// The connection is gone, or never was, or what was done is not known.
    Lost,
    /// PostgreSQL did nothing, and does nothing for this statement as long as the connection is open: the columns that the
    /// statement answers have changed since the connection prepared it.
    Outdated,
    /// The database refused.
    Refused,
}

/// The error of a call that only reads.
pub(super) fn read_failed(source: sqlx::Error) -> Error {
    match failure(&source) {
        // The database answered, and the row cannot be read.
        _ if matches!(source, sqlx::Error::ColumnDecode { .. }) => impossible(source),
        Failure::Undone | Failure::Lost | Failure::Outdated => Error::unavailable(source),
        Failure::Refused => Error::refused(source),
    }
}

/// The error of a statement that commits by itself, of a COMMIT, or of anything after a BEGIN: a connection that is
/// lost there may leave a statement running in the server.
pub(super) fn write_failed(source: sqlx::Error) -> Error {
    match failure(&source) {
        // No connection was had, so nothing was sent.
        _ if matches!(source, sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed) => {
            Error::unavailable(source)
        }
        Failure::Undone | Failure::Outdated => Error::aborted(source),
        Failure::Lost => Error::unknown(source),
        Failure::Refused => Error::refused(source),
    }
}

/// Whether the connection is to be closed after this: its state is not known, or it has prepared what is outdated.
pub(super) fn is_lost(source: &sqlx::Error) -> bool {
    matches!(failure(source), Failure::Lost | Failure::Outdated)
}

/// Whether PostgreSQL ended a statement for what may be over soon: it was cancelled, took too long, or met another one.
pub(super) fn is_passing(source: &sqlx::Error) -> bool {
    has_code(source, &["57014", "40001", "40P01", "55P03"])
}

/// Whether PostgreSQL undid a statement because a row was there already, or was not as the statement said: it lets such
/// statements divide by zero.
pub(super) fn is_contradicted(source: &sqlx::Error) -> bool {
    const UNIQUE_VIOLATION: &str = "23505";
    const DIVISION_BY_ZERO: &str = "22012";
    has_code(source, &[UNIQUE_VIOLATION, DIVISION_BY_ZERO])
}

/// Whether the database answered with one of these codes: SQLSTATEs on PostgreSQL.
pub(super) fn has_code(source: &sqlx::Error, codes: &[&str]) -> bool {
    let code = source.as_database_error().and_then(sqlx::error::DatabaseError::code);
    code.is_some_and(|code| codes.contains(&code.as_ref()))
}

fn failure(error: &sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default();
            match database.try_downcast_ref::<PgDatabaseError>() {
                Some(database) if is_outdated(database) => Failure::Outdated,
                Some(database) => of_postgres(&code, database.severity()),
                None => of_sqlite(&code),
            }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => Failure::Lost,
        _ => Failure::Refused,
    }
}

/// The code says only that something is not supported, and the message may be in any language.
fn is_outdated(database: &PgDatabaseError) -> bool {
    database.code() == "0A000" && database.routine() == Some("RevalidateCachedQuery")
}

fn of_postgres(code: &str, severity: PgSeverity) -> Failure {
    // The session ends with it, and what it was doing may or may not have been kept.
    if matches!(severity, PgSeverity::Fatal | PgSeverity::Panic) {
        return Failure::Lost;
    }
    match code {
        // Serialisation, deadlock, lock not available, statement cancelled (time-out); and a right or a table that is missing,
        // without which the ledger takes no writes.
        "40001" | "40P01" | "55P03" | "57014" | INSUFFICIENT_PRIVILEGE | UNDEFINED_TABLE => Failure::Undone,
        // Idle session ended; a server that only reads (a standby, or one on its way to be).
        "25P03" | "25006" => Failure::Lost,
        // Connection exceptions, out of resources (disk, memory, connections), operator intervention, input and
        // output.
        code if ["08", "53", "57", "58"].contains(&&code[..code.len().min(2)]) => Failure::Lost,
        _ => Failure::Refused,
    }
}

/// BUSY, LOCKED and INTERRUPT say that nothing was done; the rest of what can happen to a file is not undone so surely.
fn of_sqlite(code: &str) -> Failure {
    // The primary result code is the low byte: 5 BUSY, 6 LOCKED, 9 INTERRUPT; 7 NOMEM, 8 READONLY, 10 IOERR, 11 CORRUPT, 13 FULL,
    // 14 CANTOPEN, 26 NOTADB.
    match code.parse::<i32>().unwrap_or(1) & 0xff {
        5 | 6 | 9 => Failure::Undone,
        7 | 8 | 10 | 11 | 13 | 14 | 26 => Failure::Lost,
        _ => Failure::Refused,
    }
}
