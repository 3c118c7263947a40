//! What commits a train: one transaction on a connection of the committer's own, or on SQLite's one writer.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::{PgConnection, SqlitePool};

use super::failure::{self, read_failed, write_failed};
use super::postgres::ServerSessions;
use crate::identity::Remembered;
use crate::outage::OutageWatch;
use crate::sql::{Session, Statement, Transaction};
use crate::train::{Arrival, CommitBatch, Engine, TrainError};
use crate::unwritable::WriteWatch;
use crate::{Error, Kind};

/// Tells a session the position of the ledger.
pub(super) const POSITION: Statement =
    Statement::only(crate::sql::sql_file!("postgres-only", "position_note"));

/// Commits one train after the other.
pub(super) struct Committer {
    by: By,
    watch: WriteWatch,
    outage: OutageWatch,
}

enum By {
    /// A connection of its own. A lost one is replaced when the next train leaves.
    Postgres {
        sessions: Box<ServerSessions>,
        connection: Option<PgConnection>,
        /// The position that its session was told.
        told: i64,
        remembered: Remembered,
        /// Longest time for one train. A connection on which one took longer is thrown away, whatever its statement
        /// may still do in the server: that is what fencing and a new acquire are for.
        limit: Duration,
    },
    /// The one writer.
    Sqlite(SqlitePool),
}

/// What a train's transaction has come to.
pub(super) struct Written<Verdict> {
    /// For each batch.
    pub(super) verdicts: Vec<Verdict>,
    /// Whether there is anything to commit.
    pub(super) anything: bool,
}

/// Batches that know their statements.
#[async_trait::async_trait]
pub(super) trait Write: CommitBatch + Sized {
    /// Where one statement writes all of it: that statement, which is a transaction by itself. `None` where it takes
    /// more than one, and where it found nothing to write; nothing is written then.
    async fn write_at_once(
        _session: &mut Session<'_>,
        _batches: &[Self],
    ) -> Result<Option<Vec<Self::Verdict>>, TrainError<Self::Verdict>> {
        Ok(None)
    }

    /// Everything between BEGIN and COMMIT. The order is the order of locks: leases first.
    async fn write(
        transaction: &mut Transaction<'_>,
        batches: &[Self],
    ) -> Result<Written<Self::Verdict>, TrainError<Self::Verdict>>;
}

impl Committer {
    pub(super) fn postgres(
        sessions: ServerSessions,
        limit: Duration,
        (watch, outage): (WriteWatch, OutageWatch),
        remembered: Remembered,
    ) -> Self {
        let by = By::Postgres { sessions: Box::new(sessions), connection: None, told: 0, remembered, limit };
        Self { by, watch, outage }
    }

    pub(super) fn sqlite(writer: SqlitePool, (watch, outage): (WriteWatch, OutageWatch)) -> Self {
        Self { by: By::Sqlite(writer), watch, outage }
    }

    fn failed(&self, error: &Error) {
        self.outage.failed(error);
        self.watch.failed(error);
    }
}

#[async_trait::async_trait]
impl<C: Write> Engine<C> for Committer {
    async fn commit(&mut self, batches: &[C]) -> Arrival<C> {
        let arrival = match &mut self.by {
            By::Postgres { sessions, connection, told, remembered, limit } => {
                if connection.is_none() {
                    *told = 0;
                }
                let news = Some(remembered.position()).filter(|position| position > told);
                let arrival = on_postgres(sessions, connection, news, *limit, batches).await;
                if connection.is_some() {
                    *told = news.unwrap_or(*told);
                }
                arrival
            }
            By::Sqlite(writer) => on_sqlite(writer, batches).await,
        };
        match &arrival {
            Err(TrainError::Failed(error)) => self.failed(error),
            Ok(_) | Err(TrainError::Spoiled(_)) => self.outage.answered(),
        }
        arrival
    }

    async fn commit_after(
        &mut self,
        batches: &[C],
        may_commit: BoxFuture<'_, bool>,
    ) -> Option<Result<Vec<C::Verdict>, Error>> {
        let By::Postgres { sessions, connection, told, remembered, limit } = &mut self.by else {
            may_commit.await;
            return None;
        };
        if connection.is_none() {
            *told = 0;
        }
        let news = Some(remembered.position()).filter(|position| position > told);
        let committed = commit_after(sessions, connection, news, *limit, batches, may_commit).await;
        if connection.is_some() {
            *told = news.unwrap_or(*told);
        }
        match &committed {
            Some(Err(error)) => self.failed(error),
            Some(Ok(_)) => self.outage.answered(),
            // The next try shows what the matter is.
            None => {}
        }
        committed
    }
}

