//! The commands about nodes and pools.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::jobs::Needs;
use super::length::length;
use super::{Paged, Remote, Shown};

/// `fencepost nodes …`
#[derive(Debug, Subcommand)]
pub enum Nodes {
    /// List nodes
    List {
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show a node
    Show {
        /// The node's id
        node: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Drain nodes: they finish their jobs and get no more (scope admin)
    Drain {
        #[command(flatten)]
        drained: Drained,
        /// Do not ask. `nodes undrain` ends a drain, so the command does not ask in any case
        #[arg(short, long)]
        yes: bool,
    },
    /// End the drain of nodes (scope admin)
    Undrain(Drained),
    /// Say which node a job with these requirements would get now, and why not the others
    Explain {
        #[command(flatten)]
        needs: Needs,
        #[command(flatten)]
        shown: Shown,
    },
}

/// Nodes to drain, or to use again.
#[derive(Args, Debug)]
pub struct Drained {
    /// The nodes' ids
    #[arg(required = true, value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Show what would become of the nodes, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub remote: Remote,
}

/// `fencepost pool …`
#[derive(Debug, Subcommand)]
pub enum Pool {
    /// Show the pools, with the version of their setting, and which of them are paused
    Show {
        #[command(flatten)]
        shown: Shown,
    },
    /// Pause a pool: its jobs wait, those that are dispatched run on (scope admin)
    Pause {
        /// The pool
        pool: String,
        /// Why, for the audit and for people who wonder why jobs wait
        #[arg(long, value_name = "TEXT")]
        reason: String,
        /// Resume the pool after this time, such as 90s or 10m [default: never]
        #[arg(long = "for", value_name = "LENGTH", value_parser = length)]
        length: Option<Duration>,
        /// Do not ask. `pool resume` ends a pause, so the command does not ask in any case
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
    /// End the pause of a pool (scope admin)
    Resume {
        /// The pool
        pool: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Replace all pools (scope admin)
    #[command(after_help = "\
The file is what `fencepost pool show --json` prints: {\"version\": 3, \"pools\": [{\"name\": \"zh-en\", \"routes\": [\"zh:en\"],
\"requires\": [\"asr:zh\"], \"weight\": 1}]}. If somebody has changed the pools since that version, or if they
have fields that this command does not know and would erase, nothing is changed.")]
    Set {
        /// The pools as JSON; `-` reads standard input, and needs --yes or --dry-run
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Show what would change, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask before pools are dropped, nor, on a terminal, before the first pools are set
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
}
