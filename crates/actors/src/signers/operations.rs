//! What a signer's owner can be asked to do: each operation decides on the state that its tenure loaded
//! and commits. An operation may be tried several times, each time under a tenure that knows what became
//! of the try before.

use std::future::Future;
use std::time::Instant;

use domain::limits::{EXPIRIES_MAX, HOLES_IN_MEMORY_MAX};
use domain::nonce::{
    Change, GrantRefusal, Policy, PolicyPatch, Resolution, SettleRefusal, Settlement, Status, resolve, settle,
};
use domain::{HoldId, Nonce};
use ledger::{Batch, GrantAnswer, NewKey};
use uuid::Uuid;

use super::tenure::{Tenure, Trouble};
use super::{Grant, GrantRequest, Grants, Inner, Refusal};

/// Something to be done under a tenure.
pub(super) trait Operation: Send {
    /// What the caller gets.
    type Answer: Send;

    /// One try. `deadline` bounds what it may wait for besides its commit.
    fn attempt(
        &mut self,
        inner: &Inner,
        tenure: &mut Tenure,
        deadline: Instant,
    ) -> impl Future<Output = Result<Self::Answer, Trouble>> + Send;
}

/// Grants nonces.
pub(super) struct Granting {
    request: GrantRequest,
    /// What the last try sent without learning whether it was committed.
    lost: Option<GrantAnswer>,
}

impl Granting {
    pub(super) const fn new(request: GrantRequest) -> Self {
        Self { request, lost: None }
    }

    /// A refusal must not hide that the same request was granted a moment ago.
    async fn refuse(
        &self,
        inner: &Inner,
        tenure: &Tenure,
        refusal: GrantRefusal,
        deadline: Instant,
    ) -> Result<Grants, Trouble> {
        if let Some(key) = &self.request.key
            && let Some(kept) = inner.kept(tenure.signer(), key, deadline).await?
        {
            return Ok(inner.replay(tenure.signer(), key, kept, deadline).await?);
        }
        Err(match refusal {
            GrantRefusal::WindowFull { in_flight, max_in_flight } => {
                Refusal::WindowFull { in_flight, max_in_flight }
            }
            GrantRefusal::Exhausted => Refusal::Exhausted,
        }
        .into())
    }
}

impl Operation for Granting {
    type Answer = Grants;

    async fn attempt(
        &mut self,
        inner: &Inner,
        tenure: &mut Tenure,
        deadline: Instant,
    ) -> Result<Grants, Trouble> {
        // The lease was acquired anew since the last try, so that what it sent is in the ledger by now, or
        // never will be.
        if let Some(answer) = self.lost.take()
            && let Some(grants) = inner.still_live(tenure.signer(), answer, deadline).await?
        {
            return Ok(grants);
        }
        if tenure.allocator.lacks_holes_for(self.request.count) {
            let (holes, complete) = inner.ledger.holes(tenure.signer(), HOLES_IN_MEMORY_MAX).await?;
            tenure.allocator.refill(holes, complete);
        }
        let hold_ms =
            self.request.hold_ms.or(tenure.allocator.policy().hold_ms).unwrap_or(inner.limits.hold_ms);
        let policy = (!tenure.allocator.is_known()).then(|| tenure.allocator.policy().clone());
        let holds: Vec<_> =
            (0..self.request.count).map(|_| HoldId::from_u128(Uuid::new_v4().as_u128())).collect();
        let changes = match tenure.allocator.grant(&holds, hold_ms) {
            Ok(changes) => changes,
            Err(refusal) => return self.refuse(inner, tenure, refusal, deadline).await,
        };
        let answer = GrantAnswer {
            token: tenure.token(),
            owner: inner.owner.clone(),
            grants: changes.iter().map(Change::nonce).zip(holds).collect(),
        };
        let key = self.request.key.as_ref();
        let keys = key.map(|key| NewKey {
            scope: key.scope(tenure.signer()),
            body_hash: key.body_hash,
            answer: answer.clone(),
        });
        self.lost = Some(answer.clone());
        let sent = Instant::now();
        let batch = Batch { keys: keys.into_iter().collect(), policy, changes, ..tenure.batch(inner) };
        let committed = tenure.commit(inner, "grant", batch).await?;
        self.lost = None;
        let Some(at) = committed else {
            // The same request was first. What was decided here is not in the ledger.
            tenure.spoil();
            let key = key.expect("only a batch with a key finds it taken");
            let kept = inner.kept(tenure.signer(), key, deadline).await?.ok_or(Trouble::Reload)?;
            return Ok(inner.replay(tenure.signer(), key, kept, deadline).await?);
        };
        inner.remember(tenure.signer());
        let held_until = at.plus_ms(hold_ms);
        let held_for_ms = hold_ms.saturating_sub(sent.elapsed().as_millis() as u64);
        let grants = answer.grants.into_iter();
        let grants: Vec<_> =
            grants.map(|(nonce, hold)| Grant { nonce, hold, held_until, held_for_ms }).collect();
        metrics::counter!("fencepost_nonce_grants_total").increment(grants.len() as u64);
        Ok(Grants { token: answer.token, owner: answer.owner, grants })
    }
}

