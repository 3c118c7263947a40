//! Brings waiting jobs and free slots together, for all lanes of this instance. It decides who is next; whether the
//! slot is had is decided at the bus, or, while that lends the slots or is away, here, if the node's socket is; what
//! becomes of it is the lane's.
//!
//! What lives here: the queue, selection, reservations and their giving back. What must never: a word about a job to
//! the ledger.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bus::{Claim, Held, Reserved, Slot, Unreserved};
use cluster::{HeardAll, Reach};
use domain::job::{Assignment, Attempt, Priority, Requirements, Revoked};
use domain::lane::{Affinity, Enqueue, PlacementRequest, SlotSearch, SlotsFound};
use domain::{InstanceId, JobId, LaneId, NodeId, PoolName, Token};
use futures_util::future::join_all;
use ledger::jittered;
use nodes::{Choice, GivenBack, Registry, Wanted};
use panic_guard::again_after_panics;
use parking_lot::Mutex;
use rand::RngExt;
use rand::seq::IteratorRandom;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::limits::{CLASSES_AT_ONCE, PASS_JOBS_MAX, SLOTS_LEFT_TO_OTHERS};
use super::messages::{AttemptEvent, LaneCommand, LaneHandle, ReservedSlot};
use super::node_gateway::NodeGateway;
use super::queue::{ClassTurn, Queue, Turn, submitted_ms};

/// How often the scheduler looks for nodes again while jobs wait and no node changes, before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Classes of jobs, picked at random, for which full nodes of other instances are asked each time.
const CLASSES_LOOKED_AT: usize = 16;
/// Classes that are looked through for one that a certain node can do: the node whose slot is passed on, or goes to a new job.
/// Classes that find no node keep their turns, so that they are the first ones each time. A look takes a few microseconds, since
/// it asks for that node alone; where a slot is passed on, the queue is locked.
const CLASSES_PASSED_OVER: usize = 64;
/// A slot is passed on to a job of the same lane that is among so many that are next, and that came so much later than the
/// first of them at most. As many as two lanes that share a batch take out in a few rounds: else the lane that is ahead would
/// lose all its slots to the other one, and they would take turns.
const NEAR_FRONT_JOBS: usize = 128;
const NEAR_FRONT_MS: u128 = 50;
/// A job that a node of this instance serves goes to no node that is lent to another instance before it has waited so long.
const SHARED_AFTER: Duration = Duration::from_millis(100);
/// Such a job goes to no lent node that had few free slots when it was last heard of, before it has waited so long: to share the
/// slots of a node that is as busy as those here costs much and brings little.
const SHARED_FULL_AFTER: Duration = Duration::from_secs(2);
/// A node that has connected here within this time may serve the job though selections do not know it yet.
const NEWCOMER: Duration = Duration::from_secs(1);
/// For clocks that run apart, where a list of slots is compared with when an attempt became known.
const LISTED_MARGIN: Duration = Duration::from_millis(500);
/// How long a node is left out that was chosen and whose slots could not be asked for, before jitter.
const UNANSWERED_LEFT_OUT: Duration = Duration::from_millis(200);

/// A job that waits for its turn: the lane that gets the answer, and what the slot is for.
pub(super) struct QueuedJob {
    lane: LaneHandle,
    lane_id: LaneId,
    attempt: Attempt,
    token: Token,
    /// The node that had its last attempt in vain.
    avoid: Option<NodeId>,
    /// Where it prefers to go.
    prefer: Option<Arc<Affinity>>,
    /// Since when it has waited here.
    since: Instant,
}

/// A job that a pass has taken out of the queue. Unless it gets a slot it goes back to its lane's owner, which puts it where it
/// was: so does every job of a pass that panics.
struct TakenOut {
    job: JobId,
    queued: QueuedJob,
    has_slot: bool,
}

impl TakenOut {
    fn placed(mut self, slot: ReservedSlot) {
        self.has_slot = true;
        self.queued.lane.send(LaneCommand::SlotReserved(self.job, self.queued.attempt, slot));
    }
}

