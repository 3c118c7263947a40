//! Jobs: the handle to the lanes, and to the sockets of nodes.
//!
//! What callers ask for is in [`callers`] and [`sessions`], what the sockets of nodes ask for in [`sockets`], what the owners of
//! lanes report in [`host`]. [`keeper`] opens lanes, [`adoption`] finds those without an owner, [`upkeep`] purges.
//!
//! The path of a job: [`submissions`] → its [`lane`]'s owner → a slot from the [`scheduler`] → commit in
//! `ledger` → the [`node_gateway`] of the node's socket, here or, by way of an inbox ([`inter_instance`],
//! [`incoming`]), on another instance. The path of its result: the node's frame → [`results`] → commit →
//! `committed` to the node, and a report to the lane's owner, through an inbox if the owner is another
//! instance. Notices for callers that wait or watch may be lost; the ledger has what was committed.

mod adoption;
mod attempt_writer;
mod callers;
mod delivery;
mod finish_notices;
#[cfg(test)]
mod fixture;
mod follow;
mod host;
mod incoming;
mod instance_message;
mod inter_instance;
mod job_metrics;
mod keeper;
mod kinds;
mod lane;
mod lane_owners;
mod late_results;
mod lease;
mod lifetime;
pub mod limits;
mod live_job;
mod local_attempts;
mod messages;
mod node_gateway;
mod older_attempts;
mod orphaned_attempts;
mod own_lanes;
mod passing_on;
mod plan_lane;
mod pools;
mod progress;
mod progress_store;
mod queue;
mod rates;
mod refusal;
mod report_queue;
mod results;
mod revocations;
mod scheduler;
mod sessions;
mod sockets;
mod state_reads;
mod statistics;
mod submission_limits;
mod submissions;
mod tallies;
mod transfers;
mod upkeep;
mod waiters;
mod waiting;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use cluster::{ClusterView, FailureDetector, InstanceLease, Reach};
use domain::lane::WaitingBytes;
use domain::lane::limits::WAITING_BYTES_MAX;
use domain::{InstanceId, JobId, PlanId};
use nodes::Registry;
use tokio::sync::{Semaphore, broadcast, mpsc, watch};

use crate::arbiters::Arbiters;
use crate::database_clock::SharedClock;
use crate::job_ids::JobIds;
use crate::row_locks::RowLocks;
use adoption::Adopter;
use callers::Callers;
pub use delivery::Dispatch;
pub use domain::lane::{Accepted, Submission};
pub use follow::{Following, Step};
use host::InstanceHost;
use incoming::{Incoming, ReadEntries};
use inter_instance::InterInstance;
use keeper::LaneKeeper;
use lane::LaneServices;
use lane_owners::LeasedLanes;
use lease::{Adopting, OwnLease};
pub(crate) use lease::{Adoption, Lost};
use lifetime::{Lifetime, Phase};
use limits::{LEFT_PLANS_MAX, OPENED_AT_ONCE};
use messages::{Directory, LaneCommand};
use node_gateway::NodeGateway;
pub use node_gateway::{Departing, HolderNote, NodeOutbox, OpenSocket, ToNode};
use own_lanes::OwnLanes;
use passing_on::PassingOn;
pub(crate) use plan_lane::PlanLane;
use progress::ProgressReporter;
use progress_store::ProgressStore;
use rates::RateCounter;
pub use rates::{HISTORY_STEP, JobCount, JobHistory, JobRate, JobRates};
pub use refusal::Refusal;
use results::ResultWriter;
pub use results::{Answer, Failure, NodeResult};
use scheduler::Scheduler;
pub use sessions::{Session, SessionMade};
use sockets::Sockets;
use state_reads::StateReads;
use statistics::Statistics;
pub use statistics::{JobStatistics, PoolStatistics};
pub use submission_limits::TokenSubmissions;
use submissions::Submissions;
pub use tallies::{EventNumbers, Tally};
use transfers::Transfers;
use upkeep::Upkeep;
pub(crate) use waiters::Waiter;
use waiters::Waiters;
pub use waiting::{WaitingFor, WaitingReason};
use watches::Watches;
pub use watches::{JobEvent, JobEventKind, Notification, Topic, Watch};

