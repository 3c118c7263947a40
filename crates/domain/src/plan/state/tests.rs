//! The state of a plan by tables, and by random sequences against the promises.

mod ends;
mod locks;
mod random;
mod retries;
mod steering;

use super::*;
use crate::id::TenantId;

const START: Timestamp = Timestamp::from_micros(1_000_000_000);

/// A plan with what a shell round it would do: commits always succeed, locks get rising tokens, jobs are numbered.
struct Rig {
    state: PlanState,
    now: Timestamp,
    jobs: u128,
    tokens: i64,
    /// What the last command wrote, cancelled and began.
    writes: Vec<Writes>,
    cancelled: Vec<JobId>,
}

impl Rig {
    fn new(tasks: usize, stages: usize, change: impl FnOnce(&mut PlanSpec)) -> Self {
        let mut spec = PlanSpec::default();
        change(&mut spec);
        let stages: Vec<_> =
            (0..stages).map(|n| StageSpec::new(format!("stage-{n}"), n.to_string())).collect();
        let task = |n: usize| {
            let tenant = TenantId::parse(&format!("tenant-{n}")).unwrap();
            TaskState::new(id(n), Arc::new(TaskSpec::new(tenant, stages.clone())))
        };
        let state = PlanState::new(PlanId::from_u128(1), Arc::new(spec), (0..tasks).map(task).collect());
        Self { state, now: START, jobs: 0, tokens: 0, writes: vec![], cancelled: vec![] }
    }

    /// One task, started: its first stage runs.
    fn started(stages: usize) -> Self {
        let mut rig = Self::new(1, stages, |_| {});
        rig.must(Command::Start);
        rig
    }

    /// Applies and commits a command, and then what may begin by itself.
    fn apply(&mut self, command: Command) -> Result<(), Refused> {
        self.writes.clear();
        self.cancelled.clear();
        let is_takeover = command == Command::TakenOver;
        let mut next = Some(command);
        while let Some(command) = next.take() {
            let mut jobs = self.jobs;
            let step = self.state.apply(&command, self.now, &mut || job_after(&mut jobs))?;
            self.jobs = jobs;
            if !step.writes.is_empty() && !is_takeover {
                next = Some(Command::Advance);
            }
            self.commit(step, &command);
        }
        Ok(())
    }

    fn commit(&mut self, Step { next, writes, cancel }: Step, command: &Command) {
        check(&self.state, &next, &writes, command);
        self.state = next;
        let tokens = writes.take.iter().map(|at| {
            self.tokens += 1;
            (*at, Token::new(self.tokens))
        });
        let taken: Vec<_> = tokens.collect();
        self.state.locked(taken);
        // The plan's next owner finds the jobs that this owner may have failed to call off.
        let finds = |job: &JobId| {
            self.state.tasks.iter().any(|task| task.called_off().or(task.waits_for) == Some(*job))
        };
        assert!(cancel.iter().all(finds), "{command:?} calls {cancel:?} off: {:?}", self.state);
        self.cancelled.extend(cancel);
        self.writes.push(writes);
    }

    /// The stages of these tasks that are under way end so, together.
    fn end_together(&mut self, ends: &[(usize, StageEnd)]) {
        self.writes.clear();
        self.cancelled.clear();
        let jobs_of = |(at, end)| (id(at), self.task(at).in_flight().expect("a stage is under way").1, end);
        let ends: Vec<_> = ends.iter().map(|(at, end)| jobs_of((*at, end))).collect();
        let mut jobs = self.jobs;
        let step = self.state.apply_ends(ends, self.now, &mut || job_after(&mut jobs));
        self.jobs = jobs;
        self.commit(step, &Command::Advance);
    }

    fn must(&mut self, command: Command) {
        self.apply(command.clone()).unwrap_or_else(|why| panic!("{command:?}: {why:?}"));
    }

    fn task(&self, at: usize) -> &TaskState {
        &self.state.tasks[at]
    }

    fn status(&self, at: usize) -> TaskStatus {
        self.task(at).status
    }

