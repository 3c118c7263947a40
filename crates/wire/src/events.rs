//! What the streams of events carry: server-sent events, the name of the kind and one line or more of JSON each.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cluster::Mode;
use crate::jobs::{JobState, Outcome};
use crate::nodes::NodeState;
use crate::strict::words;

/// The media type of a stream.
pub const MEDIA_TYPE: &str = "text/event-stream";
/// What the id of the event with a job's end ends in: nothing comes after it.
pub const END_ID: &str = "FINISHED";

words! {
    /// What an event is about.
    pub enum EventKind {
        /// A job is in another state.
        Job = "job",
        /// A job's newest attempt has come so far.
        Progress = "progress",
        /// A node came, went, or changed.
        Node = "node",
        /// An instance came or went, or the mode is another.
        Cluster = "cluster",
    }
}

impl EventKind {
    /// Reads the word; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text)
    }
}

/// `progress`: how far a job's newest attempt has come, as its node says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProgressEvent {
    /// The job.
    pub id: String,
    /// The attempt.
    pub attempt: u32,
    /// 0 to 100, if its node said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 100)]
    pub percent: Option<f64>,
    /// In words, if its node said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
}

/// `job`, among those of all jobs: a job is in another state. All there is to know of it is at `/v1/jobs/{id}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobEvent {
    /// The job.
    pub id: String,
    /// Its state.
    pub state: JobState,
    /// How it ended; `null` before it has, and where that is not told.
    #[schema(required)]
    pub outcome: Option<Outcome>,
    /// The number of its newest attempt; 0 before the first.
    pub attempt: u32,
    /// Whose ordered work it belongs to, where that is told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lane: Option<String>,
    /// The node that has, or had, the newest attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub node: Option<String>,
}

words! {
    /// What happened to a node.
    pub enum NodeHappening {
        /// It has connected.
        Joined = "joined",
        /// It is in another state.
        Changed = "changed",
        /// Its connection is over, and it has nothing to do any more.
        Left = "left",
        /// It has connected anew; the connection before is over.
        Replaced = "replaced",
        /// Nothing was heard of it for long.
        Lost = "lost",
    }
}

/// `node`: a node came, went, or changed, as the instance sees it that sends the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeEvent {
    /// The node.
    pub id: String,
    /// What happened.
    pub what: NodeHappening,
    /// Its state since.
    pub state: NodeState,
    /// The instance that holds its connection, or held it.
    pub instance: String,
}

words! {
    /// What happened to the cluster.
    pub enum ClusterHappening {
        /// An instance lives.
        Joined = "joined",
        /// An instance lives no more.
        Left = "left",
        /// The mode is another.
        Mode = "mode",
    }
}

/// `cluster`: an instance came or went, or the mode is another, as the instance sees it that sends the stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEvent {
    /// What happened.
    pub what: ClusterHappening,
    /// The instance that came or went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub instance_id: Option<String>,
    /// Where it is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub url: Option<String>,
    /// The mode from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub mode: Option<Mode>,
    /// The version of the mode's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub version: Option<u64>,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    fn keeps<T: DeserializeOwned + Serialize>(texts: &[&str]) {
        for text in texts {
            let read: T = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), *text);
        }
    }

    #[test]
    fn events_are_written_as_they_are_read() {
        keeps::<ProgressEvent>(&[
            r#"{"id":"i","attempt":2}"#,
            r#"{"id":"i","attempt":2,"percent":50.0,"note":"half"}"#,
        ]);
        keeps::<JobEvent>(&[
            r#"{"id":"i","state":"CREATED","outcome":null,"attempt":0,"lane":"instance:a"}"#,
            r#"{"id":"i","state":"FINISHED","outcome":"timed_out","attempt":3,"node":"n"}"#,
        ]);
        keeps::<NodeEvent>(&[r#"{"id":"n","what":"lost","state":"offline","instance":"a"}"#]);
        keeps::<ClusterEvent>(&[
            r#"{"what":"joined","instance_id":"a","url":"http://a"}"#,
            r#"{"what":"mode","mode":"basic","version":2}"#,
        ]);
    }

    #[test]
    fn kinds_are_known_by_their_words() {
        for kind in EventKind::ALL {
            assert_eq!(EventKind::parse(kind.as_str()), Some(*kind));
        }
        assert_eq!(EventKind::parse("jobs"), None);
    }
}
