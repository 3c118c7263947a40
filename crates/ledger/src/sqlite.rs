//! The ledger in a SQLite file: one writer, a few readers, and the lock that keeps other processes out.

mod engine;
mod ids;
mod instances;
mod jobs;
mod leases;
mod lock;
mod nonces;
mod sessions;
mod settings;

use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, SqlitePool};

use crate::detached::{self, Effect};
use crate::error::Failure;
use crate::ids::Grant;
use crate::train::Trains;
use crate::{Batch, Error, Health, JobBatch, Kind, Ledger, Options, Result, migrations};
use engine::Track;
use lock::FileLock;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/sqlite/", $name, ".sql"))
    };
}
pub(crate) use sql;

pub(crate) struct Sqlite {
    /// One connection: SQLite has one writer at a time, and waiting for it in order is better than
    /// being told BUSY.
    writer: SqlitePool,
    readers: SqlitePool,
    /// A track of each kind, for the one writer. Between two trains acquires and renewals have their turn: the
    /// pool serves in the order of asking.
    trains: Trains<Batch>,
    job_trains: Trains<JobBatch>,
    /// The same for numbers of sequences. It and the one above take turns at the writer.
    sequences: Trains<Grant>,
    call_timeout: Duration,
    /// Given back when the ledger is dropped, and by the system when the process dies.
    _lock: FileLock,
}

impl Sqlite {
    pub(crate) async fn open(options: &Options) -> Result<Self> {
        let path = path(&options.url)?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|source| file_error(folder, source))?;
        }
        let lock = FileLock::take(&path)?;
        let call_timeout = Duration::from_millis(options.call_timeout_ms);
        let connect = SqliteConnectOptions::new()
            .filename(&path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .auto_vacuum(SqliteAutoVacuum::None)
            .busy_timeout(call_timeout)
            .disable_statement_logging();
        let writer = SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(call_timeout)
            .test_before_acquire(false)
            .connect_with(connect.clone())
            .await
            .map_err(Error::refused)?;
        migrations::SQLITE.run(&writer).await.map_err(migrations::failed)?;
        // The lock proves that whoever left these leases is dead.
        sqlx::query(include_str!("../sql/sqlite-only/lease_end_all.sql"))
            .execute(&writer)
            .await
            .map_err(write_failed)?;
        let readers = SqlitePoolOptions::new()
            .max_connections(options.connections_max)
            .acquire_timeout(call_timeout)
            .test_before_acquire(false)
            .connect_lazy_with(connect.read_only(true).create_if_missing(false));
        let trains = Trains::start([Track { writer: writer.clone() }]);
        let job_trains = Trains::start([Track { writer: writer.clone() }]);
        let sequences = Trains::start([Track { writer: writer.clone() }]);
        Ok(Self { writer, readers, trains, job_trains, sequences, call_timeout, _lock: lock })
    }

    async fn reads<T: Send + 'static>(
        &self,
        call: impl Future<Output = sqlx::Result<T>> + Send + 'static,
    ) -> Result<T> {
        detached::run(Effect::Reads, self.call_timeout, async { call.await.map_err(read_failed) }).await
    }

    async fn writes<T: Send + 'static>(
        &self,
        call: impl Future<Output = sqlx::Result<T>> + Send + 'static,
    ) -> Result<T> {
        detached::run(Effect::Writes, self.call_timeout, async { call.await.map_err(write_failed) }).await
    }
}

#[async_trait::async_trait]
impl Ledger for Sqlite {
    fn kind(&self) -> Kind {
        Kind::Sqlite
    }

    async fn check(&self) -> Result<Health> {
        let pool = self.writer.clone();
        let synchronous: i64 =
            self.reads(async move { sqlx::query_scalar(sql!("health")).fetch_one(&pool).await }).await?;
        let mut durability_warnings = Vec::new();
        if synchronous < 2 {
            durability_warnings.push(format!("synchronous is {synchronous}, should be 2 (FULL)"));
        }
        Ok(Health { durability_warnings })
    }

    fn connections_in_use(&self) -> u32 {
        let in_use = |pool: &SqlitePool| {
            pool.size().saturating_sub(u32::try_from(pool.num_idle()).unwrap_or(u32::MAX))
        };
        in_use(&self.writer) + in_use(&self.readers)
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// Migrates without serving. Takes the file's lock as serving does: a running daemon has its tables.
pub(crate) async fn migrate_only(options: &Options) -> Result<()> {
    let ledger = Sqlite::open(options).await?;
    ledger.close().await;
    Ok(())
}

fn path(url: &str) -> Result<PathBuf> {
    let path = url.strip_prefix("sqlite://").or_else(|| url.strip_prefix("sqlite:")).unwrap_or_default();
    if path.is_empty() || path.contains(['?', '#']) || path.contains(":memory:") {
        return Err(Error::Address(format!(
            "the database URL {url} names no file; sqlite:./fencepost-data/ledger.db would be right"
        )));
    }
    Ok(PathBuf::from(path))
}

fn file_error(path: &Path, source: std::io::Error) -> Error {
    Error::File { path: path.display().to_string(), source: source.into() }
}

/// BUSY and LOCKED say that nothing was done; the rest of what can happen to a file is not undone so surely.
fn failure(error: &sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Database(database) => {
            // The primary result code is the low byte: 5 BUSY, 6 LOCKED; 7 NOMEM, 10 IOERR, 13 FULL.
            let code = database.code().and_then(|code| code.parse::<i32>().ok()).unwrap_or(1);
            match code & 0xff {
                5 | 6 => Failure::Undone,
                7 | 10 | 13 => Failure::Lost,
                _ => Failure::Refused,
            }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => Failure::Lost,
        _ => Failure::Refused,
    }
}

fn read_failed(source: sqlx::Error) -> Error {
    failure(&source).of_read(source)
}

fn write_failed(source: sqlx::Error) -> Error {
    failure(&source).of_write(source)
}
