//! The short form of `cargo run --release -p loadtest -- faults`; that of `plan-faults` is in [`plans`].

mod plans;

use std::time::Duration;

use loadtest::report::Report as _;
use loadtest::scenario::faults::{Plan, run};

#[tokio::test(flavor = "multi_thread")]
async fn every_promise_holds_through_kills_pauses_cuts_and_crashes_of_the_servers() {
    hurt("basic").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_promise_holds_also_where_owners_keep_their_signers() {
    hurt("worker-queue").await;
}

async fn hurt(mode: &'static str) {
    // Each of the ten kinds of fault once.
    let plan = Plan {
        mode,
        faults: 10,
        mean_gap: Duration::from_millis(1_500),
        freeze: Duration::from_secs(4),
        // Once with everything that keeps strangers out.
        secured: mode == "worker-queue",
        ..Plan::default()
    };
    eprintln!("{mode}, seed {}", plan.seed);
    let report = run(&plan, |fault| eprintln!("{fault:?}")).await.unwrap();
    eprintln!("{}", report.table());
    assert_eq!(report.violations, Vec::<String>::new(), "seed {}", plan.seed);
    // Otherwise nothing was tried.
    assert!(report.requests["granted"] > 50 && report.requests["settled"] > 50, "{:?}", report.requests);
    assert_eq!((report.faults.len(), report.faults.values().sum::<u64>()), (10, 10), "{:?}", report.faults);
}
