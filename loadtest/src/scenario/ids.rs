//! How fast ids are had over HTTP, beside the empty route in the same run.
//!
//! A closed loop. The cases take turns, several rounds of them, so that what the machine does meanwhile is shared by
//! all. Ids of one kind are counted, not compared: that none comes twice is for the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use serde_json::json;
use testkit::fleet::{Blueprint, Fleet};
use testkit::http::Client;
use testkit::instance::cpu_seconds;

use crate::figures::{Latencies, Latency, ms};
use crate::progress::Bar;
use crate::raw::{self, Connection};
use crate::report::{self, Report};

/// Each case is measured so often.
const ROUNDS: u32 = 4;
/// Before each turn, connections are warmed for this part of it.
const WARM_UP_PART: u32 = 5;
/// What SPEC 13 asks of a single snowflake, as a part of the empty route's rate.
const OF_EMPTY_WANTED: f64 = 0.8;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long each case is measured, all its turns together.
    pub length: Duration,
    /// Keep-alive connections, each with one request in flight.
    pub connections: usize,
}

struct Case {
    name: &'static str,
    path: &'static str,
    ids: u64,
}

const EMPTY: &str = "empty route (GET /healthz)";
const SINGLE: &str = "a snowflake";
const TAG: &str = "/v1/ids/segments/load";
const SEQUENCE: &str = "/v1/ids/sequences/load";

const CASES: [Case; 8] = [
    Case { name: EMPTY, path: "/healthz", ids: 0 },
    Case { name: SINGLE, path: "/v1/ids/snowflake", ids: 1 },
    Case { name: "1,000 snowflakes", path: "/v1/ids/snowflake?count=1000", ids: 1_000 },
    Case { name: "a snowflake, as Leaf has it", path: "/api/snowflake/get/load", ids: 1 },
    Case { name: "an id of a segment", path: "/v1/ids/segments/load", ids: 1 },
    Case { name: "1,000 ids of a segment", path: "/v1/ids/segments/load?count=1000", ids: 1_000 },
    Case { name: "a UUID", path: "/v1/ids/uuid", ids: 1 },
    Case { name: "a number of a sequence", path: "/v1/ids/sequences/load", ids: 1 },
];

/// One case.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// What was asked.
    pub case: &'static str,
    /// Requests per second.
    pub per_second: f64,
    /// Ids per second.
    pub ids_per_second: f64,
    /// Requests per second as a part of the empty route's.
    pub of_empty_route: f64,
    /// What the daemon used of the processors for each request, in microseconds.
    pub daemon_us: f64,
    /// Latencies.
    pub latency: Latency,
    /// Answers other than 200.
    pub refused: u64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Rates {
    /// Keep-alive connections.
    pub connections: usize,
    /// Every case.
    pub cases: Vec<Measured>,
    /// A single snowflake, as a part of the empty route's rate; and whether that is what is wanted.
    pub single: (f64, bool),
    /// Ids that were refused are broken promises here: nothing is away.
    pub violations: Vec<String>,
}

