//! The kind of a job: from every place where a job is submitted to its node, into every answer, into lists and metrics, and
//! what is refused.

use client::Client;
use client::sessions::Happening;
use client::wire::Json;
use client::wire::jobs::JobRequest;
use client::wire::sessions::SessionRequest;
use serde_json::{Value, json};

use super::rig::{PATIENCE, Rig, echo, with};

fn of_kind(kind: &str, job: Value) -> Value {
    with(job, json!({ "kind": kind }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kind_reaches_a_node_of_another_instance_and_every_answer() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[1], "n", |_| {}).await;
    let id = rig.submit(0, of_kind("send_email", echo(1))).await;
    for index in [0, 1] {
        assert_eq!(rig.finished(index, &id).await["kind"], "send_email");
    }
    assert_eq!(node.runs.of(&id)[0].kind, "send_email");
    let batch = json!({ "jobs": [of_kind("render/video", echo(2)), echo(3)] });
    let answer = rig.post(0, "/v1/jobs/batch", Some(&batch), 202).await;
    for (n, expected) in [(0, json!("render/video")), (1, Value::Null)] {
        let id = answer["results"][n]["id"].as_str().unwrap();
        assert_eq!(rig.finished(1, id).await["kind"], expected);
        assert_eq!(node.runs.of(id)[0].kind, expected);
    }
    let again = rig.post(1, &format!("/v1/jobs/{id}/retry"), None, 202).await;
    let again = again["id"].as_str().unwrap();
    assert_eq!(rig.finished(0, again).await["kind"], "send_email");
    let run = node.runs.of(again).remove(0);
    assert_eq!((run.kind.as_str(), run.retry_of.as_deref()), (Some("send_email"), Some(id.as_str())));
    assert_eq!(node.runs.of(&id)[0].retry_of, None);
    // Lists, of those that ended and of those that wait.
    let waiting = rig.submit(0, with(of_kind("send_email", echo(4)), json!({"delay_ms": 600_000}))).await;
    let listed = async |query: &str| {
        let listed = rig.get(1, &format!("/v1/jobs?{query}")).await;
        let ids =
            listed["items"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap().to_owned());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(listed("kind=send_email").await, [waiting.as_str(), again, id.as_str()]);
    assert_eq!(listed("kind=send_email&state=CREATED").await, [waiting.as_str()]);
    assert_eq!(listed("kind=render%2Fvideo").await.len(), 1);
    assert!(listed("kind=Send_email").await.is_empty());
    // The instance that wrote the end counts it.
    let mut counted = 0.0;
    for url in &rig.urls {
        let text = rig.http.request("GET", &format!("{url}/metrics"), None, None).await.unwrap().text;
        let series = r#"fencepost_job_kinds_total{kind="send_email",outcome="succeeded"} "#;
        counted +=
            text.lines().find_map(|line| line.strip_prefix(series)?.parse::<f64>().ok()).unwrap_or(0.0);
    }
    assert!((counted - 2.0).abs() < 0.1, "{counted}");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_a_session_gives_a_kind_over_its_socket() {
    let rig = Rig::alone().await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let client = Client::new(&rig.urls, None).unwrap();
    let opened = client.sessions().open(&SessionRequest::default(), None).await.unwrap();
    let mut socket = client.sessions().connect(&opened.id, 0).await.unwrap();
    let payload = Json::of(&json!({ "echo": 1 })).unwrap();
    let request = JobRequest { kind: Some("translate".to_owned()), ..JobRequest::new(payload) };
    socket.send("c", request).await.unwrap();
    let result = loop {
        let next = tokio::time::timeout(PATIENCE, socket.next()).await.expect("something happens");
        if let Some(Happening::Result(result)) = next.unwrap() {
            break result;
        }
    };
    assert_eq!(node.runs.of(&result.id)[0].kind, "translate");
    assert_eq!(rig.job(0, &result.id).await["kind"], "translate");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_kind_is_refused_and_nothing_is_kept() {
    let rig = Rig::alone().await;
    let longest = "k".repeat(64);
    let id = rig.submit(0, of_kind(&longest, echo(1))).await;
    assert_eq!(rig.job(0, &id).await["kind"], *longest);
    let cases = [
        json!(""),
        json!(format!("{longest}k")),
        json!("a b"),
        json!("\0"),
        json!("é"),
        json!(7),
        Value::Null,
    ];
    for bad in &cases {
        let job = with(echo(1), json!({ "kind": bad }));
        let reply = rig.ask(0, "POST", "/v1/jobs", Some(&job)).await;
        assert_eq!((reply.status, reply.code()), (400, "invalid"), "{bad}: {}", reply.text);
        let answer = rig.post(0, "/v1/jobs/batch", Some(&json!({ "jobs": [job] })), 202).await;
        assert_eq!(answer["results"][0]["code"], "invalid", "{bad}: {answer}");
    }
    let reply = rig.ask(0, "GET", "/v1/jobs?kind=a%20b", None).await;
    assert_eq!((reply.status, reply.code()), (400, "invalid"), "{}", reply.text);
    assert_eq!(rig.get(0, "/v1/jobs").await["items"].as_array().unwrap().len(), 1, "nothing else is kept");
}
