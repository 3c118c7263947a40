//! Sessions over HTTP: made and looked at on any instance, closed by whoever owns them; and the socket of a session's
//! client.

mod cursor;
mod socket;

use std::sync::Arc;

use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::Jobs;
use cluster::Place;
use domain::limits::SESSION_IDLE_MS_DEFAULT;
use domain::session::{Ordering, Spec};
use domain::{Resource, SessionId};
use wire::Code;
use wire::limits::MESSAGE_BYTES_MAX;
use wire::sessions as shape;
use wire::worker::SUBPROTOCOL;

use crate::extract::{self, Query};
use crate::jobs::{KEY, hash, kept, needs, principal};
use crate::refusal::Refusal;
use crate::routing::{Errand, Routed};
use crate::shown;
use crate::state::State;
use socket::Socket;

type Answer = Result<HttpResponse, Refusal>;
type Shared = web::Data<State>;

/// Makes a session
///
/// Its jobs are brought to one instance, and run in its order. Under an `Idempotency-Key` every repetition of the same
/// request gets the same session for 24 hours.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "sessions", operation_id = "open_session",
    params(("Idempotency-Key" = Option<String>, Header, min_length = 1, max_length = 128, description = KEY)),
    request_body = shape::SessionRequest,
    responses((status = 201, description = "Made, and durable", body = shape::SessionOpened)),
)]
pub async fn open(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::bytes(&request, payload, state.body_limits()).await?;
    let asked: shape::SessionRequest = extract::optional_object(&request, &body)?.unwrap_or_default();
    let key = key.map(|key| kept(&principal(&request, &state), "session", key, hash(&asked)));
    let ordering = asked.ordering.unwrap_or(shape::Ordering::Strict);
    let spec = Spec {
        needs: needs(asked.pool.as_deref(), asked.route.as_ref(), &asked.requires)?,
        ordering: ordering_of(ordering),
        idle_ms: asked.idle_ms.unwrap_or(SESSION_IDLE_MS_DEFAULT),
    };
    let incarnation = state.incarnation();
    let id = state.call(incarnation.jobs.open_session(&spec, key.as_ref())).await?;
    let owner = match incarnation.outlook.place(&Resource::session(&id)) {
        Place::Here => incarnation.identity.id.clone(),
        Place::There(member) => member.id,
    };
    let opened = shape::SessionOpened { id: id.to_string(), owner: owner.to_string(), ordering };
    Ok(HttpResponse::Created()
        .insert_header((actix_web::http::header::LOCATION, format!("/v1/sessions/{id}")))
        .json(opened))
}

/// Shows a session
#[utoipa::path(
    get, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "show_session",
    params(("id" = String, Path, description = ID)),
    responses((status = 200, description = "The session", body = shape::Session)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    let id = session(&request)?;
    Query::read(&request, &[])?;
    let session = state.call(state.incarnation().jobs.session(&id)).await?;
    Ok(HttpResponse::Ok().json(shown::session(&session)))
}

/// Closes a session
///
/// It takes no more jobs; those that it has are finished. Closed already, it stays so.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "close_session",
    params(("id" = String, Path, description = ID)),
    responses((status = 204, description = "It is closed")),
)]
pub async fn close(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    let id = session(&request)?;
    Query::read(&request, &[])?;
    let body = extract::bytes(&request, payload, state.body_limits()).await?;
    extract::no_fields(&request, &body)?;
    let serve = async |jobs: &Jobs| jobs.close_session(&id).await;
    match state.to_session(&Errand::of(&request, body), &id, serve).await? {
        Routed::Here(()) => Ok(HttpResponse::NoContent().finish()),
        Routed::There(answer) => Ok(answer),
    }
}

/// Connects a session's client
///
/// A WebSocket: JSON text frames, `type` first. The client sends `job`, and is sent `accepted`, `progress`, `result`
/// and `problem`. With `after_seq`, results of jobs behind that place come first.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/ws", tag = "sessions", operation_id = "connect_client",
    params(
        ("id" = String, Path, description = ID),
        ("after_seq" = Option<u64>, Query, description = "The place up to which all results were seen"),
    ),
    responses((status = 101, description = "The socket is open")),
)]
pub async fn connect(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    let id = session(&request)?;
    let after_seq = Query::read(&request, &["after_seq"])?.number("after_seq", i64::MAX as u64)?;
    let incarnation = state.incarnation();
    let record = state.call(incarnation.jobs.session_record(&id)).await?;
    let watch =
        state.call(async { incarnation.jobs.watch(actors::jobs::Topic::Lane(Resource::session(&id))) });
    let watch = watch.await?;
    let (response, session, messages) = actix_ws::handle_with_protocols(&request, payload, &[SUBPROTOCOL])
        .map_err(|error| Refusal::new(Code::Invalid, format!("this path takes WebSockets only: {error}")))?;
    let messages = messages
        .max_frame_size(MESSAGE_BYTES_MAX)
        .aggregate_continuations()
        .max_continuation_size(MESSAGE_BYTES_MAX);
    let caller = socket::Caller {
        // What it asks for later is asked in this request's name.
        errand: Errand::of(&request, Vec::new()),
        principal: principal(&request, &state),
    };
    let state: Arc<State> = state.into_inner();
    let socket = Socket::new(state, incarnation, record, caller, watch, session, after_seq);
    actix_web::rt::spawn(socket.run(messages));
    Ok(response)
}

fn session(request: &HttpRequest) -> Result<SessionId, Refusal> {
    SessionId::parse(extract::segment(request, "id"))
        .map_err(|_| Refusal::new(Code::NotFound, "no session has an id of this form"))
}

const fn ordering_of(ordering: shape::Ordering) -> Ordering {
    match ordering {
        shape::Ordering::Strict => Ordering::Strict,
        shape::Ordering::Results => Ordering::Results,
        shape::Ordering::Free => Ordering::Free,
    }
}

const ID: &str = "The session's id";
