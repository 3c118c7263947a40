//! What do callers notice when an instance joins and when one leaves? How many keys move, how long does
//! one key wait at most, and is anything lost?
//!
//! Requests come on a schedule. One that is refused or not answered is tried again every 10 ms under its
//! key until it is granted, so that a key's pause is exactly as long as the key was not served.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use testkit::fleet::{Blueprint, Fleet};
use testkit::process::Signal;

use crate::figures::{self, Latencies, Latency, Summary, ms};
use crate::load::{self, Ask, Entry, Log, Pace, Route, Said, Schedule, Spread, Targets, Zipf};
use crate::plot::Panel;
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::target::{HOLD_MS, fresh_prefix};
use crate::verify::{Case, Truth, Verdict, verify};

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is started; one more joins, and one of the first leaves.
    pub blueprint: Blueprint,
    /// How many signers, all wanted alike.
    pub signers: usize,
    /// Requests per second.
    pub rate: f64,
    /// Length of each of the three parts: before the join, after it, after the leave. Each signer should be
    /// asked for several times in each.
    pub part: Duration,
    /// Keep-alive connections.
    pub connections: usize,
    /// Decides arrivals and signers.
    pub seed: u64,
}

/// What one change did.
#[derive(Debug, Serialize)]
pub struct Change {
    /// `join` or `leave`.
    pub what: &'static str,
    /// When, in seconds since the load began.
    pub at_s: f64,
    /// Keys that were served before and after.
    pub keys: usize,
    /// Keys whose last answer after the change came from another instance than the last one before.
    pub moved: usize,
    /// The same as a part of all.
    pub moved_share: f64,
    /// What would have moved if every instance served as many keys as any other, before and after.
    pub ideal_share: f64,
    /// For each key its longest pause: from when a request was to begin until it, or the next one, was
    /// granted.
    pub pause: Latency,
    /// Requests that were to begin within this part and were not served, though they were tried again.
    pub not_served: u64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Membership {
    /// The seed.
    pub seed: u64,
    /// `basic` or `worker-queue`.
    pub mode: String,
    /// The pauses of keys while nothing changed, to compare with.
    pub quiet: Latency,
    /// The join, then the leave.
    pub changes: Vec<Change>,
    /// How often a request was tried again.
    pub tried_again: u64,
    /// Rates and latencies.
    pub load: Summary,
    /// What the checker found.
    pub verdict: Verdict,
}

impl Report for Membership {
    fn table(&self) -> String {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        let mut rows = vec![vec![
            format!("{}: nothing", self.mode),
            String::new(),
            String::new(),
            ms(self.quiet.p50_us),
            ms(self.quiet.p99_us),
            ms(self.quiet.max_us),
            String::new(),
        ]];
        rows.extend(self.changes.iter().map(|change| {
            vec![
                format!("{}: {}", self.mode, change.what),
                format!("{} of {}: {}", change.moved, change.keys, percent(change.moved_share)),
                percent(change.ideal_share),
                ms(change.pause.p50_us),
                ms(change.pause.p99_us),
                ms(change.pause.max_us),
                change.not_served.to_string(),
            ]
        }));
        let head = [
            "change",
            "keys moved",
            "ideal",
            "a key's longest pause p50 ms",
            "p99 ms",
            "max ms",
            "not served",
        ];
        let mut lines = vec![
            ("seed".to_owned(), self.seed.to_string()),
            ("tried again".to_owned(), self.tried_again.to_string()),
        ];
        lines.extend(report::trouble(&self.load));
        lines.extend(self.verdict.lines());
        let tables = format!(
            "{}\n\n{}\n\n{}",
            report::table(&head, &rows),
            report::loads(&[&self.load]),
            report::two_columns(&lines)
        );
        report::with_violations(tables, &self.verdict.violations)
    }

