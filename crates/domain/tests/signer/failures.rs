//! What becomes of commands whose batch, lease or ledger fails: nothing is guessed (I9).

use std::time::Duration;

use domain::limits::{BASIC_ROUND_COMMANDS_MAX, EXPIRIES_MAX};
use domain::nonce::{OnExpiry, Outcome, Policy, PolicyPatch, Row, Status};
use domain::signer::{Answer, Command, Phase, Refusal};
use domain::{AuditEntry, HoldId, Mode, Timestamp};

use crate::world::{
    Call, Fate, Owner, REQUEST, World, grant, keyed, nonce, on_expiry, resolve, settle, short, stale, window,
};

fn granted(world: &World, number: usize) -> Vec<u64> {
    match &world.outcomes[&number] {
        Ok(Answer::Granted(grants)) => grants.grants.iter().map(|grant| grant.nonce.get()).collect(),
        other => panic!("{other:?}"),
    }
}

/// Until a commit is on its way.
fn until_commit(world: &mut World) {
    while !world.calls.iter().any(|call| matches!(call, Call::Commit { .. })) {
        if world.calls.is_empty() {
            let at = world.wake_at.expect("something is to happen");
            world.pass(at.saturating_duration_since(world.now));
        } else {
            world.complete(0, Fate::Well);
        }
    }
}

#[test]
fn an_unknown_commit_is_followed_by_a_new_acquire_and_found_by_its_hold_ids() {
    for fate in [Fate::DoneUnheard, Fate::NotDone] {
        let mut world = World::new(Mode::WorkerQueue, 1);
        let number = world.ask(grant(3));
        until_commit(&mut world);
        let token = world.token;
        world.complete(0, fate);
        assert!(!world.outcomes.contains_key(&number), "nothing is guessed");
        let at = world.wake_at.expect("a pause before the next try");
        world.pass(at.saturating_duration_since(world.now));
        assert!(matches!(world.calls[..], [Call::Acquire]));
        world.settle_down();
        assert_eq!(granted(&world, number), [0, 1, 2], "{fate:?}");
        assert_eq!((world.granted.len(), world.counted), (3, 3), "granted once, and counted");
        assert!(world.token > token);
    }
}

#[test]
fn an_unknown_commit_of_one_waits_for_the_other_that_is_under_way() {
    let mut world = World::new(Mode::WorkerQueue, 2);
    world.ask(grant(2));
    world.serve();
    // What is overdue was looked for.
    world.ask(Command::Sweep);
    world.serve();
    let holds = world.granted.clone();
    let first = world.ask(settle(&holds[..1], &Outcome::Unknown));
    world.complete(0, Fate::Well);
    let second = world.ask(settle(&holds[1..], &Outcome::NeverSent));
    world.complete(1, Fate::Well);
    assert_eq!(world.state.commits_in_flight(), 2);
    world.complete(0, Fate::DoneUnheard);
    world.pass(Duration::from_secs(1));
    assert!(matches!(world.calls[..], [Call::Commit { .. }]), "no acquire before its verdict");
    world.complete(0, Fate::Well);
    world.settle_down();
    assert_eq!(world.outcomes[&first], Ok(Answer::Settled(vec![Ok(Status::Quarantined)])));
    assert_eq!(world.outcomes[&second], Ok(Answer::Settled(vec![Ok(Status::Released)])));
}

#[test]
fn a_fenced_owner_refuses_drops_what_it_knew_and_begins_anew() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    let number = world.ask(grant(1));
    until_commit(&mut world);
    world.steal();
    world.complete(0, Fate::Well);
    assert_eq!(world.outcomes[&number], Err(Refusal::Fenced));
    assert!(matches!(world.calls[..], [Call::Reclaim]));
    world.owner = Owner::Nobody;
    world.settle_down();
    let again = world.ask(grant(1));
    world.settle_down();
    assert_eq!(granted(&world, again), [0]);
}

