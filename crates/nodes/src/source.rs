//! What the registry asks of the bus, and nothing more.

use std::collections::{HashMap, HashSet};
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use bus::{Channel, Epoch, Event, Link, ListChange, NodeRecord, Subscription, Version};
use domain::{InstanceId, NodeId};
use futures_util::future::join_all;
use tokio::sync::watch;

use crate::hearing::Hearing;
use crate::record::Record;
use crate::registry::Registry;

/// Where records of nodes are kept, and where their changes are published.
#[async_trait::async_trait]
pub trait Source: Send + Sync {
    /// Listens for changes from now on.
    fn listen(&self) -> Box<dyn Notices>;

    /// Tells a notice to all instances; it may be lost.
    ///
    /// # Errors
    /// What the bus says.
    async fn tell(&self, notice: &[u8]) -> bus::Result<()>;

    /// The instances that are live by the ledger, as this instance knows it now.
    fn instances(&self) -> Vec<InstanceId>;

    /// Which of these instances show themselves on the bus now, and have not ended by the ledger as it was read last. One that
    /// has ended and shows itself does not reach the ledger, or has another one, where one of the two is a copy of the other.
    ///
    /// # Errors
    /// What the bus says when any of them could not be asked for.
    async fn present(&self, instances: &[InstanceId]) -> bus::Result<HashSet<InstanceId>>;

    /// Changes the list of the nodes that this instance holds, which lives for as long as a node's record: at most
    /// [`bus::limits::NODES_LIST_MAX`] of them. Answers how many nodes it names then.
    ///
    /// # Errors
    /// What the bus says.
    async fn list(&self, change: &ListChange<'_>) -> bus::Result<usize>;

    /// The nodes that these instances list, each with its newest version. A hint: some may be missing, some may be gone.
    ///
    /// # Errors
    /// What the bus says.
    async fn listed(&self, holders: &[InstanceId]) -> bus::Result<HashMap<NodeId, Version>>;

    /// What is kept of each of these, at most [`crate::limits::RECORDS_READ_MAX`], in their order.
    ///
    /// # Errors
    /// Of each that could not be read, what the bus says: silence is no evidence.
    async fn read(&self, nodes: &[NodeId]) -> Vec<bus::Result<Kept>>;

    /// Whether the bus can be reached, and since when.
    fn link(&self) -> watch::Receiver<Link>;

    /// How well nodes have been heard of until now.
    fn hearing(&self) -> Hearing;

    /// Whether the bus answers, also while nothing is heard and the link is therefore down.
    fn answers(&self) -> watch::Receiver<bool>;
}

/// Changes as they are published, from the moment of [`Source::listen`] on.
#[async_trait::async_trait]
pub trait Notices: Send {
    /// The next event; `None` when the bus was closed. Nothing is lost when the wait is given up.
    async fn next(&mut self) -> Option<Event>;
}

/// What is kept of a node.
#[derive(Clone, Debug, PartialEq)]
pub enum Kept {
    /// Its record, and how long ago its holder refreshed it.
    Online {
        /// The record.
        record: Record,
        /// Since it was refreshed.
        age: Duration,
    },
    /// Its holder says that this connection is over.
    Offline {
        /// The connection's epoch.
        epoch: Epoch,
    },
    /// Nothing, or nothing that can be read.
    Absent,
}

/// A source to share.
pub type SourceHandle = Arc<dyn Source>;

/// The bus, as the registry of one instance uses it.
pub struct BusSource {
    bus: bus::Handle,
    me: InstanceId,
    /// How long a record lives after it was refreshed.
    offline: Duration,
    instances: Box<dyn Fn() -> Vec<InstanceId> + Send + Sync>,
    has_ended: Box<dyn Fn(&InstanceId) -> bool + Send + Sync>,
    hearing: Box<dyn Fn() -> Hearing + Send + Sync>,
}

impl BusSource {
    /// For this registry's instance; `instances` says which instances are live by the ledger, `has_ended` which have surely ended
    /// by it, and `hearing` how well nodes are heard of, without a wait.
    pub fn new(
        bus: bus::Handle,
        registry: &Registry,
        instances: impl Fn() -> Vec<InstanceId> + Send + Sync + 'static,
        has_ended: impl Fn(&InstanceId) -> bool + Send + Sync + 'static,
        hearing: impl Fn() -> Hearing + Send + Sync + 'static,
    ) -> Self {
        let (me, offline) = (registry.me().clone(), registry.timeouts().offline);
        Self {
            bus,
            me,
            offline,
            instances: Box::new(instances),
            has_ended: Box::new(has_ended),
            hearing: Box::new(hearing),
        }
    }

