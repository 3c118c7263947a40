//! Who the caller is: for programs and pages that offer only what their token may do.

use actix_web::{HttpRequest, HttpResponse, web};
use wire::whoami::{TokenScope, Whoami};

use crate::auth::{Principal, Scope};
use crate::extract::Query;
use crate::refusal::Refusal;
use crate::state::State;

/// Shows what the token may do
///
/// Any known token may ask. Without tokens the caller has every scope.
#[utoipa::path(
    get, path = "/v1/whoami", tag = "operations", operation_id = "whoami",
    responses((status = 200, description = "The caller", body = Whoami)),
)]
pub async fn show(request: HttpRequest, state: web::Data<State>) -> Result<HttpResponse, Refusal> {
    Query::read(&request, &[])?;
    let principal = Principal::of(&request);
    let scopes = Scope::ALL.into_iter().filter(|scope| principal.has(*scope)).map(to_wire);
    let instance = state.is_open().then(|| state.incarnation().identity.id.to_string());
    Ok(HttpResponse::Ok().json(Whoami {
        name: Some(principal.name()).filter(|name| !name.is_empty()).map(ToOwned::to_owned),
        scopes: scopes.collect(),
        sees_everything: principal.sees().everything(),
        instance,
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
