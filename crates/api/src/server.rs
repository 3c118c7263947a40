//! The server: its settings, the routes with their handlers, and the handle by which it is stopped.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use actix_web::body::BoxBody;
use actix_web::dev::{ServerHandle, ServiceFactory, ServiceRequest, ServiceResponse};
use actix_web::http::KeepAlive;
use actix_web::middleware::from_fn;
use actix_web::{App, Error, HttpServer, Resource, Scope, guard, web};
use tokio::runtime;

use crate::auth::Auth;
use crate::gate::{self, Tally};
use crate::limits::{
    BODY_BYTES_MAX_DEFAULT, CLIENT_REQUEST_TIMEOUT_DEFAULT, CLOSE_SECONDS_MAX, CONNECTIONS_MAX_DEFAULT,
    KEEP_ALIVE_DEFAULT, NODE_GRACE_DEFAULT, REQUEST_TIMEOUT_DEFAULT, WORKERS_MAX_DEFAULT,
};
use crate::routes::{self, Route};
use crate::routing::OnMisroute;
use crate::state::State;
use crate::{events, housekeeping, ids, instances, jobs, leases, modes, nodes, sessions, signers, worker};

/// As whom a process serves. It may end while the process goes on, as another one.
pub struct Incarnation {
    /// Who this instance is.
    pub identity: cluster::Identity,
    /// What belongs where, as it sees it.
    pub outlook: cluster::Outlook,
    /// The owners of signers.
    pub signers: actors::signers::Signers,
    /// The lanes of jobs, and the nodes' sockets.
    pub jobs: actors::jobs::Jobs,
    /// The nodes there are.
    pub registry: ::nodes::Registry,
}

/// What the API serves from also before the ledger was reached.
#[derive(Clone)]
pub struct Early {
    /// Snowflakes: by the local file, and then under the worker number of the current incarnation.
    pub snowflakes: ::ids::Snowflakes,
    /// What `/metrics` renders. Whoever made it also runs its upkeep.
    pub metrics: metrics_exporter_prometheus::PrometheusHandle,
}

/// What makes ids out of the ledger, for as long as the process runs.
pub struct Generators {
    /// Segments.
    pub segments: ::ids::Segments,
    /// Sequences.
    pub sequences: ::ids::Sequences,
    /// The key of scrambled forms, where one is configured.
    pub scramble: Option<::ids::Scramble>,
}

/// What the API serves from once the ledger was reached.
pub struct Services {
    /// As whom it serves at first.
    pub incarnation: Incarnation,
    /// The ledger, for what is only read.
    pub ledger: ledger::Handle,
    /// The bus, on which instances are told of changes.
    pub bus: bus::Handle,
    /// What makes ids.
    pub generators: Generators,
    /// Connections to the other instances.
    pub peers: client::Peers,
}

/// Limits and access of the API.
#[derive(Clone)]
pub struct Settings {
    /// Who may use it.
    pub auth: Auth,
    /// What becomes of a request that comes to an instance that does not own its key.
    pub on_misroute: OnMisroute,
    /// Longest request body, in bytes.
    pub body_bytes_max: usize,
    /// Threads that serve HTTP, at least 1.
    pub workers: usize,
    /// Connections open at once, all threads together; more wait to be accepted.
    pub connections_max: usize,
    /// How long an idle connection is kept.
    pub keep_alive: Duration,
    /// How long a client may take to send a request's head, and again its body; 1 s at least.
    pub client_request_timeout: Duration,
    /// How long reading from the ledger may take.
    pub request_timeout: Duration,
    /// How long a node whose socket was closed while it had work may take to connect anew.
    pub node_grace: Duration,
}

impl Settings {
    /// The defaults of [`crate::limits`].
    #[must_use]
    pub fn new(auth: Auth) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            auth,
            on_misroute: OnMisroute::Forward,
            body_bytes_max: BODY_BYTES_MAX_DEFAULT,
            workers: cores.min(WORKERS_MAX_DEFAULT),
            connections_max: CONNECTIONS_MAX_DEFAULT,
            keep_alive: KEEP_ALIVE_DEFAULT,
            client_request_timeout: CLIENT_REQUEST_TIMEOUT_DEFAULT,
            request_timeout: REQUEST_TIMEOUT_DEFAULT,
            node_grace: NODE_GRACE_DEFAULT,
        }
    }
}