    fn stages(&self, at: usize) -> Vec<StageStatus> {
        self.task(at).stages.iter().map(|stage| stage.status).collect()
    }

    /// The stage of a task that is under way ends so.
    fn end(&mut self, at: usize, end: StageEnd) {
        let (_, job) = self.task(at).in_flight().expect("a stage is under way");
        self.must(Command::StageEnded { task: id(at), job, end });
    }

    fn complete(&mut self, at: usize) {
        self.end(at, StageEnd::Completed(None));
    }

    fn fail(&mut self, at: usize) {
        self.end(at, broken());
    }

    fn retry(&mut self, at: usize, change: impl FnOnce(&mut Retry)) -> Result<(), Refused> {
        let mut retry = retry();
        change(&mut retry);
        self.apply(Command::Retry(id(at), retry))
    }

    fn begun(&self) -> Vec<(usize, usize)> {
        self.writes.iter().flat_map(|writes| &writes.starts).map(|start| (start.task, start.stage)).collect()
    }
}

fn job_after(jobs: &mut u128) -> JobId {
    *jobs += 1;
    JobId::from_u128(*jobs)
}

fn id(at: usize) -> TaskId {
    TaskId::from_u128(at as u128 + 1)
}

fn retry() -> Retry {
    Retry {
        from: From::Checkpoint,
        expect: None,
        context: None,
        stages: None,
        config: None,
        max_attempts: None,
        reason: "mended".into(),
    }
}

/// What holds of every step.
fn check(before: &PlanState, after: &PlanState, writes: &Writes, command: &Command) {
    let running =
        |state: &PlanState| state.tasks.iter().filter(|task| task.status == TaskStatus::Running).count();
    if running(after) > running(before) {
        assert!(running(after) <= after.spec.max_concurrency as usize, "too many run after {command:?}");
    }
    if *command == Command::TakenOver {
        assert!(writes.starts.is_empty(), "a new owner begins nothing");
    }
    for (at, (old, new)) in before.tasks.iter().zip(&after.tasks).enumerate() {
        let is_written = writes.tasks.contains(&at);
        assert_eq!(old != new, is_written, "task {at} after {command:?}");
        assert_eq!(new.version, old.version + u64::from(is_written));
        assert!(new.run >= old.run && new.last_checkpoint >= old.last_checkpoint, "history is kept");
        let in_flight = new.stages.iter().filter(|stage| stage.status.is_in_flight()).count();
        assert!(in_flight <= 1, "one stage at a time");
        let may_have_lock = !new.status.is_over() || new.waits_for.is_some();
        assert!(
            may_have_lock || new.lock.is_none(),
            "a task that is over, with all its attempts, frees its lock"
        );
        let is_running = new.stages.iter().any(|stage| stage.status == StageStatus::Running);
        assert!(!new.status.is_over() || !is_running, "a task that is over has no job");
        assert!(new.status != TaskStatus::Running || in_flight == 1 || new.waits_for.is_some(), "it hangs");
        let completed = new.completed();
        assert!(new.stages[completed..].iter().all(|stage| !stage.status.is_completed()), "in order");
        assert!(new.status != TaskStatus::Succeeded || completed == new.stages.len());
        if let Some(checkpoint) = &new.checkpoint {
            assert_eq!(checkpoint.completed as usize, completed, "the checkpoint covers what is completed");
        }
    }
    for start in &writes.starts {
        let (old, new) = (&before.tasks[start.task], &after.tasks[start.task]);
        assert_eq!(
            new.stages[start.stage],
            StageState { status: StageStatus::Running, job: Some(start.job) }
        );
        assert_eq!(new.completed(), start.stage, "no stage is skipped");
        let lock = new.lock.expect("a stage begins under the tenant's lock");
        assert!(writes.held.contains(&(start.task, lock)), "its commit is fenced by the lock");
        assert!(old.waits_for.is_none() || new.waits_for.is_none());
        assert!(!matches!(old.stages.get(start.stage), Some(stage) if stage.status == StageStatus::Unknown));
    }
    for (at, checkpoint) in &writes.checkpoints {
        assert_eq!(checkpoint.version, before.tasks[*at].last_checkpoint + 1, "no checkpoint is overwritten");
        let has_lock = |(of, token): &(usize, Token)| of == at && before.tasks[*at].lock == Some(*token);
        let is_fenced = writes.take.contains(at) || writes.needed_locks().any(has_lock);
        assert!(is_fenced, "a checkpoint of {at} without its tenant's lock after {command:?}");
    }
    assert!(writes.plan || before.needs_owner() == after.needs_owner(), "others read it of the plan's row");
    if before.status() != after.status() {
        assert!(writes.plan && writes.events.iter().any(|event| event.task.is_none()));
    }
}

