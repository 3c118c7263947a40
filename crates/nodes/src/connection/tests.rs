//! Tests of one connection: each rule by a table, and all of them together under random frames.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use domain::job::{Attempt, Spec};
use domain::{InstanceId, JobId, NodeId, NodeTimeouts};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::limits::ANSWERED_MAX;
use crate::record::Load;

const HEARTBEAT_MS: u64 = NodeTimeouts::DEFAULT.heartbeat.as_millis() as u64;
const OFFLINE_MS: u64 = NodeTimeouts::DEFAULT.offline.as_millis() as u64;
const ACK_MS: u64 = NodeTimeouts::DEFAULT.ack.as_millis() as u64;
const UNANSWERED_MS: u64 = NodeTimeouts::DEFAULT.unanswered.as_millis() as u64;
const CAPACITY: u32 = 3;

fn slot(n: u128) -> Slot {
    Slot { job: JobId::from_u128(n), attempt: Attempt::new(1) }
}

const HEARTBEAT_OK: ToNode = ToNode::HeartbeatOk { is_drained: false };

fn slots(numbers: &[u128]) -> Vec<Slot> {
    numbers.iter().map(|n| slot(*n)).collect()
}

fn hello(running: &[u128]) -> FromNode {
    FromNode::Hello(Hello {
        node: NodeId::parse("n").unwrap(),
        capacity: CAPACITY,
        takes_batches: true,
        labels: [].into(),
        services: [].into(),
        pools: None,
        software: None,
        is_drained: false,
        principal: "".into(),
        running: slots(running),
    })
}

fn job(n: u128) -> Dispatch {
    Dispatch { slot: slot(n), node_job: Spec::new("1").node_job(None, None) }
}

fn heartbeat(running: &[u128]) -> FromNode {
    FromNode::Heartbeat { load: Load::default(), running: slots(running) }
}

fn ack(n: u128) -> FromNode {
    FromNode::Ack(slot(n))
}

fn reject(n: u128) -> FromNode {
    FromNode::Reject { slot: slot(n), reason: "full".to_owned() }
}

fn progress(n: u128) -> FromNode {
    FromNode::Progress { slot: slot(n), progress: Progress { percent: Percent::new(50.0), note: None } }
}

fn end() -> End {
    End::Succeeded { output: "2".to_owned() }
}

fn result(n: u128) -> FromNode {
    FromNode::Result { slot: slot(n), end: end() }
}

fn send(frame: ToNode) -> Effect {
    Effect::Send(frame)
}

fn beat(gone: &[u128]) -> [Effect; 2] {
    [Effect::Heartbeat { load: Load::default(), gone: slots(gone), is_back: false }, send(HEARTBEAT_OK)]
}

/// A connection and the test's clock.
struct Rig {
    connection: Connection,
    now: Instant,
}

impl Rig {
    fn opened() -> Self {
        let now = Instant::now();
        let holder = InstanceId::parse("a").unwrap();
        Self { connection: Connection::opened(holder, NodeTimeouts::DEFAULT, now), now }
    }

    /// Registered, and running these.
    fn live(running: &[u128]) -> Self {
        let mut rig = Self::opened();
        rig.frame(hello(running));
        rig.connection.registered(rig.now);
        rig
    }

    /// Registered, and sent these.
    fn sent(jobs: &[u128]) -> Self {
        let mut rig = Self::live(&[]);
        for n in jobs {
            rig.connection.dispatch(job(*n), 0, rig.now).unwrap();
        }
        rig
    }

    /// Registered, and sent one that was called off at once and of which nothing was heard until its slot was free.
    fn withdrawn(n: u128) -> Self {
        let mut rig = Self::live(&[]);
        rig.withdraw(n);
        rig
    }

    fn withdraw(&mut self, n: u128) {
        self.connection.dispatch(job(n), 0, self.now).unwrap();
        self.connection.cancel(slot(n), self.now);
        self.after(ACK_MS);
        self.frames([heartbeat(&[])]);
        self.after(HEARTBEAT_MS / 2);
        self.frames([heartbeat(&[])]);
        assert!(!self.connection.has(slot(n)));
    }

    fn frame(&mut self, frame: FromNode) -> Vec<Effect> {
        self.connection.on_frame(frame, self.now)
    }

