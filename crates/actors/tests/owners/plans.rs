//! The owner of a plan over a real SQLite ledger.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use actors::database_clock::SharedClock;
use actors::jobs::{JobEvent, JobEventKind, Notification, Refusal, Topic};
use actors::plans::{
    Dependencies, NewPlan, OWNED_PLANS_BYTES_MAX, PURGE_EVERY, PlanConfig, Plans, RetryFrom, RetryRequest,
};
use cluster::FailureDetector;
use domain::job::{Assignment, Attempt, Change, OnRecovery, Outcome, State};
use domain::plan::{
    Command, Intent, OnUnknown, PlanSpec, PlanStatus, StageSpec, StageStatus, TaskSpec, TaskState, TaskStatus,
};
use domain::{IdempotencyKey, InstanceId, JobId, LaneId, NodeId, PlanId, Resource, TenantId};
use futures_util::FutureExt;
use futures_util::future::join_all;
use ledger::{Acquisition, Author, Handle, JobBatch, JobKey, JobWrite, KeyScope, Lane};

use crate::flaky::Flaky;
use crate::lanes::{Lanes, open};
use crate::until;

fn start(lanes: &Lanes) -> Plans {
    start_with(lanes, |_| {})
}

/// With settings that are changed so.
pub fn start_with(lanes: &Lanes, change: impl FnOnce(&mut PlanConfig)) -> Plans {
    let dependencies = Dependencies {
        ledger: Arc::new(Flaky { real: lanes.ledger.clone(), plan: lanes.plan.clone() }),
        jobs: lanes.jobs.clone(),
        failure_detector: FailureDetector::alone(),
        cluster_view: lanes.cluster_view.clone(),
        arbiters: lanes.arbiters.clone(),
        clock: SharedClock::new(Duration::from_secs(1)),
    };
    let mut config = PlanConfig {
        request_timeout: Duration::from_secs(5),
        retention: Duration::from_secs(60),
        purge_every: PURGE_EVERY,
        owned_bytes_max: OWNED_PLANS_BYTES_MAX,
        lock: Duration::from_secs(9_000),
    };
    change(&mut config);
    Plans::start(dependencies, config)
}

/// The plan's only task.
async fn task(lanes: &Lanes, plan: PlanId) -> TaskState {
    lanes.ledger.plan_tasks(plan, None, 1).await.unwrap().remove(0).task
}

/// A plan with one task, whose first stage waits for a node; with the task and the stage's job.
async fn begin(lanes: &Lanes, plans: &Plans) -> (PlanId, TaskState, JobId) {
    begin_with(lanes, plans, OnUnknown::Confirm).await
}

async fn begin_with(lanes: &Lanes, plans: &Plans, on_unknown: OnUnknown) -> (PlanId, TaskState, JobId) {
    let stages = ["first", "second"].map(|name| StageSpec { on_unknown, ..StageSpec::new(name, "{}") });
    let spec = TaskSpec::new(TenantId::parse("t").unwrap(), stages);
    let new = NewPlan { spec: PlanSpec::default(), tasks: vec![spec], is_started: true, key: None };
    let plan = plans.create(new, Author::default()).await.unwrap();
    until("the first stage begins", async || task(lanes, plan).await.in_flight().is_some()).await;
    let begun = task(lanes, plan).await;
    let (_, job) = begun.in_flight().unwrap();
    (plan, begun, job)
}

/// The plan's owner dies of a defect.
async fn kill_owner(lanes: &Lanes, plans: &Plans, plan: PlanId) {
    lanes.plan.next_plans_panic();
    let lost = plans.carry_out(plan, Command::Pause, Author::default()).await;
    assert!(matches!(lost, Err(actors::plans::Refusal::Internal)), "{lost:?}");
}

/// The plan's owner dies of a defect, and nobody follows it until the plans' rows can be read again.
async fn kill_for_good(lanes: &Lanes, plans: &Plans, plan: PlanId) {
    lanes.plan.plans_are_away.store(true, Ordering::Relaxed);
    kill_owner(lanes, plans, plan).await;
    let lease = Resource::plan(plan);
    let is_free =
        async || lanes.ledger.lease(&lease).await.unwrap().is_some_and(|lease| lease.owner.is_none());
    until("its lane gives the lease back", is_free).await;
    assert!(!plans.owns(plan));
}

