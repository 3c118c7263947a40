//! How fast jobs go from their submission to their recorded result, over real worker sockets, what that costs each process, and
//! how long one job takes when there is no other: beside a bare commit of the same PostgreSQL.
//!
//! The nodes' jobs do nothing, so what is measured is the way there and back.

pub(super) mod finished;
mod report;
mod viewers;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::Serialize;
use testkit::fleet::{Blueprint, Fleet};
use testkit::servers::Database;
use testkit::sim_nodes::{self, SimNodes};

use crate::costs::Costs;
use crate::figures::{Latencies, Latency};
use crate::load::{Schedule, Spread};
use crate::machine::{MachineCounters, MachineUse};
use crate::moments::{Moments, Step};
use crate::progress::Bar;
use crate::statements::{self, StatementCost};
use crate::submit::{self, Pace};
pub use finished::Reads;
use viewers::{OPENED_WITHIN, Viewers};

/// Jobs before anything is measured.
const WARM_UP_JOBS: usize = 4_000;
/// From one idle job to the next, and from one bare commit to the next.
const IDLE_EVERY: Duration = Duration::from_millis(20);
/// Idle jobs and bare commits go in turns of so many each, since the machine changes its speed within seconds.
const IDLE_TURN_JOBS: usize = 100;
/// Loads without open dashboards, and as many with them, in turns. Single rounds differ by a fifth on a shared machine.
const VIEWED_ROUNDS: usize = 11;
/// No job is recorded for so long: something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started.
    pub blueprint: Blueprint,
    /// Its name in tables.
    pub name: String,
    /// How many jobs are measured.
    pub jobs: usize,
    /// How many in one request; 1 is `POST /v1/jobs`.
    pub batch: usize,
    /// Requests in flight.
    pub in_flight: usize,
    /// Jobs per second on a schedule; without one, as fast as answers come.
    pub rate: Option<f64>,
    /// How arrivals are spread over time, with a rate.
    pub arrivals: Spread,
    /// The nodes.
    pub nodes: usize,
    /// Slots of each.
    pub capacity: u32,
    /// Nodes acknowledge before they say the result.
    pub acks: bool,
    /// Jobs one at a time, afterwards.
    pub idle: usize,
    /// Rows of finished jobs that are put there before the same is measured again.
    pub finished: u64,
    /// Dashboards that are open during every second one of several loads.
    pub viewers: usize,
    /// Decides arrivals.
    pub seed: u64,
}

/// One load.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// What it was.
    pub name: String,
    /// Jobs that were recorded.
    pub jobs: usize,
    /// From the first submission to the last recorded result.
    pub per_second: f64,
    /// From when a job was due to its 202.
    pub accepted: Latency,
    /// From when a job was due to its node having it.
    pub there: Latency,
    /// From when a job was due to its node knowing that the result is recorded.
    pub recorded: Latency,
    /// Processor seconds for each 1,000 jobs.
    pub costs: Costs,
    /// What was refused.
    pub refused: BTreeMap<String, usize>,
    /// Statements of the ledger for each second, where PostgreSQL counts.
    pub statements_per_second: f64,
    /// Open dashboards, and the answers that they got for each second.
    pub viewers: (usize, f64),
    /// Statements that took longest.
    pub statements: Vec<StatementCost>,
    /// What the machine did meanwhile, with changes of context for each job.
    pub machine: MachineUse,
}

/// One job at a time, beside bare commits.
#[derive(Debug, Serialize)]
pub struct Idle {
    /// From the submission to the 202.
    pub accepted: Latency,
    /// From the submission to the node having it.
    pub there: Latency,
    /// From the submission to the recorded result.
    pub recorded: Latency,
    /// One row inserted and committed.
    pub bare_commit: Latency,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Jobs {
    /// The seed.
    pub seed: u64,
    /// The nodes, and the slots of each.
    pub nodes: (usize, u32),
    /// Requests in flight.
    pub in_flight: usize,
    /// The loads.
    pub loads: Vec<Measured>,
    /// One job at a time.
    pub idle: Option<Idle>,
    /// Lists and single jobs read, with few finished jobs and with many.
    pub reads: Vec<Reads>,
    /// Broken promises.
    pub violations: Vec<String>,
}

/// Runs the plan.
///
/// # Errors
/// Something does not start, a connection breaks, or jobs are not recorded. Broken promises are in the report.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Jobs> {
    bar.say("starting");
    let fleet = Fleet::build(plan.blueprint.clone()).await?;
    let viewed = if plan.viewers > 0 { 2 * VIEWED_ROUNDS } else { 0 };
    let loads = viewed.max(1) + usize::from(plan.finished > 0);
    let moments = Moments::new(WARM_UP_JOBS + loads * plan.jobs + plan.idle);
    let like = sim_nodes::Plan { nodes: plan.nodes, capacity: plan.capacity, acks: plan.acks };
    let nodes = SimNodes::connect(fleet.urls(), &like, &moments).await?;
    let mut work = Work { plan, fleet: &fleet, moments: &moments, next: 0, refused: 0 };
    work.warm_up().await?;

