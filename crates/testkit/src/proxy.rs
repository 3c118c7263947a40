//! A small TCP proxy between an instance and one of its servers, to be cut, frozen and healed.
//!
//! It forwards bytes and knows nothing of what they mean; at most it replaces one text by another of the same length.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::ports;

/// Bytes that one direction of one connection holds.
const BUFFER_BYTES: usize = 16 << 10;
/// Ports that are tried before none is found.
const PORTS_TRIED_MAX: usize = 10;

/// How the way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Healthy,
    /// Connections are dropped and new ones refused.
    Cut,
    /// Connections stay, new ones are taken, and no byte passes.
    Frozen,
}

/// A text that clients send, and what the server gets in its place.
#[derive(Clone, Copy, Debug)]
pub struct Replacement {
    /// What is looked for.
    pub text: &'static [u8],
    /// What takes its place: as long as `text`.
    pub by: &'static [u8],
}

/// A proxy on a port of its own, which it keeps. Ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    way: watch::Sender<Way>,
    target: watch::Sender<SocketAddr>,
    /// Whether somebody listens; follows `way` a moment later.
    listening: watch::Receiver<bool>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of 127.0.0.1 and forwards to `target`.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::serving(target, None).await
    }

    /// The same, replacing a text wherever a client sends it.
    ///
    /// # Errors
    /// As [`Self::start`].
    ///
    /// # Panics
    /// The two texts differ in length, or are empty.
    pub async fn replacing(target: SocketAddr, replacement: Replacement) -> Result<Self> {
        assert_eq!(replacement.text.len(), replacement.by.len(), "what follows keeps its place");
        assert!(!replacement.text.is_empty(), "something is to be replaced");
        Self::serving(target, Some(replacement)).await
    }

    async fn serving(target: SocketAddr, replacement: Option<Replacement>) -> Result<Self> {
        let mut tries = 0;
        let (port, listener) = loop {
            let port = ports::free()?;
            tries += 1;
            // A server of a process that has just ended may still have its port, and come back to it.
            match listen(port).await {
                Ok(listener) => break (port, listener),
                Err(_) if tries < PORTS_TRIED_MAX => {}
                Err(error) => return Err(error),
            }
        };
        let (way, watched) = watch::channel(Way::Healthy);
        let (listens, listening) = watch::channel(true);
        let (target, targets) = watch::channel(target);
        let task = tokio::spawn(serve(port, (targets, replacement), listener, watched, listens));
        Ok(Self { port, way, target, listening, task })
    }

    /// Where it listens, also while it is cut.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Drops all connections and refuses new ones. Returns when nobody listens any more.
    ///
    /// # Errors
    /// The proxy has ended.
    pub async fn cut(&self) -> Result<()> {
        self.way.send_replace(Way::Cut);
        self.listening.clone().wait_for(|listens| !listens).await.context("the proxy has ended")?;
        Ok(())
    }

    /// From now on new connections go elsewhere. Those that there are stay as they are.
    pub fn lead_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// Holds all bytes back, both ways, and keeps the connections.
    pub fn freeze(&self) {
        self.way.send_replace(Way::Frozen);
    }

    /// Lets everything pass again; what was held back arrives. Returns when somebody listens.
    ///
    /// # Errors
    /// The proxy has ended.
    pub async fn heal(&self) -> Result<()> {
        self.way.send_replace(Way::Healthy);
        self.listening.clone().wait_for(|listens| *listens).await.context("the proxy has ended")?;
        Ok(())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn listen(port: u16) -> Result<TcpListener> {
    let address = (Ipv4Addr::LOCALHOST, port);
    TcpListener::bind(address).await.with_context(|| format!("listening on {address:?}"))
}

async fn serve(
    port: u16,
    (target, replacement): (watch::Receiver<SocketAddr>, Option<Replacement>),
    listener: TcpListener,
    mut way: watch::Receiver<Way>,
    listens: watch::Sender<bool>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        let now = *way.borrow_and_update();
        if now == Way::Cut {
            listener = None;
            connections.shutdown().await;
        } else if listener.is_none() {
            // The port is drawn from where the kernel gives none away, so it is still ours.
            listener = listen(port).await.ok();
        }
        listens.send_replace(listener.is_some());
        tokio::select! {
            changed = way.changed() => {
                if changed.is_err() {
                    return;
                }
            }
            accepted = accept(listener.as_ref()) => {
                if let Ok((client, _)) = accepted {
                    let target = *target.borrow();
                    connections.spawn(forward(client, target, replacement, way.clone()));
                }
                // Those that ended are forgotten.
                while connections.try_join_next().is_some() {}
            }
        }
    }
}

