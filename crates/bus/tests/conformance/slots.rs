//! Slots of a node: reserved, sent, free.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bus::{Claim, NodeState, Report, Reserved, Slot, Unreserved, Written};
use domain::Token;
use domain::job::Attempt;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::bench::{Bench, LONG, eventually, id};
use crate::nodes::{claim, connect, held, node, ready, report, reserve, show, slot};

/// Short, and long enough for what a busy machine does first.
const SHORT: Duration = Duration::from_secs(2);

pub async fn nothing_is_reserved_until_all_slots_are_known(b: Bench) {
    let bus = b.join().await;
    assert_eq!(reserve(&bus, "n", &[1]).await, [Reserved::NotReady], "nothing is known of it");
    assert_eq!(bus.held_slots(&node("n"), &[]).await.unwrap().holder, None);
    let first = connect(&bus, "n", &report(2), &[slot(1)]).await;
    assert_eq!(reserve(&bus, "n", &[1, 2]).await, [Reserved::Yes, Reserved::NotReady]);
    let unknown = bus.held_slots(&node("n"), &[slot(1), slot(2)]).await.unwrap();
    let holder = Some(id("a-1"));
    assert_eq!((&unknown.holder, unknown.age, unknown.is_taken), (&holder, None, vec![true, false]));
    let second = connect(&bus, "n", &report(2), &[slot(1)]).await;
    assert!(!second.is_complete, "a new connection knows no more than the one before");
    assert_eq!(bus.complete_node(&node("n"), first.epoch, &[]).await.unwrap(), Written::Replaced);
    assert_eq!(reserve(&bus, "n", &[2]).await, [Reserved::NotReady]);
    bus.complete_node(&node("n"), second.epoch, &[slot(1)]).await.unwrap();
    assert_eq!(reserve(&bus, "n", &[2, 3]).await, [Reserved::Yes, Reserved::Full]);
    let known = bus.held_slots(&node("n"), &[slot(1), slot(2), slot(3)]).await.unwrap();
    assert_eq!((known.age, known.is_taken), (Some(Duration::ZERO), vec![true, true, false]));
    bus.disconnect_node(&node("n"), second.epoch, LONG).await.unwrap();
    assert_eq!(bus.held_slots(&node("n"), &[]).await.unwrap().holder, None, "it is not connected");
}

pub async fn a_slot_is_reserved_then_sent_then_free(b: Bench) {
    let (lane, holder) = (b.join().await, b.join().await);
    let n = node("n");
    let epoch = ready(&holder, "n", 1).await;
    let send = async |job| holder.send_slots(&n, epoch, &[slot(job)]).await.unwrap()[0];
    let unreserve = async |job| lane.unreserve_slots(&n, &[claim(job)]).await.unwrap()[0];

    assert!(!send(1).await, "what was not reserved is not sent");
    assert_eq!(unreserve(1).await, Unreserved::Absent);
    assert_eq!(reserve(&lane, "n", &[1]).await, [Reserved::Yes]);
    assert_eq!(unreserve(1).await, Unreserved::Removed);
    assert!(!send(1).await, "what was taken back is not sent");
    assert_eq!(reserve(&lane, "n", &[1]).await, [Reserved::Yes]);
    assert!(send(1).await && send(1).await, "as often as one asks");
    assert_eq!(unreserve(1).await, Unreserved::WasSent);
    assert_eq!(reserve(&lane, "n", &[1, 2]).await, [Reserved::Yes, Reserved::Full]);
    let other_attempt = Slot { attempt: Attempt::new(2), ..slot(1) };
    lane.free_slots(&n, &[other_attempt, slot(2)]).await.unwrap();
    assert_eq!(held(&lane, "n", &[1]).await, [1], "only that very attempt is freed");
    lane.free_slots(&n, &[slot(1)]).await.unwrap();
    lane.free_slots(&n, &[slot(1)]).await.unwrap();
    assert!(!send(1).await, "what is over is not sent");
    assert_eq!(unreserve(1).await, Unreserved::Absent);
    assert_eq!(reserve(&lane, "n", &[2]).await, [Reserved::Yes]);
    lane.free_slots(&n, &[slot(2)]).await.unwrap();
    assert_eq!(show(&lane, "n").await.unwrap().used, 0, "a reservation is freed as well");
    lane.free_slots(&node("unknown"), &[slot(2)]).await.unwrap();
}

