//! Without its tenant's lock a task completes nothing: what its jobs report is for a person to look at.

use super::*;

/// A task whose owner has changed while its first stage was under way; and the stage's job.
fn taken_over(stages: usize) -> (Rig, JobId) {
    let mut rig = Rig::started(stages);
    let (_, job) = rig.task(0).in_flight().unwrap();
    rig.must(Command::TakenOver);
    (rig, job)
}

/// The same, whose lock was lost then.
fn without_lock(stages: usize) -> (Rig, JobId) {
    let (mut rig, job) = taken_over(stages);
    rig.must(Command::LockLost(id(0), rig.task(0).lock));
    (rig, job)
}

/// Every way in which a job may end.
fn ends() -> [StageEnd; 7] {
    [
        StageEnd::Completed(Some("{}".into())),
        StageEnd::Unfit("not an object".into()),
        StageEnd::Ended(Outcome::Failed, "broken".into()),
        StageEnd::Ended(Outcome::TimedOut, "slow".into()),
        StageEnd::Ended(Outcome::Cancelled, "".into()),
        StageEnd::Revoked(Outcome::Failed, "its node was lost".into()),
        StageEnd::Revoked(Outcome::TimedOut, "silent".into()),
    ]
}

/// The events about stages that the last command wrote.
fn of_stages(rig: &Rig) -> Vec<PlanEvent> {
    let events = rig.writes.iter().flat_map(|writes| &writes.events);
    events.filter(|event| event.kind == EventKind::Stage).cloned().collect()
}

fn resolve(resolution: Resolution) -> Command {
    Command::Resolve { task: id(0), stage: 0, job: None, resolution }
}

#[test]
fn an_interrupted_task_that_loses_its_lock_has_its_job_called_off() {
    let (rig, job) = without_lock(2);
    assert_eq!((rig.cancelled.clone(), rig.task(0).called_off()), (vec![job], Some(job)));
    assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Interrupted, StageStatus::Unknown));
    // An owner that finds it so calls it off as well.
    let (mut rig, job) = taken_over(2);
    assert_eq!(rig.task(0).called_off(), None, "its late result counts");
    Arc::make_mut(&mut rig.state.tasks[0]).lock = None;
    assert_eq!(rig.task(0).called_off(), Some(job));
}

#[test]
fn whatever_the_job_of_a_task_without_its_lock_reports_the_stage_stays_unknown() {
    for end in ends() {
        let (mut rig, job) = without_lock(1);
        rig.end(0, end.clone());
        assert_eq!(
            (rig.status(0), rig.stages(0)[0], rig.task(0).last_checkpoint),
            (TaskStatus::Interrupted, StageStatus::Unknown, 0),
            "{end:?}"
        );
        assert!(rig.writes.iter().all(|writes| writes.checkpoints.is_empty()), "{end:?}");
        let events = of_stages(&rig);
        let [event] = &events[..] else { panic!("{end:?}: {events:?}") };
        assert_eq!((event.before, event.after), (Some("UNKNOWN"), Some("UNKNOWN")));
        let how = event.reason.clone().unwrap();
        assert!(how.starts_with("stage stage-0: its job ") && how.ends_with("its tenant's lock"), "{how}");
        assert_eq!(rig.task(0).reason, Some(how));
        // It may be told again.
        rig.must(Command::StageEnded { task: id(0), job, end });
        assert!(rig.writes.iter().all(Writes::is_empty), "the history has it once: {:?}", rig.writes);
        assert!(rig.cancelled.is_empty(), "its end is known");
        assert_eq!(rig.retry(0, |_| {}), Err(Refused::StageUnknown(0)));
    }
    let (mut rig, _) = without_lock(1);
    rig.complete(0);
    let reason = "stage stage-0: its job succeeded, and the task has lost its tenant's lock";
    assert_eq!(rig.task(0).reason.as_deref(), Some(reason));
}

#[test]
fn a_job_that_ends_before_the_loss_of_the_lock_is_known_leaves_its_stage_unknown() {
    for end in ends() {
        let mut rig = Rig::started(2);
        Arc::make_mut(&mut rig.state.tasks[0]).lock = None;
        rig.end(0, end.clone());
        assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Interrupted, StageStatus::Unknown));
        let kinds: Vec<_> = rig.writes[0].events.iter().map(|event| event.kind).collect();
        assert!(kinds.contains(&EventKind::LockLost), "{end:?}: {kinds:?}");
        assert_eq!(of_stages(&rig).len(), 2, "{end:?}");
    }
}

