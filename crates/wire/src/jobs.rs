//! Jobs: submitting them, what is shown of one, calling one off, and trying one again.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use crate::json::Json;
use crate::limits::{
    BACKOFF_FACTOR_MAX, BACKOFF_MS_MAX, BATCH_JOBS_MAX, CLIENT_REF_CHARS_MAX, DELAY_MS_MAX, JOB_ID_CHARS_MAX,
    JOB_LABELS_MAX, JOB_TIMEOUT_MS_MAX, JOB_TIMEOUT_MS_MIN, LABEL_CHARS_MAX, LANGUAGE_CHARS_MAX,
    MAX_ATTEMPTS_MAX, PAYLOAD_BYTES_MAX, POOL_NAME_CHARS_MAX, PRIORITY_MAX, PRIORITY_MIN,
    SESSION_ID_CHARS_MAX, TENANT_ID_CHARS_MAX, TIME_CHARS_MAX,
};
use crate::problem::Code;
use crate::strict::{self, words};

words! {
    /// The state of a job.
    pub enum JobState {
        /// Accepted; no attempt is under way.
        Created = "CREATED",
        /// The newest attempt was given to a node and is not acknowledged yet.
        Dispatched = "DISPATCHED",
        /// The node has acknowledged the newest attempt.
        Running = "RUNNING",
        /// It has its one result. Final.
        Finished = "FINISHED",
    }
}

words! {
    /// How a job ended.
    pub enum Outcome {
        /// A node did it, and gave its output.
        Succeeded = "succeeded",
        /// It will not be tried again: a node said so, or its attempts are used up.
        Failed = "failed",
        /// Somebody called it off.
        Cancelled = "cancelled",
        /// Its last attempt ran for too long.
        TimedOut = "timed_out",
    }
}

/// From which language to which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The language that comes in.
    #[serde(deserialize_with = "strict::text::<LANGUAGE_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 35)]
    pub source: String,
    /// The language that goes out.
    #[serde(deserialize_with = "strict::text::<LANGUAGE_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 35)]
    pub target: String,
}

/// How long a failed attempt is followed by none. What is left out is as the daemon has it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Backoff {
    /// After the first failure, in milliseconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<0, BACKOFF_MS_MAX, _>"
    )]
    #[schema(nullable = false, maximum = 86400000)]
    pub initial_ms: Option<u64>,
    /// How much longer each time: 2 doubles.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_number::<1, BACKOFF_FACTOR_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 1, maximum = 100)]
    pub factor: Option<f64>,
    /// Never longer than this, in milliseconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<0, BACKOFF_MS_MAX, _>"
    )]
    #[schema(nullable = false, maximum = 86400000)]
    pub max_ms: Option<u64>,
}

/// A job to be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// What the node is given: any JSON, at most 1 MiB of text. It is passed on as it is written.
    #[serde(deserialize_with = "strict::json::<PAYLOAD_BYTES_MAX, _>")]
    #[schema(value_type = serde_json::Value)]
    pub payload: Json,
    /// The conversation it belongs to.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<SESSION_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub session: Option<String>,
    /// What the session's client calls it: shown with its result, and its idempotency key within the session. Only
    /// together with `session`, or on the session's socket.
    #[serde(
        rename = "ref",
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<CLIENT_REF_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub client_ref: Option<String>,
    /// On whose behalf. Jobs that wait are served fairly between tenants.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TENANT_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub tenant: Option<String>,
    /// Only nodes of this pool.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<POOL_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub pool: Option<String>,
    /// Only pools that serve this route.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub route: Option<Route>,
    /// Only nodes that have all of these labels.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<JOB_LABELS_MAX, LABEL_CHARS_MAX, _>"
    )]
    #[schema(max_items = 16)]
    pub requires: Vec<String>,
    /// Who goes first among the jobs that wait; higher is sooner. Not within a strict session.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_signed::<PRIORITY_MIN, PRIORITY_MAX, _>"
    )]
    #[schema(nullable = false, default = 0, minimum = -10, maximum = 10)]
    pub priority: Option<i64>,
    /// Not before so many milliseconds from now. Not together with `run_at`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<0, DELAY_MS_MAX, _>"
    )]
    #[schema(nullable = false, maximum = 2592000000u64)]
    pub delay_ms: Option<u64>,
    /// Not before this moment. Not together with `delay_ms`.
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
    /// How many attempts may fail before it is given up.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer32::<1, MAX_ATTEMPTS_MAX, _>"
    )]
    #[schema(nullable = false, default = 3, minimum = 1, maximum = 100)]
    pub max_attempts: Option<u32>,
    /// The pause between two attempts.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub backoff: Option<Backoff>,
}

