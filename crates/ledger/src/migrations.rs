//! The tables' history, compiled in, and whether this binary may run on the tables that it finds.
//!
//! Releases N and N − 1 run on the same tables, so **a migration only adds**: tables, views, indexes, columns that have a default
//! or may be NULL. An index may go that no statement of N − 1 names or needs. 0.1.0 does not start if sqlx's own table names a
//! migration that it does not know. So that table names the migrations of 0.1.0 and no others; all later ones are in
//! [`LATER_TABLE`], which 0.1.0 does not read.
//!
//! Statements that read all columns of a table (`SELECT *`) cannot go on, on the connections that have prepared them, when a
//! column is added. So such a migration for PostgreSQL also ends the connections of the instances that run; they connect
//! anew, as after a restart of the server. Where its role may not end them, PostgreSQL refuses such a statement once on each
//! connection, which the store then closes.
//!
//! A migration that takes something away waits until the releases that use it are gone. It also leaves two marks:
//!
//! - the setting `schema.readable_from`: the lowest schema version whose binaries can run on the tables from then on. An
//!   older binary does not start.
//! - a row of its version in `_sqlx_migrations`, for 0.1.0, which does not know the setting.
//!
//! What must never live here: SQL of a migration. It belongs to `migrations/`, the same file name for both databases.

use std::collections::BTreeSet;
use std::sync::{LazyLock, Once};
use std::time::Instant;

use sqlx::migrate::{
    AppliedMigration, Migrate as Migrating, MigrateError, Migration, MigrationType, Migrator,
};
use sqlx::{Connection as _, SqlStr};

use crate::Error;
use crate::sql::{Session, Statement, statement};

include!(concat!(env!("OUT_DIR"), "/migrations.rs"));

/// The version of 0.1.0's tables.
const FIRST_RELEASE: i64 = 13;
/// sqlx's table, which names the migrations up to [`FIRST_RELEASE`].
const FIRST_TABLE: &str = "_sqlx_migrations";
/// The table that names all later ones.
const LATER_TABLE: &str = "schema_migration";
/// The setting that names the lowest schema version whose binaries can run on the tables.
const READABLE_FROM: &str = "schema.readable_from";

const TABLES: Statement = statement!("schema_tables");
const IDENTITY: Statement = statement!(both "identity_show");
const SETTING: Statement = statement!(both "setting_show");

pub(crate) static POSTGRES: LazyLock<History> = LazyLock::new(|| History::of(POSTGRES_FILES));
pub(crate) static SQLITE: LazyLock<History> = LazyLock::new(|| History::of(SQLITE_FILES));

/// What a start does if the tables are older than the binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migrate {
    /// It brings them up to date, and makes those that there are not.
    Auto,
    /// It brings them up to date, and refuses a database that has none.
    Existing,
    /// It refuses, and changes nothing.
    Check,
    /// As `Check`, for a command about an existing ledger: where there is none, the error does not suggest making one.
    CheckExisting,
}

/// What to do where [`Migrate::Existing`] or [`Migrate::CheckExisting`] finds no ledger.
pub(crate) const NAME_ANOTHER: &str = "name the one that is meant with --database-url or --config";

/// What to do where there is another ledger than [`crate::Options::expected_id`] says, or none.
pub(crate) const CORRECT_ONE: &str =
    "correct ledger.url, or ledger.expected_id, which names the only one to open. Nothing was changed";

/// All migrations for one database.
pub(crate) struct History {
    first: Migrator,
    later: Migrator,
    /// That the tables are older, or not there, is logged once, not with each try at a database that is busy.
    named: Once,
}

/// What a database says of its tables.
#[derive(Debug, Default)]
struct Found {
    first: Vec<AppliedMigration>,
    later: Vec<AppliedMigration>,
    readable_from: Option<i64>,
}

/// How tables that this binary can run on compare with it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Difference {
    /// The migrations that they lack.
    missing: Vec<i64>,
    /// The newest migration that this binary does not know.
    newer: Option<i64>,
}

