//! What becomes of a stage: by the end of its job, which counts only under the tenant's lock, or by the word of a person.

use std::sync::Arc;

use super::step_builder::{StepBuilder, refused};
use super::{EventKind, Refused, Resolution, StageEnd, StageState};
use crate::id::{JobId, TaskId};
use crate::job::Outcome;
use crate::limits::CHECKPOINTS_MAX;
use crate::plan::status::{Intent, StageStatus, TaskStatus};

impl StepBuilder {
    pub(super) fn resolve(
        &mut self,
        task: TaskId,
        stage: usize,
        job: Option<JobId>,
        resolution: &Resolution,
    ) -> Result<(), Refused> {
        let at = self.place(task)?;
        let state = *self.task(at).stages.get(stage).ok_or(Refused::UnknownStage)?;
        match state.status {
            StageStatus::Unknown => {}
            // The person knows more than its job.
            StageStatus::Failed => {
                return Err(refused(
                    "the stage is FAILED, and only one that is UNKNOWN can be resolved: a retry runs it again, or goes on \
                     behind it where the corrected definition leaves it out, since it did its work",
                ));
            }
            _ => return Err(refused("only a stage that is UNKNOWN can be resolved")),
        }
        if job.is_some() && job != state.job {
            return Err(refused("the stage has another job by now than the one that the request names"));
        }
        if matches!(resolution, Resolution::Done(_)) && self.task(at).last_checkpoint >= CHECKPOINTS_MAX {
            return Err(Refused::TooMany("checkpoints", CHECKPOINTS_MAX.into()));
        }
        // Nobody waits for its result any more; an attempt that still runs is called off.
        self.call_off(state.job);
        // If it failed, the person has seen to that.
        self.writes.superseded.extend(state.job);
        self.task_event(at, EventKind::Resolved, None, None);
        self.touch(at).waits_for = state.job;
        match resolution {
            Resolution::Done(context) => {
                let fence = self.fence_or_take(at);
                self.complete(fence, stage, context.clone());
            }
            Resolution::NotDone => {
                // Without the lock too: nothing goes on before a retry, which takes it.
                self.fence(at);
                self.set_stage(at, stage, StageState { status: StageStatus::Pending, job: None });
                if self.task(at).intent == Intent::Cancel {
                    self.set_status(at, TaskStatus::Cancelled, None);
                }
            }
        }
        self.settle_reason(at);
        Ok(())
    }

    pub(super) fn stage_ended(&mut self, task: TaskId, job: JobId, end: &StageEnd) {
        let Some(at) = self.next.place_of(task) else { return };
        // A job that nobody waits for: it was called off, or resolved.
        let Some((stage, _)) = self.task(at).in_flight().filter(|(_, in_flight)| *in_flight == job) else {
            return;
        };
        // It was called off, or taken from its node, after a takeover. How far it came nobody knows.
        let stays_unknown = self.task(at).stages[stage].status == StageStatus::Unknown
            && matches!(end, StageEnd::Ended(Outcome::Cancelled, _) | StageEnd::Revoked(..));
        if stays_unknown && self.task(at).lock.is_some() && self.task(at).intent != Intent::Cancel {
            return;
        }
        let Some(fence) = self.fence(at) else {
            return self.ended_without_lock(at, stage, job, end);
        };
        match end {
            _ if stays_unknown => self.cancel_unknown(at, job),
            StageEnd::Completed(context) if self.task(at).last_checkpoint < CHECKPOINTS_MAX => {
                self.complete(fence, stage, context.clone());
                if self.task(at).status == TaskStatus::Running {
                    if let Some(reason) = self.task(at).failing.clone() {
                        self.set_status(at, TaskStatus::Failed, Some(reason));
                    } else if self.task(at).intent == Intent::Pause {
                        self.set_status(at, TaskStatus::Paused, None);
                    } else if self.next.intent == Intent::Pause {
                        // It was resumed alone: its turn, and its time, begin with the plan's.
                        self.set_status(at, TaskStatus::Pending, None);
                    }
                }
            }
            StageEnd::Completed(_) => {
                let why = Refused::TooMany("checkpoints", CHECKPOINTS_MAX.into()).to_string();
                self.fail_at(at, stage, why.into());
            }
            StageEnd::Unfit(reason) => self.fail_at(at, stage, Arc::clone(reason)),
            StageEnd::Ended(outcome, error) | StageEnd::Revoked(outcome, error) => {
                let reason = match outcome {
                    Outcome::TimedOut => {
                        format!("stage {}: its time was over: {error}", self.stage_name(at, stage))
                    }
                    Outcome::Cancelled => {
                        format!("stage {}: its job was cancelled", self.stage_name(at, stage))
                    }
                    Outcome::Failed | Outcome::Succeeded => {
                        format!("stage {}: {error}", self.stage_name(at, stage))
                    }
                };
                self.fail_at(at, stage, reason.into());
            }
        }
        self.on_failure();
    }

