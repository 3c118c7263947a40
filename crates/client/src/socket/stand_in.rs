//! Stands in for an instance, as far as its sockets go.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_tungstenite::tungstenite::Message as Packet;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};
use wire::Problem;

/// Longer than anything takes that is right.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Where sockets lead.
pub(crate) struct Instance {
    listener: TcpListener,
    pub(crate) url: String,
}

impl Instance {
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        Self { listener, url }
    }

    /// The next connection, which says nothing yet.
    pub(crate) async fn reached(&self) -> TcpStream {
        tokio::time::timeout(PATIENCE, self.listener.accept()).await.expect("a connection").unwrap().0
    }

    /// The next socket, and the path and query that it was asked for by.
    pub(crate) async fn opened(&self) -> (WebSocketStream<TcpStream>, String) {
        let mut asked_for = String::new();
        #[expect(clippy::result_large_err, reason = "the library's own shape")]
        let accept = |request: &Request, mut response: Response| {
            assert_eq!(request.headers()["sec-websocket-protocol"], "fencepost.v1");
            let named = HeaderValue::from_static("fencepost.v1");
            response.headers_mut().insert("sec-websocket-protocol", named);
            asked_for = request.uri().to_string();
            Ok(response)
        };
        let socket = accept_hdr_async(self.reached().await, accept).await.unwrap();
        (socket, asked_for)
    }

    /// Answers the next one by a refusal.
    pub(crate) async fn refuse(&self, problem: &Problem) {
        let mut stream = self.reached().await;
        let _ = stream.read(&mut [0; 4_096]).await.unwrap();
        let body = serde_json::to_string(problem).unwrap();
        let (status, length) = (problem.status, body.len());
        let answer = format!("HTTP/1.1 {status} No\r\ncontent-length: {length}\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).await.unwrap();
    }
}

/// Says goodbye with this code, and waits until the other side did.
pub(crate) async fn close(socket: &mut WebSocketStream<TcpStream>, code: u16) {
    close_for(socket, code, "").await;
}

/// The same, for this reason.
pub(crate) async fn close_for(socket: &mut WebSocketStream<TcpStream>, code: u16, reason: &str) {
    socket.close(Some(CloseFrame { code: code.into(), reason: reason.into() })).await.unwrap();
    let gone = async { while let Some(Ok(_)) = socket.next().await {} };
    tokio::time::timeout(PATIENCE, gone).await.expect("a goodbye");
}

/// Sends this text.
pub(crate) async fn say(socket: &mut WebSocketStream<TcpStream>, text: impl Into<String>) {
    socket.send(Packet::text(text.into())).await.unwrap();
}
