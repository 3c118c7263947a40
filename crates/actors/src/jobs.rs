//! Jobs: the handle to the lanes, and to the sockets of nodes.
//!
//! The path of a job: handle (here) → its [`lane`]'s owner → a slot from the [`scheduler`] → commit in
//! `ledger` → the [`node_gateway`] of the node's socket, here or, by way of an inbox ([`inter_instance`],
//! [`incoming`]), on another instance. The path of its result: the node's frame → [`results`] → commit →
//! `committed` to the node, and a report to the lane's owner, through an inbox if the owner is another
//! instance. Notices for callers that wait or watch may be lost; the ledger has what was committed.

mod adoption;
mod attempt_writer;
mod delivery;
mod finish_notices;
#[cfg(test)]
mod fixture;
mod follow;
mod incoming;
mod instance_message;
mod inter_instance;
mod keeper;
mod lane;
mod lane_owners;
mod late_results;
mod lease;
pub mod limits;
mod live_job;
mod local_attempts;
mod messages;
mod node_gateway;
mod orphaned_attempts;
mod own_lanes;
mod plan_lane;
mod pools;
mod progress;
mod progress_store;
mod queue;
mod rates;
mod refusal;
mod report_queue;
mod results;
mod scheduler;
mod sessions;
mod statistics;
mod upkeep;
mod waiters;
mod watches;

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::Slot;
use cluster::{ClusterView, FailureDetector, InstanceLease};
use domain::job::{Assignment, Attempt, Revoked, State};
use domain::lane::JobNotice;
use domain::{InstanceId, JobId, LaneId, NodeId, PlanId, PoolName};
use ledger::JobRecord;
use nodes::connection::Progress;
use nodes::{Ended, Registry};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, broadcast, mpsc, oneshot, watch};
use uuid::Uuid;

use crate::arbiters::Arbiters;
use crate::directory::Undelivered;
use crate::pause::jittered;
pub use delivery::Dispatch;
use delivery::Withdrawal;
pub use domain::lane::{Accepted, Submission};
pub use follow::{Following, Step};
use incoming::Incoming;
use inter_instance::InterInstance;
use keeper::LaneKeeper;
use lane::{Ends, LaneHost, LaneServices};
use lane_owners::LeasedLanes;
pub(crate) use lease::Lost;
use lease::{Adopting, OwnLease};
use limits::{LEFT_PLANS_MAX, SUBMISSION_BYTES_MAX, SUBMISSIONS_MAX};
use messages::{Directory, LaneCommand, PendingSubmission, SubmitReply};
use node_gateway::NodeGateway;
pub use node_gateway::{NodeOutbox, ToNode};
use own_lanes::{OwnLanes, WaitingSubmission};
pub(crate) use plan_lane::PlanLane;
use progress::ProgressReporter;
use progress_store::ProgressStore;
use rates::RateCounter;
pub use rates::{JobRate, JobRates};
pub use refusal::Refusal;
use results::ResultWriter;
pub use results::{Answer, Failure, NodeResult};
use scheduler::Scheduler;
pub use sessions::Session;
use statistics::JobCounts;
pub use statistics::{JobStatistics, PoolStatistics};
use waiters::Waiters;
use watches::Watches;
pub use watches::{JobEvent, JobEventKind, Notification, Topic, Watch};

/// How the lanes of an instance work.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// Length of the lease of a lane that is taken from a dead instance.
    pub lease: Duration,
    /// How long a request may take altogether.
    pub request_timeout: Duration,
    /// How long finished jobs are kept.
    pub retention: Duration,
}

/// What the lanes of an instance depend on.
pub struct Dependencies {
    /// The ledger.
    pub ledger: ledger::Handle,
    /// Slots and inboxes.
    pub bus: bus::Handle,
    /// The id of this instance, under which the lanes write.
    pub me: InstanceId,
    /// Whether this instance is alive, and which others are dead.
    pub failure_detector: FailureDetector,
    /// The owners of keys.
    pub cluster_view: ClusterView,
    /// The lease of the instance's own lane.
    pub tenure: InstanceLease,
    /// The registry of nodes.
    pub registry: Registry,
    /// The arbiters on which the owners of lanes run.
    pub arbiters: Arbiters,
}

