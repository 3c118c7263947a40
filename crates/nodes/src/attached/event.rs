//! What happens to an attached node, and what the instance does about it.

use std::time::Instant;

use bus::{Connected, Epoch, Report, Slot, Written};
use domain::job::Revoked;

use crate::connection::{CloseCode, Dispatch, End, FromNode, Progress, ToNode};
use crate::record::Record;

/// When something happens, and how the link to the bus is then.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The time.
    pub now: Instant,
    /// Since when the link to the bus is up; `None` while it is down. With another link the bus may have an older state.
    pub bus_up_since: Option<Instant>,
}

/// One thing that has happened.
#[derive(Debug)]
pub enum Event {
    /// The node has sent one message, with these frames.
    Frames(Vec<FromNode>),
    /// The node has sent a message that nobody can read, for this reason.
    Unreadable(String),
    /// The node has shown that it lives, without a frame.
    Heard,
    /// Bytes came of a message that is not complete.
    Arriving {
        /// When it began to arrive.
        since: Instant,
    },
    /// Time has passed; see [`crate::connection::TICK_MS`].
    Tick,
    /// The instance closes the socket, for this reason.
    Close {
        /// The code of the close frame.
        code: CloseCode,
        /// The reason, in words fit for the node.
        why: String,
    },
    /// The lanes want this of the node.
    Wanted(Vec<FromLane>),
    /// A newer connection of the node is attached to this instance.
    Superseded,
    /// The answer to [`Effect::Register`].
    Registered {
        /// What the bus says.
        known: bus::Result<Registering>,
        /// Whether the call had the bus lend the slots.
        is_lent: bool,
        /// The epoch to use if the bus does not know the connection.
        provisional: Epoch,
    },
    /// The pause of [`Effect::RegisterLater`] is over.
    RegisterAgain,
    /// The answer to [`Effect::Refresh`].
    Refreshed {
        /// What the bus says.
        written: bus::Result<Written>,
        /// Whether the call had the bus lend the slots.
        is_lent: bool,
        /// The slots that the call freed.
        freed: Vec<Slot>,
        /// All slots that are taken, if the call listed them.
        taken: Option<Vec<Slot>>,
    },
    /// The answer to [`Effect::SendSlots`].
    Sent {
        /// For each dispatch, whether it has its slot.
        sent: bus::Result<Vec<bool>>,
        /// The dispatches.
        dispatches: Vec<Dispatch>,
    },
    /// The answer to [`Effect::Commit`].
    Committed {
        /// What became of the results.
        committed: Vec<Committed>,
        /// As the effect said.
        terms: CommitTerms,
    },
    /// The answer to [`Effect::PassSlots`].
    Passed {
        /// For each dispatch, whether it has the slot.
        passed: bus::Result<Vec<bool>>,
        /// The attempts that had the slots before.
        over: Vec<Slot>,
        /// The dispatches.
        dispatches: Vec<Dispatch>,
    },
    /// The answer to [`Effect::FreeSlots`].
    Freed {
        /// The slots that the bus could not free.
        left: Vec<Slot>,
        /// Whether all slots of the node were taken before.
        was_full: bool,
    },
}

/// What a lane wants of a node.
#[derive(Debug)]
pub enum FromLane {
    /// The node is to run this attempt. Its slot is reserved at the bus, or was given here.
    Dispatch {
        /// The attempt.
        dispatch: Dispatch,
        /// Whether a lane of another instance dispatched it.
        is_foreign: bool,
    },
    /// The node is to stop this attempt.
    Cancel(Slot),
    /// An operator wants the node to get no more work, or to get work again.
    Drain(bool),
    /// A lane of another instance wants a slot: the bus is to give them.
    Share,
}

/// What became of registering a node.
#[derive(Debug)]
pub enum Registering {
    /// The connection has the node's record.
    Done(Known),
    /// A younger connection, at another instance, has it.
    Contested(Rival),
    /// A connection of another token has it: the node's id is not this one's.
    Anothers,
}

/// The connection that has the record of a node which is attached here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// The connection's epoch.
    pub epoch: Epoch,
    /// Whether its instance shows that it is there.
    pub is_there: bool,
}

/// What the bus knows of the node.
#[derive(Debug)]
pub struct Known {
    /// The connection, as the bus has it.
    pub connected: Connected,
    /// The slots that the record lists as taken.
    pub taken: Vec<Slot>,
    /// The slots of unfinished attempts that the node does not list.
    pub unlisted: Vec<Slot>,
}