/// A node of another instance gets the stage's job, and completes it once the plan has no owner.
async fn complete_elsewhere(lanes: &Lanes, plan: PlanId, job: JobId, output: &str) {
    let (node, attempt) = (NodeId::parse("n").unwrap(), Attempt::new(1));
    let (owner, id) = (InstanceId::parse("other-1").unwrap(), LaneId::plan(plan));
    let acquired = lanes.ledger.acquire(id.lease(), &owner, 60_000).await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("nobody else has it") };
    let lane = Lane { id, owner: owner.clone(), token };
    let placed = Assignment { node: node.clone(), holder: owner.clone() };
    let dispatched = Change::Dispatch { job, attempt, placed, behind: None };
    let completed = Change::Complete { job, attempt, node, output: output.to_owned() };
    let batch = |lane, change| JobBatch { lane, writes: [JobWrite { change, key: None }].into() };
    lanes.ledger.commit_jobs(batch(Some(lane), dispatched)).await.unwrap();
    lanes.ledger.release(&Resource::plan(plan), &owner, token).await.unwrap();
    lanes.ledger.commit_jobs(batch(None, completed)).await.unwrap();
    assert_eq!(lanes.ledger.job(job).await.unwrap().unwrap().state, State::Finished);
}

/// A new owner of the plan has had its jobs held, and has then said that its task is interrupted.
async fn is_taken_over(lanes: &Lanes, plan: PlanId, job: JobId) {
    until("its owner sees to it", async || task(lanes, plan).await.status == TaskStatus::Interrupted).await;
    let held = lanes.ledger.live_jobs(&[job]).await.unwrap().remove(0);
    assert_eq!(held.spec.on_recovery, OnRecovery::Held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_watch_all_jobs_hear_that_a_stages_job_is_created() {
    for is_unheard in [false, true] {
        let lanes = open().await;
        let plans = start(&lanes);
        let mut watch = lanes.jobs.watch(Topic::All).unwrap();
        lanes.plan.next_start_is_unheard.store(is_unheard, Ordering::Relaxed);
        let (plan, _, job) = begin(&lanes, &plans).await;
        let (lane, kind) = (Some(LaneId::plan(plan)), JobEventKind::Changed(State::Created, None));
        let created = JobEvent { job, attempt: Attempt::NONE, lane, node: None, kind };
        until("it is told", async || match watch.next().now_or_never() {
            Some(Notification::Event(event)) => *event == created,
            _ => false,
        })
        .await;
        assert!(!lanes.plan.next_start_is_unheard.load(Ordering::Relaxed));
        plans.stop().await;
        lanes.jobs.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_panics_is_followed_by_one_that_holds_the_jobs_first() {
    let lanes = open().await;
    let plans = start(&lanes);
    let (plan, begun, job) = begin(&lanes, &plans).await;
    kill_owner(&lanes, &plans, plan).await;
    is_taken_over(&lanes, plan, job).await;
    plans.carry_out(plan, Command::CancelTask(begun.id), Author::default()).await.unwrap();
    until("the task ends", async || task(&lanes, plan).await.status == TaskStatus::Cancelled).await;
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_whose_owner_panicked_is_adopted_later_if_that_fails_at_first() {
    let lanes = open().await;
    let plans = start(&lanes);
    let (plan, _, job) = begin(&lanes, &plans).await;
    kill_for_good(&lanes, &plans, plan).await;
    lanes.plan.plans_are_away.store(false, Ordering::Relaxed);
    is_taken_over(&lanes, plan, job).await;
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_is_adopted_while_more_old_ones_are_to_be_forgotten_than_a_purge_has_time_for() {
    let lanes = open().await;
    let plans = start_with(&lanes, |config| config.purge_every = Duration::from_millis(10));
    let (plan, _, job) = begin(&lanes, &plans).await;
    let purges = &lanes.plan.purges;
    let before = purges.steps().len();
    purges.are_full.store(true, Ordering::SeqCst);
    until("old plans are forgotten step by step", async || purges.steps().len() > before + 10).await;
    kill_for_good(&lanes, &plans, plan).await;
    lanes.plan.plans_are_away.store(false, Ordering::Relaxed);
    is_taken_over(&lanes, plan, job).await;
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_that_opens_a_plan_comes_after_the_result_that_the_ledger_has() {
    for on_unknown in [OnUnknown::Confirm, OnUnknown::Rerun] {
        let lanes = open().await;
        let plans = start(&lanes);
        let (plan, begun, job) = begin_with(&lanes, &plans, on_unknown).await;
        kill_for_good(&lanes, &plans, plan).await;
        complete_elsewhere(&lanes, plan, job, r#"{"context":{"a":1}}"#).await;
        let retry = RetryRequest {
            from: RetryFrom::Checkpoint,
            expect: None,
            context_patch: None,
            stages: None,
            config: None,
            max_attempts: None,
            reason: "its owner died".into(),
        };
        lanes.plan.plans_are_away.store(false, Ordering::Relaxed);
        let retried = plans.retry(plan, begun.id, retry, None, Author::default()).await;
        assert_eq!(retried, Ok(begun.id), "{on_unknown:?}");
        let is_second = |task: &TaskState| task.in_flight().is_some_and(|(stage, _)| stage == 1);
        until("the second stage begins", async || is_second(&task(&lanes, plan).await)).await;
        let found = task(&lanes, plan).await;
        assert_eq!((found.run, found.last_checkpoint, &*found.context()), (2, 1, r#"{"a":1}"#));
        assert_eq!(found.stages[0].status, StageStatus::Skipped, "it is not run again");
        plans.stop().await;
        lanes.jobs.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_panics_during_a_stage_is_opened_again_as_after_a_takeover() {
    let lanes = open().await;
    let plans = start(&lanes);
    let (plan, begun, job) = begin(&lanes, &plans).await;
    lanes.plan.next_jobs_panic();
    assert_eq!(lanes.jobs.cancel(job).await.unwrap_err(), Refusal::Internal);
    until("its owner sees to it", async || task(&lanes, plan).await.status == TaskStatus::Interrupted).await;
    let found = task(&lanes, plan).await;
    assert_eq!(found.stages[0].status, StageStatus::Unknown);
    assert_eq!(lanes.ledger.plan(plan).await.unwrap().unwrap().status, PlanStatus::Attention);
    // What a person decides is carried out in the lane that is served again.
    plans.carry_out(plan, Command::CancelTask(begun.id), Author::default()).await.unwrap();
    until("the task ends", async || task(&lanes, plan).await.status == TaskStatus::Cancelled).await;
    let ended = lanes.jobs.get(job).await.unwrap();
    assert_eq!((ended.state, ended.finished.unwrap().outcome), (State::Finished, Outcome::Cancelled));
    plans.stop().await;
    lanes.jobs.stop().await;
}

/// The locks of this one are due several times within the time for which an owner without need stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_owner_of_a_plan_that_is_over_ends_however_often_locks_are_renewed() {
    let lanes = open().await;
    let plans = start_with(&lanes, |config| config.lock = Duration::from_secs(2));
    let (plan, begun, _) = begin(&lanes, &plans).await;
    plans.carry_out(plan, Command::CancelTask(begun.id), Author::default()).await.unwrap();
    let status = async || lanes.ledger.plan(plan).await.unwrap().unwrap().status;
    until("the plan is over", async || status().await == PlanStatus::Cancelled).await;
    // Until then the plan is not purged.
    let lease = async || lanes.ledger.lease(&Resource::plan(plan)).await.unwrap();
    until("its lease is free", async || lease().await.is_some_and(|lease| lease.owner.is_none())).await;
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_of_the_databases_clock_ends_no_run() {
    let lanes = open().await;
    let plans = start(&lanes);
    let (plan, begun, _) = begin(&lanes, &plans).await;
    lanes.plan.ahead_ms.store(begun.spec.timeout_ms * 2, Ordering::Relaxed);
    // The owner hears of the time with the first step, and decides by it on the others.
    for command in [Command::PauseTask(begun.id), Command::ResumeTask(begun.id), Command::PauseTask(begun.id)]
    {
        plans.carry_out(plan, command, Author::default()).await.unwrap();
    }
    let found = task(&lanes, plan).await;
    assert_eq!((found.failing.clone(), found.in_flight()), (None, begun.in_flight()));
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_and_tasks_have_ids_in_their_order_with_the_time_of_the_databases_clock() {
    const HOUR_MS: u64 = 3_600_000;
    let lanes = open().await;
    let plans = start(&lanes);
    let ledger: Handle = Arc::new(Flaky { real: lanes.ledger.clone(), plan: lanes.plan.clone() });
    lanes.plan.ahead_ms.store(HOUR_MS, Ordering::Relaxed);
    lanes.clock.look(&ledger).await.unwrap();
    let of = |tenant| TaskSpec::new(TenantId::parse(tenant).unwrap(), [StageSpec::new("only", "1")]);
    let tasks = ["a", "b", "c"].map(of).into();
    let new = NewPlan { spec: PlanSpec::default(), tasks, is_started: false, key: None };
    let plan = plans.create(new, Author::default()).await.unwrap();
    let made = lanes.ledger.plan_tasks(plan, None, 3).await.unwrap();
    let ids: Vec<_> =
        [plan.as_u128()].into_iter().chain(made.iter().map(|made| made.task.id.as_u128())).collect();
    assert!(ids.len() == 4 && ids.is_sorted(), "{ids:?}");
    let now_ms = ledger.clock_ms().await.unwrap();
    for id in ids {
        let made_at_ms = JobId::from_u128(id).made_at_ms();
        assert!(now_ms.abs_diff(made_at_ms) < HOUR_MS / 2, "made at {made_at_ms}, which is {now_ms}");
    }
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_caller_has_given_up_is_not_carried_out() {
    let lanes = open().await;
    let plans = start(&lanes);
    let (plan, begun, _) = begin(&lanes, &plans).await;
    lanes.plan.next_plan_step_is_gated.store(true, Ordering::Relaxed);
    let ask = async |command| plans.carry_out(plan, command, Author::default()).await;
    let mut first = Box::pin(ask(Command::Pause));
    tokio::select! {
        biased;
        done = &mut first => panic!("the gate is shut: {done:?}"),
        () = std::future::ready(()) => {}
    }
    // It waits behind the first, and is dropped.
    tokio::select! {
        biased;
        done = ask(Command::CancelTask(begun.id)) => panic!("the gate is shut: {done:?}"),
        () = std::future::ready(()) => {}
    }
    lanes.plan.gate.notify_one();
    first.await.unwrap();
    // What came later is done.
    ask(Command::Resume).await.unwrap();
    let found = task(&lanes, plan).await;
    assert_eq!((found.intent, found.in_flight()), (Intent::Run, begun.in_flight()));
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_command_whose_step_did_not_leave_is_carried_out_all_the_same() {
    let lanes = open().await;
    let plans = start(&lanes);
    let (plan, begun, _) = begin(&lanes, &plans).await;
    lanes.plan.plan_steps_to_keep.store(1, Ordering::SeqCst);
    plans.carry_out(plan, Command::PauseTask(begun.id), Author::default()).await.unwrap();
    assert_eq!(lanes.plan.plan_steps_to_keep.load(Ordering::SeqCst), 0);
    let found = task(&lanes, plan).await;
    assert_eq!((found.intent, found.in_flight()), (Intent::Pause, begun.in_flight()));
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_whose_steps_do_not_leave_acquires_its_lease_anew_with_pauses() {
    let lanes = open().await;
    let plans = start_with(&lanes, |config| config.request_timeout = Duration::from_secs(2));
    let (plan, begun, _) = begin(&lanes, &plans).await;
    let token =
        async || lanes.ledger.lease(&Resource::plan(plan)).await.unwrap().expect("it has an owner").token;
    let before = token().await.get();
    let steps = 1_000_000;
    lanes.plan.plan_steps_to_keep.store(steps, Ordering::SeqCst);
    let paused = plans.carry_out(plan, Command::PauseTask(begun.id), Author::default()).await;
    assert_eq!(paused, Err(actors::plans::Refusal::LedgerUnavailable));
    let tries = steps - lanes.plan.plan_steps_to_keep.swap(0, Ordering::SeqCst);
    assert_ne!(tries, 0);
    assert!(token().await.get() <= before + 40, "{tries} tries");
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_that_wait_for_a_plans_lease_are_refused_in_time_and_none_of_them_asks_for_it_later() {
    let lanes = open().await;
    let plans = start_with(&lanes, |config| config.request_timeout = Duration::from_secs(2));
    let tasks = vec![TaskSpec::new(TenantId::parse("t").unwrap(), [StageSpec::new("only", "1")])];
    let new = NewPlan { spec: PlanSpec::default(), tasks, is_started: false, key: None };
    let plan = plans.create(new, Author::default()).await.unwrap();
    let holds = &lanes.plan.holds;
    *holds.acquires_fail_after.lock() = Some(Duration::from_secs(1));
    let asked = (0..10).map(|_| plans.carry_out(plan, Command::Start, Author::default()));
    let answers = join_all(asked).await;
    let is_refused = |answer: &Result<(), actors::plans::Refusal>| {
        matches!(answer, Err(actors::plans::Refusal::LedgerUnavailable))
    };
    assert!(answers.iter().all(is_refused), "{answers:?}");
    let tried = holds.failed_acquires();
    assert!((1..10).contains(&tried), "{tried} commands asked for it, one after the other");
    // As long as three tries more would take. The last one may have begun meanwhile.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let later = holds.failed_acquires();
    assert!(later <= tried + 1, "{later} commands asked for it, {tried} of them in time");
    *holds.acquires_fail_after.lock() = None;
    plans.carry_out(plan, Command::Start, Author::default()).await.unwrap();
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_that_are_started_as_they_are_made_are_answered_in_time_and_begun_once_there_are_leases() {
    const ACQUIRING: Duration = Duration::from_secs(8);
    let lanes = open().await;
    let plans = start_with(&lanes, |config| config.request_timeout = Duration::from_secs(2));
    let holds = &lanes.plan.holds;
    *holds.acquires_fail_after.lock() = Some(ACQUIRING);
    let create = async |number: usize| {
        let tenant = TenantId::parse(&format!("t{number}")).unwrap();
        let tasks = vec![TaskSpec::new(tenant, [StageSpec::new("only", "1")])];
        let new = NewPlan { spec: PlanSpec::default(), tasks, is_started: true, key: None };
        plans.create(new, Author::default()).await.unwrap()
    };
    let made = tokio::time::timeout(ACQUIRING, join_all((0..10).map(create))).await;
    let made = made.expect("none of them waits for its lease");
    assert_ne!(holds.failed_acquires(), 0);
    *holds.acquires_fail_after.lock() = None;
    for plan in made {
        until("its stage begins", async || task(&lanes, plan).await.in_flight().is_some()).await;
    }
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_whose_first_owners_have_written_nothing_is_begun_unless_its_ledger_may_have_lost_that() {
    let lanes = open().await;
    let plans = start(&lanes);
    let (holds, other) = (&lanes.plan.holds, InstanceId::parse("other-1").unwrap());
    *holds.acquires_fail_after.lock() = Some(Duration::ZERO);
    // A recovery raises tokens by far more.
    let mut made = Vec::new();
    for (tenant, owners) in [("begun", 1), ("halted", 10)] {
        let tasks = vec![TaskSpec::new(TenantId::parse(tenant).unwrap(), [StageSpec::new("only", "1")])];
        let new = NewPlan { spec: PlanSpec::default(), tasks, is_started: true, key: None };
        let plan = plans.create(new, Author::default()).await.unwrap();
        let lease = Resource::plan(plan);
        for _ in 0..owners {
            let acquired = lanes.ledger.acquire(&lease, &other, 60_000).await.unwrap();
            let Acquisition::Acquired { token, .. } = acquired else { panic!("nobody else has it") };
            lanes.ledger.release(&lease, &other, token).await.unwrap();
        }
        made.push(plan);
    }
    *holds.acquires_fail_after.lock() = None;
    until("its stage begins", async || task(&lanes, made[0]).await.in_flight().is_some()).await;
    let halted = async || lanes.ledger.load_plan(made[1]).await.unwrap().unwrap();
    until("it waits for a person", async || halted().await.is_halted).await;
    assert_eq!(task(&lanes, made[1]).await.in_flight(), None);
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_that_owns_many_bytes_of_plans_starts_no_further_one() {
    let lanes = open().await;
    let plans = start_with(&lanes, |config| config.owned_bytes_max = 15_000);
    let create = async |tenant: &str, is_started: bool| {
        let payload = format!("\"{}\"", "x".repeat(10_000));
        let tasks = vec![TaskSpec::new(TenantId::parse(tenant).unwrap(), [StageSpec::new("only", payload)])];
        let new = NewPlan { spec: PlanSpec::default(), tasks, is_started, key: None };
        plans.create(new, Author::default()).await
    };
    create("a", true).await.unwrap();
    assert_eq!(create("b", true).await, Err(actors::plans::Refusal::Overloaded));
    let later = create("b", false).await.expect("it is not owned");
    let started = plans.carry_out(later, Command::Start, Author::default()).await;
    assert_eq!(started, Err(actors::plans::Refusal::Overloaded));
    assert_eq!(lanes.ledger.plan(later).await.unwrap().unwrap().status, PlanStatus::Created);
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_has_started_many_bytes_of_plans_leaves_room_for_others() {
    let lanes = open().await;
    // Half of it has room for two of them.
    let plans = start_with(&lanes, |config| config.owned_bytes_max = 60_000);
    let by = |token: &str| Author { principal: Some(token.into()), ..Author::default() };
    let create = async |token: &str, tenant: &str, is_started: bool| {
        let payload = format!("\"{}\"", "x".repeat(10_000));
        let tasks = vec![TaskSpec::new(TenantId::parse(tenant).unwrap(), [StageSpec::new("only", payload)])];
        let new = NewPlan { spec: PlanSpec::default(), tasks, is_started, key: None };
        plans.create(new, by(token)).await
    };
    let start = async |token: &str, plan| plans.carry_out(plan, Command::Start, by(token)).await;
    create("one", "a", true).await.unwrap();
    let second = create("one", "b", false).await.unwrap();
    start("one", second).await.unwrap();
    let refused = actors::plans::Refusal::Overloaded;
    assert_eq!(create("one", "c", true).await, Err(refused.clone()));
    let third = create("one", "c", false).await.expect("it is not owned");
    assert_eq!(start("one", third).await, Err(refused));
    create("other", "d", true).await.expect("there is room for another token");
    start("other", third).await.expect("it counts for the token that starts it");
    plans.stop().await;
    lanes.jobs.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repetition_of_a_plan_gets_it_however_many_bytes_of_plans_the_instance_owns() {
    let lanes = open().await;
    let plans = start_with(&lanes, |config| config.owned_bytes_max = 15_000);
    let create = async |key: &str, hash: u8| {
        let payload = format!("\"{}\"", "x".repeat(10_000));
        let tasks = vec![TaskSpec::new(TenantId::parse("a").unwrap(), [StageSpec::new("only", payload)])];
        let scope = KeyScope { scope: "plan".to_owned(), key: IdempotencyKey::parse(key).unwrap() };
        let key = Some(JobKey { scope, body_hash: [hash; 32] });
        let new = NewPlan { spec: PlanSpec::default(), tasks, is_started: true, key };
        plans.create(new, Author::default()).await
    };
    let made = create("k", 1).await.unwrap();
    assert_eq!(create("k", 1).await, Ok(made));
    assert_eq!(create("k", 2).await, Err(actors::plans::Refusal::KeyReused));
    assert_eq!(create("l", 1).await, Err(actors::plans::Refusal::Overloaded), "it would be a new one");
    plans.stop().await;
    lanes.jobs.stop().await;
}
