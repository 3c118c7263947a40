//! Idempotency keys: they count per caller, also where one batch decides for several callers.

use domain::Mode;
use domain::nonce::Outcome;
use domain::signer::{Answer, Command, Grants, Refusal};

use crate::world::{Call, Fate, Owner, World, grant, keyed_by, settle, shared_keys, stale};

fn granted(world: &World, number: usize) -> &Grants {
    match &world.outcomes[&number] {
        Ok(Answer::Granted(grants)) => grants,
        other => panic!("{other:?}"),
    }
}

fn numbers(world: &World, number: usize) -> Vec<u64> {
    granted(world, number).grants.iter().map(|grant| grant.nonce.get()).collect()
}

/// An owner that has answered `a`, and is asked by `a` again and by `b` for the first time at once, both under `k`.
fn asked_by_both(mode: Mode, of_b: usize) -> (World, usize, usize, usize) {
    let mut world = World::new(mode, 1);
    let first = world.ask(keyed_by("a", 1, "k"));
    world.serve();
    let again = world.apply(keyed_by("a", 1, "k"));
    let other = world.apply(keyed_by("b", of_b, "k"));
    world.proceed();
    (world, first, again, other)
}

#[test]
fn one_callers_grant_is_never_answered_to_another_caller_under_the_same_key() {
    for mode in Mode::ALL {
        for of_b in [1, 2] {
            let (mut world, first, again, other) = asked_by_both(mode, of_b);
            world.settle_down();
            assert_eq!(granted(&world, again).grants[0].hold, granted(&world, first).grants[0].hold);
            let expected: Vec<u64> = (1..=of_b as u64).collect();
            assert_eq!(numbers(&world, other), expected, "{mode:?}: a body of its own is no other body");
            // Each has its own again.
            let (of_a, of_b) = (world.ask(keyed_by("a", 1, "k")), world.ask(keyed_by("b", of_b, "k")));
            world.settle_down();
            assert_eq!((numbers(&world, of_a), numbers(&world, of_b)), (vec![0], expected));
        }
    }
}

#[test]
fn one_callers_stale_grant_refuses_no_other_caller() {
    for mode in Mode::ALL {
        for outcome in [Outcome::Consumed(None), Outcome::Unknown] {
            let mut world = World::new(mode, 1);
            world.ask(keyed_by("a", 1, "k"));
            world.serve();
            let holds = world.granted.clone();
            world.ask(settle(&holds, &outcome));
            world.serve();
            let again = world.apply(keyed_by("a", 1, "k"));
            let other = world.apply(keyed_by("b", 1, "k"));
            world.proceed();
            world.settle_down();
            assert_eq!(world.outcomes[&again], Err(stale(&holds)), "{mode:?} {outcome:?}");
            assert_eq!(numbers(&world, other), [1], "{mode:?} {outcome:?}");
        }
    }
}

#[test]
fn two_callers_with_one_key_share_a_commit_and_a_lost_answer_does_not_confuse_them() {
    for mode in Mode::ALL {
        for fate in [Fate::Well, Fate::DoneUnheard, Fate::NotDone] {
            let mut world = World::new(mode, 1);
            let (of_a, of_b) = (world.apply(keyed_by("a", 1, "k")), world.apply(keyed_by("b", 1, "k")));
            world.proceed();
            while !matches!(world.calls[..], [Call::Commit { .. }]) {
                world.complete(0, Fate::Well);
            }
            let [Call::Commit { batch, .. }] = &world.calls[..] else { unreachable!() };
            assert_eq!((batch.keys.len(), batch.changes.len()), (2, 2), "both are new, and neither waits");
            world.complete(0, fate);
            world.settle_down();
            assert_eq!(
                (numbers(&world, of_a), numbers(&world, of_b)),
                (vec![0], vec![1]),
                "{mode:?} {fate:?}"
            );
            assert_eq!(world.granted.len(), 2);
        }
    }
}

