//! What an instance does for the nodes whose sockets it holds: attempts go out to them, withdrawals too, and what the nodes
//! say of attempts goes to the owners of the lanes. What they say of results is for `results`.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bus::{Claim, Reserved, Slot};
use dashmap::{DashMap, Entry};
use domain::job::{Attempt, Revoked, State};
use domain::{InstanceId, JobId, LaneId, NodeId};
use ledger::{HeldAttempt, jittered};
use nodes::{GivenBack, HolderSlots, Registry};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::AbortHandle;

use super::delivery::{Dispatch, DispatchNotice, Noticed, RetryPolicy, Withdrawal};
use super::instance_message::{AttemptReport, InstanceMessage};
use super::inter_instance::InterInstance;
use super::job_metrics::JOB_METRICS;
use super::limits::{
    OUTGOING_BYTES_MAX, OUTGOING_BYTES_OF_NODE_MAX, SLOTS_LEFT_EVERY, SLOTS_LEFT_FOR, SLOTS_WANTED_FOR,
    SOCKET_BYTES_AT_ONCE, SOCKET_MESSAGES_MAX,
};
use super::local_attempts::LocalAttempts;
use super::messages::AttemptEvent;
use super::progress_store::ProgressStore;

/// What is for a node.
#[derive(Debug)]
pub enum ToNode {
    /// An attempt, for which its slot is to be sent first.
    Dispatch(Box<Dispatch>),
    /// An attempt is cancelled.
    Cancel(JobId, Attempt),
    /// An operator wants it to get no more work, or to get work again.
    Drain(bool),
    /// A lane of another instance wants a slot: the bus is to give them.
    Share,
}

/// Between two tries to note that a node is here, before jitter.
const HOLDER_NOTED_AGAIN: Duration = Duration::from_secs(1);

/// The unfinished attempts of a node that has connected here.
pub(super) struct OnNode {
    /// Those that it has or may still get on this connection.
    pub(super) there: Vec<Slot>,
    /// Those that it has acknowledged and does not list any more.
    pub(super) gone: Vec<Slot>,
}

/// The nodes whose sockets one instance holds, and the way to the nodes of the others.
pub(super) struct NodeGateway {
    ledger: ledger::Handle,
    registry: Registry,
    inter_instance: Arc<InterInstance>,
    progress: Arc<ProgressStore>,
    sockets: DashMap<NodeId, Socket>,
    /// Nodes with closed sockets that are not given up yet, each with how many of them.
    departing: DashMap<NodeId, usize>,
    /// How many more bytes of attempts may be on their way to sockets.
    outgoing_bytes: Arc<Semaphore>,
    attempts: LocalAttempts,
    /// When a node connected here last.
    attached: Mutex<Option<Instant>>,
    /// Each [`OpenSocket`] has a receiver.
    open: watch::Sender<()>,
}

struct Socket {
    /// When its node said hello.
    since: Instant,
    /// What is handed over for the node from then on goes to this socket.
    attached: Instant,
    outbox: mpsc::Sender<Outgoing>,
    /// How many more bytes of attempts may be on their way to it.
    outgoing_bytes: Arc<Semaphore>,
    /// What the socket's holder gives of the node's slots.
    slots: Arc<HolderSlots>,
    yielding: Mutex<Yielding>,
}

/// Whether other instances want slots of a node whose socket is here. This instance hears of a free slot before they do: so
/// that they get one, it takes none for a moment now and then.
#[derive(Default)]
struct Yielding {
    /// When one of them has asked last.
    asked: Option<Instant>,
    /// Since when this instance takes none, or did so last.
    left: Option<Instant>,
}

impl Yielding {
    /// Begins to leave free slots to the others, if they want some and this was not done lately.
    fn leave(&mut self, now: Instant) -> bool {
        let is_due = self.left.is_none_or(|at| now >= at + SLOTS_LEFT_EVERY);
        let begins = is_due && self.asked.is_some_and(|at| now < at + SLOTS_WANTED_FOR);
        if begins {
            self.left = Some(now);
        }
        begins
    }

    fn is_left(&self, now: Instant) -> bool {
        self.left.is_some_and(|at| now < at + SLOTS_LEFT_FOR)
    }
}

/// What is for a node, and its share of the bytes that may be on their way.
struct Outgoing {
    message: ToNode,
    _share: Option<OutgoingShare>,
}