/// How soon a waiter first reads the ledger, in case a notification was lost; before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest time between two reads of a waiter, which grows while it waits.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(4);
/// The pause between two lookups of a lane's owner, before jitter.
const OWNER_LOOK_EVERY: Duration = Duration::from_millis(200);

/// How long the lanes of an incarnation go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serving,
    Stopping,
    Over,
}

/// The share of one submission in the limits on submissions in flight.
struct Places {
    _job: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
    _waiting: Option<WaitingSubmission>,
}

/// Cheap to clone; all clones reach the same lanes.
#[derive(Clone)]
pub struct Jobs {
    inner: Arc<Inner>,
}

struct Inner {
    ledger: ledger::Handle,
    bus: bus::Handle,
    me: InstanceId,
    failure_detector: FailureDetector,
    cluster_view: ClusterView,
    config: LaneConfig,
    registry: Registry,
    keeper: Arc<LaneKeeper>,
    scheduler: Arc<Scheduler>,
    gateway: Arc<NodeGateway>,
    inter_instance: Arc<InterInstance>,
    incoming: Arc<Incoming>,
    results: Arc<ResultWriter>,
    waiters: Arc<Waiters>,
    watches: Arc<Watches>,
    progress: Arc<ProgressReporter>,
    rates: Arc<RateCounter>,
    counts: JobCounts,
    /// The lanes that are served here.
    lanes: Arc<Directory>,
    own_lanes: OwnLanes,
    /// Plans whose lanes have work and no live owner.
    left_plans: broadcast::Sender<PlanId>,
    phase: watch::Sender<Phase>,
    submissions: Arc<Semaphore>,
    submission_bytes: Arc<Semaphore>,
}

impl Jobs {
    /// Opens the lanes of an instance. Must be called within a Tokio runtime, on which its services run; the owners of
    /// lanes live on the arbiters.
    #[must_use]
    pub fn start(dependencies: Dependencies, config: LaneConfig) -> Self {
        let Dependencies { ledger, bus, me, failure_detector, cluster_view, tenure, registry, arbiters } =
            dependencies;
        let (lanes, is_alone) = (Arc::<Directory>::default(), bus.kind() == bus::Kind::Local);
        let owners = Arc::new(LeasedLanes { ledger: ledger.clone(), cluster_view: cluster_view.clone() });
        let inter_instance =
            InterInstance::start(me.clone(), bus.clone(), is_alone, Arc::clone(&lanes), owners);
        let store = Arc::<ProgressStore>::default();
        let gateway = NodeGateway::new(
            ledger.clone(),
            registry.clone(),
            Arc::clone(&inter_instance),
            Arc::clone(&store),
        );
        let scheduler = Arc::new(Scheduler::new(registry.clone(), bus.clone(), Arc::clone(&gateway)));
        scheduler.start();
        let (deaths, reported) = mpsc::unbounded_channel();
        let services = Arc::new(LaneServices {
            ledger: ledger.clone(),
            bus: bus.clone(),
            me: me.clone(),
            registry: registry.clone(),
            cluster_view: cluster_view.clone(),
            scheduler: Arc::clone(&scheduler),
            directory: Arc::clone(&lanes),
            deaths,
        });
        let waiters = Arc::<Waiters>::default();
        let (watches, told) = Watches::new(is_alone);
        let watches = Arc::new(watches);
        let rates = Arc::new(RateCounter::new());
        let results = Arc::new(ResultWriter {
            ledger: ledger.clone(),
            gateway: Arc::clone(&gateway),
            lanes: Arc::clone(&lanes),
            waiters: Arc::clone(&waiters),
            watches: Arc::clone(&watches),
            late: Arc::default(),
            rates: Arc::clone(&rates),
        });
        let progress = Arc::new(ProgressReporter {
            me: me.clone(),
            ledger: ledger.clone(),
            registry: registry.clone(),
            store,
            gateway: Arc::clone(&gateway),
            watches: Arc::clone(&watches),
        });
        progress.start();
        let reporter = Arc::downgrade(&progress);
        let known_progress = Box::new(move |job| reporter.upgrade()?.event(job));
        watches::start(&watches, &bus, &me, told, known_progress);
        let incoming = Arc::new(Incoming {
            bus: bus.clone(),
            gateway: Arc::clone(&gateway),
            inter_instance: Arc::clone(&inter_instance),
            waiters: Arc::clone(&waiters),
            watches: Arc::clone(&watches),
        });
        attempt_writer::start(ledger.clone(), &gateway, &watches);
        orphaned_attempts::start(&gateway, ledger.clone(), registry.timeouts().stranded);
        let adopting = Adopting::new(me.clone(), config.lease, ledger.clone(), failure_detector.clone());
        let (phase, phase_now) = watch::channel(Phase::Serving);
        let own_token = tenure.token();
        let keeper = Arc::new(LaneKeeper {
            arbiters,
            services,
            directory: Arc::clone(&lanes),
            adopting,
            own: Arc::new(OwnLease::new(tenure, failure_detector.clone())),
            phase: phase_now,
            taking: std::array::from_fn(|_| Mutex::default()),
        });
        let own_lanes = OwnLanes::new(keeper.own_lanes());
        let inner = Arc::new(Inner {
            ledger,
            bus,
            me,
            failure_detector,
            cluster_view,
            config,
            registry,
            keeper,
            scheduler,
            gateway,
            inter_instance,
            incoming,
            results,
            waiters,
            watches,
            progress,
            rates,
            counts: JobCounts::default(),
            lanes,
            own_lanes,
            left_plans: broadcast::Sender::new(LEFT_PLANS_MAX),
            phase,
            submissions: Arc::new(Semaphore::new(SUBMISSIONS_MAX)),
            submission_bytes: Arc::new(Semaphore::new(SUBMISSION_BYTES_MAX)),
        });
        inner.incoming.start();
        let this = Arc::downgrade(&inner);
        let host = move || this.upgrade().map(|inner| inner.host());
        tokio::spawn(Arc::clone(&inner.keeper).bury_all(host, reported));
        inner.watch_departures();
        if let Some(token) = own_token {
            inner.own_lanes.ids().for_each(|lane| inner.keeper.open_own(inner.host(), lane.clone(), token));
        }
        adoption::start(&inner);
        pools::follow(&inner);
        upkeep::start(&inner);
        statistics::start(&inner);
        Self { inner }
    }

