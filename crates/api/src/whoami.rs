//! Who the caller is: for programs and pages that offer only what their token may do.

use actix_web::{HttpRequest, HttpResponse};
use domain::{Invalid, NodeId};
use wire::whoami::{TokenScope, Whoami};

use crate::auth::{Principal, Scope};
use crate::extract::Query;
use crate::nodes;
use crate::refusal::Answer;
use crate::state::Shared;

/// Shows what the token may do
///
/// Any known token may ask. Without tokens the caller has every scope. With `node`, which is for tokens of the scope `node`, the
/// answer also says whether the token may connect a node under this id: a node's id belongs to the token that connected the node,
/// as long as the node is known.
#[utoipa::path(
    get, path = "/v1/whoami", tag = "operations", operation_id = "whoami",
    params(("node" = Option<String>, Query, description = "The id of a node")),
    responses((status = 200, description = "The caller", body = Whoami)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["node"])?;
    let principal = Principal::of(&request);
    let asked = query.get("node").map(NodeId::parse).transpose();
    let asked = asked.map_err(|invalid| Invalid { what: "node", ..invalid })?;
    let node = match asked.filter(|_| state.is_open()) {
        Some(id) => Some(nodes::claim(&state, &principal, &id).await?),
        None => None,
    };
    let scopes = Scope::ALL.into_iter().filter(|scope| principal.has(*scope)).map(to_wire);
    let instance = state.is_open().then(|| state.incarnation().identity.id.to_string());
    Ok(HttpResponse::Ok().json(Whoami {
        name: Some(principal.name()).filter(|name| !name.is_empty()).map(ToOwned::to_owned),
        scopes: scopes.collect(),
        sees_everything: principal.sees().everything(),
        instance,
        node,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }))
}

const fn to_wire(scope: Scope) -> TokenScope {
    match scope {
        Scope::Read => TokenScope::Read,
        Scope::Submit => TokenScope::Submit,
        Scope::Node => TokenScope::Node,
        Scope::Admin => TokenScope::Admin,
    }
}
