//! What a result leads to, case by case; and results that are written into a ledger.

use std::collections::HashMap;
use std::time::Instant;

use domain::job::PastAttempt;
use domain::{PlanId, Timestamp};
use ledger::Finished;

use super::*;
use crate::jobs::finish_notices;
use crate::jobs::fixture::{
    FIRST, KnownOwners, LabelCounts, Ledger, dispatch, event_now, instance, job, lane, node, policy, serve,
    slot, spec,
};
use crate::jobs::progress_store::ProgressStore;

fn succeeded(number: u128) -> NodeResult {
    NodeResult { job: job(number), attempt: FIRST, output: Ok("7".to_owned()) }
}

fn failed(number: u128, is_retryable: bool) -> NodeResult {
    let failure = Failure { ended: Ended::Failed, message: "why".to_owned(), is_retryable };
    NodeResult { job: job(number), attempt: FIRST, output: Err(failure) }
}

/// What an instance writes in the stead of a node.
fn ended_without_its_node(number: u128, why: Revoked) -> NodeResult {
    let failure = Failure { ended: Ended::Revoked(why), message: "why".to_owned(), is_retryable: true };
    NodeResult { job: job(number), attempt: FIRST, output: Err(failure) }
}

#[test]
fn each_result_leads_to_its_change() {
    let (n, policy) = (node("n"), policy("session:s"));
    let used_up = RetryPolicy { charged_attempts: 1, ..policy.clone() };
    let at_once =
        RetryPolicy { backoff: domain::job::Backoff { initial_ms: 0, ..policy.backoff }, ..policy.clone() };
    let fail = |due_in_ms, dead| {
        let (job, attempt, node, ended) = (job(1), FIRST, n.clone(), Ended::Failed);
        Some(Change::Fail { job, attempt, node, ended, error: "why".to_owned(), due_in_ms, dead })
    };
    let complete =
        Some(Change::Complete { job: job(1), attempt: FIRST, node: n.clone(), output: "7".to_owned() });
    for (result, policy, change) in [
        (succeeded(1), Some(&policy), complete.clone()),
        (succeeded(1), None, complete),
        (failed(1, true), Some(&policy), fail(Some(policy.backoff.pause_ms(1, 0.0)), false)),
        (failed(1, true), Some(&at_once), fail(Some(1), false)),
        (failed(1, true), Some(&used_up), fail(None, true)),
        (failed(1, false), Some(&policy), fail(None, false)),
        (failed(1, true), None, None),
    ] {
        assert_eq!(change_of(&n, &result, policy, 0.0), change, "{result:?}");
    }
}

#[test]
fn each_change_that_is_a_result_has_its_consequence() {
    let (job, attempt, node) = (job(1), FIRST, node("n"));
    let fail = |due_in_ms, dead| {
        let (node, ended, error) = (node.clone(), Ended::Failed, String::new());
        Change::Fail { job, attempt, node, ended, error, due_in_ms, dead }
    };
    let consequence_of = |event, outcome| Some(Consequence { event, outcome });
    let complete = Change::Complete { job, attempt, node: node.clone(), output: "1".to_owned() };
    for (change, expected) in [
        (complete, consequence_of(AttemptEvent::Finished, Some(Outcome::Succeeded))),
        (fail(None, true), consequence_of(AttemptEvent::Finished, Some(Outcome::Failed))),
        (fail(None, false), consequence_of(AttemptEvent::Finished, Some(Outcome::Failed))),
        (fail(Some(5), false), consequence_of(AttemptEvent::Failed { due_in_ms: 5 }, None)),
        (Change::Run { job, attempt, node: node.clone() }, None),
        (Change::Release { job, attempt }, None),
    ] {
        assert_eq!(consequence(&change), expected, "{change:?}");
    }
}

/// What is in this instance's hands.
struct Here {
    ledger: Ledger,
    writer: ResultWriter,
    lanes: Arc<Directory>,
    /// The notices to other instances.
    told: bus::Subscription,
    _other: bus::Handle,
}

