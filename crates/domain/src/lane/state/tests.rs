//! Each command in each state of a job, and what follows from commits.

mod additions;
mod late_rounds;
mod lookups;
mod notices;
mod refused_batches;
mod sessions;
mod stopping;
mod stranded;
mod taken_over;
mod turns;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::*;
use crate::job::{
    Attempt, Change, Class, CurrentAttempt, Due, JobVerdict, OnRecovery, Retry, Revoked, State,
};
use crate::lane::limits::{EMPTY_KEPT, ROUND_NEW_JOBS_MAX};
use crate::lane::messages::{AttemptEvent, Coming, SlotsFound};
use crate::lane::messages::{JobNotice, SessionSnapshot};
use crate::lane::testing::{
    Numbered, completion, job, node, own_lane, settings, slot, spec, submission, words,
};
use crate::session::Ordering;
use crate::{PoolName, Timestamp};

const AT: Timestamp = Timestamp::from_micros(1_000_000);

type Effects = Vec<Effect<Numbered>>;

fn loaded(snapshot: Snapshot, now: Instant) -> LaneState<Numbered> {
    let mut state = own_lane(now);
    state.reloaded(Token::new(1), snapshot, now);
    state
}

/// Applies a command and lets the round begin.
fn give(state: &mut LaneState<Numbered>, command: Command<Numbered>, now: Instant) -> Effects {
    let mut effects = state.apply(command, now);
    if matches!(effects.last(), Some(Effect::Flush)) {
        effects.pop();
        effects.extend(state.flush(now));
    }
    effects
}

fn batch(effects: &Effects) -> BatchId {
    let batch = effects.iter().find_map(|effect| match effect {
        Effect::Commit(batch) => Some(batch.id),
        _ => None,
    });
    batch.unwrap_or_else(|| panic!("no commit in {}", words(effects)))
}

fn written(state: &mut LaneState<Numbered>, batch: BatchId, now: Instant) -> Effects {
    state.committed(batch, AT, &[JobVerdict::Written; 8], now)
}

/// A lane with job 1 where the name says.
fn with_job(phase: &str, now: Instant) -> LaneState<Numbered> {
    let mut state = loaded(Snapshot::default(), now);
    let due = if phase == "delayed" { Due::InMs(10_000) } else { Due::Now };
    if phase == "unknown" {
        return state;
    }
    let mut effects = give(&mut state, Command::Submit(vec![submission(1, due, None, now)]), now);
    if phase != "delayed" {
        let reserved = match phase {
            "waiting" => HashMap::new(),
            _ => HashMap::from([(job(1), slot("n"))]),
        };
        assert_eq!(words(&effects), "find(0,1)");
        effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
    }
    assert_eq!(words(&effects), "commit(submit)");
    let effects = written(&mut state, batch(&effects), now);
    match phase {
        "delayed" => assert_eq!(words(&effects), "accepted notify"),
        "waiting" => assert_eq!(words(&effects), "accepted notify enqueue"),
        _ => assert_eq!(words(&effects), "notify notify dequeue dispatch accepted"),
    }
    match phase {
        "running" => {
            let acknowledged = Command::Attempt(job(1), Attempt::new(1), AttemptEvent::Acknowledged);
            assert_eq!(words(&give(&mut state, acknowledged, now)), "");
        }
        "written" => {
            let effects = give(&mut state, Command::Cancel(job(1), Class::default(), 7), now);
            assert_eq!(words(&effects), "dequeue commit(end)");
        }
        _ => {}
    }
    state
}

