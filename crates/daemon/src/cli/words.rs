//! The command line before it is parsed: what its words and the environment stand for.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches};

use super::Cli;

impl Cli {
    /// The command line of this process. One that is wrong, or asks for help, ends the process.
    pub fn of_process() -> Self {
        let words = with_help(std::env::args_os().collect());
        let command = without_empty_variables(Self::command());
        let matches =
            command.try_get_matches_from(&words).unwrap_or_else(|error| hinted(error, &words).exit());
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// The same error. For `node list` and the like, which `nodes` does, with a tip.
fn hinted(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let [_, node, word, ..] = words else { return error };
    let root = Cli::command();
    let of_nodes = root.find_subcommand("nodes").and_then(|nodes| nodes.find_subcommand(word));
    if node == "node"
        && let Some(meant) = of_nodes
    {
        let tip = format!("`fencepost nodes {}` is about nodes; `fencepost node` runs one", meant.get_name());
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

/// The same words with `--help` at their end for a `help` among the commands: `help job`, `job help`, `job help list`.
fn with_help(mut words: Vec<OsString>) -> Vec<OsString> {
    let root = Cli::command();
    let (mut command, mut at) = (&root, 1);
    while let Some(next) = words.get(at).and_then(|word| command.find_subcommand(word)) {
        (command, at) = (next, at + 1);
    }
    if command.has_subcommands() && words.get(at).is_some_and(|word| word == "help") {
        words.remove(at);
        words.push("--help".into());
    }
    words
}

/// The same command, where a variable that is set and empty counts as not set. (Compose files and unit files hand over empty
/// variables for what nobody set.)
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        if value.is_some_and(|value| value.is_empty()) { arg.env(None::<&'static str>) } else { arg }
    });
    command.mut_subcommands(without_empty_variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_a_node_for_what_nodes_does_gets_a_tip() {
        let said = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            hinted(Cli::command().try_get_matches_from(&words).unwrap_err(), &words).to_string()
        };
        let tip = "tip: `fencepost nodes list` is about nodes; `fencepost node` runs one\n";
        assert!(said("x node list").contains(tip), "{}", said("x node list"));
        for other in ["x node", "x node x", "x job list list"] {
            assert!(!said(other).contains("fencepost nodes"), "{}", said(other));
        }
    }

    #[test]
    fn help_stands_for_an_option_where_a_command_may_stand() {
        for (line, read) in [
            ("x help", "x --help"),
            ("x help job", "x job --help"),
            ("x job help", "x job --help"),
            ("x job help list", "x job list --help"),
            ("x job bulk help", "x job bulk --help"),
            ("x submit help", "x submit help"),
            ("x job show help", "x job show help"),
            ("x", "x"),
        ] {
            let words = with_help(line.split(' ').map(OsString::from).collect());
            assert_eq!(words, read.split(' ').map(OsString::from).collect::<Vec<_>>(), "{line}");
        }
    }
}
