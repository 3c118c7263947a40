//! Sessions: making one, what is shown of it, and the frames of its client's socket,
//! `GET /v1/sessions/{id}/ws`.
//!
//! A message of the socket is one frame, a JSON text whose first field is `type`. What a client sends is read strictly.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::frames::frames;
use crate::jobs::{JobRequest, Outcome, Route};
use crate::json::Json;
use crate::limits::{
    JOB_LABELS_MAX, LABEL_CHARS_MAX, POOL_NAME_CHARS_MAX, SESSION_IDLE_MS_MAX, SESSION_IDLE_MS_MIN,
};
use crate::strict::{self, words};

words! {
    /// In which order the jobs of a session run, and their results come.
    pub enum Ordering {
        /// One at a time, in the order of their submission.
        Strict = "strict",
        /// In parallel; their results come in the order of submission.
        Results = "results",
        /// In parallel; each result comes when it is there.
        Free = "none",
    }
}

/// A session to be made. What its jobs do not ask for themselves they have of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// Only pools that serve this route.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub route: Option<Route>,
    /// Only nodes of this pool.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<POOL_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub pool: Option<String>,
    /// Only nodes that have all of these labels.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<JOB_LABELS_MAX, LABEL_CHARS_MAX, _>"
    )]
    #[schema(max_items = 16)]
    pub requires: Vec<String>,
    /// The order of its jobs.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present_ordering")]
    #[schema(nullable = false, default = "strict")]
    pub ordering: Option<Ordering>,
    /// It is closed when no job was submitted and none has ended for so long, in milliseconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<SESSION_IDLE_MS_MIN, SESSION_IDLE_MS_MAX, _>"
    )]
    #[schema(nullable = false, default = 3600000, minimum = 1000, maximum = 604800000)]
    pub idle_ms: Option<u64>,
}

fn present_ordering<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Ordering>, D::Error> {
    Ordering::deserialize(from).map(Some)
}

/// A session was made: it is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionOpened {
    /// Its id.
    pub id: String,
    /// The instance that its jobs are brought to.
    pub owner: String,
    /// The order of its jobs.
    pub ordering: Ordering,
}

/// How many jobs a session has, by their states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionJobs {
    /// Waiting.
    pub created: u64,
    /// On their way to a node.
    pub dispatched: u64,
    /// With a node that has acknowledged them.
    pub running: u64,
    /// Ended, and not forgotten yet.
    pub finished: u64,
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its id.
    pub id: String,
    /// The instance that has its lease; `null` while it has nothing to do.
    #[schema(required)]
    pub owner: Option<String>,
    /// The order of its jobs.
    pub ordering: Ordering,
    /// Only pools that serve this route.
    #[schema(required)]
    pub route: Option<Route>,
    /// Only nodes of this pool.
    #[schema(required)]
    pub pool: Option<String>,
    /// Only nodes that have all of these labels.
    pub requires: Vec<String>,
    /// It is closed when nothing has happened for so long, in milliseconds.
    pub idle_ms: u64,
    /// How long nothing has happened, in milliseconds.
    pub idle_for_ms: u64,
    /// When it was made.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Since when it takes no more jobs; `null` while it does.
    #[schema(required, format = DateTime)]
    pub closed_at: Option<String>,
    /// Its jobs.
    pub jobs: SessionJobs,
    /// The place of its last job; 0 before the first.
    pub last_seq: u64,
    /// The node that had its last job.
    #[schema(required)]
    pub last_node: Option<String>,
}

frames! {
    /// What a session's client sends.
    pub enum ClientFrame as ClientKind {
        /// A job, with a `ref`. Sent again under the same `ref` it is the same job.
        Job(Box<JobRequest>) = "job",
    }
}

frames! {
    /// What a session's client is sent.
    pub enum SessionFrame as SessionKind {
        /// A job was accepted: it is durable.
        Accepted(JobTaken) = "accepted",
        /// How far a job has come. May be left out.
        Progress(JobProgress) = "progress",
        /// A job has ended.
        Result(JobResult) = "result",
        /// A job was refused, or a frame was.
        Problem(JobProblem) = "problem",
    }
}

/// A job was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTaken {
    /// What the client calls it.
    #[serde(rename = "ref")]
    pub client_ref: String,
    /// Its id.
    pub id: String,
    /// Its place in the session.
    pub seq: u64,
}

/// How far a job has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobProgress {
    /// Its id.
    pub id: String,
    /// Which attempt.
    pub attempt: u32,
    /// 0 to 100, if its node said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// In words, if its node said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// Its id.
    pub id: String,
    /// Its place in the session.
    pub seq: u64,
    /// What the client calls it, if it said so.
    #[serde(rename = "ref")]
    pub client_ref: Option<String>,
    /// How it ended.
    pub outcome: Outcome,
    /// What its node gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// Why it did not succeed, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What was wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProblem {
    /// The job that was refused, by its client's word; absent where the frame could not be read.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub client_ref: Option<String>,
    /// Why, as a stable code. A text, since newer daemons may know more: see [`crate::Code::parse`].
    pub code: String,
    /// Why, in words.
    pub detail: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_sends_jobs_and_nothing_else() {
        let text = r#"{"type":"job","payload":{ "a": 1.50 },"ref":"c1","priority":0}"#;
        let ClientFrame::Job(job) = serde_json::from_str(text).unwrap();
        assert_eq!((job.client_ref.as_deref(), job.payload.as_str()), (Some("c1"), r#"{ "a": 1.50 }"#));
        assert_eq!(serde_json::to_string(&ClientFrame::Job(job)).unwrap(), text);
        for bad in [
            r#"{"ref":"c1","type":"job","payload":1}"#,
            r#"{"type":"job","ref":"c1"}"#,
            r#"{"type":"job","ref":"","payload":1}"#,
            r#"{"type":"job","ref":null,"payload":1}"#,
            r#"{"type":"job","ref":"c1","payload":1,"unknown":1}"#,
            r#"{"type":"result"}"#,
            "[]",
            "{}",
            "1",
        ] {
            assert!(serde_json::from_str::<ClientFrame>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_client_reads_what_it_is_sent() {
        for text in [
            r#"{"type":"accepted","ref":"c1","id":"i","seq":1}"#,
            r#"{"type":"progress","id":"i","attempt":1,"percent":50.0}"#,
            r#"{"type":"result","id":"i","seq":1,"ref":"c1","outcome":"succeeded","result":{"b" :2}}"#,
            r#"{"type":"result","id":"i","seq":1,"ref":null,"outcome":"failed","error":"no"}"#,
            r#"{"type":"problem","code":"invalid","detail":"no"}"#,
        ] {
            let frame: SessionFrame = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&frame).unwrap(), text);
        }
    }

    #[test]
    fn a_request_says_what_it_must_and_no_more() {
        let text = r#"{"route":{"source":"zh","target":"en"},"pool":"p","requires":["gpu"],"ordering":"none","idle_ms":1000}"#;
        let asked: SessionRequest = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&asked).unwrap(), text);
        assert_eq!(serde_json::from_str::<SessionRequest>("{}").unwrap(), SessionRequest::default());
        for bad in [
            r#"{"ordering":"free"}"#,
            r#"{"ordering":null}"#,
            r#"{"idle_ms":999}"#,
            r#"{"idle_ms":604800001}"#,
            r#"{"id":"s"}"#,
        ] {
            assert!(serde_json::from_str::<SessionRequest>(bad).is_err(), "{bad}");
        }
    }
}
