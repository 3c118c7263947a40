//! Records of nodes that the bus does not serve although it is up. A hash slot of a Redis Cluster is one whose move to another
//! master was left half done: both masters refuse the scripts there until somebody ends the move.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use domain::NodeId;

use super::{Inner, Registry};
use crate::limits::NODES_MAX;

impl Registry {
    /// Whether the bus has taken nothing about a node of this instance for longer than two heartbeats, or has not shown a record
    /// of another instance's node when that was read last, as it was found at most a second or so ago. Such nodes get jobs of
    /// their holder alone.
    #[must_use]
    pub fn lacks_records(&self) -> bool {
        self.inner.lacks_records.load(SeqCst)
    }

    /// Whether this instance has read all records that the bus has, has missed nothing since, and does not know the node.
    #[must_use]
    pub fn is_nowhere(&self, node: &NodeId) -> bool {
        self.get(node).is_none() && self.is_loaded() && !self.inner.unread.lock().contains_key(node)
    }

    /// The record of a node could not be read, which was tried at `at`: it may be there.
    pub(crate) fn unread(&self, node: &NodeId, at: Instant) {
        let mut unread = self.inner.unread.lock();
        if unread.len() < NODES_MAX || unread.contains_key(node) {
            unread.insert(node.clone(), at);
        }
    }

    /// Every record that may be there was tried since then. What could not be read before, and not since, was read or is gone.
    pub(crate) fn tried_again(&self, since: Instant) {
        self.inner.unread.lock().retain(|_, at| *at >= since);
    }
}

impl Inner {
    /// Notes whether records are missing; `has_unwritten` says so of this instance's own nodes.
    pub(super) fn look_for_missing_records(&self, has_unwritten: bool) {
        let unread = self.unread.lock().len();
        let lacks = has_unwritten || unread > 0;
        if self.lacks_records.swap(lacks, SeqCst) != lacks {
            tracing::debug!(
                has_unwritten,
                unread,
                "the bus does not serve the records of some nodes, or does again"
            );
        }
    }
}