impl JobRequest {
    /// A job with this payload that asks for nothing else.
    #[must_use]
    pub const fn new(payload: Json) -> Self {
        Self {
            payload,
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

/// A job was accepted: it is durable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobAccepted {
    /// Its id. The same on every repetition under one `Idempotency-Key`.
    pub id: String,
    /// CREATED.
    pub state: JobState,
    /// Whose ordered work it belongs to: its session's, or else the accepting instance's.
    pub lane: String,
    /// Its place in its session, counted from 1; only for one of a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// When it was accepted, by the database's clock.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// The job that it repeats; only for one that was tried again by hand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
}

/// Many jobs in one request; each is accepted or refused on its own, in this order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobsRequest {
    /// The jobs.
    #[serde(deserialize_with = "strict::own_objects::<BATCH_JOBS_MAX, _, _>")]
    #[schema(value_type = Vec<JobRequest>, min_items = 1, max_items = 1000)]
    pub jobs: Vec<BatchJob>,
}

/// One job of many, or what is wrong with it: that sinks no other.
#[derive(Clone, Debug, PartialEq)]
pub struct BatchJob(pub Result<JobRequest, String>);

impl<'de> Deserialize<'de> for BatchJob {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Json::deserialize(from)?;
        let job = strict::object(&mut serde_json::Deserializer::from_str(text.as_str()));
        Ok(Self(job.map_err(|error| error.to_string())))
    }
}

/// One that is wrong was never sent, and is not written.
impl Serialize for BatchJob {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Ok(job) => job.serialize(to),
            Err(wrong) => Err(serde::ser::Error::custom(wrong)),
        }
    }
}

/// The answers to many jobs, in the order asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobsAnswer {
    /// One for each job.
    pub results: Vec<BatchResult>,
}

/// The answer to one job among many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BatchResult {
    /// It is durable.
    Accepted {
        /// Its id.
        id: String,
        /// Its place in its session; only for one of a session.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        seq: Option<u64>,
    },
    /// It was refused; nothing of it was kept.
    Refused {
        /// Why, as a stable code.
        code: Code,
        /// Why, in words.
        detail: String,
    },
}

/// How far an attempt has come, as its node said last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// 0 to 100, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 0, maximum = 100)]
    pub percent: Option<f64>,
    /// In words, if it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub note: Option<String>,
}

/// One attempt that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PastAttempt {
    /// Its number.
    pub attempt: u32,
    /// The node that had it.
    pub node: String,
    /// How it ended: `succeeded`, `failed`, `cancelled`, or why it was taken from its node: `not_acknowledged`,
    /// `rejected`, `undeliverable`, `node_lost_unsent`, `node_lost`, `unlisted`, `timed_out`. A text, since newer
    /// daemons may know more.
    pub state: String,
    /// Why, in words; empty for a success.
    pub reason: String,
    /// When it ended.
    #[schema(format = DateTime)]
    pub at: String,
}

