//! What tokens with patterns see of plans, tasks and tenants, on every path and in every list.

use actix_web::http::Method;
use actix_web::test::read_body;
use serde_json::json;

use super::*;
use crate::limits::PLANS_SEEN_AT_ONCE;
use crate::visibility;

struct Subject {
    state: Arc<State>,
    _dir: TempDir,
}

fn of_pools(name: &str, scope: Scope, pools: &[&str]) -> Token {
    let pools = pools.iter().map(|text| domain::Pattern::parse(text).unwrap());
    let sees = Sees { pools: domain::Names::Some(pools.collect()), ..Sees::default() };
    Token { sees, ..token(name, scope) }
}

impl Subject {
    async fn start() -> Self {
        let dir = TempDir::new().unwrap();
        let tenants = domain::Names::Some(vec![domain::Pattern::parse("x").unwrap()].into());
        let auth = Auth::tokens(vec![
            token("ops", Scope::Admin),
            of_pools("a", Scope::Submit, &["a"]),
            of_pools("ab", Scope::Submit, &["a", "b*"]),
            of_pools("a-admin", Scope::Admin, &["a"]),
            Token { sees: Sees { tenants, ..Sees::default() }, ..token("x", Scope::Submit) },
        ]);
        Self { state: state(&dir, auth).await, _dir: dir }
    }

    async fn send(&self, who: &str, method: Method, path: &str, body: Option<Value>) -> (u16, Value) {
        self.send_under(None, who, method, path, body).await
    }

