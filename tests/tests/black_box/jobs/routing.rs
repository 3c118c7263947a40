//! The way of a caller's request to the owner of its session, which another instance is.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use super::rig::{Node, PATIENCE, Rig, Runs, echo, with};
use super::session_client::{open, owner, settled};
use crate::shutdown::begin_request;
use crate::until;

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

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_stops_leaves_its_sessions_while_a_request_is_still_under_way() {
    let patient = |setup: Setup| setup.env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "60000");
    let rig = Rig::shaped(2, false, patient).await;
    settled(&rig).await;
    let session = open(&rig, 0, json!({ "ordering": "none" })).await;
    rig.post(0, "/v1/jobs", Some(&later(&session)), 202).await;
    let stops = owner(&rig, 0, &session).await;
    let other = 1 - stops;
    let job = echo(1).to_string();
    let mut held = begin_request(&rig.urls[stops], "/v1/jobs", job.len()).await;

    rig.instance(stops).await.process().signal(Signal::Terminate).unwrap();
    until("it is stopping", async || rig.ask(stops, "GET", "/readyz", None).await.status == 503).await;
    until("the other instance accepts a job", async || {
        rig.ask(other, "POST", "/v1/jobs", Some(&later(&session))).await.status == 202
    })
    .await;
    assert_eq!(owner(&rig, other, &session).await, other);

    // It was under way all the time.
    held.write_all(job.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, held.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    let status = rig.instance(stops).await.ended(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(0));
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_stops_leaves_a_session_whose_backlog_keeps_its_nodes_busy() {
    const BATCHES: usize = 6;
    let rig = Rig::together(2).await;
    settled(&rig).await;
    let session = open(&rig, 0, json!({ "ordering": "none" })).await;
    rig.post(0, "/v1/jobs", Some(&later(&session)), 202).await;
    let stops = owner(&rig, 0, &session).await;
    let other = 1 - stops;
    let jobs = vec![with(echo(1), json!({ "session": session })); 1_000];
    for _ in 0..BATCHES {
        rig.submit_all(stops, &jobs).await;
    }
    // Results come faster than commits end, and for many times longer than the session takes to move.
    let runs = Runs::new();
    runs.take(Duration::from_millis(100));
    let busy = |options: &mut client::node::WorkerOptions| options.capacity = 64;
    let node = Node::sharing(runs, &rig.urls, "n", busy);
    node.runs.until("results have come", |runs| runs.len() > 128).await;

    let heir = json!(rig.instance(other).await.ready().instance);
    rig.instance(stops).await.process().signal(Signal::Terminate).unwrap();
    until("the other instance has the session", async || {
        let lease = rig.get(other, &format!("/v1/leases/session:{session}")).await;
        lease["live"] == true && lease["owner"] == heir
    })
    .await;
    let shown = async || rig.get(other, &format!("/v1/sessions/{session}")).await;
    let moved = shown().await;
    assert!(moved["jobs"]["created"].as_u64() > Some(1), "its backlog moves with it: {moved}");
    let status = rig.instance(stops).await.ended(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(0));
    until("all jobs but the one that is not due are finished", async || {
        shown().await["jobs"]["finished"] == json!(BATCHES * 1_000)
    })
    .await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_callers_are_redirected_each_refused_job_of_many_names_its_owner_and_the_owners_url() {
    let redirecting = |setup: Setup| setup.env("FENCEPOST__WORKER_QUEUE__ON_MISROUTE", "redirect");
    let rig = Rig::shaped(2, false, redirecting).await;
    settled(&rig).await;
    let session = open(&rig, 0, json!({ "ordering": "none" })).await;
    let placed = rig.get(0, &format!("/v1/cluster/owner/session:{session}")).await;
    let at = rig.urls.iter().position(|url| placed["url"] == url.as_str()).unwrap();
    let other = 1 - at;
    let cancelled = async |index: usize, job: Value| {
        let id = rig.submit(index, job).await;
        rig.post(index, &format!("/v1/jobs/{id}/cancel"), None, 200).await;
        id
    };
    let of_session = cancelled(at, later(&session)).await;
    let free = with(echo(1), json!({ "delay_ms": 3_600_000 }));
    let of_none = cancelled(other, free.clone()).await;
    let instance = rig.instance(at).await.ready().instance.clone();
    let names_it = |refused: &Value| {
        let named = (&refused["code"], &refused["owner"], &refused["owner_url"]);
        named == (&json!("not_owner"), &json!(instance), &json!(rig.urls[at]))
    };

    let jobs = json!({ "jobs": [free, later(&session)] });
    let batch = rig.post(other, "/v1/jobs/batch", Some(&jobs), 202).await;
    assert!(batch["results"][0]["id"].is_string() && names_it(&batch["results"][1]), "{batch}");
    let ids = json!({ "ids": [of_none, of_session] });
    let retried = rig.post(other, "/v1/jobs/retry", Some(&ids), 202).await;
    assert_eq!((&retried["retried"], &retried["results"][0]["retry_of"]), (&json!(1), &json!(of_session)));
    assert!(names_it(&retried["results"][0]), "{retried}");

    let redirected = r#"fencepost_forward_total{result="redirected"}"#;
    let (job, before) = (rig.submit(at, free).await, rig.series(other, redirected).await);
    let refused = rig.ask(other, "POST", &format!("/v1/jobs/{job}/cancel"), None).await;
    assert!(refused.status == 409 && names_it(&refused.body), "{}", refused.text);
    assert!(rig.series(other, redirected).await > before, "a cancel counts as well");
    rig.no_defect().await;
}
