//! Tables of what an attached node does at each event, and random sequences against a bus that answers as it likes.

mod contest;
mod early;
mod leaving;
mod lending;
mod older_bus;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bus::{Claim, Connected, Epoch, Error, NodeState, Reserved, Slot, Version, Written};
use domain::job::{Attempt, Spec};
use domain::{InstanceId, JobId, NodeId, NodeTimeouts, Token};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::connection::{FromNode, ToNode};
use crate::holder_slots::GivenBack;
use crate::limits::VOUCHED_MARGIN_MS;

const CAPACITY: u32 = 3;
/// Longer than this instance leaves slots to the bus after a call that may have been heard.
const TIMEOUTS: NodeTimeouts = NodeTimeouts::DEFAULT;
const AUTHORITY: Duration = Duration::from_millis(TIMEOUTS.vouched.as_millis() as u64 + VOUCHED_MARGIN_MS);

fn slot(n: u128) -> Slot {
    Slot { job: JobId::from_u128(n), attempt: Attempt::new(1) }
}

fn slots(numbers: &[u128]) -> Vec<Slot> {
    numbers.iter().map(|n| slot(*n)).collect()
}

fn dispatch(n: u128) -> Dispatch {
    Dispatch { slot: slot(n), node_job: Spec::new("1").node_job(None, None) }
}

fn result(n: u128) -> FromNode {
    FromNode::Result { slot: slot(n), end: End::Succeeded { output: "1".to_owned() } }
}

fn heartbeat(running: &[u128]) -> FromNode {
    FromNode::Heartbeat { load: Load::default(), running: slots(running) }
}

fn claim(n: u128) -> Claim {
    Claim { slot: slot(n), token: Token::new(1) }
}

fn cause() -> Arc<std::io::Error> {
    Arc::new(std::io::Error::other("away"))
}

/// Nothing was done, and it may be asked again.
fn away() -> Error {
    Error::Unavailable { source: cause() }
}

/// It may have been done.
fn unknown() -> Error {
    Error::Unknown { source: cause() }
}

/// What an effect is, for comparing the order of many.
fn name(effect: &Effect) -> String {
    let numbers = |slots: &[Slot]| {
        let mut numbers: Vec<_> = slots.iter().map(|slot| slot.job.as_u128()).collect();
        numbers.sort_unstable();
        numbers
    };
    let of =
        |dispatches: &[Dispatch]| dispatches.iter().map(|one| one.slot.job.as_u128()).collect::<Vec<_>>();
    match effect {
        Effect::Send(ToNode::Welcome { .. }) => "welcome".to_owned(),
        Effect::Send(ToNode::HeartbeatOk { .. }) => "heartbeat_ok".to_owned(),
        Effect::Send(ToNode::Dispatch(one)) => format!("dispatch {}", one.slot.job.as_u128()),
        Effect::Send(ToNode::Cancel(slot)) => format!("cancel {}", slot.job.as_u128()),
        Effect::Send(ToNode::Committed(slot)) => format!("committed {}", slot.job.as_u128()),
        Effect::Send(ToNode::Stale(slot)) => format!("stale {}", slot.job.as_u128()),
        Effect::Close { code, .. } => format!("close {code:?}"),
        Effect::Attach { .. } => "attach".to_owned(),
        Effect::Acknowledged(slot) => format!("acknowledged {}", slot.job.as_u128()),
        Effect::Progressed { slot, .. } => format!("progressed {}", slot.job.as_u128()),
        Effect::CameToNothing { slot, kind, .. } => format!("{} {}", kind.as_str(), slot.job.as_u128()),
        Effect::SlotFreed(slot) => format!("slot freed {}", slot.job.as_u128()),
        Effect::Commit { results, terms } => {
            let of: Vec<_> = results.iter().map(|(slot, _)| slot.job.as_u128()).collect();
            format!("commit {of:?}{}", if terms.may_pass { " passing" } else { "" })
        }
        Effect::LookUp { running } => format!("look up {:?}", numbers(running)),
        Effect::Record { record, heartbeat_at } => {
            let beat = if heartbeat_at.is_some() { " of a heartbeat" } else { "" };
            format!("record {} used {}{beat}", record.stamp.version, record.status.used)
        }
        Effect::Note(record) => format!("note used {}", record.status.used),
        Effect::CountFreed(count) => format!("count freed {count}"),
        Effect::TellOf => "tell of".to_owned(),
        Effect::Register { running, over: None, .. } => format!("register {:?}", numbers(running)),
        Effect::Register { running, over: Some(over), .. } => {
            format!("register {:?} over {over}", numbers(running))
        }
        Effect::RegisterLater => "register later".to_owned(),
        Effect::Refresh { report, freed, taken } => {
            let lent = if report.vouched.is_none() { "lent " } else { "" };
            let taken = taken.as_deref().map(numbers);
            format!("refresh {lent}{:?} {taken:?}", numbers(freed))
        }
        Effect::SendSlots(dispatches) => format!("send slots {:?}", of(dispatches)),
        Effect::PassSlots { over, dispatches } => format!("pass {:?} to {:?}", numbers(over), of(dispatches)),
        Effect::FreeSlots { slots, was_full } => {
            format!("free {:?}{}", numbers(slots), if *was_full { " of a full node" } else { "" })
        }
    }
}

