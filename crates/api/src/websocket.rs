//! WebSockets, as both kinds of sockets open and close them: the handshake, the limit on what the other side sends, and
//! the last frame.
//!
//! The limit holds for the lengths that frame headers announce, before a byte of such a frame is kept: the decoder
//! behind it compares a frame with its limit only when the whole frame is in memory.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::dev::Payload;
use actix_web::error::PayloadError;
use actix_web::web::Bytes;
use actix_web::{FromRequest, HttpRequest, HttpResponse, web};
use actix_ws::{AggregatedMessageStream, CloseReason, ProtocolError, Session};
use futures_util::{FutureExt, Stream, StreamExt};
use wire::Code;
use wire::limits::MESSAGE_BYTES_MAX;
use wire::worker::SUBPROTOCOL;

use crate::limits::SOCKET_CLOSE_MAX;
use crate::refusal::Refusal;

/// Longest payload of a ping, a pong or a close, in bytes (RFC 6455, section 5.5).
const CONTROL_BYTES_MAX: u64 = 125;
/// Longest header of a frame, in bytes: two, a length of eight, and a mask of four.
const HEADER_BYTES_MAX: usize = 14;

/// Opens a WebSocket whose messages may have [`MESSAGE_BYTES_MAX`] bytes.
///
/// # Errors
/// `invalid` for a request that does not ask for a WebSocket.
pub fn open(
    request: &HttpRequest,
    payload: web::Payload,
) -> Result<(HttpResponse, Session, AggregatedMessageStream), Refusal> {
    let payload = guarded(request, payload, MESSAGE_BYTES_MAX as u64);
    let (response, session, messages) = actix_ws::handle_with_protocols(request, payload, &[SUBPROTOCOL])
        .map_err(|error| Refusal::new(Code::Invalid, format!("this path takes WebSockets only: {error}")))?;
    let messages = messages
        .max_frame_size(MESSAGE_BYTES_MAX)
        .aggregate_continuations()
        .max_continuation_size(MESSAGE_BYTES_MAX);
    Ok((response, session, messages))
}

