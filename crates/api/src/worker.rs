//! The worker socket: nodes connect here.

mod frames;
mod socket;

use actix_web::{HttpRequest, web};
use tracing::Instrument;

use crate::auth::Principal;
use crate::extract::Query;
use crate::forwarder::Forwarding;
use crate::refusal::Answer;
use crate::websocket::{self, Opened};
use socket::Socket;

/// Connects a node
///
/// A WebSocket with the subprotocol `fencepost.v1`. It carries JSON text frames, each with its `type`. The node's
/// first frame is `hello`.
#[utoipa::path(
    get, path = "/v1/nodes/ws", tag = "nodes", operation_id = "connect_node",
    responses((status = 101, description = "The socket is open")),
)]
pub async fn connect(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    Query::read(&request, &[])?;
    let state = forwarder.state();
    let Opened { response, outlet, messages, pauses, arriving, place } =
        websocket::open(&request, payload, state)?;
    let incarnation = state.incarnation();
    let socket = Socket::new(forwarder.into_inner(), incarnation, Principal::of(&request), outlet);
    let run = async move {
        socket.run(messages, pauses, arriving).await;
        drop(place);
    };
    // What it logs has the request's id.
    actix_web::rt::spawn(run.in_current_span());
    Ok(response)
}
