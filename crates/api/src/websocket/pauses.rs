//! The time in which a socket does not read what comes in. Pure: no I/O and no clock.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// The time, all in all, in which a socket did not read. It does not count against the other side. Clones count together.
#[derive(Clone, Default)]
pub struct Pauses(Rc<Cell<Duration>>);

/// A moment from which on the time counts in which the socket reads.
#[derive(Clone, Copy)]
pub struct Since {
    at: Instant,
    /// All pauses before.
    paused: Duration,
}

impl Pauses {
    /// For so long, until this moment, the socket did not read.
    pub fn add(&self, time: Duration) {
        self.0.set(self.0.get() + time);
    }

    /// This moment, behind all pauses so far.
    pub fn since(&self, at: Instant) -> Since {
        Since { at, paused: self.0.get() }
    }

    /// For how long the socket has read since then.
    pub fn read_since(&self, since: Since, now: Instant) -> Duration {
        now.saturating_duration_since(since.at).saturating_sub(self.0.get() - since.paused)
    }
}

impl Since {
    /// The moment.
    pub const fn at(self) -> Instant {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_time_in_which_the_socket_reads_counts() {
        let second = Duration::from_secs(1);
        let (pauses, begin) = (Pauses::default(), Instant::now());
        pauses.add(9 * second);
        let since = pauses.since(begin);
        assert_eq!(pauses.read_since(since, begin + 3 * second), 3 * second, "a pause before is none since");
        pauses.clone().add(2 * second);
        assert_eq!(pauses.read_since(since, begin + 3 * second), second);
        pauses.add(4 * second);
        assert_eq!(pauses.read_since(since, begin + 3 * second), Duration::ZERO);
        assert_eq!(pauses.read_since(since, begin + 8 * second), 2 * second);
    }
}
