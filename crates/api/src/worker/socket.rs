//! Runs one worker socket: reads frames, has the connection's state machine judge them, carries its effects out, and
//! sends what comes of it. Everything that waits for a database or a bus does so beside the socket, never in its way.
//!
//! Order of things for one dispatch: its slot is `sent` at the bus, then the frame leaves. For one result: it is
//! committed, then the node is told `committed`, then its slot is free.

mod away;
mod ends;
mod farewell;
mod record;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_ws::{AggregatedMessage, AggregatedMessageStream, CloseCode as WsCode, CloseReason, Session};
use actors::jobs::{Answer, Line, ToNode as Wish};
use bus::{Connected, Epoch, NodeState, Slot, Version, Written};
use domain::NodeId;
use domain::job::Revoked;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use nodes::connection::{CloseCode, Connection, Dispatch, Effect, End, Hello, Refused, TICK_MS, ToNode};
use nodes::limits::HEARTBEAT_MS_DEFAULT;
use nodes::{Load, Profile, Stamp, Vouching};
use wire::limits::{MESSAGE_BYTES_MAX, MESSAGE_FRAMES_MAX};
use wire::worker::{Message, NodeFrame, SchedulerFrame, SocketProblem};

use super::frames;
use crate::limits::{SOCKET_SEND_MAX, SOCKET_WISHES_MAX};
use crate::server::Incarnation;
use crate::state::State;
use farewell::{Left, say_farewell};
use record::profile;

/// What was waited for beside the socket.
enum Done {
    /// `None` where a younger connection has the node.
    Registered(bus::Result<Option<Known>>),
    RegisterAgain,
    /// The slots that were freed with it, and those that it told to be taken, if it told of all.
    Refreshed(bus::Result<Written>, Vec<Slot>, Option<Vec<Slot>>),
    Sent(bus::Result<Vec<bool>>, Vec<actors::jobs::Dispatch>),
    /// What became of results, and what is to have the slots of some of them.
    Committed(Vec<Slot>, Vec<(Answer, Option<Box<actors::jobs::Dispatch>>)>),
    /// The slots that were passed on, and to what.
    Passed(bus::Result<Vec<bool>>, Vec<Slot>, Vec<actors::jobs::Dispatch>),
    /// The slots that could not be freed, and whether the node had been full before.
    Freed(Vec<Slot>, bool),
    /// Nothing more follows.
    Over,
}

/// What the bus knows of the node.
struct Known {
    connected: Connected,
    /// The slots that were told to be taken.
    told: Vec<Slot>,
    /// The slots that were given to attempts which the node does not list.
    unlisted: Vec<Slot>,
}

/// One socket, from its opening to its end.
pub struct Socket {
    state: Arc<State>,
    incarnation: Arc<Incarnation>,
    session: Session,
    connection: Connection,
    batch: bool,
    registered: Option<Registered>,
    /// Its record is being made at the bus, or will be again; one such call at a time, or an earlier one would be the
    /// last to answer.
    registering: bool,
    /// Since when another connection has its record, and this one doubts it.
    contested: Option<Instant>,
    /// Who gives slots.
    vouching: Vouching,
    hello: Option<Hello>,
    /// When that came.
    since: Instant,
    load: Load,
    /// Frames on their way out.
    out: VecDeque<SchedulerFrame>,
    /// What is waited for.
    work: FuturesUnordered<LocalBoxFuture<'static, Done>>,
    refreshing: bool,
    /// When the heartbeat came that is being written down.
    heartbeat_at: Option<Instant>,
    refresh_again: bool,
    /// Slots to be freed with the next refresh.
    gone: Vec<Slot>,
    /// Attempts on their way to the node, and those of them that were called off meanwhile.
    sending: HashSet<Slot>,
    called_off: HashSet<Slot>,
    /// Dispatches that wait until the bus knows which slots are taken.
    held_back: Vec<actors::jobs::Dispatch>,
    /// Results that came before the node was registered.
    early: Vec<(Slot, End)>,
    /// Slots given to unfinished attempts that the node did not list, for dispatches that may be on their way; freed
    /// when none came by then.
    unlisted: Vec<Slot>,
    unlisted_until: Instant,
    /// When the node was heard of last.
    heard: Instant,
    /// Why it is closed.
    closing: Option<(CloseCode, String)>,
}

