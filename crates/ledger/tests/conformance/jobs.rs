//! Jobs: which change is written in which state, what a job looks like afterwards, and that it has one result (I6).

use domain::job::{
    Assignment, Attempt, Backoff, Change, CurrentAttempt, Due, Ended, Event, Metadata, NewJob, OnRecovery,
    Outcome, Priority, Requirements, Retry, Revoked, Route, Spec, State, Step, decide,
};
use domain::limits::{PAST_ATTEMPTS_MAX, REASON_BYTES_MAX};
use domain::{
    ClientRef, IdempotencyKey, JobId, JobKind, Label, Language, PoolName, SessionId, TenantId, TraceParent,
};
use ledger::{JobBatch, JobKey, JobRecord, JobVerdict, JobWrite, JobsVerdict, KeyScope};
use tokio::task::JoinSet;

use crate::bench::{Bench, owner};
use crate::shop::{
    ATTEMPTS, cancel, complete, dispatch, forms, job, node, of_lane, placed, plain, release, run, said,
    session, spec, submit, submit_placed, with_key, write,
};

/// Every event, about attempts 1 to 3.
fn events() -> Vec<Event> {
    let mut events = vec![Event::Place, Event::Cancelled];
    for attempt in (1..=3).map(Attempt::new) {
        events.extend([Event::Acknowledged(attempt), Event::Succeeded(attempt)]);
        events.extend([true, false].map(|retryable| Event::Failed { attempt, retryable }));
        events.extend(Revoked::ALL.map(|why| Event::Revoked { attempt, why }));
    }
    events
}

/// The states with one attempt that is over and counts, and what leads to each from the one before.
fn newest(state: State) -> Option<CurrentAttempt> {
    let attempt = Attempt::new(if state == State::Created { 1 } else { 2 });
    (state != State::Finished).then_some(CurrentAttempt { state, attempt, charged_attempts: 1 })
}

fn leads_to(state: State, id: JobId) -> Change {
    match state {
        State::Created => Change::Revoke {
            job: id,
            attempt: Attempt::new(1),
            why: Revoked::NodeLost,
            reason: String::new(),
            due_in_ms: 0,
        },
        State::Dispatched => dispatch(id, 2),
        State::Running => run(id, 2),
        State::Finished => complete(id, 2, "1"),
    }
}

/// What a job must look like after a step, if it was written in this form.
fn must_be(before: CurrentAttempt, step: Step, form: &Change) -> (State, u32, u32, Option<Outcome>) {
    let (attempt, charged_attempts) = (before.attempt.get(), before.charged_attempts);
    match (step, form) {
        (Step::Dispatch(attempt), _) => (State::Dispatched, attempt.get(), charged_attempts, None),
        (Step::Run, _) => (State::Running, attempt, charged_attempts, None),
        (_, Change::Complete { .. }) => {
            (State::Finished, attempt, charged_attempts, Some(Outcome::Succeeded))
        }
        (_, Change::Revoke { why, .. }) => {
            (State::Created, attempt, charged_attempts + u32::from(why.counts()), None)
        }
        (_, Change::Fail { due_in_ms: Some(_), .. }) => (State::Created, attempt, charged_attempts + 1, None),
        (_, Change::Fail { .. }) => (State::Finished, attempt, charged_attempts + 1, Some(Outcome::Failed)),
        (_, Change::End { outcome, attempt: ended, .. }) => {
            let counts = ended.is_some_and(|(_, why)| why.counts());
            (State::Finished, attempt, charged_attempts + u32::from(counts), Some(*outcome))
        }
        odd => panic!("{odd:?}"),
    }
}

fn is(record: &JobRecord) -> (State, u32, u32, Option<Outcome>) {
    let outcome = record.finished.as_ref().map(|finished| finished.outcome);
    (record.state, record.attempt.get(), record.charged_attempts, outcome)
}