impl Here {
    /// Instance `a`, which holds the socket of node `n`, beside `b`.
    async fn open() -> Self {
        let hub = bus::Hub::default();
        let (ledger, bus, lanes) = (Ledger::open().await, hub.join(), Arc::<Directory>::default());
        let other = hub.join();
        let told = other.subscribe(bus::Channel::Jobs);
        let owners = Arc::<KnownOwners>::default();
        owners.live.lock().extend([instance("a"), instance("b")]);
        let sends = InterInstance::start(instance("a"), bus, false, lanes.clone(), owners);
        let registry = nodes::Registry::new(instance("a"), domain::NodeTimeouts::DEFAULT);
        let store = Arc::<ProgressStore>::default();
        let gateway = NodeGateway::new(ledger.handle.clone(), registry, Arc::clone(&sends), store);
        let writer = ResultWriter {
            ledger: ledger.handle.clone(),
            gateway,
            inter_instance: sends,
            lanes: lanes.clone(),
            waiters: Arc::default(),
            watches: Arc::new(Watches::new(true).0),
            late: Arc::default(),
            rates: Arc::new(RateCounter::new()),
        };
        Self { ledger, writer, lanes, told, _other: other }
    }

    async fn write(&self, from: &str, results: Vec<NodeResult>) -> Vec<Answer> {
        let answers = self.writer.write(&node(from), results, true).await;
        answers.into_iter().map(|(answer, _)| answer).collect()
    }
}

#[tokio::test]
async fn a_result_is_written_once_and_answered_the_same_when_it_is_said_again() {
    let here = Here::open().await;
    here.ledger.dispatch_all("b", &[1, 2, 3], "n", "a").await;
    for number in [1, 2, 3] {
        here.writer.gateway.attempts().expect(&dispatch(number, "n", "a"), Instant::now());
    }
    assert_eq!(here.write("liar", vec![succeeded(1)]).await, [Answer::Stale]);
    assert!(here.writer.gateway.attempts().policy(job(1), FIRST).is_some(), "it is another node's still");
    let results = vec![succeeded(1), failed(2, true), failed(3, false)];
    assert_eq!(here.write("n", results.clone()).await, [Answer::Committed; 3]);
    assert!(!here.writer.gateway.attempts().is_expected(job(1), FIRST), "it is over");
    assert_eq!(here.write("n", results).await, [Answer::Committed; 3]);
    assert_eq!(here.write("liar", vec![succeeded(1)]).await, [Answer::Stale]);
    assert_eq!(here.write("n", vec![succeeded(9)]).await, [Answer::Stale]);
    let states = async |number| here.ledger.handle.job(job(number)).await.unwrap().unwrap().state;
    assert_eq!(states(1).await, State::Finished);
    assert_eq!(states(2).await, State::Created, "it is tried again");
    assert_eq!(states(3).await, State::Finished);
}

#[tokio::test]
async fn what_a_lost_node_had_is_tried_again_and_what_it_did_of_a_stage_is_for_people_to_say() {
    let here = Here::open().await;
    here.ledger.dispatch_all("b", &[1], "n", "a").await;
    here.ledger.dispatch_in(LaneId::plan(PlanId::from_u128(7)), "b", &[2], "n", "a").await;
    let attempts = [slot(1), slot(2), slot(9)];
    let revoked = LabelCounts::of("fencepost_dispatch_revoked_total");
    let recorded = metrics::set_default_local_recorder(&revoked);
    for _ in 0..2 {
        here.writer.lost(&node("n"), &attempts, Revoked::NodeLost, "the node was lost").await;
    }
    drop(recorded);
    assert_eq!(revoked.all(), HashMap::from([("node_lost".to_owned(), 1)]), "what is written, once");
    let states = async |number| here.ledger.handle.job(job(number)).await.unwrap().unwrap().state;
    assert_eq!((states(1).await, states(2).await), (State::Created, State::Dispatched));
    let lost = here.ledger.handle.job(job(1)).await.unwrap().unwrap();
    let ended: Vec<_> = lost.attempts.iter().map(|past| (past.ended, past.reason.as_str())).collect();
    assert_eq!(ended, [(Ended::Revoked(Revoked::NodeLost), "the node was lost")]);
    assert_eq!(lost.charged_attempts, 1);
    // The node was only away, and keeps its result until it gets `committed` or `stale`.
    assert_eq!(here.write("n", vec![succeeded(1)]).await, [Answer::Stale]);
}

