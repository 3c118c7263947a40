//! The API over a real SQLite ledger, in this process: what the black-box tests cannot force.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use actix_web::dev::Payload;
use actix_web::http::StatusCode;
use actix_web::http::header::AUTHORIZATION;
use actix_web::test::{TestRequest, call_service, init_service, read_body_json};
use actix_web::{FromRequest, HttpRequest, HttpResponse, web};
use domain::plan::{PlanSpec, PlanState, TaskSpec, TaskState};
use domain::{InstanceId, PlanId, TaskId, Timestamp};
use ids::snowflake::{Keeping, Options};
use ids::{Segments, Sequences, Snowflakes, SystemClock};
use ledger::{Author, NewPlan};
use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::Notify;

mod batches;
mod bounds;
mod bulks;
mod connections;
mod cursors;
mod drains;
mod forwards;
mod handshakes;
mod ids_over_http;
mod parameters;
mod plan_commands;
mod plans_over_http;
mod plans_seen;
mod shared;

use crate::auth::{Auth, Scope, Sees, Token, digest};
use crate::forwarder::Forwarder;
use crate::refusal::{PassedOn, Refusal};
use crate::routes::Route;
use crate::server::{Handle, Server, app};
use crate::services::{Early, Generators, Incarnation, Services};
use crate::settings::Settings;
use crate::state::State;
use crate::websocket::{self, Opened};

/// What a caller of this machine sends.
const LOCAL: (&str, &str) = ("host", "localhost");

async fn services(dir: &TempDir) -> Services {
    let identity =
        cluster::Identity { id: InstanceId::parse("test-1").unwrap(), url: "http://127.0.0.1:1".to_owned() };
    services_of(ledger(dir).await, identity, domain::Mode::Basic)
}

async fn ledger(dir: &TempDir) -> ledger::Handle {
    let options = ledger::Options {
        url: format!("sqlite:{}", dir.path().join("ledger.db").display()),
        connections_max: 2,
        connect_timeout_ms: 5_000,
        call_timeout_ms: 5_000,
        expected_id: None,
    };
    ledger::open(&options).await.unwrap()
}

fn services_of(ledger: ledger::Handle, identity: cluster::Identity, mode: domain::Mode) -> Services {
    let limits = actors::signers::Limits {
        idle: Duration::from_secs(1),
        lease: Duration::from_secs(15),
        hold_ms: 60_000,
        lease_wait: Duration::from_millis(250),
        lease_kept_max: Duration::from_millis(100),
        request_timeout: Duration::from_secs(5),
        queue_max: 100,
        in_flight_max: 1_000,
    };
    let cluster_view = cluster::ClusterView::alone(&identity, mode);
    let (id, failure_detector) = (identity.id.clone(), cluster::FailureDetector::alone());
    let bus = bus::Hub::default().join();
    let registry = nodes::Registry::new(id.clone(), domain::NodeTimeouts::DEFAULT);
    let arbiters = actors::arbiters::Arbiters::start(std::num::NonZeroUsize::MIN).unwrap();
    let clock = actors::database_clock::SharedClock::new(Duration::from_secs(1));
    let dependencies = actors::jobs::Dependencies {
        ledger: Arc::clone(&ledger),
        bus: Arc::clone(&bus),
        me: id.clone(),
        failure_detector: failure_detector.clone(),
        cluster_view: cluster_view.clone(),
        instance_lease: cluster::InstanceLease::over(),
        registry: registry.clone(),
        arbiters: arbiters.clone(),
        clock: clock.clone(),
    };
    let config = actors::jobs::LaneConfig {
        lease: Duration::from_secs(15),
        request_timeout: Duration::from_secs(5),
        retention: Duration::from_secs(60),
        purge_every: actors::jobs::limits::PURGE_EVERY,
    };
    let jobs = actors::jobs::Jobs::start(dependencies, config);
    let dependencies = actors::plans::Dependencies {
        ledger: Arc::clone(&ledger),
        jobs: jobs.clone(),
        failure_detector: failure_detector.clone(),
        cluster_view: cluster_view.clone(),
        arbiters: arbiters.clone(),
        clock: clock.clone(),
    };
    let config = actors::plans::PlanConfig {
        request_timeout: Duration::from_secs(5),
        retention: Duration::from_secs(60),
        purge_every: actors::plans::PURGE_EVERY,
        owned_bytes_max: actors::plans::OWNED_PLANS_BYTES_MAX,
        lock: Duration::from_secs(9_000),
    };
    let plans = actors::plans::Plans::start(dependencies, config);
    let signers = actors::signers::Signers::start(
        arbiters,
        Arc::clone(&ledger),
        id,
        failure_detector,
        cluster_view.clone(),
        clock.clone(),
        limits,
    );
    let generators = Generators {
        segments: Segments::new(Arc::clone(&ledger)),
        sequences: Sequences::new(Arc::clone(&ledger)),
        scramble: None,
    };
    let reach =
        cluster::Reach::new(Arc::clone(&bus), cluster::FailureDetector::alone(), cluster_view.clone());
    let incarnation = Incarnation {
        identity,
        cluster_view,
        reach,
        other_buses: cluster::OtherBuses::none(),
        signers,
        jobs,
        plans,
        registry,
    };
    let cluster_secret = domain::ClusterSecret::parse(&"s".repeat(32)).unwrap();
    let peers = client::Peers::new(false, &client::TlsOptions::default()).unwrap();
    Services { cluster_secret, clock, incarnation, ledger, bus, generators, peers }
}