fn command(name: &str, now: Instant) -> Command<Numbered> {
    let event = |event| Command::Attempt(job(1), Attempt::new(1), event);
    match name {
        "submit" => Command::Submit(vec![submission(2, Due::Now, None, now)]),
        "cancel" => Command::Cancel(job(1), Class::default(), 9),
        "slot" => Command::SlotReserved(job(1), Attempt::new(1), slot("n")),
        "no slot" => Command::SlotUnavailable(job(1)),
        "departed" => Command::NodeDeparted(node("n")),
        "complete" => completion(1, 1, "n"),
        "acknowledged" => event(AttemptEvent::Acknowledged),
        "connection lost" => event(AttemptEvent::ConnectionLost),
        "elsewhere" => event(AttemptEvent::NodeElsewhere),
        "finished" => event(AttemptEvent::Finished),
        "failed" => event(AttemptEvent::Failed { due_in_ms: 5 }),
        "rejected" => event(AttemptEvent::Revoked(Revoked::Rejected, String::new())),
        "unsent" => event(AttemptEvent::Revoked(Revoked::NotAcknowledged, String::new())),
        "unlisted" => event(AttemptEvent::Revoked(Revoked::Unlisted, String::new())),
        "reservation gone" => Command::ReservationRemoved(job(1), Attempt::new(1)),
        "close" => Command::CloseSession(3),
        "written by another" => Command::Written(vec![job(2)]),
        "added by another" => Command::Added(Token::new(1), vec![live(2, OnRecovery::Hold, None)]),
        "stop" => Command::Stop,
        other => panic!("no command {other}"),
    }
}

/// Every command in every state of the job that it is about: what is not in this table does nothing.
#[test]
fn a_new_job_that_could_not_be_read_is_looked_for_among_those_that_wait() {
    let now = Instant::now();
    let mut state = loaded(Snapshot::default(), now);
    assert_eq!(words(&give(&mut state, Command::Written(vec![job(5)]), now)), "read");
    assert_eq!(words(&state.jobs_read(&[job(5)], Err(Unread), now)), "");
    let later = now + REREAD_EVERY * 2;
    let (mut effects, mut read) = (state.flush(later), Vec::new());
    while let Some(Effect::Read(what)) = effects.pop() {
        effects = match &what {
            Read::Attempts => state.attempts_read(Ok(Vec::new()), later),
            Read::Coming { .. } => state.coming_read(Ok(Coming::default()), later),
            Read::Groups => state.groups_read(Ok(Vec::new()), later),
            other => panic!("{other:?} is read"),
        };
        read.push(what);
    }
    assert!(read.contains(&Read::Groups), "{read:?}");
}

#[test]
fn a_large_batch_is_written_in_rounds_that_also_end_and_begin_attempts() {
    let now = Instant::now();
    let mut state = with_job("dispatched", now);
    let new = (2..2 + ROUND_NEW_JOBS_MAX as u64 + 1).map(|n| submission(n, Due::InMs(60_000), None, now));
    let effects = give(&mut state, Command::Submit(new.collect()), now);
    let first = batch(&effects);
    assert_eq!(words(&give(&mut state, completion(1, 1, "n"), now)), "");
    let effects = state.committed(first, AT, &[JobVerdict::Written; ROUND_NEW_JOBS_MAX], now);
    let find = effects
        .iter()
        .filter(|effect| matches!(effect, Effect::FindSlots(search) if search.offers.len() == 1));
    assert_eq!(find.count(), 1, "the result does not wait for the rest of the batch");
    let effects = state.slots_found(SlotsFound::default(), now);
    assert_eq!(words(&effects), "commit(complete,submit)");
}

#[test]
fn each_command_does_this_in_each_state() {
    let phases = ["unknown", "delayed", "waiting", "dispatched", "running"];
    let (end, stop) = ("dequeue commit(end)", "dequeue_all stop");
    let table: &[(&str, [&str; 5])] = &[
        ("submit", ["find(0,1)"; 5]),
        ("cancel", [end; 5]),
        ("slot", ["release", "release", "commit(dispatch)", "release", "release"]),
        ("no slot", ["", "", "enqueue_again", "", ""]),
        ("departed", ["", "", "", "commit(revoke)", "commit(revoke)"]),
        ("complete", ["", "", "", "find(1,0)", "find(1,0)"]),
        ("acknowledged", [""; 5]),
        ("connection lost", [""; 5]),
        ("elsewhere", ["", "", "", "", "commit(revoke)"]),
        ("finished", ["", "", "", "freed dequeue", "freed dequeue"]),
        ("failed", ["", "", "", "freed", "freed"]),
        ("rejected", ["", "", "", "commit(revoke)", ""]),
        ("unlisted", ["", "", "", "commit(revoke)", "commit(revoke)"]),
        ("reservation gone", [""; 5]),
        ("close", ["not_closed(UnknownSession)"; 5]),
        ("written by another", ["read"; 5]),
        ("added by another", ["enqueue"; 5]),
        ("stop", [stop; 5]),
    ];
    let now = Instant::now();
    for (name, expected) in table {
        for (phase, expected) in phases.iter().zip(expected) {
            let mut state = with_job(phase, now);
            let effects = give(&mut state, command(name, now), now);
            assert_eq!(words(&effects), *expected, "{name}, {phase}");
        }
        // Everything waits for the commit that is under way.
        let mut state = with_job("written", now);
        let expected = if *name == "stop" { "dequeue_all" } else { "" };
        assert_eq!(words(&give(&mut state, command(name, now), now)), expected, "{name}");
    }
}

