//! The job of a stage: what its node gets, and what its end means to the plan.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use domain::TaskId;
use domain::job::{Due, Ended, NewJob, OnRecovery, Outcome, Spec};
use domain::limits::CONTEXT_BYTES_MAX;
use domain::plan::{PlanState, StageEnd, StageStart};
use ledger::Finished;
use serde::de::{self, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

/// What the node of a stage learns of the plan. Its plan and task come first: the ledger's statements that delete jobs read
/// the task there.
#[derive(Serialize)]
struct StageDocument<'a> {
    plan: String,
    task: String,
    tenant: &'a str,
    run: u32,
    name: &'a str,
    /// Counted from 1.
    number: usize,
    context: &'a RawValue,
    config: Option<&'a RawValue>,
    tenant_token: i64,
}

/// What tells whose job it is.
#[derive(Deserialize)]
struct TaskName {
    task: String,
}

/// The task of a stage, by what the stage's job has of it ([`Spec::stage`]); `None` where that names none, which is a defect.
#[must_use]
pub fn task_of_stage(stage: &str) -> Option<TaskId> {
    TaskId::parse(&serde_json::from_str::<TaskName>(stage).ok()?.task)
}

/// What a node may give of a stage. Its other names may be no Unicode (`"\udce9"`, which some languages write for a file's name).
struct Output<'a> {
    context: Option<&'a RawValue>,
}

impl<'de: 'a, 'a> Deserialize<'de> for Output<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(OutputVisitor)
    }
}

struct OutputVisitor;

impl<'de> Visitor<'de> for OutputVisitor {
    type Value = Output<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut names: M) -> Result<Self::Value, M::Error> {
        let mut context = None;
        while let Some(Name(name)) = names.next_key()? {
            if *name != *b"context" {
                names.next_value::<IgnoredAny>()?;
            } else if context.replace(names.next_value()?).is_some() {
                return Err(de::Error::duplicate_field("context"));
            }
        }
        Ok(Output { context: context.flatten() })
    }
}

/// A name in JSON without its escapes. It may be no Unicode.
pub(super) struct Name<'a>(pub(super) Cow<'a, [u8]>);

impl<'de: 'a, 'a> Deserialize<'de> for Name<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_bytes(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_borrowed_bytes<E: de::Error>(self, name: &'de [u8]) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Borrowed(name)))
    }

    fn visit_bytes<E: de::Error>(self, name: &[u8]) -> Result<Name<'de>, E> {
        Ok(Name(Cow::Owned(name.to_owned())))
    }
}

/// The job of a stage that begins. `None` where the state says what it never says: a defect.
pub(super) fn job(plan: &PlanState, start: &StageStart) -> Option<NewJob> {
    let task = &plan.tasks[start.task];
    let stage = task.stage(start.stage);
    let context = task.context();
    let document = StageDocument {
        plan: plan.id.to_string(),
        task: task.id.to_string(),
        tenant: task.spec.tenant.as_str(),
        run: task.run,
        name: &stage.name,
        number: start.stage + 1,
        context: serde_json::from_str(&context).ok()?,
        config: task.spec.config.as_deref().map(serde_json::from_str).transpose().ok()?,
        tenant_token: task.lock?.get(),
    };
    let spec = Spec {
        tenant: Some(task.spec.tenant.clone()),
        needs: stage.needs.clone(),
        timeout_ms: stage.timeout_ms,
        max_attempts: stage.max_attempts,
        backoff: stage.backoff,
        on_recovery: OnRecovery::Hold,
        stage: Some(serde_json::to_string(&document).ok()?.into()),
        traceparent: task.traceparent.or(plan.traceparent),
        ..Spec::new(Arc::clone(&stage.payload))
    };
    Some(NewJob {
        id: start.job,
        spec,
        seq: None,
        client_ref: None,
        due: Due::Now,
        retry: None,
        placed: None,
    })
}

/// How the job of a stage ended, whose last attempt ended so.
pub(super) fn end(finished: &Finished, attempt: Option<Ended>) -> StageEnd {
    if finished.outcome != Outcome::Succeeded {
        let error = finished.error.as_deref().unwrap_or("no reason was given").into();
        return match (finished.outcome, attempt) {
            (Outcome::Failed | Outcome::TimedOut, Some(Ended::Revoked(_))) => {
                StageEnd::Revoked(finished.outcome, error)
            }
            (outcome, _) => StageEnd::Ended(outcome, error),
        };
    }
    completed(finished.result.as_deref().unwrap_or("null"))
}

/// What the output of a stage that succeeded leaves to the next one.
pub(super) fn completed(output: &str) -> StageEnd {
    match context_of(output) {
        Err(error) => {
            StageEnd::Unfit(format!("the stage's output cannot be read for its context: {error}").into())
        }
        Ok(None) => StageEnd::Completed(None),
        Ok(Some(context)) if !context.get().trim_start().starts_with('{') => {
            StageEnd::Unfit("the context that the stage gave is not a JSON object".into())
        }
        Ok(Some(context)) if context.get().len() > CONTEXT_BYTES_MAX => StageEnd::Unfit(
            format!(
                "the context that the stage gave has {} bytes; at most {CONTEXT_BYTES_MAX} are kept",
                context.get().len()
            )
            .into(),
        ),
        Ok(Some(context)) => StageEnd::Completed(Some(context.get().into())),
    }
}

/// The context in a stage's output. An output that is no object says nothing of the context.
///
/// # Errors
/// The reader's own, for an object that names the context twice: it is not certain which it gives.
fn context_of(output: &str) -> serde_json::Result<Option<&RawValue>> {
    if !output.trim_start().starts_with('{') {
        return Ok(None);
    }
    serde_json::from_str::<Output<'_>>(output).map(|output| output.context)
}

#[cfg(test)]
mod tests {
    use domain::PlanId;

    use super::*;

    #[test]
    fn the_task_is_where_the_ledgers_statements_read_it() {
        let task = TaskId::from_u128(2).to_string();
        let document = StageDocument {
            plan: PlanId::from_u128(1).to_string(),
            task: task.clone(),
            tenant: "t",
            run: 1,
            name: "n",
            number: 1,
            context: serde_json::from_str("{}").unwrap(),
            config: None,
            tenant_token: 1,
        };
        let document = serde_json::to_string(&document).unwrap();
        assert_eq!(document[47..91], format!("\"task\":\"{task}"));
        assert_eq!(task_of_stage(&document), Some(TaskId::from_u128(2)));
        assert_eq!(task_of_stage("{}"), None);
    }

    #[test]
    fn only_an_object_says_something_of_the_context() {
        for output in [
            "null",
            "1",
            r#""x""#,
            "[]",
            r#"["x"]"#,
            r#"[{"a":1}]"#,
            "{}",
            r#"{"a":{}}"#,
            "{\"context\":null}",
            r#"{"\udce9.txt":"ok"}"#,
        ] {
            assert_eq!(completed(output), StageEnd::Completed(None), "{output}");
        }
        for output in [
            " {\"b\":1,\n\"context\":{\"a\": 1}}",
            r#"{"context":{"a": 1},"\udce9.txt":"ok"}"#,
            r#"{"\udce9.txt":["\udce9"],"c\u006fntext":{"a": 1}}"#,
        ] {
            assert_eq!(completed(output), StageEnd::Completed(Some(r#"{"a": 1}"#.into())), "{output}");
        }
        for output in
            [r#"{"context":[1]}"#, r#"{"context":"x"}"#, r#"{"context":{"step":1},"context":{"step":2}}"#]
        {
            assert!(matches!(completed(output), StageEnd::Unfit(_)), "{output}");
        }
    }
}