#[test]
fn the_end_of_a_stage_counts_only_under_its_tenants_lock() {
    for end in ends() {
        let mut rig = Rig::started(2);
        let lock = rig.task(0).lock.unwrap();
        rig.end(0, end.clone());
        assert!(rig.writes[0].held.contains(&(0, lock)), "{end:?}");
    }
}

#[test]
fn the_reason_says_how_the_job_ended_until_a_person_has_said_what_the_stage_did() {
    let how = "stage stage-0: its job succeeded, and the task has lost its tenant's lock";
    let lost = "the tenant's lock was broken, or it ran out and was taken";
    let taken = "the plan's owner died or changed while the task ran";
    let reason = |rig: &Rig| rig.task(0).reason.clone();
    for resolution in [Resolution::Done(None), Resolution::NotDone] {
        let (mut rig, _) = without_lock(2);
        rig.complete(0);
        assert_eq!(reason(&rig).as_deref(), Some(how));
        rig.must(resolve(resolution.clone()));
        assert_eq!((rig.status(0), reason(&rig).as_deref()), (TaskStatus::Interrupted, Some(lost)));

        let (mut rig, _) = taken_over(2);
        rig.must(resolve(resolution.clone()));
        assert_eq!((rig.status(0), reason(&rig).as_deref()), (TaskStatus::Interrupted, Some(taken)));

        let (mut rig, _) = without_lock(2);
        rig.must(Command::CancelTask(id(0)));
        rig.complete(0);
        assert_eq!((rig.status(0), reason(&rig).as_deref()), (TaskStatus::Cancelled, Some(how)));
        rig.must(resolve(resolution));
        assert_eq!((rig.status(0), reason(&rig)), (TaskStatus::Cancelled, None));
    }
    // Its node was told to stop it.
    let (mut rig, _) = taken_over(2);
    rig.must(Command::CancelTask(id(0)));
    rig.end(0, StageEnd::Ended(Outcome::Cancelled, "".into()));
    assert_eq!((rig.status(0), reason(&rig).as_deref()), (TaskStatus::Cancelled, Some(taken)));
}

#[test]
fn a_stage_is_resolved_as_done_under_the_lock_which_is_taken_for_it() {
    let (mut rig, job) = without_lock(1);
    let before = rig.tokens;
    rig.must(resolve(Resolution::Done(None)));
    assert_eq!((&rig.writes[0].take[..], rig.writes[0].checkpoints.len()), (&[0][..], 1));
    assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Succeeded, StageStatus::Succeeded));
    assert_eq!(rig.task(0).lock, Some(Token::new(before + 1)));
    // It is given back once no attempt is under way.
    rig.must(Command::OlderEnded { task: id(0), job });
    assert_eq!((rig.task(0).lock, rig.state.needs_owner()), (None, false));
    // That it did nothing can be said without the lock. The retry takes it.
    let (mut rig, job) = without_lock(1);
    rig.must(resolve(Resolution::NotDone));
    assert!(rig.writes[0].take.is_empty() && rig.task(0).lock.is_none());
    rig.retry(0, |_| {}).unwrap();
    rig.must(Command::OlderEnded { task: id(0), job });
    assert_eq!(rig.begun(), [(0, 0)]);
}

#[test]
fn a_lock_that_is_held_is_renewed_with_the_word_that_the_stage_is_done() {
    let (mut rig, _) = taken_over(2);
    let lock = rig.task(0).lock.unwrap();
    rig.must(resolve(Resolution::Done(None)));
    let writes = &rig.writes[0];
    assert_eq!((writes.renews, &writes.held[..], writes.take.len()), (true, &[(0, lock)][..], 0));
    assert_eq!((rig.status(0), rig.task(0).lock), (TaskStatus::Interrupted, Some(lock)));
    // The retry takes it anew.
    let (mut rig, _) = taken_over(2);
    rig.must(resolve(Resolution::NotDone));
    assert!(!rig.writes[0].renews);
}

