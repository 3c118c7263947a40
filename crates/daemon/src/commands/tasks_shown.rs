//! How plans, their tasks, tenants and events look to people.
//!
//! What must never live here: a call. What must never be in the text of a plan: a time that runs, because `plan show -w`
//! prints that text again when it has changed.

use std::collections::HashMap;

use client::wire::plans::{
    AttentionTask, Checkpoint, Intent, Plan, PlanEvent, PlanProgress, PlanStatus, StageStatus, Task,
    TaskCheckpoint, TaskStatus, Tenant,
};
use client::wire::{Json, List};
use serde::Serialize;

use super::shown;

/// Tasks that a person must look at, as one message names them.
const LOOK_AT_MAX: usize = 10;

const EVENT_HEADINGS: [&str; 9] = ["SEQ", "AT", "EVENT", "TASK", "RUN", "STAGE", "CHANGE", "BY", "REASON"];
/// Widths of columns for events whose number is not known beforehand, in characters. The last column runs free.
const EVENT_WIDTHS: [usize; 9] = [5, 27, 10, 36, 3, 5, 23, 8, 0];

/// A plan with its tasks.
#[derive(Debug, Serialize)]
pub struct PlanView {
    /// The plan.
    #[serde(flatten)]
    pub plan: Plan,
    /// All its tasks, in order.
    pub tasks: Vec<Task>,
    /// Why the jobs of tasks wait, by the ids of the tasks, as far as they were read.
    #[serde(skip)]
    pub waits: HashMap<String, String>,
}

impl PlanView {
    /// Whether a task runs: a plan that a person must look at may have one, such as a task that was retried.
    pub fn runs(&self) -> bool {
        self.tasks.iter().any(|task| task.status == TaskStatus::Running)
    }
}

/// A task.
#[derive(Debug, Serialize)]
pub struct TaskView {
    /// The task.
    #[serde(flatten)]
    pub task: Task,
    /// Why its job waits, if it does.
    #[serde(skip)]
    pub waits: Option<String>,
}

/// A plan, and one line for each task.
pub fn plan(view: &PlanView) -> String {
    let plan = &view.plan;
    shown::card([
        ("plan", plan.id.clone()),
        ("name", shown::or_none(plan.name.as_ref())),
        ("status", plan_status(plan)),
        ("tasks", progress(&plan.progress)),
        ("rules", rules(plan)),
        ("times", times(plan)),
    ]) + "\n"
        + &tasks(view)
}

/// How a plan stands, in a line without its end.
pub fn standing(plan: &Plan) -> String {
    format!("plan {} is {}: {}", plan.id, plan.status, progress(&plan.progress))
}

/// The first tasks of a plan that a person must look at, a line each behind the lines before.
pub fn to_look_at(plan: &Plan) -> String {
    let tasks = plan.attention.iter().flatten().take(LOOK_AT_MAX).map(|found| {
        let AttentionTask { task, tenant, status, reason, .. } = found;
        let why = reason.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        shown::one_line(&format!("task {task} of {tenant} is {status}{why}"))
    });
    tasks.fold(String::new(), |text, line| text + "\n  " + &line)
}

/// What became of a plan that was to be changed, or how one stands that waits for a person.
pub fn changed(plan: &Plan) -> String {
    let Plan { id, status, .. } = plan;
    let resumes = format!("`fencepost plan resume {id}` goes on with it");
    // To stop its instance now would leave them UNKNOWN.
    let still = match plan.progress.running {
        0 => String::new(),
        running => format!("; stages that still run to their end: {running}"),
    };
    match (plan.intent, status) {
        (_, PlanStatus::Succeeded | PlanStatus::Cancelled) => format!("plan {id} is {status}\n"),
        (Intent::Cancel, _) => {
            format!("plan {id} is to be CANCELLED; `fencepost plan show -w {id}` follows it\n")
        }
        (Intent::Run, PlanStatus::Created) => {
            format!("plan {id} is {status}; `fencepost plan start {id}` starts it\n")
        }
        (_, PlanStatus::Paused) => format!("plan {id} is {status}{still}; {resumes}\n"),
        (Intent::Pause, _) => format!("plan {id} is {status}, and paused{still}; {resumes}\n"),
        _ => format!("plan {id} is {status}\n"),
    }
}

/// Plans, one line each.
pub fn plans(list: &List<Plan>) -> String {
    let headings = ["PLAN", "STATUS", "DONE", "TO LOOK AT", "CREATED", "STARTED", "FINISHED", "NAME"];
    shown::list(headings, list, |plan| {
        let progress = &plan.progress;
        [
            plan.id.clone(),
            plan.status.to_string(),
            format!("{}/{}", progress.succeeded, progress.total),
            (progress.failed + progress.interrupted).to_string(),
            plan.created_at.clone(),
            shown::or_none(plan.started_at.as_ref()),
            shown::or_none(plan.finished_at.as_ref()),
            shown::or_none(plan.name.as_ref()),
        ]
    })
}

