//! The bulk operations that instances left because they do not know their tokens, and for which this instance has no room now. It
//! leaves each to those with room for a while. Then it takes it, if it knows its token, to work on it in its turn: what has a
//! live owner is ended by nobody else.

use std::collections::HashMap;
use std::time::Instant;

use domain::BulkId;
use ledger::OpenBulk;

use crate::limits::BULK_LEFT_MAX;

/// Since when each was seen without an owner.
#[derive(Debug, Default)]
pub struct Left(HashMap<BulkId, Instant>);

impl Left {
    /// Forgets those that have an owner by now, or are over.
    pub fn look(&mut self, open: &[OpenBulk]) {
        self.0.retain(|id, _| open.iter().any(|open| open.id == *id && open.is_left()));
    }

    /// Whether an operation was left to those with room for [`BULK_LEFT_MAX`]. Its time then begins anew.
    pub fn is_due(&mut self, open: &OpenBulk, now: Instant) -> bool {
        if !open.is_left() {
            return false;
        }
        let since = self.0.entry(open.id).or_insert(now);
        let is_due = now.duration_since(*since) >= BULK_LEFT_MAX;
        if is_due {
            *since = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use domain::InstanceId;

    use super::*;

    fn open(owner: &str) -> OpenBulk {
        let owner = InstanceId::parse(owner).unwrap();
        OpenBulk { id: BulkId::from_u128(1), owner, token: 1, is_owned: false }
    }

    #[test]
    fn an_operation_is_left_to_instances_with_room_first() {
        let (mut left, now) = (Left::default(), Instant::now());
        let later = now + BULK_LEFT_MAX;
        assert!(!left.is_due(&open("nobody"), now) && left.is_due(&open("nobody"), later));
        assert!(!left.is_due(&open("nobody"), later), "it is looked at once in that time");
        let last = later + BULK_LEFT_MAX;
        left.look(&[open("nobody")]);
        assert!(left.is_due(&open("nobody"), last));
        // Another instance has had it meanwhile.
        left.look(&[open("a")]);
        assert!(!left.is_due(&open("nobody"), last + BULK_LEFT_MAX));
    }

    #[test]
    fn an_operation_whose_owner_died_waits_for_an_instance_with_room() {
        let (mut left, now) = (Left::default(), Instant::now());
        assert!(!left.is_due(&open("a"), now) && !left.is_due(&open("a"), now + BULK_LEFT_MAX));
    }
}
