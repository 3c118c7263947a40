//! How fast plans go: many at once, with stages that do nothing; how long it takes to make a large plan, and how long to
//! change the state of a task while nothing else happens. All of it again among many plans that ended long ago.
//!
//! The nodes answer at once, so what is measured is the way from stage to stage.

mod load;
mod report;

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use testkit::fleet::{Blueprint, Fleet};
use testkit::instance::{Instance, Setup};
use testkit::sim_nodes::{self, SimNodes};

use super::jobs;
use crate::costs::Costs;
use crate::figures::{Latencies, Latency};
use crate::load::Spread;
use crate::moments::Moments;
use crate::progress::Bar;
use crate::statements::{self, StatementCost};
use load::Work;

/// Tasks of a large plan.
const LARGE_PLAN_TASKS: usize = 100;
/// Plans that ended long ago are made by so many connections.
const HISTORY_CONNECTIONS: usize = 64;
/// How long the ledger may take to be quiet again after them.
const SETTLES_IN: Duration = Duration::from_secs(5);
/// The jobs that are run beside: their requests in flight, their nodes, and the slots of each.
const JOBS_IN_FLIGHT: usize = 64;
const JOBS_NODES: (usize, u32) = (4, 25);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started: one instance.
    pub blueprint: Blueprint,
    /// On SQLite in place of PostgreSQL.
    pub sqlite: bool,
    /// Plans at once.
    pub plans: usize,
    /// Tasks of each, all of which may run at once.
    pub tasks: usize,
    /// Stages of each task.
    pub stages: usize,
    /// Requests in flight that make plans.
    pub in_flight: usize,
    /// Large plans that are made one at a time.
    pub large: usize,
    /// Changes of a task's state, one at a time.
    pub changes: usize,
    /// Finished plans that are made before the same is measured again.
    pub history: usize,
    /// Jobs that are run afterwards, to compare; 0 leaves them out.
    pub beside_jobs: usize,
    /// The nodes.
    pub nodes: usize,
    /// Slots of each.
    pub capacity: u32,
    /// Decides the arrivals of the jobs.
    pub seed: u64,
}

/// One round.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// What it was.
    pub name: String,
    /// Stages that were run.
    pub stages: usize,
    /// From the first request to the last stage that is known to be recorded, in seconds.
    pub seconds: f64,
    /// Stages per second.
    pub per_second: f64,
    /// From the request to the answer 201, for the plans of the load.
    pub made: Latency,
    /// The same for a plan of [`LARGE_PLAN_TASKS`] tasks, one at a time.
    pub large: Latency,
    /// From the request to the answer, for a task that is paused or resumed, one at a time.
    pub changed: Latency,
    /// Processor seconds for each 1,000 stages, on PostgreSQL.
    pub costs: Option<Costs>,
    /// Statements that took longest, with PostgreSQL's milliseconds and calls for each 1,000 stages.
    pub statements: Vec<StatementCost>,
}

/// Jobs of the same machine in the same run.
#[derive(Debug, Serialize)]
pub struct Beside {
    /// Jobs per second.
    pub jobs_per_second: f64,
    /// Stages per second of the first round, as a part of that.
    pub ratio: f64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Plans {
    /// Where the ledger was.
    pub ledger: &'static str,
    /// Plans, tasks of each, stages of each task.
    pub size: (usize, usize, usize),
    /// The rounds.
    pub rounds: Vec<Measured>,
    /// One row inserted and committed by the same PostgreSQL, one at a time.
    pub bare_commit: Option<Latency>,
    /// The jobs.
    pub beside: Option<Beside>,
    /// Broken promises.
    pub violations: Vec<String>,
}

/// Where it takes place.
enum Place {
    Postgres(Box<Fleet>),
    Sqlite(Box<Instance>),
}

impl Place {
    async fn open(plan: &Plan) -> Result<Self> {
        if !plan.sqlite {
            return Ok(Self::Postgres(Box::new(Fleet::build(plan.blueprint.clone()).await?)));
        }
        let setup = Setup::in_mode("worker-queue")?.env("FENCEPOST__LOG__FILTER", "warn");
        Ok(Self::Sqlite(Box::new(setup.start().await?)))
    }

    fn url(&self) -> &str {
        match self {
            Self::Postgres(fleet) => &fleet.urls()[0],
            Self::Sqlite(instance) => instance.url(),
        }
    }

    async fn costs(&self) -> Result<Option<Costs>> {
        match self {
            Self::Postgres(fleet) => Ok(Some(Costs::read(fleet).await?)),
            Self::Sqlite(_) => Ok(None),
        }
    }