pub async fn a_slot_is_passed_on_with_nobody_in_between(b: Bench) {
    let (lane, holder) = (b.join().await, b.join().await);
    let n = node("n");
    let epoch = ready(&holder, "n", 1).await;
    let pass =
        async |over, follows| holder.pass_slots(&n, epoch, &[(slot(over), slot(follows))]).await.unwrap()[0];
    assert!(!pass(1, 2).await, "there is nothing to pass on");
    assert_eq!(reserve(&lane, "n", &[1]).await, [Reserved::Yes]);
    assert!(!pass(1, 2).await, "what was not sent is not over");
    assert_eq!(held(&lane, "n", &[1, 2]).await, [], "and free all the same");
    assert_eq!(reserve(&lane, "n", &[1]).await, [Reserved::Yes]);
    assert_eq!(holder.send_slots(&n, epoch, &[slot(1)]).await.unwrap(), [true]);
    assert!(pass(1, 2).await && pass(1, 2).await, "as often as one asks");
    assert_eq!(held(&lane, "n", &[1, 2]).await, [2]);
    assert_eq!(reserve(&lane, "n", &[3]).await, [Reserved::Full]);
    assert_eq!(lane.unreserve_slots(&n, &[claim(2)]).await.unwrap(), [Unreserved::WasSent]);
    assert!(!pass(1, 4).await, "a slot is passed on once");
    let chain = [(slot(2), slot(5)), (slot(5), slot(6))];
    assert_eq!(holder.pass_slots(&n, epoch, &chain).await.unwrap(), [true, true]);
    assert_eq!((held(&lane, "n", &[2, 5, 6]).await, show(&lane, "n").await.unwrap().used), (vec![6], 1));
    // What the node had when it connected is passed on as well; an older connection passes nothing on.
    let newer = connect(&holder, "n", &report(1), &[slot(6)]).await;
    assert!(!pass(6, 7).await);
    assert_eq!(held(&lane, "n", &[6, 7]).await, [], "it is over, whoever says so");
    let newer = connect(&holder, "n", &report(1), &[slot(8)]).await.epoch.max(newer.epoch);
    assert_eq!(holder.pass_slots(&n, newer, &[(slot(8), slot(9))]).await.unwrap(), [true]);
    assert_eq!(held(&lane, "n", &[8, 9]).await, [9]);
    assert_eq!(holder.pass_slots(&node("unknown"), epoch, &chain).await.unwrap(), [false, false]);
}

pub async fn reserving_again_changes_nothing(b: Bench) {
    let bus = b.join().await;
    ready(&bus, "n", 2).await;
    assert_eq!(
        reserve(&bus, "n", &[1, 1, 2, 3]).await,
        [Reserved::Yes, Reserved::Yes, Reserved::Yes, Reserved::Full]
    );
    assert_eq!(reserve(&bus, "n", &[1, 2]).await, [Reserved::Yes; 2]);
    assert_eq!(show(&bus, "n").await.unwrap().used, 2);
    assert_eq!(reserve(&bus, "n", &[]).await, []);
    let n = node("n");
    bus.free_slots(&n, &[slot(1)]).await.unwrap();
    bus.reserve_slots(&n, &[claim(1)], SHORT).await.unwrap();
    bus.reserve_slots(&n, &[claim(1)], LONG).await.unwrap();
    eventually("no time was gained", async || held(&bus, "n", &[1, 2]).await == [2]).await;
}

pub async fn a_reservation_ends_with_its_time_and_what_was_sent_does_not(b: Bench) {
    let bus = b.join().await;
    let (n, epoch) = (node("n"), ready(&bus, "n", 2).await);
    bus.reserve_slots(&n, &[claim(1), claim(2)], SHORT).await.unwrap();
    assert_eq!(bus.send_slots(&n, epoch, &[slot(1)]).await.unwrap(), [true]);
    assert_eq!(show(&bus, "n").await.unwrap().used, 2);
    assert_eq!(reserve(&bus, "n", &[3]).await, [Reserved::Full]);
    eventually("its time is over", async || show(&bus, "n").await.unwrap().used == 1).await;
    assert_eq!(held(&bus, "n", &[1, 2]).await, [1]);
    assert_eq!(reserve(&bus, "n", &[3, 4]).await, [Reserved::Yes, Reserved::Full]);
    assert_eq!(bus.send_slots(&n, epoch, &[slot(2)]).await.unwrap(), [false]);
    assert_eq!(bus.unreserve_slots(&n, &[claim(2)]).await.unwrap(), [Unreserved::Absent]);
}

