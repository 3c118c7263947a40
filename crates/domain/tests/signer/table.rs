//! Every stage meets every command: what is done at once, and what the answer is in the end.

use std::time::Duration;

use domain::Mode;
use domain::nonce::{Outcome, PolicyPatch, Status};
use domain::signer::{Answer, Command, Phase, Refusal};

use crate::world::{Call, Fate, HOLD_MS, LEASE, Owner, World, grant, keyed, resolve, settle, window};

/// Where a state can be when a command comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No lease, nothing to do.
    Vacant,
    Acquiring,
    Loading,
    /// It owns the lease and has nothing to do.
    Idle,
    /// The same, and a hold has run out.
    IdleAndDue,
    ReadingOverdue,
    Expiring,
    ReadingFacts,
    /// Its one batch is on its way.
    Committing,
    /// A batch of settlements is on its way, and there is room for another.
    CommittingOneOfTwo,
    /// A batch of grants is on its way, and there is room for another.
    GrantingOneOfTwo,
    /// A batch of a policy is on its way, and there is room for another.
    SettingPolicyOneOfTwo,
    /// The lease's row was locked, and the batch waits to be sent again.
    Locked,
    /// Another instance has the lease, and somebody waits for it.
    LeaseHeld,
    /// The ledger does not answer, and somebody waits for it.
    LedgerAway,
    /// The ledger does not answer, and there is a lease that is not trusted.
    LedgerAwayWithLease,
    /// The lease ran out while nothing was done.
    LeaseRanOut,
    /// A full turn is over (basic mode).
    TurnOver,
    Releasing,
    Reclaiming,
    /// A hand-off waits for a batch on its way.
    HandingOff,
    Stopping,
    Over,
}

const STAGES: [Stage; 23] = [
    Stage::Vacant,
    Stage::Acquiring,
    Stage::Loading,
    Stage::Idle,
    Stage::IdleAndDue,
    Stage::ReadingOverdue,
    Stage::Expiring,
    Stage::ReadingFacts,
    Stage::Committing,
    Stage::CommittingOneOfTwo,
    Stage::GrantingOneOfTwo,
    Stage::SettingPolicyOneOfTwo,
    Stage::Locked,
    Stage::LeaseHeld,
    Stage::LedgerAway,
    Stage::LedgerAwayWithLease,
    Stage::LeaseRanOut,
    Stage::TurnOver,
    Stage::Releasing,
    Stage::Reclaiming,
    Stage::HandingOff,
    Stage::Stopping,
    Stage::Over,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Grant,
    GrantWithKey,
    Settle,
    Resolve,
    SetPolicy,
    Sweep,
}

const KINDS: [Kind; 6] =
    [Kind::Grant, Kind::GrantWithKey, Kind::Settle, Kind::Resolve, Kind::SetPolicy, Kind::Sweep];

/// What a command has done at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtOnce {
    /// It waits.
    Waits,
    Acquires,
    ReadsFacts,
    ReadsOverdue,
    Commits,
    Answered,
}

/// A signer with nonce 0 held, 1 quarantined, 2 released and 3 held, and no lease.
fn world(mode: Mode, commits_max: usize) -> World {
    let mut world = World::new(mode, commits_max);
    world.ask(grant(4));
    world.settle_down();
    let granted = world.granted.clone();
    world.ask(settle(&granted[1..2], &Outcome::Unknown));
    world.ask(settle(&granted[2..3], &Outcome::NeverSent));
    world.settle_down();
    assert_eq!(world.owner, Owner::Nobody);
    world
}

/// The same with the lease, and nothing to do.
fn idle(commits_max: usize) -> World {
    let mut world = world(Mode::WorkerQueue, commits_max);
    world.ask(Command::Sweep);
    world.serve();
    assert_eq!(world.owner, Owner::Me);
    world
}

