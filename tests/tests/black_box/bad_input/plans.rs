//! Bad input to the routes of plans, tasks and tenants, on both ledgers: every field of every body, every query parameter
//! and every part of a path.

use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::servers::Database;

use super::operations::{Field, Kind, Operation, field};
use super::socket::Request;
use super::{BODY_BYTES_MAX, Subject, bodies};

const NOBODY: &str = "00000000-0000-7000-8000-000000000000";
/// What no id may have.
const UNSAFE: &[&str] = &["a b", "é", "a\\n", " x", "a/b", "*", "{x}"];
/// What no name may have.
const CONTROL: &[&str] = &["a\\nb", "\\u0007", "\\u007f"];
/// What no name may have that stands in a path.
const NO_PATH: &[&str] = &["a\\nb", "\\u0007", "\\u007f", ".", ".."];
/// Longest plan, in bytes.
const LONG_VALUE: &[u8] = &[b'x'; 32 << 10];
const PLAN_BYTES_MAX: usize = 16 << 20;

/// What the table is tried on.
struct Plans {
    /// Never started, for the tenant `waiting`.
    created: String,
    /// Started, for the tenants `acme` and `other`; no node runs its stages.
    running: String,
    /// The tasks of that, and the one of a plan that was cancelled, for the tenant `over`.
    tasks: [String; 2],
    over: String,
    /// Of the lock of `acme`.
    token: u64,
}

impl Plans {
    async fn make(subject: &Subject) -> Self {
        let stages = json!([{"name": "s", "payload": 1}, {"name": "t", "payload": 2}]);
        let plan = |tenants: &[&str], start: bool| {
            let tasks: Vec<_> =
                tenants.iter().map(|tenant| json!({"tenant": tenant, "stages": stages})).collect();
            json!({ "start": start, "tasks": tasks }).to_string()
        };
        let make = async |body: String| {
            let made = subject.ask("POST", "/v1/plans", &body).await;
            let id = made["id"].as_str().unwrap().to_owned();
            let tasks = subject.ask("GET", &format!("/v1/plans/{id}/tasks"), "").await;
            let of = |task: &Value| task["id"].as_str().unwrap().to_owned();
            (id, tasks["items"].as_array().unwrap().iter().map(of).collect::<Vec<_>>())
        };
        let (created, _) = make(plan(&["waiting"], false)).await;
        let (running, tasks) = make(plan(&["acme", "other"], true)).await;
        let (cancelled, over) = make(plan(&["over"], true)).await;
        subject.ask("POST", &format!("/v1/plans/{cancelled}/cancel"), "").await;
        crate::until("the plan is cancelled", async || {
            subject.ask("GET", &format!("/v1/plans/{cancelled}"), "").await["status"] == "CANCELLED"
        })
        .await;
        // A cancelled task keeps it until no attempt of it may be under way.
        crate::until("its tenant's lock is free", async || {
            subject.ask("GET", "/v1/tenants/over", "").await["lock"].is_null()
        })
        .await;
        let mut shown = Value::Null;
        crate::until("the tasks run", async || {
            let plan = subject.ask("GET", &format!("/v1/plans/{running}"), "").await;
            shown = subject.ask("GET", "/v1/tenants/acme", "").await;
            plan["progress"]["running"] == 2
        })
        .await;
        let token = shown["lock"]["token"].as_u64().unwrap();
        Self { created, running, tasks: tasks.try_into().unwrap(), over: over[0].clone(), token }
    }

