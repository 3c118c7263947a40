//! Nodes and instances that are lost, one kind at a time: every job that was accepted ends, with one result.

use client::node::Ended;
use serde_json::{Value, json};
use testkit::instance::fencepost;
use testkit::process::Signal;

use super::rig::{Node, PATIENCE, Rig, echo, hold, past, with};
use crate::until;

fn quick() -> Value {
    json!({ "backoff": {"initial_ms": 50} })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_node_had_runs_elsewhere() {
    let rig = Rig::together(2).await;
    let lost = rig.node(&[0], "lost", |options| options.capacity = 2).await;
    let mut ids = Vec::new();
    for index in [0, 1] {
        let id = rig.submit(index, with(hold(index), quick())).await;
        lost.runs.begun(&id, 1).await;
        ids.push(id);
    }
    let other = rig.node(&[1], "other", |options| options.capacity = 2).await;
    other.runs.release(2);
    drop(lost);
    for (n, id) in ids.iter().enumerate() {
        let job = rig.finished(n, id).await;
        assert_eq!(
            (&job["result"], &job["node"], &job["attempt"]),
            (&json!(n), &json!("other"), &json!(2)),
            "{job}"
        );
        assert_eq!(past(&job), [(1, "node_lost".to_owned()), (2, "succeeded".to_owned())]);
    }
    until("it is gone", async || rig.ask(1, "GET", "/v1/nodes/lost", None).await.status == 404).await;
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_comes_back_in_time_keeps_what_it_has() {
    let rig = Rig::together(2).await;
    let mut ways = Vec::new();
    for url in &rig.urls {
        let address = url.strip_prefix("http://").unwrap().parse().unwrap();
        ways.push(testkit::proxy::Proxy::start(address).await.unwrap());
    }
    let urls: Vec<_> = ways.iter().map(|way| format!("http://{}", way.address())).collect();
    let node = Node::start(&urls, "n", |_| {});
    node.connected().await;
    rig.node_is(1, "n", |node| node["state"] == "online").await;
    let id = rig.submit(0, hold("kept")).await;
    node.runs.begun(&id, 1).await;
    let (before, holder) = holder(&rig, "n").await;
    ways[holder].cut().await.unwrap();
    rig.node_is(0, "n", |node| node["instance"] != before && node["state"] == "online").await;
    node.runs.release(1);
    let job = rig.finished(0, &id).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("kept"), &json!(1)), "{job}");
    assert_eq!(node.runs.of(&id).len(), 1);
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_nodes_is_dead_in_the_end() {
    let rig = Rig::alone().await;
    let id = rig.submit(0, json!({"payload": {"deadly": true}, "backoff": {"initial_ms": 10}})).await;
    for attempt in 1..=3 {
        // It may be dead before anybody is shown that it is there.
        let mut node = Node::start(&rig.urls, &format!("victim-{attempt}"), |_| {});
        assert_eq!(node.ended().await, None::<Ended>);
    }
    let job = rig.finished(0, &id).await;
    assert_eq!((&job["outcome"], &job["dead"]), (&json!("failed"), &json!(true)));
    for (n, attempt) in job["attempts"].as_array().unwrap().iter().enumerate() {
        assert_eq!(
            (&attempt["state"], &attempt["node"]),
            (&json!("node_lost"), &json!(format!("victim-{}", n + 1)))
        );
    }
    assert_eq!(past(&job).len(), 3);
    // Replayed by hand it runs, now that it is harmless.
    let node = rig.node(&[0], "survivor", |_| {}).await;
    node.runs.cure();
    let again = rig.post(0, &format!("/v1/jobs/{id}/retry"), None, 202).await;
    assert_eq!(again["retry_of"], id.as_str());
    let again = rig.finished(0, again["id"].as_str().unwrap()).await;
    assert_eq!((&again["outcome"], &again["attempt"]), (&json!("succeeded"), &json!(1)), "{again}");
    rig.nothing_is_held().await;
}

/// The instance that holds a node's socket: its id, and which it is of the first two.
pub(super) async fn holder(rig: &Rig, node: &str) -> (Value, usize) {
    let at = rig.get(0, &format!("/v1/nodes/{node}")).await["instance"].clone();
    let index = usize::from(at != rig.instance(0).await.ready().instance.as_str());
    (at, index)
}

/// Jobs of every kind at the first of the instances named, and how they were submitted.
struct Accepted {
    running: Vec<String>,
    delayed: Vec<String>,
    waiting: Vec<String>,
}

impl Accepted {
    /// Two run, on a node that is full with them.
    async fn at(rig: &Rig, index: usize, node: &Node) -> Self {
        let (mut running, mut delayed, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..2 {
            let id = rig.submit(index, with(hold(format!("r{n}")), quick())).await;
            node.runs.begun(&id, 1).await;
            running.push(id);
        }
        for n in 0..5 {
            delayed.push(rig.submit(index, with(echo(n), json!({"delay_ms": 1_500 + 300 * n}))).await);
            waiting.push(rig.submit(index, echo(n)).await);
        }
        Self { running, delayed, waiting }
    }

    fn all(&self) -> impl Iterator<Item = &String> {
        self.running.iter().chain(&self.delayed).chain(&self.waiting)
    }
}

/// All of them end, and each ran once.
async fn all_end_once(rig: &Rig, index: usize, accepted: &Accepted, node: &Node) {
    for id in accepted.all() {
        let job = rig.finished(index, id).await;
        assert_eq!((&job["outcome"], &job["attempt"]), (&json!("succeeded"), &json!(1)), "{job:#}");
        assert_eq!(node.runs.of(id).len(), 1, "{job}");
    }
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_instances_jobs_all_end_once() {
    let rig = Rig::mortal(3).await;
    // Its node holds on to another instance: what runs is not touched.
    let node = rig.node(&[1], "n", |options| options.capacity = 2).await;
    let accepted = Accepted::at(&rig, 0, &node).await;
    rig.end(0, Signal::Kill).await;
    node.runs.release(2);
    all_end_once(&rig, 2, &accepted, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_killed_instance_goes_to_another_and_its_jobs_end_once() {
    let rig = Rig::mortal(3).await;
    let node = rig.node(&[0, 1], "n", |options| options.capacity = 2).await;
    let (at, holder) = holder(&rig, "n").await;
    let accepted = Accepted::at(&rig, holder, &node).await;
    rig.end(holder, Signal::Kill).await;
    rig.node_is(2, "n", |node| {
        node["instance"].is_string() && node["instance"] != at && node["state"] == "online"
    })
    .await;
    node.runs.release(2);
    all_end_once(&rig, 2, &accepted, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_told_to_stop_leaves_its_jobs_to_the_others() {
    let rig = Rig::together_and_patient(2).await;
    let node = rig.node(&[0, 1], "n", |options| options.capacity = 2).await;
    let (at, holder) = holder(&rig, "n").await;
    let accepted = Accepted::at(&rig, holder, &node).await;
    rig.end(holder, Signal::Terminate).await;
    let left = 1 - holder;
    rig.node_is(left, "n", |node| {
        node["instance"].is_string() && node["instance"] != at && node["state"] == "online"
    })
    .await;
    node.runs.release(2);
    all_end_once(&rig, left, &accepted, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_alone_that_is_killed_finds_its_jobs_again() {
    let rig = Rig::alone_and_patient().await;
    let node = rig.node(&[0], "n", |options| options.capacity = 2).await;
    for signal in [Signal::Kill, Signal::Terminate] {
        let accepted = Accepted::at(&rig, 0, &node).await;
        rig.end(0, signal).await;
        rig.instance(0).await.start().await.unwrap();
        rig.node_is(0, "n", |node| node["state"] == "online").await;
        node.runs.release(2);
        all_end_once(&rig, 0, &accepted, &node).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_later_is_cancelled_after_a_restart_though_nobody_serves_its_lane() {
    let rig = Rig::alone_and_patient().await;
    let later = || with(json!({ "payload": 1, "tenant": "t" }), json!({ "delay_ms": 3_600_000 }));
    let ids = rig.submit_all(0, &[later(), later()]).await;
    rig.end(0, Signal::Terminate).await;
    rig.instance(0).await.start().await.unwrap();
    rig.post(0, &format!("/v1/jobs/{}/cancel", ids[0]), None, 200).await;
    assert_eq!(rig.finished(0, &ids[0]).await["outcome"], "cancelled");
    rig.end(0, Signal::Kill).await;
    rig.instance(0).await.start().await.unwrap();
    let all = json!({ "action": "cancel", "filter": { "tenant": "t" } });
    rig.post(0, "/v1/bulk", Some(&all), 202).await;
    assert_eq!(rig.finished(0, &ids[1]).await["outcome"], "cancelled");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_due_later_is_cancelled_by_whichever_instance_has_buried_its_owner() {
    let rig = Rig::mortal(3).await;
    let later = with(json!({ "payload": 1 }), json!({ "delay_ms": 3_600_000 }));
    let id = rig.submit(0, later).await;
    rig.end(0, Signal::Kill).await;
    let heirs = || {
        let found =
            "select owner from lease where resource like 'instance:%' and resource <> 'instance:' || owner";
        rig.database.as_ref().unwrap().query(found).unwrap()
    };
    let mut heir = Value::Null;
    until("its lease had another owner, and has run out", async || {
        heir = heirs().first().map_or(Value::Null, |row| json!(row[0]));
        heir.is_string()
    })
    .await;
    // By the one that is not the heir.
    let is_heir = rig.get(1, "/v1/cluster").await["instance"] == heir;
    rig.post(if is_heir { 2 } else { 1 }, &format!("/v1/jobs/{id}/cancel"), None, 200).await;
    assert_eq!(rig.finished(1, &id).await["outcome"], "cancelled");
}

/// As though an hour had passed since the instances that have ended were last heard of.
fn an_hour_passes_for_the_dead(rig: &Rig) {
    let age = "update lease set renewed_at = renewed_at - interval '1 hour', acquired_at = acquired_at - interval '1 hour', \
               expires_at = expires_at - interval '1 hour' where resource like 'instance:%' returning resource";
    assert!(!rig.database.as_ref().unwrap().query(age).unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_is_served_though_no_instance_lived_for_an_hour() {
    let rig = Rig::mortal(1).await;
    let id = rig.submit(0, echo("kept")).await;
    rig.end(0, Signal::Kill).await;
    an_hour_passes_for_the_dead(&rig);
    rig.instance(0).await.start().await.unwrap();
    let _node = rig.node(&[0], "n", |_| {}).await;
    assert_eq!(rig.finished(0, &id).await["result"], "kept");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_due_later_is_served_though_the_heir_of_its_owner_has_left_long_ago() {
    let rig = Rig::mortal(2).await;
    let id = rig.submit(0, with(json!({ "payload": 1 }), json!({ "delay_ms": 3_600_000 }))).await;
    rig.end(0, Signal::Kill).await;
    let buried = "select owner from lease where resource like 'instance:%' and resource <> 'instance:' || owner \
                  and expires_at < now()";
    until("its lease had another owner, and has run out", async || {
        !rig.database.as_ref().unwrap().query(buried).unwrap().is_empty()
    })
    .await;
    rig.end(1, Signal::Terminate).await;
    an_hour_passes_for_the_dead(&rig);
    rig.instance(1).await.start().await.unwrap();
    // As long as nothing is known of the others, nobody is taken anything from.
    until("it is cancelled", async || {
        rig.ask(1, "POST", &format!("/v1/jobs/{id}/cancel"), None).await.status == 200
    })
    .await;
    assert_eq!(rig.finished(1, &id).await["outcome"], "cancelled");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_forgets_everything_costs_no_job() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 2).await;
    let accepted = Accepted::at(&rig, 1, &node).await;
    rig.redis.as_ref().unwrap().flush().unwrap();
    node.runs.release(2);
    all_end_once(&rig, 0, &accepted, &node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_runs_jobs_and_what_its_kill_cut_off_runs_again() {
    let rig = Rig::alone().await;
    let node = |name: &str, script: &str| {
        let mut command = fencepost().unwrap();
        command.args(["node", "--url", &rig.urls[0], "--node-id", name, "--exec", "sh", "-c", script]);
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true).spawn().unwrap()
    };
    let dir = tempfile::tempdir().unwrap();
    let began = dir.path().join("began");
    // A killed node leaves its command running, which ends with this test.
    let runs = format!("touch {began}; while [ -e {began} ]; do sleep 0.1; done", began = began.display());
    let mut first = node("first", &runs);
    let id = rig.submit(0, with(json!({"payload": {"word": "你好"}}), quick())).await;
    until("it runs", async || began.exists()).await;
    first.kill().await.unwrap();
    let _second = node("second", "cat");
    let job = rig.finished(0, &id).await;
    assert_eq!((&job["result"], &job["node"]), (&json!({"word": "你好"}), &json!("second")));
    assert_eq!(past(&job), [(1, "node_lost".to_owned()), (2, "succeeded".to_owned())]);

    let mut submit = fencepost().unwrap();
    submit.args(["submit", "--url", &rig.urls[0], "--wait", r#"{"a":[1,2]}"#]);
    let submitted = tokio::process::Command::from(submit).kill_on_drop(true).output();
    let submitted = tokio::time::timeout(PATIENCE, submitted).await.unwrap().unwrap();
    let said = String::from_utf8_lossy(&submitted.stdout);
    assert!(submitted.status.success() && said.contains(r#"{"a":[1,2]}"#), "{submitted:?}");
}
