//! What commits a train: one transaction on a connection of the committer's own, or on SQLite's one writer.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use sqlx::PgConnection;

use super::Way;
use super::failure::{self, read_failed, write_failed};
use super::postgres::{KNOWN_WELL_FOR, ServerSessions};
use super::sqlite::Pools;
use crate::identity::{Mark, Remembered};
use crate::outage::OutageWatch;
use crate::sql::{Session, Statement, Transaction, statement};
use crate::train::{Arrival, CommitBatch, Engine, TrainError};
use crate::unwritable::WriteWatch;
use crate::{Error, Kind};

/// Tells a session the position of the ledger.
pub(super) const POSITION: Statement = statement!(postgres "position_note");

/// Commits one train after the other.
pub(super) struct Committer {
    by: By,
    watch: WriteWatch,
    outage: OutageWatch,
}

enum By {
    Postgres(Box<Own>),
    /// The one writer.
    Sqlite(Pools),
}

/// A connection of a committer's own. A lost one is replaced before the next train leaves.
struct Own {
    sessions: ServerSessions,
    connection: Option<PositionedConnection>,
    remembered: Remembered,
    /// Longest time for one train. A connection on which one took longer is thrown away, whatever its statement
    /// may still do in the server: that is what fencing and a new acquire are for.
    limit: Duration,
    /// How long a transaction may wait for the train ahead.
    open_max: Duration,
    /// The last transaction that it has committed. What it commits, it commits one after the other.
    answered: Option<Mark>,
}

/// A connection, and the position of the ledger that its session knows.
struct PositionedConnection {
    connection: PgConnection,
    /// When it began to be opened.
    opened: Instant,
    position: i64,
    /// When it was known to be in order last.
    well_at: Instant,
}

/// What a train's transaction has come to.
pub(super) struct Written<Verdict> {
    /// For each batch.
    pub(super) verdicts: Vec<Verdict>,
    /// Whether there is anything to commit.
    pub(super) anything: bool,
}

/// What a train has written.
pub(super) struct Kept<Verdict> {
    /// For each batch.
    pub(super) verdicts: Vec<Verdict>,
    /// The mark of its transaction; `None` if it has written nothing, and in SQLite.
    pub(super) mark: Option<Mark>,
}

/// Batches that know their statements.
#[async_trait::async_trait]
pub(super) trait Write: CommitBatch + Sized {
    /// Where one statement writes all of it: that statement, which is a transaction by itself. `None` where it takes
    /// more than one, and where it found nothing to write; nothing is written then.
    async fn write_at_once(
        _session: &mut Session<'_>,
        _batches: &[Self],
    ) -> Result<Option<Kept<Self::Verdict>>, TrainError<Self::Verdict>> {
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
        (limit, open_max): (Duration, Duration),
        (watch, outage): (WriteWatch, OutageWatch),
        remembered: Remembered,
    ) -> Self {
        let own = Own { sessions, connection: None, remembered, limit, open_max, answered: None };
        Self { by: By::Postgres(Box::new(own)), watch, outage }
    }

    pub(super) fn sqlite(pools: Pools, (watch, outage): (WriteWatch, OutageWatch)) -> Self {
        Self { by: By::Sqlite(pools), watch, outage }
    }

    fn failed(&self, error: &Error) {
        self.outage.write_failed(error);
        self.watch.failed(error);
    }
}

#[async_trait::async_trait]
impl<C: Write> Engine<C> for Committer {
    async fn prepare(&mut self) -> Result<(), Error> {
        let By::Postgres(own) = &mut self.by else { return Ok(()) };
        let connected = own.connect().await;
        if let Err(error) = &connected {
            self.failed(error);
        }
        connected
    }

    fn is_ready(&self) -> bool {
        match &self.by {
            By::Postgres(own) => own.connection.is_some(),
            By::Sqlite(_) => true,
        }
    }

    async fn commit(&mut self, batches: &[C]) -> Arrival<C> {
        let arrival = match &mut self.by {
            By::Postgres(own) => own.commit(batches).await,
            By::Sqlite(pools) => on_sqlite(pools, batches).await,
        };
        match &arrival {
            Err(TrainError::Failed(error)) => self.failed(error),
            Ok(_) | Err(TrainError::Spoiled(_)) => self.outage.wrote(),
        }
        arrival
    }

    async fn commit_after(
        &mut self,
        batches: &[C],
        may_commit: BoxFuture<'_, bool>,
    ) -> Option<Result<Vec<C::Verdict>, Error>> {
        let By::Postgres(own) = &mut self.by else {
            may_commit.await;
            return None;
        };
        let committed = own.commit_after(batches, may_commit).await;
        match &committed {
            Some(Err(error)) => self.failed(error),
            Some(Ok(_)) => self.outage.wrote(),
            // The next try shows what the matter is.
            None => {}
        }
        committed
    }
}

impl Own {
    async fn commit<C: Write>(&mut self, batches: &[C]) -> Arrival<C> {
        let mut own = self.take().await?;
        let write = async {
            let mut session = own.session(&self.remembered).await?;
            transact(&mut session, batches).await
        };
        let arrival = tokio::time::timeout(self.limit, write).await.map_err(|_| late())?;
        // Kept only if it is known to be in order.
        let is_in_order = match &arrival {
            Err(TrainError::Failed(Error::Unknown { .. } | Error::Unavailable { .. })) => false,
            Err(TrainError::Failed(error)) => error.driver().is_none_or(|source| !failure::is_lost(source)),
            Ok(_) | Err(TrainError::Spoiled(_)) => true,
        };
        if is_in_order {
            self.connection = Some(own.well());
        }
        let Kept { verdicts, mark } = arrival?;
        self.answers(mark);
        Ok(verdicts)
    }

