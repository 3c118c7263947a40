//! Which results a session's client was sent. Pure: no I/O and no clock.

use std::collections::BTreeMap;

/// Up to where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cursor {
    /// Results come in the order of their places: all up to this one were sent.
    Ordered(u64),
    /// Each comes when it is there.
    Free(Sent),
}

/// The places whose results were sent, in any order, or are not to be sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// All up to this place.
    low: u64,
    /// The runs of such places behind it: the last place of each, by its first. What lies between two runs is unfinished, or
    /// a place that nobody has; so there are not many, however long one job takes.
    runs: BTreeMap<u64, u64>,
}

impl Cursor {
    /// All behind this place are to be sent.
    pub fn behind(seq: u64, is_ordered: bool) -> Self {
        if is_ordered { Self::Ordered(seq) } else { Self::Free(Sent { low: seq, runs: BTreeMap::new() }) }
    }

    /// Whether the result of this place is still to be sent.
    pub fn lacks(&self, seq: u64) -> bool {
        match self {
            Self::Ordered(low) => seq > *low,
            Self::Free(sent) => sent.lacks(seq),
        }
    }

    /// The result of this place was sent.
    pub fn sent(&mut self, seq: u64) {
        match self {
            Self::Ordered(low) => *low = seq.max(*low),
            Self::Free(sent) => sent.insert(seq, seq),
        }
    }

    /// All results up to this place were sent that there ever will be.
    pub fn settle(&mut self, up_to: u64) {
        if let Self::Free(sent) = self
            && up_to > 0
        {
            sent.insert(1, up_to);
        }
    }
}

impl Sent {
    /// All up to `last_seq` but these places, which rise.
    pub fn all_but(places: impl IntoIterator<Item = u64>, last_seq: u64) -> Self {
        let mut sent = Self::default();
        let mut first = 1;
        for place in places.into_iter().filter(|place| *place <= last_seq) {
            if place > first {
                sent.insert(first, place - 1);
            }
            first = place + 1;
        }
        if last_seq >= first {
            sent.insert(first, last_seq);
        }
        sent
    }

    /// Whether it is not one of them.
    pub fn lacks(&self, seq: u64) -> bool {
        seq > self.low && self.runs.range(..=seq).next_back().is_none_or(|(_, last)| seq > *last)
    }

    /// Behind which place the first is that is not one of them.
    pub const fn low(&self) -> u64 {
        self.low
    }

    /// The highest of them.
    pub fn last(&self) -> u64 {
        self.runs.last_key_value().map_or(self.low, |(_, last)| *last)
    }

    /// The last place of the run that this one is in, or this one where it is in none.
    pub fn end_of_run(&self, seq: u64) -> u64 {
        let run = self.runs.range(..=seq).next_back().map_or(self.low, |(_, last)| *last);
        run.max(seq)
    }

    /// These places, too.
    fn insert(&mut self, first: u64, last: u64) {
        let (mut first, mut last) = (first, last);
        // Those that overlap the new run or touch it become one with it.
        while let Some((at, end)) = self.runs.range(..=last.saturating_add(1)).next_back() {
            if end.saturating_add(1) < first {
                break;
            }
            let (at, end) = (*at, *end);
            (first, last) = (first.min(at), last.max(end));
            self.runs.remove(&at);
        }
        if first <= self.low.saturating_add(1) {
            self.low = last.max(self.low);
        } else {
            self.runs.insert(first, last);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ordered_results_are_sent_up_to_a_place() {
        let mut cursor = Cursor::behind(3, true);
        assert!(!cursor.lacks(3) && cursor.lacks(4) && cursor.lacks(9));
        cursor.sent(5);
        cursor.settle(9);
        assert!(!cursor.lacks(5) && cursor.lacks(6));
    }

    proptest! {
        #[test]
        fn free_results_are_sent_one_by_one_and_are_runs_however_they_come(
            from in 0_u64..4,
            steps in prop::collection::vec((1_u64..40, any::<bool>()), 0..80),
        ) {
            let mut cursor = Cursor::behind(from, false);
            let mut model: BTreeSet<u64> = (1..=from).collect();
            for (seq, is_settled) in steps {
                if is_settled {
                    cursor.settle(seq);
                    model.extend(1..=seq);
                } else {
                    cursor.sent(seq);
                    model.insert(seq);
                }
                for seq in 1..45 {
                    prop_assert_eq!(cursor.lacks(seq), !model.contains(&seq));
                }
                let Cursor::Free(sent) = &cursor else { unreachable!() };
                prop_assert_eq!(sent.low(), (1..).find(|seq| !model.contains(seq)).unwrap() - 1);
                prop_assert_eq!(sent.last(), model.last().copied().unwrap_or(0));
                let mut before = sent.low;
                for (first, last) in &sent.runs {
                    prop_assert!(before + 1 < *first && first <= last, "{:?}", sent);
                    before = *last;
                }
                for seq in 0..45 {
                    let end = (seq..).find(|seq| !model.contains(&(seq + 1))).unwrap();
                    prop_assert_eq!(sent.end_of_run(seq), if cursor.lacks(seq) { seq } else { end });
                }
            }
        }

        #[test]
        fn all_but_some_places_are_all_but_those(
            places in prop::collection::btree_set(1_u64..40, 0..20),
            last_seq in 0_u64..40,
        ) {
            let sent = Sent::all_but(places.iter().copied(), last_seq);
            for seq in 1..45 {
                prop_assert_eq!(sent.lacks(seq), seq > last_seq || places.contains(&seq));
            }
        }
    }

    #[test]
    fn the_last_place_of_all_is_a_place() {
        let mut cursor = Cursor::behind(0, false);
        cursor.sent(u64::MAX);
        assert!(!cursor.lacks(u64::MAX) && cursor.lacks(u64::MAX - 1));
        cursor.settle(u64::MAX);
        assert!(!cursor.lacks(1));
    }
}
