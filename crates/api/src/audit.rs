//! The audit over HTTP, and the entries that requests of operators write.
//!
//! What changes the ledger takes its entry into the same commit. What happens elsewhere (a node is drained, a job is
//! cancelled) is noted first, and does not happen where that fails.

use actix_web::{HttpRequest, HttpResponse};
use domain::AuditEntry;
use ledger::AuditFilter;
use wire::audit::AuditRecord;

use crate::auth::{Principal, Scope};
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::peer_credential;
use crate::refusal::{Answer, Refusal};
use crate::request_id::RequestId;
use crate::state::{Shared, State};
use crate::to_wire;

/// What is noted of a request.
pub fn entry(request: &HttpRequest, action: &'static str, subject: impl Into<String>) -> AuditEntry {
    let request_id = Some(RequestId::of(request.headers()).to_string().into());
    AuditEntry { request_id, ..AuditEntry::new(Principal::of(request).name(), action, subject) }
}

/// Notes what is about to be done, by this instance or by another one to which it passes the request on afterwards.
///
/// # Errors
/// What the ledger says; then it must not be done.
pub async fn note(state: &State, request: &HttpRequest, entry: &AuditEntry) -> Result<(), Refusal> {
    // The instance that passed it on has noted it.
    if peer_credential::is_forwarded(request) {
        return state.read(state.ledger.audit_once(entry)).await;
    }
    note_here(state, entry).await
}

/// Notes what this instance is about to do, also where another one passed the request on, and noted nothing.
///
/// # Errors
/// As [`note`].
pub async fn note_here(state: &State, entry: &AuditEntry) -> Result<(), Refusal> {
    state.read(state.ledger.audit(entry)).await
}

/// Notes what is about to be done to jobs, if an operator does it: somebody with a token of the scope `admin`.
///
/// # Errors
/// As [`note`].
pub async fn note_operators(
    state: &State,
    request: &HttpRequest,
    action: &'static str,
    subject: String,
) -> Result<(), Refusal> {
    match operators_entry(request, action, subject) {
        Some(entry) => note(state, request, &entry).await,
        None => Ok(()),
    }
}

/// What is noted of what an operator does; `None` for a caller that is none, which is noted nowhere, and for what another
/// instance does for a bulk operation or a part of a request, which was noted as a whole.
pub fn operators_entry(request: &HttpRequest, action: &'static str, subject: String) -> Option<AuditEntry> {
    let principal = Principal::of(request);
    let is_operator = !principal.name().is_empty() && principal.has(Scope::Admin);
    (is_operator && !peer_credential::is_noted(request)).then(|| entry(request, action, subject))
}

/// Lists what operators changed
///
/// The newest entry comes first. Entries are kept for 90 days.
#[utoipa::path(
    get, path = "/v1/audit", tag = "operations", operation_id = "list_audit",
    params(
        ("principal" = Option<String>, Query, description = "Only of this token's name"),
        ("action" = Option<String>, Query, description = "Only this action, such as `set_policy`"),
        ("subject" = Option<String>, Query, description = "Only about this, such as `signer:eip155:1:0xab`"),
        ("since" = Option<String>, Query, format = DateTime, description = "Only from this time on"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<AuditRecord>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["principal", "action", "subject", "since", "cursor", "limit"])?;
    let limit = query.limit()?;
    let filter = AuditFilter {
        principal: query.text("principal")?,
        action: query.text("action")?,
        subject: query.text("subject")?,
        since: query.get("since").map(|since| crate::job_fields::time_of("since", since)).transpose()?,
        before: query.cursor("a", |text| i64::try_from(extract::number(text)?).ok())?,
        limit: limit + 1,
    };
    let records = state.read(state.ledger.audits(&filter)).await?;
    let show = |record: &ledger::AuditRecord| AuditRecord {
        id: record.id,
        at: to_wire::time(record.at),
        principal: record.principal.clone(),
        action: record.action.clone(),
        subject: record.subject.clone(),
        before: record.before.clone(),
        after: record.after.clone(),
        reason: record.reason.clone(),
        request_id: record.request_id.clone(),
    };
    let page = extract::page("a", records, limit, |record| record.id.to_string(), show);
    Ok(HttpResponse::Ok().json(page))
}
