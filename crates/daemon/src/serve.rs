//! `fencepost serve`: the parts, put together in order and taken down in reverse.
//!
//! What must never live here: a decision about a key's work. Read [`Daemon::start`] and
//! [`Daemon::stop`] as a table of contents.

mod endpoint;
mod generators;
mod incarnation;
mod recorder;
mod reload;
mod serving;
mod settings;
mod signals;
mod tls;
mod traces;
mod watched;
mod witness;

use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use actors::database_clock::SharedClock;
use api::Awaited;
use domain::ClusterSecret;
use ids::limits::GIVE_BACK_MAX;
use ids::snowflake::Keeping;
use ledger::{Unwritable, jittered};
use rand::RngExt as _;
use tokio::time::{Instant, timeout, timeout_at};

use crate::cli::Serve;
use crate::config::{
    Config, Loaded, encryption, exposed_files, other_ledger, other_tokens, redact, short_keys,
    unused_parameters, weak_tokens,
};
use crate::exit::{Exit, Failure};
use crate::logging;
use crate::process;
pub use endpoint::hostname;
use generators::InMemory;
pub use generators::check_ids_file;
use incarnation::Incarnation;
use serving::{Serving, close_probe};
use signals::StopSignal;
pub use signals::{Signals, hangups};
pub use tls::{check_files, check_ledger, file_warnings};
use traces::Traces;
pub use witness::check as check_witness;
use witness::{Looking, Witness};

/// How long each of the last steps of a stop may take once the work is done: closing a ledger that does not
/// answer must not delay the end.
const CLOSE_STEP_MAX: Duration = Duration::from_secs(2);
/// The number of those steps.
const LAST_STEPS: usize = 7;
/// How long a stop waits for the requests under way, and for the ends of the nodes' sockets, before it lets go of sessions and
/// plans: most requests are answered by then, and nobody serves these keys in the meantime, since the instance refuses whatever
/// comes for them.
const SESSIONS_KEPT_MAX: Duration = Duration::from_secs(1);
/// The pause between two tries to reach a ledger that is away, at the start or for a new incarnation, before
/// jitter.
const TRY_AGAIN_PAUSE: Duration = Duration::from_millis(300);
/// How long threads of the runtime may still take at the very end.
const RUNTIME_END_MAX: Duration = Duration::from_millis(500);

const _: () = assert!(
    LAST_STEPS as u128 * CLOSE_STEP_MAX.as_millis()
        + traces::FLUSH_MAX.as_millis()
        + RUNTIME_END_MAX.as_millis()
        + logging::FLUSH_MAX.as_millis()
        < 20_000,
    "docs/operations.md says how much longer than the drain a stop may take; supervisors allow for it"
);
const _: () = assert!(
    GIVE_BACK_MAX.as_millis() < CLOSE_STEP_MAX.as_millis(),
    "a worker number that is not taken back leaves its step time for the local file"
);

/// Runs until a signal says to stop.
///
/// # Errors
/// The reason why it could not start, or broke down.
pub fn run(command: Serve) -> Result<(), Failure> {
    let sources = command.configured.sources();
    // Too few for the runtime, on which the configuration is read. How many are enough it says, by what the ledger needs.
    if process::refuse_few_descriptors(0).is_err() {
        let config = sources.load()?.config;
        process::refuse_few_descriptors(settings::ledger_descriptors(&config))?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(main_threads())
        .enable_all()
        .thread_name("fencepost")
        .build()
        .map_err(|error| Failure::new(Exit::Software, format!("no runtime: {error}")))?;
    let mut traces = None;
    let result = runtime.block_on(async {
        // Before anything that takes time: from here on, SIGHUP ends nothing.
        let (signals, hangups) = (Signals::listen()?, hangups()?);
        let loaded = sources.load()?;
        logging::start(&loaded.config.log)?;
        process::refuse_few_descriptors(settings::ledger_descriptors(&loaded.config))?;
        traces = Traces::start(&loaded.config.traces, runtime.handle())?;
        live(signals, reload::Reloader::new(hangups, sources, &loaded), &loaded).await
    });
    if let Some(traces) = traces {
        traces.stop();
    }
    runtime.shutdown_timeout(RUNTIME_END_MAX);
    result
}

/// How many threads the main runtime has, beside the arbiters that serve HTTP: half as many as there are cores. With as many
/// threads as cores, commits are thrown from thread to thread (docs/performance-history.md).
fn main_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().div_ceil(2))
}

