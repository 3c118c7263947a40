//! One call: build the request, send it, read the answer, and try again within bounds.
//!
//! What must never live here: knowledge of a particular route. Every call that passes through here is
//! harmless to repeat; a new one that is not must not use [`Client::call`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Method, Response, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;
use wire::{Code, Problem};

use crate::error::root_cause;
use crate::routes::Routes;
use crate::{Error, Result, Retry, tls};

/// Largest answer that is read, in bytes. A page of 1,000 items stays far below it.
pub(crate) const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long an instance may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest `Retry-After` that is believed, in seconds.
const RETRY_AFTER_S_MAX: u64 = 3_600;

/// A client of one Fencepost, which may be many instances. Cheap to clone; clones share connections.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    bases: Arc<[Url]>,
    /// Which of `bases` the next request goes to.
    current: Arc<AtomicUsize>,
    /// Where signers are, as far as is known; `None` where that is not asked.
    routes: Option<Routes>,
    retry: Retry,
}

/// What is to be sent.
pub(crate) struct Call<'a, B> {
    pub(crate) method: Method,
    /// Path segments, not yet escaped.
    pub(crate) path: &'a [&'a str],
    pub(crate) query: &'a [(&'static str, String)],
    pub(crate) body: Option<&'a B>,
    pub(crate) idempotency_key: Option<&'a str>,
    /// The signer whose owner is to do it.
    pub(crate) signer: Option<&'a str>,
}

impl<'a> Call<'a, ()> {
    /// A read.
    pub(crate) fn get(path: &'a [&'a str], query: &'a [(&'static str, String)]) -> Self {
        Self { method: Method::GET, path, query, body: None, idempotency_key: None, signer: None }
    }
}

impl<'a, B> Call<'a, B> {
    /// A write about a signer.
    pub(crate) fn about(signer: &'a str, method: Method, path: &'a [&'a str], body: &'a B) -> Self {
        let signer = Some(signer);
        Self { method, path, query: &[], body: Some(body), idempotency_key: None, signer }
    }
}

/// An answer, and when the attempt that it answers was sent.
pub(crate) struct Answer<T> {
    pub(crate) body: T,
    pub(crate) sent_at: Instant,
}

impl Client {
    /// A client for these base URLs, tried in turn as they fail, with the usual [`Retry`].
    ///
    /// # Errors
    /// [`Error::Unusable`] without any URL, for one that is no plain `http://` or `https://` URL, for a
    /// token that no header can carry, and when TLS is wanted and cannot be set up.
    pub fn new<U: AsRef<str>>(urls: impl IntoIterator<Item = U>, token: Option<&str>) -> Result<Self> {
        let bases: Vec<Url> = urls.into_iter().map(|url| base(url.as_ref())).collect::<Result<_>>()?;
        if bases.is_empty() {
            return Err(Error::Unusable("a client needs at least one URL".to_owned()));
        }
        let mut headers = HeaderMap::new();
        if let Some(token) = token {
            let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| {
                Error::Unusable("the token has characters that a header cannot carry".to_owned())
            })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let secure = bases.iter().any(|url| url.scheme() == "https");
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls::settings(secure)?)
            .default_headers(headers)
            .user_agent(concat!("fencepost-client/", env!("CARGO_PKG_VERSION")))
            // A redirect would carry the token wherever it points.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            // The loop below decides about repeating; the library's own would escape its bounds.
            .retry(reqwest::retry::never())
            .build()
            .map_err(|error| Error::Unusable(root_cause(&error)))?;
        Ok(Self {
            http,
            bases: bases.into(),
            current: Arc::new(AtomicUsize::new(0)),
            routes: Some(Routes::default()),
            retry: Retry::default(),
        })
    }

    /// The same client with other bounds on trying again.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// The same client asking its own URLs only. Usually it learns from the daemon where the instances are,
    /// and asks the owner of a signer straight; where clients cannot reach the instances at the addresses that
    /// these advertise, that costs an attempt each time.
    #[must_use]
    pub fn without_ring(mut self) -> Self {
        self.routes = None;
        self
    }

