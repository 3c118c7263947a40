//! How fast, beside an empty route and bare bulk inserts in the same run: what SPEC 13 asks for, in both
//! modes side by side.
//!
//! A closed loop: each connection sends its next request when the last one was answered. Absolute
//! numbers are about this machine; the ratios are what to compare.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use testkit::fleet::{Blueprint, Fleet};
use testkit::instance::Setup;
use testkit::servers::Database;

use crate::figures::{Summary, ms};
use crate::load::{Ask, Route, Zipf};
use crate::metrics::Metrics;
use crate::plot::{Bar, Bars, Panel};
use crate::progress;
use crate::report::{self, Report};
use crate::target::{HOLD_MS, Rhythm, Run, Target, fresh_prefix};
use crate::verify::Verdict;

/// Connections with which bare bulk inserts are tried; the best counts.
const BULK_CONNECTIONS: [usize; 3] = [1, 2, 4];
/// Rows of one bare insert when no train tells how many it carries.
const BULK_ROWS: usize = 1_000;
/// Statements that take, renew or let go of leases.
const LEASE_STATEMENTS: (&str, &str) = (r"(update|insert into)\s+lease\y", "^$");

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How long each case is measured, after a warm-up of a fifth of it.
    pub length: Duration,
    /// Keep-alive connections, each with one request in flight.
    pub connections: usize,
    /// SQLite beside PostgreSQL.
    pub sqlite: bool,
    /// A private Redis for the instances on PostgreSQL.
    pub redis: bool,
    /// Decides which signers are asked for.
    pub seed: u64,
}

struct Case {
    name: &'static str,
    signers: usize,
    count: u64,
}

const HOT: &str = "one hot signer";
const MANY: &str = "1,000 signers";
const BATCH: &str = "one hot signer, grants of 100";
const EMPTY: &str = "empty route (GET /healthz)";

const CASES: [Case; 3] = [
    Case { name: HOT, signers: 1, count: 1 },
    Case { name: MANY, signers: 1_000, count: 1 },
    Case { name: BATCH, signers: 1, count: 100 },
];

/// One case on one ledger in one mode.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// `sqlite` or `postgres`.
    pub ledger: &'static str,
    /// `basic` or `worker-queue`.
    pub mode: &'static str,
    /// What was asked.
    pub case: &'static str,
    /// Rates and latencies.
    pub load: Summary,
    /// Requests per second as a part of the empty route's.
    pub of_empty_route: f64,
    /// Acquires that were refused or failed, for each 1,000 grants, as the instance tells.
    pub acquire_failures_per_1000: f64,
    /// Acquires, for each 1,000 grants, as the instance tells.
    pub acquires_per_1000: f64,
    /// Leases renewed, for each 1,000 grants, as the instance tells.
    pub renewed_per_1000: f64,
    /// Statements that wrote to leases, for each 1,000 grants, as PostgreSQL counts them.
    pub lease_statements_per_1000: Option<f64>,
    /// Nonces that one commit carried on average, where there are trains.
    pub rows_per_train: Option<f64>,
}

/// Bare bulk inserts into a table of the same shape, by `pgbench`.
#[derive(Debug, Serialize)]
pub struct Bulk {
    /// Rows of one insert: what one train carried.
    pub rows: usize,
    /// Connections that did best.
    pub connections: usize,
    /// Rows per second.
    pub rows_per_second: f64,
}

