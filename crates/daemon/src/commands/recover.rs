//! `fencepost recover`: a ledger that went back in time is taken past all that it may have granted since.

use domain::AuditEntry;
use ledger::{Margins, RECOVERED_MARK_MS, RECOVERED_NUMBERS_MIN, RECOVERED_RANGES, Recovery};

use super::shown;
use crate::cli::recover::Recover;
use crate::config::{self, Options, Sources};
use crate::exit::Failure;
use crate::serve::check_ledger;
use crate::{logging, process};

/// So many sequences, and as many segments, are named that are at their end.
const NAMED_MAX: usize = 20;

/// Runs the command.
///
/// # Errors
/// A configuration that is refused, or a ledger that cannot be reached or recovered.
pub async fn run(command: Recover) -> Result<(), Failure> {
    let options = Options { database_url: command.database_url, ..Options::default() };
    let config = Sources::of_process(command.config, options).load_without_listening()?.config;
    logging::start(&config.log)?;
    check_ledger(&config)?;
    let url = config::redact::url(&config.ledger.url);
    let (ledger, migrate) = (config.ledger.options(), config.ledger.migrate());
    let failed = |error| Failure::of_ledger(error, &config.ledger.url);
    let by = |action| AuditEntry {
        reason: command.reason.as_deref().map(Into::into),
        ..AuditEntry::new(&process::user(), action, "ledger")
    };
    let margins = Margins { numbers: command.ids, lead_ms: command.lead_ms };
    let text = if command.unknown_signers_are_new {
        let done = ledger::let_new_signers_grant(&ledger, migrate, &by("recover_new_signers")).await;
        done.map_err(failed)?;
        format!("signers that the ledger at {url} does not know are new from now on\n")
    } else if command.dry_run {
        let recovery = ledger::try_recovery(&ledger, margins).await.map_err(failed)?;
        told(&recovery, margins, &format!("the ledger at {url} would be recovered"))
    } else {
        let recovery = ledger::recover(&ledger, migrate, margins, &by("recover")).await.map_err(failed)?;
        told(&recovery, margins, &format!("the ledger at {url} is recovered"))
    };
    shown::print(&text);
    Ok(())
}

fn told(recovery: &Recovery, Margins { numbers, lead_ms }: Margins, what: &str) -> String {
    let Recovery { leases, sessions, plans, signers, segments, sequences, workers, ahead_ms, .. } = recovery;
    let ended_sequences = ended(&recovery.ended_sequences, "number");
    let ended_segments = ended(&recovery.ended_segments, "range of ids");
    // A later recovery takes no mark back.
    let mark_ms = (*ahead_ms).max(lead_ms + RECOVERED_MARK_MS);
    let more = if numbers == RECOVERED_NUMBERS_MIN {
        "If more ids or numbers were given since the backup, they would be given again: repeat this with --ids N.\n"
    } else {
        ""
    };
    format!(
        "{what}\n\
         leases     {leases} ended, tokens raised, also of those to come\n\
         jobs       those that ended since the backup run again once nodes are connected: where that harms, stop the nodes\n\
         sessions   {sessions} raised by {numbers} places\n\
         plans      {plans} raised by {numbers} numbers of events\n\
         signers    {signers} grant nothing until their next nonce is confirmed, nor do those that the ledger does not know\n\
         sequences  {sequences} raised by {numbers} numbers\n{ended_sequences}\
         segments   {segments} raised by {numbers} ids and {RECOVERED_RANGES} ranges\n{ended_segments}\
         snowflakes {workers} marks lifted {mark_ms} ms past the clock: none is made for so long\n\
         {more}\
         `fencepost nonce list` shows the signers as recovering. Stop their senders. Confirm each from its chain, and\n\
         above all nonces that its senders had; confirm those that it does not show as well:\n\
         fencepost nonce confirm SIGNER N      (POST /v1/signers/SIGNER/confirm {{\"next_nonce\": N}})\n\
         Set sequences and segments that were made since the backup again, each with a start above all that it gave.\n\
         Then let new signers grant: fencepost recover --unknown-signers-are-new\n"
    )
}

/// The line about those that cannot be raised so far; empty if all can.
fn ended(names: &[String], gives: &str) -> String {
    if names.is_empty() {
        return String::new();
    }
    let shown = names.iter().take(NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(" ");
    let more = match names.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!(
        "           {} at the end: the highest number is too near, and no {gives} is left: {shown}{more}\n",
        names.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recovery_says_which_sequences_and_segments_are_at_their_end() {
        let says = |recovery: &Recovery| {
            told(recovery, Margins { numbers: RECOVERED_NUMBERS_MIN, lead_ms: 0 }, "it is recovered")
        };
        let all = Recovery { sequences: 4, segments: 1, ..Recovery::default() };
        assert!(!says(&all).contains("at the end"), "{}", says(&all));
        let names = |count: usize| (0..count).map(|n| format!("n{n}")).collect();
        let near = Recovery { ended_sequences: names(2), ended_segments: names(NAMED_MAX + 3), ..all };
        let text = says(&near);
        let lines: Vec<_> = text.lines().skip_while(|line| !line.starts_with("sequences")).take(4).collect();
        assert_eq!(lines[0], "sequences  4 raised by 1000000 numbers");
        assert!(lines[1].contains(" 2 at the end") && lines[1].ends_with(": n0 n1"), "{text}");
        assert!(lines[2].starts_with("segments   1 raised by 1000000 ids"), "{text}");
        assert!(lines[3].contains(" 23 at the end") && lines[3].ends_with(" n19 and 3 more"), "{text}");
    }

    #[test]
    fn a_recovery_says_how_long_no_snowflake_is_made_and_what_may_still_be_given_again() {
        let says = |ahead_ms, numbers, lead_ms| {
            told(
                &Recovery { ahead_ms, ..Recovery::default() },
                Margins { numbers, lead_ms },
                "it is recovered",
            )
        };
        let own = says(15_990, RECOVERED_NUMBERS_MIN, 11_000);
        assert!(own.contains(" 16000 ms past the clock") && own.contains("--ids N"), "{own}");
        // No node counts a nonce that was granted after the backup and is not sent yet.
        assert!(own.contains("above all nonces that its senders had"), "{own}");
        // Nothing but the nodes keeps a job from running that was done after the backup.
        assert!(own.contains("ended since the backup run again") && own.contains("stop the nodes"), "{own}");
        let earlier = says(928_447, 50_000_000, 11_000);
        assert!(earlier.contains(" 928447 ms past the clock") && !earlier.contains("--ids N"), "{earlier}");
    }
}