#[test]
fn tasks_run_in_order_as_many_at_once_as_may() {
    let mut rig = Rig::new(4, 2, |spec| spec.max_concurrency = 2);
    assert_eq!(rig.state.status(), PlanStatus::Created);
    rig.must(Command::Start);
    assert_eq!(rig.writes[0].take, [0, 1, 2, 3], "all locks in one commit");
    assert_eq!(rig.begun(), [(0, 0), (1, 0)]);
    rig.complete(1);
    assert_eq!(rig.begun(), [(1, 1)]);
    rig.complete(1);
    assert_eq!(rig.begun(), [(2, 0)], "the next in order takes the turn");
    for at in [0, 0, 2, 2, 3, 3] {
        rig.complete(at);
    }
    assert_eq!(rig.state.status(), PlanStatus::Succeeded);
    assert_eq!(rig.stages(3), [StageStatus::Succeeded; 2]);
    rig.must(Command::Start);
    assert!(rig.begun().is_empty(), "starting again changes nothing");
}

#[test]
fn ends_that_come_together_are_one_step() {
    let completed = || StageEnd::Completed(None);
    let started = |on_failure| {
        let mut rig = Rig::new(4, 2, |spec| (spec.max_concurrency, spec.on_failure) = (3, on_failure));
        rig.must(Command::Start);
        rig
    };
    let mut rig = started(OnFailure::StopNew);
    rig.end_together(&[(2, completed()), (0, completed())]);
    assert_eq!(rig.begun(), [(0, 1), (2, 1)]);
    let [writes] = &rig.writes[..] else { panic!("more than one step") };
    assert_eq!(writes.checkpoints.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [2, 0]);
    assert_eq!((&writes.tasks[..], writes.held.len()), (&[0, 2][..], 2));
    rig.end_together(&[(0, completed()), (1, completed()), (2, completed())]);
    assert_eq!(rig.begun(), [(1, 1), (3, 0)], "those that have ended make room for others");
    assert_eq!([rig.status(0), rig.status(2)], [TaskStatus::Succeeded; 2]);
    // A failure among them counts before anything begins.
    for (on_failure, begun) in [(OnFailure::StopNew, vec![(0, 1)]), (OnFailure::Pause, vec![])] {
        let mut rig = started(on_failure);
        rig.end_together(&[(0, completed()), (1, broken())]);
        assert_eq!(rig.begun(), begun, "{on_failure:?}");
        assert_eq!((rig.task(0).completed(), rig.status(1)), (1, TaskStatus::Failed));
    }
}

#[test]
fn a_checkpoint_carries_the_context_to_the_next_stage() {
    let mut rig = Rig::started(3);
    assert_eq!(&*rig.task(0).context(), "{}");
    rig.end(0, StageEnd::Completed(Some("{\"a\":1}".into())));
    let checkpoint = rig.task(0).checkpoint.clone().unwrap();
    assert_eq!((checkpoint.version, checkpoint.completed, &*checkpoint.context), (1, 1, "{\"a\":1}"));
    rig.complete(0);
    assert_eq!((rig.task(0).last_checkpoint, &*rig.task(0).context()), (2, "{\"a\":1}"));
}

