//! Jobs over HTTP, one to a request or many, on plain keep-alive connections: closed (as fast as answers come) or open
//! (on a schedule that waits for nobody).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::load::Schedule;
use crate::moments::{Moments, Step};
use crate::raw::Connection;

/// When requests are made.
#[derive(Clone, Debug)]
pub enum Pace {
    /// Each connection as soon as it is answered.
    Closed,
    /// Each connection so long after it is answered, and after it is opened.
    Spaced(Duration),
    /// Each at its moment, as soon as a connection is free.
    Open(Arc<Schedule>),
}

/// What is to be submitted.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `http://ADDR` of instances, asked in turn.
    pub urls: Vec<String>,
    /// Their numbers.
    pub jobs: Range<usize>,
    /// How many in one request; 1 is `POST /v1/jobs`.
    pub batch: usize,
    /// Connections, each with one request in flight.
    pub connections: usize,
    /// When.
    pub pace: Pace,
    /// Bytes that each payload has beside its number.
    pub padding_bytes: usize,
    /// Further fields of each job, as `,"tenant":"a"`.
    pub fields: String,
}

/// What was refused, by its words.
#[derive(Clone, Debug, Default)]
pub struct Refusals {
    /// How many jobs each.
    pub by: BTreeMap<String, usize>,
}

impl Refusals {
    /// How many jobs.
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.by.values().sum()
    }

    fn add(&mut self, what: String, jobs: usize) {
        *self.by.entry(what).or_default() += jobs;
    }
}

#[derive(Deserialize)]
struct Results {
    results: Vec<Fate>,
}

#[derive(Deserialize)]
struct Fate {
    code: Option<String>,
}

struct Shared {
    plan: Plan,
    moments: Arc<Moments>,
    began: Instant,
    next: AtomicUsize,
    gate: Arc<Semaphore>,
}

/// Submits all of them; comes back when the last is answered.
///
/// # Errors
/// A connection breaks.
pub async fn submit(plan: Plan, moments: &Arc<Moments>) -> Result<Refusals> {
    let gate = Arc::new(Semaphore::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let connections = plan.connections;
    let shared = Arc::new(Shared {
        plan,
        moments: Arc::clone(moments),
        began: Instant::now(),
        next: AtomicUsize::new(0),
        gate: Arc::clone(&gate),
    });
    let keeper = match &shared.plan.pace {
        Pace::Open(schedule) => Some(schedule.keep_time(shared.began, &gate, &stop)),
        Pace::Closed | Pace::Spaced(_) => None,
    };
    let mut workers = JoinSet::new();
    for number in 0..connections {
        workers.spawn(work(Arc::clone(&shared), number));
    }
    let mut refusals = Refusals::default();
    while let Some(worked) = workers.join_next().await {
        for (what, jobs) in worked?.inspect_err(|_| stop.store(true, Ordering::Relaxed))?.by {
            refusals.add(what, jobs);
        }
    }
    if let Some(keeper) = keeper {
        stop.store(true, Ordering::Relaxed);
        let _ = keeper.join();
    }
    Ok(refusals)
}

async fn work(shared: Arc<Shared>, number: usize) -> Result<Refusals> {
    let plan = &shared.plan;
    let host = plan.urls[number % plan.urls.len()].trim_start_matches("http://").to_owned();
    let mut connection = Connection::open(&host).await?;
    let mut refusals = Refusals::default();
    let (mut body, mut request) = (String::new(), Vec::new());
    loop {
        let turn = shared.next.fetch_add(1, Ordering::Relaxed);
        let first = plan.jobs.start + turn * plan.batch;
        if first >= plan.jobs.end {
            return Ok(refusals);
        }
        let jobs = first..(first + plan.batch).min(plan.jobs.end);
        let due = match &plan.pace {
            Pace::Closed => Instant::now(),
            Pace::Spaced(pause) => {
                tokio::time::sleep(*pause).await;
                Instant::now()
            }
            Pace::Open(schedule) => {
                let Some(moment) = schedule.moment_us(turn) else { return Ok(refusals) };
                shared.gate.acquire().await?.forget();
                shared.began + Duration::from_micros(moment)
            }
        };
        let path = write_body(&mut body, jobs.clone(), plan);
        request.clear();
        let length = body.len();
        std::io::Write::write_fmt(
            &mut request,
            format_args!(
                "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            ),
        )?;
        jobs.clone().for_each(|job| shared.moments.at(Step::Due, job, due));
        let (status, answer) = connection.exchange(&request).await?;
        let now = Instant::now();
        if status != 202 {
            refusals.add(format!("{status} {}", String::from_utf8_lossy(answer)), jobs.len());
            continue;
        }
        if plan.batch == 1 {
            shared.moments.at(Step::Accepted, first, now);
            continue;
        }
        let read: Results = serde_json::from_slice(answer).context("the answer to a batch")?;
        for (job, fate) in jobs.zip(read.results) {
            match fate.code {
                None => shared.moments.at(Step::Accepted, job, now),
                Some(code) => refusals.add(code, 1),
            }
        }
    }
}

fn write_body(body: &mut String, jobs: Range<usize>, plan: &Plan) -> &'static str {
    body.clear();
    let one = |body: &mut String, job: usize| {
        let _ = write!(body, "{{\"payload\":{{\"n\":{job}");
        if plan.padding_bytes > 0 {
            body.push_str(",\"padding\":\"");
            body.extend(std::iter::repeat_n('x', plan.padding_bytes));
            body.push('"');
        }
        let _ = write!(body, "}}{}}}", plan.fields);
    };
    if plan.batch == 1 {
        one(body, jobs.start);
        return "/v1/jobs";
    }
    body.push_str("{\"jobs\":[");
    for (at, job) in jobs.enumerate() {
        if at > 0 {
            body.push(',');
        }
        one(body, job);
    }
    body.push_str("]}");
    "/v1/jobs/batch"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_json_of_one_job_or_many() {
        let plan = |batch| Plan {
            urls: vec![],
            jobs: 0..0,
            batch,
            connections: 1,
            pace: Pace::Closed,
            padding_bytes: 0,
            fields: ",\"tenant\":\"a\"".to_owned(),
        };
        let mut body = String::new();
        assert_eq!(write_body(&mut body, 7..8, &plan(1)), "/v1/jobs");
        let one: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&one["payload"]["n"], &one["tenant"]), (&7.into(), &"a".into()));
        assert_eq!(write_body(&mut body, 7..9, &plan(2)), "/v1/jobs/batch");
        let many: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(many["jobs"][1]["payload"]["n"], 8);
        assert_eq!(write_body(&mut body, 7..8, &Plan { padding_bytes: 5, ..plan(1) }), "/v1/jobs");
        let padded: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(padded["payload"], serde_json::json!({"n": 7, "padding": "xxxxx"}));
    }
}
