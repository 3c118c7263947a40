//! Reads requests: bodies, query parameters, path segments, the idempotency key. What is wrong is refused here, in words
//! that say what would be right. Nothing is repaired.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use actix_web::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName};
use actix_web::{HttpMessage, HttpRequest, web};
use domain::limits::NONCE_MAX;
use domain::{IdempotencyKey, Invalid, Nonce, SignerId};
use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, StreamExt};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use wire::limits::{ID_BATCH_MAX, LIST_ITEMS_DEFAULT, LIST_ITEMS_MAX};
use wire::{Code, Object};

use crate::auth::Principal;
use crate::connection::Requests;
use crate::limits::{
    CURSOR_CHARS_MAX, DISCARD_MAX, DRAINED_BODY_MAX, JOB_WAIT_MS_MAX, READING_STEP_BYTES, UNCOUNTED_BYTES_MAX,
};
use crate::peer_credential::Proven;
use crate::refusal::Refusal;
use crate::shares::{Kind, Share, Shares};
use crate::traffic::Traffic;

/// How the OpenAPI document describes where a page of a list begins,
pub const CURSOR: &str = "A next_cursor of this list, unchanged";
/// and how long it is.
pub const LIMIT: &str = "The most items on the page; 100 by default";

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How much body is read, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits<'s> {
    /// Longest body, in bytes.
    pub bytes_max: usize,
    /// How long it may take to arrive.
    pub timeout: Duration,
    /// What all bodies take their bytes from.
    pub shares: &'s Shares,
    /// Whether the instance stops.
    pub traffic: &'s Traffic,
}

/// What lets a request in again whose body was waited for. The application has it, since what it asks is above this file.
#[derive(Clone, Copy, Debug)]
pub struct LetInAgain(pub fn(&HttpRequest) -> LocalBoxFuture<'_, Result<(), Refusal>>);

/// The body of a request that is never forwarded.
pub async fn body<T: DeserializeOwned>(
    request: &HttpRequest,
    payload: web::Payload,
    limits: BodyLimits<'_>,
) -> Result<T, Refusal> {
    object(request, &bytes(request, payload, limits).await?)
}

/// The body of a request that asks for nothing more than its path does, as it came: empty, or an object without fields.
pub async fn no_fields(
    request: &HttpRequest,
    payload: web::Payload,
    limits: BodyLimits<'_>,
) -> Result<Vec<u8>, Refusal> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    let body = bytes(request, payload, limits).await?;
    optional_object::<Nothing>(request, &body)?;
    Ok(body)
}

/// The object in a body, which must not be empty.
pub fn object<T: DeserializeOwned>(request: &HttpRequest, body: &[u8]) -> Result<T, Refusal> {
    optional_object(request, body)?
        .ok_or_else(|| Refusal::invalid("the body is missing; it must be a JSON object"))
}

/// The object in a body; `None` for an empty body.
pub fn optional_object<T: DeserializeOwned>(
    request: &HttpRequest,
    body: &[u8],
) -> Result<Option<T>, Refusal> {
    if body.is_empty() {
        return Ok(None);
    }
    check_media_type(request.headers())?;
    let text = std::str::from_utf8(body).map_err(|error| {
        Refusal::invalid(format!("the body is not UTF-8, from byte {} on", error.valid_up_to()))
    })?;
    json(text).map(Some)
}

/// The body as it came, within its limits. That of a forwarded request is the one that its credential is for. Its bytes count
/// as being read until the request is answered, or given up, unless [`kept_bytes`] takes them.
///
/// Where the body had to be waited for, the request is let in again, and its [`Principal`] may be another one than before.
pub async fn bytes(
    request: &HttpRequest,
    payload: web::Payload,
    limits: BodyLimits<'_>,
) -> Result<Vec<u8>, Refusal> {
    let body = within_limits(request, payload, limits).await?;
    let expected = request.extensions().get::<Proven>().map(|proven| proven.body);
    if expected.is_some_and(|expected| !expected.fits(&body)) {
        let detail = "the body is not the one that the forwarded request's credential is for";
        return Err(Refusal::new(Code::Unauthorized, detail));
    }
    Ok(body)
}

