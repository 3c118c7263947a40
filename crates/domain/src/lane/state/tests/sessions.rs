//! What a session gives to its jobs, and what its owner knows after it has read it.

use super::*;
use crate::job::{Requirements, RevokedAttempt};
use crate::lane::limits::SESSION_JOBS_MAX;
use crate::limits::JOB_LABELS_MAX;
use crate::session::Spec;
use crate::{ClientRef, Label, TenantId};

/// A session with so many unfinished jobs, whose last place is 4.
pub(super) fn snapshot(unfinished: u64, ordering: Ordering) -> SessionSnapshot {
    let spec = Spec { tenant: None, needs: Requirements::default(), ordering, idle_ms: 60_000 };
    SessionSnapshot {
        spec,
        is_closed: false,
        idle_for_ms: 0,
        last_seq: 4,
        unfinished,
        affinity: None,
        recent_refs: Vec::new(),
    }
}

/// The new jobs that are to be committed.
pub(super) fn new_jobs(effects: &Effects) -> Vec<crate::job::NewJob> {
    let batches = effects.iter().filter_map(|effect| match effect {
        Effect::Commit(batch) => Some(batch),
        _ => None,
    });
    let changes = batches.flat_map(|batch| batch.writes.iter().map(|write| write.change.clone()));
    changes.filter_map(|change| if let Change::Submit(new) = change { Some(*new) } else { None }).collect()
}

#[test]
fn a_job_without_a_tenant_of_its_own_is_its_sessions_tenants() {
    let now = Instant::now();
    let tenant = |name: &str| TenantId::parse(name).ok();
    for (of_session, of_job, expected) in
        [("", "", None), ("a", "", tenant("a")), ("", "b", tenant("b")), ("a", "b", tenant("b"))]
    {
        let mut session = snapshot(0, Ordering::Free);
        session.spec.tenant = tenant(of_session);
        let (mut state, _) = opened(session, now);
        let mut pending = submission(1, Due::Now, None, now);
        pending.submission.spec.tenant = tenant(of_job);
        give(&mut state, Command::Submit(vec![pending]), now);
        let effects = state.slots_found(SlotsFound::default(), now);
        assert_eq!(new_jobs(&effects)[0].spec.tenant, expected, "{of_session:?} {of_job:?}");
        // What waits for a slot is the tenant's too.
        let effects = written(&mut state, batch(&effects), now);
        let waits = effects.iter().find_map(|effect| match effect {
            Effect::Enqueue(enqueue) => Some(enqueue.job.spec.tenant.clone()),
            _ => None,
        });
        assert_eq!(waits, Some(expected));
    }
}

#[test]
fn a_job_that_requires_too_many_labels_with_its_session_is_refused_and_takes_no_place() {
    let now = Instant::now();
    let label = |number: usize| Label::parse(&format!("l{number}")).unwrap();
    let mut session = snapshot(0, Ordering::Free);
    session.spec.needs.requires = (1..JOB_LABELS_MAX).map(label).collect();
    let (mut state, _) = opened(session, now);
    let asked = |number, first: usize, key| {
        let mut pending = submission(number, Due::InMs(60_000), key, now);
        pending.submission.spec.needs.requires = (first..first + 2).map(label).collect();
        pending
    };
    // The first has one label of the session's, and one more.
    let jobs = vec![
        asked(1, JOB_LABELS_MAX - 1, None),
        asked(2, JOB_LABELS_MAX, None),
        asked(3, JOB_LABELS_MAX, Some("k")),
        asked(4, 1, None),
    ];
    let effects = give(&mut state, Command::Submit(jobs), now);
    assert_eq!(words(&effects), "refused(TooManyLabels) by_key commit(submit,submit)");
    assert_eq!(places(&effects), [5, 6]);
    assert_eq!(state.session().map(SessionState::unfinished), Some(2));
    let labels: Vec<_> = new_jobs(&effects).iter().map(|new| new.spec.needs.requires.len()).collect();
    assert_eq!(labels, [JOB_LABELS_MAX, JOB_LABELS_MAX - 1]);
}