#[test]
fn while_it_loads_a_lane_does_nothing_and_forgets_nothing() {
    let now = Instant::now();
    let mut state = own_lane(now);
    for name in ["submit", "cancel", "finished"] {
        assert_eq!(words(&state.apply(command(name, now), now)), "", "{name}");
    }
    let effects = state.reloaded(Token::new(2), Snapshot::default(), now);
    assert_eq!(words(&effects), "dequeue find(0,1)");
    assert_eq!(state.token(), Token::new(2));
}

#[test]
fn a_lane_that_has_ended_refuses_everything() {
    let now = Instant::now();
    let mut state = with_job("written", now);
    state.apply(command("submit", now), now);
    assert_eq!(
        words(&state.end()),
        "not_cancelled(OutcomeUnknown) refused(Fenced) dequeue_all",
        "the cancellation may have been written"
    );
    assert_eq!(words(&state.apply(command("submit", now), now)), "refused(Fenced)");
    assert_eq!(words(&state.apply(command("cancel", now), now)), "not_cancelled(Fenced)");
    assert_eq!(words(&state.apply(command("close", now), now)), "not_closed(Fenced)");
    assert_eq!(words(&state.apply(command("finished", now), now)), "");
}

#[test]
fn what_is_in_no_round_yet_waits_and_its_wait_is_told_when_a_round_takes_it() {
    let now = Instant::now();
    let mut state = loaded(Snapshot::default(), now);
    assert_eq!(state.waiting(), 0);
    let submit = |numbers: [u64; 2]| {
        Command::Submit(numbers.map(|number| submission(number, Due::Now, None, now)).into())
    };
    state.apply(submit([1, 2]), now);
    state.apply(Command::Cancel(job(9), Class::default(), 9), now);
    assert_eq!(state.waiting(), 3, "two submissions and a cancellation");
    let later = now + Duration::from_millis(7);
    let effects = state.flush(later);
    let waited = effects.iter().find_map(|effect| match effect {
        Effect::Waited(lengths) => Some(lengths.clone()),
        _ => None,
    });
    assert_eq!(waited, Some(vec![Duration::from_millis(7); 2]));
    assert_eq!(state.waiting(), 0);
    // A round is under way: what comes now waits for the next.
    state.apply(submit([3, 4]), later);
    assert_eq!(state.waiting(), 2);
    state.end();
    assert_eq!(state.waiting(), 0, "everything was refused");
}

#[test]
fn submissions_beyond_the_bound_are_refused_at_once() {
    let now = Instant::now();
    let mut state = with_job("written", now);
    let many: Vec<_> = (10..10 + SUBMISSIONS_WAITING_MAX as u64 + 3)
        .map(|number| submission(number, Due::Now, None, now))
        .collect();
    assert_eq!(words(&state.apply(Command::Submit(many), now)), ["refused(Overloaded)"; 3].join(" "));
}

#[test]
fn a_command_about_a_job_that_is_being_written_follows_when_that_is_done() {
    let now = Instant::now();
    let mut state = with_job("dispatched", now);
    let effects = give(&mut state, command("rejected", now), now);
    assert_eq!(words(&effects), "commit(revoke)");
    assert_eq!(words(&give(&mut state, command("cancel", now), now)), "");
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "withdraw notify dequeue commit(end)", "the cancellation has its turn now");
}

