//! The database's time, as it is known between two answers of the database.

use std::time::Instant;

use domain::Timestamp;

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
        self.at.plus_ms(u64::try_from(self.heard.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}
