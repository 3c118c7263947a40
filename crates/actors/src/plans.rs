//! Plans: the handle to the owners of plans.
//!
//! The path of a command: handle (here) → the plan's [`actor`] → [`domain::plan::PlanState`] decides → one commit under the
//! plan's lease and the locks of the tenants that it is about. The path of a stage: its job is part of that commit; the
//! plan's lane gets a message, dispatches the job and records its result as it does for any job; the actor waits for the
//! job's end, and turns it into a checkpoint.

mod actor;
mod adoption;
mod clock;
mod owned_bytes;
mod pending;
mod refusal;
mod retry;
mod stage;
mod step;
mod watching;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{ClusterView, FailureDetector, KeyOwner};
use domain::plan::{Command, PlanSpec, PlanState, PlanStatus, TaskSpec, TaskState};
use domain::{AuditEntry, PlanId, Resource, TaskId, TenantId, Timestamp, Token};
use ledger::{Author, JobKey, LockBreak, NewPlan as NewRows, PlanCount, PlanCreated, RetryKey, jittered};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::arbiters::Arbiters;
use crate::counted::Counted;
use crate::database_clock::SharedClock;
use crate::directory::{Directory, Found};
use crate::jobs::{Adoption, Jobs};
use crate::mailbox::Handle;
use crate::row_locks::RowLocks;
use crate::uncut::uncut;
use actor::{Opening, PlanActor};
pub use adoption::PURGE_EVERY;
use clock::Clock;
pub use owned_bytes::OWNED_PLANS_BYTES_MAX;
use owned_bytes::{LOADS_MAX, OwnedBytes, PlanShare};
pub use refusal::Refusal;
pub use retry::{RetryFrom, RetryRequest};
pub use stage::task_of_stage;

/// Messages that one plan's mailbox holds; further requests are refused as overloaded.
const MAILBOX_MESSAGES_MAX: usize = 1_024;
/// Ids that are drawn for a new plan until the ring puts one here.
const ID_DRAWS_MAX: usize = 64;
/// The pause between two looks for a plan's owner, before jitter.
const OWNER_LOOK_EVERY: Duration = Duration::from_millis(50);

/// How the plans of an instance work.
#[derive(Clone, Debug)]
pub struct PlanConfig {
    /// How long a request may take altogether.
    pub request_timeout: Duration,
    /// How long plans are kept after their end.
    pub retention: Duration,
    /// Between two purges, before jitter: [`PURGE_EVERY`].
    pub purge_every: Duration,
    /// Bytes of owned plans beyond which no further plan is started, half of them for one token: see
    /// [`OWNED_PLANS_BYTES_MAX`].
    pub owned_bytes_max: usize,
    /// How long a tenant's lock lasts from its last renewal; the plan's owner renews it at about a fifth of it.
    pub lock: Duration,
}

impl PlanConfig {
    fn lock_ms(&self) -> u64 {
        self.lock.as_millis() as u64
    }
}

/// What the owners of plans depend on.
pub struct Dependencies {
    /// The ledger.
    pub ledger: ledger::Handle,
    /// The lanes, of which each plan has one.
    pub jobs: Jobs,
    /// Whether this instance is alive, and which others are dead.
    pub failure_detector: FailureDetector,
    /// The owners of keys.
    pub cluster_view: ClusterView,
    /// The arbiters on which the owners of plans run.
    pub arbiters: Arbiters,
    /// What this process has seen of the database's clock.
    pub clock: SharedClock,
}

/// A plan to be made.
#[derive(Clone, Debug)]
pub struct NewPlan {
    /// What was asked of the plan.
    pub spec: PlanSpec,
    /// What was asked of its tasks, in their order.
    pub tasks: Vec<TaskSpec>,
    /// Whether it is started at once, in the same commit.
    pub is_started: bool,
    /// The request's idempotency key.
    pub key: Option<JobKey>,
}

/// Who asks for a command.
#[derive(Clone, Default)]
struct By {
    author: Author,
    /// Whether it is an operator: the audit has an entry also of what others may do without one.
    is_operator: bool,
    /// The request's idempotency key. Only retries have one.
    key: Option<RetryKey>,
    /// What the audit says of the step, once it is decided.
    audit: Option<AuditEntry>,
}

