//! What people decide about a stage of which nobody knows what it did, or that ended when its task had lost its tenant's lock.

use serde_json::{Value, json};
use testkit::process::Signal;

use super::rig::{Plan, Rig, begun, echo, given, hold, plan, statuses, task};
use crate::until;

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

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_task_is_not_retried_before_somebody_says_what_its_unknown_stage_did() {
    let rig = Rig::alone().await;
    let (node, plan) = interrupted(&rig, "confirm").await;
    plan.post_task(0, "cancel", None, 200).await;
    let cancelled = plan.task_is(0, "CANCELLED").await;
    assert_eq!(statuses(&cancelled), ["UNKNOWN", "PENDING"], "{cancelled}");
    assert_eq!(plan.retry(0, json!({}), 409).await["code"], "stage_unknown");
    // Its owner, which is still there, waits for the job again when the stage is resolved.
    until("the tenant is free", async || plan.task(0).await["lock"].is_null()).await;
    let not_done = json!({"outcome": "not_done", "reason": "the change is not there"});
    let resolved = plan.post_task(0, "stages/1/resolve", Some(&not_done), 200).await;
    assert_eq!((&resolved["status"], statuses(&resolved)[0].as_str()), (&json!("CANCELLED"), "PENDING"));
    plan.retry(0, json!({}), 202).await;
    begun(&node, &plan.tasks[0], 0, 2).await;
    node.runs.release(1);
    plan.is("SUCCEEDED").await;
    assert_eq!(given(&node, &plan.tasks[0]), [0, 0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_lock_was_broken_completes_no_stage_while_another_plan_has_the_tenant() {
    // The node that it had is back before it is given up.
    let rig = Rig::alone_and_patient().await;
    let (node, stuck) = interrupted(&rig, "confirm").await;
    let found = stuck.task(0).await;
    let job = found["stages"][0]["job"].as_str().unwrap().to_owned();
    let unlock = json!({"token": found["lock"]["token"], "reason": "its systems are gone"});
    rig.post(0, "/v1/tenants/acme/unlock", Some(&unlock), 200).await;
    let other = Plan::make(&rig, 0, plan(&[task("acme", &[hold(json!(3))])])).await;
    // Its node has to stop.
    assert_eq!(rig.finished(0, &job).await["outcome"], "cancelled");
    node.runs.stopped(&job, node.runs.of(&job)[0].attempt).await;
    begun(&node, &other.tasks[0], 0, 1).await;
    let late = stuck.task(0).await;
    assert_eq!((&late["status"], statuses(&late)[0].as_str()), (&json!("INTERRUPTED"), "UNKNOWN"), "{late}");
    assert_eq!(stuck.checkpoints(0).await, Vec::<Value>::new());
    // A person who says that it is done has to wait for the tenant as well.
    let done = json!({"outcome": "done", "reason": "it is there"});
    let refused = stuck.post_task(0, "stages/1/resolve", Some(&done), 409).await;
    let locker = (&refused["code"], &refused["task"]);
    assert_eq!(locker, (&json!("tenant_locked"), &json!(other.tasks[0])), "{refused}");
    assert_eq!(stuck.stages(0).await[0], "UNKNOWN");
    node.runs.release(1);
    other.is("SUCCEEDED").await;
    let resolved = stuck.post_task(0, "stages/1/resolve", Some(&done), 200).await;
    assert_eq!((statuses(&resolved)[0].as_str(), &resolved["checkpoint_version"]), ("SUCCEEDED", &json!(1)));
    stuck.retry(0, json!({}), 202).await;
    stuck.is("SUCCEEDED").await;
    assert_eq!(given(&node, &stuck.tasks[0]), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_result_of_a_task_whose_lock_ran_out_and_was_taken_is_no_checkpoint() {
    let rig = Rig::mortal(2).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 4).await;
    let stages = [hold(json!({"context": {"n": 1}})), echo(json!(2))];
    let made = Plan::make(&rig, 0, plan(&[task("acme", &stages)])).await;
    begun(&node, &made.tasks[0], 0, 1).await;
    rig.end(0, Signal::Kill).await;
    let found = made.seen_from(1);
    found.task_is(0, "INTERRUPTED").await;
    // As after two and a half hours without a renewal.
    let run_out =
        "update lease set expires_at = now() - interval '1 s' where resource = 'tenant:acme' returning owner";
    assert_eq!(rig.database.as_ref().unwrap().query(run_out).unwrap().len(), 1);
    let other = Plan::make(&rig, 1, plan(&[task("acme", &[hold(json!(3))])])).await;
    begun(&node, &other.tasks[0], 0, 1).await;
    node.runs.release(2);
    other.is("SUCCEEDED").await;
    until("the history has the end of its job", async || {
        let reason = found.task(0).await["reason"].as_str().unwrap().to_owned();
        reason.ends_with("and the task has lost its tenant's lock")
    })
    .await;
    let late = found.task(0).await;
    assert_eq!((&late["status"], statuses(&late)[0].as_str()), (&json!("INTERRUPTED"), "UNKNOWN"), "{late}");
    assert_eq!(found.checkpoints(0).await, Vec::<Value>::new());
    assert_eq!(found.retry(0, json!({}), 409).await["code"], "stage_unknown");
    assert_eq!(given(&node, &found.tasks[0]), [0]);
}
