//! A step in the making: a copy of the state, what changes in it, and what that writes.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{
    Checkpoint, EventKind, PlanEvent, PlanState, Refused, StageStart, StageState, Step, TaskState, Writes,
};
use crate::id::{JobId, TaskId};
use crate::lease::Token;
use crate::limits::{PLAN_CHANGES_MAX, TASK_CHANGES_MAX};
use crate::plan::status::{Intent, OnFailure, PlanStatus, StageStatus, TaskStatus};
use crate::time::Timestamp;

/// The reason of a task that ran over its time.
const OVER_TIME: &str = "the run took longer than the task's timeout_ms";
/// The reason of a task whose owner has changed.
const TAKEN_OVER: &str = "the plan's owner died or changed while the task ran";
/// The reason of a task whose lock was lost while it might have gone on.
const LOCK_LOST: &str = "the tenant's lock was broken, or it ran out and was taken";

pub(super) struct StepBuilder {
    /// The plan's status, as the events say it so far.
    pub(super) before: PlanStatus,
    needed_owner: bool,
    pub(super) next: PlanState,
    pub(super) now: Timestamp,
    pub(super) writes: Writes,
    touched: BTreeSet<usize>,
    cancel: Vec<JobId>,
    /// A task has just failed or been interrupted.
    has_failed: bool,
    /// From here on the plan's status changes, if it does, because a time is over, and not with what was asked for.
    is_status_own: bool,
}

/// That the step counts only under the lock of a task's tenant: the task has it, or takes it in the same commit. No stage is
/// completed without one.
pub(super) struct TenantFence {
    /// The task, by its place.
    at: usize,
}

impl StepBuilder {
    pub(super) fn new(state: &PlanState, now: Timestamp) -> Self {
        let (writes, touched, cancel) = Default::default();
        let (before, needed_owner) = (state.status(), state.needs_owner());
        Self {
            before,
            needed_owner,
            next: state.clone(),
            now,
            writes,
            touched,
            cancel,
            has_failed: false,
            is_status_own: false,
        }
    }

    /// The step: rows that changed get their next version.
    pub(super) fn finish(mut self) -> Step {
        let earlier = self.writes.events.len();
        self.note_status();
        if self.is_status_own {
            self.mark_own(earlier);
        }
        self.writes.plan |= self.next.needs_owner() != self.needed_owner;
        if self.writes.plan {
            self.next.version += 1;
        }
        for at in &self.touched {
            Arc::make_mut(&mut self.next.tasks[*at]).version += 1;
        }
        self.writes.tasks = self.touched.into_iter().collect();
        Step { next: self.next, writes: self.writes, cancel: self.cancel }
    }

    /// The plan's status after what was done so far, if it is another one.
    fn note_status(&mut self) {
        let after = self.next.status();
        if after != self.before {
            self.writes.plan = true;
            self.plan_event(EventKind::Status, Some((self.before.as_str(), after.as_str())));
            self.before = after;
        }
    }

    pub(super) fn place(&self, task: TaskId) -> Result<usize, Refused> {
        self.next.place_of(task).ok_or(Refused::UnknownTask)
    }

    pub(super) fn task(&self, at: usize) -> &TaskState {
        &self.next.tasks[at]
    }

    /// The task, to be changed.
    pub(super) fn touch(&mut self, at: usize) -> &mut TaskState {
        self.touched.insert(at);
        Arc::make_mut(&mut self.next.tasks[at])
    }

    fn plan_event(&mut self, kind: EventKind, change: Option<(&'static str, &'static str)>) {
        self.writes.events.push(PlanEvent::of_plan(kind, change));
    }

    /// All events but those earlier ones are the owner's own acts.
    fn mark_own(&mut self, earlier: usize) {
        self.writes.events[earlier..].iter_mut().for_each(|event| event.is_own = true);
    }

    pub(super) fn task_event(
        &mut self,
        at: usize,
        kind: EventKind,
        change: Option<(&'static str, &'static str)>,
        reason: Option<Arc<str>>,
    ) {
        let event = self.event_of(at, kind, change, reason);
        self.writes.events.push(event);
    }

