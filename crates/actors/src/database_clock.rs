//! What an instance has seen of the database's clock, shared by all that reads the ledger's time.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cluster::FailureDetector;
use domain::database_clock::{Overdue, ReadRow};
use domain::limits::EXPIRIES_MAX;
use domain::nonce::Row;
use domain::{DatabaseClock, Timestamp};
use ledger::HeldNonce;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync;

/// How old a reading of the clock may be for callers of [`SharedClock::look_lately`], who then do not read it again.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One for the whole process, so that a new incarnation knows what the one before has seen. Cheap to clone.
#[derive(Clone, Debug)]
pub struct SharedClock {
    clock: Arc<Mutex<DatabaseClock>>,
    /// Held by the one of many that reads the clock. The others wait for it, and need not read it again.
    looking: Arc<sync::Mutex<()>>,
}

impl SharedClock {
    /// The clock of a process that has seen nothing of it yet. A jump forward of more than `skew_max` quarantines the holds that
    /// it touches when they run out.
    #[must_use]
    pub fn new(skew_max: Duration) -> Self {
        let clock = Arc::new(Mutex::new(DatabaseClock::new(skew_max)));
        Self { clock, looking: Arc::default() }
    }

    /// The database's clock showed `at` between the two moments. A jump that this shows is counted and logged.
    pub fn saw(&self, at: Timestamp, sent: Instant, received: Instant) {
        let slept = slept();
        let jump = self.clock().saw(at, sent, received, slept);
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

    /// Reads the database's clock, and notes what it shows. Any step that shows in rows which were read before is known then.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn look(&self, ledger: &ledger::Handle) -> ledger::Result<()> {
        let sent = Instant::now();
        let ms = ledger.clock_ms().await?;
        self.saw(Timestamp::from_micros(0).plus_ms(ms), sent, Instant::now());
        Ok(())
    }

    /// Reads the database's clock, unless it was read within [`LOOK_EVERY`]. One of many callers reads it, so that they do not
    /// hold up the reads and renewals on the same connections.
    ///
    /// # Errors
    /// What the ledger says.
    pub(crate) async fn look_lately(&self, ledger: &ledger::Handle) -> ledger::Result<()> {
        let asked = Instant::now();
        let _looking = self.looking.lock().await;
        if !self.clock().was_read(asked, LOOK_EVERY) {
            self.look(ledger).await?;
        }
        Ok(())
    }

    /// The time of the database's clock now, as far as this process can tell: see [`DatabaseClock::shows`].
    #[must_use]
    pub fn shows(&self) -> Option<Timestamp> {
        self.clock().shows(Instant::now())
    }

    /// As [`Self::shows`]; before the first sample the time of this machine's clock.
    pub(crate) fn now(&self) -> Timestamp {
        self.shows().unwrap_or_else(machine_now)
    }

    /// See [`DatabaseClock::behind_ms`].
    pub(crate) fn behind_ms(&self) -> u64 {
        self.clock().behind_ms(Instant::now())
    }

    /// See [`DatabaseClock::ahead_ms`].
    pub(crate) fn ahead_ms(&self, within: Duration) -> u64 {
        self.clock().ahead_ms(within, Instant::now())
    }

    /// Whether the clock has stepped forward within this length of time, as far as this process has seen: a lease that runs
    /// may look as if it had run out, until its owner has renewed it.
    #[must_use]
    pub fn has_stepped_forward(&self, within: Duration) -> bool {
        self.ahead_ms(within) > 0
    }

    /// Whether leases of this length that have run out may be taken from others: see [`FailureDetector::may_take`]. Neither
    /// are they for one such length after the clock stepped forward: their owners renew them meanwhile. The clock is read
    /// first, so that a step is known that shows in what was read before.
    ///
    /// # Errors
    /// What the ledger says.
    pub(crate) async fn may_take(
        &self,
        ledger: &ledger::Handle,
        failure_detector: &FailureDetector,
        lease: Duration,
    ) -> ledger::Result<bool> {
        if failure_detector.is_alone() {
            return Ok(true);
        }
        if !failure_detector.may_take() {
            return Ok(false);
        }
        self.look_lately(ledger).await?;
        Ok(failure_detector.may_take() && !self.has_stepped_forward(lease))
    }

    /// How old a row that is kept for so long looks at most, in milliseconds, by what was seen of the clock.
    fn kept_ms(&self, kept: Duration) -> u64 {
        let kept_ms = u64::try_from(kept.as_millis()).unwrap_or(u64::MAX);
        // Within the numbers that databases have.
        kept_ms.saturating_add(self.ahead_ms(kept)).min(u64::MAX / 2)
    }

    /// How old a row that is kept for so long looks at most, in milliseconds: what was written before the database's clock
    /// stepped forward looks older than it is, see [`DatabaseClock::ahead_ms`]. Reads the clock first, in each step of a purge:
    /// it may step forward between two of them.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn read_kept_ms(&self, ledger: &ledger::Handle, kept: Duration) -> ledger::Result<u64> {
        self.look(ledger).await?;
        Ok(self.kept_ms(kept))
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
        self.clock.lock()
    }
}

/// The time by this machine's clock.
#[must_use]
pub fn machine_now() -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(i64::try_from(now.as_micros()).unwrap_or(i64::MAX))
}

/// How long the machine has slept since it was booted, while [`Instant`] stood still.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn slept() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    // The clock that goes on is read first: what passes between the two is not taken for sleep.
    let (all, awake) = (clock_gettime(ClockId::Boottime), clock_gettime(ClockId::Monotonic));
    Duration::try_from(all - awake).unwrap_or_default()
}

/// Nobody knows how long it has slept.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const fn slept() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_kept_for_longer_by_as_much_as_the_databases_clock_stepped_forward() {
        let (clock, kept) = (SharedClock::new(Duration::from_secs(1)), Duration::from_secs(60));
        let begun = Instant::now();
        let saw = |micros, second| {
            let at = begun + Duration::from_secs(second);
            clock.saw(Timestamp::from_micros(micros), at, at);
        };
        assert_eq!(clock.kept_ms(kept), 60_000, "nothing was seen yet");
        saw(1_000_000, 1);
        saw(2_000_000, 2);
        assert_eq!(clock.kept_ms(kept), 60_000);
        // Ten minutes, and the second that has passed.
        saw(603_000_000, 3);
        let stepped = clock.kept_ms(kept);
        assert!(stepped.abs_diff(660_000) < 5, "{stepped}");
        assert!(clock.kept_ms(Duration::MAX) > stepped, "for ever stays for ever");
    }
}
