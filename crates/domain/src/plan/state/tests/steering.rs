//! What people decide counts: it is not undone by an earlier failure, by the time of a pause, or by silence.

use super::*;
use crate::limits::{PLAN_CHANGES_MAX, TASK_CHANGES_MAX};
use crate::plan::status::OnUnknown;

#[test]
fn an_unknown_stage_stays_unknown_until_its_node_or_a_person_says_what_it_did() {
    let lost = [
        StageEnd::Revoked(Outcome::TimedOut, "its node did not end it in time".into()),
        StageEnd::Revoked(Outcome::Failed, "its node was lost".into()),
    ];
    for end in lost {
        let mut rig = Rig::started(2);
        rig.must(Command::TakenOver);
        rig.end(0, end.clone());
        assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Interrupted, StageStatus::Unknown));
        assert_eq!(rig.retry(0, |_| {}), Err(Refused::StageUnknown(0)), "nobody knows what it did");
        // Nothing of it is under way any more: it ends with the word of a person, who need not know what it did.
        rig.must(Command::CancelTask(id(0)));
        rig.end(0, end.clone());
        assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Cancelled, StageStatus::Unknown));
        assert_eq!(rig.retry(0, |_| {}), Err(Refused::StageUnknown(0)), "nobody knows it yet");
        // While its owner lives, it was seen through, and its end counts.
        let mut rig = Rig::started(2);
        rig.end(0, end);
        assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Failed, StageStatus::Failed));
    }
    // The node itself knows.
    let mut rig = Rig::started(2);
    rig.must(Command::TakenOver);
    rig.fail(0);
    assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Failed, StageStatus::Failed));
}

#[test]
fn the_job_of_an_unknown_stage_is_dismissed_by_the_word_of_a_person_about_it() {
    // Its node was lost after the takeover, and no attempt was left.
    let lost = || {
        let mut rig = Rig::started(2);
        rig.must(Command::TakenOver);
        let (_, job) = rig.task(0).in_flight().unwrap();
        rig.end(0, StageEnd::Revoked(Outcome::Failed, "its node was lost".into()));
        assert!(rig.writes.iter().all(|writes| writes.superseded.is_empty()), "nobody has seen to it yet");
        (rig, job)
    };
    for resolution in [Resolution::Done(None), Resolution::NotDone] {
        let (mut rig, job) = lost();
        rig.must(Command::Resolve { task: id(0), stage: 0, job: None, resolution });
        assert_eq!(rig.writes[0].superseded, [job]);
    }
    // Of a stage that may be rerun the retry is that word.
    let (mut rig, job) = lost();
    let task = Arc::make_mut(&mut rig.state.tasks[0]);
    let rerun = |stage: &StageSpec| StageSpec { on_unknown: OnUnknown::Rerun, ..stage.clone() };
    let stages = task.spec.stages.iter().map(rerun).collect();
    task.spec = Arc::new(TaskSpec { stages, ..(*task.spec).clone() });
    rig.retry(0, |_| {}).unwrap();
    assert_eq!(rig.writes[0].superseded, [job]);
}

