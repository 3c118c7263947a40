//! Retries of many large jobs at once.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::PATIENCE;
use testkit::process::Signal;

use super::{Bounded, MIB};
use crate::{patient, until};

/// Finished jobs with large payloads. A daemon that has little time for a request is asked again.
async fn finished(daemon: &Bounded, count: usize, bytes: usize) -> Vec<String> {
    let (mut ids, begun) = (Vec::new(), Instant::now());
    while ids.len() < count {
        assert!(begun.elapsed() < PATIENCE, "{} of {count} jobs are accepted", ids.len());
        let part = (count - ids.len()).min(8);
        let jobs: Vec<_> =
            (0..part).map(|_| json!({"payload": "x".repeat(bytes), "delay_ms": 3_600_000})).collect();
        let reply = daemon.ask("greedy", "POST", "/v1/jobs/batch", Some(&json!({ "jobs": jobs }))).await;
        let results = reply.body["results"].as_array().cloned().unwrap_or_default();
        ids.extend(results.iter().filter_map(|result| result["id"].as_str().map(str::to_owned)));
    }
    for id in &ids {
        until("a job is cancelled", async || {
            let path = format!("/v1/jobs/{id}/cancel");
            daemon.ask("greedy", "POST", &path, Some(&json!({}))).await.body["state"] == "FINISHED"
        })
        .await;
    }
    ids
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_many_large_jobs_holds_few_of_them_in_memory() {
    const JOBS: usize = 128;
    let mut daemon = Bounded::start(&[("SERVER__REQUEST_TIMEOUT_MS", "60000")]).await;
    let ids = finished(&daemon, JOBS, MIB - 1_024).await;
    // What it needed for the submissions would hide what it needs now.
    daemon.instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    daemon.instance.start().await.unwrap();
    daemon.is_well(&patient()).await;
    let before = daemon.memory();
    // One request, looked at while it runs.
    let url = daemon.url("/v1/jobs/retry");
    let body = json!({ "ids": ids });
    let asked = tokio::spawn(async move {
        patient().with_token("greedy").request("POST", &url, Some("k"), Some(&body)).await.unwrap()
    });
    let mut most = before;
    while !asked.is_finished() {
        most = most.max(daemon.memory());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reply = asked.await.unwrap();
    assert_eq!((reply.status, &reply.body["retried"]), (202, &json!(JOBS)), "{}", reply.text);
    assert!(reply.body["results"].is_null());
    let grown = most.saturating_sub(before);
    // A part of 8 MiB and what is read ahead, the same in the lane and in its commit, and what the ledger caches.
    assert!(grown < 96 * MIB, "{} MiB for {JOBS} jobs of 1 MiB", grown / MIB);
    daemon.serves_others().await;
    daemon.is_sound();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_with_little_time_says_what_is_done_and_goes_on_under_its_key() {
    const JOBS: usize = 64;
    let daemon =
        Bounded::start(&[("SERVER__REQUEST_TIMEOUT_MS", "700"), ("LEDGER__CALL_TIMEOUT_MS", "700")]).await;
    let ids = finished(&daemon, JOBS, MIB / 2).await;
    let body = json!({ "ids": ids });
    let (mut made, mut partly) = (HashSet::new(), 0);
    for _ in 0..60 {
        let client = patient().with_token("greedy");
        let reply =
            client.request("POST", &daemon.url("/v1/jobs/retry"), Some("k"), Some(&body)).await.unwrap();
        if reply.status != 202 {
            assert!(matches!(reply.status, 429 | 503), "{}", reply.text);
            continue;
        }
        made.extend(texts(&reply.body["ids"]).into_iter().map(str::to_owned));
        let rest = reply.body["results"].as_array().cloned().unwrap_or_default();
        assert_eq!(
            texts(&reply.body["ids"]).len() + rest.len(),
            JOBS,
            "each job is answered: {}",
            reply.text
        );
        if rest.is_empty() {
            assert_eq!(made.len(), JOBS, "none was retried twice");
            eprintln!("{partly} answers were partial");
            daemon.is_sound();
            return;
        }
        partly += 1;
        for result in rest {
            let code = result["code"].as_str().unwrap();
            assert!(matches!(code, "overloaded" | "ledger_unavailable"), "{result}");
            assert!(ids.iter().any(|id| result["retry_of"] == id.as_str()), "{result}");
        }
    }
    panic!("not all were retried: {} of {JOBS}", made.len());
}
