//! The contents of the frames. Their types are named in [`super::message`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::json::Json;
use crate::lenient;
use crate::limits::{
    ERROR_MESSAGE_CHARS_MAX, JOB_ID_CHARS_MAX, LABEL_CHARS_MAX, LANGUAGE_CHARS_MAX, MESSAGE_BYTES_MAX,
    NODE_CAPACITY_MAX, NODE_ID_CHARS_MAX, NODE_LABELS_MAX, NODE_LOAD_MAX, NODE_POOLS_MAX,
    NODE_VERSION_CHARS_MAX, PAYLOAD_BYTES_MAX, POOL_NAME_CHARS_MAX, PROGRESS_NOTE_CHARS_MAX,
    REJECT_REASON_CHARS_MAX,
};
use crate::strict;

/// Highest number of an attempt.
const ATTEMPT_MAX: u64 = u32::MAX as u64;
/// Most attempts in one list: as many as the largest node may have.
const RUNNING_MAX: usize = NODE_CAPACITY_MAX as usize;

/// One attempt of one job.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptRef {
    /// The job's id.
    #[serde(deserialize_with = "strict::text::<JOB_ID_CHARS_MAX, _>")]
    pub job: String,
    /// The attempt's number, counted from 1.
    #[serde(deserialize_with = "strict::integer32::<1, ATTEMPT_MAX, _>")]
    pub attempt: u32,
}

/// A frame of the scheduler about one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The job's id.
    pub job: String,
    /// The attempt's number.
    pub attempt: u32,
}

impl From<AttemptRef> for Notice {
    fn from(AttemptRef { job, attempt }: AttemptRef) -> Self {
        Self { job, attempt }
    }
}

impl From<Notice> for AttemptRef {
    fn from(Notice { job, attempt }: Notice) -> Self {
        Self { job, attempt }
    }
}

/// A frame without fields beside its type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// The first frame of a node, within [`crate::limits::HELLO_WITHIN_MS`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hello {
    /// The node's id. A later connection with the same id replaces this one.
    #[serde(deserialize_with = "strict::text::<NODE_ID_CHARS_MAX, _>")]
    pub node_id: String,
    /// The number of attempts that the node may have at once. An attempt keeps its slot until the node stops listing it in
    /// `running`.
    #[serde(deserialize_with = "strict::integer32::<1, NODE_CAPACITY_MAX, _>")]
    pub capacity: u32,
    /// Whether both sides may send arrays of frames.
    #[serde(default)]
    pub batch: bool,
    /// The services that the node runs. Each is a label.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<NODE_LABELS_MAX, LABEL_CHARS_MAX, _>"
    )]
    pub services: Vec<String>,
    /// The languages that the node works with.
    #[serde(default, skip_serializing_if = "Languages::is_empty", deserialize_with = "strict::object")]
    pub languages: Languages,
    /// Further labels that a job may require.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<NODE_LABELS_MAX, LABEL_CHARS_MAX, _>"
    )]
    pub labels: Vec<String>,
    /// The only pools that the node joins. Without any, it joins all whose requirements it meets.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<NODE_POOLS_MAX, POOL_NAME_CHARS_MAX, _>"
    )]
    pub pools: Vec<String>,
    /// The version of the node's software, for people.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<NODE_VERSION_CHARS_MAX, _>"
    )]
    pub version: Option<String>,
    /// Whether an operator drains the node, as the last `heartbeat_ok` said: the drain goes on. Daemons of 0.1.0 do not know
    /// this field.
    #[serde(default, skip_serializing_if = "is_false")]
    pub drained: bool,
    /// The attempts that the node has: those that run, and those whose result is not known to be durable.
    #[serde(deserialize_with = "strict::any_objects::<RUNNING_MAX, _, _>")]
    pub running: Vec<AttemptRef>,
}

