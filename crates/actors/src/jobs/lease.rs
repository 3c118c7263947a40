//! The lease under which a lane is owned: the instance's own, which its membership renews, or one that this instance has
//! acquired for the lane.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cluster::{FailureDetector, InstanceLease};
use domain::{InstanceId, Resource, Token};
use ledger::Acquisition;

use crate::releases::Releases;
use crate::renewals::{LeaseDeadline, Renewals};

/// The lease is another's, and is not to be had back.
pub(super) struct Lost;

/// How the owner of a lane owns it.
pub(super) enum LaneLease {
    /// The lane of this very incarnation: its `instance:` lease, which somebody else renews.
    Own {
        /// The lease.
        tenure: InstanceLease,
        /// Whether this incarnation surely lives.
        failure_detector: FailureDetector,
    },
    /// A lane that this instance has taken.
    Adopted(Box<Adopted>),
}

/// A lease of a lane that this instance has taken, renewed with all the others that it keeps.
pub(super) struct Adopted {
    resource: Resource,
    me: InstanceId,
    lease: Duration,
    ledger: ledger::Handle,
    failure_detector: FailureDetector,
    renewals: Arc<Renewals>,
    releases: Releases,
    clock: Mutex<Arc<LeaseDeadline>>,
}

/// What adopting needs.
#[derive(Clone)]
pub(super) struct Adopting {
    pub(super) me: InstanceId,
    pub(super) lease: Duration,
    pub(super) ledger: ledger::Handle,
    pub(super) failure_detector: FailureDetector,
    pub(super) renewals: Arc<Renewals>,
    pub(super) releases: Releases,
}

/// What trying to adopt a lane came to.
pub(super) enum Adoption {
    /// It is this instance's now.
    Taken(LaneLease, Token),
    /// It is somebody else's, who may live.
    Held(InstanceId),
    /// Somebody else was quicker to take it from the dead.
    Missed,
}

impl Adopting {
    /// Takes a lane's lease, if it is free or its owner is dead.
    pub(super) async fn adopt(&self, resource: &Resource) -> ledger::Result<Adoption> {
        let lease_ms = self.lease.as_millis() as u64;
        let sent = Instant::now();
        let token = match self.ledger.acquire(resource, &self.me, lease_ms).await? {
            Acquisition::Acquired { token, .. } => token,
            Acquisition::Held { owner: dead, .. } if self.failure_detector.is_dead(&dead) => {
                match self.ledger.take_over(resource, &self.me, &dead, lease_ms).await? {
                    Some(token) => token,
                    None => return Ok(Adoption::Missed),
                }
            }
            Acquisition::Held { owner, .. } => return Ok(Adoption::Held(owner)),
        };
        let clock = Arc::new(LeaseDeadline::new(token, sent, self.lease));
        self.renewals.keep(resource.clone(), Arc::clone(&clock));
        let adopted = Adopted {
            resource: resource.clone(),
            me: self.me.clone(),
            lease: self.lease,
            ledger: self.ledger.clone(),
            failure_detector: self.failure_detector.clone(),
            renewals: Arc::clone(&self.renewals),
            releases: self.releases.clone(),
            clock: Mutex::new(clock),
        };
        Ok(Adoption::Taken(LaneLease::Adopted(Box::new(adopted)), token))
    }
}

impl LaneLease {
    /// Whether it is not the instance's own lane.
    pub(super) const fn is_adopted(&self) -> bool {
        matches!(self, Self::Adopted(_))
    }

    /// Whether the lease surely lasts, by this process's own clock.
    pub(super) fn is_current(&self) -> bool {
        match self {
            Self::Own { tenure, failure_detector } => tenure.token().is_some() && failure_detector.is_alive(),
            Self::Adopted(adopted) => adopted.clock().is_running() && adopted.failure_detector.is_alive(),
        }
    }

    /// Raises the token, so that nothing sent under the one before counts any more. `None`: not now.
    pub(super) async fn acquire_anew(&self) -> Result<Option<Token>, Lost> {
        match self {
            Self::Own { tenure, .. } => {
                let token = tenure.acquire_anew().await;
                if token.is_none() && tenure.token().is_none() { Err(Lost) } else { Ok(token) }
            }
            Self::Adopted(adopted) => adopted.acquire_anew().await,
        }
    }

    /// The owner has ended: the lease is given back. The instance's own ends with the instance.
    pub(super) async fn release(&self, token: Token) {
        if let Self::Adopted(adopted) = self {
            adopted.renewals.forget(&adopted.resource, token);
            adopted.releases.release(adopted.resource.clone(), token).await;
        }
    }
}

impl Adopted {
    fn clock(&self) -> std::sync::MutexGuard<'_, Arc<LeaseDeadline>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn acquire_anew(&self) -> Result<Option<Token>, Lost> {
        if !self.failure_detector.is_alive() {
            return Ok(None);
        }
        let sent = Instant::now();
        match self.ledger.acquire(&self.resource, &self.me, self.lease.as_millis() as u64).await {
            Ok(Acquisition::Acquired { token, .. }) => {
                let clock = Arc::new(LeaseDeadline::new(token, sent, self.lease));
                self.renewals.keep(self.resource.clone(), Arc::clone(&clock));
                *self.clock() = clock;
                Ok(Some(token))
            }
            Ok(Acquisition::Held { .. }) => Err(Lost),
            Err(error) => {
                tracing::debug!(%error, lane = %self.resource, "the lane's lease could not be acquired anew");
                Ok(None)
            }
        }
    }
}

impl Drop for Adopted {
    fn drop(&mut self) {
        let token = self.clock().token();
        self.renewals.forget(&self.resource, token);
    }
}