fn build(stage: Stage) -> World {
    let settle_3 = |world: &World| settle(&world.granted[3..4], &Outcome::Consumed(None));
    match stage {
        Stage::Vacant => world(Mode::WorkerQueue, 1),
        Stage::Acquiring => {
            let mut world = world(Mode::WorkerQueue, 1);
            world.ask(grant(1));
            assert!(matches!(world.calls[..], [Call::Acquire]));
            world
        }
        Stage::Loading => {
            let mut world = build(Stage::Acquiring);
            world.complete(0, Fate::Well);
            assert!(matches!(world.calls[..], [Call::Load]));
            world
        }
        Stage::Idle => idle(1),
        Stage::IdleAndDue => {
            let mut world = idle(1);
            // Without the renewals of a lease, a hold's length is longer than it.
            world.now += Duration::from_millis(HOLD_MS);
            world.micros += HOLD_MS as i64 * 1_000;
            world.lease_until = Some(world.now + LEASE);
            world
        }
        Stage::ReadingOverdue => {
            let mut world = build(Stage::IdleAndDue);
            world.ask(grant(1));
            assert!(matches!(world.calls[..], [Call::Overdue { .. }]));
            world
        }
        Stage::Expiring => {
            let mut world = build(Stage::ReadingOverdue);
            world.complete(0, Fate::Well);
            assert!(matches!(world.calls[..], [Call::Commit { .. }]));
            world
        }
        Stage::ReadingFacts => {
            let mut world = idle(1);
            world.ask(settle_3(&world));
            assert!(matches!(world.calls[..], [Call::Facts { .. }]));
            world
        }
        Stage::Committing => {
            let mut world = build(Stage::ReadingFacts);
            world.complete(0, Fate::Well);
            assert!(matches!(world.calls[..], [Call::Commit { .. }]));
            world
        }
        Stage::CommittingOneOfTwo => {
            let mut world = idle(2);
            world.ask(settle_3(&world));
            world.complete(0, Fate::Well);
            assert!(matches!(world.calls[..], [Call::Commit { .. }]));
            world
        }
        Stage::GrantingOneOfTwo => {
            let mut world = idle(2);
            world.ask(grant(1));
            assert!(matches!(world.calls[..], [Call::Commit { .. }]));
            world
        }
        Stage::SettingPolicyOneOfTwo => {
            let mut world = idle(2);
            world.ask(Command::SetPolicy(PolicyPatch { hold_ms: Some(HOLD_MS), ..PolicyPatch::default() }));
            assert!(matches!(world.calls[..], [Call::Overdue { .. }]));
            world.complete(0, Fate::Well);
            assert!(matches!(world.calls[..], [Call::Commit { .. }]));
            world
        }
        Stage::Locked => {
            let mut world = build(Stage::Committing);
            world.complete(0, Fate::Locked);
            assert!(world.calls.is_empty() && world.wake_at.is_some());
            world
        }
        Stage::LeaseHeld => {
            let mut world = world(Mode::Basic, 1);
            world.steal();
            world.ask(grant(1));
            world.complete(0, Fate::Well);
            assert!(world.calls.is_empty() && world.wake_at.is_some());
            world.owner = Owner::Nobody;
            world
        }
        Stage::LedgerAway => {
            let mut world = build(Stage::Acquiring);
            world.complete(0, Fate::NotDone);
            assert!(world.calls.is_empty() && world.wake_at.is_some());
            world
        }
        Stage::LedgerAwayWithLease => {
            let mut world = build(Stage::Committing);
            world.complete(0, Fate::DoneUnheard);
            assert!(world.calls.is_empty() && world.wake_at.is_some());
            world
        }
        Stage::LeaseRanOut => {
            let mut world = idle(1);
            world.lease_until = None;
            world
        }
        Stage::TurnOver => {
            let mut world = world(Mode::Basic, 1);
            world.ask(settle_3(&world));
            while !matches!(world.calls[..], [Call::Commit { .. }]) {
                world.complete(0, Fate::Well);
            }
            world.pass(Duration::from_millis(100));
            world.complete(0, Fate::Well);
            world.complete(0, Fate::Well);
            assert!(world.calls.is_empty() && world.wake_at.is_some() && world.owner == Owner::Nobody);
            world
        }
        Stage::Releasing => {
            let mut world = idle(1);
            world.pass(Duration::from_secs(1));
            assert!(matches!(world.calls[..], [Call::Release(_)]));
            world
        }
        Stage::Reclaiming => {
            let mut world = build(Stage::Committing);
            world.steal();
            world.complete(0, Fate::Well);
            assert!(matches!(world.calls[..], [Call::Reclaim]));
            world.owner = Owner::Nobody;
            world
        }
        Stage::HandingOff => {
            let mut world = build(Stage::Committing);
            world.hand_off(Some("other"));
            assert!(matches!(world.calls[..], [Call::Commit { .. }]));
            world
        }
        Stage::Stopping => {
            let mut world = world(Mode::WorkerQueue, 1);
            world.phase = Phase::Stopping;
            world
        }
        Stage::Over => {
            let mut world = world(Mode::WorkerQueue, 1);
            world.phase = Phase::Over;
            world
        }
    }
}