/// Settles holds, each answered on its own.
pub(super) struct Settling(pub(super) Vec<Settlement>);

impl Operation for Settling {
    type Answer = Vec<Result<Status, SettleRefusal>>;

    async fn attempt(
        &mut self,
        inner: &Inner,
        tenure: &mut Tenure,
        _: Instant,
    ) -> Result<Self::Answer, Trouble> {
        let mut nonces: Vec<_> = self.0.iter().map(|settlement| settlement.nonce).collect();
        nonces.sort_unstable();
        nonces.dedup();
        let rows = inner.ledger.rows(tenure.signer(), &nonces).await?.value;
        let settled = settle(rows, &self.0);
        tenure.commit_changes(inner, "settle", settled.changes).await?;
        Ok(settled.answers)
    }
}

/// Carries out an operator's decision.
pub(super) struct Resolving {
    pub(super) nonce: Nonce,
    pub(super) hold: Option<HoldId>,
    pub(super) resolution: Resolution,
}

impl Operation for Resolving {
    type Answer = Status;

    async fn attempt(&mut self, inner: &Inner, tenure: &mut Tenure, _: Instant) -> Result<Status, Trouble> {
        let mut rows = inner.ledger.rows(tenure.signer(), &[self.nonce]).await?.value;
        let row = rows.pop().ok_or(Refusal::UnknownNonce)?;
        if self.hold.is_some_and(|hold| hold != row.hold) {
            return Err(Refusal::StaleHold.into());
        }
        let change = resolve(&row, &self.resolution).map_err(Refusal::NotQuarantined)?;
        tenure.commit_changes(inner, "resolve", change.into_iter().collect()).await?;
        Ok(match self.resolution {
            Resolution::Consumed(_) => Status::Consumed,
            Resolution::NeverSent => Status::Released,
        })
    }
}

/// Changes the signer's policy.
pub(super) struct PolicyChange(pub(super) PolicyPatch);

impl Operation for PolicyChange {
    type Answer = Policy;

    async fn attempt(&mut self, inner: &Inner, tenure: &mut Tenure, _: Instant) -> Result<Policy, Trouble> {
        let policy = tenure
            .allocator
            .set_policy(&self.0)
            .map_err(|refusal| Refusal::FirstNonceFixed { first_nonce: refusal.first_nonce })?;
        let batch = Batch { policy: Some(policy.clone()), ..tenure.batch(inner) };
        tenure.commit(inner, "policy", batch).await?;
        inner.remember(tenure.signer());
        if self.0.max_in_flight.is_some() {
            // Those in flight are counted only where there is a window; with a new one they are counted anew.
            tenure.spoil();
        }
        Ok(policy)
    }
}

/// Expires what is overdue, in steps, for as long as a turn may last. The opening of the tenure was the
/// first step.
pub(super) struct Sweep;

impl Operation for Sweep {
    type Answer = ();

    async fn attempt(&mut self, inner: &Inner, tenure: &mut Tenure, _: Instant) -> Result<(), Trouble> {
        let begun = Instant::now();
        while tenure.expire_overdue(inner).await? == EXPIRIES_MAX && begun.elapsed() < inner.limits.tenure_max
        {
        }
        Ok(())
    }
}
