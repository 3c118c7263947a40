//! Nonces over HTTP: each handler reads the request, asks the signer's owner (or, for a read, the ledger), and shows the
//! answer.

use std::fmt::Display;
use std::time::Instant;

use actix_web::{HttpRequest, HttpResponse, web};
use actors::signers::{GrantRequest, RequestKey, Signers};
use domain::nonce::{Settlement, Status};
use domain::{HoldId, Nonce, SignerId};
use ledger::{CONFIRMED_HOLES_MAX, CONFIRMED_NONCES_MAX, Confirmation, NonceFilter, SignerRecord};
use sha2::{Digest, Sha256};
use wire::Code;
use wire::nonces as shape;

use crate::audit;
use crate::auth::Principal;
use crate::cursors::Cursors;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::forwarder::{Forwarder, Forwarding, Routed};
use crate::from_wire;
use crate::idempotency::{KEY, admit_key};
use crate::refusal::{self, Answer, Refusal};
use crate::seen_pages;
use crate::state::{Shared, State, of_write};
use crate::to_wire;

/// Grants nonces
///
/// 1 to 1,000 nonces, lowest hole first, each under a hold of its own. Repetitions of the same request under
/// one `Idempotency-Key` get the same nonces for 24 hours, on any instance. Once one of these holds was
/// settled or has expired, or cannot be dated since the database's clock was set back, a repetition is refused as
/// `stale_hold`, and `granted_before` has the nonces with their holds, which settle them as long as they are the last ones: find
/// out what was sent with them before you ask under another key. The same key with another request is refused as `key_reused`.
#[utoipa::path(
    post, path = "/v1/signers/{signer}/nonces", tag = "nonces", operation_id = "grant",
    params(
        ("signer" = String, Path, description = SIGNER),
        ("Idempotency-Key" = Option<String>, Header, description = KEY),
    ),
    request_body(content = shape::GrantRequest, description = "The body may be absent"),
    responses((status = 201, description = "The nonces are granted and durable", body = shape::GrantAnswer)),
)]
pub async fn grant(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let signer = extract::signer(&request)?;
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::bytes(&request, payload, forwarder.state().body_limits()).await?;
    let asked: shape::GrantRequest = extract::optional_object(&request, &body)?.unwrap_or_default();
    let count = asked.count.unwrap_or(1);
    let principal = Principal::of(&request);
    // The key first: the ledger keeps the rows of signers for good, so of these a token may use fewer.
    if let Some(key) = &key {
        admit_key(forwarder.state(), &principal, signer.as_str(), key)?;
    }
    admit(forwarder.state(), &principal, &signer)?;
    let key = key.map(|key| {
        let body_hash = grant_hash(count, asked.hold_ms);
        RequestKey { principal: principal.name().into(), key, body_hash }
    });
    let wish = GrantRequest {
        count: usize::try_from(count).map_err(|_| Refusal::invalid("count is out of range"))?,
        hold_ms: asked.hold_ms,
        key,
    };
    let serve = async |owners: &Signers| owners.grant(&signer, wish.clone()).await;
    match forwarder.to_signer(&request, body, &signer, serve).await? {
        Routed::Here(granted) => {
            tracing::debug!(
                %signer, nonces = %list_of(granted.grants.iter().map(|grant| grant.nonce)), "nonces are granted"
            );
            Ok(HttpResponse::Created().json(to_wire::grants(&signer, &granted)))
        }
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// For the log, which has who asked, and for what, in the line's span.
fn list_of(items: impl Iterator<Item: Display>) -> String {
    items.map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

/// Refuses a token a further signer when it has used as many in this hour as it may.
fn admit(state: &State, principal: &Principal, signer: &SignerId) -> Result<(), Refusal> {
    let max = state.settings.caller_signers_max;
    let Some(used) = principal.used() else { return Ok(()) };
    used.signers.admit(signer, max, Instant::now()).map_err(|left| {
        let detail = format!(
            "one token may use {max} different signers in an hour on one instance, and this one has; signers that it has used \
             are served"
        );
        Refusal::overloaded_for(left, detail)
    })
}

/// The hash of the request in one canonical form: with the defaults filled in, independent of its spelling.
fn grant_hash(count: u64, hold_ms: Option<u64>) -> [u8; 32] {
    let hold_ms = hold_ms.map_or_else(|| "null".to_owned(), |ms| ms.to_string());
    Sha256::digest(format!(r#"{{"count":{count},"hold_ms":{hold_ms}}}"#)).into()
}

/// Settles many holds
///
/// 1 to 1,000 settlements, each accepted or refused on its own, and answered in the order of the request. Repeating a
/// settlement is harmless.
#[utoipa::path(
    post, path = "/v1/signers/{signer}/settlements", tag = "nonces", operation_id = "settle",
    params(("signer" = String, Path, description = SIGNER)),
    request_body = shape::SettlementsRequest,
    responses((status = 200, description = "One answer for each settlement", body = shape::SettlementsAnswer)),
)]
pub async fn settle(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let signer = extract::signer(&request)?;
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, forwarder.state().body_limits()).await?;
    let asked: shape::SettlementsRequest = extract::object(&request, &body)?;
    let settlements = asked
        .settlements
        .into_iter()
        .enumerate()
        .map(|(i, item)| {
            from_wire::settlement(&item)
                .map_err(|wrong| Refusal::invalid(format!("settlements[{i}].{wrong}")))
        })
        .collect::<Result<Vec<_>, _>>()?;
    let nonces: Vec<Nonce> = settlements.iter().map(|settlement| settlement.nonce).collect();
    let serve = async |owners: &Signers| owners.settle(&signer, settlements.clone()).await;
    let answers = match forwarder.to_signer(&request, body, &signer, serve).await? {
        Routed::Here(answers) => answers,
        Routed::Elsewhere(answer) => return Ok(answer),
    };
    if answers.len() != nonces.len() {
        tracing::error!(asked = nonces.len(), answered = answers.len(), "settlements without an answer");
        return Err(Refusal::internal());
    }
    let result = |(nonce, answer): (Nonce, Result<Status, _>)| match answer {
        Ok(status) => {
            shape::SettlementResult::Settled { nonce: nonce.get(), status: to_wire::status(status) }
        }
        Err(refused) => {
            let (code, detail) = refusal::settlement(nonce, &refused);
            shape::SettlementResult::Refused { nonce: nonce.get(), code: code.to_string(), detail }
        }
    };
    let results: Vec<_> = nonces.into_iter().zip(answers).map(result).collect();
    let of_one = |result: &shape::SettlementResult| match result {
        shape::SettlementResult::Settled { nonce, status } => format!("{nonce} {status}"),
        shape::SettlementResult::Refused { nonce, code, .. } => format!("{nonce} {code}"),
    };
    tracing::debug!(%signer, nonces = %list_of(results.iter().map(of_one)), "nonces are settled");
    Ok(HttpResponse::Ok().json(shape::SettlementsAnswer { results }))
}

/// Settles a nonce as used
///
/// Settle a nonce so when its transaction is mined for good: CONSUMED is final, also if the transaction is dropped later. The
/// hold must be the nonce's last one. It may have expired, as long as the nonce was not granted again. Repeating the request is
/// harmless. A repetition may name the transaction if none was named so far.
#[utoipa::path(
    post, path = "/v1/signers/{signer}/nonces/{nonce}/consume", tag = "nonces", operation_id = "consume",
    params(
        ("signer" = String, Path, description = SIGNER),
        ("nonce" = u64, Path, minimum = 0, maximum = 9007199254740991u64, description = NONCE),
    ),
    request_body = shape::ConsumeRequest,
    responses((status = 200, description = "The nonce is CONSUMED, durably", body = shape::NonceAnswer)),
)]
pub async fn consume(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let (signer, nonce) = (extract::signer(&request)?, extract::nonce(&request)?);
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, forwarder.state().body_limits()).await?;
    let asked: shape::ConsumeRequest = extract::object(&request, &body)?;
    settle_one(&request, body, &forwarder, &signer, from_wire::consumed(nonce, &asked)?).await
}

