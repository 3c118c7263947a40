//! `fencepost audit …`: what operators changed.

use client::wire::List;
use client::wire::audit::AuditRecord;
use client::{AuditQuery, Page};

use super::look::Look;
use super::{connect, page, shown};
use crate::cli::Audit;
use crate::exit::Failure;

/// The longest state before or after a change that a table shows whole, in characters.
const STATE_CHARS_MAX: usize = 240;

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
            shown::or_none(entry.before.as_deref().map(cut)),
            shown::or_none(entry.after.as_deref().map(cut)),
            shown::or_none(entry.reason.as_ref()),
        ]
    })
}

/// A state, which may be a list of a thousand jobs or all pools, so that one row does not make all rows as wide.
fn cut(text: &str) -> String {
    match text.char_indices().nth(STATE_CHARS_MAX) {
        Some((end, _)) => format!("{}… ({} bytes; --json shows all)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_of_many_names_is_cut_in_the_table() {
        let entry = |after: String| AuditRecord {
            id: 1,
            at: "2026-12-01T00:00:00Z".to_owned(),
            principal: "ops".to_owned(),
            action: "retry_jobs".to_owned(),
            subject: "jobs:1000".to_owned(),
            before: None,
            after: Some(after),
            reason: None,
            request_id: None,
        };
        let items = vec![entry("é".repeat(STATE_CHARS_MAX)), entry("é".repeat(40_000))];
        let text = table(&List { items, next_cursor: None });
        assert!(text.contains("… (80000 bytes; --json shows all)"), "{text}");
        assert_eq!(text.matches('…').count(), 1, "{text}");
        assert!(text.len() < 4_000, "{}", text.len());
    }
}
