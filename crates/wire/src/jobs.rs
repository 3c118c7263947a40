//! Jobs: how a job is submitted, shown, cancelled and retried.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::json::Json;
use crate::lenient;
use crate::limits::{
    BACKOFF_FACTOR_MAX, BACKOFF_MS_MAX, BATCH_JOBS_MAX, CLIENT_REF_CHARS_MAX, DELAY_MS_MAX, JOB_ID_CHARS_MAX,
    JOB_KIND_CHARS_MAX, JOB_LABELS_MAX, JOB_TIMEOUT_MS_MAX, JOB_TIMEOUT_MS_MIN, LABEL_CHARS_MAX,
    LANGUAGE_CHARS_MAX, MAX_ATTEMPTS_MAX, PAYLOAD_BYTES_MAX, POOL_NAME_CHARS_MAX, PRIORITY_MAX, PRIORITY_MIN,
    SESSION_ID_CHARS_MAX, TENANT_ID_CHARS_MAX, TIME_CHARS_MAX,
};
use crate::problem::Code;
use crate::strict::{self, words};

words! {
    /// The state of a job.
    pub growing enum JobState {
        /// Accepted; no attempt is under way.
        Created = "CREATED",
        /// The newest attempt was sent to a node, which has not acknowledged it yet.
        Dispatched = "DISPATCHED",
        /// The node has acknowledged the newest attempt.
        Running = "RUNNING",
        /// The job has its one result. This state is final.
        Finished = "FINISHED",
    }
}

words! {
    /// How a job ended.
    pub growing enum Outcome {
        /// A node completed it and gave its output.
        Succeeded = "succeeded",
        /// The job is not tried again: a node reported a lasting error, or all its attempts are used up.
        Failed = "failed",
        /// A caller cancelled it.
        Cancelled = "cancelled",
        /// Its last attempt ran longer than `timeout_ms`.
        TimedOut = "timed_out",
    }
}

/// A pair of languages: the one that a job comes in, and the one that its result is in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The source language.
    #[serde(deserialize_with = "strict::text::<LANGUAGE_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 35)]
    pub source: String,
    /// The target language.
    #[serde(deserialize_with = "strict::text::<LANGUAGE_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 35)]
    pub target: String,
}

impl lenient::Growing for Route {}

/// The delay before the next attempt. The daemon's defaults replace what is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// The delay after the first failure, in milliseconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<0, BACKOFF_MS_MAX, _>"
    )]
    #[schema(nullable = false, default = 1000, maximum = 86400000)]
    pub initial_ms: Option<u64>,
    /// The factor by which each delay is longer than the one before: 2 doubles it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_number::<1, BACKOFF_FACTOR_MAX, _>"
    )]
    #[schema(nullable = false, default = 2, minimum = 1, maximum = 100)]
    pub factor: Option<f64>,
    /// The longest delay, in milliseconds; 60,000 by default, or `initial_ms` where that is longer.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<0, BACKOFF_MS_MAX, _>"
    )]
    #[schema(nullable = false, maximum = 86400000)]
    pub max_ms: Option<u64>,
}

