//! Turns of requests whose reads take many rows or much memory: few such requests read at once, and one of each token.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{Mutex, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// A turn, until it is dropped. A read may go on when its caller leaves, or when its time is over. So the calls to the ledger are
/// to keep the turn ([`ledger::keeping`]), and not the handler of the request alone.
pub struct ReadTurn {
    _of_token: Option<OwnedMutexGuard<()>>,
    _of_all: OwnedSemaphorePermit,
}

impl ReadTurn {
    /// Waits for the turn of the caller's token, where there is one, and then for one of all. `None` where they do not come in
    /// time.
    pub async fn take(
        of_token: Option<&Arc<Mutex<()>>>,
        of_all: &Arc<Semaphore>,
        until: Instant,
    ) -> Option<Self> {
        let turn = async {
            let of_token = match of_token {
                Some(of_token) => Some(Arc::clone(of_token).lock_owned().await),
                None => None,
            };
            // Nobody closes the semaphore.
            let of_all = Arc::clone(of_all).acquire_owned().await.ok()?;
            Some(Self { _of_token: of_token, _of_all: of_all })
        };
        tokio::time::timeout_at(until.into(), turn).await.ok()?
    }
}
