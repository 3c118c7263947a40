//! Reads of jobs' states that share statements. Each of the thousands that may wait for a job looks at its state every few
//! seconds. What comes while a read is under way, or right behind its beginning, is read by the next one, all together: however
//! many wait, their looks take no more of the ledger's connections than [`READS_MAX`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::JobId;
use domain::job::State;
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::Refusal;

/// Looks that one read answers.
const LOOKS_MAX: usize = 500;
/// From the beginning of a read to that of the next one, at least. A look that is alone waits for nothing.
const READ_EVERY: Duration = Duration::from_millis(20);
/// Reads under way. The second one leaves only where the first takes longer than [`READ_EVERY`]: its connection may be dead.
const READS_MAX: usize = 2;

/// The reads of one incarnation, which go on as long as somebody may look. Cheap to clone.
#[derive(Clone)]
pub(super) struct StateReads {
    looks: mpsc::UnboundedSender<Look>,
}

/// One who waits for the state of a job.
struct Look {
    job: JobId,
    reply: oneshot::Sender<ledger::Result<Option<State>>>,
}

impl StateReads {
    /// Must be called within a Tokio runtime, on which the reads run.
    pub(super) fn start(ledger: ledger::Handle) -> Self {
        Self::start_with(move |jobs| {
            let ledger = ledger.clone();
            async move { ledger.job_states(&jobs).await }
        })
    }

