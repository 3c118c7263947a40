//! Nodes: what is known of each worker machine, and which of its slots are taken.
//!
//! The instance that holds a node's connection writes its record, and the newest connection alone; everybody
//! reserves slots and gives them back. A record expires unless it is refreshed. After it was lost, nothing is
//! reserved until its holder has listed everything that may still run there.
//!
//! Where only the holder's own jobs use a node, the bus lends it all the node's slots: the holder gives them out in its own
//! memory, and nothing is reserved here until it has given them back, with a list of what is taken.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use domain::job::Attempt;
use domain::limits::NODE_CAPACITY_MAX;
use domain::{InstanceId, JobId, NodeId, Token};

use crate::Result;
use crate::limits::{
    NODE_DOCUMENT_BYTES_MAX, NODE_SLOTS_MAX, NODE_TTL_MS_MAX, NODES_LIST_MAX, RESERVATION_MS_MAX,
    check_bytes, check_count, check_ms,
};

/// Says what a slot is taken for: one attempt of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// Which job.
    pub job: JobId,
    /// Which of its attempts.
    pub attempt: Attempt,
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.job, self.attempt)
    }
}

/// A slot, and the lane on whose behalf it is reserved. What an owner of the lane reserved, a later one (with a
/// higher token) takes over, and an earlier one cannot give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The attempt.
    pub slot: Slot,
    /// The token under which the lane is owned.
    pub token: Token,
}

macro_rules! rising {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The one with this number.
            #[must_use]
            pub const fn new(number: u64) -> Self {
                Self(number)
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

rising!(
    /// One connection of a node: the newest has the highest, and older ones write nothing more.
    Epoch
);
rising!(
    /// Rises with every change of a record that readers should see. Never goes back, also when the record was lost
    /// meanwhile: it is at least the bus's time, in microseconds since 1970, and what the next connection names as
    /// [`NewConnection::floor`].
    Version
);

/// Whether a node that is connected gets work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// It does.
    Accepting,
    /// No more; what it has it finishes.
    Draining,
    /// Not now: it is slow to answer.
    Unhealthy,
}

impl NodeState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Accepting, Self::Draining, Self::Unhealthy];

    /// The name, as it stands in Redis and is shown.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepting => "accepting",
            Self::Draining => "draining",
            Self::Unhealthy => "unhealthy",
        }
    }
}

/// What its holder says of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// How many attempts it may run at once, at most [`domain::limits::NODE_CAPACITY_MAX`].
    pub capacity: u32,
    /// Whether it gets work.
    pub state: NodeState,
    /// All the rest, for readers: at most [`crate::limits::NODE_DOCUMENT_BYTES_MAX`].
    pub document: Arc<[u8]>,
    /// How long the record lives without another word, at most [`crate::limits::NODE_TTL_MS_MAX`].
    pub ttl: Duration,
    /// How long its holder vouches for it, that is, guarantees that the record lists every taken slot.
    /// Counted from when the report was made, however late the server gets it. After that nothing is reserved
    /// until the next report. At most [`crate::limits::NODE_TTL_MS_MAX`]. `None` while the slots are lent to the holder:
    /// from this report on nothing is reserved, whatever an earlier one said.
    pub vouched: Option<Duration>,
}

/// A connection that a node has just opened.
#[derive(Clone, Copy, Debug)]
pub struct NewConnection<'a> {
    /// The instance that holds it.
    pub holder: &'a InstanceId,
    /// Whose token the node showed; empty where there are no tokens.
    pub principal: &'a str,
    /// How old it is.
    pub age: Duration,
    /// Another connection of the node, of which the caller knows that its instance is gone.
    pub over: Option<Epoch>,
    /// The epoch under which it had the node last; `None` for one that never had it.
    pub had: Option<Epoch>,
    /// The least epoch that it gets: above all that its instance knows of the node. A bus that lost the record, and whose
    /// clock was set back, would name a lower one by itself.
    pub floor: Epoch,
}

/// What became of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connecting {
    /// It has the node.
    Done(Connected),
    /// A younger one has it. Nothing was done.
    Younger,
    /// One of another principal has it. Nothing was done.
    Anothers,
}

impl Connecting {
    /// The connection, if it has the node.
    #[must_use]
    pub const fn done(self) -> Option<Connected> {
        match self {
            Self::Done(connected) => Some(connected),
            Self::Younger | Self::Anothers => None,
        }
    }
}

/// What a new connection was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// To be named with whatever this connection writes.
    pub epoch: Epoch,
    /// The record's.
    pub version: Version,
    /// Whether all slots are known. If not, nothing is reserved until [`Nodes::complete_node`].
    pub is_complete: bool,
}

/// What became of what a connection wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// It is written; the record has this version now.
    Done(Version),
    /// There is no record of this connection: it ran out, was lost or withdrawn, or the connection had said goodbye. To go
    /// on, connect anew.
    Lost,
    /// A newer connection has taken the node over. This one is to end.
    Replaced,
}

/// What became of one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// It has its slot, now or already.
    Yes,
    /// All slots are taken.
    Full,
    /// The node is not connected or takes no work, or not all its slots are known, or its holder does not
    /// vouch for them now.
    NotReady,
    /// Its slots are lent to its holder, which gives them back when it is asked to.
    Lent,
}

