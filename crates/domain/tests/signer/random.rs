//! Random sequences: commands, answers in any order, failures, time, hand-offs, other owners. Every batch that leaves and
//! every answer is checked against the ledger in memory as it happens (see `world`); in the end everything is answered,
//! and every nonce granted belongs to exactly one caller.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::nonce::{Outcome, PolicyPatch, Resolution};
use domain::signer::{Answer, Command, GrantRequest, Phase, Refusal, RequestKey, ResolveRequest};
use domain::{HoldId, Mode, TxHash};

use crate::world::{Call, Fate, Owner, World, grant, keyed_by, nonce, settle, shared_keys, window};

/// Per number of commits in flight and mode.
const CASES: u64 = 1_000;
const STEPS: usize = 60;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}

/// Says which case failed.
struct Seed(u64, Mode, usize);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the case: seed {}, mode {:?}, {} commits in flight", self.0, self.1, self.2);
        }
    }
}

fn transaction(name: &str) -> TxHash {
    TxHash::parse(name).unwrap()
}

/// `shares` says whether callers may share their keys in this case.
fn command(random: &mut Random, world: &World, shares: bool) -> Command {
    let some_hold = |random: &mut Random| match world.granted.len() {
        0 => (nonce(0), HoldId::from_u128(7)),
        held => world.granted[random.below(held)],
    };
    match random.below(12) {
        0..4 => grant(1 + random.below(3)),
        4 => {
            let caller = ["", "x", "y"][random.below(3)];
            keyed_by(caller, 1 + random.below(2), ["a", "b", "c"][random.below(3)])
        }
        5 => {
            Command::Grant(GrantRequest { count: 1, hold_ms: Some(1 + random.below(200) as u64), key: None })
        }
        6..9 => {
            let count = 1 + random.below(3);
            let holds: Vec<_> = (0..count).map(|_| some_hold(random)).collect();
            let outcome = match random.below(3) {
                0 => Outcome::Consumed([None, Some("0xa"), Some("0xb")][random.below(3)].map(transaction)),
                1 => Outcome::NeverSent,
                _ => Outcome::Unknown,
            };
            settle(&holds, &outcome)
        }
        9 => {
            let (nonce, hold) = some_hold(random);
            let hold = random.one_in(2).then_some(hold);
            Command::Resolve(ResolveRequest { nonce, hold, resolution: Resolution::NeverSent })
        }
        10 if shares && random.one_in(2) => shared_keys(random.one_in(2)),
        10 if random.one_in(2) => window([None, Some(8), Some(40)][random.below(3)]),
        10 => {
            let first_nonce = random.one_in(2).then(|| nonce(0));
            Command::SetPolicy(PolicyPatch { first_nonce, hold_ms: Some(1_000), ..PolicyPatch::default() })
        }
        _ => Command::Sweep,
    }
}

fn fate(random: &mut Random, call: &Call) -> Fate {
    let is_commit = matches!(call, Call::Commit { .. });
    match random.below(20) {
        0 => Fate::DoneUnheard,
        1 => Fate::NotDone,
        2 if is_commit => Fate::Locked,
        3 if random.one_in(8) => Fate::Defect,
        _ => Fate::Well,
    }
}

fn step(random: &mut Random, world: &mut World, shares: bool) {
    match random.below(24) {
        0..8 => {
            let command = command(random, world, shares);
            world.apply(command);
        }
        8..11 => world.proceed(),
        11..19 if !world.calls.is_empty() => {
            let at = random.below(world.calls.len());
            let fate = fate(random, &world.calls[at]);
            world.complete(at, fate);
        }
        11..20 => world.pass(Duration::from_millis(random.below(60) as u64)),
        20 if random.one_in(3) => match world.owner {
            Owner::Other => world.owner = Owner::Nobody,
            Owner::Me | Owner::Nobody => world.steal(),
        },
        21 if random.one_in(4) => {
            world.lease_until = None;
            world.wake();
        }
        22 if random.one_in(4) => world.hand_off(random.one_in(2).then_some("other")),
        22 if random.one_in(8) => world.is_alive = !world.is_alive,
        23 => {
            let commands = world.commands.len();
            if commands > 0 && random.one_in(4) {
                world.commands[random.below(commands)].1.set(true);
            }
        }
        _ => world.wake(),
    }
}