/// One job. In lists `payload`, `result` and `attempts` are left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// Its state.
    pub state: JobState,
    /// How it ended; `null` before it has.
    #[schema(required)]
    pub outcome: Option<Outcome>,
    /// Whose ordered work it belongs to.
    pub lane: String,
    /// The conversation it belongs to.
    #[schema(required)]
    pub session: Option<String>,
    /// Its place in its session, counted from 1.
    #[schema(required)]
    pub seq: Option<u64>,
    /// What its session's client calls it, if it said so.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub client_ref: Option<String>,
    /// On whose behalf.
    #[schema(required)]
    pub tenant: Option<String>,
    /// Only nodes of this pool.
    #[schema(required)]
    pub pool: Option<String>,
    /// Only pools that serve this route.
    #[schema(required)]
    pub route: Option<Route>,
    /// Only nodes that have all of these.
    pub requires: Vec<String>,
    /// Who goes first.
    pub priority: i64,
    /// How long one attempt may run, in milliseconds.
    pub timeout_ms: u64,
    /// The number of its newest attempt; 0 before the first.
    pub attempt: u32,
    /// How many attempts may fail before it is given up.
    pub max_attempts: u32,
    /// The node that has, or had, the newest attempt.
    #[schema(required)]
    pub node: Option<String>,
    /// What it is given, as it was submitted.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<PAYLOAD_BYTES_MAX, _>"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Json>,
    /// What its node gave, as it was written; `null` unless it succeeded.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<PAYLOAD_BYTES_MAX, _>"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Json>,
    /// Why it did not succeed, or why its last attempt did not; `null` when nothing went wrong.
    #[schema(required)]
    pub error: Option<String>,
    /// All its attempts are used up.
    pub dead: bool,
    /// How far its newest attempt has come, as far as the instance asked knows. It may be lost.
    #[schema(required)]
    pub progress: Option<Progress>,
    /// When it was accepted.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// Not to be dispatched before; `null` when it is due, and once it was dispatched.
    #[schema(required, format = DateTime)]
    pub run_at: Option<String>,
    /// When its newest attempt was given to a node.
    #[schema(required, format = DateTime)]
    pub dispatched_at: Option<String>,
    /// When that was known to be acknowledged; `null` too when the result came before anybody wrote that down.
    #[schema(required, format = DateTime)]
    pub running_at: Option<String>,
    /// When it ended.
    #[schema(required, format = DateTime)]
    pub finished_at: Option<String>,
    /// When its slot was free again.
    #[schema(required, format = DateTime)]
    pub released_at: Option<String>,
    /// The job that it repeats by hand.
    #[schema(required)]
    pub retry_of: Option<String>,
    /// The attempts that are over, oldest first. Of very many the oldest are forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub attempts: Option<Vec<PastAttempt>>,
}

/// Which finished jobs to try again: by their ids, or all that fit a filter. One of the two.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RetryRequest {
    /// These; 1 to 1,000.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<BATCH_JOBS_MAX, JOB_ID_CHARS_MAX, _>"
    )]
    #[schema(max_items = 1000)]
    pub ids: Vec<String>,
    /// That ended so.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false)]
    pub outcome: Option<Outcome>,
    /// Of this session.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<SESSION_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub session: Option<String>,
    /// Of this tenant.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TENANT_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub tenant: Option<String>,
    /// Of this pool.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<POOL_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub pool: Option<String>,
    /// Whose attempts are all used up (`true`), or not (`false`).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false)]
    pub dead: Option<bool>,
}

