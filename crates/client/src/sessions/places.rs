//! Which results of a session were seen, by their sequence numbers (places). Pure.

use std::collections::BTreeMap;

/// The places whose results were seen.
#[derive(Debug)]
pub(super) enum Places {
    /// Results come in the order of their places: all up to this one were seen.
    Ordered(u64),
    /// Results come in any order.
    Free {
        /// All up to this place were seen.
        low: u64,
        /// The runs of seen places after it: the last place of each run, by its first. Between two runs is a
        /// gap: jobs that have not ended, or places without a job.
        runs: BTreeMap<u64, u64>,
    },
}

impl Places {
    /// All up to this one were seen.
    pub(super) const fn up_to(seq: u64, is_ordered: bool) -> Self {
        if is_ordered { Self::Ordered(seq) } else { Self::Free { low: seq, runs: BTreeMap::new() } }
    }

    /// Whether results come in the order of their places.
    pub(super) const fn is_ordered(&self) -> bool {
        matches!(self, Self::Ordered(_))
    }

    /// The last place up to which all were seen.
    pub(super) const fn low(&self) -> u64 {
        match self {
            Self::Ordered(low) | Self::Free { low, .. } => *low,
        }
    }

    /// Marks the result of this place as seen. Returns whether it is new.
    pub(super) fn see(&mut self, seq: u64) -> bool {
        match self {
            Self::Ordered(low) if seq <= *low => false,
            Self::Ordered(low) => {
                *low = seq;
                true
            }
            Self::Free { low, .. } if seq <= *low => false,
            Self::Free { low, runs } => {
                let before = runs.range(..=seq).next_back().map(|(first, last)| (*first, *last));
                if before.is_some_and(|(_, last)| seq <= last) {
                    return false;
                }
                let joined = before.filter(|(_, last)| last + 1 == seq).map(|(first, _)| first);
                let last = seq.checked_add(1).and_then(|next| runs.remove(&next)).unwrap_or(seq);
                runs.insert(joined.unwrap_or(seq), last);
                if let Some(last) = runs.remove(&(*low + 1)) {
                    *low = last;
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordered_places_are_seen_up_to_the_last() {
        let mut places = Places::up_to(3, true);
        assert!(!places.see(3) && places.see(4) && places.see(9));
        assert!(!places.see(7) && !places.see(9));
        assert_eq!(places.low(), 9);
    }

    proptest! {
        #[test]
        fn free_places_are_seen_once_each_and_without_gaps_up_to_the_low_one(
            from in 0_u64..4,
            seen in prop::collection::vec(1_u64..40, 0..80),
        ) {
            let mut places = Places::up_to(from, false);
            let mut model: BTreeSet<u64> = (1..=from).collect();
            for seq in seen {
                prop_assert_eq!(places.see(seq), model.insert(seq));
                let low = (1..).find(|seq| !model.contains(seq)).unwrap() - 1;
                prop_assert_eq!(places.low(), low);
                let Places::Free { runs, .. } = &places else { unreachable!() };
                let behind: BTreeSet<_> = runs.iter().flat_map(|(first, last)| *first..=*last).collect();
                prop_assert_eq!(&behind, &model.split_off(&(low + 1)));
                model.extend(behind);
                let is_apart = runs.iter().zip(runs.iter().skip(1)).all(|((_, last), (next, _))| last + 1 < *next);
                prop_assert!(is_apart, "{:?}", runs);
            }
        }
    }

    #[test]
    fn the_last_place_of_all_is_a_place() {
        let mut places = Places::up_to(0, false);
        assert!(places.see(u64::MAX) && !places.see(u64::MAX));
    }
}
