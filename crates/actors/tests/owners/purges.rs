//! What the upkeep has asked the ledger to forget.

use std::collections::BTreeSet;
use std::sync::Mutex;

/// What was purged, and from which age on, in milliseconds.
#[derive(Default)]
pub struct Purges(Mutex<BTreeSet<(&'static str, u64)>>);

impl Purges {
    /// This is to be purged from that age on; the age.
    pub fn note(&self, what: &'static str, age_ms: u64) -> u64 {
        self.0.lock().unwrap().insert((what, age_ms));
        age_ms
    }

    /// Each once, in the order of the names.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        self.0.lock().unwrap().iter().copied().collect()
    }
}
