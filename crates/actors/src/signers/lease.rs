//! A signer's lease in its actor: acquired, renewed while it is kept, dropped when its token is not known.

use std::sync::Arc;
use std::time::Instant;

use cluster::FailureDetector;
use domain::signer::Acquired;
use domain::{Mode, Resource, Token};
use ledger::{Acquisition, LeaseClock, Link};

use super::Inner;
use crate::renewals::{LeaseDeadline, Renewals};

/// A lease that this instance acquired. It is renewed no more when this is dropped.
pub(super) struct HeldLease {
    resource: Resource,
    clock: Arc<SignerClock>,
    renewals: Arc<Renewals>,
}

/// A signer's lease and the instance's own, by this process's own clock.
struct SignerClock {
    deadline: Arc<LeaseDeadline>,
    failure_detector: FailureDetector,
}

impl LeaseClock for SignerClock {
    fn lasts_at(&self, now: Instant) -> bool {
        self.deadline.is_running_at(now) && self.failure_detector.is_alive_at(now)
    }
}

impl HeldLease {
    /// A lease that was asked for at `sent`. In worker-queue mode it is renewed from now on.
    pub(super) fn new(inner: &Inner, resource: Resource, token: Token, sent: Instant, mode: Mode) -> Self {
        let deadline = Arc::new(LeaseDeadline::new(token, sent, inner.limits.lease));
        if mode == Mode::WorkerQueue {
            inner.renewals.keep(resource.clone(), Arc::clone(&deadline));
        }
        let clock = SignerClock { deadline, failure_detector: inner.failure_detector.clone() };
        Self { resource, clock: Arc::new(clock), renewals: Arc::clone(&inner.renewals) }
    }

    pub(super) fn token(&self) -> Token {
        self.clock.deadline.token()
    }

    /// The link of a batch that leaves only while the lease surely lasts.
    pub(super) fn bind(&self, link: Link) -> Link {
        link.under(Arc::clone(&self.clock))
    }

    /// Until when it surely lasts, by this process's own clock; `None` when it was lost.
    pub(super) fn until(&self) -> Option<Instant> {
        self.clock.deadline.until()
    }
}

impl Drop for HeldLease {
    fn drop(&mut self) {
        // By its token: where the lease was acquired anew, the new one is renewed by itself.
        self.renewals.forget(&self.resource, self.token());
    }
}

impl Inner {
    /// Acquires a signer's lease, from a dead instance too; answers with the own time before it was asked for.
    /// The log has it at `info`; a turn of basic mode, of which there may be one for each request, at `debug`.
    pub(super) async fn acquire(
        &self,
        resource: &Resource,
        mode: Mode,
    ) -> ledger::Result<(Acquired, Instant)> {
        let lease_ms = self.limits.lease.as_millis() as u64;
        let sent = Instant::now();
        // An acquire would take what has run out by the time it is carried out. A lease of basic mode is renewed by nobody.
        if mode == Mode::WorkerQueue
            && !self.clock.may_take(&self.ledger, &self.failure_detector, self.limits.lease).await?
            && let Some(lease) = self.ledger.lease(resource).await?
            && let Some(owner) = lease.owner.filter(|owner| *owner != self.config.owner)
            && !self.failure_detector.is_dead(&owner)
        {
            let expires_in_ms = lease.expires_in_ms;
            if expires_in_ms == 0 {
                return Ok((Acquired::Lapsed, sent));
            }
            count_acquire("held");
            return Ok((Acquired::Held { owner, expires_in_ms }, sent));
        }
        // The lease is counted from when it was asked for: the database cannot have begun earlier.
        let sent = Instant::now();
        let mut acquired = self.ledger.acquire(resource, &self.config.owner, lease_ms).await;
        if let Ok(Acquisition::Held { owner: dead, .. }) = &acquired
            && self.failure_detector.is_dead(dead)
        {
            let owner = &self.config.owner;
            let taken = self.ledger.take_over(resource, owner, dead, lease_ms).await;
            match taken {
                Ok(Some((token, expires_at))) => {
                    let at = expires_at.as_micros();
                    tracing::info!(
                        %resource, %owner, %token, expires_at = at, lease_ms, %dead,
                        "lease taken over from a dead instance"
                    );
                    metrics::counter!("fencepost_lease_takeover_total", "kind" => "signer", "reason" => "dead")
                        .increment(1);
                    acquired = Ok(Acquisition::Acquired { token, expires_at });
                }
                Ok(None) => {}
                Err(error) => acquired = Err(error),
            }
        }
        let result = match &acquired {
            Ok(Acquisition::Acquired { .. }) => "acquired",
            Ok(Acquisition::Held { .. }) => "held",
            Err(_) => "error",
        };
        count_acquire(result);
        let acquired = match acquired? {
            Acquisition::Acquired { token, expires_at } => {
                let expires_at = expires_at.as_micros();
                let owner = &self.config.owner;
                match mode {
                    Mode::Basic => {
                        tracing::debug!(%resource, %owner, %token, expires_at, lease_ms, "lease acquired");
                    }
                    Mode::WorkerQueue => {
                        tracing::info!(%resource, %owner, %token, expires_at, lease_ms, "lease acquired");
                    }
                }
                Acquired::Lease(token)
            }
            Acquisition::Held { owner, expires_in_ms } => Acquired::Held { owner, expires_in_ms },
        };
        Ok((acquired, sent))
    }

    /// Whether this instance has the lease under this token, by the ledger.
    pub(super) async fn has_lease(&self, resource: &Resource, token: Option<Token>) -> ledger::Result<bool> {
        let lease = self.ledger.lease(resource).await?;
        Ok(lease.is_some_and(|lease| {
            lease.owner.as_ref() == Some(&self.config.owner) && Some(lease.token) == token
        }))
    }

    /// Ends a lease that this instance has without anybody here knowing its token, such as one whose acquire was never
    /// answered. Only to be called by the signer's actor, while it has no lease.
    pub(super) async fn reclaim(&self, resource: &Resource) {
        let ended = async {
            match self.ledger.lease(resource).await? {
                Some(lease) if lease.owner.as_ref() == Some(&self.config.owner) => {
                    self.ledger.release(resource, &self.config.owner, lease.token).await
                }
                _ => Ok(false),
            }
        };
        if let Err(error) = ended.await {
            ledger::log_failure!(error, %resource, "an unused lease could not be released; it expires by itself");
        }
    }
}

fn count_acquire(result: &'static str) {
    metrics::counter!("fencepost_lease_acquire_total", "kind" => "signer", "result" => result).increment(1);
}
