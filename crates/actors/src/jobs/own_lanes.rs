//! The lanes of this instance for jobs without a session, one for each arbiter, and which of them a new job goes to.
//!
//! Jobs of one lane share its commits, and a commit costs little more for ten jobs than for one. So the jobs go to the first
//! lane for as long as it keeps up, and only then to the next. A large batch goes to two, whose commits then overlap.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use domain::LaneId;

use super::limits::{BATCH_LANE_JOBS_MIN, BATCH_LANE_SLOTS_MIN, BATCH_LANES_MAX, LANE_SUBMISSIONS_GOOD};

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

    /// A lane for each of so many new jobs, and what counts the job as waiting in it. A large batch takes turns between the first
    /// lanes that keep up, if the nodes here have so many slots; what is less is all one lane's.
    pub(super) fn choose(
        &self,
        jobs: usize,
        has_slots: impl FnOnce(u64) -> bool,
    ) -> Vec<(&LaneId, WaitingSubmission)> {
        let count = BATCH_LANES_MAX.min(jobs / BATCH_LANE_JOBS_MIN);
        let mut lanes = Vec::new();
        if count > 1 && has_slots(count as u64 * BATCH_LANE_SLOTS_MIN) {
            lanes.extend(self.keeping_up().take(count));
        }
        if lanes.is_empty() {
            lanes.push(self.next());
        }
        lanes.into_iter().cycle().take(jobs).map(|lane| (&lane.id, lane.wait())).collect()
    }

    /// Those in which fewer wait than a commit carries well.
    fn keeping_up(&self) -> impl Iterator<Item = &OwnLane> {
        self.lanes.iter().filter(|lane| lane.waiting() < LANE_SUBMISSIONS_GOOD)
    }

    /// The first lane that keeps up; where none does, the one in which the fewest wait.
    fn next(&self) -> &OwnLane {
        let least = || self.lanes.iter().min_by_key(|lane| lane.waiting());
        self.keeping_up().next().or_else(least).expect("there is at least one lane")
    }
}

impl OwnLane {
    fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn wait(&self) -> WaitingSubmission {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        WaitingSubmission { waiting: Arc::clone(&self.waiting) }
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
        let mut choose = |jobs| {
            let chosen = lanes.choose(jobs, |_| false);
            let lane = chosen.first().map(|(lane, _)| number(lane));
            assert!(chosen.iter().all(|(one, _)| Some(number(one)) == lane), "no slots, no turns");
            kept.push(chosen);
            lane
        };
        for expected in 0..3 {
            assert_eq!(choose(LANE_SUBMISSIONS_GOOD), Some(expected));
        }
        // All are full: the one with the fewest, which is the first of equals.
        assert_eq!([choose(1), choose(1)], [Some(0), Some(1)]);
        // One has caught up.
        kept.remove(2);
        assert_eq!(number(lanes.choose(1, |_| false)[0].0), 2);
        kept.clear();
        assert_eq!(number(lanes.choose(1, |_| false)[0].0), 0);
    }

    #[test]
    fn a_large_batch_takes_turns_between_two_lanes() {
        let lanes = lanes(3);
        let numbers = |jobs, slots| -> Vec<_> {
            let chosen = lanes.choose(jobs, |wanted| wanted <= slots);
            chosen.iter().map(|(lane, _)| number(lane)).collect()
        };
        let (jobs, slots) = (2 * BATCH_LANE_JOBS_MIN, 2 * BATCH_LANE_SLOTS_MIN);
        assert_eq!(numbers(jobs, slots), [0, 1].repeat(BATCH_LANE_JOBS_MIN));
        assert_eq!(numbers(10 * jobs, 10 * slots), [0, 1].repeat(10 * BATCH_LANE_JOBS_MIN));
        assert_eq!(numbers(jobs - 1, slots), [0].repeat(jobs - 1), "too few jobs for two");
        assert_eq!(numbers(jobs, slots - 1), [0].repeat(jobs), "too few slots for two");
        // Those that keep up.
        let kept = lanes.choose(LANE_SUBMISSIONS_GOOD, |_| false);
        assert_eq!(numbers(jobs, slots)[..3], [1, 2, 1]);
        drop(kept);
    }
}