    /// A task's status changes; where the task is over, its tenant's lock is given back as soon as that may be.
    pub(super) fn set_status(&mut self, at: usize, status: TaskStatus, reason: Option<Arc<str>>) {
        let before = self.task(at).status;
        if before == status {
            return;
        }
        self.task_event(at, EventKind::Status, Some((before.as_str(), status.as_str())), reason.clone());
        self.has_failed |= status.wants_attention();
        let task = self.touch(at);
        task.status = status;
        task.reason = reason;
        if status != TaskStatus::Running {
            task.failing = None;
        }
        self.free_lock(at);
    }

    /// A task that is over gives its tenant's lock back, once no attempt of it may be under way any more.
    pub(super) fn free_lock(&mut self, at: usize) {
        let task = self.task(at);
        if !task.status.is_over() || task.waits_for.is_some() {
            return;
        }
        if let Some(token) = self.touch(at).lock.take() {
            self.writes.held.retain(|(held, _)| *held != at);
            self.writes.free.push((at, token));
        }
    }

    fn set_intent(&mut self, at: usize, intent: Intent) {
        let before = self.task(at).intent;
        if before != intent {
            self.task_event(at, EventKind::Intent, Some((before.as_str(), intent.as_str())), None);
            self.touch(at).intent = intent;
        }
    }

    pub(super) fn set_stage(&mut self, at: usize, stage: usize, state: StageState) {
        let before = self.task(at).stages[stage].status;
        if before != state.status {
            self.stage_event(at, stage, (before, state.status), None);
        }
        self.touch(at).stages[stage] = state;
    }

    pub(super) fn stage_event(
        &mut self,
        at: usize,
        stage: usize,
        (before, after): (StageStatus, StageStatus),
        reason: Option<Arc<str>>,
    ) {
        let change = Some((before.as_str(), after.as_str()));
        let event = PlanEvent { stage: Some(stage), ..self.event_of(at, EventKind::Stage, change, reason) };
        self.writes.events.push(event);
    }

    /// An event of this task in its run.
    fn event_of(
        &self,
        at: usize,
        kind: EventKind,
        change: Option<(&'static str, &'static str)>,
        reason: Option<Arc<str>>,
    ) -> PlanEvent {
        let (task, run) = (Some(self.task(at).id), Some(self.task(at).run));
        PlanEvent { task, run, reason, ..PlanEvent::of_plan(kind, change) }
    }

    /// What follows counts only while the task has its tenant's lock. `None` where it is known to have lost it.
    pub(super) fn fence(&mut self, at: usize) -> Option<TenantFence> {
        let token = self.task(at).lock?;
        if !self.writes.held.iter().any(|(held, _)| *held == at) {
            self.writes.held.push((at, token));
        }
        Some(TenantFence { at })
    }

    /// The same, and the lock is renewed with this step: it may have run out without being taken. A task that has lost the lock
    /// takes it, if it is to be had.
    pub(super) fn fence_or_take(&mut self, at: usize) -> TenantFence {
        if let Some(fence) = self.fence(at) {
            self.writes.renews = true;
            return fence;
        }
        self.writes.take.push(at);
        TenantFence { at }
    }

    /// A job that may be under way, also one of an earlier run, is called off.
    pub(super) fn call_off(&mut self, job: Option<JobId>) {
        self.cancel.extend(job);
    }

    pub(super) fn set_plan_intent(&mut self, intent: Intent) {
        if self.next.intent != intent {
            let change = (self.next.intent.as_str(), intent.as_str());
            self.plan_event(EventKind::Intent, Some(change));
            self.next.intent = intent;
            self.writes.plan = true;
        }
    }

    pub(super) fn start(&mut self) -> Result<(), Refused> {
        // All its tasks may have been cancelled one by one before.
        let is_over_unstarted = self.next.started_at.is_none() && self.before.is_over();
        if self.next.intent == Intent::Cancel || is_over_unstarted {
            return Err(refused("a cancelled plan cannot be started"));
        }
        if self.next.started_at.is_none() {
            self.next.started_at = Some(self.now);
            self.writes.plan = true;
            self.writes.take =
                (0..self.next.tasks.len()).filter(|at| !self.task(*at).status.is_over()).collect();
        }
        Ok(())
    }

