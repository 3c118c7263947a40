//! Retries: from the checkpoint, from the start, from an earlier checkpoint; corrected, tried dry, and fifty at once.

use serde_json::{Value, json};
use testkit::http::plain_http;

use super::rig::{Plan, Rig, begun, echo, given, hold, on_both_ledgers, plan, retry, stages, statuses, task};

on_both_ledgers! {
    a_retry_goes_on_behind_the_last_stage_that_is_completed,
    a_retry_from_the_start_keeps_the_history,
    of_fifty_retries_at_once_one_wins,
    a_retry_under_one_key_opens_one_run,
    of_fifty_repetitions_at_once_all_get_the_one_run,
    a_corrected_definition_is_taken_where_its_completed_stages_are_the_same,
    a_dry_run_changes_nothing,
    a_patch_leaves_the_numbers_that_it_does_not_name,
    a_retry_says_what_it_has_seen,
    an_older_attempt_makes_its_successor_wait,
}

/// Five stages that succeed, and a sixth that is broken.
fn broken_at_the_sixth() -> Vec<Value> {
    let mut stages: Vec<_> = (0..5).map(|n| echo(json!({"context": {"n": n}}))).collect();
    stages.push(json!({"broken": "out of memory"}));
    stages.push(echo(json!(6)));
    stages
}

/// The same with another stage at this place.
fn with_stage(at: usize, payload: Value) -> Value {
    let mut payloads = broken_at_the_sixth();
    payloads[at] = payload;
    stages(&payloads)
}

fn mended(at: usize) -> Value {
    with_stage(at, echo(json!({"context": {"mended": at}})))
}

async fn a_retry_goes_on_behind_the_last_stage_that_is_completed(rig: Rig) {
    let node = rig.node(&[0], "n", |_| {}).await;
    let plan = Plan::make(&rig, 0, plan(&[task("acme", &broken_at_the_sixth())])).await;
    let failed = plan.task_is(0, "FAILED").await;
    assert_eq!(failed["checkpoint"]["last_completed"], 5, "{failed}");
    let dead = async || rig.get(0, "/v1/jobs?dead=true&tenant=acme").await["items"].as_array().unwrap().len();
    assert_eq!(dead().await, 1, "the failed stage's job");
    let last = rig.urls.len() - 1;
    let body = retry(json!({"stages": mended(5), "context_patch": {"by_hand": true, "n": null}}));
    let retried = rig.post(last, "/v1/tenants/acme/retry", Some(&body), 202).await;
    assert_eq!((&retried["id"], &retried["run"]), (&json!(plan.tasks[0]), &json!(2)), "{retried}");
    let done = plan.task_is(0, "SUCCEEDED").await;
    assert_eq!(
        statuses(&done),
        ["SKIPPED", "SKIPPED", "SKIPPED", "SKIPPED", "SKIPPED", "SUCCEEDED", "SUCCEEDED"]
    );
    assert_eq!(given(&node, &plan.tasks[0]), [0, 1, 2, 3, 4, 5, 5, 6]);
    let run = node.runs.all().into_iter().rfind(|run| run.stage["number"] == 6).unwrap();
    assert_eq!((&run.stage["run"], &run.stage["context"]), (&json!(2), &json!({"by_hand": true})));
    plan.is("SUCCEEDED").await;
    assert_eq!(dead().await, 0, "what is run again is not dead any more");
}

