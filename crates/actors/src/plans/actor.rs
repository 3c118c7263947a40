//! The owner of a plan: an actor that carries out what [`domain::plan::PlanState`] decides.
//!
//! Commands wait in a queue, and one step at a time is committed. Ends of stages' jobs, times that are over and renewals of
//! the tenants' locks come in the same way as what people ask for. Ends that came together are one step.
//!
//! What a crash leaves behind after each step:
//! 1. decided, not committed: nothing;
//! 2. committed, no caller told: the caller asks again, and finds it done;
//! 3. committed with a stage's job, which the lane was not told of: the next owner's lane holds the job, and the plan's next
//!    owner calls its stage UNKNOWN;
//! 4. a job has ended, its checkpoint is not committed: the next owner finds the job's result, and writes the checkpoint
//!    before it does what people ask for.

mod stage_jobs;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::fut::wrap_future;
use actix::{Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, SpawnHandle};
use dashmap::Entry;
use domain::job::NewJob;
use domain::plan::{Command, PlanState, StageEnd, TaskState};
use domain::{PlanId, Resource, Token};
use ledger::{LastTold, jittered};

use super::clock::{self, Clock};
use super::owned_bytes::PlanShare;
use super::pending::Pending;
use super::step::{self, Outcome};
use super::{Inner, MAILBOX_MESSAGES_MAX, Message, PlanHandle, Refusal, Request, watching};
use crate::jobs::{Lost, PlanLane};
use crate::mailbox::{Deliver, Obituary};
use crate::queue_meter::{QueueKind, QueueMeter};
use stage_jobs::StageJobs;

/// How many times in their length the tenants' locks are renewed, before jitter.
const LOCK_RENEWALS: u32 = 5;
/// How long an owner keeps its lease when its plan needs none.
const IDLE_KEPT: Duration = Duration::from_secs(5);
/// How often an owner with nothing to do looks whether it has its lease still.
const LEASE_LOOK_EVERY: Duration = Duration::from_secs(2);
/// The pause between two tries to read the plan, before jitter.
const RELOAD_EVERY: Duration = Duration::from_millis(200);
/// Commands of one plan that wait for their commits.
const QUEUE_MAX: usize = 1_000;
/// Ends of stages that are one step at most,
const ENDS_MAX: usize = 100;
/// and the bytes of their contexts, counted before the last one.
const ENDS_BYTES_MAX: usize = 4 << 20;

/// Up to this token a plan that nobody has written since it was made was not begun. A recovered ledger, which may have lost
/// what was written, has raised the tokens past it. And a plan whose owners all die of a defect as they begin it comes to rest.
/// An owner takes two tokens, one as it acquires the plan and one as it opens the lane, and one more for each acquire whose
/// answer was lost.
const UNBEGUN_TOKEN_MAX: i64 = 10;

/// What a plan is opened with.
pub(super) struct Opening {
    pub(super) plan: PlanId,
    pub(super) lane: PlanLane,
    /// The plan, where it was made a moment ago, so that nobody can have owned it before; and the database's time.
    pub(super) made: Option<(PlanState, Clock)>,
    /// Its share of the bytes that the instance owns, where that was reserved before it was made.
    pub(super) share: Option<PlanShare>,
    /// Whether nobody has owned the plan before, so that nothing of it was begun.
    pub(super) is_first: bool,
}

