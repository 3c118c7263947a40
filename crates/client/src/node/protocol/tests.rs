//! The protocol, case by case, and under anything that a scheduler may say in any order.

use std::collections::BTreeSet;

use proptest::prelude::*;
use wire::Json;
use wire::worker::Notice;

use super::*;

fn attempt(job: &str, attempt: u32) -> AttemptRef {
    AttemptRef { job: job.to_owned(), attempt }
}

fn dispatch(job: &str, attempt: u32) -> Dispatch {
    Dispatch::new(job, attempt, Json::null(), 1)
}

fn done() -> AttemptOutcome {
    AttemptOutcome::Done(Json::null())
}

/// Those whose handlers have not returned.
fn busy(protocol: &Protocol) -> BTreeSet<AttemptRef> {
    let busy = protocol.held.iter().filter(|(_, held)| !matches!(held, Held::Ended(_)));
    busy.map(|(attempt, _)| attempt.clone()).collect()
}

/// What was sent, started and stopped, in short.
fn reported(effects: impl IntoIterator<Item = Effect>) -> Vec<String> {
    let line = |effect| match effect {
        Effect::Send(NodeFrame::Ack(it)) => format!("ack {}{}", it.job, it.attempt),
        Effect::Send(NodeFrame::Reject(it)) => format!("reject {}{}: {}", it.job, it.attempt, it.reason),
        Effect::Send(NodeFrame::Result(it)) => format!("result {}{}", it.job, it.attempt),
        Effect::Send(other) => other.kind().to_owned(),
        Effect::Start(it) => format!("start {}{}", it.job, it.attempt),
        Effect::Stop(it) => format!("stop {}{}", it.job, it.attempt),
        Effect::Beat => "beat".to_owned(),
    };
    effects.into_iter().map(line).collect()
}

fn give(protocol: &mut Protocol, job: &str, number: u32) -> Vec<String> {
    reported(protocol.heard(SchedulerFrame::Dispatch(dispatch(job, number))))
}

fn cancel(protocol: &mut Protocol, job: &str, number: u32) -> Vec<String> {
    reported(protocol.heard(SchedulerFrame::Cancel(attempt(job, number).into())))
}

fn settle(protocol: &mut Protocol, job: &str, number: u32) -> Vec<String> {
    reported(protocol.heard(SchedulerFrame::Committed(attempt(job, number).into())))
}

fn end(protocol: &mut Protocol, job: &str, number: u32) -> Vec<String> {
    reported(protocol.ended(&attempt(job, number), done()))
}

#[test]
fn an_attempt_is_listed_until_its_result_is_durable() {
    let mut protocol = Protocol::new(1);
    assert_eq!(give(&mut protocol, "a", 1), ["ack a1", "start a1"]);
    assert_eq!(end(&mut protocol, "a", 1), ["result a1"]);
    assert_eq!(protocol.listed(), [attempt("a", 1)]);
    assert_eq!(give(&mut protocol, "b", 1), ["reject b1: full"]);
    assert_eq!(settle(&mut protocol, "a", 1), [""; 0]);
    assert!(protocol.is_empty());
    assert_eq!(give(&mut protocol, "b", 1), ["ack b1", "start b1"]);
}

#[test]
fn the_same_attempt_twice_is_acknowledged_twice_and_run_once() {
    let mut protocol = Protocol::new(2);
    give(&mut protocol, "a", 1);
    assert_eq!(give(&mut protocol, "a", 1), ["ack a1"]);
    end(&mut protocol, "a", 1);
    assert_eq!(give(&mut protocol, "a", 1), ["ack a1", "result a1"]);
    settle(&mut protocol, "a", 1);
    assert_eq!(give(&mut protocol, "a", 1), ["reject a1: already finished on this node"]);
    assert_eq!(give(&mut protocol, "a", 2), ["ack a2", "start a2"]);
}