async fn a_retry_from_the_start_keeps_the_history(rig: Rig) {
    let node = rig.node(&[0], "n", |_| {}).await;
    let plan = Plan::make(&rig, 0, plan(&[task("t", &broken_at_the_sixth())])).await;
    plan.task_is(0, "FAILED").await;
    plan.retry(0, json!({"from": "start"}), 202).await;
    until_run_failed(&plan, 2).await;
    assert_eq!(given(&node, &plan.tasks[0]), [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5]);
    let kept: Vec<_> = plan.checkpoints(0).await;
    let of = |one: &Value| (one["version"].as_u64().unwrap(), one["run"].as_u64().unwrap());
    let runs: Vec<_> = kept.iter().map(of).collect();
    assert_eq!(runs[..6], [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 2)], "{runs:?}");
    // From an earlier checkpoint: what it covers is not run again.
    plan.retry(0, json!({"from": {"checkpoint_version": 2}}), 202).await;
    until_run_failed(&plan, 3).await;
    assert_eq!(given(&node, &plan.tasks[0])[12..], [2, 3, 4, 5]);
    let refused = plan.retry(0, json!({"from": {"checkpoint_version": 99}}), 404).await;
    assert_eq!(refused["code"], "not_found", "{refused}");
    // A checkpoint covers the stages of the definition that it was written under.
    let other =
        json!([{"name": "other", "payload": echo(json!(1))}, {"name": "last", "payload": {"broken": "no"}}]);
    plan.retry(0, json!({"from": "start", "stages": other}), 202).await;
    until_run_failed(&plan, 4).await;
    let refused = plan.retry(0, json!({"from": {"checkpoint_version": 2}}), 409).await;
    assert_eq!(refused["code"], "definition_changed", "{refused}");
    let named: Vec<_> = plan
        .checkpoints(0)
        .await
        .iter()
        .map(|one| one["completed_stages"].as_array().unwrap().clone())
        .collect();
    assert_eq!((&named[0][..], &named[named.len() - 1][..]), (&[json!("s0")][..], &[json!("other")][..]));
    // Without the stage that failed nothing is left to be done.
    let only = json!([{"name": "other", "payload": echo(json!(1))}]);
    plan.retry(0, json!({"stages": only}), 202).await;
    plan.is("SUCCEEDED").await;
}

async fn until_run_failed(plan: &Plan<'_>, run: u64) {
    crate::until("the run has failed", async || {
        let task = plan.task(0).await;
        task["run"] == run && task["status"] == "FAILED"
    })
    .await;
}

async fn of_fifty_retries_at_once_one_wins(rig: Rig) {
    let node = rig.node(&[0], "n", |_| {}).await;
    let plan = Plan::make(&rig, 0, plan(&[task("t", &broken_at_the_sixth())])).await;
    plan.task_is(0, "FAILED").await;
    let body = retry(json!({"stages": stages(&[
        echo(json!({"context": {"n": 0}})), echo(json!({"context": {"n": 1}})), echo(json!({"context": {"n": 2}})),
        echo(json!({"context": {"n": 3}})), echo(json!({"context": {"n": 4}})), hold(json!(5)),
    ])}));
    let path = format!("/v1/tasks/{}/retry", plan.tasks[0]);
    // The plan may be on its way from one owner to another.
    let ask = |n: usize| rig.ask_owner(n % rig.urls.len(), &path, Some(&body), &[]);
    let replies = futures_util::future::join_all((0..50).map(ask)).await;
    let won = replies.iter().filter(|reply| reply.status == 202).count();
    assert_eq!(won, 1, "{:?}", replies.iter().map(|reply| (reply.status, reply.code())).collect::<Vec<_>>());
    for refused in replies.iter().filter(|reply| reply.status != 202) {
        assert_eq!((refused.status, refused.code()), (409, "still_running"), "{}", refused.text);
    }
    begun(&node, &plan.tasks[0], 5, 2).await;
    node.runs.release(1);
    plan.task_is(0, "SUCCEEDED").await;
    assert_eq!(plan.task(0).await["run"], 2);
}

async fn a_retry_under_one_key_opens_one_run(rig: Rig) {
    let _node = rig.node(&[0], "n", |_| {}).await;
    let made = Plan::make(&rig, 0, plan(&[task("t", &broken_at_the_sixth())])).await;
    made.task_is(0, "FAILED").await;
    let (by_id, by_tenant) = (format!("/v1/tasks/{}/retry", made.tasks[0]), "/v1/tenants/t/retry".to_owned());
    let body = retry(json!({}));
    for (path, run) in [(&by_id, 2), (&by_tenant, 3)] {
        for at in [0, rig.urls.len() - 1, 0] {
            // A repetition comes after the run that it opened has failed, too.
            let reply = rig.ask_owner(at, path, Some(&body), &[("idempotency-key", "k")]).await;
            assert_eq!((reply.status, &reply.body["run"]), (202, &json!(run)), "{path}: {}", reply.text);
            until_run_failed(&made, run).await;
        }
        let other = retry(json!({"from": "start"}));
        let reply = rig.ask_owner(0, path, Some(&other), &[("idempotency-key", "k")]).await;
        assert_eq!((reply.status, reply.code()), (422, "key_reused"), "{}", reply.text);
    }
    // A key of a dry run, or of a refusal, is not used.
    let dry = retry(json!({"dry_run": true}));
    let reply = rig.ask_owner(0, &by_id, Some(&dry), &[("idempotency-key", "dry")]).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let refused = retry(json!({"expect": {"run": 1, "checkpoint_version": 0}}));
    let reply = rig.ask_owner(0, &by_id, Some(&refused), &[("idempotency-key", "dry")]).await;
    assert_eq!((reply.status, reply.code()), (409, "conflict"), "{}", reply.text);
    // A repetition is about the task that was retried then, though the tenant has a newer one by now.
    made.post("cancel", None, 200).await;
    let newer = Plan::make(&rig, 0, plan(&[task("t", &[json!({"broken": "no"})])])).await;
    newer.task_is(0, "FAILED").await;
    let reply = rig.ask_owner(0, &by_tenant, Some(&body), &[("idempotency-key", "k")]).await;
    assert_eq!((reply.status, &reply.body["id"]), (202, &json!(made.tasks[0])), "{}", reply.text);
    let reply = rig.ask_owner(0, &by_tenant, Some(&body), &[("idempotency-key", "dry")]).await;
    assert_eq!((reply.status, &reply.body["id"]), (202, &json!(newer.tasks[0])), "{}", reply.text);
    until_run_failed(&newer, 2).await;
    assert_eq!(made.task(0).await["run"], 3);
}

