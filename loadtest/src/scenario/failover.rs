//! How long is a signer without an owner: after the owner was killed, and after it was asked to stop?
//!
//! The callers are ordinary users of the client library and keep one signer busy. Time counts from the
//! moment before the signal to the first answer that another instance granted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use client::wire::nonces::GrantRequest;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde::Serialize;
use testkit::fleet::{Blueprint, Fleet};
use testkit::http::Client;
use testkit::process::Signal;
use tokio::sync::watch;

use crate::figures::{Latencies, Latency, ms};
use crate::history::{Answer, Asked, Granted, History, Record};
use crate::plot::{Curve, Panel, Scale};
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::verify::{self, Verdict};

/// How long a caller thinks between two calls.
const THINK: std::ops::Range<u64> = 2..8;
/// How long everything may take to be well again before the next signal.
const CALM_WITHIN: Duration = Duration::from_secs(60);
/// How long the signer may be without an owner before the run is given up.
const NEXT_WITHIN: Duration = Duration::from_secs(60);
const HOLD_MS: u64 = 3_600_000;

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started.
    pub blueprint: Blueprint,
    /// How often the owner is killed (SIGKILL).
    pub kills: usize,
    /// How often the owner is asked to stop (SIGTERM).
    pub stops: usize,
    /// How many callers.
    pub callers: usize,
    /// Decides what is left open.
    pub seed: u64,
}

/// What one kind of end came to.
#[derive(Debug, Serialize)]
pub struct Ends {
    /// From the signal to the next granted nonce of the signer, in milliseconds, in their order.
    pub next_grant_ms: Vec<f64>,
    /// The same, summed up.
    pub next_grant: Latency,
    /// Calls that were made while it happened, from the signal until all was calm again.
    pub calls: u64,
    /// Calls that failed for their callers though the library had tried again, by what they were told.
    pub failed: Vec<String>,
    /// The longest time that one of these calls took.
    pub longest_call_ms: f64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Failover {
    /// The seed.
    pub seed: u64,
    /// `basic` or `worker-queue`.
    pub mode: String,
    /// After SIGKILL.
    pub kills: Ends,
    /// After SIGTERM.
    pub stops: Ends,
    /// Calls in all.
    pub calls: usize,
    /// What the checker found.
    pub verdict: Verdict,
}

impl Report for Failover {
    fn table(&self) -> String {
        let row = |name: &str, ends: &Ends| {
            let latency = &ends.next_grant;
            vec![
                format!("{}: {name}", self.mode),
                latency.count.to_string(),
                ms(latency.p50_us),
                ms(latency.p99_us),
                ms(latency.max_us),
                ends.calls.to_string(),
                ends.failed.len().to_string(),
                format!("{:.0}", ends.longest_call_ms),
            ]
        };
        let head = [
            "owner",
            "times",
            "next grant p50 ms",
            "p99 ms",
            "max ms",
            "calls meanwhile",
            "failed",
            "longest call ms",
        ];
        let ends = report::table(&head, &[row("killed", &self.kills), row("asked to stop", &self.stops)]);
        let mut lines = vec![
            ("seed".to_owned(), self.seed.to_string()),
            ("calls in all".to_owned(), self.calls.to_string()),
        ];
        lines.extend(self.verdict.lines());
        let tables = format!("{ends}\n\n{}", report::two_columns(&lines));
        report::with_violations(tables, &self.verdict.violations)
    }

    fn panels(&self) -> Vec<Panel> {
        let curve = |name: &str, ends: &Ends| {
            let mut sorted = ends.next_grant_ms.clone();
            sorted.sort_by(f64::total_cmp);
            let points = sorted.iter().enumerate().map(|(index, ms)| ((index + 1) as f64, *ms)).collect();
            Curve { name: name.to_owned(), points }
        };
        vec![Panel {
            title: "From the signal to the next granted nonce, from the shortest to the longest".to_owned(),
            x: "number".to_owned(),
            y: "ms".to_owned(),
            y_scale: Scale::Log,
            x_is_tail: false,
            curves: vec![curve("killed", &self.kills), curve("asked to stop", &self.stops)],
            marks: Vec::new(),
        }]
    }

    fn violations(&self) -> &[String] {
        &self.verdict.violations
    }
}

/// The latest grant that any caller got.
#[derive(Clone, Debug)]
struct Latest {
    owner: String,
    at: Instant,
}

/// What the callers share.
struct Ring {
    signer: String,
    history: History,
    stop: AtomicBool,
    latest: watch::Sender<Latest>,
}

/// Runs the plan.
///
/// # Errors
/// Something does not start, or nobody takes the signer over. Broken promises are in the report, not here.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Failover> {
    ensure!(plan.blueprint.instances >= 2, "somebody must be there to take over: two instances at least");
    bar.say("starting");
    let fleet = Fleet::build(plan.blueprint.clone()).await?;
    let (latest, _) = watch::channel(Latest { owner: String::new(), at: Instant::now() });
    let ring = Arc::new(Ring {
        signer: "eip155:31337:0xfa11".to_owned(),
        history: History::default(),
        stop: AtomicBool::new(false),
        latest,
    });
    let mut callers = Vec::new();
    for number in 0..plan.callers {
        callers.push(tokio::spawn(call(Arc::clone(&ring), number, fleet.urls().to_vec(), plan.seed)));
    }
    let mut dice = StdRng::seed_from_u64(plan.seed);
    bar.steps((plan.kills + plan.stops) as u64);
    let outcome = async {
        let kills = ends(&fleet, &ring, plan.kills, Signal::Kill, &mut dice, bar).await?;
        anyhow::Ok((kills, ends(&fleet, &ring, plan.stops, Signal::Terminate, &mut dice, bar).await?))
    };
    let outcome = outcome.await;
    ring.stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await??;
    }
    let (kills, stops) = outcome?;
    bar.say("verifying");
    let records = ring.history.records();
    let mut verdict = verify::verify_history(&records, fleet.database(), &fleet.urls()[0]).await?;
    verdict.violations.extend(fleet.defects_logged().await);
    bar.done();
    Ok(Failover {
        seed: plan.seed,
        mode: plan.blueprint.mode.clone(),
        kills,
        stops,
        calls: records.len(),
        verdict,
    })
}