    bar.say(&plan.name);
    let mut report = Jobs {
        seed: plan.seed,
        nodes: (plan.nodes, plan.capacity),
        in_flight: plan.in_flight,
        loads: if viewed > 0 { work.viewed(bar).await? } else { vec![work.load(&plan.name).await?] },
        idle: None,
        reads: Vec::new(),
        violations: Vec::new(),
    };
    if plan.idle > 0 {
        bar.say("one at a time");
        report.idle = Some(work.idle().await?);
    }
    if plan.finished > 0 {
        let database = fleet.database().clone();
        report.reads.push(finished::reads(&fleet, "few finished jobs").await?);
        bar.say(&format!("putting {} finished jobs there", plan.finished));
        let count = plan.finished;
        tokio::task::spawn_blocking(move || finished::fill(&database, count)).await??;
        let name = format!("{} finished jobs", plan.finished);
        bar.say(&name);
        report.loads.push(work.load(&format!("{}, {name}", plan.name)).await?);
        report.reads.push(finished::reads(&fleet, &name).await?);
    }
    bar.done();
    let asked = work.next - work.refused;
    report.violations = verified(&fleet, &nodes, &moments, asked).await?;
    Ok(report)
}

struct Work<'w> {
    plan: &'w Plan,
    fleet: &'w Fleet,
    moments: &'w Arc<Moments>,
    /// The number of the next job.
    next: usize,
    refused: usize,
}

