//! The cluster over HTTP: which instances live, and what belongs to which of them.

use actix_web::{HttpRequest, HttpResponse, web};
use domain::{Resource, ResourceKind};
use wire::Code;

use crate::extract::{self, Query};
use crate::refusal::Refusal;
use crate::shown;
use crate::state::State;

/// Shows the cluster
///
/// The instances that live by their leases in the ledger (how many leases they have is up to two seconds old), the ring that the one that answers sees, and the
/// mode.
#[utoipa::path(
    get, path = "/v1/cluster", tag = "leases and cluster", operation_id = "show_cluster",
    responses((status = 200, description = "The instances that live", body = wire::cluster::Cluster)),
)]
pub async fn show(request: HttpRequest, state: web::Data<State>) -> Result<HttpResponse, Refusal> {
    Query::read(&request, &[])?;
    let instances = state.read(state.ledger.live_instances()).await?;
    let counts = state.lease_counts().await?;
    let incarnation = state.incarnation();
    let view = incarnation.outlook.view();
    let on_ring = |id: &str| view.ring().members().iter().any(|member| member == id);
    Ok(HttpResponse::Ok().json(wire::cluster::Cluster {
        instance: incarnation.identity.id.to_string(),
        mode: shown::mode(view.modes().mode),
        only: shown::only(view.modes()),
        ring_version: view.ring().version(),
        instances: instances
            .iter()
            .map(|instance| {
                let id = &instance.about.id;
                shown::instance(instance, counts.get(id).copied().unwrap_or(0), on_ring(id.as_str()))
            })
            .collect(),
    }))
}

/// Shows to whom a resource belongs
///
/// Who has its live lease, or else whom the ring gives it to.
#[utoipa::path(
    get, path = "/v1/cluster/owner/{resource}", tag = "leases and cluster", operation_id = "show_owner",
    params(("resource" = String, Path, description = "`kind:id`, such as `signer:eip155:1:0xab…`")),
    responses((status = 200, description = "The owner", body = wire::cluster::Owner)),
)]
pub async fn owner(request: HttpRequest, state: web::Data<State>) -> Result<HttpResponse, Refusal> {
    let resource = Resource::parse(extract::segment(&request, "resource"))?;
    Query::read(&request, &[])?;
    let lease = state.read(state.ledger.lease(&resource)).await?;
    let view = state.incarnation().outlook.view();
    let holder = lease.filter(ledger::Lease::is_live).and_then(|lease| lease.owner);
    let leased = holder.is_some();
    let owner = match holder {
        Some(owner) => {
            let url = state.owner_url(&owner).await.unwrap_or_default();
            Some((owner.to_string(), url))
        }
        // An instance belongs to nobody but itself, and a worker's number to whoever took it first.
        None if matches!(resource.kind(), ResourceKind::Instance | ResourceKind::IdWorker) => None,
        None => view.placed(&resource).map(|member| (member.id.to_string(), member.url.clone())),
    };
    let (instance_id, url) =
        owner.ok_or_else(|| Refusal::new(Code::NotFound, "nobody owns this resource, nor would"))?;
    Ok(HttpResponse::Ok().json(wire::cluster::Owner {
        resource: resource.to_string(),
        instance_id,
        url,
        ring_version: view.ring().version(),
        leased,
    }))
}
