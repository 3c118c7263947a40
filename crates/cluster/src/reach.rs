//! What this instance reaches, and since when. It decides whether the silence of a node is evidence: only while every
//! instance that the node may have connected to would have been heard.

use std::time::Duration;

use crate::failure_detector::SILENCE_MAX;
use crate::{ClusterView, FailureDetector};

/// Cheap to clone; all clones answer the same.
#[derive(Clone)]
pub struct Reach {
    bus: bus::Handle,
    failure_detector: FailureDetector,
    cluster_view: ClusterView,
}

impl Reach {
    /// Of one incarnation.
    #[must_use]
    pub const fn new(bus: bus::Handle, failure_detector: FailureDetector, cluster_view: ClusterView) -> Self {
        Self { bus, failure_detector, cluster_view }
    }

    /// Whether this instance has not reached the ledger for 15 s. It holds no sockets of nodes then.
    #[must_use]
    pub fn is_cut_off(&self) -> bool {
        self.failure_detector.is_silent_for(SILENCE_MAX)
    }

    /// How long this instance has reached its bus and the ledger without a break; `None` while it does not. Without the
    /// ledger no instance takes nodes on, so a node that has gone has nowhere to come back to.
    #[must_use]
    pub fn unbroken_for(&self) -> Option<Duration> {
        let link = self.bus.link().borrow().up_for()?;
        Some(link.min(self.failure_detector.reached_for()?))
    }

    /// The same, while the bus joined all live instances as well: for so long nothing of a node can have been missed.
    #[must_use]
    pub fn hears_all_for(&self) -> Option<Duration> {
        Some(self.unbroken_for()?.min(self.cluster_view.joined_for()?))
    }

    /// Whether there are other instances of which the bus may not tell at the moment: it lies within this process, is away, or
    /// is not the one that all of them use and show themselves on. Jobs then pass between them through the ledger, and they ask
    /// each other.
    #[must_use]
    pub fn is_apart(&self) -> bool {
        let joins_all = || {
            self.bus.kind() != bus::Kind::Local
                && self.bus.link().borrow().is_up()
                && !self.cluster_view.buses_differ()
        };
        self.cluster_view.has_others() && !joins_all()
    }

    /// The same, or it is not known: an instance was not compared since it or this one has begun, or was missing on this bus.
    #[must_use]
    pub fn may_be_apart(&self) -> bool {
        self.is_apart() || self.cluster_view.joined_for().is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use domain::{InstanceId, Mode};

    use super::*;
    use crate::Identity;

    fn view() -> ClusterView {
        let identity = Identity { id: InstanceId::parse("a").unwrap(), url: "http://a".to_owned() };
        ClusterView::alone(&identity, Mode::Basic)
    }

    #[tokio::test]
    async fn nothing_is_heard_for_sure_without_the_bus_the_ledger_or_an_instance_on_another_bus() {
        let (bus, view) = (bus::Hub::default().join(), view());
        let alone = Reach::new(bus.clone(), FailureDetector::alone(), view.clone());
        assert!(alone.unbroken_for().is_some() && alone.hears_all_for().is_some());
        let silent = FailureDetector::member(Duration::from_secs(2));
        let never = Reach::new(bus.clone(), silent.clone(), view.clone());
        assert!(never.unbroken_for().is_none());
        silent.renewed(std::time::Instant::now());
        assert!(never.hears_all_for().is_some());
        assert!(!alone.may_be_apart());
        view.compared_buses(true, HashSet::new());
        assert!(alone.may_be_apart());
        assert!(alone.unbroken_for().is_some() && alone.hears_all_for().is_none());
        view.compared_buses(false, HashSet::new());
        let anew = alone.hears_all_for().unwrap();
        assert!(anew < alone.unbroken_for().unwrap(), "it counts anew");
        bus.close().await;
        assert!(alone.unbroken_for().is_none() && alone.hears_all_for().is_none());
    }
}