pub async fn each_change_is_written_where_the_domain_allows_it_and_nowhere_else(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let mut cases = vec![];
    for state in State::ALL.iter().copied() {
        for event in events() {
            let next = newest(state).map_or(Attempt::new(3), |newest| newest.attempt.next());
            for form in 0..forms(job(0), event, next).len() {
                let id = job(cases.len() as u64);
                cases.push((id, state, event, forms(id, event, next)[form].clone()));
            }
        }
    }
    b.does(of_lane(&lane, cases.iter().map(|case| submit_placed(case.0)))).await;
    for step in State::ALL.iter().copied() {
        let reach = cases.iter().filter(|case| {
            State::ALL.iter().position(|s| *s == case.1) >= State::ALL.iter().position(|s| *s == step)
        });
        b.does(of_lane(&lane, reach.map(|case| leads_to(step, case.0)))).await;
    }
    let verdicts = b.verdicts(of_lane(&lane, cases.iter().map(|case| case.3.clone()))).await;
    for ((id, state, event, form), verdict) in cases.iter().zip(verdicts) {
        let allowed = decide(newest(*state), ATTEMPTS, *event);
        let expected = if allowed.is_ok() { JobVerdict::Written } else { JobVerdict::Stale };
        assert_eq!(verdict, expected, "{form:?} in {state:?}, where the domain says {allowed:?}");
        let record = b.found(*id).await;
        match (allowed, newest(*state)) {
            (Ok(step), Some(before)) => {
                assert_eq!(is(&record), must_be(before, step, form), "{form:?} in {state:?}")
            }
            (_, Some(n)) => {
                assert_eq!(is(&record), (n.state, n.attempt.get(), n.charged_attempts, None), "{form:?}")
            }
            (_, None) => {
                assert_eq!(is(&record), (State::Finished, 2, 1, Some(Outcome::Succeeded)), "{form:?}")
            }
        }
    }
}

pub async fn only_the_node_that_has_the_attempt_may_speak_of_it(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(job(0))])).await;
    let (job, attempt, other, error) = (job(0), Attempt::new(1), node("other"), String::new());
    let said_by_another = [
        Change::Run { job, attempt, node: other.clone() },
        Change::Complete { job, attempt, node: other.clone(), output: "1".to_owned() },
        Change::Fail { job, attempt, node: other, ended: Ended::Failed, error, due_in_ms: None, dead: false },
    ];
    for change in said_by_another {
        assert_eq!(b.verdicts(said([change.clone()])).await, [JobVerdict::Stale]);
        assert_eq!(b.verdicts(of_lane(&lane, [change])).await, [JobVerdict::Stale]);
    }
    for attempt in [0, 2] {
        assert_eq!(b.verdicts(of_lane(&lane, [complete(job, attempt, "1")])).await, [JobVerdict::Stale]);
    }
    b.does(said([complete(job, 1, "1")])).await;
}

pub async fn a_lane_writes_new_jobs_attempts_and_good_ends_in_one_batch(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let (by_holder, by_lane, waits, running) = (job(0), job(1), job(2), job(3));
    let made =
        [submit_placed(by_holder), submit_placed(by_lane), submit(plain(waits)), submit_placed(running)];
    b.does(of_lane(&lane, made)).await;
    b.does(said([run(running, 1), complete(by_holder, 1, "[1]")])).await;
    let round = [
        complete(by_lane, 1, "[1]"),
        complete(running, 1, "2"),
        complete(by_holder, 1, "3"),
        complete(job(9), 1, "4"),
        dispatch(waits, 1),
        submit(plain(job(4))),
        submit_placed(job(5)),
    ];
    let (written, stale) = (JobVerdict::Written, JobVerdict::Stale);
    let verdicts = b.verdicts(of_lane(&lane, round)).await;
    assert_eq!(verdicts, [written, written, stale, stale, written, written, written]);
    let mut ends = Vec::new();
    for id in [by_holder, by_lane] {
        let JobRecord { id: _, created_at, dispatched_at, finished, mut attempts, .. } = b.found(id).await;
        let finished = finished.unwrap();
        assert_eq!((dispatched_at, finished.released_at), (Some(created_at), Some(finished.finished_at)));
        assert_eq!(attempts.len(), 1);
        let attempt = attempts.remove(0);
        ends.push((
            finished.outcome,
            finished.exhausted,
            finished.result,
            finished.error,
            attempt.node,
            attempt.ended,
        ));
    }
    assert_eq!(ends[0], ends[1], "whoever wrote it");
    let running = b.found(running).await;
    assert!(running.running_at.is_some() && running.finished.is_some());
    assert_eq!(b.verdicts(said([complete(by_lane, 1, "again")])).await, [stale]);
    let states = [b.found(waits).await.state, b.found(job(4)).await.state, b.found(job(5)).await.state];
    assert_eq!(states, [State::Dispatched, State::Created, State::Dispatched]);
}