async fn live(mut signals: Signals, reloader: reload::Reloader, loaded: &Loaded) -> Result<(), Failure> {
    let drain_timeout = Duration::from_millis(loaded.config.server.drain_timeout_ms);
    let mut opened = None;
    let started = tokio::select! {
        // A start that waits for its ledger can be called off. A lease taken half-way runs out by itself.
        signal = signals.next() => Err(signal),
        started = Daemon::start(loaded, &mut opened) => Ok(started),
    };
    let mut daemon = match started {
        Ok(Ok(daemon)) => daemon,
        Ok(Err(failure)) => {
            close(opened, drain_timeout).await;
            return Err(failure);
        }
        Err(signal) => {
            signals.second_ends_at_once();
            tracing::info!(%signal, "a signal to stop arrived before the start was complete");
            close(opened, drain_timeout).await;
            return Ok(());
        }
    };
    daemon.announce(&loaded.config.mode);
    let api = daemon.serving.api.clone();
    let stop_delay = Duration::from_millis(loaded.config.server.stop_delay_ms);
    let reloading = tokio::spawn(reloader.run(daemon.reloadable()));
    let end = daemon.serve_until(&loaded.config, signalled(&mut signals, &api, stop_delay)).await;
    // Before the first line of the stop: nothing of the stop is to delay this.
    signals.second_ends_at_once();
    reloading.abort();
    if let Ok((signal, what)) = &end {
        tracing::info!(%signal, ?drain_timeout, "{what}");
    }
    daemon.stop(drain_timeout).await;
    end.map(|_| ()).map_err(|message| Failure::new(Exit::Software, message))
}

/// Resolves when the stop is to begin: the delay after the signal, which is returned. Balancers learn of the stop meanwhile, and
/// a further signal ends the delay.
async fn signalled(signals: &mut Signals, api: &api::Handle, stop_delay: Duration) -> StopSignal {
    let signal = signals.next().await;
    if !stop_delay.is_zero() {
        api.stop_soon();
        tracing::info!(%signal, ?stop_delay, "stopping after a delay: /readyz says so, and all else is served");
        tokio::select! {
            () = tokio::time::sleep(stop_delay) => {}
            signal = signals.later() => tracing::info!(%signal, "a further signal ends the delay of the stop"),
        }
    }
    signal
}

/// Closes the server of a start that came to nothing.
async fn close(opened: Option<Serving>, drain_timeout: Duration) {
    if let Some(serving) = opened {
        serving.close(drain_timeout).await;
    }
}

/// Everything that runs.
struct Daemon {
    ledger: ledger::Handle,
    /// The ledger's id.
    cluster: String,
    bus: bus::Handle,
    incarnation: Incarnation,
    keeping: Keeping,
    peers: client::Peers,
    serving: Serving,
    clock: SharedClock,
    witness: Looking,
}

impl Daemon {
    /// Puts the parts together, what others depend on first. While it does not come back, `opened` is the server that
    /// runs already.
    async fn start(loaded: &Loaded, opened: &mut Option<Serving>) -> Result<Self, Failure> {
        let config = &loaded.config;
        tell_configuration(loaded);
        check_ledger(config)?;
        check_ids_file(config)?;
        let metrics = recorder::start()?;
        let clock = SharedClock::new(Duration::from_millis(config.ids.clock_skew_max_ms));
        let mut witness = Witness::remember(config, clock.clone())?;
        let (snowflakes, mut keeping) = generators::snowflakes(config, witness.remembered())?;
        let early = api::Early { snowflakes: snowflakes.clone(), metrics };
        let serving = opened.insert(Serving::start(config, early).await?);
        tokio::spawn(serving.api.clone().show_checks());
        let proof = keeping.proof().await;
        let patience = patience(config, proof);
        let runtimes = serving.arbiters.runtimes();
        let ledger = serving
            .refuse_without(Awaited::Ledger("the ledger"), open_ledger(config, &runtimes, patience))
            .await?;
        let known = witness.wait_until_current(config, &ledger, &serving.api, &snowflakes, patience);
        serving.refuse_without(Awaited::Ledger("the ledger as it was known"), known).await?;
        let cluster_secret = serving
            .refuse_without(Awaited::Ledger("the cluster's secret"), cluster_secret(config, &ledger))
            .await?;
        let endpoint = &serving.endpoint;
        let cluster = witness.cluster().to_owned();
        let of_bus = bus::Cluster { id: cluster.clone(), secret: cluster_secret.clone() };
        let bus = serving.refuse_without(Awaited::Bus, open_bus(config, serving, of_bus)).await?;
        let peers = tls::peers(config, &endpoint.advertise)?;
        let begun = Incarnation::begin(&ledger, &bus, &serving.arbiters, config, endpoint, &clock);
        let incarnation = serving.refuse_without(Awaited::Ledger("a place in the cluster"), begun).await?;
        let of_ledger = (&ledger, cluster.as_str());
        keeping.serve(generators::numbers(config, of_ledger, endpoint, &incarnation, &clock));
        let generators = generators::start(config, &ledger);
        let in_memory = InMemory { snowflakes, segments: generators.segments.clone() };
        let kept_secret = config.cluster.secret.0.is_empty().then(|| cluster_secret.clone());
        let services = api::Services {
            cluster_secret,
            clock: clock.clone(),
            incarnation: incarnation.shown(),
            ledger: ledger.clone(),
            bus: bus.clone(),
            generators,
            peers: peers.clone(),
        };
        serving.api.open(services);
        let serving = opened.take().expect("it was started");
        let witness = witness.start(ledger.clone(), serving.api.clone(), in_memory, kept_secret);
        tokio::spawn(recorder::compare_clocks(ledger.clone()));
        Ok(Self { ledger, cluster, bus, incarnation, keeping, peers, serving, clock, witness })
    }