/// Gives a nonce back
///
/// `never_sent` makes it a hole that the next grant fills; `unknown` puts it into quarantine.
#[utoipa::path(
    post, path = "/v1/signers/{signer}/nonces/{nonce}/release", tag = "nonces", operation_id = "release",
    params(
        ("signer" = String, Path, description = SIGNER),
        ("nonce" = u64, Path, minimum = 0, maximum = 9007199254740991u64, description = NONCE),
    ),
    request_body = shape::ReleaseRequest,
    responses((status = 200, description = "The nonce is RELEASED or QUARANTINED, durably", body = shape::NonceAnswer)),
)]
pub async fn release(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let (signer, nonce) = (extract::signer(&request)?, extract::nonce(&request)?);
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, forwarder.state().body_limits()).await?;
    let asked: shape::ReleaseRequest = extract::object(&request, &body)?;
    settle_one(&request, body, &forwarder, &signer, from_wire::released(nonce, &asked)).await
}

async fn settle_one(
    request: &HttpRequest,
    body: Vec<u8>,
    forwarder: &Forwarder,
    signer: &SignerId,
    settlement: Settlement,
) -> Answer {
    let nonce = settlement.nonce;
    let serve = async |owners: &Signers| owners.settle(signer, vec![settlement.clone()]).await;
    let answers = match forwarder.to_signer(request, body, signer, serve).await? {
        Routed::Here(answers) => answers,
        Routed::Elsewhere(answer) => return Ok(answer),
    };
    match answers.as_slice() {
        [Ok(status)] => {
            tracing::debug!(%signer, nonces = %format_args!("{nonce} {}", status.as_str()), "nonces are settled");
            Ok(nonce_answer(signer, nonce, *status))
        }
        [Err(refused)] => {
            let (code, detail) = refusal::settlement(nonce, refused);
            Err(Refusal::new(code, detail))
        }
        answers => {
            tracing::error!(answered = answers.len(), "one settlement without one answer");
            Err(Refusal::internal())
        }
    }
}

