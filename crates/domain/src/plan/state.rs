//! The state of one plan: commands go in; what is to be written, and what follows once it is, come out.
//!
//! [`PlanState::apply`] changes nothing. It answers a [`Step`] with the state that follows, which counts once the step's
//! writes are committed; until then the old one does. The shell commits one step at a time. Where a commit is refused or
//! its outcome is unknown, it reads the plan again.

mod retry;
mod stage_ends;
mod step_builder;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use super::spec::{PlanSpec, StageSpec, TaskSpec};
use super::status::{Intent, OnFailure, PlanStatus, StageStatus, TaskStatus};
use crate::id::{JobId, PlanId, TaskId};
use crate::job::Outcome;
use crate::lease::Token;
use crate::time::Timestamp;
use crate::trace_parent::TraceParent;
pub use retry::{From, Retry, Seen};
use step_builder::StepBuilder;

/// What a finished stage leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Its number, from 1, in all runs of the task.
    pub version: u32,
    /// How many stages were completed, in order.
    pub completed: u32,
    /// What the next stage is given: JSON text.
    pub context: Arc<str>,
}

/// A stage of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StageState {
    /// Its status.
    pub status: StageStatus,
    /// The job that runs it, or did.
    pub job: Option<JobId>,
}

/// A task in its newest run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskState {
    /// The task's id.
    pub id: TaskId,
    /// What was asked.
    pub spec: Arc<TaskSpec>,
    /// The number of the definition that the run has; 1 is the plan's.
    pub definition: u32,
    /// Its status.
    pub status: TaskStatus,
    /// What people want of it.
    pub intent: Intent,
    /// The number of the run, from 1.
    pub run: u32,
    /// When the run began, or went on after its last pause; `None` while it waits for its first turn.
    pub run_at: Option<Timestamp>,
    /// The stages, in order.
    pub stages: Vec<StageState>,
    /// What the next stage continues from.
    pub checkpoint: Option<Checkpoint>,
    /// The highest version of a checkpoint of this task.
    pub last_checkpoint: u32,
    /// The token of the tenant's lock, while this task has it.
    pub lock: Option<Token>,
    /// A job that was called off, or that somebody has resolved, whose attempt may still be under way. Until the attempt is over
    /// no stage begins, and a task that is over keeps its tenant's lock.
    pub waits_for: Option<JobId>,
    /// Why the run fails once the job that was called off has ended.
    pub failing: Option<Arc<str>>,
    /// Why it failed or was interrupted; or how the job of its stage ended after it had lost its tenant's lock. A cancelled task
    /// has one as long as its stage is UNKNOWN.
    pub reason: Option<Arc<str>>,
    /// The span of the last request for a retry that had one, which its stages continue; `None` where that of the plan counts.
    pub traceparent: Option<TraceParent>,
    /// The version of its row, which every write raises by one.
    pub version: u64,
}

/// A plan and all its tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanState {
    /// The plan's id.
    pub id: PlanId,
    /// What was asked.
    pub spec: Arc<PlanSpec>,
    /// What people want of it.
    pub intent: Intent,
    /// Its owner has changed while tasks ran or waited for their turn, or a task of it was retried alone: no further task starts
    /// until somebody resumes the plan. Over once no task waits for that.
    pub is_halted: bool,
    /// It ran over its time: no further task starts.
    pub is_over_time: bool,
    /// Everything of it was over in the meantime, and a task was retried then: its time does not count any more.
    pub is_untimed: bool,
    /// When it was started.
    pub started_at: Option<Timestamp>,
    /// The span of the request that started it, which the stages of its tasks continue.
    pub traceparent: Option<TraceParent>,
    /// The tasks, in their order.
    pub tasks: Vec<Arc<TaskState>>,
    /// The version of its row.
    pub version: u64,
}

