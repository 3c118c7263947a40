//! The tables' history, compiled in. A database that has seen a migration which this binary does not
//! know is newer than the binary, and is left alone.

use sqlx::migrate::{MigrateError, Migrator};

use crate::Error;

pub(crate) static POSTGRES: Migrator = sqlx::migrate!("../../migrations/postgres");
pub(crate) static SQLITE: Migrator = sqlx::migrate!("../../migrations/sqlite");

pub(crate) fn failed(error: MigrateError) -> Error {
    match error {
        MigrateError::VersionMissing(version) => Error::Migration(format!(
            "the database is newer than this binary: it has migration {version}, which this binary does not \
             know; start a newer Fencepost"
        )),
        MigrateError::VersionMismatch(version) => Error::Migration(format!(
            "migration {version} was applied in another form than this binary has; the tables were changed by \
             another hand"
        )),
        MigrateError::Dirty(version) => {
            Error::Migration(format!("migration {version} was begun and never finished"))
        }
        MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
            Error::unavailable(source)
        }
        other => Error::Migration(format!("the tables could not be brought up to date: {other}")),
    }
}
