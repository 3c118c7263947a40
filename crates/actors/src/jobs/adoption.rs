//! Adoption: an instance takes lanes that have work and no live owner, within seconds, and empties the inboxes of dead
//! instances that do not show themselves on the bus.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use cluster::{ClusterView, FailureDetector, KeyOwner, owners_among};
use domain::{InstanceId, LaneId, PlanId, Resource};
use futures_util::{StreamExt, stream};
use ledger::jittered;
use panic_guard::again_after_panics;
use tokio::sync::broadcast;

use super::incoming::Incoming;
use super::keeper::LaneKeeper;
use super::lifetime::Lifetime;
use super::limits::{ADOPTED_MAX, ADOPTIONS_EVERY, OPENED_AT_ONCE, PASSED_ON_OPENED_MAX};

/// How long a lane is left to the instance that the ring names.
const LEFT_TO_ITS_PLACE: Duration = Duration::from_secs(3);
/// Lanes looked at in one statement.
const PAGE_LANES: u32 = 500;
/// Lanes for which the start of that time is remembered.
const LEFT_REMEMBERED_MAX: usize = 10_000;
/// Jobs that come due within this time count as work, in milliseconds.
const DUE_WITHIN_MS: u64 = 2_000;

/// What one instance adopts with.
pub(super) struct Adopter {
    pub(super) ledger: ledger::Handle,
    pub(super) bus: bus::Handle,
    pub(super) cluster_view: ClusterView,
    pub(super) failure_detector: FailureDetector,
    pub(super) keeper: Arc<LaneKeeper>,
    pub(super) incoming: Arc<Incoming>,
    /// Plans whose lanes have work and no live owner.
    pub(super) left_plans: broadcast::Sender<PlanId>,
    pub(super) lifetime: Lifetime,
}

/// What earlier searches found.
#[derive(Default)]
struct Found {
    left_since: HashMap<LaneId, Instant>,
    /// The dead whose inboxes were closed since the bus is up.
    cleared: HashSet<InstanceId>,
    bus_up_since: Option<Instant>,
}

impl Adopter {
    /// Adopts lanes as long as the instance serves.
    pub(super) fn start(self) {
        let this = Arc::new(self);
        tokio::spawn(again_after_panics("the adoption of lanes", move || Arc::clone(&this).run()));
    }

    async fn run(self: Arc<Self>) {
        let mut found = Found::default();
        loop {
            tokio::time::sleep(jittered(ADOPTIONS_EVERY)).await;
            if !self.lifetime.is_serving() {
                return;
            }
            if !self.lifetime.takes_work() {
                continue;
            }
            if let Err(error) = self.adopt_orphaned_lanes(&mut found).await {
                tracing::debug!(%error, "lanes without an owner could not be looked up");
            }
            self.clear_inboxes(&mut found).await;
        }
    }

