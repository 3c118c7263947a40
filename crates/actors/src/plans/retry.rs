//! Retries as callers ask for them, and what they come to in a plan's state.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use domain::limits::{CONTEXT_BYTES_MAX, CONTEXT_PATCH_DEPTH_MAX};
use domain::plan::{self, Command, PlanState, Retry, Seen, StageSpec};
use domain::{PlanId, TaskId};
use ledger::{Author, JobKey, Locker, RetryKey, TaskRecord};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::stage::Name;
use super::{By, Plans, Refusal};

/// Where a retry continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryFrom {
    /// Behind the last stage that is completed.
    Checkpoint,
    /// At the first stage.
    Start,
    /// Behind the stages that the checkpoint with this version covers.
    Version(u32),
}

/// How a task is to be run again.
#[derive(Clone, Debug)]
pub struct RetryRequest {
    /// Where it continues.
    pub from: RetryFrom,
    /// The run and the checkpoint that the caller has seen; others are refused.
    pub expect: Option<Seen>,
    /// A JSON merge patch (RFC 7396) for the context that it continues with: JSON text.
    pub context_patch: Option<Arc<str>>,
    /// A corrected definition.
    pub stages: Option<Arc<[StageSpec]>>,
    /// Another configuration of the tenant: JSON text.
    pub config: Option<Arc<str>>,
    /// How many attempts of a stage may fail.
    pub max_attempts: Option<u32>,
    /// The reason, in the words of the person who retries. The events show it.
    pub reason: Arc<str>,
}

impl Plans {
    /// Has a task run again. As [`Self::carry_out`]. Answers which one: under a key that was used, the task that was retried
    /// then.
    ///
    /// # Errors
    /// As [`Self::carry_out`], [`Refusal::Unfit`] and [`Refusal::TooLarge`] for a context that cannot be kept, and
    /// [`Refusal::KeyReused`].
    pub async fn retry(
        &self,
        plan: PlanId,
        task: TaskId,
        retry: RetryRequest,
        key: Option<JobKey>,
        author: Author,
    ) -> Result<TaskId, Refusal> {
        let keeping = key.clone().map(|key| RetryKey { key, task });
        let asked = async {
            let retry = self.resolved(task, retry).await?;
            self.ask(plan, Command::Retry(task, retry), By { author, key: keeping, ..By::default() }).await
        };
        match (asked.await, key) {
            (Ok(()), _) => Ok(task),
            // The same request may have been carried out while this one was on its way.
            (
                Err(refusal @ (Refusal::KeyReused | Refusal::Refused(_) | Refusal::TenantLocked(_))),
                Some(key),
            ) => self.kept_retry(&key).await?.ok_or(refusal),
            (Err(refusal), _) => Err(refusal),
        }
    }

    /// The task that was retried under a key; `None` if the key was not used. Any instance answers this.
    ///
    /// # Errors
    /// [`Refusal::KeyReused`], and what the ledger says.
    pub async fn kept_retry(&self, key: &JobKey) -> Result<Option<TaskId>, Refusal> {
        match self.inner.ledger.kept_retry(&key.scope).await? {
            Some(kept) if kept.body_hash != key.body_hash => Err(Refusal::KeyReused),
            kept => Ok(kept.map(|kept| kept.task)),
        }
    }

    /// What a retry would come to, by the ledger: the plan as it would be. Any instance answers this.
    ///
    /// # Errors
    /// As [`Self::retry`], but for the plan's owner.
    pub async fn preview_retry(
        &self,
        plan: PlanId,
        task: TaskId,
        retry: RetryRequest,
    ) -> Result<PlanState, Refusal> {
        let ledger = &self.inner.ledger;
        let retry = self.resolved(task, retry).await?;
        let state = ledger.load_plan(plan).await?;
        let state = state.ok_or(Refusal::UnknownPlan)?;
        let now = self.inner.now().await?;
        let step = state.apply(&Command::Retry(task, retry), now, &mut || self.inner.jobs.new_id());
        let step = step.map_err(Refusal::Refused)?;
        for place in &step.writes.take {
            let task = &step.next.tasks[*place];
            let lock = domain::Resource::tenant(&task.spec.tenant);
            let lease = ledger.lease(&lock).await?;
            let holder = lease.filter(ledger::Lease::is_live).and_then(|lease| lease.owner);
            let holder = holder.and_then(|owner| TaskId::parse(owner.as_str().strip_prefix("task:")?));
            if let Some(holder) = holder.filter(|holder| *holder != task.id) {
                let other = ledger.plan_task(holder).await?;
                return Err(Refusal::TenantLocked(Locker {
                    tenant: task.spec.tenant.clone(),
                    task: Some(holder),
                    plan: other.map(|other| other.plan),
                }));
            }
        }
        Ok(step.next)
    }