#[test]
fn a_command_that_may_have_been_written_is_never_refused_as_if_it_was_not() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    let number = world.ask(grant(1));
    until_commit(&mut world);
    world.complete(0, Fate::DoneUnheard);
    world.steal();
    world.settle_down();
    assert_eq!(world.outcomes[&number], Err(Refusal::LedgerUnavailable));
    // The next one has tried nothing yet.
    let next = world.ask(grant(1));
    world.settle_down();
    assert!(matches!(world.outcomes[&next], Err(Refusal::NotOwner { .. })));
}

#[test]
fn a_ledger_that_stays_away_is_reported_at_the_deadline() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    let number = world.ask(grant(1));
    let begun = world.now;
    while !world.outcomes.contains_key(&number) {
        if world.calls.is_empty() {
            let at = world.wake_at.expect("it tries again");
            world.pass(at.saturating_duration_since(world.now));
        } else {
            world.complete(0, Fate::NotDone);
        }
    }
    assert_eq!(world.outcomes[&number], Err(Refusal::LedgerUnavailable));
    assert_eq!(world.now - begun, REQUEST);
    world.settle_down();
    assert_eq!(world.reclaims, 1, "the lease may be ours though no acquire was answered");
}

#[test]
fn a_lease_that_another_has_is_waited_for_in_basic_mode_and_named_at_once_in_worker_queue_mode() {
    for mode in Mode::ALL {
        let mut world = World::new(mode, 1);
        world.steal();
        let (begun, number) = (world.now, world.ask(grant(1)));
        world.settle_down();
        match (mode, &world.outcomes[&number]) {
            (Mode::Basic, Err(Refusal::LeaseHeld { .. })) => {
                assert!(world.now - begun >= crate::world::PATIENCE);
            }
            (Mode::WorkerQueue, Err(Refusal::NotOwner { .. })) => assert_eq!(world.now, begun),
            (_, other) => panic!("{mode:?}: {other:?}"),
        }
    }
}

#[test]
fn a_lease_that_ran_out_under_another_is_waited_for_until_it_may_be_taken() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    (world.owner, world.is_lapsed) = (Owner::Other, true);
    let number = world.ask(grant(1));
    world.complete(0, Fate::Well);
    assert!(world.outcomes.is_empty() && world.calls.is_empty(), "its owner may live, and nobody knows");
    let at = world.wake_at.expect("it is looked at again");
    world.pass(at.saturating_duration_since(world.now));
    assert!(matches!(world.calls[..], [Call::Acquire]));
    world.owner = Owner::Nobody;
    world.settle_down();
    assert_eq!(granted(&world, number), [0]);
}

#[test]
fn a_taken_key_is_answered_with_what_it_was_kept_for() {
    // Two states of one signer, as on two instances: the second commits the key in between.
    let mut world = World::new(Mode::WorkerQueue, 1);
    let first = world.ask(keyed(2, "k"));
    world.settle_down();
    let again = world.ask(keyed(2, "k"));
    let other = world.ask(keyed(3, "k"));
    world.settle_down();
    assert_eq!(granted(&world, first), granted(&world, again));
    assert_eq!(world.outcomes[&other], Err(Refusal::KeyReused));
    let holds = world.granted.clone();
    world.ask(settle(&holds[..1], &Outcome::NeverSent));
    world.settle_down();
    let late = world.ask(keyed(2, "k"));
    world.settle_down();
    assert_eq!(world.outcomes[&late], Err(stale(&holds)));
}

#[test]
fn a_batch_whose_lease_row_is_locked_is_sent_three_times_and_then_decided_under_a_new_lease() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    let number = world.ask(grant(1));
    until_commit(&mut world);
    let token = world.token;
    for _ in 0..3 {
        assert!(matches!(world.calls[..], [Call::Commit { .. }]));
        world.complete(0, Fate::Locked);
        if let Some(at) = world.wake_at {
            world.pass(at.saturating_duration_since(world.now));
        }
    }
    assert!(matches!(world.calls[..], [Call::Acquire]));
    world.settle_down();
    assert_eq!(granted(&world, number), [0]);
    assert!(world.token > token);
}

