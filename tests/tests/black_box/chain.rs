//! A real chain judges the nonces.

use loadtest::scenario::chain::{Plan, run};
use testkit::servers::Database;

#[tokio::test(flavor = "multi_thread")]
async fn a_real_chain_accepts_every_nonce_that_three_instances_hand_out() {
    let plan = Plan::default();
    eprintln!("seed {}", plan.seed);
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let report = run(&plan, database).await.unwrap();
    assert_eq!(report.violations, Vec::<String>::new(), "seed {}", plan.seed);
    assert_eq!(report.mined.len(), 10);
    assert!(
        report.mined.values().all(|mined| *mined > 0) && report.withheld > 0,
        "seed {}: {report:?}",
        plan.seed
    );
}
