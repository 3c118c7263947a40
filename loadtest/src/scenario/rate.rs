//! How fast, beside an empty route in the same run: grants per second on both ledgers.
//!
//! A closed loop: each connection sends its next request when the last one was answered. Absolute
//! numbers are about this machine; the ratios are what to compare.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::instance::{Instance, Setup};
use crate::raw::{Connection, request};
use crate::report;
use crate::servers::Database;

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How long each case is measured, after a warm-up of a fifth of it.
    pub length: Duration,
    /// Keep-alive connections, each with one request in flight.
    pub connections: usize,
}

/// One row.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// `sqlite` or `postgres`.
    pub ledger: String,
    /// `basic` or `worker-queue`.
    pub mode: String,
    /// What was asked.
    pub case: String,
    /// Answered as hoped, per second.
    pub per_second: f64,
    /// Nonces per second; 0 for the empty route.
    pub nonces_per_second: f64,
    /// `per_second` as a part of the empty route's.
    pub of_empty_route: f64,
    /// Half of the answers came within this, in microseconds.
    pub p50_us: u64,
    /// 99 of 100 came within this, in microseconds.
    pub p99_us: u64,
    /// Answered otherwise.
    pub refused: u64,
}

struct Case {
    name: &'static str,
    signers: usize,
    count: u64,
}

/// Ledger and mode of each instance.
const RUNS: [(&str, &str); 4] =
    [("sqlite", "basic"), ("sqlite", "worker-queue"), ("postgres", "basic"), ("postgres", "worker-queue")];

const CASES: [Case; 4] = [
    Case { name: "one hot signer, grants of 1", signers: 1, count: 1 },
    Case { name: "100 signers, grants of 1", signers: 100, count: 1 },
    Case { name: "1,000 signers, grants of 1", signers: 1_000, count: 1 },
    Case { name: "one hot signer, grants of 100", signers: 1, count: 100 },
];

/// The results as a table for people.
#[must_use]
pub fn table(measured: &[Measured]) -> String {
    let rows: Vec<Vec<String>> = measured
        .iter()
        .map(|one| {
            vec![
                format!("{}, {}: {}", one.ledger, one.mode, one.case),
                format!("{:.0}", one.per_second),
                format!("{:.0}", one.nonces_per_second),
                format!("{:.3}", one.of_empty_route),
                format!("{:.2}", one.p50_us as f64 / 1_000.0),
                format!("{:.2}", one.p99_us as f64 / 1_000.0),
                one.refused.to_string(),
            ]
        })
        .collect();
    report::table(&["case", "requests/s", "nonces/s", "of empty route", "p50 ms", "p99 ms", "refused"], &rows)
}

/// Measures every case on both ledgers in both modes, one instance each; `step` names what begins.
///
/// # Errors
/// A server or an instance does not start, or a connection breaks.
pub async fn run(plan: &Plan, step: impl Fn(&str)) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for (ledger, mode) in RUNS {
        // Lives until the end of the loop's body, after the instance.
        let database = match ledger {
            "sqlite" => None,
            _ => Some(tokio::task::spawn_blocking(Database::fresh).await??),
        };
        let mut setup = Setup::in_mode(mode)?.env("FENCEPOST__LOG__FILTER", "warn");
        if let Some(database) = &database {
            setup = setup.database(database.url());
        }
        measured.extend(on((ledger, mode), plan, &setup.start().await?, &step).await?);
    }
    Ok(measured)
}

async fn on(
    (ledger, mode): (&str, &str),
    plan: &Plan,
    instance: &Instance,
    step: &impl Fn(&str),
) -> Result<Vec<Measured>> {
    let host = instance.url().strip_prefix("http://").context("a plain URL")?.to_owned();
    step(&format!("{ledger}, {mode}: empty route"));
    let empty = load(plan, &host, vec![request("GET", &host, "/healthz", None)], 200).await?;
    let base = empty.per_second;
    let mut measured = vec![empty.row((ledger, mode), "empty route (GET /healthz)", 0, base)];
    for (index, case) in CASES.iter().enumerate() {
        step(&format!("{ledger}, {mode}: {}", case.name));
        let body = format!("{{\"count\":{},\"hold_ms\":600000}}", case.count);
        let requests = (0..case.signers)
            .map(|signer| {
                request("POST", &host, &format!("/v1/signers/rate-{index}-{signer}/nonces"), Some(&body))
            })
            .collect();
        let load = load(plan, &host, requests, 201).await?;
        measured.push(load.row((ledger, mode), case.name, case.count, base));
    }
    Ok(measured)
}

struct Load {
    per_second: f64,
    refused: u64,
    latencies: Histogram<u64>,
}

impl Load {
    fn row(&self, (ledger, mode): (&str, &str), case: &str, count: u64, base: f64) -> Measured {
        Measured {
            ledger: ledger.to_owned(),
            mode: mode.to_owned(),
            case: case.to_owned(),
            per_second: self.per_second,
            nonces_per_second: self.per_second * count as f64,
            of_empty_route: self.per_second / base,
            p50_us: self.latencies.value_at_quantile(0.5),
            p99_us: self.latencies.value_at_quantile(0.99),
            refused: self.refused,
        }
    }
}

async fn load(plan: &Plan, host: &str, requests: Vec<Vec<u8>>, hoped: u16) -> Result<Load> {
    let requests = std::sync::Arc::new(requests);
    let from = Instant::now() + plan.length / 5;
    let until = from + plan.length;
    let mut running = tokio::task::JoinSet::new();
    for number in 0..plan.connections {
        let mut connection = Connection::open(host).await?;
        let requests = std::sync::Arc::clone(&requests);
        running.spawn(async move {
            let mut latencies = Histogram::<u64>::new(3)?;
            let mut refused = 0;
            // Each connection begins elsewhere among the signers.
            let mut next = number * requests.len() / 64;
            loop {
                let sent = Instant::now();
                if sent >= until {
                    return anyhow::Ok((latencies, refused));
                }
                let status = connection.exchange(&requests[next % requests.len()]).await?;
                next += 1;
                if sent < from {
                    continue;
                }
                match status.0 == hoped {
                    true => latencies.record(sent.elapsed().as_micros() as u64)?,
                    false => refused += 1,
                }
            }
        });
    }
    let mut latencies = Histogram::<u64>::new(3)?;
    let mut refused = 0;
    while let Some(done) = running.join_next().await {
        let (some, not) = done??;
        latencies.add(some)?;
        refused += not;
    }
    Ok(Load { per_second: latencies.len() as f64 / plan.length.as_secs_f64(), refused, latencies })
}
