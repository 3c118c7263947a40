//! Every request passes here before its body is read: it gets its id, it is checked for a token (or, where no tokens
//! are configured, that it comes from this machine), it is counted, and its outcome leaves as an answer.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{CONTENT_TYPE, HeaderName};
use actix_web::http::{ConnectionType, Method, StatusCode, Version};
use actix_web::middleware::Next;
use actix_web::web::{self, BytesMut};
use actix_web::{Error, HttpMessage, HttpRequest};
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use metrics::{Counter, Histogram};
use tracing::field::Empty;
use tracing::{Instrument, Span};
use wire::Code;

use crate::auth::{Access, Principal};
use crate::connection::UnderWay;
use crate::drain_body::{Chunked, keep_with};
use crate::extract;
use crate::limits::UNCOUNTED_BYTES_MAX;
use crate::loopback;
use crate::peer_credential::{self, Proven};
use crate::refusal::{PassedOn, Refusal};
use crate::request_id::{RequestId, X_REQUEST_ID};
use crate::routes::{self, Route};
use crate::shared_reads::{self, Turn};
use crate::shares::{Kind, Share};
use crate::state::State;
use crate::traces;
use crate::visibility;

static RING_VERSION: HeaderName = HeaderName::from_static(wire::RING_VERSION);

/// The status by which a request counts whose caller went away before it was answered. None is sent; nginx counts so too.
const CLIENT_CLOSED: u16 = 499;

/// The listener that a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// The main one.
    Main,
    /// The one for probes. Its requests take no share: the number of its connections bounds them, and no flood on the main
    /// listener keeps them out.
    Probes,
}

/// What the gate reads in the head of a request.
struct Head {
    id: RequestId,
    listener: Listener,
    /// `None` for a path that does not exist.
    route: Option<Route>,
    access: Access,
    /// The route's label in metrics and logs.
    pattern: &'static str,
    /// The method's label.
    method: &'static str,
}

impl Head {
    fn of(request: &ServiceRequest, listener: Listener) -> Self {
        // The path as the router will match it, percent-encoding undone.
        let route = routes::find(request.match_info().as_str());
        Self {
            id: RequestId::of(request.headers()),
            listener,
            route,
            access: access_of(route, request.method()),
            pattern: route.map_or("other", Route::pattern),
            method: method_label(request.method()),
        }
    }

    /// The span of the request, which all its log lines carry.
    fn span(&self) -> Span {
        let Self { id, pattern, method, .. } = self;
        tracing::info_span!(
            "request", method, route = pattern, request_id = %id, principal = Empty, trace_id = Empty
        )
    }
}

/// Lets one request through, or refuses it.
pub async fn pass(
    state: Arc<State>,
    tally: Rc<Tally>,
    listener: Listener,
    mut request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let started = Instant::now();
    let _in_flight = state.traffic.enter();
    let under_way = UnderWay::begin(&request, extract::declared_bytes(request.headers()));
    let head = Head::of(&request, listener);
    // A forwarded request has the same id.
    request.headers_mut().insert(X_REQUEST_ID.clone(), head.id.value());
    let chunked = Chunked::of(&mut request, under_way.as_ref());

    // Probes log nothing, so that they are cheap.
    let span = if head.access == Access::Open { Span::none() } else { head.span() };
    let quiet = span.is_none();
    let mut cut_off = CutOff { tally: &tally, head: &head, started, span: &span, is_answered: false };
    // A scrape of the metrics has no span in a trace either.
    let untraced = quiet || head.route == Some(Route::Metrics);
    let traced = if untraced {
        None
    } else {
        traces::request(head.method, head.pattern, &head.id, request.headers_mut())
    };
    if let Some(traced) = &traced {
        span.record("trace_id", traced.trace_id());
    }
    async {
        let answer = serve(&state, &head, request, next).await;
        let answer = answer.map(|answer| completed(&state, &head, answer, chunked, under_way));
        let status = answer
            .as_ref()
            .map_or_else(|error| error.as_response_error().status_code(), ServiceResponse::status);
        let took = started.elapsed();
        cut_off.is_answered = true;
        tally.count(&head, status, took);
        if let Some(traced) = traced {
            let principal = answer.as_ref().ok().map(|answer| Principal::of(answer.request()));
            traces::answered(traced, status, principal.as_ref().map(|principal| principal.name()));
        }
        if status == StatusCode::INTERNAL_SERVER_ERROR && !is_passed_on(&answer) {
            metrics::counter!("fencepost_internal_errors_total").increment(1);
            tracing::error!(status = status.as_u16(), "a request failed because of a defect");
        } else if !quiet {
            let (status, ms) = (status.as_u16(), took.as_millis() as u64);
            tracing::debug!(path = path_of(&answer), status, code = code_of(&answer), ms, "answered");
        }
        answer
    }
    .instrument(span.clone())
    .await
}

