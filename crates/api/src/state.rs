//! The state that all requests share: the services behind the API.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use actix_web::http::header::HeaderValue;
use actix_web::web;
use actors::database_clock::SharedClock;
use arc_swap::ArcSwapOption;
use domain::InstanceId;
use ledger::LastTold;
use parking_lot::Mutex;
use tokio::runtime;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::context::TokioContext;
use wire::Code;
use wire::health::Check;
use wire::stats::Stats;

use crate::cursors::CursorSeal;
use crate::event_feeds::EventFeeds;
use crate::extract::BodyLimits;
use crate::id_counters::IdCounters;
use crate::limits::{
    BATCH_BYTES_MAX, JOB_BYTES_MAX, LEASE_COUNTS_AGE_LIMIT, LEASE_COUNTS_AGE_MAX, LEASE_COUNTS_PAUSES,
    LEASE_COUNTS_WAIT_MAX, LEASES_COUNTED_AT_ONCE, OWNER_URL_TIMEOUT, OWNER_URLS_MAX, PLAN_BYTES_MAX,
    RETRY_DRY_RUNS_AT_ONCE,
};
use crate::node_claims::NodeClaims;
use crate::once_open::OnceOpen;
use crate::peer_credential::Credentials;
use crate::recent::{Look, Recent};
use crate::refusal::Refusal;
use crate::services::{Awaited, Early, Generators, Incarnation, Services};
use crate::settings::Settings;
use crate::shared_reads::SharedReads;
use crate::shares::Shares;
use crate::traffic::Traffic;

/// The state, as a handler gets it.
pub type Shared = web::Data<State>;

/// Shared by all threads that serve HTTP.
pub struct State {
    pub ledger: OnceOpen<ledger::Handle>,
    pub bus: OnceOpen<bus::Handle>,
    pub generators: OnceOpen<Generators>,
    pub peers: OnceOpen<client::Peers>,
    pub credentials: OnceOpen<Credentials>,
    /// What seals the keys in cursors.
    pub cursor_seal: OnceOpen<CursorSeal>,
    /// What this process has seen of the database's clock.
    pub clock: OnceOpen<SharedClock>,
    incarnation: ArcSwapOption<Incarnation>,
    /// Why the ledger counts as gone back in time, while it does.
    went_back: ArcSwapOption<String>,
    /// What is served already. Open: the start is complete, and all of these are set.
    opening: watch::Sender<Opening>,
    is_open: AtomicBool,
    /// This and the following exist from the start.
    pub snowflakes: ::ids::Snowflakes,
    pub id_counters: IdCounters,
    pub metrics: metrics_exporter_prometheus::PrometheusHandle,
    pub settings: Settings,
    pub traffic: Traffic,
    /// What callers may take at once.
    pub shares: Arc<Shares>,
    /// The nodes that connect.
    pub node_claims: Arc<NodeClaims>,
    /// Reads whose answers go to several callers.
    pub shared_reads: SharedReads,
    /// Events that go to several streams.
    pub event_feeds: EventFeeds,
    pub ledger_check: Recent<Check>,
    pub bus_check: Recent<Check>,
    /// What the other instances said last of their own.
    pub stats_of_others: Recent<StatsOfOthers>,
    /// What the leases were counted to last; for requests: [`Self::lease_counts`].
    pub lease_counts: Recent<LeaseCounts, ()>,
    /// A bulk operation was made or is to end.
    pub bulk_woken: Notify,
    /// A thread works on bulk operations.
    pub bulk_started: AtomicBool,
    /// Turns to look for the next jobs of a bulk operation.
    pub bulk_scans: Arc<Semaphore>,
    /// Turns for dry runs of retries of tasks.
    pub retry_dry_runs: Arc<Semaphore>,
    /// Turns to count the jobs of a bulk operation that is to begin.
    pub bulk_counts: Arc<Semaphore>,
    runtime: runtime::Handle,
    owner_urls: Mutex<HashMap<InstanceId, String>>,
}

/// How far the server's start has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// Requests wait.
    Starting(Awaited),
    /// This takes long: what needs no ledger is served, and the rest is refused.
    Refusing(Awaited),
    Open,
}

/// The statistics of each other live instance alone, by its name, or why it said none.
pub type StatsOfOthers = Arc<Vec<(String, Result<Stats, String>)>>;

/// One count of the live leases.
#[derive(Clone)]
pub struct LeaseCounts {
    /// How many each instance has, its own `instance:` lease left out; those that have none are not among them.
    pub of: Arc<HashMap<InstanceId, u64>>,
    /// How long the count took.
    took: Duration,
}

