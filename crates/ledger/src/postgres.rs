//! The ledger on PostgreSQL: connecting, and what a failure of the driver means.

mod engine;
mod ids;
mod instances;
mod jobs;
mod leases;
mod nonces;
mod sessions;
mod settings;

use std::str::FromStr;
use std::time::Duration;

use futures_util::future::BoxFuture;
use rand::RngExt;
use sqlx::migrate::MigrateError;
use sqlx::postgres::{PgConnectOptions, PgDatabaseError, PgPoolOptions, PgSeverity};
use sqlx::{ConnectOptions, Connection, PgConnection, PgPool};

use crate::detached::{self, Effect};
use crate::error::Failure;
use crate::ids::Grant;
use crate::train::Trains;
use crate::{Batch, Error, Health, JobBatch, Jobs as _, Kind, Ledger, Options, Result, migrations};
use engine::Track;

macro_rules! sql {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/postgres/", $name, ".sql"))
    };
}
pub(crate) use sql;

/// A transaction that its client left hanging is ended by the server after this. A takeover waits no
/// longer than that for a paused owner's last transaction.
const IDLE_IN_TRANSACTION_MS: u64 = 900;
/// A statement waits no longer than this for a lock; longer than the one above, so that a takeover
/// outlasts a hung transaction.
const LOCK_WAIT_MS: u64 = 2_000;
/// A call that the server was to end by itself (`statement_timeout`) is given so much more before its
/// session is cut off.
const CUT_OFF_MARGIN: Duration = Duration::from_secs(1);
/// Settings of sessions whose statements all have an index. A table may have been empty when a plan was made that is
/// kept while it grows to millions of rows. What they read is little, so that compiling them takes longer than they do.
const BY_INDEXES: [(&str, &str); 2] = [("enable_seqscan", "off"), ("jit", "off")];
/// Settings of sessions whose statements all find a few rows by their keys. The table of unfinished jobs has no rows
/// now and a million then, and what is known of it is always old: a plan that suits what it was would read all of what
/// it is.
const BY_KEYS: [(&str, &str); 3] =
    [("plan_cache_mode", "force_generic_plan"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off")];
/// Trains of one kind under way at once. Two: while one waits for the disk, the other fills.
const TRACKS: usize = 2;
/// Connections for what shows who lives: one may be busy with a thousand renewals.
const VITAL_CONNECTIONS: u32 = 2;
/// A connection that was not used for so long is asked for a sign of life before it is lent.
const KNOWN_WELL_FOR: Duration = Duration::from_millis(200);
/// Pause between attempts to connect at the start, before jitter: doubled each time, up to the second.
const CONNECT_PAUSE_MS: u64 = 100;
const CONNECT_PAUSE_MS_MAX: u64 = 2_000;

const _: () = assert!(LOCK_WAIT_MS > IDLE_IN_TRANSACTION_MS);

/// Shared by all who write and read.
pub(crate) struct Postgres {
    pool: PgPool,
    /// For what shows who lives: renewals, and looking at the others. It never queues behind requests.
    vital: PgPool,
    trains: Trains<Batch>,
    job_trains: Trains<JobBatch>,
    sequences: Trains<Grant>,
    call_timeout: Duration,
}

impl Postgres {
    pub(crate) async fn open(options: &Options) -> Result<Self> {
        let connect = connect_options(&options.url)?;
        migrate(&connect, options.connect_timeout_ms).await?;
        let server_side = |connect: PgConnectOptions, name: &str| {
            connect.application_name(name).options([
                ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_MS.to_string()),
                ("lock_timeout", LOCK_WAIT_MS.to_string()),
                ("statement_timeout", options.call_timeout_ms.to_string()),
            ])
        };
        let call_timeout = Duration::from_millis(options.call_timeout_ms);
        let pool = |max| {
            let pool = PgPoolOptions::new().max_connections(max).acquire_timeout(call_timeout);
            // After a restart of the server the dead ones are replaced instead of failing a request each.
            pool.test_before_acquire(false).before_acquire(|session, used| {
                Box::pin(async move {
                    if used.idle_for > KNOWN_WELL_FOR {
                        session.ping().await?;
                    }
                    Ok(true)
                })
            })
        };
        let track = |connect| Track { connect, connection: None, limit: call_timeout };
        let trains = server_side(connect.clone(), "fencepost trains");
        let job_trains = trains.clone().options(BY_INDEXES).options(BY_KEYS);
        let sequences = server_side(connect.clone(), "fencepost sequences");
        let ledger = Self {
            trains: Trains::start((0..TRACKS).map(|_| track(trains.clone()))),
            job_trains: Trains::start((0..TRACKS).map(|_| track(job_trains.clone())))
                .with_siding(track(job_trains)),
            sequences: Trains::start([track(sequences)]),
            pool: pool(options.connections_max)
                .connect_lazy_with(server_side(connect.clone(), "fencepost").options(BY_INDEXES)),
            vital: pool(VITAL_CONNECTIONS).connect_lazy_with(server_side(connect, "fencepost vital")),
            call_timeout,
        };
        if let Err(error) = ledger.make_job_partitions().await {
            tracing::warn!(%error, "finished jobs have no partition of their own yet");
        }
        Ok(ledger)
    }

    async fn reads<T: Send + 'static>(&self, call: impl Call<T>) -> Result<T> {
        run(&self.pool, Effect::Reads, self.call_timeout, call).await
    }

    /// As [`Self::reads`] and [`Self::writes`], past all requests.
    async fn vitally<T: Send + 'static>(&self, effect: Effect, call: impl Call<T>) -> Result<T> {
        run(&self.vital, effect, self.call_timeout, call).await
    }

    async fn writes<T: Send + 'static>(&self, call: impl Call<T>) -> Result<T> {
        run(&self.pool, Effect::Writes, self.call_timeout, call).await
    }
}

