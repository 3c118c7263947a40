//! A node that is attached to this instance: everything between its socket, its record at the bus and the lanes. Pure:
//! events and time come in as arguments, effects go out, in their order, for the socket's task to carry out.
//!
//! [`Connection`] beside it judges the node's frames; this file and its children decide what becomes of them.
//!
//! - **Registering** (`record`): the node's record is taken over at the bus when the node sends `hello`, and
//!   written again when it was lost. One such call is under way at a time. A record that another connection
//!   has is contested: a node that still speaks here registers again, until
//!   [`crate::limits::contested_max`]; or goes over the other connection, if that one's instance is gone. It names the
//!   epoch under which it had the record, by which the bus tells it from a connection that comes for the first time.
//! - **Slots** (`slots`): the slot of a dispatch becomes `sent` at the bus, then the frame leaves. A result
//!   is committed, then the node gets `committed`, then the slot is freed or passed to another attempt.
//! - **Authority** (`authority`): while the bus lends the node's slots, or is away, this instance gives them itself. A bus that
//!   was away gets the list of all taken slots before anything is asked of it.
//! - **Early results**: a result that comes before the record is taken over waits, and is committed then. A connection with
//!   too many bytes of them ends.
//! - **Unlisted attempts**: slots of unfinished attempts that the node does not list are kept for dispatches on their way,
//!   and freed when a reservation would have expired.
//!
//! After the end ([`AttachedNode::leave`]) only commits and dispatches that were under way matter; [`AttachedNode::departure`]
//! says what is left.

mod authority;
mod event;
mod record;
mod slots;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use bus::{Epoch, NodeState, Slot, Version};
use domain::job::Revoked;
use domain::{InstanceId, NodeId, NodeTimeouts};

use crate::connection::{self, CloseCode, Connection, Dispatch, End, Hello};
use crate::holder_slots::HolderSlots;
use crate::record::{Load, Profile, Record, Stamp, Status};
use crate::slot_authority::SlotAuthority;
pub use event::{
    AtBus, CommitTerms, Committed, Departure, Effect, Event, FromLane, Known, Moment, Registering, Rival,
};

/// The state of one attached node, from the opening of its socket to the end.
#[derive(Debug)]
pub struct AttachedNode {
    me: InstanceId,
    timeouts: NodeTimeouts,
    connection: Connection,
    authority: SlotAuthority,
    /// What this instance gives itself; the lanes share it.
    holder_slots: Arc<HolderSlots>,
    hello: Option<Hello>,
    /// When the socket was opened, which decides which of a node's connections is the newer one. A hello that was read late says
    /// nothing of that: the node may have given this connection up, and be at work on another.
    since: Instant,
    /// When the node was heard of last.
    heard: Instant,
    load: Load,
    registered: Option<Registered>,
    /// When the record was rewritten last.
    rewritten_at: Option<Instant>,
    /// The record is being taken over at the bus, or will be after a pause.
    is_registering: bool,
    /// Another connection has the record, and this one doubts it.
    contest: Option<Contest>,
    /// The record is being written.
    is_refreshing: bool,
    /// The record is to be written once more.
    refresh_again: bool,
    /// When the heartbeat came that is not written down yet.
    heartbeat_at: Option<Instant>,
    /// Since when the link to the bus was up at the last event.
    bus_up_since: Option<Instant>,
    /// The bus may have an older state of the record than was written, and no word was sent since that lists all that is taken.
    is_doubted: bool,
    /// Heartbeats since a word was sent that lists all that is taken.
    heartbeats_unlisted: u32,
    /// Slots to be freed with the next write of the record.
    gone: Vec<Slot>,
    /// How many results are being committed that may pass their slots on.
    passing: usize,
    /// Another instance wants slots, and gets some once those are answered.
    shares_when_passed: bool,
    /// All that is taken is to be listed once those are answered.
    lists_when_passed: bool,
    /// Attempts whose slots are being sent.
    sending: HashSet<Slot>,
    /// Those of them, and of those held back, that were called off meanwhile.
    called_off: HashSet<Slot>,
    /// Dispatches that wait until the bus knows which slots are taken.
    held_back: Vec<Dispatch>,
    /// Results that came before the node was registered.
    early_results: Vec<(Slot, End)>,
    /// The bytes of those.
    early_bytes: usize,
    /// Slots of unfinished attempts that the node does not list.
    unlisted: Vec<Slot>,
    unlisted_until: Instant,
    /// The socket is closed.
    has_left: bool,
    moment: Moment,
    out: Vec<Effect>,
}

