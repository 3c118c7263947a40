//! Reads a plan with its tasks, once or again and again.

use std::collections::HashMap;

use client::wire::plans::{StageStatus, Task, TaskStatus};
use client::{Client, Page, Result, TaskQuery};

use crate::commands::tasks_shown::{PlanView, TaskView};
use crate::commands::{all_pages, jobs_shown};

/// The tasks of one plan whose jobs are read. Most often all tasks of a plan wait for the same.
const WAITS_MAX: usize = 10;

/// A plan that is read.
#[derive(Debug)]
pub struct Reader<'a> {
    client: &'a Client,
    plan: &'a str,
    /// Whether it is read too why jobs wait. Lists leave that out, so this costs a request for the job of each task that runs.
    with_details: bool,
}

impl<'a> Reader<'a> {
    /// A reader of the plan with this id.
    pub fn new(client: &'a Client, plan: &'a str, with_details: bool) -> Self {
        Self { client, plan, with_details }
    }

    /// The plan as it is now. Its tasks are read last: where the plan has ended, they have too.
    pub async fn read(&self) -> Result<PlanView> {
        let plan = self.client.plans().get(self.plan).await?;
        let tasks = self.tasks().await?;
        let mut waits = HashMap::new();
        if self.with_details && plan.started_at.is_some() {
            let under_way = tasks.iter().filter_map(|task| Some((&task.id, job_under_way(task)?)));
            for (task, job) in under_way.take(WAITS_MAX) {
                waits.extend(waits_of(self.client, job).await?.map(|why| (task.clone(), why)));
            }
        }
        Ok(PlanView { plan, tasks, waits })
    }

    async fn tasks(&self) -> Result<Vec<Task>> {
        let list = async |page: &Page| {
            let query = TaskQuery { status: None, page: page.clone() };
            self.client.plans().tasks(self.plan, &query).await
        };
        let (tasks, _) = all_pages(usize::MAX, list).await?;
        Ok(tasks)
    }
}

/// A task, and why its job waits.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn task(client: &Client, id: &str, with_details: bool) -> Result<TaskView> {
    let task = client.tasks().get(id).await?;
    let waits = match job_under_way(&task) {
        Some(job) if with_details => waits_of(client, job).await?,
        _ => None,
    };
    Ok(TaskView { task, waits })
}

/// Why a job waits; `None` also where the token may not see the job, or nobody knows it any more.
async fn waits_of(client: &Client, job: &str) -> Result<Option<String>> {
    match client.jobs().get(job).await {
        Ok(job) => Ok(jobs_shown::waits(&job)),
        Err(error) if error.problem().is_some() => Ok(None),
        Err(error) => Err(error),
    }
}

/// The job of the stage of a task that runs.
fn job_under_way(task: &Task) -> Option<&str> {
    if task.status != TaskStatus::Running {
        return None;
    }
    task.stages.iter().find(|stage| stage.status == StageStatus::Running)?.job.as_deref()
}
