//! One connection to a scheduler: opening it, the queue of frames to be sent, the frames received. It does not know what
//! the frames mean.

use std::collections::VecDeque;

use reqwest::Url;
use tokio_tungstenite::tungstenite::Utf8Bytes;
use wire::limits::{MESSAGE_BYTES_MAX, MESSAGE_FRAMES_MAX};
use wire::worker::{AttemptProgress, Heartbeat, Message, NodeFrame, SchedulerFrame};

use crate::socket::{self, Dialer, Socket};
use crate::{Error, Result};

/// Several frames share one message up to this many bytes.
const PACK_BYTES_MAX: usize = 256 << 10;
/// Frames that may wait to be sent. If more wait, the scheduler counts as not reading.
const WAITING_FRAMES_MAX: usize = 50_000;
const _: () = assert!(2 * PACK_BYTES_MAX < MESSAGE_BYTES_MAX);

/// What was received.
#[derive(Debug)]
pub(super) enum Received {
    /// These frames, in order.
    Frames(Vec<SchedulerFrame>),
    /// A ping or pong.
    Sign,
    /// A message that this protocol does not have.
    Unreadable(String),
    /// The other side closed, with this code and these words.
    Closed(Option<(u16, String)>),
}

/// An open connection.
pub(super) struct Connection {
    socket: Socket,
    waiting: VecDeque<NodeFrame>,
    batch: bool,
    /// How many heartbeats were queued, without those that took another's place, and how many were answered.
    beats: u64,
    answers: u64,
    /// The heartbeat behind the node's `drain`.
    behind_drain: Option<u64>,
}

impl Connection {
    /// Connects. `batch` says whether frames may share a message.
    pub(super) async fn open(dialer: &Dialer, base: &Url, batch: bool) -> Result<Self> {
        let socket = dialer.open(base, &["v1", "nodes", "ws"], &[]).await?;
        Ok(Self { socket, waiting: VecDeque::new(), batch, beats: 0, answers: 0, behind_drain: None })
    }

    /// The base URL that it leads to.
    pub(super) fn url(&self) -> &str {
        self.socket.url()
    }

    /// The error for a connection that has failed.
    pub(super) fn lost(&self, reason: impl Into<String>) -> Error {
        self.socket.lost(reason)
    }

    /// What the other side's close code means, unless only nodes get this code.
    pub(super) fn closed(&self, why: Option<(u16, String)>) -> Error {
        self.socket.closed(why)
    }

    /// Queues a frame, behind those that wait.
    pub(super) fn send(&mut self, frame: NodeFrame) {
        if let NodeFrame::Result(result) = &frame {
            let same = |it: &AttemptProgress| it.job == result.job && it.attempt == result.attempt;
            self.waiting.retain(|frame| !matches!(frame, NodeFrame::Progress(it) if same(it)));
        }
        self.waiting.push_back(frame);
    }

    /// Queues a heartbeat in place of one that still waits: a heartbeat must list what the frames before it began.
    pub(super) fn beat(&mut self, heartbeat: Heartbeat) {
        let waited = self.waiting.len();
        self.waiting.retain(|frame| !matches!(frame, NodeFrame::Heartbeat(_)));
        self.beats += u64::from(self.waiting.len() == waited);
        self.waiting.push_back(NodeFrame::Heartbeat(heartbeat));
    }

    /// Queues a heartbeat behind a `drain`: its answer says that the scheduler has heard of that, and dispatches nothing any
    /// more.
    pub(super) fn beat_behind_drain(&mut self, heartbeat: Heartbeat) {
        self.beat(heartbeat);
        self.behind_drain = Some(self.beats);
    }

    /// A heartbeat was answered.
    pub(super) fn answered(&mut self) {
        self.answers += 1;
    }

    /// Whether the scheduler has heard of the `drain`.
    pub(super) fn is_drain_heard(&self) -> bool {
        self.behind_drain.is_some_and(|beat| self.answers >= beat)
    }

    /// Queues a report of an attempt's progress, in place of an earlier one that still waits.
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

    /// Whether too many frames wait because the other side does not read.
    pub(super) fn is_stuck(&self) -> bool {
        self.waiting.len() > WAITING_FRAMES_MAX
    }

    /// Sends what waits, as far as the other side takes it, and answers what is received next. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Received> {
        let (waiting, batch) = (&mut self.waiting, self.batch);
        Ok(match self.socket.next(|| pack(waiting, batch)).await? {
            socket::Received::Text(text) => match Message::read(&text) {
                Ok(message) => Received::Frames(message.into_frames()),
                Err(error) => Received::Unreadable(error.to_string()),
            },
            socket::Received::Binary => Received::Unreadable("a binary message; frames are texts".to_owned()),
            socket::Received::Sign => Received::Sign,
            socket::Received::Closed(why) => Received::Closed(why),
        })
    }

    /// Sends what waits and closes with this code, for at most a second.
    pub(super) async fn close(mut self, code: u16, reason: &'static str) {
        let (waiting, batch) = (&mut self.waiting, self.batch);
        self.socket.close(|| pack(waiting, batch), code, reason).await;
    }
}

/// The next message, of one frame or as many as may share one; `None` when nothing waits.
fn pack(waiting: &mut VecDeque<NodeFrame>, batch: bool) -> Option<Utf8Bytes> {
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
    Some(match frames.len() {
        0 => return None,
        1 => frames.swap_remove(0).into(),
        _ => format!("[{}]", frames.join(",")).into(),
    })
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
        assert_eq!(pack(&mut single, false).as_deref(), Some(r#"{"type":"ready"}"#));
        assert_eq!(frames(&pack(&mut several, true).unwrap()).len(), MESSAGE_FRAMES_MAX);
        assert_eq!(pack(&mut several, true).as_deref(), Some(r#"{"type":"ready"}"#));
        assert_eq!(pack(&mut several, true), None);
    }

    #[test]
    fn a_message_ends_with_the_frame_that_makes_it_large() {
        let ack = |bytes: usize| NodeFrame::Ack(AttemptRef { job: "x".repeat(bytes), attempt: 1 });
        let mut waiting = VecDeque::from([ack(10), ack(PACK_BYTES_MAX), ack(10)]);
        let first = pack(&mut waiting, true).unwrap();
        assert!(first.starts_with('[') && first.len() > PACK_BYTES_MAX);
        assert_eq!(waiting.len(), 1);
    }
}
