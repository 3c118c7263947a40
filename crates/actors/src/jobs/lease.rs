//! The lease under which a lane is owned: the instance's own, which its membership renews, or one that this instance has
//! acquired for the lane. All lanes of an instance share its lease; so do those that another instance adopts of it.
//!
//! A lane whose commit was not heard of acquires the lease anew, which raises its token. The other lanes of that lease then
//! find their token too old. They need no acquire of their own: what they had sent under the token before is over or fenced,
//! since the acquire waited for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use cluster::{FailureDetector, InstanceLease};
use domain::{InstanceId, LaneId, Resource, ResourceKind, Token};
use ledger::{Acquisition, LeaseClock};
use parking_lot::Mutex;
use tokio::sync;

use super::limits::PASSED_ON_FOR;
use crate::database_clock::SharedClock;
use crate::handed_on;
use crate::releases::Releases;
use crate::renewals::{LeaseDeadline, Renewals};

/// The lease is another's, and is not to be had back.
pub(crate) struct Lost;

/// How the owner of a lane owns it.
pub(super) enum LaneLease {
    /// A lane of this very incarnation.
    Own(Arc<OwnLease>),
    /// A lane that this instance has taken.
    Adopted(AdoptedLane),
}

/// The `instance:` lease of this incarnation, which `cluster` renews.
pub(super) struct OwnLease {
    lease: InstanceLease,
    failure_detector: FailureDetector,
    acquiring: sync::Mutex<()>,
}

/// One lane's share of a lease that this instance has taken.
pub(super) struct AdoptedLane {
    lease: Arc<AdoptedLease>,
    leases: AdoptedLeases,
    has_left: AtomicBool,
}

/// A lease that this instance has taken, renewed with all the others that it keeps.
struct AdoptedLease {
    /// Acquires since the token is known whose answers were not heard, or not yet.
    unheard: AtomicI64,
    resource: Resource,
    taker: Arc<LeaseTaker>,
    deadline: Mutex<Arc<LeaseDeadline>>,
    acquiring: sync::Mutex<()>,
}

/// The leases that this instance has taken, each with how many lanes are served under it.
type AdoptedLeases = Arc<Mutex<HashMap<Resource, (Arc<AdoptedLease>, usize)>>>;

/// What the leases of one instance are acquired, renewed and released with.
struct LeaseTaker {
    me: InstanceId,
    length: Duration,
    ledger: ledger::Handle,
    failure_detector: FailureDetector,
    clock: SharedClock,
    renewals: Arc<Renewals>,
    releases: Releases,
}

/// Who has a lease.
struct Holder {
    owner: InstanceId,
    /// It has run out. An `instance:` lease is kept even so: it is not to be had by an acquire.
    is_over: bool,
}

/// What adopting needs.
#[derive(Clone)]
pub(super) struct Adopting {
    taker: Arc<LeaseTaker>,
    leases: AdoptedLeases,
}

/// What trying to take a lane or a plan came to.
pub(crate) enum Adoption<T> {
    /// It is this instance's.
    Taken(T),
    /// Another instance holds it and may be alive.
    Held(InstanceId),
    /// Not now: another instance took it from the dead one first, this one is giving it back, or the ledger does not answer. Or
    /// another one's lease of it has run out, which that one may be about to renew.
    Missed,
}

impl Adopting {
    /// As `me`, for `length` from each renewal.
    pub(super) fn new(
        me: InstanceId,
        length: Duration,
        ledger: ledger::Handle,
        failure_detector: FailureDetector,
        clock: SharedClock,
    ) -> Self {
        let renewals = Arc::<Renewals>::default();
        renewals.start(ledger.clone(), me.clone(), length);
        let releases = Releases::start(ledger.clone(), me.clone(), length);
        let taker = LeaseTaker { me, length, ledger, failure_detector, clock, renewals, releases };
        Self { taker: Arc::new(taker), leases: AdoptedLeases::default() }
    }

    pub(super) fn me(&self) -> &InstanceId {
        &self.taker.me
    }

