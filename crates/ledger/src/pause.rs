//! Pauses: how long to wait before trying again.

use std::time::Duration;

use rand::RngExt;

/// Half to one and a half times as long, so that those who wait for the same do not come in step.
#[must_use]
pub fn jittered(length: Duration) -> Duration {
    length.mul_f64(rand::rng().random_range(0.5..1.5))
}
