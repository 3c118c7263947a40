//! The window of a session's socket: how many jobs, and how many bytes of them, may be sent and not accepted yet.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Jobs that may be sent and not accepted yet. Twice as many as the daemon handles at once.
pub const UNACCEPTED_JOBS_MAX: u32 = 512;
/// Bytes of their frames, together.
pub const UNACCEPTED_BYTES_MAX: u32 = 8 << 20;

/// The window of one socket. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub(super) struct SendWindow {
    jobs: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// What one job takes of the window, until this is dropped.
#[derive(Debug, Default)]
pub(super) struct SendPermit {
    _of_jobs: Option<OwnedSemaphorePermit>,
    _of_bytes: Option<OwnedSemaphorePermit>,
}

impl SendWindow {
    pub(super) fn new() -> Self {
        let of = |count: u32| Arc::new(Semaphore::new(count as usize));
        Self { jobs: of(UNACCEPTED_JOBS_MAX), bytes: of(UNACCEPTED_BYTES_MAX) }
    }

    /// Waits until the window has room for a job of this many bytes; first come, first served.
    pub(super) async fn take(&self, bytes: usize) -> SendPermit {
        let bytes =
            u32::try_from(bytes).map_or(UNACCEPTED_BYTES_MAX, |bytes| bytes.min(UNACCEPTED_BYTES_MAX));
        // Neither is ever closed.
        let of_jobs = Arc::clone(&self.jobs).acquire_owned().await.ok();
        let of_bytes = Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok();
        SendPermit { _of_jobs: of_jobs, _of_bytes: of_bytes }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn there_is_room_for_so_many_jobs_and_so_many_bytes() {
        let window = SendWindow::new();
        let mut taken: Vec<_> =
            (0..UNACCEPTED_JOBS_MAX).map(|_| window.take(1).now_or_never().unwrap()).collect();
        assert!(window.take(1).now_or_never().is_none());
        taken.pop();
        taken.push(window.take(1).now_or_never().unwrap());
        drop(taken);
        // A job that is longer than the window takes all of it.
        let _long = window.take(usize::MAX).now_or_never().unwrap();
        assert!(window.take(1).now_or_never().is_none());
    }
}
