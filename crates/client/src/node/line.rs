//! One connection to a scheduler: opening it, what waits to be sent, what is heard. It knows frames and not what
//! they mean.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use reqwest::Url;
use reqwest::header::HeaderValue;
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, USER_AGENT};
use tokio_tungstenite::tungstenite::http::{self, Response};
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, WebSocketConfig};
use tokio_tungstenite::tungstenite::{self, Message as Packet};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, connect_async_tls_with_config};
use wire::limits::{MESSAGE_BYTES_MAX, MESSAGE_FRAMES_MAX};
use wire::worker::{AttemptProgress, Heartbeat, Message, NodeFrame, SUBPROTOCOL, SchedulerFrame};
use wire::{Code, Problem};

use crate::error::root_cause;
use crate::transport::{shown, target};
use crate::{Error, Result};

/// How long a connection may take to be there, the handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Several frames share one message up to this many bytes.
const PACK_BYTES_MAX: usize = 256 << 10;
/// Frames that may wait to be sent. Whoever lets more wait does not read.
const WAITING_FRAMES_MAX: usize = 50_000;
/// How long a close may take to be answered.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
const _: () = assert!(2 * PACK_BYTES_MAX < MESSAGE_BYTES_MAX);

/// Where connections lead, and how they are made.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) base: Url,
    pub(super) token: Option<HeaderValue>,
    pub(super) tls: Arc<ClientConfig>,
}

/// What was heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// These frames, in order.
    Frames(Vec<SchedulerFrame>),
    /// A sign of life without a meaning.
    Sign,
    /// What is no message of this protocol.
    Unreadable(String),
    /// The other side closed, with this code and these words.
    Closed(Option<(u16, String)>),
}

/// An open connection.
pub(super) struct Line {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    waiting: VecDeque<NodeFrame>,
    unflushed: bool,
    batch: bool,
    url: String,
}

impl Line {
    /// Connects. `batch` says whether frames may share a message.
    pub(super) async fn open(address: Address, batch: bool) -> Result<Self> {
        let url = shown(&address.base);
        let request = request(&address)?;
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let connector = Connector::Rustls(address.tls);
        let opening = connect_async_tls_with_config(request, Some(config), true, Some(connector));
        match tokio::time::timeout(CONNECT_TIMEOUT, opening).await {
            Ok(Ok((socket, _))) => {
                Ok(Self { socket, waiting: VecDeque::new(), unflushed: false, batch, url })
            }
            Ok(Err(tungstenite::Error::Http(answer))) => Err(refused(url, &answer)),
            Ok(Err(error)) => {
                Err(Error::Unreachable { url, reason: root_cause(&error), source: error.into() })
            }
            Err(late) => Err(Error::Unreachable {
                url,
                reason: "no connection in time".to_owned(),
                source: late.into(),
            }),
        }
    }

    /// The base URL that it leads to.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a frame as soon as it goes, after those that wait.
    pub(super) fn send(&mut self, frame: NodeFrame) {
        if let NodeFrame::Result(result) = &frame {
            let same = |it: &AttemptProgress| it.job == result.job && it.attempt == result.attempt;
            self.waiting.retain(|frame| !matches!(frame, NodeFrame::Progress(it) if same(it)));
        }
        self.waiting.push_back(frame);
    }

    /// Sends a heartbeat. One that still waits is taken back: it must not come after what it did not know of.
    pub(super) fn beat(&mut self, heartbeat: Heartbeat) {
        self.waiting.retain(|frame| !matches!(frame, NodeFrame::Heartbeat(_)));
        self.waiting.push_back(NodeFrame::Heartbeat(heartbeat));
    }

    /// Sends how far an attempt has come, in place of what waits of it.
    pub(super) fn progress(&mut self, progress: AttemptProgress) {
        let same = |it: &AttemptProgress| it.job == progress.job && it.attempt == progress.attempt;
        let older = self.waiting.iter_mut().find_map(|frame| match frame {
            NodeFrame::Progress(it) if same(it) => Some(it),
            _ => None,
        });
        match older {
            Some(older) => *older = progress,
            None => self.waiting.push_back(NodeFrame::Progress(progress)),
        }
    }

    /// Whether the other side takes too little of what it is sent.
    pub(super) fn is_stuck(&self) -> bool {
        self.waiting.len() > WAITING_FRAMES_MAX
    }

    /// Sends what waits, as far as it goes, and gives what is heard next. Nothing is lost when it is dropped before
    /// it is done.
    pub(super) async fn next(&mut self) -> Result<Heard> {
        let packet = poll_fn(|context| {
            if let Poll::Ready(Err(error)) = self.write(context) {
                return Poll::Ready(Some(Err(error)));
            }
            self.socket.poll_next_unpin(context)
        });
        match packet.await {
            Some(Ok(Packet::Text(text))) => Ok(match Message::read(&text) {
                Ok(message) => Heard::Frames(message.into_frames()),
                Err(error) => Heard::Unreadable(error.to_string()),
            }),
            Some(Ok(Packet::Binary(_))) => {
                Ok(Heard::Unreadable("a binary message; frames are texts".to_owned()))
            }
            Some(Ok(Packet::Ping(_) | Packet::Pong(_) | Packet::Frame(_))) => Ok(Heard::Sign),
            Some(Ok(Packet::Close(frame))) => {
                Ok(Heard::Closed(frame.map(|frame| (frame.code.into(), frame.reason.to_string()))))
            }
            Some(Err(error)) => Err(self.lost(&error)),
            None => Ok(Heard::Closed(None)),
        }
    }

