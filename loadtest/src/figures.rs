//! Figures from a load's log: rates, latencies by quantile, and how both went over time. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::load::{Entry, Log, Said};

/// Latencies, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// How many there are.
    pub count: u64,
    /// Half of them took this long or less.
    pub p50_us: u64,
    /// 90 of 100 took this long or less.
    pub p90_us: u64,
    /// 99 of 100 took this long or less.
    pub p99_us: u64,
    /// 999 of 1,000 took this long or less.
    pub p999_us: u64,
    /// The longest.
    pub max_us: u64,
}

impl Latency {
    /// Its line in a table: what it is, how many, and the median, 99 of 100 and the longest in milliseconds.
    #[must_use]
    pub fn row(&self, what: &str) -> Vec<String> {
        let times = [self.p50_us, self.p99_us, self.max_us].map(ms);
        [vec![what.to_owned(), self.count.to_string()], times.to_vec()].concat()
    }
}

/// Latencies to three digits.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// Gathers them, in microseconds.
    ///
    /// # Errors
    /// One is too long to be counted, which no `u64` of microseconds that a run can produce is.
    pub fn gather(all: impl IntoIterator<Item = u64>) -> Result<Self> {
        let mut histogram = Histogram::new(3)?;
        for one in all {
            histogram.record(one)?;
        }
        Ok(Self(histogram))
    }

    /// The usual quantiles.
    #[must_use]
    pub fn summary(&self) -> Latency {
        let at = |quantile| self.0.value_at_quantile(quantile);
        Latency {
            count: self.0.len(),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            max_us: self.0.max(),
        }
    }

    /// The distribution for a plot: for 0, 1, 2, … ninths of nines, up to where a single one is, the part
    /// that was longer (1, 0.1, 0.01 …) and the latency there.
    #[must_use]
    pub fn distribution(&self) -> Vec<(f64, f64)> {
        let count = self.0.len();
        if count == 0 {
            return Vec::new();
        }
        let steps = 8.0;
        let mut points = Vec::new();
        for step in 0.. {
            let longer = 10_f64.powf(-f64::from(step) / steps);
            points.push((longer, self.0.value_at_quantile(1.0 - longer) as f64));
            if longer * (count as f64) < 1.0 {
                break;
            }
        }
        points
    }
}

/// One interval of a load.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// Its end, in seconds since the load began.
    pub at_s: f64,
    /// Requests answered as hoped, per second.
    pub per_second: f64,
    /// Requests that ended otherwise, per second.
    pub not_per_second: f64,
    /// The median latency, in microseconds.
    pub p50_us: u64,
    /// The 99th percentile of the latencies, in microseconds.
    pub p99_us: u64,
}

/// What a load came to.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// What was loaded.
    pub name: String,
    /// Requests answered as hoped within the measured time.
    pub fine: u64,
    /// The same per second.
    pub per_second: f64,
    /// Nonces per second.
    pub nonces_per_second: f64,
    /// From the intended start to the answer as hoped.
    pub latency: Latency,
    /// From when the request was sent to the answer as hoped: the daemon's part.
    pub service: Latency,
    /// From when the request was sent to the refusal.
    pub refusal: Latency,
    /// Requests that were refused, by status and code.
    pub refused: BTreeMap<String, u64>,
    /// Requests without an answer, by reason.
    pub unanswered: BTreeMap<String, u64>,
    /// Answers that the contract does not allow.
    pub malformed: u64,
    /// Requests that were due and for which no connection became free.
    pub never_sent: u64,
    /// Cores that the generator itself kept busy on average; 0 where that was not looked at.
    pub generator_cores: f64,
    /// How it went.
    pub over_time: Vec<Interval>,
    /// The part that was longer, and the latency in microseconds there.
    #[serde(skip)]
    pub distribution: Vec<(f64, f64)>,
}

/// Sums up what ended from `warm_up` to `end` after the load began.
///
/// # Errors
/// As for [`Latencies::gather`].
pub fn summary(name: &str, log: &Log, warm_up: Duration, end: Duration) -> Result<Summary> {
    let (from, to) = (warm_up.as_micros() as u64, end.as_micros() as u64);
    let within: Vec<&Entry> = log
        .entries
        .iter()
        // What should have begun in the measured time counts, however long it took; for the rate, what ended.
        .filter(|entry| (from..to).contains(&entry.intended_us))
        .collect();
    let fine = || within.iter().filter(|entry| entry.is_fine());
    let ended = || log.entries.iter().filter(|entry| entry.is_fine() && (from..to).contains(&entry.ended_us));
    let seconds = (to.saturating_sub(from)) as f64 / 1e6;
    let nonces: u64 = ended()
        .map(|entry| match entry.said {
            Said::Granted { count, .. } => u64::from(count),
            _ => 0,
        })
        .sum();
    let (mut refused, mut unanswered) = (BTreeMap::new(), BTreeMap::new());
    let mut malformed = 0;
    for entry in &within {
        match entry.said {
            Said::Refused(word) => *refused.entry(log.words[word as usize].clone()).or_default() += 1,
            Said::Unknown(word) => *unanswered.entry(log.words[word as usize].clone()).or_default() += 1,
            Said::Malformed(_) => malformed += 1,
            Said::Fine | Said::Granted { .. } => {}
        }
    }
    let latencies = Latencies::gather(fine().map(|entry| entry.latency_us()))?;
    let refusals = within.iter().filter(|entry| matches!(entry.said, Said::Refused(_)));
    let count = ended().count() as u64;
    Ok(Summary {
        name: name.to_owned(),
        fine: count,
        per_second: count as f64 / seconds,
        nonces_per_second: nonces as f64 / seconds,
        latency: latencies.summary(),
        service: Latencies::gather(fine().map(|entry| entry.service_us()))?.summary(),
        refusal: Latencies::gather(refusals.map(|entry| entry.service_us()))?.summary(),
        refused,
        unanswered,
        malformed,
        never_sent: log.never_sent,
        generator_cores: 0.0,
        over_time: over_time(&log.entries, interval_for(end), end)?,
        distribution: latencies.distribution(),
    })
}