#[test]
fn two_cancellations_of_one_round_are_one_write() {
    let now = Instant::now();
    let mut state = with_job("waiting", now);
    state.apply(command("cancel", now), now);
    state.apply(Command::Cancel(job(1), Class::default(), 10), now);
    let effects = state.flush(now);
    assert_eq!(words(&effects), "dequeue commit(end)");
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "dequeue notify cancelled cancelled");
}

/// The pools that notices of a kind name.
fn pools(effects: &Effects) -> Vec<(&'static str, Option<&str>)> {
    let notices = effects.iter().filter_map(|effect| match effect {
        Effect::Notify(JobNotice::Created(_, class)) => Some(("created", class)),
        Effect::Notify(JobNotice::Completed(_, class, ..)) => Some(("completed", class)),
        Effect::Notify(JobNotice::Ended(_, class, ..)) => Some(("ended", class)),
        _ => None,
    });
    notices.map(|(kind, class)| (kind, class.pool.as_ref().map(PoolName::as_str))).collect()
}

#[test]
fn notices_of_new_and_ended_jobs_name_their_pool() {
    let now = Instant::now();
    let mut state = loaded(Snapshot::default(), now);
    let in_pool = |number, attempts| {
        let mut submission = submission(number, Due::Now, None, now);
        submission.submission.spec.needs.pool = Some(PoolName::parse("p").unwrap());
        submission.submission.spec.max_attempts = attempts;
        submission
    };
    state.apply(Command::Submit(vec![in_pool(1, 1), in_pool(2, 1), submission(3, Due::Now, None, now)]), now);
    state.flush(now);
    let reserved = HashMap::from([(job(1), slot("n")), (job(2), slot("n"))]);
    let effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
    let effects = written(&mut state, batch(&effects), now);
    let created = ("created", Some("p"));
    assert_eq!(pools(&effects), [created, created, ("created", None)]);
    state.apply(completion(1, 1, "n"), now);
    let timed_out = AttemptEvent::Revoked(Revoked::TimedOut, String::new());
    state.apply(Command::Attempt(job(2), Attempt::new(1), timed_out), now);
    // What only the ledger has is known by what the command says.
    let in_q = Class { pool: Some(PoolName::parse("q").unwrap()), ..Class::default() };
    state.apply(Command::Cancel(job(9), in_q, 9), now);
    state.apply(Command::Cancel(job(3), Class::default(), 3), now);
    let mut effects = state.flush(now);
    if let Some(Effect::FindSlots(_)) = effects.last() {
        effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved: HashMap::new() }, now);
    }
    let effects = written(&mut state, batch(&effects), now);
    let ended = [("completed", Some("p")), ("ended", Some("p")), ("ended", Some("q")), ("ended", None)];
    assert_eq!(pools(&effects), ended);
}

#[test]
fn the_next_commit_begins_before_anybody_is_told_of_the_last() {
    let now = Instant::now();
    let mut state = with_job("dispatched", now);
    let effects = give(&mut state, command("finished", now), now);
    assert_eq!(words(&effects), "freed dequeue");
    let first = give(&mut state, Command::Cancel(job(8), Class::default(), 8), now);
    assert_eq!(words(&give(&mut state, Command::Cancel(job(9), Class::default(), 9), now)), "");
    let effects = written(&mut state, batch(&first), now);
    assert_eq!(words(&effects), "dequeue commit(end) dequeue notify cancelled");
}

#[test]
fn a_slot_that_a_result_leaves_goes_to_the_next_job_with_the_same_commit() {
    let now = Instant::now();
    let mut state = with_job("dispatched", now);
    state.apply(completion(1, 1, "n"), now);
    state.apply(Command::Submit(vec![submission(2, Due::Now, None, now)]), now);
    assert_eq!(words(&state.flush(now)), "find(1,1)");
    let passed = crate::lane::ReservedSlot { instead_of: Some(job(1)), ..slot("n") };
    let reserved = HashMap::from([(job(2), passed)]);
    let effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
    assert_eq!(words(&effects), "commit(complete,submit)");
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "dequeue notify notify notify dequeue accepted completed");
    let next = effects.into_iter().find_map(|effect| match effect {
        Effect::Completed(mut completed) => completed.pop()?.next,
        _ => None,
    });
    assert_eq!(next.unwrap().job.id, job(2));
}

