//! The short form of `cargo run --release -p loadtest -- job-faults`.

use loadtest::report::Report as _;
use loadtest::scenario::job_faults::{Plan, run};

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_job_ends_with_one_result_of_its_newest_attempt() {
    let seed = std::env::var("FENCEPOST_SEED").ok().and_then(|seed| seed.parse().ok());
    let plan = Plan { seed: seed.unwrap_or_else(rand::random), ..Plan::default() };
    eprintln!("FENCEPOST_SEED={}", plan.seed);
    let report = run(&plan, |fault| eprintln!("{fault:?}")).await.unwrap();
    eprintln!("{}", report.table());
    assert_eq!(report.violations, Vec::<String>::new(), "FENCEPOST_SEED={}", plan.seed);
    // Otherwise nothing was tried.
    assert_eq!((report.faults.len(), report.faults.values().sum::<u64>()), (15, 30), "{:?}", report.faults);
    assert!(report.jobs["succeeded"] >= 30, "{:?}", report.jobs);
}