/// A step whose commit was not heard of.
struct Attempted {
    /// The plan once it is written.
    state: Arc<PlanState>,
    /// The token under which it was sent.
    token: Token,
    /// The jobs of the stages that begin.
    jobs: Vec<NewJob>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OwnerStage {
    /// The plan is being read.
    Loading,
    Serving,
    /// A step is being committed.
    Committing,
    /// The lease is being given back.
    Releasing,
    /// Nothing is left but to answer what still comes.
    Released,
}

/// The owner of one plan.
pub(super) struct PlanActor {
    inner: Arc<Inner>,
    plan: PlanId,
    handle: PlanHandle,
    /// Messages that were handled.
    handled: u64,
    stage: OwnerStage,
    is_stopping: bool,
    /// The plan as it is committed; without tasks before it was read.
    state: Arc<PlanState>,
    /// What the state has of the bytes that this instance may own.
    share: PlanShare,
    clock: Clock,
    queue: VecDeque<Pending>,
    meter: QueueMeter,
    /// The token under which the state was read. What is decided on it counts under no other.
    token: Token,
    attempted: Option<Attempted>,
    /// Whether nobody has owned the plan before.
    is_first: bool,
    stage_jobs: StageJobs,
    renew_at: Instant,
    /// Since when the plan needs no owner, nobody has asked anything of it and nothing has happened to it.
    idle_since: Option<Instant>,
    /// When it looks whether anything is due.
    wake: Option<(Instant, SpawnHandle)>,
    obituary: Obituary<PlanId, Message>,
    /// Dropped last: an owner that dies leaves its share of the lease after its death is reported.
    lane: Arc<PlanLane>,
}

impl Drop for PlanActor {
    fn drop(&mut self) {
        if !self.obituary.is_expected {
            // Before the death is reported, and the next owner opens it.
            self.lane.stop();
        }
    }
}

impl Actor for PlanActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let made = (!self.state.tasks.is_empty()).then(|| (Arc::clone(&self.state), self.clock));
        let (inner, lane, plan) = (Arc::clone(&self.inner), Arc::clone(&self.lane), self.plan);
        let loaded = async move { load(&inner, &lane, plan, made).await };
        spawn(context, loaded, |mut loaded, actor, context| {
            let is_new = !actor.state.tasks.is_empty();
            if !is_new {
                // Nobody knows when the owner before has renewed them.
                actor.renew_at = Instant::now();
            }
            // The instance that made the plan may be slower than one that looks for plans without an owner.
            let mut is_unbegun = actor.is_first;
            if let Ok(Loaded { state, token, ends, .. }) = &mut loaded {
                // The answer to an acquire may have been lost, or an owner has died before its first step. A step that
                // was under way has ended before the lease was acquired again.
                is_unbegun |= token.get() <= UNBEGUN_TOKEN_MAX
                    && state.as_ref().is_some_and(|state| state.is_as_made());
                actor.put_back(std::mem::take(ends));
            }
            let first = if is_unbegun { Command::Advance } else { Command::TakenOver };
            actor.queue.push_front(Pending::own(first));
            actor.loaded(loaded, context);
        });
    }
}

impl Handler<Deliver<Message>> for PlanActor {
    type Result = ();

    fn handle(&mut self, Deliver(message): Deliver<Message>, context: &mut Self::Context) {
        self.handled += 1;
        match message {
            Message::CarryOut(request) => {
                let Request { command, by, reply } = *request;
                let pending = Pending::asked(command, by, reply);
                match self.stage {
                    OwnerStage::Releasing | OwnerStage::Released => pending.answer(Err(Refusal::Fenced)),
                    _ if self.queue.len() >= QUEUE_MAX => pending.answer(Err(Refusal::Overloaded)),
                    _ => self.queue.push_back(pending),
                }
            }
            Message::Stop => self.is_stopping = true,
        }
        self.advance(context);
        self.meter.set_depth(self.queue.len());
        self.stop_if_all_is_handled(context);
    }
}

/// Everything was read.
struct Loaded {
    /// `None` where the plan was purged.
    state: Option<Arc<PlanState>>,
    /// The token that the lease had before the state was read.
    token: Token,
    clock: Clock,
    /// Whether the lane was opened for it, and jobs of the plan may be held since.
    are_jobs_held: bool,
    /// Ends of stages that the ledger had by then, where jobs are held. They count before what people have asked meanwhile: a
    /// stage that succeeded is not run again.
    ends: Vec<Pending>,
}

