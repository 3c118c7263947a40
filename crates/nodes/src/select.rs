//! Which node gets a job: first a pool that serves it, then the better of two random nodes of that pool. Nodes whose
//! sockets this instance holds come first: a job for one of them and its result cross no other instance.
//!
//! A selection reads the index and the nodes' atomics. It takes no lock, waits for no writer, asks nobody and, in the
//! common case, allocates nothing. What it knows may be a heartbeat old: the reservation at the bus decides, and a
//! refusal there costs another selection.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

use bus::Epoch;
use domain::job::Requirements;
use domain::limits::JOB_LABELS_MAX;
use domain::{InstanceId, NodeId, PoolName};
use rand::seq::IteratorRandom;
use rand::{Rng, RngExt};

use crate::entry::Entry;
use crate::index::{Index, Serving, Set};
use crate::limits::{CLAIMS_MAX, SELECTIONS_PER_SAMPLE};
use crate::record::Profile;
use crate::registry::{Inner, Registry};

/// What is asked of a selection.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// What the job needs.
    pub needs: &'a Requirements,
    /// Nodes that are not to be chosen, a few: those that were tried.
    pub excluded: &'a [NodeId],
    /// The node to take if it can be had: the one that a session used last, or whose slot came free.
    pub preferred: Option<&'a NodeId>,
    /// The pool to try first.
    pub preferred_pool: Option<&'a PoolName>,
}

impl<'a> Wanted<'a> {
    /// Any node that meets these needs.
    #[must_use]
    pub const fn new(needs: &'a Requirements) -> Self {
        Self { needs, excluded: &[], preferred: None, preferred_pool: None }
    }
}

/// The node that was chosen. One of its slots counts as taken in this instance from the choice on; dropping it gives
/// the slot back.
#[derive(Debug)]
pub struct Choice {
    inner: Arc<Inner>,
    entry: Arc<Entry>,
    pool: PoolName,
    is_reserved: bool,
}

impl Choice {
    /// The node.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.entry.profile.node
    }

    /// The instance that holds its socket.
    #[must_use]
    pub fn holder(&self) -> &InstanceId {
        &self.entry.profile.holder
    }

    /// Everything that stays the same while its connection lives.
    #[must_use]
    pub fn profile(&self) -> &Profile {
        &self.entry.profile
    }

    /// Which connection of the node.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.entry.epoch
    }

    /// The pool in which it was found.
    #[must_use]
    pub fn pool(&self) -> &PoolName {
        &self.pool
    }

    /// Whether a quarter of the node's slots at least were free at its last update.
    #[must_use]
    pub fn had_much_room(&self) -> bool {
        self.entry.had_much_room()
    }

    /// The slot was reserved at the bus. It counts here until the node's next update, which includes it.
    pub fn reserved(mut self) {
        self.is_reserved = true;
    }

    /// The bus had no free slot: this instance does not try the node again before its next update.
    pub fn found_full(self) {
        self.entry.found_full();
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        self.entry.end_claim(self.is_reserved);
        self.inner.refresh(&self.entry);
    }
}

impl Registry {
    /// Chooses a node that is open for work, if there is one.
    pub fn select(&self, wanted: &Wanted<'_>, rng: &mut impl Rng) -> Option<Choice> {
        if !rng.next_u64().is_multiple_of(SELECTIONS_PER_SAMPLE) {
            return self.choose(wanted, rng);
        }
        let began = Instant::now();
        let choice = self.choose(wanted, rng);
        metrics::histogram!("fencepost_node_select_seconds").record(began.elapsed());
        choice
    }

    /// In which pool the node serves such a job, if it would get it had it a free slot.
    #[must_use]
    pub fn serves(&self, node: &NodeId, needs: &Requirements) -> Option<PoolName> {
        if self.inner.awaits_pools.load(SeqCst) {
            return None;
        }
        let index = self.inner.index.load();
        let position = index.position(node).filter(|position| index.nodes[*position].takes_work())?;
        let (pools, wanted) = (Pools::serving(&index, needs)?, Wanted::new(needs));
        let mut entries = (0..pools.len()).map(|place| pools.at(place));
        let is_in = |entry: &PoolEntry| {
            Sieve::new(&index, &wanted, *entry, false).is_some_and(|sieve| sieve.has(position))
        };
        entries.find(is_in).map(|entry| index.pools[entry.pool].name.clone())
    }

