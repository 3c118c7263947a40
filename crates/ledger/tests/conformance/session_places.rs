//! The places of a session's jobs: who is next, what has ended, and what is never given again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Atomic};

use domain::job::{Attempt, Change, Due, Ended, NewJob, Outcome, Revoked, State};
use domain::{ClientRef, IdempotencyKey, JobId};
use ledger::{
    JobBatch, JobKey, JobVerdict, KeptJobKey, KeyScope, LAST_NODE_PLACES, SessionCounts, SessionResult,
    SessionResults,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use sqlx::Connection;
use tokio::task::JoinSet;

use crate::bench::{Bench, LONG_MS, eventually, owner};
use crate::shop::{
    cancel, complete, dispatch, in_session, instance_lane, job, job_made, node, of_lane, placed, run, said,
    session, session_id, submit, with_key,
};

fn at_place(n: u64, id: JobId) -> NewJob {
    NewJob { id, ..in_session("s", n) }
}

pub async fn a_line_is_read_by_places_with_the_time_until_each_is_due(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    // Their ids are in another order, and so are their pools.
    let mut jobs: Vec<_> = (1..=6).map(|n| at_place(n, job(20 - n))).collect();
    jobs[2].due = Due::InMs(LONG_MS);
    jobs[3].spec.needs.pool = Some(domain::PoolName::parse("a").unwrap());
    jobs[4].client_ref = Some(ClientRef::parse("c5").unwrap());
    b.does(of_lane(&lane, jobs.iter().rev().cloned().map(submit))).await;
    let other = b.lane(session("s2"), &owner("a")).await;
    b.does(of_lane(&other, [submit(in_session("s2", 1))])).await;
    let line = async |after, limit| {
        let line = b.ledger.line(&lane.id, after, limit).await.unwrap();
        line.into_iter().map(|(live, in_ms)| (live.seq.unwrap(), live, in_ms)).collect::<Vec<_>>()
    };
    let places = async |after, limit| line(after, limit).await.iter().map(|it| it.0).collect::<Vec<_>>();
    let all = line(0, 100).await;
    for ((seq, live, in_ms), new) in all.iter().zip(&jobs) {
        assert_eq!(
            (Some(*seq), live.id, &live.spec, &live.client_ref),
            (new.seq, new.id, &new.spec, &new.client_ref)
        );
        let is_delayed = *seq == 3;
        assert_eq!((*in_ms > LONG_MS / 2 && *in_ms <= LONG_MS, *in_ms == 0), (is_delayed, !is_delayed));
    }
    assert_eq!((places(0, 100).await, places(2, 2).await), (vec![1, 2, 3, 4, 5, 6], vec![3, 4]));
    assert!(places(6, 100).await.is_empty() && places(u64::MAX, 100).await.is_empty());
    // What has a node is not in the line; what comes back is where it was.
    b.does(of_lane(&lane, [dispatch(job(19), 1), dispatch(job(16), 1), cancel(job(18))])).await;
    assert_eq!(places(0, 100).await, [3, 5, 6]);
    let back = Change::Fail {
        job: job(19),
        attempt: Attempt::new(1),
        node: node("n"),
        ended: Ended::Failed,
        error: String::new(),
        due_in_ms: Some(1),
        dead: false,
    };
    b.does(said([back])).await;
    assert_eq!(places(0, 100).await, [1, 3, 5, 6]);
    eventually("it is due", async || line(0, 1).await[0].2 == 0).await;
    let own = instance_lane(&owner("a"));
    assert!(b.ledger.line(&own, 0, 100).await.unwrap().is_empty(), "an instance's jobs have no places");
}

pub async fn a_job_begins_only_with_the_end_of_the_one_before_it(b: Bench) {
    const BOTH: [JobVerdict; 2] = [JobVerdict::Written; 2];
    const NEITHER: [JobVerdict; 2] = [JobVerdict::Stale; 2];
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (1..=9).map(|n| submit(in_session("s", n))))).await;
    b.does(of_lane(&lane, [dispatch(job(1), 1)])).await;
    let behind = |n: u64| Change::Dispatch {
        job: job(n),
        attempt: Attempt::new(1),
        placed: placed(),
        behind: Some(job(n - 1)),
    };
    let state = async |n| b.found(job(n)).await.state;
    // By one statement, and, beside a cancellation, the general way.
    for (first, beside) in [(1, None), (3, Some(9))] {
        let also = || beside.map(|n| cancel(job(n)));
        let verdicts = async |end: Change, next: u64| {
            let all = [end, behind(next)].into_iter().chain(also());
            let mut verdicts = b.verdicts(of_lane(&lane, all)).await;
            verdicts.truncate(2);
            verdicts
        };
        // Another attempt of it than the newest.
        assert_eq!(verdicts(complete(job(first), 2, "1"), first + 1).await, NEITHER);
        assert_eq!((state(first).await, state(first + 1).await), (State::Dispatched, State::Created));
        assert_eq!(verdicts(complete(job(first), 1, "1"), first + 1).await, BOTH);
        assert_eq!((state(first).await, state(first + 1).await), (State::Finished, State::Dispatched));
        // One that is finished already ends nothing.
        assert_eq!(verdicts(complete(job(first), 1, "1"), first + 2).await, NEITHER);
        assert_eq!(
            b.verdicts(of_lane(&lane, [behind(first + 2)].into_iter().chain(also()))).await[0],
            JobVerdict::Stale
        );
        b.does(of_lane(&lane, [complete(job(first + 1), 1, "1"), behind(first + 2)])).await;
    }
}

