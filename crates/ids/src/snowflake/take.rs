//! Taking ids: at once from the generator where it has some; else waiting for the next millisecond, for the clock, for
//! the mark, or for a worker number.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::limits::ID_BATCH_MAX;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};

use super::{Batch, Generator, Phase, Refusal, Run, Snowflakes, Stop};
use crate::limits::{CLOCK_BACK_MS_MAX, CLOCK_STILL_MAX};

/// Until the next millisecond.
const NEXT_MS: Duration = Duration::from_millis(1);

impl Snowflakes {
    /// `count` ids, rising, all under one number; waits no longer than `limit`, and not at all where the wait is known to be
    /// longer. Nearly always it does not wait at all.
    ///
    /// # Errors
    /// [`Refusal`].
    ///
    /// # Panics
    /// Above [`ID_BATCH_MAX`], which callers check.
    pub async fn take(&self, count: usize, limit: Duration) -> Result<Batch, Refusal> {
        assert!((1..=ID_BATCH_MAX).contains(&count), "the caller checks its batch");
        let count = count as u32;
        let mut begun = None;
        if let Some(generator) = &*self.shared.current.load()
            && let Ok(run) = self.take_now(generator, count)
        {
            if run.count == count {
                return Ok(Batch { runs: vec![run], worker: generator.worker() });
            }
            begun = Some((Arc::clone(generator), run));
        }
        let deadline = Instant::now() + limit;
        // Boxed: most callers do not come here.
        let patiently = Box::pin(self.take_patiently(count, begun, deadline));
        timeout_at(deadline, patiently).await.unwrap_or_else(|_| Err(self.why_late()))
    }

    /// Goes on with what the generator had in its millisecond, if that is not all.
    async fn take_patiently(
        &self,
        count: u32,
        begun: Option<(Arc<Generator>, Run)>,
        deadline: Instant,
    ) -> Result<Batch, Refusal> {
        let mut phase = self.shared.phase.subscribe();
        if let Some((generator, run)) = begun
            && let Some(batch) = self.take_from(&generator, count, vec![run], &mut phase).await?
        {
            return Ok(batch);
        }
        loop {
            // Marked as seen before the generator is looked at, so that no change is missed.
            let now = phase.borrow_and_update().clone();
            let generator = self.shared.current.load_full();
            if let Some(generator) = generator {
                if let Some(batch) = self.take_from(&generator, count, Vec::new(), &mut phase).await? {
                    return Ok(batch);
                }
                continue;
            }
            match now {
                Phase::Stopped => return Err(Refusal::Stopped),
                Phase::Refusing(refusal) => return Err(refusal),
                Phase::Seeking(Some(refusal)) if refusal.is_beyond(deadline) => return Err(refusal),
                Phase::Idle | Phase::Seeking(_) | Phase::Holding(_) => {
                    self.shared.bell.notify_one();
                    self.changed(&mut phase).await?;
                }
            }
        }
    }

    /// All from one generator, which has made `runs` of them. `None` when that was closed before they were complete: those
    /// had so far are given to nobody.
    async fn take_from(
        &self,
        generator: &Arc<Generator>,
        count: u32,
        mut runs: Vec<Run>,
        phase: &mut watch::Receiver<Phase>,
    ) -> Result<Option<Batch>, Refusal> {
        let mut missing = count - runs.iter().map(|run| run.count).sum::<u32>();
        let mut waited = false;
        while missing > 0 {
            match self.take_now(generator, missing) {
                Ok(run) => {
                    missing -= run.count;
                    runs.push(run);
                    waited = false;
                }
                Err(Stop::Full) => self.next_ms().await?,
                Err(Stop::Behind { by_ms }) if by_ms <= CLOCK_BACK_MS_MAX && !waited => {
                    waited = true;
                    sleep(Duration::from_millis(2 * by_ms)).await;
                }
                Err(Stop::Behind { by_ms }) => return Err(Refusal::ClockBack { by_ms }),
                Err(Stop::AtLimit) => {
                    // The keeper may be about to raise it: after a pause of the whole process it is late itself.
                    self.shared.bell.notify_one();
                    if let Phase::Holding(Some(refusal)) = &*phase.borrow() {
                        return Err(refusal.clone());
                    }
                    self.changed(phase).await?;
                }
                Err(Stop::Ended) => {
                    return Err(Refusal::Ended { ended_ms: self.shared.layout.ends_at_ms() });
                }
                Err(Stop::Closed) => return Ok(None),
            }
        }
        Ok(Some(Batch { runs, worker: generator.worker() }))
    }

    /// Asks the generator, and counts each time that the clock is found further back than what is waited out, once.
    fn take_now(&self, generator: &Generator, count: u32) -> Result<Run, Stop> {
        let taken = generator.take(&self.shared.clock, count);
        let is_behind = &self.shared.is_behind;
        match taken {
            Ok(_) if is_behind.load(Ordering::Relaxed) => {
                is_behind.store(false, Ordering::Relaxed);
                tracing::info!("the clock has caught up; snowflakes are issued again");
            }
            Err(Stop::Behind { by_ms }) if by_ms <= CLOCK_BACK_MS_MAX => {
                tracing::debug!(by_ms, "the clock went back a little; that is waited out");
            }
            Err(Stop::Behind { by_ms }) if !is_behind.swap(true, Ordering::Relaxed) => {
                metrics::counter!("fencepost_clock_rollback_total").increment(1);
                tracing::error!(by_ms, "the clock went back; no snowflake is issued until it has caught up");
            }
            _ => {}
        }
        taken
    }

    /// Waits for the clock to move, as long as one that does may take. The runtime's timer is no finer than what is
    /// waited for, and would let every other millisecond pass; so for that long others only go first.
    async fn next_ms(&self) -> Result<(), Refusal> {
        let (now, since, begun) = (self.shared.clock.now_ms(), Instant::now(), std::time::Instant::now());
        loop {
            if begun.elapsed() < NEXT_MS {
                tokio::task::yield_now().await;
            } else {
                sleep(NEXT_MS).await;
            }
            if self.shared.clock.now_ms() != now {
                return Ok(());
            }
            if since.elapsed() >= CLOCK_STILL_MAX {
                return Err(Refusal::ClockStill);
            }
        }
    }

    async fn changed(&self, phase: &mut watch::Receiver<Phase>) -> Result<(), Refusal> {
        phase.changed().await.map_err(|_| Refusal::Stopped)
    }

    /// What kept somebody waiting for too long.
    fn why_late(&self) -> Refusal {
        self.status().refusal.unwrap_or(Refusal::Late)
    }
}

impl Refusal {
    /// Whether it is known to last beyond this time.
    fn is_beyond(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        self.wait_ms().is_some_and(|wait_ms| Duration::from_millis(wait_ms) > left)
    }
}