    /// Frames that must not end the connection.
    fn frames(&mut self, frames: impl IntoIterator<Item = FromNode>) {
        for frame in frames {
            let effects = self.frame(frame.clone());
            assert!(!self.connection.is_over(), "{frame:?}: {effects:?}");
        }
    }

    fn after(&mut self, ms: u64) -> Vec<Effect> {
        self.now += Duration::from_millis(ms);
        self.connection.on_tick(self.now)
    }

    fn taken(&self) -> HashSet<Slot> {
        self.connection.slots().collect()
    }
}

fn why_closed(effects: &[Effect]) -> (&CloseCode, &str) {
    match effects {
        [Effect::Close { code, why }] => (code, why),
        other => panic!("not closed: {other:?}"),
    }
}

#[test]
fn a_job_goes_out_and_comes_back() {
    let mut rig = Rig::opened();
    let FromNode::Hello(said) = hello(&[]) else { unreachable!() };
    assert_eq!(rig.frame(hello(&[])), [Effect::Register(said.clone())]);
    assert_eq!(rig.connection.dispatch(job(1), 0, rig.now), Err(Refused::NotReady));
    let (node, instance) = (said.node, InstanceId::parse("a").unwrap());
    let welcome = ToNode::Welcome { node, instance, heartbeat_ms: HEARTBEAT_MS };
    assert_eq!(rig.connection.registered(rig.now), [send(welcome)]);
    assert_eq!(rig.connection.registered(rig.now), []);
    let sent = rig.connection.dispatch(job(1), 0, rig.now).unwrap();
    assert_eq!(sent, [send(ToNode::Dispatch(job(1)))]);
    assert_eq!(
        rig.connection.dispatch(job(1), 0, rig.now),
        Err(Refused::Known),
        "a replay is not sent again"
    );
    assert_eq!(rig.frame(ack(1)), [Effect::Acknowledged(slot(1))]);
    let FromNode::Progress { progress: half, .. } = progress(1) else { unreachable!() };
    assert_eq!(rig.frame(progress(1)), [Effect::Progress { slot: slot(1), progress: half }]);
    assert_eq!(rig.frame(result(1)), [Effect::Result { slot: slot(1), end: end() }]);
    assert_eq!(rig.taken(), [slot(1)].into(), "a result that is not committed frees nothing");
    let answer = [send(ToNode::Committed(slot(1))), Effect::Free(slot(1))];
    assert_eq!(rig.connection.committed(slot(1)), answer);
    assert_eq!(rig.connection.committed(slot(1)), []);
    assert_eq!(rig.connection.dispatch(job(1), 0, rig.now), Err(Refused::Known));
    assert!(rig.taken().is_empty());
}

#[test]
fn what_a_node_runs_when_it_says_hello_counts_as_acknowledged() {
    let mut rig = Rig::opened();
    rig.frame(hello(&[7]));
    assert_eq!(rig.frame(heartbeat(&[7])), [send(HEARTBEAT_OK)], "it is not registered yet");
    assert_eq!(rig.frame(result(7)), [Effect::Result { slot: slot(7), end: end() }]);
    let mut other = Rig::opened();
    other.frame(hello(&[7]));
    assert!(other.connection.registered(other.now).contains(&Effect::Acknowledged(slot(7))));
}

