//! Sessions over HTTP: any instance opens and shows them, their owner closes them. And the socket of a session's client.

mod cursor;
mod looks;
mod socket;

use std::cell::LazyCell;

use actix_web::{HttpRequest, HttpResponse, web};
use actors::jobs::Jobs;
use cluster::KeyOwner;
use domain::session::Ordering;
use domain::{LaneId, Resource, SessionId, TenantId};
use ledger::{Opener, SessionFilter, SessionRecord};
use tracing::Instrument;
use wire::Code;
use wire::sessions as shape;

use crate::auth::Principal;
use crate::cursors::Cursors;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::forwarder::{ForwardedRequest, Forwarding, Routed};
use crate::from_wire;
use crate::idempotency::{KEY, admit, body_hash, job_key};
use crate::peer_credential;
use crate::refusal::{Answer, Refusal};
use crate::seen_pages;
use crate::state::Shared;
use crate::to_wire;
use crate::visibility;
use crate::websocket::{self, Opened};
use cursor::Cursor;
use looks::InLedger;
use socket::Socket;

/// Opens a session
///
/// One instance owns a session and runs its jobs in the session's order. Repetitions of the same request under one
/// `Idempotency-Key` get the same session for 24 hours, also when it is closed by then. A token that has as many open
/// sessions as it may have gets `overloaded`.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "sessions", operation_id = "open_session",
    params(("Idempotency-Key" = Option<String>, Header, description = KEY)),
    request_body(content = shape::SessionRequest, description = "The body may be absent"),
    responses((status = 201, description = "The session is open and durable", body = shape::SessionOpened)),
)]
pub async fn open(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let key = extract::idempotency_key(request.headers())?;
    let body = extract::bytes(&request, payload, state.body_limits()).await?;
    let asked: shape::SessionRequest = extract::optional_object(&request, &body)?.unwrap_or_default();
    let principal = Principal::of(&request);
    let key = key.map(|key| job_key(principal.name(), "session", key, body_hash(&asked)));
    let ordering = asked.ordering.unwrap_or(shape::Ordering::Strict);
    let mut spec = from_wire::session(&asked)?;
    (spec.tenant, spec.needs.pool) =
        visibility::of_new(principal.sees(), spec.tenant.take(), spec.needs.pool.take())
            .map_err(visibility::hidden_if_not_found)?;
    admit(&state, &principal, key.as_ref())?;
    let incarnation = state.incarnation();
    let opener = principal.used().map(|_| Opener {
        principal: principal.name().to_owned(),
        sessions_max: state.settings.caller_sessions_max,
    });
    let made = state.call(incarnation.jobs.open_session(&spec, key.as_ref(), opener.as_ref())).await?;
    if made.is_repeated {
        visibility::admit_made_session(&state, principal.sees(), &made.id).await?;
    }
    let id = made.id;
    let owner = match incarnation.cluster_view.owner_of(&Resource::session(&id)) {
        KeyOwner::Here => incarnation.identity.id.clone(),
        KeyOwner::Elsewhere(member) => member.id,
    };
    let opened = shape::SessionOpened { id: id.to_string(), owner: owner.to_string(), ordering };
    Ok(HttpResponse::Created()
        .insert_header((actix_web::http::header::LOCATION, format!("/v1/sessions/{id}")))
        .json(opened))
}

/// Lists sessions
///
/// Sessions come in the order of their ids, which says nothing of their age. Their jobs and owners are left out. Closed ones
/// are listed until no job of them is kept, and for `jobs.retention_ms` and three days at least.
#[utoipa::path(
    get, path = "/v1/sessions", tag = "sessions", operation_id = "list_sessions",
    params(
        ("open" = Option<bool>, Query, description = "`true`: open sessions. `false`: closed ones"),
        ("tenant" = Option<String>, Query, description = "Sessions of this tenant"),
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::ListedSession>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["open", "tenant", "cursor", "limit"])?;
    let limit = query.limit()?;
    let open = query.flag("open")?;
    let principal = Principal::of(&request);
    let (sees, cursors) = (principal.sees(), Cursors::of("ses", &state.cursor_seal, &principal));
    let asked = query.get("tenant").map(TenantId::parse).transpose()?;
    let is_hidden = asked.as_ref().is_some_and(|tenant| !sees.tenants.have(Some(tenant.as_str())));
    let (only_tenant, pool) = visibility::only(sees);
    let after = cursors.read(&query, |text| SessionId::parse(text).ok())?;
    let filter = SessionFilter { open, tenant: asked.or(only_tenant), pool, after, limit: 0 };
    let incarnation = state.incarnation();
    let read = async |after: Option<SessionId>, limit| {
        if is_hidden {
            return Ok(Vec::new());
        }
        let after = after.or_else(|| filter.after.clone());
        state.look_up(incarnation.jobs.sessions(&SessionFilter { after, limit, ..filter.clone() })).await
    };
    let is_seen = |record: &SessionRecord| visibility::session_record(sees, record);
    let page = seen_pages::page(&state, &principal, limit, read, |record| record.id.clone(), is_seen).await?;
    Ok(HttpResponse::Ok().json(cursors.page(page, SessionId::to_string, to_wire::listed_session)))
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
    let session = state.look_up(state.incarnation().jobs.session(&id)).await?;
    Ok(HttpResponse::Ok().json(to_wire::session(&session)))
}

