//! Streams of events: one job to its end, wherever it is served; and whatever happens.

use std::time::Duration;

use client::wire::events::{ClusterHappening, DigestEvent, EventKind, NodeHappening};
use client::wire::jobs::{Job, JobState, Outcome};
use client::wire::nodes::NodeState;
use client::{Client, Error, Event, Events, JobEvents, JobUpdate};
use serde_json::{Value, json};
use testkit::http::plain_http;
use testkit::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;

use super::hand::Hand;
use super::rig::{PATIENCE, Rig, echo, hold, with};
use crate::until;

/// The events of a job, as one instance streams them.
fn events(rig: &Rig, index: usize, id: &str) -> JobEvents {
    Client::new([&rig.urls[index]], None).unwrap().jobs().events(id)
}

/// What happens, as one instance streams it.
async fn all(rig: &Rig, index: usize, kinds: &[EventKind]) -> Events {
    Client::new([&rig.urls[index]], None).unwrap().events(kinds).await.unwrap()
}

async fn update(events: &mut JobEvents) -> Option<JobUpdate> {
    tokio::time::timeout(PATIENCE, events.next()).await.expect("an update comes").unwrap()
}

/// The next change of the job, with what was said of progress before.
async fn change(events: &mut JobEvents) -> Job {
    loop {
        if let JobUpdate::Job(job) = update(events).await.expect("it has not ended") {
            return *job;
        }
    }
}

