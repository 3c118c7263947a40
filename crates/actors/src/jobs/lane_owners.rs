//! Which instance owns a lane now: what a report is addressed to when the instance that dispatched the attempt is gone, or
//! owns the lane no more.

use std::sync::Arc;

use cluster::ClusterView;
use domain::{InstanceId, LaneId};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

/// Where owners are looked up.
pub(super) trait LaneOwners: Send + Sync {
    /// Whether any other instance lives of which this is so. One that has just begun may be missed for a moment.
    fn has_other(&self, which: &dyn Fn(&InstanceId) -> bool) -> bool;

    /// Whether an instance has surely ended, or is unknown: see [`cluster::View::has_ended`].
    fn has_ended(&self, instance: &InstanceId) -> bool;

    /// The owner by the lane's lease; `None` if nobody owns the lane now, or if that cannot be read. The lane's next owner
    /// reads all of it from the ledger.
    fn owner<'l>(&'l self, lane: &'l LaneId) -> BoxFuture<'l, Option<InstanceId>>;
}

/// A way to look owners up, to share.
pub(super) type LaneOwnersHandle = Arc<dyn LaneOwners>;

/// By the leases in the ledger.
pub(super) struct LeasedLanes {
    pub(super) me: InstanceId,
    pub(super) ledger: ledger::Handle,
    pub(super) cluster_view: ClusterView,
}

impl LaneOwners for LeasedLanes {
    fn has_other(&self, which: &dyn Fn(&InstanceId) -> bool) -> bool {
        self.cluster_view.view().members().any(|member| member.id != self.me && which(&member.id))
    }

    fn has_ended(&self, instance: &InstanceId) -> bool {
        self.cluster_view.view().has_ended(instance)
    }

    fn owner<'l>(&'l self, lane: &'l LaneId) -> BoxFuture<'l, Option<InstanceId>> {
        async move {
            match self.ledger.lease(lane.lease()).await {
                Ok(lease) => lease.filter(ledger::Lease::is_live).and_then(|lease| lease.owner),
                Err(error) => {
                    tracing::debug!(%error, %lane, "the owner of a lane could not be looked up");
                    None
                }
            }
        }
        .boxed()
    }
}
