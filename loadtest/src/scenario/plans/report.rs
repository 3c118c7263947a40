//! The tables of the scenario.

use super::{Measured, Plans};
use crate::figures::{Latency, ms};
use crate::report::{self, Report};
use crate::statements;

fn two(latency: &Latency) -> String {
    format!("{} / {}", ms(latency.p50_us), ms(latency.p99_us))
}

impl Report for Plans {
    fn table(&self) -> String {
        let head = [
            "round",
            "stages",
            "seconds",
            "stages/s",
            "plan of the load made: p50 / p99 ms",
            "plan of 100 tasks made",
            "task paused or resumed",
            "CPU s per 1,000: daemon",
            "PostgreSQL",
            "generator",
        ];
        let row = |one: &Measured| {
            let cost = |of: fn(&crate::costs::Costs) -> f64| {
                one.costs.as_ref().map_or(String::new(), |costs| format!("{:.3}", of(costs)))
            };
            vec![
                one.name.clone(),
                one.stages.to_string(),
                format!("{:.2}", one.seconds),
                format!("{:.0}", one.per_second),
                two(&one.made),
                two(&one.large),
                two(&one.changed),
                cost(|costs| costs.daemon),
                cost(|costs| costs.postgres),
                cost(|costs| costs.generator),
            ]
        };
        let mut table = report::table(&head, &self.rounds.iter().map(row).collect::<Vec<_>>());
        for round in &self.rounds {
            table.push_str(&statements::table(&round.statements, "stages"));
        }
        let (plans, tasks, stages) = self.size;
        let mut lines = vec![
            ("ledger".to_owned(), self.ledger.to_owned()),
            ("plans, tasks of each, stages of each task".to_owned(), format!("{plans}, {tasks}, {stages}")),
        ];
        if let Some(bare) = &self.bare_commit {
            lines.push(("a bare commit, p50 / p99 ms".to_owned(), two(bare)));
        }
        if let [few, many] = &self.rounds[..] {
            let ratio = many.per_second / few.per_second;
            lines.push(("stages/s among finished plans, of those before".to_owned(), format!("{ratio:.2}")));
        }
        if let Some(beside) = &self.beside {
            lines.push(("jobs/s in the same run".to_owned(), format!("{:.0}", beside.jobs_per_second)));
            lines.push(("stages/s, of the jobs/s".to_owned(), format!("{:.2}", beside.ratio)));
        }
        lines.push(("broken promises".to_owned(), self.violations.len().to_string()));
        report::with_violations(format!("{table}\n\n{}", report::two_columns(&lines)), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}
