//! What requests become, with and without their optional fields, and how refusals name the field.

use actors::plans::RetryFrom;
use domain::job::{Backoff, Requirements};
use domain::{Label, PoolName};
use serde_json::{Value, json};
use wire::Code;

use super::*;

fn asked<T: serde::de::DeserializeOwned>(body: &Value) -> T {
    serde_json::from_str(&body.to_string()).expect("the shape is right")
}

fn refused<T>(read: Result<T, Refusal>) -> String {
    let (code, detail) = read.err().expect("the request is refused").code_and_detail();
    assert_eq!(code, Code::Invalid, "{detail}");
    detail
}

fn stage_with(field: &str, value: Value) -> Value {
    let mut stage = json!({ "name": "s", "payload": 1 });
    stage[field] = value;
    stage
}

fn task_with(field: &str, value: Value) -> Value {
    let mut task = json!({ "tenant": "t", "stages": [{ "name": "s", "payload": 1 }] });
    task[field] = value;
    task
}

#[test]
fn a_plan_that_names_nothing_gets_the_defaults() {
    let body = json!({ "tasks": [{ "tenant": "t", "stages": [{ "name": "s", "payload": [1.50, null] }] }] });
    let (spec, tasks) = plan(&asked(&body)).unwrap();
    assert_eq!(spec, PlanSpec::default());
    let [task] = tasks.as_slice() else { panic!("{tasks:?}") };
    assert_eq!(*task, TaskSpec::new(TenantId::parse("t").unwrap(), [StageSpec::new("s", "[1.5,null]")]));
    assert_eq!((spec.max_concurrency, spec.timeout_ms, task.timeout_ms), (5, 7_200_000, 600_000));
    assert_eq!((task.stages[0].timeout_ms, task.stages[0].max_attempts), (60_000, 1));
}

#[test]
fn everything_that_a_plan_names_is_taken() {
    let stage = json!({
        "name": "s", "payload": {}, "requires": ["b", "a", "b"], "pool": "p",
        "route": { "source": "zh", "target": "en" }, "timeout_ms": 1, "max_attempts": 2,
        "backoff": { "initial_ms": 3, "factor": 1.5, "max_ms": 4 }, "on_unknown": "rerun",
    });
    let body = json!({
        "name": "n", "max_concurrency": 100, "on_failure": "pause", "timeout_ms": 604_800_000,
        "tasks": [{ "tenant": "t", "name": "m", "config": null, "timeout_ms": 7, "stages": [stage] }],
    });
    let (spec, tasks) = plan(&asked(&body)).unwrap();
    assert_eq!((spec.name.as_deref(), spec.max_concurrency), (Some("n"), 100));
    assert_eq!((spec.on_failure, spec.timeout_ms), (OnFailure::Pause, 604_800_000));
    let task = &tasks[0];
    assert_eq!((task.name.as_deref(), task.config.as_deref(), task.timeout_ms), (Some("m"), Some("null"), 7));
    let stage = &task.stages[0];
    let label = |text| Label::parse(text).unwrap();
    assert_eq!(
        stage.needs,
        Requirements {
            pool: Some(PoolName::parse("p").unwrap()),
            route: Some(domain::job::Route::parse("zh:en").unwrap()),
            requires: vec![label("a"), label("b")],
        }
    );
    assert_eq!((stage.timeout_ms, stage.max_attempts, stage.on_unknown), (1, 2, OnUnknown::Rerun));
    assert_eq!(stage.backoff, Backoff { initial_ms: 3, factor_percent: 150, max_ms: 4 });
    let words = [
        (shape::OnFailure::StopNew, OnFailure::StopNew),
        (shape::OnFailure::Continue, OnFailure::Continue),
        (shape::OnFailure::Pause, OnFailure::Pause),
    ];
    assert!(words.into_iter().all(|(word, meant)| on_failure(word).unwrap() == meant));
}