/// A command for a plan, who asks for it, and who waits for the answer.
struct Request {
    command: Command,
    by: By,
    reply: oneshot::Sender<Result<(), Refusal>>,
}

/// What reaches a plan's owner.
enum Message {
    /// Carry this out.
    CarryOut(Box<Request>),
    /// Finish what is under way, release the lease and end.
    Stop,
}

type PlanHandle = Handle<Message>;

/// The owners of plans on this instance. Cheap to clone.
#[derive(Clone)]
pub struct Plans {
    inner: Arc<Inner>,
}

struct Inner {
    ledger: ledger::Handle,
    jobs: Jobs,
    failure_detector: FailureDetector,
    cluster_view: ClusterView,
    arbiters: Arbiters,
    clock: SharedClock,
    config: PlanConfig,
    directory: Directory<PlanId, Message>,
    /// Where owners that died are reported.
    deaths: mpsc::UnboundedSender<(PlanId, PlanHandle)>,
    /// Since when checkpoints wait for the ledger, by their plans.
    late: dashmap::DashMap<PlanId, Instant>,
    /// The newest count of plans and tasks.
    counts: Counted<PlanCounts>,
    /// Held while a plan is taken.
    taking: RowLocks,
    /// The bytes of the plans that are owned here.
    owned: OwnedBytes,
    /// One permit for each plan that may be read at the same time.
    loading: Semaphore,
}

/// The plans and tasks of all instances.
struct PlanCounts {
    plans: Vec<(PlanStatus, u64)>,
    tasks: Vec<PlanCount>,
}

/// The plans and tasks of all instances, as they were last counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanStatistics {
    /// The plans that are kept, by status. A status that no plan has is missing.
    pub plans: Vec<(PlanStatus, u64)>,
    /// The tasks of plans that are not over, and the stages of them that are UNKNOWN, by status. A status that nothing has
    /// is missing.
    pub tasks: Vec<PlanCount>,
    /// How long ago they were counted.
    pub counted_ago: Duration,
}

/// A plan that was made here a moment ago, by the database's time, and its share of the bytes that are owned.
type Made = (PlanState, Clock, PlanShare);

impl Plans {
    /// Opens the plans of an instance. Must be called within a Tokio runtime; the owners of plans live on the arbiters.
    #[must_use]
    pub fn start(dependencies: Dependencies, config: PlanConfig) -> Self {
        let Dependencies { ledger, jobs, failure_detector, cluster_view, arbiters, clock } = dependencies;
        let (deaths, reported) = mpsc::unbounded_channel();
        let owned = OwnedBytes::new(config.owned_bytes_max);
        let inner = Arc::new(Inner {
            ledger,
            jobs,
            failure_detector,
            cluster_view,
            arbiters,
            clock,
            config,
            directory: Directory::default(),
            deaths,
            late: dashmap::DashMap::new(),
            counts: Counted::default(),
            taking: RowLocks::default(),
            owned,
            loading: Semaphore::new(LOADS_MAX),
        });
        adoption::start(&inner, reported);
        Self { inner }
    }

    /// Makes a plan and all its tasks in one commit; with `is_started`, the locks of all its tenants are taken in the same.
    /// Under a key that was used, the plan that was made then. The ring puts a new plan on this instance.
    ///
    /// # Errors
    /// [`Refusal::TenantLocked`], [`Refusal::KeyReused`], [`Refusal::Overloaded`] where it is new and to be started and the
    /// plans that are owned here, or those of them that the author's token has started here, have too many bytes, and what
    /// the ledger says.
    pub async fn create(&self, new: NewPlan, author: Author) -> Result<PlanId, Refusal> {
        self.create_by(new, By { author, ..By::default() }).await
    }

