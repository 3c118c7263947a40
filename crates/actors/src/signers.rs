//! Signers: the handle through which everybody reaches the owner of a signer's nonces.
//!
//! The path of a request: handle (here) → [`directory`] → the signer's [`actor`], on the arbiter of its key →
//! its pure state in [`domain::signer`] → commit in `ledger` → answer. Replays of a kept idempotency key
//! (basic mode) and signers that do not exist are answered from the ledger without a lease.

mod actor;
mod directory;
mod hand_off;
mod lease;
mod pause;
mod upkeep;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use cluster::{ClusterView, FailureDetector};
use dashmap::DashMap;
use domain::nonce::{Policy, PolicyPatch, Resolution, SettleRefusal, Settlement, Status};
use domain::signer::{Answer, Command, Phase, ResolveRequest, SignerConfig, Sources, Ticket, still_live};
pub use domain::signer::{Grant, GrantRequest, Grants, Refusal, RequestKey};
use domain::{AuditEntry, HoldId, InstanceId, Mode, Nonce, Resource, SignerId};
use ledger::jittered;
use tokio::sync::Semaphore;
use uuid::Uuid;

use actor::{Ask, WaitingCaller};
use directory::Directory;
use hand_off::Left;
pub use upkeep::{PURGE_EVERY, Upkeep, UpkeepSettings};

use crate::arbiters::Arbiters;
use crate::database_clock::SharedClock;
use crate::releases::Releases;
use crate::renewals::Renewals;
use crate::replies::reply_channel;

/// Lengths and limits of the signers' owners.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Length of a signer's lease.
    pub lease: Duration,
    /// Length of a hold when neither request nor policy says, in milliseconds.
    pub hold_ms: u64,
    /// How long a request waits for a lease that another instance has.
    pub lease_wait: Duration,
    /// How long a lease is kept at most while there is work (basic mode).
    pub lease_kept_max: Duration,
    /// How long a lease is kept without work (worker-queue mode).
    pub idle: Duration,
    /// How long a request may take altogether.
    pub request_timeout: Duration,
    /// Requests that may wait for one signer.
    pub queue_max: usize,
    /// Requests that may be under way in this instance, all signers together.
    pub in_flight_max: usize,
}

/// Signers remembered as existing. Beyond that many all are forgotten and asked for again.
const KNOWN_SIGNERS_MAX: usize = 100_000;

/// How long past the deadline an owner may still give a more exact answer than "not in time".
const DEADLINE_SLACK: Duration = Duration::from_millis(250);

/// Batches of one signer that may be on their way to the ledger at once: one that is committed, and one that is written
/// meanwhile. A third was not faster.
const COMMITS_IN_FLIGHT_MAX: usize = 2;

const _: () = assert!(
    domain::limits::ROUND_NONCES_MAX + domain::limits::GRANT_NONCES_MAX + domain::limits::ROUND_COMMANDS_MAX
        < ledger::BATCH_ROWS_MAX,
    "a round must fit a batch: its rows, and a key for each command; a second key counts as a nonce"
);

/// Cheap to clone; all clones reach the same owners.
#[derive(Clone)]
pub struct Signers {
    inner: Arc<Inner>,
}

struct Inner {
    arbiters: Arbiters,
    /// Where the ledger was opened, and its calls run.
    runtime: tokio::runtime::Handle,
    ledger: ledger::Handle,
    failure_detector: FailureDetector,
    cluster_view: ClusterView,
    limits: Limits,
    /// What the states of all signers have in common, this instance's id among it.
    config: Arc<SignerConfig>,
    renewals: Arc<Renewals>,
    releases: Releases,
    phase: AtomicU8,
    directory: Directory,
    /// Bounds the requests under way, all signers together.
    under_way: Arc<Semaphore>,
    /// The database's clock, by which holds run out.
    clock: SharedClock,
    /// A signer that existed once exists for good.
    known: DashMap<SignerId, ()>,
    /// Signers that another instance is to own, whose leases this one gave back.
    left: DashMap<SignerId, Left>,
}

