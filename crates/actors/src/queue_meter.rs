//! The metrics of what waits for an owner: how much, and how long it waited. All owners of a kind share them.

use std::time::Duration;

/// What one owner adds to the depth of all queues of its kind, until it is dropped.
pub(crate) struct QueueMeter {
    kind: &'static str,
    depth: usize,
}

impl QueueMeter {
    /// Of an owner of this kind, for which nothing waits yet.
    pub(crate) const fn new(kind: &'static str) -> Self {
        Self { kind, depth: 0 }
    }

    /// So much waits now.
    pub(crate) fn set_depth(&mut self, depth: usize) {
        if depth != self.depth {
            self.add(depth as f64 - self.depth as f64);
            self.depth = depth;
        }
    }

    /// Something was taken up after it waited so long.
    pub(crate) fn waited(&self, length: Duration) {
        metrics::histogram!("fencepost_actor_queue_seconds", "kind" => self.kind).record(length);
    }

    fn add(&self, change: f64) {
        metrics::gauge!("fencepost_actor_queue_depth", "kind" => self.kind).increment(change);
    }
}

impl Drop for QueueMeter {
    fn drop(&mut self) {
        self.set_depth(0);
    }
}