    /// Serves until `stop` resolves; what that was, and what the log is to say then.
    ///
    /// # Errors
    /// Why it cannot go on.
    async fn serve_until<T>(
        &mut self,
        config: &Config,
        stop: impl Future<Output = T>,
    ) -> Result<(T, &'static str), String> {
        let mut stop = pin!(stop);
        loop {
            tokio::select! {
                stopped = &mut stop => return Ok((stopped, "stopping: no new work")),
                () = self.incarnation.membership.lost() => {}
                ended = &mut self.serving.ended => return Err(match ended {
                    Ok(Ok(())) => "the HTTP server ended by itself".to_owned(),
                    Ok(Err(error)) => format!("the HTTP server broke down: {error}"),
                    Err(error) => format!("the HTTP server died: {error}"),
                }),
            }
            // Others found this incarnation dead. Nothing of it counts any more; the process goes on as another.
            tokio::select! {
                stopped = &mut stop => {
                    return Ok((stopped, "stopping, before a new incarnation has joined"));
                }
                begun = self.begin_anew(config) => {
                    if let Err(failure) = begun {
                        return Err(format!("no new incarnation could start: {}", failure.message));
                    }
                }
            }
        }
    }

    /// Continues as a new incarnation. Until it has joined, requests are refused as fenced.
    async fn begin_anew(&mut self, config: &Config) -> Result<(), Failure> {
        self.incarnation.signers.end_at_once();
        let Serving { endpoint, arbiters, .. } = &self.serving;
        let mut is_told = false;
        let next = loop {
            match Incarnation::begin(&self.ledger, &self.bus, arbiters, config, endpoint, &self.clock).await {
                Ok(next) => break next,
                // The ledger may be away for longer than a start would wait.
                Err(failure) if failure.exit == Exit::Unavailable => {
                    tracing::debug!(failure = failure.message, "the new incarnation waits for the ledger");
                    tokio::time::sleep(jittered(TRY_AGAIN_PAUSE)).await;
                }
                // It may lack tables while it is restored, and until `fencepost recover` has brought them up to date.
                Err(failure) if failure.exit == Exit::Config => {
                    if !std::mem::replace(&mut is_told, true) {
                        let failure = failure.message;
                        tracing::error!(
                            failure,
                            "the ledger lets no new incarnation begin; it is tried again"
                        );
                    }
                    tokio::time::sleep(jittered(TRY_AGAIN_PAUSE)).await;
                }
                Err(failure) => return Err(failure),
            }
        };
        tracing::warn!(
            before = %self.incarnation.identity.id, instance = %next.identity.id, "continuing under another id"
        );
        // The worker number of the one before is another's to take; ids go on under this one's.
        let of_ledger = (&self.ledger, self.cluster.as_str());
        self.keeping.serve(generators::numbers(config, of_ledger, endpoint, &next, &self.clock));
        self.serving.api.reincarnate(next.shown());
        std::mem::replace(&mut self.incarnation, next).abandon();
        Ok(())
    }

