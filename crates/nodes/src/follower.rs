//! The follower keeps the registry up to date with the bus, and publishes this instance's changes.
//!
//! It subscribes before it loads, so that it misses no change in between. If a notice was lost or the link
//! was down, it finds the changes by comparing versions each second: each instance lists the nodes that it
//! holds, and the others read the lists of all instances with presence. Nodes of an instance without presence, or of one that
//! has ended by the ledger, get no work. A record that cannot be read keeps no other from being read, and is tried again with
//! each comparison.
//! The follower never blocks a selection: it writes to the registry like any other writer.

use std::collections::HashSet;
use std::time::Duration;

use bus::{Event, Link, ListChange};
use domain::{InstanceId, NodeId};
use panic_guard::again_after_panics;
use parking_lot::Mutex;
use rand::RngExt;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::limits::{
    COMPARISON_MS, FULL_LOOK_MS, INDEX_PAUSE_MS, LISTING_MS, NODE_UPDATES_GATHERED_MS, NODE_UPDATES_MAX,
    NODES_MAX, PRESENCE_LOOK_MS, RECORDS_COMPARED_MAX, RECORDS_READ_MAX, RETRY_PAUSE_MS,
};
use crate::listing::Listing;
use crate::node_update::{self, NodeUpdate};
use crate::record::Applied;
use crate::registry::Registry;
use crate::source::{Kept, Notices, SourceHandle};

/// The running follower.
#[derive(Debug)]
pub struct Follower {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
    loaded: watch::Receiver<bool>,
}

impl Follower {
    /// Starts to follow. The registry is of no use before it was [`Self::loaded`].
    #[must_use]
    pub fn start(registry: Registry, source: SourceHandle) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (has_loaded, loaded) = watch::channel(false);
        let following = Following { registry, source, wishes: Wishes::default(), has_loaded };
        Self { stop, task: tokio::spawn(following.run(stopped)), loaded }
    }

    /// Comes back when all nodes were loaded for the first time.
    pub async fn loaded(&mut self) {
        // A follower that died has nothing more to load; the task that stops it learns of the death.
        let _ = self.loaded.wait_for(|loaded| *loaded).await;
    }

    /// Publishes the remaining changes, and stops.
    pub async fn stop(self) {
        // It may have died; that is logged below.
        let _ = self.stop.send(());
        if let Err(error) = self.task.await {
            tracing::error!(%error, "the follower of the nodes had panicked");
        }
    }
}

struct Following {
    registry: Registry,
    source: SourceHandle,
    wishes: Wishes,
    has_loaded: watch::Sender<bool>,
}

/// What is to be read from the bus.
#[derive(Debug, Default)]
struct Wishes {
    wanted: Mutex<Wanted>,
    woken: Notify,
}

#[derive(Debug, Default)]
struct Wanted {
    /// Everything: some notices were missed.
    all: bool,
    nodes: HashSet<NodeId>,
    /// When the first of them was asked for.
    since: Option<Instant>,
}

impl Wishes {
    fn all(&self) {
        self.wanted.lock().all = true;
        self.woken.notify_one();
    }

    fn one(&self, node: NodeId) {
        let mut wanted = self.wanted.lock();
        if wanted.nodes.len() < NODES_MAX {
            wanted.nodes.insert(node);
            wanted.since.get_or_insert_with(Instant::now);
        }
        drop(wanted);
        self.woken.notify_one();
    }

    fn take(&self) -> Wanted {
        std::mem::take(&mut *self.wanted.lock())
    }
}

impl Following {
    async fn run(self, stopped: oneshot::Receiver<()>) {
        tokio::select! {
            _ = stopped => {}
            () = again_after_panics("the follower of the nodes", || self.follow()) => {}
        }
        self.tell_waiting().await;
        // Nobody reads the list of an instance that is gone; it is taken away all the same.
        if let Err(error) = self.source.list(&ListChange { is_anew: true, ..ListChange::default() }).await {
            tracing::debug!(%error, "this instance's list of nodes was not removed; it expires");
        }
    }

    /// Follows. A panic interrupts that for a moment, after which all is read again.
    async fn follow(&self) {
        let notices = self.source.listen();
        self.miss();
        tokio::select! {
            () = self.hear(notices) => {}
            () = self.read() => {}
            () = self.compare() => {}
            () = self.watch_holders() => {}
            () = self.look_at_full() => {}
            () = self.tell() => {}
            () = self.list() => {}
            () = self.follow_link() => {}
            () = self.keep_index() => {}
        }
    }

    async fn hear(&self, mut notices: Box<dyn Notices>) {
        while let Some(event) = notices.next().await {
            match event {
                Event::Message(notice) => self.take_notice(&notice),
                Event::Resumed | Event::Lagged { .. } => self.miss(),
            }
        }
        // The bus was closed: what is known stays, until the follower is stopped.
        std::future::pending().await
    }

