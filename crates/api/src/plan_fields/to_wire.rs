//! Plans, tasks, checkpoints, locks and events as answers show them.

use std::collections::HashMap;
use std::sync::Arc;

use domain::plan::{Intent, OnFailure, OnUnknown, PlanStatus, StageSpec, StageStatus, TaskState, TaskStatus};
use domain::{InstanceId, JobId, TaskId};
use ledger::{CheckpointRecord, FoundTask, Lease, PlanRecord, TaskRecord, TimedEvent};
use serde::Deserialize;
use wire::jobs::Backoff;
use wire::plans as shape;

use crate::refusal::Refusal;
use crate::to_wire::{json, route, time};

/// A plan, with the tasks that somebody must look at.
pub fn plan(
    record: &PlanRecord,
    progress: shape::PlanProgress,
    attention: Vec<shape::AttentionTask>,
) -> shape::Plan {
    let PlanRecord { plan, status, created_at, finished_at } = record;
    shape::Plan {
        id: plan.id.to_string(),
        name: plan.spec.name.as_deref().map(ToOwned::to_owned),
        status: plan_status(*status),
        max_concurrency: plan.spec.max_concurrency,
        on_failure: match plan.spec.on_failure {
            OnFailure::StopNew => shape::OnFailure::StopNew,
            OnFailure::Continue => shape::OnFailure::Continue,
            OnFailure::Pause => shape::OnFailure::Pause,
        },
        timeout_ms: plan.spec.timeout_ms,
        intent: intent(plan.intent),
        halted: plan.is_halted,
        over_time: plan.is_over_time,
        progress,
        created_at: time(*created_at),
        // The owner's clock goes by milliseconds, and decides on the start before the ledger writes the plan.
        started_at: plan.started_at.map(|at| time(at.max(*created_at))),
        finished_at: finished_at.map(time),
        attention: Some(attention),
    }
}

/// The number of a plan's tasks with each status.
pub fn progress(counts: impl IntoIterator<Item = (TaskStatus, u64)>) -> shape::PlanProgress {
    let mut progress = shape::PlanProgress::default();
    for (status, tasks) in counts {
        progress.total += tasks;
        let of_status = match status {
            TaskStatus::Pending => &mut progress.pending,
            TaskStatus::Running => &mut progress.running,
            TaskStatus::Succeeded => &mut progress.succeeded,
            TaskStatus::Failed => &mut progress.failed,
            TaskStatus::Paused => &mut progress.paused,
            TaskStatus::Interrupted => &mut progress.interrupted,
            TaskStatus::Cancelled => &mut progress.cancelled,
        };
        *of_status += tasks;
    }
    progress
}

/// A task that somebody must look at.
pub fn attention(found: &FoundTask) -> shape::AttentionTask {
    shape::AttentionTask {
        task: found.id.to_string(),
        tenant: found.tenant.to_string(),
        status: task_status(found.status),
        reason: found.reason.as_deref().map(ToOwned::to_owned),
        stage: found.stage.as_ref().map(|(place, _)| number(*place)),
        stage_name: found.stage.as_ref().map(|(_, name)| name.to_string()),
    }
}

/// What a task's own row does not say.
#[derive(Debug, Default)]
pub struct TaskDetails {
    /// The newest attempts of the jobs of its stages. A job that was purged is missing.
    pub attempts: HashMap<JobId, u32>,
    /// Its checkpoint as it was written: a retry may have given its next stage another context. `None` where it is not kept.
    pub saved: Option<CheckpointRecord>,
    /// Its lock on its tenant.
    pub lock: Option<shape::TaskLock>,
}

/// A task with everything that is known of it.
pub fn task(record: &TaskRecord, details: &TaskDetails) -> Result<shape::Task, Refusal> {
    let task = &record.task;
    let context = json(&task.context())?;
    let mut shown = listed_task(record);
    for (shown, stage) in shown.stages.iter_mut().zip(&task.stages) {
        shown.attempts = match stage.job {
            Some(job) => details.attempts.get(&job).copied(),
            None => Some(0),
        };
    }
    if let (Some(checkpoint), Some(saved)) = (&mut shown.checkpoint, &details.saved) {
        checkpoint.saved_at = Some(time(saved.saved_at));
        checkpoint.context = Some(json(&saved.checkpoint.context)?);
    }
    let config = task.spec.config.as_deref();
    Ok(shape::Task {
        context: Some(context),
        config: Some(config.map_or_else(|| Ok(wire::Json::null()), json)?),
        lock: Some(details.lock),
        lock_token: details.lock.map(|lock| lock.token),
        ..shown
    })
}

