//! A small client: the nonce calls of the contract, each attempt exactly one request to the instance
//! that the caller names, and one more to the owner where that instance names one. No other retry, no guess.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::history::{Asked, Granted, History, Outcome, Record, Settlement, Told, Verdict};

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
        let mut request = self.http.request(method.parse()?, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(key) = key {
            request = request.header("Idempotency-Key", key);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let answer = request.send().await?;
        let header = |name: &str| Some(answer.headers().get(name)?.to_str().ok()?.to_owned());
        let (status, retry_after) = (answer.status().as_u16(), header("retry-after"));
        let content_type = header("content-type").unwrap_or_default();
        let text = answer.text().await?;
        let body = serde_json::from_str(&text).unwrap_or_default();
        Ok(Reply { status, body, text, content_type, retry_after })
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

    /// All items of a list, page by page.
    ///
    /// # Errors
    /// A page does not come, or has another shape.
    pub async fn list(&self, url: &str) -> Result<Vec<Value>> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = match &cursor {
                None => self.get(&format!("{url}?limit=1000")).await?,
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

    /// Sends a recorded request to the instance at `base`, or to the owner that it names instead of itself,
    /// and records what came of it.
    pub async fn ask(&self, history: &History, client: usize, base: &str, asked: &Asked) -> Told {
        let (url, key, body) = request_of(base, asked);
        let sent_us = history.now_us();
        let mut answer = self.request("POST", &url, key, Some(&body)).await;
        if let Some(owner) = answer.as_ref().ok().and_then(|reply| reply.body["owner_url"].as_str())
            && answer.as_ref().is_ok_and(|reply| reply.code() == "not_owner")
        {
            let (url, ..) = request_of(owner, asked);
            answer = self.request("POST", &url, key, Some(&body)).await;
        }
        let ended_us = history.now_us();
        let told = match &answer {
            Err(error) => Told::Unknown { error: format!("{error:#}") },
            Ok(reply) => told_by(asked, reply),
        };
        history.add(Record { client, asked: asked.clone(), told: told.clone(), sent_us, ended_us });
        told
    }
}

/// An HTTP client for private servers: no proxy, no redirect, and no TLS to speak of. It trusts no
/// certificate, so that it works where the system has none.
pub fn plain_http(limit: Duration) -> Result<reqwest::Client> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let builder = reqwest::Client::builder().timeout(limit).redirect(reqwest::redirect::Policy::none());
    Ok(builder.no_proxy().tls_backend_preconfigured(tls).build()?)
}

fn request_of<'a>(base: &str, asked: &'a Asked) -> (String, Option<&'a str>, Value) {
    match asked {
        Asked::Grant { signer, count, hold_ms, key } => (
            format!("{base}/v1/signers/{signer}/nonces"),
            key.as_deref(),
            json!({"count": count, "hold_ms": hold_ms}),
        ),
        Asked::Settle { signer, settlements } => {
            // A single line goes through the single calls, so that these are under the same judge.
            if let [one] = settlements.as_slice() {
                let base = format!("{base}/v1/signers/{signer}/nonces/{}", one.nonce);
                return match one.outcome {
                    Outcome::Consumed => (
                        format!("{base}/consume"),
                        None,
                        without_null(json!({"hold": one.hold, "tx_hash": one.tx_hash})),
                    ),
                    Outcome::NeverSent | Outcome::Unknown => {
                        (format!("{base}/release"), None, json!({"hold": one.hold, "outcome": one.outcome}))
                    }
                };
            }
            let lines: Vec<Value> =
                settlements.iter().map(|one: &Settlement| without_null(json!(one))).collect();
            (format!("{base}/v1/signers/{signer}/settlements"), None, json!({"settlements": lines}))
        }
    }
}

fn without_null(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, field| !field.is_null());
    }
    value
}

fn told_by(asked: &Asked, reply: &Reply) -> Told {
    let understood = match (asked, reply.status) {
        (Asked::Grant { .. }, 201) => granted(&reply.body),
        (Asked::Settle { settlements, .. }, 200) if settlements.len() == 1 => {
            reply.body["status"].as_str().map(|status| Told::Settled(vec![Verdict::Done(status.to_owned())]))
        }
        (Asked::Settle { settlements, .. }, 200) => settled(&reply.body)
            .filter(|told| matches!(told, Told::Settled(v) if v.len() == settlements.len())),
        (Asked::Settle { settlements, .. }, 409)
            if settlements.len() == 1 && matches!(reply.code(), "stale_hold" | "already_settled") =>
        {
            Some(Told::Settled(vec![Verdict::Refused(reply.code().to_owned())]))
        }
        (_, 400..)
            if !reply.code().is_empty() && reply.content_type.starts_with("application/problem+json") =>
        {
            Some(Told::Refused { status: reply.status, code: reply.code().to_owned() })
        }
        _ => None,
    };
    understood.unwrap_or_else(|| Told::Malformed { status: reply.status, body: reply.text.clone() })
}

fn granted(body: &Value) -> Option<Told> {
    let grants = body["grants"].as_array()?.iter().map(|one| {
        if one["status"] != "HELD" {
            return None;
        }
        Some(Granted {
            nonce: one["nonce"].as_u64()?,
            hold: one["hold"].as_str()?.to_owned(),
            held_for_ms: one["held_for_ms"].as_u64()?,
        })
    });
    Some(Told::Granted { token: body["fencing_token"].as_i64()?, grants: grants.collect::<Option<_>>()? })
}

fn settled(body: &Value) -> Option<Told> {
    let lines = body["results"].as_array()?.iter().map(|one| match (&one["status"], &one["code"]) {
        (Value::String(status), Value::Null) => Some(Verdict::Done(status.clone())),
        (Value::Null, Value::String(code)) => Some(Verdict::Refused(code.clone())),
        _ => None,
    });
    Some(Told::Settled(lines.collect::<Option<_>>()?))
}
