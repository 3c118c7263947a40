//! What a caller sends: a plan to make, a reason, a resolution, a retry, a lock to break.

use std::fmt;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::{OnFailure, OnUnknown, RetryPoint, StageOutcome};
use crate::jobs::{Backoff, Route};
use crate::json::Json;
use crate::limits::{
    CHECKPOINT_VERSION_MAX, CONTEXT_BYTES_MAX, JOB_ID_CHARS_MAX, JOB_LABELS_MAX, JOB_TIMEOUT_MS_MAX,
    JOB_TIMEOUT_MS_MIN, LABEL_CHARS_MAX, MAX_ATTEMPTS_MAX, PAYLOAD_BYTES_MAX, PLAN_CONCURRENCY_MAX,
    PLAN_NAME_CHARS_MAX, PLAN_STAGES_MAX, PLAN_TASKS_MAX, PLAN_TIMEOUT_MS_MAX, POOL_NAME_CHARS_MAX,
    REASON_CHARS_MAX, TASK_CONFIG_BYTES_MAX, TASK_RUNS_MAX, TENANT_ID_CHARS_MAX, TOKEN_MAX,
};
use crate::strict;

/// A plan to make: an ordered list of tasks, each for one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanRequest {
    /// A name for people, without control characters.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<PLAN_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub name: Option<String>,
    /// How many tasks may run at once. Tasks start in the order in which they are listed.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer32::<1, PLAN_CONCURRENCY_MAX, _>"
    )]
    #[schema(nullable = false, default = 5, minimum = 1, maximum = 100)]
    pub max_concurrency: Option<u32>,
    /// What the plan does with its other tasks once one failed or was interrupted. With `stop_new` and `pause`, tasks that had no
    /// turn start when no task is FAILED or INTERRUPTED any more, also because it is retried or cancelled, unless the plan was
    /// paused before.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false, default = "stop_new")]
    pub on_failure: Option<OnFailure>,
    /// How long after its start the plan starts further tasks, in milliseconds; two hours by default. Running tasks go on
    /// after that time. It does not count once a task is retried of a plan that had ended in time.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<1, PLAN_TIMEOUT_MS_MAX, _>"
    )]
    #[schema(nullable = false, default = 7200000, minimum = 1, maximum = 604800000)]
    pub timeout_ms: Option<u64>,
    /// Whether the plan is started in the same commit.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false, default = false)]
    pub start: Option<bool>,
    /// The tasks, in order, each for a different tenant.
    #[serde(deserialize_with = "strict::objects::<PLAN_TASKS_MAX, _, _>")]
    #[schema(min_items = 1, max_items = 1000)]
    pub tasks: Vec<TaskRequest>,
}

impl PlanRequest {
    /// A plan of these tasks that asks for nothing else.
    #[must_use]
    pub const fn new(tasks: Vec<TaskRequest>) -> Self {
        Self { name: None, max_concurrency: None, on_failure: None, timeout_ms: None, start: None, tasks }
    }
}

/// A task of a plan: stages, run in order for one tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRequest {
    /// The tenant that the task is for.
    #[serde(deserialize_with = "strict::text::<TENANT_ID_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 128, pattern = "^[A-Za-z0-9._:@-]+$")]
    pub tenant: String,
    /// A name for people, without control characters.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<PLAN_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 128)]
    pub name: Option<String>,
    /// The tenant's configuration: any JSON, at most 64 KiB of text. The node of every stage gets it as it is written.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<TASK_CONFIG_BYTES_MAX, _>"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub config: Option<Json>,
    /// How long one run of the task may take, in milliseconds; ten minutes by default. All its stages count, with their attempts
    /// and with the time in which they wait for nodes. Over this time the task becomes FAILED.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<1, PLAN_TIMEOUT_MS_MAX, _>"
    )]
    #[schema(nullable = false, default = 600000, minimum = 1, maximum = 604800000)]
    pub timeout_ms: Option<u64>,
    /// The stages, in order, with different names.
    #[serde(deserialize_with = "strict::objects::<PLAN_STAGES_MAX, _, _>")]
    #[schema(min_items = 1, max_items = 100)]
    pub stages: Vec<StageRequest>,
}

impl TaskRequest {
    /// A task of these stages that asks for nothing else.
    #[must_use]
    pub fn new(tenant: impl Into<String>, stages: Vec<StageRequest>) -> Self {
        Self { tenant: tenant.into(), name: None, config: None, timeout_ms: None, stages }
    }
}

