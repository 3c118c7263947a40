//! What do a hundred thousand live owners cost one instance: memory of each, renewing their leases, and
//! how long others wait while that goes on?

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use testkit::fleet::Blueprint;
use testkit::servers::Statements;

use crate::figures::Summary;
use crate::load::{Ask, Route, Spread, Zipf};
use crate::memory::mib;
use crate::metrics::Metrics;
use crate::plot::Panel;
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::tables;
use crate::target::{HOLD_MS, Rhythm, Run, Target, fresh_prefix};
use crate::verify::Verdict;

/// Statements that renew leases write to them, and neither raise a token nor let go.
const RENEWALS: (&str, &str) = (r"update\s+lease\y", r"fencing_token\s*\+\s*1|owner\s*=\s*null");
/// Owners give their leases back when idle for longer than this; longer than any run.
const IDLE_MS: &str = "3600000";
/// Signers that others are asked for while the many are renewed.
const OTHERS: usize = 100;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started: one instance in worker-queue mode.
    pub blueprint: Blueprint,
    /// How many live owners.
    pub actors: usize,
    /// Grants per second for others, before and while the many live.
    pub rate: f64,
    /// How long is measured while they live; several renewals.
    pub length: Duration,
    /// Keep-alive connections.
    pub connections: usize,
    /// Decides arrivals and signers.
    pub seed: u64,
}

impl Plan {
    /// What is started for it: owners that stay, on a server that counts its statements.
    #[must_use]
    pub fn blueprint() -> Blueprint {
        let blueprint = Blueprint::new("worker-queue", 1).env("FENCEPOST__WORKER_QUEUE__IDLE_MS", IDLE_MS);
        Blueprint { counting: true, ..blueprint }
    }
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Live {
    /// The seed.
    pub seed: u64,
    /// Signers whose leases the instance had at the end.
    pub live: u64,
    /// How long it took to bring them to life, in seconds.
    pub brought_up_s: f64,
    /// Memory of the instance before they lived, in MiB.
    pub memory_before_mib: f64,
    /// Memory of the instance with them, in MiB.
    pub memory_with_mib: f64,
    /// Memory for each, in bytes.
    pub bytes_each: f64,
    /// Leases renewed per second, as the instance tells.
    pub renewed_per_second: f64,
    /// Leases lost and renewals that failed, as the instance tells.
    pub not_renewed: f64,
    /// Statements that renewed leases, per second, as PostgreSQL counts them.
    pub statements_per_second: f64,
    /// Seconds of PostgreSQL's time that these took, per second.
    pub statement_seconds_per_second: f64,
    /// Others before the many lived.
    pub before: Summary,
    /// Others while the many lived.
    pub with: Summary,
    /// What the checker found.
    pub verdict: Verdict,
}

impl Report for Live {
    fn table(&self) -> String {
        let loads = report::loads(&[&self.before, &self.with]);
        let mut lines = vec![
            ("seed".to_owned(), self.seed.to_string()),
            ("live owners".to_owned(), self.live.to_string()),
            ("brought to life in, s".to_owned(), format!("{:.1}", self.brought_up_s)),
            (
                "memory before / with, MiB".to_owned(),
                format!("{:.1} / {:.1}", self.memory_before_mib, self.memory_with_mib),
            ),
            ("memory of each, bytes".to_owned(), format!("{:.0}", self.bytes_each)),
            ("leases renewed per s".to_owned(), format!("{:.0}", self.renewed_per_second)),
            ("leases lost or not renewed".to_owned(), format!("{:.0}", self.not_renewed)),
            ("renewing statements per s".to_owned(), format!("{:.1}", self.statements_per_second)),
            (
                "PostgreSQL's seconds for them per s".to_owned(),
                format!("{:.3}", self.statement_seconds_per_second),
            ),
        ];
        lines.extend(report::trouble(&self.with));
        lines.extend(self.verdict.lines());
        report::with_violations(
            format!("{loads}\n\n{}", report::two_columns(&lines)),
            &self.verdict.violations,
        )
    }

    fn panels(&self) -> Vec<Panel> {
        report::load_panels(&[&self.before, &self.with])
    }