    /// The same where an operator asks: if the plan is made and started, the audit has its entry in the same commit.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub async fn create_for_operator(&self, new: NewPlan, author: Author) -> Result<PlanId, Refusal> {
        self.create_by(new, By { author, is_operator: true, ..By::default() }).await
    }

    async fn create_by(&self, new: NewPlan, by: By) -> Result<PlanId, Refusal> {
        let inner = &self.inner;
        let deadline = Instant::now() + inner.config.request_timeout;
        let task_id = || TaskId::from_u128(inner.jobs.new_id().as_u128());
        let tasks = new.tasks.into_iter().map(|task| TaskState::new(task_id(), Arc::new(task)));
        let mut plan = PlanState::new(inner.id_here(), Arc::new(new.spec), tasks.collect());
        let made = domain::plan::PlanEvent::made(plan.status());
        let (mut events, mut take, mut audit) = (vec![made], Vec::new(), None);
        let token = by.author.principal.as_ref();
        let reserved = if new.is_started { inner.owned.reserve(&plan, token) } else { None };
        if new.is_started && reserved.is_none() {
            // A plan that was made before takes no room anew.
            return inner.kept_plan(new.key.as_ref()).await?.ok_or(Refusal::Overloaded);
        }
        if new.is_started {
            audit = pending::entry(&Command::Start, &by, &plan);
            let now = inner.now().await?;
            let step = plan.apply(&Command::Start, now, &mut || inner.jobs.new_id());
            let mut step = step.map_err(Refusal::Refused)?;
            if let Some(span) = by.author.traceparent {
                step.continue_span(&Command::Start, span);
            }
            events.extend(step.writes.events);
            take = step.writes.take;
            // Its rows are new, whatever was decided before they were written.
            plan = PlanState { version: plan.version, ..step.next };
        }
        let rows = NewRows {
            plan: Arc::new(plan.clone()),
            take,
            lock_ms: inner.config.lock_ms(),
            events,
            key: new.key,
            author: by.author,
            audit,
        };
        let inner = Arc::clone(inner);
        // A caller that gives up must not leave a plan that was made and not begun.
        uncut(async move { inner.make(plan, rows, reserved, deadline).await }).await
    }

    /// Whether the plan's owner is here.
    #[must_use]
    pub fn owns(&self, plan: PlanId) -> bool {
        self.inner.directory.contains_key(&plan)
    }

    /// Has the plan's owner carry out a command; the plan is adopted here if it has no owner.
    ///
    /// # Errors
    /// [`Refusal::NotOwner`] where another instance owns it, [`Refusal::UnknownPlan`], what the plan's state refuses, and
    /// what the ledger says.
    pub async fn carry_out(&self, plan: PlanId, command: Command, author: Author) -> Result<(), Refusal> {
        self.ask(plan, command, By { author, ..By::default() }).await
    }

    /// The same where an operator asks: if the command changes something, the audit has its entry in the same commit.
    ///
    /// # Errors
    /// As [`Self::carry_out`].
    pub async fn carry_out_for_operator(
        &self,
        plan: PlanId,
        command: Command,
        author: Author,
    ) -> Result<(), Refusal> {
        self.ask(plan, command, By { author, is_operator: true, ..By::default() }).await
    }

    async fn ask(&self, plan: PlanId, command: Command, by: By) -> Result<(), Refusal> {
        let inner = &self.inner;
        let deadline = Instant::now() + inner.config.request_timeout;
        loop {
            inner.serve(plan, deadline).await?;
            let (reply, answer) = oneshot::channel();
            let request = Request { command: command.clone(), by: by.clone(), reply };
            match inner.directory.try_send(&plan, Message::CarryOut(Box::new(request))) {
                Ok(()) => {}
                Err(undelivered) if undelivered.is_full => return Err(Refusal::Overloaded),
                // It has just ended.
                Err(_) => continue,
            }
            match tokio::time::timeout_at(deadline.into(), answer).await {
                Ok(Ok(Err(Refusal::Fenced))) if Instant::now() + OWNER_LOOK_EVERY * 2 < deadline => {
                    tokio::time::sleep(jittered(OWNER_LOOK_EVERY)).await;
                }
                Ok(Ok(answer)) => return answer,
                Ok(Err(_)) if inner.jobs.is_serving() => return Err(Refusal::Internal),
                Ok(Err(_)) => return Err(Refusal::Fenced),
                Err(_) => return Err(Refusal::LedgerUnavailable),
            }
        }
    }

    /// Has the plan's owner look at the locks of its tenants.
    ///
    /// # Errors
    /// As [`Self::carry_out`].
    pub async fn look(&self, plan: PlanId) -> Result<(), Refusal> {
        self.carry_out(plan, Command::RenewLocks, Author::default()).await
    }

    /// Breaks the lock of a tenant that is held at this token. Any instance does this. A plan that had it gets to know it at
    /// once if its owner is here, and at its next step otherwise.
    ///
    /// # Errors
    /// [`Refusal::NotLocked`], [`Refusal::OtherToken`], and what the ledger says.
    pub async fn unlock(&self, tenant: &TenantId, token: Token, author: Author) -> Result<(), Refusal> {
        let broken = self.inner.ledger.break_lock(tenant, token, &author).await;
        match broken? {
            LockBreak::NotHeld => Err(Refusal::NotLocked),
            LockBreak::OtherToken(held) => Err(Refusal::OtherToken(held)),
            LockBreak::Broken { task, plan } => {
                metrics::counter!("fencepost_tenant_locks_total", "result" => "broken").increment(1);
                tracing::warn!(
                    resource = %Resource::tenant(tenant), %token, %task,
                    principal = author.principal.as_deref(), reason = author.reason.as_deref(),
                    "a tenant's lock is broken"
                );
                if let Some(plan) = plan.filter(|plan| self.owns(*plan)) {
                    let looked = self.carry_out(plan, Command::RenewLocks, author).await;
                    looked.unwrap_or_else(|error| tracing::debug!(%error, %plan, "its plan looks later"));
                }
                Ok(())
            }
        }
    }

    /// How many plans wait for the ledger with a checkpoint that is overdue, or with the result of a stage whose node is
    /// here; and how long the oldest one has waited.
    #[must_use]
    pub fn late_checkpoints(&self) -> Option<(usize, Duration)> {
        let late = self.inner.late_plans();
        let oldest = late.values().min()?.elapsed();
        Some((late.len(), oldest))
    }

    /// The plans and tasks by status, as they were last counted. Waits for the first count.
    pub async fn statistics(&self) -> PlanStatistics {
        let counted = self.inner.counts.newest().await;
        let PlanCounts { plans, tasks } = &counted.found;
        PlanStatistics { plans: plans.clone(), tasks: tasks.clone(), counted_ago: counted.age() }
    }

    /// Finishes the commits under way, and releases the plans. Call this before the lanes are stopped.
    pub async fn stop(&self) {
        self.inner.directory.until_empty(|| Message::Stop).await;
    }
}

