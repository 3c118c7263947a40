//! The ledger over either database: one implementation of every trait, on the connections of one of the two.
//!
//! What lives here: lending a connection for a call. The modules below hold each concern's statements; [`postgres`] and
//! [`sqlite`] open the databases. What must never: SQL text, which is in the files under `sql/`.

mod audit;
mod bulk;
mod committer;
mod counts;
mod durability_log;
mod failure;
mod fence;
mod ids;
mod instances;
mod jobs;
mod leases;
mod nonces;
mod partitions;
mod plans;
pub(crate) mod postgres;
mod recover;
mod result_reads;
mod server;
mod sessions;
mod settings;
pub(crate) mod sqlite;
mod transfers;

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use sqlx::pool::PoolConnection;
use tokio::runtime;

use crate::detached::{self, Effect};
use crate::identity::{Identity, Reason, Remembered, Witness};
use crate::ids::Grant;
use crate::sql::{Answer, Ask, FromEither, Session, Statement, Transaction, statement};
use crate::train::Trains;
use crate::unwritable::{PROBE_BYTES, PROBE_NAME, Unwritable, WriteFailure};
use crate::{Batch, Error, Health, JobBatch, Jobs as _, Kind, Ledger, Migrate, Options, PlanBatch, Result};
use committer::Watches;
use durability_log::DurabilityLog;
use failure::{read_failed, write_failed};
use nonces::KeyPurge;
use partitions::DropsRest;
use result_reads::ResultReads;
use server::Reached;

const HEALTH: Statement = statement!("health");
const RAISE: Statement = statement!(both "identity_raise");
const IDENTITY: Statement = statement!(both "identity_show");
const PROBE: Statement = statement!("write_probe");
const PROBE_REMOVE: Statement = statement!(sqlite "write_probe_remove");
const SETTLE: Statement = statement!(postgres "settle");
const RIGHTS: Statement = statement!(postgres "rights");
const TABLE: Statement = statement!(postgres "table_there");

/// A look that reaches an old primary is done again on a new connection, until there were so many: one more than there may be
/// connections for looks which were open, or were being opened, when the ledger's name began to lead elsewhere.
const LOOKS_MAX: usize = 5;

/// A PostgreSQL call that the server was to end by itself (`statement_timeout`) is given so much more before its
/// session is cut off.
const CUT_OFF_MARGIN: Duration = Duration::from_secs(1);

/// The ledger over one of the databases.
pub(crate) struct Store {
    pools: Pools,
    nonce_trains: Trains<Batch>,
    job_trains: Trains<JobBatch>,
    sequence_trains: Trains<Grant>,
    plan_trains: Trains<PlanBatch>,
    result_reads: ResultReads,
    drops_rest: DropsRest,
    key_purge: KeyPurge,
    durability_log: DurabilityLog,
    watches: Watches,
    remembered: Remembered,
    call_timeout: Duration,
    /// Of a SQLite file, by the name that was given and by its own. Given back when the ledger is dropped, and by the system when
    /// the process dies.
    _locks: [Option<sqlite::FileLock>; 2],
}

/// The connections that calls borrow. The trains have their own on PostgreSQL.
#[derive(Clone)]
pub(crate) enum Pools {
    Postgres(postgres::Pools),
    Sqlite(sqlite::Pools),
}

/// What a call is for, which says what connection it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Reads,
    /// Reads of a few rows by their keys, which requests wait for: their plans are made once for a connection. To plan some
    /// of them takes longer than to run them.
    KeyReads,
    Writes,
    /// Acquires of leases: in SQLite they board before other writes.
    Acquires,
    /// Reads of instances' leases: they never queue behind requests.
    VitalReads,
    /// Writes of instances' leases.
    VitalWrites,
    /// Looks at the ledger's identity, which raise its position: on whatever server answers, and also in a SQLite file that has
    /// lost its name.
    Looks,
}

