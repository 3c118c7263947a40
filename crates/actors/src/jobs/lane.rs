//! The owners of lanes: actors that carry out what [`domain::lane`] decides.
//!
//! [`LaneActor`] is a thin shell, of an instance's lane and of a session's: a command goes to the state, and its effects
//! are carried out in their order. Each commit, read and search for slots is a future on the actor's own context that
//! ends with a call of the state. So nothing interleaves, whatever arrives meanwhile.
//!
//! What a crash leaves behind after each step:
//! 1. slots reserved, nothing committed: the reservations run out;
//! 2. committed, no caller answered: the caller asks again under the same key; a dispatch that never left is taken back by the
//!    next owner, since no node acknowledges it, and counts as sent where the node's connection of then is over;
//! 3. dispatched: the node sends its result to whatever instance it is connected to.

mod effects;
pub(super) mod reads;

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::fut::wrap_future;
use actix::{Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, SpawnHandle};
use cluster::{ClusterView, Reach};
use domain::lane::{CommitFailure, Effect, LaneSettings, LaneState, Snapshot, WaitingBytes, WrittenBatch};
use domain::{InstanceId, LaneId, Token};
use ledger::{JobBatch, JobVerdict, JobsVerdict, jittered};
use nodes::Registry;
use tokio::sync::mpsc;

use super::host::InstanceHost;
use super::lease::{LaneLease, Lost};
use super::limits::LANE_MAILBOX_MESSAGES_MAX;
use super::messages::{Directory, LaneCommand, LaneHandle, Waiting};
use super::passing_on::PassingOn;
use super::scheduler::Scheduler;
use crate::arbiters::Arbiters;
use crate::database_clock::SharedClock;
use crate::mailbox::{Deliver, Obituary};
use crate::queue_meter::{QueueKind, QueueMeter};

/// How often a commit is tried again while its lease row is locked, before the owner acquires the lease
/// again.
const COMMIT_TRIES_MAX: usize = 3;
/// The pause between two tries to reload from the ledger, before jitter.
const RELOAD_EVERY: Duration = Duration::from_millis(200);

/// What the owners of lanes use.
pub(super) struct LaneServices {
    pub(super) ledger: ledger::Handle,
    pub(super) bus: bus::Handle,
    pub(super) me: InstanceId,
    pub(super) registry: Registry,
    pub(super) cluster_view: ClusterView,
    pub(super) reach: Reach,
    pub(super) scheduler: Arc<Scheduler>,
    pub(super) directory: Arc<Directory>,
    /// Where owners tell what is for nodes, and what became of jobs.
    pub(super) host: InstanceHost,
    pub(super) passing_on: PassingOn,
    /// The memory of the instance for jobs that wait.
    pub(super) waiting: WaitingBytes,
    /// What this process has seen of the database's clock.
    pub(super) clock: SharedClock,
    /// Where owners that died are reported.
    pub(super) deaths: mpsc::UnboundedSender<(LaneId, LaneHandle)>,
}

