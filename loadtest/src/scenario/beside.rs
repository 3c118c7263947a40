//! The same jobs through others, in the same run on the same machine: BullMQ 5 and 6 on a Redis without persistence, and, where
//! its program was built, apalis on a PostgreSQL like ours. The rounds of all take turns, so that what else the machine
//! does hurts all alike; the ratios are of the medians.
//!
//! What is started lies in `loadtest/beside`; its README says how to install it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::fleet::Blueprint;
use testkit::servers::{Postgres, Redis};

use super::jobs;
use crate::machine::MachineUse;
use crate::plot::{Bar, Bars};
use crate::progress;
use crate::report::{self, Report};

/// Ours has to be so many times as fast as BullMQ's `add`, and as its `addBulk`.
const WANTED_OF_BULLMQ: [(&str, f64); 2] = [(SINGLE, 3.0), (BULK, 5.0)];
/// And so many times as fast as apalis, where that takes many jobs at once.
const WANTED_OF_APALIS: f64 = 2.5;
/// Two instances have to be so many times as fast as one.
const WANTED_OF_ONE: f64 = 1.0;
const SINGLE: &str = "one job a request";
const BULK: &str = "many jobs a request";
const TWO: &str = "one job a request, two instances";
const OURS: &str = "Fencepost, fsync on";
/// Its versions, and the names of their packages in `beside/bullmq`.
const BULLMQ: [(&str, &str); 2] = [("BullMQ 5, no fsync", "bullmq5"), ("BullMQ 6, no fsync", "bullmq6")];
const APALIS: &str = "apalis, fsync on";
/// Between two rounds.
const REST: Duration = Duration::from_secs(2);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How ours are run, but for the size and the number of requests.
    pub ours: jobs::Plan,
    /// Requests of one job in flight.
    pub in_flight: usize,
    /// Jobs of a large request.
    pub bulk: usize,
    /// Large requests in flight.
    pub bulk_in_flight: usize,
    /// How often each is run.
    pub rounds: usize,
}

/// One of them in one form.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// Who.
    pub who: &'static str,
    /// One job a request, or many.
    pub form: &'static str,
    /// Jobs per second of each round, from the first submission to the last result.
    pub per_second: Vec<f64>,
    /// Of ours: what each round cost.
    pub costs: Vec<RoundCost>,
}

/// What one round of ours cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RoundCost {
    /// Microseconds of processor time for a job: the instances, PostgreSQL and Redis.
    pub job_us: f64,
    /// The machine, with changes of context for each job.
    pub machine: MachineUse,
}