/// How the lanes of an instance work.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// Length of the lease of a session, of a plan, and of the lanes that are taken from a dead instance.
    pub lease: Duration,
    /// How long a request may take altogether.
    pub request_timeout: Duration,
    /// How long finished jobs are kept.
    pub retention: Duration,
    /// Between two purges, before jitter: [`limits::PURGE_EVERY`].
    pub purge_every: Duration,
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
    /// The lease of the instance's own lanes.
    pub instance_lease: InstanceLease,
    /// The registry of nodes.
    pub registry: Registry,
    /// The arbiters on which the owners of lanes run.
    pub arbiters: Arbiters,
    /// What this process has seen of the database's clock.
    pub clock: SharedClock,
}

/// Cheap to clone; all clones reach the same lanes.
#[derive(Clone)]
pub struct Jobs {
    callers: Arc<Callers>,
    sockets: Arc<Sockets>,
    watches: Arc<Watches>,
    scheduler: Arc<Scheduler>,
    keeper: Arc<LaneKeeper>,
    statistics: Arc<Statistics>,
    /// Plans whose lanes have work and no live owner.
    left_plans: broadcast::Sender<PlanId>,
    phase: Arc<watch::Sender<Phase>>,
    /// By which jobs are due.
    clock: SharedClock,
    /// It reads this instance's inbox as long as a handle to the jobs exists.
    _incoming: Arc<Incoming>,
}

