//! The cluster over HTTP: the live instances, and the owners of resources.

use actix_web::{HttpRequest, HttpResponse};
use domain::{InstanceId, Resource, ResourceKind};
use wire::Code;

use crate::auth::Principal;
use crate::extract::{self, Query};
use crate::refusal::{Answer, Refusal};
use crate::state::Shared;
use crate::to_wire;

/// Shows the cluster
///
/// The answer lists the live instances by their leases in the ledger, each with its number of leases as it was last counted,
/// the ring as the answering instance sees it, and the mode, with those of its signers that the caller sees.
#[utoipa::path(
    get, path = "/v1/cluster", tag = "leases and cluster", operation_id = "show_cluster",
    responses((status = 200, description = "The live instances", body = wire::cluster::Cluster)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let caller = Principal::of(&request);
    let instances = state.read(state.ledger.live_instances()).await?;
    let counts = state.lease_counts().await;
    let leases = |id: &InstanceId| counts.as_ref().and_then(|counts| counts.of.get(id)).copied().unwrap_or(0);
    let incarnation = state.incarnation();
    let view = incarnation.cluster_view.view();
    let on_ring = |id: &str| view.ring().members().iter().any(|member| member == id);
    Ok(HttpResponse::Ok().json(wire::cluster::Cluster {
        instance: incarnation.identity.id.to_string(),
        mode: to_wire::mode(view.modes().mode),
        only: to_wire::only(view.modes(), &caller.sees().signers),
        ring_version: view.ring().version(),
        instances: instances
            .iter()
            .map(|instance| {
                let id = &instance.about.id;
                to_wire::instance(instance, leases(id), on_ring(id.as_str()))
            })
            .collect(),
    }))
}

/// Shows the owner of a resource
///
/// The owner is the instance that holds the resource's live lease, or else the one that the ring names. A tenant has none: its
/// lock belongs to a task.
#[utoipa::path(
    get, path = "/v1/cluster/owner/{resource}", tag = "leases and cluster", operation_id = "show_owner",
    params(("resource" = String, Path, description = "`kind:id`, such as `signer:eip155:1:0xab…`")),
    responses((status = 200, description = "The owner", body = wire::cluster::Owner)),
)]
pub async fn owner(request: HttpRequest, state: Shared) -> Answer {
    let resource = Resource::parse(extract::segment(&request, "resource"))?;
    Query::read(&request, &[])?;
    let lease = state.read(state.ledger.lease(&resource)).await?;
    let view = state.incarnation().cluster_view.view();
    // The lease of a tenant is a lock, and names a task.
    let is_an_instances = |lease: &ledger::Lease| lease.is_live() && resource.kind() != ResourceKind::Tenant;
    let holder = lease.filter(is_an_instances).and_then(|lease| lease.owner);
    let leased = holder.is_some();
    let owner = match holder {
        Some(owner) => {
            let url = state.owner_url(&owner).await.unwrap_or_default();
            Some((owner.to_string(), url))
        }
        // The ring names no owner of a tenant, of an `instance:` lease, which is its own, nor of a worker number, which any
        // instance takes.
        None if matches!(
            resource.kind(),
            ResourceKind::Instance | ResourceKind::IdWorker | ResourceKind::Tenant
        ) =>
        {
            None
        }
        None => view.placed(&resource).map(|member| (member.id.to_string(), member.url.clone())),
    };
    let (instance_id, url) = owner.ok_or_else(|| {
        Refusal::new(Code::NotFound, "no instance owns this resource, and the ring names none")
    })?;
    Ok(HttpResponse::Ok().json(wire::cluster::Owner {
        resource: resource.to_string(),
        instance_id,
        url,
        ring_version: view.ring().version(),
        leased,
    }))
}
