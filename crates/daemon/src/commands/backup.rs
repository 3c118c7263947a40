//! `fencepost backup`: a copy of the embedded ledger.

use std::path::Path;

use super::shown;
use crate::cli::Backup;
use crate::config::{self, Options, Sources};
use crate::exit::{Exit, Failure};
use crate::logging;

/// Runs the command.
///
/// # Errors
/// A configuration that is refused, a ledger of another kind, or a file that cannot be made.
pub async fn run(command: Backup) -> Result<(), Failure> {
    let options = Options { database_url: command.database_url, ..Options::default() };
    let config = Sources::of_process(command.config, options).load_without_listening()?.config;
    logging::start(&config.log)?;
    if command.file.exists() {
        let message = format!("{} exists already; a backup is written to a new file", command.file.display());
        return Err(Failure::new(Exit::Config, message));
    }
    let copied = ledger::backup(&config.ledger.options(), &command.file).await;
    let bytes = copied.map_err(|error| not_copied(error, &command.file))?;
    let url = config::redact::url(&config.ledger.url);
    shown::print(&format!("the ledger at {url} is copied to {} ({bytes} bytes)\n", command.file.display()));
    Ok(())
}

/// What fails may be the copy: its disk may be full.
fn not_copied(error: ledger::Error, file: &Path) -> Failure {
    let Failure { exit, message } = Failure::from(error);
    Failure::new(exit, format!("no copy was made at {}: {message}", file.display()))
}
