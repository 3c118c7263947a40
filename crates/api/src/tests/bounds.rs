//! What callers share: bodies, answers, requests. The limits are small here, so that a test reaches them exactly.

use std::net::SocketAddr;

use domain::job::{Change, Due, JobVerdict, JobWrite, NewJob, Outcome, Spec};
use domain::{JobId, LaneId, Resource};
use futures_util::FutureExt;
use ledger::{Acquisition, JobBatch, JobsVerdict, Lane, PlanFilter};

use super::*;
use crate::limits::{LISTED_BYTES, Limit, UNCOUNTED_BYTES_MAX};
use crate::shares::Kind;

/// A server with tokens `a` and `b`, and its state.
struct Rig {
    address: SocketAddr,
    handle: Handle,
    _dir: TempDir,
}

impl Rig {
    async fn start(set: impl FnOnce(&mut Settings)) -> Self {
        Self::with(early(Options::default()).0, set).await
    }

    async fn with(early: Early, set: impl FnOnce(&mut Settings)) -> Self {
        let dir = TempDir::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tokens = vec![token("a", Scope::Submit), token("b", Scope::Submit)];
        let mut settings = Settings { workers: 1, ..Settings::new(Auth::tokens(tokens)) };
        set(&mut settings);
        let server = Server::bind(listener, early, settings, || {}).unwrap();
        let handle = server.handle();
        handle.open(services(&dir).await);
        tokio::spawn(server.run());
        Self { address, handle, _dir: dir }
    }

    fn in_use(&self, kind: Kind) -> usize {
        self.handle.in_use(kind)
    }

