//! The names of the last jobs of a session, by which a repetition is noticed before it gets a place. Pure.
//!
//! Of each name a hash is kept. So a new name may be taken for a known one, which costs a look into the ledger; a known one
//! is never taken for a new one, as long as it is among the last [`RECENT_KEYS_MAX`].

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::limits::RECENT_KEYS_MAX;

/// The last names.
#[derive(Default)]
pub(super) struct RecentKeys(VecDeque<u64>);

impl RecentKeys {
    /// A job has come under this name.
    pub(super) fn note(&mut self, name: &str) {
        if self.has(name) {
            return;
        }
        if self.0.len() == RECENT_KEYS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(hash(name));
    }

    /// Whether a job may have come under this name.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.contains(&hash(name))
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_names_are_known_each_once() {
        let mut keys = RecentKeys::default();
        let name = |n: usize| format!("c{n}");
        for n in 0..RECENT_KEYS_MAX {
            keys.note(&name(n));
            keys.note(&name(0));
        }
        assert!((0..RECENT_KEYS_MAX).all(|n| keys.has(&name(n))));
        assert!(!keys.has(&name(RECENT_KEYS_MAX)));
        keys.note(&name(RECENT_KEYS_MAX));
        assert!(!keys.has(&name(0)) && keys.has(&name(1)) && keys.has(&name(RECENT_KEYS_MAX)));
        assert_eq!(keys.0.len(), RECENT_KEYS_MAX);
    }
}