    /// Takes a lane, if its lease is free, its owner is dead, or this instance has it already. Call this for one lane of a
    /// lease at a time.
    pub(super) async fn adopt(&self, lane: &LaneId) -> ledger::Result<Adoption<(LaneLease, Token)>> {
        let resource = lane.lease();
        if let Some(joined) = self.join(resource) {
            // An earlier owner of this lane may have died here, and what it had sent may yet be written.
            return Ok(match joined.lease.acquire_anew(joined.lease.token()).await {
                Ok(Some(token)) => Adoption::Taken((LaneLease::Adopted(joined), token)),
                Ok(None) | Err(Lost) => Adoption::Missed,
            });
        }
        let taker = &self.taker;
        // An acquire would take what has run out.
        if !taker.may_take().await?
            && let Some(lease) = taker.ledger.lease(resource).await?
            && let Some(owner) = lease.owner.filter(|owner| taker.may_renew(owner))
        {
            return Ok(if lease.expires_in_ms > 0 { Adoption::Held(owner) } else { Adoption::Missed });
        }
        let deadline = match taker.acquire(resource).await? {
            Ok(deadline) => deadline,
            Err(held) if taker.may_take_over(&held) => match taker.take_over(resource, &held.owner).await? {
                Some(deadline) => deadline,
                None => return Ok(Adoption::Missed),
            },
            Err(held) if held.owner == taker.me => return Ok(Adoption::Missed),
            Err(held) => return Ok(Adoption::Held(held.owner)),
        };
        let token = deadline.token();
        taker.renewals.keep(resource.clone(), Arc::clone(&deadline));
        let lease = Arc::new(AdoptedLease {
            unheard: AtomicI64::new(0),
            resource: resource.clone(),
            taker: Arc::clone(taker),
            deadline: Mutex::new(deadline),
            acquiring: sync::Mutex::default(),
        });
        self.leases.lock().insert(resource.clone(), (Arc::clone(&lease), 1));
        Ok(Adoption::Taken((LaneLease::Adopted(self.share(lease)), token)))
    }

    /// A share of a lease under which another lane is served already.
    fn join(&self, resource: &Resource) -> Option<AdoptedLane> {
        let mut leases = self.leases.lock();
        let (lease, lanes) = leases.get_mut(resource)?;
        *lanes += 1;
        Some(self.share(Arc::clone(lease)))
    }

    fn share(&self, lease: Arc<AdoptedLease>) -> AdoptedLane {
        AdoptedLane { lease, leases: Arc::clone(&self.leases), has_left: AtomicBool::new(false) }
    }
}

impl LeaseTaker {
    /// Acquires a lease, if it is free or this instance's. Answers until when it surely lasts, or else who has it.
    async fn acquire(&self, resource: &Resource) -> ledger::Result<Result<Arc<LeaseDeadline>, Holder>> {
        let (sent, lease_ms) = (Instant::now(), self.length_ms());
        let acquired = self.ledger.acquire(resource, &self.me, lease_ms).await;
        let result = match &acquired {
            Ok(Acquisition::Acquired { .. }) => "acquired",
            Ok(Acquisition::Held { .. }) => "held",
            Err(_) => "error",
        };
        let kind = resource.kind().as_str();
        metrics::counter!("fencepost_lease_acquire_total", "kind" => kind, "result" => result).increment(1);
        Ok(match acquired? {
            Acquisition::Acquired { token, expires_at } => {
                let expires_at = expires_at.as_micros();
                tracing::info!(%resource, owner = %self.me, %token, expires_at, lease_ms, "lease acquired");
                Ok(self.deadline(token, sent))
            }
            Acquisition::Held { owner, expires_in_ms } => Err(Holder { owner, is_over: expires_in_ms == 0 }),
        })
    }

    /// Whether leases that have run out may be taken from others: see [`SharedClock::may_take`].
    async fn may_take(&self) -> ledger::Result<bool> {
        self.clock.may_take(&self.ledger, &self.failure_detector, self.length).await
    }

    /// Whether another instance may be about to renew a lease of this owner.
    fn may_renew(&self, owner: &InstanceId) -> bool {
        *owner != self.me && !self.failure_detector.is_dead(owner)
    }

