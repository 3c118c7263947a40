//! Upkeep: purges finished jobs and closed sessions that are old enough, closes idle sessions, makes partitions for the
//! days to come, and sets the gauges of what waits. Bounded and jittered, so that many instances share the work.

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::{LaneId, SessionId};
use futures_util::{StreamExt, stream};
use ledger::jittered;
use panic_guard::again_after_panics;

use super::keeper::LaneKeeper;
use super::lifetime::Lifetime;
use super::limits::{OPENED_AT_ONCE, SESSION_IDLE_MAX};
use super::scheduler::Scheduler;
use crate::database_clock::SharedClock;
use crate::purges::{PurgeWatch, Step};

/// Between two looks, before jitter; less where purges are more frequent.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Between two looks at the days to come, before jitter.
const PARTITIONS_EVERY: Duration = Duration::from_secs(3_600);
/// Between such a look that found the table busy, or the ledger away, and the next one, before jitter.
const PARTITIONS_AGAIN: Duration = Duration::from_secs(60);
/// So much later than jobs their sessions are forgotten: by then the days of their jobs are gone.
const SESSIONS_LATER: Duration = Duration::from_secs(3 * 86_400);
/// Open sessions looked at for being idle in one statement.
const IDLE_PAGE_SESSIONS: u32 = 1_000;
/// Such statements in one look. So a thousand sessions a second are looked at, however many of them are in use.
const IDLE_PAGES_MAX: usize = 10;

/// The upkeep of one instance.
pub(super) struct Upkeep {
    pub(super) ledger: ledger::Handle,
    pub(super) bus: bus::Handle,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) keeper: Arc<LaneKeeper>,
    /// How long finished jobs are kept.
    pub(super) retention: Duration,
    /// Between two purges, before jitter.
    pub(super) purge_every: Duration,
    /// By which it knows how old they look, and how long sessions look idle.
    pub(super) clock: SharedClock,
    pub(super) lifetime: Lifetime,
}

impl Upkeep {
    /// Runs as long as the instance serves.
    pub(super) fn start(self) {
        let this = Arc::new(self);
        let purger = Arc::clone(&this);
        tokio::spawn(again_after_panics("the upkeep of jobs", move || Arc::clone(&this).run()));
        // A purge may be long, and nothing else waits for it.
        tokio::spawn(again_after_panics("the purge of jobs", move || Arc::clone(&purger).run_purges()));
    }

    async fn run(self: Arc<Self>) {
        // The start has looked, and may have failed.
        let mut partitions_at = Instant::now() + jittered(PARTITIONS_AGAIN);
        let mut idle_after = None;
        loop {
            tokio::time::sleep(jittered(LOOK_EVERY.min(self.purge_every))).await;
            if !self.lifetime.is_serving() {
                return;
            }
            self.show_gauges().await;
            for _ in 0..IDLE_PAGES_MAX {
                match self.close_idle(idle_after.take()).await {
                    Ok(next) => idle_after = next,
                    Err(error) => tracing::debug!(%error, "idle sessions could not be looked up"),
                }
                if idle_after.is_none() {
                    break;
                }
            }
            if Instant::now() >= partitions_at {
                let made = self.ledger.make_job_partitions().await;
                partitions_at = Instant::now() + jittered(partitions_after(&made));
                if let Err(error) = made {
                    ledger::log_failure!(error, "the partitions of the coming days could not be created yet");
                }
            }
        }
    }

    async fn run_purges(self: Arc<Self>) {
        let (mut jobs, mut sessions) = (Step::of_rows(), Step::of_rows());
        let (mut of_jobs, mut of_sessions) = (PurgeWatch::new("jobs"), PurgeWatch::new("sessions"));
        loop {
            tokio::time::sleep(jittered(self.purge_every)).await;
            if !self.lifetime.is_serving() {
                return;
            }
            // Sessions come once no job is left, and also where none could be purged.
            let purged = self.purge_jobs(&mut jobs).await;
            of_jobs.saw(&purged);
            if let Err(error) = purged {
                ledger::log_failure!(error, "finished jobs could not be purged");
            }
            let purged = self.purge_sessions(&mut sessions).await;
            of_sessions.saw(&purged);
            if let Err(error) = purged {
                ledger::log_failure!(error, "closed sessions could not be purged");
            }
        }
    }