fn command(kind: Kind, world: &World) -> Command {
    match kind {
        Kind::Grant => grant(2),
        Kind::GrantWithKey => keyed(2, "k"),
        Kind::Settle => settle(&world.granted[0..1], &Outcome::Consumed(None)),
        Kind::Resolve => resolve(world.granted[1].0, Some(world.granted[1].1)),
        Kind::SetPolicy => window(Some(100)),
        Kind::Sweep => Command::Sweep,
    }
}

fn at_once(stage: Stage, kind: Kind) -> AtOnce {
    let owning = match kind {
        Kind::Grant => AtOnce::Commits,
        Kind::GrantWithKey | Kind::Settle | Kind::Resolve => AtOnce::ReadsFacts,
        // What ran out ends under the policy of its time.
        Kind::SetPolicy | Kind::Sweep => AtOnce::ReadsOverdue,
    };
    match stage {
        Stage::Vacant | Stage::LeaseRanOut | Stage::Stopping => AtOnce::Acquires,
        Stage::Over => AtOnce::Answered,
        Stage::Idle => owning,
        Stage::IdleAndDue => AtOnce::ReadsOverdue,
        // Of one row, and of nothing that a grant rests on.
        Stage::CommittingOneOfTwo => owning,
        // A grant follows the one under way; a policy may forbid what that one does.
        Stage::GrantingOneOfTwo => match kind {
            Kind::SetPolicy => AtOnce::Waits,
            Kind::Grant | Kind::GrantWithKey | Kind::Settle | Kind::Resolve | Kind::Sweep => owning,
        },
        Stage::SettingPolicyOneOfTwo => match kind {
            Kind::Settle | Kind::Resolve => owning,
            Kind::Grant | Kind::GrantWithKey | Kind::SetPolicy | Kind::Sweep => AtOnce::Waits,
        },
        Stage::Acquiring
        | Stage::Loading
        | Stage::ReadingOverdue
        | Stage::Expiring
        | Stage::ReadingFacts
        | Stage::Committing
        | Stage::Locked
        | Stage::LeaseHeld
        | Stage::LedgerAway
        | Stage::LedgerAwayWithLease
        | Stage::TurnOver
        | Stage::Releasing
        | Stage::Reclaiming
        | Stage::HandingOff => AtOnce::Waits,
    }
}

#[test]
fn every_stage_does_the_right_thing_at_once_with_every_command_and_answers_it_in_the_end() {
    for stage in STAGES {
        for kind in KINDS {
            let mut world = build(stage);
            let before = world.calls.len();
            let number = world.ask(command(kind, &world));
            let answered = world.outcomes.contains_key(&number);
            let seen = match world.calls.get(before..).unwrap_or_default() {
                [] if answered => AtOnce::Answered,
                [] => AtOnce::Waits,
                [Call::Acquire] => AtOnce::Acquires,
                [Call::Facts { .. }] => AtOnce::ReadsFacts,
                [Call::Overdue { .. }] => AtOnce::ReadsOverdue,
                [Call::Commit { .. }] => AtOnce::Commits,
                calls => panic!("{stage:?} {kind:?}: {calls:?}"),
            };
            assert_eq!(seen, at_once(stage, kind), "{stage:?} {kind:?}");
            assert!(world.calls.len() <= before + 1, "{stage:?} {kind:?}: one thing at once");
            world.settle_down();
            check_end(stage, kind, &world, number);
        }
    }
}

