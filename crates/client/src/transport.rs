//! One request to one instance: build it, send it, read the answer. Trying again is in [`rounds`].
//!
//! What must never live here: knowledge of a particular route. Every call that passes through here is
//! harmless to repeat, but one that says [`Call::once`].

mod failure;
mod rounds;

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::Problem;

use crate::base_url::{self, reason, shown, target};
use crate::error::{is_certificate_refused, root_cause};
use crate::routes::{Looking, Routes};
use crate::socket::Dialer;
use crate::token::{Token, bearer};
use crate::{Error, Result, Retry, TlsOptions};
use failure::Failure;

/// Largest answer that is read, in bytes. A page of 1,000 items stays far below it.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long an instance may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection is kept without use. Well below how long an instance keeps it, or waits for a request's head (30 s),
/// and below what is usual for load balancers (60 s): a request on a connection that the other side is just closing is lost.
pub const IDLE_MAX: Duration = Duration::from_secs(20);
/// Longest `Retry-After` that is believed, in seconds.
const RETRY_AFTER_S_MAX: u64 = 3_600;
/// How long reading the ring may take.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// How long a request waits for an instance, beyond [`Call::expected`], before the client checks that the instance is still
/// live.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// The delay between two such checks of an instance that was asked to wait: thousands of callers may do nothing else.
const LOOK_WHILE_WAITING: Duration = Duration::from_secs(5);

/// A client of one Fencepost cluster, of one or many instances. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    dialer: Dialer,
    bases: Arc<[Url]>,
    /// Which of `bases` the next request goes to.
    current: Arc<AtomicUsize>,
    /// The known owners of signers; `None` if the client does not use the ring.
    routes: Option<Routes>,
    pub(crate) retry: Retry,
    /// The id of its requests; `None` if each call makes one.
    request_id: Option<String>,
    /// [`LOOK_AFTER`].
    look_after: Duration,
    /// [`LOOK_WHILE_WAITING`].
    look_while_waiting: Duration,
}

/// What is to be sent.
pub(crate) struct Call<'a, B> {
    pub(crate) method: Method,
    /// Path segments, not yet escaped.
    pub(crate) path: &'a [&'a str],
    pub(crate) query: &'a [(&'static str, String)],
    pub(crate) body: Option<&'a B>,
    pub(crate) idempotency_key: Option<&'a str>,
    /// Further headers. Their values have no control characters.
    pub(crate) headers: &'a [(&'static str, &'a str)],
    /// The signer whose owner must handle the request.
    pub(crate) signer: Option<&'a str>,
    /// Whether it is a check of the instance itself, for which a failed connection is an answer.
    pub(crate) probe: bool,
    /// Whether it must not be sent again once it may have been carried out.
    pub(crate) once: bool,
    /// Whether it changes nothing although its method is that of a change, as a dry run does.
    pub(crate) changes_nothing: bool,
    /// How long the instance is asked to wait before it answers.
    pub(crate) expected: Duration,
}

impl<'a> Call<'a, ()> {
    /// A read.
    pub(crate) fn get(path: &'a [&'a str], query: &'a [(&'static str, String)]) -> Self {
        Self { query, ..Self::new(Method::GET, path, None) }
    }

    /// A question about the instance itself.
    pub(crate) fn probe(path: &'a [&'a str]) -> Self {
        Self { probe: true, ..Self::get(path, &[]) }
    }

    /// A change that needs no body.
    pub(crate) fn act(path: &'a [&'a str]) -> Self {
        Self::new(Method::POST, path, None)
    }

    /// The end of something.
    pub(crate) fn delete(path: &'a [&'a str]) -> Self {
        Self::new(Method::DELETE, path, None)
    }
}

impl<'a, B> Call<'a, B> {
    /// A request with nothing but this.
    fn new(method: Method, path: &'a [&'a str], body: Option<&'a B>) -> Self {
        Self {
            method,
            path,
            query: &[],
            body,
            idempotency_key: None,
            headers: &[],
            signer: None,
            probe: false,
            once: false,
            changes_nothing: false,
            expected: Duration::ZERO,
        }
    }

    /// A change, or something new.
    pub(crate) fn post(path: &'a [&'a str], body: &'a B) -> Self {
        Self::new(Method::POST, path, Some(body))
    }

    /// A replacement.
    pub(crate) fn put(path: &'a [&'a str], body: &'a B) -> Self {
        Self::new(Method::PUT, path, Some(body))
    }

    /// The same about this signer.
    pub(crate) fn about(self, signer: &'a str) -> Self {
        Self { signer: Some(signer), ..self }
    }

    /// The same under this idempotency key, if there is one.
    pub(crate) fn under(self, key: Option<&'a str>) -> Self {
        Self { idempotency_key: key, ..self }
    }
}