/// What became of one reservation that was taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreserved {
    /// Its slot is free.
    Removed,
    /// Too late: its holder had it sent, or is about to.
    WasSent,
    /// There was none: never made, run out, taken back already, a later owner's by now, or over.
    Absent,
    /// There is none here, but the node's holder may have given the slot itself.
    Unknown,
}

/// Which slots are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The instance that holds the node's connection, and says which slots are taken; `None` where the node is not connected.
    pub holder: Option<InstanceId>,
    /// How old the record's knowledge of all slots is: zero while its holder vouches for it, and never otherwise. `None`
    /// where not all are known: then one that is missing says nothing.
    pub age: Option<Duration>,
    /// For each that was asked for, in that order, whether it is reserved or sent.
    pub is_taken: Vec<bool>,
}

/// A node, as its record shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// The instance that holds its connection, or did.
    pub holder: InstanceId,
    /// Which connection.
    pub epoch: Epoch,
    /// The version of this record.
    pub version: Version,
    /// Whether it is connected. The record of one that is not stays for a while to say so.
    pub is_online: bool,
    /// Whether all slots are known.
    pub is_complete: bool,
    /// How many attempts it may run at once.
    pub capacity: u32,
    /// How many slots are taken. More than the capacity if it lists more.
    pub used: u32,
    /// Whether it gets work.
    pub state: NodeState,
    /// What else its holder said.
    pub document: Arc<[u8]>,
    /// How long the record still lives.
    pub ttl: Duration,
}

/// A change of the list of the nodes that an instance holds: at most [`crate::limits::NODES_LIST_MAX`] nodes, those that
/// it holds and those that are gone together.
#[derive(Clone, Copy, Debug, Default)]
pub struct ListChange<'a> {
    /// Whether the list is replaced: it then names only what is `held`.
    pub is_anew: bool,
    /// Nodes that the instance holds, and the versions of their records.
    pub held: &'a [(NodeId, Version)],
    /// Nodes that it holds no more.
    pub gone: &'a [NodeId],
}

/// Records and slots of nodes. Each call that names slots takes [`crate::limits::NODE_SLOTS_MAX`] of them, and is one
/// step for that node.
#[async_trait::async_trait]
pub trait Nodes: Send + Sync {
    /// A new connection takes the node over, unless
    /// - one of another principal has it, be it unhealthy or its instance gone: a node belongs to whose token connected it,
    ///   as long as its record lives and is online;
    /// - or a younger one to another instance has it, which does not say that the node is unhealthy, and is not the
    ///   connection [`NewConnection::over`]. Two whose ages differ by [`crate::limits::NODE_YOUNGER_MS`] at most seem equally
    ///   old: then one that comes for the first time takes the node, and one that had it before and lost it to the other
    ///   ([`NewConnection::had`]) does not; nor does one that comes for the first time when it is older than that length of
    ///   time, if the other is the younger one.
    ///
    /// What had been sent and is not `running` is freed, what runs without a slot gets one, reservations stay. If there was
    /// no record, what runs is all that is known, and the slots are not complete. It vouches for nothing yet.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] and [`crate::Error::TooLarge`], and what the server says; after [`crate::Error::Unknown`]
    /// connect again, and should that one be [`Written::Replaced`] by its own predecessor, once more.
    async fn connect_node(
        &self,
        node: &NodeId,
        new: &NewConnection<'_>,
        report: &Report,
        running: &[Slot],
    ) -> Result<Connecting>;

    /// The ledger's unfinished attempts of this node get slots too, unless they have; now all are known, and the
    /// holder vouches for them as its report said.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], and what the server says; repeating is harmless.
    async fn complete_node(&self, node: &NodeId, epoch: Epoch, unfinished: &[Slot]) -> Result<Written>;

    /// A heartbeat: the record lives for another `ttl`, and the slots of what is `gone` are free. The version rises
    /// only if the report changed, or the number of slots taken since it last rose. [`Written::Lost`] also where the record is
    /// from before a heartbeat that was answered: it is removed, since an offline one would say that the node is gone.
    ///
    /// # Errors
    /// As [`Self::connect_node`]; repeating is harmless.
    async fn refresh_node(
        &self,
        node: &NodeId,
        epoch: Epoch,
        report: &Report,
        gone: &[Slot],
    ) -> Result<Written>;

    /// As [`Self::refresh_node`], by a holder that may have given slots out itself: what was sent is exactly what is
    /// `taken`. Other slots that were sent are free; reservations stay.
    ///
    /// # Errors
    /// As [`Self::connect_node`]; repeating is harmless.
    async fn recount_node(
        &self,
        node: &NodeId,
        epoch: Epoch,
        report: &Report,
        taken: &[Slot],
    ) -> Result<Written>;

    /// The node is offline: all its slots are free, and nothing is reserved until it was connected and completed
    /// again. The record says so for `ttl` from now.
    ///
    /// # Errors
    /// What the server says; after [`crate::Error::Unknown`] repeat it ([`Written::Lost`] then means that it was done).
    async fn disconnect_node(&self, node: &NodeId, epoch: Epoch, ttl: Duration) -> Result<Written>;

