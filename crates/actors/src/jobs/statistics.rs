//! Statistics of jobs for people: how many jobs are in each state, by counts of the ledger that are taken now and then, and
//! how many this instance accepts and finishes per second.
//!
//! A count takes a small share of the time, however many jobs there are: the longer counts take, the later the next one
//! begins. So a request costs the ledger nothing. A count that took long because the ledger hung does not delay the next ones.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use domain::{PoolName, TenantId};
use ledger::{FinishedBy, FinishedCounts, UnfinishedCount, UnfinishedCounts, jittered};
use nodes::Registry;
use panic_guard::again_after_panics;
use parking_lot::Mutex;

use super::Jobs;
use super::lifetime::Lifetime;
use super::limits::{POOLS_SHOWN_MAX, STATISTICS_NAMES_MAX};
use super::rates::{JobHistory, JobRates, RateCounter, Rates, RatesBy};
use crate::counted::{Counted, Pauses};

/// Between two counts of the unfinished jobs, before jitter: at least, and as a multiple of how long the shorter one of the last
/// two took.
const UNFINISHED_EVERY: (Duration, u32) = (Duration::from_secs(3), 30);
/// Between two counts of the finished jobs.
const FINISHED_EVERY: (Duration, u32) = (Duration::from_secs(5), 100);
/// How often the gauges of the slots are set, which needs no ledger.
const SLOTS_EVERY: Duration = Duration::from_secs(3);

/// How long the statistics wait for the first count of the finished jobs, after the one of the others. Where there are few, it
/// ends in time.
const FINISHED_WAIT_MAX: Duration = Duration::from_millis(100);

/// Jobs that one statement counts: some 20 ms of the ledger's time, on the slow side.
const COUNTED_AT_ONCE: u32 = 20_000;

/// The label of the pools that jobs name and nobody has configured, and of those that came after the first [`POOLS_SHOWN_MAX`].
const OTHER_POOLS: &str = "other";

/// What the statistics of one instance come from: the newest counts of the ledger, and its own rates.
pub(super) struct Statistics {
    ledger: ledger::Handle,
    pub(super) registry: Registry,
    pub(super) rates: Arc<RateCounter>,
    lifetime: Lifetime,
    unfinished: Counted<UnfinishedCounts>,
    finished: Counted<FinishedCounts>,
}

/// Jobs by state, and their rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PoolStatistics {
    /// The jobs that are CREATED, on all instances. So are the next five.
    pub created: u64,
    /// Those of them that are not due yet, or are held.
    pub delayed: u64,
    /// The jobs that are DISPATCHED.
    pub dispatched: u64,
    /// The jobs that are RUNNING.
    pub running: u64,
    /// The jobs that are FINISHED and were not purged yet; `None` until they are counted for the first time.
    pub finished: Option<u64>,
    /// For how long the job that waits longest has been due, in milliseconds; `None` where no job waits.
    pub oldest_ms: Option<u64>,
    /// The rates of this instance.
    pub rates: JobRates,
}

impl PoolStatistics {
    /// These statistics with the counts of these unfinished jobs.
    const fn with(self, jobs: &UnfinishedCount) -> Self {
        let UnfinishedCount { created, delayed, dispatched, running, oldest_ms } = *jobs;
        Self { created, delayed, dispatched, running, oldest_ms, ..self }
    }
}

/// What is known of all jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct JobStatistics {
    /// All jobs.
    pub all: PoolStatistics,
    /// The jobs that name each pool, by its name; those that name none first.
    pub pools: Vec<(Option<PoolName>, PoolStatistics)>,
    /// The jobs of each tenant in the same way.
    pub tenants: Vec<(Option<TenantId>, PoolStatistics)>,
    /// How many slots of the nodes that this instance knows are taken, and how many there are.
    pub slots: (u64, u64),
    /// What this instance accepted and finished in the past.
    pub history: JobHistory,
    /// How long ago the unfinished jobs were counted.
    pub counted_ago: Duration,
    /// How long ago the finished jobs were counted; `None` until they are for the first time.
    pub finished_counted_ago: Option<Duration>,
}

impl Jobs {
    /// The jobs by state, as they were last counted, and the rates of this instance. Waits for the first count of the unfinished
    /// jobs, and 0.1 s at most for that of the finished ones, of which there may be many more.
    pub async fn statistics(&self) -> JobStatistics {
        self.statistics.newest().await
    }
}