/// With snowflakes for as long as the second part is kept.
fn early(options: Options) -> (Early, Keeping) {
    let (snowflakes, keeping) = Snowflakes::start(options, Arc::new(SystemClock));
    let metrics = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder().handle();
    (Early { snowflakes, metrics }, keeping)
}

async fn state(dir: &TempDir, auth: Auth) -> Arc<State> {
    state_with(dir, Settings::new(auth)).await
}

/// Makes a plan with one task, which has the same number.
pub(crate) async fn make_plan(state: &State, n: u128, task: TaskSpec) -> PlanId {
    let tasks = vec![TaskState::new(TaskId::from_u128(n), Arc::new(task))];
    let plan = PlanState::new(PlanId::from_u128(n), Arc::new(PlanSpec::default()), tasks);
    let new = NewPlan {
        plan: Arc::new(plan),
        take: Vec::new(),
        lock_ms: 600_000,
        events: Vec::new(),
        key: None,
        author: Author::default(),
        audit: None,
    };
    state.ledger.create_plan(new).await.unwrap();
    PlanId::from_u128(n)
}

pub(crate) async fn state_with(dir: &TempDir, settings: Settings) -> Arc<State> {
    let (early, _) = early(Options::default());
    let state = State::new(early, settings, runtime::Handle::current());
    state.open(services(dir).await);
    Arc::new(state)
}

pub(crate) fn forwarder(state: &Arc<State>) -> Arc<Forwarder> {
    Arc::new(Forwarder::new(Arc::clone(state)))
}

/// A socket of a caller that sends nothing, with the request for it.
pub(crate) async fn opened(state: &State) -> (HttpRequest, Opened) {
    opened_with(state, Payload::None).await
}

/// A socket of a caller that sends this, with the request for it.
pub(crate) async fn opened_with(state: &State, mut payload: Payload) -> (HttpRequest, Opened) {
    let request = TestRequest::get()
        .insert_header(("connection", "upgrade"))
        .insert_header(("upgrade", "websocket"))
        .insert_header(("sec-websocket-version", "13"))
        .insert_header(("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="));
    let request = request.to_http_request();
    let payload = web::Payload::from_request(&request, &mut payload).await.unwrap();
    let opened = websocket::open(&request, payload, state).unwrap();
    (request, opened)
}

fn open_server(listener: TcpListener, services: Services, settings: Settings) -> Server {
    let server = Server::bind(listener, early(Options::default()).0, settings, || {}).unwrap();
    server.handle().open(services);
    server
}

pub(crate) fn token(name: &str, scope: Scope) -> Token {
    Token {
        name: name.to_owned(),
        digests: vec![digest(name.as_bytes())],
        scopes: vec![scope],
        sees: Sees::default(),
        expires_at: None,
    }
}

