//! Purges: what is old is deleted step by step, so that nobody waits for long for what one step holds. SQLite has one writer, and
//! a thousand jobs with payloads of a mebibyte take it for seconds.

use std::time::{Duration, Instant};

/// A step that takes longer than this, or fails, is followed by one of a quarter …
const LONG: Duration = Duration::from_millis(200);
/// … and one that takes less than this by one of twice as much.
const SHORT: Duration = Duration::from_millis(50);

/// The log names a failure that has come so many times in a row: what ends by itself soon needs no operator.
const TOLD_AFTER: u32 = 3;
/// Between two such lines about one kind.
const TOLD_EVERY: Duration = Duration::from_secs(300);

/// What the purges of one kind come to. Each failure is counted. Where they repeat while the ledger answers, or takes too long
/// for them, the log has a line at WARN, and one at INFO once a purge has succeeded again. The ledger itself logs an outage.
#[derive(Debug)]
pub struct PurgeWatch {
    pub(crate) of: &'static str,
    /// Since the last success.
    failures: u32,
    /// Whether the log has named these.
    is_told: bool,
    /// When it last named any, these or earlier ones.
    told_at: Option<Instant>,
}

impl PurgeWatch {
    /// A watch of purges that have not failed yet. `of` is what they purge, as the metric names it.
    #[must_use]
    pub const fn new(of: &'static str) -> Self {
        Self { of, failures: 0, is_told: false, told_at: None }
    }

    /// Notes what a purge has come to. The next one comes by itself.
    pub fn saw<T>(&mut self, purged: &ledger::Result<T>) {
        let of = self.of;
        let Err(error) = purged else {
            if self.succeeded() {
                tracing::info!(of, "the purge goes on again");
            }
            return;
        };
        metrics::counter!("fencepost_purge_failures_total", "of" => of).increment(1);
        // What takes too long was sent on a connection that was well: during an outage there is none to be had.
        let is_outage = error.is_away() && !error.is_late();
        if !is_outage && self.failed_at(Instant::now()) {
            let failures = self.failures;
            tracing::warn!(of, failures, %error, "the purge fails again and again; what is old stays");
        }
    }

    /// Notes a failure. Whether the log is to name it.
    fn failed_at(&mut self, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(1);
        let may_tell = self.told_at.is_none_or(|told_at| now.duration_since(told_at) >= TOLD_EVERY);
        let is_due = self.failures >= TOLD_AFTER && !self.is_told && may_tell;
        if is_due {
            (self.is_told, self.told_at) = (true, Some(now));
        }
        is_due
    }

    /// Notes a success. Whether the log is to name it, because it has named failures before.
    const fn succeeded(&mut self) -> bool {
        self.failures = 0;
        std::mem::replace(&mut self.is_told, false)
    }
}

/// How much the next step of a purge deletes at most.
#[derive(Debug)]
pub(crate) struct Step {
    size: u32,
    /// Only after failures are steps smaller. A step may take long whatever it deletes, as where it waits for the writer or a
    /// standby, and a purge of small steps would be slower than what comes.
    size_min: u32,
    size_max: u32,
}

impl Step {
    /// The first step of a purge of rows.
    pub(crate) const fn of_rows() -> Self {
        Self { size: 100, size_min: 100, size_max: 1_000 }
    }

    /// The first step of a purge of plans, each of which may have very many rows.
    pub(crate) const fn of_plans() -> Self {
        Self { size: 10, size_min: 1, size_max: 100 }
    }

    pub(crate) const fn size(&self) -> u32 {
        self.size
    }

    /// Runs a step of this size, and rests for as long as it took: half of the time is for others. Says whether there may be
    /// more to delete.
    ///
    /// # Errors
    /// That of the step; the next ones are smaller.
    pub(crate) async fn run(
        &mut self,
        step: impl Future<Output = ledger::Result<u64>>,
    ) -> ledger::Result<bool> {
        let (begun, size) = (Instant::now(), self.size);
        let deleted = step.await;
        let took = begun.elapsed();
        self.note(deleted.is_ok().then_some(took));
        let has_more = deleted? >= u64::from(size);
        if has_more {
            tokio::time::sleep(took).await;
        }
        Ok(has_more)
    }

