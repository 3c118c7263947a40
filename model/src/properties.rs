//! What must always hold, and what must be possible at all. Each property looks at one moment only; what must never
//! live here is anything that changes one.
//!
//! The second kind keeps the first honest: a model in which nobody is ever taken over from, fenced or left in the dark
//! would hold every promise.

use std::collections::HashSet;

use stateright::Property;

use crate::LeaseModel;
use crate::protocol::RowLock;
use crate::state::{Caller, Phase, Standing, State, Transaction, Write};

/// No two callers were ever given one nonce.
pub const NEVER_ANSWERED_TWICE: &str = "no nonce is answered to two callers";
/// No two committed rows are of one nonce: both callers were, or can still be, given it.
pub const NEVER_GRANTED_TWICE: &str = "no nonce is granted twice";
/// I5: who was given a nonce finds it in the ledger.
pub const ANSWERED_IS_IN_THE_LEDGER: &str = "every answered grant is in the ledger";
/// I9: the answer that nothing happened is true, and stays true.
pub const REFUSED_IS_NOT_IN_THE_LEDGER: &str = "no refused grant is in the ledger";
/// Every nonce below the highest granted one is accounted for.
pub const NO_GAP: &str = "no nonce is skipped";
/// I1: all writes past the fence bear the lease's token and come from one process.
pub const ONE_OWNER_WRITES: &str = "at most one owner's writes can succeed";
/// I2: once the new owner has loaded, nothing of an earlier one commits.
pub const STALE_OWNER_NEVER_COMMITS: &str = "no earlier owner's write commits after a load";
/// What the owner takes for granted is what is granted.
pub const OWNER_KNOWS_ALL: &str = "the owner's view of the table is whole";
/// A renewal under way is never held up by a fenced write.
pub const RENEWAL_NEVER_WAITS: &str = "a renewal never waits for a fenced write";
/// A released lease is live again only after an acquire; otherwise nobody would serve it and nobody could take it.
pub const RELEASED_STAYS_RELEASED: &str = "a released lease is not revived";
/// Not even a renewal that was on its way revives one; this is about those that are sent when the actor is gone.
pub const NOBODY_RENEWS_WHAT_WAS_RELEASED: &str =
    "no released lease is revived by a renewal sent for no actor";

/// An owner acts on a lease that another one holds by now.
pub const PAUSED_OWNER_WAKES: &str = "a paused owner believes in a lease that another took";
/// A stale owner's write meets the fence.
pub const STALE_OWNER_IS_FENCED: &str = "a stale owner is fenced by its successor";
/// A takeover has to wait for an open fenced write.
pub const TAKEOVER_WAITS: &str = "a takeover waits for a fenced write";
/// A transaction whose writer is gone commits.
pub const ZOMBIE_COMMITS: &str = "a zombie commits";
/// A zombie is still open while its writer has acquired anew, and can only be fenced.
pub const ZOMBIE_OUTLIVES_ACQUIRE: &str = "a zombie is still open after its writer acquired anew";
/// A load shows that an unheard commit happened, and the caller is answered after all.
pub const UNKNOWN_IS_RESOLVED: &str = "an unknown commit is resolved by a load";
/// A renewal is carried out while a fenced write of the same token holds the lease row.
pub const RENEWAL_DURING_WRITE: &str = "a renewal lands during an open fenced write";
/// A lease that ran out, and that nobody took, is live again by its owner's renewal.
pub const RENEWAL_REVIVES: &str = "a renewal is about to revive a lease that ran out";
/// Two writes of one owner are past the fence at once.
pub const WRITTEN_BEHIND: &str = "a write is written behind the one that it follows";
/// A write is undone because the one that it follows is.
pub const UNDONE_WITH_ANOTHER: &str = "a write is undone with the one that it follows";
/// Callers of two instances hold nonces of one signer.
pub const TWO_INSTANCES_GRANT: &str = "two instances grant one after the other";