/// A ratio and what is wanted of it.
#[derive(Debug, Serialize)]
pub struct Ratio {
    /// The system beside which it was measured.
    pub beside: &'static str,
    /// One job a request, or many.
    pub form: &'static str,
    /// At least this; `None` where nothing is said.
    pub wanted: Option<f64>,
    /// What was reached.
    pub reached: f64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Beside {
    /// Jobs of each round.
    pub jobs: usize,
    /// All of them.
    pub measured: Vec<Measured>,
    /// Ours, of each other's.
    pub ratios: Vec<Ratio>,
    /// Broken promises of ours.
    pub violations: Vec<String>,
}

/// What the others' programs print.
#[derive(Deserialize)]
struct Said {
    per_second: f64,
    completed: usize,
}

/// Runs the plan.
///
/// # Errors
/// Something does not start, or does not do all its jobs.
pub async fn run(plan: &Plan, bar: &progress::Bar) -> Result<Beside> {
    let apalis = home().join("apalis/target/release/beside-apalis");
    let apalis = apalis.is_file().then_some(apalis);
    let mut measured: Vec<Measured> = Vec::new();
    let mut violations = Vec::new();
    for round in 1..=plan.rounds {
        for (form, batch, in_flight) in [(SINGLE, 1, plan.in_flight), (BULK, plan.bulk, plan.bulk_in_flight)]
        {
            for (who, package) in BULLMQ {
                bar.say(&format!("round {round}, {form}: {who}"));
                add(&mut measured, who, form, bullmq(plan, package, batch, in_flight).await?, None);
            }
            bar.say(&format!("round {round}, {form}: Fencepost"));
            let ours = jobs::Plan { batch, in_flight, ..plan.ours.clone() };
            violations.extend(ours_of(ours, form, &mut measured).await?);
        }
        bar.say(&format!("round {round}, {TWO}"));
        let blueprint = Blueprint { instances: 2, ..plan.ours.blueprint.clone() };
        let ours = jobs::Plan { blueprint, batch: 1, in_flight: plan.in_flight, ..plan.ours.clone() };
        violations.extend(ours_of(ours, TWO, &mut measured).await?);
        if let Some(program) = &apalis {
            bar.say(&format!("round {round}, {BULK}: apalis"));
            add(&mut measured, APALIS, BULK, by_apalis(plan, program.clone()).await?, None);
        }
    }
    bar.done();
    let ratios = ratios(&measured);
    Ok(Beside { jobs: plan.ours.jobs, measured, ratios, violations })
}

fn add(
    measured: &mut Vec<Measured>,
    who: &'static str,
    form: &'static str,
    rate: f64,
    cost: Option<RoundCost>,
) {
    let at = measured.iter().position(|it| it.who == who && it.form == form).unwrap_or_else(|| {
        measured.push(Measured { who, form, per_second: Vec::new(), costs: Vec::new() });
        measured.len() - 1
    });
    measured[at].per_second.push(rate);
    measured[at].costs.extend(cost);
}

/// Writes out what others have left in memory, and rests: else the disk is busy with it while the next one is measured.
async fn settle() -> Result<()> {
    let synced = tokio::task::spawn_blocking(|| Command::new("sync").status()).await??;
    ensure!(synced.success(), "sync: {synced}");
    tokio::time::sleep(REST).await;
    Ok(())
}

/// One round of ours; answers what promises were broken.
async fn ours_of(ours: jobs::Plan, form: &'static str, measured: &mut Vec<Measured>) -> Result<Vec<String>> {
    settle().await?;
    let came = jobs::run(&ours, &progress::Bar::hidden()).await?;
    let load = came.loads.first().context("a load")?;
    let seconds = load.costs.daemon + load.costs.postgres + load.costs.redis;
    let cost = RoundCost { job_us: seconds * 1_000.0, machine: load.machine };
    add(measured, OURS, form, load.per_second, Some(cost));
    Ok(came.violations)
}

/// The worker in a process of its own and beside the queue: the better of the two counts.
async fn bullmq(plan: &Plan, package: &'static str, bulk: usize, in_flight: usize) -> Result<f64> {
    let script = home().join("bullmq/bench.mjs");
    ensure!(
        script.with_file_name("node_modules").is_dir(),
        "{}: npm install",
        home().join("bullmq").display()
    );
    let slots = plan.ours.nodes * plan.ours.capacity as usize;
    let jobs = plan.ours.jobs;
    let mut best: f64 = 0.0;
    for place in ["together", "apart"] {
        settle().await?;
        let script = script.clone();
        let said = tokio::task::spawn_blocking(move || {
            let redis = Redis::start()?;
            let mut node = Command::new("node");
            node.arg(script)
                .args([usize::from(redis.port()), jobs, bulk, in_flight, slots].map(|n| n.to_string()));
            said_by(node.args([package, place]), jobs)
        });
        best = best.max(said.await??);
    }
    Ok(best)
}

async fn by_apalis(plan: &Plan, program: PathBuf) -> Result<f64> {
    settle().await?;
    let (jobs, bulk) = (plan.ours.jobs, plan.bulk);
    let slots = plan.ours.nodes * plan.ours.capacity as usize;
    let said = tokio::task::spawn_blocking(move || {
        let database = Arc::new(Postgres::start()?).database()?;
        let mut program = Command::new(program);
        said_by(program.arg(database.url()).args([jobs, bulk, slots].map(|n| n.to_string())), jobs)
    });
    said.await?
}

fn said_by(command: &mut Command, jobs: usize) -> Result<f64> {
    let said = command.output().with_context(|| format!("{command:?}"))?;
    ensure!(said.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said.stderr));
    let Said { per_second, completed } = serde_json::from_slice(&said.stdout)
        .with_context(|| String::from_utf8_lossy(&said.stdout).into_owned())?;
    ensure!(completed == jobs, "{command:?}: {completed} of {jobs}");
    Ok(per_second)
}

fn home() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("beside")
}

fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    (low + high) / 2.0
}

