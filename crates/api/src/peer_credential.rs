//! The credential of a request that an instance forwards to another one. The caller's own token does not travel: the
//! first instance has checked it, and says whose request it is; the second looks that name up among its own tokens.
//!
//! The credential is an HMAC, under a key from the cluster's secret, of the time, both instances, the request with the
//! headers that are passed on, the caller's name, and the digest of the body. So it is good for this request, at this
//! instance, for [`CREDENTIAL_AGE_MAX`]; who repeats it within that time can repeat nothing else.
//!
//! The time is the database's, which all instances ask all the time: an instance whose own clock is wrong forwards like any
//! other.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use actix_web::http::header::{CONTENT_TYPE, HeaderMap, HeaderName};
use actix_web::{HttpMessage, HttpRequest};
use actors::database_clock::SharedClock;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::{ClusterSecret, InstanceId};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use wire::{
    FORWARDED_BY, FORWARDED_CREDENTIAL, FORWARDED_FOR_BULK, FORWARDED_LEAVING, FORWARDED_NOTED,
    FORWARDED_PLACES, FORWARDED_TO,
};

use crate::limits::CREDENTIAL_AGE_MAX;
use crate::request_id::X_REQUEST_ID_NAME;

/// The headers of a caller's request that the request to the owner has too.
pub static PASSED_HEADERS: [HeaderName; 3] =
    [CONTENT_TYPE, HeaderName::from_static("idempotency-key"), HeaderName::from_static(X_REQUEST_ID_NAME)];
/// The header [`FORWARDED_PLACES`].
pub static PLACES: HeaderName = HeaderName::from_static(FORWARDED_PLACES);
static BY: HeaderName = HeaderName::from_static(FORWARDED_BY);
static TO: HeaderName = HeaderName::from_static(FORWARDED_TO);
static CREDENTIAL: HeaderName = HeaderName::from_static(FORWARDED_CREDENTIAL);
static LEAVING: HeaderName = HeaderName::from_static(FORWARDED_LEAVING);
/// The headers that instances add to what they forward.
static INSTANCE_HEADERS: [&HeaderName; 4] = [&BY, &TO, &PLACES, &CREDENTIAL];
/// The headers that only instances may send.
static CLAIMING: [&HeaderName; 3] = [&BY, &TO, &CREDENTIAL];
/// What the key is for. Another version has another one.
const PURPOSE: &[u8] = b"fencepost forwarded request v1";
const VERSION: &str = "v1";

type Sha256Mac = Hmac<Sha256>;

/// Makes and checks credentials.
#[derive(Clone)]
pub struct Credentials {
    key: Sha256Mac,
    clock: SharedClock,
}

/// What a credential is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'r> {
    /// The instance that forwards.
    pub by: &'r [u8],
    /// The instance that is asked.
    pub to: &'r [u8],
    pub method: &'r str,
    /// Path and query, as they are sent.
    pub path: &'r str,
    /// The caller's name; empty where there are no tokens.
    pub principal: &'r str,
}

/// What a good credential says. The gate puts it among the extensions of its request.
#[derive(Debug, PartialEq, Eq)]
pub struct Proven {
    /// The name of the caller's token.
    pub principal: String,
    /// The instance that is meant to get the request.
    pub to: Vec<u8>,
    pub body: BodyDigest,
    /// Whether the instance that forwards works on a bulk operation of that caller, which it has counted and noted as a whole.
    pub is_for_bulk: bool,
    /// Whether the audit has an entry for all that the request is a part of.
    pub is_noted: bool,
}

/// The digest of the body that belongs to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyDigest([u8; 32]);

impl BodyDigest {
    fn of(body: &[u8]) -> Self {
        Self(Sha256::digest(body).into())
    }

    /// Whether this is the body.
    pub fn fits(self, body: &[u8]) -> bool {
        Self::of(body) == self
    }
}

/// Why a credential does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// There is none.
    #[error("it has no credential")]
    Missing,
    /// It cannot be read.
    #[error("its credential cannot be read")]
    Unreadable,
    /// It is too old, or of the future.
    #[error("its credential is {0} ms off the database's clock")]
    Untimely(i64),
    /// It is for another request, or by another secret.
    #[error("its credential is for another request, or made by another cluster.secret")]
    Wrong,
}

impl Credentials {
    /// The credentials of the instances that share this secret, and the database with this clock.
    pub fn new(secret: &ClusterSecret, clock: SharedClock) -> Self {
        let mut key = keyed(secret.expose().as_bytes());
        key.update(PURPOSE);
        Self { key: keyed(&key.finalize().into_bytes()), clock }
    }