    /// Whether the lease may be taken from who has it: an instance found dead, or one of which nobody knows any more. Such a
    /// one ended when no other instance lived, or after it had taken the lease of a dead one and adopted none of its lanes.
    fn may_take_over(&self, held: &Holder) -> bool {
        self.failure_detector.is_dead(&held.owner)
            || held.is_over && self.failure_detector.is_forgotten(&held.owner)
    }

    /// Acquires a dead instance's lease, unless another instance did before.
    async fn take_over(
        &self,
        resource: &Resource,
        dead: &InstanceId,
    ) -> ledger::Result<Option<Arc<LeaseDeadline>>> {
        let (sent, lease_ms) = (Instant::now(), self.length_ms());
        let taken = self.ledger.take_over(resource, &self.me, dead, lease_ms).await;
        let kind = resource.kind().as_str();
        let result = match &taken {
            Ok(Some(_)) => "acquired",
            Ok(None) => "held",
            Err(_) => "error",
        };
        metrics::counter!("fencepost_lease_acquire_total", "kind" => kind, "result" => result).increment(1);
        let Some((token, expires_at)) = taken? else { return Ok(None) };
        metrics::counter!("fencepost_lease_takeover_total", "kind" => kind, "reason" => "dead").increment(1);
        let (owner, expires_at) = (&self.me, expires_at.as_micros());
        tracing::info!(
            %resource, %owner, %token, expires_at, lease_ms, %dead,
            "lease taken over from a dead instance"
        );
        Ok(Some(self.deadline(token, sent)))
    }

    fn deadline(&self, token: Token, sent: Instant) -> Arc<LeaseDeadline> {
        Arc::new(LeaseDeadline::new(token, sent, self.length))
    }

    const fn length_ms(&self) -> u64 {
        self.length.as_millis() as u64
    }
}

impl LaneLease {
    /// Whether it is not one of the instance's own lanes.
    pub(super) const fn is_adopted(&self) -> bool {
        matches!(self, Self::Adopted(_))
    }

    /// Whether the lease surely lasts, by this process's own clock.
    pub(super) fn is_current(&self) -> bool {
        self.lasts_at(Instant::now())
    }

    /// Whether a renewal has found that the lease has another owner or token. An owner with nothing to write finds that out by
    /// this alone. Of the instance's own lease the incarnation finds it out.
    pub(super) fn was_lost(&self) -> bool {
        matches!(self, Self::Adopted(adopted) if adopted.lease.deadline.lock().until().is_none())
    }

    /// Sees to a token above this one, so that nothing sent under it counts any more. `None`: not now.
    pub(super) async fn acquire_anew(&self, above: Token) -> Result<Option<Token>, Lost> {
        match self {
            Self::Own(own) => own.acquire_anew(above).await,
            Self::Adopted(adopted) => adopted.lease.acquire_anew(above).await,
        }
    }

    /// Whether a write under this token was fenced because this instance itself has acquired the lease anew since, as for
    /// another lane of it, or may have, without an answer. Waits for an acquire that is under way.
    pub(super) async fn is_raised_here(&self, token: Token) -> bool {
        match self {
            // Once another instance has taken it, this one never has it again: it is acquired above this token, or it is lost.
            Self::Own(own) => matches!(own.acquire_anew(token).await, Ok(Some(_))),
            Self::Adopted(adopted) => {
                let _turn = adopted.lease.acquiring.lock().await;
                adopted.lease.token() > token || adopted.lease.unheard.load(Ordering::Acquire) > 0
            }
        }
    }

    /// The owner has ended. With the last of its lanes an adopted lease is given back, or passed on to the next owner if one
    /// is named and lives; the instance's own ends with the instance.
    pub(super) async fn release(&self, next: Option<&InstanceId>) {
        if let Self::Adopted(adopted) = self
            && adopted.leave()
        {
            let lease = &adopted.lease;
            if let Some(next) = next
                && lease.pass_on(next).await
            {
                return;
            }
            lease.taker.releases.release(lease.resource.clone(), lease.token()).await;
        }
    }
}

impl LeaseClock for LaneLease {
    fn lasts_at(&self, now: Instant) -> bool {
        match self {
            Self::Own(own) => own.lease.token().is_some() && own.failure_detector.is_alive_at(now),
            Self::Adopted(AdoptedLane { lease, .. }) => {
                lease.deadline.lock().is_running_at(now) && lease.taker.failure_detector.is_alive_at(now)
            }
        }
    }
}

