//! What is refused: plans above their limits, contexts that cannot be kept, and what does not exist.

use serde_json::{Value, json};

use super::rig::{Plan, Rig, because, begun, echo, hold, on_both_ledgers, plan, stages, task};
use crate::recovery::LockedTable;

on_both_ledgers! {
    a_context_that_cannot_be_kept_fails_its_task_with_the_reason,
    a_plan_above_its_limits_is_refused_whole,
    what_does_not_exist_is_not_found,
    a_plan_is_made_once_under_one_key,
}

async fn a_context_that_cannot_be_kept_fails_its_task_with_the_reason(rig: Rig) {
    let _node = rig.node(&[0], "n", |_| {}).await;
    let large = json!({"context": {"text": "x".repeat(256 * 1024)}});
    let tasks = [
        task("large", &[echo(large), echo(json!(1))]),
        task("list", &[echo(json!({"context": [1, 2]})), echo(json!(1))]),
    ];
    let mut body = plan(&tasks);
    body["on_failure"] = json!("continue");
    let plan = Plan::make(&rig, 0, body).await;
    for (place, said) in [(0, "262144"), (1, "not a JSON object")] {
        let failed = plan.task_is(place, "FAILED").await;
        assert!(failed["reason"].as_str().unwrap().contains(said), "{failed}");
        assert!(!failed["has_checkpoint"].as_bool().unwrap());
        let task = &plan.tasks[place];
        let reasons = plan.events(|event| {
            (event["task"] == **task && event["after"] == "FAILED").then(|| event["reason"].clone())
        });
        let reasons = reasons.await;
        assert!(
            reasons.iter().any(|reason| reason.as_str().is_some_and(|text| text.contains(said))),
            "{reasons:?}"
        );
    }
}

async fn a_plan_above_its_limits_is_refused_whole(rig: Rig) {
    let many: Vec<_> = (0..1_001).map(|n| task(&format!("t{n}"), &[echo(json!(n))])).collect();
    let tall = task("t", &(0..101).map(|n| echo(json!(n))).collect::<Vec<_>>());
    let twice = [task("t", &[echo(json!(1))]), task("t", &[echo(json!(1))])];
    let mut same = task("t", &[echo(json!(1)), echo(json!(2))]);
    same["stages"][1]["name"] = json!("s0");
    for (bad, named) in [
        (plan(&many), "tasks"),
        (plan(&[tall]), "stages"),
        (plan(&twice), "tenant"),
        (plan(&[same]), "name"),
        (plan(&[]), "tasks"),
    ] {
        let refused = rig.ask(0, "POST", "/v1/plans", Some(&bad)).await;
        assert_eq!((refused.status, refused.code()), (400, "invalid"), "{}", refused.text);
        assert!(refused.body["detail"].as_str().unwrap().contains(named), "{}", refused.text);
    }
    let plans = rig.get(0, "/v1/plans").await;
    assert!(plans["items"].as_array().unwrap().is_empty(), "{plans}");
    // The largest that is allowed.
    let most: Vec<_> = (0..1_000).map(|n| task(&format!("t{n}"), &[echo(json!(n))])).collect();
    let mut body = plan(&most);
    body["start"] = json!(false);
    let made = Plan::make(&rig, 0, body).await;
    assert_eq!(made.tasks.len(), 1_000);
}

async fn what_does_not_exist_is_not_found(rig: Rig) {
    let nobody = "00000000-0000-7000-8000-000000000000";
    for path in [
        format!("/v1/plans/{nobody}"),
        format!("/v1/plans/{nobody}/tasks"),
        format!("/v1/plans/{nobody}/events"),
        format!("/v1/tasks/{nobody}"),
        format!("/v1/tasks/{nobody}/checkpoints"),
        format!("/v1/tasks/{nobody}/events"),
        "/v1/plans/x".to_owned(),
        "/v1/tasks/x".to_owned(),
        "/v1/tenants/nobody".to_owned(),
        "/v1/tenants/nobody/tasks".to_owned(),
    ] {
        let reply = rig.ask(0, "GET", &path, None).await;
        assert_eq!((reply.status, reply.code()), (404, "not_found"), "{path}: {}", reply.text);
    }
    let resolve = json!({"outcome": "done", "reason": "r"});
    let retry = json!({"from": "start", "reason": "r"});
    let unlock = json!({"token": 1, "reason": "r"});
    for (path, body, status) in [
        (format!("/v1/plans/{nobody}/start"), because(), 404),
        (format!("/v1/plans/{nobody}/pause"), because(), 404),
        (format!("/v1/tasks/{nobody}/cancel"), because(), 404),
        (format!("/v1/tasks/{nobody}/stages/0/resolve"), resolve, 404),
        (format!("/v1/tasks/{nobody}/retry"), retry.clone(), 404),
        ("/v1/tenants/nobody/retry".to_owned(), retry, 404),
        ("/v1/tenants/nobody/unlock".to_owned(), unlock, 404),
    ] {
        let reply = rig.ask(0, "POST", &path, Some(&body)).await;
        assert_eq!(reply.status, status, "{path}: {}", reply.text);
    }
}

async fn a_plan_is_made_once_under_one_key(rig: Rig) {
    let last = rig.urls.len() - 1;
    let body = json!({"tasks": [{"tenant": "t", "stages": stages(&[echo(json!(1))])}]});
    let make = async |index: usize, body: &Value| {
        let url = format!("{}/v1/plans", rig.urls[index]);
        rig.http.request("POST", &url, Some("k-1"), Some(body)).await.unwrap()
    };
    let (first, again) = (make(0, &body).await, make(last, &body).await);
    assert_eq!((first.status, again.status), (201, 201), "{} {}", first.text, again.text);
    assert_eq!(first.body["id"], again.body["id"]);
    let other = json!({"tasks": [{"tenant": "u", "stages": stages(&[echo(json!(1))])}]});
    assert_eq!(make(0, &other).await.code(), "key_reused");
    let plans = rig.get(0, "/v1/plans?status=CREATED").await;
    assert_eq!(plans["items"].as_array().unwrap().len(), 1, "{plans}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_is_not_denied_where_the_task_is_not_read_for_the_answer() {
    let rig = Rig::together(1).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let payloads = [echo(json!({"context": {"n": 1}})), hold(json!(2)), echo(json!(3))];
    let plan = Plan::make(&rig, 0, plan(&[task("acme", &payloads)])).await;
    begun(&node, &plan.tasks[0], 1, 1).await;
    plan.has_checkpoints(0, 1).await;
    // A task is shown with its checkpoint, and a pause writes none.
    let lock = LockedTable::lock(rig.database.as_ref().unwrap(), "plan_checkpoint", "ACCESS EXCLUSIVE").await;
    let reply = rig.ask(0, "POST", &format!("/v1/tasks/{}/pause", plan.tasks[0]), None).await;
    lock.free();
    let detail = reply.body["detail"].as_str().unwrap_or_default();
    let says = detail.contains("not known whether anything was written");
    assert!((reply.status, reply.code()) == (503, "ledger_unavailable") && says, "{}", reply.text);
    // It was written.
    node.runs.release(1);
    plan.task_is(0, "PAUSED").await;
}