#[test]
fn a_defect_of_the_ledger_is_an_internal_error_and_ends_trust() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    let number = world.ask(grant(1));
    until_commit(&mut world);
    world.complete(0, Fate::Defect);
    assert_eq!(world.outcomes[&number], Err(Refusal::Internal));
    let next = world.ask(grant(1));
    assert!(world.calls.iter().all(|call| !matches!(call, Call::Commit { .. })));
    world.settle_down();
    assert_eq!(granted(&world, next), [0]);
}

#[test]
fn a_batch_that_the_ledger_refuses_with_entries_of_the_audit_is_decided_again_without_them() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    let before = world.apply(grant(1));
    let entry = Box::new(AuditEntry::new("ops", "set_policy", "signer:s"));
    let change = world.apply_audited(window(Some(9)), Some(entry));
    let after = world.apply(keyed(1, "k"));
    world.proceed();
    until_commit(&mut world);
    let Some(Call::Commit { batch, .. }) = world.calls.first() else { panic!("{:?}", world.calls) };
    assert_eq!((batch.audit.len(), batch.changes.len()), (1, 1), "both are in one batch");
    world.complete(0, Fate::Defect);
    assert_eq!(world.outcomes[&change], Err(Refusal::Internal));
    assert!(!world.outcomes.contains_key(&before), "it is decided again");
    world.settle_down();
    assert_eq!((granted(&world, before), granted(&world, after)), (vec![0], vec![1]));
    assert_eq!(world.policy.as_ref().and_then(|policy| policy.max_in_flight), None);
    // Without entries there is nothing to leave out: it would end the same way again.
    let next = world.ask(grant(1));
    until_commit(&mut world);
    world.complete(0, Fate::Defect);
    assert_eq!(world.outcomes[&next], Err(Refusal::Internal));
}

#[test]
fn nothing_is_sent_past_the_leases_end_nor_by_an_instance_that_cannot_show_that_it_lives() {
    for is_alive in [true, false] {
        let mut world = World::new(Mode::WorkerQueue, 1);
        world.ask(grant(1));
        world.serve();
        world.is_alive = is_alive;
        world.lease_until = world.lease_until.filter(|_| !is_alive);
        let number = world.ask(grant(1));
        assert!(world.calls.iter().all(|call| !matches!(call, Call::Commit { .. })));
        world.is_alive = true;
        world.settle_down();
        assert_eq!(granted(&world, number), [1]);
    }
}

#[test]
fn a_lost_lease_ends_an_idle_owner() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.ask(grant(1));
    world.serve();
    assert!(!world.stopped);
    world.steal();
    world.lease_until = None;
    world.wake();
    world.serve();
    assert!(world.stopped, "at once, and not when its idle time is over");
    assert_eq!(world.owner, Owner::Other, "its release by the old token does no harm");
}

#[test]
fn an_idle_owner_keeps_its_lease_for_a_while_in_worker_queue_mode_and_not_at_all_in_basic() {
    for mode in Mode::ALL {
        let mut world = World::new(mode, 1);
        world.ask(grant(1));
        world.serve();
        let keeps = mode == Mode::WorkerQueue;
        assert_eq!((world.stopped, world.owner == Owner::Me), (!keeps, keeps), "{mode:?}");
        world.pass(Duration::from_secs(1));
        world.serve();
        assert!(world.stopped && world.owner == Owner::Nobody);
    }
}

#[test]
fn a_hand_off_waits_for_the_round_under_way_and_names_the_new_owner_to_what_waits() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    let first = world.ask(grant(1));
    until_commit(&mut world);
    let second = world.ask(grant(1));
    world.hand_off(Some("other-1"));
    world.settle_down();
    assert_eq!(granted(&world, first), [0]);
    let Err(Refusal::NotOwner { owner, .. }) = &world.outcomes[&second] else {
        panic!("{:?}", world.outcomes[&second])
    };
    assert_eq!(owner.as_str(), "other-1");
    assert_eq!((world.owner, world.rows.len()), (Owner::Nobody, 1));
}

