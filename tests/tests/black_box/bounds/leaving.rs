//! Callers that close their connections before they have an answer, again and again. What the ledger was asked for goes on, and
//! counts until it ends.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::{Value, json};
use testkit::http::Client;
use testkit::servers::Database;

use super::Bounded;
use crate::recovery::LockedTable;
use crate::{patient, until};

/// How often each token asks.
const TIMES: usize = 10;

/// Tokens that see everything.
const TOKENS: [&str; 3] = ["greedy", "other", "root"];

/// A daemon on this database.
async fn on(database: &Database) -> Bounded {
    Bounded::shaped(&[("LEASE__INSTANCE_MS", "10000")], |setup| setup.database(database.url())).await
}

/// Each of these tokens asks for this, and leaves while a table is locked that the answer is read from: how many statements of
/// this text waited for the lock at the same time, at most. Afterwards each token is answered.
async fn asked_and_left(
    (daemon, database): (&Bounded, &Database),
    tokens: &[&str],
    (path, body): (&str, &Value),
    (table, statement): (&str, &str),
) -> usize {
    let waiting = format!(
        "SELECT 1 FROM pg_stat_activity \
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND query ~ '{statement}'"
    );
    let url = daemon.url(path);
    let brief = |token: &&str| Client::new(Duration::from_millis(300)).unwrap().with_token(token);
    let brief: Vec<_> = tokens.iter().map(brief).collect();
    let lock = LockedTable::lock(database, table, "ACCESS EXCLUSIVE").await;
    let mut most = 0;
    for _ in 0..TIMES {
        join_all(brief.iter().map(|client| client.request("POST", &url, None, Some(body)))).await;
        let waits = tokio::task::block_in_place(|| database.query(&waiting)).unwrap();
        most = most.max(waits.len());
    }
    lock.free();
    for token in tokens {
        let client = patient().with_token(token);
        until("its turn comes", async || {
            client.request("POST", &url, None, Some(body)).await.unwrap().status == 200
        })
        .await;
    }
    daemon.is_sound();
    most
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_are_counted_for_few_bulk_operations_at_once_also_where_their_callers_leave() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let daemon = on(&database).await;
    let dry = json!({"action": "dismiss", "filter": {}, "dry_run": true});
    let counts = ("job_finished", "WITH scanned AS");
    let most = asked_and_left((&daemon, &database), &TOKENS, ("/v1/bulk", &dry), counts).await;
    assert!((1..=2).contains(&most), "{most} statements at once");
}

/// A task of the tenant `t`, in the pool `fast`, whose plan is cancelled: its id.
async fn cancelled_task(daemon: &Bounded) -> String {
    let task = json!({"tenant": "t", "stages": [{"name": "s", "payload": 1, "pool": "fast"}]});
    let plan = daemon.done("greedy", "POST", "/v1/plans", json!({"start": true, "tasks": [task]})).await;
    let plan = format!("/v1/plans/{}", plan["id"].as_str().unwrap());
    daemon.done("greedy", "POST", &format!("{plan}/cancel"), json!({})).await;
    until("the plan is cancelled", async || {
        daemon.ask("greedy", "GET", &plan, None).await.body["status"] == "CANCELLED"
    })
    .await;
    let tasks = daemon.ask("greedy", "GET", &format!("{plan}/tasks"), None).await.body;
    tasks["items"][0]["id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn few_plans_are_read_at_once_for_dry_runs_also_where_their_callers_leave() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let daemon = on(&database).await;
    let retry = format!("/v1/tasks/{}/retry", cancelled_task(&daemon).await);
    let dry = json!({"from": "start", "reason": "why", "dry_run": true});
    let reads = ("plan", "FROM plan\\s+WHERE id");
    let most = asked_and_left((&daemon, &database), &TOKENS, (&retry, &dry), reads).await;
    assert!((1..=2).contains(&most), "{most} plans at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_the_ledger_did_not_answer_before_its_write_is_not_refused_as_a_write() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let daemon = on(&database).await;
    let url = daemon.url(&format!("/v1/tasks/{}/retry", cancelled_task(&daemon).await));
    let client = patient().with_token("greedy");
    for (table, key, is_dry_run) in [("plan", None, true), ("idempotency_key", Some("k"), false)] {
        let lock = LockedTable::lock(&database, table, "ACCESS EXCLUSIVE").await;
        let retry = json!({"from": "start", "reason": "why", "dry_run": is_dry_run});
        let reply = client.request("POST", &url, key, Some(&retry)).await.unwrap();
        assert_eq!((reply.status, reply.code()), (503, "ledger_unavailable"), "{table}: {}", reply.text);
        assert!(!reply.text.contains("not known whether anything was written"), "{table}: {}", reply.text);
        lock.free();
    }
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn few_tasks_are_read_at_once_for_dry_runs_also_where_their_callers_leave() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let daemon = on(&database).await;
    let task = format!("/v1/tasks/{}/retry", cancelled_task(&daemon).await);
    let dry = json!({"from": "start", "reason": "why", "dry_run": true});
    // The newest task that a token sees is looked for in pieces where it sees some pools only.
    for (path, tokens, statement) in [
        (task.as_str(), &TOKENS[..], "WHERE t.id ="),
        ("/v1/tenants/t/retry", &["narrow", "other"][..], "WHERE t.tenant ="),
    ] {
        let reads = ("plan_definition", statement);
        let most = asked_and_left((&daemon, &database), tokens, (path, &dry), reads).await;
        assert!((1..=2).contains(&most), "{path}: {most} tasks at once");
    }
}