fn check_end(stage: Stage, kind: Kind, world: &World, number: usize) {
    let outcome = &world.outcomes[&number];
    let what = format!("{stage:?} {kind:?}: {outcome:?}");
    match stage {
        Stage::Over => return assert_eq!(*outcome, Err(Refusal::Fenced), "{what}"),
        Stage::HandingOff => {
            return assert!(matches!(outcome, Err(Refusal::NotOwner { .. })), "{what}");
        }
        _ => {}
    }
    let due = matches!(stage, Stage::IdleAndDue | Stage::ReadingOverdue | Stage::Expiring);
    match (kind, outcome) {
        (Kind::Grant | Kind::GrantWithKey, Ok(Answer::Granted(grants))) => {
            let numbers: Vec<_> = grants.grants.iter().map(|grant| grant.nonce.get()).collect();
            let expected = match stage {
                // The first of those that waits takes the hole; holds 0 and 3 ran out.
                Stage::IdleAndDue => [0, 2],
                Stage::ReadingOverdue | Stage::Expiring => [2, 3],
                Stage::Acquiring
                | Stage::Loading
                | Stage::GrantingOneOfTwo
                | Stage::LeaseHeld
                | Stage::LedgerAway => [4, 5],
                _ => [2, 4],
            };
            assert_eq!(numbers, expected, "{what}");
        }
        (Kind::Settle, Ok(Answer::Settled(answers))) => {
            // A hold that ran out is obeyed until the nonce is granted again, as in those stages.
            let is_stale = matches!(stage, Stage::ReadingOverdue | Stage::Expiring);
            assert_eq!(answers[0].is_err(), is_stale, "{what}");
            assert!(is_stale || answers[0] == Ok(Status::Consumed), "{what}");
        }
        (Kind::Resolve, Ok(Answer::Resolved(Status::Released))) => {}
        (Kind::SetPolicy, Ok(Answer::PolicySet(policy))) => {
            assert_eq!(policy.max_in_flight, Some(100), "{what}");
        }
        (Kind::Sweep, Ok(Answer::Swept)) if due => {
            assert!(
                world.rows.values().all(|row| row.status != Status::Held || row.nonce.get() == 0),
                "{what}"
            );
        }
        (Kind::Sweep, Ok(Answer::Swept)) => {}
        _ => panic!("{what}"),
    }
}

#[test]
fn what_waits_together_is_decided_together_in_worker_queue_mode_and_by_twos_in_basic() {
    for (mode, batches) in [(Mode::WorkerQueue, 1), (Mode::Basic, 2)] {
        let mut world = World::new(mode, 1);
        for _ in 0..3 {
            world.apply(grant(1));
        }
        world.proceed();
        let mut commits = 0;
        while !world.calls.is_empty() {
            commits += usize::from(matches!(world.calls[0], Call::Commit { .. }));
            world.complete(0, Fate::Well);
        }
        assert_eq!(commits, batches, "{mode:?}");
        assert_eq!(world.rows.len(), 3);
    }
}

#[test]
fn beyond_its_bound_a_state_refuses_at_once() {
    let mut world = World::new(Mode::WorkerQueue, 1);
    for asked in 0..1_000 {
        let number = world.apply(grant(1));
        let refused = world.outcomes.get(&number) == Some(&Err(Refusal::Overloaded));
        assert_eq!(refused, asked >= crate::world::WAITING_MAX, "{asked}");
    }
    assert_eq!(world.state.waiting(), crate::world::WAITING_MAX);
    world.settle_down();
    assert_eq!(world.rows.len(), crate::world::WAITING_MAX);
}

#[test]
fn two_batches_are_under_way_where_neither_rests_on_the_other() {
    let mut world = idle(2);
    let (first, second) = (world.granted[0], world.granted[3]);
    world.ask(settle(&[first], &Outcome::NeverSent));
    world.complete(0, Fate::Well);
    world.ask(settle(&[second], &Outcome::NeverSent));
    world.complete(1, Fate::Well);
    assert!(matches!(world.calls[..], [Call::Commit { .. }, Call::Commit { .. }]));
    assert_eq!(world.state.commits_in_flight(), 2);
    // A third waits for room, and one of the same nonce for its batch.
    let third = world.ask(settle(&[first], &Outcome::Consumed(None)));
    assert_eq!(world.calls.len(), 2);
    // Answers may come in any order.
    world.complete(1, Fate::Well);
    assert!(matches!(world.calls[..], [Call::Commit { .. }]), "the nonce is being written");
    world.serve();
    assert_eq!(world.outcomes[&third], Ok(Answer::Settled(vec![Ok(Status::Consumed)])));
}
