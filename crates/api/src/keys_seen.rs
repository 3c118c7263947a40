//! How many idempotency keys one token uses. The ledger keeps a row for each for a while, so no token may use new keys without
//! end.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// For how long keys count.
const PERIOD: Duration = Duration::from_secs(3_600);
/// A key is remembered until its token has used so many newer ones, or twice as many: a repetition within that time counts
/// for nothing, and is served when no new key would be. They take eight bytes each, and as much again.
const RECENT_MAX: usize = 65_536;

/// Tells keys apart. Nobody outside can make two of them look the same.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The keys that one token has used in the present hour, on this instance.
#[derive(Debug, Default)]
pub struct KeysSeen(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    began: Option<Instant>,
    count: u64,
    recent: HashSet<u64>,
    older: HashSet<u64>,
}

impl KeysSeen {
    /// Notes that a key is used for that route and what it is about.
    ///
    /// # Errors
    /// It is new, and `max` keys were used in this hour; how much is left of the hour.
    pub fn admit(&self, scope: &str, key: &str, max: u64, now: Instant) -> Result<(), Duration> {
        let hash = HASHER.hash_one((scope, key));
        let mut seen = self.0.lock();
        let began = *seen.began.get_or_insert(now);
        let passed = now.saturating_duration_since(began);
        if passed >= PERIOD {
            (seen.began, seen.count) = (Some(now), 0);
        }
        if seen.recent.contains(&hash) || seen.older.contains(&hash) {
            return Ok(());
        }
        if seen.count >= max {
            return Err(PERIOD.saturating_sub(passed));
        }
        seen.count += 1;
        if seen.recent.len() >= RECENT_MAX {
            seen.older = std::mem::take(&mut seen.recent);
        }
        seen.recent.insert(hash);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_uses_so_many_new_keys_an_hour_and_each_as_often_as_it_likes() {
        let (seen, now) = (KeysSeen::default(), Instant::now());
        let admit = |scope: &str, key: &str, after: Duration| seen.admit(scope, key, 3, now + after);
        for (scope, key) in [("job", "a"), ("job", "b"), ("job", "a"), ("plan", "a"), ("job", "b")] {
            assert_eq!(admit(scope, key, Duration::ZERO), Ok(()), "{scope} {key}");
        }
        let minute = Duration::from_secs(60);
        assert_eq!(admit("job", "c", minute), Err(PERIOD - minute));
        assert_eq!(admit("plan", "b", PERIOD - minute), Err(minute));
        assert_eq!(admit("plan", "a", PERIOD - minute), Ok(()), "it was used before");
        assert_eq!(admit("job", "c", PERIOD), Ok(()), "another hour");
        assert_eq!(admit("plan", "a", PERIOD), Ok(()), "it was used before, and counts for nothing");
        assert_eq!((admit("job", "d", PERIOD), admit("job", "e", PERIOD)), (Ok(()), Ok(())));
        assert!(admit("job", "f", PERIOD).is_err());
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_newest_keys_are_in_it() {
        let (seen, now) = (KeysSeen::default(), Instant::now());
        let most = 5 * RECENT_MAX as u64;
        for key in 0..most {
            seen.admit("job", &key.to_string(), most, now).unwrap();
        }
        {
            let seen = seen.0.lock();
            assert!(seen.recent.len() <= RECENT_MAX && seen.older.len() <= RECENT_MAX);
        }
        for key in most - RECENT_MAX as u64..most {
            assert_eq!(seen.admit("job", &key.to_string(), most, now), Ok(()), "{key}");
        }
        assert!(seen.admit("job", "0", most, now).is_err(), "it was used too long ago to be known");
    }
}
