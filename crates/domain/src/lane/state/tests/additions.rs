//! Jobs that a plan's owner adds to its lane.

use super::*;

#[test]
fn a_job_that_the_plans_owner_has_added_goes_on_its_way_unread() {
    let now = Instant::now();
    let mut state = own_lane(now);
    state.reloaded(Token::new(2), Snapshot::default(), now);
    let added = |token, n| Command::Added(Token::new(token), vec![live(n, OnRecovery::Hold, None)]);
    assert_eq!(words(&give(&mut state, added(2, 1), now)), "enqueue");
    // It is known: what the ledger says counts.
    assert_eq!(words(&give(&mut state, added(2, 1), now)), "read");
    let found = live(1, OnRecovery::Hold, None);
    assert_eq!(words(&state.jobs_read(&[job(1)], Ok(vec![found]), now)), "dequeue enqueue");
    // It was added under the token before: it may have been held, or may be over by now.
    assert_eq!(words(&give(&mut state, added(1, 2), now)), "read");
    assert_eq!(words(&state.jobs_read(&[job(2)], Ok(vec![]), now)), "dequeue");
    assert!(state.jobs.get(job(2)).is_none());
}

#[test]
fn a_job_that_was_added_while_the_lane_loads_is_read_if_the_ledger_had_it_by_then() {
    let now = Instant::now();
    let mut state = own_lane(now);
    let jobs = vec![live(1, OnRecovery::Hold, None), live(2, OnRecovery::Hold, None)];
    assert_eq!(words(&give(&mut state, Command::Added(Token::new(2), jobs), now)), "", "it still loads");
    let mut under_way = live(1, OnRecovery::Hold, None);
    under_way.newest =
        CurrentAttempt { state: State::Running, attempt: Attempt::new(1), charged_attempts: 0 };
    under_way.placed = Some(slot("n").placed);
    let snapshot = Snapshot { in_flight: vec![under_way], ..Snapshot::default() };
    assert_eq!(words(&state.reloaded(Token::new(2), snapshot, now)), "enqueue read");
}

/// A job that the plan's owner has begun on a node.
fn begun(number: u64) -> LiveJob {
    live(number, OnRecovery::Hold, Some("n"))
}

fn added(token: i64, job: LiveJob) -> Command<Numbered> {
    Command::Added(Token::new(token), vec![job])
}

/// The lane of a plan, by its first token.
fn plans_lane(now: Instant) -> LaneState<Numbered> {
    let lane = LaneId::plan(crate::PlanId::from_u128(1));
    let mut state = LaneState::new(lane, Token::new(1), true, settings(1), now);
    assert_eq!(words(&state.reloaded(Token::new(1), Snapshot::default(), now)), "");
    state
}

/// As the ledger has it.
fn of_plan(job: LiveJob) -> LiveJob {
    LiveJob { lane: LaneId::plan(crate::PlanId::from_u128(1)), ..job }
}

#[test]
fn a_job_that_was_added_with_its_first_attempt_is_sent() {
    let now = Instant::now();
    let mut state = plans_lane(now);
    assert_eq!(words(&give(&mut state, added(1, begun(1)), now)), "notify dequeue dispatch");
    assert_eq!(words(&give(&mut state, completion(1, 1, "n"), now)), "find(1,0)");
    assert_eq!(words(&state.slots_found(SlotsFound::default(), now)), "commit(complete)");
}

/// Nobody else would send it, and its node would never say anything of it.
#[test]
fn the_first_attempt_of_a_job_that_was_added_under_another_token_is_sent_once_it_was_read() {
    let now = Instant::now();
    let mut state = plans_lane(now);
    let found = || Ok(vec![of_plan(begun(1))]);
    assert_eq!(words(&give(&mut state, added(2, begun(1)), now)), "read");
    let effects = state.jobs_read(&[job(1)], found(), now);
    assert_eq!(words(&effects), "dequeue notify dequeue dispatch");
    // Read again, it is awaited.
    state.lookups.push_back(job(1));
    state.busy.insert(job(1));
    assert_eq!(words(&state.flush(now)), "read");
    assert_eq!(words(&state.jobs_read(&[job(1)], found(), now)), "dequeue");
}