/// A target of SPEC 13 and what was reached.
#[derive(Debug, Serialize)]
pub struct Goal {
    /// What is compared.
    pub what: String,
    /// At least (or, for statements, at most) this.
    pub wanted: f64,
    /// What was reached.
    pub reached: f64,
    /// Whether that is enough.
    pub met: bool,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Rates {
    /// The seed.
    pub seed: u64,
    /// Keep-alive connections.
    pub connections: usize,
    /// Every case.
    pub cases: Vec<Measured>,
    /// The yardstick for grants of 100.
    pub bulk: Bulk,
    /// The ratios.
    pub targets: Vec<Goal>,
    /// What the checker found.
    pub verdict: Verdict,
}

impl Report for Rates {
    fn table(&self) -> String {
        let number = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.0}") };
        let head = [
            "case",
            "requests/s",
            "nonces/s",
            "of empty route",
            "p50 ms",
            "p99 ms",
            "generator cores",
            "not served",
            "acquire failures per 1,000",
            "lease statements per 1,000",
            "nonces per train",
        ];
        let row = |one: &Measured| {
            let load = &one.load;
            let grants = one.case != EMPTY;
            let some = |value: Option<f64>| value.filter(|_| grants).map_or(String::new(), number);
            vec![
                format!("{}, {}: {}", one.ledger, one.mode, one.case),
                format!("{:.0}", load.per_second),
                format!("{:.0}", load.nonces_per_second),
                format!("{:.3}", one.of_empty_route),
                ms(load.latency.p50_us),
                ms(load.latency.p99_us),
                format!("{:.2}", load.generator_cores),
                (load.refused.values().sum::<u64>() + load.unanswered.values().sum::<u64>()).to_string(),
                some(Some(one.acquire_failures_per_1000)),
                some(one.lease_statements_per_1000),
                some(one.rows_per_train),
            ]
        };
        let cases = report::table(&head, &self.cases.iter().map(row).collect::<Vec<_>>());
        let bulk = format!(
            "bare bulk inserts (pgbench, {} rows each, {} connections): {:.0} rows/s",
            self.bulk.rows, self.bulk.connections, self.bulk.rows_per_second
        );
        let targets = self.targets.iter().map(|one| {
            let met = if one.met { "yes" } else { "no" };
            vec![one.what.clone(), number(one.wanted), format!("{:.3}", one.reached), met.to_owned()]
        });
        let targets = report::table(&["ratio", "wanted", "reached", "met"], &targets.collect::<Vec<_>>());
        let mut lines = vec![
            ("seed".to_owned(), self.seed.to_string()),
            ("connections".to_owned(), self.connections.to_string()),
        ];
        lines.extend(self.verdict.lines());
        let text = format!("{cases}\n\n{bulk}\n\n{targets}\n\n{}", report::two_columns(&lines));
        report::with_violations(text, &self.verdict.violations)
    }

    fn panels(&self) -> Vec<Panel> {
        let named =
            |one: &Measured| Summary { name: format!("{}: {}", one.mode, one.case), ..one.load.clone() };
        let loads: Vec<Summary> =
            self.cases.iter().filter(|one| one.ledger == "postgres").map(named).collect();
        report::load_panels(&loads.iter().collect::<Vec<_>>())
    }

    fn bars(&self) -> Vec<Bars> {
        let bar = |one: &Measured| Bar {
            name: format!("{}: {}", one.mode, one.case),
            value: one.load.per_second,
            rounds: Vec::new(),
            is_ours: one.case != EMPTY,
        };
        let bars = self.cases.iter().filter(|one| one.ledger == "postgres").map(bar).collect();
        vec![Bars { title: "Requests per second, PostgreSQL".to_owned(), bars }]
    }

    fn violations(&self) -> &[String] {
        &self.verdict.violations
    }
}

/// Measures every case in both modes, one instance each, and the yardsticks beside them.
///
/// # Errors
/// A server or an instance does not start, or a connection breaks. Missed targets and broken promises are
/// in the report, not here.
pub async fn run(plan: &Plan, bar: &progress::Bar) -> Result<Rates> {
    let mut cases = Vec::new();
    let mut verdict = Verdict::default();
    let ledgers: &[&str] = if plan.sqlite { &["sqlite", "postgres"] } else { &["postgres"] };
    let mut bulk = None;
    for ledger in ledgers {
        for mode in ["basic", "worker-queue"] {
            bar.say("starting");
            if *ledger == "sqlite" {
                let setup = Setup::in_mode(mode)?.env("FENCEPOST__LOG__FILTER", "warn");
                let instance = setup.start().await?;
                let target = Target::Running(vec![instance.url().to_owned()]);
                cases.extend(on(("sqlite", mode), plan, &target, &mut verdict, bar).await?);
                continue;
            }
            let blueprint = Blueprint {
                counting: true,
                redis: plan.redis,
                ..Blueprint::new(mode, 1).env("FENCEPOST__LOG__FILTER", "warn")
            };
            let target = Target::Ours(Box::new(Fleet::build(blueprint).await?));
            cases.extend(on(("postgres", mode), plan, &target, &mut verdict, bar).await?);
            if mode == "worker-queue" {
                let carried = cases.last().and_then(|last: &Measured| last.rows_per_train);
                let rows = carried.map_or(BULK_ROWS, |rows| rows.round().max(1.0) as usize);
                let database = target.database().context("the database is ours")?.clone();
                bulk = Some(bare_inserts(database, rows, plan.length, bar).await?);
            }
        }
    }
    bar.done();
    let bulk = bulk.context("PostgreSQL was measured")?;
    let targets = targets(&cases, &bulk, plan.connections);
    Ok(Rates { seed: plan.seed, connections: plan.connections, cases, bulk, targets, verdict })
}

