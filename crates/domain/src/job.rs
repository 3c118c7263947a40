//! Jobs: the states of one, its attempts, and what may be done to it.
//!
//! A job may run more than once after a failure; exactly one result is ever recorded, and only of its newest
//! attempt. The write that ends an attempt makes the next number the only valid one: a later report of an
//! earlier attempt is stale.
//!
//! ```text
//!                 dispatch n + 1              ack n
//!   (submit) ──▶ CREATED ──────▶ DISPATCHED ────────▶ RUNNING
//!                 ▲   │             │   │               │   │
//!                 │   │ cancel      │   │ result n      │   │ result n, cancel,
//!                 │   ▼             │   ▼               │   ▼ last attempt lost or timed out
//!                 │  FINISHED ◀─────┼── FINISHED        │  FINISHED
//!                 │                 │                   │
//!                 └─────────────────┴───────────────────┘
//!            n failed with attempts left, or n revoked
//! ```

mod attempt;
mod change;
mod record;
mod spec;

pub use attempt::{CurrentAttempt, Ended, Event, Revoked, Step, Unfit, decide};
pub use change::{Change, NewJob, Retry};
pub use record::{
    JobKey, JobVerdict, JobWrite, LiveJob, PromotedJob, RevokedAttempt, UnderWay, WaitingGroup,
};
pub use spec::*;

use crate::id::{InstanceId, NodeId};
use crate::named::named;
use crate::time::Timestamp;

use std::fmt;

named!(
    /// The state of a job, as tables and answers show it.
    State, "state" {
        /// Accepted; no attempt is under way.
        Created = "CREATED",
        /// The newest attempt was given to a node and is not acknowledged yet.
        Dispatched = "DISPATCHED",
        /// The node has acknowledged the newest attempt.
        Running = "RUNNING",
        /// It has its one result. Final.
        Finished = "FINISHED",
    }
);

named!(
    /// How a job ended.
    Outcome, "outcome" {
        /// A node said so, and gave its output.
        Succeeded = "succeeded",
        /// It will not be tried again: a node said so, or its attempts are used up (it is *dead*).
        Failed = "failed",
        /// A caller cancelled it.
        Cancelled = "cancelled",
        /// Its last attempt ran for too long.
        TimedOut = "timed_out",
    }
);

/// The number of an attempt: 1 for the first, 0 before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(u32);

impl Attempt {
    /// No attempt was made yet.
    pub const NONE: Self = Self(0);

    /// The attempt of this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The one after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where the newest attempt is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// The node that has it.
    pub node: NodeId,
    /// The instance that held the node's socket when it was dispatched.
    pub holder: InstanceId,
}

/// One attempt that is over, for the reader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PastAttempt {
    /// Its number.
    pub attempt: Attempt,
    /// Who had it.
    pub node: NodeId,
    /// How it ended.
    pub ended: Ended,
    /// Why, in words; empty for a success.
    pub reason: String,
    /// When the attempt ended, by the database's clock.
    pub at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back_what_they_print() {
        for state in State::ALL.iter().copied() {
            assert_eq!(State::parse(state.as_str()), Ok(state));
        }
        for outcome in Outcome::ALL.iter().copied() {
            assert_eq!(Outcome::parse(outcome.as_str()), Ok(outcome));
        }
    }
}
