//! One node's connection, seen from the instance that holds its socket: what each frame means, what is
//! answered, and when the connection is to end. Pure: frames and time come in as arguments, effects go out,
//! in their order, for the task that runs the socket.
//!
//! ```text
//!             ack, or listed            result                  stale
//!   (sent) ──▶ Sent ─────────▶ Running ─────────▶ Answered ──────────▶ Stale
//!               │ reject          │                  │ committed        │
//!               ▼                 ▼                  ▼                  ▼
//!             free        free when not listed     free         free when not listed
//! ```
//!
//! A slot is not free while its attempt may still run, with one exception. It is freed by a committed result, by the node's
//! refusal to begin, or by a heartbeat that was sent after the acknowledgement (frames come in the order in
//! which they were sent) and does not list it any more. An attempt that was called off soon after it was sent need not be
//! acknowledged. Its slot is freed by a heartbeat that does not list it, if an earlier one, at least half a heartbeat's time
//! before, did not list it either, and both came after the node had time to read the `cancel`. The exception: one that is
//! listed later takes its slot again. If a node reports something impossible, the connection is closed. A result is never
//! impossible: it may come again, or late, and is answered `stale` at once if its attempt is not with the connection.

mod effect;
mod frame;
mod live;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use bus::{NodeState, Slot};
use domain::{InstanceId, NodeId, NodeTimeouts};

pub use effect::{CloseCode, Effect, Refused};
pub use frame::{Dispatch, End, FromNode, Hello, Percent, Progress, ToNode};

use crate::limits::HELLO_MS;
use live::Live;

/// How often [`Connection::on_tick`] is to be called, in milliseconds.
pub const TICK_MS: u64 = 500;

/// The state of one connection.
#[derive(Debug)]
pub struct Connection {
    holder: InstanceId,
    timeouts: NodeTimeouts,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    /// Nobody knows who it is yet.
    Opened(Instant),
    Live(Box<Live>),
    /// With what the node had until then, if it had said hello.
    Ended(Option<Box<Live>>),
}

/// What a frame, a tick or a call leads to.
type Effects = Vec<Effect>;
/// A fault of the protocol, in words fit for the node.
type Fault = String;

impl Connection {
    /// The state for a socket that was just opened to this instance.
    #[must_use]
    pub fn opened(holder: InstanceId, timeouts: NodeTimeouts, now: Instant) -> Self {
        Self { holder, timeouts, phase: Phase::Opened(now) }
    }

    /// The node, once it has said hello; `None` also when the connection has ended.
    #[must_use]
    pub fn node(&self) -> Option<&NodeId> {
        self.live().map(Live::node)
    }

    /// Whether the connection is to end, or has.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    /// Whether the node gets work; `None` before its hello and after the end.
    #[must_use]
    pub fn state(&self) -> Option<NodeState> {
        self.live().map(Live::state)
    }

