//! The database's time, as it is known between two answers of the database.
//!
//! What lives here: the clock by which a plan's owner says whether a run, or the plan, is over its time. It goes at the pace of
//! this process's monotonic clock, so that a step forward of the database's clock ends nothing that runs. An owner that has
//! just begun cannot know of a step before: of the runs that it finds it ends none, and the plan's own time is what the
//! database's clock says.

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

    /// The clock of the same owner once it has heard a later answer. After a step forward it goes on as before; a step back is
    /// followed.
    pub(super) fn followed_by(self, next: Self) -> Self {
        let ahead_ms = next.at.ms_since(self.shows(next.heard));
        if u128::from(ahead_ms) > STEP_MIN.as_millis() { self } else { next }
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
    fn a_step_forward_of_the_databases_clock_is_not_followed_and_one_back_is() {
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
        // Set right again, and further back.
        let right = stepped.followed_by(heard(10 * HOUR_MS + 60_000, 60_000));
        assert_eq!(shown(right, 61_000), from_ms(10 * HOUR_MS + 61_000));
        let back = right.followed_by(heard(9 * HOUR_MS, 62_000));
        assert_eq!(shown(back, 63_000), from_ms(9 * HOUR_MS + 1_000));
    }
}
