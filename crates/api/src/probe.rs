//! A server of its own for health and metrics, so that a flood of connections or requests on the main one does not
//! keep the probes out. It has its own port, its own thread and its own connections, takes no share of what callers of the
//! main one share, and serves nothing else.

use std::fmt;
use std::io;
use std::net::TcpListener;
use std::rc::Rc;
use std::sync::Arc;

use actix_server::ServerBuilder;
use actix_web::dev::{ServerHandle, ServiceRequest};
use actix_web::middleware::from_fn;
use actix_web::{App, web};
use wire::Code;

use crate::connection::UnderWay;
use crate::drain_body::Chunked;
use crate::extract;
use crate::gate::{self, Listener, Tally};
use crate::limits::{CLOSE_SECONDS_MAX, PROBE_CONNECTIONS_MAX, PROBE_KEEP_ALIVE, PROBE_REQUEST_TIMEOUT};
use crate::ops;
use crate::refusal::Refusal;
use crate::request_id::RequestId;
use crate::routes::{self, Route};
use crate::server::{Connections, Handle, Routing, at};
use crate::state::State;

/// The only paths.
const SERVED: [Route; 3] = [Route::Health, Route::Ready, Route::Metrics];

/// A running server for health and metrics.
pub struct Probe {
    server: ServerHandle,
}

impl Probe {
    /// Serves on the listener what the main server serves on the same paths, to the same callers, until it is stopped. Call
    /// this within a Tokio runtime.
    ///
    /// # Errors
    /// The listener cannot be used, or no thread can be started.
    pub fn start(listener: TcpListener, api: &Handle) -> io::Result<Self> {
        let state = Arc::clone(api.state());
        let builder = ServerBuilder::new()
            .workers(1)
            .max_concurrent_connections(PROBE_CONNECTIONS_MAX)
            .shutdown_timeout(CLOSE_SECONDS_MAX)
            .disable_signals();
        let connections = Connections {
            address: listener.local_addr()?,
            keep_alive: PROBE_KEEP_ALIVE,
            head_timeout: PROBE_REQUEST_TIMEOUT,
            body_bytes_max: state.body_bytes_max(),
            stopping: builder.graceful_shutdown_signal(),
        };
        let serve = move || connections.clone().over_tcp(app(&state));
        let server = builder.listen("probes", listener, serve)?.run();
        let handle = server.handle();
        tokio::spawn(async move {
            if let Err(error) = server.await {
                tracing::error!(%error, "the server for probes broke down; the main one serves them still");
            }
        });
        Ok(Self { server: handle })
    }

    /// Stops accepting connections and closes them.
    pub async fn stop(&self) {
        self.server.stop(true).await;
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Probe").finish_non_exhaustive()
    }
}

fn app(state: &Arc<State>) -> App<impl Routing + use<>> {
    let tally = Rc::new(Tally::default());
    let passing = Arc::clone(state);
    let data = web::Data::from(Arc::clone(state));
    let app = App::new().app_data(data).wrap(from_fn(move |mut request: ServiceRequest, next| {
        let (state, tally) = (Arc::clone(&passing), Rc::clone(&tally));
        async move {
            let route = routes::find(request.match_info().as_str());
            if !route.is_some_and(|route| SERVED.contains(&route)) {
                // What `gate` does for the others: the head is complete.
                let under_way = UnderWay::begin(&request, extract::declared_bytes(request.headers()));
                let chunked = Chunked::of(&mut request, under_way.as_ref());
                let what = "there is no such path here: this listener serves /healthz, /readyz and /metrics";
                let id = RequestId::of(request.headers());
                // No offer of another protocol keeps the connection open, which `gate` sees to for the others.
                let refusal = Refusal::new(Code::NotFound, what).closing();
                let answer = request.into_response(refusal.respond(&id));
                return Ok(match chunked {
                    Some(chunked) => chunked.keep_with(answer),
                    None => answer,
                });
            }
            gate::pass(state, tally, Listener::Probes, request, next).await
        }
    }));
    let app = SERVED.into_iter().fold(app, |app, route| app.service(at(route)));
    app.default_service(web::to(ops::not_found))
}