/// A node that is connected here.
struct Registered {
    node: NodeId,
    profile: Arc<Profile>,
    epoch: Epoch,
    /// The bus does not know of it yet, and the epoch is one of this instance.
    is_provisional: bool,
    line: Line,
}

impl Socket {
    pub fn new(state: Arc<State>, incarnation: Arc<Incarnation>, session: Session) -> Self {
        let connection =
            Connection::opened(incarnation.identity.id.clone(), HEARTBEAT_MS_DEFAULT, Instant::now());
        Self {
            state,
            incarnation,
            session,
            connection,
            batch: false,
            registered: None,
            registering: false,
            contested: None,
            vouching: Vouching::new(Instant::now()),
            hello: None,
            since: Instant::now(),
            load: Load::default(),
            out: VecDeque::new(),
            work: FuturesUnordered::new(),
            refreshing: false,
            heartbeat_at: None,
            refresh_again: false,
            gone: Vec::new(),
            sending: HashSet::new(),
            called_off: HashSet::new(),
            held_back: Vec::new(),
            early: Vec::new(),
            unlisted: Vec::new(),
            unlisted_until: Instant::now(),
            heard: Instant::now(),
            closing: None,
        }
    }

    /// Serves until either side ends it.
    pub async fn run(mut self, mut messages: AggregatedMessageStream) {
        let mut tick = tokio::time::interval(Duration::from_millis(TICK_MS));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let state = Arc::clone(&self.state);
        let mut draining = std::pin::pin!(state.traffic.until_draining());
        let mut is_ended = false;
        while !is_ended && self.closing.is_none() {
            let wishes = async {
                match &mut self.registered {
                    Some(registered) => registered.line.next(SOCKET_WISHES_MAX).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                message = messages.next() => match message {
                    Some(Ok(message)) => is_ended = self.on_message(message),
                    Some(Err(error)) => self.fault(format!("the message cannot be read: {error}")),
                    None => is_ended = true,
                },
                wishes = wishes => self.on_wishes(wishes),
                Some(done) = self.work.next(), if !self.work.is_empty() => self.on_done(done),
                _ = tick.tick() => {
                    let effects = self.connection.on_tick(Instant::now());
                    self.follow(effects);
                    self.free_unlisted();
                    if self.state.incarnation().identity.id != self.incarnation.identity.id {
                        self.end(CloseCode::GoingAway, "this instance has begun anew; connect again");
                    }
                }
                () = &mut draining => self.end(CloseCode::GoingAway, "this instance is stopping; connect to another"),
            }
            if !self.flush().await {
                self.closing =
                    Some((CloseCode::TooSlow, "the node does not read what it is sent".to_owned()));
            }
        }
        self.depart().await;
    }

    /// Whether the node has closed the socket.
    fn on_message(&mut self, message: AggregatedMessage) -> bool {
        self.heard = Instant::now();
        match message {
            AggregatedMessage::Text(text) => self.on_text(&text),
            AggregatedMessage::Binary(_) => self.fault("messages must be JSON text".to_owned()),
            // The session answers by itself when the frame is told to it.
            AggregatedMessage::Ping(bytes) => {
                let mut session = self.session.clone();
                self.work.push(
                    async move {
                        // A session that is closed is found by the next read.
                        let _ = session.pong(&bytes).await;
                        Done::Over
                    }
                    .boxed_local(),
                );
            }
            AggregatedMessage::Pong(_) => {}
            AggregatedMessage::Close(_) => return true,
        }
        false
    }

    fn on_text(&mut self, text: &str) {
        let is_batch = text.trim_start().starts_with('[');
        if is_batch && !self.batch {
            return self.fault("arrays of frames are for nodes whose hello says \"batch\": true".to_owned());
        }
        let message = match Message::<NodeFrame>::read(text) {
            Ok(message) => message,
            Err(error) => return self.fault(error.to_string()),
        };
        let mut effects = Vec::new();
        for frame in message.into_frames() {
            match frames::read(frame) {
                Ok(frame) => effects.extend(self.connection.on_frame(frame, Instant::now())),
                Err(wrong) => return self.fault(wrong),
            }
            if self.connection.is_over() {
                break;
            }
        }
        self.follow(effects);
    }

    fn fault(&mut self, why: String) {
        let effects = self.connection.end(CloseCode::Protocol, why);
        self.follow(effects);
    }

    fn end(&mut self, code: CloseCode, why: &str) {
        let effects = self.connection.end(code, why.to_owned());
        self.follow(effects);
    }

    /// Carries effects out, in their order.
    fn follow(&mut self, effects: Vec<Effect>) {
        let (mut results, mut freed) = (Vec::new(), Vec::new());
        for effect in effects {
            match effect {
                Effect::Register(hello) => {
                    self.batch = hello.takes_batches;
                    self.hello = Some(hello);
                    self.since = self.heard;
                    self.register();
                }
                Effect::Send(frame) => self.send(frame),
                Effect::Heartbeat { load, gone } => {
                    self.load = load;
                    self.heartbeat_at.get_or_insert(self.heard);
                    for Slot { job, attempt } in &gone {
                        let why = "the node does not know of it any more";
                        self.incarnation.jobs.came_to_nothing(*job, *attempt, Revoked::Unlisted, why);
                        self.incarnation.jobs.slot_freed(*job, *attempt);
                    }
                    self.gone.extend(gone);
                    self.refresh();
                }
                Effect::State(_) => self.refresh(),
                Effect::Acknowledged(slot) => {
                    if let Some(registered) = &self.registered {
                        self.incarnation.jobs.acknowledged(&registered.node, slot.job, slot.attempt);
                    }
                }
                Effect::Rejected { slot, reason } => {
                    let why = Revoked::Rejected;
                    self.incarnation.jobs.came_to_nothing(slot.job, slot.attempt, why, &reason);
                    freed.push(slot);
                }
                Effect::Progress { slot, progress } => {
                    if let Some(Registered { node, .. }) = &self.registered {
                        self.incarnation.jobs.progressed(node, slot.job, slot.attempt, progress);
                    }
                }
                Effect::Result { slot, end } => results.push((slot, end)),
                Effect::Free(slot) => freed.push(slot),
                Effect::Close { code, why } => self.closing = Some((code, why)),
            }
        }
        self.commit(results);
        self.free(freed);
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Registered(known) => {
                self.registering = false;
                self.answered(&known);
                match known {
                    Ok(Some(known)) => self.on_registered(known),
                    Ok(None) => self.contest(),
                    Err(error) => {
                        tracing::debug!(%error, "a node could not be registered yet");
                        let is_away = error.is_retryable() && !error.may_have_run();
                        if self.registered.is_none() && is_away {
                            self.welcome_alone();
                        }
                        let held_back = std::mem::take(&mut self.held_back);
                        self.refuse(held_back);
                        self.register_again();
                    }
                }
            }
            Done::RegisterAgain if self.refreshing => self.register_again(),
            Done::RegisterAgain => {
                self.registering = false;
                match self.contested {
                    Some(contested) if self.heard <= contested => self.contest(),
                    Some(_) | None => self.register(),
                }
            }
            Done::Refreshed(written, gone, told) => self.on_refreshed(written, gone, told),
            Done::Sent(sent, dispatches) => self.on_sent(sent, dispatches),
            Done::Committed(slots, answers) => self.on_committed(slots, answers),
            Done::Passed(passed, over, dispatches) => self.on_passed(passed, over, dispatches),
            Done::Freed(left, was_full) => self.on_freed(left, was_full),
            Done::Over => {}
        }
    }