/// The next event of which this is something.
async fn awaited<T>(events: &mut Events, what: &str, of: impl Fn(Event) -> Option<T>) -> T {
    let wait = async {
        loop {
            let event = events.next().await.unwrap().expect("the stream goes on");
            if let Some(it) = of(event) {
                return it;
            }
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_begins_with_the_pause_before_its_client_asks_again() {
    let rig = Rig::alone().await;
    let job = rig.submit(0, echo(1)).await;
    for path in ["/v1/events".to_owned(), format!("/v1/jobs/{job}/events")] {
        let request = plain_http(PATIENCE).unwrap().get(format!("{}{path}", rig.urls[0]));
        let mut answer = request.send().await.unwrap();
        let mut text = String::new();
        while !text.contains("\n\n") {
            let chunk = tokio::time::timeout(PATIENCE, answer.chunk()).await.unwrap().unwrap().unwrap();
            text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
        assert!(text.starts_with("retry: 2000\n\n"), "{path}: {text:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_followed_to_its_end_wherever_node_lane_and_stream_are() {
    let rig = Rig::together(3).await;
    let id = rig.submit(2, with(json!({ "payload": {"steps": 3} }), json!({ "tenant": "t" }))).await;
    let mut events = events(&rig, 1, &id);
    let mut seen = Vec::new();
    let JobUpdate::Job(first) = update(&mut events).await.unwrap() else { panic!("the job comes first") };
    let shown: Job = serde_json::from_value(rig.job(1, &id).await).unwrap();
    assert!(shown.waiting_for.is_some(), "there is no node yet");
    let shown = Job { payload: None, waiting_for: None, ..shown };
    assert_eq!(*first, shown, "as GET shows it, without its payload and why it waits");
    seen.push(first.state);
    let node = rig.node(&[0], "far", |_| {}).await;
    while seen.last() != Some(&JobState::Running) {
        let job = change(&mut events).await;
        assert_eq!((job.attempt, job.node.as_deref()), (1, Some("far")));
        seen.push(job.state);
    }
    for (step, percent) in [(1, 33.0), (2, 66.0), (3, 100.0)] {
        node.runs.release(1);
        let Some(JobUpdate::Progress(progress)) = update(&mut events).await else {
            panic!("no progress {step}")
        };
        assert_eq!((progress.id.as_str(), progress.attempt), (id.as_str(), 1));
        assert_eq!((progress.percent, progress.note), (Some(percent), Some(format!("step {step}"))));
        // One that the node's instance does not answer in time shows the job without it.
        for index in 0..3 {
            until("the progress is shown", async || {
                rig.job(index, &id).await["progress"]["percent"] == percent
            })
            .await;
        }
    }
    node.runs.release(1);
    let last = change(&mut events).await;
    seen.push(last.state);
    assert_eq!(seen, [JobState::Created, JobState::Dispatched, JobState::Running, JobState::Finished]);
    assert_eq!((last.outcome, last.result.unwrap().as_str()), (Some(Outcome::Succeeded), "3"));
    assert_eq!(update(&mut events).await, None, "nothing comes after the end");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_come_in_their_order_and_with_their_numbers() {
    let rig = Rig::together(2).await;
    let job =
        with(json!({ "payload": {"fail": 2} }), json!({ "backoff": {"initial_ms": 1500, "factor": 1} }));
    let id = rig.submit(0, job).await;
    let mut events = events(&rig, 1, &id);
    let first = change(&mut events).await;
    let mut seen = vec![(first.attempt, first.state)];
    let _node = rig.node(&[0], "n", |_| {}).await;
    while let Some(update) = update(&mut events).await {
        if let JobUpdate::Job(job) = update {
            seen.push((job.attempt, job.state));
        }
    }
    assert!(seen.is_sorted_by_key(|(attempt, _)| *attempt), "{seen:?}");
    for expected in
        [(0, JobState::Created), (1, JobState::Created), (2, JobState::Created), (3, JobState::Finished)]
    {
        assert!(seen.contains(&expected), "{expected:?} in {seen:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_finished_is_told_once_and_what_is_not_there_is_not_found() {
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let id = rig.submit(0, json!({ "payload": {"echo": 7}, "tenant": "t" })).await;
    rig.finished(0, &id).await;
    let path = format!("{}/v1/jobs/{id}/events", rig.urls[0]);
    let plain = plain_http(PATIENCE).unwrap();
    let answer = plain.get(&path).send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    assert_eq!(answer.headers()["cache-control"], "no-store");
    let text = answer.text().await.unwrap();
    let mut lines = text.lines();
    assert_eq!((lines.next(), lines.next()), (Some("retry: 2000"), Some("")), "{text}");
    assert_eq!((lines.next(), lines.next()), (Some("event: job"), Some("id: 1.FINISHED")), "{text}");
    let data = lines.next().and_then(|line| line.strip_prefix("data: ")).unwrap();
    let mut shown = rig.job(0, &id).await;
    shown.as_object_mut().unwrap().remove("payload");
    assert_eq!(serde_json::from_str::<Value>(data).unwrap(), shown);
    assert_eq!((lines.next(), lines.next()), (Some(""), None));
    let again = plain.get(&path).header("Last-Event-ID", "1.FINISHED").send().await.unwrap();
    assert_eq!(again.status(), 204, "a browser that comes back has heard the end");
    for (method, path, status, code) in [
        ("GET", format!("/v1/jobs/{}/events", "0".repeat(32)), 404, "not_found"),
        ("GET", "/v1/jobs/x/events".to_owned(), 404, "not_found"),
        ("GET", format!("/v1/jobs/{id}/events?wait_ms=1"), 400, "invalid"),
        ("POST", format!("/v1/jobs/{id}/events"), 405, "method_not_allowed"),
        ("GET", "/v1/events?kinds=jobs".to_owned(), 400, "invalid"),
        ("GET", "/v1/events?kinds=".to_owned(), 400, "invalid"),
        ("GET", "/v1/events?kind=job".to_owned(), 400, "invalid"),
    ] {
        let reply = rig.ask(0, method, &path, None).await;
        assert_eq!((reply.status, reply.code()), (status, code), "{method} {path}: {}", reply.text);
    }
    let unknown = events(&rig, 0, &"0".repeat(32)).next().await.unwrap_err();
    assert!(matches!(&unknown, Error::Refused(problem) if problem.status == 404), "{unknown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_end_with_their_instance_and_go_on_at_another() {
    let rig = Rig::mortal(2).await;
    let node = rig.node(&[1], "n", |_| {}).await;
    let id = rig.submit(1, hold("over")).await;
    let both = Client::new([&rig.urls[0], &rig.urls[1]], None).unwrap().in_order();
    let mut followed = both.jobs().events(&id);
    while change(&mut followed).await.state != JobState::Running {}
    let path = format!("{}/v1/jobs/{id}/events", rig.urls[0]);
    let mut raw = plain_http(PATIENCE).unwrap().get(path).send().await.unwrap();
    let mut world = all(&rig, 0, &[EventKind::Cluster]).await;
    rig.end(0, Signal::Terminate).await;
    let ended = async { while raw.chunk().await.unwrap().is_some() {} };
    tokio::time::timeout(PATIENCE, ended).await.expect("the stream ends as it should");
    assert_eq!(tokio::time::timeout(PATIENCE, world.next()).await.unwrap().unwrap(), None);
    node.runs.release(1);
    let last = change(&mut followed).await;
    assert_eq!((last.state, last.result.unwrap().as_str()), (JobState::Finished, "\"over\""));
    assert_eq!(update(&mut followed).await, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_goes_on_by_way_of_the_instance_that_the_node_has_moved_to() {
    let rig = Rig::mortal(3).await;
    let node = rig.node(&[0, 1], "n", |_| {}).await;
    let id = rig.submit(2, json!({ "payload": {"steps": 2} })).await;
    let mut events = events(&rig, 2, &id);
    let mut progress = async |percent: f64| {
        node.runs.release(1);
        loop {
            let update = update(&mut events).await.expect("it has not ended");
            if matches!(update, JobUpdate::Progress(progress) if progress.percent == Some(percent)) {
                return;
            }
        }
    };
    node.runs.begun(&id, 1).await;
    progress(50.0).await;
    let first = rig.get(2, "/v1/nodes/n").await["instance"].clone();
    let of = async |index: usize| rig.get(index, "/v1/cluster").await["instance"].clone();
    let at = if of(0).await == first { 0 } else { 1 };
    let other = of(1 - at).await;
    rig.end(at, Signal::Kill).await;
    rig.node_is(2, "n", |shown| shown["instance"] == other && shown["state"] == "online").await;
    progress(100.0).await;
    assert_eq!(rig.job(2, &id).await["progress"]["percent"], 100.0);
    node.runs.release(1);
    let last = loop {
        let job = change(&mut events).await;
        if job.state == JobState::Finished {
            break job;
        }
    };
    assert_eq!(
        (last.attempt, last.outcome),
        (1, Some(Outcome::Succeeded)),
        "it was one attempt all the time"
    );
    assert_eq!(node.runs.of(&id).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_is_told_though_redis_is_away() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let ids = [rig.submit(0, hold(1)).await, rig.submit(0, hold(2)).await];
    node.runs.begun(&ids[0], 1).await;
    let mut events = ids.each_ref().map(|id| events(&rig, 1, id));
    while change(&mut events[0]).await.state != JobState::Running {}
    let redis = rig.redis.as_ref().unwrap();
    redis.kill();
    node.runs.release(1);
    let last = change(&mut events[0]).await;
    assert_eq!((last.state, update(&mut events[0]).await), (JobState::Finished, None));
    // The instance that holds the node's socket passes the slot on by itself.
    node.runs.begun(&ids[1], 1).await;
    node.runs.release(1);
    while change(&mut events[1]).await.state != JobState::Finished {}
    assert_eq!(update(&mut events[1]).await, None);
    redis.boot().unwrap();
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_falls_silent_is_lost_at_every_instance() {
    let rig = Rig::impatient_with_own_redis(2).await;
    let mut streams = [all(&rig, 0, &[EventKind::Node]).await, all(&rig, 1, &[EventKind::Node]).await];
    let silent = Hand::greeted(&rig, 0, "silent", json!([])).await;
    for events in &mut streams {
        let over = |event| match event {
            Event::Node(node) if node.state == NodeState::Offline => Some(node.what),
            _ => None,
        };
        assert_eq!(awaited(events, "the node is offline", over).await, NodeHappening::Lost);
    }
    drop(silent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_anywhere_is_told() {
    let rig = Rig::mortal(3).await;
    let mut world = all(&rig, 0, &[]).await;
    let mut cluster = all(&rig, 0, &[EventKind::Cluster]).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 2).await;
    let joined = |event| match event {
        Event::Node(node) if node.what == NodeHappening::Joined => Some(node),
        _ => None,
    };
    let joined = awaited(&mut world, "a node joins", joined).await;
    assert_eq!((joined.id.as_str(), joined.state), ("n", NodeState::Online));
    // Others tell once they have heard that somebody listens.
    let heard = async {
        loop {
            rig.finished(2, &rig.submit(2, echo(1)).await).await;
        }
    };
    let finished = |event| match event {
        Event::Job(job) if job.state == JobState::Finished => Some(job),
        _ => None,
    };
    tokio::select! {
        job = awaited(&mut world, "a job of another instance ends", finished) => {
            assert_eq!((job.outcome, job.node.as_deref()), (Some(Outcome::Succeeded), Some("n")));
        }
        () = heard => {}
    }
    let id = rig.submit(2, json!({ "payload": {"steps": 1} })).await;
    for state in [JobState::Created, JobState::Dispatched, JobState::Running] {
        let so = |event| match event {
            Event::Job(job) if job.id == id => Some(job.state),
            _ => None,
        };
        assert_eq!(awaited(&mut world, "each state", so).await, state);
    }
    node.runs.release(1);
    let progress = |event| match event {
        Event::Progress(progress) if progress.id == id => progress.percent,
        _ => None,
    };
    assert_eq!(awaited(&mut world, "progress", progress).await, 100.0);
    node.runs.release(1);
    rig.finished(2, &id).await;
    rig.post(1, "/v1/nodes/n/drain", None, 200).await;
    let changed = |event| match event {
        Event::Node(node) if node.what == NodeHappening::Changed => Some(node.state),
        _ => None,
    };
    assert_eq!(awaited(&mut world, "the node is drained", changed).await, NodeState::Draining);
    node.stop().await;
    let left = |event| match event {
        Event::Node(node) if node.what == NodeHappening::Left => Some(node.state),
        _ => None,
    };
    assert_eq!(awaited(&mut world, "the node leaves", left).await, NodeState::Offline);
    let gone = rig.get(2, "/v1/cluster").await["instance"].clone();
    rig.end(2, Signal::Terminate).await;
    let version = rig.get(1, "/v1/config/mode").await["version"].clone();
    let reply =
        rig.ask(1, "PUT", "/v1/config/mode", Some(&json!({ "mode": "basic", "version": version }))).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    for events in [&mut world, &mut cluster] {
        // In whatever order they are heard of.
        let (mut left, mut mode) = (None, None);
        while left.is_none() || mode.is_none() {
            let of_the_cluster = |event| match event {
                Event::Cluster(event) => Some(event),
                _ => None,
            };
            let event = awaited(events, "an instance leaves, and the mode is another", of_the_cluster).await;
            match event.what {
                ClusterHappening::Left => left = event.instance_id,
                ClusterHappening::Mode => mode = event.mode,
                _ => {}
            }
        }
        assert_eq!(left.unwrap(), gone.as_str().unwrap());
        assert_eq!(mode.unwrap().as_str(), "basic");
    }
    rig.no_defect().await;
}

/// The digests of a stream, added up until there are so many events of jobs.
struct Digests {
    stream: reqwest::Response,
    unread: String,
}

impl Digests {
    async fn open(rig: &Rig, index: usize) -> Self {
        let path = format!("{}/v1/events?kinds=job,progress&digest=true", rig.urls[index]);
        let stream = plain_http(PATIENCE).unwrap().get(path).send().await.unwrap();
        Self { stream, unread: String::new() }
    }

    async fn next(&mut self) -> DigestEvent {
        loop {
            if let Some((event, rest)) = self.unread.split_once("\n\n") {
                let data = event
                    .strip_prefix("event: digest\ndata: ")
                    .map(|data| serde_json::from_str(data).unwrap());
                self.unread = rest.to_owned();
                match data {
                    Some(digest) => return digest,
                    None => continue,
                }
            }
            let chunk = tokio::time::timeout(PATIENCE, self.stream.chunk()).await.expect("a digest comes");
            self.unread.push_str(std::str::from_utf8(&chunk.unwrap().expect("the stream goes on")).unwrap());
        }
    }

    async fn until(&mut self, jobs: u64) -> DigestEvent {
        let mut all = DigestEvent::default();
        while all.job < jobs {
            let digest = self.next().await;
            all.job += digest.job;
            all.progress += digest.progress;
            all.missed |= digest.missed;
        }
        all
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_digest_counts_what_happens_here_and_on_other_instances() {
    let rig = Rig::together(2).await;
    let mut digests = Digests::open(&rig, 0).await;
    let jobs = |count| json!({ "jobs": vec![echo(1); count] });
    rig.post(0, "/v1/jobs/batch", Some(&jobs(10)), 202).await;
    let counted = digests.until(10).await;
    assert_eq!(counted, DigestEvent { job: 10, ..DigestEvent::default() });
    // The other one counts for it when it has heard that somebody wants it.
    let heard = async {
        loop {
            rig.submit(1, echo(1)).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        _ = digests.until(1) => {}
        () = heard => {}
    }
    rig.post(1, "/v1/jobs/batch", Some(&jobs(100)), 202).await;
    rig.post(0, "/v1/jobs/batch", Some(&jobs(100)), 202).await;
    let counted = digests.until(200).await;
    assert!(!counted.missed && counted.progress == 0, "{counted:?}");
    let id = rig.submit(1, json!({ "payload": {"steps": 1} })).await;
    let node = rig.node(&[1], "n", |_| {}).await;
    node.runs.release(1);
    while digests.next().await.progress == 0 {}
    node.runs.release(1);
    rig.finished(1, &id).await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_bounded_and_places_are_free_again() {
    let rig = Rig::alone().await;
    let mut open = Vec::new();
    for _ in 0..128 {
        open.push(all(&rig, 0, &[EventKind::Job]).await);
    }
    let refused = rig.ask(0, "GET", "/v1/events", None).await;
    assert_eq!((refused.status, refused.code()), (429, "overloaded"), "{}", refused.text);
    let id = rig.submit(0, echo(1)).await;
    let mut of_job = events(&rig, 0, &id);
    assert!(update(&mut of_job).await.is_some(), "those of one job have places of their own");
    drop(open);
    // What is written to nobody ends a stream.
    until("a place is free", async || {
        rig.submit(0, echo(1)).await;
        let streams = Client::new([&rig.urls[0]], None)
            .unwrap()
            .with_retry(client::Retry { attempts_max: 1, ..client::Retry::default() });
        streams.events(&[EventKind::Job]).await.is_ok()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_is_cut_off_and_keeps_nobody_waiting() {
    let rig = Rig::alone().await;
    let address = rig.urls[0].strip_prefix("http://").unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut socket = socket.connect(address.parse().unwrap()).await.unwrap();
    let head = format!("GET /v1/events?kinds=job HTTP/1.1\r\nHost: {address}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 64];
    socket.read_exact(&mut first).await.unwrap();
    let jobs = json!({ "jobs": vec![echo(1); 1_000] });
    let is_cut_off = async || {
        let metrics = rig.ask(0, "GET", "/metrics", None).await.text;
        // On a busy machine, where events come slowly, the system finds first that nobody reads, and ends the connection.
        metrics.lines().any(|line| {
            line == "fencepost_event_streams_cut_off_total 1"
                || line == "fencepost_event_streams{of=\"all\"} 0"
        })
    };
    // Until it fills what lies between, and a while after.
    for _ in 0..30 {
        rig.post(0, "/v1/jobs/batch", Some(&jobs), 202).await;
    }
    until("the stream is cut off", async || {
        // On a busy machine events are left out: some more, until there are enough.
        rig.post(0, "/v1/jobs/batch", Some(&jobs), 202).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        is_cut_off().await
    })
    .await;
    let rest = async {
        let mut rest = vec![0; 1 << 20];
        while socket.read(&mut rest).await.is_ok_and(|count| count > 0) {}
    };
    // The connection may be used again: what matters is that nothing more of the stream comes.
    let _ = tokio::time::timeout(Duration::from_secs(1), rest).await;
    until("the stream is over", async || {
        let metrics = rig.ask(0, "GET", "/metrics", None).await.text;
        metrics.contains("fencepost_event_streams{of=\"all\"} 0")
    })
    .await;
    rig.no_defect().await;
}