impl Report for Rates {
    fn table(&self) -> String {
        let head = [
            "case",
            "requests/s",
            "ids/s",
            "of empty route",
            "p50 ms",
            "p99 ms",
            "p99.9 ms",
            "daemon us each",
        ];
        let row = |one: &Measured| {
            vec![
                one.case.to_owned(),
                format!("{:.0}", one.per_second),
                format!("{:.0}", one.ids_per_second),
                format!("{:.3}", one.of_empty_route),
                ms(one.latency.p50_us),
                ms(one.latency.p99_us),
                ms(one.latency.p999_us),
                format!("{:.1}", one.daemon_us),
            ]
        };
        let cases = report::table(&head, &self.cases.iter().map(row).collect::<Vec<_>>());
        let lines = [
            ("connections".to_owned(), self.connections.to_string()),
            (
                format!("a snowflake of the empty route, {OF_EMPTY_WANTED} wanted"),
                format!("{:.3}", self.single.0),
            ),
        ];
        report::with_violations(format!("{cases}\n\n{}", report::two_columns(&lines)), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}

/// Measures every case on one instance with PostgreSQL.
///
/// # Errors
/// A server or the instance does not start, or a connection breaks.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Rates> {
    bar.say("starting");
    let fleet = Fleet::build(Blueprint::new("worker-queue", 1).env("FENCEPOST__LOG__FILTER", "warn")).await?;
    let (url, pid) = (fleet.urls()[0].clone(), fleet.instance(0).await.process().pid());
    let client = Client::new(Duration::from_secs(10))?;
    for (path, body) in [(TAG, json!({ "step": 1_000_000 })), (SEQUENCE, json!({}))] {
        let made = client.request("PUT", &format!("{url}{path}"), None, Some(&body)).await?;
        ensure!(made.status == 200, "PUT {path}: {}", made.text);
    }
    let host = url.trim_start_matches("http://").to_owned();
    let mut sums: Vec<Sum> = CASES.iter().map(|_| Sum::default()).collect();
    let turn = plan.length / ROUNDS;
    for round in 0..ROUNDS {
        for (case, sum) in CASES.iter().zip(&mut sums) {
            bar.say(&format!("round {} of {ROUNDS}: {}", round + 1, case.name));
            ask(&host, case.path, plan.connections, turn / WARM_UP_PART).await?;
            let cpu = cpu_seconds(pid)?;
            sum.add(ask(&host, case.path, plan.connections, turn).await?, cpu_seconds(pid)? - cpu);
        }
    }
    bar.done();
    let base = sums[0].per_second();
    let mut cases = Vec::new();
    for (case, sum) in CASES.iter().zip(sums) {
        let answered = sum.latencies_us.len() as f64;
        cases.push(Measured {
            case: case.name,
            per_second: sum.per_second(),
            ids_per_second: sum.per_second() * case.ids as f64,
            of_empty_route: sum.per_second() / base,
            daemon_us: sum.cpu * 1e6 / answered.max(1.0),
            refused: sum.refused,
            latency: Latencies::gather(sum.latencies_us)?.summary(),
        });
    }
    let reached = cases.iter().find(|one| one.case == SINGLE).map_or(0.0, |one| one.of_empty_route);
    let refused = cases.iter().filter(|one| one.refused > 0);
    let violations = refused.map(|one| format!("{}: {} were refused", one.case, one.refused)).collect();
    let single = (reached, reached >= OF_EMPTY_WANTED);
    Ok(Rates { connections: plan.connections, cases, single, violations })
}

/// What came of the turns of a case so far.
#[derive(Default)]
struct Sum {
    latencies_us: Vec<u64>,
    refused: u64,
    seconds: f64,
    cpu: f64,
}

impl Sum {
    fn add(&mut self, turn: Turn, cpu: f64) {
        self.latencies_us.extend(turn.latencies_us);
        self.refused += turn.refused;
        self.seconds += turn.seconds;
        self.cpu += cpu;
    }

    fn per_second(&self) -> f64 {
        self.latencies_us.len() as f64 / self.seconds
    }
}

struct Turn {
    latencies_us: Vec<u64>,
    refused: u64,
    seconds: f64,
}

async fn ask(host: &str, path: &str, connections: usize, length: Duration) -> Result<Turn> {
    let request: Arc<[u8]> = raw::request("GET", host, path, None).into();
    let (stop, refused) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut opened = Vec::new();
    for _ in 0..connections {
        opened.push(Connection::open(host).await?);
    }
    let began = Instant::now();
    let tasks: Vec<_> = opened
        .into_iter()
        .map(|mut connection| {
            let (request, stop, refused) = (Arc::clone(&request), Arc::clone(&stop), Arc::clone(&refused));
            tokio::spawn(async move {
                let mut latencies_us = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let sent = Instant::now();
                    let (status, _) = connection.exchange(&request).await?;
                    if status == 200 {
                        latencies_us.push(sent.elapsed().as_micros() as u64);
                    } else {
                        refused.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Ok::<_, anyhow::Error>(latencies_us)
            })
        })
        .collect();
    tokio::time::sleep(length).await;
    stop.store(true, Ordering::Relaxed);
    let mut latencies_us = Vec::new();
    for task in tasks {
        latencies_us.extend(task.await??);
    }
    Ok(Turn {
        latencies_us,
        refused: refused.load(Ordering::Relaxed),
        seconds: began.elapsed().as_secs_f64(),
    })
}
