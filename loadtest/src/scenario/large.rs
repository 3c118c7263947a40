//! A large cluster, and a command that is run against it: three instances, many nodes, finished and waiting jobs, and a
//! stream of jobs meanwhile. `dashboard/test --large` looks at its pages that way.

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use testkit::fleet::{Blueprint, Fleet};
use testkit::sim_nodes::{self, SimNodes};

use super::jobs::finished;
use crate::moments::Moments;
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::submit::{self, Pace};

/// Waiting jobs of a request, and such requests in flight.
const BATCH: (usize, usize) = (1_000, 4);
/// Jobs that are submitted at once while the command runs, and the pause between.
const STREAM: (usize, Duration) = (10, Duration::from_millis(500));
/// Jobs of the stream at most: an hour of it.
const STREAM_MAX: usize = 72_000;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started.
    pub blueprint: Blueprint,
    /// Finished jobs.
    pub finished: u64,
    /// Waiting jobs, which no node can take.
    pub waiting: usize,
    /// Worker sockets, on the instances in turn.
    pub nodes: usize,
    /// The command and its arguments. It finds the instances' addresses, with commas between, in `FENCEPOST_URLS`.
    pub command: Vec<String>,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Large {
    /// Jobs that ran while the command did.
    pub ran: usize,
    /// How the command ended.
    pub command: String,
    /// Broken promises.
    pub violations: Vec<String>,
}

/// Runs the plan.
///
/// # Errors
/// Something does not start or answer, or the command cannot be run.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Large> {
    bar.say("starting");
    let fleet = Arc::new(Fleet::build(plan.blueprint.clone()).await?);
    let (database, count) = (fleet.database().clone(), plan.finished);
    bar.say(&format!("{count} finished jobs"));
    tokio::task::spawn_blocking(move || finished::fill(&database, count)).await??;
    bar.say(&format!("{} nodes connect", plan.nodes));
    let moments = Moments::new(plan.waiting + STREAM_MAX);
    let like = sim_nodes::Plan { nodes: plan.nodes, capacity: 4, acks: false };
    let nodes = SimNodes::connect(fleet.urls(), &like, &moments).await?;
    bar.say(&format!("{} waiting jobs", plan.waiting));
    let urls = fleet.urls().to_vec();
    let of = move |jobs, batch, connections, fields: &str| submit::Plan {
        urls: urls.clone(),
        jobs,
        batch,
        connections,
        pace: Pace::Closed,
        padding_bytes: 0,
        fields: fields.to_owned(),
    };
    let impossible = ",\"tenant\":\"waiting\",\"requires\":[\"quantum\"]";
    let refused = submit::submit(of(0..plan.waiting, BATCH.0, BATCH.1, impossible), &moments).await?;
    let mut violations = Vec::new();
    if refused.jobs() > 0 {
        violations.push(format!("{} of the waiting jobs were refused", refused.jobs()));
    }

    bar.say(&format!("running {}", plan.command.join(" ")));
    let (is_over, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let stream = {
        let (is_over, ran, moments) = (Arc::clone(&is_over), Arc::clone(&ran), Arc::clone(&moments));
        let first = plan.waiting;
        tokio::spawn(async move {
            for from in (first..first + STREAM_MAX).step_by(STREAM.0) {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                submit::submit(of(from..from + STREAM.0, STREAM.0, 1, ""), &moments).await?;
                ran.fetch_add(STREAM.0, Ordering::Relaxed);
                tokio::time::sleep(STREAM.1).await;
            }
            anyhow::Ok(())
        })
    };
    let (program, arguments) = plan.command.split_first().context("a command")?;
    let status = tokio::process::Command::new(program)
        .args(arguments)
        .env("FENCEPOST_URLS", fleet.urls().join(","))
        .stdin(Stdio::null())
        .status()
        .await
        .with_context(|| format!("running {program}"))?;
    is_over.store(true, Ordering::Relaxed);
    stream.await??;
    bar.done();
    if !status.success() {
        violations.push(format!("the command ended with {status}"));
    }
    violations.extend(nodes.lost());
    violations.extend(fleet.defects_logged().await);
    Ok(Large { ran: ran.load(Ordering::Relaxed), command: status.to_string(), violations })
}

impl Report for Large {
    fn table(&self) -> String {
        let lines = [
            ("the command ended with".to_owned(), self.command.clone()),
            ("jobs that ran meanwhile".to_owned(), self.ran.to_string()),
            ("broken promises".to_owned(), self.violations.len().to_string()),
        ];
        report::with_violations(report::two_columns(&lines), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}
