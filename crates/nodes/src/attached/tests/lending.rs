//! Slots that the bus lends to this instance, until another one wants them.

use super::*;
use crate::limits::SHARED_MS;

const SHARED: Duration = Duration::from_millis(SHARED_MS);

impl Rig {
    /// The bus has it, and lends its slots.
    fn lent(running: &[u128]) -> Self {
        let mut rig = Self::opened();
        rig.frames([Self::hello(running)]);
        rig.apply(registered(running, &[], true));
        rig.apply(refreshed(2));
        rig
    }

    /// The same with these attempts sent and acknowledged.
    fn lent_and_busy(running: &[u128]) -> Self {
        let mut rig = Self::lent(&[]);
        for n in running {
            assert_eq!(rig.reserve(&[*n]), Some(vec![Reserved::Yes]));
            assert_eq!(rig.apply(wanted([own(*n)])), [format!("dispatch {n}")]);
            rig.frames([FromNode::Ack(slot(*n))]);
        }
        rig
    }

    /// So long later, with all heartbeats of that time, which list these, and their answers.
    fn beat_for(&mut self, time: Duration, running: &[u128]) {
        let end = self.now + time;
        while self.now < end {
            self.after(TIMEOUTS.heartbeat.min(end - self.now));
            let effects = self.effects(Event::Frames(vec![heartbeat(running)]));
            let taken = effects.into_iter().find_map(|effect| match effect {
                Effect::Refresh { taken, .. } => Some(taken),
                _ => None,
            });
            let written = Ok(Written::Done(Version::new(4)));
            let taken = taken.expect("each heartbeat is written down");
            self.effects(Event::Refreshed { written, is_lent: false, freed: vec![], taken });
        }
    }
}

#[test]
fn the_bus_lends_the_slots_as_long_as_nobody_else_wants_any() {
    let mut rig = Rig::opened();
    rig.frames([Rig::hello(&[7])]);
    assert_eq!(rig.reserve(&[1]), None, "the node is not welcomed yet");
    let effects = rig.apply(registered(&[7], &[], true));
    assert_eq!(effects[4..], ["refresh lent [] Some([7])".to_owned()]);
    assert_eq!(rig.reserve(&[1, 2, 3]), Some(vec![Reserved::Yes, Reserved::Yes, Reserved::Full]));
    // No word says what is taken, and none is waited for.
    assert_eq!(rig.apply(wanted([own(1)])), ["dispatch 1"]);
    assert_eq!(rig.apply(refreshed(2)), ["record 2 used 3"]);
    rig.frames([FromNode::Ack(slot(1))]);
    assert_eq!(rig.frames([result(1)]), ["commit [1] passing"]);
    assert_eq!(rig.apply(committed(1, true, Some(4))), ["slot freed 1", "committed 1", "dispatch 4"]);
    rig.frames([result(4)]);
    assert_eq!(rig.apply(committed(4, true, None)), ["committed 4", "slot freed 4", "count freed 1"]);
    // What was reserved at the bus before is sent there.
    assert_eq!(rig.apply(wanted([own(5)])), ["send slots [5]"]);
    assert_eq!(rig.reserve(&[6]), Some(vec![Reserved::Full]), "what is being sent counts");
    assert_eq!(rig.apply(sent([5], Ok(vec![true]))), ["dispatch 5"]);
    assert_eq!(rig.frames([heartbeat(&[5, 7])])[1..], ["refresh lent [] Some([2, 5, 7])", "heartbeat_ok"]);
    assert_eq!(rig.apply(answered(Err(unknown()), Some(&[2, 5, 7]))), ["note used 3"]);
    rig.after(TIMEOUTS.reservation);
    assert_eq!(rig.apply(wanted([own(2)])), ["send slots [2]"], "what was given is so no more");
}

