//! `fencepost nonce …`: grant, settle, look, and decide.

mod confirmations;

use client::wire::nonces::{
    GrantRequest, NonceRecord, Policy, PolicyRequest, ResolveRequest, Settlement, SettlementResult, Signer,
};
use client::wire::{Code, List, Problem};
use client::{Error, NonceQuery};

use super::look::Look;
use super::{confirm, connect, once, page, shown};
use crate::cli::Nonce;
use crate::exit::Failure;

/// Runs the command.
///
/// # Errors
/// The refusal, or why no daemon could be reached; wrong usage where a question was not answered with yes.
pub async fn run(command: Nonce) -> Result<(), Failure> {
    match command {
        Nonce::Grant { signer, count, hold_ms, key, remote } => {
            let request = GrantRequest { count, hold_ms };
            let key = once::key(key, "grant");
            let granted = connect(&remote)?.grant(&signer, &request, Some(&key)).await;
            let granted = granted
                .map_err(|error| once::failure(remote.json, error, "The nonces may be granted", &key))?;
            shown::answer(remote.json, &granted.answer, |answer| {
                shown::table(
                    ["NONCE", "HOLD", "HELD FOR", "UNTIL"],
                    answer.grants.iter().map(|grant| {
                        let length = shown::length(grant.held_for_ms);
                        [grant.nonce.to_string(), grant.hold.clone(), length, grant.held_until.clone()]
                    }),
                )
            });
            once::written(&key)?;
        }
        Nonce::Settle { signer, nonce, hold, outcome, tx_hash, remote } => {
            let settlement = Settlement { nonce, hold, outcome, tx_hash };
            let id = request_id();
            let client = connect(&remote)?.with_request_id(id.clone());
            let settled = client.settle(&signer, vec![settlement]).await;
            let settled = settled.and_then(|results| sole(results, id));
            shown::answered(remote.json, settled, |settled| match settled {
                SettlementResult::Settled { nonce, status } => format!("nonce {nonce} is {status}\n"),
                SettlementResult::Refused { .. } => String::new(),
            })?;
        }
        Nonce::Show { signer, nonce: None, shown } => {
            let client = connect(&shown.remote)?;
            Look::one(signer_card).run(&shown, async || client.signer(&signer).await).await?;
        }
        Nonce::Show { signer, nonce: Some(nonce), shown } => {
            let client = connect(&shown.remote)?;
            let read = async || {
                let id = request_id();
                let found = client.clone().with_request_id(id.clone()).nonce(&signer, nonce).await?;
                let missing = || Problem::new(Code::NotFound, format!("nonce {nonce} was never granted"));
                found.ok_or_else(|| refused(missing(), id))
            };
            Look::one(record_card).run(&shown, read).await?;
        }
        Nonce::List { signer: None, paged, shown, .. } => {
            let (client, page) = (connect(&shown.remote)?, page(paged));
            Look::list(signers_table).run(&shown, async || client.signers(&page).await).await?;
        }
        Nonce::List { signer: Some(signer), status, paged, shown } => {
            let client = connect(&shown.remote)?;
            let query = NonceQuery { status, page: page(paged) };
            Look::list(nonces_table).run(&shown, async || client.nonces(&signer, &query).await).await?;
        }
        Nonce::Policy { signer, first_nonce, hold_ms, on_expiry, max_in_flight, shared_keys, remote } => {
            let max_in_flight = max_in_flight.map(|window| window.0);
            let request = PolicyRequest { first_nonce, hold_ms, on_expiry, max_in_flight, shared_keys };
            let answer = connect(&remote)?.set_policy(&signer, &request).await;
            shown::answered(remote.json, answer, |answer| shown::card(policy_lines(&answer.policy)))?;
        }
        Nonce::Confirm { file: Some(file), yes, remote, .. } => {
            confirmations::run(&confirmations::read(&file)?, yes, &remote).await?;
        }
        Nonce::Confirm { signer, next_nonce, yes, remote, .. } => {
            let (signer, next_nonce) = signer.zip(next_nonce).expect("both are there, or a file");
            let client = connect(&remote)?;
            confirm::ask_at_terminal(yes, || {
                format!("Nonces below {next_nonce} are consumed for good. Confirm it for {signer}?")
            })?;
            shown::answered(remote.json, client.confirm(&signer, next_nonce).await, signer_card)?;
        }
        Nonce::Resolve { signer, nonce, outcome, hold, tx_hash, yes, remote } => {
            let client = connect(&remote)?;
            confirm::ask_at_terminal(yes, || {
                format!("Nobody can undo the decision. Resolve nonce {nonce} of {signer} as {outcome}?")
            })?;
            let answer = client.resolve(&signer, nonce, &ResolveRequest { outcome, hold, tx_hash }).await;
            shown::answered(remote.json, answer, |answer| {
                format!("nonce {} is {}\n", answer.nonce, answer.status)
            })?;
        }
    }
    Ok(())
}