impl State {
    pub fn new(early: Early, settings: Settings, runtime: runtime::Handle) -> Self {
        let Early { snowflakes, metrics } = early;
        Self {
            ledger: OnceOpen::default(),
            bus: OnceOpen::default(),
            generators: OnceOpen::default(),
            peers: OnceOpen::default(),
            credentials: OnceOpen::default(),
            cursor_seal: OnceOpen::default(),
            clock: OnceOpen::default(),
            incarnation: ArcSwapOption::empty(),
            went_back: ArcSwapOption::empty(),
            opening: watch::Sender::new(Opening::Starting(Awaited::Ledger("the ledger"))),
            is_open: AtomicBool::new(false),
            snowflakes,
            id_counters: IdCounters::default(),
            metrics,
            shares: Arc::new(settings.shares()),
            node_claims: Arc::default(),
            traffic: Traffic::default(),
            shared_reads: SharedReads::default(),
            event_feeds: EventFeeds::default(),
            ledger_check: Recent::default(),
            bus_check: Recent::default(),
            stats_of_others: Recent::default(),
            lease_counts: Recent::default(),
            bulk_woken: Notify::new(),
            bulk_started: AtomicBool::new(false),
            bulk_scans: Arc::new(Semaphore::new(settings.bulk_scans_at_once)),
            retry_dry_runs: Arc::new(Semaphore::new(RETRY_DRY_RUNS_AT_ONCE)),
            bulk_counts: Arc::new(Semaphore::new(settings.bulk_scans_at_once.div_ceil(2))),
            settings,
            runtime,
            owner_urls: Mutex::default(),
        }
    }

    /// From now on everything is served.
    pub fn open(&self, services: Services) {
        let Services { incarnation, ledger, bus, generators, peers, cluster_secret, clock } = services;
        self.ledger.set(ledger);
        self.bus.set(bus);
        self.generators.set(generators);
        self.peers.set(peers);
        self.credentials.set(Credentials::new(&cluster_secret, clock.clone()));
        self.cursor_seal.set(CursorSeal::new(&cluster_secret));
        self.settings.auth.goes_by(clock.clone());
        self.clock.set(clock);
        self.reincarnate(incarnation);
        // Last: a reader that sees it finds the rest.
        self.is_open.store(true, Ordering::Release);
        self.opening.send_replace(Opening::Open);
    }

    /// From now on everything is refused, for this reason; or nothing more.
    pub fn set_went_back(&self, why: Option<String>) {
        self.went_back.store(why.map(Arc::new));
    }

    /// The refusal of every request, while the ledger counts as gone back in time.
    pub fn went_back(&self) -> Option<Refusal> {
        let why = self.went_back.load();
        why.as_ref().map(|why| Refusal::new(Code::LedgerWentBack, why.as_str()))
    }

    /// The start waits for this now.
    pub fn awaits(&self, awaited: Awaited) {
        self.opening.send_if_modified(|opening| {
            match opening {
                Opening::Starting(before) | Opening::Refusing(before) => *before = awaited,
                Opening::Open => {}
            }
            // What waits for the end of the start need not look again.
            false
        });
    }

    /// From now on, and until it is open, what needs no ledger is served, and everything else is refused, since the start waits
    /// for this.
    pub fn refuse_without(&self, awaited: Awaited) {
        self.opening.send_if_modified(|opening| {
            let is_open = *opening == Opening::Open;
            if !is_open {
                *opening = Opening::Refusing(awaited);
            }
            !is_open
        });
    }

    /// What the start waits for, until it is complete.
    pub fn awaited(&self) -> Option<Awaited> {
        if self.is_open() {
            return None;
        }
        match *self.opening.borrow() {
            Opening::Starting(awaited) | Opening::Refusing(awaited) => Some(awaited),
            Opening::Open => None,
        }
    }

    /// Resolves when requests are served or refused: while the server starts, they wait, but no longer than a request may
    /// take.
    pub async fn until_started(&self) {
        if self.is_open() {
            return;
        }
        let mut opening = self.opening.subscribe();
        tokio::select! {
            _ = opening.wait_for(|opening| !matches!(opening, Opening::Starting(_))) => {}
            () = self.traffic.until_draining() => {}
            () = tokio::time::sleep(self.settings.request_timeout) => {}
        }
    }

    /// Whether everything is served, since the start is complete.
    pub fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// The current incarnation. Ask once per request.
    pub fn incarnation(&self) -> Arc<Incarnation> {
        self.incarnation.load_full().expect("the gate lets nobody in before there is one")
    }

