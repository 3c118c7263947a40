//! How many jobs an instance accepts and finishes: in all, for the metrics, and per second, as counts of the last minutes that
//! change as the jobs do. The counts know no clock; the time comes in as an argument.

use std::array;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use domain::job::{Class, Outcome};
use domain::{PoolName, TenantId};
use parking_lot::Mutex;

use super::job_metrics::JOB_METRICS;
use super::kinds::KINDS;
use super::limits::{RATE_WINDOWS, RATES_NAMES_MAX};

/// The length of one step of [`JobHistory`].
pub const HISTORY_STEP: Duration = BUCKET;
/// The length of one bucket.
const BUCKET: Duration = Duration::from_secs(5);
/// The buckets of the longest window, and the one that is being filled.
const BUCKETS: usize = (RATE_WINDOWS[RATE_WINDOWS.len() - 1].as_secs() / BUCKET.as_secs()) as usize + 1;

/// Jobs per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct JobRate {
    /// Accepted.
    pub accepted: f64,
    /// Finished, with this outcome.
    pub succeeded: f64,
    /// Finished, with this outcome.
    pub failed: f64,
    /// Finished, with this outcome.
    pub cancelled: f64,
    /// Finished, with this outcome.
    pub timed_out: f64,
}

/// The rates over each of [`RATE_WINDOWS`].
pub type JobRates = [JobRate; RATE_WINDOWS.len()];

/// The counts of one instance. Shared by all that accept and finish jobs.
pub(super) struct RateCounter(Mutex<Counts>);

impl RateCounter {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Counts::new(Instant::now())))
    }

    /// A job is accepted: it is in the ledger.
    pub(super) fn accepted(&self, class: &Class) {
        JOB_METRICS.created.increment(1);
        self.0.lock().count(class, Instant::now(), |jobs| jobs.accepted += 1);
    }

    /// A job has ended: its outcome is in the ledger.
    pub(super) fn finished(&self, class: &Class, outcome: Outcome) {
        JOB_METRICS.finished.of(outcome).increment(1);
        self.0.lock().count(class, Instant::now(), |jobs| jobs.finished(outcome));
        KINDS.count(class.kind.as_ref(), outcome);
    }

    pub(super) fn read(&self) -> Rates {
        self.0.lock().read(Instant::now())
    }
}

/// What was counted, as rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rates {
    /// The rates of all jobs.
    pub(super) all: JobRates,
    /// By the pool that the jobs name.
    pub(super) pools: RatesBy<PoolName>,
    /// By their tenant.
    pub(super) tenants: RatesBy<TenantId>,
    /// The numbers of all jobs in the past.
    pub(super) history: JobHistory,
}

/// The rates of jobs by their names of one kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RatesBy<N> {
    /// The rates of the jobs without such a name.
    pub(super) none: JobRates,
    /// The rates of the jobs with each name. A name without any job in the longest window is missing.
    pub(super) of: Vec<(N, JobRates)>,
}

impl<N> Default for RatesBy<N> {
    fn default() -> Self {
        Self { none: JobRates::default(), of: Vec::new() }
    }
}

/// The numbers of jobs that one instance accepted and finished, in steps of [`HISTORY_STEP`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobHistory {
    /// How long ago the instance began to count.
    pub age: Duration,
    /// How long ago the newest step ended.
    pub ended_ago: Duration,
    /// The steps that are over, the newest last.
    pub steps: Vec<JobCount>,
}

/// The jobs of a length of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCount {
    /// Accepted.
    pub accepted: u32,
    /// Finished, with this outcome.
    pub succeeded: u32,
    /// Finished, with this outcome.
    pub failed: u32,
    /// Finished, with this outcome.
    pub cancelled: u32,
    /// Finished, with this outcome.
    pub timed_out: u32,
}

impl JobCount {
    fn finished(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Succeeded => &mut self.succeeded,
            Outcome::Failed => &mut self.failed,
            Outcome::Cancelled => &mut self.cancelled,
            Outcome::TimedOut => &mut self.timed_out,
        } += 1;
    }
}

/// A ring of buckets. They are numbered from the start of the counts.
struct Ring {
    /// The number of the newest bucket that something was counted in.
    newest: u64,
    buckets: Box<[JobCount; BUCKETS]>,
}

impl Ring {
    fn new() -> Self {
        Self { newest: 0, buckets: Box::new([JobCount::default(); BUCKETS]) }
    }

    /// The bucket of this number. Those that it leaves behind are emptied, since nothing was counted in them.
    fn bucket(&mut self, number: u64) -> &mut JobCount {
        for number in (self.newest + 1..=number).take(BUCKETS) {
            self.buckets[Self::place(number)] = JobCount::default();
        }
        self.newest = self.newest.max(number);
        &mut self.buckets[Self::place(self.newest)]
    }

    /// What was counted in the bucket of this number and in so many before it.
    fn since(&self, number: u64, before: u64) -> impl Iterator<Item = &JobCount> {
        let kept = (self.newest + 1).saturating_sub(BUCKETS as u64);
        let numbers = number.saturating_sub(before).max(kept)..=number.min(self.newest);
        numbers.map(|number| &self.buckets[Self::place(number)])
    }