    /// A number that rises when the nodes, labels or pools that selections know have changed, or the pauses; never 0. Read
    /// it before a question: the answer may be another one once it has risen.
    #[must_use]
    pub fn index_version(&self) -> u64 {
        self.inner.index_version.load(SeqCst)
    }

    /// Whether a node has what such a job needs, in a pool that serves it and is not paused, be the node full, draining or
    /// silent. The answer changes with [`Self::index_version`] alone.
    #[must_use]
    pub fn may_be_served(&self, needs: &Requirements) -> bool {
        let (index, wanted) = (self.inner.index.load(), Wanted::new(needs));
        let Some(pools) = Pools::serving(&index, needs) else { return false };
        let sieve = |place| Sieve::new(&index, &wanted, pools.at(place), false);
        (0..pools.len()).any(|place| sieve(place).is_some_and(|sieve| sieve.has_any()))
    }

    /// Whether a node of this instance serves such a job, be it full.
    #[must_use]
    pub fn is_served_here(&self, needs: &Requirements) -> bool {
        is_served(&self.inner.index.load(), needs, true, Entry::takes_work)
    }

    /// A random node of another instance that serves such a job, be it full, with the instance that holds its socket.
    pub fn serves_elsewhere(&self, needs: &Requirements, rng: &mut impl Rng) -> Option<(NodeId, InstanceId)> {
        let index = self.inner.index.load();
        let wanted = Wanted::new(needs);
        let elsewhere = serving(&index, &wanted, false)
            .filter(|(position, entry)| !index.own.contains(*position) && entry.takes_work());
        let (_, entry) = elsewhere.choose(rng)?;
        Some((entry.profile.node.clone(), entry.profile.holder.clone()))
    }

    fn choose(&self, wanted: &Wanted<'_>, rng: &mut impl Rng) -> Option<Choice> {
        if self.inner.awaits_pools.load(SeqCst) {
            return None;
        }
        let index = self.inner.index.load();
        let only_own = self.inner.is_alone.load(SeqCst);
        let of = |(pool, position): (usize, usize)| Choice {
            inner: Arc::clone(&self.inner),
            entry: Arc::clone(&index.nodes[position]),
            pool: index.pools[pool].name.clone(),
            is_reserved: false,
        };
        preferred(&index, wanted, only_own).or_else(|| any(&index, wanted, only_own, rng)).map(of)
    }
}

/// Whether a node that is accepted serves such a job; of this instance's own, or of all that are in the index.
pub(crate) fn is_served(
    index: &Index,
    needs: &Requirements,
    only_own: bool,
    accepts: impl Fn(&Entry) -> bool,
) -> bool {
    serving(index, &Wanted::new(needs), only_own).any(|(_, entry)| accepts(entry))
}

/// The nodes that serve what is wanted, be they full, with their positions; once for each pool in which they do.
fn serving<'a>(
    index: &'a Index,
    wanted: &'a Wanted<'a>,
    only_own: bool,
) -> impl Iterator<Item = (usize, &'a Arc<Entry>)> {
    let pools = Pools::serving(index, wanted.needs).into_iter();
    let entries = pools.flat_map(|pools| (0..pools.len()).map(move |place| pools.at(place)));
    let sieves = entries.filter_map(move |entry| Sieve::new(index, wanted, entry, only_own));
    sieves.flat_map(|sieve| index.nodes.iter().enumerate().filter(move |(position, _)| sieve.has(*position)))
}