#[test]
fn a_stopping_owner_serves_what_comes_and_keeps_nothing_and_one_that_is_over_refuses() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.ask(grant(1));
    world.serve();
    world.phase = Phase::Stopping;
    world.wake();
    world.serve();
    assert!(world.stopped);
    let number = world.ask(grant(1));
    world.serve();
    assert_eq!(granted(&world, number), [1]);
    assert!(world.stopped);
    let under_way = world.ask(grant(1));
    until_commit(&mut world);
    let waiting = world.ask(grant(1));
    world.phase = Phase::Over;
    world.wake();
    assert_eq!(world.outcomes[&waiting], Err(Refusal::Fenced));
    world.settle_down();
    assert_eq!(granted(&world, under_way), [2], "what is written is answered");
    assert_eq!(world.owner, Owner::Nobody);
}

#[test]
fn a_full_turn_in_basic_mode_ends_with_a_pause() {
    let mut world = World::new(Mode::Basic, 1);
    let first: Vec<_> = (0..BASIC_ROUND_COMMANDS_MAX).map(|_| world.ask(grant(1))).collect();
    let next = world.ask(grant(1));
    until_commit(&mut world);
    world.pass(Duration::from_millis(100));
    while !world.calls.is_empty() {
        world.complete(0, Fate::Well);
    }
    assert_eq!(world.owner, Owner::Nobody);
    for (nonce, number) in first.into_iter().enumerate() {
        assert_eq!(granted(&world, number), [nonce as u64], "those that share a commit are all answered");
    }
    assert!(!world.outcomes.contains_key(&next) && !world.stopped);
    world.settle_down();
    assert_eq!(granted(&world, next), [BASIC_ROUND_COMMANDS_MAX as u64]);
}

#[test]
fn a_caller_that_left_gets_nothing_granted() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    let first = world.apply(grant(1));
    let second = world.apply(grant(5));
    world.commands[second].1.set(true);
    world.proceed();
    world.settle_down();
    assert_eq!(granted(&world, first), [0]);
    assert!(!world.outcomes.contains_key(&second));
    assert_eq!(world.rows.len(), 1);
}

#[test]
fn a_window_is_counted_anew_before_the_next_grant_and_no_refusal_rests_on_what_is_not_committed() {
    let mut world = World::new(Mode::WorkerQueue, 2);
    let policy = world.apply(window(Some(2)));
    let first = world.apply(grant(2));
    let second = world.apply(grant(1));
    world.proceed();
    world.settle_down();
    assert!(matches!(world.outcomes[&policy], Ok(Answer::PolicySet(_))));
    assert_eq!(granted(&world, first), [0, 1]);
    assert_eq!(
        world.outcomes[&second],
        Err(Refusal::WindowFull { in_flight: 2, max_in_flight: 2, asked: 1 })
    );
}

#[test]
fn what_is_quarantined_in_one_round_with_a_grant_counts_for_its_window() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.ask(window(Some(1)));
    world.serve();
    world.ask(grant(1));
    world.serve();
    let hold = world.granted.clone();
    // It runs out, and its transaction may be known to the chain after all.
    world.pass(Duration::from_millis(crate::world::HOLD_MS));
    world.ask(Command::Sweep);
    world.settle_down();
    assert!(world.rows.values().all(|row| row.status == Status::Released));
    let late = world.apply(settle(&hold, &Outcome::Unknown));
    let next = world.apply(grant(1));
    world.proceed();
    world.settle_down();
    assert!(world.outcomes[&late].is_ok(), "{:?}", world.outcomes[&late]);
    let full = Refusal::WindowFull { in_flight: 1, max_in_flight: 1, asked: 1 };
    assert_eq!(world.outcomes[&next], Err(full));
}

#[test]
fn a_request_that_comes_after_the_end_is_refused_and_ends_the_actor_that_it_began() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.phase = Phase::Over;
    let late = world.apply(grant(1));
    assert_eq!(world.outcomes[&late], Err(Refusal::Fenced));
    assert!(world.stopped);
}

