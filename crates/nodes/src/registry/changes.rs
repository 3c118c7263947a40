//! Changes of nodes, for event streams. Selections and lanes do not use them.

use std::sync::Arc;
use std::time::Instant;

use bus::{NodeState, Version};
use domain::{InstanceId, NodeId};
use tokio::sync::broadcast;

use super::{Ended, Inner, Registry};
use crate::entry::Entry;
use crate::record::{Applied, Load, Profile, Status};

/// Something about a node is not as it was, as this instance sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeChange {
    /// The node.
    pub node: NodeId,
    /// The instance that holds its socket, or held it.
    pub holder: InstanceId,
    /// What has changed.
    pub what: Changed,
}

/// What has changed about a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// A connection of it is known that was not before. It is in this state.
    Joined(NodeState),
    /// It is in another state.
    State(NodeState),
    /// Its connection is over.
    Ended(Ended),
}

impl Registry {
    /// Subscribes to every change of a node other than load and slots. A subscriber that is too slow learns
    /// that it missed some.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<NodeChange> {
        self.inner.changes.subscribe()
    }
}

impl Inner {
    /// An update of a known connection.
    pub(super) fn take(
        &self,
        entry: &Arc<Entry>,
        version: Version,
        update: (Status, Load),
        heard: Instant,
        now: Instant,
    ) -> Applied {
        let before = entry.state();
        let applied = entry.take(version, update, heard, now);
        self.refresh(entry);
        self.tell_change(entry, before);
        applied
    }

    pub(super) fn fall_silent(&self, entry: &Arc<Entry>) {
        let before = entry.state();
        entry.fall_silent();
        self.refresh(entry);
        self.tell_change(entry, before);
    }

    pub(super) fn holder_is_there(&self, entry: &Arc<Entry>, is_there: bool) {
        let before = entry.state();
        if entry.holder_is_there(is_there) {
            self.refresh(entry);
            self.tell_change(entry, before);
        }
    }

    fn tell_change(&self, entry: &Entry, before: NodeState) {
        let state = entry.state();
        if state != before {
            let Profile { node, holder, .. } = &*entry.profile;
            let (node, holder) = (node.clone(), holder.clone());
            // Nobody may be listening.
            let _ = self.changes.send(NodeChange { node, holder, what: Changed::State(state) });
        }
    }
}
