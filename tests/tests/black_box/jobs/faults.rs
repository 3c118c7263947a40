//! Everything at once: instances killed, stopped and frozen, sockets cut, nodes killed, Redis flushed and killed, at
//! random, under a stream of jobs.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::Client;
use client::wire::Json;
use client::wire::jobs::{Backoff, JobRequest, JobState, Outcome};
use loadtest::process::Signal;
use loadtest::proxy::Proxy;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use super::rig::{Node, PATIENCE, Rig, Runs};

const INSTANCES: usize = 3;
const NODES: usize = 10;
const JOBS: u64 = 300;
const FAULTS: usize = 20;
const CLIENTS: u64 = 4;

#[tokio::test(flavor = "multi_thread")]
async fn every_accepted_job_ends_with_one_result_of_its_newest_attempt() {
    let seed =
        std::env::var("FENCEPOST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    eprintln!("FENCEPOST_SEED={seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    let rig = Rig::mortal(INSTANCES).await;
    let runs = Runs::new();
    runs.take(Duration::from_millis(100));
    let mut ways = Vec::new();
    for url in &rig.urls {
        ways.push(Proxy::start(url.strip_prefix("http://").unwrap().parse().unwrap()).await.unwrap());
    }
    // Each node may go to each instance, by a way that can be cut.
    let mut nodes = Vec::new();
    for number in 0..NODES {
        let turned = (0..INSTANCES).map(|n| format!("http://{}", ways[(n + number) % INSTANCES].address()));
        let turned: Vec<_> = turned.collect();
        nodes.push(Node::sharing(Arc::clone(&runs), &turned, &format!("n-{number}"), |options| {
            options.capacity = 2
        }));
    }
    let over = Arc::new(AtomicBool::new(false));
    let submitting = (0..CLIENTS).map(|client| submit(client, rig.urls.clone(), Arc::clone(&over)));
    let submitting = tokio::spawn(futures_util::future::join_all(submitting));

    for number in 0..FAULTS {
        tokio::time::sleep(Duration::from_millis(dice.random_range(50..300))).await;
        let index = dice.random_range(0..INSTANCES);
        let fault = dice.random_range(0..7);
        eprintln!("fault {number}: kind {fault} at {index}");
        match fault {
            0 => {
                rig.end(index, Signal::Kill).await;
                rig.instance(index).await.start().await.unwrap();
            }
            1 => {
                rig.end(index, Signal::Terminate).await;
                rig.instance(index).await.start().await.unwrap();
            }
            2 => rig.redis.as_ref().unwrap().flush().unwrap(),
            3 => {
                ways[index].cut().await.unwrap();
                ways[index].heal().await.unwrap();
            }
            4 => {
                // For longer than its lease: it wakes as another.
                rig.instance(index).await.process().signal(Signal::Stop).unwrap();
                tokio::time::sleep(Duration::from_millis(2_500)).await;
                rig.instance(index).await.process().signal(Signal::Continue).unwrap();
            }
            5 => {
                rig.redis.as_ref().unwrap().kill();
                tokio::time::sleep(Duration::from_millis(200)).await;
                rig.redis.as_ref().unwrap().boot().unwrap();
            }
            _ => {
                // A node is killed, and one of its name comes in its place.
                let number = dice.random_range(0..NODES);
                let urls: Vec<_> = ways.iter().map(|way| format!("http://{}", way.address())).collect();
                let name = format!("n-{number}");
                nodes[number] =
                    Node::sharing(Arc::clone(&runs), &urls, &name, |options| options.capacity = 2);
            }
        }
    }
    over.store(true, Ordering::Relaxed);
    let accepted = tokio::time::timeout(PATIENCE, submitting).await.expect("all jobs are accepted").unwrap();
    let accepted: HashMap<_, _> = accepted.into_iter().flatten().collect();
    assert!(accepted.len() as u64 >= JOBS, "{}", accepted.len());
    let client = Client::new(rig.urls.iter().cloned(), None).unwrap();
    for (id, n) in &accepted {
        // What had several owners die on it waits for each of them in turn.
        let job = client.jobs().wait(id, PATIENCE * 3).await.unwrap();
        if job.state != JobState::Finished {
            panic!("seed {seed}: {job:#?}\n{}", rig.told_of(&job.lane).await);
        }
        let ended: Vec<_> = job.attempts.iter().flatten().filter(|past| past.state == "succeeded").collect();
        assert_eq!((job.outcome, ended.len()), (Some(Outcome::Succeeded), 1), "seed {seed}: {job:#?}");
        assert_eq!(ended[0].attempt, job.attempt, "the newest attempt's, seed {seed}: {job:#?}");
        assert_eq!(job.result.unwrap().as_str(), n.to_string(), "seed {seed}");
        let ran: Vec<_> = runs.of(id).iter().map(|run| (run.attempt, run.node.clone())).collect();
        let by = (job.attempt, job.node.clone().unwrap());
        assert!(ran.contains(&by), "its result came from a node that ran it, seed {seed}: {ran:?}");
        let mut attempts: Vec<_> = ran.iter().map(|(attempt, _)| attempt).collect();
        attempts.sort_unstable();
        assert!(attempts.is_sorted_by(|a, b| a < b), "no attempt ran twice, seed {seed}: {ran:?}");
    }
    rig.nothing_is_held().await;
    rig.no_defect().await;
}

/// Submits every fourth job, one after the other, until there are enough and the faults are over; each under a key of its own,
/// again until it is answered. What was accepted, by id, and what it is to give.
async fn submit(number: u64, urls: Vec<String>, over: Arc<AtomicBool>) -> HashMap<String, u64> {
    let client = Client::new(urls, None).unwrap();
    let mut accepted = HashMap::new();
    let mut n = number;
    while n < JOBS || !over.load(Ordering::Relaxed) {
        let mut job = JobRequest::new(Json::of(&json!({ "echo": n })).unwrap());
        job.backoff = Some(Backoff { initial_ms: Some(100), factor: None, max_ms: Some(500) });
        job.max_attempts = Some(100);
        job.delay_ms = n.is_multiple_of(5).then_some(200);
        job.tenant = Some(format!("t-{}", n % 3));
        let key = format!("job-{n}");
        let id = loop {
            match client.jobs().submit(&job, Some(&key)).await {
                Ok(answer) => break answer.id,
                Err(error) => eprintln!("job {n}: {error}"),
            }
        };
        let before = accepted.insert(id, n);
        assert_eq!(before, None, "each key is a job of its own");
        n += CLIENTS;
        // So that there are jobs of every age at each fault.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    accepted
}
