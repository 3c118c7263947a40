//! The audit over HTTP, and the entries that requests of operators write.
//!
//! What changes the ledger takes its entry into the same commit. What happens elsewhere (a node is drained, a job is
//! cancelled) is noted first, and does not happen where that fails.

use actix_web::{HttpRequest, HttpResponse};
use domain::AuditEntry;
use ledger::AuditFilter;
use wire::audit::AuditRecord;

use crate::auth::{Principal, Scope};
use crate::cursors::Cursors;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::from_wire;
use crate::large_pages;
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

/// Notes what is about to be done to jobs, if an operator does it.
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

/// Whether an operator asks: somebody with a token of the scope `admin`.
pub fn is_operator(request: &HttpRequest) -> bool {
    let principal = Principal::of(request);
    !principal.name().is_empty() && principal.has(Scope::Admin)
}

/// What is noted of what an operator does; `None` for a caller that is none, which is noted nowhere, and for what another
/// instance does for a bulk operation or a part of a request, which was noted as a whole.
pub fn operators_entry(request: &HttpRequest, action: &'static str, subject: String) -> Option<AuditEntry> {
    (is_operator(request) && !peer_credential::is_noted(request)).then(|| entry(request, action, subject))
}

/// Lists what operators changed
///
/// The newest entry comes first. A page ends early when its entries are long. Entries are kept for
/// `audit.retention_ms`, which is 90 days unless the daemon is configured otherwise.
#[utoipa::path(
    get, path = "/v1/audit", tag = "operations", operation_id = "list_audit",
    params(
        ("principal" = Option<String>, Query, description = "Only of this token's name"),
        ("action" = Option<String>, Query, description = "Only this action, such as `set_policy`"),
        ("subject" = Option<String>, Query, description = "Only about this, such as `signer:eip155:1:0xab`"),
        ("since" = Option<String>, Query, format = DateTime, description = "Only from this time on"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
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
        since: query.get("since").map(|since| from_wire::time_of("since", since)).transpose()?,
        ..AuditFilter::default()
    };
    let begin = query.cursor("a", |text| i64::try_from(extract::number(text)?).ok())?;
    let read = async |before, limit| {
        state.read(state.ledger.audits(&AuditFilter { before, limit, ..filter.clone() })).await
    };
    let shown = |record: &ledger::AuditRecord| {
        let item = AuditRecord {
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
        Ok((record.id, Some(item)))
    };
    let room = large_pages::room(&state, &request);
    let cursors = Cursors::in_clear("a");
    Ok(HttpResponse::Ok().json(large_pages::page(room, &cursors, begin, limit, read, shown).await?))
}

#[cfg(test)]
mod tests {
    use actix_web::test::{TestRequest, call_service, init_service, read_body_json};

    use super::*;
    use crate::auth::Auth;
    use crate::limits::SHOWN_PAGE_BYTES_MAX;
    use crate::server::app;
    use crate::settings::Settings;
    use crate::tests::{forwarder, state_with};

    #[actix_web::test]
    async fn a_page_of_long_entries_ends_early_and_says_where_it_goes_on() {
        let dir = tempfile::TempDir::new().unwrap();
        let state = state_with(&dir, Settings::new(Auth::open())).await;
        let pools = "x".repeat(SHOWN_PAGE_BYTES_MAX / 5);
        let entry = AuditEntry::new("ops", "set_pools", "config:pools").changed(pools.clone(), pools);
        for _ in 0..4 {
            state.ledger.audit(&entry).await.unwrap();
        }
        let service = init_service(app(&forwarder(&state))).await;
        let (mut pages, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/audit?limit=100{cursor}");
            let request = TestRequest::get().insert_header(("host", "localhost")).uri(&path).to_request();
            let page: wire::List<AuditRecord> = read_body_json(call_service(&service, request).await).await;
            pages.push(page.items.len());
            let Some(next) = page.next_cursor else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(pages, [3, 1]);
    }
}