    const fn place(number: u64) -> usize {
        (number % BUCKETS as u64) as usize
    }

    /// Whether nothing was counted in the longest window.
    fn is_idle(&self, number: u64) -> bool {
        self.since(number, BUCKETS as u64 - 1).all(|count| *count == JobCount::default())
    }

    /// The buckets that were full when the one of this number began, the newest last: as many as are kept.
    fn full(&self, number: u64) -> Vec<JobCount> {
        let first = number.saturating_sub(BUCKETS as u64 - 1);
        let one = |number| self.since(number, 0).next().copied().unwrap_or_default();
        (first..number).map(one).collect()
    }

    /// The rates `age` after the start of the counts.
    fn rates(&self, age: Duration) -> JobRates {
        let (number, filled) = place_in_time(age);
        array::from_fn(|window| {
            let window = RATE_WINDOWS[window];
            let mut jobs = JobRate::default();
            for count in self.since(number, window.as_secs() / BUCKET.as_secs()) {
                jobs.accepted += f64::from(count.accepted);
                jobs.succeeded += f64::from(count.succeeded);
                jobs.failed += f64::from(count.failed);
                jobs.cancelled += f64::from(count.cancelled);
                jobs.timed_out += f64::from(count.timed_out);
            }
            // The bucket that is being filled comes on top of the window. Before that, the counts are younger.
            let seconds = (window + filled).min(age).max(BUCKET).as_secs_f64();
            JobRate {
                accepted: jobs.accepted / seconds,
                succeeded: jobs.succeeded / seconds,
                failed: jobs.failed / seconds,
                cancelled: jobs.cancelled / seconds,
                timed_out: jobs.timed_out / seconds,
            }
        })
    }
}

/// The number of the bucket that is being filled so long after the start, and for how long it has been.
fn place_in_time(age: Duration) -> (u64, Duration) {
    let number = age.as_secs() / BUCKET.as_secs();
    (number, age - Duration::from_secs(number * BUCKET.as_secs()))
}

/// The rings of jobs by their names of one kind.
struct RingsBy<N> {
    none: Ring,
    of: HashMap<N, Ring>,
    /// The bucket in which idle names were last looked for.
    looked: u64,
}

impl<N: Clone + Eq + Hash> RingsBy<N> {
    fn new() -> Self {
        Self { none: Ring::new(), of: HashMap::new(), looked: 0 }
    }

    /// Counts a job. Those with a name for which there is no room are not counted.
    fn count(&mut self, name: Option<&N>, number: u64, change: impl Fn(&mut JobCount)) {
        match name {
            None => change(self.none.bucket(number)),
            Some(name) => {
                if let Some(ring) = self.of.get_mut(name) {
                    change(ring.bucket(number));
                } else if self.has_room(number) {
                    let ring = self.of.entry(name.clone()).or_insert_with(Ring::new);
                    change(ring.bucket(number));
                }
            }
        }
    }

    /// Whether there is room for one more name. Where there is none, idle names are forgotten, once for each bucket.
    fn has_room(&mut self, number: u64) -> bool {
        if self.of.len() >= RATES_NAMES_MAX && self.looked < number {
            self.looked = number;
            self.of.retain(|_, ring| !ring.is_idle(number));
        }
        self.of.len() < RATES_NAMES_MAX
    }

    fn rates(&self, age: Duration) -> RatesBy<N> {
        let (number, _) = place_in_time(age);
        let busy = self.of.iter().filter(|(_, ring)| !ring.is_idle(number));
        let of = busy.map(|(name, ring)| (name.clone(), ring.rates(age))).collect();
        RatesBy { none: self.none.rates(age), of }
    }
}

struct Counts {
    started: Instant,
    all: Ring,
    pools: RingsBy<PoolName>,
    tenants: RingsBy<TenantId>,
}

impl Counts {
    fn new(now: Instant) -> Self {
        Self { started: now, all: Ring::new(), pools: RingsBy::new(), tenants: RingsBy::new() }
    }

    /// Counts a job. Where there is no room for its pool or its tenant, it does not count among those of these.
    fn count(&mut self, class: &Class, now: Instant, change: impl Fn(&mut JobCount)) {
        let (number, _) = place_in_time(self.age(now));
        change(self.all.bucket(number));
        self.pools.count(class.pool.as_ref(), number, &change);
        self.tenants.count(class.tenant.as_ref(), number, &change);
    }

    fn read(&self, now: Instant) -> Rates {
        let age = self.age(now);
        let (number, filled) = place_in_time(age);
        Rates {
            all: self.all.rates(age),
            pools: self.pools.rates(age),
            tenants: self.tenants.rates(age),
            history: JobHistory { age, ended_ago: filled, steps: self.all.full(number) },
        }
    }

    fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.started)
    }
}

#[cfg(test)]
mod tests;