struct Rig {
    node: AttachedNode,
    now: Instant,
    is_bus_up: bool,
    /// Since when, while it is.
    up_since: Instant,
    /// Whether the last word had the bus lend the slots.
    is_lent: bool,
    /// The terms of the last commit.
    terms: CommitTerms,
}

impl Rig {
    fn opened() -> Self {
        let now = Instant::now();
        let me = InstanceId::parse("here-1").unwrap();
        let node = AttachedNode::opened(me, TIMEOUTS, now);
        let terms = CommitTerms { may_pass: false, came_at: now };
        Self { node, now, is_bus_up: true, up_since: now, is_lent: false, terms }
    }

    /// Of a node of which another instance wanted slots a moment ago.
    fn shared() -> Self {
        let mut rig = Self::opened();
        rig.apply(wanted([FromLane::Share]));
        rig
    }

    /// Has said hello, and runs these; its slots are shared.
    fn greeted(running: &[u128]) -> Self {
        let mut rig = Self::shared();
        assert_eq!(rig.frames([Self::hello(running)]), [format!("register {running:?}")]);
        rig
    }

    /// The bus has it, and its first refresh is answered.
    fn registered(running: &[u128]) -> Self {
        let mut rig = Self::greeted(running);
        rig.apply(registered(running, &[], true));
        rig.apply(refreshed(2));
        rig
    }

    /// The bus was away at its hello.
    fn alone(running: &[u128]) -> Self {
        let mut rig = Self::greeted(running);
        rig.is_bus_up = false;
        rig.apply(register_failed(away()));
        rig
    }

    /// With these attempts sent and acknowledged.
    fn busy(running: &[u128]) -> Self {
        let mut rig = Self::registered(&[]);
        for n in running {
            rig.apply(wanted([own(*n)]));
            rig.apply(sent([*n], Ok(vec![true])));
            rig.frames([FromNode::Ack(slot(*n))]);
        }
        rig
    }

    fn hello(running: &[u128]) -> FromNode {
        FromNode::Hello(Hello {
            node: NodeId::parse("n").unwrap(),
            capacity: CAPACITY,
            takes_batches: true,
            labels: Arc::from([]),
            services: Arc::from([]),
            pools: None,
            software: None,
            is_drained: false,
            principal: "".into(),
            running: slots(running),
        })
    }

    fn effects(&mut self, mut event: Event) -> Vec<Effect> {
        match &mut event {
            Event::Registered { is_lent, .. } | Event::Refreshed { is_lent, .. } => *is_lent = self.is_lent,
            Event::Committed { terms, .. } => *terms = self.terms,
            _ => {}
        }
        let bus_up_since = self.is_bus_up.then_some(self.up_since);
        let effects = self.node.apply(event, Moment { now: self.now, bus_up_since });
        for effect in &effects {
            if let Effect::Register { report, .. } | Effect::Refresh { report, .. } = effect {
                self.is_lent = report.vouched.is_none();
            }
            if let Effect::Commit { terms, .. } = effect {
                self.terms = *terms;
            }
        }
        effects
    }

    /// A lane wants slots of this instance.
    fn reserve(&self, numbers: &[u128]) -> Option<Vec<Reserved>> {
        let claims: Vec<_> = numbers.iter().map(|n| claim(*n)).collect();
        self.node.holder_slots().reserve(&claims, self.now + TIMEOUTS.reservation, self.now)
    }