#[test]
fn what_a_failure_does_to_the_others_is_the_plans_choice() {
    for (on_failure, begun, other) in [
        (OnFailure::StopNew, vec![], Intent::Run),
        (OnFailure::Continue, vec![(2, 0)], Intent::Run),
        (OnFailure::Pause, vec![], Intent::Pause),
    ] {
        let mut rig = Rig::new(3, 2, |spec| (spec.max_concurrency, spec.on_failure) = (2, on_failure));
        rig.must(Command::Start);
        rig.fail(0);
        assert_eq!(rig.status(0), TaskStatus::Failed);
        assert_eq!(rig.state.status(), PlanStatus::Attention);
        assert_eq!((rig.begun(), rig.task(1).intent), (begun, other), "{on_failure:?}");
        assert!(rig.task(0).lock.is_some(), "a failed task keeps its tenant's lock");
    }
}

#[test]
fn paused_and_crashed_are_told_apart() {
    // Paused between two stages, then the owner died.
    let mut rig = Rig::started(2);
    rig.must(Command::PauseTask(id(0)));
    assert_eq!(rig.status(0), TaskStatus::Running, "a pause waits for the stage");
    rig.complete(0);
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Paused, vec![]));
    rig.must(Command::TakenOver);
    assert_eq!(rig.status(0), TaskStatus::Paused);
    rig.must(Command::ResumeTask(id(0)));
    assert_eq!(rig.begun(), [(0, 1)]);
    // To be paused, and killed before the stage ended.
    let mut rig = Rig::started(2);
    rig.must(Command::PauseTask(id(0)));
    rig.must(Command::TakenOver);
    assert_eq!(rig.status(0), TaskStatus::Interrupted);
    assert_eq!(rig.stages(0), [StageStatus::Unknown, StageStatus::Pending]);
}

#[test]
fn after_a_takeover_nothing_begins_until_somebody_says_so() {
    let mut rig = Rig::new(3, 2, |spec| (spec.max_concurrency, spec.on_failure) = (1, OnFailure::Continue));
    rig.must(Command::Start);
    rig.must(Command::TakenOver);
    assert_eq!(rig.status(0), TaskStatus::Interrupted);
    assert_eq!(rig.state.status(), PlanStatus::Attention);
    for _ in 0..2 {
        rig.must(Command::Advance);
        rig.must(Command::TakenOver);
        assert!(rig.begun().is_empty());
    }
    rig.must(Command::Resume);
    assert_eq!(rig.begun(), [(1, 0)], "the others go on; the interrupted one waits for a retry");
}

#[test]
fn a_retried_task_that_waits_for_its_turn_is_paused_by_a_takeover() {
    let mut rig = Rig::new(2, 2, |spec| (spec.max_concurrency, spec.on_failure) = (1, OnFailure::Continue));
    rig.must(Command::Start);
    rig.fail(0);
    let failed = rig.task(0).waits_for.unwrap();
    rig.retry(0, |_| {}).unwrap();
    rig.must(Command::OlderEnded { task: id(0), job: failed });
    assert_eq!((rig.status(0), rig.status(1)), (TaskStatus::Pending, TaskStatus::Running));
    rig.must(Command::TakenOver);
    assert_eq!((rig.status(0), rig.status(1)), (TaskStatus::Paused, TaskStatus::Interrupted));
    rig.must(Command::PauseTask(id(0)));
    assert!(rig.begun().is_empty(), "another command begins nothing");
    rig.must(Command::ResumeTask(id(0)));
    assert_eq!(rig.begun(), [(0, 0)]);
}

#[test]
fn a_task_that_was_paused_before_the_start_goes_on_once_it_is_resumed() {
    let mut rig = Rig::new(2, 1, |_| {});
    rig.must(Command::PauseTask(id(0)));
    rig.must(Command::Start);
    assert_eq!(rig.writes[0].take, [0, 1], "its tenant is locked all the same");
    assert_eq!(rig.begun(), [(1, 0)]);
    rig.must(Command::ResumeTask(id(0)));
    assert_eq!(rig.begun(), [(0, 0)]);
}

