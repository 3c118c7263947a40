//! A node's side of the worker protocol, written from the contract alone.
//!
//! [`frames`] reads and writes messages, [`attempts`] is what a node has to keep and to list; both are pure. [`Socket`] is
//! the connection. What a node does with its jobs is elsewhere: [`crate::sim_nodes`] answer at once, [`crate::fault_nodes`]
//! keep diaries and are hurt, and tests write frames by hand.

pub mod attempts;
pub mod frames;

use anyhow::{Context as _, Result, ensure};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
pub use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config};

use crate::credentials::Credentials;
use frames::Messages;

/// The subprotocol that both sides name.
pub const SUBPROTOCOL: &str = "fencepost.v1";
/// The header that names it.
const SUBPROTOCOL_HEADER: &str = "sec-websocket-protocol";

/// A worker socket.
#[derive(Debug)]
pub struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    /// Connects to an instance at `http://HOST:PORT`.
    ///
    /// # Errors
    /// Nobody listens there, or the instance does not agree to the protocol.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::connect_by(url, &Credentials::default()).await
    }

    /// The same with a token.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_with(url: &str, token: &str) -> Result<Self> {
        Self::connect_by(url, &Credentials::default().with_token(token)).await
    }

    /// The same with these credentials, to an instance at `http://HOST:PORT` or `https://HOST:PORT`.
    ///
    /// # Errors
    /// As [`Self::connect`]; also, no authority that is trusted knows the instance.
    pub async fn connect_by(url: &str, credentials: &Credentials) -> Result<Self> {
        let (scheme, address, connector) = match url.strip_prefix("https://") {
            None => ("ws", url.strip_prefix("http://").context("a URL of HTTP")?, Connector::Plain),
            Some(address) => {
                let tls = credentials.tls().context("https:// needs an authority that is trusted")?;
                ("wss", address, Connector::Rustls(tls))
            }
        };
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let mut request = format!("{scheme}://{address}/v1/nodes/ws").into_client_request()?;
        request.headers_mut().insert(SUBPROTOCOL_HEADER, SUBPROTOCOL.parse()?);
        if let Some(token) = credentials.token() {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse()?);
        }
        let (socket, answer) = client_async_tls_with_config(request, stream, None, Some(connector)).await?;
        let agreed = answer.headers().get(SUBPROTOCOL_HEADER);
        ensure!(agreed.is_some_and(|agreed| agreed == SUBPROTOCOL), "the subprotocol is {agreed:?}");
        Ok(Self(socket))
    }

    /// Sends messages, one after the other.
    ///
    /// # Errors
    /// The socket is closed.
    pub async fn send_all(&mut self, messages: Messages) -> Result<(), Error> {
        for text in messages.into_texts() {
            self.0.send(Message::text(text)).await?;
        }
        Ok(())
    }

    /// Sends a message as it is.
    ///
    /// # Errors
    /// The socket is closed.
    pub async fn send(&mut self, message: Message) -> Result<(), Error> {
        self.0.send(message).await
    }

    /// The next message; `None` when the socket has ended.
    pub async fn next(&mut self) -> Option<Result<Message, Error>> {
        self.0.next().await
    }

    /// What the socket is over: what is written here is encrypted where the socket is.
    pub fn stream_mut(&mut self) -> &mut MaybeTlsStream<TcpStream> {
        self.0.get_mut()
    }
}
