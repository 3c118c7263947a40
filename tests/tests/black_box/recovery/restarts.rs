//! A ledger that went back is refused by the next process too, however the one that has noticed it ends.

use super::*;

/// Which position the file remembers.
fn remembered(file: &Path) -> i64 {
    let known: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    known["position"].as_i64().unwrap()
}

/// A dump that is as far as what the file had when it was made is restored within a second, and the instance that has noticed it
/// ends by this signal.
async fn the_next_process_refuses_after(signal: Signal) {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup::basic().unwrap().database(database.url()).dir(folder.path());
    let mut instance = setup.start().await.unwrap();
    let url = instance.url().to_owned();
    let file = folder.path().join("fencepost-data/witness");
    let position =
        || -> i64 { database.query("SELECT position FROM ledger_identity").unwrap()[0][0].parse().unwrap() };
    let before = remembered(&file);
    until("the file is written", async || remembered(&file) > before).await;
    run_as_documented("schema=", folder.path(), database.url());
    late_has(&url, 2).await;
    let granted_at = position();
    until("a look has been later", async || position() > granted_at).await;
    let mut restore = Command::new(tool("psql"));
    restore.args(["-q", "--single-transaction", "-v", "ON_ERROR_STOP=1", "-d", database.url()]);
    restore.args(["-c", "DROP SCHEMA public CASCADE", "-f", "fencepost.sql"]);
    run(restore.current_dir(folder.path()));
    until("it is noticed", async || ready_code(&url).await == "ledger_went_back").await;
    if matches!(signal, Signal::Kill) {
        // It is being written while the first requests are refused.
        until("what it knew is in the file", async || remembered(&file) > position()).await;
    }
    let status = instance.end_by(signal, testkit::PATIENCE).await.unwrap();
    assert_eq!(status.code(), matches!(signal, Signal::Terminate).then_some(0));
    assert!(remembered(&file) > position());
    let starting = instance.launch().unwrap();
    until("the next process refuses", async || {
        let asked = patient().request("GET", &format!("{url}/readyz"), None, None).await;
        asked.is_ok_and(|answer| {
            assert_ne!(answer.status, 200, "{}", answer.text);
            answer.code() == "ledger_went_back"
        })
    })
    .await;
    let refused = grant_to_late(&url).await;
    assert_ne!(refused.status, 201, "{}", refused.text);
    recovered(database.url(), folder.path()).await;
    instance.becomes_ready(starting).await.unwrap();
    confirm_late(&url, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_ledger_is_refused_after_a_stop_of_the_instance_that_noticed_it() {
    the_next_process_refuses_after(Signal::Terminate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_ledger_is_refused_after_the_instance_that_noticed_it_was_killed() {
    the_next_process_refuses_after(Signal::Kill).await;
}
