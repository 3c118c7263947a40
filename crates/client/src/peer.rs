//! Forwards a request, unchanged, to the instance that owns its key, and returns the answer unchanged.
//!
//! What must never live here: a second try. The caller knows which other instance to ask, and whether the
//! request may have been carried out already.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Url};

use crate::error::root_cause;
use crate::transport::{self, ANSWER_BYTES_MAX, IDLE_MAX};
use crate::{Error, Result, TlsOptions, base_url, tls};

/// How long an instance may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections to other instances. Cheap to clone; clones share them.
#[derive(Clone, Debug)]
pub struct Peers {
    current: Arc<ArcSwap<Connections>>,
    is_secure: bool,
}

/// Connections that are made with one set of certificates.
#[derive(Debug)]
struct Connections {
    http: reqwest::Client,
    expires_at: Option<u64>,
}

impl Connections {
    fn new(is_secure: bool, tls: &TlsOptions) -> Result<Self> {
        let http = connections(is_secure, tls)?;
        let own = tls.pair.as_ref().map(tls::Pair::read).transpose()?;
        Ok(Self { http, expires_at: own.as_ref().and_then(tls::expires_at) })
    }
}

/// A request on its way to another instance.
#[derive(Clone, Debug)]
pub struct Passed {
    /// Its method.
    pub method: String,
    /// Its path and query, as they came.
    pub path: String,
    /// Its headers, those that are to be passed on.
    pub headers: Vec<(&'static str, Vec<u8>)>,
    /// Its body.
    pub body: Vec<u8>,
}

/// The other instance's answer.
#[derive(Clone, Debug)]
pub struct PassedBack {
    /// The HTTP status.
    pub status: u16,
    /// `Content-Type`.
    pub content_type: Option<Vec<u8>>,
    /// `Retry-After`.
    pub retry_after: Option<Vec<u8>>,
    /// `Location`.
    pub location: Option<Vec<u8>>,
    /// The body.
    pub body: Vec<u8>,
}

impl Peers {
    /// Prepares connections. `is_secure` says whether instances are reached by `https://`.
    ///
    /// # Errors
    /// [`Error::Unusable`] when TLS is wanted and cannot be set up, and for a file that cannot be used.
    pub fn new(is_secure: bool, tls: &TlsOptions) -> Result<Self> {
        let current = Arc::new(ArcSwap::from_pointee(Connections::new(is_secure, tls)?));
        Ok(Self { current, is_secure })
    }

    /// Has new connections made with these certificates from now on. Requests under way go on over the connections that they
    /// have.
    ///
    /// # Errors
    /// As [`Self::new`]; then nothing has changed.
    pub fn renew(&self, tls: &TlsOptions) -> Result<()> {
        self.current.store(Arc::new(Connections::new(self.is_secure, tls)?));
        Ok(())
    }

    /// The last second at which the certificate that is shown to other instances is valid, since 1970. `None` without one, or if
    /// that cannot be read.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        self.current.load().expires_at
    }

    /// Passes a request on to the instance at `base`.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if the request was certainly not carried out; [`Error::Lost`] if that is not
    /// known; [`Error::Unexpected`] for an answer that is too long; [`Error::Unusable`] for a URL that is
    /// none.
    pub async fn pass(&self, base: &str, request: Passed, timeout: Duration) -> Result<PassedBack> {
        let base = base_url::parse(base)?;
        let unusable = |what: &str| Error::Unusable(format!("{what} cannot be passed on"));
        let url = Url::options()
            .base_url(Some(&base))
            .parse(&request.path)
            .ok()
            .filter(|url| url.origin() == base.origin())
            .ok_or_else(|| unusable("the path"))?;
        let method = Method::from_bytes(request.method.as_bytes()).map_err(|_| unusable("the method"))?;
        let mut headers = HeaderMap::new();
        for (name, value) in request.headers {
            let value = HeaderValue::from_bytes(&value).map_err(|_| unusable(name))?;
            headers.append(HeaderName::from_static(name), value);
        }
        let http = self.current.load().http.clone();
        let sent = http.request(method, url).headers(headers).body(request.body).timeout(timeout);
        let mut response = sent.send().await.map_err(|error| transport::of_sending(&base, error))?;
        let status = response.status().as_u16();
        let header = |name: HeaderName| response.headers().get(name).map(|value| value.as_bytes().to_vec());
        let content_type = header(reqwest::header::CONTENT_TYPE);
        let retry_after = header(reqwest::header::RETRY_AFTER);
        let location = header(reqwest::header::LOCATION);
        let body =
            transport::read(&mut response).await.map_err(|error| transport::of_reading(&base, error))?;
        let body = body.ok_or_else(|| Error::Unexpected {
            url: base_url::shown(&base),
            status,
            reason: format!("it is longer than {ANSWER_BYTES_MAX} bytes"),
        })?;
        Ok(PassedBack { status, content_type, retry_after, location, body })
    }
}

/// The HTTP client that goes to others from here: without a proxy, redirects and repetitions. `is_secure` says whether it goes
/// to any URL of `https://`.
///
/// # Errors
/// [`Error::Unusable`] for a file that cannot be used, or where nobody could be trusted.
pub fn connections(is_secure: bool, tls: &TlsOptions) -> Result<reqwest::Client> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls::settings(is_secure, tls, tls::Reading::Once)?)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(IDLE_MAX)
        .no_proxy()
        .build()
        .map_err(|error| Error::Unusable(root_cause(&error)))
}
