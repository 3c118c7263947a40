//! The pause before a connection is tried again: doubled each time, never the same for two instances.

use std::time::Duration;

use rand::RngExt;

use crate::limits::{RECONNECT_PAUSE_MS, RECONNECT_PAUSE_MS_MAX};

/// The pauses of one connection.
#[derive(Debug)]
pub(super) struct Pause {
    mean_ms: u64,
}

impl Default for Pause {
    fn default() -> Self {
        Self { mean_ms: RECONNECT_PAUSE_MS }
    }
}

impl Pause {
    /// How long the next one is, before jitter.
    pub(super) fn mean(&self) -> Duration {
        Duration::from_millis(self.mean_ms)
    }

    /// Waits, and makes the next pause longer.
    pub(super) async fn wait(&mut self) {
        let pause = jittered(self.mean());
        self.mean_ms = (self.mean_ms * 2).min(RECONNECT_PAUSE_MS_MAX);
        tokio::time::sleep(pause).await;
    }
}

/// Half as long to one and a half times as long.
pub(super) fn jittered(mean: Duration) -> Duration {
    mean.mul_f64(rand::rng().random_range(0.5..1.5))
}
