//! Reads of sessions' results that share statements, on PostgreSQL. Hundreds of clients are told of a result at about the
//! same time and each reads its own session: what waits while a statement runs is read by the next one, all together.
//!
//! What lives here: which reads share a statement. What must never: what the statement says, which is in `sql/`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use domain::SessionId;
use tokio::sync::oneshot;

use super::{Way, on_postgres, postgres};
use crate::jobs::PAGE_BYTES_MAX;
use crate::sessions::SessionResults;
use crate::sessions::rows::{self, ManyResultsRow};
use crate::sql::{Statement, statement};
use crate::{Error, Kind, Result};

/// On SQLite it reads one session.
pub(super) const RESULTS: Statement = statement!("session_results");

/// Statements that run at once: while one is sent and answered, the other's reads wait together.
const AT_ONCE: usize = 2;
/// Sessions that one statement reads. Each answers a page of [`PAGE_BYTES_MAX`] bytes and one result at most.
const SESSIONS_MAX: usize = 16;

/// The reads of one ledger.
#[derive(Clone, Default)]
pub(super) struct ResultReads {
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Wanted>,
    /// Tasks that read until nothing waits; [`AT_ONCE`] at most.
    readers: usize,
}

/// The results of a session behind a place.
struct Wanted {
    session: String,
    behind: i64,
    limit: i64,
    reply: oneshot::Sender<Result<SessionResults>>,
}

/// Counts as a reader until nothing waits, or until its task dies.
struct Reader {
    reads: ResultReads,
    has_ended: bool,
}

impl ResultReads {
    /// Reads with the next statement, and waits for the answer no longer than `limit`.
    pub(super) async fn read(
        &self,
        pools: &postgres::Pools,
        limit: Duration,
        session: &SessionId,
        after_seq: u64,
        jobs: u32,
    ) -> Result<SessionResults> {
        let (reply, answer) = oneshot::channel();
        let session = session.to_string();
        let wanted = Wanted { session, behind: rows::place(after_seq), limit: i64::from(jobs), reply };
        if let Some(reader) = self.enter(wanted) {
            // In a task of its own, as all calls: a caller may be dropped at any await.
            tokio::spawn(reader.serve(pools.clone(), limit));
        }
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(read)) => read,
            Ok(Err(_)) => Err(Error::unavailable(sqlx::Error::WorkerCrashed)),
            Err(_) => Err(Error::unavailable(std::io::Error::from(std::io::ErrorKind::TimedOut))),
        }
    }

    /// Puts it into the queue. A reader to be started, if there may be one more.
    fn enter(&self, wanted: Wanted) -> Option<Reader> {
        let mut queue = self.queue();
        queue.waiting.push(wanted);
        if queue.readers >= AT_ONCE {
            return None;
        }
        queue.readers += 1;
        Some(Reader { reads: self.clone(), has_ended: false })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Nothing under it panics half-way through a change.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Reads until nothing waits.
    async fn serve(mut self, pools: postgres::Pools, limit: Duration) {
        while let Some(wanted) = self.take() {
            let ask = RESULTS
                .on(Kind::Postgres)
                .rows(&wanted, |rows| {
                    rows.column("session", |one| one.session.as_str())
                        .column("behind", |one| one.behind)
                        .column("jobs", |one| one.limit);
                })
                .bind(PAGE_BYTES_MAX as i64);
            let read = on_postgres(&pools, Way::KeyReads, 0, limit, move |mut session| {
                Box::pin(async move { session.all::<ManyResultsRow>(ask).await })
            });
            answer(wanted, read.await);
        }
    }

    /// What waits, as much as one statement may read. Where nothing waits, the reader has ended.
    fn take(&mut self) -> Option<Vec<Wanted>> {
        let mut queue = self.reads.queue();
        queue.waiting.retain(|wanted| !wanted.reply.is_closed());
        if queue.waiting.is_empty() {
            queue.readers -= 1;
            self.has_ended = true;
            return None;
        }
        let taken = queue.waiting.len().min(SESSIONS_MAX);
        Some(queue.waiting.drain(..taken).collect())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.has_ended {
            self.reads.queue().readers -= 1;
        }
    }
}

/// Gives each its own rows, or all of them the error. Those that stopped waiting are gone.
fn answer(wanted: Vec<Wanted>, read: Result<Vec<ManyResultsRow>>) {
    let mut pages = match read {
        Ok(rows) => rows::pages(rows),
        Err(error) => {
            for Wanted { reply, .. } in wanted {
                let _ = reply.send(Err(error.clone()));
            }
            return;
        }
    };
    for (n, Wanted { reply, .. }) in (1..).zip(wanted) {
        let page = pages.remove(&n).unwrap_or_default();
        let _ = reply.send(rows::results(page));
    }
}