#[actix_web::test]
async fn every_path_is_served_and_refuses_the_methods_that_it_does_not_take() {
    use actix_web::http::Method;
    let dir = TempDir::new().unwrap();
    let service = init_service(app(&forwarder(&state(&dir, Auth::open()).await))).await;
    for route in Route::ALL {
        let path = route.pattern().replace(['{', '}'], "x");
        let methods = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::TRACE];
        for method in methods.into_iter().filter(|method| !route.takes(method)) {
            let request = TestRequest::default().insert_header(LOCAL).method(method.clone()).uri(&path);
            let status = call_service(&service, request.to_request()).await.status();
            assert_eq!(status, StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
}

#[actix_web::test]
async fn an_encoded_path_is_served_under_the_access_of_what_it_means() {
    let dir = TempDir::new().unwrap();
    let auth = Auth::tokens(vec![token("user", Scope::Submit), token("node", Scope::Node)]);
    let service = init_service(app(&forwarder(&state(&dir, auth).await))).await;
    for (path, who, status) in [
        ("/v1/signers/x/nonces/0/resolve", "user", 403),
        ("/v1/signers/x/nonces/0/%72esolve", "user", 403),
        ("/%76%31/signers/x/nonces/0/resolve", "user", 403),
        ("/v1/signers/x%2Fnonces/0/resolve", "user", 404),
        ("/v1/signers/x%2Fy/nonces", "user", 400),
        ("/v1/signers/x%252Fy/nonces", "user", 400),
        ("/v1/%73igners/x/nonces", "node", 403),
        ("/v1/signers/%78/nonces", "user", 201),
        ("/v1/signers/%FF/nonces", "user", 400),
        ("/v1/signers/%/nonces", "user", 400),
        ("/v1/signers/../nonces", "user", 400),
        ("/v1/signers/x/nonces/", "user", 404),
        ("//v1/signers/x/nonces", "user", 404),
    ] {
        let request = TestRequest::post().uri(path).insert_header((AUTHORIZATION, format!("Bearer {who}")));
        let answer = call_service(&service, request.to_request()).await;
        assert_eq!(answer.status().as_u16(), status, "{path} as {who}");
    }
}

#[actix_web::test]
async fn a_token_expires_by_the_databases_clock() {
    const HOUR_MS: u64 = 3_600_000;
    let dir = TempDir::new().unwrap();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64;
    let end = Timestamp::from_micros(0).plus_ms(now_ms + HOUR_MS);
    let auth = Auth::tokens(vec![Token { expires_at: Some(end), ..token("a", Scope::Read) }]);
    let state = state(&dir, auth).await;
    let principal = state.settings.auth.named("a").unwrap();
    for (shown, is_good) in [(end.plus_ms(HOUR_MS), false), (Timestamp::from_micros(0), true)] {
        let at = Instant::now();
        state.clock.saw(shown, at, at);
        assert_eq!(state.settings.auth.named("a").is_ok(), is_good);
        assert_eq!(state.settings.auth.knows(&principal), is_good);
    }
}

#[actix_web::test]
async fn readiness_names_a_ledger_that_went_back_among_its_checks() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    let service = init_service(app(&forwarder(&state))).await;
    state.set_went_back(Some("it is behind".to_owned()));
    let ready = TestRequest::get().insert_header(LOCAL).uri("/readyz").to_request();
    let ready: Value = read_body_json(call_service(&service, ready).await).await;
    assert_eq!((&ready["code"], &ready["detail"]), (&"ledger_went_back".into(), &"it is behind".into()));
    assert_eq!(ready["checks"]["ledger"]["status"], "down", "{ready}");
}

#[actix_web::test]
async fn draining_refuses_the_api_and_leaves_the_probes() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    let service = init_service(app(&forwarder(&state))).await;
    let get = |path| TestRequest::get().insert_header(LOCAL).uri(path).to_request();

    let ready = call_service(&service, get("/readyz")).await;
    assert_eq!(ready.status(), StatusCode::OK);
    let ready: Value = read_body_json(ready).await;
    assert_eq!((&ready["status"], &ready["checks"]["ledger"]["status"]), (&"ready".into(), &"ok".into()));

    // Before that, only the one probe changes.
    state.traffic.stop_soon();
    for (path, status) in [("/healthz", 200), ("/metrics", 200), ("/readyz", 503), ("/v1/signers", 200)] {
        let answer = call_service(&service, get(path)).await;
        assert_eq!(answer.status().as_u16(), status, "{path}");
        assert!(
            answer.response().head().connection_type() != actix_web::http::ConnectionType::Close,
            "{path}"
        );
        if status == 503 {
            let problem: Value = read_body_json(answer).await;
            assert_eq!(problem["code"], "draining", "{path}");
        }
    }

    state.traffic.drain();
    for (path, status) in [("/healthz", 200), ("/metrics", 200), ("/readyz", 503), ("/v1/signers", 503)] {
        let answer = call_service(&service, get(path)).await;
        assert_eq!(answer.status().as_u16(), status, "{path}");
        assert!(
            answer.response().head().connection_type() == actix_web::http::ConnectionType::Close,
            "{path}"
        );
        if status == 503 {
            assert!(answer.headers().contains_key("retry-after"), "{path}");
            let problem: Value = read_body_json(answer).await;
            assert_eq!(problem["code"], "draining", "{path}");
        }
    }
}

