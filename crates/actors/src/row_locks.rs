//! Locks for the rows of leases' names: of those who take what has a lease, one at a time goes on in each row.

use domain::{Resource, shard_of};
use tokio::sync::{Mutex, MutexGuard};

/// So many rows are side by side.
const ROWS: usize = 64;

/// One lock for each row, held while something is taken, so that nothing is taken twice.
pub(crate) struct RowLocks([Mutex<()>; ROWS]);

impl Default for RowLocks {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Mutex::default()))
    }
}

impl RowLocks {
    /// Waits for the turn in the row of this lease. The turn lasts until the guard is dropped.
    pub(crate) async fn turn(&self, of: &Resource) -> MutexGuard<'_, ()> {
        self.0[shard_of(of.as_str(), ROWS)].lock().await
    }
}
