//! All nodes, in this instance's memory: how changes of them are applied, and which subscribers learn of them.
//!
//! A writer changes a node under that node's own lock, and sets in the index whether the node is open for work. The index
//! holds the nodes, labels and pools: it is rebuilt beside the selections and replaced as a whole. A heartbeat changes one
//! node and one bit of the index; no selection waits for it.

mod changes;
mod exchange;
mod indexing;
mod missing_records;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bus::{Epoch, Version};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry as Slot;
use dashmap::mapref::one::MappedRef;
use domain::{InstanceId, NodeId, NodeTimeouts, PoolPause};
use parking_lot::Mutex;
use tokio::sync::{Notify, broadcast, watch};

use crate::entry::Entry;
use crate::hearing::Hearing;
use crate::index::Index;
use crate::limits::{
    ABSENT_AFTER_MS, CHANGES_MAX, DEPARTURES_MAX, FULL_MS, LEFT_FORGOTTEN_AT_ONCE, NODES_MAX,
    left_remembered, silence_max,
};
use crate::node_update::NodeUpdate;
use crate::pools::Pools;
use crate::record::{Applied, Profile, Record, Stamp};
pub use changes::{Changed, NodeChange};

/// The registry. Clones are cheap and share it.
#[derive(Clone, Debug)]
pub struct Registry {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) me: InstanceId,
    timeouts: NodeTimeouts,
    nodes: DashMap<NodeId, Known>,
    /// When there were as many as may be, and none that had left.
    full_at: Mutex<Option<Instant>>,
    pub(crate) index: ArcSwap<Index>,
    /// As [`Registry::index_version`] says.
    pub(crate) index_version: AtomicU64,
    /// The bus does not answer: only this instance's own nodes can be reached.
    pub(crate) is_alone: AtomicBool,
    /// All nodes that the bus knows were loaded since the last time that something may have been missed.
    is_loaded: AtomicBool,
    /// The nodes of other instances whose records could not be read when that was tried last, and when.
    unread: Mutex<HashMap<NodeId, Instant>>,
    /// Records are missing, as [`Registry::lacks_records`] says.
    lacks_records: AtomicBool,
    /// Holders of nodes that did not show themselves when that was looked at last.
    missing: Mutex<HashMap<InstanceId, Missing>>,
    pools: Mutex<Arc<Pools>>,
    /// The pools to which nothing is dispatched.
    pauses: Mutex<Arc<Vec<PoolPause>>>,
    /// The pools and the pauses are to be read before any node is selected.
    pub(crate) awaits_pools: AtomicBool,
    /// One index is built at a time.
    building: Mutex<()>,
    index_is_old: Notify,
    openings: watch::Sender<()>,
    departures: broadcast::Sender<Departure>,
    changes: broadcast::Sender<NodeChange>,
    outbox: Mutex<HashMap<NodeId, NodeUpdate>>,
    outbox_filled: Notify,
}

/// A holder of nodes that does not show itself.
#[derive(Clone, Copy, Debug)]
struct Missing {
    since: Instant,
    /// It is not there: it has been missing for [`ABSENT_AFTER_MS`].
    is_absent: bool,
}

/// What this instance knows of a node.
#[derive(Debug)]
enum Known {
    Here(Arc<Entry>),
    /// It left; nothing up to this stamp brings it back.
    Left {
        stamp: Stamp,
        at: Instant,
        how: Ended,
    },
}

/// A connection of a node that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Departure {
    /// The node.
    pub node: NodeId,
    /// The instance that held its socket.
    pub holder: InstanceId,
    /// Which connection.
    pub epoch: Epoch,
    /// How it ended.
    pub how: Ended,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Its holder says that it is over.
    Left,
    /// The node has connected again, perhaps to another instance.
    Replaced,
    /// Nothing was heard of it for long although this instance would have heard of it, or its holder says that no heartbeat came.
    Lost,
    /// Nothing was heard of it for long on this bus. It may be connected to a live instance that the bus does not join with
    /// this one: that tells nothing of what it was doing.
    Unseen,
}