#[test]
fn grants_that_come_twice_at_once_are_committed_together_all_the_same() {
    for fate in [Fate::Well, Fate::DoneUnheard, Fate::NotDone] {
        let mut world = World::new(Mode::WorkerQueue, 1);
        let twice = ["k", "l", "m"]
            .map(|key| [world.apply(keyed_by("a", 1, key)), world.apply(keyed_by("a", 1, key))]);
        world.proceed();
        while !matches!(world.calls[..], [Call::Commit { .. }]) {
            world.complete(0, Fate::Well);
        }
        let [Call::Commit { batch, .. }] = &world.calls[..] else { unreachable!() };
        assert_eq!((batch.keys.len(), batch.changes.len()), (3, 3), "no repetition keeps others waiting");
        world.complete(0, fate);
        world.settle_down();
        for [first, again] in twice {
            let hold = granted(&world, first).grants[0].hold;
            assert_eq!(granted(&world, again).grants[0].hold, hold, "{fate:?}");
        }
        assert_eq!(world.granted.len(), 3);
    }
}

#[test]
fn a_caller_does_not_wait_for_the_commit_of_another_callers_key() {
    let mut world = World::new(Mode::WorkerQueue, 2);
    world.ask(grant(1));
    world.serve();
    // What is overdue was looked for.
    world.ask(Command::Sweep);
    world.serve();
    world.ask(keyed_by("a", 1, "k"));
    world.complete(0, Fate::Well);
    assert!(matches!(world.calls[..], [Call::Commit { .. }]));
    let other = world.ask(keyed_by("b", 1, "k"));
    assert!(matches!(world.calls[..], [Call::Commit { .. }, Call::Facts { .. }]), "{:?}", world.calls);
    world.settle_down();
    assert_eq!(numbers(&world, other), [2]);
}

fn share(world: &mut World, is_shared: bool) -> usize {
    world.ask(shared_keys(is_shared))
}

/// A signer whose callers share their keys.
fn shared(mode: Mode) -> World {
    let mut world = World::new(mode, 1);
    share(&mut world, true);
    world.settle_down();
    world
}

#[test]
fn callers_share_keys_where_the_policy_says_so() {
    for mode in Mode::ALL {
        for fate in [Fate::Well, Fate::DoneUnheard, Fate::NotDone] {
            let mut world = shared(mode);
            // Two at once, and all others later.
            let mut same = vec![world.apply(keyed_by("a", 1, "k")), world.apply(keyed_by("b", 1, "k"))];
            world.proceed();
            while !matches!(world.calls[..], [Call::Commit { .. }]) {
                world.complete(0, Fate::Well);
            }
            world.complete(0, fate);
            world.settle_down();
            same.extend(["a", "c", ""].map(|caller| world.ask(keyed_by(caller, 1, "k"))));
            let other_body = world.ask(keyed_by("c", 2, "k"));
            let other_key = world.ask(keyed_by("c", 1, "l"));
            world.settle_down();
            let hold = world.granted[0].1;
            for number in same {
                let grants = &granted(&world, number).grants;
                assert_eq!((grants.len(), grants[0].hold), (1, hold), "{mode:?} {fate:?}");
            }
            assert_eq!(world.outcomes[&other_body], Err(Refusal::KeyReused));
            assert_eq!(numbers(&world, other_key), [1]);
        }
    }
}

#[test]
fn a_grant_that_moved_on_is_stale_for_all_who_share_its_key() {
    let mut world = shared(Mode::WorkerQueue);
    world.ask(keyed_by("a", 1, "k"));
    world.settle_down();
    let holds = world.granted.clone();
    world.ask(settle(&holds, &Outcome::NeverSent));
    world.settle_down();
    let (again, other) = (world.ask(keyed_by("a", 1, "k")), world.ask(keyed_by("b", 1, "k")));
    world.settle_down();
    assert_eq!(world.outcomes[&again], Err(stale(&holds)));
    assert_eq!(world.outcomes[&other], Err(stale(&holds)));
}