/// A message's share of the bytes on their way to its node, and of those on their way to all nodes.
struct OutgoingShare {
    _of_node: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

/// What is for one node comes out of it, at the node's socket. Dropping it disconnects the node from the gateway.
pub struct NodeOutbox {
    gateway: Arc<NodeGateway>,
    node: NodeId,
    since: Instant,
    attached: Instant,
    messages: mpsc::Receiver<Outgoing>,
    open: OpenSocket,
}

/// A node's socket of which the lanes may still hear. As long as this exists, [`super::Jobs::until_no_socket`] waits.
#[derive(Clone)]
#[must_use]
pub struct OpenSocket {
    _receiver: watch::Receiver<()>,
}

impl NodeOutbox {
    /// What is handed over for the node from then on goes to this connection, or to a newer one.
    #[must_use]
    pub const fn attached(&self) -> Instant {
        self.attached
    }

    /// What comes next, as many as are there, at most `max`, and not too many bytes; empty when another connection of the
    /// node has taken over.
    pub async fn next(&mut self, max: usize) -> Vec<ToNode> {
        let (mut messages, mut bytes) = (Vec::new(), 0);
        let mut next = self.messages.recv().await;
        while let Some(Outgoing { message, .. }) = next.take() {
            if let ToNode::Dispatch(dispatch) = &message {
                bytes += dispatch.node_job.text_bytes();
            }
            messages.push(message);
            if messages.len() < max && bytes < SOCKET_BYTES_AT_ONCE {
                next = self.messages.try_recv().ok();
            }
        }
        messages
    }

    /// The socket is closed: what still waits for the node is refused. The answer is to be kept until the lanes have heard what
    /// became of the rest.
    pub fn close(self) -> OpenSocket {
        self.open.clone()
    }
}

impl Drop for NodeOutbox {
    fn drop(&mut self) {
        self.gateway.sockets.remove_if(&self.node, |_, socket| socket.since == self.since);
        self.messages.close();
        while let Ok(outgoing) = self.messages.try_recv() {
            if let ToNode::Dispatch(dispatch) = outgoing.message {
                let reason = "the node's socket was closed before the attempt was sent";
                self.gateway.came_to_nothing(dispatch.job, dispatch.attempt, Revoked::Undeliverable, reason);
            }
        }
    }
}

/// A node whose socket here is closed, until it has connected again or is given up. As long as this exists, it is remembered what
/// the node is to stop.
#[must_use]
pub struct Departing {
    gateway: Arc<NodeGateway>,
    node: NodeId,
}

impl Drop for Departing {
    fn drop(&mut self) {
        self.gateway.departing.remove_if_mut(&self.node, |_, sockets| {
            *sockets -= 1;
            *sockets == 0
        });
    }
}

/// What notes in the ledger that this instance holds the node of one connection, while it is under way. Dropping it ends the
/// tries: the node may be at another instance by then, which notes so as well. A try that has reached the ledger may still be
/// carried out.
#[derive(Default)]
pub struct HolderNote(Mutex<Option<NoteTask>>);

struct NoteTask(AbortHandle);

impl HolderNote {
    /// This takes the place of what is under way.
    fn replace(&self, task: AbortHandle) {
        *self.0.lock() = Some(NoteTask(task));
    }
}

impl Drop for NoteTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl NodeGateway {
    pub(super) fn new(
        ledger: ledger::Handle,
        registry: Registry,
        inter_instance: Arc<InterInstance>,
        progress: Arc<ProgressStore>,
    ) -> Arc<Self> {
        let (sockets, departing, attempts) = (DashMap::new(), DashMap::new(), LocalAttempts::default());
        let outgoing_bytes = Arc::new(Semaphore::new(OUTGOING_BYTES_MAX));
        let (attached, open) = (Mutex::new(None), watch::Sender::new(()));
        Arc::new(Self {
            ledger,
            registry,
            inter_instance,
            progress,
            sockets,
            departing,
            outgoing_bytes,
            attempts,
            attached,
            open,
        })
    }

    /// The attempts of the nodes that are connected here.
    pub(super) const fn attempts(&self) -> &LocalAttempts {
        &self.attempts
    }

