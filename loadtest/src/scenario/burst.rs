//! Does memory come back after a burst of large jobs? They are all submitted before the first node connects, so that they
//! wait; once all have run, the instance is left alone for a while.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use testkit::fleet::{Blueprint, Fleet};
use testkit::sim_nodes::{self, SimNodes};

use crate::memory::{MemoryWatch, mib};
use crate::moments::Moments;
use crate::plot::{Curve, Panel, Scale};
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::submit::{self, Pace};

/// No job is recorded for so long: something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started: one instance.
    pub blueprint: Blueprint,
    /// How many jobs.
    pub jobs: usize,
    /// Bytes of each payload, about.
    pub payload_bytes: usize,
    /// Requests in flight.
    pub in_flight: usize,
    /// The nodes, and the slots of each.
    pub nodes: (usize, u32),
    /// How long the instance is left alone afterwards.
    pub rest: Duration,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Burst {
    /// Jobs that ran, and that were refused.
    pub jobs: (usize, usize),
    /// Resident memory in MiB: before, the most, when all jobs had run, and after the rest.
    pub memory_mib: [f64; 4],
    /// Resident memory in MiB by seconds since the first submission.
    pub memory_over_time: Vec<(f64, f64)>,
    /// Broken promises.
    pub violations: Vec<String>,
}

/// Runs the plan.
///
/// # Errors
/// Something does not start or answer, or jobs are not recorded. Broken promises are in the report.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Burst> {
    bar.say("starting");
    let fleet = Fleet::build(plan.blueprint.clone()).await?;
    let pid = fleet.instance(0).await.process().pid();
    let memory = || testkit::instance::memory_bytes(pid).context("the instance's memory");
    let moments = Moments::new(plan.jobs);
    let before = memory()?;
    let watch = MemoryWatch::start(Some(pid));
    bar.say("submitting");
    let submission = submit::Plan {
        urls: fleet.urls().to_vec(),
        jobs: 0..plan.jobs,
        batch: 1,
        connections: plan.in_flight,
        pace: Pace::Closed,
        padding_bytes: plan.payload_bytes,
        fields: String::new(),
    };
    let refused = submit::submit(submission, &moments).await?.jobs();
    bar.say("running");
    let (nodes, capacity) = plan.nodes;
    let like = sim_nodes::Plan { nodes, capacity, acks: false };
    let nodes = SimNodes::connect(fleet.urls(), &like, &moments).await?;
    moments.until_recorded(plan.jobs - refused, PATIENCE).await?;
    let when_run = memory()?;
    bar.say("resting");
    tokio::time::sleep(plan.rest).await;
    let after = memory()?;
    bar.done();
    let seen = watch.end().await?;
    let most = seen.iter().map(|(_, bytes)| *bytes).max().unwrap_or(before);
    let mut violations = nodes.lost();
    violations.extend(fleet.defects_logged().await);
    Ok(Burst {
        jobs: (plan.jobs - refused, refused),
        memory_mib: [before, most, when_run, after].map(mib),
        memory_over_time: seen.into_iter().map(|(at, bytes)| (at, mib(bytes))).collect(),
        violations,
    })
}

impl Report for Burst {
    fn table(&self) -> String {
        let [before, most, when_run, after] = self.memory_mib.map(|mib| format!("{mib:.0}"));
        let lines = [
            ("jobs that ran, and that were refused".to_owned(), format!("{}, {}", self.jobs.0, self.jobs.1)),
            ("memory before, MiB".to_owned(), before),
            ("most memory, MiB".to_owned(), most),
            ("memory when all had run, MiB".to_owned(), when_run),
            ("memory after the rest, MiB".to_owned(), after),
            ("broken promises".to_owned(), self.violations.len().to_string()),
        ];
        report::with_violations(report::two_columns(&lines), &self.violations)
    }

    fn panels(&self) -> Vec<Panel> {
        let curve = Curve { name: "resident".to_owned(), points: self.memory_over_time.clone() };
        vec![Panel {
            title: "Memory of the instance".to_owned(),
            x: "seconds".to_owned(),
            y: "MiB".to_owned(),
            y_scale: Scale::Linear,
            x_is_tail: false,
            curves: vec![curve],
            marks: Vec::new(),
        }]
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}