    /// Whether an operator drains the node; after the end, whether one did then.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.live_or_ended().is_some_and(Live::is_drained)
    }

    /// The attempts whose slots are taken; after the end, those that were then.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.live_or_ended().into_iter().flat_map(Live::slots)
    }

    /// How many those are.
    #[must_use]
    pub fn slot_count(&self) -> usize {
        self.live_or_ended().map_or(0, Live::slot_count)
    }

    /// Whether the attempt's slot is taken.
    #[must_use]
    pub fn has(&self, slot: Slot) -> bool {
        self.live().is_some_and(|live| live.has(slot))
    }

    /// The attempts that were sent and that the node has not answered; after the end, as they were then.
    pub fn unanswered(&self) -> impl Iterator<Item = Slot> {
        self.live_or_ended().into_iter().flat_map(Live::unanswered)
    }

    /// Whether the connection has ended because no heartbeat came for too long.
    #[must_use]
    pub fn fell_silent(&self) -> bool {
        self.live_or_ended().is_some_and(Live::fell_silent)
    }

    /// The node has sent this.
    pub fn on_frame(&mut self, frame: FromNode, now: Instant) -> Effects {
        match (&mut self.phase, frame) {
            (Phase::Ended(_), _) => vec![],
            (Phase::Opened(_), FromNode::Hello(hello)) => match Live::begin(&hello, self.timeouts, now) {
                Ok(live) => {
                    self.phase = Phase::Live(Box::new(live));
                    vec![Effect::Register(hello)]
                }
                Err(fault) => self.end(CloseCode::Protocol, fault),
            },
            (Phase::Opened(_), _) => {
                self.end(CloseCode::Protocol, "the first frame must be hello".to_owned())
            }
            (Phase::Live(live), frame) => match live.on_frame(frame, now) {
                Ok(effects) => effects,
                Err(fault) => self.end(CloseCode::Protocol, fault),
            },
        }
    }

    /// Bytes came of a message that began to arrive at `since` and is not complete. What the node says behind it cannot come
    /// before its end: as long as its bytes come, the node owes no heartbeat and no answer. Those of a message that began when no
    /// heartbeat had come for [`NodeTimeouts::offline`] do not count: messages alone keep no node.
    pub fn on_bytes(&mut self, since: Instant, now: Instant) -> Effects {
        self.live_mut().map_or_else(Vec::new, |live| live.on_bytes(since, now))
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: Instant) -> Effects {
        let ticked = match &mut self.phase {
            Phase::Ended(_) => Ok(vec![]),
            Phase::Opened(since) if now.duration_since(*since) >= Duration::from_millis(HELLO_MS) => {
                Err(format!("no hello within {HELLO_MS} ms"))
            }
            Phase::Opened(_) => Ok(vec![]),
            Phase::Live(live) => live.on_tick(now),
        };
        ticked.unwrap_or_else(|fault| self.end(CloseCode::Protocol, fault))
    }

    /// The bus has the node's record: it is welcomed, and what it runs counts as acknowledged.
    pub fn registered(&mut self, now: Instant) -> Effects {
        let holder = self.holder.clone();
        self.live_mut().map_or_else(Vec::new, |live| live.registered(holder, now))
    }

    /// A job for the node, whose slot is `sent` at the bus by now, or was given here. `given` slots are taken beside those of
    /// the connection.
    ///
    /// # Errors
    /// [`Refused`], and nothing was sent: the slot is to be freed and the attempt to be revoked as never sent, unless
    /// it was [`Refused::Known`].
    pub fn dispatch(&mut self, dispatch: Dispatch, given: usize, now: Instant) -> Result<Effects, Refused> {
        self.live_mut().ok_or(Refused::NotReady)?.dispatch(dispatch, given, now)
    }

    /// The attempt's result is durable.
    pub fn committed(&mut self, slot: Slot) -> Effects {
        self.live_mut().map_or_else(Vec::new, |live| live.committed(slot))
    }

    /// The attempt is not the job's newest any more. Its result is answered so; without a result it is called off.
    pub fn stale(&mut self, slot: Slot, now: Instant) -> Effects {
        self.live_mut().map_or_else(Vec::new, |live| live.stale(slot, now))
    }

    /// The attempt is cancelled. The node gets one `cancel`; the slot stays taken as long as the node
    /// lists the attempt. Of one that is cancelled before the node answers, within half the time that it has to
    /// acknowledge, nothing more need come: its slot is free once two heartbeats, half a heartbeat's time apart at least, have
    /// come that whole time after the `cancel` and did not list it. One that is listed after that takes its slot again.
    pub fn cancel(&mut self, slot: Slot, now: Instant) -> Effects {
        self.live_mut().map_or_else(Vec::new, |live| live.cancel(slot, now))
    }

    /// An operator wants the node to get no more work, or to get work again. What the node itself wants stays. A node whose
    /// hello says that it was drained gets none from the beginning.
    pub fn drain(&mut self, is_draining: bool, now: Instant) -> Effects {
        self.live_mut().map_or_else(Vec::new, |live| live.drain(is_draining, now))
    }

    /// The frame that dispatches the attempt was not sent, and never is: its slot is free, unless the node has spoken of the
    /// attempt. Whether it is.
    pub fn take_back(&mut self, slot: Slot) -> bool {
        match &mut self.phase {
            Phase::Live(live) | Phase::Ended(Some(live)) => live.take_back(slot),
            Phase::Opened(_) | Phase::Ended(None) => false,
        }
    }

    /// Ends the connection, for a reason that is not the node's frames.
    pub fn end(&mut self, code: CloseCode, why: String) -> Effects {
        if self.is_over() {
            return vec![];
        }
        self.phase = match std::mem::replace(&mut self.phase, Phase::Ended(None)) {
            Phase::Live(live) => Phase::Ended(Some(live)),
            Phase::Opened(_) | Phase::Ended(_) => Phase::Ended(None),
        };
        vec![Effect::Close { code, why }]
    }

    fn live(&self) -> Option<&Live> {
        match &self.phase {
            Phase::Live(live) => Some(live),
            Phase::Opened(_) | Phase::Ended(_) => None,
        }
    }

    fn live_or_ended(&self) -> Option<&Live> {
        match &self.phase {
            Phase::Live(live) | Phase::Ended(Some(live)) => Some(live),
            Phase::Opened(_) | Phase::Ended(None) => None,
        }
    }

    fn live_mut(&mut self) -> Option<&mut Live> {
        match &mut self.phase {
            Phase::Live(live) => Some(live),
            Phase::Opened(_) | Phase::Ended(_) => None,
        }
    }
}
