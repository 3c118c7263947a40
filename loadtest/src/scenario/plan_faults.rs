//! Does every plan keep its promises while instances, nodes and servers are killed, frozen, cut off and emptied, and
//! operators steer plans, retry tasks and decide about stages at random instances?
//!
//! Nodes run the stages and keep diaries. When the last fault is healed, the operators bring every plan to its end. Then the
//! events, the checkpoints and the diaries are compared ([`crate::plan_checker`]), and nothing may be left: no unfinished
//! job, no slot that is taken, no lock of a tenant, no node that gets no work.

mod asked;
mod operator_state;
mod operators;
mod reading;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, TryStreamExt as _};
use serde::Serialize;
use testkit::fault_nodes::{Counts, FaultNodes, Wrote};
use testkit::fleet::{Blueprint, Fleet};
use tokio::task::JoinHandle;

use super::remains;
use crate::access::{Access, Role};
use crate::faults::{Fault, Recipe};
use crate::inject::Injector;
use crate::plan_checker::{self, Evidence, Findings};
use crate::report;
use operator_state::OperatorState;
pub(super) use operators::Habits;
use operators::Operator;

/// Within this time the operators bring every plan to its end.
const ENDED_WITHIN: Duration = Duration::from_secs(120);
/// Within this time after that nothing may be left.
const NOTHING_LEFT_WITHIN: Duration = Duration::from_secs(60);
/// The longest time that an operator takes to finish what it has begun.
const STOPPED_WITHIN: Duration = Duration::from_secs(120);
/// Plans that are brought to their ends at once.
const ENDED_AT_ONCE: usize = 8;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides faults, plans and nodes (not their interleaving, which the machine decides).
    pub seed: u64,
    /// How many faults.
    pub faults: usize,
    /// How many instances.
    pub instances: usize,
    /// How many nodes. They are so few that stages wait for slots, also while owners change.
    pub nodes: usize,
    /// How many operators.
    pub operators: usize,
    /// Plans that may be open at once.
    pub plans: usize,
    /// Tasks of each plan.
    pub tasks: usize,
    /// Stages of each task.
    pub stages: usize,
    /// Mean pause of an operator between two deeds.
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
    /// Where the logs of the instances and the diaries of the nodes are kept, if a promise was broken.
    pub logs: Option<PathBuf>,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            seed: rand::random(),
            faults: 6,
            instances: 3,
            nodes: 6,
            operators: 4,
            plans: 20,
            tasks: 4,
            stages: 4,
            pause: Duration::from_millis(250),
            mean_gap: Duration::from_secs(2),
            lease: Duration::from_millis(2_000),
            node_grace: Duration::from_millis(2_000),
            freeze: Duration::from_secs(3),
            secured: false,
            logs: None,
        }
    }
}

/// What was done, and what the checker found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The seed, to run it again.
    pub seed: u64,
    /// How long the operators were at work during faults, in seconds.
    pub seconds: f64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Plans by status.
    pub plans: BTreeMap<String, u64>,
    /// Tasks by status.
    pub tasks: BTreeMap<String, u64>,
    /// What happened to tasks and stages.
    pub happened: BTreeMap<&'static str, u64>,
    /// Requests of the operators, by what was answered.
    pub answers: BTreeMap<String, u64>,
    /// From the last fault's end until every plan had ended, in milliseconds.
    pub ended_ms: u64,
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
        lines.extend(report::counted("plans", &self.plans));
        lines.extend(report::counted("tasks", &self.tasks));
        lines.extend(self.happened.iter().map(|(what, count)| ((*what).to_owned(), count.to_string())));
        lines.extend(report::counted("requests", &self.answers));
        lines.push(("every plan ended after, ms".to_owned(), self.ended_ms.to_string()));
        lines.push(("broken promises".to_owned(), self.violations.len().to_string()));
        report::with_violations(report::two_columns(&lines), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}