/// A task, its checkpoint and its stages.
pub fn task(view: &TaskView) -> String {
    let TaskView { task, waits } = view;
    let waits = waits.as_ref().map(|why| format!("; its job waits: {why}")).unwrap_or_default();
    let json = |json: &Option<Json>| {
        let json = json.as_ref().filter(|json| **json != Json::null());
        shown::or_none(json.map(|json| shown::one_line(json.as_str())))
    };
    shown::card([
        ("task", task.id.clone()),
        ("plan", task.plan.clone()),
        ("tenant", task.tenant.clone()),
        ("name", shown::or_none(task.name.as_ref())),
        ("status", task_status(task)),
        ("reason", reason(task)),
        ("run", run(task)),
        ("time limit", shown::length(task.timeout_ms)),
        ("stage", stage(task) + &waits),
        ("waits for job", shown::or_none(task.waits_for.as_ref())),
        ("checkpoint", shown::or_none(task.checkpoint.as_ref().map(checkpoint))),
        ("context", json(&task.context)),
        ("config", json(&task.config)),
        ("lock", shown::or_none(task.lock.flatten().map(|lock| held(lock.token, lock.expires_in_ms)))),
    ]) + "\n"
        + &stages(task)
}

/// The checkpoints of a task, one line each.
pub fn checkpoints(list: &List<Checkpoint>) -> String {
    let headings = ["VERSION", "RUN", "AFTER STAGE", "SAVED", "CONTEXT"];
    shown::list(headings, list, |checkpoint| {
        let last = checkpoint.completed_stages.last().map_or(shown::NONE, String::as_str);
        [
            checkpoint.version.to_string(),
            checkpoint.run.to_string(),
            format!("{} {last}", checkpoint.last_completed),
            checkpoint.saved_at.clone(),
            shown::one_line(checkpoint.context.as_str()),
        ]
    })
}

/// What became of a retry.
pub fn retried(task: &Task, is_dry_run: bool) -> String {
    let (prefix, verb) = if is_dry_run { ("nothing was changed: ", "would be") } else { ("", "is") };
    let Task { id, status, run, .. } = task;
    format!("{prefix}task {id} {verb} {status} in run {run}, at stage {}\n", stage(task))
}

/// A tenant with its newest task.
pub fn tenant(tenant: &Tenant) -> String {
    let task = &tenant.task;
    let lock = tenant
        .lock
        .as_ref()
        .map(|lock| format!("{}, of task {}", held(lock.token, lock.expires_in_ms), lock.task));
    shown::card([
        ("tenant", tenant.tenant.clone()),
        ("newest task", task.id.clone()),
        ("plan", task.plan.clone()),
        ("status", task_status(task)),
        ("reason", reason(task)),
        ("run", run(task)),
        ("stage", stage(task)),
        ("checkpoint", shown::or_none(task.checkpoint.as_ref().map(checkpoint))),
        ("lock", shown::or_none(lock)),
    ])
}

/// The tasks of a tenant, one line each.
pub fn history(list: &List<Task>) -> String {
    let headings = ["TASK", "PLAN", "STATUS", "RUN", "STAGE", "CHECKPOINT", "CHANGED", "REASON"];
    shown::list(headings, list, |task| {
        [
            task.id.clone(),
            task.plan.clone(),
            task_status(task),
            task.run.to_string(),
            stage(task),
            version(task),
            task.updated_at.clone(),
            reason(task),
        ]
    })
}

/// Events, one line each.
pub fn events(list: &List<PlanEvent>) -> String {
    shown::list(EVENT_HEADINGS, list, event_cells)
}

/// The line above those of [`event_line`].
pub fn event_headings() -> String {
    event_columns(&EVENT_HEADINGS.map(str::to_owned))
}

/// One event on a line, in columns of fixed widths.
pub fn event_line(event: &PlanEvent) -> String {
    event_columns(&event_cells(event))
}

fn event_columns(cells: &[String; 9]) -> String {
    let cells: Vec<_> =
        cells.iter().zip(EVENT_WIDTHS).map(|(cell, width)| format!("{cell:width$}")).collect();
    shown::one_line(cells.join("  ").trim_end()) + "\n"
}

fn event_cells(event: &PlanEvent) -> [String; 9] {
    [
        event.seq.to_string(),
        event.at.clone(),
        event.kind.clone(),
        shown::or_none(event.task.as_ref()),
        shown::or_none(event.run),
        shown::or_none(event.stage),
        change(event),
        shown::or_none(event.principal.as_ref()),
        shown::or_none(event.reason.as_ref()),
    ]
}