    /// What takes effect anew while the daemon runs.
    fn reloadable(&self) -> reload::Targets {
        let Serving { api, tls, .. } = &self.serving;
        let (api, tls) = (api.clone(), tls.clone());
        reload::Targets { api, ledger: self.ledger.clone(), tls, peers: self.peers.clone() }
    }

    /// The one line on stdout that says it can be used.
    fn announce(&self, configured: &str) {
        let (url, id, ledger) =
            (&self.serving.endpoint.url, &self.incarnation.identity.id, self.ledger.kind().as_str());
        let mode = self.incarnation.membership.cluster_view().view().modes().mode.as_str();
        let bus = self.bus.kind().as_str();
        let line = format!("fencepost ready on {url} instance={id} mode={mode} ledger={ledger} bus={bus}\n");
        // Nobody may be reading; that is no reason not to serve.
        let mut out = std::io::stdout();
        let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        let ledger_id = self.cluster.as_str();
        tracing::info!(%url, instance = %id, mode, ledger, ledger_id, bus, version = version(), "ready");
        if mode != configured {
            tracing::info!(
                mode,
                configured,
                "the ledger has a mode, which counts; the configured one is for a new ledger (PUT /v1/config/mode changes it)"
            );
        }
    }

    /// Takes the parts down: intake first, then the work under way, then the leases, and the ledger, which
    /// all of them write to, last. A request that takes long keeps no session and no plan from the other
    /// instances: if it is for one of them, it is refused as fenced. If another instance takes the lease of this
    /// one meanwhile, nothing of it can be written any more, and it is ended as fenced. After the drain timeout,
    /// the remaining work is cut off: none of it was answered, and the others take its leases once this instance has left.
    async fn stop(self, drain_timeout: Duration) {
        let Self { ledger, bus, incarnation, keeping, witness, serving: Serving { api, probe, .. }, .. } =
            self;
        let Incarnation { mut membership, signers, jobs, plans, follower, upkeep, .. } = incarnation;
        let deadline = Instant::now() + drain_timeout;
        api.drain();
        // An owner without work gives its lease back at once: the other instances wait for it.
        signers.wind_down();
        let work = async {
            let of_signers = async {
                tokio::join!(api.idle(), upkeep.stop());
                signers.stop().await;
            };
            let of_jobs = async {
                // The lanes take back what the sockets had not sent: the next owners could not tell.
                let quiet = async { tokio::join!(api.idle(), jobs.until_no_socket()) };
                let _ = timeout(SESSIONS_KEPT_MAX, quiet).await;
                jobs.wind_down().await;
                // A plan that ends tells its lane so.
                plans.stop().await;
                jobs.release_others().await;
                // The instance's own lanes are others' only once it has left: until then they accept jobs.
                api.idle().await;
                jobs.stop().await;
            };
            tokio::join!(of_signers, of_jobs);
            follower.stop().await;
        };
        let drained = timeout_at(deadline, async {
            let mut work = pin!(work);
            tokio::select! {
                () = &mut work => return,
                () = membership.lost() => {}
            }
            // The keys are others' now: what is under way can be written no more.
            tokio::join!(signers.abandon(), jobs.abandon(), work);
        });
        let is_drained = drained.await.is_ok();
        if !is_drained {
            tracing::warn!(
                requests = api.in_flight(),
                "the drain timeout is over; the remaining work is cut off, and its leases are free once this instance has \
                 left"
            );
            signers.end_at_once();
            jobs.end_at_once();
        }
        let close_sockets = async { if is_drained { api.stop().await } else { api.stop_at_once().await } };
        let last_steps: [_; LAST_STEPS] = [
            ("giving the worker number back", timeout(CLOSE_STEP_MAX, keeping.stop()).await),
            ("leaving the cluster", timeout(CLOSE_STEP_MAX, membership.leave()).await),
            ("closing the sockets", timeout(CLOSE_STEP_MAX, close_sockets).await),
            // After the last request: no caller gets a grant from here on.
            ("looking at the ledger once more", timeout(CLOSE_STEP_MAX, witness.stop()).await),
            ("closing the bus", timeout(CLOSE_STEP_MAX, bus.close()).await),
            ("closing the ledger", timeout(CLOSE_STEP_MAX, ledger.close()).await),
            // Last, so that the probes show the whole stop.
            ("closing the probes' listener", timeout(CLOSE_STEP_MAX, close_probe(probe)).await),
        ];
        for (step, _) in last_steps.iter().filter(|(_, done)| done.is_err()) {
            tracing::warn!(step, "a step of the stop took too long and was skipped");
        }
        tracing::info!("stopped");
    }
}