#[test]
fn a_job_that_was_taken_out_of_the_queue_for_nothing_has_waited_since_it_was_put_there_first() {
    let now = Instant::now();
    let mut state = with_job("waiting", now);
    let later = now + Duration::from_millis(50);
    let mut since = |command| {
        let effects = give(&mut state, command, later);
        let queued = effects.into_iter().find_map(|effect| match effect {
            Effect::Enqueue(enqueue) => Some((enqueue.is_back, enqueue.since)),
            _ => None,
        });
        queued.unwrap()
    };
    assert_eq!(since(Command::SlotUnavailable(job(1))), (true, now));
    assert_eq!(since(Command::SlotUnavailable(job(1))), (true, now));
}

#[test]
fn after_an_unknown_outcome_everything_is_read_again_under_a_new_token() {
    let now = Instant::now();
    let mut state = with_job("waiting", now);
    let cancel = give(&mut state, command("cancel", now), now);
    let effects = state.commit_failed(batch(&cancel));
    assert_eq!(words(&effects), "not_cancelled(OutcomeUnknown) dequeue_all anew");
    assert_eq!(words(&written(&mut state, batch(&cancel), now)), "", "what comes later counts for nothing");
    assert_eq!(words(&give(&mut state, command("submit", now), now)), "");
    let effects = state.reloaded(Token::new(2), Snapshot::default(), now);
    assert_eq!(words(&effects), "find(0,1)");
}

#[test]
fn the_lane_of_a_plan_does_not_end_because_it_is_empty() {
    let now = Instant::now();
    let later = now + Duration::from_secs(3_600);
    for (lane, expected) in [("instance:i", "stop"), ("plan:00000000-0000-0000-0000-000000000001", "")] {
        let lane = LaneId::parse(lane).unwrap();
        let mut state = LaneState::<Numbered>::new(lane.clone(), Token::new(1), true, settings(1), now);
        state.reloaded(Token::new(1), Snapshot::default(), now);
        state.reread_at = later;
        let effects = state.flush(now + Duration::from_secs(60));
        assert_eq!(words(&effects), expected, "{lane}");
    }
}

#[test]
fn an_attempt_that_begins_on_a_node_that_has_just_departed_goes_elsewhere() {
    let now = Instant::now();
    let mut state = with_job("waiting", now);
    let effects = give(&mut state, command("slot", now), now);
    assert_eq!(words(&give(&mut state, command("departed", now), now)), "");
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "notify dequeue dispatch commit(revoke)");
}

/// As a lane to which nobody submits: it hears of each node of its instance that is gone.
#[test]
fn a_lane_that_writes_nothing_keeps_no_nodes_that_are_gone() {
    let now = Instant::now();
    let mut state = with_job("waiting", now);
    for gone in ["a", "b", "c"] {
        assert_eq!(words(&give(&mut state, Command::NodeDeparted(node(gone)), now)), "");
    }
    assert!(state.departed.is_empty());
}

fn live(number: u64, on_recovery: OnRecovery, at: Option<&str>) -> LiveJob {
    let state = if at.is_some() { State::Dispatched } else { State::Created };
    let attempt = Attempt::new(u32::from(at.is_some()));
    let spec = crate::job::Spec { on_recovery, ..spec() };
    LiveJob {
        newest: CurrentAttempt { state, attempt, charged_attempts: 0 },
        placed: at.map(|at| slot(at).placed),
        created_at: AT,
        ..LiveJob::created(job(number), LaneId::parse("instance:i").unwrap(), spec)
    }
}

/// A lane that was taken over, with job 1 under way.
fn taken_over(on_recovery: OnRecovery, now: Instant) -> LaneState<Numbered> {
    let lane = LaneId::parse("instance:i").unwrap();
    let mut state = LaneState::new(lane, Token::new(1), true, settings(1), now);
    let in_flight = vec![live(1, on_recovery, Some("n"))];
    let effects = state.reloaded(Token::new(1), Snapshot { in_flight, ..Snapshot::default() }, now);
    assert_eq!(words(&effects), "");
    state.reread_at = now + Duration::from_secs(3_600);
    state
}