impl Signers {
    /// Starts the owners of an instance; their actors live on `arbiters`, which must outlive them. Must be called within
    /// the Tokio runtime in which the ledger was opened.
    #[must_use]
    pub fn start(
        arbiters: Arbiters,
        ledger: ledger::Handle,
        owner: InstanceId,
        failure_detector: FailureDetector,
        cluster_view: ClusterView,
        clock: SharedClock,
        limits: Limits,
    ) -> Self {
        let renewals = Arc::<Renewals>::default();
        renewals.start(ledger.clone(), owner.clone(), limits.lease);
        let config = SignerConfig {
            owner: owner.clone(),
            hold_ms: limits.hold_ms,
            lease_kept_max: limits.lease_kept_max,
            idle: limits.idle,
            waiting_commands_max: limits.queue_max,
            commits_in_flight_max: COMMITS_IN_FLIGHT_MAX,
            nonces_beside_min: domain::limits::ROUND_NONCES_MAX,
            sources: Sources { hold_id: || HoldId::from_u128(Uuid::new_v4().as_u128()), jittered },
        };
        let inner = Arc::new(Inner {
            arbiters,
            runtime: tokio::runtime::Handle::current(),
            releases: Releases::start(ledger.clone(), owner, limits.lease),
            ledger,
            failure_detector,
            cluster_view,
            clock,
            under_way: Arc::new(Semaphore::new(limits.in_flight_max)),
            limits,
            config: Arc::new(config),
            renewals,
            phase: AtomicU8::new(Phase::Serving as u8),
            directory: Directory::default(),
            known: DashMap::new(),
            left: DashMap::new(),
        });
        let owners = Arc::downgrade(&inner);
        inner.renewals.on_lost(move |resource| {
            if let (Some(inner), Ok(signer)) = (owners.upgrade(), SignerId::parse(resource.id())) {
                inner.directory.wake(&signer);
            }
        });
        hand_off::start(&inner);
        Self { inner }
    }

    /// Whether this instance keeps the signer's lease now, as far as its own clock tells.
    #[must_use]
    pub fn owns(&self, signer: &SignerId) -> bool {
        self.inner.renewals.keeps(&Resource::signer(signer))
    }

    /// From now on a lease is given back as soon as it has no work. What comes is served.
    pub fn wind_down(&self) {
        self.enter(Phase::Stopping);
    }

    /// Never back to an earlier one.
    fn enter(&self, phase: Phase) {
        let before = self.inner.phase.fetch_max(phase as u8, Ordering::AcqRel);
        if before < phase as u8 {
            self.inner.directory.wake_all();
        }
    }

    fn is_serving(&self) -> bool {
        self.inner.phase() == Phase::Serving
    }

    /// How many requests are under way, for tests and the metric.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.inner.limits.in_flight_max - self.inner.under_way.available_permits()
    }

    /// From now on nothing is decided or begun.
    pub fn end_at_once(&self) {
        self.enter(Phase::Over);
    }

    /// Ends all that is under way: this incarnation's leases may be others' by now. What was asked of it and
    /// not answered yet is refused as fenced.
    pub async fn abandon(&self) {
        self.enter(Phase::Over);
        self.inner.directory.emptied().await;
    }

    /// Waits until all that was accepted is done and every lease is given back. Accept nothing more
    /// before calling this.
    pub async fn stop(&self) {
        self.enter(Phase::Stopping);
        self.inner.directory.emptied().await;
    }

    /// Grants nonces, lowest hole first. Under a key, the same request gets the same nonces.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn grant(&self, signer: &SignerId, request: GrantRequest) -> Result<Grants, Refusal> {
        let deadline = self.deadline();
        // In basic mode the lease may be anywhere; what was answered before is answered without it. In
        // worker-queue mode the owner looks, once for all that it decides together.
        if let (Mode::Basic, Some(key)) = (self.inner.mode(signer), &request.key)
            && let Some(grants) = Box::pin(self.inner.replay(signer, key, deadline)).await?
        {
            return Ok(grants);
        }
        match self.ask(signer, deadline, Command::Grant(request), None).await? {
            Answer::Granted(grants) => Ok(grants),
            other => Err(mismatched(&other)),
        }
    }

    /// Settles holds; an answer for each, in the order asked.
    ///
    /// # Errors
    /// [`Refusal`] when none was looked at.
    pub async fn settle(
        &self,
        signer: &SignerId,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Result<Status, SettleRefusal>>, Refusal> {
        let deadline = self.deadline();
        self.inner.check_known(signer, deadline).await?;
        match self.ask(signer, deadline, Command::Settle(settlements), None).await? {
            Answer::Settled(answers) => Ok(answers),
            other => Err(mismatched(&other)),
        }
    }

    /// An operator's decision on a quarantined nonce. With `hold` it counts only while that is the nonce's
    /// last hold, so that a repeat that comes late cannot decide about somebody else's.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn resolve(
        &self,
        signer: &SignerId,
        nonce: Nonce,
        hold: Option<HoldId>,
        resolution: Resolution,
        by: AuditEntry,
    ) -> Result<Status, Refusal> {
        let deadline = self.deadline();
        self.inner.check_known(signer, deadline).await?;
        let request = ResolveRequest { nonce, hold, resolution };
        match self.ask(signer, deadline, Command::Resolve(request), Some(Box::new(by))).await? {
            Answer::Resolved(status) => Ok(status),
            other => Err(mismatched(&other)),
        }
    }

    /// Changes a signer's policy; answers the one then in force.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn set_policy(
        &self,
        signer: &SignerId,
        patch: PolicyPatch,
        by: AuditEntry,
    ) -> Result<Policy, Refusal> {
        match self.ask(signer, self.deadline(), Command::SetPolicy(patch), Some(Box::new(by))).await? {
            Answer::PolicySet(policy) => Ok(policy),
            other => Err(mismatched(&other)),
        }
    }

    /// Has the signer's overdue holds expired, if its lease can be had.
    async fn sweep(&self, signer: &SignerId) -> Result<(), Refusal> {
        self.ask(signer, self.deadline(), Command::Sweep, None).await.map(|_| ())
    }

    /// One for the whole request, whatever it has to wait for.
    fn deadline(&self) -> Instant {
        Instant::now() + self.inner.limits.request_timeout
    }

    async fn ask(
        &self,
        signer: &SignerId,
        deadline: Instant,
        command: Command,
        audit: Option<Box<AuditEntry>>,
    ) -> Result<Answer, Refusal> {
        let inner = &self.inner;
        if inner.phase() == Phase::Over {
            return Err(Refusal::Fenced);
        }
        if let Some(owner) = inner.left_to(signer) {
            return Err(Refusal::NotOwner { owner, expires_in_ms: 0 });
        }
        let place = Arc::clone(&inner.under_way).try_acquire_owned().map_err(|_| Refusal::Overloaded)?;
        let (sender, answer) = reply_channel();
        let arrived = Instant::now();
        let patience = match inner.mode(signer) {
            Mode::Basic => arrived + jittered(inner.limits.lease_wait),
            // The other instance is the owner, and that is the answer.
            Mode::WorkerQueue => arrived,
        };
        let caller = WaitingCaller { answer: sender, _place: place };
        inner.send(signer, Ask { command, ticket: Ticket { caller, arrived, patience, deadline, audit } })?;
        match tokio::time::timeout_at((deadline + DEADLINE_SLACK).into(), answer).await {
            // An actor that dies drops its callers.
            Ok(answer) => answer.unwrap_or(Err(Refusal::Internal)),
            Err(_) => Err(Refusal::LedgerUnavailable),
        }
    }
}

