//! Pub/Sub is cut off between the instances: what must arrive goes by way of inboxes, and no job waits for long.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::rig::{Rig, echo, none_was_rejected, with};
use super::session_client::{owner, settled};
use crate::until;

/// A job is dispatched, run, recorded and counted within this time, also on a busy machine. None of it may wait for a look at
/// the ledger, which comes every five seconds.
const PER_JOB: Duration = Duration::from_secs(2);
/// Jobs whose time is taken together.
const JOBS: u32 = 8;

/// A strict session whose owner is the second instance, and has begun.
async fn session_of_the_second(rig: &Rig) -> String {
    settled(rig).await;
    loop {
        let opened = rig.post(1, "/v1/sessions", Some(&json!({})), 201).await;
        let id = opened["id"].as_str().unwrap().to_owned();
        rig.submit(1, with(echo("first"), json!({ "session": id }))).await;
        if owner(rig, 1, &id).await == 1 {
            return id;
        }
    }
}

/// Submits these to the second instance at once; how long it takes until all are finished, and how they are then.
async fn time_of(rig: &Rig, jobs: Vec<Value>) -> (Duration, Vec<Value>) {
    let begun = Instant::now();
    let mut ids = Vec::new();
    for job in jobs {
        ids.push(rig.submit(1, job).await);
    }
    let mut finished = Vec::new();
    for id in ids {
        let mut job = Value::Null;
        until("it is finished", async || {
            job = rig.job(1, &id).await;
            job["state"] == "FINISHED"
        })
        .await;
        finished.push(job);
    }
    (begun.elapsed(), finished)
}

/// Runs jobs that only get their turn when the one before is counted by the second instance, whose jobs they are, while
/// the first holds the node and records the results. Answers the finished jobs.
async fn nothing_waits(rig: &Rig) -> Vec<Value> {
    let session = session_of_the_second(rig).await;
    let in_session = |n| with(echo(n), json!({ "session": session }));
    // The owners are at work, and the node is known to them.
    let (_, mut all) = time_of(rig, vec![in_session(0), echo(0)]).await;
    let (took, finished) = time_of(rig, (0..JOBS).map(in_session).collect()).await;
    assert!(took < PER_JOB * JOBS, "the jobs of a strict session: {took:?}");
    all.extend(finished);
    let (took, finished) = time_of(rig, (0..JOBS).map(echo).collect()).await;
    assert!(took < PER_JOB * JOBS, "jobs that share one slot: {took:?}");
    all.extend(finished);
    let failing = json!({
        "payload": {"fail": JOBS - 1}, "max_attempts": JOBS, "session": session,
        "backoff": {"initial_ms": 1, "factor": 1.0, "max_ms": 1},
    });
    let (took, finished) = time_of(rig, vec![failing]).await;
    assert!(took < PER_JOB * JOBS, "the attempts of one job: {took:?}");
    all.extend(finished);
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn no_job_waits_for_a_notice_that_was_lost() {
    let (rig, _ways) = Rig::deaf(2).await;
    let _node = rig.node(&[0], "n", |options| options.capacity = 1).await;
    nothing_waits(&rig).await.iter().for_each(none_was_rejected);
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_go_on_while_redis_drops_every_subscriber() {
    let rig = Arc::new(Rig::with_own_redis(2).await);
    let _node = rig.node(&[0], "n", |options| options.capacity = 1).await;
    let (dropping, mut dropped_by) = oneshot::channel::<()>();
    let server = Arc::clone(&rig);
    let killer = tokio::task::spawn_blocking(move || {
        let redis = server.redis.as_ref().unwrap();
        while dropped_by.try_recv() == Err(TryRecvError::Empty) {
            redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    // Both have lost it at least once by now.
    for index in 0..2 {
        until("its link is down", async || {
            rig.ask(index, "GET", "/readyz", None).await.body["checks"]["bus"]["status"] == "down"
        })
        .await;
    }
    nothing_waits(&rig).await.iter().for_each(none_was_rejected);
    dropping.send(()).unwrap();
    killer.await.unwrap();
    rig.nothing_is_held().await;
    rig.no_defect().await;
}