/// An answer with the headers that all have, and with what is kept until it has left.
fn completed(
    state: &State,
    head: &Head,
    mut answer: ServiceResponse<BoxBody>,
    chunked: Option<Chunked>,
    under_way: Option<UnderWay>,
) -> ServiceResponse<BoxBody> {
    if let Some(chunked) = chunked {
        answer = chunked.keep_with(answer);
    }
    let is_socket = answer.status() == StatusCode::SWITCHING_PROTOCOLS;
    let is_stream = answer.response().body().size() == BodySize::Stream && !is_socket;
    if let Some(under_way) = under_way {
        // The connection sees the end of an answer with a length by itself: the library writes it as a whole.
        if is_socket {
            under_way.opens_socket();
        } else if is_stream {
            answer = keep_with(answer, under_way);
        }
    }
    let (version, asked) = (answer.request().version(), answer.request().head().connection_type());
    let sent = answer.response_mut().head_mut();
    sent.headers_mut().insert(X_REQUEST_ID.clone(), head.id.value());
    if head.pattern.starts_with("/v1/")
        && let Some(label) = state.ring_version()
    {
        sent.headers_mut().insert(RING_VERSION.clone(), label);
    }
    // In HTTP/1.0 there are no chunks: a stream ends with the connection.
    let is_unchunked = is_stream && version < Version::HTTP_11;
    if is_unchunked {
        sent.no_chunking(true);
    }
    // The offer of another protocol is ignored. The library would answer `connection: upgrade`, and then close the connection
    // all the same: it cannot keep it after such an offer.
    let is_offer_ignored = asked == ConnectionType::Upgrade && !is_socket;
    if state.traffic.is_draining() || is_unchunked || is_offer_ignored {
        sent.set_connection_type(ConnectionType::Close);
    }
    answer
}

/// Whether another instance has made the answer.
fn is_passed_on(answer: &Result<ServiceResponse<BoxBody>, Error>) -> bool {
    answer.as_ref().is_ok_and(|answer| answer.response().extensions().contains::<PassedOn>())
}

/// The code of a refusal that this instance has made itself.
fn code_of(answer: &Result<ServiceResponse<BoxBody>, Error>) -> Option<&'static str> {
    let answer = answer.as_ref().ok()?;
    answer.response().extensions().get::<Code>().map(|code| code.as_str())
}

/// The path that was asked for, which has the ids that the route leaves out; not what the query has.
fn path_of(answer: &Result<ServiceResponse<BoxBody>, Error>) -> Option<&str> {
    answer.as_ref().ok().map(|answer| answer.request().path())
}

/// Counts a request that is dropped before it has an answer, since its caller has closed the connection: as a
/// [`CLIENT_CLOSED`].
struct CutOff<'r> {
    tally: &'r Tally,
    head: &'r Head,
    started: Instant,
    span: &'r Span,
    is_answered: bool,
}

impl Drop for CutOff<'_> {
    fn drop(&mut self) {
        if self.is_answered {
            return;
        }
        let took = self.started.elapsed();
        if std::thread::panicking() {
            metrics::counter!("fencepost_internal_errors_total").increment(1);
            return self.tally.count(self.head, StatusCode::INTERNAL_SERVER_ERROR, took);
        }
        let status = StatusCode::from_u16(CLIENT_CLOSED).expect("it is between 100 and 999");
        self.tally.count(self.head, status, took);
        if !self.span.is_none() {
            let ms = took.as_millis() as u64;
            self.span.in_scope(|| tracing::debug!(ms, "the caller went away before it was answered"));
        }
    }
}

