//! The metrics of what waits for an owner: how much, and how long it waited. All owners of a kind share them.

use std::sync::LazyLock;
use std::time::Duration;

use metrics::{Gauge, Histogram};

/// The kinds of owners.
#[derive(Clone, Copy, Debug)]
pub(crate) enum QueueKind {
    Signer,
    Lane,
    Session,
    Plan,
}

/// The series of one kind.
struct Queue {
    seconds: Histogram,
    depth: Gauge,
}

/// In the order of [`QueueKind`]. Each series is looked up once: a lookup takes longer than what is measured often does.
static QUEUES: LazyLock<[Queue; 4]> = LazyLock::new(|| {
    ["signer", "lane", "session", "plan"].map(|kind| Queue {
        seconds: metrics::histogram!("fencepost_actor_queue_seconds", "kind" => kind),
        depth: metrics::gauge!("fencepost_actor_queue_depth", "kind" => kind),
    })
});

/// What one owner adds to the depth of all queues of its kind, until it is dropped.
pub(crate) struct QueueMeter {
    kind: QueueKind,
    depth: usize,
}

impl QueueMeter {
    /// The meter of an owner of this kind, for which nothing waits yet.
    pub(crate) const fn new(kind: QueueKind) -> Self {
        Self { kind, depth: 0 }
    }

    /// So much waits now.
    pub(crate) fn set_depth(&mut self, depth: usize) {
        if depth != self.depth {
            self.queue().depth.increment(depth as f64 - self.depth as f64);
            self.depth = depth;
        }
    }

    /// Something was taken up after it waited so long.
    pub(crate) fn waited(&self, length: Duration) {
        self.queue().seconds.record(length);
    }

    fn queue(&self) -> &'static Queue {
        &QUEUES[self.kind as usize]
    }
}

impl Drop for QueueMeter {
    fn drop(&mut self) {
        self.set_depth(0);
    }
}
