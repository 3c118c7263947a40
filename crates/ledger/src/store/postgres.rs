//! The ledger on PostgreSQL: its connections, what each may wait for, and the migrations at the start.

mod committer;
mod connect_url;
mod ledger_schema;
mod server_sessions;
mod unprepared;

use std::sync::Arc;
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection, PgPool, Postgres};
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use super::committer::Watches;
use super::failure::{has_code, read_failed};
use super::{Store, Way, lent};
use crate::identity::Remembered;
use crate::migrations::{self, Migrate, MigrateFailure};
use crate::pause::jittered;
use crate::train::Trains;
use crate::{Error, Options, Result};
use committer::Committer;
use connect_url::connect_options;
pub(crate) use connect_url::{address, is_private, tls_files, unused_parameters};
use ledger_schema::LedgerSchema;
use server_sessions::{KNOWN_WELL_FOR, PINGS_PER_CALL, ServerSessions};

/// A transaction that its client left hanging is ended by the server after this. A takeover waits no
/// longer than that for a paused owner's last transaction.
const IDLE_IN_TRANSACTION_MS: u64 = 900;
/// How long a train's transaction may wait for the train ahead: less than that, so that a COMMIT is sent only where the server
/// has not ended the transaction.
const OPEN_MAX: Duration = Duration::from_millis(IDLE_IN_TRANSACTION_MS * 2 / 3);
/// A statement waits no longer than this for a lock; longer than the one above, so that a takeover
/// outlasts a hung transaction.
const LOCK_WAIT_MS: u64 = 2_000;
/// A setting of sessions whose statements all have an index. A table may have been empty when a plan was made that is kept
/// while it grows to millions of rows.
const BY_INDEXES: [(&str, &str); 1] = [("enable_seqscan", "off")];
/// Settings of sessions whose statements all find a few rows by their keys. The table of unfinished jobs has no rows
/// now and a million then, and what is known of it is always old: a plan that suits what it was would read all of what
/// it is.
const BY_KEYS: [(&str, &str); 3] =
    [("plan_cache_mode", "force_generic_plan"), ("enable_hashjoin", "off"), ("enable_mergejoin", "off")];
/// Trains of nonces under way at once, one for each two arbiters. Two: while one waits for the disk, the other fills. Where
/// there are only two cores for everything, a second train is only half of the first, and costs as much.
const COMMITTERS_MAX: usize = 2;
/// Trains of nonces that each committer has under way: one that is committed, and one that is written behind it. The
/// connection for the second is opened when it is needed first. A third was not faster.
const NONCE_TRAINS: usize = 2;
/// Trains of plans' steps under way at once: while one waits for the server, the other fills. More would each be smaller.
const PLAN_COMMITTERS_MAX: usize = 2;
/// Connections for renewals and for reading the instances' leases, opened as they are needed: two for the leases of signers, and
/// two for those of sessions and plans, of which one each may hang, and one be busy with a thousand renewals; two may wait for
/// rows, or hang, in acquires or renewals of the instance's own lease.
const VITAL_CONNECTIONS: u32 = 6;
/// Connections for looks at the ledger's identity, of which one may hang.
const LOOK_CONNECTIONS: u32 = 2;
/// How many of four connections that lists, writes and acquires share lists may have: a write finds another one, however many
/// lists are asked for, and however long they take.
const READS_OF_FOUR: u32 = 3;
/// A call that has no connection after so many tenths of its limit ends: it has sent nothing, and its caller hears so. At the
/// limit a caller hears only that nobody knows.
const ACQUIRE_TENTHS: u32 = 9;
/// A connection for renewals that does not answer the ping within this time is replaced: the lease is to be renewed on the new
/// one before it runs out.
const VITAL_PING_MAX: Duration = Duration::from_millis(250);
/// Pause between attempts to connect at the start, before jitter: doubled each time, up to the second.
const CONNECT_PAUSE_MS: u64 = 100;
const CONNECT_PAUSE_MS_MAX: u64 = 2_000;
/// A migration waits no longer than this for a lock, and is tried again: what comes after it waits behind it, so that a long
/// reader (`pg_dump`) would keep every write waiting. Writes wait longer than this, and hung transactions end before.
const MIGRATION_LOCK_WAIT_MS: u64 = 1_000;
/// Within this the server says that a migration has its lock, or has it not. One that has died says nothing, for as long as a
/// session waits for it.
const MIGRATION_TURN_ANSWER_MAX: Duration = Duration::from_millis(MIGRATION_LOCK_WAIT_MS * 5);
/// SQLSTATE of a statement that waited for a lock for too long.
const LOCK_NOT_AVAILABLE: &str = "55P03";

const _: () =
    assert!(LOCK_WAIT_MS > MIGRATION_LOCK_WAIT_MS && MIGRATION_LOCK_WAIT_MS > IDLE_IN_TRANSACTION_MS);