impl Drop for TakenOut {
    fn drop(&mut self) {
        if !self.has_slot {
            self.queued.lane.send(LaneCommand::SlotUnavailable(self.job));
        }
    }
}

/// Who may send an attempt to its node after the node's slots were listed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sender<'i> {
    /// Whichever instance holds the node's socket.
    Anybody,
    /// The one that held the socket when the attempt was placed.
    Instance(&'i InstanceId),
    /// It was sent before.
    Nobody,
}

/// Finds nodes for the jobs that wait on one instance.
pub(super) struct Scheduler {
    registry: Registry,
    bus: bus::Handle,
    gateway: Arc<NodeGateway>,
    reach: Reach,
    queue: Mutex<Queue<QueuedJob>>,
    /// Something was put into the queue, or this is dropped. The task that places jobs waits for it, and keeps nothing else of
    /// this meanwhile.
    queued: Arc<Notify>,
}

impl Scheduler {
    pub(super) fn new(registry: Registry, bus: bus::Handle, gateway: Arc<NodeGateway>, reach: Reach) -> Self {
        Self { registry, bus, gateway, reach, queue: Mutex::default(), queued: Arc::default() }
    }

    /// Whether the nodes that are connected to other instances are known here and can be reached.
    pub(super) fn knows_all_nodes(&self) -> bool {
        self.bus.kind() != bus::Kind::Local && *self.bus.answers().borrow()
    }