impl Work<'_> {
    fn numbers(&mut self, jobs: usize) -> Range<usize> {
        let first = self.next;
        self.next += jobs;
        first..self.next
    }

    fn submission(&self, jobs: Range<usize>, pace: Pace) -> submit::Plan {
        submit::Plan {
            urls: self.fleet.urls().to_vec(),
            jobs,
            batch: self.plan.batch,
            connections: self.plan.in_flight,
            pace,
            padding_bytes: 0,
            fields: String::new(),
        }
    }

    async fn until_recorded(&self) -> Result<()> {
        self.moments.until_recorded(self.next - self.refused, PATIENCE).await
    }

    async fn warm_up(&mut self) -> Result<()> {
        let jobs = self.numbers(WARM_UP_JOBS);
        self.refused += submit::submit(self.submission(jobs, Pace::Closed), self.moments).await?.jobs();
        self.until_recorded().await
    }

    async fn load(&mut self, name: &str) -> Result<Measured> {
        let (plan, moments) = (self.plan, self.moments);
        let jobs = self.numbers(plan.jobs);
        let pace = plan.rate.map_or(Pace::Closed, |rate| {
            let requests = rate / plan.batch as f64;
            // A little longer than it takes, so that there is a moment for each.
            let length = Duration::from_secs_f64(plan.jobs as f64 / rate * 1.2 + 1.0);
            Pace::Open(Arc::new(Schedule::new(plan.arrivals, requests, length, plan.seed)))
        });
        statements::forget(self.fleet.database(), plan.blueprint.counting).await?;
        let began = Instant::now();
        let (before, machine) = (Costs::read(self.fleet).await?, MachineCounters::read()?);
        let refused = submit::submit(self.submission(jobs.clone(), pace), moments).await?;
        self.refused += refused.jobs();
        self.until_recorded().await?;
        let recorded = jobs.len() - refused.jobs();
        let machine = MachineCounters::read()?.since(machine, recorded);
        let calls = statements::calls(self.fleet.database(), plan.blueprint.counting).await?;
        let statements_per_second = calls / began.elapsed().as_secs_f64();
        let costs = Costs::read(self.fleet).await?.per_1000(before, recorded);
        Ok(Measured {
            name: name.to_owned(),
            jobs: recorded,
            per_second: recorded as f64 / moments.length(jobs.clone()).as_secs_f64(),
            accepted: moments.between(Step::Due, Step::Accepted, jobs.clone())?,
            there: moments.between(Step::Due, Step::There, jobs.clone())?,
            recorded: moments.between(Step::Due, Step::Recorded, jobs)?,
            costs,
            refused: refused.by,
            statements_per_second,
            viewers: (0, 0.0),
            statements: statements::read(self.fleet.database(), plan.blueprint.counting, recorded).await?,
            machine,
        })
    }

    /// The load without and with open dashboards, in turns.
    async fn viewed(&mut self, bar: &Bar) -> Result<Vec<Measured>> {
        let (plan, mut loads) = (self.plan, Vec::new());
        for round in 1..=VIEWED_ROUNDS {
            bar.say(&format!("round {round}: no dashboard"));
            // As long a pause as before the other.
            tokio::time::sleep(OPENED_WITHIN).await;
            loads.push(self.load(&plan.name).await?);
            bar.say(&format!("round {round}: {} dashboards", plan.viewers));
            let (began, viewers) = (Instant::now(), Viewers::open(self.fleet.urls(), plan.viewers).await?);
            let load = self.load(&format!("{}, {} dashboards", plan.name, plan.viewers)).await?;
            let answers = viewers.close()? as f64 / began.elapsed().as_secs_f64();
            loads.push(Measured { viewers: (plan.viewers, answers), ..load });
        }
        Ok(loads)
    }

    async fn idle(&mut self) -> Result<Idle> {
        let jobs = self.numbers(self.plan.idle);
        let mut bare = Vec::new();
        for first in jobs.clone().step_by(IDLE_TURN_JOBS) {
            let turn = first..(first + IDLE_TURN_JOBS).min(jobs.end);
            // On one connection, as the bare commits are.
            let pace = Pace::Spaced(IDLE_EVERY);
            let one = submit::Plan { batch: 1, connections: 1, ..self.submission(turn.clone(), pace) };
            self.refused += submit::submit(one, self.moments).await?.jobs();
            bare.extend(bare_commits(self.fleet.database(), turn.len()).await?);
        }
        self.until_recorded().await?;
        let moments = self.moments;
        Ok(Idle {
            accepted: moments.between(Step::Due, Step::Accepted, jobs.clone())?,
            there: moments.between(Step::Due, Step::There, jobs.clone())?,
            recorded: moments.between(Step::Due, Step::Recorded, jobs.clone())?,
            bare_commit: Latencies::gather(bare)?.summary(),
        })
    }
}

/// Rows committed one by one, as often as the idle jobs came: how long each took, in microseconds.
pub(super) async fn bare_commits(database: &Database, count: usize) -> Result<Vec<u64>> {
    let database = database.clone();
    tokio::task::spawn_blocking(move || {
        let dir = tempfile::TempDir::with_prefix("fencepost-pgbench-")?;
        let script = dir.path().join("commit.sql");
        database.query("create table bare (id bigserial primary key, payload text not null)")?;
        std::fs::write(&script, "insert into bare (payload) values ('{\"n\":1}');\n")?;
        let rate = (1.0 / IDLE_EVERY.as_secs_f64()).round() as u32;
        let took = database.pgbench_latencies(&script, rate, IDLE_EVERY * count as u32)?;
        database.query("drop table bare")?;
        anyhow::Ok(took)
    })
    .await?
}

/// Every accepted job has one result, and nothing else is there.
async fn verified(fleet: &Fleet, nodes: &SimNodes, moments: &Moments, asked: usize) -> Result<Vec<String>> {
    let database = fleet.database().clone();
    let ask = format!(
        "select (select count(*) from job), count(*) from job_finished \
         where outcome = 'succeeded' and attempt = 1 and lane <> '{}'",
        finished::LANE
    );
    let rows = tokio::task::spawn_blocking(move || database.query(&ask)).await??;
    let counts: Vec<usize> =
        rows.first().context("a row")?.iter().map(|n| n.parse()).collect::<Result<_, _>>()?;
    let mut violations: Vec<_> = nodes.lost().into_iter().map(|why| format!("a node: {why}")).collect();
    if counts != [0, asked] {
        violations.push(format!("unfinished and finished at the first attempt: {counts:?} of {asked}"));
    }
    if moments.twice() > 0 {
        violations.push(format!("{} steps happened twice", moments.twice()));
    }
    violations.extend(fleet.defects_logged().await);
    Ok(violations)
}