pub async fn a_line_ends_before_it_is_too_large(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    for n in 1..=20 {
        let mut new = in_session("s", n);
        new.spec.payload = "x".repeat(1 << 20).into();
        b.does(of_lane(&lane, [submit(new)])).await;
    }
    let page = async |after| b.ledger.line(&lane.id, after, 100).await.unwrap().len();
    assert_eq!((page(0).await, page(16).await), (16, 4));
}

pub async fn the_attempt_that_was_taken_back_last_is_named_if_it_may_never_have_been_sent(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let last = async || {
        let last = b.ledger.last_revoked(&session_id("s"), LONG_MS).await.unwrap();
        assert!(last.is_none_or(|last| last.ago_ms < LONG_MS / 2), "{last:?}");
        last.map(|last| (last.job, last.attempt.get()))
    };
    let revoke = |n, attempt, why| Change::Revoke {
        job: job(n),
        attempt: Attempt::new(attempt),
        why,
        reason: "no".to_owned(),
        due_in_ms: 1,
    };
    assert_eq!(last().await, None);
    b.does(of_lane(&lane, (1..=9).map(|n| submit(in_session("s", n))))).await;
    assert_eq!(last().await, None);
    b.does(of_lane(&lane, [dispatch(job(1), 1)])).await;
    assert_eq!(last().await, None, "it is under way");
    b.does(of_lane(&lane, [revoke(1, 1, Revoked::NotAcknowledged)])).await;
    assert_eq!(last().await, Some((job(1), 1)));
    b.does(of_lane(&lane, [dispatch(job(1), 2)])).await;
    assert_eq!(last().await, None, "another one is under way");
    b.does(of_lane(&lane, [revoke(1, 2, Revoked::NodeLost)])).await;
    assert_eq!(last().await, None, "it was sent");
    b.does(of_lane(&lane, [dispatch(job(1), 3)])).await;
    b.does(of_lane(&lane, [revoke(1, 3, Revoked::NodeLostUnsent)])).await;
    // The job that waited for its next attempt is over, and so is one that never had any.
    b.does(of_lane(&lane, [cancel(job(1)), cancel(job(2))])).await;
    assert_eq!(last().await, Some((job(1), 3)));
    b.does(of_lane(&lane, [dispatch(job(3), 1)])).await;
    b.does(of_lane(&lane, [cancel(job(3))])).await;
    assert_eq!(last().await, Some((job(3), 1)), "an attempt that its job's cancellation ended");
    b.does(of_lane(&lane, [dispatch(job(4), 1)])).await;
    b.does(said([run(job(4), 1)])).await;
    b.does(of_lane(&lane, [cancel(job(4))])).await;
    assert_eq!(last().await, None, "its node had acknowledged it");
    b.does(of_lane(&lane, [dispatch(job(5), 1)])).await;
    b.does(said([complete(job(5), 1, "1")])).await;
    assert_eq!(last().await, None);
    assert_eq!(b.ledger.last_revoked(&session_id("other"), LONG_MS).await.unwrap(), None);
}