/// The preferred node, if it can be had.
fn preferred(index: &Index, wanted: &Wanted<'_>, only_own: bool) -> Option<(usize, usize)> {
    let position = index.position(wanted.preferred?)?;
    let pools = Pools::serving(index, wanted.needs)?;
    let sieve = |place| Sieve::new(index, wanted, pools.at(place), only_own);
    let place = (0..pools.len()).find(|place| sieve(*place).is_some_and(|sieve| sieve.holds(position)))?;
    claim(index, position).then(|| (pools.at(place).pool, position))
}

/// A pool by weight, and a node of it; if it has none, one of the next pool that has.
fn any(index: &Index, wanted: &Wanted<'_>, only_own: bool, rng: &mut impl Rng) -> Option<(usize, usize)> {
    let pools = Pools::serving(index, wanted.needs)?;
    let first = pools.preferred(index, wanted.preferred_pool).unwrap_or_else(|| pools.draw(rng));
    for step in 0..pools.len() {
        let entry = pools.at((first + step) % pools.len());
        let Some(sieve) = Sieve::new(index, wanted, entry, only_own) else { continue };
        let prefers_own = !only_own && !index.own.is_empty();
        let own = prefers_own.then(|| Sieve::new(index, wanted, entry, true)).flatten();
        for _ in 0..CLAIMS_MAX {
            // First of all nodes: where none has a free slot, that is one look at each and no more.
            let Some(any) = sieve.better_of_two(rng) else { break };
            let elsewhere = own.as_ref().filter(|_| !index.own.contains(any));
            let position = elsewhere.and_then(|own| own.better_of_two(rng)).unwrap_or(any);
            if claim(index, position) {
                return Some((entry.pool, position));
            }
        }
    }
    None
}

/// Takes a slot of the node, and notes in the index what that leaves of it.
fn claim(index: &Index, position: usize) -> bool {
    let entry = &index.nodes[position];
    let is_granted = entry.claim();
    if !is_granted || !entry.is_open() {
        index.refresh(position);
    }
    is_granted
}

/// A pool that serves the job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolEntry {
    pub(crate) pool: usize,
    /// Only those of its nodes that know the languages of the job's route.
    pub(crate) by_language: bool,
}

/// The pools that serve a job: all of a roster, or the one that it names.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pools<'a> {
    One(PoolEntry),
    Rosters(Serving<'a>),
}

impl<'a> Pools<'a> {
    /// `None` when there is none.
    pub(crate) fn serving(index: &'a Index, needs: &Requirements) -> Option<Self> {
        let serving = index.serving(needs.route.as_ref());
        let pools = match &needs.pool {
            None => Self::Rosters(serving),
            Some(name) => {
                let pool = index.pool(name)?;
                let is_listed = serving.listed.place_of(pool).is_some();
                if !is_listed && serving.by_language.place_of(pool).is_none() {
                    return None;
                }
                Self::One(PoolEntry { pool, by_language: !is_listed })
            }
        };
        (pools.len() > 0).then_some(pools)
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Rosters(Serving { listed, by_language }) => listed.pools.len() + by_language.pools.len(),
        }
    }

    pub(crate) fn at(&self, place: usize) -> PoolEntry {
        match self {
            Self::One(entry) => *entry,
            Self::Rosters(Serving { listed, by_language }) => match place.checked_sub(listed.pools.len()) {
                None => PoolEntry { pool: listed.pools[place], by_language: false },
                Some(place) => PoolEntry { pool: by_language.pools[place], by_language: true },
            },
        }
    }

    /// The place of one of them, each as likely as it weighs.
    fn draw(&self, rng: &mut impl Rng) -> usize {
        let Self::Rosters(Serving { listed, by_language }) = self else { return 0 };
        let weight = rng.random_range(0..listed.weight() + by_language.weight());
        match weight.checked_sub(listed.weight()) {
            None => listed.drawn(weight),
            Some(weight) => listed.pools.len() + by_language.drawn(weight),
        }
    }

    fn preferred(&self, index: &Index, name: Option<&PoolName>) -> Option<usize> {
        let Self::Rosters(Serving { listed, by_language }) = self else { return None };
        let pool = index.pool(name?)?;
        let of_language = || by_language.place_of(pool).map(|place| listed.pools.len() + place);
        listed.place_of(pool).or_else(of_language)
    }
}