#[test]
fn a_sweep_expires_what_is_overdue() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.ask(grant(3));
    world.settle_down();
    world.pass(Duration::from_millis(crate::world::HOLD_MS));
    let sweep = world.ask(Command::Sweep);
    world.settle_down();
    assert_eq!(world.outcomes[&sweep], Ok(Answer::Swept));
    assert!(world.rows.values().all(|row| row.status == Status::Released));
}

/// A signer whose window is filled by three times as many holds as one commit expires, all of which ran out.
fn full_of_overdue() -> World {
    let mut world = World::new(Mode::WorkerQueue, 2);
    world.ask(window(Some(3 * EXPIRIES_MAX as u64)));
    world.serve();
    for _ in 0..3 {
        world.ask(grant(EXPIRIES_MAX));
        world.serve();
    }
    world.pass(Duration::from_millis(crate::world::HOLD_MS));
    world.settle_down();
    world
}

#[test]
fn a_window_is_not_full_of_overdue_holds_however_many_they_are() {
    let mut world = full_of_overdue();
    // In the same moment.
    for first in 0..3 {
        let number = world.ask(grant(EXPIRIES_MAX));
        world.serve();
        let first = (first * EXPIRIES_MAX) as u64;
        assert!(granted(&world, number).into_iter().eq(first..first + EXPIRIES_MAX as u64));
    }
    let number = world.ask(grant(1));
    world.serve();
    assert!(matches!(world.outcomes[&number], Err(Refusal::WindowFull { .. })), "by holds that run");
}

#[test]
fn a_hold_ends_under_the_policy_that_was_in_force_when_it_ran_out() {
    for (before, after, wanted) in [
        (OnExpiry::Quarantine, OnExpiry::Release, Status::Quarantined),
        (OnExpiry::Release, OnExpiry::Quarantine, Status::Released),
    ] {
        let mut world = World::new(Mode::WorkerQueue, 1);
        for command in [on_expiry(before), short(300), short(800)] {
            world.ask(command);
            world.serve();
        }
        // This look finds the first hold, and the next look is a second away.
        world.pass(Duration::from_millis(450));
        world.ask(grant(1));
        world.serve();
        world.pass(Duration::from_millis(600));
        world.ask(on_expiry(after));
        world.settle_down();
        assert_eq!(world.rows[&nonce(1)].status, wanted);
    }
}

#[test]
fn more_holds_than_one_commit_expires_end_under_the_policy_of_their_time() {
    let mut world = full_of_overdue();
    world.ask(on_expiry(OnExpiry::Quarantine));
    // Each commit takes longer than a turn.
    while !world.calls.is_empty() {
        world.pass(Duration::from_millis(150));
        world.complete(0, Fate::Well);
    }
    world.settle_down();
    assert!(world.rows.values().all(|row| row.status == Status::Released));
}

#[test]
fn what_comes_with_a_policy_is_not_begun_after_its_deadline_however_much_has_run_out() {
    let mut world = full_of_overdue();
    let late = [on_expiry(OnExpiry::Quarantine), grant(1)].map(|command| world.ask(command));
    while !world.calls.is_empty() {
        world.pass(REQUEST);
        world.complete(0, Fate::Well);
    }
    world.settle_down();
    for number in late {
        assert!(world.outcomes[&number].is_err(), "{:?}", world.outcomes[&number]);
    }
}

#[test]
fn holds_that_have_not_run_out_by_the_own_clock_are_not_read_in_each_round() {
    let mut world = full_of_overdue();
    // By the owner's own clock none has run out.
    world.kept = world.rows.keys().copied().collect();
    world.ask(Command::Sweep);
    world.serve();
    world.ask(grant(1));
    assert!(!world.calls.iter().any(|call| matches!(call, Call::Overdue { .. })), "{:?}", world.calls);
}

