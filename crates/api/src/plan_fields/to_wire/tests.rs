//! What answers show of plans, tasks, locks and events.

use std::sync::Arc;

use domain::job::{Requirements, Route};
use domain::plan::{Checkpoint, PlanSpec, PlanState, StageState, TaskSpec};
use domain::{Label, Language, PlanId, PoolName, Resource, TenantId, Timestamp, Token};
use serde_json::{Value, json};

use super::*;
use crate::plan_fields::from_wire;

const JOB: JobId = JobId::from_u128(7);
const TASK: TaskId = TaskId::from_u128(2);
const AT: &str = "1970-01-01T00:00:00.000005Z";

fn at() -> Timestamp {
    Timestamp::from_micros(5)
}

/// The second of three stages failed.
fn record() -> TaskRecord {
    let stages = ["a", "b", "c"].map(|name| StageSpec::new(name, "{}"));
    let spec = TaskSpec { config: Some("[1.50]".into()), ..TaskSpec::new(tenant(), stages) };
    let mut task = TaskState::new(TASK, Arc::new(spec));
    task.status = TaskStatus::Failed;
    task.reason = Some("stage b: no".into());
    task.run = 2;
    task.run_at = Some(at());
    task.stages[0] = StageState { status: StageStatus::Skipped, job: None };
    task.stages[1] = StageState { status: StageStatus::Failed, job: Some(JOB) };
    task.checkpoint = Some(Checkpoint { version: 4, completed: 1, context: "{ \"x\":1}".into() });
    task.last_checkpoint = 6;
    task.waits_for = Some(JOB);
    task.lock = Some(Token::new(9));
    TaskRecord { plan: PlanId::from_u128(1), place: 3, task, is_lock_live: true, updated_at: at() }
}

fn tenant() -> TenantId {
    TenantId::parse("t").unwrap()
}

fn lock(owner: Option<&str>, expires_in_ms: u64) -> Lease {
    Lease {
        resource: Resource::tenant(&tenant()),
        owner: owner.map(|owner| InstanceId::parse(owner).unwrap()),
        token: Token::new(9),
        acquired_at: at(),
        renewed_at: at(),
        expires_in_ms,
    }
}

fn shown(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap()
}

#[test]
fn a_plan_shows_its_own_status_and_why_it_stands_still() {
    let spec = PlanSpec { name: Some("n".into()), on_failure: OnFailure::Continue, ..PlanSpec::default() };
    let mut state = PlanState::new(PlanId::from_u128(1), Arc::new(spec), Vec::new());
    state.is_halted = true;
    state.started_at = Some(at());
    let record =
        PlanRecord { plan: state, status: PlanStatus::Attention, created_at: at(), finished_at: None };
    let counts = [(TaskStatus::Failed, 2), (TaskStatus::Pending, 3)];
    assert_eq!(
        shown(&plan(&record, progress(counts), Vec::new())),
        json!({
            "id": "00000000-0000-0000-0000-000000000001", "name": "n", "status": "ATTENTION",
            "max_concurrency": 5, "on_failure": "continue", "timeout_ms": 7_200_000, "intent": "run",
            "halted": true, "over_time": false,
            "progress": {
                "total": 5, "pending": 3, "running": 0, "succeeded": 0, "failed": 2, "paused": 0,
                "interrupted": 0, "cancelled": 0,
            },
            "created_at": AT, "started_at": AT, "finished_at": null, "attention": [],
        })
    );
}

#[test]
fn a_plan_is_never_shown_as_started_before_it_was_made() {
    for (started_at, shown_at) in [(4, AT), (5, AT), (6, "1970-01-01T00:00:00.000006Z")] {
        let mut state = PlanState::new(PlanId::from_u128(1), Arc::default(), Vec::new());
        state.started_at = Some(Timestamp::from_micros(started_at));
        let record =
            PlanRecord { plan: state, status: PlanStatus::Running, created_at: at(), finished_at: None };
        let plan = shown(&plan(&record, progress([]), Vec::new()));
        assert_eq!((&plan["created_at"], &plan["started_at"]), (&json!(AT), &json!(shown_at)));
    }
}

#[test]
fn every_status_is_counted_once_and_named_as_the_ledger_names_it() {
    let counted = shown(&progress(TaskStatus::ALL.iter().map(|status| (*status, 1))));
    for (name, count) in counted.as_object().unwrap() {
        assert_eq!(count.as_u64(), Some(if name == "total" { 7 } else { 1 }), "{name}");
    }
    assert!(TaskStatus::ALL.iter().all(|one| task_status(*one).as_str() == one.as_str()));
    assert!(PlanStatus::ALL.iter().all(|one| plan_status(*one).as_str() == one.as_str()));
    assert!(StageStatus::ALL.iter().all(|one| stage_status(*one).as_str() == one.as_str()));
    assert!(Intent::ALL.iter().all(|one| intent(*one).as_str() == one.as_str()));
}

