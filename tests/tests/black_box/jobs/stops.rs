//! Instances that end just after a node has begun a job, and take the node along: the attempt counts, and is not run again.
//! One that is known not to have been sent does not. And what the sockets hear of an instance that stops.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::StreamExt;
use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::node::Message;
use testkit::process::Signal;

use super::fuzz::silent_node;
use super::hand::Hand;
use super::rig::{Node, PATIENCE, Rig, hold, past, with};
use super::session_client::{Talk, open};
use crate::until;

/// Submits a job that may be tried once to an instance, and waits until that knows that the node has begun it.
async fn begun_once(rig: &Rig, index: usize, node: &Node) -> String {
    let once = json!({"max_attempts": 1, "backoff": {"initial_ms": 0}});
    let id = rig.submit(index, with(hold(1), once)).await;
    node.runs.begun(&id, 1).await;
    // Progress follows the acknowledgement.
    until("its node has said so", async || rig.job(index, &id).await["progress"].is_object()).await;
    id
}

/// The job is dead, ended so, and was run once, though its node is back and runs nothing.
async fn is_dead(rig: &Rig, index: usize, id: &str, node: &Node, ends: &[&str]) {
    let job = rig.finished(index, id).await;
    assert_eq!((&job["outcome"], &job["dead"]), (&json!("failed"), &json!(true)), "{job:#}");
    let past = past(&job);
    assert!(past.len() == 1 && ends.contains(&past[0].1.as_str()), "{job:#}");
    assert_eq!(node.runs.of(id).len(), 1, "{job:#}");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_before_an_instance_stops_in_order_is_known_after_its_restart() {
    let rig = Rig::alone_and_patient().await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let id = begun_once(&rig, 0, &node).await;
    rig.end(0, Signal::Terminate).await;
    let runs = Arc::clone(&node.runs);
    drop(node);
    rig.instance(0).await.start().await.unwrap();
    assert_eq!(rig.job(0, &id).await["state"], "RUNNING");
    let again = Node::sharing(runs, &rig.urls, "n", |_| {});
    again.connected().await;
    is_dead(&rig, 0, &id, &again, &["unlisted"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_a_killed_instance_had_just_sent_counts_though_nobody_wrote_that_it_runs() {
    let rig = Rig::alone_and_patient().await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let id = begun_once(&rig, 0, &node).await;
    rig.end(0, Signal::Kill).await;
    let runs = Arc::clone(&node.runs);
    drop(node);
    rig.instance(0).await.start().await.unwrap();
    let again = Node::sharing(runs, &rig.urls, "n", |_| {});
    again.connected().await;
    // On a busy machine its acknowledgement may have been written before.
    is_dead(&rig, 0, &id, &again, &["node_lost", "unlisted"]).await;
}

/// Of two instances one ends by this signal with its node, whose only attempt ends so at the other one.
async fn the_next_owner_runs_nothing_again(signal: Signal, ends: &[&str]) {
    let rig = Rig::mortal(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let id = begun_once(&rig, 0, &node).await;
    rig.end(0, signal).await;
    let runs = Arc::clone(&node.runs);
    drop(node);
    let again = Node::sharing(runs, &rig.urls[1..], "n", |_| {});
    again.connected().await;
    is_dead(&rig, 1, &id, &again, ends).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_owner_runs_nothing_again_that_the_node_of_a_stopped_instance_had_begun() {
    the_next_owner_runs_nothing_again(Signal::Terminate, &["unlisted"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_owner_runs_nothing_again_that_the_node_of_a_killed_instance_had_begun() {
    the_next_owner_runs_nothing_again(Signal::Kill, &["node_lost", "unlisted"]).await;
}

/// For a node that says nothing: it gets work meanwhile, and what it is sent need not be acknowledged soon.
fn undemanding(setup: Setup) -> Setup {
    setup
        .env("FENCEPOST__NODES__HEARTBEAT_MS", "5000")
        .env("FENCEPOST__NODES__VOUCHED_MS", "13000")
        .env("FENCEPOST__NODES__RESERVATION_MS", "14000")
        .env("FENCEPOST__NODES__ACK_MS", "30000")
        .env("FENCEPOST__NODES__UNANSWERED_MS", "60000")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_node_that_does_not_read_was_not_sent_when_its_instance_stops_does_not_count() {
    let rig = Rig::alone_and(undemanding).await;
    let (mut slow, ids) = silent_node(&rig, json!({"max_attempts": 1})).await;
    until("all of them are dispatched", async || {
        let waiting = rig.get(0, "/v1/jobs?state=CREATED&limit=1").await;
        waiting["items"].as_array().unwrap().is_empty()
    })
    .await;
    rig.end(0, Signal::Terminate).await;
    // What lies in the connection still arrives.
    let mut arrived = HashSet::new();
    let read = async {
        while let Some(Ok(message)) = slow.next().await {
            let Message::Text(text) = message else { continue };
            let frame: Value = serde_json::from_str(&text).unwrap();
            arrived.extend(frame["job"].as_str().map(str::to_owned));
        }
    };
    tokio::time::timeout(PATIENCE, read).await.expect("the socket ends");
    assert!(!arrived.is_empty());
    rig.instance(0).await.start().await.unwrap();
    let mut unsent = Vec::new();
    for id in &ids {
        if past(&rig.job(0, id).await).iter().any(|(_, how)| how == "undeliverable") {
            unsent.push(id);
        }
    }
    assert!(unsent.iter().all(|id| !arrived.contains(*id)), "what may have run counts");
    assert!(unsent.len() > ids.len() / 3, "{} of {}", unsent.len(), ids.len());
    let other = rig.node(&[0], "other", |options| options.capacity = 4).await;
    for id in unsent {
        let job = rig.finished(0, id).await;
        assert_eq!((&job["node"], &job["outcome"]), (&json!("other"), &json!("succeeded")), "{job:#}");
        assert_eq!(other.runs.of(id).len(), 1);
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_stops_closes_the_sockets_of_nodes_and_of_clients_with_1001() {
    let rig = Rig::alone().await;
    let node = Hand::greeted(&rig, 0, "n", json!([])).await;
    let session = open(&rig, 0, json!({})).await;
    let client = Talk::open(&rig, 0, &session, None).await;
    let (node, client, ()) = tokio::join!(node.closed(), client.closed(), rig.end(0, Signal::Terminate));
    assert_eq!((node, client), (1001, 1001));
}
