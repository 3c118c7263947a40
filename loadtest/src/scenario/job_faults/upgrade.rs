//! Does every promise hold while the instances of one release are replaced one by one by those of the next, and then by
//! those of the first again?
//!
//! Clients submit jobs (in sessions and without), grant and settle nonces, and take ids of each kind, and operators make and
//! steer plans, all at random instances. A step follows when all instances see the same ring, and work went on after the step
//! before. In the end the checkers of the fault runs judge.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::fault_nodes::{Counts, FaultNodes};
use testkit::fleet::{Blueprint, Fleet};
use testkit::http::Client;

use super::clients::Submitter;
use super::{Judged, judge, outcome};
use crate::access::{Access, Role};
use crate::caller::Caller;
use crate::checker::{self, Violation};
use crate::history::History;
use crate::owner::Request;
use crate::plan_checker::Findings;
use crate::report;
use crate::scenario::faults::{settle_down, watch_tokens};
use crate::scenario::plan_faults::{Habits, PlanLoad};

const SIGNERS: usize = 6;
/// Requests about nonces, and numbers that callers got, after each step at least.
const WORK_BETWEEN: usize = 40;
/// How long one step and the work after it may take.
const STEP_LIMIT: Duration = Duration::from_secs(90);
const SEGMENT: &str = "/v1/ids/segments/rolling";
const SEQUENCE: &str = "/v1/ids/sequences/rolling";
/// What ids are asked for, and how many at once.
const IDS: [(&str, &str); 3] = [
    ("snowflake", "/v1/ids/snowflake?count=20"),
    ("segment", "/v1/ids/segments/rolling?count=7"),
    ("sequence", "/v1/ids/sequences/rolling?count=3"),
];

/// Nodes with the label of stages, which alone run these. They run other jobs too.
const PLAN_NODES: Counts = Counts { plain: 4, commands: 0 };
/// What plans are like, and how many there are.
const HABITS: Habits =
    Habits { at_once: 6, tasks: 2, stages: 3, pause: Duration::from_millis(300), label: Some("stages") };
/// How long an instance waits by default for a node that is away.
const NODE_GRACE: Duration = Duration::from_secs(30);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Decides requests and jobs (not their interleaving, which the machine decides).
    pub seed: u64,
    /// The binary that the instances run first and last.
    pub from: PathBuf,
    /// The binary that each runs meanwhile.
    pub to: PathBuf,
    /// How many instances.
    pub instances: usize,
    /// The nodes.
    pub nodes: Counts,
    /// How many clients of each kind.
    pub clients: usize,
    /// Mean pause of a client between two submissions of jobs.
    pub pause: Duration,
    /// With a token for each role. Instances of two releases then forward nothing to each other: clients follow the owner's
    /// address.
    pub tokens: bool,
    /// Variables that each instance is started with.
    pub env: Vec<(String, String)>,
}

impl Plan {
    /// From one binary to the other and back.
    #[must_use]
    pub fn new(from: PathBuf, to: PathBuf) -> Self {
        Self {
            seed: rand::random(),
            from,
            to,
            instances: 3,
            nodes: Counts { plain: 5, commands: 1 },
            clients: 2,
            pause: Duration::from_millis(100),
            tokens: false,
            env: Vec::new(),
        }
    }
}

/// What was done, and what the checkers found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The seed, to run it again.
    pub seed: u64,
    /// How long clients ran, in seconds.
    pub seconds: f64,
    /// The versions that the instances named, after each step.
    pub versions: Vec<Vec<String>>,
    /// Jobs by outcome.
    pub jobs: BTreeMap<String, u64>,
    /// Plans by status.
    pub plans: BTreeMap<String, u64>,
    /// Requests about nonces that were answered 2xx.
    pub nonce_requests: usize,
    /// Ids of each kind.
    pub ids: BTreeMap<&'static str, usize>,
    /// Broken promises. Empty is what we want.
    pub violations: Vec<String>,
}

