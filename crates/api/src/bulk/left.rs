//! The bulk operations that instances left because they do not know their tokens, and for which this instance has no room now. It
//! leaves them to those with room. Where it knows a token, it shows that now and then: it holds the operation for a moment, and
//! leaves it again. The doubts of the others begin anew by that, so that nobody ends it.

use std::collections::HashMap;
use std::time::Instant;

use domain::{BulkId, InstanceId};
use ledger::OpenBulk;

use crate::limits::{BULK_HELD_FOR, BULK_LEFT_MAX, BULK_SHOWN_EVERY};

/// What is to be done with an operation that others left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// It is to be held for a moment, if its token is known here.
    Hold,
    /// It was held for long enough.
    Leave,
}

/// When each is to be held, or left again.
#[derive(Debug, Default)]
pub struct Left(HashMap<BulkId, Instant>);

impl Left {
    /// Forgets those that are over. One that another instance has now is left to those with room first when that one leaves it.
    pub fn look(&mut self, open: &[OpenBulk], me: &InstanceId, now: Instant) {
        self.0.retain(|id, at| {
            let Some(open) = open.iter().find(|open| open.id == *id) else { return false };
            if open.is_owned && open.owner != *me {
                *at = (*at).max(now + BULK_LEFT_MAX);
            }
            true
        });
    }

    /// What is due with an operation: it is left to those with room for [`BULK_LEFT_MAX`], and for [`BULK_SHOWN_EVERY`] after
    /// this instance had it, and held for [`BULK_HELD_FOR`].
    pub fn due(&mut self, open: &OpenBulk, me: &InstanceId, now: Instant) -> Option<Due> {
        if open.is_left() {
            let at = self.0.entry(open.id).or_insert(now + BULK_LEFT_MAX);
            if now < *at {
                return None;
            }
            // Also where it cannot be taken: then it is tried again.
            *at = now + BULK_HELD_FOR;
            return Some(Due::Hold);
        }
        // What was this instance's from the first waits here for its place.
        let at = self.0.get(&open.id)?;
        (open.owner == *me && now >= *at).then_some(Due::Leave)
    }

    /// This instance left it again.
    pub fn rest(&mut self, id: BulkId, now: Instant) {
        self.0.insert(id, now + BULK_SHOWN_EVERY);
    }

    /// This instance works on it.
    pub fn forget(&mut self, id: BulkId) {
        self.0.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const ID: BulkId = BulkId::from_u128(1);

    fn name(name: &str) -> InstanceId {
        InstanceId::parse(name).unwrap()
    }

    fn open(owner: &str, is_owned: bool) -> OpenBulk {
        let principal = "ops".to_owned();
        OpenBulk { id: ID, principal, owner: name(owner), token: 1, is_owned, is_cancelling: false }
    }

    /// What is due when an instance without room looks.
    fn look(left: &mut Left, open: &OpenBulk, now: Instant) -> Option<Due> {
        left.look(std::slice::from_ref(open), &name("me"), now);
        left.due(open, &name("me"), now)
    }

    #[test]
    fn an_operation_is_left_to_instances_with_room_and_held_for_a_moment_now_and_then() {
        let (mut left, mut now) = (Left::default(), Instant::now());
        let (nobodys, own, moment) = (open("nobody", false), open("me", true), Duration::from_millis(1));
        let mut at = now + BULK_LEFT_MAX;
        for _ in 0..3 {
            assert_eq!(look(&mut left, &nobodys, now), None);
            assert_eq!(look(&mut left, &nobodys, at - moment), None, "those with room take it");
            now = at;
            assert_eq!(look(&mut left, &nobodys, now), Some(Due::Hold));
            assert_eq!(look(&mut left, &own, now + BULK_HELD_FOR - moment), None, "the others see it twice");
            now += BULK_HELD_FOR;
            assert_eq!(look(&mut left, &own, now), Some(Due::Leave));
            assert_eq!(look(&mut left, &own, now), Some(Due::Leave), "until the ledger takes it");
            left.rest(ID, now);
            at = now + BULK_SHOWN_EVERY;
        }
        left.look(&[], &name("me"), at);
        assert_eq!(left.due(&nobodys, &name("me"), at), None, "it was over");
    }

    #[test]
    fn one_that_cannot_be_held_is_tried_again() {
        let (mut left, now) = (Left::default(), Instant::now());
        let nobodys = open("nobody", false);
        assert_eq!(look(&mut left, &nobodys, now), None);
        let at = now + BULK_LEFT_MAX;
        assert_eq!(look(&mut left, &nobodys, at), Some(Due::Hold));
        assert_eq!(look(&mut left, &nobodys, at), None);
        assert_eq!(look(&mut left, &nobodys, at + BULK_HELD_FOR), Some(Due::Hold));
    }

    #[test]
    fn an_operation_that_another_instance_had_meanwhile_is_left_to_those_with_room_first() {
        let (mut left, now) = (Left::default(), Instant::now());
        let (nobodys, anothers) = (open("nobody", false), open("a", true));
        assert_eq!(look(&mut left, &nobodys, now), None);
        let at = now + BULK_LEFT_MAX;
        assert_eq!(look(&mut left, &anothers, at), None);
        assert_eq!(look(&mut left, &nobodys, at), None);
        assert_eq!(look(&mut left, &nobodys, at + BULK_LEFT_MAX), Some(Due::Hold));
        // One that had it for a moment does not know the token either.
        left.rest(ID, at);
        assert_eq!(look(&mut left, &anothers, at), None);
        assert_eq!(look(&mut left, &nobodys, at + BULK_LEFT_MAX), None, "it was held not long ago");
    }

    #[test]
    fn what_others_did_not_leave_waits_for_an_instance_with_room_and_the_own_for_its_place() {
        for waits in [open("a", false), open("me", true)] {
            let (mut left, now) = (Left::default(), Instant::now());
            assert_eq!(look(&mut left, &waits, now), None);
            assert_eq!(look(&mut left, &waits, now + BULK_SHOWN_EVERY), None, "{waits:?}");
        }
        let (mut left, now) = (Left::default(), Instant::now());
        assert_eq!(look(&mut left, &open("nobody", false), now), None);
        left.forget(ID);
        assert_eq!(look(&mut left, &open("me", true), now + BULK_SHOWN_EVERY), None, "it has had a place");
    }
}