    /// The version of the ring, as every answer names it; `None` before the start is complete.
    pub fn ring_version(&self) -> Option<HeaderValue> {
        if !self.is_open() {
            return None;
        }
        let incarnation = self.incarnation.load();
        let read = |label: &str| HeaderValue::from_str(label).expect("digits and a point");
        incarnation.as_ref().map(|incarnation| incarnation.cluster_view.with_label(read))
    }

    /// From now on requests are served by this incarnation.
    pub fn reincarnate(&self, incarnation: Incarnation) {
        self.incarnation.store(Some(Arc::new(incarnation)));
    }

    /// Calls a service. The threads that serve HTTP have runtimes of their own, which end with the
    /// server; a task or a connection that a service starts must live on the runtime that outlives
    /// it.
    pub fn call<F: Future>(&self, call: F) -> TokioContext<F> {
        TokioContext::new(call, self.runtime.clone())
    }

    /// Calls a service for what it reads in the ledger. It writes nothing, which its refusal says.
    pub async fn look_up<T, R: Into<Refusal>>(
        &self,
        question: impl Future<Output = Result<T, R>>,
    ) -> Result<T, Refusal> {
        self.call(question).await.map_err(|refusal| of_read(refusal.into()))
    }

    /// Asks the ledger, for as long as a request may take. Giving up does not cut the call off.
    pub async fn read<T>(&self, question: impl Future<Output = ledger::Result<T>>) -> Result<T, Refusal> {
        answered(self.ask(self.settings.request_timeout, question).await)
    }

    /// Asks the ledger as [`Self::read`] does, for work that no caller waits for and that is tried again and again. A final
    /// error is in the log once a minute for each `told`.
    pub async fn look<T>(
        &self,
        told: &LastTold,
        question: impl Future<Output = ledger::Result<T>>,
    ) -> Result<T, Refusal> {
        let answer = self.ask(self.settings.request_timeout, question).await;
        answer.ok_or_else(Refusal::not_read)?.map_err(|error| Refusal::of_background(error, told))
    }

    /// Writes to the ledger, as [`Self::read`] asks it. What was given up may be written later.
    pub async fn write<T>(&self, change: impl Future<Output = ledger::Result<T>>) -> Result<T, Refusal> {
        self.read(change).await.map_err(of_write)
    }

    /// Asks the ledger for a bounded time; `None` when that ran out.
    pub async fn ask<T>(
        &self,
        timeout: Duration,
        question: impl Future<Output = ledger::Result<T>>,
    ) -> Option<ledger::Result<T>> {
        tokio::time::timeout(timeout, self.call(question)).await.ok()
    }

    /// The refusal of a key's owner, as the caller sees it: with the address of the lease's holder, if it is found quickly.
    pub async fn refusal(&self, refusal: impl Into<Refusal>) -> Refusal {
        let refusal = refusal.into();
        match refusal.owner().and_then(|owner| InstanceId::parse(owner).ok()) {
            Some(owner) => {
                let url = self.owner_url(&owner).await;
                refusal.with(|problem| problem.owner_url = url)
            }
            None => refusal,
        }
    }

    /// The address of an instance. An incarnation's address never changes, so the ledger is asked once; those of live
    /// instances are known.
    pub async fn owner_url(&self, owner: &InstanceId) -> Option<String> {
        if let Some(member) = self.incarnation().cluster_view.view().member(owner.as_str()) {
            return Some(member.url.clone());
        }
        if let Some(url) = self.owner_urls.lock().get(owner) {
            return Some(url.clone());
        }
        let answer = self.ask(OWNER_URL_TIMEOUT, self.ledger.instance_url(owner)).await?;
        let url = answer.ok()??;
        let mut known = self.owner_urls.lock();
        if known.len() >= OWNER_URLS_MAX {
            known.clear();
        }
        known.insert(owner.clone(), url.clone());
        Some(url)
    }

    /// The newest count of the leases; `None` while there is none. Counting reads the whole table: so one count runs at a time,
    /// in the background, and the longer it took, the later the next one begins, unless it failed. A request waits a
    /// moment for it.
    pub async fn lease_counts(&self) -> Option<LeaseCounts> {
        let ledger = ledger::Handle::clone(&self.ledger);
        let count = |look: Look<LeaseCounts, ()>| {
            self.spawn(async move {
                let begun = Instant::now();
                let counted = ledger.lease_counts(LEASES_COUNTED_AT_ONCE).await;
                if let Err(error) = &counted {
                    tracing::debug!(%error, "the leases could not be counted");
                }
                let took = begun.elapsed();
                look.end(counted.map(|of| LeaseCounts { of: Arc::new(of), took }).map_err(drop));
            });
        };
        let took = self.lease_counts.known().map_or(Duration::ZERO, |counts| counts.took);
        let age_max = lease_counts_age_max(took, self.lease_counts.has_failed());
        self.lease_counts.get_or_older(age_max, LEASE_COUNTS_WAIT_MAX, count).await?.ok()
    }

