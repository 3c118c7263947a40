//! Instances that do not reach the ledger for long send their nodes away, and nothing that these run is lost by that.

use std::time::Duration;

use serde_json::json;

use super::losses::holder;
use super::rig::{OFFLINE, Rig, echo, hold};
use super::session_client::{Talk, open, seqs};
use crate::until;

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_cut_off_from_the_ledger_sends_its_nodes_to_another() {
    let (rig, ways) = Rig::with_ways_to_the_ledger(2).await;
    let node = rig.node(&[0, 1], "n", |_| {}).await;
    let (before, holder) = holder(&rig, "n").await;
    let other = 1 - holder;
    let id = rig.submit(holder, hold("kept")).await;
    node.runs.begun(&id, 1).await;
    // The ledger knows that the node has it.
    rig.in_state(other, &id, "RUNNING").await;
    ways[holder].cut().await.unwrap();
    // It still has Redis, and the node; the other one has its lanes.
    rig.node_is(other, "n", |shown| shown["instance"] != before && shown["state"] == "online").await;
    node.runs.release(1);
    let job = rig.finished(other, &id).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("kept"), &json!(1)), "{job:#}");
    assert_eq!(node.runs.of(&id).len(), 1);
    ways[holder].heal().await.unwrap();
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_ledger_that_outlasts_records_and_sockets_of_nodes_costs_no_attempt() {
    let (rig, ways) = Rig::with_ways_to_the_ledger(2).await;
    let node = rig.node(&[0, 1], "n", |options| options.capacity = 2).await;
    let (_, holder) = holder(&rig, "n").await;
    let ids = [rig.submit(0, hold("a")).await, rig.submit(1, hold("b")).await];
    for id in &ids {
        node.runs.begun(id, 1).await;
        rig.in_state(0, id, "RUNNING").await;
    }
    for way in &ways {
        way.cut().await.unwrap();
    }
    until("the node is sent away", async || {
        rig.instance(holder).await.whole_log().contains("a node's socket is closed")
    })
    .await;
    // No instance takes it, and its record expires.
    tokio::time::sleep(OFFLINE + Duration::from_secs(4)).await;
    for way in &ways {
        way.heal().await.unwrap();
    }
    for index in 0..2 {
        rig.node_is(index, "n", |shown| shown["state"] == "online").await;
    }
    node.runs.release(2);
    for (index, (id, result)) in ids.iter().zip(["a", "b"]).enumerate() {
        let job = rig.finished(index, id).await;
        assert_eq!((&job["result"], &job["attempt"]), (&json!(result), &json!(1)), "{job:#}");
        assert_eq!(node.runs.of(id).len(), 1, "{job:#}");
    }
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_a_client_sent_behind_one_that_is_refused_for_now_do_not_overtake_it() {
    let (rig, ways) = Rig::with_ways_to_the_ledger(1).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let session = open(&rig, 0, json!({"ordering": "strict"})).await;
    let mut client = Talk::open(&rig, 0, &session, None).await;
    client.job("0", echo(0)).await;
    assert_eq!(seqs(&client.results(1).await), [1]);
    ways[0].cut().await.unwrap();
    client.job("1", echo(1)).await;
    // One after the other while the first is on its way.
    let mut sent = 1_u64;
    let refused = loop {
        sent += 1;
        client.job(&sent.to_string(), echo(sent)).await;
        if let Ok(frame) = tokio::time::timeout(Duration::from_millis(300), client.next()).await {
            break frame;
        }
    };
    assert_eq!([&refused["type"], &refused["ref"]], ["problem", "1"], "{refused}");
    assert!(sent > 3, "{sent}");
    ways[0].heal().await.unwrap();
    // None of the others is accepted before the client knows of that.
    assert_eq!(client.closed().await, 1013);
    let mut client = Talk::open(&rig, 0, &session, Some(1)).await;
    for again in 1..=sent {
        client.job(&again.to_string(), echo(again)).await;
    }
    let results = client.results(sent as usize).await;
    let refs: Vec<_> = results.iter().map(|result| result["ref"].as_str().unwrap().to_owned()).collect();
    let expected: Vec<_> = (1..=sent).map(|n| n.to_string()).collect();
    assert_eq!(refs, expected);
}