async fn on(
    (ledger, mode): (&'static str, &'static str),
    plan: &Plan,
    target: &Target,
    verdict: &mut Verdict,
    bar: &progress::Bar,
) -> Result<Vec<Measured>> {
    let one = Arc::new(Zipf::new(1, 0.0));
    let run = Run {
        name: EMPTY,
        ask: Ask::Empty,
        rhythm: Rhythm::Closed,
        length: plan.length,
        warm_up: plan.length / 5,
        connections: plan.connections,
        prefix: "",
        choice: &one,
        signers: 1,
        route: Route::Owner,
        seed: plan.seed,
    };
    let (_, empty) = run.on(target, bar).await?;
    let base = empty.per_second;
    let mut measured = vec![Measured {
        ledger,
        mode,
        case: EMPTY,
        load: empty,
        of_empty_route: 1.0,
        acquire_failures_per_1000: 0.0,
        acquires_per_1000: 0.0,
        renewed_per_1000: 0.0,
        lease_statements_per_1000: None,
        rows_per_train: None,
    }];
    for case in &CASES {
        let prefix = fresh_prefix("rate");
        let choice = Arc::new(Zipf::new(case.signers, 0.0));
        let run = Run {
            name: case.name,
            ask: Ask::Grant { count: case.count, hold_ms: HOLD_MS, keys: false, again: false },
            prefix: &prefix,
            choice: &choice,
            signers: case.signers,
            ..run.clone()
        };
        // So that every signer has been served before it is measured how fast that goes.
        let began = Instant::now();
        let mut whole = run.each_once(target, bar).await?;
        let (before, statements) = (target.metrics().await?, lease_statements(target).await?);
        let after_us = began.elapsed().as_micros() as u64;
        let (log, load) = run.on(target, bar).await?;
        let answer = target.metrics().await?.since(&before);
        let statements_then = lease_statements(target).await?;
        let granted = log.entries.iter().filter(|entry| entry.is_fine()).count().max(1) as f64;
        let per_1000 = |count: f64| count * 1_000.0 / granted;
        measured.push(Measured {
            ledger,
            mode,
            case: case.name,
            of_empty_route: load.per_second / base,
            acquire_failures_per_1000: per_1000(acquire_failures(&answer)),
            acquires_per_1000: per_1000(answer.sum("fencepost_lease_acquire_total", &[])),
            renewed_per_1000: per_1000(answer.sum("fencepost_lease_renew_total", &["result=\"renewed\""])),
            lease_statements_per_1000: statements
                .zip(statements_then)
                .map(|(before, then)| per_1000(then - before)),
            rows_per_train: rows_per_train(&answer),
            load,
        });
        bar.say("verifying");
        whole.append(log, after_us);
        verdict.add(run.verified(&whole, target).await?);
    }
    Ok(measured)
}

fn acquire_failures(answer: &Metrics) -> f64 {
    let by_result = answer.by("fencepost_lease_acquire_total", "result");
    by_result.iter().filter(|(result, _)| *result != "acquired").fold(0.0, |sum, (_, count)| sum + count)
}

fn rows_per_train(answer: &Metrics) -> Option<f64> {
    let trains = answer.sum("fencepost_commit_train_size_count", &[]);
    (trains > 0.0).then(|| answer.sum("fencepost_nonce_grants_total", &[]) / trains)
}

async fn lease_statements(target: &Target) -> Result<Option<f64>> {
    let Some(database) = target.database().cloned() else { return Ok(None) };
    let (like, unlike) = LEASE_STATEMENTS;
    let counted = tokio::task::spawn_blocking(move || database.statements(like, unlike)).await??;
    Ok(Some(counted.count))
}

