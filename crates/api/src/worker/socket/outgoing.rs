//! Frames on their way to a node: one message at a time, in their order, beside whatever else happens at the socket.

use std::collections::VecDeque;

use actix_web::web::Bytes;
use actix_ws::Session;
use bus::Slot;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use wire::limits::{MESSAGE_BYTES_MAX, MESSAGE_FRAMES_MAX};
use wire::worker::SchedulerFrame;

use crate::limits::{SOCKET_OUT_BYTES_MAX, SOCKET_OUT_FRAMES_MAX, UNCOUNTED_BYTES_MAX};
use crate::shares::Share;
use crate::websocket::{Outlet, Unsent};

/// A message that the connection is to take. It has the way out until then.
pub(super) type Sending = LocalBoxFuture<'static, (Outlet, Result<(), Unsent>)>;

/// Of one socket.
pub(super) struct Outgoing {
    /// For the last frames.
    session: Session,
    /// Unless a message that is being sent has it.
    outlet: Option<Outlet>,
    frames: VecDeque<Frame>,
    /// The bytes of those.
    bytes: usize,
    /// The same among all bytes that are not sent, if they are many.
    share: Option<Share>,
    /// There was no room for more among those.
    is_over_share: bool,
    /// The newest ping that is not answered.
    ping: Option<Bytes>,
    /// The message that the connection has not taken yet. It goes on where it was, however often the wait for it is given up.
    sending: Option<Sending>,
    /// The frames of that message, if attempts are among them: of those the attempts, of the others the texts.
    in_message: Vec<Frame>,
    /// Attempts that could not be sent.
    unsent: Vec<Slot>,
}

struct Frame {
    /// As JSON.
    text: String,
    /// The attempt that the node is to run by it.
    attempt: Option<Slot>,
}

/// What is left when the socket is over.
pub(super) struct Left {
    /// The message that is being sent.
    pub(super) sending: Option<Sending>,
    /// Those behind it.
    pub(super) last: Vec<String>,
    /// What those have of the bytes that are not sent.
    pub(super) share: Option<Share>,
    /// Attempts that waited. They are in none of these: they are not sent any more.
    pub(super) unsent: Vec<Slot>,
}

impl Outgoing {
    /// With a share of the bytes that are not sent, which is nothing yet.
    pub(super) fn new(outlet: Outlet, share: Share) -> Self {
        Self {
            session: outlet.session(),
            outlet: Some(outlet),
            frames: VecDeque::new(),
            bytes: 0,
            share: Some(share),
            is_over_share: false,
            ping: None,
            sending: None,
            in_message: Vec::new(),
            unsent: Vec::new(),
        }
    }

    /// A frame for the node, which is to run this attempt by it.
    pub(super) fn push(&mut self, frame: &SchedulerFrame, attempt: Option<Slot>) {
        let text = serde_json::to_string(frame).expect("frames have text keys only");
        self.bytes += text.len();
        self.frames.push_back(Frame { text, attempt });
        self.count();
    }

    /// Of several pings the newest alone needs an answer (RFC 6455, section 5.5.3).
    pub(super) fn answer(&mut self, ping: Bytes) {
        self.ping = Some(ping);
    }

    /// Whether there is something that the connection has not taken.
    pub(super) fn is_waiting(&self) -> bool {
        self.sending.is_some() || self.ping.is_some() || !self.frames.is_empty()
    }

    /// Whether the connection did not take a message at once.
    pub(super) const fn is_held_up(&self) -> bool {
        self.sending.is_some()
    }