    /// A node's new connection, which said hello then and listed these attempts: from now on it gets what is for the node.
    pub(super) fn attach(
        self: &Arc<Self>,
        node: &NodeId,
        since: Instant,
        listed: &[Slot],
        slots: Arc<HolderSlots>,
    ) -> NodeOutbox {
        let (outbox, messages) = mpsc::channel(SOCKET_MESSAGES_MAX);
        *self.attached.lock() = Some(Instant::now());
        let entry = self.sockets.entry(node.clone());
        let mut attached = Instant::now();
        let outgoing_bytes = Arc::new(Semaphore::new(OUTGOING_BYTES_OF_NODE_MAX));
        let yielding = Mutex::default();
        let socket = Socket { since, attached, outbox, outgoing_bytes, slots, yielding };
        match entry {
            // A newer connection was quicker; this one hears at once that it is replaced.
            Entry::Occupied(newer) if newer.get().since > since => attached = newer.get().attached,
            Entry::Occupied(mut older) => drop(older.insert(socket)),
            Entry::Vacant(none) => drop(none.insert(socket)),
        }
        // Since it said hello, some of them may have been found orphaned, when it could not be told so.
        self.attempts.listed(node, listed);
        let open = OpenSocket { _receiver: self.open.subscribe() };
        NodeOutbox { gateway: Arc::clone(self), node: node.clone(), since, attached, messages, open }
    }

    /// Returns when there is no [`OpenSocket`].
    pub(super) async fn until_no_socket(&self) {
        self.open.closed().await;
    }

    /// Whether a node has connected here so lately: selections may not know it yet.
    pub(super) fn attached_within(&self, length: Duration) -> bool {
        self.attached.lock().is_some_and(|at| at.elapsed() < length)
    }

    pub(super) fn is_attached(&self, node: &NodeId) -> bool {
        self.sockets.contains_key(node)
    }

    /// A socket of the node is closed here, or is about to be.
    pub(super) fn departs(self: &Arc<Self>, node: &NodeId) -> Departing {
        *self.departing.entry(node.clone()).or_default() += 1;
        Departing { gateway: Arc::clone(self), node: node.clone() }
    }

    /// Whether what becomes of the node is found here: it is connected here, or was and is not given up yet.
    pub(super) fn looks_after(&self, node: &NodeId) -> bool {
        self.is_attached(node) || self.departing.contains_key(node)
    }

    pub(super) fn drain(&self, node: &NodeId, is_drained: bool) -> bool {
        self.send_to_node(node, ToNode::Drain(is_drained))
    }

    /// Reserves slots of a node, while this instance holds its socket and gives them. `None` where the bus does.
    pub(super) fn reserve(
        &self,
        node: &NodeId,
        holder: &InstanceId,
        claims: &[Claim],
    ) -> Option<Vec<Reserved>> {
        if holder != self.inter_instance.me() {
            return None;
        }
        let now = Instant::now();
        let ends = now + self.registry.timeouts().reservation;
        self.sockets.get(node)?.slots.reserve(claims, ends, now)
    }

    /// Whether this instance gives the slots of the node now.
    pub(super) fn gives(&self, node: &NodeId) -> bool {
        self.sockets.get(node).is_some_and(|socket| socket.slots.gives(Instant::now()))
    }

    /// A slot that this instance may have given is not wanted any more.
    pub(super) fn give_back(&self, node: &NodeId, claim: Claim) -> GivenBack {
        let slots = self.sockets.get(node).map(|socket| Arc::clone(&socket.slots));
        let given = slots.map_or(GivenBack::NotGiven, |slots| slots.give_back(claim, Instant::now()));
        if given != GivenBack::NotGiven {
            self.registry.unreserved(node);
        }
        given
    }

    /// Asks the holder of a node's socket to have the bus give the node's slots.
    pub(super) fn ask_to_share(&self, node: NodeId, holder: InstanceId) {
        if holder != *self.inter_instance.me() {
            self.inter_instance.post(holder, InstanceMessage::Share(node));
        }
    }

    /// Another instance wants slots of a node, if its socket is here.
    pub(super) fn share(&self, node: &NodeId) {
        if let Some(socket) = self.sockets.get(node) {
            socket.yielding.lock().asked = Some(Instant::now());
        }
        // A queue that is full is asked again.
        self.send_to_node(node, ToNode::Share);
    }

