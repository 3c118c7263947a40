//! Tenants' locks: one task at a time, through every restart and the loss of Redis; broken only by a person who names the
//! token.

use std::collections::HashSet;

use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::process::Signal;

use super::rig::{Plan, Rig, because, begun, echo, given, hold, on_both_ledgers, plan, task};
use crate::until;

on_both_ledgers! {
    a_locked_tenant_is_refused_to_others_until_it_is_free,
    all_tenants_of_a_plan_are_locked_or_none,
    a_lock_is_broken_at_its_token_alone,
}

fn one(tenant: &str, payload: Value) -> Value {
    plan(&[task(tenant, &[payload])])
}

async fn a_locked_tenant_is_refused_to_others_until_it_is_free(rig: Rig) {
    let last = rig.urls.len() - 1;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let first = Plan::make(&rig, 0, one("acme", hold(json!(1)))).await;
    begun(&node, &first.tasks[0], 0, 1).await;
    let refused = rig.post(last, "/v1/plans", Some(&one("acme", echo(json!(2)))), 409).await;
    assert_eq!(refused["code"], "tenant_locked", "{refused}");
    assert_eq!((&refused["plan"], &refused["task"]), (&json!(first.id), &json!(first.tasks[0])));
    // One that was made before is refused when it is started, and can be started later.
    let mut later = one("acme", echo(json!(2)));
    later["start"] = json!(false);
    let later = Plan::make(&rig, last, later).await;
    assert_eq!(later.post("start", None, 409).await["code"], "tenant_locked");
    assert_eq!(later.show().await["status"], "CREATED");
    node.runs.release(1);
    first.is("SUCCEEDED").await;
    later.post("start", None, 200).await;
    later.is("SUCCEEDED").await;
    let history = rig.get(last, "/v1/tenants/acme/tasks").await;
    let ids: Vec<_> = history["items"].as_array().unwrap().iter().map(|task| task["id"].clone()).collect();
    assert_eq!(ids, [json!(later.tasks[0]), json!(first.tasks[0])], "the newest first");
    let tenant = rig.get(0, "/v1/tenants/acme").await;
    assert_eq!((&tenant["task"]["id"], &tenant["lock"]), (&json!(later.tasks[0]), &Value::Null), "{tenant}");
    assert_eq!(rig.ask(0, "GET", "/v1/tenants/nobody", None).await.status, 404);
}

async fn all_tenants_of_a_plan_are_locked_or_none(rig: Rig) {
    let holder = Plan::make(&rig, 0, one("t77", hold(json!(0)))).await;
    let tasks: Vec<_> = (0..100).map(|n| task(&format!("t{n}"), &[echo(json!(n))])).collect();
    let refused = rig.post(0, "/v1/plans", Some(&plan(&tasks)), 409).await;
    assert_eq!((&refused["tenant"], &refused["plan"]), (&json!("t77"), &json!(holder.id)), "{refused}");
    let is_free = async |n: u64| {
        let lock = rig.ask(0, "GET", &format!("/v1/leases/tenant:t{n}"), None).await;
        lock.status == 404 || lock.body["owner"].is_null()
    };
    for n in [0, 76, 78, 99] {
        assert!(is_free(n).await, "t{n}");
    }
    let plans = rig.get(0, "/v1/plans").await;
    assert_eq!(plans["items"].as_array().unwrap().len(), 1, "a plan that was refused is not there: {plans}");
    holder.post("cancel", None, 200).await;
    holder.is("CANCELLED").await;
    // Its lock is free when its attempt is known to be over.
    until("the tenant is free", async || is_free(77).await).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 50).await;
    let all = Plan::make(&rig, 0, plan(&tasks)).await;
    all.is("SUCCEEDED").await;
    assert_eq!(node.runs.all().iter().filter(|run| run.stage["plan"] == all.id).count(), 100);
}

async fn a_lock_is_broken_at_its_token_alone(rig: Rig) {
    let last = rig.urls.len() - 1;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let stuck = Plan::make(&rig, 0, plan(&[task("acme", &[hold(json!(0)), echo(json!(1))])])).await;
    begun(&node, &stuck.tasks[0], 0, 1).await;
    let token = stuck.task(0).await["lock"]["token"].as_u64().unwrap();
    let owner = rig.ask(last, "GET", "/v1/cluster/owner/tenant:acme", None).await;
    assert_eq!((owner.status, owner.code()), (404, "not_found"), "no instance has it: {}", owner.text);
    let unlock = |token: u64| json!({"token": token, "reason": "stuck"});
    let path = "/v1/tenants/acme/unlock";
    let refused = rig.post(last, path, Some(&unlock(token + 1)), 409).await;
    assert_eq!(refused["code"], "conflict", "{refused}");
    rig.post(last, path, Some(&unlock(token)), 200).await;
    assert_eq!(rig.post(last, path, Some(&unlock(token)), 409).await["code"], "conflict");
    // Another plan gets the tenant, under a higher token; what the first one does next counts for nothing.
    let other = Plan::make(&rig, last, one("acme", hold(json!(2)))).await;
    begun(&node, &other.tasks[0], 0, 1).await;
    let next = other.task(0).await["lock"]["token"].as_u64().unwrap();
    assert!(next > token, "{next} after {token}");
    // Its own stage may end as if nothing had happened, or is called off, whichever the owner notices first.
    node.runs.release(1);
    let interrupted = stuck.task_is(0, "INTERRUPTED").await;
    assert_eq!(interrupted["lock"], Value::Null, "{interrupted}");
    assert_eq!(given(&node, &stuck.tasks[0]), [0]);
    assert_eq!(stuck.post_task(0, "resume", Some(&because()), 409).await["code"], "conflict");
    let kinds = stuck.events(|event| Some(event["kind"].as_str().unwrap().to_owned())).await;
    assert!(
        kinds.contains(&"lock_broken".to_owned()) && kinds.contains(&"lock_lost".to_owned()),
        "{kinds:?}"
    );
    until("the log names the lock that was lost", async || {
        let mut is_logged = false;
        for index in 0..rig.urls.len() {
            is_logged |= rig.instance(index).await.whole_log().lines().any(|line| is_fenced_at(line, token));
        }
        is_logged
    })
    .await;
    node.runs.release(1);
    other.is("SUCCEEDED").await;
}