/// Opens the plan's lane, and reads the plan, unless it is known. Tries until it is done or the lease is lost.
async fn load(
    inner: &Inner,
    lane: &PlanLane,
    plan: PlanId,
    known: Option<(Arc<PlanState>, Clock)>,
) -> Result<Loaded, Lost> {
    let mut are_jobs_held = false;
    let told = LastTold::never();
    loop {
        are_jobs_held |= lane.open().await?;
        let token = lane.token();
        match read(inner, plan, known.clone(), are_jobs_held).await {
            Ok((state, clock, ends)) => return Ok(Loaded { state, token, clock, are_jobs_held, ends }),
            Err(error) => {
                ledger::log_failure!(told: told, error, %plan, "the plan could not be read; trying again");
            }
        }
        tokio::time::sleep(jittered(RELOAD_EVERY)).await;
        if !lane.is_current() {
            lane.acquire_anew(lane.token()).await?;
        }
    }
}

/// The plan, unless it was purged, the time by the database's clock, and the ends of stages if they are asked for.
async fn read(
    inner: &Inner,
    plan: PlanId,
    known: Option<(Arc<PlanState>, Clock)>,
    with_ends: bool,
) -> ledger::Result<(Option<Arc<PlanState>>, Clock, Vec<Pending>)> {
    if let Some((known, clock)) = known {
        return Ok((Some(known), clock, Vec::new()));
    }
    // It is never closed.
    let _turn = inner.loading.acquire().await.ok();
    let clock = Clock::new(clock::from_ms(inner.ledger.clock_ms().await?));
    let state = inner.ledger.load_plan(plan).await?.map(Arc::new);
    let ends = match &state {
        Some(state) if with_ends => watching::ended_already(inner, state).await?,
        _ => Vec::new(),
    };
    Ok((state, clock, ends.into_iter().map(Pending::own).collect()))
}

/// When the tenants' locks are renewed next.
fn next_renewal(inner: &Inner) -> Instant {
    Instant::now() + jittered(inner.config.lock / LOCK_RENEWALS)
}

/// A future on the actor's context, and what is done with its answer.
fn spawn<T: 'static>(
    context: &mut Context<PlanActor>,
    future: impl Future<Output = T> + 'static,
    then: impl FnOnce(T, &mut PlanActor, &mut Context<PlanActor>) + 'static,
) -> SpawnHandle {
    context.spawn(wrap_future::<_, PlanActor>(future).map(then))
}

impl PlanActor {
    /// Starts the owner of a plan whose lease was just acquired, and enters it into the directory.
    pub(super) fn start(inner: &Arc<Inner>, opening: Opening) -> PlanHandle {
        let (plan, its_inner) = (opening.plan, Arc::clone(inner));
        let number = inner.arbiters.number_of(Resource::plan(plan).as_str());
        let enter = |address: Addr<Self>| {
            let handle = PlanHandle::new(address.recipient());
            inner.directory.insert(plan, handle.clone());
            handle
        };
        let make = move |handle| Self::new(its_inner, opening, handle);
        // An owner that ends at once finds its entry, and removes it.
        inner.arbiters.start_entered(number, MAILBOX_MESSAGES_MAX, enter, make)
    }

    fn new(inner: Arc<Inner>, opening: Opening, handle: PlanHandle) -> Self {
        let Opening { plan, lane, made, share, is_first } = opening;
        let unread = || {
            let clock = Clock::new(domain::Timestamp::from_micros(0));
            (PlanState::new(plan, Arc::default(), Vec::new()), clock)
        };
        let (state, clock) = made.unwrap_or_else(unread);
        let (lane, share) = (Arc::new(lane), share.unwrap_or_else(|| inner.owned.share(&state)));
        let obituary = Obituary::new(plan, handle.clone(), inner.deaths.clone());
        let renew_at = next_renewal(&inner);
        Self {
            inner,
            plan,
            handle,
            handled: 0,
            stage: OwnerStage::Loading,
            is_stopping: false,
            state: Arc::new(state),
            share,
            is_first,
            clock,
            queue: VecDeque::new(),
            meter: QueueMeter::new(QueueKind::Plan),
            token: Token::new(0),
            attempted: None,
            stage_jobs: StageJobs::default(),
            renew_at,
            idle_since: None,
            wake: None,
            obituary,
            lane,
        }
    }

