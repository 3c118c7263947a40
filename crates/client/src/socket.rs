//! One WebSocket to an instance: opening it, sending and receiving texts. It does not know what the texts
//! mean.

mod line;

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use reqwest::Url;
use reqwest::header::HeaderValue;
use rustls::ClientConfig;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, USER_AGENT};
use tokio_tungstenite::tungstenite::http::{self, Response};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Bytes, Message as Packet, Utf8Bytes};
use tokio_tungstenite::{
    Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config, connect_async_tls_with_config,
};
use wire::limits::MESSAGE_BYTES_MAX;
use wire::worker::{SUBPROTOCOL, close};
use wire::{Code, Problem};

use crate::base_url::{reason, secured, shown, target};
use crate::error::{is_no_http, is_of_tls_server, root_cause};
use crate::token::Token;
use crate::{Error, Result, TlsOptions, tls};
use line::Line;

/// How long opening a connection may take, including the handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server may take to show that it speaks TLS.
const TLS_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a close may take to be answered.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How sockets are opened. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Dialer {
    token: Option<Token>,
    tls: Arc<ClientConfig>,
}

/// What was received.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message.
    Text(Utf8Bytes),
    /// A ping or a pong.
    Sign,
    /// A message that is no text.
    Binary,
    /// The other side closed, with this code and these words.
    Closed(Option<(u16, String)>),
}

/// An open connection.
pub(crate) struct Socket {
    socket: WebSocketStream<MaybeTlsStream<Line>>,
    is_ping_due: bool,
    is_unflushed: bool,
    url: String,
}

impl Dialer {
    pub(crate) fn tls(&self) -> &ClientConfig {
        &self.tls
    }

    /// For these URLs.
    pub(crate) fn for_bases(bases: &[Url], token: Option<Token>, tls: &TlsOptions) -> Result<Self> {
        let is_secure = bases.iter().any(|url| url.scheme() == "https");
        let tls = tls::settings(is_secure, tls, tls::Reading::AtChanges)?;
        Ok(Self { token, tls: Arc::new(tls) })
    }