pub async fn an_attempt_that_was_taken_back_lately_is_named_whatever_was_cancelled_behind_it(b: Bench) {
    const LAST: u64 = LAST_NODE_PLACES + 100;
    let lane = b.lane(session("s"), &owner("a")).await;
    let last = async || {
        let last = b.ledger.last_revoked(&session_id("s"), LONG_MS).await.unwrap();
        last.map(|last| (last.job, last.attempt.get()))
    };
    b.does(of_lane(&lane, (1..=LAST).map(|n| submit(in_session("s", n))))).await;
    b.does(of_lane(&lane, [dispatch(job(1), 1)])).await;
    b.does(of_lane(&lane, (1..=LAST).map(|n| cancel(job(n))))).await;
    assert_eq!(last().await, Some((job(1), 1)));
    // Of an attempt that ended an hour ago no reservation stands, and its job is not read.
    let hour = if b.database.is_some() { "interval '1 hour'" } else { "3600000000" };
    b.by_hand(format!("UPDATE job_finished SET finished_at = finished_at - {hour} WHERE seq = 1")).await;
    assert_eq!(last().await, None);
}

fn result(n: u64, outcome: Outcome, result: Option<&str>, error: Option<&str>) -> SessionResult {
    let (result, error) = (result.map(str::to_owned), error.map(str::to_owned));
    SessionResult { id: job(n), seq: n, client_ref: None, outcome, result, error }
}

pub async fn results_are_read_by_places_from_both_tables(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let results =
        async |after, limit| b.ledger.session_results(&session_id("s"), after, limit).await.unwrap();
    assert_eq!(results(0, 100).await, SessionResults::default());
    let named = |n| NewJob {
        client_ref: (n == 2).then(|| ClientRef::parse("c2").unwrap()),
        placed: Some(placed()),
        ..in_session("s", n)
    };
    b.does(of_lane(&lane, (1..=6).map(|n| submit(named(n))))).await;
    let unfinished =
        async |after, limit| b.ledger.unfinished_places(&session_id("s"), after, limit).await.unwrap();
    assert_eq!((unfinished(0, 100).await, unfinished(2, 3).await), (vec![1, 2, 3, 4, 5, 6], vec![3, 4, 5]));
    let none = SessionResults { results: vec![], first_unfinished: Some(1), is_open: false };
    assert_eq!((results(0, 100).await, results(6, 100).await), (none.clone(), none));
    let fail = Change::Fail {
        job: job(4),
        attempt: Attempt::new(1),
        node: node("n"),
        ended: Ended::Failed,
        error: "no".to_owned(),
        due_in_ms: None,
        dead: true,
    };
    b.does(said([complete(job(2), 1, "\"é\""), fail])).await;
    b.does(of_lane(&lane, [cancel(job(1))])).await;
    let second = SessionResult {
        client_ref: Some(ClientRef::parse("c2").unwrap()),
        ..result(2, Outcome::Succeeded, Some("\"é\""), None)
    };
    let fourth = result(4, Outcome::Failed, None, Some("no"));
    let below = vec![result(1, Outcome::Cancelled, None, None), second.clone()];
    assert_eq!(
        results(0, 100).await,
        SessionResults { results: below, first_unfinished: Some(3), is_open: false }
    );
    // What ended behind an unfinished job is not read.
    assert_eq!(
        results(2, 100).await,
        SessionResults { results: vec![], first_unfinished: Some(3), is_open: false }
    );
    assert_eq!((unfinished(0, 100).await, unfinished(5, 9).await), (vec![3, 5, 6], vec![6]));
    let page = SessionResults { results: vec![second], first_unfinished: Some(3), is_open: false };
    assert_eq!(results(1, 1).await, page);
    b.does(of_lane(&lane, [cancel(job(3)), cancel(job(5)), cancel(job(6))])).await;
    let rest = results(3, 100).await;
    assert_eq!((rest.results.len(), &rest.results[0], rest.first_unfinished), (3, &fourth, None));
    assert_eq!(results(6, 100).await, SessionResults::default());
    let places = async |after, limit| b.ledger.finished_places(&session_id("s"), after, limit).await.unwrap();
    assert_eq!(places(0, 100).await, (1..=6).map(|n| (n, job(n))).collect::<Vec<_>>());
    assert_eq!(places(2, 2).await, [(3, job(3)), (4, job(4))]);
    assert!(places(6, 100).await.is_empty());
    assert!(unfinished(0, 100).await.is_empty());
    assert_eq!(
        b.ledger.session_results(&session_id("other"), 0, 9).await.unwrap(),
        SessionResults::default()
    );
}

