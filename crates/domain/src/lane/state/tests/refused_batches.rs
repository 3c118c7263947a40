//! Batches that the ledger does not take.

use super::*;

fn refused(state: &mut LaneState<Numbered>, effects: &Effects, now: Instant) -> Effects {
    state.commit_refused(batch(effects), now)
}

#[test]
fn the_callers_of_a_batch_that_the_ledger_refuses_are_answered_and_the_lane_goes_on() {
    let now = Instant::now();
    let mut state = with_job("dispatched", now);
    let later = |number, key| submission(number, Due::InMs(60_000), key, now);
    state.apply(Command::Submit(vec![later(2, None), later(3, Some("k"))]), now);
    state.apply(command("cancel", now), now);
    let effects = state.flush(now);
    assert_eq!(words(&effects), "dequeue commit(end,submit,submit)");
    let told = "not_cancelled(Defect) refused(Defect) by_key read";
    assert_eq!(words(&refused(&mut state, &effects, now)), told, "the job that was to be cancelled is read");
    assert_eq!(state.token(), Token::new(1));
    let found = Ok(vec![live(1, OnRecovery::Run, Some("n"))]);
    assert_eq!(words(&state.jobs_read(&[job(1)], found, now)), "dequeue");
    let again = Command::Submit(vec![later(4, Some("k"))]);
    let effects = give(&mut state, again, now);
    assert_eq!(words(&effects), "commit(submit)", "the key is free");
    written(&mut state, batch(&effects), now);
    assert_eq!(words(&give(&mut state, completion(1, 1, "n"), now)), "find(1,0)");
}

#[test]
fn one_write_that_the_ledger_refuses_costs_its_caller_alone() {
    let now = Instant::now();
    let mut state = with_job("dispatched", now);
    let later = |number| submission(number, Due::InMs(60_000), None, now);
    state.apply(Command::Submit(vec![later(2), later(3)]), now);
    state.apply(command("cancel", now), now);
    let first = state.flush(now);
    assert_eq!(words(&first), "dequeue commit(end,submit,submit)");
    let verdicts = [JobVerdict::Refused, JobVerdict::Refused, JobVerdict::Written];
    let effects = state.committed(batch(&first), AT, &verdicts, now);
    assert_eq!(words(&effects), "not_cancelled(Defect) refused(Defect) accepted notify read");
    let refused = effects.iter().find_map(|effect| match effect {
        Effect::Submitted(reply, Err(_)) => Some(*reply),
        _ => None,
    });
    assert_eq!(refused, Some(2));
}

#[test]
fn slots_and_places_of_a_batch_that_the_ledger_refuses_are_free_again() {
    let now = Instant::now();
    let mut state = session(Ordering::Free, now);
    assert_eq!(words(&give(&mut state, command("submit", now), now)), "find(0,1)");
    let reserved = HashMap::from([(job(2), slot("n"))]);
    let effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
    assert_eq!(words(&effects), "bind commit(submit)");
    assert_eq!(words(&refused(&mut state, &effects, now)), "release refused(Defect)");
    assert_eq!(state.session().map(SessionState::unfinished), Some(0));
    // A job that waited waits again.
    let mut state = with_job("waiting", now);
    let effects = give(&mut state, command("slot", now), now);
    assert_eq!(words(&refused(&mut state, &effects, now)), "release read");
    let found = Ok(vec![live(1, OnRecovery::Run, None)]);
    assert_eq!(words(&state.jobs_read(&[job(1)], found, now)), "dequeue enqueue");
}

#[test]
fn results_and_revocations_of_a_batch_that_the_ledger_refuses_are_left_to_what_is_read() {
    let now = Instant::now();
    let mut state = with_job("dispatched", now);
    assert_eq!(words(&give(&mut state, completion(1, 1, "n"), now)), "find(1,0)");
    let effects = state.slots_found(SlotsFound::default(), now);
    assert_eq!(words(&refused(&mut state, &effects, now)), "read", "its node's instance hears nothing");
    let mut state = with_job("dispatched", now);
    let effects = give(&mut state, command("departed", now), now);
    assert_eq!(words(&effects), "commit(revoke)");
    assert_eq!(words(&refused(&mut state, &effects, now)), "read");
}
