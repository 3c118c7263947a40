//! `fencepost health`: for people and for a container's health check, where no other client is.

use super::shown::About;
use super::{connect, shown};
use crate::cli::Health;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Health) -> Result<(), Failure> {
    let Health { ready, remote } = command;
    let client = connect(&remote)?;
    if ready {
        let refused = |error| shown::failure_about(About::READINESS, remote.json, error);
        let answer = client.ready().await.map_err(refused)?;
        shown::answer(remote.json, &answer, |answer| {
            let rows = answer.checks.iter().map(|(name, check)| {
                [name.clone(), check.status.to_string(), shown::or_none(check.detail.as_ref())]
            });
            format!("{}\n", answer.status) + &shown::table(["CHECK", "STATUS", "DETAIL"], rows)
        });
    } else {
        shown::answered(remote.json, client.health().await, |answer| format!("{}\n", answer.status))?;
    }
    Ok(())
}
