//! The owner of an instance's lane over a real SQLite ledger.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use actors::arbiters::Arbiters;
use actors::database_clock::SharedClock;
use actors::jobs::limits::PURGE_EVERY;
use actors::jobs::{
    Answer, Dependencies, Failure, JobEventKind, Jobs, LaneConfig, NodeResult, Notification, Refusal,
    Submission, Topic,
};
use cluster::{ClusterView, FailureDetector, Identity, JoinOptions, Membership, Process};
use domain::job::{Assignment, Attempt, Change, Due, Ended, NewJob, Outcome, Requirements, Spec, State};
use domain::{InstanceId, JobId, LaneId, Mode, NodeId, session};
use futures_util::FutureExt;
use ledger::{Acquisition, Handle, JobBatch, JobWrite};

use crate::flaky::{Flaky, Plan};
use crate::flaky_ledger::FlakyLedger;
use crate::until;

/// Length of the instance's own lease, which outlasts a busy machine.
const LEASE: Duration = Duration::from_secs(15);

pub struct Lanes {
    pub jobs: Jobs,
    pub ledger: Handle,
    pub bus: bus::Handle,
    pub plan: Arc<Plan>,
    /// By which the lanes tell how old something is.
    pub clock: SharedClock,
    pub cluster_view: ClusterView,
    pub arbiters: Arbiters,
    _membership: Membership,
    _folder: tempfile::TempDir,
}

pub async fn open() -> Lanes {
    open_with(|_| {}).await
}

/// With settings that are changed so.
pub async fn open_with(change: impl FnOnce(&mut LaneConfig)) -> Lanes {
    open_as(change, |_| FailureDetector::alone(), LEASE).await
}

/// The same, of an instance that has just joined others.
pub async fn open_among_others(change: impl FnOnce(&mut LaneConfig)) -> Lanes {
    open_as(change, Membership::failure_detector, LEASE).await
}

/// The same, of one that soon counts others as dead.
pub async fn open_among_the_dead() -> Lanes {
    open_as(|_| {}, Membership::failure_detector, Duration::from_secs(2)).await
}

async fn open_as(
    change: impl FnOnce(&mut LaneConfig),
    failure_detector: impl FnOnce(&Membership) -> FailureDetector,
    lease: Duration,
) -> Lanes {
    let FlakyLedger { folder, real, plan, ledger } = FlakyLedger::open().await;
    let bus = bus::Hub::default().join();
    let identity = Identity { id: InstanceId::parse("me-1").unwrap(), url: "http://me".to_owned() };
    let process = Process { hostname: "h".to_owned(), pid: 1, version: "0".to_owned() };
    let options = JoinOptions { lease, first_mode: Mode::WorkerQueue, patience: Duration::from_secs(5) };
    let membership =
        Membership::join(real.clone(), Arc::clone(&bus), &identity, process, options).await.unwrap();
    let arbiters = Arbiters::start(NonZeroUsize::MIN).unwrap();
    let clock = SharedClock::new(Duration::from_secs(1));
    let dependencies = Dependencies {
        ledger,
        bus: Arc::clone(&bus),
        me: identity.id.clone(),
        failure_detector: failure_detector(&membership),
        cluster_view: membership.cluster_view(),
        instance_lease: membership.instance_lease(),
        registry: nodes::Registry::new(identity.id.clone(), domain::NodeTimeouts::DEFAULT),
        arbiters: arbiters.clone(),
        clock: clock.clone(),
    };
    let mut config = LaneConfig {
        lease: Duration::from_secs(15),
        request_timeout: Duration::from_secs(5),
        retention: Duration::from_secs(60),
        purge_every: PURGE_EVERY,
    };
    change(&mut config);
    let jobs = Jobs::start(dependencies, config);
    let cluster_view = membership.cluster_view();
    Lanes {
        jobs,
        ledger: real,
        bus,
        plan,
        clock,
        cluster_view,
        arbiters,
        _membership: membership,
        _folder: folder,
    }
}