/// Whether a line of a log says that a step was fenced at acme's lock, for which it offered this token.
fn is_fenced_at(line: &str, token: u64) -> bool {
    let line: Value = serde_json::from_str(line).unwrap_or_default();
    line["operation"] == "tenant_lock"
        && line["resource"] == "tenant:acme"
        && line["token"] == token.to_string().as_str()
        && line["instance"].is_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_lock_ran_out_in_a_pause_and_was_taken_is_not_resumed() {
    let rig = Rig::together(1).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let paused = Plan::make(&rig, 0, plan(&[task("acme", &[hold(json!(0)), echo(json!(1))])])).await;
    begun(&node, &paused.tasks[0], 0, 1).await;
    paused.post_task(0, "pause", None, 200).await;
    node.runs.release(1);
    paused.task_is(0, "PAUSED").await;
    // As after two and a half hours without a renewal.
    let run_out =
        "update lease set expires_at = now() - interval '1 s' where resource = 'tenant:acme' returning owner";
    assert_eq!(rig.database.as_ref().unwrap().query(run_out).unwrap().len(), 1);
    let other = Plan::make(&rig, 0, one("acme", hold(json!(2)))).await;
    begun(&node, &other.tasks[0], 0, 1).await;
    let refused = paused.post_task(0, "resume", None, 409).await;
    assert_eq!(refused["code"], "conflict", "{refused}");
    paused.task_is(0, "INTERRUPTED").await;
    assert_eq!(paused.retry(0, json!({}), 409).await["code"], "tenant_locked");
    node.runs.release(1);
    other.is("SUCCEEDED").await;
    assert_eq!(given(&node, &paused.tasks[0]), [0]);
    paused.retry(0, json!({}), 202).await;
    paused.is("SUCCEEDED").await;
    assert_eq!(given(&node, &paused.tasks[0]), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_renewed_while_its_task_may_go_on_and_runs_out_after_a_failure() {
    let with_short_locks = |setup: Setup| setup.env("FENCEPOST__PLANS__LOCK_MS", "2000");
    let rig = Rig::alone_and(with_short_locks).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let failed = Plan::make(&rig, 0, one("a", json!({"broken": "out of memory"}))).await;
    failed.task_is(0, "FAILED").await;
    let running = Plan::make(&rig, 0, one("b", hold(json!(1)))).await;
    begun(&node, &running.tasks[0], 0, 1).await;
    let token = running.task(0).await["lock"]["token"].clone();
    // A lock that lasted for hours would outlast any patience.
    let path = "/v1/plans";
    until("the lock of the failed task runs out", async || {
        rig.ask(0, "POST", path, Some(&one("a", echo(json!(2))))).await.status == 201
    })
    .await;
    // Two renewals are at least 200 ms apart.
    let mut renewals = HashSet::new();
    until("it has outlived its length", async || {
        let lease = rig.get(0, "/v1/leases/tenant:b").await;
        renewals.insert(lease["renewed_at"].as_str().unwrap().to_owned());
        renewals.len() > 15
    })
    .await;
    assert_eq!(running.task(0).await["lock"]["token"], token);
    let refused = rig.post(0, path, Some(&one("b", echo(json!(3)))), 409).await;
    assert_eq!(refused["code"], "tenant_locked", "{refused}");
    node.runs.release(1);
    running.is("SUCCEEDED").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_forgets_everything_in_the_middle_of_stages_costs_no_task() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 4).await;
    let stages = [hold(json!({"context": {"n": 1}})), hold(json!(2)), echo(json!(3))];
    let plan = Plan::make(&rig, 0, plan(&[task("a", &stages), task("b", &stages)])).await;
    for stage in 0..2 {
        for id in &plan.tasks {
            begun(&node, id, stage, 1).await;
        }
        rig.redis.as_ref().unwrap().flush().unwrap();
        node.runs.release(2);
    }
    plan.is("SUCCEEDED").await;
    for id in &plan.tasks {
        assert_eq!(given(&node, id), [0, 1, 2]);
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_survives_the_death_of_every_instance_and_a_flushed_redis() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[0, 1], "n", |options| options.capacity = 4).await;
    let first = Plan::make(&rig, 0, one("acme", hold(json!(1)))).await;
    begun(&node, &first.tasks[0], 0, 1).await;
    for index in 0..2 {
        rig.end(index, Signal::Kill).await;
    }
    rig.redis.as_ref().unwrap().flush().unwrap();
    for index in 0..2 {
        rig.instance(index).await.start().await.unwrap();
    }
    let found = first.task_is(0, "INTERRUPTED").await;
    assert!(found["lock"]["token"].is_number(), "{found}");
    for index in 0..2 {
        let refused = rig.post(index, "/v1/plans", Some(&one("acme", echo(json!(2)))), 409).await;
        assert_eq!(refused["code"], "tenant_locked", "{refused}");
    }
    node.runs.release(1);
    until("the late result is there", async || first.checkpoints(0).await.len() == 1).await;
    rig.no_defect().await;
}