impl Inner {
    /// Since when each plan waits for the ledger with a checkpoint, or with a result that becomes one.
    fn late_plans(&self) -> HashMap<PlanId, Instant> {
        let mut late: HashMap<_, _> = self.late.iter().map(|plan| (*plan.key(), *plan.value())).collect();
        for (plan, since) in self.jobs.late_results() {
            late.entry(plan).and_modify(|first| *first = since.min(*first)).or_insert(since);
        }
        late
    }

    /// The time by the database's clock.
    async fn now(&self) -> Result<Timestamp, Refusal> {
        let ms = self.ledger.clock_ms().await?;
        Ok(clock::from_ms(ms))
    }

    /// An id for a new plan that the ring puts on this instance.
    fn id_here(&self) -> PlanId {
        let draw = || PlanId::from_u128(self.jobs.new_id().as_u128());
        let is_here = |id: &PlanId| self.cluster_view.owner_of(&Resource::plan(*id)) == KeyOwner::Here;
        // Where this instance is hardly on the ring, another place costs a hop.
        std::iter::repeat_with(draw).take(ID_DRAWS_MAX).find(is_here).unwrap_or_else(draw)
    }

    /// Has the plan owned here: from now on, if no other instance has it.
    async fn serve(self: &Arc<Self>, plan: PlanId, deadline: Instant) -> Result<(), Refusal> {
        loop {
            match self.directory.find(&plan) {
                Found::Served(_) => return Ok(()),
                Found::Ending => {}
                Found::None => {
                    let opening = tokio::time::timeout_at(deadline.into(), self.open(plan, None));
                    match opening.await.unwrap_or(Err(Refusal::LedgerUnavailable)) {
                        Ok(()) => return Ok(()),
                        Err(Refusal::NoOwner) => {}
                        Err(refusal) => return Err(refusal),
                    }
                }
            }
            if Instant::now() + OWNER_LOOK_EVERY * 2 >= deadline {
                return Err(Refusal::NoOwner);
            }
            tokio::time::sleep(jittered(OWNER_LOOK_EVERY)).await;
        }
    }

