//! What happens when three times as much is asked as can be done? Memory must stay bounded, refusals be
//! typed and quick, what is accepted not wait without bound, and all be well soon after.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;
use testkit::fleet::Blueprint;
use testkit::instance::memory_bytes;

use crate::figures::{self, Interval, Summary, ms};
use crate::load::{Ask, Log, Route, Spread, Zipf};
use crate::memory::{MemoryWatch, mib};
use crate::plot::{Curve, Panel, Scale};
use crate::progress::Bar;
use crate::report::{self, Report};
use crate::target::{HOLD_MS, Rhythm, Run, Target, fresh_prefix};
use crate::verify::Verdict;

/// The pieces in which recovery is looked for.
const PIECE: Duration = Duration::from_millis(100);
/// Pieces of one second.
const PIECES_PER_SECOND: usize = 10;
/// A piece is as before if its p99 is no longer than this times what it was, and this more.
const AS_BEFORE: (u64, u64) = (3, 10_000);

/// What is to be run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Running instances; none: one is started.
    pub urls: Vec<String>,
    /// What is started.
    pub blueprint: Blueprint,
    /// How many signers, all wanted alike.
    pub signers: usize,
    /// Nonces of one request.
    pub count: u64,
    /// How many times of what it can take is asked.
    pub times: f64,
    /// For how long.
    pub length: Duration,
    /// Keep-alive connections of the overload; more than the instance lets in.
    pub connections: usize,
    /// Keep-alive connections with which it is found out what it can take.
    pub measuring_connections: usize,
    /// Decides arrivals and signers.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug, Serialize)]
pub struct Overload {
    /// The seed.
    pub seed: u64,
    /// `basic` or `worker-queue`.
    pub mode: String,
    /// As fast as it can.
    pub capacity: Summary,
    /// At half of that.
    pub before: Summary,
    /// At several times of that.
    pub over: Summary,
    /// At half of it again.
    pub after: Summary,
    /// Memory before, at most during, and after the overload, in MiB; nothing for instances that are not ours.
    pub memory_mib: Option<[f64; 3]>,
    /// Memory over time, in seconds since the overload began and MiB.
    pub memory_over_time: Vec<(f64, f64)>,
    /// From the end of the overload until requests were served as before it, in milliseconds; nothing: not
    /// within the time that was looked at.
    pub recovered_ms: Option<u64>,
    /// What the checker found.
    pub verdict: Verdict,
}

impl Report for Overload {
    fn table(&self) -> String {
        let loads = report::loads(&[&self.capacity, &self.before, &self.over, &self.after]);
        let mut lines =
            vec![("seed".to_owned(), self.seed.to_string()), ("mode".to_owned(), self.mode.clone())];
        lines.extend(report::trouble(&self.over));
        let of = |part: &figures::Latency| {
            format!("{} / {} / {}", ms(part.p50_us), ms(part.p99_us), ms(part.max_us))
        };
        lines
            .push(("accepted, from when it was sent, p50 / p99 / max ms".to_owned(), of(&self.over.service)));
        lines.push(("refused, from when it was sent, p50 / p99 / max ms".to_owned(), of(&self.over.refusal)));
        if let Some([before, most, after]) = self.memory_mib {
            lines.push((
                "memory before / most / after, MiB".to_owned(),
                format!("{before:.0} / {most:.0} / {after:.0}"),
            ));
        }
        let recovered = self.recovered_ms.map_or("not seen".to_owned(), |ms| ms.to_string());
        lines.push(("as before again after, ms".to_owned(), recovered));
        lines.extend(self.verdict.lines());
        report::with_violations(
            format!("{loads}\n\n{}", report::two_columns(&lines)),
            &self.verdict.violations,
        )
    }