    pub(super) fn pause(&mut self) -> Result<(), Refused> {
        if self.next.started_at.is_none() || self.before.is_over() || self.next.intent == Intent::Cancel {
            return Err(refused("only a plan that was started and is not over can be paused"));
        }
        if self.next.intent != Intent::Pause && self.next.version >= PLAN_CHANGES_MAX {
            return Err(refused(&format!("the plan has the {PLAN_CHANGES_MAX} changes that it may have")));
        }
        self.set_plan_intent(Intent::Pause);
        for at in 0..self.next.tasks.len() {
            if !self.would_go_on(at) {
                continue;
            }
            if self.task(at).version < TASK_CHANGES_MAX {
                self.pause_at(at);
            } else if self.task(at).in_flight().is_none() {
                // The plan's intent halts it: its turn, and its time, begin with the plan's.
                self.set_status(at, TaskStatus::Pending, None);
            }
        }
        Ok(())
    }

    /// Pauses the tasks that the plan's intent alone has halted, but one: another one's retry must not have them go on. They
    /// were resumed alone, or had changed too often to be paused with the plan.
    pub(super) fn pause_halted_but(&mut self, retried: usize) {
        for at in (0..self.next.tasks.len()).filter(|at| *at != retried) {
            // Each such retry is a run of its task, so these changes have an end.
            if self.would_go_on(at) {
                self.pause_at(at);
            }
        }
    }

    /// Whether a task goes on, or has a turn to come, while no further task starts.
    fn would_go_on(&self, at: usize) -> bool {
        let task = self.task(at);
        let goes_on = match task.status {
            TaskStatus::Running => true,
            // One that somebody resumed or retried would have the next turn, although no other task starts.
            TaskStatus::Pending => task.was_begun(),
            _ => false,
        };
        goes_on && task.intent == Intent::Run
    }

