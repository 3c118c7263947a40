//! `fencepost audit …`: what operators changed.

use client::wire::List;
use client::wire::audit::AuditRecord;
use client::{AuditQuery, Page};

use super::{connect, shown};
use crate::cli::Audit;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Audit) -> Result<(), Failure> {
    let Audit::List { principal, action, subject, since, paged, remote } = command;
    let page = Page { limit: paged.limit, cursor: paged.cursor };
    let answer = connect(&remote)?.audit(&AuditQuery { principal, action, subject, since, page }).await;
    let answer = answer.map_err(|error| shown::failure(remote.json, error))?;
    shown::list(remote.json, &answer, table);
    Ok(())
}

fn table(list: &List<AuditRecord>) -> String {
    let rows = list.items.iter().map(|entry| {
        [
            entry.at.clone(),
            shown::or_none(Some(&entry.principal).filter(|name| !name.is_empty())),
            entry.action.clone(),
            entry.subject.clone(),
            shown::or_none(entry.before.as_ref()),
            shown::or_none(entry.after.as_ref()),
            shown::or_none(entry.reason.as_ref()),
        ]
    });
    let headings = ["AT", "WHO", "ACTION", "SUBJECT", "BEFORE", "AFTER", "REASON"];
    shown::table(headings, rows) + &shown::more(list.next_cursor.as_ref())
}
