//! The id of a request: taken from the caller or made, shown in the answer and in the log.

use std::fmt;

use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use wire::limits::REQUEST_ID_CHARS_MAX;

/// The name of the header that carries it, both ways.
pub const X_REQUEST_ID_NAME: &str = "x-request-id";
/// That header.
pub static X_REQUEST_ID: HeaderName = HeaderName::from_static(X_REQUEST_ID_NAME);

/// A request's id: 1 to 128 visible ASCII characters.
#[derive(Clone, Debug)]
pub struct RequestId(HeaderValue);

impl RequestId {
    /// Takes the caller's, or makes one where that is missing or not fit for a log line.
    pub fn of(headers: &HeaderMap) -> Self {
        match headers.get(&X_REQUEST_ID) {
            Some(value) if fits(value) => Self(value.clone()),
            _ => Self::made(),
        }
    }

    fn made() -> Self {
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        let text = uuid::Uuid::now_v7().hyphenated().encode_lower(&mut text);
        Self(HeaderValue::from_str(text).expect("hexadecimal digits and hyphens are visible ASCII"))
    }

    /// As a header's value.
    pub fn value(&self) -> HeaderValue {
        self.0.clone()
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_str().expect("checked when it was taken"))
    }
}

fn fits(value: &HeaderValue) -> bool {
    (1..=REQUEST_ID_CHARS_MAX).contains(&value.len()) && value.as_bytes().iter().all(u8::is_ascii_graphic)
}
