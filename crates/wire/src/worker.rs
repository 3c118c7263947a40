//! The worker socket, `GET /v1/nodes/ws`: the frames between a node and the scheduler.
//!
//! A message is a JSON text: one frame, or, where the node's `hello` said `batch`, an array of frames. `type`
//! stands anywhere in a frame, and first in those of the scheduler. The scheduler reads a node's frames strictly: an unknown
//! type, an unknown or repeated field, or a number out of range closes the socket with [`close::PROTOCOL`]. A node
//! ignores unknown fields in the scheduler's frames; the scheduler sends new types only to nodes whose
//! `hello` asks for them.

mod frames;
mod message;

pub use frames::{
    AttemptFailure, AttemptOutcome, AttemptProgress, AttemptRef, AttemptResult, Dispatch, Heartbeat,
    HeartbeatOk, Hello, Languages, Load, Nothing, Notice, Reject, SocketProblem, Welcome,
};
pub use message::{Message, NodeFrame, SchedulerFrame};

/// The subprotocol that both sides name in the handshake.
pub const SUBPROTOCOL: &str = "fencepost.v1";

/// Close codes of this socket and of a session's ([`crate::sessions`]). Nodes get all but the first.
pub mod close {
    /// Either side of a session's socket is done; the daemon sends it when the session is closed and all its results were sent.
    pub const NORMAL: u16 = 1000;
    /// The scheduler is shutting down: connect to another instance.
    pub const GOING_AWAY: u16 = 1001;
    /// The instance has no room for a message, or for the node: connect again, to this instance later or to another.
    pub const OVERLOADED: u16 = 1013;
    /// The other side broke the protocol. A `problem` frame before the close frame says how.
    pub const PROTOCOL: u16 = 4400;
    /// The token of an open socket is good no more, or the node is another token's. An upgrade request without a valid token
    /// is refused with an HTTP status instead.
    pub const UNAUTHORIZED: u16 = 4401;
    /// A newer connection of the same node took over. The replaced side does not connect again.
    pub const REPLACED: u16 = 4409;
    /// The other side reads too slowly.
    pub const SLOW_READER: u16 = 4429;
}

/// Usual reasons of a `reject`.
pub mod reason {
    /// All slots are taken.
    pub const FULL: &str = "full";
    /// The node takes no more work.
    pub const DRAINING: &str = "draining";
    /// The node cannot run this job.
    pub const UNABLE: &str = "unable";
}

#[cfg(test)]
mod tests;