    /// For a connection that took the record too late to speak for the node: there is no record any more, and nothing
    /// says that the node is gone. All its slots are forgotten. The connection that had the record before is answered
    /// [`Written::Lost`], if it goes on.
    ///
    /// # Errors
    /// As [`Self::disconnect_node`].
    async fn withdraw_node(&self, node: &NodeId, epoch: Epoch) -> Result<Written>;

    /// Reserves slots for `lasting` from now, each unless the node is full by then; one that has its slot keeps it as
    /// it is. A heartbeat may free what is reserved for longer than its [`Report::ttl`].
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], and what the server says; repeating is harmless, and gains no time.
    async fn reserve_slots(
        &self,
        node: &NodeId,
        claims: &[Claim],
        lasting: Duration,
    ) -> Result<Vec<Reserved>>;

    /// For the holder, before it sends: which of these were reserved and are sent from now on, in their order. One
    /// that this connection has sent already counts again; the others must not be sent.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], and what the server says; repeating is harmless.
    async fn send_slots(&self, node: &NodeId, epoch: Epoch, slots: &[Slot]) -> Result<Vec<bool>>;

    /// For the holder, when attempts have ended and others follow them on the same node: the slot of the first of each
    /// pair is free, and the second has it from now on, as sent by this connection, in one step. Says of each pair
    /// whether it has; it must not be sent otherwise. The first is free in any case.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], and what the server says; repeating is harmless.
    async fn pass_slots(&self, node: &NodeId, epoch: Epoch, pairs: &[(Slot, Slot)]) -> Result<Vec<bool>>;

    /// Takes reservations back, and only those.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], and what the server says. If the answer to a removal is lost, the next try finds
    /// [`Unreserved::Absent`].
    async fn unreserve_slots(&self, node: &NodeId, claims: &[Claim]) -> Result<Vec<Unreserved>>;

    /// These attempts are over: their slots are free, reserved or sent.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], and what the server says; repeating is harmless.
    async fn free_slots(&self, node: &NodeId, slots: &[Slot]) -> Result<()>;

    /// Which of these have their slot.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], and what the server says.
    async fn held_slots(&self, node: &NodeId, slots: &[Slot]) -> Result<Held>;

    /// What is known of these nodes. One that has no record is left out; so is one whose record cannot be read, which
    /// is logged.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] if any of them could not be read: a failed read does not prove absence.
    async fn show_nodes(&self, nodes: &[NodeId]) -> Result<HashMap<NodeId, NodeRecord>>;

    /// Changes the list of the nodes that an instance holds, which lives for `ttl` from now. Answers how many nodes the
    /// list names now: if that is not what the holder expects, the list was lost, and is to be written anew.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], and what the server says; after [`crate::Error::Unknown`] write the list anew.
    async fn list_nodes(&self, holder: &InstanceId, change: &ListChange<'_>, ttl: Duration) -> Result<usize>;

    /// The nodes that these instances list, each with the highest version that a list names. It is a hint: some may be
    /// gone, and some are missing after a loss, until their holder has written its list again. Their records are the
    /// truth.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] when any of the lists could not be read.
    async fn listed_nodes(&self, holders: &[InstanceId]) -> Result<HashMap<NodeId, Version>>;
}

/// Refuses what no record takes, and gives its time in milliseconds.
pub(crate) fn check_report(report: &Report) -> Result<u64> {
    let Report { capacity, state: _, document, ttl, vouched } = report;
    if let Some(vouched) = vouched {
        check_ms("the time that a node is vouched for", *vouched, NODE_TTL_MS_MAX)?;
    }
    check_count("a node's capacity", *capacity as usize, NODE_CAPACITY_MAX as usize)?;
    check_bytes("a node's document", document.len(), NODE_DOCUMENT_BYTES_MAX)?;
    check_node_ttl(*ttl)
}

/// The time that a record or a listing lives, in milliseconds.
pub(crate) fn check_node_ttl(ttl: Duration) -> Result<u64> {
    check_ms("a node's time to live", ttl, NODE_TTL_MS_MAX)
}

/// The time of a reservation, in milliseconds.
pub(crate) fn check_lasting(lasting: Duration) -> Result<u64> {
    check_ms("the time of a reservation", lasting, RESERVATION_MS_MAX)
}

/// Refuses more slots, or claims, than one call takes.
pub(crate) fn check_slots<T>(slots: &[T]) -> Result<()> {
    check_count("the slots of one call", slots.len(), NODE_SLOTS_MAX)
}

/// Refuses more nodes than one call lists.
pub(crate) fn check_listed(change: &ListChange<'_>) -> Result<()> {
    check_count("the nodes listed in one call", change.held.len() + change.gone.len(), NODES_LIST_MAX)
}

/// Adds a node of one list to those of others: the highest version counts.
pub(crate) fn merge_listed(merged: &mut HashMap<NodeId, Version>, node: NodeId, version: Version) {
    let newest = merged.entry(node).or_insert(version);
    *newest = version.max(*newest);
}
