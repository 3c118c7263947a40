//! Looks for holds that ran out, of a signer that has more holds than one read finds which have run out by the database's clock
//! alone.

use std::time::Duration;

use domain::limits::EXPIRIES_MAX;
use domain::nonce::{OnExpiry, Status};
use domain::signer::{Answer, Command};
use domain::{Mode, Nonce};

use crate::world::{Call, Fate, HOLD_MS, World, grant, on_expiry, short};

/// So many times as many holds as one read finds, none of which runs out by the owner's own clock within the test.
fn full_of_kept(mode: Mode, reads: usize) -> World {
    let mut world = World::new(mode, 1);
    for _ in 0..reads {
        world.ask(grant(EXPIRIES_MAX));
        world.serve();
        world.pass(Duration::from_millis(1));
    }
    world.kept = world.rows.keys().copied().collect();
    world.kept_for = Duration::from_secs(60);
    world.pass(Duration::from_millis(HOLD_MS));
    world.serve();
    world
}

/// The look has come through all of them, and then a hold of 500 ms is granted that runs out before them by the database's
/// clock, which has stepped back.
fn short_before_kept() -> (World, Nonce) {
    let mut world = full_of_kept(Mode::WorkerQueue, 2);
    world.ask(Command::Sweep);
    world.serve();
    world.micros -= 600_000_000;
    world.ask(short(500));
    world.serve();
    let (last, _) = *world.granted.last().unwrap();
    (world, last)
}

#[test]
fn a_hold_ends_in_time_that_is_granted_after_the_look_and_runs_out_before_what_is_kept() {
    let (mut world, last) = short_before_kept();
    for _ in 0..15 {
        world.pass(Duration::from_millis(100));
        world.ask(Command::Sweep);
        world.serve();
    }
    assert_eq!(world.rows[&last].status, Status::Released);
}

#[test]
fn a_hold_that_runs_out_before_what_is_kept_ends_under_the_policy_of_its_time() {
    let (mut world, last) = short_before_kept();
    world.pass(Duration::from_millis(700));
    world.ask(on_expiry(OnExpiry::Quarantine));
    world.settle_down();
    assert_eq!(world.rows[&last].status, Status::Released);
}

#[test]
fn a_policy_is_set_however_many_turns_a_look_takes() {
    for mode in Mode::ALL {
        let mut world = full_of_kept(mode, 12);
        let number = world.ask(on_expiry(OnExpiry::Quarantine));
        while !world.outcomes.contains_key(&number) {
            if let Some(call) = world.calls.first() {
                if matches!(call, Call::Overdue { .. }) {
                    world.pass(Duration::from_millis(20));
                }
                world.complete(0, Fate::Well);
            } else {
                let at = world.wake_at.expect("it goes on");
                world.pass(at.saturating_duration_since(world.now));
            }
        }
        let answer = &world.outcomes[&number];
        assert!(matches!(answer, Ok(Answer::PolicySet(_))), "{mode:?}: {answer:?}");
    }
}
