//! The database's time, as it is known between two answers of the database.
//!
//! What lives here: the clock by which a plan's owner says whether a run, or the plan, is over its time. It goes at the pace of
//! this process's monotonic clock, so that a step of the database's clock ends nothing that runs, and lets nothing run longer.
//! Runs begin by it too, so it need not be right. An owner that has just begun cannot know of a step before: its clock begins
//! with what the database says.

use std::time::{Duration, Instant};

use domain::Timestamp;

/// A smaller difference to what was expected is not told from an answer that came late: it is followed.
const STEP_MIN: Duration = Duration::from_secs(5);

/// A time of the database and the moment at which it was heard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    at: Timestamp,
    heard: Instant,
}

/// A time in milliseconds since 1970.
pub(super) fn from_ms(ms: u64) -> Timestamp {
    Timestamp::from_micros(i64::try_from(ms.saturating_mul(1_000)).unwrap_or(i64::MAX))
}

impl Clock {
    /// The database has said that it is this time.
    pub(super) fn new(at: Timestamp) -> Self {
        Self { at, heard: Instant::now() }
    }

    /// What time it is there by now.
    pub(super) fn now(&self) -> Timestamp {
        self.shows(Instant::now())
    }

    /// The clock of the same owner once it has heard a later answer. After a step, forward or back, it goes on as before.
    pub(super) fn followed_by(self, next: Self) -> Self {
        let expected = self.shows(next.heard);
        let off_ms = next.at.ms_since(expected).max(expected.ms_since(next.at));
        if u128::from(off_ms) > STEP_MIN.as_millis() { self } else { next }
    }

    fn shows(&self, now: Instant) -> Timestamp {
        let passed = now.saturating_duration_since(self.heard).as_millis();
        self.at.plus_ms(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_of_the_databases_clock_is_not_followed_in_either_direction() {
        const HOUR_MS: u64 = 3_600_000;
        let begun = Instant::now();
        let heard = |ms, after_ms| Clock { at: from_ms(ms), heard: begun + Duration::from_millis(after_ms) };
        let shown = |clock: Clock, after_ms| clock.shows(begun + Duration::from_millis(after_ms));
        let first = heard(10 * HOUR_MS, 0);
        // An answer that took a while, and one that did not.
        let later = first
            .followed_by(heard(10 * HOUR_MS + 1_000, 4_000))
            .followed_by(heard(10 * HOUR_MS + 5_000, 5_000));
        assert_eq!(shown(later, 6_000), from_ms(10 * HOUR_MS + 6_000));
        // However often it is heard after the step, the clock goes at this process's pace.
        let mut stepped = later;
        for after_ms in (6_000..60_000).step_by(1_000) {
            stepped = stepped.followed_by(heard(11 * HOUR_MS + after_ms, after_ms));
            assert_eq!(shown(stepped, after_ms), from_ms(10 * HOUR_MS + after_ms));
        }
        // Set right again, further back, and right again.
        let right = stepped.followed_by(heard(10 * HOUR_MS + 60_000, 60_000));
        assert_eq!(shown(right, 61_000), from_ms(10 * HOUR_MS + 61_000));
        let back = right.followed_by(heard(9 * HOUR_MS, 62_000));
        assert_eq!(shown(back, 63_000), from_ms(10 * HOUR_MS + 63_000));
        let right = back.followed_by(heard(10 * HOUR_MS + 64_000, 64_000));
        assert_eq!(shown(right, 65_000), from_ms(10 * HOUR_MS + 65_000));
    }
}
