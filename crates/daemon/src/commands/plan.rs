//! `fencepost plan …`: creates, starts, steers, shows and awaits plans; resolves and retries their tasks.

mod follow;
mod reader;
mod wait;

use std::io::{IsTerminal as _, stdout};

use client::wire::Object;
use client::wire::plans::{
    Checkpoint, Intent, Plan as Shown, PlanRequest, PlanStatus, StageResolveRequest, Task, TaskDefinition,
    TaskStatus,
};
use client::{PlanQuery, Plans, Tasks};

use super::look::Look;
use super::shown::About;
use super::task_retry::TaskRetry;
use super::{confirm, connect, json_file, once, page, shown, tasks_shown};
use crate::cli::plans::{Change, Plan, TaskChange};
use crate::exit::{Exit, Failure};
use reader::Reader;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; wrong usage for a file that is no plan or no list of stages, and
/// where a question was not answered with yes; for `wait` also that the plan is not SUCCEEDED, or not in time.
pub async fn run(command: Plan) -> Result<(), Failure> {
    match command {
        Plan::Create { file, start, key, remote } => {
            let Object(mut request): Object<PlanRequest> = json_file::read(&file)?;
            if start {
                request.start = Some(true);
            }
            let key = once::key(key, "plan");
            let answer = connect(&remote)?.plans().create(&request, Some(&key)).await;
            let plan =
                answer.map_err(|error| once::failure(remote.json, error, "The plan may be created", &key))?;
            shown::answer(remote.json, &plan, |plan| format!("{}\n", plan.id));
            once::written(&key)?;
        }
        Plan::Start(change) => {
            self::change(change, async |plans, id, why| plans.start(id, why).await).await?
        }
        Plan::Pause(change) => {
            self::change(change, async |plans, id, why| plans.pause(id, why).await).await?
        }
        Plan::Resume { change, keep_paused } => {
            self::change(change, async |plans, id, why| {
                if keep_paused { plans.resume_but_paused(id, why).await } else { plans.resume(id, why).await }
            })
            .await?
        }
        Plan::Cancel { change, yes } => {
            confirm::ask_at_terminal(yes, || {
                format!(
                    "The stages of plan {} that run are cancelled, and no other begins. Cancel it?",
                    change.plan
                )
            })?;
            self::change(change, async |plans, id, why| plans.cancel(id, why).await).await?
        }
        Plan::List { status, paged, shown } => {
            let client = connect(&shown.remote)?;
            let place = |plan: &Shown| plan.id.clone();
            let read = async |page| client.plans().list(&PlanQuery { status, page }).await;
            Look::list(tasks_shown::plans).run_newest_first(&shown, page(paged), place, read).await?;
        }
        Plan::Show { plan, shown } => {
            let client = connect(&shown.remote)?;
            // The JSON is the daemon's, which leaves out why jobs wait.
            let reader = Reader::new(&client, &plan, !shown.remote.json);
            let look = Look::one(tasks_shown::plan).until(|view| is_over(view.plan.status) && !view.runs());
            look.run(&shown, async || reader.read().await).await?;
        }
        Plan::Wait { plan, at_most, remote } => {
            wait::to_the_end(&connect(&remote)?, &plan, at_most, remote.json).await?
        }
        Plan::Events { plan, paged, shown } => {
            let client = connect(&shown.remote)?;
            if shown.watch {
                if paged.limit.is_some() || paged.cursor.is_some() {
                    let message =
                        "-w follows the plan from its beginning, so it takes neither --limit nor --cursor";
                    return Err(Failure::new(Exit::Usage, message));
                }
                return follow::run(client.plans().follow(&plan), shown.remote.json).await;
            }
            let page = page(paged);
            Look::list(tasks_shown::events)
                .run(&shown, async || client.plans().events(&plan, &page).await)
                .await?;
        }
        Plan::Task { task, shown } => {
            let client = connect(&shown.remote)?;
            // The JSON is the daemon's, which leaves out why the job waits.
            let read = async || reader::task(&client, &task, !shown.remote.json).await;
            Look::one(tasks_shown::task).about(About::task(&task)).run(&shown, read).await?;
        }
        Plan::Stages { task, remote } => {
            let definition = connect(&remote)?.tasks().stages(&task).await;
            let about = About::task(&task);
            let definition = definition.map_err(|error| shown::failure_about(about, remote.json, error))?;
            shown::answer(remote.json, &definition, stages_file);
        }
        Plan::Checkpoints { task, paged, shown } => {
            let client = connect(&shown.remote)?;
            let place = |checkpoint: &Checkpoint| format!("{:010}", checkpoint.version);
            let read = async |page| client.tasks().checkpoints(&task, &page).await;
            let look = Look::list(tasks_shown::checkpoints).about(About::task(&task));
            look.run_newest_first(&shown, page(paged), place, read).await?;
        }
        Plan::PauseTask(change) => {
            change_task(change, async |tasks, id, why| tasks.pause(id, why).await).await?
        }
        Plan::ResumeTask(change) => {
            change_task(change, async |tasks, id, why| tasks.resume(id, why).await).await?
        }
        Plan::CancelTask { change, expect_run, yes } => {
            confirm::ask_at_terminal(yes, || {
                format!(
                    "The stage of task {} that runs is cancelled, and no other of it begins; tasks that its failure has held \
                     back start. Cancel it?",
                    change.task
                )
            })?;
            change_task(change, async |tasks, id, why| match expect_run {
                Some(run) => tasks.cancel_run(id, run, why).await,
                None => tasks.cancel(id, why).await,
            })
            .await?
        }
        Plan::Resolve { task, stage, outcome, context, job, reason, remote } => {
            let request = StageResolveRequest { outcome, context, job, reason };
            let answer = connect(&remote)?.tasks().resolve(&task, &stage, &request).await;
            let about = About { stage: Some(&stage), ..About::task(&task) };
            let task = answer.map_err(|error| shown::failure_about(about, remote.json, error))?;
            shown::answer(remote.json, &task, task_line);
        }
        Plan::Retry { task, options, remote } => {
            let mut retry = TaskRetry::of(options)?;
            let client = connect(&remote)?;
            let refused = |error| shown::failure_about(About::task(&task), remote.json, error);
            if retry.expects_present() {
                retry.expect(&client.tasks().get(&task).await.map_err(refused)?);
            }
            let answer = client.tasks().retry(&task, &retry.request, Some(&retry.key)).await;
            let retried = answer.map_err(|error| refused(retry.explained(error)))?;
            shown::answer(remote.json, &retried, |task| tasks_shown::retried(task, retry.is_dry_run));
        }
    }
    Ok(())
}

