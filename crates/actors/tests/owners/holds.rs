//! Leases that are acquired or answered late, with another token, not acquired, or not renewed, looks at the others that are
//! slow, looks for lanes, counts and releases that panic, steps of plans that wait or do not leave, and the tokens under which
//! jobs are held after a takeover.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use domain::{InstanceId, Resource, Timestamp, Token};
use ledger::{Acquisition, Error, Lease, LeaseFilter, Leases, Renewal, Renewed, Result};
use parking_lot::Mutex;

use crate::flaky::{Flaky, Plan, lost};

/// How long a slow look takes.
const SLOW_LOOK: Duration = Duration::from_secs(6);

/// Under which tokens jobs were held.
#[derive(Default)]
pub struct Holds {
    tokens: Mutex<Vec<Token>>,
    /// The next acquire is done when the gate opens.
    pub next_acquire_is_gated: AtomicBool,
    /// The next acquire is answered so much later than it is done.
    pub next_acquire_is_late: Mutex<Option<Duration>>,
    /// Acquires take so long and fail.
    pub acquires_fail_after: Mutex<Option<Duration>>,
    failed_acquires: AtomicUsize,
    /// Acquires are answered with tokens that are so much higher, as after a recovery of the ledger.
    pub tokens_raised_by: AtomicI64,
    /// Looks at the other instances take [`SLOW_LOOK`].
    pub looks_are_slow: AtomicBool,
    /// The next look for lanes without an owner is a defect.
    pub next_look_for_lanes_panics: AtomicBool,
    /// The next count of the unfinished jobs is a defect.
    pub next_count_panics: AtomicBool,
    /// The next release of leases is a defect.
    pub next_release_panics: AtomicBool,
    slow_looks: AtomicUsize,
    awaited_looks: AtomicUsize,
}

impl Holds {
    /// Jobs are to be held under this token.
    pub fn note(&self, token: Token) {
        self.tokens.lock().push(token);
    }

    /// In the order in which they were asked for.
    pub fn tokens(&self) -> Vec<Token> {
        self.tokens.lock().clone()
    }

    /// A look at the other instances.
    pub async fn look<T>(&self, look: impl Future<Output = T> + Send) -> T {
        if self.looks_are_slow.load(Ordering::SeqCst) {
            self.slow_looks.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(SLOW_LOOK).await;
            self.awaited_looks.fetch_add(1, Ordering::SeqCst);
        }
        look.await
    }

    /// A look for lanes without an owner.
    pub async fn look_for_lanes<T>(&self, look: impl Future<Output = T> + Send) -> T {
        assert!(!self.next_look_for_lanes_panics.swap(false, Ordering::SeqCst), "made on purpose");
        look.await
    }

    /// A count of the unfinished jobs.
    pub async fn count<T>(&self, count: impl Future<Output = T> + Send) -> T {
        assert!(!self.next_count_panics.swap(false, Ordering::SeqCst), "made on purpose");
        count.await
    }

    /// How many slow looks have begun, and how many of them were not given up.
    pub fn slow_looks(&self) -> (usize, usize) {
        (self.slow_looks.load(Ordering::SeqCst), self.awaited_looks.load(Ordering::SeqCst))
    }

    /// How many acquires have failed, or are about to.
    pub fn failed_acquires(&self) -> usize {
        self.failed_acquires.load(Ordering::SeqCst)
    }

    /// The answer to an acquire.
    pub async fn answer_late(
        &self,
        acquire: impl Future<Output = Result<Acquisition>> + Send,
    ) -> Result<Acquisition> {
        let failing = *self.acquires_fail_after.lock();
        if let Some(after) = failing {
            self.failed_acquires.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(after).await;
            return Err(Error::unavailable(lost()));
        }
        let mut answer = acquire.await;
        if let Ok(Acquisition::Acquired { token, .. }) = &mut answer {
            *token = Token::new(token.get() + self.tokens_raised_by.load(Ordering::SeqCst));
        }
        let late = self.next_acquire_is_late.lock().take();
        if let Some(late) = late {
            tokio::time::sleep(late).await;
        }
        answer
    }
}

impl Plan {
    /// Waits for the gate with an acquire that is to do so.
    pub async fn let_acquire_pass(&self) {
        if self.holds.next_acquire_is_gated.swap(false, Ordering::SeqCst) {
            self.gate.notified().await;
        }
    }

    /// Waits for the gate with a renewal that is to do so.
    pub async fn let_renewal_pass(&self) {
        let left = &self.renewals_to_gate;
        if left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok() {
            let opened = self.gate.notified();
            self.gated_renewals.fetch_add(1, Ordering::SeqCst);
            opened.await;
        }
    }

    /// Waits for the gate with a step of a plan that is to do so, and refuses one that is not to leave.
    pub async fn let_plan_step_pass(&self) -> Result<()> {
        if self.next_plan_step_is_gated.swap(false, Ordering::Relaxed) {
            self.gate.notified().await;
        }
        let left = &self.plan_steps_to_keep;
        match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)) {
            Ok(_) => Err(Error::unavailable(lost())),
            Err(_) => Ok(()),
        }
    }
}

#[async_trait]
impl Leases for Flaky {
    async fn acquire(&self, resource: &Resource, owner: &InstanceId, lease_ms: u64) -> Result<Acquisition> {
        self.plan.let_acquire_pass().await;
        self.plan.holds.answer_late(self.real.acquire(resource, owner, lease_ms)).await
    }
    async fn take_over(
        &self,
        resource: &Resource,
        owner: &InstanceId,
        dead: &InstanceId,
        lease_ms: u64,
    ) -> Result<Option<(Token, Timestamp)>> {
        self.real.take_over(resource, owner, dead, lease_ms).await
    }
    async fn renew_all(&self, owner: &InstanceId, leases: &[Renewal]) -> Result<Vec<Renewed>> {
        self.plan.let_renewal_pass().await;
        self.real.renew_all(owner, leases).await
    }
    async fn release_all(&self, owner: &InstanceId, leases: &[(Resource, Token)]) -> Result<Vec<Resource>> {
        let panics = &self.plan.holds.next_release_panics;
        assert!(!panics.swap(false, Ordering::SeqCst), "made on purpose");
        self.real.release_all(owner, leases).await
    }
    async fn lease(&self, resource: &Resource) -> Result<Option<Lease>> {
        self.real.lease(resource).await
    }
    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<Lease>> {
        self.real.leases(filter).await
    }
}