    fn apply(&mut self, event: Event) -> Vec<String> {
        self.effects(event).iter().map(name).collect()
    }

    fn frames<const N: usize>(&mut self, frames: [FromNode; N]) -> Vec<String> {
        self.apply(Event::Frames(frames.into()))
    }

    fn after(&mut self, time: Duration) -> &mut Self {
        self.now += time;
        self
    }
}

fn registered(taken: &[u128], unlisted: &[u128], is_complete: bool) -> Event {
    let connected = Connected { epoch: Epoch::new(7), version: Version::new(1), is_complete };
    let known = Known { connected, taken: slots(taken), unlisted: slots(unlisted) };
    Event::Registered { known: Ok(Registering::Done(known)), is_lent: false, provisional: Epoch::new(1) }
}

fn register_failed(error: Error) -> Event {
    Event::Registered { known: Err(error), is_lent: false, provisional: Epoch::new(1) }
}

const fn contested() -> Event {
    contested_by(8, true)
}

const fn anothers() -> Event {
    Event::Registered { known: Ok(Registering::Anothers), is_lent: false, provisional: Epoch::new(1) }
}

const fn contested_by(epoch: u64, is_there: bool) -> Event {
    let rival = Rival { epoch: Epoch::new(epoch), is_there };
    Event::Registered { known: Ok(Registering::Contested(rival)), is_lent: false, provisional: Epoch::new(1) }
}

fn refreshed(version: u64) -> Event {
    answered(Ok(Written::Done(Version::new(version))), None)
}

fn answered(written: bus::Result<Written>, taken: Option<&[u128]>) -> Event {
    Event::Refreshed { written, is_lent: false, freed: vec![], taken: taken.map(slots) }
}

fn wanted<const N: usize>(wishes: [FromLane; N]) -> Event {
    Event::Wanted(wishes.into())
}

fn sent<const N: usize>(numbers: [u128; N], sent: bus::Result<Vec<bool>>) -> Event {
    Event::Sent { sent, dispatches: numbers.map(dispatch).into() }
}

fn committed(n: u128, is_recorded: bool, next: Option<u128>) -> Event {
    let committed = vec![Committed { slot: slot(n), is_recorded, next: next.map(dispatch) }];
    Event::Committed { committed, terms: CommitTerms { may_pass: false, came_at: Instant::now() } }
}

/// A dispatch of a lane of this instance.
fn own(n: u128) -> FromLane {
    FromLane::Dispatch { dispatch: dispatch(n), is_foreign: false }
}

#[test]
fn a_node_is_registered_then_attached_and_welcomed() {
    let mut rig = Rig::greeted(&[1]);
    assert_eq!(
        rig.apply(registered(&[1], &[], true)),
        ["attach", "record 1 used 1", "welcome", "acknowledged 1", "refresh [] None"]
    );
    assert_eq!(rig.node.epoch(), Some(Epoch::new(7)));
    assert_eq!(rig.apply(refreshed(2)), ["record 2 used 1"]);
    assert_eq!(rig.frames([heartbeat(&[1])]), ["refresh [] None", "heartbeat_ok"]);
    assert_eq!(rig.apply(refreshed(3)), ["record 3 used 1 of a heartbeat"]);
}

#[test]
fn what_a_node_listed_is_kept_once_when_it_is_attached() {
    for rig in [Rig::registered(&[1, 2]), Rig::alone(&[1, 2])] {
        assert_eq!(rig.node.connection.slot_count(), 2);
        assert_eq!(rig.node.hello.unwrap().running.capacity(), 0, "its slots say what it has");
    }
}

