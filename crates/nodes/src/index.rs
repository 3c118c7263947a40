//! The immutable index that selections read: which nodes have which label, and which pools serve what.
//!
//! Nodes stand in it by position, and every question is a set of positions: one bit for each node. To select is to
//! go through the words of a few sets at once, so ten thousand nodes are 157 words. The one thing that changes
//! in it is the set of the nodes that are open for work now, kept by those who write.

mod set;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use domain::job::Route;
use domain::{InstanceId, Label, Language, NodeId, PoolName};

use crate::entry::Entry;
use crate::pools::{DEFAULT_POOL, Pool, Pools};
use crate::record::{HEARS, SPEAKS};

use set::Builder;
pub(crate) use set::Set;

/// All nodes and pools at one moment.
#[derive(Debug)]
pub(crate) struct Index {
    /// Sorted by id; a node's position is its place here.
    pub(crate) nodes: Box<[Arc<Entry>]>,
    /// Sorted by name.
    pub(crate) pools: Box<[Members]>,
    /// Those whose sockets this instance holds.
    pub(crate) own: Set,
    labels: HashMap<Label, Arc<Set>>,
    hears: HashMap<Language, Arc<Set>>,
    speaks: HashMap<Language, Arc<Set>>,
    /// All pools, for jobs without a route.
    all: Roster,
    /// The pools that are there for a route.
    routes: HashMap<Route, Roster>,
    /// The pools without routes: they serve any route by their nodes' languages.
    general: Roster,
    nobody: Roster,
    /// Hints, never wrong for longer than a writer takes: which nodes are open for work.
    open: Box<[AtomicU64]>,
}

/// One pool's nodes.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) name: PoolName,
    pub(crate) nodes: Set,
    /// Nothing is dispatched to it.
    is_paused: AtomicBool,
}

impl Members {
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused.load(SeqCst)
    }
}

/// Pools that serve the same, with their weights.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    /// Positions of pools, in order.
    pub(crate) pools: Box<[usize]>,
    /// The sum of the weights up to each, itself included.
    sums: Box<[u64]>,
}

/// The pools that serve a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Serving<'a> {
    /// They are there for its route, or it has none.
    pub(crate) listed: &'a Roster,
    /// They serve its route by their nodes' languages.
    pub(crate) by_language: &'a Roster,
}

impl Roster {
    fn new<'a>(pools: impl Iterator<Item = (usize, &'a Pool)>) -> Self {
        let (pools, weights): (Vec<_>, Vec<_>) = pools.map(|(at, pool)| (at, u64::from(pool.weight))).unzip();
        let sums = weights.iter().scan(0, |sum, weight| {
            *sum += weight;
            Some(*sum)
        });
        Self { sums: sums.collect(), pools: pools.into() }
    }

    pub(crate) fn weight(&self) -> u64 {
        self.sums.last().copied().unwrap_or(0)
    }

    /// Whose share of the weight this is, by its place in the roster.
    pub(crate) fn drawn(&self, weight: u64) -> usize {
        self.sums.partition_point(|sum| *sum <= weight)
    }

    pub(crate) fn place_of(&self, pool: usize) -> Option<usize> {
        self.pools.binary_search(&pool).ok()
    }
}

impl Index {
    pub(crate) fn empty() -> Self {
        Self::build(Vec::new(), &Pools::unconfigured(), None)
    }

    /// An index of these nodes.
    pub(crate) fn build(mut entries: Vec<Arc<Entry>>, pools: &Pools, me: Option<&InstanceId>) -> Self {
        entries.sort_unstable_by(|a, b| a.profile.node.cmp(&b.profile.node));
        let configured = configured(pools);
        let mut own = Builder::default();
        let mut by_label: HashMap<&Label, Builder> = HashMap::new();
        let mut members: Vec<Builder> = configured.iter().map(|_| Builder::default()).collect();
        for (position, entry) in entries.iter().enumerate() {
            if me == Some(&entry.profile.holder) {
                own.insert(position);
            }
            for label in &*entry.profile.labels {
                by_label.entry(label).or_default().insert(position);
            }
            for (pool, members) in configured.iter().zip(&mut members) {
                let everybody = pools.configured().is_empty();
                if everybody || pool.admits(&entry.profile) {
                    members.insert(position);
                }
            }
        }
        let count = entries.len();
        let labels: HashMap<_, _> =
            by_label.into_iter().map(|(label, set)| (label.clone(), Arc::new(set.build(count)))).collect();
        let members = configured.iter().zip(members).map(|(pool, nodes)| Members {
            name: pool.name.clone(),
            nodes: nodes.build(count),
            is_paused: AtomicBool::new(false),
        });
        let mut by_route: HashMap<&Route, Vec<(usize, &Pool)>> = HashMap::new();
        for (at, pool) in configured.iter().enumerate() {
            for route in &pool.routes {
                by_route.entry(route).or_default().push((at, pool));
            }
        }
        let numbered = || configured.iter().enumerate();
        let index = Self {
            pools: members.collect(),
            own: own.build(count),
            hears: by_language(&labels, HEARS),
            speaks: by_language(&labels, SPEAKS),
            all: Roster::new(numbered()),
            routes: by_route
                .into_iter()
                .map(|(route, pools)| (route.clone(), Roster::new(pools.into_iter())))
                .collect(),
            general: Roster::new(numbered().filter(|(_, pool)| pool.routes.is_empty())),
            nobody: Roster::default(),
            open: (0..set::words(count)).map(|_| AtomicU64::new(0)).collect(),
            labels,
            nodes: entries.into(),
        };
        index.refresh_all();
        index
    }