/// The languages of a node. Each gives a label such as `asr:zh`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Languages {
    /// Languages that the node recognises.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<NODE_LABELS_MAX, LANGUAGE_CHARS_MAX, _>"
    )]
    pub asr: Vec<String>,
    /// Languages that the node speaks.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<NODE_LABELS_MAX, LANGUAGE_CHARS_MAX, _>"
    )]
    pub tts: Vec<String>,
    /// Languages that the node understands.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<NODE_LABELS_MAX, LANGUAGE_CHARS_MAX, _>"
    )]
    pub semantic: Vec<String>,
}

impl Languages {
    /// Whether there is no language.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.asr.is_empty() && self.tts.is_empty() && self.semantic.is_empty()
    }
}

/// How busy a node is, in units of its operators' choice. Shown only: no decision depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Load {
    /// The load of its processors.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_number::<0, NODE_LOAD_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 0, maximum = 1000000)]
    pub cpu: Option<f64>,
    /// The load of its graphics processors.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_number::<0, NODE_LOAD_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 0, maximum = 1000000)]
    pub gpu: Option<f64>,
    /// The load of its memory.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_number::<0, NODE_LOAD_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 0, maximum = 1000000)]
    pub memory: Option<f64>,
}

impl lenient::Growing for Load {}

/// A heartbeat, sent every `heartbeat_ms`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heartbeat {
    /// The node's load.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    pub load: Option<Load>,
    /// As in [`Hello::running`].
    #[serde(deserialize_with = "strict::any_objects::<RUNNING_MAX, _, _>")]
    pub running: Vec<AttemptRef>,
}

/// The node does not take an attempt; another node gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reject {
    /// The job's id.
    #[serde(deserialize_with = "strict::text::<JOB_ID_CHARS_MAX, _>")]
    pub job: String,
    /// The attempt's number.
    #[serde(deserialize_with = "strict::integer32::<1, ATTEMPT_MAX, _>")]
    pub attempt: u32,
    /// The reason: one of [`super::reason`], or other words. The daemon reads the first 256 characters.
    #[serde(deserialize_with = "strict::cut_text::<REJECT_REASON_CHARS_MAX, _>")]
    pub reason: String,
}

/// The progress of an attempt. It may be lost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptProgress {
    /// The job's id.
    #[serde(deserialize_with = "strict::text::<JOB_ID_CHARS_MAX, _>")]
    pub job: String,
    /// The attempt's number.
    #[serde(deserialize_with = "strict::integer32::<1, ATTEMPT_MAX, _>")]
    pub attempt: u32,
    /// A percentage, 0 to 100.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_number::<0, 100, _>"
    )]
    pub percent: Option<f64>,
    /// A text. The daemon reads the first 1,024 characters.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_cut_text::<PROGRESS_NOTE_CHARS_MAX, _>"
    )]
    pub note: Option<String>,
}

/// How an attempt ended. The node sends it again on each new connection, until it gets `committed` or `stale`
/// for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ResultFields", into = "ResultFields")]
pub struct AttemptResult {
    /// The job's id.
    pub job: String,
    /// The attempt's number.
    pub attempt: u32,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// The node's own span, as the header `traceparent` of W3C Trace Context. Without one, and in place of one that cannot be
    /// read, the span of the dispatch counts.
    pub traceparent: Option<String>,
}

/// How an attempt ended, as the node reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// The attempt succeeded with this output: any JSON, at most 1 MiB of text.
    Done(Json),
    /// The attempt failed.
    Failed(AttemptFailure),
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttemptFailure {
    /// A text. The daemon reads the first 8,192 characters: a node that is refused would send the result again for ever.
    #[serde(deserialize_with = "strict::cut_text::<ERROR_MESSAGE_CHARS_MAX, _>")]
    pub message: String,
    /// Whether another attempt may succeed; `true` by default.
    #[serde(default = "yes")]
    pub retryable: bool,
}

const fn yes() -> bool {
    true
}

/// [`AttemptResult`] in its JSON form.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResultFields {
    #[serde(deserialize_with = "strict::text::<JOB_ID_CHARS_MAX, _>")]
    job: String,
    #[serde(deserialize_with = "strict::integer32::<1, ATTEMPT_MAX, _>")]
    attempt: u32,
    ok: bool,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<MESSAGE_BYTES_MAX, _>"
    )]
    output: Option<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    error: Option<AttemptFailure>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
}