#[test]
fn a_job_beyond_the_most_that_a_session_may_have_unfinished_is_refused_and_takes_no_place() {
    let now = Instant::now();
    let submit = |numbers: &[u64]| {
        let delayed = |number: &u64| submission(*number, Due::InMs(60_000), None, now);
        Command::Submit(numbers.iter().map(delayed).collect())
    };
    let (mut state, _) = session_with(SESSION_JOBS_MAX, Ordering::Free, now);
    let effects = give(&mut state, submit(&[1]), now);
    assert_eq!(words(&effects), "refused(SessionFull)");
    assert_eq!(state.session().map(SessionState::unfinished), Some(SESSION_JOBS_MAX));
    // Of two the first has the last place that is left.
    let (mut state, _) = session_with(SESSION_JOBS_MAX - 1, Ordering::Free, now);
    let effects = give(&mut state, submit(&[1, 2]), now);
    assert_eq!(words(&effects), "refused(SessionFull) commit(submit)");
    assert_eq!((new_jobs(&effects)[0].id, places(&effects)), (job(1), vec![5]));
    assert_eq!(state.session().map(SessionState::unfinished), Some(SESSION_JOBS_MAX));
    // Its end makes room for another one, which comes next.
    written(&mut state, batch(&effects), now);
    let effects = give(&mut state, command("cancel", now), now);
    written(&mut state, batch(&effects), now);
    let effects = give(&mut state, submit(&[3, 4]), now);
    assert_eq!(words(&effects), "refused(SessionFull) commit(submit)");
    assert_eq!((new_jobs(&effects)[0].id, places(&effects)), (job(3), vec![6]));
}

/// A strict session whose owner has two jobs, took the first one's attempt back, and does not know whether that is written.
fn revoked_unheard(now: Instant) -> LaneState<Numbered> {
    let mut state = first_of_two_dispatched(now);
    let effects = give(&mut state, command("unsent", now), now);
    assert_eq!(words(&effects), "commit(revoke)");
    let effects = state.commit_failed(batch(&effects));
    assert_eq!(words(&effects), "dequeue_all anew");
    state
}

/// It is written: the session is read again, its first job with this attempt, which is due in a second.
fn read_again(
    state: &mut LaneState<Numbered>,
    attempt: Attempt,
    revoked: Option<RevokedAttempt>,
    now: Instant,
) {
    let session = Some(snapshot(2, Ordering::Strict));
    let effects = state.reloaded(Token::new(2), Snapshot { session, revoked, ..Snapshot::default() }, now);
    assert_eq!(words(&effects), "bind read");
    let waiting = |number: u64, newest: CurrentAttempt, due_at| LiveJob {
        seq: Some(4 + number),
        newest,
        due_at,
        ..LiveJob::created(job(number), LaneId::parse("session:s").unwrap(), spec())
    };
    let first = CurrentAttempt { state: State::Created, attempt, charged_attempts: 0 };
    let line = vec![
        (waiting(1, first, Some(AT)), 1_000),
        (waiting(2, LiveJob::created(job(2), LaneId::parse("session:s").unwrap(), spec()).newest, None), 0),
    ];
    assert_eq!(words(&state.fifo_read(Ok(line), now)), "read");
    assert_eq!(words(&state.fifo_read(Ok(Vec::new()), now)), "");
    state.reread_at = now + Duration::from_secs(3_600);
}

