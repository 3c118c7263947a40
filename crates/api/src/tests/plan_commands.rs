//! Plans as callers make and steer them, with their owners in this process and no node that would run a stage.

use actix_web::http::Method;
use actix_web::test::read_body;
use domain::plan::{Command, PlanSpec, PlanState, StageSpec, TaskSpec, TaskState};
use domain::{JobId, PlanId, TaskId, Timestamp};
use serde_json::json;

use super::*;

struct Subject {
    state: Arc<State>,
    _dir: TempDir,
}

/// An answer: its status, its `Location`, and its body.
type Answered = (u16, Option<String>, Value);

impl Subject {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let auth = Auth::tokens(vec![token("ops", Scope::Admin)]);
        Self { state: state(&dir, auth).await, _dir: dir }
    }

    async fn send(&self, method: Method, path: &str, key: Option<&str>, body: Option<Value>) -> Answered {
        let service = init_service(app(&forwarder(&self.state))).await;
        let mut request = TestRequest::default().method(method).uri(path);
        request = request.insert_header((AUTHORIZATION, "Bearer ops")).insert_header(("x-request-id", "r-1"));
        if let Some(key) = key {
            request = request.insert_header(("idempotency-key", key));
        }
        if let Some(body) = body {
            request = request.set_json(body);
        }
        let answer = call_service(&service, request.to_request()).await;
        let location = answer.headers().get("location").map(|value| value.to_str().unwrap().to_owned());
        let status = answer.status().as_u16();
        (status, location, serde_json::from_slice(&read_body(answer).await).unwrap())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, _, body) = self.send(Method::GET, path, None, None).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// A change that is carried out.
    async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let (status, _, answer) = self.send(Method::POST, path, None, Some(body)).await;
        assert!(status < 300, "{path}: {answer}");
        (status, answer)
    }

    /// A change that is refused as a conflict of this code.
    async fn refused(&self, path: &str, body: Value, code: &str) -> Value {
        let (status, _, problem) = self.send(Method::POST, path, None, Some(body)).await;
        assert_eq!((status, &problem["code"]), (409, &json!(code)), "{path}: {problem}");
        problem
    }

    /// A plan for one tenant that is started at once; its path and that of its task.
    async fn started(&self, tenant: &str) -> (String, String) {
        let (status, _, plan) = self.send(Method::POST, "/v1/plans", None, Some(asked(tenant, true))).await;
        assert_eq!((status, &plan["status"]), (201, &json!("RUNNING")), "{plan}");
        let path = format!("/v1/plans/{}", plan["id"].as_str().unwrap());
        let tasks = self.get(&format!("{path}/tasks")).await;
        (path, format!("/v1/tasks/{}", tasks["items"][0]["id"].as_str().unwrap()))
    }

    /// Reads a task until it has this status.
    async fn becomes(&self, task: &str, status: &str) -> Value {
        self.shows(task, |shown| shown["status"] == status).await
    }

    /// Reads a task until it is cancelled and its tenant is free, which it is once the job of its stage is over: nothing more
    /// comes.
    async fn becomes_cancelled(&self, task: &str) -> Value {
        let is_done = |shown: &Value| shown["lock"].is_null() && shown["waits_for"].is_null();
        self.shows(task, |shown| shown["status"] == "CANCELLED" && is_done(shown)).await
    }

    async fn shows(&self, task: &str, is_reached: impl Fn(&Value) -> bool) -> Value {
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let shown = self.get(task).await;
            if is_reached(&shown) {
                return shown;
            }
            assert!(tokio::time::Instant::now() < until, "what the test waits for does not come: {shown}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn stages() -> Value {
    json!([{ "name": "prepare", "payload": 1 }, { "name": "50% / half", "payload": 2 }])
}

fn asked(tenant: &str, start: bool) -> Value {
    json!({ "start": start, "tasks": [{ "tenant": tenant, "config": { "size": 3 }, "stages": stages() }] })
}

fn retry(from: Value) -> Value {
    json!({ "from": from, "reason": "again" })
}

#[actix_web::test]
async fn a_plan_is_made_once_under_its_key_and_started_later() {
    let subject = Subject::start().await;
    let make = async |key, tenant| {
        subject.send(Method::POST, "/v1/plans", Some(key), Some(asked(tenant, false))).await
    };
    let (status, location, plan) = make("k", "x").await;
    assert_eq!((status, &plan["status"], &plan["attention"]), (201, &json!("CREATED"), &json!([])));
    let path = location.unwrap();
    assert_eq!(path, format!("/v1/plans/{}", plan["id"].as_str().unwrap()));
    assert_eq!(subject.get(&path).await, plan);
    let (status, location, again) = make("k", "x").await;
    assert_eq!((status, location, again), (201, Some(path.clone()), plan));
    let (status, _, problem) = make("k", "y").await;
    assert_eq!((status, &problem["code"]), (422, &json!("key_reused")));
    for _ in 0..2 {
        let (_, plan) = subject.post(&format!("{path}/start"), json!({ "reason": "now" })).await;
        assert_eq!((&plan["status"], &plan["progress"]["total"]), (&json!("RUNNING"), &json!(1)));
    }
    let events = subject.get(&format!("{path}/events")).await;
    let events = events["items"].as_array().unwrap();
    let started = events.iter().find(|event| event["after"] == "RUNNING" && event["task"].is_null()).unwrap();
    let whose = [&started["principal"], &started["request_id"], &started["reason"]];
    assert_eq!(whose, [&json!("ops"), &json!("r-1"), &json!("now")]);
}

/// What an instance leaves behind that makes a plan, starts it in the same commit, and is slower to own it than others are to
/// find it: the plan, its locks, and no owner ever.
#[actix_web::test]
async fn a_plan_that_nobody_has_owned_is_begun_by_whoever_takes_it_up() {
    let dir = TempDir::new().unwrap();
    let services = services(&dir).await;
    let ledger = Arc::clone(&services.ledger);
    let state = State::new(
        early(Options::default()).0,
        Settings::new(Auth::tokens(vec![token("ops", Scope::Admin)])),
        runtime::Handle::current(),
    );
    state.open(services);
    let subject = Subject { state: Arc::new(state), _dir: dir };

    let new_id = || u128::from_be_bytes(*uuid::Uuid::now_v7().as_bytes());
    let stages = [StageSpec::new("prepare", "1"), StageSpec::new("finish", "2")];
    let tenant = domain::TenantId::parse("x").unwrap();
    let task_id = TaskId::from_u128(new_id());
    let task = TaskState::new(task_id, Arc::new(TaskSpec::new(tenant, stages)));
    let plan = PlanState::new(PlanId::from_u128(new_id()), Arc::new(PlanSpec::default()), vec![task]);
    let now = Timestamp::from_micros(ledger.clock_ms().await.unwrap() as i64 * 1_000);
    let started = plan.apply(&Command::Start, now, &mut || JobId::from_u128(new_id())).unwrap();
    let rows = NewPlan {
        plan: Arc::new(PlanState { version: plan.version, ..started.next }),
        take: started.writes.take,
        lock_ms: 60_000,
        events: started.writes.events,
        key: None,
        author: Author::default(),
        audit: None,
    };
    let made = ledger.create_plan(rows).await.unwrap();
    assert!(matches!(made, ledger::PlanCreated::Made { .. }), "{made:?}");

    let path = format!("/v1/tasks/{task_id}");
    let until = tokio::time::Instant::now() + Duration::from_secs(10);
    let shown = loop {
        let shown = subject.get(&path).await;
        if shown["stages"][0]["job"].is_string() || shown["status"] == "INTERRUPTED" {
            break shown;
        }
        assert!(tokio::time::Instant::now() < until, "nobody takes it up: {shown}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!((&shown["status"], &shown["stages"][0]["status"]), (&json!("RUNNING"), &json!("RUNNING")));
}

#[actix_web::test]
async fn a_tenant_that_is_locked_refuses_every_other_plan_by_name() {
    let subject = Subject::start().await;
    let (plan, task) = subject.started("x").await;
    let is_named = |problem: &Value| {
        assert_eq!(problem["tenant"], "x");
        assert_eq!(format!("/v1/plans/{}", problem["plan"].as_str().unwrap()), plan);
        assert_eq!(format!("/v1/tasks/{}", problem["task"].as_str().unwrap()), task);
    };
    is_named(&subject.refused("/v1/plans", asked("x", true), "tenant_locked").await);
    assert_eq!(subject.get("/v1/plans").await["items"].as_array().unwrap().len(), 1, "it was not made");
    let (_, other) = subject.post("/v1/plans", asked("x", false)).await;
    let start = format!("/v1/plans/{}/start", other["id"].as_str().unwrap());
    is_named(&subject.refused(&start, json!({}), "tenant_locked").await);
    // The tenant's newest task is that of the plan that waits.
    let problem = subject.refused("/v1/tenants/x/retry", retry(json!("start")), "conflict").await;
    let says = format!("plan {}, which was never started", other["id"].as_str().unwrap());
    assert!(problem["detail"].as_str().unwrap().ends_with(&says), "{problem}");
    subject.post(&format!("{plan}/cancel"), json!({})).await;
    subject.becomes_cancelled(&task).await;
    assert_eq!(subject.post(&start, json!({})).await.1["status"], "RUNNING");
}

#[actix_web::test]
async fn plans_and_tasks_are_paused_resumed_and_cancelled_and_nothing_happens_twice() {
    let subject = Subject::start().await;
    let (plan, task) = subject.started("x").await;
    for (path, intent) in [(&task, "pause"), (&task, "run"), (&plan, "pause"), (&plan, "run")] {
        let change = if intent == "run" { "resume" } else { intent };
        for _ in 0..2 {
            let (status, shown) = subject.post(&format!("{path}/{change}"), json!({ "reason": "r" })).await;
            assert_eq!((status, &shown["intent"]), (200, &json!(intent)), "{path} {change}");
        }
    }
    let (other_plan, other_task) = subject.started("y").await;
    for (path, task) in [(&task, &task), (&other_plan, &other_task)] {
        for _ in 0..2 {
            assert_eq!(subject.post(&format!("{path}/cancel"), json!({})).await.0, 200);
        }
        assert_eq!(subject.becomes_cancelled(task).await["intent"], "cancel");
    }
    assert_eq!(subject.get(&plan).await["status"], "CANCELLED");
    subject.refused(&format!("{task}/pause"), json!({}), "conflict").await;
    subject.refused(&format!("{task}/resume"), json!({}), "conflict").await;
    subject.refused(&format!("{plan}/resume"), json!({}), "conflict").await;
}

#[actix_web::test]
async fn a_plan_is_resumed_without_its_paused_tasks_where_the_request_says_so() {
    let subject = Subject::start().await;
    let (plan, task) = subject.started("x").await;
    subject.post(&format!("{task}/pause"), json!({})).await;
    for (body, of_task) in
        [(json!({ "keep_paused": true, "reason": "r" }), "pause"), (json!({ "keep_paused": false }), "run")]
    {
        subject.post(&format!("{plan}/pause"), json!({})).await;
        let (status, shown) = subject.post(&format!("{plan}/resume"), body).await;
        assert_eq!((status, &shown["intent"]), (200, &json!("run")));
        assert_eq!(subject.get(&task).await["intent"], of_task);
    }
}

#[actix_web::test]
async fn a_retry_opens_the_next_run_and_a_rehearsal_changes_nothing() {
    let subject = Subject::start().await;
    let (_, task) = subject.started("x").await;
    let again = format!("{task}/retry");
    subject.refused(&again, retry(json!("checkpoint")), "still_running").await;
    subject.post(&format!("{task}/cancel"), json!({})).await;
    let before = subject.becomes_cancelled(&task).await;
    let rehearsal = json!({
        "from": "start", "context_patch": { "a": 1 }, "config": [7], "max_attempts": 3, "reason": "r", "dry_run": true,
    });
    let (status, shown) = subject.post(&again, rehearsal).await;
    assert_eq!((status, &shown["run"], &shown["status"]), (200, &json!(2), &json!("PENDING")));
    assert_eq!((&shown["context"], &shown["config"]), (&json!({ "a": 1 }), &json!([7])));
    assert_eq!((&shown["definition"], &shown["has_checkpoint"]), (&json!(2), &json!(false)));
    assert_eq!(subject.get(&task).await, before);
    let expect =
        |run| json!({ "from": "start", "expect": { "run": run, "checkpoint_version": 0 }, "reason": "r" });
    subject.refused(&again, expect(2), "conflict").await;
    let (status, _, problem) =
        subject.send(Method::POST, &again, None, Some(retry(json!({ "checkpoint_version": 1 })))).await;
    assert_eq!((status, &problem["code"]), (404, &json!("not_found")), "{problem}");
    let (status, shown) = subject.post("/v1/tenants/x/retry", expect(1)).await;
    assert_eq!((status, &shown["run"]), (202, &json!(2)));
    assert_eq!(format!("/v1/tasks/{}", shown["id"].as_str().unwrap()), task);
    assert!(subject.becomes(&task, "RUNNING").await["lock"]["token"].is_u64());
}

#[actix_web::test]
async fn a_person_corrects_a_stage_without_the_file_of_the_plan() {
    let subject = Subject::start().await;
    let (_, task) = subject.started("x").await;
    subject.post(&format!("{task}/cancel"), json!({})).await;
    subject.becomes_cancelled(&task).await;
    let shown = subject.get(&format!("{task}/stages")).await;
    assert_eq!(format!("/v1/tasks/{}", shown["task"].as_str().unwrap()), task);
    let seen = |shown: &Value| {
        [&shown["run"], &shown["checkpoint_version"], &shown["definition"]].map(Value::as_u64)
    };
    assert_eq!(seen(&shown), [Some(1), Some(0), Some(1)]);
    let payloads = |shown: &Value| {
        let stages = shown["stages"].as_array().unwrap().iter();
        stages.map(|stage| (stage["name"].clone(), stage["payload"].clone())).collect::<Vec<_>>()
    };
    let (first, second) = ((json!("prepare"), json!(1)), json!("50% / half"));
    assert_eq!(payloads(&shown), [first.clone(), (second.clone(), json!(2))]);
    // As it is shown it is no correction.
    let mut again = retry(json!("start"));
    (again["stages"], again["dry_run"]) = (shown["stages"].clone(), json!(true));
    let retried = format!("{task}/retry");
    assert_eq!(subject.post(&retried, again.clone()).await.1["definition"], 1);
    (again["stages"][1]["payload"], again["dry_run"]) = (json!({ "part": 3 }), json!(false));
    again["expect"] = json!({ "run": shown["run"], "checkpoint_version": shown["checkpoint_version"] });
    assert_eq!(subject.post(&retried, again).await.1["definition"], 2);
    let shown = subject.get(&format!("{task}/stages")).await;
    assert_eq!(seen(&shown), [Some(2), Some(0), Some(2)]);
    assert_eq!(payloads(&shown), [first, (second, json!({ "part": 3 }))]);
}

#[actix_web::test]
async fn a_cancellation_that_says_its_run_leaves_the_next_one_alone() {
    let subject = Subject::start().await;
    let (_, task) = subject.started("x").await;
    let (cancel, of_run) = (format!("{task}/cancel"), |run| json!({ "expect": { "run": run } }));
    subject.refused(&cancel, of_run(2), "conflict").await;
    assert_eq!(subject.post(&cancel, of_run(1)).await.0, 200);
    subject.becomes_cancelled(&task).await;
    assert_eq!(subject.post(&cancel, of_run(1)).await.0, 200, "once more it changes nothing");
    assert_eq!(subject.post(&format!("{task}/retry"), retry(json!("start"))).await.0, 202);
    subject.refused(&cancel, of_run(1), "conflict").await;
    assert_eq!(subject.get(&task).await["intent"], "run");
}

#[actix_web::test]
async fn a_rehearsal_of_one_token_leaves_a_turn_to_others() {
    let dir = TempDir::new().unwrap();
    let tokens = ["ops", "other"].map(|name| token(name, Scope::Admin));
    // A rehearsal waits so long for its turn.
    let request_timeout = Duration::from_secs(2);
    let settings = Settings { request_timeout, ..Settings::new(Auth::tokens(tokens.into())) };
    let subject = Subject { state: state_with(&dir, settings).await, _dir: dir };
    let (_, task) = subject.started("x").await;
    subject.post(&format!("{task}/cancel"), json!({})).await;
    subject.becomes_cancelled(&task).await;
    let service = init_service(app(&forwarder(&subject.state))).await;
    let rehearsed = async |who: &str| {
        let rehearsal = json!({ "from": "start", "reason": "r", "dry_run": true });
        let request = TestRequest::post().uri(&format!("{task}/retry")).set_json(rehearsal);
        let request = request.insert_header((AUTHORIZATION, format!("Bearer {who}")));
        let answer = call_service(&service, request.to_request()).await;
        let (status, body): (_, Value) = (answer.status().as_u16(), read_body_json(answer).await);
        (status, body["code"].clone())
    };
    let ops = subject.state.settings.auth.named("ops").unwrap();
    let under_way = ops.used().unwrap().retry_dry_run.lock().await;
    assert_eq!(rehearsed("ops").await, (429, json!("overloaded")));
    assert_eq!(rehearsed("other").await, (200, Value::Null), "another token has its own turn");
    drop(under_way);
    assert_eq!(rehearsed("ops").await, (200, Value::Null));
}

#[actix_web::test]
async fn a_lock_is_broken_by_its_token_and_the_stage_is_resolved_by_a_person() {
    let subject = Subject::start().await;
    let (plan, task) = subject.started("x").await;
    let token = subject.get("/v1/tenants/x").await["lock"]["token"].as_i64().unwrap();
    let unlock = |token: i64| json!({ "token": token, "reason": "it hangs" });
    subject.refused("/v1/tenants/x/unlock", unlock(token + 1), "conflict").await;
    let (_, tenant) = subject.post("/v1/tenants/x/unlock", unlock(token)).await;
    assert_eq!(tenant["lock"], Value::Null);
    subject.refused("/v1/tenants/x/unlock", unlock(token), "conflict").await;
    let shown = subject.becomes(&task, "INTERRUPTED").await;
    assert_eq!(shown["stages"][0]["status"], "UNKNOWN");
    assert_eq!(subject.get(&plan).await["attention"][0]["stage_name"], "prepare");
    let again = format!("{task}/retry");
    let mut preview = retry(json!("checkpoint"));
    preview["dry_run"] = json!(true);
    for (path, body) in [
        (&*again, retry(json!("checkpoint"))),
        (&*again, preview),
        ("/v1/tenants/x/retry", retry(json!("checkpoint"))),
    ] {
        let problem = subject.refused(path, body, "stage_unknown").await;
        assert_eq!((&problem["task"], &problem["stage"]), (&shown["id"], &json!(1)), "{problem}");
    }
    let resolve = |stage: &str| format!("{task}/stages/{stage}/resolve");
    let done = json!({ "outcome": "done", "context": { "disk": 1 }, "reason": "I looked" });
    subject.refused(&resolve("50%25%20%2F%20half"), done.clone(), "conflict").await;
    subject.refused(&resolve("2"), done.clone(), "conflict").await;
    let mut of_another = done.clone();
    of_another["job"] = shown["id"].clone();
    subject.refused(&resolve("prepare"), of_another, "conflict").await;
    assert_eq!(subject.get(&task).await["stages"][0]["status"], "UNKNOWN", "nothing changes");
    let mut done = done;
    done["job"] = shown["stages"][0]["job"].clone();
    let (_, shown) = subject.post(&resolve("prepare"), done.clone()).await;
    assert_eq!((&shown["stages"][0]["status"], &shown["stage"]), (&json!("SUCCEEDED"), &json!(2)));
    assert_eq!(shown["checkpoint"]["context"], json!({ "disk": 1 }));
    subject.refused(&resolve("1"), done, "conflict").await;
    let mut corrected = retry(json!("checkpoint"));
    corrected["stages"] = json!([{ "name": "other", "payload": 1 }]);
    subject.refused(&again, corrected, "definition_changed").await;
    let mut corrected = retry(json!({ "checkpoint_version": 1 }));
    corrected["stages"] = json!([stages()[0], { "name": "whole", "payload": 3 }]);
    corrected["context_patch"] = json!({ "by_hand": true });
    let (status, shown) = subject.post(&again, corrected).await;
    assert_eq!((status, &shown["stages"][0]["status"]), (202, &json!("SKIPPED")));
    assert_eq!((&shown["stages"][1]["name"], &shown["definition"]), (&json!("whole"), &json!(2)));
    assert_eq!(shown["checkpoint"]["context"], json!({ "disk": 1 }), "as it was saved");
    assert_eq!(shown["context"], json!({ "disk": 1, "by_hand": true }));
}

#[actix_web::test]
async fn a_task_whose_job_was_called_off_with_its_lock_is_cancelled_when_somebody_says_so() {
    let subject = Subject::start().await;
    let (plan, task) = subject.started("x").await;
    let token = subject.get("/v1/tenants/x").await["lock"]["token"].as_i64().unwrap();
    subject.post("/v1/tenants/x/unlock", json!({ "token": token, "reason": "it hangs" })).await;
    let shown = subject.becomes(&task, "INTERRUPTED").await;
    let job = format!("/v1/jobs/{}", shown["stages"][0]["job"].as_str().unwrap());
    assert_eq!(subject.shows(&job, |job| job["state"] == "FINISHED").await["outcome"], "cancelled");
    let how = "stage prepare: its job was cancelled, and the task has lost its tenant's lock";
    let shown = subject.shows(&task, |shown| shown["reason"] == how).await;
    assert_eq!(shown["stages"][0]["status"], "UNKNOWN");
    let events = subject.get(&format!("{task}/events")).await;
    let is_told = |event: &&Value| event["kind"] == "stage" && event["before"] == "UNKNOWN";
    let told: Vec<_> = events["items"].as_array().unwrap().iter().filter(is_told).collect();
    let [told] = told[..] else { panic!("{events}") };
    assert_eq!((&told["after"], &told["reason"]), (&json!("UNKNOWN"), &json!(how)));
    subject.post(&format!("{task}/cancel"), json!({})).await;
    assert_eq!(subject.becomes_cancelled(&task).await["stages"][0]["status"], "UNKNOWN");
    assert_eq!(subject.get(&plan).await["status"], "CANCELLED");
    // That somebody cancels it does not say what its stage did.
    let again = format!("{task}/retry");
    subject.refused(&again, retry(json!("checkpoint")), "stage_unknown").await;
    let not_done = json!({ "outcome": "not_done", "reason": "I looked" });
    let (status, shown) = subject.post(&format!("{task}/stages/1/resolve"), not_done).await;
    let found = (&shown["status"], &shown["stages"][0]["status"]);
    assert_eq!((status, found), (200, (&json!("CANCELLED"), &json!("PENDING"))), "{shown}");
    let (status, shown) = subject.post(&again, retry(json!("checkpoint"))).await;
    assert_eq!((status, &shown["run"]), (202, &json!(2)), "{shown}");
}
