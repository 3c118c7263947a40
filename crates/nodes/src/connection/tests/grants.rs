//! Slots that the connection itself gives out while the bus is away.

use bus::{Claim, Reserved};
use domain::Token;

use super::*;

const LASTING_MS: u64 = 10_000;

fn claim(n: u128, token: i64) -> Claim {
    Claim { slot: slot(n), token: Token::new(token) }
}

impl Rig {
    fn grant(&mut self, jobs: &[u128], token: i64) -> Vec<Reserved> {
        let claims: Vec<_> = jobs.iter().map(|n| claim(*n, token)).collect();
        let ends = self.now + Duration::from_millis(LASTING_MS);
        self.connection.grant(&claims, ends, self.now)
    }

    fn all_taken(&self) -> HashSet<Slot> {
        self.connection.taken().collect()
    }
}

#[test]
fn slots_are_given_up_to_the_capacity_and_sent_once() {
    let mut rig = Rig::live(&[1]);
    assert_eq!(rig.grant(&[2, 3, 4], 1), [Reserved::Yes, Reserved::Yes, Reserved::Full]);
    assert_eq!(rig.grant(&[1, 2], 1), [Reserved::Yes; 2], "it has its slot already");
    assert_eq!(rig.all_taken(), slots(&[1, 2, 3]).into_iter().collect());
    assert_eq!(rig.taken(), [slot(1)].into(), "nothing was sent");
    // One that others reserved at the bus before it went away.
    assert_eq!(rig.connection.dispatch(job(5), rig.now), Err(Refused::Full));
    assert!(rig.connection.dispatch(job(2), rig.now).is_ok());
    assert_eq!(rig.connection.dispatch(job(2), rig.now), Err(Refused::Known));
    assert!(!rig.connection.is_granted(slot(2)) && rig.connection.is_granted(slot(3)));
    assert_eq!(rig.grant(&[2, 4], 1), [Reserved::Yes, Reserved::Full]);
    rig.frame(result(1));
    rig.connection.committed(slot(1));
    assert_eq!(rig.grant(&[4], 1), [Reserved::Yes]);
}

#[test]
fn what_no_dispatch_comes_for_is_free_again_and_whoever_repeats_itself_gains_no_time() {
    let mut rig = Rig::live(&[]);
    rig.grant(&[1, 2], 1);
    rig.after(LASTING_MS / 2);
    rig.frame(heartbeat(&[]));
    assert_eq!(rig.grant(&[1], 1), [Reserved::Yes]);
    assert_eq!(rig.grant(&[2], 2), [Reserved::Yes], "a later owner takes it over");
    rig.frame(heartbeat(&[]));
    assert_eq!(rig.after(LASTING_MS / 2), [Effect::Free(slot(1))]);
    assert_eq!(rig.all_taken(), [slot(2)].into());
    assert!(!rig.connection.give_back(claim(2, 1)), "which an earlier one cannot give back");
    assert!(rig.connection.give_back(claim(2, 2)) && !rig.connection.give_back(claim(2, 2)));
    assert_eq!(rig.all_taken(), [].into());
}

#[test]
fn a_node_that_takes_no_work_is_given_none() {
    let mut rig = Rig::opened();
    assert_eq!(rig.grant(&[1], 1), [Reserved::NotReady], "nobody knows who it is");
    rig.frame(hello(&[]));
    assert_eq!(rig.grant(&[1], 1), [Reserved::NotReady], "it is not welcomed yet");
    rig.connection.registered(&[], rig.now);
    assert_eq!(rig.grant(&[1], 1), [Reserved::Yes]);
    let effects = rig.connection.registered(&slots(&[1, 2]), rig.now);
    assert_eq!(effects, [Effect::Free(slot(2))], "what was given is kept");
    rig.connection.drain(true, rig.now);
    assert_eq!(rig.grant(&[1, 2], 1), [Reserved::Yes, Reserved::NotReady]);
    assert_eq!(rig.connection.dispatch(job(1), rig.now), Err(Refused::Draining));
    assert_eq!(rig.all_taken(), [].into(), "what is refused is not granted any more");
    rig.connection.drain(false, rig.now);
    rig.after(HEARTBEAT_MS * 3);
    assert_eq!(rig.grant(&[1], 1), [Reserved::NotReady], "it is silent");
    rig.connection.end(CloseCode::GoingAway, String::new());
    assert_eq!(rig.grant(&[1], 1), [Reserved::NotReady]);
}

#[test]
fn no_order_of_grants_and_dispatches_takes_more_than_there_is_or_loses_a_slot() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..500 {
        let running: Vec<u128> = (0..rng.random_range(0..=CAPACITY.into())).collect();
        let mut rig = Rig::live(&running);
        let mut granted = HashSet::new();
        for _ in 0..100 {
            let n = rng.random_range(0..8);
            let (sent, was_granted) = (rig.taken(), rig.connection.is_granted(slot(n)));
            assert_eq!(was_granted, granted.contains(&slot(n)));
            let mut effects = vec![];
            match rng.random_range(0..7) {
                0 | 1 => match rig.grant(&[n], rng.random_range(1..3))[0] {
                    Reserved::Yes if sent.contains(&slot(n)) => {}
                    Reserved::Yes => drop(granted.insert(slot(n))),
                    Reserved::Full => assert_eq!(sent.len() + granted.len(), CAPACITY as usize),
                    Reserved::NotReady => {}
                },
                2 => {
                    let dispatched = rig.connection.dispatch(job(n), rig.now);
                    let has_room = sent.len() + granted.len() < CAPACITY as usize;
                    match dispatched {
                        Ok(_) => assert!(was_granted || has_room),
                        Err(refused) => assert!(refused == Refused::Known || !was_granted, "{refused}"),
                    }
                    granted.remove(&slot(n));
                }
                3 => {
                    if rig.connection.give_back(claim(n, rng.random_range(1..3))) {
                        assert!(granted.remove(&slot(n)));
                    }
                }
                4 if sent.contains(&slot(n)) => {
                    effects = rig.frame(result(n));
                    effects.extend(rig.connection.committed(slot(n)));
                }
                5 => effects = rig.after(rng.random_range(0..2_000)),
                _ => {
                    let listed: Vec<_> = sent.iter().map(|slot| slot.job.as_u128()).collect();
                    effects = rig.frame(heartbeat(&listed));
                }
            }
            for effect in effects {
                if let Effect::Free(freed) = effect {
                    assert!(granted.remove(&freed) != sent.contains(&freed), "freed once");
                }
            }
            if rig.connection.is_over() {
                break;
            }
            let all = rig.all_taken();
            assert_eq!(all, rig.taken().union(&granted).copied().collect());
            assert!(all.len() <= CAPACITY as usize, "more is taken than there is");
        }
    }
}
