//! Renewal of the leases that owners keep (worker-queue mode): one task for all of an instance, which no actor's
//! handler can block. It names live leases only, by their exact tokens.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use domain::limits::RENEWALS_MAX;
use domain::{InstanceId, Resource, Token};
use ledger::{Renewal, Renewed};
use tokio::task::{JoinHandle, JoinSet};

use crate::pause::jittered;

/// A lease is renewed when this part of it is over.
const RENEW_AT: u32 = 3;
/// Looks per lease for those that are due.
const LOOKS_PER_LEASE: u32 = 10;
/// The longest pause behind a look whose renewals failed, before jitter. When the ledger is back, the others take what has run
/// out after one length of an `instance:` lease, and of these the shortest that can be configured lasts 1 s.
const LOOK_AGAIN_AFTER_MAX: Duration = Duration::from_millis(250);
/// A look is not waited for any longer than this: the next one asks once more on another connection, since one may hang while the
/// others are well. Half of that shortest length.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Looks whose renewals are under way at once: as many as begin while one of them hangs for `ledger.call_timeout_ms`, which is
/// 5 s by default.
const LOOKS_AT_ONCE: usize = 10;

/// Until when a lease surely lasts, by this process's own clock. Read by the lease's owner, moved on by the renewals.
pub(crate) struct LeaseDeadline {
    token: Token,
    epoch: Instant,
    ends_ms: AtomicU64,
    lost: AtomicBool,
}

impl LeaseDeadline {
    /// A lease that was asked for at `sent`: the database cannot have begun to count earlier.
    pub(crate) fn new(token: Token, sent: Instant, lease: Duration) -> Self {
        let ends_ms = AtomicU64::new(lease.as_millis() as u64);
        Self { token, epoch: sent, ends_ms, lost: AtomicBool::new(false) }
    }

    pub(crate) const fn token(&self) -> Token {
        self.token
    }

    pub(crate) fn is_running(&self) -> bool {
        !self.lost.load(Ordering::Acquire) && !self.left().is_zero()
    }

    /// Until when the lease surely lasts; `None` when it was lost.
    pub(crate) fn until(&self) -> Option<Instant> {
        let ends = Duration::from_millis(self.ends_ms.load(Ordering::Acquire));
        (!self.lost.load(Ordering::Acquire)).then(|| self.epoch + ends)
    }

    fn left(&self) -> Duration {
        let ends = Duration::from_millis(self.ends_ms.load(Ordering::Acquire));
        ends.saturating_sub(self.epoch.elapsed())
    }

    fn renewed(&self, sent: Instant, lease: Duration) {
        let ends = sent.saturating_duration_since(self.epoch) + lease;
        // A renewal that was sent before the last one may be answered after it.
        self.ends_ms.fetch_max(ends.as_millis() as u64, Ordering::Release);
    }
}

/// What is called with the resource of a lease that was lost.
type OnLost = Box<dyn Fn(&Resource) + Send + Sync>;

/// The leases that are to be renewed.
#[derive(Default)]
pub(crate) struct Renewals {
    kept: DashMap<Resource, Arc<LeaseDeadline>>,
    on_lost: OnceLock<OnLost>,
}

impl Renewals {
    /// Calls `on_lost` with the resource of each lease that is lost. To be set once, before the first lease is kept.
    pub(crate) fn on_lost(&self, on_lost: impl Fn(&Resource) + Send + Sync + 'static) {
        if self.on_lost.set(Box::new(on_lost)).is_err() {
            tracing::error!("a callback for lost leases is already set");
        }
    }

    /// From now on this lease is renewed.
    pub(crate) fn keep(&self, resource: Resource, deadline: Arc<LeaseDeadline>) {
        self.kept.insert(resource, deadline);
    }

    /// Not any more. To be called before the lease is released.
    pub(crate) fn forget(&self, resource: &Resource, token: Token) {
        self.kept.remove_if(resource, |_, kept| kept.token == token);
    }

    /// Whether a lease of it is kept that surely lasts.
    pub(crate) fn keeps(&self, resource: &Resource) -> bool {
        self.kept.get(resource).is_some_and(|kept| kept.is_running())
    }

    /// What is kept.
    pub(crate) fn resources(&self) -> Vec<Resource> {
        self.kept.iter().map(|kept| kept.key().clone()).collect()
    }