async fn ends(
    fleet: &Fleet,
    ring: &Ring,
    times: usize,
    signal: Signal,
    dice: &mut StdRng,
    bar: &Bar,
) -> Result<Ends> {
    let http = Client::new(Duration::from_secs(2))?;
    let mut took = Vec::new();
    let mut windows = Vec::new();
    for _ in 0..times {
        let (owner, index) = calm(fleet, ring, &http, dice).await?;
        let mut watching = ring.latest.subscribe();
        let began_us = ring.history.now_us();
        let signalled = Instant::now();
        let mut instance = fleet.instance(index).await;
        instance.process().signal(signal)?;
        let next = watching.wait_for(|latest| latest.owner != owner && latest.at > signalled);
        let next = tokio::time::timeout(NEXT_WITHIN, next).await;
        let next = next.with_context(|| format!("nobody else grants {NEXT_WITHIN:?} after {signal:?}"))??.at;
        took.push(next - signalled);
        bar.step(&format!("{signal:?}: {:.0} ms", (next - signalled).as_secs_f64() * 1_000.0));
        instance.ended(Duration::from_secs(40)).await?;
        instance.start().await?;
        drop(instance);
        fleet.all_ready(&http, CALM_WITHIN).await?;
        windows.push((began_us, ring.history.now_us()));
    }
    let meanwhile = |record: &Record| {
        windows.iter().any(|(began, ended)| record.ended_us >= *began && record.sent_us <= *ended)
    };
    let calls: Vec<Record> = ring.history.records().into_iter().filter(meanwhile).collect();
    let failed = |record: &Record| match &record.answer {
        Answer::Unknown { error } => Some(error.clone()),
        _ => None,
    };
    let longest = calls.iter().map(|record| record.ended_us - record.sent_us).max().unwrap_or(0);
    Ok(Ends {
        next_grant: Latencies::gather(took.iter().map(|one| one.as_micros() as u64))?.summary(),
        next_grant_ms: took.iter().map(|one| one.as_secs_f64() * 1_000.0).collect(),
        calls: calls.len() as u64,
        failed: calls.iter().filter_map(failed).collect(),
        longest_call_ms: longest as f64 / 1_000.0,
    })
}

/// Waits until all instances are ready and the signer has been served by one of them for a moment of a
/// length drawn, so that signals fall anywhere between two renewals. Names the owner.
async fn calm(fleet: &Fleet, ring: &Ring, http: &Client, dice: &mut StdRng) -> Result<(String, usize)> {
    fleet.all_ready(http, CALM_WITHIN).await?;
    // Longer than a newcomer waits before it joins the ring.
    tokio::time::sleep(Duration::from_millis(dice.random_range(3_500..5_000))).await;
    let give_up = Instant::now() + CALM_WITHIN;
    loop {
        let mut watching = ring.latest.subscribe();
        watching.borrow_and_update();
        tokio::time::timeout(CALM_WITHIN, watching.changed()).await.context("the signer is not served")??;
        let owner = watching.borrow().owner.clone();
        if let Some(index) = fleet.find(&owner).await {
            return Ok((owner, index));
        }
        ensure!(Instant::now() < give_up, "{owner} serves the signer and is none of ours");
    }
}

/// One caller: asks for a nonce, thinks, asks again. The client library does whatever else there is to do.
async fn call(ring: Arc<Ring>, number: usize, mut urls: Vec<String>, seed: u64) -> Result<()> {
    let mut dice = StdRng::seed_from_u64(seed.wrapping_add(1 + number as u64));
    let own = number % urls.len();
    urls.rotate_left(own);
    let fencepost = client::Client::new(&urls, None)?.in_order();
    let request = GrantRequest { count: Some(1), hold_ms: Some(HOLD_MS) };
    while !ring.stop.load(Ordering::Relaxed) {
        let sent_us = ring.history.now_us();
        let answer = match fencepost.grant(&ring.signer, &request, None).await {
            Ok(granted) => {
                let at = Instant::now();
                let owner = granted.answer.owner.clone();
                ring.latest.send_if_modified(|latest| {
                    let later = at > latest.at;
                    if later {
                        *latest = Latest { owner, at };
                    }
                    later
                });
                answer_of(granted)
            }
            Err(error) => verify::doubtful(&error),
        };
        ring.history.add(Record {
            client: number,
            asked: Asked::Grant { signer: ring.signer.clone(), count: 1, hold_ms: HOLD_MS, key: None },
            answer,
            sent_us,
            ended_us: ring.history.now_us(),
        });
        tokio::time::sleep(Duration::from_millis(dice.random_range(THINK))).await;
    }
    Ok(())
}

fn answer_of(granted: client::Granted) -> Answer {
    let grants = granted.answer.grants.into_iter().map(|one| Granted {
        nonce: one.nonce,
        hold: one.hold,
        held_for_ms: one.held_for_ms,
    });
    Answer::Granted { token: granted.answer.fencing_token, grants: grants.collect() }
}
