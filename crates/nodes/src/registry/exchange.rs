//! What the follower carries between the registry and the bus: what is to be told to the others, and whose records
//! are to be looked at.

use std::collections::{HashMap, HashSet};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::NodeId;

use super::{Inner, Known, Registry};
use crate::limits::NODES_MAX;
use crate::pulse::Pulse;

impl Registry {
    /// What is to be told to the others: at most so many pulses, the newest of each node.
    pub(crate) fn take_outbox(&self, limit: usize) -> Vec<Pulse> {
        let mut outbox = self.inner.outbox();
        if outbox.len() <= limit {
            return outbox.drain().map(|(_, pulse)| pulse).collect();
        }
        let some: Vec<_> = outbox.keys().take(limit).cloned().collect();
        some.iter().filter_map(|node| outbox.remove(node)).collect()
    }

    /// What was not told after all, unless something newer is to be told.
    pub(crate) fn put_back(&self, pulses: Vec<Pulse>) {
        for pulse in pulses {
            self.inner.tell(pulse);
        }
    }

    /// Comes back when there is something to tell.
    pub(crate) async fn outbox_filled(&self) {
        self.inner.outbox_filled.notified().await;
    }

    /// The nodes whose sockets this instance holds, or those that others hold.
    pub(crate) fn held(&self, by_me: bool) -> Vec<NodeId> {
        let entries = self.entries();
        let held = entries.iter().filter(|entry| (entry.profile.holder == self.inner.me) == by_me);
        held.map(|entry| entry.profile.node.clone()).collect()
    }

    /// Whose versions are to be compared with the bus's: all of `online` that are not known, then those that nothing
    /// was heard of for the longest; nobody who was heard of within `recent`.
    pub(crate) fn to_compare(
        &self,
        online: Vec<NodeId>,
        now: Instant,
        recent: Duration,
        limit: usize,
    ) -> Vec<NodeId> {
        let mut chosen: HashSet<_> =
            online.into_iter().filter(|node| !self.inner.nodes.contains_key(node)).take(limit).collect();
        let mut quiet = Vec::new();
        for known in &self.inner.nodes {
            let Known::Here(entry) = known.value() else { continue };
            let news = entry.news();
            let looked = news.heard.max(news.compared);
            if now.duration_since(looked) >= recent && entry.profile.holder != self.inner.me {
                quiet.push((looked, known.key().clone()));
            }
        }
        quiet.sort_unstable();
        let room = limit - chosen.len();
        chosen.extend(quiet.into_iter().take(room).map(|(_, node)| node));
        chosen.into_iter().collect()
    }
}

impl Inner {
    pub(super) fn tell(&self, pulse: Pulse) {
        let mut outbox = self.outbox();
        // The same version may come twice: that it was refreshed is news too.
        let is_news = outbox.get(&pulse.node).is_none_or(|waiting| waiting.stamp <= pulse.stamp);
        if is_news && (outbox.len() < NODES_MAX || outbox.contains_key(&pulse.node)) {
            outbox.insert(pulse.node.clone(), pulse);
        }
        drop(outbox);
        self.outbox_filled.notify_one();
    }

    pub(super) fn outbox(&self) -> MutexGuard<'_, HashMap<NodeId, Pulse>> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
