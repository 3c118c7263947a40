//! What operators do is in the audit, and does not happen where the audit does not take its entry.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::node::Socket;
use testkit::process::Signal;
use testkit::servers::Database;

use super::operations;
use super::world::{self, Ground};
use crate::bad_input::socket::{Answer, Request};
use crate::tokens::{Guarded, root, write};
use crate::until;

/// One action of an operator: the operation, what the audit calls it, and its request.
struct Action {
    operation: &'static str,
    name: &'static str,
    subject: String,
    method: &'static str,
    path: String,
    body: Value,
}

impl Action {
    async fn ask(&self, daemon: &Guarded, id: &str) -> Answer {
        let address = daemon.instance.url().strip_prefix("http://").unwrap();
        let request = Request::new(self.method, &self.path).token("root").header("x-request-id", id);
        request.json(self.body.to_string()).send(address).await
    }
}

/// The node `n-1`, which says that it runs these.
async fn node(daemon: &Guarded, running: &Value) -> Socket {
    let mut socket = Socket::connect_with(daemon.instance.url(), "root").await.unwrap();
    let hello = json!({"node_id": "n-1", "capacity": 8, "running": running});
    socket.send(world::message("hello", &hello)).await.unwrap();
    world::frame(&mut socket, "welcome").await;
    until("the node is listed", async || daemon.ask("root", "GET", "/v1/nodes/n-1", None).await.0 == 200)
        .await;
    socket
}

/// The tasks of three tenants, in plans of `user`, whose stages were running when the instance was killed: `t1`, whose stage is
/// UNKNOWN, and `t2` and `t3`, whose stages may be run again.
async fn interrupted(daemon: &mut Guarded) -> Vec<String> {
    let mut socket = node(daemon, &json!([])).await;
    let (mut tasks, mut running) = (Vec::new(), Vec::new());
    for tenant in ["t1", "t2", "t3"] {
        let on_unknown = if tenant == "t1" { "confirm" } else { "rerun" };
        let stage = json!({"name": "s0", "payload": 1, "on_unknown": on_unknown});
        let plan = json!({"start": true, "tasks": [{"tenant": tenant, "stages": [stage]}]});
        let plan = daemon.done("user", "POST", "/v1/plans", plan).await["id"].as_str().unwrap().to_owned();
        let (_, listed) = daemon.ask("root", "GET", &format!("/v1/plans/{plan}/tasks"), None).await;
        tasks.push(listed["items"][0]["id"].as_str().unwrap().to_owned());
        let dispatch = world::frame(&mut socket, "dispatch").await;
        let ack = json!({"job": dispatch["job"], "attempt": dispatch["attempt"]});
        socket.send(world::message("ack", &ack)).await.unwrap();
        running.push(ack);
    }
    for attempt in &running {
        let path = format!("/v1/jobs/{}", attempt["job"].as_str().unwrap());
        until("the stage runs", async || {
            daemon.ask("root", "GET", &path, None).await.1["state"] == "RUNNING"
        })
        .await;
    }
    daemon.instance.end_by(Signal::Kill, testkit::PATIENCE).await.unwrap();
    daemon.instance.start().await.unwrap();
    // The node runs on.
    let running = json!(running);
    world::keep(node(daemon, &running).await, running);
    for task in &tasks {
        until("the task is interrupted", async || {
            daemon.ask("root", "GET", &format!("/v1/tasks/{task}"), None).await.1["status"] == "INTERRUPTED"
        })
        .await;
    }
    tasks
}

/// Makes the audit refuse every entry, and take them again.
fn refuse_entries(database: &Database, refuse: bool) {
    let change =
        if refuse { "ADD CONSTRAINT broken CHECK (false) NOT VALID" } else { "DROP CONSTRAINT broken" };
    tokio::task::block_in_place(|| database.query(&format!("ALTER TABLE audit {change}"))).unwrap();
}