/// A job that the ledger holds is dispatched by no event: its attempt failed, its node is gone, it was not acknowledged,
/// it was read as waiting or as coming due. One that is only to be held later is dispatched like any other.
#[test]
fn a_held_job_of_a_lane_that_was_taken_over_is_never_dispatched() {
    let start = Instant::now();
    let later = start + Duration::from_secs(4);
    for (on_recovery, again) in
        [(OnRecovery::Held, ""), (OnRecovery::Hold, "enqueue"), (OnRecovery::Run, "enqueue")]
    {
        let mut state = taken_over(on_recovery, start);
        let effects = give(&mut state, command("failed", start), start);
        assert_eq!(words(&effects), "freed");
        assert_eq!(words(&state.flush(later)), again, "{on_recovery:?}, failed");

        let mut state = taken_over(on_recovery, start);
        let effects = give(&mut state, command("departed", start), start);
        assert_eq!(words(&effects), "commit(revoke)");
        assert_eq!(words(&written(&mut state, batch(&effects), start)), "withdraw notify");
        assert_eq!(words(&state.flush(later)), again, "{on_recovery:?}, node lost");

        let mut state = taken_over(on_recovery, start);
        assert_eq!(words(&state.flush(start + Duration::from_millis(100))), "");
        state.lookups.push_back(job(1));
        assert_eq!(words(&state.flush(start)), "read");
        let waiting = Ok(vec![live(1, on_recovery, None)]);
        let effects = state.jobs_read(&[job(1)], waiting, start);
        assert_eq!(words(&effects), format!("dequeue {again}").trim_end(), "{on_recovery:?}, read");

        let lane = LaneId::parse("instance:i").unwrap();
        let mut state: LaneState<Numbered> = LaneState::new(lane, Token::new(1), true, settings(1), start);
        let coming = Coming { jobs: vec![(live(1, on_recovery, None), 1_000)], is_cut: false };
        state.reloaded(Token::new(1), Snapshot { coming, ..Snapshot::default() }, start);
        state.reread_at = start + Duration::from_secs(3_600);
        assert_eq!(words(&state.flush(later)), again, "{on_recovery:?}, coming due");
    }
}

#[test]
fn a_late_result_of_a_held_job_counts() {
    let now = Instant::now();
    let mut state = taken_over(OnRecovery::Held, now);
    let effects = give(&mut state, completion(1, 1, "n"), now);
    assert_eq!(words(&effects), "find(1,0)");
    let effects = state.slots_found(SlotsFound::default(), now);
    assert_eq!(words(&effects), "commit(complete)");
    assert_eq!(words(&written(&mut state, batch(&effects), now)), "dequeue notify completed");
}

fn retry(number: u64, of: u64, key: Option<&str>, now: Instant) -> PendingSubmission<Numbered> {
    let mut pending = submission(number, Due::InMs(60_000), key, now);
    pending.submission.retry = Some(Retry { of: job(of), once: true });
    pending
}

#[test]
fn of_two_retries_of_one_job_the_second_waits_for_the_commit_of_the_first() {
    let now = Instant::now();
    let mut state = loaded(Snapshot::default(), now);
    let both = vec![retry(1, 9, None, now), retry(2, 9, None, now), retry(3, 9, Some("k"), now)];
    let first = give(&mut state, Command::Submit(both), now);
    assert_eq!(words(&first), "commit(submit)");
    assert_eq!(words(&state.flush(now)), "", "the job that it retries is being written");
    let second = written(&mut state, batch(&first), now);
    assert_eq!(words(&second), "accepted notify commit(submit)");
    let third = state.committed(batch(&second), AT, &[JobVerdict::AlreadyRetried], now);
    assert_eq!(words(&third), "refused(AlreadyRetried) commit(submit)");
    // Under its key the ledger may have kept an answer.
    let answered = state.committed(batch(&third), AT, &[JobVerdict::AlreadyRetried], now);
    assert_eq!(words(&answered), "by_key");
}

fn session(ordering: Ordering, now: Instant) -> LaneState<Numbered> {
    let (state, effects) = session_with(0, ordering, now);
    assert_eq!(words(&effects), "bind", "nothing is read of a session without unfinished jobs");
    state
}

