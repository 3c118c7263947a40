//! Nodes and pools over HTTP: showing and draining nodes, explaining a selection, configuring pools.

use std::slice;
use std::sync::Arc;
use std::time::Instant;

use ::nodes::{Pools, Record, Registry, Wanted};
use actix_web::{HttpRequest, HttpResponse, web};
use bus::NodeState;
use domain::{AuditEntry, NodeId, PoolName};
use tokio::sync::broadcast::error::RecvError;
use wire::Code;
use wire::nodes as shape;

use crate::audit;
use crate::auth::{Principal, Scope, Sees};
use crate::cursors::Cursors;
use crate::extract::{self, CURSOR, LIMIT, Query};
use crate::forwarder::{ForwardedRequest, Forwarding};
use crate::from_wire;
use crate::limits::DRAIN_SEEN_MAX;
use crate::refusal::{Answer, Refusal};
use crate::seen_pages;
use crate::state::{Shared, State, of_write};
use crate::to_wire;
use crate::visibility;

/// Lists the nodes
///
/// Nodes come in the order of their ids, as this instance knows them. Changes at other instances arrive within moments.
#[utoipa::path(
    get, path = "/v1/nodes", tag = "nodes", operation_id = "list_nodes",
    params(
        ("cursor" = Option<String>, Query, description = CURSOR),
        ("limit" = Option<u32>, Query, description = LIMIT),
    ),
    responses((status = 200, description = "A page", body = wire::List<shape::Node>)),
)]
pub async fn list(request: HttpRequest, state: Shared) -> Answer {
    let query = Query::read(&request, &["cursor", "limit"])?;
    let principal = Principal::of(&request);
    let (sees, cursors) = (principal.sees(), Cursors::of("n", &state.cursor_seal, &principal));
    let (limit, after) = (query.limit()?, cursors.read(&query, |text| NodeId::parse(text).ok())?);
    let incarnation = state.incarnation();
    let read = async |last: Option<NodeId>, piece: u32| {
        Ok(incarnation.registry.list(last.as_ref().or(after.as_ref()), piece as usize))
    };
    let is_seen = |record: &Record| sees.nodes.have(Some(record.profile.node.as_str()));
    let page =
        seen_pages::page(&state, &principal, limit, read, |record| record.profile.node.clone(), is_seen)
            .await?;
    let pools = incarnation.registry.pools();
    let show = |record: &Record| shown(record, &pools, &incarnation.registry, sees);
    Ok(HttpResponse::Ok().json(cursors.page(page, NodeId::to_string, show)))
}

/// Shows a node
#[utoipa::path(
    get, path = "/v1/nodes/{id}", tag = "nodes", operation_id = "show_node",
    params(("id" = String, Path, description = "The node's id")),
    responses((status = 200, description = "The node", body = shape::Node)),
)]
pub async fn show(request: HttpRequest, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let record = node(&request, &state)?;
    let registry = &state.incarnation().registry;
    let principal = Principal::of(&request);
    Ok(HttpResponse::Ok().json(shown(&record, &registry.pools(), registry, principal.sees())))
}

/// Drains a node
///
/// The node gets no more jobs and finishes those that it has. The drain lasts until `undrain`, or until the node connects
/// again without `drained` in its `hello`, as when its program starts anew. After the answer, every instance that can be
/// reached shows it, and it was sent to the node. If the node's connection breaks at that moment, the node may not have it, and
/// comes back as it was: `GET /v1/nodes/{id}` shows that.
#[utoipa::path(
    post, path = "/v1/nodes/{id}/drain", tag = "nodes", operation_id = "drain_node",
    params(("id" = String, Path, description = "The node's id")),
    responses((status = 200, description = "The node", body = shape::Node)),
)]
pub async fn drain(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    set_drained(request, payload, forwarder, true).await
}

