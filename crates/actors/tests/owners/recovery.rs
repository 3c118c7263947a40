//! Whether the signers of a test wait for the confirmation of their next nonce.

use std::sync::atomic::{AtomicBool, Ordering};

/// A recovery of the ledger, as signers show it.
#[derive(Default)]
pub struct Recovery {
    /// Signers wait for the confirmation.
    pub is_on: AtomicBool,
    /// It comes as soon as rows of nonces were read.
    pub ends_after_rows: AtomicBool,
}

impl Recovery {
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Rows of nonces.
    pub async fn read<T>(&self, rows: impl Future<Output = T> + Send) -> T {
        let rows = rows.await;
        if self.ends_after_rows.swap(false, Ordering::SeqCst) {
            self.is_on.store(false, Ordering::SeqCst);
        }
        rows
    }
}