async fn serve(
    state: &State,
    head: &Head,
    mut request: ServiceRequest,
    next: Next<BoxBody>,
) -> Result<ServiceResponse<BoxBody>, Error> {
    let id = &head.id;
    // The share is the request's until there is an answer.
    let (principal, _share) = match let_in(state, head, &mut request).await {
        Ok(allowed) => allowed,
        Err(refusal) => return Ok(request.into_response(refusal.respond(id))),
    };
    let reading = match shared_reads::Key::of(head.route, &request, &principal) {
        None => None,
        Some(key) => match state.shared_reads.turn(key).await {
            Turn::Shared(found) => {
                request.extensions_mut().insert(Arc::clone(&principal));
                let answer = request.into_response(found.respond());
                return Ok(count_unsent(state, id, &Method::GET, &principal, answer));
            }
            Turn::Failed(refusal) => return Ok(request.into_response(refusal.respond(id))),
            Turn::Read(reading) => Some(reading),
            Turn::Alone => None,
        },
    };
    if let Some(route) = head.route
        && route.takes(request.method())
        && let Err(refusal) =
            visibility::admit(state, route, request.method(), request.match_info().as_str(), &principal).await
    {
        if is_of_access(refusal.code()) {
            log_refused(&refusal);
        }
        return Ok(request.into_response(refusal.respond(id)));
    }
    let method = request.method().clone();
    request.extensions_mut().insert(Arc::clone(&principal));
    // The request cannot be kept beside the call (the router wants it for itself), so after a panic
    // there is only an error to answer with.
    let answer = match AssertUnwindSafe(next.call(request)).catch_unwind().await {
        Ok(answer) => answer?,
        Err(panic) => {
            tracing::error!(panic = panic_text(&*panic), "a handler panicked");
            return Err(Defect(id.clone()).into());
        }
    };
    let refusal = answer.response().error().and_then(|error| error.as_error::<Refusal>()).cloned();
    let Some(refusal) = refusal else {
        let answer = end_line(answer);
        let answer = match reading {
            Some(reading) => reading.answered(answer),
            None => answer,
        };
        return Ok(match head.listener {
            Listener::Main => count_unsent(state, id, &method, &principal, answer),
            Listener::Probes => answer,
        });
    };
    // The caller may see less than when the head came: see `let_in_again`.
    let principal = Principal::of(answer.request());
    let refusal = visibility::refusal(state, principal.sees(), refusal).await;
    let refusal = with_reason_of_ledger(state, refusal);
    log_overloaded(&principal, &refusal);
    if refusal.code() == Code::Forbidden {
        log_refused(&refusal);
    }
    if let Some(reading) = reading {
        reading.refused(&refusal);
    }
    Ok(answer.into_response(refusal.respond(id)))
}

/// Checks a request's caller, its share, and whether this instance can serve it now. Answers with the caller and the share.
async fn let_in(
    state: &State,
    head: &Head,
    request: &mut ServiceRequest,
) -> Result<(Arc<Principal>, Option<Share>), Refusal> {
    let is_open = head.access == Access::Open;
    let principal = identify(state, head, request).await.inspect_err(|refusal| {
        // A request without a span of its own: a probe that a web page sent.
        let span = if is_open { head.span() } else { Span::current() };
        span.in_scope(|| log_refused(refusal));
    })?;
    if !principal.name().is_empty() {
        Span::current().record("principal", principal.name());
    }
    head.access.check(&principal).inspect_err(log_refused)?;
    // Probes are answered whatever else goes on.
    let is_counted = !is_open && head.listener != Listener::Probes;
    let share = is_counted.then(|| state.shares.take(Kind::Requests, principal.used(), 1)).transpose();
    let share = share.map_err(Refusal::from).inspect_err(|refusal| log_overloaded(&principal, refusal))?;
    // Probes and metrics are answered while the server starts.
    if !is_open && head.route != Some(Route::Metrics) {
        state.until_started().await;
    }
    admit(state, head)?;
    Ok((principal, share))
}

