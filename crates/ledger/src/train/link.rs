//! What binds a batch to the one that it was decided on, and to the lease under which it is written.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The lease under which batches are written, by its holder's own clock.
pub trait LeaseClock: Send + Sync {
    /// Whether it surely lasts at this time. It is asked for each batch before a train leaves, each time that one is sent, and
    /// must not wait.
    fn lasts_at(&self, now: Instant) -> bool;
}

/// What becomes of a batch, for those that follow it.
#[derive(Clone, Debug, Default)]
pub struct Fate(Arc<OnceLock<bool>>);

impl Fate {
    /// That of a batch which is not on its way any more, nor known to be durable.
    #[must_use]
    pub fn lost() -> Self {
        let fate = Self::default();
        fate.decide(false);
        fate
    }

    /// Whether it is that of the same batch.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Only the first decision counts.
    fn decide(&self, is_durable: bool) {
        let _ = self.0.set(is_durable);
    }
}

/// A batch's place among those of its line, on its way with it. Where it is dropped before the verdict is known, the
/// batch counts as lost. Without a link nobody follows a batch, it follows nobody, and it leaves whenever its train does.
#[derive(Default)]
pub struct Link {
    own: Option<Fate>,
    after: Option<Fate>,
    lease: Option<Arc<dyn LeaseClock>>,
}

impl Link {
    /// Of a batch with this fate, which follows the one with the other.
    #[must_use]
    pub const fn new(own: Fate, after: Option<Fate>) -> Self {
        Self { own: Some(own), after, lease: None }
    }

    /// Of a batch that leaves only while this lease surely lasts. If it does not leave, its caller gets
    /// [`crate::Error::Unavailable`].
    #[must_use]
    pub fn under(mut self, lease: Arc<impl LeaseClock + 'static>) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Whether the batch may leave at this time.
    pub(crate) fn may_leave(&self, now: Instant) -> bool {
        self.lease.as_ref().is_none_or(|lease| lease.lasts_at(now))
    }

    pub(super) const fn own(&self) -> Option<&Fate> {
        self.own.as_ref()
    }

    /// The fate that it follows, as long as nobody knows it.
    pub(super) fn follows(&self) -> Option<&Fate> {
        self.after.as_ref().filter(|fate| fate.0.get().is_none())
    }

    /// Whether the batch that it follows is not durable, or may not be.
    pub(super) fn is_lost(&self) -> bool {
        self.after.as_ref().is_some_and(|fate| fate.0.get() == Some(&false))
    }

    /// Whether nothing keeps the batch from being committed: the one that it follows is durable.
    pub(super) fn may_commit(&self) -> bool {
        self.after.as_ref().is_none_or(|fate| fate.0.get() == Some(&true))
    }

    pub(super) fn decide(&self, is_durable: bool) {
        if let Some(own) = &self.own {
            own.decide(is_durable);
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.decide(false);
    }
}
