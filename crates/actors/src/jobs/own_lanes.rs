//! The lanes of this instance for jobs without a session, one for each arbiter, and which of them a new job goes to.
//!
//! Jobs of one lane share its commits, and a commit costs little more for ten jobs than for one. So the jobs go to the first
//! lane for as long as it keeps up, and only then to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::LaneId;

use super::limits::LANE_SUBMISSIONS_GOOD;

/// The lanes, by the numbers of their arbiters.
pub(super) struct OwnLanes {
    lanes: Vec<OwnLane>,
}

struct OwnLane {
    id: LaneId,
    waiting: Arc<AtomicUsize>,
}

/// A submission that waits for its commit in a lane.
pub(super) struct WaitingSubmission {
    waiting: Arc<AtomicUsize>,
}

impl OwnLanes {
    /// At least one.
    pub(super) fn new(ids: impl IntoIterator<Item = LaneId>) -> Self {
        Self { lanes: ids.into_iter().map(|id| OwnLane { id, waiting: Arc::default() }).collect() }
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &LaneId> {
        self.lanes.iter().map(|lane| &lane.id)
    }

    /// The lane for so many new jobs, and what counts each as waiting in it: the first lane in which fewer wait than a commit
    /// carries well; where all have as many, the one with the fewest.
    pub(super) fn choose(&self, jobs: usize) -> (&LaneId, Vec<WaitingSubmission>) {
        let waiting = |lane: &&OwnLane| lane.waiting.load(Ordering::Relaxed);
        let first = self.lanes.iter().find(|lane| waiting(lane) < LANE_SUBMISSIONS_GOOD);
        let lane =
            first.or_else(|| self.lanes.iter().min_by_key(waiting)).expect("there is at least one lane");
        lane.waiting.fetch_add(jobs, Ordering::Relaxed);
        let counted = || WaitingSubmission { waiting: Arc::clone(&lane.waiting) };
        (&lane.id, std::iter::repeat_with(counted).take(jobs).collect())
    }
}

impl Drop for WaitingSubmission {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use domain::InstanceId;

    use super::*;

    fn lanes(count: u16) -> OwnLanes {
        let me = InstanceId::parse("me-1").unwrap();
        OwnLanes::new((0..count).map(|number| LaneId::instance(&me, number)))
    }

    fn number(lane: &LaneId) -> usize {
        lane.shard(usize::MAX)
    }

    #[test]
    fn jobs_go_to_the_first_lane_that_keeps_up() {
        let lanes = lanes(3);
        assert_eq!(lanes.ids().map(number).collect::<Vec<_>>(), [0, 1, 2]);
        let mut kept = Vec::new();
        for expected in 0..3 {
            let (lane, waiting) = lanes.choose(LANE_SUBMISSIONS_GOOD);
            assert_eq!(number(lane), expected);
            kept.push(waiting);
        }
        // All are full: the one with the fewest, which is the first of equals.
        let (lane, more) = lanes.choose(1);
        assert_eq!(number(lane), 0);
        assert_eq!(number(lanes.choose(0).0), 1);
        // One has caught up.
        kept.pop();
        assert_eq!(number(lanes.choose(0).0), 2);
        drop((kept, more));
        assert_eq!(number(lanes.choose(0).0), 0);
    }
}