/// Metadata that needs care.
fn metadata() -> Metadata {
    let entries = [("k", "\0 é\u{10ffff} '\"{}\n"), ("ü '", "")];
    Metadata::new(entries.map(|(key, value)| (key.to_owned(), value.to_owned())).into()).unwrap()
}

fn kind() -> JobKind {
    JobKind::parse("render/'\"{}").unwrap()
}

/// All that a job can be told.
fn full() -> NewJob {
    let label = |text| Label::parse(text).unwrap();
    NewJob {
        id: job(7),
        spec: Spec {
            payload: "{\"odd\":\"\\u0000 é\u{10ffff} '\\\"\\n\"}".into(),
            kind: Some(kind()),
            metadata: metadata(),
            stage: Some("{\"context\":{\"a\":\"\\u0000 é\"}}".into()),
            session: Some(SessionId::parse("s").unwrap()),
            tenant: Some(TenantId::parse("t").unwrap()),
            needs: Requirements {
                pool: Some(PoolName::parse("p").unwrap()),
                route: Some(Route {
                    source: Language::parse("zh:x").unwrap(),
                    target: Language::parse("en-GB").unwrap(),
                }),
                requires: vec![label("gpu"), label("asr:zh")],
            },
            priority: Priority::new(-7).unwrap(),
            timeout_ms: 12_345,
            max_attempts: 9,
            backoff: Backoff { initial_ms: 1, factor_percent: 150, max_ms: 99 },
            on_recovery: OnRecovery::Hold,
            traceparent: TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        },
        seq: Some(3),
        client_ref: Some(ClientRef::parse("c1/+'\"{}").unwrap()),
        due: Due::InMs(60_000),
        retry: Some(Retry { of: job(6), once: false }),
        placed: None,
    }
}

pub async fn a_job_keeps_all_that_it_was_told_to_its_end(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let new = full();
    let submitted = b.ledger.commit_jobs(of_lane(&lane, [submit(new.clone())])).await.unwrap();
    let JobsVerdict::Written { at, .. } = submitted else { panic!("{submitted:?}") };
    let keeps = |record: &JobRecord| {
        let whose = (record.id, record.lane.clone(), record.seq, record.retry_of, record.created_at);
        assert_eq!(whose, (new.id, lane.id.clone(), Some(3), Some(job(6)), at));
        assert_eq!((&record.spec, &record.client_ref), (&new.spec, &new.client_ref));
    };
    let waiting = b.found(new.id).await;
    keeps(&waiting);
    assert_eq!((waiting.state, waiting.due_at), (State::Created, Some(at.plus_ms(60_000))));
    b.does(of_lane(&lane, [dispatch(new.id, 1)])).await;
    b.does(said([run(new.id, 1)])).await;
    let running = b.found(new.id).await;
    keeps(&running);
    assert_eq!((running.placed.clone(), running.attempt.get()), (Some(placed()), 1));
    assert!(running.dispatched_at >= Some(at) && running.running_at >= running.dispatched_at);
    b.does(said([complete(new.id, 1, "\"\\u0000\u{10ffff}\"")])).await;
    let done = b.found(new.id).await;
    keeps(&done);
    assert_eq!(
        (done.placed, done.dispatched_at, done.running_at),
        (running.placed, running.dispatched_at, running.running_at)
    );
    let finished = done.finished.unwrap();
    assert_eq!((finished.outcome, finished.exhausted, finished.error), (Outcome::Succeeded, false, None));
    assert_eq!(finished.result.as_deref(), Some("\"\\u0000\u{10ffff}\""));
    assert!(Some(finished.finished_at) >= done.running_at);
    assert_eq!(finished.released_at, Some(finished.finished_at), "its node gave the slot back with it");
    let [only] = &done.attempts[..] else { panic!("{:?}", done.attempts) };
    assert_eq!((only.attempt.get(), only.node.as_str(), only.ended), (1, "n", Ended::Succeeded));
    assert_eq!(b.ledger.job(job(8)).await.unwrap(), None);
}