/// What became of one result.
#[derive(Debug)]
pub struct Committed {
    /// The attempt.
    pub slot: Slot,
    /// Whether the result is the attempt's, now and for good; otherwise the attempt is stale.
    pub is_recorded: bool,
    /// What is to run on the attempt's slot, by the same commit.
    pub next: Option<Dispatch>,
}

/// How results are committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitTerms {
    /// Whether the commit may give the slots of results to other attempts.
    pub may_pass: bool,
    /// When the results came.
    pub came_at: Instant,
}

/// One thing that the instance is to do. Those of one event are done in their order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send this frame to the node.
    Send(ToNode),
    /// Close the socket. No frame follows.
    Close {
        /// The code of the close frame.
        code: CloseCode,
        /// The reason, in words fit for the node.
        why: String,
    },

    /// Attach the node to the lanes of this instance.
    Attach {
        /// Since when it is connected.
        since: Instant,
        /// The attempts that it came with.
        running: Vec<Slot>,
    },
    /// Tell the lane that the node runs this attempt.
    Acknowledged(Slot),
    /// Send the progress of an attempt to the lane. It may be lost.
    Progressed {
        /// The attempt.
        slot: Slot,
        /// How far it is.
        progress: Progress,
    },
    /// Tell the lane that an attempt ended without a result.
    CameToNothing {
        /// The attempt.
        slot: Slot,
        /// The kind of end.
        kind: Revoked,
        /// The reason, in words.
        why: String,
    },
    /// Tell the lane that the attempt's slot is free.
    SlotFreed(Slot),
    /// Commit these results, and answer with [`Event::Committed`].
    Commit {
        /// The results.
        results: Vec<(Slot, End)>,
        /// How to commit them.
        terms: CommitTerms,
    },
    /// Ask the ledger which of the node's attempts are unfinished, and tell the lanes of those that the node does not
    /// list.
    LookUp {
        /// The attempts that the node lists.
        running: Vec<Slot>,
    },

    /// Put this into the registry and tell the other instances.
    Record {
        /// The node.
        record: Record,
        /// When the heartbeat arrived that the record is of.
        heartbeat_at: Option<Instant>,
    },
    /// Put this into the registry of this instance alone.
    Note(Record),
    /// Take so many slots off the registry's count.
    CountFreed(usize),
    /// Tell the other instances how the node is.
    TellOf,

    /// Take the node's record over at the bus, and answer with [`Event::Registered`].
    Register {
        /// What the record says.
        report: Report,
        /// The attempts that the node runs.
        running: Vec<Slot>,
        /// Since when the node is connected.
        since: Instant,
        /// The connection of an instance that is gone, if such a one has the record.
        over: Option<Epoch>,
        /// The epoch under which this connection had the record last, if it did.
        had: Option<Epoch>,
    },
    /// Answer with [`Event::RegisterAgain`] after a pause.
    RegisterLater,
    /// Write the record, and answer with [`Event::Refreshed`].
    Refresh {
        /// What the record says.
        report: Report,
        /// The slots that are free by it.
        freed: Vec<Slot>,
        /// All slots that are taken, if the record may not know of some.
        taken: Option<Vec<Slot>>,
    },
    /// Turn the slots of these from `reserved` into `sent`, and answer with [`Event::Sent`].
    SendSlots(Vec<Dispatch>),
    /// Give the slots of what is over to the dispatches, one each, and answer with [`Event::Passed`].
    PassSlots {
        /// The attempts that have the slots.
        over: Vec<Slot>,
        /// The dispatches that are to have them.
        dispatches: Vec<Dispatch>,
    },
    /// Free these slots, and answer with [`Event::Freed`].
    FreeSlots {
        /// The slots.
        slots: Vec<Slot>,
        /// Whether all slots of the node were taken before.
        was_full: bool,
    },
}

/// Whether the bus knows of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtBus {
    /// Not yet, and its epoch is one of this instance.
    Unknown,
    /// It does.
    Known,
    /// It got to know of it when the socket was closed. The node may have had a newer connection by then.
    KnownLate,
}

/// What is left of a node whose socket is closed.
#[derive(Clone, Debug)]
pub struct Departure {
    /// The node, which gets no more work.
    pub record: Record,
    /// Whether the bus knows of the connection.
    pub at_bus: AtBus,
    /// The attempts that the node had.
    pub slots: Vec<Slot>,
    /// Those of them that were sent and that the node has not answered.
    pub unanswered: Vec<Slot>,
    /// When the node was heard of last.
    pub heard: Instant,
    /// Whether its socket was closed because no heartbeat came for too long.
    pub fell_silent: bool,
}