    /// Every operation with a body, and how it is answered with nothing wrong.
    fn operations(&self) -> Vec<(Operation, u16)> {
        let [acme, other] = &self.tasks;
        let reason = || field("reason", false, r#""because""#, Kind::Name(1_024, &[]));
        let must_reason = || Field { required: true, ..reason() };
        let operation = |path: String, token, fields| Operation {
            method: "POST",
            path,
            token,
            fields,
            around: <(String, String)>::default(),
            optional: false,
            bytes_max: BODY_BYTES_MAX,
        };
        let as_long_as_plans = |operation| Operation { bytes_max: PLAN_BYTES_MAX, ..operation };
        let within = |path: &str, token, before: &str, behind: &str, fields| Operation {
            around: (before.to_owned(), behind.to_owned()),
            ..operation(path.to_owned(), token, fields)
        };
        let plan = |before: &str, behind: &str, fields| {
            as_long_as_plans(within("/v1/plans", "user", before, behind, fields))
        };
        let change = |path: String| Operation { optional: true, ..operation(path, "user", vec![reason()]) };
        let of_task = |task: &str, rest: &str| format!("/v1/tasks/{task}/{rest}");
        let retry = of_task(&self.over, "retry");
        let dry = r#""from":"start","reason":"r","dry_run":true"#;

        let mut operations = vec![
            (plan("", "", plan_fields()), 201),
            (plan(r#"{"tasks":["#, "]}", task_fields()), 201),
            (plan(r#"{"tasks":[{"tenant":"new","stages":["#, "]}]}", stage_fields()), 201),
        ];
        for (name, fields) in [("route", route_fields()), ("backoff", backoff_fields())] {
            let before = r#"{"tasks":[{"tenant":"new","stages":[{"name":"s","payload":1,"#;
            operations.push((plan(&format!("{before}\"{name}\":"), "}]}]}", fields), 201));
        }
        for path in [retry.clone(), "/v1/tenants/over/retry".to_owned()] {
            operations.extend([
                (as_long_as_plans(operation(path.clone(), "user", retry_fields())), 200),
                (
                    within(
                        &path,
                        "user",
                        &format!("{{{dry},\"expect\":"),
                        "}",
                        vec![
                            field("run", true, "1", Kind::Number(1, 100, false)),
                            field("checkpoint_version", true, "0", Kind::Number(0, 1_000, false)),
                        ],
                    ),
                    200,
                ),
                // The task has no checkpoint.
                (
                    within(
                        &path,
                        "user",
                        r#"{"reason":"r","dry_run":true,"from":"#,
                        "}",
                        vec![field("checkpoint_version", true, "1", Kind::Number(1, 1_000, false))],
                    ),
                    404,
                ),
                (
                    as_long_as_plans(within(
                        &path,
                        "user",
                        &format!("{{{dry},\"stages\":["),
                        "]}",
                        stage_fields(),
                    )),
                    200,
                ),
            ]);
        }
        operations.extend([
            // No stage of it is UNKNOWN.
            (
                operation(
                    of_task(acme, "stages/s/resolve"),
                    "admin",
                    vec![
                        field("outcome", true, r#""done""#, Kind::Word(&["succeeded"])),
                        field("context", false, "{}", Kind::Json(256 << 10, true)),
                        field("job", false, format!("{NOBODY:?}"), Kind::Text(false)),
                        must_reason(),
                    ],
                ),
                409,
            ),
            (change(of_task(other, "pause")), 200),
            (change(of_task(other, "resume")), 200),
            (change(of_task(other, "cancel")), 200),
            (change(format!("/v1/plans/{}/start", self.created)), 200),
            (change(format!("/v1/plans/{}/pause", self.running)), 200),
            (
                Operation {
                    optional: true,
                    ..operation(
                        format!("/v1/plans/{}/resume", self.running),
                        "user",
                        vec![reason(), field("keep_paused", false, "false", Kind::Flag)],
                    )
                },
                200,
            ),
            (change(format!("/v1/plans/{}/cancel", self.created)), 200),
            (
                operation(
                    "/v1/tenants/acme/unlock".to_owned(),
                    "admin",
                    vec![
                        field("token", true, self.token.to_string(), Kind::Number(0, i64::MAX as u64, false)),
                        must_reason(),
                    ],
                ),
                200,
            ),
        ]);
        operations
    }

    /// All that the API shows of plans, tasks and tenants, but for what passes by itself.
    async fn dump(&self, subject: &Subject) -> Value {
        let get = async |path: String| {
            let mut shown = subject.ask("GET", &path, "").await;
            forget_times_left(&mut shown);
            shown
        };
        let mut all = vec![get("/v1/plans?limit=1000".to_owned()).await];
        for plan in [&self.created, &self.running] {
            for rest in ["", "/tasks", "/events?limit=1000"] {
                all.push(get(format!("/v1/plans/{plan}{rest}")).await);
            }
        }
        for task in self.tasks.iter().chain([&self.over]) {
            for rest in ["", "/checkpoints", "/events"] {
                all.push(get(format!("/v1/tasks/{task}{rest}")).await);
            }
        }
        for tenant in ["waiting", "acme", "other", "over"] {
            for rest in ["", "/tasks"] {
                all.push(get(format!("/v1/tenants/{tenant}{rest}")).await);
            }
        }
        all.push(get("/v1/jobs?limit=1000".to_owned()).await);
        all.push(get("/v1/leases?kind=tenant".to_owned()).await);
        Value::from(all)
    }
}

fn forget_times_left(shown: &mut Value) {
    match shown {
        Value::Object(fields) => {
            fields.remove("expires_in_ms");
            fields.values_mut().for_each(forget_times_left);
        }
        Value::Array(items) => items.iter_mut().for_each(forget_times_left),
        _ => {}
    }
}

fn timeout(max: u64) -> Field {
    field("timeout_ms", false, "600000", Kind::Number(1, max, false))
}

fn plan_fields() -> Vec<Field> {
    vec![
        field("name", false, r#""a plan""#, Kind::Name(128, CONTROL)),
        field("max_concurrency", false, "5", Kind::Number(1, 100, false)),
        field("on_failure", false, r#""pause""#, Kind::Word(&["stop", "run"])),
        timeout(604_800_000),
        field("start", false, "false", Kind::Flag),
        field("tasks", true, r#"[{"tenant":"new","stages":[{"name":"s","payload":1}]}]"#, Kind::Items(1_000)),
    ]
}

fn task_fields() -> Vec<Field> {
    vec![
        field("tenant", true, r#""new""#, Kind::Name(128, UNSAFE)),
        field("name", false, r#""a task""#, Kind::Name(128, CONTROL)),
        field("config", false, r#"{"a":1}"#, Kind::Json(64 << 10, false)),
        timeout(604_800_000),
        field("stages", true, r#"[{"name":"s","payload":1}]"#, Kind::Items(100)),
    ]
}

fn stage_fields() -> Vec<Field> {
    vec![
        field("name", true, r#""a stage""#, Kind::Name(128, NO_PATH)),
        field("payload", true, r#"{"a":1}"#, Kind::Json(1 << 20, false)),
        field("requires", false, r#"["asr:zh"]"#, Kind::Texts(16, 64)),
        field("pool", false, r#""p""#, Kind::Name(64, UNSAFE)),
        field("route", false, r#"{"source":"zh","target":"en"}"#, Kind::Object),
        timeout(86_400_000),
        field("max_attempts", false, "3", Kind::Number(1, 100, false)),
        field("backoff", false, r#"{"initial_ms":10}"#, Kind::Object),
        field("on_unknown", false, r#""rerun""#, Kind::Word(&["hold", "retry"])),
    ]
}

fn route_fields() -> Vec<Field> {
    vec![
        field("source", true, r#""zh""#, Kind::Name(35, UNSAFE)),
        field("target", true, r#""en""#, Kind::Name(35, UNSAFE)),
    ]
}

fn backoff_fields() -> Vec<Field> {
    vec![
        field("initial_ms", false, "10", Kind::Number(0, 86_400_000, false)),
        field("factor", false, "2", Kind::Factor(1, 100)),
        field("max_ms", false, "1000", Kind::Number(10, 86_400_000, false)),
    ]
}

fn retry_fields() -> Vec<Field> {
    vec![
        field("from", true, r#""start""#, Kind::Word(&["end"])),
        field("expect", false, r#"{"run":1,"checkpoint_version":0}"#, Kind::Object),
        field("context_patch", false, r#"{"a":null}"#, Kind::Json(256 << 10, true)),
        field("stages", false, r#"[{"name":"s","payload":1}]"#, Kind::Items(100)),
        field("config", false, "7", Kind::Json(64 << 10, false)),
        field("max_attempts", false, "2", Kind::Number(1, 100, false)),
        field("reason", true, r#""because""#, Kind::Name(1_024, &[])),
        field("dry_run", false, "true", Kind::Flag),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_plans_wrong_in_every_way_is_refused_on_sqlite_and_changes_nothing() {
    wrong_fields(Setup::in_mode("worker-queue").unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_of_plans_wrong_in_every_way_is_refused_on_postgresql_and_changes_nothing() {
    let database = tokio::task::spawn_blocking(|| Database::migrated().unwrap()).await.unwrap();
    wrong_fields(Setup::in_mode("worker-queue").unwrap().database(database.url())).await;
}

async fn wrong_fields(setup: Setup) {
    let mut subject = Subject::bare(setup).await;
    let plans = Plans::make(&subject).await;
    let operations = plans.operations();
    let before = plans.dump(&subject).await;

    for (operation, _) in &operations {
        for (name, request) in operation.wrong_fields() {
            let body = request.body.as_deref().unwrap_or_default();
            // Longer than any text that is no JSON value of the caller's.
            let has_long_value = body.windows(LONG_VALUE.len()).any(|part| part == LONG_VALUE);
            if body.len() > operation.bytes_max || has_long_value {
                subject.refused(request, 413, "too_large").await;
            } else {
                subject.invalid(request, &name).await;
            }
        }
        if operation.around.0.is_empty() {
            bodies(&mut subject, operation).await;
        }
    }
    combinations(&mut subject, &plans).await;
    paths(&mut subject, &operations).await;
    queries(&mut subject, &plans, &operations).await;
    keys(&mut subject).await;
    assert_eq!(plans.dump(&subject).await, before);
    subject.no_defect_was_counted().await;
    eprintln!("{} requests were refused", subject.sent);

    // The table proves something only if each operation succeeds with nothing wrong.
    for (operation, status) in &operations {
        let answer = operation.with(&operation.right()).send(&subject.address).await;
        let text = String::from_utf8_lossy(&answer.body);
        assert_eq!(answer.status, *status, "{} {:?}: {text}", operation.path, operation.around.0);
    }
}

/// Fields that are right one by one, and wrong together.
async fn combinations(subject: &mut Subject, plans: &Plans) {
    let stage = r#"{"name":"s","payload":1}"#;
    let task = format!(r#"{{"tenant":"new","stages":[{stage}]}}"#);
    let over = &plans.over;
    for (path, body, reason) in [
        ("/v1/plans".to_owned(), format!(r#"{{"tasks":[{task},{task}]}}"#), "tenant"),
        (
            "/v1/plans".to_owned(),
            format!(r#"{{"tasks":[{{"tenant":"t","stages":[{stage},{stage}]}}]}}"#),
            "name",
        ),
        (
            format!("/v1/tasks/{over}/retry"),
            format!(r#"{{"from":"start","reason":"r","stages":[{stage},{stage}]}}"#),
            "name",
        ),
        (
            format!("/v1/tasks/{}/stages/s/resolve", plans.tasks[0]),
            r#"{"outcome":"not_done","context":{},"reason":"r"}"#.to_owned(),
            "context",
        ),
        (format!("/v1/tasks/{over}/retry"), r#"{"from":{"version":1},"reason":"r"}"#.to_owned(), "from"),
        (format!("/v1/tasks/{over}/retry"), r#"{"from":["start"],"reason":"r"}"#.to_owned(), "from"),
    ] {
        subject.invalid(Request::new("POST", &path).token("admin").json(body), reason).await;
    }
    // What contradicts the ledger.
    for (path, body, status, code) in [
        (
            "/v1/plans".to_owned(),
            format!(r#"{{"start":true,"tasks":[{}]}}"#, task.replace("new", "acme")),
            409,
            "tenant_locked",
        ),
        (
            format!("/v1/tasks/{}/retry", plans.tasks[0]),
            r#"{"from":"start","reason":"r"}"#.to_owned(),
            409,
            "still_running",
        ),
        (
            format!("/v1/tasks/{over}/retry"),
            r#"{"from":"start","reason":"r","expect":{"run":2,"checkpoint_version":0}}"#.to_owned(),
            409,
            "conflict",
        ),
        (
            format!("/v1/tasks/{over}/retry"),
            r#"{"from":{"checkpoint_version":1},"reason":"r"}"#.to_owned(),
            404,
            "not_found",
        ),
        (format!("/v1/tasks/{over}/resume"), "{}".to_owned(), 409, "conflict"),
        (
            "/v1/tenants/acme/unlock".to_owned(),
            format!(r#"{{"token":{},"reason":"r"}}"#, plans.token + 1),
            409,
            "conflict",
        ),
        ("/v1/tenants/over/unlock".to_owned(), r#"{"token":0,"reason":"r"}"#.to_owned(), 409, "conflict"),
        (
            format!("/v1/tasks/{}/stages/s/resolve", plans.tasks[0]),
            r#"{"outcome":"done","reason":"r"}"#.to_owned(),
            409,
            "conflict",
        ),
    ] {
        subject.refused(Request::new("POST", &path).token("admin").json(body), status, code).await;
    }
}

/// Ids of the wrong form, and of nothing.
async fn paths(subject: &mut Subject, operations: &[(Operation, u16)]) {
    let long = "x".repeat(129);
    let ids = [
        NOBODY,
        "x",
        "-1",
        "0",
        &long,
        "%20",
        "%00",
        "%0A",
        "%ff",
        "%C3%A9",
        "%",
        "%zz",
        "a%2Fb",
        "..",
        "{x}",
        "00000000-0000-7000-8000-00000000000",
        "00000000-0000-7000-8000-00000000000g",
        "00000000-0000-7000-8000-0000000000000",
    ];
    let mut targets: Vec<(String, Request)> = operations
        .iter()
        .map(|(operation, _)| (operation.path.clone(), operation.with(&operation.right())))
        .collect();
    for path in [
        "/v1/plans/ID",
        "/v1/plans/ID/tasks",
        "/v1/plans/ID/events",
        "/v1/tasks/ID",
        "/v1/tasks/ID/checkpoints",
        "/v1/tasks/ID/events",
        "/v1/tenants/ID",
        "/v1/tenants/ID/tasks",
    ] {
        targets.push((path.to_owned(), Request::new("GET", path).token("user")));
    }
    for (path, request) in &targets {
        let segments: Vec<_> = path.split('/').collect();
        let Some(at) = segments.get(3) else { continue };
        let with = |id: &str| Request { target: path.replacen(at, id, 1), ..request.clone() };
        for id in ids {
            let is_tenant = segments[2] == "tenants";
            let known_form = ["x", "-1", "0"].contains(&id) || id.starts_with("00000000");
            if is_tenant && !known_form {
                subject.invalid(with(id), "tenant").await;
            } else {
                subject.refused(with(id), 404, "not_found").await;
            }
        }
    }
    let (resolve, _) = operations.iter().find(|(operation, _)| operation.path.ends_with("/resolve")).unwrap();
    let right = resolve.with(&resolve.right());
    for stage in
        ["0", "3", "-1", "01", "1.0", "S", "x", &long, "%20", "%00", "%ff", "a%2Fb", "%25", "..", "s%20"]
    {
        let target = resolve.path.replace("/s/", &format!("/{stage}/"));
        subject.refused(Request { target, ..right.clone() }, 404, "not_found").await;
    }
}

async fn queries(subject: &mut Subject, plans: &Plans, operations: &[(Operation, u16)]) {
    for (operation, _) in operations {
        let right = operation.with(&operation.right());
        for query in ["?x=1", "?limit=1", "?dry_run=true", "?reason=r", "?=", "?%00"] {
            let target = format!("{}{query}", operation.path);
            subject.invalid(Request { target, ..right.clone() }, "query parameter").await;
        }
    }
    let get = |target: &str| Request::new("GET", target).token("user");
    let plan = format!("/v1/plans/{}", plans.running);
    let task = format!("/v1/tasks/{}", plans.tasks[0]);
    for fixed in [plan.as_str(), &task, "/v1/tenants/acme"] {
        for query in ["limit=1", "cursor=p.x", "x", "wait_ms=1"] {
            subject.invalid(get(&format!("{fixed}?{query}")), "query parameter").await;
        }
    }
    let (tasks, events) = (format!("{plan}/tasks"), format!("{plan}/events"));
    let (checkpoints, of_task) = (format!("{task}/checkpoints"), format!("{task}/events"));
    let lists = ["/v1/plans", &tasks, &events, &checkpoints, &of_task, "/v1/tenants/acme/tasks"];
    let too_long = format!("e.{}", "1".repeat(300));
    for list in lists {
        for limit in
            ["0", "1001", "-1", "+1", "1.0", "1e2", "x", "", "01", "%201", "99999999999999999999", "null"]
        {
            subject.invalid(get(&format!("{list}?limit={limit}")), "limit").await;
        }
        for cursor in [
            "",
            "x",
            "p",
            "p.",
            "p.x",
            "p.-1",
            "k.",
            "k.-1",
            "k.99999999999999999999",
            "e.",
            "e.x",
            "e.9223372036854775808",
            "c.",
            "c.x",
            "c.4294967296",
            "h.",
            "h.x",
            "%00",
            "%ff",
            &too_long,
        ] {
            subject.invalid(get(&format!("{list}?cursor={cursor}")), "cursor").await;
        }
        for twice in ["limit=1&limit=1", "cursor=x&cursor=x"] {
            subject.invalid(get(&format!("{list}?{twice}")), "once").await;
        }
        for unknown in ["x=1", "Limit=1", "limit%20=1", "limit=1&x", "offset=0", "after=1"] {
            subject.invalid(get(&format!("{list}?{unknown}")), "unknown query parameter").await;
        }
    }
    for list in ["/v1/plans", &tasks] {
        for status in ["", "x", "gone", "RUNNING,FAILED", "null", "%00", "RUNNING%20", "UNKNOWN"] {
            subject.invalid(get(&format!("{list}?status={status}")), "status").await;
        }
    }
    subject.invalid(get("/v1/plans?status=FAILED"), "status").await;
    subject.invalid(get(&format!("{tasks}?status=ATTENTION")), "status").await;
    for list in [&events, &of_task] {
        let stream = || get(list).header("accept", "text/event-stream");
        for id in ["", "x", "-1", "01", "9223372036854775808", "1.FINISHED", "\u{e9}"] {
            subject.invalid(stream().header("last-event-id", id), "Last-Event-ID").await;
        }
        let limited = Request { target: format!("{list}?limit=1"), ..stream() };
        subject.invalid(limited, "unknown query parameter").await;
    }
}

async fn keys(subject: &mut Subject) {
    let body = r#"{"tasks":[{"tenant":"new","stages":[{"name":"s","payload":1}]}]}"#;
    let create = || Request::new("POST", "/v1/plans").token("user").json(body);
    let long = "k".repeat(129);
    for key in ["", "a b", "\t", "\u{e9}", &long] {
        subject.invalid(create().header("idempotency-key", key), "Idempotency-Key").await;
    }
    let twice = create().header("idempotency-key", "a").header("Idempotency-Key", "a");
    subject.invalid(twice, "once").await;
}
