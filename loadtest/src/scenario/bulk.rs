//! A bulk operation over very many jobs: what it costs single submissions beside it, and that it goes on when its owner is
//! killed in the middle, with each job handled exactly once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use testkit::fleet::{Blueprint, Fleet};
use testkit::http::Client;
use testkit::servers::Database;

use super::jobs::finished::{self, Filling};
use crate::figures::Latency;
use crate::load::{Schedule, Spread};
use crate::moments::{Moments, Step};
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::submit::{self, Pace};

/// The tenant of the jobs that the operation is about.
const TENANT: &str = "bulk";
/// No node has this label, so that every job waits.
const NOWHERE: &str = ",\"requires\":[\"nowhere\"]";
/// Waiting jobs of one request, and requests in flight.
const BATCH: (usize, usize) = (1_000, 4);
/// Connections for single submissions.
const CONNECTIONS: usize = 32;
/// How long the killed owner is away.
const DOWN: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// The operation does not get on for so long: something is wrong.
const PATIENCE: Duration = Duration::from_secs(90);

/// What is done to the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Failed jobs are retried.
    Retry,
    /// Failed jobs are deleted.
    Delete,
    /// Waiting jobs are cancelled.
    Cancel,
}

impl Action {
    const fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Delete => "delete",
            Self::Cancel => "cancel",
        }
    }

    fn filter(self) -> Value {
        match self {
            Self::Retry => json!({"tenant": TENANT, "outcome": "failed"}),
            Self::Delete | Self::Cancel => json!({"tenant": TENANT}),
        }
    }
}

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started. The first instance owns the operation.
    pub blueprint: Blueprint,
    /// What is done.
    pub action: Action,
    /// To how many jobs.
    pub jobs: u64,
    /// Jobs of the operation per second, at most.
    pub bulk_rate: u32,
    /// Single submissions per second.
    pub rate: f64,
    /// How long they are measured, without the operation and beside it.
    pub length: Duration,
    /// Decides arrivals.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Bulk {
    /// What was done.
    pub action: &'static str,
    /// To how many jobs.
    pub jobs: u64,
    /// How long it took to count them, in seconds.
    pub counted_in: f64,
    /// Jobs per second, from the beginning to the end, the time without an owner included.
    pub per_second: f64,
    /// From when a single job was due to its 202, without the operation.
    pub without: Latency,
    /// The same beside it.
    pub beside: Latency,
    /// Whether the operation was under way all the time.
    pub is_beside_throughout: bool,
    /// How many jobs were done when its owner was killed, or `None` where it was over before.
    pub killed_at: Option<u64>,
    /// From the kill to the first progress of the next owner, in seconds.
    pub took_over_in: Option<f64>,
    /// Broken promises.
    pub violations: Vec<String>,
}

