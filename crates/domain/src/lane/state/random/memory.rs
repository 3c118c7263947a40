//! Lanes that share the memory of their instance.

use std::sync::LazyLock;

use super::*;
use crate::lane::limits::JOB_BYTES;

/// Bytes of a large payload.
const LARGE: usize = 1 << 20;

/// A large payload.
pub(super) fn large() -> Arc<str> {
    static TEXT: LazyLock<Arc<str>> = LazyLock::new(|| "7".repeat(LARGE).into());
    Arc::clone(&TEXT)
}

/// The memory of one case of many: without room, with room for some jobs, and for all.
pub(super) fn of_case(case: u64) -> WaitingBytes {
    WaitingBytes::new([0, 4 * LARGE, 512 * LARGE][(case % 3) as usize])
}

impl World {
    /// A large job is accepted, which no node takes for the time being.
    fn submit_large(&mut self) {
        let mut pending = submission(self.next, Due::Now, None, self.now);
        pending.submission.spec.payload = large();
        self.submitted.insert(self.next);
        self.next += 1;
        self.give(Command::Submit(vec![pending]));
        self.settle();
    }
}

#[test]
fn lanes_keep_no_more_in_memory_than_their_instance_has_and_all_jobs_are_served() {
    let (seed, room, many) = (seed(), 8 * LARGE, 20);
    // Each lane has one job in any case.
    let most = room + many * (LARGE + JOB_BYTES);
    for ordering in [Ordering::Strict, Ordering::Free] {
        let memory = WaitingBytes::new(room);
        let lanes = (0..many as u64).map(|n| World::new(seed.wrapping_add(n), Some(ordering), &memory));
        let mut lanes: Vec<_> = lanes.collect();
        for lane in &mut lanes {
            lane.is_unserved = true;
            for _ in 0..8 {
                lane.submit_large();
                assert!(memory.total() <= most, "{}", memory.total());
            }
        }
        assert!(memory.total() > many * LARGE, "each has one");
        let before = memory.total();
        lanes.truncate(many / 2);
        assert!(memory.total() < before, "what ends gives back what it had");
        for lane in &mut lanes {
            lane.is_unserved = false;
            lane.finish();
            assert_eq!(lane.rows.len(), 8);
            assert!(memory.total() <= most, "{}", memory.total());
        }
        assert_eq!(memory.total(), 0);
    }
}