impl Way {
    const fn effect(self) -> Effect {
        match self {
            Self::Reads | Self::KeyReads | Self::VitalReads => Effect::Reads,
            Self::Writes | Self::Acquires | Self::VitalWrites | Self::Looks => Effect::Writes,
        }
    }
}

/// What is done on a connection that is lent.
trait Call<T>: for<'c> FnOnce(Session<'c>) -> BoxFuture<'c, sqlx::Result<T>> + Send + 'static {}

impl<T, F> Call<T> for F where
    F: for<'c> FnOnce(Session<'c>) -> BoxFuture<'c, sqlx::Result<T>> + Send + 'static
{
}

/// How a transaction is to end, and what its call answers then.
enum Decided<T> {
    /// Keeps what was written.
    Commit(T),
    /// Undoes what was written.
    Rollback(T),
}

/// What is done in a transaction. An error undoes what was written.
trait Work<T>:
    for<'t, 'c> FnOnce(&'t mut Transaction<'c>) -> BoxFuture<'t, sqlx::Result<Decided<T>>> + Send + 'static
{
}

impl<T, F> Work<T> for F where
    F: for<'t, 'c> FnOnce(&'t mut Transaction<'c>) -> BoxFuture<'t, sqlx::Result<Decided<T>>>
        + Send
        + 'static
{
}

impl Store {
    /// The same with another limit for its calls.
    pub(crate) fn with_call_timeout(self, call_timeout: Duration) -> Self {
        Self { call_timeout, ..self }
    }

    /// Reaches the database that the URL names, to serve.
    pub(crate) async fn open(
        options: &Options,
        job_committers: &[runtime::Handle],
        migrate: Migrate,
    ) -> Result<Self> {
        let store = Self::reach(options, job_committers, migrate).await?;
        match &store.pools {
            Pools::Sqlite(pools) => sqlite::end_leases(pools).await?,
            Pools::Postgres(_) => {
                if let Err(error) = store.make_job_partitions().await {
                    tracing::warn!(%error, "finished jobs have no partition of their own yet");
                }
            }
        }
        Ok(store)
    }

    /// The same for a command that does not serve: but for what `migrate` says, nothing is changed.
    pub(crate) async fn reach(
        options: &Options,
        job_committers: &[runtime::Handle],
        migrate: Migrate,
    ) -> Result<Self> {
        match Kind::of(&options.url)? {
            Kind::Sqlite => sqlite::reach(options, job_committers, migrate).await,
            Kind::Postgres => postgres::reach(options, job_committers, migrate).await,
        }
    }

    const fn database(&self) -> Kind {
        match self.pools {
            Pools::Postgres(_) => Kind::Postgres,
            Pools::Sqlite(_) => Kind::Sqlite,
        }
    }

    /// Begins an ask of a statement in the words of this database.
    fn ask(&self, statement: &Statement) -> Ask {
        statement.on(self.database())
    }

    /// Sends one statement by itself; answers its rows.
    async fn all<T: FromEither>(&self, way: Way, ask: Ask) -> Result<Vec<T>> {
        self.answer(way, ask).await?.records().map_err(read_failed)
    }

    /// Sends one statement by itself that answers one row at most.
    async fn optional<T: FromEither>(&self, way: Way, ask: Ask) -> Result<Option<T>> {
        Ok(self.all(way, ask).await?.into_iter().next())
    }

    /// The same, and reads the row.
    async fn record<Row, Record>(&self, way: Way, ask: Ask) -> Result<Option<Record>>
    where
        Row: FromEither,
        Record: TryFrom<Row, Error = Error>,
    {
        self.optional::<Row>(way, ask).await?.map(Record::try_from).transpose()
    }

    /// Sends one statement by itself that answers one row at least.
    async fn one<T: FromEither>(&self, way: Way, ask: Ask) -> Result<T> {
        self.optional(way, ask).await?.ok_or_else(|| read_failed(sqlx::Error::RowNotFound))
    }

