//! Refusals of the HTTP parser, as problems.
//!
//! A request that the parser cannot read, or whose head does not come in time, never reaches `gate`. The HTTP library then
//! writes a bare status line and closes the connection, with no place to hook in. So this stands between the library and the
//! connection, and writes a problem with a request id in place of such an answer. Every other answer passes as it is: those
//! of `gate` have a request id already.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use actix_web::http::StatusCode;
use actix_web::http::header::HeaderMap;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wire::problem::MEDIA_TYPE;
use wire::{Code, Problem};

use crate::request_id::{RequestId, X_REQUEST_ID_NAME};

/// No bare answer is longer than this, in bytes.
const BARE_BYTES_MAX: usize = 256;

/// An answer begins with this and its status.
const ANSWER: &[u8] = b"HTTP/1.1 ";

/// The longest path with its query that the HTTP library reads, in bytes.
const PATH_BYTES_MAX: usize = 65_534;

/// A connection on which refusals of the parser are problems.
pub struct WithProblems<IO> {
    connection: IO,
    /// How many bytes the connection has read since something was last written to it.
    bytes_read: usize,
    /// What is still to be written in place of a bare answer and what stands before it, and how many bytes the library believes
    /// to write.
    instead: Option<(Vec<u8>, usize)>,
}

/// A connection of any kind.
pub trait Connection: AsyncRead + AsyncWrite + Unpin {}

impl<IO: AsyncRead + AsyncWrite + Unpin> Connection for IO {}

/// The connection, with problems in place of bare refusals.
pub fn with_problems(connection: impl Connection + 'static) -> WithProblems<Box<dyn Connection>> {
    WithProblems { connection: Box::new(connection), bytes_read: 0, instead: None }
}

impl<IO: AsyncRead + Unpin> AsyncRead for WithProblems<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.connection).poll_read(context, into);
        self.bytes_read = self.bytes_read.saturating_add(into.filled().len() - before);
        read
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for WithProblems<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        if this.instead.is_none() {
            let Some((at, status)) = bare_answer(bytes) else {
                this.bytes_read = 0;
                return Pin::new(&mut this.connection).poll_write(context, bytes);
            };
            let mut answers = bytes[..at].to_vec();
            answers.extend(problem(status, this.bytes_read));
            this.instead = Some((answers, bytes.len()));
        }
        while let Some((left, stands_for)) = &mut this.instead {
            if left.is_empty() {
                let written = *stands_for;
                this.instead = None;
                return Poll::Ready(Ok(written));
            }
            let written = ready!(Pin::new(&mut this.connection).poll_write(context, left))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            left.drain(..written);
        }
        Poll::Pending
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection).poll_shutdown(context)
    }
}

/// Where the bare answer at the end of these bytes begins, and its status. Other answers may stand before it. Frames of a
/// WebSocket, which follow a 101 or stand in a write of their own, are no bare answer.
fn bare_answer(bytes: &[u8]) -> Option<(usize, u16)> {
    if !bytes.ends_with(b"\r\n\r\n") {
        return None;
    }
    let near_end = bytes.len().saturating_sub(BARE_BYTES_MAX);
    let at = near_end + bytes[near_end..].windows(ANSWER.len()).rposition(|begin| begin == ANSWER)?;
    let (before, bare) = bytes.split_at(at);
    let status = bare_status(bare)?;
    let last = before.windows(ANSWER.len() + 1).rfind(|begin| begin.starts_with(ANSWER));
    (before.is_empty() || last.is_some_and(|begin| !begin.ends_with(b"1"))).then_some((at, status))
}

/// The status of an answer that the library has written by itself: a refusal without a body and without a request id.
fn bare_status(answer: &[u8]) -> Option<u16> {
    let text = std::str::from_utf8(answer.strip_prefix(b"HTTP/1.1 4")?).ok()?.to_ascii_lowercase();
    let is_bare = text.contains("\r\ncontent-length: 0\r\n") && !text.contains(X_REQUEST_ID_NAME);
    let status = 400 + text.get(..2).filter(|_| is_bare)?.parse::<u16>().ok()?;
    matches!(status, 400 | 408 | 414 | 431).then_some(status)
}

/// The refusal of a head that has not come in time.
pub fn late_head() -> Vec<u8> {
    problem(408, 0)
}

/// Counts a request that is refused before it reaches `gate`, which counts the others. Its route is not looked for.
pub fn count_refused(method: &'static str, status: u16) {
    let status = status.to_string();
    metrics::counter!(
        "fencepost_http_requests_total", "route" => "other", "method" => method, "status" => status
    )
    .increment(1);
}

