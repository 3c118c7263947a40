//! The pools and their pauses, and the index that is built of them and of all nodes.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use domain::{PoolName, PoolPause};

use super::Registry;
use crate::entry::Entry;
use crate::index::Index;
use crate::pools::Pools;
use crate::record::Record;

impl Registry {
    /// These pools are configured, unless newer ones are known.
    pub fn adopt_pools(&self, pools: Pools) -> bool {
        let mut known = self.inner.pools.lock();
        let is_newer = pools.version() > known.version();
        if is_newer {
            *known = Arc::new(pools);
            self.inner.index_is_old.notify_one();
        }
        is_newer
    }

    /// The pools as they are configured.
    #[must_use]
    pub fn pools(&self) -> Arc<Pools> {
        Arc::clone(&self.inner.pools.lock())
    }

    /// These pools are paused, and no others. No selection that begins after this chooses a node in one of them. `before` are
    /// the pauses that were known here when the reading of these began: if others became known since, these may be older, and
    /// nothing is changed (`false`).
    pub fn adopt_pauses(&self, before: &Arc<Vec<PoolPause>>, pauses: Vec<PoolPause>) -> bool {
        let inner = &*self.inner;
        let mut known = inner.pauses.lock();
        if !Arc::ptr_eq(&known, before) {
            return false;
        }
        let is_news = **known != pauses;
        // Also where they are the same: a reading that began earlier is told apart by this.
        *known = Arc::new(pauses);
        if is_news {
            inner.index.load().pause(|pool| is_among(pool, &known));
        }
        drop(known);
        if is_news {
            inner.index_version.fetch_add(1, SeqCst);
            // Nodes of a pool that is not paused any more may have free slots.
            inner.openings.send_replace(());
        }
        true
    }

    /// From here on no node is selected before [`Self::pools_are_read`]: an instance that begins does not know which pools there
    /// are, nor which of them are paused.
    pub fn await_pools(&self) {
        self.inner.awaits_pools.store(true, SeqCst);
    }

    /// The pools and the pauses were read and adopted. If they were awaited, nodes are selected from now on.
    pub fn pools_are_read(&self) {
        if self.inner.awaits_pools.load(SeqCst) {
            // The index may be older than the pools.
            self.reindex();
            self.inner.awaits_pools.store(false, SeqCst);
            self.inner.openings.send_replace(());
        }
    }

    /// An index of nodes that this registry does not have, in the pools that it has.
    pub(crate) fn index_of(&self, nodes: Vec<Record>) -> Index {
        let now = Instant::now();
        let entries = nodes.into_iter().map(|node| Arc::new(Entry::new(node, now, now))).collect();
        let index = Index::build(entries, &self.pools(), None);
        let pauses = self.pauses();
        index.pause(|pool| is_among(pool, &pauses));
        index
    }

    /// The pools that are paused.
    #[must_use]
    pub fn pauses(&self) -> Arc<Vec<PoolPause>> {
        Arc::clone(&self.inner.pauses.lock())
    }

    /// Puts all nodes and pools that are known now into the index. A few milliseconds for ten thousand nodes: not
    /// for a thread that others wait for.
    pub fn reindex(&self) {
        let inner = &*self.inner;
        let _building = inner.building.lock();
        let entries = self.entries();
        let index = Arc::new(Index::build(entries, &self.pools(), Some(&inner.me)));
        // With the pauses that are known now, also where others became known while it was built.
        let pauses = inner.pauses.lock();
        // Before anybody selects from it.
        index.pause(|pool| is_among(pool, &pauses));
        inner.index.store(Arc::clone(&index));
        inner.index_version.fetch_add(1, SeqCst);
        drop(pauses);
        // Who changed a node before this index was there noted it in the last one.
        index.refresh_all();
        inner.openings.send_replace(());
    }

    /// Waits until the index lacks something that is known.
    pub async fn index_is_old(&self) {
        self.inner.index_is_old.notified().await;
    }
}

fn is_among(pool: &PoolName, pauses: &[PoolPause]) -> bool {
    pauses.iter().any(|pause| pause.pool == *pool)
}
