//! The question before a command breaks or drops something.

use std::io::{BufRead, IsTerminal};

use super::shown;
use crate::exit::{Exit, Failure};

/// Asks a person on stderr, and reads the answer from standard input.
///
/// # Errors
/// Wrong usage, unless the answer is yes.
pub fn ask(question: &str) -> Result<(), Failure> {
    shown::note(&format!("{question} [y/N] "));
    confirmed(std::io::stdin().lock())
}

/// Asks a person at a terminal, unless `yes` was said before. Scripts ran these commands before there was a question, and have
/// none to answer: without a terminal nothing is asked.
///
/// # Errors
/// Wrong usage, unless the answer is yes.
pub fn ask_at_terminal(yes: bool, question: impl FnOnce() -> String) -> Result<(), Failure> {
    let is_terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if is_asked(yes, is_terminal) { ask(&question()) } else { Ok(()) }
}

const fn is_asked(yes: bool, is_terminal: bool) -> bool {
    is_terminal && !yes
}

/// Reads the answer to a question.
fn confirmed(mut from: impl BufRead) -> Result<(), Failure> {
    let mut answer = String::new();
    let read = from.read_line(&mut answer);
    read.map_err(|error| Failure::new(Exit::Usage, format!("standard input: {error}")))?;
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
            assert!(confirmed(answer.as_bytes()).is_ok(), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "yeah\n"] {
            assert_eq!(confirmed(answer.as_bytes()).unwrap_err().exit, Exit::Usage, "{answer:?}");
        }
    }
}
