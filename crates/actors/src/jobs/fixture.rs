//! What tests of jobs share: names, owners of lanes that a test names, and a ledger of their own.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use actix::{Actor, Context, Handler};
use bus::Slot;
use cluster::{ClusterView, FailureDetector, Identity, Reach};
use domain::job::{Assignment, Attempt, Backoff, Change, Class, Due, NewJob, Spec};
use domain::{InstanceId, JobId, LaneId, Mode, NodeId, NodeTimeouts};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use ledger::{Acquisition, JobBatch, JobVerdict, JobWrite, JobsVerdict};
use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::sync::mpsc::UnboundedReceiver;

use super::delivery::{Dispatch, RetryPolicy};
use super::inter_instance::InterInstance;
use super::lane_owners::LaneOwners;
use super::limits::LANE_MAILBOX_MESSAGES_MAX;
use super::messages::{AttemptEvent, Directory, LaneCommand, LaneHandle};
use super::node_gateway::NodeGateway;
use super::progress_store::ProgressStore;
use crate::arbiters::Arbiters;
use crate::mailbox::Deliver;

pub(super) const FIRST: Attempt = Attempt::new(1);

pub(super) fn instance(name: &str) -> InstanceId {
    InstanceId::parse(name).unwrap()
}

pub(super) fn lane(name: &str) -> LaneId {
    LaneId::parse(name).unwrap()
}

pub(super) fn node(name: &str) -> NodeId {
    NodeId::parse(name).unwrap()
}

/// The first record of a node with one slot, of which so many are used.
pub(super) fn node_record(of: &str, holder: &str, epoch: bus::Epoch, used: u32) -> nodes::Record {
    nodes::Record {
        stamp: nodes::Stamp { epoch, version: bus::Version::new(1) },
        profile: Arc::new(nodes::Profile::new(node(of), instance(holder), 2_000)),
        status: nodes::Status { capacity: 1, used, is_complete: true, state: bus::NodeState::Accepting },
        load: nodes::Load::default(),
    }
}

pub(super) fn job(number: u128) -> JobId {
    JobId::from_u128(number)
}

/// The first attempt of a job.
pub(super) fn slot(number: u128) -> Slot {
    Slot { job: job(number), attempt: FIRST }
}

/// Of an instance that is alone with its ledger.
pub(super) fn reach(bus: &bus::Handle) -> Reach {
    reach_in(bus, view())
}

/// The same, of one that sees the others so.
pub(super) fn reach_in(bus: &bus::Handle, view: ClusterView) -> Reach {
    Reach::new(bus.clone(), FailureDetector::alone(), view)
}

/// What instance `a` sees as long as it knows of no other.
pub(super) fn view() -> ClusterView {
    let identity = Identity { id: instance("a"), url: "http://a".to_owned() };
    ClusterView::alone(&identity, Mode::WorkerQueue)
}

pub(super) fn policy(of: &str) -> RetryPolicy {
    RetryPolicy {
        lane: lane(of),
        owner: None,
        was_read: false,
        class: Class::default(),
        charged_attempts: 0,
        max_attempts: 2,
        backoff: Backoff::default(),
    }
}

/// The first attempt of a job, for a node of an instance.
pub(super) fn dispatch(number: u128, to: &str, holder: &str) -> Dispatch {
    Dispatch {
        job: job(number),
        attempt: FIRST,
        placed: Assignment { node: node(to), holder: instance(holder) },
        node_job: spec().node_job(None, None),
        policy: policy("instance:b"),
    }
}

/// What is asked of a job that needs nothing and may fail once.
pub(super) fn spec() -> Spec {
    Spec { timeout_ms: 60_000, max_attempts: 2, ..Spec::new("1") }
}

/// A lane whose owner keeps what it is sent, for a test to look at.
pub(super) struct ServedLane {
    _arbiters: Arbiters,
    handle: LaneHandle,
    commands: UnboundedReceiver<LaneCommand>,
    taken: u64,
}

