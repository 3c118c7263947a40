//! Traces: what a collector gets of a job's way, what a node gets, and what a collector that is away changes.

use std::collections::HashMap;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::trace::v1::Span;
use parking_lot::Mutex;
use prost::Message as _;
use serde_json::{Value, json};
use testkit::PATIENCE;
use testkit::http::plain_http;
use testkit::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::hand::{Hand, frame};
use super::rig::{Rig, Run, echo};
use crate::until;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLERS_SPAN: &str = "00f067aa0ba902b7";

/// The caller's span, in a trace that is recorded or not.
fn callers(trace: &str, is_sampled: bool) -> String {
    format!("00-{trace}-{CALLERS_SPAN}-{:02x}", u8::from(is_sampled))
}

/// Takes traces on a port of its own.
struct Collector {
    url: String,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener)
    }

    fn on(listener: TcpListener) -> Self {
        let url = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::default();
        let kept = Arc::clone(&spans);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, Arc::clone(&kept)));
            }
        });
        Self { url, spans }
    }

    /// Spans of this trace, by their names; those of the same name in no order.
    fn of(&self, trace: &str) -> HashMap<String, Vec<Span>> {
        let mut named = HashMap::<_, Vec<_>>::new();
        for span in self.spans.lock().iter().filter(|span| hex(&span.trace_id) == trace) {
            named.entry(span.name.clone()).or_default().push(span.clone());
        }
        named
    }
}

