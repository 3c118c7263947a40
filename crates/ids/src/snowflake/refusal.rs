//! Why there are no snowflakes now, in words for the caller.

use domain::{InstanceId, WorkerNumber};

/// Why there are no snowflakes now.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Refusal {
    /// The clock went back since the last id.
    #[error("the clock of this instance went back by {by_ms} ms; no id is issued until it has caught up")]
    ClockBack {
        /// By how many milliseconds.
        by_ms: u64,
    },
    /// The clock does not move.
    #[error("the clock of this instance stands still, and the ids of this millisecond are used up")]
    ClockStill,
    /// This machine's clock and the database's do not agree.
    #[error(
        "the clock of this instance is {by_ms} ms {} the database's; {max_ms} ms are allowed; correct it",
        if *.ahead { "ahead of" } else { "behind" }
    )]
    ClockOff {
        /// Whether this machine's clock is ahead.
        ahead: bool,
        /// By how many milliseconds.
        by_ms: u64,
        /// How many milliseconds are allowed.
        max_ms: u64,
    },
    /// The last holder of the number may have made ids up to a time that the clock has not reached.
    #[error("ids of worker {number} may have been issued for the next {wait_ms} ms; wait until then")]
    MarkAhead {
        /// The number.
        number: WorkerNumber,
        /// How long the wait still is, in milliseconds.
        wait_ms: u64,
    },
    /// Others have all the numbers that this instance may use.
    #[error("{}", all_held(*.numbers, .holder))]
    NoNumber {
        /// How many it may use.
        numbers: usize,
        /// One of those that hold them.
        holder: InstanceId,
    },
    /// The layout has no room for times as late as this.
    #[error("the 41 bits of time since the epoch were used up at {ended_ms} ms after 1970")]
    Ended {
        /// When that was, in milliseconds since 1970.
        ended_ms: u64,
    },
    /// The clock is before the epoch.
    #[error("the epoch begins at {epoch_ms} ms after 1970, and the clock of this instance is before that")]
    NotBegun {
        /// When it begins, in milliseconds since 1970.
        epoch_ms: u64,
        /// How long that still is by this clock, in milliseconds.
        wait_ms: u64,
    },
    /// This instance is configured with another epoch than the fleet: they could make the same id.
    #[error("ids.epoch_ms is {configured_ms} here and {in_force_ms} in the ledger; make them agree")]
    OtherEpoch {
        /// Here.
        configured_ms: u64,
        /// In the ledger, for all.
        in_force_ms: u64,
    },
    /// The local file can neither be written nor removed, and what it says would become false.
    #[error("the local file for worker numbers can neither be written nor removed: {0}")]
    File(String),
    /// The ledger was asked and did not answer as it should.
    #[error(transparent)]
    Ledger(#[from] ledger::Error),
    /// The start is not complete, and the local file proves nothing, or nothing any more.
    #[error("this instance has not completed its start, and no local file proves a worker number now")]
    Unreached,
    /// No answer within the time of the request.
    #[error("this instance did not get a worker number, or more time for it, in time")]
    Late,
    /// The generator is stopped.
    #[error("this instance is stopping")]
    Stopped,
}

fn all_held(numbers: usize, holder: &InstanceId) -> String {
    match numbers {
        1 => format!(
            "the one worker number that this instance may use is held by {holder}, which lives or was not found dead yet"
        ),
        _ => format!(
            "all {numbers} worker numbers that this instance may use are held by instances that live or were not found \
             dead yet, {holder} among them"
        ),
    }
}

impl Refusal {
    /// How long it lasts by this machine's clock, in milliseconds, if nobody corrects that; `None` where it is not known.
    #[must_use]
    pub const fn wait_ms(&self) -> Option<u64> {
        match self {
            Self::ClockBack { by_ms } => Some(*by_ms),
            Self::MarkAhead { wait_ms, .. } | Self::NotBegun { wait_ms, .. } => Some(*wait_ms),
            Self::ClockStill
            | Self::ClockOff { .. }
            | Self::NoNumber { .. }
            | Self::Ended { .. }
            | Self::OtherEpoch { .. }
            | Self::File(_)
            | Self::Ledger(_)
            | Self::Unreached
            | Self::Late
            | Self::Stopped => None,
        }
    }

    /// Whether this machine's clock is the reason, so that an instance with another clock can serve. (A configured epoch that
    /// is not the fleet's is a mistake that nobody may serve around.)
    #[must_use]
    pub const fn is_of_the_clock(&self) -> bool {
        match self {
            Self::ClockBack { .. }
            | Self::ClockStill
            | Self::ClockOff { .. }
            | Self::MarkAhead { .. }
            | Self::NotBegun { .. } => true,
            Self::NoNumber { .. }
            | Self::Ended { .. }
            | Self::OtherEpoch { .. }
            | Self::File(_)
            | Self::Ledger(_)
            | Self::Unreached
            | Self::Late
            | Self::Stopped => false,
        }
    }
}