/// Everything that an operator may do, each on something of its own where it needs that; in an order in which all of it
/// succeeds.
async fn actions(daemon: &mut Guarded, database: &Database) -> Vec<Action> {
    let tasks = interrupted(daemon).await;
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let grant = daemon.done("root", "POST", "/v1/signers/s/nonces", json!({"hold_ms": 600_000})).await;
    let release = json!({"hold": grant["grants"][0]["hold"], "outcome": "unknown"});
    daemon.done("root", "POST", "/v1/signers/s/nonces/0/release", release).await;
    daemon.done("root", "POST", "/v1/signers/recovering/nonces", json!({"hold_ms": 600_000})).await;
    let recovering = "UPDATE signer SET recovering = true WHERE signer = 'recovering'";
    tokio::task::block_in_place(|| database.query(recovering)).unwrap();
    let mut jobs = Vec::new();
    for is_finished in [false, true, true, true] {
        let job = daemon.done("user", "POST", "/v1/jobs", json!({"payload": 1, "delay_ms": 600_000})).await;
        let job = text(&job["id"]);
        if is_finished {
            daemon.done("user", "POST", &format!("/v1/jobs/{job}/cancel"), json!({})).await;
        }
        jobs.push(job);
    }
    jobs.push(text(
        &daemon.done("user", "POST", "/v1/jobs", json!({"payload": 1, "delay_ms": 600_000})).await["id"],
    ));
    daemon.done("user", "POST", &format!("/v1/jobs/{}/cancel", jobs[4]), json!({})).await;
    let died = format!("UPDATE job_finished SET outcome = 'failed' WHERE id = '{}'", jobs[4]);
    tokio::task::block_in_place(|| database.query(&died)).unwrap();
    let nothing = json!({"action": "delete", "filter": {"tenant": "nobody"}});
    let bulk = text(&daemon.done("user", "POST", "/v1/bulk", nothing).await["id"]);
    let is_over =
        async || daemon.ask("user", "GET", &format!("/v1/bulk/{bulk}"), None).await.1["status"] == "DONE";
    until("the bulk operation is over", is_over).await;
    // Nobody works on it any more, and yet it can be cancelled.
    let as_running = format!("UPDATE bulk SET status = 'RUNNING' WHERE id = '{bulk}'");
    tokio::task::block_in_place(|| database.query(&as_running)).unwrap();
    let (_, tenant) = daemon.ask("root", "GET", "/v1/tenants/t2", None).await;
    let lock = tenant["lock"]["token"].clone();
    assert!(lock.is_u64(), "{tenant}");
    // So that there is a pause to end before another one has replaced it.
    daemon.done("root", "POST", "/v1/pools/default/pause", json!({"reason": "before"})).await;
    let action = |operation, name, subject: &str, method, path: String, body| Action {
        operation,
        name,
        subject: subject.to_owned(),
        method,
        path,
        body,
    };
    let (t1, job) = (format!("task:{}", tasks[0]), |at: usize| format!("job:{}", jobs[at]));
    let reason = json!({"from": "start", "reason": "again"});
    let drain = |what: &str| format!("/v1/nodes/n-1/{what}");
    vec![
        action(
            "set_policy",
            "set_policy",
            "signer:s",
            "PUT",
            "/v1/signers/s/policy".to_owned(),
            json!({"max_in_flight": 9}),
        ),
        action(
            "resolve",
            "resolve_nonce",
            "signer:s nonce 0",
            "POST",
            "/v1/signers/s/nonces/0/resolve".to_owned(),
            json!({"outcome": "never_sent"}),
        ),
        action(
            "confirm_signer",
            "confirm_signer",
            "signer:recovering",
            "POST",
            "/v1/signers/recovering/confirm".to_owned(),
            json!({"next_nonce": 1}),
        ),
        action(
            "change_pools",
            "set_pools",
            "config:pools",
            "PUT",
            "/v1/config/pools".to_owned(),
            json!({"version": 1, "pools": []}),
        ),
        action(
            "change_segment",
            "set_segment",
            "segment:order",
            "PUT",
            "/v1/ids/segments/order".to_owned(),
            json!({"step": 100}),
        ),
        action(
            "change_sequence",
            "set_sequence",
            "sequence:invoice",
            "PUT",
            "/v1/ids/sequences/invoice".to_owned(),
            json!({}),
        ),
        action(
            "pause_pool",
            "pause_pool",
            "pool:default",
            "POST",
            "/v1/pools/default/pause".to_owned(),
            json!({"reason": "repair"}),
        ),
        action(
            "resume_pool",
            "resume_pool",
            "pool:default",
            "POST",
            "/v1/pools/default/resume".to_owned(),
            json!({}),
        ),
        action("drain_node", "drain_node", "node:n-1", "POST", drain("drain"), json!({})),
        action("undrain_node", "undrain_node", "node:n-1", "POST", drain("undrain"), json!({})),
        action(
            "unlock_tenant",
            "break_lock",
            "tenant:t2",
            "POST",
            "/v1/tenants/t2/unlock".to_owned(),
            json!({"token": lock, "reason": "gone"}),
        ),
        action(
            "resolve_stage",
            "resolve_stage",
            &format!("{t1} stage 1"),
            "POST",
            format!("/v1/tasks/{}/stages/1/resolve", tasks[0]),
            json!({"outcome": "not_done", "reason": "looked"}),
        ),
        action(
            "retry_task",
            "retry_task",
            &t1,
            "POST",
            format!("/v1/tasks/{}/retry", tasks[0]),
            reason.clone(),
        ),
        action(
            "retry_tenant",
            "retry_task",
            &format!("task:{}", tasks[2]),
            "POST",
            "/v1/tenants/t3/retry".to_owned(),
            reason,
        ),
        action(
            "cancel_job",
            "cancel_job",
            &job(0),
            "POST",
            format!("/v1/jobs/{}/cancel", jobs[0]),
            json!({}),
        ),
        action("retry_job", "retry_job", &job(1), "POST", format!("/v1/jobs/{}/retry", jobs[1]), json!({})),
        action(
            "retry_jobs",
            "retry_jobs",
            "jobs:1",
            "POST",
            "/v1/jobs/retry".to_owned(),
            json!({"ids": [jobs[2]]}),
        ),
        action(
            "begin_bulk",
            "bulk_delete",
            "",
            "POST",
            "/v1/bulk".to_owned(),
            json!({"action": "delete", "filter": {"tenant": "nobody"}}),
        ),
        action(
            "cancel_bulk",
            "cancel_bulk",
            &format!("bulk:{bulk}"),
            "POST",
            format!("/v1/bulk/{bulk}/cancel"),
            json!({}),
        ),
        action(
            "dismiss_job",
            "dismiss_job",
            &job(4),
            "POST",
            format!("/v1/jobs/{}/dismiss", jobs[4]),
            json!({}),
        ),
        action("delete_job", "delete_job", &job(3), "DELETE", format!("/v1/jobs/{}", jobs[3]), json!({})),
        action(
            "change_mode",
            "set_mode",
            "config:mode",
            "PUT",
            "/v1/config/mode".to_owned(),
            json!({"version": 1, "mode": "worker-queue"}),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn no_action_of_an_operator_happens_without_its_entry_and_each_has_one() {
    let ground = Ground::fresh();
    let user = json!({"name": "user", "token": "user", "scopes": ["submit"]});
    let mut daemon = Guarded::on(ground.setup(), &json!([root(), user])).await;
    let actions = actions(&mut daemon, &ground.database).await;

    // Whatever an operator may change is tried here.
    let (_, document) = daemon.ask("root", "GET", "/openapi.json", None).await;
    let changes = operations::all(&document).into_iter();
    let changes =
        changes.filter(|one| one.scope.as_deref() == Some("admin") && one.method != "GET").map(|one| one.id);
    let also = [
        "begin_bulk",
        "cancel_bulk",
        "cancel_job",
        "delete_job",
        "dismiss_job",
        "retry_job",
        "retry_jobs",
        "retry_task",
        "retry_tenant",
    ]
    .map(str::to_owned);
    let expected: BTreeSet<_> = changes.chain(also).collect();
    assert_eq!(actions.iter().map(|one| one.operation.to_owned()).collect::<BTreeSet<_>>(), expected);

    refuse_entries(&ground.database, true);
    let before = world::quiet_dump(&ground.database);
    for action in &actions {
        let refused = action.ask(&daemon, "refused").await;
        let code = refused.json()["code"].as_str().unwrap_or_default().to_owned();
        let is_typed = matches!(
            (refused.status, code.as_str()),
            (500, "internal") | (503, "ledger_unavailable" | "fenced")
        );
        // Its stage is UNKNOWN still, and what is refused needs no entry.
        let is_too_early = action.operation == "retry_task" && code == "stage_unknown";
        assert!(is_typed || is_too_early, "{}: {refused:?}", action.operation);
        let after = world::dump(&ground.database);
        for (table, rows) in &before {
            assert_eq!(&after[table], rows, "{} changed {table}", action.operation);
        }
        let (_, shown) = daemon.ask("root", "GET", "/v1/nodes/n-1", None).await;
        assert_eq!(shown["state"], "online", "{}: {shown}", action.operation);
    }
    // Callers' own work goes on, also that which shares a commit with what an operator asks of the same signer.
    let policy = Action {
        operation: "set_policy",
        name: "set_policy",
        subject: "signer:other".to_owned(),
        method: "PUT",
        path: "/v1/signers/other/policy".to_owned(),
        body: json!({"max_in_flight": 9}),
    };
    for _ in 0..5 {
        let grants = (0..8).map(|_| daemon.ask("user", "POST", "/v1/signers/other/nonces", None));
        let granted = futures_util::future::join_all(grants);
        let (granted, refused) = tokio::join!(granted, policy.ask(&daemon, "refused"));
        assert!(matches!(refused.status, 500 | 503), "{refused:?}");
        for (status, answer) in granted {
            assert_eq!(status, 201, "{answer}");
        }
    }
    daemon.done("user", "POST", "/v1/signers/s/nonces", json!({})).await;
    let cancelled = daemon.done("user", "POST", "/v1/jobs", json!({"payload": 1, "delay_ms": 600_000})).await;
    let cancel = format!("/v1/jobs/{}/cancel", cancelled["id"].as_str().unwrap());
    daemon.done("user", "POST", &cancel, json!({})).await;

    refuse_entries(&ground.database, false);
    for action in &actions {
        let id = format!("request-{}", action.operation);
        let answer = action.ask(&daemon, &id).await;
        assert!((200..300).contains(&answer.status), "{}: {answer:?}", action.operation);
        let path = format!("/v1/audit?action={}&principal=root", action.name);
        let (_, listed) = daemon.ask("root", "GET", &path, None).await;
        let entries =
            listed["items"].as_array().unwrap().iter().filter(|entry| entry["request_id"] == id.as_str());
        let subjects: Vec<_> = entries.map(|entry| entry["subject"].as_str().unwrap()).collect();
        // The name of a new bulk operation is not known before.
        let is_new =
            action.operation == "begin_bulk" && subjects.len() == 1 && subjects[0].starts_with("bulk:");
        assert!(is_new || subjects == [action.subject.as_str()], "{}: {listed}", action.operation);
    }
    let (_, listed) = daemon.ask("root", "GET", "/v1/audit?limit=1000", None).await;
    assert_eq!(
        listed["items"].as_array().unwrap().len(),
        actions.len() + 1,
        "one entry for each action, and for the pause before them: {listed}"
    );
    let text = listed.to_string();
    assert!(text.contains("\"start=1 step=100\""), "{text}");
    assert!(!text.contains("Some(") && !text.contains("None"), "entries are for people: {text}");

    // An id that an operator gives twice hides nothing.
    for what in ["drain", "undrain", "drain", "undrain"] {
        let (method, path) = ("POST", format!("/v1/nodes/n-1/{what}"));
        let (operation, name, subject) = ("", "", String::new());
        let again = Action { operation, name, subject, method, path, body: json!({}) };
        assert_eq!(again.ask(&daemon, "the-same").await.status, 200);
    }
    let (_, listed) = daemon.ask("root", "GET", "/v1/audit?action=drain_node", None).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 3, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_about_a_task_has_an_entry_with_how_it_was_and_a_refused_one_has_none() {
    let ground = Ground::fresh();
    let user = json!({"name": "user", "token": "user", "scopes": ["submit"]});
    let mut daemon = Guarded::on(ground.setup(), &json!([root(), user])).await;
    let task = interrupted(&mut daemon).await.remove(0);
    let resolve = ("stages/1/resolve", json!({"outcome": "not_done", "reason": "looked"}));
    let retry = ("retry", json!({"from": "start", "reason": "again"}));
    for ((what, asked), expected) in [(&retry, 409), (&resolve, 200), (&resolve, 409), (&retry, 202)] {
        let path = format!("/v1/tasks/{task}/{what}");
        let (status, answer) = daemon.ask("root", "POST", &path, Some(asked)).await;
        assert_eq!(status, expected, "{what}: {answer}");
    }
    let (_, listed) = daemon.ask("root", "GET", "/v1/audit", None).await;
    let entries: Vec<_> = listed["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            ["principal", "action", "subject", "before", "after", "reason"].map(|field| entry[field].clone())
        })
        .collect();
    let (stage, task) = (format!("task:{task} stage 1"), format!("task:{task}"));
    let of = |told: [Option<&str>; 6]| told.map(|text| json!(text));
    let expected = [
        of([
            Some("root"),
            Some("retry_task"),
            Some(&task),
            Some("INTERRUPTED"),
            Some("from start"),
            Some("again"),
        ]),
        of([
            Some("root"),
            Some("resolve_stage"),
            Some(&stage),
            Some("UNKNOWN"),
            Some("not_done"),
            Some("looked"),
        ]),
    ];
    assert_eq!(entries, expected, "{listed}");
}

/// A plan for two tenants whose stages no node takes: its path, and that of its first task.
async fn waiting_plan(daemon: &Guarded, tenants: [&str; 2]) -> (String, String) {
    let stage = json!({"name": "s0", "payload": 1, "requires": ["nobody-has-it"]});
    let tasks = tenants.map(|tenant| json!({"tenant": tenant, "stages": [stage]}));
    let plan = daemon.done("user", "POST", "/v1/plans", json!({ "tasks": tasks })).await;
    let plan = format!("/v1/plans/{}", plan["id"].as_str().unwrap());
    let (_, listed) = daemon.ask("user", "GET", &format!("{plan}/tasks"), None).await;
    let task = format!("/v1/tasks/{}", listed["items"][0]["id"].as_str().unwrap());
    (plan, task)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_does_to_a_plan_is_in_the_audit_where_it_changes_something() {
    let ground = Ground::fresh();
    let user = json!({"name": "user", "token": "user", "scopes": ["submit"]});
    let daemon = Guarded::on(ground.setup(), &json!([root(), user])).await;
    let mut expected = Vec::new();
    for (who, tenants) in [("user", ["u1", "u2"]), ("root", ["r1", "r2"])] {
        let (plan, task) = waiting_plan(&daemon, tenants).await;
        for (path, what, before, after) in [
            (&plan, "start_plan", "CREATED", "RUNNING"),
            (&task, "pause_task", "RUNNING", "PAUSED"),
            (&task, "resume_task", "RUNNING", "RUNNING"),
            (&task, "cancel_task", "RUNNING", "CANCELLED"),
            (&plan, "pause_plan", "RUNNING", "PAUSED"),
            (&plan, "resume_plan", "PAUSED", "RUNNING"),
            (&plan, "cancel_plan", "RUNNING", "CANCELLED"),
        ] {
            let verb = format!("{path}/{}", what.split('_').next().unwrap());
            let change = || json!({"reason": what});
            if what == "cancel_plan" {
                // Without its entry it does not happen.
                refuse_entries(&ground.database, true);
                let (status, answer) = daemon.ask(who, "POST", &verb, Some(&change())).await;
                refuse_entries(&ground.database, false);
                assert_eq!(matches!(status, 500 | 503), who == "root", "{answer}");
                let (_, shown) = daemon.ask(who, "GET", &plan, None).await;
                assert_eq!(shown["intent"], if who == "root" { "run" } else { "cancel" }, "{shown}");
            }
            // Once more it changes nothing.
            for _ in 0..2 {
                daemon.done(who, "POST", &verb, change()).await;
            }
            until("the task runs", async || {
                let (_, shown) = daemon.ask(who, "GET", &task, None).await;
                shown["status"] == "RUNNING" || shown["intent"] == "cancel"
            })
            .await;
            let (kind, id) = path.strip_prefix("/v1/").unwrap().split_once("s/").unwrap();
            if who == "root" {
                expected.insert(0, json!([what, format!("{kind}:{id}"), before, after, what]));
            }
        }
        // One that is made and started at once is started as well: without its entry it is not made, and under its key it is
        // made once.
        let stage = json!({"name": "s0", "payload": 1, "requires": ["nobody-has-it"]});
        let plan = json!({"start": true, "tasks": [{"tenant": format!("{who}-3"), "stages": [stage]}]});
        let make = async || {
            let address = daemon.instance.url().strip_prefix("http://").unwrap();
            let request = Request::new("POST", "/v1/plans").token(who).header("idempotency-key", "k");
            request.json(plan.to_string()).send(address).await
        };
        refuse_entries(&ground.database, true);
        let refused = make().await;
        refuse_entries(&ground.database, false);
        assert_eq!(matches!(refused.status, 500 | 503), who == "root", "{refused:?}");
        let made = make().await;
        assert_eq!((made.status, &made.json()["status"]), (201, &json!("RUNNING")), "{made:?}");
        assert_eq!(make().await.json()["id"], made.json()["id"]);
        if who == "root" {
            let subject = format!("plan:{}", made.json()["id"].as_str().unwrap());
            expected.insert(0, json!(["start_plan", subject, "CREATED", "RUNNING", null]));
        }
    }
    let (_, listed) = daemon.ask("root", "GET", "/v1/audit?limit=1000", None).await;
    let entries = listed["items"].as_array().unwrap().iter();
    let entries: Vec<_> = entries
        .map(|entry| json!(["action", "subject", "before", "after", "reason"].map(|field| &entry[field])))
        .collect();
    assert_eq!(entries, expected, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_done_by_way_of_another_instance_is_in_the_audit_each_time() {
    let ground = Ground::fresh();
    let tokens = json!([root()]);
    let near = Guarded::on(ground.setup(), &tokens).await;
    let far = Guarded::on(ground.setup(), &tokens).await;
    until("the other instance knows this one", async || {
        let (_, cluster) = near.ask("root", "GET", "/v1/cluster", None).await;
        cluster["instances"].as_array().is_some_and(|all| all.len() == 2)
    })
    .await;
    world::keep(node(&far, &json!([])).await, json!([]));
    until("the other instance knows the node", async || {
        near.ask("root", "GET", "/v1/nodes/n-1", None).await.0 == 200
    })
    .await;
    for what in ["drain", "undrain", "drain", "undrain", "drain"] {
        let path = format!("/v1/nodes/n-1/{what}");
        let (operation, name, subject) = ("", "", String::new());
        let again = Action { operation, name, subject, method: "POST", path, body: json!({}) };
        let answer = again.ask(&near, "ops").await;
        assert_eq!((answer.status, &answer.json()["instance"]), (200, &json!(far.instance.ready().instance)));
    }
    for (action, times, before, after) in
        [("drain_node", 3, "online", "draining"), ("undrain_node", 2, "draining", "online")]
    {
        let (_, listed) = near.ask("root", "GET", &format!("/v1/audit?action={action}"), None).await;
        let entries = listed["items"].as_array().unwrap();
        assert_eq!(entries.len(), times, "{listed}");
        assert!(entries.iter().all(|entry| entry["request_id"] == "ops" && entry["principal"] == "root"));
        let mut changes = entries.iter().map(|entry| (&entry["before"], &entry["after"]));
        assert!(changes.all(|change| change == (&json!(before), &json!(after))), "{listed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_of_many_jobs_has_one_entry_whichever_instance_owns_their_session() {
    let ground = Ground::fresh();
    let tokens = json!([root()]);
    let near = Guarded::on(ground.setup(), &tokens).await;
    let far = Guarded::on(ground.setup(), &tokens).await;
    for daemon in [&near, &far] {
        until("the instances know each other", async || {
            let (_, cluster) = daemon.ask("root", "GET", "/v1/cluster", None).await;
            cluster["instances"].as_array().is_some_and(|all| all.len() == 2)
        })
        .await;
    }
    let session = near.done("root", "POST", "/v1/sessions", json!({})).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let job = json!({"payload": 1, "session": session["id"]});
        let job = near.done("root", "POST", "/v1/jobs", job).await["id"].as_str().unwrap().to_owned();
        near.done("root", "POST", &format!("/v1/jobs/{job}/cancel"), json!({})).await;
        ids.push(job);
    }
    // One of them does not own the session.
    for daemon in [&near, &far] {
        let answer = daemon.done("root", "POST", "/v1/jobs/retry", json!({"ids": ids})).await;
        assert_eq!(answer["retried"], 3, "{answer}");
    }
    let (_, listed) = near.ask("root", "GET", "/v1/audit", None).await;
    let retries = listed["items"].as_array().unwrap().iter().filter(|entry| entry["action"] != "cancel_job");
    let retries: Vec<_> =
        retries.map(|entry| (&entry["action"], &entry["subject"], &entry["after"])).collect();
    // Which jobs, as they were asked for.
    let what = json!(json!({ "ids": ids }).to_string());
    assert_eq!(retries, [(&json!("retry_jobs"), &json!("jobs:3"), &what); 2], "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_not_reloaded_before_the_audit_has_the_entry() {
    let ground = Ground::fresh();
    let other = |token: &str| json!({"name": "other", "token": token, "scopes": ["read"]});
    let daemon = Guarded::on(ground.setup(), &json!([root(), other("old")])).await;
    let knows = async |token: &str| daemon.ask(token, "GET", "/v1/signers", None).await.0 == 200;
    refuse_entries(&ground.database, true);
    write(&daemon.file, &json!([root(), other("new")]));
    daemon.instance.process().signal(Signal::Hangup).unwrap();
    until("the reload waits", async || {
        daemon.instance.whole_log().contains("until the audit takes the entry")
    })
    .await;
    assert!(knows("old").await && !knows("new").await);
    refuse_entries(&ground.database, false);
    until("the tokens are reloaded", async || knows("new").await).await;
    assert!(!knows("old").await);
    let (_, listed) = daemon.ask("root", "GET", "/v1/audit?action=reload_tokens", None).await;
    assert_eq!(listed["items"][0]["subject"], "config:tokens", "{listed}");
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_is_not_recovered_without_an_entry() {
    let ground = Ground::fresh();
    let mut daemon = Guarded::on(ground.setup(), &json!([root()])).await;
    daemon.done("root", "POST", "/v1/signers/s/nonces", json!({"hold_ms": 600_000})).await;
    daemon.done("root", "PUT", "/v1/ids/sequences/invoice", json!({})).await;
    daemon.instance.end_by(Signal::Terminate, testkit::PATIENCE).await.unwrap();
    let before = world::dump(&ground.database);
    let recover = async |option: &str, user: &str| {
        let command = Setup::command("recover").arg(option).arg("--reason").arg("a backup is restored");
        let command = command.env("USER", user).database(ground.database.url());
        command.run_to_end(Duration::from_secs(60)).await.unwrap()
    };
    refuse_entries(&ground.database, true);
    let refused = recover("--confirm", "ann").await;
    assert!(refused.code.is_some_and(|code| code != 0), "{refused:?}");
    assert_eq!(world::dump(&ground.database), before);
    refuse_entries(&ground.database, false);
    assert_eq!(recover("--confirm", "ann").await.code, Some(0));
    assert_eq!(recover("--unknown-signers-are-new", "").await.code, Some(0));
    daemon.instance.start().await.unwrap();
    let (_, signer) = daemon.ask("root", "POST", "/v1/signers/s/nonces", None).await;
    assert_eq!(signer["code"], "recovering", "{signer}");
    let (_, listed) = daemon.ask("root", "GET", "/v1/audit", None).await;
    let entries = listed["items"].as_array().unwrap();
    let actions: Vec<_> = entries.iter().map(|entry| &entry["action"]).collect();
    assert_eq!(actions, ["recover_new_signers", "recover", "set_sequence"], "{listed}");
    let read = |text: &Value| serde_json::from_str::<Value>(text.as_str().unwrap()).unwrap();
    let [new_signers, recovered] = [&entries[0], &entries[1]];
    assert_eq!(recovered["principal"], "ann");
    assert_eq!(recovered["reason"], "a backup is restored");
    let after = read(&recovered["after"]);
    let counts = json!([after["ids"], after["signers"], after["sequences"], after["workers"]]);
    assert_eq!(counts, json!([1_000_000, 1, 1, 1_024]), "{listed}");
    assert!(new_signers["principal"].as_str().unwrap().starts_with("uid "), "{listed}");
    let changed = json!([read(&new_signers["before"]), read(&new_signers["after"])]);
    assert_eq!(changed, json!([{"unknown_signers_are_new": false}, {"unknown_signers_are_new": true}]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_a_segment_or_a_sequence_names_how_it_was() {
    let ground = Ground::fresh();
    let daemon = Guarded::on(ground.setup(), &json!([root()])).await;
    for (kind, field) in [("segments", "step"), ("sequences", "increment")] {
        let path = format!("/v1/ids/{kind}/x");
        daemon.done("root", "PUT", &path, json!({ field: 5 })).await;
        daemon.done("root", "PUT", &path, json!({ field: 7, "start": 100 })).await;
        let (_, listed) = daemon.ask("root", "GET", "/v1/audit?limit=2", None).await;
        let changes: Vec<_> = listed["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (entry["before"].clone(), entry["after"].clone()))
            .collect();
        let was = |start: u64, by: u64| json!(format!("start={start} {field}={by}"));
        assert_eq!(changes, [(was(1, 5), was(100, 7)), (Value::Null, was(1, 5))], "{listed}");
    }
}
