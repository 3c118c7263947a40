//! One tenure of a signer's lease: what its owner knows, decides and commits while it has it.
//!
//! The order of things, and what a crash after each leaves behind:
//! 1. acquire (its own transaction): a lease that runs out by itself;
//! 2. load, in a later statement, so that it sees the last commit of the owner before;
//! 3. expire what is overdue (one commit): holes or quarantined nonces, as the policy says;
//! 4. each request: decide on the loaded state, commit; a crash before the answer leaves a hold that runs
//!    out, or that the caller's retry finds under its idempotency key;
//! 5. release.
//!
//! Any commit that was not surely done ends the tenure: the state in memory is dropped, never repaired.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::Standing;
use domain::limits::{EXPIRIES_MAX, HOLES_IN_MEMORY_MAX};
use domain::nonce::{Allocator, Change, Loaded};
use domain::{Mode, Resource, SignerId, Timestamp, Token};
use ledger::{Acquisition, Batch, Verdict};

use super::{Inner, Refusal};
use crate::renewals::{Clock, Renewals};

/// A batch whose lease row was locked is sent again so often before the tenure is given up.
const AGAIN_MAX: usize = 3;

/// Holds from before a tenure, of which it does not know when they run out, are looked for so often.
const OVERDUE_LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why a try did not come to an answer.
pub(super) enum Trouble {
    /// The answer is no. The tenure is as good as before.
    Refused(Refusal),
    /// The lease is another's.
    Fenced { op: &'static str },
    /// What is in memory and what is in the ledger differ, or may.
    Reload,
    /// The ledger does not answer, or nobody knows what it did.
    Away,
    /// The ledger refused what it should have taken. Logged.
    Defect,
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<ledger::Error> for Trouble {
    fn from(error: ledger::Error) -> Self {
        if error.is_retryable() {
            tracing::debug!(%error, "the ledger did not answer; beginning again");
            return Self::Away;
        }
        tracing::error!(%error, "the ledger failed");
        Self::Defect
    }
}

/// How far what is known here can be relied on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// It is what the ledger has.
    Sound,
    /// It is not, or may not be.
    Reload,
    /// The same, and the ledger did not answer the last time.
    Away,
}

/// A lease and what its owner knows under it.
pub(super) struct Tenure {
    signer: SignerId,
    /// Says when the lease may have run out, by this process's own clock.
    clock: Arc<Clock>,
    renewals: Arc<Renewals>,
    standing: Standing,
    trust: Trust,
    /// When to look for holds that ran out: when one may have, by this process's own clock.
    look_for_overdue: Instant,
    pub(super) allocator: Allocator,
}

impl Tenure {
    /// Acquires. Nothing is known yet: [`Self::load`] comes next, as a statement of its own.
    pub(super) async fn acquire(inner: &Inner, signer: &SignerId, mode: Mode) -> Result<Self, Trouble> {
        let resource = Resource::signer(signer);
        let lease_ms = inner.limits.lease.as_millis() as u64;
        // The lease is counted from when it was asked for: the database cannot have begun earlier.
        let sent = Instant::now();
        let mut acquired = inner.ledger.acquire(&resource, &inner.owner, lease_ms).await;
        let mut result = "acquired";
        if let Ok(Acquisition::Held { owner: dead, .. }) = &acquired
            && inner.standing.is_dead(dead)
            && let Some(token) = inner.ledger.take_over(&resource, &inner.owner, dead, lease_ms).await?
        {
            tracing::info!(%resource, %dead, %token, "taken over from a dead instance");
            metrics::counter!("fencepost_lease_takeover_total", "kind" => "signer", "reason" => "dead")
                .increment(1);
            acquired = Ok(Acquisition::Acquired { token, expires_at: None });
        }
        match &acquired {
            Ok(Acquisition::Acquired { .. }) => {}
            Ok(Acquisition::Held { .. }) => result = "held",
            Err(_) => result = "error",
        }
        metrics::counter!("fencepost_lease_acquire_total", "kind" => "signer", "result" => result)
            .increment(1);
        let token = match acquired? {
            Acquisition::Acquired { token, expires_at } => {
                let expires_at = expires_at.map(Timestamp::as_micros);
                tracing::debug!(%resource, owner = %inner.owner, %token, expires_at, "lease acquired");
                token
            }
            Acquisition::Held { owner, expires_in_ms } => {
                return Err(match mode {
                    Mode::Basic => Refusal::LeaseHeld { owner, expires_in_ms },
                    Mode::WorkerQueue => Refusal::NotOwner { owner, expires_in_ms },
                }
                .into());
            }
        };
        let clock = Arc::new(Clock::new(token, sent, inner.limits.lease));
        if mode == Mode::WorkerQueue {
            inner.renewals.keep(resource, Arc::clone(&clock));
        }
        Ok(Self {
            signer: signer.clone(),
            clock,
            renewals: Arc::clone(&inner.renewals),
            standing: inner.standing.clone(),
            trust: Trust::Reload,
            look_for_overdue: sent,
            allocator: Allocator::new(Loaded::default()),
        })
    }

