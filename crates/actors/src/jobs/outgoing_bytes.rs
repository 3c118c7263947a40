//! How many bytes of attempts are on their way to the sockets of this instance's nodes at once. Beyond the limit an attempt is undeliverable, and its lane tries again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::delivery::Dispatch;

/// The limit of one instance.
#[derive(Debug)]
pub(super) struct OutgoingBytes {
    used: AtomicUsize,
    max: usize,
}

/// The bytes of one attempt; given back when it is dropped.
#[derive(Debug)]
pub(super) struct OutgoingShare {
    of: Arc<OutgoingBytes>,
    bytes: usize,
}

impl OutgoingBytes {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), max })
    }

    /// The share of an attempt; `None` where the limit is reached.
    pub(super) fn take(self: &Arc<Self>, dispatch: &Dispatch) -> Option<OutgoingShare> {
        let bytes = dispatch.node_job.text_bytes();
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        Some(OutgoingShare { of: Arc::clone(self), bytes })
    }
}

impl Drop for OutgoingShare {
    fn drop(&mut self) {
        self.of.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::fixture::dispatch;

    #[test]
    fn attempts_on_their_way_have_a_limit_and_what_has_arrived_makes_room() {
        let one = dispatch(1, "n", "a");
        let bytes = one.node_job.text_bytes();
        let outgoing = OutgoingBytes::new(2 * bytes);
        let shares = [outgoing.take(&one).unwrap(), outgoing.take(&one).unwrap()];
        assert!(outgoing.take(&one).is_none());
        drop(shares);
        assert!(outgoing.take(&one).is_some());
        assert_eq!(outgoing.used.load(Ordering::Relaxed), 0);
    }
}
