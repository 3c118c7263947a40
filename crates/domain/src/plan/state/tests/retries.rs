//! What a retry begins, from where, and what it waits for.

use super::*;
use crate::limits::{CHECKPOINTS_MAX, TASK_RUNS_MAX};
use crate::plan::status::OnUnknown;

#[test]
fn an_unknown_stage_runs_again_only_by_somebodys_word() {
    let mut rig = Rig::started(2);
    rig.must(Command::TakenOver);
    assert_eq!(rig.retry(0, |_| {}), Err(Refused::StageUnknown(0)));
    assert_eq!(rig.retry(0, |retry| retry.from = From::Start), Err(Refused::StageUnknown(0)));
    let older = rig.task(0).in_flight().unwrap().1;
    let not_done =
        |stage| Command::Resolve { task: id(0), stage, job: None, resolution: Resolution::NotDone };
    assert_eq!(rig.apply(not_done(1)), Err(refused_unless_unknown()));
    assert_eq!(rig.apply(not_done(2)), Err(Refused::UnknownStage));
    rig.must(not_done(0));
    assert_eq!(rig.cancelled, [older]);
    rig.retry(0, |_| {}).unwrap();
    assert!(rig.begun().is_empty(), "the older attempt may still run");
    rig.must(Command::OlderEnded { task: id(0), job: older });
    assert_eq!(rig.begun(), [(0, 0)]);
    // Done: its checkpoint has the context that was given.
    let mut rig = Rig::started(2);
    rig.must(Command::TakenOver);
    let done = Resolution::Done(Some("[]".into()));
    let older = rig.task(0).in_flight().unwrap().1;
    rig.must(Command::Resolve { task: id(0), stage: 0, job: None, resolution: done });
    assert_eq!((&*rig.task(0).context(), rig.begun()), ("[]", vec![]));
    rig.retry(0, |_| {}).unwrap();
    assert!(rig.begun().is_empty(), "what was resolved may still run");
    rig.must(Command::OlderEnded { task: id(0), job: older });
    assert_eq!(rig.begun(), [(0, 1)]);
}

#[test]
fn a_stage_that_failed_and_did_its_work_is_left_out_of_the_retry() {
    let mut rig = Rig::started(3);
    rig.complete(0);
    rig.fail(0);
    let failed = rig.task(0).waits_for.unwrap();
    let done =
        Command::Resolve { task: id(0), stage: 1, job: None, resolution: Resolution::Done(Some("7".into())) };
    let Err(Refused::Status(why)) = rig.apply(done) else { panic!("its job has said how it ended") };
    assert!(why.contains("leaves it out"), "{why}");
    let stages = &rig.task(0).spec.stages;
    let left = [stages[0].clone(), stages[2].clone()];
    rig.retry(0, |retry| (retry.stages, retry.context) = (Some(left.into()), Some("7".into()))).unwrap();
    rig.must(Command::OlderEnded { task: id(0), job: failed });
    assert_eq!((rig.begun(), rig.stages(0).len(), &*rig.task(0).context()), (vec![(0, 1)], 2, "7"));
    assert_eq!(&*rig.task(0).stage(1).name, "stage-2");
    // What is completed may not be left out.
    rig.complete(0);
    assert_eq!(rig.status(0), TaskStatus::Succeeded);
    let lacks = Refused::DefinitionChanged(0).to_string();
    assert!(lacks.starts_with("stage 1 is completed") && lacks.contains("lacks it"), "{lacks}");
}

fn refused_unless_unknown() -> Refused {
    Refused::Status("only a stage that is UNKNOWN can be resolved".to_owned())
}

#[test]
fn a_stage_that_may_be_rerun_waits_for_its_older_attempt() {
    let mut rig = Rig::started(2);
    rig.state.tasks = rig
        .state
        .tasks
        .iter()
        .map(|task| {
            let mut task = (**task).clone();
            let mut spec = (*task.spec).clone();
            spec.stages = spec
                .stages
                .iter()
                .map(|stage| StageSpec { on_unknown: OnUnknown::Rerun, ..stage.clone() })
                .collect();
            task.spec = Arc::new(spec);
            Arc::new(task)
        })
        .collect();
    rig.must(Command::TakenOver);
    let older = rig.task(0).in_flight().unwrap().1;
    rig.retry(0, |_| {}).unwrap();
    assert_eq!((rig.cancelled.clone(), rig.begun()), (vec![older], vec![]));
    rig.must(Command::StageEnded { task: id(0), job: older, end: StageEnd::Completed(None) });
    assert_eq!(rig.task(0).last_checkpoint, 0, "a result of an earlier run is no checkpoint of this one");
    rig.must(Command::OlderEnded { task: id(0), job: older });
    assert_eq!(rig.begun(), [(0, 0)]);
}

