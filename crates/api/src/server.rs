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
use actix_web::http::{KeepAlive, Method};
use actix_web::middleware::from_fn;
use actix_web::{App, Error, FromRequest, Handler, Resource, Responder, guard, web};
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
        // The library accepts no connection on a thread with 256 of them in their handshakes: so few that say nothing would keep
        // all others out. The number of connections bounds them.
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

/// The beginnings of paths that are scopes of the router, in the order in which it tries them: it passes over all paths in one
/// after one comparison. The probes come before them, and paths that are in no scope behind.
const SCOPES: [&str; 13] = [
    "/v1/ids",
    "/v1/signers",
    "/v1/jobs",
    "/v1/bulk",
    "/v1/sessions",
    "/v1/plans",
    "/v1/tasks",
    "/v1/tenants",
    "/v1/nodes",
    "/v1/pools",
    "/v1/leases",
    "/v1/cluster",
    "/api",
];

/// The routes with their handlers, as one thread serves them.
pub fn app(forwarder: &Arc<Forwarder>) -> App<impl Routing + use<>> {
    let tally = Rc::new(Tally::default());
    let state = forwarder.state();
    let passing = Arc::clone(state);
    let mut app = App::new()
        .app_data(web::Data::from(Arc::clone(state)))
        .app_data(web::Data::from(Arc::clone(forwarder)))
        .app_data(extract::LetInAgain(gate::let_in_again))
        .wrap(from_fn(move |request, next| {
            gate::pass(Arc::clone(&passing), Rc::clone(&tally), Listener::Main, request, next)
        }));
    for route in Route::PROBES {
        app = app.service(at(route));
    }
    for prefix in SCOPES {
        let inside = |route: &Route| within(*route, prefix).map(|rest| resource(*route, rest));
        let resources = Route::ALL.iter().filter_map(inside);
        app = app.service(resources.fold(web::scope(prefix), |scope, resource| scope.service(resource)));
    }
    let is_left = |route: &&Route| {
        !Route::PROBES.contains(route) && SCOPES.iter().all(|prefix| within(**route, prefix).is_none())
    };
    for route in Route::ALL.iter().filter(is_left) {
        app = app.service(at(*route));
    }
    app.default_service(web::to(ops::not_found))
}

/// The rest of a route's path behind the beginning that is a scope; `None` if the path is not in that scope.
fn within(route: Route, prefix: &str) -> Option<&'static str> {
    let rest = route.pattern().strip_prefix(prefix)?;
    (rest.is_empty() || rest.starts_with('/')).then_some(rest)
}

/// The resource of a route, with its handlers. Its other methods are refused.
pub fn at(route: Route) -> Resource {
    resource(route, route.pattern())
}

/// The same, at this path below a scope.
fn resource(route: Route, path: &str) -> Resource {
    handlers(route, Served::new(route, path)).complete()
}