    /// Whether the slot of a node here that comes free now is left to other instances, since they want one: then this instance
    /// takes none for a moment.
    pub(super) fn leave_to_others(&self, node: &NodeId) -> bool {
        let begins =
            self.sockets.get(node).is_some_and(|socket| socket.yielding.lock().leave(Instant::now()));
        if begins {
            let (registry, node) = (self.registry.clone(), node.clone());
            tokio::spawn(async move {
                tokio::time::sleep(SLOTS_LEFT_FOR).await;
                registry.clear_full(&node);
            });
        }
        begins
    }

    /// Whether this instance is to take no slot of a node here that the bus gives.
    pub(super) fn is_left_to_others(&self, node: &NodeId, holder: &InstanceId) -> bool {
        let is_left =
            || self.sockets.get(node).is_some_and(|socket| socket.yielding.lock().is_left(Instant::now()));
        holder == self.inter_instance.me() && (is_left() || self.leave_to_others(node))
    }

    /// Sends an attempt on its way, to its node or to the instance that holds the node's socket.
    pub(super) fn deliver(&self, dispatch: Dispatch) {
        let holder = &dispatch.placed.holder;
        if holder == self.inter_instance.me() {
            self.hand_to_node(dispatch);
        } else if self.registry.is_there(holder) {
            self.inter_instance.post(holder.clone(), InstanceMessage::Dispatch(dispatch.notice()));
        } else {
            let reason = format!("{holder}, which holds the node's socket, is not reachable");
            let event = AttemptEvent::Revoked(Revoked::Undeliverable, reason);
            self.report(&dispatch.policy, dispatch.job, dispatch.attempt, event);
        }
    }

    /// Has an attempt stopped at its node.
    pub(super) fn withdraw(&self, withdrawal: Withdrawal) {
        let holder = &withdrawal.placed.holder;
        if holder == self.inter_instance.me() {
            self.cancel_at_node(&withdrawal.placed.node, withdrawal.job, withdrawal.attempt);
        } else {
            self.inter_instance.post(holder.clone(), InstanceMessage::Withdrawal(withdrawal));
        }
    }

    /// Gives an attempt to the socket of its node, if that is here.
    fn hand_to_node(&self, dispatch: Dispatch) {
        let (job, attempt, node) = (dispatch.job, dispatch.attempt, dispatch.placed.node.clone());
        // While it is looked at, no newer socket is attached: the attempt is known since a time after its own socket was.
        let socket = self.sockets.get(&node);
        self.attempts.expect(&dispatch, Instant::now());
        let message = ToNode::Dispatch(Box::new(dispatch));
        if !socket.is_some_and(|socket| self.send_to(&socket, message)) {
            let reason = "the node's socket is not on this instance, or too much waits for it or for others";
            self.came_to_nothing(job, attempt, Revoked::Undeliverable, reason);
        }
    }

    /// Gives attempts that other instances dispatched to the sockets of their nodes. The jobs are read from the ledger; an
    /// attempt that is not its job's newest any more, or that the ledger places elsewhere, is dropped.
    pub(super) async fn hand_noticed(&self, noticed: Vec<Noticed>) {
        let (here, gone): (Vec<_>, Vec<_>) =
            noticed.into_iter().partition(|one| self.is_attached(&one.notice.placed.node));
        for one in gone {
            self.not_handed(one, "the node's socket is not on this instance");
        }
        let jobs: Vec<_> = here.iter().map(|one| one.notice.job).collect();
        if jobs.is_empty() {
            return;
        }
        let live = match self.ledger.live_jobs(&jobs).await {
            Ok(live) => live,
            Err(error) => {
                tracing::debug!(%error, "the jobs of dispatches could not be read");
                here.into_iter().for_each(|one| self.not_handed(one, "the job could not be read"));
                return;
            }
        };
        for one in here {
            let (job, attempt) = (one.notice.job, one.notice.attempt);
            if one.was_read && self.attempts.is_expected(job, attempt) {
                // It was handed over.
                continue;
            }
            let found = live.iter().find(|live| live.id == job);
            match found.and_then(|live| one.dispatch(live)) {
                Some(dispatch) => self.hand_to_node(dispatch),
                None => tracing::debug!(%job, %attempt, "a dispatch of what is not under way is dropped"),
            }
        }
    }

    fn not_handed(&self, noticed: Noticed, reason: &str) {
        if noticed.was_read {
            // Its lane finds out what became of it.
            return tracing::debug!(job = %noticed.notice.job, reason, "a dispatch that was read before is dropped");
        }
        let DispatchNotice { job, attempt, lane, owner, .. } = noticed.notice;
        let event = AttemptEvent::Revoked(Revoked::Undeliverable, reason.to_owned());
        self.inter_instance.report(AttemptReport { lane, job, attempt, event }, owner.as_ref());
    }