#[tokio::test]
async fn the_owner_of_the_lane_and_those_who_wait_are_told_of_what_is_written() {
    let here = Here::open().await;
    here.ledger.dispatch_all("b", &[1, 2], "n", "a").await;
    // Its owner has moved here; what it has of it is not known to the ledger's lease.
    let mut owner = serve(&here.lanes, "instance:b");
    let waiter = here.writer.waiters.wait_for(job(1));
    let mut finished = std::pin::pin!(waiter.finished());
    finished.as_mut().enable();
    // Nothing is known here of either: they came with their node.
    here.writer.gateway.attempts().connected_with(&node("n"), &[]);
    assert_eq!(here.write("n", vec![succeeded(1), failed(2, true)]).await, [Answer::Committed; 2]);
    finished.await;
    assert_eq!(event_now(&mut owner).await, Some((job(1), AttemptEvent::Finished)));
    let Some((of, AttemptEvent::Failed { due_in_ms })) = event_now(&mut owner).await else {
        panic!("it is due again");
    };
    assert!(of == job(2) && due_in_ms > 0);
    assert_eq!(event_now(&mut owner).await, None);
}

#[tokio::test]
async fn a_result_whose_commit_was_written_without_an_answer_is_told_at_the_next_try() {
    let here = Here::open().await;
    here.ledger.dispatch_all("b", &[1], "n", "a").await;
    let mut owner = serve(&here.lanes, "instance:b");
    here.writer.gateway.attempts().expect(&dispatch(1, "n", "a"), Instant::now());
    let write = change_of(&node("n"), &succeeded(1), None, 0.0).map(|change| JobWrite { change, key: None });
    let batch = JobBatch { lane: None, writes: write.into_iter().collect() };
    here.ledger.handle.commit_jobs(batch).await.unwrap();
    for (is_unsure, event) in [(false, None), (true, Some((job(1), AttemptEvent::Finished)))] {
        let (mut left, mut answers) = (vec![0], [Answer::Stale]);
        let results = [succeeded(1)];
        here.writer.commit_results(&node("n"), &results, &mut left, is_unsure, &mut answers).await.unwrap();
        assert_eq!((left.len(), answers), (0, [Answer::Committed]));
        assert_eq!(event_now(&mut owner).await, event);
    }
}

#[tokio::test]
async fn a_failure_whose_commit_was_written_without_an_answer_is_told_as_the_ledger_has_it() {
    let here = Here::open().await;
    here.ledger.dispatch_all("b", &[1, 2, 3], "n", "a").await;
    let mut owner = serve(&here.lanes, "instance:b");
    let results = [failed(1, true), failed(2, false), ended_without_its_node(3, Revoked::NodeLost)];
    assert_eq!(here.write("n", results.to_vec()).await, [Answer::Committed; 3]);
    let mut told =
        async || [event_now(&mut owner).await, event_now(&mut owner).await, event_now(&mut owner).await];
    let is_due_again = |told: &Option<(JobId, AttemptEvent)>, number: u128| match told {
        Some((of, AttemptEvent::Failed { due_in_ms })) => *of == job(number) && *due_in_ms > 0,
        _ => false,
    };
    let is_right = |told: &[Option<(JobId, AttemptEvent)>; 3]| {
        is_due_again(&told[0], 1)
            && told[1] == Some((job(2), AttemptEvent::Finished))
            && is_due_again(&told[2], 3)
    };
    let first = told().await;
    assert!(is_right(&first), "{first:?}");
    // Whether they came with their node, or were dispatched to this instance.
    for is_expected in [false, true] {
        for number in [1, 2, 3].into_iter().filter(|_| is_expected) {
            here.writer.gateway.attempts().expect(&dispatch(number, "n", "a"), Instant::now());
        }
        let (mut left, mut answers) = (vec![0, 1, 2], [Answer::Stale; 3]);
        here.writer.commit_results(&node("n"), &results, &mut left, true, &mut answers).await.unwrap();
        assert_eq!((left.len(), answers), (0, [Answer::Committed; 3]));
        let again = told().await;
        assert!(is_right(&again), "{again:?}, dispatched here: {is_expected}");
    }
}