    /// How many jobs wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.lock().len()
    }

    /// What the jobs that wait need, each once.
    pub(super) fn needs(&self) -> Vec<Arc<Requirements>> {
        self.queue.lock().needs().cloned().collect()
    }

    /// Up to `limit` jobs of instances' lanes that wait and need this, with their lanes. Of equal priority it is one
    /// of each tenant in turn, and the tenant at place `first` begins.
    pub(super) fn instance_jobs(
        &self,
        needs: &Requirements,
        first: usize,
        limit: usize,
    ) -> Vec<(JobId, LaneId, LaneHandle)> {
        let queue = self.queue.lock();
        let jobs = queue.jobs_in_turn(needs, first, |queued| queued.lane_id.instance_id().is_some());
        jobs.take(limit).map(|(job, queued)| (job, queued.lane_id.clone(), queued.lane.clone())).collect()
    }

    /// The sessions that have a job that waits and needs this, each once.
    pub(super) fn sessions_with(&self, needs: &Requirements) -> HashMap<LaneId, LaneHandle> {
        let queue = self.queue.lock();
        let of_sessions = queue.jobs(needs).filter(|queued| queued.lane_id.is_session());
        let each: HashMap<_, _> = of_sessions.map(|queued| (&queued.lane_id, &queued.lane)).collect();
        each.into_iter().map(|(lane, handle)| (lane.clone(), handle.clone())).collect()
    }

    /// Puts a job of this lane into the queue; or back into it, if it was taken out for nothing.
    pub(super) fn enqueue(&self, lane: &LaneHandle, lane_id: &LaneId, enqueue: Enqueue) {
        let Enqueue { job, attempt, token, avoid, prefer, since, is_back } = enqueue;
        let turn = Turn {
            job: job.id,
            seq: job.seq.unwrap_or_default(),
            priority: job.spec.priority,
            tenant: job.spec.tenant.clone(),
        };
        let needs = Arc::new(job.spec.needs.clone());
        let queued =
            QueuedJob { lane: lane.clone(), lane_id: lane_id.clone(), attempt, token, avoid, prefer, since };
        if is_back {
            self.queue.lock().put_back(&needs, turn, queued);
        } else {
            self.queue.lock().push(&needs, turn, queued);
        }
        self.queued.notify_one();
    }

    /// The job waits no more.
    pub(super) fn forget(&self, job: JobId) {
        self.queue.lock().remove(job);
    }

    /// None of the lane's jobs waits any more.
    pub(super) fn forget_lane(&self, lane: &LaneId) {
        self.queue.lock().remove_if(|queued| queued.lane_id == *lane);
    }

    /// What a round of this lane gets at once: the slots that its jobs leave, on nodes whose sockets are on instance
    /// `me`, go to the jobs that are next. Answers as well which of those that want a slot at once are left for
    /// [`Self::place_now`]. Where there are other instances, some of the slots are left to them.
    pub(super) fn pass_on(
        &self,
        me: &InstanceId,
        lane: &LaneId,
        search: SlotSearch,
        has_others: bool,
    ) -> (SlotsFound, Vec<PlacementRequest>) {
        let SlotSearch { offers, has_more_outside, requests } = search;
        let slot = |over, node, pool| {
            let placed = Assignment { node, holder: me.clone() };
            ReservedSlot { placed, pool, instead_of: Some(over) }
        };
        let (mut found, mut free, mut rng) = (SlotsFound::default(), Vec::new(), rand::rng());
        for (over, node) in offers {
            if has_others
                && (self.gateway.leave_to_others(&node) || rng.random_ratio(1, SLOTS_LEFT_TO_OTHERS))
            {
                continue;
            }
            match self.next_on(&node, lane) {
                Next::This(job, queued, pool) => {
                    found.passed.push((job, queued.attempt, slot(over, node, pool)));
                }
                Next::Nobody if !has_more_outside => free.push((over, node)),
                Next::Nobody | Next::Another => {}
            }
        }
        let mut left = Vec::with_capacity(requests.len());
        for request in requests {
            let pool =
                free.last().and_then(|(_, node)| self.would_take(node, &request.needs, request.priority));
            match (pool, free.last()) {
                (Some(pool), Some((over, node))) => {
                    found.reserved.insert(request.job, slot(*over, node.clone(), pool));
                    free.pop();
                }
                _ => left.push(request),
            }
        }
        (found, left)
    }

    /// Reserves slots for jobs; those that get none are left out. A job gets no slot that one of at least its priority could have
    /// which waits: one with the same needs, or one of the [`CLASSES_PASSED_OVER`] classes that are next. Such a slot has come
    /// free since that one was asked for; the next pass finds it.
    pub(super) async fn place_now(&self, mut wants: Vec<PlacementRequest>) -> HashMap<JobId, ReservedSlot> {
        let next = {
            let mut queue = self.queue.lock();
            if !self.settles(&mut queue) {
                return HashMap::new();
            }
            wants.retain(|want| !queue.has_before(&want.needs, want.priority));
            if wants.is_empty() { Vec::new() } else { queue.first_classes(CLASSES_PASSED_OVER) }
        };
        let first_on = |node: &NodeId| {
            let served = next.iter().find(|(_, needs)| self.registry.serves(node, needs).is_some());
            served.map(|(priority, _)| *priority)
        };
        let (mut picks, mut firsts) = (Vec::new(), HashMap::new());
        for PlacementRequest { job, attempt, token, needs, priority, prefer } in wants {
            let Some(choice) = self.choose_for(&needs, None, prefer.as_deref()) else { continue };
            if !next.is_empty() {
                let first = firsts.entry(choice.node().clone()).or_insert_with_key(first_on);
                if *first >= Some(priority) {
                    continue;
                }
            }
            let claim = Claim { slot: Slot { job, attempt }, token };
            picks.push(Pick { of: (), needs, claim, since: None, choice });
        }
        let reserved = self.reserve(picks).await;
        reserved.into_iter().filter_map(|(job, (), slot)| Some((job, slot?))).collect()
    }

    /// Who would be next if this node, whose socket is here, had one more free slot. A job of this lane that would go
    /// there waits no more.
    fn next_on(&self, node: &NodeId, lane: &LaneId) -> Next {
        let mut queue = self.queue.lock();
        if !self.settles(&mut queue) {
            return Next::Another;
        }
        let mut next = if queue.classes() > CLASSES_PASSED_OVER { Next::Another } else { Next::Nobody };
        let mut looks = CLASSES_PASSED_OVER;
        let turn = queue.turn(&mut looks, |needs| self.registry.serves(node, needs));
        if let Some((class, _, pool)) = turn {
            let popped = near_front(&queue, class, node, lane).and_then(|job| queue.pop_instead(class, job));
            next = popped.map_or(Next::Another, |(job, queued)| Next::This(job, Box::new(queued), pool));
        }
        queue.unblock();
        next
    }

    /// Whether it can be said which class is next on a node. Where nodes have changed, the pass may be waiting for the bus: so a
    /// part of the parked classes is compared with them here each time.
    fn settles(&self, queue: &mut Queue<QueuedJob>) -> bool {
        let (nodes, mut looks) = (self.registry.index_version(), CLASSES_PASSED_OVER);
        queue.look_at_parked(nodes, &mut looks, |needs| self.registry.may_be_served(needs));
        !queue.is_unsettled(nodes)
    }

    /// In which pool the node serves a new job, unless others with the same needs would have to be served before.
    fn would_take(&self, node: &NodeId, needs: &Requirements, priority: Priority) -> Option<PoolName> {
        let is_first = !self.queue.lock().has_before(needs, priority);
        is_first.then(|| self.registry.serves(node, needs)).flatten()
    }

    /// Places waiting jobs on this runtime, as long as another handle to this exists.
    pub(super) fn start(self: &Arc<Self>, runtime: &Handle) {
        let (scheduler, woken) = (Arc::downgrade(self), Arc::clone(&self.queued));
        let work = move || place_all(Weak::clone(&scheduler), Arc::clone(&woken));
        runtime.spawn(again_after_panics("the placement of jobs", work));
    }

    /// One pass over the queue: as many as find a node, a bounded number at once. Where there are many classes, others have
    /// the queue in between.
    async fn pass(&self) -> Passed {
        // Read first: nodes that change from here on are left to the next pass.
        let nodes = self.registry.index_version();
        let mut picks = Vec::new();
        let (mut is_asked, mut is_full) = (false, false);
        loop {
            {
                let is_served = |needs: &Requirements| self.registry.may_be_served(needs);
                let (mut queue, mut looks) = (self.queue.lock(), CLASSES_AT_ONCE);
                queue.look_at_parked(nodes, &mut looks, is_served);
                if !is_asked {
                    is_full = self.pick(&mut queue, &mut looks, &mut picks);
                    is_asked = is_full || looks > 0;
                }
                if is_asked {
                    queue.end_pass(nodes, &mut looks, is_served);
                }
                if looks > 0 {
                    break;
                }
            }
            tokio::task::yield_now().await;
        }
        if picks.is_empty() {
            return Passed::All;
        }
        for (_, taken, slot) in self.reserve(picks).await {
            if let Some(slot) = slot {
                taken.placed(slot);
            }
        }
        if is_full { Passed::More } else { Passed::All }
    }

    /// Takes jobs out that find a node, as long as looks are left. Whether there are as many as one pass places, and perhaps
    /// more.
    fn pick(&self, queue: &mut Queue<QueuedJob>, looks: &mut usize, picks: &mut Vec<Pick<TakenOut>>) -> bool {
        while let Some((class, needs, choice)) = queue.turn(looks, |needs| self.choose(needs)) {
            if picks.len() >= PASS_JOBS_MAX {
                return true;
            }
            let Some((job, queued)) = queue.pop(class) else { break };
            let taken = TakenOut { job, queued, has_slot: false };
            let choice = self.choose_another(choice, &needs, &taken.queued);
            let QueuedJob { attempt, token, since, .. } = taken.queued;
            let claim = Claim { slot: Slot { job, attempt }, token };
            picks.push(Pick { needs, claim, since: Some(since), choice, of: taken });
        }
        false
    }

    fn choose(&self, needs: &Requirements) -> Option<Choice> {
        self.choose_for(needs, None, None)
    }

    fn choose_for(
        &self,
        needs: &Requirements,
        avoid: Option<&NodeId>,
        prefer: Option<&Affinity>,
    ) -> Option<Choice> {
        let wanted = Wanted {
            needs,
            excluded: avoid.map_or(&[], std::slice::from_ref),
            preferred: prefer.map(|prefer| &prefer.node),
            preferred_pool: prefer.and_then(|prefer| prefer.pool.as_ref()),
        };
        self.registry.select(&wanted, &mut rand::rng())
    }

    /// The node that the job would rather have, or at least another one than that which it is to avoid, if there is
    /// one.
    fn choose_another(&self, choice: Choice, needs: &Requirements, queued: &QueuedJob) -> Choice {
        let (avoid, prefer) = (queued.avoid.as_ref(), queued.prefer.as_deref());
        let is_avoided = avoid == Some(choice.node());
        let is_preferred = prefer.is_none_or(|prefer| prefer.node == *choice.node());
        if is_preferred && !is_avoided {
            return choice;
        }
        self.choose_for(needs, avoid, prefer).unwrap_or(choice)
    }

    /// Reserves a slot for each pick at its node, one call per node, all at once. The slots come with their jobs, in any order;
    /// none where the node has no room, its slots are not known, or nobody says. Such a node is not chosen again before an update
    /// of it arrives; in the last case only for a moment.
    async fn reserve<T>(&self, picks: Vec<Pick<T>>) -> Vec<(JobId, T, Option<ReservedSlot>)> {
        let mut by_node: HashMap<(NodeId, InstanceId), Vec<Pick<T>>> = HashMap::new();
        for pick in picks {
            let key = (pick.choice.node().clone(), pick.choice.holder().clone());
            by_node.entry(key).or_default().push(pick);
        }
        let lasting = self.registry.timeouts().reservation;
        let reservations = by_node.into_iter().map(async |((node, holder), picks)| {
            let claims: Vec<_> = picks.iter().map(|pick| pick.claim).collect();
            let mut answers = Vec::with_capacity(claims.len());
            for claims in claims.chunks(bus::limits::NODE_SLOTS_MAX) {
                if let Some(reserved) = self.gateway.reserve(&node, &holder, claims) {
                    answers.extend(reserved);
                    continue;
                }
                if self.gateway.is_left_to_others(&node, &holder) {
                    answers.extend(claims.iter().map(|_| Reserved::Full));
                    continue;
                }
                match self.bus.reserve_slots(&node, claims, lasting).await {
                    Ok(reserved) => answers.extend(reserved),
                    Err(error) => {
                        tracing::debug!(%error, %node, "slots could not be reserved");
                        break;
                    }
                }
            }
            let mut lent = picks.iter().zip(&answers).filter(|(_, answer)| **answer == Reserved::Lent);
            let is_to_be_shared = lent.any(|(pick, _)| {
                let waited = pick.since.map_or(Duration::ZERO, |since| since.elapsed());
                self.is_to_be_shared(&pick.needs, waited, pick.choice.had_much_room())
            });
            if is_to_be_shared {
                self.gateway.ask_to_share(node.clone(), holder.clone());
            }
            if answers.len() < picks.len() {
                self.choose_again_soon(node.clone());
            }
            let mut answers = answers.into_iter();
            let answered = picks.into_iter().map(|Pick { of, claim, choice, .. }| {
                let slot = match answers.next() {
                    Some(Reserved::Yes) => {
                        let placed = Assignment { node: node.clone(), holder: holder.clone() };
                        let pool = choice.pool().clone();
                        choice.reserved();
                        Some(ReservedSlot { placed, pool, instead_of: None })
                    }
                    Some(Reserved::Full | Reserved::NotReady | Reserved::Lent) | None => {
                        choice.found_full();
                        None
                    }
                };
                (claim.slot.job, of, slot)
            });
            answered.collect::<Vec<_>>()
        });
        join_all(reservations).await.into_iter().flatten().collect()
    }

    /// A node whose slots could not be asked for is left out like a full one, so that jobs go to others meanwhile: it looks
    /// empty, and would be the best one each time. In a moment it may be chosen again.
    fn choose_again_soon(&self, node: NodeId) {
        let registry = self.registry.clone();
        tokio::spawn(async move {
            tokio::time::sleep(jittered(UNANSWERED_LEFT_OUT)).await;
            registry.clear_full(&node);
        });
    }

    /// Whether a node whose slots are lent to another instance is to be shared for this job: no node here serves it, nor may one
    /// that has just connected, or it has waited for one of them.
    fn is_to_be_shared(&self, needs: &Requirements, waited: Duration, had_much_room: bool) -> bool {
        let after = if had_much_room { SHARED_AFTER } else { SHARED_FULL_AFTER };
        let may_be_served = || self.registry.is_served_here(needs) || self.gateway.attached_within(NEWCOMER);
        waited >= after || !may_be_served()
    }

    /// Asks holders of nodes elsewhere to share them with jobs that wait here. A node whose slots its holder takes again as
    /// soon as they are free is never seen with a free one, so no reservation there would ask.
    fn ask_for_full_nodes(&self) {
        let mut rng = rand::rng();
        let firsts: Vec<_> = {
            let queue = self.queue.lock();
            let waiting = queue.firsts().map(|(needs, queued)| (Arc::clone(needs), queued.since.elapsed()));
            waiting.sample(&mut rng, CLASSES_LOOKED_AT)
        };
        let is_to_be_shared = |(needs, waited): &(Arc<Requirements>, Duration)| {
            *waited >= SHARED_AFTER && self.is_to_be_shared(needs, *waited, false)
        };
        let waiting = firsts.iter().filter(|first| is_to_be_shared(first));
        let nodes: HashMap<_, _> =
            waiting.filter_map(|(needs, _)| self.registry.serves_elsewhere(needs, &mut rng)).collect();
        nodes.into_iter().for_each(|(node, holder)| self.gateway.ask_to_share(node, holder));
    }

    /// Takes a reservation back, in the background: should that fail, it runs out. The lane, if there is one to tell, learns
    /// when the reservation is gone.
    pub(super) fn take_back(self: &Arc<Self>, node: &NodeId, claim: Claim, tell: Option<LaneHandle>) {
        let (this, node) = (Arc::clone(self), node.clone());
        tokio::spawn(async move {
            if this.unreserve(&node, claim).await.is_some()
                && let Some(lane) = tell
            {
                lane.send(LaneCommand::ReservationRemoved(claim.slot.job, claim.slot.attempt));
            }
        });
    }

    /// Takes a reservation back if its attempt was not sent, and then has the lane revoke the attempt.
    pub(super) fn give_back_unsent(self: &Arc<Self>, node: &NodeId, claim: Claim, lane: LaneHandle) {
        let (this, node) = (Arc::clone(self), node.clone());
        tokio::spawn(async move {
            let mut given_back = this.unreserve_here(&node, claim).await;
            // A Redis that came back with an older state may have the reservation of what was sent since. By then it is over.
            let is_settled = |up: Duration| up >= this.registry.timeouts().reservation;
            if given_back.is_none() && this.bus.link().borrow().up_for().is_some_and(is_settled) {
                given_back = this.unreserve_at_bus(&node, claim).await;
            }
            // Otherwise it was sent, or it is over: its node says more of it, or its slot is missed.
            if given_back == Some(Unreserved::Removed) {
                let reason = "the attempt was not sent to its node in time".to_owned();
                let event = AttemptEvent::Revoked(Revoked::NotAcknowledged, reason);
                lane.send(LaneCommand::Attempt(claim.slot.job, claim.slot.attempt, event));
            }
        });
    }

    /// What became of a reservation that is taken back, as this instance or the bus says, which gave it; `None` if neither knows.
    async fn unreserve(&self, node: &NodeId, claim: Claim) -> Option<Unreserved> {
        match self.unreserve_here(node, claim).await {
            None => self.unreserve_at_bus(node, claim).await,
            given_back => given_back,
        }
    }

    /// The same of one that this instance gave; `None` if it did not.
    async fn unreserve_here(&self, node: &NodeId, claim: Claim) -> Option<Unreserved> {
        match self.gateway.give_back(node, claim) {
            GivenBack::NotGiven => None,
            GivenBack::Free => Some(Unreserved::Removed),
            GivenBack::Listed => {
                // Nobody sends it any more. As long as the record lists it, it takes a slot for nothing.
                if let Err(error) = self.bus.free_slots(node, &[claim.slot]).await {
                    tracing::debug!(%error, %node, "a slot that was given back is freed with the next heartbeat");
                }
                Some(Unreserved::Removed)
            }
        }
    }

    /// The same of one that the bus gave.
    async fn unreserve_at_bus(&self, node: &NodeId, claim: Claim) -> Option<Unreserved> {
        match self.bus.unreserve_slots(node, &[claim]).await {
            Ok(answers) => match answers.first().copied() {
                Some(Unreserved::Removed) => {
                    self.registry.unreserved(node);
                    Some(Unreserved::Removed)
                }
                // What this instance gave, and has not now, was sent or is over.
                Some(Unreserved::Unknown) => self.gateway.gives(node).then_some(Unreserved::Absent),
                answer => answer,
            },
            Err(error) => {
                tracing::debug!(%error, %node, "a reservation was not given back; it expires");
                None
            }
        }
    }

    /// Whether the node is gone for sure: this instance does not know it, although it knows all nodes of the bus, and for as
    /// long as a node's record lives it has heard of every node that an instance took on. Silence is no evidence, nor is the end
    /// of a connection for which the node has a newer one.
    pub(super) fn is_surely_gone(&self, node: &NodeId) -> bool {
        let Some(HeardAll { length, ago }) = self.reach.hears_all() else { return false };
        let now = Instant::now();
        let until = now.checked_sub(ago).unwrap_or(now);
        length >= self.registry.timeouts().offline
            && self.registry.is_nowhere(node)
            && !self.registry.is_moving(node, until)
    }

    /// Whether the node is not on this bus, has not been for so long, and may be on another that some live instance uses.
    pub(super) fn is_out_of_sight(&self, node: &NodeId, length: Duration) -> bool {
        self.registry.is_nowhere(node)
            && length >= self.registry.timeouts().offline
            && self.reach.unbroken_for().is_some_and(|reached| reached >= length)
            && self.reach.hears_all().is_none()
    }

    /// Whether the node may still be on the connection by which what was placed so was to be sent. Silence says nothing of that.
    pub(super) fn may_be_connected(&self, placed: &Assignment) -> bool {
        let Assignment { node, holder } = placed;
        !self.reach.has_ended(holder) && !self.is_elsewhere(placed) && !self.is_surely_gone(node)
    }

    /// Whether the node has connected to another instance than the one that held its socket when this was placed.
    fn is_elsewhere(&self, Assignment { node, holder }: &Assignment) -> bool {
        self.registry.get(node).is_some_and(|known| known.profile.holder != *holder)
    }

    /// Which of these attempts, each known since then, have no slot in their node's record although that lists all. A list
    /// by the holder, if the slots are lent to it, says so of an attempt that it could not have sent any more by then: a slot
    /// that it gave before the attempt was known waits for its dispatch as long as a reservation lasts.
    pub(super) async fn missing(
        &self,
        node: &NodeId,
        attempts: &[(JobId, Attempt, Instant)],
        sender: Sender<'_>,
    ) -> Vec<bool> {
        let mut missing = Vec::with_capacity(attempts.len());
        for attempts in attempts.chunks(bus::limits::NODE_SLOTS_MAX) {
            let slots: Vec<_> =
                attempts.iter().map(|(job, attempt, _)| Slot { job: *job, attempt: *attempt }).collect();
            let asked = Instant::now();
            match self.bus.held_slots(node, &slots).await {
                Ok(Held { holder, age: Some(age), is_taken }) => {
                    let timeouts = self.registry.timeouts();
                    let settled = match (age.is_zero(), self.sends_no_more(sender, holder.as_ref())) {
                        // A Redis that came back with an older state lists what was taken up to that long ago.
                        (true, _) => timeouts.vouched + LISTED_MARGIN,
                        (false, true) => age + LISTED_MARGIN,
                        (false, false) => age + timeouts.reservation + LISTED_MARGIN,
                    };
                    let is_missing = |(_, _, since): &(JobId, Attempt, Instant), is_taken: bool| {
                        !is_taken && asked.saturating_duration_since(*since) >= settled
                    };
                    missing.extend(attempts.iter().zip(is_taken).map(|(one, taken)| is_missing(one, taken)));
                }
                Ok(Held { age: None, .. }) => missing.extend(attempts.iter().map(|_| false)),
                Err(error) => {
                    tracing::debug!(%error, %node, "a node's slots could not be read");
                    missing.extend(attempts.iter().map(|_| false));
                }
            }
        }
        missing
    }

    /// Whether all that may still be sent, or was, is in a list of slots by this instance, to which the node is connected. So it
    /// is once the sender has ended, and the list is another's: the instance that empties the sender's inbox may still hand an
    /// attempt to the node, but only under its reservation, which stays in the record with a new connection, and if it is its
    /// job's newest in the ledger.
    fn sends_no_more(&self, sender: Sender<'_>, lister: Option<&InstanceId>) -> bool {
        match sender {
            Sender::Anybody => false,
            Sender::Instance(instance) => {
                self.reach.has_ended(instance) && lister.is_some_and(|lister| lister != instance)
            }
            Sender::Nobody => true,
        }
    }
}

