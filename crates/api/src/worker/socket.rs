//! Runs one worker socket: reads messages, hands what happens to the node's state ([`AttachedNode`]), and carries its
//! effects out. What waits for a database or the bus does so beside the socket and comes back as an event, so it never
//! delays a frame.

mod calls;
mod claims;
mod disconnect;
mod listed;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use actix_web::web::Bytes;
use actix_ws::{AggregatedMessage, AggregatedMessageStream, CloseReason};
use actors::jobs::{HolderNote, NodeOutbox, ToNode as FromJobs};
use bus::Slot;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use ledger::jittered;
use nodes::Applied;
use nodes::attached::{AttachedNode, Effect, Event, FromLane, Moment};
use nodes::connection::{CloseCode, End, FromNode, TICK_MS, ToNode};
use nodes::limits::NODES_MAX;
use panic_guard::guarded;
use tokio::sync::watch;
use wire::Code;
use wire::worker::{Message, NodeFrame, SchedulerFrame, SocketProblem};

use super::frames;
use crate::auth::Principal;
use crate::extract::refused_part;
use crate::forwarder::Forwarder;
use crate::limits::{LISTED_COUNTED_FOR, SOCKET_FRAMES_KEPT, SOCKET_WISHES_MAX};
use crate::node_claims::NodeClaim;
use crate::services::Incarnation;
use crate::shares::{Kind, Reached, Share};
use crate::state::State;
use crate::to_wire;
use crate::traces::AttemptTraces;
use crate::visibility;
use crate::websocket::{self, Arriving, Fault, Outlet, Pauses, Unsent};
use calls::{Calls, by_writer, frame_of};
use listed::Listed;

/// Why nodes are sent away, also those that say hello.
const CUT_OFF: &str = "this instance does not reach the ledger; connect to another";
/// Why nodes are sent away at the end.
const STOPPING: &str = "this instance is stopping; connect to another";

/// One socket, from its opening to its end.
pub struct Socket {
    state: Arc<State>,
    forwarder: Arc<Forwarder>,
    incarnation: Arc<Incarnation>,
    principal: Arc<Principal>,
    outlet: Outlet,
    /// The link to the bus.
    link: watch::Receiver<bus::Link>,
    node: AttachedNode,
    /// The claim to the id that the node has said, until the socket is over.
    claim: Option<NodeClaim>,
    /// What the node listed when it connected, as long as that is much and not known to be its own.
    listed: Option<Listed>,
    /// What the lanes want of the node, once it is attached.
    mailbox: Option<NodeOutbox>,
    /// By which it is noted that the node is here, until the socket is over.
    holder_note: Option<Arc<HolderNote>>,
    /// Frames on their way out.
    out: VecDeque<SchedulerFrame>,
    /// The connection takes no more of them. What came before its end is still read.
    is_gone: bool,
    traces: AttemptTraces,
    /// What the results that wait for the node's record have of the bytes that are being read.
    early: Share,
    /// The newest ping that is not answered.
    ping: Option<Bytes>,
    /// Calls under way. Each ends as an event, or with nothing to say.
    calls: FuturesUnordered<LocalBoxFuture<'static, Option<Event>>>,
    closing: Option<Closing>,
    /// Whether the last tick was passed over.
    is_tick_passed_over: bool,
    /// The code of the problem that goes before a close because the node broke the protocol.
    fault: Code,
}

/// Why the socket is over.
enum Closing {
    /// The node closed it, for this reason; its close frame is answered with the same code.
    ByNode(Option<CloseReason>),
    /// It is closed from here.
    ByInstance(CloseCode, String),
    /// The connection is gone.
    Gone,
}

