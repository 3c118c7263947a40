//! Leases over HTTP: the owner of each resource, as the ledger has it.

use std::cell::RefCell;
use std::collections::HashSet;

use actix_web::{HttpRequest, HttpResponse};
use domain::{InstanceId, Resource, ResourceKind};
use ledger::{Lease, LeaseFilter};
use wire::Code;

use crate::auth::Principal;
use crate::cursors::Cursors;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::refusal::{Answer, Refusal};
use crate::seen_pages;
use crate::state::Shared;
use crate::to_wire;
use crate::visibility;

/// Lists leases
///
/// Leases come in the order of their resources' names, including expired and released ones.
#[utoipa::path(
    get, path = "/v1/leases", tag = "leases and cluster", operation_id = "list_leases",
    params(
        ("kind" = Option<String>, Query, description = "Only leases of this kind: `id-worker`, `instance`, `plan`, `session`, `signer` or `tenant`"),
        ("owner" = Option<String>, Query, description = "Only leases of this instance"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<wire::leases::Lease>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["kind", "owner", "cursor", "limit"])?;
    let limit = query.limit()?;
    let principal = Principal::of(&request);
    let (sees, cursors) = (principal.sees(), Cursors::of("l", &state.cursor_seal, &principal));
    let kind = query.get("kind").map(ResourceKind::parse).transpose()?;
    let filter = LeaseFilter {
        kind,
        prefix: match kind {
            Some(ResourceKind::Signer) => sees.signers.prefix(),
            Some(ResourceKind::Tenant) => sees.tenants.prefix(),
            _ => "",
        }
        .to_owned(),
        owner: query.get("owner").map(owner).transpose()?,
        after: cursors.read(&query, |text| Resource::parse(text).ok())?,
        limit: 0,
    };
    let until = seen_pages::until(&state);
    // Those of the leases read last.
    let seen = RefCell::new(HashSet::new());
    let read = async |after: Option<Resource>, limit| {
        let after = after.or_else(|| filter.after.clone());
        let filter = LeaseFilter { after, limit, ..filter.clone() };
        let mut leases = state.read(state.ledger.leases(&filter)).await?;
        let looked_at = visibility::leases(&state, sees, &leases, until).await?;
        leases.truncate(looked_at.len());
        let seen_now = leases.iter().zip(looked_at).filter(|(_, is_seen)| *is_seen);
        *seen.borrow_mut() = seen_now.map(|(lease, _)| lease.resource.clone()).collect();
        Ok(leases)
    };
    let is_seen = |lease: &Lease| seen.borrow().contains(&lease.resource);
    let page =
        seen_pages::page(&state, &principal, limit, read, |lease| lease.resource.clone(), is_seen).await?;
    Ok(HttpResponse::Ok().json(cursors.page(page, Resource::to_string, to_wire::lease)))
}

fn owner(text: &str) -> Result<InstanceId, Refusal> {
    InstanceId::parse(text).map_err(|wrong| Refusal::invalid(format!("owner must be {}", wrong.expected)))
}

/// Shows a lease
#[utoipa::path(
    get, path = "/v1/leases/{resource}", tag = "leases and cluster", operation_id = "show_lease",
    params(("resource" = String, Path, description = "`kind:id`, such as `signer:eip155:1:0xab…`")),
    responses((status = 200, description = "The lease", body = wire::leases::Lease)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    let resource = Resource::parse(extract::segment(&request, "resource"))?;
    Query::read(&request, &[])?;
    let lease = state.read(state.ledger.lease(&resource)).await?;
    let principal = Principal::of(&request);
    let is_seen = match &lease {
        Some(lease) => visibility::lease(&state, principal.sees(), lease).await?,
        None => false,
    };
    let unknown =
        || Refusal::new(Code::NotFound, "this resource was never leased, or this token does not see it");
    match lease {
        Some(lease) if is_seen => Ok(HttpResponse::Ok().json(to_wire::lease(&lease))),
        Some(_) => Err(visibility::hidden(unknown())),
        None => Err(unknown()),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::AUTHORIZATION;
    use actix_web::test::{TestRequest, call_service, init_service, read_body_json};
    use domain::job::Requirements;
    use domain::plan::{StageSpec, TaskSpec};
    use domain::{Names, Pattern, PlanId, SessionId, TenantId, session};

    use super::*;
    use crate::auth::{Auth, Scope, Sees, Token};
    use crate::server::app;
    use crate::settings::Settings;
    use crate::state::State;
    use crate::tests::{forwarder, make_plan, state_with, token};

    /// A session of this tenant.
    async fn open(state: &State, name: &str, tenant: &TenantId) -> Resource {
        let (id, tenant) = (SessionId::parse(name).unwrap(), Some(tenant.clone()));
        let (needs, ordering) = (Requirements::default(), session::Ordering::Strict);
        let spec = session::Spec { tenant, needs, ordering, idle_ms: 60_000 };
        state.ledger.open_session(&id, &spec, None, None).await.unwrap();
        Resource::session(&id)
    }

    /// A plan of this tenant.
    async fn make(state: &State, n: u128, tenant: &TenantId) -> Resource {
        let spec = TaskSpec::new(tenant.clone(), [StageSpec::new("only", "{}")]);
        Resource::plan(make_plan(state, n, spec).await)
    }

    #[actix_web::test]
    async fn leases_of_sessions_and_plans_are_listed_for_callers_that_see_these() {
        let dir = tempfile::TempDir::new().unwrap();
        let tenants = Names::Some(vec![Pattern::parse("x-*").unwrap()].into());
        let sees = Sees { tenants, ..Sees::default() };
        let tokens = vec![token("ops", Scope::Read), Token { sees, ..token("x", Scope::Read) }];
        let state = state_with(&dir, Settings::new(Auth::tokens(tokens))).await;
        let (own, other) = (TenantId::parse("x-1").unwrap(), TenantId::parse("y").unwrap());
        let seen = [make(&state, 1, &own).await, open(&state, "own", &own).await];
        let unseen = [
            make(&state, 2, &other).await,
            Resource::plan(PlanId::from_u128(3)),
            open(&state, "other", &other).await,
            Resource::parse("session:unknown").unwrap(),
        ];
        let owner = InstanceId::parse("owner-1").unwrap();
        for resource in seen.iter().chain(&unseen) {
            state.ledger.acquire(resource, &owner, 600_000).await.unwrap();
        }
        let service = init_service(app(&forwarder(&state))).await;
        for (who, expected) in [("x", seen.to_vec()), ("ops", [&seen[..], &unseen].concat())] {
            let request = TestRequest::get().uri("/v1/leases?owner=owner-1");
            let request = request.insert_header((AUTHORIZATION, format!("Bearer {who}"))).to_request();
            let page: wire::List<wire::leases::Lease> =
                read_body_json(call_service(&service, request).await).await;
            let mut expected: Vec<_> = expected.iter().map(Resource::to_string).collect();
            expected.sort_unstable();
            assert!(page.items.iter().map(|lease| &lease.resource).eq(&expected), "{who}: {page:?}");
        }
    }
}