/// The owner of a lane: of an instance's, or of a session's, whose state has a session in it.
pub(super) struct LaneActor {
    services: Arc<LaneServices>,
    lane: LaneId,
    lease: Arc<LaneLease>,
    state: LaneState<Waiting>,
    handle: LaneHandle,
    /// Messages that were handled.
    handled: u64,
    /// Effects that are not carried out yet.
    outbox: VecDeque<Effect<Waiting>>,
    /// Whether somebody is about to carry them out.
    is_draining: bool,
    wake: Option<(Instant, SpawnHandle)>,
    stage: OwnerStage,
    queue: QueueMeter,
    obituary: Obituary<LaneId, LaneCommand>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerStage {
    Serving,
    /// The lease is being given back.
    Releasing,
    /// Nothing is left but to answer what still comes.
    Released,
}

/// What a lane is opened with.
pub(super) struct Opening {
    pub(super) lane: LaneId,
    pub(super) lease: LaneLease,
    pub(super) token: Token,
}

/// Starts the owner of a lane whose lease was just acquired, and enters it into the directory.
pub(super) fn start(
    arbiters: &Arbiters,
    number: usize,
    services: &Arc<LaneServices>,
    opening: Opening,
) -> LaneHandle {
    let (lane, its_services) = (opening.lane.clone(), Arc::clone(services));
    let enter = |address: Addr<LaneActor>| {
        let handle = LaneHandle::new(address.recipient());
        services.directory.insert(lane, handle.clone());
        handle
    };
    let make = move |handle| LaneActor::new(its_services, opening, handle);
    // An owner that ends at once finds its entry, and removes it.
    arbiters.start_entered(number, LANE_MAILBOX_MESSAGES_MAX, enter, make)
}

impl LaneActor {
    fn new(services: Arc<LaneServices>, opening: Opening, handle: LaneHandle) -> Self {
        let Opening { lane, lease, token } = opening;
        let settings = LaneSettings {
            batch_rows_max: ledger::BATCH_ROWS_MAX,
            timeouts: *services.registry.timeouts(),
            seed: rand::random(),
            waiting: services.waiting.clone(),
        };
        let state = LaneState::new(lane.clone(), token, lease.is_adopted(), settings, Instant::now());
        let queue = QueueMeter::new(if lane.is_session() { QueueKind::Session } else { QueueKind::Lane });
        let obituary = Obituary::new(lane.clone(), handle.clone(), services.deaths.clone());
        Self {
            services,
            lane,
            lease: Arc::new(lease),
            state,
            handle,
            handled: 0,
            outbox: VecDeque::new(),
            is_draining: false,
            wake: None,
            stage: OwnerStage::Serving,
            queue,
            obituary,
        }
    }

    /// What acquiring anew and loading take with them.
    fn loader(&self) -> reads::Loader {
        reads::Loader {
            services: Arc::clone(&self.services),
            lane: self.lane.clone(),
            lease: Arc::clone(&self.lease),
        }
    }
}

impl Actor for LaneActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let (loader, token) = (self.loader(), self.state.token());
        spawn(context, async move { loader.begin(token).await }, loaded);
    }
}

impl Handler<Deliver<LaneCommand>> for LaneActor {
    type Result = ();

    fn handle(&mut self, Deliver(command): Deliver<LaneCommand>, context: &mut Self::Context) {
        self.handled += 1;
        // It is asked again at the next look.
        let stays = matches!(
            &command,
            LaneCommand::PassOn(to) if !self.state.may_pass_on() || !self.services.passing_on.take(to)
        );
        if !stays {
            tell(self, context, |state, now| state.apply(command, now));
        }
        stop_if_all_is_handled(self, context);
    }
}

/// A future on the actor's context, and what is done with its answer.
fn spawn<T: 'static>(
    context: &mut Context<LaneActor>,
    future: impl Future<Output = T> + 'static,
    then: impl FnOnce(T, &mut LaneActor, &mut Context<LaneActor>) + 'static,
) {
    context.spawn(wrap_future::<_, LaneActor>(future).map(then));
}

/// A future on the actor's context whose answer goes to the state.
fn ask<T: 'static>(
    context: &mut Context<LaneActor>,
    future: impl Future<Output = T> + 'static,
    then: impl FnOnce(&mut LaneState<Waiting>, T, Instant) -> Vec<Effect<Waiting>> + 'static,
) {
    spawn(context, future, move |answer, actor, context| {
        tell(actor, context, |state, now| then(state, answer, now));
    });
}

/// Calls the state, and carries out what follows.
fn tell(
    actor: &mut LaneActor,
    context: &mut Context<LaneActor>,
    what: impl FnOnce(&mut LaneState<Waiting>, Instant) -> Vec<Effect<Waiting>>,
) {
    let effects = what(&mut actor.state, Instant::now());
    run(actor, effects, context);
}