    async fn read_one(&self, node: &NodeId) -> bus::Result<Kept> {
        let mut shown = self.bus.show_nodes(slice::from_ref(node)).await?;
        Ok(kept(node, shown.remove(node), self.offline))
    }
}

#[async_trait::async_trait]
impl Source for BusSource {
    fn listen(&self) -> Box<dyn Notices> {
        Box::new(self.bus.subscribe(Channel::Nodes))
    }

    async fn tell(&self, notice: &[u8]) -> bus::Result<()> {
        self.bus.publish(Channel::Nodes, notice).await
    }

    fn instances(&self) -> Vec<InstanceId> {
        (self.instances)()
    }

    async fn present(&self, instances: &[InstanceId]) -> bus::Result<HashSet<InstanceId>> {
        let there = self.bus.present(instances).await?.into_keys();
        // That this instance shows itself tells whether the bus has kept its memory.
        Ok(there.filter(|id| *id == self.me || !(self.has_ended)(id)).collect())
    }

    async fn list(&self, change: &ListChange<'_>) -> bus::Result<usize> {
        self.bus.list_nodes(&self.me, change, self.offline).await
    }

    async fn listed(&self, holders: &[InstanceId]) -> bus::Result<HashMap<NodeId, Version>> {
        self.bus.listed_nodes(holders).await
    }

    async fn read(&self, nodes: &[NodeId]) -> Vec<bus::Result<Kept>> {
        // One call for each: a hash slot of a Redis Cluster that is not served keeps no record of another from being read.
        join_all(nodes.iter().map(|node| self.read_one(node))).await
    }

    fn link(&self) -> watch::Receiver<Link> {
        self.bus.link()
    }

    fn hearing(&self) -> Hearing {
        (self.hearing)()
    }

    fn answers(&self) -> watch::Receiver<bool> {
        self.bus.answers()
    }
}

#[async_trait::async_trait]
impl Notices for Subscription {
    async fn next(&mut self) -> Option<Event> {
        Self::next(self).await
    }
}

fn kept(node: &NodeId, shown: Option<NodeRecord>, offline: Duration) -> Kept {
    let Some(shown) = shown else { return Kept::Absent };
    if !shown.is_online {
        return Kept::Offline { epoch: shown.epoch };
    }
    let Some(record) = Record::from_kept(node.clone(), &shown) else {
        tracing::warn!(%node, "the record of a node cannot be read; it gets no work");
        return Kept::Absent;
    };
    // One that lives on for longer than any was written before the clock of Redis was set back. Nobody knows how long ago.
    let age = offline.checked_sub(shown.ttl).unwrap_or(offline);
    Kept::Online { record, age }
}

#[cfg(test)]
mod tests {
    use domain::NodeTimeouts;

    use super::*;
    use crate::fixture::{node, record};

    #[test]
    fn a_record_that_is_to_live_for_longer_than_any_was_refreshed_as_long_ago_as_can_be() {
        let (own, offline) = (record("n"), NodeTimeouts::DEFAULT.offline);
        let age = |ttl| {
            let report = own.report(&NodeTimeouts::DEFAULT, false);
            let shown = NodeRecord {
                holder: own.profile.holder.clone(),
                epoch: own.stamp.epoch,
                version: own.stamp.version,
                is_online: true,
                is_complete: true,
                capacity: report.capacity,
                used: 0,
                state: report.state,
                document: report.document,
                ttl,
            };
            match kept(&node("n"), Some(shown), offline) {
                Kept::Online { age, .. } => age,
                other => panic!("it is online, not {other:?}"),
            }
        };
        assert_eq!([age(offline), age(offline / 3)], [Duration::ZERO, offline - offline / 3]);
        assert_eq!(age(offline * 100), offline, "else its node seems to be heard of as long as that is so");
    }
}