#[test]
fn a_task_shows_everything_and_a_list_leaves_out_what_is_long_or_read_apart() {
    let record = record();
    let details = TaskDetails {
        attempts: HashMap::from([(JOB, 2)]),
        // The retry has patched its context.
        saved: Some(saved(Checkpoint { version: 4, completed: 1, context: "{\"x\":0}".into() })),
        lock: task_lock(&lock(Some(&format!("task:{TASK}")), 100), TASK),
    };
    let whole = shown(&task(&record, &details).unwrap());
    let stage = |name, status, job: Value, attempts: Value| json!({ "name": name, "status": status, "job": job, "attempts": attempts });
    assert_eq!(
        whole,
        json!({
            "id": TASK.to_string(), "plan": "00000000-0000-0000-0000-000000000001", "place": 4, "tenant": "t",
            "name": null, "status": "FAILED", "intent": "run", "reason": "stage b: no", "run": 2, "run_at": AT,
            "timeout_ms": 600_000, "definition": 1, "stage": 2,
            "stages": [
                stage("a", "SKIPPED", Value::Null, json!(0)),
                stage("b", "FAILED", json!(JOB.to_string()), json!(2)),
                stage("c", "PENDING", Value::Null, json!(0)),
            ],
            "has_checkpoint": true,
            "checkpoint": {
                "version": 4, "completed_stages": ["a"], "last_completed": 1, "saved_at": AT,
                "context": { "x": 0 },
            },
            "checkpoint_version": 6, "context": { "x": 1 }, "config": [1.5],
            "lock": { "token": 9, "expires_in_ms": 100 }, "lock_token": 9, "waits_for": JOB.to_string(), "updated_at": AT,
        })
    );
    let ran_out = TaskRecord { is_lock_live: false, ..record.clone() };
    assert!(shown(&listed_task(&ran_out)).get("lock_token").is_none(), "nobody holds it");
    let listed = shown(&listed_task(&record));
    let left_out: Vec<_> =
        whole.as_object().unwrap().keys().filter(|key| listed.get(key).is_none()).collect();
    assert_eq!(left_out, ["config", "context", "lock"]);
    assert!(listed["checkpoint"].get("context").is_none() && listed["stages"][1].get("attempts").is_none());
}

