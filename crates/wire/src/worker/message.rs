//! Frames by their types, and messages of one or several.

use std::fmt;
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

use super::frames::{
    AttemptProgress, AttemptRef, AttemptResult, Dispatch, Heartbeat, HeartbeatOk, Hello, Nothing, Notice,
    Reject, SocketProblem, Welcome,
};
use crate::frames::frames;
use crate::limits::MESSAGE_FRAMES_MAX;

frames! {
    /// A frame that a node sends.
    pub enum NodeFrame as NodeKind {
        /// The node's identity and abilities. The first frame.
        Hello(Hello) = "hello",
        /// A heartbeat: the node's load and its running attempts.
        Heartbeat(Heartbeat) = "heartbeat",
        /// After `drain`: the node takes jobs again.
        Ready(Nothing) = "ready",
        /// The node does not take an attempt.
        Reject(Reject) = "reject",
        /// The node has an attempt.
        Ack(AttemptRef) = "ack",
        /// The progress of an attempt.
        Progress(AttemptProgress) = "progress",
        /// How an attempt ended.
        Result(AttemptResult) = "result",
        /// The node takes no more jobs.
        Drain(Nothing) = "drain",
    }
}

frames! {
    /// A frame that the scheduler sends.
    pub enum SchedulerFrame as SchedulerKind {
        /// The answer to `hello`.
        Welcome(Welcome) = "welcome",
        /// The answer to `heartbeat`.
        HeartbeatOk(HeartbeatOk) = "heartbeat_ok",
        /// An attempt to run.
        Dispatch(Dispatch) = "dispatch",
        /// An attempt is cancelled: the node stops it, and sends no result.
        Cancel(Notice) = "cancel",
        /// A result is durable: the node forgets the attempt.
        Committed(Notice) = "committed",
        /// An attempt is not the job's newest any more: the node forgets it.
        Stale(Notice) = "stale",
        /// Something is wrong.
        Problem(SocketProblem) = "problem",
    }
}

/// One message of the socket.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Message<F> {
    /// One frame.
    One(F),
    /// 1 to [`MESSAGE_FRAMES_MAX`] of them, to be taken in order. Only where the node's `hello` said `batch`.
    Batch(Vec<F>),
}

impl<F> Message<F> {
    /// The frames, in order.
    #[must_use]
    pub fn into_frames(self) -> Vec<F> {
        match self {
            Self::One(frame) => vec![frame],
            Self::Batch(frames) => frames,
        }
    }
}

impl<'de, F: Deserialize<'de>> Message<F> {
    /// Reads a message.
    ///
    /// # Errors
    /// The reader's own, with the place, saying what would be right.
    pub fn read(text: &'de str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

impl<F: Serialize> Message<F> {
    /// Writes it down.
    ///
    /// # Panics
    /// Never: frames are plain data.
    #[must_use]
    pub fn to_text(&self) -> String {
        serde_json::to_string(self).expect("frames are plain data")
    }
}

impl<'de, F: Deserialize<'de>> Deserialize<'de> for Message<F> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Reader(PhantomData))
    }
}

struct Reader<F>(PhantomData<F>);

impl<'de, F: Deserialize<'de>> Visitor<'de> for Reader<F> {
    type Value = Message<F>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a frame, or a list of 1 to {MESSAGE_FRAMES_MAX} frames")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Message<F>, A::Error> {
        F::deserialize(MapAccessDeserializer::new(map)).map(Message::One)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Message<F>, A::Error> {
        let mut frames = Vec::new();
        while let Some(frame) = items.next_element()? {
            if frames.len() == MESSAGE_FRAMES_MAX {
                return Err(A::Error::invalid_length(frames.len() + 1, &self));
            }
            frames.push(frame);
        }
        if frames.is_empty() {
            return Err(A::Error::invalid_length(0, &self));
        }
        Ok(Message::Batch(frames))
    }
}