#[test]
fn what_has_changed_as_often_as_it_may_is_not_paused_and_can_be_resumed_and_cancelled() {
    let mut rig = Rig::new(2, 2, |spec| spec.max_concurrency = 1);
    rig.must(Command::Start);
    Arc::make_mut(&mut rig.state.tasks[1]).version = TASK_CHANGES_MAX - 1;
    for command in [Command::PauseTask(id(1)), Command::PauseTask(id(1)), Command::ResumeTask(id(1))] {
        rig.must(command);
    }
    assert_eq!(rig.apply(Command::PauseTask(id(1))), Err(Refused::TooMany("changes", TASK_CHANGES_MAX)));
    let said = Refused::TooMany("changes", TASK_CHANGES_MAX).to_string();
    assert_eq!(said, "the task has the 10000 changes that it may have");
    // It has had no turn: the plan pauses without it.
    rig.must(Command::Pause);
    rig.state.version = PLAN_CHANGES_MAX;
    rig.must(Command::Pause);
    rig.must(Command::Resume);
    assert!(matches!(rig.apply(Command::Pause), Err(Refused::Status(_))));
    rig.state.version = 1;
    Arc::make_mut(&mut rig.state.tasks[0]).version = TASK_CHANGES_MAX;
    assert_eq!(rig.apply(Command::PauseTask(id(0))), Err(Refused::TooMany("changes", TASK_CHANGES_MAX)));
    rig.must(Command::Pause);
    assert_eq!((rig.task(0).intent, rig.status(0)), (Intent::Run, TaskStatus::Running));
    rig.complete(0);
    assert_eq!((rig.status(0), rig.state.status()), (TaskStatus::Pending, PlanStatus::Paused));
    assert_eq!(rig.begun(), []);
    rig.must(Command::Resume);
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Running, vec![(0, 1)]));
    rig.must(Command::CancelTask(id(1)));
    rig.must(Command::Cancel);
}

#[test]
fn a_task_that_has_changed_as_often_as_it_may_waits_for_its_plan_while_an_older_attempt_is_under_way() {
    let mut rig = Rig::started(2);
    rig.fail(0);
    let older = rig.task(0).waits_for.unwrap();
    rig.retry(0, |_| {}).unwrap();
    assert_eq!((rig.status(0), rig.task(0).in_flight()), (TaskStatus::Running, None));
    Arc::make_mut(&mut rig.state.tasks[0]).version = TASK_CHANGES_MAX;
    rig.must(Command::Pause);
    rig.now = START.plus_ms(rig.task(0).spec.timeout_ms);
    rig.must(Command::OlderEnded { task: id(0), job: older });
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Pending, vec![]), "its time does not pass");
    rig.must(Command::Resume);
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Running, vec![(0, 0)]));
}

#[test]
fn a_cancellation_of_one_run_leaves_the_next_one_alone() {
    let mut rig = Rig::started(2);
    assert_eq!(rig.apply(Command::CancelRun(id(0), 2)), Err(Refused::NotAsSeen));
    rig.fail(0);
    for _ in 0..2 {
        rig.must(Command::CancelRun(id(0), 1));
        assert_eq!((rig.status(0), rig.task(0).run), (TaskStatus::Cancelled, 1));
    }
    rig.retry(0, |_| {}).unwrap();
    assert_eq!(rig.apply(Command::CancelRun(id(0), 1)), Err(Refused::NotAsSeen), "its answer was lost");
    assert_eq!((rig.task(0).intent, rig.task(0).run), (Intent::Run, 2));
    rig.must(Command::CancelRun(id(0), 2));
    assert_eq!(rig.task(0).intent, Intent::Cancel);
    assert_eq!(rig.apply(Command::CancelRun(id(7), 1)), Err(Refused::UnknownTask));
}

#[test]
fn the_time_of_a_run_begins_again_when_it_is_resumed() {
    let mut rig = Rig::started(3);
    let length = rig.task(0).spec.timeout_ms;
    rig.now = START.plus_ms(length - 1);
    rig.must(Command::PauseTask(id(0)));
    rig.complete(0);
    assert_eq!(
        (rig.status(0), rig.state.wake_at()),
        (TaskStatus::Paused, Some(START.plus_ms(rig.state.spec.timeout_ms)))
    );
    let resumed = START.plus_ms(3 * length);
    rig.now = resumed;
    rig.must(Command::ResumeTask(id(0)));
    assert_eq!((rig.begun(), rig.cancelled.clone()), (vec![(0, 1)], vec![]));
    rig.now = resumed.plus_ms(length - 1);
    rig.must(Command::Advance);
    assert!(rig.cancelled.is_empty(), "its time is not over");
    rig.now = resumed.plus_ms(length);
    rig.must(Command::Advance);
    assert_eq!(rig.cancelled.len(), 1);
}

