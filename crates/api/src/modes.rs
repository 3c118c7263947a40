//! The mode over HTTP: how requests find their owners. An operator changes it for the whole cluster while it runs.

use actix_web::{HttpRequest, HttpResponse, web};
use domain::{Mode, Modes, Resource, ResourceKind};
use wire::Code;
use wire::cluster::{ModeRequest, ModeSetting};

use crate::audit;
use crate::extract::{self, Query};
use crate::refusal::{Answer, Refusal};
use crate::state::Shared;
use crate::to_wire;

/// Shows the mode
///
/// The answer comes from the ledger, and every instance follows it within a second.
#[utoipa::path(
    get, path = "/v1/config/mode", tag = "leases and cluster", operation_id = "show_mode",
    responses((status = 200, description = "The mode", body = ModeSetting)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let modes = state.read(state.ledger.modes()).await?;
    let modes = modes.unwrap_or_else(|| state.incarnation().cluster_view.view().modes().clone());
    Ok(HttpResponse::Ok().json(to_wire::modes(&modes)))
}

/// Changes the mode
///
/// The request names the version that it replaces; if that is not the newest, the answer is `conflict`. With `only` the
/// named signers are in this mode, and all others in the other mode. Owners finish what they have begun. After
/// `ledger_unavailable` the change may have been made, or be made yet: `conflict` for the same request can then mean that it was,
/// which the mode shows.
#[utoipa::path(
    put, path = "/v1/config/mode", tag = "leases and cluster", operation_id = "change_mode",
    request_body = ModeRequest,
    responses((status = 200, description = "The mode in force, with its new version", body = ModeSetting)),
)]
pub async fn replace(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let asked: ModeRequest = extract::body(&request, payload, state.body_limits()).await?;
    let modes = Modes {
        version: asked.version,
        mode: Mode::parse(asked.mode.as_str())?,
        only: asked.only.map(|only| only.iter().map(|name| signer(name)).collect()).transpose()?,
    };
    let by = audit::entry(&request, "set_mode", "config:mode");
    match state.write(state.ledger.replace_modes(&modes, &by)).await? {
        Some(modes) => {
            state.incarnation().cluster_view.adopt_modes(modes.clone());
            state.call(cluster::tell(&state.bus)).await;
            Ok(HttpResponse::Ok().json(to_wire::modes(&modes)))
        }
        None => {
            let detail = format!("version {} is not the newest; read the mode again", modes.version);
            Err(Refusal::new(Code::Conflict, detail))
        }
    }
}

fn signer(name: &str) -> Result<Resource, Refusal> {
    let resource = Resource::parse(name)?;
    match resource.kind() {
        ResourceKind::Signer => Ok(resource),
        ResourceKind::IdWorker
        | ResourceKind::Instance
        | ResourceKind::Plan
        | ResourceKind::Session
        | ResourceKind::Tenant => {
            Err(Refusal::invalid("only must name signers, such as signer:eip155:1:0xab"))
        }
    }
}
