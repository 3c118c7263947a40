//! Owners that die, wake and restart in the middle of a plan: its state is found again, and nothing begins by itself.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::process::Signal;
use testkit::proxy::Proxy;

use super::rig::{Node, Plan, Rig, begun, echo, given, hold, plan, retry, statuses, task};
use crate::jobs::hand::{Hand, done, frame, heartbeat};
use crate::until;

/// How long an instance waits for an acknowledgement.
const ACK: Duration = Duration::from_secs(5);

/// Two tasks of three stages, one at a time: the first stage answers at once, the second is held.
fn two_tasks() -> Value {
    let stages = [
        echo(json!({"context": {"first": true}})),
        hold(json!({"context": {"second": true}})),
        echo(json!(3)),
    ];
    let mut plan = plan(&[task("acme", &stages), task("later", &stages)]);
    plan["max_concurrency"] = json!(1);
    plan
}

/// What everybody must find after the owner died in the middle of the second stage.
async fn is_interrupted(plan: &Plan<'_>) {
    let found = plan.task_is(0, "INTERRUPTED").await;
    assert_eq!(statuses(&found), ["SUCCEEDED", "UNKNOWN", "PENDING"], "{found}");
    assert_eq!(found["checkpoint"]["last_completed"], 1, "{found}");
    assert!(found["lock"]["token"].is_number(), "the tenant is still locked: {found}");
    assert_eq!(plan.task(1).await["status"], "PENDING");
    assert_eq!(plan.show().await["status"], "ATTENTION");
    let tenant = plan.rig.get(plan.at, "/v1/tenants/acme").await;
    assert_eq!((&tenant["task"]["id"], &tenant["has_checkpoint"]), (&json!(plan.tasks[0]), &json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_whose_owners_are_killed_one_after_the_other_waits_for_people() {
    let rig = Rig::mortal(3).await;
    let node = rig.node(&[2], "n", |options| options.capacity = 4).await;
    let made = Plan::make(&rig, 0, two_tasks()).await;
    let id = made.tasks[0].clone();
    begun(&node, &id, 1, 1).await;
    rig.end(0, Signal::Kill).await;
    let found = made.seen_from(2);
    is_interrupted(&found).await;
    // A third instance adopts it, and it is still nobody's turn. The stage's node is lost, too.
    let owner = owner(&found).await;
    if owner != 2 {
        rig.end(owner, Signal::Kill).await;
        until("another owns it", async || owner_of(&found).await == Some(2)).await;
    }
    is_interrupted(&found).await;
    assert_eq!(given(&node, &id), [0, 1], "nothing was dispatched");
    // The late result is kept, and begins nothing.
    node.runs.release(1);
    found.has_checkpoints(0, 2).await;
    let late = found.task(0).await;
    assert_eq!(
        (&late["status"], statuses(&late)[1].as_str()),
        (&json!("INTERRUPTED"), "SUCCEEDED"),
        "{late}"
    );
    assert_eq!(late["checkpoint"]["context"], json!({"second": true}), "{late}");
    assert_eq!(given(&node, &id), [0, 1], "nothing was dispatched");
    // People look, and retry: the third stage is next, and none runs again.
    let retried = rig.post(2, "/v1/tenants/acme/retry", Some(&retry(json!({}))), 202).await;
    assert_eq!(retried["run"], 2, "{retried}");
    let done = found.task_is(0, "SUCCEEDED").await;
    assert_eq!(statuses(&done), ["SKIPPED", "SKIPPED", "SUCCEEDED"], "{done}");
    assert_eq!(given(&node, &id), [0, 1, 2]);
    assert_eq!(found.task(1).await["status"], "PENDING", "the others wait until the plan is resumed");
    found.post("resume", None, 200).await;
    begun(&node, &found.tasks[1], 1, 1).await;
    node.runs.release(1);
    found.is("SUCCEEDED").await;
    rig.no_defect().await;
}

async fn owner_of(plan: &Plan<'_>) -> Option<usize> {
    let lease = plan.rig.ask(plan.at, "GET", &format!("/v1/leases/plan:{}", plan.id), None).await;
    let owner = lease.body["owner"].as_str()?.to_owned();
    for index in 0..plan.rig.urls.len() {
        let instance = plan.rig.instance(index).await;
        if instance.is_started() && instance.ready().instance == owner {
            return Some(index);
        }
    }
    None
}

async fn owner(plan: &Plan<'_>) -> usize {
    let mut found = None;
    until("somebody owns it", async || {
        found = owner_of(plan).await;
        found.is_some()
    })
    .await;
    found.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_whose_lease_is_taken_while_it_stops_ends_when_it_learns_so() {
    let (rig, ways) = Rig::with_ways_to_the_ledger(2).await;
    let node = rig.node(&[0, 1], "n", |_| {}).await;
    let made = Plan::make(&rig, 0, plan(&[task("a", &[hold(json!({"context": {"n": 1}}))])])).await;
    begun(&node, &made.tasks[0], 0, 1).await;
    let before = owner(&made).await;
    ways[before].cut().await.unwrap();
    let me = rig.instance(before).await.ready().instance.clone();
    let lease = format!("/v1/leases/instance:{me}");
    until("its lease is taken", async || rig.get(1 - before, &lease).await["owner"] != json!(me)).await;
    let mut stopping = rig.instance(before).await;
    stopping.process().signal(Signal::Terminate).unwrap();
    until("it stops", async || stopping.log().contains("stopping: no new work")).await;
    ways[before].heal().await.unwrap();
    // Sooner than after its drain timeout.
    let status = stopping.ended(Duration::from_secs(20)).await;
    let log = stopping.whole_log();
    assert!(status.unwrap().success() && !log.contains("the drain timeout is over"), "{log}");
    drop(stopping);
    node.runs.release(1);
    Plan { at: 1 - before, ..made }.is("SUCCEEDED").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_embedded_form_finds_everything_and_begins_nothing() {
    let rig = Rig::alone_and_patient().await;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let made = Plan::make(&rig, 0, two_tasks()).await;
    begun(&node, &made.tasks[0], 1, 1).await;
    rig.end(0, Signal::Kill).await;
    rig.instance(0).await.start().await.unwrap();
    is_interrupted(&made).await;
    for words in [["a task waits for a person", &made.tasks[0]], ["a plan begins no further task", &made.id]]
    {
        until("the log says so", async || {
            let log = rig.instance(0).await.whole_log();
            log.lines().any(|line| words.iter().all(|word| line.contains(word)))
        })
        .await;
    }
    let waiting = "fencepost_plans{status=\"ATTENTION\"}";
    until("the metrics say so", async || metric(&rig, waiting).await == 1.0).await;
    // The tenant is locked for others, also after a second restart.
    let other = plan(&[task("free", &[echo(json!(1))]), task("acme", &[echo(json!(1))])]);
    for _ in 0..2 {
        let refused = rig.post(0, "/v1/plans", Some(&other), 409).await;
        assert_eq!(
            (&refused["code"], &refused["tenant"], &refused["plan"], &refused["task"]),
            (&json!("tenant_locked"), &json!("acme"), &json!(made.id), &json!(made.tasks[0])),
            "{refused}"
        );
        rig.end(0, Signal::Terminate).await;
        rig.instance(0).await.start().await.unwrap();
    }
    is_interrupted(&made).await;
    assert_eq!(given(&node, &made.tasks[0]), [0, 1], "nothing was dispatched");
    node.runs.release(1);
    made.has_checkpoints(0, 2).await;
    made.retry(0, json!({}), 202).await;
    made.task_is(0, "SUCCEEDED").await;
    assert_eq!(given(&node, &made.tasks[0]), [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_paused_is_paused_after_a_takeover_and_not_interrupted() {
    let rig = Rig::mortal(2).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 4).await;
    let made = Plan::make(&rig, 0, plan(&[task("t", &[hold(json!(0)), echo(json!(1))])])).await;
    begun(&node, &made.tasks[0], 0, 1).await;
    made.post_task(0, "pause", None, 200).await;
    node.runs.release(1);
    made.task_is(0, "PAUSED").await;
    rig.end(0, Signal::Kill).await;
    let found = made.seen_from(1);
    until("it is adopted", async || owner_of(&found).await == Some(1)).await;
    assert_eq!(found.task(0).await["status"], "PAUSED");
    assert_eq!(found.stages(0).await, ["SUCCEEDED", "PENDING"]);
    found.post_task(0, "resume", None, 200).await;
    found.task_is(0, "SUCCEEDED").await;
    assert_eq!(given(&node, &found.tasks[0]), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_owner_could_not_call_off_before_it_died_is_called_off_by_the_next_one() {
    let rig = Rig::mortal(2).await;
    let made = Plan::make(&rig, 0, plan(&[task("t", &[echo(json!(0))])])).await;
    until("the stage waits for a node", async || made.stages(0).await == ["RUNNING"]).await;
    rig.end(0, Signal::Kill).await;
    // As if it had written that the task is to be cancelled, and no more.
    let written =
        "update plan_task set document = jsonb_set(document::jsonb, '{intent}', '\"cancel\"')::text";
    rig.database.as_ref().unwrap().query(written).unwrap();
    let found = made.seen_from(1);
    found.task_is(0, "CANCELLED").await;
    until("the tenant is free", async || found.task(0).await["lock"].is_null()).await;
    let node = rig.node(&[1], "n", |_| {}).await;
    // The next owner does not know what the stage did.
    assert_eq!(found.retry(0, json!({}), 409).await["code"], "stage_unknown");
    let not_done = json!({"outcome": "not_done", "reason": "there was no node"});
    found.post_task(0, "stages/1/resolve", Some(&not_done), 200).await;
    found.retry(0, json!({}), 202).await;
    found.task_is(0, "SUCCEEDED").await;
    assert_eq!(given(&node, &found.tasks[0]), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_broken_while_nobody_owns_the_plan_interrupts_its_task() {
    let rig = Rig::mortal(2).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 4).await;
    let made = Plan::make(&rig, 0, plan(&[task("t", &[hold(json!(0)), echo(json!(1))])])).await;
    begun(&node, &made.tasks[0], 0, 1).await;
    made.post_task(0, "pause", None, 200).await;
    node.runs.release(1);
    let token = made.task_is(0, "PAUSED").await["lock"]["token"].as_u64().unwrap();
    rig.end(0, Signal::Kill).await;
    let found = made.seen_from(1);
    let unlock = json!({"token": token, "reason": "nobody is there"});
    rig.post(1, "/v1/tenants/t/unlock", Some(&unlock), 200).await;
    let interrupted = found.task_is(0, "INTERRUPTED").await;
    assert!(interrupted["reason"].as_str().unwrap().contains("lock"), "{interrupted}");
    found.retry(0, json!({}), 202).await;
    found.task_is(0, "SUCCEEDED").await;
    assert_eq!(given(&node, &found.tasks[0]), [0, 1]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_wakes_after_it_was_taken_for_dead_writes_nothing() {
    let rig = Rig::mortal(2).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 4).await;
    let made = Plan::make(&rig, 0, two_tasks()).await;
    begun(&node, &made.tasks[0], 1, 1).await;
    rig.instance(0).await.process().signal(Signal::Stop).unwrap();
    let found = made.seen_from(1);
    is_interrupted(&found).await;
    let events = found.events(|event| event["seq"].as_u64()).await.len();
    rig.instance(0).await.process().signal(Signal::Continue).unwrap();
    until("it is back", async || {
        let cluster = rig.ask(1, "GET", "/v1/cluster", None).await;
        cluster.body["instances"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await;
    assert_eq!(owner(&found).await, 1);
    assert_eq!(found.events(|event| event["seq"].as_u64()).await.len(), events, "nothing was written");
    is_interrupted(&found).await;
    // Asked at the one that woke, the owner's answer is the same.
    assert_eq!(made.seen_from(0).task(0).await["status"], "INTERRUPTED");
    node.runs.release(1);
    found.has_checkpoints(0, 2).await;
    made.seen_from(0).retry(0, json!({}), 202).await;
    found.task_is(0, "SUCCEEDED").await;
    assert_eq!(given(&node, &found.tasks[0]), [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_node_after_the_takeover_dispatches_nothing() {
    a_lost_node_after_the_takeover(5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_node_after_the_takeover_says_nothing_of_the_stage_even_if_no_attempt_is_left() {
    a_lost_node_after_the_takeover(1).await;
}

async fn a_lost_node_after_the_takeover(max_attempts: u32) {
    let rig = Rig::mortal(2).await;
    let mut stages = two_tasks();
    for stage in stages["tasks"][0]["stages"].as_array_mut().unwrap() {
        stage["max_attempts"] = json!(max_attempts);
    }
    let lost = rig.node(&[1], "lost", |options| options.capacity = 4).await;
    let made = Plan::make(&rig, 0, stages).await;
    let id = made.tasks[0].clone();
    begun(&lost, &id, 1, 1).await;
    rig.end(0, Signal::Kill).await;
    let found = made.seen_from(1);
    is_interrupted(&found).await;
    let other = rig.node(&[1], "other", |options| options.capacity = 4).await;
    drop(lost);
    let job = found.task(0).await["stages"][1]["job"].as_str().unwrap().to_owned();
    until("the node is gone", async || rig.ask(1, "GET", "/v1/nodes/lost", None).await.status == 404).await;
    until("its attempt is over", async || {
        let job = rig.job(1, &job).await;
        job["attempts"].as_array().is_some_and(|attempts| !attempts.is_empty())
    })
    .await;
    is_interrupted(&found).await;
    assert!(other.runs.all().is_empty(), "{:?}", other.runs.all());
    // Nobody may retry it before somebody says what it did.
    let refused = found.retry(0, json!({}), 409).await;
    assert_eq!(refused["code"], "stage_unknown", "{refused}");
    let dead = async || rig.get(1, "/v1/jobs?dead=true&tenant=acme").await["items"].as_array().unwrap().len();
    assert_eq!(dead().await, usize::from(max_attempts == 1), "its job, unless an attempt is left");
    let not_done = json!({"outcome": "not_done", "reason": "its node is gone"});
    found.post_task(0, "stages/2/resolve", Some(&not_done), 200).await;
    assert_eq!(dead().await, 0, "somebody has seen to it");
    found.retry(0, json!({}), 202).await;
    begun(&other, &id, 1, 1).await;
    other.runs.release(1);
    found.task_is(0, "SUCCEEDED").await;
    assert_eq!(given(&other, &id), [1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_ledger_is_away_no_task_fails_no_checkpoint_is_lost_and_an_alarm_says_so() {
    no_checkpoint_is_lost(async |way| way.cut().await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_ledger_is_away_without_a_word_no_checkpoint_is_lost_and_an_alarm_says_so() {
    no_checkpoint_is_lost(async |way| way.freeze()).await;
}

/// The ledger goes away in this manner while two stages run, and comes back after the alarm about their results.
async fn no_checkpoint_is_lost(goes_away: impl AsyncFnOnce(&Proxy)) {
    let (rig, ways) = Rig::with_ways_to_the_ledger(1).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let stages = [hold(json!({"context": {"n": 1}})), hold(json!({"context": {"n": 2}})), echo(json!(0))];
    let made = Plan::make(&rig, 0, plan(&[task("a", &stages), task("b", &stages)])).await;
    for id in &made.tasks {
        begun(&node, id, 0, 1).await;
    }
    assert_eq!(plans_check(&rig).await["status"], "ok");
    assert_eq!(metric(&rig, "fencepost_checkpoint_write_failures_total").await, 0.0);
    goes_away(&ways[0]).await;
    node.runs.release(2);
    until("the alarm is raised", async || {
        let check = plans_check(&rig).await;
        check["status"] == "warn" && check["detail"].as_str().unwrap().contains("wait for the ledger")
    })
    .await;
    assert!(metric(&rig, "fencepost_checkpoint_write_failures_total").await > 0.0);
    until("the gauge says so", async || metric(&rig, "fencepost_checkpoints_waiting").await == 1.0).await;
    let log = rig.instance(0).await.whole_log();
    assert!(log.contains("the result of a stage waits for the ledger"), "{log}");
    assert_eq!(node.runs.all().len(), 2, "no stage begins before the checkpoint of the one before");
    ways[0].heal().await.unwrap();
    until("the alarm is over", async || plans_check(&rig).await["status"] == "ok").await;
    for id in &made.tasks {
        begun(&node, id, 1, 1).await;
    }
    node.runs.release(2);
    made.is("SUCCEEDED").await;
    until("the gauge is down", async || metric(&rig, "fencepost_checkpoints_waiting").await == 0.0).await;
    for place in 0..2 {
        assert_eq!(given(&node, &made.tasks[place]), [0, 1, 2]);
        assert_eq!(made.task(place).await["run"], 1);
        let contexts: Vec<_> =
            made.checkpoints(place).await.iter().map(|one| one["context"]["n"].clone()).collect();
        assert_eq!(contexts, [1, 2, 2]);
    }
    let bad = made.events(|event| event["after"].as_str().filter(|after| is_bad(after)).map(str::to_owned));
    assert_eq!(bad.await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outage_of_the_ledger_that_outlasts_all_leases_takes_no_plan_from_a_live_instance() {
    let (rig, ways) = Rig::with_ways_to_the_ledger_and_leases(2, "8000").await;
    let node = rig.node(&[0, 1], "n", |_| {}).await;
    let made = Plan::make(&rig, 0, plan(&[task("a", &[hold(json!(0)), echo(json!(1))])])).await;
    begun(&node, &made.tasks[0], 0, 1).await;
    let before = owner(&made).await;
    let other = 1 - before;
    for way in &ways {
        way.cut().await.unwrap();
    }
    let live = "select 1 from lease where expires_at > now() and resource ~ '^(instance|plan):'";
    until("all leases have run out", async || rig.database.as_ref().unwrap().query(live).unwrap().is_empty())
        .await;
    // The other one is back first, and finds the plan.
    ways[other].heal().await.unwrap();
    until("it does not take the plan", async || {
        rig.instance(other).await.whole_log().contains("the plan is not adopted here")
    })
    .await;
    ways[before].heal().await.unwrap();
    let lease = format!("/v1/leases/plan:{}", made.id);
    until("its owner renews it", async || rig.ask(before, "GET", &lease, None).await.body["live"] == true)
        .await;
    node.runs.release(1);
    made.is("SUCCEEDED").await;
    assert_eq!(given(&node, &made.tasks[0]), [0, 1]);
    let bad = made.events(|event| event["after"].as_str().filter(|after| is_bad(after)).map(str::to_owned));
    assert_eq!(bad.await, Vec::<String>::new());
    let log = rig.instance(other).await.whole_log();
    assert!(!log.contains("a plan is acquired"), "{log}");
}

fn is_bad(status: &str) -> bool {
    ["FAILED", "INTERRUPTED", "UNKNOWN", "ATTENTION"].contains(&status)
}

/// What `/readyz` says of plans.
async fn plans_check(rig: &Rig) -> Value {
    rig.ask(0, "GET", "/readyz", None).await.body["checks"]["plans"].clone()
}

/// The value of a metric without labels; 0 before it is there.
async fn metric(rig: &Rig, name: &str) -> f64 {
    let text = rig.ask(0, "GET", "/metrics", None).await.text;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.map_or(0.0, |value| value.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_whose_node_is_slow_to_acknowledge_it_runs_once() {
    let rig = Rig::alone().await;
    let mut slow = Hand::greeted(&rig, 0, "slow", json!([])).await;
    let made = Plan::make(&rig, 0, plan(&[task("t", &[echo(json!(1))])])).await;
    let of = slow.given().await;
    let other = rig.node(&[0], "other", |_| {}).await;
    let silence = tokio::time::timeout(ACK + Duration::from_secs(2), slow.beat()).await;
    assert!(silence.is_err(), "it beats for ever");
    slow.say(frame("ack", &of, json!({}))).await;
    slow.say(done(&of, 1)).await;
    slow.hear("committed").await;
    made.is("SUCCEEDED").await;
    assert!(other.runs.all().is_empty(), "nothing says that the first node did not run it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_its_node_never_answers_fails_or_goes_to_another_once_that_node_is_gone() {
    let rig = Rig::alone().await;
    let mut mute = Hand::open(&rig, 0).await;
    mute.say(json!({"type": "hello", "node_id": "mute", "capacity": 2, "running": []})).await;
    mute.hear("welcome").await;
    let mut wanted = plan(&[task("once", &[echo(json!(1))]), task("twice", &[echo(json!(2))])]);
    wanted["tasks"][1]["stages"][0]["max_attempts"] = json!(2);
    let made = Plan::make(&rig, 0, wanted).await;
    mute.given().await;
    mute.given().await;
    let other = rig.node(&[0], "other", |_| {}).await;
    let ends = async {
        let failed = made.task_is(0, "FAILED").await;
        assert_eq!(failed["reason"], "stage s0: the node is gone", "{failed}");
        made.task_is(1, "SUCCEEDED").await;
    };
    tokio::select! {
        () = ends => {}
        // In the end it is hung up on.
        () = mute.beat() => unreachable!("it beats for ever"),
    }
    assert_eq!((given(&other, &made.tasks[0]), given(&other, &made.tasks[1])), (vec![], vec![0]));
}

/// A node that gets the stage of a task that may be tried twice, and goes on with it though its time is over.
async fn overrun(rig: &Rig) -> (Hand, Value, Plan<'_>) {
    let mut slow = Hand::greeted(rig, 0, "slow", json!([])).await;
    let mut wanted = plan(&[task("t", &[echo(json!(1))])]);
    let stage = &mut wanted["tasks"][0]["stages"][0];
    (stage["max_attempts"], stage["timeout_ms"]) = (json!(2), json!(500));
    stage["backoff"] = json!({"initial_ms": 0});
    let made = Plan::make(rig, 0, wanted).await;
    let of = slow.given().await;
    slow.say(frame("ack", &of, json!({}))).await;
    slow.hear("cancel").await;
    (slow, of, made)
}

/// It still lists the attempt, for a while.
async fn goes_on(slow: &mut Hand, of: &Value) {
    for _ in 0..6 {
        slow.say(heartbeat(json!([of]))).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_is_not_tried_again_while_the_node_that_had_it_goes_on() {
    let rig = Rig::alone().await;
    let (mut slow, of, made) = overrun(&rig).await;
    let other = rig.node(&[0], "other", |_| {}).await;
    goes_on(&mut slow, &of).await;
    assert!(other.runs.all().is_empty(), "one of them at a time: {:?}", other.runs.all());
    slow.say(heartbeat(json!([]))).await;
    made.is("SUCCEEDED").await;
    assert_eq!(given(&other, &made.tasks[0]), [0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_is_locked_while_an_attempt_that_overran_its_time_goes_on() {
    let rig = Rig::alone().await;
    let (mut slow, of, made) = overrun(&rig).await;
    let stage = made.task(0).await["stages"][0]["job"].as_str().unwrap().to_owned();
    until("it waits to be tried again", async || rig.job(0, &stage).await["state"] == "CREATED").await;
    made.post_task(0, "cancel", None, 200).await;
    made.task_is(0, "CANCELLED").await;
    goes_on(&mut slow, &of).await;
    assert!(made.task(0).await["lock"].is_object(), "{}", made.task(0).await);
    // Without it nobody would know what is waited for.
    let path = format!("/v1/jobs/{stage}");
    let kept = rig.ask(0, "DELETE", &path, None).await;
    assert_eq!((kept.status, kept.code()), (409, "conflict"), "{}", kept.text);
    slow.say(heartbeat(json!([]))).await;
    until("its tenant is free", async || made.task(0).await["lock"] == Value::Null).await;
    assert_eq!(rig.ask(0, "DELETE", &path, None).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_broken_at_another_instance_is_lost_to_its_owner_at_once() {
    // Where callers are redirected, too: it is brought to the owner.
    for on_misroute in ["forward", "redirect"] {
        let rig =
            Rig::shaped(2, false, |setup| setup.env("FENCEPOST__WORKER_QUEUE__ON_MISROUTE", on_misroute))
                .await;
        a_lock_is_broken_elsewhere(&rig).await;
    }
}

async fn a_lock_is_broken_elsewhere(rig: &Rig) {
    let node = rig.node(&[0], "n", |_| {}).await;
    let made = Plan::make(rig, 0, plan(&[task("t", &[hold(json!(0))])])).await;
    begun(&node, &made.tasks[0], 0, 1).await;
    let other = 1 - owner(&made).await;
    let token = made.task(0).await["lock"]["token"].clone();
    let unlock = json!({"token": token, "reason": "its systems are gone"});
    rig.post(other, "/v1/tenants/t/unlock", Some(&unlock), 200).await;
    assert_eq!(made.task(0).await["status"], "INTERRUPTED");
    let job = made.task(0).await["stages"][0]["job"].as_str().unwrap().to_owned();
    assert_eq!(rig.finished(0, &job).await["outcome"], "cancelled");
    // A second time there is no lock to break.
    let again = rig.ask(other, "POST", "/v1/tenants/t/unlock", Some(&unlock)).await;
    assert_eq!(again.status, 409, "{}", again.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stage_that_was_not_sent_to_its_node_in_time_goes_to_another() {
    let rig = Rig::with_own_redis(2).await;
    let first = rig
        .node(&[1], "first", |options| {
            options.labels.push("first".to_owned());
            options.capacity = 32;
        })
        .await;
    let mut asleep = Hand::open(&rig, 0).await;
    let labels = json!(["second"]);
    let hello = json!({"type": "hello", "node_id": "asleep", "capacity": 1, "labels": labels, "running": []});
    asleep.say(hello).await;
    asleep.hear("welcome").await;
    rig.node_is(1, "asleep", |node| node["state"] == "online").await;
    let mut wanted = plan(&[task("t", &[hold(json!(0)), echo(json!(1))])]);
    for (stage, label) in ["first", "second"].into_iter().enumerate() {
        wanted["tasks"][0]["stages"][stage]["requires"] = json!([label]);
    }
    // The instance that is about to stand still must not be the plan's owner.
    let mut plans = 0;
    let made = loop {
        plans += 1;
        wanted["tasks"][0]["tenant"] = json!(format!("t{plans}"));
        let made = Plan::make(&rig, 1, wanted.clone()).await;
        begun(&first, &made.tasks[0], 0, 1).await;
        if owner(&made).await == 1 {
            break made;
        }
    };
    rig.instance(0).await.process().signal(Signal::Stop).unwrap();
    first.runs.release(plans);
    until("it is dispatched", async || made.stages(0).await == ["SUCCEEDED", "RUNNING"]).await;
    let other = Node::start(&rig.urls[1..], "other", |options| options.labels.push("second".to_owned()));
    other.connected().await;
    made.is("SUCCEEDED").await;
    assert_eq!(given(&other, &made.tasks[0]), [1]);
    rig.instance(0).await.process().signal(Signal::Continue).unwrap();
}