    fn loaded(&mut self, loaded: Result<Loaded, Lost>, context: &mut Context<Self>) {
        match loaded {
            Ok(Loaded { state: Some(state), token, clock, .. }) => {
                self.stage = OwnerStage::Serving;
                self.share.set(&state);
                self.state = state;
                self.token = token;
                self.clock = clock;
                self.attempted = None;
                self.stage_jobs.state_was_read();
                self.find_lost_locks();
                self.watch(false, context);
                self.advance(context);
            }
            // It was purged.
            Ok(Loaded { state: None, .. }) => self.end(None, &Refusal::UnknownPlan, context),
            Err(Lost) => self.end(None, &Refusal::Fenced, context),
        }
    }

    /// A task that may go on and has no lock any more has lost it while nobody looked. A retry that waits may take it
    /// anew first.
    fn find_lost_locks(&mut self) {
        let is_started = self.state.started_at.is_some();
        let has_lost = |task: &&Arc<TaskState>| is_started && task.lock.is_none() && task.status.may_go_on();
        let lost = self.state.tasks.iter().filter(has_lost);
        self.queue.extend(lost.map(|task| Pending::own(Command::LockLost(task.id, None))));
    }

    /// Decides on what waits, until a step is to be committed or nothing waits.
    fn advance(&mut self, context: &mut Context<Self>) {
        while self.stage == OwnerStage::Serving {
            if self.is_stopping {
                return self.end(None, &Refusal::Fenced, context);
            }
            // It died of a defect: nobody sees to the jobs in flight until it is opened again.
            if !self.lane.is_open() && self.inner.jobs.is_serving() {
                return self.begin_anew(context);
            }
            let mut taken = self.take_next();
            self.meter.set_depth(self.queue.len());
            if taken.is_empty() {
                return self.rest(context);
            }
            for pending in &mut taken {
                if !std::mem::replace(&mut pending.was_taken_up, true) {
                    self.meter.waited(pending.since.elapsed());
                }
            }
            if self.may_not_start(&taken) {
                taken.into_iter().for_each(|pending| pending.answer(Err(Refusal::Overloaded)));
                // It was read for this alone.
                self.idle_since = Instant::now().checked_sub(IDLE_KEPT);
                continue;
            }
            // What the owner finds for itself, and nothing follows from, is no use of the plan.
            if taken.iter().any(|pending| pending.reply.is_some()) {
                self.idle_since = None;
            }
            match self.decide(&taken) {
                Err(refused) => taken
                    .into_iter()
                    .for_each(|pending| pending.answer(Err(Refusal::Refused(refused.clone())))),
                Ok(step) if step.writes.is_empty() => {
                    self.call_off(step.cancel, context);
                    taken.into_iter().for_each(|pending| pending.answer(Ok(())));
                }
                Ok(step) => self.commit(step, taken, context),
            }
        }
        self.meter.set_depth(self.queue.len());
    }

    /// What the next step decides on: the first command that waits, or the ends of stages of different tasks that came
    /// together, which cost one commit and not one each.
    fn take_next(&mut self) -> Vec<Pending> {
        // None of them was sent: a step whose commit was not heard of is answered at once.
        while self.queue.front().is_some_and(Pending::is_given_up) {
            self.queue.pop_front();
        }
        let mut taken: Vec<_> = self.queue.pop_front().into_iter().collect();
        let mut bytes = taken.first().map_or(0, |first| self.context_bytes(first));
        while taken.len() < ENDS_MAX
            && bytes < ENDS_BYTES_MAX
            && let Some((task, ..)) = self.queue.front().and_then(Pending::shared_end)
            && taken.iter().all(|one| one.shared_end().is_some_and(|(other, ..)| other != task))
        {
            let next = self.queue.pop_front();
            bytes += next.as_ref().map_or(0, |next| self.context_bytes(next));
            taken.extend(next);
        }
        taken
    }

    /// The bytes of the context that a stage leaves to the next one.
    fn context_bytes(&self, ended: &Pending) -> usize {
        match ended.shared_end() {
            Some((_, _, StageEnd::Completed(Some(context)))) => context.len(),
            Some((task, _, StageEnd::Completed(None))) => {
                self.state.place_of(task).map_or(0, |place| self.state.tasks[place].context().len())
            }
            _ => 0,
        }
    }