impl report::Report for Report {
    fn table(&self) -> String {
        let mut lines = vec![
            ("seed".to_owned(), self.seed.to_string()),
            ("seconds".to_owned(), format!("{:.1}", self.seconds)),
        ];
        for (step, versions) in self.versions.iter().enumerate() {
            lines.push((format!("versions after step {step}"), versions.join(", ")));
        }
        lines.extend(report::counted("jobs", &self.jobs));
        lines.extend(report::counted("plans", &self.plans));
        lines.push(("nonce requests answered".to_owned(), self.nonce_requests.to_string()));
        lines.extend(report::counted("ids", &self.ids));
        lines.push(("broken promises".to_owned(), self.violations.len().to_string()));
        report::with_violations(report::two_columns(&lines), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}

/// Runs the plan; `step` is called as each instance is replaced.
///
/// # Errors
/// Something does not start or stop, or no work goes on. Broken promises are in the report, not here.
pub async fn run(plan: &Plan, step: impl Fn(usize, &str)) -> Result<Report> {
    let mut blueprint = Blueprint {
        redis: true,
        binary: Some(plan.from.clone()),
        ..Blueprint::new("worker-queue", plan.instances)
    };
    blueprint.env.clone_from(&plan.env);
    let access = if plan.tokens { Access::with_tokens() } else { Access::open() };
    let fleet = Arc::new(Fleet::build(access.demanded_by(blueprint)).await?);
    let client = access.client(Role::Operator, Duration::from_secs(10))?;
    for (path, body) in [(SEGMENT, json!({ "step": 1_000 })), (SEQUENCE, json!({}))] {
        let request = Request { method: "PUT", path, key: None, body: Some(&body) };
        let made = request.ask(&client, &fleet.urls()[0]).await?;
        ensure!(made.status == 200, "PUT {path}: {}", made.text);
    }
    let nodes = Arc::new(FaultNodes::start(
        plan.nodes,
        None,
        fleet.urls(),
        &access.credentials(Role::Node)?,
        plan.seed,
    )?);
    let stop = Arc::new(AtomicBool::new(false));
    let operators = plan.clients;
    let urls = fleet.urls();
    let mut plans = PlanLoad::start(PLAN_NODES, operators, HABITS, urls, &access, plan.seed, &stop)?;
    let watching = tokio::spawn(watch_tokens(Arc::clone(&fleet), Arc::clone(&stop)));
    let history = Arc::new(History::default());
    let signers: Arc<[String]> =
        (0..SIGNERS).map(|index| format!("eip155:31337:0x{index:040x}")).collect::<Vec<_>>().into();
    let taken = Arc::new(AtomicUsize::new(0));
    let (mut submitting, mut calling, mut taking) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..plan.clients {
        let submitter = Submitter::new(number, plan.clients, plan.seed, urls, plan.pause, &access)?;
        submitting.push(tokio::spawn(submitter.run(Arc::clone(&stop))));
        let caller = Caller::new(number, plan.seed, urls, &signers, Arc::clone(&history), &access)?;
        calling.push(tokio::spawn(caller.run(Arc::clone(&stop))));
        let taker = IdTaker::new(number, plan.seed, urls, Arc::clone(&taken), &access)?;
        taking.push(tokio::spawn(taker.run(Arc::clone(&stop))));
    }
    let work =
        Work { fleet: Arc::clone(&fleet), client: client.clone(), history: Arc::clone(&history), taken };

    let began = Instant::now();
    let rolled = roll(plan, &work, step).await;
    stop.store(true, Ordering::Relaxed);
    let healing = Instant::now();
    let seconds = began.elapsed().as_secs_f64();
    for caller in calling {
        caller.await?;
    }
    let mut ids = Taken::default();
    for taker in taking {
        ids.add(taker.await?);
    }
    let tokens = watching.await?;
    let versions = rolled?;

    let unended = plans.end().await?;
    let Judged { evidence, mut violations, .. } =
        judge(&fleet, &access, &[&nodes, &plans.nodes()], submitting, healing).await?;
    let tables = settle_down(&fleet, &client, &history).await?;
    let records = history.records();
    violations.extend(checker::check(&records, &tokens, &tables).iter().map(Violation::to_string));
    violations.extend(ids.twice());
    violations.extend(ids.surprises);
    violations.extend(unended);
    let (of_plans, Findings { broken, .. }) = plans.judge(NODE_GRACE).await?;
    violations.extend(broken);
    Ok(Report {
        seed: plan.seed,
        seconds,
        versions,
        jobs: report::counts(evidence.jobs.values().map(outcome)),
        plans: report::counts(of_plans.plans.iter().map(|story| &story.plan.status)),
        nonce_requests: records.iter().filter(|record| record.answer.is_success()).count(),
        ids: ids.numbers.iter().map(|(kind, numbers)| (*kind, numbers.len())).collect(),
        violations,
    })
}

/// All instances to the new binary, one by one, and back; the versions after each step.
async fn roll(plan: &Plan, work: &Work, step: impl Fn(usize, &str)) -> Result<Vec<Vec<String>>> {
    let mut versions = vec![work.goes_on().await?];
    for (binary, to) in [(&plan.to, "the new release"), (&plan.from, "the old release")] {
        for index in 0..plan.instances {
            step(index, to);
            work.fleet.replace_binary(index, binary).await.with_context(|| format!("{index} to {to}"))?;
            versions.push(work.goes_on().await.with_context(|| format!("after {index} went to {to}"))?);
        }
    }
    Ok(versions)
}

/// What goes on beside the steps.
struct Work {
    fleet: Arc<Fleet>,
    client: Client,
    history: Arc<History>,
    taken: Arc<AtomicUsize>,
}

impl Work {
    /// Waits until all instances are one cluster and work went on since; the versions of the instances.
    async fn goes_on(&self) -> Result<Vec<String>> {
        let give_up = Instant::now() + STEP_LIMIT;
        let versions = loop {
            if let Some(versions) = self.versions_of_one_cluster().await {
                break versions;
            }
            ensure!(Instant::now() < give_up, "the instances are no cluster after {STEP_LIMIT:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        let done = || {
            let records = self.history.records();
            let nonces = records.iter().filter(|record| record.answer.is_success()).count();
            (nonces, self.taken.load(Ordering::Relaxed))
        };
        let before = done();
        loop {
            let now = done();
            if now.0 >= before.0 + WORK_BETWEEN && now.1 >= before.1 + WORK_BETWEEN {
                return Ok(versions);
            }
            ensure!(Instant::now() < give_up, "work does not go on: from {before:?} to {now:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn versions_of_one_cluster(&self) -> Option<Vec<String>> {
        let urls = self.fleet.urls();
        let mut versions = Vec::new();
        let mut rings = Vec::new();
        for url in urls {
            let cluster = self.client.get(&format!("{url}/v1/cluster")).await.ok()?;
            let instances = cluster["instances"].as_array()?.clone();
            if instances.len() != urls.len() || instances.iter().any(|one| one["on_ring"] != true) {
                return None;
            }
            rings.push(cluster["ring_version"].clone());
            let of = |url: &String| instances.iter().find(|one| one["url"] == url.as_str());
            versions = urls.iter().filter_map(|url| Some(of(url)?["version"].as_str()?.to_owned())).collect();
        }
        (rings.iter().all(|ring| *ring == rings[0]) && versions.len() == urls.len()).then_some(versions)
    }
}

/// Takes ids of each kind, at random instances.
struct IdTaker {
    client: Client,
    urls: Vec<String>,
    dice: StdRng,
    taken: Arc<AtomicUsize>,
}

/// What takers got.
#[derive(Default)]
struct Taken {
    numbers: BTreeMap<&'static str, Vec<String>>,
    surprises: Vec<String>,
}

impl Taken {
    fn add(&mut self, other: Self) {
        for (kind, numbers) in other.numbers {
            self.numbers.entry(kind).or_default().extend(numbers);
        }
        self.surprises.extend(other.surprises);
    }

    fn twice(&self) -> Vec<String> {
        let mut twice = Vec::new();
        for (kind, numbers) in &self.numbers {
            let mut times: HashMap<&str, usize> = HashMap::new();
            numbers.iter().for_each(|number| *times.entry(number).or_default() += 1);
            let again = times.into_iter().filter(|(_, times)| *times > 1);
            twice.extend(again.map(|(number, times)| format!("{kind} {number} was given {times} times")));
        }
        twice
    }
}

impl IdTaker {
    fn new(
        number: usize,
        seed: u64,
        urls: &[String],
        taken: Arc<AtomicUsize>,
        access: &Access,
    ) -> Result<Self> {
        let dice = StdRng::seed_from_u64(seed.rotate_left(31) ^ number as u64);
        let client = access.client(Role::Caller, Duration::from_secs(10))?;
        Ok(Self { client, urls: urls.to_vec(), dice, taken })
    }

    async fn run(mut self, stop: Arc<AtomicBool>) -> Taken {
        let mut all = Taken::default();
        while !stop.load(Ordering::Relaxed) {
            let (kind, path) = IDS[self.dice.random_range(0..IDS.len())];
            let base = &self.urls[self.dice.random_range(0..self.urls.len())];
            match (Request { method: "GET", path, key: None, body: None }).ask(&self.client, base).await {
                Ok(reply) if reply.status == 200 => {
                    let ids: Vec<_> = reply.body["ids"].as_array().into_iter().flatten().map(text).collect();
                    if ids.is_empty() {
                        all.surprises.push(format!("GET {path}: {}", reply.text));
                    }
                    self.taken.fetch_add(ids.len(), Ordering::Relaxed);
                    all.numbers.entry(kind).or_default().extend(ids);
                }
                Ok(reply) if matches!(reply.status, 429 | 503) && reply.retry_after.is_some() => {}
                Ok(reply) => all.surprises.push(format!("GET {path}: {} {}", reply.status, reply.text)),
                // The instance is on its way down or up. What it may have given, nobody has.
                Err(_) => {}
            }
            tokio::time::sleep(Duration::from_millis(self.dice.random_range(5..60))).await;
        }
        all
    }
}

fn text(id: &Value) -> String {
    id.as_str().map_or_else(|| id.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_two_takers_got_is_found() {
        let of = |kind: &'static str, ids: &[&str]| Taken {
            numbers: [(kind, ids.iter().map(|id| (*id).to_owned()).collect())].into(),
            surprises: Vec::new(),
        };
        let mut all = of("sequence", &["1", "2"]);
        all.add(of("segment", &["1"]));
        assert_eq!(all.twice(), Vec::<String>::new());
        all.add(of("sequence", &["2"]));
        assert_eq!(all.twice(), ["sequence 2 was given 2 times"]);
    }
}