/// The same rows into a table of the same shape and indexes, and nothing else: prepared once, so that not
/// even the rows travel.
async fn bare_inserts(
    database: Database,
    rows: usize,
    length: Duration,
    bar: &progress::Bar,
) -> Result<Bulk> {
    let dir = tempfile::TempDir::with_prefix("fencepost-pgbench-")?;
    let script = dir.path().join("bulk.sql");
    std::fs::write(&script, bulk_script(rows))?;
    let (database, bar) = (database, bar.clone());
    let best = tokio::task::spawn_blocking(move || {
        let mut best: Option<Bulk> = None;
        for connections in BULK_CONNECTIONS {
            bar.say(&format!("bare bulk inserts of {rows} rows, {connections} connections"));
            database.query(
                "drop table if exists bare; create table bare (like signer_nonce_allocation including all)",
            )?;
            let rows_per_second = database.pgbench(&script, connections, length)? * rows as f64;
            if best.as_ref().is_none_or(|best| best.rows_per_second < rows_per_second) {
                best = Some(Bulk { rows, connections, rows_per_second });
            }
        }
        database.query("drop table bare")?;
        best.context("something was tried")
    });
    best.await?
}

fn bulk_script(rows: usize) -> String {
    let (mut offsets, mut holds) = (String::new(), String::new());
    for row in 0..rows {
        let comma = if row == 0 { "" } else { "," };
        let _ = write!(offsets, "{comma}{row}");
        let _ = write!(holds, "{comma}{:032x}", rand::random::<u128>());
    }
    format!(
        "\\set base :base + {rows}\n\
         insert into bare (signer, nonce, status, hold, held_until, tx_hash, fencing_token, owner, created_at, updated_at) \
         select 'bare-' || (:client_id)::text, w.nonce + (:base)::bigint, 'HELD', w.hold, now() + interval '1 hour', null, 1, 'bare', now(), now() \
         from unnest('{{{offsets}}}'::bigint[], '{{{holds}}}'::uuid[]) as w (nonce, hold) order by 1, 2 on conflict do nothing;\n"
    )
}

fn targets(cases: &[Measured], bulk: &Bulk, connections: usize) -> Vec<Goal> {
    let find = |mode: &str, case: &str| {
        cases.iter().find(|one| one.ledger == "postgres" && one.mode == mode && one.case == case)
    };
    let mut targets = Vec::new();
    let mut add = |what: &str, wanted: f64, reached: Option<f64>, at_most: bool| {
        if let Some(reached) = reached.filter(|reached| reached.is_finite()) {
            let met = if at_most { reached <= wanted } else { reached >= wanted };
            targets.push(Goal { what: what.to_owned(), wanted, reached, met });
        }
    };
    let queue = |case: &str| find("worker-queue", case);
    let against = |case: &str, part: fn(&Measured) -> Option<f64>| {
        Some(part(queue(case)?)? / part(find("basic", case)?)?)
    };
    let rate: fn(&Measured) -> Option<f64> = |one| Some(one.load.per_second);
    // A train carries what waits, so that fewer callers share each commit.
    let hot = if connections > 64 { 0.45 } else { 0.25 };
    add("hot signer, of the empty route", hot, queue(HOT).map(|one| one.of_empty_route), false);
    add("hot signer, times basic mode", 10.0, against(HOT, rate), false);
    add("1,000 signers, of the empty route", 0.4, queue(MANY).map(|one| one.of_empty_route), false);
    add(
        "grants of 100, of bare bulk inserts",
        0.7,
        queue(BATCH).map(|one| one.load.nonces_per_second / bulk.rows_per_second),
        false,
    );
    for (name, case) in [("hot signer", HOT), ("1,000 signers", MANY)] {
        let statements = against(case, |one| one.lease_statements_per_1000);
        add(&format!("{name}, lease statements per grant, of basic mode (at most)"), 0.01, statements, true);
    }
    targets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_inserts_as_many_rows_as_it_says() {
        let script = bulk_script(3);
        assert!(script.starts_with("\\set base :base + 3\ninsert into bare"), "{script}");
        assert!(script.contains("unnest('{0,1,2}'::bigint[], '{"), "{script}");
        assert_eq!(script.lines().count(), 2);
        assert_eq!(
            script.split("'::uuid[]").next().unwrap().rsplit('{').next().unwrap().split(',').count(),
            3
        );
    }
}
