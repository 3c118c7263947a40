//! Plans as callers read them, and what is refused before an owner of a plan is asked.

use actix_web::http::Method;
use actix_web::test::read_body;
use domain::job::{Due, NewJob, OnRecovery, Outcome, Spec};
use domain::plan::{Command, PlanEvent, PlanSpec, PlanState, StageEnd, StageSpec, TaskSpec, TaskState};
use domain::{JobId, PlanId, Resource, TaskId, TenantId, Timestamp, Token};
use ledger::{Acquisition, Author, NewPlan, PlanBatch, PlanVerdict};
use serde_json::json;

use super::*;
use crate::limits::PLAN_BYTES_MAX;

const PLAN: PlanId = PlanId::from_u128(1);
const UNKNOWN: &str = "0189b2c1-0000-7000-8000-000000000009";

/// A server, and a plan in its ledger of which this test is the owner.
struct Subject {
    state: Arc<State>,
    _dir: TempDir,
    token: Token,
    plan: PlanState,
    jobs: u128,
}

fn task_id(at: u128) -> TaskId {
    TaskId::from_u128(100 + at)
}

fn plan_of(tenants: &[&str]) -> PlanState {
    let task = |(at, tenant): (usize, &&str)| {
        let stages = ["prepare", "switch"].map(|name| StageSpec::new(name, "{}"));
        let spec = TaskSpec::new(TenantId::parse(tenant).unwrap(), stages);
        TaskState::new(task_id(at as u128), Arc::new(spec))
    };
    PlanState::new(PLAN, Arc::new(PlanSpec::default()), tenants.iter().enumerate().map(task).collect())
}

fn rows(plan: &PlanState) -> NewPlan {
    NewPlan {
        plan: Arc::new(plan.clone()),
        take: Vec::new(),
        lock_ms: 600_000,
        events: vec![PlanEvent::made(plan.status())],
        key: None,
        author: Author::default(),
        audit: None,
    }
}

impl Subject {
    /// With a plan for these tenants that was never started.
    async fn with(tenants: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let state = state(&dir, Auth::open()).await;
        let plan = plan_of(tenants);
        state.ledger.create_plan(rows(&plan)).await.unwrap();
        // An instance that lives: nobody adopts its plan while the test is its owner.
        let life = Resource::instance(&Self::me());
        state.ledger.acquire(&life, &Self::me(), 600_000).await.unwrap();
        let acquired = state.ledger.acquire(&Resource::plan(PLAN), &Self::me(), 600_000).await.unwrap();
        let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
        Self { state, _dir: dir, token, plan, jobs: 0 }
    }

    fn me() -> InstanceId {
        InstanceId::parse("owner-1").unwrap()
    }

    async fn step(&mut self, command: Command) {
        let jobs = &mut self.jobs;
        let mut new_job = || {
            *jobs += 1;
            JobId::from_u128(*jobs)
        };
        let step = self.plan.apply(&command, Timestamp::from_micros(5), &mut new_job).unwrap();
        let job = |id| {
            let spec = Spec { on_recovery: OnRecovery::Hold, ..Spec::new("{}") };
            NewJob { id, spec, seq: None, client_ref: None, due: Due::Now, retry: None, placed: None }
        };
        let batch = PlanBatch {
            owner: Self::me(),
            token: self.token,
            next: Arc::new(step.next.clone()),
            jobs: step.writes.starts.iter().map(|start| job(start.job)).collect(),
            writes: step.writes,
            lock_ms: 600_000,
            key: None,
            author: Author { reason: Some("because".into()), ..Author::default() },
            audit: None,
        };
        let verdict = self.state.ledger.commit_plan(batch).await.unwrap();
        let PlanVerdict::Written { locks, .. } = verdict else { panic!("{verdict:?}") };
        self.plan = step.next;
        self.plan.locked(locks);
    }

    async fn start(&mut self) {
        self.step(Command::Start).await;
        self.step(Command::Advance).await;
    }

    async fn end(&mut self, at: usize, end: StageEnd) {
        let task = &self.plan.tasks[at];
        let (task, job) = (task.id, task.in_flight().unwrap().1);
        self.step(Command::StageEnded { task, job, end }).await;
    }

