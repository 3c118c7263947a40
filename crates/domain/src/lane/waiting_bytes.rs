//! The memory of an instance for jobs that wait: its lanes ask before they take one in, and leave it in the ledger where there
//! is no room.
//!
//! Lanes on two threads that ask at once may both get the last room, so that each thread may put one job beyond the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::limits::{JOB_BYTES, LANE_BYTES_OWN, SESSION_BYTES_OWN};
use crate::LaneId;

/// What the lanes of one instance have in memory of jobs that wait. Clones count together.
#[derive(Clone, Debug)]
pub struct WaitingBytes {
    total: Arc<AtomicUsize>,
    max: usize,
}

/// What one queue has of it. Dropping it gives that back.
pub(super) struct WaitingShare {
    of: WaitingBytes,
    /// Bytes that the queue may have whatever the others have.
    own: usize,
    jobs: usize,
    /// Bytes of the jobs' texts.
    texts: usize,
}

impl WaitingBytes {
    /// Room for `max` bytes, besides those that each lane may have whatever the others have.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { total: Arc::default(), max }
    }

    /// The bytes of all jobs that wait in memory; each counts with [`JOB_BYTES`] besides its texts.
    #[must_use]
    pub fn total(&self) -> usize {
        self.total.load(Ordering::Relaxed)
    }

    /// A lane's share, still empty.
    pub(super) fn share_of(&self, lane: &LaneId) -> WaitingShare {
        self.share(if lane.is_session() { SESSION_BYTES_OWN } else { LANE_BYTES_OWN })
    }

    /// An empty share, which may have so many bytes whatever the others have.
    pub(super) fn share(&self, own: usize) -> WaitingShare {
        WaitingShare { of: self.clone(), own, jobs: 0, texts: 0 }
    }
}

impl WaitingShare {
    /// The bytes of its jobs' texts.
    pub(super) const fn texts(&self) -> usize {
        self.texts
    }

    /// Bytes that it may have whatever the others have.
    pub(super) const fn own(&self) -> usize {
        self.own
    }

    /// Whether there is room for one more job with such texts: in so many times the bytes of its own, or in what the instance
    /// has left.
    pub(super) fn has_room(&self, times: usize, texts: usize) -> bool {
        let more = texts + JOB_BYTES;
        self.bytes() + more <= times * self.own || self.of.total() + more <= self.of.max
    }

    /// A job with such texts is in memory, whether or not there was room.
    pub(super) fn add(&mut self, texts: usize) {
        self.of.total.fetch_add(texts + JOB_BYTES, Ordering::Relaxed);
        (self.jobs, self.texts) = (self.jobs + 1, self.texts + texts);
    }

    /// A job that was added with such texts has left.
    pub(super) fn remove(&mut self, texts: usize) {
        self.of.total.fetch_sub(texts + JOB_BYTES, Ordering::Relaxed);
        (self.jobs, self.texts) = (self.jobs - 1, self.texts - texts);
    }

    /// All have left.
    pub(super) fn clear(&mut self) {
        self.of.total.fetch_sub(self.bytes(), Ordering::Relaxed);
        (self.jobs, self.texts) = (0, 0);
    }

    /// What its jobs take in memory.
    pub(super) const fn bytes(&self) -> usize {
        self.texts + self.jobs * JOB_BYTES
    }
}

impl Drop for WaitingShare {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_has_its_own_bytes_and_what_the_others_leave() {
        let memory = WaitingBytes::new(10 * JOB_BYTES);
        let (mut first, mut second) = (memory.share(0), memory.share(2 * JOB_BYTES));
        first.add(8 * JOB_BYTES);
        assert!(first.has_room(1, 0) && !first.has_room(1, 1));
        second.add(0);
        assert!(!first.has_room(1, 0) && second.has_room(1, 0), "it has bytes of its own");
        second.add(JOB_BYTES);
        assert!(!second.has_room(1, 0) && second.has_room(2, 0));
        assert_eq!((memory.total(), second.texts()), (12 * JOB_BYTES, JOB_BYTES));
    }

    #[test]
    fn what_leaves_makes_room_however_it_leaves() {
        let memory = WaitingBytes::new(2 * JOB_BYTES);
        let (mut first, mut second) = (memory.share(0), memory.share(0));
        first.add(JOB_BYTES);
        assert!(!second.has_room(1, 0));
        first.remove(JOB_BYTES);
        assert!(second.has_room(1, JOB_BYTES));
        second.add(JOB_BYTES);
        second.clear();
        assert!(first.has_room(1, JOB_BYTES));
        first.add(JOB_BYTES);
        drop(first);
        assert_eq!(memory.total(), 0);
    }
}
