//! `fencepost lease …`: who owns what.

use client::wire::List;
use client::wire::leases::Lease as Shown;
use client::{LeaseQuery, Page};

use super::{connect, shown};
use crate::cli::Lease;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Lease) -> Result<(), Failure> {
    match command {
        Lease::List { kind, owner, paged, remote } => {
            let page = Page { limit: paged.limit, cursor: paged.cursor };
            let answer = connect(&remote)?.leases(&LeaseQuery { kind, owner, page }).await;
            let answer = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::list(remote.json, &answer, table);
        }
        Lease::Show { resource, remote } => {
            let answer = connect(&remote)?.lease(&resource).await;
            let answer = answer.map_err(|error| shown::failure(remote.json, error))?;
            shown::answer(remote.json, &answer, |lease| {
                shown::card([
                    ("resource", lease.resource.clone()),
                    ("owner", shown::or_none(lease.owner.as_ref())),
                    ("state", state(lease)),
                    ("fencing token", lease.fencing_token.to_string()),
                    ("acquired", lease.acquired_at.clone()),
                    ("renewed", lease.renewed_at.clone()),
                ])
            });
        }
    }
    Ok(())
}

fn state(lease: &Shown) -> String {
    match (&lease.owner, lease.live) {
        (Some(_), true) => format!("live for {}", shown::length(lease.expires_in_ms)),
        (Some(_), false) => "ran out".to_owned(),
        (None, _) => "free".to_owned(),
    }
}

fn table(list: &List<Shown>) -> String {
    let rows = list.items.iter().map(|lease| {
        [
            lease.resource.clone(),
            state(lease),
            lease.fencing_token.to_string(),
            shown::or_none(lease.owner.as_ref()),
            lease.acquired_at.clone(),
            lease.renewed_at.clone(),
        ]
    });
    let headings = ["RESOURCE", "STATE", "TOKEN", "OWNER", "ACQUIRED", "RENEWED"];
    shown::table(headings, rows) + &shown::more(list.next_cursor.as_ref())
}
