//! Answers have the fields that clients and scripts read, with the names and types of the contract. The client library
//! cannot show that: it reads them by the same definitions by which they are written.

use std::mem::discriminant;

use serde_json::{Value, json};

use crate::jobs::hand::{Hand, done, frame};
use crate::jobs::rig::{Rig, echo};
use crate::until;

/// The answer has each field of the sample, with a value of the same type. In the sample `null` stands for any value,
/// and an empty list for any list. Fields beside these do not matter.
#[track_caller]
fn is_like(answer: &Value, sample: &Value) {
    match (sample, answer) {
        (Value::Null, _) => {}
        (Value::Object(fields), Value::Object(shown)) => {
            for (name, sample) in fields {
                let value = shown.get(name).unwrap_or_else(|| panic!("{name} is not in {answer}"));
                is_like(value, sample);
            }
        }
        (Value::Array(samples), Value::Array(items)) => {
            assert!(samples.is_empty() || !items.is_empty(), "none is like {sample}");
            for sample in samples {
                for item in items {
                    is_like(item, sample);
                }
            }
        }
        _ => assert_eq!(discriminant(answer), discriminant(sample), "{answer} is not like {sample}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn signers_leases_and_instances_are_shown_by_the_names_of_the_contract() {
    let rig = Rig::alone().await;
    let policy =
        json!({"first_nonce": 5, "hold_ms": 600_000, "on_expiry": "quarantine", "max_in_flight": 100});
    let set = rig.ask(0, "PUT", "/v1/signers/s/policy", Some(&policy)).await;
    assert_eq!(set.status, 200, "{}", set.text);
    is_like(&set.body, &json!({"signer": "s", "policy": policy}));
    let granted = rig.post(0, "/v1/signers/s/nonces", Some(&json!({"count": 10})), 201).await;
    let grant = json!({"nonce": 5, "hold": "h", "status": "HELD", "held_until": "t", "held_for_ms": 1});
    is_like(&granted, &json!({"signer": "s", "fencing_token": 1, "owner": "i", "grants": [grant]}));

    let outcomes = ["consumed", "never_sent", "never_sent", "unknown", "unknown", "unknown"];
    let settlements: Vec<_> = outcomes
        .iter()
        .zip(granted["grants"].as_array().unwrap())
        .map(|(outcome, grant)| json!({"nonce": grant["nonce"], "hold": grant["hold"], "outcome": outcome}))
        .collect();
    let settlements = json!({ "settlements": settlements });
    let settled = rig.post(0, "/v1/signers/s/settlements", Some(&settlements), 200).await;
    is_like(&settled, &json!({"results": [{"nonce": 5, "status": "CONSUMED"}]}));
    let signer = rig.get(0, "/v1/signers/s").await;
    let counts = [("next_nonce", 15), ("held", 4), ("released", 2), ("consumed", 1), ("quarantined", 3)];
    for (field, count) in counts {
        assert_eq!(signer[field], count, "{field}: {signer}");
    }
    let shown = json!({
        "signer": "s", "owner": null, "fencing_token": 1, "lease_expires_in_ms": 1, "oldest_hold_ms": 1,
        "policy": policy
    });
    is_like(&signer, &shown);

    let lease = json!({
        "resource": "r", "owner": null, "fencing_token": 1, "acquired_at": "t", "renewed_at": "t", "expires_in_ms": 1,
        "live": true
    });
    is_like(&rig.get(0, "/v1/leases/signer:s").await, &lease);
    is_like(&rig.get(0, "/v1/leases").await, &json!({"items": [lease], "next_cursor": null}));
    let instance = json!({
        "instance_id": "i", "url": "u", "started_at": "t", "hostname": "h", "pid": 1, "version": "v", "resources": 1
    });
    let cluster = json!({"instance": "i", "mode": "m", "ring_version": 1, "instances": [instance]});
    is_like(&rig.get(0, "/v1/cluster").await, &cluster);
    let owner = json!({"resource": "r", "instance_id": "i", "url": "u", "ring_version": 1});
    is_like(&rig.get(0, "/v1/cluster/owner/signer:s").await, &owner);
    is_like(&rig.get(0, "/v1/config/mode").await, &json!({"mode": "m", "version": 1}));
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_jobs_and_sessions_are_shown_by_the_names_of_the_contract() {
    let rig = Rig::alone().await;
    let mut node = Hand::open(&rig, 0).await;
    node.say(json!({"type": "hello", "node_id": "n", "capacity": 1, "labels": ["gpu"], "running": []})).await;
    is_like(&node.hear("welcome").await, &json!({"node_id": "n", "instance": "i", "heartbeat_ms": 1}));
    rig.node_is(0, "n", |shown| shown["state"] == "online").await;
    // Those that came in the last moment may be missing.
    until("the list has the node", async || rig.get(0, "/v1/nodes").await["items"] != json!([])).await;
    let shown = json!({
        "id": "n", "state": "online", "load": null, "labels": ["gpu"], "pools": [], "version": null, "instance": "i"
    });
    is_like(&rig.get(0, "/v1/nodes").await, &json!({"items": [shown], "next_cursor": null}));
    is_like(&rig.get(0, "/v1/config/pools").await, &json!({"version": 1, "pools": []}));
    let selected = rig.post(0, "/v1/nodes/select", Some(&json!({})), 200).await;
    is_like(&selected, &json!({"node": null, "pool": null, "considered": 1, "rejected": {}, "took_us": 1}));

    let accepted = rig.post(0, "/v1/jobs", Some(&echo(1)), 202).await;
    is_like(&accepted, &json!({"id": "j", "state": "CREATED", "lane": "l", "created_at": "t"}));
    let dispatch = node.hear("dispatch").await;
    is_like(&dispatch, &json!({"job": "j", "attempt": 1, "payload": {}, "timeout_ms": 1}));
    let given = json!({"job": dispatch["job"], "attempt": dispatch["attempt"]});
    node.say(frame("ack", &given, json!({}))).await;
    node.say(done(&given, 1)).await;
    is_like(&node.hear("committed").await, &given);
    let job = rig.finished(0, accepted["id"].as_str().unwrap()).await;
    let attempt = json!({"attempt": 1, "node": "n", "state": "succeeded", "reason": "", "at": "t"});
    let finished = json!({
        "id": "j", "state": "FINISHED", "outcome": "succeeded", "lane": "l", "session": null, "tenant": null,
        "pool": null, "attempt": 1, "max_attempts": 3, "node": "n", "payload": {}, "result": 1, "error": null,
        "progress": null, "created_at": "t", "dispatched_at": "t", "running_at": null, "finished_at": "t",
        "released_at": "t", "retry_of": null, "attempts": [attempt]
    });
    is_like(&job, &finished);

    let opened = rig.post(0, "/v1/sessions", Some(&json!({})), 201).await;
    is_like(&opened, &json!({"id": "s", "owner": "i", "ordering": "strict"}));
    let session = rig.get(0, &format!("/v1/sessions/{}", opened["id"].as_str().unwrap())).await;
    let counts = json!({"created": 0, "dispatched": 0, "running": 0, "finished": 0});
    is_like(&session, &json!({"id": "s", "ordering": "strict", "jobs": counts, "last_node": null}));
}
