//! `fencepost cluster …`: the live instances.

use super::{connect, shown};
use crate::cli::Cluster;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Cluster) -> Result<(), Failure> {
    let Cluster::Show { remote } = command;
    let answer = connect(&remote)?.cluster().await.map_err(|error| shown::failure(remote.json, error))?;
    shown::answer(remote.json, &answer, |cluster| {
        let rows = cluster.instances.iter().map(|instance| {
            let answering = if instance.instance_id == cluster.instance { "*" } else { "" };
            [
                answering.to_owned(),
                instance.instance_id.clone(),
                instance.url.clone(),
                instance.hostname.clone(),
                instance.pid.to_string(),
                instance.version.clone(),
                instance.bus.clone().unwrap_or_default(),
                instance.resources.to_string(),
                instance.started_at.clone(),
            ]
        });
        let headings = ["", "INSTANCE", "URL", "HOST", "PID", "VERSION", "BUS", "LEASES", "STARTED"];
        format!("mode {}; ring {}; * answered\n", cluster.mode, cluster.ring_version)
            + &shown::table(headings, rows)
    });
    Ok(())
}
