//! The owner of a plan over a real SQLite ledger.

use std::time::Duration;

use actors::database_clock::SharedClock;
use actors::jobs::Refusal;
use actors::plans::{Dependencies, NewPlan, PlanConfig, Plans};
use cluster::FailureDetector;
use domain::job::{Outcome, State};
use domain::plan::{Command, PlanSpec, PlanStatus, StageSpec, StageStatus, TaskSpec, TaskState, TaskStatus};
use domain::{PlanId, TenantId};
use ledger::Author;

use crate::lanes::{Lanes, open};
use crate::until;

fn start(lanes: &Lanes) -> Plans {
    let dependencies = Dependencies {
        ledger: lanes.ledger.clone(),
        jobs: lanes.jobs.clone(),
        failure_detector: FailureDetector::alone(),
        cluster_view: lanes.cluster_view.clone(),
        arbiters: lanes.arbiters.clone(),
        clock: SharedClock::new(Duration::from_secs(1)),
    };
    let config = PlanConfig { request_timeout: Duration::from_secs(5), retention: Duration::from_secs(60) };
    Plans::start(dependencies, config)
}

/// The plan's only task.
async fn task(lanes: &Lanes, plan: PlanId) -> TaskState {
    lanes.ledger.plan_tasks(plan, None, 1).await.unwrap().remove(0).task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_that_panics_during_a_stage_is_opened_again_as_after_a_takeover() {
    let lanes = open().await;
    let plans = start(&lanes);
    let stages = ["first", "second"].map(|name| StageSpec::new(name, "{}"));
    let spec = TaskSpec::new(TenantId::parse("t").unwrap(), stages);
    let new = NewPlan { spec: PlanSpec::default(), tasks: vec![spec], is_started: true, key: None };
    let plan = plans.create(new, Author::default()).await.unwrap();
    until("the first stage begins", async || task(&lanes, plan).await.in_flight().is_some()).await;
    let begun = task(&lanes, plan).await;
    let (_, job) = begun.in_flight().unwrap();
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