async fn within_limits(
    request: &HttpRequest,
    mut payload: web::Payload,
    limits: BodyLimits<'_>,
) -> Result<Vec<u8>, Refusal> {
    let headers = request.headers();
    let too_large = || too_large(limits.bytes_max);
    let unreadable = || {
        let detail =
            "the body cannot be read as it was sent: it was cut short, or its chunks are not well formed";
        Refusal::invalid(detail).closing()
    };
    let declared = declared_bytes(headers);
    if declared.is_some_and(|bytes| bytes > limits.bytes_max as u64) {
        return Err(too_large());
    }
    if headers.get(CONTENT_ENCODING).is_some_and(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"))
    {
        return Err(Refusal::new(Code::UnsupportedMediaType, "a body must come without Content-Encoding"));
    }
    let declared = declared.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0);
    // Until now the connection has kept back what did not come with the head.
    if declared > 0
        && let Some(requests) = request.conn_data::<Rc<Requests>>()
    {
        requests.await_body(declared as u64);
    }
    let mut counted = match Counted::taken(request, limits.shares, declared) {
        Ok(counted) => counted,
        Err(refusal) => {
            discard(&mut payload, declared).await;
            return Err(refusal.closing());
        }
    };
    let read = async {
        // Room for all of it: the system gives memory for what has arrived only.
        let mut bytes = Vec::with_capacity(declared);
        while let Some(chunk) = payload.next().await {
            let chunk = chunk.map_err(|_| unreadable())?;
            if bytes.len() + chunk.len() > limits.bytes_max {
                return Err(too_large());
            }
            counted.cover(bytes.len() + chunk.len()).map_err(Refusal::closing)?;
            bytes.extend_from_slice(&chunk);
        }
        counted.keep_until_answered();
        Ok(bytes)
    };
    let mut read = pin!(read);
    // Nearly every body has arrived with its head, and needs no timer.
    if let Some(bytes) = read.as_mut().now_or_never() {
        return bytes;
    }
    let stops = async {
        limits.traffic.until_draining().await;
        tokio::time::sleep(DRAINED_BODY_MAX).await;
    };
    let arrived = tokio::select! {
        biased;
        bytes = read => bytes,
        () = stops => {
            Err(Refusal::new(Code::Draining, "this instance is stopping, and the body has not arrived").closing())
        }
        () = tokio::time::sleep(limits.timeout) => {
            let ms = limits.timeout.as_millis();
            Err(Refusal::invalid(format!("the body did not arrive within {ms} ms")).closing())
        }
    };
    let bytes = arrived?;
    let LetInAgain(let_in) = *request.app_data::<LetInAgain>().ok_or_else(Refusal::internal)?;
    let_in(request).await?;
    Ok(bytes)
}

/// What the head says of the body's length, in bytes.
pub fn declared_bytes(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.trim().parse().ok()
}

/// The refusal of a body that is longer than this.
pub fn too_large(bytes_max: usize) -> Refusal {
    Refusal::new(Code::TooLarge, format!("a body may have {bytes_max} bytes")).closing()
}

/// The bytes of the body that was read, which had so many: they count as being read until this is dropped, be they few. For work
/// that keeps what was read also where the caller leaves.
///
/// # Errors
/// The limit that is reached, for a body that was not counted before.
pub fn kept_bytes(request: &HttpRequest, shares: &Shares, bytes: usize) -> Result<Share, Refusal> {
    let counted = request.extensions_mut().remove::<Share>();
    if let Some(share) = counted {
        return Ok(share);
    }
    let principal = Principal::of(request);
    Ok(shares.take(Kind::Reading, principal.used(), bytes)?)
}

/// The bytes of one body, as far as they are counted.
struct Counted<'r> {
    request: &'r HttpRequest,
    shares: &'r Shares,
    share: Option<Share>,
}

impl<'r> Counted<'r> {
    /// Takes what the body is said to have.
    fn taken(request: &'r HttpRequest, shares: &'r Shares, declared: usize) -> Result<Self, Refusal> {
        let mut counted = Self { request, shares, share: None };
        if declared > UNCOUNTED_BYTES_MAX {
            counted.take(declared)?;
        }
        Ok(counted)
    }