async fn accept(listener: Option<&TcpListener>) -> std::io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// Until either side ends its direction; then both are closed.
async fn forward(
    client: TcpStream,
    target: SocketAddr,
    replacement: Option<Replacement>,
    mut way: watch::Receiver<Way>,
) {
    if way.wait_for(|way| *way == Way::Healthy).await.is_err() {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    if client.set_nodelay(true).is_err() || server.set_nodelay(true).is_err() {
        return;
    }
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    tokio::select! {
        _ = pump(from_client, to_server, replacement, way.clone()) => {}
        _ = pump(from_server, to_client, None, way) => {}
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    replacement: Option<Replacement>,
    mut way: watch::Receiver<Way>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut held = Vec::new();
    loop {
        let read = from.read(&mut buffer).await?;
        if way.wait_for(|way| *way == Way::Healthy).await.is_err() || read == 0 {
            return Ok(());
        }
        let Some(replacement) = replacement else {
            to.write_all(&buffer[..read]).await?;
            continue;
        };
        held.extend_from_slice(&buffer[..read]);
        let ready = replacement.apply(&mut held);
        to.write_all(&held[..ready]).await?;
        held.drain(..ready);
    }
}

impl Replacement {
    /// Replaces every whole text, and answers how many bytes may go on: what could be the beginning of a text stays.
    fn apply(self, bytes: &mut [u8]) -> usize {
        let length = self.text.len();
        for at in 0..bytes.len().saturating_sub(length - 1) {
            if bytes[at..].starts_with(self.text) {
                bytes[at..at + length].copy_from_slice(self.by);
            }
        }
        let begins = |at: &usize| self.text.starts_with(&bytes[*at..]);
        (bytes.len().saturating_sub(length - 1)..bytes.len()).find(begins).unwrap_or(bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Sends back what it gets.
    async fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = socket.split();
                    tokio::io::copy(&mut from, &mut to).await
                });
            }
        });
        address
    }

    async fn said_back(socket: &mut TcpStream, word: &[u8]) -> std::io::Result<()> {
        socket.write_all(word).await?;
        let mut heard = vec![0; word.len()];
        socket.read_exact(&mut heard).await?;
        assert_eq!(heard, word);
        Ok(())
    }

    #[tokio::test]
    async fn a_cut_drops_connections_and_refuses_new_ones_until_it_heals() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut socket = TcpStream::connect(proxy.address()).await.unwrap();
        said_back(&mut socket, b"before").await.unwrap();
        proxy.cut().await.unwrap();
        assert!(said_back(&mut socket, b"lost").await.is_err());
        assert!(TcpStream::connect(proxy.address()).await.is_err());
        proxy.heal().await.unwrap();
        let mut socket = TcpStream::connect(proxy.address()).await.unwrap();
        said_back(&mut socket, b"after").await.unwrap();
    }

    #[tokio::test]
    async fn what_is_held_back_while_frozen_arrives_when_it_heals() {
        let proxy = Proxy::start(echo().await).await.unwrap();
        let mut socket = TcpStream::connect(proxy.address()).await.unwrap();
        said_back(&mut socket, b"before").await.unwrap();
        proxy.freeze();
        socket.write_all(b"held").await.unwrap();
        let mut newcomer = TcpStream::connect(proxy.address()).await.unwrap();
        let mut heard = [0; 4];
        let wait = tokio::time::timeout(Duration::from_millis(200), socket.read_exact(&mut heard));
        assert!(wait.await.is_err(), "no byte passes");
        proxy.heal().await.unwrap();
        socket.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"held");
        said_back(&mut newcomer, b"new").await.unwrap();
    }

    #[tokio::test]
    async fn a_server_that_ends_its_connection_ends_it_for_the_client() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::start(listener.local_addr().unwrap()).await.unwrap();
        let mut socket = TcpStream::connect(proxy.address()).await.unwrap();
        drop(listener.accept().await.unwrap());
        assert_eq!(socket.read(&mut [0; 1]).await.unwrap_or(0), 0);
    }

    #[test]
    fn a_text_is_replaced_also_where_it_comes_in_two_pieces() {
        let replacement = Replacement { text: b"abcab", by: b"xyzxy" };
        let mut whole = b"abcababcab-abca".to_vec();
        let ready = replacement.apply(&mut whole);
        assert_eq!((&whole[..ready], &whole[ready..]), (&b"xyzxyxyzxy-"[..], &b"abca"[..]));
        let mut rest = [&whole[ready..], b"b."].concat();
        assert_eq!(replacement.apply(&mut rest), rest.len());
        assert_eq!(rest, b"xyzxy.");
    }

    #[tokio::test]
    async fn only_what_clients_send_is_replaced() {
        let replacement = Replacement { text: b"secret", by: b"public" };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = Proxy::replacing(listener.local_addr().unwrap(), replacement).await.unwrap();
        let mut client = TcpStream::connect(proxy.address()).await.unwrap();
        client.write_all(b"a secret.").await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        let mut heard = [0; 9];
        server.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"a public.");
        server.write_all(b"a secret.").await.unwrap();
        client.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"a secret.");
    }
}
