//! Event streams: server-sent events, each with the name of its kind and JSON data.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::cluster::Mode;
use crate::jobs::{JobState, Outcome};
use crate::lenient;
use crate::nodes::NodeState;
use crate::strict::words;

/// The media type of a stream.
pub const MEDIA_TYPE: &str = "text/event-stream";
/// The name of the events in the stream of a plan.
pub const PLAN_EVENT: &str = "plan";
/// The name of the events in a stream of digests.
pub const DIGEST_EVENT: &str = "digest";
/// The comment in a stream of all events that says that some were missed.
pub const LEFT_OUT: &str = "some events were left out";
/// How the id of a job's last event ends.
pub const END_ID: &str = "FINISHED";

words! {
    /// The kind of an event.
    pub enum EventKind {
        /// A job's state has changed.
        Job = "job",
        /// A node reported progress on a job's newest attempt.
        Progress = "progress",
        /// A node connected, disconnected, or changed its state.
        Node = "node",
        /// An instance joined or left, or the mode has changed.
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

/// `progress`: progress of a job's newest attempt, as its node reports it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ProgressEvent {
    /// The job.
    pub id: String,
    /// The attempt.
    pub attempt: u32,
    /// A percentage, 0 to 100, if the node gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 100)]
    pub percent: Option<f64>,
    /// A note, if the node gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
}

/// `job` in the stream of all events: a job's state has changed. `/v1/jobs/{id}` shows the whole job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobEvent {
    /// The job.
    pub id: String,
    /// Its state.
    #[serde(deserialize_with = "lenient::read")]
    pub state: JobState,
    /// How the job ended. `null` until then, and where the sender does not know it.
    #[serde(default, deserialize_with = "lenient::read")]
    #[schema(required)]
    pub outcome: Option<Outcome>,
    /// The number of the newest attempt. 0 before the first.
    pub attempt: u32,
    /// The job's lane, where the sender knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub lane: Option<String>,
    /// The node of the newest attempt; left out while the job waits for another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub node: Option<String>,
}

words! {
    /// What happened to a node.
    pub growing enum NodeHappening {
        /// The node has connected.
        Joined = "joined",
        /// The node's state has changed.
        Changed = "changed",
        /// The node has left.
        Left = "left",
        /// The node has connected again, and its earlier connection is over.
        Replaced = "replaced",
        /// The node was lost: no heartbeat came for too long.
        Lost = "lost",
    }
}

/// `node`: a node connected, disconnected, or changed its state, as the instance that sends the stream sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeEvent {
    /// The node.
    pub id: String,
    /// What happened.
    #[serde(deserialize_with = "lenient::read")]
    pub what: NodeHappening,
    /// The node's new state.
    #[serde(deserialize_with = "lenient::read")]
    pub state: NodeState,
    /// The instance that holds the node's connection, or held it.
    pub instance: String,
}

words! {
    /// What happened to the cluster.
    pub growing enum ClusterHappening {
        /// An instance joined.
        Joined = "joined",
        /// An instance left.
        Left = "left",
        /// The mode has changed.
        Mode = "mode",
    }
}

/// `cluster`: an instance joined or left, or the mode has changed, as the instance that sends the stream sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterEvent {
    /// What happened.
    #[serde(deserialize_with = "lenient::read")]
    pub what: ClusterHappening,
    /// The instance that joined or left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub instance_id: Option<String>,
    /// The URL at which the instance is reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub url: Option<String>,
    /// The new mode.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "lenient::read")]
    #[schema(nullable = false)]
    pub mode: Option<Mode>,
    /// The version of the mode's setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub version: Option<u64>,
}

/// `digest` in the stream of all events with `digest=true`: the numbers of the events since the digest before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DigestEvent {
    /// Those of jobs.
    pub job: u64,
    /// Those of progress.
    pub progress: u64,
    /// Those of nodes.
    pub node: u64,
    /// Those of the cluster.
    pub cluster: u64,
    /// Whether there were more, which the instance has missed.
    pub missed: bool,
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