    /// Sends what waits and says goodbye with this code, as far as that goes in a second.
    pub(super) async fn close(mut self, code: u16, reason: &'static str) {
        let goodbye = async {
            poll_fn(|context| self.write(context)).await?;
            let frame = CloseFrame { code: code.into(), reason: reason.into() };
            self.socket.close(Some(frame)).await?;
            while let Some(packet) = self.socket.next().await {
                packet?;
            }
            Ok::<(), tungstenite::Error>(())
        };
        // The other side finds out by itself if it does not hear this.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, goodbye).await;
    }

    fn write(&mut self, context: &mut Context<'_>) -> Poll<tungstenite::Result<()>> {
        while !self.waiting.is_empty() {
            ready!(self.socket.poll_ready_unpin(context))?;
            let text = pack(&mut self.waiting, self.batch);
            self.unflushed = true;
            self.socket.start_send_unpin(Packet::text(text))?;
        }
        if self.unflushed {
            ready!(self.socket.poll_flush_unpin(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn lost(&self, error: &tungstenite::Error) -> Error {
        Error::Lost { url: self.url.clone(), reason: root_cause(error), source: None }
    }
}

/// The next message, of one frame or as many as may share one.
fn pack(waiting: &mut VecDeque<NodeFrame>, batch: bool) -> String {
    let mut frames = Vec::new();
    let mut bytes = 0;
    while let Some(frame) = waiting.pop_front() {
        let text = Message::One(frame).to_text();
        bytes += text.len();
        frames.push(text);
        if !batch || bytes >= PACK_BYTES_MAX || frames.len() == MESSAGE_FRAMES_MAX {
            break;
        }
    }
    match frames.len() {
        1 => frames.swap_remove(0),
        _ => format!("[{}]", frames.join(",")),
    }
}

fn request(address: &Address) -> Result<http::Request<()>> {
    let mut url = target(&address.base, &["v1", "nodes", "ws"])?;
    let scheme = if url.scheme() == "https" { "wss" } else { "ws" };
    let unusable = || Error::Unusable(format!("{} cannot be connected to", shown(&address.base)));
    url.set_scheme(scheme).map_err(|()| unusable())?;
    let mut request = url.as_str().into_client_request().map_err(|_| unusable())?;
    let headers = request.headers_mut();
    headers.insert(SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUBPROTOCOL));
    let agent = concat!("fencepost-client/", env!("CARGO_PKG_VERSION"));
    headers.insert(USER_AGENT, HeaderValue::from_static(agent));
    if let Some(token) = &address.token {
        headers.insert(AUTHORIZATION, token.clone());
    }
    Ok(request)
}

/// An HTTP answer where a socket was asked for.
fn refused(url: String, answer: &Response<Option<Vec<u8>>>) -> Error {
    let status = answer.status().as_u16();
    let body = answer.body().as_deref().unwrap_or_default();
    match (serde_json::from_slice::<Problem>(body), status) {
        (Ok(problem), _) => Error::Refused(Box::new(problem)),
        // Of the body only what came with the head is there; these say enough by their status.
        (Err(_), 401) => Error::Refused(Box::new(Problem::new(Code::Unauthorized, "the scheduler said so"))),
        (Err(_), 403) => Error::Refused(Box::new(Problem::new(Code::Forbidden, "the scheduler said so"))),
        (Err(_), _) => {
            Error::Unexpected { url, status, reason: "it answers without opening a socket".to_owned() }
        }
    }
}

#[cfg(test)]
mod tests {
    use wire::worker::{AttemptRef, Nothing};

    use super::*;

    fn frames(text: &str) -> Vec<NodeFrame> {
        Message::read(text).unwrap().into_frames()
    }

    #[test]
    fn frames_share_messages_only_where_that_was_agreed() {
        let many = MESSAGE_FRAMES_MAX + 1;
        let waiting: VecDeque<_> = std::iter::repeat_n(NodeFrame::Ready(Nothing {}), many).collect();
        let (mut single, mut several) = (waiting.clone(), waiting);
        assert_eq!(pack(&mut single, false), r#"{"type":"ready"}"#);
        assert_eq!(frames(&pack(&mut several, true)).len(), MESSAGE_FRAMES_MAX);
        assert_eq!(pack(&mut several, true), r#"{"type":"ready"}"#);
        assert!(several.is_empty());
    }

    #[test]
    fn a_message_ends_with_the_frame_that_makes_it_large() {
        let ack = |bytes: usize| NodeFrame::Ack(AttemptRef { job: "x".repeat(bytes), attempt: 1 });
        let mut waiting = VecDeque::from([ack(10), ack(PACK_BYTES_MAX), ack(10)]);
        let first = pack(&mut waiting, true);
        assert!(first.starts_with('[') && first.len() > PACK_BYTES_MAX);
        assert_eq!(waiting.len(), 1);
    }

    #[test]
    fn the_socket_is_asked_for_beside_the_base() {
        let tls = Arc::new(crate::tls::settings(false).unwrap());
        let token = Some(HeaderValue::from_static("Bearer t"));
        let base = crate::transport::base("https://h:1/fence").unwrap();
        let request = request(&Address { base, token, tls }).unwrap();
        assert_eq!(request.uri().to_string(), "wss://h:1/fence/v1/nodes/ws");
        assert_eq!(request.headers()[SEC_WEBSOCKET_PROTOCOL], "fencepost.v1");
        assert_eq!(request.headers()[AUTHORIZATION], "Bearer t");
    }
}
