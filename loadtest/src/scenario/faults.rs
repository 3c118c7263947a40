//! Does every promise hold while instances are killed, frozen and cut off, and their servers crash,
//! stand still and lose what they knew?
//!
//! Clients spray requests over the instances, retry what they got no answer to, forget some holds,
//! and remember everything. A schedule of faults runs beside them. When all is healed, the checker
//! judges.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;
use testkit::fault_nodes::Counts;
use testkit::fleet::{Blueprint, Fleet};
use testkit::http::Client;

use crate::access::{Access, Role};
use crate::caller::{Caller, HOLD_MAX};
use crate::checker::{self, Violation};
use crate::faults::{Fault, Recipe};
use crate::history::{Answer, Asked, History, TokenSeen};
use crate::inject::Injector;
use crate::nonce_calls;
use crate::{report, tables};

/// Within this time everything must work again by itself, without a restart.
const HEALED_WITHIN: Duration = Duration::from_secs(60);
/// So long after its end by the instances' clocks no hold is still held.
const EXPIRED_WITHIN: Duration = Duration::from_secs(20);

/// What is to be run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// `basic` or `worker-queue`.
    pub mode: &'static str,
    /// Decides faults and requests (not their interleaving, which the machine decides).
    pub seed: u64,
    /// How many faults.
    pub faults: usize,
    /// How many instances.
    pub instances: usize,
    /// How many clients.
    pub clients: usize,
    /// How many signers; the first two get half of the requests.
    pub signers: usize,
    /// Mean time from one fault to the next.
    pub mean_gap: Duration,
    /// Length of a signer's lease.
    pub lease: Duration,
    /// How long PostgreSQL is frozen when it is.
    pub freeze: Duration,
    /// With a Redis, and what can happen to it.
    pub redis: bool,
    /// Over TLS, and with tokens.
    pub secured: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            mode: "basic",
            seed: rand::random(),
            faults: 10,
            instances: 3,
            clients: 8,
            signers: 8,
            mean_gap: Duration::from_millis(2_000),
            lease: Duration::from_millis(1_000),
            freeze: Duration::from_secs(10),
            redis: true,
            secured: false,
        }
    }
}

/// What was done, and what the checker found.
#[derive(Debug, Serialize)]
pub struct Report {
    /// `basic` or `worker-queue`.
    pub mode: &'static str,
    /// The seed, to run it again.
    pub seed: u64,
    /// How long the clients ran, in seconds.
    pub seconds: f64,
    /// Faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Requests by what came of them.
    pub requests: BTreeMap<String, u64>,
    /// Rows by status, at the end.
    pub rows: BTreeMap<String, u64>,
    /// Lease tokens looked at while it ran.
    pub tokens_seen: usize,
    /// From the last fault's end until every instance granted for every signer, in milliseconds.
    pub healed_ms: u64,
    /// Broken promises. Empty is what we want.
    pub violations: Vec<String>,
}

impl report::Report for Report {
    fn table(&self) -> String {
        let mut lines = vec![
            ("mode".to_owned(), self.mode.to_owned()),
            ("seed".to_owned(), self.seed.to_string()),
            ("seconds".to_owned(), format!("{:.1}", self.seconds)),
        ];
        lines.extend(report::counted("faults", &self.faults));
        lines.extend(report::counted("requests", &self.requests));
        lines.extend(report::counted("rows", &self.rows));
        lines.push(("lease tokens looked at".to_owned(), self.tokens_seen.to_string()));
        lines.push(("healed after, ms".to_owned(), self.healed_ms.to_string()));
        lines.push(("broken promises".to_owned(), self.violations.len().to_string()));
        report::with_violations(report::two_columns(&lines), &self.violations)
    }

    fn violations(&self) -> &[String] {
        &self.violations
    }
}