    /// Remembers a transaction that was committed, before its callers hear so.
    fn answers(&mut self, mark: Option<Mark>) {
        if mark.is_some() {
            self.remembered.answered(mark, self.answered);
            self.answered = mark;
        }
    }

    /// Writes in a transaction that stays open until it is known whether it may be committed. Only the shape that is
    /// written at once; any other, and whatever fails before the commit is sent, is undone, to be written when the train
    /// ahead has arrived.
    async fn commit_after<C: Write>(
        &mut self,
        batches: &[C],
        may_commit: BoxFuture<'_, bool>,
    ) -> Option<Result<Vec<C::Verdict>, Error>> {
        let Ok(mut own) = self.take().await else {
            may_commit.await;
            return None;
        };
        let mut session = None;
        let write = async {
            let session = session.insert(own.session(&self.remembered).await.ok()?);
            let mut transaction = session.begin().await.ok()?;
            let written = C::write_at_once(&mut transaction.session(), batches).await.ok()?;
            Some((transaction, written, Instant::now()))
        };
        let written = tokio::time::timeout(self.limit, write).await.ok().flatten();
        let may_commit = may_commit.await;
        // A connection that is not known to be in order is closed, which ends its transaction.
        let (mut transaction, written, since) = written?;
        if since.elapsed() > self.open_max {
            return None;
        }
        let Some(Kept { verdicts, mark }) = written.filter(|_| may_commit) else {
            if tokio::time::timeout(self.limit, transaction.rollback())
                .await
                .is_ok_and(|undone| undone.is_ok())
            {
                self.connection = Some(own.well());
            }
            return None;
        };
        transaction.saw_mark(mark);
        let committed = tokio::time::timeout(self.limit, transaction.commit()).await.map_err(|_| late());
        match committed.and_then(|committed| committed.map_err(write_failed)) {
            Ok(mark) => {
                self.connection = Some(own.well());
                self.answers(mark);
                Some(Ok(verdicts))
            }
            // The server had ended the transaction before.
            Err(Error::Aborted { .. }) => None,
            Err(error) => Some(Err(error)),
        }
    }

    /// Connects, and tells the session the position of the ledger: a train that leaves then waits for neither.
    async fn connect(&mut self) -> Result<(), Error> {
        let mut own = self.take().await?;
        tokio::time::timeout(self.limit, own.session(&self.remembered))
            .await
            .map_err(|_| Error::unavailable(sqlx::Error::PoolTimedOut))?
            .map(|_session| ())?;
        self.connection = Some(own);
        Ok(())
    }

    /// The connection, a new one if there is none to the accepted server, or if the server has ended it while it was idle. Who
    /// has it puts it back when it is in order.
    async fn take(&mut self) -> Result<PositionedConnection, Error> {
        if let Some(mut own) =
            self.connection.take().filter(|own| self.remembered.keeps(own.opened.elapsed()))
        {
            if own.well_at.elapsed() <= KNOWN_WELL_FOR {
                return Ok(own);
            }
            if ServerSessions::answers(&mut own.connection, self.limit).await {
                return Ok(own.well());
            }
        }
        let opened = Instant::now();
        let connection = tokio::time::timeout(self.limit, self.sessions.begin())
            .await
            .map_err(|_| Error::unavailable(sqlx::Error::PoolTimedOut))?
            .map_err(read_failed)?;
        Ok(PositionedConnection { connection, opened, position: 0, well_at: Instant::now() })
    }
}

impl PositionedConnection {
    /// The same, known to be in order now.
    fn well(self) -> Self {
        Self { well_at: Instant::now(), ..self }
    }

    /// Its session, which gets the position of the ledger if that has moved.
    async fn session(&mut self, remembered: &Remembered) -> Result<Session<'_>, Error> {
        let position = remembered.position();
        let mut session = Session::Postgres(&mut self.connection);
        if position > self.position {
            session.touch(POSITION.on(Kind::Postgres).bind(position)).await.map_err(read_failed)?;
            self.position = position;
        }
        Ok(session)
    }
}

fn late() -> Error {
    Error::unknown(std::io::Error::from(std::io::ErrorKind::TimedOut))
}

/// A connection whose transaction did not end is closed by the pool.
async fn on_sqlite<C: Write>(pools: &Pools, batches: &[C]) -> Arrival<C> {
    let mut connection = pools.lend(Way::Writes).await?;
    Ok(transact(&mut Session::Sqlite(&mut connection), batches).await?.verdicts)
}

async fn transact<C: Write>(
    session: &mut Session<'_>,
    batches: &[C],
) -> Result<Kept<C::Verdict>, TrainError<C::Verdict>> {
    if let Some(written) = C::write_at_once(session, batches).await? {
        return Ok(written);
    }
    let mut transaction = session.begin().await.map_err(write_failed)?;
    match C::write(&mut transaction, batches).await {
        Ok(Written { verdicts, anything: true }) => {
            let mark = transaction.commit().await.map_err(write_failed)?;
            Ok(Kept { verdicts, mark })
        }
        Ok(Written { verdicts, anything: false }) => {
            transaction.rollback().await.map_err(write_failed)?;
            Ok(Kept { verdicts, mark: None })
        }
        Err(failed) => match transaction.rollback().await {
            // A connection that cannot even roll back is lost, whatever failed before.
            Err(source) if failure::is_lost(&source) => Err(Error::unknown(source).into()),
            // Where SQLite has rolled back by itself, the rollback fails, and the pool closes the connection.
            _ => Err(failed),
        },
    }
}