    /// Sends one statement by itself that reads what an earlier call has written, to answer it as done. On PostgreSQL that
    /// call may have been cut off while its commit waited for a synchronous standby, and its rows are seen from then on: what is
    /// found is answered when the standby has it.
    async fn settled<T: FromEither + Send + 'static>(&self, ask: Ask) -> Result<Vec<T>> {
        let remembered = self.remembered.clone();
        self.with(Way::KeyReads, move |mut session| {
            Box::pin(async move {
                let found = session.all(ask).await?;
                if !found.is_empty() {
                    settle(&mut session, &remembered).await?;
                }
                Ok(found)
            })
        })
        .await
    }

    async fn answer(&self, way: Way, ask: Ask) -> Result<Answer> {
        let answer =
            self.with(way, move |mut session| Box::pin(async move { session.answer(ask).await })).await?;
        self.remembered.answered(answer.mark(), None);
        Ok(answer)
    }

    /// Sends one statement that answers no rows; says how many rows it has touched.
    async fn touch(&self, way: Way, ask: Ask) -> Result<u64> {
        self.with(way, move |mut session| Box::pin(async move { session.touch(ask).await })).await
    }

    /// Lends a connection for several statements, in a task of the call's own. That task notes what the call came to: the caller
    /// may be gone by then.
    async fn with<T: Send + 'static>(&self, way: Way, call: impl Call<T>) -> Result<T> {
        let (pools, limit, watches) = (self.pools.clone(), self.call_timeout, self.watches.clone());
        let answer = match pools {
            Pools::Postgres(pools) => {
                let position = self.remembered.position();
                detached::run(way.effect(), limit, async move {
                    let answer = on_postgres(&pools, way, position, limit, call).await;
                    watches.saw_call(way, &answer);
                    answer
                })
                .await
            }
            Pools::Sqlite(pools) => {
                detached::run(way.effect(), limit, async move {
                    let answer = on_sqlite(&pools, way, limit, call).await;
                    watches.saw_call(way, &answer);
                    answer
                })
                .await
            }
        };
        // The task may go on, and has noted nothing yet.
        if answer.as_ref().is_err_and(Error::is_late) {
            self.watches.saw_call(way, &answer);
        }
        answer
    }

    /// Writes in a transaction, in a task of the call's own. The work says whether what it wrote is kept.
    async fn in_transaction<T: Send + 'static>(&self, work: impl Work<T>) -> Result<T> {
        let remembered = self.remembered.clone();
        self.with(Way::Writes, move |mut session| {
            Box::pin(async move {
                let mut transaction = session.begin().await?;
                let decided = work(&mut transaction).await?;
                match decided {
                    Decided::Commit(answer) => {
                        remembered.answered(transaction.commit().await?, None);
                        Ok(answer)
                    }
                    Decided::Rollback(answer) => transaction.rollback().await.map(|()| answer),
                }
            })
        })
        .await
    }

    /// A look at the ledger's identity. What an old primary answers says nothing of the one that was accepted, to which another
    /// connection may lead.
    async fn look_at_identity(&self, known: Option<&Identity>) -> Result<Witness> {
        for _ in 1..LOOKS_MAX {
            let seen = self.look_once(known).await?;
            if !matches!(seen, Witness::WentBack(_, Reason::EarlierTimeline)) {
                return Ok(seen);
            }
        }
        self.look_once(known).await
    }

    async fn look_once(&self, known: Option<&Identity>) -> Result<Witness> {
        let (before, remembered) = (known.cloned(), self.remembered.clone());
        let number = remembered.begins_look();
        let look = self.with(Way::Looks, move |mut session| {
            Box::pin(async move { looked(&mut session, before.as_ref(), &remembered).await })
        });
        let seen = look.await.inspect_err(|_| self.remembered.looked(true))?;
        // Here, not in the call: it may end when nobody waits for it any more, after a later look.
        match (&seen, known) {
            (Witness::Current(found), _) => {
                self.remembered.saw(found.position);
                self.remembered.accepts(found.server.as_ref());
                if let (Some(known), Some(server)) = (known, &found.server)
                    && found.is_recovered_since(known)
                {
                    self.remembered.recovered(server.timeline);
                }
                self.remembered.raised(number);
            }
            // From now on nothing is granted by a ledger that is behind.
            (Witness::WentBack(_, reason), Some(known)) => {
                self.remembered.accepts(known.server.as_ref());
                if *reason != Reason::OtherLedger {
                    self.remembered.saw(known.position);
                }
            }
            (Witness::WentBack(..), None) => {}
        }
        self.remembered.looked(matches!(seen, Witness::WentBack(..)));
        Ok(seen)
    }

    /// Looks whether writes still fail for this reason. `false` where the look does not say so.
    async fn takes_no_writes(&self, failure: &WriteFailure) -> bool {
        // To read all of the file may take minutes, and a person has to stop the process to mend it.
        if failure.reason == Unwritable::Corrupt {
            return true;
        }
        let is_failing = match self.takes_writes(failure).await {
            Ok(true) => {
                self.watches.writes.passed();
                false
            }
            Ok(false) => {
                tracing::debug!("the ledger does not take all writes yet");
                true
            }
            Err(error) => {
                tracing::debug!(%error, "the ledger takes no writes yet");
                Unwritable::why(&error).is_some()
            }
        };
        if is_failing {
            self.watches.writes.seen();
        }
        is_failing
    }

    /// Whether a look finds nothing of what the ledger last took no writes for.
    async fn takes_writes(&self, WriteFailure { reason, words, .. }: &WriteFailure) -> Result<bool> {
        self.probe().await?;
        // The probe writes to one table alone.
        let statement = match (self.database(), *reason) {
            (Kind::Postgres, Unwritable::Denied) => &RIGHTS,
            (Kind::Postgres, Unwritable::Incomplete) => &TABLE,
            _ => return Ok(true),
        };
        let (passes,) = self.one(Way::Reads, self.ask(statement).bind(words.as_str())).await?;
        Ok(passes)
    }

    /// Writes as much as a large payload takes, and removes it again.
    async fn probe(&self) -> Result<()> {
        let kind = self.database();
        self.with(Way::Writes, move |mut session| {
            Box::pin(async move {
                let probe = PROBE.on(kind).bind(PROBE_NAME).bind(PROBE_BYTES);
                match kind {
                    // The server finds room as it inserts, and has it back whether that is kept or not.
                    Kind::Postgres => {
                        let mut transaction = session.begin().await?;
                        transaction.touch(probe).await?;
                        transaction.rollback().await
                    }
                    // SQLite writes nothing before it commits.
                    Kind::Sqlite => {
                        session.touch(probe).await?;
                        session.touch(PROBE_REMOVE.on(kind).bind(PROBE_NAME)).await.map(drop)
                    }
                }
            })
        })
        .await
    }
}

