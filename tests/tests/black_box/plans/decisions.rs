//! What people decide about a stage of which nobody knows what it did.

use serde_json::{Value, json};
use testkit::process::Signal;

use super::rig::{Plan, Rig, begun, echo, given, hold, plan, statuses, task};

/// A plan whose owner was killed in the middle of its first stage.
async fn interrupted<'r>(rig: &'r Rig, on_unknown: &str) -> (crate::jobs::rig::Node, Plan<'r>) {
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let mut body = plan(&[task("acme", &[hold(json!({"context": {"n": 1}})), echo(json!(2))])]);
    body["tasks"][0]["stages"][0]["on_unknown"] = json!(on_unknown);
    let plan = Plan::make(rig, 0, body).await;
    begun(&node, &plan.tasks[0], 0, 1).await;
    rig.end(0, Signal::Kill).await;
    rig.instance(0).await.start().await.unwrap();
    let found = plan.task_is(0, "INTERRUPTED").await;
    assert_eq!(statuses(&found), ["UNKNOWN", "PENDING"], "{found}");
    (node, plan)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_stage_is_not_retried_before_somebody_says_what_it_did() {
    let rig = Rig::alone().await;
    let (node, plan) = interrupted(&rig, "confirm").await;
    assert_eq!(plan.retry(0, json!({}), 409).await["code"], "stage_unknown");
    assert_eq!(plan.retry(0, json!({"from": "start"}), 409).await["code"], "stage_unknown");
    let not_done = json!({"outcome": "not_done", "reason": "the change is not there"});
    assert_eq!(plan.post_task(0, "stages/2/resolve", Some(&not_done), 409).await["code"], "conflict");
    assert_eq!(plan.post_task(0, "stages/7/resolve", Some(&not_done), 404).await["code"], "not_found");
    let resolved = plan.post_task(0, "stages/s0/resolve", Some(&not_done), 200).await;
    assert_eq!(statuses(&resolved)[0], "PENDING", "{resolved}");
    assert_eq!(plan.post_task(0, "stages/1/resolve", Some(&not_done), 409).await["code"], "conflict");
    plan.retry(0, json!({}), 202).await;
    begun(&node, &plan.tasks[0], 0, 2).await;
    assert_eq!(node.runs.most("n"), 1, "the older attempt has ended before");
    node.runs.release(1);
    plan.is("SUCCEEDED").await;
    assert_eq!(given(&node, &plan.tasks[0]), [0, 0, 1]);
    let resolved = plan.events(|event| (event["kind"] == "resolved").then(|| event["reason"].clone())).await;
    assert_eq!(resolved, ["the change is not there"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_somebody_calls_done_leaves_its_checkpoint_and_is_not_run_again() {
    let rig = Rig::alone().await;
    let (node, plan) = interrupted(&rig, "confirm").await;
    let done = json!({"outcome": "done", "context": {"by_hand": 1}, "reason": "it is there"});
    let resolved = plan.post_task(0, "stages/1/resolve", Some(&done), 200).await;
    assert_eq!((&resolved["status"], statuses(&resolved)[0].as_str()), (&json!("INTERRUPTED"), "SUCCEEDED"));
    plan.retry(0, json!({}), 202).await;
    plan.is("SUCCEEDED").await;
    assert_eq!(given(&node, &plan.tasks[0]), [0, 1]);
    let contexts: Vec<Value> =
        plan.checkpoints(0).await.into_iter().map(|checkpoint| checkpoint["context"].clone()).collect();
    assert_eq!(contexts, [json!({"by_hand": 1}), json!({"by_hand": 1})], "the late result changes nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_stage_that_may_be_rerun_is_retried_without_a_word() {
    let rig = Rig::alone().await;
    let (node, plan) = interrupted(&rig, "rerun").await;
    plan.retry(0, json!({}), 202).await;
    begun(&node, &plan.tasks[0], 0, 2).await;
    assert_eq!(node.runs.most("n"), 1, "the older attempt has ended before");
    node.runs.release(1);
    plan.is("SUCCEEDED").await;
    assert_eq!(given(&node, &plan.tasks[0]), [0, 0, 1]);
}