    /// What the lanes want of the node.
    fn on_wishes(&mut self, wishes: Vec<Wish>) {
        if wishes.is_empty() {
            return self.end(CloseCode::Replaced, "a newer connection of this node took over");
        }
        let mut dispatches = Vec::new();
        let (mut granted, mut effects, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for wish in wishes {
            match wish {
                Wish::Dispatch(dispatch) => {
                    let slot = Slot { job: dispatch.job, attempt: dispatch.attempt };
                    let is_granted = self.connection.is_granted(slot);
                    if is_granted { granted.push(*dispatch) } else { dispatches.push(*dispatch) }
                }
                Wish::Cancel(job, attempt) => {
                    let slot = Slot { job, attempt };
                    if self.connection.has(slot) {
                        effects.extend(self.connection.cancel(slot));
                    } else if self.sending.contains(&slot) || self.is_held_back(slot) {
                        self.called_off.insert(slot);
                    } else {
                        // The node does not have it.
                        unknown.push(slot);
                    }
                }
                Wish::Drain(is_drained) => effects.extend(self.connection.drain(is_drained, Instant::now())),
                Wish::Grant(claims, ends, reply) => self.grant(&claims, ends, reply),
                Wish::GiveBack(claim) => {
                    if self.connection.give_back(claim) {
                        unknown.push(claim.slot);
                    }
                }
            }
        }
        self.follow(effects);
        self.free(unknown);
        if !granted.is_empty() {
            self.send_on(granted, &[]);
            self.note();
        }
        if dispatches.is_empty() {
            return;
        }
        if self.registered.as_ref().is_some_and(|registered| registered.is_provisional) {
            self.refuse(dispatches);
        } else if self.vouching.is_ahead() {
            self.held_back.extend(dispatches);
            self.refresh();
        } else {
            self.send_out(dispatches);
        }
    }

    fn is_held_back(&self, slot: Slot) -> bool {
        self.held_back.iter().any(|held| (held.job, held.attempt) == (slot.job, slot.attempt))
    }

    /// Asks the bus for the slots of dispatches.
    fn send_out(&mut self, dispatches: Vec<actors::jobs::Dispatch>) {
        if let Some(registered) = &self.registered {
            let (node, epoch) = (registered.node.clone(), registered.epoch);
            let state = Arc::clone(&self.state);
            let slots: Vec<_> = dispatches.iter().map(|d| Slot { job: d.job, attempt: d.attempt }).collect();
            self.sending.extend(&slots);
            let send = async move {
                let sent = state.call(state.bus.send_slots(&node, epoch, &slots)).await;
                Done::Sent(sent, dispatches)
            };
            self.work.push(send.boxed_local());
        }
    }

    /// What has its slot is sent; what has none is not.
    fn on_sent(&mut self, sent: bus::Result<Vec<bool>>, dispatches: Vec<actors::jobs::Dispatch>) {
        let mut freed = Vec::new();
        let sent = sent.unwrap_or_else(|error| {
            tracing::debug!(%error, "dispatches whose slots are not known to be sent are dropped");
            freed.extend(dispatches.iter().map(|it| Slot { job: it.job, attempt: it.attempt }));
            vec![false; dispatches.len()]
        });
        let mut sent_on = Vec::with_capacity(dispatches.len());
        for (dispatch, is_sent) in dispatches.into_iter().zip(sent) {
            let slot = Slot { job: dispatch.job, attempt: dispatch.attempt };
            self.sending.remove(&slot);
            if self.called_off.remove(&slot) {
                freed.push(slot);
            } else if is_sent {
                sent_on.push(dispatch);
            } else {
                let why = Revoked::Undeliverable;
                self.incarnation.jobs.came_to_nothing(slot.job, slot.attempt, why, "its slot was gone");
            }
        }
        self.send_on(sent_on, &freed);
        if std::mem::take(&mut self.refresh_again) {
            self.refresh();
        }
    }

    /// Sends what has its slot on to the node. What it cannot be sent is freed, and these.
    fn send_on(&mut self, dispatches: Vec<actors::jobs::Dispatch>, freed: &[Slot]) {
        let mut freed = freed.to_vec();
        for dispatch in dispatches {
            let slot = Slot { job: dispatch.job, attempt: dispatch.attempt };
            let jobs = &self.incarnation.jobs;
            let session = dispatch.session.clone().zip(dispatch.seq);
            let frame = Dispatch {
                slot,
                payload: Arc::clone(&dispatch.payload),
                session,
                timeout_ms: dispatch.timeout_ms,
            };
            match self.connection.dispatch(frame, Instant::now()) {
                Ok(effects) => self.follow(effects),
                Err(Refused::Known) => {}
                Err(refused) => {
                    let why = Revoked::Undeliverable;
                    jobs.came_to_nothing(slot.job, slot.attempt, why, &refused.to_string());
                    freed.push(slot);
                }
            }
        }
        self.free(freed);
    }

    fn send(&mut self, frame: ToNode) {
        match frames::written(frame) {
            Some(frame) => self.out.push_back(frame),
            None => tracing::error!("a payload that is not JSON is not sent"),
        }
    }

    /// Sends all frames that wait. `false` if the node does not read them.
    async fn flush(&mut self) -> bool {
        while !self.out.is_empty() {
            let count = if self.batch { self.out.len().min(MESSAGE_FRAMES_MAX) } else { 1 };
            let (mut texts, mut bytes, mut taken) = (Vec::with_capacity(count), 0, 0);
            for frame in self.out.iter().take(count) {
                let text = serde_json::to_string(frame).expect("frames have text keys only");
                if taken > 0 && bytes + text.len() + 2 > MESSAGE_BYTES_MAX {
                    break;
                }
                bytes += text.len() + 1;
                taken += 1;
                texts.push(text);
            }
            self.out.drain(..taken);
            let message =
                if self.batch && texts.len() > 1 { format!("[{}]", texts.join(",")) } else { texts.concat() };
            match tokio::time::timeout(SOCKET_SEND_MAX, self.session.text(message)).await {
                Ok(Ok(())) => {}
                // Closed: the next read says so.
                Ok(Err(_)) => return true,
                Err(_) => return false,
            }
        }
        true
    }

    /// The socket is over. What the node runs it goes on with; it has a while to connect anew, to whatever instance.
    async fn depart(mut self) {
        if let Some((code, why)) = self.closing.take() {
            if code == CloseCode::Protocol {
                let problem = SocketProblem { code: "invalid".to_owned(), detail: why.clone() };
                self.out.push_back(SchedulerFrame::Problem(problem));
                self.flush().await;
            }
            tracing::debug!(code = code.number(), why, "a worker socket is closed");
            let code = match code {
                CloseCode::GoingAway => WsCode::Away,
                other => WsCode::Other(other.number()),
            };
            let reason = CloseReason { code, description: Some(shortened(why)) };
            let close = self.session.clone().close(Some(reason));
            // A node that does not read is not waited for.
            let _ = tokio::time::timeout(SOCKET_SEND_MAX, close).await;
        }
        let slots: Vec<_> = self.connection.slots().collect();
        let mut known_as = self.registered.as_ref().map(|known| (known.epoch, known.is_provisional));
        // Commits that are under way are finished; what they are told to the node it asks for again. A record that is
        // made too late for the node is taken back like any other.
        while let Some(done) = self.work.next().await {
            match done {
                Done::Registered(Ok(Some(known))) => known_as = Some((known.connected.epoch, false)),
                Done::Committed(_, answers) => {
                    answers.into_iter().filter_map(|(_, next)| next).for_each(|next| self.not_passed(&next));
                }
                Done::Passed(_, _, dispatches) => dispatches.iter().for_each(|next| self.not_passed(next)),
                _ => {}
            }
        }
        // Its line is hung up.
        self.registered = None;
        let (Some((epoch, is_provisional)), Some(hello)) = (known_as, &self.hello) else { return };
        let (node, profile) = (hello.node.clone(), Arc::new(profile(hello, &self.incarnation)));
        for Slot { job, attempt } in self.connection.unanswered() {
            self.incarnation.jobs.cut_off(job, attempt);
        }
        tracing::info!(%node, %epoch, "a node's socket is closed");
        let stamp = Stamp { epoch, version: Version::new(0) };
        let mut record = self.known(hello, &profile, stamp);
        record.status.state = NodeState::Unhealthy;
        let (state, registry) = (Arc::clone(&self.state), self.incarnation.registry.clone());
        let jobs = self.incarnation.jobs.clone();
        let left = Left { record, is_provisional, slots, heard: self.heard };
        self.state.spawn(say_farewell(state, registry, jobs, left));
    }
}

/// A reason fit for a close frame, which takes 123 bytes.
fn shortened(mut why: String) -> String {
    let mut end = why.len().min(120);
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    why.truncate(end);
    why
}