/// What reaches a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Take the locks of all tenants and begin.
    Start,
    /// Begin no stage any more until [`Self::Resume`].
    Pause,
    /// Go on.
    Resume,
    /// Go on, and leave the tasks paused that are, or are to be once their stages have ended.
    ResumeButPaused,
    /// End; stages that are under way are called off.
    Cancel,
    /// Begin no further stage of this task.
    PauseTask(TaskId),
    /// Go on with this task.
    ResumeTask(TaskId),
    /// End this task.
    CancelTask(TaskId),
    /// The same, if this is its newest run.
    CancelRun(TaskId, u32),
    /// Say what a stage did of which nobody knows it.
    Resolve {
        /// The task.
        task: TaskId,
        /// Which stage, from 0.
        stage: usize,
        /// The job of the stage that is meant. `None` means whichever it has.
        job: Option<JobId>,
        /// What it did.
        resolution: Resolution,
    },
    /// Run a task again.
    Retry(TaskId, Retry),
    /// A stage's job has ended.
    StageEnded {
        /// The task.
        task: TaskId,
        /// Which job.
        job: JobId,
        /// How the job ended.
        end: StageEnd,
    },
    /// The job that a task waits for is over, and so is every attempt of it.
    OlderEnded {
        /// Which task.
        task: TaskId,
        /// Which job.
        job: JobId,
    },
    /// The lock of a task's tenant was broken, or ran out and was taken. It is the lock at this token, or `None` where the task
    /// was found without its lock. If the task has taken another lock since, nothing happens.
    LockLost(TaskId, Option<Token>),
    /// Renew the locks of the tenants whose tasks may go on, and find out which others were lost while jobs may be under way.
    RenewLocks,
    /// The plan's owner died or has changed.
    TakenOver,
    /// Begin what may begin, and end what has run out of time.
    Advance,
}

/// What a person says of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It is done; with the context for the next stage, or that of the last checkpoint.
    Done(Option<Arc<str>>),
    /// It did nothing.
    NotDone,
}

/// How a stage's job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageEnd {
    /// It succeeded; with the context for the next stage, or that of the last checkpoint.
    Completed(Option<Arc<str>>),
    /// It succeeded, and its output cannot be kept.
    Unfit(Arc<str>),
    /// It did not succeed, as its node or a person said.
    Ended(Outcome, Arc<str>),
    /// It did not succeed: its last attempt was taken from its node, which may have gone on for a while.
    Revoked(Outcome, Arc<str>),
}

/// Why a plan does not do what it was asked for. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The plan has no such task.
    UnknownTask,
    /// The task has no such stage.
    UnknownStage,
    /// Not in this status.
    Status(String),
    /// The task's run or checkpoint is not the one that was seen.
    NotAsSeen,
    /// There is no such checkpoint.
    UnknownCheckpoint,
    /// The task runs.
    StillRunning,
    /// A stage, counted from 0, is UNKNOWN, and nobody has resolved it.
    StageUnknown(usize),
    /// A stage, counted from 0, that is completed is another one in the corrected definition.
    DefinitionChanged(usize),
    /// The task has as many runs, checkpoints or changes as it may, and that number.
    TooMany(&'static str, u64),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTask => f.write_str("the plan has no such task"),
            Self::UnknownStage => f.write_str("the task has no such stage"),
            Self::Status(why) => f.write_str(why),
            Self::NotAsSeen => {
                f.write_str("the task has another run or checkpoint by now than the one that was seen")
            }
            Self::UnknownCheckpoint => f.write_str("the task has no such checkpoint"),
            Self::StillRunning => f.write_str("the task still runs, or waits for its turn"),
            Self::StageUnknown(at) => write!(
                f,
                "stage {} is UNKNOWN, and nobody has resolved it: find out what it did, and resolve it as done or not_done \
                 before the retry",
                at + 1
            ),
            Self::DefinitionChanged(at) => write!(
                f,
                "stage {} is completed, and the corrected definition lacks it, or has another name, payload, requires, pool \
                 or route for it",
                at + 1
            ),
            Self::TooMany(what, max) => write!(f, "the task has the {max} {what} that it may have"),
        }
    }
}

/// A stage's job to be submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageStart {
    /// The task, by its place in the plan.
    pub task: usize,
    /// Which stage, from 0.
    pub stage: usize,
    /// The id of the job.
    pub job: JobId,
}

/// Something that happened, for the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanEvent {
    /// To this task; `None` to the plan.
    pub task: Option<TaskId>,
    /// What happened.
    pub kind: EventKind,
    /// In which run of the task.
    pub run: Option<u32>,
    /// To which stage, from 0.
    pub stage: Option<usize>,
    /// The status before, where it changed.
    pub before: Option<&'static str>,
    /// The status after.
    pub after: Option<&'static str>,
    /// Why, in words.
    pub reason: Option<Arc<str>>,
    /// Whether the plan's owner did it by itself: it is not the act of the person who asked for the step.
    pub is_own: bool,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The status of a plan or task changed.
    Status,
    /// The intent of a plan or task changed.
    Intent,
    /// The status of a stage changed; or its job ended after the task had lost its tenant's lock, and the stage stays UNKNOWN.
    Stage,
    /// A checkpoint was written.
    Checkpoint,
    /// A person said what an UNKNOWN stage did.
    Resolved,
    /// A new run was opened.
    Retried,
    /// The tenant's lock was lost: it was broken, or it ran out and was taken.
    LockLost,
    /// A person broke the tenant's lock.
    LockBroken,
    /// The plan has a new owner.
    TakenOver,
    /// The plan or the run took too long.
    OverTime,
}