#[actix_web::test]
async fn answers_of_the_api_name_the_ring_and_the_modes_as_they_are_known_by_then() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    let service = init_service(app(&forwarder(&state))).await;
    let named = async |path: &str| {
        let request = TestRequest::get().insert_header(LOCAL).uri(path).to_request();
        let answer = call_service(&service, request).await;
        answer.headers().get(wire::RING_VERSION).map(|label| label.to_str().unwrap().to_owned())
    };
    let cluster_view = &state.incarnation().cluster_view;
    let before = cluster_view.view().label().to_owned();
    assert_eq!(named("/v1/signers").await, Some(before.clone()));
    cluster_view.adopt_modes(domain::Modes { version: 7, mode: domain::Mode::Basic, only: None });
    let after = cluster_view.view().label().to_owned();
    assert_ne!(before, after);
    assert_eq!(named("/v1/signers").await, Some(after));
    assert_eq!(named("/healthz").await, None);
}

#[actix_web::test]
async fn a_panic_is_a_500_under_the_request_id_and_the_next_request_is_served() {
    let dir = TempDir::new().unwrap();
    let state = state(&dir, Auth::open()).await;
    async fn defect() -> &'static str {
        panic!("on purpose")
    }
    let service = init_service(app(&forwarder(&state)).route("/defect", web::get().to(defect))).await;
    let request = TestRequest::get()
        .insert_header(LOCAL)
        .uri("/defect")
        .insert_header(("x-request-id", "mine"))
        .to_request();
    let error = actix_web::dev::Service::call(&service, request).await.expect_err("the gate errs");
    let answer = error.error_response();
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(answer.headers().get("x-request-id").unwrap(), "mine");
    assert_eq!(answer.headers().get("content-type").unwrap(), "application/problem+json");
    assert_eq!(state.traffic.in_flight(), 0);
    let next =
        call_service(&service, TestRequest::get().insert_header(LOCAL).uri("/v1/signers").to_request()).await;
    assert_eq!(next.status(), StatusCode::OK);
}

#[actix_web::test]
async fn a_defect_is_counted_by_the_instance_that_has_it_and_not_by_the_one_that_passes_its_answer_on() {
    let dir = TempDir::new().unwrap();
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let counted = recorder.handle();
    let _counting = metrics::set_default_local_recorder(&recorder);
    async fn passed_on() -> HttpResponse {
        let mut answer = own().await;
        answer.extensions_mut().insert(PassedOn);
        answer
    }
    async fn own() -> HttpResponse {
        HttpResponse::InternalServerError().finish()
    }
    // What another instance has answered is read, and told in this one's words.
    async fn told() -> Result<HttpResponse, Refusal> {
        let problem = wire::Problem::new(wire::Code::Internal, "a defect");
        Err(Refusal::passed_back(&serde_json::to_vec(&problem).unwrap()).unwrap())
    }
    let app = app(&forwarder(&state(&dir, Auth::open()).await));
    let app = app.route("/passed-on", web::get().to(passed_on)).route("/own", web::get().to(own));
    let app = app.route("/told", web::get().to(told));
    let service = init_service(app).await;
    for (path, defects) in [("/passed-on", 0), ("/told", 0), ("/own", 1), ("/passed-on", 1), ("/told", 1)] {
        let request = TestRequest::get().insert_header(LOCAL).uri(path).to_request();
        let answer = call_service(&service, request).await;
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR, "{path}");
        let shown = counted.render();
        let count = shown.lines().find_map(|line| line.strip_prefix("fencepost_internal_errors_total "));
        assert_eq!(count.unwrap_or("0"), defects.to_string(), "{path}");
    }
}