/// Ends the drain of a node
///
/// The node gets jobs again, unless it has sent `drain` itself. What `drain_node` says of the answer is true here too.
#[utoipa::path(
    post, path = "/v1/nodes/{id}/undrain", tag = "nodes", operation_id = "undrain_node",
    params(("id" = String, Path, description = "The node's id")),
    responses((status = 200, description = "The node", body = shape::Node)),
)]
pub async fn undrain(request: HttpRequest, payload: web::Payload, forwarder: Forwarding) -> Answer {
    set_drained(request, payload, forwarder, false).await
}

async fn set_drained(
    request: HttpRequest,
    payload: web::Payload,
    forwarder: Forwarding,
    drained: bool,
) -> Answer {
    let state = forwarder.state();
    Query::read(&request, &[])?;
    let body = extract::no_fields(&request, payload, state.body_limits()).await?;
    let record = node(&request, state)?;
    let incarnation = state.incarnation();
    if record.profile.holder != incarnation.identity.id {
        let forwarded = ForwardedRequest::of(&request, body);
        return forwarder.to_instance(&forwarded, &record.profile.holder).await;
    }
    let (registry, id) = (&incarnation.registry, &record.profile.node.clone());
    // Its record stays for a while after its socket: nothing is noted that is known not to happen.
    if !incarnation.jobs.is_attached(id) {
        return Err(unknown_node());
    }
    let (action, wanted) = if drained {
        ("drain_node", shape::NodeState::Draining)
    } else {
        ("undrain_node", shape::NodeState::Online)
    };
    let before = to_wire::node_state(record.status.state);
    let entry = audit::entry(&request, action, format!("node:{id}"));
    audit::note_here(state, &entry.changed(before.to_string(), wanted.to_string())).await?;
    // Subscribed before the word is sent, so that its effect is not missed.
    let mut changes = registry.changes();
    if !incarnation.jobs.drain(id, drained) {
        return Err(unknown_node());
    }
    // The socket acts in a moment. A node that has itself asked for no jobs stays as it is.
    let is_so = |record: &Record| (record.status.state == NodeState::Draining) == drained;
    let taken_up = async {
        while registry.get(id).is_some_and(|record| !is_so(&record))
            && !matches!(changes.recv().await, Err(RecvError::Closed))
        {}
    };
    // The answer shows the node as it is by then.
    let begun = Instant::now();
    let _ = tokio::time::timeout(DRAIN_SEEN_MAX, taken_up).await;
    let record = registry.get(id).unwrap_or(record);
    if is_so(&record) {
        // After this answer every instance that answers shows the same.
        let path = format!("/v1/nodes/{id}");
        let shows = |body: &[u8]| {
            let shown = serde_json::from_slice::<shape::Node>(body);
            shown.is_ok_and(|node| (node.state == shape::NodeState::Draining) == drained)
        };
        forwarder.until_all_show(&request, &path, shows, begun + DRAIN_SEEN_MAX).await;
    }
    let principal = Principal::of(&request);
    Ok(HttpResponse::Ok().json(shown(&record, &registry.pools(), registry, principal.sees())))
}

/// Explains which node would be chosen
///
/// The answer names the node that a job with these requirements would get now, and how many nodes were
/// rejected for which reason. No slot is reserved.
#[utoipa::path(
    post, path = "/v1/nodes/select", tag = "nodes", operation_id = "select_node",
    request_body = shape::SelectRequest,
    responses((status = 200, description = "The node that would be chosen, and why", body = shape::SelectAnswer)),
)]
pub async fn select(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let asked: shape::SelectRequest = extract::body(&request, payload, state.body_limits()).await?;
    let needs = from_wire::requirements(asked.pool.as_deref(), asked.route.as_ref(), &asked.requires)?;
    let registry = state.incarnation().registry.clone();
    let began = Instant::now();
    let chosen = registry.select(&Wanted::new(&needs), &mut rand::rng());
    let took = began.elapsed();
    drop(chosen);
    let explanation = registry.explain(&Wanted::new(&needs), &mut rand::rng());
    Ok(HttpResponse::Ok().json(to_wire::selection(&explanation, took)))
}