#[test]
fn the_first_attempt_of_a_job_that_the_lane_found_as_it_loaded_is_sent_once_it_was_read() {
    let now = Instant::now();
    let lane = LaneId::plan(crate::PlanId::from_u128(1));
    let mut state = LaneState::new(lane, Token::new(1), true, settings(1), now);
    assert_eq!(words(&give(&mut state, added(1, begun(1)), now)), "");
    let snapshot = Snapshot { in_flight: vec![of_plan(begun(1))], ..Snapshot::default() };
    assert_eq!(words(&state.reloaded(Token::new(1), snapshot, now)), "read");
    // What cannot be read is looked at later, and what was to be sent is so after a new beginning too.
    assert!(!words(&state.jobs_read(&[job(1)], Err(Unread), now)).contains("dispatch"));
    let mut effects = Vec::new();
    state.begin_anew(&mut effects);
    let snapshot = Snapshot { in_flight: vec![of_plan(begun(1))], ..Snapshot::default() };
    assert_eq!(words(&state.reloaded(Token::new(2), snapshot, now)), "read");
    let found = Ok(vec![of_plan(begun(1))]);
    assert_eq!(words(&state.jobs_read(&[job(1)], found, now)), "dequeue notify dequeue dispatch");
}

#[test]
fn an_attempt_that_is_not_as_it_was_added_is_not_sent() {
    let now = Instant::now();
    let (mut runs, mut waits, mut held) = (begun(1), live(1, OnRecovery::Hold, None), begun(1));
    runs.newest.state = State::Running;
    waits.newest.attempt = Attempt::new(1);
    held.spec.on_recovery = OnRecovery::Held;
    for (found, then) in [
        (Some(runs), "dequeue"),
        (Some(waits), "dequeue enqueue"),
        (Some(held), "dequeue"),
        (None, "release dequeue"),
    ] {
        let mut state = plans_lane(now);
        give(&mut state, added(2, begun(1)), now);
        let found = Ok(found.into_iter().map(of_plan).collect());
        assert_eq!(words(&state.jobs_read(&[job(1)], found, now)), then);
        assert!(state.additions.unsent().next().is_none());
    }
}

#[test]
fn a_job_that_was_cancelled_before_the_lane_was_told_of_it_is_not_sent() {
    let now = Instant::now();
    let mut state = plans_lane(now);
    let cancel = give(&mut state, Command::Cancel(job(1), Class::default(), 7), now);
    assert_eq!(words(&cancel), "dequeue commit(end)");
    // Its cancellation is under way: it waits for that.
    assert_eq!(words(&give(&mut state, added(1, begun(1)), now)), "");
    let effects = written(&mut state, batch(&cancel), now);
    assert!(!words(&effects).contains("dispatch"), "{}", words(&effects));
    assert!(words(&effects).ends_with("read"), "{}", words(&effects));
    assert_eq!(words(&state.jobs_read(&[job(1)], Ok(vec![]), now)), "release dequeue");
    // The same where the message comes after the cancellation.
    let cancel = give(&mut state, Command::Cancel(job(2), Class::default(), 8), now);
    written(&mut state, batch(&cancel), now);
    assert_eq!(words(&give(&mut state, added(1, begun(2)), now)), "read");
    assert_eq!(words(&state.jobs_read(&[job(2)], Ok(vec![]), now)), "release dequeue");
}

#[test]
fn a_stage_is_tried_again_only_once_its_earlier_attempts_are_over() {
    let now = Instant::now();
    let mut state = plans_lane(now);
    let mut again = of_plan(live(1, OnRecovery::Hold, None));
    again.newest = CurrentAttempt { state: State::Created, attempt: Attempt::new(1), charged_attempts: 1 };
    assert_eq!(words(&give(&mut state, added(1, again.clone()), now)), "look_for_older");
    // It is asked again and again, and of no other attempt.
    let later = now + OLDER_LOOK_EVERY;
    assert_eq!(words(&state.flush(later)), "look_for_older");
    assert_eq!(words(&state.older_are_over(job(1), Attempt::new(2), later)), "");
    assert_eq!(words(&state.older_are_over(job(1), Attempt::new(1), later)), "enqueue");
    assert_eq!(words(&state.older_are_over(job(1), Attempt::new(1), later)), "", "it is heard once");
    assert_eq!(words(&state.flush(later + OLDER_LOOK_EVERY)), "");
    // What did not count was not begun by its node.
    again.id = job(2);
    again.newest.charged_attempts = 0;
    assert_eq!(words(&give(&mut state, added(1, again), now)), "enqueue");
}

#[test]
fn the_first_attempt_of_a_job_that_was_added_just_before_the_end_is_sent() {
    let now = Instant::now();
    let mut state = own_lane(now);
    state.reloaded(Token::new(2), Snapshot::default(), now);
    assert_eq!(words(&state.apply(Command::Added(Token::new(2), vec![begun(1)]), now)), "flush");
    assert_eq!(words(&state.apply(Command::Stop, now)), "dequeue_all notify dequeue dispatch");
    assert_eq!(words(&state.flush(now)), "stop");
}