    /// Milliseconds since 1970 by the database's clock; by this machine's before the database was asked for the time.
    fn now_ms(&self) -> i64 {
        self.clock.shows().map_or_else(machine_ms, |time| time.as_micros() / 1_000)
    }

    /// The credential of a request with these headers and this body.
    pub fn make(&self, subject: Subject<'_>, headers: &[(&'static str, Vec<u8>)], body: &[u8]) -> String {
        self.made_at(self.now_ms(), subject, headers, body)
    }

    fn made_at(
        &self,
        at_ms: i64,
        subject: Subject<'_>,
        headers: &[(&'static str, Vec<u8>)],
        body: &[u8],
    ) -> String {
        let body = BodyDigest::of(body);
        let header = |wanted: &HeaderName| {
            headers.iter().find(|(name, _)| *name == wanted.as_str()).map(|(_, value)| value.as_slice())
        };
        let mac = self.mac(at_ms, subject, header, body).finalize().into_bytes();
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (principal, body, mac) = (encode(subject.principal.as_bytes()), encode(&body.0), encode(&mac));
        format!("{VERSION}.{at_ms}.{principal}.{body}.{mac}")
    }

    /// Checks the credential of a request. The body is checked when it has been read.
    ///
    /// # Errors
    /// Why it does not count.
    pub fn check(&self, request: &HttpRequest) -> Result<Proven, Unproven> {
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let checked_at = |now_ms| self.checked_at(now_ms, request.method().as_str(), path, request.headers());
        match checked_at(self.now_ms()) {
            // The database's clock jumped, and one of the two instances has not seen it yet.
            Err(Unproven::Untimely(_)) => checked_at(machine_ms()),
            checked => checked,
        }
    }

    fn checked_at(
        &self,
        now_ms: i64,
        method: &str,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Proven, Unproven> {
        let header = |name: &HeaderName| headers.get(name).map(|value| value.as_bytes());
        let text = header(&CREDENTIAL).ok_or(Unproven::Missing)?;
        if INSTANCE_HEADERS.iter().any(|name| headers.get_all(*name).count() > 1) {
            return Err(Unproven::Unreadable);
        }
        let (at_ms, principal, body, mac) = read(text).ok_or(Unproven::Unreadable)?;
        let (Some(by), Some(to)) = (header(&BY), header(&TO)) else {
            return Err(Unproven::Unreadable);
        };
        let subject = Subject { by, to, method, path, principal: &principal };
        self.mac(at_ms, subject, header, body).verify_slice(&mac).map_err(|_| Unproven::Wrong)?;
        let off_ms = now_ms.saturating_sub(at_ms);
        if off_ms.unsigned_abs() > CREDENTIAL_AGE_MAX.as_millis() as u64 {
            return Err(Unproven::Untimely(off_ms));
        }
        let says = |mark: &str| header(&PLACES) == Some(mark.as_bytes());
        let is_for_bulk = says(FORWARDED_FOR_BULK);
        let is_noted = is_for_bulk || says(FORWARDED_NOTED);
        Ok(Proven { to: to.to_owned(), principal, body, is_for_bulk, is_noted })
    }

    /// Every part has its length before it, so that no two requests read alike.
    fn mac<'h>(
        &self,
        at_ms: i64,
        subject: Subject<'_>,
        header: impl Fn(&HeaderName) -> Option<&'h [u8]>,
        body: BodyDigest,
    ) -> Sha256Mac {
        let mut mac = self.key.clone();
        let mut add = |part: Option<&[u8]>| {
            mac.update(&part.map_or(u64::MAX, |part| part.len() as u64).to_be_bytes());
            mac.update(part.unwrap_or_default());
        };
        let Subject { by, to, method, path, principal } = subject;
        add(Some(&at_ms.to_be_bytes()));
        for part in [by, to, method.as_bytes(), path.as_bytes(), principal.as_bytes(), &body.0] {
            add(Some(part));
        }
        for name in &PASSED_HEADERS {
            add(header(name));
        }
        add(header(&PLACES));
        mac
    }
}

/// Whether a request says that an instance forwarded it.
pub fn is_claimed(headers: &HeaderMap) -> bool {
    CLAIMING.iter().any(|name| headers.contains_key(*name))
}

/// Whether another instance has forwarded the request. It has proven so, else the gate has taken its headers away.
pub fn is_forwarded(request: &HttpRequest) -> bool {
    request.headers().contains_key(&BY)
}

/// Whether another instance makes the request for a bulk operation of its caller, who did not send it.
pub fn is_for_bulk(request: &HttpRequest) -> bool {
    request.extensions().get::<Proven>().is_some_and(|proven| proven.is_for_bulk)
}

/// Whether another instance makes the request for a part of something that the audit has noted as a whole.
pub fn is_noted(request: &HttpRequest) -> bool {
    request.extensions().get::<Proven>().is_some_and(|proven| proven.is_noted)
}

/// The instances that are leaving, as the one says that forwards the request. The credential does not cover them, so that an
/// instance of the last release takes it: which instance a key is left to decides nothing about the key.
pub fn leaving(headers: &HeaderMap) -> Vec<InstanceId> {
    let named = headers.get(&LEAVING).and_then(|named| named.to_str().ok()).unwrap_or_default();
    named.split(',').filter_map(|id| InstanceId::parse(id).ok()).collect()
}

/// Takes away what only instances may say. [`FORWARDED_PLACES`] stay, as an instance of 0.1.0 sends them without a credential:
/// they choose among the caller's own keys alone.
pub fn strip(headers: &mut HeaderMap) {
    for name in CLAIMING {
        headers.remove(name);
    }
}

fn read(text: &[u8]) -> Option<(i64, String, BodyDigest, Vec<u8>)> {
    let mut parts = std::str::from_utf8(text).ok()?.split('.');
    let decoded = |parts: &mut std::str::Split<'_, char>| URL_SAFE_NO_PAD.decode(parts.next()?).ok();
    (parts.next()? == VERSION).then_some(())?;
    let at_ms = parts.next()?.parse().ok()?;
    let principal = String::from_utf8(decoded(&mut parts)?).ok()?;
    let body = BodyDigest(decoded(&mut parts)?.try_into().ok()?);
    let mac = decoded(&mut parts)?;
    parts.next().is_none().then_some((at_ms, principal, body, mac))
}

fn keyed(key: &[u8]) -> Sha256Mac {
    Sha256Mac::new_from_slice(key).expect("HMAC takes keys of any length")
}

fn machine_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    const NOW: i64 = 1_800_000_000_000;
    const AGE: i64 = CREDENTIAL_AGE_MAX.as_millis() as i64;

    fn credentials(secret: char) -> Credentials {
        Credentials::new(
            &ClusterSecret::parse(&secret.to_string().repeat(32)).unwrap(),
            SharedClock::new(Duration::from_secs(1)),
        )
    }

    const SUBJECT: Subject<'static> = Subject {
        by: b"a-1",
        to: b"b-1",
        method: "POST",
        path: "/v1/signers/s/nonces?x=1",
        principal: "Relayer ü",
    };

    /// The headers of a request as it arrives.
    fn sent(credentials: &Credentials, subject: Subject<'_>, at_ms: i64) -> HeaderMap {
        sent_with(credentials, subject, at_ms, "0,2")
    }

    fn sent_with(credentials: &Credentials, subject: Subject<'_>, at_ms: i64, places: &str) -> HeaderMap {
        let passed = vec![
            ("content-type", b"application/json".to_vec()),
            ("idempotency-key", b"k-1".to_vec()),
            (X_REQUEST_ID_NAME, b"r-1".to_vec()),
            (FORWARDED_PLACES, places.as_bytes().to_vec()),
        ];
        let credential = credentials.made_at(at_ms, subject, &passed, b"{}");
        let mut headers = HeaderMap::new();
        let own = [(FORWARDED_BY, subject.by.to_vec()), (FORWARDED_TO, subject.to.to_vec())];
        let credential = (FORWARDED_CREDENTIAL, credential.into_bytes());
        for (name, value) in passed.into_iter().chain(own).chain([credential]) {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(&value).unwrap());
        }
        headers
    }

    fn checked(headers: &HeaderMap, at_ms: i64) -> Result<Proven, Unproven> {
        credentials('s').checked_at(at_ms, SUBJECT.method, SUBJECT.path, headers)
    }

    #[test]
    fn a_credential_proves_the_caller_the_receiver_and_the_body() {
        let headers = sent(&credentials('s'), SUBJECT, NOW);
        for at in [NOW, NOW - AGE, NOW + AGE] {
            let proven = checked(&headers, at).unwrap();
            assert_eq!((proven.principal.as_str(), proven.to.as_slice()), ("Relayer ü", SUBJECT.to));
            assert!(proven.body.fits(b"{}") && !proven.body.fits(b"{ }") && !proven.body.fits(b""));
        }
        let nobody = Subject { principal: "", ..SUBJECT };
        assert_eq!(checked(&sent(&credentials('s'), nobody, NOW), NOW).unwrap().principal, "");
    }

    #[test]
    fn only_a_credential_says_that_a_request_is_for_a_bulk_operation_or_is_noted_as_a_whole() {
        for (mark, is_for_bulk) in [(FORWARDED_FOR_BULK, true), (FORWARDED_NOTED, false)] {
            let marked = checked(&sent_with(&credentials('s'), SUBJECT, NOW, mark), NOW).unwrap();
            assert!(marked.is_noted && marked.is_for_bulk == is_for_bulk, "{mark}");
            let mut callers = sent(&credentials('s'), SUBJECT, NOW);
            let part = checked(&callers, NOW).unwrap();
            assert!(!part.is_for_bulk && !part.is_noted);
            callers.insert(HeaderName::from_static(FORWARDED_PLACES), HeaderValue::from_static(mark));
            assert_eq!(checked(&callers, NOW), Err(Unproven::Wrong), "{mark}");
        }
    }

    #[test]
    fn a_credential_is_good_for_half_a_minute_either_way() {
        let headers = sent(&credentials('s'), SUBJECT, NOW);
        for off in [AGE + 1, -AGE - 1] {
            assert_eq!(checked(&headers, NOW + off), Err(Unproven::Untimely(off)));
        }
        let ancient = sent(&credentials('s'), SUBJECT, i64::MIN);
        assert!(matches!(checked(&ancient, NOW), Err(Unproven::Untimely(_))));
    }

    #[test]
    fn a_credential_is_good_for_its_own_request_alone() {
        let good = sent(&credentials('s'), SUBJECT, NOW);
        assert_eq!(checked(&sent(&credentials('t'), SUBJECT, NOW), NOW), Err(Unproven::Wrong));
        let other = |method: &str, path: &str| credentials('s').checked_at(NOW, method, path, &good);
        assert_eq!(other("DELETE", SUBJECT.path), Err(Unproven::Wrong));
        assert_eq!(other("POST", "/v1/signers/t/nonces?x=1"), Err(Unproven::Wrong));
        assert_eq!(other("POST", "/v1/signers/s/nonces"), Err(Unproven::Wrong));
        for name in [&BY, &TO, &PLACES].into_iter().chain(&PASSED_HEADERS) {
            let mut changed = good.clone();
            changed.insert(name.clone(), HeaderValue::from_static("other"));
            assert_eq!(checked(&changed, NOW), Err(Unproven::Wrong), "{name}");
            changed.remove(name);
            assert!(checked(&changed, NOW).is_err(), "{name}");
            let mut doubled = good.clone();
            doubled.append(name.clone(), HeaderValue::from_static("other"));
            // The reader of each of the others refuses it twice.
            assert_eq!(checked(&doubled, NOW).is_err(), INSTANCE_HEADERS.contains(&name), "{name}");
        }
    }

    #[test]
    fn every_change_of_a_credential_is_refused() {
        let good = sent(&credentials('s'), SUBJECT, NOW);
        let credential = good.get(FORWARDED_CREDENTIAL).unwrap().to_str().unwrap().to_owned();
        let with = |text: &str| {
            let mut headers = good.clone();
            let value = HeaderValue::from_str(text).unwrap();
            headers.insert(HeaderName::from_static(FORWARDED_CREDENTIAL), value);
            checked(&headers, NOW)
        };
        for at in 0..credential.len() {
            let mut changed = credential.clone().into_bytes();
            changed[at] = if changed[at] == b'A' { b'B' } else { b'A' };
            let changed = String::from_utf8(changed).unwrap();
            assert!(matches!(with(&changed), Err(Unproven::Wrong | Unproven::Unreadable)), "{changed}");
        }
        for text in ["", "v1", "v1.1.a.b.c", &credential[..credential.len() - 4], &format!("{credential}.a")]
        {
            assert!(matches!(with(text), Err(Unproven::Unreadable | Unproven::Wrong)), "{text}");
        }
        let mut bare = good.clone();
        bare.remove(FORWARDED_CREDENTIAL);
        assert_eq!(checked(&bare, NOW), Err(Unproven::Missing));
        assert!(is_claimed(&bare) && is_claimed(&good));
        let mut stripped = good;
        strip(&mut stripped);
        assert!(!is_claimed(&stripped) && stripped.contains_key(CONTENT_TYPE));
        assert!(stripped.contains_key(FORWARDED_PLACES), "0.1.0 sends them without a credential");
    }
}