impl Statistics {
    /// Counts as long as the instance serves.
    pub(super) fn start(
        ledger: ledger::Handle,
        registry: Registry,
        rates: Arc<RateCounter>,
        lifetime: Lifetime,
    ) -> Arc<Self> {
        let this = Arc::new(Self {
            ledger,
            registry,
            rates,
            lifetime,
            unfinished: Counted::default(),
            finished: Counted::default(),
        });
        let counting = Arc::clone(&this);
        let show_slots = move || Arc::clone(&counting).show_slots();
        tokio::spawn(again_after_panics("the gauges of the slots", show_slots));
        let counting = Arc::clone(&this);
        let unfinished = move || Arc::clone(&counting).count_unfinished();
        tokio::spawn(again_after_panics("the counts of the unfinished jobs", unfinished));
        let counting = Arc::clone(&this);
        let finished = move || Arc::clone(&counting).count_finished();
        tokio::spawn(again_after_panics("the counts of the finished jobs", finished));
        this
    }

    async fn show_slots(self: Arc<Self>) {
        while self.lifetime.is_serving() {
            let (used, all) = self.registry.slots();
            metrics::gauge!("fencepost_slots", "state" => "used").set(used as f64);
            metrics::gauge!("fencepost_slots", "state" => "all").set(all as f64);
            tokio::time::sleep(jittered(SLOTS_EVERY)).await;
        }
    }

