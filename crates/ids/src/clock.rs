//! The wall clock, as generators see it. It may be wrong, stand still, or jump either way: what is built on it
//! must hold all the same.

use std::time::{SystemTime, UNIX_EPOCH};

/// Tells the time. Waits are measured by the monotonic clock of the runtime instead.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970-01-01T00:00:00Z; 0 for anything before.
    fn now_ms(&self) -> u64;
}

/// The clock of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

impl<C: Clock + ?Sized> Clock for std::sync::Arc<C> {
    fn now_ms(&self) -> u64 {
        (**self).now_ms()
    }
}