/// What the command line, the environment and the file came to, where a log reader looks for it.
fn tell_configuration(loaded: &Loaded) {
    let config = &loaded.config;
    tracing::info!(
        version = version(),
        file = loaded.file.as_ref().map(|file| file.display().to_string()),
        ledger = redact::url(&config.ledger.url),
        bus = redact::url(&config.bus.redis_url),
        listen = config.server.listen,
        tokens = config.auth.tokens.len(),
        tls = config.server.tls().is_some(),
        traces = redact::url(&config.traces.otlp_url),
        "starting"
    );
    for warning in encryption::warnings(config) {
        tracing::warn!(warning, "a connection is not encrypted");
    }
    for warning in file_warnings(config) {
        tracing::warn!(warning, "files of TLS may not do what is meant");
    }
    for warning in exposed_files(loaded) {
        tracing::warn!(warning, "a secret can be read by other users of this machine");
    }
    for warning in weak_tokens(config) {
        tracing::warn!(warning, "a token may be guessed");
    }
    if let Some(warning) = short_keys(config) {
        tracing::warn!(warning, "idempotency keys are forgotten before holds end");
    }
    if let Some(warning) = other_ledger(loaded) {
        tracing::warn!(warning, "the ledger is another than that of the configuration file");
    }
    if let Some(warning) = unused_parameters(loaded) {
        tracing::warn!(warning, "a part of the ledger's URL has no effect");
    }
    if let Some(warning) = ledger::place_warning(&config.ledger.url) {
        tracing::warn!(warning, "the ledger may be lost where it is");
    }
    if let Some(warning) = other_tokens(loaded) {
        tracing::warn!(warning, "the tokens are others than those of the configuration file");
    }
}

/// For how long the start waits for a ledger that is away. With a proof it serves snowflakes meanwhile.
fn patience(config: &Config, proof: Option<Duration>) -> Duration {
    Duration::from_millis(config.ledger.connect_timeout_ms).max(proof.unwrap_or_default())
}

/// The secret that the instances share: the configured one, or the one that the ledger keeps.
async fn cluster_secret(config: &Config, ledger: &ledger::Handle) -> Result<ClusterSecret, Failure> {
    let configured = &config.cluster.secret.0;
    if !configured.is_empty() {
        return Ok(ClusterSecret::parse(configured).expect("the secret is checked"));
    }
    let random: [u8; 32] = rand::rng().random();
    let text: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let proposed = ClusterSecret::parse(&text).expect("64 digits are a secret");
    let give_up = Instant::now() + Duration::from_millis(config.ledger.connect_timeout_ms);
    let decided = once_there(give_up, async || ledger.decide_cluster_secret(&proposed).await).await;
    decided.map_err(|error| not_opened(error, config))
}

/// Asks the ledger, and again while it is away: it may go away between any two steps of a start.
async fn once_there<T>(give_up: Instant, ask: impl AsyncFn() -> ledger::Result<T>) -> ledger::Result<T> {
    loop {
        match ask().await {
            Err(error) if error.is_retryable() && Instant::now() < give_up => {
                // The ledger logs that it is away, once.
                tracing::debug!(%error, "waiting for the ledger");
                tokio::time::sleep(jittered(TRY_AGAIN_PAUSE)).await;
            }
            found => return found,
        }
    }
}

/// Opens the bus on an arbiter, because the owners of jobs wait for its answers.
async fn open_bus(config: &Config, serving: &Serving, cluster: bus::Cluster) -> Result<bus::Handle, Failure> {
    let options = config.bus.options();
    let opening = serving.arbiters.common().spawn(async move { bus::open(&options, &cluster).await });
    let ended = |error| Failure::new(Exit::Software, format!("the bus was not opened: {error}"));
    let opened = opening.await.map_err(ended)?;
    opened.map_err(|error| Failure::of_bus(error, &config.bus.redis_url))
}