    /// A retry with the checkpoint and the context that it continues with. A patch is for the context that was read: the
    /// retry counts only while the task is still as it was then.
    async fn resolved(&self, task: TaskId, asked: RetryRequest) -> Result<Retry, Refusal> {
        let ledger = &self.inner.ledger;
        let RetryRequest { from, expect, context_patch, stages, config, max_attempts, reason } = asked;
        let from = match from {
            RetryFrom::Checkpoint => plan::From::Checkpoint,
            RetryFrom::Start => plan::From::Start,
            RetryFrom::Version(version) => {
                let before = version.checked_add(1);
                let found = ledger.checkpoints(task, before, 1).await?.pop();
                let found = found.filter(|found| found.checkpoint.version == version);
                let found = found.ok_or(Refusal::Refused(plan::Refused::UnknownCheckpoint))?;
                let stages = ledger.definition(task, found.definition).await;
                let stages = stages?.ok_or(Refusal::UnknownTask)?;
                plan::From::Version { checkpoint: found.checkpoint, stages }
            }
        };
        let (mut expect, mut context) = (expect, None);
        if let Some(patch) = context_patch {
            let read = ledger.plan_task(task).await?;
            let read = read.ok_or(Refusal::UnknownTask)?;
            expect = expect.or(Some(seen(&read)));
            let before = match &from {
                plan::From::Checkpoint => read.task.context(),
                plan::From::Start => Arc::from("{}"),
                plan::From::Version { checkpoint, .. } => Arc::clone(&checkpoint.context),
            };
            context = Some(patched(&before, &patch)?);
        }
        Ok(Retry { from, expect, context, stages, config, max_attempts, reason })
    }
}

const fn seen(read: &TaskRecord) -> Seen {
    Seen { run: read.task.run, checkpoint_version: read.task.last_checkpoint }
}

/// A context with a JSON merge patch (RFC 7396) applied to it. What the patch does not name stays as it was written: numbers keep
/// their digits, and names that are no Unicode their escapes.
fn patched(context: &str, patch: &str) -> Result<Arc<str>, Refusal> {
    let text = merge(Some(json(context)?), json(patch)?, CONTEXT_PATCH_DEPTH_MAX)?;
    if !text.starts_with('{') {
        return Err(Refusal::Unfit("the context after the patch must be a JSON object".to_owned()));
    }
    if text.len() > CONTEXT_BYTES_MAX {
        return Err(Refusal::TooLarge(format!(
            "the context after the patch has {} bytes; at most {CONTEXT_BYTES_MAX} are kept",
            text.len()
        )));
    }
    Ok(text.into())
}

/// `MergePatch` of RFC 7396, section 2, for a patch whose objects nest up to `depth_left` deep.
fn merge(target: Option<&str>, patch: &str, depth_left: u32) -> Result<String, Refusal> {
    let Some(Members(patch)) = members(patch)? else { return Ok(patch.to_owned()) };
    let Some(depth_left) = depth_left.checked_sub(1) else {
        let why = format!("context_patch has more than {CONTEXT_PATCH_DEPTH_MAX} objects in each other");
        return Err(Refusal::Unfit(why));
    };
    let Members(mut merged) = target.map(members).transpose()?.flatten().unwrap_or_default();
    for (name, (written, value)) in patch {
        let before = merged.remove(&name);
        if value != "null" {
            let value = merge(before.as_ref().map(|(_, before)| &**before), &value, depth_left)?;
            merged.insert(name, (written, Cow::Owned(value)));
        }
    }
    let members: Vec<_> = merged.into_values().map(|(written, value)| format!("{written}:{value}")).collect();
    Ok(format!("{{{}}}", members.join(",")))
}