    /// Runs something on the runtime that outlives the server's own.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    /// For a request that carries a job.
    pub fn job_limits(&self) -> BodyLimits<'_> {
        BodyLimits { bytes_max: self.settings.body_bytes_max.max(JOB_BYTES_MAX), ..self.body_limits() }
    }

    /// For a request that carries many jobs.
    pub fn batch_limits(&self) -> BodyLimits<'_> {
        BodyLimits { bytes_max: self.settings.body_bytes_max.max(BATCH_BYTES_MAX), ..self.body_limits() }
    }

    /// The longest body that any path takes, in bytes.
    pub fn body_bytes_max(&self) -> usize {
        let limits = [self.job_limits(), self.batch_limits(), self.plan_limits()];
        limits.iter().map(|limits| limits.bytes_max).max().unwrap_or_default()
    }

    /// For a request that carries a plan, or the definition of a task.
    pub fn plan_limits(&self) -> BodyLimits<'_> {
        BodyLimits { bytes_max: self.settings.body_bytes_max.max(PLAN_BYTES_MAX), ..self.body_limits() }
    }

    pub fn body_limits(&self) -> BodyLimits<'_> {
        BodyLimits {
            bytes_max: self.settings.body_bytes_max,
            timeout: self.settings.client_request_timeout,
            shares: &self.shares,
            traffic: &self.traffic,
        }
    }
}

/// How old the last count of the leases may be, where the last one that did not fail took so long.
fn lease_counts_age_max(took: Duration, has_failed: bool) -> Duration {
    if has_failed {
        return LEASE_COUNTS_AGE_MAX;
    }
    (took * LEASE_COUNTS_PAUSES).clamp(LEASE_COUNTS_AGE_MAX, LEASE_COUNTS_AGE_LIMIT)
}

/// What [`State::ask`] was answered.
///
/// # Errors
/// The refusal of an error, or of a time that ran out.
pub fn answered<T>(answer: Option<ledger::Result<T>>) -> Result<T, Refusal> {
    answer.ok_or_else(Refusal::not_read)?.map_err(Refusal::from)
}

/// The refusal of a write, or of what is read behind it for the answer, when it is done: where the ledger did not answer, the
/// outcome counts as unknown.
pub fn of_write(refusal: Refusal) -> Refusal {
    if refusal.code() == Code::LedgerUnavailable { Refusal::perhaps_written() } else { refusal }
}

/// The refusal of what was only read: where the ledger did not answer, nothing was written.
pub fn of_read(refusal: Refusal) -> Refusal {
    if refusal.code() == Code::LedgerUnavailable { Refusal::not_read() } else { refusal }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_the_ledger_did_not_answer_is_refused_as_one_whose_outcome_is_not_known() {
        let says = |refusal: &Refusal| refusal.to_string().contains("not known whether anything was written");
        let late = answered::<()>(None).unwrap_err();
        assert!(!says(&late), "{late}");
        let late = of_write(late);
        assert!(late.code() == Code::LedgerUnavailable && says(&late), "{late}");
        let behind = of_write(ledger::Error::WentBack.into());
        assert!(behind.code() == Code::LedgerWentBack && !says(&behind), "{behind}");
    }

    #[test]
    fn a_read_that_a_service_had_no_answer_to_is_not_refused_as_a_write() {
        use actors::jobs::Refusal as Inside;
        let says = |refusal: &Refusal| refusal.to_string().contains("not known whether anything was written");
        let unsure = Refusal::from(Inside::LedgerUnavailable);
        assert!(says(&unsure) && !unsure.to_string().contains("a job"), "it may be of a session: {unsure}");
        let read = of_read(unsure);
        assert!(read.code() == Code::LedgerUnavailable && !says(&read), "{read}");
        assert_eq!(of_read(Inside::UnknownJob.into()).code(), Code::NotFound);
    }

    #[test]
    fn a_count_of_leases_that_took_long_is_kept_for_minutes_and_one_that_failed_for_seconds() {
        for (took, counted, failed) in [(0, 2, 2), (1, 30, 2), (60, 300, 2)] {
            let age_max = |has_failed| lease_counts_age_max(Duration::from_secs(took), has_failed).as_secs();
            assert_eq!((age_max(false), age_max(true)), (counted, failed), "{took} s");
        }
    }
}