fn submission() -> Submission {
    Submission { spec: Spec::new("{}"), client_ref: None, due: Due::Now, key: None, retry: None }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_costs_one_owner_whose_callers_get_internal_and_the_next_begins_anew() {
    let lanes = open().await;
    let before = lanes.jobs.submit(vec![submission()], None).await.remove(0).unwrap();
    lanes.plan.next_jobs_panic();
    let lost = lanes.jobs.submit(vec![submission()], None).await.remove(0);
    assert_eq!(lost, Err(Refusal::Internal));
    let token = lanes.ledger.lease(before.lane.lease()).await.unwrap().unwrap().token;
    // Another owner begins within moments; until then nothing is accepted.
    let after = loop {
        match lanes.jobs.submit(vec![submission()], None).await.remove(0) {
            Ok(accepted) => break accepted,
            Err(Refusal::Internal | Refusal::Fenced) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(other) => panic!("{other}"),
        }
    };
    let lease = lanes.ledger.lease(after.lane.lease()).await.unwrap().unwrap();
    assert!(lease.token > token, "what the dead owner had sent does not count any more");
    for job in [before.id, after.id] {
        assert_eq!(lanes.jobs.get(job).await.unwrap().state, State::Created);
    }
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_the_ledger_refuses_costs_its_caller_alone() {
    let lanes = open().await;
    let before = lanes.jobs.submit(vec![submission()], None).await.remove(0).unwrap();
    let token = async || lanes.ledger.lease(before.lane.lease()).await.unwrap().unwrap().token;
    let first = token().await;
    // No request can ask for it.
    let mut wrong = submission();
    wrong.spec.max_attempts = 0;
    assert_eq!(lanes.jobs.submit(vec![wrong.clone()], None).await, [Err(Refusal::Internal)]);
    // The others of its batch are written.
    let answers = lanes.jobs.submit(vec![submission(), wrong, submission()], None).await;
    assert!(matches!(answers[..], [Ok(_), Err(Refusal::Internal), Ok(_)]), "{answers:?}");
    for accepted in answers.iter().flatten() {
        assert_eq!(lanes.jobs.get(accepted.id).await.unwrap().state, State::Created);
    }
    let after = lanes.jobs.submit(vec![submission()], None).await.remove(0).unwrap();
    assert_eq!((after.lane, token().await), (before.lane.clone(), first), "the lease was not acquired anew");
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_stops_answers_everybody_and_refuses_what_comes_after() {
    let lanes = open().await;
    let many = (0..500).map(|_| submission()).collect();
    let (answers, ()) = tokio::join!(lanes.jobs.submit(many, None), lanes.jobs.stop());
    assert!(answers.iter().all(|answer| matches!(answer, Ok(_) | Err(Refusal::Fenced))));
    let refused = lanes.jobs.submit(vec![submission()], None).await.remove(0);
    assert_eq!(refused, Err(Refusal::Fenced));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_node_has_just_acknowledged_is_written_before_a_stop_comes_to_the_plans() {
    let lanes = open().await;
    let (node, job) = (NodeId::parse("n").unwrap(), JobId::from_u128(2));
    dispatch_elsewhere(&lanes.ledger, job, &node).await;
    lanes.jobs.acknowledged(&node, job, Attempt::new(1));
    lanes.jobs.wind_down().await;
    assert_eq!(lanes.ledger.job(job).await.unwrap().unwrap().state, State::Running);
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_waits_for_a_jobs_end_reads_its_state_alone() {
    let lanes = open().await;
    let job = lanes.jobs.submit(vec![submission()], None).await.remove(0).unwrap().id;
    let (before, _) = lanes.plan.job_reads.counted();
    let ends = async {
        let whole = loop {
            match lanes.plan.job_reads.counted() {
                (whole, looks) if looks > 1 => break whole,
                _ => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        };
        assert_eq!(whole, before, "nothing of it was read but its state");
        lanes.jobs.cancel(job).await.unwrap()
    };
    let (waited, cancelled) = tokio::join!(lanes.jobs.until_finished(job, Duration::from_secs(60)), ends);
    assert_eq!((waited, cancelled.state), (Ok(()), State::Finished));
    // Nobody wakes those that come later.
    lanes.jobs.until_finished(job, Duration::from_secs(60)).await.unwrap();
    assert_eq!(lanes.jobs.until_finished(job, Duration::ZERO).await, Ok(()));
    let unknown = lanes.jobs.until_finished(JobId::from_u128(1), Duration::from_secs(60)).await;
    assert_eq!(unknown, Err(Refusal::UnknownJob));
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_that_waits_learns_of_a_jobs_end_and_that_its_time_is_up_while_no_state_is_read() {
    let lanes = open().await;
    let job = lanes.jobs.submit(vec![submission()], None).await.remove(0).unwrap().id;
    let (_, before) = lanes.plan.job_reads.counted();
    lanes.plan.job_reads.states_stall.store(true, Ordering::SeqCst);
    let ends = async {
        until("its state is being read", async || lanes.plan.job_reads.counted().1 > before).await;
        lanes.jobs.cancel(job).await.unwrap()
    };
    let waits = async {
        let (waited, cancelled) = tokio::join!(lanes.jobs.until_finished(job, Duration::from_secs(60)), ends);
        assert_eq!((waited, cancelled.state), (Ok(()), State::Finished));
        assert_eq!(lanes.jobs.until_finished(job, Duration::from_millis(20)).await, Ok(()));
    };
    tokio::time::timeout(Duration::from_secs(30), waits).await.expect("no look is waited for");
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_look_for_lanes_without_an_owner_costs_that_look_alone() {
    let lanes = open().await;
    let panics = &lanes.plan.holds.next_look_for_lanes_panics;
    panics.store(true, Ordering::SeqCst);
    until("a look panics", async || !panics.load(Ordering::SeqCst)).await;
    let (id, _) = left_by_another(&lanes, None).await;
    let owner_now = async || lanes.ledger.lease(id.lease()).await.unwrap().and_then(|lease| lease.owner);
    until("it is adopted", async || owner_now().await.is_some_and(|owner| owner.as_str() == "me-1")).await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_write_about_attempts_loses_no_slot_that_was_freed() {
    let lanes = open().await;
    let node = NodeId::parse("n").unwrap();
    let placed = Assignment { node: node.clone(), holder: lanes.jobs.me().clone() };
    let (_, job) = left_by_another(&lanes, Some(placed)).await;
    lanes.jobs.cancel(job).await.unwrap();
    lanes.plan.next_jobs_panic();
    let is_released = async || {
        // It counts once the attempt is called off.
        lanes.jobs.slot_freed(&node, job, Attempt::new(1));
        let finished = lanes.ledger.job(job).await.unwrap().unwrap().finished;
        finished.is_some_and(|finished| finished.released_at.is_some())
    };
    until("that its slot is free is written", is_released).await;
    lanes.jobs.stop().await;
}

/// A session with one job, placed so, whose owner was another instance and has left it; with the job.
async fn left_by_another(lanes: &Lanes, placed: Option<Assignment>) -> (LaneId, JobId) {
    let (needs, ordering) = (Requirements::default(), session::Ordering::Strict);
    let spec = session::Spec { tenant: None, needs, ordering, idle_ms: 60_000 };
    let session = lanes.jobs.open_session(&spec, None, None).await.unwrap().id;
    let (id, owner) = (LaneId::session(&session), InstanceId::parse("other-1").unwrap());
    let job = JobId::from_u128(1);
    let acquired = lanes.ledger.acquire(id.lease(), &owner, 60_000).await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("nobody else has it") };
    let new = NewJob {
        id: job,
        spec: Spec { session: Some(session), ..Spec::new("{}") },
        seq: Some(1),
        client_ref: None,
        due: Due::Now,
        retry: None,
        placed,
    };
    let write = JobWrite { change: Change::Submit(Box::new(new)), key: None };
    let lane = ledger::Lane { id: id.clone(), owner: owner.clone(), token };
    lanes.ledger.commit_jobs(JobBatch { lane: Some(lane), writes: [write].into() }).await.unwrap();
    lanes.ledger.release(id.lease(), &owner, token).await.unwrap();
    (id, job)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_of_a_count_of_jobs_costs_that_count_alone() {
    let lanes = open().await;
    let panics = &lanes.plan.holds.next_count_panics;
    panics.store(true, Ordering::SeqCst);
    until("a count panics", async || !panics.load(Ordering::SeqCst)).await;
    let since = Instant::now();
    let is_counted = async || lanes.jobs.statistics().await.counted_ago < since.elapsed();
    until("the jobs are counted again", is_counted).await;
    lanes.jobs.stop().await;
}

/// A job of another instance's lane, whose first attempt is at a node.
pub async fn dispatch_elsewhere(ledger: &Handle, job: JobId, node: &NodeId) {
    let owner = InstanceId::parse("other-1").unwrap();
    let id = LaneId::parse("instance:other-1").unwrap();
    let Acquisition::Acquired { token, .. } = ledger.acquire(id.lease(), &owner, 60_000).await.unwrap()
    else {
        panic!("nobody else has it");
    };
    let new = NewJob {
        id: job,
        spec: Spec::new("{}"),
        seq: None,
        client_ref: None,
        due: Due::Now,
        retry: None,
        placed: Some(Assignment { node: node.clone(), holder: owner.clone() }),
    };
    let write = JobWrite { change: Change::Submit(Box::new(new)), key: None };
    let batch = JobBatch { lane: Some(ledger::Lane { id, owner, token }), writes: [write].into() };
    ledger.commit_jobs(batch).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_is_written_is_told_although_the_one_before_it_could_not_be_answered_yet() {
    let lanes = open().await;
    let (node, attempt) = (NodeId::parse("n").unwrap(), Attempt::new(1));
    let (nobodys, written) = (JobId::from_u128(1), JobId::from_u128(2));
    dispatch_elsewhere(&lanes.ledger, written, &node).await;
    let mut watch = lanes.jobs.watch(Topic::Job(written)).unwrap();
    let result = |job| NodeResult { job, attempt, output: Ok("7".to_owned()) };
    lanes.plan.job_reads.failing.store(1, Ordering::SeqCst);
    let answers = lanes.jobs.results(&node, vec![result(nobodys), result(written)], false).await;
    let answers: Vec<_> = answers.into_iter().map(|(answer, _)| answer).collect();
    assert_eq!(answers, [Answer::Stale, Answer::Committed]);
    assert_eq!(lanes.plan.job_reads.failing.load(Ordering::SeqCst), 0, "the first was asked for again");
    // It was told before it was answered.
    match watch.next().now_or_never() {
        Some(Notification::Event(event)) => {
            assert_eq!(event.kind, JobEventKind::Changed(State::Finished, Some(Outcome::Succeeded)));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_found_done_is_answered_by_what_a_standby_has() {
    let lanes = open().await;
    let (node, job, reads) = (NodeId::parse("n").unwrap(), JobId::from_u128(1), &lanes.plan.job_reads);
    dispatch_elsewhere(&lanes.ledger, job, &node).await;
    // The commit of the first report has waited for a standby.
    for settled in [0, 1] {
        let result = NodeResult { job, attempt: Attempt::new(1), output: Ok("7".to_owned()) };
        let (answer, _) = lanes.jobs.results(&node, vec![result], false).await.remove(0);
        assert_eq!((answer, reads.settled()), (Answer::Committed, settled));
    }
    assert_eq!(lanes.jobs.cancel(job).await.unwrap().state, State::Finished);
    assert_eq!(reads.settled(), 2);
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_that_a_ledger_that_went_back_does_not_know_is_not_stale_before_it_is_recovered() {
    let lanes = open().await;
    let (node, recovery) = (NodeId::parse("n").unwrap(), &lanes.plan.recovery);
    recovery.is_behind.store(true, Ordering::SeqCst);
    let failure = Failure { ended: Ended::Failed, message: "why".to_owned(), is_retryable: true };
    let result = NodeResult { job: JobId::from_u128(1), attempt: Attempt::new(1), output: Err(failure) };
    let mut answers = std::pin::pin!(lanes.jobs.results(&node, vec![result], false));
    tokio::select! {
        _ = answers.as_mut() => panic!("its node would drop it"),
        () = until("it is tried again", async || recovery.asked.load(Ordering::SeqCst) > 2) => {}
    }
    recovery.is_behind.store(false, Ordering::SeqCst);
    let answers: Vec<_> = answers.await.into_iter().map(|(answer, _)| answer).collect();
    assert_eq!(answers, [Answer::Stale]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ledger_that_stalls_keeps_no_instance_from_announcing_its_presence() {
    let lanes = open().await;
    let plan = Arc::<Plan>::default();
    plan.bus_notes_stall.store(true, Ordering::SeqCst);
    let ledger: Handle = Arc::new(Flaky { real: lanes.ledger.clone(), plan: plan.clone() });
    let bus = bus::Hub::default().join();
    let identity = Identity { id: InstanceId::parse("other-1").unwrap(), url: "http://other".to_owned() };
    let process = Process { hostname: "h".to_owned(), pid: 1, version: "0".to_owned() };
    let options = JoinOptions {
        lease: Duration::from_secs(15),
        first_mode: Mode::WorkerQueue,
        patience: Duration::from_secs(5),
    };
    let _membership = Membership::join(ledger, Arc::clone(&bus), &identity, process, options).await.unwrap();
    let ids = [identity.id];
    let is_present = async || bus.present(&ids).await.unwrap().contains_key(&ids[0]);
    while plan.stalled.load(Ordering::SeqCst) == 0 || !is_present().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // An announcement counts for two seconds.
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(is_present().await);
    }
}