    /// The same under an idempotency key.
    async fn send_under(
        &self,
        key: Option<&str>,
        who: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> (u16, Value) {
        let service = init_service(app(&forwarder(&self.state))).await;
        let mut request = TestRequest::default().method(method).uri(path);
        request = request.insert_header((AUTHORIZATION, format!("Bearer {who}")));
        if let Some(key) = key {
            request = request.insert_header(("idempotency-key", key));
        }
        if let Some(body) = body {
            request = request.set_json(body);
        }
        let answer = call_service(&service, request.to_request()).await;
        let status = answer.status().as_u16();
        (status, serde_json::from_slice(&read_body(answer).await).unwrap())
    }

    async fn get(&self, who: &str, path: &str) -> Value {
        let (status, body) = self.send(who, Method::GET, path, None).await;
        assert_eq!(status, 200, "{who}: {path}: {body}");
        body
    }

    /// That all this is `not_found` for a token.
    async fn hides(&self, who: &str, requests: &[(Method, String, Option<Value>)]) {
        for (method, path, body) in requests {
            let (status, answer) = self.send(who, method.clone(), path, body.clone()).await;
            assert_eq!(
                (status, &answer["code"]),
                (404, &json!("not_found")),
                "{who}: {method} {path}: {answer}"
            );
        }
    }

    /// A plan whose tasks are for these tenants, each with a stage in each of these pools; and the ids of its tasks.
    async fn plan(&self, tasks: &[(&str, &[Option<&str>])]) -> (String, Vec<String>) {
        let stage = |(at, pool): (usize, &Option<&str>)| {
            let mut stage = json!({"name": at.to_string(), "payload": 1});
            if let Some(pool) = pool {
                stage["pool"] = json!(pool);
            }
            stage
        };
        let task = |(tenant, pools): &(&str, &[Option<&str>])| json!({"tenant": tenant, "stages": pools.iter().enumerate().map(stage).collect::<Vec<_>>()});
        let asked = json!({"tasks": tasks.iter().map(task).collect::<Vec<_>>()});
        let (status, plan) = self.send("ops", Method::POST, "/v1/plans", Some(asked)).await;
        assert_eq!(status, 201, "{plan}");
        let id = plan["id"].as_str().unwrap().to_owned();
        let tasks = self.get("ops", &format!("/v1/plans/{id}/tasks")).await;
        let ids =
            tasks["items"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned());
        (id, ids.collect())
    }

    /// Starts a plan, and waits until the first stage of this task has a job: its path.
    async fn job_of(&self, plan: &str, task: &str) -> String {
        assert_eq!(self.send("ops", Method::POST, &format!("/v1/plans/{plan}/start"), None).await.0, 200);
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        loop {
            let task = self.get("ops", &format!("/v1/tasks/{task}")).await;
            if let Some(job) = task["stages"][0]["job"].as_str() {
                return format!("/v1/jobs/{job}");
            }
            assert!(tokio::time::Instant::now() < until, "no stage has begun: {task}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Cancels a task, and waits until its tenant is free.
    async fn cancel(&self, task: &str) {
        assert_eq!(self.send("ops", Method::POST, &format!("{task}/cancel"), None).await.0, 200);
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        while !self.get("ops", task).await["lock"].is_null() {
            assert!(tokio::time::Instant::now() < until, "the task is not cancelled");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The ids on all pages of a list.
    async fn listed(&self, who: &str, path: &str, limit: u32) -> Vec<String> {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(who, &format!("{path}?limit={limit}{cursor}")).await;
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= limit as usize, "{page}");
            ids.extend(items.iter().map(|item| item["id"].as_str().unwrap().to_owned()));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return ids,
            }
        }
    }
}

/// Every request about a plan.
fn about_plan(plan: &str) -> Vec<(Method, String, Option<Value>)> {
    let reads = ["", "/tasks", "/events"].map(|end| (Method::GET, format!("/v1/plans/{plan}{end}"), None));
    let changes = ["start", "pause", "resume", "cancel"]
        .map(|change| (Method::POST, format!("/v1/plans/{plan}/{change}"), None));
    let lease = (Method::GET, format!("/v1/leases/plan:{plan}"), None);
    reads.into_iter().chain(changes).chain([lease]).collect()
}

fn again() -> Value {
    json!({"from": "start", "reason": "again"})
}

/// The same, with the stage in another pool.
fn again_in(pool: &str) -> Value {
    json!({"from": "start", "reason": "again", "stages": [{"name": "0", "payload": 1, "pool": pool}]})
}

/// Every request about a task.
fn about_task(task: &str) -> Vec<(Method, String, Option<Value>)> {
    let path = |end: &str| format!("/v1/tasks/{task}{end}");
    let reads = ["", "/stages", "/checkpoints", "/events"].map(|end| (Method::GET, path(end), None));
    let changes = ["/pause", "/resume", "/cancel"].map(|change| (Method::POST, path(change), None));
    let resolution = json!({"outcome": "done", "reason": "seen"});
    let decisions = [
        (Method::POST, path("/retry"), Some(again())),
        (Method::POST, path("/retry"), Some(again_in("a"))),
        (Method::POST, path("/stages/1/resolve"), Some(resolution)),
    ];
    reads.into_iter().chain(changes).chain(decisions).collect()
}

#[actix_web::test]
async fn a_plan_and_its_tasks_belong_to_the_pools_of_their_stages() {
    let subject = Subject::start().await;
    let (a, of_a) = subject.plan(&[("x", &[Some("a"), Some("a")])]).await;
    let (mixed, of_mixed) = subject.plan(&[("y", &[Some("a"), Some("b")])]).await;
    let (any, of_any) = subject.plan(&[("z", &[None])]).await;
    let (two, of_two) = subject.plan(&[("u", &[Some("a")]), ("v", &[Some("b")])]).await;
    for who in ["a", "a-admin"] {
        for plan in [&mixed, &any, &two] {
            subject.hides(who, &about_plan(plan)[..7]).await;
        }
        for task in [&of_mixed[0], &of_any[0], &of_two[1]] {
            let requests = about_task(task);
            // Only `admin` may resolve.
            let asked = if who == "a" { &requests[..requests.len() - 1] } else { &requests[..] };
            subject.hides(who, asked).await;
        }
        for limit in [1, 2, 100] {
            assert_eq!(subject.listed(who, "/v1/plans", limit).await, [a.as_str()], "{limit}");
        }
        subject.get(who, &format!("/v1/plans/{a}")).await;
        for task in [&of_a[0], &of_two[0]] {
            subject.get(who, &format!("/v1/tasks/{task}/checkpoints")).await;
            let defined = subject.get(who, &format!("/v1/tasks/{task}/stages")).await;
            assert_eq!(defined["stages"][0]["payload"], 1);
        }
    }
    for limit in [1, 2, 100] {
        assert_eq!(subject.listed("ab", "/v1/plans", limit).await, [&*two, &mixed, &a], "{limit}");
        assert_eq!(subject.listed("ops", "/v1/plans", limit).await, [&*two, &any, &mixed, &a], "{limit}");
    }
    subject.hides("ab", &about_plan(&any)[..7]).await;
    // A lease of a plan is the plan's.
    let (status, _) = subject.send("ops", Method::POST, &format!("/v1/plans/{mixed}/start"), None).await;
    assert_eq!(status, 200);
    subject.hides("a", &about_plan(&mixed)).await;
    subject.get("ab", &format!("/v1/leases/plan:{mixed}")).await;
}

#[actix_web::test]
async fn the_job_of_a_stage_is_changed_by_who_sees_the_whole_task() {
    let subject = Subject::start().await;
    let (plan, tasks) = subject.plan(&[("x", &[Some("a"), Some("b")])]).await;
    let job = subject.job_of(&plan, &tasks[0]).await;
    let changes = [
        (Method::POST, format!("{job}/dismiss"), None),
        (Method::DELETE, job.clone(), None),
        (Method::POST, format!("{job}/cancel"), None),
    ];
    for who in ["a", "a-admin"] {
        subject.get(who, &job).await;
        subject.hides(who, &changes).await;
    }
    for (method, path, _) in &changes[..2] {
        let (status, answer) = subject.send("ab", method.clone(), path, None).await;
        assert_eq!((status, &answer["code"]), (409, &json!("conflict")), "it is not finished: {answer}");
    }
    assert_eq!(subject.get("ops", &job).await["state"], "CREATED");
}

#[actix_web::test]
async fn a_caller_that_waits_for_a_job_is_answered_as_its_token_stands_by_then() {
    let (all, some) = (&["a", "b*"][..], &["b*"][..]);
    let renewed = Token { digests: vec![digest(b"new")], ..of_pools("ab", Scope::Submit, all) };
    for (tokens, wait_ms, expected) in [
        (vec![], 60_000, (401, json!("unauthorized"))),
        (vec![renewed], 60_000, (401, json!("unauthorized"))),
        (vec![of_pools("ab", Scope::Node, all)], 60_000, (403, json!("forbidden"))),
        (vec![of_pools("ab", Scope::Submit, some)], 60_000, (404, json!("not_found"))),
        (vec![of_pools("ab", Scope::Submit, &["a"])], 1_000, (200, Value::Null)),
    ] {
        let subject = Subject::start().await;
        let (plan, tasks) = subject.plan(&[("x", &[Some("a")])]).await;
        let path = format!("{}?wait_ms={wait_ms}", subject.job_of(&plan, &tasks[0]).await);
        let waited = subject.send("ab", Method::GET, &path, None);
        let changed = async {
            while subject.state.traffic.in_flight() == 0 {
                tokio::task::yield_now().await;
            }
            subject.state.settings.auth.replace(tokens);
        };
        let both = async { tokio::join!(waited, changed) };
        let ((status, answer), ()) =
            tokio::time::timeout(Duration::from_secs(20), both).await.expect("it ends with its token");
        assert_eq!((status, answer["code"].clone()), expected, "{answer}");
    }
}

#[actix_web::test]
async fn what_a_token_may_not_make_is_refused_with_the_path_of_the_field() {
    let subject = Subject::start().await;
    let is = |refused: &Value, code: &str, detail: String| {
        assert_eq!((&refused["code"], &refused["detail"]), (&json!(code), &json!(detail)), "{refused}");
    };
    let first = json!({"name": "0", "payload": 1, "pool": "a"});
    for (second, code, detail) in [
        (
            json!({"name": "1", "payload": 1}),
            "invalid",
            "stages[1].pool must be named: this token sees some pools only",
        ),
        (
            json!({"name": "1", "payload": 1, "pool": "c"}),
            "not_found",
            r#"stages[1].pool: this token sees no pool "c""#,
        ),
    ] {
        let stages = json!([first, second]);
        let asked = json!({"tasks": [{"tenant": "x", "stages": [first]}, {"tenant": "y", "stages": stages}]});
        let (_, refused) = subject.send("ab", Method::POST, "/v1/plans", Some(asked)).await;
        is(&refused, code, format!("tasks[1].{detail}"));
        let asked = json!({"from": "start", "reason": "again", "stages": stages});
        let (_, refused) = subject.send("ab", Method::POST, "/v1/tenants/x/retry", Some(asked)).await;
        is(&refused, code, detail.to_owned());
    }
    let asked = json!({"tasks": [{"tenant": "x", "stages": [first]}, {"tenant": "y", "stages": [first]}]});
    let (_, refused) = subject.send("x", Method::POST, "/v1/plans", Some(asked)).await;
    is(&refused, "not_found", r#"tasks[1].tenant: this token sees no tenant "y""#.to_owned());
}

#[actix_web::test]
async fn of_a_tenant_a_token_sees_the_tasks_of_its_pools() {
    let subject = Subject::start().await;
    let mut of_a = Vec::new();
    let mut all = Vec::new();
    for pool in ["a", "b", "a", "b", "b"] {
        let (plan, mut ids) = subject.plan(&[("x", &[Some(pool)])]).await;
        all.insert(0, ids[0].clone());
        if pool == "a" {
            of_a.insert(0, ids.remove(0));
        }
        // The last one has the tenant's lock.
        if all.len() == 5 {
            let (status, _) =
                subject.send("ops", Method::POST, &format!("/v1/plans/{plan}/start"), None).await;
            assert_eq!(status, 200);
        }
    }
    subject.plan(&[("y", &[Some("b")])]).await;
    for limit in [1, 2, 3, 100] {
        assert_eq!(subject.listed("a", "/v1/tenants/x/tasks", limit).await, of_a, "{limit}");
        assert_eq!(subject.listed("ab", "/v1/tenants/x/tasks", limit).await, all, "{limit}");
        assert_eq!(subject.listed("ops", "/v1/tenants/x/tasks", limit).await, all, "{limit}");
    }
    assert_eq!(subject.get("a", "/v1/tenants/x").await["task"]["id"], of_a[0].as_str());
    let shown = subject.get("ab", "/v1/tenants/x").await;
    assert_eq!(shown["task"]["id"], all[0].as_str());
    let path = |end: &str| format!("/v1/tenants/y{end}");
    let none = [
        (Method::GET, path(""), None),
        (Method::GET, path("/tasks"), None),
        (Method::POST, path("/retry"), Some(again())),
    ];
    subject.hides("a", &none).await;
    // The newest that it sees is retried, which this time is refused; no newer one of another pool.
    let (status, refused) = subject.send("a", Method::POST, "/v1/tenants/x/retry", Some(again())).await;
    assert_eq!(status, 409, "{refused}");
    let token = shown["lock"]["token"].as_u64().unwrap();
    let unlock = json!({"token": token, "reason": "stuck"});
    subject
        .hides("a-admin", &[(Method::POST, "/v1/tenants/x/unlock".to_owned(), Some(unlock.clone()))])
        .await;
    let (status, unlocked) = subject.send("ops", Method::POST, "/v1/tenants/x/unlock", Some(unlock)).await;
    assert_eq!((status, &unlocked["lock"]), (200, &Value::Null), "{unlocked}");
}

/// The page ends behind a task that the token does not see.
#[actix_web::test]
async fn the_cursor_of_a_tenants_tasks_names_no_task_to_a_token_that_may_not_see_it() {
    let subject = Subject::start().await;
    let mut ids = Vec::new();
    for pool in ["a", "b", "a"] {
        ids.insert(0, subject.plan(&[("x", &[Some(pool)])]).await.1.remove(0));
    }
    let path = "/v1/tenants/x/tasks";
    let in_clear = |id: &str| format!("h.{id}");
    let page = async |who: &str, cursor: &str| subject.get(who, &format!("{path}?limit=1{cursor}")).await;
    assert_eq!(page("ops", "").await["next_cursor"], in_clear(&ids[0]));
    let first = page("a", "").await;
    let cursor = first["next_cursor"].as_str().unwrap();
    assert!(cursor.starts_with("h.~") && !first.to_string().contains(&ids[1]), "{first}");
    assert_eq!((&first["items"][0]["id"], page("a", "").await), (&json!(ids[0]), first.clone()));
    let last = page("a", &format!("&cursor={cursor}")).await;
    assert_eq!((&last["items"][0]["id"], &last["next_cursor"]), (&json!(ids[2]), &Value::Null));
    for (who, cursor) in [
        ("a", in_clear(&ids[0])),
        ("a", in_clear(&ids[1])),
        ("ab", cursor.to_owned()),
        ("ops", cursor.to_owned()),
    ] {
        let (status, refused) =
            subject.send(who, Method::GET, &format!("{path}?cursor={cursor}"), None).await;
        assert_eq!((status, &refused["code"]), (400, &json!("invalid")), "{who}: {cursor}: {refused}");
    }
}

#[actix_web::test]
async fn a_lock_is_seen_by_who_sees_the_task_that_has_it() {
    let subject = Subject::start().await;
    let (holder, tasks) = subject.plan(&[("x", &[Some("b")])]).await;
    let (own, _) = subject.plan(&[("x", &[Some("a")])]).await;
    assert_eq!(subject.send("ops", Method::POST, &format!("/v1/plans/{holder}/start"), None).await.0, 200);
    let (lease, leases) = ("/v1/leases/tenant:x", "/v1/leases?kind=tenant");
    for who in ["a", "a-admin"] {
        subject.hides(who, &[(Method::GET, lease.to_owned(), None)]).await;
        assert_eq!(subject.get(who, leases).await["items"], json!([]), "{who}");
    }
    for who in ["ab", "ops"] {
        let owner = json!(format!("task:{}", tasks[0]));
        assert_eq!(subject.get(who, lease).await["owner"], owner, "{who}");
        assert_eq!(subject.get(who, leases).await["items"][0]["owner"], owner, "{who}");
    }
    let stage = json!({"name": "0", "payload": 1, "pool": "a"});
    let asked = json!({"start": true, "tasks": [{"tenant": "x", "stages": [stage]}]});
    for (who, is_seen) in [("a", false), ("a-admin", false), ("ab", true), ("ops", true)] {
        let started = subject.send(who, Method::POST, &format!("/v1/plans/{own}/start"), None).await;
        let made = subject.send(who, Method::POST, "/v1/plans", Some(asked.clone())).await;
        for (status, refused) in [started, made] {
            let code = (status, &refused["code"], &refused["tenant"]);
            assert_eq!(code, (409, &json!("tenant_locked"), &json!("x")), "{who}: {refused}");
            let named = if is_seen { (json!(tasks[0]), json!(holder)) } else { (Value::Null, Value::Null) };
            assert_eq!((&refused["task"], &refused["plan"]), (&named.0, &named.1), "{who}: {refused}");
            assert_eq!(refused.to_string().contains(&tasks[0]), is_seen, "{who}: {refused}");
        }
    }
    // A lock that is free names nobody, and would say when a task had it.
    subject.cancel(&format!("/v1/tasks/{}", tasks[0])).await;
    for who in ["a", "ab", "a-admin"] {
        subject.hides(who, &[(Method::GET, lease.to_owned(), None)]).await;
        assert_eq!(subject.get(who, leases).await["items"], json!([]), "{who}");
    }
    for who in ["x", "ops"] {
        assert_eq!(subject.get(who, lease).await["owner"], Value::Null, "{who}");
        assert_eq!(subject.get(who, leases).await["items"][0]["resource"], json!("tenant:x"), "{who}");
    }
}

/// A lease that nobody has.
fn free_lease(resource: domain::Resource) -> ledger::Lease {
    ledger::Lease {
        resource,
        owner: None,
        token: domain::Token::new(1),
        acquired_at: Timestamp::from_micros(0),
        renewed_at: Timestamp::from_micros(0),
        expires_in_ms: 0,
    }
}

/// A list then goes on behind those that were looked at.
#[actix_web::test]
async fn of_many_plans_and_leases_a_piece_is_looked_at_and_more_as_long_as_there_is_time() {
    let subject = Subject::start().await;
    let state = &subject.state;
    let pools = domain::Names::Some(vec![domain::Pattern::parse("a").unwrap()].into());
    let (sees, sees_all) = (Sees { pools, ..Sees::default() }, Sees::default());
    let piece = PLANS_SEEN_AT_ONCE;
    let ids: Vec<_> = (0..=piece as u128).map(PlanId::from_u128).collect();
    let leases: Vec<_> = ids.iter().map(|id| free_lease(domain::Resource::plan(*id))).collect();
    let (over, in_time) = (Instant::now(), Instant::now() + Duration::from_secs(3_600));
    for (sees, until, looked_at) in
        [(&sees, over, piece), (&sees, in_time, piece + 1), (&sees_all, over, piece + 1)]
    {
        let (seen, plans) = visibility::plans(state, sees, &ids, until).await.unwrap();
        let all = if sees.everything() { piece + 1 } else { 0 };
        assert_eq!((seen.len(), plans), (all, looked_at));
        let seen = visibility::leases(state, sees, &leases, until).await.unwrap();
        assert_eq!(seen, vec![sees.everything(); looked_at]);
    }
    // To look at a lock of a tenant can take a read of its own.
    let lock = |name: &str| free_lease(domain::Resource::tenant(&domain::TenantId::parse(name).unwrap()));
    let locks = ["x", "y", "z"].map(lock);
    for (until, looked_at) in [(over, 1), (in_time, 3)] {
        let seen = visibility::leases(state, &sees, &locks, until).await.unwrap();
        assert_eq!(seen, vec![false; looked_at]);
    }
}

#[actix_web::test]
async fn a_stream_of_a_plan_ends_when_a_retry_gives_the_plan_to_a_pool_that_its_client_does_not_see() {
    let subject = Subject::start().await;
    let (plan, tasks) = subject.plan(&[("x", &[Some("a")])]).await;
    let (plan, task) = (format!("/v1/plans/{plan}"), format!("/v1/tasks/{}", tasks[0]));
    assert_eq!(subject.send("ops", Method::POST, &format!("{plan}/start"), None).await.0, 200);
    subject.cancel(&task).await;
    let service = init_service(app(&forwarder(&subject.state))).await;
    let mut streams = Vec::new();
    for path in [&plan, &task] {
        let request = TestRequest::get().uri(&format!("{path}/events"));
        let request = request.insert_header((AUTHORIZATION, "Bearer a"));
        let request = request.insert_header(("accept", "text/event-stream"));
        let answer = call_service(&service, request.to_request()).await;
        assert_eq!(answer.status(), StatusCode::OK);
        streams.push(answer);
    }
    let retry = again_in("b");
    let (status, retried) = subject.send("ops", Method::POST, &format!("{task}/retry"), Some(retry)).await;
    assert_eq!(status, 202, "{retried}");
    for stream in streams {
        let text = tokio::time::timeout(Duration::from_secs(10), read_body(stream)).await.unwrap();
        let text = std::str::from_utf8(&text).unwrap();
        assert!(text.contains("CANCELLED") && !text.contains("retried"), "{text}");
    }
    for path in [&plan, &task] {
        subject.hides("a", &[(Method::GET, format!("{path}/events"), None)]).await;
    }
}

#[actix_web::test]
async fn a_repetition_under_a_key_shows_nothing_that_its_token_sees_no_more() {
    let subject = Subject::start().await;
    let stage = json!({"name": "0", "payload": 1, "pool": "a"});
    let asked = json!({"start": true, "tasks": [{"tenant": "x", "stages": [stage]}]});
    let make =
        async || subject.send_under(Some("k"), "a", Method::POST, "/v1/plans", Some(asked.clone())).await;
    let retry =
        async || subject.send_under(Some("k"), "a", Method::POST, "/v1/tenants/x/retry", Some(again())).await;
    let (status, plan) = make().await;
    assert_eq!(status, 201, "{plan}");
    let tasks = subject.get("a", &format!("/v1/plans/{}/tasks", plan["id"].as_str().unwrap())).await;
    let task = format!("/v1/tasks/{}", tasks["items"][0]["id"].as_str().unwrap());
    subject.cancel(&task).await;
    let (status, retried) = retry().await;
    assert_eq!((status, &retried["run"]), (202, &json!(2)), "{retried}");
    subject.cancel(&task).await;
    for (status, (answered, answer)) in [(201, make().await), (202, retry().await)] {
        assert_eq!(status, answered, "it is seen still, and not made again: {answer}");
    }
    let (status, moved) =
        subject.send("ops", Method::POST, &format!("{task}/retry"), Some(again_in("b"))).await;
    assert_eq!((status, &moved["run"]), (202, &json!(3)), "{moved}");
    for (status, answer) in [make().await, retry().await] {
        assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{answer}");
    }
}
