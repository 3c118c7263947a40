//! Adoption and upkeep of plans: an instance takes plans that need an owner and have none that lives, sees to owners that
//! died of a defect, and forgets plans that ended long ago.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cluster::KeyOwner;
use domain::plan::{StageStatus, TaskStatus};
use domain::{InstanceId, PlanId, Resource};
use ledger::jittered;
use panic_guard::{again_after_panics, guarded};
use tokio::sync::mpsc;

use super::{Inner, PlanCounts, PlanHandle};

/// The pause between two searches, before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a plan is left to the instance that the ring names.
const LEFT_TO_ITS_PLACE: Duration = Duration::from_millis(1_500);
/// Plans looked at in one search.
const LEFT_MAX: u32 = 500;
/// Between two counts of what there is, before jitter.
const COUNT_EVERY: Duration = Duration::from_secs(10);
/// Between two purges of a daemon, before jitter.
pub const PURGE_EVERY: Duration = Duration::from_secs(60);
/// Plans deleted in one step of a purge, at most. After a step that failed, as one does that takes longer than a call may, the
/// next ones are smaller.
const PURGE_STEP_PLANS: u32 = 100;
/// Rows of each kind that are deleted at once of the history of a plan that may be too large to be deleted as a whole.
const TRIM_ROWS: u32 = 200;
/// No such deletion, and no step, begins later than this after the first of a purge: meanwhile no plan is adopted.
const PURGE_FOR: Duration = Duration::from_secs(1);

/// Adopts and forgets plans as long as another handle to the plans exists.
pub(super) fn start(inner: &Arc<Inner>, mut deaths: mpsc::UnboundedReceiver<(PlanId, PlanHandle)>) {
    let this = Arc::downgrade(inner);
    let work = move || adopt_and_forget(Weak::clone(&this));
    tokio::spawn(again_after_panics("the adoption of plans", work));
    // Apart from what asks the ledger: while that is silent the alarm must not be.
    let this = Arc::downgrade(inner);
    tokio::spawn(async move {
        while let Some(inner) = this.upgrade() {
            metrics::gauge!("fencepost_checkpoints_waiting").set(inner.late_plans().len() as f64);
            drop(inner);
            tokio::time::sleep(jittered(LOOK_EVERY)).await;
        }
    });
    let this = Arc::downgrade(inner);
    tokio::spawn(async move {
        while let Some((plan, died)) = deaths.recv().await {
            let Some(inner) = this.upgrade() else { return };
            // Once the incarnation is over, an owner that was cut off ends with its arbiter. A panic is logged where it occurs.
            if !inner.jobs.is_over() {
                tracing::error!(%plan, "a plan's owner died");
            }
            inner.directory.remove(&plan, &died);
            if inner.jobs.is_serving() {
                guarded("the adoption of a plan whose owner died", inner.adopt(plan)).await;
            }
        }
    });
}

/// What a purge has come to.
struct Purged {
    /// How many plans the next steps are to have.
    next_step: u32,
    /// Whether the next one is due only when its time comes.
    is_over: bool,
}

async fn adopt_and_forget(this: Weak<Inner>) {
    let Some((mut left_lanes, purge_every)) =
        this.upgrade().map(|inner| (inner.jobs.left_plans(), inner.config.purge_every))
    else {
        return;
    };
    let mut left_since = HashMap::new();
    let mut purge_at = Instant::now() + jittered(purge_every);
    let mut purge_step = PURGE_STEP_PLANS;
    let mut count_at = Instant::now();
    loop {
        tokio::time::sleep(jittered(LOOK_EVERY)).await;
        let Some(inner) = this.upgrade() else { return };
        if !inner.jobs.is_serving() {
            continue;
        }
        if let Err(error) = inner.look(&mut left_since).await {
            tracing::debug!(%error, "plans without an owner could not be looked up");
        }
        while let Ok(plan) = left_lanes.try_recv() {
            // The owner of a plan that is served here opens the lane by itself.
            if !inner.directory.contains_key(&plan) {
                inner.adopt(plan).await;
            }
        }
        if count_at <= Instant::now() {
            count_at = Instant::now() + jittered(COUNT_EVERY);
            if let Err(error) = inner.show_gauges().await {
                tracing::debug!(%error, "the tasks of plans could not be counted");
            }
        }
        if purge_at <= Instant::now() {
            let purged = inner.purge(purge_step).await;
            purge_step = purged.next_step;
            // Behind a part of a purge the rest has its turn after the next search.
            if purged.is_over {
                purge_at = Instant::now() + jittered(purge_every);
            }
        }
    }
}