#[test]
fn what_was_called_off_is_held_until_it_has_stopped_and_never_reported() {
    let mut protocol = Protocol::new(1);
    give(&mut protocol, "a", 1);
    assert_eq!(cancel(&mut protocol, "a", 1), ["stop a1"]);
    assert_eq!(cancel(&mut protocol, "a", 1), [""; 0]);
    assert_eq!(give(&mut protocol, "a", 1), ["reject a1: cancelled on this node"]);
    assert_eq!(give(&mut protocol, "b", 1), ["reject b1: full"]);
    assert_eq!((protocol.listed(), protocol.is_running(&attempt("a", 1))), (vec![attempt("a", 1)], false));
    assert_eq!(end(&mut protocol, "a", 1), ["beat"]);
    assert!(protocol.is_empty() && protocol.welcomed().is_empty());
}

#[test]
fn a_cancel_that_comes_after_the_result_leaves_it_to_be_settled() {
    let mut protocol = Protocol::new(1);
    give(&mut protocol, "a", 1);
    end(&mut protocol, "a", 1);
    assert_eq!(cancel(&mut protocol, "a", 1), [""; 0]);
    assert_eq!(protocol.welcomed().len(), 1);
    reported(protocol.heard(SchedulerFrame::Stale(attempt("a", 1).into())));
    assert!(protocol.is_empty());
}

#[test]
fn a_running_attempt_that_is_stale_is_stopped() {
    let mut protocol = Protocol::new(1);
    give(&mut protocol, "a", 1);
    assert_eq!(reported(protocol.heard(SchedulerFrame::Stale(attempt("a", 1).into()))), ["stop a1"]);
    assert_eq!(end(&mut protocol, "a", 1), ["beat"]);
}

#[test]
fn a_newer_attempt_stops_the_older_and_an_older_one_is_not_taken() {
    let mut protocol = Protocol::new(2);
    give(&mut protocol, "a", 2);
    assert_eq!(give(&mut protocol, "a", 1), ["reject a1: this node has a newer attempt"]);
    assert_eq!(give(&mut protocol, "a", 3), ["stop a2", "ack a3", "start a3"]);
    // Another job whose id begins alike is another job.
    assert_eq!(give(&mut protocol, "aa", 1), ["reject aa1: full"]);
}

#[test]
fn who_drains_takes_nothing_and_answers_for_what_it_has() {
    let mut protocol = Protocol::new(3);
    give(&mut protocol, "a", 1);
    assert_eq!(protocol.drain().kind(), "drain");
    assert_eq!(give(&mut protocol, "b", 1), ["reject b1: draining"]);
    assert_eq!(give(&mut protocol, "a", 1), ["ack a1"]);
    assert_eq!(end(&mut protocol, "a", 1), ["result a1"]);
    let again: Vec<_> = protocol.welcomed().iter().map(NodeFrame::kind).collect();
    assert_eq!(again, ["drain", "result"]);
}

#[test]
fn a_new_connection_is_told_all_results_that_nobody_confirmed() {
    let mut protocol = Protocol::new(3);
    for job in ["a", "b", "c"] {
        give(&mut protocol, job, 1);
    }
    end(&mut protocol, "a", 1);
    end(&mut protocol, "c", 1);
    settle(&mut protocol, "a", 1);
    assert_eq!(reported(protocol.welcomed().into_iter().map(Effect::Send)), ["result c1"]);
    assert_eq!(protocol.listed(), [attempt("b", 1), attempt("c", 1)]);
    assert_eq!(busy(&protocol), BTreeSet::from([attempt("b", 1)]));
}

#[test]
fn notices_about_unknown_attempts_and_talk_of_the_connection_change_nothing() {
    let mut protocol = Protocol::new(1);
    assert_eq!(cancel(&mut protocol, "x", 1), [""; 0]);
    assert_eq!(settle(&mut protocol, "x", 1), [""; 0]);
    assert_eq!(end(&mut protocol, "x", 1), [""; 0]);
    assert!(protocol.heard(SchedulerFrame::HeartbeatOk(Default::default())).is_empty());
    assert!(protocol.is_empty());
}

