//! Shards: the share of the keys that one core of an instance serves.
//!
//! The actor of a lane and the committer of its batches are found by the same rule, so that both are on one thread.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// Which of `shards` shards, numbered from 0, a key with that name belongs to. The same in all of a process, for as long
/// as there are as many shards; nothing of it may be stored.
///
/// # Panics
/// If there are no shards.
#[must_use]
pub fn shard_of(name: &str, shards: usize) -> usize {
    (BuildHasherDefault::<DefaultHasher>::default().hash_one(name) % shards as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spread_over_all_shards_and_keep_theirs() {
        let mut counts = [0; 4];
        for number in 0..4_000 {
            let name = format!("key-{number}");
            counts[shard_of(&name, counts.len())] += 1;
            assert_eq!(shard_of(&name, 4), shard_of(&name, 4));
            assert_eq!(shard_of(&name, 1), 0);
        }
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }
}