/// The members of an object, by their names: each one's name as it was written, and its value.
#[derive(Default)]
struct Members<'a>(BTreeMap<Cow<'a, [u8]>, (&'a str, Cow<'a, str>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<Self::Value, M::Error> {
        let mut found = BTreeMap::new();
        while let Some((written, value)) = members.next_entry::<&'de RawValue, &'de RawValue>()? {
            let Name(name) = serde_json::from_str(written.get()).map_err(<M::Error as de::Error>::custom)?;
            found.insert(name, (written.get(), Cow::Borrowed(value.get())));
        }
        Ok(Members(found))
    }
}

/// The members of a value; `None` for one that is no object.
fn members(value: &str) -> Result<Option<Members<'_>>, Refusal> {
    value.starts_with('{').then(|| read(value)).transpose()
}

/// A JSON text without the blanks around it.
fn json(text: &str) -> Result<&str, Refusal> {
    read(text).map(RawValue::get)
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, Refusal> {
    serde_json::from_str(text)
        .map_err(|error| Refusal::Unfit(format!("the context cannot be patched: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7396, appendix A.
    #[test]
    fn patches_come_to_what_the_rfc_says() {
        for (target, patch, expected) in [
            (r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"b":"c"}"#, r#"{"a":"b","b":"c"}"#),
            (r#"{"a":"b"}"#, r#"{"a":null}"#, "{}"),
            (r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#),
            (r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#),
            (r#"{"a":"c"}"#, r#"{"a":["b"]}"#, r#"{"a":["b"]}"#),
            (r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#),
            (r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#),
            ("{}", r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#),
            (r#"{"e":null}"#, r#"{"a":1}"#, r#"{"a":1,"e":null}"#),
            ("[1,2]", r#"{"a":"b","c":null}"#, r#"{"a":"b"}"#),
        ] {
            let expected: serde_json::Value = serde_json::from_str(expected).unwrap();
            let patched: serde_json::Value = serde_json::from_str(&patched(target, patch).unwrap()).unwrap();
            assert_eq!(patched, expected, "{target} with {patch}");
        }
    }

    #[test]
    fn what_a_patch_does_not_name_stays_as_it_was_written() {
        let context = concat!(
            r#"{"big":12345678901234567890123,"far":1e999,"in":{"z": 1.0,"a":[1.10, null]},"#,
            r#""x":{"keep":1E2,"drop":0}}"#
        );
        let patched = patched(context, r#"{"new":{"n":0.10,"none":null},"x":{"drop":null}}"#).unwrap();
        let expected = concat!(
            r#"{"big":12345678901234567890123,"far":1e999,"in":{"z": 1.0,"a":[1.10, null]},"#,
            r#""new":{"n":0.10},"x":{"keep":1E2}}"#
        );
        assert_eq!(&*patched, expected);
    }

    /// A stage's context may have such names: some languages write them for names of files.
    #[test]
    fn names_that_are_no_unicode_are_patched_and_kept() {
        let context = r#"{"\ud800":1,"in":{"\udce9.txt":{"kept":1},"\udcea":2}}"#;
        for (patch, expected) in [
            (r#"{"a":1}"#, r#"{"a":1,"in":{"\udce9.txt":{"kept":1},"\udcea":2},"\ud800":1}"#),
            (
                r#"{"in":{"\uDCE9.txt":{"b":2},"\udcea":null},"\ud800":null}"#,
                r#"{"in":{"\uDCE9.txt":{"b":2,"kept":1}}}"#,
            ),
            (r#"{"\u0069n":[],"\uD800":{"\ud801":1}}"#, r#"{"\u0069n":[],"\uD800":{"\ud801":1}}"#),
        ] {
            assert_eq!(&*patched(context, patch).unwrap(), expected, "{patch}");
        }
    }

    #[test]
    fn a_patch_that_leaves_no_object_or_too_much_is_refused() {
        let large = format!(r#"{{"a":"{}"}}"#, "x".repeat(CONTEXT_BYTES_MAX));
        let deep = |depth| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        for patch in ["[1]", r#""x""#, deep(128).as_str()] {
            assert!(matches!(patched("{}", patch), Err(Refusal::Unfit(_))));
        }
        assert!(matches!(patched("{}", &large), Err(Refusal::TooLarge(_))));
        assert_eq!(&*patched("{}", &deep(127)).unwrap(), deep(127));
    }
}