    /// Something may have been missed: all is read again.
    fn miss(&self) {
        let mut wanted = self.wishes.wanted.lock();
        wanted.all = true;
        self.registry.loaded(false);
        drop(wanted);
        self.wishes.woken.notify_one();
    }

    /// All is read, unless something was missed meanwhile.
    fn read_all(&self) {
        let wanted = self.wishes.wanted.lock();
        if !wanted.all {
            self.registry.loaded(true);
        }
    }

    fn take_notice(&self, notice: &[u8]) {
        let arrived = Instant::now();
        let Some(updates) = node_update::read(notice) else {
            tracing::warn!(
                bytes = notice.len(),
                "a notice about nodes cannot be read; all nodes are read again"
            );
            return self.miss();
        };
        let mut counts = [0; RESULTS.len()];
        for update in &updates {
            let applied = self.registry.hear(update, arrived.into_std());
            counts[result_of(applied)] += 1;
            if applied == Applied::Unknown {
                self.wishes.one(update.node.clone());
            }
        }
        count(counts);
        lagged(arrived);
    }

    /// Reads what is asked for, a batch at a time. What cannot be read stays asked for.
    async fn read(&self) {
        loop {
            self.wishes.woken.notified().await;
            let Wanted { all, mut nodes, since } = self.wishes.take();
            let read = async {
                if all {
                    let there = self.look_for_holders().await?;
                    nodes.extend(self.source.listed(&there).await?.into_keys());
                    nodes.extend(self.registry.held_by_others());
                }
                self.look_up(&Vec::from_iter(nodes.iter().cloned())).await
            };
            match read.await {
                Ok(()) => {
                    if let Some(since) = since {
                        lagged(since);
                    }
                    if all && !*self.has_loaded.borrow() {
                        self.registry.reindex();
                        self.has_loaded.send_replace(true);
                    }
                    if all {
                        self.read_all();
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "nodes could not be read; trying again");
                    nodes.into_iter().for_each(|node| self.wishes.one(node));
                    if all {
                        self.wishes.all();
                    }
                    pause(RETRY_PAUSE_MS).await;
                }
            }
        }
    }

    /// Each second: who is silent, which instances show themselves, whose version is not the listed one, who is lost.
    async fn compare(&self) {
        loop {
            pause(COMPARISON_MS).await;
            let now = Instant::now().into_std();
            self.registry.sweep(now, self.up_for(now));
            metrics::gauge!("fencepost_registry_nodes").set(self.registry.count() as f64);
            // Also while nothing is heard: then this alone keeps the registry.
            if !*self.source.answers().borrow() {
                continue;
            }
            let compared = async {
                let there = self.look_for_holders().await?;
                let listed = self.source.listed(&there).await?;
                let recent = Duration::from_millis(COMPARISON_MS);
                let nodes = self.registry.to_compare(&listed, now, recent, RECORDS_COMPARED_MAX);
                self.look_up(&nodes).await?;
                self.registry.tried_again(now);
                Ok::<_, bus::Error>(())
            };
            if let Err(error) = compared.await {
                tracing::debug!(%error, "the versions of nodes could not be compared");
            }
        }
    }

    /// Twice a second: which instances are there.
    async fn watch_holders(&self) {
        loop {
            pause(PRESENCE_LOOK_MS).await;
            if *self.source.answers().borrow()
                && let Err(error) = self.look_for_holders().await
            {
                tracing::debug!(%error, "the presence of the other instances could not be read");
            }
        }
    }

    /// Notes which other instances show themselves, and answers them: those that are live by the ledger, as it was read
    /// last, and those that hold nodes.
    async fn look_for_holders(&self) -> bus::Result<Vec<InstanceId>> {
        let (asked, me) = (Instant::now().into_std(), self.registry.me());
        let mut instances = self.registry.holders();
        instances.extend(self.source.instances());
        instances.insert(me.clone());
        let mut there = self.source.present(&Vec::from_iter(instances)).await?;
        // A bus that does not even show this instance has lost its memory, and is no evidence.
        if there.remove(me) {
            self.registry.found_there(&there, asked);
        }
        Ok(there.into_iter().collect())
    }

    /// Reads the nodes of other instances that were found full and were not updated since: the notice of a
    /// freed slot may have been lost.
    async fn look_at_full(&self) {
        loop {
            pause(FULL_LOOK_MS).await;
            let now = Instant::now().into_std();
            let full = self.registry.found_full(now, Duration::from_millis(FULL_LOOK_MS));
            if !full.is_empty()
                && let Err(error) = self.look_up(&full).await
            {
                tracing::debug!(%error, "nodes that were full could not be read");
            }
        }
    }

