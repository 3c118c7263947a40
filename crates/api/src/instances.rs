//! The cluster over HTTP: which instances live.

use actix_web::{HttpRequest, HttpResponse, web};

use crate::extract::Query;
use crate::refusal::Refusal;
use crate::shown;
use crate::state::State;

/// Shows the cluster
///
/// The instances that live by their leases in the ledger, and which of them answers.
#[utoipa::path(
    get, path = "/v1/cluster", tag = "leases and cluster", operation_id = "show_cluster",
    responses((status = 200, description = "The instances that live", body = wire::cluster::Cluster)),
)]
pub async fn show(request: HttpRequest, state: web::Data<State>) -> Result<HttpResponse, Refusal> {
    Query::read(&request, &[])?;
    let instances = state.read(state.services.ledger.live_instances()).await?;
    Ok(HttpResponse::Ok().json(wire::cluster::Cluster {
        instance: state.services.identity.id.to_string(),
        mode: state.services.mode.to_owned(),
        instances: instances.iter().map(shown::instance).collect(),
    }))
}