impl Drop for Scheduler {
    /// Ends the task that places jobs.
    fn drop(&mut self) {
        self.queued.notify_one();
    }
}

/// Places waiting jobs as long as another handle to the scheduler exists. `woken` is what the scheduler notifies.
async fn place_all(scheduler: Weak<Scheduler>, woken: Arc<Notify>) {
    let Some(mut openings) = scheduler.upgrade().map(|this| this.registry.openings()) else { return };
    let mut next_look = Instant::now();
    loop {
        let Some(this) = scheduler.upgrade() else { return };
        if Instant::now() >= next_look {
            this.ask_for_full_nodes();
            next_look = Instant::now() + jittered(LOOK_EVERY);
        }
        // Registered before the pass, so that what comes meanwhile is not missed.
        let queued = woken.notified();
        openings.borrow_and_update();
        let passed = this.pass().await;
        let is_empty = this.waiting() == 0;
        // While the task waits, the last handle may be dropped, which wakes it.
        drop(this);
        let pause = match passed {
            Passed::All if is_empty => None,
            Passed::All => Some(LOOK_EVERY),
            Passed::More => continue,
        };
        let slept = async {
            match pause {
                Some(pause) => tokio::time::sleep(jittered(pause)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = queued => {}
            // A registry that is gone opens nothing any more.
            Ok(()) = openings.changed() => {}
            () = slept => {}
        }
    }
}

/// The first job of this lane among those that are next in the class, if it would go to this node. The lanes of an
/// instance share the queue, and only a lane's owner can pass a slot on to one of its jobs: so one that came little later
/// than the very first counts as first.
fn near_front(queue: &Queue<QueuedJob>, class: ClassTurn, node: &NodeId, lane: &LaneId) -> Option<JobId> {
    let (first, _) = queue.next(class).next()?;
    let mut near = queue
        .next(class)
        .take(NEAR_FRONT_JOBS)
        .take_while(|(job, _)| submitted_ms(*job).saturating_sub(submitted_ms(first)) <= NEAR_FRONT_MS);
    let (job, queued) = near.find(|(_, queued)| queued.lane_id == *lane)?;
    let would_go = queued.prefer.as_ref().is_none_or(|prefer| prefer.node == *node);
    (would_go && queued.avoid.as_ref() != Some(node)).then_some(job)
}

/// Who would have a slot next.
enum Next {
    /// A job of the lane that asks, in this pool.
    This(JobId, Box<QueuedJob>, PoolName),
    /// Another lane's job, or one that would rather go elsewhere: the slot is for it to reserve.
    Another,
    /// No job that waits here.
    Nobody,
}

/// How a pass went.
enum Passed {
    /// The jobs that still wait find no node.
    All,
    /// There may be more to place.
    More,
}

/// A job for which a slot is to be reserved at the node that was chosen.
struct Pick<T> {
    /// What the answer comes back with.
    of: T,
    needs: Arc<Requirements>,
    claim: Claim,
    /// Since when it has waited in the queue; `None` if it gets a slot at once or is put there.
    since: Option<Instant>,
    choice: Choice,
}

#[cfg(test)]
mod tests;