    /// Accepts jobs, each on its own; an answer for each, in their order.
    pub async fn submit(&self, submissions: Vec<Submission>) -> Vec<Result<Accepted, Refusal>> {
        let deadline = Instant::now() + self.inner.config.request_timeout;
        let (lane, waiting) = self.inner.own_lanes.choose(submissions.len());
        self.inner.submit_to(lane, submissions.into_iter().zip(waiting.into_iter().map(Some)), deadline).await
    }

    /// One job, as the ledger has it.
    ///
    /// # Errors
    /// [`Refusal::UnknownJob`], and the ledger's refusals.
    pub async fn get(&self, id: JobId) -> Result<JobRecord, Refusal> {
        let found = self.inner.ledger.job(id).await.map_err(|error| refusal::of_ledger(&error))?;
        found.ok_or(Refusal::UnknownJob)
    }

    /// One job, when it is finished or that time is up, whichever comes first.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn wait(&self, id: JobId, at_most: Duration) -> Result<JobRecord, Refusal> {
        let until = Instant::now() + at_most;
        let waiter = self.inner.waiters.wait_for(id);
        let mut look_every = LOOK_EVERY;
        loop {
            let mut finished = pin!(waiter.finished());
            // Registered before the look, so that an end in between is not missed.
            finished.as_mut().enable();
            let job = self.get(id).await?;
            let left = until.saturating_duration_since(Instant::now());
            if job.state == State::Finished || left.is_zero() {
                return Ok(job);
            }
            let look_again = tokio::time::sleep(jittered(look_every).min(left));
            look_every = (look_every * 2).min(LOOK_EVERY_MAX);
            tokio::select! {
                () = finished => {}
                () = look_again => {}
            }
        }
    }

    /// Cancels a job in any state, and returns it as it is then. A cancelled or finished job stays as it is.
    ///
    /// # Errors
    /// [`Refusal::NotOwner`] where its lane is served by another instance.
    pub async fn cancel(&self, id: JobId) -> Result<JobRecord, Refusal> {
        let inner = &self.inner;
        let deadline = Instant::now() + inner.config.request_timeout;
        loop {
            let job = self.get(id).await?;
            if job.state == State::Finished {
                return Ok(job);
            }
            let (reply, answer) = oneshot::channel();
            let sent =
                inner.lanes.try_send(&job.lane, LaneCommand::Cancel(id, job.spec.needs.pool.clone(), reply));
            if let Err(undelivered) = sent {
                if undelivered.is_full {
                    return Err(Refusal::Overloaded);
                }
                match inner.owner_of(&job.lane).await? {
                    Some(owner) if owner != inner.me => return Err(Refusal::NotOwner { owner }),
                    // It is about to be adopted.
                    _ if Instant::now() + OWNER_LOOK_EVERY * 2 < deadline => {
                        tokio::time::sleep(jittered(OWNER_LOOK_EVERY)).await;
                        continue;
                    }
                    _ => return Err(Refusal::NoOwner { lane: job.lane }),
                }
            }
            match tokio::time::timeout_at(deadline.into(), answer).await {
                Ok(Ok(Ok(()))) => {}
                Ok(Ok(Err(refusal))) => return Err(refusal),
                Ok(Err(_)) => return Err(inner.owner_died()),
                Err(_) => return Err(Refusal::LedgerUnavailable),
            }
        }
    }

    /// Attaches a node's connection, which said `hello` at `since`, to this instance. Returns the queue of
    /// requests for the node.
    #[must_use]
    pub fn attach(&self, node: &NodeId, since: Instant) -> NodeOutbox {
        self.inner.gateway.attach(node, since)
    }

    /// The id under which the lanes write.
    #[must_use]
    pub fn me(&self) -> &InstanceId {
        &self.inner.me
    }

    /// Whether a socket of the node is held here.
    #[must_use]
    pub fn is_attached(&self, node: &NodeId) -> bool {
        self.inner.gateway.is_attached(node)
    }

    /// Drains a node that is connected here, or ends its drain. `false` if it is not connected here.
    pub fn drain(&self, node: &NodeId, is_drained: bool) -> bool {
        self.inner.gateway.drain(node, is_drained)
    }

    /// The unfinished attempts of a node that has connected here: those that it has or may still get on this
    /// connection. The lanes learn of the other unfinished attempts that the ledger has for the node.
    ///
    /// # Errors
    /// What the ledger says.
    pub async fn attempts_on(&self, node: &NodeId, listed: &[Slot]) -> ledger::Result<Vec<Slot>> {
        self.inner.gateway.attempts_on(node, listed).await
    }

    /// Stores the progress of an attempt, as reported by its node, which is connected here.
    pub fn progressed(&self, node: &NodeId, job: JobId, attempt: Attempt, progress: Progress) {
        self.inner.progress.progressed(node, job, attempt, progress);
    }

    /// The progress of a job's newest attempt, if its node reported one lately and the instance that holds
    /// the node's socket answers quickly.
    pub async fn progress(&self, job: &JobRecord) -> Option<Progress> {
        self.inner.progress.of(job).await
    }

    /// An attempt's slot is free.
    pub fn slot_freed(&self, job: JobId, attempt: Attempt) {
        self.inner.gateway.attempts().slot_freed(job, attempt);
    }

    /// A node has acknowledged an attempt.
    pub fn acknowledged(&self, node: &NodeId, job: JobId, attempt: Attempt) {
        self.inner.gateway.acknowledged(node, job, attempt);
    }

    /// The socket was closed after an attempt was sent and before the node answered: the attempt may have
    /// crashed the node.
    pub fn cut_off(&self, job: JobId, attempt: Attempt) {
        self.inner.gateway.cut_off(job, attempt);
    }

    /// Whether a node that is connected here still has the attempt, or is about to get it.
    #[must_use]
    pub fn is_expected(&self, job: JobId, attempt: Attempt) -> bool {
        self.inner.gateway.attempts().is_expected(job, attempt)
    }

    /// A node rejected an attempt, or the attempt could not be sent to it.
    pub fn came_to_nothing(&self, job: JobId, attempt: Attempt, why: Revoked, reason: &str) {
        self.inner.gateway.came_to_nothing(job, attempt, why, reason);
    }

    /// Records the results of attempts, and returns when their outcome is known, however long that takes. If
    /// slots may be passed on, an answer may contain an attempt that the same commit dispatched: it takes the
    /// slot of the finished one, and fails if it is not sent.
    pub async fn results(
        &self,
        node: &NodeId,
        results: Vec<NodeResult>,
        may_pass: bool,
    ) -> Vec<(Answer, Option<Box<Dispatch>>)> {
        self.inner.results.write(node, results, may_pass).await
    }

    /// Whether the owner of the job's lane writes a result, in its next batch. Its outcome does not depend on
    /// other results then.
    #[must_use]
    pub fn is_the_owners(&self, result: &NodeResult) -> bool {
        self.inner.results.writer_of(result).is_some()
    }

    /// How many jobs wait for a slot here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.inner.scheduler.waiting()
    }

    /// Subscribes to a topic, and announces that to the other instances.
    ///
    /// # Errors
    /// [`Refusal::TooManyWatched`].
    pub fn watch(&self, topic: Topic) -> Result<Watch, Refusal> {
        self.inner.watches.watch(topic).ok_or(Refusal::TooManyWatched)
    }

    /// Finishes the commits under way, and releases the lanes. Unfinished jobs stay in the ledger, for other
    /// instances. Stop accepting submissions before you call this.
    pub async fn stop(&self) {
        self.end(Phase::Stopping).await;
    }

    /// Returns when the lanes are released, or have ended.
    pub async fn until_over(&self) {
        let mut phase = self.inner.phase.subscribe();
        // The sender lives as long as this.
        let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
    }

    /// Ends all work under way, because other instances may own this incarnation's lanes by now.
    pub async fn abandon(&self) {
        self.end(Phase::Over).await;
    }

    async fn end(&self, phase: Phase) {
        let inner = &self.inner;
        inner.phase.send_modify(|now| *now = phase.max(*now));
        inner.lanes.until_empty(|| LaneCommand::Stop).await;
    }
}