/// What follows from a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The state once the writes are committed.
    pub next: PlanState,
    /// What is to be committed, all or nothing.
    pub writes: Writes,
    /// Jobs to be cancelled once it is.
    pub cancel: Vec<JobId>,
}

/// What one commit writes of a plan, fenced by the plan's lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writes {
    /// Whether the plan's own row changes.
    pub plan: bool,
    /// Tasks whose rows change, by their places.
    pub tasks: Vec<usize>,
    /// Tasks whose tenants' locks are taken.
    pub take: Vec<usize>,
    /// Tasks whose tenants' locks are given back.
    pub free: Vec<(usize, Token)>,
    /// Tasks whose tenants' locks must be held at these tokens.
    pub held: Vec<(usize, Token)>,
    /// Whether the locks that must be held are renewed too.
    pub renews: bool,
    /// Tasks whose tenants' locks must be held at these tokens as well, and are never renewed.
    pub checked: Vec<(usize, Token)>,
    /// Tasks whose definitions are new.
    pub definitions: Vec<usize>,
    /// New checkpoints.
    pub checkpoints: Vec<(usize, Checkpoint)>,
    /// Jobs of stages that a person has resolved, or of a run that another one follows. Those that failed are dismissed:
    /// nobody is to retry them by themselves.
    pub superseded: Vec<JobId>,
    /// Jobs of stages.
    pub starts: Vec<StageStart>,
    /// What happened.
    pub events: Vec<PlanEvent>,
}

impl Step {
    /// Has the stages of what this command starts, or runs again, continue a span.
    pub fn continue_span(&mut self, command: &Command, span: TraceParent) {
        match command {
            // The start of a plan that was started before takes no locks.
            Command::Start if !self.writes.take.is_empty() => self.next.traceparent = Some(span),
            Command::Retry(task, _) => {
                if let Some(at) = self.next.place_of(*task) {
                    Arc::make_mut(&mut self.next.tasks[at]).traceparent = Some(span);
                }
            }
            _ => {}
        }
    }
}

impl Writes {
    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The tasks, by their places, whose tenants' locks must be held, each at this token, or nothing is written.
    pub fn needed_locks(&self) -> impl Iterator<Item = &(usize, Token)> {
        self.held.iter().chain(&self.free).chain(&self.checked)
    }
}

impl PlanEvent {
    /// That a plan was made.
    #[must_use]
    pub fn made(status: PlanStatus) -> Self {
        Self { after: Some(status.as_str()), ..Self::of_plan(EventKind::Status, None) }
    }

    /// Of this kind, to the plan, with what was before and after where something changed.
    fn of_plan(kind: EventKind, change: Option<(&'static str, &'static str)>) -> Self {
        let (before, after) = change.unzip();
        Self { task: None, kind, run: None, stage: None, before, after, reason: None, is_own: false }
    }
}

impl EventKind {
    /// The name that tables and answers show.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Intent => "intent",
            Self::Stage => "stage",
            Self::Checkpoint => "checkpoint",
            Self::Resolved => "resolved",
            Self::Retried => "retried",
            Self::LockLost => "lock_lost",
            Self::LockBroken => "lock_broken",
            Self::TakenOver => "taken_over",
            Self::OverTime => "over_time",
        }
    }
}

impl TaskState {
    /// A task that was never run.
    #[must_use]
    pub fn new(id: TaskId, spec: Arc<TaskSpec>) -> Self {
        let stages = vec![StageState { status: StageStatus::Pending, job: None }; spec.stages.len()];
        Self {
            id,
            spec,
            definition: 1,
            status: TaskStatus::Pending,
            intent: Intent::Run,
            run: 1,
            run_at: None,
            stages,
            checkpoint: None,
            last_checkpoint: 0,
            lock: None,
            waits_for: None,
            failing: None,
            reason: None,
            traceparent: None,
            version: 1,
        }
    }

    /// How many stages are completed, in order.
    #[must_use]
    pub fn completed(&self) -> usize {
        self.stages.iter().take_while(|stage| stage.status.is_completed()).count()
    }