    /// The pools that serve jobs with this route, or jobs without one.
    pub(crate) fn serving(&self, route: Option<&Route>) -> Serving<'_> {
        match route {
            None => Serving { listed: &self.all, by_language: &self.nobody },
            Some(route) => {
                Serving { listed: self.routes.get(route).unwrap_or(&self.nobody), by_language: &self.general }
            }
        }
    }

    /// The nodes with this label; `None` when there is none.
    pub(crate) fn labelled(&self, label: &Label) -> Option<&Set> {
        self.labels.get(label).map(Arc::as_ref)
    }

    /// The nodes that hear the source and those that speak the target; `None` when there is none.
    pub(crate) fn fluent(&self, route: &Route) -> Option<[&Set; 2]> {
        Some([&**self.hears.get(&route.source)?, &**self.speaks.get(&route.target)?])
    }

    pub(crate) fn pool(&self, name: &PoolName) -> Option<usize> {
        self.pools.binary_search_by(|pool| pool.name.cmp(name)).ok()
    }

    pub(crate) fn position(&self, node: &NodeId) -> Option<usize> {
        self.nodes.binary_search_by(|entry| entry.profile.node.cmp(node)).ok()
    }

    pub(crate) fn words(&self) -> usize {
        self.open.len()
    }

    /// One word of the set of nodes that are open.
    pub(crate) fn open_word(&self, word: usize) -> u64 {
        self.open[word].load(SeqCst)
    }

    /// Writes down whether a node is open. True if it was not and is now. Code that changes a node calls this
    /// afterwards.
    pub(crate) fn refresh(&self, position: usize) -> bool {
        let entry = &self.nodes[position];
        let (word, bit) = (&self.open[position / 64], 1 << (position % 64));
        let mut was_opened = false;
        loop {
            let is_open = entry.is_open();
            let before = if is_open { word.fetch_or(bit, SeqCst) } else { word.fetch_and(!bit, SeqCst) };
            was_opened |= is_open && before & bit == 0;
            // Another writer may have changed the node meanwhile and have written its bit before this one.
            if entry.is_open() == is_open {
                return was_opened;
            }
        }
    }

    /// The same for an entry that may have left the index, or not be in it yet; it is then left to the next one.
    pub(crate) fn refresh_entry(&self, entry: &Arc<Entry>) -> bool {
        let position = self.position(&entry.profile.node);
        position.is_some_and(|at| Arc::ptr_eq(&self.nodes[at], entry) && self.refresh(at))
    }

    /// Notes which pools are paused, and no others.
    pub(crate) fn pause(&self, is_paused: impl Fn(&PoolName) -> bool) {
        for pool in &self.pools {
            pool.is_paused.store(is_paused(&pool.name), SeqCst);
        }
    }

    pub(crate) fn refresh_all(&self) {
        for position in 0..self.nodes.len() {
            self.refresh(position);
        }
    }
}

/// The pools there are, sorted by name.
fn configured(pools: &Pools) -> Vec<Pool> {
    let mut list = pools.configured().to_vec();
    if list.is_empty() {
        let name = PoolName::parse(DEFAULT_POOL).expect("it is a good name");
        list.push(Pool { name, routes: Vec::new(), requires: Vec::new(), weight: 1 });
    }
    list.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    list
}

fn by_language(labels: &HashMap<Label, Arc<Set>>, prefix: &str) -> HashMap<Language, Arc<Set>> {
    let language = |label: &Label| Language::parse(label.as_str().strip_prefix(prefix)?).ok();
    labels.iter().filter_map(|(label, set)| Some((language(label)?, Arc::clone(set)))).collect()
}
