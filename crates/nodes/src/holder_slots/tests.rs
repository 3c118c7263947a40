//! Each rule by a table, and all of them together in random order.

use std::collections::HashSet;
use std::time::Duration;

use domain::JobId;
use domain::job::Attempt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

const LASTING: Duration = Duration::from_secs(10);
const CAPACITY: usize = 3;

fn slot(n: u128) -> Slot {
    Slot { job: JobId::from_u128(n), attempt: Attempt::new(1) }
}

fn claims(jobs: &[u128], token: i64) -> Vec<Claim> {
    jobs.iter().map(|n| Claim { slot: slot(*n), token: Token::new(token) }).collect()
}

/// The slots of a node that takes work, and the test's clock.
struct Rig {
    slots: HolderSlots,
    room: Room,
    now: Instant,
}

impl Rig {
    fn with_used(used: usize) -> Self {
        let now = Instant::now();
        let room = Room { gives_from: Some(now), is_ready: true, capacity: CAPACITY, used };
        let slots = HolderSlots::default();
        slots.settle(room);
        Self { slots, room, now }
    }

    fn reserve(&self, jobs: &[u128], token: i64) -> Option<Vec<Reserved>> {
        self.slots.reserve(&claims(jobs, token), self.now + LASTING, self.now)
    }

    fn give_back(&self, job: u128, token: i64) -> GivenBack {
        self.slots.give_back(claims(&[job], token)[0], self.now)
    }
}

#[test]
fn slots_are_given_up_to_the_capacity() {
    let rig = Rig::with_used(1);
    assert_eq!(rig.reserve(&[2, 3, 4], 1), Some(vec![Reserved::Yes, Reserved::Yes, Reserved::Full]));
    assert_eq!(rig.reserve(&[2], 1), Some(vec![Reserved::Yes]), "it has its slot already");
    assert!(rig.slots.take(slot(2), rig.now) && !rig.slots.take(slot(2), rig.now), "sent once");
    assert_eq!(rig.reserve(&[4], 1), Some(vec![Reserved::Full]), "what was taken counts until it is settled");
    rig.slots.settle(Room { used: 1, ..rig.room });
    assert_eq!((rig.slots.given(), rig.slots.given_count()), (vec![slot(3)], 1));
    assert_eq!(rig.reserve(&[4, 5], 1), Some(vec![Reserved::Yes, Reserved::Full]));
}

#[test]
fn nothing_is_given_while_the_bus_gives_or_the_node_takes_no_work() {
    let mut rig = Rig::with_used(0);
    rig.slots.settle(Room { is_ready: false, ..rig.room });
    assert_eq!(rig.reserve(&[1], 1), Some(vec![Reserved::NotReady]));
    rig.slots.settle(Room { gives_from: None, ..rig.room });
    assert_eq!(rig.reserve(&[1], 1), None);
    rig.slots.settle(Room { gives_from: Some(rig.now + LASTING), ..rig.room });
    assert_eq!(rig.reserve(&[1], 1), None);
    assert!(!rig.slots.close(rig.now));
    rig.slots.settle(Room { gives_from: Some(rig.now + LASTING), ..rig.room });
    rig.now += LASTING;
    assert_eq!(rig.reserve(&[1], 1), Some(vec![Reserved::Yes]));
    assert!(rig.slots.close(rig.now), "it gave some by then");
    assert_eq!(rig.reserve(&[1], 1), None);
    assert!(rig.slots.has(slot(1)), "what was given is");
    rig.slots.settle(rig.room);
    rig.slots.end();
    assert_eq!((rig.reserve(&[1], 1), rig.slots.given_count()), (None, 0));
}

#[test]
fn what_no_dispatch_comes_for_is_free_again_and_whoever_repeats_itself_gains_no_time() {
    let mut rig = Rig::with_used(0);
    rig.reserve(&[1, 2], 1);
    rig.now += LASTING / 2;
    rig.reserve(&[1], 1);
    rig.reserve(&[2], 2);
    rig.now += LASTING / 2;
    assert!(!rig.slots.take(slot(1), rig.now), "an owner that was stopped for long sends nothing");
    assert!(rig.slots.has(slot(1)));
    assert_eq!(rig.slots.expire(rig.now), [slot(1)]);
    assert_eq!(rig.give_back(2, 1), GivenBack::NotGiven, "it is a later owner's");
    assert_eq!(rig.give_back(2, 2), GivenBack::Free);
    assert_eq!(rig.give_back(2, 2), GivenBack::NotGiven);
    rig.reserve(&[3], 1);
    rig.slots.close(rig.now);
    assert_eq!(rig.give_back(3, 1), GivenBack::Listed);
}

#[test]
fn no_order_of_calls_gives_more_than_there_is_or_loses_a_slot() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    for _ in 0..500 {
        let mut rig = Rig::with_used(0);
        let (mut given, mut sent) = (HashSet::new(), HashSet::new());
        for _ in 0..100 {
            let n = dice.random_range(0..8);
            match dice.random_range(0..6) {
                // One that was sent is not wanted again.
                0 | 1 if sent.contains(&slot(n)) => {}
                0 | 1 => match rig.reserve(&[n], 1).unwrap()[0] {
                    Reserved::Yes => drop(given.insert(slot(n))),
                    answer => {
                        assert_eq!((answer, given.len() + sent.len()), (Reserved::Full, CAPACITY));
                    }
                },
                2 => {
                    let is_taken = rig.slots.take(slot(n), rig.now);
                    assert!(!is_taken || given.remove(&slot(n)) && sent.insert(slot(n)));
                }
                3 => drop(sent.remove(&slot(n))),
                4 => {
                    let is_back = rig.give_back(n, 1) == GivenBack::Free;
                    assert_eq!(is_back, given.remove(&slot(n)));
                }
                _ => {
                    rig.now += LASTING / 10;
                    rig.slots.expire(rig.now).iter().for_each(|slot| assert!(given.remove(slot)));
                }
            }
            rig.slots.settle(Room { used: sent.len(), ..rig.room });
            assert_eq!(rig.slots.given().into_iter().collect::<HashSet<_>>(), given);
            assert!(given.len() + sent.len() <= CAPACITY, "more is taken than there is");
        }
    }
}