#[test]
fn a_strict_session_that_is_read_again_waits_for_the_reservation_of_the_attempt_that_was_taken_back() {
    let now = Instant::now();
    let first = Attempt::new(1);
    let after = |ms| now + Duration::from_millis(ms);
    let revoked = |ago_ms| Some(RevokedAttempt { job: job(1), attempt: first, ago_ms });

    let mut state = revoked_unheard(now);
    read_again(&mut state, first, revoked(2_000), now);
    assert_eq!(words(&state.flush(after(1_001))), "", "it is due, and the reservation may stand");
    assert_eq!(state.wake_at(), Some(after(8_000)), "{:?}", state.wake_at().map(|at| at - now));
    assert_eq!(words(&state.flush(after(8_000))), "enqueue");

    // The answer to an earlier owner's question may still come.
    let mut state = revoked_unheard(now);
    read_again(&mut state, first, revoked(2_000), now);
    state.flush(after(1_001));
    assert_eq!(words(&give(&mut state, command("reservation gone", now), after(1_100))), "enqueue");

    // Nothing is waited for where the reservation has run out, or nothing was taken back.
    for (attempt, revoked) in [(first, revoked(10_000)), (first, None), (Attempt::NONE, None)] {
        let mut state = revoked_unheard(now);
        read_again(&mut state, attempt, revoked, now);
        assert_eq!(words(&state.flush(after(1_001))), "enqueue", "{revoked:?}");
    }
}

#[test]
fn a_new_job_waits_for_the_reservation_of_a_job_that_was_cancelled_under_the_last_owner() {
    let now = Instant::now();
    let lane = LaneId::parse("session:s").unwrap();
    let mut state: LaneState<Numbered> = LaneState::new(lane, Token::new(2), true, settings(1), now);
    let revoked = Some(RevokedAttempt { job: job(9), attempt: Attempt::new(1), ago_ms: 4_000 });
    let session = Some(snapshot(0, Ordering::Strict));
    state.reloaded(Token::new(2), Snapshot { session, revoked, ..Snapshot::default() }, now);
    let effects = give(&mut state, command("submit", now), now);
    assert_eq!(words(&effects), "commit(submit)", "no slot is looked for");
    assert_eq!(words(&written(&mut state, batch(&effects), now)), "accepted notify");
    state.reread_at = now + Duration::from_secs(3_600);
    assert_eq!(words(&state.flush(now + Duration::from_millis(5_999))), "");
    assert_eq!(words(&state.flush(now + Duration::from_millis(6_000))), "enqueue");
}

/// Submissions of a session's client, under their `ref`s.
fn named(names: &[(u64, &str)], now: Instant) -> Command<Numbered> {
    let named = |(number, name): &(u64, &str)| {
        let mut pending = submission(*number, Due::InMs(60_000), Some(name), now);
        pending.submission.client_ref = Some(ClientRef::parse(name).unwrap());
        pending
    };
    Command::Submit(names.iter().map(named).collect())
}

/// As many as these, each under its own name.
fn burst(numbers: std::ops::RangeInclusive<u64>, now: Instant) -> Command<Numbered> {
    let names: Vec<_> = numbers.map(|number| (number, format!("c{number}"))).collect();
    let names: Vec<_> = names.iter().map(|(number, name)| (*number, name.as_str())).collect();
    named(&names, now)
}

fn places(effects: &Effects) -> Vec<u64> {
    new_jobs(effects).into_iter().filter_map(|new| new.seq).collect()
}

fn looked_up(effects: Effects) -> Vec<PendingSubmission<Numbered>> {
    let found = effects.into_iter().find_map(|effect| match effect {
        Effect::LookUp(pending) => Some(pending),
        _ => None,
    });
    found.unwrap()
}

/// The ledger has nothing under the keys of these.
fn answer_look_up(
    state: &mut LaneState<Numbered>,
    new: Vec<PendingSubmission<Numbered>>,
    now: Instant,
) -> Effects {
    let mut effects = state.looked_up(new, now);
    if matches!(effects.last(), Some(Effect::Flush)) {
        effects.pop();
        effects.extend(state.flush(now));
    }
    effects
}