impl Inner {
    fn is_serving(&self) -> bool {
        *self.phase.borrow() == Phase::Serving
    }

    fn is_over(&self) -> bool {
        *self.phase.borrow() == Phase::Over
    }

    fn serves(&self, lane: &LaneId) -> bool {
        self.lanes.contains_key(lane)
    }

    fn places(&self, submission: &Submission, waiting: Option<WaitingSubmission>) -> Option<Places> {
        let bytes = u32::try_from(submission.spec.text_bytes()).ok()?;
        let job = Arc::clone(&self.submissions).try_acquire_owned().ok()?;
        let bytes = Arc::clone(&self.submission_bytes).try_acquire_many_owned(bytes).ok()?;
        Some(Places { _job: job, _bytes: bytes, _waiting: waiting })
    }

    /// The refusal for a caller whose answer was lost: its lane's owner panicked, or the incarnation has
    /// ended.
    fn owner_died(&self) -> Refusal {
        if self.is_serving() { Refusal::Internal } else { Refusal::Fenced }
    }

    /// Has a lane's owner accept jobs; an answer for each, in their order.
    async fn submit_to(
        &self,
        lane: &LaneId,
        submissions: impl ExactSizeIterator<Item = (Submission, Option<WaitingSubmission>)>,
        deadline: Instant,
    ) -> Vec<Result<Accepted, Refusal>> {
        let mut pending = Vec::with_capacity(submissions.len());
        let mut answers = Vec::with_capacity(submissions.len());
        for (submission, waiting) in submissions {
            let Some(places) = self.places(&submission, waiting) else {
                answers.push(Err(Refusal::Overloaded));
                continue;
            };
            let (reply, answer) = oneshot::channel();
            let reply = SubmitReply { reply, _places: places };
            let id = JobId::from_u128(Uuid::now_v7().as_u128());
            pending.push(PendingSubmission { id, submission, deadline, reply });
            answers.push(Ok(answer));
        }
        if !pending.is_empty()
            && let Err(Undelivered { command, is_full }) =
                self.lanes.try_send(lane, LaneCommand::Submit(pending))
            && let LaneCommand::Submit(pending) = *command
        {
            let refusal = if is_full { Refusal::Overloaded } else { Refusal::Fenced };
            pending.into_iter().for_each(|one| one.reply.send(Err(refusal.clone())));
        }
        let mut answered = Vec::with_capacity(answers.len());
        for answer in answers {
            answered.push(match answer {
                Ok(answer) => match tokio::time::timeout_at(deadline.into(), answer).await {
                    Ok(answer) => answer.unwrap_or_else(|_| Err(self.owner_died())),
                    Err(_) => Err(Refusal::LedgerUnavailable),
                },
                Err(refusal) => Err(refusal),
            });
        }
        answered
    }

