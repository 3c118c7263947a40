//! `fencepost completions`: the script that completes commands and options in a shell.

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::shown;
use crate::cli::Cli;

/// Prints the script.
pub fn run(shell: Shell) {
    // A reader that closed the pipe has read enough.
    let _ = shown::print(&script(shell));
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fencepost", &mut script);
    let script = String::from_utf8_lossy(&script);
    // The command of a node has several words, of which only the first would be behind an equals sign.
    if shell == Shell::Zsh { script.replace("--exec=[", "--exec[") } else { script.into_owned() }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    fn check(command: &Command, seen: &mut usize) {
        *seen += 1;
        let name = command.get_name();
        assert!(
            !command.is_hide_set(),
            "{name} is hidden: the help leaves it out, and a test that reads the help too"
        );
        assert!(command.get_about().is_some(), "{name} has no description");
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{name}: {} has no description", argument.get_id());
            assert!(!argument.is_hide_set(), "{name}: {} is hidden", argument.get_id());
        }
        for below in command.get_subcommands() {
            check(below, seen);
        }
    }

    #[test]
    fn zsh_writes_no_equals_sign_behind_the_option_with_several_words() {
        let script = script(Shell::Zsh);
        assert!(script.contains("--exec[") && script.contains("--url=["), "{script}");
        assert!(!script.contains("--exec="), "{script}");
    }

    #[test]
    fn no_command_or_option_is_hidden_and_each_has_a_description() {
        let mut seen = 0;
        check(&Cli::command(), &mut seen);
        assert!(seen > 78, "{seen}");
    }
}