#[test]
fn a_late_result_of_an_unknown_stage_is_a_checkpoint_and_begins_nothing() {
    let mut rig = Rig::started(2);
    rig.must(Command::TakenOver);
    rig.complete(0);
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Interrupted, vec![]));
    assert_eq!(rig.task(0).checkpoint.as_ref().unwrap().completed, 1);
    rig.retry(0, |_| {}).unwrap();
    let job = rig.task(0).waits_for;
    assert_eq!((job, rig.begun()), (None, vec![(0, 1)]), "stage 1 is not run again");
    // Of the last stage it ends the task.
    let mut rig = Rig::started(1);
    rig.must(Command::TakenOver);
    assert_eq!(rig.task(0).called_off(), None);
    rig.complete(0);
    assert_eq!(rig.status(0), TaskStatus::Succeeded);
}

#[test]
fn a_run_over_its_time_is_called_off_and_fails() {
    let mut rig = Rig::started(2);
    let length = rig.task(0).spec.timeout_ms;
    assert_eq!(rig.state.wake_at(), Some(START.plus_ms(length)));
    rig.now = START.plus_ms(length - 1);
    rig.must(Command::Advance);
    assert!(rig.cancelled.is_empty());
    rig.now = START.plus_ms(length);
    let (_, job) = rig.task(0).in_flight().unwrap();
    rig.must(Command::Advance);
    assert_eq!((rig.cancelled.clone(), rig.status(0)), (vec![job], TaskStatus::Running));
    rig.end(0, StageEnd::Ended(Outcome::Cancelled, "".into()));
    assert_eq!(rig.status(0), TaskStatus::Failed);
    assert!(rig.task(0).reason.as_ref().unwrap().contains("timeout_ms"));
}

#[test]
fn a_plan_over_its_time_starts_no_further_task_and_what_runs_goes_on() {
    let mut rig = Rig::new(2, 2, |spec| (spec.max_concurrency, spec.timeout_ms) = (1, 1_000));
    rig.must(Command::Start);
    rig.now = START.plus_ms(1_000);
    rig.must(Command::Advance);
    assert_eq!(rig.state.status(), PlanStatus::Attention);
    rig.complete(0);
    assert_eq!(rig.begun(), [(0, 1)]);
    rig.complete(0);
    assert_eq!((rig.status(0), rig.begun()), (TaskStatus::Succeeded, vec![]));
    assert_eq!(rig.status(1), TaskStatus::Pending);
}

#[test]
fn a_cancelled_task_ends_with_its_job_and_only_then_frees_its_lock() {
    let mut rig = Rig::new(2, 2, |spec| spec.max_concurrency = 1);
    rig.must(Command::Start);
    let (_, job) = rig.task(0).in_flight().unwrap();
    rig.must(Command::Cancel);
    assert_eq!(rig.cancelled, [job]);
    assert!(rig.task(0).lock.is_some() && rig.status(1) == TaskStatus::Cancelled);
    rig.end(0, StageEnd::Ended(Outcome::Cancelled, "".into()));
    assert_eq!((rig.status(0), rig.state.status()), (TaskStatus::Cancelled, PlanStatus::Cancelled));
    // Its attempt may still be under way.
    assert!(rig.task(0).lock.is_some() && rig.state.needs_owner());
    rig.must(Command::OlderEnded { task: id(0), job });
    assert!(rig.task(0).lock.is_none() && !rig.state.needs_owner());
}

#[test]
fn a_lost_lock_interrupts_and_a_retry_takes_it_anew() {
    let mut rig = Rig::started(2);
    rig.must(Command::LockLost(id(0), rig.task(0).lock));
    assert_eq!((rig.status(0), rig.task(0).lock), (TaskStatus::Interrupted, None));
    assert_eq!(rig.stages(0)[0], StageStatus::Unknown);
    rig.must(Command::Resolve { task: id(0), stage: 0, job: None, resolution: Resolution::NotDone });
    rig.retry(0, |_| {}).unwrap();
    assert!(rig.task(0).lock.is_some());
}