#[test]
fn every_answer_to_registering_leads_somewhere() {
    let refused = || Error::Address("no".to_owned());
    for (what, event, expected) in [
        (
            "complete",
            registered(&[], &[], true),
            &["attach", "record 1 used 0", "welcome", "refresh [] None"][..],
        ),
        // Once more until the ledger has said what is unfinished; the refresh waits for that.
        (
            "without the ledger",
            registered(&[], &[], false),
            &["attach", "record 1 used 0", "welcome", "register later", "note used 0"],
        ),
        ("taken by another", contested(), &["register later"]),
        ("another token's", anothers(), &["close Unauthorized"]),
        (
            "away",
            register_failed(away()),
            &["attach", "look up []", "welcome", "note used 0", "register later"],
        ),
        // It may have been done, so the bus may give slots.
        ("unknown", register_failed(unknown()), &["register later"]),
        ("refused", register_failed(refused()), &["register later"]),
    ] {
        assert_eq!(Rig::greeted(&[]).apply(event), expected, "{what}");
    }
    let mut again = Rig::registered(&[]);
    assert_eq!(again.apply(answered(Ok(Written::Lost), None)), ["register []"]);
    assert_eq!(again.frames([heartbeat(&[])]), ["note used 0", "heartbeat_ok"], "one call at a time");
    assert_eq!(again.apply(register_failed(away())), ["register later"], "it is attached already");
    assert_eq!(again.apply(Event::RegisterAgain), ["register []"]);
    assert_eq!(again.apply(registered(&[], &[], true)), ["record 1 used 0", "refresh [] None"]);
}

#[test]
fn a_node_of_another_token_is_turned_away_with_what_it_said() {
    let mut early = Rig::greeted(&[1]);
    assert_eq!(early.frames([result(1)]), Vec::<String>::new());
    assert_eq!(early.apply(anothers()), ["close Unauthorized"], "its result is not committed");
    early.node.leave();
    assert!(early.node.departure().is_none(), "nothing of it is left");
    // Also where it was attached while nobody could say whose the id is.
    let mut alone = Rig::greeted(&[]);
    alone.apply(register_failed(away()));
    assert_eq!(alone.apply(Event::RegisterAgain), ["register []"]);
    assert_eq!(alone.apply(anothers()), ["close Unauthorized"]);
    alone.node.leave();
    for event in [anothers(), Event::Tick, Event::RegisterAgain] {
        assert_eq!(alone.apply(event), Vec::<String>::new());
    }
}

#[test]
fn a_dispatch_leaves_when_its_slot_is_sent() {
    for (what, answer, expected) in [
        ("sent", Ok(vec![true]), &["dispatch 1"][..]),
        ("gone", Ok(vec![false]), &["undeliverable 1"]),
        ("not known", Err(unknown()), &["undeliverable 1", "slot freed 1", "free [1]"]),
    ] {
        let mut rig = Rig::registered(&[]);
        assert_eq!(rig.apply(wanted([own(1)])), ["send slots [1]"]);
        assert_eq!(rig.apply(sent([1], answer)), expected, "{what}");
    }
    // Called off on its way.
    let mut rig = Rig::registered(&[]);
    rig.apply(wanted([own(1)]));
    assert_eq!(rig.apply(wanted([FromLane::Cancel(slot(1))])), Vec::<String>::new());
    assert_eq!(rig.apply(sent([1], Ok(vec![true]))), ["slot freed 1", "free [1]"]);
    // With the node, and with nobody.
    let mut rig = Rig::busy(&[1]);
    assert_eq!(rig.apply(wanted([FromLane::Cancel(slot(1))])), ["cancel 1"]);
    assert_eq!(rig.apply(wanted([FromLane::Cancel(slot(9))])), ["slot freed 9", "free [9]"]);
    // More than the node has slots.
    let mut rig = Rig::busy(&[1, 2, 3]);
    rig.apply(wanted([own(4)]));
    assert_eq!(
        rig.apply(sent([4], Ok(vec![true]))),
        ["undeliverable 4", "slot freed 4", "free [4] of a full node"]
    );
}

#[test]
fn a_dispatch_that_is_delivered_twice_is_asked_for_once() {
    let mut rig = Rig::registered(&[]);
    assert_eq!(rig.apply(wanted([own(1), own(1)])), ["send slots [1]"]);
    assert!(rig.apply(wanted([own(1)])).is_empty(), "its slot is being sent");
    assert_eq!(rig.apply(sent([1], Ok(vec![true]))), ["dispatch 1"]);
    assert!(rig.apply(wanted([own(1)])).is_empty(), "it is with the node");
    rig.frames([FromNode::Ack(slot(1))]);
    assert!(rig.apply(wanted([own(1)])).is_empty(), "it runs");
}