/// Shows the pools
///
/// The answer comes from the ledger, and every instance follows it within a second. Without configured pools all nodes
/// are in the pool `default`. A token with patterns for pools gets these pools alone.
#[utoipa::path(
    get, path = "/v1/config/pools", tag = "nodes", operation_id = "show_pools",
    responses((status = 200, description = "The pools", body = shape::PoolsSetting)),
)]
pub async fn pools(request: HttpRequest, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let pools = configured(&state).await?;
    let pauses = state.read(state.ledger.pool_pauses()).await?;
    let mut shown = to_wire::pools(&pools, &pauses);
    let principal = Principal::of(&request);
    let sees = principal.sees();
    shown.pools.retain(|pool| sees.pools.have(Some(pool.name.as_str())));
    shown.paused.retain(|pause| sees.pools.have(Some(pause.pool.as_str())));
    Ok(HttpResponse::Ok().json(shown))
}

/// Changes the pools
///
/// The new pools replace all others. A token with patterns is refused (`forbidden`). The request names the version that it
/// replaces; if that is not the newest, the answer is `conflict`. After `ledger_unavailable` the change may have been made, or
/// be made yet: `conflict` for the same request can then mean that it was, which the pools show.
#[utoipa::path(
    put, path = "/v1/config/pools", tag = "nodes", operation_id = "change_pools",
    request_body = shape::PoolsRequest,
    responses((status = 200, description = "The pools in force, with their new version", body = shape::PoolsSetting)),
)]
pub async fn replace_pools(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    visibility::of_all(Principal::of(&request).sees())?;
    Query::read(&request, &[])?;
    let asked: shape::PoolsRequest = extract::body(&request, payload, state.body_limits()).await?;
    // The token may see less since the head came.
    visibility::of_all(Principal::of(&request).sees())?;
    let list = asked.pools.iter().map(from_wire::pool).collect::<Result<Vec<_>, _>>()?;
    let pools = Pools::new(asked.version + 1, list)?;
    let by = audit::entry(&request, "set_pools", "config:pools");
    if !state.write(state.ledger.replace_pools(asked.version, pools.to_json(), &by)).await? {
        let detail = format!("version {} is not the newest; read the pools again", asked.version);
        return Err(Refusal::new(Code::Conflict, detail));
    }
    state.incarnation().registry.adopt_pools(pools.clone());
    state.call(cluster::tell(&state.bus)).await;
    Ok(HttpResponse::Ok().json(to_wire::pools(&pools, &state.incarnation().registry.pauses())))
}

/// Pauses a pool
///
/// From the answer on this instance dispatches no job to nodes in this pool, and within a second no other instance does.
/// Jobs wait; those that are dispatched already run on. A node that is in another pool too gets the jobs of that one. The
/// pause outlasts restarts. It ends when somebody resumes the pool, or after `for_ms`. The pause of a paused pool replaces
/// the earlier one.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/pause", tag = "nodes", operation_id = "pause_pool",
    params(("pool" = String, Path, description = "The pool's name")),
    request_body = shape::PauseRequest,
    responses((status = 200, description = "The pause", body = shape::PoolPause)),
)]
pub async fn pause_pool(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    let asked: shape::PauseRequest = extract::body(&request, payload, state.body_limits()).await?;
    let pool = PoolName::parse(extract::segment(&request, "pool"))?;
    if !is_pool(&state, &pool).await? {
        return Err(unknown_pool());
    }
    let entry = audit::entry(&request, "pause_pool", format!("pool:{pool}"));
    let by = AuditEntry { reason: Some(asked.reason.as_str().into()), ..entry };
    let pause = state.write(state.ledger.pause_pool(&pool, &asked.reason, asked.for_ms, &by)).await?;
    pauses_changed(&state).await.map_err(of_write)?;
    Ok(HttpResponse::Ok().json(to_wire::pool_pause(&pause)))
}

