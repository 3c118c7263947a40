//! How a command survives an absence of the daemon, or a time in which it has no room.

use std::time::Duration;

use client::{Error, Result};
use tokio::time::Instant;

use super::{TOTAL, shown};

/// The longest time without an answer of the daemon before a command stops waiting.
const AWAY_MAX: Duration = Duration::from_secs(60);
/// The delay between two tries during such an absence.
const AWAY_PAUSE: Duration = Duration::from_secs(1);
/// Two failures of one absence are closer: behind the pause comes one call, and that fails within [`TOTAL`]. The rest is for a
/// machine that is slow.
const GAP_MAX: Duration = Duration::from_secs(AWAY_PAUSE.as_secs() + TOTAL.as_secs() + 15);

/// Since when the daemon has not answered.
#[derive(Debug, Default)]
pub struct Absence {
    since: Option<Instant>,
    failed_at: Option<Instant>,
}

impl Absence {
    /// The daemon has answered.
    pub fn end(&mut self) {
        self.since = None;
    }

    /// Something was done meanwhile: the time counts anew.
    pub fn begins_anew(&mut self) {
        self.since = self.since.map(|_| Instant::now());
    }

    /// A call has failed. Waits before the next try, and says so on stderr when the absence begins. One begins also where the
    /// failure before is long past: a stream that is opened again says nothing of that as long as nothing happens.
    ///
    /// # Errors
    /// The failure, if it is lasting or the absence is too long.
    pub async fn outlast(&mut self, error: Error) -> Result<()> {
        let now = Instant::now();
        if self.failed_at.replace(now).is_some_and(|before| now - before > GAP_MAX) {
            self.since = None;
        }
        let is_first = self.since.is_none();
        let since = *self.since.get_or_insert(now);
        if !error.is_retryable() || since.elapsed() >= AWAY_MAX {
            return Err(error);
        }
        if is_first {
            let why = shown::one_line(&error.to_string());
            shown::note(&format!("{why}; trying again for {} s\n", AWAY_MAX.as_secs()));
        }
        tokio::time::sleep(AWAY_PAUSE).await;
        Ok(())
    }
}