/// A server that is bound and not yet running. It knows no signals; whoever runs it stops it.
pub struct Server {
    server: actix_web::dev::Server,
    handle: Handle,
}

impl Server {
    /// Takes the listener. Until [`Handle::open`] it serves what needs no ledger, and refuses the rest as
    /// `ledger_unavailable`. Call it inside the runtime that is to carry the calls to the ledger and that outlives
    /// the server.
    ///
    /// # Errors
    /// The listener cannot be used, or no thread be started.
    pub fn bind(listener: TcpListener, early: Early, settings: Settings) -> io::Result<Self> {
        let workers = settings.workers.max(1);
        let per_worker = settings.connections_max.div_ceil(workers).max(1);
        let keep_alive = KeepAlive::Timeout(settings.keep_alive);
        let client_request_timeout = settings.client_request_timeout;
        let runtime = runtime::Handle::try_current().map_err(io::Error::other)?;
        let state = Arc::new(State::new(early, settings, runtime));
        let shared = Arc::clone(&state);
        let server = HttpServer::new(move || app(&shared))
            .workers(workers)
            .max_connections(per_worker)
            .keep_alive(keep_alive)
            .client_request_timeout(client_request_timeout)
            // A worker socket sends several small messages before the node says anything.
            .tcp_nodelay(true)
            .shutdown_timeout(CLOSE_SECONDS_MAX)
            .disable_signals()
            .listen(listener)?
            .run();
        let handle = Handle { state, server: server.handle() };
        Ok(Self { server, handle })
    }

    /// The handle by which it is drained and stopped.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    /// The server broke down.
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
    /// From now on everything is served. To be called once.
    pub fn open(&self, services: Services) {
        self.state.open(services);
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

    /// Resolves when no request is in flight.
    pub async fn idle(&self) {
        self.state.traffic.idle().await;
    }

    /// Requests in flight now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.state.traffic.in_flight()
    }