/// A session that has been loaded with so many unfinished jobs, none of which has an attempt under way.
fn session_with(unfinished: u64, ordering: Ordering, now: Instant) -> (LaneState<Numbered>, Effects) {
    opened(sessions::snapshot(unfinished, ordering), now)
}

/// The owner of a session that has read this.
fn opened(session: SessionSnapshot, now: Instant) -> (LaneState<Numbered>, Effects) {
    let lane = LaneId::parse("session:s").unwrap();
    let mut state = LaneState::new(lane, Token::new(1), true, settings(1), now);
    let effects =
        state.reloaded(Token::new(1), Snapshot { session: Some(session), ..Snapshot::default() }, now);
    (state, effects)
}

#[test]
fn a_strict_session_with_unfinished_jobs_takes_none_before_its_line_is_read() {
    let now = Instant::now();
    let (mut state, effects) = session_with(1, Ordering::Strict, now);
    assert_eq!(words(&effects), "bind read");
    let new = vec![submission(1, Due::Now, None, now)];
    assert_eq!(words(&give(&mut state, Command::Submit(new), now)), "", "it is behind those that are read");
}

/// A strict session to whose three jobs a slot was found for the first, with the commit of all three.
fn strict_session_of_three(now: Instant) -> (LaneState<Numbered>, Effects) {
    let mut state = session(Ordering::Strict, now);
    let three = (1..=3).map(|number| submission(number, Due::Now, None, now)).collect();
    assert_eq!(words(&give(&mut state, Command::Submit(three), now)), "find(0,1)", "only the first may go");
    let reserved = HashMap::from([(job(1), slot("n"))]);
    let effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
    assert_eq!(words(&effects), "bind commit(submit,submit,submit)");
    (state, effects)
}

#[test]
fn a_session_is_left_to_the_next_owner_where_it_was_told_to_stop_and_has_jobs() {
    let now = Instant::now();
    let (mut state, effects) = strict_session_of_three(now);
    written(&mut state, batch(&effects), now);
    assert!(!state.is_left_with_work(), "it goes on here");
    give(&mut state, Command::Stop, now);
    assert!(state.is_left_with_work());
    let mut state = session(Ordering::Free, now);
    give(&mut state, Command::Stop, now);
    assert!(!state.is_left_with_work(), "the next job opens it");
    // One whose jobs are not due for long ends by itself, with unfinished jobs, and rests.
    let (state, _) = session_with(1, Ordering::Free, now);
    assert!(!state.is_left_with_work());
}

#[test]
fn in_a_strict_session_the_next_job_begins_with_the_commit_that_ends_the_one_before_it() {
    let now = Instant::now();
    let at_work = || {
        let (mut state, effects) = strict_session_of_three(now);
        written(&mut state, batch(&effects), now);
        assert_eq!(words(&give(&mut state, completion(1, 1, "n"), now)), "find(1,1)");
        state
    };
    let passed = crate::lane::ReservedSlot { instead_of: Some(job(1)), ..slot("n") };
    let elsewhere = slot("m");
    for (at, slot, told) in [
        ("n", passed, "dequeue notify notify dequeue completed"),
        ("m", elsewhere, "dequeue notify notify dequeue dispatch completed"),
    ] {
        let mut state = at_work();
        let reserved = HashMap::from([(job(2), slot)]);
        let effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
        let behind = effects.iter().find_map(|effect| match effect {
            Effect::Commit(batch) => match batch.writes[1].change {
                Change::Dispatch { job, behind, .. } => Some((job, behind)),
                _ => None,
            },
            _ => None,
        });
        assert_eq!(behind, Some((job(2), Some(job(1)))), "{}", words(&effects));
        assert_eq!(words(&written(&mut state, batch(&effects), now)), told);
        // It has its turn: the third one comes with its end.
        assert_eq!(words(&give(&mut state, completion(2, 1, at), now)), "find(1,1)");
    }
    // Where the first one's end is not as it was known, nothing begins, and what is so is read.
    let mut state = at_work();
    let reserved = HashMap::from([(job(2), slot("m"))]);
    let effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
    let effects = state.committed(batch(&effects), AT, &[JobVerdict::Stale; 2], now);
    assert_eq!(words(&effects), "release completed read");
    assert_eq!(
        words(&state.jobs_read(&[job(1)], Ok(vec![]), now)),
        "dequeue enqueue",
        "the first one is finished"
    );
    // Without a slot it waits for one, as soon as it has its turn.
    let mut state = at_work();
    let none = SlotsFound { passed: Vec::new(), reserved: HashMap::new() };
    let effects = state.slots_found(none, now);
    assert_eq!(words(&effects), "commit(complete)");
    assert_eq!(words(&written(&mut state, batch(&effects), now)), "dequeue notify completed enqueue");
}

