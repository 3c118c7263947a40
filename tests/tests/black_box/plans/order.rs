//! Order: stages one after the other, tasks under their limit, and what a plan does when one of them fails.

use serde_json::{Value, json};

use super::rig::{Plan, Rig, because, begun, echo, given, hold, on_both_ledgers, plan, statuses, task};
use crate::until;

on_both_ledgers! {
    stages_run_in_order_and_hand_their_context_on,
    a_plan_that_is_made_waits_until_it_is_started,
    tasks_start_in_order_and_no_more_at_once_than_allowed,
    what_fails_stops_the_others_as_the_plan_says,
    a_pause_takes_effect_between_two_stages,
    what_is_cancelled_is_called_off_at_its_node,
    what_takes_too_long_fails,
}

async fn stages_run_in_order_and_hand_their_context_on(rig: Rig) {
    let last = rig.urls.len() - 1;
    let node = rig.node(&[last], "n", |options| options.capacity = 4).await;
    let mut with_config = task(
        "acme",
        &[echo(json!({"context": {"rows": 7}})), echo(json!("says nothing of the context")), echo(json!(3))],
    );
    with_config["config"] = json!({"size": "L"});
    let plan = Plan::make(&rig, 0, plan(&[with_config, task("other", &[echo(json!(null))])])).await;
    let shown = plan.is("SUCCEEDED").await;
    assert_eq!(shown["progress"]["succeeded"], 2, "{shown}");
    assert!(shown["finished_at"].is_string() && shown["started_at"].is_string(), "{shown}");
    let (id, task) = (&plan.tasks[0], plan.task(0).await);
    assert_eq!(given(&node, id), [0, 1, 2]);
    let stages: Vec<Value> =
        node.runs.all().into_iter().map(|run| run.stage).filter(|stage| stage["task"] == *id).collect();
    for (n, stage) in stages.iter().enumerate() {
        assert_eq!(stage["plan"], plan.id);
        assert_eq!((&stage["tenant"], &stage["run"]), (&json!("acme"), &json!(1)), "{stage}");
        assert_eq!((&stage["name"], &stage["config"]), (&json!(format!("s{n}")), &json!({"size": "L"})));
        assert!(stage["tenant_token"].as_i64().is_some_and(|token| token > 0), "{stage}");
        assert_eq!(stage["context"], if n == 0 { json!({}) } else { json!({"rows": 7}) });
    }
    assert_eq!((&task["status"], &task["has_checkpoint"]), (&json!("SUCCEEDED"), &json!(true)));
    assert_eq!(task["checkpoint"]["completed_stages"], json!(["s0", "s1", "s2"]), "{task}");
    assert_eq!(task["checkpoint"]["context"], json!({"rows": 7}));
    assert_eq!(task["lock"], Value::Null, "the lock is given back");
    let versions: Vec<_> = plan.checkpoints(0).await.iter().map(|one| one["version"].as_u64()).collect();
    assert_eq!(versions, [Some(1), Some(2), Some(3)]);
    let changes = plan.events(|event| {
        let is_plans = event["task"].is_null() && event["kind"] == "status";
        is_plans.then(|| event["after"].as_str().unwrap().to_owned())
    });
    assert_eq!(changes.await, ["CREATED", "RUNNING", "SUCCEEDED"]);
    let refused = plan.retry(0, json!({}), 409).await;
    assert_eq!(refused["code"], "conflict", "{refused}");
    rig.no_defect().await;
}

async fn a_plan_that_is_made_waits_until_it_is_started(rig: Rig) {
    let last = rig.urls.len() - 1;
    let node = rig.node(&[0], "n", |_| {}).await;
    let mut body = plan(&[task("t", &[echo(json!(1))])]);
    body.as_object_mut().unwrap().remove("start");
    let made = Plan::make(&rig, 0, body).await;
    assert_eq!(made.show().await["status"], "CREATED");
    assert_eq!(made.task(0).await["lock"], Value::Null);
    let refused = made.retry(0, json!({}), 409).await;
    assert_eq!(refused["code"], "conflict", "{refused}");
    let why = format!("task {} is of plan {}, which was never started", made.tasks[0], made.id);
    assert_eq!(refused["detail"], why);
    let started = made.seen_from(last).post("start", None, 200).await;
    assert_ne!(started["status"], "CREATED", "{started}");
    made.is("SUCCEEDED").await;
    let again = made.post("start", None, 200).await;
    assert_eq!(again["status"], "SUCCEEDED", "a start that is repeated changes nothing");
    assert_eq!(node.runs.all().len(), 1);
}

