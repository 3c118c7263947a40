//! Bulk operations: each does its action to each job once, whatever instance works on it, also when that one dies.

use std::collections::HashMap;

use serde_json::{Value, json};
use testkit::fake_clock::FakeClock;
use testkit::instance::Setup;
use testkit::process::Signal;

use super::rig::{Rig, echo, hold, with};
use crate::until;

fn broken(kind: &str) -> Value {
    json!({"payload": {"broken": "no such voice"}, "kind": kind})
}

fn later(kind: &str) -> Value {
    with(echo(1), json!({"kind": kind, "delay_ms": 600_000}))
}

async fn begin(rig: &Rig, index: usize, body: Value) -> (String, u64) {
    let accepted = rig.post(index, "/v1/bulk", Some(&body), 202).await;
    (accepted["id"].as_str().unwrap().to_owned(), accepted["matched"].as_u64().unwrap())
}

/// Waits until the operation is over, and returns it.
async fn over(rig: &Rig, index: usize, id: &str) -> Value {
    let mut found = Value::Null;
    until("the bulk operation is over", async || {
        found = rig.get(index, &format!("/v1/bulk/{id}")).await;
        !found["finished_at"].is_null()
    })
    .await;
    found
}

fn counts(bulk: &Value) -> (&str, u64, u64, u64) {
    let count = |name: &str| bulk[name].as_u64().unwrap();
    (bulk["status"].as_str().unwrap(), count("done"), count("skipped"), count("failed"))
}