    /// Renews leases as long as another handle to the renewals exists. Asks once more where no answer comes in time: it goes
    /// another way, while the first may hang with its connection. Two renewals under one token do no more than one. An answer
    /// that is late counts too, from when it was asked for: a server may be that slow and well.
    pub(crate) fn start(
        self: &Arc<Self>,
        ledger: ledger::Handle,
        owner: InstanceId,
        lease: Duration,
    ) -> JoinHandle<()> {
        let renewals = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut looks = JoinSet::new();
            let mut are_answered = Some(true);
            loop {
                tokio::time::sleep(jittered(pause(lease, are_answered))).await;
                let Some(renewals) = renewals.upgrade() else { return };
                if looks.len() < LOOKS_AT_ONCE {
                    let (ledger, owner) = (Arc::clone(&ledger), owner.clone());
                    looks.spawn(async move { renewals.renew_due(&ledger, &owner, lease).await });
                }
                are_answered = match tokio::time::timeout(ASK_AGAIN_AFTER, looks.join_next()).await {
                    Ok(Some(Err(gone))) => std::panic::resume_unwind(gone.into_panic()),
                    Ok(Some(Ok(are_answered))) => Some(are_answered),
                    Ok(None) | Err(_) => None,
                };
            }
        })
    }

    /// Whether the ledger answered.
    async fn renew_due(&self, ledger: &ledger::Handle, owner: &InstanceId, lease: Duration) -> bool {
        let due_below = lease - lease / RENEW_AT;
        let mut due: Vec<_> = self
            .kept
            .iter()
            .filter(|kept| kept.left() < due_below)
            .map(|kept| Renewal {
                resource: kept.key().clone(),
                token: kept.token,
                lease_ms: lease.as_millis() as u64,
            })
            .collect();
        due.sort_unstable_by(|a, b| a.resource.cmp(&b.resource));
        let mut are_answered = true;
        for chunk in due.chunks(RENEWALS_MAX) {
            let sent = Instant::now();
            match ledger.renew_all(owner, chunk).await {
                Ok(renewed) => self.note(chunk, &renewed, sent, lease),
                Err(error) => {
                    are_answered = false;
                    chunk.iter().for_each(|renewal| count(&renewal.resource, "error"));
                    ledger::log_failure!(error, leases = chunk.len(), "leases could not be renewed");
                }
            }
        }
        are_answered
    }

    fn note(&self, asked: &[Renewal], renewed: &[Renewed], sent: Instant, lease: Duration) {
        let mut locked = 0;
        for (Renewal { resource, token, .. }, renewed) in asked.iter().zip(renewed) {
            // It may have been forgotten, or acquired anew, while the statement was under way.
            let Some(kept) = self.kept.get(resource).filter(|kept| kept.token == *token) else { continue };
            match renewed {
                Renewed::Done => {
                    kept.renewed(sent, lease);
                    count(resource, "renewed");
                }
                // An earlier renewal may still wait in its commit, and hold the row.
                Renewed::Locked => {
                    locked += 1;
                    count(resource, "error");
                }
                Renewed::Lost => {
                    kept.lost.store(true, Ordering::Release);
                    drop(kept);
                    count(resource, "lost");
                    tracing::warn!(%resource, %token, "a lease was lost");
                    if let Some(on_lost) = self.on_lost.get() {
                        on_lost(resource);
                    }
                }
            }
        }
        if locked > 0 {
            tracing::warn!(leases = locked, "rows of leases are locked; the leases are renewed later");
        }
    }
}

fn count(resource: &Resource, result: &'static str) {
    let kind = resource.kind().as_str();
    metrics::counter!("fencepost_lease_renew_total", "kind" => kind, "result" => result).increment(1);
}

/// Between two looks for leases that are due, before jitter. `None`: renewals are under way, and were waited for.
fn pause(lease: Duration, are_answered: Option<bool>) -> Duration {
    let pause = lease / LOOKS_PER_LEASE;
    match are_answered {
        Some(true) => pause,
        Some(false) => pause.min(LOOK_AGAIN_AFTER_MAX),
        None => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_an_outage_leases_of_any_length_are_renewed_before_another_instance_takes_them() {
        // The shortest `instance:` lease, for which the others wait, and the longest pause that jitter makes.
        let (calm, longest) = (Duration::from_secs(1), 1.5);
        for lease in [1, 15, 300].map(Duration::from_secs) {
            assert_eq!(pause(lease, Some(true)), lease / LOOKS_PER_LEASE);
            assert!(pause(lease, Some(false)).mul_f64(longest) < calm / 2, "{lease:?}");
            assert!(ASK_AGAIN_AFTER + pause(lease, None).mul_f64(longest) <= calm / 2, "{lease:?}");
        }
    }
}
