//! What an operator reads in the log while something is away: one line when it goes, one when it is back.

use std::os::unix::fs::symlink;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::instance::{Instance, Setup};
use testkit::process::Signal;
use testkit::servers::Database;

use crate::jobs::rig::{Rig, echo};
use crate::plans::rig::{Plan, hold, plan, task};
use crate::recovery::tool;
use crate::{patient, until};

/// How long the outages last: longer than several tries of everything that tries again.
const AWAY: Duration = Duration::from_secs(5);

/// What the metrics say of the check of the bus.
const BUS_CHECK: &str = "fencepost_readyz_check{of=\"bus\"}";

/// The lines of an instance's log after so many bytes of it, and how bad each is.
async fn lines(rig: &Rig, from: usize) -> Vec<(String, String)> {
    let log = rig.instance(0).await.whole_log();
    let read = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| line[name].as_str().unwrap_or_default().to_owned();
        (text("level"), text("message"))
    };
    log[from..].lines().map(read).collect()
}

/// Waits until the instance is ready again.
async fn ready(rig: &Rig) {
    until("the instance is ready again", async || {
        let reply = rig.ask(0, "GET", "/readyz", None).await;
        reply.body["status"] == "ready"
    })
    .await;
}

/// The messages of an outage that needs a person, or has ended.
fn told<'l>(lines: &'l [(String, String)], end: &str) -> Vec<&'l str> {
    let is_told =
        |(level, message): &&(String, String)| level == "WARN" || level == "ERROR" || message == end;
    lines.iter().filter(is_told).map(|(_, message)| message.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_ledger_is_one_line_and_its_end_another() {
    let (rig, ways) = Rig::with_ways_to_the_ledger(1).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let id = rig.submit(0, echo(1)).await;
    rig.finished(0, &id).await;
    let from = rig.instance(0).await.whole_log().len();
    ways[0].cut().await.unwrap();
    let begun = std::time::Instant::now();
    while begun.elapsed() < AWAY {
        let reply = rig.ask(0, "POST", "/v1/jobs", Some(&json!({"payload": 1}))).await;
        assert_eq!(reply.status, 503, "{}", reply.text);
        rig.ask(0, "GET", "/readyz", None).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let mode = json!({"mode": "worker-queue", "version": 1});
    let reply = rig.ask(0, "PUT", "/v1/config/mode", Some(&mode)).await;
    let detail = reply.body["detail"].as_str().unwrap_or_default();
    let says = detail.contains("not known whether anything was written");
    assert!((reply.status, reply.code()) == (503, "ledger_unavailable") && says, "{}", reply.text);
    for (method, path, is_read) in [
        ("GET", format!("/v1/jobs/{id}"), true),
        ("GET", format!("/v1/jobs/{id}?wait_ms=1"), true),
        ("GET", format!("/v1/jobs/{id}/events"), true),
        ("GET", "/v1/sessions".to_owned(), true),
        ("POST", "/v1/sessions".to_owned(), false),
    ] {
        let reply = rig.ask(0, method, &path, None).await;
        assert_eq!((reply.status, reply.code()), (503, "ledger_unavailable"), "{path}: {}", reply.text);
        let detail = reply.body["detail"].as_str().unwrap_or_default();
        let says = detail.contains("not known whether anything was written");
        assert!(says != is_read && !detail.contains("a job"), "{method} {path}: {detail}");
    }
    ways[0].heal().await.unwrap();
    let end = "the ledger is back";
    until("its end is told", async || lines(&rig, from).await.iter().any(|(_, message)| message == end))
        .await;
    ready(&rig).await;
    let seen = lines(&rig, from).await;
    let told = told(&seen, end);
    assert_eq!(told, ["the ledger is away; what needs it waits or is refused", end], "{seen:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_redis_is_one_line_and_its_end_another() {
    let (rig, ways) = Rig::with_ways(1).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let from = rig.instance(0).await.whole_log().len();
    ways[0].cut().await.unwrap();
    tokio::time::sleep(AWAY).await;
    // Nobody has asked for `/readyz`.
    until("the metrics show it", async || rig.series(0, BUS_CHECK).await == 2.0).await;
    ways[0].heal().await.unwrap();
    let end = "the bus is up";
    until("its end is told", async || lines(&rig, from).await.iter().any(|(_, message)| message == end))
        .await;
    ready(&rig).await;
    until("the metrics show that it is over", async || rig.series(0, BUS_CHECK).await == 0.0).await;
    let seen = lines(&rig, from).await;
    let told: Vec<_> =
        told(&seen, end).into_iter().filter(|message| *message != "the bus may lose data").collect();
    assert_eq!(told, ["the bus is down; operations that need it wait", end], "{seen:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_witness_file_that_cannot_be_written_is_one_line_and_its_end_another() {
    let folder = tempfile::tempdir().unwrap();
    let [kept, place, next] = ["kept", "place", "next"].map(|name| folder.path().join(name));
    std::fs::create_dir(&kept).unwrap();
    symlink(&kept, &place).unwrap();
    let file = place.join("witness");
    let setup = Setup::basic().unwrap().env("FENCEPOST__LEDGER__WITNESS_FILE", file.to_str().unwrap());
    let instance = setup.env("FENCEPOST__LOG__FILTER", "info,fencepost=debug").start().await.unwrap();
    let told = |level: &str, words: &str| {
        let log = instance.whole_log();
        log.lines().filter(|line| line.contains(level) && line.contains(words)).count()
    };
    // Nothing can be written below a file, by root neither.
    std::fs::write(&next, "").unwrap();
    std::fs::rename(&next, &place).unwrap();
    let fails = "position cannot be written down";
    until("it is tried again", async || told("\"DEBUG\"", fails) > 0).await;
    symlink(&kept, &next).unwrap();
    std::fs::rename(&next, &place).unwrap();
    until("its end is told", async || told("\"INFO\"", "position is written down again") > 0).await;
    assert_eq!(told("\"WARN\"", fails), 1, "{}", instance.whole_log());
}

/// Comes back when the instance has granted a nonce.
async fn grants(instance: &Instance) {
    let nonces = format!("{}/v1/signers/s/nonces", instance.url());
    until("it grants", async || {
        let reply = patient().request("POST", &nonces, None, Some(&json!({}))).await;
        reply.is_ok_and(|reply| (200..300).contains(&reply.status))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locked_rows_of_leases_end_neither_an_instance_nor_an_owner() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
    let setup = setup.env("FENCEPOST__LEASE__INSTANCE_MS", "4000").env("FENCEPOST__LEASE__SIGNER_MS", "3000");
    let instance = setup.start().await.unwrap();
    let id = instance.ready().instance.clone();
    grants(&instance).await;
    // As a renewal does whose commit waits for a standby: nothing is written, and the rows are not to be had.
    let script = "BEGIN; SELECT 1 FROM lease WHERE resource LIKE 'instance:%' OR resource = 'signer:s' FOR UPDATE; \
                  SELECT pg_sleep(3)";
    let mut psql = std::process::Command::new(tool("psql"));
    let mut lock = psql.args(["-q", "-o", "/dev/null", "-d", database.url(), "-c", script]).spawn().unwrap();
    tokio::task::spawn_blocking(move || lock.wait().unwrap()).await.unwrap();
    grants(&instance).await;
    let end = "the instance's lease is renewed again";
    until("its end is told", async || instance.whole_log().contains(end)).await;
    let log = instance.whole_log();
    let told = |words: &str| log.lines().filter(|line| line.contains(words)).count();
    assert_eq!((told("the row of the instance's lease is locked"), told(end)), (1, 1), "{log}");
    assert!(!log.contains("this incarnation ends"), "{log}");
    assert!(log.contains("rows of leases are locked"), "{log}");
    assert!(!log.contains("a lease was lost"), "{log}");
    let owner =
        patient().request("GET", &format!("{}/v1/signers/s", instance.url()), None, None).await.unwrap();
    assert_eq!(owner.body["owner"], id.as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_whose_ledger_lacks_a_table_for_a_while_goes_on_as_another() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
    // An incarnation that begins gives up before the test does.
    let setup = setup.env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "5000");
    let instance = setup.start().await.unwrap();
    let id = instance.ready().instance.clone();
    // As in a restore of a backup of an earlier release: the lease is gone, and so is what that release did not have.
    let away = "ALTER TABLE ledger_recovery RENAME TO gone; \
                UPDATE lease SET fencing_token = fencing_token + 1000, owner = NULL WHERE resource LIKE 'instance:%'";
    database.query(away).unwrap();
    until("no incarnation begins", async || {
        instance.whole_log().contains("the ledger lets no new incarnation begin")
    })
    .await;
    let ready =
        async || patient().request("GET", &format!("{}/readyz", instance.url()), None, None).await.unwrap();
    // The ledger answers reads meanwhile.
    until("it says that it cannot serve", async || {
        let ready = ready().await;
        (ready.status, ready.code()) == (503, "ledger_unavailable") && ready.text.contains("lacks a table")
    })
    .await;
    database.query("ALTER TABLE gone RENAME TO ledger_recovery").unwrap();
    until("it goes on", async || instance.whole_log().contains("continuing under another id")).await;
    until("it says that it can serve", async || ready().await.status == 200).await;
    grants(&instance).await;
    let signer =
        patient().request("GET", &format!("{}/v1/signers/s", instance.url()), None, None).await.unwrap();
    assert!(signer.body["owner"].as_str().is_some_and(|owner| owner != id), "{}", signer.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_a_person_has_to_end_is_told_once_however_often_it_comes() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
    let instance = setup.env("FENCEPOST__LOG__FILTER", "info,cluster=debug").start().await.unwrap();
    let told = |level: &str, words: &str| {
        let log = instance.whole_log();
        log.lines().filter(|line| line.contains(level) && line.contains(words)).count()
    };
    let failed = "the instance's lease could not be renewed";
    database.query("ALTER TABLE lease RENAME COLUMN renewed_at TO gone").unwrap();
    until("it is tried again", async || told("\"DEBUG\"", failed) >= 3).await;
    database.query("ALTER TABLE lease RENAME COLUMN gone TO renewed_at").unwrap();
    assert_eq!(told("\"WARN\"", failed), 1, "{}", instance.whole_log());
    assert!(told("\"ERROR\"", "upkeep failed") <= 1, "{}", instance.whole_log());
    grants(&instance).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_plan_that_cannot_be_read_is_told_of() {
    let rig = Rig::together(1).await;
    let make = async |tenant: &str| Plan::make(&rig, 0, plan(&[task(tenant, &[hold(json!(0))])])).await.id;
    let plans = [make("one").await, make("two").await];
    rig.end(0, Signal::Kill).await;
    rig.database.as_ref().unwrap().query("update plan_task set document = '{}'").unwrap();
    rig.instance(0).await.start().await.unwrap();
    let told = async |level: &str, plan: &str| {
        let log = rig.instance(0).await.whole_log();
        let words = [level, "the plan could not be read", plan];
        log.lines().filter(|line| words.iter().all(|word| line.contains(word))).count()
    };
    for plan in &plans {
        until("it is tried again", async || told("\"DEBUG\"", plan).await >= 3).await;
    }
    for plan in &plans {
        assert!(told("\"WARN\"", plan).await >= 1, "{plan}: {}", rig.instance(0).await.whole_log());
    }
}