impl Socket {
    pub fn new(
        forwarder: Arc<Forwarder>,
        incarnation: Arc<Incarnation>,
        principal: Arc<Principal>,
        outlet: Outlet,
    ) -> Self {
        let state = Arc::clone(forwarder.state());
        Self {
            node: AttachedNode::opened(
                incarnation.identity.id.clone(),
                *incarnation.registry.timeouts(),
                Instant::now(),
            ),
            link: state.bus.link(),
            early: state.shares.none(Kind::Reading, principal.used()),
            state,
            forwarder,
            incarnation,
            principal,
            outlet,
            claim: None,
            listed: None,
            mailbox: None,
            holder_note: Some(Arc::default()),
            out: VecDeque::new(),
            is_gone: false,
            traces: AttemptTraces::default(),
            ping: None,
            calls: FuturesUnordered::new(),
            closing: None,
            is_tick_passed_over: false,
            fault: Code::Invalid,
        }
    }

    /// Serves until either side ends it. After a panic the node departs as well: its entry in the registry would stay otherwise.
    pub async fn run(mut self, mut messages: AggregatedMessageStream, pauses: Pauses, arriving: Arriving) {
        if guarded("a node's socket", self.serve(&mut messages, &pauses, &arriving)).await.is_none() {
            let why = "a defect of this instance interrupted the connection; connect again".to_owned();
            self.closing = Some(Closing::ByInstance(CloseCode::GoingAway, why));
        }
        self.depart().await;
    }

