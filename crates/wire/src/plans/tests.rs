//! The shapes of plans both ways, and what is refused.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::*;
use crate::limits::{CONTEXT_BYTES_MAX, PLAN_NAME_CHARS_MAX, REASON_CHARS_MAX, TASK_CONFIG_BYTES_MAX};

fn keeps<T: DeserializeOwned + Serialize>(texts: &[&str]) {
    for text in texts {
        let read: T = serde_json::from_str(text).expect(text);
        assert_eq!(serde_json::to_string(&read).unwrap(), *text);
    }
}

fn refuses<T: for<'de> Deserialize<'de> + std::fmt::Debug>(cases: &[(&str, &str)]) {
    for (body, says) in cases {
        let message = serde_json::from_str::<T>(body).expect_err(body).to_string();
        assert!(message.contains(says), "{body}: {message}");
    }
}

#[test]
fn requests_are_written_as_they_are_read() {
    keeps::<PlanRequest>(&[
        r#"{"tasks":[{"tenant":"t","stages":[{"name":"s","payload":{ "a": 1.50 }}]}]}"#,
        r#"{"name":"p","max_concurrency":100,"on_failure":"continue","timeout_ms":1,"start":true,"tasks":[{"tenant":"t","name":"n","config":{"b" :null},"timeout_ms":2,"stages":[{"name":"s","payload":null,"requires":["gpu"],"pool":"p","route":{"source":"zh","target":"en"},"timeout_ms":3,"max_attempts":4,"backoff":{"initial_ms":5},"on_unknown":"rerun"}]}]}"#,
        r#"{"tasks":[{"tenant":"t","config":null,"stages":[{"name":"s","payload":1}]}]}"#,
    ]);
    keeps::<ReasonRequest>(&["{}", r#"{"reason":"r"}"#]);
    keeps::<PlanResumeRequest>(&["{}", r#"{"reason":"r"}"#, r#"{"reason":"r","keep_paused":true}"#]);
    keeps::<TaskCancelRequest>(&["{}", r#"{"reason":"r"}"#, r#"{"reason":"r","expect":{"run":100}}"#]);
    keeps::<StageResolveRequest>(&[
        r#"{"outcome":"done","context":{"a" :1},"reason":"r"}"#,
        r#"{"outcome":"not_done","job":"j","reason":"r"}"#,
    ]);
    keeps::<TaskRetryRequest>(&[
        r#"{"from":"checkpoint","reason":"r"}"#,
        r#"{"from":{"checkpoint_version":7},"expect":{"run":1,"checkpoint_version":0},"context_patch":{"a":null},"stages":[{"name":"s","payload":1}],"config":[1],"max_attempts":2,"reason":"r","dry_run":true}"#,
    ]);
    keeps::<UnlockRequest>(&[r#"{"token":9223372036854775807,"reason":"r"}"#]);
}

#[test]
fn what_is_wrong_with_a_plan_is_said() {
    let stage = |fields: &str| format!(r#"{{"tasks":[{{"tenant":"t","stages":[{{{fields}}}]}}]}}"#);
    let task = |fields: &str| format!(r#"{{"tasks":[{{"stages":[{{"name":"s","payload":1}}]{fields}}}]}}"#);
    let plan = |fields: &str| {
        format!(r#"{{"tasks":[{{"tenant":"t","stages":[{{"name":"s","payload":1}}]}}]{fields}}}"#)
    };
    let long = "x".repeat(PLAN_NAME_CHARS_MAX + 1);
    let large = format!(r#","tenant":"t","config":"{}""#, "x".repeat(TASK_CONFIG_BYTES_MAX));
    for (body, says) in [
        ("{}".to_owned(), "missing field `tasks`"),
        (r#"{"tasks":[]}"#.to_owned(), "1 to 1000 objects"),
        (r#"{"tasks":{}}"#.to_owned(), "1 to 1000 objects"),
        (r#"{"tasks":[["t",[]]]}"#.to_owned(), "an object"),
        (plan(r#","name":"""#), "1 to 128 characters"),
        (plan(r#","name":null"#), "1 to 128 characters"),
        (plan(r#","max_concurrency":0"#), "from 1 to 100"),
        (plan(r#","max_concurrency":101"#), "from 1 to 100"),
        (plan(r#","on_failure":"stop""#), "one of \"stop_new\", \"continue\", \"pause\""),
        (plan(r#","on_failure":null"#), "one of"),
        (plan(r#","timeout_ms":604800001"#), "from 1 to 604800000"),
        (plan(r#","start":1"#), "a boolean"),
        (plan(r#","start":null"#), "a boolean"),
        (plan(r#","status":"CREATED""#), "unknown field"),
        (task(""), "missing field `tenant`"),
        (task(r#","tenant":"t","tenant":"t""#), "duplicate field"),
        (task(r#","tenant":"t","timeout_ms":0"#), "from 1 to 604800000"),
        (task(r#","tenant":"t","intent":"run""#), "unknown field"),
        (task(&large), "at most 65536 bytes"),
        (r#"{"tasks":[{"tenant":"t","stages":[]}]}"#.to_owned(), "1 to 100 objects"),
        (stage(r#""payload":1"#), "missing field `name`"),
        (stage(r#""name":"s""#), "missing field `payload`"),
        (stage(&format!(r#""name":"{long}","payload":1"#)), "1 to 128 characters"),
        (stage(r#""name":"s","payload":1,"timeout_ms":86400001"#), "from 1 to 86400000"),
        (stage(r#""name":"s","payload":1,"max_attempts":101"#), "from 1 to 100"),
        (stage(r#""name":"s","payload":1,"on_unknown":"run""#), "one of \"confirm\", \"rerun\""),
        (stage(r#""name":"s","payload":1,"backoff":[1]"#), "an object"),
        (stage(r#""name":"s","payload":1,"route":null"#), "an object"),
        (stage(r#""name":"s","payload":1,"requires":"gpu""#), "a list of at most 16 texts"),
        (stage(r#""name":"s","payload":1,"priority":1"#), "unknown field"),
    ] {
        refuses::<PlanRequest>(&[(&body, says)]);
    }
}

#[test]
fn what_is_wrong_with_a_change_is_said() {
    let long = format!(r#"{{"reason":"{}"}}"#, "x".repeat(REASON_CHARS_MAX + 1));
    refuses::<ReasonRequest>(&[
        (r#"{"reason":""}"#, "1 to 1024 characters"),
        (r#"{"reason":null}"#, "1 to 1024 characters"),
        (r#"{"reason":"\u0000"}"#, "a text with the character NUL, expected a text of 1 to 1024 characters"),
        (r#"{"why":"r"}"#, "unknown field"),
        (&long, "1 to 1024 characters"),
    ]);
    refuses::<PlanResumeRequest>(&[
        (r#"{"reason":""}"#, "1 to 1024 characters"),
        (r#"{"keep_paused":null}"#, "a boolean"),
        (r#"{"keep_paused":"true"}"#, "a boolean"),
        (r#"{"tasks":true}"#, "unknown field"),
    ]);
    refuses::<TaskCancelRequest>(&[
        (r#"{"reason":null}"#, "1 to 1024 characters"),
        (r#"{"expect":null}"#, "an object"),
        (r#"{"expect":{}}"#, "missing field `run`"),
        (r#"{"expect":{"run":0}}"#, "from 1 to 100"),
        (r#"{"expect":{"run":1,"checkpoint_version":0}}"#, "unknown field"),
    ]);
    let large =
        format!(r#"{{"outcome":"done","reason":"r","context":{{"a":"{}"}}}}"#, "x".repeat(CONTEXT_BYTES_MAX));
    refuses::<StageResolveRequest>(&[
        (r#"{"outcome":"done"}"#, "missing field `reason`"),
        (r#"{"reason":"r"}"#, "missing field `outcome`"),
        (r#"{"outcome":"skip","reason":"r"}"#, "one of \"done\", \"not_done\""),
        (r#"{"outcome":"done","reason":"r","context":null}"#, "an object"),
        (r#"{"outcome":"done","reason":"r","context":[]}"#, "an object"),
        (r#"{"outcome":"done","reason":"r","job":null}"#, "1 to 128 characters"),
        (r#"{"outcome":"done","reason":"r","job":""}"#, "1 to 128 characters"),
        (&large, "at most 262144 bytes"),
    ]);
    refuses::<TaskRetryRequest>(&[
        (r#"{"reason":"r"}"#, "missing field `from`"),
        (r#"{"from":"start"}"#, "missing field `reason`"),
        (r#"{"from":"end","reason":"r"}"#, "one of \"checkpoint\", \"start\""),
        (r#"{"from":1,"reason":"r"}"#, r#""checkpoint", "start" or {"checkpoint_version":n}"#),
        (r#"{"from":null,"reason":"r"}"#, r#"or {"checkpoint_version":n}"#),
        (r#"{"from":["start"],"reason":"r"}"#, r#"or {"checkpoint_version":n}"#),
        (r#"{"from":{},"reason":"r"}"#, "missing field `checkpoint_version`"),
        (r#"{"from":{"checkpoint_version":0},"reason":"r"}"#, "from 1 to 1000"),
        (r#"{"from":{"checkpoint_version":1,"run":1},"reason":"r"}"#, "unknown field"),
        (r#"{"from":"start","reason":"r","expect":{"run":1}}"#, "missing field `checkpoint_version`"),
        (r#"{"from":"start","reason":"r","expect":{"run":0,"checkpoint_version":0}}"#, "from 1 to 100"),
        (r#"{"from":"start","reason":"r","expect":[1,0]}"#, "an object"),
        (r#"{"from":"start","reason":"r","context_patch":7}"#, "an object"),
        (r#"{"from":"start","reason":"r","stages":[]}"#, "1 to 100 objects"),
        (r#"{"from":"start","reason":"r","max_attempts":0}"#, "from 1 to 100"),
        (r#"{"from":"start","reason":"r","dry_run":"yes"}"#, "a boolean"),
        (r#"{"from":"start","reason":"r","tenant":"t"}"#, "unknown field"),
    ]);
    refuses::<UnlockRequest>(&[
        (r#"{"reason":"r"}"#, "missing field `token`"),
        (r#"{"token":1}"#, "missing field `reason`"),
        (r#"{"token":-1,"reason":"r"}"#, "from 0 to 9223372036854775807"),
        (r#"{"token":"1","reason":"r"}"#, "from 0 to 9223372036854775807"),
    ]);
}

#[test]
fn answers_are_read_as_they_are_written() {
    keeps::<Plan>(&[
        r#"{"id":"p","name":null,"status":"ATTENTION","max_concurrency":5,"on_failure":"stop_new","timeout_ms":1,"intent":"run","halted":false,"over_time":true,"progress":{"total":2,"pending":1,"running":0,"succeeded":0,"failed":1,"paused":0,"interrupted":0,"cancelled":0},"created_at":"t","started_at":"t","finished_at":null,"attention":[{"task":"k","tenant":"t","status":"FAILED","reason":"r","stage":1,"stage_name":"s"}]}"#,
    ]);
    keeps::<Task>(&[
        r#"{"id":"k","plan":"p","place":1,"tenant":"t","name":"n","status":"RUNNING","intent":"run","reason":null,"run":2,"run_at":"t","timeout_ms":1,"definition":1,"stage":2,"stages":[{"name":"a","status":"SKIPPED","job":null,"attempts":0},{"name":"b","status":"RUNNING","job":"j","attempts":1}],"has_checkpoint":true,"checkpoint":{"version":1,"completed_stages":["a"],"last_completed":1,"saved_at":"t","context":{"x" :1}},"checkpoint_version":1,"context":{"x" :1},"config":null,"lock":{"token":3,"expires_in_ms":9},"lock_token":3,"waits_for":null,"updated_at":"t"}"#,
        r#"{"id":"k","plan":"p","place":1,"tenant":"t","name":null,"status":"PENDING","intent":"run","reason":null,"run":1,"run_at":null,"timeout_ms":1,"definition":1,"stage":1,"stages":[{"name":"a","status":"PENDING","job":null}],"has_checkpoint":false,"checkpoint":null,"checkpoint_version":0,"waits_for":null,"updated_at":"t"}"#,
    ]);
    let unlocked = r#"{"id":"k","plan":"p","place":1,"tenant":"t","name":null,"status":"PENDING","intent":"run","reason":null,"run":1,"run_at":null,"timeout_ms":1,"definition":1,"stage":1,"stages":[],"has_checkpoint":false,"checkpoint":null,"checkpoint_version":0,"lock":null,"waits_for":null,"updated_at":"t"}"#;
    keeps::<Task>(&[unlocked]);
    assert_eq!(serde_json::from_str::<Task>(unlocked).unwrap().lock, Some(None));
    keeps::<TaskDefinition>(&[
        r#"{"task":"k","run":2,"checkpoint_version":3,"definition":1,"stages":[{"name":"s","payload":{ "a": 1.50 },"colour":"blue"}]}"#,
    ]);
    keeps::<Checkpoint>(&[
        r#"{"version":1,"run":1,"completed_stages":["a"],"last_completed":1,"saved_at":"t","context":{}}"#,
    ]);
    let locked = r#"{"token":3,"expires_in_ms":9,"task":"k","plan":null}"#;
    keeps::<TenantLock>(&[locked]);
    // The token is sent as it was read.
    let TenantLock { token, .. } = serde_json::from_str(locked).unwrap();
    assert_eq!(UnlockRequest { token, reason: "r".to_owned() }.token, 3);
    keeps::<PlanEvent>(&[
        r#"{"seq":1,"at":"t","task":null,"kind":"status","run":null,"stage":null,"before":"CREATED","after":"RUNNING","reason":null,"principal":"p","request_id":"r"}"#,
    ]);
}