impl ServedLane {
    /// The next command that the owner is sent.
    pub(super) async fn recv(&mut self) -> Option<LaneCommand> {
        let command = self.commands.recv().await?;
        self.taken += 1;
        Some(command)
    }

    /// How many commands the owner was sent that the test has not taken.
    pub(super) fn left(&self) -> u64 {
        self.handle.sent() - self.taken
    }
}

/// An owner that keeps what it is sent.
struct Keeper(mpsc::UnboundedSender<LaneCommand>);

impl Actor for Keeper {
    type Context = Context<Self>;
}

impl Handler<Deliver<LaneCommand>> for Keeper {
    type Result = ();

    fn handle(&mut self, Deliver(command): Deliver<LaneCommand>, _: &mut Self::Context) {
        // The test may be over.
        let _ = self.0.send(command);
    }
}

/// Serves a lane in a directory; what its owner is sent.
pub(super) fn serve(lanes: &Directory, name: &str) -> ServedLane {
    serve_all(lanes, std::iter::once(name)).swap_remove(0)
}

/// Serves lanes in a directory, all on one thread.
pub(super) fn serve_all<'n>(lanes: &Directory, names: impl Iterator<Item = &'n str>) -> Vec<ServedLane> {
    let arbiters = Arbiters::start(NonZeroUsize::MIN).unwrap();
    let served = names.map(|name| {
        let (kept, commands) = mpsc::unbounded_channel();
        let address = arbiters.start_actor(0, LANE_MAILBOX_MESSAGES_MAX, move |_| Keeper(kept));
        let handle = LaneHandle::new(address.recipient());
        lanes.insert(lane(name), handle.clone());
        ServedLane { _arbiters: arbiters.clone(), handle, commands, taken: 0 }
    });
    served.collect()
}

/// The event of an attempt that a lane's owner was sent; `None` if there is none.
pub(super) async fn event_now(lane: &mut ServedLane) -> Option<(JobId, AttemptEvent)> {
    if lane.left() == 0 {
        return None;
    }
    match lane.recv().await? {
        LaneCommand::Attempt(job, _, event) => Some((job, event)),
        _ => panic!("an event of an attempt was awaited"),
    }
}

/// Who lives and who owns what, as the test says.
#[derive(Default)]
pub(super) struct KnownOwners {
    pub(super) live: Mutex<HashSet<InstanceId>>,
    /// Those that have surely ended.
    pub(super) ended: Mutex<HashSet<InstanceId>>,
    pub(super) owners: Mutex<HashMap<LaneId, InstanceId>>,
    /// Lanes whose owners were looked up.
    pub(super) asked: Mutex<Vec<LaneId>>,
    /// Lanes of which nobody ever answers who owns them.
    pub(super) unanswered: Mutex<HashSet<LaneId>>,
    /// Lanes of which it is a defect to ask.
    pub(super) broken: Mutex<HashSet<LaneId>>,
}

impl LaneOwners for KnownOwners {
    /// Those of the tests are instance `a`.
    fn has_other(&self, which: &dyn Fn(&InstanceId) -> bool) -> bool {
        self.live.lock().iter().any(|live| *live != instance("a") && which(live))
    }

    fn has_ended(&self, instance: &InstanceId) -> bool {
        self.ended.lock().contains(instance)
    }

    fn owner<'l>(&'l self, lane: &'l LaneId) -> BoxFuture<'l, Option<InstanceId>> {
        self.asked.lock().push(lane.clone());
        assert!(!self.broken.lock().contains(lane), "made on purpose");
        if self.unanswered.lock().contains(lane) {
            return std::future::pending().boxed();
        }
        std::future::ready(self.owners.lock().get(lane).cloned()).boxed()
    }
}

