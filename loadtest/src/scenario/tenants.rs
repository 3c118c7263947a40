//! How long one tenant's single job waits while another has a large backlog: it is given the next slot but one.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use testkit::fleet::{Blueprint, Fleet};
use testkit::sim_nodes::{self, SimNodes};

use crate::figures::Latency;
use crate::moments::{Moments, Step};
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::submit::{self, Pace};

/// Jobs of a request of the backlog, and such requests in flight.
const BATCH: (usize, usize) = (1_000, 4);
/// Between two single jobs.
const SINGLES_EVERY: Duration = Duration::from_millis(50);
/// No job is recorded for so long: something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started.
    pub blueprint: Blueprint,
    /// Waiting jobs of the one tenant.
    pub backlog: usize,
    /// Jobs of the other, one after the other.
    pub singles: usize,
    /// The nodes.
    pub nodes: usize,
    /// Slots of each.
    pub capacity: u32,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Tenants {
    /// Waiting jobs of the one tenant at the beginning, and at the end.
    pub backlog: (usize, usize),
    /// Jobs per second meanwhile.
    pub per_second: f64,
    /// From a single job's submission to its node having it.
    pub there: Latency,
    /// From a single job's submission to its recorded result.
    pub recorded: Latency,
    /// Broken promises.
    pub violations: Vec<String>,
}

/// Runs the plan.
///
/// # Errors
/// Something does not start or answer, or the backlog is done before the last single job.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Tenants> {
    bar.say("starting");
    let fleet = Fleet::build(plan.blueprint.clone()).await?;
    let moments = Moments::new(plan.backlog + plan.singles);
    let like = sim_nodes::Plan { nodes: plan.nodes, capacity: plan.capacity, acks: false };
    bar.say(&format!("a backlog of {}", plan.backlog));
    let submission = |jobs, batch, connections, tenant: &str| submit::Plan {
        urls: fleet.urls().to_vec(),
        jobs,
        batch,
        connections,
        pace: Pace::Closed,
        padding_bytes: 0,
        fields: format!(",\"tenant\":\"{tenant}\""),
    };
    // Nodes come afterwards, so that all of it waits.
    let refused = submit::submit(submission(0..plan.backlog, BATCH.0, BATCH.1, "large"), &moments).await?;
    let backlog = plan.backlog - refused.jobs();
    let nodes = SimNodes::connect(fleet.urls(), &like, &moments).await?;
    moments.until_recorded(1, PATIENCE).await?;
    bar.say("single jobs of another tenant");
    let (began, done) = (Instant::now(), moments.recorded());
    let singles = plan.backlog..plan.backlog + plan.singles;
    for job in singles.clone() {
        submit::submit(submission(job..job + 1, 1, 1, "small"), &moments).await?;
        tokio::time::sleep(SINGLES_EVERY).await;
    }
    let done_meanwhile = moments.recorded() - done;
    let per_second = done_meanwhile as f64 / began.elapsed().as_secs_f64();
    let left = (backlog + plan.singles).saturating_sub(moments.recorded());
    ensure!(left > 0, "the backlog was done before the last single job: ask for a larger one");
    moments.until_recorded(backlog + plan.singles, PATIENCE).await?;
    bar.done();
    let mut violations = nodes.lost();
    if moments.twice() > 0 {
        violations.push(format!("{} steps happened twice", moments.twice()));
    }
    violations.extend(fleet.defects_logged().await);
    Ok(Tenants {
        backlog: (backlog, left),
        per_second,
        there: moments.between(Step::Due, Step::There, singles.clone())?,
        recorded: moments.between(Step::Due, Step::Recorded, singles)?,
        violations,
    })
}

impl Report for Tenants {
    fn table(&self) -> String {
        let rows = [self.there.row("to the node"), self.recorded.row("to the recorded result")];
        let table = report::table(&["a single job", "jobs", "p50 ms", "p99 ms", "max ms"], &rows);
        let (first, last) = self.backlog;
        let lines = [
            ("backlog of the other tenant, at first and at last".to_owned(), format!("{first}, {last}")),
            ("jobs/s meanwhile".to_owned(), format!("{:.0}", self.per_second)),
            ("broken promises".to_owned(), self.violations.len().to_string()),
        ];
        report::with_violations(format!("{table}\n\n{}", report::two_columns(&lines)), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}