    /// Takes more where a body that did not say its length has so many bytes by now.
    fn cover(&mut self, bytes: usize) -> Result<(), Refusal> {
        let covered = self.share.as_ref().map_or(UNCOUNTED_BYTES_MAX, Share::amount);
        if bytes <= covered {
            return Ok(());
        }
        let more = bytes.next_multiple_of(READING_STEP_BYTES);
        match &mut self.share {
            Some(share) => Ok(share.grow(more - covered)?),
            None => self.take(more),
        }
    }

    fn take(&mut self, bytes: usize) -> Result<(), Refusal> {
        let principal = Principal::of(self.request);
        self.share = Some(self.shares.take(Kind::Reading, principal.used(), bytes)?);
        Ok(())
    }

    fn keep_until_answered(self) {
        if let Some(share) = self.share {
            self.request.extensions_mut().insert(share);
        }
    }
}

/// Throws away the rest of a body, for a moment: a client that still sends it would not read the answer, and a connection that is
/// closed with unread bytes loses its answer.
async fn discard(payload: &mut web::Payload, declared: usize) {
    let rest = async {
        let mut left = declared;
        while let Some(Ok(chunk)) = payload.next().await {
            left = left.saturating_sub(chunk.len());
            if left == 0 {
                return;
            }
        }
    };
    // After that, the sender is too slow for it.
    let _ = tokio::time::timeout(DISCARD_MAX, rest).await;
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let fits = |text: &str| {
        let (media_type, parameters) = text.split_once(';').unwrap_or((text, ""));
        let parameters = parameters.trim();
        let utf8 = ["", "charset=utf-8", "charset=\"utf-8\""];
        media_type.trim().eq_ignore_ascii_case("application/json")
            && utf8.iter().any(|known| parameters.eq_ignore_ascii_case(known))
    };
    let mut all = headers.get_all(CONTENT_TYPE);
    let first = all.next().and_then(|value| value.to_str().ok());
    if first.is_some_and(fits) && all.next().is_none() {
        return Ok(());
    }
    Err(Refusal::new(Code::UnsupportedMediaType, "send the header Content-Type: application/json, in UTF-8"))
}

/// Reads a JSON object. One that is refused is read once more and slower, to name the field that is wrong.
fn json<T: DeserializeOwned>(text: &str) -> Result<T, Refusal> {
    if let Ok(Object(value)) = serde_json::from_str(text) {
        return Ok(value);
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let Object(value) = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let place = format!("the body is refused: {}", place(&error));
        Refusal::unreadable(&place, &error.inner().to_string())
    })?;
    reader.end().map_err(|error| Refusal::invalid(format!("after the body's JSON object: {error}")))?;
    Ok(value)
}

/// The field that is wrong, for the words before what is wrong with it; empty for the value itself.
fn place(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let path = error.path().to_string();
    // A question mark stands for what has no name, such as a key that is not complete.
    let known = path.strip_suffix(".?").unwrap_or(&path);
    if matches!(known, "." | "?") { String::new() } else { format!("{known}: ") }
}

/// Reads a refused frame, or a refused part of a body, once more and slower, to name the field that is wrong. If the text is
/// JSON, the message leaves out the line and the column, which count in this text only; else it says that it is none.
pub fn refused_part<T: DeserializeOwned>(text: &str) -> Refusal {
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = serde_path_to_error::deserialize::<_, T>(&mut reader);
    let (place, error) = match read.map_err(|error| (place(&error), error.into_inner())) {
        Err(wrong) => wrong,
        Ok(_) => match reader.end() {
            Err(error) => (String::new(), error),
            Ok(()) => return Refusal::internal(),
        },
    };
    let mut message = error.to_string();
    if !error.is_data() {
        return Refusal::unreadable(&format!("the text cannot be read as JSON: {place}"), &message);
    }
    let column = format!(" at line {} column {}", error.line(), error.column());
    if message.ends_with(&column) {
        message.truncate(message.len() - column.len());
    }
    Refusal::unreadable(&place, &message)
}

/// The signer in the path.
pub fn signer(request: &HttpRequest) -> Result<SignerId, Refusal> {
    Ok(SignerId::parse(segment(request, "signer"))?)
}

