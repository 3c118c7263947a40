//! The commands about sessions.

use clap::Subcommand;
use wire::limits::{SESSION_IDLE_MS_MAX, SESSION_IDLE_MS_MIN};
use wire::sessions::Ordering;

use super::jobs::Needs;
use super::length::milliseconds;
use super::{Paged, Remote, Shown, checked, words};

/// `fencepost session …`
#[derive(Debug, Subcommand)]
pub enum Session {
    /// Open a session and print its id
    Open {
        /// How its jobs and results are ordered [default: strict]
        #[arg(long, value_parser = words(Ordering::ALL, Ordering::as_str))]
        ordering: Option<Ordering>,
        /// The tenant of the session
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        #[command(flatten)]
        needs: Needs,
        /// The session is closed after this time without a submitted or finished job, in milliseconds or such as 90m
        /// [default: 3600000]
        #[arg(long, value_name = "MS", value_parser = milliseconds(SESSION_IDLE_MS_MIN..=SESSION_IDLE_MS_MAX))]
        idle_ms: Option<u64>,
        /// Idempotency key: the same request under the same key is the same session
        #[arg(long, value_name = "KEY", value_parser = checked::key)]
        key: Option<String>,
        #[command(flatten)]
        remote: Remote,
    },
    /// List sessions, in the order of their ids
    List {
        /// Only open sessions
        #[arg(long, conflicts_with = "closed")]
        open: bool,
        /// Only closed sessions
        #[arg(long)]
        closed: bool,
        /// Only sessions of this tenant
        #[arg(long, value_name = "TENANT")]
        tenant: Option<String>,
        #[command(flatten)]
        paged: Paged,
        #[command(flatten)]
        shown: Shown,
    },
    /// Show a session: its jobs, counted, and its last node
    Show {
        /// The session's id
        session: String,
        #[command(flatten)]
        shown: Shown,
    },
    /// Close sessions: they take no more jobs, and finish those that they have
    Close {
        /// The sessions' ids
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
        /// Show the sessions, and change nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask
        #[arg(short, long)]
        yes: bool,
        #[command(flatten)]
        remote: Remote,
    },
}