pub async fn results_come_with_whether_their_session_is_open(b: Bench) {
    for name in ["s", "t"] {
        b.ledger.open_session(&session_id(name), &crate::sessions::spec(), None, None).await.unwrap();
    }
    let are_open = async || {
        let read = async |name| b.ledger.session_results(&session_id(name), 0, 9).await.unwrap();
        let (reads, unknown) = ([read("s").await, read("t").await], read("unknown").await);
        assert!(!unknown.is_open);
        reads.map(|read| (read.results.len(), read.first_unfinished, read.is_open))
    };
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (1..=2).map(|n| submit(NewJob { placed: Some(placed()), ..in_session("s", n) }))))
        .await;
    b.does(said([complete(job(1), 1, "1")])).await;
    assert_eq!(are_open().await, [(1, Some(2), true), (0, None, true)]);
    b.ledger.close_session(&lane).await.unwrap().unwrap();
    assert_eq!(are_open().await, [(1, Some(2), false), (0, None, true)]);
    b.does(said([complete(job(2), 1, "2")])).await;
    assert_eq!(are_open().await, [(2, None, false), (0, None, true)]);
}

pub async fn the_refs_of_a_sessions_jobs_are_read_by_places_from_both_tables(b: Bench) {
    let refs = async |after, limit| {
        let refs = b.ledger.session_refs(&session_id("s"), after, limit).await.unwrap();
        refs.into_iter().map(|name| name.to_string()).collect::<Vec<_>>()
    };
    assert!(refs(0, 100).await.is_empty());
    let lane = b.lane(session("s"), &owner("a")).await;
    let named = |n: u64| NewJob {
        client_ref: (n != 3).then(|| ClientRef::parse(&format!("c{n}")).unwrap()),
        ..in_session("s", n)
    };
    b.does(of_lane(&lane, (1..=6).map(|n| submit(named(n))))).await;
    b.does(of_lane(&lane, [cancel(job(2)), cancel(job(5))])).await;
    assert_eq!(refs(0, 100).await, ["c1", "c2", "c4", "c5", "c6"]);
    assert_eq!(refs(1, 3).await, ["c2", "c4", "c5"]);
    assert!(refs(6, 100).await.is_empty() && refs(u64::MAX, 100).await.is_empty());
}

pub async fn many_sessions_are_read_at_once_and_each_gets_its_own(b: Bench) {
    const SESSIONS: u64 = 60;
    let (name, count) = (|n: u64| format!("s{n}"), |n: u64| n % 4);
    for n in 0..SESSIONS {
        let lane = b.lane(session(&name(n)), &owner("a")).await;
        let new = (1..=count(n)).map(|seq| {
            let session = in_session(&name(n), seq);
            submit(NewJob { id: job(n * 10 + seq), placed: Some(placed()), ..session })
        });
        b.does(of_lane(&lane, new)).await;
        b.does(said((1..count(n)).map(|seq| complete(job(n * 10 + seq), 1, &n.to_string())))).await;
    }
    // Each several times, behind different places, so that statements are shared in many ways.
    let asked: Vec<_> = (0..SESSIONS * 4).map(|ask| (ask % SESSIONS, ask / SESSIONS)).collect();
    let reads = asked
        .iter()
        .map(async |(n, after)| b.ledger.session_results(&session_id(&name(*n)), *after, 2).await.unwrap());
    for ((n, after), read) in asked.iter().zip(futures_util::future::join_all(reads).await) {
        let finished: Vec<_> = (1..count(*n)).filter(|seq| seq > after).take(2).collect();
        let places: Vec<_> = read.results.iter().map(|result| result.seq).collect();
        assert_eq!(places, finished, "session {n} behind {after}");
        assert!(read.results.iter().all(|result| result.result == Some(n.to_string())), "session {n}");
        assert_eq!(read.first_unfinished, Some(count(*n)).filter(|last| *last > 0), "session {n}");
    }
}