/// Sends bytes and reads until the server closes.
async fn converse(stream: &mut TcpStream, bytes: &[u8]) -> String {
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answer)).await;
    closed.expect("the server closes the connection").unwrap();
    String::from_utf8(answer).unwrap()
}

/// A request that is complete with `:2}` more.
const INCOMPLETE: &[u8] =
    b"POST /v1/signers/x/nonces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
    content-length: 11\r\n\r\n{\"count\"";

#[tokio::test]
async fn a_stop_at_once_returns_when_what_it_cuts_off_has_ended() {
    let dir = TempDir::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Holds up the one thread that serves, between the two times that both are at the barrier.
    let (hold_up, both) = (Arc::new(Notify::new()), Arc::new(Barrier::new(2)));
    let (told, meets) = (Arc::clone(&hold_up), Arc::clone(&both));
    let on_thread = move || {
        let (told, meets) = (Arc::clone(&told), Arc::clone(&meets));
        actix_web::rt::spawn(async move {
            told.notified().await;
            meets.wait();
            meets.wait();
        });
    };
    let settings = Settings { workers: 1, ..Settings::new(Auth::open()) };
    let server = Server::bind(listener, early(Options::default()).0, settings, on_thread).unwrap();
    let handle = server.handle();
    handle.open(services(&dir).await);
    let running = tokio::spawn(server.run());

    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(INCOMPLETE).await.unwrap();
    while handle.in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    hold_up.notify_one();
    both.wait();
    let stop = async {
        // Long enough for a thread that waits for its turn on a busy machine.
        handle.cut_off(Duration::from_secs(60)).await;
        handle.in_flight()
    };
    let let_go = async {
        running.await.unwrap().unwrap();
        both.wait();
    };
    let (in_flight, ()) = tokio::join!(stop, let_go);
    assert_eq!(in_flight, 0);
}

#[tokio::test]
async fn idle_waits_for_the_request_in_flight_and_stop_ends_the_server() {
    let dir = TempDir::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let settings = Settings { workers: 1, ..Settings::new(Auth::open()) };
    let server = open_server(listener, services(&dir).await, settings);
    let handle = server.handle();
    let running = tokio::spawn(server.run());

    let mut slow = TcpStream::connect(address).await.unwrap();
    slow.write_all(INCOMPLETE).await.unwrap();
    while handle.in_flight() == 0 {
        tokio::task::yield_now().await;
    }
    // A request is counted first and let in then, without a pause: once the one thread has answered
    // another, it is in.
    let mut probe = TcpStream::connect(address).await.unwrap();
    converse(&mut probe, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await;
    handle.drain();
    let early = tokio::time::timeout(Duration::from_millis(50), handle.idle()).await;
    assert!(early.is_err(), "a request was in flight");

    let mut late = TcpStream::connect(address).await.unwrap();
    let refused = converse(&mut late, b"GET /v1/signers HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("\"draining\""), "{refused}");

    let answer = converse(&mut slow, b":2}").await;
    assert!(answer.starts_with("HTTP/1.1 201") && answer.contains("\"nonce\":1"), "{answer}");
    handle.idle().await;
    handle.stop().await;
    running.await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "the socket is closed");
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_refused_in_time_and_a_long_one_at_once() {
    let dir = TempDir::new().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let settings = Settings {
        client_request_timeout: Duration::from_secs(1),
        body_bytes_max: 64,
        ..Settings::new(Auth::open())
    };
    let server = open_server(listener, services(&dir).await, settings);
    let handle = server.handle();
    let running = tokio::spawn(server.run());
    for (length, status, text) in [(20, "HTTP/1.1 400", "within 1000 ms"), (65, "HTTP/1.1 413", "64 bytes")] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /v1/signers/x/nonces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{{"
        );
        let answer = converse(&mut stream, head.as_bytes()).await;
        assert!(answer.starts_with(status) && answer.contains(text), "{answer}");
    }
    let mut chunked = TcpStream::connect(address).await.unwrap();
    let spaces = " ".repeat(65);
    let request = format!(
        "POST /v1/signers/x/nonces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         transfer-encoding: chunked\r\n\r\n41\r\n{spaces}\r\n"
    );
    let answer = converse(&mut chunked, request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    handle.stop().await;
    running.await.unwrap().unwrap();
}

/// A live instance as the ledger shows it, so old.
fn peer(identity: &cluster::Identity, age_ms: u64) -> ledger::Peer {
    let at = Timestamp::from_micros(0);
    let lease = ledger::Lease {
        resource: domain::Resource::instance(&identity.id),
        owner: Some(identity.id.clone()),
        token: domain::Token::new(1),
        acquired_at: at,
        renewed_at: at,
        expires_in_ms: 1_000,
    };
    ledger::Peer { id: identity.id.clone(), url: identity.url.clone(), lease, age_ms }
}

async fn granted(address: SocketAddr, signer: &str) -> (String, u64, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "POST /v1/signers/{signer}/nonces HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    );
    let answer = converse(&mut stream, head.as_bytes()).await;
    let body: Value = serde_json::from_str(&answer[answer.find('{').unwrap()..]).unwrap();
    let status = answer.lines().next().unwrap().to_owned();
    (status, body["grants"][0]["nonce"].as_u64().unwrap(), body["owner"].as_str().unwrap().to_owned())
}

#[actix_web::test]
async fn two_instances_that_each_take_the_other_for_the_owner_serve_without_a_loop() {
    let dir = TempDir::new().unwrap();
    let ledger = ledger(&dir).await;
    let listeners = ["a-1", "b-1"].map(|_| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = [0, 1].map(|n: usize| listeners[n].local_addr().unwrap());
    let identities = ["a-1", "b-1"].map(|name| InstanceId::parse(name).unwrap());
    let identities: Vec<_> = identities
        .into_iter()
        .zip(addresses)
        .map(|(id, address)| cluster::Identity { id, url: format!("http://{address}") })
        .collect();
    let mut handles = Vec::new();
    for (n, listener) in listeners.into_iter().enumerate() {
        let services = services_of(Arc::clone(&ledger), identities[n].clone(), domain::Mode::WorkerQueue);
        // Itself too young for the ring, the other old enough: everything belongs to the other.
        let (me, other) = (&identities[n], &identities[1 - n]);
        services.incarnation.cluster_view.saw(vec![peer(me, 0), peer(other, 60_000)]);
        let settings = Settings { workers: 1, ..Settings::new(Auth::open()) };
        let server = open_server(listener, services, settings);
        handles.push(server.handle());
        tokio::spawn(server.run());
    }
    for (n, signer) in [(0, "x"), (1, "y"), (0, "z")] {
        let (status, nonce, owner) = granted(addresses[n], signer).await;
        assert_eq!((status.as_str(), nonce), ("HTTP/1.1 201 Created", 0));
        assert_eq!(owner, identities[1 - n].id.as_str(), "whoever a request was sent on to serves it");
    }
    // The instance that has the lease by now serves, and a request to the other one takes one more hop at most.
    for round in 0..20_usize {
        let (status, _, _) = granted(addresses[round % 2], "x").await;
        assert_eq!(status, "HTTP/1.1 201 Created");
    }
    let record = ledger.signer(&domain::SignerId::parse("x").unwrap()).await.unwrap().unwrap();
    assert_eq!((record.next_nonce, record.held), (21, 21));
    for handle in handles {
        handle.stop().await;
    }
}

/// An instance that others reach there.
fn identity(name: &str, address: SocketAddr) -> cluster::Identity {
    cluster::Identity { id: InstanceId::parse(name).unwrap(), url: format!("http://{address}") }
}

#[actix_web::test]
async fn a_forward_waits_for_an_owner_whose_lease_ran_out_and_for_none_whose_lease_was_taken() {
    for is_taken in [false, true] {
        let dir = TempDir::new().unwrap();
        let near = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = near.local_addr().unwrap();
        let (me, other) = (identity("a-1", address), identity("b-1", far.local_addr().unwrap()));
        let services = services_of(ledger(&dir).await, me.clone(), domain::Mode::WorkerQueue);
        let cluster_view = services.incarnation.cluster_view.clone();
        cluster_view.saw(vec![peer(&me, 0), peer(&other, 60_000)]);
        let settings = Settings { workers: 1, ..Settings::new(Auth::open()) };
        let server = open_server(near, services, settings);
        let handle = server.handle();
        tokio::spawn(server.run());

        let mut caller = TcpStream::connect(address).await.unwrap();
        let head = "POST /v1/signers/x/nonces HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let mut asked = tokio::spawn(async move { converse(&mut caller, head.as_bytes()).await });
        let (mut forwarded, _) = far.accept().await.unwrap();
        assert!(forwarded.read(&mut [0; 4_096]).await.unwrap() > 0);
        let mut seen = peer(&other, 60_000);
        seen.lease.expires_in_ms = 0;
        cluster_view.saw(vec![peer(&me, 0), seen.clone()]);
        let early = tokio::time::timeout(Duration::from_millis(100), &mut asked).await;
        assert!(early.is_err(), "the owner may answer: {early:?}");
        if is_taken {
            seen.lease.owner = Some(me.id.clone());
            cluster_view.saw(vec![peer(&me, 0), seen]);
        } else {
            let answer =
                "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            forwarded.write_all(answer.as_bytes()).await.unwrap();
        }
        let answer = asked.await.unwrap();
        let (status, text) = if is_taken { ("503", "was lost with the request") } else { ("201", "{}") };
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")) && answer.contains(text), "{answer}");
        handle.stop().await;
    }
}

/// A server whose only peer, by what it knows of the cluster, owns all keys; its address, and where it forwards to.
async fn beside_the_owner(
    dir: &TempDir,
    settings: Settings,
) -> (Handle, SocketAddr, tokio::net::TcpListener) {
    let near = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = near.local_addr().unwrap();
    let (me, other) = (identity("a-1", address), identity("b-1", far.local_addr().unwrap()));
    let services = services_of(ledger(dir).await, me.clone(), domain::Mode::WorkerQueue);
    services.incarnation.cluster_view.saw(vec![peer(&me, 0), peer(&other, 60_000)]);
    let server = open_server(near, services, Settings { workers: 1, ..settings });
    let handle = server.handle();
    tokio::spawn(server.run());
    (handle, address, far)
}

#[actix_web::test]
async fn forwards_for_one_token_leave_room_for_those_for_others() {
    let dir = TempDir::new().unwrap();
    let auth = Auth::tokens(vec![token("one", Scope::Submit), token("other", Scope::Submit)]);
    let settings = Settings { forwards_max: 2, ..Settings::new(auth) };
    let (handle, address, far) = beside_the_owner(&dir, settings).await;

    let ask = move |token: &str| {
        let head = format!(
            "POST /v1/signers/x/nonces HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-length: 0\r\nconnection: close\r\n\r\n"
        );
        async move {
            let mut caller = TcpStream::connect(address).await.unwrap();
            converse(&mut caller, head.as_bytes()).await
        }
    };
    let mut waiting = Vec::new();
    for token in ["one", "other"] {
        let asked = tokio::spawn(ask(token));
        let (mut forwarded, _) = far.accept().await.unwrap();
        assert!(forwarded.read(&mut [0; 4_096]).await.unwrap() > 0, "{token}");
        waiting.push((asked, forwarded));
        let refused = ask("one").await;
        assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("of one token"), "{refused}");
    }
    for (asked, mut forwarded) in waiting {
        let answer = "HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
        forwarded.write_all(answer.as_bytes()).await.unwrap();
        let answer = asked.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
    handle.stop().await;
}

#[actix_web::test]
async fn nothing_is_forwarded_for_a_token_that_is_taken_away_before_the_body_comes() {
    const GO_ON: &[u8; 25] = b"HTTP/1.1 100 Continue\r\n\r\n";
    let dir = TempDir::new().unwrap();
    let auth = Auth::tokens(vec![token("one", Scope::Submit)]);
    let (handle, address, _far) = beside_the_owner(&dir, Settings::new(auth.clone())).await;

    let mut caller = TcpStream::connect(address).await.unwrap();
    let head = "POST /v1/signers/x/nonces HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n\
                expect: 100-continue\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\
                connection: close\r\n\r\n";
    caller.write_all(head.as_bytes()).await.unwrap();
    let mut said = [0; GO_ON.len()];
    caller.read_exact(&mut said).await.unwrap();
    assert_eq!(&said, GO_ON);
    auth.replace(vec![token("other", Scope::Submit)]);
    // The other instance would not answer.
    let answer = converse(&mut caller, b"{}").await;
    assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    handle.stop().await;
}
