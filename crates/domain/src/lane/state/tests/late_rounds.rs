//! Attempts whose time is over while the news of them waits behind the commands of a round, or is not read yet.

use super::*;
use crate::lane::limits::{ROUND_COMMANDS_MAX, TIME_UP_LATE, TIME_UP_LATE_LOOK_AGAIN, TIME_UP_LOOK_AGAIN};

/// A round's fill of commands that lead to nothing, and then this one.
fn behind_a_round(state: &mut LaneState<Numbered>, name: &str, now: Instant) {
    state.reread_at = now + Duration::from_secs(3_600);
    for _ in 0..ROUND_COMMANDS_MAX {
        state.apply(Command::SlotUnavailable(job(99)), now);
    }
    state.apply(command(name, now), now);
}

#[test]
fn an_attempt_of_which_there_is_news_behind_a_full_round_is_not_taken_back() {
    let now = Instant::now();
    let (ack, run) = (NodeTimeouts::DEFAULT.ack, Duration::from_secs(60));
    for (phase, length, news, expected) in [
        ("dispatched", ack, "acknowledged", ""),
        ("dispatched", ack, "complete", "find(1,0)"),
        ("dispatched", ack, "finished", "freed dequeue"),
        ("running", run, "complete", "find(1,0)"),
        ("running", run, "failed", "freed"),
    ] {
        let mut state = with_job(phase, now);
        behind_a_round(&mut state, news, now);
        assert_eq!(words(&state.flush(now + length)), expected, "{phase}: {news}");
    }
    let mut state = taken_over(OnRecovery::Hold, now);
    behind_a_round(&mut state, "acknowledged", now);
    assert_eq!(words(&state.flush(now + ack)), "", "nor is its slot given back");
}

#[test]
fn an_attempt_of_which_the_news_says_nothing_is_taken_back_soon_after() {
    let now = Instant::now();
    let mut state = with_job("dispatched", now);
    behind_a_round(&mut state, "connection lost", now);
    let late = now + NodeTimeouts::DEFAULT.ack;
    assert_eq!(words(&state.flush(late)), "");
    assert_eq!(words(&state.flush(late + TIME_UP_LOOK_AGAIN)), "commit(revoke)");
}

/// The process stood still, and the lane is looked at before the sockets are.
#[test]
fn an_attempt_that_is_looked_at_much_too_late_is_taken_back_a_moment_later_unless_there_is_news() {
    let now = Instant::now();
    let (ack, run) = (NodeTimeouts::DEFAULT.ack, Duration::from_secs(60));
    for (phase, length, news) in [("dispatched", ack, "acknowledged"), ("running", run, "finished")] {
        let late = now + length + TIME_UP_LATE;
        let again = late + TIME_UP_LATE_LOOK_AGAIN;
        let stood_still = || {
            let mut state = with_job(phase, now);
            state.reread_at = now + Duration::from_secs(3_600);
            assert_eq!(words(&state.flush(late)), "", "{phase}");
            state
        };
        assert_eq!(words(&stood_still().flush(again - Duration::from_millis(1))), "", "{phase}");
        assert_eq!(words(&stood_still().flush(again)), "commit(revoke)", "{phase}");
        assert_eq!(words(&stood_still().flush(again + TIME_UP_LATE)), "commit(revoke)", "{phase}: once");
        let mut state = stood_still();
        give(&mut state, command(news, late), late);
        assert_eq!(words(&state.flush(again)), "", "{phase}: {news}");
    }
}
