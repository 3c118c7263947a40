//! `fencepost audit …`: what operators changed.

use client::wire::List;
use client::wire::audit::AuditRecord;
use client::{AuditQuery, Page};

use super::look::Look;
use super::{connect, page, shown};
use crate::cli::Audit;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Audit) -> Result<(), Failure> {
    let Audit::List { principal, action, subject, since, paged, shown } = command;
    let client = connect(&shown.remote)?;
    let query = AuditQuery { principal, action, subject, since, page: Page::default() };
    let place = |entry: &AuditRecord| format!("{:020}", entry.id);
    let read = async |page| client.audit(&AuditQuery { page, ..query.clone() }).await;
    Look::list(table).run_newest_first(&shown, page(paged), place, read).await
}

fn table(list: &List<AuditRecord>) -> String {
    let headings = ["AT", "WHO", "ACTION", "SUBJECT", "BEFORE", "AFTER", "REASON"];
    shown::list(headings, list, |entry| {
        [
            entry.at.clone(),
            shown::or_none(Some(&entry.principal).filter(|name| !name.is_empty())),
            entry.action.clone(),
            entry.subject.clone(),
            shown::or_none(entry.before.as_ref()),
            shown::or_none(entry.after.as_ref()),
            shown::or_none(entry.reason.as_ref()),
        ]
    })
}
