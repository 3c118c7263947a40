//! Which node gets a job, and which job is next.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::process::Signal;

use super::hand::{Hand, heartbeat};
use super::losses::holder;
use super::rig::{Rig, echo, hold, with};
use crate::until;

/// The payloads of what a node was given, in that order.
fn order(runs: &[super::rig::Run]) -> Vec<Value> {
    runs.iter().map(|run| run.payload["echo"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn with_one_place_higher_priority_goes_first_and_tenants_take_turns() {
    let rig = Rig::alone().await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let first = rig.submit(0, hold(0)).await;
    node.runs.begun(&first, 1).await;
    let mut ids = Vec::new();
    for (name, tenant, priority) in [
        ("big-1", "big", 0),
        ("big-2", "big", 0),
        ("big-3", "big", 0),
        ("small", "small", 0),
        ("low", "small", -5),
        ("high", "big", 5),
    ] {
        let job = with(echo(name), json!({"tenant": tenant, "priority": priority}));
        ids.push(rig.submit(0, job).await);
    }
    node.runs.release(1);
    for id in &ids {
        rig.finished(0, id).await;
    }
    let mut order = order(&node.runs.all()[1..]);
    // Whose turn it is among tenants does not matter, but each has one.
    order[1..3].sort_by_key(|name| name == "small");
    assert_eq!(order, ["high", "big-1", "small", "big-2", "big-3", "low"]);
}

/// Jobs of one instance that wait for the same node as one of another.
const BACKLOG: usize = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_of_one_instance_keeps_no_job_of_another_waiting() {
    a_backlog_keeps_no_job_waiting(&Rig::together(2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_keeps_no_job_waiting_whose_own_nodes_are_taken_for_long() {
    let rig = Rig::together(2).await;
    let own = rig.node(&[1], "own", |_| {}).await;
    let long = rig.submit(1, hold("long")).await;
    own.runs.begun(&long, 1).await;
    a_backlog_keeps_no_job_waiting(&rig).await;
    assert_eq!(own.runs.all().len(), 1);
}

async fn a_backlog_keeps_no_job_waiting(rig: &Rig) {
    let node = rig.node(&[0], "n", |options| options.capacity = 2).await;
    rig.node_is(1, "n", |node| node["state"] == "online").await;
    let backlog: Vec<_> = (0..BACKLOG as u64).map(hold).collect();
    rig.post(0, "/v1/jobs/batch", Some(&json!({ "jobs": backlog })), 202).await;
    node.runs.until("the node is full", |runs| runs.len() == 2).await;
    let one = rig.submit(1, echo("one")).await;
    // One at a time, so that the node is full whenever somebody hears of it.
    let mut released = 0;
    while rig.job(1, &one).await["state"] != "FINISHED" {
        assert!(released < BACKLOG - 2, "it waited for all others");
        released += 1;
        node.runs.release(1);
        node.runs.until("the next one begins", |runs| runs.len() > released + 1).await;
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_where_its_requirements_are_met_and_else_waits() {
    let rig = Rig::together(2).await;
    let mandarin = |options: &mut client::node::WorkerOptions| {
        options.languages.asr.push("zh".to_owned());
        options.labels.push("gpu".to_owned());
        options.capacity = 4;
    };
    let _plain = rig.node(&[0], "plain", |options| options.capacity = 4).await;
    let zh = rig.node(&[0], "zh", mandarin).await;
    let en = rig
        .node(&[1], "en", |options| {
            mandarin(options);
            options.languages.tts.push("en".to_owned());
            options.services.push("translate".to_owned());
        })
        .await;
    for (needs, node) in [
        (json!({"requires": ["gpu", "translate"]}), "en"),
        (json!({"route": {"source": "zh", "target": "en"}}), "en"),
        (json!({"requires": ["asr:zh", "tts:en"], "pool": "default"}), "en"),
    ] {
        for index in [0, 1] {
            let id = rig.submit(index, with(echo(1), needs.clone())).await;
            assert_eq!(rig.finished(index, &id).await["node"], node, "{needs}");
        }
        let chosen = rig.post(0, "/v1/nodes/select", Some(&needs), 200).await;
        assert_eq!((&chosen["node"], &chosen["pool"]), (&json!(node), &json!("default")), "{chosen}");
        assert_eq!(chosen["considered"], 3, "{chosen}");
    }
    drop(zh);
    let waits = rig.submit(0, with(echo(2), json!({"requires": ["asr:de"]}))).await;
    let passes = rig.submit(0, echo(3)).await;
    rig.finished(0, &passes).await;
    assert_eq!(rig.job(0, &waits).await["state"], "CREATED");
    let nobody = rig.post(1, "/v1/nodes/select", Some(&json!({"requires": ["asr:de"]})), 200).await;
    assert_eq!(nobody["node"], Value::Null, "{nobody}");
    let _late = rig.node(&[1], "de", |options| options.languages.asr.push("de".to_owned())).await;
    assert_eq!(rig.finished(1, &waits).await["node"], "de");
    drop(en);
}

#[tokio::test(flavor = "multi_thread")]
async fn pools_are_configured_while_running_and_followed_by_all() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |options| options.languages.asr.push("zh".to_owned())).await;
    let pools = rig.get(0, "/v1/config/pools").await;
    let change = json!({"version": pools["version"], "pools": [{"name": "zh-en", "routes": ["zh:en"], "requires": ["asr:zh"]}]});
    let put = async |body: &Value| rig.ask(1, "PUT", "/v1/config/pools", Some(body)).await;
    let changed = put(&change).await;
    assert_eq!(changed.status, 200, "{}", changed.text);
    let stale = put(&change).await;
    assert_eq!((stale.status, stale.code()), (409, "conflict"), "{}", stale.text);
    for index in [0, 1] {
        rig.node_is(index, "n", |node| node["pools"] == json!(["zh-en"])).await;
        assert_eq!(rig.get(index, "/v1/config/pools").await, changed.body);
    }
    for needs in [json!({"pool": "zh-en"}), json!({"route": {"source": "zh", "target": "en"}})] {
        let id = rig.submit(1, with(echo(1), needs)).await;
        assert_eq!(rig.finished(0, &id).await["node"], "n");
    }
    let elsewhere = rig.submit(0, with(echo(1), json!({"pool": "other"}))).await;
    let back = json!({"version": changed.body["version"], "pools": [{"name": "other"}]});
    assert_eq!(put(&back).await.status, 200);
    assert_eq!(rig.finished(0, &elsewhere).await["node"], "n");
}

/// A node under a name that no pool has would wait for jobs for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_told_the_pools_that_it_is_in() {
    let rig = Rig::together(2).await;
    let greet = async |index: usize, pools: Value, labels: Value| {
        let mut hand = Hand::open(&rig, index).await;
        let hello = json!({"type": "hello", "node_id": "n", "capacity": 1, "pools": pools, "labels": labels, "running": []});
        hand.say(hello).await;
        hand.hear("welcome").await["pools"].clone()
    };
    assert_eq!(greet(0, json!(["any"]), json!([])).await, json!(["default"]), "none is configured");
    let version = rig.get(0, "/v1/config/pools").await["version"].clone();
    let gpus = json!([{"name": "gpus", "requires": ["gpu"]}, {"name": "rest"}]);
    let change = json!({"version": version, "pools": gpus});
    assert_eq!(rig.ask(0, "PUT", "/v1/config/pools", Some(&change)).await.status, 200);
    until("the other instance follows", async || {
        rig.get(1, "/v1/config/pools").await["pools"][0]["name"] == "gpus"
    })
    .await;
    assert_eq!(greet(0, json!([]), json!([])).await, json!(["rest"]));
    // Each time it is the same node with another `hello`, here and elsewhere.
    assert_eq!(greet(1, json!([]), json!(["gpu"])).await, json!(["gpus", "rest"]));
    assert_eq!(greet(0, json!(["gpus"]), json!(["gpu"])).await, json!(["gpus"]));
    assert_eq!(greet(0, json!(["gpus"]), json!([])).await, json!([]), "it lacks the label");
    assert_eq!(greet(1, json!(["other"]), json!(["gpu"])).await, json!([]), "no such pool");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_drain_and_its_end_every_instance_shows_it_at_once() {
    let rig = Rig::together(3).await;
    // The holder of the node asks the instances that it knows.
    for index in 0..3 {
        until("it knows the others", async || {
            let cluster = rig.get(index, "/v1/cluster").await;
            let known = cluster["instances"].as_array().unwrap().iter().filter(|it| it["on_ring"] == true);
            known.count() == 3
        })
        .await;
    }
    let _node = rig.node(&[1], "n", |options| options.services.push("ocr".to_owned())).await;
    for round in 0..10 {
        for (verb, state) in [("drain", "draining"), ("undrain", "online")] {
            rig.post(round % 3, &format!("/v1/nodes/n/{verb}"), None, 200).await;
            for index in 0..3 {
                let node = rig.get(index, "/v1/nodes/n").await;
                assert_eq!(node["state"], state, "round {round}, instance {index}: {node:#}");
                let list = rig.get(index, "/v1/nodes").await;
                assert_eq!(list["items"][0]["state"], state, "round {round}, instance {index}: {list:#}");
            }
        }
    }
    // Each instance shows who the node is and when it was heard of.
    let here = rig.get(1, "/v1/nodes/n").await;
    for index in [0, 2] {
        let there = rig.get(index, "/v1/nodes/n").await;
        for field in ["services", "registered_at", "instance", "labels"] {
            assert_eq!(there[field], here[field], "{field}: {there:#}");
        }
        assert_eq!(there["services"], json!(["ocr"]));
        assert!(there["record_version"].as_u64() > Some(1_000_000_000_000_000), "{there:#}");
        assert!(there["heartbeat_at"].as_str() >= there["registered_at"].as_str(), "{there:#}");
    }
    // A heartbeat that reports nothing new is one all the same.
    let before = rig.get(0, "/v1/nodes/n").await["heartbeat_at"].clone();
    until("a heartbeat comes", async || {
        rig.get(0, "/v1/nodes/n").await["heartbeat_at"].as_str() > before.as_str()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_instance_shows_a_nodes_load_as_the_node_reports_it() {
    let rig = Rig::together(2).await;
    let mut node = Hand::greeted(&rig, 0, "n", json!([])).await;
    let load = json!({"cpu": 0.3, "gpu": 0.1, "memory": 12345.678});
    node.say(with(heartbeat(json!([])), json!({"load": load}))).await;
    for index in 0..2 {
        rig.node_is(index, "n", |node| node["load"] == load).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_node_finishes_what_it_has_and_gets_nothing_until_it_is_undrained() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 2).await;
    let held = rig.submit(1, hold(1)).await;
    node.runs.begun(&held, 1).await;
    // Both from where the node is not.
    assert_eq!(rig.post(1, "/v1/nodes/n/drain", None, 200).await["state"], "draining");
    for index in [0, 1] {
        rig.node_is(index, "n", |node| node["state"] == "draining" && node["used"] == 1).await;
    }
    let waits = rig.submit(1, echo(2)).await;
    node.runs.release(1);
    rig.finished(1, &held).await;
    rig.nothing_is_held().await;
    assert_eq!(rig.job(0, &waits).await["state"], "CREATED");
    assert_eq!(rig.post(1, "/v1/nodes/n/undrain", None, 200).await["state"], "online");
    rig.finished(0, &waits).await;
    // One that stops by itself takes no more, and leaves.
    let held = rig.submit(1, hold(3)).await;
    node.runs.begun(&held, 1).await;
    let runs = std::sync::Arc::clone(&node.runs);
    let stopping = tokio::spawn(node.stop());
    rig.node_is(1, "n", |node| node["state"] == "draining").await;
    let waits = rig.submit(1, echo(4)).await;
    runs.release(1);
    rig.finished(1, &held).await;
    stopping.await.unwrap();
    until("it is gone", async || rig.ask(1, "GET", "/v1/nodes/n", None).await.status == 404).await;
    assert_eq!(rig.job(1, &waits).await["state"], "CREATED");
    let _other = rig.node(&[1], "m", |_| {}).await;
    assert_eq!(rig.finished(0, &waits).await["node"], "m");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_outlasts_the_instances_that_hold_the_node_until_it_is_undrained() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0, 1], "n", |_| {}).await;
    rig.post(0, "/v1/nodes/n/drain", None, 200).await;
    // A rolling restart.
    for _ in 0..2 {
        let (before, holder) = holder(&rig, "n").await;
        rig.end(holder, Signal::Terminate).await;
        let has_moved = |node: &Value| node["instance"] != before && node["state"] == "draining";
        rig.node_is(1 - holder, "n", has_moved).await;
        rig.instance(holder).await.start().await.unwrap();
        rig.node_is(holder, "n", has_moved).await;
    }
    let waits = rig.submit(0, echo(1)).await;
    assert_eq!(rig.post(1, "/v1/nodes/n/undrain", None, 200).await["state"], "online");
    rig.finished(0, &waits).await;
    // It is over for the next instance too.
    let (before, holder) = holder(&rig, "n").await;
    rig.end(holder, Signal::Terminate).await;
    let has_moved = |node: &Value| node["instance"] != before && node["state"] == "online";
    rig.node_is(1 - holder, "n", has_moved).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_outlasts_the_restart_of_the_only_instance() {
    let rig = Rig::alone().await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    rig.post(0, "/v1/nodes/n/drain", None, 200).await;
    rig.end(0, Signal::Terminate).await;
    rig.instance(0).await.start().await.unwrap();
    rig.node_is(0, "n", |node| node["state"] == "draining").await;
    let waits = rig.submit(0, echo(1)).await;
    rig.post(0, "/v1/nodes/n/undrain", None, 200).await;
    rig.finished(0, &waits).await;
    let log = rig.instance(0).await.whole_log();
    let says = |words: &[&str]| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(
        says(&["a node's socket is closed", "drained"]) && says(&["a node is connected", "drained"]),
        "{log}"
    );
}