pub async fn results_end_before_they_are_too_large(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (1..=20).map(|n| submit(NewJob { placed: Some(placed()), ..in_session("s", n) }))))
        .await;
    for n in 1..=20 {
        b.does(said([complete(job(n), 1, &"1".repeat(1 << 20))])).await;
    }
    let page =
        async |after| b.ledger.session_results(&session_id("s"), after, 100).await.unwrap().results.len();
    assert_eq!((page(0).await, page(16).await), (16, 4));
    assert_eq!(b.ledger.finished_places(&session_id("s"), 0, 100).await.unwrap().len(), 20);
}

pub async fn a_session_counts_its_jobs_and_knows_its_last_node(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let counts = async || b.ledger.session_counts(&session_id("s")).await.unwrap();
    assert_eq!(counts().await, SessionCounts::default());
    b.does(of_lane(&lane, (1..=7).map(|n| submit(in_session("s", n))))).await;
    let created = SessionCounts { created: 7, last_seq: 7, ..SessionCounts::default() };
    assert_eq!(counts().await, created);
    let on = |n: u64| Change::Dispatch {
        job: job(n),
        attempt: Attempt::new(1),
        placed: domain::job::Assignment { node: node(&format!("n{n}")), ..placed() },
        behind: None,
    };
    b.does(of_lane(&lane, [on(2), on(3), on(4)])).await;
    b.does(said([Change::Run { job: job(3), attempt: Attempt::new(1), node: node("n3") }])).await;
    b.does(of_lane(&lane, [cancel(job(7)), cancel(job(1))])).await;
    let expected =
        SessionCounts { created: 2, dispatched: 2, running: 1, last_seq: 7, last_node: Some(node("n4")) };
    assert_eq!(counts().await, expected);
    let finished = async || b.ledger.session_finished(&session_id("s")).await.unwrap();
    assert_eq!(finished().await, 2);
    // Of those that ended, too; one that never had a node says nothing.
    b.does(of_lane(&lane, [cancel(job(4)), cancel(job(2)), cancel(job(5)), cancel(job(6))])).await;
    assert_eq!((counts().await.last_node, finished().await), (Some(node("n4")), 6));
}

pub async fn the_last_node_is_looked_for_at_so_many_places_and_no_more(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let last = async || {
        let counts = b.ledger.session_counts(&session_id("s")).await.unwrap();
        (counts.last_seq, counts.last_node)
    };
    let cancelled = async |n: u64| {
        b.does(of_lane(&lane, [submit(in_session("s", n))])).await;
        b.does(of_lane(&lane, [cancel(job(n))])).await;
    };
    b.does(of_lane(&lane, (1..LAST_NODE_PLACES).map(|n| submit(in_session("s", n))))).await;
    b.does(of_lane(&lane, [dispatch(job(1), 1)])).await;
    b.does(of_lane(&lane, (1..LAST_NODE_PLACES).map(|n| cancel(job(n))))).await;
    cancelled(LAST_NODE_PLACES).await;
    assert_eq!(last().await, (LAST_NODE_PLACES, Some(node("n"))), "the last place that is looked at");
    cancelled(LAST_NODE_PLACES + 1).await;
    assert_eq!(last().await, (LAST_NODE_PLACES + 1, None));
    // A job that has a node is found wherever its place is.
    let next = LAST_NODE_PLACES + 2;
    b.does(of_lane(&lane, [submit(in_session("s", next)), submit(in_session("s", next + 1))])).await;
    b.does(of_lane(&lane, [dispatch(job(next), 1)])).await;
    assert_eq!(last().await, (next + 1, Some(node("n"))));
}