/// An answer, and when the attempt that it answers was sent.
pub(crate) struct Answer<T> {
    pub(crate) body: T,
    pub(crate) sent_at: Instant,
}

/// One instance's answer.
struct Reply<T> {
    body: T,
    /// The instance's version of what its `/v1/cluster` shows.
    ring: Option<HeaderValue>,
}

impl Client {
    /// A client for these base URLs, with the usual [`Retry`]. It begins with one of them by chance, so that the processes of a
    /// fleet do not all load the same instance; as they fail, they are tried in turn from there on.
    ///
    /// # Errors
    /// [`Error::Unusable`] without any URL, for one that is no plain `http://` or `https://` URL, for a
    /// token that is empty or that no header can carry, and when TLS is wanted and cannot be set up.
    pub fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>, token: Option<&str>) -> Result<Self> {
        Self::with_tls(urls, token, &TlsOptions::default())
    }

    /// The same with authorities of its own for `https://`, or with a certificate of the client's own.
    ///
    /// # Errors
    /// As [`Self::new`]; and [`Error::Unusable`] for a file that cannot be used.
    pub fn with_tls<U: AsRef<str>>(
        urls: impl IntoIterator<Item = U>,
        token: Option<&str>,
        tls: &TlsOptions,
    ) -> Result<Self> {
        let bases: Vec<Url> =
            urls.into_iter().map(|url| base_url::parse(url.as_ref())).collect::<Result<_>>()?;
        if bases.is_empty() {
            return Err(Error::Unusable("a client needs at least one URL".to_owned()));
        }
        let token = token.map(bearer).transpose()?;
        let headers: HeaderMap = token.iter().map(|token| (AUTHORIZATION, token.clone())).collect();
        let dialer = Dialer::for_bases(&bases, token.map(Token::Given), tls)?;
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(dialer.tls().clone())
            .default_headers(headers)
            .user_agent(concat!("fencepost-client/", env!("CARGO_PKG_VERSION")))
            // A redirect would carry the token wherever it points.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_MAX)
            // As sockets do: instances are reached directly, and a token goes to nobody else.
            .no_proxy()
            // The loop below decides about repeating; the library's own would escape its bounds.
            .retry(reqwest::retry::never())
            .build()
            .map_err(|error| Error::Unusable(root_cause(&error)))?;
        let first = rand::random_range(0..bases.len());
        Ok(Self {
            http,
            dialer,
            bases: bases.into(),
            current: Arc::new(AtomicUsize::new(first)),
            routes: Some(Routes::default()),
            retry: Retry::default(),
            request_id: None,
            look_after: LOOK_AFTER,
            look_while_waiting: LOOK_WHILE_WAITING,
        })
    }

    /// The same client with other bounds on trying again.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The same client beginning with the first of its URLs, for a caller that gives them in the order of its preference. Clones
    /// that were made before are not affected.
    #[must_use]
    pub fn in_order(mut self) -> Self {
        self.current = Arc::default();
        self
    }

    /// The same client with this id for all its requests, for a caller that has to name it: 1 to 128 visible ASCII characters.
    /// Usually each call has an id of its own. With an id that no header can carry every call ends as [`Error::Unusable`].
    #[must_use]
    pub fn with_request_id(mut self, id: String) -> Self {
        self.request_id = Some(id);
        self
    }

    /// The same client asking its own URLs only. Usually it learns from the daemon where the instances are,
    /// and asks the owner of a signer straight; where clients cannot reach the instances at the addresses that
    /// these advertise, that costs an attempt now and then. Without the ring a request to a paused instance takes
    /// [`Retry::attempt_max`], also when the instance has left the cluster.
    #[must_use]
    pub fn without_ring(mut self) -> Self {
        self.routes = None;
        self
    }

    /// Which of its URLs the next call goes to first, unless it goes to the owner of a signer.
    #[must_use]
    pub fn url(&self) -> String {
        shown(&self.bases[self.current.load(Ordering::Relaxed)])
    }

    /// The URLs that it was given, and how sockets are opened there.
    pub(crate) fn sockets(&self) -> (&[Url], &Dialer) {
        (&self.bases, &self.dialer)
    }

    /// The address of a signer's owner, if it is known.
    fn owner(&self, signer: Option<&str>) -> Option<Url> {
        self.routes.as_ref()?.owner(signer?).filter(|url| self.may_ask(url))
    }

    /// Reads the ring in the background, if an answer says that it has changed.
    fn note_ring<B>(&self, base: &Url, call: &Call<'_, B>, response: &Response) {
        // For calls about no signer it says whether to leave an instance for another one.
        let is_of_use = call.signer.is_some() || self.bases.len() > 1;
        // A token that is not known cannot read the ring either.
        if !is_of_use || response.status() == StatusCode::UNAUTHORIZED {
            return;
        }
        let Some(version) = response.headers().get(wire::RING_VERSION) else { return };
        let looking = self.routes.as_ref().and_then(|routes| routes.is_outdated(version));
        if let Some(looking) = looking {
            self.look(base.clone(), looking);
        }
    }

    /// Reads the ring of this instance in the background.
    fn look(&self, base: Url, looking: Looking) {
        let client = self.clone();
        tokio::spawn(async move {
            let id = uuid::Uuid::new_v4().to_string();
            let call = Call::get(&["v1", "cluster"], &[]);
            match client.attempt(&base, &call, &id, LOOK_MAX).await {
                Ok(reply) => looking.found(reply.body, reply.ring),
                Err(failure) if is_refused_for_good(&failure.error) => looking.refused(),
                // The next call looks again.
                Err(_) => {}
            }
        });
    }

    /// The error for an answer that is readable and invalid.
    pub(crate) fn strange(&self, reason: String) -> Error {
        Error::Unexpected { url: self.url(), status: 200, reason }
    }

    /// The token goes only to the given URLs, and to addresses that one of their daemons named, over the same
    /// kind of connection.
    fn may_ask(&self, owner: &Url) -> bool {
        self.bases.iter().any(|base| base.scheme() == owner.scheme())
    }

    /// Goes on to the next base URL, unless another call did. `false` when there is only one.
    fn rotate(&self, from: usize) -> bool {
        let next = (from + 1) % self.bases.len();
        // Losing this race means that another call has left `from` already.
        let _ = self.current.compare_exchange(from, next, Ordering::Relaxed, Ordering::Relaxed);
        self.bases.len() > 1
    }

    async fn attempt<B: Serialize, T: DeserializeOwned>(
        &self,
        base: &Url,
        call: &Call<'_, B>,
        request_id: &str,
        timeout: Duration,
    ) -> std::result::Result<Reply<T>, Failure> {
        let mut response = self.respond(base, call, request_id, Some(timeout)).await?;
        let (status, hint) = (response.status(), retry_after(&response));
        let ring = response.headers().get(wire::RING_VERSION).cloned();
        let body = whole(base, &mut response, hint).await?;
        // An answer that says nothing reads as nothing.
        let said = if body.is_empty() { b"null" } else { body.as_slice() };
        serde_json::from_slice(said)
            .map(|body| Reply { body, ring })
            .map_err(|error| Failure::unexpected(base, status.as_u16(), error.to_string(), hint))
    }

    /// What a request that could not be sent, or had no answer, means. A server that speaks TLS cannot have read it.
    async fn unanswered(&self, base: &Url, source: reqwest::Error) -> Error {
        match self.dialer.tls_instead(base, &source).await {
            Some(reason) => {
                Error::Unreachable { url: shown(base), reason, others: Vec::new(), source: source.into() }
            }
            None => of_sending(base, source),
        }
    }

    /// The answer of one instance, unless it is a refusal; its body is not read yet.
    async fn respond<B: Serialize>(
        &self,
        base: &Url,
        call: &Call<'_, B>,
        request_id: &str,
        timeout: Option<Duration>,
    ) -> std::result::Result<Response, Failure> {
        let mut request = self
            .http
            .request(call.method.clone(), target(base, call.path)?)
            .header("X-Request-Id", header_value("X-Request-Id", request_id)?);
        if let Some(timeout) = timeout {
            request = request.timeout(timeout);
        }
        if !call.query.is_empty() {
            request = request.query(call.query);
        }
        if let Some(body) = call.body {
            request = request.json(body);
        }
        if let Some(key) = call.idempotency_key {
            request = request.header("Idempotency-Key", header_value("Idempotency-Key", key)?);
        }
        for (name, value) in call.headers {
            request = request.header(*name, *value);
        }
        let mut response = match request.send().await {
            Ok(response) => response,
            Err(error) => return Err(Failure::unanswered(self.unanswered(base, error).await)),
        };
        let (status, hint) = (response.status(), retry_after(&response));
        self.note_ring(base, call, &response);
        if status.is_success() {
            return Ok(response);
        }
        if status == StatusCode::REQUEST_TIMEOUT {
            // It ended an idle connection just when the request was sent on it, whatever else the answer says.
            let reason = "it closed the connection before it had read the request".to_owned();
            return Err(Failure::unexpected(base, status.as_u16(), reason, hint));
        }
        let body = whole(base, &mut response, hint).await?;
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Err(Failure::refused(problem, hint)),
            Err(_) => {
                let reason = "it is no problem document".to_owned();
                Err(Failure::unexpected(base, status.as_u16(), reason, hint))
            }
        }
    }
}

