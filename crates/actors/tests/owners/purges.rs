//! What the upkeep has asked the ledger to forget.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

/// What was purged, and from which age on, in milliseconds.
#[derive(Default)]
pub struct Purges {
    steps: Mutex<Vec<(&'static str, u64)>>,
    /// Each step of a purge says that there may be more.
    pub are_full: AtomicBool,
    /// Of this none is purged.
    pub fails: Mutex<&'static str>,
}

impl Purges {
    /// One step of a purge from that age on, of so many rows at most; how many it says that it has purged.
    pub async fn step(
        &self,
        (what, age_ms): (&'static str, u64),
        limit: u32,
        purge: impl Future<Output = ledger::Result<u64>>,
    ) -> ledger::Result<u64> {
        self.steps.lock().push((what, age_ms));
        if *self.fails.lock() == what {
            return Err(ledger::Error::WentBack);
        }
        let purged = purge.await?;
        Ok(if self.are_full.load(Ordering::SeqCst) { u64::from(limit) } else { purged })
    }

    /// Each once, in the order of the names.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        let mut all = self.steps();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Each step, in their order.
    pub fn steps(&self) -> Vec<(&'static str, u64)> {
        self.steps.lock().clone()
    }
}
