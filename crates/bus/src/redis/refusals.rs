//! In which hash slots of a Cluster the last write was refused: while nobody serves a slot, no try of a write there does
//! anything. And in which it was not answered.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use redis::cluster_routing::Slot as HashSlot;

use crate::limits::REFUSAL_MS;
use crate::{Error, Result};

/// Of one handle. Pure: time comes in as an argument.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// When the last write was refused, for each such hash slot. There are 16,384 at most.
    refused: Times,
    /// When a write was not answered, for each hash slot in which none was answered since.
    unanswered: Times,
}

type Times = RwLock<HashMap<HashSlot, Instant>>;

impl Refusals {
    /// Whether the last write there was refused, less than [`REFUSAL_MS`] ago.
    pub(super) fn has(&self, slot: HashSlot, now: Instant) -> bool {
        has_recent(&self.refused, slot, now)
    }

    /// Whether a write there was not answered less than [`REFUSAL_MS`] ago, and none since.
    pub(super) fn is_silent(&self, slot: HashSlot, now: Instant) -> bool {
        has_recent(&self.unanswered, slot, now)
    }

    /// A write there was answered.
    pub(super) fn note<T>(&self, slot: HashSlot, answer: &Result<T>, now: Instant) {
        match answer {
            Err(Error::Unavailable { .. }) => {
                self.refused.write().insert(slot, now);
                forget(&self.unanswered, slot);
            }
            // Nobody knows whether a server took it.
            Err(Error::Unknown { .. }) => {
                self.unanswered.write().insert(slot, now);
            }
            Ok(_) | Err(_) => {
                forget(&self.refused, slot);
                forget(&self.unanswered, slot);
            }
        }
    }
}

fn has_recent(times: &Times, slot: HashSlot, now: Instant) -> bool {
    let is_recent = |at: &Instant| now.saturating_duration_since(*at) < Duration::from_millis(REFUSAL_MS);
    times.read().get(&slot).is_some_and(is_recent)
}

fn forget(times: &Times, slot: HashSlot) {
    let is_noted = times.read().contains_key(&slot);
    if is_noted {
        times.write().remove(&slot);
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

    #[test]
    fn a_hash_slot_is_silent_until_a_server_there_says_a_word_or_for_a_while() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let (one, other) = (HashSlot::for_key("a"), HashSlot::for_key("b"));
        let unanswered = || Err::<(), _>(failure::timed_out(Effect::Writes));
        assert!(!refusals.is_silent(one, now));
        for word in [Ok(()), Err(failure::not_connected()), Err(failure::unreadable())] {
            refusals.note(one, &unanswered(), now);
            assert!(refusals.is_silent(one, now) && !refusals.is_silent(other, now));
            refusals.note(other, &word, now);
            assert!(refusals.is_silent(one, now));
            refusals.note(one, &word, now);
            assert!(!refusals.is_silent(one, now), "{word:?}");
        }
        refusals.note(one, &unanswered(), now);
        let later = now + Duration::from_millis(REFUSAL_MS);
        assert!(!refusals.is_silent(one, later), "its master may be well again while another one is away");
    }
}
