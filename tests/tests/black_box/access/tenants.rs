//! Tokens of two tenants on one daemon: what belongs to one is neither shown to the other nor changed by it, on any route
//! or socket, by operators of one tenant neither.

use std::collections::BTreeSet;

use super::operations::{self, Names, Operation};
use super::world::{self, Ground};
use crate::bad_input::socket::{Answer, converse};
use crate::recovery::LockedTable;
use crate::tokens::{Guarded, first, of_tenant, root};
use crate::web_pages::head;
use crate::{patient, until};
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use testkit::instance::Setup;
use testkit::node::Message;

/// An operator who sees the tenant `evil` only.
fn operator() -> Value {
    let mut operator = of_tenant("evil");
    operator["name"] = json!("operator");
    operator["token"] = json!("operator");
    operator["scopes"] = json!(["admin"]);
    operator
}

fn texts(names: &Names) -> [&str; 6] {
    let Names { signer, job, session, plan, task, node, .. } = names;
    [signer, job, session, plan, task, node]
}

/// What another's token is answered for an operation about what it does not see: whether this is right.
fn is_right(operation: &Operation, token: &str, status: u16, answer: &Value) -> bool {
    let code = answer["code"].as_str().unwrap_or_default();
    let lacks_scope = match operation.scope.as_deref() {
        Some("admin") => token == "evil",
        _ => false,
    };
    match operation.id.as_str() {
        _ if lacks_scope => (status, code) == (403, "forbidden"),
        _ if operation.names_something() => (status, code) == (404, "not_found"),
        // Of many jobs each has its own answer.
        "submit_jobs" => status == 202 && answer["results"][0]["code"] == "not_found",
        "retry_jobs" => status == 202 && answer["retried"] == 0,
        "begin_bulk" => status == 200 && answer["matched"] == 0 && answer["id"].is_null(),
        "submit_job" | "open_session" | "create_plan" => (status, code) == (404, "not_found"),
        "select_node" | "change_mode" | "change_pools" => (status, code) == (403, "forbidden"),
        other => panic!("say what {token} is answered for {other}: {status} {answer}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_tenant_is_shown_to_another_or_changed_by_it() {
    let ground = Ground::fresh();
    let tokens = json!([of_tenant("acme"), of_tenant("evil"), operator(), root()]);
    let daemon = Guarded::on(ground.setup(), &tokens).await;
    let pools = json!({"version": 1, "pools": [{"name": "acme"}, {"name": "evil"}]});
    daemon.done("root", "PUT", "/v1/config/pools", pools).await;
    let mut node = world::node(&daemon, "acme", "acme-1", "acme").await;
    let acme = world::furnish(&daemon, "acme").await;
    world::furnish(&daemon, "evil").await;
    let (both, own) = (json!(["signer:acme:1", "signer:evil:1"]), json!(["signer:evil:1"]));
    let canary = json!({"mode": "worker-queue", "only": both, "version": 1});
    daemon.done("root", "PUT", "/v1/config/mode", canary).await;
    for (token, only) in [("root", &both), ("evil", &own), ("operator", &own)] {
        let (_, cluster) = daemon.ask(token, "GET", "/v1/cluster", None).await;
        assert_eq!(cluster["only"], *only, "{token}: {cluster}");
    }
    let running = json!({"payload": "secret", "tenant": "acme", "pool": "acme"});
    let running = daemon.done("acme", "POST", "/v1/jobs", running).await["id"].as_str().unwrap().to_owned();
    let dispatch = world::frame(&mut node, "dispatch").await;
    assert_eq!(dispatch["job"], running.as_str());
    let attempt = dispatch["attempt"].clone();
    let beat = world::message("heartbeat", &json!({"running": [{"job": running, "attempt": attempt}]}));
    node.send(world::message("ack", &json!({"job": running, "attempt": attempt}))).await.unwrap();
    until("the job runs", async || {
        daemon.ask("acme", "GET", &format!("/v1/jobs/{running}"), None).await.1["state"] == "RUNNING"
    })
    .await;
    until("the node is listed", async || daemon.ask("root", "GET", "/v1/nodes/acme-1", None).await.0 == 200)
        .await;

    let (_, document) = daemon.ask("root", "GET", "/openapi.json", None).await;
    let address = daemon.instance.url().strip_prefix("http://").unwrap();
    let before = world::quiet_dump(&ground.database);
    let mut asked = BTreeSet::new();
    // Ids are for everybody.
    for operation in operations::all(&document).iter().filter(|one| !one.is_about_ids()) {
        let (path, body) = (operation.path(&acme), operation.body(&acme));
        for token in ["evil", "operator"] {
            let context = format!("{token}: {} {path}", operation.method);
            if operation.is_socket() && operation.names_something() {
                let bearer = format!("Bearer {token}");
                let upgrade = head("GET", &path, &[("host", address), ("authorization", &bearer)]);
                let answer = Answer::parse(&converse(address, &upgrade).await).unwrap();
                assert_eq!((answer.status, &answer.json()["code"]), (404, &json!("not_found")), "{context}");
            } else if operation.method != "GET" || operation.names_something() {
                let (status, answer) = daemon.ask(token, &operation.method, &path, body.as_ref()).await;
                assert!(is_right(operation, token, status, &answer), "{context}: {status} {answer}");
                assert!(!answer.to_string().contains("secret"), "{context}: {answer}");
            } else if !operation.is_socket() && operation.pattern != "/openapi.json" {
                for filter in ["", "?limit=1000"] {
                    let reply = patient().with_token(token);
                    let reply = reply
                        .request("GET", &daemon.url(&format!("{path}{filter}")), None, None)
                        .await
                        .unwrap();
                    let shows = texts(&acme)
                        .into_iter()
                        .chain(["acme", "secret", &running])
                        .find(|one| reply.text.contains(one));
                    assert_eq!(shows, None, "{context}{filter}: {}", reply.text);
                }
            }
            asked.insert(operation.id.clone());
        }
        node.send(beat.clone()).await.unwrap();
    }
    for filter in
        ["tenant=acme", "pool=acme", "dead=true", "state=RUNNING", &format!("session={}", acme.session)]
    {
        let (status, listed) = daemon.ask("evil", "GET", &format!("/v1/jobs?{filter}"), None).await;
        let is_empty = listed["items"].as_array().is_none_or(Vec::is_empty);
        assert!(is_empty && matches!(status, 200 | 404), "{filter}: {listed}");
    }
    assert_eq!(asked.len(), operations::all(&document).iter().filter(|one| !one.is_about_ids()).count());

    // A node under another's name is turned away; one under its own name that speaks of another's attempt is not believed.
    let mut thief = daemon.hello("evil", "acme-1", json!(["evil"])).await;
    assert_eq!(first(&mut thief).await, "4401");
    let claim = json!({
        "node_id": "evil-1", "capacity": 1, "pools": ["evil"],
        "running": [{"job": running, "attempt": attempt}],
    });
    let of = |fields: Value| {
        let mut lie = json!({"job": running, "attempt": attempt});
        lie.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        lie
    };
    for lies in [
        &[
            ("progress", of(json!({"percent": 99, "note": "forged"}))),
            ("result", of(json!({"ok": true, "output": "forged"}))),
        ][..],
        &[("reject", of(json!({"reason": "forged"})))],
        &[("ack", of(json!({})))],
    ] {
        let mut liar = testkit::node::Socket::connect_with(daemon.instance.url(), "evil").await.unwrap();
        liar.send(world::message("hello", &claim)).await.unwrap();
        world::frame(&mut liar, "welcome").await;
        for (kind, lie) in lies {
            liar.send(world::message(kind, lie)).await.unwrap();
        }
        if lies.len() > 1 {
            assert_eq!(world::frame(&mut liar, "stale").await["job"], running.as_str());
        } else {
            // It learns nothing, or gets the close code of a broken protocol.
            liar.send(world::message("heartbeat", &json!({"running": []}))).await.unwrap();
            assert!(matches!(first(&mut liar).await.as_str(), "heartbeat_ok" | "stale" | "4400"));
        }
    }
    let after = world::dump(&ground.database);
    for (table, rows) in &before {
        assert_eq!(&after[table], rows, "{table}");
    }

    // The real one has worked on undisturbed.
    node.send(beat).await.unwrap();
    let result = json!({"job": running, "attempt": attempt, "ok": true, "output": "real"});
    node.send(world::message("result", &result)).await.unwrap();
    assert_eq!(world::frame(&mut node, "committed").await["job"], running.as_str());
    let (_, job) = daemon.ask("acme", "GET", &format!("/v1/jobs/{running}"), None).await;
    assert_eq!((&job["result"], &job["attempt"]), (&json!("real"), &json!(1)), "{job}");

    // An operation over many jobs does not even count another's.
    let later = json!({"payload": "secret", "tenant": "acme", "pool": "acme", "delay_ms": 3_600_000});
    daemon.done("acme", "POST", "/v1/jobs", later).await;
    for (action, mut filter) in [
        ("cancel", json!({})),
        ("retry", json!({"outcome": "succeeded"})),
        ("dismiss", json!({})),
        ("delete", json!({"outcome": "succeeded"})),
    ] {
        filter["tenant"] = json!("acme");
        let bulk = json!({"action": action, "filter": filter});
        let begun = daemon.done("evil", "POST", "/v1/bulk", bulk).await;
        assert_eq!(begun["matched"], 0, "{begun}");
        let path = format!("/v1/bulk/{}", begun["id"].as_str().unwrap());
        until("it is over", async || daemon.ask("evil", "GET", &path, None).await.1["status"] == "DONE")
            .await;
        let (_, over) = daemon.ask("evil", "GET", &path, None).await;
        assert_eq!([&over["done"], &over["skipped"], &over["failed"]], [0, 0, 0], "{action}: {over}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_sees_some_pools_sees_no_other_pool_of_a_node_that_it_sees() {
    let ground = Ground::fresh();
    let some = json!({"name": "some", "token": "some", "scopes": ["admin"], "pools": ["acme"]});
    let daemon = Guarded::on(ground.setup(), &json!([some, root()])).await;
    let pools = json!({"version": 1, "pools": [{"name": "acme"}, {"name": "evil"}]});
    daemon.done("root", "PUT", "/v1/config/pools", pools).await;
    let mut socket = daemon.hello("root", "n-1", json!(["acme", "evil"])).await;
    assert_eq!(first(&mut socket).await, "welcome");
    let _node = world::keep(socket, json!([]));
    let both = json!(["acme", "evil"]);
    until("the node is in both pools", async || {
        let (_, node) = daemon.ask("root", "GET", "/v1/nodes/n-1", None).await;
        node["pools"] == both
    })
    .await;
    for (token, seen) in [("some", json!(["acme"])), ("root", both)] {
        for (method, path) in
            [("GET", "/v1/nodes/n-1"), ("POST", "/v1/nodes/n-1/drain"), ("POST", "/v1/nodes/n-1/undrain")]
        {
            let (status, node) = daemon.ask(token, method, path, None).await;
            assert_eq!((status, &node["pools"]), (200, &seen), "{token}: {method} {path}: {node}");
        }
        let (_, listed) = daemon.ask(token, "GET", "/v1/nodes", None).await;
        assert_eq!(listed["items"][0]["pools"], seen, "{token}: {listed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_is_repeated_under_its_key_when_its_job_is_gone_and_another_tenant_is_told_nothing() {
    let ground = Ground::fresh();
    let daemon = Guarded::on(ground.setup(), &json!([of_tenant("acme"), of_tenant("evil")])).await;
    let finished = async |tenant: &str| {
        let job = json!({"payload": 1, "tenant": tenant, "pool": tenant, "delay_ms": 600_000});
        let job = daemon.done(tenant, "POST", "/v1/jobs", job).await;
        let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
        daemon.done(tenant, "POST", &format!("{path}/cancel"), json!({})).await;
        path
    };
    let retry = async |token: &str, job: &str, key: &str| {
        let url = daemon.url(&format!("{job}/retry"));
        let reply = patient().with_token(token).request("POST", &url, Some(key), None).await.unwrap();
        (reply.status, reply.body)
    };
    let (job, other) = (finished("acme").await, finished("evil").await);
    let (status, retried) = retry("acme", &job, "k").await;
    assert_eq!(status, 202, "{retried}");
    // Under this key the other token has retried a job of its own.
    let (status, own) = retry("evil", &other, "own").await;
    assert_eq!(status, 202, "{own}");
    let told = async || {
        let mut told = Vec::new();
        for key in ["k", "own"] {
            let (status, answer) = retry("evil", &job, key).await;
            told.push((status, answer["code"].clone(), answer["detail"].clone()));
        }
        told
    };
    let before = told().await;
    assert_eq!((before[0].0, &before[0].1), (404, &json!("not_found")), "{before:?}");
    let (status, answer) = daemon.ask("acme", "DELETE", &job, None).await;
    assert!((200..300).contains(&status), "{status} {answer}");
    assert_eq!(retry("acme", &job, "k").await, (202, retried.clone()));
    assert_eq!(told().await, before, "whether the job exists");
    let new = format!("/v1/jobs/{}", retried["id"].as_str().unwrap());
    daemon.done("acme", "POST", &format!("{new}/cancel"), json!({})).await;
    let (status, answer) = daemon.ask("acme", "DELETE", &new, None).await;
    assert!((200..300).contains(&status), "{status} {answer}");
    assert_eq!(retry("acme", &job, "k").await, (202, retried), "both are gone");
    assert_eq!(told().await, before, "whether either job exists");
    let (status, answer) = retry("acme", &job, "new").await;
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_retry_of_a_tenant_is_answered_in_its_time_while_no_job_can_be_read() {
    let ground = Ground::fresh();
    let setup = ground.setup().env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "2000");
    let setup = setup.env("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "2000");
    let daemon = Guarded::on(setup, &json!([of_tenant("acme")])).await;
    let job = json!({"payload": 1, "tenant": "acme", "pool": "acme", "delay_ms": 600_000});
    let job = daemon.done("acme", "POST", "/v1/jobs", job).await;
    let cancel = format!("/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
    daemon.done("acme", "POST", &cancel, json!({})).await;
    let asked = json!({"ids": [job["id"]]});
    let retry = async || {
        let (client, url) = (patient().with_token("acme"), daemon.url("/v1/jobs/retry"));
        let reply = client.request("POST", &url, Some("k"), Some(&asked)).await.unwrap();
        (reply.status, reply.body)
    };
    let (status, retried) = retry().await;
    assert_eq!((status, &retried["retried"]), (202, &json!(1)), "{retried}");
    // What is kept under the key is read, and whether the tenant sees the jobs is not.
    let lock = LockedTable::lock(&ground.database, "job", "ACCESS EXCLUSIVE").await;
    until("there is no time for the jobs", async || {
        let (status, answer) = retry().await;
        assert!(matches!(status, 429 | 503), "{answer}");
        (status, &answer["code"]) == (429, &json!("overloaded"))
    })
    .await;
    lock.free();
    until("it has the same answer", async || retry().await == (202, retried.clone())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_read_is_left_out_of_a_tenants_bulk_operation_whosever_it_is() {
    let ground = Ground::fresh();
    let daemon = Guarded::on(ground.setup(), &json!([of_tenant("acme"), of_tenant("other")])).await;
    for (tenant, kind) in [("acme", "sound"), ("acme", "spoilt"), ("other", "spoilt")] {
        let job = json!({"payload": 1, "tenant": tenant, "pool": tenant, "kind": kind, "delay_ms": 600_000});
        let job = daemon.done(tenant, "POST", "/v1/jobs", job).await;
        let cancel = format!("/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
        daemon.done(tenant, "POST", &cancel, json!({})).await;
    }
    let spoil = "update job_finished set past_attempts = 'spoilt' where kind = 'spoilt'";
    tokio::task::block_in_place(|| ground.database.query(spoil)).unwrap();
    let (both, spoilt) = (json!({"outcome": "cancelled"}), json!({"outcome": "cancelled", "kind": "spoilt"}));
    for (action, filter, sound) in [("retry", &both, 1), ("delete", &both, 1), ("delete", &spoilt, 0)] {
        let bulk = json!({"action": action, "filter": filter});
        let begun = daemon.done("acme", "POST", "/v1/bulk", bulk).await;
        assert_eq!(begun["matched"], sound, "{begun}");
        let path = format!("/v1/bulk/{}", begun["id"].as_str().unwrap());
        let mut shown = Value::Null;
        until("it is over", async || {
            shown = daemon.ask("acme", "GET", &path, None).await.1;
            !shown["finished_at"].is_null()
        })
        .await;
        assert_eq!(shown["status"], "DONE", "{action}: {shown}");
        let counts = [&shown["done"], &shown["skipped"], &shown["failed"]];
        assert_eq!(counts, [sound, 0, 0], "{action}: {shown}");
        assert!(shown["error"].is_null(), "{action}: {shown}");
    }
}

/// A plan may have 16 MiB of payloads and a thousand contexts.
#[tokio::test(flavor = "multi_thread")]
async fn who_sees_a_plan_and_which_plan_a_task_is_of_is_found_without_reading_its_tasks() {
    let ground = Ground::fresh();
    let tokens = json!([of_tenant("acme"), of_tenant("other"), root()]);
    let daemon = Guarded::on(ground.setup(), &tokens).await;
    let stage = json!({"name": "only", "payload": 1, "pool": "acme"});
    let plan = json!({"tasks": [{"tenant": "acme", "stages": [stage]}]});
    let plan = daemon.done("acme", "POST", "/v1/plans", plan).await["id"].as_str().unwrap().to_owned();
    let tasks = daemon.ask("acme", "GET", &format!("/v1/plans/{plan}/tasks"), None).await.1;
    let task = format!("/v1/tasks/{}", tasks["items"][0]["id"].as_str().unwrap());
    let spoil = "update plan_task set document = 'spoilt'";
    tokio::task::block_in_place(|| ground.database.query(spoil)).unwrap();
    assert_eq!(daemon.ask("root", "GET", &task, None).await.0, 500, "it cannot be read");

    let plan = format!("/v1/plans/{plan}");
    for (token, path, status, listed) in [
        ("acme", "/v1/plans", 200, Some(1)),
        ("acme", &plan, 200, None),
        ("acme", &format!("{plan}/events"), 200, Some(1)),
        ("other", "/v1/plans", 200, Some(0)),
        ("other", &plan, 404, None),
        ("root", &format!("{task}/events"), 200, Some(0)),
        ("root", &format!("{task}/checkpoints"), 200, Some(0)),
    ] {
        let (answered, answer) = daemon.ask(token, "GET", path, None).await;
        assert_eq!(answered, status, "{token} {path}: {answer}");
        assert_eq!(answer["items"].as_array().map(Vec::len), listed, "{token} {path}: {answer}");
    }
    // Nor is a definition read of a plan of another tenant.
    let spoil = "update plan_definition set stages = 'spoilt'";
    tokio::task::block_in_place(|| ground.database.query(spoil)).unwrap();
    for (token, path, status) in
        [("acme", "/v1/plans", 500), ("other", "/v1/plans", 200), ("other", &plan, 404)]
    {
        let (answered, answer) = daemon.ask(token, "GET", path, None).await;
        assert_eq!(answered, status, "{token} {path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_refuses_reads_makes_no_bulk_operation_of_a_tenant_one_without_jobs() {
    let ground = Ground::fresh();
    let daemon = Guarded::on(ground.setup(), &json!([of_tenant("acme")])).await;
    let session = daemon.done("acme", "POST", "/v1/sessions", json!({"tenant": "acme"})).await;
    let job = json!({"payload": 1, "session": session["id"]});
    let job = daemon.done("acme", "POST", "/v1/jobs", job).await;
    let cancel = format!("/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
    daemon.done("acme", "POST", &cancel, json!({})).await;
    let rename = |from: &str, to: &str| {
        let rename = format!("alter table {from} rename to {to}");
        tokio::task::block_in_place(|| ground.database.query(&rename)).unwrap();
    };
    let bulk = json!({"action": "delete", "filter": {"outcome": "cancelled"}});
    rename("session", "elsewhere");
    let (status, answer) = daemon.ask("acme", "POST", "/v1/bulk", Some(&bulk)).await;
    assert_eq!((status, &answer["code"]), (503, &json!("ledger_unavailable")), "{answer}");
    rename("elsewhere", "session");
    assert_eq!(daemon.done("acme", "POST", "/v1/bulk", bulk).await["matched"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_has_the_jobs_of_a_tenants_sessions_whatever_tenant_they_name() {
    let ground = Ground::fresh();
    let of =
        |tenant: &str| json!({"name": tenant, "token": tenant, "scopes": ["admin"], "tenants": [tenant]});
    let pool = json!({"name": "pool", "token": "pool", "scopes": ["admin"], "pools": ["p"]});
    let mut both = of("acme");
    (both["name"], both["token"], both["pools"]) = (json!("both"), json!("both"), json!(["p"]));
    let daemon = Guarded::on(ground.setup(), &json!([of("acme"), of("evil"), pool, both, root()])).await;
    let session = daemon.done("root", "POST", "/v1/sessions", json!({"tenant": "acme"})).await;
    let session = session["id"].as_str().unwrap();
    let pooled = json!({"tenant": "acme", "pool": "p"});
    let pooled = daemon.done("root", "POST", "/v1/sessions", pooled).await;
    let submitted = async |job: Value| {
        let job = daemon.done("root", "POST", "/v1/jobs", job).await;
        job["id"].as_str().unwrap().to_owned()
    };
    let of_another = submitted(json!({"payload": 1, "session": session, "tenant": "evil"})).await;
    let own = submitted(json!({"payload": 1, "session": session})).await;
    let alone = submitted(json!({"payload": 1, "tenant": "acme"})).await;
    let evil = submitted(json!({"payload": 1, "tenant": "evil"})).await;
    let elsewhere = json!({"payload": 1, "session": pooled["id"], "tenant": "evil", "pool": "q"});
    let elsewhere = submitted(elsewhere).await;
    let evil_in_p = submitted(json!({"payload": 1, "tenant": "evil", "pool": "p"})).await;
    let alone_in_p = submitted(json!({"payload": 1, "tenant": "acme", "pool": "p"})).await;
    let own_in_p = submitted(json!({"payload": 1, "session": session, "pool": "p"})).await;
    let listed = async |token: &str, filter: &str, limit: u32| {
        let (mut ids, mut cursor) = (Vec::new(), String::new());
        loop {
            let path = format!("/v1/jobs?limit={limit}{filter}{cursor}");
            let (status, page) = daemon.ask(token, "GET", &path, None).await;
            assert_eq!(status, 200, "{path}: {page}");
            let items = page["items"].as_array().unwrap();
            assert!(items.len() <= limit as usize, "{path}: {page}");
            ids.extend(items.iter().map(|job| job["id"].as_str().unwrap().to_owned()));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return ids,
            }
        }
    };
    let all = [&own_in_p, &alone_in_p, &elsewhere, &alone, &own, &of_another];
    // Where a token sees more sessions than can be named, too. Those with jobs are the last ones by their names.
    let more = "insert into session (session, tenant, pool, requires, ordering, idle_ms, purged_seq, created_at)
                select '00000000-0000-0000-0000-' || lpad(n::text, 12, '0'), 'acme', 'p', '', 'none', 600000, 0, now()
                from generate_series(1, 1000) n";
    for has_more in [false, true] {
        if has_more {
            tokio::task::block_in_place(|| ground.database.query(more)).unwrap();
        }
        for limit in [1, 2, 100] {
            for (token, filter, expected) in [
                ("acme", "", &all[..]),
                ("acme", "&state=created", &all),
                ("acme", "&tenant=acme", &[&own_in_p, &alone_in_p, &alone, &own]),
                ("acme", "&tenant=evil", &[&elsewhere, &of_another]),
                ("acme", "&state=finished", &[]),
                ("acme", &format!("&session={session}"), &[&own_in_p, &own, &of_another]),
                ("evil", "", &[&evil_in_p, &evil]),
                ("evil", "&tenant=acme", &[]),
                ("pool", "", &[&alone_in_p, &evil_in_p, &elsewhere]),
                ("pool", "&pool=p", &[&alone_in_p, &evil_in_p]),
                ("pool", "&pool=q", &[&elsewhere]),
                ("both", "", &[&alone_in_p, &elsewhere]),
                ("both", "&tenant=evil", &[&elsewhere]),
                ("both", "&pool=p", &[&alone_in_p]),
            ] {
                let found = listed(token, filter, limit).await;
                assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{token}{filter} {limit} {has_more}");
            }
        }
    }
}

/// How many defects an instance has counted.
async fn defects(daemon: &Guarded) -> u64 {
    let client = patient().with_token("root");
    let shown = client.request("GET", &daemon.url("/metrics"), None, None).await.unwrap().text;
    let count = shown.lines().find_map(|line| line.strip_prefix("fencepost_internal_errors_total ")).unwrap();
    count.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_defect_that_refuses_one_job_of_many_is_counted_and_logged_with_the_requests_id() {
    let ground = Ground::fresh();
    let daemon = Guarded::on(ground.setup(), &json!([of_tenant("acme"), root()])).await;
    let session = daemon.done("acme", "POST", "/v1/sessions", json!({"tenant": "acme"})).await;
    let session = session["id"].as_str().unwrap();
    let mut socket = world::session_socket(daemon.instance.url(), "acme", session).await;
    let told = || {
        let log = daemon.instance.whole_log();
        let is_told = |line: &&str| line.contains("because of a defect") && line.contains("request_id");
        log.lines().filter(is_told).count()
    };
    // No row can be read.
    let spoil = "alter table session rename to elsewhere;
                 create view session as select * from elsewhere where 1 / (length(session) * 0) = 1";
    tokio::task::block_in_place(|| ground.database.query(spoil)).unwrap();
    let batch = json!({"jobs": [{"payload": 1, "session": session}]});
    for (number, token) in [(1, "acme"), (2, "root")] {
        let answer = daemon.done(token, "POST", "/v1/jobs/batch", batch.clone()).await;
        assert_eq!(answer["results"][0]["code"], "internal", "{token}: {answer}");
        assert_eq!(defects(&daemon).await, number, "{token}");
    }
    socket.send(world::message("job", &json!({"ref": "c1", "payload": 1}))).await.unwrap();
    let problem = loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Text(text) => break serde_json::from_str::<Value>(&text).unwrap(),
            other => assert!(other.is_ping(), "{other:?}"),
        }
    };
    assert_eq!([&problem["ref"], &problem["code"]], ["c1", "internal"], "{problem}");
    assert_eq!(defects(&daemon).await, 3);
    until("each is in the log", async || told() == 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_cannot_be_read_counts_as_a_defect_where_others_fail_too_and_in_a_bulk_operation() {
    let ground = Ground::fresh();
    let daemon = Guarded::on(ground.setup(), &json!([root()])).await;
    let submitted = async |mut job: Value| {
        (job["payload"], job["delay_ms"]) = (json!(1), json!(600_000));
        let job = daemon.done("root", "POST", "/v1/jobs", job).await;
        job["id"].as_str().unwrap().to_owned()
    };
    let session = daemon.done("root", "POST", "/v1/sessions", json!({"ordering": "none"})).await;
    let of_closed = submitted(json!({"session": session["id"]})).await;
    let finished = submitted(json!({"kind": "finished"})).await;
    submitted(json!({"kind": "unfinished"})).await;
    for id in [&of_closed, &finished] {
        daemon.done("root", "POST", &format!("/v1/jobs/{id}/cancel"), json!({})).await;
    }
    let close = format!("/v1/sessions/{}", session["id"].as_str().unwrap());
    assert_eq!(daemon.ask("root", "DELETE", &close, None).await.0, 204);
    let spoil = "update job_finished set past_attempts = 'spoilt' where kind = 'finished';
                 update job set past_attempts = 'spoilt' where kind = 'unfinished'";
    tokio::task::block_in_place(|| ground.database.query(spoil)).unwrap();

    // None is retried, each for its own reason.
    let both = json!({"ids": [finished, of_closed]});
    let answer = daemon.done("root", "POST", "/v1/jobs/retry", both).await;
    let codes = [0, 1].map(|at| &answer["results"][at]["code"]);
    assert_eq!(codes, ["internal", "conflict"], "{answer}");
    assert_eq!(defects(&daemon).await, 1);
    let bulks = [
        json!({"action": "retry", "filter": {"outcome": "cancelled", "kind": "finished"}}),
        json!({"action": "cancel", "filter": {"kind": "unfinished"}}),
    ];
    for (number, bulk) in (2..).zip(bulks) {
        let begun = daemon.done("root", "POST", "/v1/bulk", bulk).await;
        let id = begun["id"].as_str().unwrap();
        let mut shown = Value::Null;
        until("the operation is over", async || {
            shown = daemon.ask("root", "GET", &format!("/v1/bulk/{id}"), None).await.1;
            shown["status"] == "DONE"
        })
        .await;
        assert_eq!(shown["failed"], 1, "{shown}");
        assert!(shown["error"].as_str().unwrap().contains("under the id of the bulk operation"), "{shown}");
        assert_eq!(defects(&daemon).await, number);
        let is_told = |line: &str| line.contains("because of a defect") && line.contains(id);
        until("it is in the log", async || daemon.instance.whole_log().lines().any(is_told)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_without_redis_tells_no_token_which_sessions_there_are() {
    let ground = Ground::fresh();
    let tokens = json!([of_tenant("acme"), of_tenant("evil"), root()]);
    let joined = Guarded::on(ground.setup(), &tokens).await;
    let opened = joined.done("acme", "POST", "/v1/sessions", json!({"tenant": "acme"})).await;
    let session = opened["id"].as_str().unwrap();
    let bare = Setup::in_mode("worker-queue").unwrap().database(ground.database.url());
    let daemon = Guarded::on(bare.env("FENCEPOST__LEASE__INSTANCE_MS", "10000"), &tokens).await;
    let unknown = "00000000-0000-0000-0000-000000000000";
    let show = |id: &str| format!("/v1/sessions/{id}");
    assert_eq!(daemon.ask("acme", "GET", &show(session), None).await.0, 200);
    let (status, answer) = daemon.ask("root", "GET", &show(unknown), None).await;
    assert_eq!((status, &answer["code"]), (503, &json!("bus_unavailable")), "{answer}");
    for id in [session, unknown] {
        let job = json!({"payload": 1, "session": id});
        for (method, path, body) in [
            ("GET", show(id), None),
            ("DELETE", show(id), None),
            ("GET", format!("/v1/sessions/{id}/ws"), None),
            ("POST", "/v1/jobs".to_owned(), Some(&job)),
        ] {
            let (status, answer) = daemon.ask("evil", method, &path, body).await;
            assert_eq!(
                (status, &answer["code"]),
                (503, &json!("bus_unavailable")),
                "{method} {path}: {answer}"
            );
        }
        let batch = daemon.done("evil", "POST", "/v1/jobs/batch", json!({"jobs": [job]})).await;
        assert_eq!(batch["results"][0]["code"], "bus_unavailable", "{batch}");
    }
}
