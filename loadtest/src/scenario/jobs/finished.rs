//! Many finished jobs, put there past the daemon, and how long it takes to read among them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use testkit::fleet::Fleet;
use testkit::servers::Database;

use crate::figures::{Latencies, Latency};
use crate::raw::{Connection, request};

/// The lane of what is put there.
pub const LANE: &str = "instance:filled";
/// Rows of one insert.
const FILL_ROWS: u64 = 500_000;
/// Jobs read one by one, and pages of the list.
const READS: usize = 200;
/// How long the server may take to be quiet again after the filling.
const SETTLES_IN: Duration = Duration::from_secs(5);

/// Reads, one after the other.
#[derive(Debug, Serialize)]
pub struct Reads {
    /// Among what.
    pub name: String,
    /// `GET /v1/jobs`.
    pub list: Latency,
    /// `GET /v1/jobs?outcome=succeeded`.
    pub list_of_outcome: Latency,
    /// `GET /v1/jobs/{id}`.
    pub one: Latency,
}

/// What finished jobs are like that are put there.
pub struct Filling {
    /// Their tenant; empty for none.
    pub tenant: &'static str,
    /// The label that each needed; empty for none.
    pub requires: &'static str,
    /// Whether they have failed, and are dead; otherwise they have succeeded.
    pub have_failed: bool,
}

/// Puts so many succeeded jobs there, and waits until the server is quiet again.
pub fn fill(database: &Database, count: u64) -> Result<()> {
    fill_with(database, count, &Filling { tenant: "", requires: "", have_failed: false })?;
    std::thread::sleep(SETTLES_IN);
    Ok(())
}

/// Puts so many rows into today's partition, as if they had been made one after the other since midnight.
pub fn fill_with(database: &Database, count: u64, like: &Filling) -> Result<()> {
    let Filling { tenant, requires, have_failed } = *like;
    let (outcome, result) = if have_failed { ("failed", "null") } else { ("succeeded", "'null'") };
    let mut from = 0;
    while from < count {
        let to = (from + FILL_ROWS).min(count);
        database.query(&format!(
            "with day as (select extract(epoch from date_trunc('day', now() at time zone 'utc')) * 1000 as begins, \
                                 extract(epoch from now()) * 1000 as ends) \
             insert into job_finished (id, lane, seq, tenant, pool, requires, priority, timeout_ms, max_attempts, \
               backoff_initial_ms, backoff_factor_percent, backoff_max_ms, on_recovery, payload, created_at, attempt, \
               counted, node, holder, dispatched_at, past_attempts, outcome, dead, result, finished_at, released_at) \
             select (lpad(to_hex((begins + (ends - begins) * i / {count})::bigint), 12, '0') || '7' || \
                     lpad(to_hex(i % 4096), 3, '0') || '8' || substr(md5(i::text), 1, 15))::uuid, \
               '{LANE}', 0, '{tenant}', '', '{requires}', 0, 600000, 3, 1000, 200, 60000, 'run', \
               '{{\"n\":' || i || '}}', now(), 1, 0, 'sim-0', 'filled', now(), '', '{outcome}', {have_failed}, {result}, \
               now(), now() \
             from day, generate_series({from}::bigint, {to} - 1) as i"
        ))?;
        from = to;
    }
    database.query("vacuum (analyze) job_finished")?;
    database.query("checkpoint")?;
    Ok(())
}

/// How long lists and single jobs take.
pub async fn reads(fleet: &Fleet, name: &str) -> Result<Reads> {
    let host = fleet.urls()[0].trim_start_matches("http://").to_owned();
    let mut connection = Connection::open(&host).await?;
    let database = fleet.database().clone();
    let ask = format!(
        "select id from (select id from job_finished tablesample system_rows({READS})) as any_of_them"
    );
    let rows = tokio::task::spawn_blocking(move || {
        database.query("create extension if not exists tsm_system_rows")?;
        database.query(&ask)
    });
    let ids: Vec<String> = rows.await??.into_iter().flatten().collect();
    ensure!(!ids.is_empty(), "there are finished jobs to be read");
    let lists = vec!["/v1/jobs".to_owned(); READS];
    let of_outcome = vec!["/v1/jobs?outcome=succeeded".to_owned(); READS];
    let ones: Vec<_> = ids.iter().map(|id| format!("/v1/jobs/{id}")).collect();
    Ok(Reads {
        name: name.to_owned(),
        list: each(&mut connection, &host, &lists).await?,
        list_of_outcome: each(&mut connection, &host, &of_outcome).await?,
        one: each(&mut connection, &host, &ones).await?,
    })
}

async fn each(connection: &mut Connection, host: &str, paths: &[String]) -> Result<Latency> {
    let mut took = Vec::with_capacity(paths.len());
    for path in paths {
        let asked = Instant::now();
        let (status, _) =
            connection.exchange(&request("GET", host, path, None)).await.with_context(|| path.clone())?;
        ensure!(status == 200, "GET {path}: {status}");
        took.push(asked.elapsed().as_micros() as u64);
    }
    Ok(Latencies::gather(took)?.summary())
}
