//! The `fencepost` binary.
//!
//! What lives here: the way from the command line to a command, and from its end to an exit status.
//! What must never: anything that a library crate could do.

#![warn(
    clippy::print_stderr,
    reason = "it panics where stderr cannot be written: a command uses `shown::note`"
)]

mod cli;
mod commands;
mod config;
mod exit;
mod logging;
mod process;
mod serve;
mod terminal;

use std::process::ExitCode;

use mimalloc::MiMalloc;

use cli::{Cli, Command};
use exit::{Exit, Failure};

/// glibc's allocator keeps most of the memory that a burst of large payloads took; this one gives it back
/// (docs/performance-history.md, "Memory after a burst").
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let _flush = logging::FlushOnDrop;
    match run(Cli::of_process().command).and_then(|()| commands::shown::all_written()) {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            logging::print_failure(&failure);
            failure.exit.into()
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    // What a node's command creates is as private as its user wants it.
    if !matches!(command, Command::Node(_)) {
        process::keep_files_private();
    }
    match command {
        Command::Serve(command) => serve::run(command),
        Command::Nonce(command) => commands::run(commands::nonce::run(command)),
        Command::Id(command) => commands::run(commands::id::run(command)),
        Command::Lease(command) => commands::run(commands::lease::run(command)),
        Command::Cluster(command) => commands::run(commands::cluster::run(command)),
        Command::Stats(command) => commands::run(commands::stats::run(command)),
        Command::Node(command) => commands::run(commands::node::run(command)),
        Command::Submit(command) => commands::run(commands::submit::run(*command)),
        Command::Job(command) => commands::run(commands::job::run(command)),
        Command::Session(command) => commands::run(commands::session::run(command)),
        Command::Nodes(command) => commands::run(commands::nodes::run(command)),
        Command::Pool(command) => commands::run(commands::pool::run(command)),
        Command::Plan(command) => commands::run(commands::plan::run(command)),
        Command::Tenant(command) => commands::run(commands::tenant::run(command)),
        Command::Backup(command) => commands::run(commands::backup::run(command)),
        Command::Recover(command) => commands::run(commands::recover::run(command)),
        Command::Top(command) => commands::run(commands::top::run(command)),
        Command::Completions { shell } => {
            commands::completions::run(shell);
            Ok(())
        }
        Command::Audit(command) => commands::run(commands::audit::run(command)),
        Command::Token(command) => commands::token::run(command),
        Command::Health(command) => commands::run(commands::health::run(command)),
        Command::Migrate(command) => commands::run(commands::migrate::run(command)),
        Command::CheckConfig(command) => commands::check_config::run(command),
    }
}