impl OwnLease {
    pub(super) fn new(lease: InstanceLease, failure_detector: FailureDetector) -> Self {
        Self { lease, failure_detector, acquiring: sync::Mutex::default() }
    }

    /// Its token now; `None` once the incarnation is over.
    pub(super) fn token(&self) -> Option<Token> {
        self.lease.token()
    }

    /// As [`LaneLease::acquire_anew`].
    pub(super) async fn acquire_anew(&self, above: Token) -> Result<Option<Token>, Lost> {
        let _turn = self.acquiring.lock().await;
        match self.lease.token() {
            None => Err(Lost),
            Some(token) if token > above => Ok(Some(token)),
            Some(_) => {
                let token = self.lease.acquire_anew().await;
                if token.is_none() && self.lease.token().is_none() { Err(Lost) } else { Ok(token) }
            }
        }
    }
}

impl AdoptedLease {
    /// Passes the lease on. `false` if it may be this instance's still.
    async fn pass_on(&self, next: &InstanceId) -> bool {
        let (taker, token) = (&self.taker, self.token());
        let lease_ms = taker.length.max(PASSED_ON_FOR).as_millis() as u64;
        match taker.ledger.pass_lease(&self.resource, &taker.me, token, next, lease_ms).await {
            Ok(is_passed) => {
                if is_passed {
                    handed_on::count("session", 1);
                    tracing::info!(resource = %self.resource, %token, %next, "lease passed on");
                }
                is_passed
            }
            Err(error) => {
                tracing::debug!(%error, resource = %self.resource, "the lease was not passed on");
                false
            }
        }
    }
}

impl AdoptedLane {
    /// The token that the lease has now.
    pub(super) fn token(&self) -> Token {
        self.lease.token()
    }

    /// Gives the share back. Whether it was the last: then the lease is not renewed any more.
    fn leave(&self) -> bool {
        if self.has_left.swap(true, Ordering::AcqRel) {
            return false;
        }
        let mut leases = self.leases.lock();
        let Some((_, lanes)) = leases.get_mut(&self.lease.resource) else { return false };
        *lanes -= 1;
        let is_last = *lanes == 0;
        if is_last {
            leases.remove(&self.lease.resource);
            self.lease.taker.renewals.forget(&self.lease.resource, self.lease.token());
        }
        is_last
    }
}

/// An owner that died of a defect has given nothing back: its lease runs out, unless other lanes are served under it.
impl Drop for AdoptedLane {
    fn drop(&mut self) {
        self.leave();
    }
}

impl AdoptedLease {
    fn token(&self) -> Token {
        self.deadline.lock().token()
    }

    async fn acquire_anew(&self, above: Token) -> Result<Option<Token>, Lost> {
        let _turn = self.acquiring.lock().await;
        let last = self.token();
        if last > above {
            return Ok(Some(last));
        }
        if !self.taker.failure_detector.is_alive() {
            return Ok(None);
        }
        // It counts from here on: it is carried out also where its caller is dropped meanwhile.
        let unheard = self.unheard.fetch_add(1, Ordering::AcqRel) + 1;
        match self.taker.acquire(&self.resource).await {
            Ok(Ok(deadline)) => {
                let token = deadline.token();
                self.unheard.store(0, Ordering::Release);
                // What another owner of a plan has begun is not gone on with, even if it has left since.
                if self.resource.kind() == ResourceKind::Plan && token.get() > last.get() + unheard {
                    self.taker.releases.release(self.resource.clone(), token).await;
                    return Err(Lost);
                }
                self.taker.renewals.keep(self.resource.clone(), Arc::clone(&deadline));
                *self.deadline.lock() = deadline;
                Ok(Some(token))
            }
            Ok(Err(_)) => {
                self.unheard.fetch_sub(1, Ordering::AcqRel);
                Err(Lost)
            }
            Err(error) => {
                tracing::debug!(%error, resource = %self.resource, "an adopted lease could not be acquired anew");
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests;
