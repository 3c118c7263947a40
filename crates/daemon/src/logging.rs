//! Logs: structured, to stderr, so that stdout carries the ready line and answers only.
//!
//! A daemon whose log cannot be written (a full disk, a closed pipe) goes on without it. So nothing here, and nothing
//! that `serve` runs, prints with `eprintln!`, which panics.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

use crate::config::Log;
use crate::exit::{Exit, Failure};

/// Starts logging for the process; once.
///
/// # Errors
/// [`Exit::Config`] for a filter that cannot be read, which checking the configuration refuses earlier.
pub fn start(log: &Log) -> Result<(), Failure> {
    let filter = EnvFilter::builder()
        .parse(&log.filter)
        .map_err(|error| Failure::new(Exit::Config, format!("log.filter = {:?}: {error}", log.filter)))?;
    let filter = match log.filter.contains("sqlx") {
        true => filter,
        // An outage of the ledger has its own line; the driver would add one for each connection.
        false => {
            filter.add_directive("sqlx_core::pool::connection=error".parse().expect("it is a directive"))
        }
    };
    let terminal = io::stderr().is_terminal();
    let pretty = match log.format.as_str() {
        "pretty" => true,
        "json" => false,
        _ => terminal,
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| StandardError)
        // The subscriber would report a line that it could not write by `eprintln!`.
        .log_internal_errors(false);
    if pretty {
        lines.with_ansi(terminal).init();
    } else {
        lines.json().flatten_event(true).init();
    }
    Ok(())
}

/// Prints a failure to standard error, unless it was printed already. It is lost where standard error cannot be written.
pub fn print_failure(failure: &Failure) {
    if !failure.message.is_empty() {
        // Never an error, see below.
        let _ = writeln!(StandardError, "fencepost: {}", failure.message);
    }
}

/// Standard error without its failures: what cannot be written is dropped.
struct StandardError;

impl Write for StandardError {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
