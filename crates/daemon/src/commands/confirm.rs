//! The question before a command breaks or drops something.

use std::io::IsTerminal;

use super::shown;
use crate::exit::{Exit, Failure};

/// Asks a person on stderr, and reads the answer from standard input.
///
/// # Errors
/// Wrong usage, unless the answer is yes.
pub fn ask(question: &str) -> Result<(), Failure> {
    shown::note(&format!("{question} [y/N] "));
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    // What follows begins a line of its own. A terminal alone shows the line's end that it reads.
    if !at_terminal() || !answer.ends_with('\n') {
        shown::note("\n");
    }
    read.map_err(|error| Failure::new(Exit::Usage, format!("standard input: {error}")))?;
    confirmed(&answer)
}

/// Asks a person at a terminal, unless `yes` was said before. Scripts ran these commands before there was a question, and have
/// none to answer: without a terminal nothing is asked.
///
/// # Errors
/// Wrong usage, unless the answer is yes.
pub fn ask_at_terminal(yes: bool, question: impl FnOnce() -> String) -> Result<(), Failure> {
    if asks_at_terminal(yes) { ask(&question()) } else { Ok(()) }
}

/// Whether [`ask_at_terminal`] asks: for a command that has to look first what it asks about.
pub fn asks_at_terminal(yes: bool) -> bool {
    is_asked(yes, at_terminal())
}

/// Whether a person sees the question and writes the answer at a terminal.
fn at_terminal() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

const fn is_asked(yes: bool, is_terminal: bool) -> bool {
    is_terminal && !yes
}

fn confirmed(answer: &str) -> Result<(), Failure> {
    match answer.trim().to_ascii_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Usage, "not confirmed, so nothing was changed; --yes does not ask")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_person_is_asked_who_did_not_say_yes_before() {
        let asked = [(false, false), (false, true), (true, false), (true, true)]
            .map(|(yes, is_terminal)| is_asked(yes, is_terminal));
        assert_eq!(asked, [false, true, false, false]);
    }

    #[test]
    fn only_a_yes_is_a_yes() {
        for answer in ["y\n", "YES\r\n", " yes "] {
            assert!(confirmed(answer).is_ok(), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "yeah\n"] {
            assert_eq!(confirmed(answer).unwrap_err().exit, Exit::Usage, "{answer:?}");
        }
    }
}