pub async fn kind_and_metadata_are_kept_whichever_way_a_job_takes(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let with = |n: u64| NewJob {
        spec: Spec { kind: Some(kind()), metadata: metadata(), ..spec("{}") },
        ..plain(job(n))
    };
    // Due at once, delayed, with an attempt at once, and one without metadata.
    b.does(of_lane(&lane, [submit(with(1))])).await;
    b.does(of_lane(&lane, [submit(NewJob { due: Due::InMs(60_000), ..with(2) })])).await;
    b.does(of_lane(&lane, [submit(NewJob { placed: Some(placed()), ..with(3) }), submit(plain(job(4)))]))
        .await;
    b.does(of_lane(&lane, [dispatch(job(1), 1)])).await;
    let kept = async |n: u64, state: State| {
        let record = b.found(job(n)).await;
        assert_eq!((record.state, record.spec.metadata), (state, metadata()), "job {n}");
        assert_eq!(record.spec.kind, Some(kind()), "job {n}");
    };
    kept(1, State::Dispatched).await;
    kept(2, State::Created).await;
    kept(3, State::Dispatched).await;
    // Ended by the owner of its lane, by a caller, and by the holder of its node's socket.
    b.does(of_lane(&lane, [complete(job(1), 1, "1")])).await;
    b.does(of_lane(&lane, [cancel(job(2))])).await;
    b.does(said([complete(job(3), 1, "1")])).await;
    for n in 1..=3 {
        kept(n, State::Finished).await;
    }
    let (spec, retry) = (b.found(job(1)).await.spec, Some(Retry { of: job(1), once: true }));
    b.does(of_lane(&lane, [submit(NewJob { spec, retry, ..plain(job(5)) })])).await;
    kept(5, State::Created).await;
    let without = b.found(job(4)).await.spec;
    assert_eq!((without.metadata, without.kind), (Metadata::default(), None));
}

pub async fn a_result_is_written_once(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(job(0))])).await;
    b.does(said([complete(job(0), 1, "1")])).await;
    assert_eq!(b.verdicts(said([complete(job(0), 1, "2")])).await, [JobVerdict::Stale]);
    assert_eq!(b.found(job(0)).await.finished.unwrap().result.as_deref(), Some("1"));
}

pub async fn of_racing_results_one_is_written(b: Bench) {
    const ROUNDS: u64 = 20;
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (0..ROUNDS).map(|n| submit_placed(job(n))))).await;
    let handles = b.instances(2).await;
    for n in 0..ROUNDS {
        let mut racers = JoinSet::new();
        for racer in 0..6 {
            let ledger = handles[racer % 2].clone();
            // The job beside it keeps the trains of the racers apart in what they lock first.
            let beside = job((n + racer as u64) % ROUNDS);
            let mut changes = vec![complete(job(n), 1, &racer.to_string())];
            changes.extend((beside != job(n)).then(|| run(beside, 1)));
            let batch = if racer == 0 { of_lane(&lane, [cancel(job(n))]) } else { said(changes) };
            racers.spawn(async move { (racer, ledger.commit_jobs(batch).await.unwrap()) });
        }
        let mut winner = None;
        for (racer, verdict) in racers.join_all().await {
            let JobsVerdict::Written { jobs, .. } = verdict else { panic!("{verdict:?}") };
            match jobs[0] {
                JobVerdict::Written => assert_eq!(winner.replace(racer), None, "job {n} has two results"),
                other => assert_eq!(other, JobVerdict::Stale),
            }
        }
        let finished = b.found(job(n)).await.finished.unwrap();
        let result = winner.filter(|racer| *racer > 0).map(|racer| racer.to_string());
        assert_eq!(finished.result, result, "the result is the winner's");
        assert!(winner.is_some());
    }
    for handle in handles.iter().skip(1) {
        handle.close().await;
    }
    drop(handles);
    assert_eq!(b.deadlocks_at_last().await, 0);
}