    fn violations(&self) -> &[String] {
        &self.verdict.violations
    }
}

/// Runs the plan.
///
/// # Errors
/// Something does not start or answer, or not all could be brought to life. Broken promises are in the
/// report, not here.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Live> {
    bar.say("starting");
    let target = Target::open(&[], plan.blueprint.clone()).await?;
    let (Some(fleet), Some(database)) = (target.fleet(), target.database()) else {
        anyhow::bail!("the instance is ours");
    };
    let memory = || async { fleet.instance(0).await.memory_bytes() };
    let choice = Arc::new(Zipf::new(OTHERS, 0.0));
    let (prefix_before, prefix_with) = (fresh_prefix("before"), fresh_prefix("with"));
    let prefix = fresh_prefix("live");
    let others = |name: &'static str, length, seed| Run {
        name,
        ask: Ask::Grant { count: 1, hold_ms: HOLD_MS, keys: false, again: false },
        rhythm: Rhythm::Open(plan.rate, Spread::Poisson),
        length,
        warm_up: length / 10,
        connections: plan.connections,
        prefix: "",
        choice: &choice,
        signers: OTHERS,
        route: Route::Owner,
        seed,
    };
    let before_run = Run {
        prefix: &prefix_before,
        ..others("others, alone", plan.length.min(Duration::from_secs(10)), plan.seed)
    };
    let (before_log, before) = before_run.on(&target, bar).await?;

    let memory_before = memory().await?;
    let began = Instant::now();
    let many = Run {
        prefix: &prefix,
        signers: plan.actors,
        connections: plan.connections.max(128),
        ..others("the many", Duration::ZERO, plan.seed)
    };
    let log = many.each_once(&target, bar).await?;
    let brought_up_s = began.elapsed().as_secs_f64();
    let refused = log.entries.iter().filter(|entry| !entry.is_fine()).count();
    ensure!(refused == 0, "{refused} of {} signers were not granted their first nonce", plan.actors);

    let (metrics, statements) = look(&target).await?;
    let seen = Instant::now();
    let with_run = Run {
        prefix: &prefix_with,
        ..others("others, with the many", plan.length, plan.seed.wrapping_add(1))
    };
    let (with_log, with) = with_run.on(&target, bar).await?;
    let (metrics_then, statements_then) = look(&target).await?;
    let seconds = seen.elapsed().as_secs_f64();
    let memory_with = memory().await?;
    let renewed = metrics_then.since(&metrics);
    let statements = statements_then.since(statements);
    let live = tables::value(
        database,
        "select count(*) from lease where resource like 'signer:%' and owner is not null and expires_at > clock_timestamp()",
    )?;

    bar.say("verifying");
    let mut verdict = before_run.verified(&before_log, &target).await?;
    verdict.add(with_run.verified(&with_log, &target).await?);
    verdict.add(many.verified(&log, &target).await?);
    verdict.violations.extend(fleet.defects_logged().await);
    bar.done();
    Ok(Live {
        seed: plan.seed,
        live: live.parse()?,
        brought_up_s,
        memory_before_mib: mib(memory_before),
        memory_with_mib: mib(memory_with),
        bytes_each: memory_with.saturating_sub(memory_before) as f64 / plan.actors.max(1) as f64,
        renewed_per_second: renewed.sum("fencepost_lease_renew_total", &["result=\"renewed\""]) / seconds,
        not_renewed: renewed.sum("fencepost_lease_renew_total", &["result=\"lost\""])
            + renewed.sum("fencepost_lease_renew_total", &["result=\"error\""]),
        statements_per_second: statements.count / seconds,
        statement_seconds_per_second: statements.seconds / seconds,
        before,
        with,
        verdict,
    })
}

async fn look(target: &Target) -> Result<(Metrics, Statements)> {
    let statements = match target.database() {
        Some(database) => {
            let database = database.clone();
            tokio::task::spawn_blocking(move || database.statements(RENEWALS.0, RENEWALS.1)).await??
        }
        None => Statements::default(),
    };
    Ok((target.metrics().await?, statements))
}
