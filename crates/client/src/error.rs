//! Why a call did not succeed, and whether the same call may succeed later.

use tokio_tungstenite::tungstenite;
use wire::{Code, Problem};

/// What the library of TLS calls it where a server shows the certificate of an authority as its own.
const OF_AUTHORITY: &str = "CaUsedAsEndEntity";

/// Shorthand for this library's answers.
pub type Result<T> = std::result::Result<T, Error>;

/// So many of the other URLs that were not reached either are named in the text of an error.
const OTHERS_NAMED_MAX: usize = 16;

/// Why a call did not succeed. Two questions say what to do:
///
/// | [`is_retryable`](Self::is_retryable) | [`may_be_done`](Self::may_be_done) | the same call |
/// |---|---|---|
/// | yes | no | make it again later: nothing was done, so its key may be another one |
/// | yes | yes | make it again later, under the same key. Where it had none, look first what was done |
/// | no | yes | look what was done. Under the same key it is harmless, and may fail again |
/// | no | no | give it up, or change it: [`problem`](Self::problem) says why, and what is allowed |
///
/// A call without a key says itself whether it is harmless to repeat. The library has tried a call again for as long as
/// [`crate::Retry`] says before that ends with an error which is retryable.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The daemon refused. Nothing was changed, unless the code says that this is not known.
    #[error("{}: {}", .0.code, .0.detail)]
    Refused(Box<Problem>),
    /// No connection could be made, or the server refused it for want of a client certificate that it accepts, or speaks TLS
    /// where the URL is `http://`; it has read nothing of the request.
    #[error("no connection to {url}: {reason}{}", nor_to(.others))]
    Unreachable {
        /// The base URL that was tried last.
        url: String,
        /// What the system said.
        reason: String,
        /// The other base URLs where the call found nobody when it tried them last.
        others: Vec<String>,
        /// The driver's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The request was sent and no whole answer came. Whether it was carried out is not known;
    /// repeating it (under the same idempotency key, where it takes one; a resolve with the hold) is harmless.
    ///
    /// A change also ends with this where the answer to an earlier attempt was lost and the last attempt was
    /// refused, or found nobody: that says nothing about the earlier one. `reason` names both.
    #[error("the answer of {url} was lost: {reason}")]
    Lost {
        /// The base URL whose answer was lost.
        url: String,
        /// What the system said.
        reason: String,
        /// The driver's error, or the [`Error`] with which the last attempt ended; `None` if the instance left the
        /// cluster while the call waited.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// The answer is not from Fencepost, but for example from a proxy.
    #[error("the answer of {url} is not Fencepost's (HTTP status {status}): {reason}")]
    Unexpected {
        /// The base URL that was tried last.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What is wrong with it.
        reason: String,
    },
    /// The call cannot be made with these arguments or settings; nothing was sent.
    #[error("{0}")]
    Unusable(String),
}

impl Error {
    /// Whether the same call may succeed later without a change by a person. A refusal is retryable if its code is,
    /// and, whatever its code, if it says when to try again. `window_full` is retryable only if it says so: otherwise the
    /// grant asks for more nonces than the whole window has.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Refused(problem) => {
                let is_of_code = |code: Code| code != Code::WindowFull && code.is_retryable();
                problem.retry_after_ms.is_some() || problem.known_code().is_some_and(is_of_code)
            }
            Self::Unreachable { .. } | Self::Lost { .. } => true,
            Self::Unexpected { status, .. } => matches!(status, 408 | 429 | 502 | 503 | 504),
            Self::Unusable(_) => false,
        }
    }

    /// Whether what was asked may have been done, by any attempt of the call.
    #[must_use]
    pub fn may_be_done(&self) -> bool {
        match self {
            // Who answers with 408 has not read the request.
            Self::Unexpected { status: 408, .. } => false,
            Self::Lost { .. } | Self::Unexpected { .. } => true,
            Self::Refused(problem) => {
                matches!(problem.known_code(), Some(Code::LedgerUnavailable | Code::Internal) | None)
            }
            Self::Unreachable { .. } | Self::Unusable(_) => false,
        }
    }

    /// The daemon's refusal, if it is one.
    #[must_use]
    pub fn problem(&self) -> Option<&Problem> {
        match self {
            Self::Refused(problem) => Some(problem),
            Self::Unreachable { .. } | Self::Lost { .. } | Self::Unexpected { .. } | Self::Unusable(_) => {
                None
            }
        }
    }
}

/// The end of a text about a URL that was not reached: the others that were not either.
fn nor_to(others: &[String]) -> String {
    let (named, more) = others.split_at(others.len().min(OTHERS_NAMED_MAX));
    match (named, more.len()) {
        ([], _) => String::new(),
        (named, 0) => format!("; nor to {}", named.join(", ")),
        (named, more) => format!("; nor to {} and {more} more", named.join(", ")),
    }
}

/// The innermost cause: what the system said, without the layers around it.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    loop {
        if let Some(said) = of_tls(cause) {
            return said;
        }
        let Some(inner) = cause.source() else { return cause.to_string() };
        cause = inner;
    }
}

/// Whether the server demanded a client certificate, or refused the one that it got. It says so at the end of the handshake,
/// before it reads what follows, although with TLS 1.3 the client has sent its request by then.
pub(crate) fn is_certificate_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    use rustls::{AlertDescription as Alert, Error as Tls};
    let is_so = |said: &Tls| match said {
        Tls::AlertReceived(Alert::CertificateRequired) => true,
        Tls::AlertReceived(alert) => is_about_certificate(*alert),
        _ => false,
    };
    std::iter::successors(Some(error), |error| error.source()).filter_map(within).any(is_so)
}

