//! Metadata of jobs: from the submission to the node and into every answer, and what is refused.

use std::collections::BTreeMap;

use client::Client;
use client::sessions::Happening;
use client::wire::Json;
use client::wire::jobs::JobRequest;
use client::wire::sessions::SessionRequest;
use serde_json::{Value, json};

use super::rig::{PATIENCE, Rig, echo, with};

#[tokio::test(flavor = "multi_thread")]
async fn metadata_reaches_a_node_of_another_instance_and_stays_with_the_job() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[1], "n", |_| {}).await;
    let metadata = json!({"order": "7 \0 \"é\"", "empty": ""});
    let body = || with(echo(1), json!({ "metadata": metadata }));
    let id = rig.submit(0, body()).await;
    for index in [0, 1] {
        let job = rig.finished(index, &id).await;
        assert_eq!((&job["metadata"], &job["result"]), (&metadata, &json!(1)), "{job}");
    }
    assert_eq!(node.runs.of(&id)[0].metadata, metadata);
    // Of a batch, and without any: given so or not.
    let batch = json!({ "jobs": [body(), echo(2), with(echo(3), json!({"metadata": {}}))] });
    let answer = rig.post(0, "/v1/jobs/batch", Some(&batch), 202).await;
    for (n, expected) in [(0, &metadata), (1, &json!({})), (2, &json!({}))] {
        let id = answer["results"][n]["id"].as_str().unwrap();
        assert_eq!(rig.finished(1, id).await["metadata"], *expected);
        assert_eq!(node.runs.of(id)[0].metadata, *expected);
    }
    // A retry by hand keeps it.
    let again = rig.post(1, &format!("/v1/jobs/{id}/retry"), None, 202).await;
    let again = again["id"].as_str().unwrap();
    assert_eq!(rig.finished(0, again).await["metadata"], metadata);
    assert_eq!(node.runs.of(again)[0].metadata, metadata);
    let listed = rig.get(0, "/v1/jobs?limit=1000").await;
    let is_listed = |job: &&Value| job["metadata"] == metadata;
    assert_eq!(listed["items"].as_array().unwrap().iter().filter(is_listed).count(), 3);
    // It is a part of what was asked under a key.
    let ask = async |body: &Value| {
        let url = format!("{}/v1/jobs", rig.urls[1]);
        rig.http.request("POST", &url, Some("k"), Some(body)).await.unwrap()
    };
    let first = ask(&body()).await;
    assert_eq!((ask(&body()).await.body, first.status), (first.body, 202));
    let other = ask(&with(echo(1), json!({"metadata": {"order": "8"}}))).await;
    assert_eq!((other.status, other.code()), (422, "key_reused"), "{}", other.text);
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_session_gives_metadata_over_its_socket() {
    let rig = Rig::alone().await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let client = Client::new(&rig.urls, None).unwrap();
    let opened = client.sessions().open(&SessionRequest::default(), None).await.unwrap();
    let mut socket = client.sessions().connect(&opened.id, 0).await.unwrap();
    let metadata = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    let payload = Json::of(&json!({ "echo": 1 })).unwrap();
    socket.send("c", JobRequest { metadata, ..JobRequest::new(payload) }).await.unwrap();
    let result = loop {
        let next = tokio::time::timeout(PATIENCE, socket.next()).await.expect("something happens");
        if let Some(Happening::Result(result)) = next.unwrap() {
            break result;
        }
    };
    assert_eq!(node.runs.of(&result.id)[0].metadata, json!({"k": "v"}));
    assert_eq!(rig.job(0, &result.id).await["metadata"], json!({"k": "v"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_beyond_a_limit_is_refused_with_the_limit() {
    let rig = Rig::alone().await;
    let many =
        |count: usize| (0..count).map(|n| (n.to_string(), json!(""))).collect::<serde_json::Map<_, _>>();
    let of = |key: &str, value: &str| json!({ key: value });
    let (key, value) = ("k".repeat(64), "v".repeat(256));
    for good in [Value::from(many(16)), of(&key, &value)] {
        let id = rig.submit(0, with(echo(1), json!({ "metadata": good }))).await;
        assert_eq!(rig.job(0, &id).await["metadata"], good);
    }
    let cases = [
        (Value::from(many(17)), "at most 16 strings"),
        (of("", "v"), "1 to 64 bytes"),
        (of(&format!("{key}k"), "v"), "1 to 64 bytes"),
        (of(&"é".repeat(33), "v"), "1 to 64 bytes"),
        (of("k", &format!("{value}v")), "at most 256 bytes"),
        (json!({"k": 7}), "a string"),
        (json!({"k": null}), "a string"),
        (json!([]), "an object of strings"),
        (Value::Null, "an object of strings"),
    ];
    for (bad, says) in &cases {
        let reply = rig.ask(0, "POST", "/v1/jobs", Some(&with(echo(1), json!({ "metadata": bad })))).await;
        assert_eq!((reply.status, reply.code()), (400, "invalid"), "{bad}: {}", reply.text);
        assert!(reply.body["detail"].as_str().unwrap().contains(says), "{bad}: {}", reply.text);
    }
    let jobs: Vec<_> = cases.iter().map(|(bad, _)| with(echo(1), json!({ "metadata": bad }))).collect();
    let answer = rig.post(0, "/v1/jobs/batch", Some(&json!({ "jobs": jobs })), 202).await;
    for (result, (bad, says)) in answer["results"].as_array().unwrap().iter().zip(&cases) {
        assert_eq!(result["code"], "invalid", "{bad}: {result}");
        assert!(result["detail"].as_str().unwrap().contains(says), "{bad}: {result}");
    }
    assert_eq!(rig.get(0, "/v1/jobs").await["items"].as_array().unwrap().len(), 2, "nothing else is kept");
}
