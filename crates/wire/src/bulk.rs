//! Bulk operations: one action on all jobs that match a filter, done in the background.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::jobs::{JobState, Outcome};
use crate::lenient;
use crate::limits::{
    BULK_RATE_MAX, JOB_KIND_CHARS_MAX, POOL_NAME_CHARS_MAX, SESSION_ID_CHARS_MAX, TENANT_ID_CHARS_MAX,
    TIME_CHARS_MAX,
};
use crate::strict::{self, words};

words! {
    /// What is done to each job.
    pub growing enum BulkAction {
        /// A finished job that no other job has retried is retried.
        Retry = "retry",
        /// An unfinished job is cancelled.
        Cancel = "cancel",
        /// A finished job is deleted, with its payload and its result.
        Delete = "delete",
        /// A dead job is dismissed.
        Dismiss = "dismiss",
    }
}

words! {
    /// How a bulk operation stands.
    pub growing enum BulkStatus {
        /// It is under way.
        Running = "RUNNING",
        /// Somebody cancelled it; it ends after the jobs that are being worked on.
        Cancelling = "CANCELLING",
        /// All jobs were worked on. This status is final, and so are the next two.
        Done = "DONE",
        /// It ended before that, since somebody cancelled it.
        Cancelled = "CANCELLED",
        /// It ended before that, since it could not go on; `error` says why.
        Failed = "FAILED",
    }
}

/// Which jobs a bulk operation is about. A job must meet every condition; one condition at least is needed, except by `dismiss`,
/// which is about dead jobs in any case. The stages of plans are never among them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkFilter {
    /// Only jobs in this state. It counts in either case.
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

/// A filter in an answer, whose words may be those of a newer daemon.
#[derive(Deserialize)]
#[serde(remote = "BulkFilter")]
struct AnsweredFilter {
    #[serde(default, deserialize_with = "lenient::read")]
    state: Option<JobState>,
    #[serde(default, deserialize_with = "lenient::read")]
    outcome: Option<Outcome>,
    session: Option<String>,
    tenant: Option<String>,
    pool: Option<String>,
    kind: Option<String>,
    dead: Option<bool>,
}

impl lenient::Growing for BulkFilter {
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        AnsweredFilter::deserialize(from)
    }
}

/// A bulk operation to begin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkRequest {
    /// What is done to each job.
    pub action: BulkAction,
    /// Which jobs.
    #[serde(deserialize_with = "strict::object")]
    pub filter: BulkFilter,
    /// Only jobs that finished before this time; for `cancel`, only jobs that were submitted before it. Without it, and if it
    /// is in the future, the time of the request.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_text::<TIME_CHARS_MAX, _>"
    )]
    #[schema(nullable = false, format = DateTime)]
    pub before: Option<String>,
    /// Jobs per second at most.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "strict::present_integer32::<1, BULK_RATE_MAX, _>"
    )]
    #[schema(nullable = false, default = 200, minimum = 1, maximum = 10000)]
    pub rate: Option<u32>,
    /// Whether only to count the jobs that match.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "strict::present")]
    #[schema(nullable = false, default = false)]
    pub dry_run: Option<bool>,
}

impl BulkRequest {
    /// An operation that does this to the jobs of this filter, and asks for nothing else.
    #[must_use]
    pub const fn new(action: BulkAction, filter: BulkFilter) -> Self {
        Self { action, filter, before: None, rate: None, dry_run: None }
    }
}

/// A bulk operation has begun, or, for a dry run, would be about so many jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BulkAccepted {
    /// Its id. Absent for a dry run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub id: Option<String>,
    /// The number of jobs that match now; where `at_least` says so, those that were counted.
    pub matched: u64,
    /// Whether more jobs may match: the count ends at 1,000,000 and after half of the time that a request may take. The
    /// operation is about all of them nevertheless. `false` also where an idempotency key has answered with an earlier
    /// operation.
    #[serde(default)]
    #[schema(required)]
    pub at_least: bool,
    /// The time before which they finished, or were submitted: as `before` of the next request it leaves out what came since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    pub before: Option<String>,
}

/// A bulk operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Bulk {
    /// Its id.
    pub id: String,
    /// What is done to each job.
    #[serde(deserialize_with = "lenient::read")]
    pub action: BulkAction,
    /// Which jobs.
    #[serde(deserialize_with = "lenient::read")]
    pub filter: BulkFilter,
    /// Only jobs that finished before this time; for `cancel`, only jobs that were submitted before it.
    #[schema(format = DateTime)]
    pub before: String,
    /// Jobs per second at most.
    pub rate: u32,
    /// How it stands.
    #[serde(deserialize_with = "lenient::read")]
    pub status: BulkStatus,
    /// The number of jobs that matched when it began; as many as were counted where the answer to the request said `at_least`.
    pub matched: u64,
    /// The number of jobs to which the action was done.
    pub done: u64,
    /// The number of jobs to which it was not, because they did not match any more when their turn came or do not allow it.
    pub skipped: u64,
    /// The number of jobs to which the action could not be done.
    pub failed: u64,
    /// The newest error, if there was one.
    #[schema(required)]
    pub error: Option<String>,
    /// The name of the token that began it. Empty without tokens.
    pub by: String,
    /// The instance that works on it, or did last. `null` while none does: the last one, which does not know the token that began
    /// it, has left it to an instance that does.
    #[schema(required)]
    pub instance: Option<String>,
    /// When it began.
    #[schema(format = DateTime)]
    pub created_at: String,
    /// When it was over.
    #[schema(required, format = DateTime)]
    pub finished_at: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_written_as_it_is_read() {
        for text in [
            r#"{"action":"retry","filter":{"dead":true}}"#,
            r#"{"action":"delete","filter":{"state":"FINISHED","outcome":"failed","session":"s","tenant":"t","pool":"p","kind":"k","dead":false},"before":"2026-01-01T00:00:00Z","rate":10000,"dry_run":true}"#,
        ] {
            let read: BulkRequest = serde_json::from_str(text).unwrap();
            assert_eq!(serde_json::to_string(&read).unwrap(), text);
        }
    }

    #[test]
    fn a_state_counts_in_either_case() {
        for state in ["created", "CREATED", "Created"] {
            let read: BulkFilter = serde_json::from_str(&format!(r#"{{"state":"{state}"}}"#)).unwrap();
            assert_eq!(read.state, Some(JobState::Created), "{state}");
        }
        for wrong in [r#""done""#, "null", "7"] {
            let body = format!(r#"{{"state":{wrong}}}"#);
            assert!(serde_json::from_str::<BulkFilter>(&body).is_err(), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (body, says) in [
            (r#"{"filter":{}}"#, "missing field `action`"),
            (r#"{"action":"retry"}"#, "missing field `filter`"),
            (r#"{"action":"drop","filter":{}}"#, "retry"),
            (r#"{"action":"retry","filter":[]}"#, "an object"),
            (r#"{"action":"retry","filter":{"pools":"p"}}"#, "unknown field"),
            (r#"{"action":"retry","filter":{"kind":""}}"#, "1 to 64 characters"),
            (r#"{"action":"retry","filter":{},"rate":0}"#, "from 1 to 10000"),
            (r#"{"action":"retry","filter":{},"rate":10001}"#, "from 1 to 10000"),
            (r#"{"action":"retry","filter":{},"dry_run":null}"#, "null"),
        ] {
            let message = serde_json::from_str::<BulkRequest>(body).expect_err(body).to_string();
            assert!(message.contains(says), "{body}: {message}");
        }
    }
}
