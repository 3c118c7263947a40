//! What commits a train on PostgreSQL: one transaction on a connection of the committer's own.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use sqlx::PgConnection;

use super::OPEN_MAX;
use super::server_sessions::{KNOWN_WELL_FOR, ServerSessions};
use crate::Error;
use crate::identity::{Mark, Remembered};
use crate::sql::Session;
use crate::store::committer::{Kept, Watches, Write, transact};
use crate::store::failure::{self, read_failed, write_failed};
use crate::store::server::note_position;
use crate::train::{Arrival, Engine, TrainError};

/// Commits one train after the other. A lost connection is replaced before the next train leaves.
pub(super) struct Committer {
    sessions: ServerSessions,
    connection: Option<PositionedConnection>,
    remembered: Remembered,
    watches: Watches,
    /// Longest time for one train. A connection on which one took longer is thrown away, whatever its statement
    /// may still do in the server: that is what fencing and a new acquire are for.
    limit: Duration,
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

#[async_trait::async_trait]
impl<C: Write> Engine<C> for Committer {
    async fn prepare(&mut self) -> Result<(), Error> {
        let connected = self.connect().await;
        connected.inspect_err(|error| self.watches.failed(error))
    }

    fn is_ready(&self) -> bool {
        self.connection.is_some()
    }

    async fn commit(&mut self, batches: &[C]) -> Arrival<C> {
        let arrival = self.write_and_commit(batches).await;
        self.watches.saw(&arrival);
        arrival
    }

    async fn commit_after(
        &mut self,
        batches: &[C],
        may_commit: BoxFuture<'_, bool>,
    ) -> Option<Result<Vec<C::Verdict>, Error>> {
        let committed = self.write_behind(batches, may_commit).await;
        match &committed {
            Some(Err(error)) => self.watches.failed(error),
            Some(Ok(_)) => self.watches.outage.wrote(),
            // The next try shows what the matter is.
            None => {}
        }
        committed
    }
}

impl Committer {
    pub(super) fn new(
        sessions: ServerSessions,
        remembered: Remembered,
        watches: Watches,
        limit: Duration,
    ) -> Self {
        Self { sessions, connection: None, remembered, watches, limit, answered: None }
    }

    async fn write_and_commit<C: Write>(&mut self, batches: &[C]) -> Arrival<C> {
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
    async fn write_behind<C: Write>(
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
        if since.elapsed() > OPEN_MAX {
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
            note_position(&mut session, position).await.map_err(read_failed)?;
            self.position = position;
        }
        Ok(session)
    }
}

fn late() -> Error {
    Error::unknown(std::io::Error::from(std::io::ErrorKind::TimedOut))
}