    fn panels(&self) -> Vec<Panel> {
        let mut panels = report::load_panels(&[&self.load]);
        for panel in panels.iter_mut().filter(|panel| !panel.x_is_tail) {
            panel.marks = self.changes.iter().map(|change| (change.at_s, change.what.to_owned())).collect();
        }
        panels
    }

    fn violations(&self) -> &[String] {
        &self.verdict.violations
    }
}

/// Runs the plan.
///
/// # Errors
/// Something does not start or answer. Broken promises are in the report, not here.
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Membership> {
    bar.say("starting");
    let mut fleet = Fleet::build(plan.blueprint.clone()).await?;
    let targets = Arc::new(Targets::new(fleet.urls(), plan.signers));
    let prefix = fresh_prefix("keys");
    let length = plan.part * 3;
    let schedule = Schedule::new(Spread::Poisson, plan.rate, length, plan.seed);
    let load_plan = load::Plan {
        ask: Ask::Grant { count: 1, hold_ms: HOLD_MS, keys: true, again: true },
        pace: Pace::Open(Arc::new(schedule)),
        connections: plan.connections,
        prefix: prefix.clone(),
        choice: Arc::new(Zipf::new(plan.signers, 0.0)),
        route: Route::Owner,
        seed: plan.seed,
    };
    // Every key has an owner before it begins.
    let first = Instant::now();
    bar.say("each signer once");
    let each = load::Plan { pace: Pace::Each(plan.signers), seed: !plan.seed, ..load_plan.clone() };
    let mut whole = load::run(each, &targets, &Arc::default()).await?;
    let counts = Arc::default();
    let following = bar.follow("a join, then a leave", length, &counts);
    let began = Instant::now();
    let loading = {
        let targets = Arc::clone(&targets);
        tokio::spawn(async move { load::run(load_plan, &targets, &counts).await })
    };
    tokio::time::sleep(plan.part.saturating_sub(began.elapsed())).await;
    let joined = began.elapsed();
    targets.index_of(&fleet.join().await?);
    tokio::time::sleep((plan.part * 2).saturating_sub(began.elapsed())).await;
    let left = began.elapsed();
    // Callers that spray leave it out; those that know an owner hear from itself that it is leaving.
    targets.leave(&fleet.urls()[0]);
    fleet.instance(0).await.end_by(Signal::Terminate, Duration::from_secs(40)).await?;
    let log = loading.await??;
    drop(following);

    bar.say("verifying");
    let load = figures::summary("a join, then a leave", &log, Duration::ZERO, length)?;
    let case = Case { prefix: &prefix, count: 1, hold_ms: HOLD_MS, seed: plan.seed };
    let truth = Truth { database: Some(fleet.database()), url: &fleet.urls()[1] };
    whole.append(log.clone(), (began - first).as_micros() as u64);
    let mut verdict = verify(&whole, &case, &truth).await?;
    verdict.violations.extend(fleet.defects_logged().await);
    bar.done();
    let us = |time: Duration| time.as_micros() as u64;
    let (joined_us, left_us) = (us(joined), us(left));
    let few = plan.blueprint.instances as f64;
    let keys = log.by_signer();
    Ok(Membership {
        seed: plan.seed,
        mode: plan.blueprint.mode.clone(),
        quiet: Latencies::gather(pauses(&keys, 0..joined_us))?.summary(),
        changes: vec![
            change("join", &log, &keys, 0..joined_us, joined_us..left_us, 1.0 / (few + 1.0))?,
            change("leave", &log, &keys, joined_us..left_us, left_us..u64::MAX, 1.0 / (few + 1.0))?,
        ],
        tried_again: log.tried_again,
        load,
        verdict,
    })
}

type Keys<'l> = BTreeMap<u32, Vec<&'l Entry>>;
type Part = std::ops::Range<u64>;

fn change(
    what: &'static str,
    log: &Log,
    keys: &Keys<'_>,
    before: Part,
    after: Part,
    ideal_share: f64,
) -> Result<Change> {
    let (was, is) = (owners(log, keys, &before), owners(log, keys, &after));
    let both: Vec<(&String, &String)> =
        was.iter().filter_map(|(key, owner)| Some((*owner, *is.get(key)?))).collect();
    let moved = both.iter().filter(|(was, is)| was != is).count();
    let not_served =
        log.entries.iter().filter(|entry| after.contains(&entry.intended_us) && !entry.is_fine());
    Ok(Change {
        what,
        at_s: after.start as f64 / 1e6,
        keys: both.len(),
        moved,
        moved_share: moved as f64 / both.len().max(1) as f64,
        ideal_share,
        not_served: not_served.count() as u64,
        pause: Latencies::gather(pauses(keys, after))?.summary(),
    })
}

/// Who granted last for each key within a part.
fn owners<'l>(log: &'l Log, keys: &Keys<'_>, part: &Part) -> BTreeMap<u32, &'l String> {
    let last = |entries: &Vec<&Entry>| {
        let within = entries.iter().filter(|entry| part.contains(&entry.ended_us));
        let granted = within.filter_map(|entry| match entry.said {
            Said::Granted { owner, .. } => Some((entry.ended_us, owner)),
            _ => None,
        });
        granted.max_by_key(|(ended, _)| *ended).map(|(_, owner)| &log.owners[owner as usize])
    };
    keys.iter().filter_map(|(key, entries)| Some((*key, last(entries)?))).collect()
}

/// For each key, how long its callers waited at most within a part: from when the first request that was
/// not served at once was to begin to the end of the next one that was granted. A key whose callers wait
/// to the very end has waited until its last one gave up.
fn pauses(keys: &Keys<'_>, part: Part) -> Vec<u64> {
    let longest = |entries: &Vec<&Entry>| {
        let within: Vec<&&Entry> = entries.iter().filter(|entry| part.contains(&entry.intended_us)).collect();
        let pause = |entry: &&&Entry| {
            // A request that is served ends its own wait.
            let granted = entries
                .iter()
                .filter(|later| later.is_fine() && later.intended_us >= entry.intended_us)
                .map(|later| later.ended_us)
                .min();
            granted.unwrap_or(entry.ended_us).saturating_sub(entry.intended_us)
        };
        within.iter().map(pause).max()
    };
    keys.values().filter_map(longest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(intended_us: u64, ended_us: u64, owner: Option<u16>) -> Entry {
        let said = match owner {
            Some(owner) => Said::Granted { token: 1, owner, first: 0, count: 1 },
            None => Said::Refused(0),
        };
        Entry { signer: 1, intended_us, sent_us: intended_us, ended_us, said }
    }

    #[test]
    fn a_pause_lasts_from_the_first_that_was_not_served_to_the_next_that_was() {
        let entries =
            [entry(0, 10, Some(0)), entry(100, 110, None), entry(150, 155, None), entry(200, 260, Some(1))];
        let keys = BTreeMap::from([(1, entries.iter().collect::<Vec<_>>())]);
        assert_eq!(pauses(&keys, 0..1_000), [160]);
        assert_eq!(pauses(&keys, 0..50), [10]);
        assert_eq!(pauses(&keys, 300..1_000), [0; 0]);
        let cut_short = BTreeMap::from([(1, entries[..3].iter().collect::<Vec<_>>())]);
        assert_eq!(pauses(&cut_short, 0..1_000), [10]);
    }

    #[test]
    fn a_key_has_moved_when_another_serves_it() {
        let mut log = Log::default();
        log.owner("a");
        log.owner("b");
        log.word("503 draining");
        log.entries = vec![entry(0, 10, Some(0)), entry(100, 110, Some(1)), entry(200, 210, Some(0))];
        let keys = log.by_signer();
        let moved =
            |before: Part, after: Part| change("join", &log, &keys, before, after, 0.25).unwrap().moved;
        assert_eq!((moved(0..50, 50..150), moved(0..50, 150..300)), (1, 0));
    }
}
