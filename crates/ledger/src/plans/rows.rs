//! Rows of plans as the databases hand them over, and their documents. The same for both dialects.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;

use domain::job::{Backoff, Requirements, Route};
use domain::plan::{
    Checkpoint, Intent, OnFailure, OnUnknown, PlanEvent, PlanSpec, PlanState, PlanStatus, StageSpec,
    StageState, StageStatus, TaskSpec, TaskState, TaskStatus,
};
use domain::{JobId, Label, Language, PlanId, PoolName, TaskId, TenantId, Timestamp, Token, TraceParent};
use serde::{Deserialize, Serialize};

use super::{Author, CheckpointRecord, FoundTask, KeptPlan, KeptRetry, PlanRecord, TaskRecord, TimedEvent};
use crate::records::{KeyRow, impossible, number};
use crate::sql::{Moment, PlanKey, TaskKey, record};
use crate::{Error, Result};

record! {
    pub(crate) struct PlanRow {
        id: PlanKey,
        status: String,
        version: i64,
        document: String,
        created_at: Moment,
        finished_at: Option<Moment>,
    }
}

record! {
    pub(crate) struct TaskRow {
        id: TaskKey,
        plan: PlanKey,
        place: i64,
        tenant: String,
        status: String,
        run: i64,
        definition: i64,
        version: i64,
        document: String,
        updated_at: Moment,
        stages: String,
        fencing_token: Option<i64>,
        is_lock_live: bool,
    }
}

record! {
    pub(crate) struct AttentionRow {
        plan: PlanKey,
        id: TaskKey,
        tenant: String,
        status: String,
        reason: Option<String>,
        stage: Option<i64>,
        stage_name: Option<String>,
    }
}

record! {
    pub(crate) struct CheckpointRow {
        version: i64,
        run: i64,
        definition: i64,
        completed: i64,
        context: String,
        saved_at: Moment,
    }
}

record! {
    pub(crate) struct EventRow {
        seq: i64,
        task: Option<TaskKey>,
        document: String,
        at: Moment,
    }
}

/// What only the owner of a plan reads of its row.
#[derive(Serialize, Deserialize)]
struct PlanDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Box<str>>,
    max_concurrency: u32,
    on_failure: String,
    timeout_ms: u64,
    intent: String,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_halted: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_over_time: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_untimed: bool,
    /// Microseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<i64>,
    /// An owner of 0.1.0 leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
}

