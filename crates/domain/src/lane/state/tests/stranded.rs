//! Attempts whose slots the bus is asked for, which may take long.

use super::*;
use crate::job::UnderWay;

/// The lane looks at its attempts, of which job 1 has one: it asks for the slot, and reads the delayed jobs.
fn asks_for_slots(state: &mut LaneState<Numbered>, at: Instant) {
    assert_eq!(words(&state.flush(at)), "read");
    let (attempt, running) = (Attempt::new(1), State::Running);
    let effects = state.attempts_read(Ok(vec![UnderWay { job: job(1), attempt, state: running }]), at);
    assert!(
        matches!(&effects[..], [Effect::Read(Read::Stranded(_)), Effect::Read(Read::Coming { .. })]),
        "{}",
        words(&effects)
    );
    assert_eq!(words(&state.coming_read(Ok(Coming::default()), at)), "");
}

/// The slot is gone.
fn missing() -> Vec<(JobId, Attempt, State, bool)> {
    vec![(job(1), Attempt::new(1), State::Running, false)]
}

#[test]
fn rounds_go_on_while_the_bus_is_asked_for_slots() {
    let now = Instant::now();
    let mut state = with_job("running", now);
    let later = now + NodeTimeouts::DEFAULT.stranded;
    asks_for_slots(&mut state, later);
    assert_eq!(words(&give(&mut state, command("submit", later), later)), "find(0,1)");
    let effects = state.slots_found(SlotsFound::default(), later);
    assert_eq!(words(&effects), "commit(submit)");
    assert_eq!(words(&state.stranded_read(missing(), later)), "");
    let effects = written(&mut state, batch(&effects), later);
    assert_eq!(words(&effects), "accepted notify enqueue commit(revoke)");
}

#[test]
fn the_bus_is_asked_for_slots_once_at_a_time() {
    let now = Instant::now();
    let mut state = with_job("running", now);
    let later = |times: u32| now + NodeTimeouts::DEFAULT.stranded * times;
    asks_for_slots(&mut state, later(1));
    assert_eq!(words(&state.flush(later(2))), "read");
    assert_eq!(words(&state.attempts_read(Err(Unread), later(2))), "");
    assert_eq!(words(&state.flush(later(3))), "read");
    let (attempt, running) = (Attempt::new(1), State::Running);
    let under_way = vec![UnderWay { job: job(1), attempt, state: running }];
    let effects = state.attempts_read(Ok(under_way), later(3));
    assert!(matches!(&effects[..], [Effect::Read(Read::Coming { .. })]), "{}", words(&effects));
    assert_eq!(words(&state.coming_read(Ok(Coming::default()), later(3))), "");
    assert_eq!(words(&state.stranded_read(Vec::new(), later(3))), "");
    asks_for_slots(&mut state, later(4));
}

#[test]
fn what_the_bus_says_to_an_owner_that_has_read_everything_again_since_is_nobodys() {
    let now = Instant::now();
    let mut state = with_job("running", now);
    let later = now + NodeTimeouts::DEFAULT.stranded;
    asks_for_slots(&mut state, later);
    give(&mut state, command("submit", later), later);
    let effects = state.slots_found(SlotsFound::default(), later);
    let failed = state.commit_failed(batch(&effects));
    assert_eq!(words(&failed), "refused(OutcomeUnknown) dequeue_all anew");
    let mut running = live(1, OnRecovery::Run, Some("n"));
    running.newest.state = State::Running;
    let snapshot = Snapshot { in_flight: vec![running], ..Snapshot::default() };
    assert_eq!(words(&state.reloaded(Token::new(2), snapshot, later)), "");
    assert_eq!(words(&state.stranded_read(missing(), later)), "");
    assert_eq!(words(&state.flush(later)), "", "the attempt goes on");
    asks_for_slots(&mut state, later + NodeTimeouts::DEFAULT.stranded);
}