/// The gateway of instance `a`, which is alone, and serves no lane.
pub(super) fn gateway(ledger: &Ledger, store: Arc<ProgressStore>) -> Arc<NodeGateway> {
    let (me, bus, lanes) = (instance("a"), bus::Hub::default().join(), Arc::<Directory>::default());
    let sends = InterInstance::start(me.clone(), bus, true, lanes, Arc::<KnownOwners>::default());
    NodeGateway::new(ledger.handle.clone(), nodes::Registry::new(me, NodeTimeouts::DEFAULT), sends, store)
}

/// Counts one of the metrics, by its one label; of the thread for which it is set as the recorder.
pub(super) struct LabelCounts {
    metric: &'static str,
    counts: Mutex<HashMap<String, Arc<AtomicU64>>>,
}

impl LabelCounts {
    pub(super) fn of(metric: &'static str) -> Self {
        Self { metric, counts: Mutex::default() }
    }

    /// By the value of the label.
    pub(super) fn all(&self) -> HashMap<String, u64> {
        let counts = self.counts.lock();
        counts.iter().map(|(value, count)| (value.clone(), count.load(Ordering::Acquire))).collect()
    }
}

impl Recorder for LabelCounts {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.labels().next() {
            Some(label) if key.name() == self.metric => {
                let mut counts = self.counts.lock();
                Counter::from_arc(Arc::clone(counts.entry(label.value().to_owned()).or_default()))
            }
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

/// A ledger in a folder of its own.
pub(super) struct Ledger {
    pub(super) handle: ledger::Handle,
    _folder: tempfile::TempDir,
}

impl Ledger {
    pub(super) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = ledger::Options {
            url: format!("sqlite:{}", folder.path().join("ledger.db").display()),
            connections_max: 2,
            connect_timeout_ms: 1_000,
            call_timeout_ms: 10_000,
            expected_id: None,
        };
        Self { handle: ledger::open(&options).await.unwrap(), _folder: folder }
    }

    /// Jobs of an instance's own lane, whose first attempts are at a node of an instance.
    pub(super) async fn dispatch_all(&self, owner: &str, jobs: &[u128], to: &str, holder: &str) {
        self.dispatch_in(lane(&format!("instance:{owner}")), owner, jobs, to, holder).await;
    }

    /// The same, of any lane.
    pub(super) async fn dispatch_in(&self, id: LaneId, owner: &str, jobs: &[u128], to: &str, holder: &str) {
        let owner = instance(owner);
        let Acquisition::Acquired { token, .. } =
            self.handle.acquire(id.lease(), &owner, 60_000).await.unwrap()
        else {
            panic!("nobody else has it");
        };
        let new = |number: &u128| NewJob {
            id: job(*number),
            spec: spec(),
            seq: None,
            client_ref: None,
            due: Due::Now,
            retry: None,
            placed: Some(Assignment { node: node(to), holder: instance(holder) }),
        };
        let write = |number| JobWrite { change: Change::Submit(Box::new(new(number))), key: None };
        let batch = JobBatch {
            lane: Some(ledger::Lane { id, owner, token }),
            writes: jobs.iter().map(write).collect(),
        };
        let verdict = self.handle.commit_jobs(batch).await.unwrap();
        let JobsVerdict::Written { jobs, .. } = verdict else { panic!("the lease was just acquired") };
        assert!(jobs.iter().all(|verdict| *verdict == JobVerdict::Written));
    }

    /// The node has acknowledged the first attempts of these jobs, and that is written.
    pub(super) async fn run_all(&self, jobs: &[u128], on: &str) {
        let run = |number: &u128| Change::Run { job: job(*number), attempt: FIRST, node: node(on) };
        let writes = jobs.iter().map(|number| JobWrite { change: run(number), key: None }).collect();
        let verdict = self.handle.commit_jobs(JobBatch { lane: None, writes }).await.unwrap();
        let JobsVerdict::Written { jobs, .. } = verdict else { panic!("no lease is asked for") };
        assert!(jobs.iter().all(|verdict| *verdict == JobVerdict::Written));
    }
}