    async fn count_unfinished(self: Arc<Self>) {
        let mut pauses = Pauses::new(UNFINISHED_EVERY);
        while self.lifetime.is_serving() {
            let pools = configured(&self.registry);
            let count = self.ledger.unfinished_counts(COUNTED_AT_ONCE, &pools);
            let (took, counted) = self.unfinished.renew(count).await;
            let pause = pauses.after(took, counted.is_ok());
            match counted {
                Ok(count) => show_pools(&mut POOLS_IN_METRICS.lock(), &count.found, &pools),
                Err(error) => tracing::debug!(%error, "the unfinished jobs could not be counted"),
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn count_finished(self: Arc<Self>) {
        let mut pauses = Pauses::new(FINISHED_EVERY);
        while self.lifetime.is_serving() {
            let pools = configured(&self.registry);
            let count = self.ledger.finished_counts(COUNTED_AT_ONCE, &pools);
            let (took, counted) = self.finished.renew(count).await;
            let pause = pauses.after(took, counted.is_ok());
            if let Err(error) = counted {
                tracing::debug!(%error, "the finished jobs could not be counted");
            }
            tokio::time::sleep(pause).await;
        }
    }

    async fn newest(&self) -> JobStatistics {
        let unfinished = self.unfinished.newest().await;
        let finished = tokio::time::timeout(FINISHED_WAIT_MAX, self.finished.newest()).await.ok();
        let configured = configured(&self.registry);
        let mut rates = self.rates.read();
        let history = std::mem::take(&mut rates.history);
        let found = finished.as_ref().map(|count| &count.found);
        let (all, pools, tenants) = together(&unfinished.found, found, rates, &configured);
        let finished_counted_ago = finished.as_ref().map(|count| count.age());
        let (slots, counted_ago) = (self.registry.slots(), unfinished.age());
        JobStatistics { all, pools, tenants, slots, history, counted_ago, finished_counted_ago }
    }
}

fn configured(registry: &Registry) -> HashSet<PoolName> {
    registry.pools().configured().iter().map(|pool| pool.name.clone()).collect()
}

/// The pools that have a label of their own in the metrics of this process, which never forget one: as many as may be configured
/// at once. An incarnation shows those of the ones before it, too: as empty, where nobody has configured them since.
static POOLS_IN_METRICS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// Sets the gauges of the configured pools, of the jobs that name none under an empty label, and of all other pools together as
/// `other`: their names are what clients make up. `known` are the pools that have a label, to which new ones are added while
/// there is room.
fn show_pools(known: &mut BTreeSet<String>, counts: &UnfinishedCounts, configured: &HashSet<PoolName>) {
    // In the order of their names: which of too many have no label is not left to chance.
    for pool in configured.iter().map(PoolName::as_str).collect::<BTreeSet<_>>() {
        if known.len() < POOLS_SHOWN_MAX && !known.contains(pool) {
            known.insert(pool.to_owned());
        }
    }
    let mut shown: BTreeMap<&str, (u64, u64)> = BTreeMap::from([("", (0, 0)), (OTHER_POOLS, (0, 0))]);
    shown.extend(known.iter().map(|pool| (pool.as_str(), (0, 0))));
    let labelled = counts.of_pools.iter().map(|(pool, jobs)| match pool {
        None => ("", jobs),
        Some(pool) if configured.contains(pool) && known.contains(pool.as_str()) => (pool.as_str(), jobs),
        Some(_) => (OTHER_POOLS, jobs),
    });
    for (label, UnfinishedCount { created, delayed, oldest_ms, .. }) in
        labelled.chain([(OTHER_POOLS, &counts.of_further_pools)])
    {
        let (waiting, oldest) = shown.entry(label).or_default();
        *waiting += created.saturating_sub(*delayed);
        *oldest = (*oldest).max(oldest_ms.unwrap_or(0));
    }
    for (label, (waiting, oldest_ms)) in shown {
        set(label, waiting, oldest_ms);
    }
}

fn set(pool: &str, waiting: u64, oldest_ms: u64) {
    metrics::gauge!("fencepost_pool_waiting", "pool" => pool.to_owned()).set(waiting as f64);
    let oldest = Duration::from_millis(oldest_ms).as_secs_f64();
    metrics::gauge!("fencepost_pool_oldest_seconds", "pool" => pool.to_owned()).set(oldest);
}

/// What is known of jobs by their names of one kind; of those that have none first.
type Named<N> = Vec<(Option<N>, PoolStatistics)>;

/// Brings the counts and the rates of all jobs together, and those by pool and by tenant. Configured pools are there even if they
/// have no jobs.
fn together(
    unfinished: &UnfinishedCounts,
    finished: Option<&FinishedCounts>,
    rates: Rates,
    configured: &HashSet<PoolName>,
) -> (PoolStatistics, Named<PoolName>, Named<TenantId>) {
    let Rates { all, pools, tenants, .. } = rates;
    let in_all = finished.map(|counts| counts.all);
    let all = PoolStatistics { finished: in_all, rates: all, ..PoolStatistics::default() };
    let finished_in = finished.map(|counts| (counts.all, &counts.pools));
    let pools = by_name(&unfinished.of_pools, finished_in, pools, configured);
    let finished_of = finished.map(|counts| (counts.all, &counts.tenants));
    let tenants = by_name(&unfinished.of_tenants, finished_of, tenants, &HashSet::new());
    (all.with(&unfinished.all), pools, tenants)
}

/// The statistics by names of one kind: of the names in `in_any_case`, and of those with the most jobs among the others.
/// `finished` has the number of all finished jobs, too.
fn by_name<N: Clone + Ord + Hash>(
    unfinished: &BTreeMap<Option<N>, UnfinishedCount>,
    finished: Option<(u64, &FinishedBy<N>)>,
    rates: RatesBy<N>,
    in_any_case: &HashSet<N>,
) -> Named<N> {
    // A name of which no finished job was found has none, once they are counted.
    let empty = PoolStatistics { finished: finished.map(|_| 0), ..PoolStatistics::default() };
    let mut all: BTreeMap<Option<N>, PoolStatistics> =
        in_any_case.iter().map(|name| (Some(name.clone()), empty)).collect();
    all.insert(None, PoolStatistics { rates: rates.none, ..empty });
    if let Some((in_all, counts)) = finished {
        all.entry(None).or_insert(empty).finished = Some(in_all.saturating_sub(counts.all));
        for (name, jobs) in &counts.of {
            all.entry(Some(name.clone())).or_insert(empty).finished = Some(*jobs);
        }
    }
    for (name, rates) in rates.of {
        all.entry(Some(name)).or_insert(empty).rates = rates;
    }
    for (name, jobs) in unfinished {
        let of_name = all.entry(name.clone()).or_insert(empty);
        *of_name = of_name.with(jobs);
    }
    let mut all: Vec<_> = all.into_iter().collect();
    if all.len() > STATISTICS_NAMES_MAX {
        let is_first = |name: &Option<N>| name.as_ref().is_none_or(|name| in_any_case.contains(name));
        let jobs = |of: &PoolStatistics| of.created + of.dispatched + of.running + of.finished.unwrap_or(0);
        all.sort_by_key(|(name, of)| (!is_first(name), Reverse(jobs(of))));
        all.truncate(STATISTICS_NAMES_MAX);
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    all
}

#[cfg(test)]
mod tests;
