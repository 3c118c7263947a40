//! How a task ends that has nothing left to do, or no room for what it does; and what it holds until nothing of it goes on.

use std::num::{NonZeroU64, NonZeroU128};

use super::*;
use crate::limits::CHECKPOINTS_MAX;

/// The first stages that a rig's tasks have.
fn first(count: usize) -> Arc<[StageSpec]> {
    (0..count).map(|n| StageSpec::new(format!("stage-{n}"), n.to_string())).collect()
}

#[test]
fn a_corrected_definition_that_ends_at_the_checkpoint_has_succeeded() {
    let mut rig = Rig::new(2, 2, |spec| (spec.max_concurrency, spec.on_failure) = (1, OnFailure::Continue));
    rig.must(Command::Start);
    rig.complete(0);
    rig.fail(0);
    let failed = rig.task(0).waits_for.unwrap();
    // The other one has its place meanwhile.
    assert_eq!(rig.status(1), TaskStatus::Running);
    rig.retry(0, |retry| retry.stages = Some(first(1))).unwrap();
    rig.must(Command::OlderEnded { task: id(0), job: failed });
    assert_eq!(rig.status(0), TaskStatus::Pending);
    rig.complete(1);
    rig.complete(1);
    assert_eq!((rig.status(0), rig.stages(0)), (TaskStatus::Succeeded, vec![StageStatus::Skipped]));
    assert!(rig.task(0).lock.is_none() && rig.state.status() == PlanStatus::Succeeded);
}

#[test]
fn a_task_that_ends_at_its_beginning_makes_room_for_those_before_it() {
    let mut rig = Rig::new(2, 2, |spec| (spec.max_concurrency, spec.on_failure) = (1, OnFailure::Continue));
    rig.must(Command::Start);
    rig.must(Command::PauseTask(id(0)));
    rig.complete(0);
    rig.complete(1);
    rig.fail(1);
    let job = rig.task(1).waits_for.unwrap();
    rig.retry(1, |retry| retry.stages = Some(first(1))).unwrap();
    rig.must(Command::ResumeTask(id(0)));
    assert_eq!((rig.status(0), rig.status(1)), (TaskStatus::Pending, TaskStatus::Running));
    // In the same step: no other follows by itself.
    let mut jobs = rig.jobs;
    let ended = Command::OlderEnded { task: id(1), job };
    let step = rig.state.apply(&ended, rig.now, &mut || job_after(&mut jobs)).unwrap();
    let statuses: Vec<_> = step.next.tasks.iter().map(|task| task.status).collect();
    assert_eq!(statuses, [TaskStatus::Running, TaskStatus::Succeeded]);
}

#[test]
fn a_retry_whose_checkpoints_have_no_room_is_refused() {
    let mut rig = Rig::started(3);
    rig.complete(0);
    rig.fail(0);
    Arc::make_mut(&mut rig.state.tasks[0]).last_checkpoint = CHECKPOINTS_MAX - 1;
    let why = format!(
        "the task would have {} checkpoints after this run; it may have {CHECKPOINTS_MAX}",
        CHECKPOINTS_MAX + 1
    );
    assert_eq!(rig.retry(0, |_| {}), Err(Refused::Status(why)));
    rig.retry(0, |retry| retry.stages = Some(first(2))).unwrap();
}

#[test]
fn a_lock_is_renewed_while_an_attempt_of_a_task_that_is_over_may_go_on() {
    let mut rig = Rig::started(2);
    rig.must(Command::CancelTask(id(0)));
    let (_, job) = rig.task(0).in_flight().expect("its node has not ended it");
    rig.end(0, StageEnd::Ended(Outcome::Cancelled, "cancelled".into()));
    assert_eq!((rig.status(0), rig.task(0).waits_for), (TaskStatus::Cancelled, Some(job)));
    rig.must(Command::RenewLocks);
    assert!(rig.writes[0].renews, "{:?}", rig.writes);
    rig.must(Command::OlderEnded { task: id(0), job });
    rig.must(Command::RenewLocks);
    assert!(!rig.writes[0].renews && rig.task(0).lock.is_none());
}

#[test]
fn a_lock_that_was_taken_since_is_not_lost_with_the_one_before() {
    let mut rig = Rig::started(3);
    let first = rig.task(0).lock;
    rig.must(Command::PauseTask(id(0)));
    rig.complete(0);
    // It was broken while nobody looked; the retry comes before the word of that.
    Arc::make_mut(&mut rig.state.tasks[0]).lock = None;
    rig.retry(0, |_| {}).unwrap();
    let taken = rig.task(0).lock;
    assert!(taken.is_some() && taken != first);
    for lost in [None, first] {
        rig.must(Command::LockLost(id(0), lost));
        assert_eq!((rig.status(0), rig.task(0).lock), (TaskStatus::Running, taken), "{lost:?} was lost");
        assert!(rig.cancelled.is_empty());
    }
    rig.must(Command::LockLost(id(0), taken));
    assert_eq!((rig.status(0), rig.task(0).lock), (TaskStatus::Interrupted, None));
}

#[test]
fn a_task_that_may_go_on_and_was_found_without_a_lock_is_interrupted() {
    let mut rig = Rig::started(3);
    rig.must(Command::PauseTask(id(0)));
    rig.complete(0);
    Arc::make_mut(&mut rig.state.tasks[0]).lock = None;
    rig.must(Command::LockLost(id(0), None));
    assert_eq!(rig.status(0), TaskStatus::Interrupted);
}

