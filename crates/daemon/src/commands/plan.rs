//! `fencepost plan …`: creates, starts, steers and shows plans; resolves and retries their tasks.

mod follow;
mod reader;
mod watch;

use client::wire::plans::{Plan as Shown, PlanRequest, StageResolveRequest, Task};
use client::{Page, PlanQuery, Plans, Tasks};

use super::{connect, json_file, retry_request, shown, tasks_shown};
use crate::cli::plans::{Change, Plan, TaskChange};
use crate::exit::Failure;
use reader::Reader;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; wrong usage for a file that is no plan or no list of stages.
pub async fn run(command: Plan) -> Result<(), Failure> {
    match command {
        Plan::Create { file, start, key, remote } => {
            let mut request: PlanRequest = json_file::read(&file)?;
            if start {
                request.start = Some(true);
            }
            let answer = connect(&remote)?.plans().create(&request, key.as_deref()).await;
            let plan = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &plan, |plan| format!("{}\n", plan.id));
        }
        Plan::Start(change) => {
            self::change(change, async |plans, id, why| plans.start(id, why).await).await?
        }
        Plan::Pause(change) => {
            self::change(change, async |plans, id, why| plans.pause(id, why).await).await?
        }
        Plan::Resume(change) => {
            self::change(change, async |plans, id, why| plans.resume(id, why).await).await?
        }
        Plan::Cancel(change) => {
            self::change(change, async |plans, id, why| plans.cancel(id, why).await).await?
        }
        Plan::List { status, paged, remote } => {
            let page = Page { limit: paged.limit, cursor: paged.cursor };
            let answer = connect(&remote)?.plans().list(&PlanQuery { status, page }).await;
            let list = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::list(remote.json, &list, tasks_shown::plans);
        }
        Plan::Show { plan, watch, remote } => {
            let client = connect(&remote)?;
            // The JSON is the daemon's, which leaves out the locks.
            let mut reader = Reader::new(&client, &plan, !remote.json);
            if watch {
                return watch::run(reader, remote.json).await;
            }
            let view = reader.read().await.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &view, tasks_shown::plan);
        }
        Plan::Events { plan, watch: true, remote, .. } => {
            return follow::run(connect(&remote)?.plans().follow(&plan), remote.json).await;
        }
        Plan::Events { plan, paged, remote, .. } => {
            let page = Page { limit: paged.limit, cursor: paged.cursor };
            let answer = connect(&remote)?.plans().events(&plan, &page).await;
            let list = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::list(remote.json, &list, tasks_shown::events);
        }
        Plan::Task { task, remote } => {
            let answer = connect(&remote)?.tasks().get(&task).await;
            let task = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &task, tasks_shown::task);
        }
        Plan::Checkpoints { task, paged, remote } => {
            let page = Page { limit: paged.limit, cursor: paged.cursor };
            let answer = connect(&remote)?.tasks().checkpoints(&task, &page).await;
            let list = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::list(remote.json, &list, tasks_shown::checkpoints);
        }
        Plan::PauseTask(change) => {
            change_task(change, async |tasks, id, why| tasks.pause(id, why).await).await?
        }
        Plan::ResumeTask(change) => {
            change_task(change, async |tasks, id, why| tasks.resume(id, why).await).await?
        }
        Plan::CancelTask(change) => {
            change_task(change, async |tasks, id, why| tasks.cancel(id, why).await).await?
        }
        Plan::Resolve { task, stage, outcome, context, reason, remote } => {
            let request = StageResolveRequest { outcome, context, reason };
            let answer = connect(&remote)?.tasks().resolve(&task, &stage, &request).await;
            let task = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &task, task_line);
        }
        Plan::Retry { task, options, remote } => {
            let (is_dry_run, retry) = retry_request(options)?;
            let answer = connect(&remote)?.tasks().retry(&task, &retry).await;
            let task = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &task, |task| tasks_shown::retried(task, is_dry_run));
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
    let plan = plan.map_err(|error| shown::failure(remote.json, error))?;
    shown::answer(remote.json, &plan, |plan| format!("plan {} is {}\n", plan.id, plan.status));
    Ok(())
}

async fn change_task(
    change: TaskChange,
    call: impl AsyncFnOnce(Tasks<'_>, &str, Option<&str>) -> client::Result<Task>,
) -> Result<(), Failure> {
    let TaskChange { task, reason, remote } = change;
    let client = connect(&remote)?;
    let task = call(client.tasks(), &task, reason.as_deref()).await;
    let task = task.map_err(|error| shown::failure(remote.json, error))?;
    shown::answer(remote.json, &task, task_line);
    Ok(())
}

fn task_line(task: &Task) -> String {
    format!("task {} is {}\n", task.id, task.status)
}
