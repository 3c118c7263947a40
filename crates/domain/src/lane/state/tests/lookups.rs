//! Jobs that were written otherwise than was known, or by another, and are read again.

use super::*;
use crate::lane::limits::LOOKUPS_AT_ONCE;

#[test]
fn a_write_that_found_its_job_otherwise_has_it_read_again() {
    let now = Instant::now();
    let mut state = with_job("waiting", 1, now);
    let effects = give(&mut state, command("slot", now), now);
    let effects = state.committed(batch(&effects), AT, &[JobVerdict::Stale], now);
    assert_eq!(words(&effects), "release read");
    assert_eq!(words(&state.jobs_read(&[job(1)], Ok(vec![]), now)), "dequeue", "it is finished");
    let mut state = with_job("waiting", 1, now);
    let effects = give(&mut state, command("slot", now), now);
    state.committed(batch(&effects), AT, &[JobVerdict::Stale], now);
    assert_eq!(words(&state.jobs_read(&[job(1)], Err(Unread), now)), "", "it is looked at later");
}

#[test]
fn a_job_that_another_has_written_in_the_lane_is_read_and_goes_on_its_way() {
    let now = Instant::now();
    let mut state = own_lane(1, now);
    assert_eq!(words(&give(&mut state, command("written by another", now), now)), "", "it still loads");
    assert_eq!(words(&state.reloaded(Token::new(2), Snapshot::default(), now)), "read");
    let found = live(2, OnRecovery::Hold, None);
    assert_eq!(words(&state.jobs_read(&[job(2)], Ok(vec![found]), now)), "dequeue enqueue");
}

#[test]
fn jobs_that_are_to_be_looked_at_are_read_together_and_each_once() {
    let now = Instant::now();
    let mut state = own_lane(1, now);
    state.reloaded(Token::new(2), Snapshot::default(), now);
    let first = LOOKUPS_AT_ONCE as u64;
    let written = (1..=first + 2).map(job).collect();
    let effects = give(&mut state, Command::Written(written), now);
    let asked = |effects: &[Effect<Numbered>]| match effects {
        [.., Effect::Read(Read::Jobs(jobs))] => jobs.clone(),
        _ => panic!("no jobs are read: {}", words(effects)),
    };
    assert_eq!(asked(&effects), (1..=first).map(job).collect::<Vec<_>>());
    // One that is asked for again meanwhile is read again afterwards.
    state.lookups.push_back(job(1));
    state.lookups.push_back(job(first + 1));
    let found = (2..=first).map(|n| live(n, OnRecovery::Hold, None)).collect();
    let effects = state.jobs_read(&asked(&effects), Ok(found), now);
    assert_eq!(asked(&effects), [job(first + 1), job(first + 2), job(1)]);
    // One that cannot be read keeps no other from being read.
    let effects = state.jobs_read(&asked(&effects), Err(Unread), now);
    assert_eq!(asked(&effects), [job(first + 1)]);
    let effects = state.jobs_read(&asked(&effects), Err(Unread), now);
    assert_eq!(asked(&effects), [job(first + 2)]);
    let effects = state.jobs_read(&asked(&effects), Ok(vec![live(first + 2, OnRecovery::Hold, None)]), now);
    assert_eq!(asked(&effects), [job(1)]);
    let effects = state.jobs_read(&asked(&effects), Ok(vec![]), now);
    assert_eq!(asked(&effects), [job(first + 1)], "together again");
    assert!(!words(&state.jobs_read(&[job(first + 1)], Ok(vec![]), now)).contains("read"));
    assert!(state.lookups.is_empty() && state.busy.is_empty());
}

#[test]
fn a_job_that_the_plans_owner_has_added_goes_on_its_way_unread() {
    let now = Instant::now();
    let mut state = own_lane(1, now);
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
    let mut state = own_lane(1, now);
    let jobs = vec![live(1, OnRecovery::Hold, None), live(2, OnRecovery::Hold, None)];
    assert_eq!(words(&give(&mut state, Command::Added(Token::new(2), jobs), now)), "", "it still loads");
    let mut under_way = live(1, OnRecovery::Hold, None);
    under_way.newest =
        CurrentAttempt { state: State::Running, attempt: Attempt::new(1), charged_attempts: 0 };
    under_way.placed = Some(slot("n").placed);
    let snapshot = Snapshot { in_flight: vec![under_way], ..Snapshot::default() };
    assert_eq!(words(&state.reloaded(Token::new(2), snapshot, now)), "enqueue read");
}

#[test]
fn a_job_that_was_added_with_its_first_attempt_is_sent() {
    let now = Instant::now();
    let mut state = own_lane(1, now);
    state.reloaded(Token::new(2), Snapshot::default(), now);
    let mut begun = live(1, OnRecovery::Hold, Some("n"));
    begun.created_at = AT;
    let added = |token| Command::Added(Token::new(token), vec![begun.clone()]);
    assert_eq!(words(&give(&mut state, added(2), now)), "notify dequeue dispatch");
    assert_eq!(words(&give(&mut state, completion(1, 1, "n"), now)), "find(1,0)");
    assert_eq!(words(&state.slots_found(SlotsFound::default(), now)), "commit(complete)");
    // Under a token before, its attempt is read, and awaited like one that another owner has sent.
    let mut state = own_lane(1, now);
    state.reloaded(Token::new(2), Snapshot::default(), now);
    assert_eq!(words(&give(&mut state, added(1), now)), "read");
    assert_eq!(words(&state.jobs_read(&[job(1)], Ok(vec![begun.clone()]), now)), "dequeue");
}