/// The tasks of a plan, one line each.
fn tasks(view: &PlanView) -> String {
    let rows = view.tasks.iter().map(|task| {
        [
            task.tenant.clone(),
            task_status(task),
            task.run.to_string(),
            stage(task),
            version(task),
            shown::or_none(task.lock_token),
            task.id.clone(),
            view.waits.get(&task.id).map_or_else(|| reason(task), |why| format!("its job waits: {why}")),
        ]
    });
    let headings = ["TENANT", "STATUS", "RUN", "STAGE", "CHECKPOINT", "LOCK", "TASK", "REASON"];
    shown::table(headings, rows)
}

/// The stages of a task, counted from 1.
fn stages(task: &Task) -> String {
    let rows = (1..).zip(&task.stages).map(|(number, stage): (u32, _)| {
        [
            number.to_string(),
            stage.name.clone(),
            stage.status.to_string(),
            shown::or_none(stage.attempts),
            shown::or_none(stage.job.as_ref()),
        ]
    });
    shown::table(["NO", "STAGE", "STATUS", "ATTEMPTS", "JOB"], rows)
}

fn plan_status(plan: &Plan) -> String {
    let mut text = plan.status.to_string();
    let is_over = matches!(plan.status, PlanStatus::Succeeded | PlanStatus::Cancelled);
    if plan.intent == Intent::Pause && !is_over && plan.status != PlanStatus::Paused {
        text += "; paused: no further stage begins until `fencepost plan resume`";
    }
    if plan.halted && !is_over {
        text += "; no further task starts until `fencepost plan resume`: its owner changed, or a task was retried alone";
    }
    if plan.over_time {
        text +=
            "; it ran over its time: no further task starts, until it is retried with `fencepost plan retry`";
    }
    text
}

fn rules(plan: &Plan) -> String {
    let Plan { max_concurrency, on_failure, timeout_ms, .. } = plan;
    format!("{max_concurrency} at once, on failure {on_failure}, time limit {}", shown::length(*timeout_ms))
}

fn times(plan: &Plan) -> String {
    let mut text = format!("created {}", plan.created_at);
    for (name, at) in [("started", &plan.started_at), ("finished", &plan.finished_at)] {
        if let Some(at) = at {
            text += &format!(", {name} {at}");
        }
    }
    text
}

/// The counts that are not zero.
fn progress(progress: &PlanProgress) -> String {
    let PlanProgress { total, pending, running, succeeded, failed, paused, interrupted, cancelled } =
        *progress;
    let mut text = format!("{succeeded} of {total} succeeded");
    let others = [
        (running, "running"),
        (pending, "pending"),
        (paused, "paused"),
        (failed, "failed"),
        (interrupted, "interrupted"),
        (cancelled, "cancelled"),
    ];
    for (count, name) in others.into_iter().filter(|(count, _)| *count > 0) {
        text += &format!(", {count} {name}");
    }
    text
}

/// The status, and what people want of the task while it has not come to that.
fn task_status(task: &Task) -> String {
    let wish = match (task.status, task.intent) {
        (TaskStatus::Pending | TaskStatus::Running, Intent::Pause) => " (pausing)",
        (TaskStatus::Pending | TaskStatus::Running, Intent::Cancel) => " (cancelling)",
        _ => "",
    };
    format!("{}{wish}", task.status)
}

/// The number of the first stage that is not completed, of how many, and its name.
fn stage(task: &Task) -> String {
    let total = task.stages.len();
    let next =
        task.stage.and_then(|number| Some((number, task.stages.get(number.checked_sub(1)? as usize)?)));
    match next {
        Some((number, next)) if next.status == StageStatus::Unknown => {
            format!("{number}/{total} {} UNKNOWN", next.name)
        }
        Some((number, next)) => format!("{number}/{total} {}", next.name),
        None => format!("{total}/{total}"),
    }
}

fn run(task: &Task) -> String {
    match &task.run_at {
        Some(began) => format!("{} since {began}", task.run),
        None => format!("{}, not begun", task.run),
    }
}

fn version(task: &Task) -> String {
    shown::or_none(task.checkpoint.as_ref().map(|checkpoint| checkpoint.version))
}

fn checkpoint(checkpoint: &TaskCheckpoint) -> String {
    let mut text = format!("version {}", checkpoint.version);
    if let Some(last) = checkpoint.completed_stages.last() {
        text += &format!(", after stage {} {last}", checkpoint.last_completed);
    }
    if let Some(saved_at) = &checkpoint.saved_at {
        text += &format!(", of {saved_at}");
    }
    text
}

fn reason(task: &Task) -> String {
    shown::or_none(task.reason.as_deref().map(shown::one_line))
}

fn held(token: u64, expires_in_ms: u64) -> String {
    format!("token {token} for {}", shown::length(expires_in_ms))
}

fn change(event: &PlanEvent) -> String {
    match (&event.before, &event.after) {
        (Some(before), Some(after)) => format!("{before} → {after}"),
        (None, Some(only)) | (Some(only), None) => only.clone(),
        (None, None) => shown::NONE.to_owned(),
    }
}

#[cfg(test)]
mod tests;
