//! The tables' history, compiled in. A database that has seen a migration which this binary does not
//! know is newer than the binary, and is left alone.

use std::sync::LazyLock;

use sqlx::SqlStr;
use sqlx::migrate::{MigrateError, Migration, MigrationType, Migrator};

use crate::Error;

include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

pub(crate) static POSTGRES: LazyLock<Migrator> = LazyLock::new(|| migrator(POSTGRES_FILES));
pub(crate) static SQLITE: LazyLock<Migrator> = LazyLock::new(|| migrator(SQLITE_FILES));

/// The migrations in these files, whose names are a version, `_` and a description.
fn migrator(files: &[(&str, &'static str)]) -> Migrator {
    let migration = |&(name, text): &(&str, &'static str)| {
        let (version, description) = name.split_once('_').expect("a version and a description");
        let version = version.parse().expect("a version is a number");
        let description = description.replace('_', " ").into();
        Migration::new(version, description, MigrationType::Simple, SqlStr::from_static(text), false)
    };
    Migrator::with_migrations(files.iter().map(migration).collect())
}

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