impl History {
    /// The migrations in these files, whose names are a version, `_` and a description.
    fn of(files: &[(&str, &'static str)]) -> Self {
        let migration = |&(name, text): &(&str, &'static str)| {
            let (version, description) = name.split_once('_').expect("a version and a description");
            let version = version.parse().expect("a version is a number");
            let description = description.replace('_', " ").into();
            Migration::new(version, description, MigrationType::Simple, SqlStr::from_static(text), false)
        };
        let (first, later): (Vec<_>, Vec<_>) =
            files.iter().map(migration).partition(|migration| migration.version <= FIRST_RELEASE);
        let migrator = |migrations, table: &'static str| {
            let mut migrator = Migrator::with_migrations(migrations);
            migrator.dangerous_set_table_name(table);
            // `compare` decides about those that this binary does not know.
            migrator.set_ignore_missing(true);
            migrator
        };
        Self { first: migrator(first, FIRST_TABLE), later: migrator(later, LATER_TABLE), named: Once::new() }
    }

    /// Compares PostgreSQL's tables with this binary; says whether [`Self::run_postgres`] is to bring them up to date.
    pub(crate) async fn lacks_postgres(
        &self,
        connection: &mut sqlx::PgConnection,
        expected_id: Option<&str>,
        migrate: Migrate,
    ) -> Result<bool, MigrateFailure> {
        let (tables, readable_from) = read_marks(&mut Session::Postgres(connection), expected_id).await?;
        self.lacks(connection, tables, readable_from, migrate).await
    }

    /// Brings SQLite's tables up to date, or compares them with this binary.
    pub(crate) async fn settle_sqlite(
        &self,
        connection: &mut sqlx::SqliteConnection,
        expected_id: Option<&str>,
        migrate: Migrate,
    ) -> Result<(), MigrateFailure> {
        let (tables, readable_from) = read_marks(&mut Session::Sqlite(connection), expected_id).await?;
        let has_ledger = tables.has_first;
        if self.lacks(connection, tables, readable_from, migrate).await? {
            if !has_ledger {
                self.name_new();
            }
            self.run(connection).await?;
        }
        Ok(())
    }

    /// Brings the tables up to date, however long that takes.
    pub(crate) async fn run<C: Migrating>(&self, connection: &mut C) -> Result<(), MigrateFailure> {
        let begun = Instant::now();
        self.first.run_direct(None, connection, false).await?;
        self.later.run_direct(None, connection, false).await?;
        let took_ms = begun.elapsed().as_millis() as u64;
        tracing::info!(schema = self.newest(), took_ms, "the tables are up to date");
        Ok(())
    }

    /// The same on PostgreSQL. The tables of a new ledger are made in one transaction: where one of them cannot be made, none is.
    pub(crate) async fn run_postgres(
        &self,
        connection: &mut sqlx::PgConnection,
        has_ledger: bool,
    ) -> Result<(), MigrateFailure> {
        if has_ledger {
            return self.run(connection).await;
        }
        self.name_new();
        let mut transaction = connection.begin().await?;
        self.run(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    /// Logs that a new ledger is made: by this process, where nothing is known that refuses it. Of the wrong folder, volume or
    /// database this is the first sign.
    fn name_new(&self) {
        self.named.call_once(|| {
            tracing::info!(
                "there is no ledger, and a new one is made: it grants everything from the first on"
            );
        });
    }

    async fn lacks<C: Migrating>(
        &self,
        connection: &mut C,
        tables: Tables,
        readable_from: Option<i64>,
        migrate: Migrate,
    ) -> Result<bool, MigrateFailure> {
        let mut found = Found { readable_from, ..Found::default() };
        for (is_there, table, applied) in [
            (tables.has_first, FIRST_TABLE, &mut found.first),
            (tables.has_later, LATER_TABLE, &mut found.later),
        ] {
            if is_there {
                *applied = connection.list_applied_migrations(table).await?;
            }
        }
        if matches!(migrate, Migrate::Existing | Migrate::CheckExisting) && !tables.has_first {
            let why = format!("the database has no ledger; {NAME_ANOTHER}");
            return Err(MigrateFailure::Final(Error::Migration(why)));
        }
        let difference = self.compare(&found)?;
        if let Some(newer) = difference.newer {
            tracing::warn!(
                schema = newer,
                binary = self.newest(),
                "the tables are newer than this binary, which can run on them"
            );
        }
        match migrate {
            _ if difference.missing.is_empty() => Ok(false),
            Migrate::Check | Migrate::CheckExisting => {
                let how = if tables.has_first {
                    format!("the tables are older than this binary: they lack {}", named(&difference.missing))
                } else {
                    "the database has no tables of a ledger".to_owned()
                };
                let why = format!("{how}; run `fencepost migrate`, or start with --migrate auto");
                Err(MigrateFailure::Final(Error::Migration(why)))
            }
            Migrate::Auto | Migrate::Existing => {
                if tables.has_first {
                    let lacking = named(&difference.missing);
                    self.named.call_once(|| {
                        tracing::info!(
                            lacking,
                            "the tables are older than this binary and are brought up to date"
                        );
                    });
                }
                Ok(true)
            }
        }
    }

    fn newest(&self) -> i64 {
        self.versions().last().copied().unwrap_or_default()
    }

    fn versions(&self) -> BTreeSet<i64> {
        self.first.iter().chain(self.later.iter()).map(|migration| migration.version).collect()
    }

    /// Compares the tables with this binary.
    ///
    /// # Errors
    /// This binary cannot run on them.
    fn compare(&self, found: &Found) -> Result<Difference, MigrateFailure> {
        let own = self.versions();
        let newest = self.newest();
        let known = self.first.iter().chain(self.later.iter());
        let mut missing = Vec::new();
        for migration in known {
            let mut applied = found.first.iter().chain(&found.later);
            match applied.find(|applied| applied.version == migration.version) {
                Some(applied) if applied.checksum != migration.checksum => {
                    return Err(MigrateError::VersionMismatch(migration.version).into());
                }
                Some(_) => {}
                None => missing.push(migration.version),
            }
        }
        let unknown = |applied: &[AppliedMigration]| {
            applied.iter().map(|applied| applied.version).filter(|version| !own.contains(version)).max()
        };
        let newer = unknown(&found.first).max(unknown(&found.later));
        // Without the setting, a row in the first table is for all binaries that do not know its migration.
        let refused = match found.readable_from {
            Some(lowest) => (newest < lowest).then_some(newer.unwrap_or(lowest)),
            None => unknown(&found.first),
        };
        match refused {
            Some(version) => Err(MigrateError::VersionMissing(version).into()),
            None => Ok(Difference { missing, newer }),
        }
    }
}

/// Takes the lock that a migrator has while it changes PostgreSQL's tables, of 0.1.0 too, for as long as the session lasts.
pub(crate) async fn lock(connection: &mut sqlx::PgConnection) -> Result<(), MigrateFailure> {
    Ok(connection.lock().await?)
}

/// Which tables of the history a database has.
struct Tables {
    has_first: bool,
    has_later: bool,
}

/// What the tables say of themselves, if they are those of the ledger that is expected.
async fn read_marks(
    session: &mut Session<'_>,
    expected_id: Option<&str>,
) -> Result<(Tables, Option<i64>), MigrateFailure> {
    let kind = session.kind();
    let (has_first, has_later, has_settings): (bool, bool, bool) = session.one(TABLES.on(kind)).await?;
    if let Some(expected) = expected_id {
        refuse_other_ledger(session, has_first, expected).await?;
    }
    let mut readable_from = None;
    if has_settings {
        let setting = session.all::<(i64, String)>(SETTING.on(kind).bind(READABLE_FROM)).await?;
        if let Some((_, version)) = setting.into_iter().next() {
            let unreadable = |_| {
                Error::Impossible(format!("the setting {READABLE_FROM} is {version:?}, no version").into())
            };
            readable_from = Some(version.parse().map_err(unreadable).map_err(MigrateFailure::Final)?);
        }
    }
    Ok((Tables { has_first, has_later }, readable_from))
}

/// Before any migration: one of the wrong ledger could not be undone.
async fn refuse_other_ledger(
    session: &mut Session<'_>,
    has_tables: bool,
    expected: &str,
) -> Result<(), MigrateFailure> {
    let mut found: Vec<(String, i64)> = Vec::new();
    if has_tables {
        let kind = session.kind();
        found = session.all(IDENTITY.on(kind)).await?;
    }
    let found = match found.first() {
        Some((id, _)) if id == expected => return Ok(()),
        Some((id, _)) => format!("the ledger {id}"),
        None => "no ledger".to_owned(),
    };
    let why = format!("the database has {found}, and the ledger {expected} is expected; {CORRECT_ONE}");
    Err(MigrateFailure::Final(Error::Migration(why)))
}

fn named(versions: &[i64]) -> String {
    match versions {
        [only] => format!("migration {only}"),
        _ => {
            let list: Vec<_> = versions.iter().map(i64::to_string).collect();
            format!("the migrations {}", list.join(", "))
        }
    }
}

/// Why the tables could not be brought up to date.
#[derive(Debug)]
pub(crate) enum MigrateFailure {
    /// The driver failed: it may be worth another try.
    Driver(sqlx::Error),
    /// Another try fails too.
    Final(Error),
}

impl From<sqlx::Error> for MigrateFailure {
    fn from(error: sqlx::Error) -> Self {
        Self::Driver(error)
    }
}

impl From<MigrateError> for MigrateFailure {
    fn from(error: MigrateError) -> Self {
        Self::Final(Error::Migration(match error {
            MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => {
                return Self::Driver(source);
            }
            MigrateError::VersionMissing(version) => format!(
                "the database is newer than this binary: it has migration {version}, after which this binary cannot \
                 run on it; start a newer Fencepost"
            ),
            MigrateError::VersionMismatch(version) => format!(
                "migration {version} was applied in another form than this binary has; the tables were changed by \
                 another hand"
            ),
            MigrateError::Dirty(version) => format!("migration {version} was begun and never finished"),
            other => format!("the tables could not be brought up to date: {other}"),
        }))
    }
}

#[cfg(test)]
mod tests;
