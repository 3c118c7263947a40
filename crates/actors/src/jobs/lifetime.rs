//! How long the lanes of one incarnation go on, and whether they take on work.

use cluster::FailureDetector;
use tokio::sync::watch;

use super::Refusal;

/// How far the incarnation is. It never goes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Its lanes take commands.
    Serving,
    /// It opens no lanes any more, and releases all but its own, which take commands.
    Leaving,
    /// Its lanes finish their commits and are released.
    Stopping,
    /// Other instances may own its lanes by now.
    Over,
}

/// What a part of the instance knows of the incarnation's phase. The last handle to the jobs ends it too.
#[derive(Clone)]
pub(super) struct Lifetime {
    phase: watch::Receiver<Phase>,
    failure_detector: FailureDetector,
}

impl Lifetime {
    pub(super) const fn new(phase: watch::Receiver<Phase>, failure_detector: FailureDetector) -> Self {
        Self { phase, failure_detector }
    }

    /// Whether no handle to the jobs is left.
    pub(super) fn is_dropped(&self) -> bool {
        self.phase.has_changed().is_err()
    }

    /// Whether its own lanes take commands.
    pub(super) fn is_serving(&self) -> bool {
        *self.phase.borrow() < Phase::Stopping && !self.is_dropped()
    }

    /// Whether it serves also other lanes than its own.
    pub(super) fn keeps_others(&self) -> bool {
        *self.phase.borrow() == Phase::Serving && !self.is_dropped()
    }

    pub(super) fn is_over(&self) -> bool {
        *self.phase.borrow() == Phase::Over
    }

    /// Whether the incarnation opens lanes, and its own lease surely lasts.
    pub(super) fn takes_work(&self) -> bool {
        self.keeps_others() && self.failure_detector.is_alive()
    }

    /// The refusal for a caller whose answer was lost: its lane's owner panicked, or the incarnation has ended.
    pub(super) fn refusal_of_lost_owner(&self) -> Refusal {
        if self.keeps_others() { Refusal::Internal } else { Refusal::Fenced }
    }
}