fn nonce_answer(signer: &SignerId, nonce: Nonce, status: Status) -> HttpResponse {
    HttpResponse::Ok().json(shape::NonceAnswer {
        signer: signer.to_string(),
        nonce: nonce.get(),
        status: to_wire::status(status),
    })
}

/// Decides about a quarantined nonce
///
/// An operator decides: `consumed` if a transaction with the nonce is mined for good, `never_sent` only if no node of the
/// chain has one, a pending one included, and its sender is stopped. If the request names the hold, it must be the nonce's
/// last one; repeating such a request is harmless. For a nonce that is neither QUARANTINED nor decided in the same way
/// before, the answer is `conflict`, or `already_settled` if it is CONSUMED.
#[utoipa::path(
    post, path = "/v1/signers/{signer}/nonces/{nonce}/resolve", tag = "nonces", operation_id = "resolve",
    params(
        ("signer" = String, Path, description = SIGNER),
        ("nonce" = u64, Path, minimum = 0, maximum = 9007199254740991u64, description = NONCE),
    ),
    request_body = shape::ResolveRequest,
    responses((status = 200, description = "The nonce is CONSUMED or RELEASED, durably", body = shape::NonceAnswer)),
)]
pub async fn resolve(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let (signer, nonce) = (extract::signer(&request)?, extract::nonce(&request)?);
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, forwarder.state().body_limits()).await?;
    let asked: shape::ResolveRequest = extract::object(&request, &body)?;
    let resolution = from_wire::resolution(&asked)?;
    let hold = match asked.hold.as_deref().map(HoldId::parse) {
        Some(None) => return Err(forwarder.state().refusal(actors::signers::Refusal::StaleHold).await),
        named => named.flatten(),
    };
    let by = audit::entry(&request, "resolve_nonce", format!("signer:{signer} nonce {nonce}"));
    let serve =
        async |owners: &Signers| owners.resolve(&signer, nonce, hold, resolution.clone(), by.clone()).await;
    match forwarder.to_signer(&request, body, &signer, serve).await? {
        Routed::Here(status) => Ok(nonce_answer(&signer, nonce, status)),
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// Sets a signer's policy
///
/// Fields that the body names change, and the others stay. The signer need not exist. The first grant fixes
/// `first_nonce`; after that, another value is refused as `conflict`.
#[utoipa::path(
    put, path = "/v1/signers/{signer}/policy", tag = "nonces", operation_id = "set_policy",
    params(("signer" = String, Path, description = SIGNER)),
    request_body = shape::PolicyRequest,
    responses((status = 200, description = "The policy in force, durable", body = shape::PolicyAnswer)),
)]
pub async fn set_policy(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let signer = extract::signer(&request)?;
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, forwarder.state().body_limits()).await?;
    let asked: shape::PolicyRequest = extract::object(&request, &body)?;
    let patch = from_wire::policy(&asked)?;
    let by = audit::entry(&request, "set_policy", format!("signer:{signer}"));
    let serve = async |owners: &Signers| owners.set_policy(&signer, patch.clone(), by.clone()).await;
    match forwarder.to_signer(&request, body, &signer, serve).await? {
        Routed::Here(policy) => Ok(HttpResponse::Ok()
            .json(shape::PolicyAnswer { signer: signer.to_string(), policy: to_wire::policy(&policy) })),
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// Confirms a signer's next nonce
///
/// After the ledger was recovered from an earlier state, a signer grants nothing (`recovering`) until an operator has named
/// the nonce of the account's next transaction. It must lie above pending transactions, and above all nonces that senders
/// had, sent or not: from it on, nonces that the ledger has lost are granted again. Stop the senders first. Nonces below it
/// become CONSUMED, also those that the ledger has lost; open ones from it on become QUARANTINED under a new hold, so that
/// earlier holds settle them no more. A nonce that is below the signer's `first_nonce`, by 50,000 at most, becomes the
/// `first_nonce`, and those in between become holes. A signer that the recovered ledger does not know is confirmed in the
/// same way, which makes it, until `fencepost recover --unknown-signers-are-new` was run. Repeating the last confirmation is
/// harmless. Any other one for a signer that is not recovering is refused as `conflict`. A nonce that its holder, or an
/// operator, has settled as `consumed` is refused as `invalid`: the node that names it as the next one lags behind the chain,
/// or the transaction was dropped and must be sent again first. Where the ledger has lost so many nonces that a request
/// cannot add them all, it is refused as `ledger_unavailable` with how many are left, and the same request goes on; until the
/// last one is added the signer grants nothing, and a smaller nonce may be confirmed, which takes those from it on back in
/// the same way.
#[utoipa::path(
    post, path = "/v1/signers/{signer}/confirm", tag = "nonces", operation_id = "confirm_signer",
    params(("signer" = String, Path, description = SIGNER)),
    request_body = shape::ConfirmRequest,
    responses((status = 200, description = "The signer as it stands now; it grants again", body = shape::Signer)),
)]
pub async fn confirm(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    let signer = extract::signer(&request)?;
    Query::read(&request, &[])?;
    let asked: shape::ConfirmRequest = extract::body(&request, payload, state.body_limits()).await?;
    let next = Nonce::new(asked.next_nonce)?;
    let by = audit::entry(&request, "confirm_signer", format!("signer:{signer}"));
    // Each call is given time to end.
    let until = Instant::now() + state.settings.request_timeout / 2;
    loop {
        match state.write(state.ledger.confirm_signer(&signer, next, &by)).await? {
            Confirmation::Done => break,
            Confirmation::Partly(_) if Instant::now() < until => {}
            Confirmation::Partly(left) => {
                return Err(Refusal::new(
                    Code::LedgerUnavailable,
                    format!(
                        "{left} nonces are still to be added or taken back; send the same request again, which goes on"
                    ),
                ));
            }
            Confirmation::Unknown => return Err(unknown_signer()),
            Confirmation::NotRecovering => {
                let detail = format!(
                    "the signer is not recovering, and nonce {next} is not the one that was confirmed for it last, if any \
                     was; nothing was changed"
                );
                return Err(Refusal::new(Code::Conflict, detail));
            }
            Confirmation::Used => {
                return Err(Refusal::invalid(format!(
                    "nonce {next} is CONSUMED, as its holder or an operator said, so the account's next one lies above it. Ask \
                     a node that has caught up with the chain. If the transaction was dropped, send one with this nonce again, \
                     and confirm what the node says then; nothing was changed"
                )));
            }
            Confirmation::TooFar(nonces) => {
                return Err(Refusal::invalid(format!(
                    "next_nonce is {nonces} past the last nonce that the ledger knows, and at most \
                     {CONFIRMED_NONCES_MAX} are added. Confirm none below the chain's: the signer would grant nonces that \
                     its chain has"
                )));
            }
            Confirmation::TooLow(nonces) => {
                return Err(Refusal::invalid(format!(
                    "next_nonce is {nonces} below the signer's first_nonce, and at most {CONFIRMED_HOLES_MAX} are added as \
                     holes. Check the number; nothing was changed"
                )));
            }
        }
    }
    let record = state.read(state.ledger.signer(&signer)).await.map_err(of_write)?;
    let record = record.ok_or_else(unknown_signer)?;
    Ok(HttpResponse::Ok().json(to_wire::signer(&record)))
}