/// Answers how many batches were on their way at most, how many followed another, and how many were undone with it.
fn run(seed: u64, mode: Mode, commits_max: usize) -> (usize, usize, usize) {
    let _seed = Seed(seed, mode, commits_max);
    let mut random = Random(seed);
    let mut world = World::new(mode, commits_max);
    let mut most = 0;
    let shares = random.one_in(4);
    for _ in 0..STEPS {
        step(&mut random, &mut world, shares);
        most = most.max(world.state.commits_in_flight());
        assert!(world.state.commits_in_flight() <= commits_max);
    }
    world.is_alive = true;
    if world.owner == Owner::Other {
        world.owner = Owner::Nobody;
    }
    if random.one_in(4) {
        world.phase = Phase::Stopping;
    }
    world.settle_down();
    check_end(&world, shares);
    (most, world.followers, world.undone)
}

fn check_end(world: &World, shares: bool) {
    let (mut answered, mut unsure) = (Vec::new(), 0);
    let mut of_callers = HashMap::new();
    for (number, (command, left)) in world.commands.iter().enumerate() {
        let Command::Grant(request) = command else {
            assert!(left.get() || world.outcomes.contains_key(&number), "{command:?} was never answered");
            continue;
        };
        match world.outcomes.get(&number) {
            Some(Ok(Answer::Granted(grants))) => {
                answered.extend(grants.grants.iter().map(|grant| (grant.nonce, grant.hold)));
                // A request without a key is nobody's but its own.
                let caller =
                    |key: &RequestKey| if shares { String::new() } else { key.principal.to_string() };
                let key = request.key.as_ref().map(|key| (caller(key), key.key.clone()));
                let asked = key.ok_or(number);
                for grant in &grants.grants {
                    let first = of_callers.entry(grant.hold).or_insert_with(|| asked.clone());
                    assert_eq!(*first, asked, "one request's grant was answered to another");
                }
            }
            Some(Err(Refusal::LedgerUnavailable)) => unsure += request.count,
            Some(_) => {}
            None => {
                assert!(left.get(), "{command:?} was never answered");
                unsure += request.count;
            }
        }
    }
    // A keyed grant may be answered more than once, with the same.
    answered.sort();
    answered.dedup();
    let lost = world.granted.iter().filter(|granted| answered.binary_search(granted).is_err()).count();
    // A short hold may run out between two tries of one grant, which then is granted anew.
    let short = |(command, _): &&(Command, _)| matches!(command, Command::Grant(request) if request.hold_ms.is_some());
    let short = 10 * world.commands.iter().filter(short).count();
    assert!(lost <= unsure + short, "{lost} nonces were granted to nobody, {unsure} may have been");
    let mut holds: Vec<_> = world.granted.iter().map(|(_, hold)| *hold).collect();
    let all = holds.len();
    holds.sort();
    holds.dedup();
    assert_eq!(holds.len(), all, "a hold was granted twice");
    let numbers: Vec<_> = world.rows.keys().map(|nonce| nonce.get()).collect();
    assert!(numbers.iter().copied().eq(0..numbers.len() as u64), "no gap: {numbers:?}");
}

#[test]
fn random_sequences_keep_every_promise() {
    let begun = Instant::now();
    let mut most = [0, 0];
    let (mut followers, mut undone) = (0, 0);
    for seed in 0..CASES {
        for mode in Mode::ALL {
            for commits_max in [1, 2] {
                let (under_way, followed, lost) = run(seed, mode, commits_max);
                most[commits_max - 1] = most[commits_max - 1].max(under_way);
                followers += followed;
                undone += lost;
            }
        }
    }
    assert_eq!(most, [1, 2], "two were under way where two may be");
    assert!(followers > 100 && undone > 10, "{followers} batches followed another, {undone} were undone");
    println!("{} cases in {:?}: {followers} followed, {undone} undone", CASES * 4, begun.elapsed());
}