    /// Reads these records. Those that cannot be read while the bus answers are noted as such.
    async fn look_up(&self, nodes: &[NodeId]) -> bus::Result<()> {
        for batch in nodes.chunks(RECORDS_READ_MAX) {
            let begun = Instant::now();
            let asked = begun.into_std();
            let read = self.source.read(batch).await;
            let mut counts = [0; RESULTS.len()];
            for (node, kept) in batch.iter().zip(read) {
                // By the time of asking: an answer that took long says nothing about the time since.
                let applied = match kept {
                    Ok(Kept::Online { record, age }) => {
                        self.registry.apply(record, asked.checked_sub(age).unwrap_or(asked), asked)
                    }
                    Ok(Kept::Offline { epoch }) => self.registry.hear_leave(node, epoch, asked),
                    Ok(Kept::Absent) => {
                        if self.registry.absent(node, asked, self.source.hearing().before(begun.elapsed())) {
                            tracing::warn!(%node, "no update of a node arrives any more");
                        }
                        continue;
                    }
                    Err(error) if !*self.source.answers().borrow() => return Err(error),
                    Err(error) => {
                        tracing::debug!(%error, %node, "a node's record could not be read");
                        self.registry.unread(node, asked);
                        continue;
                    }
                };
                counts[result_of(applied)] += 1;
            }
            count(counts);
        }
        Ok(())
    }

    /// Tells what this instance wrote, gathered for a moment.
    async fn tell(&self) {
        loop {
            // First what was left when a panic interrupted this: nothing wakes for it again.
            while !self.tell_waiting().await {
                pause(RETRY_PAUSE_MS).await;
            }
            self.registry.outbox_filled().await;
            tokio::time::sleep(Duration::from_millis(NODE_UPDATES_GATHERED_MS)).await;
        }
    }

    /// Whether all that waited was published.
    async fn tell_waiting(&self) -> bool {
        loop {
            let updates = self.registry.take_outbox(NODE_UPDATES_MAX);
            if updates.is_empty() {
                return true;
            }
            let mut taken = Taken { registry: &self.registry, updates };
            if let Err(error) = self.source.tell(&node_update::write(&taken.updates)).await {
                tracing::debug!(%error, "changes of nodes could not be published");
                return false;
            }
            taken.updates.clear();
        }
    }

    /// Keeps the list of the nodes that this instance holds, for those who load them all or compare versions.
    async fn list(&self) {
        let mut listing = Listing::default();
        loop {
            if let Err(error) = self.write_list(&mut listing).await {
                tracing::debug!(%error, "the list of this instance's nodes could not be written");
                listing.lost();
            }
            pause(LISTING_MS).await;
        }
    }

    async fn write_list(&self, listing: &mut Listing) -> bus::Result<()> {
        let held = self.registry.held_here();
        for step in listing.steps(&held) {
            if self.source.list(&step.change()).await? != step.names {
                tracing::debug!("the list of this instance's nodes was lost and is written again");
                listing.lost();
                return Ok(());
            }
        }
        listing.written(held);
        Ok(())
    }

    async fn follow_link(&self) {
        let mut answers = self.source.answers();
        loop {
            let is_answered = *answers.borrow_and_update();
            self.registry.link(is_answered);
            if answers.changed().await.is_err() {
                // The bus was closed.
                self.registry.link(false);
                std::future::pending::<()>().await;
            }
        }
    }

    async fn keep_index(&self) {
        loop {
            self.registry.index_is_old().await;
            let registry = self.registry.clone();
            if let Err(error) = tokio::task::spawn_blocking(move || registry.reindex()).await {
                tracing::error!(%error, "the index of nodes could not be rebuilt");
            }
            tokio::time::sleep(Duration::from_millis(INDEX_PAUSE_MS)).await;
        }
    }

    /// How long the bus could be reached without a break until then.
    fn up_for(&self, now: std::time::Instant) -> Option<Duration> {
        match *self.source.link().borrow() {
            Link::Up { since } => Some(now.saturating_duration_since(since)),
            Link::Down { .. } => None,
        }
    }
}

/// What is being published. What is left of it is put back, also when the wait for the bus is given up.
struct Taken<'r> {
    registry: &'r Registry,
    updates: Vec<NodeUpdate>,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.registry.put_back(std::mem::take(&mut self.updates));
    }
}

/// The result label of an update of a node: known from the notice, nothing new, or to be read.
const RESULTS: [&str; 3] = ["hit", "stale", "miss"];

const fn result_of(applied: Applied) -> usize {
    match applied {
        Applied::New | Applied::Repeated => 0,
        Applied::Stale => 1,
        Applied::Unknown | Applied::TooMany => 2,
    }
}

fn count(counts: [u64; RESULTS.len()]) {
    for (result, count) in RESULTS.into_iter().zip(counts) {
        if count > 0 {
            metrics::counter!("fencepost_registry_cache_total", "result" => result).increment(count);
        }
    }
}

/// The time from the arrival of an update until it is applied.
fn lagged(since: Instant) {
    metrics::histogram!("fencepost_registry_lag_seconds").record(since.elapsed());
}

/// This time with jitter, so that instances that started together do not stay in step.
async fn pause(mean_ms: u64) {
    let ms = rand::rng().random_range(mean_ms * 3 / 4..=mean_ms * 5 / 4);
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

#[cfg(test)]
mod tests;
