//! What is there only once the ledger was reached. Until then `gate` lets no request pass that would ask for it, so
//! handlers use it as if it had always been there.

use std::ops::Deref;
use std::sync::OnceLock;

/// Set once.
pub struct Late<T>(OnceLock<T>);

impl<T> Default for Late<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Late<T> {
    /// From now on it is there.
    pub fn set(&self, value: T) {
        assert!(self.0.set(value).is_ok(), "it is set once");
    }
}

impl<T> Deref for Late<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.get().expect("the gate lets nobody in before it is there")
    }
}