#[test]
fn a_task_resumed_in_a_paused_plan_waits_for_the_plan_and_its_time_does_not_pass() {
    let mut rig = Rig::started(2);
    rig.must(Command::Pause);
    rig.must(Command::ResumeTask(id(0)));
    rig.complete(0);
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Pending, vec![]));
    rig.now = START.plus_ms(rig.task(0).spec.timeout_ms);
    rig.must(Command::Advance);
    assert_eq!((rig.status(0), rig.state.status()), (TaskStatus::Pending, PlanStatus::Paused));
    rig.must(Command::Resume);
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Running, vec![(0, 1)]));
    assert_eq!(rig.task(0).run_at, Some(rig.now));
}

#[test]
fn a_task_that_is_resumed_is_not_paused_again_by_a_failure_from_before() {
    let mut rig = Rig::new(3, 3, |spec| (spec.max_concurrency, spec.on_failure) = (3, OnFailure::Pause));
    rig.must(Command::Start);
    rig.fail(0);
    assert_eq!([rig.task(1).intent, rig.task(2).intent], [Intent::Pause; 2]);
    // While its stage is under way.
    rig.must(Command::ResumeTask(id(1)));
    assert_eq!(rig.task(1).intent, Intent::Run);
    rig.complete(1);
    assert_eq!((rig.status(1), rig.begun()), (TaskStatus::Running, vec![(1, 1)]));
    // And from its rest, for more than a stage.
    rig.complete(2);
    assert_eq!(rig.status(2), TaskStatus::Paused);
    rig.must(Command::Resume);
    assert_eq!(rig.begun(), [(2, 1)]);
    rig.complete(2);
    assert_eq!((rig.status(2), rig.begun()), (TaskStatus::Running, vec![(2, 2)]));
    // A new failure does so again, also to a task that was retried.
    rig.retry(0, |_| {}).unwrap();
    rig.fail(2);
    assert_eq!([rig.task(0).intent, rig.task(1).intent], [Intent::Pause; 2]);
}

#[test]
fn a_plan_that_runs_is_resumed_without_the_tasks_that_were_paused_alone() {
    for on_failure in [OnFailure::StopNew, OnFailure::Continue] {
        let mut rig = Rig::new(3, 2, |spec| (spec.max_concurrency, spec.on_failure) = (1, on_failure));
        rig.must(Command::Start);
        rig.must(Command::Pause);
        rig.must(Command::Resume);
        // One whose stage is under way, and one that waits for its turn.
        rig.must(Command::PauseTask(id(0)));
        rig.must(Command::PauseTask(id(1)));
        rig.must(Command::Resume);
        assert!(rig.writes.iter().all(Writes::is_empty), "it is a repetition");
        assert_eq!([rig.task(0).intent, rig.task(1).intent], [Intent::Pause; 2]);
        rig.complete(0);
        assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Paused, vec![(2, 0)]));
        // Nothing of it runs any more: it is PAUSED, and goes on as a whole.
        rig.complete(2);
        rig.complete(2);
        assert_eq!(rig.state.status(), PlanStatus::Paused);
        rig.must(Command::Resume);
        assert_eq!((rig.status(0), rig.status(1)), (TaskStatus::Running, TaskStatus::Pending));
    }
    // After a failure that paused the others, and the retry of the task that failed, the plan runs.
    let mut rig = Rig::new(2, 2, |spec| spec.on_failure = OnFailure::Pause);
    rig.must(Command::Start);
    rig.fail(0);
    rig.complete(1);
    rig.retry(0, |_| {}).unwrap();
    assert_eq!((rig.status(1), rig.state.status()), (TaskStatus::Paused, PlanStatus::Running));
    rig.must(Command::Resume);
    assert_eq!(rig.begun(), [(1, 1)]);
}

