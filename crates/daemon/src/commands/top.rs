//! `fencepost top`: jobs, nodes and instances on one screen.

use std::io::{IsTerminal as _, stdout};

use client::Page;
use client::wire::List;
use client::wire::cluster::Cluster;
use client::wire::limits::LIST_ITEMS_MAX;
use client::wire::nodes::{Node, NodeState};
use client::wire::stats::Stats;
use serde::Serialize;

use super::look::Look;
use super::{cluster, connect, nodes, shown, stats};
use crate::cli::{Shown, Top};
use crate::exit::Failure;

/// How many nodes are shown: those with the most slots taken.
const NODES_SHOWN: usize = 20;

/// Everything on the screen.
#[derive(Debug, Serialize)]
struct Screenful {
    stats: Stats,
    cluster: Cluster,
    /// The first 1,000, those with the most slots taken first.
    nodes: Vec<Node>,
}

/// Runs the command: on a terminal, and as JSON, until Ctrl-C; elsewhere once.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Top) -> Result<(), Failure> {
    let remote = command.remote;
    let client = connect(&remote)?;
    let how = Shown { watch: stdout().is_terminal() || remote.json, remote };
    let page = Page { limit: Some(LIST_ITEMS_MAX), cursor: None };
    let read = async || {
        let (stats, cluster) = (client.stats().await?, client.cluster().await?);
        let mut nodes = client.nodes().list(&page).await?.items;
        nodes.sort_by_key(|node| std::cmp::Reverse(node.used));
        Ok(Screenful { stats, cluster, nodes })
    };
    Look::one(people).run(&how, read).await
}

fn people(screen: &Screenful) -> String {
    let Screenful { stats: counts, cluster: members, nodes: all } = screen;
    let oldest = counts.oldest_waiting_ms.map_or_else(
        || "no job waits".to_owned(),
        |ms| format!("the oldest waiting job is due for {}", shown::length(ms)),
    );
    let idle = all.iter().filter(|node| node.state != NodeState::Online).count();
    let summary = format!(
        "{oldest}; {} of {} slots taken on {} nodes ({idle} of them take no jobs)\n",
        counts.slots.used,
        counts.slots.all,
        all.len()
    );
    let list = List { items: all.iter().take(NODES_SHOWN).cloned().collect(), next_cursor: None };
    [summary, stats::pools(counts), stats::rates(counts), nodes::list(&list), cluster::people(members)]
        .join("\n")
}
