//! The short form of `cargo run --release -p loadtest -- job-faults`.

use loadtest::report::Report as _;
use loadtest::scenario::job_faults::{Plan, run};

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_job_ends_with_one_result_of_its_newest_attempt() {
    hurt(Plan::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_job_does_so_with_everything_that_keeps_strangers_out() {
    // Each of the fifteen kinds of fault once.
    hurt(Plan { secured: true, faults: 15, ..Plan::default() }).await;
}

async fn hurt(plan: Plan) {
    let seed = std::env::var("FENCEPOST_SEED").ok().and_then(|seed| seed.parse().ok());
    let plan = Plan { seed: seed.unwrap_or(plan.seed), ..plan };
    eprintln!("FENCEPOST_SEED={}", plan.seed);
    let report = run(&plan, |fault| eprintln!("{fault:?}")).await.unwrap();
    eprintln!("{}", report.table());
    assert_eq!(report.violations, Vec::<String>::new(), "FENCEPOST_SEED={}", plan.seed);
    // Otherwise nothing was tried.
    let faults = (report.faults.len(), report.faults.values().sum::<u64>());
    assert_eq!(faults, (15, plan.faults as u64), "{:?}", report.faults);
    assert!(report.jobs["succeeded"] >= plan.faults as u64, "{:?}", report.jobs);
}