/// Resumes a pool
///
/// Jobs are dispatched to the pool again. A pool that is not paused stays as it is.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/resume", tag = "nodes", operation_id = "resume_pool",
    params(("pool" = String, Path, description = "The pool's name")),
    responses((status = 200, description = "The pools, and those that are still paused", body = shape::PoolsSetting)),
)]
pub async fn resume_pool(request: HttpRequest, payload: web::Payload, state: Shared) -> Answer {
    Query::read(&request, &[])?;
    extract::no_fields(&request, payload, state.body_limits()).await?;
    let pool = PoolName::parse(extract::segment(&request, "pool"))?;
    let is_paused = state.read(state.ledger.pool_pauses()).await?.iter().any(|pause| pause.pool == pool);
    // The pause of a pool that is configured no more can be ended too.
    if !is_paused && !is_pool(&state, &pool).await? {
        return Err(unknown_pool());
    }
    let by = audit::entry(&request, "resume_pool", format!("pool:{pool}"));
    state.write(state.ledger.resume_pool(&pool, &by)).await?;
    pauses_changed(&state).await.map_err(of_write)?;
    pools(request, state).await.map_err(of_write)
}

/// Follows the pauses at once, here and on the other instances.
async fn pauses_changed(state: &State) -> Result<(), Refusal> {
    let registry = &state.incarnation().registry;
    loop {
        let known = registry.pauses();
        // Those that were read while others became known are read again: they may be older.
        if registry.adopt_pauses(&known, state.read(state.ledger.pool_pauses()).await?) {
            break;
        }
    }
    state.call(cluster::tell(&state.bus)).await;
    Ok(())
}

/// The pools, as the ledger has them.
async fn configured(state: &State) -> Result<Pools, Refusal> {
    let (version, value) = state.read(state.ledger.pools()).await?;
    Pools::from_json(version, &value).map_err(|error| {
        tracing::error!(%error, "the ledger has pools that cannot be read");
        Refusal::internal()
    })
}

/// Whether nodes can be in a pool of this name.
async fn is_pool(state: &State, pool: &PoolName) -> Result<bool, Refusal> {
    Ok(configured(state).await?.has(pool))
}

fn unknown_pool() -> Refusal {
    Refusal::new(Code::NotFound, "no pool of this name is configured")
}

/// Whose a node's id is, as far as this instance knows.
///
/// # Errors
/// `forbidden` for a token that may connect no node under this id.
pub async fn claim(state: &State, principal: &Principal, id: &NodeId) -> Result<shape::NodeClaim, Refusal> {
    principal.require(Scope::Node)?;
    if !principal.sees().nodes.have(Some(id.as_str())) {
        return Err(Refusal::new(Code::Forbidden, format!("this token may not connect the node {id}")));
    }
    let status = match owner_of(state, id).await {
        None => shape::ClaimStatus::Free,
        Some(owner) if *owner == *principal.name() => shape::ClaimStatus::Own,
        Some(_) => shape::ClaimStatus::Anothers,
    };
    Ok(shape::NodeClaim { id: id.to_string(), status })
}

/// Whose token connected a node that is known here, or whose record is on the bus.
async fn owner_of(state: &State, id: &NodeId) -> Option<Arc<str>> {
    if let Some(record) = state.incarnation().registry.get(id) {
        return Some(Arc::clone(&record.profile.principal));
    }
    // A connection that has just begun, here or at an instance of the same bus. While that is away, nobody knows.
    let kept = state.call(state.bus.show_nodes(slice::from_ref(id))).await.unwrap_or_default();
    let record = Record::from_kept(id.clone(), kept.get(id).filter(|kept| kept.is_online)?)?;
    Some(Arc::clone(&record.profile.principal))
}

fn node(request: &HttpRequest, state: &State) -> Result<Record, Refusal> {
    let id = NodeId::parse(extract::segment(request, "id"))?;
    state.incarnation().registry.get(&id).ok_or_else(unknown_node)
}

/// A node with those of its pools that the caller sees.
fn shown(record: &Record, pools: &Pools, registry: &Registry, sees: &Sees) -> shape::Node {
    let heard_at = registry.heard_at(&record.profile.node);
    let mut shown = to_wire::node(record, pools, heard_at.map(|heard_at| heard_at.elapsed()));
    shown.pools.retain(|pool| sees.pools.have(Some(pool)));
    shown
}

fn unknown_node() -> Refusal {
    Refusal::new(Code::NotFound, "no node of this id is connected")
}