/// What is known of another connection that has the record of a node which speaks here.
#[derive(Clone, Copy, Debug)]
struct Contest {
    since: Instant,
    /// The other connection, and since when its instance has not been seen.
    absent: Option<(Epoch, Instant)>,
}

/// A node that the lanes of this instance can use.
#[derive(Debug)]
struct Registered {
    profile: Arc<Profile>,
    epoch: Epoch,
    at_bus: AtBus,
}

impl AttachedNode {
    /// The state for a socket that was just opened to this instance.
    #[must_use]
    pub fn opened(me: InstanceId, timeouts: NodeTimeouts, now: Instant) -> Self {
        Self {
            connection: Connection::opened(me.clone(), timeouts, now),
            me,
            timeouts,
            authority: SlotAuthority::new(timeouts.vouched, now),
            holder_slots: Arc::default(),
            hello: None,
            since: now,
            heard: now,
            load: Load::default(),
            registered: None,
            rewritten_at: None,
            is_registering: false,
            contest: None,
            is_refreshing: false,
            refresh_again: false,
            heartbeat_at: None,
            bus_up_since: None,
            is_doubted: false,
            heartbeats_unlisted: 0,
            gone: Vec::new(),
            passing: 0,
            shares_when_passed: false,
            lists_when_passed: false,
            sending: HashSet::new(),
            called_off: HashSet::new(),
            held_back: Vec::new(),
            early_results: Vec::new(),
            early_bytes: 0,
            unlisted: Vec::new(),
            unlisted_until: now,
            has_left: false,
            moment: Moment { now, bus_up_since: None },
            out: Vec::new(),
        }
    }

    /// The node, once it has said hello.
    #[must_use]
    pub fn node(&self) -> Option<&NodeId> {
        self.hello.as_ref().map(|hello| &hello.node)
    }

    /// The epoch of the connection, once the node is registered.
    #[must_use]
    pub fn epoch(&self) -> Option<Epoch> {
        self.registered.as_ref().map(|registered| registered.epoch)
    }

    /// The slots that this instance gives itself.
    #[must_use]
    pub const fn holder_slots(&self) -> &Arc<HolderSlots> {
        &self.holder_slots
    }

    /// Whether several frames may be sent to the node in one message, and it may send several.
    #[must_use]
    pub fn takes_batches(&self) -> bool {
        self.hello.as_ref().is_some_and(|hello| hello.takes_batches)
    }

