//! How fast conversations go: many sessions, each with a client's socket that keeps some jobs unanswered, from a job's
//! sending to its result at the client. Each client sees every result once, and in order where its session has one.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures_util::{SinkExt as _, StreamExt as _};
use serde::{Deserialize, Serialize};
use serde_json::json;
use testkit::fleet::{Blueprint, Fleet};
use testkit::http::Client;
use testkit::sim_nodes::{self, SimNodes};
use tokio::task::JoinSet;
use tokio_tungstenite::connect_async_with_config;
use tokio_tungstenite::tungstenite::Message;

use crate::costs::Costs;
use crate::figures::{Latencies, Latency};
use crate::machine::{MachineCounters, MachineUse};
use crate::moments::Moments;
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::statements::{self, StatementCost};

/// No frame comes to a client for so long: something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started.
    pub blueprint: Blueprint,
    /// How many sessions, each with a socket of its own.
    pub sessions: usize,
    /// Jobs of each.
    pub jobs: usize,
    /// Jobs of each that are sent and not answered with a result.
    pub in_flight: usize,
    /// `strict`, `results` or `none`.
    pub ordering: String,
    /// The nodes.
    pub nodes: usize,
    /// Slots of each.
    pub capacity: u32,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Sessions {
    /// Their order.
    pub ordering: String,
    /// How many.
    pub sessions: usize,
    /// Results, of all.
    pub results: usize,
    /// Results per second, of all.
    pub per_second: f64,
    /// Processor seconds for each 1,000 results.
    pub costs: Costs,
    /// What the machine did meanwhile, with changes of context for each result.
    pub machine: MachineUse,
    /// Statements that took longest.
    pub statements: Vec<StatementCost>,
    /// From a job's sending to its `accepted`.
    pub accepted: Latency,
    /// From a job's sending to its `result`.
    pub answered: Latency,
    /// Broken promises.
    pub violations: Vec<String>,
}

/// What one client saw.
#[derive(Default)]
struct Seen {
    accepted_us: Vec<u64>,
    answered_us: Vec<u64>,
    violations: Vec<String>,
}

#[derive(Deserialize)]
struct Frame {
    #[serde(rename = "type")]
    kind: String,
    #[serde(rename = "ref")]
    name: Option<String>,
    seq: Option<u64>,
    outcome: Option<String>,
}

/// Runs the plan.
///
/// # Errors
/// Something does not start, a socket is closed, or nothing comes for long. Broken promises are in the report.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Sessions> {
    bar.say("starting");
    let fleet = Fleet::build(plan.blueprint.clone()).await?;
    let total = plan.sessions * plan.jobs;
    let moments = Moments::new(total);
    let like = sim_nodes::Plan { nodes: plan.nodes, capacity: plan.capacity, acks: false };
    let nodes = SimNodes::connect(fleet.urls(), &like, &moments).await?;
    let http = Client::new(PATIENCE)?;
    let mut ids = Vec::with_capacity(plan.sessions);
    for session in 0..plan.sessions {
        let url = &fleet.urls()[session % fleet.urls().len()];
        let asked = json!({ "ordering": plan.ordering });
        let reply = http.request("POST", &format!("{url}/v1/sessions"), None, Some(&asked)).await?;
        ensure!(reply.status == 201, "a session was refused: {}", reply.text);
        ids.push(reply.body["id"].as_str().context("a session without an id")?.to_owned());
    }
    bar.say(&format!("{} sessions, {}", plan.sessions, plan.ordering));
    let counting = plan.blueprint.counting;
    statements::forget(fleet.database(), counting).await?;
    let (before, machine) = (Costs::read(&fleet).await?, MachineCounters::read()?);
    let (began, mut talks) = (Instant::now(), JoinSet::new());
    for (session, id) in ids.into_iter().enumerate() {
        // The client is connected to another instance than the one that made its session, where there are several.
        let url = fleet.urls()[(session + 1) % fleet.urls().len()].clone();
        talks.spawn(talk(plan.clone(), url, id, session * plan.jobs));
    }
    let mut all = Seen::default();
    while let Some(seen) = talks.join_next().await {
        let seen = seen??;
        all.accepted_us.extend(seen.accepted_us);
        all.answered_us.extend(seen.answered_us);
        all.violations.extend(seen.violations);
    }
    let (took, results) = (began.elapsed(), all.answered_us.len());
    let machine = MachineCounters::read()?.since(machine, results);
    let costs = Costs::read(&fleet).await?.per_1000(before, results);
    let statements = statements::read(fleet.database(), counting, results).await?;
    bar.done();
    all.violations.extend(nodes.lost());
    all.violations.extend(fleet.defects_logged().await);
    Ok(Sessions {
        ordering: plan.ordering.clone(),
        sessions: plan.sessions,
        results,
        per_second: results as f64 / took.as_secs_f64(),
        costs,
        machine,
        statements,
        accepted: Latencies::gather(all.accepted_us)?.summary(),
        answered: Latencies::gather(all.answered_us)?.summary(),
        violations: all.violations,
    })
}