#[test]
fn keys_from_before_keys_were_shared_answer_their_own_callers() {
    for mode in Mode::ALL {
        let mut world = World::new(mode, 1);
        let before = [world.ask(keyed_by("a", 1, "k")), world.ask(keyed_by("b", 1, "k"))];
        world.settle_down();
        // What is asked beside the change counts as asked after it.
        let change = world.apply(shared_keys(true));
        let beside = [world.apply(keyed_by("c", 1, "k")), world.apply(keyed_by("d", 1, "k"))];
        world.proceed();
        let after = [world.ask(keyed_by("a", 1, "k")), world.ask(keyed_by("b", 1, "k"))];
        world.settle_down();
        assert!(matches!(&world.outcomes[&change], Ok(Answer::PolicySet(policy)) if policy.shared_keys));
        assert_eq!(before.map(|number| numbers(&world, number)), [[0], [1]], "{mode:?}");
        assert_eq!(after.map(|number| numbers(&world, number)), [[0], [1]]);
        assert_eq!(beside.map(|number| numbers(&world, number)), [[2], [2]]);
    }
}

#[test]
fn a_key_that_was_shared_answers_the_caller_that_used_it_first_when_keys_are_shared_no_more() {
    for mode in Mode::ALL {
        let mut world = shared(mode);
        let shared = [world.ask(keyed_by("a", 1, "k")), world.ask(keyed_by("b", 1, "k"))];
        world.settle_down();
        share(&mut world, false);
        let apart = [world.ask(keyed_by("a", 1, "k")), world.ask(keyed_by("b", 1, "k"))];
        world.settle_down();
        assert_eq!(shared.map(|number| numbers(&world, number)), [[0], [0]], "{mode:?}");
        assert_eq!(apart.map(|number| numbers(&world, number)), [[0], [1]]);
    }
}

#[test]
fn a_signer_that_recovers_answers_nothing_that_was_granted_before() {
    for mode in Mode::ALL {
        let mut world = World::new(mode, 1);
        world.ask(keyed_by("a", 1, "k"));
        world.settle_down();
        // The ledger is one from before the nonce was settled and its transaction was mined.
        world.is_recovering = true;
        let (again, other_body) = (world.ask(keyed_by("a", 1, "k")), world.ask(keyed_by("a", 2, "k")));
        world.settle_down();
        assert_eq!(world.outcomes[&again], Err(Refusal::Recovering), "{mode:?}");
        assert_eq!(world.outcomes[&other_body], Err(Refusal::Recovering), "{mode:?}");
        world.is_recovering = false;
        let confirmed = world.ask(keyed_by("a", 1, "k"));
        world.settle_down();
        assert_eq!(numbers(&world, confirmed), [0]);
    }
}

#[test]
fn nothing_is_repeated_under_a_lease_that_a_recovery_has_ended_unheard() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.ask(keyed_by("a", 1, "k"));
    world.serve();
    // By the owner's own clock its lease lasts.
    (world.owner, world.token) = (Owner::Nobody, world.token + 1);
    world.is_recovering = true;
    let again = world.ask(keyed_by("a", 1, "k"));
    world.settle_down();
    assert_eq!(world.outcomes[&again], Err(Refusal::Recovering));
}

#[test]
fn a_grant_that_may_have_been_written_before_a_recovery_is_neither_answered_nor_denied() {
    for key in [grant(1), keyed_by("a", 1, "k")] {
        let mut world = World::new(Mode::WorkerQueue, 1);
        let number = world.ask(key);
        while !matches!(world.calls[..], [Call::Commit { .. }]) {
            world.complete(0, Fate::Well);
        }
        world.complete(0, Fate::DoneUnheard);
        world.is_recovering = true;
        world.settle_down();
        assert_eq!(world.outcomes[&number], Err(Refusal::LedgerUnavailable));
    }
}
