//! How fast are nonces granted: for one hot signer, for many of which few are wanted most, and a
//! hundred at once?

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use testkit::fleet::Blueprint;

use crate::costs::Costs;
use crate::figures::Summary;
use crate::load::{Ask, Route, Zipf};
use crate::machine::{MachineCounters, MachineUse};
use crate::plot::Panel;
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::statements::{self, StatementCost};
use crate::target::{HOLD_MS, Rhythm, Run, Target, fresh_prefix};
use crate::verify::Verdict;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenario's name.
    pub name: String,
    /// Running instances; none: they are started.
    pub urls: Vec<String>,
    /// What is started.
    pub blueprint: Blueprint,
    /// How many signers.
    pub signers: usize,
    /// How unequally they are wanted: 0 alike, 1 as words in a language.
    pub skew: f64,
    /// Nonces of one request.
    pub count: u64,
    /// Each request under an idempotency key of its own.
    pub keys: bool,
    /// When requests are made.
    pub rhythm: Rhythm,
    /// How long it is measured, after a warm-up of a fifth of it.
    pub length: Duration,
    /// Keep-alive connections.
    pub connections: usize,
    /// Which instance is asked first.
    pub route: Route,
    /// Decides arrivals and signers.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Granting {
    /// The seed.
    pub seed: u64,
    /// What was asked.
    pub asked: String,
    /// Rates and latencies.
    pub load: Summary,
    /// Leases acquired, by result, for each 1,000 requests granted.
    pub acquires_per_1000: std::collections::BTreeMap<String, f64>,
    /// Of instances that were started, for each 1,000 requests granted, those of the warm-up too.
    pub costs: Option<Costs>,
    /// How much of the machine that took.
    pub machine: MachineUse,
    /// Where PostgreSQL's time went, if it counts.
    pub statements: Vec<StatementCost>,
    /// What the checker found.
    pub verdict: Verdict,
}

impl Report for Granting {
    fn table(&self) -> String {
        let mut lines =
            vec![("seed".to_owned(), self.seed.to_string()), ("asked".to_owned(), self.asked.clone())];
        lines.extend(report::trouble(&self.load));
        lines.extend(
            self.acquires_per_1000
                .iter()
                .map(|(result, count)| (format!("leases {result} per 1,000 grants"), format!("{count:.2}"))),
        );
        if let Some(costs) = self.costs {
            lines.push(costs.line_per_1000());
        }
        lines.push((
            "machine: idle %, stolen %, switches a request".to_owned(),
            self.machine.cells().join(", "),
        ));
        lines.extend(self.verdict.lines());
        let statements = statements::table(&self.statements, "requests");
        let loads = report::loads(&[&self.load]);
        let tables = format!("{loads}{statements}\n\n{}", report::two_columns(&lines));
        report::with_violations(tables, &self.verdict.violations)
    }

    fn panels(&self) -> Vec<Panel> {
        report::load_panels(&[&self.load])
    }

    fn violations(&self) -> &[String] {
        &self.verdict.violations
    }
}

/// Runs the plan.
///
/// # Errors
/// Something does not start or answer. Broken promises are in the report, not here.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Granting> {
    bar.say("starting");
    let target = Target::open(&plan.urls, plan.blueprint.clone()).await?;
    let choice = Arc::new(Zipf::new(plan.signers, plan.skew));
    let prefix = fresh_prefix("nonces");
    let run = Run {
        name: &plan.name,
        ask: Ask::Grant { count: plan.count, hold_ms: HOLD_MS, keys: plan.keys, again: false },
        rhythm: plan.rhythm,
        length: plan.length,
        warm_up: plan.length / 5,
        connections: plan.connections,
        prefix: &prefix,
        choice: &choice,
        signers: plan.signers,
        route: plan.route,
        seed: plan.seed,
    };
    let counting = plan.blueprint.counting;
    if let Some(database) = target.database() {
        statements::forget(database, counting).await?;
    }
    let before = target.metrics().await?;
    let (costs, machine) = (costs_of(&target).await?, MachineCounters::read()?);
    let (log, load) = run.on(&target, bar).await?;
    let granted = log.entries.iter().filter(|entry| entry.is_fine()).count();
    let machine = MachineCounters::read()?.since(machine, granted);
    let costs = costs_of(&target).await?.zip(costs).map(|(now, before)| now.per_1000(before, granted));
    let statements = match target.database() {
        Some(database) => statements::read(database, counting, granted).await?,
        None => Vec::new(),
    };
    let metrics = target.metrics().await?.since(&before);
    bar.say("verifying");
    let mut verdict = run.verified(&log, &target).await?;
    if let Some(fleet) = target.fleet() {
        verdict.violations.extend(fleet.defects_logged().await);
    }
    bar.done();
    let acquires = metrics.by("fencepost_lease_acquire_total", "result");
    let rhythm = match plan.rhythm {
        Rhythm::Open(rate, _) => format!("{rate} arrivals/s"),
        Rhythm::Closed => "a closed loop".to_owned(),
    };
    Ok(Granting {
        seed: plan.seed,
        asked: format!(
            "{} of {} signers (skew {}), {rhythm}, {} connections, {} instances",
            plan.count,
            plan.signers,
            plan.skew,
            plan.connections,
            target.urls().len()
        ),
        load,
        acquires_per_1000: acquires
            .into_iter()
            .map(|(result, count)| (result, count * 1_000.0 / granted.max(1) as f64))
            .collect(),
        costs,
        machine,
        statements,
        verdict,
    })
}

/// Of instances that were started.
async fn costs_of(target: &Target) -> Result<Option<Costs>> {
    match target.fleet() {
        Some(fleet) => Ok(Some(Costs::read(fleet).await?)),
        None => Ok(None),
    }
}
