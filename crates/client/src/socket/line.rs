//! The TCP connection below a socket: how it is made.

use std::io;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use reqwest::Url;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// How long one address of a host is tried alone. Then the next one is tried beside it: of a host with several addresses one may
/// be dead in silence, or behind a network that leads nowhere.
const NEXT_AFTER: Duration = Duration::from_millis(300);

/// Connects to the host of a base URL, at the first of its addresses that takes the connection.
pub(super) async fn connect(base: &Url) -> io::Result<TcpStream> {
    let addresses: Vec<_> = lookup_host(host_and_port(base)).await?.collect();
    let stream = first_of(addresses, TcpStream::connect).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
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
    use super::*;
    use crate::base_url;
    use crate::socket::stand_in::PATIENCE;

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