/// What is wrong with a message that cannot be read, in words fit for its sender.
pub fn why_unreadable(error: &ProtocolError) -> String {
    match error {
        ProtocolError::Io(error) => format!("the message cannot be read: {error}"),
        error => format!("the message cannot be read: {error}"),
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

fn guarded(request: &HttpRequest, payload: web::Payload, bytes_max: u64) -> web::Payload {
    let guard: Pin<Box<dyn Stream<Item = _>>> = Box::pin(Guard::new(payload.into_inner(), bytes_max));
    let taken = web::Payload::from_request(request, &mut Payload::from(guard)).now_or_never();
    taken.and_then(Result::ok).expect("a payload is taken as it is")
}

/// Lets bytes pass until a header announces too long a frame, or a frame with which its message is too long.
struct Guard {
    payload: Payload,
    frames: Frames,
    /// The bytes before such a frame have passed, and are to be read before the error.
    broken: Option<Broken>,
}

enum Broken {
    Now(String),
    Next(String),
}

impl Guard {
    fn new(payload: Payload, bytes_max: u64) -> Self {
        Self { payload, frames: Frames::new(bytes_max), broken: None }
    }
}

impl Stream for Guard {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        match this.broken.take() {
            Some(Broken::Now(why)) => return Poll::Ready(Some(Err(PayloadError::Io(io::Error::other(why))))),
            Some(Broken::Next(why)) => {
                // The decoder takes what it has whenever nothing more is there.
                this.broken = Some(Broken::Now(why));
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => {}
        }
        let chunk = ready!(this.payload.poll_next_unpin(context));
        let Some(Ok(bytes)) = chunk else { return Poll::Ready(chunk) };
        Poll::Ready(Some(Ok(match this.frames.read(&bytes) {
            Ok(()) => bytes,
            Err(TooLong { at, why }) => {
                this.broken = Some(Broken::Next(why));
                bytes.slice(..at)
            }
        })))
    }
}

/// The headers of the frames of a stream, and where they are. It judges lengths alone: everything else is the decoder's.
struct Frames {
    bytes_max: u64,
    header: [u8; HEADER_BYTES_MAX],
    /// Bytes of the header that were read.
    read: usize,
    /// Bytes of the frame's payload that are still to come.
    left: u64,
    /// Bytes of the message that came in frames before this one.
    message_bytes: u64,
}

/// A frame that may not be kept.
#[derive(Debug, PartialEq, Eq)]
struct TooLong {
    /// Where in these bytes its header ends.
    at: usize,
    /// What is wrong, in words fit for its sender.
    why: String,
}

impl Frames {
    const fn new(bytes_max: u64) -> Self {
        Self { bytes_max, header: [0; HEADER_BYTES_MAX], read: 0, left: 0, message_bytes: 0 }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                let passed = self.left.min((bytes.len() - at) as u64);
                self.left -= passed;
                at += passed as usize;
                continue;
            }
            self.header[self.read] = bytes[at];
            self.read += 1;
            at += 1;
            if self.read >= 2 && self.read == self.header_length() {
                self.read = 0;
                self.left = self.length();
                self.judge().map_err(|why| TooLong { at, why })?;
            }
        }
        Ok(())
    }

    fn header_length(&self) -> usize {
        let length = match self.header[1] & 0x7F {
            126 => 2,
            127 => 8,
            _ => 0,
        };
        let mask = if self.header[1] & 0x80 == 0 { 0 } else { 4 };
        2 + length + mask
    }

    fn length(&self) -> u64 {
        let header = &self.header;
        match header[1] & 0x7F {
            126 => u64::from(u16::from_be_bytes([header[2], header[3]])),
            127 => u64::from_be_bytes(header[2..10].try_into().expect("eight bytes")),
            short => u64::from(short),
        }
    }

    fn judge(&mut self) -> Result<(), String> {
        let (operation, max) = (self.header[0] & 0x0F, self.bytes_max);
        if operation >= 8 {
            let is_fit = self.left <= CONTROL_BYTES_MAX;
            return is_fit
                .then_some(())
                .ok_or_else(|| format!("a control frame may have {CONTROL_BYTES_MAX} bytes"));
        }
        if operation != 0 {
            self.message_bytes = 0;
        }
        self.message_bytes = self.message_bytes.saturating_add(self.left);
        (self.message_bytes <= max).then_some(()).ok_or_else(|| format!("a message may have {max} bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame's header as a client sends it.
    fn header(first: u8, length: u64) -> Vec<u8> {
        let mut header = vec![first];
        match length {
            0..=125 => header.push(0x80 | length as u8),
            126..=0xFFFF => {
                header.push(0x80 | 126);
                header.extend((length as u16).to_be_bytes());
            }
            _ => {
                header.push(0x80 | 127);
                header.extend(length.to_be_bytes());
            }
        }
        header.extend([1, 2, 3, 4]);
        header
    }

    fn frame(first: u8, length: u64) -> Vec<u8> {
        let mut frame = header(first, length);
        frame.resize(frame.len() + length as usize, 0xFF);
        frame
    }

    const MAX: u64 = 70_000;
    const TEXT: u8 = 0x81;
    const PART: u8 = 0x01;
    const MORE: u8 = 0x00;
    const LAST: u8 = 0x80;
    const PING: u8 = 0x89;

    #[test]
    fn a_frame_that_announces_too_much_is_found_by_its_header_however_it_is_cut() {
        let cases: [(Vec<Vec<u8>>, Option<&str>); 12] = [
            (vec![frame(TEXT, 0), frame(TEXT, 125), frame(TEXT, 126), frame(TEXT, MAX)], None),
            (vec![frame(TEXT, 3), header(TEXT, MAX + 1)], Some("a message")),
            (vec![header(TEXT, 1 << 30)], Some("a message")),
            (vec![header(TEXT, u64::MAX)], Some("a message")),
            (vec![frame(PART, MAX), frame(LAST, 0), frame(TEXT, MAX)], None),
            (vec![frame(PART, MAX), header(LAST, 1)], Some("a message")),
            (vec![frame(PART, MAX), frame(PING, 125), frame(MORE, 0), header(MORE, 1)], Some("a message")),
            (vec![frame(PART, 1), header(LAST, u64::MAX)], Some("a message")),
            (vec![frame(PART, MAX - 1), frame(MORE, 1), frame(LAST, 0), frame(PART, MAX)], None),
            (vec![frame(PING, 125), frame(PING, 0)], None),
            (vec![header(PING, 126)], Some("a control frame")),
            (vec![header(0x88, 1 << 40)], Some("a control frame")),
        ];
        for (frames, expected) in cases {
            let bytes = frames.concat();
            for size in [1, 2, 3, 7, 64, 4_096, bytes.len()] {
                let mut guard = Frames::new(MAX);
                let mut passed = 0;
                let broken = bytes.chunks(size).find_map(|chunk| {
                    let broken = guard.read(chunk).err();
                    passed += broken.as_ref().map_or(chunk.len(), |broken| broken.at);
                    broken
                });
                match expected {
                    None => assert_eq!(broken, None),
                    Some(words) => {
                        let why = broken.expect("it is found").why;
                        assert!(why.starts_with(words), "{why}");
                    }
                }
                // A header that is too long is the last thing here.
                assert_eq!(passed, bytes.len());
            }
        }
    }
}
