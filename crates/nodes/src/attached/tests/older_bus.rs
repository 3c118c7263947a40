//! What an attached node does when the bus may have come back with an older state of its record, or does not know all that is
//! taken.

use super::*;

impl Rig {
    /// The link to the bus broke and was made anew.
    fn bus_comes_back(&mut self) {
        self.up_since = self.after(Duration::from_millis(1)).now;
    }
}

fn done(version: u64, taken: &[u128]) -> Event {
    answered(Ok(Written::Done(Version::new(version))), Some(taken))
}

#[test]
fn a_bus_that_comes_back_is_told_all_that_is_taken_before_anything_is_asked_of_it() {
    let mut rig = Rig::busy(&[1, 2]);
    rig.bus_comes_back();
    assert_eq!(rig.apply(Event::Tick), ["refresh [] Some([1, 2])"]);
    assert_eq!(rig.apply(Event::Tick), Vec::<String>::new(), "once");
    assert_eq!(rig.apply(wanted([own(3)])), Vec::<String>::new(), "held back");
    assert_eq!(rig.frames([result(1)]), ["commit [1]"], "its slot is not passed on there");
    assert_eq!(rig.apply(committed(1, true, None)), ["committed 1", "slot freed 1", "free [1]"]);
    let effects = rig.apply(done(9, &[1, 2]));
    assert_eq!(effects, ["slot freed 1", "free [1]", "send slots [3]", "record 9 used 1", "refresh [] None"]);
    assert_eq!(rig.apply(sent([3], Ok(vec![true]))), ["dispatch 3"]);
}

#[test]
fn a_word_that_was_sent_before_the_bus_came_back_does_not_count() {
    let mut rig = Rig::busy(&[1]);
    assert_eq!(rig.frames([heartbeat(&[1])])[0], "refresh [] None");
    rig.bus_comes_back();
    assert_eq!(rig.apply(refreshed(5)), ["record 5 used 1 of a heartbeat", "refresh [] Some([1])"]);
    // Nor does a list.
    rig.bus_comes_back();
    assert_eq!(rig.apply(wanted([own(2)])), Vec::<String>::new());
    assert_eq!(rig.apply(done(6, &[1])), ["record 6 used 1", "refresh [] Some([1])"]);
    assert_eq!(rig.apply(done(7, &[1])), ["send slots [2]", "record 7 used 1"]);
}

#[test]
fn what_is_on_its_way_to_the_node_when_the_bus_comes_back_is_on_the_list() {
    let mut rig = Rig::busy(&[1]);
    assert_eq!(rig.apply(wanted([own(2)])), ["send slots [2]"]);
    rig.bus_comes_back();
    assert_eq!(rig.apply(Event::Tick), Vec::<String>::new());
    assert_eq!(rig.apply(sent([2], Ok(vec![true]))), ["dispatch 2", "refresh [] Some([1, 2])"]);
}

#[test]
fn a_word_that_is_sent_while_the_link_is_down_lists_all_that_is_taken() {
    let mut rig = Rig::busy(&[1]);
    rig.is_bus_up = false;
    assert_eq!(rig.apply(Event::Tick), Vec::<String>::new(), "nobody is there to be told");
    assert_eq!(rig.frames([heartbeat(&[1])])[0], "refresh [] Some([1])");
    rig.is_bus_up = true;
    rig.bus_comes_back();
    assert_eq!(rig.apply(done(5, &[1])), ["record 5 used 1 of a heartbeat", "refresh [] Some([1])"]);
    // A bus that does not know the connection gets the slots when it is registered there.
    let mut alone = Rig::alone(&[1]);
    alone.is_bus_up = true;
    alone.bus_comes_back();
    assert_eq!(alone.apply(Event::Tick), Vec::<String>::new());
}

#[test]
fn after_a_call_that_failed_all_that_is_taken_is_listed_although_the_link_was_not_broken() {
    let refresh = |rig: &mut Rig| {
        rig.frames([heartbeat(&[1])]);
        rig.apply(answered(Err(unknown()), None));
    };
    let send = |rig: &mut Rig| {
        rig.apply(wanted([own(2)]));
        rig.apply(sent([2], Err(away())));
    };
    for (what, fail) in [("refresh", &refresh as &dyn Fn(&mut Rig)), ("send", &send)] {
        let mut rig = Rig::busy(&[1]);
        fail(&mut rig);
        assert_eq!(rig.apply(wanted([own(3)])), ["refresh [] Some([1])"], "{what}");
        assert_eq!(rig.apply(done(8, &[1]))[0], "send slots [3]", "{what}");
    }
}