#[test]
fn while_the_bus_is_away_this_instance_gives_the_slots() {
    let mut rig = Rig::alone(&[]);
    let all = [Reserved::Yes, Reserved::Yes, Reserved::Yes, Reserved::Full];
    assert_eq!(rig.reserve(&[1, 2, 3, 4]), Some(all.to_vec()));
    assert_eq!(rig.apply(wanted([own(1)])), ["dispatch 1"]);
    assert_eq!(rig.apply(wanted([own(9)])), ["undeliverable 9"], "it was not given");
    assert_eq!(rig.node.holder_slots().give_back(claim(2), rig.now), GivenBack::Free);
    // The bus is back. The record lists what is taken, and then the bus gives slots again.
    rig.is_bus_up = true;
    assert_eq!(rig.apply(Event::RegisterAgain), ["register [1, 3]"].map(str::to_owned), "{:?}", rig.node);
    assert_eq!(rig.reserve(&[4]), None, "the bus may give them by now");
    let effects = rig.apply(registered(&[1], &[], true));
    assert_eq!(effects, ["record 1 used 2", "refresh [] Some([1, 3])"], "3 was given meanwhile");
    assert_eq!(rig.apply(wanted([own(5)])), Vec::<String>::new(), "held back");
    let effects = rig.apply(answered(Ok(Written::Done(Version::new(2))), Some(&[1, 3])));
    assert_eq!(effects, ["send slots [5]", "record 2 used 2", "refresh [] None"]);
}

#[test]
fn this_instance_gives_nothing_while_the_bus_may() {
    let mut rig = Rig::registered(&[]);
    assert_eq!(rig.reserve(&[1]), None, "it vouched a moment ago");
    // A call under way may be heard at any time.
    rig.after(AUTHORITY * 2);
    rig.apply(wanted([FromLane::Share]));
    assert_eq!(rig.reserve(&[1]), None);
    assert_eq!(rig.apply(answered(Err(away()), None)), ["note used 0"]);
    assert_eq!(rig.reserve(&[1]), Some(vec![Reserved::Yes]));
    // One that may have been heard counts as heard.
    let mut rig = Rig::registered(&[]);
    rig.after(AUTHORITY);
    rig.frames([heartbeat(&[])]);
    rig.apply(answered(Err(unknown()), None));
    assert_eq!(rig.reserve(&[1]), None);
}

#[test]
fn dispatches_that_are_held_back_are_refused_when_the_bus_does_not_answer() {
    let mut rig = Rig::registered(&[]);
    rig.after(AUTHORITY);
    assert_eq!(rig.reserve(&[1]), Some(vec![Reserved::Yes]), "nobody vouches for it");
    assert_eq!(rig.frames([heartbeat(&[])])[0], "refresh [] Some([1])");
    assert_eq!(rig.apply(wanted([own(5)])), Vec::<String>::new());
    rig.apply(wanted([FromLane::Cancel(slot(5))]));
    let effects = rig.apply(answered(Err(away()), Some(&[1])));
    assert_eq!(effects, ["undeliverable 5", "slot freed 5", "note used 1", "refresh [] Some([1])"]);
    assert_eq!(rig.node.called_off, HashSet::new());
}

#[test]
fn a_slot_that_ended_while_it_was_told_as_taken_is_freed_again() {
    let mut rig = Rig::busy(&[1, 2]);
    rig.after(AUTHORITY);
    rig.reserve(&[3]);
    assert_eq!(rig.frames([heartbeat(&[1, 2])])[0], "refresh [] Some([1, 2, 3])");
    rig.frames([result(1)]);
    assert_eq!(rig.apply(committed(1, true, None)), ["committed 1", "slot freed 1", "free [1]"]);
    let effects = rig.apply(answered(Ok(Written::Done(Version::new(5))), Some(&[1, 2, 3])));
    assert_eq!(effects, ["slot freed 1", "free [1]", "record 5 used 2 of a heartbeat"]);
}

#[test]
fn what_ended_while_the_record_was_made_anew_has_its_slot_freed_again() {
    let mut rig = Rig::busy(&[1, 2]);
    rig.frames([heartbeat(&[1, 2])]);
    assert_eq!(rig.apply(answered(Ok(Written::Lost), None)), ["register [1, 2]"].map(str::to_owned));
    rig.frames([result(1)]);
    rig.apply(committed(1, true, None));
    let effects = rig.apply(registered(&[1, 2], &[], true));
    assert_eq!(effects[1..], ["slot freed 1", "free [1]", "refresh [] None"].map(str::to_owned));
}