#[test]
fn who_wants_a_lent_slot_gets_a_list_of_what_is_taken_first() {
    let mut rig = Rig::lent_and_busy(&[1]);
    rig.reserve(&[2]);
    assert_eq!(rig.frames([result(1)]), ["commit [1] passing"]);
    // What follows the result on its slot would be on no list.
    assert_eq!(rig.apply(wanted([FromLane::Share])), Vec::<String>::new());
    assert_eq!(
        rig.frames([heartbeat(&[1])])[0],
        "refresh lent [] Some([1, 2])",
        "the record lives on meanwhile"
    );
    rig.apply(answered(Ok(Written::Done(Version::new(3))), Some(&[1, 2])));
    let effects = rig.apply(committed(1, true, Some(8)));
    assert_eq!(effects, ["slot freed 1", "committed 1", "dispatch 8", "refresh [] Some([2, 8])"]);
    assert_eq!(rig.reserve(&[3]), None, "the bus may give it by now");
    assert_eq!(rig.apply(wanted([own(2)])), ["dispatch 2"], "what was given is on the list");
    let foreign = |n| FromLane::Dispatch { dispatch: dispatch(n), is_foreign: true };
    assert_eq!(rig.apply(wanted([foreign(3)])), Vec::<String>::new(), "held back until the list is there");
    assert_eq!(rig.frames([result(8)]), ["commit [8]"]);
    assert_eq!(rig.apply(committed(8, true, None)), ["committed 8", "slot freed 8", "free [8]"]);
    let effects = rig.apply(answered(Ok(Written::Done(Version::new(3))), Some(&[2, 8])));
    assert_eq!(effects[..3], ["slot freed 8", "free [8]", "send slots [3]"].map(str::to_owned));
    rig.apply(sent([3], Ok(vec![true])));
    rig.apply(answered(Ok(Written::Done(Version::new(4))), None));
    // While others send jobs it stays so; then the bus lends the slots again, once nothing is on its way.
    rig.beat_for(SHARED - TIMEOUTS.heartbeat, &[2, 3]);
    rig.apply(wanted([foreign(4)]));
    rig.apply(sent([4], Ok(vec![false])));
    rig.beat_for(SHARED - TIMEOUTS.heartbeat, &[2, 3]);
    assert_eq!(rig.frames([heartbeat(&[2, 3])]), ["refresh [] None", "heartbeat_ok"]);
    rig.apply(answered(Ok(Written::Done(Version::new(5))), None));
    assert_eq!(rig.apply(wanted([own(4)])), ["send slots [4]"]);
    rig.after(TIMEOUTS.heartbeat);
    assert_eq!(rig.frames([heartbeat(&[2, 3])]), ["heartbeat_ok"], "a dispatch is on its way");
    assert_eq!(rig.apply(wanted([own(6)])), Vec::<String>::new(), "held back");
    let effects = rig.apply(sent([4], Ok(vec![false])));
    assert_eq!(effects, ["undeliverable 4", "refresh lent [] Some([2, 3])"]);
    assert_eq!(rig.reserve(&[7]), None, "it is not lent yet");
    let effects = rig.apply(answered(Ok(Written::Done(Version::new(6))), Some(&[2, 3])));
    assert_eq!(effects, ["send slots [6]", "record 6 used 2 of a heartbeat"]);
    assert_eq!(rig.reserve(&[7]), Some(vec![Reserved::Full]), "what is being sent counts");
}