/// A job to submit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// The input of the job: any JSON, at most 1 MiB of text. The node gets it as it is written.
    #[serde(deserialize_with = "strict::json::<PAYLOAD_BYTES_MAX, _>")]
    #[schema(value_type = serde_json::Value)]
    pub payload: Json,
    /// What the job does, such as `send_email`: 1 to 64 visible ASCII characters without spaces. Answers show it, lists
    /// filter by it, metrics count by it, and the node gets it. It does not affect how the job is handled.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<JOB_KIND_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub kind: Option<String>,
    /// Strings under keys of the client's choice: 16 at most, keys of 1 to 64 bytes, values of at most 256
    /// bytes. Answers show them and the node gets them. They do not affect how the job is handled.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "strings")]
    pub metadata: BTreeMap<String, String>,
    /// The session that the job belongs to.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<SESSION_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub session: Option<String>,
    /// The client's name for the job, shown with its result. Unless the request has an `Idempotency-Key`, it is also the job's
    /// idempotency key within its session. Allowed only with `session`, or on the session's socket.
    #[serde(
        rename = "ref",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<CLIENT_REF_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub client_ref: Option<String>,
    /// The tenant that the job is for; without it, the tenant of its session. Tenants take turns with their waiting jobs.
    /// A token that sees some tenants only must name one of them for a job without a session. If it sees a single one,
    /// that is the default.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TENANT_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub tenant: Option<String>,
    /// The job runs only on nodes of this pool. A token that sees some pools only must name one of them for a job without a
    /// session. If it sees a single one, that is the default.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<POOL_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub pool: Option<String>,
    /// The job runs only in pools that serve this route.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub route: Option<Route>,
    /// The job runs only on nodes that have all of these labels and those of its session, together 16 at most.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<JOB_LABELS_MAX, LABEL_CHARS_MAX, _>"
    )]
    #[schema(max_items = 16)]
    pub requires: Vec<String>,
    /// Waiting jobs of a higher priority go first. Not allowed in a strict session.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_signed::<PRIORITY_MIN, PRIORITY_MAX, _>"
    )]
    #[schema(nullable = false, default = 0, minimum = -10, maximum = 10)]
    pub priority: Option<i64>,
    /// The job does not run before this delay is over, in milliseconds. Not allowed with `run_at`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<0, DELAY_MS_MAX, _>"
    )]
    #[schema(nullable = false, maximum = 2592000000u64)]
    pub delay_ms: Option<u64>,
    /// The job does not run before this time, which may be as late as 2255. Not allowed with `delay_ms`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TIME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, format = DateTime)]
    pub run_at: Option<String>,
    /// How long one attempt may run, in milliseconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<JOB_TIMEOUT_MS_MIN, JOB_TIMEOUT_MS_MAX, _>"
    )]
    #[schema(nullable = false, default = 600000, minimum = 1, maximum = 86400000)]
    pub timeout_ms: Option<u64>,
    /// The most attempts that count, which are those that a node may have run. After the last one the job is
    /// finished.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer32::<1, MAX_ATTEMPTS_MAX, _>"
    )]
    #[schema(nullable = false, default = 3, minimum = 1, maximum = 100)]
    pub max_attempts: Option<u32>,
    /// The delay between two attempts.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub backoff: Option<Backoff>,
}

impl JobRequest {
    /// Whether its `ref` is its idempotency key, where the request has no other.
    #[must_use]
    pub const fn is_named(&self) -> bool {
        self.session.is_some() && self.client_ref.is_some()
    }

    /// A job with this payload that asks for nothing else.
    #[must_use]
    pub const fn new(payload: Json) -> Self {
        Self {
            payload,
            kind: None,
            metadata: BTreeMap::new(),
            session: None,
            client_ref: None,
            tenant: None,
            pool: None,
            route: None,
            requires: Vec::new(),
            priority: None,
            delay_ms: None,
            run_at: None,
            timeout_ms: None,
            max_attempts: None,
            backoff: None,
        }
    }
}

/// Strings by their keys, each key once. The daemon judges how many they are and how long.
fn strings<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Strings;

    impl<'de> Visitor<'de> for Strings {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object of strings")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut strings = BTreeMap::new();
            while let Some((key, value)) = map.next_entry::<String, String>()? {
                if strings.contains_key(&key) {
                    return Err(A::Error::custom(format_args!("the key {key:?} is there twice")));
                }
                strings.insert(key, value);
            }
            Ok(strings)
        }
    }

    from.deserialize_map(Strings)
}

/// The job is accepted and durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobAccepted {
    /// The job's id. Repetitions under one `Idempotency-Key` get the same id.
    pub id: String,
    /// Always CREATED, also in the answer to a repetition whose job has ended.
    #[serde(deserialize_with = "lenient::read")]
    pub state: JobState,
    /// The lane that the job belongs to: its session's, or else one of the instance that accepted it.
    pub lane: String,
    /// The job's sequence number in its session, counted from 1. Absent outside sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// When the job was accepted, by the database's clock.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The job that this one retries. Only in the answer to a retry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
}

/// Many jobs in one request. Each is accepted or refused on its own, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobsRequest {
    /// The jobs.
    #[serde(deserialize_with = "strict::own_objects::<BATCH_JOBS_MAX, _, _>")]
    #[schema(value_type = Vec<JobRequest>, min_items = 1, max_items = 1000)]
    pub jobs: Vec<BatchJob>,
}

/// One job of a batch, or the text of one that is invalid. An invalid job does not affect the others.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchJob(pub Result<JobRequest, Json>);