#[test]
fn a_result_is_answered_and_its_slot_is_freed_or_passed_on() {
    let with_result = || {
        let mut rig = Rig::busy(&[1]);
        assert_eq!(rig.frames([result(1)]), ["commit [1] passing"]);
        rig
    };
    assert_eq!(with_result().apply(committed(1, true, None)), ["committed 1", "slot freed 1", "free [1]"]);
    assert_eq!(with_result().apply(committed(1, false, None)), ["stale 1"], "the node may still list it");
    let effects = with_result().apply(committed(1, true, Some(2)));
    assert_eq!(effects, ["committed 1", "slot freed 1", "pass [1] to [2]"]);
    // The bus went away meanwhile.
    let mut rig = with_result();
    rig.is_bus_up = false;
    let effects = rig.apply(committed(1, true, Some(2)));
    assert_eq!(effects, ["undeliverable 2", "committed 1", "slot freed 1", "free [1]"]);
    // Without the bus no slot is passed on at all.
    let mut rig = Rig::busy(&[1]);
    rig.is_bus_up = false;
    assert_eq!(rig.frames([result(1)]), ["commit [1]"]);
    for (what, answer, expected) in [
        ("passed", Ok(vec![true]), &["dispatch 2"][..]),
        ("not passed", Ok(vec![false]), &["count freed 1", "undeliverable 2"]),
        (
            "not known",
            Err(unknown()),
            &["undeliverable 2", "slot freed 2", "free [2]", "refresh [1] Some([])"],
        ),
    ] {
        let mut rig = with_result();
        rig.apply(committed(1, true, Some(2)));
        let event = Event::Passed { passed: answer, over: slots(&[1]), dispatches: vec![dispatch(2)] };
        assert_eq!(rig.apply(event), expected, "{what}");
    }
}

#[test]
fn what_the_node_lists_no_more_is_told_and_freed_with_the_heartbeat() {
    let mut rig = Rig::busy(&[1, 2]);
    assert_eq!(
        rig.frames([heartbeat(&[2])]),
        ["unlisted 1", "slot freed 1", "refresh [1] None", "heartbeat_ok"]
    );
    // What was not heard by the bus is said again.
    let event = Event::Refreshed { written: Err(away()), is_lent: false, freed: slots(&[1]), taken: None };
    assert_eq!(rig.apply(event), ["note used 1"]);
    assert_eq!(rig.frames([heartbeat(&[2])]), ["refresh [1] Some([2])", "heartbeat_ok"]);
    // One refresh at a time; the next says how it is then.
    assert_eq!(rig.frames([heartbeat(&[2])]), ["heartbeat_ok"]);
    let done = answered(Ok(Written::Done(Version::new(9))), Some(&[2]));
    assert_eq!(rig.apply(done), ["record 9 used 1 of a heartbeat", "refresh [] None"]);
}

#[test]
fn what_could_not_be_freed_is_freed_with_the_next_refresh() {
    let mut rig = Rig::busy(&[1]);
    let freed = |left: &[u128], was_full| Event::Freed { left: slots(left), was_full };
    assert_eq!(rig.apply(freed(&[], false)), Vec::<String>::new());
    assert_eq!(rig.apply(freed(&[], true)), ["tell of"], "the others do not ask a full node again");
    assert_eq!(rig.apply(freed(&[7], false)), ["refresh [7] Some([1])"]);
    let mut alone = Rig::alone(&[]);
    assert_eq!(alone.apply(freed(&[7], true)), ["note used 0"], "the bus does not know of the node");
}

#[test]
fn slots_of_unlisted_attempts_are_freed_unless_their_dispatches_come_in_time() {
    let mut rig = Rig::greeted(&[]);
    rig.apply(registered(&[], &[1, 2], true));
    rig.apply(refreshed(2));
    rig.apply(wanted([own(1)]));
    rig.apply(sent([1], Ok(vec![true])));
    rig.frames([FromNode::Ack(slot(1))]);
    for _ in 0..9 {
        rig.after(Duration::from_secs(1)).frames([heartbeat(&[1])]);
        rig.apply(refreshed(3));
        assert_eq!(rig.apply(Event::Tick), Vec::<String>::new());
    }
    rig.after(Duration::from_secs(1)).frames([heartbeat(&[1])]);
    assert_eq!(rig.apply(Event::Tick), ["slot freed 2", "free [2]"]);
    assert_eq!(rig.apply(Event::Tick), Vec::<String>::new());
}

