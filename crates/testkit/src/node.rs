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
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
pub use tokio_tungstenite::tungstenite::{Error, Message};

use frames::Messages;

/// The subprotocol that both sides name.
pub const SUBPROTOCOL: &str = "fencepost.v1";
/// The header that names it.
const SUBPROTOCOL_HEADER: &str = "sec-websocket-protocol";

async fn stream_to(url: &str) -> Result<TcpStream> {
    let stream = TcpStream::connect(url.strip_prefix("http://").context("a URL of HTTP")?).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A worker socket.
#[derive(Debug)]
pub struct Socket(WebSocketStream<TcpStream>);

impl Socket {
    /// Connects to an instance at `http://HOST:PORT`.
    ///
    /// # Errors
    /// Nobody listens there, or the instance does not agree to the protocol.
    pub async fn connect(url: &str) -> Result<Self> {
        Self::over(stream_to(url).await?, url).await
    }

    /// The same with a token.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub async fn connect_with(url: &str, token: &str) -> Result<Self> {
        Self::agree(stream_to(url).await?, url, Some(token)).await
    }

    /// Connects over a stream that leads to the instance.
    ///
    /// # Errors
    /// The instance does not agree to the protocol.
    pub async fn over(stream: TcpStream, url: &str) -> Result<Self> {
        Self::agree(stream, url, None).await
    }

    async fn agree(stream: TcpStream, url: &str, token: Option<&str>) -> Result<Self> {
        let address = url.strip_prefix("http://").context("a URL of HTTP")?;
        let mut request = format!("ws://{address}/v1/nodes/ws").into_client_request()?;
        request.headers_mut().insert(SUBPROTOCOL_HEADER, SUBPROTOCOL.parse()?);
        if let Some(token) = token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse()?);
        }
        let (socket, answer) = tokio_tungstenite::client_async(request, stream).await?;
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

    /// What the socket is over.
    pub fn stream_mut(&mut self) -> &mut TcpStream {
        self.0.get_mut()
    }
}