pub async fn what_a_later_owner_reserved_an_earlier_one_cannot_give_back(b: Bench) {
    let (earlier, later) = (b.join().await, b.join().await);
    let n = node("n");
    ready(&later, "n", 1).await;
    let by = |token| [Claim { slot: slot(1), token: Token::new(token) }];
    assert_eq!(earlier.reserve_slots(&n, &by(9), LONG).await.unwrap(), [Reserved::Yes]);
    assert_eq!(later.reserve_slots(&n, &by(10), LONG).await.unwrap(), [Reserved::Yes]);
    assert_eq!(earlier.reserve_slots(&n, &by(9), LONG).await.unwrap(), [Reserved::Yes]);
    assert_eq!(earlier.unreserve_slots(&n, &by(9)).await.unwrap(), [Unreserved::Absent]);
    assert_eq!(show(&later, "n").await.unwrap().used, 1, "it is one slot all the time");
    assert_eq!(later.unreserve_slots(&n, &by(11)).await.unwrap(), [Unreserved::Removed]);
    assert_eq!(show(&later, "n").await.unwrap().used, 0);
}

pub async fn a_node_that_drains_reserves_nothing_new_and_sends_what_was_reserved(b: Bench) {
    let bus = b.join().await;
    let (n, epoch) = (node("n"), ready(&bus, "n", 3).await);
    reserve(&bus, "n", &[1]).await;
    for state in [NodeState::Draining, NodeState::Unhealthy] {
        let now = Report { state, ..report(3) };
        bus.refresh_node(&n, epoch, &now, &[]).await.unwrap();
        assert_eq!(reserve(&bus, "n", &[1, 2]).await, [Reserved::Yes, Reserved::NotReady]);
        assert_eq!(bus.send_slots(&n, epoch, &[slot(1)]).await.unwrap(), [true]);
    }
    bus.refresh_node(&n, epoch, &report(3), &[]).await.unwrap();
    assert_eq!(reserve(&bus, "n", &[2]).await, [Reserved::Yes]);
}

pub async fn what_runs_beyond_the_capacity_counts(b: Bench) {
    let bus = b.join().await;
    let connected = connect(&bus, "n", &report(2), &[slot(1), slot(2), slot(3)]).await;
    bus.complete_node(&node("n"), connected.epoch, &[slot(3), slot(4)]).await.unwrap();
    for (over, used) in [(4, 4), (3, 3), (2, 2)] {
        assert_eq!(show(&bus, "n").await.unwrap().used, used);
        assert_eq!(reserve(&bus, "n", &[9]).await, [Reserved::Full]);
        bus.free_slots(&node("n"), &[slot(over)]).await.unwrap();
    }
    assert_eq!(reserve(&bus, "n", &[9]).await, [Reserved::Yes]);
}

pub async fn fifty_at_once_never_take_more_than_the_capacity(b: Bench) {
    const CAPACITY: u32 = 7;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let instances = [b.join().await, b.join().await, b.join().await];
    let epoch = ready(&instances[0], "n", CAPACITY).await;
    let taken = Arc::new(AtomicUsize::new(0));
    let reserver = |who: u64| {
        let (bus, taken) = (instances[who as usize % instances.len()].clone(), taken.clone());
        async move {
            let (mut random, n, mut got) = (StdRng::seed_from_u64(seed ^ who), node("n"), 0);
            for round in 0..30 {
                let jobs: Vec<u128> =
                    (0..random.random_range(1..4)).map(|n| (u128::from(who) << 32) + round * 4 + n).collect();
                let answers = reserve(&bus, "n", &jobs).await;
                let mine: Vec<_> = jobs.iter().zip(answers).filter(|(_, it)| *it == Reserved::Yes).collect();
                let mine: Vec<_> = mine.into_iter().map(|(job, _)| *job).collect();
                let now = taken.fetch_add(mine.len(), Ordering::SeqCst) + mine.len();
                assert!(now <= CAPACITY as usize, "{now} at once, seed {seed}");
                got += mine.len();
                let slots: Vec<_> = mine.iter().map(|job| slot(*job)).collect();
                let claims: Vec<_> = mine.iter().map(|job| claim(*job)).collect();
                let is_sent = random.random_bool(0.7);
                if is_sent {
                    let sent = bus.send_slots(&n, epoch, &slots).await.unwrap();
                    assert_eq!(sent, vec![true; slots.len()], "seed {seed}");
                }
                // The count drops before the slots are free for others.
                taken.fetch_sub(mine.len(), Ordering::SeqCst);
                if is_sent {
                    bus.free_slots(&n, &slots).await.unwrap();
                } else {
                    let answers = bus.unreserve_slots(&n, &claims).await.unwrap();
                    assert_eq!(answers, vec![Unreserved::Removed; slots.len()], "seed {seed}");
                }
            }
            got
        }
    };
    let reservers: Vec<_> = (0..50).map(|who| tokio::spawn(reserver(who))).collect();
    let mut got = 0;
    for reserver in reservers {
        got += reserver.await.unwrap();
    }
    assert!(got >= CAPACITY as usize, "some got slots, seed {seed}");
    assert_eq!(show(&instances[0], "n").await.unwrap().used, 0, "all were given back, seed {seed}");
}