impl Registry {
    /// An empty registry, of this instance.
    #[must_use]
    pub fn new(me: InstanceId, timeouts: NodeTimeouts) -> Self {
        let inner = Inner {
            me,
            timeouts,
            nodes: DashMap::new(),
            full_at: Mutex::default(),
            index: ArcSwap::from_pointee(Index::empty()),
            index_version: AtomicU64::new(1),
            is_alone: AtomicBool::new(false),
            is_loaded: AtomicBool::new(false),
            unread: Mutex::default(),
            lacks_records: AtomicBool::new(false),
            missing: Mutex::default(),
            pools: Mutex::new(Arc::new(Pools::unconfigured())),
            pauses: Mutex::default(),
            awaits_pools: AtomicBool::new(false),
            building: Mutex::default(),
            index_is_old: Notify::new(),
            openings: watch::Sender::new(()),
            departures: broadcast::channel(DEPARTURES_MAX).0,
            changes: broadcast::channel(CHANGES_MAX).0,
            outbox: Mutex::default(),
            outbox_filled: Notify::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The instance whose registry this is.
    #[must_use]
    pub fn me(&self) -> &InstanceId {
        &self.inner.me
    }

    /// How long this instance waits for its nodes.
    #[must_use]
    pub fn timeouts(&self) -> &NodeTimeouts {
        &self.inner.timeouts
    }

    /// A whole record that its holder refreshed at `heard`.
    pub fn apply(&self, record: Record, heard: Instant, now: Instant) -> Applied {
        let inner = &*self.inner;
        let Record { stamp, ref profile, status, load } = record;
        if let Some(entry) = inner.connection(&profile.node, stamp.epoch)
            && entry.profile == *profile
        {
            return inner.take(&entry, stamp.version, (status, load), heard, now);
        }
        let has_room = inner.make_room(&profile.node, now);
        let joined = NodeChange {
            node: profile.node.clone(),
            holder: profile.holder.clone(),
            what: Changed::Joined(status.state),
        };
        let before = match inner.nodes.entry(profile.node.clone()) {
            Slot::Vacant(_) if !has_room => return Applied::TooMany,
            Slot::Vacant(slot) => {
                slot.insert(Known::Here(inner.entry(record, heard, now)));
                None
            }
            Slot::Occupied(mut slot) => {
                let last = match slot.get() {
                    Known::Here(entry) => entry.stamp(),
                    Known::Left { stamp, .. } => *stamp,
                };
                if stamp <= last {
                    return Applied::Stale;
                }
                slot.insert(Known::Here(inner.entry(record, heard, now))).entry().cloned()
            }
        };
        if let Some(entry) = before {
            inner.depart(&entry, Ended::Replaced);
        }
        // Nobody may be listening.
        let _ = inner.changes.send(joined);
        inner.index_is_old.notify_one();
        Applied::New
    }

    /// An update of a connection from its holder.
    pub fn hear(&self, update: &NodeUpdate, now: Instant) -> Applied {
        let inner = &*self.inner;
        let Some(state) = update.state else {
            let how = if update.is_lost { Ended::Lost } else { Ended::Left };
            return self.hear_over(&update.node, update.stamp.epoch, how, now);
        };
        match inner.nodes.get(&update.node).as_deref() {
            Some(Known::Here(entry)) if entry.epoch == update.stamp.epoch => {
                inner.take(entry, update.stamp.version, state, now, now)
            }
            Some(Known::Here(entry)) if entry.epoch > update.stamp.epoch => Applied::Stale,
            Some(Known::Left { stamp, .. }) if update.stamp <= *stamp => Applied::Stale,
            _ => Applied::Unknown,
        }
    }

    /// What this instance has written to the bus of a node whose socket it holds: applied here and published.
    pub fn recorded(&self, record: Record, now: Instant) -> Applied {
        let update = NodeUpdate::of(&record);
        let applied = self.apply(record, now, now);
        if matches!(applied, Applied::New | Applied::Repeated) {
            self.inner.tell(update);
        }
        applied
    }

    /// How one of its own nodes is, while this instance cannot write it to the bus: applied here under the known version,
    /// and not published.
    pub fn noted(&self, mut record: Record, now: Instant) -> Applied {
        let (node, epoch, mut since) = (record.profile.node.clone(), record.stamp.epoch, now);
        if let Some(entry) = self.inner.connection(&node, epoch) {
            record.stamp.version = entry.stamp().version;
            since = entry.unwritten_since().unwrap_or(now);
        }
        let applied = self.apply(record, now, now);
        if let Some(entry) = self.inner.connection(&node, epoch) {
            entry.unwritten(since);
        }
        applied
    }

    /// For a connection of the node of which the bus does not know yet: after all that are known here, and before any
    /// that the bus will name.
    #[must_use]
    pub fn next_epoch(&self, node: &NodeId) -> Epoch {
        let last = match self.inner.nodes.get(node).as_deref() {
            Some(Known::Here(entry)) => entry.epoch.get(),
            Some(Known::Left { stamp, .. }) => stamp.epoch.get(),
            None => 0,
        };
        Epoch::new(last.saturating_add(1))
    }

    /// For a connection of the node that the bus is to know: above each epoch and version of the node that is known here. A bus
    /// that lost the record does not know them.
    #[must_use]
    pub fn epoch_floor(&self, node: &NodeId) -> Epoch {
        let version = self.get(node).map_or(0, |record| record.stamp.version.get());
        self.next_epoch(node).max(Epoch::new(version.saturating_add(1)))
    }

    /// As [`Self::recorded`], for a heartbeat that arrived at `arrived`: the time from there to `now` is measured.
    pub fn heartbeat_recorded(&self, record: Record, arrived: Instant, now: Instant) -> Applied {
        metrics::histogram!("fencepost_node_heartbeat_seconds").record(now.duration_since(arrived));
        self.recorded(record, now)
    }

    /// This connection is over, says the instance that held it: applied here and published.
    pub fn left(&self, node: &NodeId, epoch: Epoch, now: Instant) {
        self.hear_end(node, epoch, Ended::Left, now);
        self.inner.tell(NodeUpdate { node: node.clone(), stamp: over(epoch), state: None, is_lost: false });
    }

    /// The same of one that is over because no heartbeat came.
    pub fn lost(&self, node: &NodeId, epoch: Epoch, now: Instant) {
        self.hear_end(node, epoch, Ended::Lost, now);
        self.inner.tell(NodeUpdate { node: node.clone(), stamp: over(epoch), state: None, is_lost: true });
    }

    /// This connection is over since the node has a newer one, says the bus to the instance that held it. The newer one's
    /// holder publishes that one; what the node was doing goes on there.
    pub fn replaced(&self, node: &NodeId, epoch: Epoch, now: Instant) {
        self.hear_end(node, epoch, Ended::Replaced, now);
    }

    /// This connection, of which the bus never knew, is over: applied here, and not published. Another instance may have given
    /// its own connection of the node the same epoch.
    pub fn left_alone(&self, node: &NodeId, epoch: Epoch, how: Ended, now: Instant) {
        self.hear_end(node, epoch, how, now);
    }

    /// This connection is over, says its record, which does not say why.
    pub(crate) fn hear_leave(&self, node: &NodeId, epoch: Epoch, now: Instant) -> Applied {
        self.hear_over(node, epoch, Ended::Left, now)
    }

    /// This connection is over, says its record or its holder. Of a node whose socket is held here that socket says more: where
    /// the node has been elsewhere meanwhile, it finds so by the next write of its record.
    fn hear_over(&self, node: &NodeId, epoch: Epoch, how: Ended, now: Instant) -> Applied {
        if self.get(node).is_some_and(|record| record.profile.holder == self.inner.me) {
            return Applied::Stale;
        }
        self.hear_end(node, epoch, how, now)
    }

    fn hear_end(&self, node: &NodeId, epoch: Epoch, how: Ended, now: Instant) -> Applied {
        let stamp = over(epoch);
        let inner = &*self.inner;
        let has_room = inner.nodes.len() < NODES_MAX;
        let left = Known::Left { stamp, at: now, how };
        let before = match inner.nodes.entry(node.clone()) {
            Slot::Vacant(_) if !has_room => return Applied::TooMany,
            Slot::Vacant(slot) => {
                slot.insert(left);
                None
            }
            Slot::Occupied(mut slot) => {
                let last = match slot.get() {
                    Known::Here(entry) => Stamp { epoch: entry.epoch, version: Version::new(0) },
                    Known::Left { stamp, .. } => *stamp,
                };
                if stamp <= last {
                    return Applied::Stale;
                }
                slot.insert(left).entry().cloned()
            }
        };
        if let Some(entry) = before {
            inner.depart(&entry, how);
            inner.index_is_old.notify_one();
        }
        Applied::New
    }

    /// Whether all nodes that the bus knows were loaded, and nothing may have been missed since. Until then a node that is
    /// not known here may be one all the same; and so may one whose record could not be read, see [`Self::is_nowhere`].
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.inner.is_loaded.load(SeqCst)
    }

    /// All nodes were loaded, or something may have been missed.
    pub fn loaded(&self, is_loaded: bool) {
        self.inner.is_loaded.store(is_loaded, SeqCst);
    }

    /// A node's record was asked for and is not there. That is evidence only if nothing was heard of it for
    /// [`NodeTimeouts::offline`] while it would have been heard; and of this instance's own nodes their sockets say more. True
    /// if it is lost, or at least not on this bus any more. Where all instances were on this bus for as long, the next look at
    /// that says whether they still were when the node had been silent for so long: the node stays until then.
    pub fn absent(&self, node: &NodeId, now: Instant, hearing: Hearing) -> bool {
        let inner = &*self.inner;
        let offline = inner.timeouts.offline;
        let is_evidence = |heard: Option<Duration>| heard.is_some_and(|heard| heard >= offline);
        if !is_evidence(hearing.bus) {
            return false;
        }
        let is_joined = is_evidence(hearing.all.map(|all| all + hearing.all_ago));
        let how = if is_joined { Ended::Lost } else { Ended::Unseen };
        let lost = {
            let Slot::Occupied(mut slot) = inner.nodes.entry(node.clone()) else { return false };
            let Known::Here(entry) = slot.get() else { return false };
            let mut last = entry.last_update();
            last.compared = now;
            let silent = now.duration_since(last.heard);
            drop(last);
            let is_sure = !is_joined || is_evidence(hearing.all) && silent >= offline + hearing.all_ago;
            if entry.profile.holder == inner.me || silent < offline || !is_sure {
                return false;
            }
            let stamp = entry.stamp();
            slot.insert(Known::Left { stamp, at: now, how }).entry().cloned()
        };
        if let Some(entry) = &lost {
            inner.depart(entry, how);
            inner.index_is_old.notify_one();
        }
        lost.is_some()
    }

    /// Finds the nodes of other instances that missed two heartbeats, and whether records are missing; forgets those that left
    /// long ago. While the link is down, or has not been up for as long, nobody missed anything.
    pub fn sweep(&self, now: Instant, link_up_for: Option<Duration>) {
        let inner = &*self.inner;
        let remembered = left_remembered(inner.timeouts.offline);
        let mut has_unwritten = false;
        inner.nodes.retain(|_, known| match known {
            Known::Left { at, .. } => now.duration_since(*at) < remembered,
            Known::Here(entry) => {
                let silence = silence_max(entry.profile.heartbeat_ms);
                has_unwritten |=
                    entry.unwritten_since().is_some_and(|since| now.duration_since(since) > silence);
                let is_silent = entry.profile.holder != inner.me
                    && link_up_for.is_some_and(|up| up > silence)
                    && now.duration_since(entry.last_update().heard) > silence;
                if is_silent && !entry.is_silent() {
                    inner.fall_silent(entry);
                }
                true
            }
        });
        inner.look_for_missing_records(has_unwritten);
    }

    /// `there` are the other instances that show themselves on the bus now, and may live by the ledger. The nodes of an instance
    /// that has been missing for [`ABSENT_AFTER_MS`] get no new work until it shows itself again.
    pub fn found_there(&self, there: &HashSet<InstanceId>, now: Instant) {
        let inner = &*self.inner;
        let (entries, before) = (self.entries(), inner.missing.lock().clone());
        let mut missing: HashMap<InstanceId, Missing> = HashMap::new();
        for entry in &entries {
            let holder = &entry.profile.holder;
            if *holder != inner.me && !there.contains(holder) && !missing.contains_key(holder) {
                let since = before.get(holder).map_or(now, |missing| missing.since);
                let is_absent = now.duration_since(since) >= Duration::from_millis(ABSENT_AFTER_MS);
                if is_absent && !before.get(holder).is_some_and(|missing| missing.is_absent) {
                    tracing::info!(
                        %holder,
                        "an instance shows no presence, or has ended by the ledger; its nodes get no work"
                    );
                }
                missing.insert(holder.clone(), Missing { since, is_absent });
            }
        }
        let is_there = |entry: &Entry| missing.get(&entry.profile.holder).is_none_or(|it| !it.is_absent);
        for entry in &entries {
            inner.holder_is_there(entry, is_there(entry));
        }
        *inner.missing.lock() = missing;
    }

    /// Whether an instance is to get what is for its nodes: unless it was found not to be there, which is looked at twice a
    /// second while the bus answers.
    #[must_use]
    pub fn is_there(&self, holder: &InstanceId) -> bool {
        self.inner.is_there(holder)
    }

    /// Whether the bus answers. While it does not, only this instance's own nodes are selected.
    pub fn link(&self, is_up: bool) {
        if self.inner.is_alone.swap(!is_up, SeqCst) && is_up {
            self.inner.openings.send_replace(());
        }
    }

    /// This instance freed one slot of a node, whatever the next update says.
    pub fn freed(&self, node: &NodeId, epoch: Epoch) {
        if let Some(entry) = self.inner.connection(node, epoch) {
            entry.freed();
            self.inner.refresh(&entry);
        }
    }

    /// One reservation of this instance was taken back at the bus: a node that had been full may be tried again.
    pub fn unreserved(&self, node: &NodeId) {
        if let Some(entry) = self.inner.here(node) {
            entry.unreserved();
            self.inner.refresh(&entry);
        }
    }

    /// A node that was found full may be tried again.
    pub fn clear_full(&self, node: &NodeId) {
        if let Some(entry) = self.inner.here(node) {
            entry.clear_full();
            self.inner.refresh(&entry);
        }
    }

    /// Tells the others how a node of this instance is by its own count, without waiting for a heartbeat.
    pub fn tell_of(&self, node: &NodeId, epoch: Epoch) {
        if let Some(entry) = self.inner.connection(node, epoch) {
            let update = NodeUpdate::of(&entry.record());
            drop(entry);
            self.inner.tell(update);
        }
    }

    /// Notified when a slot may have come free.
    #[must_use]
    pub fn openings(&self) -> watch::Receiver<()> {
        self.inner.openings.subscribe()
    }

    /// Subscribes to every end of a connection. A subscriber that is too slow learns that it missed some.
    #[must_use]
    pub fn departures(&self) -> broadcast::Receiver<Departure> {
        self.inner.departures.subscribe()
    }

    /// A node, as it is known now.
    #[must_use]
    pub fn get(&self, node: &NodeId) -> Option<Record> {
        self.inner.here(node).map(|entry| entry.record())
    }

    /// Whether the node has left for a newer connection that was not heard of yet, less than [`NodeTimeouts::offline`] before
    /// `now`.
    #[must_use]
    pub fn is_moving(&self, node: &NodeId, now: Instant) -> bool {
        let known = self.inner.nodes.get(node);
        known.is_some_and(|known| known.is_moving(now, self.inner.timeouts.offline))
    }

    /// When the last news of a node came, be it a heartbeat that reported nothing new; `None` for one that is not known.
    #[must_use]
    pub fn heard_at(&self, node: &NodeId) -> Option<Instant> {
        self.inner.here(node).map(|entry| entry.last_update().heard)
    }

    /// Up to `limit` nodes after this one, sorted by id. Those that came in the last moment may be missing.
    #[must_use]
    pub fn list(&self, after: Option<&NodeId>, limit: usize) -> Vec<Record> {
        let index = self.inner.index.load();
        let first = after.map_or(0, |after| index.nodes.partition_point(|e| e.profile.node <= *after));
        index.nodes[first..].iter().filter(|e| !e.is_ended()).take(limit).map(|e| e.record()).collect()
    }

    /// How many slots of all nodes that are known are taken, and how many there are.
    #[must_use]
    pub fn slots(&self) -> (u64, u64) {
        let index = self.inner.index.load();
        let here = index.nodes.iter().filter(|entry| !entry.is_ended()).map(|entry| entry.status());
        here.fold((0, 0), |(used, all), status| {
            (used + u64::from(status.used.min(status.capacity)), all + u64::from(status.capacity))
        })
    }

    /// Whether the nodes whose sockets are on this instance have so many slots, taken or not.
    #[must_use]
    pub fn has_slots_here(&self, count: u64) -> bool {
        let index = self.inner.index.load();
        let own = index.nodes.iter().enumerate().filter(|(position, _)| index.own.contains(*position));
        let mut slots = 0;
        own.filter(|(_, entry)| entry.takes_work()).any(|(_, entry)| {
            slots += u64::from(entry.status().capacity);
            slots >= count
        })
    }

    /// How many nodes are known.
    #[must_use]
    pub fn count(&self) -> usize {
        self.inner.nodes.iter().filter(|known| known.entry().is_some()).count()
    }

    fn entries(&self) -> Vec<Arc<Entry>> {
        self.inner.nodes.iter().filter_map(|known| known.entry().cloned()).collect()
    }
}

/// Whatever version of the connection comes later, it is over.
const fn over(epoch: Epoch) -> Stamp {
    Stamp { epoch, version: Version::new(u64::MAX) }
}

impl Known {
    fn entry(&self) -> Option<&Arc<Entry>> {
        match self {
            Self::Here(entry) => Some(entry),
            Self::Left { .. } => None,
        }
    }