async fn tasks_start_in_order_and_no_more_at_once_than_allowed(rig: Rig) {
    let node = rig.node(&[0], "n", |options| options.capacity = 10).await;
    let tasks: Vec<_> = (0..6).map(|n| task(&format!("t{n}"), &[hold(json!(n))])).collect();
    let mut body = plan(&tasks);
    body["max_concurrency"] = json!(2);
    let plan = Plan::make(&rig, 0, body).await;
    for running in [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]] {
        for place in running {
            begun(&node, &plan.tasks[place], 0, 1).await;
        }
        assert_eq!(node.runs.all().len(), running[1] + 1, "no more than two run");
        assert_eq!(plan.show().await["progress"]["running"], 2);
        node.runs.release(1);
        // Whichever was let go: the next begins, in the order of the list.
        until("one has ended", async || {
            plan.show().await["progress"]["succeeded"].as_u64().unwrap() == running[0] as u64 + 1
        })
        .await;
        if running[1] == 5 {
            break;
        }
        begun(&node, &plan.tasks[running[1] + 1], 0, 1).await;
    }
    node.runs.release(1);
    plan.is("SUCCEEDED").await;
    assert_eq!(node.runs.most("n"), 2);
}

async fn what_fails_stops_the_others_as_the_plan_says(rig: Rig) {
    let node = rig.node(&[0], "n", |options| options.capacity = 10).await;
    for on_failure in ["stop_new", "continue", "pause"] {
        let tasks = [
            task(&format!("{on_failure}-0"), &[hold(json!(0)), echo(json!(0))]),
            task(&format!("{on_failure}-1"), &[json!({"broken": "it is broken"})]),
            task(&format!("{on_failure}-2"), &[echo(json!(2))]),
        ];
        let mut body = plan(&tasks);
        body["max_concurrency"] = json!(2);
        body["on_failure"] = json!(on_failure);
        let plan = Plan::make(&rig, 0, body).await;
        begun(&node, &plan.tasks[0], 0, 1).await;
        let failed = plan.task_is(1, "FAILED").await;
        assert!(failed["reason"].as_str().unwrap().contains("it is broken"), "{failed}");
        assert_eq!(statuses(&failed), ["FAILED"]);
        assert!(failed["lock"]["token"].is_number(), "a task that failed keeps its tenant: {failed}");
        // Its job is retried with the task, and not by itself.
        let job = failed["stages"][0]["job"].as_str().unwrap();
        let refused = rig.post(0, &format!("/v1/jobs/{job}/retry"), None, 409).await;
        assert_eq!(refused["code"], "conflict", "{refused}");
        let retried = rig.post(0, "/v1/jobs/retry", Some(&json!({"dead": true})), 202).await;
        assert_eq!(retried["retried"], 0, "{retried}");
        if on_failure == "continue" {
            plan.task_is(2, "SUCCEEDED").await;
        }
        node.runs.release(1);
        let first = if on_failure == "pause" { "PAUSED" } else { "SUCCEEDED" };
        plan.task_is(0, first).await;
        let third = if on_failure == "continue" { "SUCCEEDED" } else { "PENDING" };
        assert_eq!(plan.task(2).await["status"], third, "{on_failure}");
        let shown = plan.is("ATTENTION").await;
        assert_eq!(shown["attention"][0]["task"], plan.tasks[1], "{shown}");
    }
    rig.no_defect().await;
}

