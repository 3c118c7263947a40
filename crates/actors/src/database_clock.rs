//! What an instance has seen of the database's clock, shared by all that reads the ledger's time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use domain::database_clock::{Overdue, ReadRow};
use domain::limits::EXPIRIES_MAX;
use domain::nonce::Row;
use domain::{DatabaseClock, Timestamp};
use ledger::HeldNonce;

/// One for the whole process, so that a new incarnation knows what the one before has seen. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedClock(Arc<Mutex<DatabaseClock>>);

impl SharedClock {
    /// Of a process that has seen nothing yet. A jump forward of more than `skew_max` quarantines the holds that it
    /// touches when they run out.
    #[must_use]
    pub fn new(skew_max: Duration) -> Self {
        Self(Arc::new(Mutex::new(DatabaseClock::new(skew_max))))
    }

    /// The database's clock showed `at` between the two moments. A jump that this shows is counted and logged.
    pub fn saw(&self, at: Timestamp, sent: Instant, received: Instant) {
        let jump = self.clock().saw(at, sent, received);
        if let Some(jump) = jump {
            let direction = if jump.by_ms > 0 { "forward" } else { "back" };
            metrics::counter!("fencepost_database_clock_jump_total", "direction" => direction).increment(1);
            tracing::warn!(
                direction,
                by_ms = jump.by_ms.unsigned_abs(),
                "the database's clock jumped; holds keep their length by this instance's own clock"
            );
        }
    }

    /// The time of the database's clock now, as far as this process can tell: see [`DatabaseClock::shows`].
    #[must_use]
    pub fn shows(&self) -> Option<Timestamp> {
        self.clock().shows(Instant::now())
    }

    /// See [`DatabaseClock::behind_ms`].
    pub(crate) fn behind_ms(&self) -> u64 {
        self.clock().behind_ms(Instant::now())
    }

    /// See [`DatabaseClock::ahead_ms`].
    pub(crate) fn ahead_ms(&self) -> u64 {
        self.clock().ahead_ms()
    }

    /// Which of the holds that were asked for at `sent` ran out.
    pub(crate) fn overdue(&self, holds: &[HeldNonce], max: usize, sent: Instant) -> Overdue {
        let now = Instant::now();
        if let Some(held) = holds.first() {
            self.saw(held.read_at, sent, now);
        }
        self.clock().overdue(holds, max, EXPIRIES_MAX, now)
    }

    /// Rows that were read at `at`, asked for at `sent`; with what is left of their holds.
    pub(crate) fn with_left(&self, rows: Vec<Row>, at: Timestamp, sent: Instant) -> Vec<ReadRow> {
        let now = Instant::now();
        self.saw(at, sent, now);
        let clock = self.clock();
        rows.into_iter().map(|row| clock.with_left(row, now)).collect()
    }

    fn clock(&self) -> MutexGuard<'_, DatabaseClock> {
        // A panic in it leaves it whole: nothing is changed in steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
