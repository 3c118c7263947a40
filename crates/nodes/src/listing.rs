//! The list of the nodes that this instance holds, as it is kept at the bus: what is to be changed in it. Pure.
//!
//! Other instances read the lists of those that live, and so learn of nodes, and of versions, of which they missed the
//! notices. The bus may lose a list, or carry a change out without an answer; the list is then written anew.

use std::collections::HashMap;

use bus::limits::NODES_LIST_MAX;
use bus::{ListChange, Version};
use domain::NodeId;

/// What the list at the bus names, as far as that is known.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// `None` before the list was written, and when it may be any.
    names: Option<HashMap<NodeId, Version>>,
}

/// One change of the list, which is one call.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Step {
    is_anew: bool,
    held: Vec<(NodeId, Version)>,
    gone: Vec<NodeId>,
    /// How many nodes the list names then.
    pub(crate) names: usize,
}

impl Step {
    pub(crate) fn change(&self) -> ListChange<'_> {
        ListChange { is_anew: self.is_anew, held: &self.held, gone: &self.gone }
    }
}

impl Listing {
    /// What makes the list name exactly these, in this order; one step at least, which makes the list live on.
    pub(crate) fn steps(&self, held: &HashMap<NodeId, Version>) -> Vec<Step> {
        let before = self.names.as_ref();
        let is_known = |(node, version): &(&NodeId, &Version)| {
            before.is_some_and(|names| names.get(*node) == Some(*version))
        };
        let mut new: Vec<_> =
            held.iter().filter(|it| !is_known(it)).map(|(node, version)| (node.clone(), *version)).collect();
        let gone = before.into_iter().flat_map(HashMap::keys).filter(|node| !held.contains_key(*node));
        let mut gone: Vec<_> = gone.cloned().collect();
        let mut names = before.map_or(0, HashMap::len);
        let mut steps = Vec::new();
        while steps.is_empty() || !new.is_empty() || !gone.is_empty() {
            let gone = gone.split_off(gone.len().saturating_sub(NODES_LIST_MAX));
            let held = new.split_off(new.len().saturating_sub(NODES_LIST_MAX - gone.len()));
            let added = held.iter().filter(|(node, _)| !before.is_some_and(|names| names.contains_key(node)));
            names = names - gone.len() + added.count();
            steps.push(Step { is_anew: before.is_none() && steps.is_empty(), held, gone, names });
        }
        steps
    }

    /// The list names exactly these now.
    pub(crate) fn written(&mut self, held: HashMap<NodeId, Version>) {
        self.names = Some(held);
    }

    /// The list may name anything: it is to be written anew.
    pub(crate) fn lost(&mut self) {
        self.names = None;
    }
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;
    use crate::fixture::{node, seeded};

    fn held(names: &[(&str, u64)]) -> HashMap<NodeId, Version> {
        names.iter().map(|(name, version)| (node(name), Version::new(*version))).collect()
    }

    /// What a list names after these steps, each of which must be allowed and expect what becomes of it.
    fn carried_out(mut names: HashMap<NodeId, Version>, steps: &[Step]) -> HashMap<NodeId, Version> {
        for step in steps {
            assert!(step.held.len() + step.gone.len() <= NODES_LIST_MAX);
            if step.is_anew {
                names.clear();
            }
            for gone in &step.gone {
                names.remove(gone);
            }
            names.extend(step.held.iter().cloned());
            assert_eq!(names.len(), step.names);
        }
        names
    }

    #[test]
    fn at_first_and_after_a_loss_all_is_written_anew() {
        let (mut listing, now) = (Listing::default(), held(&[("n", 1), ("m", 2)]));
        for _ in 0..2 {
            let steps = listing.steps(&now);
            assert!(steps.len() == 1 && steps[0].is_anew);
            assert_eq!(carried_out(held(&[("stale", 9)]), &steps), now);
            listing.written(now.clone());
            listing.lost();
        }
    }

    #[test]
    fn only_what_changed_is_written() {
        let mut listing = Listing::default();
        listing.written(held(&[("same", 1), ("newer", 2), ("gone", 3)]));
        let steps = listing.steps(&held(&[("same", 1), ("newer", 4), ("added", 5)]));
        let [Step { is_anew: false, held: new, gone, names: 3 }] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(new.iter().cloned().collect::<HashMap<_, _>>(), held(&[("newer", 4), ("added", 5)]));
        assert_eq!(gone, &[node("gone")]);
    }

    #[test]
    fn a_list_in_which_nothing_changed_is_told_to_live_on() {
        let mut listing = Listing::default();
        assert_eq!(listing.steps(&held(&[])), [Step { is_anew: true, ..Step::default() }]);
        listing.written(held(&[("n", 1)]));
        assert_eq!(listing.steps(&held(&[("n", 1)])), [Step { names: 1, ..Step::default() }]);
    }

    #[test]
    fn whatever_changed_the_list_names_what_is_held_after_steps_of_a_bounded_size() {
        let mut rng = seeded();
        let mut some = |count: usize| {
            let mut one = |_| {
                let name = format!("n{}", rng.random_range(0..5_000));
                (node(&name), Version::new(rng.random_range(0..3)))
            };
            (0..count).map(&mut one).collect::<HashMap<_, _>>()
        };
        let (mut listing, mut names) = (Listing::default(), some(10));
        for count in [3_000, 0, 1, 5_000, 2_500, 2_500, 999, 1_000, 1_001, 4_000] {
            let now = some(count);
            names = carried_out(names, &listing.steps(&now));
            assert_eq!(names, now);
            listing.written(now);
        }
    }
}