/// An answer to another question than the one asked: a defect.
fn mismatched(answer: &Answer) -> Refusal {
    tracing::error!(?answer, "an owner's answer does not fit the request");
    Refusal::Internal
}

impl Inner {
    fn mode(&self, signer: &SignerId) -> Mode {
        self.cluster_view.mode(&Resource::signer(signer))
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            serving if serving == Phase::Serving as u8 => Phase::Serving,
            stopping if stopping == Phase::Stopping as u8 => Phase::Stopping,
            _ => Phase::Over,
        }
    }

    async fn check_known(&self, signer: &SignerId, deadline: Instant) -> Result<(), Refusal> {
        if self.known.contains_key(signer) {
            return Ok(());
        }
        let loaded = pause::until(deadline, || self.ledger.load(signer, 0)).await?;
        if loaded.policy.is_none() {
            return Err(Refusal::UnknownSigner);
        }
        self.remember(signer);
        Ok(())
    }

    fn remember(&self, signer: &SignerId) {
        if self.known.len() >= KNOWN_SIGNERS_MAX {
            self.known.clear();
        }
        self.known.insert(signer.clone(), ());
    }

    /// The answer to a request that was answered before; `None` if it was not. None is given while the signer recovers, as
    /// by its owner.
    async fn replay(
        &self,
        signer: &SignerId,
        key: &RequestKey,
        deadline: Instant,
    ) -> Result<Option<Grants>, Refusal> {
        // What all callers share is looked for by the owner: it knows whether they do.
        let scope = [key.scope(signer)];
        let kept = pause::until(deadline, || self.ledger.kept_keys(&scope)).await?.pop();
        let Some((_, kept)) = kept else { return Ok(None) };
        // Asked before the rows as well as after them: rows read before a confirmation have holds that it ends.
        self.check_not_recovering(signer, deadline).await?;
        let nonces: Vec<_> = kept.answer.grants.iter().map(|(nonce, _)| *nonce).collect();
        let (read, asked) = pause::until(deadline, || async {
            let asked = Instant::now();
            self.ledger.rows(signer, &nonces).await.map(|read| (read, asked))
        })
        .await?;
        // A recovery in between is seen.
        self.check_not_recovering(signer, deadline).await?;
        if kept.body_hash != key.body_hash {
            return Err(Refusal::KeyReused);
        }
        let rows = self.clock.with_left(read.value, read.at, asked);
        let live = still_live(&kept.answer, rows, asked.elapsed());
        live.map(Some).ok_or_else(|| Refusal::stale_replay(&kept.answer))
    }

    async fn check_not_recovering(&self, signer: &SignerId, deadline: Instant) -> Result<(), Refusal> {
        if pause::until(deadline, || self.ledger.is_recovering(signer)).await? {
            return Err(Refusal::Recovering);
        }
        Ok(())
    }
}