    /// Has a node stop an attempt, if its socket is here. The attempt is not looked after any more.
    pub(super) fn cancel_at_node(&self, node: &NodeId, job: JobId, attempt: Attempt) {
        self.forget(job, attempt);
        // Noted before it is sent: the node may answer at once, and that its slot is free must not come first.
        self.attempts.cancelled(node, job, attempt);
        // A node that misses this finds out by the answer to its result, or does not have the attempt when it comes back, or is
        // given up: its slot is free then.
        self.send_to_node(node, ToNode::Cancel(job, attempt));
    }

    /// The attempt is over, as another instance says: a node here that has it need not go on.
    pub(super) fn attempt_is_over(&self, job: JobId, attempt: Attempt) {
        // Most are none of this instance's.
        match self.attempts.node_of(job, attempt) {
            Some(node) => self.cancel_at_node(&node, job, attempt),
            None => self.progress.forget(job, attempt),
        }
    }

    /// The instance.
    pub(super) fn me(&self) -> &InstanceId {
        self.inter_instance.me()
    }

    /// The attempt is over, or nobody's: it is not looked after any more.
    pub(super) fn forget(&self, job: JobId, attempt: Attempt) -> Option<RetryPolicy> {
        self.progress.forget(job, attempt);
        self.attempts.forget(job, attempt)
    }

    /// The attempt's result is written: notes how long it took, and forgets the attempt.
    pub(super) fn recorded(&self, job: JobId, attempt: Attempt) -> Option<RetryPolicy> {
        self.progress.forget(job, attempt);
        let known = self.attempts.take(job, attempt)?;
        if let Some(age) = known.age(Instant::now()) {
            JOB_METRICS.running_seconds.record(age);
        }
        known.policy
    }

    /// The attempt never began, as far as is known here.
    pub(super) fn came_to_nothing(&self, job: JobId, attempt: Attempt, why: Revoked, reason: &str) {
        let Some(policy) = self.forget(job, attempt) else { return };
        if policy.was_read && why == Revoked::Undeliverable {
            // It may have been sent when its dispatch was read before: its lane finds out what became of it.
            return tracing::debug!(%job, %attempt, reason, "a dispatch that was read before is dropped");
        }
        self.report(&policy, job, attempt, AttemptEvent::Revoked(why, reason.to_owned()));
    }

    /// The node has the attempt, unless it is another's.
    pub(super) fn acknowledged(&self, node: &NodeId, job: JobId, attempt: Attempt) {
        if self.attempts.is_anothers(node, job, attempt) {
            return;
        }
        // A node lists it anew when it connects again, and a result that waits for its commit acknowledges too.
        if let Some(age) = self.attempts.acknowledged(node, job, attempt, Instant::now()) {
            JOB_METRICS.starting_seconds.record(age);
        }
        // The lane of what was dispatched to another instance reads it when it is written down.
        if let Some(policy) = self.attempts.policy(job, attempt) {
            self.report(&policy, job, attempt, AttemptEvent::Acknowledged);
        }
    }

    /// The node had the attempt sent, and its socket is closed.
    pub(super) fn cut_off(&self, job: JobId, attempt: Attempt) {
        if let Some(policy) = self.attempts.policy(job, attempt) {
            self.report(&policy, job, attempt, AttemptEvent::ConnectionLost);
        }
    }

