//! The attempts that a node lists when it connects. It may make them up: so many of them count among the bytes that its token
//! may have in memory, until they are known to be its own, or it has them no more.
//!
//! The attempts of a node that tells the truth are looked up within moments, and do not count any more. So the fleet of a token
//! may list any number of attempts, though not all of them at the same moment.

use std::collections::HashSet;

use bus::Slot;

use crate::limits::{LISTED_ATTEMPT_BYTES, UNCOUNTED_BYTES_MAX};
use crate::shares::{Reached, Share};

/// Those of one connection that count.
pub(super) struct Listed {
    slots: HashSet<Slot>,
    share: Share,
}

impl Listed {
    /// Counts these with a share that is nothing yet; `None` where they are too few to count.
    ///
    /// # Errors
    /// The limit that is reached.
    pub(super) fn counted(slots: &[Slot], mut share: Share) -> Result<Option<Self>, Reached> {
        let slots: HashSet<_> = slots.iter().copied().collect();
        if are_few(slots.len()) {
            return Ok(None);
        }
        share.grow(bytes_of(slots.len()))?;
        Ok(Some(Self { slots, share }))
    }

    /// Counts only these on. Whether enough of them are left to count.
    pub(super) fn keep(&mut self, counts: impl FnMut(&Slot) -> bool) -> bool {
        let before = self.slots.len();
        self.slots.retain(counts);
        self.slots.shrink_to_fit();
        self.share.shrink(bytes_of(before - self.slots.len()));
        !are_few(self.slots.len())
    }
}

const fn bytes_of(attempts: usize) -> usize {
    attempts * LISTED_ATTEMPT_BYTES
}

const fn are_few(attempts: usize) -> bool {
    bytes_of(attempts) <= UNCOUNTED_BYTES_MAX
}
