//! How many different signers one token uses. Rows of nonces are kept for good, so no token may use new signers without end.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use domain::SignerId;

/// For how long signers count.
const PERIOD: Duration = Duration::from_secs(3_600);

/// Tells signers apart, in eight bytes each. Nobody outside can make two of them look the same.
static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// The signers that one token has used in the present hour, on this instance.
#[derive(Debug, Default)]
pub struct SignersSeen(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    began: Option<Instant>,
    signers: HashSet<u64>,
}

impl SignersSeen {
    /// Notes that a signer is used. Whether it is one of the first `max` of the hour.
    pub fn admits(&self, signer: &SignerId, max: usize, now: Instant) -> bool {
        let hash = HASHER.hash_one(signer.as_str());
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.began.is_none_or(|began| now.saturating_duration_since(began) >= PERIOD) {
            *seen = Seen { began: Some(now), signers: HashSet::new() };
        }
        seen.signers.contains(&hash) || (seen.signers.len() < max && seen.signers.insert(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_uses_so_many_signers_an_hour_and_each_as_often_as_it_likes() {
        let (seen, now) = (SignersSeen::default(), Instant::now());
        let admits =
            |name: &str, after: Duration| seen.admits(&SignerId::parse(name).unwrap(), 2, now + after);
        for name in ["a", "b", "a", "b"] {
            assert!(admits(name, Duration::ZERO), "{name}");
        }
        assert!(!admits("c", Duration::ZERO) && !admits("c", PERIOD - Duration::from_millis(1)));
        assert!(admits("a", PERIOD - Duration::from_millis(1)), "it was used before");
        assert!(admits("c", PERIOD), "another hour");
    }
}