    /// Whether an operator drains the node; after the end, whether one did then.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.connection.is_drained()
    }

    /// Whether the node has the attempt on this connection, so that its slot is taken.
    #[must_use]
    pub fn has(&self, slot: Slot) -> bool {
        self.connection.has(slot)
    }

    /// The bytes of the results that wait for the node to be registered.
    #[must_use]
    pub const fn early_bytes(&self) -> usize {
        self.early_bytes
    }

    /// Takes up one event, and says what is to be done about it.
    pub fn apply(&mut self, event: Event, moment: Moment) -> Vec<Effect> {
        self.moment = moment;
        match self.has_left {
            false => {
                let is_new_link = self.look_at_link();
                self.take_up(event);
                if is_new_link && self.is_doubted && !self.connection.is_over() {
                    self.refresh();
                }
                self.settle_slots();
            }
            true => self.take_up_late(event),
        }
        std::mem::take(&mut self.out)
    }

    /// The socket is closed. What the node runs it goes on with, and it may connect again to any instance. Dispatches that are
    /// held back are not sent any more, and their lanes are to hear so. Results that wait for the record are forgotten.
    pub fn leave(&mut self) -> Vec<Effect> {
        self.has_left = true;
        self.take_early();
        self.holder_slots.end();
        for dispatch in std::mem::take(&mut self.held_back) {
            self.too_late(dispatch.slot);
        }
        std::mem::take(&mut self.out)
    }

    /// The frames that dispatch these attempts were not sent before the socket was closed, and never are: their slots are free,
    /// and their lanes are to hear so. Call it after [`Self::leave`].
    pub fn take_back(&mut self, unsent: impl IntoIterator<Item = Slot>) -> Vec<Effect> {
        for slot in unsent {
            if self.connection.take_back(slot) {
                self.too_late(slot);
                self.out.push(Effect::SlotFreed(slot));
            }
        }
        std::mem::take(&mut self.out)
    }

    /// What is left of the node, once every call that was under way is answered; nothing of a node that was never
    /// registered.
    #[must_use]
    pub fn departure(&self) -> Option<Departure> {
        let registered = self.registered.as_ref().filter(|_| self.has_left)?;
        let mut record = self.record_of(&registered.profile, Version::new(0))?;
        record.status.state = NodeState::Unhealthy;
        Some(Departure {
            record,
            at_bus: registered.at_bus,
            slots: self.connection.slots().collect(),
            unanswered: self.connection.unanswered().collect(),
            heard: self.heard,
            fell_silent: self.connection.fell_silent(),
        })
    }

    fn take_up(&mut self, event: Event) {
        let now = self.moment.now;
        match event {
            Event::Frames(frames) => {
                self.heard = now;
                let mut effects = Vec::new();
                for frame in frames {
                    effects.extend(self.connection.on_frame(frame, now));
                    if self.connection.is_over() {
                        break;
                    }
                }
                self.follow(effects);
            }
            Event::Unreadable(why) => {
                self.heard = now;
                self.end(CloseCode::Protocol, why);
            }
            Event::Heard => self.heard = now,
            Event::Arriving { since } => {
                self.heard = now;
                let effects = self.connection.on_bytes(since, now);
                self.follow(effects);
            }
            Event::Tick => {
                let effects = self.connection.on_tick(now);
                self.follow(effects);
                let expired = self.holder_slots.expire(now);
                self.free(expired);
                self.free_unlisted();
            }
            Event::Close { code, why } => self.end(code, why),
            Event::Superseded => {
                self.end(CloseCode::Replaced, "a newer connection of this node took over".to_owned());
            }
            Event::Wanted(wishes) => self.on_wanted(wishes),
            Event::Registered { known, is_lent, provisional } => {
                self.on_register_answer(known, is_lent, provisional);
            }
            Event::RegisterAgain => self.on_register_again(),
            Event::Refreshed { written, is_lent, freed, taken } => {
                self.on_refreshed(written, is_lent, freed, taken);
            }
            Event::Sent { sent, dispatches } => self.on_sent(sent, dispatches),
            Event::Committed { committed, terms } => self.on_committed(committed, terms),
            Event::Passed { passed, over, dispatches } => self.on_passed(passed, over, dispatches),
            Event::Freed { left, was_full } => self.on_freed(left, was_full),
        }
    }

    /// An answer that comes when the socket is closed. The node asks again for what it would have learned by it.
    fn take_up_late(&mut self, event: Event) {
        match event {
            // A record that is made too late for the node is taken back.
            Event::Registered { known: Ok(Registering::Done(known)), .. } => {
                if let Some(hello) = &self.hello {
                    let (profile, epoch) = (Arc::new(self.profile(hello)), known.connected.epoch);
                    let at_bus = if self.is_known() { AtBus::Known } else { AtBus::KnownLate };
                    self.registered = Some(Registered { profile, epoch, at_bus });
                }
            }
            Event::Committed { committed, .. } => {
                committed.into_iter().filter_map(|one| one.next).for_each(|next| self.not_passed(next.slot));
            }
            Event::Passed { dispatches, .. } => {
                dispatches.into_iter().for_each(|dispatch| self.not_passed(dispatch.slot));
            }
            // Its slot is freed with those of all that the node does not have.
            Event::Sent { dispatches, .. } => {
                dispatches.into_iter().for_each(|dispatch| self.too_late(dispatch.slot));
            }
            _ => {}
        }
    }

    fn end(&mut self, code: CloseCode, why: String) {
        let effects = self.connection.end(code, why);
        self.follow(effects);
    }

    /// Takes up what the connection says, in its order; results and free slots then go together.
    fn follow(&mut self, effects: Vec<connection::Effect>) {
        use connection::Effect as Said;
        let (mut results, mut freed) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Said::Register(hello) => {
                    self.hello = Some(hello);
                    self.register();
                }
                Said::Send(frame) => self.out.push(Effect::Send(frame)),
                Said::Heartbeat { load, gone, is_back } => {
                    self.load = load;
                    self.heartbeat_at.get_or_insert(self.heard);
                    for slot in &gone {
                        self.came_to_nothing(
                            *slot,
                            Revoked::Unlisted,
                            "the node no longer lists the attempt",
                        );
                        self.out.push(Effect::SlotFreed(*slot));
                    }
                    self.gone.extend(gone);
                    self.list_in_time();
                    if is_back {
                        // At the bus its slot is free, and could be given to another.
                        self.doubt();
                    }
                    self.refresh();
                }
                Said::Arriving => {
                    self.list_in_time();
                    self.refresh();
                }
                Said::State(_) => self.refresh(),
                Said::Acknowledged(slot) if self.registered.is_some() => {
                    self.out.push(Effect::Acknowledged(slot));
                }
                Said::Progress { slot, progress } if self.registered.is_some() => {
                    self.out.push(Effect::Progressed { slot, progress });
                }
                Said::Acknowledged(_) | Said::Progress { .. } => {}
                Said::Rejected { slot, reason } => {
                    self.came_to_nothing(slot, Revoked::Rejected, &reason);
                    freed.push(slot);
                }
                Said::Result { slot, end } => results.push((slot, end)),
                Said::Free(slot) => freed.push(slot),
                Said::Close { code, why } => self.out.push(Effect::Close { code, why }),
            }
        }
        self.commit(results);
        self.free(freed);
    }

    fn came_to_nothing(&mut self, slot: Slot, kind: Revoked, why: &str) {
        self.out.push(Effect::CameToNothing { slot, kind, why: why.to_owned() });
    }

    /// Whether the bus knows of the connection.
    fn is_known(&self) -> bool {
        self.registered.as_ref().is_some_and(|registered| registered.at_bus != AtBus::Unknown)
    }

    /// Said in the log where it is so.
    fn drained(&self) -> Option<bool> {
        self.is_drained().then_some(true)
    }

    /// The node as it is known here, under this version.
    fn record_of(&self, profile: &Arc<Profile>, version: Version) -> Option<Record> {
        let hello = self.hello.as_ref()?;
        let epoch = self.epoch().unwrap_or(Epoch::new(0));
        let used = self.connection.slot_count() + self.holder_slots.given_count();
        let used = u32::try_from(used).unwrap_or(u32::MAX);
        // Before its welcome it gets work as soon as its slots are known.
        let state = self.connection.state().unwrap_or(NodeState::Accepting);
        let status = Status { capacity: hello.capacity, used, is_complete: true, state };
        Some(Record {
            stamp: Stamp { epoch, version },
            profile: Arc::clone(profile),
            status,
            load: self.load,
        })
    }

    const fn heartbeat_ms(&self) -> u64 {
        self.timeouts.heartbeat.as_millis() as u64
    }

    fn profile(&self, hello: &Hello) -> Profile {
        Profile {
            node: hello.node.clone(),
            holder: self.me.clone(),
            labels: Arc::clone(&hello.labels),
            services: Arc::clone(&hello.services),
            pools: hello.pools.clone(),
            heartbeat_ms: self.heartbeat_ms(),
            software: hello.software.clone(),
            principal: Arc::clone(&hello.principal),
        }
    }
}
