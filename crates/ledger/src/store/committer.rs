//! What commits a train: one transaction on a session of either database, which the database's own committer has; and what is
//! noted of trains and of other calls.

use super::Way;
use super::failure::{self, write_failed};
use crate::Error;
use crate::detached::Effect;
use crate::identity::Mark;
use crate::outage::OutageWatch;
use crate::sql::{Session, Transaction};
use crate::train::{CommitBatch, TrainError};
use crate::unwritable::WriteWatch;

/// Where is noted what trains and other calls came to. All clones share it.
#[derive(Clone, Default)]
pub(super) struct Watches {
    pub(super) writes: WriteWatch,
    pub(super) outage: OutageWatch,
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

impl Watches {
    /// Notes what a train came to. The ledger has answered also where a batch cannot be written.
    pub(super) fn saw<T, Verdict>(&self, arrival: &Result<T, TrainError<Verdict>>) {
        match arrival {
            Err(TrainError::Failed(error)) => self.failed(error),
            Ok(_) | Err(TrainError::Spoiled(_)) => self.outage.wrote(),
        }
    }

    /// Notes what a call came to that is no train.
    pub(super) fn saw_call<T>(&self, way: Way, answer: &Result<T, Error>) {
        match way {
            Way::Writes | Way::Acquires => self.outage.saw_write(answer),
            // Those that write here have connections of their own, and say nothing of other writes.
            Way::Reads | Way::KeyReads | Way::VitalReads | Way::VitalWrites | Way::Looks => {
                self.outage.saw(answer);
            }
        }
        if let Err(error) = answer {
            match way.effect() {
                Effect::Writes => self.writes.failed(error),
                Effect::Reads => self.writes.read_failed(error),
            }
        }
    }

    /// Notes why a train failed.
    pub(super) fn failed(&self, error: &Error) {
        self.outage.write_failed(error);
        self.writes.failed(error);
    }
}

/// Writes a train in one transaction, and commits it.
pub(super) async fn transact<C: Write>(
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
