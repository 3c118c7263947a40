//! Frames on their way to a node: one message at a time, in their order, beside whatever else happens at the socket.

use std::collections::VecDeque;

use actix_web::web::Bytes;
use actix_ws::Session;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use wire::limits::{MESSAGE_BYTES_MAX, MESSAGE_FRAMES_MAX};
use wire::worker::SchedulerFrame;

use crate::limits::{SOCKET_OUT_BYTES_MAX, SOCKET_OUT_FRAMES_MAX};
use crate::websocket::{Outlet, Unsent};

/// A message that the connection is to take.
pub(super) type Sending = LocalBoxFuture<'static, Result<(), Unsent>>;

/// Of one socket.
pub(super) struct Outgoing {
    outlet: Outlet,
    /// As JSON texts.
    frames: VecDeque<String>,
    /// The bytes of those.
    bytes: usize,
    /// The newest ping that is not answered.
    ping: Option<Bytes>,
    /// The message that the connection has not taken yet. It goes on where it was, however often the wait for it is given up.
    sending: Option<Sending>,
}

impl Outgoing {
    pub(super) fn new(outlet: Outlet) -> Self {
        Self { outlet, frames: VecDeque::new(), bytes: 0, ping: None, sending: None }
    }

    pub(super) fn push(&mut self, frame: &SchedulerFrame) {
        let text = serde_json::to_string(frame).expect("frames have text keys only");
        self.bytes += text.len();
        self.frames.push_back(text);
    }

    /// Of several pings the newest alone needs an answer (RFC 6455, section 5.5.3).
    pub(super) fn answer(&mut self, ping: Bytes) {
        self.ping = Some(ping);
    }

    /// Whether there is something that the connection has not taken.
    pub(super) fn is_waiting(&self) -> bool {
        self.sending.is_some() || self.ping.is_some() || !self.frames.is_empty()
    }

    /// Whether there is room for answers to what the node sends.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < SOCKET_OUT_BYTES_MAX && self.frames.len() < SOCKET_OUT_FRAMES_MAX
    }

    /// Sends what the connection takes at once. To a node that takes batches several frames go in one message.
    ///
    /// # Errors
    /// The node does not read.
    pub(super) fn flush(&mut self, is_batch: bool) -> Result<(), Unsent> {
        loop {
            if self.sending.is_none() {
                self.sending = self.next(is_batch);
            }
            let Some(sending) = &mut self.sending else { return Ok(()) };
            let Some(sent) = sending.now_or_never() else { return Ok(()) };
            self.sending = None;
            judge(sent)?;
        }
    }

    /// Waits until the connection has taken the message that is being sent.
    ///
    /// # Errors
    /// The node does not read.
    pub(super) async fn sent(&mut self) -> Result<(), Unsent> {
        let Some(sending) = &mut self.sending else { return std::future::pending().await };
        let sent = sending.await;
        self.sending = None;
        judge(sent)
    }

    /// What is left when the socket is over: the message that is being sent, and those behind it.
    pub(super) fn end(&mut self, is_batch: bool) -> (Option<Sending>, Vec<String>) {
        let left = std::iter::from_fn(|| self.next_message(is_batch)).collect();
        (self.sending.take(), left)
    }

    /// For the last frames.
    pub(super) fn session(&self) -> Session {
        self.outlet.session()
    }

    fn next(&mut self, is_batch: bool) -> Option<Sending> {
        if let Some(ping) = self.ping.take() {
            let mut outlet = self.outlet.clone();
            return Some(async move { outlet.pong(&ping).await }.boxed_local());
        }
        let message = self.next_message(is_batch)?;
        let mut outlet = self.outlet.clone();
        Some(async move { outlet.text(message).await }.boxed_local())
    }

    fn next_message(&mut self, is_batch: bool) -> Option<String> {
        let first = self.take()?;
        let mut bytes = first.len() + 1;
        let mut texts = vec![first];
        while is_batch
            && texts.len() < MESSAGE_FRAMES_MAX
            && self.frames.front().is_some_and(|text| bytes + text.len() + 2 <= MESSAGE_BYTES_MAX)
            && let Some(text) = self.take()
        {
            bytes += text.len() + 1;
            texts.push(text);
        }
        Some(if texts.len() > 1 { format!("[{}]", texts.join(",")) } else { texts.concat() })
    }

    fn take(&mut self) -> Option<String> {
        let text = self.frames.pop_front()?;
        self.bytes -= text.len();
        Some(text)
    }
}

/// A socket that is closed is found by the next read.
fn judge(sent: Result<(), Unsent>) -> Result<(), Unsent> {
    match sent {
        Ok(()) | Err(Unsent::Closed) => Ok(()),
        Err(Unsent::NotRead) => Err(Unsent::NotRead),
    }
}
