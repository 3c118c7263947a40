//! Whether the ledger of a test went back, and whether its signers wait for the confirmation of their next nonce.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A ledger that went back, and its recovery, as signers show it.
#[derive(Default)]
pub struct Recovery {
    /// Signers wait for the confirmation.
    pub is_on: AtomicBool,
    /// It comes as soon as rows of nonces were read.
    pub ends_after_rows: AtomicBool,
    /// The ledger is behind what its process knows.
    pub is_behind: AtomicBool,
    /// How often it was asked whether it is.
    pub asked: AtomicUsize,
}

impl Recovery {
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Whether the ledger is as far as its process knows.
    pub fn is_current(&self) -> bool {
        self.asked.fetch_add(1, Ordering::SeqCst);
        !self.is_behind.load(Ordering::SeqCst)
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