#[test]
fn of_those_that_are_over_the_oldest_are_forgotten() {
    let mut protocol = Protocol::new(1);
    for number in 1..=OVER_MAX as u32 + 1 {
        give(&mut protocol, "a", number);
        end(&mut protocol, "a", number);
        settle(&mut protocol, "a", number);
    }
    assert_eq!(protocol.over.len(), OVER_MAX);
    assert_eq!(give(&mut protocol, "a", 1), ["ack a1", "start a1"]);
}

/// One thing that happens to a node.
#[derive(Clone, Debug)]
enum Step {
    Dispatch(String, u32),
    Cancel(String, u32),
    Committed(String, u32),
    Stale(String, u32),
    Ended(usize),
    Reconnect,
    Drain,
}

fn step() -> impl Strategy<Value = Step> {
    let which = || ("[a-d]", 1..4_u32);
    prop_oneof![
        6 => which().prop_map(|(job, attempt)| Step::Dispatch(job, attempt)),
        2 => which().prop_map(|(job, attempt)| Step::Cancel(job, attempt)),
        3 => which().prop_map(|(job, attempt)| Step::Committed(job, attempt)),
        1 => which().prop_map(|(job, attempt)| Step::Stale(job, attempt)),
        5 => (0..8_usize).prop_map(Step::Ended),
        1 => Just(Step::Reconnect),
        1 => Just(Step::Drain),
    ]
}

proptest! {
    /// Whatever a scheduler says: never more at work than there are places, no attempt is started twice, each
    /// dispatch has one answer, and what is listed is what is owed.
    #[test]
    fn any_order_of_words_keeps_the_books(capacity in 1..4_u32, steps in prop::collection::vec(step(), 1..120)) {
        let mut protocol = Protocol::new(capacity);
        let (mut started, mut at_work) = (BTreeSet::new(), BTreeSet::new());
        let mut unsettled = BTreeSet::new();
        for step in steps {
            let notice = |job: &String, attempt: &u32| Notice { job: job.clone(), attempt: *attempt };
            let effects = match &step {
                Step::Dispatch(job, number) => protocol.heard(SchedulerFrame::Dispatch(dispatch(job, *number))),
                Step::Cancel(job, number) => protocol.heard(SchedulerFrame::Cancel(notice(job, number))),
                Step::Committed(job, number) => {
                    unsettled.remove(&attempt(job, *number));
                    protocol.heard(SchedulerFrame::Committed(notice(job, number)))
                }
                Step::Stale(job, number) => {
                    unsettled.remove(&attempt(job, *number));
                    protocol.heard(SchedulerFrame::Stale(notice(job, number)))
                }
                Step::Ended(which) => match at_work.iter().nth(*which).cloned() {
                    Some(attempt) => {
                        at_work.remove(&attempt);
                        protocol.ended(&attempt, done()).into_iter().collect()
                    }
                    None => Vec::new(),
                },
                Step::Reconnect => protocol.welcomed().into_iter().map(Effect::Send).collect(),
                Step::Drain => vec![Effect::Send(protocol.drain())],
            };
            let mut answers = 0;
            for effect in effects {
                match effect {
                    Effect::Start(it) => {
                        let it = attempt(&it.job, it.attempt);
                        prop_assert!(started.insert(it.clone()), "{it:?} was started twice");
                        at_work.insert(it);
                    }
                    Effect::Stop(it) => prop_assert!(at_work.contains(&it)),
                    Effect::Send(NodeFrame::Ack(_) | NodeFrame::Reject(_)) => answers += 1,
                    Effect::Send(NodeFrame::Result(it)) => {
                        unsettled.insert(attempt(&it.job, it.attempt));
                    }
                    Effect::Send(_) | Effect::Beat => {}
                }
            }
            prop_assert_eq!(answers, u32::from(matches!(step, Step::Dispatch(..))));
            prop_assert!(at_work.len() <= capacity as usize);
            let owed: Vec<AttemptRef> = at_work.union(&unsettled).cloned().collect();
            prop_assert_eq!(protocol.listed(), owed);
            prop_assert_eq!(busy(&protocol), at_work.clone());
        }
    }
}