/// A stage of a task. It runs as a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StageRequest {
    /// The stage's name, which no other stage of the task has; without control characters, and neither `.` nor `..`.
    #[serde(deserialize_with = "strict::text::<PLAN_NAME_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 128)]
    pub name: String,
    /// The input of the stage: any JSON, at most 1 MiB of text. The node gets it as it is written.
    #[serde(deserialize_with = "strict::json::<PAYLOAD_BYTES_MAX, _>")]
    #[schema(value_type = serde_json::Value)]
    pub payload: Json,
    /// The stage runs only on nodes that have all of these labels.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "strict::texts::<JOB_LABELS_MAX, LABEL_CHARS_MAX, _>"
    )]
    #[schema(max_items = 16)]
    pub requires: Vec<String>,
    /// The stage runs only on nodes of this pool.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<POOL_NAME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 64)]
    pub pool: Option<String>,
    /// The stage runs only in pools that serve this route.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub route: Option<Route>,
    /// How long one attempt may run, in milliseconds.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer::<JOB_TIMEOUT_MS_MIN, JOB_TIMEOUT_MS_MAX, _>"
    )]
    #[schema(nullable = false, default = 60000, minimum = 1, maximum = 86400000)]
    pub timeout_ms: Option<u64>,
    /// How many attempts may fail before the stage has failed. An attempt that ran out of time, or was lost with its node,
    /// counts: with more than 1 the stage runs again after it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer32::<1, MAX_ATTEMPTS_MAX, _>"
    )]
    #[schema(nullable = false, default = 1, minimum = 1, maximum = 100)]
    pub max_attempts: Option<u32>,
    /// The delay between two attempts.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub backoff: Option<Backoff>,
    /// Whether a retry may run the stage again while it is UNKNOWN.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false, default = "confirm")]
    pub on_unknown: Option<OnUnknown>,
}

impl StageRequest {
    /// A stage with this payload that asks for nothing else.
    #[must_use]
    pub fn new(name: impl Into<String>, payload: Json) -> Self {
        Self {
            name: name.into(),
            payload,
            requires: Vec::new(),
            pool: None,
            route: None,
            timeout_ms: None,
            max_attempts: None,
            backoff: None,
            on_unknown: None,
        }
    }
}

/// A change of a plan or a task. The body may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReasonRequest {
    /// The reason for the change, without the character NUL. The events show it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_prose::<REASON_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    pub reason: Option<String>,
}

/// How a plan is resumed. The body may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanResumeRequest {
    /// The reason for the change, without the character NUL. The events show it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_prose::<REASON_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    pub reason: Option<String>,
    /// Whether tasks that are paused stay so, until each is resumed: those that wait for a person, and also those that were
    /// paused with the plan, by a failure, or by a change of the owner.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false, default = false)]
    pub keep_paused: Option<bool>,
}

/// How a task is cancelled. The body may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskCancelRequest {
    /// The reason for the cancellation, without the character NUL. The events show it.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_prose::<REASON_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, min_length = 1, max_length = 1024)]
    pub reason: Option<String>,
    /// The run that the caller has seen. If the task has another one by now, the cancellation is refused (`conflict`): the
    /// repetition of a request whose answer was lost does not cancel a run that somebody has begun since.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub expect: Option<ExpectedRun>,
}

/// What an UNKNOWN stage did, as a person says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StageResolveRequest {
    /// What the stage did.
    pub outcome: StageOutcome,
    /// The context for the next stage: an object, at most 256 KiB of text. Absent, the next stage gets the context that
    /// this stage got. Allowed only with the outcome `done`.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json_object::<CONTEXT_BYTES_MAX, _>"
    )]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub context: Option<Json>,
    /// The job of the stage that the person has looked at. If the stage has another one by now, nothing changes (`conflict`).
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<JOB_ID_CHARS_MAX, _>"
    )]
    #[schema(nullable = false)]
    pub job: Option<String>,
    /// How the person knows, without the character NUL. The events show it.
    #[serde(deserialize_with = "strict::prose::<REASON_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 1024)]
    pub reason: String,
}

