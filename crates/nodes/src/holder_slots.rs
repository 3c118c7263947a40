//! The slots of one node that the holder of its socket gives out in its own memory, while the bus lends them to it or is
//! away. The lanes of the holder's instance take them without a wait; the task of the socket says how many there are.
//!
//! A slot that was given waits for its dispatch, for a time. What the node has is known to its
//! [`crate::attached::AttachedNode`] alone; here it is a number.

use std::collections::HashMap;
use std::time::Instant;

use bus::{Claim, Reserved, Slot};
use domain::Token;
use parking_lot::Mutex;

/// The slots of one connection that its holder gives. The task of the connection's socket shares them with the lanes.
#[derive(Debug, Default)]
pub struct HolderSlots(Mutex<Slots>);

#[derive(Debug, Default)]
struct Slots {
    room: Room,
    /// Those whose dispatches have not come yet.
    given: HashMap<Slot, Given>,
}

/// How many slots there are to give, as the task of the socket says.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// The holder gives slots from then on; `None` as long as the bus does.
    pub(crate) gives_from: Option<Instant>,
    /// Whether the node takes work.
    pub(crate) is_ready: bool,
    /// How many attempts the node may run at once.
    pub(crate) capacity: usize,
    /// How many slots are taken by what was sent to the node, or is being sent.
    pub(crate) used: usize,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    token: Token,
    ends: Instant,
}

/// What became of a slot that is not wanted any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GivenBack {
    /// It was not given here, or its dispatch has come.
    NotGiven,
    /// It is free.
    Free,
    /// It is free here, and the record at the bus may list it: there it is to be freed too.
    Listed,
}

impl HolderSlots {
    /// Gives slots until `ends`, each unless the node is full by then. `None` where the bus gives them. One that was given
    /// stays as it is; a later owner of the lane takes over what an earlier one was given.
    #[must_use]
    pub fn reserve(&self, claims: &[Claim], ends: Instant, now: Instant) -> Option<Vec<Reserved>> {
        let mut slots = self.0.lock();
        let room = slots.room;
        if !room.gives(now) {
            return None;
        }
        let reserve = |Claim { slot, token }: &Claim| {
            if let Some(given) = slots.given.get_mut(slot) {
                if given.token < *token {
                    *given = Given { token: *token, ends };
                }
                return Reserved::Yes;
            }
            if !room.is_ready {
                return Reserved::NotReady;
            }
            if room.used + slots.given.len() >= room.capacity {
                return Reserved::Full;
            }
            slots.given.insert(*slot, Given { token: *token, ends });
            Reserved::Yes
        };
        Some(claims.iter().map(reserve).collect())
    }

    /// A slot is not wanted any more. An earlier owner of the lane does not take from a later one.
    pub fn give_back(&self, claim: Claim, now: Instant) -> GivenBack {
        let mut slots = self.0.lock();
        if slots.given.get(&claim.slot).is_none_or(|given| given.token > claim.token) {
            return GivenBack::NotGiven;
        }
        slots.given.remove(&claim.slot);
        if slots.room.gives(now) { GivenBack::Free } else { GivenBack::Listed }
    }

    /// Whether the holder gives the slots now.
    #[must_use]
    pub fn gives(&self, now: Instant) -> bool {
        self.0.lock().room.gives(now)
    }

    /// How many slots there are from now on.
    pub(crate) fn settle(&self, room: Room) {
        self.0.lock().room = room;
    }

    /// From now on the bus gives the slots. Whether this did before.
    pub(crate) fn close(&self, now: Instant) -> bool {
        let mut slots = self.0.lock();
        let gave = slots.room.gives(now);
        slots.room.gives_from = None;
        gave
    }

    /// The dispatch of a slot has come: whether the slot was given, and its time is not over. It counts as used then.
    pub(crate) fn take(&self, slot: Slot, now: Instant) -> bool {
        let mut slots = self.0.lock();
        let is_given = slots.given.get(&slot).is_some_and(|given| given.ends > now);
        if is_given {
            slots.given.remove(&slot);
            slots.room.used += 1;
        }
        is_given
    }

    /// Whether a slot was given, and its dispatch has not come.
    pub(crate) fn has(&self, slot: Slot) -> bool {
        self.0.lock().given.contains_key(&slot)
    }

    /// The slots that were given and whose dispatches have not come.
    pub(crate) fn given(&self) -> Vec<Slot> {
        self.0.lock().given.keys().copied().collect()
    }

    /// How many those are.
    pub(crate) fn given_count(&self) -> usize {
        self.0.lock().given.len()
    }

    /// Takes back the slots for which no dispatch came in time.
    pub(crate) fn expire(&self, now: Instant) -> Vec<Slot> {
        let mut slots = self.0.lock();
        slots.given.extract_if(|_, given| given.ends <= now).map(|(slot, _)| slot).collect()
    }

    /// The connection is over: nothing is given any more, and what was given is not.
    pub(crate) fn end(&self) {
        *self.0.lock() = Slots::default();
    }
}

impl Room {
    fn gives(&self, now: Instant) -> bool {
        self.gives_from.is_some_and(|from| now >= from)
    }
}

#[cfg(test)]
mod tests;
