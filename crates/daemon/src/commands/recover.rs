//! `fencepost recover`: a ledger that went back in time is taken past all that it may have granted since.

use std::io::Write;

use domain::AuditEntry;
use ledger::{RECOVERED_MARK_MS, RECOVERED_TOKENS, Recovery};

use crate::cli::Recover;
use crate::config::{self, Options, Sources};
use crate::exit::Failure;
use crate::logging;

/// Runs the command.
///
/// # Errors
/// A configuration that is refused, or a ledger that cannot be reached or recovered.
pub async fn run(command: Recover) -> Result<(), Failure> {
    let options = Options { database_url: command.database_url, ..Options::default() };
    let config = Sources::of_process(command.config, options).load_without_listening()?.config;
    logging::start(&config.log)?;
    let by = AuditEntry::new(&std::env::var("USER").unwrap_or_default(), "recover", "ledger");
    let Recovery { leases, signers, segments, sequences, workers } =
        ledger::recover(&config.ledger.options(), command.ids, command.dry_run, &by).await?;
    let ids = command.ids;
    let done = if command.dry_run { "would be recovered" } else { "is recovered" };
    let url = config::redact::url(&config.ledger.url);
    let text = format!(
        "the ledger at {url} {done}\n\
         leases     {leases} ended, tokens raised by {RECOVERED_TOKENS}\n\
         signers    {signers} grant nothing until their next nonce is confirmed\n\
         sequences  {sequences} raised by {ids} numbers\n\
         segments   {segments} raised by 100 steps, at least {ids} ids\n\
         snowflakes {workers} marks lifted {RECOVERED_MARK_MS} ms past the clock\n\
         If more ids or numbers were given since the backup, they would be given again: repeat this with --ids N.\n\
         `fencepost nonce list` shows the signers as recovering. Confirm each from its chain:\n\
         fencepost nonce confirm SIGNER N      (POST /v1/signers/SIGNER/confirm {{\"next_nonce\": N}})\n"
    );
    // A reader that closed the pipe has read enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}