/// The nonce in the path.
pub fn nonce(request: &HttpRequest) -> Result<Nonce, Refusal> {
    let text = segment(request, "nonce");
    number(text)
        .and_then(|number| Nonce::new(number).ok())
        .ok_or_else(|| Refusal::invalid(format!("nonce must be a whole number from 0 to {NONCE_MAX}")))
}

/// A segment of the path, its percent-encoding undone once. `%25`, `%2B` and `%2F` stay as they are;
/// the characters they stand for are in no id, so every reader refuses them either way.
pub fn segment<'r>(request: &'r HttpRequest, name: &str) -> &'r str {
    request.match_info().get(name).unwrap_or_default()
}

/// Digits only: no sign, no space, no zero in front.
pub fn number(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    if plain { text.parse().ok() } else { None }
}

/// The idempotency key, if there is one.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<IdempotencyKey>, Refusal> {
    let mut all = headers.get_all(&IDEMPOTENCY_KEY);
    let Some(value) = all.next() else { return Ok(None) };
    if all.next().is_some() {
        return Err(Refusal::invalid("Idempotency-Key must be sent once"));
    }
    // Text that is not ASCII fails the check as well, so its exact bytes do not matter.
    Ok(Some(IdempotencyKey::parse(&String::from_utf8_lossy(value.as_bytes()))?))
}

/// The query parameters, each known to the route and given once.
#[derive(Debug)]
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Reads them.
    pub fn read(request: &HttpRequest, known: &[&str]) -> Result<Self, Refusal> {
        let query = request.query_string();
        let mut given: Vec<(String, String)> = Vec::new();
        if query.is_empty() {
            return Ok(Self(given));
        }
        for (name, value) in pairs(query) {
            // No known name has the character that stands for bytes that are no UTF-8.
            let name = String::from_utf8_lossy(&unescaped(name)).into_owned();
            if !known.contains(&name.as_str()) {
                let allowed = match known {
                    [] => "this path takes none".to_owned(),
                    known => format!("this path takes {}", known.join(", ")),
                };
                return Err(Refusal::invalid(format!("unknown query parameter {name:?}; {allowed}")));
            }
            if given.iter().any(|(earlier, _)| *earlier == name) {
                return Err(Refusal::invalid(format!("query parameter {name} must be given once")));
            }
            let Ok(value) = String::from_utf8(unescaped(value)) else {
                return Err(Refusal::invalid(format!("{name} must be a text in UTF-8, percent-encoded")));
            };
            given.push((name, value));
        }
        Ok(Self(given))
    }

    /// Whether [`Self::read`] finds a parameter of this name in a query as it was sent.
    pub fn names(query: &str, name: &str) -> bool {
        pairs(query).any(|(given, _)| unescaped(given) == name.as_bytes())
    }

    /// The value of one.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(given, _)| given == name).map(|(_, value)| value.as_str())
    }

    /// A state or a status, if it is given. It counts in either case.
    pub fn in_either_case<T>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, Invalid>,
    ) -> Result<Option<T>, Refusal> {
        Ok(self.get(name).map(|text| parse(&text.to_ascii_uppercase())).transpose()?)
    }

    /// A text that every ledger can compare, if it is given.
    pub fn text(&self, name: &str) -> Result<Option<String>, Refusal> {
        match self.get(name) {
            Some(text) if text.contains('\0') => {
                Err(Refusal::invalid(format!("{name} must be a text without the character NUL")))
            }
            text => Ok(text.map(str::to_owned)),
        }
    }

    /// A whole number from 0 to `max`, if it is given.
    pub fn number(&self, name: &str, max: u64) -> Result<Option<u64>, Refusal> {
        let Some(text) = self.get(name) else { return Ok(None) };
        let read = number(text).filter(|number| *number <= max);
        read.map(Some)
            .ok_or_else(|| Refusal::invalid(format!("{name} must be a whole number from 0 to {max}")))
    }

    /// How long to wait for a job's end, in milliseconds; not at all by default.
    pub fn wait_ms(&self) -> Result<u64, Refusal> {
        Ok(self.number("wait_ms", JOB_WAIT_MS_MAX)?.unwrap_or(0))
    }

    /// How many ids are wanted; one by default.
    pub fn count(&self) -> Result<usize, Refusal> {
        let Some(text) = self.get("count") else { return Ok(1) };
        number(text)
            .filter(|count| (1..=ID_BATCH_MAX).contains(count))
            .map(|count| count as usize)
            .ok_or_else(|| Refusal::invalid(format!("count must be a whole number from 1 to {ID_BATCH_MAX}")))
    }

    /// `true` or `false`, if it is given.
    pub fn flag(&self, name: &str) -> Result<Option<bool>, Refusal> {
        match self.get(name) {
            None => Ok(None),
            Some("true") => Ok(Some(true)),
            Some("false") => Ok(Some(false)),
            Some(_) => Err(Refusal::invalid(format!("{name} must be true or false"))),
        }
    }

    /// The same; `false` by default.
    pub fn is_set(&self, name: &str) -> Result<bool, Refusal> {
        Ok(self.flag(name)?.unwrap_or(false))
    }

    /// How many items a page may have.
    pub fn limit(&self) -> Result<u32, Refusal> {
        let Some(text) = self.get("limit") else { return Ok(LIST_ITEMS_DEFAULT) };
        number(text)
            .and_then(|number| u32::try_from(number).ok())
            .filter(|limit| (1..=LIST_ITEMS_MAX).contains(limit))
            .ok_or_else(|| {
                Refusal::invalid(format!("limit must be a whole number from 1 to {LIST_ITEMS_MAX}"))
            })
    }

    /// The key behind which the page begins: a cursor that [`page`] made.
    pub fn cursor<T>(&self, list: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<Option<T>, Refusal> {
        let Some(text) = self.get("cursor") else { return Ok(None) };
        let broken = || Refusal::invalid("cursor must be a next_cursor of this list, unchanged");
        if text.len() > CURSOR_CHARS_MAX {
            return Err(broken());
        }
        let last = text.strip_prefix(list).and_then(|rest| rest.strip_prefix('.')).ok_or_else(broken)?;
        read(last).map(Some).ok_or_else(broken)
    }
}

