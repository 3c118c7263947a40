//! The short form of `cargo run --release -p loadtest -- plan-faults`.

use loadtest::report::Report as _;
use loadtest::scenario::plan_faults::{Plan, run};

#[tokio::test(flavor = "multi_thread")]
async fn every_plan_ends_and_no_stage_runs_again_unless_somebody_asked_for_it() {
    hurt(Plan::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_plan_does_so_with_everything_that_keeps_strangers_out() {
    hurt(Plan { secured: true, ..Plan::default() }).await;
}

async fn hurt(plan: Plan) {
    let seed = std::env::var("FENCEPOST_SEED").ok().and_then(|seed| seed.parse().ok());
    let plan = Plan { seed: seed.unwrap_or(plan.seed), ..plan };
    eprintln!("FENCEPOST_SEED={}", plan.seed);
    let report = run(&plan, |fault| eprintln!("{fault:?}")).await.unwrap();
    eprintln!("{}", report.table());
    assert_eq!(report.violations, Vec::<String>::new(), "FENCEPOST_SEED={}", plan.seed);
    // Otherwise nothing was tried.
    assert_eq!(report.faults.values().sum::<u64>(), 6, "{:?}", report.faults);
    assert!(report.plans["SUCCEEDED"] > 0 && report.happened["stages begun"] > 50, "{:?}", report.happened);
}