impl<'de> Deserialize<'de> for BatchJob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Json::deserialize(from)?;
        let job = strict::object(&mut serde_json::Deserializer::from_str(text.as_str()));
        Ok(Self(job.map_err(|_| text)))
    }
}

impl Serialize for BatchJob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(job) => job.serialize(to),
            Err(text) => text.serialize(to),
        }
    }
}

/// The answers to a batch of jobs, in the order of the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobsAnswer {
    /// One answer for each job.
    pub results: Vec<BatchResult>,
}

/// The answer to one job among many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BatchResult {
    /// The job is accepted and durable.
    Accepted {
        /// Its id.
        id: String,
        /// Its sequence number in its session. Absent outside sessions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<u64>,
    },
    /// The job is refused, and nothing of it is kept.
    Refused {
        /// The stable code of the refusal. Newer daemons may have further codes.
        #[schema(value_type = Code)]
        code: String,
        /// The reason, in words.
        detail: String,
        /// `not_owner`: the instance that owns the job's session, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner: Option<String>,
        /// `not_owner`: the URL of that instance, if it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        owner_url: Option<String>,
    },
}

impl BatchResult {
    /// The code of a refusal, if this version knows it.
    #[must_use]
    pub fn known_code(&self) -> Option<Code> {
        match self {
            Self::Accepted { .. } => None,
            Self::Refused { code, .. } => Code::parse(code),
        }
    }
}

/// The newest progress that the node reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// A percentage, 0 to 100, if the node gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 100)]
    pub percent: Option<f64>,
    /// A note, if the node gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
}

/// An attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastAttempt {
    /// The attempt's number.
    pub attempt: u32,
    /// The node that the attempt was sent to.
    pub node: String,
    /// How the attempt ended: `succeeded`, `failed`, `cancelled`, or the reason for which it was taken from its node:
    /// `not_acknowledged`, `rejected`, `undeliverable`, `node_lost_unsent`, `node_lost`, `unlisted`, `timed_out`. Newer
    /// daemons may add reasons.
    pub state: String,
    /// The reason, in words. Empty for a success.
    pub reason: String,
    /// When it ended.
    #[schema(format = DateTime)]
    pub at: String,
}

/// Why a job waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WaitingFor {
    /// The reason: `held`, `not_due`, `session_order`, `no_owner`, `owner_elsewhere`, `pool_paused`, `no_node`, `labels`,
    /// `no_free_slot`, `draining`, `not_ready` or `queued`. Newer daemons may add reasons.
    pub reason: String,
    /// The reason in words, with names and numbers.
    pub detail: String,
    /// When the wait for this reason ends by itself, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub until: Option<String>,
}