/// The connections that calls borrow. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Pools {
    /// For lists, whose best index depends on what they are asked for, and for rare writes.
    requests: PgPool,
    /// Turns for lists: so many of `requests` they have at once.
    read_turns: Arc<Semaphore>,
    /// For [`Way::KeyReads`].
    by_keys: PgPool,
    /// For renewals and for reading the instances' leases: they never queue behind requests.
    vital: PgPool,
    /// For looks at the ledger's identity. They alone reach whatever server answers.
    looks: PgPool,
}

impl Pools {
    /// Pools of sessions that are begun so. Each opens its connections as they are needed.
    fn new(sessions: impl Fn(&str) -> ServerSessions, remembered: &Remembered, options: &Options) -> Self {
        let call_timeout = Duration::from_millis(options.call_timeout_ms);
        let pool = |max, ping_max, is_kept: fn(&Remembered, Duration) -> bool| {
            let remembered = remembered.clone();
            let pool = PgPoolOptions::new().max_connections(max);
            // The driver tries again until then where the server gives no more connections.
            let pool = pool.acquire_timeout(call_timeout * ACQUIRE_TENTHS / 10);
            // A call that waits for a connection says so itself.
            let pool = pool.acquire_slow_threshold(call_timeout * 2);
            // After a restart of the server the dead ones are replaced instead of failing a request each.
            pool.test_before_acquire(false).before_acquire(move |session, used| {
                let is_kept = is_kept(&remembered, used.age);
                Box::pin(async move {
                    // One that is dead is replaced without a word: the outage has its own line.
                    let is_well = async {
                        let answer = tokio::time::timeout(ping_max, session.ping()).await;
                        answer.is_ok_and(|answer| answer.is_ok())
                    };
                    Ok(is_kept && (used.idle_for <= KNOWN_WELL_FOR || is_well.await))
                })
            })
        };
        let requests = sessions("fencepost").with(BY_INDEXES);
        let by_keys = (options.connections_max / 2).max(1);
        let requests_max = (options.connections_max - by_keys).max(1);
        let reads_max = (requests_max * READS_OF_FOUR / 4).max(1);
        let ping_max = call_timeout / PINGS_PER_CALL;
        Self {
            requests: requests.clone().reaching(remembered).pool(pool(
                requests_max,
                ping_max,
                Remembered::keeps,
            )),
            read_turns: Arc::new(Semaphore::new(reads_max as usize)),
            by_keys: requests.with(BY_KEYS).reaching(remembered).pool(pool(
                by_keys,
                ping_max,
                Remembered::keeps,
            )),
            vital: sessions("fencepost vital").reaching(remembered).pool(pool(
                VITAL_CONNECTIONS,
                VITAL_PING_MAX,
                Remembered::keeps,
            )),
            looks: sessions("fencepost looks").pool(pool(
                LOOK_CONNECTIONS,
                VITAL_PING_MAX,
                |remembered, _age| remembered.keeps_look(),
            )),
        }
    }

    /// Lends a connection, and waits for a turn and the connection no longer than a call may take. The turn lasts until it is
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub(super) async fn lend(
        &self,
        way: Way,
    ) -> Result<(PoolConnection<Postgres>, Option<OwnedSemaphorePermit>)> {
        let pool = self.of(way);
        let deadline = Instant::now() + pool.options().get_acquire_timeout();
        let turn = if way == Way::Reads { Some(self.read_turn(deadline).await?) } else { None };
        let connection = timeout_at(deadline, pool.acquire())
            .await
            .map_err(|_| read_failed(sqlx::Error::PoolTimedOut))?
            .map_err(read_failed)?;
        Ok((connection, turn))
    }

    async fn read_turn(&self, deadline: Instant) -> Result<OwnedSemaphorePermit> {
        timeout_at(deadline, Arc::clone(&self.read_turns).acquire_owned())
            .await
            .map_err(|_| read_failed(sqlx::Error::PoolTimedOut))?
            .map_err(|_| read_failed(sqlx::Error::PoolClosed))
    }

    const fn of(&self, way: Way) -> &PgPool {
        match way {
            Way::Reads | Way::Writes | Way::Acquires => &self.requests,
            Way::KeyReads => &self.by_keys,
            Way::VitalReads | Way::VitalWrites => &self.vital,
            Way::Looks => &self.looks,
        }
    }

    /// Opens a connection beside the others, and closes it, within this time.
    pub(super) async fn connect(&self, limit: Duration) -> Result<()> {
        let connect = async {
            let connection = PgConnection::connect_with(&self.requests.connect_options()).await?;
            connection.close().await
        };
        let late = |_| Error::unavailable(sqlx::Error::PoolTimedOut);
        tokio::time::timeout(limit, connect).await.map_err(late)?.map_err(read_failed)
    }

