//! Hand-off: leases that this instance keeps and that belong elsewhere by now, since the ring or the mode has
//! changed, are given back. Paced, so that their new owners are not overrun; what waits for such a signer is
//! refused with its new owner's name.
//!
//! The order of steps for one signer: its round under way is committed and answered; the lease is released;
//! what waits is refused. A crash in between leaves a lease that runs out.
//!
//! For a short time after the release this instance refuses the signer's requests, with the new owner's name. Otherwise a
//! request that was forwarded here before the release would acquire the lease again. Requests that come after that time come
//! because their senders do not reach the new owner: they are served, also around the releases that follow.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::KeyOwner;
use dashmap::DashMap;
use domain::{InstanceId, Mode, Resource, SignerId};
use ledger::jittered;
use panic_guard::guarded;

use super::Inner;

/// Between two looks when nothing has changed, before jitter: a signer may have been acquired by a request
/// that was on its way when the ring changed.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Between two steps, before jitter.
const STEP_EVERY: Duration = Duration::from_millis(20);
/// Signers of one step, at least.
const STEP_SIGNERS_MIN: usize = 20;
/// Steps of a hand-off, at most: however many signers move, it is over within seconds.
const STEPS_MAX: usize = 100;

/// For so long after the release of a lease its signer is left to the new owner.
const LEFT_FOR: Duration = Duration::from_secs(3);
/// A signer that comes back is left to the same owner again only after this: by then the owner may be within reach.
const LEFT_AGAIN_AFTER: Duration = Duration::from_secs(300);
/// Signers remembered as left. While there are more, each is forgotten after [`LEFT_FOR`], and left anew if it comes back.
const LEFT_MAX: usize = 100_000;

/// The instance to which a signer was left, and when.
pub(super) struct Left {
    owner: InstanceId,
    since: Instant,
}

/// Hands off as long as another handle to the owners exists.
pub(super) fn start(inner: &Arc<Inner>) {
    let mut changes = inner.cluster_view.changes();
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        loop {
            tokio::select! {
                // A cluster view that nobody renews any more does not change.
                Ok(()) = changes.changed() => {}
                () = tokio::time::sleep(jittered(LOOK_EVERY)) => {}
            }
            let Some(inner) = inner.upgrade() else { return };
            guarded("the hand-off of signers", inner.hand_off()).await;
        }
    });
}

/// Forgets the signers that have another owner by now than the one that they were left to, and those that were left long ago. Of
/// more than `max` only those are remembered that are left still.
fn forget(left: &DashMap<SignerId, Left>, max: usize, new_owner: impl Fn(&SignerId) -> Option<InstanceId>) {
    let kept_for = if left.len() > max { LEFT_FOR } else { LEFT_AGAIN_AFTER };
    left.retain(|signer, left| {
        left.since.elapsed() < kept_for && new_owner(signer).as_ref() == Some(&left.owner)
    });
}

impl Inner {
    async fn hand_off(&self) {
        forget(&self.left, LEFT_MAX, |signer| self.new_owner(&Resource::signer(signer)));
        let moved: Vec<_> = self
            .renewals
            .resources()
            .into_iter()
            .filter(|resource| {
                self.cluster_view.mode(resource) == Mode::Basic || self.is_placed_elsewhere(resource)
            })
            .filter_map(|resource| SignerId::parse(resource.id()).ok())
            .collect();
        let step = moved.len().div_ceil(STEPS_MAX).max(STEP_SIGNERS_MIN);
        for (at, signers) in moved.chunks(step).enumerate() {
            if at > 0 {
                tokio::time::sleep(jittered(STEP_EVERY)).await;
            }
            for signer in signers {
                self.directory.hand_off(signer);
            }
        }
        if !moved.is_empty() {
            tracing::info!(signers = moved.len(), "signers that belong elsewhere are handed off");
        }
    }

    /// In worker-queue mode, waiting callers are refused with the name of the new owner.
    pub(super) fn new_owner(&self, resource: &Resource) -> Option<InstanceId> {
        match self.cluster_view.owner_of(resource) {
            KeyOwner::Elsewhere(owner) if self.cluster_view.mode(resource) == Mode::WorkerQueue => {
                Some(owner.id)
            }
            _ => None,
        }
    }

    /// Leaves a signer to its new owner, after the release of its lease; answers whether it is left. One that was left to the
    /// same owner a while ago, and came back, is not.
    pub(super) fn leave(&self, signer: &SignerId, owner: &InstanceId) -> bool {
        let new = || Left { owner: owner.clone(), since: Instant::now() };
        let mut left = self.left.entry(signer.clone()).or_insert_with(new);
        if left.owner != *owner || left.since.elapsed() >= LEFT_AGAIN_AFTER {
            *left = new();
        }
        left.since.elapsed() < LEFT_FOR
    }

    /// The owner that a signer was left to a short time ago, while that is still the one to own it.
    pub(super) fn left_to(&self, signer: &SignerId) -> Option<InstanceId> {
        let is_left = self.left.get(signer).is_some_and(|left| left.since.elapsed() < LEFT_FOR);
        if is_left { self.new_owner(&Resource::signer(signer)) } else { None }
    }

    /// Whether another instance is the one to keep it.
    pub(super) fn belongs_elsewhere(&self, signer: &SignerId) -> bool {
        let resource = Resource::signer(signer);
        self.cluster_view.mode(&resource) == Mode::WorkerQueue && self.is_placed_elsewhere(&resource)
    }

    fn is_placed_elsewhere(&self, resource: &Resource) -> bool {
        self.cluster_view.owner_of(resource) != KeyOwner::Here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_signers_those_are_remembered_that_are_left_still() {
        let (left, other) = (DashMap::new(), InstanceId::parse("other").unwrap());
        let now = Instant::now();
        for (name, since) in [("still", now), ("before", now.checked_sub(LEFT_FOR).unwrap())] {
            left.insert(SignerId::parse(name).unwrap(), Left { owner: other.clone(), since });
        }
        let names = |max| {
            forget(&left, max, |_| Some(other.clone()));
            let mut names: Vec<_> = left.iter().map(|entry| entry.key().to_string()).collect();
            names.sort();
            names
        };
        assert_eq!(names(2), ["before", "still"], "the one that comes back is served");
        assert_eq!(names(1), ["still"], "the other one is left anew if it comes back");
        forget(&left, 2, |_| None);
        assert!(left.is_empty(), "nobody else is to own it");
    }
}
