//! Jobs over connections that are cut at random.

use std::collections::BTreeMap;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

use super::*;

/// A scheduler that keeps its books and loses its connections, its words and its memory of what it sent.
#[tokio::test]
async fn every_job_runs_once_and_is_settled_once_however_often_the_connection_is_cut() {
    const JOBS: usize = 100;
    const CAPACITY: usize = 8;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let mut dice = SmallRng::seed_from_u64(seed);
    let scheduler = Scheduler::new().await;
    let runs = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
    let count = Arc::clone(&runs);
    let mut worker = Running::start(options(&scheduler, CAPACITY as u32), move |job| {
        *count.lock().unwrap().entry(job.id.clone()).or_default() += 1;
        async move {
            tokio::task::yield_now().await;
            echo(job).await
        }
    });
    let mut waiting: Vec<String> = (0..JOBS).map(|i| format!("j{i:03}")).collect();
    let (mut sent, mut settled) = (BTreeSet::<String>::new(), BTreeSet::<String>::new());
    while settled.len() < JOBS {
        let mut peer = scheduler.welcomed().await;
        // What it does not list was never seen by it, or was settled: it is sent again, in the first case.
        for job in std::mem::take(&mut sent) {
            if !peer.listed.contains(&attempt(&job, 1)) && !settled.contains(&job) {
                waiting.push(job);
            } else {
                sent.insert(job);
            }
        }
        for _ in 0..dice.random_range(1..60) {
            while sent.len() < CAPACITY && !waiting.is_empty() {
                let job = waiting.pop().unwrap();
                peer.dispatch(&job, 1).await;
                sent.insert(job);
            }
            if settled.len() == JOBS {
                break;
            }
            let result = match peer.hear().await {
                Some(NodeFrame::Result(result)) => result,
                Some(NodeFrame::Reject(full)) => {
                    // It still has one whose `committed` was lost.
                    sent.remove(&full.job);
                    waiting.insert(0, full.job);
                    break;
                }
                _ => continue,
            };
            settled.insert(result.job.clone());
            sent.remove(&result.job);
            // A `committed` that is lost is said again when the result comes again.
            if dice.random_range(0..10) < 9 {
                peer.commit(&result.job, 1).await;
            } else {
                sent.insert(result.job);
                break;
            }
        }
        if settled.len() == JOBS {
            worker.stop();
            // One whose `committed` was lost is asked about on the next connection.
            while sent.is_empty()
                && let Some(frame) = peer.hear().await
            {
                if let NodeFrame::Result(result) = frame {
                    peer.commit(&result.job, 1).await;
                }
            }
        }
    }
    // What was not heard to be settled may be asked about once more.
    let ended = tokio::select! {
        ended = worker.ended() => ended.unwrap(),
        () = async {
            loop {
                let mut peer = scheduler.welcomed().await;
                while let Some(frame) = peer.hear().await {
                    if let NodeFrame::Result(result) = frame {
                        peer.commit(&result.job, 1).await;
                    }
                }
            }
        } => unreachable!(),
    };
    assert_eq!(ended, Ended::Drained { unsettled: 0 });
    let runs = runs.lock().unwrap();
    assert_eq!(runs.len(), JOBS);
    assert!(runs.values().all(|runs| *runs == 1), "{runs:?}");
}