/// Runs the plan; `step` is called as each fault begins.
///
/// # Errors
/// Something does not start or answer. Broken promises are in the report, not here.
pub async fn run(plan: &Plan, step: impl Fn(&Fault)) -> Result<Report> {
    let blueprint = Blueprint { redis: true, cuts: true, ..Blueprint::new("worker-queue", plan.instances) }
        .env("FENCEPOST__LEASE__INSTANCE_MS", &plan.lease.as_millis().to_string())
        .env("FENCEPOST__JOBS__NODE_GRACE_MS", &plan.node_grace.as_millis().to_string())
        .env("RUST_LOG", "info,actors=debug,api=debug");
    let access = Access::new(plan.secured)?;
    let fleet = Arc::new(Fleet::build(access.demanded_by(blueprint)).await?);
    let nodes = Counts { plain: plan.nodes, commands: 0 };
    let habits = Habits {
        at_once: plan.plans,
        tasks: plan.tasks,
        stages: plan.stages,
        pause: plan.pause,
        label: None,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let mut load = PlanLoad::start(nodes, plan.operators, habits, fleet.urls(), &access, plan.seed, &stop)?;

    let recipe = Recipe {
        seed: plan.seed,
        faults: plan.faults,
        instances: plan.instances,
        mean_gap: plan.mean_gap,
        lease: plan.lease,
        freeze: plan.freeze,
        redis: true,
        nodes,
    };
    let began = Instant::now();
    let injector = Arc::new(Injector::new(Arc::clone(&fleet), Some(load.nodes())));
    let harmed = injector.carry_out(recipe.schedule(), step).await;
    stop.store(true, Ordering::Relaxed);
    let healing = Instant::now();
    let faults = harmed?;
    let seconds = began.elapsed().as_secs_f64();

    let mut violations = load.end().await?;
    let ended_ms = healing.elapsed().as_millis() as u64;
    let client = access.client(Role::Operator, Duration::from_secs(10))?;
    let nodes = load.nodes();
    let remains =
        remains::until_none(&fleet, &client, &[&nodes], Instant::now(), NOTHING_LEFT_WITHIN).await?;
    violations.extend(remains.for_good);
    let (evidence, Findings { broken, counts }) = load.judge(plan.node_grace).await?;
    violations.extend(broken);
    violations.extend(fleet.defects_logged().await);
    if !violations.is_empty() {
        explain(&fleet, plan, &evidence, &mut violations).await?;
    }
    let tasks = || evidence.plans.iter().flat_map(|story| &story.tasks);
    let answers = load.answers();
    Ok(Report {
        seed: plan.seed,
        seconds,
        faults,
        plans: report::counts(evidence.plans.iter().map(|story| &story.plan.status)),
        tasks: report::counts(tasks().map(|(task, _)| &task.status)),
        happened: counts,
        answers,
        ended_ms,
        violations,
    })
}

/// Operators at work on plans, and the nodes that run the stages.
pub(super) struct PlanLoad {
    nodes: Arc<FaultNodes>,
    shared: Arc<OperatorState>,
    working: Vec<JoinHandle<Result<()>>>,
    habits: Habits,
    seed: u64,
}

impl PlanLoad {
    /// Starts so many nodes and operators, which work until `stop` is set.
    ///
    /// # Errors
    /// A client cannot be set up.
    pub(super) fn start(
        nodes: Counts,
        operators: usize,
        habits: Habits,
        urls: &[String],
        access: &Access,
        seed: u64,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let of_nodes = access.credentials(Role::Node)?;
        let nodes = Arc::new(FaultNodes::start(nodes, habits.label, urls, &of_nodes, seed)?);
        let shared = Arc::new(OperatorState::new(urls, Arc::clone(&nodes), access)?);
        let mut load = Self { nodes, shared, working: Vec::new(), habits, seed };
        let working = (0..operators).map(|number| tokio::spawn(load.operator(number).run(Arc::clone(stop))));
        load.working = working.collect();
        Ok(load)
    }

    /// The nodes, which run other jobs too where there are any.
    pub(super) fn nodes(&self) -> Arc<FaultNodes> {
        Arc::clone(&self.nodes)
    }

    fn operator(&self, number: usize) -> Operator {
        Operator::new(&self.shared, self.seed.rotate_left(23) ^ number as u64, self.habits)
    }

    fn answers(&self) -> BTreeMap<String, u64> {
        self.shared.memory().answers.clone()
    }

    /// Waits for the operators, who were told to stop, and brings every plan to its end; those that do not end.
    ///
    /// # Errors
    /// No instance answers.
    pub(super) async fn end(&mut self) -> Result<Vec<String>> {
        for operator in self.working.drain(..) {
            tokio::time::timeout(STOPPED_WITHIN, operator).await.context("operators finish")???;
        }
        let made = self.shared.memory().made.clone();
        // Once more: what an operator asked for and was not answered may be carried out later.
        let mut left = Vec::new();
        for _ in 0..2 {
            left = futures_util::stream::iter(made.iter().enumerate())
                .map(|(number, made)| {
                    let mut operator = self.operator(usize::MAX - number);
                    async move { anyhow::Ok((made, operator.bring_to_end(made, ENDED_WITHIN).await?)) }
                })
                .buffer_unordered(ENDED_AT_ONCE)
                .try_collect::<Vec<_>>()
                .await?;
        }
        let left = left.into_iter().filter(|(_, has_ended)| !has_ended);
        Ok(left
            .map(|(made, _)| format!("plan {}: it does not end within {ENDED_WITHIN:?}", made.id))
            .collect())
    }

    /// What the instances and the nodes tell, and the promises that it breaks. `grace` is how long a node may be away.
    ///
    /// # Errors
    /// No instance answers.
    pub(super) async fn judge(&self, grace: Duration) -> Result<(Evidence, Findings)> {
        let diaries = self.nodes.diaries().await?.iter().map(|diary| diary.only(true)).collect();
        let evidence = reading::evidence(&self.shared, diaries, grace, self.seed).await?;
        let mut findings = plan_checker::check(&evidence);
        findings.broken.append(&mut self.shared.memory().surprises);
        Ok((evidence, findings))
    }
}

/// What is known of the first plan with a broken promise.
async fn explain(
    fleet: &Fleet,
    plan: &Plan,
    evidence: &Evidence,
    violations: &mut Vec<String>,
) -> Result<()> {
    let is_reported = |id: &str| violations.iter().any(|line| line.contains(id));
    let story = evidence.plans.iter().find(|story| {
        is_reported(&story.plan.id) || story.tasks.iter().any(|(task, _)| is_reported(&task.id))
    });
    if let Some(story) = story {
        violations.push(format!("the plan: {story:#?}"));
        let lines =
            || evidence.diaries.iter().flat_map(|diary| diary.lines.iter().map(|line| (&diary.node, line)));
        let jobs: BTreeSet<_> = lines().filter_map(|(_, line)| job_of(&line.wrote, &story.plan.id)).collect();
        let of = lines().filter(|(_, line)| jobs.iter().any(|job| line.wrote.is_of(job)));
        violations.push(format!("in the diaries: {:#?}", of.collect::<Vec<_>>()));
        violations.extend(jobs.iter().filter_map(|job| Some(format!("a job: {}", evidence.jobs.get(*job)?))));
        violations.push(remains::logged_of(fleet, &story.plan.id).await);
    }
    if let Some(dir) = &plan.logs {
        remains::keep_logs(fleet, dir).await?;
        std::fs::write(dir.join("diaries"), format!("{:#?}", evidence.diaries))?;
        std::fs::write(dir.join("plans"), format!("{:#?}", evidence.plans))?;
    }
    Ok(())
}

/// The job that a node began, if it is a stage of this plan.
fn job_of<'w>(wrote: &'w Wrote, plan: &str) -> Option<&'w str> {
    match wrote {
        Wrote::Began { run, stage: Some(stage), .. } if stage.plan == plan => Some(&run.job),
        _ => None,
    }
}
