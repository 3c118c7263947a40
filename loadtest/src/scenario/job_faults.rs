//! Does every accepted job end with one result of its newest attempt, while instances, nodes and servers are killed,
//! frozen, cut off and emptied?
//!
//! Clients submit jobs of all kinds at random instances, each under a key, again until it is answered. Nodes run them
//! and keep diaries. When the last fault is healed, everything must be done within a minute, every node be back, and nothing
//! be left: no unfinished job, no slot that is taken, no inbox of the dead.
//!
//! With islands two of the instances reach the others by the ledger alone, and nodes connect to all of them.

mod clients;
pub mod upgrade;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, TryStreamExt as _};
use serde::Serialize;
use serde_json::Value;
use testkit::fault_nodes::{Counts, FaultNodes};
use testkit::fleet::{Blueprint, Fleet};
use tokio::task::JoinHandle;

use super::remains;
use crate::access::{Access, Role};
use crate::faults::{Fault, Recipe};
use crate::inject::Injector;
use crate::job_checker::{self, Evidence};
use crate::report;
use clients::{Findings, Submitter, submit_again};

/// Within this time everything must be done, by itself, without a restart.
const HEALED_WITHIN: Duration = Duration::from_secs(60);
/// Jobs that are read at once in the end.
const READS_AT_ONCE: usize = 16;
/// Lines of what was left last that are shown.
const LAST_SHOWN: usize = 5;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides faults, jobs and nodes (not their interleaving, which the machine decides).
    pub seed: u64,
    /// How many faults.
    pub faults: usize,
    /// How many instances.
    pub instances: usize,
    /// The nodes.
    pub nodes: Counts,
    /// How many clients submit jobs.
    pub clients: usize,
    /// Mean pause of a client between two submissions.
    pub pause: Duration,
    /// Mean time from one fault to the next.
    pub mean_gap: Duration,
    /// Length of an instance's lease.
    pub lease: Duration,
    /// How long a node whose socket was closed may take to come back.
    pub node_grace: Duration,
    /// How long PostgreSQL is frozen when it is.
    pub freeze: Duration,
    /// Over TLS, and with tokens.
    pub secured: bool,
    /// With two more instances: one without Redis, and one on another.
    pub islands: bool,
    /// Where the logs of the instances and the diaries of the nodes are kept, if a promise was broken.
    pub logs: Option<PathBuf>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: rand::random(),
            faults: 30,
            instances: 3,
            nodes: Counts { plain: 10, commands: 2 },
            clients: 4,
            pause: Duration::from_millis(200),
            mean_gap: Duration::from_millis(700),
            lease: Duration::from_millis(2_000),
            node_grace: Duration::from_millis(2_000),
            freeze: Duration::from_secs(3),
            secured: false,
            islands: false,
            logs: None,
        }
    }
}

/// What was done, and what the checker found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The seed, to run it again.
    pub seed: u64,
    /// How long jobs were submitted, in seconds.
    pub seconds: f64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Jobs by outcome.
    pub jobs: BTreeMap<String, u64>,
    /// Attempts that are over, by how they ended.
    pub attempts: BTreeMap<String, u64>,
    /// Sockets of nodes, by the code that they were closed with.
    pub closes: BTreeMap<u16, u64>,
    /// From the last fault's end until everything was done and nothing was left, in milliseconds.
    pub healed_ms: u64,
    /// What was left last before that.
    pub healed_last: Vec<String>,
    /// Broken promises. Empty is what we want.
    pub violations: Vec<String>,
}

