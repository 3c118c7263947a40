//! The bulk operations whose tokens this instance does not know. Tokens come from each instance's own configuration: another
//! one may have newer ones, so an operation is left to the others for a while before it is ended.

use std::collections::HashMap;
use std::time::Instant;

use domain::{BulkId, InstanceId};
use ledger::OpenBulk;

use crate::limits::BULK_TOKEN_UNKNOWN_MAX;

/// What this instance left to the others.
#[derive(Debug, Default)]
pub struct Doubts(HashMap<BulkId, Doubt>);

#[derive(Debug)]
struct Doubt {
    /// The token's name.
    principal: String,
    since: Instant,
    /// The row's token, if another live instance had the operation at the last look.
    held: Option<u64>,
}

impl Doubt {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= BULK_TOKEN_UNKNOWN_MAX
    }
}

impl Doubts {
    /// Notes that an operation was left to the others, because its token is not known here.
    pub fn note(&mut self, id: BulkId, principal: &str, now: Instant) {
        let new = || Doubt { principal: principal.to_owned(), since: now, held: None };
        self.0.entry(id).or_insert_with(new);
    }

    /// Whether an operation was left to the others [`BULK_TOKEN_UNKNOWN_MAX`] ago, and none has gone on with it meanwhile.
    pub fn is_over(&self, id: BulkId, now: Instant) -> bool {
        self.0.get(&id).is_some_and(|doubt| doubt.is_over(now))
    }

    /// The token of an operation is known here.
    pub fn forget(&mut self, id: BulkId) {
        self.0.remove(&id);
    }

    /// Forgets those that are over, and those that one other instance has had since the last look: it knows their tokens. One
    /// that does not leaves them at once.
    pub fn look(&mut self, open: &[OpenBulk], me: &InstanceId) {
        self.0.retain(|id, doubt| {
            let Some(now) = open.iter().find(|open| open.id == *id) else { return false };
            let held = (now.is_owned && now.owner != *me).then_some(now.token);
            let goes_on = held.is_some() && held == doubt.held;
            doubt.held = held;
            !goes_on
        });
    }

    /// Whether an operation is still left to the others.
    pub fn leaves(&self, id: BulkId, now: Instant, is_known: impl Fn(&str) -> bool) -> bool {
        self.0.get(&id).is_some_and(|doubt| !doubt.is_over(now) && !is_known(&doubt.principal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: BulkId = BulkId::from_u128(1);

    fn open(owner: &str, token: u64, is_owned: bool) -> OpenBulk {
        let owner = InstanceId::parse(owner).unwrap();
        OpenBulk { id: ID, principal: "ops".to_owned(), owner, token, is_owned, is_cancelling: false }
    }

    fn known(_: &str) -> bool {
        true
    }

    fn unknown(name: &str) -> bool {
        name != "new"
    }

    #[test]
    fn an_operation_of_an_unknown_token_is_left_for_a_while_and_then_ended() {
        let (mut doubts, now) = (Doubts::default(), Instant::now());
        let later = now + BULK_TOKEN_UNKNOWN_MAX;
        assert!(!doubts.leaves(ID, now, unknown), "it was never seen");
        assert!(!doubts.is_over(ID, later), "it was not left to the others before");
        doubts.note(ID, "new", now);
        assert!(doubts.leaves(ID, now, unknown) && !doubts.is_over(ID, now));
        assert!(!doubts.leaves(ID, now, known), "the tokens were reloaded");
        doubts.note(ID, "new", later);
        assert!(!doubts.leaves(ID, later, unknown) && doubts.is_over(ID, later), "the time begins once");
        doubts.forget(ID);
        assert!(!doubts.is_over(ID, later), "it was known meanwhile");
    }

    #[test]
    fn the_time_begins_anew_after_another_instance_went_on_with_the_operation() {
        let (mut doubts, now) = (Doubts::default(), Instant::now());
        let (me, later) = (InstanceId::parse("me").unwrap(), now + BULK_TOKEN_UNKNOWN_MAX);
        doubts.note(ID, "new", now);
        // Others that do not know the token either have it for a moment.
        for open in [open("nobody", 2, false), open("a", 3, true), open("b", 5, true), open("b", 5, false)] {
            doubts.look(&[open], &me);
        }
        assert!(doubts.is_over(ID, later), "nobody goes on with it");
        for _ in 0..2 {
            doubts.look(&[open("me", 6, true)], &me);
        }
        assert!(doubts.is_over(ID, later), "this one has it itself");
        for _ in 0..2 {
            doubts.look(&[open("a", 7, true)], &me);
        }
        assert!(!doubts.is_over(ID, later));
        doubts.note(ID, "new", now);
        doubts.look(&[], &me);
        assert!(!doubts.leaves(ID, later, unknown), "it is over");
    }
}
