//! The same jobs through others, in the same run on the same machine: BullMQ on a Redis without persistence, and, where
//! its program was built, apalis on a PostgreSQL like ours. The rounds of all take turns, so that what else the machine
//! does hurts all alike; the ratios are of the medians.
//!
//! What is started lies in `loadtest/beside`; its README says how to install it.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use testkit::servers::{Postgres, Redis};

use super::jobs;
use crate::progress::Bar;
use crate::report::{self, Report};

/// Ours has to be so many times as fast as BullMQ's `add`, and as its `addBulk`.
const WANTED: [(&str, f64); 2] = [(SINGLE, 3.0), (BULK, 5.0)];
const SINGLE: &str = "one job a request";
const BULK: &str = "many jobs a request";
const OURS: &str = "Fencepost, fsync on";
const BULLMQ: &str = "BullMQ, no fsync";
const APALIS: &str = "apalis, fsync on";

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
}

/// A ratio and what is wanted of it.
#[derive(Debug, Serialize)]
pub struct Ratio {
    /// Beside whom.
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
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Beside> {
    let apalis = home().join("apalis/target/release/beside-apalis");
    let apalis = apalis.is_file().then_some(apalis);
    let mut measured: Vec<Measured> = Vec::new();
    let mut violations = Vec::new();
    let mut add = |who, form, rate: f64| match measured.iter_mut().find(|it| it.who == who && it.form == form)
    {
        Some(one) => one.per_second.push(rate),
        None => measured.push(Measured { who, form, per_second: vec![rate] }),
    };
    for round in 1..=plan.rounds {
        for (form, batch, in_flight) in [(SINGLE, 1, plan.in_flight), (BULK, plan.bulk, plan.bulk_in_flight)]
        {
            bar.say(&format!("round {round}, {form}: BullMQ"));
            add(BULLMQ, form, bullmq(plan, batch, in_flight).await?);
            bar.say(&format!("round {round}, {form}: Fencepost"));
            let ours = jobs::Plan { batch, in_flight, ..plan.ours.clone() };
            let came = jobs::run(&ours, &Bar::hidden()).await?;
            violations.extend(came.violations);
            add(OURS, form, came.loads[0].per_second);
        }
        if let Some(program) = &apalis {
            bar.say(&format!("round {round}, {BULK}: apalis"));
            add(APALIS, BULK, by_apalis(plan, program.clone()).await?);
        }
    }
    bar.done();
    let ratios = ratios(&measured);
    Ok(Beside { jobs: plan.ours.jobs, measured, ratios, violations })
}

/// The worker in a process of its own and beside the queue: the better of the two counts.
async fn bullmq(plan: &Plan, bulk: usize, in_flight: usize) -> Result<f64> {
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
        let script = script.clone();
        let said = tokio::task::spawn_blocking(move || {
            let redis = Redis::start()?;
            let mut node = Command::new("node");
            node.arg(script)
                .args([usize::from(redis.port()), jobs, bulk, in_flight, slots].map(|n| n.to_string()));
            said_by(node.arg(place), jobs)
        });
        best = best.max(said.await??);
    }
    Ok(best)
}

async fn by_apalis(plan: &Plan, program: PathBuf) -> Result<f64> {
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

fn ratios(measured: &[Measured]) -> Vec<Ratio> {
    let ours = |form| measured.iter().find(|one| one.who == OURS && one.form == form);
    let ratio = |other: &Measured| {
        let wanted = WANTED.iter().find(|(form, _)| other.who == BULLMQ && *form == other.form);
        Some(Ratio {
            beside: other.who,
            form: other.form,
            wanted: wanted.map(|(_, wanted)| *wanted),
            reached: median(&ours(other.form)?.per_second) / median(&other.per_second),
        })
    };
    measured.iter().filter(|one| one.who != OURS).filter_map(ratio).collect()
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
        report::with_violations(format!("{rates}\n\n{ratios}"), &self.violations)
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
        let one = |who, form, rates: &[f64]| Measured { who, form, per_second: rates.to_vec() };
        let measured = [
            one(BULLMQ, SINGLE, &[100.0, 300.0, 200.0]),
            one(OURS, SINGLE, &[900.0, 10.0, 600.0, 400.0]),
            one(APALIS, BULK, &[1.0]),
        ];
        let ratios = ratios(&measured);
        assert_eq!((ratios.len(), ratios[0].reached, ratios[0].wanted), (1, 2.5, Some(3.0)));
    }
}