    /// See [`super::Jobs::attempts_on`].
    pub(super) async fn attempts_on(
        self: &Arc<Self>,
        node: &NodeId,
        holder_note: &Weak<HolderNote>,
        handed_since: Instant,
        listed: &[Slot],
    ) -> ledger::Result<OnNode> {
        self.attempts.connected_with(node, listed);
        // Looked at before the ledger is: what is written down meanwhile is RUNNING there.
        let acknowledged = self.attempts.acknowledged_by(node);
        let held = match self.ledger.attempts_on(node).await {
            Ok(held) => held,
            Err(error) => {
                let listed = listed.iter().map(|slot| (slot.job, slot.attempt)).collect();
                self.note_holder(node, holder_note, listed);
                return Err(error);
            }
        };
        // A node that has left meanwhile may have got others elsewhere since, which its list could not name. Where it connects
        // next it says what it has.
        let has_left = holder_note.strong_count() == 0;
        let listed: HashSet<_> = listed.iter().copied().collect();
        let (mut there, mut moved, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        for HeldAttempt { job, lane, attempt, state, holder } in held {
            let slot = Slot { job, attempt };
            if listed.contains(&slot) {
                self.attempts.confirm_on(node, slot);
                there.push(slot);
                if holder != *self.me() {
                    moved.push((job, attempt));
                    // The acknowledgement may have been lost with the connection to the instance that sent it.
                    if state == State::Dispatched {
                        let event = AttemptEvent::Acknowledged;
                        self.inter_instance.report(AttemptReport { lane, job, attempt, event }, None);
                    }
                }
                continue;
            }
            // The connection that got it watches over it. It may have begun after the list was made.
            let is_connections = self.attempts.was_dispatched_since(node, slot, handed_since);
            let event = if has_left || is_connections {
                there.push(slot);
                continue;
            } else if state == State::Running || acknowledged.contains(&slot) {
                gone.push(slot);
                AttemptEvent::Revoked(Revoked::Unlisted, "the node no longer lists the attempt".to_owned())
            } else if holder == *self.me() {
                // It may be on its way to the socket that this is about.
                there.push(slot);
                continue;
            } else {
                // The instance that it went to cannot send it any more: its connection of the node is an older one.
                AttemptEvent::NodeElsewhere
            };
            self.inter_instance.report(AttemptReport { lane, job, attempt, event }, None);
        }
        if !moved.is_empty() {
            self.note_holder(node, holder_note, moved);
        }
        Ok(OnNode { there, gone })
    }

    /// Notes in the ledger that this instance holds the node, which says that it has these attempts. By that the instance that
    /// held it before learns where it is, if no bus joins the two. Tries as long as the connection lasts, or until more is noted
    /// of it.
    fn note_holder(
        self: &Arc<Self>,
        node: &NodeId,
        holder_note: &Weak<HolderNote>,
        attempts: Vec<(JobId, Attempt)>,
    ) {
        let Some(holder_note) = holder_note.upgrade() else { return };
        let (this, node) = (Arc::clone(self), node.clone());
        let task = tokio::spawn(async move {
            while let Err(error) = this.ledger.note_holder(&node, this.me(), &attempts).await {
                tracing::debug!(%error, %node, "that a node is here is not noted yet");
                if !error.is_retryable() {
                    return;
                }
                tokio::time::sleep(jittered(HOLDER_NOTED_AGAIN)).await;
            }
        });
        holder_note.replace(task.abort_handle());
    }

    /// Reports what became of an attempt to the owner of its lane, wherever that is.
    pub(super) fn report(&self, policy: &RetryPolicy, job: JobId, attempt: Attempt, event: AttemptEvent) {
        let report = AttemptReport { lane: policy.lane.clone(), job, attempt, event };
        self.inter_instance.report(report, policy.owner.as_ref());
    }

    /// The same of an attempt that was dispatched to another instance.
    pub(super) fn report_to_lane(&self, lane: LaneId, job: JobId, attempt: Attempt, event: AttemptEvent) {
        self.inter_instance.report(AttemptReport { lane, job, attempt, event }, None);
    }

    fn send_to_node(&self, node: &NodeId, message: ToNode) -> bool {
        self.sockets.get(node).is_some_and(|socket| self.send_to(&socket, message))
    }

    fn send_to(&self, socket: &Socket, message: ToNode) -> bool {
        let share = match &message {
            ToNode::Dispatch(dispatch) => match self.share_of(socket, dispatch) {
                Some(share) => Some(share),
                None => return false,
            },
            _ => None,
        };
        socket.outbox.try_send(Outgoing { message, _share: share }).is_ok()
    }

    /// An attempt's share of the bytes that may be on their way; `None` where too many are, to its node or to all.
    fn share_of(&self, socket: &Socket, dispatch: &Dispatch) -> Option<OutgoingShare> {
        let bytes = u32::try_from(dispatch.node_job.text_bytes()).ok()?;
        let take = |of: &Arc<Semaphore>| Arc::clone(of).try_acquire_many_owned(bytes).ok();
        Some(OutgoingShare { _of_node: take(&socket.outgoing_bytes)?, _of_all: take(&self.outgoing_bytes)? })
    }
}

#[cfg(test)]
mod tests;