/// Runs the plan.
///
/// # Errors
/// Something does not start, a connection breaks, or the operation does not get on. Broken promises are in the report.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Bulk> {
    bar.say("starting");
    let fleet = Fleet::build(plan.blueprint.clone()).await?;
    let http = Client::new(Duration::from_secs(30))?;
    bar.say(&format!("making {} jobs", plan.jobs));
    make(plan, &fleet).await?;
    let singles = (plan.rate * plan.length.as_secs_f64()) as usize;
    let moments = Moments::new(2 * singles);
    bar.say("single jobs");
    submit_singles(plan, &fleet, 0, singles, &moments).await?;
    bar.say(&format!("{} all", plan.action.name()));
    let ask = json!({"action": plan.action.name(), "filter": plan.action.filter(), "rate": plan.bulk_rate});
    let began = Instant::now();
    let url = |n: usize| format!("{}/v1/bulk", fleet.urls()[n]);
    let begun = http.request("POST", &url(0), None, Some(&ask)).await?;
    ensure!(begun.status == 202, "POST /v1/bulk: {} {}", begun.status, begun.text);
    let counted_in = began.elapsed().as_secs_f64();
    let begun = begun.body;
    let id = begun["id"].as_str().context("an id")?.to_owned();
    // The second instance shows it, whichever owns it.
    let progress = Progress { http: &http, url: format!("{}/{id}", url(1)) };
    let mut violations = Vec::new();
    if begun["matched"] != json!(plan.jobs.min(1_000_000)) {
        violations.push(format!("{} of {} jobs matched", begun["matched"], plan.jobs));
    }
    submit_singles(plan, &fleet, singles, 2 * singles, &moments).await?;
    let is_beside_throughout = progress.read().await?.is_running;
    bar.say("killing the owner");
    let now = progress.until(|now| !now.is_running || now.handled >= plan.jobs / 2).await?;
    let (mut killed_at, mut took_over_in) = (None, None);
    if now.is_running {
        let killed = Instant::now();
        fleet.kill_and_restart(0, DOWN).await?;
        // What the dead owner noted last is seen before the next one takes over.
        let noted = progress.read().await?.handled;
        killed_at = Some(noted);
        progress.until(|now| !now.is_running || now.handled > noted).await?;
        took_over_in = Some(killed.elapsed().as_secs_f64());
    }
    let end = progress.until(|now| !now.is_running).await?;
    let per_second = end.handled as f64 / began.elapsed().as_secs_f64();
    bar.done();
    violations.extend(end.violations(plan.jobs));
    violations.extend(verified(plan, fleet.database()).await?);
    violations.extend(fleet.defects_logged().await);
    Ok(Bulk {
        action: plan.action.name(),
        jobs: plan.jobs,
        counted_in,
        per_second,
        without: moments.between(Step::Due, Step::Accepted, 0..singles)?,
        beside: moments.between(Step::Due, Step::Accepted, singles..2 * singles)?,
        is_beside_throughout,
        killed_at,
        took_over_in,
        violations,
    })
}

/// Makes the jobs: failed ones past the daemon, waiting ones through it.
async fn make(plan: &Plan, fleet: &Fleet) -> Result<()> {
    if plan.action == Action::Cancel {
        let jobs = usize::try_from(plan.jobs)?;
        let submission = submit::Plan {
            urls: fleet.urls().to_vec(),
            jobs: 0..jobs,
            batch: BATCH.0,
            connections: BATCH.1,
            pace: Pace::Closed,
            padding_bytes: 0,
            fields: format!("{NOWHERE},\"tenant\":\"{TENANT}\""),
        };
        let refused = submit::submit(submission, &Moments::new(jobs)).await?;
        ensure!(refused.jobs() == 0, "{:?}", refused.by);
        return Ok(());
    }
    let (database, count) = (fleet.database().clone(), plan.jobs);
    let like = Filling { tenant: TENANT, requires: "nowhere", have_failed: true };
    tokio::task::spawn_blocking(move || finished::fill_with(&database, count, &like)).await?
}

/// Single jobs at the instances that are not killed.
async fn submit_singles(
    plan: &Plan,
    fleet: &Fleet,
    from: usize,
    to: usize,
    moments: &Arc<Moments>,
) -> Result<()> {
    // A little longer than it takes, so that there is a moment for each.
    let length = plan.length.mul_f64(1.2) + Duration::from_secs(1);
    let submission = submit::Plan {
        urls: fleet.urls()[1..].to_vec(),
        jobs: from..to,
        batch: 1,
        connections: CONNECTIONS,
        pace: Pace::Open(Arc::new(Schedule::new(Spread::Poisson, plan.rate, length, plan.seed))),
        padding_bytes: 0,
        fields: format!("{NOWHERE},\"tenant\":\"single\""),
    };
    let refused = submit::submit(submission, moments).await?;
    ensure!(refused.jobs() == 0, "{:?}", refused.by);
    Ok(())
}

/// How far the operation has come.
struct Seen {
    is_running: bool,
    status: String,
    handled: u64,
    done: u64,
    answer: Value,
}

impl Seen {
    /// A retried or cancelled job counts as done once: no job was skipped or failed, and none is missing.
    fn violations(&self, jobs: u64) -> Vec<String> {
        let mut violations = Vec::new();
        if self.status != "DONE" || self.done != jobs || self.handled != jobs {
            violations.push(format!("of {jobs} jobs: {}", self.answer));
        }
        violations
    }
}

