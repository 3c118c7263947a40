//! In which hash slots of a Cluster the last write was refused: while nobody serves a slot, no try of a write there does
//! anything.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use redis::cluster_routing::Slot as HashSlot;

use crate::limits::REFUSAL_MS;
use crate::{Error, Result};

/// Of one handle: when the last write was refused, for each such hash slot. There are 16,384 at most. Pure: time comes in as an
/// argument.
#[derive(Debug, Default)]
pub(super) struct Refusals(RwLock<HashMap<HashSlot, Instant>>);

impl Refusals {
    /// Whether the last write there was refused, less than [`REFUSAL_MS`] ago.
    pub(super) fn has(&self, slot: HashSlot, now: Instant) -> bool {
        let refused = self.0.read();
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < Duration::from_millis(REFUSAL_MS);
        refused.get(&slot).is_some_and(is_recent)
    }

    /// A write there was answered.
    pub(super) fn note<T>(&self, slot: HashSlot, answer: &Result<T>, now: Instant) {
        match answer {
            Err(Error::Unavailable { .. }) => {
                self.0.write().insert(slot, now);
            }
            // Nobody knows whether a server took it.
            Err(Error::Unknown { .. }) => {}
            Ok(_) | Err(_) => {
                let is_noted = self.0.read().contains_key(&slot);
                if is_noted {
                    self.0.write().remove(&slot);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::failure::{self, Effect};
    use super::*;

    #[test]
    fn a_hash_slot_is_refused_until_a_server_there_answers_or_for_long_no_write_is_refused() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let (one, other) = (HashSlot::for_key("a"), HashSlot::for_key("b"));
        let refused = || Err::<(), _>(failure::not_connected());
        assert!(!refusals.has(one, now));
        refusals.note(one, &refused(), now);
        assert!(refusals.has(one, now) && !refusals.has(other, now));
        refusals.note(one, &Err::<(), _>(failure::timed_out(Effect::Writes)), now);
        assert!(refusals.has(one, now), "no server has said a word");
        refusals.note(other, &Ok(()), now);
        assert!(refusals.has(one, now));
        refusals.note(one, &Ok(()), now);
        assert!(!refusals.has(one, now));
        refusals.note(one, &refused(), now);
        refusals.note(one, &Err::<(), _>(failure::unreadable()), now);
        assert!(!refusals.has(one, now), "a server has answered");
        refusals.note(one, &refused(), now);
        assert!(
            !refusals.has(one, now + Duration::from_millis(REFUSAL_MS)),
            "of a later outage it says nothing"
        );
    }
}