    pub(super) fn in_use(&self) -> u32 {
        lent(&self.requests) + lent(&self.by_keys)
    }

    pub(super) async fn close(&self) {
        self.requests.close().await;
        self.by_keys.close().await;
        self.vital.close().await;
        self.looks.close().await;
    }
}

pub(super) async fn reach(
    options: &Options,
    job_committers: &[runtime::Handle],
    migrate: Migrate,
) -> Result<Store> {
    let connect = connect_options(&options.url)?;
    let schema = settle(&connect, options, migrate).await?;
    let (watches, remembered) = (Watches::default(), Remembered::default());
    let sessions = |name: &str| {
        let sessions = ServerSessions::named(&connect, name).noted_by(&watches.outage).with([
            ("idle_in_transaction_session_timeout", IDLE_IN_TRANSACTION_MS),
            ("lock_timeout", LOCK_WAIT_MS),
            ("statement_timeout", options.call_timeout_ms),
        ]);
        sessions.looking_first_into(schema.as_deref())
    };
    let call_timeout = Duration::from_millis(options.call_timeout_ms);
    let committer = |sessions: &ServerSessions| {
        Committer::new(sessions.clone(), remembered.clone(), watches.clone(), call_timeout)
    };
    let trains = sessions("fencepost trains").with(BY_INDEXES).with(BY_KEYS).reaching(&remembered);
    let sequences = sessions("fencepost sequences").reaching(&remembered);
    let (of_trains, of_sequences) = (|| committer(&trains), || committer(&sequences));
    let here = runtime::Handle::current();
    let committers = (job_committers.len() / 2).clamp(1, COMMITTERS_MAX);
    let plan_committers = job_committers.len().min(PLAN_COMMITTERS_MAX);
    Ok(Store {
        pools: super::Pools::Postgres(Pools::new(sessions, &remembered, options)),
        nonce_trains: Trains::start_with(&vec![here.clone(); committers], NONCE_TRAINS, of_trains),
        job_trains: Trains::start(job_committers, of_trains).with_unordered(&here, of_trains()),
        sequence_trains: Trains::start(std::slice::from_ref(&here), of_sequences),
        plan_trains: Trains::start(&job_committers[..plan_committers], of_trains),
        result_reads: Default::default(),
        drops_rest: Default::default(),
        key_purge: Default::default(),
        durability_log: Default::default(),
        watches: watches.clone(),
        remembered: remembered.clone(),
        call_timeout,
        _locks: [None, None],
    })
}

/// What a look at the server's settings finds: `fsync`; `synchronous_commit` as it is set for the role or the database, and as
/// the server has it, if the session knows; `full_page_writes`; whether a standby lags; whether the server is one.
pub(super) type Settings = (String, Option<String>, Option<String>, String, bool, bool);

/// Settings of the server under which commits may be lost.
pub(super) fn durability_warnings(settings: &(String, String, String, bool, bool)) -> Vec<String> {
    let (fsync, synchronous_commit, full_page_writes, lags, is_standby) = settings;
    let mut warnings = Vec::new();
    if fsync != "on" {
        warnings.push(format!("fsync is {fsync}, should be on"));
    }
    // The server also takes these words for `on`, and keeps them for a role or a database as they were given.
    if !matches!(synchronous_commit.as_str(), "on" | "remote_apply" | "true" | "yes" | "1") {
        warnings.push(format!(
            "synchronous_commit is {synchronous_commit} by default, should be on: Fencepost sets it on in its own sessions, but \
             what others commit to the database may be lost"
        ));
    }
    if full_page_writes != "on" {
        warnings.push(format!("full_page_writes is {full_page_writes}, should be on"));
    }
    if *lags {
        warnings.push(
            "a standby replicates asynchronously: a failover to it loses the last commits; set \
             synchronous_standby_names"
                .to_owned(),
        );
    }
    if *is_standby {
        warnings.push("the server is a standby and takes no writes".to_owned());
    }
    warnings
}