/// All jobs that a query lists.
async fn listed(rig: &Rig, index: usize, query: &str) -> Vec<Value> {
    let (mut jobs, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = rig.get(index, &format!("/v1/jobs?limit=1000&{query}{cursor}")).await;
        jobs.extend(page["items"].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return jobs,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn six_retries_by_filter_of_one_failing_job_make_six_jobs() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let mut newest = rig.submit(0, broken("k")).await;
    rig.finished(0, &newest).await;
    for round in 0..6 {
        let index = round % 2;
        let filter = match round % 3 {
            0 => json!({"dead": true}),
            1 => json!({"outcome": "failed", "kind": "k"}),
            _ => json!({"state": "FINISHED", "dead": true}),
        };
        let dry = json!({"action": "retry", "filter": filter, "dry_run": true});
        let dry = rig.post(index, "/v1/bulk", Some(&dry), 200).await;
        assert_eq!((&dry["matched"], &dry["id"], dry["before"].is_string()), (&json!(1), &Value::Null, true));
        let (id, matched) = begin(&rig, index, json!({"action": "retry", "filter": filter})).await;
        let bulk = over(&rig, 1 - index, &id).await;
        assert_eq!((matched, counts(&bulk)), (1, ("DONE", 1, 0, 0)), "{bulk}");
        newest = rig.job(0, &newest).await["retried_as"].as_str().unwrap().to_owned();
        rig.finished(0, &newest).await;
    }
    assert_eq!(listed(&rig, 0, "").await.len(), 7, "the job, and six retries");
    let bulks = rig.get(1, "/v1/bulk").await;
    assert_eq!(bulks["items"].as_array().unwrap().len(), 6, "a dry run is no operation");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_is_killed_in_the_middle_leaves_no_job_out_and_retries_none_twice() {
    const JOBS: usize = 120;
    let rig = Rig::mortal(2).await;
    let node = rig.node(&[1], "n", |options| options.capacity = 16).await;
    let session = rig.post(1, "/v1/sessions", Some(&json!({"ordering": "none"})), 201).await;
    let one = |n: usize| match n % 3 {
        0 => with(broken("k"), json!({"session": session["id"]})),
        _ => broken("k"),
    };
    let jobs: Vec<_> = (0..JOBS).map(one).collect();
    let ids = rig.submit_all(1, &jobs).await;
    for id in &ids {
        rig.finished(1, id).await;
    }
    let request = json!({"action": "retry", "filter": {"outcome": "failed", "kind": "k"}, "rate": 30});
    let (id, matched) = begin(&rig, 0, request).await;
    assert_eq!(matched, JOBS as u64);
    until("some are retried", async || {
        let bulk = rig.get(1, &format!("/v1/bulk/{id}")).await;
        bulk["done"].as_u64().unwrap() > 0
    })
    .await;
    rig.end(0, Signal::Kill).await;
    let bulk = over(&rig, 1, &id).await;
    assert_eq!(counts(&bulk), ("DONE", JOBS as u64, 0, 0), "{bulk}");
    let mut retries: HashMap<String, usize> = HashMap::new();
    for job in listed(&rig, 1, "kind=k").await {
        if let Some(of) = job["retry_of"].as_str() {
            *retries.entry(of.to_owned()).or_default() += 1;
        }
    }
    assert_eq!(retries.len(), JOBS, "each is retried");
    assert!(retries.values().all(|times| *times == 1) && ids.iter().all(|id| retries.contains_key(id)));
    drop(node);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_cancel_reaches_the_lanes_of_all_instances_and_no_job_that_comes_later() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let session = rig.post(0, "/v1/sessions", Some(&json!({})), 201).await;
    let mut ids = Vec::new();
    for index in [0, 1] {
        for _ in 0..5 {
            ids.push(rig.submit(index, later("k")).await);
        }
        ids.push(rig.submit(index, with(later("k"), json!({"session": session["id"]}))).await);
    }
    let other = rig.submit(0, later("other")).await;
    // Slow enough for a job to come before the end.
    let (id, matched) = begin(&rig, 0, json!({"action": "cancel", "filter": {"kind": "k"}, "rate": 5})).await;
    let late = rig.submit(1, later("k")).await;
    let bulk = over(&rig, 1, &id).await;
    assert_eq!((matched, counts(&bulk)), (12, ("DONE", 12, 0, 0)), "{bulk}");
    for id in &ids {
        assert_eq!(rig.job(1, id).await["outcome"], "cancelled");
    }
    for id in [&other, &late] {
        assert_eq!(rig.job(1, id).await["state"], "CREATED");
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_cancel_reaches_the_jobs_of_an_instance_whose_clock_was_days_ahead() {
    let clock = FakeClock::new().unwrap();
    let variables = clock.variables();
    let under = |setup: Setup| variables.iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    let rig = Rig::shaped(1, false, under).await;
    clock.set(2 * 86_400_000).unwrap();
    let ahead = rig.submit(0, later("k")).await;
    clock.set(0).unwrap();
    let after = rig.submit(0, later("k")).await;
    let (id, matched) = begin(&rig, 0, json!({"action": "cancel", "filter": {"kind": "k"}})).await;
    let bulk = over(&rig, 0, &id).await;
    assert_eq!((matched, counts(&bulk)), (2, ("DONE", 2, 0, 0)), "{bulk}");
    for id in [ahead, after] {
        assert_eq!(rig.job(0, &id).await["outcome"], "cancelled");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_deleted_and_dismissed_in_bulk_up_to_a_time() {
    let rig = Rig::together(2).await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let mut dead = Vec::new();
    for _ in 0..4 {
        dead.push(rig.submit(0, broken("k")).await);
        rig.finished(0, dead.last().unwrap()).await;
    }
    let cut = rig.job(0, &dead[3]).await["finished_at"].clone();
    let newer = rig.submit(0, broken("k")).await;
    rig.finished(0, &newer).await;
    // Before a time: the job that ended then, and the newer one, are left out.
    let (id, matched) = begin(&rig, 1, json!({"action": "dismiss", "filter": {}, "before": cut})).await;
    let bulk = over(&rig, 0, &id).await;
    assert_eq!((matched, counts(&bulk)), (3, ("DONE", 3, 0, 0)), "{bulk}");
    assert_eq!(listed(&rig, 0, "dead=true").await.len(), 2);
    let waiting = rig.submit(0, later("k")).await;
    let (id, matched) = begin(&rig, 0, json!({"action": "delete", "filter": {"kind": "k"}})).await;
    let bulk = over(&rig, 0, &id).await;
    assert_eq!((matched, counts(&bulk)), (5, ("DONE", 5, 0, 0)), "{bulk}");
    let left = listed(&rig, 1, "").await;
    assert_eq!((left.len(), &left[0]["id"]), (1, &json!(waiting)), "what is not finished stays");
    assert_eq!(rig.ask(0, "GET", &format!("/v1/jobs/{newer}"), None).await.status, 404);
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_operation_is_cancelled_and_what_was_done_stays() {
    let rig = Rig::alone().await;
    let jobs: Vec<_> = (0..40).map(|_| later("k")).collect();
    rig.submit_all(0, &jobs).await;
    let (id, _) = begin(&rig, 0, json!({"action": "cancel", "filter": {"kind": "k"}, "rate": 5})).await;
    until("some are cancelled", async || {
        rig.get(0, &format!("/v1/bulk/{id}")).await["done"].as_u64().unwrap() > 0
    })
    .await;
    let cancelled = rig.post(0, &format!("/v1/bulk/{id}/cancel"), None, 200).await;
    assert!(["CANCELLING", "CANCELLED"].contains(&cancelled["status"].as_str().unwrap()), "{cancelled}");
    let bulk = over(&rig, 0, &id).await;
    assert_eq!(
        (&bulk["status"], &bulk["action"], &bulk["rate"]),
        (&json!("CANCELLED"), &json!("cancel"), &json!(5))
    );
    let done = bulk["done"].as_u64().unwrap();
    assert!(done > 0 && done < 40, "{bulk}");
    assert_eq!(listed(&rig, 0, "state=CREATED").await.len() as u64, 40 - done);
    // Once more changes nothing.
    assert_eq!(rig.post(0, &format!("/v1/bulk/{id}/cancel"), None, 200).await, bulk);
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_is_the_same_operation_and_what_is_wrong_is_refused() {
    let rig = Rig::alone().await;
    let ask = async |key: &str, body: &Value| {
        rig.http.request("POST", &format!("{}/v1/bulk", rig.urls[0]), Some(key), Some(body)).await.unwrap()
    };
    let retry = json!({"action": "retry", "filter": {"dead": true}});
    let first = ask("key", &retry).await;
    assert_eq!((first.status, ask("key", &retry).await.body), (202, first.body.clone()));
    let other = ask("key", &json!({"action": "dismiss", "filter": {}})).await;
    assert_eq!((other.status, other.code()), (422, "key_reused"), "{}", other.text);
    assert_ne!(ask("other", &retry).await.body["id"], first.body["id"]);
    for body in [
        json!({}),
        json!({"action": "retry"}),
        json!({"action": "drop", "filter": {"dead": true}}),
        json!({"action": "retry", "filter": {}}),
        json!({"action": "retry", "filter": {"pool": "p"}}),
        json!({"action": "delete", "filter": {}}),
        json!({"action": "delete", "filter": {"state": "CREATED"}}),
        json!({"action": "cancel", "filter": {"state": "FINISHED"}}),
        json!({"action": "cancel", "filter": {"kind": "k", "dead": true}}),
        json!({"action": "dismiss", "filter": {"outcome": "succeeded"}}),
        json!({"action": "delete", "filter": {"kind": "a b"}}),
        json!({"action": "retry", "filter": {"dead": true}, "rate": 0}),
        json!({"action": "retry", "filter": {"dead": true}, "before": "yesterday"}),
        json!({"action": "retry", "filter": {"dead": true}, "after": "2026-01-01T00:00:00Z"}),
    ] {
        let reply = rig.ask(0, "POST", "/v1/bulk", Some(&body)).await;
        assert_eq!((reply.status, reply.code()), (400, "invalid"), "{body}: {}", reply.text);
    }
    for (method, path) in [
        ("GET", "/v1/bulk/nothing"),
        ("GET", "/v1/bulk/018f0000-0000-7000-8000-000000000000"),
        ("POST", "/v1/bulk/018f0000-0000-7000-8000-000000000000/cancel"),
    ] {
        let reply = rig.ask(0, method, path, None).await;
        assert_eq!((reply.status, reply.code()), (404, "not_found"), "{path}: {}", reply.text);
    }
    assert_eq!(rig.get(0, "/v1/bulk").await["items"].as_array().unwrap().len(), 2, "nothing else is made");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_whose_note_is_carried_out_after_its_connection_died_is_counted_once() {
    let (rig, way) = Rig::with_a_long_way_to_the_ledger().await;
    let database = rig.database.as_ref().unwrap();
    let sql = |text: &str| tokio::task::block_in_place(|| database.query(text).unwrap());
    let sessions_that = async |wait: &str| {
        let text =
            format!("select count(*) from pg_stat_activity where datname = current_database() and {wait}");
        sql(&text) != [["0"]]
    };
    // What notes the end of a page is held up in the server until there is a row.
    sql("create table go (now boolean);
         create function hold_up() returns trigger language plpgsql as $$
             begin
                 while not exists (select from go) loop perform pg_sleep(0.02); end loop;
                 return new;
             end $$;
         create trigger hold_up before update on bulk for each row
             when (old.page is not null and new.page is null) execute function hold_up()");
    for _ in 0..3 {
        rig.submit(0, later("k")).await;
    }
    let (id, matched) = begin(&rig, 0, json!({"action": "cancel", "filter": {"kind": "k"}})).await;
    until("the page's end is being noted", async || sessions_that("wait_event = 'PgSleep'").await).await;
    // The server goes on with what it was sent, and the instance does not know what became of it.
    way.cut().await.unwrap();
    way.heal().await.unwrap();
    until("the owner's next write waits for the one before", async || {
        sessions_that("wait_event_type = 'Lock'").await
    })
    .await;
    sql("insert into go values (true)");
    let bulk = over(&rig, 0, &id).await;
    assert_eq!((matched, counts(&bulk)), (3, ("DONE", 3, 0, 0)), "{bulk}");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_read_has_failed_and_does_not_count_as_left_out() {
    let rig = Rig::together(1).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    for kind in ["sound", "spoilt"] {
        let id = rig.submit(0, broken(kind)).await;
        rig.finished(0, &id).await;
    }
    rig.nothing_is_held().await;
    let database = rig.database.as_ref().unwrap();
    let spoil = "update job_finished set past_attempts = 'spoilt' where kind = 'spoilt'";
    tokio::task::block_in_place(|| database.query(spoil)).unwrap();
    let (id, matched) = begin(&rig, 0, json!({"action": "retry", "filter": {"dead": true}})).await;
    let bulk = over(&rig, 0, &id).await;
    assert_eq!((matched, counts(&bulk)), (2, ("DONE", 1, 0, 1)), "{bulk}");
    assert!(bulk["error"].is_string(), "{bulk}");
}

/// Has the instances take over an operation whose owner died with these jobs at hand. The operation, when it is over.
async fn taken_over(rig: &Rig, action: &str, filter: Value, page: &[&String]) -> Value {
    taken_over_as(("RUNNING", "now()"), rig, action, filter, page).await
}

/// The same of one with this status, made at this time.
async fn taken_over_as(
    (status, created_at): (&str, &str),
    rig: &Rig,
    action: &str,
    filter: Value,
    page: &[&String],
) -> Value {
    let id = format!("018f0000-0000-7000-8000-{:012x}", rand::random::<u32>());
    let page = json!(page);
    let made = format!(
        "insert into bulk (id, principal, action, filter, before, rate, status, matched, done, skipped, failed, created_at,
                           owner, token, body_hash, page)
         values ('{id}', '', '{action}', '{filter}', now(), 100, '{status}', 1, 0, 0, 0, {created_at}, 'dead', 1, 'h', '{page}')"
    );
    let database = rig.database.as_ref().unwrap();
    tokio::task::block_in_place(|| database.query(&made)).unwrap();
    over(rig, 0, &id).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_in_another_state_when_its_turn_comes_is_not_cancelled() {
    let rig = Rig::together(2).await;
    let node = rig.node(&[0], "n", |options| options.capacity = 4).await;
    let mut ids = Vec::new();
    // On both instances: one runs by now, and one waits still.
    for index in [0, 1] {
        ids.push(rig.submit(index, hold(1)).await);
        rig.in_state(0, ids.last().unwrap(), "RUNNING").await;
        ids.push(rig.submit(index, later("k")).await);
    }
    let page: Vec<_> = ids.iter().collect();
    let filter = json!({"state": "CREATED", "without_stages": true});
    let bulk = taken_over(&rig, "cancel", filter, &page).await;
    assert_eq!(counts(&bulk), ("DONE", 2, 2, 0), "{bulk}");
    node.runs.release(2);
    for (id, outcome) in ids.iter().zip(["succeeded", "cancelled"].iter().cycle()) {
        assert_eq!(rig.finished(0, id).await["outcome"], *outcome);
    }
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_jobs_that_a_dead_owner_worked_on_are_counted_before_a_cancelled_operation_ends() {
    let rig = Rig::together(1).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(rig.submit(0, later("k")).await);
    }
    let filter = json!({"kind": "k", "without_stages": true});
    let bulk = taken_over_as(("CANCELLING", "now()"), &rig, "cancel", filter, &[&ids[0], &ids[1]]).await;
    assert_eq!(counts(&bulk), ("CANCELLED", 2, 0, 0), "{bulk}");
    assert_eq!(rig.job(0, &ids[2]).await["state"], "CREATED", "no page follows");
    rig.no_defect().await;
}

/// The jobs of a page were not finished when the operation came to them, whatever the database's clock says of that.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_counted_as_cancelled_although_the_databases_clock_was_set_back() {
    let rig = Rig::together(1).await;
    let (before, now) = (rig.submit(0, later("k")).await, rig.submit(0, later("k")).await);
    // By the owner that died.
    rig.post(0, &format!("/v1/jobs/{before}/cancel"), None, 200).await;
    let filter = json!({"kind": "k", "without_stages": true});
    let made = ("RUNNING", "now() + interval '1 hour'");
    let bulk = taken_over_as(made, &rig, "cancel", filter, &[&before, &now]).await;
    assert_eq!(counts(&bulk), ("DONE", 2, 0, 0), "{bulk}");
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_dismissed_before_its_turn_is_not_retried_with_the_dead_ones() {
    let rig = Rig::together(1).await;
    let _node = rig.node(&[0], "n", |_| {}).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(rig.submit(0, broken("k")).await);
        rig.finished(0, ids.last().unwrap()).await;
    }
    for id in &ids[..2] {
        rig.post(0, &format!("/v1/jobs/{id}/dismiss"), None, 200).await;
    }
    let filter = json!({"dead": true, "retried": false, "without_stages": true});
    let bulk = taken_over(&rig, "retry", filter, &[&ids[0], &ids[2]]).await;
    assert_eq!(counts(&bulk), ("DONE", 1, 1, 0), "{bulk}");
    assert!(
        rig.job(0, &ids[0]).await["retried_as"].is_null()
            && rig.job(0, &ids[2]).await["retried_as"].is_string()
    );
    // A filter that does not say dead says nothing of dismissals.
    let filter = json!({"outcome": "failed", "retried": false, "without_stages": true});
    let bulk = taken_over(&rig, "retry", filter, &[&ids[0], &ids[1]]).await;
    // The retry from before, which may have failed meanwhile, is among them.
    assert_eq!(
        (&bulk["status"], &bulk["skipped"], &bulk["failed"]),
        (&json!("DONE"), &json!(0), &json!(0)),
        "{bulk}"
    );
    for id in &ids {
        assert!(rig.job(0, id).await["retried_as"].is_string());
    }
    rig.no_defect().await;
}