/// Ours of each other's, and two instances of one.
fn ratios(measured: &[Measured]) -> Vec<Ratio> {
    let ours = |form| measured.iter().find(|one| one.who == OURS && one.form == form);
    let ratio = |other: &Measured, form, wanted| {
        let reached = median(&ours(form)?.per_second) / median(&other.per_second);
        Some(Ratio { beside: other.who, form, wanted, reached })
    };
    let wanted = |other: &Measured| match other.who {
        APALIS => Some(WANTED_OF_APALIS),
        _ => WANTED_OF_BULLMQ.iter().find(|(form, _)| *form == other.form).map(|(_, wanted)| *wanted),
    };
    let others = measured.iter().filter(|one| one.who != OURS);
    let mut ratios: Vec<_> = others.filter_map(|other| ratio(other, other.form, wanted(other))).collect();
    ratios.extend(ours(SINGLE).and_then(|one| ratio(one, TWO, Some(WANTED_OF_ONE))));
    ratios
}

/// What a round of ours cost, and whether the machine was ours.
fn costs(measured: &[Measured]) -> String {
    let row = |form: &str, (at, cost): (usize, &RoundCost)| {
        let counts = if cost.machine.counts() { "yes" } else { "no" };
        let mut cells = vec![format!("{form}, round {}", at + 1), format!("{:.0}", cost.job_us)];
        cells.extend(cost.machine.cells());
        cells.push(counts.to_owned());
        cells
    };
    let rows: Vec<_> =
        measured.iter().flat_map(|one| one.costs.iter().enumerate().map(|it| row(one.form, it))).collect();
    let head =
        ["ours", "processor µs a job", "machine idle %", "stolen %", "switches a job", "the round counts"];
    report::table(&head, &rows)
}

impl Report for Beside {
    fn table(&self) -> String {
        let each = |one: &Measured| one.per_second.iter().map(|it| format!("{it:.0}")).collect::<Vec<_>>();
        let row = |one: &Measured| {
            let median = format!("{:.0}", median(&one.per_second));
            vec![format!("{}: {}", one.form, one.who), median, each(one).join(", ")]
        };
        let rates = report::table(
            &["jobs/s, from the first submission to the last result", "median", "rounds"],
            &self.measured.iter().map(row).collect::<Vec<_>>(),
        );
        let row = |one: &Ratio| {
            let wanted = one.wanted.map_or(String::new(), |wanted| format!("{wanted:.1}"));
            vec![format!("{}: times {}", one.form, one.beside), wanted, format!("{:.2}", one.reached)]
        };
        let ratios =
            report::table(&["ratio", "wanted", "reached"], &self.ratios.iter().map(row).collect::<Vec<_>>());
        let costs = costs(&self.measured);
        report::with_violations(format!("{rates}\n\n{ratios}\n\n{costs}"), &self.violations)
    }

    fn bars(&self) -> Vec<Bars> {
        let bar = |one: &Measured| Bar {
            name: one.who.to_owned(),
            value: median(&one.per_second),
            rounds: one.per_second.clone(),
            is_ours: one.who == OURS,
        };
        let of_form = |form| {
            let title = format!("{form}: jobs per second, medians and rounds");
            Bars { title, bars: self.measured.iter().filter(|one| one.form == form).map(bar).collect() }
        };
        [SINGLE, BULK, TWO].map(of_form).into()
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_of_medians() {
        let one =
            |who, form, rates: &[f64]| Measured { who, form, per_second: rates.to_vec(), costs: Vec::new() };
        let measured = [
            one(BULLMQ[0].0, SINGLE, &[100.0, 300.0, 200.0]),
            one(BULLMQ[1].0, SINGLE, &[1_000.0]),
            one(OURS, SINGLE, &[900.0, 10.0, 600.0, 400.0]),
            one(APALIS, BULK, &[1.0]),
            one(OURS, BULK, &[5.0]),
            one(OURS, TWO, &[250.0]),
        ];
        let ratios: Vec<_> =
            ratios(&measured).iter().map(|it| (it.beside, it.form, it.wanted, it.reached)).collect();
        let expected = [
            (BULLMQ[0].0, SINGLE, Some(3.0), 2.5),
            (BULLMQ[1].0, SINGLE, Some(3.0), 0.5),
            (APALIS, BULK, Some(2.5), 5.0),
            (OURS, TWO, Some(1.0), 0.5),
        ];
        assert_eq!(ratios, expected);
    }
}