    /// Connects to a path below this base.
    pub(crate) async fn open(
        &self,
        base: &Url,
        path: &[&str],
        query: &[(&'static str, String)],
    ) -> Result<Socket> {
        let url = shown(base);
        let request = self.request(base, path, query)?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let connector = Connector::Rustls(Arc::clone(&self.tls));
        let opening = async {
            let line = Line::to(base).await?;
            client_async_tls_with_config(request, line, Some(config), Some(connector)).await
        };
        match tokio::time::timeout(CONNECT_TIMEOUT, opening).await {
            Ok(Ok((socket, _))) => Ok(Socket { socket, is_ping_due: false, is_unflushed: false, url }),
            Ok(Err(tungstenite::Error::Http(answer))) => Err(refused(url, &answer)),
            Ok(Err(error)) => {
                let reason = self.tls_instead(base, &error).await.unwrap_or_else(|| reason(base, &error));
                Err(Error::Unreachable { url, reason, others: Vec::new(), source: error.into() })
            }
            Err(late) => Err(Error::Unreachable {
                url,
                reason: "no connection in time".to_owned(),
                others: Vec::new(),
                source: late.into(),
            }),
        }
    }

    /// The reason of a failure where a server that speaks TLS was asked by `http://`: it has read nothing of the request. `None`
    /// for any other failure.
    pub(crate) async fn tls_instead(
        &self,
        base: &Url,
        error: &(dyn std::error::Error + Send + Sync + 'static),
    ) -> Option<String> {
        let secured = secured(base);
        let is_so = base.scheme() == "http" && is_no_http(error) && self.is_tls_spoken(&secured).await;
        is_so.then(|| format!("what answers there speaks TLS, not HTTP: use {}", shown(&secured)))
    }

    /// Whether a server speaks TLS. It gets no token.
    async fn is_tls_spoken(&self, url: &Url) -> bool {
        let Ok(request) = url.as_str().replacen("https", "wss", 1).into_client_request() else {
            return false;
        };
        let connector = Connector::Rustls(Arc::clone(&self.tls));
        let opening = connect_async_tls_with_config(request, None, true, Some(connector));
        match tokio::time::timeout(TLS_TIMEOUT, opening).await {
            Ok(Ok(_) | Err(tungstenite::Error::Http(_))) => true,
            Ok(Err(error)) => is_of_tls_server(&error),
            Err(_) => false,
        }
    }

    fn request(
        &self,
        base: &Url,
        path: &[&str],
        query: &[(&'static str, String)],
    ) -> Result<http::Request<()>> {
        let mut url = target(base, path)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
        let unusable = || Error::Unusable(format!("{} cannot be connected to", shown(base)));
        url.set_scheme(scheme).map_err(|()| unusable())?;
        let mut request = url.as_str().into_client_request().map_err(|_| unusable())?;
        let headers = request.headers_mut();
        headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
        let agent = concat!("fencepost-client/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.now());
        }
        Ok(request)
    }
}

impl Socket {
    /// The base URL that it leads to.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a ping with the next texts.
    pub(crate) const fn ping(&mut self) {
        self.is_ping_due = true;
    }

    /// Sends the texts that `pull` returns, as far as the other side takes them, and returns what is received
    /// next. Cancel safe: no text that was pulled is lost.
    pub(crate) async fn next(&mut self, mut pull: impl FnMut() -> Option<Utf8Bytes>) -> Result<Received> {
        let packet = poll_fn(|context| {
            if let Poll::Ready(Err(error)) = self.write(context, &mut pull) {
                return Poll::Ready(Some(Err(error)));
            }
            self.socket.poll_next_unpin(context)
        });
        let packet = packet.await;
        // What has come before is the packet.
        self.line().take_moved();
        match packet {
            Some(Ok(Packet::Text(text))) => Ok(Received::Text(text)),
            Some(Ok(Packet::Binary(_))) => Ok(Received::Binary),
            Some(Ok(Packet::Ping(_) | Packet::Pong(_) | Packet::Frame(_))) => Ok(Received::Sign),
            Some(Ok(Packet::Close(frame))) => {
                Ok(Received::Closed(frame.map(|frame| (frame.code.into(), frame.reason.to_string()))))
            }
            Some(Err(error)) => Err(self.lost(root_cause(&error))),
            None => Ok(Received::Closed(None)),
        }
    }

    /// Whether something has moved on the connection since the last packet, and since this was last asked: a large message takes
    /// its time on a slow line, and behind one that is being sent so does what is to be answered. Then nothing is received
    /// although the other side is there.
    pub(crate) fn has_moved(&self) -> bool {
        self.line().take_moved()
    }

    fn line(&self) -> &Line {
        self.socket.get_ref().get_ref()
    }

    /// Sends the texts that `pull` returns and a close frame with this code, for at most a second.
    pub(crate) async fn close(
        mut self,
        mut pull: impl FnMut() -> Option<Utf8Bytes>,
        code: u16,
        reason: &'static str,
    ) {
        let goodbye = async {
            poll_fn(|context| self.write(context, &mut pull)).await?;
            let frame = CloseFrame { code: code.into(), reason: reason.into() };
            self.socket.close(Some(frame)).await?;
            // When the other side has said the same, nothing is left to wait for: it may take a second to end the connection.
            while let Some(packet) = self.socket.next().await {
                if matches!(packet?, Packet::Close(_)) {
                    break;
                }
            }
            Ok::<(), tungstenite::Error>(())
        };
        // The other side finds out by itself if it does not hear this.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, goodbye).await;
    }

    /// The error for a connection that has failed.
    pub(crate) fn lost(&self, reason: impl Into<String>) -> Error {
        Error::Lost { url: self.url.clone(), reason: reason.into(), source: None }
    }

    /// The meaning of the other side's close code, for codes that all sockets have in common.
    pub(crate) fn closed(&self, why: Option<(u16, String)>) -> Error {
        match why {
            Some((close::UNAUTHORIZED, reason)) => {
                let reason = if reason.is_empty() { SAID_SO.to_owned() } else { reason };
                Error::Refused(Box::new(Problem::new(Code::Unauthorized, reason)))
            }
            Some((code, reason)) => self.lost(format!("it was closed with {code}: {reason}")),
            None => self.lost("it was closed without a close frame"),
        }
    }

    fn write(
        &mut self,
        context: &mut Context<'_>,
        pull: &mut impl FnMut() -> Option<Utf8Bytes>,
    ) -> Poll<tungstenite::Result<()>> {
        loop {
            // Nothing is pulled before there is room for it.
            ready!(self.socket.poll_ready_unpin(context))?;
            let packet = if std::mem::take(&mut self.is_ping_due) {
                Packet::Ping(Bytes::new())
            } else {
                let Some(text) = pull() else { break };
                Packet::Text(text)
            };
            self.is_unflushed = true;
            self.socket.start_send_unpin(packet)?;
        }
        if self.is_unflushed {
            ready!(self.socket.poll_flush_unpin(context))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

const SAID_SO: &str = "the daemon closed it";

/// An HTTP answer where a socket was asked for.
fn refused(url: String, answer: &Response<Option<Vec<u8>>>) -> Error {
    let status = answer.status().as_u16();
    let body = answer.body().as_deref().unwrap_or_default();
    match (serde_json::from_slice::<Problem>(body), status) {
        (Ok(problem), _) => Error::Refused(Box::new(problem)),
        // Of the body only what came with the head is there; these say enough by their status.
        (Err(_), 401) => Error::Refused(Box::new(Problem::new(Code::Unauthorized, SAID_SO))),
        (Err(_), 403) => Error::Refused(Box::new(Problem::new(Code::Forbidden, SAID_SO))),
        (Err(_), _) => {
            Error::Unexpected { url, status, reason: "it answered without opening a socket".to_owned() }
        }
    }
}

#[cfg(test)]
pub(crate) mod stand_in;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_asked_for_beside_the_base() {
        let base = crate::base_url::parse("https://h:1/fence").unwrap();
        let token = Some(Token::Given(HeaderValue::from_static("Bearer t")));
        let tls = tls::settings(false, &TlsOptions::default(), tls::Reading::Once).unwrap();
        let dialer = Dialer { token, tls: Arc::new(tls) };
        let request = dialer.request(&base, &["v1", "nodes", "ws"], &[]).unwrap();
        assert_eq!(request.uri().to_string(), "wss://h:1/fence/v1/nodes/ws");
        assert_eq!(request.headers()[SEC_WEBSOCKET_PROTOCOL], "fencepost.v1");
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer t");
        let path = ["v1", "sessions", "a b", "ws"];
        let request = dialer.request(&base, &path, &[("after_seq", "7".to_owned())]).unwrap();
        assert_eq!(request.uri().to_string(), "wss://h:1/fence/v1/sessions/a%20b/ws?after_seq=7");
        assert!(matches!(dialer.request(&base, &["v1", ".."], &[]), Err(Error::Unusable(_))));
    }
}