#[test]
fn in_a_session_without_order_a_repetition_takes_no_place() {
    let now = Instant::now();
    let mut state = session(Ordering::Free, now);
    let effects = give(&mut state, named(&[(1, "a"), (2, "b"), (3, "a")], now), now);
    assert_eq!((words(&effects).as_str(), places(&effects)), ("commit(submit,submit)", vec![5, 6]));
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "accepted notify accepted notify look_up(1)", "the third is the first again");
    let effects = give(&mut state, named(&[(4, "b"), (5, "c"), (6, "a")], now), now);
    assert_eq!((words(&effects).as_str(), places(&effects)), ("look_up(2) commit(submit)", vec![7]));
    written(&mut state, batch(&effects), now);
    // What the ledger does not have is new: it was forgotten, or another caller's.
    let effects = answer_look_up(&mut state, looked_up(effects), now);
    assert_eq!((words(&effects).as_str(), places(&effects)), ("commit(submit,submit)", vec![8, 9]));
    // One that was known to the ledger alone is known from then on.
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "accepted notify accepted notify");
    let effects = give(&mut state, named(&[(7, "d")], now), now);
    let effects = state.committed(batch(&effects), AT, &[JobVerdict::KeyTaken], now);
    assert_eq!(words(&effects), "by_key");
    assert_eq!(words(&give(&mut state, named(&[(8, "d")], now), now)), "look_up(1)");
}

/// So many submissions under one name.
fn repeated(count: u64, now: Instant) -> Command<Numbered> {
    let names: Vec<_> = (1..=count).map(|number| (number, "a")).collect();
    named(&names, now)
}

#[test]
fn repetitions_of_one_job_are_looked_up_together_however_many_they_are() {
    let now = Instant::now();
    let mut state = session(Ordering::Free, now);
    let effects = give(&mut state, repeated(1_000, now), now);
    assert_eq!((words(&effects).as_str(), places(&effects)), ("commit(submit)", vec![5]));
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "accepted notify look_up(999)");
    // The ledger has forgotten it: the first is new, and the others are looked up again when that is written.
    let effects = answer_look_up(&mut state, looked_up(effects), now);
    assert_eq!((words(&effects).as_str(), places(&effects)), ("commit(submit)", vec![6]));
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "accepted notify look_up(998)");
    assert_eq!(words(&answer_look_up(&mut state, Vec::new(), now)), "");
}

#[test]
fn jobs_of_one_name_that_a_session_does_not_take_are_answered_together() {
    let now = Instant::now();
    let (mut state, _) = session_with(SESSION_JOBS_MAX, Ordering::Free, now);
    let effects = give(&mut state, repeated(1_000, now), now);
    assert_eq!(words(&effects), "by_key");
    let answered = effects.iter().find_map(|effect| match effect {
        Effect::AnswerByKey(answers) => Some(answers.len()),
        _ => None,
    });
    assert_eq!(answered, Some(1_000));
}

#[test]
fn in_an_ordered_session_no_job_is_accepted_before_those_of_an_unknown_commit() {
    let now = Instant::now();
    let count = ROUND_NEW_JOBS_MAX as u64 + 1;
    for (ordering, refused, submitted) in [
        (Ordering::Strict, count, vec![]),
        (Ordering::Results, count, vec![]),
        (Ordering::Free, count - 1, vec![job(count)]),
    ] {
        let lane = LaneId::parse("session:s").unwrap();
        let mut state: LaneState<Numbered> = LaneState::new(lane, Token::new(1), true, settings(1), now);
        let read = || Snapshot { session: Some(snapshot(0, ordering)), ..Snapshot::default() };
        state.reloaded(Token::new(1), read(), now);
        let effects = give(&mut state, burst(1..=count, now), now);
        assert_eq!(new_jobs(&effects).len(), ROUND_NEW_JOBS_MAX, "{ordering:?}: the last one waits");
        let effects = state.commit_failed(batch(&effects));
        let answers = effects.iter().filter_map(|effect| match effect {
            Effect::Submitted(caller, Err(Refused::OutcomeUnknown)) => Some(*caller),
            _ => None,
        });
        assert_eq!(answers.collect::<Vec<_>>(), (1..=refused).collect::<Vec<_>>(), "{ordering:?}");
        let effects = state.reloaded(Token::new(2), read(), now);
        let new: Vec<_> = new_jobs(&effects).into_iter().map(|new| new.id).collect();
        assert_eq!(new, submitted, "{ordering:?}");
        // They come again, in their order.
        if new.is_empty() {
            let effects = give(&mut state, burst(1..=count, now), now);
            let first = new_jobs(&effects).into_iter().next().unwrap();
            assert_eq!((first.id, first.seq), (job(1), Some(5)), "{ordering:?}");
        }
    }
}