    async fn owner_of(&self, lane: &LaneId) -> Result<Option<InstanceId>, Refusal> {
        let lease = self.ledger.lease(lane.lease()).await.map_err(|error| refusal::of_ledger(&error))?;
        Ok(lease.filter(ledger::Lease::is_live).and_then(|lease| lease.owner))
    }

    /// A job is in the ledger.
    fn count_accepted(&self, pool: Option<&PoolName>) {
        count_change(State::Created, "");
        self.rates.accepted(pool);
    }

    /// What the owners of lanes reach of this instance.
    fn host(self: &Arc<Self>) -> Arc<dyn LaneHost> {
        Arc::new(Host(Arc::clone(self)))
    }

    /// Serves a lane from now on, if it can be acquired; otherwise returns its owner, if that is known.
    async fn adopt(self: &Arc<Self>, lane: &LaneId) -> ledger::Result<Result<(), Option<InstanceId>>> {
        self.keeper.adopt(self.host(), lane).await
    }

    /// Makes the lanes check the attempts of a lost node at once.
    fn watch_departures(self: &Arc<Self>) {
        let mut departures = self.registry.departures();
        let inner = Arc::downgrade(self);
        tokio::spawn(async move {
            use tokio::sync::broadcast::error::RecvError;
            loop {
                match departures.recv().await {
                    Ok(departure) => {
                        let Some(inner) = inner.upgrade() else { return };
                        // One that has connected anew says itself what it still has.
                        if departure.how != Ended::Replaced {
                            inner.lanes.send_to_all(|| LaneCommand::NodeDeparted(departure.node.clone()));
                        }
                    }
                    // What was missed is found by the look at attempts that are under way for long.
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return,
                }
            }
        });
    }
}