impl Inner {
    async fn look(self: &Arc<Self>, left_since: &mut HashMap<PlanId, Instant>) -> ledger::Result<()> {
        let left = self.ledger.left_plans(self.jobs.me(), LEFT_MAX).await?;
        let now = Instant::now();
        left_since.retain(|plan, _| left.iter().any(|(left, _)| left == plan));
        for (plan, owner) in left {
            let is_free = owner.is_none_or(|owner: InstanceId| self.failure_detector.is_dead(&owner));
            if !is_free || self.directory.contains_key(&plan) {
                continue;
            }
            let since = *left_since.entry(plan).or_insert(now);
            let is_mine = self.cluster_view.owner_of(&Resource::plan(plan)) == KeyOwner::Here;
            if is_mine || now.duration_since(since) >= LEFT_TO_ITS_PLACE {
                self.adopt(plan).await;
            }
        }
        Ok(())
    }

    /// Another instance may be quicker.
    async fn adopt(self: &Arc<Self>, plan: PlanId) {
        match self.open(plan, None).await {
            Ok(()) => {
                metrics::counter!("fencepost_lease_takeover_total", "kind" => "plan", "reason" => "adopted")
                    .increment(1);
            }
            Err(error) => tracing::debug!(%error, %plan, "the plan is not adopted here"),
        }
    }

    /// The gauges of all plans of the cluster, with zeros for what there is not.
    async fn show_gauges(&self) -> ledger::Result<()> {
        let counting = async {
            Ok(PlanCounts {
                plans: self.ledger.plan_statuses().await?,
                tasks: self.ledger.plan_counts().await?,
            })
        };
        let counted = self.counts.renew(counting).await.1?;
        let counts = &counted.found.tasks;
        let statuses = TaskStatus::ALL.iter().map(|status| status.as_str());
        for status in statuses.chain([StageStatus::Unknown.as_str()]) {
            let found = counts.iter().find(|count| count.status == status);
            let (count, oldest_ms) = found.map_or((0, 0), |found| (found.count, found.oldest_ms));
            metrics::gauge!("fencepost_plan_tasks", "status" => status).set(count as f64);
            metrics::gauge!("fencepost_plan_oldest_seconds", "status" => status)
                .set(oldest_ms as f64 / 1_000.0);
        }
        Ok(())
    }

    /// Forgets old plans, so many in one step, for as long as a purge may take; a single one piece by piece.
    async fn purge(&self, step: u32) -> Purged {
        let over = |next_step| Purged { next_step, is_over: true };
        if step == 1 && !self.trim().await {
            return over(step);
        }
        let begun = Instant::now();
        loop {
            let purged = async { self.ledger.purge_plans(self.kept_ms().await?, step).await };
            match purged.await {
                Ok(purged) if purged < u64::from(step) || step == 1 => return over(next_step(step, true)),
                Ok(_) if begun.elapsed() >= PURGE_FOR || !self.jobs.is_serving() => {
                    return Purged { next_step: next_step(step, true), is_over: false };
                }
                Ok(_) => tokio::task::yield_now().await,
                Err(error) if step == 1 => {
                    tracing::warn!(%error, "the oldest plan could not be purged");
                    return over(next_step(step, false));
                }
                Err(error) => {
                    tracing::debug!(%error, step, "old plans could not be purged");
                    return over(next_step(step, false));
                }
            }
        }
    }

    /// Deletes the history of the oldest plan piece by piece. Says whether the plan itself is next; where a piece cannot be
    /// deleted, the whole may be.
    async fn trim(&self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PURGE_FOR && self.jobs.is_serving() {
            let trimmed = async { self.ledger.trim_plan(self.kept_ms().await?, TRIM_ROWS).await };
            match trimmed.await {
                Ok(0) => return true,
                Ok(_) => tokio::task::yield_now().await,
                Err(error) => {
                    tracing::debug!(%error, "the history of an old plan could not be deleted");
                    return true;
                }
            }
        }
        false
    }

    /// How old a plan that is kept looks at most, in milliseconds. Asked in each step: the database's clock may step forward
    /// between two of them.
    async fn kept_ms(&self) -> ledger::Result<u64> {
        self.clock.look(&self.ledger).await?;
        Ok(self.clock.kept_ms(self.config.retention))
    }
}

fn next_step(step: u32, has_succeeded: bool) -> u32 {
    if has_succeeded { (step * 2).min(PURGE_STEP_PLANS) } else { (step / 4).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_purge_that_fails_is_tried_with_fewer_plans_and_grows_again() {
        let mut steps = vec![PURGE_STEP_PLANS];
        for has_succeeded in [false, false, false, false, true, true, true, true, true, true, true] {
            steps.push(next_step(steps[steps.len() - 1], has_succeeded));
        }
        assert_eq!(steps, [100, 25, 6, 1, 1, 2, 4, 8, 16, 32, 64, 100]);
    }
}