#[test]
fn what_is_refused_names_its_field_with_the_task_and_the_stage() {
    let control = "a\nb";
    let stages = |stage: Value| json!([{ "name": "first", "payload": 1 }, stage]);
    for (field, value, says) in [
        ("name", json!(control), "name must be 1 to 128 characters without control characters"),
        ("pool", json!("a b"), "pool must be 1 to 64 characters"),
        ("requires", json!(["a/b"]), "requires must be labels of 1 to 64 characters"),
        ("route", json!({ "source": "z h", "target": "en" }), "route.source must be"),
        ("backoff", json!({ "initial_ms": 2, "max_ms": 1 }), "backoff.max_ms must be"),
        ("name", json!("first"), "name must be another one for each stage of a task"),
    ] {
        let stages = stages(stage_with(field, value));
        let body = json!({ "tasks": [task_with("tenant", json!("u")), task_with("stages", stages.clone())] });
        let detail = refused(plan(&asked(&body)));
        assert!(detail.contains(says), "{field}: {detail}");
        assert!(detail.contains("tasks[1]") && detail.contains("stages[1]"), "{field}: {detail}");
        let detail = refused(retry(&asked(&json!({ "from": "start", "reason": "r", "stages": stages }))));
        assert!(detail.contains(says) && detail.contains("stages[1]"), "{field}: {detail}");
    }
    for (field, value, says) in [
        ("tenant", json!("a/b"), "tasks[1].tenant must be 1 to 128 characters"),
        ("tenant", json!("u"), "tasks[1].tenant must be another one for each task of a plan"),
        ("name", json!(control), "tasks[1].name must be 1 to 128 characters without control characters"),
    ] {
        let body = json!({ "tasks": [task_with("tenant", json!("u")), task_with(field, value)] });
        let detail = refused(plan(&asked(&body)));
        assert!(detail.contains(says), "{field}: {detail}");
    }
    let body = json!({ "name": control, "tasks": [task_with("tenant", json!("t"))] });
    assert!(refused(plan(&asked(&body))).starts_with("name must be 1 to 128 characters"));
}

#[test]
fn a_resolution_brings_a_context_only_with_done() {
    let read = |body: Value| resolution(&asked(&body));
    let done = read(json!({ "outcome": "done", "reason": "r" })).unwrap();
    assert_eq!(done, Resolution::Done(None));
    let done = read(json!({ "outcome": "done", "reason": "r", "context": { "a": 1 } })).unwrap();
    assert_eq!(done, Resolution::Done(Some("{\"a\":1}".into())));
    assert_eq!(read(json!({ "outcome": "not_done", "reason": "r" })).unwrap(), Resolution::NotDone);
    let detail = refused(read(json!({ "outcome": "not_done", "reason": "r", "context": {} })));
    assert_eq!(detail, "context goes with the outcome done only");
}

#[test]
fn everything_that_a_retry_names_is_taken() {
    for (from, meant) in [
        (json!("checkpoint"), RetryFrom::Checkpoint),
        (json!("start"), RetryFrom::Start),
        (json!({ "checkpoint_version": 7 }), RetryFrom::Version(7)),
    ] {
        let wanted = retry(&asked(&json!({ "from": from, "reason": "r" }))).unwrap();
        assert_eq!((wanted.from, &*wanted.reason), (meant, "r"));
        assert!(wanted.expect.is_none() && wanted.context_patch.is_none() && wanted.stages.is_none());
        assert!(wanted.config.is_none() && wanted.max_attempts.is_none());
    }
    let body = json!({
        "from": "start", "expect": { "run": 2, "checkpoint_version": 3 }, "context_patch": { "a": null },
        "stages": [{ "name": "s", "payload": 1 }], "config": [true], "max_attempts": 4, "reason": "r",
    });
    let wanted = retry(&asked(&body)).unwrap();
    assert_eq!(wanted.expect, Some(Seen { run: 2, checkpoint_version: 3 }));
    assert_eq!(wanted.context_patch.as_deref(), Some(r#"{"a":null}"#));
    assert_eq!(wanted.stages.as_deref(), Some(&[StageSpec::new("s", "1")][..]));
    assert_eq!((wanted.config.as_deref(), wanted.max_attempts), (Some("[true]"), Some(4)));
}
