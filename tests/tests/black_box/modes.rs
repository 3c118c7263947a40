//! The mode: one versioned value for all instances, changed while they run.

use std::time::{Duration, Instant};

use loadtest::checker;
use loadtest::tables;
use serde_json::{Value, json};
use testkit::PATIENCE;
use testkit::fleet::Fleet;
use testkit::http::Client;
use testkit::servers::Database;

use crate::{Load, patient, until};

async fn fleet(mode: &str, count: usize) -> Fleet {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    Fleet::on(database, mode, count, |setup| setup).await.unwrap()
}

async fn change(client: &Client, url: &str, body: &Value) -> (u16, Value) {
    let reply = client.request("PUT", &format!("{url}/v1/config/mode"), None, Some(body)).await.unwrap();
    (reply.status, reply.body)
}

async fn mode(client: &Client, url: &str) -> Value {
    client.get(&format!("{url}/v1/config/mode")).await.unwrap()
}

async fn followed(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !so().await {
        assert!(begun.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn live_leases(client: &Client, url: &str) -> usize {
    let leases = client.list(&format!("{url}/v1/leases")).await.unwrap();
    let live =
        |lease: &&Value| lease["live"] == true && lease["resource"].as_str().unwrap().starts_with("signer:");
    leases.iter().filter(live).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_switch_under_load_is_followed_by_all_and_loses_nothing() {
    let fleet = fleet("basic", 3).await;
    let client = patient();
    let mut load = Load::start(8, fleet.urls());
    load.successes(50).await;
    assert_eq!(mode(&client, &fleet.urls()[0]).await, json!({"mode": "basic", "version": 1}));
    for (version, to) in (1..).zip(["worker-queue", "basic", "worker-queue", "basic"]) {
        let (status, answer) =
            change(&client, &fleet.urls()[version % 3], &json!({"mode": to, "version": version})).await;
        assert_eq!((status, &answer), (200, &json!({"mode": to, "version": version + 1})));
        for url in fleet.urls() {
            followed("all instances follow", async || {
                client.get(&format!("{url}/v1/cluster")).await.unwrap()["mode"] == to
            })
            .await;
        }
        load.successes(100).await;
    }
    load.stop().await;
    followed("no lease is kept in basic mode", async || live_leases(&client, &fleet.urls()[0]).await == 0)
        .await;
    let tables = tables::read(fleet.database(), &client, &fleet.urls()[0]).await.unwrap();
    assert_eq!(checker::check(&load.history.records(), &[], &tables), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canary_is_kept_by_its_owner_and_the_others_go_from_hand_to_hand() {
    let fleet = fleet("basic", 2).await;
    let (client, url) = (patient(), &fleet.urls()[0]);
    let canary = json!({"mode": "worker-queue", "only": ["signer:canary"], "version": 1});
    let (status, answer) = change(&client, url, &canary).await;
    assert_eq!((status, &answer["only"], &answer["version"]), (200, &json!(["signer:canary"]), &json!(2)));
    for url in fleet.urls() {
        followed("all instances follow", async || {
            client.get(&format!("{url}/v1/cluster")).await.unwrap()["only"].is_array()
        })
        .await;
    }
    for signer in ["canary", "other"] {
        let reply =
            client.request("POST", &format!("{url}/v1/signers/{signer}/nonces"), None, None).await.unwrap();
        assert_eq!(reply.status, 201, "{}", reply.text);
    }
    followed("only the canary's lease is kept", async || live_leases(&client, url).await == 1).await;
    let lease = client.get(&format!("{url}/v1/leases/signer:canary")).await.unwrap();
    assert_eq!(lease["live"], true);
    assert_eq!(mode(&client, &fleet.urls()[1]).await, answer, "the ledger's truth on any instance");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_value_is_the_first_starters_and_survives_restarts() {
    let fleet = fleet("basic", 1).await;
    let client = patient();
    let url = fleet.urls()[0].clone();
    let change_it = json!({"mode": "worker-queue", "version": 1});
    assert_eq!(change(&client, &url, &change_it).await.0, 200);
    fleet.kill_and_restart(0, Duration::ZERO).await.unwrap();
    assert_eq!(fleet.instance(0).await.ready().mode, "worker-queue", "though it was started with basic");
    until("it says which mode counts", async || {
        let log = fleet.instance(0).await.whole_log();
        let said = log.lines().find(|line| line.contains("the ledger has a mode, which counts"));
        said.is_some_and(|line| line.contains("\"configured\":\"basic\""))
    })
    .await;
    assert_eq!(mode(&client, &url).await["version"], 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_is_wrong_or_stale_changes_nothing() {
    let fleet = fleet("worker-queue", 1).await;
    let (client, url) = (patient(), &fleet.urls()[0]);
    let before = mode(&client, url).await;
    let too_many: Vec<_> = (0..1_001).map(|number| format!("signer:{number}")).collect();
    for (body, status, code) in [
        (json!({"mode": "basic", "version": 2}), 409, "conflict"),
        (json!({"mode": "basic", "version": 9007199254740991u64}), 409, "conflict"),
        (json!({"mode": "basic", "version": 0}), 400, "invalid"),
        (json!({"mode": "basic", "version": 9007199254740992u64}), 400, "invalid"),
        (json!({"mode": "basic", "version": "1"}), 400, "invalid"),
        (json!({"mode": "basic"}), 400, "invalid"),
        (json!({"version": 1}), 400, "invalid"),
        (json!({"mode": "fast", "version": 1}), 400, "invalid"),
        (json!({"mode": null, "version": 1}), 400, "invalid"),
        (json!({"mode": "basic", "version": 1, "why": "x"}), 400, "invalid"),
        (json!({"mode": "basic", "version": 1, "only": null}), 400, "invalid"),
        (json!({"mode": "basic", "version": 1, "only": []}), 400, "invalid"),
        (json!({"mode": "basic", "version": 1, "only": "signer:x"}), 400, "invalid"),
        (json!({"mode": "basic", "version": 1, "only": ["x"]}), 400, "invalid"),
        (json!({"mode": "basic", "version": 1, "only": ["instance:x"]}), 400, "invalid"),
        (json!({"mode": "basic", "version": 1, "only": ["signer:a b"]}), 400, "invalid"),
        (json!({"mode": "basic", "version": 1, "only": [7]}), 400, "invalid"),
        (json!({"mode": "basic", "version": 1, "only": too_many}), 400, "invalid"),
        (json!([]), 400, "invalid"),
    ] {
        let (got, problem) = change(&client, url, &body).await;
        assert_eq!((got, &problem["code"]), (status, &json!(code)), "{body}: {problem}");
        assert!(!problem["detail"].as_str().unwrap().is_empty(), "{body}: {problem}");
    }
    assert_eq!(mode(&client, url).await, before);
}