/// The whole answer, on a connection that has read so many bytes since its last one. The connection is closed after it.
fn problem(status: u16, bytes_read: usize) -> Vec<u8> {
    let mut far = String::new();
    if bytes_read > PATH_BYTES_MAX {
        far = format!(", or its path and query have more than {PATH_BYTES_MAX} bytes");
    }
    let (code, detail) = match status {
        408 => (Code::Invalid, "the request's head did not come in time".to_owned()),
        414 => (Code::TooLarge, "the request's path and query are too long".to_owned()),
        431 => (
            Code::TooLarge,
            "the request's head has more than 131072 bytes, or more than 96 headers".to_owned(),
        ),
        // The library says no more of what it could not read.
        _ => (
            Code::Invalid,
            format!(
                "this is no HTTP/1.1 request that can be read: its first line or a header may be malformed, `Host` missing \
                 or there twice, `Content-Length` or `Transfer-Encoding` wrong, there twice or both there, or \
                 `Content-Length` missing in a POST of HTTP/1.0{far}"
            ),
        ),
    };
    // A code has one status, whatever the library would say. But an idle connection may end with a 408 just when a request is
    // sent on it: clients know by 408 that they may send it again, and would take a 400 for its answer.
    let status = if status == 408 { status } else { code.status() };
    let reason =
        StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
    let id = RequestId::of(&HeaderMap::new()).to_string();
    tracing::debug!(request_id = id, status, detail, "the HTTP parser refused a request");
    // A connection on which no whole head came has had no request.
    if status != 408 {
        count_refused("other", status);
    }
    let problem = Problem { status, request_id: id.clone(), ..Problem::new(code, detail) };
    let body = serde_json::to_string(&problem).expect("a problem has text keys only");
    let length = body.len();
    let answer = format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: {MEDIA_TYPE}\r\ncontent-length: {length}\r\nconnection: close\r\n\
         {X_REQUEST_ID_NAME}: {id}\r\n\r\n{body}"
    );
    answer.into_bytes()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const BARE: &str = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\ndate: x\r\n\r\n";

    /// What arrives of this on a connection that takes a few bytes at a time.
    async fn written(texts: &[&str]) -> String {
        let (near, mut far) = tokio::io::duplex(7);
        let mut near = with_problems(near);
        let reading = tokio::spawn(async move {
            let mut text = String::new();
            far.read_to_string(&mut text).await.unwrap();
            text
        });
        for text in texts {
            near.write_all(text.as_bytes()).await.unwrap();
        }
        near.shutdown().await.unwrap();
        drop(near);
        reading.await.unwrap()
    }

    #[tokio::test]
    async fn a_bare_refusal_becomes_a_problem() {
        let text = written(&[BARE]).await;
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        let problem: Problem = serde_json::from_str(body).unwrap();
        assert_eq!((problem.code.as_str(), problem.status), ("too_large", 413));
        assert!(head.ends_with(&format!("x-request-id: {}", problem.request_id)), "{head}");
    }

    #[tokio::test]
    async fn every_refusal_has_the_status_of_its_code_but_for_an_idle_connections() {
        for (bare, code, status) in [
            ("400 Bad Request", Code::Invalid, 400),
            ("408 Request Timeout", Code::Invalid, 408),
            ("414 URI Too Long", Code::TooLarge, 413),
            ("431 Request Header Fields Too Large", Code::TooLarge, 413),
        ] {
            let text = written(&[&format!("HTTP/1.1 {bare}\r\ncontent-length: 0\r\n\r\n")]).await;
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{bare}: {head}");
            let problem: Problem = serde_json::from_str(body).unwrap();
            assert_eq!((problem.code.as_str(), problem.status), (code.as_str(), status), "{bare}");
            assert_eq!(problem.title, code.title(), "{bare}");
        }
    }

    #[tokio::test]
    async fn a_long_path_may_be_the_reason_only_where_so_much_was_read_since_the_last_answer() {
        for (bytes, is_answered, may_be) in
            [(PATH_BYTES_MAX, false, false), (PATH_BYTES_MAX + 1, false, true), (70_000, true, false)]
        {
            let (near, mut far) = tokio::io::duplex(2 * PATH_BYTES_MAX);
            let mut near = with_problems(near);
            far.write_all(&vec![b'x'; bytes]).await.unwrap();
            near.read_exact(&mut vec![0; bytes]).await.unwrap();
            if is_answered {
                near.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                far.write_all(b"x").await.unwrap();
                near.read_exact(&mut [0]).await.unwrap();
            }
            near.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            drop(near);
            let mut text = String::new();
            far.read_to_string(&mut text).await.unwrap();
            assert!(text.contains("a header may be malformed"), "{text}");
            assert_eq!(text.contains("65534 bytes"), may_be, "{bytes}: {text}");
        }
    }

    #[tokio::test]
    async fn a_bare_refusal_behind_an_answer_in_one_write_becomes_a_problem() {
        for (status, length) in [("200 OK", 0), ("200 OK", 1), ("200 OK", 1000), ("404 Not Found", 1)] {
            let body = "x".repeat(length);
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}");
            let text = written(&[&format!("{answer}{BARE}")]).await;
            let behind = text.strip_prefix(&answer).unwrap_or_else(|| panic!("{text}"));
            assert!(behind.starts_with("HTTP/1.1 413 Payload Too Large\r\n"), "{text}");
            assert!(behind.contains("\"code\":\"too_large\"") && !behind.contains("date: x"), "{text}");
        }
    }

    #[tokio::test]
    async fn a_frame_that_ends_like_a_bare_refusal_passes_as_it_is() {
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let socket = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n";
        for before in ["frame", &format!("{socket}frame"), &format!("{ok}{socket}frame")] {
            let text = format!("{before}{BARE}");
            assert_eq!(written(&[&text]).await, text);
        }
    }

    #[tokio::test]
    async fn every_other_answer_passes_as_it_is() {
        let ok = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        let ours = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nx-request-id: i\r\n\r\n";
        let gone = "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n";
        let part = "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n";
        for texts in [&[ok][..], &[ours], &[gone], &[part], &["x", "HTTP/1.1 2"], &[""]] {
            assert_eq!(written(texts).await, texts.concat());
        }
        let after = written(&[ok, BARE]).await;
        assert!(after.starts_with(ok) && after.contains("\"code\":\"too_large\""), "{after}");
    }
}