/// Counts a change of a job's state for the metrics.
fn count_change(state: State, outcome: &'static str) {
    metrics::counter!("fencepost_jobs_total", "state" => state.as_str(), "outcome" => outcome).increment(1);
}

/// What the owners of lanes reach of the instance.
struct Host(Arc<Inner>);

impl LaneHost for Host {
    fn is_over(&self) -> bool {
        self.0.is_over()
    }

    fn dispatch(&self, dispatch: Dispatch) {
        self.0.gateway.deliver(dispatch);
    }

    fn withdraw(&self, withdrawal: Withdrawal) {
        self.0.gateway.withdraw(withdrawal);
    }

    fn results_written(&self, ends: Ends) {
        self.0.results.answer(ends);
    }

    fn notify(&self, lane: &LaneId, notice: JobNotice) {
        let inner = &self.0;
        let seen = |job: JobId, attempt: Attempt, placed: Option<Assignment>, kind: JobEventKind| {
            let node = placed.map(|placed| placed.node);
            inner.watches.tell(|| JobEvent { job, attempt, lane: Some(lane.clone()), node, kind });
        };
        match notice {
            JobNotice::Created(job, pool) => {
                inner.count_accepted(pool.as_ref());
                seen(job, Attempt::NONE, None, JobEventKind::Changed(State::Created, None));
            }
            JobNotice::Dispatched(job, attempt, placed) => {
                count_change(State::Dispatched, "");
                seen(job, attempt, Some(placed), JobEventKind::Changed(State::Dispatched, None));
            }
            JobNotice::Requeued(job, attempt, placed, why) => {
                metrics::counter!("fencepost_dispatch_revoked_total", "reason" => why.as_str()).increment(1);
                seen(job, attempt, Some(placed), JobEventKind::Changed(State::Created, None));
            }
            JobNotice::Ended(job, pool, attempt, placed, outcome) => {
                count_change(State::Finished, outcome.as_str());
                inner.rates.finished(pool.as_ref(), outcome);
                inner.inter_instance.finished(lane, job, attempt);
                inner.waiters.finished(job);
                seen(job, attempt, placed, JobEventKind::Changed(State::Finished, Some(outcome)));
            }
            JobNotice::Completed(job, pool, attempt, node) => {
                inner.results.written_by_owner(job, pool.as_ref(), attempt, &node, lane);
            }
        }
    }
}