    /// The stage whose job may be under way, and the job. The job of a task that is over has ended, though a stage of a cancelled
    /// one may be UNKNOWN; [`Self::waits_for`] says whether an attempt of it may go on.
    #[must_use]
    pub fn in_flight(&self) -> Option<(usize, JobId)> {
        if self.status.is_over() {
            return None;
        }
        let at = self.stages.iter().position(|stage| stage.status.is_in_flight())?;
        Some((at, self.stages[at].job?))
    }

    /// The job in flight that is to be called off: nobody wants the run to go on, or the task lost its tenant's lock, so that its
    /// result counts for nothing. It follows from the state, so that every owner of the plan finds it until the job has ended.
    /// After a takeover the attempt that was under way goes on as long as the task has the lock: its late result counts.
    #[must_use]
    pub fn called_off(&self) -> Option<JobId> {
        let (_, job) = self.in_flight()?;
        (self.intent == Intent::Cancel || self.failing.is_some() || self.lock.is_none()).then_some(job)
    }

    /// Whether its tenant's lock is renewed: it may go on, or is over while an attempt of it may be under way.
    fn needs_lock(&self) -> bool {
        self.status.may_go_on() || self.status.is_over() && self.waits_for.is_some()
    }

    /// The first stage that is UNKNOWN.
    #[must_use]
    pub fn unknown(&self) -> Option<usize> {
        self.stages.iter().position(|stage| stage.status == StageStatus::Unknown)
    }

    /// The context for the next stage: JSON text.
    #[must_use]
    pub fn context(&self) -> Arc<str> {
        self.checkpoint.as_ref().map_or_else(|| Arc::from("{}"), |checkpoint| Arc::clone(&checkpoint.context))
    }

    /// What was asked of a stage.
    #[must_use]
    pub fn stage(&self, at: usize) -> &StageSpec {
        &self.spec.stages[at]
    }

    /// Whether it had a turn before, or is retried: then it waits for its turn because somebody wants it to go on.
    #[must_use]
    pub const fn was_begun(&self) -> bool {
        self.run > 1 || self.run_at.is_some()
    }

    /// Whether the task waits for a person where the plan is halted, or will: it had no turn yet, or is paused.
    #[must_use]
    pub fn waits_while_halted(&self) -> bool {
        match self.status {
            TaskStatus::Pending => !self.was_begun() || self.intent == Intent::Pause,
            TaskStatus::Running => self.intent == Intent::Pause,
            TaskStatus::Paused => true,
            _ => false,
        }
    }
}

impl PlanState {
    /// A plan that was never started.
    #[must_use]
    pub fn new(id: PlanId, spec: Arc<PlanSpec>, tasks: Vec<TaskState>) -> Self {
        Self {
            id,
            spec,
            intent: Intent::Run,
            is_halted: false,
            is_over_time: false,
            is_untimed: false,
            started_at: None,
            traceparent: None,
            tasks: tasks.into_iter().map(Arc::new).collect(),
            version: 1,
        }
    }

    /// The status, which follows from the intent and from the tasks.
    #[must_use]
    pub fn status(&self) -> PlanStatus {
        let is_cancelled = self.intent == Intent::Cancel;
        let mut succeeded = false;
        let mut is_over = true;
        let mut wants_attention = false;
        let mut goes_on = false;
        for task in &self.tasks {
            succeeded |= task.status == TaskStatus::Succeeded;
            is_over &= task.status.is_over();
            wants_attention |= task.status.wants_attention();
            goes_on |= matches!(task.status, TaskStatus::Running | TaskStatus::Pending);
        }
        if is_over {
            return if is_cancelled || !succeeded { PlanStatus::Cancelled } else { PlanStatus::Succeeded };
        }
        if self.started_at.is_none() {
            return PlanStatus::Created;
        }
        if wants_attention || self.is_halted || self.is_over_time {
            return PlanStatus::Attention;
        }
        if self.intent == Intent::Pause || !goes_on { PlanStatus::Paused } else { PlanStatus::Running }
    }

    /// Whether an instance must own it: something of it runs or may begin, its tenants' locks are to be renewed, or the end
    /// of a job is waited for.
    #[must_use]
    pub fn needs_owner(&self) -> bool {
        let is_busy = |task: &Arc<TaskState>| {
            task.status.may_go_on() || task.in_flight().is_some() || task.waits_for.is_some()
        };
        self.started_at.is_some() && self.tasks.iter().any(is_busy)
    }

