//! The TCP connection below a socket: how it is made, and whether anything moves on it.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use reqwest::Url;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// How long one address of a host is tried alone. Then the next one is tried beside it: of a host with several addresses one may
/// be dead in silence, or behind a network that leads nowhere.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// An open connection.
pub(super) struct Line {
    stream: TcpStream,
    /// Whether the last write found no room.
    is_blocked: bool,
    has_moved: AtomicBool,
}

impl Line {
    /// Connects to the host of a base URL, at the first of its addresses that takes the connection.
    pub(super) async fn to(base: &Url) -> io::Result<Self> {
        let addresses: Vec<_> = lookup_host(host_and_port(base)).await?.collect();
        let stream = first_of(addresses, TcpStream::connect).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, is_blocked: false, has_moved: AtomicBool::new(false) })
    }

    /// Whether bytes have come since this was last asked, or a write that had found no room has gone on. Then the other side is
    /// there. A write that finds room says nothing of it.
    pub(super) fn take_moved(&self) -> bool {
        self.has_moved.swap(false, Ordering::Relaxed)
    }

    fn note_write(&mut self, written: &Poll<io::Result<usize>>) {
        let was_blocked = std::mem::replace(&mut self.is_blocked, written.is_pending());
        if was_blocked && !self.is_blocked {
            self.has_moved.store(true, Ordering::Relaxed);
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if into.filled().len() > before {
            self.has_moved.store(true, Ordering::Relaxed);
        }
        read
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note_write(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.note_write(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The host of a base URL as it is looked up, and its port.
fn host_and_port(base: &Url) -> (&str, u16) {
    let host = base.host_str().unwrap_or_default();
    // In a URL an IPv6 address stands in brackets.
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    (bare.unwrap_or(host), base.port_or_known_default().unwrap_or_default())
}

/// Tries the addresses in their order, and gives the first connection that one of them takes: each is tried when all before it
/// have failed, or when the one before it was tried for [`NEXT_AFTER`].
async fn first_of<A, T, F>(addresses: Vec<A>, connect: impl Fn(A) -> F) -> io::Result<T>
where
    F: Future<Output = io::Result<T>>,
{
    let (mut others, mut tries) = (addresses.into_iter(), FuturesUnordered::new());
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    loop {
        tries.extend(others.next().map(&connect));
        match timeout(NEXT_AFTER, tries.next()).await {
            Ok(Some(Ok(connected))) => return Ok(connected),
            Ok(Some(Err(error))) => failed = error,
            Ok(None) => return Err(failed),
            // It is tried on, beside the next one.
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::base_url;
    use crate::socket::stand_in::PATIENCE;

    #[tokio::test]
    async fn what_comes_moves_a_line_and_so_does_a_write_that_has_room_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = base_url::parse(&listener.local_addr().unwrap().to_string()).unwrap();
        let (line, accepted) = tokio::join!(Line::to(&base), listener.accept());
        let (mut line, (mut other, _)) = (line.unwrap(), accepted.unwrap());
        assert!(!line.take_moved());
        other.write_all(b"x").await.unwrap();
        assert_eq!(line.read_u8().await.unwrap(), b'x');
        assert!(line.take_moved() && !line.take_moved());
        let many = vec![0_u8; 1 << 20];
        while let Some(written) = line.write(&many).now_or_never() {
            assert!(written.unwrap() > 0);
        }
        assert!(!line.take_moved(), "nobody has read any of it");
        let mut nowhere = tokio::io::sink();
        tokio::select! {
            _ = tokio::io::copy(&mut other, &mut nowhere) => panic!("the line is still open"),
            written = line.write(&many) => assert!(written.unwrap() > 0),
        }
        assert!(line.take_moved());
    }

    /// Address 0 is silent, and 1 refuses.
    async fn dial(address: u8) -> io::Result<u8> {
        match address {
            0 => std::future::pending().await,
            1 => Err(io::ErrorKind::ConnectionRefused.into()),
            taken => Ok(taken),
        }
    }

    #[tokio::test]
    async fn an_address_that_is_silent_or_refuses_does_not_hold_up_the_next_one() {
        for addresses in [vec![2], vec![1, 2], vec![0, 2], vec![0, 1, 2, 3]] {
            let first = timeout(PATIENCE, first_of(addresses.clone(), dial)).await;
            assert_eq!(first.expect("a connection").unwrap(), 2, "{addresses:?}");
        }
        let refused = first_of(vec![1, 1], dial).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(first_of(Vec::new(), dial).await.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_host_is_looked_up_without_the_brackets_of_its_url() {
        for (url, host, port) in [
            ("h:7070", "h", 7070),
            ("https://h/below", "h", 443),
            ("http://[::1]", "::1", 80),
            ("10.0.0.7:1", "10.0.0.7", 1),
        ] {
            assert_eq!(host_and_port(&base_url::parse(url).unwrap()), (host, port), "{url}");
        }
    }
}
