//! Locks for the rows of leases' names: of those who take what has a lease, one at a time goes on in each row.

use std::sync::Arc;

use domain::{Resource, shard_of};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// So many rows are side by side.
const ROWS: usize = 64;

/// One lock for each row, held while something is taken, so that nothing is taken twice.
pub(crate) struct RowLocks([Arc<Mutex<()>>; ROWS]);

impl Default for RowLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Arc::default()))
    }
}

impl RowLocks {
    /// Waits for the turn in the row of this lease. The turn lasts until the guard is dropped. A wait that is given up keeps no
    /// place in the row.
    pub(crate) async fn turn(&self, of: &Resource) -> OwnedMutexGuard<()> {
        Arc::clone(&self.0[shard_of(of.as_str(), ROWS)]).lock_owned().await
    }
}