/// Whether the same would be refused again, as to a token without the scope `read`. What the server itself has failed for, as a
/// defect, may pass.
fn is_refused_for_good(error: &Error) -> bool {
    let has_failed = match error {
        Error::Refused(problem) => problem.status >= 500,
        Error::Unexpected { status, .. } => *status >= 500,
        Error::Unreachable { .. } | Error::Lost { .. } | Error::Unusable(_) => false,
    };
    !has_failed && !error.is_retryable()
}

/// The body of an answer, which is not to be longer than [`ANSWER_BYTES_MAX`].
async fn whole(
    base: &Url,
    response: &mut Response,
    hint: Option<Duration>,
) -> std::result::Result<Vec<u8>, Failure> {
    let body = read(response).await.map_err(|error| Failure::unanswered(of_reading(base, error)))?;
    body.ok_or_else(|| {
        let reason = format!("it is longer than {ANSWER_BYTES_MAX} bytes");
        Failure::unexpected(base, response.status().as_u16(), reason, hint)
    })
}

/// What a request that could not be sent, or had no answer, means.
pub(crate) fn of_sending(base: &Url, source: reqwest::Error) -> Error {
    let (url, reason) = (shown(base), reason(base, &source));
    if source.is_builder() {
        Error::Unusable(reason)
    } else if source.is_connect() || is_certificate_refused(&source) {
        Error::Unreachable { url, reason, others: Vec::new(), source: source.into() }
    } else if source.is_timeout() {
        Error::Lost { url, reason: "no answer in time".to_owned(), source: Some(source.into()) }
    } else {
        Error::Lost { url, reason, source: Some(source.into()) }
    }
}