#[test]
fn what_ends_a_connection_closes_it_once() {
    for (what, event, code) in [
        ("unreadable", Event::Unreadable("what?".to_owned()), CloseCode::Protocol),
        ("twice hello", Event::Frames(vec![Rig::hello(&[])]), CloseCode::Protocol),
        ("superseded", Event::Superseded, CloseCode::Replaced),
        (
            "stopping",
            Event::Close { code: CloseCode::GoingAway, why: "stopping".to_owned() },
            CloseCode::GoingAway,
        ),
    ] {
        let mut rig = Rig::busy(&[1]);
        assert_eq!(rig.apply(event), [format!("close {code:?}")], "{what}");
        assert_eq!(rig.frames([heartbeat(&[1])]), Vec::<String>::new(), "{what}");
        assert_eq!(rig.apply(Event::Superseded), Vec::<String>::new(), "{what}");
    }
    let mut silent = Rig::registered(&[]);
    silent.apply(wanted([own(1)]));
    silent.apply(sent([1], Ok(vec![true])));
    silent.after(TIMEOUTS.unanswered);
    assert_eq!(silent.apply(Event::Tick), ["close Protocol"]);
}

/// What is under way at the bus and the lanes, in one random run.
#[derive(Default)]
struct UnderWay {
    events: Vec<Event>,
    registering: usize,
    refreshing: usize,
}

/// What must be so whatever the bus answers, in whatever order: one call of each kind at a time, a dispatch leaves only
/// with a slot that was sent or given, a node is welcomed once and before all else, nothing follows the close frame.
#[test]
fn random_answers_of_the_bus_break_no_rule() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut dice = StdRng::seed_from_u64(seed);
    for _ in 0..2_000 {
        let mut rig = Rig::greeted(&[]);
        let mut way = UnderWay { registering: 1, ..UnderWay::default() };
        way.events.push(registered(&[], &[], true));
        let (mut has_slot, mut with_node) = (HashSet::<Slot>::new(), HashSet::<Slot>::new());
        let (mut is_welcomed, mut is_closed) = (false, false);
        for step in 0..80_u128 {
            rig.after(Duration::from_millis(dice.random_range(0..400)));
            rig.is_bus_up = dice.random_bool(0.8);
            let any = |dice: &mut StdRng, of: &HashSet<Slot>| {
                let mut all: Vec<_> = of.iter().copied().collect();
                all.sort_unstable();
                (!all.is_empty()).then(|| all[dice.random_range(0..all.len())])
            };
            let event = match dice.random_range(0..10) {
                0..=3 if !way.events.is_empty() => {
                    way.events.swap_remove(dice.random_range(0..way.events.len()))
                }
                0 | 1 => {
                    let running: Vec<_> = with_node.iter().copied().collect();
                    Event::Frames(vec![FromNode::Heartbeat { load: Load::default(), running }])
                }
                2 | 3 => wanted([own(step)]),
                4 => {
                    if rig.reserve(&[step]) == Some(vec![Reserved::Yes]) {
                        has_slot.insert(slot(step));
                    }
                    if dice.random_bool(0.3) { wanted([FromLane::Share]) } else { Event::Tick }
                }
                5 => match any(&mut dice, &has_slot) {
                    Some(slot) => wanted([FromLane::Dispatch {
                        dispatch: Dispatch { slot, ..dispatch(0) },
                        is_foreign: false,
                    }]),
                    None => Event::Tick,
                },
                6 => match any(&mut dice, &with_node) {
                    Some(slot) => wanted([FromLane::Cancel(slot)]),
                    None => Event::Heard,
                },
                7 | 8 => match any(&mut dice, &with_node) {
                    Some(slot) => {
                        with_node.remove(&slot);
                        let end = End::Succeeded { output: "1".to_owned() };
                        Event::Frames(vec![FromNode::Result { slot, end }])
                    }
                    None => Event::Tick,
                },
                _ => Event::Tick,
            };
            match &event {
                Event::Registered { is_lent, .. } => {
                    way.registering -= 1;
                    rig.is_lent = *is_lent;
                }
                Event::RegisterAgain => way.registering -= 1,
                Event::Refreshed { is_lent, .. } => {
                    way.refreshing -= 1;
                    rig.is_lent = *is_lent;
                }
                Event::Sent { sent: Ok(sent), dispatches }
                | Event::Passed { passed: Ok(sent), dispatches, .. } => {
                    let of = dispatches.iter().zip(sent).filter(|(_, is_sent)| **is_sent);
                    has_slot.extend(of.map(|(one, _)| one.slot));
                }
                Event::Committed { committed, terms } => {
                    rig.terms = *terms;
                    // It passes slots on by itself.
                    if rig.node.authority.gives(rig.now) {
                        has_slot.extend(committed.iter().filter_map(|one| Some(one.next.as_ref()?.slot)));
                    }
                }
                _ => {}
            }
            for effect in rig.effects(event) {
                let is_frame = matches!(effect, Effect::Send(_) | Effect::Close { .. });
                assert!(!(is_closed && is_frame), "{effect:?} after the close frame");
                answer(&mut way, &mut dice, &effect);
                match effect {
                    Effect::Send(ToNode::Welcome { .. }) => {
                        assert!(!is_welcomed, "it was welcomed before");
                        is_welcomed = true;
                    }
                    Effect::Send(ToNode::Dispatch(one)) => {
                        assert!(is_welcomed && has_slot.remove(&one.slot), "{} has no slot", one.slot);
                        assert!(with_node.insert(one.slot) && with_node.len() <= CAPACITY as usize);
                    }
                    Effect::Close { .. } => is_closed = true,
                    _ => {}
                }
                assert!(way.registering <= 1 && way.refreshing <= 1, "two calls of one kind at once");
            }
            if is_closed {
                break;
            }
        }
    }
}