#[test]
fn a_plan_goes_on_without_the_tasks_that_wait_for_a_person() {
    let mut rig = Rig::new(3, 2, |spec| (spec.max_concurrency, spec.on_failure) = (1, OnFailure::Continue));
    rig.must(Command::Start);
    rig.must(Command::PauseTask(id(0)));
    rig.complete(0);
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Paused, vec![(1, 0)]));
    rig.must(Command::TakenOver);
    rig.must(Command::ResumeButPaused);
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Paused, vec![(2, 0)]), "nobody has approved it");
    // Which ones were paused with the plan, the state does not say: each goes on by itself.
    rig.must(Command::Pause);
    rig.complete(2);
    rig.must(Command::ResumeButPaused);
    assert_eq!((rig.status(2), rig.begun()), (TaskStatus::Paused, vec![]));
    rig.must(Command::ResumeTask(id(2)));
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Paused, vec![(2, 1)]));
}

/// A plan of three tasks with so many stages each, of which one runs at a time: the first two have failed, the third runs, and
/// the first, which is retried, waits behind it.
fn retried_behind_a_running_task(stages: usize) -> Rig {
    let mut rig =
        Rig::new(3, stages, |spec| (spec.max_concurrency, spec.on_failure) = (1, OnFailure::Continue));
    rig.must(Command::Start);
    rig.fail(0);
    rig.fail(1);
    // Nothing of them runs any more.
    for at in [0, 1] {
        let job = rig.task(at).waits_for.unwrap();
        rig.must(Command::OlderEnded { task: id(at), job });
    }
    rig.retry(0, |_| {}).unwrap();
    assert_eq!([rig.status(0), rig.status(2)], [TaskStatus::Pending, TaskStatus::Running]);
    rig
}

#[test]
fn a_retry_in_a_paused_plan_starts_that_task_alone() {
    let mut rig = retried_behind_a_running_task(2);
    rig.must(Command::Pause);
    rig.complete(2);
    assert_eq!([rig.status(0), rig.status(2)], [TaskStatus::Paused; 2]);
    rig.retry(1, |_| {}).unwrap();
    assert_eq!(rig.begun(), [(1, 0)]);
    for _ in 0..2 {
        rig.complete(1);
    }
    assert_eq!(rig.begun(), [], "the others wait until somebody resumes them");
    rig.must(Command::Resume);
    assert_eq!(rig.begun(), [(0, 0)]);
}