/// All properties, those that always hold first.
#[must_use]
pub fn all() -> Vec<Property<LeaseModel>> {
    vec![
        Property::always(NEVER_ANSWERED_TWICE, |_, state: &State| all_distinct(state, Write::is_answered)),
        Property::always(NEVER_GRANTED_TWICE, |_, state: &State| all_distinct(state, Write::is_committed)),
        Property::always(ANSWERED_IS_IN_THE_LEDGER, |_, state: &State| {
            every_write(state, |write| !write.is_answered() || write.is_committed())
        }),
        Property::always(REFUSED_IS_NOT_IN_THE_LEDGER, |_, state: &State| {
            every_write(state, |write| write.caller != Caller::Refused || !write.is_committed())
        }),
        Property::always(NO_GAP, |_, state: &State| state.granted().has_no_gap()),
        Property::always(ONE_OWNER_WRITES, one_owner_writes),
        Property::always(STALE_OWNER_NEVER_COMMITS, |_, state: &State| !state.seen.stale_commit),
        Property::always(OWNER_KNOWS_ALL, owner_knows_all),
        Property::always(RENEWAL_NEVER_WAITS, |model: &LeaseModel, state: &State| {
            !(state.lease_lock_waits(&model.protocol, RowLock::NoKeyUpdate)
                && state.instances.iter().any(|one| one.renewal.is_some()))
        }),
        Property::always(RELEASED_STAYS_RELEASED, |_, state: &State| !state.seen.release_undone),
        Property::always(NOBODY_RENEWS_WHAT_WAS_RELEASED, |_, state: &State| {
            !state.seen.release_undone_for_nobody
        }),
        Property::sometimes(PAUSED_OWNER_WAKES, paused_owner_wakes),
        Property::sometimes(STALE_OWNER_IS_FENCED, |_, state: &State| {
            some_write(state, |write| {
                let successor = state.lease.owner.map(|owner| owner.instance);
                write.transaction == Transaction::Fenced
                    && successor.is_some_and(|instance| instance != write.writer.instance)
            })
        }),
        Property::sometimes(TAKEOVER_WAITS, takeover_waits),
        Property::sometimes(ZOMBIE_COMMITS, |_, state: &State| {
            some_write(state, |write| write.caller == Caller::InTheDark && write.is_committed())
        }),
        Property::sometimes(ZOMBIE_OUTLIVES_ACQUIRE, |_, state: &State| {
            some_write(state, |write| {
                write.caller == Caller::InTheDark
                    && write.transaction.is_open()
                    && state.lease.owner == Some(write.writer)
                    && state.lease.token > write.token
            })
        }),
        Property::sometimes(UNKNOWN_IS_RESOLVED, |_, state: &State| {
            some_write(state, |write| write.caller == Caller::AnsweredAfterLoad)
        }),
        Property::sometimes(RENEWAL_DURING_WRITE, |model: &LeaseModel, state: &State| {
            can_renew(model, state) && some_write(state, Write::is_admitted)
        }),
        Property::sometimes(RENEWAL_REVIVES, |model: &LeaseModel, state: &State| {
            can_renew(model, state) && state.lease.standing == Standing::RanOut
        }),
        Property::sometimes(WRITTEN_BEHIND, |_, state: &State| {
            state.writes.iter().filter(|write| write.is_admitted()).count() > 1
        }),
        Property::sometimes(UNDONE_WITH_ANOTHER, |_, state: &State| {
            some_write(state, |write| {
                let is_undone = |after| state.write(after).transaction == Transaction::RolledBack;
                write.transaction == Transaction::RolledBack && write.after.is_some_and(is_undone)
            })
        }),
        Property::sometimes(TWO_INSTANCES_GRANT, |_, state: &State| {
            let answered = state.writes.iter().filter(|write| write.is_answered());
            let instances: HashSet<_> = answered.map(|write| write.writer.instance).collect();
            instances.len() > 1
        }),
    ]
}

fn every_write(state: &State, holds: impl Fn(&Write) -> bool) -> bool {
    state.writes.iter().all(holds)
}

fn some_write(state: &State, holds: impl Fn(&Write) -> bool) -> bool {
    state.writes.iter().any(holds)
}

/// Whether the writes picked are all of different nonces.
fn all_distinct(state: &State, picked: fn(&Write) -> bool) -> bool {
    let mut seen = crate::NonceSet::default();
    state.writes.iter().filter(|write| picked(write)).all(|write| {
        let before = seen;
        seen = seen.with(write.nonce);
        seen != before
    })
}

fn one_owner_writes(_: &LeaseModel, state: &State) -> bool {
    let mut admitted = state.writes.iter().filter(|write| write.is_admitted());
    let Some(first) = admitted.next() else {
        return true;
    };
    first.token == state.lease.token
        && admitted.all(|write| write.token == first.token && write.writer == first.writer)
}

fn owner_knows_all(_: &LeaseModel, state: &State) -> bool {
    state.instances.iter().all(|one| match one.phase {
        Phase::Warm { token, granted } if token == state.lease.token => granted == state.granted(),
        Phase::Writing { token, granted, hold, behind } if token == state.lease.token => {
            let under_way = [Some(hold), behind].into_iter().flatten().map(|hold| state.write(hold));
            let committed = under_way.filter(|write| write.is_committed());
            committed.fold(granted, |known, write| known.with(write.nonce)) == state.granted()
        }
        _ => true,
    })
}

fn paused_owner_wakes(_: &LeaseModel, state: &State) -> bool {
    state.places().any(|instance| {
        let believed = state.knowledge(instance).phase.token();
        believed.is_some_and(|token| token < state.lease.token)
            && state.lease.owner.is_some_and(|owner| owner.instance != instance)
    })
}

fn takeover_waits(model: &LeaseModel, state: &State) -> bool {
    let protocol = &model.protocol;
    state.lease_lock_waits(protocol, protocol.acquire_lock(true))
        && state.places().any(|instance| {
            state.knowledge(instance).phase == Phase::Cold
                && state.may_acquire(protocol, instance)
                && state.lease.owner.is_some_and(|owner| owner.instance != instance)
        })
}

/// Whether a renewal is under way that will find its row and its lock free.
fn can_renew(model: &LeaseModel, state: &State) -> bool {
    let protocol = &model.protocol;
    !state.lease_lock_waits(protocol, RowLock::NoKeyUpdate)
        && state.places().any(|instance| {
            let renewal = state.knowledge(instance).renewal;
            renewal.is_some_and(|token| state.renewal_matches(protocol, instance, token))
        })
}