struct Progress<'p> {
    http: &'p Client,
    url: String,
}

impl Progress<'_> {
    async fn read(&self) -> Result<Seen> {
        let answer = self.http.get(&self.url).await?;
        let count = |name: &str| answer[name].as_u64().with_context(|| format!("{name} in {answer}"));
        let status = answer["status"].as_str().context("a status")?.to_owned();
        Ok(Seen {
            is_running: matches!(status.as_str(), "RUNNING" | "CANCELLING"),
            handled: count("done")? + count("skipped")? + count("failed")?,
            done: count("done")?,
            status,
            answer,
        })
    }

    /// Looks until it is so. It gives up when the operation does not get on.
    async fn until(&self, is_so: impl Fn(&Seen) -> bool) -> Result<Seen> {
        let (mut last, mut moved_at) = (None, Instant::now());
        loop {
            let now = self.read().await?;
            if is_so(&now) {
                return Ok(now);
            }
            if last != Some(now.handled) {
                (last, moved_at) = (Some(now.handled), Instant::now());
            }
            if moved_at.elapsed() > PATIENCE {
                bail!("the operation does not get on: {}", now.answer);
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }
}

/// Looks at the rows: each job was handled, and none twice.
async fn verified(plan: &Plan, database: &Database) -> Result<Vec<String>> {
    let (ask, expected) = match plan.action {
        Action::Retry => (
            format!(
                "select count(*) filter (where retried_as is null), count(distinct retried_as), \
                   (select count(*) from job where retry_of is not null) \
                 from job_finished where tenant = '{TENANT}' and lane = 'instance:filled'"
            ),
            [0, plan.jobs, plan.jobs],
        ),
        Action::Delete => (
            format!(
                "select count(*), (select count(*) from job where tenant = '{TENANT}'), 0 \
                 from job_finished where tenant = '{TENANT}'"
            ),
            [0, 0, 0],
        ),
        Action::Cancel => (
            format!(
                "select (select count(*) from job where tenant = '{TENANT}'), count(*), \
                   count(*) filter (where outcome = 'cancelled') \
                 from job_finished where tenant = '{TENANT}'"
            ),
            [0, plan.jobs, plan.jobs],
        ),
    };
    let database = database.clone();
    let rows = tokio::task::spawn_blocking(move || database.query(&ask)).await??;
    let counts: Vec<u64> =
        rows.first().context("a row")?.iter().map(|n| n.parse()).collect::<Result<_, _>>()?;
    let differs = counts != expected;
    Ok(differs
        .then(|| format!("rows after {}: {counts:?}, expected {expected:?}", plan.action.name()))
        .into_iter()
        .collect())
}

impl Report for Bulk {
    fn table(&self) -> String {
        let rows = [
            self.without.row("without the operation"),
            self.beside.row(&format!("beside {} of {}", self.action, self.jobs)),
        ];
        let head = ["a single job to its 202", "jobs", "p50 ms", "p99 ms", "max ms"];
        let seconds = |length: Option<f64>| length.map_or_else(|| "-".to_owned(), |s| format!("{s:.1}"));
        let lines = [
            ("jobs of the operation a second".to_owned(), format!("{:.0}", self.per_second)),
            ("seconds until they were counted".to_owned(), format!("{:.1}", self.counted_in)),
            (
                "p99 beside it, of that without".to_owned(),
                format!("{:.2}", self.beside.p99_us as f64 / self.without.p99_us.max(1) as f64),
            ),
            (
                "the operation was under way all that time".to_owned(),
                if self.is_beside_throughout { "yes" } else { "no: ask for more jobs" }.to_owned(),
            ),
            (
                "jobs that were handled when its owner was killed".to_owned(),
                self.killed_at.map_or_else(|| "it was over before".to_owned(), |jobs| jobs.to_string()),
            ),
            ("seconds until another instance went on".to_owned(), seconds(self.took_over_in)),
            ("broken promises".to_owned(), self.violations.len().to_string()),
        ];
        let table = report::table(&head, &rows);
        report::with_violations(format!("{table}\n\n{}", report::two_columns(&lines)), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}