    async fn show_gauges(&self) {
        metrics::gauge!("fencepost_jobs_waiting").set(self.scheduler.waiting() as f64);
        match self.bus.inbox_len(self.keeper.me()).await {
            Ok(entries) => metrics::gauge!("fencepost_inbox_pending").set(entries as f64),
            Err(error) => tracing::debug!(%error, "the length of the inbox could not be read"),
        }
    }

    /// Has idle sessions closed; their owner does it as soon as there is one. Answers behind which session to look next.
    async fn close_idle(&self, after: Option<SessionId>) -> ledger::Result<Option<SessionId>> {
        if !self.lifetime.takes_work() {
            return Ok(after);
        }
        let ahead_ms = self.clock.ahead_ms(SESSION_IDLE_MAX);
        let (idle, next) = self.ledger.idle_sessions(ahead_ms, after.as_ref(), IDLE_PAGE_SESSIONS).await?;
        if !idle.is_empty() {
            self.clock.look(&self.ledger).await?;
            // A step forward that was not known yet: they may look idle by it alone, and are looked at again.
            if self.clock.ahead_ms(SESSION_IDLE_MAX) > ahead_ms {
                return Ok(after);
            }
        }
        let close = async |lane: LaneId| {
            // Another instance may have been quicker. What fails is found again.
            if let Err(error) = self.keeper.adopt(&lane).await {
                tracing::debug!(%error, %lane, "an idle session could not be closed yet");
            }
        };
        stream::iter(idle.iter().map(LaneId::session)).for_each_concurrent(OPENED_AT_ONCE, close).await;
        Ok(next)
    }

    /// Deletes the finished jobs that are old enough, step by step.
    async fn purge_jobs(&self, step: &mut Step) -> ledger::Result<()> {
        while self.lifetime.is_serving() && step.run(self.purge_some_jobs(step.size())).await? {}
        Ok(())
    }

    /// Deletes the closed sessions that are old enough, step by step.
    async fn purge_sessions(&self, step: &mut Step) -> ledger::Result<()> {
        while self.lifetime.is_serving() && step.run(self.purge_some_sessions(step.size())).await? {}
        Ok(())
    }

    async fn purge_some_jobs(&self, limit: u32) -> ledger::Result<u64> {
        let kept_ms = self.clock.read_kept_ms(&self.ledger, self.retention).await?;
        self.ledger.purge_jobs(kept_ms, limit).await
    }

    async fn purge_some_sessions(&self, limit: u32) -> ledger::Result<u64> {
        let kept = self.retention.saturating_add(SESSIONS_LATER);
        let kept_ms = self.clock.read_kept_ms(&self.ledger, kept).await?;
        self.ledger.purge_sessions(kept_ms, limit).await
    }
}

/// How long after a look at the days to come the next one is. Where a person has to change something, as a role's rights, a look
/// soon after would only fill the log.
fn partitions_after(made: &ledger::Result<()>) -> Duration {
    match made {
        Err(error) if error.is_retryable() => PARTITIONS_AGAIN,
        _ => PARTITIONS_EVERY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_days_to_come_are_looked_at_again_soon_where_the_table_was_busy() {
        let busy = ledger::Error::unavailable(std::io::Error::from(std::io::ErrorKind::TimedOut));
        assert_eq!(partitions_after(&Err(busy)), PARTITIONS_AGAIN);
        assert_eq!(partitions_after(&Err(ledger::Error::WentBack)), PARTITIONS_EVERY);
        assert_eq!(partitions_after(&Ok(())), PARTITIONS_EVERY);
    }
}
