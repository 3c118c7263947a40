//! In which hash slots of a Cluster the last write was refused: while nobody serves a slot, no try of a write there does
//! anything. And in which it was not answered.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use redis::cluster_routing::Slot as HashSlot;

use crate::limits::{REFUSAL_MS, REFUSED_LONG_MS};
use crate::{Error, Result};

/// The writes of one handle that the server refused, or did not answer. Pure: time comes in as an argument.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// For each hash slot in which the last write was refused. There are 16,384 at most.
    refused: RwLock<HashMap<HashSlot, Refused>>,
    /// When a write was not answered, for each hash slot in which none was answered since.
    unanswered: RwLock<HashMap<HashSlot, Instant>>,
}

/// Writes that were refused one after the other, with less than [`REFUSAL_MS`] between two of them.
#[derive(Clone, Copy, Debug)]
struct Refused {
    first: Instant,
    last: Instant,
}

impl Refusals {
    /// Whether the last write there was refused, less than [`REFUSAL_MS`] ago.
    pub(super) fn has(&self, slot: HashSlot, now: Instant) -> bool {
        self.refused.read().get(&slot).is_some_and(|refused| is_recent(refused.last, now))
    }

    /// The hash slots of which that is so, and has been for [`REFUSED_LONG_MS`].
    pub(super) fn long(&self, now: Instant) -> HashSet<HashSlot> {
        let long = Duration::from_millis(REFUSED_LONG_MS);
        let is_long = |refused: &Refused| {
            is_recent(refused.last, now) && now.saturating_duration_since(refused.first) >= long
        };
        self.refused.read().iter().filter(|(_, refused)| is_long(refused)).map(|(slot, _)| *slot).collect()
    }

    /// Whether a write there was not answered less than [`REFUSAL_MS`] ago, and none since.
    pub(super) fn is_silent(&self, slot: HashSlot, now: Instant) -> bool {
        self.unanswered.read().get(&slot).is_some_and(|at| is_recent(*at, now))
    }

    /// A write there was answered.
    pub(super) fn note<T>(&self, slot: HashSlot, answer: &Result<T>, now: Instant) {
        match answer {
            Err(Error::Unavailable { .. }) => {
                let mut refused = self.refused.write();
                let before = refused.get(&slot).filter(|before| is_recent(before.last, now));
                let first = before.map_or(now, |before| before.first);
                refused.insert(slot, Refused { first, last: now });
                drop(refused);
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

fn is_recent(at: Instant, now: Instant) -> bool {
    now.saturating_duration_since(at) < Duration::from_millis(REFUSAL_MS)
}

fn forget<T>(noted: &RwLock<HashMap<HashSlot, T>>, slot: HashSlot) {
    let is_noted = noted.read().contains_key(&slot);
    if is_noted {
        noted.write().remove(&slot);
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
    fn a_hash_slot_is_refused_for_long_from_the_first_of_refusals_that_follow_one_another() {
        let (refusals, now) = (Refusals::default(), Instant::now());
        let (one, other) = (HashSlot::for_key("a"), HashSlot::for_key("b"));
        let refused = || Err::<(), _>(failure::not_connected());
        let (long, recent) = (Duration::from_millis(REFUSED_LONG_MS), Duration::from_millis(REFUSAL_MS));
        refusals.note(one, &refused(), now);
        refusals.note(other, &refused(), now);
        assert!(refusals.long(now).is_empty());
        assert_eq!(refusals.long(now + long), [one, other].into());
        refusals.note(one, &refused(), now + long);
        assert_eq!(refusals.long(now + recent), [one].into(), "nothing is written in the other one");
        refusals.note(one, &refused(), now + recent);
        refusals.note(other, &refused(), now + recent);
        assert_eq!(refusals.long(now + recent), [one].into(), "that is another outage of the other one");
        refusals.note(one, &Ok(()), now + recent);
        assert_eq!(refusals.long(now + recent + long), [other].into());
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
