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
    outbox: Outbox,
    batch: bool,
    /// How many heartbeats were queued, without those that took another's place, and how many were answered.
    beats: u64,
    answers: u64,
    /// The heartbeat behind the node's `drain`.
    behind_drain: Option<u64>,
}

/// Frames that wait to be sent. Results wait behind all others, which are short, and share no message with them: on a slow line
/// an `ack` or a heartbeat that is heard only with the end of a result would come too late, and the scheduler would give the
/// attempt to another node.
#[derive(Debug, Default)]
struct Outbox {
    others: VecDeque<NodeFrame>,
    results: VecDeque<NodeFrame>,
}

impl Connection {
    /// Connects. `batch` says whether frames may share a message.
    pub(super) async fn open(dialer: &Dialer, base: &Url, batch: bool) -> Result<Self> {
        let socket = dialer.open(base, &["v1", "nodes", "ws"], &[]).await?;
        Ok(Self { socket, outbox: Outbox::default(), batch, beats: 0, answers: 0, behind_drain: None })
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

    /// Queues a frame: a result behind all that wait, any other frame behind those that are no results.
    pub(super) fn send(&mut self, frame: NodeFrame) {
        self.outbox.push(frame);
    }

    /// Queues a heartbeat in place of one that still waits: a heartbeat must list what the frames before it began.
    pub(super) fn beat(&mut self, heartbeat: Heartbeat) {
        let waiting = &mut self.outbox.others;
        let waited = waiting.len();
        waiting.retain(|frame| !matches!(frame, NodeFrame::Heartbeat(_)));
        self.beats += u64::from(waiting.len() == waited);
        waiting.push_back(NodeFrame::Heartbeat(heartbeat));
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
        let older = self.outbox.others.iter_mut().find_map(|frame| match frame {
            NodeFrame::Progress(it) if same(it) => Some(it),
            _ => None,
        });
        match older {
            Some(older) => *older = progress,
            None => self.outbox.push(NodeFrame::Progress(progress)),
        }
    }

    /// Whether too many frames wait because the other side does not read.
    pub(super) fn is_stuck(&self) -> bool {
        self.outbox.len() > WAITING_FRAMES_MAX
    }

    /// Whether something has moved on the connection since something was received last, and since this was last asked.
    pub(super) fn has_moved(&self) -> bool {
        self.socket.has_moved()
    }

    /// Sends what waits, as far as the other side takes it, and answers what is received next. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Received> {
        let (outbox, batch) = (&mut self.outbox, self.batch);
        Ok(match self.socket.next(|| pack(outbox, batch)).await? {
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
        let (outbox, batch) = (&mut self.outbox, self.batch);
        self.socket.close(|| pack(outbox, batch), code, reason).await;
    }
}

impl Outbox {
    fn push(&mut self, frame: NodeFrame) {
        if let NodeFrame::Result(result) = &frame {
            let same = |it: &AttemptProgress| it.job == result.job && it.attempt == result.attempt;
            self.others.retain(|frame| !matches!(frame, NodeFrame::Progress(it) if same(it)));
            self.results.push_back(frame);
        } else {
            self.others.push_back(frame);
        }
    }

    /// The frames of which the next message is made.
    fn of_next_message(&mut self) -> &mut VecDeque<NodeFrame> {
        if self.others.is_empty() { &mut self.results } else { &mut self.others }
    }

    fn len(&self) -> usize {
        self.others.len() + self.results.len()
    }
}

/// The next message, of one frame or as many as may share one; `None` when nothing waits.
fn pack(outbox: &mut Outbox, batch: bool) -> Option<Utf8Bytes> {
    let waiting = outbox.of_next_message();
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
    use wire::Json;
    use wire::worker::{AttemptOutcome, AttemptRef, AttemptResult, Nothing};

    use super::*;

    fn frames(text: &str) -> Vec<NodeFrame> {
        Message::read(text).unwrap().into_frames()
    }

    fn outbox(frames: impl IntoIterator<Item = NodeFrame>) -> Outbox {
        let mut outbox = Outbox::default();
        frames.into_iter().for_each(|frame| outbox.push(frame));
        outbox
    }

    #[test]
    fn frames_share_messages_only_where_that_was_agreed() {
        let many = || outbox(std::iter::repeat_n(NodeFrame::Ready(Nothing {}), MESSAGE_FRAMES_MAX + 1));
        let (mut single, mut several) = (many(), many());
        assert_eq!(pack(&mut single, false).as_deref(), Some(r#"{"type":"ready"}"#));
        assert_eq!(frames(&pack(&mut several, true).unwrap()).len(), MESSAGE_FRAMES_MAX);
        assert_eq!(pack(&mut several, true).as_deref(), Some(r#"{"type":"ready"}"#));
        assert_eq!(pack(&mut several, true), None);
    }

    #[test]
    fn a_message_ends_with_the_frame_that_makes_it_large() {
        let ack = |bytes: usize| NodeFrame::Ack(AttemptRef { job: "x".repeat(bytes), attempt: 1 });
        let mut waiting = outbox([ack(10), ack(PACK_BYTES_MAX), ack(10)]);
        let first = pack(&mut waiting, true).unwrap();
        assert!(first.starts_with('[') && first.len() > PACK_BYTES_MAX);
        assert_eq!(waiting.len(), 1);
    }

    #[test]
    fn results_wait_behind_what_the_scheduler_must_hear_in_time_and_share_no_message_with_it() {
        let ack = |job: &str| NodeFrame::Ack(AttemptRef { job: job.to_owned(), attempt: 1 });
        let result = |job: &str| {
            let (job, outcome) = (job.to_owned(), AttemptOutcome::Done(Json::null()));
            NodeFrame::Result(AttemptResult { job, attempt: 1, outcome, traceparent: None })
        };
        let beat = NodeFrame::Heartbeat(Heartbeat { load: None, running: Vec::new() });
        let mut waiting = outbox([ack("a"), result("a"), result("b"), ack("c"), beat.clone(), result("c")]);
        assert_eq!(waiting.len(), 6);
        let mut sent = || pack(&mut waiting, true).map(|text| frames(&text));
        assert_eq!(sent(), Some(vec![ack("a"), ack("c"), beat]));
        assert_eq!(sent(), Some(vec![result("a"), result("b"), result("c")]));
        assert_eq!(sent(), None);
    }
}