    /// Whether there is room for answers to what the node sends.
    pub(super) fn has_room(&self) -> bool {
        self.bytes < SOCKET_OUT_BYTES_MAX && self.frames.len() < SOCKET_OUT_FRAMES_MAX && !self.is_over_share
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
            let Some((outlet, sent)) = sending.now_or_never() else { return Ok(()) };
            self.was_sent(outlet, sent)?;
        }
    }

    /// Waits until the connection has taken the message that is being sent.
    ///
    /// # Errors
    /// The node does not read.
    pub(super) async fn sent(&mut self) -> Result<(), Unsent> {
        let Some(sending) = &mut self.sending else { return std::future::pending().await };
        let (outlet, sent) = sending.await;
        self.was_sent(outlet, sent)
    }

    /// What became of the message that was being sent. A socket that is closed is found by the next read.
    fn was_sent(&mut self, outlet: Outlet, sent: Result<(), Unsent>) -> Result<(), Unsent> {
        (self.sending, self.outlet) = (None, Some(outlet));
        let attempts = self.in_message.drain(..).filter_map(|frame| frame.attempt);
        match sent {
            Ok(()) => Ok(()),
            Err(unsent) => {
                self.unsent.extend(attempts);
                if unsent == Unsent::NotRead { Err(unsent) } else { Ok(()) }
            }
        }
    }

    /// The socket is over: nothing is given to the node any more that it would run.
    pub(super) fn end(&mut self, is_batch: bool) -> Left {
        // The connection takes a message whole: it has nothing of one that has attempts in it.
        let sending = self.sending.take().filter(|_| self.in_message.is_empty());
        let mut unsent = std::mem::take(&mut self.unsent);
        let mut share = self.share.take();
        self.bytes = 0;
        for Frame { text, attempt } in self.in_message.drain(..).chain(std::mem::take(&mut self.frames)) {
            match attempt {
                Some(attempt) => unsent.push(attempt),
                None => {
                    self.bytes += text.len();
                    self.frames.push_back(Frame { text, attempt });
                }
            }
        }
        if let Some(share) = &mut share {
            share.shrink(share.amount().saturating_sub(self.bytes));
        }
        let last = std::iter::from_fn(|| self.next_message(is_batch)).collect();
        self.in_message.clear();
        Left { sending, last, share, unsent }
    }

    /// For the last frames.
    pub(super) fn session(&self) -> Session {
        self.session.clone()
    }

    fn next(&mut self, is_batch: bool) -> Option<Sending> {
        let mut outlet = self.outlet.take()?;
        if let Some(ping) = self.ping.take() {
            let pong = async move {
                let sent = outlet.pong(&ping).await;
                (outlet, sent)
            };
            return Some(pong.boxed_local());
        }
        let Some(message) = self.next_message(is_batch) else {
            self.outlet = Some(outlet);
            return None;
        };
        let text = async move {
            let sent = outlet.text(message).await;
            (outlet, sent)
        };
        Some(text.boxed_local())
    }

    /// The next message. What is to be known of it until it is sent is in `in_message`.
    fn next_message(&mut self, is_batch: bool) -> Option<String> {
        let first = self.take()?;
        let mut bytes = first.text.len() + 1;
        let mut frames = vec![first];
        while is_batch
            && frames.len() < MESSAGE_FRAMES_MAX
            && self.frames.front().is_some_and(|frame| bytes + frame.text.len() + 2 <= MESSAGE_BYTES_MAX)
            && let Some(frame) = self.take()
        {
            bytes += frame.text.len() + 1;
            frames.push(frame);
        }
        let message = match &mut frames[..] {
            [frame] => std::mem::take(&mut frame.text),
            frames => {
                let texts: Vec<_> = frames.iter().map(|frame| frame.text.as_str()).collect();
                format!("[{}]", texts.join(","))
            }
        };
        if frames.iter().any(|frame| frame.attempt.is_some()) {
            for frame in frames.iter_mut().filter(|frame| frame.attempt.is_some()) {
                frame.text = String::new();
            }
            self.in_message = frames;
        }
        Some(message)
    }

    fn take(&mut self) -> Option<Frame> {
        let frame = self.frames.pop_front()?;
        self.bytes -= frame.text.len();
        self.count();
        Some(frame)
    }

    /// Has the share be as much as there is now. Few bytes are not counted.
    fn count(&mut self) {
        let counted = if self.bytes > UNCOUNTED_BYTES_MAX { self.bytes } else { 0 };
        self.is_over_share = self.share.as_mut().is_some_and(|share| share.set(counted).is_err());
    }
}