#[test]
fn a_task_that_cannot_be_resumed_says_what_can_be_done() {
    type Case = (fn(&mut Rig), &'static str);
    let cases: [Case; 5] = [
        (|rig| rig.complete(0), "a task that is SUCCEEDED cannot be resumed: all its stages are completed"),
        (|rig| rig.fail(0), "a task that is FAILED is retried, not resumed"),
        (|rig| rig.must(Command::TakenOver), "a task that is INTERRUPTED is retried, not resumed"),
        (
            |rig| rig.must(Command::CancelTask(id(0))),
            "the task is being cancelled; once it is CANCELLED, it can be retried",
        ),
        (
            |rig| {
                rig.must(Command::CancelTask(id(0)));
                rig.fail(0);
            },
            "a task that is CANCELLED is retried, not resumed",
        ),
    ];
    for (bring, why) in cases {
        let mut rig = Rig::started(1);
        bring(&mut rig);
        assert_eq!(rig.apply(Command::ResumeTask(id(0))), Err(Refused::Status(why.to_owned())));
    }
    // A task of a plan that was not started cannot be retried either.
    let mut rig = Rig::new(2, 1, |_| {});
    rig.must(Command::CancelTask(id(0)));
    let why = format!("task {} is of plan {}, which was never started", id(0), rig.state.id);
    assert_eq!(rig.apply(Command::ResumeTask(id(0))), Err(Refused::Status(why)));
    rig.must(Command::Start);
    let why = "a task that is CANCELLED is retried, not resumed";
    assert_eq!(rig.apply(Command::ResumeTask(id(0))), Err(Refused::Status(why.to_owned())));
    assert_eq!(rig.retry(0, |_| {}), Ok(()));
}

#[test]
fn a_retry_in_a_plan_that_was_never_started_is_refused_for_that_reason() {
    for before in [None, Some(Command::PauseTask(id(0))), Some(Command::CancelTask(id(0)))] {
        let mut rig = Rig::new(1, 1, |_| {});
        if let Some(before) = before {
            rig.must(before);
        }
        let why = format!("task {} is of plan {}, which was never started", id(0), rig.state.id);
        assert_eq!(rig.retry(0, |_| {}), Err(Refused::Status(why)), "{:?}", rig.status(0));
    }
}

#[test]
fn a_plan_that_is_cancelled_before_its_start_is_not_started() {
    for cancel in [Command::Cancel, Command::CancelTask(id(0))] {
        let mut rig = Rig::new(1, 1, |_| {});
        rig.must(cancel.clone());
        assert_eq!(rig.state.status(), PlanStatus::Cancelled);
        let why = "a cancelled plan cannot be started";
        assert_eq!(rig.apply(Command::Start), Err(Refused::Status(why.to_owned())), "{cancel:?}");
    }
}

#[test]
fn a_retry_in_a_paused_plan_starts_no_task_that_was_resumed_alone() {
    for is_under_way in [false, true] {
        let mut rig = Rig::new(2, 3, |_| {});
        rig.must(Command::Start);
        rig.must(Command::Pause);
        rig.complete(0);
        if !is_under_way {
            rig.complete(1);
        }
        rig.must(Command::ResumeTask(id(1)));
        rig.retry(0, |_| {}).unwrap();
        assert_eq!(rig.begun(), [(0, 1)], "the other one waits for the plan");
        if is_under_way {
            rig.complete(1);
            assert_eq!(rig.begun(), [], "its stage has ended");
        }
        assert_eq!(rig.status(1), TaskStatus::Paused);
        rig.must(Command::Resume);
        assert_eq!(rig.begun(), [(1, 1)]);
    }
}

#[test]
fn a_retry_in_a_paused_plan_starts_that_task_alone_however_often_the_others_have_changed() {
    for ends_before in [true, false] {
        let mut rig = retried_behind_a_running_task(3);
        for at in [0, 2] {
            Arc::make_mut(&mut rig.state.tasks[at]).version = TASK_CHANGES_MAX;
        }
        rig.must(Command::Pause);
        assert_eq!(
            [rig.task(0).intent, rig.task(2).intent],
            [Intent::Run; 2],
            "the plan's intent halts them"
        );
        if ends_before {
            rig.complete(2);
            assert_eq!([rig.status(0), rig.status(2)], [TaskStatus::Pending; 2]);
            rig.retry(1, |_| {}).unwrap();
        } else {
            rig.retry(1, |_| {}).unwrap();
            assert_eq!(rig.begun(), [], "the stage of the third has the place");
            rig.complete(2);
        }
        assert_eq!([rig.status(0), rig.status(2)], [TaskStatus::Paused; 2]);
        assert_eq!(rig.begun(), [(1, 0)]);
        for _ in 0..3 {
            rig.complete(1);
        }
        assert_eq!(rig.begun(), [], "the others wait until somebody resumes them");
        rig.must(Command::Resume);
        assert_eq!(rig.begun(), [(0, 0)]);
    }
}

#[test]
fn with_on_failure_pause_a_task_that_waits_for_its_turn_again_does_not_begin_after_a_failure() {
    for is_retried in [false, true] {
        let mut rig = Rig::new(3, 3, |spec| (spec.max_concurrency, spec.on_failure) = (1, OnFailure::Pause));
        rig.must(Command::Start);
        if is_retried {
            rig.must(Command::CancelTask(id(0)));
            rig.end(0, StageEnd::Ended(Outcome::Cancelled, "cancelled".into()));
            let cancelled = rig.task(0).waits_for.unwrap();
            rig.must(Command::OlderEnded { task: id(0), job: cancelled });
            rig.retry(0, |_| {}).unwrap();
        } else {
            rig.must(Command::PauseTask(id(0)));
            rig.complete(0);
            rig.must(Command::ResumeTask(id(0)));
        }
        assert_eq!([rig.status(0), rig.status(1)], [TaskStatus::Pending, TaskStatus::Running]);
        rig.fail(1);
        assert_eq!(rig.begun(), [], "it is paused with the failure");
        assert_eq!((rig.status(0), rig.task(0).intent), (TaskStatus::Paused, Intent::Pause));
        assert_eq!(rig.status(2), TaskStatus::Pending, "one that was never begun waits for the plan");
        // A person who resumes it has seen the failure.
        rig.must(Command::ResumeTask(id(0)));
        assert_eq!(rig.begun(), [(0, usize::from(!is_retried))]);
    }
}

#[test]
fn no_task_behind_one_that_is_retried_has_its_turn() {
    for is_over in [false, true] {
        let mut rig = Rig::new(3, 1, |spec| spec.max_concurrency = 1);
        rig.must(Command::Start);
        rig.fail(0);
        let failed = Command::OlderEnded { task: id(0), job: rig.task(0).waits_for.unwrap() };
        if is_over {
            rig.must(failed.clone());
        }
        rig.retry(0, |_| {}).unwrap();
        assert!(rig.writes[0].starts.is_empty(), "it has no lock yet");
        assert_eq!([rig.status(0), rig.status(1)], [TaskStatus::Running, TaskStatus::Pending], "{is_over}");
        if !is_over {
            assert_eq!(rig.begun(), [], "its older attempt may still be under way");
            rig.must(failed);
        }
        assert_eq!(rig.begun(), [(0, 0)]);
        rig.complete(0);
        assert_eq!(rig.begun(), [(1, 0)]);
    }
    // With room for both, the next one does not wait.
    let mut rig = Rig::new(3, 1, |spec| spec.max_concurrency = 2);
    rig.must(Command::Start);
    rig.fail(0);
    rig.complete(1);
    assert_eq!(rig.begun(), []);
    rig.retry(0, |_| {}).unwrap();
    assert_eq!(rig.begun(), [(2, 0)]);
    assert_eq!([rig.status(0), rig.status(2)], [TaskStatus::Running; 2]);
}

#[test]
fn the_word_of_a_person_about_an_earlier_attempt_of_a_stage_is_not_taken_for_a_later_one() {
    let mut rig = Rig::started(2);
    let interrupt = |rig: &mut Rig| {
        let (_, job) = rig.task(0).in_flight().unwrap();
        rig.must(Command::LockLost(id(0), rig.task(0).lock));
        rig.end(0, StageEnd::Ended(Outcome::Cancelled, "".into()));
        job
    };
    let about = |job, resolution| Command::Resolve { task: id(0), stage: 0, job: Some(job), resolution };
    let earlier = interrupt(&mut rig);
    rig.must(about(earlier, Resolution::NotDone));
    rig.retry(0, |_| {}).unwrap();
    rig.must(Command::OlderEnded { task: id(0), job: earlier });
    let later = interrupt(&mut rig);
    assert_ne!(earlier, later);
    let before = rig.state.clone();
    let why = "the stage has another job by now than the one that the request names";
    assert_eq!(rig.apply(about(earlier, Resolution::Done(None))), Err(Refused::Status(why.to_owned())));
    assert_eq!(rig.state, before, "nothing changes");
    rig.must(about(later, Resolution::Done(None)));
    assert_eq!(rig.stages(0)[0], StageStatus::Succeeded);
}

/// The changes of the plan's own intent that the last command wrote.
fn plan_intents(rig: &Rig) -> Vec<(Option<&'static str>, Option<&'static str>)> {
    let events = rig.writes.iter().flat_map(|writes| &writes.events);
    let of_plan = events.filter(|event| event.task.is_none() && event.kind == EventKind::Intent);
    of_plan.map(|event| (event.before, event.after)).collect()
}

#[test]
fn the_history_has_every_decision_that_changes_what_the_plan_starts() {
    let mut rig = Rig::new(3, 2, |spec| (spec.max_concurrency, spec.on_failure) = (1, OnFailure::Continue));
    rig.must(Command::Start);
    rig.must(Command::TakenOver);
    assert!(rig.state.is_halted);
    rig.must(Command::Resume);
    assert_eq!((rig.begun(), plan_intents(&rig)), (vec![(1, 0)], vec![(Some("run"), Some("run"))]));
    rig.must(Command::Resume);
    assert_eq!(plan_intents(&rig), [], "it changes nothing");
    rig.must(Command::CancelTask(id(0)));
    rig.end(0, StageEnd::Ended(Outcome::Cancelled, "cancelled".into()));
    rig.must(Command::Pause);
    assert_eq!(plan_intents(&rig), [(Some("run"), Some("pause"))]);
    rig.must(Command::Resolve { task: id(0), stage: 0, job: None, resolution: Resolution::NotDone });
    rig.retry(0, |_| {}).unwrap();
    assert_eq!((rig.state.is_halted, plan_intents(&rig)), (true, vec![(Some("pause"), Some("run"))]));
    rig.must(Command::Pause);
    rig.must(Command::Resume);
    assert_eq!(plan_intents(&rig), [(Some("pause"), Some("run"))], "one decision, one event");
    rig.must(Command::Cancel);
    rig.retry(0, |_| {}).unwrap();
    assert_eq!(plan_intents(&rig), [(Some("cancel"), Some("run"))]);
}

#[test]
fn a_plan_whose_owner_has_changed_wants_attention_as_long_as_a_task_waits_for_it() {
    for (tasks, status) in [(1, PlanStatus::Running), (2, PlanStatus::Attention)] {
        let mut rig =
            Rig::new(tasks, 1, |spec| (spec.max_concurrency, spec.on_failure) = (1, OnFailure::Continue));
        rig.must(Command::Start);
        rig.must(Command::TakenOver);
        assert_eq!(rig.state.status(), PlanStatus::Attention);
        rig.must(Command::Resolve { task: id(0), stage: 0, job: None, resolution: Resolution::NotDone });
        rig.retry(0, |_| {}).unwrap();
        assert_eq!(rig.state.status(), status, "{tasks} tasks");
    }
}

#[test]
fn a_task_to_which_a_plan_over_its_time_gives_no_turn_can_be_retried() {
    let mut rig = Rig::new(3, 2, |spec| {
        (spec.max_concurrency, spec.timeout_ms, spec.on_failure) = (1, 1_000, OnFailure::Continue)
    });
    rig.must(Command::Start);
    rig.must(Command::Pause);
    assert_eq!(rig.retry(1, |_| {}), Err(Refused::StillRunning), "it waits for its turn");
    rig.now = START.plus_ms(1_000);
    rig.must(Command::Advance);
    rig.complete(0);
    rig.must(Command::Resume);
    assert_eq!(
        (rig.begun(), rig.state.status()),
        (vec![(0, 1)], PlanStatus::Attention),
        "what was begun goes on"
    );
    rig.complete(0);
    assert_eq!((rig.status(1), rig.begun()), (TaskStatus::Pending, vec![]));
    let before = rig.task(1).lock;
    rig.retry(1, |_| {}).unwrap();
    assert_eq!((rig.begun(), rig.task(1).run), (vec![(1, 0)], 2));
    assert!(rig.task(1).lock > before, "no attempt of another run has its token");
    // One that was retried has its turn, behind the one that runs.
    rig.retry(2, |_| {}).unwrap();
    assert_eq!(rig.retry(2, |_| {}), Err(Refused::StillRunning));
    rig.complete(1);
    rig.complete(1);
    assert_eq!((rig.status(1), rig.begun()), (TaskStatus::Succeeded, vec![(2, 0)]));
}

#[test]
fn others_start_once_nothing_wants_a_person_unless_the_plan_was_paused_before() {
    let with_failure = |on_failure| {
        let mut rig = Rig::new(3, 1, |spec| (spec.max_concurrency, spec.on_failure) = (2, on_failure));
        rig.must(Command::Start);
        rig.fail(0);
        let failed = rig.task(0).waits_for.unwrap();
        rig.must(Command::OlderEnded { task: id(0), job: failed });
        rig.complete(1);
        assert_eq!((rig.begun(), rig.status(2)), (vec![], TaskStatus::Pending), "{on_failure:?}");
        rig
    };
    for on_failure in [OnFailure::StopNew, OnFailure::Pause] {
        let mut rig = with_failure(on_failure);
        rig.must(Command::CancelTask(id(0)));
        assert_eq!(rig.begun(), [(2, 0)], "{on_failure:?}");
        let mut rig = with_failure(on_failure);
        rig.retry(0, |_| {}).unwrap();
        assert_eq!(rig.begun(), [(2, 0), (0, 0)], "beside the one that is retried");
        let mut rig = with_failure(on_failure);
        rig.must(Command::Pause);
        rig.must(Command::CancelTask(id(0)));
        assert_eq!(rig.begun(), [], "{on_failure:?}");
        rig.must(Command::Resume);
        assert_eq!(rig.begun(), [(2, 0)]);
        let mut rig = with_failure(on_failure);
        rig.must(Command::Pause);
        rig.retry(0, |_| {}).unwrap();
        assert_eq!(rig.begun(), [(0, 0)], "{on_failure:?}");
        rig.complete(0);
        assert_eq!((rig.begun(), rig.state.status()), (vec![], PlanStatus::Attention));
        rig.must(Command::Resume);
        assert_eq!(rig.begun(), [(2, 0)]);
    }
}

#[test]
fn after_a_takeover_of_a_plan_with_a_failure_a_retry_starts_that_task_alone() {
    for on_failure in [OnFailure::StopNew, OnFailure::Pause] {
        let mut rig = Rig::new(3, 1, |spec| (spec.max_concurrency, spec.on_failure) = (1, on_failure));
        rig.must(Command::Start);
        rig.fail(0);
        let failed = rig.task(0).waits_for.unwrap();
        rig.must(Command::OlderEnded { task: id(0), job: failed });
        assert_eq!([rig.status(0), rig.status(1)], [TaskStatus::Failed, TaskStatus::Pending]);
        rig.must(Command::TakenOver);
        assert!(rig.writes[0].events.iter().any(|event| event.kind == EventKind::TakenOver));
        rig.must(Command::TakenOver);
        assert!(rig.writes.iter().all(Writes::is_empty), "the history has it once");
        rig.retry(0, |_| {}).unwrap();
        assert_eq!(rig.begun(), [(0, 0)]);
        rig.complete(0);
        assert_eq!((rig.begun(), rig.state.status()), (vec![], PlanStatus::Attention), "{on_failure:?}");
        rig.must(Command::Resume);
        assert_eq!(rig.begun(), [(1, 0)]);
    }
    // A task that takes its lock with its retry begins with the next step. The owner dies between the two.
    let mut rig = Rig::new(2, 1, |spec| spec.max_concurrency = 2);
    rig.must(Command::Start);
    rig.fail(0);
    rig.fail(1);
    let (command, mut jobs) = (Command::Retry(id(0), retry()), rig.jobs);
    let step = rig.state.apply(&command, rig.now, &mut || job_after(&mut jobs)).unwrap();
    rig.commit(step, &command);
    assert_eq!([rig.status(0), rig.status(1)], [TaskStatus::Pending, TaskStatus::Failed]);
    rig.must(Command::TakenOver);
    rig.retry(1, |_| {}).unwrap();
    assert_eq!([rig.status(0), rig.status(1)], [TaskStatus::Paused, TaskStatus::Running]);
    rig.must(Command::Resume);
    assert_eq!(rig.status(0), TaskStatus::Running, "no person has paused it");
    // A plan over its time gives no turn: there is nothing to resume.
    let mut rig = Rig::new(2, 1, |spec| (spec.max_concurrency, spec.timeout_ms) = (1, 1_000));
    rig.must(Command::Start);
    rig.fail(0);
    rig.now = START.plus_ms(1_000);
    rig.must(Command::Advance);
    rig.must(Command::TakenOver);
    assert!(rig.state.is_over_time && !rig.state.is_halted);
}