#[test]
fn a_hold_ends_in_time_behind_any_number_of_holds_that_are_kept() {
    for sweeps in [true, false] {
        let mut world = World::new(Mode::WorkerQueue, 1);
        for _ in 0..12 {
            world.ask(grant(EXPIRIES_MAX));
            world.serve();
            world.pass(Duration::from_millis(1));
        }
        // By the owner's own clock these have not run out.
        world.kept = world.rows.keys().copied().collect();
        world.pass(Duration::from_millis(crate::world::HOLD_MS));
        world.serve();
        let number = world.ask(short(500));
        world.serve();
        let [last] = granted(&world, number)[..] else { panic!("one was granted") };
        for _ in 0..15 {
            world.pass(Duration::from_millis(100));
            world.ask(if sweeps { Command::Sweep } else { grant(1) });
            world.serve();
        }
        let holds = world.granted.iter().filter(|(granted, _)| *granted == nonce(last)).count();
        match sweeps {
            true => assert_eq!(world.rows[&nonce(last)].status, Status::Released),
            false => assert_eq!(holds, 2, "it was granted again"),
        }
        // The first of those that were kept end as well, when they have run out by that clock.
        world.kept.clear();
        for _ in 0..15 {
            world.pass(Duration::from_millis(100));
            world.ask(Command::Sweep);
            world.serve();
        }
        assert_eq!(world.rows[&nonce(0)].status, Status::Released);
    }
}

#[test]
fn a_hold_that_has_not_run_out_by_the_own_clock_is_kept_and_looked_at_again_when_it_does() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    for _ in 0..2 {
        world.ask(short(500));
        world.serve();
    }
    // The database's clock jumps past the end of the holds.
    world.kept = world.rows.keys().copied().collect();
    world.micros += 500_000;
    world.pass(Duration::from_millis(500));
    let beside = world.ask(grant(1));
    world.serve();
    assert_eq!(granted(&world, beside), [2], "a nonce was granted twice inside its length");
    assert!(world.rows.values().all(|row| row.status == Status::Held));
    world.kept.clear();
    // Sooner than the next look in any case.
    world.pass(Duration::from_millis(20));
    let after = world.ask(grant(3));
    world.serve();
    assert_eq!(granted(&world, after), [0, 1, 3]);
}

#[test]
fn an_owner_looks_for_holds_from_before_its_lease_when_the_first_runs_out_and_not_sooner() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.policy = Some(Policy::default());
    for (number, left_ms) in [(0, 1_400), (1, 2_700)] {
        let at = Timestamp::from_micros(world.micros);
        let hold = HoldId::from_u128(u128::from(number) + 1_000_000);
        let (status, held_until) = (Status::Held, at.plus_ms(left_ms));
        world.granted.push((nonce(number), hold));
        let row = Row { nonce: nonce(number), status, hold, written_at: at, held_until, tx_hash: None };
        world.rows.insert(nonce(number), row);
    }
    let mut granted_at = |pass_ms, looks: bool| {
        world.pass(Duration::from_millis(pass_ms));
        let number = world.apply(grant(1));
        world.proceed();
        if !matches!(world.calls[..], [Call::Acquire]) {
            assert_eq!(matches!(world.calls[..], [Call::Overdue { .. }]), looks, "{:?}", world.calls);
        }
        world.serve();
        granted(&world, number)
    };
    assert_eq!(granted_at(0, true), [2]);
    assert_eq!(granted_at(900, false), [3]);
    assert_eq!(granted_at(400, false), [4]);
    assert_eq!(granted_at(100, true), [0], "the first has run out");
    assert_eq!(granted_at(900, false), [5]);
    assert_eq!(granted_at(300, false), [6]);
    assert_eq!(granted_at(100, true), [1]);
    // Nothing is left but what it has granted itself.
    for number in 7..11 {
        assert_eq!(granted_at(900, false), [number]);
    }
}