    /// Stops accepting and closes, giving answers on their way a second to leave.
    pub async fn stop(&self) {
        self.server.stop(true).await;
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}

/// The routes with their handlers, as one thread serves them.
pub fn app(
    state: &Arc<State>,
) -> App<
    impl ServiceFactory<
        ServiceRequest,
        Config = (),
        Response = ServiceResponse<BoxBody>,
        Error = Error,
        InitError = (),
    > + use<>,
> {
    let tally = Rc::new(Tally::default());
    let passing = Arc::clone(state);
    App::new()
        .app_data(housekeeping::shared(state))
        .wrap(from_fn(move |request, next| {
            gate::pass(Arc::clone(&passing), Rc::clone(&tally), request, next)
        }))
        .service(at(&routes::HEALTH).route(get().to(housekeeping::healthz)))
        .service(at(&routes::READY).route(get().to(housekeeping::readyz)))
        .service(below("/v1/ids", |scope, at| {
            scope
                .service(at(&routes::SNOWFLAKES).route(web::get().to(ids::snowflakes)))
                .service(at(&routes::UUIDS).route(web::get().to(ids::uuids)))
                .service(at(&routes::SEGMENTS).route(get().to(ids::list)))
                .service(
                    at(&routes::SEGMENT)
                        .route(web::get().to(ids::segment))
                        .route(web::put().to(ids::change_segment)),
                )
                .service(
                    at(&routes::SEQUENCE)
                        .route(web::get().to(ids::sequence))
                        .route(web::put().to(ids::change_sequence)),
                )
                .service(at(&routes::SNOWFLAKE).route(get().to(ids::decode)))
        }))
        .service(below("/v1/signers", |scope, at| {
            scope
                .service(
                    at(&routes::NONCES)
                        .route(web::post().to(signers::grant))
                        .route(get().to(signers::nonces)),
                )
                .service(at(&routes::SETTLEMENTS).route(web::post().to(signers::settle)))
                .service(at(&routes::CONSUME).route(web::post().to(signers::consume)))
                .service(at(&routes::RELEASE).route(web::post().to(signers::release)))
                .service(at(&routes::RESOLVE).route(web::post().to(signers::resolve)))
                .service(at(&routes::SIGNER).route(get().to(signers::show)))
                .service(at(&routes::POLICY).route(web::put().to(signers::set_policy)))
                .service(at(&routes::SIGNERS).route(get().to(signers::list)))
        }))
        .service(below("/v1/jobs", |scope, at| {
            scope
                .service(at(&routes::JOBS_BATCH).route(web::post().to(jobs::batch::submit_batch)))
                .service(at(&routes::JOBS_RETRY).route(web::post().to(jobs::retry_many)))
                .service(at(&routes::JOBS).route(web::post().to(jobs::submit)).route(get().to(jobs::list)))
                .service(at(&routes::JOB).route(get().to(jobs::show)))
                .service(at(&routes::JOB_CANCEL).route(web::post().to(jobs::cancel)))
                .service(at(&routes::JOB_RETRY).route(web::post().to(jobs::retry)))
                .service(at(&routes::JOB_EVENTS).route(web::get().to(events::of_job)))
        }))
        .service(below("/v1/sessions", |scope, at| {
            scope
                .service(at(&routes::SESSION_SOCKET).route(web::get().to(sessions::connect)))
                .service(
                    at(&routes::SESSION)
                        .route(get().to(sessions::show))
                        .route(web::delete().to(sessions::close)),
                )
                .service(at(&routes::SESSIONS).route(web::post().to(sessions::open)))
        }))
        .service(below("/v1/nodes", |scope, at| {
            scope
                .service(at(&routes::NODE_SOCKET).route(web::get().to(worker::connect)))
                .service(at(&routes::NODE_SELECT).route(web::post().to(nodes::select)))
                .service(at(&routes::NODES).route(get().to(nodes::list)))
                .service(at(&routes::NODE).route(get().to(nodes::show)))
                .service(at(&routes::NODE_DRAIN).route(web::post().to(nodes::drain)))
                .service(at(&routes::NODE_UNDRAIN).route(web::post().to(nodes::undrain)))
        }))
        .service(below("/v1/leases", |scope, at| {
            scope
                .service(at(&routes::LEASES).route(get().to(leases::list)))
                .service(at(&routes::LEASE).route(get().to(leases::show)))
        }))
        .service(below("/v1/cluster", |scope, at| {
            scope
                .service(at(&routes::CLUSTER).route(get().to(instances::show)))
                .service(at(&routes::OWNER).route(get().to(instances::owner)))
        }))
        .service(below("/api", |scope, at| {
            scope
                .service(at(&routes::LEAF_SEGMENT).route(web::get().to(ids::leaf_segment)))
                .service(at(&routes::LEAF_SNOWFLAKE).route(web::get().to(ids::leaf_snowflake)))
        }))
        .service(at(&routes::MODE).route(get().to(modes::show)).route(web::put().to(modes::replace)))
        .service(at(&routes::POOLS).route(get().to(nodes::pools)).route(web::put().to(nodes::replace_pools)))
        .service(at(&routes::EVENTS).route(web::get().to(events::of_all)))
        .service(at(&routes::METRICS).route(get().to(housekeeping::metrics)))
        .service(at(&routes::DOCUMENT).route(get().to(housekeeping::document)))
        .service(at(&routes::PAGE).route(get().to(housekeeping::page)))
        .default_service(web::to(housekeeping::not_found))
}

fn at(route: &'static Route) -> Resource {
    resource(route.pattern)
}

/// The paths that begin with `prefix`. All others pass them by after one comparison, where each of them would be
/// looked at on its own.
fn below(
    prefix: &'static str,
    hang: impl FnOnce(Scope, &dyn Fn(&'static Route) -> Resource) -> Scope,
) -> Scope {
    hang(web::scope(prefix), &|route| resource(route.pattern.strip_prefix(prefix).expect("it begins so")))
}

fn resource(pattern: &str) -> Resource {
    web::resource(pattern).default_service(web::to(housekeeping::method_not_allowed))
}

/// What answers GET answers HEAD; the body stays behind.
fn get() -> actix_web::Route {
    web::route().guard(guard::Any(guard::Get()).or(guard::Head()))
}
