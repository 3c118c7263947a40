//! Tenants over HTTP: the newest task of a tenant, its history, and its lock.

use actix_web::{HttpRequest, HttpResponse, web};
use actors::plans::Plans;
use domain::{TaskId, TenantId, Token};
use ledger::TaskRecord;
use wire::Code;
use wire::plans as shape;

use super::{Answer, Forwarding, Shared, author, behind_write, records};
use crate::auth::{Principal, Sees};
use crate::cursors::Cursors;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::forwarder::{ForwardedRequest, Routed};
use crate::large_pages;
use crate::plan_fields::to_wire;
use crate::refusal::Refusal;
use crate::state::State;
use crate::visibility;

/// Shows a tenant
///
/// The tenant's newest task, whether that task has a checkpoint, and the tenant's lock. A token with patterns gets the newest
/// task that it sees.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}", tag = "plans", operation_id = "show_tenant",
    params(("tenant" = String, Path, description = ID)),
    responses((status = 200, description = "The tenant", body = shape::Tenant)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    let tenant = tenant(&request)?;
    Query::read(&request, &[])?;
    Ok(HttpResponse::Ok().json(records::tenant(&state, Principal::of(&request).sees(), &tenant).await?))
}

/// Lists the tasks of a tenant
///
/// The tasks of all plans, the newest first; for a token with patterns those that it sees. A page ends early when its tasks are
/// long. Where a token sees few of many tasks, a page may have none and a `next_cursor`: the list goes on there.
#[utoipa::path(
    get, path = "/v1/tenants/{tenant}/tasks", tag = "plans", operation_id = "list_tenant_tasks",
    params(
        ("tenant" = String, Path, description = ID),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Task>)),
)]
pub async fn history(request: HttpRequest, state: Shared) -> Answer {
    let tenant = tenant(&request)?;
    let query = Query::read(&request, &["cursor", "limit"])?;
    let limit = query.limit()?;
    let principal = Principal::of(&request);
    let (sees, cursors) = (principal.sees(), Cursors::of("h", &state.cursor_seal, &principal));
    let begin = cursors.read(&query, TaskId::parse)?;
    let read = async |before, limit| state.read(state.ledger.tenant_tasks(&tenant, before, limit)).await;
    let shown = |record: &TaskRecord| {
        let is_seen = visibility::task(sees, record);
        Ok((record.task.id, is_seen.then(|| to_wire::listed_task(record))))
    };
    let room = large_pages::room(&state, &request);
    let page = large_pages::page(room, &cursors, begin, limit, read, shown).await?;
    if begin.is_none() && page.items.is_empty() && page.next_cursor.is_none() {
        return Err(records::no_task(&state, sees, &tenant).await);
    }
    Ok(HttpResponse::Ok().json(page))
}

/// Breaks the lock of a tenant
///
/// The lock must be held at the token that the request names; else the request is refused as `conflict`. If the caller does not
/// see the task that holds the lock, the request is refused as `not_found`. The task that held
/// the lock becomes INTERRUPTED if it was not over, and the job of its stage is cancelled: whatever that reports, the stage is
/// UNKNOWN. Its stages may still change the tenant's systems, unless these check the token.
#[utoipa::path(
    post, path = "/v1/tenants/{tenant}/unlock", tag = "plans", operation_id = "unlock_tenant",
    params(("tenant" = String, Path, description = ID)),
    request_body = shape::UnlockRequest,
    responses((status = 200, description = "The tenant as it stands now", body = shape::Tenant)),
)]
pub async fn unlock(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    let tenant = tenant(&request)?;
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, state.body_limits()).await?;
    let asked: shape::UnlockRequest = extract::object(&request, &body)?;
    let token = i64::try_from(asked.token).map_err(|_| Refusal::invalid("token is out of range"))?;
    let principal = Principal::of(&request);
    let sees = principal.sees();
    records::newest_task(state, sees, &tenant).await?;
    let locker = records::locker(state, sees, &tenant).await?;
    let (author, token) = (author(&request, Some(&asked.reason)), Token::new(token));
    // The owner of the plan does it, so that it calls off at once what the task has under way.
    if let Some((_, plan)) = locker.filter(|(held, _)| *held == token) {
        let unlock = async |plans: &Plans| {
            plans.look(plan).await?;
            plans.unlock(&tenant, token, author.clone()).await
        };
        match forwarder.to_plan(&ForwardedRequest::brought(&request, body), plan, unlock).await {
            Ok(Routed::Here(())) => return shown(state, sees, &tenant).await,
            Ok(Routed::Elsewhere(answer)) => return Ok(answer),
            // One that cannot be reached must not keep people from what they are asked to do just then.
            Err(refusal) if may_go_without_owner(refusal.code()) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    state.call(state.incarnation().plans.unlock(&tenant, token, author)).await?;
    shown(state, sees, &tenant).await
}

/// Whether a plan's owner was not asked, or did nothing.
const fn may_go_without_owner(code: Code) -> bool {
    matches!(code, Code::NotOwner | Code::LeaseHeld | Code::Fenced | Code::Draining)
}

/// The tenant whose lock was broken.
async fn shown(state: &State, sees: &Sees, tenant: &TenantId) -> Answer {
    let tenant = records::tenant(state, sees, tenant).await.map_err(behind_write)?;
    Ok(HttpResponse::Ok().json(tenant))
}

/// The tenant in the path.
pub fn tenant(request: &HttpRequest) -> Result<TenantId, Refusal> {
    Ok(TenantId::parse(extract::segment(request, "tenant"))?)
}

/// How the OpenAPI document describes it.
pub const ID: &str = "The tenant's id";