#[test]
fn a_slot_whose_attempt_is_with_the_node_is_not_taken_as_an_unlisted_one_too() {
    let mut rig = Rig::lent_and_busy(&[1, 2]);
    assert_eq!(rig.apply(answered(Ok(Written::Lost), None)), ["register [1, 2]"]);
    // One of them was sent after the list was made.
    rig.apply(registered(&[2], &[1], true));
    assert_eq!(rig.reserve(&[3, 4]), Some(vec![Reserved::Yes, Reserved::Full]));
    rig.frames([result(1)]);
    rig.apply(committed(1, true, None));
    assert_eq!(rig.reserve(&[4, 5]), Some(vec![Reserved::Yes, Reserved::Full]), "its slot is free");

    // This one comes later.
    let mut rig = Rig::lent(&[]);
    assert_eq!(rig.apply(answered(Ok(Written::Lost), None)), ["register []"]);
    rig.apply(registered(&[], &[1], true));
    assert_eq!(rig.apply(wanted([own(1)])), ["send slots [1]"]);
    rig.apply(sent([1], Ok(vec![true])));
    assert_eq!(rig.reserve(&[2, 3, 4]), Some(vec![Reserved::Yes, Reserved::Yes, Reserved::Full]));
    // So does this one, and is not sent: it stays taken until it is freed as unlisted.
    let mut rig = Rig::lent(&[]);
    assert_eq!(rig.apply(answered(Ok(Written::Lost), None)), ["register []"]);
    rig.apply(registered(&[], &[1], true));
    assert_eq!(rig.apply(wanted([own(1)])), ["send slots [1]"]);
    rig.apply(sent([1], Ok(vec![false])));
    assert_eq!(rig.reserve(&[2, 3, 4]), Some(vec![Reserved::Yes, Reserved::Yes, Reserved::Full]));
    // This one is called off before it comes.
    let mut rig = Rig::lent(&[]);
    assert_eq!(rig.apply(answered(Ok(Written::Lost), None)), ["register []"]);
    rig.apply(registered(&[], &[1], true));
    assert_eq!(rig.reserve(&[2, 3, 4]), Some(vec![Reserved::Yes, Reserved::Yes, Reserved::Full]));
    rig.apply(wanted([FromLane::Cancel(slot(1))]));
    assert_eq!(rig.reserve(&[4]), Some(vec![Reserved::Yes]));
}

#[test]
fn a_word_that_is_not_answered_takes_nothing_lent_away() {
    for (error, gives) in [(away(), true), (unknown(), false)] {
        let mut rig = Rig::lent(&[]);
        rig.apply(wanted([FromLane::Share]));
        rig.apply(answered(Err(error), Some(&[])));
        assert_eq!(rig.reserve(&[1]).is_some(), gives);
        rig.after(AUTHORITY);
        assert_eq!(rig.reserve(&[1]), Some(vec![Reserved::Yes]));
    }
    let mut rig = Rig::lent(&[]);
    rig.is_bus_up = false;
    rig.frames([heartbeat(&[])]);
    assert_eq!(rig.reserve(&[1]), Some(vec![Reserved::Yes]), "a word that lends them again shares nothing");
    rig.apply(answered(Err(unknown()), Some(&[])));
    assert_eq!(rig.reserve(&[2]), Some(vec![Reserved::Yes]));
    assert_eq!(rig.apply(answered(Ok(Written::Lost), None)), ["register [1, 2]"].map(str::to_owned));
    assert_eq!(rig.reserve(&[3]), Some(vec![Reserved::Yes]), "a record that was lost is nobody's");
    rig.node.leave();
    assert_eq!(rig.reserve(&[1]), None);
}

#[test]
fn an_attempt_whose_commit_took_long_is_not_sent_any_more() {
    for mut rig in [Rig::busy(&[1]), Rig::lent_and_busy(&[1])] {
        rig.frames([result(1)]);
        rig.after(TIMEOUTS.reservation);
        assert_eq!(rig.apply(committed(1, true, Some(2)))[0], "undeliverable 2");
    }
}

#[test]
fn a_list_that_may_land_later_is_followed_by_another() {
    let mut rig = Rig::registered(&[]);
    rig.beat_for(SHARED - TIMEOUTS.heartbeat, &[]);
    rig.after(TIMEOUTS.heartbeat);
    assert_eq!(rig.frames([heartbeat(&[])])[0], "refresh lent [] Some([])");
    rig.apply(answered(Err(unknown()), Some(&[])));
    assert_eq!(rig.apply(wanted([FromLane::Share])), ["refresh [] Some([])"]);
}