    async fn serve(&mut self, messages: &mut AggregatedMessageStream, pauses: &Pauses, arriving: &Arriving) {
        let mut tick = tokio::time::interval(Duration::from_millis(TICK_MS));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let state = Arc::clone(&self.state);
        let mut draining = std::pin::pin!(state.traffic.until_draining());
        while self.closing.is_none() {
            let wishes = async {
                match &mut self.mailbox {
                    Some(mailbox) => mailbox.next(SOCKET_WISHES_MAX).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = messages.next() => match message {
                    Some(Ok(message)) => self.on_message(message),
                    Some(Err(error)) => match websocket::fault(&error) {
                        Fault::Protocol(code, why) => {
                            self.fault = code;
                            self.apply(Event::Unreadable(why));
                        }
                        Fault::Overloaded(why) => self.apply(Event::Close { code: CloseCode::Overloaded, why }),
                        // What the node sent before is read first, and then the end. Until now it was connected: that counts for
                        // the time in which it may return.
                        Fault::Gone => self.apply(Event::Heard),
                    },
                    None => self.closing = Some(Closing::Gone),
                },
                wishes = wishes => self.on_wishes(wishes),
                Some(event) = self.calls.next(), if !self.calls.is_empty() => {
                    if let Some(event) = event {
                        self.apply(event);
                    }
                }
                due = tick.tick() => {
                    if let Some(since) = arriving.take() {
                        self.apply(Event::Arriving { since });
                    }
                    if self.counts_tick(due.elapsed()) {
                        self.apply(Event::Tick);
                    }
                    if !self.state.settings.auth.knows(&self.principal) {
                        let why = "the node's token was taken away, has expired, or may do less than when it connected";
                        let why = why.to_owned();
                        self.apply(Event::Close { code: CloseCode::Unauthorized, why });
                    }
                    if self.state.incarnation().identity.id != self.incarnation.identity.id {
                        self.go_away("this instance continues under a new id; connect again");
                    }
                    if self.is_cut_off() {
                        self.go_away(CUT_OFF);
                    }
                    self.look_at_listed();
                }
                () = &mut draining => self.go_away(STOPPING),
            }
            // Nothing is read until the frames that wait are sent. A node that does not read holds up no stop.
            let not_reading_since = Instant::now();
            tokio::select! {
                biased;
                is_read = self.flush() => {
                    if !is_read {
                        let why = "the node does not read what it is sent".to_owned();
                        self.closing = Some(Closing::ByInstance(CloseCode::SlowReader, why));
                    }
                }
                () = state.traffic.until_draining() => {
                    if self.closing.is_none() {
                        self.go_away(STOPPING);
                    }
                }
            }
            pauses.add(not_reading_since.elapsed());
        }
    }

    /// Whether a tick counts that comes so late. The first one after the process or its thread stood still does not: what the
    /// node sent meanwhile is read before anything is concluded from its silence.
    fn counts_tick(&mut self, late: Duration) -> bool {
        let is_first = !std::mem::take(&mut self.is_tick_passed_over);
        self.is_tick_passed_over = is_first && late >= Duration::from_millis(TICK_MS);
        !self.is_tick_passed_over
    }

    /// Whether the other instances go on without this one, which could write no result either.
    fn is_cut_off(&self) -> bool {
        self.incarnation.reach.is_cut_off()
    }

    fn go_away(&mut self, why: &str) {
        self.apply(Event::Close { code: CloseCode::GoingAway, why: why.to_owned() });
    }

    fn on_message(&mut self, message: AggregatedMessage) {
        match message {
            AggregatedMessage::Text(_) if self.node.node().is_none() && self.is_cut_off() => {
                self.go_away(CUT_OFF);
            }
            AggregatedMessage::Text(text) => {
                let read = self.read(&text).map(|frames| (self.refused(&frames), frames));
                self.apply(match read {
                    Ok((Some((code, why)), _)) => Event::Close { code, why },
                    Ok((None, frames)) => Event::Frames(frames),
                    Err(why) => Event::Unreadable(why),
                });
            }
            AggregatedMessage::Binary(_) => {
                self.apply(Event::Unreadable("messages must be JSON text".to_owned()));
            }
            AggregatedMessage::Ping(bytes) => {
                self.apply(Event::Heard);
                // Of several pings the newest alone needs an answer (RFC 6455, section 5.5.3).
                self.ping = Some(bytes);
            }
            AggregatedMessage::Pong(_) => self.apply(Event::Heard),
            AggregatedMessage::Close(reason) => {
                self.apply(Event::Heard);
                self.closing = Some(Closing::ByNode(reason));
            }
        }
    }

    /// The frames of a message, or what is wrong with it, in words fit for the node.
    fn read(&mut self, text: &str) -> Result<Vec<FromNode>, String> {
        if text.trim_start().starts_with('[') && !self.node.takes_batches() {
            return Err("arrays of frames are for nodes whose hello says \"batch\": true".to_owned());
        }
        let message = Message::<NodeFrame>::read(text)
            .map_err(|_| refused_part::<Message<NodeFrame>>(text).code_and_detail().1)?;
        let whose = self.principal.name();
        let frames = message.into_frames().into_iter();
        let (traces, node) = (&mut self.traces, self.node.node());
        let read = frames.map(|frame| {
            let nodes_own = frames::trace_of(&frame);
            let frame = frames::from_wire(frame, whose)?;
            if let FromNode::Result { slot, end } = &frame {
                traces.arrived(*slot, nodes_own, matches!(end, End::Succeeded { .. }), node);
            }
            Ok(frame)
        });
        read.collect()
    }

    /// Why the node may not connect under the name that it says, or not now. Otherwise the name is claimed, and the attempts that
    /// the node lists are counted.
    fn refused(&mut self, frames: &[FromNode]) -> Option<(CloseCode, String)> {
        // Whatever a second one says is a fault of the protocol.
        let is_first = self.node.node().is_none();
        let hello = frames.iter().find_map(|frame| match frame {
            FromNode::Hello(hello) if is_first => Some(hello),
            _ => None,
        })?;
        if let Err(why) = visibility::of_node(self.principal.sees(), &hello.node, hello.pools.as_deref()) {
            return Some(self.turned_away(why));
        }
        // Before the registry is asked: by the time that another connection's claim is over, it knows that one. Not before it is
        // known that the token may connect such a node: its claim would turn the rightful one away.
        let claim = self.state.node_claims.claim(&hello.node, &hello.principal);
        // As long as it lives, a node is whose token connected it.
        let known = self.incarnation.registry.get(&hello.node);
        if known.is_some_and(|known| known.profile.principal != hello.principal) {
            let why = format!("the node {} is connected with another token", hello.node);
            return Some(self.turned_away(why));
        }
        self.claim = claim;
        if self.claim.is_none() {
            // Whose the node is shows when the other connection is registered, or turned away.
            let why = "a connection with another token is about to be this node's; connect again";
            return Some((CloseCode::Overloaded, why.to_owned()));
        }
        match Listed::counted(&hello.running, self.state.shares.none(Kind::Reading, self.principal.used())) {
            Ok(listed) => {
                self.listed = listed;
                None
            }
            Err(reached) => Some((CloseCode::Overloaded, reached.to_string())),
        }
    }

    /// The token may not connect the node.
    fn turned_away(&self, why: String) -> (CloseCode, String) {
        tracing::info!(principal = self.principal.name(), why, "access is refused");
        (CloseCode::Unauthorized, why)
    }

    /// Stops counting what the node listed and does not have any more, or what is known to be its own.
    fn look_at_listed(&mut self) {
        // What is known of the attempts outlives a connection that is over.
        let Some(node) = self.node.node().filter(|_| self.closing.is_none()) else { return };
        let Some(listed) = &mut self.listed else { return };
        let (attached, jobs) = (&self.node, &self.incarnation.jobs);
        if !listed.keep(|slot| attached.has(*slot) && !jobs.is_confirmed(node, *slot)) {
            self.listed = None;
        }
    }

    /// What the lanes want of the node; nothing where a newer connection is attached instead.
    fn on_wishes(&mut self, wishes: Vec<FromJobs>) {
        if wishes.is_empty() {
            return self.apply(Event::Superseded);
        }
        let wishes = wishes.into_iter().map(|wish| match wish {
            FromJobs::Dispatch(dispatch) => {
                FromLane::Dispatch { is_foreign: dispatch.is_foreign(), dispatch: frame_of(*dispatch) }
            }
            FromJobs::Cancel(job, attempt) => FromLane::Cancel(Slot { job, attempt }),
            FromJobs::Drain(is_drained) => FromLane::Drain(is_drained),
            FromJobs::Share => FromLane::Share,
        });
        let wishes = wishes.collect();
        self.apply(Event::Wanted(wishes));
    }

    fn apply(&mut self, event: Event) {
        let bus_up_since = self.link.borrow().up_since();
        let effects = self.node.apply(event, Moment { now: Instant::now(), bus_up_since });
        // First: a result that stops waiting takes its room anew when it is committed.
        let counted = self.early.set(self.node.early_bytes());
        self.carry_out_all(effects);
        if let Err(reached) = counted {
            self.close_for_want_of_room(&reached);
        }
    }

    /// The node sends its results again when it has connected again.
    fn close_for_want_of_room(&mut self, reached: &Reached) {
        self.closing = Some(Closing::ByInstance(CloseCode::Overloaded, reached.to_string()));
    }

    /// A node that is not in the registry gets no work here.
    fn close_if_unknown(&mut self, applied: Applied) {
        if applied == Applied::TooMany {
            let why = format!("this instance knows {NODES_MAX} nodes, as many as it may");
            self.closing = Some(Closing::ByInstance(CloseCode::Overloaded, why));
        }
    }

    fn carry_out_all(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn call(&self, call: impl Future<Output = Option<Event>> + 'static) {
        self.calls.push(call.boxed_local());
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send(frame) => return self.send(frame),
            Effect::Close { code, why } => {
                self.closing = Some(Closing::ByInstance(code, why));
                return;
            }
            _ => {}
        }
        // All others are about a node that has said hello.
        let Some(node) = self.node.node() else { return };
        let (jobs, registry) = (&self.incarnation.jobs, &self.incarnation.registry);
        let epoch = self.node.epoch().unwrap_or(bus::Epoch::new(0));
        let calls = || Calls {
            state: Arc::clone(&self.state),
            forwarder: Arc::clone(&self.forwarder),
            incarnation: Arc::clone(&self.incarnation),
            principal: Arc::clone(&self.principal),
            node: node.clone(),
            epoch,
            handed_since: self.mailbox.as_ref().map_or_else(Instant::now, NodeOutbox::attached),
            holder_note: self.holder_note.as_ref().map_or_else(Weak::new, Arc::downgrade),
        };
        match effect {
            Effect::Attach { since, running } => {
                self.mailbox = Some(jobs.attach(node, since, &running, self.node.holder_slots()));
            }
            Effect::Acknowledged(Slot { job, attempt }) => jobs.acknowledged(node, job, attempt),
            Effect::Progressed { slot: Slot { job, attempt }, progress } => {
                jobs.progressed(node, job, attempt, progress);
            }
            Effect::CameToNothing { slot: Slot { job, attempt }, kind, why } => {
                jobs.came_to_nothing(node, job, attempt, kind, &why);
            }
            Effect::SlotFreed(slot) => {
                jobs.slot_freed(node, slot.job, slot.attempt);
                self.traces.freed(slot);
            }
            Effect::Commit { results, terms } => {
                let bytes: usize = results.iter().map(|(_, end)| end.text_bytes()).sum();
                let share = match self.state.shares.take(Kind::Reading, self.principal.used(), bytes) {
                    Ok(share) => Arc::new(share),
                    Err(reached) => return self.close_for_want_of_room(&reached),
                };
                // A result that the lane's owner writes and one that this instance writes do not wait for each other.
                for results in by_writer(jobs, results) {
                    let share = Arc::clone(&share);
                    let commit = calls().commit(results, terms);
                    self.call(commit.map(move |event| {
                        drop(share);
                        Some(event)
                    }));
                }
            }
            Effect::LookUp { running } => self.call(calls().look_up(running)),
            Effect::Record { record, heartbeat_at } => {
                let now = Instant::now();
                let applied = match heartbeat_at {
                    Some(arrived) => registry.heartbeat_recorded(record, arrived, now),
                    None => registry.recorded(record, now),
                };
                self.close_if_unknown(applied);
            }
            Effect::Note(record) => {
                let applied = registry.noted(record, Instant::now());
                self.close_if_unknown(applied);
            }
            Effect::CountFreed(count) => (0..count).for_each(|_| registry.freed(node, epoch)),
            Effect::TellOf => registry.tell_of(node, epoch),
            Effect::Register { report, running, since, over, had } => {
                let is_new = self.node.epoch().is_none();
                self.call(calls().register(report, running, (since, over, had), is_new).map(Some));
            }
            Effect::RegisterLater => self.call(calls::pause().map(Some)),
            Effect::Refresh { report, freed, taken } => {
                self.call(calls().refresh(report, freed, taken).map(Some));
            }
            Effect::SendSlots(dispatches) => self.call(calls().send_slots(dispatches).map(Some)),
            Effect::PassSlots { over, dispatches } => {
                self.call(calls().pass_slots(over, dispatches).map(Some));
            }
            Effect::FreeSlots { slots, was_full } => self.call(calls().free_slots(slots, was_full).map(Some)),
            Effect::Send(_) | Effect::Close { .. } => {}
        }
    }

    /// The pools that the node is in, once it is registered.
    fn pools(&self) -> Option<Vec<String>> {
        let registry = &self.incarnation.registry;
        let record = registry.get(self.node.node()?)?;
        Some(to_wire::pools_of(&record.profile, &registry.pools()))
    }

    fn send(&mut self, mut frame: ToNode) {
        self.traces.sent(&mut frame, self.node.node());
        match frames::to_wire(frame, || self.pools()) {
            Some(frame) => self.out.push_back(frame),
            None => tracing::error!("a payload in the ledger is not JSON and cannot be sent"),
        }
    }

    /// Sends all frames that wait. `false` if the node does not read them. Those that the connection has not been given, also
    /// where this is cut off or the connection is gone, wait still.
    async fn flush(&mut self) -> bool {
        if self.is_gone {
            return true;
        }
        if let Some(ping) = self.ping.take()
            && self.outlet.pong(&ping).await == Err(Unsent::NotRead)
        {
            return false;
        }
        let is_batch = self.node.takes_batches();
        while !self.out.is_empty() {
            let (message, taken) = frames::message(&self.out, is_batch);
            match self.outlet.text(message).await {
                Ok(()) => {
                    self.out.drain(..taken);
                }
                Err(Unsent::Closed) => {
                    // One of the next reads finds its end.
                    self.is_gone = true;
                    return true;
                }
                Err(Unsent::NotRead) => return false,
            }
        }
        self.out.shrink_to(SOCKET_FRAMES_KEPT);
        true
    }

    /// The socket is over. What the node runs it goes on with; it has a while to connect again, to any instance.
    async fn depart(mut self) {
        self.claim = None;
        self.say_goodbye();
        self.holder_note = None;
        let mut effects = self.node.leave();
        effects.extend(self.node.take_back(self.out.iter().filter_map(frames::dispatched)));
        self.early.shrink(self.early.amount());
        self.carry_out_all(effects);
        let departing = self.node.node().map(|node| self.incarnation.jobs.departs(node));
        // What still waits for the node is refused now, not when the last call has ended. A stop waits for that.
        let _open = self.mailbox.take().map(NodeOutbox::close);
        loop {
            match guarded("a call of a node's socket", self.calls.next()).await {
                Some(Some(Some(event))) => self.apply(event),
                // It says nothing, or ended by a panic; the others go on.
                Some(Some(None)) | None => {}
                Some(None) => break,
            }
        }
        // Of one that said no hello, or whose hello was refused, nothing is remembered.
        if let Some(listed) = self.listed.take()
            && self.node.node().is_some()
        {
            self.state.spawn(async move {
                tokio::time::sleep(jittered(LISTED_COUNTED_FOR)).await;
                drop(listed);
            });
        }
        let Some(departure) = self.node.departure() else { return };
        let jobs = &self.incarnation.jobs;
        for Slot { job, attempt } in &departure.unanswered {
            jobs.cut_off(*job, *attempt);
        }
        let (state, incarnation) = (Arc::clone(&self.state), Arc::clone(&self.incarnation));
        self.state.spawn(async move {
            disconnect::disconnect(state, incarnation, departure).await;
            drop(departing);
        });
    }

    /// Sends the close frame, beside what follows: a node that does not read delays nothing.
    fn say_goodbye(&mut self) {
        let closing = self.closing.take().unwrap_or(Closing::Gone);
        self.log_end(&closing);
        let mut last = Vec::new();
        let reason = match closing {
            Closing::ByInstance(code, why) => {
                if code == CloseCode::Protocol {
                    let problem = SocketProblem { code: self.fault.as_str().to_owned(), detail: why.clone() };
                    let problem = serde_json::to_string(&SchedulerFrame::Problem(problem));
                    last.push(problem.expect("frames have text keys only"));
                }
                let code = frames::close_code(code).into();
                Some(CloseReason { code, description: Some(why) })
            }
            Closing::ByNode(reason) => reason.map(|reason| reason.code.into()),
            Closing::Gone => return,
        };
        actix_web::rt::spawn(websocket::close(self.outlet.session(), last, reason));
    }

    /// Says who has ended the socket, and why.
    fn log_end(&self, closing: &Closing) {
        let (by, code, why) = match closing {
            Closing::ByInstance(code, why) => {
                ("instance", Some(frames::close_code(*code)), Some(why.as_str()))
            }
            Closing::ByNode(Some(CloseReason { code, description })) => {
                ("node", Some(u16::from(*code)), description.as_deref())
            }
            Closing::ByNode(None) => ("node", None, None),
            Closing::Gone => ("nobody", None, Some("the connection is gone")),
        };
        match self.node.node() {
            Some(node) => {
                let epoch = self.node.epoch().map(tracing::field::display);
                // The drain ends here, unless the node says that it is drained when it connects again.
                let drained = self.node.is_drained().then_some(true);
                tracing::info!(%node, epoch, by, code, why, drained, "a node's socket is closed");
            }
            None => tracing::debug!(by, code, why, "a socket that no node has named is closed"),
        }
    }
}