    fn decide(&self, taken: &[Pending]) -> Result<domain::plan::Step, domain::plan::Refused> {
        let mut new_job = || self.inner.jobs.new_id();
        match taken {
            [one] => {
                let mut step = self.state.apply(&one.command, self.clock.now(), &mut new_job)?;
                if let Some(span) = one.by.author.traceparent {
                    step.continue_span(&one.command, span);
                }
                Ok(step)
            }
            many => {
                let ends = many.iter().filter_map(Pending::shared_end);
                Ok(self.state.apply_ends(ends, self.clock.now(), &mut new_job))
            }
        }
    }

    /// Whether the plan is to be started and this instance owns too much for that, or too much that the same token has started.
    fn may_not_start(&mut self, taken: &[Pending]) -> bool {
        let [Pending { command: Command::Start, by, .. }] = taken else { return false };
        self.state.started_at.is_none()
            && !self.inner.owned.may_start(&mut self.share, by.author.principal.as_ref())
    }

    /// They wait again, before all others and in their order.
    fn put_back(&mut self, taken: Vec<Pending>) {
        taken.into_iter().rev().for_each(|pending| self.queue.push_front(pending));
    }

    /// The same, each with a step of its own: a smaller one may be in time, or shows which of them is at fault.
    fn put_back_alone(&mut self, mut taken: Vec<Pending>) {
        taken.iter_mut().for_each(|pending| pending.is_alone = true);
        self.put_back(taken);
    }

    fn commit(&mut self, step: domain::plan::Step, taken: Vec<Pending>, context: &mut Context<Self>) {
        self.stage = OwnerStage::Committing;
        self.idle_since = None;
        let domain::plan::Step { next, writes, cancel } = step;
        let (next, writes) = (Arc::new(next), Arc::new(writes));
        let (inner, lane) = (Arc::clone(&self.inner), Arc::clone(&self.lane));
        // Those that share a step have none.
        let by = taken.first().map(|pending| pending.by_on(&self.state)).unwrap_or_default();
        let (deciding, deciding_writes, token) = (Arc::clone(&next), Arc::clone(&writes), self.token);
        let committed =
            async move { step::commit(&inner, &lane, token, deciding, &deciding_writes, by).await };
        spawn(context, committed, move |(outcome, jobs), actor, context| {
            if actor.stage != OwnerStage::Committing {
                return taken.into_iter().for_each(|pending| pending.answer(Err(Refusal::Fenced)));
            }
            actor.stage = OwnerStage::Serving;
            match outcome {
                Outcome::Written { at, locks } => {
                    let mut next = Arc::unwrap_or_clone(next);
                    step::count_locks(&next, &locks, at, actor.inner.config.lock_ms());
                    step::log_attention(&actor.state, &next);
                    next.locked(locks);
                    actor.share.follow(&actor.state, &next, &writes.tasks);
                    actor.state = Arc::new(next);
                    actor.clock = actor.clock.followed_by(Clock::new(at));
                    // Before the lane knows of them, so that no end is missed.
                    actor.watch(true, context);
                    actor.written(&writes, &taken);
                    actor.lane.added(token, at, jobs);
                    actor.call_off(cancel, context);
                    taken.into_iter().for_each(|pending| pending.answer(Ok(())));
                }
                Outcome::LockLost(tasks) => {
                    actor.put_back(taken);
                    for place in tasks {
                        let task = &actor.state.tasks[place];
                        let lost = Command::LockLost(task.id, task.lock);
                        actor.queue.push_front(Pending::own(lost));
                    }
                }
                Outcome::Locked(locker) => {
                    step::count_conflict(&locker);
                    let refused =
                        |pending: Pending| pending.answer(Err(Refusal::TenantLocked(locker.clone())));
                    taken.into_iter().for_each(refused);
                }
                Outcome::KeyTaken => {
                    taken.into_iter().for_each(|pending| pending.answer(Err(Refusal::KeyReused)));
                }
                Outcome::NotWritten => {
                    actor.late(&taken);
                    actor.put_back_alone(taken);
                    return actor.begin_anew(context);
                }
                Outcome::Unknown => {
                    actor.late(&taken);
                    actor.attempted = Some(Attempted { state: next, token, jobs });
                    // What was written is found again, and then those without a caller are none of it.
                    let (asked, own): (Vec<_>, Vec<_>) =
                        taken.into_iter().partition(|pending| pending.reply.is_some());
                    asked.into_iter().for_each(|pending| pending.answer(Err(Refusal::LedgerUnavailable)));
                    actor.put_back_alone(own);
                    return actor.begin_anew(context);
                }
                Outcome::Refused(_) if taken.len() > 1 => actor.put_back_alone(taken),
                Outcome::Refused(why) => taken.into_iter().for_each(|only| actor.refused(only, &why)),
            }
            actor.advance(context);
        });
    }

