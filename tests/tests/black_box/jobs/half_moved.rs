//! A Redis Cluster in which the move of a hash slot was left half done: the record of a node there is neither written nor read.
//! The node gets jobs of other instances through the ledger, no other node is concerned, and an operator learns what to do.

use serde_json::json;
use testkit::process::Signal;
use testkit::servers::RedisCluster;

use super::islands::{handed_on, on};
use super::rig::{Node, Rig, echo, with};
use super::session_client::settled;
use crate::until;

/// Jobs submitted to each instance, and in a session.
const JOBS: u64 = 5;

/// A node of two slots whose label is its name.
async fn labelled(rig: &Rig, at: usize, name: &str) -> Node {
    rig.node(&[at], name, |options| {
        options.capacity = 2;
        options.labels = vec![name.to_owned()];
    })
    .await
}

async fn ran_once(rig: &Rig, node: &Node, name: &str, id: &str) {
    let job = rig.finished(0, id).await;
    assert_eq!((&job["outcome"], &job["node"]), (&json!("succeeded"), &json!(name)), "{job:#}");
    assert_eq!(node.runs.of(id).len(), 1, "{job:#}");
}

/// A session of an instance's own, whose jobs are for the node of this label alone.
async fn session_of(rig: &Rig, at: usize, label: &str) -> String {
    let me = rig.instance(at).await.ready().instance.clone();
    let spec = json!({ "ordering": "strict", "requires": [label] });
    loop {
        let opened = rig.post(at, "/v1/sessions", Some(&spec), 201).await;
        // The ring chooses the owner by the session's id.
        if opened["owner"] == *me {
            return opened["id"].as_str().unwrap().to_owned();
        }
    }
}

/// The status of an instance's bus, and what is said of it.
async fn bus_of(rig: &Rig, at: usize) -> (String, String) {
    let ready = rig.get(at, "/readyz").await;
    let text = |field: &str| ready["checks"]["bus"][field].as_str().unwrap_or_default().to_owned();
    (text("status"), text("detail"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_in_a_half_moved_hash_slot_runs_jobs_of_all_instances_and_the_slot_is_named() {
    let cluster = tokio::task::spawn_blocking(|| RedisCluster::start().unwrap()).await.unwrap();
    let rig = Rig::impatient_on(&cluster, 2).await;
    settled(&rig).await;
    let (far, near) = (labelled(&rig, 1, "far").await, labelled(&rig, 1, "near").await);
    let session = session_of(&rig, 0, "far").await;
    let half = cluster.half_move("{node:far}").unwrap();
    let (mut alone, mut ordered) = (Vec::new(), Vec::new());
    for n in 0..JOBS {
        for at in [0, 1] {
            alone.push(rig.submit(at, on("far", echo(n))).await);
        }
        ordered.push(rig.submit(0, with(echo(n), json!({ "session": session }))).await);
    }
    for id in alone.iter().chain(&ordered) {
        ran_once(&rig, &far, "far", id).await;
    }
    let ran: Vec<_> = far.runs.all().into_iter().filter(|run| ordered.contains(&run.job)).collect();
    assert_eq!(ran.iter().map(|run| &run.job).collect::<Vec<_>>(), ordered.iter().collect::<Vec<_>>());

    let told =
        [format!("hash slot {} ", half.slot), half.from.address().to_string(), half.to.address().to_string()];
    until("the slot is named", async || {
        let (status, detail) = bus_of(&rig, 1).await;
        status == "warn" && told.iter().all(|what| detail.contains(what))
    })
    .await;
    let log = rig.instance(1).await.whole_log();
    assert!(
        log.lines().any(|line| line.contains("WARN") && told.iter().all(|what| line.contains(what))),
        "{log}"
    );
    // Neither the jobs nor the session went to and fro meanwhile.
    assert_eq!((handed_on(&rig, "job").await, handed_on(&rig, "session").await), (JOBS as f64, 1.0));

    // One that begins now knows the other nodes, and has this one's jobs run.
    rig.end(0, Signal::Terminate).await;
    rig.instance(0).await.start().await.unwrap();
    rig.node_is(0, "near", |shown| shown["state"] == "online").await;
    for (node, name) in [(&near, "near"), (&far, "far")] {
        let id = rig.submit(0, on(name, echo("begun"))).await;
        ran_once(&rig, node, name, &id).await;
    }

    half.end().unwrap();
    until("nothing is named", async || bus_of(&rig, 1).await.0 == "ok").await;
    rig.node_is(0, "far", |shown| shown["state"] == "online").await;
    let before = handed_on(&rig, "job").await;
    let id = rig.submit(0, on("far", echo("after"))).await;
    ran_once(&rig, &far, "far", &id).await;
    assert_eq!(handed_on(&rig, "job").await, before, "its record is served");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}
