//! Sessions: how a session is opened and shown, and the frames of its client's socket,
//! `GET /v1/sessions/{id}/ws`.
//!
//! A message of the socket is one frame, a JSON object with a field `type`. Unknown fields of a client's frame are refused.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::frames::frames;
use crate::jobs::{JobRequest, Outcome, Route};
use crate::json::Json;
use crate::lenient;
use crate::limits::{
    JOB_LABELS_MAX, LABEL_CHARS_MAX, POOL_NAME_CHARS_MAX, SESSION_IDLE_MS_MAX, SESSION_IDLE_MS_MIN,
    TENANT_ID_CHARS_MAX,
};
use crate::strict::{self, words};

words! {
    /// The order of a session's jobs and results.
    pub growing enum Ordering {
        /// Jobs run one at a time, in the order of submission.
        Strict = "strict",
        /// Jobs run in parallel. Their results come in the order of submission.
        Results = "results",
        /// Jobs run in parallel. Each result comes as soon as it is recorded.
        Free = "none",
    }
}

/// A session to open. Its jobs inherit its requirements unless they name their own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionRequest {
    /// On whose behalf; jobs that name no tenant of their own are of this one. Tokens that see some tenants only see their
    /// sessions, with all jobs in them. Such a token must name one of its tenants. If it sees a single one, that is the
    /// default.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TENANT_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub tenant: Option<String>,
    /// Jobs run only in pools that serve this route.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub route: Option<Route>,
    /// Jobs run only on nodes of this pool. A token that sees some pools only must name one of them. If it sees a single
    /// one, that is the default.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<POOL_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub pool: Option<String>,
    /// Jobs run only on nodes that have all of these labels.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<JOB_LABELS_MAX, LABEL_CHARS_MAX, _>"
    )]
    #[schema(max_items = 16)]
    pub requires: Vec<String>,
    /// The order of the session's jobs and results.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false, default = "strict")]
    pub ordering: Option<Ordering>,
    /// The session is closed after this time without a submitted, finished or unfinished job, in milliseconds. Open sockets
    /// do not count.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<SESSION_IDLE_MS_MIN, SESSION_IDLE_MS_MAX, _>"
    )]
    #[schema(nullable = false, default = 3600000, minimum = 1000, maximum = 604800000)]
    pub idle_ms: Option<u64>,
}

/// The session is open and durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionOpened {
    /// Its id.
    pub id: String,
    /// The instance that is to take the session's first job. It owns the session from then on.
    pub owner: String,
    /// The order of the session's jobs and results.
    #[serde(deserialize_with = "lenient::read")]
    pub ordering: Ordering,
}

/// The number of a session's jobs in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionJobs {
    /// Jobs that wait for a node.
    pub created: u64,
    /// Jobs that were sent to a node and are not acknowledged yet.
    pub dispatched: u64,
    /// Jobs that a node has acknowledged.
    pub running: u64,
    /// Jobs that have ended and are still kept.
    pub finished: u64,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its id.
    pub id: String,
    /// The instance that holds the session's lease. `null` before the first job, and while the session has nothing to do.
    #[schema(required)]
    pub owner: Option<String>,
    /// On whose behalf.
    #[schema(required)]
    pub tenant: Option<String>,
    /// The order of the session's jobs and results.
    #[serde(deserialize_with = "lenient::read")]
    pub ordering: Ordering,
    /// Jobs run only in pools that serve this route.
    #[serde(default, deserialize_with = "lenient::read")]
    #[schema(required)]
    pub route: Option<Route>,
    /// Jobs run only on nodes of this pool.
    #[schema(required)]
    pub pool: Option<String>,
    /// Jobs run only on nodes that have all of these labels.
    pub requires: Vec<String>,
    /// The session is closed after this time without activity, in milliseconds.
    pub idle_ms: u64,
    /// The time since the last activity, in milliseconds.
    pub idle_for_ms: u64,
    /// When the session was opened.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When the session was closed. `null` while it is open.
    #[schema(required, format = DateTime)]
    pub closed_at: Option<String>,
    /// The session's jobs, counted.
    pub jobs: SessionJobs,
    /// The sequence number of the last job. 0 before the first.
    pub last_seq: u64,
    /// The node that ran the last job that had one; `null` as well where none of the last 256 finished jobs had.
    #[schema(required)]
    pub last_node: Option<String>,
}

/// A session as a list shows it: without its jobs and its owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ListedSession {
    /// Its id.
    pub id: String,
    /// On whose behalf.
    #[schema(required)]
    pub tenant: Option<String>,
    /// The order of the session's jobs and results.
    #[serde(deserialize_with = "lenient::read")]
    pub ordering: Ordering,
    /// Jobs run only in pools that serve this route.
    #[serde(default, deserialize_with = "lenient::read")]
    #[schema(required)]
    pub route: Option<Route>,
    /// Jobs run only on nodes of this pool.
    #[schema(required)]
    pub pool: Option<String>,
    /// Jobs run only on nodes that have all of these labels.
    pub requires: Vec<String>,
    /// The session is closed after this time without activity, in milliseconds.
    pub idle_ms: u64,
    /// The time since the last activity, in milliseconds.
    pub idle_for_ms: u64,
    /// When the session was opened.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When the session was closed. `null` while it is open.
    #[schema(required, format = DateTime)]
    pub closed_at: Option<String>,
}

frames! {
    /// A frame that a session's client sends.
    pub enum ClientFrame as ClientKind {
        /// A job, with a `ref`. The same `ref` means the same job.
        Job(Box<JobRequest>) = "job",
    }
}

frames! {
    /// A frame that a session's client receives.
    pub enum SessionFrame as SessionKind {
        /// A job is accepted and durable.
        Accepted(JobTaken) = "accepted",
        /// The progress of a job. Some progress may be left out.
        Progress(JobProgress) = "progress",
        /// A job has ended.
        Result(JobResult) = "result",
        /// A job or a frame is refused.
        Problem(JobProblem) = "problem",
    }
}

/// An accepted job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobTaken {
    /// The client's name for the job.
    #[serde(rename = "ref")]
    pub client_ref: String,
    /// Its id.
    pub id: String,
    /// The job's sequence number in the session.
    pub seq: u64,
}

/// The progress of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobProgress {
    /// Its id.
    pub id: String,
    /// The attempt's number.
    pub attempt: u32,
    /// A percentage, 0 to 100, if the node gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<f64>,
    /// A note, if the node gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobResult {
    /// Its id.
    pub id: String,
    /// The job's sequence number in the session.
    pub seq: u64,
    /// The client's name for the job, if it gave one.
    #[serde(rename = "ref")]
    pub client_ref: Option<String>,
    /// How the job ended.
    #[serde(deserialize_with = "lenient::read")]
    pub outcome: Outcome,
    /// The output of the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Json>,
    /// Why the job did not succeed, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobProblem {
    /// The `ref` of the job that is refused. Absent where the frame could not be read.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub client_ref: Option<String>,
    /// The stable code of the refusal. Newer daemons may add codes: see [`crate::Code::parse`].
    pub code: String,
    /// The reason, in words.
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
        let last = r#"{"payload":{ "a": 1.50 },"ref":"c1","priority":0,"type":"job"}"#;
        let ClientFrame::Job(job) = serde_json::from_str(last).unwrap();
        assert_eq!(serde_json::to_string(&ClientFrame::Job(job)).unwrap(), text);
        for bad in [
            r#"{"ref":"c1","payload":1}"#,
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