pub async fn an_answer_under_a_key_names_the_place(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let scope = |name: &str| KeyScope {
        scope: "submit someone".to_owned(),
        key: IdempotencyKey::parse(name).unwrap(),
    };
    let key = |name| JobKey { scope: scope(name), body_hash: [9; 32] };
    let writes = vec![
        with_key(submit(in_session("s", 7)), &key("placed")),
        with_key(submit(NewJob { seq: None, ..in_session("s", 8) }), &key("unplaced")),
    ];
    b.does(JobBatch { lane: Some(lane.clone()), writes: writes.into() }).await;
    let kept = async |name| {
        let mut kept = b.ledger.kept_job_keys(&[scope(name)]).await.unwrap();
        let KeptJobKey { job, seq, .. } = kept.pop().unwrap().1;
        (job, seq)
    };
    assert_eq!((kept("placed").await, kept("unplaced").await), ((job(7), Some(7)), (job(8), None)));
    // As it was written before there were places.
    let old = format!(r#"{{"job":"{}","lane":"{}","created_at":1}}"#, job(1), lane.id);
    let old = format!("UPDATE idempotency_key SET answer = '{old}' WHERE key = 'placed'");
    b.by_hand(old).await;
    assert_eq!(kept("placed").await, (job(1), None));
}

pub async fn a_place_is_not_given_again_when_its_job_is_forgotten(b: Bench) {
    let spec = crate::sessions::spec();
    b.ledger.open_session(&session_id("s"), &spec, None, None).await.unwrap();
    let lane = b.lane(session("s"), &owner("a")).await;
    let seq = async || b.ledger.lane_seq(&lane.id).await.unwrap();
    // Of days that have no partition.
    let old = |n| job_made(n, 2);
    b.does(of_lane(&lane, (1..=5).map(|n| submit(at_place(n, old(n)))))).await;
    b.does(of_lane(&lane, (1..=5).map(|n| cancel(old(n))))).await;
    assert_eq!(seq().await, 5, "all are finished");
    eventually("they are forgotten, in steps", async || {
        b.ledger.purge_jobs(2, 2).await.unwrap();
        assert_eq!(seq().await, 5);
        b.ledger.finished_places(&session_id("s"), 0, 9).await.unwrap().is_empty()
    })
    .await;
    assert_eq!(b.ledger.session_counts(&session_id("s")).await.unwrap().last_seq, 5);
    b.does(of_lane(&lane, [submit(at_place(6, job(6)))])).await;
    assert_eq!(seq().await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_place_is_not_given_again_when_its_day_is_dropped() {
    let b = Bench::postgres().await;
    let mut hand = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
    let old = |n| job_made(n, 3);
    crate::job_lists::made(&mut hand, old(0)).await;
    let spec = crate::sessions::spec();
    for name in ["s", "t"] {
        b.ledger.open_session(&session_id(name), &spec, None, None).await.unwrap();
    }
    // Only who was there on that day has jobs of it.
    sqlx::raw_sql("UPDATE session SET created_at = created_at - interval '4 days' WHERE session = 's'")
        .execute(&mut hand)
        .await
        .unwrap();
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (1..=5).map(|n| submit(at_place(n, old(n)))))).await;
    b.does(of_lane(&lane, (1..=5).map(|n| cancel(old(n))))).await;
    eventually("the day is dropped", async || {
        // One that found the table busy says so.
        let purged = b.ledger.purge_jobs(2, 100).await;
        assert!(
            purged.as_ref().is_ok_and(|n| *n == 0) || purged.as_ref().is_err_and(ledger::Error::is_retryable)
        );
        b.ledger.job(old(5)).await.unwrap().is_none()
    })
    .await;
    assert_eq!(b.ledger.lane_seq(&lane.id).await.unwrap(), 5);
    assert_eq!(b.ledger.lane_seq(&session("t")).await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_is_dropped_while_a_session_without_a_job_of_it_is_locked() {
    let b = Bench::postgres().await;
    let mut hand = sqlx::PgConnection::connect(&b.options.url).await.unwrap();
    let old = job_made(0, 3);
    crate::job_lists::made(&mut hand, old).await;
    let spec = crate::sessions::spec();
    for name in ["s", "t"] {
        b.ledger.open_session(&session_id(name), &spec, None, None).await.unwrap();
    }
    // Both were there on that day.
    let earlier = "UPDATE session SET created_at = created_at - interval '4 days'";
    sqlx::raw_sql(earlier).execute(&mut hand).await.unwrap();
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit(at_place(1, old))])).await;
    b.does(of_lane(&lane, [cancel(old)])).await;
    sqlx::raw_sql("BEGIN; SELECT FROM session WHERE session = 't' FOR UPDATE")
        .execute(&mut hand)
        .await
        .unwrap();
    eventually("the day is dropped", async || {
        let purged = b.ledger.purge_jobs(2, 100).await;
        assert!(
            purged.as_ref().is_ok_and(|n| *n == 0) || purged.as_ref().is_err_and(ledger::Error::is_retryable)
        );
        b.ledger.job(old).await.unwrap().is_none()
    })
    .await;
    assert_eq!(b.ledger.lane_seq(&lane.id).await.unwrap(), 1);
    sqlx::raw_sql("ROLLBACK").execute(&mut hand).await.unwrap();
}

