//! Ids of new jobs, and of plans, tasks and bulk operations.
//!
//! What lives here: the time that an id has, and the order of the ids of one instance. An id's time is the database's, as far
//! as this process has seen that clock: a bulk operation reads the ids up to a time of the database, and the newest task of a
//! tenant is the one with the highest id, whichever instance made it.

use parking_lot::Mutex;

use domain::{JobId, Timestamp};
use uuid::{ContextV7, Uuid};

use crate::database_clock::SharedClock;

/// When the clock goes back, ids keep the last time until the clock has come to it: by so much at most, in milliseconds.
const AHEAD_MAX_MS: u64 = 3_600_000;

/// Draws ids, each above the one before, unless the clock went back by more than an hour in between.
pub(crate) struct JobIds {
    clock: SharedClock,
    drawn: Mutex<Drawn>,
}

#[derive(Default)]
struct Drawn {
    context: ContextV7,
    /// The time of the last id, in milliseconds since 1970.
    last_ms: u64,
}

impl JobIds {
    pub(crate) fn new(clock: SharedClock) -> Self {
        Self { clock, drawn: Mutex::default() }
    }

    /// An id that was never used.
    pub(crate) fn draw(&self) -> JobId {
        let now = self.clock.now();
        // After a panic in it, its next id is as good as any.
        self.drawn.lock().draw(now)
    }
}

impl Drawn {
    fn draw(&mut self, now: Timestamp) -> JobId {
        let micros = u64::try_from(now.as_micros()).unwrap_or(0);
        if self.last_ms > micros / 1_000 + AHEAD_MAX_MS {
            *self = Self::default();
        }
        let nanos = (micros % 1_000_000) as u32 * 1_000;
        let at = uuid::Timestamp::from_unix(&self.context, micros / 1_000_000, nanos);
        let id = JobId::from_u128(Uuid::new_v7(at).as_u128());
        self.last_ms = id.made_at_ms();
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_ascend_and_leave_the_future_of_a_clock_that_went_back() {
        let mut drawn = Drawn::default();
        let mut at = |second: i64| drawn.draw(Timestamp::from_micros(second * 1_000_000));
        let now = 1_800_000_000;
        let ids = [at(now), at(now), at(now + 1), at(now), at(now - 3_500)];
        assert!(ids.is_sorted_by(|one, next| one < next), "{ids:?}");
        assert_eq!(ids.map(|id| id.made_at_ms() - 1_800_000_000_000), [0, 0, 1_000, 1_000, 1_000]);
        let ahead = at(now + 2 * 86_400);
        let after = at(now + 2);
        assert!(after < ahead && after > ids[4]);
        assert_eq!(after.made_at_ms(), 1_800_000_002_000);
    }
}