async fn of_fifty_repetitions_at_once_all_get_the_one_run(rig: Rig) {
    let node = rig.node(&[0], "n", |_| {}).await;
    let plan = Plan::make(&rig, 0, plan(&[task("t", &[echo(json!(1)), json!({"broken": "no"})])])).await;
    plan.task_is(0, "FAILED").await;
    let body = retry(json!({"stages": stages(&[echo(json!(1)), hold(json!(2))])}));
    let path = format!("/v1/tasks/{}/retry", plan.tasks[0]);
    let ask = |n: usize| rig.ask_owner(n % rig.urls.len(), &path, Some(&body), &[("idempotency-key", "k")]);
    for reply in futures_util::future::join_all((0..50).map(ask)).await {
        assert_eq!((reply.status, &reply.body["run"]), (202, &json!(2)), "{}", reply.text);
    }
    begun(&node, &plan.tasks[0], 1, 2).await;
    node.runs.release(1);
    plan.task_is(0, "SUCCEEDED").await;
}

async fn a_corrected_definition_is_taken_where_its_completed_stages_are_the_same(rig: Rig) {
    let _node = rig.node(&[0], "n", |_| {}).await;
    let plan = Plan::make(&rig, 0, plan(&[task("t", &broken_at_the_sixth())])).await;
    plan.task_is(0, "FAILED").await;
    let refused = plan.retry(0, json!({"stages": mended(4)}), 409).await;
    assert_eq!(refused["code"], "definition_changed", "{refused}");
    let fewer = stages(&broken_at_the_sixth()[..3]);
    assert_eq!(plan.retry(0, json!({"stages": fewer}), 409).await["code"], "definition_changed");
    plan.retry(0, json!({"stages": mended(5), "max_attempts": 3, "config": {"size": "XL"}}), 202).await;
    let done = plan.task_is(0, "SUCCEEDED").await;
    assert_eq!((&done["definition"], &done["config"]), (&json!(2), &json!({"size": "XL"})), "{done}");
}

