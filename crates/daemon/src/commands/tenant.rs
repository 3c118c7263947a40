//! `fencepost tenant …`: shows tenants, retries their tasks, breaks their locks.

use client::wire::plans::{Task, UnlockRequest};

use super::look::Look;
use super::task_retry::TaskRetry;
use super::{confirm, connect, page, shown, tasks_shown};
use crate::cli::plans::Tenant;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; wrong usage where a question was not answered with yes.
pub async fn run(command: Tenant) -> Result<(), Failure> {
    match command {
        Tenant::Show { tenant, shown } => {
            let client = connect(&shown.remote)?;
            Look::one(tasks_shown::tenant).run(&shown, async || client.tenants().get(&tenant).await).await?;
        }
        Tenant::History { tenant, paged, shown } => {
            let client = connect(&shown.remote)?;
            let place = |task: &Task| task.id.clone();
            let read = async |page| client.tenants().tasks(&tenant, &page).await;
            Look::list(tasks_shown::history).run_newest_first(&shown, page(paged), place, read).await?;
        }
        Tenant::Retry { tenant, options, remote } => {
            let mut retry = TaskRetry::of(options)?;
            let client = connect(&remote)?;
            let refused = |error| shown::failure(remote.json, error);
            if retry.expects_present() {
                retry.expect(&client.tenants().get(&tenant).await.map_err(refused)?.task);
            }
            let answer = client.tenants().retry(&tenant, &retry.request, Some(&retry.key)).await;
            let retried = answer.map_err(|error| refused(retry.explained(error)))?;
            shown::answer(remote.json, &retried, |task| tasks_shown::retried(task, retry.is_dry_run));
        }
        Tenant::Unlock { tenant, lock_token: token, reason, yes, remote } => {
            if !yes {
                confirm::ask(&format!(
                    "Without its lock, another task may change tenant {tenant} while a stage of the task that has the \
                     lock still runs. Break the lock?"
                ))?;
            }
            let request = UnlockRequest { token, reason };
            let answer = connect(&remote)?.tenants().unlock(&tenant, &request).await;
            shown::answered(remote.json, answer, |_| {
                format!("the lock {token} of tenant {tenant} is broken\n")
            })?;
        }
    }
    Ok(())
}
