//! `fencepost nodes …`: lists, shows and drains worker nodes, and says which one a job would get.

use client::wire::List;
use client::wire::nodes::{Node, NodeState, SelectAnswer, SelectRequest};

use super::each::{each, each_unchanged};
use super::look::Look;
use super::{connect, page, shown};
use crate::cli::jobs::Needs;
use crate::cli::nodes::{Drained, Nodes};
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Nodes) -> Result<(), Failure> {
    match command {
        Nodes::List { paged, shown } => {
            let (client, page) = (connect(&shown.remote)?, page(paged));
            Look::list(list).run(&shown, async || client.nodes().list(&page).await).await
        }
        Nodes::Show { node, shown } => {
            let client = connect(&shown.remote)?;
            Look::one(card).run(&shown, async || client.nodes().get(&node).await).await
        }
        Nodes::Drain { drained: Drained { nodes, dry_run, remote }, yes: _ } => {
            let client = connect(&remote)?;
            if dry_run {
                let read = async |id: &str| client.nodes().get(id).await;
                return each_unchanged(&nodes, &remote, read, would_drain).await;
            }
            each(
                &nodes,
                &remote,
                async |id| client.nodes().drain(id).await,
                |node| {
                    format!(
                        "node {} is {}; {} of its {} slots are taken\n",
                        node.id, node.state, node.used, node.capacity
                    )
                },
            )
            .await
        }
        Nodes::Undrain(Drained { nodes, dry_run, remote }) => {
            let client = connect(&remote)?;
            if dry_run {
                let read = async |id: &str| client.nodes().get(id).await;
                return each_unchanged(&nodes, &remote, read, would_undrain).await;
            }
            each(
                &nodes,
                &remote,
                async |id| client.nodes().undrain(id).await,
                |node| format!("node {} is {}\n", node.id, node.state),
            )
            .await
        }
        Nodes::Explain { needs: Needs { pool, requires, route }, shown } => {
            let client = connect(&shown.remote)?;
            let wanted = SelectRequest { pool, route, requires };
            Look::one(explanation).run(&shown, async || client.nodes().select(&wanted).await).await
        }
    }
}

fn would_drain(node: &Node) -> String {
    let is_draining = node.state == NodeState::Draining;
    line(node, if is_draining { "stays as it is" } else { "would be drained" })
}

fn would_undrain(node: &Node) -> String {
    let is_draining = node.state == NodeState::Draining;
    line(node, if is_draining { "would be undrained" } else { "stays as it is" })
}

fn line(node: &Node, becomes: &str) -> String {
    format!("node {} {becomes}: {}, {} of {} slots taken\n", node.id, node.state, node.used, node.capacity)
}

/// Nodes, one line each.
pub fn list(list: &List<Node>) -> String {
    let headings = ["NODE", "STATE", "SLOTS", "POOLS", "LABELS", "INSTANCE", "SOFTWARE", "LAST HEARTBEAT"];
    shown::list(headings, list, |node| {
        [
            node.id.clone(),
            node.state.to_string(),
            format!("{}/{}", node.used, node.capacity),
            shown::joined(&node.pools, ","),
            shown::joined(&node.labels, ","),
            node.instance.clone(),
            shown::or_none(node.version.as_ref()),
            shown::or_none(node.heartbeat_at.as_ref()),
        ]
    })
}

fn card(node: &Node) -> String {
    let load = node.load.map(|load| {
        let parts = [("cpu", load.cpu), ("gpu", load.gpu), ("memory", load.memory)];
        let known = parts.into_iter().filter_map(|(name, share)| Some(format!("{name} {}", share?)));
        known.collect::<Vec<_>>().join(", ")
    });
    shown::card([
        ("node", node.id.clone()),
        ("state", node.state.to_string()),
        ("held by", node.instance.clone()),
        ("slots", format!("{} of {} taken", node.used, node.capacity)),
        ("pools", shown::joined(&node.pools, ", ")),
        ("labels", shown::joined(&node.labels, ", ")),
        ("services", shown::joined(&node.services, ", ")),
        ("load", shown::or_none(load.filter(|load| !load.is_empty()))),
        ("software", shown::or_none(node.version.as_ref())),
        ("registered", shown::or_none(node.registered_at.as_ref())),
        ("last heartbeat", shown::or_none(node.heartbeat_at.as_ref())),
        ("changed", node.seen_at.clone()),
        ("record version", node.record_version.to_string()),
    ])
}

/// Why no node can take a job.
fn obstacle(answer: &SelectAnswer) -> String {
    if answer.considered == 0 {
        return "no node is connected; `fencepost node --exec CMD…` starts one".to_owned();
    }
    let reasons: Vec<_> =
        answer.rejected.iter().map(|(reason, count)| format!("{count} {}", words(reason))).collect();
    let nodes = if answer.considered == 1 { "node" } else { "nodes" };
    format!("no node can take it now; of {} {nodes}: {}", answer.considered, reasons.join(", "))
}

/// What a reason of the daemon means. Newer daemons may have others.
fn words(reason: &str) -> &str {
    match reason {
        "pool" => "in no pool that serves it",
        "labels" => "without its labels or languages",
        "excluded" => "left out",
        "unreachable" => "not reachable from the instance that answered",
        "not_ready" => "not ready",
        "full" => "without a free slot",
        other => other,
    }
}

fn explanation(answer: &SelectAnswer) -> String {
    let chosen = match (&answer.node, &answer.pool) {
        (Some(node), Some(pool)) => format!("node {node} of pool {pool}"),
        (Some(node), None) => format!("node {node}"),
        (None, _) => obstacle(answer),
    };
    let rows = answer.rejected.iter().map(|(reason, count)| [reason.clone(), count.to_string()]);
    let rejected = if answer.rejected.is_empty() {
        String::new()
    } else {
        "\n".to_owned() + &shown::table(["REJECTED FOR", "NODES"], rows)
    };
    shown::card([
        ("chosen", chosen),
        ("considered", answer.considered.to_string()),
        ("took", format!("{:.1} µs", answer.took_us)),
    ]) + &rejected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_learns_why_no_node_takes_the_job() {
        let answer = |considered, rejected: &[(&str, u64)]| {
            let rejected = rejected.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect();
            obstacle(&SelectAnswer { node: None, pool: None, considered, rejected, took_us: 1.0 })
        };
        assert!(answer(0, &[]).starts_with("no node is connected"));
        assert_eq!(answer(1, &[("full", 1)]), "no node can take it now; of 1 node: 1 without a free slot");
        assert_eq!(
            answer(10, &[("draining", 3), ("labels", 6), ("newer", 1)]),
            "no node can take it now; of 10 nodes: 3 draining, 6 without its labels or languages, 1 newer"
        );
    }
}
