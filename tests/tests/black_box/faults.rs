//! The short form of `cargo run --release -p loadtest -- faults`.

use std::time::Duration;

use loadtest::scenario::faults::{Plan, run};

#[tokio::test(flavor = "multi_thread")]
async fn every_promise_holds_through_kills_pauses_and_database_crashes() {
    let plan = Plan { faults: 10, mean_gap: Duration::from_millis(1_500), ..Plan::default() };
    eprintln!("seed {}", plan.seed);
    let report = run(&plan, |fault| eprintln!("{fault:?}")).await.unwrap();
    eprintln!("{}", report.table());
    assert_eq!(report.violations, Vec::<String>::new(), "seed {}", plan.seed);
    // Otherwise nothing was tried.
    assert!(report.requests["granted"] > 50 && report.requests["settled"] > 50, "{:?}", report.requests);
    assert_eq!(report.faults.values().sum::<u64>(), 10);
}