/// Runs the plan; `step` is called after each fault.
///
/// # Errors
/// Something does not start, or does not heal. Broken promises are in the report, not here.
pub async fn run(plan: &Plan, step: impl Fn(&Fault)) -> Result<Report> {
    let blueprint = Blueprint {
        redis: plan.redis,
        cuts: true,
        ..Blueprint::new(plan.mode, plan.instances)
            .env("FENCEPOST__LEASE__SIGNER_MS", &plan.lease.as_millis().to_string())
    };
    let access = Access::new(plan.secured)?;
    let fleet = Arc::new(Fleet::build(access.demanded_by(blueprint)).await?);
    let history = Arc::new(History::default());
    let stop = Arc::new(AtomicBool::new(false));
    let signers: Arc<[String]> =
        (0..plan.signers).map(|index| format!("eip155:31337:0x{index:040x}")).collect::<Vec<_>>().into();

    let watching = tokio::spawn(watch_tokens(Arc::clone(&fleet), Arc::clone(&stop)));
    let mut clients = Vec::new();
    for number in 0..plan.clients {
        let caller = Caller::new(number, plan.seed, fleet.urls(), &signers, Arc::clone(&history), &access)?;
        clients.push(tokio::spawn(caller.run(Arc::clone(&stop))));
    }
    let began = Instant::now();
    let outcome = hurt(plan, &fleet, step).await;
    let healing = Instant::now();
    let client = access.client(Role::Operator, Duration::from_secs(10))?;
    let healed = match &outcome {
        Ok(_) => heal(&fleet, &client, &history, &signers).await,
        Err(_) => Ok(()),
    };
    let healed_ms = healing.elapsed().as_millis() as u64;
    stop.store(true, Ordering::Relaxed);
    for client in clients {
        client.await?;
    }
    let tokens = watching.await?;
    let faults = outcome?;
    healed?;
    let seconds = began.elapsed().as_secs_f64();

    let tables = settle_down(&fleet, &client, &history).await?;
    let records = history.records();
    let mut violations: Vec<String> =
        checker::check(&records, &tokens, &tables).iter().map(Violation::to_string).collect();
    violations.extend(fleet.defects_logged().await);
    Ok(Report {
        mode: plan.mode,
        seed: plan.seed,
        seconds,
        faults,
        requests: report::counts(records.iter().map(|record| came_to(&record.answer))),
        rows: report::counts(tables.rows.iter().map(|row| &row.status)),
        tokens_seen: tokens.len(),
        healed_ms,
        violations,
    })
}

async fn hurt(plan: &Plan, fleet: &Arc<Fleet>, step: impl Fn(&Fault)) -> Result<BTreeMap<&'static str, u64>> {
    let recipe = Recipe {
        seed: plan.seed,
        faults: plan.faults,
        instances: plan.instances,
        mean_gap: plan.mean_gap,
        lease: plan.lease,
        freeze: plan.freeze,
        redis: plan.redis,
        nodes: Counts::default(),
    };
    Arc::new(Injector::new(Arc::clone(fleet), None)).carry_out(recipe.schedule(), step).await
}

/// Everything is up again: every instance must grant for every signer, by itself and soon.
async fn heal(fleet: &Fleet, client: &Client, history: &History, signers: &[String]) -> Result<()> {
    fleet.all_ready(client, HEALED_WITHIN).await?;
    let give_up = Instant::now() + HEALED_WITHIN;
    for url in fleet.urls() {
        for signer in signers {
            let asked = Asked::Grant {
                signer: signer.clone(),
                count: 1,
                hold_ms: HOLD_MAX.as_millis() as u64,
                key: None,
            };
            loop {
                let answer = nonce_calls::ask(client, history, usize::MAX, url, &asked).await;
                if answer.is_success() {
                    break;
                }
                ensure!(
                    Instant::now() < give_up,
                    "{url} does not grant for {signer} after {HEALED_WITHIN:?}: {answer:?}"
                );
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
        }
    }
    Ok(())
}

/// Waits until no hold is left that has run out by now (nobody is forgotten) and reads the tables. Others run out
/// meanwhile. An instance that has just started counts the length of earlier holds from its start, since it does not know
/// whether the database's clock has jumped.
pub(super) async fn settle_down(
    fleet: &Fleet,
    client: &Client,
    history: &History,
) -> Result<checker::Tables> {
    let (began, give_up) = (tables::now(fleet.database())?, Instant::now() + HOLD_MAX + EXPIRED_WITHIN);
    loop {
        let overdue = tables::overdue(fleet.database(), &began)?;
        if overdue == 0 {
            break;
        }
        ensure!(
            Instant::now() < give_up,
            "{overdue} holds that ran out are still HELD after {:?}",
            HOLD_MAX + EXPIRED_WITHIN
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let tables = tables::read(fleet.database(), client, &fleet.urls()[0]).await?;
    Ok(checker::Tables { read_us: Some(history.now_us()), ..tables })
}

pub(super) async fn watch_tokens(fleet: Arc<Fleet>, stop: Arc<AtomicBool>) -> Vec<TokenSeen> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let fleet = Arc::clone(&fleet);
        let read = tokio::task::spawn_blocking(move || tables::tokens(fleet.database())).await;
        // While the database is away there is nothing to see.
        if let Ok(Ok(tokens)) = read {
            seen.extend(tokens);
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    seen
}

fn came_to(answer: &Answer) -> String {
    match answer {
        Answer::Granted { .. } => "granted".to_owned(),
        Answer::Settled(_) => "settled".to_owned(),
        Answer::Refused { code, .. } => format!("refused {code}"),
        Answer::Unknown { .. } => "no answer".to_owned(),
        Answer::Malformed { status, .. } => format!("malformed {status}"),
    }
}
