//! WebSockets, as both kinds of sockets open and close them: the handshake, the limits on what the other side sends and
//! leaves unread, and the last frame.

mod frames;
mod guard;
mod outlet;
mod pauses;

use std::fmt;
use std::io;
use std::pin::Pin;

use actix_http::ws::{HandshakeError, verify_handshake};
use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::http::header::{HeaderMap, SEC_WEBSOCKET_PROTOCOL, UPGRADE};
use actix_web::{FromRequest, HttpRequest, HttpResponse, web};
use actix_ws::{AggregatedMessageStream, CloseReason, ProtocolError, Session};
use futures_util::{FutureExt, Stream};
use wire::Code;
use wire::limits::MESSAGE_BYTES_MAX;
use wire::worker::SUBPROTOCOL;

use crate::auth::Principal;
use crate::limits::SOCKET_CLOSE_MAX;
use crate::refusal::Refusal;
use crate::shares::{Kind, Share};
use crate::state::State;
pub use guard::Arriving;
use guard::Guard;
pub use outlet::{Outlet, Unsent};
pub use pauses::{Pauses, Since};

/// A socket that is open.
pub struct Opened {
    /// The answer that opens it.
    pub response: HttpResponse,
    /// Where messages go out.
    pub outlet: Outlet,
    /// Where messages come in.
    pub messages: AggregatedMessageStream,
    /// Where the socket adds the time in which it does not read.
    pub pauses: Pauses,
    /// Where it is noted that a message arrives.
    pub arriving: Arriving,
    /// Its place among the sockets of this instance; free again when it is dropped.
    pub place: Share,
}

/// What is wrong with a message that cannot be read, in words fit for its sender.
#[derive(Debug, PartialEq, Eq)]
pub enum Fault {
    /// The sender broke the protocol: `too_large` for a message that is too long, else `invalid`.
    Protocol(Code, String),
    /// There is no room for the message now.
    Overloaded(String),
    /// Nothing: the connection is gone. What came before its end is still read, and then the messages end.
    Gone,
}

/// Opens a WebSocket whose messages may have [`MESSAGE_BYTES_MAX`] bytes.
///
/// # Errors
/// `invalid` for a request that does not ask for a WebSocket, `overloaded` where there are as many as there may be.
pub fn open(request: &HttpRequest, payload: web::Payload, state: &State) -> Result<Opened, Refusal> {
    asked(request).map_err(refused)?;
    offered(request.headers())?;
    let principal = Principal::of(request);
    let place = state.shares.take(Kind::Sockets, principal.used(), 1)?;
    let (pauses, arriving) = (Pauses::default(), Arriving::default());
    let guard = Guard::new(
        payload.into_inner(),
        MESSAGE_BYTES_MAX as u64,
        state.settings.client_request_timeout,
        (pauses.clone(), arriving.clone()),
        (&state.shares, principal.used()),
    );
    let payload = guarded(request, guard);
    let (response, session, messages) = actix_ws::handle_with_protocols(request, payload, &[SUBPROTOCOL])
        .map_err(|error| Refusal::invalid(format!("the WebSocket is not opened: {error}")))?;
    let messages = messages
        .max_frame_size(MESSAGE_BYTES_MAX)
        .aggregate_continuations()
        .max_continuation_size(MESSAGE_BYTES_MAX);
    let (outlet, response) = Outlet::new(session, response, (&state.shares, principal.used()));
    Ok(Opened { response, outlet, messages, pauses, arriving, place })
}

/// Checks that the request asks for a WebSocket, and for nothing else. The handshake would open one beside other offers, too, but
/// the HTTP library lets bytes through after that for `websocket` alone.
fn asked(request: &HttpRequest) -> Result<(), HandshakeError> {
    let mut offers = request.headers().get_all(UPGRADE).filter_map(|offer| offer.to_str().ok());
    if !offers.any(|offer| offer.trim().eq_ignore_ascii_case("websocket")) {
        return Err(HandshakeError::NoWebsocketUpgrade);
    }
    verify_handshake(request.head())
}

fn refused(error: HandshakeError) -> Refusal {
    match error {
        HandshakeError::BadWebsocketKey => {
            Refusal::invalid("Sec-WebSocket-Key must be 16 bytes in Base64, which are 24 characters")
        }
        other => Refusal::invalid(format!("this path takes WebSockets only: {other}")),
    }
}