/// What only the owner of a plan reads of a task's row.
#[derive(Serialize, Deserialize)]
struct TaskDocument {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    config: Option<Box<str>>,
    timeout_ms: u64,
    intent: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<i64>,
    stages: Vec<StageDocument>,
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<CheckpointDocument>,
    last_checkpoint: u32,
    /// Statements that delete jobs look for it too, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    waits_for: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failing: Option<Box<str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<Box<str>>,
    /// An owner of 0.1.0 leaves it out.
    #[serde(skip_serializing_if = "Option::is_none")]
    traceparent: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct StageDocument {
    status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    job: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct CheckpointDocument {
    version: u32,
    completed: u32,
    context: Box<str>,
}

/// A stage of a definition.
#[derive(Serialize, Deserialize)]
struct StageSpecDocument {
    name: Box<str>,
    payload: Box<str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<(String, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    requires: Vec<String>,
    timeout_ms: u64,
    max_attempts: u32,
    backoff: (u64, u32, u64),
    on_unknown: String,
}

/// The text that is kept under the idempotency key of a plan.
pub(crate) fn kept_plan_text(plan: PlanId) -> String {
    kept_text("plan", plan)
}

/// The plan that was made under a key.
pub(crate) fn kept_plan(row: &KeyRow) -> Result<KeptPlan> {
    Ok(KeptPlan { body_hash: row.body_hash()?, plan: kept(row, "plan", PlanId::parse)? })
}

/// The text that is kept under the idempotency key of a retry.
pub(crate) fn kept_retry_text(task: TaskId) -> String {
    kept_text("task", task)
}

/// The task that was run again under a key.
pub(crate) fn kept_retry(row: &KeyRow) -> Result<KeptRetry> {
    Ok(KeptRetry { body_hash: row.body_hash()?, task: kept(row, "task", TaskId::parse)? })
}

fn kept_text(what: &str, id: impl Display) -> String {
    text(&BTreeMap::from([(what, id.to_string())]))
}

fn kept<T>(row: &KeyRow, what: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T> {
    let kept: BTreeMap<String, String> = serde_json::from_str(&row.answer).map_err(impossible)?;
    kept.get(what)
        .and_then(|id| parse(id))
        .ok_or_else(|| impossible(format_args!("{what} in {:?}", row.answer)))
}

/// An event as it is shown.
#[derive(Serialize)]
struct EventDocument<'a> {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stage: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    principal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
}

fn boxed(text: Option<&str>) -> Option<Box<str>> {
    text.map(Box::from)
}

fn text(document: &impl Serialize) -> String {
    serde_json::to_string(document).expect("numbers, texts and lists always serialise")
}

fn job(id: &str) -> Result<JobId> {
    JobId::parse(id).ok_or_else(|| impossible(format_args!("job {id:?}")))
}

fn optional<T>(text: Option<&String>, read: impl Fn(&str) -> Result<T>) -> Result<Option<T>> {
    text.map(|text| read(text)).transpose()
}

impl TryFrom<AttentionRow> for FoundTask {
    type Error = Error;

    fn try_from(row: AttentionRow) -> Result<Self> {
        let text = |json: Option<String>| match json {
            Some(json) => serde_json::from_str::<Option<Box<str>>>(&json).map_err(impossible),
            None => Ok(None),
        };
        Ok(Self {
            plan: row.plan.0,
            id: row.id.0,
            tenant: TenantId::parse(&row.tenant).map_err(impossible)?,
            status: TaskStatus::parse(&row.status).map_err(impossible)?,
            reason: text(row.reason)?,
            stage: row.stage.map(number).transpose()?.zip(text(row.stage_name)?),
        })
    }
}

/// The document of a plan's row.
pub(crate) fn plan_document(plan: &PlanState) -> String {
    text(&PlanDocument {
        name: boxed(plan.spec.name.as_deref()),
        max_concurrency: plan.spec.max_concurrency,
        on_failure: plan.spec.on_failure.as_str().to_owned(),
        timeout_ms: plan.spec.timeout_ms,
        intent: plan.intent.as_str().to_owned(),
        is_halted: plan.is_halted,
        is_over_time: plan.is_over_time,
        is_untimed: plan.is_untimed,
        started_at: plan.started_at.map(Timestamp::as_micros),
        traceparent: plan.traceparent.map(|parent| parent.to_string()),
    })
}

/// The document of a task's row.
pub(crate) fn task_document(task: &TaskState) -> String {
    let stage = |stage: &StageState| StageDocument {
        status: stage.status.as_str().to_owned(),
        job: stage.job.map(|job| job.to_string()),
    };
    let checkpoint = |checkpoint: &Checkpoint| CheckpointDocument {
        version: checkpoint.version,
        completed: checkpoint.completed,
        context: Box::from(&*checkpoint.context),
    };
    text(&TaskDocument {
        name: boxed(task.spec.name.as_deref()),
        config: boxed(task.spec.config.as_deref()),
        timeout_ms: task.spec.timeout_ms,
        intent: task.intent.as_str().to_owned(),
        run_at: task.run_at.map(Timestamp::as_micros),
        stages: task.stages.iter().map(stage).collect(),
        checkpoint: task.checkpoint.as_ref().map(checkpoint),
        last_checkpoint: task.last_checkpoint,
        waits_for: task.waits_for.map(|job| job.to_string()),
        failing: boxed(task.failing.as_deref()),
        reason: boxed(task.reason.as_deref()),
        traceparent: task.traceparent.map(|parent| parent.to_string()),
    })
}

/// The stages of a definition.
pub(crate) fn stages_document(stages: &[StageSpec]) -> String {
    let stage = |stage: &StageSpec| StageSpecDocument {
        name: Box::from(&*stage.name),
        payload: Box::from(&*stage.payload),
        pool: stage.needs.pool.as_ref().map(ToString::to_string),
        route: stage.needs.route.as_ref().map(|route| (route.source.to_string(), route.target.to_string())),
        requires: stage.needs.requires.iter().map(ToString::to_string).collect(),
        timeout_ms: stage.timeout_ms,
        max_attempts: stage.max_attempts,
        backoff: (stage.backoff.initial_ms, stage.backoff.factor_percent, stage.backoff.max_ms),
        on_unknown: stage.on_unknown.as_str().to_owned(),
    };
    text(&stages.iter().map(stage).collect::<Vec<_>>())
}

/// The document of an event in a step that the author asked for.
pub(crate) fn event_document(event: &PlanEvent, author: &Author) -> String {
    let nobody = Author::default();
    let author = if event.is_own { &nobody } else { author };
    text(&EventDocument {
        kind: event.kind.as_str(),
        run: event.run,
        stage: event.stage,
        before: event.before,
        after: event.after,
        reason: event.reason.as_deref().or(author.reason.as_deref()),
        principal: author.principal.as_deref(),
        request_id: author.request_id.as_deref(),
    })
}

/// The stages in the document of a definition.
pub(crate) fn stages(document: &str) -> Result<Arc<[StageSpec]>> {
    let documents: Vec<StageSpecDocument> = serde_json::from_str(document).map_err(impossible)?;
    let stage = |document: StageSpecDocument| {
        let route = match &document.route {
            Some((source, target)) => Some(Route {
                source: Language::parse(source).map_err(impossible)?,
                target: Language::parse(target).map_err(impossible)?,
            }),
            None => None,
        };
        let requires = document.requires.iter().map(|label| Label::parse(label).map_err(impossible));
        let (initial_ms, factor_percent, max_ms) = document.backoff;
        Ok(StageSpec {
            name: document.name.into(),
            payload: document.payload.into(),
            needs: Requirements {
                pool: optional(document.pool.as_ref(), |pool| PoolName::parse(pool).map_err(impossible))?,
                route,
                requires: requires.collect::<Result<_>>()?,
            },
            timeout_ms: document.timeout_ms,
            max_attempts: document.max_attempts,
            backoff: Backoff { initial_ms, factor_percent, max_ms },
            on_unknown: OnUnknown::parse(&document.on_unknown).map_err(impossible)?,
        })
    };
    documents.into_iter().map(stage).collect()
}

impl TryFrom<PlanRow> for PlanRecord {
    type Error = Error;

    fn try_from(row: PlanRow) -> Result<Self> {
        let document: PlanDocument = serde_json::from_str(&row.document).map_err(impossible)?;
        let spec = PlanSpec {
            name: document.name.map(Arc::from),
            max_concurrency: document.max_concurrency,
            on_failure: OnFailure::parse(&document.on_failure).map_err(impossible)?,
            timeout_ms: document.timeout_ms,
        };
        let plan = PlanState {
            intent: Intent::parse(&document.intent).map_err(impossible)?,
            is_halted: document.is_halted,
            is_over_time: document.is_over_time,
            is_untimed: document.is_untimed,
            started_at: document.started_at.map(Timestamp::from_micros),
            traceparent: document.traceparent.as_deref().and_then(TraceParent::parse),
            version: number(row.version)?,
            ..PlanState::new(row.id.0, Arc::new(spec), Vec::new())
        };
        Ok(Self {
            plan,
            status: plan_status(&row.status)?,
            created_at: row.created_at.0,
            finished_at: row.finished_at.map(|at| at.0),
        })
    }
}

impl TaskRow {
    /// Its plan.
    pub(crate) const fn plan(&self) -> PlanId {
        self.plan.0
    }
}

impl TryFrom<TaskRow> for TaskRecord {
    type Error = Error;

    fn try_from(row: TaskRow) -> Result<Self> {
        let document: TaskDocument = serde_json::from_str(&row.document).map_err(impossible)?;
        let stage = |stage: &StageDocument| {
            Ok(StageState {
                status: StageStatus::parse(&stage.status).map_err(impossible)?,
                job: optional(stage.job.as_ref(), job)?,
            })
        };
        let spec = TaskSpec {
            tenant: TenantId::parse(&row.tenant).map_err(impossible)?,
            name: document.name.map(Arc::from),
            config: document.config.map(Arc::from),
            timeout_ms: document.timeout_ms,
            stages: stages(&row.stages)?,
        };
        let checkpoint = document.checkpoint.map(|checkpoint| Checkpoint {
            version: checkpoint.version,
            completed: checkpoint.completed,
            context: checkpoint.context.into(),
        });
        let task = TaskState {
            id: row.id.0,
            spec: Arc::new(spec),
            definition: number(row.definition)?,
            status: TaskStatus::parse(&row.status).map_err(impossible)?,
            intent: Intent::parse(&document.intent).map_err(impossible)?,
            run: number(row.run)?,
            run_at: document.run_at.map(Timestamp::from_micros),
            stages: document.stages.iter().map(stage).collect::<Result<_>>()?,
            checkpoint,
            last_checkpoint: document.last_checkpoint,
            lock: row.fencing_token.map(Token::new),
            waits_for: optional(document.waits_for.as_ref(), job)?,
            failing: document.failing.map(Arc::from),
            reason: document.reason.map(Arc::from),
            traceparent: document.traceparent.as_deref().and_then(TraceParent::parse),
            version: number(row.version)?,
        };
        // Its owner looks stages up by their places in both lists.
        let stages = task.spec.stages.len();
        if task.stages.len() != stages {
            return Err(impossible("a task with another number of stages than its definition"));
        }
        if task.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.completed as usize > stages) {
            return Err(impossible("a checkpoint of more stages than the task has"));
        }
        let (plan, place) = (row.plan.0, number(row.place)?);
        Ok(Self { plan, place, task, is_lock_live: row.is_lock_live, updated_at: row.updated_at.0 })
    }
}

impl TryFrom<CheckpointRow> for CheckpointRecord {
    type Error = Error;

    fn try_from(row: CheckpointRow) -> Result<Self> {
        let (version, completed) = (number(row.version)?, number(row.completed)?);
        let checkpoint = Checkpoint { version, completed, context: row.context.into() };
        let (run, definition) = (number(row.run)?, number(row.definition)?);
        Ok(Self { checkpoint, run, definition, saved_at: row.saved_at.0 })
    }
}

impl TryFrom<EventRow> for TimedEvent {
    type Error = Error;

    fn try_from(row: EventRow) -> Result<Self> {
        let task: Option<TaskId> = row.task.map(|task| task.0);
        Ok(Self { seq: number(row.seq)?, at: row.at.0, task, document: row.document })
    }
}

/// The status of a plan, as its row has it.
pub(crate) fn plan_status(text: &str) -> Result<PlanStatus> {
    PlanStatus::parse(text).map_err(impossible)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of a task whose definition has these stages.
    fn read(task: &TaskState, definition: &[StageSpec]) -> Result<TaskRecord> {
        let row = TaskRow {
            id: TaskKey(task.id),
            plan: PlanKey(PlanId::from_u128(1)),
            place: 0,
            tenant: "t".to_owned(),
            status: task.status.as_str().to_owned(),
            run: 1,
            definition: 1,
            version: 1,
            document: task_document(task),
            updated_at: Moment(Timestamp::from_micros(0)),
            stages: stages_document(definition),
            fencing_token: None,
            is_lock_live: false,
        };
        TaskRecord::try_from(row)
    }

    #[test]
    fn a_task_that_contradicts_its_definition_is_not_read() {
        let stages = ["first", "second"].map(|name| StageSpec::new(name, "{}"));
        let spec = TaskSpec::new(TenantId::parse("t").unwrap(), stages.clone());
        let mut task = TaskState::new(TaskId::from_u128(1), Arc::new(spec));
        let is_impossible = |read: Result<TaskRecord>| matches!(read, Err(Error::Impossible(_)));
        assert!(read(&task, &stages).is_ok());
        assert!(is_impossible(read(&task, &stages[..1])));
        let checkpoint = |completed| Some(Checkpoint { version: 1, completed, context: Arc::from("{}") });
        task.checkpoint = checkpoint(2);
        assert!(read(&task, &stages).is_ok());
        task.checkpoint = checkpoint(3);
        assert!(is_impossible(read(&task, &stages)));
    }
}