    /// A step is durable: checkpoints are measured, and locks that were taken let tasks begin.
    fn written(&mut self, writes: &domain::plan::Writes, taken: &[Pending]) {
        self.inner.late.remove(&self.plan);
        for (place, _) in &writes.checkpoints {
            let is_its = |pending: &&Pending| {
                pending.shared_end().is_none_or(|(task, ..)| task == self.state.tasks[*place].id)
            };
            let Some(pending) = taken.iter().find(is_its) else { continue };
            metrics::histogram!("fencepost_checkpoint_write_seconds").record(pending.since.elapsed());
        }
        if !writes.take.is_empty() {
            self.queue.push_front(Pending::own(Command::Advance));
        }
    }

    /// The ledger refuses what a command would write. A checkpoint that cannot be kept fails its task.
    fn refused(&mut self, mut pending: Pending, why: &str) {
        tracing::error!(plan = %self.plan, why, "the ledger refused a step");
        match pending.command {
            Command::StageEnded { task, job, end: StageEnd::Completed(_) } => {
                metrics::counter!("fencepost_checkpoint_write_failures_total").increment(1);
                let end = StageEnd::Unfit(format!("the ledger refused the checkpoint: {why}").into());
                pending.command = Command::StageEnded { task, job, end };
                self.queue.push_front(pending);
            }
            _ => pending.answer(Err(Refusal::Internal)),
        }
    }

    /// Checkpoints wait for the ledger.
    fn late(&self, taken: &[Pending]) {
        for pending in taken.iter().filter(|pending| matches!(pending.command, Command::StageEnded { .. })) {
            metrics::counter!("fencepost_checkpoint_write_failures_total").increment(1);
            match self.inner.late.entry(self.plan) {
                Entry::Vacant(entry) => {
                    entry.insert(pending.since);
                    tracing::warn!(plan = %self.plan, "a checkpoint waits for the ledger");
                }
                Entry::Occupied(mut oldest) => {
                    let since = *oldest.get();
                    oldest.insert(since.min(pending.since));
                }
            }
        }
    }