#[test]
fn the_next_owner_of_a_session_without_order_knows_the_refs_of_its_last_jobs() {
    let now = Instant::now();
    let recent_refs = vec![ClientRef::parse("a").unwrap()];
    let (mut state, _) = opened(SessionSnapshot { recent_refs, ..snapshot(0, Ordering::Free) }, now);
    let effects = give(&mut state, named(&[(1, "a"), (2, "b")], now), now);
    assert_eq!((words(&effects).as_str(), places(&effects)), ("look_up(1) commit(submit)", vec![5]));
    written(&mut state, batch(&effects), now);
    // Under a key of its own too.
    let Command::Submit(mut keyed) = named(&[(3, "c")], now) else { unreachable!() };
    keyed[0].submission.client_ref = Some(ClientRef::parse("a").unwrap());
    assert_eq!(words(&give(&mut state, Command::Submit(keyed), now)), "look_up(1)");
}

#[test]
fn in_an_ordered_session_an_empty_place_is_passed_over() {
    let now = Instant::now();
    for ordering in [Ordering::Strict, Ordering::Results] {
        let mut state = session(ordering, now);
        for number in [1, 2] {
            let effects = give(&mut state, named(&[(number, "a")], now), now);
            let effects = state.committed(batch(&effects), AT, &[JobVerdict::KeyTaken], now);
            assert_eq!(words(&effects), "by_key");
        }
    }
}

#[test]
fn a_session_that_is_told_to_stop_ends_with_the_commit_under_way_whatever_waits_and_comes() {
    let now = Instant::now();
    let mut state = session(Ordering::Free, now);
    let submit = |number| Command::Submit(vec![submission(number, Due::Now, None, now)]);
    let slot_for = |number| Command::SlotReserved(job(number), Attempt::new(1), slot("n"));
    for number in [1, 2] {
        give(&mut state, submit(number), now);
        let effects = state.slots_found(SlotsFound::default(), now);
        assert_eq!(words(&written(&mut state, batch(&effects), now)), "accepted notify enqueue");
    }
    give(&mut state, submit(3), now);
    let under_way = state.slots_found(SlotsFound::default(), now);
    assert_eq!(words(&under_way), "commit(submit)");
    assert_eq!(words(&state.apply(slot_for(1), now)), "");
    assert_eq!(words(&state.apply(submit(4), now)), "");
    assert_eq!(words(&state.apply(Command::Stop, now)), "dequeue_all release refused(Fenced)");
    for (command, expected) in [
        (Command::Stop, ""),
        (slot_for(2), "release"),
        (submit(5), "refused(Fenced)"),
        (command("cancel", now), "not_cancelled(Fenced)"),
        // Its node's instance writes it, since nobody answers.
        (command("complete", now), ""),
        (command("departed", now), ""),
        (command("close", now), "not_closed(Fenced)"),
    ] {
        assert_eq!(words(&state.apply(command, now)), expected);
    }
    assert_eq!(words(&state.flush(now + REREAD_EVERY * 2)), "");
    assert_eq!((state.wake_at(), state.waiting()), (None, 0));
    assert_eq!(words(&written(&mut state, batch(&under_way), now)), "accepted notify stop");
    assert!(state.is_left_with_work());
    // More may have come before it could end.
    assert_eq!(words(&give(&mut state, slot_for(3), now)), "release stop");
}