    /// Whether nobody has written the plan or a task of it since their rows were made; of a state that was read.
    #[must_use]
    pub fn is_as_made(&self) -> bool {
        self.version == 1 && self.tasks.iter().all(|task| task.version == 1)
    }

    /// Whether [`Command::RenewLocks`] finds a lock to renew, or one to look at.
    #[must_use]
    pub fn has_locks_to_renew(&self) -> bool {
        let is_due = |task: &Arc<TaskState>| task.needs_lock() || task.in_flight().is_some();
        self.tasks.iter().any(|task| task.lock.is_some() && is_due(task))
    }

    /// The place of a task.
    #[must_use]
    pub fn place_of(&self, task: TaskId) -> Option<usize> {
        self.tasks.iter().position(|one| one.id == task)
    }

    /// When [`Command::Advance`] is to be applied at the latest: when the plan or a run is over its time.
    #[must_use]
    pub fn wake_at(&self) -> Option<Timestamp> {
        let started = self.started_at?;
        let plan = self.may_run_over_time().then(|| started.plus_ms(self.spec.timeout_ms));
        let runs =
            self.tasks.iter().filter(|task| task.status == TaskStatus::Running && task.failing.is_none());
        let runs = runs.filter_map(|task| Some(task.run_at?.plus_ms(task.spec.timeout_ms)));
        runs.chain(plan).min()
    }

    /// Whether its time still counts: it is not over, and was not before.
    fn may_run_over_time(&self) -> bool {
        !self.is_over_time && !self.is_untimed && !self.status().is_over()
    }

    /// The locks that a commit took.
    pub fn locked(&mut self, locks: impl IntoIterator<Item = (usize, Token)>) {
        for (at, token) in locks {
            Arc::make_mut(&mut self.tasks[at]).lock = Some(token);
        }
    }

    /// Decides what follows from a command at this time. `new_job` draws an id that was never used.
    ///
    /// # Errors
    /// [`Refused`], saying why the command is not carried out.
    pub fn apply(
        &self,
        command: &Command,
        now: Timestamp,
        new_job: &mut dyn FnMut() -> JobId,
    ) -> Result<Step, Refused> {
        let mut builder = StepBuilder::new(self, now);
        match command {
            Command::Start => builder.start()?,
            Command::Pause => builder.pause()?,
            Command::Resume => builder.resume(true)?,
            Command::ResumeButPaused => builder.resume(false)?,
            Command::Cancel => builder.cancel()?,
            Command::PauseTask(task) => builder.pause_task(*task)?,
            Command::ResumeTask(task) => builder.resume_task(*task)?,
            Command::CancelTask(task) => builder.cancel_task(*task)?,
            Command::CancelRun(task, run) => builder.cancel_run(*task, *run)?,
            Command::Resolve { task, stage, job, resolution } => {
                builder.resolve(*task, *stage, *job, resolution)?
            }
            Command::Retry(task, retry) => builder.retry(*task, retry)?,
            Command::StageEnded { task, job, end } => builder.stage_ended(*task, *job, end),
            Command::OlderEnded { task, job } => builder.older_ended(*task, *job),
            Command::LockLost(task, lost) => builder.lock_lost(*task, *lost),
            Command::RenewLocks => builder.renew_locks(),
            Command::TakenOver => builder.taken_over(),
            Command::Advance => {}
        }
        // A new owner begins nothing.
        if !matches!(command, Command::TakenOver) {
            builder.advance(new_job);
        }
        Ok(builder.finish())
    }

    /// Decides what follows from ends of stages that came together, in their order, as one step. Each is of another task.
    pub fn apply_ends<'e>(
        &self,
        ends: impl IntoIterator<Item = (TaskId, JobId, &'e StageEnd)>,
        now: Timestamp,
        new_job: &mut dyn FnMut() -> JobId,
    ) -> Step {
        let mut builder = StepBuilder::new(self, now);
        for (task, job, end) in ends {
            builder.stage_ended(task, job, end);
        }
        builder.advance(new_job);
        builder.finish()
    }

    /// Whether further tasks may start. Looks at all tasks only where nothing else says no.
    fn starts_tasks(&self) -> bool {
        self.started_at.is_some()
            && self.intent == Intent::Run
            && !self.is_halted
            && !self.is_over_time
            && (self.spec.on_failure == OnFailure::Continue
                || !self.tasks.iter().any(|task| task.status.wants_attention()))
    }
}