pub async fn the_result_of_a_revoked_attempt_is_stale(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(job(0))])).await;
    b.does(of_lane(&lane, [leads_to(State::Created, job(0))])).await;
    assert_eq!(b.verdicts(said([complete(job(0), 1, "1")])).await, [JobVerdict::Stale]);
    b.does(of_lane(&lane, [dispatch(job(0), 2)])).await;
    assert_eq!(b.verdicts(said([complete(job(0), 1, "1")])).await, [JobVerdict::Stale]);
    b.does(said([complete(job(0), 2, "2")])).await;
    let record = b.found(job(0)).await;
    let ended: Vec<_> = record.attempts.iter().map(|past| (past.attempt.get(), past.ended)).collect();
    assert_eq!(ended, [(1, Ended::Revoked(Revoked::NodeLost)), (2, Ended::Succeeded)]);
}

pub async fn a_write_that_is_stale_sinks_nobody_else(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (0..4).map(|n| submit_placed(job(n))))).await;
    let mixed = [complete(job(0), 1, "1"), complete(job(1), 2, "1"), dispatch(job(2), 2), cancel(job(3))];
    let verdicts = b.verdicts(of_lane(&lane, mixed.into_iter().chain([run(job(9), 1)]))).await;
    let (written, stale) = (JobVerdict::Written, JobVerdict::Stale);
    assert_eq!(verdicts, [written, stale, stale, written, stale]);
    assert_eq!(b.found(job(1)).await.state, State::Dispatched);
}

pub async fn past_attempts_and_reasons_are_bounded(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(job(0))])).await;
    let attempts = PAST_ATTEMPTS_MAX as u32 + 3;
    // Cut in the middle of a character, and with one that no table takes.
    let reason = format!("\0\n{}", "é".repeat(REASON_BYTES_MAX));
    for attempt in (1..=attempts).map(Attempt::new) {
        let (job, why) = (job(0), Revoked::Undeliverable);
        let revoke = Change::Revoke { job, attempt, why, reason: reason.clone(), due_in_ms: 0 };
        b.does(of_lane(&lane, [revoke])).await;
        b.does(of_lane(&lane, [dispatch(job, attempt.next().get())])).await;
    }
    let last = Change::Fail {
        job: job(0),
        attempt: Attempt::new(attempts + 1),
        node: node("n"),
        ended: Ended::Failed,
        error: reason.clone(),
        due_in_ms: None,
        dead: true,
    };
    b.does(said([last])).await;
    let record = b.found(job(0)).await;
    let numbers: Vec<_> = record.attempts.iter().map(|past| past.attempt.get()).collect();
    assert_eq!(numbers, (5..=attempts + 1).collect::<Vec<_>>(), "the newest, in order");
    assert_eq!((numbers.len(), record.charged_attempts), (PAST_ATTEMPTS_MAX, 1));
    let finished = record.finished.unwrap();
    assert!(finished.exhausted);
    for kept in record.attempts.iter().map(|past| &past.reason).chain(&finished.error) {
        assert!(kept.len() <= REASON_BYTES_MAX && kept.starts_with(" \né"), "{} bytes", kept.len());
    }
}

pub async fn an_id_that_is_used_already_is_refused_and_sinks_nobody_else(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let other = b.lane(session("other"), &owner("a")).await;
    b.does(of_lane(&lane, [submit_placed(job(0))])).await;
    let again = b.ledger.commit_jobs(of_lane(&lane, [submit_placed(job(0)), submit_placed(job(1))]));
    let (again, new) = tokio::join!(again, b.ledger.commit_jobs(of_lane(&other, [submit_placed(job(2))])));
    assert!(matches!(again, Err(ledger::Error::Refused { .. })), "{again:?}");
    assert!(matches!(new, Ok(JobsVerdict::Written { .. })), "{new:?}");
    let there = b.found(job(0)).await;
    assert_eq!((there.state, b.ledger.job(job(1)).await.unwrap()), (State::Dispatched, None));
}

fn key(name: &str) -> JobKey {
    let scope = KeyScope { scope: "submit someone".to_owned(), key: IdempotencyKey::parse(name).unwrap() };
    JobKey { scope, body_hash: [9; 32] }
}

