//! The way of a caller's request to the owner of its session, which another instance is.

use serde_json::{Value, json};

use super::rig::{Rig, echo, with};
use super::sessions::{open, owner, settled};

/// A job of a session that comes due long after the test.
fn later(session: &str) -> Value {
    with(echo(1), json!({ "session": session, "delay_ms": 3_600_000 }))
}

/// How many requests the instance has forwarded and got answered.
async fn forwarded(rig: &Rig, index: usize) -> f64 {
    rig.series(index, r#"fencepost_forward_total{result="answered"}"#).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_forwards_answers_with_the_location_that_the_owner_gives() {
    let rig = Rig::together(2).await;
    settled(&rig).await;
    let session = open(&rig, 0, json!({ "ordering": "none" })).await;
    rig.post(0, "/v1/jobs", Some(&later(&session)), 202).await;
    let at = owner(&rig, 0, &session).await;
    for index in [at, 1 - at] {
        let accepted = rig.ask_owner(index, "/v1/jobs", Some(&later(&session)), &[]).await;
        assert_eq!(accepted.status, 202, "{}", accepted.text);
        let job = format!("/v1/jobs/{}", accepted.body["id"].as_str().unwrap());
        assert_eq!(accepted.location.as_deref(), Some(job.as_str()));
        rig.post(index, &format!("{job}/cancel"), None, 200).await;
        let before = if index == at { None } else { Some(forwarded(&rig, index).await) };
        let retried = rig.ask_owner(index, &format!("{job}/retry"), None, &[]).await;
        assert_eq!(retried.status, 202, "{}", retried.text);
        let retry = format!("/v1/jobs/{}", retried.body["id"].as_str().unwrap());
        assert_eq!(retried.location.as_deref(), Some(retry.as_str()));
        if let Some(before) = before {
            assert!(before > 0.0 && forwarded(&rig, index).await > before, "both were forwarded");
        }
    }
    rig.no_defect().await;
}
