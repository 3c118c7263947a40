//! Reads of sessions' results that share statements, on PostgreSQL. Hundreds of clients hear of a result at about the
//! same time and each reads its own session: reads that wait while a statement runs share the next statement.
//!
//! What lives here: which reads share a statement. What must never: what the statement says, which is in `sql/`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::SessionId;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Way, on_postgres, postgres};
use crate::jobs::PAGE_BYTES_MAX;
use crate::sessions::SessionResults;
use crate::sessions::rows::{self, ManyResultsRow};
use crate::sql::{Statement, statement};
use crate::{Error, Kind, Result};

/// On SQLite it reads one session.
pub(super) const RESULTS: Statement = statement!("session_results");

/// Sessions that one statement reads. Each answers a page of [`PAGE_BYTES_MAX`] bytes and one result at most.
const SESSIONS_MAX: usize = 16;
/// For each session but one that a statement read, the reader rests so many times as long as the statement took: the more
/// there is to do, the more sessions share a statement, and the more results a client is sent, and answers, at once.
const REST_FACTOR: u32 = 4;
/// Where a statement takes so long, another one reads what came meanwhile: its connection may be dead.
const SLOW: Duration = Duration::from_millis(200);
/// The longest time that results wait for a reader that rests.
const REST_MAX: Duration = Duration::from_millis(40);

/// The reads of one ledger.
#[derive(Clone, Default)]
pub(super) struct ResultReads {
    queue: Arc<Mutex<Queue>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Wanted>,
    reader: ReaderState,
    /// Another task reads once, since the reader has waited for long.
    is_helped: bool,
}

/// The task that reads until nothing waits.
#[derive(Default)]
enum ReaderState {
    /// There is none.
    #[default]
    Ended,
    /// Between two statements.
    Between,
    /// It has waited since then for an answer.
    Asking(Instant),
}

/// The results of a session behind a place.
struct Wanted {
    session: String,
    behind: i64,
    limit: i64,
    reply: oneshot::Sender<Result<SessionResults>>,
}

/// Counts as the reader until nothing waits, or until its task dies.
struct Reader {
    reads: ResultReads,
    /// It reads once, beside the reader.
    is_helper: bool,
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

    /// Puts it into the queue. A reader to be started, if there is none, or a helper, if the reader has waited for long.
    fn enter(&self, wanted: Wanted) -> Option<Reader> {
        let mut queue = self.queue.lock();
        queue.waiting.push(wanted);
        let is_helper = match queue.reader {
            ReaderState::Ended => false,
            ReaderState::Asking(since) if !queue.is_helped && since.elapsed() >= SLOW => true,
            ReaderState::Between | ReaderState::Asking(_) => return None,
        };
        if is_helper {
            queue.is_helped = true;
        } else {
            queue.reader = ReaderState::Between;
        }
        Some(Reader { reads: self.clone(), is_helper, has_ended: false })
    }
}

impl Reader {
    /// Reads until nothing waits.
    async fn serve(mut self, pools: postgres::Pools, limit: Duration) {
        while let Some(wanted) = self.take() {
            let (sessions, began) = (wanted.len(), Instant::now());
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
            if self.is_helper {
                return;
            }
            let is_enough = {
                let mut queue = self.reads.queue.lock();
                queue.reader = ReaderState::Between;
                queue.waiting.len() >= SESSIONS_MAX
            };
            let rest = rest(sessions, began.elapsed());
            if !is_enough && !rest.is_zero() {
                tokio::time::sleep(rest).await;
            }
        }
    }

    /// What waits, as much as one statement may read. Where nothing waits, the reader has ended.
    fn take(&mut self) -> Option<Vec<Wanted>> {
        let mut queue = self.reads.queue.lock();
        queue.waiting.retain(|wanted| !wanted.reply.is_closed());
        if queue.waiting.is_empty() {
            // Under the same lock, so that the next caller starts a reader.
            self.end(&mut queue);
            self.has_ended = true;
            return None;
        }
        if !self.is_helper {
            queue.reader = ReaderState::Asking(Instant::now());
        }
        let taken = queue.waiting.len().min(SESSIONS_MAX);
        Some(queue.waiting.drain(..taken).collect())
    }

    fn end(&self, queue: &mut Queue) {
        if self.is_helper {
            queue.is_helped = false;
        } else {
            queue.reader = ReaderState::Ended;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if !self.has_ended {
            self.end(&mut self.reads.queue.lock());
        }
    }
}

/// How long the reader rests behind a statement that read so many sessions. A client that is alone waits for nothing.
fn rest(sessions: usize, took: Duration) -> Duration {
    let others = u32::try_from(sessions.saturating_sub(1)).unwrap_or(u32::MAX);
    took.saturating_mul(REST_FACTOR.saturating_mul(others)).min(REST_MAX)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_rests_behind_statements_that_were_shared() {
        let rests = |sessions, ms| rest(sessions, Duration::from_millis(ms)).as_millis();
        assert_eq!([rests(1, 1), rests(1, 1_000)], [0, 0]);
        assert_eq!([rests(2, 1), rests(3, 2), rests(16, 1), rests(16, 1_000)], [4, 16, 40, 40]);
    }

    #[test]
    fn a_reader_that_waits_for_long_is_helped_once() {
        let reads = ResultReads::default();
        let wanted = || {
            let (reply, answer) = oneshot::channel();
            (Wanted { session: "s".to_owned(), behind: 0, limit: 1, reply }, answer)
        };
        let enter = || {
            let (wanted, answer) = wanted();
            (reads.enter(wanted), answer)
        };
        let (first, _first_answer) = enter();
        let mut first = first.unwrap();
        assert_eq!(first.take().unwrap().len(), 1);
        let (none, _answer) = enter();
        assert!(none.is_none(), "the reader takes it next");
        reads.queue.lock().reader = ReaderState::Asking(Instant::now().checked_sub(SLOW).unwrap());
        let (helper, _other_answer) = enter();
        let mut helper = helper.unwrap();
        assert!(enter().0.is_none(), "one is enough");
        assert_eq!(helper.take().unwrap().len(), 2, "who has gone is not read for");
        drop(helper);
        assert!(first.take().is_none(), "nothing waits");
        assert!(enter().0.is_some(), "the reader has ended");
    }
}