impl Jobs {
    /// Opens the lanes of an instance. Must be called within a Tokio runtime, on which its services run; the owners of
    /// lanes live on the arbiters.
    #[must_use]
    pub fn start(dependencies: Dependencies, config: LaneConfig) -> Self {
        let Dependencies {
            ledger,
            bus,
            me,
            failure_detector,
            cluster_view,
            instance_lease,
            registry,
            arbiters,
            clock,
        } = dependencies;
        let (phase, phase_now) = watch::channel(Phase::Serving);
        let lifetime = Lifetime::new(phase_now, failure_detector.clone());
        // Before anything is placed.
        pools::start(ledger.clone(), bus.clone(), registry.clone(), lifetime.clone());
        let (directory, is_alone) = (Arc::<Directory>::default(), bus.kind() == bus::Kind::Local);
        let owners = Arc::new(LeasedLanes {
            me: me.clone(),
            ledger: ledger.clone(),
            cluster_view: cluster_view.clone(),
        });
        let inter_instance =
            InterInstance::start(me.clone(), bus.clone(), is_alone, Arc::clone(&directory), owners);
        let store = Arc::<ProgressStore>::default();
        let gateway = NodeGateway::new(
            ledger.clone(),
            registry.clone(),
            Arc::clone(&inter_instance),
            Arc::clone(&store),
        );
        let reach = Reach::new(bus.clone(), failure_detector.clone(), cluster_view.clone());
        let scheduler =
            Arc::new(Scheduler::new(registry.clone(), bus.clone(), Arc::clone(&gateway), reach.clone()));
        scheduler.start(arbiters.common());
        let waiters = Arc::<Waiters>::default();
        let (watches, outgoing) = Watches::new(is_alone);
        let watches = Arc::new(watches);
        let rates = Arc::new(RateCounter::new());
        let results = Arc::new(ResultWriter {
            ledger: ledger.clone(),
            gateway: Arc::clone(&gateway),
            inter_instance: Arc::clone(&inter_instance),
            lanes: Arc::clone(&directory),
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
        let known_progress = Box::new(move |job| reporter.upgrade()?.event_for_others(job));
        watches::start(&watches, &bus, &me, outgoing, known_progress);
        tallies::start(watches.tallies(), &bus, &me);
        attempt_writer::start(ledger.clone(), &gateway, &watches, registry.timeouts().ack);
        orphaned_attempts::start(&gateway, ledger.clone(), registry.timeouts().stranded);
        let own_token = instance_lease.token();
        let host = InstanceHost {
            lifetime: lifetime.clone(),
            gateway: Arc::clone(&gateway),
            inter_instance: Arc::clone(&inter_instance),
            results: Arc::clone(&results),
            waiters: Arc::clone(&waiters),
            watches: Arc::clone(&watches),
            rates: Arc::clone(&rates),
        };
        let (deaths, reported) = mpsc::unbounded_channel();
        let services = Arc::new(LaneServices {
            ledger: ledger.clone(),
            bus: bus.clone(),
            me: me.clone(),
            registry: registry.clone(),
            cluster_view: cluster_view.clone(),
            reach,
            scheduler: Arc::clone(&scheduler),
            directory: Arc::clone(&directory),
            host,
            passing_on: PassingOn::default(),
            waiting: WaitingBytes::new(WAITING_BYTES_MAX),
            clock: clock.clone(),
            deaths,
        });
        let keeper = Arc::new(LaneKeeper {
            arbiters,
            services,
            adopting: Adopting::new(
                me,
                config.lease,
                ledger.clone(),
                failure_detector.clone(),
                clock.clone(),
            ),
            own: Arc::new(OwnLease::new(instance_lease, failure_detector.clone())),
            lifetime: lifetime.clone(),
            taking: RowLocks::default(),
        });
        let incoming = Arc::new(Incoming {
            bus: bus.clone(),
            gateway: Arc::clone(&gateway),
            inter_instance,
            waiters: Arc::clone(&waiters),
            watches: Arc::clone(&watches),
            keeper: Arc::clone(&keeper),
            opening: Arc::new(Semaphore::new(OPENED_AT_ONCE)),
            read: ReadEntries::default(),
        });
        incoming.start();
        keeper.watch_deaths(reported);
        keeper.watch_departures(&registry);
        let own_lanes = OwnLanes::new(keeper.own_lanes());
        if let Some(token) = own_token {
            own_lanes.ids().for_each(|lane| keeper.open_own(lane.clone(), token));
        }
        let left_plans = broadcast::Sender::new(LEFT_PLANS_MAX);
        let adopter = Adopter {
            ledger: ledger.clone(),
            bus: bus.clone(),
            cluster_view,
            failure_detector,
            keeper: Arc::clone(&keeper),
            incoming: Arc::clone(&incoming),
            left_plans: left_plans.clone(),
            lifetime: lifetime.clone(),
        };
        adopter.start();
        if ledger.kind() == ledger::Kind::Postgres {
            let transfers = Transfers {
                ledger: ledger.clone(),
                registry: registry.clone(),
                keeper: Arc::clone(&keeper),
                lifetime: lifetime.clone(),
            };
            transfers.start();
        }
        let upkeep = Upkeep {
            ledger: ledger.clone(),
            bus,
            scheduler: Arc::clone(&scheduler),
            keeper: Arc::clone(&keeper),
            retention: config.retention,
            purge_every: config.purge_every,
            clock: clock.clone(),
            lifetime: lifetime.clone(),
        };
        upkeep.start();
        let statistics = Statistics::start(ledger.clone(), registry.clone(), rates, lifetime.clone());
        // SQLite has one writer.
        let overlapping = (ledger.kind() == ledger::Kind::Postgres).then(|| registry.clone());
        let ids = JobIds::new(clock.clone());
        let callers = Callers {
            has_sessions: ledger.kind() == ledger::Kind::Sqlite || !is_alone,
            states: StateReads::start(ledger.clone()),
            ledger,
            keeper: Arc::clone(&keeper),
            submissions: Submissions::new(directory, own_lanes, overlapping, ids, lifetime.clone()),
            waiters,
            lifetime,
            request_timeout: config.request_timeout,
        };
        Self {
            callers: Arc::new(callers),
            sockets: Arc::new(Sockets { gateway, progress, results }),
            watches,
            scheduler,
            keeper,
            statistics,
            left_plans,
            phase: Arc::new(phase),
            clock,
            _incoming: incoming,
        }
    }

    /// The id under which the lanes write.
    #[must_use]
    pub fn me(&self) -> &InstanceId {
        self.keeper.me()
    }

    /// An id for a new job, that was never used. The ids of plans, tasks and bulk operations are made of its bits: the instances
    /// list them by their age.
    #[must_use]
    pub fn new_id(&self) -> JobId {
        self.callers.submissions.new_id()
    }

    /// How many jobs wait for a slot here.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.scheduler.waiting()
    }

    /// Subscribes to a topic, and announces that to the other instances.
    ///
    /// # Errors
    /// [`Refusal::TooManyWatched`].
    pub fn watch(&self, topic: Topic) -> Result<Watch, Refusal> {
        self.watches.watch(topic).ok_or(Refusal::TooManyWatched)
    }

    /// Counts the events of all jobs from now on, those of other instances within a second.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.watches.tallies().open()
    }

