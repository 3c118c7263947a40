//! SQLite, killed under load: what was answered is there after the restart.

use loadtest::checker;
use loadtest::tables;
use testkit::instance::Setup;
use testkit::process::Signal;

use crate::{Load, patient};

#[tokio::test(flavor = "multi_thread")]
async fn sqlite_keeps_every_answer_when_killed_under_load() {
    let mut instance = Setup::basic().unwrap().start().await.unwrap();
    assert_eq!(instance.ready().ledger, "sqlite");
    let first = instance.ready().instance.clone();
    let mut load = Load::start(6, &[instance.url().to_owned()]);
    for _ in 0..3 {
        load.successes(60).await;
        instance.end_by(Signal::Kill, testkit::PATIENCE).await.unwrap();
        // The file lock of the dead process must not keep its successor out.
        instance.start().await.unwrap();
    }
    load.successes(30).await;
    load.stop().await;
    assert_ne!(instance.ready().instance, first, "each incarnation has a name of its own");

    let tables = tables::shown_tables(&patient(), instance.url(), &load.signers).await.unwrap();
    let violations = checker::check(&load.history.records(), &[], &tables);
    assert_eq!(violations, [], "{}", instance.log());
}