/// What is done on a session lent by the pool.
trait Call<T>: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, sqlx::Result<T>> + Send + 'static {}

impl<T, F> Call<T> for F where
    F: for<'c> FnOnce(&'c mut PgConnection) -> BoxFuture<'c, sqlx::Result<T>> + Send + 'static
{
}

/// Lends a session for one call, in a task of the call's own. A session that does not answer in time is
/// cut off: behind a dead host it would never answer, and giving it back would wait for it.
async fn run<T: Send + 'static>(
    pool: &PgPool,
    effect: Effect,
    limit: Duration,
    call: impl Call<T>,
) -> Result<T> {
    let pool = pool.clone();
    detached::run(effect, limit, async move {
        let mut session = pool.acquire().await.map_err(read_failed)?;
        let failed = if effect == Effect::Reads { read_failed } else { write_failed };
        let Ok(answer) = tokio::time::timeout(limit + CUT_OFF_MARGIN, call(&mut session)).await else {
            session.close_on_drop();
            return Err(failed(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())));
        };
        answer.map_err(failed)
    })
    .await
}

#[async_trait::async_trait]
impl Ledger for Postgres {
    fn kind(&self) -> Kind {
        Kind::Postgres
    }

    async fn check(&self) -> Result<Health> {
        let settings: (String, String, String) = self
            .reads(|session| Box::pin(async { sqlx::query_as(sql!("health")).fetch_one(session).await }))
            .await?;
        let (fsync, synchronous_commit, full_page_writes) = &settings;
        let mut durability_warnings = Vec::new();
        if fsync != "on" {
            durability_warnings.push(format!("fsync is {fsync}, should be on"));
        }
        if !matches!(synchronous_commit.as_str(), "on" | "remote_apply") {
            durability_warnings.push(format!("synchronous_commit is {synchronous_commit}, should be on"));
        }
        if full_page_writes != "on" {
            durability_warnings.push(format!("full_page_writes is {full_page_writes}, should be on"));
        }
        Ok(Health { durability_warnings })
    }

