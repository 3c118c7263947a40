//! A drill: a ledger goes to another server while no instance runs, in the documented order, and needs no recovery.

use std::sync::Arc;

use testkit::PATIENCE;
use testkit::proxy::Proxy;
use testkit::servers::Postgres;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_loses_nothing_with_its_server_goes_on_without_a_recovery() {
    let servers = tokio::task::spawn_blocking(|| [(); 2].map(|()| Arc::new(Postgres::start().unwrap())));
    let [before, after] = servers.await.unwrap();
    let database = before.database().unwrap();
    let (_, name) = database.url().rsplit_once('/').unwrap();
    after.query(&format!("create database {name} template template0")).unwrap();
    let proxy = Proxy::start(before.address()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let database_url = format!("postgres://postgres@{}/{name}", proxy.address());
    let setup = Setup::in_mode("worker-queue").unwrap().database(&database_url).dir(folder.path());
    let mut instance = setup.start().await.unwrap();
    let url = instance.url().to_owned();
    make_numbers(&url).await;
    let granted = Granted::default();
    for _ in 0..20 {
        ask_for_all(&url, &granted, &WELL).await;
    }
    assert_eq!(instance.end_by(Signal::Terminate, PATIENCE).await.unwrap().code(), Some(0));
    let place = "SELECT cluster, position FROM ledger_identity";
    let noted = database.query(place).unwrap();
    run_as_documented("schema=", folder.path(), database.url());
    let moved = after.url(name);
    run_as_documented("tail ", folder.path(), &moved);
    let found = Command::new(tool("psql")).args(["-Atc", place, &moved]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&found.stdout).trim_end(), noted[0].join("|"));
    before.stop_immediate().unwrap();
    proxy.lead_to(after.address());
    // With its file an instance knows the other server, and nothing is granted there.
    let refusing = instance.launch().unwrap();
    until("the other server is refused", async || {
        let asked = patient().request("GET", &format!("{url}/readyz"), None, None).await;
        asked.is_ok_and(|answer| answer.code() == "ledger_went_back")
    })
    .await;
    let gone = ["ledger_went_back", "ledger_unavailable", "clock_behind"];
    assert_eq!(ask_for_all(&url, &granted, &gone).await, 0);
    refusing.process().signal(Signal::Terminate).unwrap();
    assert_eq!(refusing.process().wait(PATIENCE).await.unwrap().code(), Some(0));
    std::fs::remove_file(folder.path().join("fencepost-data/witness")).unwrap();
    instance.start().await.unwrap();
    until("everything is granted", async || ask_for_all(&url, &granted, &WELL).await == 6).await;
}