/// Every stage of an attempt against every frame about it.
#[test]
fn each_frame_means_this_in_each_stage() {
    #[derive(Clone, Copy, Debug)]
    enum At {
        Nowhere,
        Sent,
        Listed,
        Acked,
        Answered,
        Superseded,
        Committed,
    }
    enum Means {
        Fault(&'static str),
        Is(Vec<Effect>),
    }
    use At::{Acked, Answered, Committed, Listed, Nowhere, Sent, Superseded};
    use Means::{Fault, Is};
    let reach = |at| {
        let mut rig = Rig::sent(if matches!(at, Nowhere) { &[] } else { &[1] });
        match at {
            Nowhere | Sent => {}
            Listed => rig.frames([heartbeat(&[1])]),
            Acked => rig.frames([ack(1)]),
            Answered | Superseded | Committed => rig.frames([ack(1), result(1)]),
        }
        match at {
            Superseded => drop(rig.connection.stale(slot(1), rig.now)),
            Committed => drop(rig.connection.committed(slot(1))),
            _ => {}
        }
        rig
    };
    let acked = || Is(vec![Effect::Acknowledged(slot(1))]);
    let passed_on = || Is(vec![Effect::Result { slot: slot(1), end: end() }]);
    let FromNode::Progress { progress: half, .. } = progress(1) else { unreachable!() };
    let half = || Is(vec![Effect::Progress { slot: slot(1), progress: half.clone() }]);
    let rejected = || Is(vec![Effect::Rejected { slot: slot(1), reason: "full".to_owned() }]);
    let answer = |frame| Is(vec![send(frame)]);
    let beats = |gone: &[u128]| Is(beat(gone).to_vec());
    let listed = || Is([Effect::Acknowledged(slot(1))].into_iter().chain(beat(&[])).collect());
    let not_here = || Fault("is not with this node");
    let table = [
        (Nowhere, ack(1), not_here()),
        (Nowhere, reject(1), not_here()),
        (Nowhere, progress(1), not_here()),
        (Nowhere, result(1), answer(ToNode::Stale(slot(1)))),
        (Nowhere, heartbeat(&[1]), not_here()),
        (Nowhere, heartbeat(&[]), beats(&[])),
        (Sent, ack(1), acked()),
        (Sent, reject(1), rejected()),
        (Sent, progress(1), Fault("before it was acknowledged")),
        (Sent, result(1), passed_on()),
        (Sent, heartbeat(&[1]), listed()),
        (Sent, heartbeat(&[]), beats(&[])),
        (Listed, ack(1), Is(vec![])),
        (Listed, reject(1), Fault("after it was acknowledged or listed")),
        (Listed, progress(1), half()),
        (Listed, result(1), passed_on()),
        (Listed, heartbeat(&[1]), beats(&[])),
        (Listed, heartbeat(&[]), beats(&[1])),
        (Acked, ack(1), Fault("was acknowledged before")),
        (Acked, reject(1), Fault("after it was acknowledged or listed")),
        (Acked, progress(1), half()),
        (Acked, result(1), passed_on()),
        (Acked, heartbeat(&[1]), beats(&[])),
        (Acked, heartbeat(&[]), beats(&[1])),
        (Answered, ack(1), Fault("acknowledged after its result")),
        (Answered, reject(1), Fault("after it was acknowledged or listed")),
        (Answered, progress(1), Fault("progress after its result")),
        (Answered, result(1), Is(vec![])),
        (Answered, heartbeat(&[1]), beats(&[])),
        (Answered, heartbeat(&[]), beats(&[])),
        (Superseded, ack(1), Fault("acknowledged after its result")),
        (Superseded, reject(1), Fault("after it was acknowledged or listed")),
        (Superseded, progress(1), Fault("progress after its result")),
        (Superseded, result(1), answer(ToNode::Stale(slot(1)))),
        (Superseded, heartbeat(&[1]), beats(&[])),
        (Superseded, heartbeat(&[]), beats(&[1])),
        (Committed, ack(1), not_here()),
        (Committed, reject(1), not_here()),
        (Committed, progress(1), not_here()),
        (Committed, result(1), answer(ToNode::Committed(slot(1)))),
        (Committed, heartbeat(&[1]), beats(&[])),
        (Committed, heartbeat(&[]), beats(&[])),
    ];
    for (at, frame, means) in table {
        let mut rig = reach(at);
        let effects = rig.frame(frame.clone());
        match means {
            Is(expected) => assert_eq!(effects, expected, "{at:?}: {frame:?}"),
            Fault(words) => {
                let (code, why) = why_closed(&effects);
                assert!(*code == CloseCode::Protocol && why.contains(words), "{at:?}: {frame:?}: {why}");
                assert!(rig.connection.is_over() && rig.frame(heartbeat(&[])).is_empty());
            }
        }
    }
}

#[test]
fn frames_that_no_node_may_send_end_the_connection() {
    let greeted = |frame| {
        let mut rig = Rig::opened();
        rig.frame(frame)
    };
    let with = |change: fn(&mut Hello)| {
        let FromNode::Hello(mut said) = hello(&[]) else { unreachable!() };
        change(&mut said);
        FromNode::Hello(said)
    };
    let strange = [
        (heartbeat(&[]), "the first frame must be hello"),
        (result(1), "the first frame must be hello"),
        (hello(&[1, 1]), "lists an attempt twice"),
        (with(|said| said.capacity = 0), "capacity must be 1 to 10000"),
        (with(|said| said.capacity = 10_001), "capacity must be 1 to 10000"),
        (with(|said| said.running = (0..10_001).map(slot).collect()), "at most 10000 attempts"),
    ];
    for (frame, words) in strange {
        let effects = greeted(frame);
        assert!(why_closed(&effects).1.contains(words), "{effects:?}");
    }
    for (frame, words) in [(hello(&[]), "may be said once"), (heartbeat(&[1, 1]), "lists an attempt twice")] {
        let effects = Rig::sent(&[1]).frame(frame);
        assert!(why_closed(&effects).1.contains(words), "{effects:?}");
    }
}

#[test]
fn a_heartbeat_that_was_sent_before_the_acknowledgement_frees_nothing() {
    let mut rig = Rig::sent(&[1, 2]);
    rig.frames([ack(1)]);
    assert_eq!(rig.frame(heartbeat(&[])), beat(&[1]), "only the one that was acknowledged");
    assert_eq!(rig.taken(), [slot(2)].into());
}

#[test]
fn a_full_or_draining_node_is_sent_nothing_more() {
    let mut rig = Rig::sent(&[1, 2, 3]);
    assert_eq!(rig.connection.dispatch(job(4), 0, rig.now), Err(Refused::Full));
    assert_eq!(Rig::live(&[]).connection.dispatch(job(4), 3, rig.now), Err(Refused::Full), "given to others");
    rig.frames([ack(1), result(1)]);
    assert_eq!(
        rig.connection.dispatch(job(4), 0, rig.now),
        Err(Refused::Full),
        "the result is not committed"
    );
    rig.connection.stale(slot(1), rig.now);
    assert_eq!(rig.connection.dispatch(job(4), 0, rig.now), Err(Refused::Full), "the node may still list it");
    rig.frames([heartbeat(&[2, 3])]);
    assert!(rig.connection.dispatch(job(4), 0, rig.now).is_ok());
    assert_eq!(rig.frame(FromNode::Drain), [Effect::State(NodeState::Draining)]);
    assert_eq!(rig.frame(FromNode::Drain), []);
    assert_eq!(rig.connection.dispatch(job(5), 0, rig.now), Err(Refused::Draining));
    let told = |is_drained| send(ToNode::HeartbeatOk { is_drained });
    assert_eq!(rig.connection.drain(true, rig.now), [told(true)], "the node learns of it");
    assert_eq!(rig.connection.drain(true, rig.now), [], "once");
    assert_eq!(rig.frame(FromNode::Ready), [], "an operator drains it all the same");
    assert!(rig.frame(heartbeat(&[])).contains(&told(true)), "with each heartbeat again");
    assert_eq!(rig.connection.drain(false, rig.now), [told(false), Effect::State(NodeState::Accepting)]);
    let mut crowded = Rig::live(&[1, 2, 3, 4]);
    assert_eq!(crowded.connection.dispatch(job(5), 0, crowded.now), Err(Refused::Full));
}

#[test]
fn a_node_that_was_drained_gets_nothing_on_its_next_connection_either() {
    let mut rig = Rig::opened();
    let FromNode::Hello(said) = hello(&[]) else { unreachable!() };
    rig.frame(FromNode::Hello(Hello { is_drained: true, ..said }));
    assert_eq!(rig.connection.state(), Some(NodeState::Draining), "its record says so from the beginning");
    rig.connection.registered(rig.now);
    assert_eq!(rig.connection.dispatch(job(1), 0, rig.now), Err(Refused::Draining));
    let told = |is_drained| send(ToNode::HeartbeatOk { is_drained });
    assert!(rig.frame(heartbeat(&[])).contains(&told(true)));
    assert_eq!(rig.frame(FromNode::Ready), [], "an operator drains it");
    assert_eq!(rig.connection.drain(false, rig.now), [told(false), Effect::State(NodeState::Accepting)]);
    assert!(rig.connection.dispatch(job(1), 0, rig.now).is_ok() && !rig.connection.is_drained());
    rig.connection.drain(true, rig.now);
    rig.connection.end(CloseCode::GoingAway, "stopping".to_owned());
    assert!(rig.connection.is_drained(), "as it was at the end");
}

#[test]
fn a_cancel_is_sent_once_and_the_slot_stays_until_the_node_stops_listing_it() {
    let mut rig = Rig::sent(&[1, 2]);
    rig.frames([ack(1)]);
    for n in [1, 2] {
        assert_eq!(rig.connection.cancel(slot(n), rig.now), [send(ToNode::Cancel(slot(n)))]);
        assert_eq!(rig.connection.cancel(slot(n), rig.now), []);
        assert_eq!(rig.connection.stale(slot(n), rig.now), [], "it was called off already");
    }
    rig.frames([heartbeat(&[1])]);
    assert_eq!(rig.taken(), [slot(1), slot(2)].into());
    assert_eq!(rig.frame(heartbeat(&[])), beat(&[1]));
    assert_eq!(rig.frame(reject(2)), [Effect::Rejected { slot: slot(2), reason: "full".to_owned() }]);
    assert_eq!(rig.connection.cancel(slot(9), rig.now), [], "nobody sent it");
}

#[test]
fn an_attempt_that_is_called_off_at_once_needs_no_answer_and_frees_its_slot() {
    let listing: [&[u128]; 2] = [&[], &[1]];
    for running in listing {
        let mut rig = Rig::sent(&[1, 2]);
        rig.frames([ack(2)]);
        rig.connection.cancel(slot(1), rig.now);
        rig.after(ACK_MS - 1);
        assert_eq!(rig.frame(heartbeat(&[2])), beat(&[]), "it may have been sent before the cancel came");
        assert_eq!(rig.after(1), []);
        let listed = [running, &[2]].concat();
        match running.is_empty() {
            true => {
                assert_eq!(rig.frame(heartbeat(&listed)), beat(&[]), "it may have come late");
                assert_eq!(rig.after(HEARTBEAT_MS / 2), []);
                assert_eq!(rig.frame(heartbeat(&listed)), beat(&[1]));
            }
            // The node began it, and stops it.
            false => {
                assert_eq!(rig.frame(heartbeat(&listed))[0], Effect::Acknowledged(slot(1)));
                assert_eq!(rig.frame(heartbeat(&[2])), beat(&[1]));
            }
        }
        assert_eq!(rig.taken(), [slot(2)].into());
        for _ in 0..2 {
            rig.after(UNANSWERED_MS / 2);
            rig.frames([heartbeat(&[2])]);
        }
        assert!(!rig.connection.is_over());
    }
    // Whatever the node says of it after all is no fault.
    for late in [ack(1), reject(1), progress(1), result(1), heartbeat(&[1])] {
        let mut rig = Rig::withdrawn(1);
        rig.frames([late, heartbeat(&[])]);
        assert!(rig.taken().is_empty());
    }
    // Three in a row are no sign of a node that does not listen.
    let mut rig = Rig::sent(&[1, 2, 3]);
    for n in 1..=3 {
        rig.connection.cancel(slot(n), rig.now);
    }
    assert_eq!(rig.after(ACK_MS), []);
    assert_eq!(rig.connection.state(), Some(NodeState::Accepting));
}

#[test]
fn an_attempt_that_was_called_off_at_once_and_runs_all_the_same_has_its_slot() {
    // The first heartbeat was sent before the node read the dispatch, and all three were handled late.
    let mut rig = Rig::sent(&[1]);
    rig.connection.cancel(slot(1), rig.now);
    rig.after(ACK_MS);
    rig.frames([heartbeat(&[]), ack(1), heartbeat(&[1])]);
    assert_eq!(rig.taken(), [slot(1)].into());
    assert_eq!(rig.frame(heartbeat(&[])), beat(&[1]));
    // The slot was free before the node spoke of it.
    let mut rig = Rig::withdrawn(1);
    rig.frames([ack(1), heartbeat(&[1]), progress(1)]);
    assert_eq!(rig.taken(), [slot(1)].into());
    for n in [2, 3] {
        rig.connection.dispatch(job(n), 0, rig.now).unwrap();
    }
    assert_eq!(rig.connection.dispatch(job(4), 0, rig.now), Err(Refused::Full));
    assert_eq!(rig.frame(heartbeat(&[])), beat(&[1]));
    assert_eq!(rig.taken(), [slot(2), slot(3)].into());
}

#[test]
fn an_attempt_that_is_called_off_for_want_of_an_answer_still_wants_one() {
    let mut rig = Rig::sent(&[1]);
    rig.after(ACK_MS - 1);
    rig.connection.cancel(slot(1), rig.now);
    rig.frames([heartbeat(&[])]);
    rig.after(UNANSWERED_MS - ACK_MS);
    rig.frames([heartbeat(&[])]);
    assert_eq!(rig.taken(), [slot(1)].into());
    assert!(why_closed(&rig.after(1)).1.contains("was not answered"));
}

#[test]
fn an_attempt_that_is_stale_before_its_result_is_called_off() {
    let mut rig = Rig::sent(&[1]);
    rig.frames([ack(1)]);
    assert_eq!(rig.connection.stale(slot(1), rig.now), [send(ToNode::Cancel(slot(1)))]);
    rig.frames([result(1)]);
    assert_eq!(rig.connection.stale(slot(1), rig.now), [send(ToNode::Stale(slot(1)))]);
}

#[test]
fn a_result_that_comes_late_or_again_is_stale_and_changes_nothing() {
    let stale = [send(ToNode::Stale(slot(1)))];
    // The node has heard the answer.
    let mut rig = Rig::sent(&[1, 2]);
    rig.frames([ack(1), result(1)]);
    rig.connection.committed(slot(1));
    rig.frames([heartbeat(&[])]);
    for _ in 0..2 {
        assert_eq!(rig.frame(result(1)), stale);
    }
    // It left the attempt out while it ran.
    let mut unlisted = Rig::sent(&[1, 2]);
    unlisted.frames([ack(1), heartbeat(&[])]);
    assert_eq!(unlisted.frame(result(1)), stale);
    // The attempt was another connection's, and the hello did not list it.
    let mut anew = Rig::sent(&[2]);
    assert_eq!(anew.frame(result(1)), stale);
    for mut rig in [rig, unlisted, anew] {
        assert_eq!(rig.taken(), [slot(2)].into());
        assert!(why_closed(&rig.frame(ack(1))).1.contains("is not with this node"), "nothing is known of it");
    }
    // Before the welcome, too. One that the hello listed waits.
    let mut early = Rig::opened();
    early.frame(hello(&[2]));
    assert_eq!(early.frame(result(1)), stale);
    assert_eq!(early.frame(result(2)), [Effect::Result { slot: slot(2), end: end() }]);
    assert_eq!(early.frame(result(2)), []);
}

#[test]
fn silence_is_noticed_step_by_step() {
    let mut rig = Rig::opened();
    assert_eq!(rig.after(HELLO_MS - 1), []);
    assert!(why_closed(&rig.after(1)).1.contains("no hello"));
    assert_eq!(rig.after(1), [], "it ends once");

    let mut rig = Rig::live(&[]);
    assert_eq!(rig.after(HEARTBEAT_MS * 5 / 2), []);
    assert_eq!(rig.after(1), [Effect::State(NodeState::Unhealthy)]);
    assert!(rig.frame(heartbeat(&[])).contains(&Effect::State(NodeState::Accepting)));
    assert_eq!(rig.after(OFFLINE_MS - 1), [Effect::State(NodeState::Unhealthy)]);
    assert!(why_closed(&rig.after(1)).1.contains("no heartbeat"));
}

/// What the node says meanwhile comes behind it.
#[test]
fn a_message_whose_bytes_come_excuses_silence_if_it_began_in_time() {
    let arrives = |rig: &mut Rig, since: Instant, ms: u64| {
        rig.now += Duration::from_millis(ms);
        let effects = rig.connection.on_bytes(since, rig.now);
        rig.after(0);
        effects
    };
    let mut rig = Rig::live(&[]);
    let first = rig.now;
    assert_eq!(arrives(&mut rig, first, HEARTBEAT_MS - 1), []);
    assert_eq!(arrives(&mut rig, first, 1), [Effect::Arriving]);
    for _ in 0..OFFLINE_MS / HEARTBEAT_MS {
        assert_eq!(arrives(&mut rig, first, HEARTBEAT_MS), [Effect::Arriving]);
    }
    let second = rig.now;
    assert_eq!(arrives(&mut rig, second, OFFLINE_MS - 1), [], "no heartbeat came before it for too long");
    assert!(!rig.connection.is_over());
    assert!(why_closed(&rig.after(1)).1.contains("no heartbeat"));

    let mut owing = Rig::sent(&[1]);
    for ms in [UNANSWERED_MS - 1, UNANSWERED_MS / 2] {
        let begin = owing.now;
        arrives(&mut owing, begin, ms);
    }
    let third = owing.now;
    arrives(&mut owing, third, UNANSWERED_MS - 1);
    assert!(!owing.connection.is_over());
    assert!(why_closed(&owing.after(1)).1.contains("was not answered"), "it was due before the third one");
}

#[test]
fn three_dispatches_in_a_row_without_an_answer_are_unhealthy_and_one_for_long_ends_it() {
    let mut rig = Rig::sent(&[1, 2, 3]);
    rig.frames([heartbeat(&[])]);
    rig.after(4_000);
    rig.frames([heartbeat(&[])]);
    assert_eq!(rig.after(1_000), [Effect::State(NodeState::Unhealthy)]);
    assert_eq!(rig.after(1), [], "each counts once");
    let acked = [Effect::Acknowledged(slot(3)), Effect::State(NodeState::Accepting)];
    assert_eq!(rig.frame(ack(3)), acked, "they are not in a row any more");
    rig.frames([heartbeat(&[3])]);
    rig.after(UNANSWERED_MS - 5_001 - 1);
    assert!(!rig.connection.is_over());
    assert!(why_closed(&rig.after(1)).1.contains("was not answered"));

    let mut answered = Rig::sent(&[1, 2, 3]);
    answered.frames([ack(1), reject(2), result(3)]);
    answered.after(UNANSWERED_MS);
    assert!(!answered.connection.is_over());
}

#[test]
fn the_one_who_runs_the_socket_can_end_it() {
    let mut rig = Rig::sent(&[1]);
    let close = Effect::Close { code: CloseCode::Replaced, why: "newer".to_owned() };
    rig.connection.dispatch(job(3), 0, rig.now).unwrap();
    rig.frames([ack(1)]);
    assert_eq!(rig.connection.end(CloseCode::Replaced, "newer".to_owned()), [close]);
    assert_eq!(rig.taken(), [slot(1), slot(3)].into(), "what it had is still known");
    assert_eq!(rig.connection.unanswered().collect::<Vec<_>>(), [slot(3)]);
    assert_eq!(rig.connection.end(CloseCode::GoingAway, "again".to_owned()), []);
    assert_eq!(rig.connection.dispatch(job(2), 0, rig.now), Err(Refused::NotReady));
    assert!(rig.connection.committed(slot(1)).is_empty() && rig.after(OFFLINE_MS).is_empty());
}

#[test]
fn what_was_forgotten_for_want_of_room_is_answered_as_stale_and_is_no_lie() {
    let mut rig = Rig::live(&[]);
    for n in 0..=ANSWERED_MAX as u128 {
        rig.connection.dispatch(job(n), 0, rig.now).unwrap();
        rig.frames([result(n)]);
        rig.connection.committed(slot(n));
    }
    assert_eq!(rig.frame(result(1)), [send(ToNode::Committed(slot(1)))]);
    assert_eq!(rig.frame(result(0)), [send(ToNode::Stale(slot(0)))]);
    assert_eq!(rig.frame(heartbeat(&[0, 1])), beat(&[]));
    assert_eq!(rig.frame(ack(0)), []);
}

#[test]
fn however_many_attempts_were_called_off_at_once_a_lie_is_a_fault() {
    let mut rig = Rig::live(&[]);
    for n in 0..=ANSWERED_MAX as u128 {
        rig.withdraw(n);
    }
    rig.frames([ack(1), reject(ANSWERED_MAX as u128)]);
    let unknown = ANSWERED_MAX as u128 + 1;
    assert!(why_closed(&rig.frame(ack(unknown))).1.contains("is not with this node"));
}

/// What must be so after any frames, lies among them: no more slots taken than there are, each freed once, each
/// result passed on once and answered once, nothing after the end.
#[test]
fn random_frames_never_break_a_rule() {
    let seed = rand::random::<u64>();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    for _ in 0..2_000 {
        let running: Vec<u128> = (0..rng.random_range(0..=CAPACITY.into())).collect();
        let mut rig = Rig::live(&running);
        let mut taken: HashSet<Slot> = slots(&running).into_iter().collect();
        let mut pending: HashSet<Slot> = HashSet::new();
        let mut answers: HashMap<Slot, ToNode> = HashMap::new();
        let mut room = CAPACITY as usize;
        for _ in 0..60 {
            let n = rng.random_range(0..8);
            let some = slot(n);
            let listed: Vec<u128> = (0..8)
                .filter(|n| if rng.random_bool(0.05) { rng.random() } else { taken.contains(&slot(*n)) })
                .collect();
            let was_pending = pending.contains(&some);
            let is_result = rng.random_bool(0.3);
            let effects = match rng.random_range(0..12) {
                _ if is_result => rig.frame(result(n)),
                0..=2 => match rig.connection.dispatch(job(n), 0, rig.now) {
                    Ok(effects) => {
                        assert!(taken.insert(some), "sent twice");
                        effects
                    }
                    Err(_) => vec![],
                },
                3 | 4 => rig.frame(ack(n)),
                5 => rig.frame(reject(n)),
                6 => rig.frame(progress(n)),
                7 => rig.frame(heartbeat(&listed)),
                8 => rig.after(rng.random_range(0..1_500)),
                9 => rig.connection.cancel(some, rig.now),
                10 => rig.connection.committed(some),
                _ => rig.connection.stale(some, rig.now),
            };
            for effect in &effects {
                match effect {
                    Effect::Free(freed) | Effect::Rejected { slot: freed, .. } => {
                        assert!(taken.remove(freed))
                    }
                    Effect::Heartbeat { gone, .. } => {
                        // The node has heard of what it does not list, and a result of that is a late one from now on.
                        let is_listed = |slot: &Slot| listed.contains(&slot.job.as_u128());
                        answers.retain(|slot, answer| is_listed(slot) || *answer == ToNode::Stale(*slot));
                        for freed in gone {
                            assert!(taken.remove(freed) && !pending.contains(freed) && !is_listed(freed));
                            // What was called off before its answer may have a result all the same.
                            answers.insert(*freed, ToNode::Stale(*freed));
                        }
                    }
                    Effect::Result { slot, .. } => assert!(taken.contains(slot) && pending.insert(*slot)),
                    Effect::Send(answer @ (ToNode::Committed(slot) | ToNode::Stale(slot))) => {
                        let (is_first, had) = (pending.remove(slot), answers.get(slot));
                        let is_late =
                            had.is_none() && !taken.contains(slot) && *answer == ToNode::Stale(*slot);
                        assert!(is_first || is_late || had == Some(answer), "another answer than before");
                        answers.insert(*slot, answer.clone());
                    }
                    _ => {}
                }
            }
            if effects.iter().any(|effect| matches!(effect, Effect::Heartbeat { .. })) {
                // What was called off before its answer has its slot again, beside the others, if it is listed after all.
                let is_back = |slot: &Slot| {
                    let was_freed = answers.get(slot) == Some(&ToNode::Stale(*slot));
                    was_freed && !taken.contains(slot) && rig.connection.has(*slot)
                };
                let back: Vec<_> = slots(&listed).into_iter().filter(is_back).collect();
                room += back.len();
                taken.extend(back);
            }
            assert!(taken.len() <= room, "more is taken than there is");
            if rig.connection.is_over() {
                assert!(matches!(effects.last(), Some(Effect::Close { .. })) && effects.len() == 1);
                assert!(rig.frame(heartbeat(&[])).is_empty() && rig.after(1).is_empty());
                break;
            }
            assert_eq!(rig.taken(), taken);
            if is_result && !was_pending {
                let is_answered = answers.get(&some).is_some_and(|answer| effects == [send(answer.clone())]);
                assert!(is_answered || pending.contains(&some), "a result without an answer: {effects:?}");
            }
        }
    }
}