#[test]
fn json_of_the_caller_stays_as_it_was_written() {
    let text = serde_json::to_string(&task(&record(), &TaskDetails::default()).unwrap()).unwrap();
    assert!(text.contains(r#""context":{ "x":1}"#) && text.contains(r#""config":[1.50]"#), "{text}");
}

#[test]
fn a_task_without_checkpoint_lock_and_job_says_so() {
    let mut record = record();
    record.task.checkpoint = None;
    record.task.waits_for = None;
    let whole = shown(&task(&record, &TaskDetails::default()).unwrap());
    assert_eq!((&whole["has_checkpoint"], &whole["checkpoint"]), (&json!(false), &Value::Null));
    assert_eq!((&whole["context"], &whole["lock"]), (&json!({}), &Value::Null));
    assert!(whole["lock"].is_null() && whole.get("lock").is_some(), "null is shown");
    assert!(whole["stages"][1].get("attempts").is_none(), "the job was purged");
    // A retry from the start was given a context. That is no checkpoint.
    record.task.checkpoint = Some(Checkpoint { version: 0, completed: 0, context: "{\"y\":2}".into() });
    let whole = shown(&task(&record, &TaskDetails::default()).unwrap());
    assert_eq!((&whole["has_checkpoint"], &whole["checkpoint"]), (&json!(false), &Value::Null));
    assert_eq!(whole["context"], json!({ "y": 2 }));
    record.task.stages.iter_mut().for_each(|stage| stage.status = StageStatus::Succeeded);
    assert_eq!(shown(&listed_task(&record))["stage"], Value::Null, "all stages are completed");
}

#[test]
fn who_must_look_learns_where_and_why() {
    let found = FoundTask {
        plan: PlanId::from_u128(1),
        id: TASK,
        tenant: tenant(),
        status: TaskStatus::Failed,
        reason: Some("stage b: no".into()),
        stage: Some((1, "b".into())),
    };
    assert_eq!(
        shown(&attention(&found)),
        json!({
            "task": TASK.to_string(), "tenant": "t", "status": "FAILED", "reason": "stage b: no", "stage": 2,
            "stage_name": "b",
        })
    );
}

#[test]
fn a_lock_is_a_tasks_only_while_it_is_live_and_that_task_has_it() {
    let (mine, other) = (format!("task:{TASK}"), format!("task:{}", TaskId::from_u128(3)));
    for (owner, expires_in_ms, is_mine) in [
        (Some(mine.as_str()), 1, true),
        (Some(mine.as_str()), 0, false),
        (Some(other.as_str()), 1, false),
        (Some("instance-1"), 1, false),
        (Some("task:x"), 1, false),
        (None, 1, false),
    ] {
        let lock = lock(owner, expires_in_ms);
        assert_eq!(task_lock(&lock, TASK).is_some(), is_mine, "{lock:?}");
        let holder = lock_holder(&lock);
        assert_eq!(holder.is_some(), is_mine || owner == Some(other.as_str()), "{lock:?}");
    }
}

#[test]
fn the_stages_of_a_task_are_shown_whole_and_a_retry_takes_them_as_they_are_shown() {
    let mut record = record();
    let stage = StageSpec {
        needs: Requirements {
            pool: Some(PoolName::parse("p").unwrap()),
            route: Some(Route {
                source: Language::parse("zh").unwrap(),
                target: Language::parse("en").unwrap(),
            }),
            requires: ["big", "gpu"].map(|label| Label::parse(label).unwrap()).into(),
        },
        timeout_ms: 7,
        max_attempts: 3,
        backoff: domain::job::Backoff { initial_ms: 5, factor_percent: 150, max_ms: 9 },
        on_unknown: OnUnknown::Rerun,
        ..StageSpec::new("d", "{ \"at\": 1.50 }")
    };
    Arc::make_mut(&mut record.task.spec).stages = [StageSpec::new("a", "null"), stage].into();
    let whole = definition(&record).unwrap();
    let text = serde_json::to_string(&whole).unwrap();
    let expected = [
        r#"{"name":"a","payload":null,"timeout_ms":60000,"max_attempts":1,"#,
        r#""backoff":{"initial_ms":1000,"factor":2.0,"max_ms":60000},"on_unknown":"confirm"},"#,
        r#"{"name":"d","payload":{ "at": 1.50 },"requires":["big","gpu"],"pool":"p","#,
        r#""route":{"source":"zh","target":"en"},"timeout_ms":7,"max_attempts":3,"#,
        r#""backoff":{"initial_ms":5,"factor":1.5,"max_ms":9},"on_unknown":"rerun"}"#,
    ];
    let stages = expected.concat();
    let begin = format!(r#"{{"task":"{TASK}","run":2,"checkpoint_version":6,"definition":1,"stages":["#);
    assert_eq!(text, format!("{begin}{stages}]}}"));
    let asked = format!(r#"{{"from":"checkpoint","reason":"r","stages":[{stages}]}}"#);
    let retry = from_wire::retry(&serde_json::from_str(&asked).unwrap()).unwrap();
    assert_eq!(retry.stages.as_ref(), Some(&record.task.spec.stages));
}

fn saved(checkpoint: Checkpoint) -> CheckpointRecord {
    CheckpointRecord { checkpoint, run: 1, definition: 1, saved_at: at() }
}

#[test]
fn a_checkpoint_names_the_stages_that_it_covers() {
    let saved = saved(Checkpoint { version: 2, completed: 2, context: "{}".into() });
    let stages = ["a", "b", "c"].map(Arc::from);
    let whole = json!({
        "version": 2, "run": 1, "completed_stages": ["a", "b"], "last_completed": 2, "saved_at": AT, "context": {},
    });
    assert_eq!(shown(&checkpoint(&saved, &stages).unwrap()), whole);
    // An older definition may have had more stages.
    assert_eq!(shown(&checkpoint(&saved, &stages[..1]).unwrap())["completed_stages"], json!(["a"]));
}

#[test]
fn an_event_shows_all_its_fields_and_null_for_those_that_it_has_not() {
    let timed = |task, document: &str| TimedEvent { seq: 3, at: at(), task, document: document.to_owned() };
    let document = r#"{"kind":"stage","run":1,"stage":0,"before":"PENDING","after":"RUNNING","reason":"r","principal":"p","request_id":"q"}"#;
    assert_eq!(
        shown(&event(&timed(Some(TASK), document)).unwrap()),
        json!({
            "seq": 3, "at": AT, "task": TASK.to_string(), "kind": "stage", "run": 1, "stage": 1,
            "before": "PENDING", "after": "RUNNING", "reason": "r", "principal": "p", "request_id": "q",
        })
    );
    assert_eq!(
        shown(&event(&timed(None, r#"{"kind":"taken_over","later":1}"#)).unwrap()),
        json!({
            "seq": 3, "at": AT, "task": null, "kind": "taken_over", "run": null, "stage": null, "before": null,
            "after": null, "reason": null, "principal": null, "request_id": null,
        })
    );
    assert!(event(&timed(None, "{}")).is_err(), "the ledger never has such an event");
}
