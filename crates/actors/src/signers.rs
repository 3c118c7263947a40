//! Signers: the handle through which everybody reaches the owner of a signer's nonces.
//!
//! The way of a request: handle (here) → the signer's [`desk`] → under a [`tenure`] of its lease →
//! decision in `domain::nonce` → commit in `ledger` → answer. Replays of a kept idempotency key and
//! signers that do not exist are answered from the ledger without a lease.

mod desk;
mod operations;
mod refusal;
mod tenure;
mod upkeep;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::DashMap;
use domain::nonce::{Policy, PolicyPatch, Resolution, SettleRefusal, Settlement, Status};
use domain::{HoldId, IdempotencyKey, InstanceId, Nonce, SignerId, Timestamp, Token};
use ledger::{GrantAnswer, KeptKey, KeyScope};
use tokio::sync::{Notify, Semaphore};

use desk::{Asked, Command, Desk};
use operations::{Granting, Operation, PolicyChange, Resolving, Settling, Sweep};
pub use refusal::Refusal;
pub use upkeep::{Upkeep, UpkeepSettings};

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
    /// How long a request may take altogether.
    pub request_timeout: Duration,
    /// Requests that may wait for one signer.
    pub queue_max: usize,
    /// Requests that may be under way in this instance, all signers together.
    pub in_flight_max: usize,
}

/// Signers remembered as existing. Beyond that many all are forgotten and asked for again.
const KNOWN_SIGNERS_MAX: usize = 100_000;

/// Cheap to clone; all clones reach the same owners.
#[derive(Clone)]
pub struct Signers {
    inner: Arc<Inner>,
}

struct Inner {
    ledger: ledger::Handle,
    owner: InstanceId,
    limits: Limits,
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
    pub fn start(ledger: ledger::Handle, owner: InstanceId, limits: Limits) -> Self {
        let under_way = Arc::new(Semaphore::new(limits.in_flight_max));
        let inner = Inner {
            ledger,
            owner,
            limits,
            desks: DashMap::new(),
            desk_closed: Notify::new(),
            under_way,
            known: DashMap::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Waits until all that was accepted is done and every lease is given back. Accept nothing more
    /// before calling this.
    pub async fn stop(&self) {
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
        if let Some(key) = &request.key
            && let Some(kept) = self.inner.kept(signer, key, deadline).await?
        {
            return self.inner.replay(signer, key, kept, deadline).await;
        }
        self.ask(signer, deadline, Command::Grant, Granting::new(request)).await
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
        self.ask(signer, deadline, Command::Settle, Settling(settlements)).await
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
        self.ask(signer, deadline, Command::Resolve, Resolving { nonce, hold, resolution }).await
    }

    /// Changes a signer's policy; answers the one then in force.
    ///
    /// # Errors
    /// [`Refusal`].
    pub async fn set_policy(&self, signer: &SignerId, patch: PolicyPatch) -> Result<Policy, Refusal> {
        self.ask(signer, self.deadline(), Command::SetPolicy, PolicyChange(patch)).await
    }

    /// Has the signer's overdue holds expired, if its lease can be had.
    async fn sweep(&self, signer: &SignerId) -> Result<(), Refusal> {
        self.ask(signer, self.deadline(), Command::Sweep, Sweep).await
    }

    /// One for the whole request, whatever it has to wait for.
    fn deadline(&self) -> Instant {
        Instant::now() + self.inner.limits.request_timeout
    }

    async fn ask<O: Operation>(
        &self,
        signer: &SignerId,
        deadline: Instant,
        command: impl FnOnce(Asked<O>) -> Command,
        operation: O,
    ) -> Result<O::Answer, Refusal> {
        let (asked, answer) = Asked::new(operation);
        self.inner.enqueue(signer, command(asked), deadline)?;
        // A desk that dies drops its replies.
        answer.await.unwrap_or(Err(Refusal::Internal))
    }
}

impl Inner {
    async fn check_known(&self, signer: &SignerId, deadline: Instant) -> Result<(), Refusal> {
        if self.known.contains_key(signer) {
            return Ok(());
        }
        let loaded = desk::until(deadline, || self.ledger.load(signer, 0)).await?;
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

    async fn kept(
        &self,
        signer: &SignerId,
        key: &RequestKey,
        deadline: Instant,
    ) -> Result<Option<KeptKey>, Refusal> {
        let scope = key.scope(signer);
        desk::until(deadline, || self.ledger.kept_key(&scope)).await
    }

    /// The answer to a request that was answered before.
    async fn replay(
        &self,
        signer: &SignerId,
        key: &RequestKey,
        kept: KeptKey,
        deadline: Instant,
    ) -> Result<Grants, Refusal> {
        if kept.body_hash != key.body_hash {
            return Err(Refusal::KeyReused);
        }
        self.still_live(signer, kept.answer, deadline).await?.ok_or(Refusal::StaleReplay)
    }

    /// The grants of an earlier answer, if every hold of it is still live; `None` as soon as one was
    /// settled, ran out, or was never written.
    async fn still_live(
        &self,
        signer: &SignerId,
        answer: GrantAnswer,
        deadline: Instant,
    ) -> Result<Option<Grants>, Refusal> {
        let nonces: Vec<_> = answer.grants.iter().map(|(nonce, _)| *nonce).collect();
        let (read, asked) = desk::until(deadline, || async {
            let asked = Instant::now();
            self.ledger.rows(signer, &nonces).await.map(|read| (read, asked))
        })
        .await?;
        let rows: std::collections::HashMap<_, _> =
            read.value.into_iter().map(|row| (row.nonce, row)).collect();
        let since = asked.elapsed().as_millis() as u64;
        let grants = answer.grants.into_iter().map(|(nonce, hold)| {
            let row = rows.get(&nonce).filter(|row| row.hold == hold && row.status == Status::Held)?;
            let left = row.held_until.ms_since(read.at).saturating_sub(since);
            (left > 0).then_some(Grant { nonce, hold, held_until: row.held_until, held_for_ms: left })
        });
        let grants = grants.collect::<Option<Vec<_>>>();
        Ok(grants.map(|grants| Grants { token: answer.token, owner: answer.owner, grants }))
    }
}

impl RequestKey {
    /// Keys count per route and signer.
    fn scope(&self, signer: &SignerId) -> KeyScope {
        KeyScope { scope: format!("grant signer:{signer}"), key: self.key.clone() }
    }
}
