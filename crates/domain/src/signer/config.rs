//! What a signer's state is given once: its limits and lengths, and where it gets chance from.

use std::time::Duration;

use crate::id::{HoldId, InstanceId};

/// What a state takes from outside besides the time.
#[derive(Clone, Copy, Debug)]
pub struct Sources {
    /// Draws a hold's id.
    pub hold_id: fn() -> HoldId,
    /// Makes a pause somewhat longer or shorter, so that those who wait for the same do not come in step.
    pub jittered: fn(Duration) -> Duration,
}

/// What all signers' owners of an instance have in common.
#[derive(Clone, Debug)]
pub struct SignerConfig {
    /// This instance.
    pub owner: InstanceId,
    /// Length of a hold when neither request nor policy says, in milliseconds.
    pub hold_ms: u64,
    /// How long a lease is kept at most while there is work (basic mode).
    pub lease_kept_max: Duration,
    /// How long a lease is kept without work (worker-queue mode).
    pub idle: Duration,
    /// Commands that may wait for one signer, besides those being decided or committed.
    pub waiting_commands_max: usize,
    /// Batches of one signer that may be on their way at once; at least 1.
    pub commits_in_flight_max: usize,
    /// Nonces that must be asked for by those that wait before a batch leaves while another is on its way. Below that they
    /// wait and share the next one.
    pub nonces_beside_min: usize,
    /// Chance.
    pub sources: Sources,
}
