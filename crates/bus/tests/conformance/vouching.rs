//! What the holder of a node's connection vouches for, and what becomes of slots that it gave out by itself.

use std::time::Duration;

use bus::limits::NODE_YOUNGER_MS;
use bus::{Claim, Connecting, Epoch, NewConnection, NodeState, Report, Reserved, Unreserved, Written};

use crate::bench::{Bench, LONG, eventually, id};
use crate::nodes::{claim, connect, held, new, node, ready, report, reserve, show, slot};

/// Short, and long enough to be seen once.
const SHORT: Duration = Duration::from_millis(300);

pub async fn nothing_is_reserved_that_nobody_vouches_for(b: Bench) {
    let (holder, lane) = (b.join().await, b.join().await);
    let (n, brief) = (node("n"), Report { vouched: Some(SHORT), ..report(3) });
    let epoch = connect(&holder, "n", &brief, &[]).await.epoch;
    holder.complete_node(&n, epoch, &[]).await.unwrap();
    // Told anew, in case that it was over before anybody looked.
    eventually("it is reserved", async || {
        holder.refresh_node(&n, epoch, &brief, &[]).await.unwrap();
        reserve(&lane, "n", &[1]).await == [Reserved::Yes]
    })
    .await;
    eventually("it is vouched for no more", async || {
        lane.held_slots(&n, &[slot(1)]).await.unwrap().age.is_none()
    })
    .await;
    assert_eq!(
        reserve(&lane, "n", &[1, 2]).await,
        [Reserved::Yes, Reserved::NotReady],
        "what has a slot has it"
    );
    assert_eq!(held(&lane, "n", &[1, 2]).await, [1]);
    assert_eq!(holder.send_slots(&n, epoch, &[slot(1)]).await.unwrap(), [true]);
    let again = connect(&holder, "n", &report(3), &[slot(1)]).await;
    assert!(again.is_complete, "all slots are known");
    assert_eq!(reserve(&lane, "n", &[2]).await, [Reserved::NotReady], "and that alone vouches for nothing");
    holder.refresh_node(&n, again.epoch, &report(3), &[]).await.unwrap();
    assert_eq!(reserve(&lane, "n", &[2]).await, [Reserved::Yes]);
}

pub async fn nothing_is_reserved_of_what_is_lent_to_the_holder(b: Bench) {
    let (holder, lane) = (b.join().await, b.join().await);
    let (n, lent) = (node("n"), Report { vouched: None, ..report(4) });
    let age = async || lane.held_slots(&n, &[]).await.unwrap().age;
    let unreserve = async |jobs: &[u128]| {
        let claims: Vec<_> = jobs.iter().map(|job| claim(*job)).collect();
        lane.unreserve_slots(&n, &claims).await.unwrap()
    };
    let epoch = connect(&holder, "n", &lent, &[]).await.epoch;
    holder.complete_node(&n, epoch, &[slot(1)]).await.unwrap();
    assert_eq!(reserve(&lane, "n", &[1, 2]).await, [Reserved::Yes, Reserved::NotReady]);
    assert_eq!(age().await, None, "the holder has not listed them yet");
    // Shared, and lent again: an earlier word vouches no more.
    holder.recount_node(&n, epoch, &report(4), &[slot(1)]).await.unwrap();
    assert_eq!(age().await, Some(Duration::ZERO));
    assert_eq!(reserve(&lane, "n", &[2, 3]).await, [Reserved::Yes; 2]);
    assert_eq!(unreserve(&[9]).await, [Unreserved::Absent]);
    holder.recount_node(&n, epoch, &lent, &[slot(1), slot(5)]).await.unwrap();
    assert_eq!(reserve(&lane, "n", &[2, 4]).await, [Reserved::Yes, Reserved::Lent]);
    assert_eq!(held(&lane, "n", &[1, 2, 3, 4, 5]).await, [1, 2, 3, 5], "reservations stay");
    tokio::time::sleep(SHORT).await;
    assert!(age().await.unwrap() >= SHORT, "it is as old as the list");
    assert_eq!(
        unreserve(&[3, 5, 4]).await,
        [Unreserved::Removed, Unreserved::WasSent, Unreserved::Unknown],
        "the holder may have given it"
    );
    assert_eq!(holder.send_slots(&n, epoch, &[slot(2), slot(4)]).await.unwrap(), [true, false]);
    // Without a list the record knows no more than before.
    holder.refresh_node(&n, epoch, &lent, &[slot(5)]).await.unwrap();
    assert!(age().await.unwrap() >= SHORT);
    let unhealthy = Report { state: NodeState::Unhealthy, ..lent.clone() };
    holder.recount_node(&n, epoch, &unhealthy, &[]).await.unwrap();
    assert_eq!(reserve(&lane, "n", &[4]).await, [Reserved::NotReady], "nobody would get it");
    // A newer connection, which is lent the slots too, and one which is not.
    holder.recount_node(&n, epoch, &report(4), &[]).await.unwrap();
    let next = connect(&lane, "n", &lent, &[]).await;
    assert!(next.is_complete && age().await.is_none());
    assert_eq!(reserve(&holder, "n", &[4]).await, [Reserved::NotReady]);
    let last = connect(&lane, "n", &report(4), &[]).await;
    lane.refresh_node(&n, last.epoch, &report(4), &[]).await.unwrap();
    assert_eq!(reserve(&holder, "n", &[4]).await, [Reserved::Yes]);
    lane.disconnect_node(&n, last.epoch, LONG).await.unwrap();
    assert_eq!(unreserve(&[4]).await, [Unreserved::Absent], "with the node all its slots are gone");
    let nobody = lane.unreserve_slots(&node("m"), &[claim(4)]).await.unwrap();
    assert_eq!(nobody, [Unreserved::Unknown], "a record that is not there says nothing");
}