    async fn send(&self, method: Method, path: &str, body: Option<&str>) -> (u16, Value) {
        let service = init_service(app(&forwarder(&self.state))).await;
        let mut request = TestRequest::default().insert_header(LOCAL).method(method).uri(path);
        if let Some(body) = body {
            request =
                request.insert_header(("content-type", "application/json")).set_payload(body.to_owned());
        }
        let answer = call_service(&service, request.to_request()).await;
        let status = answer.status().as_u16();
        let body = read_body(answer).await;
        (status, serde_json::from_slice(&body).unwrap())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, body) = self.send(Method::GET, path, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// Everything on all pages of a list.
    async fn pages(&self, path: &str, limit: u32) -> Vec<Value> {
        let (mut items, mut cursor) = (Vec::new(), String::new());
        loop {
            let mut page = self.get(&format!("{path}?limit={limit}{cursor}")).await;
            let of_page = page["items"].as_array_mut().unwrap();
            assert!(of_page.len() <= limit as usize);
            items.append(of_page);
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
    }
}

fn numbers(items: &[Value], field: &str) -> Vec<u64> {
    items.iter().map(|item| item[field].as_u64().unwrap()).collect()
}

#[actix_web::test]
async fn a_plan_is_shown_with_its_progress_and_those_tasks_that_somebody_must_look_at() {
    let mut subject = Subject::with(&["x", "y", "z"]).await;
    let path = format!("/v1/plans/{PLAN}");
    let plan = subject.get(&path).await;
    assert_eq!((&plan["status"], &plan["progress"]["pending"]), (&json!("CREATED"), &json!(3)));
    assert_eq!((&plan["started_at"], &plan["attention"]), (&Value::Null, &json!([])));
    subject.start().await;
    subject.end(1, StageEnd::Ended(Outcome::Failed, "no space".into())).await;
    let plan = subject.get(&path).await;
    assert_eq!((&plan["status"], &plan["intent"]), (&json!("ATTENTION"), &json!("run")));
    let progress = &plan["progress"];
    assert_eq!(
        (&progress["total"], &progress["running"], &progress["failed"]),
        (&json!(3), &json!(2), &json!(1))
    );
    assert_eq!(
        plan["attention"],
        json!([{
            "task": task_id(1).to_string(), "tenant": "y", "status": "FAILED", "stage": 1,
            "stage_name": "prepare", "reason": "stage prepare: no space",
        }])
    );
    let listed = subject.get("/v1/plans?status=ATTENTION").await;
    assert_eq!(listed["items"][0]["progress"], *progress);
    assert_eq!((&listed["items"][0]["id"], &listed["next_cursor"]), (&plan["id"], &Value::Null));
    assert_eq!(listed["items"][0]["attention"], plan["attention"]);
    assert_eq!(subject.get("/v1/plans?status=attention").await, listed);
    let failed = subject.get(&format!("{path}/tasks?status=failed")).await;
    assert_eq!(failed["items"][0]["tenant"], "y", "{failed}");
    assert_eq!(subject.get("/v1/plans?status=SUCCEEDED").await["items"], json!([]));
}

#[actix_web::test]
async fn the_tasks_of_a_plan_are_listed_in_order_page_by_page_and_by_status() {
    let mut subject = Subject::with(&["x", "y", "z"]).await;
    subject.start().await;
    subject.end(1, StageEnd::Ended(Outcome::Failed, "no".into())).await;
    let path = format!("/v1/plans/{PLAN}/tasks");
    for limit in [1, 2, 3, 1_000] {
        assert_eq!(numbers(&subject.pages(&path, limit).await, "place"), [1, 2, 3]);
    }
    let running = subject.get(&format!("{path}?status=RUNNING&limit=1")).await;
    assert_eq!((&running["items"][0]["place"], &running["next_cursor"]), (&json!(1), &json!("k.0")));
    let running = subject.get(&format!("{path}?status=RUNNING&limit=1&cursor=k.0")).await;
    assert_eq!((&running["items"][0]["place"], &running["next_cursor"]), (&json!(3), &Value::Null));
    assert!(running["items"][0].get("lock").is_none(), "a list has the token alone");
    assert_eq!(running["items"][0]["lock_token"].as_i64(), subject.plan.tasks[2].lock.map(Token::get));
}

#[actix_web::test]
async fn a_task_is_shown_with_its_checkpoint_its_attempts_and_its_lock() {
    let mut subject = Subject::with(&["x"]).await;
    let path = format!("/v1/tasks/{}", task_id(0));
    let task = subject.get(&path).await;
    assert_eq!(
        (&task["lock"], &task["checkpoint"], &task["run_at"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    subject.start().await;
    subject.end(0, StageEnd::Completed(Some("{\"disk\":1}".into()))).await;
    let task = subject.get(&path).await;
    assert_eq!((&task["status"], &task["stage"]), (&json!("RUNNING"), &json!(2)));
    let checkpoint = &task["checkpoint"];
    assert_eq!((&checkpoint["version"], &checkpoint["last_completed"]), (&json!(1), &json!(1)));
    assert_eq!(checkpoint["completed_stages"], json!(["prepare"]));
    assert_eq!((&checkpoint["context"], &task["context"]), (&json!({ "disk": 1 }), &json!({ "disk": 1 })));
    assert!(checkpoint["saved_at"].is_string() && task["has_checkpoint"] == true);
    assert_eq!(task["stages"][1]["attempts"], 0, "the job is accepted, and no node has it");
    let lock = &task["lock"];
    assert_eq!(lock["token"].as_i64(), subject.plan.tasks[0].lock.map(Token::get));
    assert!(lock["expires_in_ms"].as_u64().is_some_and(|left| 0 < left && left <= 600_000), "{lock}");
    let saved = subject.pages(&format!("{path}/checkpoints"), 1).await;
    assert_eq!((numbers(&saved, "version"), &saved[0]["saved_at"]), (vec![1], &checkpoint["saved_at"]));
    subject.end(0, StageEnd::Completed(None)).await;
    let saved = subject.pages(&format!("{path}/checkpoints"), 1).await;
    assert_eq!(numbers(&saved, "version"), [2, 1], "the newest first");
    let task = subject.get(&path).await;
    assert_eq!(
        (&task["status"], &task["lock"], &task["stage"]),
        (&json!("SUCCEEDED"), &Value::Null, &Value::Null)
    );
}

#[actix_web::test]
async fn a_tenant_is_shown_with_its_newest_task_and_whoever_has_its_lock() {
    let mut subject = Subject::with(&["x"]).await;
    subject.start().await;
    // A later plan for the same tenant, which waits for nobody and has no lock.
    let (plan, task) = (PlanId::from_u128(2), TaskId::from_u128(900));
    let spec = TaskSpec::new(TenantId::parse("x").unwrap(), [StageSpec::new("s", "1")]);
    let later =
        PlanState::new(plan, Arc::new(PlanSpec::default()), vec![TaskState::new(task, Arc::new(spec))]);
    subject.state.ledger.create_plan(rows(&later)).await.unwrap();
    let tenant = subject.get("/v1/tenants/x").await;
    assert_eq!((&tenant["tenant"], &tenant["task"]["id"]), (&json!("x"), &json!(task.to_string())));
    assert_eq!((&tenant["has_checkpoint"], &tenant["task"]["lock"]), (&json!(false), &Value::Null));
    assert_eq!(
        (&tenant["lock"]["task"], &tenant["lock"]["plan"]),
        (&json!(task_id(0).to_string()), &json!(PLAN.to_string()))
    );
    for limit in [1, 2] {
        let history = subject.pages("/v1/tenants/x/tasks", limit).await;
        let ids: Vec<_> = history.iter().map(|task| task["id"].as_str().unwrap()).collect();
        assert_eq!(ids, [task.to_string(), task_id(0).to_string()]);
    }
    for path in ["/v1/tenants/nobody", "/v1/tenants/nobody/tasks"] {
        let (status, problem) = subject.send(Method::GET, path, None).await;
        assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{path}");
    }
}

#[actix_web::test]
async fn events_are_listed_in_order_of_the_plan_or_of_one_task() {
    let mut subject = Subject::with(&["x", "y"]).await;
    subject.start().await;
    let path = format!("/v1/plans/{PLAN}/events");
    let events = subject.pages(&path, 1_000).await;
    let seqs = numbers(&events, "seq");
    assert!(seqs.len() > 3 && seqs.iter().copied().eq(1..=seqs.len() as u64), "{seqs:?}");
    assert_eq!((&events[0]["kind"], &events[0]["after"]), (&json!("status"), &json!("CREATED")));
    assert!(events[1..].iter().all(|event| event["reason"] == "because"));
    for limit in [1, 2, 3] {
        assert_eq!(subject.pages(&path, limit).await, events);
    }
    let task = json!(task_id(1).to_string());
    let of_task = subject.pages(&format!("/v1/tasks/{}/events", task_id(1)), 1).await;
    let expected: Vec<_> = events.iter().filter(|event| event["task"] == task).cloned().collect();
    assert!(!expected.is_empty());
    assert_eq!(of_task, expected);
}

#[tokio::test]
async fn a_stream_goes_on_where_its_client_left_and_brings_what_happens_next() {
    let mut subject = Subject::with(&["x"]).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let identity = cluster::Identity { id: Subject::me(), url: format!("http://{address}") };
    let ledger = Arc::clone(&subject.state.ledger);
    let services = services_of(ledger, identity, domain::Mode::Basic);
    let server = open_server(listener, services, Settings { workers: 1, ..Settings::new(Auth::open()) });
    let handle = server.handle();
    let running = tokio::spawn(server.run());
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /v1/plans/{PLAN}/events HTTP/1.1\r\nhost: localhost\r\naccept: text/event-stream\r\nlast-event-id: 1\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut text = String::new();
    let mut buffer = [0; 4_096];
    let mut is_started = false;
    while !text.contains("\"after\":\"RUNNING\"") {
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buffer));
        let read = read.await.expect("the next event comes").unwrap();
        assert!(read > 0, "the stream has ended: {text}");
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        if !is_started && text.contains(": the stream is open") {
            is_started = true;
            subject.start().await;
        }
    }
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("content-type: text/event-stream"), "{text}");
    assert!(text.contains("event: plan\nid: 2\ndata: {\"seq\":2,"), "{text}");
    assert!(!text.contains("id: 1\n"), "the client has seen that one: {text}");
    handle.drain();
    handle.stop().await;
    running.await.unwrap().unwrap();
}

#[actix_web::test]
async fn what_nobody_has_is_not_found_on_every_route() {
    let subject = Subject::with(&["x"]).await;
    let task = task_id(0);
    let retry = r#"{"from":"start","reason":"r"}"#;
    let resolve = r#"{"outcome":"done","reason":"r"}"#;
    for id in [UNKNOWN, "x", "0", "%2e%2e"] {
        for path in ["", "/tasks", "/events"] {
            let (status, problem) = subject.send(Method::GET, &format!("/v1/plans/{id}{path}"), None).await;
            assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{id}{path}");
        }
        for path in ["", "/stages", "/checkpoints", "/events"] {
            let (status, problem) = subject.send(Method::GET, &format!("/v1/tasks/{id}{path}"), None).await;
            assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{id}{path}");
        }
        for (path, body) in [
            ("pause", None),
            ("resume", None),
            ("cancel", Some("{}")),
            ("retry", Some(retry)),
            ("stages/1/resolve", Some(resolve)),
        ] {
            let (status, problem) = subject.send(Method::POST, &format!("/v1/tasks/{id}/{path}"), body).await;
            assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{id}/{path}: {problem}");
        }
    }
    for stage in ["3", "0", "Prepare", "-1", "00"] {
        let path = format!("/v1/tasks/{task}/stages/{stage}/resolve");
        let (status, problem) = subject.send(Method::POST, &path, Some(resolve)).await;
        assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{stage}: {problem}");
    }
    for (path, body) in [("retry", retry), ("unlock", r#"{"token":1,"reason":"r"}"#)] {
        let (status, problem) =
            subject.send(Method::POST, &format!("/v1/tenants/nobody/{path}"), Some(body)).await;
        assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{path}: {problem}");
    }
}

#[actix_web::test]
async fn a_body_that_is_wrong_is_refused_by_the_name_of_its_field() {
    let subject = Subject::with(&["x"]).await;
    let task = task_id(0);
    let stage = |field: &str| {
        format!(r#"{{"tasks":[{{"tenant":"t","stages":[{{"name":"s","payload":1,{field}}}]}}]}}"#)
    };
    let long = "x".repeat(1_025);
    let create = "/v1/plans".to_owned();
    let retry = format!("/v1/tasks/{task}/retry");
    let resolve = format!("/v1/tasks/{task}/stages/prepare/resolve");
    let unlock = "/v1/tenants/x/unlock".to_owned();
    let mut cases = vec![
        (create.clone(), String::new(), "the body is missing"),
        (create.clone(), "[]".to_owned(), "invalid type: sequence, expected an object"),
        (create.clone(), "{".to_owned(), "EOF while parsing"),
        (create.clone(), "{}".to_owned(), "missing field `tasks`"),
        (create.clone(), r#"{"tasks":[{}]}"#.to_owned(), "tasks[0]: missing field `tenant`"),
        (create.clone(), stage(r#""timeout_ms":0"#), "tasks[0].stages[0].timeout_ms: invalid value"),
        (create.clone(), stage(r#""route":{"source":1}"#), "tasks[0].stages[0].route.source: invalid type"),
        (create.clone(), stage(r#""lane":"x""#), "unknown field `lane`"),
        (create.clone(), stage(r#""pool":"a b""#), "tasks[0].stages[0].pool must be"),
        (retry.clone(), String::new(), "the body is missing"),
        (retry.clone(), r#"{"from":"here","reason":"r"}"#.to_owned(), "from: invalid value: string \"here\""),
        (retry.clone(), r#"{"from":"start"}"#.to_owned(), "missing field `reason`"),
        (
            retry,
            r#"{"from":"start","reason":"r","stages":[{"name":"s"}]}"#.to_owned(),
            "stages[0]: missing field `payload`",
        ),
        (
            "/v1/tenants/x/retry".to_owned(),
            r#"{"from":"start","reason":7}"#.to_owned(),
            "reason: invalid type",
        ),
        (resolve.clone(), String::new(), "the body is missing"),
        (resolve.clone(), r#"{"outcome":"maybe","reason":"r"}"#.to_owned(), "outcome: invalid value"),
        (
            resolve.clone(),
            r#"{"outcome":"done","reason":"r","context":1}"#.to_owned(),
            "context: invalid type",
        ),
        (
            resolve,
            r#"{"outcome":"not_done","reason":"r","context":{}}"#.to_owned(),
            "context goes with the outcome done",
        ),
        (unlock.clone(), r#"{"token":"1","reason":"r"}"#.to_owned(), "token: invalid type"),
        (unlock, r#"{"token":1,"reason":""}"#.to_owned(), "reason: invalid value"),
        (
            "/v1/tenants/a%20b/retry".to_owned(),
            r#"{"from":"start","reason":"r"}"#.to_owned(),
            "tenant must be",
        ),
    ];
    let changes = ["pause", "resume", "cancel"].map(|what| format!("/v1/tasks/{task}/{what}"));
    let of_plan = ["start", "pause", "resume", "cancel"].map(|what| format!("/v1/plans/{PLAN}/{what}"));
    for path in changes.into_iter().chain(of_plan) {
        cases.push((path.clone(), r#"{"reason":null}"#.to_owned(), "reason: invalid type"));
        cases.push((path.clone(), format!(r#"{{"reason":"{long}"}}"#), "reason: invalid value"));
        cases.push((path.clone(), r#"{"force":true}"#.to_owned(), "unknown field `force`"));
        cases.push((format!("{path}?force=true"), String::new(), "this path takes none"));
    }
    for (path, body, says) in &cases {
        let body = Some(body.as_str()).filter(|body| !body.is_empty());
        let (status, problem) = subject.send(Method::POST, path, body).await;
        assert_eq!((status, &problem["code"]), (400, &json!("invalid")), "{path} {body:?}: {problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(says), "{path} {body:?}: {detail}");
    }
}

#[actix_web::test]
async fn a_query_that_is_wrong_is_refused_by_the_name_of_its_parameter() {
    let subject = Subject::with(&["x"]).await;
    let task = task_id(0);
    for (path, says) in [
        ("/v1/plans?status=DONE".to_owned(), "status must be one of CREATED, RUNNING"),
        ("/v1/plans?cursor=k.1".to_owned(), "cursor must be"),
        ("/v1/plans?tenant=x".to_owned(), "unknown query parameter"),
        (format!("/v1/plans/{PLAN}?limit=1"), "this path takes none"),
        (format!("/v1/plans/{PLAN}/tasks?status=CREATED"), "status must be one of PENDING, RUNNING"),
        (format!("/v1/plans/{PLAN}/tasks?cursor=k.-1"), "cursor must be"),
        (format!("/v1/plans/{PLAN}/tasks?cursor=k.9223372036854775808"), "cursor must be"),
        (format!("/v1/plans/{PLAN}/tasks?cursor=k.18446744073709551615"), "cursor must be"),
        (format!("/v1/plans/{PLAN}/events?limit=1001"), "limit must be"),
        (format!("/v1/tasks/{task}?run=1"), "this path takes none"),
        (format!("/v1/tasks/{task}/stages?limit=1"), "this path takes none"),
        (format!("/v1/tasks/{task}/checkpoints?cursor=c.4294967296"), "cursor must be"),
        (format!("/v1/tasks/{task}/events?cursor=e.-1"), "cursor must be"),
        ("/v1/tenants/x?limit=1".to_owned(), "this path takes none"),
        ("/v1/tenants/x/tasks?cursor=h.1".to_owned(), "cursor must be"),
        ("/v1/tenants/a%20b".to_owned(), "tenant must be"),
    ] {
        let (status, problem) = subject.send(Method::GET, &path, None).await;
        assert_eq!((status, &problem["code"]), (400, &json!("invalid")), "{path}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(says), "{path}: {problem}");
    }
}

#[actix_web::test]
async fn plans_may_be_long_and_other_bodies_may_not() {
    let subject = Subject::with(&["x"]).await;
    let long = |bytes: usize| format!(r#"{{"reason":"{}"}}"#, "x".repeat(bytes));
    let (status, problem) = subject.send(Method::POST, "/v1/plans", Some(&long(PLAN_BYTES_MAX - 100))).await;
    assert_eq!((status, &problem["code"]), (400, &json!("invalid")), "it was read");
    let retry = format!("/v1/tasks/{}/retry", task_id(0));
    for (path, bytes) in [
        ("/v1/plans", PLAN_BYTES_MAX),
        (retry.as_str(), PLAN_BYTES_MAX),
        ("/v1/tenants/x/unlock", 2 << 20),
        (&format!("/v1/plans/{PLAN}/pause"), 2 << 20),
    ] {
        let (status, problem) = subject.send(Method::POST, path, Some(&long(bytes))).await;
        assert_eq!((status, &problem["code"]), (413, &json!("too_large")), "{path}");
    }
}

#[actix_web::test]
async fn only_operators_resolve_stages_and_break_locks() {
    let dir = TempDir::new().unwrap();
    let auth = Auth::tokens(vec![token("user", Scope::Submit), token("ops", Scope::Admin)]);
    let service = init_service(app(&forwarder(&state(&dir, auth).await))).await;
    for (path, is_for_operators) in [
        (format!("/v1/tasks/{UNKNOWN}/stages/0/resolve"), true),
        ("/v1/tenants/x/unlock".to_owned(), true),
        (format!("/v1/tasks/{UNKNOWN}/retry"), false),
        (format!("/v1/tasks/{UNKNOWN}/cancel"), false),
        ("/v1/tenants/x/retry".to_owned(), false),
    ] {
        for (who, is_forbidden) in [("user", is_for_operators), ("ops", false)] {
            let request =
                TestRequest::post().uri(&path).insert_header((AUTHORIZATION, format!("Bearer {who}")));
            let status = call_service(&service, request.to_request()).await.status();
            assert_eq!(status == StatusCode::FORBIDDEN, is_forbidden, "{path} as {who}: {status}");
        }
    }
}
