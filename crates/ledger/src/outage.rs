//! Whether the ledger answers: one line of the log for each outage, and one for its end, however many calls fail meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::unwritable::Unwritable;
use crate::{Error, Result};

/// Failures for this long, with no answer between them, are an outage. A single call that is cut off is none.
const OUTAGE_AFTER: Duration = Duration::from_secs(1);

/// What the calls to a ledger have come to. All clones share it.
///
/// A write for which no connection was to be had counts until one is, or until another write is answered: while the server gives
/// no more connections, what goes by those that are open is answered, and says nothing of such writes.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutageWatch(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// Whether the last call failed.
    is_failing: AtomicBool,
    /// Whether a write had no connection.
    lacks_connection: AtomicBool,
    failures: Mutex<Failures>,
}

/// The failures since the last answer.
#[derive(Debug, Default)]
struct Failures {
    since: Option<Instant>,
    is_told: bool,
}

impl OutageWatch {
    /// Notes what a call came to.
    pub(crate) fn saw<T>(&self, answer: &Result<T>) {
        match answer {
            Err(error) => self.failed(error),
            Ok(_) => self.answered(),
        }
    }

    /// Notes why a call failed. A refusal is an answer too.
    pub(crate) fn failed(&self, error: &Error) {
        if error.is_away() { self.failed_at(error, Instant::now()) } else { self.answered() }
    }

    /// Notes an answer.
    pub(crate) fn answered(&self) {
        // Read without a lock for each answer.
        if self.0.is_failing.load(Ordering::Acquire) && !self.lacks_connection() {
            self.answered_at(Instant::now());
        }
    }

    /// Notes what a write came to.
    pub(crate) fn saw_write<T>(&self, answer: &Result<T>) {
        match answer {
            Err(error) => self.write_failed(error),
            Ok(_) => self.wrote(),
        }
    }

    /// Notes why a write failed.
    pub(crate) fn write_failed(&self, error: &Error) {
        if !error.is_away() {
            return self.wrote();
        }
        // Of a write that had a connection nobody knows what became.
        if matches!(error, Error::Unavailable { .. }) {
            self.0.lacks_connection.store(true, Ordering::Release);
        }
        self.failed(error);
    }

    /// Notes that a write was answered, or that the server has given a new connection.
    pub(crate) fn wrote(&self) {
        if self.lacks_connection() {
            self.0.lacks_connection.store(false, Ordering::Release);
        }
        self.answered();
    }

    /// Whether a write had no connection, and since then no write was answered and no connection was opened.
    pub(crate) fn lacks_connection(&self) -> bool {
        self.0.lacks_connection.load(Ordering::Acquire)
    }

    fn failed_at(&self, error: &Error, now: Instant) {
        let mut failures = self.failures();
        let since = *failures.since.get_or_insert(now);
        self.0.is_failing.store(true, Ordering::Release);
        if !failures.is_told && now.duration_since(since) >= OUTAGE_AFTER {
            failures.is_told = true;
            tracing::warn!(%error, "the ledger is away; what needs it waits or is refused");
        }
    }

    fn answered_at(&self, now: Instant) {
        let mut failures = self.failures();
        self.0.is_failing.store(false, Ordering::Release);
        if let Failures { since: Some(since), is_told: true } = std::mem::take(&mut *failures) {
            let away_ms = now.duration_since(since).as_millis() as u64;
            tracing::info!(away_ms, "the ledger is back");
        }
    }

    fn failures(&self) -> parking_lot::MutexGuard<'_, Failures> {
        self.0.failures.lock()
    }

    #[cfg(test)]
    fn is_told(&self) -> bool {
        self.failures().is_told
    }
}

impl Error {
    /// Whether the database was not reached, or did not answer: the ledger logs such an outage itself, once. A database whose
    /// disk is full answers; that has a line of its own.
    #[must_use]
    pub fn is_away(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::Unknown { .. }) && Unwritable::why(self).is_none()
    }
}