    /// Sends until there is an answer, a refusal for good, or no time or attempt left.
    pub(crate) async fn call<B: Serialize, T: DeserializeOwned>(
        &self,
        call: &Call<'_, B>,
    ) -> Result<Answer<T>> {
        let started = Instant::now();
        // One id for all attempts, so that they can be found together in the logs.
        let request_id = uuid::Uuid::new_v4().to_string();
        let mut attempt = 0;
        let mut unreachable_in_a_row = 0;
        loop {
            attempt += 1;
            let left = self.retry.total_max.saturating_sub(started.elapsed());
            let at = self.current.load(Ordering::Relaxed);
            let sent_at = Instant::now();
            let limit = left.min(self.retry.attempt_max);
            let straight = self.owner(call.signer);
            let asked = straight.as_ref().unwrap_or(&self.bases[at]);
            let mut failure = match self.attempt(asked, call, &request_id, limit).await {
                Ok(body) => return Ok(Answer { body, sent_at }),
                Err(failure) => failure,
            };
            // Whoever says that it is not the owner names the one who is: that one is asked once.
            if let Some(owner) = failure.owner.take().filter(|owner| self.may_ask(owner)) {
                let sent_at = Instant::now();
                failure = match self.attempt(&owner, call, &request_id, limit).await {
                    Ok(body) => return Ok(Answer { body, sent_at }),
                    Err(failure) => failure,
                };
            }
            if !failure.error.is_retryable() || attempt >= self.retry.attempts_max {
                return Err(failure.error);
            }
            if let (Some(routes), Some(url), true) = (&self.routes, &straight, failure.elsewhere) {
                // Back to the URLs that were given; whoever is there knows better.
                routes.avoid(url);
                if started.elapsed() < self.retry.total_max {
                    continue;
                }
            }
            let moved = failure.elsewhere && self.rotate(at);
            unreachable_in_a_row = if failure.elsewhere { unreachable_in_a_row + 1 } else { 0 };
            // Another instance that was not asked yet is asked at once; a pause helps only those that were.
            if moved && unreachable_in_a_row < self.bases.len() {
                continue;
            }
            let pause = self.retry.pause(attempt, failure.hint, rand::random());
            // An attempt that there is no time for would only turn a refusal that says why into silence.
            let another = pause + sent_at.elapsed();
            if started.elapsed() + another >= self.retry.total_max {
                return Err(failure.error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Where to ask about a signer, if that is known.
    fn owner(&self, signer: Option<&str>) -> Option<Url> {
        self.routes.as_ref()?.owner(signer?).filter(|url| self.may_ask(url))
    }

    /// Looks at the ring in the background, if an answer says that it has changed.
    fn note_ring(&self, base: &Url, response: &Response) {
        let version =
            response.headers().get(wire::RING_VERSION).and_then(|value| value.to_str().ok()?.parse().ok());
        let looking =
            self.routes.as_ref().zip(version).and_then(|(routes, version)| routes.is_outdated(version));
        let Some(looking) = looking else { return };
        let (client, base) = (self.clone(), base.clone());
        tokio::spawn(async move {
            let id = uuid::Uuid::new_v4().to_string();
            let call = Call::get(&["v1", "cluster"], &[]);
            // Whoever fails to look leaves it to the next answer.
            if let Ok(cluster) = client.attempt(&base, &call, &id, client.retry.attempt_max).await {
                looking.found(cluster);
            }
        });
    }

    /// An answer that can be read and cannot be right.
    pub(crate) fn strange(&self, reason: String) -> Error {
        let url = shown(&self.bases[self.current.load(Ordering::Relaxed)]);
        Error::Unexpected { url, status: 200, reason }
    }

    /// The token goes nowhere but where this client was sent: over the kind of connection that it was
    /// given, to an address that one of its own daemons named.
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
    ) -> std::result::Result<T, Failure> {
        let mut request = self
            .http
            .request(call.method.clone(), target(base, call.path)?)
            .timeout(timeout)
            .header("X-Request-Id", request_id);
        if !call.query.is_empty() {
            request = request.query(call.query);
        }
        if let Some(body) = call.body {
            request = request.json(body);
        }
        if let Some(key) = call.idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        let mut response =
            request.send().await.map_err(|error| Failure::unanswered(of_sending(base, error)))?;
        let status = response.status();
        let hint = retry_after(&response);
        if call.signer.is_some() {
            self.note_ring(base, &response);
        }
        let body = read(&mut response).await.map_err(|error| Failure::unanswered(of_reading(base, error)))?;
        let Some(body) = body else {
            let reason = format!("it is longer than {ANSWER_BYTES_MAX} bytes");
            return Err(Failure::unexpected(base, status.as_u16(), reason, hint));
        };
        if status.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|error| Failure::unexpected(base, status.as_u16(), error.to_string(), hint));
        }
        match serde_json::from_slice::<Problem>(&body) {
            Ok(problem) => Err(Failure::refused(problem, hint)),
            Err(_) => {
                let reason = "it is no problem document".to_owned();
                Err(Failure::unexpected(base, status.as_u16(), reason, hint))
            }
        }
    }
}

/// An attempt that failed, and what it says about the next one.
struct Failure {
    error: Error,
    /// After how long to try again at the earliest.
    hint: Option<Duration>,
    /// Whether another instance may do better now.
    elsewhere: bool,
    /// The owner of the key, where the instance asked is not.
    owner: Option<Url>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, hint: None, elsewhere: false, owner: None }
    }
}