#[test]
fn a_hold_over_which_the_clock_jumped_is_quarantined_whatever_the_policy_says() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.ask(grant(2));
    world.settle_down();
    world.doubtful.insert(nonce(1));
    world.pass(Duration::from_millis(crate::world::HOLD_MS));
    world.ask(Command::Sweep);
    world.settle_down();
    let states: Vec<_> = world.rows.values().map(|row| row.status).collect();
    assert_eq!(states, [Status::Released, Status::Quarantined]);
    assert_eq!(world.quarantined, [(1, nonce(1))]);
}

#[test]
fn what_is_quarantined_is_noted_once_and_when_it_is_written() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.ask(grant(3));
    world.settle_down();
    let holds = world.granted.clone();
    world.ask(settle(&holds[1..], &Outcome::Unknown));
    until_commit(&mut world);
    assert!(world.quarantined.is_empty(), "nothing is written yet");
    world.settle_down();
    world.ask(settle(&holds[1..], &Outcome::Unknown));
    world.settle_down();
    assert_eq!(world.quarantined, [(2, nonce(1))]);
}

#[test]
fn a_key_taken_meanwhile_is_looked_up_under_a_new_lease() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    let number = world.ask(keyed(1, "k"));
    until_commit(&mut world);
    let taken = world.take_keys();
    world.complete(0, Fate::Well);
    assert!(matches!(world.calls[..], [Call::Acquire]));
    world.settle_down();
    assert_eq!((taken.len(), &world.outcomes[&number]), (1, &Err(stale(&taken))));
    assert!(world.rows.is_empty());
}

#[test]
fn a_late_word_on_a_hole_keeps_it_from_the_grant_beside_it() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.ask(grant(2));
    world.settle_down();
    let holds = world.granted.clone();
    world.ask(settle(&holds[..1], &Outcome::NeverSent));
    world.settle_down();
    let late = world.apply(settle(&holds[..1], &Outcome::Consumed(None)));
    let beside = world.apply(grant(1));
    world.proceed();
    world.settle_down();
    assert_eq!(world.outcomes[&late], Ok(Answer::Settled(vec![Ok(Status::Consumed)])));
    assert_eq!(granted(&world, beside), [2]);
}

#[test]
fn a_window_that_a_settlement_beside_opens_refuses_nothing() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    world.ask(window(Some(2)));
    world.ask(grant(1));
    world.settle_down();
    let holds = world.granted.clone();
    world.apply(settle(&holds, &Outcome::NeverSent));
    let beside = world.apply(grant(2));
    world.proceed();
    world.settle_down();
    assert_eq!(granted(&world, beside), [0, 1]);
}

/// A nonce that an operator resolves without naming its hold. The decision is written and its answer lost.
fn resolved_unheard() -> (World, usize) {
    let mut world = World::new(Mode::Basic, 1);
    world.ask(grant(1));
    world.settle_down();
    let holds = world.granted.clone();
    world.ask(settle(&holds, &Outcome::Unknown));
    world.settle_down();
    let number = world.ask(resolve(nonce(0), None));
    until_commit(&mut world);
    world.complete(0, Fate::DoneUnheard);
    assert_eq!(world.rows[&nonce(0)].status, Status::Released);
    (world, number)
}

#[test]
fn a_decision_whose_answer_was_lost_is_never_made_about_a_later_hold() {
    for status in Status::ALL.iter().copied() {
        let (mut world, number) = resolved_unheard();
        // Another instance grants the hole, and its caller says what became of it.
        world.steal();
        let theirs = HoldId::from_u128(1_000_000);
        if let Some(row) = world.rows.get_mut(&nonce(0)) {
            (row.hold, row.status) = (theirs, status);
        }
        world.owner = Owner::Nobody;
        world.settle_down();
        let row = &world.rows[&nonce(0)];
        assert_eq!((row.hold, row.status), (theirs, status), "it is the other caller's nonce");
        assert_eq!(world.outcomes[&number], Err(Refusal::LedgerUnavailable), "{status:?}: it was written");
    }
    let (mut world, number) = resolved_unheard();
    world.settle_down();
    assert_eq!(world.outcomes[&number], Ok(Answer::Resolved(Status::Released)), "nobody else came");
}

