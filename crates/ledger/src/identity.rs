//! Which ledger it is, and whether it went back in time.
//!
//! A restored backup, a failover to a replica that lagged, or a file that was put back would repeat nonces, ids and tokens.
//! So the ledger has an identity and a position that its instances raise a few times a second. A process remembers the
//! highest that it saw, in memory and beside its data; a ledger with a lower one, or another ledger, went back. On PostgreSQL
//! every statement that grants something compares the two as well (`ledger_is_current`), so nothing is granted between two
//! looks. [`crate::recover`] raises the position past every one that can have been seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde::{Deserialize, Serialize};

/// Which ledger it is, and how far it has got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The ledger, as long as its tables are.
    pub cluster: String,
    /// Rises with every look of an instance.
    pub position: i64,
}

/// What a look at the ledger's identity has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Witness {
    /// The ledger is the one that was known, and as far at least. Its position was raised.
    Current(Identity),
    /// It is behind what was known, or another one.
    WentBack(Identity),
}

/// The highest position that this process has seen. All clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remembered(Arc<AtomicI64>);

impl Remembered {
    /// The position; 0 before the first look.
    pub(crate) fn position(&self) -> i64 {
        self.0.load(Ordering::Acquire)
    }

    /// Notes a position. A lower one changes nothing.
    pub(crate) fn saw(&self, position: i64) {
        self.0.fetch_max(position, Ordering::AcqRel);
    }
}