#[test]
fn a_job_of_a_strict_session_that_is_cancelled_with_the_end_of_the_one_before_it_does_not_begin() {
    let now = Instant::now();
    let (mut state, effects) = strict_session_of_three(now);
    written(&mut state, batch(&effects), now);
    state.apply(Command::Cancel(job(2), Class::default(), 2), now);
    state.apply(completion(1, 1, "n"), now);
    assert_eq!(words(&state.flush(now)), "dequeue find(1,0)");
}

#[test]
fn the_jobs_of_a_strict_session_go_one_after_the_other() {
    let now = Instant::now();
    let (mut state, effects) = strict_session_of_three(now);
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "accepted notify notify dequeue dispatch accepted notify accepted notify");
    let places: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Submitted(_, Ok(accepted)) => accepted.seq,
            _ => None,
        })
        .collect();
    assert_eq!(places, [5, 6, 7]);
    // A failed attempt keeps its turn; the end of the job gives it to the next.
    assert_eq!(words(&give(&mut state, command("failed", now), now)), "freed");
    let later = now + Duration::from_millis(10);
    assert_eq!(words(&state.flush(later)), "enqueue");
    let effects = give(&mut state, command("cancel", now), later);
    let effects = written(&mut state, batch(&effects), later);
    assert_eq!(words(&effects), "dequeue notify cancelled enqueue");
}

/// A strict session with two jobs, of which the first is dispatched.
fn first_of_two_dispatched(now: Instant) -> LaneState<Numbered> {
    let mut state = session(Ordering::Strict, now);
    let two = (1..=2).map(|number| submission(number, Due::Now, None, now)).collect();
    give(&mut state, Command::Submit(two), now);
    let reserved = HashMap::from([(job(1), slot("n"))]);
    let effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
    written(&mut state, batch(&effects), now);
    state
}

#[test]
fn in_a_strict_session_the_successor_waits_until_the_reservation_is_gone() {
    let now = Instant::now();
    let mut state = first_of_two_dispatched(now);
    let effects = give(&mut state, command("cancel", now), now);
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(words(&effects), "dequeue withdraw notify cancelled", "the second is not enqueued yet");
    assert_eq!(words(&give(&mut state, command("reservation gone", now), now)), "enqueue");
}

#[test]
fn a_session_that_is_closed_takes_no_more_jobs() {
    let now = Instant::now();
    let mut state = session(Ordering::Free, now);
    assert_eq!(words(&give(&mut state, command("close", now), now)), "close");
    assert_eq!(words(&give(&mut state, command("submit", now), now)), "", "the close is under way");
    let effects = state.session_closed(Ok(()), now);
    assert_eq!(words(&effects), "closed refused(SessionClosed) stop", "its owner has nothing left to do");
}

#[test]
fn a_session_that_nobody_uses_is_closed() {
    let now = Instant::now();
    let mut state = session(Ordering::Results, now);
    let later = now + Duration::from_millis(59_000);
    state.reread_at = later + Duration::from_secs(10);
    assert_eq!(words(&state.flush(later)), "");
    assert_eq!(words(&state.flush(now + Duration::from_millis(60_000))), "close");
}

#[test]
fn an_adopted_lane_without_jobs_ends_after_a_while() {
    let now = Instant::now();
    let lane = LaneId::parse("instance:i").unwrap();
    let mut state: LaneState<Numbered> = LaneState::new(lane, Token::new(1), true, settings(1), now);
    assert_eq!(words(&state.reloaded(Token::new(1), Snapshot::default(), now)), "");
    state.reread_at = now + Duration::from_secs(100);
    assert_eq!(words(&state.flush(now + EMPTY_KEPT)), "stop");
}
