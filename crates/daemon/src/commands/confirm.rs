//! The question before a command breaks or drops something.

use std::io::BufRead;

use crate::exit::{Exit, Failure};

/// Asks a person on stderr, and reads the answer from standard input.
///
/// # Errors
/// Wrong usage, unless the answer is yes.
pub fn ask(question: &str) -> Result<(), Failure> {
    eprint!("{question} [y/N] ");
    confirmed(std::io::stdin().lock())
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
    fn only_a_yes_is_a_yes() {
        for answer in ["y\n", "YES\r\n", " yes "] {
            assert!(confirmed(answer.as_bytes()).is_ok(), "{answer:?}");
        }
        for answer in ["", "\n", "n\n", "yeah\n"] {
            assert_eq!(confirmed(answer.as_bytes()).unwrap_err().exit, Exit::Usage, "{answer:?}");
        }
    }
}