pub async fn a_recount_is_all_that_was_sent_and_leaves_what_is_reserved(b: Bench) {
    let (holder, lane) = (b.join().await, b.join().await);
    let (n, epoch) = (node("n"), ready(&holder, "n", 4).await);
    reserve(&lane, "n", &[1, 2, 3]).await;
    assert_eq!(holder.send_slots(&n, epoch, &[slot(1), slot(2)]).await.unwrap(), [true; 2]);
    let before = show(&lane, "n").await.unwrap().version;
    // The first is over; the fourth and fifth were given out by the holder.
    let taken = [slot(2), slot(4), slot(5)];
    for _ in 0..2 {
        let Written::Done(version) = holder.recount_node(&n, epoch, &report(4), &taken).await.unwrap() else {
            panic!("it is the newest connection");
        };
        assert!(version > before);
        assert_eq!(held(&lane, "n", &[1, 2, 3, 4, 5]).await, [2, 3, 4, 5]);
    }
    assert_eq!(reserve(&lane, "n", &[6]).await, [Reserved::Full]);
    assert_eq!(
        lane.unreserve_slots(&n, &[claim(3), claim(4)]).await.unwrap(),
        [Unreserved::Removed, Unreserved::WasSent]
    );
    // One that is reserved and was given out as well is one slot.
    reserve(&lane, "n", &[7]).await;
    holder.recount_node(&n, epoch, &report(4), &[slot(7)]).await.unwrap();
    assert_eq!(held(&lane, "n", &[2, 4, 5, 7]).await, [7]);
    let claim = Claim { token: domain::Token::new(9), ..claim(7) };
    assert_eq!(lane.unreserve_slots(&n, &[claim]).await.unwrap(), [Unreserved::WasSent]);
    let newer = connect(&lane, "n", &report(4), &[]).await;
    assert_eq!(holder.recount_node(&n, epoch, &report(4), &taken).await.unwrap(), Written::Replaced);
    lane.disconnect_node(&n, newer.epoch, LONG).await.unwrap();
    assert_eq!(lane.recount_node(&n, newer.epoch, &report(4), &taken).await.unwrap(), Written::Lost);
    assert_eq!(show(&lane, "n").await.unwrap().used, 0);
}

pub async fn an_older_connection_takes_no_node_from_a_younger_one(b: Bench) {
    let (one, other) = (b.join().await, b.join().await);
    let (n, old) = (node("n"), LONG);
    let connect = async |bus: &bus::Handle, holder, age| {
        let holder = id(holder);
        bus.connect_node(&n, &NewConnection { age, ..new(&holder) }, &report(1), &[]).await.unwrap().done()
    };
    let younger = connect(&one, "a-1", Duration::ZERO).await.unwrap();
    assert_eq!(connect(&other, "a-2", old).await, None);
    let shown = show(&other, "n").await.unwrap();
    assert_eq!((shown.holder, shown.epoch), (id("a-1"), younger.epoch), "it changed nothing");
    let again = connect(&one, "a-1", old).await.expect("an instance knows its own connections");
    assert!(again.epoch > younger.epoch);
    let newest = connect(&other, "a-2", Duration::ZERO).await.unwrap();
    assert!(newest.epoch > again.epoch);
    other.disconnect_node(&n, newest.epoch, LONG).await.unwrap();
    assert!(connect(&one, "a-1", old).await.is_some(), "nobody has it");
    // One that does not hear of the node has it in name only.
    let newest = connect(&other, "a-2", Duration::ZERO).await.unwrap();
    let unhealthy = Report { state: NodeState::Unhealthy, ..report(1) };
    assert_eq!(connect(&one, "a-1", old).await, None);
    let written = other.refresh_node(&n, newest.epoch, &unhealthy, &[]).await.unwrap();
    assert!(matches!(written, Written::Done(_)), "{written:?}");
    assert!(connect(&one, "a-1", old).await.is_some(), "the other does not hear of it");
    // Nor has one whose instance is gone, as long as it is that one.
    let newest = connect(&other, "a-2", Duration::ZERO).await.unwrap();
    let over = async |epoch| {
        let holder = id("a-1");
        let new = NewConnection { age: old, over: Some(epoch), ..new(&holder) };
        one.connect_node(&n, &new, &report(1), &[]).await.unwrap().done().is_some()
    };
    assert!(!over(again.epoch).await, "another one has it meanwhile");
    assert!(over(newest.epoch).await, "the other's instance is gone");
    assert_eq!(show(&other, "n").await.unwrap().holder, id("a-1"));
    let written = other.refresh_node(&n, newest.epoch, &report(1), &[]).await.unwrap();
    assert_eq!(written, Written::Replaced);
    assert!(connect(&other, "a-2", Duration::ZERO).await.is_some(), "the younger one takes it back");
}

