//! How many different signers one token uses. Rows of nonces are kept for good, so no token may use new signers without end.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use domain::SignerId;
use parking_lot::Mutex;

/// For how long signers count.
const PERIOD: Duration = Duration::from_secs(3_600);

/// Tells signers apart, in eight bytes each. Nobody outside can make two of them look the same.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The signers that one token has used in the present hour and in the one before, on this instance.
#[derive(Debug, Default)]
pub struct SignersSeen(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    began: Option<Instant>,
    /// How many of this hour's were not used in the one before.
    count: usize,
    signers: HashSet<u64>,
    /// Those of the hour before. A repetition of what was asked then is served when no new signer would be.
    before: HashSet<u64>,
}

impl SignersSeen {
    /// Notes that a signer is used: one of the first `max` of the hour, or one that was used in the hour before, and counts for
    /// nothing. No more than `max` of the latter are remembered for the next hour.
    ///
    /// # Errors
    /// It is neither; how much is left of the hour.
    pub fn admit(&self, signer: &SignerId, max: usize, now: Instant) -> Result<(), Duration> {
        let hash = HASHER.hash_one(signer.as_str());
        let mut seen = self.0.lock();
        let mut passed = now.saturating_duration_since(*seen.began.get_or_insert(now));
        if passed >= PERIOD {
            let before = std::mem::take(&mut seen.signers);
            *seen = Seen { began: Some(now), before, ..Seen::default() };
            passed = Duration::ZERO;
        }
        if seen.signers.contains(&hash) {
            return Ok(());
        }
        let is_new = !seen.before.contains(&hash);
        if is_new && seen.count >= max {
            return Err(PERIOD.saturating_sub(passed));
        }
        seen.count += usize::from(is_new);
        if is_new || seen.signers.len() - seen.count < max {
            seen.signers.insert(hash);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_uses_so_many_signers_an_hour_and_each_as_often_as_it_likes() {
        let (seen, now) = (SignersSeen::default(), Instant::now());
        let admit = |name: &str, after: Duration| seen.admit(&SignerId::parse(name).unwrap(), 2, now + after);
        let admits = |name: &str, after: Duration| admit(name, after).is_ok();
        for name in ["a", "b", "a", "b"] {
            assert!(admits(name, Duration::ZERO), "{name}");
        }
        let ms = Duration::from_millis(1);
        assert_eq!(admit("c", Duration::ZERO), Err(PERIOD));
        assert_eq!(admit("c", PERIOD - ms), Err(ms), "what is left of the hour");
        assert!(admits("a", PERIOD - ms), "it was used before");
        assert!(admits("c", PERIOD), "another hour");
    }

    #[test]
    fn the_signers_of_the_hour_before_are_admitted_and_count_for_nothing() {
        let (seen, now) = (SignersSeen::default(), Instant::now());
        let admits = |name: &str, hour: u32| {
            seen.admit(&SignerId::parse(name).unwrap(), 2, now + PERIOD * hour).is_ok()
        };
        assert!(admits("a", 0) && admits("b", 0) && !admits("c", 0));
        for name in ["c", "d", "a", "b", "c"] {
            assert!(admits(name, 1), "{name}");
        }
        assert!(!admits("e", 1));
        for name in ["a", "b", "c", "d", "e", "f"] {
            assert!(admits(name, 2), "{name}");
        }
        assert!(!admits("g", 2));
        let remembered = seen.0.lock().signers.len();
        assert_eq!(remembered, 4, "twice as many as may be used");
        for name in ["g", "h", "a", "b", "e", "f"] {
            assert!(admits(name, 3), "{name}");
        }
        assert!(!admits("c", 3), "it was used too long ago to be known");
    }
}