    fn connections_in_use(&self) -> u32 {
        let idle = u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX);
        self.pool.size().saturating_sub(idle)
    }

    async fn close(&self) {
        self.pool.close().await;
        self.vital.close().await;
    }
}

fn connect_options(url: &str) -> Result<PgConnectOptions> {
    let address = |e: sqlx::Error| Error::Address(format!("the database URL cannot be used: {e}"));
    Ok(PgConnectOptions::from_str(url).map_err(address)?.disable_statement_logging())
}

/// Brings the tables up to date, waiting for the server for `timeout_ms` at most, also for one that goes
/// away half-way: each migration is one transaction, so a broken off attempt is begun anew. Several
/// instances may do so at once: the migrator takes a lock of the whole database, and the last comers find
/// it done.
pub(crate) async fn migrate(connect: &PgConnectOptions, timeout_ms: u64) -> Result<()> {
    let deadline = tokio::time::Instant::now() + Duration::from_millis(timeout_ms);
    let mut pause_ms = CONNECT_PAUSE_MS;
    let mut failed = Error::unavailable(sqlx::Error::PoolTimedOut);
    loop {
        // A server that does not even refuse, or another instance that is stopped in the middle of its
        // migration, is waited for no longer than that.
        let attempt = tokio::time::timeout_at(deadline, migrate_once(connect)).await;
        match attempt.unwrap_or_else(|_| Err(failed.clone())) {
            Err(error) if error.is_retryable() && tokio::time::Instant::now() < deadline => {
                tracing::warn!(%error, "waiting for the ledger");
                let jittered = rand::rng().random_range(pause_ms / 2..pause_ms * 3 / 2);
                tokio::time::sleep(Duration::from_millis(jittered)).await;
                pause_ms = (pause_ms * 2).min(CONNECT_PAUSE_MS_MAX);
                failed = error;
            }
            done => return done,
        }
    }
}

/// One attempt, on a connection of its own without the limits on waiting that the others have.
async fn migrate_once(connect: &PgConnectOptions) -> Result<()> {
    let mut connection = PgConnection::connect_with(connect).await.map_err(read_failed)?;
    migrations::POSTGRES.run(&mut connection).await.map_err(|error| match error {
        // Whether the server went away or refused is told apart here, since only the one is worth a wait.
        MigrateError::Execute(source) | MigrateError::ExecuteMigration(source, _) => read_failed(source),
        other => migrations::failed(other),
    })?;
    connection.close().await.map_err(read_failed)
}

/// Migrates without serving.
pub(crate) async fn migrate_only(options: &Options) -> Result<()> {
    migrate(&connect_options(&options.url)?, options.connect_timeout_ms).await
}

fn failure(error: &sqlx::Error) -> Failure {
    match error {
        sqlx::Error::Database(database) => {
            let code = database.code().unwrap_or_default();
            let severity = database.try_downcast_ref::<PgDatabaseError>().map(PgDatabaseError::severity);
            match code.as_ref() {
                // The session ends with it, and what it was doing may or may not have been kept.
                _ if matches!(severity, Some(PgSeverity::Fatal | PgSeverity::Panic)) => Failure::Lost,
                // Serialisation, deadlock, lock not available, statement cancelled (time-out).
                "40001" | "40P01" | "55P03" | "57014" => Failure::Undone,
                // Idle session ended; a server that only reads (a standby, or one on its way to be).
                "25P03" | "25006" => Failure::Lost,
                // Connection exceptions, out of resources (disk, memory, connections), operator
                // intervention, input and output.
                code if ["08", "53", "57", "58"].contains(&&code[..code.len().min(2)]) => Failure::Lost,
                _ => Failure::Refused,
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

fn read_failed(source: sqlx::Error) -> Error {
    failure(&source).of_read(source)
}

fn write_failed(source: sqlx::Error) -> Error {
    failure(&source).of_write(source)
}
