//! Requests about jobs and nodes that are refused, each for the right reason, and change nothing.

use serde_json::{Value, json};

use super::rig::{Rig, echo, with};

const NOBODY: &str = "0198c0de-0000-7000-8000-000000000001";

/// All that the API shows of jobs, nodes and pools.
async fn shown(rig: &Rig) -> Value {
    let jobs = rig.get(0, "/v1/jobs?limit=1000").await;
    json!([
        jobs,
        rig.get(0, "/v1/nodes").await["items"].as_array().unwrap().len(),
        rig.get(0, "/v1/config/pools").await
    ])
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_is_refused_with_its_code_and_changes_nothing() {
    let rig = Rig::alone().await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let finished = rig.submit(0, echo(1)).await;
    rig.finished(0, &finished).await;
    let delayed = rig.submit(0, with(echo(2), json!({"delay_ms": 3_600_000}))).await;
    let before = shown(&rig).await;
    let job = |fields: Value| ("POST", "/v1/jobs".to_owned(), Some(with(echo(1), fields)), 400, "invalid");
    let post = |path: &str, body: Value, status: u16, code: &'static str| {
        ("POST", path.to_owned(), Some(body), status, code)
    };
    let get = |path: String, status: u16, code: &'static str| ("GET", path, None, status, code);
    let bare = |path: String, status: u16, code: &'static str| ("POST", path, None, status, code);
    let pools = |body: Value, status: u16, code: &'static str| {
        ("PUT", "/v1/config/pools".to_owned(), Some(body), status, code)
    };
    let version = &before[2]["version"];
    let long = |chars: usize| "x".repeat(chars);
    let cases = vec![
        post("/v1/jobs", json!({}), 400, "invalid"),
        post("/v1/jobs", json!([]), 400, "invalid"),
        post("/v1/jobs", json!(null), 400, "invalid"),
        job(json!({"more": 1})),
        job(json!({"tenant": ""})),
        job(json!({"tenant": long(129)})),
        job(json!({"tenant": null})),
        job(json!({"tenant": 7})),
        job(json!({"pool": "a b"})),
        job(json!({"pool": long(65)})),
        job(json!({"priority": 11})),
        job(json!({"priority": -11})),
        job(json!({"priority": 1.5})),
        job(json!({"priority": "1"})),
        job(json!({"delay_ms": -1})),
        job(json!({"delay_ms": 2_592_000_001u64})),
        job(json!({"run_at": "tomorrow"})),
        job(json!({"run_at": "2300-01-01T00:00:00Z"})),
        job(json!({"run_at": "2255-06-05T23:47:34.740992Z"})),
        job(json!({"run_at": "2026-01-31 08:00:00Z"})),
        job(json!({"run_at": 0})),
        job(json!({"run_at": "2026-01-31T08:00:00Z", "delay_ms": 1})),
        job(json!({"timeout_ms": 0})),
        job(json!({"timeout_ms": 86_400_001})),
        job(json!({"max_attempts": 0})),
        job(json!({"max_attempts": 101})),
        job(json!({"backoff": {"factor": 0.5}})),
        job(json!({"backoff": {"factor": 101}})),
        job(json!({"backoff": {"initial_ms": 86_400_001}})),
        job(json!({"backoff": {"initial_ms": 10, "max_ms": 5}})),
        job(json!({"backoff": {"more": 1}})),
        job(json!({"backoff": []})),
        job(json!({"route": {"source": "zh"}})),
        job(json!({"route": "zh:en"})),
        job(json!({"route": {"source": "z h", "target": "en"}})),
        job(json!({"requires": "gpu"})),
        job(json!({"requires": [""]})),
        job(json!({"requires": ["a b"]})),
        job(json!({"requires": vec!["l"; 17]})),
        post("/v1/jobs?wait_ms=1", echo(1), 400, "invalid"),
        post("/v1/jobs", with(echo(1), json!({"session": "none"})), 404, "not_found"),
        post("/v1/jobs", echo(long((1 << 20) + 1)), 413, "too_large"),
        post("/v1/jobs", echo(long(2 << 20)), 413, "too_large"),
        post("/v1/jobs/batch", json!({}), 400, "invalid"),
        post("/v1/jobs/batch", json!({"jobs": []}), 400, "invalid"),
        post("/v1/jobs/batch", json!({"jobs": {}}), 400, "invalid"),
        post("/v1/jobs/batch", json!({"jobs": vec![Value::Null; 1_001]}), 400, "invalid"),
        get(format!("/v1/jobs/{NOBODY}"), 404, "not_found"),
        get("/v1/jobs/7".to_owned(), 404, "not_found"),
        get(format!("/v1/jobs/{finished}?wait_ms=60001"), 400, "invalid"),
        get(format!("/v1/jobs/{finished}?wait_ms=x"), 400, "invalid"),
        get(format!("/v1/jobs/{finished}?more=1"), 400, "invalid"),
        get("/v1/jobs?state=DONE".to_owned(), 400, "invalid"),
        get("/v1/jobs?outcome=good".to_owned(), 400, "invalid"),
        get("/v1/jobs?dead=maybe".to_owned(), 400, "invalid"),
        get("/v1/jobs?retriable=maybe".to_owned(), 400, "invalid"),
        get("/v1/jobs?limit=0".to_owned(), 400, "invalid"),
        get("/v1/jobs?limit=1001".to_owned(), 400, "invalid"),
        get("/v1/jobs?cursor=x".to_owned(), 400, "invalid"),
        get("/v1/jobs?tenant=".to_owned(), 400, "invalid"),
        bare(format!("/v1/jobs/{NOBODY}/cancel"), 404, "not_found"),
        post(&format!("/v1/jobs/{delayed}/cancel"), json!({"why": 1}), 400, "invalid"),
        bare(format!("/v1/jobs/{NOBODY}/retry"), 404, "not_found"),
        bare(format!("/v1/jobs/{delayed}/retry"), 409, "conflict"),
        post("/v1/jobs/retry", json!({}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"ids": []}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"ids": [], "dead": true}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"ids": [], "outcome": "succeeded"}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"state": "RUNNING"}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"state": "CREATED", "dead": true}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"state": "DONE"}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"ids": [finished], "state": "FINISHED"}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"ids": ["7"]}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"ids": [finished], "dead": true}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"ids": [finished], "more": 1}), 400, "invalid"),
        post("/v1/jobs/retry", json!({"ids": vec![NOBODY; 1_001]}), 400, "invalid"),
        get("/v1/nodes/none".to_owned(), 404, "not_found"),
        get("/v1/nodes/a%20b".to_owned(), 400, "invalid"),
        get("/v1/nodes?cursor=x".to_owned(), 400, "invalid"),
        get("/v1/nodes?state=online".to_owned(), 400, "invalid"),
        bare("/v1/nodes/none/drain".to_owned(), 404, "not_found"),
        post("/v1/nodes/n/drain", json!({"now": true}), 400, "invalid"),
        bare("/v1/nodes/none/undrain".to_owned(), 404, "not_found"),
        post("/v1/nodes/select", json!({"payload": 1}), 400, "invalid"),
        post("/v1/nodes/select", json!({"requires": ["a b"]}), 400, "invalid"),
        get("/v1/nodes/ws".to_owned(), 400, "invalid"),
        pools(json!({"pools": []}), 400, "invalid"),
        pools(json!({"version": 99, "pools": []}), 409, "conflict"),
        pools(json!({"version": version, "pools": [{"name": "a b"}]}), 400, "invalid"),
        pools(json!({"version": version, "pools": [{"name": "p"}, {"name": "p"}]}), 400, "invalid"),
        pools(json!({"version": version, "pools": [{"name": "p", "routes": ["zh"]}]}), 400, "invalid"),
        pools(json!({"version": version, "pools": [{"name": "p", "weight": 0}]}), 400, "invalid"),
        ("PUT", format!("/v1/jobs/{finished}"), None, 405, "method_not_allowed"),
        ("PUT", "/v1/jobs".to_owned(), None, 405, "method_not_allowed"),
        ("DELETE", "/v1/nodes/n".to_owned(), None, 405, "method_not_allowed"),
    ];
    let mut wrong = Vec::new();
    for (method, path, body, status, code) in cases {
        let reply = rig.ask(0, method, &path, body.as_ref()).await;
        let body: String = body.map(|body| body.to_string().chars().take(200).collect()).unwrap_or_default();
        let detail = reply.body["detail"].as_str().unwrap_or_default();
        if (reply.status, reply.code()) != (status, code) || detail.is_empty() {
            wrong.push(format!("{method} {path} {body}: {}, not {status} {code}", reply.text));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    for key in ["", "ü", &long(129)] {
        let url = format!("{}/v1/jobs", rig.urls[0]);
        if let Ok(reply) = rig.http.request("POST", &url, Some(key), Some(&echo(1))).await {
            assert_eq!((reply.status, reply.code()), (400, "invalid"), "{key:?}: {}", reply.text);
        }
    }
    assert_eq!(shown(&rig).await, before);
    assert_eq!(node.runs.all().len(), 1);
    rig.no_defect().await;
}