/// Waits until a synchronous standby has all that the session has read. By that session: another one may reach the next primary.
async fn settle(session: &mut Session<'_>, remembered: &Remembered) -> sqlx::Result<()> {
    if session.kind() == Kind::Postgres {
        remembered.answered(session.answer(SETTLE.on(Kind::Postgres)).await?.mark(), None);
    }
    Ok(())
}

/// As [`settle`], at the end of a transaction that has found its work done already. An earlier call that got no answer may have
/// done it, and a commit without writes waits for no standby.
async fn settle_commit(transaction: &mut Transaction<'_>) -> sqlx::Result<()> {
    if transaction.kind() == Kind::Postgres {
        transaction.touch(SETTLE.on(Kind::Postgres)).await?;
    }
    Ok(())
}

/// Reads the ledger's identity and raises its position, on one connection: two could be of two servers.
async fn looked(
    session: &mut Session<'_>,
    known: Option<&Identity>,
    remembered: &Remembered,
) -> sqlx::Result<Witness> {
    let kind = session.kind();
    let (server, ended) = match kind {
        Kind::Postgres => match server::found(session, remembered).await? {
            Reached::Primary(server, ended) => (Some(server), Some(ended)),
            Reached::Standby => return Err(refused_by_standby(session).await),
            Reached::Untold => (None, None),
        },
        Kind::Sqlite => (None, None),
    };
    let (cluster, position): (String, i64) = session.one(IDENTITY.on(kind)).await?;
    let mut found = Identity { cluster, position, server };
    if let Some(known) = known {
        if let Some(reason) = Reason::of(known, &found, ended) {
            // Of no other ledger: a new one may have the name of the one that was known.
            let is_failover = matches!(reason, Reason::LostCommits | Reason::AsynchronousFailover);
            if is_failover && ended.is_some_and(|ended| ended.lacks_answered) {
                server::lower(session, &found.cluster, remembered).await;
            }
            return Ok(Witness::WentBack(found, reason));
        }
        found.server = found.server.or_else(|| known.server.clone());
    }
    let lowest = known.map_or(found.position, |known| known.position).max(remembered.position());
    let raise = RAISE.on(kind).bind(found.cluster.as_str()).bind(lowest);
    let raised: Vec<(i64,)> = session.all(raise).await?;
    Ok(match raised.first() {
        Some((position,)) => Witness::Current(Identity { position: *position, ..found }),
        None => Witness::WentBack(found, Reason::Position),
    })
}