impl TryFrom<ResultFields> for AttemptResult {
    type Error = &'static str;

    fn try_from(fields: ResultFields) -> Result<Self, Self::Error> {
        let ResultFields { job, attempt, ok, output, error, traceparent } = fields;
        let outcome = match (ok, output, error) {
            // A node that is refused would send it again for ever.
            (true, Some(output), None) if output.as_str().len() > PAYLOAD_BYTES_MAX => {
                let bytes = output.as_str().len();
                let message =
                    format!("the output has {bytes} bytes of JSON text; the limit is {PAYLOAD_BYTES_MAX}");
                AttemptOutcome::Failed(AttemptFailure { message, retryable: false })
            }
            (true, Some(output), None) => AttemptOutcome::Done(output),
            (false, None, Some(error)) => AttemptOutcome::Failed(error),
            (true, _, _) => return Err("a result with \"ok\": true has an output and no error"),
            (false, _, _) => return Err("a result with \"ok\": false has an error and no output"),
        };
        Ok(Self { job, attempt, outcome, traceparent })
    }
}

impl From<AttemptResult> for ResultFields {
    fn from(result: AttemptResult) -> Self {
        let AttemptResult { job, attempt, outcome, traceparent } = result;
        let (output, error) = match outcome {
            AttemptOutcome::Done(output) => (Some(output), None),
            AttemptOutcome::Failed(error) => (None, Some(error)),
        };
        Self { job, attempt, ok: output.is_some(), output, error, traceparent }
    }
}

/// The answer to `hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The node's id, as in its `hello`.
    pub node_id: String,
    /// The instance that holds this connection.
    pub instance: String,
    /// How often a heartbeat is expected, in milliseconds.
    pub heartbeat_ms: u64,
    /// The pools that the node is in now. A node in none gets no job. Older daemons do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pools: Option<Vec<String>>,
}

/// The answer to `heartbeat`. One more is sent when an operator drains the node, or ends its drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatOk {
    /// Whether an operator drains the node: it gets no more jobs.
    #[serde(default, skip_serializing_if = "is_false")]
    pub draining: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands it over so")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// An attempt to run. The node answers with `ack` or `reject`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatch {
    /// The job's id.
    #[serde(deserialize_with = "strict::text::<JOB_ID_CHARS_MAX, _>")]
    pub job: String,
    /// The attempt's number.
    #[serde(deserialize_with = "strict::integer32::<1, ATTEMPT_MAX, _>")]
    pub attempt: u32,
    /// The job's input, as it was submitted.
    #[serde(deserialize_with = "strict::json::<PAYLOAD_BYTES_MAX, _>")]
    pub payload: Json,
    /// What the job does, as its client called it. Absent without a kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The strings that the client gave the job. Absent without any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
    /// The job's session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// The job's place in the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// How long the attempt may run, in milliseconds from its acknowledgement.
    pub timeout_ms: u64,
    /// Of a plan's stage: the plan, task, tenant, run, name and number, the context, the tenant's configuration and the
    /// fencing token of the tenant's lock. Absent for any other job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Json>,
    /// The span that the attempt continues, as the header `traceparent` of W3C Trace Context. Absent for a job without a
    /// trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The job that this one repeats by hand. Absent for any other job; daemons of 0.1.0 never say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_of: Option<String>,
}

impl Dispatch {
    /// An attempt of a job that has nothing but its payload.
    #[must_use]
    pub fn new(job: &str, attempt: u32, payload: Json, timeout_ms: u64) -> Self {
        let metadata = BTreeMap::new();
        let job = job.to_owned();
        let (kind, session, seq, stage, traceparent, retry_of) = (None, None, None, None, None, None);
        Self { job, attempt, payload, kind, metadata, session, seq, timeout_ms, stage, traceparent, retry_of }
    }
}

/// An error, sent before the socket is closed, or in place of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketProblem {
    /// The stable code. Newer daemons may add codes: see [`crate::Code::parse`].
    pub code: String,
    /// What is wrong, and what would be right.
    pub detail: String,
}