/// How a task is to be run again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TaskRetryRequest {
    /// Where the new run continues.
    pub from: RetryFrom,
    /// The run and the checkpoint that the caller has seen. If the task has others by now, the retry is refused
    /// (`conflict`).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present_object")]
    #[schema(nullable = false)]
    pub expect: Option<ExpectedTask>,
    /// A JSON merge patch (RFC 7396) for the context with which the new run continues: an object, at most 256 KiB of text, with
    /// at most 127 objects in each other. The merged context has at most 256 KiB. Names in the context and in the patch may be no
    /// Unicode.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json_object::<CONTEXT_BYTES_MAX, _>"
    )]
    #[schema(nullable = false, value_type = Option<Object>)]
    pub context_patch: Option<Json>,
    /// A corrected definition: all stages. Those that the new run skips must have the same `name`, `payload`, `requires`,
    /// `pool` and `route` as before; blanks between the parts of a payload do not count. The others may be changed, left out
    /// or added.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "stages")]
    #[schema(nullable = false, min_items = 1, max_items = 100)]
    pub stages: Option<Vec<StageRequest>>,
    /// Another configuration of the tenant: any JSON, at most 64 KiB of text.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_json::<TASK_CONFIG_BYTES_MAX, _>"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub config: Option<Json>,
    /// How many attempts of each stage may fail, in place of the number that each stage names.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer32::<1, MAX_ATTEMPTS_MAX, _>"
    )]
    #[schema(nullable = false, minimum = 1, maximum = 100)]
    pub max_attempts: Option<u32>,
    /// The reason for the retry, without the character NUL. The events show it.
    #[serde(deserialize_with = "strict::prose::<REASON_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 1024)]
    pub reason: String,
    /// Whether to answer only what the retry would do, and to change nothing.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false, default = false)]
    pub dry_run: Option<bool>,
}

impl TaskRetryRequest {
    /// A retry from this point that asks for nothing else.
    #[must_use]
    pub fn new(from: RetryFrom, reason: impl Into<String>) -> Self {
        Self {
            from,
            expect: None,
            context_patch: None,
            stages: None,
            config: None,
            max_attempts: None,
            reason: reason.into(),
            dry_run: None,
        }
    }
}

fn stages<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Vec<StageRequest>>, D::Error> {
    strict::objects::<PLAN_STAGES_MAX, _, _>(from).map(Some)
}

/// Where a retry continues: a keyword, or an earlier checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum RetryFrom {
    /// At the first stage, or after the last completed one.
    Point(RetryPoint),
    /// After the stages that an earlier checkpoint covers.
    Version(CheckpointVersion),
}

/// An earlier checkpoint of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckpointVersion {
    /// The version of the checkpoint.
    #[serde(deserialize_with = "strict::integer32::<1, CHECKPOINT_VERSION_MAX, _>")]
    #[schema(minimum = 1, maximum = 1000)]
    pub checkpoint_version: u32,
}

impl<'de> Deserialize<'de> for RetryFrom {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct From;

        impl<'de> Visitor<'de> for From {
            type Value = RetryFrom;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#""checkpoint", "start" or {"checkpoint_version":n}"#)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RetryFrom, E> {
                RetryPoint::deserialize(StrDeserializer::new(text)).map(RetryFrom::Point)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RetryFrom, A::Error> {
                CheckpointVersion::deserialize(MapAccessDeserializer::new(map)).map(RetryFrom::Version)
            }
        }

        from.deserialize_any(From)
    }
}

/// What the caller of a retry has seen of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedTask {
    /// The number of the newest run.
    #[serde(deserialize_with = "strict::integer32::<1, TASK_RUNS_MAX, _>")]
    #[schema(minimum = 1, maximum = 100)]
    pub run: u32,
    /// The task's `checkpoint_version`, or the `version` of its `checkpoint`. 0 for none.
    #[serde(deserialize_with = "strict::integer32::<0, CHECKPOINT_VERSION_MAX, _>")]
    #[schema(minimum = 0, maximum = 1000)]
    pub checkpoint_version: u32,
}

/// What the caller of a cancellation has seen of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ExpectedRun {
    /// The number of the newest run.
    #[serde(deserialize_with = "strict::integer32::<1, TASK_RUNS_MAX, _>")]
    #[schema(minimum = 1, maximum = 100)]
    pub run: u32,
}

/// A tenant's lock to break.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnlockRequest {
    /// The token of the lock, as the tenant's `lock` shows it.
    #[serde(deserialize_with = "strict::integer::<0, TOKEN_MAX, _>")]
    #[schema(minimum = 0, maximum = 9223372036854775807u64)]
    pub token: u64,
    /// The reason, without the character NUL. The events show it.
    #[serde(deserialize_with = "strict::prose::<REASON_CHARS_MAX, _>")]
    #[schema(min_length = 1, max_length = 1024)]
    pub reason: String,
}