/// Why a standby's ledger is not raised, in its own words. One that becomes the primary meanwhile is looked at anew.
async fn refused_by_standby(session: &mut Session<'_>) -> sqlx::Error {
    // No ledger has this name.
    let raise = RAISE.on(Kind::Postgres).bind("").bind(0_i64);
    match session.touch(raise).await {
        Err(source) => source,
        Ok(_) => sqlx::Error::Protocol("the server was a standby a moment ago".to_owned()),
    }
}

/// How many of a pool's connections are lent.
fn lent<D: sqlx::Database>(pool: &sqlx::Pool<D>) -> u32 {
    pool.size().saturating_sub(u32::try_from(pool.num_idle()).unwrap_or(u32::MAX))
}

/// A session that does not answer in time is cut off: behind a dead host it would never answer, and giving it back
/// would wait for it.
async fn on_postgres<T>(
    pools: &postgres::Pools,
    way: Way,
    position: i64,
    limit: Duration,
    call: impl Call<T>,
) -> Result<T> {
    let (mut session, _turn) = pools.lend(way).await?;
    if way.effect() == Effect::Writes && position > 0 {
        let mut told_to = Session::Postgres(&mut session);
        let told = tokio::time::timeout(limit, server::note_position(&mut told_to, position)).await;
        if !matches!(told, Ok(Ok(_))) {
            session.close_on_drop();
            let late = |_| sqlx::Error::Io(std::io::ErrorKind::TimedOut.into());
            told.map_err(late).and_then(|told| told).map_err(read_failed)?;
        }
    }
    let failed = if way.effect() == Effect::Reads { read_failed } else { write_failed };
    let Ok(answer) =
        tokio::time::timeout(limit + CUT_OFF_MARGIN, call(Session::Postgres(&mut session))).await
    else {
        session.close_on_drop();
        return Err(failed(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())));
    };
    if answer.as_ref().is_err_and(failure::is_lost) {
        // What the session does is not known; and one that was opened while the server was read-only may stay so.
        session.close_on_drop();
    } else {
        give_back(session, limit);
    }
    answer.map_err(failed)
}

/// Gives a connection back that is in order. Its pool asks it for a last answer, and waits for that: behind a host that died
/// since then as long as the system tries to reach it, a quarter of an hour. Where that takes too long the connection is closed,
/// and the pool has room for another one.
fn give_back<D: sqlx::Database>(mut connection: PoolConnection<D>, limit: Duration) {
    tokio::spawn(tokio::time::timeout(limit, connection.return_to_pool()));
}

