//! The request that is brought to an owner: what the other instance is sent, and in whose name.

use std::sync::Arc;

use actix_web::HttpRequest;
use actix_web::http::header::{HeaderMap, HeaderName};
use client::Passed;
use domain::{BulkId, IdempotencyKey, TraceParent};
use url::{Position, Url};
use wire::limits::REQUEST_ID_CHARS_MAX;
use wire::{FORWARDED_FOR_BULK, FORWARDED_NOTED, FORWARDED_PLACES};

use crate::auth::Principal;
use crate::peer_credential::{self, PASSED_HEADERS};
use crate::request_id::X_REQUEST_ID_NAME;
use crate::traces::{self, TRACEPARENT_NAME};

/// A request for the owner of a key: one that came in, or one that this instance makes in its name.
#[derive(Clone)]
pub struct ForwardedRequest {
    /// What the other instance is sent. The forwarder adds which instance forwards it to which, and the credential.
    pub(super) passed: Passed,
    /// Whose request it is.
    principal: Arc<Principal>,
    /// Whether another instance has forwarded it already. The gate has checked that it did.
    is_forwarded: bool,
    /// Whether its caller is sent to the owner instead where callers are redirected.
    pub(super) may_be_redirected: bool,
}

impl ForwardedRequest {
    /// A request, as it came in.
    pub fn of(request: &HttpRequest, body: Vec<u8>) -> Self {
        let passed = Passed {
            method: request.method().to_string(),
            path: as_sent(request.uri().path_and_query().map_or("/", |path| path.as_str())),
            headers: passed_headers(request.headers()),
            body,
        };
        let (principal, is_forwarded) = (Principal::of(request), peer_credential::is_forwarded(request));
        Self { passed, principal, is_forwarded, may_be_redirected: true }
    }

    /// A request that is brought to the owner also where callers are redirected: a socket, by which more comes, cannot be
    /// redirected, nor can what must be done whether or not its owner can be reached.
    pub fn brought(request: &HttpRequest, body: Vec<u8>) -> Self {
        Self { may_be_redirected: false, ..Self::of(request, body) }
    }

    /// A request that the audit notes as a whole, whatever is done [within](Self::within) it: no other instance notes that again.
    pub fn noted(request: &HttpRequest) -> Self {
        let mut noted = Self::of(request, Vec::new());
        noted.passed.headers.push((FORWARDED_PLACES, FORWARDED_NOTED.as_bytes().to_vec()));
        noted
    }

    /// What this instance does by itself in the name of a caller, for [`Self::within`]. The id is of visible ASCII characters. It
    /// is cut to what a request's id may have: instead of a longer one the other instance would make an id of its own, which
    /// the credential is not for.
    pub fn own(principal: &Arc<Principal>, request_id: &str) -> Self {
        let id = request_id.bytes().take(REQUEST_ID_CHARS_MAX).collect();
        let headers = vec![(X_REQUEST_ID_NAME, id)];
        let passed = Passed { method: "POST".to_owned(), path: "/".to_owned(), headers, body: Vec::new() };
        Self { passed, principal: Arc::clone(principal), is_forwarded: false, may_be_redirected: false }
    }

    /// The same for a bulk operation, which neither counts nor is noted as the caller's at the other instance.
    pub fn for_bulk(principal: &Arc<Principal>, id: BulkId) -> Self {
        let mut own = Self::own(principal, &format!("bulk-{id}"));
        own.passed.headers.push((FORWARDED_PLACES, FORWARDED_FOR_BULK.as_bytes().to_vec()));
        own
    }

    /// Whose request it is.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whether another instance has forwarded it.
    pub const fn is_forwarded(&self) -> bool {
        self.is_forwarded
    }

    /// Whether this instance makes it for a bulk operation of its caller.
    pub fn is_for_bulk(&self) -> bool {
        let mark = (FORWARDED_PLACES, FORWARDED_FOR_BULK.as_bytes());
        self.passed.headers.iter().any(|(name, value)| (*name, value.as_slice()) == mark)
    }

    /// The span that it continues.
    pub fn continues(&self) -> Option<TraceParent> {
        let (_, value) = self.passed.headers.iter().find(|(name, _)| *name == TRACEPARENT_NAME)?;
        std::str::from_utf8(value).ok().and_then(TraceParent::parse)
    }