#[test]
fn a_retry_continues_behind_the_last_completed_stage_and_keeps_all_history() {
    let mut rig = Rig::started(7);
    for _ in 0..5 {
        rig.complete(0);
    }
    rig.fail(0);
    let failed = rig.task(0).waits_for.unwrap();
    rig.retry(0, |_| {}).unwrap();
    rig.must(Command::OlderEnded { task: id(0), job: failed });
    assert_eq!(rig.begun(), [(0, 5)]);
    assert_eq!(rig.stages(0)[..6], [&[StageStatus::Skipped; 5][..], &[StageStatus::Running]].concat());
    assert_eq!((rig.task(0).run, rig.task(0).last_checkpoint), (2, 5));
    rig.complete(0);
    assert_eq!(rig.task(0).checkpoint.as_ref().unwrap().version, 6);
    // From the start: versions go on.
    rig.fail(0);
    let failed = rig.task(0).waits_for.unwrap();
    rig.retry(0, |retry| retry.from = From::Start).unwrap();
    rig.must(Command::OlderEnded { task: id(0), job: failed });
    assert_eq!(rig.begun(), [(0, 0)]);
    rig.complete(0);
    let checkpoint = rig.task(0).checkpoint.clone().unwrap();
    assert_eq!((checkpoint.version, checkpoint.completed), (7, 1));
    // From an earlier one, with another context.
    rig.fail(0);
    let checkpoint = Checkpoint { version: 3, completed: 3, context: "3".into() };
    let stages = Arc::clone(&rig.task(0).spec.stages);
    let other = stages.iter().map(|stage| StageSpec::new(format!("other {}", stage.name), "{}")).collect();
    let from = |stages| From::Version { checkpoint: checkpoint.clone(), stages };
    let refused = rig.retry(0, |retry| retry.from = from(other));
    assert_eq!(refused, Err(Refused::DefinitionChanged(0)), "it covers stages of another definition");
    rig.retry(0, |retry| (retry.from, retry.context) = (from(stages), Some("4".into()))).unwrap();
    assert_eq!((rig.task(0).completed(), &*rig.task(0).context()), (3, "4"));
}

#[test]
fn a_retry_takes_the_lock_anew_and_one_of_many_wins() {
    let mut rig = Rig::started(2);
    let first = rig.task(0).lock.unwrap();
    rig.fail(0);
    let seen = Some(Seen { run: 1, checkpoint_version: 0 });
    rig.retry(0, |retry| retry.expect = seen).unwrap();
    assert_eq!(rig.writes[0].take, [0]);
    assert!(rig.task(0).lock.unwrap() > first);
    for _ in 0..49 {
        assert_eq!(rig.retry(0, |retry| retry.expect = seen), Err(Refused::NotAsSeen));
        assert_eq!(rig.retry(0, |_| {}), Err(Refused::StillRunning));
    }
}

#[test]
fn a_corrected_definition_keeps_what_is_completed() {
    let stages = |names: &[&str]| -> Option<Arc<[StageSpec]>> {
        Some(
            names
                .iter()
                .map(|name| StageSpec::new(*name, if *name == "stage-0" { "0" } else { "1" }))
                .collect(),
        )
    };
    let mut rig = Rig::started(2);
    rig.complete(0);
    rig.fail(0);
    assert_eq!(
        rig.retry(0, |retry| retry.stages = stages(&["other", "stage-1"])),
        Err(Refused::DefinitionChanged(0))
    );
    rig.retry(0, |retry| retry.stages = stages(&["stage-0", "better", "more"])).unwrap();
    assert_eq!(rig.writes[0].definitions, [0]);
    assert_eq!((rig.task(0).definition, rig.task(0).stages.len()), (2, 3));
    // From the start any definition will do.
    let failed = rig.task(0).waits_for.unwrap();
    rig.must(Command::OlderEnded { task: id(0), job: failed });
    rig.fail(0);
    rig.retry(0, |retry| (retry.from, retry.stages) = (From::Start, stages(&["other"]))).unwrap();
    assert_eq!((rig.task(0).definition, rig.task(0).stages.len()), (3, 1));
}

#[test]
fn runs_and_checkpoints_have_a_limit() {
    let mut rig = Rig::started(2);
    for run in 2..=TASK_RUNS_MAX {
        rig.fail(0);
        let failed = rig.task(0).waits_for.unwrap();
        rig.retry(0, |_| {}).unwrap();
        rig.must(Command::OlderEnded { task: id(0), job: failed });
        assert_eq!(rig.task(0).run, run);
    }
    rig.fail(0);
    assert_eq!(rig.retry(0, |_| {}), Err(Refused::TooMany("runs", TASK_RUNS_MAX.into())));
    let mut rig = Rig::started(2);
    Arc::make_mut(&mut rig.state.tasks[0]).last_checkpoint = CHECKPOINTS_MAX;
    rig.complete(0);
    assert_eq!(rig.status(0), TaskStatus::Failed);
}

#[test]
fn a_cancelled_task_that_is_retried_before_its_attempt_is_over_waits_for_it() {
    let mut rig = Rig::new(2, 2, |spec| spec.max_concurrency = 1);
    rig.must(Command::Start);
    rig.must(Command::Cancel);
    rig.end(0, StageEnd::Ended(Outcome::Cancelled, "".into()));
    // A retry brings this task back, and no other.
    rig.retry(0, |_| {}).unwrap();
    let older = rig.task(0).waits_for.unwrap();
    rig.must(Command::OlderEnded { task: id(0), job: older });
    assert_eq!(rig.begun(), [(0, 0)]);
    assert_eq!(rig.status(1), TaskStatus::Cancelled);
}
