//! What an owner still takes back after `Stop`: attempts that do not count, as their nodes' instance says.

use super::*;
use crate::job::UnderWay;

fn revoked(why: Revoked) -> Command<Numbered> {
    Command::Attempt(job(1), Attempt::new(1), AttemptEvent::Revoked(why, String::new()))
}

/// Why the attempts of a batch are taken back, as it is written.
fn reasons(effects: &Effects) -> Vec<Revoked> {
    let batches = effects.iter().filter_map(|effect| match effect {
        Effect::Commit(batch) => Some(batch),
        _ => None,
    });
    let writes = batches.flat_map(|batch| batch.writes.iter());
    let reasons = writes.filter_map(|write| match write.change {
        Change::Revoke { why, .. } => Some(why),
        _ => None,
    });
    reasons.collect()
}

#[test]
fn an_attempt_that_did_not_reach_its_node_is_taken_back_by_an_owner_that_stops() {
    let now = Instant::now();
    let taken_back = |state: &mut LaneState<Numbered>, effects: &Effects| {
        assert_eq!(reasons(effects), [Revoked::Undeliverable]);
        assert_eq!(words(&written(state, batch(effects), now)), "withdraw notify stop");
    };
    // The owner hears of it before `Stop`, while a commit is under way.
    let mut state = with_job("dispatched", now);
    let other = give(&mut state, Command::Cancel(job(9), Class::default(), 9), now);
    assert_eq!(words(&state.apply(revoked(Revoked::Undeliverable), now)), "");
    assert_eq!(words(&state.apply(Command::Stop, now)), "dequeue_all");
    let effects = written(&mut state, batch(&other), now);
    assert_eq!(words(&effects), "dequeue notify cancelled commit(revoke)");
    taken_back(&mut state, &effects);
    // It hears of it before it could end.
    let mut state = with_job("dispatched", now);
    assert_eq!(words(&give(&mut state, Command::Stop, now)), "dequeue_all stop");
    let effects = give(&mut state, revoked(Revoked::Undeliverable), now);
    assert_eq!(words(&effects), "commit(revoke)");
    taken_back(&mut state, &effects);
    // It was about to send it.
    let mut state = with_job("waiting", now);
    let effects = give(&mut state, command("slot", now), now);
    assert_eq!(words(&state.apply(Command::Stop, now)), "dequeue_all");
    assert_eq!(words(&written(&mut state, batch(&effects), now)), "notify dequeue dispatch stop");
    let effects = give(&mut state, revoked(Revoked::Undeliverable), now);
    assert_eq!(words(&effects), "commit(revoke)");
    taken_back(&mut state, &effects);
}

#[test]
fn what_may_have_run_is_left_to_the_next_owner_by_one_that_stops() {
    let now = Instant::now();
    for (phase, why) in [
        ("dispatched", Revoked::NodeLost),
        ("running", Revoked::Unlisted),
        ("running", Revoked::TimedOut),
        // The node has said that it has it.
        ("running", Revoked::Undeliverable),
    ] {
        let mut state = with_job(phase, now);
        assert_eq!(words(&give(&mut state, Command::Stop, now)), "dequeue_all stop");
        assert_eq!(words(&give(&mut state, revoked(why), now)), "stop", "{phase} {why:?}");
    }
}

#[test]
fn an_owner_that_stops_follows_no_look_at_its_attempts() {
    let now = Instant::now();
    let mut state = with_job("running", now);
    let later = now + NodeTimeouts::DEFAULT.stranded;
    assert_eq!(words(&state.flush(later)), "read");
    assert_eq!(words(&state.apply(Command::Stop, later)), "dequeue_all");
    let (attempt, running) = (Attempt::new(1), State::Running);
    let under_way = vec![UnderWay { job: job(1), attempt, state: running }];
    assert_eq!(words(&state.attempts_read(Ok(under_way), later)), "read stop");
    let missing = vec![(job(1), attempt, running, false)];
    assert_eq!(words(&state.stranded_read(missing, later)), "stop", "the next owner looks itself");
}
