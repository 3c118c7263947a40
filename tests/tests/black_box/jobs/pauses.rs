//! Paused pools: nothing is dispatched to them from any instance, over restarts, until somebody resumes them or their time
//! is over.

use serde_json::{Value, json};

use super::rig::{Rig, echo, hold, with};
use crate::recovery::LockedTable;
use crate::until;

async fn pools(rig: &Rig, names: &[&str]) {
    let pools: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
    let reply = rig.ask(0, "PUT", "/v1/config/pools", Some(&json!({"version": 1, "pools": pools}))).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
}

/// Waits until every instance shows so many paused pools to a selection.
async fn selects(rig: &Rig, pool: &str, expected: &Value) {
    for index in 0..rig.urls.len() {
        until("the pause is known everywhere", async || {
            rig.post(index, "/v1/nodes/select", Some(&json!({ "pool": pool })), 200).await["node"]
                == *expected
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_paused_pool_wait_and_others_run() {
    let rig = Rig::together(2).await;
    pools(&rig, &["a", "b"]).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 4).await;
    selects(&rig, "a", &json!("n")).await;
    let in_pool = |pool: &str, job: Value| with(job, json!({ "pool": pool }));
    let running = rig.submit(0, in_pool("a", hold(7))).await;
    node.runs.begun(&running, 1).await;
    let pause = rig.post(0, "/v1/pools/a/pause", Some(&json!({"reason": "repair"})), 200).await;
    assert_eq!(
        (&pause["pool"], &pause["reason"], &pause["until"]),
        (&json!("a"), &json!("repair"), &Value::Null)
    );
    selects(&rig, "a", &Value::Null).await;
    let waiting = [rig.submit(0, in_pool("a", echo(1))).await, rig.submit(1, in_pool("a", echo(2))).await];
    // What runs already runs on, and its slot goes to no job of the pool.
    node.runs.release(1);
    assert_eq!(rig.finished(0, &running).await["result"], 7);
    for index in [0, 1] {
        let other = rig.submit(index, in_pool("b", echo(3))).await;
        assert_eq!(rig.finished(index, &other).await["outcome"], "succeeded");
        let any = rig.submit(index, echo(4)).await;
        assert_eq!(rig.finished(index, &any).await["outcome"], "succeeded");
        let shown = rig.get(index, "/v1/config/pools").await;
        assert_eq!((shown["paused"].as_array().unwrap().len(), &shown["paused"][0]), (1, &pause), "{shown}");
        // What is shown can be sent back.
        assert!(shown["pools"][0].get("paused").is_none());
    }
    for id in &waiting {
        assert_eq!(rig.job(1, id).await["state"], "CREATED");
        assert!(node.runs.of(id).is_empty());
    }
    let resumed = rig.post(1, "/v1/pools/a/resume", None, 200).await;
    assert_eq!(resumed["paused"], json!([]));
    for id in &waiting {
        assert_eq!(rig.finished(0, id).await["outcome"], "succeeded");
    }
    rig.post(0, "/v1/pools/a/resume", None, 200).await;
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_ends_by_itself() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    selects(&rig, "default", &json!("n")).await;
    let pause =
        rig.post(0, "/v1/pools/default/pause", Some(&json!({"reason": "r", "for_ms": 1_500})), 200).await;
    assert!(pause["until"].is_string(), "{pause}");
    let id = rig.submit(1, echo(1)).await;
    assert_eq!(rig.finished(0, &id).await["outcome"], "succeeded");
    assert_eq!(rig.get(0, "/v1/config/pools").await["paused"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_pause_is_refused() {
    let rig = Rig::alone().await;
    for (path, body, status, code) in [
        ("/v1/pools/default/pause", json!({}), 400, "invalid"),
        ("/v1/pools/default/pause", json!({"reason": ""}), 400, "invalid"),
        ("/v1/pools/default/pause", json!({"reason": 7}), 400, "invalid"),
        ("/v1/pools/default/pause", json!({"reason": "x".repeat(1_025)}), 400, "invalid"),
        ("/v1/pools/default/pause", json!({"reason": "r", "for_ms": 0}), 400, "invalid"),
        ("/v1/pools/default/pause", json!({"reason": "r", "for_ms": 2_592_000_001_u64}), 400, "invalid"),
        ("/v1/pools/default/pause", json!({"reason": "r", "for": 1}), 400, "invalid"),
        ("/v1/pools/nowhere/pause", json!({"reason": "r"}), 404, "not_found"),
        ("/v1/pools/a%20b/pause", json!({"reason": "r"}), 400, "invalid"),
        ("/v1/pools/nowhere/resume", json!({}), 404, "not_found"),
        ("/v1/pools/default/resume", json!({"reason": "r"}), 400, "invalid"),
    ] {
        let reply = rig.ask(0, "POST", path, Some(&body)).await;
        assert_eq!((reply.status, reply.code()), (status, code), "{path} {body}: {}", reply.text);
    }
    assert_eq!(rig.get(0, "/v1/config/pools").await["paused"], json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_pause_is_not_denied_where_the_pools_are_not_read_for_the_answer() {
    let rig = Rig::together(1).await;
    rig.post(0, "/v1/pools/default/pause", Some(&json!({"reason": "repair"})), 200).await;
    // The pools are settings, and the pauses are not.
    let lock = LockedTable::lock(rig.database.as_ref().unwrap(), "setting", "ACCESS EXCLUSIVE").await;
    let reply = rig.ask(0, "POST", "/v1/pools/default/resume", None).await;
    lock.free();
    let detail = reply.body["detail"].as_str().unwrap_or_default();
    let says = detail.contains("not known whether anything was written");
    assert!((reply.status, reply.code()) == (503, "ledger_unavailable") && says, "{}", reply.text);
    assert_eq!(rig.get(0, "/v1/config/pools").await["paused"], json!([]), "it was written");
}