pub async fn a_key_is_kept_with_its_job_and_taken_afterwards(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let batch = |writes: Vec<JobWrite>| JobBatch { lane: Some(lane.clone()), writes: writes.into() };
    let submitted = b.ledger.commit_jobs(batch(vec![with_key(submit_placed(job(0)), &key("k"))])).await;
    let Ok(JobsVerdict::Written { at, .. }) = submitted else { panic!("{submitted:?}") };
    // Another job under the same key, beside others with a new one and without one.
    let more = vec![
        with_key(submit_placed(job(1)), &key("k")),
        with_key(submit_placed(job(2)), &key("new")),
        write(submit_placed(job(3))),
    ];
    let (taken, written) = (JobVerdict::KeyTaken, JobVerdict::Written);
    assert_eq!(b.verdicts(batch(more)).await, [taken, written, written]);
    assert_eq!(b.ledger.job(job(1)).await.unwrap(), None);
    let kept = b.ledger.kept_job_keys(&[key("k").scope, key("unknown").scope]).await.unwrap();
    let [(scope, kept)] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!((scope, kept.body_hash, kept.job), (&key("k").scope, [9; 32], job(0)));
    assert_eq!((&kept.lane, kept.created_at), (&lane.id, at));
    assert_eq!(b.found(job(0)).await.created_at, at);
}

pub async fn a_selection_is_kept_under_its_key_once(b: Bench) {
    let (first, many) = (key("k"), (0..1_000).rev().map(job).collect::<Vec<_>>());
    assert_eq!(b.ledger.kept_selection(&first.scope).await.unwrap(), None);
    let kept = b.ledger.keep_selection(&first, &many).await.unwrap();
    assert_eq!((kept.body_hash, &kept.jobs), (first.body_hash, &many));
    // Another request under the same key sees what was kept, by its hash that it is another one.
    let other = JobKey { body_hash: [8; 32], ..key("k") };
    assert_eq!(b.ledger.keep_selection(&other, &[job(1)]).await.unwrap(), kept);
    assert_eq!(b.ledger.kept_selection(&first.scope).await.unwrap(), Some(kept));
    let none = b.ledger.keep_selection(&key("none"), &[]).await.unwrap();
    assert!(none.jobs.is_empty());
    let long = KeyScope { scope: "s".repeat(10_000), ..key("k").scope };
    b.ledger.keep_selection(&JobKey { scope: long, ..key("k") }, &[]).await.unwrap_err();
}

pub async fn of_many_submits_under_one_key_one_is_written(b: Bench) {
    let mut submits = JoinSet::new();
    for n in 0..12 {
        let lane = b.lane(session(&format!("s{n}")), &owner("a")).await;
        let writes = vec![with_key(submit(plain(job(n))), &key("k"))];
        let ledger = b.ledger.clone();
        submits.spawn(async move {
            ledger.commit_jobs(JobBatch { lane: Some(lane), writes: writes.into() }).await.unwrap()
        });
    }
    let mut written = 0;
    for verdict in submits.join_all().await {
        let JobsVerdict::Written { jobs, .. } = verdict else { panic!("{verdict:?}") };
        match jobs[..] {
            [JobVerdict::Written] => written += 1,
            ref other => assert_eq!(other, [JobVerdict::KeyTaken]),
        }
    }
    assert_eq!(written, 1);
}

pub async fn a_slot_is_noted_free_once_and_only_of_a_finished_job(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let release = |n| said([release(job(n), 1)]);
    b.does(of_lane(&lane, (0..2).map(|n| submit_placed(job(n))))).await;
    b.does(of_lane(&lane, [submit(plain(job(2)))])).await;
    assert_eq!(b.verdicts(release(0)).await, [JobVerdict::Stale], "it has not ended");
    b.does(of_lane(&lane, [cancel(job(0)), cancel(job(2))])).await;
    assert_eq!(b.found(job(0)).await.finished.unwrap().released_at, None, "its node still runs it");
    b.does(release(0)).await;
    let noted = b.found(job(0)).await.finished.unwrap().released_at;
    assert!(noted.is_some());
    assert_eq!(b.verdicts(release(0)).await, [JobVerdict::Stale]);
    assert_eq!(b.found(job(0)).await.finished.unwrap().released_at, noted);
    assert_eq!(b.verdicts(release(2)).await, [JobVerdict::Stale], "it never had one");
    let record = b.found(job(0)).await;
    assert_eq!(record.attempts[0].ended, Ended::Cancelled);
    assert!(b.found(job(2)).await.attempts.is_empty());
}

