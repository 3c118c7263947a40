//! Hand-off: leases that this instance keeps and that belong elsewhere by now, since the ring or the mode has
//! changed, are given back. Paced, so that their new owners are not overrun; what waits for such a signer is
//! told who the new one is.
//!
//! The order of things for one signer: its round under way is committed and answered; the lease is released;
//! what waits is refused with the new owner's name. A crash in between leaves a lease that runs out.

use std::sync::Arc;
use std::time::Duration;

use cluster::Place;
use domain::{Mode, Resource, SignerId};

use super::Inner;
use crate::pause::jittered;

/// Between two looks when nothing has changed, before jitter: a signer may have been acquired by a request
/// that was on its way when the ring changed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Between two steps, before jitter.
const STEP_EVERY: Duration = Duration::from_millis(20);
/// Signers of one step, at least.
const STEP_SIGNERS_MIN: usize = 20;
/// Steps of a hand-off, at most: however many signers move, it is over within seconds.
const STEPS_MAX: usize = 100;

/// Hands off for as long as somebody else holds on to the owners.
pub(super) fn start(inner: &Arc<Inner>) {
    let mut changes = inner.outlook.changes();
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                // An outlook that nobody renews any more does not change.
                Ok(()) = changes.changed() => {}
                () = tokio::time::sleep(jittered(LOOK_EVERY)) => {}
            }
            let Some(inner) = inner.upgrade() else { return };
            inner.hand_off().await;
        }
    });
}

impl Inner {
    async fn hand_off(&self) {
        let moved: Vec<_> = self
            .renewals
            .resources()
            .into_iter()
            .filter(|resource| {
                self.outlook.mode(resource) == Mode::Basic || self.is_placed_elsewhere(resource)
            })
            .filter_map(|resource| SignerId::parse(resource.id()).ok())
            .collect();
        let step = moved.len().div_ceil(STEPS_MAX).max(STEP_SIGNERS_MIN);
        for (at, signers) in moved.chunks(step).enumerate() {
            if at > 0 {
                tokio::time::sleep(jittered(STEP_EVERY)).await;
            }
            for signer in signers {
                self.let_go(signer);
            }
        }
        if !moved.is_empty() {
            tracing::info!(signers = moved.len(), "signers that belong elsewhere are handed off");
        }
    }

    /// Whether another instance is the one to keep it.
    pub(super) fn belongs_elsewhere(&self, signer: &SignerId) -> bool {
        let resource = Resource::signer(signer);
        self.outlook.mode(&resource) == Mode::WorkerQueue && self.is_placed_elsewhere(&resource)
    }

    fn is_placed_elsewhere(&self, resource: &Resource) -> bool {
        self.outlook.place(resource) != Place::Here
    }
}
