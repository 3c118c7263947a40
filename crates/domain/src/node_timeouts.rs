//! The times after which an instance acts on what a node, or an attempt on it, has not said.

use std::time::Duration;

/// How long an instance waits for its nodes. All instances of a cluster have the same values.
///
/// These relations hold: two and a half heartbeats < `vouched` < `reservation` < `offline`, and
/// `ack` < `unanswered`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeTimeouts {
    /// The time between two heartbeats of a node.
    pub heartbeat: Duration,
    /// A node without an update for this long is offline; its record lives for as long after each write.
    pub offline: Duration,
    /// How long each write of a node's record vouches for the slots in it.
    pub vouched: Duration,
    /// How long a reserved slot waits for its dispatch.
    pub reservation: Duration,
    /// How long a node may take to acknowledge an attempt before the attempt is revoked.
    pub ack: Duration,
    /// How long an attempt that was sent may stay unanswered before the node's connection is closed.
    pub unanswered: Duration,
    /// Once an attempt has been under way for this long, the owner of its lane looks for its slot in the node's record, and
    /// the holder of the node's socket looks for the attempt in the ledger.
    pub stranded: Duration,
}

impl NodeTimeouts {
    /// The values of an instance that is not configured otherwise.
    pub const DEFAULT: Self = Self {
        heartbeat: Duration::from_secs(2),
        offline: Duration::from_secs(30),
        vouched: Duration::from_secs(6),
        reservation: Duration::from_secs(10),
        ack: Duration::from_secs(5),
        unanswered: Duration::from_secs(10),
        stranded: Duration::from_secs(10),
    };
}

impl Default for NodeTimeouts {
    fn default() -> Self {
        Self::DEFAULT
    }
}
