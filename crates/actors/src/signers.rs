//! Signers: the handle through which everybody reaches the owner of a signer's nonces.
//!
//! The way of a request: handle (here) → the signer's [`desk`] → under a [`tenure`] of its lease →
//! decision in `domain::nonce` → commit in `ledger` → answer. Replays of a kept idempotency key and
//! signers that do not exist are answered from the ledger without a lease.

mod command;
mod desk;
mod draft;
mod hand_off;
mod pause;
mod refusal;
mod round;
mod tenure;
mod upkeep;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::{Outlook, Standing};
use dashmap::DashMap;
use domain::nonce::{Policy, PolicyPatch, Resolution, SettleRefusal, Settlement, Status};
use domain::{HoldId, IdempotencyKey, InstanceId, Mode, Nonce, Resource, SignerId, Timestamp, Token};
use ledger::KeyScope;
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use command::{Command, Granting, Reply, Resolving};
use desk::Desk;
use draft::Facts;
pub use refusal::Refusal;
pub use upkeep::{Upkeep, UpkeepSettings};

use crate::releases::Releases;
use crate::renewals::Renewals;

/// A wish for nonces.
#[derive(Clone, Debug)]
pub struct GrantRequest {
    /// How many, 1 to [`domain::limits::GRANT_NONCES_MAX`].
    pub count: usize,
    /// How long each is held, in milliseconds; the policy's length without it.
    pub hold_ms: Option<u64>,
    /// The caller's name for this request.
    pub key: Option<RequestKey>,
}

/// An idempotency key and what was asked under it.
#[derive(Clone, Debug)]
pub struct RequestKey {
    /// The key.
    pub key: IdempotencyKey,
    /// SHA-256 of what was asked.
    pub body_hash: [u8; 32],
}

/// Nonces granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grants {
    /// The token they were granted under.
    pub token: Token,
    /// The owner that granted them.
    pub owner: InstanceId,
    /// The nonces, in the order granted.
    pub grants: Vec<Grant>,
}

/// One nonce granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The nonce.
    pub nonce: Nonce,
    /// The hold to settle it with.
    pub hold: HoldId,
    /// When the hold runs out, by the database's clock.
    pub held_until: Timestamp,
    /// What was left of it when this answer was built, in milliseconds.
    pub held_for_ms: u64,
}

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
    pub tenure_max: Duration,
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

/// A desk that can still say more than "not in time" gets so long past the deadline to say it.
const DEADLINE_SLACK: Duration = Duration::from_millis(250);

/// How long the owners of an incarnation go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// For as long as there is work, and a while after.
    Serving,
    /// They give their leases back as soon as they have no work.
    Stopping,
    /// The incarnation has ended: they do nothing any more.
    Over,
}

/// Cheap to clone; all clones reach the same owners.
#[derive(Clone)]
pub struct Signers {
    inner: Arc<Inner>,
}

struct Inner {
    ledger: ledger::Handle,
    owner: InstanceId,
    standing: Standing,
    outlook: Outlook,
    limits: Limits,
    renewals: Arc<Renewals>,
    releases: Releases,
    phase: watch::Sender<Phase>,
    /// The signers that have work now. A desk is there exactly as long as its task runs.
    desks: DashMap<SignerId, Desk>,
    desk_closed: Notify,
    /// Bounds the requests under way, all signers together.
    under_way: Arc<Semaphore>,
    /// A signer that existed once exists for good.
    known: DashMap<SignerId, ()>,
}

impl Signers {
    /// Opens the desks of an instance. Must be called within a Tokio runtime; desks run on it.
    #[must_use]
    pub fn start(
        ledger: ledger::Handle,
        owner: InstanceId,
        standing: Standing,
        outlook: Outlook,
        limits: Limits,
    ) -> Self {
        let under_way = Arc::new(Semaphore::new(limits.in_flight_max));
        let renewals = Arc::<Renewals>::default();
        renewals.start(ledger.clone(), owner.clone(), limits.lease);
        let releases = Releases::start(ledger.clone(), owner.clone(), limits.lease);
        let inner = Inner {
            ledger,
            owner,
            standing,
            outlook,
            limits,
            renewals,
            releases,
            phase: watch::Sender::new(Phase::Serving),
            desks: DashMap::new(),
            desk_closed: Notify::new(),
            under_way,
            known: DashMap::new(),
        };
        let inner = Arc::new(inner);
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
        self.inner.phase.send_modify(|now| *now = phase.max(*now));
    }