    /// Waits until so much is in use.
    async fn uses(&self, kind: Kind, amount: usize) {
        let waited = tokio::time::timeout(Duration::from_secs(20), async {
            while self.in_use(kind) != amount {
                tokio::task::yield_now().await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("{kind:?}: {} are in use, not {amount}", self.in_use(kind)));
    }

    /// A request whose head has these lines, as far as it is sent.
    async fn begun(&self, token: &str, lines: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!(
            "POST /v1/jobs/batch HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
             content-type: application/json\r\n{lines}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        stream.write_all(body).await.unwrap();
        stream
    }
}

/// More metrics than an answer may have bytes without being counted.
fn large_metrics() -> Early {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || {
        for number in 0..1_000 {
            metrics::counter!(format!("fencepost_invented_{number}_total")).increment(1);
        }
    });
    let metrics = recorder.handle();
    assert!(metrics.render().len() > UNCOUNTED_BYTES_MAX, "they are large");
    Early { metrics, ..early(Options::default()).0 }
}

/// The whole answer to a scrape.
async fn scrape(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer b\r\nconnection: close\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read_to_string(&mut answer));
    read.await.expect("an answer").unwrap();
    answer
}

/// The head and the body of the next answer.
async fn answer(stream: &mut TcpStream) -> (String, Value) {
    let mut bytes = Vec::new();
    let read = async {
        loop {
            let text = String::from_utf8_lossy(&bytes).to_lowercase();
            if let Some((head, body)) = text.split_once("\r\n\r\n")
                && let Some((_, length)) = head.split_once("content-length: ")
                && body.len() >= length.lines().next().unwrap().parse::<usize>().unwrap()
            {
                return (head.to_owned(), serde_json::from_str(body).unwrap());
            }
            if stream.read_buf(&mut bytes).await.unwrap() == 0 {
                panic!("no whole answer: {text}");
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("an answer")
}

fn is_overloaded((head, problem): &(String, Value)) -> bool {
    head.starts_with("http/1.1 429") && head.contains("retry-after: ") && problem["code"] == "overloaded"
}

#[tokio::test]
async fn bodies_take_their_bytes_before_they_are_read_and_one_token_leaves_room_for_others() {
    let limit = Limit { in_all: 100_000, of_token: 60_000 };
    let rig = Rig::start(|settings| settings.reading_bytes = limit).await;
    let first = rig.begun("a", "content-length: 50000", b"{").await;
    rig.uses(Kind::Reading, 50_000).await;
    let body = vec![b' '; 20_000];
    let mut refused = rig.begun("a", "content-length: 20000", &body).await;
    let problem = answer(&mut refused).await;
    assert!(is_overloaded(&problem), "{problem:?}");
    // The refused body was sent to its end, and the answer could be read; a small one is read on.
    let mut small = rig.begun("a", "content-length: 2", b"{}").await;
    assert!(answer(&mut small).await.0.starts_with("http/1.1 400"), "jobs are missing");
    let mut other = rig.begun("b", "content-length: 50000", b"{").await;
    rig.uses(Kind::Reading, 100_000).await;
    let mut beyond = rig.begun("b", "content-length: 17000", &[b' '; 17_000]).await;
    assert!(is_overloaded(&answer(&mut beyond).await), "all of it is in use");
    // Whatever ends a request gives its bytes back: the connection's end, an answer, a refusal.
    drop(first);
    rig.uses(Kind::Reading, 50_000).await;
    other.write_all(&[b' '; 49_999]).await.unwrap();
    assert!(answer(&mut other).await.0.starts_with("http/1.1 400"));
    rig.uses(Kind::Reading, 0).await;
    rig.handle.stop().await;
}

#[tokio::test]
async fn a_body_that_does_not_say_its_length_takes_its_bytes_as_they_come() {
    let rig =
        Rig::start(|settings| settings.reading_bytes = Limit { in_all: 140_000, of_token: 140_000 }).await;
    let chunk = |bytes: usize| format!("{bytes:x}\r\n{}\r\n", " ".repeat(bytes));
    let chunked = "transfer-encoding: chunked";
    let mut first = rig.begun("a", chunked, chunk(UNCOUNTED_BYTES_MAX).as_bytes()).await;
    rig.uses(Kind::Requests, 1).await;
    assert_eq!(rig.in_use(Kind::Reading), 0);
    first.write_all(chunk(1).as_bytes()).await.unwrap();
    rig.uses(Kind::Reading, 65_536).await;
    first.write_all(chunk(60_000).as_bytes()).await.unwrap();
    rig.uses(Kind::Reading, 131_072).await;
    let mut second = rig.begun("b", chunked, chunk(20_000).as_bytes()).await;
    assert!(is_overloaded(&answer(&mut second).await), "there is no room for a further step");
    first.write_all(b"0\r\n\r\n").await.unwrap();
    assert!(answer(&mut first).await.0.starts_with("http/1.1 400"));
    rig.uses(Kind::Reading, 0).await;
    rig.handle.stop().await;
}

#[tokio::test]
async fn requests_in_flight_have_a_limit_and_probes_have_none() {
    let rig = Rig::start(|settings| settings.requests = Limit { in_all: 3, of_token: 2 }).await;
    let slow =
        [rig.begun("a", "content-length: 9", b"{").await, rig.begun("a", "content-length: 9", b"{").await];
    rig.uses(Kind::Requests, 2).await;
    let refused = answer(&mut rig.begun("a", "content-length: 2", b"{}").await).await;
    assert!(
        is_overloaded(&refused) && refused.1["detail"].as_str().unwrap().contains("of one token"),
        "{refused:?}"
    );
    let third = rig.begun("b", "content-length: 9", b"{").await;
    rig.uses(Kind::Requests, 3).await;
    let refused = answer(&mut rig.begun("b", "content-length: 2", b"{}").await).await;
    assert!(
        is_overloaded(&refused) && !refused.1["detail"].as_str().unwrap().contains("of one token"),
        "{refused:?}"
    );
    let mut probe = TcpStream::connect(rig.address).await.unwrap();
    probe.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert!(answer(&mut probe).await.0.starts_with("http/1.1 200"));
    drop((slow, third));
    rig.uses(Kind::Requests, 0).await;
    rig.handle.stop().await;
}

#[tokio::test]
async fn what_the_listener_for_probes_serves_takes_no_share_of_requests_or_of_answers() {
    let rig = Rig::with(large_metrics(), |settings| {
        settings.requests = Limit { in_all: 1, of_token: 1 };
        settings.sending_bytes = Limit { in_all: 1_000, of_token: 1_000 };
    })
    .await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let probes = listener.local_addr().unwrap();
    let probe = crate::probe::Probe::start(listener, &rig.handle).unwrap();
    // The answer is too large for the main listener.
    let refused = scrape(rig.address).await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("overloaded"), "{refused}");
    assert!(scrape(probes).await.contains("fencepost_invented_999_total 1"));
    // And now it serves no further request either.
    let slow = rig.begun("a", "content-length: 9", b"{").await;
    rig.uses(Kind::Requests, 1).await;
    let refused = scrape(rig.address).await;
    assert!(refused.starts_with("HTTP/1.1 429") && refused.contains("in flight"), "{refused}");
    assert!(scrape(probes).await.contains("fencepost_invented_999_total 1"));
    drop(slow);
    rig.uses(Kind::Requests, 0).await;
    probe.stop().await;
    rig.handle.stop().await;
}

#[actix_web::test]
async fn a_large_answer_counts_until_its_reader_has_taken_it() {
    let dir = TempDir::new().unwrap();
    let (early, _) = early(Options::default());
    let document = crate::openapi::document().len();
    assert!(document > UNCOUNTED_BYTES_MAX, "it is large");
    let sending_bytes = Limit { in_all: document * 3 / 2, of_token: document * 3 / 2 };
    let settings = Settings { sending_bytes, ..Settings::new(Auth::open()) };
    let state = State::new(early, settings, runtime::Handle::current());
    state.open(services(&dir).await);
    let state = Arc::new(state);
    let service = init_service(app(&forwarder(&state))).await;
    let get = |path: &str| TestRequest::get().insert_header(LOCAL).uri(path).to_request();
    let unread = call_service(&service, get("/openapi.json")).await;
    assert_eq!(unread.status(), StatusCode::OK);
    assert_eq!(state.shares.in_use(Kind::Sending), document + "\n".len());
    let refused = call_service(&service, get("/openapi.json")).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let problem: Value = read_body_json(refused).await;
    assert_eq!(problem["code"], "overloaded");
    let small = call_service(&service, get("/v1/jobs")).await;
    assert_eq!(small.status(), StatusCode::OK, "a small answer is not counted");
    let read: Value = read_body_json(unread).await;
    assert!(read["paths"].is_object());
    assert_eq!(state.shares.in_use(Kind::Sending), 0);
    assert_eq!(call_service(&service, get("/openapi.json")).await.status(), StatusCode::OK);
    drop(small);
    assert_eq!(state.shares.in_use(Kind::Requests), 0);
}

#[actix_web::test]
async fn a_plan_takes_its_bytes_until_it_is_made_also_where_its_caller_leaves() {
    takes_its_bytes_until_made(50_000).await;
}

#[actix_web::test]
async fn a_plan_whose_body_is_too_short_to_be_counted_takes_its_bytes_until_it_is_made() {
    takes_its_bytes_until_made(1_000).await;
}

/// A plan whose only stage has a payload of so many bytes.
async fn takes_its_bytes_until_made(payload: usize) {
    let dir = TempDir::new().unwrap();
    // What is begun there goes on once a thread runs it.
    let held = runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let settings = Settings::new(Auth::open());
    let state = State::new(early(Options::default()).0, settings, held.handle().clone());
    state.open(services(&dir).await);
    let state = Arc::new(state);
    let service = init_service(app(&forwarder(&state))).await;
    let stage = serde_json::json!({ "name": "only", "payload": "1".repeat(payload) });
    let plan = serde_json::json!({ "tasks": [{ "tenant": "x", "stages": [stage] }] });
    let request = TestRequest::post().uri("/v1/plans").insert_header(LOCAL).set_json(plan);
    let before = held.metrics().num_alive_tasks();
    let mut call = Box::pin(call_service(&service, request.to_request()));
    let begun = async {
        while held.metrics().num_alive_tasks() == before {
            assert!(call.as_mut().now_or_never().is_none(), "the plan cannot be made yet");
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), begun).await.expect("the plan is to be made");
    drop(call);
    assert!(state.shares.in_use(Kind::Reading) >= payload, "the plan is in memory");

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = std::thread::spawn(move || held.block_on(stopped));
    let given_back = async {
        while state.shares.in_use(Kind::Reading) > 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), given_back).await.expect("its bytes are given back");
    let all = PlanFilter { limit: 2, ..PlanFilter::default() };
    assert_eq!(state.ledger.plans(&all).await.unwrap().len(), 1);
    drop(stop);
    assert!(running.join().unwrap().is_err(), "nobody sends anything");
}

#[actix_web::test]
async fn a_retry_of_many_without_time_retries_nothing_and_says_so() {
    let dir = TempDir::new().unwrap();
    let (early, _) = early(Options::default());
    let auth = Auth::tokens(vec![token("a", Scope::Submit)]);
    let settings = Settings { request_timeout: Duration::ZERO, ..Settings::new(auth) };
    let state = State::new(early, settings, runtime::Handle::current());
    state.open(services(&dir).await);
    let service = init_service(app(&forwarder(&Arc::new(state)))).await;
    let ids = ["00000000-0000-7000-8000-000000000001", "00000000-0000-7000-8000-000000000002"];
    let request = TestRequest::post()
        .uri("/v1/jobs/retry")
        .insert_header((AUTHORIZATION, "Bearer a"))
        .set_json(serde_json::json!({ "ids": ids }));
    let answer = call_service(&service, request.to_request()).await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(answer.headers().contains_key("retry-after"));
    let problem: Value = read_body_json(answer).await;
    assert!(
        problem["code"] == "overloaded" && problem["detail"].as_str().unwrap().contains("no time"),
        "{problem}"
    );
}

/// A job with this payload, and its lane: one of an instance that lives, and that nobody reaches.
pub async fn submitted(state: &State, payload: &str) -> (Lane, JobId) {
    let owner = InstanceId::parse("owner-1").unwrap();
    let acquired = state.ledger.acquire(&Resource::instance(&owner), &owner, 600_000).await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
    let lane = Lane { id: LaneId::instance(&owner, 0), owner, token };
    let (id, spec) = (JobId::from_u128(1), Spec::new(payload));
    let new = NewJob { id, spec, seq: None, client_ref: None, due: Due::Now, retry: None, placed: None };
    write(state, &lane, Change::Submit(Box::new(new))).await;
    (lane, id)
}

/// The same, cancelled.
async fn cancelled(state: &State, payload: &str) -> JobId {
    let (lane, id) = submitted(state, payload).await;
    let (outcome, reason) = (Outcome::Cancelled, "nobody wants it".to_owned());
    write(state, &lane, Change::End { job: id, outcome, dead: false, attempt: None, reason }).await;
    id
}

async fn write(state: &State, lane: &Lane, change: Change) {
    let writes = [JobWrite { change, key: None }].into();
    let verdict = state.ledger.commit_jobs(JobBatch { lane: Some(lane.clone()), writes }).await.unwrap();
    let JobsVerdict::Written { jobs, .. } = verdict else { panic!("{verdict:?}") };
    assert_eq!(jobs, [JobVerdict::Written]);
}

#[actix_web::test]
async fn a_job_that_is_to_be_retried_takes_its_bytes_when_it_is_read() {
    let dir = TempDir::new().unwrap();
    let reading_bytes = Limit { in_all: 60_000, of_token: 60_000 };
    let state = state_with(&dir, Settings { reading_bytes, ..Settings::new(Auth::open()) }).await;
    let id = cancelled(&state, &"1".repeat(50_000)).await.to_string();
    let service = init_service(app(&forwarder(&state))).await;
    let others = state.shares.take(Kind::Reading, None, 10_001).unwrap();
    let request = TestRequest::post().uri("/v1/jobs/retry").insert_header(LOCAL);
    let request = request.set_json(serde_json::json!({ "ids": [id] }));
    let answer = call_service(&service, request.to_request()).await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    let problem: Value = read_body_json(answer).await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(problem["code"] == "overloaded" && detail.starts_with("60000 bytes of bodies and"), "{problem}");
    assert_eq!(state.shares.in_use(Kind::Reading), others.amount());
}

#[actix_web::test]
async fn a_page_of_jobs_that_are_selected_for_a_retry_takes_its_bytes() {
    let dir = TempDir::new().unwrap();
    let reading_bytes = Limit { in_all: 60_000, of_token: 60_000 };
    let state = state_with(&dir, Settings { reading_bytes, ..Settings::new(Auth::open()) }).await;
    let (lane, _) = submitted(&state, "1").await;
    for id in (2..12).map(JobId::from_u128) {
        let spec = Spec::new("1");
        let new = NewJob { id, spec, seq: None, client_ref: None, due: Due::Now, retry: None, placed: None };
        write(&state, &lane, Change::Submit(Box::new(new))).await;
        let (outcome, reason) = (Outcome::Cancelled, "nobody wants it".to_owned());
        write(&state, &lane, Change::End { job: id, outcome, dead: false, attempt: None, reason }).await;
    }
    let service = init_service(app(&forwarder(&state))).await;
    // Ten jobs fit no more.
    let others = state.shares.take(Kind::Reading, None, 60_000 - 9 * LISTED_BYTES).unwrap();
    let request = TestRequest::post().uri("/v1/jobs/retry").insert_header(LOCAL);
    let request = request.set_json(serde_json::json!({ "outcome": "cancelled" }));
    let answer = call_service(&service, request.to_request()).await;
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    let problem: Value = read_body_json(answer).await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(problem["code"] == "overloaded" && detail.starts_with("60000 bytes of bodies and"), "{problem}");
    assert_eq!(state.shares.in_use(Kind::Reading), others.amount());
}