/// Adds the handlers of a route.
fn handlers(route: Route, at: Served) -> Served {
    match route {
        Route::Health => at.get(ops::healthz),
        Route::Ready => at.get(ops::readyz),
        Route::Nonces => at.post(signers::grant).get(signers::nonces),
        Route::Settlements => at.post(signers::settle),
        Route::Consume => at.post(signers::consume),
        Route::Release => at.post(signers::release),
        Route::Resolve => at.post(signers::resolve),
        Route::Signer => at.get(signers::show),
        Route::Policy => at.put(signers::set_policy),
        Route::Confirm => at.post(signers::confirm),
        Route::Signers => at.get(signers::list),
        Route::Leases => at.get(leases::list),
        Route::Lease => at.get(leases::show),
        Route::Cluster => at.get(instances::show),
        Route::Owner => at.get(instances::owner),
        Route::Mode => at.get(modes::show).put(modes::replace),
        Route::JobsBatch => at.post(jobs::batch::submit_batch),
        Route::JobsRetry => at.post(jobs::retries::retry_many),
        Route::Jobs => at.post(jobs::submit).get(jobs::list),
        Route::Job => at.get(jobs::show).delete(jobs::delete),
        Route::JobCancel => at.post(jobs::cancel),
        Route::JobDismiss => at.post(jobs::dismiss),
        Route::JobRetry => at.post(jobs::retries::retry),
        Route::BulkCancel => at.post(bulk::cancel),
        Route::Bulk => at.get(bulk::show),
        Route::Bulks => at.post(bulk::begin).get(bulk::list),
        Route::SessionSocket => at.get(sessions::connect),
        Route::Session => at.get(sessions::show).delete(sessions::close),
        Route::Sessions => at.post(sessions::open).get(sessions::list),
        Route::JobEvents => at.get(events::of_job),
        Route::Events => at.get(events::of_all),
        Route::PlanStart => at.post(plans::start),
        Route::PlanPause => at.post(plans::pause),
        Route::PlanResume => at.post(plans::resume),
        Route::PlanCancel => at.post(plans::cancel),
        Route::PlanTasks => at.get(plans::tasks),
        Route::PlanEvents => at.get(plans::events::of_plan),
        Route::Plan => at.get(plans::show),
        Route::Plans => at.post(plans::create).get(plans::list),
        Route::StageResolve => at.post(plans::tasks::resolve),
        Route::TaskPause => at.post(plans::tasks::pause),
        Route::TaskResume => at.post(plans::tasks::resume),
        Route::TaskCancel => at.post(plans::tasks::cancel),
        Route::TaskRetry => at.post(plans::retries::of_task),
        Route::TaskStages => at.get(plans::tasks::stages),
        Route::TaskCheckpoints => at.get(plans::tasks::checkpoints),
        Route::TaskEvents => at.get(plans::events::of_task),
        Route::Task => at.get(plans::tasks::show),
        Route::TenantRetry => at.post(plans::retries::of_tenant),
        Route::TenantUnlock => at.post(plans::tenants::unlock),
        Route::TenantTasks => at.get(plans::tenants::history),
        Route::Tenant => at.get(plans::tenants::show),
        Route::NodeSocket => at.get(worker::connect),
        Route::NodeSelect => at.post(nodes::select),
        Route::Nodes => at.get(nodes::list),
        Route::Node => at.get(nodes::show),
        Route::NodeDrain => at.post(nodes::drain),
        Route::NodeUndrain => at.post(nodes::undrain),
        Route::Pools => at.get(nodes::pools).put(nodes::replace_pools),
        Route::PoolPause => at.post(nodes::pause_pool),
        Route::PoolResume => at.post(nodes::resume_pool),
        Route::Snowflakes => at.get(ids::snowflakes),
        Route::Uuids => at.get(ids::uuids),
        Route::Segments => at.get(ids::list),
        Route::Segment => at.get(ids::segment).put(ids::change_segment),
        Route::Sequences => at.get(ids::list_sequences),
        Route::Sequence => at.get(ids::sequence).put(ids::change_sequence),
        Route::Snowflake => at.get(ids::decode),
        Route::LeafSegment => at.get(ids::leaf_segment),
        Route::LeafSnowflake => at.get(ids::leaf_snowflake),
        Route::Audit => at.get(audit::list),
        Route::Stats => at.get(stats::show),
        Route::Metrics => at.get(ops::metrics),
        Route::Document => at.get(openapi::show),
        Route::Whoami => at.get(whoami::show),
        Route::Page => at.get(dashboard::page),
        Route::Asset => at.get(dashboard::asset),
    }
}

/// A resource that gets the handlers of its route.
struct Served {
    route: Route,
    resource: Resource,
    /// The methods of the route that have no handler yet.
    left: Vec<Method>,
}

impl Served {
    fn new(route: Route, path: &str) -> Self {
        let resource = web::resource(path).default_service(web::to(ops::method_not_allowed));
        let left = route.methods().filter(|method| *method != Method::HEAD).collect();
        Self { route, resource, left }
    }

    /// The handler of GET, and of HEAD where the route takes that. The body of the answer to HEAD is dropped.
    fn get<A: FromRequest + 'static>(self, to: impl Handler<A, Output: Responder + 'static>) -> Self {
        self.on(Method::GET, web::to(to))
    }

    fn post<A: FromRequest + 'static>(self, to: impl Handler<A, Output: Responder + 'static>) -> Self {
        self.on(Method::POST, web::to(to))
    }

    fn put<A: FromRequest + 'static>(self, to: impl Handler<A, Output: Responder + 'static>) -> Self {
        self.on(Method::PUT, web::to(to))
    }

    fn delete<A: FromRequest + 'static>(self, to: impl Handler<A, Output: Responder + 'static>) -> Self {
        self.on(Method::DELETE, web::to(to))
    }

    /// # Panics
    /// The route does not take the method, which the gate would let every token do; or the method has a handler already.
    fn on(mut self, method: Method, handler: actix_web::Route) -> Self {
        let found = self.left.iter().position(|left| *left == method);
        let found =
            found.unwrap_or_else(|| panic!("{:?} takes no {method}, or has a handler of it", self.route));
        self.left.swap_remove(found);
        let with_head = method == Method::GET && self.route.takes(&Method::HEAD);
        let guard = guard::fn_guard(move |request| {
            let asked = &request.head().method;
            *asked == method || (with_head && *asked == Method::HEAD)
        });
        self.resource = self.resource.route(handler.guard(guard));
        self
    }

    /// # Panics
    /// A method of the route has no handler.
    fn complete(self) -> Resource {
        let Self { route, resource, left } = self;
        assert!(left.is_empty(), "{route:?} has no handler of {left:?}");
        resource
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "Events takes no POST")]
    fn a_handler_of_a_method_that_the_table_lacks_stops_the_start() {
        let _ = Served::new(Route::Events, "/").post(ops::not_found);
    }

    #[test]
    #[should_panic(expected = "Job has no handler of [DELETE]")]
    fn a_method_without_a_handler_stops_the_start() {
        let _ = Served::new(Route::Job, "/").get(ops::not_found).complete();
    }
}
