//! `fencepost migrate`: the ledger's tables, and nothing else.

use ledger::Migrate;

use super::shown;
use crate::cli;
use crate::config::{self, Options, Sources};
use crate::exit::Failure;
use crate::logging;
use crate::serve::check_ledger;

/// Runs the command.
///
/// # Errors
/// A configuration that is refused, or a ledger that cannot be brought up to date.
pub async fn run(command: cli::Migrate) -> Result<(), Failure> {
    let options = Options { database_url: command.database_url, ..Options::default() };
    let config = Sources::of_process(command.config, options).load_without_listening()?.config;
    logging::start(&config.log)?;
    let migrate = if command.check { Migrate::Check } else { Migrate::Auto };
    check_ledger(&config)?;
    let migrated = ledger::migrate(&config.ledger.options(), migrate).await;
    migrated.map_err(|error| Failure::of_ledger(error, &config.ledger.url))?;
    shown::print(&format!("the ledger at {} is up to date\n", config::redact::url(&config.ledger.url)));
    Ok(())
}