/// The time between two log lines at WARN about a failure that does not end by itself.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// When one place of the code, or one loop, has told of a failure last.
#[derive(Debug, Default)]
pub struct LastTold(Mutex<Option<Instant>>);

impl LastTold {
    /// Of one that has told of none yet.
    #[must_use]
    pub const fn never() -> Self {
        Self(parking_lot::const_mutex(None))
    }

    /// Whether it is time to tell of one. The time begins anew then.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.is_due_at(Instant::now())
    }

    fn is_due_at(&self, now: Instant) -> bool {
        let mut told = self.0.lock();
        let is_due = told.is_none_or(|told| now.duration_since(told) >= TOLD_EVERY);
        if is_due {
            *told = Some(now);
        }
        is_due
    }
}

/// Logs what came of a failure of the ledger, at WARN, once a minute for each place that does so. The others are at DEBUG, and so
/// is what may end by itself, since the ledger itself logs the beginning and the end of an outage, once. With `told:` and a
/// [`LastTold`] first, it is once a minute for each of these: a loop for one key has its own, so that no other key's takes its
/// line.
#[macro_export]
macro_rules! log_failure {
    (told: $told:expr, $error:expr, $($line:tt)+) => {
        if !$error.is_retryable() && $told.is_due() {
            ::tracing::warn!(error = %$error, $($line)+);
        } else {
            ::tracing::debug!(error = %$error, $($line)+);
        }
    };
    ($error:expr, $($line:tt)+) => {{
        static TOLD: $crate::LastTold = $crate::LastTold::never();
        $crate::log_failure!(told: TOLD, $error, $($line)+);
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost() -> Error {
        Error::unavailable(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
    }

    #[test]
    fn an_outage_is_told_once_and_so_is_its_end() {
        let watch = OutageWatch::default();
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        watch.failed_at(&lost(), begun);
        watch.failed_at(&lost(), after(999));
        assert!(!watch.is_told(), "it may be one slow call");
        watch.answered_at(after(1_000));
        watch.failed_at(&lost(), after(1_500));
        assert!(!watch.is_told(), "an answer begins anew");
        watch.failed_at(&lost(), after(2_500));
        assert!(watch.is_told());
        watch.failed_at(&lost(), after(3_000));
        assert!(watch.is_told());
        watch.answered_at(after(4_000));
        assert!(!watch.is_told() && !watch.0.is_failing.load(Ordering::Relaxed));
    }

    #[test]
    fn a_write_without_a_connection_counts_until_a_write_is_answered_or_there_is_one() {
        let watch = OutageWatch::default();
        let written: [fn(&OutageWatch); 3] = [
            |watch| watch.saw_write(&Ok(())),
            |watch| watch.write_failed(&Error::refused(sqlx::Error::RowNotFound)),
            OutageWatch::wrote,
        ];
        for writes in written {
            watch.write_failed(&lost());
            watch.saw(&Ok(()));
            watch.failed_at(&lost(), Instant::now() + OUTAGE_AFTER);
            assert!(watch.is_told() && watch.lacks_connection(), "other calls are answered all the while");
            watch.saw(&Ok(()));
            assert!(watch.is_told());
            writes(&watch);
            assert!(!watch.is_told() && !watch.lacks_connection());
        }
    }

    #[test]
    fn a_failure_that_comes_again_and_again_is_told_once_a_minute() {
        let (told, begun) = (LastTold::never(), Instant::now());
        let is_due = |seconds| told.is_due_at(begun + Duration::from_secs(seconds));
        assert_eq!([0, 0, 59, 60, 61, 119, 120].map(is_due), [true, false, false, true, false, false, true]);
    }

    #[test]
    fn a_refusal_is_an_answer() {
        assert!(lost().is_away() && Error::unknown(sqlx::Error::PoolTimedOut).is_away());
        let others = [
            Error::WentBack,
            Error::refused(sqlx::Error::RowNotFound),
            Error::aborted(sqlx::Error::RowNotFound),
        ];
        assert!(others.iter().all(|error| !error.is_away()));
    }
}