    /// Notes how long a step took; `None` where it failed.
    fn note(&mut self, took: Option<Duration>) {
        self.size = match took {
            None => (self.size / 4).max(1),
            // Below the least size they grow however long they take: what failed may have been the ledger, and not the size.
            Some(took) if took < SHORT || self.size < self.size_min => (self.size * 2).min(self.size_max),
            Some(took) if took <= LONG => self.size,
            Some(_) => (self.size / 4).max(self.size_min),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};

    use super::*;

    #[test]
    fn a_step_that_fails_or_takes_long_is_followed_by_smaller_ones_which_grow_again() {
        let mut step = Step::of_plans();
        let mut sizes = vec![step.size()];
        let (short, fair, long) = (SHORT / 2, SHORT * 2, LONG * 2);
        for took in [short, short, fair, short, short, long, fair].map(Some) {
            step.note(took);
            sizes.push(step.size());
        }
        for _ in 0..3 {
            step.note(None);
            sizes.push(step.size());
        }
        step.note(Some(short));
        sizes.push(step.size());
        assert_eq!(sizes, [10, 20, 40, 40, 80, 100, 25, 25, 6, 1, 1, 2]);
    }

    #[test]
    fn no_steps_of_rows_stay_small_because_each_takes_long_or_some_have_failed() {
        let (fair, long) = (SHORT * 2, LONG * 2);
        let mut step = Step::of_rows();
        for _ in 0..9 {
            step.note(Some(long));
            assert_eq!(step.size(), 100, "that is not for their size");
        }
        for after in [SHORT / 2, fair, long] {
            for _ in 0..9 {
                step.note(None);
            }
            assert_eq!(step.size(), 1, "as while the ledger is away");
            for _ in 0..7 {
                step.note(Some(after));
            }
            assert!(step.size() >= 100, "{after:?}: {}", step.size());
        }
    }

    #[test]
    fn failures_that_repeat_are_told_of_once_and_so_is_their_end() {
        let (mut watch, begun) = (PurgeWatch::new("keys"), Instant::now());
        let after = |seconds| begun + Duration::from_secs(seconds);
        let told = [0, 30, 60, 90, 1_000].map(|seconds| watch.failed_at(after(seconds)));
        assert_eq!(told, [false, false, true, false, false]);
        assert!(watch.succeeded());
        assert!(!watch.succeeded(), "it was told");
        let told = [1_030, 1_060].map(|seconds| watch.failed_at(after(seconds)));
        assert_eq!(told, [false, false], "they are no more than two in a row");
        assert!(!watch.succeeded(), "nothing was told");
    }

    #[test]
    fn failures_that_come_and_go_are_told_of_once_in_five_minutes() {
        let (mut watch, begun) = (PurgeWatch::new("keys"), Instant::now());
        let after = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!([0, 1, 2].map(|seconds| watch.failed_at(after(seconds))), [false, false, true]);
        assert!(watch.succeeded());
        assert_eq!([3, 4, 5].map(|seconds| watch.failed_at(after(seconds))), [false; 3]);
        assert_eq!([301, 302, 303].map(|seconds| watch.failed_at(after(seconds))), [false, true, false]);
        assert!(watch.succeeded());
    }

    #[test]
    fn purges_tell_of_what_takes_too_long_and_not_of_an_outage_of_the_ledger() {
        let lost = || io::Error::from(ErrorKind::ConnectionRefused);
        for (error, is_told) in [
            (ledger::Error::unavailable(lost()), false),
            (ledger::Error::unknown(lost()), false),
            (ledger::Error::aborted(lost()), true),
            // As a caller hears of a statement that takes too long: before the server has ended it.
            (ledger::Error::unknown(io::Error::from(ErrorKind::TimedOut)), true),
        ] {
            let (mut watch, failed) = (PurgeWatch::new("jobs"), Err::<(), _>(error));
            for _ in 0..TOLD_AFTER {
                watch.saw(&failed);
            }
            assert_eq!(watch.is_told, is_told, "{failed:?}");
        }
    }

    #[tokio::test]
    async fn a_purge_ends_with_a_step_that_finds_less_and_with_one_that_fails() {
        let mut step = Step::of_rows();
        let mut left = 250_u64;
        let mut steps = 0;
        loop {
            steps += 1;
            let deleted = left.min(u64::from(step.size()));
            left -= deleted;
            if !step.run(async { Ok(deleted) }).await.unwrap() {
                break;
            }
        }
        assert_eq!((left, steps), (0, 2), "100, and then 150 of 200");
        let size = step.size();
        step.run(async { Err(ledger::Error::WentBack) }).await.unwrap_err();
        assert_eq!(step.size(), size / 4);
    }
}
