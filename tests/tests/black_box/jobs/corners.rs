//! Two things at once that are rarely at once, made so on purpose: a commit that nobody hears of, a word that comes too
//! late, a record that is gone between two steps.

use std::time::{Duration, Instant};

use client::wire::worker::close;
use serde_json::{Value, json};
use testkit::process::Signal;

use super::hand::{Hand, done, frame, heartbeat};
use super::rig::{Node, OFFLINE, PATIENCE, Rig, echo, hold, past, with};
use crate::until;

fn at_once() -> Value {
    json!({"backoff": {"initial_ms": 0}})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_whose_job_was_not_committed_is_free_again_and_the_job_runs_once() {
    let (rig, ways) = Rig::with_ways_to_the_ledger(2).await;
    let node = rig.node(&[1], "n", |_| {}).await;
    // From here on its slots are not lent to instance 1 alone.
    rig.node_is(0, "n", |node| node["state"] == "online").await;
    let first = rig.submit(0, echo(0)).await;
    rig.finished(0, &first).await;
    // The slot is had, and the commit is held up on its way. Where the lane was just reading or writing, that is held up
    // instead, and nothing is reserved: then the next job is tried.
    let url = format!("{}/v1/jobs", rig.urls[0]);
    let mut number = 0;
    loop {
        number += 1;
        rig.nothing_is_held().await;
        ways[0].freeze();
        let job = echo(number);
        let key = format!("key-{number}");
        let submitting = rig.http.request("POST", &url, Some(&key), Some(&job));
        let held_up = async {
            let reserved = until("its slot is reserved", async || {
                rig.post(0, "/v1/nodes/select", Some(&json!({})), 200).await["node"].is_null()
            });
            let is_reserved = tokio::time::timeout(Duration::from_secs(3), reserved).await.is_ok();
            // Cut: nobody will know what became of it.
            ways[0].cut().await.unwrap();
            is_reserved
        };
        let (answer, is_reserved) = tokio::join!(submitting, held_up);
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.code()), (503, "ledger_unavailable"), "{}", answer.text);
        ways[0].heal().await.unwrap();
        let mut id = None;
        until("it is accepted", async || {
            let answer = rig.http.request("POST", &url, Some(&key), Some(&job)).await.unwrap();
            id = answer.body["id"].as_str().map(str::to_owned);
            id.is_some()
        })
        .await;
        let id = id.unwrap();
        assert_eq!(rig.finished(1, &id).await["result"], number);
        assert_eq!(node.runs.of(&id).len(), 1);
        if is_reserved {
            break;
        }
    }
    // What was reserved for the submission that came to nothing runs out.
    rig.nothing_is_held().await;
    assert_eq!(node.runs.all().len(), number + 1, "each of them once");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_was_taken_back_while_it_lay_in_an_inbox_is_never_sent() {
    let rig = Rig::with_own_redis(2).await;
    let mut hand = shared(&rig, "asleep").await;
    rig.instance(0).await.process().signal(Signal::Stop).unwrap();
    let id = rig.submit(1, with(hold(1), at_once())).await;
    rig.in_state(1, &id, "DISPATCHED").await;
    let other = Node::start(&rig.urls[1..], "other", |_| {});
    other.connected().await;
    other.runs.release(1);
    let job = rig.finished(1, &id).await;
    assert_eq!((&job["node"], &past(&job)[0].1), (&json!("other"), &"not_acknowledged".to_owned()), "{job}");
    rig.instance(0).await.process().signal(Signal::Continue).unwrap();
    let redis = rig.redis.as_ref().unwrap();
    until("it has read its inbox", async || {
        let inboxes = redis.command(&["KEYS", "*{instance:*}:inbox"]).unwrap();
        inboxes.lines().all(|inbox| redis.command(&["XLEN", inbox]).unwrap().trim() == "0")
    })
    .await;
    hand.say(heartbeat(json!([]))).await;
    hand.quiet_until("heartbeat_ok", "dispatch").await;
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_on_its_way_to_an_instance_that_its_node_has_left_is_not_waited_for() {
    let rig = Rig::together(2).await;
    let (id, _left) = dispatched_to_a_stopped_instance(&rig, async || Some(shared(&rig, "n").await)).await;
    let mut hand = Hand::greeted(&rig, 1, "n", json!([])).await;
    let of = hand.given().await;
    hand.say(done(&of, "here")).await;
    hand.hear("committed").await;
    let job = rig.finished(1, &id).await;
    assert_eq!((&job["result"], &past(&job)[0].1), (&json!("here"), &"undeliverable".to_owned()), "{job}");
    rig.instance(0).await.process().signal(Signal::Continue).unwrap();
    hand.say(heartbeat(json!([]))).await;
    hand.quiet_until("heartbeat_ok", "dispatch").await;
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

/// A node at instance 0 whose slots the bus gives for a while, since instance 1 has used one.
async fn shared(rig: &Rig, name: &str) -> Hand {
    let mut hand = Hand::greeted(rig, 0, name, json!([])).await;
    rig.node_is(1, name, |node| node["state"] == "online").await;
    let first = rig.submit(1, echo(1)).await;
    let of = hand.given().await;
    hand.say(done(&of, "here")).await;
    rig.finished(1, &first).await;
    hand
}

/// Stops instance 0, and answers a job that instance 1 has dispatched to its node "n" meanwhile, with the connection that
/// `connect` made of the node. On a busy machine the stopped instance's presence may expire before the dispatch, and then
/// its node gets no work; nor does it while the bus lends its slots to that instance. Then the instance goes on, the node
/// connects anew, and another job is tried.
async fn dispatched_to_a_stopped_instance<C>(rig: &Rig, connect: impl AsyncFn() -> C) -> (String, C) {
    for _ in 0..10 {
        let connection = connect().await;
        rig.node_is(1, "n", |node| node["state"] == "online").await;
        rig.instance(0).await.process().signal(Signal::Stop).unwrap();
        let id = rig.submit(1, with(echo(1), at_once())).await;
        let tried = Instant::now();
        while tried.elapsed() < Duration::from_secs(2) {
            if rig.get(1, &format!("/v1/jobs/{id}")).await["state"] == "DISPATCHED" {
                return (id, connection);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        rig.post(1, &format!("/v1/jobs/{id}/cancel"), None, 200).await;
        rig.instance(0).await.process().signal(Signal::Continue).unwrap();
        // It hears that the node's slots are wanted, and has the bus give them for a while.
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    panic!("no job was dispatched to the node of a stopped instance");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_lost_between_reservation_and_dispatch_costs_a_turn_and_no_job() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let (id, ()) = dispatched_to_a_stopped_instance(&rig, async || ()).await;
    // Its record, its slot and the inbox in which the dispatch lies.
    rig.redis.as_ref().unwrap().flush().unwrap();
    rig.instance(0).await.process().signal(Signal::Continue).unwrap();
    let job = rig.finished(1, &id).await;
    assert_eq!((&job["outcome"], node.runs.of(&id).len()), (&json!("succeeded"), 1), "{job}");
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_record_a_connection_that_it_left_took_late_gets_it_back() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let redis = rig.redis.as_ref().unwrap();
    let keys = redis.command(&["KEYS", "*{node:n}:*:record"]).unwrap();
    let record = keys.trim();
    let read = |field: &str| redis.command(&["HGET", record, field]).unwrap().trim().parse::<u64>().unwrap();
    // The word of another connection, that looks as if it had just begun: nobody speaks there.
    let newer = (read("epoch").max(read("version")) + 1_000_000).to_string();
    let since = (read("since") + 20_000_000).to_string();
    let taken = ["HSET", record, "holder", "late", "epoch", &newer, "version", &newer, "since", &since];
    redis.command(&taken).unwrap();
    rig.node_is(1, "n", |node| node["instance"] == "late").await;
    // It is found silent.
    redis.command(&["HSET", record, "state", "unhealthy"]).unwrap();
    rig.node_is(1, "n", |node| node["instance"] != "late" && node["state"] == "online").await;
    let id = rig.submit(1, echo(1)).await;
    assert_eq!(rig.finished(1, &id).await["result"], 1);
    assert_eq!(node.runs.of(&id).len(), 1, "it is the node that was there all the time");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

/// As when a Redis that lost its data has a clock that is behind: the record's version was ahead of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_redis_lost_is_written_anew_above_what_its_instance_knows() {
    const AHEAD: u64 = 4_000_000_000_000_000;
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let redis = rig.redis.as_ref().unwrap();
    let keys = redis.command(&["KEYS", "*{node:n}:*:record"]).unwrap();
    let record = keys.trim();
    let read = |key: &str, field: &str| {
        redis.command(&["HGET", key, field]).unwrap().trim().parse::<u64>().unwrap_or_default()
    };
    let listed = || read(redis.command(&["KEYS", "*{instance:*}:nodes"]).unwrap().trim(), "n");
    // The word of another connection, which the node's instance takes over.
    let ahead = AHEAD.to_string();
    redis.command(&["HSET", record, "epoch", &ahead, "version", &ahead]).unwrap();
    until("the instance knows of an epoch that is ahead", async || listed() > AHEAD).await;
    redis.flush().unwrap();
    until("its next one is above that", async || read(record, "epoch") > AHEAD).await;
    let id = rig.submit(1, echo(1)).await;
    assert_eq!(rig.finished(1, &id).await["result"], 1);
    assert_eq!(node.runs.of(&id).len(), 1);
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_is_under_way_while_its_attempt_is_taken_back_is_stale() {
    let (rig, ways) = Rig::with_ways_to_the_ledger(2).await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    rig.node_is(1, "h", |node| node["state"] == "online").await;
    let id = rig.submit(1, with(echo(1), json!({"timeout_ms": 300, "backoff": {"initial_ms": 0}}))).await;
    let of = hand.given().await;
    hand.say(frame("ack", &of, json!({}))).await;
    ways[0].freeze();
    hand.say(done(&of, "under way")).await;
    until("it is taken back", async || rig.job(1, &id).await["attempts"][0]["state"] == "timed_out").await;
    ways[0].heal().await.unwrap();
    assert_eq!(hand.hear("stale").await["attempt"], 1);
    hand.say(heartbeat(json!([]))).await;
    let of = hand.given().await;
    hand.say(done(&of, "good")).await;
    hand.hear("committed").await;
    let job = rig.finished(1, &id).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("good"), &json!(2)), "{job}");
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_cancel_and_a_result_at_the_same_time_one_counts_and_everybody_is_told_which() {
    let rig = Rig::together(2).await;
    let mut hand = Hand::greeted(&rig, 0, "h", json!([])).await;
    let mut cancelled = 0;
    for round in 0..30 {
        let id = rig.submit(1, echo(round)).await;
        let of = hand.given().await;
        hand.say(frame("ack", &of, json!({}))).await;
        let path = format!("/v1/jobs/{id}/cancel");
        let (job, ()) = tokio::join!(rig.post(round % 2, &path, None, 200), hand.say(done(&of, round)));
        let end = hand.any(&["committed", "stale"]).await;
        hand.say(heartbeat(json!([]))).await;
        let finished = rig.job(1, &id).await;
        assert_eq!(job["outcome"], finished["outcome"], "what was answered stays so");
        let is_cancelled = finished["outcome"] == "cancelled";
        assert_eq!(end["type"], if is_cancelled { "stale" } else { "committed" }, "{finished}");
        assert_eq!(finished["result"] == round, !is_cancelled, "{finished}");
        cancelled += u32::from(is_cancelled);
    }
    eprintln!("{cancelled} of 30 were cancelled");
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_taken_back_is_called_off_wherever_its_node_is_by_now() {
    let rig = Rig::together(2).await;
    let mut before = Hand::greeted(&rig, 0, "h", json!([])).await;
    rig.node_is(1, "h", |node| node["state"] == "online").await;
    let slow = with(echo(1), json!({"timeout_ms": 2_000, "max_attempts": 1}));
    let id = rig.submit(1, slow).await;
    let of = before.given().await;
    before.say(frame("ack", &of, json!({}))).await;
    // It was given by way of the first instance, and is with the second one now, while the old socket lives.
    let mut now = Hand::greeted(&rig, 1, "h", json!([of])).await;
    assert_eq!(before.closed().await, close::REPLACED);
    let mut answer = None;
    let begun = Instant::now();
    while answer.is_none() {
        assert!(begun.elapsed() < PATIENCE, "nobody calls it off");
        now.say(heartbeat(json!([of]))).await;
        answer = now.within(Duration::from_secs(1), "cancel").await;
    }
    assert_eq!(rig.finished(0, &id).await["outcome"], "timed_out");
    now.say(heartbeat(json!([]))).await;
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_that_is_away_for_long_takes_no_work_from_a_healthy_node_of_another_instance() {
    let rig = Rig::impatient_with_own_redis(2).await;
    let node = rig.node(&[0], "n", |_| {}).await;
    let id = rig.submit(1, with(hold(7), at_once())).await;
    rig.in_state(1, &id, "RUNNING").await;
    rig.redis.as_ref().unwrap().kill();
    // Longer than a node that nothing is heard of is borne.
    tokio::time::sleep(OFFLINE + Duration::from_secs(4)).await;
    let waiting = rig.submit(1, echo(8)).await;
    rig.redis.as_ref().unwrap().boot().unwrap();
    rig.node_is(1, "n", |node| node["state"] == "online").await;
    let job = rig.job(1, &id).await;
    assert_eq!((&job["state"], &job["attempt"]), (&json!("RUNNING"), &json!(1)), "{job}");
    node.runs.release(1);
    let job = rig.finished(1, &id).await;
    assert_eq!(
        (&job["result"], &job["attempt"], node.runs.of(&id).len()),
        (&json!(7), &json!(1), 1),
        "{job}"
    );
    rig.finished(0, &waiting).await;
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slots_of_a_node_are_right_again_when_redis_comes_back_with_an_older_state() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 2).await;
    let redis = rig.redis.as_ref().unwrap();
    let over = rig.submit(1, hold(1)).await;
    rig.in_state(1, &over, "RUNNING").await;
    redis.command(&["SAVE"]).unwrap();
    // Of what follows Redis will know nothing.
    node.runs.release(1);
    rig.finished(1, &over).await;
    let running = rig.submit(1, hold(2)).await;
    rig.in_state(1, &running, "RUNNING").await;
    // A busy machine may not have acknowledged an earlier one in time.
    let attempt = rig.job(1, &running).await["attempt"].clone();
    redis.kill();
    redis.boot().unwrap();
    // The second instance goes on wanting slots: one is free, and one job waits.
    let second = rig.submit(1, hold(3)).await;
    let waiting = rig.submit(1, echo(4)).await;
    let mut held_by = [running.as_str(), second.as_str()];
    held_by.sort_unstable();
    until("its slots are those of what it runs", async || {
        let keys = redis.command(&["KEYS", "*{node:n}:*:slots"]).unwrap();
        let Some(slots) = keys.lines().find(|key| !key.is_empty()) else { return false };
        let slots = redis.command(&["HKEYS", slots]).unwrap();
        let mut jobs: Vec<_> = slots.lines().filter_map(|slot| Some(slot.split_once('/')?.0)).collect();
        jobs.sort_unstable();
        jobs == held_by
    })
    .await;
    node.runs.release(2);
    for (id, result) in [(&running, 2), (&second, 3), (&waiting, 4)] {
        assert_eq!(rig.finished(1, id).await["result"], result);
    }
    let (job, runs) = (rig.job(1, &running).await, node.runs.of(&running));
    assert_eq!(job["attempt"], attempt, "it was not taken back: {job:#}\n{runs:#?}");
    assert_eq!(runs.iter().filter(|run| attempt == run.attempt).count(), 1, "it was sent once: {runs:#?}");
    rig.nothing_is_held().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_full_or_evicts_is_reported_and_costs_no_job() {
    let rig = Rig::with_own_redis(2).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 2).await;
    let redis = rig.redis.as_ref().unwrap();
    let running = rig.submit(1, hold(1)).await;
    rig.in_state(1, &running, "RUNNING").await;
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]).unwrap();
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let reported = async |index: usize| rig.get(index, "/readyz").await["status"] == "degraded";
    until("a full Redis is reported", async || reported(0).await && reported(1).await).await;
    // Accepted, and recorded; nothing new is dispatched.
    let waiting = rig.submit(1, echo(2)).await;
    node.runs.release(1);
    assert_eq!(rig.finished(1, &running).await["result"], 1);
    // With room, and with a policy under which it may lose what it was told.
    redis.command(&["CONFIG", "SET", "maxmemory", "100mb"]).unwrap();
    redis.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).unwrap();
    assert_eq!(rig.finished(0, &waiting).await["result"], 2);
    until("the policy is reported", async || {
        let ready = rig.get(1, "/readyz").await;
        ready["status"] == "degraded" && ready.to_string().contains("allkeys-lru")
    })
    .await;
    rig.instance(1).await.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    rig.instance(1).await.start().await.unwrap();
    until("it is said at the start", async || {
        let log = rig.instance(1).await.whole_log();
        log.rfind("\"starting\"").is_some_and(|begun_anew| log[begun_anew..].contains("allkeys-lru"))
    })
    .await;
    assert_eq!(node.runs.all().len(), 2);
    rig.nothing_is_held().await;
}
