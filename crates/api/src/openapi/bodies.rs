//! The schemas of what requests have in their bodies beside the readers of bodies.

use std::collections::BTreeSet;

use domain::job::Backoff;
use domain::limits as l;
use regex_lite::Regex;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::limits::BULK_RATE_DEFAULT;

fn document() -> Value {
    serde_json::from_str(&super::document()).unwrap()
}

/// More characters than any text of a request may have.
const LONG_CHARS: usize = 100_000;

/// The schema of a request or of a part of one, the shortest body that it allows, and whether the daemon reads a body.
type Request = (&'static str, Value, fn(&Value) -> bool);

fn request<T: DeserializeOwned>(schema: &'static str, shortest: Value) -> Request {
    (schema, shortest, |body| serde_json::from_str::<T>(&body.to_string()).is_ok())
}

fn requests() -> Vec<Request> {
    use wire::{bulk, cluster, ids, jobs, nodes, nonces, plans, sessions, worker};
    let settlement = json!({ "nonce": 0, "hold": "h", "outcome": "unknown" });
    let stage = json!({ "name": "s", "payload": 1 });
    let task = json!({ "tenant": "t", "stages": [stage] });
    vec![
        request::<jobs::Backoff>("Backoff", json!({})),
        request::<bulk::BulkFilter>("BulkFilter", json!({})),
        request::<bulk::BulkRequest>("BulkRequest", json!({ "action": "retry", "filter": {} })),
        request::<plans::CheckpointVersion>("CheckpointVersion", json!({ "checkpoint_version": 1 })),
        request::<nonces::ConfirmRequest>("ConfirmRequest", json!({ "next_nonce": 0 })),
        request::<nonces::ConsumeRequest>("ConsumeRequest", json!({ "hold": "h" })),
        request::<plans::ExpectedRun>("ExpectedRun", json!({ "run": 1 })),
        request::<plans::ExpectedTask>("ExpectedTask", json!({ "run": 1, "checkpoint_version": 0 })),
        request::<nonces::GrantRequest>("GrantRequest", json!({})),
        request::<jobs::JobRequest>("JobRequest", json!({ "payload": 1 })),
        request::<jobs::JobsRequest>("JobsRequest", json!({ "jobs": [{ "payload": 1 }] })),
        request::<worker::Load>("Load", json!({})),
        request::<cluster::ModeRequest>("ModeRequest", json!({ "mode": "basic", "version": 1 })),
        request::<nodes::PauseRequest>("PauseRequest", json!({ "reason": "r" })),
        request::<plans::PlanRequest>("PlanRequest", json!({ "tasks": [task] })),
        request::<plans::PlanResumeRequest>("PlanResumeRequest", json!({})),
        request::<nonces::PolicyRequest>("PolicyRequest", json!({})),
        request::<nodes::Pool>("Pool", json!({ "name": "p" })),
        request::<nodes::PoolsRequest>("PoolsRequest", json!({ "version": 1, "pools": [] })),
        request::<plans::ReasonRequest>("ReasonRequest", json!({})),
        request::<nonces::ReleaseRequest>("ReleaseRequest", json!({ "hold": "h", "outcome": "unknown" })),
        request::<nonces::ResolveRequest>("ResolveRequest", json!({ "outcome": "never_sent" })),
        request::<jobs::RetryRequest>("RetryRequest", json!({})),
        request::<jobs::Route>("Route", json!({ "source": "zh", "target": "en" })),
        request::<ids::SegmentRequest>("SegmentRequest", json!({})),
        request::<nodes::SelectRequest>("SelectRequest", json!({})),
        request::<ids::SequenceRequest>("SequenceRequest", json!({})),
        request::<sessions::SessionRequest>("SessionRequest", json!({})),
        request::<nonces::Settlement>("Settlement", settlement.clone()),
        request::<nonces::SettlementsRequest>("SettlementsRequest", json!({ "settlements": [settlement] })),
        request::<plans::StageRequest>("StageRequest", stage),
        request::<plans::StageResolveRequest>(
            "StageResolveRequest",
            json!({ "outcome": "not_done", "reason": "r" }),
        ),
        request::<plans::TaskCancelRequest>("TaskCancelRequest", json!({})),
        request::<plans::TaskRequest>("TaskRequest", task),
        request::<plans::TaskRetryRequest>("TaskRetryRequest", json!({ "from": "start", "reason": "r" })),
        request::<plans::UnlockRequest>("UnlockRequest", json!({ "token": 1, "reason": "r" })),
    ]
}

/// Whether nothing in the schema keeps a text, such as this one, from being of any length.
fn is_of_any_length(schema: &Value, text: &str) -> bool {
    has_type(schema, "string")
        && ["maxLength", "format", "enum"].iter().all(|key| schema[key].is_null())
        && schema["pattern"].as_str().is_none_or(|pattern| Regex::new(pattern).unwrap().is_match(text))
}

fn has_type(schema: &Value, name: &str) -> bool {
    let kind = &schema["type"];
    kind == name || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == name))
}

