//! A small HTTP client: each call is exactly one request to the instance that the caller names. No retry, no guess.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;

use crate::authority::Pair;

/// An answer as it came.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body, `null` when it is no JSON.
    pub body: Value,
    /// The body as text.
    pub text: String,
    /// `Content-Type`, empty when missing.
    pub content_type: String,
    /// `Retry-After`, as it came.
    pub retry_after: Option<String>,
    /// `Location`, as it came.
    pub location: Option<String>,
}

impl Reply {
    /// The stable code of a refusal; empty when there is none.
    #[must_use]
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or_default()
    }
}

/// Connections to any number of instances.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    token: Option<String>,
}

impl Client {
    /// A client that gives up on an answer after `limit`.
    ///
    /// # Errors
    /// The HTTP library cannot be set up.
    pub fn new(limit: Duration) -> Result<Self> {
        let http = plain_http(limit)?;
        Ok(Self { http, token: None })
    }

    /// A client over connections of the caller's own.
    #[must_use]
    pub const fn over(http: reqwest::Client) -> Self {
        Self { http, token: None }
    }

    /// The same client, showing a bearer token.
    #[must_use]
    pub fn with_token(mut self, token: &str) -> Self {
        self.token = Some(token.to_owned());
        self
    }

    /// One request.
    ///
    /// # Errors
    /// No answer came; whether the request was carried out is unknown.
    pub async fn request(
        &self,
        method: &str,
        url: &str,
        key: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Reply> {
        let key = key.map(|key| ("Idempotency-Key", key));
        self.request_with(method, url, key.as_slice(), body).await
    }

    /// One request with these headers, in their order; a name may be there several times.
    ///
    /// # Errors
    /// As [`Self::request`].
    pub async fn request_with(
        &self,
        method: &str,
        url: &str,
        headers: &[(&str, &str)],
        body: Option<&Value>,
    ) -> Result<Reply> {
        let mut request = self.http.request(method.parse()?, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let header = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
        let status = answer.status().as_u16();
        let (retry_after, location) = (header("retry-after"), header("location"));
        let content_type = header("content-type").unwrap_or_default();
        let text = answer.text().await?;
        let body = serde_json::from_str(&text).unwrap_or_default();
        Ok(Reply { status, body, text, content_type, retry_after, location })
    }

    /// `GET url`, which must answer 200.
    ///
    /// # Errors
    /// No answer, or another status.
    pub async fn get(&self, url: &str) -> Result<Value> {
        let reply = self.request("GET", url, None, None).await?;
        if reply.status != 200 {
            bail!("GET {url}: {} {}", reply.status, reply.text);
        }
        Ok(reply.body)
    }

    /// All items of a list, page by page. The URL may have a query.
    ///
    /// # Errors
    /// A page does not come, or has another shape.
    pub async fn list(&self, url: &str) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = match &cursor {
                None => {
                    let mark = if url.contains('?') { '&' } else { '?' };
                    self.get(&format!("{url}{mark}limit=1000")).await?
                }
                Some(cursor) => {
                    let reply = self.http.get(url).query(&[("limit", "1000"), ("cursor", cursor)]);
                    let reply = match &self.token {
                        Some(token) => reply.bearer_auth(token),
                        None => reply,
                    };
                    reply.send().await?.error_for_status()?.json().await?
                }
            };
            let some = page["items"].as_array().context("a list has items")?;
            items.extend(some.iter().cloned());
            match &page["next_cursor"] {
                Value::Null => return Ok(items),
                Value::String(next) => cursor = Some(next.clone()),
                other => bail!("next_cursor is neither null nor a text: {other}"),
            }
        }
    }
}

/// An HTTP client for private servers: no proxy, no redirect, and no TLS to speak of. It trusts no
/// certificate, so that it works where the system has none.
pub fn plain_http(limit: Duration) -> Result<reqwest::Client> {
    trusting(limit, &[], None)
}

/// The same, trusting the authorities in these PEM files, and showing this certificate where a server asks for one.
///
/// # Errors
/// A file cannot be used.
pub fn trusting(limit: Duration, authorities: &[&Path], pair: Option<&Pair>) -> Result<reqwest::Client> {
    let tls = tls(authorities, pair)?;
    let builder = reqwest::Client::builder().timeout(limit).redirect(reqwest::redirect::Policy::none());
    Ok(builder.no_proxy().tls_backend_preconfigured(tls).build()?)
}

/// TLS that trusts the authorities in these PEM files alone.
pub(crate) fn tls(authorities: &[&Path], pair: Option<&Pair>) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for file in authorities {
        for certificate in CertificateDer::pem_file_iter(file)? {
            roots.add(certificate?)?;
        }
    }
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots);
    Ok(match pair {
        None => tls.with_no_client_auth(),
        Some(pair) => {
            let chain = CertificateDer::pem_file_iter(&pair.certificate)?.collect::<Result<_, _>>()?;
            tls.with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&pair.key)?)?
        }
    })
}