pub async fn a_slot_of_an_earlier_attempt_is_not_noted_as_the_last_ones(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    b.does(of_lane(&lane, (0..2).map(|n| submit_placed(job(n))))).await;
    let timed_out = |n| {
        let (attempt, why, reason) = (Attempt::new(1), Revoked::TimedOut, String::new());
        Change::Revoke { job: job(n), attempt, why, reason, due_in_ms: 0 }
    };
    b.does(of_lane(&lane, (0..2).map(timed_out))).await;
    b.does(of_lane(&lane, (0..2).map(|n| dispatch(job(n), 2)))).await;
    b.does(of_lane(&lane, (0..2).map(|n| cancel(job(n))))).await;
    let noted = async |n| b.found(job(n)).await.finished.unwrap().released_at;
    // The node of the first attempt goes on longer than it may, and so does that of the second.
    let freed = said([release(job(0), 1), release(job(1), 2)]);
    assert_eq!(b.verdicts(freed).await, [JobVerdict::Stale, JobVerdict::Written]);
    assert!(noted(0).await.is_none() && noted(1).await.is_some());
    b.does(said([release(job(0), 2)])).await;
    assert!(noted(0).await.is_some());
}

pub async fn what_is_wrong_with_a_batch_of_jobs_is_refused_before_it_boards(b: Bench) {
    let lane = b.lane(session("s"), &owner("a")).await;
    let with = |change: fn(&mut NewJob)| {
        let mut new = plain(job(0));
        change(&mut new);
        of_lane(&lane, [submit(new)])
    };
    b.is_refused("a NUL", with(|new| new.spec.payload = "\0".into())).await;
    b.is_refused("a payload too long", with(|new| new.spec.payload = "x".repeat((1 << 20) + 1).into())).await;
    b.is_refused("a delay too long", with(|new| new.due = Due::InMs(u64::MAX))).await;
    b.is_refused("no time", with(|new| new.spec.timeout_ms = 0)).await;
    b.is_refused("no attempts", with(|new| new.spec.max_attempts = 0)).await;
    b.is_refused("a place that is none", with(|new| new.seq = Some(u64::MAX))).await;
    b.is_refused(
        "placed before it is due",
        with(|new| {
            (new.due, new.placed) = (Due::InMs(1), Some(placed()));
        }),
    )
    .await;
    b.is_refused("a backoff out of range", with(|new| new.spec.backoff.max_ms = u64::MAX)).await;
    let many = (0..5_000).map(|n| submit(plain(job(n))));
    b.is_refused("5,000 writes", of_lane(&lane, many)).await;
    let long = (0..30).map(|n| submit(NewJob { spec: spec(&"x".repeat(1 << 20)), ..plain(job(n)) }));
    b.is_refused("30 MiB", of_lane(&lane, long)).await;
    b.is_refused("a job twice", of_lane(&lane, [submit(plain(job(0))), cancel(job(0))])).await;
    b.is_refused("a holder's submit", said([submit(plain(job(0)))])).await;
    b.is_refused("a holder's cancel", said([cancel(job(0))])).await;
    b.is_refused("a result too long", said([complete(job(0), 1, &"x".repeat((1 << 20) + 1))])).await;
    b.is_refused("attempt 0", of_lane(&lane, [dispatch(job(0), 0)])).await;
    let writes = vec![with_key(cancel(job(0)), &key("k"))];
    b.is_refused("a key with a cancel", JobBatch { lane: Some(lane.clone()), writes: writes.into() }).await;
    let writes: Vec<_> = (0..2).map(|n| with_key(submit(plain(job(n))), &key("k"))).collect();
    b.is_refused("a key twice", JobBatch { lane: Some(lane.clone()), writes: writes.into() }).await;
    let fail = Change::Fail {
        job: job(0),
        attempt: Attempt::new(1),
        node: node("n"),
        ended: Ended::Failed,
        error: String::new(),
        due_in_ms: Some(1),
        dead: true,
    };
    b.is_refused("dead and to be tried again", said([fail])).await;
    assert_eq!(b.ledger.job(job(0)).await.unwrap(), None);
    b.does(of_lane(&lane, [])).await;
    b.does(with(|new| new.spec.payload = "\"\\u0000\"".into())).await;
    let other = Assignment { node: node("n"), holder: owner("h") };
    b.does(of_lane(
        &lane,
        [Change::Dispatch { job: job(0), attempt: Attempt::new(1), placed: other, behind: None }],
    ))
    .await;
}