/// Everything was read, or the lease is another's.
fn loaded(read: Result<(Token, Snapshot), Lost>, actor: &mut LaneActor, context: &mut Context<LaneActor>) {
    match read {
        Ok((token, snapshot)) => {
            // The owner that closed it may have had no answer, and have told nobody.
            if snapshot.session.as_ref().is_some_and(|session| session.is_closed) {
                actor.services.host.closed(&actor.lane);
            }
            tell(actor, context, |state, now| state.reloaded(token, snapshot, now));
        }
        Err(Lost) => end(actor, None, context),
    }
}

/// Carries effects out. Commits are on their way before anything else is done, which is then done in order.
fn run(actor: &mut LaneActor, effects: Vec<Effect<Waiting>>, context: &mut Context<LaneActor>) {
    let mut is_committing = false;
    for effect in effects {
        match effect {
            Effect::Commit(batch) => {
                is_committing = true;
                commit(actor, batch, context);
            }
            other => actor.outbox.push_back(other),
        }
    }
    actor.queue.set_depth(actor.state.waiting());
    if actor.is_draining || actor.outbox.is_empty() {
        return set_wake(actor, context);
    }
    actor.is_draining = true;
    if is_committing {
        // Polled after the commit, which is on its way then.
        spawn(context, ready(()), |(), actor, context| drain(actor, context));
    } else {
        drain(actor, context);
    }
}

fn drain(actor: &mut LaneActor, context: &mut Context<LaneActor>) {
    while let Some(effect) = actor.outbox.pop_front() {
        effects::carry_out(actor, effect, context);
    }
    actor.is_draining = false;
    set_wake(actor, context);
}

/// When a batch was committed, by the database's clock, and what became of each of its writes.
type Written = (domain::Timestamp, Vec<JobVerdict>);

fn commit(actor: &mut LaneActor, batch: WrittenBatch, context: &mut Context<LaneActor>) {
    let WrittenBatch { id, token, writes } = batch;
    let lane = ledger::Lane { id: actor.lane.clone(), owner: actor.services.me.clone(), token };
    let batch = JobBatch { lane: Some(lane), writes };
    let (services, lease) = (Arc::clone(&actor.services), Arc::clone(&actor.lease));
    let committed = async move { write(&services, &lease, batch).await };
    ask(context, committed, move |state, written, now| match written {
        Ok(Some((at, verdicts))) => state.committed(id, at, &verdicts, now),
        Ok(None) => state.commit_refused(id, now),
        Err(_) => state.commit_failed(id),
    });
}

/// Commits a batch. Where the ledger does not take it for some of its writes, the others are committed. `None` where it takes
/// nothing of it.
async fn write(
    services: &LaneServices,
    lease: &Arc<LaneLease>,
    batch: JobBatch,
) -> Result<Option<Written>, CommitFailure> {
    if let Some(written) = send(services, lease, &batch).await? {
        return Ok(Some(written));
    }
    let wrong = batch.wrong_writes();
    if wrong.is_empty() || wrong.len() == batch.writes.len() {
        return Ok(None);
    }
    let right = batch.writes.iter().enumerate().filter(|(place, _)| wrong.binary_search(place).is_err());
    let writes = right.map(|(_, write)| write.clone()).collect();
    let right = JobBatch { lane: batch.lane, writes };
    let Some((at, mut verdicts)) = send(services, lease, &right).await? else { return Ok(None) };
    // In ascending order, so that each comes to its place.
    wrong.into_iter().for_each(|place| verdicts.insert(place, JobVerdict::Refused));
    Ok(Some((at, verdicts)))
}

