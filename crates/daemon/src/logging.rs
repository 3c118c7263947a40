//! Logs: structured, to stderr, so that stdout carries the ready line and answers only.

use std::io::IsTerminal;

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
    let terminal = std::io::stderr().is_terminal();
    let pretty = match log.format.as_str() {
        "pretty" => true,
        "json" => false,
        _ => terminal,
    };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if pretty {
        lines.with_ansi(terminal).init();
    } else {
        lines.json().flatten_event(true).init();
    }
    Ok(())
}