#[test]
fn a_policy_that_may_have_been_written_is_not_refused_as_if_it_was_not() {
    let mut world = World::new(Mode::Basic, 1);
    let first_nonce = Some(nonce(40));
    let number = world.ask(Command::SetPolicy(PolicyPatch { first_nonce, ..PolicyPatch::default() }));
    until_commit(&mut world);
    world.complete(0, Fate::DoneUnheard);
    // Another instance sets another one, and grants.
    world.steal();
    world.policy = Some(Policy { first_nonce: nonce(50), ..Policy::default() });
    let (status, at) = (Status::Held, Timestamp::from_micros(world.micros));
    let (hold, held_until) = (HoldId::from_u128(1_000_000), at.plus_ms(60_000));
    let row = Row { nonce: nonce(50), status, hold, written_at: at, held_until, tx_hash: None };
    world.rows.insert(nonce(50), row);
    world.owner = Owner::Nobody;
    world.settle_down();
    assert_eq!(world.outcomes[&number], Err(Refusal::LedgerUnavailable));
}

/// Asks for this policy as an operator; what its first commit has in the audit, and its second one after such an end of the
/// first.
fn audited(world: &mut World, policy: Command, fate: Fate) -> (usize, usize) {
    let entry = Box::new(AuditEntry::new("ops", "set_policy", "signer:s"));
    let number = world.apply_audited(policy, Some(entry));
    world.proceed();
    let mut entries = || {
        until_commit(world);
        let [Call::Commit { batch, .. }] = &world.calls[..] else { panic!("{:?}", world.calls) };
        assert!(batch.policy.is_some());
        let entries = batch.audit.len();
        world.complete(0, fate);
        entries
    };
    let both = (entries(), entries());
    world.settle_down();
    assert!(matches!(world.outcomes[&number], Ok(Answer::PolicySet(_))), "{:?}", world.outcomes[&number]);
    both
}

#[test]
fn a_policy_that_was_written_unheard_has_one_entry_in_the_audit() {
    for mode in Mode::ALL {
        let mut world = World::new(mode, 1);
        // The first one changes nothing of a signer that nobody knows, and makes it known.
        for policy in [window(None), window(Some(9))] {
            assert_eq!(audited(&mut world, policy, Fate::DoneUnheard), (1, 0), "{mode:?}");
        }
        assert_eq!(audited(&mut world, window(Some(8)), Fate::NotDone), (1, 1), "it was not written");
        assert_eq!(audited(&mut world, window(Some(8)), Fate::NotDone), (0, 0), "nothing changes");
    }
}

#[test]
fn two_policies_that_come_together_have_one_entry_each_in_the_audit_though_a_commit_is_unheard() {
    for mode in Mode::ALL {
        let mut world = World::new(mode, 1);
        let asked = [1_000, 2_000].map(|hold_ms| {
            let policy = PolicyPatch { hold_ms: Some(hold_ms), ..PolicyPatch::default() };
            let entry = Box::new(AuditEntry::new("ops", "set_policy", "signer:s"));
            world.apply_audited(Command::SetPolicy(policy), Some(entry))
        });
        world.proceed();
        let (mut entries, mut fate) = (Vec::new(), Fate::DoneUnheard);
        while !asked.iter().all(|number| world.outcomes.contains_key(number)) {
            until_commit(&mut world);
            let [Call::Commit { batch, .. }] = &world.calls[..] else { panic!("{:?}", world.calls) };
            entries.extend(batch.audit.iter().map(|entry| (entry.before.clone(), entry.after.clone())));
            world.complete(0, std::mem::replace(&mut fate, Fate::Well));
        }
        let [(_, first), (second, _)] = &entries[..] else { panic!("{mode:?}: {entries:?}") };
        assert_eq!(first, second, "one follows the other");
        assert_eq!(world.policy.as_ref().and_then(|policy| policy.hold_ms), Some(2_000));
    }
}
