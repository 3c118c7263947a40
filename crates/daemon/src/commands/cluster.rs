//! `fencepost cluster …`: the live instances.

use client::wire::cluster::Cluster as Shown;

use super::look::Look;
use super::{connect, shown};
use crate::cli::Cluster;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Cluster) -> Result<(), Failure> {
    let Cluster::Show { shown } = command;
    let client = connect(&shown.remote)?;
    Look::one(people).run(&shown, async || client.cluster().await).await
}

/// The mode, and one line for each instance.
pub fn people(cluster: &Shown) -> String {
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
}
