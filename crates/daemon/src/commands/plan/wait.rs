//! `fencepost plan wait`: waits until nothing of a plan follows without a person.

use std::time::Duration;

use client::Client;
use client::wire::plans::{Plan, PlanStatus};
use tokio::time::{sleep, timeout};

use crate::commands::absence::Absence;
use crate::commands::{shown, tasks_shown};
use crate::exit::{Exit, Failure};

/// The delay between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// How long the last look at a plan that has not ended in time may take.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// Waits until the plan is SUCCEEDED or CANCELLED, or it is ATTENTION and no task of it runs, for `at_most` at the longest, and
/// prints how it stands. Says on stderr meanwhile if it waits for a person to start or resume it.
///
/// # Errors
/// The refusal, or why no daemon could be reached; the plan is not SUCCEEDED, or has not ended in time.
pub async fn to_the_end(
    client: &Client,
    id: &str,
    at_most: Option<Duration>,
    json: bool,
) -> Result<(), Failure> {
    // The longest length of all is no limit.
    let at_most = at_most.unwrap_or(Duration::MAX);
    let plan = match timeout(at_most, end(client, id, json)).await {
        Ok(ended) => ended.map_err(|error| shown::failure(json, error))?,
        Err(_) => late(client, id, at_most, json).await?,
    };
    let has_succeeded = plan.status == PlanStatus::Succeeded;
    shown::answer(json, &plan, |plan| {
        if has_succeeded { tasks_shown::standing(plan) + "\n" } else { String::new() }
    });
    if has_succeeded {
        return Ok(());
    }
    let message = tasks_shown::standing(&plan) + &tasks_shown::to_look_at(&plan);
    Err(Failure::new(Exit::Refused, message + &format!("\n  `fencepost plan show {id}` shows its tasks")))
}

/// The plan when it is over, through absences of the daemon. One that cannot be reached at first is not waited for.
async fn end(client: &Client, id: &str, json: bool) -> client::Result<Plan> {
    let mut absence = Absence::default();
    let mut before = None;
    loop {
        match client.plans().get(id).await {
            Ok(plan) if is_over(&plan) => return Ok(plan),
            Ok(plan) => {
                absence.end();
                let stands_still = matches!(plan.status, PlanStatus::Created | PlanStatus::Paused);
                if before.replace(plan.status) != Some(plan.status) && stands_still && !json {
                    shown::note(&tasks_shown::changed(&plan));
                }
                sleep(EVERY).await;
            }
            Err(error) if before.is_none() => return Err(error),
            Err(error) => absence.outlast(error).await?,
        }
    }
}

/// Whether nothing follows without a person.
fn is_over(plan: &Plan) -> bool {
    super::is_over(plan.status) && plan.progress.running == 0
}

/// Looks at a plan that was not seen to end in time for the last time: it may have ended since the look before. With JSON it is
/// printed as it is, or that it could not be seen.
///
/// # Errors
/// It has not ended, or that cannot be found out.
async fn late(client: &Client, id: &str, after: Duration, json: bool) -> Result<Plan, Failure> {
    let after = shown::length(after.as_millis() as u64);
    let again = format!("`fencepost plan wait {id}` waits again");
    let why = match timeout(LAST_LOOK, client.plans().get(id)).await {
        Ok(Ok(plan)) if is_over(&plan) => return Ok(plan),
        Ok(Ok(plan)) => {
            if json {
                shown::answer(true, &plan, |_| String::new());
            }
            let message = format!("after {after}, {}\n  {again}", tasks_shown::standing(&plan));
            return Err(Failure::new(Exit::Refused, message));
        }
        Ok(Err(error)) => shown::one_line(&error.to_string()),
        Err(_) => "the daemon does not answer".to_owned(),
    };
    let message = format!("plan {id} has not ended after {after} ({why})\n  {again}");
    Err(shown::failed(json, id, Exit::Refused, message))
}
