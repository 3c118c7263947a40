//! The idempotency key of a command that creates something: the one that is given, or one that is made here and not in the
//! library, so that a command whose answer was lost can say how to repeat it.

use client::Error;

use super::shown;
use crate::exit::Failure;

/// The given key, or one that nobody has used and that names the command.
pub fn key(given: Option<String>, command: &str) -> String {
    given.unwrap_or_else(|| format!("{command}-{:016x}", rand::random::<u64>()))
}

/// The option that names a key.
pub fn option(key: &str) -> String {
    format!("--key {key}")
}

/// How a command goes on that has printed what was done under this key.
///
/// # Errors
/// It could not be written; the failure names the option with which the same command prints it.
pub fn written(key: &str) -> Result<(), Failure> {
    shown::all_written().map_err(|Failure { exit, message }| {
        let message = format!("{message}\n  To see it, run the same command with {}", option(key));
        Failure { exit, message }
    })
}

/// Why a command failed that asked for something under this key; `may_be` says what may be done.
pub fn failure(as_json: bool, error: Error, may_be: &str, key: &str) -> Failure {
    shown::failure(as_json, explained(error, may_be, &option(key)))
}

/// The same error. Where what was asked may be done, a note on stderr says so, and `with` which options the same command does
/// it once.
pub fn explained(error: Error, may_be: &str, with: &str) -> Error {
    if error.may_be_done() {
        let with = if with.is_empty() { String::new() } else { format!(" with {with}") };
        shown::note(&format!("{may_be}. To have it once, run the same command{with}\n"));
    }
    error
}