    /// Another task may have had the tenant meanwhile: whatever the job says, a person has to look, and to say what the stage
    /// did. The history has the end of the job once, however often the end is reported.
    fn ended_without_lock(&mut self, at: usize, stage: usize, job: JobId, end: &StageEnd) {
        // If the loss was not known to the task before.
        self.lock_lost(self.task(at).id, None);
        let how = match end {
            StageEnd::Completed(_) | StageEnd::Unfit(_) => "succeeded".to_owned(),
            StageEnd::Ended(Outcome::Cancelled, _) | StageEnd::Revoked(Outcome::Cancelled, _) => {
                "was cancelled".to_owned()
            }
            StageEnd::Ended(Outcome::TimedOut, error) | StageEnd::Revoked(Outcome::TimedOut, error) => {
                format!("ran out of time ({error})")
            }
            StageEnd::Ended(_, error) | StageEnd::Revoked(_, error) => format!("failed ({error})"),
        };
        let name = self.stage_name(at, stage);
        let reason = format!("stage {name}: its job {how}, and the task has lost its tenant's lock");
        let reason: Option<Arc<str>> = Some(reason.into());
        if self.task(at).reason != reason {
            self.stage_event(at, stage, (StageStatus::Unknown, StageStatus::Unknown), reason.clone());
            self.touch(at).reason = reason;
        }
        if self.task(at).intent == Intent::Cancel {
            self.cancel_unknown(at, job);
        }
    }

    /// A task that is called off ends, though nobody knows what its stage did: before a retry a person has to say so, and until
    /// then the task keeps its reason.
    fn cancel_unknown(&mut self, at: usize, job: JobId) {
        // An attempt of it may still be under way.
        self.touch(at).waits_for = Some(job);
        let reason = self.task(at).reason.clone();
        self.set_status(at, TaskStatus::Cancelled, None);
        self.touch(at).reason = reason;
    }

    fn stage_name(&self, at: usize, stage: usize) -> Arc<str> {
        Arc::clone(&self.task(at).stage(stage).name)
    }

    fn fail_at(&mut self, at: usize, stage: usize, reason: Arc<str>) {
        let job = self.task(at).stages[stage].job;
        self.set_stage(at, stage, StageState { status: StageStatus::Failed, job });
        // The slot of the last attempt may not be free yet.
        self.touch(at).waits_for = job;
        if self.task(at).intent == Intent::Cancel {
            self.set_status(at, TaskStatus::Cancelled, None);
        } else {
            let reason = self.task(at).failing.clone().unwrap_or(reason);
            self.set_status(at, TaskStatus::Failed, Some(reason));
        }
    }

    pub(super) fn older_ended(&mut self, task: TaskId, job: JobId) {
        let Some(at) = self.next.place_of(task) else { return };
        if self.task(at).waits_for == Some(job) {
            self.touch(at).waits_for = None;
            self.free_lock(at);
        }
    }
}