pub async fn of_two_connections_of_one_age_the_one_that_came_last_keeps_the_node(b: Bench) {
    let (one, other) = (b.join().await, b.join().await);
    let (n, now, old) = (node("n"), Duration::ZERO, LONG);
    let connect = async |bus: &bus::Handle, holder, age, had| {
        let holder = id(holder);
        let new = NewConnection { age, had, ..new(&holder) };
        bus.connect_node(&n, &new, &report(1), &[]).await.unwrap()
    };
    // Whichever of the two is the older one by a little.
    for (age, others) in [(SHORT, now), (now, SHORT)] {
        let had = Some(connect(&one, "a-1", age, None).await.done().unwrap().epoch);
        let last = connect(&other, "a-2", others, None).await.done().unwrap().epoch;
        assert_eq!(connect(&one, "a-1", age, had).await, Connecting::Younger);
        let shown = show(&one, "n").await.unwrap();
        assert_eq!((shown.holder, shown.epoch), (id("a-2"), last), "it changed nothing");
        let again = connect(&other, "a-2", others, Some(last)).await.done().expect("it is its own");
        assert_eq!(connect(&one, "a-1", age, had).await, Connecting::Younger);
        // A server that lost the newest connection knows an earlier one.
        let lost = Some(Epoch::new(again.epoch.get() + 1));
        assert!(connect(&one, "a-1", age, lost).await.done().is_some());
        let last = connect(&other, "a-2", others, None).await.done().unwrap().epoch;
        // One that does not hear of the node has it in name only.
        let unhealthy = Report { state: NodeState::Unhealthy, ..report(1) };
        other.refresh_node(&n, last, &unhealthy, &[]).await.unwrap();
        let had = connect(&one, "a-1", age, had).await.done().expect("the other does not hear of it").epoch;
        assert_eq!(connect(&other, "a-2", others, Some(last)).await, Connecting::Younger, "and keeps it");
        one.disconnect_node(&n, had, LONG).await.unwrap();
        assert!(connect(&other, "a-2", others, Some(last)).await.done().is_some(), "nobody has it");
        // One that is younger for certain takes it, though it had it before.
        connect(&other, "a-2", old, Some(last)).await.done().unwrap();
        let had = connect(&one, "a-1", age, Some(had)).await.done().expect("it is younger").epoch;
        one.disconnect_node(&n, had, LONG).await.unwrap();
    }
}

pub async fn an_old_connection_that_comes_late_takes_no_node_from_a_younger_one(b: Bench) {
    let (one, other) = (b.join().await, b.join().await);
    let (n, alike) = (node("n"), Duration::from_millis(NODE_YOUNGER_MS));
    let connect = async |bus: &bus::Handle, holder, age, had| {
        let holder = id(holder);
        let new = NewConnection { age, had, ..new(&holder) };
        bus.connect_node(&n, &new, &report(1), &[]).await.unwrap()
    };
    // Its instance was frozen, and the node went to another meanwhile. The two seem equally old.
    let younger = connect(&one, "a-1", alike * 2, None).await.done().unwrap();
    assert_eq!(connect(&other, "a-2", alike * 3, None).await, Connecting::Younger);
    let shown = show(&other, "n").await.unwrap();
    assert_eq!((shown.holder, shown.epoch), (id("a-1"), younger.epoch), "it changed nothing");
    // One that had the node later than the other takes it back from a server that has forgotten that.
    let lost = Some(Epoch::new(younger.epoch.get() + 1));
    let again = connect(&other, "a-2", alike * 3, lost).await.done().expect("it had it last");
    // The younger one takes it, however late, if it comes for the first time.
    let had = Some(again.epoch);
    let late = connect(&one, "a-1", alike * 2, None).await.done().expect("it is younger").epoch;
    assert_eq!(connect(&other, "a-2", alike * 3, had).await, Connecting::Younger, "and keeps it");
    assert!(connect(&one, "a-1", alike * 2, Some(late)).await.done().is_some(), "it is its own");
}