/// The error for an answer that broke off.
pub(crate) fn of_reading(base: &Url, source: reqwest::Error) -> Error {
    let reason = root_cause(&source);
    Error::Lost { url: shown(base), reason, source: Some(source.into()) }
}

/// The caller's idempotency key, or one that was made for this call.
pub(crate) fn key_or_new(key: Option<&str>) -> Cow<'_, str> {
    key.map_or_else(|| Cow::Owned(uuid::Uuid::new_v4().to_string()), Cow::Borrowed)
}

/// What the caller gave for this header. Blanks at its ends are no part of a header's value: the server would read another one.
fn header_value(name: &str, value: &str) -> Result<HeaderValue> {
    let carried = HeaderValue::from_str(value).ok().filter(|_| value.trim_ascii() == value);
    carried.ok_or_else(|| {
        Error::Unusable(format!("{name}: {value:?} has characters that a header cannot carry"))
    })
}

fn retry_after(response: &Response) -> Option<Duration> {
    let seconds: u64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds.min(RETRY_AFTER_S_MAX)))
}

/// The whole body; `None` when it is longer than [`ANSWER_BYTES_MAX`].
pub(crate) async fn read(response: &mut Response) -> reqwest::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > ANSWER_BYTES_MAX {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

#[cfg(test)]
pub(crate) mod stand_in;
#[cfg(test)]
mod tests;