impl Failure {
    /// No answer came. Another instance may be there.
    const fn unanswered(error: Error) -> Self {
        Self { error, hint: None, elsewhere: true, owner: None }
    }

    fn unexpected(base: &Url, status: u16, reason: String, hint: Option<Duration>) -> Self {
        let error = Error::Unexpected { url: shown(base), status, reason };
        Self { error, hint, elsewhere: status >= 500, owner: None }
    }

    fn refused(problem: Problem, header: Option<Duration>) -> Self {
        // Of the two the body is the finer one: the header counts in whole seconds.
        let hint = problem.retry_after_ms.map(Duration::from_millis).or(header);
        let hint = hint.map(|hint| hint.min(Duration::from_secs(RETRY_AFTER_S_MAX)));
        let elsewhere = match problem.known_code() {
            Some(
                Code::Draining | Code::LedgerUnavailable | Code::Fenced | Code::Overloaded | Code::NotOwner,
            ) => true,
            // The lease is let go within moments, and its holder serves no sooner than anybody.
            Some(_) | None => false,
        };
        let owner = match problem.known_code() {
            Some(Code::NotOwner) => problem.owner_url.as_deref().and_then(|url| base(url).ok()),
            _ => None,
        };
        Self { error: Error::Refused(Box::new(problem)), hint, elsewhere, owner }
    }
}

/// What a request that could not be sent, or had no answer, means.
pub(crate) fn of_sending(base: &Url, source: reqwest::Error) -> Error {
    let (url, reason) = (shown(base), root_cause(&source));
    if source.is_builder() {
        Error::Unusable(reason)
    } else if source.is_connect() {
        Error::Unreachable { url, reason, source: source.into() }
    } else if source.is_timeout() {
        Error::Lost { url, reason: "no answer in time".to_owned(), source: Some(source.into()) }
    } else {
        Error::Lost { url, reason, source: Some(source.into()) }
    }
}

/// What an answer that broke off means.
pub(crate) fn of_reading(base: &Url, source: reqwest::Error) -> Error {
    let reason = root_cause(&source);
    Error::Lost { url: shown(base), reason, source: Some(source.into()) }
}

pub(crate) fn base(text: &str) -> Result<Url> {
    let url = Url::parse(text).map_err(|error| {
        Error::Unusable(format!("{text:?} is no URL such as http://127.0.0.1:7070: {error}"))
    })?;
    let plain = url.query().is_none()
        && url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none();
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !plain {
        return Err(Error::Unusable(
            "a base URL is http:// or https:// with a host, without user, query and fragment, such as \
             http://127.0.0.1:7070"
                .to_owned(),
        ));
    }
    Ok(url)
}

/// A base URL as it was given, without the slash that parsing adds.
pub(crate) fn shown(base: &Url) -> String {
    base.as_str().trim_end_matches('/').to_owned()
}

/// Joins a base URL and path segments, escaping what needs it.
fn target(base: &Url, path: &[&str]) -> Result<Url> {
    // An empty segment or one of dots would make this another path.
    if let Some(bad) = path.iter().find(|segment| matches!(**segment, "" | "." | "..")) {
        return Err(Error::Unusable(format!("{bad:?} names nothing that a request could be about")));
    }
    let mut url = base.clone();
    url.path_segments_mut()
        .map_err(|()| Error::Unusable(format!("{base} cannot be a base URL")))?
        .pop_if_empty()
        .extend(path);
    Ok(url)
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
mod tests;
