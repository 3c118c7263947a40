//! What the follower carries between the registry and the bus: what is to be published, and whose records
//! are to be looked at.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::Version;
use domain::{InstanceId, NodeId};
use parking_lot::MutexGuard;

use super::{Inner, Known, Registry};
use crate::entry::Entry;
use crate::limits::NODES_MAX;
use crate::node_update::NodeUpdate;

impl Registry {
    /// What is to be published: up to `limit` updates, the newest of each node.
    pub(crate) fn take_outbox(&self, limit: usize) -> Vec<NodeUpdate> {
        let mut outbox = self.inner.outbox();
        if outbox.len() <= limit {
            return outbox.drain().map(|(_, update)| update).collect();
        }
        let some: Vec<_> = outbox.keys().take(limit).cloned().collect();
        some.iter().filter_map(|node| outbox.remove(node)).collect()
    }

    /// What was not published after all, unless something newer is to be.
    pub(crate) fn put_back(&self, updates: Vec<NodeUpdate>) {
        for update in updates {
            self.inner.tell(update);
        }
    }

    /// Comes back when there is something to tell.
    pub(crate) async fn outbox_filled(&self) {
        self.inner.outbox_filled.notified().await;
    }

    /// The nodes whose sockets this instance holds, and the versions of their records.
    pub(crate) fn held_here(&self) -> HashMap<NodeId, Version> {
        let entries = self.entries();
        let here = entries.iter().filter(|entry| entry.profile.holder == self.inner.me);
        here.map(|entry| (entry.profile.node.clone(), entry.stamp().version)).collect()
    }

    /// The nodes whose sockets other instances hold.
    pub(crate) fn held_by_others(&self) -> Vec<NodeId> {
        let entries = self.entries();
        let others = entries.iter().filter(|entry| entry.profile.holder != self.inner.me);
        others.map(|entry| entry.profile.node.clone()).collect()
    }

    /// The other instances that hold the sockets of nodes.
    pub(crate) fn holders(&self) -> HashSet<InstanceId> {
        let entries = self.entries();
        let holders = entries.iter().map(|entry| &entry.profile.holder);
        holders.filter(|holder| **holder != self.inner.me).cloned().collect()
    }

    /// The nodes of others that were found full so long ago, and of which nothing new was heard since.
    pub(crate) fn found_full(&self, now: Instant, ago: Duration) -> Vec<NodeId> {
        let is_full = |entry: &&Arc<Entry>| {
            entry.profile.holder != self.inner.me && entry.is_found_full() && {
                let last = entry.last_update();
                now.duration_since(last.heard.max(last.compared)) >= ago
            }
        };
        let entries = self.entries();
        entries.iter().filter(is_full).map(|entry| entry.profile.node.clone()).collect()
    }

    /// Whose records are to be read: all `listed` nodes that are not known, or not in that version; then those of other
    /// instances that nothing was heard of for the longest, so many; nobody who was heard of within `recent`.
    pub(crate) fn to_compare(
        &self,
        listed: &HashMap<NodeId, Version>,
        now: Instant,
        recent: Duration,
        limit: usize,
    ) -> Vec<NodeId> {
        let nodes = &self.inner.nodes;
        let mut chosen: Vec<_> = listed.keys().filter(|node| !nodes.contains_key(*node)).cloned().collect();
        let mut quiet = Vec::new();
        for known in nodes {
            let version = listed.get(known.key());
            match known.value() {
                Known::Here(entry) if entry.profile.holder != self.inner.me => {
                    let last = entry.last_update();
                    let looked = last.heard.max(last.compared);
                    if now.duration_since(looked) < recent {
                        continue;
                    }
                    if version.is_some_and(|version| *version > last.version) {
                        chosen.push(known.key().clone());
                    } else {
                        quiet.push((looked, known.key().clone()));
                    }
                }
                Known::Left { stamp, at, .. } => {
                    // Another connection of the node may be listed; or its last holder has not changed its list yet.
                    let is_newer = version.is_some_and(|version| version.get() > stamp.epoch.get());
                    if is_newer && now.duration_since(*at) >= recent {
                        chosen.push(known.key().clone());
                    }
                }
                Known::Here(_) => {}
            }
        }
        quiet.sort_unstable();
        chosen.extend(quiet.into_iter().take(limit).map(|(_, node)| node));
        chosen
    }
}

impl Inner {
    pub(super) fn tell(&self, update: NodeUpdate) {
        let mut outbox = self.outbox();
        // The same version may come twice: that it was refreshed counts too.
        let is_newer = outbox.get(&update.node).is_none_or(|waiting| waiting.stamp <= update.stamp);
        if is_newer && (outbox.len() < NODES_MAX || outbox.contains_key(&update.node)) {
            outbox.insert(update.node.clone(), update);
        }
        drop(outbox);
        self.outbox_filled.notify_one();
    }

    pub(super) fn outbox(&self) -> MutexGuard<'_, HashMap<NodeId, NodeUpdate>> {
        self.outbox.lock()
    }
}