/// One client: its jobs are numbered from `first` on.
async fn talk(plan: Plan, url: String, id: String, first: usize) -> Result<Seen> {
    let url = format!("{}/v1/sessions/{id}/ws?after_seq=0", url.replacen("http://", "ws://", 1));
    let (mut socket, _) = connect_async_with_config(url, None, true).await?;
    let mut seen = Seen::default();
    let (mut sent, mut results, mut last_seq) = (HashMap::new(), HashSet::new(), 0);
    let mut next = 0;
    while results.len() < plan.jobs {
        while next < plan.jobs && next < results.len() + plan.in_flight {
            let job =
                format!("{{\"type\":\"job\",\"ref\":\"{next}\",\"payload\":{{\"n\":{}}}}}", first + next);
            sent.insert(next.to_string(), Instant::now());
            socket.send(Message::text(job)).await?;
            next += 1;
        }
        let message =
            tokio::time::timeout(PATIENCE, socket.next()).await.context("nothing comes to a client")?;
        let Message::Text(text) = message.context("a client's socket was closed")?? else { continue };
        let frame: Frame = serde_json::from_str(&text)?;
        let since = |name: &str| sent.get(name).map(|at| at.elapsed().as_micros() as u64);
        match (frame.kind.as_str(), frame.name, frame.seq) {
            ("accepted", Some(name), Some(_)) => seen.accepted_us.extend(since(&name)),
            ("result", Some(name), Some(seq)) => {
                seen.answered_us.extend(since(&name));
                if frame.outcome.as_deref() != Some("succeeded") {
                    seen.violations.push(format!("{id}: {text}"));
                }
                if plan.ordering != "none" && seq <= last_seq {
                    seen.violations.push(format!("{id}: place {seq} came behind {last_seq}"));
                }
                last_seq = seq;
                if !results.insert(name) {
                    seen.violations.push(format!("{id}: twice {text}"));
                }
            }
            ("progress", ..) => {}
            _ => anyhow::bail!("a client was told {text}"),
        }
    }
    Ok(seen)
}

impl Report for Sessions {
    fn table(&self) -> String {
        let rows = [self.accepted.row("to its accepted"), self.answered.row("to its result")];
        let table = report::table(&["from a job's sending", "jobs", "p50 ms", "p99 ms", "max ms"], &rows);
        let lines = [
            ("sessions, and their order".to_owned(), format!("{}, {}", self.sessions, self.ordering)),
            ("results/s of all".to_owned(), format!("{:.0}", self.per_second)),
            self.costs.line_per_1000(),
            ("machine: idle %, stolen %, switches a result".to_owned(), self.machine.cells().join(", ")),
            ("broken promises".to_owned(), self.violations.len().to_string()),
        ];
        let statements = statements::table(&self.statements, "results");
        let text = format!("{table}{statements}\n\n{}", report::two_columns(&lines));
        report::with_violations(text, &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}