#[test]
fn a_session_that_is_told_to_stop_while_it_reads_ends_when_that_is_over() {
    let now = Instant::now();
    let mut state = session(Ordering::Free, now);
    assert_eq!(words(&state.flush(now + REREAD_EVERY * 2)), "read");
    assert_eq!(words(&state.apply(Command::Stop, now)), "dequeue_all");
    assert_eq!(words(&state.attempts_read(Ok(Vec::new()), now)), "stop", "the next owner reads the rest");
}

#[test]
fn a_session_that_is_told_to_stop_takes_in_the_rest_of_a_burst_that_it_has_begun_and_nothing_behind_it() {
    let now = Instant::now();
    for ordering in [Ordering::Strict, Ordering::Results, Ordering::Free] {
        let lane = LaneId::parse("session:s").unwrap();
        let mut state: LaneState<Numbered> = LaneState::new(lane, Token::new(1), true, settings(1), now);
        let session = Some(snapshot(0, ordering));
        state.reloaded(Token::new(1), Snapshot { session, ..Snapshot::default() }, now);
        state.apply(burst(1..=1_000, now), now);
        state.apply(burst(1_001..=1_002, now), now);
        let mut effects = state.flush(now);
        assert_eq!(new_jobs(&effects).len(), ROUND_NEW_JOBS_MAX, "{ordering:?}");
        let stopped = state.apply(Command::Stop, now);
        assert_eq!(words(&stopped), "dequeue_all refused(Fenced) refused(Fenced)", "{ordering:?}");
        let (mut accepted, mut given) = (Vec::new(), Vec::new());
        while !matches!(effects.last(), Some(Effect::Stop)) {
            given.extend(places(&effects));
            let verdicts = [JobVerdict::Written; ROUND_NEW_JOBS_MAX];
            effects = state.committed(batch(&effects), AT, &verdicts, now);
            accepted.extend(effects.iter().filter_map(|effect| match effect {
                Effect::Submitted(caller, Ok(_)) => Some(*caller),
                _ => None,
            }));
        }
        assert!(accepted.into_iter().eq(1..=1_000) && given.into_iter().eq(5..=1_004), "{ordering:?}");
    }
}

#[test]
fn a_burst_whose_commit_is_unknown_is_refused_to_its_end_by_an_ordered_session_that_is_told_to_stop() {
    let now = Instant::now();
    let mut state = session(Ordering::Strict, now);
    let count = ROUND_NEW_JOBS_MAX as u64 + 2;
    let effects = give(&mut state, burst(1..=count, now), now);
    assert_eq!(words(&state.apply(Command::Stop, now)), "dequeue_all");
    let effects = state.commit_failed(batch(&effects));
    let unknown =
        |effect: &&Effect<Numbered>| matches!(effect, Effect::Submitted(_, Err(Refused::OutcomeUnknown)));
    assert_eq!(effects.iter().filter(unknown).count() as u64, count);
    let read = Snapshot { session: Some(snapshot(0, Ordering::Strict)), ..Snapshot::default() };
    assert_eq!(words(&state.reloaded(Token::new(2), read, now)), "bind stop");
}

/// A session without order that asks about the first of two jobs, whose name it knows, and commits the other one.
fn looking_up(now: Instant) -> (LaneState<Numbered>, Effects) {
    let mut state = session(Ordering::Free, now);
    let effects = give(&mut state, named(&[(1, "a")], now), now);
    written(&mut state, batch(&effects), now);
    let effects = give(&mut state, named(&[(2, "a"), (3, "b")], now), now);
    assert_eq!(words(&effects), "look_up(1) commit(submit)");
    (state, effects)
}

#[test]
fn what_was_looked_up_for_a_burst_is_taken_in_by_a_session_that_is_told_to_stop() {
    let now = Instant::now();
    let (mut state, effects) = looking_up(now);
    assert_eq!(words(&give(&mut state, Command::Stop, now)), "dequeue_all");
    let under_way = batch(&effects);
    assert_eq!(words(&written(&mut state, under_way, now)), "accepted notify", "it waits for the answer");
    assert_eq!(state.wake_at(), None);
    let effects = answer_look_up(&mut state, looked_up(effects), now);
    assert_eq!(words(&effects), "commit(submit)");
    assert_eq!(words(&written(&mut state, batch(&effects), now)), "accepted notify stop");
}