/// What became of trying many again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RetryAnswer {
    /// How many new jobs there are.
    pub retried: u64,
    /// Their ids.
    pub ids: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal<T: for<'de> Deserialize<'de> + std::fmt::Debug>(body: &str) -> String {
        serde_json::from_str::<T>(body).expect_err(body).to_string()
    }

    #[test]
    fn a_job_is_written_as_it_is_read() {
        for text in [
            r#"{"payload":null}"#,
            r#"{"payload":{ "a": 1.50 },"session":"s","tenant":"t","pool":"p","route":{"source":"zh","target":"en"},"requires":["asr:zh"],"priority":-10,"delay_ms":5,"timeout_ms":1,"max_attempts":100,"backoff":{"initial_ms":1,"factor":1.5,"max_ms":2}}"#,
            r#"{"payload":[],"run_at":"2026-01-01T00:00:00Z"}"#,
        ] {
            let job: JobRequest = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&job).unwrap(), text);
        }
        let empty: JobRequest = serde_json::from_str(r#"{"payload":1,"requires":[],"backoff":{}}"#).unwrap();
        assert_eq!(
            empty,
            JobRequest { backoff: Some(Backoff::default()), ..JobRequest::new(Json::of(&1).unwrap()) }
        );
    }

    #[test]
    fn what_is_wrong_with_a_job_is_said() {
        let labels = vec!["\"l\""; 17].join(",");
        for (body, says) in [
            ("{}".to_owned(), "missing field `payload`"),
            (r#"{"payload":1,"payload":1}"#.to_owned(), "duplicate field"),
            (r#"{"payload":1,"prioritie":1}"#.to_owned(), "unknown field"),
            (r#"{"payload":1,"priority":11}"#.to_owned(), "from -10 to 10"),
            (r#"{"payload":1,"priority":null}"#.to_owned(), "from -10 to 10"),
            (r#"{"payload":1,"max_attempts":0}"#.to_owned(), "from 1 to 100"),
            (r#"{"payload":1,"timeout_ms":1.5}"#.to_owned(), "from 1 to 86400000"),
            (r#"{"payload":1,"backoff":{"factor":0.5}}"#.to_owned(), "a number from 1 to 100"),
            (r#"{"payload":1,"backoff":[1]}"#.to_owned(), "an object"),
            (r#"{"payload":1,"route":["zh","en"]}"#.to_owned(), "an object"),
            (r#"{"payload":1,"route":{"source":"zh"}}"#.to_owned(), "missing field `target`"),
            (r#"{"payload":1,"requires":"gpu"}"#.to_owned(), "a list of at most 16 texts"),
            (r#"{"payload":1,"requires":[""]}"#.to_owned(), "1 to 64 characters"),
            (format!(r#"{{"payload":1,"requires":[{labels}]}}"#), "a list of at most 16 texts"),
            (format!(r#"{{"payload":"{}"}}"#, "x".repeat(PAYLOAD_BYTES_MAX)), "at most 1048576 bytes"),
        ] {
            let message = refusal::<JobRequest>(&body);
            assert!(message.contains(says), "{message}");
        }
        let largest = format!(r#"{{"payload":"{}"}}"#, "x".repeat(PAYLOAD_BYTES_MAX - 2));
        assert!(serde_json::from_str::<JobRequest>(&largest).is_ok());
    }

    #[test]
    fn one_bad_job_sinks_no_other() {
        let body = r#"{"jobs":[{"payload":1},{"payload":1,"priority":99},{"payload":{"a":[]}}]}"#;
        let JobsRequest { jobs } = serde_json::from_str(body).unwrap();
        assert!(jobs[0].0.is_ok() && jobs[2].0.is_ok());
        assert!(jobs[1].0.as_ref().unwrap_err().contains("from -10 to 10"));
        assert!(refusal::<JobsRequest>(r#"{"jobs":[]}"#).contains("1 to 1000 objects"));
        for shape in ["7", "[1]", "null"] {
            let JobsRequest { jobs } = serde_json::from_str(&format!(r#"{{"jobs":[{shape}]}}"#)).unwrap();
            assert!(jobs[0].0.as_ref().unwrap_err().contains("an object"), "{shape}");
        }
    }

    #[test]
    fn the_answer_shows_a_null_result_and_lists_show_none() {
        let text = r#"{"id":"i","state":"FINISHED","outcome":"succeeded","lane":"l","session":null,"seq":null,"tenant":null,"pool":null,"route":null,"requires":[],"priority":0,"timeout_ms":1,"attempt":1,"max_attempts":3,"node":"n","payload":{"a":1},"result":null,"error":null,"dead":false,"progress":{"percent":50.0},"created_at":"t","run_at":null,"dispatched_at":null,"running_at":null,"finished_at":null,"released_at":null,"retry_of":null,"attempts":[]}"#;
        let mut job: Job = serde_json::from_str(text).unwrap();
        assert_eq!(job.result, Some(Json::null()));
        assert_eq!(serde_json::to_string(&job).unwrap(), text);
        (job.payload, job.result, job.attempts) = (None, None, None);
        let listed = serde_json::to_string(&job).unwrap();
        assert!(["\"payload", "\"result", "\"attempts"].iter().all(|field| !listed.contains(field)));
        assert_eq!(serde_json::from_str::<Job>(&listed).unwrap(), job);
    }

    #[test]
    fn batch_answers_keep_their_shape() {
        let text = r#"{"results":[{"id":"a"},{"code":"invalid","detail":"d"}]}"#;
        let answer: JobsAnswer = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&answer).unwrap(), text);
    }
}