/// What the bus, the lanes and the ledger answer, some time.
fn answer(way: &mut UnderWay, dice: &mut StdRng, effect: &Effect) {
    let fails = dice.random_bool(0.2);
    let error = if dice.random() { away() } else { unknown() };
    way.events.push(match effect {
        Effect::Register { report, running, .. } => {
            way.registering += 1;
            let connected =
                Connected { epoch: Epoch::new(9), version: Version::new(1), is_complete: dice.random() };
            let known = Known { connected, taken: running.clone(), unlisted: vec![] };
            let rival = Rival { epoch: Epoch::new(8), is_there: dice.random() };
            let known = match dice.random_bool(0.9) {
                _ if fails => Err(error),
                true => Ok(Registering::Done(known)),
                false if dice.random_bool(0.1) => Ok(Registering::Anothers),
                false => Ok(Registering::Contested(rival)),
            };
            Event::Registered { known, is_lent: report.vouched.is_none(), provisional: Epoch::new(1) }
        }
        Effect::RegisterLater => {
            way.registering += 1;
            Event::RegisterAgain
        }
        Effect::Refresh { report, freed, taken } => {
            way.refreshing += 1;
            let written = match dice.random_range(0..12) {
                _ if fails => Err(error),
                0 => Ok(Written::Lost),
                1 => Ok(Written::Replaced),
                _ => Ok(Written::Done(Version::new(3))),
            };
            Event::Refreshed {
                written,
                is_lent: report.vouched.is_none(),
                freed: freed.clone(),
                taken: taken.clone(),
            }
        }
        Effect::SendSlots(dispatches) => {
            let sent = if fails {
                Err(error)
            } else {
                Ok(dispatches.iter().map(|_| dice.random_bool(0.9)).collect())
            };
            Event::Sent { sent, dispatches: dispatches.clone() }
        }
        Effect::PassSlots { over, dispatches } => {
            let passed = if fails {
                Err(error)
            } else {
                Ok(dispatches.iter().map(|_| dice.random_bool(0.9)).collect())
            };
            Event::Passed { passed, over: over.clone(), dispatches: dispatches.clone() }
        }
        Effect::FreeSlots { slots, was_full } => {
            let left = if fails { slots.clone() } else { vec![] };
            Event::Freed { left, was_full: *was_full }
        }
        Effect::Commit { results, terms } => {
            let of = |(slot, _): &(Slot, End)| Committed {
                slot: *slot,
                is_recorded: dice.random_bool(0.9),
                next: (terms.may_pass && dice.random_bool(0.5)).then(|| dispatch(slot.job.as_u128() + 1_000)),
            };
            Event::Committed { committed: results.iter().map(of).collect(), terms: *terms }
        }
        _ => return,
    });
}