async fn a_dry_run_changes_nothing(rig: Rig) {
    let _node = rig.node(&[0], "n", |_| {}).await;
    let plan = Plan::make(&rig, 0, plan(&[task("t", &broken_at_the_sixth())])).await;
    plan.task_is(0, "FAILED").await;
    crate::until("nothing of it runs", async || plan.task(0).await["waits_for"].is_null()).await;
    let before = plan.task(0).await;
    let events = plan.events(|event| event["seq"].as_u64()).await;
    let dry = plan.retry(0, json!({"stages": mended(5), "dry_run": true}), 200).await;
    assert_eq!((&dry["run"], &dry["status"], &dry["definition"]), (&json!(2), &json!("PENDING"), &json!(2)));
    let refused = plan.retry(0, json!({"stages": mended(4), "dry_run": true}), 409).await;
    assert_eq!(refused["code"], "definition_changed");
    // The time that the lock has left is all that changes.
    let after = plan.task(0).await;
    for field in ["run", "status", "definition", "stages", "checkpoint", "updated_at"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    assert_eq!(after["lock"]["token"], before["lock"]["token"]);
    assert_eq!(plan.events(|event| event["seq"].as_u64()).await, events);
}

async fn a_patch_leaves_the_numbers_that_it_does_not_name(rig: Rig) {
    const NUMBER: &str = "12345678901234567890123";
    let _node = rig.node(&[0], "n", |_| {}).await;
    let plan = Plan::make(&rig, 0, plan(&[task("t", &[json!({"broken": "no"})])])).await;
    plan.task_is(0, "FAILED").await;
    // The text of the request, which has more digits than a value of this test could.
    let body =
        format!(r#"{{"from":"checkpoint","reason":"r","context_patch":{{"number":{NUMBER},"other":1}}}}"#);
    let (http, path) = (plain_http(testkit::PATIENCE).unwrap(), format!("/v1/tasks/{}", plan.tasks[0]));
    // The plan may be on its way from one owner to another.
    crate::until("the retry is accepted", async || {
        let request = http.post(format!("{}{path}/retry", rig.urls[0])).body(body.clone());
        request.header("content-type", "application/json").send().await.unwrap().status() == 202
    })
    .await;
    until_run_failed(&plan, 2).await;
    plan.retry(0, json!({"context_patch": {"other": null}}), 202).await;
    until_run_failed(&plan, 3).await;
    let shown = rig.ask(0, "GET", &path, None).await.text;
    assert!(shown.contains(&format!(r#""context":{{"number":{NUMBER}}}"#)), "{shown}");
}

/// The definition whose stage at this place is broken.
fn given_up(at: usize) -> Value {
    with_stage(at, json!({"broken": "out of memory"}))
}

async fn a_retry_says_what_it_has_seen(rig: Rig) {
    let _node = rig.node(&[0], "n", |_| {}).await;
    let plan = Plan::make(&rig, 0, plan(&[task("t", &broken_at_the_sixth())])).await;
    plan.task_is(0, "FAILED").await;
    for (run, checkpoint_version) in [(2, 5), (1, 4)] {
        let expect = json!({"expect": {"run": run, "checkpoint_version": checkpoint_version}});
        assert_eq!(plan.retry(0, expect, 409).await["code"], "conflict");
    }
    let seen = |run, version| json!({"run": run, "checkpoint_version": version});
    plan.retry(
        0,
        json!({"from": {"checkpoint_version": 2}, "expect": seen(1, 5), "stages": given_up(3)}),
        202,
    )
    .await;
    until_run_failed(&plan, 2).await;
    // Its checkpoint is an earlier one now. Both versions that the task shows are what was seen.
    let shown = plan.task(0).await;
    assert_eq!(
        (&shown["checkpoint"]["version"], &shown["checkpoint_version"]),
        (&json!(6), &json!(6)),
        "{shown}"
    );
    plan.retry(0, json!({"from": {"checkpoint_version": 2}, "stages": given_up(2)}), 202).await;
    until_run_failed(&plan, 3).await;
    let shown = plan.task(0).await;
    assert_eq!(
        (&shown["checkpoint"]["version"], &shown["checkpoint_version"]),
        (&json!(2), &json!(6)),
        "{shown}"
    );
    assert_eq!(plan.retry(0, json!({"expect": seen(3, 5)}), 409).await["code"], "conflict");
    plan.retry(0, json!({"expect": seen(3, 2), "stages": given_up(2)}), 202).await;
    until_run_failed(&plan, 4).await;
    plan.retry(0, json!({"expect": seen(4, 6), "stages": mended(5)}), 202).await;
    plan.is("SUCCEEDED").await;
}

async fn an_older_attempt_makes_its_successor_wait(rig: Rig) {
    // A node that does not hear that it is to stop: it is held, and its word comes late.
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let mut body = plan(&[task("t", &[hold(json!({"context": {"n": 1}})), echo(json!(2))])]);
    // It counts for the second run as well, which must begin within it on a busy machine.
    body["tasks"][0]["timeout_ms"] = json!(4_000);
    let plan = Plan::make(&rig, 0, body).await;
    begun(&node, &plan.tasks[0], 0, 1).await;
    plan.task_is(0, "FAILED").await;
    // The attempt was called off; the retry begins once that is over.
    plan.retry(0, json!({}), 202).await;
    begun(&node, &plan.tasks[0], 0, 2).await;
    assert_eq!(node.runs.most("n"), 1, "two attempts of one stage never run at once");
}
