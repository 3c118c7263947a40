//! Early takeover by its conditions: a ledger that stalls makes nobody steal, and each condition left out is missed.

use model::membership::{Bounds, MembershipModel, Rules, Trap};

/// Two instances, and one of every accident, stalls twice.
const TWO: Bounds = Bounds { instances: 2, stalls: 2, pauses: 1, crashes: 1 };

/// Three instances and a ledger that stalls once.
const THREE: Bounds = Bounds { instances: 3, stalls: 1, pauses: 0, crashes: 0 };

/// Two instances and a ledger that stalls twice.
const STALLS: Bounds = Bounds { instances: 2, stalls: 2, pauses: 0, crashes: 0 };

/// Two instances that are stopped now and then.
const PAUSES: Bounds = Bounds { instances: 2, stalls: 0, pauses: 2, crashes: 0 };

/// Two instances, of which one dies.
const ONE_DEATH: Bounds = Bounds { instances: 2, stalls: 0, pauses: 0, crashes: 1 };

fn holds_in_every_run(bounds: Bounds) {
    crate::search::holds_in_every_run(MembershipModel { rules: Rules::sound(), bounds });
}

fn keeps_every_promise(bounds: Bounds) {
    crate::search::keeps_every_promise(MembershipModel { rules: Rules::sound(), bounds });
}

fn is_caught(trap: Trap, bounds: Bounds) {
    let shut = MembershipModel { rules: Rules::sound(), bounds };
    let open = MembershipModel { rules: trap.reopened(), bounds };
    crate::search::is_caught(&format!("{trap:?}"), trap.breaks(), shut, open);
}

#[test]
fn two_instances_are_just_to_each_other_through_every_accident() {
    holds_in_every_run(TWO);
}

#[test]
fn three_instances_are_just_to_each_other() {
    keeps_every_promise(THREE);
}

#[test]
fn every_promise_is_broken_by_some_trap() {
    let is_broken = |name| Trap::ALL.into_iter().any(|trap| trap.breaks().contains(&name));
    crate::search::every_promise_can_be_broken(model::membership::properties::all(), is_broken);
}

#[test]
fn a_thief_without_renewals_of_its_own_steals_from_the_living_after_a_stall() {
    is_caught(Trap::NoRenewalsOfOnesOwn, STALLS);
}

#[test]
fn a_renewal_that_a_stall_held_up_is_no_evidence() {
    is_caught(Trap::LateRenewalCounts, STALLS);
}

#[test]
fn a_thief_that_was_away_itself_steals_from_those_who_are_on_their_way_back() {
    is_caught(Trap::NoCalmAfterGap, STALLS);
}

#[test]
fn a_calm_that_counts_from_a_renewal_held_up_is_too_short() {
    is_caught(Trap::CalmFromSending, STALLS);
}

#[test]
fn evidence_from_before_a_stall_is_none() {
    is_caught(Trap::EvidenceIsKept, STALLS);
}

#[test]
fn an_instance_that_was_away_itself_takes_what_ran_out_of_those_who_are_on_their_way_back() {
    is_caught(Trap::TakesWhatRanOut, STALLS);
}

#[test]
fn a_takeover_by_memory_alone_steals_from_who_came_back() {
    is_caught(Trap::StatementTrustsMemory, PAUSES);
}

#[test]
fn a_lease_taken_before_its_end_is_taken_from_one_who_writes() {
    is_caught(Trap::TakesBeforeTheEnd, PAUSES);
}

#[test]
fn who_loses_its_keys_and_not_its_life_goes_on() {
    is_caught(Trap::KeysWithoutLife, PAUSES);
}

#[test]
fn a_lease_counted_from_the_answer_outlasts_itself() {
    is_caught(Trap::ClockFromAnswer, PAUSES);
}

#[test]
fn an_instance_without_a_clock_of_its_own_writes_when_it_is_dead() {
    is_caught(Trap::NoOwnClock, STALLS);
}

#[test]
fn evidence_that_counts_from_the_end_of_the_lease_comes_late() {
    is_caught(Trap::EvidenceOnlyAfterTheEnd, ONE_DEATH);
}
