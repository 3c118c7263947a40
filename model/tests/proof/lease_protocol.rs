//! The protocol holds in every run within the bounds, and each trap, reopened, breaks it. What must never live here is
//! a limit on depth, states or time: a search that did not finish proves nothing.

use model::{Bounds, LeaseModel, Protocol, Trap};

/// Two instances, and one of every accident.
const ACCIDENTS: Bounds = Bounds {
    instances: 2,
    acquisitions: 3,
    writes: 3,
    lost_connections: 1,
    unheard_acquires: 1,
    crashes: 1,
    new_identities: 0,
};

/// Two instances that go on under new identities, and one lost connection.
const NEW_IDENTITIES: Bounds = Bounds { unheard_acquires: 0, crashes: 0, new_identities: 2, ..ACCIDENTS };

/// Two instances, and a lease that goes there and back again.
const THERE_AND_BACK: Bounds = Bounds { acquisitions: 4, unheard_acquires: 0, crashes: 0, ..ACCIDENTS };

/// Three instances, each of which can be owner once.
const THREE: Bounds = Bounds { instances: 3, unheard_acquires: 0, crashes: 0, ..ACCIDENTS };

/// Two instances, of which the first may pause and the second take over. Nothing else goes wrong.
const ONE_TAKEOVER: Bounds = Bounds {
    instances: 2,
    acquisitions: 2,
    writes: 2,
    lost_connections: 0,
    unheard_acquires: 0,
    crashes: 0,
    new_identities: 0,
};

/// The same, and the first comes back under a new identity.
const ROBBED_AND_BACK: Bounds = Bounds { acquisitions: 3, new_identities: 1, ..ONE_TAKEOVER };

/// One instance that has nobody to fear but itself, and loses one connection.
const ALONE: Bounds = Bounds { instances: 1, lost_connections: 1, ..ONE_TAKEOVER };

fn holds_in_every_run(bounds: Bounds) {
    crate::search::holds_in_every_run(LeaseModel { protocol: Protocol::sound(), bounds });
}

fn is_caught(trap: Trap, bounds: Bounds) {
    let shut = LeaseModel { protocol: Protocol::sound(), bounds };
    let open = LeaseModel { protocol: trap.reopened(), bounds };
    crate::search::is_caught(&format!("{trap:?}"), trap.breaks(), shut, open);
}

#[test]
fn two_instances_keep_every_promise_through_every_accident() {
    holds_in_every_run(ACCIDENTS);
}

#[test]
fn two_instances_keep_every_promise_while_the_lease_goes_there_and_back() {
    holds_in_every_run(THERE_AND_BACK);
}

#[test]
fn two_instances_keep_every_promise_under_new_identities() {
    holds_in_every_run(NEW_IDENTITIES);
}

#[test]
fn three_instances_keep_every_promise() {
    holds_in_every_run(THREE);
}

#[test]
fn every_promise_is_broken_by_some_trap() {
    let is_broken = |name| Trap::ALL.into_iter().any(|trap| trap.breaks().contains(&name));
    crate::search::every_promise_can_be_broken(model::properties::all(), is_broken);
}

#[test]
fn a_token_on_the_data_row_only_is_no_fence() {
    is_caught(Trap::TokenOnDataRowOnly, ONE_TAKEOVER);
}

#[test]
fn a_lease_compared_but_not_locked_is_no_fence() {
    is_caught(Trap::LeaseComparedNotLocked, ONE_TAKEOVER);
}

#[test]
fn a_lock_for_share_holds_up_renewals() {
    is_caught(Trap::LockBlocksRenewal, ALONE);
}

#[test]
fn a_key_share_lock_without_the_unique_key_lets_a_takeover_pass() {
    is_caught(Trap::LockLetsTakeoverPass, ONE_TAKEOVER);
}

#[test]
fn acquiring_ones_own_lease_at_the_same_token_passes_ones_own_zombie() {
    is_caught(Trap::OwnAcquireKeepsToken, ALONE);
}

#[test]
fn a_load_without_an_acquire_misses_ones_own_zombie() {
    is_caught(Trap::LoadWithoutAcquireAfterUnknown, ALONE);
}

#[test]
fn an_unknown_commit_is_not_a_failure() {
    is_caught(Trap::UnknownTakenForFailed, ALONE);
}

#[test]
fn an_unknown_commit_is_not_a_success() {
    is_caught(Trap::UnknownTakenForDone, ALONE);
}

#[test]
fn a_write_that_does_not_wait_for_the_one_that_it_follows_leaves_a_gap() {
    is_caught(Trap::FollowerDoesNotWait, ALONE);
}

#[test]
fn a_renewal_by_owner_revives_a_released_lease() {
    is_caught(Trap::RenewalByOwner, ALONE);
}

#[test]
fn a_release_that_keeps_the_owner_is_undone_by_a_late_renewal() {
    is_caught(Trap::ReleaseKeepsOwner, ALONE);
}

#[test]
fn acquiring_and_loading_in_one_statement_misses_what_the_acquire_waited_for() {
    is_caught(Trap::LoadInAcquireStatement, ONE_TAKEOVER);
}

#[test]
fn a_stable_owner_name_lets_a_process_write_with_its_predecessors_token() {
    is_caught(Trap::StableOwnerName, ONE_TAKEOVER);
}

#[test]
fn a_takeover_that_leaves_the_token_hands_the_fence_over_too() {
    is_caught(Trap::TakeoverKeepsToken, ONE_TAKEOVER);
}

#[test]
fn a_new_identity_that_keeps_its_actors_memory_misses_what_others_did() {
    is_caught(Trap::NewIdentityRemembers, ROBBED_AND_BACK);
}