/// A round length that cuts a load into a hundred pieces or so.
fn interval_for(length: Duration) -> Duration {
    let rounds = [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000];
    let wanted = (length / 100).as_millis() as u64;
    Duration::from_millis(rounds.into_iter().find(|ms| *ms >= wanted).unwrap_or(600_000))
}

/// How a load went, piece by piece; the last one may be left out if it is not whole.
///
/// # Errors
/// As for [`Latencies::gather`].
pub fn over_time(entries: &[Entry], interval: Duration, end: Duration) -> Result<Vec<Interval>> {
    let step = interval.as_micros() as u64;
    let pieces = (end.as_micros() as u64 / step).max(1);
    let mut sorted: Vec<Vec<&Entry>> = vec![Vec::new(); pieces as usize];
    for entry in entries {
        if let Some(piece) = sorted.get_mut((entry.ended_us / step) as usize) {
            piece.push(entry);
        }
    }
    let per_second = |count: usize| count as f64 * 1e6 / step as f64;
    let interval = |(index, piece): (usize, Vec<&Entry>)| {
        let fine: Vec<u64> =
            piece.iter().filter(|entry| entry.is_fine()).map(|entry| entry.latency_us()).collect();
        let (fine_count, all) = (fine.len(), piece.len());
        let latency = Latencies::gather(fine)?.summary();
        Ok(Interval {
            at_s: (index + 1) as f64 * step as f64 / 1e6,
            per_second: per_second(fine_count),
            not_per_second: per_second(all - fine_count),
            p50_us: latency.p50_us,
            p99_us: latency.p99_us,
        })
    };
    sorted.into_iter().enumerate().map(interval).collect()
}

/// Milliseconds for people.
#[must_use]
pub fn ms(us: u64) -> String {
    let ms = us as f64 / 1_000.0;
    if ms < 10.0 { format!("{ms:.2}") } else { format!("{ms:.0}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(intended_ms: u64, sent_ms: u64, ended_ms: u64, said: Said) -> Entry {
        Entry {
            signer: 0,
            intended_us: intended_ms * 1_000,
            sent_us: sent_ms * 1_000,
            ended_us: ended_ms * 1_000,
            said,
        }
    }

    #[test]
    fn latency_counts_from_the_intended_start_and_service_from_the_sending() {
        let mut log = Log::default();
        let busy = log.word("429 overloaded");
        log.entries = vec![
            entry(0, 0, 50, Said::Fine), // in the warm-up
            entry(100, 100, 110, Said::Fine),
            entry(200, 900, 910, Said::Fine),
            entry(300, 910, 911, Said::Refused(busy)),
            entry(900, 950, 1_200, Said::Fine), // began in time, ended late
        ];
        log.never_sent = 3;
        let sum = summary("x", &log, Duration::from_millis(100), Duration::from_millis(1_100)).unwrap();
        assert_eq!((sum.fine, sum.per_second, sum.never_sent), (2, 2.0, 3));
        assert_eq!((sum.latency.count, sum.service.count), (3, 3));
        let near = |value: u64, ms: u64| value.abs_diff(ms * 1_000) <= ms;
        assert!(near(sum.latency.max_us, 710) && near(sum.service.max_us, 250), "{sum:?}");
        assert!(near(sum.refusal.max_us, 1), "{:?}", sum.refusal);
        assert_eq!(sum.refused, BTreeMap::from([("429 overloaded".to_owned(), 1)]));
        assert_eq!(sum.over_time.len(), 11);
        assert_eq!((sum.over_time[0].per_second, sum.over_time[9].not_per_second), (10.0, 10.0));
    }

    #[test]
    fn quantiles_are_those_of_what_was_gathered() {
        let latencies = Latencies::gather(1..=1_000).unwrap();
        let sum = latencies.summary();
        assert_eq!((sum.count, sum.p50_us, sum.p90_us, sum.max_us), (1_000, 500, 900, 1_000));
        let distribution = latencies.distribution();
        assert_eq!(distribution[0], (1.0, 1.0));
        assert!((distribution[8].0 - 0.1).abs() < 1e-9 && distribution[8].1 == 900.0, "{distribution:?}");
        assert_eq!(distribution.last().map(|last| last.1), Some(1_000.0));
        assert!(Latencies::gather([]).unwrap().distribution().is_empty());
    }
}
