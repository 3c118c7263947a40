//! Looking for a worker number.

use std::sync::Arc;
use std::time::Duration;

use domain::WorkerNumber;
use ledger::jittered;
use rand::RngExt;
use tokio::sync::watch;
use tokio::time::Instant;

use super::super::numbers::{Choice, Numbers, WorkerLease, candidates};
use super::super::{Generator, Phase, Refusal};
use super::{Held, KeeperContext, SEEK_AGAIN, changed};
use crate::Clock;

/// In each failed round another instance was quicker.
const ROUNDS_MAX: usize = 64;
/// The clock is looked at this often, before jitter, while a mark is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Longest pause before a failed renewal of the lease is tried again. A short lease has it tried sooner.
const RENEW_AGAIN_MAX: Duration = Duration::from_secs(1);

impl KeeperContext {
    /// Acquires a number and waits until the clock has passed the mark that its last holder has left. No mark of this
    /// lease is committed yet.
    pub(super) async fn seek(&self, numbers: &Arc<dyn Numbers>) -> Result<Held, Refusal> {
        let configured_ms = self.options.layout.epoch_ms();
        let in_force_ms = numbers.epoch_ms(configured_ms).await?;
        if in_force_ms != configured_ms {
            return Err(Refusal::OtherEpoch { configured_ms, in_force_ms });
        }
        self.compare_clocks(numbers).await?;
        for round in 0..ROUNDS_MAX {
            let sent = Instant::now();
            let known = numbers.survey().await?;
            let now_ms = self.shared.clock.now_ms();
            let found = candidates(&known, self.options.choice, numbers.identity(), now_ms);
            let Some(best) = found.first() else {
                let mut holders =
                    known.into_iter().filter(|record| self.options.choice.admits(record.number));
                let numbers =
                    WorkerNumber::all().filter(|number| self.options.choice.admits(*number)).count();
                let Some(holder) = holders.find_map(|record| record.holder) else {
                    return Err(Refusal::Late);
                };
                return Err(Refusal::NoNumber { numbers, holder: holder.id });
            };
            // After a lost race it tries another number, so that instances that start together spread out.
            let alike = found.iter().take_while(|candidate| candidate.is_like(best)).count().max(1);
            let picked = if round == 0 { best } else { &found[rand::rng().random_range(0..alike)] };
            // Each acquisition is a write, and a ledger that went back lets none of its numbers be used.
            if !numbers.is_current().await? {
                return Err(Refusal::Ledger(ledger::Error::WentBack));
            }
            let Some(worker_lease) = numbers.acquire(picked).await? else { continue };
            let Some(opened) = numbers.open(&worker_lease).await? else { continue };
            let start_ms = self.first_free_ms(worker_lease.number, opened.mark_ms);
            let waited = self.wait_for(numbers, &worker_lease, start_ms, sent).await;
            let Some(leased_at) = waited else { continue };
            let generator = Generator::new(self.options.layout, worker_lease.number, start_ms);
            return Ok(Held {
                numbers: Arc::clone(numbers),
                worker_lease,
                generator: Arc::new(generator),
                mark_ms: 0,
                leased_at,
            });
        }
        Err(Refusal::Late)
    }

    /// The first time for ids of this number: not before the mark, nor before the end of those that were made by the local file
    /// or before it was written. A ledger that is not the file's knows nothing of those.
    pub(super) fn first_free_ms(&self, number: WorkerNumber, mark_ms: u64) -> u64 {
        self.made_by_file
            .filter(|(made, _)| *made == number)
            .map_or(mark_ms, |(_, end_ms)| end_ms.max(mark_ms))
    }

    /// Compares this machine's clock with the database's. The time of the call counts in the clock's favour.
    async fn compare_clocks(&self, numbers: &Arc<dyn Numbers>) -> Result<(), Refusal> {
        let max_ms = self.options.clock_skew_ms;
        let before = self.shared.clock.now_ms();
        let database = numbers.clock_ms().await?;
        let after = self.shared.clock.now_ms();
        let epoch_ms = self.options.layout.epoch_ms();
        if before < epoch_ms {
            return Err(Refusal::NotBegun { epoch_ms, wait_ms: epoch_ms - before });
        }
        let (ahead, behind) = (before.saturating_sub(database), database.saturating_sub(after));
        match (ahead > max_ms, behind > max_ms) {
            (true, _) => Err(Refusal::ClockOff { ahead: true, by_ms: ahead, max_ms }),
            (_, true) => Err(Refusal::ClockOff { ahead: false, by_ms: behind, max_ms }),
            _ => Ok(()),
        }
    }

    /// Waits until the wall clock has reached the start, and renews the lease meanwhile: after a recovery the wait is longer than
    /// a lease. Answers when the lease was renewed last; `None` if it is lost.
    async fn wait_for(
        &self,
        numbers: &Arc<dyn Numbers>,
        worker_lease: &WorkerLease,
        start_ms: u64,
        leased_at: Instant,
    ) -> Option<Instant> {
        let (mut leased_at, mut tried_at) = (leased_at, leased_at);
        let (renew_after, again_after) = (self.renew_after(), RENEW_AGAIN_MAX.min(self.renew_after()));
        loop {
            let wait_ms = start_ms.saturating_sub(self.shared.clock.now_ms());
            if wait_ms == 0 {
                return Some(leased_at);
            }
            if self.shared.current.load().is_none() {
                let number = worker_lease.number;
                self.tell(Phase::Seeking(Some(Refusal::MarkAhead { number, wait_ms })));
            }
            if leased_at.elapsed() >= renew_after && tried_at.elapsed() >= again_after {
                tried_at = Instant::now();
                match numbers.renew(worker_lease).await {
                    Ok(true) => leased_at = tried_at,
                    Ok(false) => {
                        // Lost, or its row is locked: this asks which.
                        if let Ok(None) = numbers.open(worker_lease).await {
                            return None;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "the lease of a worker number could not be renewed; trying again");
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(wait_ms).min(jittered(LOOK_EVERY))).await;
        }
    }
}

/// Returns once all numbers that could be had have marks further ahead of the clock than this instance would commit one, as after
/// a recovery. It looks at once, again after each recall, and until the ledger answers.
pub(super) async fn until_all_are_ahead(
    numbers: &dyn Numbers,
    (choice, ahead_max_ms): (Choice, u64),
    clock: &dyn Clock,
    mut recalled: watch::Receiver<u64>,
) {
    loop {
        let looked = numbers.survey().await.map(|known| {
            let now_ms = clock.now_ms();
            let best = candidates(&known, choice, numbers.identity(), now_ms).into_iter().next();
            best.is_some_and(|best| best.mark_ms > now_ms.saturating_add(ahead_max_ms))
        });
        match looked {
            Ok(true) => return,
            Ok(false) => changed(&mut recalled).await,
            Err(error) => {
                tracing::debug!(%error, "the worker numbers could not be looked at; trying again");
                tokio::time::sleep(jittered(SEEK_AGAIN)).await;
            }
        }
    }
}