    /// From now on no lane is opened here, of a session, a plan or another instance. Requests for those that are not served
    /// here are refused as [`Refusal::Fenced`]. Returns when what the nodes here have acknowledged is written, unless the ledger
    /// is away: the plans release their lanes next.
    pub async fn wind_down(&self) {
        self.enter(Phase::Leaving);
        self.write_acknowledged().await;
    }

    /// Finishes the commits under way in all lanes but the instance's own, and releases them: other instances go on with
    /// them, and find written by then what the nodes here have acknowledged, unless the ledger is away. The own lanes, which
    /// nobody takes over before the instance has left, take commands still. Call [`Self::wind_down`] before, and stop the plans
    /// in between.
    pub async fn release_others(&self) {
        self.write_acknowledged().await;
        let keeper = &self.keeper;
        keeper.directory().until_none(|lane| !keeper.is_own(lane), || LaneCommand::Stop).await;
    }

    /// Finishes the commits under way, and releases the lanes. Unfinished jobs stay in the ledger, for other instances. Stop
    /// accepting submissions, and call [`Self::release_others`], before you call this.
    pub async fn stop(&self) {
        self.end(Phase::Stopping).await;
        // Nobody takes the own lanes over before the instance has left, and until now they have sent attempts.
        self.write_acknowledged().await;
    }

    /// Returns when the lanes are released, or have ended.
    pub async fn until_over(&self) {
        let mut phase = self.phase.subscribe();
        // The sender lives as long as this.
        let _ = phase.wait_for(|phase| *phase >= Phase::Stopping).await;
    }

    /// Ends all work under way, because other instances may own this incarnation's lanes by now.
    pub async fn abandon(&self) {
        self.end(Phase::Over).await;
    }

    /// Begins what [`Self::abandon`] does, and does not wait for it. What has not ended by then ends with its arbiter.
    pub fn end_at_once(&self) {
        self.enter(Phase::Over);
        self.keeper.directory().send_to_all(|| LaneCommand::Stop);
    }

    /// Has written what the nodes here have acknowledged, before other owners read the lanes.
    async fn write_acknowledged(&self) {
        let (ledger, gateway) = (&self.keeper.services.ledger, &self.sockets.gateway);
        attempt_writer::write_acknowledged(ledger, gateway, &self.watches).await;
    }

    async fn end(&self, phase: Phase) {
        self.enter(phase);
        self.keeper.directory().until_empty(|| LaneCommand::Stop).await;
    }

    /// Never back to an earlier one.
    fn enter(&self, phase: Phase) {
        self.phase.send_modify(|now| *now = phase.max(*now));
    }
}
