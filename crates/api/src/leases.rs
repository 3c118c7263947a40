//! Leases over HTTP: the owner of each resource, as the ledger has it.

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
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 1000, description = LIMIT),
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
    let read = async |after: Option<Resource>, limit| {
        let after = after.or_else(|| filter.after.clone());
        state.read(state.ledger.leases(&LeaseFilter { after, limit, ..filter.clone() })).await
    };
    let is_seen = async |lease: &Lease| visibility::lease(&state, sees, lease).await;
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
