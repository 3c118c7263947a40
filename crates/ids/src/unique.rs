//! UUIDs (RFC 9562): unique without asking anybody.

use uuid::Uuid;

/// Which kind of UUID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// Random.
    V4,
    /// Sorted by time, then random.
    #[default]
    V7,
}

/// So many new ones. Those of version 7 rise, within this process.
pub fn uuids(version: Version, count: usize) -> impl Iterator<Item = Uuid> {
    (0..count).map(move |_| match version {
        Version::V4 => Uuid::new_v4(),
        Version::V7 => Uuid::now_v7(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn uuids_are_of_their_version_and_none_comes_twice() {
        for (version, number) in [(Version::V4, 4), (Version::V7, 7)] {
            let made: Vec<_> = uuids(version, 10_000).collect();
            assert!(made.iter().all(|uuid| uuid.get_version_num() == number));
            assert_eq!(made.iter().collect::<HashSet<_>>().len(), 10_000);
        }
        let made: Vec<_> = uuids(Version::V7, 10_000).collect();
        assert!(made.is_sorted(), "by time");
    }
}
