//! Jobs that were written otherwise than was known, or by another, and are read again.

use super::*;
use crate::job::WaitingGroup;
use crate::lane::limits::LOOKUPS_AT_ONCE;
use crate::lane::messages::PageId;

/// Its lane has another owner, or is read again. Its node may have ended it and have had nobody to say so to: it has as long as
/// a node may be away, and no longer than a whole run.
#[test]
fn a_run_does_not_begin_again_when_its_job_is_read() {
    let now = Instant::now();
    for (timeout_ms, running_for_ms, left_ms) in [
        (60_000, 0, 60_000),
        (60_000, 25_000, 35_000),
        (60_000, 45_000, 30_000),
        (60_000, 9_000_000, 30_000),
        (5_000, 4_000, 5_000),
    ] {
        let running = || {
            let mut job = live(1, OnRecovery::Run, Some("n"));
            job.newest.state = State::Running;
            (job.spec.timeout_ms, job.running_for_ms) = (timeout_ms, running_for_ms);
            job
        };
        let taken_over = loaded(Snapshot { in_flight: vec![running()], ..Snapshot::default() }, now);
        let mut looked_at = with_job("running", now);
        assert_eq!(words(&give(&mut looked_at, Command::Written(vec![job(1)]), now)), "read");
        assert_eq!(words(&looked_at.jobs_read(&[job(1)], Ok(vec![running()]), now)), "dequeue");
        for mut state in [taken_over, looked_at] {
            state.reread_at = now + Duration::from_secs(3_600);
            let ends = now + Duration::from_millis(left_ms);
            assert_eq!(words(&state.flush(ends - Duration::from_millis(1))), "", "{running_for_ms}");
            assert_eq!(words(&state.flush(ends)), "commit(revoke)", "{running_for_ms}");
        }
    }
}

#[test]
fn a_write_that_found_its_job_otherwise_has_it_read_again() {
    let now = Instant::now();
    let mut state = with_job("waiting", now);
    let effects = give(&mut state, command("slot", now), now);
    let effects = state.committed(batch(&effects), AT, &[JobVerdict::Stale], now);
    assert_eq!(words(&effects), "release read");
    assert_eq!(words(&state.jobs_read(&[job(1)], Ok(vec![]), now)), "dequeue", "it is finished");
    let mut state = with_job("waiting", now);
    let effects = give(&mut state, command("slot", now), now);
    state.committed(batch(&effects), AT, &[JobVerdict::Stale], now);
    assert_eq!(words(&state.jobs_read(&[job(1)], Err(Unread), now)), "", "it is looked at later");
}

/// Nobody knows what became of it. It keeps the time that it has.
#[test]
fn a_lookup_that_fails_shortens_no_time_out_and_no_delay() {
    let now = Instant::now();
    for (phase, length, then) in [
        ("running", Duration::from_secs(60), "commit(revoke)"),
        ("delayed", Duration::from_secs(10), "enqueue"),
    ] {
        let mut state = with_job(phase, now);
        state.reread_at = now + Duration::from_secs(3_600);
        assert_eq!(words(&give(&mut state, Command::Written(vec![job(1)]), now)), "read");
        assert_eq!(words(&state.jobs_read(&[job(1)], Err(Unread), now)), "");
        let before = now + length - Duration::from_millis(1);
        assert_eq!(words(&state.flush(before)), "", "{phase}");
        assert_eq!(words(&state.flush(now + length)), then, "{phase}");
    }
}

#[test]
fn a_job_that_another_has_written_in_the_lane_is_read_and_goes_on_its_way() {
    let now = Instant::now();
    let mut state = own_lane(now);
    assert_eq!(words(&give(&mut state, command("written by another", now), now)), "", "it still loads");
    assert_eq!(words(&state.reloaded(Token::new(2), Snapshot::default(), now)), "read");
    let found = live(2, OnRecovery::Hold, None);
    assert_eq!(words(&state.jobs_read(&[job(2)], Ok(vec![found]), now)), "dequeue enqueue");
}

#[test]
fn jobs_that_are_to_be_looked_at_are_read_together_and_each_once() {
    let now = Instant::now();
    let mut state = own_lane(now);
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
fn a_failure_that_is_told_twice_leaves_its_job_waiting() {
    let now = Instant::now();
    let mut state = with_job("running", now);
    assert_eq!(words(&give(&mut state, command("failed", now), now)), "freed");
    assert_eq!(words(&give(&mut state, command("failed", now), now)), "");
    let due = now + Duration::from_millis(5);
    assert_eq!(words(&state.flush(due)), "enqueue");
}

/// As where the pause after that attempt was too long for the job to stay in memory, or its lane has another owner.
#[test]
fn a_job_that_is_read_avoids_the_node_of_its_last_attempt() {
    let now = Instant::now();
    let tried = |due_at| LiveJob { last_node: Some(node("n")), due_at, ..live(1, OnRecovery::Run, None) };
    let avoided = |effects: &Effects| {
        let mut enqueued = effects.iter().filter_map(|effect| match effect {
            Effect::Enqueue(enqueue) => Some(enqueue.avoid.clone()),
            _ => None,
        });
        enqueued.next().unwrap_or_else(|| panic!("it is not enqueued: {}", words(effects)))
    };
    let groups = vec![WaitingGroup::default()];
    let mut state = loaded(Snapshot { groups, ..Snapshot::default() }, now);
    let effects = state.waiting_read(PageId(1), Ok((vec![tried(None)], true)), now);
    assert_eq!(avoided(&effects), Some(node("n")));
    let coming = Coming { jobs: vec![(tried(Some(AT)), 0)], is_cut: false };
    let snapshot = Snapshot { coming, ..Snapshot::default() };
    let effects = own_lane(now).reloaded(Token::new(1), snapshot, now);
    assert_eq!(avoided(&effects), Some(node("n")));
}