#[test]
fn every_second_heartbeat_lists_all_that_is_taken_although_no_call_failed() {
    let mut rig = Rig::busy(&[1]);
    for (version, lists) in [(5, false), (6, true), (7, false), (8, true)] {
        rig.after(TIMEOUTS.heartbeat);
        let word = if lists { "refresh [] Some([1])" } else { "refresh [] None" };
        assert_eq!(rig.frames([heartbeat(&[1])])[0], word);
        let answer = if lists { done(version, &[1]) } else { refreshed(version) };
        assert_eq!(rig.apply(answer), [format!("record {version} used 1 of a heartbeat")]);
    }
    assert_eq!(rig.apply(wanted([own(2)])), ["send slots [2]"], "the list was heard");
}

#[test]
fn while_a_message_takes_long_to_arrive_the_record_is_written_as_with_heartbeats() {
    let mut rig = Rig::busy(&[1]);
    let since = rig.now;
    let nothing = Vec::<String>::new();
    assert_eq!(rig.after(TIMEOUTS.heartbeat / 2).apply(Event::Arriving { since }), nothing);
    rig.after(TIMEOUTS.heartbeat / 2);
    for (version, lists) in [(5, false), (6, true), (7, false), (8, true)] {
        let word = if lists { "refresh [] Some([1])" } else { "refresh [] None" };
        assert_eq!(rig.apply(Event::Arriving { since }), [word]);
        let answer = if lists { done(version, &[1]) } else { refreshed(version) };
        assert_eq!(rig.apply(answer), [format!("record {version} used 1")]);
        assert_eq!(rig.apply(Event::Arriving { since }), nothing);
        rig.after(TIMEOUTS.heartbeat);
    }
}

#[test]
fn a_list_that_is_due_waits_for_no_dispatch_that_comes_later() {
    let mut rig = Rig::busy(&[1]);
    rig.frames([heartbeat(&[1])]);
    rig.apply(refreshed(5));
    assert_eq!(rig.apply(wanted([own(2)])), ["send slots [2]"]);
    assert_eq!(rig.frames([heartbeat(&[1])]), ["heartbeat_ok"], "it would free what is being sent");
    assert_eq!(rig.apply(wanted([own(3)])), Vec::<String>::new(), "held back");
    assert_eq!(rig.apply(sent([2], Ok(vec![true]))), ["dispatch 2", "refresh [] Some([1, 2])"]);
    assert_eq!(rig.apply(done(6, &[1, 2])), ["send slots [3]", "record 6 used 2 of a heartbeat"]);
}

#[test]
fn a_list_that_is_due_waits_for_slots_that_are_being_passed_on_but_not_for_long() {
    let with_a_result = || {
        let mut rig = Rig::busy(&[1, 2]);
        rig.frames([heartbeat(&[1, 2])]);
        rig.apply(refreshed(5));
        assert_eq!(rig.frames([result(1)]), ["commit [1] passing"]);
        assert_eq!(rig.frames([heartbeat(&[1, 2])])[0], "refresh [] None");
        rig.apply(refreshed(6));
        rig
    };
    let mut rig = with_a_result();
    let effects = rig.apply(committed(1, true, Some(3)));
    assert_eq!(effects, ["committed 1", "slot freed 1", "pass [1] to [3]"]);
    let passed = Event::Passed { passed: Ok(vec![true]), over: slots(&[1]), dispatches: vec![dispatch(3)] };
    assert_eq!(rig.apply(passed), ["dispatch 3", "refresh [] Some([2, 3])"]);
    // Results that come meanwhile pass no slot on, or the list would wait for ever.
    let mut rig = with_a_result();
    assert_eq!(rig.frames([result(2)]), ["commit [2]"]);
    assert_eq!(rig.frames([heartbeat(&[1, 2])])[0], "refresh [] Some([1, 2])");
}

#[test]
fn a_slot_that_is_taken_again_after_it_was_free_is_listed_before_anything_is_asked_of_the_bus() {
    let mut rig = Rig::registered(&[]);
    rig.apply(wanted([own(1)]));
    rig.apply(sent([1], Ok(vec![true])));
    assert_eq!(rig.apply(wanted([FromLane::Cancel(slot(1))])), ["cancel 1"]);
    // The node says nothing of it until its slot is free.
    rig.after(TIMEOUTS.ack);
    assert_eq!(rig.frames([heartbeat(&[])]), ["refresh [] None", "heartbeat_ok"]);
    rig.apply(refreshed(3));
    rig.after(TIMEOUTS.heartbeat / 2);
    let effects = rig.frames([heartbeat(&[])]);
    assert_eq!(effects, ["unlisted 1", "slot freed 1", "refresh [1] Some([])", "heartbeat_ok"]);
    rig.apply(done(4, &[]));
    // It runs all the same.
    assert_eq!(rig.frames([heartbeat(&[1])]), ["refresh [] Some([1])", "heartbeat_ok"]);
    assert_eq!(rig.apply(wanted([own(2)])), Vec::<String>::new(), "held back");
    assert_eq!(rig.apply(done(5, &[1]))[0], "send slots [2]");
}