/// Reads requests until the connection ends. Answers each with an empty message, which is a success.
async fn serve(mut socket: TcpStream, spans: Arc<Mutex<Vec<Span>>>) {
    let mut bytes = Vec::new();
    loop {
        let head = loop {
            if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            match socket.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        };
        let text = String::from_utf8(bytes[..head].to_vec()).unwrap().to_ascii_lowercase();
        assert!(text.starts_with("post /v1/traces http/1.1\r\n"), "{text}");
        assert!(text.contains("content-type: application/x-protobuf\r\n"), "{text}");
        assert!(text.contains("x-key: secret\r\n"), "{text}");
        let length = text.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap();
        let end = head + length.parse::<usize>().unwrap();
        while bytes.len() < end {
            match socket.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let request = ExportTraceServiceRequest::decode(&bytes[head..end]).unwrap();
        bytes.drain(..end);
        for resource in request.resource_spans {
            let of = resource.resource.unwrap().attributes;
            let service = of.iter().find(|attribute| attribute.key == "service.name").unwrap();
            let name = service.value.as_ref().unwrap().value.as_ref().unwrap();
            assert_eq!(*name, Attribute::StringValue("fencepost".to_owned()));
            let of_scopes = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.lock().extend(of_scopes);
        }
        if socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.is_err() {
            return;
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends traces to a collector at this URL.
fn traced(url: &str) -> impl Fn(testkit::instance::Setup) -> testkit::instance::Setup {
    move |setup| {
        setup.env("FENCEPOST__TRACES__OTLP_URL", url).env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=secret")
    }
}

/// `POST` with these headers, which must succeed.
async fn post(rig: &Rig, index: usize, path: &str, body: &Value, traceparents: &[&str]) -> Value {
    let headers: Vec<_> = traceparents.iter().map(|traceparent| ("traceparent", *traceparent)).collect();
    let reply = rig.ask_owner(index, path, Some(body), &headers).await;
    assert!((200..300).contains(&reply.status), "POST {path}: {} {}", reply.status, reply.text);
    reply.body
}

fn id(accepted: &Value) -> String {
    accepted["id"].as_str().unwrap().to_owned()
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    Some(match found.value.as_ref()?.value.as_ref()? {
        Attribute::StringValue(text) => text.clone(),
        Attribute::IntValue(number) => number.to_string(),
        Attribute::BoolValue(is_so) => is_so.to_string(),
        other => panic!("{key}: {other:?}"),
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_of_a_job_are_one_trace_from_its_request_to_its_result() {
    let collector = Collector::start().await;
    let rig = Rig::shaped(2, false, traced(&collector.url)).await;
    // The instance that accepts the job is not the one that holds its node.
    let node = rig.node(&[1], "n", |_| {}).await;
    let accepted = post(&rig, 0, "/v1/jobs", &echo(1), &[&callers(TRACE, true)]).await;
    let job = rig.finished(0, &id(&accepted)).await;
    let given = node.runs.of(&id(&accepted))[0].traceparent.clone().unwrap();
    node.stop().await;
    // What is left is sent at the end.
    rig.end(1, Signal::Terminate).await;
    rig.end(0, Signal::Terminate).await;

    let spans = collector.of(TRACE);
    let one = |name: &str| match spans.get(name).map(Vec::as_slice) {
        Some([span]) => span,
        found => panic!("{name}: {found:?} in {:?}", spans.keys()),
    };
    let (request, submit) = (one("POST /v1/jobs"), one("submit"));
    let (dispatch, result) = (one("dispatch"), one("result"));
    assert_eq!(spans.len(), 4, "{:?}", spans.keys());
    let mut parent = CALLERS_SPAN.to_owned();
    for span in [request, submit, dispatch, result] {
        assert_eq!(hex(&span.parent_span_id), parent, "{}", span.name);
        assert!(span.start_time_unix_nano <= span.end_time_unix_nano);
        parent = hex(&span.span_id);
    }
    assert_eq!(given, format!("00-{TRACE}-{}-01", hex(&dispatch.span_id)));
    assert_eq!(job["traceparent"], format!("00-{TRACE}-{}-01", hex(&submit.span_id)), "{job}");
    for (span, key, value) in [
        (request, "http.request.method", "POST"),
        (request, "http.route", "/v1/jobs"),
        (request, "http.response.status_code", "202"),
        (submit, "fencepost.job", &id(&accepted)),
        (submit, "fencepost.jobs", "1"),
        (submit, "fencepost.accepted", "1"),
        (dispatch, "fencepost.job", &id(&accepted)),
        (dispatch, "fencepost.attempt", "1"),
        (dispatch, "fencepost.node", "n"),
        (result, "fencepost.job", &id(&accepted)),
        (result, "fencepost.ok", "true"),
        (result, "fencepost.verdict", "committed"),
    ] {
        assert_eq!(attribute(span, key).as_deref(), Some(value), "{}: {key}", span.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_on_where_a_request_is_forwarded_and_one_begins_where_none_is_named() {
    let collector = Collector::start().await;
    let rig = Rig::shaped(2, false, traced(&collector.url)).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    // A session whose owner is the other instance.
    let session = loop {
        let opened = rig.post(0, "/v1/sessions", Some(&json!({})), 201).await;
        let owner = opened["owner"].as_str().unwrap().to_owned();
        if owner == rig.instance(1).await.ready().instance {
            break id(&opened);
        }
    };
    let in_session = json!({ "payload": { "echo": 1 }, "session": session });
    let batch = json!({ "jobs": [in_session, echo(2), in_session] });
    let answer = post(&rig, 0, "/v1/jobs/batch", &batch, &[&callers(TRACE, true)]).await;
    let accepted: Vec<_> = answer["results"].as_array().unwrap().iter().map(id).collect();
    for id in &accepted {
        rig.finished(0, id).await;
    }
    // Metrics have no spans.
    let scrape = callers(&"d".repeat(32), true);
    let metrics = format!("{}/metrics", rig.urls[0]);
    let reply =
        rig.http.request_with("GET", &metrics, &[("traceparent", scrape.as_str())], None).await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text);
    // Without a trace, and in one that is not recorded.
    let own = id(&post(&rig, 0, "/v1/jobs", &echo(1), &[]).await);
    let unrecorded_trace = "a".repeat(32);
    let unrecorded = [callers(&unrecorded_trace, false)];
    let unrecorded = id(&post(&rig, 0, "/v1/jobs", &echo(1), &[&unrecorded[0]]).await);
    for id in [&own, &unrecorded] {
        rig.finished(0, id).await;
    }
    let given = |id: &str| node.runs.of(id)[0].traceparent.clone().unwrap();
    let (of_own, of_unrecorded) = (given(&own), given(&unrecorded));
    let own_trace = &of_own[3..35];
    until("all spans have come", async || {
        let arrived = |trace: &str, name: &str| collector.of(trace).get(name).map_or(0, Vec::len);
        arrived(TRACE, "result") == 3 && arrived(own_trace, "result") == 1
    })
    .await;
    rig.end(0, Signal::Terminate).await;
    rig.end(1, Signal::Terminate).await;

    assert!(collector.of(&"d".repeat(32)).is_empty());
    let spans = collector.of(TRACE);
    let ids = |name: &str| spans[name].iter().map(|span| hex(&span.span_id)).collect::<Vec<_>>();
    let parent_of = |span: &Span| hex(&span.parent_span_id);
    let requests = &spans["POST /v1/jobs/batch"];
    let first = requests.iter().find(|span| parent_of(span) == CALLERS_SPAN).unwrap();
    let forwarded = requests.iter().find(|span| parent_of(span) == hex(&first.span_id)).unwrap();
    assert_eq!(requests.len(), 2);
    assert_eq!(
        attribute(first, "fencepost.request_id").unwrap(),
        attribute(forwarded, "fencepost.request_id").unwrap()
    );
    // One submission for each instance, and on it an attempt for each job.
    let mut jobs_below = HashMap::new();
    for submit in &spans["submit"] {
        let count = attribute(submit, "fencepost.jobs").unwrap();
        let below = spans["dispatch"].iter().filter(|span| span.parent_span_id == submit.span_id).count();
        assert_eq!(count, below.to_string());
        jobs_below.insert(parent_of(submit), below);
    }
    let expected = [(hex(&first.span_id), 1), (hex(&forwarded.span_id), 2)];
    assert_eq!(jobs_below, HashMap::from(expected));
    let mut parents: Vec<_> = spans["result"].iter().map(parent_of).collect();
    let mut dispatches = ids("dispatch");
    parents.sort();
    dispatches.sort();
    assert_eq!(parents, dispatches);

    assert_ne!(own_trace, TRACE);
    let own_spans = collector.of(own_trace);
    assert_eq!(parent_of(&own_spans["POST /v1/jobs"][0]), "", "it begins the trace");
    assert_eq!(of_own, format!("00-{own_trace}-{}-01", hex(&own_spans["dispatch"][0].span_id)));
    assert!(of_unrecorded.starts_with(&format!("00-{unrecorded_trace}-")), "{of_unrecorded}");
    assert!(of_unrecorded.ends_with("-00"), "{of_unrecorded}");
    assert!(collector.of(&unrecorded_trace).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_collector_a_node_gets_the_callers_own_span_if_it_can_be_read() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[1], "n", |_| {}).await;
    let good = callers(TRACE, true);
    let given = async |id: &str| {
        let job = rig.finished(0, id).await;
        let given = node.runs.of(id)[0].traceparent.clone();
        assert_eq!(job["traceparent"].as_str().map(str::to_owned), given, "{job}");
        given
    };
    let single = id(&post(&rig, 0, "/v1/jobs", &echo(1), &[&good]).await);
    assert_eq!(given(&single).await, Some(good.clone()));
    let batch = json!({ "jobs": [echo(1), echo(2)] });
    let batch = post(&rig, 0, "/v1/jobs/batch", &batch, &[&good]).await;
    for accepted in batch["results"].as_array().unwrap() {
        assert_eq!(given(&id(accepted)).await, Some(good.clone()));
    }
    let opened = rig.post(0, "/v1/sessions", Some(&json!({})), 201).await;
    let in_session = json!({ "payload": { "echo": 1 }, "session": opened["id"] });
    for index in [0, 1] {
        let accepted = post(&rig, index, "/v1/jobs", &in_session, &[&good]).await;
        assert_eq!(given(&id(&accepted)).await, Some(good.clone()), "by way of {index}");
    }
    // A retry keeps it, or has its own.
    let again = format!("/v1/jobs/{single}/retry");
    assert_eq!(given(&id(&post(&rig, 1, &again, &json!({}), &[]).await)).await, Some(good.clone()));
    let other = callers(&"b".repeat(32), true);
    assert_eq!(given(&id(&post(&rig, 1, &again, &json!({}), &[&other]).await)).await, Some(other));
    let (good, upper) = (good.as_str(), good.to_uppercase());
    for bad in [&[][..], &["", "nothing"], &[good, good], &["00-0-0-0"], &[upper.as_str()], &["ff"]] {
        assert_eq!(given(&id(&post(&rig, 0, "/v1/jobs", &echo(1), bad).await)).await, None, "{bad:?}");
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_stages_of_a_plan_continue_the_span_of_its_start_or_of_their_tasks_last_retry_with_one() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[1], "n", |_| {}).await;
    let [unused, start, again] = ["a", "b", "c"].map(|digit| callers(&digit.repeat(32), true));
    let stages =
        |last: Value| json!([{ "name": "s", "payload": { "echo": 1 } }, { "name": "t", "payload": last }]);
    let broken = stages(json!({ "broken": "by design" }));
    // The plan's owner is asked, and the other instance, which forwards the request to it.
    for index in [0, 1] {
        for is_started in [true, false] {
            let task = json!({ "tenant": format!("t{index}-{is_started}"), "stages": broken });
            let plan = json!({ "start": is_started, "tasks": [task] });
            let span = if is_started { start.as_str() } else { unused.as_str() };
            let made = post(&rig, 0, "/v1/plans", &plan, &[span]).await;
            let plan = format!("/v1/plans/{}", id(&made));
            if !is_started {
                post(&rig, index, &format!("{plan}/start"), &json!({}), &[&start]).await;
            }
            let tasks = rig.get(0, &format!("{plan}/tasks")).await;
            let task = id(&tasks["items"][0]);
            let ended = async |run: u64, status: &str| {
                until("the run has ended", async || {
                    let task = rig.get(0, &format!("/v1/tasks/{task}")).await;
                    task["run"] == run && task["status"] == status
                })
                .await;
                let of = |given: &Run| given.stage["task"] == *task && given.stage["run"] == run;
                let given = node.runs.all().into_iter().filter(of);
                given.map(|given| given.traceparent.unwrap()).collect::<Vec<_>>()
            };
            assert_eq!(ended(1, "FAILED").await, [start.as_str(); 2]);
            let retry = format!("/v1/tasks/{task}/retry");
            let mut asked = json!({ "from": "checkpoint", "reason": "again" });
            post(&rig, index, &retry, &asked, &[]).await;
            assert_eq!(ended(2, "FAILED").await, [start.as_str()]);
            asked["stages"] = stages(json!({ "echo": 2 }));
            post(&rig, index, &retry, &asked, &[&again]).await;
            assert_eq!(ended(3, "SUCCEEDED").await, [again.as_str()]);
        }
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_continues_the_span_that_its_node_names_if_that_can_be_read() {
    let collector = Collector::start().await;
    let rig = Rig::alone_and(traced(&collector.url)).await;
    let mut hand = Hand::greeted(&rig, 0, "n", json!([])).await;
    let nodes_span = "1".repeat(16);
    let named = format!("00-{TRACE}-{nodes_span}-01");
    for (said, is_read) in [(named.as_str(), true), ("nonsense", false)] {
        let trace = if is_read { TRACE.to_owned() } else { "d".repeat(32) };
        let accepted = post(&rig, 0, "/v1/jobs", &echo(1), &[&callers(&trace, true)]).await;
        let dispatch = hand.hear("dispatch").await;
        assert_eq!(dispatch["job"], accepted["id"]);
        let of = json!({ "job": dispatch["job"], "attempt": dispatch["attempt"] });
        hand.say(frame("ack", &of, json!({}))).await;
        let more =
            json!({ "ok": false, "error": { "message": "m", "retryable": false }, "traceparent": said });
        hand.say(frame("result", &of, more)).await;
        hand.hear("committed").await;
        until("the result has come", async || collector.of(&trace).contains_key("result")).await;
        let spans = collector.of(&trace);
        let dispatched = hex(&spans["dispatch"][0].span_id);
        assert_eq!(dispatch["traceparent"], format!("00-{trace}-{dispatched}-01"));
        let result = &spans["result"][0];
        let expected = if is_read { &nodes_span } else { &dispatched };
        assert_eq!(hex(&result.parent_span_id), *expected, "{said}");
        assert_eq!(attribute(result, "fencepost.ok").as_deref(), Some("false"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_does_not_answer_delays_and_loses_no_job() {
    // Connections are made, and nothing is read.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let rig = Rig::alone_and(traced(&url)).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 100).await;
    let spans = async |result: &str| -> f64 {
        let text = plain_http(PATIENCE).unwrap().get(format!("{}/metrics", rig.urls[0]));
        let text = text.send().await.unwrap().text().await.unwrap();
        let name = format!("fencepost_trace_spans_total{{result=\"{result}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&name)).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{name} is not in {text}")).parse().unwrap()
    };
    // More spans than the queue takes: each job, and each request for one, has its own.
    let jobs: Vec<_> = (0..1_000).map(echo).collect();
    for _ in 0..3 {
        for id in rig.submit_all(0, &jobs).await {
            assert_eq!(rig.finished(0, &id).await["outcome"], "succeeded");
        }
    }
    until("spans were dropped", async || spans("dropped").await > 1_000.0).await;
    let warnings = async |text: &str| rig.instance(0).await.whole_log().matches(text).count();
    assert_eq!(warnings("the collector does not take traces").await, 1);
    assert_eq!(spans("sent").await, 0.0);

    let collector = Collector::on(listener);
    until("the collector takes them", async || spans("sent").await > 0.0).await;
    until("that is said", async || warnings("the collector takes traces again").await == 1).await;
    let trace = "c".repeat(32);
    let accepted = post(&rig, 0, "/v1/jobs", &echo(1), &[&callers(&trace, true)]).await;
    rig.finished(0, &id(&accepted)).await;
    until("a trace has come", async || collector.of(&trace).contains_key("result")).await;
    assert_eq!(warnings("the collector does not take traces").await, 1);
    node.stop().await;
    rig.no_defect().await;
    rig.end(0, Signal::Terminate).await;
}