    /// Whether it has left for a newer connection that was not heard of yet, less than `offline` before `now`.
    fn is_moving(&self, now: Instant, offline: Duration) -> bool {
        match self {
            Self::Left { at, how: Ended::Replaced, .. } => now.saturating_duration_since(*at) < offline,
            Self::Left { .. } | Self::Here(_) => false,
        }
    }
}

impl Inner {
    /// The node, if it is here. It neither leaves nor connects anew as long as this is held.
    fn here(&self, node: &NodeId) -> Option<MappedRef<'_, NodeId, Known, Arc<Entry>>> {
        self.nodes.get(node)?.try_map(Known::entry).ok()
    }

    /// The same, if this is its connection.
    fn connection(&self, node: &NodeId, epoch: Epoch) -> Option<MappedRef<'_, NodeId, Known, Arc<Entry>>> {
        self.here(node).filter(|entry| entry.epoch == epoch)
    }

    fn entry(&self, record: Record, heard: Instant, now: Instant) -> Arc<Entry> {
        let is_there = self.is_there(&record.profile.holder);
        let entry = Entry::new(record, heard, now);
        entry.holder_is_there(is_there);
        Arc::new(entry)
    }

    /// Whether a node may be added that is not known. Where there is no room, those that left first are forgotten, but for
    /// those that are moving: their owners would take them for gone.
    fn make_room(&self, node: &NodeId, now: Instant) -> bool {
        if self.nodes.len() < NODES_MAX || self.nodes.contains_key(node) {
            return true;
        }
        let mut full_at = self.full_at.lock();
        // Others may have made room meanwhile.
        if self.nodes.len() < NODES_MAX {
            return true;
        }
        let full_for = Duration::from_millis(FULL_MS);
        if full_at.is_some_and(|at| now.saturating_duration_since(at) < full_for) {
            return false;
        }
        let mut left = Vec::new();
        for known in &self.nodes {
            if let Known::Left { at, .. } = known.value()
                && !known.is_moving(now, self.timeouts.offline)
            {
                left.push((*at, known.key().clone()));
            }
        }
        left.sort_unstable_by_key(|(at, _)| *at);
        left.truncate(LEFT_FORGOTTEN_AT_ONCE);
        for (_, node) in &left {
            self.nodes.remove_if(node, |_, known| {
                matches!(known, Known::Left { .. }) && !known.is_moving(now, self.timeouts.offline)
            });
        }
        *full_at = left.is_empty().then_some(now);
        !left.is_empty()
    }

    /// A node has changed: updates the index, and, if the node is open again, notifies those who wait for a slot.
    pub(crate) fn refresh(&self, entry: &Arc<Entry>) {
        if self.index.load().refresh_entry(entry) {
            self.openings.send_replace(());
        }
    }

    fn depart(&self, entry: &Arc<Entry>, how: Ended) {
        entry.end();
        self.refresh(entry);
        let Profile { node, holder, .. } = &*entry.profile;
        let (node, holder) = (node.clone(), holder.clone());
        let (changed, by) = (node.clone(), holder.clone());
        // Nobody may be listening.
        let _ = self.changes.send(NodeChange { node: changed, holder: by, what: Changed::Ended(how) });
        let _ = self.departures.send(Departure { node, holder, epoch: entry.epoch, how });
    }

    fn is_there(&self, holder: &InstanceId) -> bool {
        !self.missing.lock().get(holder).is_some_and(|missing| missing.is_absent)
    }
}

#[cfg(test)]
impl Registry {
    /// Does this while every lock that a writer takes is held.
    pub(crate) fn while_all_locks_are_held(&self, work: impl FnOnce()) {
        let inner = &*self.inner;
        let entries = self.entries();
        let _update: Vec<_> = entries.iter().map(|entry| entry.last_update()).collect();
        let (_pools, _outbox, _missing) = (inner.pools.lock(), inner.outbox(), inner.missing.lock());
        let (_pauses, _full_at, _unread) = (inner.pauses.lock(), inner.full_at.lock(), inner.unread.lock());
        let _building = inner.building.lock();
        // A guard for writing in every shard that holds a node; a shard that is locked has one already.
        let shards = entries.iter().map(|entry| inner.nodes.try_get_mut(&entry.profile.node));
        let _shards: Vec<_> = shards.filter(|tried| tried.is_present()).collect();
        work();
    }
}

#[cfg(test)]
mod tests;