    pub(super) fn resume(&mut self, with_paused: bool) -> Result<(), Refused> {
        if self.next.started_at.is_none() || self.before.is_over() || self.next.intent == Intent::Cancel {
            return Err(refused("only a plan that was started and is not over can be resumed"));
        }
        // A repetition leaves a task paused that was paused alone. Which tasks a failure has paused, the state does not say.
        if self.before == PlanStatus::Running && self.next.spec.on_failure != OnFailure::Pause {
            return Ok(());
        }
        let was_meant_to_run = self.next.intent == Intent::Run;
        self.set_plan_intent(Intent::Run);
        if std::mem::take(&mut self.next.is_halted) {
            self.writes.plan = true;
            if was_meant_to_run {
                // The history has who let the other tasks start.
                let run = Intent::Run.as_str();
                self.plan_event(EventKind::Intent, Some((run, run)));
            }
        }
        for at in 0..self.next.tasks.len() {
            if with_paused
                && self.task(at).intent == Intent::Pause
                && matches!(self.task(at).status, TaskStatus::Running | TaskStatus::Paused)
            {
                self.resume_at(at);
            }
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self) -> Result<(), Refused> {
        if self.next.intent == Intent::Cancel || self.before == PlanStatus::Cancelled {
            return Ok(());
        }
        if self.before.is_over() {
            return Err(refused("the plan is over"));
        }
        self.set_plan_intent(Intent::Cancel);
        for at in 0..self.next.tasks.len() {
            if !self.task(at).status.is_over() {
                self.cancel_at(at);
            }
        }
        Ok(())
    }

    pub(super) fn pause_task(&mut self, task: TaskId) -> Result<(), Refused> {
        let at = self.place(task)?;
        match (self.task(at).status, self.task(at).intent) {
            (TaskStatus::Paused, _) | (TaskStatus::Running, Intent::Pause) => Ok(()),
            (TaskStatus::Pending | TaskStatus::Running, Intent::Run | Intent::Pause) => {
                // What people pause and resume again and again has no end otherwise.
                if self.task(at).version >= TASK_CHANGES_MAX {
                    return Err(Refused::TooMany("changes", TASK_CHANGES_MAX));
                }
                self.pause_at(at);
                Ok(())
            }
            (status, _) => Err(refused(&format!("a task that is {} cannot be paused", status.as_str()))),
        }
    }

    fn pause_at(&mut self, at: usize) {
        self.set_intent(at, Intent::Pause);
        if self.task(at).in_flight().is_none() {
            self.set_status(at, TaskStatus::Paused, None);
        }
    }

    pub(super) fn resume_task(&mut self, task: TaskId) -> Result<(), Refused> {
        let at = self.place(task)?;
        match (self.task(at).status, self.task(at).intent) {
            (TaskStatus::Paused, _)
            | (TaskStatus::Running | TaskStatus::Pending, Intent::Run | Intent::Pause) => {
                self.resume_at(at);
                Ok(())
            }
            (TaskStatus::Running | TaskStatus::Pending, Intent::Cancel) => {
                Err(refused("the task is being cancelled; once it is CANCELLED, it can be retried"))
            }
            (TaskStatus::Succeeded, _) => {
                Err(refused("a task that is SUCCEEDED cannot be resumed: all its stages are completed"))
            }
            // It is retried once the plan is started for the sake of its other tasks.
            (TaskStatus::Cancelled, _) if self.next.started_at.is_none() => Err(self.never_started(task)),
            (status @ (TaskStatus::Failed | TaskStatus::Interrupted | TaskStatus::Cancelled), _) => {
                Err(refused(&format!("a task that is {} is retried, not resumed", status.as_str())))
            }
        }
    }

    /// The refusal of what needs a plan that was started.
    pub(super) fn never_started(&self, task: TaskId) -> Refused {
        // A caller that retries a tenant's newest task names neither the task nor the plan.
        refused(&format!("task {task} is of plan {}, which was never started", self.next.id))
    }

    fn resume_at(&mut self, at: usize) {
        self.set_intent(at, Intent::Run);
        if self.task(at).status == TaskStatus::Paused {
            // It waits for its turn. What it does next counts only under its lock.
            self.set_status(at, TaskStatus::Pending, None);
            self.fence(at);
        }
    }

    pub(super) fn cancel_task(&mut self, task: TaskId) -> Result<(), Refused> {
        let at = self.place(task)?;
        match self.task(at).status {
            TaskStatus::Cancelled => Ok(()),
            TaskStatus::Succeeded => Err(refused("a task that is SUCCEEDED cannot be cancelled")),
            _ => {
                self.cancel_at(at);
                Ok(())
            }
        }
    }

    pub(super) fn cancel_run(&mut self, task: TaskId, run: u32) -> Result<(), Refused> {
        if self.task(self.place(task)?).run != run {
            return Err(Refused::NotAsSeen);
        }
        self.cancel_task(task)
    }

    /// A job that may be under way is called off first; the task ends with it, and keeps its lock until no attempt of it may
    /// be under way.
    fn cancel_at(&mut self, at: usize) {
        self.set_intent(at, Intent::Cancel);
        match self.task(at).in_flight() {
            Some((_, job)) => self.cancel.push(job),
            None => self.set_status(at, TaskStatus::Cancelled, None),
        }
    }

    /// A stage is completed: the next checkpoint, and the end of the task after the last one.
    pub(super) fn complete(&mut self, fence: TenantFence, stage: usize, context: Option<Arc<str>>) {
        let TenantFence { at } = fence;
        let task = self.task(at);
        let checkpoint = Checkpoint {
            version: task.last_checkpoint + 1,
            completed: stage as u32 + 1,
            context: context.unwrap_or_else(|| task.context()),
        };
        let job = task.stages[stage].job;
        self.set_stage(at, stage, StageState { status: StageStatus::Succeeded, job });
        self.task_event(at, EventKind::Checkpoint, None, None);
        let task = self.touch(at);
        task.last_checkpoint = checkpoint.version;
        task.checkpoint = Some(checkpoint.clone());
        self.writes.checkpoints.push((at, checkpoint));
        if self.task(at).completed() == self.task(at).stages.len() {
            self.set_status(at, TaskStatus::Succeeded, None);
        } else if self.task(at).intent == Intent::Cancel {
            self.set_status(at, TaskStatus::Cancelled, None);
        }
    }

    /// What the plan does about the others when a task has just failed or been interrupted. A person who resumes them later
    /// has seen that.
    pub(super) fn on_failure(&mut self) {
        if !std::mem::take(&mut self.has_failed) || self.next.spec.on_failure != OnFailure::Pause {
            return;
        }
        for at in 0..self.next.tasks.len() {
            if self.would_go_on(at) {
                self.pause_at(at);
            }
        }
    }

    pub(super) fn lock_lost(&mut self, task: TaskId, lost: Option<Token>) {
        let Some(at) = self.next.place_of(task) else { return };
        if self.task(at).lock != lost {
            return;
        }
        let may_go_on = self.task(at).status.may_go_on();
        if self.task(at).lock.is_none() && !(may_go_on && self.next.started_at.is_some()) {
            return;
        }
        self.writes.held.retain(|(held, _)| *held != at);
        self.touch(at).lock = None;
        self.task_event(at, EventKind::LockLost, None, None);
        // Its lane would begin further attempts, and its node goes on, while another task may have the tenant.
        self.call_off(self.task(at).in_flight().map(|(_, job)| job));
        if may_go_on {
            self.interrupt(at, LOCK_LOST);
        }
        self.on_failure();
    }

    /// A task that is over has given its lock back, unless an attempt of it may still be under way; one that failed or was
    /// interrupted keeps it until it runs out. As long as the job of an interrupted one may be under way, it is noticed that the
    /// lock was lost.
    pub(super) fn renew_locks(&mut self) {
        for at in 0..self.next.tasks.len() {
            let task = self.task(at);
            let Some(token) = task.lock else { continue };
            if task.needs_lock() {
                self.fence(at);
                self.writes.renews = true;
            } else if task.in_flight().is_some() {
                self.writes.checked.push((at, token));
            }
        }
    }

    /// A person has said what the task's stage did: the reason says why the task is interrupted, if it is, and nothing of how the
    /// stage's job ended.
    pub(super) fn settle_reason(&mut self, at: usize) {
        let task = self.task(at);
        let reason: Option<Arc<str>> = match (task.status, task.reason.as_deref()) {
            (TaskStatus::Interrupted, Some(TAKEN_OVER)) => Some(TAKEN_OVER.into()),
            (TaskStatus::Interrupted, _) => Some(LOCK_LOST.into()),
            _ => None,
        };
        self.touch(at).reason = reason;
    }

    /// Nothing is dispatched. A job that is under way may still give a result.
    fn interrupt(&mut self, at: usize, reason: &str) {
        if let Some((stage, job)) = self.task(at).in_flight() {
            self.set_stage(at, stage, StageState { status: StageStatus::Unknown, job: Some(job) });
        }
        self.set_status(at, TaskStatus::Interrupted, Some(reason.into()));
    }

    pub(super) fn taken_over(&mut self) {
        if self.next.started_at.is_none() || self.before.is_over() {
            return;
        }
        let mut would_go_on = false;
        let is_to_run = self.next.intent == Intent::Run;
        // Those that a failure kept from their turn would have it with the retry of another task.
        let gives_turns = is_to_run && !self.next.is_over_time && !self.next.is_halted;
        for at in 0..self.next.tasks.len() {
            let task = self.task(at);
            match task.status {
                TaskStatus::Running if task.intent == Intent::Pause && task.in_flight().is_none() => {
                    self.set_status(at, TaskStatus::Paused, None);
                }
                TaskStatus::Running => {
                    would_go_on = true;
                    self.interrupt(at, TAKEN_OVER);
                }
                // One that somebody resumed or retried would have the next turn: now it needs their word again, or the plan's
                // resumption, since no person paused it.
                TaskStatus::Pending if task.was_begun() => {
                    would_go_on |= is_to_run;
                    self.pause_at(at);
                }
                TaskStatus::Pending => would_go_on |= gives_turns,
                _ => {}
            }
        }
        if would_go_on {
            self.next.is_halted = true;
            self.writes.plan = true;
            self.plan_event(EventKind::TakenOver, None);
        }
        self.on_failure();
    }

    /// Ends what has run out of time, and begins what may begin.
    pub(super) fn advance(&mut self, new_job: &mut dyn FnMut() -> JobId) {
        self.end_over_time();
        // A task that has nothing left to do makes room for another one.
        while self.begin_ready(new_job) {}
        if self.next.is_halted && !self.next.tasks.iter().any(|task| task.waits_while_halted()) {
            self.next.is_halted = false;
            self.writes.plan = true;
        }
    }

    /// Whether a task ended at its beginning.
    fn begin_ready(&mut self, new_job: &mut dyn FnMut() -> JobId) -> bool {
        let mut has_ended = false;
        let max = self.next.spec.max_concurrency as usize;
        let mut running = self.next.tasks.iter().filter(|task| task.status == TaskStatus::Running).count();
        // Nothing that follows makes a task fail.
        let starts_tasks = self.next.starts_tasks();
        for at in 0..self.next.tasks.len() {
            if running < max && self.may_run(at, starts_tasks) {
                running += 1;
                // One that takes its lock with this step begins with the next one. Its turn is no other's meanwhile.
                if self.task(at).lock.is_some() {
                    self.set_status(at, TaskStatus::Running, None);
                    // The time of a pause is not the run's.
                    self.touch(at).run_at = Some(self.now);
                }
            }
            if self.task(at).status == TaskStatus::Running {
                self.begin_stage(at, new_job);
                has_ended |= self.task(at).status.is_over();
            }
        }
        has_ended
    }

    /// Whether a task that waits for its turn may have it. One that is retried, or was resumed, is wanted by somebody.
    fn may_run(&self, at: usize, starts_tasks: bool) -> bool {
        let task = self.task(at);
        task.status == TaskStatus::Pending
            && task.intent == Intent::Run
            && self.next.intent == Intent::Run
            && (task.was_begun() || starts_tasks)
            && (task.lock.is_some() || self.writes.take.contains(&at))
    }

    fn begin_stage(&mut self, at: usize, new_job: &mut dyn FnMut() -> JobId) {
        let task = self.task(at);
        let stage = task.completed();
        let is_ready = task.in_flight().is_none()
            && task.intent == Intent::Run
            && task.failing.is_none()
            && task.lock.is_some()
            && task.waits_for.is_none()
            && self.next.intent == Intent::Run;
        if !is_ready {
            return;
        }
        if stage == task.stages.len() {
            // A corrected definition ends at the checkpoint.
            self.fence(at);
            return self.set_status(at, TaskStatus::Succeeded, None);
        }
        let job = new_job();
        self.fence(at);
        self.set_stage(at, stage, StageState { status: StageStatus::Running, job: Some(job) });
        self.writes.starts.push(StageStart { task: at, stage, job });
    }

    fn end_over_time(&mut self) {
        let now = self.now;
        let is_over =
            |since: Option<Timestamp>, length: u64| since.is_some_and(|since| now.ms_since(since) >= length);
        let is_plan_over =
            self.next.may_run_over_time() && is_over(self.next.started_at, self.next.spec.timeout_ms);
        let over: Vec<_> = (0..self.next.tasks.len())
            .filter(|at| {
                let task = self.task(*at);
                task.status == TaskStatus::Running
                    && task.failing.is_none()
                    && is_over(task.run_at, task.spec.timeout_ms)
            })
            .collect();
        if !is_plan_over && over.is_empty() {
            return;
        }
        self.note_status();
        self.is_status_own = true;
        let earlier = self.writes.events.len();
        if is_plan_over {
            self.next.is_over_time = true;
            self.writes.plan = true;
            self.plan_event(EventKind::OverTime, None);
        }
        for at in over {
            self.task_event(at, EventKind::OverTime, None, None);
            match self.task(at).in_flight() {
                Some((_, job)) => {
                    self.touch(at).failing = Some(OVER_TIME.into());
                    self.cancel.push(job);
                }
                None => self.set_status(at, TaskStatus::Failed, Some(OVER_TIME.into())),
            }
        }
        self.on_failure();
        self.mark_own(earlier);
    }
}

pub(super) fn refused(why: &str) -> Refused {
    Refused::Status(why.to_owned())
}
