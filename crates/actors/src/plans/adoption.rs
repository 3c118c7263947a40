//! Adoption and upkeep of plans: an instance takes plans that need an owner and have none that lives, sees to owners that
//! died of a defect, and forgets plans that ended long ago.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cluster::KeyOwner;
use domain::plan::{PlanStatus, StageStatus, TaskStatus};
use domain::{InstanceId, PlanId, Resource};
use ledger::jittered;
use panic_guard::{again_after_panics, guarded, guarded_call};
use tokio::sync::mpsc;

use super::{Inner, PlanCounts, PlanHandle};
use crate::purges::{PurgeWatch, Step};

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

/// Adopts and forgets plans as long as another handle to the plans exists.
pub(super) fn start(inner: &Arc<Inner>, mut deaths: mpsc::UnboundedReceiver<(PlanId, PlanHandle)>) {
    let this = Arc::downgrade(inner);
    let work = move || adopt_left(Weak::clone(&this));
    tokio::spawn(again_after_panics("the adoption of plans", work));
    // A purge may be long, and no plan without an owner waits for it.
    let this = Arc::downgrade(inner);
    let work = move || forget_old(Weak::clone(&this));
    tokio::spawn(again_after_panics("the purge of plans", work));
    // Apart from what asks the ledger: while that is silent the alarm must not be.
    let this = Arc::downgrade(inner);
    tokio::spawn(async move {
        while let Some(inner) = this.upgrade() {
            guarded_call("the gauge of late checkpoints", || {
                metrics::gauge!("fencepost_checkpoints_waiting").set(inner.late_plans().len() as f64);
            });
            drop(inner);
            tokio::time::sleep(jittered(LOOK_EVERY)).await;
        }
    });
    let this = Arc::downgrade(inner);
    tokio::spawn(async move {
        while let Some((plan, died)) = deaths.recv().await {
            let Some(inner) = this.upgrade() else { return };
            guarded("the adoption of a plan whose owner died", inner.bury(plan, &died)).await;
        }
    });
}

async fn adopt_left(this: Weak<Inner>) {
    let Some(mut left_lanes) = this.upgrade().map(|inner| inner.jobs.left_plans()) else { return };
    let mut left_since = HashMap::new();
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
    }
}

/// Forgets plans that ended long ago.
async fn forget_old(this: Weak<Inner>) {
    let Some(every) = this.upgrade().map(|inner| inner.config.purge_every) else { return };
    let (mut step, mut watch) = (Step::of_plans(), PurgeWatch::new("plans"));
    loop {
        tokio::time::sleep(jittered(every)).await;
        let Some(inner) = this.upgrade() else { return };
        let purged = inner.purge(&mut step).await;
        watch.saw(&purged);
        if let Err(error) = purged {
            ledger::log_failure!(error, "old plans could not be purged");
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

    /// Cleans up after an owner that panicked, and adopts its plan.
    async fn bury(self: &Arc<Self>, plan: PlanId, died: &PlanHandle) {
        // Once the incarnation is over, an owner that was cut off ends with its arbiter. A panic is logged where it occurs.
        if !self.jobs.is_over() {
            tracing::error!(%plan, "a plan's owner died");
        }
        self.directory.remove(&plan, died);
        if self.jobs.is_serving() {
            self.adopt(plan).await;
        }
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
        for status in PlanStatus::ALL.iter().copied() {
            let plans =
                counted.found.plans.iter().find(|(of, _)| *of == status).map_or(0, |(_, plans)| *plans);
            metrics::gauge!("fencepost_plans", "status" => status.as_str()).set(plans as f64);
        }
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

    /// Forgets old plans, several in one step; a single one piece by piece.
    async fn purge(&self, step: &mut Step) -> ledger::Result<()> {
        while self.jobs.is_serving() && step.run(self.forget(step.size())).await? {}
        Ok(())
    }

    async fn forget(&self, limit: u32) -> ledger::Result<u64> {
        // It may be too large to be deleted as a whole.
        let mut rows = Step::of_rows();
        while limit == 1 && self.jobs.is_serving() && rows.run(self.trim(rows.size())).await? {}
        let kept_ms = self.clock.read_kept_ms(&self.ledger, self.config.retention).await?;
        self.ledger.purge_plans(kept_ms, limit).await
    }

    /// Deletes some of the history of the oldest plan.
    async fn trim(&self, limit: u32) -> ledger::Result<u64> {
        let kept_ms = self.clock.read_kept_ms(&self.ledger, self.config.retention).await?;
        self.ledger.trim_plan(kept_ms, limit).await
    }
}