/// A job. Lists leave out `payload`, `result` and `attempts`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Its state.
    #[serde(deserialize_with = "lenient::read")]
    pub state: JobState,
    /// How the job ended. `null` until it is FINISHED.
    #[serde(default, deserialize_with = "lenient::read")]
    #[schema(required)]
    pub outcome: Option<Outcome>,
    /// The lane that the job belongs to.
    pub lane: String,
    /// The session that the job belongs to.
    #[schema(required)]
    pub session: Option<String>,
    /// The job's sequence number in its session, counted from 1.
    #[schema(required)]
    pub seq: Option<u64>,
    /// The client's name for the job, if it gave one.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub client_ref: Option<String>,
    /// The tenant that the job is for.
    #[schema(required)]
    pub tenant: Option<String>,
    /// The job runs only on nodes of this pool.
    #[schema(required)]
    pub pool: Option<String>,
    /// The job runs only in pools that serve this route.
    #[serde(default, deserialize_with = "lenient::read")]
    #[schema(required)]
    pub route: Option<Route>,
    /// The job runs only on nodes that have all of these labels.
    pub requires: Vec<String>,
    /// The job's priority: waiting jobs of a higher priority go first.
    pub priority: i64,
    /// How long one attempt may run, in milliseconds.
    pub timeout_ms: u64,
    /// The number of the newest attempt. 0 before the first.
    pub attempt: u32,
    /// The most attempts that count, which are those that a node may have run. After the last one the job is
    /// finished.
    pub max_attempts: u32,
    /// The node of the newest attempt.
    #[schema(required)]
    pub node: Option<String>,
    /// What the job does, as its client called it. `null` without a kind.
    #[serde(default)]
    #[schema(required)]
    pub kind: Option<String>,
    /// The strings that the client gave the job.
    #[serde(default)]
    #[schema(required)]
    pub metadata: BTreeMap<String, String>,
    /// The span that submitted the job, or started the plan or retried the task of its stage, as the header `traceparent` of W3C
    /// Trace Context. Absent for a job without a trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The input of the job, as it was submitted.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<PAYLOAD_BYTES_MAX, _>"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Json>,
    /// The output of the job, as its node wrote it. `null` unless the job succeeded.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<PAYLOAD_BYTES_MAX, _>"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Json>,
    /// Why the job, or its last attempt, did not succeed. `null` when nothing went wrong.
    #[schema(required)]
    pub error: Option<String>,
    /// Whether the job failed or timed out, no other job has retried it, and nobody has dismissed it.
    pub dead: bool,
    /// Why the job waits, as far as the instance that answers knows now. Only in the answer to `GET /v1/jobs/{id}`, and absent
    /// for a job that does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub waiting_for: Option<WaitingFor>,
    /// The progress of the newest attempt, as far as the instance that answers knows. Progress may be lost.
    #[schema(required)]
    pub progress: Option<Progress>,
    /// When the job was accepted.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The job is not dispatched before this time: the one that was asked for, or, after an attempt that did not end the job, the
    /// end of the delay before the next one. `null` when it is due, and once it was dispatched.
    #[schema(required, format = DateTime)]
    pub run_at: Option<String>,
    /// When the newest attempt was dispatched.
    #[schema(required, format = DateTime)]
    pub dispatched_at: Option<String>,
    /// When the newest attempt was recorded as acknowledged. `null` before that, and if its result was
    /// recorded first.
    #[schema(required, format = DateTime)]
    pub running_at: Option<String>,
    /// When it ended.
    #[schema(required, format = DateTime)]
    pub finished_at: Option<String>,
    /// When the job's slot became free.
    #[schema(required, format = DateTime)]
    pub released_at: Option<String>,
    /// The job that this one retries.
    #[schema(required)]
    pub retry_of: Option<String>,
    /// The newest job that retries this one.
    #[schema(required)]
    pub retried_as: Option<String>,
    /// When somebody dismissed the job, so that it is not dead any more.
    #[serde(default)]
    #[schema(required, format = DateTime)]
    pub dismissed_at: Option<String>,
    /// The attempts that have ended, oldest first; the newest 100 are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub attempts: Option<Vec<PastAttempt>>,
}

/// The finished jobs to retry: either ids, or a filter of one condition at least, which selects only jobs that were not retried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// The jobs with these ids, 1 to 1,000.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::some_texts::<BATCH_JOBS_MAX, JOB_ID_CHARS_MAX, _>"
    )]
    #[schema(min_items = 1, max_items = 1000)]
    pub ids: Vec<String>,
    /// Only jobs in this state: FINISHED, as no others are retried. It counts in either case.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_in_either_case"
    )]
    #[schema(nullable = false)]
    pub state: Option<JobState>,
    /// Only jobs with this outcome.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false)]
    pub outcome: Option<Outcome>,
    /// Only jobs of this session.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<SESSION_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub session: Option<String>,
    /// Only jobs of this tenant.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TENANT_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub tenant: Option<String>,
    /// Only jobs that asked for this pool.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<POOL_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub pool: Option<String>,
    /// Only jobs of this kind.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<JOB_KIND_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub kind: Option<String>,
    /// `true`: only dead jobs, which failed or timed out and were neither retried nor dismissed. `false`: only all others.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false)]
    pub dead: Option<bool>,
}

/// The jobs that were made by retrying others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetryAnswer {
    /// The number of new jobs.
    pub retried: u64,
    /// The ids of the new jobs.
    pub ids: Vec<String>,
    /// The jobs that were not retried, each with the reason. Absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<NotRetried>,
}

/// A job that was not retried, among many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotRetried {
    /// The job's id.
    pub retry_of: String,
    /// The stable code of the refusal. Newer daemons may have further codes.
    #[schema(value_type = Code)]
    pub code: String,
    /// The reason, in words.
    pub detail: String,
    /// `not_owner`: the instance that owns the job's session, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// `not_owner`: the URL of that instance, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_url: Option<String>,
}

#[cfg(test)]
mod tests;