/// Closes a session
///
/// A closed session takes no more jobs and finishes those that it has. Closing it again changes nothing.
#[utoipa::path(
    delete, path = "/v1/sessions/{id}", tag = "sessions", operation_id = "close_session",
    params(("id" = String, Path, description = ID)),
    responses((status = 204, description = "The session is closed")),
)]
pub async fn close(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let id = session(&request)?;
    Query::read(&request, &[])?;
    let body = extract::no_fields(&request, payload, forwarder.state().body_limits()).await?;
    let serve = async |jobs: &Jobs| jobs.close_session(&id).await;
    let is_forwarded = peer_credential::is_forwarded(&request);
    let forwarded = LazyCell::new(|| ForwardedRequest::of(&request, body));
    match forwarder.to_session(forwarded, is_forwarded, &id, serve).await? {
        Routed::Here(()) => Ok(HttpResponse::NoContent().finish()),
        Routed::Elsewhere(answer) => Ok(answer),
    }
}

/// Connects a session's client
///
/// A WebSocket with JSON text frames, each with its `type`. The client sends `job`. The daemon sends
/// `accepted`, `progress`, `result` and `problem`. With `after_seq` it first sends the results after that number; without
/// it, results of jobs that ended before are not sent.
#[utoipa::path(
    get, path = "/v1/sessions/{id}/ws", tag = "sessions", operation_id = "connect_client",
    params(
        ("id" = String, Path, description = ID),
        ("after_seq" = Option<u64>, Query, description = "The sequence number, in this session, up to which the client has \
                                                          all results; 0 for all that are kept"),
    ),
    responses((status = 101, description = "The socket is open")),
)]
pub async fn connect(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    let state = forwarder.state();
    let id = session(&request)?;
    let after_seq = Query::read(&request, &["after_seq"])?.number("after_seq", i64::MAX as u64)?;
    let incarnation = state.incarnation();
    let record = state.look_up(incarnation.jobs.session_record(&id)).await?;
    let is_ordered = record.spec.ordering != Ordering::Free;
    let watch = state.call(async { incarnation.jobs.watch(actors::jobs::Topic::Lane(LaneId::session(&id))) });
    let watch = watch.await?;
    // Read before the socket is open: what ends from then on is sent.
    let cursor = match after_seq {
        Some(seq) => Cursor::behind(seq, is_ordered),
        None => {
            let source = InLedger { jobs: &incarnation.jobs, id: &id };
            state.look_up(looks::begin(&source, is_ordered)).await?
        }
    };
    let Opened { response, outlet, messages, pauses, place, .. } = websocket::open(&request, payload, state)?;
    let caller = socket::Caller {
        // Later frames are served in this request's name.
        forwarded: ForwardedRequest::brought(&request, Vec::new()),
        principal: Principal::of(&request),
    };
    let socket =
        Socket::new(forwarder.into_inner(), incarnation, id, caller, watch, (outlet, pauses), cursor);
    let run = async move {
        socket.run(messages).await;
        drop(place);
    };
    // What it logs has the request's id.
    actix_web::rt::spawn(run.in_current_span());
    Ok(response)
}

fn session(request: &HttpRequest) -> Result<SessionId, Refusal> {
    SessionId::parse(extract::segment(request, "id"))
        .map_err(|_| Refusal::new(Code::NotFound, "no session has an id of this form"))
}

const ID: &str = "The session's id";
