//! A set of positions, one bit each. One that few are in is kept by its words that are not empty, so that all sets
//! together take no more than a few words for each label of each node.

/// A set that does not change.
#[derive(Debug)]
pub(crate) enum Set {
    Dense(Box<[u64]>),
    /// The words that are not empty, by place.
    Sparse(Box<[(usize, u64)]>),
}

/// Words that hold so many positions.
pub(crate) const fn words(positions: usize) -> usize {
    positions.div_ceil(64)
}

impl Set {
    /// The bits of 64 positions.
    pub(crate) fn word(&self, word: usize) -> u64 {
        match self {
            Self::Dense(words) => words.get(word).copied().unwrap_or(0),
            Self::Sparse(words) => {
                words.binary_search_by_key(&word, |(at, _)| *at).map_or(0, |found| words[found].1)
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Dense(words) => words.iter().all(|word| *word == 0),
            Self::Sparse(words) => words.is_empty(),
        }
    }

    pub(crate) fn contains(&self, position: usize) -> bool {
        self.word(position / 64) >> (position % 64) & 1 == 1
    }
}

/// A set that grows, by rising positions.
#[derive(Debug, Default)]
pub(crate) struct Builder(Vec<(usize, u64)>);

impl Builder {
    pub(crate) fn insert(&mut self, position: usize) {
        let (word, bit) = (position / 64, 1 << (position % 64));
        match self.0.last_mut() {
            Some((last, bits)) if *last == word => *bits |= bit,
            _ => self.0.push((word, bit)),
        }
    }

    /// The set, of so many positions in all.
    pub(crate) fn build(self, positions: usize) -> Set {
        let Self(sparse) = self;
        // A word by place takes twice the room of a word.
        if sparse.len() * 2 < words(positions) {
            return Set::Sparse(sparse.into());
        }
        let mut dense = vec![0; words(positions)];
        for (word, bits) in sparse {
            dense[word] = bits;
        }
        Set::Dense(dense.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_what_was_put_into_it_whether_few_or_many() {
        for (step, is_dense) in [(1, true), (3, true), (64, true), (127, true), (200, false), (9_999, false)]
        {
            let mut builder = Builder::default();
            (0..10_000).step_by(step).for_each(|position| builder.insert(position));
            let set = builder.build(10_000);
            assert_eq!(matches!(set, Set::Dense(_)), is_dense, "every {step}th");
            for position in 0..10_064 {
                let is_in = position < 10_000 && position % step == 0;
                assert_eq!(set.contains(position), is_in, "{position} of every {step}th");
            }
        }
        assert_eq!(Builder::default().build(0).word(0), 0);
    }
}
