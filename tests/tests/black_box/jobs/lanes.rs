//! The lanes of one instance: jobs go to the second one when the first has much to write, and all of them are served,
//! also by an heir.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::process::Signal;

use super::rig::{Rig, echo};
use crate::until;

const BATCH_JOBS: usize = 1_000;

/// Submits batches side by side, until both lanes of the first instance have jobs; answers the jobs by their lanes. They wait
/// for a node.
async fn fill_both_lanes(rig: &Rig) -> BTreeMap<String, Vec<String>> {
    let mut by_lane = BTreeMap::<_, Vec<_>>::new();
    let jobs = vec![echo("x"); BATCH_JOBS];
    for _ in 0..10 {
        let batches = (0..4).map(|_| rig.submit_all(0, &jobs));
        for ids in futures_util::future::join_all(batches).await {
            // A request's jobs all go to one lane, as long as no node has slots for two.
            let lane = rig.job(0, &ids[0]).await["lane"].as_str().unwrap().to_owned();
            by_lane.entry(lane).or_default().extend(ids);
        }
        if by_lane.len() == 2 {
            return by_lane;
        }
    }
    panic!("all went to {:?}", by_lane.keys());
}

async fn unfinished(rig: &Rig, index: usize) -> Vec<Value> {
    let mut found = Vec::new();
    for state in ["CREATED", "DISPATCHED", "RUNNING"] {
        let page = rig.get(index, &format!("/v1/jobs?state={state}&limit=5")).await;
        found.extend(page["items"].as_array().unwrap().iter().cloned());
    }
    found
}

/// Connects a node to an instance, and waits until all jobs of both lanes have run there.
async fn all_end_at(rig: &Rig, index: usize, by_lane: &BTreeMap<String, Vec<String>>) {
    let node = rig.node(&[index], "n", |options| options.capacity = 200).await;
    until("everything has ended", async || unfinished(rig, index).await.is_empty()).await;
    for jobs in by_lane.values() {
        let job = rig.finished(index, jobs.last().unwrap()).await;
        assert_eq!((&job["outcome"], &job["result"]), (&json!("succeeded"), &json!("x")), "{job}");
        assert!(jobs.iter().all(|job| node.runs.of(job).len() == 1), "a job ran twice, or never");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_lane_of_an_instance_is_served() {
    let rig = Rig::with_two_lanes(1).await;
    let id = rig.instance(0).await.ready().instance.clone();
    let by_lane = fill_both_lanes(&rig).await;
    let lanes: Vec<_> = by_lane.keys().cloned().collect();
    assert_eq!(lanes, [format!("instance:{id}#0"), format!("instance:{id}#1")]);
    all_end_at(&rig, 0, &by_lane).await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_lane_of_an_instance_is_adopted_after_its_death() {
    let rig = Rig::with_two_lanes(2).await;
    let by_lane = fill_both_lanes(&rig).await;
    rig.end(0, Signal::Kill).await;
    all_end_at(&rig, 1, &by_lane).await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_takes_turns_between_two_lanes() {
    const JOBS: usize = 300;
    let rig = Rig::with_two_lanes(1).await;
    let id = rig.instance(0).await.ready().instance.clone();
    let node = rig.node(&[0], "n", |options| options.capacity = 200).await;
    until("the node is listed", async || {
        rig.get(0, "/v1/nodes").await["items"].as_array().is_some_and(|nodes| !nodes.is_empty())
    })
    .await;
    let jobs: Vec<_> = (0..JOBS).map(echo).collect();
    let ids = rig.submit_all(0, &jobs).await;
    for (n, job) in ids.iter().enumerate() {
        let found = rig.finished(0, job).await;
        assert_eq!((&found["outcome"], &found["result"]), (&json!("succeeded"), &json!(n)), "{found}");
        assert_eq!(found["lane"], format!("instance:{id}#{}", n % 2));
        assert_eq!(node.runs.of(job).len(), 1, "a job ran twice, or never");
    }
    assert!(ids.is_sorted(), "they are queued in their order, whatever their lanes");
    rig.no_defect().await;
}