    async fn forget_statements(&self, counting: bool) -> Result<()> {
        match self {
            Self::Postgres(fleet) => statements::forget(fleet.database(), counting).await,
            Self::Sqlite(_) => Ok(()),
        }
    }

    async fn statements(&self, counting: bool, stages: usize) -> Result<Vec<StatementCost>> {
        match self {
            Self::Postgres(fleet) => statements::read(fleet.database(), counting, stages).await,
            Self::Sqlite(_) => Ok(Vec::new()),
        }
    }

    async fn defects(&self) -> Vec<String> {
        match self {
            Self::Postgres(fleet) => fleet.defects_logged().await,
            Self::Sqlite(instance) => instance.defects_logged(),
        }
    }
}

/// Runs the plan.
///
/// # Errors
/// Something does not start or answer, or stages are not run. Broken promises are in the report.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Plans> {
    bar.say("starting");
    let place = Place::open(plan).await?;
    let rounds = 1 + usize::from(plan.history > 0);
    let moments = Moments::new(rounds * plan.plans * plan.tasks * plan.stages + plan.history);
    let like = sim_nodes::Plan { nodes: plan.nodes, capacity: plan.capacity, acks: false };
    let nodes = SimNodes::connect(&[place.url().to_owned()], &like, &moments).await?;
    let mut work = Work::new(place.url(), &moments)?;
    let mut report = Plans {
        ledger: if plan.sqlite { "sqlite" } else { "postgres" },
        size: (plan.plans, plan.tasks, plan.stages),
        rounds: vec![round(plan, &place, &mut work, "plans", bar).await?],
        bare_commit: None,
        beside: None,
        violations: Vec::new(),
    };
    if plan.history > 0 {
        bar.say(&format!("making {} finished plans", plan.history));
        work.load((plan.history, 1, 1), HISTORY_CONNECTIONS).await?;
        tokio::time::sleep(SETTLES_IN).await;
        let name = format!("among {} finished plans", plan.history);
        report.rounds.push(round(plan, &place, &mut work, &name, bar).await?);
    }
    report.violations = work.violations;
    report.violations.extend(nodes.lost().into_iter().map(|why| format!("a node: {why}")));
    if moments.twice() > 0 {
        report.violations.push(format!("{} stages were run twice", moments.twice()));
    }
    report.violations.extend(place.defects().await);
    if let Place::Postgres(fleet) = &place {
        report.bare_commit =
            Some(Latencies::gather(jobs::bare_commits(fleet.database(), plan.changes).await?)?.summary());
    }
    drop((nodes, place));
    if plan.beside_jobs > 0 {
        report.beside = Some(beside(plan, &mut report, bar).await?);
    }
    bar.done();
    Ok(report)
}

async fn round(plan: &Plan, place: &Place, work: &mut Work, name: &str, bar: &Bar) -> Result<Measured> {
    bar.say(name);
    let (size, counting) = ((plan.plans, plan.tasks, plan.stages), plan.blueprint.counting);
    place.forget_statements(counting).await?;
    let before = place.costs().await?;
    let load = work.load(size, plan.in_flight).await?;
    let after = place.costs().await?;
    let stages = plan.plans * plan.tasks * plan.stages;
    let statements = place.statements(counting, stages).await?;
    bar.say(&format!("{name}: large plans"));
    let large = work.large(plan.large, LARGE_PLAN_TASKS, plan.stages).await?;
    bar.say(&format!("{name}: changes of an idle plan"));
    let changed = work.changes(plan.changes).await?;
    Ok(Measured {
        name: name.to_owned(),
        stages,
        seconds: load.length.as_secs_f64(),
        per_second: stages as f64 / load.length.as_secs_f64(),
        made: load.made,
        large,
        changed,
        costs: after.zip(before).map(|(after, before)| after.per_1000(before, stages)),
        statements,
    })
}

/// The load of the scenario `jobs`.
async fn beside(plan: &Plan, report: &mut Plans, bar: &Bar) -> Result<Beside> {
    let jobs = jobs::Plan {
        blueprint: plan.blueprint.clone(),
        name: "jobs beside".to_owned(),
        jobs: plan.beside_jobs,
        batch: 1,
        in_flight: JOBS_IN_FLIGHT,
        rate: None,
        arrivals: Spread::Poisson,
        nodes: JOBS_NODES.0,
        capacity: JOBS_NODES.1,
        acks: false,
        idle: 0,
        finished: 0,
        viewers: 0,
        seed: plan.seed,
    };
    let came = jobs::run(&jobs, bar).await?;
    report.violations.extend(came.violations);
    let jobs_per_second = came.loads[0].per_second;
    Ok(Beside { jobs_per_second, ratio: report.rounds[0].per_second / jobs_per_second })
}