/// Shows a signer
///
/// Every instance answers the same, from the ledger.
#[utoipa::path(
    get, path = "/v1/signers/{signer}", tag = "nonces", operation_id = "show_signer",
    params(("signer" = String, Path, description = SIGNER)),
    responses((status = 200, description = "The signer", body = shape::Signer)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    let signer = extract::signer(&request)?;
    Query::read(&request, &[])?;
    let record = state.read(state.ledger.signer(&signer)).await?;
    record
        .map_or_else(|| Err(unknown_signer()), |record| Ok(HttpResponse::Ok().json(to_wire::signer(&record))))
}

fn unknown_signer() -> Refusal {
    Refusal::new(Code::NotFound, "no nonce was granted to this signer and no policy is set for it")
}

/// Lists signers
///
/// Signers come in the order of their names.
#[utoipa::path(
    get, path = "/v1/signers", tag = "nonces", operation_id = "list_signers",
    params(
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Signer>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["cursor", "limit"])?;
    let principal = Principal::of(&request);
    let (sees, cursors) = (principal.sees(), Cursors::of("s", &state.cursor_seal, &principal));
    let (limit, after) = (query.limit()?, cursors.read(&query, |text| SignerId::parse(text).ok())?);
    let read = async |last: Option<SignerId>, piece| {
        let after = last.as_ref().or(after.as_ref());
        state.read(state.ledger.signers(sees.signers.prefix(), after, piece)).await
    };
    let is_seen = |record: &SignerRecord| sees.signers.have(Some(record.signer.as_str()));
    let page =
        seen_pages::page(&state, &principal, limit, read, |record| record.signer.clone(), is_seen).await?;
    Ok(HttpResponse::Ok().json(cursors.page(page, SignerId::to_string, to_wire::signer)))
}

