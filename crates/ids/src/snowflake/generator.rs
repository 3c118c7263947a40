//! The generator of one worker number: lock-free, on any number of threads, never the same id twice.
//!
//! What lives here: the order in which state, clock and limit are read. Nothing waits here, and no caller is remembered;
//! [`super::Snowflakes`] decides what follows a refusal.

use std::sync::atomic::{AtomicU64, Ordering};

use domain::WorkerNumber;
use rand::RngExt as _;

use super::layout::{self, Layout, PER_MS, SEQUENCE_BITS, TIME_END};
use crate::Clock;

/// Set in the state once and for all when the generator is closed. Time and sequence leave the bit free.
const CLOSED: u64 = 1 << 63;

/// A millisecond begins below this sequence, so three quarters of its ids are left to single callers in any case.
const BEGIN_END: u32 = PER_MS / 4;

const _: () = assert!(TIME_END << SEQUENCE_BITS < CLOSED);

/// Makes ids under one lease of a worker number.
///
/// Two things keep its ids apart from those of all others, whatever the clock does: it counts on from its last id
/// and never back, and it stays within the times that are its own, from its start to below its limit.
#[derive(Debug)]
pub struct Generator {
    layout: Layout,
    worker: WorkerNumber,
    /// Time and sequence of the last id, side by side. The only thing that changes with an id.
    last: AtomicU64,
    /// No id has this time or a later one. Only rises.
    limit: AtomicU64,
    /// Gives the sequence with which a millisecond begins if its first caller wants a single id.
    begin: fn() -> u32,
}

/// Below [`BEGIN_END`], at random: with few ids a second each begins its millisecond, and would otherwise be the same
/// modulo any power of two.
fn random_begin() -> u32 {
    rand::rng().random_range(0..BEGIN_END)
}

/// Ids in a row: `first`, `first + 1`, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The lowest.
    pub first: u64,
    /// How many, at least one.
    pub count: u32,
}

impl Run {
    /// The ids.
    pub fn ids(self) -> impl Iterator<Item = u64> {
        self.first..self.first + u64::from(self.count)
    }
}

/// Why there is no id now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The ids of this millisecond are used up; the next one has more.
    Full,
    /// The clock shows an earlier time than the last id has.
    Behind {
        /// By how many milliseconds.
        by_ms: u64,
    },
    /// The clock has reached the limit.
    AtLimit,
    /// The layout has no room for this time.
    Ended,
    /// The generator is closed for good.
    Closed,
}

impl Generator {
    /// A generator whose first id has the time `start_ms` at the earliest, in milliseconds since 1970. It makes
    /// none before [`Self::raise_limit`].
    #[must_use]
    pub fn new(layout: Layout, worker: WorkerNumber, start_ms: u64) -> Self {
        // The millisecond before counts as used up.
        let start = start_ms.saturating_sub(layout.epoch_ms()).clamp(1, TIME_END);
        let last = AtomicU64::new((start << SEQUENCE_BITS) - 1);
        Self { layout, worker, last, limit: AtomicU64::new(0), begin: random_begin }
    }

    /// The worker number in its ids.
    #[must_use]
    pub const fn worker(&self) -> WorkerNumber {
        self.worker
    }

    /// From now on ids may have times below `limit_ms`, in milliseconds since 1970. A lower limit than before
    /// changes nothing.
    pub fn raise_limit(&self, limit_ms: u64) {
        self.limit.fetch_max(limit_ms.saturating_sub(self.layout.epoch_ms()), Ordering::AcqRel);
    }

    /// The next ids: `count` of them, or as many as this millisecond still has.
    ///
    /// # Errors
    /// [`Stop`]. Nothing is used up then.
    pub fn take(&self, clock: &(impl Clock + ?Sized), count: u32) -> Result<Run, Stop> {
        let mut last = self.last.load(Ordering::Acquire);
        loop {
            if last & CLOSED != 0 {
                return Err(Stop::Closed);
            }
            // Read the clock after the state: the writer of the state had read the clock before.
            let now = clock.now_ms().saturating_sub(self.layout.epoch_ms());
            let time = last >> SEQUENCE_BITS;
            if now < time {
                return Err(Stop::Behind { by_ms: time - now });
            }
            if now >= TIME_END {
                return Err(Stop::Ended);
            }
            if now >= self.limit.load(Ordering::Acquire) {
                return Err(Stop::AtLimit);
            }
            let used = match count {
                _ if now == time => (last & u64::from(PER_MS - 1)) as u32 + 1,
                0 | 1 => (self.begin)(),
                // Callers that want many get all of a millisecond.
                _ => 0,
            };
            if used == PER_MS {
                return Err(Stop::Full);
            }
            let count = count.clamp(1, PER_MS - used);
            let first = now << SEQUENCE_BITS | u64::from(used);
            let new = first + u64::from(count) - 1;
            match self.last.compare_exchange_weak(last, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(Run { first: layout::id(first, self.worker), count }),
                Err(seen) => last = seen,
            }
        }
    }

    /// How far the clock is behind the last id, in milliseconds.
    pub fn behind_ms(&self, clock: &(impl Clock + ?Sized)) -> u64 {
        // As in `take`: the state first.
        let time = (self.last.load(Ordering::Acquire) & !CLOSED) >> SEQUENCE_BITS;
        time.saturating_sub(clock.now_ms().saturating_sub(self.layout.epoch_ms()))
    }

    /// Closes it. Answers the first time that none of its ids has, nor will have, in milliseconds since 1970.
    ///
    /// One atomic word holds both the last id and the end, so a concurrent caller finds the generator closed.
    pub fn close(&self) -> u64 {
        let last = self.last.fetch_or(CLOSED, Ordering::AcqRel) & !CLOSED;
        self.layout.epoch_ms() + (last >> SEQUENCE_BITS) + 1
    }
}

#[cfg(test)]
mod tests;