    /// Learns what the ledger has, and expires what is overdue. From here on it can be decided upon.
    pub(super) async fn load(&mut self, inner: &Inner) -> Result<(), Trouble> {
        let loaded = inner.ledger.load(&self.signer, HOLES_IN_MEMORY_MAX).await?;
        self.allocator = Allocator::new(loaded);
        self.trust = Trust::Sound;
        if self.allocator.is_known() {
            inner.remember(&self.signer);
            self.expire_overdue(inner).await?;
        }
        Ok(())
    }

    /// A hold of `hold_ms` was granted in this tenure.
    pub(super) fn granted(&mut self, hold_ms: u64) {
        let runs_out = Instant::now() + Duration::from_millis(hold_ms);
        self.look_for_overdue = self.look_for_overdue.min(runs_out);
    }

    /// Expires what is overdue, if something may be: a hold of this tenure, or one from before it.
    pub(super) async fn expire_due(&mut self, inner: &Inner) -> Result<(), Trouble> {
        if Instant::now() >= self.look_for_overdue && self.allocator.is_known() {
            self.expire_overdue(inner).await?;
        }
        Ok(())
    }

    pub(super) fn token(&self) -> Token {
        self.clock.token()
    }

    pub(super) const fn signer(&self) -> &SignerId {
        &self.signer
    }

    /// Whether it can be decided upon: what it knows is what the ledger has, and the lease surely lasts by
    /// this process's own clock. A process that was paused finds out here; one that is paused after this
    /// look is stopped by the fence.
    pub(super) fn is_current(&self) -> bool {
        self.trust == Trust::Sound && self.clock.is_running() && self.standing.is_alive()
    }

    /// Nothing is decided on this tenure any more. The lease stays, to be given back or acquired anew.
    pub(super) fn spoil(&mut self) {
        self.trust = Trust::Reload;
    }

    /// As [`Self::spoil`], since the ledger does not answer.
    pub(super) fn spoil_away(&mut self) {
        self.trust = Trust::Away;
    }

    /// Gives the lease back. Where the ledger did not answer, nobody waits for that; the exact token makes
    /// it harmless however late it comes.
    pub(super) async fn close(self, inner: &Inner) {
        let (resource, token) = (Resource::signer(&self.signer), self.token());
        self.renewals.forget(&resource, token);
        let releases = inner.releases.clone();
        let release = async move { releases.release(resource, token).await };
        if self.trust == Trust::Away {
            tokio::spawn(release);
        } else {
            release.await;
        }
    }

    /// Applies the policy to holds that ran out, [`EXPIRIES_MAX`] at most; answers how many.
    pub(super) async fn expire_overdue(&mut self, inner: &Inner) -> Result<usize, Trouble> {
        self.look_for_overdue = Instant::now() + OVERDUE_LOOK_EVERY;
        let overdue = inner.ledger.overdue(&self.signer, EXPIRIES_MAX).await?;
        let to = self.allocator.policy().on_expiry.target();
        let changes: Vec<_> =
            overdue.into_iter().map(|(nonce, hold)| Change::Expire { nonce, hold, to }).collect();
        let expired = changes.len();
        self.commit_changes(inner, "expire", changes).await?;
        Ok(expired)
    }

    /// Commits changes that were decided outside the allocator, if there are any.
    pub(super) async fn commit_changes(
        &mut self,
        inner: &Inner,
        op: &'static str,
        changes: Vec<Change>,
    ) -> Result<(), Trouble> {
        if changes.is_empty() {
            return Ok(());
        }
        self.allocator.note(&changes);
        self.commit(inner, op, Batch { changes, ..self.batch(inner) }).await?;
        Ok(())
    }

    /// An empty batch of this tenure.
    pub(super) fn batch(&self, inner: &Inner) -> Batch {
        Batch {
            signer: self.signer.clone(),
            owner: inner.owner.clone(),
            token: self.token(),
            keys: Vec::new(),
            policy: None,
            changes: Vec::new(),
        }
    }

    /// Commits; answers the commit's time, or `None` if the batch's idempotency key was taken.
    pub(super) async fn commit(
        &self,
        inner: &Inner,
        op: &'static str,
        batch: Batch,
    ) -> Result<Option<Timestamp>, Trouble> {
        for _ in 0..AGAIN_MAX {
            // Past the lease's end by the own clock no write leaves, whatever the database would say.
            if !self.is_current() {
                return Err(Trouble::Reload);
            }
            let sent = Instant::now();
            let verdict = inner.ledger.commit(batch.clone()).await?;
            metrics::histogram!("fencepost_commit_seconds", "op" => op).record(sent.elapsed());
            match verdict {
                Verdict::Committed { at } => return Ok(Some(at)),
                Verdict::KeyTaken => return Ok(None),
                Verdict::Fenced => return Err(Trouble::Fenced { op }),
                Verdict::Again => tokio::time::sleep(Duration::from_millis(1)).await,
                Verdict::Diverged => {
                    tracing::warn!(signer = %self.signer, op, "a row was not as its owner knew it");
                    return Err(Trouble::Reload);
                }
            }
        }
        Err(Trouble::Reload)
    }
}

impl Drop for Tenure {
    fn drop(&mut self) {
        // Also of one that is dropped because its lease was acquired anew: the new one is renewed by itself.
        self.renewals.forget(&Resource::signer(&self.signer), self.clock.token());
    }
}
