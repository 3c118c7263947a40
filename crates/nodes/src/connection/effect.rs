//! The actions that the task of a socket must carry out.

use bus::{NodeState, Slot};

use super::frame::{End, Hello, Progress, ToNode};
use crate::record::Load;

/// One thing to be done. Those of one call are done in their order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The node said hello: its record is to be taken over at the bus, with what it runs, and then
    /// [`super::Connection::registered`] is to be called.
    Register(Hello),
    /// This frame goes to the node.
    Send(ToNode),
    /// It was heard of: its record is to be refreshed at the bus.
    Heartbeat {
        /// How busy its machine is.
        load: Load,
        /// Their slots are to be freed with it: the node has acknowledged them and does not list them any more.
        gone: Vec<Slot>,
        /// It lists an attempt whose slot was freed, and which has taken it again: the bus is to be told what is taken.
        is_back: bool,
    },
    /// A message takes longer to arrive than a heartbeat's time: the node's record is to be refreshed at the bus all the same.
    Arriving,
    /// Whether it gets work has changed: its record is to be refreshed at the bus.
    State(NodeState),
    /// The node has this attempt: RUNNING is to be committed.
    Acknowledged(Slot),
    /// The node will not begin this attempt: its slot is to be freed, and its lane learns of it.
    Rejected {
        /// The attempt.
        slot: Slot,
        /// The reason, in the node's words.
        reason: String,
    },
    /// How far an attempt is; may be lost.
    Progress {
        /// The attempt.
        slot: Slot,
        /// How far it is.
        progress: Progress,
    },
    /// The result is to be committed, and then [`super::Connection::committed`] or [`super::Connection::stale`] to be
    /// called. Comes once for an attempt, however often the node sends it meanwhile.
    Result {
        /// The attempt.
        slot: Slot,
        /// The result.
        end: End,
    },
    /// This slot is to be freed at the bus.
    Free(Slot),
    /// The connection is to be closed. The last effect there is.
    Close {
        /// The reason, as a code.
        code: CloseCode,
        /// Why, in words fit for the node.
        why: String,
    },
}

/// Why a connection is closed. Its number is the wire's, to which `api` maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// The server is shutting down.
    GoingAway,
    /// The node broke the protocol, or fell silent.
    Protocol,
    /// It may not connect.
    Unauthorized,
    /// The same node has connected again; this connection must not come back.
    Replaced,
    /// It reads too slowly.
    SlowReader,
    /// There is no room for it, or for what it sends. It may connect again.
    Overloaded,
}

/// Why a job was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The node is not registered, or the connection is over.
    #[error("the node is not connected")]
    NotReady,
    /// It takes no more work.
    #[error("the node is draining")]
    Draining,
    /// As many attempts as it has slots are with it.
    #[error("the node is full")]
    Full,
    /// This attempt was sent already.
    #[error("the node has this attempt already")]
    Known,
}
