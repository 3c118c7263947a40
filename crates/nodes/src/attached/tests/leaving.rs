//! What is left of a node whose socket is closed, and what becomes of what was on its way to it.

use super::*;

#[test]
fn after_the_end_only_what_was_dispatched_is_told() {
    assert!(Rig::registered(&[]).node.departure().is_none(), "it has not left");
    let mut nobody = Rig::greeted(&[1]);
    nobody.node.leave();
    assert!(nobody.node.departure().is_none(), "it was never registered");

    let mut rig = Rig::busy(&[1, 2]);
    rig.apply(wanted([own(3)]));
    rig.apply(sent([3], Ok(vec![true])));
    rig.frames([result(1)]);
    rig.after(Duration::from_secs(1));
    rig.node.leave();
    assert_eq!(rig.apply(committed(1, true, Some(4))), ["undeliverable 4"]);
    let passed = Event::Passed { passed: Ok(vec![true]), over: slots(&[1]), dispatches: vec![dispatch(5)] };
    assert_eq!(rig.apply(passed), ["undeliverable 5"]);
    for event in [refreshed(9), Event::Tick, Event::RegisterAgain, contested()] {
        assert_eq!(rig.apply(event), Vec::<String>::new());
    }
    let departure = rig.node.departure().unwrap();
    let held: HashSet<_> = departure.slots.iter().copied().collect();
    assert_eq!(held, slots(&[1, 2, 3]).into_iter().collect());
    assert_eq!((departure.unanswered, departure.at_bus), (slots(&[3]), AtBus::Known));
    assert_eq!(departure.record.status.state, NodeState::Unhealthy);
    assert_eq!(departure.heard, rig.now.checked_sub(Duration::from_secs(1)).unwrap());

    // Registered too late: its record is taken back.
    for (mut late, at_bus) in [
        (Rig::greeted(&[1]), AtBus::KnownLate),
        (Rig::alone(&[1]), AtBus::KnownLate),
        (Rig::registered(&[1]), AtBus::Known),
    ] {
        late.node.leave();
        assert_eq!(late.apply(registered(&[1], &[], true)), Vec::<String>::new());
        let departure = late.node.departure().unwrap();
        assert_eq!((departure.record.stamp.epoch, departure.at_bus), (Epoch::new(7), at_bus));
    }
}

#[test]
fn the_slots_of_a_node_that_leaves_stay_taken_also_where_its_connection_was_ended_here() {
    let mut closed_by_node = Rig::busy(&[1, 2]);
    let mut closed_here = Rig::busy(&[1, 2]);
    assert_eq!(closed_here.apply(Event::Superseded), ["close Replaced"]);
    for rig in [&mut closed_by_node, &mut closed_here] {
        rig.node.leave();
        let Departure { record, slots, .. } = rig.node.departure().unwrap();
        assert_eq!((record.status.used, slots.len()), (2, 2));
    }
}

#[test]
fn a_node_fell_silent_only_where_its_heartbeats_stopped() {
    let mut silent = Rig::registered(&[]);
    silent.after(TIMEOUTS.offline);
    assert!(silent.apply(Event::Tick).contains(&"close Protocol".to_owned()));
    let mut broken = Rig::registered(&[]);
    assert_eq!(broken.apply(Event::Unreadable("what?".to_owned())), ["close Protocol"]);
    let mut left = Rig::registered(&[]);
    for (rig, fell_silent) in [(&mut silent, true), (&mut broken, false), (&mut left, false)] {
        rig.node.leave();
        assert_eq!(rig.node.departure().unwrap().fell_silent, fell_silent);
    }
}

#[test]
fn dispatches_on_their_way_to_a_node_that_leaves_are_told_to_be_undeliverable() {
    for (what, answer) in
        [("sent", Ok(vec![true, true])), ("gone", Ok(vec![false, false])), ("not known", Err(unknown()))]
    {
        let mut rig = Rig::busy(&[1]);
        assert_eq!(rig.apply(wanted([own(2), own(3)])), ["send slots [2, 3]"]);
        assert!(rig.node.leave().is_empty(), "they are answered first");
        assert_eq!(rig.apply(sent([2, 3], answer)), ["undeliverable 2", "undeliverable 3"], "{what}");
        assert_eq!(rig.node.departure().unwrap().slots, slots(&[1]), "{what}");
    }
}

#[test]
fn what_is_called_off_on_its_way_to_a_node_that_leaves_has_no_slot_once_it_came_to_nothing() {
    let mut rig = Rig::busy(&[1]);
    assert_eq!(rig.apply(wanted([own(2)])), ["send slots [2]"]);
    rig.frames([result(1)]);
    let effects = rig.apply(committed(1, true, Some(3)));
    assert_eq!(effects, ["committed 1", "slot freed 1", "pass [1] to [3]"]);
    rig.apply(wanted([FromLane::Cancel(slot(2)), FromLane::Cancel(slot(3))]));
    assert!(rig.node.leave().is_empty(), "they are answered first");
    assert_eq!(rig.apply(sent([2], Ok(vec![true]))), ["undeliverable 2", "slot freed 2"]);
    let passed = Event::Passed { passed: Ok(vec![true]), over: slots(&[1]), dispatches: vec![dispatch(3)] };
    assert_eq!(rig.apply(passed), ["undeliverable 3", "slot freed 3"]);
}

#[test]
fn a_dispatch_whose_frame_was_not_sent_before_the_socket_was_closed_is_undeliverable_and_has_no_slot() {
    let mut rig = Rig::busy(&[1]);
    for n in [2, 3] {
        rig.apply(wanted([own(n)]));
        rig.apply(sent([n], Ok(vec![true])));
    }
    rig.apply(wanted([FromLane::Cancel(slot(3))]));
    assert!(rig.node.leave().is_empty());
    let effects: Vec<_> = rig.node.take_back(slots(&[1, 3])).iter().map(name).collect();
    assert_eq!(effects, ["undeliverable 3", "slot freed 3"], "the node has acknowledged the first one");
    let departure = rig.node.departure().unwrap();
    let held: HashSet<_> = departure.slots.iter().copied().collect();
    assert_eq!(held, slots(&[1, 2]).into_iter().collect());
    assert_eq!((departure.unanswered, departure.record.status.used), (slots(&[2]), 2));
}

#[test]
fn dispatches_that_are_held_back_are_refused_when_the_node_leaves() {
    let mut rig = Rig::registered(&[]);
    rig.after(AUTHORITY);
    assert_eq!(rig.reserve(&[1]), Some(vec![Reserved::Yes]), "nobody vouches for it");
    assert_eq!(rig.frames([heartbeat(&[])])[0], "refresh [] Some([1])");
    assert_eq!(rig.apply(wanted([own(5), own(6)])), Vec::<String>::new());
    rig.apply(wanted([FromLane::Cancel(slot(6))]));
    let effects: Vec<_> = rig.node.leave().iter().map(name).collect();
    assert_eq!(effects, ["undeliverable 5", "undeliverable 6", "slot freed 6"]);
    assert_eq!(rig.node.called_off, HashSet::new());
    let late = answered(Ok(Written::Done(Version::new(2))), Some(&[1]));
    assert_eq!(rig.apply(late), Vec::<String>::new(), "once");
}