    fn is_serving(&self) -> bool {
        *self.inner.phase.borrow() == Phase::Serving
    }

    /// From now on nothing is decided or begun.
    pub fn end_at_once(&self) {
        self.enter(Phase::Over);
    }

    /// Ends all that is under way: this incarnation's leases may be others' by now. What was asked of it and
    /// not answered yet is refused as fenced.
    pub async fn abandon(&self) {
        self.end(Phase::Over).await;
    }

    /// Waits until all that was accepted is done and every lease is given back. Accept nothing more
    /// before calling this.
    pub async fn stop(&self) {
        self.end(Phase::Stopping).await;
    }

    async fn end(&self, phase: Phase) {
        self.enter(phase);
        loop {
            // Registered before the look, so that a desk that closes in between is not missed.
            let closed = self.inner.desk_closed.notified();
            if self.inner.desks.is_empty() {
                return;
            }
            closed.await;
        }
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
            && let Some(grants) = self.inner.replay(signer, key, deadline).await?
        {
            return Ok(grants);
        }
        self.ask(signer, deadline, |reply| Command::Grant(Granting { request, lost: None }, reply)).await
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
        self.ask(signer, deadline, |reply| Command::Settle(settlements, reply)).await
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
    ) -> Result<Status, Refusal> {
        let deadline = self.deadline();
        self.inner.check_known(signer, deadline).await?;
        let resolving = Resolving { nonce, hold, resolution };
        self.ask(signer, deadline, |reply| Command::Resolve(resolving, reply)).await
    }

    /// Changes a signer's policy; answers the one then in force.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn set_policy(&self, signer: &SignerId, patch: PolicyPatch) -> Result<Policy, Refusal> {
        self.ask(signer, self.deadline(), |reply| Command::SetPolicy(patch, reply)).await
    }

    /// Has the signer's overdue holds expired, if its lease can be had.
    async fn sweep(&self, signer: &SignerId) -> Result<(), Refusal> {
        self.ask(signer, self.deadline(), Command::Sweep).await
    }

    /// One for the whole request, whatever it has to wait for.
    fn deadline(&self) -> Instant {
        Instant::now() + self.inner.limits.request_timeout
    }

    async fn ask<T>(
        &self,
        signer: &SignerId,
        deadline: Instant,
        command: impl FnOnce(Reply<T>) -> Command,
    ) -> Result<T, Refusal> {
        let (reply, answer) = oneshot::channel();
        self.inner.enqueue(signer, command(reply), deadline)?;
        match tokio::time::timeout_at((deadline + DEADLINE_SLACK).into(), answer).await {
            // A desk that dies drops its replies.
            Ok(answer) => answer.unwrap_or(Err(Refusal::Internal)),
            Err(_) => Err(Refusal::LedgerUnavailable),
        }
    }
}

impl Inner {
    fn mode(&self, signer: &SignerId) -> Mode {
        self.outlook.mode(&Resource::signer(signer))
    }

    fn is_over(&self) -> bool {
        *self.phase.borrow() == Phase::Over
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

    /// The answer to a request that was answered before; `None` if it was not.
    async fn replay(
        &self,
        signer: &SignerId,
        key: &RequestKey,
        deadline: Instant,
    ) -> Result<Option<Grants>, Refusal> {
        let scope = [key.scope(signer)];
        let kept = pause::until(deadline, || self.ledger.kept_keys(&scope)).await?.pop();
        let Some((_, kept)) = kept else { return Ok(None) };
        if kept.body_hash != key.body_hash {
            return Err(Refusal::KeyReused);
        }
        let nonces: Vec<_> = kept.answer.grants.iter().map(|(nonce, _)| *nonce).collect();
        let (read, asked) = pause::until(deadline, || async {
            let asked = Instant::now();
            self.ledger.rows(signer, &nonces).await.map(|read| (read, asked))
        })
        .await?;
        let rows = read.value.into_iter().map(|row| (row.nonce, row)).collect();
        let facts = Facts { kept: std::collections::HashMap::new(), rows, at: read.at, asked };
        facts.still_live(&kept.answer).map(Some).ok_or(Refusal::StaleReplay)
    }
}

impl RequestKey {
    /// Keys count per route and signer.
    fn scope(&self, signer: &SignerId) -> KeyScope {
        KeyScope { scope: format!("grant signer:{signer}"), key: self.key.clone() }
    }
}
