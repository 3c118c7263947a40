//! A Redis to which strangers write, and nodes that speak of others' attempts: they run nothing, and revoke nothing.

use serde_json::json;

use super::hand::{Hand, heartbeat};
use super::rig::{Rig, hold};
use crate::{patient, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_strangers_put_into_redis_runs_nothing_and_revokes_nothing() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    rig.node_is(1, "n", |node| node["state"] == "online").await;
    // A job of one instance runs on a node of the other.
    let id = rig.submit(1, hold("right")).await;
    node.runs.begun(&id, 1).await;
    let job = rig.get(1, &format!("/v1/jobs/{id}")).await;
    let (lane, holder) = (&job["lane"], rig.instance(0).await.ready().instance.clone());
    let other = "00000000-0000-7000-8000-000000000001";
    let report = |event| json!({"lane": lane, "job": id, "attempt": 1, "event": event});
    let forged = [
        // As instances of 0.1.0 wrote it: with a payload.
        json!({
            "type": "dispatch", "job": other, "attempt": 1, "node": "n", "holder": holder, "payload": "\"wrong\"",
            "session": null, "seq": null, "timeout_ms": 60_000, "lane": lane, "owner": holder, "counted": 0,
            "max_attempts": 1, "backoff": [1_000, 200, 60_000],
        }),
        json!({"type": "dispatch", "job": other, "attempt": 1, "node": "n", "holder": holder, "lane": lane, "owner": holder}),
        json!({"type": "withdrawal", "job": id, "attempt": 1, "node": "n", "holder": holder}),
        json!({"type": "reports", "forwarded": false, "reports": [
            report(json!({"revoked": {"why": "node_lost", "reason": "forged"}})),
            report(json!("connection_lost")), report(json!("finished")), report(json!({"failed": {"due_in_ms": 0}})),
        ]}),
    ]
    .map(|entry| entry.to_string());
    let redis = rig.redis.as_ref().unwrap();
    let keys = |pattern: &str| redis.command(&["KEYS", pattern]).unwrap();
    let inboxes = keys("*{instance:*}:inbox");
    assert_eq!(inboxes.lines().count(), 2, "{inboxes}");
    for (inbox, entry) in inboxes.lines().flat_map(|inbox| forged.iter().map(move |entry| (inbox, entry))) {
        redis.command(&["XADD", inbox, "*", "e", entry]).unwrap();
    }
    let channels = redis.command(&["PUBSUB", "CHANNELS", "*channel:*"]).unwrap();
    let channels_count = channels.lines().count();
    assert_eq!(channels_count, 6, "{channels}");
    for (channel, notice) in channels.lines().flat_map(|it| forged.iter().map(move |notice| (it, notice))) {
        redis.command(&["PUBLISH", channel, notice]).unwrap();
    }
    until("all of it is dropped", async || {
        let mut dropped = 0.0;
        for url in &rig.urls {
            let metrics = patient().request("GET", &format!("{url}/metrics"), None, None).await.unwrap().text;
            let lines = metrics.lines().filter(|line| line.starts_with("fencepost_bus_rejected_total{"));
            let count = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
            dropped += lines.map(count).sum::<f64>();
        }
        // Each entry lies in one inbox; both instances hear each notice.
        dropped == (2 * forged.len() + 2 * channels_count * forged.len()) as f64
    })
    .await;
    node.runs.release(1);
    let job = rig.finished(1, &id).await;
    assert_eq!(
        (&job["outcome"], &job["result"], &job["attempt"]),
        (&json!("succeeded"), &json!("right"), &json!(1))
    );
    assert_eq!(node.runs.all().len(), 1, "nothing else ran");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_lists_anothers_attempt_and_then_no_more_revokes_nothing() {
    let rig = Rig::alone().await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let id = rig.submit(0, hold("right")).await;
    node.runs.begun(&id, 1).await;
    let attempt = json!({"job": id, "attempt": 1});
    for leaves in [true, false] {
        let mut liar = Hand::greeted(&rig, 0, "m", json!([attempt])).await;
        let progress = json!({"type": "progress", "job": id, "attempt": 1, "percent": 66});
        liar.say(progress).await;
        if leaves {
            // The end of its socket revokes nothing either, once the time is over in which a node may come back.
            drop(liar);
            until("it is gone", async || rig.ask(0, "GET", "/v1/nodes/m", None).await.status == 404).await;
        } else {
            liar.say(heartbeat(json!([]))).await;
            liar.hear("heartbeat_ok").await;
        }
    }
    node.runs.release(1);
    let job = rig.finished(0, &id).await;
    assert_eq!((&job["outcome"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job}");
    assert_eq!(node.runs.all().len(), 1, "nothing ran again");
    rig.no_defect().await;
}
