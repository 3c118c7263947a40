//! Slots that the holder of a node's connection gave out itself, while the bus was away, and whose dispatches have not
//! come yet.

use std::collections::HashMap;
use std::time::Instant;

use bus::{Claim, Slot};
use domain::Token;

#[derive(Debug, Default)]
pub(super) struct Grants {
    given: HashMap<Slot, Grant>,
}

#[derive(Clone, Copy, Debug)]
struct Grant {
    token: Token,
    ends: Instant,
}

impl Grants {
    pub(super) fn len(&self) -> usize {
        self.given.len()
    }

    pub(super) fn has(&self, slot: Slot) -> bool {
        self.given.contains_key(&slot)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.given.keys().copied()
    }

    pub(super) fn give(&mut self, claim: Claim, ends: Instant) {
        let Claim { slot, token } = claim;
        self.given.insert(slot, Grant { token, ends });
    }

    /// Whether it was given. A lane's next owner takes over what the last one was given; whoever repeats itself gains no
    /// time.
    pub(super) fn give_again(&mut self, claim: Claim, ends: Instant) -> bool {
        let Some(grant) = self.given.get_mut(&claim.slot) else { return false };
        if grant.token < claim.token {
            *grant = Grant { token: claim.token, ends };
        }
        true
    }

    /// Its dispatch came, or it is not wanted any more. Whether it was given.
    pub(super) fn remove(&mut self, slot: Slot) -> bool {
        self.given.remove(&slot).is_some()
    }

    /// What this claim was given is not wanted any more. An earlier owner of the lane does not take from a later one.
    pub(super) fn give_back(&mut self, claim: Claim) -> bool {
        let is_own = self.given.get(&claim.slot).is_some_and(|grant| grant.token <= claim.token);
        is_own && self.remove(claim.slot)
    }

    /// Takes back what no dispatch came for in time.
    pub(super) fn expire(&mut self, now: Instant) -> Vec<Slot> {
        let mut over = vec![];
        self.given.retain(|slot, grant| {
            let lasts = grant.ends > now;
            if !lasts {
                over.push(*slot);
            }
            lasts
        });
        over
    }
}
