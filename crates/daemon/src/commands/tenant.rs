//! `fencepost tenant …`: shows tenants, retries their tasks, breaks their locks.

use std::io::BufRead;

use client::Page;
use client::wire::plans::UnlockRequest;

use super::{connect, retry_request, shown, tasks_shown};
use crate::cli::plans::Tenant;
use crate::exit::{Exit, Failure};

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; wrong usage where a question was not answered with yes.
pub async fn run(command: Tenant) -> Result<(), Failure> {
    match command {
        Tenant::Show { tenant, remote } => {
            let answer = connect(&remote)?.tenants().get(&tenant).await;
            let tenant = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &tenant, tasks_shown::tenant);
        }
        Tenant::History { tenant, paged, remote } => {
            let page = Page { limit: paged.limit, cursor: paged.cursor };
            let answer = connect(&remote)?.tenants().tasks(&tenant, &page).await;
            let list = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::list(remote.json, &list, tasks_shown::history);
        }
        Tenant::Retry { tenant, options, remote } => {
            let (is_dry_run, retry) = retry_request(options)?;
            let answer = connect(&remote)?.tenants().retry(&tenant, &retry).await;
            let task = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &task, |task| tasks_shown::retried(task, is_dry_run));
        }
        Tenant::Unlock { tenant, lock_token: token, reason, yes, remote } => {
            if !yes {
                eprint!(
                    "Without its lock, another task may change tenant {tenant} while a stage of the task that has the \
                     lock still runs. Break the lock? [y/N] "
                );
                confirmed(std::io::stdin().lock())?;
            }
            let request = UnlockRequest { token, reason };
            let answer = connect(&remote)?.tenants().unlock(&tenant, &request).await;
            let answer = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &answer, |_| {
                format!("the lock {token} of tenant {tenant} is broken\n")
            });
        }
    }
    Ok(())
}

/// Reads the answer to a question.
fn confirmed(mut from: impl BufRead) -> Result<(), Failure> {
    let mut answer = String::new();
    let read = from.read_line(&mut answer);
    read.map_err(|error| Failure::new(Exit::Usage, format!("standard input: {error}")))?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Usage, "not confirmed, so nothing was changed; --yes does not ask")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_yes_is_a_yes() {
        for answer in ["y\n", "YES\r\n", " yes "] {
            assert!(confirmed(answer.as_bytes()).is_ok(), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "yeah\n"] {
            assert_eq!(confirmed(answer.as_bytes()).unwrap_err().exit, Exit::Usage, "{answer:?}");
        }
    }
}