impl report::Report for Report {
    fn table(&self) -> String {
        let mut lines = vec![
            ("seed".to_owned(), self.seed.to_string()),
            ("seconds".to_owned(), format!("{:.1}", self.seconds)),
        ];
        lines.extend(report::counted("faults", &self.faults));
        lines.extend(report::counted("jobs", &self.jobs));
        lines.extend(report::counted("attempts", &self.attempts));
        lines.extend(report::counted("sockets closed with", &self.closes));
        lines.push(("healed after, ms".to_owned(), self.healed_ms.to_string()));
        lines.push(("broken promises".to_owned(), self.violations.len().to_string()));
        let mut table = report::two_columns(&lines);
        table.extend(self.healed_last.iter().take(LAST_SHOWN).map(|left| format!("\n  healed last: {left}")));
        report::with_violations(table, &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}

/// Runs the plan; `step` is called as each fault begins.
///
/// # Errors
/// Something does not start. Broken promises are in the report, not here.
pub async fn run(plan: &Plan, step: impl Fn(&Fault)) -> Result<Report> {
    let blueprint = Blueprint {
        redis: true,
        cuts: true,
        islands: plan.islands,
        ..Blueprint::new("worker-queue", plan.instances)
    };
    let blueprint = blueprint
        .env("FENCEPOST__LEASE__INSTANCE_MS", &plan.lease.as_millis().to_string())
        .env("FENCEPOST__JOBS__NODE_GRACE_MS", &plan.node_grace.as_millis().to_string())
        .env("RUST_LOG", "info,actors=debug,api=debug");
    let access = Access::new(plan.secured)?;
    let fleet = Arc::new(Fleet::build(access.demanded_by(blueprint)).await?);
    let of_nodes = access.credentials(Role::Node)?;
    let fault_nodes = Arc::new(FaultNodes::start(plan.nodes, None, fleet.urls(), &of_nodes, plan.seed)?);
    let stop = Arc::new(AtomicBool::new(false));
    let submitting = (0..plan.clients).map(|number| {
        let submitter = Submitter::new(number, plan.clients, plan.seed, fleet.urls(), plan.pause, &access)?;
        Ok(tokio::spawn(submitter.run(Arc::clone(&stop))))
    });
    let submitting = submitting.collect::<Result<Vec<_>>>()?;

    let recipe = Recipe {
        seed: plan.seed,
        faults: plan.faults,
        instances: fleet.urls().len(),
        mean_gap: plan.mean_gap,
        lease: plan.lease,
        freeze: plan.freeze,
        redis: true,
        nodes: plan.nodes,
    };
    let began = Instant::now();
    let injector = Arc::new(Injector::new(Arc::clone(&fleet), Some(Arc::clone(&fault_nodes))));
    let harmed = injector.carry_out(recipe.schedule(), step).await;
    stop.store(true, Ordering::Relaxed);
    let healing = Instant::now();
    let faults = harmed?;
    let seconds = began.elapsed().as_secs_f64();

    let Judged { evidence, healed_ms, healed_last, mut violations } =
        judge(&fleet, &access, &[&fault_nodes], submitting, healing).await?;
    if !violations.is_empty() {
        explain(&fleet, plan, &evidence, &mut violations).await?;
    }
    let attempts = evidence.jobs.values().flat_map(|job| job["attempts"].as_array()).flatten();
    Ok(Report {
        seed: plan.seed,
        seconds,
        faults,
        jobs: report::counts(evidence.jobs.values().map(outcome)),
        attempts: report::counts(attempts.map(|past| past["state"].as_str().unwrap_or("none"))),
        closes: closes(&evidence),
        healed_ms,
        healed_last,
        violations,
    })
}

/// What was found when all was over.
struct Judged {
    evidence: Evidence,
    healed_ms: u64,
    healed_last: Vec<String>,
    violations: Vec<String>,
}

/// Waits until all that was accepted is done and nothing is left, and verifies it.
async fn judge(
    fleet: &Arc<Fleet>,
    access: &Access,
    fault_nodes: &[&FaultNodes],
    submitting: Vec<JoinHandle<Findings>>,
    healing: Instant,
) -> Result<Judged> {
    let operator = access.client(Role::Operator, Duration::from_secs(10))?;
    // Keys count per token.
    let caller = access.client(Role::Caller, Duration::from_secs(10))?;
    let (mut accepted, mut sent, mut violations) = (Vec::new(), Vec::new(), Vec::new());
    for client in submitting {
        let client = tokio::time::timeout(HEALED_WITHIN * 2, client).await.context("all is accepted")??;
        accepted.extend(client.accepted);
        sent.extend(client.sent);
        violations.extend(client.surprises);
    }
    let remains = remains::until_none(fleet, &operator, fault_nodes, healing, HEALED_WITHIN).await?;
    violations.extend(remains.for_good);
    let healed_ms = healing.elapsed().as_millis() as u64;

    let jobs: HashMap<_, _> = futures_util::stream::iter(&accepted)
        .map(async |job| {
            let url =
                format!("{}/v1/jobs/{}", fleet.urls()[job.number as usize % fleet.urls().len()], job.id);
            anyhow::Ok((job.id.clone(), operator.get(&url).await?))
        })
        .buffer_unordered(READS_AT_ONCE)
        .try_collect()
        .await?;
    violations.extend(submit_again(fleet, &caller, &sent).await?);
    violations.extend(remains::rows(fleet, accepted.len()).await?);
    let mut diaries = Vec::new();
    for nodes in fault_nodes {
        diaries.extend(nodes.diaries().await?.iter().map(|diary| diary.only(false)));
    }
    let evidence = Evidence { accepted, jobs, diaries };
    violations.extend(job_checker::check(&evidence));
    violations.extend(fleet.defects_logged().await);
    Ok(Judged { evidence, healed_ms, healed_last: remains.last, violations })
}

/// What is known of the jobs that the first broken promise names.
async fn explain(
    fleet: &Fleet,
    plan: &Plan,
    evidence: &Evidence,
    violations: &mut Vec<String>,
) -> Result<()> {
    let first = violations.first().cloned().unwrap_or_default();
    for id in evidence.jobs.keys().filter(|id| first.contains(id.as_str())) {
        violations.push(format!("the job: {}", evidence.jobs[id]));
        let lines =
            evidence.diaries.iter().flat_map(|diary| diary.lines.iter().map(|line| (&diary.node, line)));
        let of = lines.filter(|(_, line)| line.wrote.is_of(id));
        violations.push(format!("in the diaries: {:?}", of.collect::<Vec<_>>()));
        violations.push(remains::logged_of(fleet, id).await);
    }
    if let Some(dir) = &plan.logs {
        remains::keep_logs(fleet, dir).await?;
        std::fs::write(dir.join("diaries"), format!("{:#?}", evidence.diaries))?;
    }
    Ok(())
}

fn outcome(job: &Value) -> &str {
    job["outcome"].as_str().unwrap_or("none")
}

fn closes(evidence: &Evidence) -> BTreeMap<u16, u64> {
    let mut closes = BTreeMap::new();
    for (code, count) in evidence.diaries.iter().flat_map(|diary| &diary.closes) {
        *closes.entry(*code).or_default() += count;
    }
    closes
}
