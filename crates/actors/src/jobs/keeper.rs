//! Opens the lanes of this instance: its own, one for each arbiter, those that it adopts, and those of
//! sessions. Opens a lane again if its owner panicked.

use std::sync::Arc;
use std::time::Duration;

use domain::{InstanceId, LaneId, Token};
use ledger::jittered;
use nodes::{Ended, Registry};
use panic_guard::{again_after_panics, guarded_call};
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;

use super::lane::{self, LaneServices, Opening};
use super::lease::{Adopting, Adoption, LaneLease, Lost, OwnLease};
use super::lifetime::Lifetime;
use super::messages::{Directory, LaneCommand, LaneHandle};
use crate::arbiters::Arbiters;
use crate::directory::Found;
use crate::row_locks::RowLocks;
use crate::uncut::uncut;

/// The pause between two tries to open an own lane again, before jitter.
const OPEN_AGAIN_EVERY: Duration = Duration::from_secs(1);

/// The opener of one instance's lanes.
pub(super) struct LaneKeeper {
    pub(super) arbiters: Arbiters,
    pub(super) services: Arc<LaneServices>,
    pub(super) adopting: Adopting,
    pub(super) own: Arc<OwnLease>,
    pub(super) lifetime: Lifetime,
    /// Held while a lane is taken.
    pub(super) taking: RowLocks,
}

impl LaneKeeper {
    pub(super) fn me(&self) -> &InstanceId {
        self.adopting.me()
    }

    /// The lanes that are served here.
    pub(super) fn directory(&self) -> &Directory {
        &self.services.directory
    }

    /// The lanes of this very incarnation, by the numbers of their arbiters.
    pub(super) fn own_lanes(&self) -> Vec<LaneId> {
        let count = u16::try_from(self.arbiters.count()).unwrap_or(u16::MAX);
        (0..count).map(|shard| LaneId::instance(self.me(), shard)).collect()
    }

    /// Whether it is a lane of this very incarnation.
    pub(super) fn is_own(&self, lane: &LaneId) -> bool {
        lane.instance_id().is_some_and(|id| id == *self.me())
    }

    /// Serves one of the instance's own lanes under its lease.
    pub(super) fn open_own(&self, lane: LaneId, token: Token) {
        self.open(lane, LaneLease::Own(Arc::clone(&self.own)), token);
    }

    /// A share of a lane's lease, without serving the lane.
    pub(super) async fn share(&self, lane: &LaneId) -> ledger::Result<Adoption<(LaneLease, Token)>> {
        let _turn = self.taking.turn(lane.lease()).await;
        self.adopting.adopt(lane).await
    }

    /// Serves a lane from now on, if it can be acquired. A caller that stops waiting gives up its turn. A turn that has begun
    /// goes on without it: nobody else would renew the lease.
    pub(super) async fn adopt(self: &Arc<Self>, lane: &LaneId) -> ledger::Result<Adoption<()>> {
        let turn = self.taking.turn(lane.lease()).await;
        let (this, lane) = (Arc::clone(self), lane.clone());
        let acquiring = async move {
            let _turn = turn;
            this.acquire(&lane).await
        };
        uncut(acquiring).await
    }

    async fn acquire(&self, lane: &LaneId) -> ledger::Result<Adoption<()>> {
        match self.directory().find(lane) {
            Found::Served(_) => return Ok(Adoption::Taken(())),
            Found::Ending => return Ok(Adoption::Missed),
            Found::None => {}
        }
        // The incarnation may have begun to end. A plan's owner opens its lane all the same, to end what is under way.
        if lane.plan_id().is_none() && !self.lifetime.keeps_others() {
            return Ok(Adoption::Missed);
        }
        Ok(match self.adopting.adopt(lane).await? {
            Adoption::Taken((lease, token)) => {
                tracing::info!(resource = %lane, owner = %self.me(), %token, "a lane is opened");
                self.open(lane.clone(), lease, token);
                Adoption::Taken(())
            }
            Adoption::Held(owner) => Adoption::Held(owner),
            Adoption::Missed => Adoption::Missed,
        })
    }

    /// Serves a lane that has no owner from now on, unless another instance is quicker. `reason` is a value of the metric's
    /// label.
    pub(super) async fn adopt_for(
        self: &Arc<Self>,
        reason: &'static str,
        lane: &LaneId,
    ) -> ledger::Result<Adoption<()>> {
        let adoption = self.adopt(lane).await?;
        if matches!(adoption, Adoption::Taken(())) {
            let kind = lane.lease().kind().as_str();
            metrics::counter!("fencepost_lease_takeover_total", "kind" => kind, "reason" => reason)
                .increment(1);
        }
        Ok(adoption)
    }

    fn open(&self, lane: LaneId, lease: LaneLease, token: Token) {
        let number = lane.shard(self.arbiters.count());
        let is_own = self.is_own(&lane);
        let opening = Opening { lane, lease, token };
        let handle = lane::start(&self.arbiters, number, &self.services, opening);
        // An owner that starts while this incarnation ends has missed the command to stop.
        let stays = if is_own { self.lifetime.is_serving() } else { self.lifetime.keeps_others() };
        if !stays {
            handle.send(LaneCommand::Stop);
        }
    }

    /// Cleans up after an owner that panicked. Its callers' answers are dropped. An adopted lane is adopted
    /// again. One of the instance's own is opened again under a new token, so that no write of the old owner
    /// counts any more.
    async fn bury(&self, lane: &LaneId, died: &LaneHandle) {
        // Once the incarnation is over, an owner that was cut off ends with its arbiter. A panic is logged where it occurs.
        if !self.lifetime.is_over() {
            tracing::error!(resource = %lane, "a lane's owner died");
        }
        self.services.scheduler.forget_lane(lane);
        while self.is_own(lane)
            && self.lifetime.is_serving()
            && let Some(before) = self.own.token()
        {
            tokio::time::sleep(jittered(OPEN_AGAIN_EVERY)).await;
            match self.own.acquire_anew(before).await {
                Ok(Some(token)) => return self.open_own(lane.clone(), token),
                Ok(None) => {}
                Err(Lost) => break,
            }
        }
        self.directory().remove(lane, died);
    }

    /// Cleans up after the owners that panic, as long as another handle to this exists.
    pub(super) fn watch_deaths(self: &Arc<Self>, mut deaths: mpsc::UnboundedReceiver<(LaneId, LaneHandle)>) {
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some((lane, died)) = deaths.recv().await {
                let Some(this) = this.upgrade() else { return };
                tokio::spawn(async move {
                    again_after_panics("the end of a lane's owner", || this.bury(&lane, &died)).await;
                });
            }
        });
    }

    /// Makes the lanes check the attempts of a lost node at once, as long as another handle to this exists.
    pub(super) fn watch_departures(self: &Arc<Self>, registry: &Registry) {
        let (this, mut departures) = (Arc::downgrade(self), registry.departures());
        tokio::spawn(async move {
            loop {
                match departures.recv().await {
                    Ok(departure) => {
                        let Some(this) = this.upgrade() else { return };
                        // A node that has connected anew, or may have, reports itself what it still has.
                        if !matches!(departure.how, Ended::Replaced | Ended::Unseen) {
                            let left = || LaneCommand::NodeDeparted(departure.node.clone());
                            guarded_call("the departures of nodes", || this.directory().send_to_all(left));
                        }
                    }
                    // A missed departure is found when the owners look for old attempts.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }
}