#[test]
fn what_followed_from_an_end_is_told_unless_the_owner_has_gone_on() {
    let (at, due) = (Timestamp::from_micros(0), Timestamp::from_micros(0).plus_ms(7));
    let failed = || vec![past(1, "n", Ended::Failed)];
    let finished = |outcome| Finished {
        outcome,
        exhausted: false,
        result: None,
        error: None,
        finished_at: at,
        released_at: None,
        retried_as: None,
        dismissed_at: None,
    };
    let again = |due_at| JobRecord { state: State::Created, attempt: FIRST, due_at, ..record(failed()) };
    let ended = |outcome| JobRecord { attempt: FIRST, finished: Some(finished(outcome)), ..record(failed()) };
    let follows = |event, outcome| Some(Consequence { event, outcome });
    for (job, expected) in [
        (again(Some(due)), follows(AttemptEvent::Failed { due_in_ms: 7 }, None)),
        (again(None), follows(AttemptEvent::Failed { due_in_ms: 1 }, None)),
        (ended(Outcome::Failed), follows(AttemptEvent::Finished, Some(Outcome::Failed))),
        (ended(Outcome::Succeeded), follows(AttemptEvent::Finished, Some(Outcome::Succeeded))),
        (ended(Outcome::Cancelled), None),
        (ended(Outcome::TimedOut), None),
        (JobRecord { attempt: FIRST.next(), ..again(Some(due)) }, None),
    ] {
        assert_eq!(consequence_in(&job, FIRST), expected, "{job:?}");
    }
}

#[tokio::test]
async fn a_good_end_is_for_the_owner_on_this_instance_to_write() {
    let here = Here::open().await;
    here.ledger.dispatch_all("b", &[1], "n", "a").await;
    let mut owner = serve(&here.lanes, "instance:b");
    here.writer.gateway.attempts().expect(&dispatch(1, "n", "a"), Instant::now());
    assert!(here.writer.writer_of(&succeeded(1)).is_some());
    assert!(here.writer.writer_of(&failed(1, true)).is_none(), "only a good end");
    assert!(here.writer.writer_of(&succeeded(2)).is_none(), "only of what was dispatched here");
    let written = async {
        match owner.recv().await.unwrap() {
            LaneCommand::Complete(request) => {
                assert_eq!((request.job, request.node, request.may_pass), (job(1), node("n"), true));
                let outcome = CompletionOutcome { is_written: true, next: None };
                here.writer.answer(vec![CompletionAnswer { reply: request.reply, outcome }]);
            }
            _ => panic!("a completion was awaited"),
        }
    };
    let (answers, ()) = tokio::join!(here.write("n", vec![succeeded(1)]), written);
    assert_eq!(answers, [Answer::Committed]);
    // A session's too.
    let _session = serve(&here.lanes, "session:s");
    let of_session = Dispatch { policy: policy("session:s"), ..dispatch(3, "n", "a") };
    here.writer.gateway.attempts().expect(&of_session, Instant::now());
    assert!(here.writer.writer_of(&succeeded(3)).is_some());
    let state = here.ledger.handle.job(job(1)).await.unwrap().unwrap().state;
    assert_eq!(state, State::Dispatched, "nobody else writes it");
}

#[tokio::test]
async fn other_instances_get_finish_notices_unless_they_announce_that_nobody_waits_there() {
    let mut here = Here::open().await;
    let _outbox = here.writer.gateway.attach(&node("n"), Instant::now(), &[], Arc::default());
    let end = |here: &Here, number, at: &str| {
        here.writer.written_by_owner(job(number), &Class::default(), FIRST, &node(at), &lane("session:s"));
    };
    end(&here, 1, "n");
    here.writer.watches.receives(&instance("b"), "no ends");
    end(&here, 2, "n");
    // Its node is elsewhere, and may be told there to stop.
    end(&here, 3, "m");
    here.writer.watches.receives(&instance("b"), "ends");
    end(&here, 4, "n");
    let mut told = Vec::new();
    while told.len() < 3 {
        match here.told.next().await.unwrap() {
            bus::Event::Message(payload) => {
                told.extend(finish_notices::read(&payload).unwrap().into_iter().map(|notice| notice.job));
            }
            bus::Event::Resumed | bus::Event::Lagged { .. } => {}
        }
    }
    assert_eq!(told, [job(1), job(3), job(4)]);
}