/// Lists a signer's nonces
///
/// Nonces come in their order, each with its last state, hold, times, token and owner.
#[utoipa::path(
    get, path = "/v1/signers/{signer}/nonces", tag = "nonces", operation_id = "list_nonces",
    params(
        ("signer" = String, Path, description = SIGNER),
        ("status" = Option<shape::Status>, Query, description = "Nonces in this state"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::NonceRecord>)),
)]
pub async fn nonces(request: HttpRequest, state: Shared) -> Answer {
    let signer = extract::signer(&request)?;
    let query = Query::read(&request, &["status", "cursor", "limit"])?;
    let limit = query.limit()?;
    let filter = NonceFilter {
        signer: signer.clone(),
        status: query.in_either_case("status", Status::parse)?,
        after: query.cursor("n", extract::cursor_nonce)?,
        limit: limit + 1,
    };
    let records = state.read(state.ledger.nonces(&filter)).await?;
    if records.is_empty() && !state.read(state.ledger.is_known(&signer)).await? {
        return Err(unknown_signer());
    }
    let page = extract::page("n", records, limit, |record| record.row.nonce.to_string(), to_wire::nonce);
    Ok(HttpResponse::Ok().json(page))
}

const SIGNER: &str = "The account: 1 to 128 letters, digits and . _ : @ - (such as eip155:1:0xab…, in lower case; \
                      compared byte by byte)";
const NONCE: &str = "The nonce, 0 to 9007199254740991";