    /// Writes a plan that may be started, which has `reserved` its share, and owns it then.
    async fn make(
        self: &Arc<Self>,
        mut plan: PlanState,
        rows: NewRows,
        reserved: Option<PlanShare>,
        deadline: Instant,
    ) -> Result<PlanId, Refusal> {
        let (body_hash, taken) = (rows.key.as_ref().map(|key| key.body_hash), rows.take.len());
        let created = tokio::time::timeout_at(deadline.into(), self.ledger.create_plan(rows));
        let created = created.await.map_err(|_late| Refusal::LedgerUnavailable);
        let created = created.and_then(|answer| answer.map_err(Refusal::from));
        match created.inspect_err(|_| step::count_asked("error", taken))? {
            PlanCreated::Made { at, locks } => {
                let id = plan.id;
                step::count_locks(&plan, &locks, at, self.config.lock_ms());
                plan.locked(locks);
                if let Some(share) = reserved {
                    let opening = self.open(id, Some((plan, Clock::new(at), share)));
                    let opened = tokio::time::timeout_at(deadline.into(), opening).await;
                    if let Err(error) = opened.unwrap_or(Err(Refusal::LedgerUnavailable)) {
                        // It is adopted like any other. After an owner that has written it, somebody has to resume it.
                        tracing::warn!(%error, plan = %id, "a new plan could not be begun at once");
                    }
                }
                Ok(id)
            }
            PlanCreated::Kept(kept) if body_hash == Some(kept.body_hash) => Ok(kept.plan),
            PlanCreated::Kept(_) => Err(Refusal::KeyReused),
            PlanCreated::Locked(locker) => {
                step::count_conflict(&locker);
                Err(Refusal::TenantLocked(locker))
            }
        }
    }

    /// The plan that was made under a key; `None` without a key, and if the key was not used.
    async fn kept_plan(&self, key: Option<&JobKey>) -> Result<Option<PlanId>, Refusal> {
        let Some(key) = key else { return Ok(None) };
        match self.ledger.kept_plan(&key.scope).await? {
            Some(kept) if kept.body_hash != key.body_hash => Err(Refusal::KeyReused),
            kept => Ok(kept.map(|kept| kept.plan)),
        }
    }

    /// Acquires a plan and starts its owner. A caller that stops waiting gives up its turn. A turn that has begun goes on
    /// without it: nobody else would renew the lease. `made` is the plan where it was made here a moment ago, so that nobody can
    /// have owned it before.
    async fn open(self: &Arc<Self>, plan: PlanId, made: Option<Made>) -> Result<(), Refusal> {
        let turn = self.taking.turn(&Resource::plan(plan)).await;
        let this = Arc::clone(self);
        let acquiring = async move {
            let _turn = turn;
            this.acquire(plan, made).await
        };
        uncut(acquiring).await
    }

    async fn acquire(self: &Arc<Self>, plan: PlanId, made: Option<Made>) -> Result<(), Refusal> {
        match self.directory.find(&plan) {
            Found::Served(_) => return Ok(()),
            Found::Ending => return Err(Refusal::NoOwner),
            Found::None => {}
        }
        if !self.jobs.is_serving() {
            return Err(Refusal::Fenced);
        }
        if made.is_none() {
            // No lease is made for what there is not.
            let known = self.ledger.plan(plan).await?;
            known.ok_or(Refusal::UnknownPlan)?;
        }
        let lane = match self.jobs.plan_lane(plan).await? {
            Adoption::Taken(lane) => lane,
            Adoption::Held(owner) => return Err(Refusal::NotOwner { owner }),
            Adoption::Missed => return Err(Refusal::NoOwner),
        };
        // Under a higher token somebody else has owned it since it was made.
        let is_first = lane.token() == Token::FIRST;
        let (made, share) = match made {
            Some((plan, clock, share)) => (is_first.then_some((plan, clock)), Some(share)),
            None => (None, None),
        };
        self.start_actor(Opening { plan, lane, made, share, is_first });
        Ok(())
    }

    fn start_actor(self: &Arc<Self>, opening: Opening) {
        let handle = PlanActor::start(self, opening);
        // One that was opened while this incarnation came to its end has not been told so.
        if !self.jobs.is_serving() {
            handle.send(Message::Stop);
        }
    }
}
