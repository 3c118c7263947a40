//! `fencepost cluster …`: the live instances.

use client::wire::cluster::Cluster as Shown;

use super::look::Look;
use super::{connect, shown};
use crate::cli::Cluster;
use crate::exit::Failure;

/// Signers of a mode that the line above the table names.
const SIGNERS_NAMED: usize = 5;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Cluster) -> Result<(), Failure> {
    let Cluster::Show { shown } = command;
    let client = connect(&shown.remote)?;
    Look::one(people).run(&shown, async || client.cluster().await).await
}

/// The mode, a line with the first signers that it is of unless it is of all, and one line for each instance.
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
    let only = match cluster.only.as_deref() {
        None => String::new(),
        Some([]) => "only for none of the signers that this token sees\n".to_owned(),
        Some(signers) => {
            let (named, others) = signers.split_at(signers.len().min(SIGNERS_NAMED));
            let more = match others.len() {
                0 => String::new(),
                count => format!(" and {count} more (--json names all)"),
            };
            format!("only for {}{more}\n", named.join(", "))
        }
    };
    format!("mode {}; ring {}; * answered\n{only}", cluster.mode, cluster.ring_version)
        + &shown::table(headings, rows)
}

#[cfg(test)]
mod tests {
    use client::wire::cluster::Mode;

    use super::*;

    #[test]
    fn a_mode_is_shown_with_the_signers_that_it_is_of_unless_it_is_of_all() {
        let mut cluster = Shown {
            instance: "a".to_owned(),
            mode: Mode::Basic,
            only: None,
            ring_version: 7,
            instances: Vec::new(),
        };
        for (only, line) in [
            (None, None),
            (Some(vec![]), Some("only for none of the signers that this token sees")),
            (Some(vec!["signer:a", "signer:b"]), Some("only for signer:a, signer:b")),
        ] {
            cluster.only = only.map(|only: Vec<&str>| only.into_iter().map(str::to_owned).collect());
            let text = people(&cluster);
            let lines: Vec<_> = text.lines().take_while(|line| !line.contains("INSTANCE")).collect();
            let first = "mode basic; ring 7; * answered";
            assert_eq!(lines, [Some(first), line].into_iter().flatten().collect::<Vec<_>>());
        }
    }

    #[test]
    fn of_many_signers_of_a_mode_the_first_are_named() {
        let cluster = Shown {
            instance: "a".to_owned(),
            mode: Mode::Basic,
            only: Some((1..=1_000).map(|number| format!("signer:eip155:1:{number}")).collect()),
            ring_version: 7,
            instances: Vec::new(),
        };
        let text = people(&cluster);
        let above = text.split("INSTANCE").next().unwrap();
        assert!(above.len() <= 300, "{above}");
        let ends = "signer:eip155:1:4, signer:eip155:1:5 and 995 more (--json names all)";
        assert!(above.contains(ends), "{above}");
    }
}