/// The names and the values in a query, as they were sent.
fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// The bytes of a name or a value in a query, its plus signs and its percent-encoding undone.
fn unescaped(text: &str) -> Vec<u8> {
    percent_decode_str(&text.replace('+', " ")).collect()
}

/// Reads a nonce out of a cursor.
pub fn cursor_nonce(text: &str) -> Option<Nonce> {
    Nonce::new(number(text)?).ok()
}

/// A page of a list.
pub struct Page<R, K> {
    /// At most as many as were asked for; fewer also where what the token does not see lies between, or they are long.
    pub records: Vec<R>,
    /// The key that the rest of the list is behind; `None` where there is none.
    pub next: Option<K>,
}

/// Makes a page of `limit` items out of up to one more than that. The cursor is the list's name and the
/// last item's key; ids are made of characters that need no escaping in a query.
pub fn page<R, T>(
    list: &str,
    mut records: Vec<R>,
    limit: u32,
    key: impl FnOnce(&R) -> String,
    show: impl FnMut(&R) -> T,
) -> wire::List<T> {
    let more = records.len() > limit as usize;
    records.truncate(limit as usize);
    let next = records.last().filter(|_| more).map(key);
    seen_page(list, Page { records, next }, String::clone, show)
}

/// A page as it is answered. The cursor is the list's name and the key.
pub fn seen_page<R, K, T>(
    list: &str,
    page: Page<R, K>,
    key: impl FnOnce(&K) -> String,
    show: impl FnMut(&R) -> T,
) -> wire::List<T> {
    let next_cursor = page.next.as_ref().map(|next| format!("{list}.{}", key(next)));
    wire::List { items: page.records.iter().map(show).collect(), next_cursor }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use actix_web::FromRequest;
    use actix_web::dev::Payload;
    use actix_web::error::PayloadError;
    use actix_web::test::TestRequest;
    use actix_web::web::Bytes;
    use domain::job::State;
    use futures_util::{Stream, stream};
    use wire::jobs::JobRequest;
    use wire::limits::PAYLOAD_BYTES_MAX;
    use wire::nonces::{GrantRequest, SettlementsRequest};

    use super::*;
    use crate::limits::Limit;

    #[actix_web::test]
    async fn a_body_that_cannot_be_read_is_refused_without_the_librarys_words() {
        let request = TestRequest::post().to_http_request();
        let broken: Pin<Box<dyn Stream<Item = Result<Bytes, PayloadError>>>> =
            Box::pin(stream::iter([Err::<Bytes, _>(PayloadError::Incomplete(None))]));
        let payload = web::Payload::from_request(&request, &mut Payload::from(broken)).await.unwrap();
        let (shares, traffic) = (Shares::new(|_| Limit { in_all: 9, of_token: 9 }), Traffic::default());
        let timeout = Duration::from_secs(10);
        let limits = BodyLimits { bytes_max: 9, timeout, shares: &shares, traffic: &traffic };
        let refusal = bytes(&request, payload, limits).await.expect_err("it has no end");
        assert_eq!(refusal.code(), Code::Invalid);
        let text = refusal.to_string();
        assert!(text.contains("cannot be read as it was sent") && !text.contains("None"), "{text}");
    }

    #[test]
    fn a_refused_body_names_the_field_and_what_would_be_right() {
        for (text, expected) in [
            (r#"{"count":0}"#, "count: invalid value: integer `0`, expected a whole number from 1 to 1000"),
            (r#"{"count":"1"}"#, "count: invalid type: string \"1\", expected a whole number from 1 to 1000"),
            (r#"{"kount":1}"#, "unknown field `kount`, expected `count` or `hold_ms`"),
            (r#"{"count":1"#, "the body is refused: EOF while parsing an object"),
            ("{", "the body is refused: EOF while parsing an object"),
            (r#"{"count":1} x"#, "trailing characters"),
            ("[1,2]", "the body is refused: invalid type: sequence, expected an object"),
            ("7", "the body is refused: invalid type: integer `7`, expected an object"),
        ] {
            let refusal = json::<GrantRequest>(text).expect_err(text).to_string();
            assert!(refusal.contains(expected), "{text}: {refusal}");
        }
        let text = r#"{"settlements":[{"nonce":0,"hold":"h","outcome":"consumed"},{"nonce":-1}]}"#;
        let refusal = json::<SettlementsRequest>(text).expect_err(text).to_string();
        assert!(refusal.contains("settlements[1].nonce: invalid value"), "{refusal}");
        let text = r#"{"settlements":[{"nonce":0"#;
        let refusal = json::<SettlementsRequest>(text).expect_err(text).to_string();
        assert!(refusal.contains("the body is refused: settlements[0]: EOF while parsing"), "{refusal}");
    }

    #[test]
    fn a_refused_part_of_a_body_names_the_field_as_well() {
        let job = |fields: &str| refused_part::<Object<JobRequest>>(&format!(r#"{{"payload":1{fields}}}"#));
        for (fields, expected) in [
            (
                r#","priority":11"#,
                "priority: invalid value: integer `11`, expected a whole number from -10 to 10",
            ),
            (r#","metadata":{"a":7}"#, "metadata.a: invalid type: integer `7`, expected a string"),
            (r#","route":{"source":"zh"}"#, "route: missing field `target`"),
        ] {
            let (code, detail) = job(fields).code_and_detail();
            assert_eq!((code, detail.as_str()), (Code::Invalid, expected));
        }
        let unknown = job(r#","prority":1"#).to_string();
        assert!(unknown.contains("unknown field `prority`") && !unknown.contains(" column "), "{unknown}");
        let long = format!(r#"{{"payload":"{}"}}"#, "x".repeat(PAYLOAD_BYTES_MAX));
        let refusal = refused_part::<Object<JobRequest>>(&long);
        assert_eq!(refusal.code(), Code::TooLarge, "{refusal}");
        let shape = refused_part::<Object<JobRequest>>("7").to_string();
        assert!(shape.ends_with("invalid type: integer `7`, expected an object"), "{shape}");
        for (text, expected) in [
            ("{", "EOF while parsing an object at line 1 column 1"),
            ("hello", "expected value at line 1 column 1"),
            (r#"{"payload":1} x"#, "trailing characters at line 1 column 15"),
        ] {
            let (code, detail) = refused_part::<JobRequest>(text).code_and_detail();
            let expected = format!("the text cannot be read as JSON: {expected}");
            assert_eq!((code, detail), (Code::Invalid, expected), "{text}");
        }
    }

    #[test]
    fn a_body_is_too_large_by_its_length_and_not_by_its_words() {
        for text in [
            r#"{"bytes of JSON text":1}"#,
            r#"{"count":"bytes of JSON text"}"#,
            r#"{"invalid value: one of 9 bytes":1}"#,
            r#"{"count":"invalid value: one of 9 bytes"}"#,
        ] {
            assert_eq!(json::<GrantRequest>(text).expect_err(text).code(), Code::Invalid, "{text}");
        }
        let job = |bytes: usize| format!(r#"{{"payload":"{}"}}"#, "x".repeat(bytes - 2));
        assert!(json::<JobRequest>(&job(PAYLOAD_BYTES_MAX)).is_ok());
        let refusal = json::<JobRequest>(&job(PAYLOAD_BYTES_MAX + 1)).expect_err("one byte too many");
        assert_eq!(refusal.code(), Code::TooLarge, "{refusal}");
        assert!(refusal.to_string().contains("the body is refused: payload: invalid value"), "{refusal}");
    }

    #[test]
    fn numbers_in_paths_and_queries_have_one_spelling() {
        for bad in ["", "+1", "-1", "01", "1.0", "1e3", " 1", "0x1", "99999999999999999999"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
        assert_eq!((number("0"), number("10")), (Some(0), Some(10)));
    }

    #[test]
    fn cursors_of_another_list_are_refused() {
        let query =
            |uri: &str| Query::read(&TestRequest::with_uri(uri).to_http_request(), &["cursor", "limit"]);
        let read = |uri: &str| query(uri).unwrap().cursor("n", cursor_nonce);
        assert_eq!(read("/?cursor=n.5").unwrap(), Some(Nonce::new(5).unwrap()));
        assert_eq!(read("/?limit=5").unwrap(), None);
        for bad in ["/?cursor=s.5", "/?cursor=n.", "/?cursor=", "/?cursor=n.x", "/?cursor=n.9007199254740992"]
        {
            assert!(read(bad).is_err(), "{bad}");
        }
        for bad in ["/?x=1", "/?cursor=n.1&cursor=n.1", "/?limit=1&limit=2", "/?limit=1&&Limit=1"] {
            assert!(query(bad).is_err(), "{bad}");
        }
        let text = |uri: &str| query(uri).unwrap().text("cursor");
        assert_eq!(text("/?cursor=%C3%A4").unwrap().as_deref(), Some("ä"));
        assert!(text("/?limit=1").unwrap().is_none() && text("/?cursor=a%00").is_err());
        for (escaped, expected) in [("%EF%BF%BD", "\u{fffd}"), ("a+b%2B%zz%", "a b+%zz%"), ("a=b", "a=b")] {
            assert_eq!(text(&format!("/?cursor={escaped}")).unwrap().as_deref(), Some(expected));
        }
        for bad in ["%ff", "a%c3", "%c3a", "%ed%a0%80"] {
            let refusal = query(&format!("/?cursor={bad}")).unwrap_err().to_string();
            assert!(refusal.contains("cursor must be a text in UTF-8"), "{bad}: {refusal}");
        }
        for bad in ["/?limit=0", "/?limit=1001", "/?limit=", "/?limit=x", "/?limit=-1"] {
            assert!(query(bad).unwrap().limit().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_state_in_a_query_counts_in_either_case() {
        let read = |uri| {
            let request = TestRequest::with_uri(uri).to_http_request();
            Query::read(&request, &["state"]).unwrap().in_either_case("state", State::parse)
        };
        for uri in ["/?state=RUNNING", "/?state=running", "/?state=Running"] {
            assert_eq!(read(uri).unwrap(), Some(State::Running), "{uri}");
        }
        assert_eq!(read("/").unwrap(), None);
        for bad in ["/?state=", "/?state=run", "/?state=succeeded"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_page_shows_a_cursor_only_when_there_is_more() {
        let page_of = |items: Vec<u64>| page("n", items, 2, ToString::to_string, |n| *n);
        assert_eq!(page_of(vec![1, 2, 3]).next_cursor.as_deref(), Some("n.2"));
        assert_eq!(page_of(vec![1, 2, 3]).items, [1, 2]);
        assert_eq!(page_of(vec![1, 2]).next_cursor, None);
        assert_eq!(page_of(vec![]).next_cursor, None);
    }
}
