//! The statements that took PostgreSQL's time during a load, where it counts them.

use anyhow::Result;
use serde::Serialize;
use testkit::servers::Database;

use crate::{report, tables};

/// So many are shown, those that took longest first.
const SHOWN_MAX: usize = 14;

/// One statement.
#[derive(Clone, Debug, Serialize)]
pub struct StatementCost {
    /// How it begins.
    pub text: String,
    /// PostgreSQL's milliseconds for each 1,000 of what was counted.
    pub ms_per_1000: f64,
    /// Calls for each 1,000 of what was counted.
    pub calls_per_1000: f64,
}

/// Has PostgreSQL count from nothing, if it counts.
///
/// # Errors
/// The database does not answer.
pub async fn forget(database: &Database, counting: bool) -> Result<()> {
    if counting {
        let database = database.clone();
        let forget = "create extension if not exists pg_stat_statements; select pg_stat_statements_reset()";
        tokio::task::spawn_blocking(move || database.query(forget)).await??;
    }
    Ok(())
}

/// The calls of all statements since [`forget`]; 0 where PostgreSQL does not count.
///
/// # Errors
/// The database does not answer.
pub async fn calls(database: &Database, counting: bool) -> Result<f64> {
    if !counting {
        return Ok(0.0);
    }
    let (database, ask) = (database.clone(), "select coalesce(sum(calls), 0) from pg_stat_statements");
    Ok(tokio::task::spawn_blocking(move || tables::value(&database, ask)).await??.parse()?)
}

/// Those that took longest since [`forget`]; none where PostgreSQL does not count.
///
/// # Errors
/// The database does not answer.
pub async fn read(database: &Database, counting: bool, count: usize) -> Result<Vec<StatementCost>> {
    if !counting {
        return Ok(Vec::new());
    }
    let database = database.clone();
    let ask = format!(
        "select regexp_replace(left(regexp_replace(query, '--[^\\n]*\\n', '', 'g'), 90), '\\s+', ' ', 'g'), \
         total_exec_time, calls from pg_stat_statements order by 2 desc limit {SHOWN_MAX}"
    );
    let rows = tokio::task::spawn_blocking(move || database.query(&ask)).await??;
    let per_1000 = |text: &String| anyhow::Ok(text.parse::<f64>()? * 1_000.0 / count.max(1) as f64);
    let cost = |row: Vec<String>| {
        let [text, time, calls] = &row[..] else { anyhow::bail!("a row of three: {row:?}") };
        let (ms_per_1000, calls_per_1000) = (per_1000(time)?, per_1000(calls)?);
        Ok(StatementCost { text: text.clone(), ms_per_1000, calls_per_1000 })
    };
    rows.into_iter().map(cost).collect()
}

/// A table behind an empty line, or nothing where there are none. `of` says what was counted.
#[must_use]
pub fn table(statements: &[StatementCost], of: &str) -> String {
    if statements.is_empty() {
        return String::new();
    }
    let row = |one: &StatementCost| {
        vec![one.text.clone(), format!("{:.2}", one.ms_per_1000), format!("{:.1}", one.calls_per_1000)]
    };
    let (ms, calls) = (format!("ms per 1,000 {of}"), format!("calls per 1,000 {of}"));
    let rows: Vec<_> = statements.iter().map(row).collect();
    format!("\n\n{}", report::table(&["statement", &ms, &calls], &rows))
}
