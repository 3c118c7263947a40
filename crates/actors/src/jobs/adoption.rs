//! Adoption: an instance takes lanes that have work and no live owner, within seconds, and empties the inboxes of dead
//! instances.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::KeyOwner;
use domain::{InstanceId, LaneId};

use super::Inner;
use crate::pause::jittered;

/// The pause between two searches, before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a lane is left to the instance that the ring names.
const LEFT_TO_ITS_PLACE: Duration = Duration::from_secs(3);
/// Lanes looked at in one statement.
const PAGE_LANES: u32 = 500;
/// Lanes adopted in one look.
const ADOPTIONS_MAX: usize = 32;
/// Lanes for which the start of that time is remembered.
const LEFT_REMEMBERED_MAX: usize = 10_000;
/// Jobs that come due within this time count as work, in milliseconds.
const DUE_WITHIN_MS: u64 = 2_000;

/// Adopts lanes as long as another handle to the lanes exists.
pub(super) fn start(inner: &Arc<Inner>) {
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        let mut watch = Watch::default();
        loop {
            tokio::time::sleep(jittered(LOOK_EVERY)).await;
            let Some(inner) = inner.upgrade() else { return };
            if !inner.is_serving() || !inner.failure_detector.is_alive() {
                continue;
            }
            if let Err(error) = watch.look(&inner).await {
                tracing::debug!(%error, "lanes without an owner could not be looked up");
            }
            watch.clear_inboxes(&inner).await;
        }
    });
}

/// What was seen before.
#[derive(Default)]
struct Watch {
    left_since: HashMap<LaneId, Instant>,
    cleared: HashSet<InstanceId>,
}

impl Watch {
    async fn look(&mut self, inner: &Arc<Inner>) -> ledger::Result<()> {
        let (mut after, mut adopted, now) = (None, 0, Instant::now());
        let mut seen = HashSet::new();
        loop {
            let (left, next) =
                inner.ledger.left_lanes(&inner.me, after.as_ref(), DUE_WITHIN_MS, PAGE_LANES).await?;
            for left in left {
                let lane = left.lane;
                // A lease that is not free is taken from the dead only. This instance's own may be of another lane.
                let is_free = left
                    .owner
                    .is_none_or(|owner| owner == inner.me || inner.failure_detector.is_dead(&owner));
                if let Some(plan) = lane.plan_id() {
                    if is_free && !inner.serves(&lane) {
                        // Its plan's owner opens it. Where nobody listens, there are no plans here.
                        let _ = inner.left_plans.send(plan);
                    }
                    continue;
                }
                let is_served = inner.serves(&lane) || inner.keeper.is_own(&lane);
                if is_served || !is_free || adopted >= ADOPTIONS_MAX {
                    continue;
                }
                let since = *self.left_since.entry(lane.clone()).or_insert(now);
                seen.insert(lane.clone());
                let is_mine = inner.cluster_view.owner_of(lane.lease()) == KeyOwner::Here;
                if is_mine || now.duration_since(since) >= LEFT_TO_ITS_PLACE {
                    adopted += 1;
                    if inner.adopt(&lane).await?.is_ok() {
                        metrics::counter!(
                            "fencepost_lease_takeover_total", "kind" => lane.lease().kind().as_str(), "reason" => "adopted"
                        )
                        .increment(1);
                    }
                }
            }
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        self.left_since.retain(|lane, _| seen.contains(lane));
        if self.left_since.len() > LEFT_REMEMBERED_MAX {
            self.left_since.clear();
        }
        Ok(())
    }

    /// What lies in the inboxes of dead instances is seen to, and the inboxes are closed.
    async fn clear_inboxes(&mut self, inner: &Arc<Inner>) {
        let dead = inner.failure_detector.dead();
        self.cleared.retain(|cleared| dead.contains(cleared));
        for dead in dead {
            if self.cleared.contains(&dead) {
                continue;
            }
            match inner.clear_inbox(&dead).await {
                Ok(true) => {
                    self.cleared.insert(dead);
                }
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, %dead, "a dead instance's inbox could not be emptied"),
            }
        }
    }
}

impl Inner {
    /// Empties a dead instance's inbox. Whether it is closed by now.
    async fn clear_inbox(self: &Arc<Self>, dead: &InstanceId) -> bus::Result<bool> {
        let mut after = None;
        loop {
            let entries = self.bus.read_inbox(dead, after).await?;
            let Some(last) = entries.last().map(|entry| entry.id) else { break };
            after = Some(last);
            self.incoming.take(dead, entries).await?;
        }
        self.bus.close_inbox(dead).await
    }
}
