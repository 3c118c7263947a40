//! What a scenario hands back, and tables for people.

use std::collections::BTreeMap;
use std::fmt;

use crate::figures::{Summary, ms};
use crate::plot::{Bars, Curve, Panel, Scale};

/// What a scenario hands back: for people, for programs (it serialises), and for the eye.
pub trait Report: serde::Serialize {
    /// The report as tables.
    fn table(&self) -> String;

    /// What there is to be drawn over time, or by percentile.
    fn panels(&self) -> Vec<Panel> {
        Vec::new()
    }

    /// What there is to be compared.
    fn bars(&self) -> Vec<Bars> {
        Vec::new()
    }

    /// The broken promises. Empty is what we want.
    fn violations(&self) -> &[String];
}

/// Whether no promise was broken.
#[must_use]
pub fn is_good(report: &impl Report) -> bool {
    report.violations().is_empty()
}

/// How often there is each of these texts.
#[must_use]
pub fn counts<T: Into<String>>(texts: impl Iterator<Item = T>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for text in texts {
        *counts.entry(text.into()).or_default() += 1;
    }
    counts
}

/// A line of two columns for each count.
#[must_use]
pub fn counted<T: fmt::Display, N: fmt::Display>(
    what: &str,
    counts: &BTreeMap<T, N>,
) -> Vec<(String, String)> {
    counts.iter().map(|(of, count)| (format!("{what}: {of}"), count.to_string())).collect()
}

/// The broken promises below a table.
#[must_use]
pub fn with_violations(mut table: String, violations: &[String]) -> String {
    for violation in violations.iter().take(20) {
        table.push_str(&format!("\n  {violation}"));
    }
    table
}

/// Loads side by side, a row for each.
#[must_use]
pub fn loads(summaries: &[&Summary]) -> String {
    let head = [
        "load",
        "requests/s",
        "nonces/s",
        "p50 ms",
        "p90 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "refused",
        "no answer",
        "never sent",
        "generator cores",
    ];
    let row = |one: &&Summary| {
        let latency = &one.latency;
        let total = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>().to_string();
        vec![
            one.name.clone(),
            format!("{:.0}", one.per_second),
            format!("{:.0}", one.nonces_per_second),
            ms(latency.p50_us),
            ms(latency.p90_us),
            ms(latency.p99_us),
            ms(latency.p999_us),
            ms(latency.max_us),
            total(&one.refused),
            total(&one.unanswered),
            one.never_sent.to_string(),
            if one.generator_cores > 0.0 { format!("{:.2}", one.generator_cores) } else { String::new() },
        ]
    };
    table(&head, &summaries.iter().map(row).collect::<Vec<_>>())
}

/// Refusals and missing answers by their words, for a table of two columns.
#[must_use]
pub fn trouble(summary: &Summary) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for (what, counts) in [("refused", &summary.refused), ("no answer", &summary.unanswered)] {
        lines.extend(counted(what, counts));
    }
    if summary.malformed > 0 {
        lines.push(("answers against the contract".to_owned(), summary.malformed.to_string()));
    }
    lines
}

/// Throughput over time, p99 over time and the distribution of latencies of some loads.
#[must_use]
pub fn load_panels(summaries: &[&Summary]) -> Vec<Panel> {
    let curves = |points: &dyn Fn(&Summary) -> Vec<(f64, f64)>| -> Vec<Curve> {
        summaries.iter().map(|one| Curve { name: one.name.clone(), points: points(one) }).collect()
    };
    let over_time = |title: &str, y: &str, y_scale, points: &dyn Fn(&Summary) -> Vec<(f64, f64)>| Panel {
        title: title.to_owned(),
        x: "seconds".to_owned(),
        y: y.to_owned(),
        y_scale,
        x_is_tail: false,
        curves: curves(points),
        marks: Vec::new(),
    };
    vec![
        over_time("Requests answered as hoped", "per second", Scale::Linear, &|one| {
            one.over_time.iter().map(|at| (at.at_s, at.per_second)).collect()
        }),
        over_time("Latency, p99 of each interval", "ms", Scale::Log, &|one| {
            let fine = one.over_time.iter().filter(|at| at.per_second > 0.0);
            fine.map(|at| (at.at_s, at.p99_us as f64 / 1_000.0)).collect()
        }),
        Panel {
            title: "Latency from the intended start, by percentile".to_owned(),
            x: "percentile".to_owned(),
            y: "ms".to_owned(),
            y_scale: Scale::Log,
            x_is_tail: true,
            curves: curves(&|one| one.distribution.iter().map(|(x, us)| (*x, us / 1_000.0)).collect()),
            marks: Vec::new(),
        },
    ]
}

/// Two columns, the second flush right.
#[must_use]
pub fn two_columns(lines: &[(String, String)]) -> String {
    table(&["", ""], &lines.iter().map(|(a, b)| vec![a.clone(), b.clone()]).collect::<Vec<_>>())
}

/// A Markdown table: the first column flush left, the others flush right.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let pad = |column: usize, cell: &str| match column {
        0 => format!("{cell:<0$}", widths[column]),
        _ => format!("{cell:>0$}", widths[column]),
    };
    let mut lines = vec![line(head.iter().enumerate().map(|(column, cell)| pad(column, cell)).collect())];
    let rule = |column: usize| match column {
        0 => "-".repeat(widths[column]),
        _ => format!("{}:", "-".repeat(widths[column] - 1)),
    };
    lines.push(line((0..head.len()).map(rule).collect()));
    for row in rows {
        lines.push(line(row.iter().enumerate().map(|(column, cell)| pad(column, cell)).collect()));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let text = table(
            &["route", "per s"],
            &[vec!["empty".into(), "12".into()], vec!["x".into(), "123456".into()]],
        );
        assert_eq!(text, "| route |  per s |\n| ----- | -----: |\n| empty |     12 |\n| x     | 123456 |");
    }
}