    fn panels(&self) -> Vec<Panel> {
        let mut panels = report::load_panels(&[&self.before, &self.over, &self.after]);
        let curve = |name: &str, points: Vec<(f64, f64)>| Curve { name: name.to_owned(), points };
        panels.insert(
            1,
            Panel {
                title: "Refused or not answered".to_owned(),
                x: "seconds".to_owned(),
                y: "per second".to_owned(),
                y_scale: Scale::Linear,
                x_is_tail: false,
                curves: vec![curve(
                    &self.over.name,
                    self.over.over_time.iter().map(|at| (at.at_s, at.not_per_second)).collect(),
                )],
                marks: Vec::new(),
            },
        );
        panels.push(Panel {
            title: "Memory of the instance during the overload".to_owned(),
            x: "seconds".to_owned(),
            y: "MiB".to_owned(),
            y_scale: Scale::Linear,
            x_is_tail: false,
            curves: vec![curve("resident", self.memory_over_time.clone())],
            marks: Vec::new(),
        });
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
pub async fn run(plan: &Plan, bar: &Bar) -> Result<Overload> {
    bar.say("starting");
    let target = Target::open(&plan.urls, plan.blueprint.clone()).await?;
    let pid = match target.fleet() {
        Some(fleet) => Some(fleet.instance(0).await.process().pid()),
        None => None,
    };
    let choice = Arc::new(Zipf::new(plan.signers, 0.0));
    let mut prefixes = Vec::new();
    for part in ["capacity", "before", "over", "after"] {
        prefixes.push(fresh_prefix(part));
    }
    let part = |index: usize, name: &'static str, rhythm, length, connections| Run {
        name,
        ask: Ask::Grant { count: plan.count, hold_ms: HOLD_MS, keys: false, again: false },
        rhythm,
        length,
        warm_up: Duration::ZERO,
        connections,
        prefix: &prefixes[index],
        choice: &choice,
        signers: plan.signers,
        route: Route::Owner,
        seed: plan.seed.wrapping_add(index as u64),
    };
    let short = Duration::from_secs(5);
    let measuring = Run {
        warm_up: Duration::from_secs(1),
        ..part(0, "as fast as it can", Rhythm::Closed, short, plan.measuring_connections)
    };
    let (measuring_log, capacity) = measuring.on(&target, bar).await?;
    let rate = |times: f64| Rhythm::Open((capacity.per_second * times).max(1.0), Spread::Poisson);

    let calm = part(1, "half of that", rate(0.5), short, plan.measuring_connections);
    let (calm_log, before) = calm.on(&target, bar).await?;
    let memory_before = pid.map(memory_bytes).transpose()?;
    let watching = MemoryWatch::start(pid);
    let storm = part(2, "overload", rate(plan.times), plan.length, plan.connections);
    let (storm_log, over) = storm.on(&target, bar).await?;
    let memory = watching.end().await?;
    let calm_again = part(3, "half of it again", rate(0.5), short * 2, plan.measuring_connections);
    let (calm_again_log, after) = calm_again.on(&target, bar).await?;
    let memory_after = pid.map(memory_bytes).transpose()?;

    bar.say("verifying");
    let recovered_ms = recovered_ms(&calm_again_log, short * 2, before.latency.p99_us)?;
    let mut verdict = Verdict::default();
    for (run, log) in [
        (&measuring, &measuring_log),
        (&calm, &calm_log),
        (&storm, &storm_log),
        (&calm_again, &calm_again_log),
    ] {
        verdict.add(run.verified(log, &target).await?);
    }
    if let Some(fleet) = target.fleet() {
        verdict.violations.extend(fleet.defects_logged().await);
    }
    bar.done();
    let most = memory.iter().map(|(_, bytes)| *bytes).max();
    Ok(Overload {
        seed: plan.seed,
        mode: plan.blueprint.mode.clone(),
        capacity,
        before,
        over,
        after,
        memory_mib: memory_before.zip(most).zip(memory_after).map(|((a, b), c)| [mib(a), mib(b), mib(c)]),
        memory_over_time: memory.into_iter().map(|(at, bytes)| (at, mib(bytes))).collect(),
        recovered_ms,
        verdict,
    })
}

/// When the first whole second began in which every piece was as before: nothing refused, nothing slow. A hiccup long
/// after that is for the percentiles to show.
fn recovered_ms(log: &Log, length: Duration, p99_before_us: u64) -> Result<Option<u64>> {
    let pieces = figures::over_time(&log.entries, PIECE, length)?;
    let good = |piece: &Interval| {
        piece.not_per_second == 0.0
            && piece.per_second > 0.0
            && piece.p99_us <= p99_before_us * AS_BEFORE.0 + AS_BEFORE.1
    };
    let good_second = pieces.windows(PIECES_PER_SECOND).position(|second| second.iter().all(good));
    Ok(good_second.map(|piece| piece as u64 * PIECE.as_millis() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Entry, Said};

    #[test]
    fn recovery_ends_where_the_first_whole_second_as_before_begins() {
        let log = |slow: &[u64]| {
            let mut log = Log::default();
            for piece in 0_u64..30 {
                let ended_us = piece * 100_000 + 50_000;
                let intended_us =
                    ended_us.saturating_sub(if slow.contains(&piece) { 200_000 } else { 1_000 });
                log.entries.push(Entry {
                    signer: 0,
                    intended_us,
                    sent_us: ended_us,
                    ended_us,
                    said: Said::Fine,
                });
            }
            log
        };
        let length = Duration::from_secs(3);
        let recovered = |log: &Log, p99_us| recovered_ms(log, length, p99_us).unwrap();
        assert_eq!(recovered(&log(&[3]), 1_000), Some(400));
        assert_eq!(recovered(&log(&[3]), 200_000), Some(0), "it was as slow before");
        assert_eq!(recovered(&log(&[3, 25]), 1_000), Some(400), "a later hiccup is another matter");
        assert_eq!(recovered(&log(&[3, 12, 21]), 1_000), None);
        let mut refused = log(&[]);
        refused.entries[0].said = Said::Refused(0);
        assert_eq!(recovered(&refused, 1_000), Some(100));
    }
}