/// Refuses a client that speaks other subprotocols only. One that names none speaks the only one there is.
fn offered(headers: &HeaderMap) -> Result<(), Refusal> {
    let mut lists = headers.get_all(SEC_WEBSOCKET_PROTOCOL).peekable();
    let is_named = lists.peek().is_some();
    let is_known = lists
        .filter_map(|list| list.to_str().ok())
        .any(|list| list.split(',').any(|name| name.trim() == SUBPROTOCOL));
    if is_known || !is_named {
        return Ok(());
    }
    Err(Refusal::invalid(format!("Sec-WebSocket-Protocol must name {SUBPROTOCOL}, or be left out")))
}

/// What a close frame may have.
const CLOSE_FRAME: &str =
    "a close frame may have a code of 1000 to 1003, 1007 to 1014 or 3000 to 4999, and a reason in UTF-8";

/// What is wrong with a message that cannot be read.
pub fn fault(error: &ProtocolError) -> Fault {
    let unread = |why: &dyn fmt::Display| format!("the message cannot be read: {why}");
    let inner = match error {
        ProtocolError::Io(error) => error.get_ref().and_then(|inner| inner.downcast_ref::<PayloadError>()),
        _ => None,
    };
    match inner {
        // The guard's own words.
        Some(PayloadError::Io(inner)) if inner.kind() == io::ErrorKind::QuotaExceeded => {
            Fault::Overloaded(inner.to_string())
        }
        Some(PayloadError::Io(inner)) if inner.kind() == io::ErrorKind::FileTooLarge => {
            Fault::Protocol(Code::TooLarge, unread(inner))
        }
        Some(PayloadError::Io(inner)) if inner.kind() == io::ErrorKind::InvalidData => {
            Fault::Protocol(Code::Invalid, unread(inner))
        }
        // The library's, of a connection that ended or failed, within a frame or between two.
        Some(PayloadError::Incomplete(_) | PayloadError::Io(_)) => Fault::Gone,
        _ => {
            let why: &dyn fmt::Display = match error {
                // The library puts "I/O error" before its words, also where a text is no UTF-8.
                ProtocolError::Io(error) => error,
                // It says so of close frames alone.
                ProtocolError::BadOpCode => &CLOSE_FRAME,
                _ => error,
            };
            Fault::Protocol(Code::Invalid, unread(why))
        }
    }
}

/// Sends these texts and then the close frame, and waits until the connection has taken them. A reader that has stopped
/// has until [`SOCKET_CLOSE_MAX`] to read again; then the connection is cut without them.
pub async fn close(mut session: Session, last: Vec<String>, reason: Option<CloseReason>) {
    let send = async {
        for text in last {
            // Of a connection that is gone the close fails as well.
            let _ = session.text(text).await;
        }
        session.close(reason).await
    };
    // Who cannot be told has left, or learns it from the end of the connection.
    let _ = tokio::time::timeout(SOCKET_CLOSE_MAX, send).await;
}

fn guarded(request: &HttpRequest, guard: Guard) -> web::Payload {
    let guard: Pin<Box<dyn Stream<Item = _>>> = Box::pin(guard);
    let taken = web::Payload::from_request(request, &mut Payload::from(guard)).now_or_never();
    taken.and_then(Result::ok).expect("a payload is taken as it is")
}

#[cfg(test)]
mod tests {
    use actix_http::ws::Parser;

    use super::*;

    #[test]
    fn what_a_close_frame_may_have_is_said() {
        // Two codes that none may send, and a reason that is no UTF-8.
        for payload in [&1_004_u16.to_be_bytes()[..], &5_000_u16.to_be_bytes(), b"\x03\xE8\xFF"] {
            let error = Parser::try_parse_close_payload(payload).unwrap_err();
            let why = format!("the message cannot be read: {CLOSE_FRAME}");
            assert_eq!(fault(&error), Fault::Protocol(Code::Invalid, why), "{payload:?}");
        }
    }

    #[test]
    fn a_text_that_is_no_utf8_is_refused_in_its_readers_words() {
        let invalid =
            |why: &str| Fault::Protocol(Code::Invalid, format!("the message cannot be read: {why}"));
        let refused = fault(&ProtocolError::Io(io::Error::other("invalid utf-8 sequence")));
        assert_eq!(refused, invalid("invalid utf-8 sequence"));
        assert_eq!(fault(&ProtocolError::Overflow), invalid(&ProtocolError::Overflow.to_string()));
    }

    #[test]
    fn the_end_of_a_connection_is_no_fault_of_its_sender() {
        let reset = || io::Error::from(io::ErrorKind::ConnectionReset);
        let ends = [
            PayloadError::Incomplete(None),
            PayloadError::Incomplete(Some(reset())),
            PayloadError::Io(reset()),
        ];
        for end in ends {
            assert_eq!(fault(&ProtocolError::Io(io::Error::other(end))), Fault::Gone);
        }
    }
}
