//! Jobs that people are done with: dismissed, so that they are not dead any more, and deleted before their time.

use serde_json::{Value, json};

use super::rig::{Rig, echo, with};

const NOBODY: &str = "018f0000-0000-7000-8000-000000000000";

fn broken() -> Value {
    json!({"payload": {"broken": "no such voice"}})
}

async fn refused(rig: &Rig, method: &str, path: &str, status: u16, code: &str) {
    let reply = rig.ask(0, method, path, None).await;
    assert_eq!((reply.status, reply.code()), (status, code), "{method} {path}: {}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dismissed_job_is_not_dead_and_no_filter_of_dead_jobs_retries_it() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let (first, second) = (rig.submit(0, broken()).await, rig.submit(1, broken()).await);
    let good = rig.submit(0, echo(1)).await;
    for id in [&first, &second, &good] {
        rig.finished(0, id).await;
    }
    let dismissed = rig.post(1, &format!("/v1/jobs/{first}/dismiss"), None, 200).await;
    assert_eq!((&dismissed["dead"], &dismissed["outcome"]), (&json!(false), &json!("failed")));
    let at = dismissed["dismissed_at"].clone();
    assert!(at.is_string(), "{dismissed}");
    // Once more changes nothing.
    assert_eq!(rig.post(0, &format!("/v1/jobs/{first}/dismiss"), None, 200).await["dismissed_at"], at);
    let dead = rig.get(1, "/v1/jobs?dead=true").await;
    assert_eq!((dead["items"].as_array().unwrap().len(), &dead["items"][0]["id"]), (1, &json!(second)));
    let others = rig.get(1, "/v1/jobs?dead=false").await;
    assert!(others["items"].as_array().unwrap().iter().any(|job| job["dismissed_at"] == at));
    let retried = rig.post(0, "/v1/jobs/retry", Some(&json!({"dead": true})), 202).await;
    assert_eq!(retried["retried"], 1);
    // By its id it can still be retried.
    rig.post(0, &format!("/v1/jobs/{first}/retry"), None, 202).await;
    refused(&rig, "POST", &format!("/v1/jobs/{second}/dismiss"), 409, "conflict").await;
    refused(&rig, "POST", &format!("/v1/jobs/{good}/dismiss"), 409, "conflict").await;
    let waiting = rig.submit(0, with(echo(1), json!({"delay_ms": 600_000}))).await;
    refused(&rig, "POST", &format!("/v1/jobs/{waiting}/dismiss"), 409, "conflict").await;
    refused(&rig, "POST", &format!("/v1/jobs/{NOBODY}/dismiss"), 404, "not_found").await;
    refused(&rig, "POST", "/v1/jobs/nothing/dismiss", 404, "not_found").await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_job_is_forgotten_with_its_place_and_only_when_it_is_finished() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let session = rig.post(0, "/v1/sessions", Some(&json!({})), 201).await;
    let of_session = || with(echo(1), json!({"session": session["id"]}));
    let (free, in_session) = (rig.submit(1, echo(1)).await, rig.submit(1, of_session()).await);
    assert_eq!(rig.finished(0, &in_session).await["seq"], 1);
    rig.finished(0, &free).await;
    for (index, id) in [(1, &free), (0, &in_session)] {
        let reply = rig.ask(index, "DELETE", &format!("/v1/jobs/{id}"), None).await;
        assert_eq!((reply.status, reply.text.as_str()), (204, ""));
        for index in [0, 1] {
            assert_eq!(rig.ask(index, "GET", &format!("/v1/jobs/{id}"), None).await.status, 404);
        }
        refused(&rig, "DELETE", &format!("/v1/jobs/{id}"), 404, "not_found").await;
    }
    assert!(rig.get(0, "/v1/jobs").await["items"].as_array().unwrap().is_empty());
    // Its place is not given again.
    let next = rig.submit(0, of_session()).await;
    assert_eq!(rig.finished(0, &next).await["seq"], 2);
    let waiting = rig.submit(0, with(echo(1), json!({"delay_ms": 600_000}))).await;
    refused(&rig, "DELETE", &format!("/v1/jobs/{waiting}"), 409, "conflict").await;
    assert_eq!(rig.job(0, &waiting).await["state"], "CREATED");
    refused(&rig, "DELETE", "/v1/jobs/nothing", 404, "not_found").await;
    let reply = rig.ask(0, "DELETE", &format!("/v1/jobs/{next}?force=true"), None).await;
    assert_eq!((reply.status, reply.code()), (400, "invalid"), "{}", reply.text);
    rig.no_defect().await;
}