/// Makes the id of a request, so that a refusal made here can name it.
fn request_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}

/// Turns the answer to a request into a refusal that names the request.
fn refused(problem: Problem, request_id: String) -> Error {
    Error::Refused(Box::new(Problem { request_id, ..problem }))
}

/// The answer to the only settlement of the request of this id: a refusal of it is a refusal of the command.
fn sole(results: Vec<SettlementResult>, request_id: String) -> Result<SettlementResult, Error> {
    match results.into_iter().next().expect("the client sees to it that there is an answer for each") {
        SettlementResult::Refused { code, detail, .. } => {
            Err(refused(Problem::of_code(&code, detail), request_id))
        }
        settled @ SettlementResult::Settled { .. } => Ok(settled),
    }
}

/// A policy in the lines of a card.
fn policy_lines(policy: &Policy) -> [(&'static str, String); 5] {
    let keys = if policy.shared_keys { "shared by all tokens" } else { "each token's own" };
    [
        ("first nonce", policy.first_nonce.to_string()),
        ("hold", policy.hold_ms.map_or_else(|| "the daemon's default".to_owned(), shown::length)),
        ("on expiry", policy.on_expiry.to_string()),
        ("max in flight", shown::or_none(policy.max_in_flight)),
        ("idempotency keys", keys.to_owned()),
    ]
}

fn signer_card(signer: &Signer) -> String {
    let owner = match &signer.owner {
        Some(owner) => format!("{owner} for {}", shown::length(signer.lease_expires_in_ms)),
        None => shown::NONE.to_owned(),
    };
    let next_nonce = match signer.recovering {
        true => "waits for `fencepost nonce confirm` (the ledger was recovered)".to_owned(),
        false => signer.next_nonce.to_string(),
    };
    let mut lines = vec![
        ("signer", signer.signer.clone()),
        ("next nonce", next_nonce),
        ("held", signer.held.to_string()),
        ("released", signer.released.to_string()),
        ("consumed", signer.consumed.to_string()),
        ("quarantined", signer.quarantined.to_string()),
        ("oldest hold", signer.oldest_hold_ms.map_or_else(|| shown::NONE.to_owned(), shown::length)),
        ("owner", owner),
        ("fencing token", shown::or_none(signer.fencing_token)),
    ];
    lines.extend(policy_lines(&signer.policy));
    shown::card(lines)
}

fn record_card(record: &NonceRecord) -> String {
    shown::card([
        ("nonce", record.nonce.to_string()),
        ("status", record.status.to_string()),
        ("hold", record.hold.clone()),
        ("held until", record.held_until.clone()),
        ("tx hash", shown::or_none(record.tx_hash.as_ref())),
        ("written by", record.owner.clone()),
        ("fencing token", record.fencing_token.to_string()),
        ("first granted", record.created_at.clone()),
        ("last written", record.updated_at.clone()),
    ])
}

fn signers_table(list: &List<Signer>) -> String {
    let headings = ["SIGNER", "NEXT", "HELD", "RELEASED", "CONSUMED", "QUARANTINED", "OWNER"];
    shown::list(headings, list, |signer| {
        [
            signer.signer.clone(),
            // The code with which it refuses grants.
            if signer.recovering { "recovering".to_owned() } else { signer.next_nonce.to_string() },
            signer.held.to_string(),
            signer.released.to_string(),
            signer.consumed.to_string(),
            signer.quarantined.to_string(),
            shown::or_none(signer.owner.as_ref()),
        ]
    })
}

fn nonces_table(list: &List<NonceRecord>) -> String {
    let headings = ["NONCE", "STATUS", "HOLD", "HELD UNTIL", "LAST WRITTEN", "TX HASH"];
    shown::list(headings, list, |record| {
        [
            record.nonce.to_string(),
            record.status.to_string(),
            record.hold.clone(),
            record.held_until.clone(),
            record.updated_at.clone(),
            shown::or_none(record.tx_hash.as_ref()),
        ]
    })
}
