//! What an instance shows of plans over HTTP, as far as the checker reads it, and what operators write as their reasons.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A plan.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Plan {
    /// Its id.
    pub id: String,
    /// Its status.
    pub status: String,
}

/// A task in its newest run.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Task {
    /// Its id.
    pub id: String,
    /// The tenant that it is for.
    pub tenant: String,
    /// Its status.
    pub status: String,
    /// What people want of it.
    pub intent: String,
    /// The number of the newest run.
    pub run: u64,
    /// The stages of the newest run, in order.
    pub stages: Vec<Stage>,
    /// The version of its newest checkpoint, 0 for none.
    pub checkpoint_version: u64,
    /// The tenant's lock, while the task holds it.
    #[serde(default)]
    pub lock: Option<Lock>,
}

/// A stage of a task's newest run.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Stage {
    /// Its status.
    pub status: String,
    /// The job that runs it, or did.
    pub job: Option<String>,
}

/// A tenant's lock.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Lock {
    /// Its fencing token.
    pub token: i64,
}

/// A checkpoint.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Checkpoint {
    /// Its version.
    pub version: u64,
    /// The run that wrote it.
    pub run: u64,
    /// The names of the completed stages.
    pub completed_stages: Vec<String>,
    /// What the next stage is given.
    pub context: Value,
}

/// An event of a plan.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Event {
    /// Its number.
    pub seq: u64,
    /// When it happened.
    pub at: String,
    /// The task that it happened to.
    pub task: Option<String>,
    /// What happened.
    pub kind: String,
    /// In which run of the task.
    pub run: Option<u64>,
    /// To which stage, counted from 1.
    pub stage: Option<u64>,
    /// What was before.
    pub before: Option<String>,
    /// What is after.
    pub after: Option<String>,
    /// Why.
    pub reason: Option<String>,
}

/// What an operator decides about a task. It is written as the reason of the request, so that the events of the task tell
/// what was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The task is run again. Requests with one number are one decision, and at most one of them is carried out.
    Retry {
        /// The number of the decision.
        number: u64,
        /// Where the new run continues.
        from: RetryFrom,
        /// A merge patch for the context.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        patch: Option<Value>,
    },
    /// A stage was looked after.
    Resolve {
        /// The number of the decision.
        number: u64,
        /// Which stage, counted from 1.
        stage: u64,
        /// What it did.
        outcome: Outcome,
        /// The context that it left, as the operator says.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        context: Option<Value>,
    },
    /// The tenant's lock is broken.
    Unlock {
        /// The number of the decision.
        number: u64,
        /// At this token.
        token: i64,
    },
}

/// Where a retry continues, as the request says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetryFrom {
    /// After the last completed stage.
    Checkpoint,
    /// At the first stage.
    Start,
    /// After the stages that an earlier checkpoint covers.
    CheckpointVersion(u64),
}

/// What a stage did, as an operator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It is done.
    Done,
    /// It did nothing.
    NotDone,
}

impl Decision {
    /// As the reason of a request.
    #[must_use]
    pub fn reason(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers always serialise")
    }

    /// The decision that led to an event, if its reason tells one.
    #[must_use]
    pub fn behind(event: &Event) -> Option<Self> {
        serde_json::from_str(event.reason.as_deref()?).ok()
    }

    /// Its number.
    #[must_use]
    pub const fn number(&self) -> u64 {
        match self {
            Self::Retry { number, .. } | Self::Resolve { number, .. } | Self::Unlock { number, .. } => {
                *number
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_reason_tells_the_decision_and_a_retry_says_where_it_continues() {
        let patch = Some(json!({"a": 1}));
        let retry = Decision::Retry { number: 7, from: RetryFrom::CheckpointVersion(2), patch };
        let event = Event { reason: Some(retry.reason()), ..Event::default() };
        assert_eq!(Decision::behind(&event), Some(retry));
        assert_eq!(Decision::behind(&Event { reason: Some("of an owner".to_owned()), ..event }), None);
        let written = [RetryFrom::Start, RetryFrom::Checkpoint, RetryFrom::CheckpointVersion(2)]
            .map(|from| serde_json::to_value(from).unwrap());
        assert_eq!(written, [json!("start"), json!("checkpoint"), json!({"checkpoint_version": 2})]);
    }
}