/// Brings the tables up to date, or compares them with this binary, waiting for the server for `connect_timeout_ms` at most, but
/// for a migration as long as it takes. Each migration is one transaction, and so are all of a new ledger: what is broken off is
/// begun anew. Several instances may do so at once: the migrator takes a lock of the whole database, for which the others wait as
/// long as a session has it, and the last comers find all done. Answers the schema that the tables are in.
async fn settle(connect: &PgConnectOptions, options: &Options, migrate: Migrate) -> Result<Option<String>> {
    let timeout_ms = options.connect_timeout_ms;
    let mut deadline = Instant::now() + Duration::from_millis(timeout_ms);
    let mut pause_ms = CONNECT_PAUSE_MS;
    let mut failed = Error::unavailable(sqlx::Error::PoolTimedOut);
    let (mut is_told, mut is_turn_told) = (false, false);
    loop {
        let begun = Instant::now();
        let attempt = async {
            // A server that does not even refuse is waited for no longer than that.
            let compared = timeout_at(deadline, compared(connect, options, migrate)).await;
            let (mut connection, schema, lacks) = compared.unwrap_or_else(|_| Err(failed.clone()))?;
            let is_settled = !lacks || take_turn(&mut connection).await?;
            if lacks && is_settled {
                let has_ledger = schema.as_ref().is_some_and(|schema| schema.has_ledger);
                let run = migrations::POSTGRES.run_postgres(&mut connection, has_ledger);
                let run = run.await.map_err(not_settled);
                run.map_err(|error| unprepared::explained_clash(error, schema.as_ref(), connect))?;
            }
            connection.close().await.map_err(read_failed).map(|()| (is_settled, schema))
        };
        match attempt.await.map_err(|error| unprepared::explained(error, connect)) {
            Ok((true, schema)) => return Ok(schema.map(|schema| schema.name)),
            // The server answers, and a session migrates: this is no wait for the server.
            Ok((false, _)) => {
                deadline += begun.elapsed();
                if !std::mem::replace(&mut is_turn_told, true) {
                    tracing::info!("waiting until another process has brought the tables up to date");
                }
            }
            Err(error) if error.is_retryable() && Instant::now() < deadline => {
                if is_told {
                    tracing::debug!(%error, "still waiting for the ledger");
                } else {
                    tracing::warn!(%error, timeout_ms, "waiting for the ledger");
                    is_told = true;
                }
                tokio::time::sleep(jittered(Duration::from_millis(pause_ms))).await;
                pause_ms = (pause_ms * 2).min(CONNECT_PAUSE_MS_MAX);
                failed = error;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Takes the migrator's lock, which the session keeps until it ends. Whether it was had within [`MIGRATION_LOCK_WAIT_MS`]:
/// if not, another session has it. That of a process that is gone has ended with it.
async fn take_turn(connection: &mut PgConnection) -> Result<bool> {
    let answer = timeout_at(Instant::now() + MIGRATION_TURN_ANSWER_MAX, migrations::lock(connection));
    match answer.await.map_err(|_| Error::unavailable(sqlx::Error::PoolTimedOut))? {
        Err(MigrateFailure::Driver(source)) if has_code(&source, &[LOCK_NOT_AVAILABLE]) => Ok(false),
        locked => locked.map(|()| true).map_err(not_settled),
    }
}

/// A connection of its own for a migration, the schema that the tables are in, and whether they lack one. The migration may take
/// long; only its locks, those of another instance's migration among them, must be had soon, which the server sees to.
async fn compared(
    connect: &PgConnectOptions,
    options: &Options,
    migrate: Migrate,
) -> Result<(PgConnection, Option<LedgerSchema>, bool)> {
    let session = ServerSessions::named(connect, "fencepost migration");
    // A limit of the role or the database would cut a long migration again and again.
    let session = session.with([("lock_timeout", MIGRATION_LOCK_WAIT_MS), ("statement_timeout", 0)]);
    let mut connection = session.begin().await.map_err(read_failed)?;
    server_sessions::refuse_shared(connect, &mut connection).await?;
    unprepared::refuse_dropped_options(connect).await?;
    unprepared::refuse_hidden_ledger(connect, &mut connection).await?;
    unprepared::refuse_other_encoding(connect, &mut connection).await?;
    let schema = ledger_schema::found(&mut connection).await?;
    let expected_id = options.expected_id.as_deref();
    let lacks = migrations::POSTGRES.lacks_postgres(&mut connection, expected_id, migrate).await;
    let lacks = lacks.map_err(not_settled)?;
    if lacks && let Some(schema) = &schema {
        unprepared::refuse_other_program(schema, connect)?;
    }
    Ok((connection, schema, lacks))
}

fn not_settled(failure: MigrateFailure) -> Error {
    match failure {
        // A server that went away is worth a wait; one that refused is not.
        MigrateFailure::Driver(source) => read_failed(source),
        MigrateFailure::Final(error) => error,
    }
}

/// The failure of a command that writes once; if a person has to do something before it is run again, [`Error::Unprepared`].
pub(crate) fn explained(error: Error, url: &str) -> Error {
    match connect_options(url) {
        Ok(connect) => unprepared::explained_once(error, &connect),
        Err(_) => error,
    }
}

/// Migrates without serving.
pub(crate) async fn migrate_only(options: &Options, migrate: Migrate) -> Result<()> {
    settle(&connect_options(&options.url)?, options, migrate).await.map(drop)
}

#[cfg(test)]
mod tests;