    fn start_with<R>(read: impl Fn(Vec<JobId>) -> R + Send + 'static) -> Self
    where
        R: Future<Output = ledger::Result<Vec<(JobId, State)>>> + Send + 'static,
    {
        let (looks, waiting) = mpsc::unbounded_channel();
        tokio::spawn(serve(waiting, read));
        Self { looks }
    }

    /// The state of a job, as a read finds it that begins after this call; `None` if there is no such job.
    ///
    /// # Errors
    /// The ledger's refusals.
    pub(super) async fn state_of(&self, job: JobId) -> Result<Option<State>, Refusal> {
        let (reply, answer) = oneshot::channel();
        // Where nobody reads any more, the reply is dropped with the look.
        let _ = self.looks.send(Look { job, reply });
        Ok(answer.await.map_err(|_dropped| Refusal::LedgerUnavailable)??)
    }
}

/// Reads what waits until nobody may look any more.
async fn serve<R>(mut looks: mpsc::UnboundedReceiver<Look>, read: impl Fn(Vec<JobId>) -> R)
where
    R: Future<Output = ledger::Result<Vec<(JobId, State)>>> + Send + 'static,
{
    let (turns, mut waiting) = (Arc::new(Semaphore::new(READS_MAX)), Vec::new());
    loop {
        if waiting.is_empty() && looks.recv_many(&mut waiting, LOOKS_MAX).await == 0 {
            return;
        }
        let Ok(turn) = Arc::clone(&turns).acquire_owned().await else { return };
        while let Ok(look) = looks.try_recv() {
            waiting.push(look);
        }
        waiting.retain(|look| !look.reply.is_closed());
        if waiting.is_empty() {
            continue;
        }
        let now: Vec<Look> = waiting.drain(..waiting.len().min(LOOKS_MAX)).collect();
        let mut jobs: Vec<JobId> = now.iter().map(|look| look.job).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let states = read(jobs);
        // In a task of its own: a defect in it costs these looks alone.
        tokio::spawn(async move {
            answer(now, states.await);
            drop(turn);
        });
        tokio::time::sleep(READ_EVERY).await;
    }
}

/// Gives each its own state, or all of them the error. Those that stopped waiting are gone.
fn answer(looks: Vec<Look>, states: ledger::Result<Vec<(JobId, State)>>) {
    let states: ledger::Result<HashMap<_, _>> = states.map(|states| states.into_iter().collect());
    for Look { job, reply } in looks {
        let state = states.as_ref().map(|states| states.get(&job).copied());
        let _ = reply.send(state.map_err(ledger::Error::clone));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::join_all;
    use futures_util::poll;
    use parking_lot::Mutex;

    use super::*;

    fn job(n: u128) -> JobId {
        JobId::from_u128(n)
    }

    /// As a ledger has it: every third job is FINISHED, every third RUNNING, and the others are not there.
    fn state(job: JobId) -> Option<State> {
        match job.as_u128() % 3 {
            0 => Some(State::Finished),
            1 => Some(State::Running),
            _ => None,
        }
    }

    fn states(jobs: Vec<JobId>) -> Vec<(JobId, State)> {
        jobs.into_iter().filter_map(|job| Some((job, state(job)?))).collect()
    }

    /// The jobs of each read.
    type Reads = Arc<Mutex<Vec<Vec<JobId>>>>;

    #[tokio::test(start_paused = true)]
    async fn thousands_of_looks_share_a_few_reads_and_each_gets_the_state_of_its_job() {
        let reads = Reads::default();
        let noted = Arc::clone(&reads);
        let looks = StateReads::start_with(move |jobs| {
            noted.lock().push(jobs.clone());
            async move { Ok(states(jobs)) }
        });
        // Two look at each job.
        let found = join_all((0..4_000).map(|n| looks.state_of(job(n / 2)))).await;
        for (n, found) in (0..).zip(found) {
            assert_eq!(found, Ok(state(job(n / 2))), "{n}");
        }
        let reads = reads.lock();
        // The first may leave before all have come.
        assert!(reads.len() <= 4_000 / LOOKS_MAX + 2, "{}", reads.len());
        for jobs in &*reads {
            assert!(jobs.len() <= LOOKS_MAX && jobs.is_sorted_by(|one, next| one < next), "each job once");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_that_fails_fails_all_that_it_was_for_and_no_other() {
        let count = AtomicUsize::new(0);
        let looks = StateReads::start_with(move |jobs| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            async move {
                match number {
                    0 => Err(ledger::Error::unavailable(io::Error::other("lost"))),
                    1 => panic!("made on purpose"),
                    _ => Ok(states(jobs)),
                }
            }
        });
        for _ in 0..2 {
            for failed in join_all((0..3).map(|n| looks.state_of(job(n)))).await {
                assert_eq!(failed, Err(Refusal::LedgerUnavailable));
            }
        }
        let found = join_all((0..3).map(|n| looks.state_of(job(n)))).await;
        assert_eq!(found, [Ok(Some(State::Finished)), Ok(Some(State::Running)), Ok(None)]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_reads_are_under_way_than_may_be_and_none_is_for_those_who_have_gone() {
        let (reads, gate) = (Reads::default(), Arc::new(Semaphore::new(0)));
        let (noted, open) = (Arc::clone(&reads), Arc::clone(&gate));
        let looks = StateReads::start_with(move |jobs| {
            noted.lock().push(jobs.clone());
            let open = Arc::clone(&open);
            async move {
                open.acquire().await.unwrap().forget();
                Ok(states(jobs))
            }
        });
        let mut waiting = Vec::new();
        for n in 0..5 {
            let mut look = Box::pin(looks.state_of(job(n)));
            assert!(poll!(&mut look).is_pending());
            waiting.push(look);
            tokio::time::sleep(READ_EVERY * 2).await;
        }
        // The last has gone before its turn has come.
        drop(waiting.pop());
        let of = |numbers: &[u128]| numbers.iter().copied().map(job).collect::<Vec<_>>();
        assert_eq!(*reads.lock(), [of(&[0]), of(&[1])]);
        gate.add_permits(3);
        for (n, found) in (0..).zip(join_all(waiting).await) {
            assert_eq!(found, Ok(state(job(n))), "{n}");
        }
        assert_eq!(*reads.lock(), [of(&[0]), of(&[1]), of(&[2, 3])]);
    }
}