/// Lets a request whose body was waited for in again, as it would be let in if it came now: the token may have been taken away
/// meanwhile, may have expired, or may do or see less. From then on the request is that of the caller as the token describes it.
pub fn let_in_again(request: &HttpRequest) -> LocalBoxFuture<'_, Result<(), Refusal>> {
    Box::pin(async move {
        let state = request.app_data::<web::Data<State>>().ok_or_else(Refusal::internal)?;
        let earlier = Principal::of(request);
        if state.settings.auth.knows(&earlier) {
            return Ok(());
        }
        let admitted = admit_again(state, request, &earlier).await;
        // `serve` logs what is forbidden.
        if let Err(refusal) = &admitted
            && is_of_access(refusal.code())
            && refusal.code() != Code::Forbidden
        {
            log_refused(refusal);
        }
        request.extensions_mut().insert(admitted?);
        Ok(())
    })
}

/// The caller of a request as it stands by now, which may still do and see what it asks for.
async fn admit_again(
    state: &State,
    request: &HttpRequest,
    earlier: &Arc<Principal>,
) -> Result<Arc<Principal>, Refusal> {
    let auth = &state.settings.auth;
    // Another instance has checked the secret.
    let is_forwarded = peer_credential::is_forwarded(request);
    let found = if is_forwarded { auth.named(earlier.name()) } else { auth.again(earlier) };
    let principal = found?;
    let (method, path) = (request.method(), request.match_info().as_str());
    let route = routes::find(path);
    access_of(route, method).check(&principal)?;
    if let Some(route) = route {
        visibility::admit(state, route, method, path, &principal).await?;
    }
    Ok(principal)
}

/// A ledger that takes no writes leaves its callers without an answer until their time is over.
fn with_reason_of_ledger(state: &State, refusal: Refusal) -> Refusal {
    if refusal.code() != Code::LedgerUnavailable || !state.is_open() {
        return refusal;
    }
    match state.ledger.unwritable() {
        Some(reason) => refusal.with_reason_of_ledger(reason),
        None => refusal,
    }
}

/// Ends a JSON answer with a newline, as files and terminals have it.
fn end_line(answer: ServiceResponse<BoxBody>) -> ServiceResponse<BoxBody> {
    let kind = answer.headers().get(CONTENT_TYPE);
    if kind.is_none_or(|kind| kind.as_bytes() != b"application/json") {
        return answer;
    }
    answer.map_body(|_, body| match body.try_into_bytes() {
        Ok(bytes) if bytes.is_empty() || bytes.ends_with(b"\n") => BoxBody::new(bytes),
        Ok(bytes) => {
            // The writer has left room, and nobody shares the bytes: they stay where they are.
            let mut bytes = bytes.try_into_mut().unwrap_or_else(|shared| BytesMut::from(&shared[..]));
            bytes.extend_from_slice(b"\n");
            BoxBody::new(bytes.freeze())
        }
        Err(stream) => stream,
    })
}

/// Counts the bytes of a large answer until its receiver has taken it. Beyond the limit, a read is refused; whatever changed
/// something is answered.
fn count_unsent(
    state: &State,
    id: &RequestId,
    method: &Method,
    principal: &Principal,
    answer: ServiceResponse<BoxBody>,
) -> ServiceResponse<BoxBody> {
    let BodySize::Sized(bytes) = answer.response().body().size() else { return answer };
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    if bytes <= UNCOUNTED_BYTES_MAX || *method == Method::HEAD {
        return answer;
    }
    match state.shares.take(Kind::Sending, principal.used(), bytes) {
        Ok(share) => keep_with(answer, share),
        Err(reached) if *method == Method::GET => {
            let refusal = Refusal::from(reached);
            log_overloaded(principal, &refusal);
            answer.into_response(refusal.respond(id))
        }
        Err(_) => answer,
    }
}

/// Whether a refusal before the handler says that the caller may not do this, or may not see it.
fn is_of_access(code: Code) -> bool {
    matches!(code, Code::Forbidden | Code::Unauthorized | Code::NotFound)
}

/// Logs that a caller gets `overloaded`, and which limit is reached: once a minute for each token, since no metric names it.
fn log_overloaded(principal: &Principal, refusal: &Refusal) {
    if refusal.code() == Code::Overloaded && principal.used().is_some_and(|used| used.overload_told.is_due())
    {
        tracing::warn!(%refusal, "a caller's requests are refused for now: a limit is reached");
    }
}

fn log_refused(refusal: &Refusal) {
    tracing::info!(%refusal, "access is refused");
}