    /// The lease is acquired anew, the lane opened if it died, and the plan read again. Where another has written it meanwhile,
    /// this owner has lost it, even if it has the lease again: the next one begins with a takeover.
    fn begin_anew(&mut self, context: &mut Context<Self>) {
        self.stage = OwnerStage::Loading;
        let above = self.token;
        let (inner, lane, plan) = (Arc::clone(&self.inner), Arc::clone(&self.lane), self.plan);
        let loaded = async move {
            while lane.acquire_anew(above).await?.is_none() {
                tokio::time::sleep(jittered(RELOAD_EVERY)).await;
            }
            load(&inner, &lane, plan, None).await
        };
        spawn(context, loaded, |mut loaded, actor, context| {
            if let Ok(Loaded { state: Some(state), clock, are_jobs_held, ends, .. }) = &mut loaded {
                let is_known = |known: &Arc<PlanState>| step::is_same_but_locks(known, state);
                match actor.attempted.take() {
                    // What was begun by a commit that was not heard of.
                    Some(Attempted { state, token, jobs }) if is_known(&state) => {
                        actor.inner.late.remove(&actor.plan);
                        step::log_attention(&actor.state, &state);
                        actor.lane.added(token, clock.now(), jobs);
                    }
                    _ if !is_known(&actor.state) => {
                        tracing::warn!(plan = %actor.plan, "another owner has written the plan meanwhile");
                        return actor.end(None, &Refusal::Fenced, context);
                    }
                    Some(Attempted { token, jobs, .. }) => actor.lane.give_back(token, &jobs),
                    None => {}
                }
                let jobs = state.tasks.iter().filter_map(|task| Some(task.in_flight()?.1)).collect();
                actor.lane.written(jobs);
                if *are_jobs_held {
                    // Such ends may have shared a step that was not written.
                    actor.put_back_alone(std::mem::take(ends));
                    // No attempt of them begins any more. So nothing else of the plan begins either until a person asks for it.
                    actor.queue.push_front(Pending::own(Command::TakenOver));
                } else {
                    actor.queue.push_back(Pending::own(Command::Advance));
                }
            }
            if let Ok(Loaded { clock, .. }) = &mut loaded {
                *clock = actor.clock.followed_by(*clock);
            }
            actor.loaded(loaded, context);
        });
    }

    /// Nothing waits: the next look is when a time is over or the locks are due, and an owner without need ends.
    fn rest(&mut self, context: &mut Context<Self>) {
        let now = Instant::now();
        if self.renew_at <= now {
            self.renew_at = next_renewal(&self.inner);
            if self.state.has_locks_to_renew() {
                self.queue.push_back(Pending::own(Command::RenewLocks));
                return self.advance(context);
            }
        }
        if !self.lane.is_current() {
            return self.begin_anew(context);
        }
        self.call_off_due(context);
        let mut at = self.renew_at.min(now + LEASE_LOOK_EVERY);
        if let Some(due) = self.state.wake_at() {
            at = at.min(now + Duration::from_millis(due.ms_since(self.clock.now()) + 1));
        }
        if self.state.needs_owner() {
            self.idle_since = None;
        } else {
            let ends = *self.idle_since.get_or_insert(now) + IDLE_KEPT;
            if ends <= now {
                return self.end(Some(self.handled), &Refusal::Fenced, context);
            }
            at = at.min(ends);
        }
        if self.wake.is_some_and(|(armed, _)| armed <= at) {
            return;
        }
        if let Some((_, later)) = self.wake.take() {
            context.cancel_future(later);
        }
        let look = context.run_later(at.saturating_duration_since(now), |actor, context| {
            actor.wake = None;
            if actor.stage == OwnerStage::Serving {
                let is_due = actor.state.wake_at().is_some_and(|due| due <= actor.clock.now());
                if is_due {
                    actor.queue.push_back(Pending::own(Command::Advance));
                }
                actor.advance(context);
            }
        });
        self.wake = Some((at, look));
    }

    /// Ends the owner: with nothing left to do, whose messages must all be handled; or otherwise. Callers that still wait are
    /// refused so.
    fn end(&mut self, handled: Option<u64>, refusal: &Refusal, context: &mut Context<Self>) {
        if matches!(self.stage, OwnerStage::Releasing | OwnerStage::Released)
            || !self.inner.directory.begin_end(&self.plan, &self.handle, handled)
        {
            return;
        }
        self.stage = OwnerStage::Releasing;
        self.obituary.is_expected = true;
        self.inner.late.remove(&self.plan);
        self.queue.drain(..).for_each(|pending| pending.answer(Err(refusal.clone())));
        self.meter.set_depth(0);
        let lane = Arc::clone(&self.lane);
        let released = async move { lane.release().await };
        spawn(context, released, |(), actor, context| {
            actor.stage = OwnerStage::Released;
            actor.inner.directory.remove(&actor.plan, &actor.handle);
            actor.stop_if_all_is_handled(context);
        });
    }

    fn stop_if_all_is_handled(&mut self, context: &mut Context<Self>) {
        if self.stage == OwnerStage::Released && self.handled >= self.handle.sent() {
            context.stop();
        }
    }
}