async fn a_pause_takes_effect_between_two_stages(rig: Rig) {
    let node = rig.node(&[0], "n", |_| {}).await;
    let plan = Plan::make(&rig, 0, plan(&[task("t", &[hold(json!(0)), hold(json!(1))])])).await;
    begun(&node, &plan.tasks[0], 0, 1).await;
    let asked = plan.post_task(0, "pause", Some(&because()), 200).await;
    assert_eq!((&asked["status"], &asked["intent"]), (&json!("RUNNING"), &json!("pause")), "{asked}");
    plan.post_task(0, "pause", None, 200).await;
    node.runs.release(1);
    let paused = plan.task_is(0, "PAUSED").await;
    assert_eq!(statuses(&paused), ["SUCCEEDED", "PENDING"]);
    assert!(paused["lock"]["token"].is_number(), "{paused}");
    assert_eq!(given(&node, &plan.tasks[0]), [0]);
    plan.post_task(0, "resume", None, 200).await;
    begun(&node, &plan.tasks[0], 1, 1).await;
    node.runs.release(1);
    plan.is("SUCCEEDED").await;
    assert_eq!(plan.post_task(0, "resume", None, 409).await["code"], "conflict");
    // The whole plan, from any instance.
    let other = Plan::make(&rig, 0, super::rig::plan(&[task("u", &[hold(json!(0)), echo(json!(1))])])).await;
    begun(&node, &other.tasks[0], 0, 1).await;
    other.seen_from(rig.urls.len() - 1).post("pause", Some(&because()), 200).await;
    node.runs.release(1);
    other.task_is(0, "PAUSED").await;
    other.is("PAUSED").await;
    other.post("resume", None, 200).await;
    other.is("SUCCEEDED").await;
}

async fn what_is_cancelled_is_called_off_at_its_node(rig: Rig) {
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let tasks = [task("a", &[hold(json!(0)), echo(json!(1))]), task("b", &[hold(json!(0))])];
    let plan = Plan::make(&rig, 0, plan(&tasks)).await;
    begun(&node, &plan.tasks[0], 0, 1).await;
    begun(&node, &plan.tasks[1], 0, 1).await;
    plan.post_task(0, "cancel", Some(&because()), 200).await;
    plan.task_is(0, "CANCELLED").await;
    until("its tenant is free", async || plan.task(0).await["lock"] == Value::Null).await;
    assert_eq!(plan.task(1).await["status"], "RUNNING");
    plan.post_task(0, "cancel", None, 200).await;
    plan.post("cancel", None, 200).await;
    plan.is("CANCELLED").await;
    assert!(node.runs.all().iter().all(|run| run.stopped.is_some()), "{:?}", node.runs.all());
    plan.post("cancel", None, 200).await;
    // A task that was cancelled can be run again, from where it was.
    plan.retry(0, json!({}), 202).await;
    begun(&node, &plan.tasks[0], 0, 2).await;
    node.runs.release(1);
    plan.task_is(0, "SUCCEEDED").await;
    rig.nothing_is_held().await;
}

async fn what_takes_too_long_fails(rig: Rig) {
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let mut slow_run = task("run", &[hold(json!(0)), echo(json!(1))]);
    slow_run["timeout_ms"] = json!(1_500);
    let mut slow_stage = task("stage", &[hold(json!(0))]);
    slow_stage["stages"][0]["timeout_ms"] = json!(300);
    let mut body = plan(&[slow_run, slow_stage]);
    body["on_failure"] = json!("continue");
    let plan = Plan::make(&rig, 0, body).await;
    let failed = plan.task_is(0, "FAILED").await;
    assert!(failed["reason"].as_str().unwrap().contains("timeout_ms"), "{failed}");
    let failed = plan.task_is(1, "FAILED").await;
    assert!(failed["reason"].as_str().unwrap().contains("time was over"), "{failed}");
    assert!(node.runs.all().iter().all(|run| run.stopped.is_some()), "{:?}", node.runs.all());
    // A plan over its time starts no further task, and what runs goes on.
    let tasks = [task("x", &[hold(json!(0)), echo(json!(1))]), task("y", &[echo(json!(0))])];
    let mut body = super::rig::plan(&tasks);
    // Long enough that the first task begins on a busy machine.
    body["timeout_ms"] = json!(2_500);
    body["max_concurrency"] = json!(1);
    let over = Plan::make(&rig, 0, body).await;
    begun(&node, &over.tasks[0], 0, 1).await;
    over.is("ATTENTION").await;
    node.runs.release(1);
    over.task_is(0, "SUCCEEDED").await;
    assert_eq!(over.task(1).await["status"], "PENDING");
}