#[test]
fn what_was_looked_up_for_a_burst_goes_before_the_rest_of_it_and_is_not_refused_alone() {
    let now = Instant::now();
    let lane = LaneId::parse("session:s").unwrap();
    let mut state: LaneState<Numbered> = LaneState::new(lane, Token::new(1), true, settings(1), now);
    let recent_refs = vec![ClientRef::parse("c1").unwrap()];
    let session = Some(SessionSnapshot { recent_refs, ..snapshot(0, Ordering::Free) });
    state.reloaded(Token::new(1), Snapshot { session, ..Snapshot::default() }, now);
    let mut effects = give(&mut state, burst(1..=1_000, now), now);
    let commit = batch(&effects);
    let asked = looked_up(effects);
    assert_eq!(asked.iter().map(|one| one.id).collect::<Vec<_>>(), [job(1)]);
    assert_eq!(words(&answer_look_up(&mut state, asked, now)), "", "the commit is under way");
    // The next round takes the answer in, and then the owner gets `Stop`.
    let verdicts = [JobVerdict::Written; ROUND_NEW_JOBS_MAX];
    let mut accepted = Vec::new();
    let mut note = |effects: &Effects| {
        accepted.extend(effects.iter().filter_map(|effect| match effect {
            Effect::Submitted(caller, Ok(_)) => Some(*caller),
            _ => None,
        }));
    };
    effects = state.committed(commit, AT, &verdicts, now);
    note(&effects);
    assert_eq!(words(&state.apply(Command::Stop, now)), "dequeue_all");
    while !matches!(effects.last(), Some(Effect::Stop)) {
        effects = state.committed(batch(&effects), AT, &verdicts, now);
        note(&effects);
    }
    accepted.sort_unstable();
    assert!(accepted.into_iter().eq(1..=1_000));
}

#[test]
fn what_was_looked_up_has_room_however_many_came_meanwhile() {
    let now = Instant::now();
    let (mut state, effects) = looking_up(now);
    let many = burst(10..=9 + SUBMISSIONS_WAITING_MAX as u64, now);
    let refused = |effects: &Effects| words(effects).matches("refused").count();
    assert_eq!(refused(&state.apply(many, now)), 0);
    assert_eq!(refused(&state.looked_up(looked_up(effects), now)), 0);
    assert_eq!(state.waiting(), SUBMISSIONS_WAITING_MAX + 1);
    assert_eq!(refused(&state.apply(named(&[(4, "d")], now), now)), 1, "others have none");
}

#[test]
fn a_session_that_is_told_to_stop_ends_when_all_that_was_looked_up_is_a_repetition() {
    let now = Instant::now();
    let mut state = session(Ordering::Free, now);
    let effects = give(&mut state, named(&[(1, "a")], now), now);
    written(&mut state, batch(&effects), now);
    assert_eq!(words(&give(&mut state, named(&[(2, "a")], now), now)), "look_up(1)");
    assert_eq!(words(&give(&mut state, Command::Stop, now)), "dequeue_all");
    assert_eq!(words(&answer_look_up(&mut state, Vec::new(), now)), "stop");
}

#[test]
fn the_callers_of_a_session_that_was_forgotten_hear_so_before_its_owner_ends() {
    let now = Instant::now();
    let lane = LaneId::parse("session:s").unwrap();
    let mut state: LaneState<Numbered> = LaneState::new(lane, Token::new(1), true, settings(1), now);
    state.apply(command("submit", now), now);
    let effects = state.reloaded(Token::new(1), Snapshot::default(), now);
    assert_eq!(words(&effects), "refused(UnknownSession) stop");
}