/// SQLite ends a read that has not come to its end in time: its connection would be taken for as long as it goes on.
async fn on_sqlite<T>(pools: &sqlite::Pools, way: Way, limit: Duration, call: impl Call<T>) -> Result<T> {
    let deadline = Instant::now() + limit;
    let mut session = pools.lend(way).await?;
    let is_read = way.effect() == Effect::Reads;
    if is_read {
        session.end_reads_at(deadline).await.map_err(read_failed)?;
    }
    let failed = if is_read { read_failed } else { write_failed };
    call(Session::Sqlite(&mut session)).await.map_err(failed)
}

#[async_trait::async_trait]
impl Ledger for Store {
    fn kind(&self) -> Kind {
        self.database()
    }

    async fn check(&self) -> Result<Health> {
        if let Some(failure) = self.watches.writes.failure()
            && self.takes_no_writes(&failure).await
        {
            return Ok(Health { durability_warnings: Vec::new(), unwritable: self.watches.writes.reason() });
        }
        if let (Pools::Postgres(pools), true) = (&self.pools, self.watches.outage.lacks_connection()) {
            // Whether there is one for a write. What is read below may go by one that is open.
            let outage = &self.watches.outage;
            pools.connect(self.call_timeout).await.inspect_err(|error| outage.write_failed(error))?;
            outage.wrote();
        }
        let durability_warnings = match self.database() {
            Kind::Postgres => {
                // Lists, of which callers may ask for any number, do not keep it waiting.
                let found: postgres::Settings = self.one(Way::KeyReads, self.ask(&HEALTH)).await?;
                let (fsync, altered_commit, servers_commit, pages, lags, is_standby) = found;
                let servers_commit = self.durability_log.servers_commit(servers_commit);
                let commit = altered_commit.unwrap_or(servers_commit);
                postgres::durability_warnings(&(fsync, commit, pages, lags, is_standby))
            }
            // Of the connection that writes.
            Kind::Sqlite => sqlite::durability_warnings(self.one(Way::Writes, self.ask(&HEALTH)).await?),
        };
        self.durability_log.tell(&durability_warnings);
        Ok(Health { durability_warnings, unwritable: self.watches.writes.reason() })
    }

    fn unwritable(&self) -> Option<Unwritable> {
        self.watches.writes.recent_reason()
    }

    async fn witness(&self, known: Option<&Identity>) -> Result<Witness> {
        let is_in_place = match &self.pools {
            Pools::Sqlite(pools) => pools.is_in_place().await,
            Pools::Postgres(_) => true,
        };
        let found = self.look_at_identity(known).await;
        if is_in_place {
            return found;
        }
        // The file that has the name now may lack what the open one has answered. The look has raised the open one's position, so
        // that the other one is behind.
        match (found, known) {
            (Ok(Witness::Current(identity)), _) => Ok(Witness::WentBack(identity, Reason::OtherFile)),
            (Err(_), Some(known)) => Ok(Witness::WentBack(known.clone(), Reason::OtherFile)),
            (found, _) => found,
        }
    }

    fn connections_in_use(&self) -> u32 {
        match &self.pools {
            Pools::Postgres(pools) => pools.in_use(),
            Pools::Sqlite(pools) => pools.in_use(),
        }
    }

    async fn close(&self) {
        match &self.pools {
            Pools::Postgres(pools) => pools.close().await,
            Pools::Sqlite(pools) => pools.close().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::sqlite::SqlitePoolOptions;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_does_not_answer_when_it_is_given_back_makes_room_for_another() {
        let options = SqlitePoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(20));
        // As behind a host that died.
        let options = options.after_release(|_, _| Box::pin(std::future::pending()));
        let pool = options.connect_lazy("sqlite::memory:").unwrap();
        give_back(pool.acquire().await.unwrap(), Duration::from_millis(10));
        assert!(pool.acquire().await.is_ok());
    }
}
