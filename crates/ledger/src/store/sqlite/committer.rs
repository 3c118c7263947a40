//! What commits a train on SQLite: one transaction on the one writer.

use super::pools::Pools;
use crate::sql::Session;
use crate::store::Way;
use crate::store::committer::{Watches, Write, transact};
use crate::train::{Arrival, Engine};

/// Commits one train after the other.
pub(super) struct Committer {
    pub(super) pools: Pools,
    pub(super) watches: Watches,
}

#[async_trait::async_trait]
impl<C: Write> Engine<C> for Committer {
    async fn commit(&mut self, batches: &[C]) -> Arrival<C> {
        let arrival = commit(&self.pools, batches).await;
        self.watches.saw(&arrival);
        arrival
    }
}

/// A connection whose transaction did not end is closed by the pool.
async fn commit<C: Write>(pools: &Pools, batches: &[C]) -> Arrival<C> {
    let mut connection = pools.lend(Way::Writes).await?;
    Ok(transact(&mut Session::Sqlite(&mut connection), batches).await?.verdicts)
}
