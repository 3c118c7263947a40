//! What notices tell of attempts: for how long their jobs were due, and why they were taken back.

use super::*;

fn waited(effects: &Effects) -> Option<Option<Duration>> {
    effects.iter().find_map(|effect| match effect {
        Effect::Notify(JobNotice::Dispatched(.., waited)) => Some(*waited),
        _ => None,
    })
}

#[test]
fn a_dispatch_tells_for_how_long_its_job_was_due_by_the_databases_clock() {
    let now = Instant::now();
    let mut state = with_job("waiting", now);
    let reserved = Command::SlotReserved(job(1), Attempt::new(1), slot("n"));
    let effects = give(&mut state, reserved, now);
    let at = AT.plus_ms(1_500);
    let effects = state.committed(batch(&effects), at, &[JobVerdict::Written], now);
    assert_eq!(waited(&effects), Some(Some(Duration::from_millis(1_500))));
    // With a slot at once it is dispatched by the commit that accepts it.
    let mut state = loaded(Snapshot::default(), now);
    let effects = give(&mut state, Command::Submit(vec![submission(2, Due::Now, None, now)]), now);
    assert_eq!(words(&effects), "find(0,1)");
    let reserved = HashMap::from([(job(2), slot("n"))]);
    let effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
    let effects = written(&mut state, batch(&effects), now);
    assert_eq!(waited(&effects), Some(Some(Duration::ZERO)));
}

#[test]
fn an_attempt_after_one_that_its_node_says_failed_tells_for_how_long_it_was_due() {
    let start = Instant::now();
    // An owner that has begun no attempt does not know the database's time.
    for (mut state, expected) in [
        (with_job("running", start), Some(Duration::from_millis(995))),
        (taken_over(OnRecovery::Run, start), None),
    ] {
        let second = Duration::from_secs(1);
        let effects = give(&mut state, command("failed", start + second), start + second);
        assert_eq!(words(&effects), "freed");
        let due = start + second + Duration::from_millis(5);
        assert_eq!(words(&state.flush(due)), "enqueue");
        let reserved = Command::SlotReserved(job(1), Attempt::new(2), slot("m"));
        let effects = give(&mut state, reserved, due);
        let effects = state.committed(batch(&effects), AT.plus_ms(2_000), &[JobVerdict::Written], due);
        assert_eq!(waited(&effects), Some(expected));
    }
}

#[test]
fn the_end_of_a_job_says_why_its_last_attempt_was_taken_back() {
    let now = Instant::now();
    for (name, expected) in [("unlisted", Some(Revoked::Unlisted)), ("cancel", None)] {
        let mut state = loaded(Snapshot::default(), now);
        let mut only = submission(1, Due::Now, None, now);
        only.submission.spec.max_attempts = 1;
        give(&mut state, Command::Submit(vec![only]), now);
        let reserved = HashMap::from([(job(1), slot("n"))]);
        let effects = state.slots_found(SlotsFound { passed: Vec::new(), reserved }, now);
        written(&mut state, batch(&effects), now);
        let effects = give(&mut state, command(name, now), now);
        let effects = written(&mut state, batch(&effects), now);
        let why = effects.iter().find_map(|effect| match effect {
            Effect::Notify(JobNotice::Ended(.., why)) => Some(*why),
            _ => None,
        });
        assert_eq!(why, Some(expected), "{name}");
    }
}
