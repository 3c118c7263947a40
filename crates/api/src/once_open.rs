//! Values that exist only since the server was opened, which is when the ledger was reached. Until then `gate` holds
//! or refuses every request whose handler would use one, so handlers use them without asking.

use std::ops::Deref;
use std::sync::OnceLock;

/// Set once.
pub struct OnceOpen<T>(OnceLock<T>);

impl<T> Default for OnceOpen<T> {
    fn default() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> OnceOpen<T> {
    /// From now on it is there.
    pub fn set(&self, value: T) {
        assert!(self.0.set(value).is_ok(), "it is set once");
    }
}

impl<T> Deref for OnceOpen<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.get().expect("the gate lets nobody in before it is there")
    }
}
