//! What must always hold, and what must be possible at all. Each property looks at one moment only; what must never
//! live here is anything that changes one.

use stateright::Property;

use super::state::{Run, State, Statement};
use super::{LEASE, MembershipModel};

/// A ledger that stalls makes nobody steal: who does all that is due is never taken for dead.
pub const NO_THEFT_FROM_THE_LIVING: &str = "nobody who did what was due is taken for dead";
/// Nobody whose own lease ran out in a stall takes a key that ran out in it before its owner, if that lives, has renewed it.
/// No more is promised: one whose own lease outlasted the stall may take it ([`WHO_OUTLASTS_A_STALL_MAY_TAKE`]), and so does
/// an acquire that was sent before the stall and is carried out after it, which is not in this model.
pub const WHAT_RAN_OUT_IS_LEFT_TO_THE_LIVING: &str =
    "nobody who was cut off takes what ran out of those who did what was due";
/// A lease that does not move is left until it has run out: its owner may be one who stood still, and goes on until then.
pub const NO_LEASE_IS_TAKEN_BEFORE_ITS_END: &str = "no live lease is taken that nobody saw run out";
/// By its own clock an instance stops before anybody else can think that it should.
pub const WHO_WRITES_IS_ALIVE: &str = "whoever writes has a live lease of its own";
/// An instance whose keys were taken does not go on under its old id.
pub const THE_ROBBED_DO_NOT_GO_ON: &str = "nobody goes on under an id whose keys were taken";
/// Where nothing else disturbs, every survivor knows of a death one renewal after the lease ran out.
pub const THE_DEAD_ARE_SEEN_IN_TIME: &str = "a death is known one renewal after the lease ran out";

/// A dead instance's keys are taken before anything but its `instance:` lease ran out.
pub const THE_DEAD_ARE_TAKEN_FROM: &str = "a dead instance's keys are taken";
/// An instance that was stopped goes on, believing itself alive by nothing but its memory.
pub const THE_ROBBED_WAKE: &str = "an instance wakes up and its keys are taken";
/// It is there again under a new id, and alive.
pub const THE_ROBBED_COME_BACK: &str = "an instance lives on under a new id";
/// A stall outlasts every lease, and everybody goes on under the old id.
pub const A_STALL_IS_SURVIVED_BY_ALL: &str = "a stall outlasts every lease and all live on";
/// A key ran out in a stall that another instance's own lease outlasted: to that one there was no stall.
pub const WHO_OUTLASTS_A_STALL_MAY_TAKE: &str = "what ran out may be taken from one who did what was due";
/// A lease that ran out and that nobody took is about to be live again by its owner's renewal.
pub const RENEWAL_REVIVES: &str = "a renewal is about to revive a lease that ran out";

/// All properties, those that always hold first.
#[must_use]
pub fn all() -> Vec<Property<MembershipModel>> {
    vec![
        Property::always(NO_THEFT_FROM_THE_LIVING, |_, state: &State| !state.seen.theft_from_the_living),
        Property::always(WHAT_RAN_OUT_IS_LEFT_TO_THE_LIVING, |_, state: &State| {
            !state.seen.lapsed_taken_from_the_living
        }),
        Property::always(NO_LEASE_IS_TAKEN_BEFORE_ITS_END, |_, state: &State| {
            !state.seen.taken_before_its_end
        }),
        Property::always(WHO_WRITES_IS_ALIVE, |model: &MembershipModel, state: &State| {
            state.members.iter().all(|me| me.lives() || !me.writes(&model.rules))
        }),
        Property::always(THE_ROBBED_DO_NOT_GO_ON, |model: &MembershipModel, state: &State| {
            !state.members.iter().any(|me| me.keys_taken && me.writes(&model.rules))
        }),
        Property::always(THE_DEAD_ARE_SEEN_IN_TIME, dead_are_seen_in_time),
        Property::sometimes(THE_DEAD_ARE_TAKEN_FROM, |_, state: &State| {
            state.members.iter().any(|me| me.run == Run::Crashed && me.keys_taken)
        }),
        Property::sometimes(THE_ROBBED_WAKE, |_, state: &State| {
            state.members.iter().any(|me| me.run == Run::Running && me.keys_taken)
        }),
        Property::sometimes(THE_ROBBED_COME_BACK, |model: &MembershipModel, state: &State| {
            state.seen.new_id && state.members.iter().all(|me| me.lives() && me.writes(&model.rules))
        }),
        Property::sometimes(A_STALL_IS_SURVIVED_BY_ALL, |model: &MembershipModel, state: &State| {
            let unharmed = !state.seen.new_id && state.pauses == 0 && state.crashes == 0;
            state.seen.everybody_ran_out && unharmed && state.members.iter().all(|me| me.writes(&model.rules))
        }),
        Property::sometimes(WHO_OUTLASTS_A_STALL_MAY_TAKE, |model: &MembershipModel, state: &State| {
            let is_open = state.members.iter().any(|me| me.lapsed() && !me.excused);
            is_open && !state.stalled && state.members.iter().any(|me| me.may_take(&model.rules))
        }),
        Property::sometimes(RENEWAL_REVIVES, |_, state: &State| {
            !state.stalled
                && state.members.iter().any(|me| {
                    me.lease_left == 0 && !me.life_taken && matches!(me.statement, Statement::Sent { .. })
                })
        }),
    ]
}

/// The lease runs out [`LEASE`] ticks after the death at the latest, and within that tick every survivor renews itself
/// and looks.
fn dead_are_seen_in_time(model: &MembershipModel, state: &State) -> bool {
    let disturbed = state.stalls > 0 || state.pauses > 0;
    state.places().all(|dead| {
        let them = state.member(dead);
        disturbed
            || them.dead_for <= LEASE
            || them.life_taken
            || state.members.iter().all(|me| me.run != Run::Running || me.calls_dead(&model.rules, dead))
    })
}
