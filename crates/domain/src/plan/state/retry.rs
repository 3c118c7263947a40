//! Retries: a task is run again, from its checkpoint, from the start, or from an earlier checkpoint.

use std::sync::Arc;

use super::step_builder::{StepBuilder, refused};
use super::{Checkpoint, EventKind, Refused, StageState, TaskState};
use crate::id::TaskId;
use crate::limits::{CHECKPOINTS_MAX, TASK_RUNS_MAX};
use crate::plan::spec::{StageSpec, TaskSpec};
use crate::plan::status::{Intent, OnUnknown, StageStatus, TaskStatus};

/// How a task is to be run again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Where it continues.
    pub from: From,
    /// The run and the checkpoint that the caller has seen; others are refused.
    pub expect: Option<Seen>,
    /// The context of the first stage, in place of the checkpoint's.
    pub context: Option<Arc<str>>,
    /// A corrected definition.
    pub stages: Option<Arc<[StageSpec]>>,
    /// Another configuration of the tenant.
    pub config: Option<Arc<str>>,
    /// How many attempts of a stage may fail.
    pub max_attempts: Option<u32>,
    /// Why, for the history.
    pub reason: Arc<str>,
}

/// Where a retry continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// Behind the last stage that is completed.
    Checkpoint,
    /// At the first stage.
    Start,
    /// Behind the stages that an earlier checkpoint covers.
    Version {
        /// The checkpoint.
        checkpoint: Checkpoint,
        /// The definition under which it was written: the stages that it covers are these.
        stages: Arc<[StageSpec]>,
    },
}

/// What the caller of a retry has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The number of the run.
    pub run: u32,
    /// The version of the task's last checkpoint in any run, or of the one that this run continues from; 0 for none.
    pub checkpoint_version: u32,
}

impl Seen {
    /// Whether nothing happened since. In one run, both versions change whenever one does.
    fn is_current(self, task: &TaskState) -> bool {
        let continued = task.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.version);
        self.run == task.run && [task.last_checkpoint, continued].contains(&self.checkpoint_version)
    }
}

impl StepBuilder {
    pub(super) fn retry(&mut self, task: TaskId, retry: &Retry) -> Result<(), Refused> {
        let at = self.place(task)?;
        self.may_retry(at, retry.expect)?;
        let now = self.task(at);
        let checkpoint = match &retry.from {
            From::Checkpoint => now.checkpoint.clone(),
            From::Start => None,
            From::Version { checkpoint, .. } => Some(checkpoint.clone()),
        };
        let completed = checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.completed as usize);
        let spec = corrected(now, retry, completed)?;
        let is_new_definition = spec.is_some();
        let (was, waits_for) = (now.status, now.in_flight().map(|(_, job)| job).or(now.waits_for));
        let spec = spec.unwrap_or_else(|| Arc::clone(&now.spec));
        let checkpoints = now.last_checkpoint as usize + spec.stages.len().saturating_sub(completed);
        if checkpoints > CHECKPOINTS_MAX as usize {
            return Err(refused(&format!(
                "the task would have {checkpoints} checkpoints after this run; it may have {CHECKPOINTS_MAX}"
            )));
        }
        let checkpoint = match &retry.context {
            Some(context) => {
                let (version, completed) = checkpoint.map_or((0, 0), |kept| (kept.version, kept.completed));
                Some(Checkpoint { version, completed, context: Arc::clone(context) })
            }
            None => checkpoint,
        };
        // The job of a stage that is UNKNOWN may have failed as well.
        let may_be_dead =
            |stage: &&StageState| matches!(stage.status, StageStatus::Failed | StageStatus::Unknown);
        let superseded: Vec<_> =
            now.stages.iter().filter(may_be_dead).filter_map(|stage| stage.job).collect();
        self.call_off(waits_for);
        self.writes.superseded.extend(superseded);
        let task = self.touch(at);
        task.run += 1;
        task.run_at = None;
        task.intent = Intent::Run;
        task.stages = (0..spec.stages.len())
            .map(|stage| {
                let status = if stage < completed { StageStatus::Skipped } else { StageStatus::Pending };
                StageState { status, job: None }
            })
            .collect();
        task.spec = spec;
        task.definition += u32::from(is_new_definition);
        task.checkpoint = checkpoint;
        task.waits_for = waits_for;
        task.failing = None;
        task.reason = None;
        task.status = TaskStatus::Pending;
        // The lock is taken anew, with a token that no attempt of an earlier run has.
        task.lock = None;
        self.writes.take.push(at);
        if is_new_definition {
            self.writes.definitions.push(at);
        }
        // The plan has had its time. What is retried has that of its run.
        self.next.is_untimed |= self.before.is_over();
        // A plan that was over, or whose owner has changed, goes on with this task alone.
        if self.next.intent != Intent::Run {
            self.pause_halted_but(at);
            self.set_plan_intent(Intent::Run);
            self.next.is_halted = true;
        }
        let change = (was.as_str(), TaskStatus::Pending.as_str());
        self.task_event(at, EventKind::Retried, Some(change), Some(Arc::clone(&retry.reason)));
        Ok(())
    }

    /// Whether the task may be run again as it is, and is as its caller has seen it.
    fn may_retry(&self, at: usize, expect: Option<Seen>) -> Result<(), Refused> {
        let now = self.task(at);
        if expect.is_some_and(|seen| !seen.is_current(now)) {
            return Err(Refused::NotAsSeen);
        }
        if self.next.started_at.is_none() {
            return Err(self.never_started(now.id));
        }
        // A plan that is over its time never gives it a turn.
        let has_no_turn = now.status == TaskStatus::Pending && !now.was_begun() && self.next.is_over_time;
        match now.status {
            TaskStatus::Pending if has_no_turn => {}
            TaskStatus::Running | TaskStatus::Pending => return Err(Refused::StillRunning),
            status if !status.may_retry() => {
                return Err(refused(&format!("a task that is {} cannot be retried", status.as_str())));
            }
            _ => {}
        }
        if now.run >= TASK_RUNS_MAX {
            return Err(Refused::TooMany("runs", TASK_RUNS_MAX.into()));
        }
        if let Some(stage) = now.unknown()
            && now.stage(stage).on_unknown == OnUnknown::Confirm
        {
            return Err(Refused::StageUnknown(stage));
        }
        Ok(())
    }
}

/// The task's definition after the retry, if that is another one. The stages that are completed must stay the same.
fn corrected(task: &TaskState, retry: &Retry, completed: usize) -> Result<Option<Arc<TaskSpec>>, Refused> {
    let stages = retry.stages.as_ref().unwrap_or(&task.spec.stages);
    let completed_as = match &retry.from {
        From::Version { stages, .. } => stages,
        From::Checkpoint | From::Start => &task.spec.stages,
    };
    let differs = |at: &usize| match (stages.get(*at), completed_as.get(*at)) {
        (Some(new), Some(old)) => !new.does_as(old),
        _ => true,
    };
    if let Some(at) = (0..completed).find(differs) {
        return Err(Refused::DefinitionChanged(at));
    }
    let mut spec = (*task.spec).clone();
    spec.stages = Arc::clone(stages);
    if let Some(config) = &retry.config {
        spec.config = Some(Arc::clone(config));
    }
    if let Some(max_attempts) = retry.max_attempts {
        let with = |stage: &StageSpec| StageSpec { max_attempts, ..stage.clone() };
        spec.stages = spec.stages.iter().map(with).collect();
    }
    Ok((spec != *task.spec).then(|| Arc::new(spec)))
}