    async fn adopt_orphaned_lanes(&self, found: &mut Found) -> ledger::Result<()> {
        let (mut after, mut adopted, mut opened, now) = (None, 0, 0, Instant::now());
        let mut seen = HashSet::new();
        loop {
            let (left, next) = self
                .ledger
                .orphaned_lanes(self.keeper.me(), after.as_ref(), DUE_WITHIN_MS, PAGE_LANES)
                .await?;
            let mut free = Vec::new();
            for left in left {
                let lane = left.lane;
                // A lease that is not free is taken from the dead only. This instance's own may be of another lane.
                let is_mine = left.owner.as_ref() == Some(self.keeper.me());
                let is_free = is_mine || left.owner.is_none_or(|owner| self.failure_detector.is_dead(&owner));
                if !is_free || self.serves(&lane) || self.keeper.is_own(&lane) {
                    continue;
                }
                if let Some(plan) = lane.plan_id() {
                    // Its plan's owner opens it. Where nobody listens, there are no plans here.
                    let _ = self.left_plans.send(plan);
                    continue;
                }
                // A lease that another instance has passed on is in this instance's name already.
                if is_mine && lane.is_session() {
                    if opened < PASSED_ON_OPENED_MAX {
                        opened += 1;
                        free.push(lane);
                    }
                    continue;
                }
                let since = match found.left_since.get(&lane) {
                    Some(since) => *since,
                    None => {
                        if found.left_since.len() < LEFT_REMEMBERED_MAX {
                            found.left_since.insert(lane.clone(), now);
                        }
                        now
                    }
                };
                seen.insert(lane.clone());
                let is_its_place = is_mine || self.cluster_view.owner_of(lane.lease()) == KeyOwner::Here;
                if is_due(is_its_place, now.duration_since(since)) && adopted < ADOPTED_MAX {
                    adopted += 1;
                    free.push(lane);
                }
            }
            self.adopt_all(free).await?;
            match next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        found.left_since.retain(|lane, _| seen.contains(lane));
        Ok(())
    }

    /// Serves lanes from now on; sessions that were passed on to this instance, before their leases run out.
    async fn adopt_all(&self, lanes: Vec<LaneId>) -> ledger::Result<()> {
        let failed = OnceLock::new();
        let open = |lane: LaneId| {
            let failed = &failed;
            async move {
                // The first failure is reported. What is left then is found again.
                if failed.get().is_none()
                    && let Err(error) = self.keeper.adopt_for("adopted", &lane).await
                {
                    let _ = failed.set(error);
                }
            }
        };
        stream::iter(lanes).for_each_concurrent(OPENED_AT_ONCE, open).await;
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// What lies in the inboxes of dead instances is seen to, and the inboxes are closed: by one instance for each of them. A
    /// dispatch that another one read too would be reported as undeliverable by the one that does not hold its node. Those that
    /// show themselves on the bus are left for a later look.
    async fn clear_inboxes(&self, found: &mut Found) {
        let Some(since) = self.bus.link().borrow().up_since() else { return };
        // A Redis that was away may have come back with an older state, in which they are open.
        if found.bus_up_since.replace(since) != Some(since) {
            found.cleared.clear();
        }
        let dead = if self.keeper.services.reach.is_apart() {
            match self.dead_left_on_this_bus(&found.cleared).await {
                Ok(dead) => dead,
                Err(error) => {
                    return tracing::debug!(%error, "who shares the bus could not be read; inboxes wait");
                }
            }
        } else {
            let is_placed_here =
                |dead: &InstanceId| self.cluster_view.owner_of(&Resource::instance(dead)) == KeyOwner::Here;
            self.failure_detector.left_to(self.keeper.me(), is_placed_here)
        };
        found.cleared.retain(|cleared| dead.contains(cleared));
        let left = dead.into_iter().filter(|dead| !found.cleared.contains(dead)).collect();
        let unseen = match self.unseen(left).await {
            Ok(unseen) => unseen,
            Err(error) => {
                return tracing::debug!(%error, "who of the dead shows itself could not be read; inboxes wait");
            }
        };
        for dead in unseen {
            match self.clear_inbox(&dead).await {
                Ok(true) => {
                    found.cleared.insert(dead);
                }
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, %dead, "a dead instance's inbox could not be emptied"),
            }
        }
    }

    /// The dead whose inboxes this instance sees to where the bus does not join all: the instance that took a lease may not
    /// reach the inbox. Of those that show themselves on this bus one does it. The bus is not asked when all are seen to.
    async fn dead_left_on_this_bus(&self, cleared: &HashSet<InstanceId>) -> bus::Result<Vec<InstanceId>> {
        let mut dead = self.failure_detector.dead();
        if dead.iter().all(|dead| cleared.contains(dead)) {
            return Ok(dead);
        }
        let members: Vec<_> = self.cluster_view.view().members().map(|member| member.id.clone()).collect();
        let me = self.keeper.me();
        let here = self.bus.present(&members).await?.into_keys().chain([me.clone()]).collect();
        let owner = owners_among(&here);
        dead.retain(|dead| owner(&Resource::instance(dead)).as_ref() == Some(me));
        Ok(dead)
    }

    /// Those of the dead that do not show themselves on the bus. One that does is not over: it has lost its way to the ledger,
    /// and shows itself until it has noticed that; or it lives by another ledger, and one of the two is a copy of the other. It
    /// reads its inbox itself. A bus that does not even show this instance has lost its memory, and is no evidence.
    async fn unseen(&self, mut dead: Vec<InstanceId>) -> bus::Result<Vec<InstanceId>> {
        if dead.is_empty() {
            return Ok(dead);
        }
        let me = self.keeper.me();
        dead.push(me.clone());
        let there = self.bus.present(&dead).await?;
        dead.retain(|dead| there.contains_key(me) && !there.contains_key(dead));
        Ok(dead)
    }

    fn serves(&self, lane: &LaneId) -> bool {
        self.keeper.directory().contains_key(lane)
    }

    /// Empties a dead instance's inbox. Whether it is closed by now.
    async fn clear_inbox(&self, dead: &InstanceId) -> bus::Result<bool> {
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

/// Whether this instance adopts a lane that it has known for so long to have no live owner: at once where it is the lane's place,
/// otherwise after [`LEFT_TO_ITS_PLACE`].
fn is_due(is_its_place: bool, left_for: Duration) -> bool {
    is_its_place || left_for >= LEFT_TO_ITS_PLACE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_adopted_at_its_place_at_once_and_elsewhere_after_three_seconds() {
        let after = Duration::from_millis;
        assert!(is_due(true, Duration::ZERO));
        assert!(!is_due(false, Duration::ZERO) && !is_due(false, after(2_999)));
        assert!(is_due(false, after(3_000)) && is_due(false, after(60_000)));
    }
}
