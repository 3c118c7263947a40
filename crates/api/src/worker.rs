//! The worker socket: nodes connect here.

mod frames;
mod socket;

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};

use crate::auth::Principal;
use crate::extract::Query;
use crate::refusal::Refusal;
use crate::state::State;
use crate::websocket;
use socket::Socket;

/// Connects a node
///
/// A WebSocket with the subprotocol `fencepost.v1`. It carries JSON text frames whose first field is `type`. The node's
/// first frame is `hello`.
#[utoipa::path(
    get, path = "/v1/nodes/ws", tag = "nodes", operation_id = "connect_node",
    responses((status = 101, description = "The socket is open")),
)]
pub async fn connect(
    request: HttpRequest,
    payload: web::Payload,
    state: web::Data<State>,
) -> Result<HttpResponse, Refusal> {
    Query::read(&request, &[])?;
    let (response, session, messages) = websocket::open(&request, payload)?;
    let state: Arc<State> = state.into_inner();
    let socket = Socket::new(Arc::clone(&state), state.incarnation(), Principal::of(&request), session);
    actix_web::rt::spawn(socket.run(messages));
    Ok(response)
}
