//! The server: the routes with their handlers, and the handle that drains and stops it.

use std::fmt;
use std::future::ready;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_http::{HttpService, Request, Response};
use actix_rt::net::TcpStream;
use actix_server::{GracefulShutdownSignal, ServerBuilder};
use actix_service::{IntoServiceFactory as _, ServiceFactoryExt as _, fn_service, map_config};
use actix_tls::accept::max_concurrent_tls_connect;
use actix_tls::accept::rustls_0_23::{Acceptor, TlsStream};
use actix_web::body::BoxBody;
use actix_web::dev::{AppConfig, ServerHandle, ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::KeepAlive;
use actix_web::middleware::from_fn;
use actix_web::{App, Error, Resource, Scope, guard, web};
use tokio::runtime;

use crate::auth::Token;
use crate::connection::Paced;
use crate::extract;
use crate::forwarder::Forwarder;
use crate::gate::{self, Listener, Tally};
use crate::limits::{
    CLIENT_DISCONNECT_MAX, CLOSE_SECONDS_MAX, CUT_OFF_MAX, LIBRARY_CLOCK_STEP, TLS_HANDSHAKE_MAX,
};
use crate::openapi;
use crate::parser_refusals;
use crate::request_id::RequestId;
use crate::routes::Route;
use crate::services::{Awaited, Early, Incarnation, Services};
use crate::settings::Settings;
use crate::state::State;
use crate::tls::Tls;
use crate::{
    audit, bulk, dashboard, events, ids, instances, jobs, leases, modes, nodes, ops, plans, sessions,
    signers, stats, whoami, worker,
};

/// A server that is bound and not yet running. It handles no signals: its caller stops it.
pub struct Server {
    server: actix_web::dev::Server,
    handle: Handle,
}

impl Server {
    /// Takes the listener. Until [`Handle::open`], requests other than probes wait; see also
    /// [`Handle::refuse_without`]. Each thread that serves calls `on_thread` at its start. Call this inside the
    /// runtime that runs the calls to the ledger and that outlives the server.
    ///
    /// # Errors
    /// The listener cannot be used, or no thread can be started.
    pub fn bind(
        listener: TcpListener,
        early: Early,
        settings: Settings,
        on_thread: impl Fn() + Clone + Send + 'static,
    ) -> io::Result<Self> {
        let workers = settings.workers.max(1);
        let per_worker = settings.connections_max.div_ceil(workers).max(1);
        let (keep_alive, head_timeout) = (settings.keep_alive, settings.client_request_timeout);
        let tls = settings.tls.as_ref().map(Tls::config);
        let runtime = runtime::Handle::try_current().map_err(io::Error::other)?;
        let state = Arc::new(State::new(early, settings, runtime));
        let forwarder = Arc::new(Forwarder::new(Arc::clone(&state)));
        let builder = ServerBuilder::new()
            .workers(workers)
            .max_concurrent_connections(per_worker)
            .shutdown_timeout(CLOSE_SECONDS_MAX)
            .disable_signals();
        let connections = Connections {
            address: listener.local_addr()?,
            keep_alive,
            head_timeout,
            body_bytes_max: state.body_bytes_max(),
            stopping: builder.graceful_shutdown_signal(),
        };
        let start = move || {
            on_thread();
            bulk::start(&forwarder);
            app(&forwarder)
        };
        // The library accepts no connection on a thread with 256 of them in their handshakes: so few that say nothing would keep all
        // others out. The number of connections bounds them.
        max_concurrent_tls_connect(usize::MAX);
        let builder = match tls {
            None => builder.listen("http", listener, move || connections.clone().over_tcp(start()))?,
            Some(tls) => builder.listen("https", listener, move || {
                let mut acceptor = Acceptor::new(tls.clone());
                acceptor.set_handshake_timeout(TLS_HANDSHAKE_MAX);
                let accept =
                    acceptor.map_err(drop).map_init_err(drop).map(move |connection: TlsStream<TcpStream>| {
                        let peer = prepare(connection.get_ref().0);
                        (Paced::new(connection, head_timeout), peer)
                    });
                accept.and_then(connections.clone().over_any(start()))
            })?,
        };
        let server = builder.run();
        let handle = Handle { state, server: server.handle() };
        Ok(Self { server, handle })
    }

    /// The handle that drains and stops it.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// The server failed.
    pub async fn run(self) -> io::Result<()> {
        self.server.await
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// Drains and stops the server. Call [`Handle::drain`], await [`Handle::idle`], then [`Handle::stop`].
#[derive(Clone)]
pub struct Handle {
    state: Arc<State>,
    server: ServerHandle,
}

impl Handle {
    /// What all threads share.
    pub(crate) const fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// The start waits for this now, which refusals say.
    pub fn awaits(&self, awaited: Awaited) {
        self.state.awaits(awaited);
    }

    /// From now on, and until [`Self::open`], the paths that need no ledger are served, and the others are refused as
    /// `ledger_unavailable`, also where the start waits for the bus: the callers are to try again.
    pub fn refuse_without(&self, awaited: Awaited) {
        self.state.refuse_without(awaited);
    }

    /// From now on all paths are served. Call it once.
    pub fn open(&self, services: Services) {
        self.state.open(services);
    }

    /// From now on `/readyz` says 503, as `draining`. Everything else is served as before, until [`Self::drain`].
    pub fn stop_soon(&self) {
        self.state.traffic.stop_soon();
    }

    /// From now on new requests for the API are refused as `draining`, `/readyz` says 503, and every
    /// answer closes its connection. Requests in flight go on.
    pub fn drain(&self) {
        self.state.traffic.drain();
    }

    /// From now on it serves as another incarnation.
    pub fn reincarnate(&self, incarnation: Incarnation) {
        self.state.reincarnate(incarnation);
    }

    /// From now on every request is refused as `ledger_went_back`, with these words; or not any more.
    pub fn set_went_back(&self, why: Option<String>) {
        self.state.set_went_back(why);
    }

    /// From now on only callers with one of these tokens are served. Call it only where there were tokens before.
    pub fn replace_tokens(&self, tokens: Vec<Token>) {
        self.state.settings.auth.replace(tokens);
    }

    /// Shows in the metrics what `/readyz` says, until [`Self::drain`]. Run it once, within the runtime that outlives the
    /// server.
    pub async fn show_checks(self) {
        ops::show_checks(self.state).await;
    }

    /// Resolves when no request is in flight.
    pub async fn idle(&self) {
        self.state.traffic.idle().await;
    }

    /// Requests in flight now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.state.traffic.in_flight()
    }

    #[cfg(test)]
    pub(crate) fn in_use(&self, kind: crate::shares::Kind) -> usize {
        self.state.shares.in_use(kind)
    }

    /// Stops accepting connections and closes them. Answers under way get a second to leave.
    pub async fn stop(&self) {
        self.server.stop(true).await;
    }

    /// Stops accepting connections and closes them, whatever is under way. After this no request is in flight, unless its thread
    /// is held up for more than 100 ms. What a request has begun to write may still be written, and is answered to nobody.
    pub async fn stop_at_once(&self) {
        self.cut_off(CUT_OFF_MAX).await;
    }

    /// As [`Self::stop_at_once`], but waits for the requests for at most `wait_max`.
    pub(crate) async fn cut_off(&self, wait_max: Duration) {
        self.server.stop(false).await;
        // That does not wait for the threads, whose end is the requests' end.
        let _ = tokio::time::timeout(wait_max, self.idle()).await;
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

/// The connections of one listener: they are read at the pace of their requests, and turn the parser's refusals into problems.
#[derive(Clone)]
pub struct Connections {
    /// The listener's.
    pub address: SocketAddr,
    /// How long an idle one is kept.
    pub keep_alive: Duration,
    /// How long a client may take for a request's head.
    pub head_timeout: Duration,
    /// The longest body that any path takes.
    pub body_bytes_max: usize,
    /// Says that the server stops.
    pub stopping: GracefulShutdownSignal,
}

impl Connections {
    /// Serves the app on connections without TLS.
    pub fn over_tcp(
        self,
        app: App<impl Routing>,
    ) -> impl ServiceFactory<TcpStream, Config = (), Response = (), Error = (), InitError = ()> {
        let head_timeout = self.head_timeout;
        let accept = fn_service(move |connection: TcpStream| {
            let peer = prepare(&connection);
            ready(Ok::<_, ()>((Paced::new(connection, head_timeout), peer)))
        });
        accept.and_then(self.over_any(app))
    }

    /// Serves the app on connections of any kind, as `actix_web::HttpServer` does it.
    fn over_any(
        self,
        app: App<impl Routing>,
    ) -> impl ServiceFactory<(Paced, Option<SocketAddr>), Config = (), Response = (), Error = (), InitError = ()>
    {
        let Self { address, keep_alive, head_timeout, body_bytes_max, stopping } = self;
        let app = app.into_factory().map_err(|error: Error| error.error_response());
        HttpService::build()
            .graceful_shutdown_signal(move || {
                let stopping = stopping.clone();
                async move { stopping.notified().await }
            })
            .keep_alive(KeepAlive::Timeout(keep_alive))
            .client_request_timeout(head_timeout + LIBRARY_CLOCK_STEP)
            .client_disconnect_timeout(CLIENT_DISCONNECT_MAX)
            // A caller that closes its connection waits for no answer: its request ends, and its place is free. What the request
            // has begun to write goes on without it.
            .h1_allow_half_closed(false)
            .local_addr(address)
            .on_connect_ext(|connection: &Paced, data| {
                data.insert(connection.requests());
            })
            .expect(fn_service(move |request: Request| ready(let_continue(request, body_bytes_max))))
            .h1(map_config(app, |()| AppConfig::default()))
            .map_err(drop)
            .map_init_err(drop)
    }
}

/// What serves the requests of an app, made once for each thread.
pub trait Routing:
    ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<BoxBody>,
        Error = Error,
        InitError = (),
    > + 'static
{
}

impl<T> Routing for T where
    T: ServiceFactory<
            ServiceRequest,
            Config = (),
            Response = ServiceResponse<BoxBody>,
            Error = Error,
            InitError = (),
        > + 'static
{
}

/// Prepares a new connection; whose it is.
fn prepare(connection: &TcpStream) -> Option<SocketAddr> {
    // A worker socket sends several small messages before the node answers.
    let _ = connection.set_nodelay(true);
    connection.peer_addr().ok()
}

/// Lets a client send the body that it has announced (`Expect: 100-continue`).
///
/// # Errors
/// The refusal of a body that is too long for every path. `gate` refuses what is wrong with any other request, after the client
/// was told to go on: the library has no later place for that.
fn let_continue(request: Request, bytes_max: usize) -> Result<Request, Response<BoxBody>> {
    let headers = request.head().headers();
    if extract::declared_bytes(headers).is_none_or(|bytes| bytes <= bytes_max as u64) {
        return Ok(request);
    }
    let id = RequestId::of(headers);
    let refusal = extract::too_large(bytes_max);
    parser_refusals::count_refused(gate::method_label(request.method()), refusal.code().status());
    tracing::debug!(request_id = %id, %refusal, "a request is refused before its body");
    Err(refusal.respond(&id).into())
}

/// The routes with their handlers, as one thread serves them.
pub fn app(forwarder: &Arc<Forwarder>) -> App<impl Routing + use<>> {
    let tally = Rc::new(Tally::default());
    let state = forwarder.state();
    let passing = Arc::clone(state);
    App::new()
        .app_data(web::Data::from(Arc::clone(state)))
        .app_data(web::Data::from(Arc::clone(forwarder)))
        .app_data(extract::LetInAgain(gate::let_in_again))
        .wrap(from_fn(move |request, next| {
            gate::pass(Arc::clone(&passing), Rc::clone(&tally), Listener::Main, request, next)
        }))
        .service(at(Route::Health).route(get().to(ops::healthz)))
        .service(at(Route::Ready).route(get().to(ops::readyz)))
        .service(below("/v1/ids", |scope, at| {
            scope
                .service(at(Route::Snowflakes).route(web::get().to(ids::snowflakes)))
                .service(at(Route::Uuids).route(web::get().to(ids::uuids)))
                .service(at(Route::Segments).route(get().to(ids::list)))
                .service(
                    at(Route::Segment)
                        .route(web::get().to(ids::segment))
                        .route(web::put().to(ids::change_segment)),
                )
                .service(
                    at(Route::Sequence)
                        .route(web::get().to(ids::sequence))
                        .route(web::put().to(ids::change_sequence)),
                )
                .service(at(Route::Snowflake).route(get().to(ids::decode)))
        }))
        .service(below("/v1/signers", |scope, at| {
            scope
                .service(
                    at(Route::Nonces).route(web::post().to(signers::grant)).route(get().to(signers::nonces)),
                )
                .service(at(Route::Settlements).route(web::post().to(signers::settle)))
                .service(at(Route::Consume).route(web::post().to(signers::consume)))
                .service(at(Route::Release).route(web::post().to(signers::release)))
                .service(at(Route::Resolve).route(web::post().to(signers::resolve)))
                .service(at(Route::Signer).route(get().to(signers::show)))
                .service(at(Route::Policy).route(web::put().to(signers::set_policy)))
                .service(at(Route::Confirm).route(web::post().to(signers::confirm)))
                .service(at(Route::Signers).route(get().to(signers::list)))
        }))
        .service(below("/v1/jobs", |scope, at| {
            scope
                .service(at(Route::JobsBatch).route(web::post().to(jobs::batch::submit_batch)))
                .service(at(Route::JobsRetry).route(web::post().to(jobs::retries::retry_many)))
                .service(at(Route::Jobs).route(web::post().to(jobs::submit)).route(get().to(jobs::list)))
                .service(at(Route::Job).route(get().to(jobs::show)).route(web::delete().to(jobs::delete)))
                .service(at(Route::JobCancel).route(web::post().to(jobs::cancel)))
                .service(at(Route::JobDismiss).route(web::post().to(jobs::dismiss)))
                .service(at(Route::JobRetry).route(web::post().to(jobs::retries::retry)))
                .service(at(Route::JobEvents).route(web::get().to(events::of_job)))
        }))
        .service(below("/v1/bulk", |scope, at| {
            scope
                .service(at(Route::BulkCancel).route(web::post().to(bulk::cancel)))
                .service(at(Route::Bulk).route(get().to(bulk::show)))
                .service(at(Route::Bulks).route(web::post().to(bulk::begin)).route(get().to(bulk::list)))
        }))
        .service(below("/v1/sessions", |scope, at| {
            scope
                .service(at(Route::SessionSocket).route(web::get().to(sessions::connect)))
                .service(
                    at(Route::Session)
                        .route(get().to(sessions::show))
                        .route(web::delete().to(sessions::close)),
                )
                .service(
                    at(Route::Sessions).route(web::post().to(sessions::open)).route(get().to(sessions::list)),
                )
        }))
        .service(below("/v1/plans", |scope, at| {
            scope
                .service(at(Route::PlanStart).route(web::post().to(plans::start)))
                .service(at(Route::PlanPause).route(web::post().to(plans::pause)))
                .service(at(Route::PlanResume).route(web::post().to(plans::resume)))
                .service(at(Route::PlanCancel).route(web::post().to(plans::cancel)))
                .service(at(Route::PlanTasks).route(get().to(plans::tasks)))
                .service(at(Route::PlanEvents).route(web::get().to(plans::events::of_plan)))
                .service(at(Route::Plan).route(get().to(plans::show)))
                .service(at(Route::Plans).route(web::post().to(plans::create)).route(get().to(plans::list)))
        }))
        .service(below("/v1/tasks", |scope, at| {
            scope
                .service(at(Route::StageResolve).route(web::post().to(plans::tasks::resolve)))
                .service(at(Route::TaskPause).route(web::post().to(plans::tasks::pause)))
                .service(at(Route::TaskResume).route(web::post().to(plans::tasks::resume)))
                .service(at(Route::TaskCancel).route(web::post().to(plans::tasks::cancel)))
                .service(at(Route::TaskRetry).route(web::post().to(plans::retries::of_task)))
                .service(at(Route::TaskCheckpoints).route(get().to(plans::tasks::checkpoints)))
                .service(at(Route::TaskEvents).route(web::get().to(plans::events::of_task)))
                .service(at(Route::Task).route(get().to(plans::tasks::show)))
        }))
        .service(below("/v1/tenants", |scope, at| {
            scope
                .service(at(Route::TenantRetry).route(web::post().to(plans::retries::of_tenant)))
                .service(at(Route::TenantUnlock).route(web::post().to(plans::tenants::unlock)))
                .service(at(Route::TenantTasks).route(get().to(plans::tenants::history)))
                .service(at(Route::Tenant).route(get().to(plans::tenants::show)))
        }))
        .service(below("/v1/nodes", |scope, at| {
            scope
                .service(at(Route::NodeSocket).route(web::get().to(worker::connect)))
                .service(at(Route::NodeSelect).route(web::post().to(nodes::select)))
                .service(at(Route::Nodes).route(get().to(nodes::list)))
                .service(at(Route::Node).route(get().to(nodes::show)))
                .service(at(Route::NodeDrain).route(web::post().to(nodes::drain)))
                .service(at(Route::NodeUndrain).route(web::post().to(nodes::undrain)))
        }))
        .service(below("/v1/pools", |scope, at| {
            scope
                .service(at(Route::PoolPause).route(web::post().to(nodes::pause_pool)))
                .service(at(Route::PoolResume).route(web::post().to(nodes::resume_pool)))
        }))
        .service(below("/v1/leases", |scope, at| {
            scope
                .service(at(Route::Leases).route(get().to(leases::list)))
                .service(at(Route::Lease).route(get().to(leases::show)))
        }))
        .service(below("/v1/cluster", |scope, at| {
            scope
                .service(at(Route::Cluster).route(get().to(instances::show)))
                .service(at(Route::Owner).route(get().to(instances::owner)))
        }))
        .service(below("/api", |scope, at| {
            scope
                .service(at(Route::LeafSegment).route(web::get().to(ids::leaf_segment)))
                .service(at(Route::LeafSnowflake).route(web::get().to(ids::leaf_snowflake)))
        }))
        .service(at(Route::Mode).route(get().to(modes::show)).route(web::put().to(modes::replace)))
        .service(at(Route::Pools).route(get().to(nodes::pools)).route(web::put().to(nodes::replace_pools)))
        .service(at(Route::Events).route(web::get().to(events::of_all)))
        .service(at(Route::Stats).route(get().to(stats::show)))
        .service(at(Route::Audit).route(get().to(audit::list)))
        .service(at(Route::Metrics).route(get().to(ops::metrics)))
        .service(at(Route::Document).route(get().to(openapi::show)))
        .service(at(Route::Whoami).route(get().to(whoami::show)))
        .service(at(Route::Page).route(get().to(dashboard::page)))
        .service(at(Route::Asset).route(get().to(dashboard::asset)))
        .default_service(web::to(ops::not_found))
}

/// The resource of a route; its other methods are refused.
pub fn at(route: Route) -> Resource {
    resource(route.pattern())
}

/// The paths that begin with `prefix`, as one scope: the router skips them all after one comparison.
fn below(prefix: &'static str, hang: impl FnOnce(Scope, &dyn Fn(Route) -> Resource) -> Scope) -> Scope {
    hang(web::scope(prefix), &|route| resource(route.pattern().strip_prefix(prefix).expect("it begins so")))
}

fn resource(pattern: &str) -> Resource {
    web::resource(pattern).default_service(web::to(ops::method_not_allowed))
}

/// A route for GET and HEAD. The body of the answer to HEAD is dropped.
pub fn get() -> actix_web::Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}