async fn identify(
    state: &State,
    head: &Head,
    request: &mut ServiceRequest,
) -> Result<Arc<Principal>, Refusal> {
    if state.settings.auth.is_open() {
        let is_probe = head.route.is_some_and(|route| route.is_probed_by(request.method()));
        loopback::admit(&request.head().uri, request.headers(), is_probe)?;
    }
    if head.access != Access::Open && peer_credential::is_claimed(request.headers()) {
        // The cluster's secret is known once the server has started.
        state.until_started().await;
        if let Some(proven) = forwarded(state, request)? {
            let principal = state.settings.auth.named(&proven.principal);
            request.extensions_mut().insert(proven);
            return principal;
        }
    }
    state.settings.auth.identify(request.headers(), head.access)
}

/// What the credential of a forwarded request proves. Without a good one the request is the client's own, and loses the
/// headers that only instances may send.
fn forwarded(state: &State, request: &mut ServiceRequest) -> Result<Option<Proven>, Refusal> {
    if let Some(awaited) = state.awaited() {
        return Err(Refusal::new(Code::LedgerUnavailable, awaited.detail()));
    }
    match state.credentials.check(request.request()) {
        Ok(proven) => {
            let incarnation = state.incarnation();
            let me = &incarnation.identity.id;
            if proven.to != me.as_str().as_bytes() {
                // Another process had this address before.
                let detail = format!("this is {me}, and the request was forwarded to another instance");
                return Err(Refusal::new(Code::NotOwner, detail));
            }
            // The key may be one of theirs, and this instance the one to serve it from now on.
            for leaving in peer_credential::leaving(request.headers()) {
                incarnation.cluster_view.avoid_leaving(&leaving);
            }
            Ok(Some(proven))
        }
        Err(unproven) => {
            metrics::counter!("fencepost_forward_unproven_total").increment(1);
            tracing::info!(%unproven, "a request says that an instance forwarded it, which does not count");
            peer_credential::strip(request.headers_mut());
            Ok(None)
        }
    }
}

fn admit(state: &State, head: &Head) -> Result<(), Refusal> {
    let is_api = matches!(head.access, Access::Scope(_));
    if is_api && state.traffic.is_draining() {
        let detail = "this instance is stopping; ask another instance, or this one after its restart";
        return Err(Refusal::new(Code::Draining, detail).closing());
    }
    if is_api && let Some(refusal) = state.went_back() {
        return Err(refusal);
    }
    if let Some(awaited) = state.awaited()
        && !head.route.is_none_or(Route::needs_no_ledger)
    {
        let detail = format!("{}; try again, or ask another instance", awaited.detail());
        // Also where it waits for the bus: callers do not try again after `bus_unavailable`.
        return Err(Refusal::new(Code::LedgerUnavailable, detail));
    }
    Ok(())
}

/// A path that does not exist, or that does not take this method, is refused to callers with a token.
fn access_of(route: Option<Route>, method: &Method) -> Access {
    route.map_or(Access::Known, |route| route.access(method))
}

/// What is answered when a handler panicked.
#[derive(Debug)]
struct Defect(RequestId);

impl std::fmt::Display for Defect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a defect in request {}", self.0)
    }
}

impl actix_web::ResponseError for Defect {
    fn error_response(&self) -> actix_web::HttpResponse {
        Refusal::internal().closing().respond(&self.0)
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "no text",
    }
}

/// Callers may invent methods; labels may not grow with them.
pub fn method_label(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::HEAD => "HEAD",
        Method::DELETE => "DELETE",
        Method::PATCH => "PATCH",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

/// One thread's handles to the request metrics, found once per route, method and status.
#[derive(Default)]
pub struct Tally(RefCell<HashMap<Key, (Counter, Histogram)>>);

/// Route, method, status.
type Key = (&'static str, &'static str, u16);

impl Tally {
    fn count(&self, head: &Head, status: StatusCode, took: Duration) {
        let (route, method) = (head.pattern, head.method);
        let mut handles = self.0.borrow_mut();
        let (requests, seconds) = handles.entry((route, method, status.as_u16())).or_insert_with(|| {
            let status = status.as_str().to_owned();
            (
                metrics::counter!(
                    "fencepost_http_requests_total", "route" => route, "method" => method, "status" => status
                ),
                metrics::histogram!("fencepost_http_request_seconds", "route" => route),
            )
        });
        requests.increment(1);
        seconds.record(took.as_secs_f64());
    }
}
