//! The node that a selection would choose, and why not the others. It reads every node; for people, not for
//! dispatching.

use std::sync::atomic::Ordering::SeqCst;

use domain::{NodeId, PoolName};
use rand::Rng;

use crate::entry::{Entry, Obstacle};
use crate::index::Index;
use crate::registry::Registry;
use crate::select::{Pools, Wanted};

/// What a selection would choose, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The node, if there is one, and the pool in which it was found.
    pub chosen: Option<(NodeId, PoolName)>,
    /// How many nodes were looked at.
    pub considered: usize,
    /// How many nodes were rejected, by the first reason against each; reasons without a node are left out.
    pub rejected: Vec<(Reason, usize)>,
}

/// Why a node is not chosen, in the order in which it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It is in no pool that serves the job.
    Pool,
    /// It lacks a label or a language.
    Labels,
    /// It could run the job, but each pool where it could is paused.
    Paused,
    /// It was named as not to be chosen.
    Excluded,
    /// Another instance holds its socket, and the bus is away, or that instance does not show itself there.
    Unreachable,
    /// Its connection is over, or its slots are not all known yet.
    NotReady,
    /// It takes no more work.
    Draining,
    /// It missed heartbeats or left dispatches unanswered.
    Unhealthy,
    /// It has no free slot.
    Full,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Pool,
        Self::Labels,
        Self::Paused,
        Self::Excluded,
        Self::Unreachable,
        Self::NotReady,
        Self::Draining,
        Self::Unhealthy,
        Self::Full,
    ];

    /// The name in answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Labels => "labels",
            Self::Paused => "paused",
            Self::Excluded => "excluded",
            Self::Unreachable => "unreachable",
            Self::NotReady => "not_ready",
            Self::Draining => "draining",
            Self::Unhealthy => "unhealthy",
            Self::Full => "full",
        }
    }
}

impl Registry {
    /// Explains what [`Registry::select`] would answer. Takes no slot.
    pub fn explain(&self, wanted: &Wanted<'_>, rng: &mut impl Rng) -> Explanation {
        let index = self.inner.index.load();
        let only_own = self.inner.is_alone.load(SeqCst);
        let mut counts = [0; Reason::ALL.len()];
        for (position, entry) in index.nodes.iter().enumerate() {
            let is_unreachable = only_own && entry.profile.holder != self.inner.me;
            if let Some(reason) = rejected(&index, position, entry, wanted, is_unreachable) {
                counts[reason as usize] += 1;
            }
        }
        let considered = index.nodes.len();
        drop(index);
        let chosen = self.select(wanted, rng).map(|choice| (choice.node().clone(), choice.pool().clone()));
        let rejected = Reason::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect();
        Explanation { chosen, considered, rejected }
    }
}

fn rejected(
    index: &Index,
    position: usize,
    entry: &Entry,
    wanted: &Wanted<'_>,
    is_unreachable: bool,
) -> Option<Reason> {
    let Some(pools) = Pools::serving(index, wanted.needs) else { return Some(Reason::Pool) };
    let places = (0..pools.len()).map(|place| pools.at(place));
    let mut here = places.filter(|of| index.pools[of.pool].nodes.contains(position)).peekable();
    if here.peek().is_none() {
        return Some(Reason::Pool);
    }
    let has_labels = wanted.needs.requires.iter().all(|label| entry.profile.has(label));
    let is_fluent = |by_language: bool| match (&wanted.needs.route, by_language) {
        (Some(route), true) => {
            index.fluent(route).is_some_and(|sets| sets.iter().all(|set| set.contains(position)))
        }
        _ => true,
    };
    // A pause counts only where its end would help.
    let able = here.filter(|of| has_labels && is_fluent(of.by_language));
    let mut pauses = able.map(|of| index.pools[of.pool].is_paused()).peekable();
    if pauses.peek().is_none() {
        return Some(Reason::Labels);
    }
    if pauses.all(|is_paused| is_paused) {
        return Some(Reason::Paused);
    }
    if wanted.excluded.contains(&entry.profile.node) {
        return Some(Reason::Excluded);
    }
    if is_unreachable {
        return Some(Reason::Unreachable);
    }
    entry.obstacle().map(|obstacle| match obstacle {
        Obstacle::Unreachable => Reason::Unreachable,
        Obstacle::NotReady => Reason::NotReady,
        Obstacle::Draining => Reason::Draining,
        Obstacle::Unhealthy => Reason::Unhealthy,
        Obstacle::Full => Reason::Full,
    })
}