#[test]
fn a_plan_that_ended_in_time_is_not_over_its_time_when_a_task_of_it_is_retried() {
    let mut rig = Rig::new(2, 2, |_| {});
    rig.must(Command::Start);
    rig.must(Command::CancelTask(id(1)));
    rig.end(1, StageEnd::Ended(Outcome::Cancelled, "cancelled".into()));
    let cancelled = rig.task(1).waits_for.unwrap();
    rig.must(Command::OlderEnded { task: id(1), job: cancelled });
    rig.complete(0);
    rig.complete(0);
    assert_eq!(rig.state.status(), PlanStatus::Succeeded);
    rig.now = START.plus_ms(rig.state.spec.timeout_ms);
    rig.retry(1, |_| {}).unwrap();
    assert!(rig.writes[0].plan, "every later owner knows it");
    assert_eq!((rig.begun(), rig.state.status()), (vec![(1, 0)], PlanStatus::Running));
    // Only the run has a time.
    let run_ends = rig.now.plus_ms(rig.task(1).spec.timeout_ms);
    assert_eq!((rig.state.is_over_time, rig.state.wake_at()), (false, Some(run_ends)));
    // In a plan that was not over, the time goes on.
    let mut rig = Rig::new(1, 2, |spec| spec.timeout_ms = 1_000);
    rig.must(Command::Start);
    rig.fail(0);
    rig.now = START.plus_ms(1_000);
    rig.retry(0, |_| {}).unwrap();
    assert!(rig.state.is_over_time);
}

#[test]
fn what_the_time_ends_is_not_the_act_of_the_person_who_asked_for_the_step() {
    let mut rig = Rig::new(2, 2, |spec| (spec.max_concurrency, spec.timeout_ms) = (1, 1_000));
    rig.must(Command::Start);
    rig.now = START.plus_ms(1_000);
    rig.must(Command::PauseTask(id(1)));
    let events = rig.writes.iter().flat_map(|writes| &writes.events);
    let acts: Vec<_> = events.map(|event| (event.kind, event.after, event.is_own)).collect();
    let asked_for = [(EventKind::Intent, Some("pause"), false), (EventKind::Status, Some("PAUSED"), false)];
    let own = [(EventKind::OverTime, None, true), (EventKind::Status, Some("ATTENTION"), true)];
    assert_eq!(acts, [asked_for, own].concat());
    // A run's time, and what its end does to the others.
    let mut rig = Rig::new(2, 2, |spec| spec.on_failure = OnFailure::Pause);
    rig.must(Command::Start);
    rig.must(Command::PauseTask(id(1)));
    rig.now = START.plus_ms(rig.task(0).spec.timeout_ms);
    rig.must(Command::ResumeTask(id(1)));
    let events = rig.writes.iter().flat_map(|writes| &writes.events);
    let is_own: Vec<_> = events.map(|event| (event.kind, event.is_own)).collect();
    let over = (EventKind::OverTime, true);
    assert_eq!(is_own, [(EventKind::Intent, false), over, over]);
}

#[test]
fn the_status_that_a_person_gave_a_plan_stands_before_the_one_that_the_time_gives() {
    let mut rig = Rig::new(1, 2, |spec| spec.timeout_ms = 1_000);
    rig.must(Command::Start);
    rig.must(Command::Pause);
    rig.complete(0);
    assert_eq!((rig.status(0), rig.state.status()), (TaskStatus::Paused, PlanStatus::Paused));
    rig.now = START.plus_ms(1_000);
    rig.must(Command::Resume);
    let events = rig.writes[0].events.iter().filter(|event| event.task.is_none());
    let acts: Vec<_> = events.map(|event| (event.kind, event.before, event.after, event.is_own)).collect();
    let expected = [
        (EventKind::Intent, Some("pause"), Some("run"), false),
        (EventKind::Status, Some("PAUSED"), Some("RUNNING"), false),
        (EventKind::OverTime, None, None, true),
        (EventKind::Status, Some("RUNNING"), Some("ATTENTION"), true),
    ];
    assert_eq!(acts, expected);
}

#[test]
fn stages_continue_the_span_that_started_their_plan_or_has_retried_their_task() {
    let span = |trace| TraceParent::new(trace, NonZeroU64::MIN, 1);
    let [first, second] = [1, 2].map(|trace| span(NonZeroU128::new(trace).unwrap()));
    let mut rig = Rig::new(2, 1, |_| {});
    let follow = |rig: &mut Rig, command: &Command, span| {
        let mut step = rig.state.apply(command, START, &mut || unreachable!()).unwrap();
        step.continue_span(command, span);
        rig.commit(step, command);
    };
    follow(&mut rig, &Command::Start, first);
    rig.must(Command::Advance);
    // It was started before.
    follow(&mut rig, &Command::Start, second);
    assert_eq!(rig.state.traceparent, Some(first));
    rig.fail(0);
    follow(&mut rig, &Command::Retry(id(0), retry()), second);
    let of_tasks = [rig.task(0).traceparent, rig.task(1).traceparent];
    assert_eq!((rig.state.traceparent, of_tasks), (Some(first), [Some(second), None]));
}
