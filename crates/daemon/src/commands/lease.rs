//! `fencepost lease …`: who owns what.

use client::LeaseQuery;
use client::wire::List;
use client::wire::leases::Lease as Shown;

use super::look::Look;
use super::{connect, page, shown};
use crate::cli::Lease;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached.
pub async fn run(command: Lease) -> Result<(), Failure> {
    match command {
        Lease::List { kind, owner, paged, shown } => {
            let client = connect(&shown.remote)?;
            let query =
                LeaseQuery { kind: kind.map(|kind| kind.as_str().to_owned()), owner, page: page(paged) };
            Look::list(table).run(&shown, async || client.leases(&query).await).await
        }
        Lease::Show { resource, shown } => {
            let client = connect(&shown.remote)?;
            Look::one(card).run(&shown, async || client.lease(&resource).await).await
        }
    }
}

fn card(lease: &Shown) -> String {
    shown::card([
        ("resource", lease.resource.clone()),
        ("owner", shown::or_none(lease.owner.as_ref())),
        ("state", state(lease)),
        ("fencing token", lease.fencing_token.to_string()),
        ("acquired", lease.acquired_at.clone()),
        ("renewed", lease.renewed_at.clone()),
    ])
}

fn state(lease: &Shown) -> String {
    match (&lease.owner, lease.live) {
        (Some(_), true) => format!("live for {}", shown::length(lease.expires_in_ms)),
        (Some(_), false) => "ran out".to_owned(),
        (None, _) => "free".to_owned(),
    }
}

fn table(list: &List<Shown>) -> String {
    let headings = ["RESOURCE", "STATE", "TOKEN", "OWNER", "ACQUIRED", "RENEWED"];
    shown::list(headings, list, |lease| {
        [
            lease.resource.clone(),
            state(lease),
            lease.fencing_token.to_string(),
            shown::or_none(lease.owner.as_ref()),
            lease.acquired_at.clone(),
            lease.renewed_at.clone(),
        ]
    })
}
