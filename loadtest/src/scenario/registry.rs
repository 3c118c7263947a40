//! How quickly nodes and their news are known: registrations and heartbeats of many worker sockets, and a change seen by
//! another instance. `cargo bench -p nodes` says how long selections take among 10,000 nodes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use testkit::fleet::{Blueprint, Fleet};
use testkit::sim_nodes::{self, Puppet, SimNodes};

use crate::figures::{Latencies, Latency, ms};
use crate::metrics::Metrics;
use crate::moments::Moments;
use crate::progress::Bar;
use crate::raw::{Connection, request};
use crate::report::{self, Report};
use crate::target::Target;

/// A change that is not seen for so long is lost.
const SEEN_MAX: Duration = Duration::from_secs(10);
/// Nodes that register one after the other.
const ALONE: usize = 300;
/// Wanted at most: registration, a heartbeat recorded, a change seen elsewhere; p99.
const WANTED_MS: [f64; 3] = [10.0, 5.0, 100.0];

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started: two instances at least, and a Redis.
    pub blueprint: Blueprint,
    /// Worker sockets, on the instances in turn.
    pub nodes: usize,
    /// How long heartbeats are watched.
    pub length: Duration,
    /// Changes that are looked for on another instance.
    pub changes: usize,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Registry {
    /// Worker sockets.
    pub nodes: usize,
    /// From opening a node's socket to its welcome, one node after the other, while all others beat.
    pub registration: Latency,
    /// From a node's hello to its welcome, all nodes as soon as they can, 32 at a time.
    pub crowded: Latency,
    /// Heartbeats per second.
    pub beats_per_second: f64,
    /// From the arrival of a heartbeat to its record being written: the instances' own histogram, how many of a
    /// hundred took that many seconds or less.
    pub recorded_within: Vec<(f64, f64)>,
    /// From a node's word to another instance's answer that shows it.
    pub seen: Latency,
    /// Nodes that lost their sockets.
    pub violations: Vec<String>,
}

/// Runs the plan.
///
/// # Errors
/// Something does not start, or a change is not seen.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Registry> {
    ensure!(plan.blueprint.instances >= 2 && plan.blueprint.redis, "two instances and a Redis");
    bar.say("starting");
    let target = Target::Ours(Box::new(Fleet::build(plan.blueprint.clone()).await?));
    let like = sim_nodes::Plan { nodes: plan.nodes, capacity: 8, acks: false };
    bar.say(&format!("{} nodes connect", plan.nodes));
    let nodes = SimNodes::connect(target.urls(), &like, &Moments::new(0)).await?;
    let registrations = nodes.registrations().iter().map(|took| took.as_micros() as u64);
    let crowded = Latencies::gather(registrations)?.summary();
    bar.say("registrations");
    let registration = alone(&target).await?;
    bar.say("heartbeats");
    let (before, beats, began) = (target.metrics().await?, nodes.heartbeats(), Instant::now());
    tokio::time::sleep(plan.length).await;
    let answer = target.metrics().await?.since(&before);
    let beats_per_second = (nodes.heartbeats() - beats) as f64 / began.elapsed().as_secs_f64();
    bar.say("changes");
    let seen = seen(&target, plan.changes).await?;
    bar.done();
    Ok(Registry {
        nodes: plan.nodes,
        registration,
        crowded,
        beats_per_second,
        recorded_within: within(&answer, "fencepost_node_heartbeat_seconds"),
        seen,
        violations: nodes.lost(),
    })
}

/// Nodes connect one after the other, to the instances in turn.
async fn alone(target: &Target) -> Result<Latency> {
    let mut took = Vec::with_capacity(ALONE);
    for (n, url) in target.urls().iter().cycle().take(ALONE).enumerate() {
        let began = Instant::now();
        let _node = Puppet::connect(url, &format!("alone-{n}")).await?;
        took.push(began.elapsed().as_micros() as u64);
    }
    Ok(Latencies::gather(took)?.summary())
}