#[test]
fn with_a_lost_lock_the_job_in_flight_is_called_off() {
    let mut rig = Rig::started(2);
    let (_, job) = rig.task(0).in_flight().unwrap();
    rig.must(Command::LockLost(id(0), rig.task(0).lock));
    assert_eq!(rig.cancelled, [job]);
    rig.end(0, StageEnd::Ended(Outcome::Cancelled, "".into()));
    // How far it came nobody knows.
    assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Interrupted, StageStatus::Unknown));
    rig.must(Command::Resolve { task: id(0), stage: 0, job: None, resolution: Resolution::NotDone });
    assert_eq!(rig.task(0).waits_for, Some(job));
}

#[test]
fn a_last_stage_that_is_resolved_as_done_keeps_the_lock_until_its_attempt_is_over() {
    let mut rig = Rig::started(1);
    let (_, job) = rig.task(0).in_flight().unwrap();
    rig.must(Command::TakenOver);
    rig.must(Command::Resolve { task: id(0), stage: 0, job: None, resolution: Resolution::Done(None) });
    assert_eq!((rig.status(0), rig.stages(0)[0]), (TaskStatus::Succeeded, StageStatus::Succeeded));
    assert!(rig.task(0).lock.is_some());
    rig.must(Command::OlderEnded { task: id(0), job });
    assert!(rig.task(0).lock.is_none());
}

/// Every command in every status of a task with one stage under way, or none.
#[test]
fn every_command_in_every_status_is_carried_out_or_refused() {
    type Case = (TaskStatus, fn(&mut Rig));
    let cases: [Case; 7] = [
        (TaskStatus::Pending, |rig| rig.state.is_over_time = true),
        (TaskStatus::Running, |_| {}),
        (TaskStatus::Succeeded, |rig| {
            rig.complete(0);
            rig.complete(0);
        }),
        (TaskStatus::Failed, Rig::fail_first),
        (TaskStatus::Paused, |rig| {
            rig.must(Command::PauseTask(id(0)));
            rig.complete(0);
        }),
        (TaskStatus::Interrupted, |rig| rig.must(Command::TakenOver)),
        (TaskStatus::Cancelled, |rig| {
            rig.must(Command::CancelTask(id(0)));
            rig.end(0, StageEnd::Ended(Outcome::Cancelled, "".into()));
        }),
    ];
    for (status, bring) in cases {
        let rig = || {
            let mut rig = Rig::new(2, 2, |spec| spec.max_concurrency = 2);
            if status == TaskStatus::Pending {
                bring(&mut rig);
                rig.must(Command::Start);
            } else {
                rig.must(Command::Start);
                bring(&mut rig);
            }
            assert_eq!(rig.status(0), status);
            rig
        };
        let allowed = |command: Command| rig().apply(command).is_ok();
        use TaskStatus as T;
        let is = |those: &[TaskStatus]| those.contains(&status);
        assert_eq!(
            allowed(Command::PauseTask(id(0))),
            is(&[T::Pending, T::Running, T::Paused]),
            "{status:?}"
        );
        assert_eq!(
            allowed(Command::ResumeTask(id(0))),
            is(&[T::Pending, T::Running, T::Paused]),
            "{status:?}"
        );
        assert_eq!(allowed(Command::CancelTask(id(0))), !is(&[T::Succeeded]), "{status:?}");
        // The pending one is of a plan that is over its time.
        let may_retry = is(&[T::Pending, T::Failed, T::Paused, T::Cancelled]);
        assert_eq!(allowed(Command::Retry(id(0), retry())), may_retry, "{status:?}");
        let resolve = Command::Resolve { task: id(0), stage: 0, job: None, resolution: Resolution::NotDone };
        assert_eq!(allowed(resolve), is(&[T::Interrupted]), "{status:?}");
        for command in [Command::Pause, Command::Resume, Command::Cancel, Command::Start, Command::TakenOver]
        {
            assert!(allowed(command.clone()), "{command:?} in {status:?}");
        }
        let unknown = TaskId::from_u128(99);
        assert_eq!(rig().apply(Command::PauseTask(unknown)), Err(Refused::UnknownTask));
    }
}

impl Rig {
    fn fail_first(&mut self) {
        self.fail(0);
    }
}

fn broken() -> StageEnd {
    StageEnd::Ended(Outcome::Failed, "broken".into())
}
