//! How much may be sent and not accepted.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::socket::{UNACCEPTED_BYTES_MAX, UNACCEPTED_JOBS_MAX};

/// The room of one socket. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Rooms {
    jobs: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

/// What one job takes up, until this is dropped.
#[derive(Debug, Default)]
pub(super) struct Room {
    _of_jobs: Option<OwnedSemaphorePermit>,
    _of_bytes: Option<OwnedSemaphorePermit>,
}

impl Rooms {
    pub(super) fn new() -> Self {
        let of = |count: u32| Arc::new(Semaphore::new(count as usize));
        Self { jobs: of(UNACCEPTED_JOBS_MAX), bytes: of(UNACCEPTED_BYTES_MAX) }
    }

    /// Waits for room for a frame of so many bytes, behind who came before.
    pub(super) async fn take(&self, bytes: usize) -> Room {
        let bytes =
            u32::try_from(bytes).map_or(UNACCEPTED_BYTES_MAX, |bytes| bytes.min(UNACCEPTED_BYTES_MAX));
        // Neither is ever closed.
        let of_jobs = Arc::clone(&self.jobs).acquire_owned().await.ok();
        let of_bytes = Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok();
        Room { _of_jobs: of_jobs, _of_bytes: of_bytes }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn there_is_room_for_so_many_jobs_and_so_many_bytes() {
        let rooms = Rooms::new();
        let mut taken: Vec<_> =
            (0..UNACCEPTED_JOBS_MAX).map(|_| rooms.take(1).now_or_never().unwrap()).collect();
        assert!(rooms.take(1).now_or_never().is_none());
        taken.pop();
        taken.push(rooms.take(1).now_or_never().unwrap());
        drop(taken);
        // One that is longer than all of the room has it alone.
        let _long = rooms.take(usize::MAX).now_or_never().unwrap();
        assert!(rooms.take(1).now_or_never().is_none());
    }
}
