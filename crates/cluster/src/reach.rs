//! What this instance reaches, and since when. It decides whether the silence of a node is evidence: only while every
//! instance that the node may have connected to would have been heard.

use std::time::{Duration, Instant};

use domain::InstanceId;

use crate::failure_detector::SILENCE_MAX;
use crate::{ClusterView, FailureDetector};

/// For how long nothing of a node can have been missed, whichever live instance it may have connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardAll {
    /// Without a break, up to the end ...
    pub length: Duration,
    /// ... which was so long ago: whether the bus still joins all live instances is looked at every few seconds.
    pub ago: Duration,
}

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

    /// Whether this instance's own lease has been over for this long at least, by its own clock: it could not be renewed, or
    /// was lost. Meanwhile the instance writes for no key. Never true of an instance that is alone with its ledger.
    #[must_use]
    pub fn is_without_lease_for(&self, length: Duration) -> bool {
        self.failure_detector.is_without_lease_for(length)
    }

    /// Whether an instance has surely ended, and with it the connections that its nodes had: see [`crate::View::has_ended`].
    #[must_use]
    pub fn has_ended(&self, instance: &InstanceId) -> bool {
        self.cluster_view.view().has_ended(instance)
    }

    /// How long this instance has reached its bus and the ledger without a break; `None` while it does not. Without the
    /// ledger no instance takes nodes on, so a node that has gone has nowhere to come back to.
    #[must_use]
    pub fn unbroken_for(&self) -> Option<Duration> {
        let link = self.bus.link().borrow().up_for()?;
        Some(link.min(self.failure_detector.reached_for()?))
    }

    /// The same, while the bus joined all live instances as well: for so long nothing of a node can have been missed. Only
    /// another look makes it longer.
    #[must_use]
    pub fn hears_all(&self) -> Option<HeardAll> {
        let unbroken = self.unbroken_for()?;
        let now = Instant::now();
        let joined = self.cluster_view.joined(now)?;
        let until_now = unbroken.min(now.saturating_duration_since(joined.since));
        let ago = until_now.min(now.saturating_duration_since(joined.until));
        Some(HeardAll { length: until_now - ago, ago })
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
        self.is_apart() || self.cluster_view.joined(Instant::now()).is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use domain::Mode;

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
        assert!(alone.unbroken_for().is_some() && alone.hears_all().is_some());
        let silent = FailureDetector::member(Duration::from_secs(2));
        let never = Reach::new(bus.clone(), silent.clone(), view.clone());
        assert!(never.unbroken_for().is_none());
        silent.renewed(Instant::now());
        assert!(never.hears_all().is_some());
        assert!(!alone.may_be_apart());
        let compared = |differ| view.compared_buses(differ, HashSet::new(), Some(Instant::now()));
        compared(true);
        assert!(alone.may_be_apart());
        assert!(alone.unbroken_for().is_some() && alone.hears_all().is_none());
        compared(false);
        let HeardAll { length, ago } = alone.hears_all().unwrap();
        assert!(length + ago < alone.unbroken_for().unwrap(), "it counts anew");
        bus.close().await;
        assert!(alone.unbroken_for().is_none() && alone.hears_all().is_none());
    }

    #[tokio::test]
    async fn an_instance_is_without_its_lease_from_its_end_until_the_next_renewal() {
        let (lease, after) = (Duration::from_secs(2), Duration::from_secs(10));
        let (bus, detector) = (bus::Hub::default().join(), FailureDetector::member(lease));
        let member = Reach::new(bus.clone(), detector.clone(), view());
        detector.renewed(Instant::now().checked_sub(lease + after).unwrap());
        assert!(member.is_without_lease_for(after) && !member.is_without_lease_for(after * 2));
        detector.ended();
        assert!(member.is_without_lease_for(after), "a lease that is lost is not renewed");
        detector.renewed(Instant::now());
        assert!(!member.is_without_lease_for(Duration::ZERO));
        let alone = Reach::new(bus, FailureDetector::alone(), view());
        assert!(!alone.is_without_lease_for(Duration::ZERO), "it needs none");
    }

    #[tokio::test]
    async fn all_is_heard_until_the_last_look_at_the_buses() {
        let began = Instant::now();
        let (bus, view) = (bus::Hub::default().join(), view());
        let reach = Reach::new(bus, FailureDetector::alone(), view.clone());
        let looked_at = |at| view.compared_buses(false, HashSet::new(), Some(at));
        looked_at(began);
        let before = reach.hears_all().unwrap();
        assert_eq!(before.length, Duration::ZERO, "nobody has looked since it began");
        looked_at(began + Duration::from_secs(3_600));
        let after = reach.hears_all().unwrap();
        assert!(after.length >= before.ago && after.ago.is_zero(), "{after:?}");
    }
}
