//! What the registry asks of the bus, and nothing more.

use std::sync::Arc;
use std::time::Duration;

use bus::{Channel, Epoch, Event, Link, NodeRecord, Subscription};
use domain::NodeId;
use tokio::sync::watch;

use crate::limits::OFFLINE_MS;
use crate::record::Record;

/// Where records of nodes are kept, and where their changes are told.
#[async_trait::async_trait]
pub trait Source: Send + Sync {
    /// Listens for changes from now on.
    fn listen(&self) -> Box<dyn Notices>;

    /// Tells a notice to all instances; it may be lost.
    ///
    /// # Errors
    /// What the bus says.
    async fn tell(&self, notice: &[u8]) -> bus::Result<()>;

    /// Says that these nodes are online, for the next [`OFFLINE_MS`]: at most [`bus::limits::NODES_LIST_MAX`].
    ///
    /// # Errors
    /// What the bus says.
    async fn list(&self, nodes: &[NodeId]) -> bus::Result<()>;

    /// The nodes that are said to be online. A hint: some may be missing, some may be gone.
    ///
    /// # Errors
    /// What the bus says.
    async fn online(&self) -> bus::Result<Vec<NodeId>>;

    /// What is kept of each of these, at most [`crate::limits::RECORDS_READ_MAX`], in their order.
    ///
    /// # Errors
    /// What the bus says when any of them could not be read: no news is no evidence.
    async fn read(&self, nodes: &[NodeId]) -> bus::Result<Vec<Kept>>;

    /// Whether the bus can be reached, and since when.
    fn link(&self) -> watch::Receiver<Link>;
}

/// Changes as they are told, from the moment of [`Source::listen`] on.
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
        /// Which.
        epoch: Epoch,
    },
    /// Nothing, or nothing that can be read.
    Absent,
}

/// A source to share.
pub type SourceHandle = Arc<dyn Source>;

#[async_trait::async_trait]
impl Source for bus::Handle {
    fn listen(&self) -> Box<dyn Notices> {
        Box::new(self.subscribe(Channel::Nodes))
    }

    async fn tell(&self, notice: &[u8]) -> bus::Result<()> {
        self.publish(Channel::Nodes, notice).await
    }

    async fn list(&self, nodes: &[NodeId]) -> bus::Result<()> {
        self.list_nodes(nodes, OFFLINE).await
    }

    async fn online(&self) -> bus::Result<Vec<NodeId>> {
        self.listed_nodes().await
    }

    async fn read(&self, nodes: &[NodeId]) -> bus::Result<Vec<Kept>> {
        let mut shown = self.show_nodes(nodes).await?;
        Ok(nodes.iter().map(|node| kept(node, shown.remove(node))).collect())
    }

    fn link(&self) -> watch::Receiver<Link> {
        bus::Bus::link(&**self)
    }
}

#[async_trait::async_trait]
impl Notices for Subscription {
    async fn next(&mut self) -> Option<Event> {
        Self::next(self).await
    }
}

/// How long a record lives after it was refreshed.
const OFFLINE: Duration = Duration::from_millis(OFFLINE_MS);

fn kept(node: &NodeId, shown: Option<NodeRecord>) -> Kept {
    let Some(shown) = shown else { return Kept::Absent };
    if !shown.is_online {
        return Kept::Offline { epoch: shown.epoch };
    }
    let Some(record) = Record::from_kept(node.clone(), &shown) else {
        tracing::warn!(%node, "the record of a node cannot be read; it gets no work");
        return Kept::Absent;
    };
    Kept::Online { record, age: OFFLINE.saturating_sub(shown.ttl) }
}
