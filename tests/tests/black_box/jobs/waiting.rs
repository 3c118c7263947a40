//! A job that waits says why.

use serde_json::{Value, json};
use testkit::fake_clock::FakeClock;
use testkit::instance::Setup;

use super::rig::{Rig, echo, hold, with};
use crate::until;

async fn waits(rig: &Rig, index: usize, id: &str, reason: &str) -> Value {
    let mut found = Value::Null;
    until(&format!("{id} waits for {reason}"), async || {
        found = rig.job(index, id).await["waiting_for"].clone();
        found["reason"] == reason
    })
    .await;
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_job_says_why_on_every_instance() {
    let rig = Rig::together(2).await;
    let id = rig.submit(0, echo(1)).await;
    for index in [0, 1] {
        waits(&rig, index, &id, "no_node").await;
    }
    let node = rig.node(&[1], "n", |_| {}).await;
    assert!(rig.finished(0, &id).await.get("waiting_for").is_none(), "it waits no more");
    let labelled = rig.submit(0, with(echo(1), json!({"requires": ["gpu"]}))).await;
    let found = waits(&rig, 1, &labelled, "labels").await;
    assert!(found["detail"].as_str().unwrap().contains("gpu") && found.get("until").is_none(), "{found}");
    let delayed = rig.submit(1, with(echo(1), json!({"delay_ms": 600_000}))).await;
    let found = waits(&rig, 0, &delayed, "not_due").await;
    assert_eq!(found["until"], rig.job(0, &delayed).await["run_at"]);
    // The only slot is taken, and a strict session has an order.
    let session = rig.post(0, "/v1/sessions", Some(&json!({})), 201).await;
    let in_session = |job: Value| with(job, json!({"session": session["id"]}));
    let first = rig.submit(0, in_session(hold(1))).await;
    node.runs.begun(&first, 1).await;
    assert!(rig.job(0, &first).await.get("waiting_for").is_none());
    let second = rig.submit(0, in_session(echo(2))).await;
    let found = waits(&rig, 1, &second, "session_order").await;
    assert!(found["detail"].as_str().unwrap().contains("job 1 of the session"), "{found}");
    let other = rig.submit(1, echo(3)).await;
    waits(&rig, 0, &other, "no_free_slot").await;
    rig.post(0, "/v1/nodes/n/drain", None, 200).await;
    waits(&rig, 1, &other, "draining").await;
    rig.post(0, "/v1/pools/default/pause", Some(&json!({"reason": "new discs", "for_ms": 600_000})), 200)
        .await;
    let found = waits(&rig, 1, &other, "pool_paused").await;
    assert!(found["detail"].as_str().unwrap().contains("new discs") && found["until"].is_string(), "{found}");
    // Lists leave it out.
    let listed = rig.get(0, "/v1/jobs?state=CREATED").await;
    assert!(listed["items"].as_array().unwrap().iter().all(|job| job.get("waiting_for").is_none()));
    rig.post(0, "/v1/pools/default/resume", None, 200).await;
    rig.post(0, "/v1/nodes/n/undrain", None, 200).await;
    node.runs.release(1);
    for id in [&first, &second, &other] {
        assert_eq!(rig.finished(1, id).await["outcome"], "succeeded");
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_not_due_says_so_whatever_the_instances_clock_shows() {
    let clock = FakeClock::new().unwrap();
    clock.set(86_400_000).unwrap();
    let variables = clock.variables();
    let under = |setup: Setup| variables.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    let rig = Rig::shaped(1, false, under).await;
    let delayed = rig.submit(0, with(echo(1), json!({"delay_ms": 600_000}))).await;
    let found = waits(&rig, 0, &delayed, "not_due").await;
    assert_eq!(found["until"], rig.job(0, &delayed).await["run_at"]);
}