/// Jobs end in any order, some come back first, while new ones are submitted: a reader of the results behind the last place
/// that it has seen gets all of them in their order.
pub async fn a_reader_that_follows_sees_every_place_once(b: Bench) {
    const JOBS: u64 = 300;
    const WORKERS: u64 = 4;
    let seed: u64 = rand::rng().random();
    println!("seed {seed}");
    let handles = b.instances(2).await;
    let lane = b.lane(session("s"), &owner("a")).await;
    let submitted = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    {
        let (ledger, submitted, mut rng) =
            (handles[0].clone(), submitted.clone(), StdRng::seed_from_u64(seed));
        tasks.spawn(async move {
            let mut next = 1;
            while next <= JOBS {
                let to = JOBS.min(next + rng.random_range(0..20));
                let new =
                    (next..=to).map(|n| submit(NewJob { placed: Some(placed()), ..in_session("s", n) }));
                let verdict = ledger.commit_jobs(of_lane(&lane, new)).await.unwrap();
                assert!(matches!(verdict, ledger::JobsVerdict::Written { .. }), "{verdict:?} (seed {seed})");
                submitted.store(to, Atomic::Release);
                next = to + 1;
            }
        });
    }
    for worker in 0..WORKERS {
        let (ledger, submitted) = (handles[worker as usize % 2].clone(), submitted.clone());
        let mut rng = StdRng::seed_from_u64(seed + 1 + worker);
        tasks.spawn(async move {
            let mut mine: Vec<_> = (1..=JOBS).filter(|n| n % WORKERS == worker).collect();
            mine.shuffle(&mut rng);
            // Roughly in order, as far as jobs are there.
            mine.sort_by_key(|n| n / 40);
            for n in mine {
                while submitted.load(Atomic::Acquire) < n {
                    tokio::task::yield_now().await;
                }
                let changes = if rng.random() { vec![run(job(n), 1)] } else { vec![] };
                for change in changes.into_iter().chain([complete(job(n), 1, &n.to_string())]) {
                    let verdict = ledger.commit_jobs(said([change])).await.unwrap();
                    let ledger::JobsVerdict::Written { jobs, .. } = verdict else { panic!("{verdict:?}") };
                    assert_eq!(jobs, [JobVerdict::Written], "job {n} (seed {seed})");
                }
            }
        });
    }
    let reader = handles[handles.len() - 1].clone();
    let mut rng = StdRng::seed_from_u64(seed + 100);
    let (mut last, mut reads) = (0, 0);
    while last < JOBS {
        let page = reader.session_results(&session_id("s"), last, rng.random_range(1..40)).await.unwrap();
        let below = page.first_unfinished.unwrap_or(u64::MAX);
        for result in &page.results {
            assert!(result.seq < below, "{} is behind {below} (seed {seed})", result.seq);
            assert_eq!(result.seq, last + 1, "behind {last}, before {below} (seed {seed})");
            assert_eq!(result.result, Some(result.seq.to_string()));
            last = result.seq;
        }
        reads += 1;
        tokio::task::yield_now().await;
    }
    tasks.join_all().await;
    println!("{reads} reads");
    assert_eq!(b.ledger.session_results(&session_id("s"), last, 9).await.unwrap(), SessionResults::default());
    for handle in handles.iter().skip(1) {
        handle.close().await;
    }
    drop((handles, reader));
    assert_eq!(b.deadlocks_at_last().await, 0);
}
