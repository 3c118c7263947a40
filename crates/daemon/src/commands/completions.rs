//! `fencepost completions`: the script that completes commands and options in a shell.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::shown;
use crate::cli::Cli;

/// Prints the script.
pub fn run(shell: Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fencepost", &mut script);
    // A reader that closed the pipe has read enough.
    let _ = shown::print(&String::from_utf8_lossy(&script));
}