#[test]
fn an_owner_finds_out_that_an_interrupted_task_has_lost_its_lock_and_renews_none_for_it() {
    let mut rig = Rig::new(2, 2, |spec| spec.max_concurrency = 1);
    rig.must(Command::Start);
    rig.must(Command::TakenOver);
    let [interrupted, pending] = [0, 1].map(|at| (at, rig.task(at).lock.unwrap()));
    rig.must(Command::RenewLocks);
    let writes = &rig.writes[0];
    assert!(writes.renews);
    assert_eq!((&writes.held[..], &writes.checked[..]), (&[pending][..], &[interrupted][..]));
    assert!(writes.needed_locks().eq(&[pending, interrupted]));
    // Nothing of it is under way any more.
    rig.fail(0);
    rig.must(Command::RenewLocks);
    assert!(rig.writes[0].checked.is_empty());
}

#[test]
fn an_owner_has_locks_to_renew_as_long_as_a_task_goes_on_or_its_job_may_be_under_way() {
    assert!(!Rig::new(1, 1, |_| {}).state.has_locks_to_renew(), "it has none before it is started");
    let (rig, _) = taken_over(1);
    assert!(rig.state.has_locks_to_renew(), "it finds out that the lock was lost");
    let (rig, _) = without_lock(1);
    assert!(!rig.state.has_locks_to_renew());
    let mut rig = Rig::started(1);
    assert!(rig.state.has_locks_to_renew());
    rig.complete(0);
    assert_eq!((rig.state.status(), rig.state.has_locks_to_renew()), (PlanStatus::Succeeded, false));
    let mut rig = Rig::started(1);
    rig.fail(0);
    assert!(rig.task(0).lock.is_some(), "it runs out");
    assert!(!rig.state.has_locks_to_renew());
}

#[test]
fn a_cancelled_task_of_whose_stage_nobody_knows_what_it_did_is_retried_after_a_persons_word() {
    // Called off at its node, and one whose lock was lost before.
    let cancelled: [fn() -> (Rig, JobId); 2] = [
        || {
            let (mut rig, job) = taken_over(2);
            rig.must(Command::CancelTask(id(0)));
            assert_eq!(rig.cancelled, [job]);
            rig.end(0, StageEnd::Ended(Outcome::Cancelled, "".into()));
            (rig, job)
        },
        || {
            let (mut rig, job) = without_lock(2);
            rig.must(Command::CancelTask(id(0)));
            rig.complete(0);
            (rig, job)
        },
    ];
    for cancelled in cancelled {
        let (mut rig, job) = cancelled();
        let is_unknown = |rig: &Rig| (rig.status(0), rig.stages(0)[0], rig.task(0).last_checkpoint);
        assert_eq!(is_unknown(&rig), (TaskStatus::Cancelled, StageStatus::Unknown, 0));
        assert_eq!((rig.task(0).waits_for, rig.state.needs_owner()), (Some(job), true));
        assert_eq!(rig.retry(0, |_| {}), Err(Refused::StageUnknown(0)));
        rig.must(Command::OlderEnded { task: id(0), job });
        assert_eq!((rig.task(0).lock, rig.task(0).in_flight()), (None, None));
        assert_eq!((rig.state.status(), rig.state.needs_owner()), (PlanStatus::Cancelled, false));
        // A later owner changes nothing.
        rig.must(Command::TakenOver);
        assert_eq!(is_unknown(&rig), (TaskStatus::Cancelled, StageStatus::Unknown, 0));
        assert_eq!(rig.retry(0, |retry| retry.from = From::Start), Err(Refused::StageUnknown(0)));
        rig.must(resolve(Resolution::NotDone));
        assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Cancelled, StageStatus::Pending));
        rig.retry(0, |_| {}).unwrap();
        rig.must(Command::OlderEnded { task: id(0), job });
        assert_eq!(rig.begun(), [(0, 0)]);
    }
    // Done: the task stays cancelled, and a retry goes on behind the stage.
    let (mut rig, job) = cancelled[0]();
    rig.must(Command::OlderEnded { task: id(0), job });
    rig.must(resolve(Resolution::Done(Some("{\"a\":1}".into()))));
    assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Cancelled, StageStatus::Succeeded));
    assert_eq!((&rig.writes[0].take[..], &*rig.task(0).context()), (&[0][..], "{\"a\":1}"));
    rig.must(Command::OlderEnded { task: id(0), job });
    assert_eq!(rig.task(0).lock, None);
    rig.retry(0, |_| {}).unwrap();
    assert_eq!(rig.begun(), [(0, 1)]);
}