/// Values at the limits of a field and beyond them, each with whether the schema of the field allows it. `shortest` is the
/// shortest body that another schema allows.
fn at_limits(field: &Value, shortest: impl Fn(&Value) -> Value) -> Vec<(Value, bool)> {
    let is_any = field["type"].is_null() && field["$ref"].is_null();
    let mut samples = vec![(Value::Null, is_any || has_type(field, "null"))];
    if has_type(field, "number") {
        let (least, most) = (field["minimum"].as_f64(), field["maximum"].as_f64());
        for (limit, beyond, any) in [(least, -0.5, f64::MIN), (most, 0.5, f64::MAX)] {
            match limit {
                Some(limit) => {
                    samples.extend([(Value::from(limit), true), (Value::from(limit + beyond), false)]);
                }
                None => samples.push((Value::from(any), true)),
            }
        }
    } else {
        if let Some(most) = field["maximum"].as_u64() {
            samples.extend([(Value::from(most), true), (Value::from(most + 1), false)]);
        }
        if let Some(least) = field["minimum"].as_i64() {
            samples.extend([(Value::from(least), true), (Value::from(least - 1), false)]);
        }
    }
    let long = "x".repeat(LONG_CHARS);
    let text = |chars: u64| Value::from("x".repeat(chars as usize));
    if is_of_any_length(field, &long) {
        samples.push((Value::from(long.as_str()), true));
    }
    if let Some(most) = field["maxLength"].as_u64() {
        samples.extend([(text(most), true), (text(most + 1), false)]);
        samples.push((text(0), field["minLength"].is_null()));
    }
    if has_type(field, "array") {
        let (items, most) = (&field["items"], field["maxItems"].as_u64().unwrap());
        let item = if items["$ref"].is_string() { shortest(&items["$ref"]) } else { text(1) };
        let list = |count: u64| Value::from(vec![item.clone(); count as usize]);
        samples.extend([(list(most), true), (list(most + 1), false)]);
        samples.push((list(0), field["minItems"].is_null()));
        let of_one = |item: Value| Value::from(vec![item]);
        if is_of_any_length(items, &long) {
            samples.push((of_one(Value::from(long)), true));
        }
        if let Some(most) = items["maxLength"].as_u64() {
            samples.extend([(of_one(text(most)), true), (of_one(text(most + 1)), false)]);
        }
    }
    samples
}

#[test]
fn every_body_has_the_fields_and_the_limits_of_its_schema() {
    let document = document();
    let (schemas, requests) = (document["components"]["schemas"].as_object().unwrap(), requests());
    let closed = schemas.iter().filter(|(_, schema)| schema["additionalProperties"] == false);
    let closed: BTreeSet<_> = closed.map(|(name, _)| name.as_str()).collect();
    assert_eq!(closed, requests.iter().map(|(name, _, _)| *name).collect());
    let shortest = |reference: &Value| {
        let name = reference.as_str().unwrap().rsplit('/').next().unwrap();
        requests.iter().find(|(known, _, _)| *known == name).unwrap().1.clone()
    };
    for (name, body, reads) in &requests {
        let (schema, fields) = (&schemas[*name], body.as_object().unwrap());
        let required = schema["required"].as_array().into_iter().flatten();
        let required: BTreeSet<_> = required.map(|field| field.as_str().unwrap()).collect();
        assert_eq!(required, fields.keys().map(String::as_str).collect(), "{name}");
        assert!(reads(body), "{name}: {body}");
        let with = |field: &str, value: Value| {
            let mut body = body.clone();
            body[field] = value;
            reads(&body)
        };
        for field in required {
            let mut less = fields.clone();
            less.remove(field);
            assert!(!reads(&Value::from(less)), "{name} without {field}");
        }
        assert!(!with("unknown", Value::from(1)), "{name} with an unknown field");
        for (field, property) in schema["properties"].as_object().unwrap() {
            for (n, (value, is_allowed)) in at_limits(property, shortest).into_iter().enumerate() {
                assert_eq!(with(field, value), is_allowed, "{name}.{field}, value {n}: {property}");
            }
        }
    }
}

#[test]
fn the_defaults_of_bodies_are_those_of_the_daemon() {
    let backoff = Backoff::default();
    let expected = json!({
        "Backoff": { "initial_ms": backoff.initial_ms, "factor": backoff.factor_percent / 100 },
        "BulkRequest": { "rate": BULK_RATE_DEFAULT, "dry_run": false },
        "GrantRequest": { "count": 1 },
        "JobRequest": {
            "priority": 0,
            "timeout_ms": l::JOB_TIMEOUT_MS_DEFAULT,
            "max_attempts": l::MAX_ATTEMPTS_DEFAULT,
        },
        "PlanRequest": {
            "max_concurrency": l::PLAN_CONCURRENCY_DEFAULT,
            "on_failure": "stop_new",
            "timeout_ms": l::PLAN_TIMEOUT_MS_DEFAULT,
            "start": false,
        },
        "PlanResumeRequest": { "keep_paused": false },
        "Pool": { "weight": 1 },
        "SessionRequest": { "ordering": "strict", "idle_ms": l::SESSION_IDLE_MS_DEFAULT },
        "StageRequest": {
            "timeout_ms": l::STAGE_TIMEOUT_MS_DEFAULT,
            "max_attempts": 1,
            "on_unknown": "confirm",
        },
        "TaskRequest": { "timeout_ms": l::TASK_TIMEOUT_MS_DEFAULT },
        "TaskRetryRequest": { "dry_run": false },
    });
    let (document, mut found) = (document(), json!({}));
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for (field, property) in schema["properties"].as_object().into_iter().flatten() {
            if !property["default"].is_null() {
                found[name][field] = property["default"].clone();
            }
        }
    }
    assert_eq!(found, expected);
}