/// A node says to the one instance that it drains, and the other is asked until it knows.
async fn seen(target: &Target, changes: usize) -> Result<Latency> {
    let [one, other, ..] = target.urls() else { anyhow::bail!("two instances") };
    let host = other.trim_start_matches("http://").to_owned();
    let mut connection = Connection::open(&host).await?;
    let mut node = Puppet::connect(one, "puppet").await?;
    let ask = Arc::new(request("GET", &host, "/v1/nodes/puppet", None));
    let mut took = Vec::with_capacity(changes);
    // Begins with the first: it has to be known there.
    for change in 0..=changes {
        let (word, state): (_, &[u8]) = match change % 2 {
            0 => ("{\"type\":\"ready\"}", b"\"online\""),
            _ => ("{\"type\":\"drain\"}", b"\"draining\""),
        };
        let said = Instant::now();
        node.send(word).await?;
        loop {
            let (_, answer) = connection.exchange(&ask).await?;
            if answer.windows(state.len()).any(|part| part == state) {
                break;
            }
            let text = String::from_utf8_lossy(answer).into_owned();
            ensure!(said.elapsed() < SEEN_MAX, "{word} is not seen there: {text}");
        }
        if change > 0 {
            took.push(said.elapsed().as_micros() as u64);
        }
        // Silence is not the question.
        node.send("{\"type\":\"heartbeat\",\"running\":[]}").await?;
    }
    Ok(Latencies::gather(took)?.summary())
}

/// For each edge of a histogram's buckets, how many of a hundred took that long or less.
fn within(answer: &Metrics, name: &str) -> Vec<(f64, f64)> {
    let all = answer.sum(&format!("{name}_count"), &[]);
    let edges = answer.by(&format!("{name}_bucket"), "le");
    let edges = edges.into_iter().filter_map(|(edge, count)| Some((edge.parse::<f64>().ok()?, count)));
    let mut edges: Vec<_> = edges.filter(|(edge, _)| edge.is_finite()).collect();
    edges.sort_by(|a, b| a.0.total_cmp(&b.0));
    edges.into_iter().map(|(edge, count)| (edge, count * 100.0 / all.max(1.0))).collect()
}

impl Registry {
    /// The first edge within which 99 of 100 heartbeats were recorded.
    fn recorded_p99_ms(&self) -> Option<f64> {
        self.recorded_within.iter().find(|(_, share)| *share >= 99.0).map(|(edge, _)| edge * 1_000.0)
    }
}

impl Report for Registry {
    fn table(&self) -> String {
        let row = |what: &str, latency: &Latency, wanted: f64| {
            let times = [latency.p50_us, latency.p99_us, latency.max_us].map(ms);
            [vec![what.to_owned(), format!("{wanted}")], times.to_vec()].concat()
        };
        let recorded = self.recorded_p99_ms().map_or("over all".to_owned(), |edge| format!("under {edge}"));
        let rows = [
            row("registration, one at a time", &self.registration, WANTED_MS[0]),
            row("registration, 32 at a time", &self.crowded, WANTED_MS[0]),
            vec![
                "a heartbeat recorded".to_owned(),
                WANTED_MS[1].to_string(),
                String::new(),
                recorded,
                String::new(),
            ],
            row("seen by another instance", &self.seen, WANTED_MS[2]),
        ];
        let table = report::table(&["", "p99 wanted, ms", "p50 ms", "p99 ms", "max ms"], &rows);
        let lines = [
            ("nodes".to_owned(), self.nodes.to_string()),
            ("heartbeats/s".to_owned(), format!("{:.0}", self.beats_per_second)),
            ("nodes that lost their sockets".to_owned(), self.violations.len().to_string()),
        ];
        report::with_violations(format!("{table}\n\n{}", report::two_columns(&lines)), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_within_the_edges_are_of_all() {
        let mut metrics = Metrics::default();
        metrics.add(
            "h_bucket{le=\"0.005\"} 99\nh_bucket{le=\"0.001\"} 50\nh_bucket{le=\"+Inf\"} 100\nh_count 100\n",
        );
        assert_eq!(within(&metrics, "h"), [(0.001, 50.0), (0.005, 99.0)]);
    }
}
