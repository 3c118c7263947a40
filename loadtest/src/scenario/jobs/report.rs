//! The tables of the scenario.

use super::{Idle, Jobs, Measured, Reads};
use crate::figures::{Latency, ms};
use crate::report::{self, Report};
use crate::statements;

fn three(latency: &Latency) -> String {
    format!("{} / {} / {}", ms(latency.p50_us), ms(latency.p99_us), ms(latency.max_us))
}

/// Loads side by side, a row for each.
#[must_use]
pub fn loads(loads: &[&Measured]) -> String {
    let head = [
        "load",
        "jobs",
        "jobs/s",
        "to 202: p50 / p99 / max ms",
        "to the node",
        "to the recorded result",
        "CPU s per 1,000: daemon",
        "PostgreSQL",
        "Redis",
        "generator",
        "idle %",
        "stolen %",
        "switches a job",
        "refused",
    ];
    let row = |one: &&Measured| {
        let mut cells = vec![
            one.name.clone(),
            one.jobs.to_string(),
            format!("{:.0}", one.per_second),
            three(&one.accepted),
            three(&one.there),
            three(&one.recorded),
            format!("{:.3}", one.costs.daemon),
            format!("{:.3}", one.costs.postgres),
            format!("{:.3}", one.costs.redis),
            format!("{:.3}", one.costs.generator),
        ];
        cells.extend(one.machine.cells());
        cells.push(one.refused.values().sum::<usize>().to_string());
        cells
    };
    report::table(&head, &loads.iter().map(row).collect::<Vec<_>>())
}

fn idle(idle: &Idle) -> String {
    let row = |name: &str, latency: &Latency| {
        vec![
            name.to_owned(),
            latency.count.to_string(),
            ms(latency.p50_us),
            ms(latency.p90_us),
            ms(latency.p99_us),
        ]
    };
    let rows = [
        row("submit to 202", &idle.accepted),
        row("submit to the node having it", &idle.there),
        row("submit to the recorded result", &idle.recorded),
        row("one bare commit", &idle.bare_commit),
    ];
    let times = idle.there.p99_us as f64 / idle.bare_commit.p99_us.max(1) as f64;
    let table = report::table(&["one job at a time", "times", "p50 ms", "p90 ms", "p99 ms"], &rows);
    format!("{table}\n\nsubmit to node, p99, of a bare commit's: {times:.2} (wanted: under 3)")
}

fn reads(all: &[Reads]) -> String {
    let row =
        |one: &Reads| vec![one.name.clone(), three(&one.list), three(&one.list_of_outcome), three(&one.one)];
    let head = ["reading among", "list: p50 / p99 / max ms", "list of one outcome", "one job"];
    report::table(&head, &all.iter().map(row).collect::<Vec<_>>())
}

/// The loads with open dashboards beside those without: the median of the rounds.
fn viewed(loads: &[Measured]) -> Vec<(String, String)> {
    let rounds = loads.chunks_exact(2).filter(|round| round[0].viewers.0 == 0 && round[1].viewers.0 > 0);
    let rounds: Vec<_> = rounds.collect();
    let median = |of: &dyn Fn(&[Measured]) -> f64| {
        let mut all: Vec<_> = rounds.iter().map(|round| of(round)).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    let Some(round) = rounds.first() else { return Vec::new() };
    let viewers = round[1].viewers.0;
    let ratio = median(&|round| round[1].per_second / round[0].per_second);
    let per_second = [0, 1].map(|n: usize| median(&|round| round[n].statements_per_second));
    let per_job =
        [0, 1].map(|n: usize| median(&|round| round[n].statements_per_second / round[n].per_second));
    vec![
        (
            format!("jobs/s with {viewers} dashboards, of those without"),
            format!("{ratio:.3} (wanted: at least 0.95)"),
        ),
        ("answers to dashboards a second".to_owned(), format!("{:.1}", median(&|round| round[1].viewers.1))),
        (
            "statements a second without and with".to_owned(),
            format!("{:.1}, {:.1}", per_second[0], per_second[1]),
        ),
        ("statements a job without and with".to_owned(), format!("{:.3}, {:.3}", per_job[0], per_job[1])),
    ]
}

impl Report for Jobs {
    fn table(&self) -> String {
        let mut text = loads(&self.loads.iter().collect::<Vec<_>>());
        let mut lines = vec![
            ("seed".to_owned(), self.seed.to_string()),
            ("nodes, slots of each".to_owned(), format!("{}, {}", self.nodes.0, self.nodes.1)),
            ("requests in flight".to_owned(), self.in_flight.to_string()),
            ("broken promises".to_owned(), self.violations.len().to_string()),
        ];
        lines.extend(viewed(&self.loads));
        if let [few, many] = &self.loads[..] {
            lines.push((
                "jobs/s with many finished ones, of those with few".to_owned(),
                format!("{:.2}", many.per_second / few.per_second),
            ));
        }
        for (what, jobs) in self.loads.iter().flat_map(|load| &load.refused) {
            lines.push((format!("refused: {what}"), jobs.to_string()));
        }
        if let Some(one) = &self.idle {
            text.push_str(&format!("\n\n{}", idle(one)));
        }
        if !self.reads.is_empty() {
            text.push_str(&format!("\n\n{}", reads(&self.reads)));
        }
        for load in &self.loads {
            text.push_str(&statements::table(&load.statements, "jobs"));
        }
        text.push_str(&format!("\n\n{}", report::two_columns(&lines)));
        report::with_violations(text, &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}