/// The sets whose common nodes may be chosen: the pool's, those with each label and language, and those open now.
struct Sieve<'a> {
    index: &'a Index,
    sets: [&'a Set; SETS_MAX],
    count: usize,
    excluded: &'a [NodeId],
}

/// A pool, two languages, this instance's own, and the labels of a job.
const SETS_MAX: usize = 4 + JOB_LABELS_MAX;

impl<'a> Sieve<'a> {
    /// `None` when the pool is paused, when no node has one of the labels or languages, or when more is required than a job
    /// may require.
    fn new(index: &'a Index, wanted: &Wanted<'a>, entry: PoolEntry, only_own: bool) -> Option<Self> {
        let Requirements { route, requires, .. } = wanted.needs;
        if index.pools[entry.pool].is_paused() {
            return None;
        }
        let nodes = &index.pools[entry.pool].nodes;
        let mut sieve = Self { index, sets: [nodes; SETS_MAX], count: 1, excluded: wanted.excluded };
        if requires.len() > JOB_LABELS_MAX {
            return None;
        }
        for label in requires {
            sieve.add(index.labelled(label)?);
        }
        if let (Some(route), true) = (route, entry.by_language) {
            for set in index.fluent(route)? {
                sieve.add(set);
            }
        }
        if only_own {
            sieve.add(&index.own);
        }
        Some(sieve)
    }

    fn add(&mut self, set: &'a Set) {
        self.sets[self.count] = set;
        self.count += 1;
    }

    fn word(&self, word: usize) -> u64 {
        let mut bits = self.index.open_word(word);
        for set in &self.sets[..self.count] {
            if bits == 0 {
                break;
            }
            bits &= set.word(word);
        }
        bits
    }

    fn accepts(&self, position: usize) -> bool {
        self.excluded.is_empty() || !self.excluded.contains(&self.index.nodes[position].profile.node)
    }

    /// Whether it is in all of the sets, open or not.
    fn has(&self, position: usize) -> bool {
        self.sets[..self.count].iter().all(|set| set.contains(position))
    }

    /// Whether a node is in all of the sets, open or not.
    fn has_any(&self) -> bool {
        let sets = &self.sets[..self.count];
        let bits = |word| sets.iter().fold(u64::MAX, |bits, set| bits & set.word(word));
        (0..self.index.words()).any(|word| bits(word) != 0)
    }

    fn holds(&self, position: usize) -> bool {
        self.word(position / 64) >> (position % 64) & 1 == 1 && self.accepts(position)
    }

    /// The one with more free slots among two random nodes.
    fn better_of_two(&self, rng: &mut impl Rng) -> Option<usize> {
        let one = self.pick(None, rng)?;
        let Some(other) = self.pick(Some(one), rng) else { return Some(one) };
        let free = |position: usize| self.index.nodes[position].free();
        Some(if free(other) > free(one) { other } else { one })
    }

    /// The first node from a random place on; among the 64 that share a word, any. A node after a gap is likelier
    /// than others, which is one more reason to pick twice.
    fn pick(&self, not: Option<usize>, rng: &mut impl Rng) -> Option<usize> {
        let words = self.index.words();
        if words == 0 {
            return None;
        }
        let first = rng.random_range(0..self.index.nodes.len()) / 64;
        for word in (first..words).chain(0..first) {
            let mut bits = self.word(word);
            if let Some(not) = not.filter(|not| not / 64 == word) {
                bits &= !(1 << (not % 64));
            }
            while bits != 0 {
                let bit = nth_bit(bits, rng.random_range(0..bits.count_ones()));
                let position = word * 64 + bit;
                if self.accepts(position) {
                    return Some(position);
                }
                bits &= !(1 << bit);
            }
        }
        None
    }
}

/// The place of the bit that has `n` set ones below it.
fn nth_bit(mut bits: u64, n: u32) -> usize {
    for _ in 0..n {
        bits &= bits - 1;
    }
    bits.trailing_zeros() as usize
}

#[cfg(test)]
mod tests;
