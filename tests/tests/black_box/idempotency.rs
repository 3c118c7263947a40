//! One key, one answer, on whichever instance it is asked.

use serde_json::{Value, json};
use testkit::fleet::Fleet;
use testkit::http::{Client, Reply};
use testkit::servers::Database;

use crate::patient;

async fn fleet() -> Fleet {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    Fleet::on(database, "basic", 3, |setup| setup).await.unwrap()
}

/// Asks until the answer is not "later".
async fn persist(client: &Client, url: &str, key: &str, body: &Value) -> Reply {
    loop {
        let reply = client.request("POST", url, Some(key), Some(body)).await.unwrap();
        if reply.status != 503 {
            return reply;
        }
        assert!(reply.retry_after.is_some() && reply.body["retry_after_ms"].is_u64(), "{}", reply.text);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_sprayed_over_three_instances_gives_one_answer() {
    let fleet = fleet().await;
    let client = patient();
    for round in 0..10 {
        let key = format!("spray-{round}");
        let mut asking = tokio::task::JoinSet::new();
        for url in fleet.urls().iter().cycle().take(12) {
            let (client, key) = (client.clone(), key.clone());
            let url = format!("{url}/v1/signers/sprayed/nonces");
            asking.spawn(async move { persist(&client, &url, &key, &json!({"count": 3})).await });
        }
        let replies = asking.join_all().await;
        let holds = |reply: &Reply| -> Vec<(Value, Value)> {
            let grants = reply.body["grants"].as_array().unwrap();
            grants.iter().map(|one| (one["nonce"].clone(), one["hold"].clone())).collect()
        };
        for reply in &replies {
            assert_eq!(reply.status, 201, "{}", reply.text);
            assert_eq!(holds(reply), holds(&replies[0]));
        }
    }
    let shown = client.get(&format!("{}/v1/signers/sprayed", fleet.urls()[0])).await.unwrap();
    assert_eq!((&shown["next_nonce"], &shown["held"]), (&json!(30), &json!(30)), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_with_another_body_is_key_reused_on_every_instance() {
    let fleet = fleet().await;
    let client = patient();
    let url = |index: usize| format!("{}/v1/signers/reused/nonces", fleet.urls()[index]);
    let first = persist(&client, &url(0), "k", &json!({"count": 1})).await;
    assert_eq!(first.status, 201, "{}", first.text);
    for index in 0..3 {
        let reply = persist(&client, &url(index), "k", &json!({"count": 2})).await;
        assert_eq!((reply.status, reply.code()), (422, "key_reused"), "{}", reply.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replay_whose_hold_was_let_go_is_stale_on_every_instance() {
    let fleet = fleet().await;
    let client = patient();
    let url = |index: usize| format!("{}/v1/signers/moved/nonces", fleet.urls()[index]);
    let first = persist(&client, &url(0), "k", &json!({"count": 2})).await;
    let hold = &first.body["grants"][0]["hold"];
    let release = json!({"hold": hold, "outcome": "never_sent"});
    let released = persist(&client, &format!("{}/0/release", url(1)), "unused", &release).await;
    assert_eq!(released.status, 200, "{}", released.text);
    let other = persist(&client, &url(2), "other", &json!({"count": 1})).await;
    assert_eq!(other.body["grants"][0]["nonce"], 0, "the hole goes first: {}", other.text);
    for index in 0..3 {
        let reply = persist(&client, &url(index), "k", &json!({"count": 2})).await;
        assert_eq!((reply.status, reply.code()), (409, "stale_hold"), "{}", reply.text);
        // The caller may have crashed after it sent its transactions, and not know its nonces.
        let detail = reply.body["detail"].as_str().unwrap();
        assert!(detail.contains("no transaction was sent") && detail.ends_with("nonces 0 to 1"), "{detail}");
        let granted = first.body["grants"].as_array().unwrap().iter();
        let granted: Vec<_> =
            granted.map(|one| json!({"nonce": one["nonce"], "hold": one["hold"]})).collect();
        assert_eq!(reply.body["granted_before"], json!(granted), "{}", reply.text);
    }
    // With these it settles what it still holds, and nothing that is another caller's by now.
    let mine = persist(&client, &url(0), "k", &json!({"count": 2})).await;
    let mine = &mine.body["granted_before"];
    for (at, code) in [(0_usize, "stale_hold"), (1, "")] {
        let release = json!({"hold": mine[at]["hold"], "outcome": "never_sent"});
        let reply = persist(&client, &format!("{}/{at}/release", url(1)), "unused", &release).await;
        assert_eq!(reply.code(), code, "{}", reply.text);
    }
}