/// Sends a batch to the ledger as it is. `None` where the ledger does not take it.
async fn send(
    services: &LaneServices,
    lease: &Arc<LaneLease>,
    batch: &JobBatch,
) -> Result<Option<Written>, CommitFailure> {
    let Some(lane) = &batch.lane else { return Err(CommitFailure::Fenced) };
    for _ in 0..COMMIT_TRIES_MAX {
        // Past the lease's end by the own clock no write leaves, whatever the database would say.
        if !lease.is_current() {
            return Err(CommitFailure::Fenced);
        }
        let link = ledger::Link::default().under(Arc::clone(lease));
        match services.ledger.commit_jobs_linked(batch.clone(), link).await {
            Ok(JobsVerdict::Written { at, jobs }) => return Ok(Some((at, jobs))),
            Ok(JobsVerdict::Again) => tokio::time::sleep(jittered(Duration::from_millis(1))).await,
            Ok(JobsVerdict::Fenced) => {
                note_fenced(lane, lease, "jobs").await;
                return Err(CommitFailure::Fenced);
            }
            Err(error) if error.is_retryable() => {
                tracing::debug!(%error, lane = %lane.id, "the outcome of a commit is not known");
                return Err(CommitFailure::Unknown);
            }
            Err(error) => {
                tracing::error!(%error, lane = %lane.id, "the ledger refused a batch that should be valid");
                // What is wrong in itself was not sent.
                return if batch.is_wrong() { Ok(None) } else { Err(CommitFailure::Unknown) };
            }
        }
    }
    Err(CommitFailure::Again)
}

/// Logs a write in a lane that was fenced. Counts it where another instance has the lease. The lane acquires it anew in any
/// case, and waits for that.
async fn note_fenced(lane: &ledger::Lane, lease: &LaneLease, operation: &'static str) {
    if lease.is_raised_here(lane.token).await {
        tracing::info!(
            resource = %lane.id, operation, token = %lane.token, instance = %lane.owner,
            "a write was fenced, because this instance itself has acquired the lease anew since"
        );
    } else {
        fenced(lane, operation);
    }
}

/// Logs and counts a write in a lane that was fenced.
fn fenced(lane: &ledger::Lane, operation: &'static str) {
    metrics::counter!("fencepost_fence_reject_total", "op" => operation).increment(1);
    tracing::warn!(
        resource = %lane.id, operation, token = %lane.token, instance = %lane.owner, "a stale owner was fenced"
    );
}

/// Has the state looked at when its next time comes.
fn set_wake(actor: &mut LaneActor, context: &mut Context<LaneActor>) {
    let Some(at) = actor.state.wake_at() else { return };
    if actor.stage != OwnerStage::Serving || actor.wake.as_ref().is_some_and(|(armed, _)| *armed <= at) {
        return;
    }
    if let Some((_, armed)) = actor.wake.take() {
        context.cancel_future(armed);
    }
    let length = at.saturating_duration_since(Instant::now());
    let armed = context.run_later(length, |actor, context| {
        actor.wake = None;
        tell(actor, context, LaneState::flush);
    });
    actor.wake = Some((at, armed));
}

/// Ends the owner: with nothing left to do, whose messages must all be handled; or with its lease lost. Callers
/// that still wait are refused.
fn end(actor: &mut LaneActor, handled: Option<u64>, context: &mut Context<LaneActor>) {
    let directory = &actor.services.directory;
    if actor.stage != OwnerStage::Serving || !directory.begin_end(&actor.lane, &actor.handle, handled) {
        return;
    }
    actor.stage = OwnerStage::Releasing;
    actor.obituary.is_expected = true;
    if let Some((_, armed)) = actor.wake.take() {
        context.cancel_future(armed);
    }
    let (lease, is_held) = (Arc::clone(&actor.lease), handled.is_some());
    let next = actor.state.passes_to().cloned();
    let heir = if is_held && next.is_none() && actor.state.is_left_with_work() {
        actor.services.cluster_view.next_owner_of(actor.lane.lease())
    } else {
        None
    };
    tell(actor, context, |state, _| state.end());
    let released = async move {
        if is_held {
            lease.release(next.as_ref()).await;
        }
    };
    spawn(context, released, move |(), actor, context| {
        actor.stage = OwnerStage::Released;
        if let Some(heir) = heir {
            actor.services.host.left(&actor.lane, heir);
        }
        actor.services.directory.remove(&actor.lane, &actor.handle);
        stop_if_all_is_handled(actor, context);
    });
}

fn stop_if_all_is_handled(actor: &mut LaneActor, context: &mut Context<LaneActor>) {
    let is_answering = actor.state.is_looking_up();
    if actor.stage == OwnerStage::Released && actor.handled >= actor.handle.sent() && !is_answering {
        context.stop();
    }
}
