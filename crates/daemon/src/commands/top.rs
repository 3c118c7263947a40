//! `fencepost top`: jobs, nodes and instances on one screen.

use std::io::{IsTerminal as _, stdout};

use client::Page;
use client::wire::List;
use client::wire::cluster::Cluster;
use client::wire::nodes::{Node, NodeState};
use client::wire::stats::Stats;
use serde::Serialize;

use super::look::Look;
use super::{all_pages, cluster, connect, nodes, shown, stats};
use crate::cli::{Shown, Top};
use crate::exit::Failure;

/// How many nodes are shown: those with the most slots taken.
const NODES_SHOWN: usize = 20;

/// How many nodes are read at most: ten requests for each screen.
const NODES_READ_MAX: usize = 10_000;

/// Everything on the screen.
#[derive(Debug, Serialize)]
struct Screenful {
    stats: Stats,
    cluster: Cluster,
    /// The first [`NODES_READ_MAX`] by their ids, those with the most slots taken first.
    nodes: Vec<Node>,
    /// There are more.
    more_nodes: bool,
}

/// Runs the command: on a terminal until Ctrl-C; elsewhere, and as JSON, once.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Top) -> Result<(), Failure> {
    let remote = command.remote;
    let client = connect(&remote)?;
    // JSON is one document.
    let how = Shown { watch: stdout().is_terminal() && !remote.json, remote };
    let read = async || {
        let (stats, cluster) = (client.stats().await?, client.cluster().await?);
        let (mut nodes, more_nodes) = read_nodes(async |page: &Page| client.nodes().list(page).await).await?;
        nodes.sort_by_key(|node| std::cmp::Reverse(node.used));
        Ok(Screenful { stats, cluster, nodes, more_nodes })
    };
    Look::one(people).run(&how, read).await
}

/// The nodes, up to [`NODES_READ_MAX`]; and whether there are more.
async fn read_nodes(
    list: impl AsyncFn(&Page) -> client::Result<List<Node>>,
) -> client::Result<(Vec<Node>, bool)> {
    all_pages(NODES_READ_MAX, list).await
}

/// So many nodes, and how many of them take no jobs, if any.
fn counted(nodes: &[Node], more: bool) -> String {
    let (count, idle) = (nodes.len(), nodes.iter().filter(|node| node.state != NodeState::Online).count());
    match (more, idle) {
        (true, 0) => format!("more than {count} nodes"),
        (true, _) => format!("more than {count} nodes ({idle} of the first {count} take no jobs)"),
        (false, 0) => format!("{count} nodes"),
        (false, _) => format!("{count} nodes ({idle} of them take no jobs)"),
    }
}

/// For how long the oldest waiting job has been due.
fn oldest(waiting_ms: Option<u64>) -> String {
    waiting_ms.map_or_else(
        || "no job waits".to_owned(),
        |ms| format!("the oldest waiting job has been due for {}", shown::length(ms)),
    )
}

fn people(screen: &Screenful) -> String {
    let Screenful { stats: counts, cluster: members, nodes: all, more_nodes } = screen;
    let oldest = oldest(counts.oldest_waiting_ms);
    let slots = counts.slots.map(|slots| format!("{} of {} slots taken on ", slots.used, slots.all));
    let summary = format!("{oldest}; {}{}\n", slots.unwrap_or_default(), counted(all, *more_nodes));
    let list = List { items: all.iter().take(NODES_SHOWN).cloned().collect(), next_cursor: None };
    [summary, stats::pools(counts), stats::rates(counts), nodes::list(&list), cluster::people(members)]
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: usize) -> Node {
        let state = if number == 0 { "draining" } else { "online" };
        let node = serde_json::json!({
            "id": format!("n-{number:05}"), "state": state, "instance": "i", "capacity": 1, "used": 0, "labels": [],
            "pools": [], "load": null, "version": null, "seen_at": "t",
        });
        serde_json::from_value(node).unwrap()
    }

    /// What is read of so many nodes.
    async fn read_of(count: usize) -> (Vec<Node>, bool) {
        let read = read_nodes(async |page: &Page| {
            let from = page.cursor.as_ref().map_or(0, |cursor| cursor.parse().unwrap());
            let end = count.min(from + page.limit.unwrap() as usize);
            let items = (from..end).map(node).collect();
            Ok(List { items, next_cursor: (end < count).then(|| end.to_string()) })
        });
        read.await.unwrap()
    }

    #[tokio::test]
    async fn all_pages_of_nodes_are_read_and_where_that_is_too_many_it_is_said() {
        for (count, says) in [
            (0, "0 nodes"),
            (1_000, "1000 nodes (1 of them take no jobs)"),
            (1_001, "1001 nodes (1 of them take no jobs)"),
            (10_000, "10000 nodes (1 of them take no jobs)"),
            (10_001, "more than 10000 nodes (1 of the first 10000 take no jobs)"),
        ] {
            let (nodes, more) = read_of(count).await;
            assert_eq!(nodes.len(), count.min(NODES_READ_MAX));
            assert_eq!(counted(&nodes, more), says);
            let online = nodes.get(1..).unwrap_or_default();
            assert!(!counted(online, more).contains("take no jobs"), "{}", counted(online, more));
        }
    }

    #[test]
    fn the_summary_says_for_how_long_a_job_has_been_due() {
        assert_eq!(oldest(None), "no job waits");
        assert_eq!(oldest(Some(180_000)), "the oldest waiting job has been due for 3 min");
    }
}