#[tokio::test]
async fn an_owner_that_does_not_know_the_attempt_leaves_it_to_the_holder() {
    let here = Here::open().await;
    here.ledger.dispatch_all("b", &[1], "n", "a").await;
    let mut owner = serve(&here.lanes, "instance:b");
    here.writer.gateway.attempts().expect(&dispatch(1, "n", "a"), Instant::now());
    let dropped = async { drop(owner.recv().await) };
    let (answers, ()) = tokio::join!(here.write("n", vec![succeeded(1)]), dropped);
    assert_eq!(answers, [Answer::Committed]);
    assert_eq!(event_now(&mut owner).await, Some((job(1), AttemptEvent::Finished)));
}

#[tokio::test]
async fn a_result_that_waits_to_be_written_counts_as_an_acknowledgement() {
    let here = Here::open().await;
    here.ledger.dispatch_all("b", &[1, 2], "n", "a").await;
    let mut owner = serve(&here.lanes, "instance:b");
    for (number, to) in [(1, "n"), (2, "another")] {
        here.writer.gateway.attempts().expect(&dispatch(number, to, "a"), Instant::now());
    }
    // The owner does not answer as long as these are held.
    let acknowledged = async {
        let held = [owner.recv().await.unwrap(), owner.recv().await.unwrap()];
        assert!(held.iter().all(|command| matches!(command, LaneCommand::Complete(_))));
        match owner.recv().await.unwrap() {
            LaneCommand::Attempt(job, FIRST, event) => (job, event),
            _ => panic!("an event of an attempt was awaited"),
        }
    };
    let results = vec![succeeded(1), succeeded(2)];
    let (answers, event) = tokio::join!(here.write("n", results), acknowledged);
    assert_eq!(event, (job(1), AttemptEvent::Acknowledged));
    assert_eq!(answers, [Answer::Committed; 2]);
    for number in [1, 2] {
        let next = event_now(&mut owner).await;
        assert_eq!(next, Some((job(number), AttemptEvent::Finished)), "no word for what another node has");
    }
}

/// An attempt that has ended.
fn past(attempt: u32, of: &str, ended: Ended) -> PastAttempt {
    PastAttempt {
        attempt: Attempt::new(attempt),
        node: node(of),
        ended,
        reason: String::new(),
        at: Timestamp::from_micros(0),
    }
}

/// A job whose second attempt is the newest.
fn record(attempts: Vec<PastAttempt>) -> JobRecord {
    JobRecord {
        id: job(1),
        lane: lane("session:s"),
        seq: None,
        client_ref: None,
        spec: spec(),
        state: State::Finished,
        attempt: Attempt::new(2),
        charged_attempts: 0,
        placed: None,
        retry_of: None,
        created_at: Timestamp::from_micros(0),
        due_at: None,
        dispatched_at: None,
        running_at: None,
        attempts,
        finished: None,
    }
}

#[test]
fn only_an_end_of_that_attempt_in_the_same_words_counts_as_written() {
    let n = node("n");
    let lost = ended_without_its_node(1, Revoked::NodeLost);
    for (attempts, by_its_node, with_its_node) in [
        (vec![past(1, "n", Ended::Succeeded)], true, false),
        (vec![past(1, "n", Ended::Failed)], true, false),
        (vec![past(1, "n", Ended::Revoked(Revoked::NodeLost))], false, true),
        (vec![past(1, "n", Ended::Revoked(Revoked::Unlisted))], false, false),
        (vec![past(1, "n", Ended::Cancelled)], false, false),
        (vec![past(2, "n", Ended::Succeeded)], false, false),
        (vec![past(2, "n", Ended::Revoked(Revoked::NodeLost))], false, false),
        (vec![past(1, "m", Ended::Succeeded)], false, false),
        (vec![], false, false),
    ] {
        let job = record(attempts.clone());
        for of_node in [succeeded(1), failed(1, true)] {
            assert_eq!(was_ended_by(&job, &of_node, &n), by_its_node, "{attempts:?}");
        }
        assert_eq!(was_ended_by(&job, &lost, &n), with_its_node, "{attempts:?}");
    }
}