    /// Another request in this one's name, without a body.
    pub fn within(&self, method: &str, path: String, key: Option<&IdempotencyKey>) -> Self {
        let is_kept = |name: &str| matches!(name, X_REQUEST_ID_NAME | TRACEPARENT_NAME | FORWARDED_PLACES);
        let kept = self.passed.headers.iter().filter(|(name, _)| is_kept(name)).cloned();
        let typed = [("content-type", b"application/json".to_vec())];
        let key = key.map(|key| ("idempotency-key", key.as_str().as_bytes().to_vec()));
        let headers = kept.chain(typed).chain(key).collect();
        let passed = Passed { method: method.to_owned(), path: as_sent(&path), headers, body: Vec::new() };
        let (is_forwarded, may_be_redirected) = (self.is_forwarded, self.may_be_redirected);
        Self { passed, principal: Arc::clone(&self.principal), is_forwarded, may_be_redirected }
    }

    /// A part of a batch: the jobs at these places.
    pub fn part(&self, places: &[usize], body: Vec<u8>) -> Self {
        let places: Vec<_> = places.iter().map(ToString::to_string).collect();
        let mut part = self.clone();
        part.passed.headers.push((FORWARDED_PLACES, places.join(",").into_bytes()));
        part.passed.body = body;
        part
    }
}

/// A path and its query as the HTTP library sends them: it escapes some characters that clients may send as they are.
fn as_sent(path: &str) -> String {
    // Of most there is nothing to escape, and no dot between two slashes.
    let is_plain =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b':' | b'@');
    let is_sent_so = path.starts_with('/') && !path.starts_with("//") && path.bytes().all(is_plain);
    if is_sent_so { path.to_owned() } else { escaped(path) }
}

fn escaped(path: &str) -> String {
    let parsed = Url::parse("http://h").and_then(|base| base.join(path)).ok();
    let parsed = parsed.filter(|url| url.host_str() == Some("h"));
    parsed.map_or_else(|| path.to_owned(), |url| url[Position::BeforePath..Position::AfterQuery].to_owned())
}

/// The headers that a forwarded request keeps.
fn passed_headers(headers: &HeaderMap) -> Vec<(&'static str, Vec<u8>)> {
    let passed = |name: &'static HeaderName| Some((name.as_str(), headers.get(name)?.as_bytes().to_vec()));
    let passed = PASSED_HEADERS.iter().filter_map(passed);
    // The credential does not cover it: an instance of the last release would refuse it.
    let continues = traces::of_request(headers);
    passed.chain(continues.map(|parent| (TRACEPARENT_NAME, parent.to_string().into_bytes()))).collect()
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;
    use crate::auth::Auth;
    use crate::request_id::RequestId;

    #[test]
    fn the_id_of_a_request_that_an_instance_makes_by_itself_is_taken_as_it_is_sent() {
        for id in ["node-gpu-1".to_owned(), format!("node-{}", "n".repeat(wire::limits::NODE_ID_CHARS_MAX))] {
            let own = ForwardedRequest::own(&Auth::open().named("").unwrap(), &id);
            let mut headers = HeaderMap::new();
            for (name, value) in own.within("GET", "/v1/whoami".to_owned(), None).passed.headers {
                headers.insert(HeaderName::from_static(name), HeaderValue::from_bytes(&value).unwrap());
            }
            let sent = headers.get(X_REQUEST_ID_NAME).cloned();
            assert_eq!(sent, Some(RequestId::of(&headers).value()), "{id}");
        }
    }

    #[test]
    fn a_path_is_signed_as_it_is_sent() {
        for (path, sent) in [
            ("/v1/signers/eip155:1:0xab/nonces?limit=1", "/v1/signers/eip155:1:0xab/nonces?limit=1"),
            ("/v1/jobs?state=a|b\"c", "/v1/jobs?state=a|b%22c"),
            ("/v1/signers/a%2Fb/nonces", "/v1/signers/a%2Fb/nonces"),
            ("//elsewhere/v1/jobs", "//elsewhere/v1/jobs"),
        ] {
            assert_eq!(as_sent(path), sent);
            assert_eq!(as_sent(sent), sent, "once is enough");
        }
    }

    #[test]
    fn a_path_without_anything_to_escape_is_sent_as_it_is() {
        let pieces =
            ["/", "//", "/.", "/..", "/v1", ":", "@", "-_~", "a.b", "%2e", "\\", "?x=1", "#", " ", "ä"];
        for first in ["/", "/v1", "//h", "v1:", ""] {
            for (second, third) in pieces.iter().flat_map(|second| pieces.map(|third| (second, third))) {
                let path = format!("{first}{second}{third}");
                assert_eq!(as_sent(&path), escaped(&path), "{path}");
            }
        }
    }
}