async fn open_ledger(
    config: &Config,
    job_committers: &[tokio::runtime::Handle],
    patience: Duration,
) -> Result<ledger::Handle, Failure> {
    let give_up = Instant::now() + patience;
    let connect_timeout_ms = patience.as_millis() as u64;
    let options = ledger::Options { connect_timeout_ms, ..config.ledger.options() };
    let opened = ledger::open_on(&options, job_committers, config.ledger.migrate()).await;
    let ledger = opened.map_err(|error| not_opened(error, config))?;
    let checked = once_there(give_up, async || ledger.check().await).await;
    checked.map_err(|error| not_opened(error, config))?;
    Ok(ledger)
}

/// The failure of a start. Of a ledger that takes no writes it says why, in the database's words too, and what to do about it.
fn not_opened(error: ledger::Error, config: &Config) -> Failure {
    let Some(reason) = Unwritable::why(&error) else {
        return Failure::of_ledger(error, &config.ledger.url);
    };
    let message = of_unwritable(reason, std::error::Error::source(&error), &config.ledger.url);
    Failure { message, ..Failure::from(error) }
}

fn of_unwritable(reason: Unwritable, said: Option<&dyn std::error::Error>, url: &str) -> String {
    let is_server = ledger::Kind::of(url).is_ok_and(ledger::Kind::is_server);
    let remedy = match reason {
        Unwritable::DiskFull => "Make room on the disk that it is on, and start again.",
        Unwritable::ReadOnly if is_server => {
            "If the server is a standby, name the primary in the URL, or promote it (pg_promote). If it is none, a setting \
             makes it so: see default_transaction_read_only of the role, the database and the server."
        }
        Unwritable::ReadOnly => "Let it take writes, of this user too, and start again.",
        Unwritable::InputOutput => "The system's log may say what is wrong with its disk, or its folder.",
        Unwritable::Denied => "Give the role SELECT, INSERT, UPDATE and DELETE on all tables of the ledger.",
        Unwritable::Incomplete => "Restore a backup (see docs/recovery.md), or name another database.",
        Unwritable::Corrupt => "Put a backup in its place (see docs/recovery.md).",
    };
    let said = said.map(|said| format!(": {said}")).unwrap_or_default();
    format!("{reason}{said}\n  {remedy}\n  The ledger is {} (ledger.url).", redact::url(url))
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::io;

    use ledger::Error;

    use super::*;

    /// Answers so many times that the ledger is away, and then as said; the number of calls.
    async fn asked(away: u32, then: ledger::Result<()>, patience: Duration) -> (ledger::Result<()>, u32) {
        let calls = Cell::new(0);
        let found = once_there(Instant::now() + patience, async || {
            calls.set(calls.get() + 1);
            if calls.get() <= away {
                return Err(Error::unavailable(io::Error::from(io::ErrorKind::ConnectionReset)));
            }
            then.clone()
        });
        (found.await, calls.get())
    }

    #[test]
    fn a_start_on_a_ledger_that_takes_no_writes_says_why_and_what_to_do_about_it() {
        let said = io::Error::other("(code: 13) database or disk is full");
        let message = of_unwritable(Unwritable::DiskFull, Some(&said), "postgres://f:secret@h/led");
        assert!(message.starts_with("the ledger's disk is full: (code: 13)"), "{message}");
        assert!(message.contains("\n  Make room") && message.contains("@h/led"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }

    #[test]
    fn a_ledger_that_takes_reads_only_is_a_file_with_its_rights_or_a_server_with_its_settings() {
        let server = of_unwritable(Unwritable::ReadOnly, None, "postgres://f@h/led");
        assert!(
            server.contains("pg_promote") && server.contains("default_transaction_read_only"),
            "{server}"
        );
        let file = of_unwritable(Unwritable::ReadOnly, None, "sqlite:ledger.db");
        assert!(file.contains("of this user too") && !file.contains("standby"), "{file}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ledger_that_goes_away_between_two_steps_of_a_start_is_asked_again() {
        let patience = TRY_AGAIN_PAUSE * 10;
        let (found, calls) = asked(3, Ok(()), patience).await;
        assert!(found.is_ok() && calls == 4, "{found:?} after {calls}");
        let (found, calls) = asked(u32::MAX, Ok(()), patience).await;
        assert!(found.unwrap_err().is_retryable() && (8..=21).contains(&calls), "{calls}");
        let refused = Error::refused(io::Error::from(io::ErrorKind::PermissionDenied));
        let (found, calls) = asked(0, Err(refused), patience).await;
        assert!(!found.unwrap_err().is_retryable() && calls == 1, "{calls}");
    }
}