async fn on_postgres<C: Write>(
    sessions: &ServerSessions,
    own: &mut Option<PgConnection>,
    news: Option<i64>,
    limit: Duration,
    batches: &[C],
) -> Arrival<C> {
    let mut connection = connect(sessions, own, limit).await?;
    let mut session = Session::Postgres(&mut connection);
    let carry = async {
        if let Some(position) = news {
            session.touch(POSITION.on(Kind::Postgres).bind(position)).await.map_err(read_failed)?;
        }
        transact(&mut session, batches).await
    };
    let arrival = tokio::time::timeout(limit, carry).await.map_err(|_| late())?;
    // Kept only if it is known to be in order.
    if !matches!(arrival, Err(TrainError::Failed(Error::Unknown { .. } | Error::Unavailable { .. }))) {
        *own = Some(connection);
    }
    arrival
}

async fn connect(
    sessions: &ServerSessions,
    own: &mut Option<PgConnection>,
    limit: Duration,
) -> Result<PgConnection, Error> {
    match own.take() {
        Some(connection) => Ok(connection),
        None => tokio::time::timeout(limit, sessions.begin())
            .await
            .map_err(|_| Error::unavailable(sqlx::Error::PoolTimedOut))?
            .map_err(read_failed),
    }
}

fn late() -> Error {
    Error::unknown(std::io::Error::from(std::io::ErrorKind::TimedOut))
}

/// Writes in a transaction that stays open until it is known whether it may be committed. Only the shape that is written
/// at once; any other, and whatever fails before the commit is sent, is undone, to be written when the train ahead has
/// arrived.
async fn commit_after<C: Write>(
    sessions: &ServerSessions,
    own: &mut Option<PgConnection>,
    news: Option<i64>,
    limit: Duration,
    batches: &[C],
    may_commit: BoxFuture<'_, bool>,
) -> Option<Result<Vec<C::Verdict>, Error>> {
    let connected = connect(sessions, own, limit).await;
    let Ok(mut connection) = connected else {
        may_commit.await;
        return None;
    };
    let mut session = Session::Postgres(&mut connection);
    let write = async {
        if let Some(position) = news {
            session.touch(POSITION.on(Kind::Postgres).bind(position)).await.ok()?;
        }
        let mut transaction = session.begin().await.ok()?;
        let verdicts = C::write_at_once(&mut transaction.session(), batches).await.ok()??;
        Some((transaction, verdicts))
    };
    let written = tokio::time::timeout(limit, write).await.ok().flatten();
    let may_commit = may_commit.await;
    // A connection that is not known to be in order is closed, which ends its transaction.
    let (transaction, verdicts) = written?;
    if !may_commit {
        if tokio::time::timeout(limit, transaction.rollback()).await.is_ok_and(|undone| undone.is_ok()) {
            *own = Some(connection);
        }
        return None;
    }
    let committed = tokio::time::timeout(limit, transaction.commit()).await.map_err(|_| late());
    match committed.and_then(|committed| committed.map_err(write_failed)) {
        Ok(()) => {
            *own = Some(connection);
            Some(Ok(verdicts))
        }
        // The server had ended the transaction before.
        Err(Error::Aborted { .. }) => None,
        Err(error) => Some(Err(error)),
    }
}

/// A connection whose transaction did not end is closed by the pool.
async fn on_sqlite<C: Write>(writer: &SqlitePool, batches: &[C]) -> Arrival<C> {
    let mut connection = writer.acquire().await.map_err(write_failed)?;
    transact(&mut Session::Sqlite(&mut connection), batches).await
}

async fn transact<C: Write>(session: &mut Session<'_>, batches: &[C]) -> Arrival<C> {
    if let Some(verdicts) = C::write_at_once(session, batches).await? {
        return Ok(verdicts);
    }
    let mut transaction = session.begin().await.map_err(write_failed)?;
    match C::write(&mut transaction, batches).await {
        Ok(Written { verdicts, anything: true }) => {
            transaction.commit().await.map_err(write_failed)?;
            Ok(verdicts)
        }
        Ok(Written { verdicts, anything: false }) => {
            transaction.rollback().await.map_err(write_failed)?;
            Ok(verdicts)
        }
        Err(failed) => match transaction.rollback().await {
            // A connection that cannot even roll back is lost, whatever failed before.
            Err(source) if failure::is_lost(&source) => Err(Error::unknown(source).into()),
            // Where SQLite has rolled back by itself, the rollback fails, and the pool closes the connection.
            _ => Err(failed),
        },
    }
}