/// A task as a list shows it.
pub fn listed_task(record: &TaskRecord) -> shape::Task {
    let task = &record.task;
    // Version 0 is no checkpoint: a context that a retry from the start was given.
    let checkpoint = task.checkpoint.as_ref().filter(|checkpoint| checkpoint.version > 0);
    shape::Task {
        id: task.id.to_string(),
        plan: record.plan.to_string(),
        place: record.place as u64 + 1,
        tenant: task.spec.tenant.to_string(),
        name: task.spec.name.as_deref().map(ToOwned::to_owned),
        status: task_status(task.status),
        intent: intent(task.intent),
        reason: task.reason.as_deref().map(ToOwned::to_owned),
        run: task.run,
        run_at: task.run_at.map(time),
        timeout_ms: task.spec.timeout_ms,
        definition: task.definition,
        stage: next_stage(task).map(number),
        stages: task_stages(task),
        has_checkpoint: checkpoint.is_some(),
        checkpoint: checkpoint.map(|checkpoint| shape::TaskCheckpoint {
            version: checkpoint.version,
            completed_stages: names(task.spec.stages.iter().map(|stage| &stage.name), checkpoint.completed),
            last_completed: checkpoint.completed,
            saved_at: None,
            context: None,
        }),
        checkpoint_version: task.last_checkpoint,
        context: None,
        config: None,
        lock: None,
        lock_token: task.lock.filter(|_| record.is_lock_live).map(|token| token.get().cast_unsigned()),
        waits_for: task.waits_for.map(|job| job.to_string()),
        updated_at: time(record.updated_at),
    }
}

fn task_stages(task: &TaskState) -> Vec<shape::TaskStage> {
    let stages = task.spec.stages.iter().zip(&task.stages);
    let stages = stages.map(|(spec, stage)| shape::TaskStage {
        name: spec.name.to_string(),
        status: stage_status(stage.status),
        job: stage.job.map(|job| job.to_string()),
        attempts: None,
    });
    stages.collect()
}

/// The stages of a task, with their payloads, as a retry takes them.
pub fn definition(record: &TaskRecord) -> Result<shape::TaskDefinition, Refusal> {
    let task = &record.task;
    let stage = |stage: &StageSpec| {
        wire::Json::of(&stage_request(stage)?).map_err(|error| {
            tracing::error!(%error, "a stage cannot be written as JSON");
            Refusal::internal()
        })
    };
    Ok(shape::TaskDefinition {
        task: task.id.to_string(),
        run: task.run,
        checkpoint_version: task.last_checkpoint,
        definition: task.definition,
        stages: task.spec.stages.iter().map(stage).collect::<Result<_, _>>()?,
    })
}

/// A stage with everything that a request may say of it.
fn stage_request(stage: &StageSpec) -> Result<shape::StageRequest, Refusal> {
    let StageSpec { name, payload, needs, timeout_ms, max_attempts, backoff, on_unknown } = stage;
    Ok(shape::StageRequest {
        name: name.to_string(),
        payload: json(payload)?,
        requires: needs.requires.iter().map(ToString::to_string).collect(),
        pool: needs.pool.as_ref().map(ToString::to_string),
        route: needs.route.as_ref().map(route),
        timeout_ms: Some(*timeout_ms),
        max_attempts: Some(*max_attempts),
        backoff: Some(Backoff {
            initial_ms: Some(backoff.initial_ms),
            factor: Some(f64::from(backoff.factor_percent) / 100.0),
            max_ms: Some(backoff.max_ms),
        }),
        on_unknown: Some(match on_unknown {
            OnUnknown::Confirm => shape::OnUnknown::Confirm,
            OnUnknown::Rerun => shape::OnUnknown::Rerun,
        }),
    })
}

/// The first stage that is not completed.
fn next_stage(task: &TaskState) -> Option<usize> {
    Some(task.completed()).filter(|at| *at < task.stages.len())
}

/// The number of the stage at a place: people count from 1. There are at most [`domain::limits::PLAN_STAGES_MAX`].
const fn number(place: usize) -> u32 {
    place as u32 + 1
}