/// Whether what came instead of an answer is no HTTP.
pub(crate) fn is_no_http(error: &(dyn std::error::Error + 'static)) -> bool {
    use tokio_tungstenite::tungstenite::error::ProtocolError::HttparseError;
    let of_socket =
        |error: &tungstenite::Error| matches!(error, tungstenite::Error::Protocol(HttparseError(_)));
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse)
            || error.downcast_ref::<tungstenite::Error>().is_some_and(of_socket)
    })
}

/// Whether a handshake of TLS failed with a server that speaks TLS.
pub(crate) fn is_of_tls_server(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_so = |said: &rustls::Error| !matches!(said, rustls::Error::InvalidMessage(_));
    std::iter::successors(Some(error), |error| error.source()).filter_map(within).any(is_so)
}

/// Whether this alert is about the client certificate that the server got.
const fn is_about_certificate(alert: rustls::AlertDescription) -> bool {
    use rustls::AlertDescription as Alert;
    matches!(
        alert,
        Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::DecryptError
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
    )
}

/// The error of TLS that this one is, or wraps.
fn within<'e>(error: &'e (dyn std::error::Error + 'static)) -> Option<&'e rustls::Error> {
    // What an `io::Error` wraps is not among its sources; it may wrap another one.
    let mut inner = error;
    while let Some(wrapped) = inner.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
        inner = wrapped;
    }
    inner.downcast_ref()
}

/// What an error of TLS means to a person; `None` for any other error.
fn of_tls(error: &(dyn std::error::Error + 'static)) -> Option<String> {
    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error as Tls};
    let said = within(error)?;
    let meaning = match said {
        Tls::InvalidCertificate(Bad::UnknownIssuer) => {
            "the server's certificate is signed by no authority that is trusted here"
        }
        Tls::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
            "the server's certificate is for another name"
        }
        Tls::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
            "the server's certificate has expired"
        }
        Tls::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
            "the server's certificate is not valid yet"
        }
        Tls::InvalidCertificate(Bad::Other(_)) if said.to_string().contains(OF_AUTHORITY) => {
            "the server's certificate is an authority's own (CA:TRUE), and must be one that the authority signed for the server"
        }
        Tls::InvalidCertificate(_) => "the server's certificate is not accepted",
        Tls::InvalidMessage(_) => "it does not speak TLS: is it http://, not https://?",
        Tls::AlertReceived(Alert::CertificateRequired) => "the server demands a client certificate",
        Tls::AlertReceived(alert) if is_about_certificate(*alert) => {
            "the server does not accept the client certificate"
        }
        _ => return Some(said.to_string()),
    };
    Some(format!("{meaning} ({said})"))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use rustls::{AlertDescription as Alert, CertificateError as Bad, Error as Tls, OtherError};

    use super::*;

    #[test]
    fn of_very_many_urls_that_were_not_reached_some_are_named() {
        let said = |others: usize| {
            let others = (0..others).map(|n| format!("h-{n}")).collect();
            let (url, reason) = ("h".to_owned(), "refused".to_owned());
            Error::Unreachable { url, reason, others, source: "?".into() }.to_string()
        };
        assert_eq!(said(0), "no connection to h: refused");
        assert_eq!(said(2), "no connection to h: refused; nor to h-0, h-1");
        assert!(said(OTHERS_NAMED_MAX).ends_with(", h-15"), "{}", said(OTHERS_NAMED_MAX));
        assert!(said(OTHERS_NAMED_MAX + 3).ends_with(", h-15 and 3 more"), "{}", said(OTHERS_NAMED_MAX + 3));
    }

    #[test]
    fn a_certificate_that_is_refused_is_told_of_in_words() {
        let other = |name: &str| Bad::Other(OtherError(Arc::new(io::Error::other(name.to_owned()))));
        for (refused, meaning) in [
            (Bad::UnknownIssuer, "is signed by no authority that is trusted here"),
            (Bad::Expired, "has expired"),
            (Bad::NotValidYet, "is not valid yet"),
            (Bad::NotValidForName, "is for another name"),
            (Bad::BadSignature, "is not accepted"),
            (other("PathLenConstraintViolated"), "is not accepted"),
            (
                other("CaUsedAsEndEntity"),
                "is an authority's own (CA:TRUE), and must be one that the authority signed for the server",
            ),
        ] {
            let said = root_cause(&io::Error::other(Tls::InvalidCertificate(refused)));
            assert!(said.starts_with(&format!("the server's certificate {meaning} (")), "{said}");
        }
    }

    #[test]
    fn only_alerts_about_the_clients_certificate_say_that_nothing_was_read() {
        let wrapped = |alert| io::Error::other(io::Error::other(Tls::AlertReceived(alert)));
        for alert in [Alert::CertificateRequired, Alert::UnknownCA, Alert::CertificateExpired] {
            assert!(is_certificate_refused(&wrapped(alert)), "{alert:?}");
            assert!(root_cause(&wrapped(alert)).contains("client certificate"), "{alert:?}");
        }
        for alert in [Alert::InternalError, Alert::BadRecordMac] {
            assert!(!is_certificate_refused(&wrapped(alert)), "{alert:?}");
        }
        assert!(!is_certificate_refused(&io::Error::other("the connection is closed")));
    }
}
