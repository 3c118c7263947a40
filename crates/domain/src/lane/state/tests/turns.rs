//! Callers whose submissions wait together.

use std::ops::RangeInclusive;

use super::sessions::new_jobs;
use super::*;
use crate::lane::limits::ROUND_COMMANDS_MAX;
use crate::lane::messages::Submitter;

/// A round of 8 MiB has eight jobs with such payloads.
const LARGE: usize = 1 << 20;

/// A lane that writes each of its rounds in one batch.
fn of_whole_rounds(now: Instant) -> LaneState<Numbered> {
    let lane = LaneId::parse("instance:i").unwrap();
    let settings = LaneSettings { batch_rows_max: usize::MAX, ..settings(1) };
    let mut state = LaneState::new(lane, Token::new(1), false, settings, now);
    state.reloaded(Token::new(1), Snapshot::default(), now);
    state
}

/// The round is committed, and the next one begins.
fn next_round(state: &mut LaneState<Numbered>, effects: &Effects, now: Instant) -> Effects {
    state.committed(batch(effects), AT, &[JobVerdict::Written; ROUND_NEW_JOBS_MAX], now)
}

/// Submissions of one caller, with payloads of so many bytes.
fn by(caller: u64, numbers: RangeInclusive<u64>, bytes: usize, now: Instant) -> Command<Numbered> {
    let payload: Arc<str> = "7".repeat(bytes).into();
    let one = |number| {
        let mut pending = submission(number, Due::InMs(10_000), None, now);
        pending.submission.spec.payload = Arc::clone(&payload);
        pending.submitter = Some(Submitter(caller));
        pending
    };
    Command::Submit(numbers.map(one).collect())
}

/// The numbers of the new jobs that are to be committed, in their order.
fn taken_in(effects: &Effects) -> Vec<u128> {
    new_jobs(effects).into_iter().map(|new| new.id.as_u128()).collect()
}

#[test]
fn a_job_of_another_caller_is_in_the_next_round_however_much_one_caller_has_waiting() {
    let now = Instant::now();
    let mut state = of_whole_rounds(now);
    for first in (1..64).step_by(8) {
        state.apply(by(1, first..=first + 7, LARGE, now), now);
    }
    let effects = state.flush(now);
    assert_eq!(taken_in(&effects), [1, 2, 3, 4, 5, 6, 7, 8]);
    state.apply(by(2, 65..=65, 1, now), now);
    let effects = next_round(&mut state, &effects, now);
    assert_eq!(taken_in(&effects), [65, 9, 10, 11, 12, 13, 14, 15, 16]);
}

#[test]
fn a_caller_has_its_turn_however_many_commands_of_another_came_before() {
    let now = Instant::now();
    let mut state = of_whole_rounds(now);
    let last = ROUND_COMMANDS_MAX as u64 + 2;
    for number in 1..last {
        state.apply(by(1, number..=number, 1, now), now);
    }
    state.apply(by(2, last..=last, 1, now), now);
    assert_eq!(taken_in(&state.flush(now))[..3], [1, u128::from(last), 2]);
}

#[test]
fn a_large_job_takes_as_many_turns_as_small_ones_fit_into_its_place() {
    let now = Instant::now();
    let mut state = of_whole_rounds(now);
    state.apply(by(1, 1..=64, LARGE, now), now);
    state.apply(by(2, 65..=364, 1, now), now);
    let first = state.flush(now);
    let mut taken = taken_in(&first);
    taken.extend(taken_in(&next_round(&mut state, &first, now)));
    let large = taken.iter().filter(|job| **job <= 64).count();
    // Each round is full of bytes.
    assert_eq!((large, taken.len() - large), (16, 300));
}

#[test]
fn a_round_begins_with_the_callers_that_had_no_turn_in_the_last_one() {
    let now = Instant::now();
    let mut state = of_whole_rounds(now);
    for caller in 1..=12 {
        state.apply(by(caller, 2 * caller - 1..=2 * caller, LARGE, now), now);
    }
    let effects = state.flush(now);
    assert_eq!(taken_in(&effects), [1, 3, 5, 7, 9, 11, 13, 15]);
    let effects = next_round(&mut state, &effects, now);
    assert_eq!(taken_in(&effects), [17, 19, 21, 23, 2, 4, 6, 8]);
}

#[test]
fn the_jobs_of_a_session_keep_their_order_whoever_submits_them() {
    let now = Instant::now();
    for ordering in [Ordering::Strict, Ordering::Results, Ordering::Free] {
        let mut state = session(ordering, now);
        state.apply(by(1, 1..=3, 1, now), now);
        state.apply(by(2, 4..=4, 1, now), now);
        state.apply(by(1, 5..=5, 1, now), now);
        assert_eq!(taken_in(&state.flush(now)), [1, 2, 3, 4, 5], "{ordering:?}");
    }
}

#[test]
fn a_lane_that_is_told_to_stop_takes_in_the_rest_of_what_it_has_begun_of_each_caller() {
    let now = Instant::now();
    let mut state = loaded(Snapshot::default(), now);
    for (caller, numbers) in [(1, 1..=200), (2, 201..=400), (1, 401..=402), (2, 403..=404)] {
        state.apply(by(caller, numbers, 1, now), now);
    }
    let mut effects = state.flush(now);
    let stopped = state.apply(Command::Stop, now);
    assert_eq!(words(&stopped), format!("dequeue_all {}", ["refused(Fenced)"; 4].join(" ")));
    let mut all = taken_in(&effects);
    assert_eq!(all.len(), ROUND_NEW_JOBS_MAX);
    while !matches!(effects.last(), Some(Effect::Stop)) {
        effects = next_round(&mut state, &effects, now);
        all.extend(taken_in(&effects));
    }
    all.sort_unstable();
    assert!(all.into_iter().eq(1..=400));
}