async fn change(
    change: Change,
    call: impl AsyncFnOnce(Plans<'_>, &str, Option<&str>) -> client::Result<Shown>,
) -> Result<(), Failure> {
    let Change { plan, reason, remote } = change;
    let client = connect(&remote)?;
    let plan = call(client.plans(), &plan, reason.as_deref()).await;
    shown::answered(remote.json, plan, tasks_shown::changed)
}

async fn change_task(
    change: TaskChange,
    call: impl AsyncFnOnce(Tasks<'_>, &str, Option<&str>) -> client::Result<Task>,
) -> Result<(), Failure> {
    let TaskChange { task, reason, remote } = change;
    let client = connect(&remote)?;
    let changed = call(client.tasks(), &task, reason.as_deref()).await;
    let task = changed.map_err(|error| shown::failure_about(About::task(&task), remote.json, error))?;
    shown::answer(remote.json, &task, task_line);
    Ok(())
}

/// The stages as a file of a retry, one on a line.
fn stages_file(definition: &TaskDefinition) -> String {
    let text = serde_json::to_string_pretty(&definition.stages).expect("answers are plain data") + "\n";
    // In a file they are as they were written: a retry compares the payloads of those that are completed.
    if stdout().is_terminal() { shown::escaped(&text) } else { text }
}

/// Whether nothing follows without a person.
const fn is_over(status: PlanStatus) -> bool {
    matches!(status, PlanStatus::Succeeded | PlanStatus::Attention | PlanStatus::Cancelled)
}

fn task_line(task: &Task) -> String {
    let Task { id, status, .. } = task;
    match (task.intent, status) {
        (Intent::Cancel, TaskStatus::Running | TaskStatus::Interrupted) => {
            format!("task {id} is to be CANCELLED; `fencepost plan task {id}` shows when it is\n")
        }
        (Intent::Pause, TaskStatus::Running) => {
            format!(
                "task {id} is to be PAUSED when its stage has ended; `fencepost plan task {id}` shows when it is\n"
            )
        }
        (_, TaskStatus::Failed | TaskStatus::Interrupted) => {
            format!("task {id} is {status}; `fencepost plan retry {id} --reason TEXT` opens its next run\n")
        }
        (_, status) => format!("task {id} is {status}\n"),
    }
}