fn names<'n>(stages: impl Iterator<Item = &'n Arc<str>>, completed: u32) -> Vec<String> {
    stages.take(completed as usize).map(ToString::to_string).collect()
}

/// A checkpoint in the history of a task whose stages have these names.
pub fn checkpoint(record: &CheckpointRecord, stages: &[Arc<str>]) -> Result<shape::Checkpoint, Refusal> {
    let CheckpointRecord { checkpoint, run, saved_at, .. } = record;
    Ok(shape::Checkpoint {
        version: checkpoint.version,
        run: *run,
        completed_stages: names(stages.iter(), checkpoint.completed),
        last_completed: checkpoint.completed,
        saved_at: time(*saved_at),
        context: json(&checkpoint.context)?,
    })
}

/// The task that holds the lock of a tenant. `None` where no task does.
pub fn lock_holder(lock: &Lease) -> Option<TaskId> {
    lock.owner.as_ref().filter(|_| lock.is_live()).and_then(locking_task)
}

/// The task that a lease of a tenant names as its owner, be the lease live or not.
pub fn locking_task(owner: &InstanceId) -> Option<TaskId> {
    TaskId::parse(owner.as_str().strip_prefix("task:")?)
}

/// The lock that this task holds on its tenant.
pub fn task_lock(lock: &Lease, task: TaskId) -> Option<shape::TaskLock> {
    let is_its = lock_holder(lock) == Some(task);
    is_its.then(|| shape::TaskLock {
        token: lock.token.get().cast_unsigned(),
        expires_in_ms: lock.expires_in_ms,
    })
}

/// An event as the ledger keeps it.
#[derive(Deserialize)]
struct EventDocument {
    kind: String,
    run: Option<u32>,
    stage: Option<u32>,
    before: Option<String>,
    after: Option<String>,
    reason: Option<String>,
    principal: Option<String>,
    request_id: Option<String>,
}

/// An event.
pub fn event(event: &TimedEvent) -> Result<shape::PlanEvent, Refusal> {
    let document: EventDocument = serde_json::from_str(&event.document).map_err(|error| {
        tracing::error!(%error, "the ledger has an event that cannot be read");
        Refusal::internal()
    })?;
    Ok(shape::PlanEvent {
        seq: event.seq,
        at: time(event.at),
        task: event.task.map(|task| task.to_string()),
        kind: document.kind,
        run: document.run,
        stage: document.stage.map(|place| number(place as usize)),
        before: document.before,
        after: document.after,
        reason: document.reason,
        principal: document.principal,
        request_id: document.request_id,
    })
}

const fn plan_status(status: PlanStatus) -> shape::PlanStatus {
    match status {
        PlanStatus::Created => shape::PlanStatus::Created,
        PlanStatus::Running => shape::PlanStatus::Running,
        PlanStatus::Paused => shape::PlanStatus::Paused,
        PlanStatus::Attention => shape::PlanStatus::Attention,
        PlanStatus::Succeeded => shape::PlanStatus::Succeeded,
        PlanStatus::Cancelled => shape::PlanStatus::Cancelled,
    }
}

const fn task_status(status: TaskStatus) -> shape::TaskStatus {
    match status {
        TaskStatus::Pending => shape::TaskStatus::Pending,
        TaskStatus::Running => shape::TaskStatus::Running,
        TaskStatus::Succeeded => shape::TaskStatus::Succeeded,
        TaskStatus::Failed => shape::TaskStatus::Failed,
        TaskStatus::Paused => shape::TaskStatus::Paused,
        TaskStatus::Interrupted => shape::TaskStatus::Interrupted,
        TaskStatus::Cancelled => shape::TaskStatus::Cancelled,
    }
}

const fn stage_status(status: StageStatus) -> shape::StageStatus {
    match status {
        StageStatus::Pending => shape::StageStatus::Pending,
        StageStatus::Running => shape::StageStatus::Running,
        StageStatus::Succeeded => shape::StageStatus::Succeeded,
        StageStatus::Failed => shape::StageStatus::Failed,
        StageStatus::Skipped => shape::StageStatus::Skipped,
        StageStatus::Unknown => shape::StageStatus::Unknown,
    }
}

const fn intent(intent: Intent) -> shape::Intent {
    match intent {
        Intent::Run => shape::Intent::Run,
        Intent::Pause => shape::Intent::Pause,
        Intent::Cancel => shape::Intent::Cancel,
    }
}

#[cfg(test)]
mod tests;
