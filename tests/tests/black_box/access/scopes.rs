//! Every route under every scope, as the contract says it; the document names the same scopes.

use serde_json::{Value, json};

use super::operations::{self, Names, Operation};
use crate::bad_input::socket::{Answer, Request, converse};
use crate::tokens::{Guarded, first, root};
use crate::web_pages::{head, status};
use crate::{patient, until};

/// What a request needs.
#[derive(Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    AnyToken,
    Scope(&'static str),
}

/// What the contract says.
fn contract(operation: &Operation) -> Needs {
    const ADMIN: [(&str, &str); 15] = [
        ("PUT", "/v1/signers/{signer}/policy"),
        ("POST", "/v1/signers/{signer}/nonces/{nonce}/resolve"),
        ("POST", "/v1/signers/{signer}/confirm"),
        ("PUT", "/v1/config/mode"),
        ("PUT", "/v1/config/pools"),
        ("GET", "/v1/events"),
        ("POST", "/v1/tasks/{task}/stages/{stage}/resolve"),
        ("POST", "/v1/tenants/{tenant}/unlock"),
        ("POST", "/v1/nodes/{id}/drain"),
        ("POST", "/v1/nodes/{id}/undrain"),
        ("POST", "/v1/pools/{pool}/pause"),
        ("POST", "/v1/pools/{pool}/resume"),
        ("PUT", "/v1/ids/segments/{tag}"),
        ("PUT", "/v1/ids/sequences/{name}"),
        ("GET", "/v1/audit"),
    ];
    let (method, pattern) = (operation.method.as_str(), operation.pattern.as_str());
    match pattern {
        "/healthz" | "/readyz" | "/" | "/assets/{file}" => Needs::Nothing,
        "/metrics" | "/openapi.json" | "/v1/whoami" => Needs::AnyToken,
        "/v1/nodes/ws" => Needs::Scope("node"),
        _ if ADMIN.contains(&(method, pattern)) => Needs::Scope("admin"),
        // It changes nothing.
        "/v1/nodes/select" => Needs::Scope("read"),
        _ if method == "GET" && !operation.is_about_ids() => Needs::Scope("read"),
        _ => Needs::Scope("submit"),
    }
}

/// The status that a caller is refused with before anything is looked at; `None` if it may go on.
fn refusal(needs: &Needs, token: &str) -> Option<u16> {
    match (needs, token) {
        (Needs::Nothing, _) => None,
        (_, "" | "unknown" | "expired") => Some(401),
        (Needs::AnyToken, _) | (_, "admin") => None,
        (Needs::Scope(scope), token) if *scope == token => None,
        (Needs::Scope("read"), "submit") => None,
        (Needs::Scope(_), _) => Some(403),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_takes_the_scopes_of_the_contract_and_no_others() {
    let token = |name: &str| json!({"name": name, "token": name, "scopes": [name]});
    let mut expired = token("admin");
    expired["name"] = json!("expired");
    expired["token"] = json!("expired");
    expired["expires_at"] = json!("2001-01-01T00:00:00Z");
    let tokens = json!([token("read"), token("submit"), token("node"), token("admin"), expired]);
    let daemon = Guarded::start(&tokens).await;
    let address = daemon.instance.url().strip_prefix("http://").unwrap();
    let document = patient().with_token("read").get(&daemon.url("/openapi.json")).await.unwrap();
    let names = Names::of_nothing();
    for operation in operations::all(&document) {
        let needs = contract(&operation);
        let documented = match (operation.is_open, operation.scope.as_deref()) {
            (true, _) => Needs::Nothing,
            (false, None) => Needs::AnyToken,
            (false, Some("read")) => Needs::Scope("read"),
            (false, Some("submit")) => Needs::Scope("submit"),
            (false, Some("node")) => Needs::Scope("node"),
            (false, Some("admin")) => Needs::Scope("admin"),
            (false, Some(other)) => panic!("{operation:?} needs a scope {other}"),
        };
        assert_eq!(documented, needs, "the document and the contract: {operation:?}");
        let (method, path) = (operation.method.as_str(), operation.path(&names));
        for token in ["", "unknown", "expired", "read", "submit", "node", "admin"] {
            let bearer = format!("Bearer {token}");
            let headers = [("host", "fencepost.example"), ("authorization", bearer.as_str())];
            let request = head(method, &path, if token.is_empty() { &headers[..1] } else { &headers });
            let context = format!("{token}: {method} {path}");
            match refusal(&needs, token) {
                None => {
                    let answered = status(address, &request).await;
                    let is_let_in = !answered.ends_with("401") && !answered.ends_with("403");
                    assert!(is_let_in && !answered.ends_with("500"), "{context}: {answered}");
                }
                Some(expected) => {
                    let answer = Answer::parse(&converse(address, &request).await).unwrap();
                    assert_eq!(answer.status, expected, "{context}: {answer:?}");
                    let code = if expected == 401 { "unauthorized" } else { "forbidden" };
                    assert_eq!(answer.json()["code"], code, "{context}: {answer:?}");
                    assert_eq!(answer.header("content-type"), "application/problem+json", "{context}");
                    assert_eq!(
                        answer.header("www-authenticate"),
                        if expected == 401 { "Bearer" } else { "" }
                    );
                }
            }
        }
    }
}

/// The lines of a log that say that access was refused to the request with this id.
fn refusals(log: &str, id: &str) -> Vec<Value> {
    log.lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|line| line.to_string().contains(id) && line.to_string().contains("access is refused"))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_access_is_logged_with_who_what_and_the_request_and_without_a_secret() {
    let entry = |name: &str, scopes: &[&str]| json!({"name": name, "token": format!("secret-{name}"), "scopes": scopes});
    let mut bounded = entry("bounded", &["submit"]);
    bounded["tenants"] = json!(["acme"]);
    let mut node = entry("node", &["node"]);
    node["nodes"] = json!(["n-*"]);
    let daemon = Guarded::start(&json!([entry("reader", &["read"]), bounded, node])).await;
    let cases: [(&str, &str, &str, &str, &str, u16); 6] = [
        ("r-unknown", "secret-nobody", "GET", "/v1/signers", "", 401),
        ("r-scope", "secret-reader", "POST", "/v1/signers/s/nonces", "reader", 403),
        ("r-admin", "secret-reader", "GET", "/v1/audit", "reader", 403),
        ("r-tenant", "secret-bounded", "GET", "/v1/tenants/other", "bounded", 404),
        ("r-body", "secret-bounded", "POST", "/v1/sessions", "bounded", 404),
        ("r-all", "secret-bounded", "GET", "/v1/stats", "bounded", 403),
    ];
    let address = daemon.instance.url().strip_prefix("http://").unwrap();
    for (id, secret, method, path, _, expected) in cases {
        let body = if method == "POST" { r#"{"tenant":"other"}"# } else { "" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: {id}\r\n\
             authorization: Bearer {secret}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let answer = Answer::parse(&converse(address, request.as_bytes()).await).unwrap();
        assert_eq!(answer.status, expected, "{id}: {answer:?}");
    }
    let mut node = daemon.hello("secret-node", "other", json!([])).await;
    assert_eq!(first(&mut node).await, "4401");
    let log = daemon.instance.whole_log();
    let turned_away = log.lines().find(|line| line.contains("may not connect the node other")).unwrap();
    for known in [r#""route":"/v1/nodes/ws""#, r#""principal":"node""#, r#""request_id":""#] {
        assert!(turned_away.contains(known), "{known}: {turned_away}");
    }
    for (id, _, method, path, principal, _) in cases {
        let lines = refusals(&log, id);
        assert_eq!(lines.len(), 1, "{id}: {lines:?}");
        let line = lines[0].to_string();
        assert_eq!(lines[0]["level"], "INFO", "{line}");
        let route = path.replace("/s/", "/{signer}/").replace("/other", "/{tenant}");
        assert!(line.contains(&format!("\"{route}\"")) && line.contains(&format!("\"{method}\"")), "{line}");
        assert!(principal.is_empty() || line.contains(&format!("\"principal\":\"{principal}\"")), "{line}");
    }
    assert!(!log.contains("secret-"), "a secret is in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_handler_hides_from_a_token_is_logged_as_refused_and_what_there_is_not_is_not() {
    let some = json!({"name": "some", "token": "some", "scopes": ["admin"], "pools": ["a"]});
    let daemon = Guarded::start(&json!([root(), some])).await;
    let stages = |pool: &str| json!([{"name": "s", "payload": 1, "pool": pool}]);
    let plan = |tenant: &str, pool: &str, starts: bool| {
        let task = json!({"tenant": tenant, "stages": stages(pool)});
        json!({"start": starts, "tasks": [task]})
    };
    // The task that has the lock of `t` is in another pool than the tenant's newest task.
    for asked in [plan("t", "b", true), plan("t", "a", false), plan("u", "b", false)] {
        daemon.done("root", "POST", "/v1/plans", asked).await;
    }
    let job = json!({"payload": 1, "pool": "b", "delay_ms": 600_000});
    let mut jobs = Vec::new();
    for _ in 0..2 {
        jobs.push(daemon.done("root", "POST", "/v1/jobs", job.clone()).await["id"].clone());
    }
    let address = daemon.instance.url().strip_prefix("http://").unwrap();
    let ask = async |token: &str, id: &str, method: &str, path: &str, body: &Value| {
        let request = Request::new(method, path).token(token);
        let mut request = request.header("x-request-id", id).header("idempotency-key", "k");
        if !body.is_null() {
            request = request.json(body.to_string());
        }
        let answer = request.send(address).await;
        (answer.status, answer.json())
    };
    // What the token made, and ran again, is given to another pool.
    let (made, again) = (plan("v", "a", true), json!({"from": "start", "reason": "again"}));
    let (status, own) = ask("some", "made", "POST", "/v1/plans", &made).await;
    assert_eq!(status, 201, "{own}");
    let tasks = format!("/v1/plans/{}/tasks", own["id"].as_str().unwrap());
    let (_, tasks) = daemon.ask("root", "GET", &tasks, None).await;
    let task = format!("/v1/tasks/{}", tasks["items"][0]["id"].as_str().unwrap());
    let cancel = async || {
        daemon.done("root", "POST", &format!("{task}/cancel"), json!({})).await;
        until("the task is cancelled", async || {
            daemon.ask("root", "GET", &task, None).await.1["lock"].is_null()
        })
        .await;
    };
    cancel().await;
    let (status, retried) = ask("some", "retried", "POST", "/v1/tenants/v/retry", &again).await;
    assert_eq!(status, 202, "{retried}");
    cancel().await;
    let elsewhere = json!({"from": "start", "reason": "moved", "stages": stages("b")});
    daemon.done("root", "POST", &format!("{task}/retry"), elsewhere).await;

    for (token, id, path) in [
        ("some", "not-leased", "/v1/leases/signer:never"),
        ("some", "not-made", "/v1/tenants/never"),
        ("root", "not-made-for-all", "/v1/tenants/never"),
    ] {
        let (status, answer) = ask(token, id, "GET", path, &Value::Null).await;
        assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{path}: {answer}");
    }
    let absent = json!({"payload": 1, "session": "nobody"});
    let (status, answer) = ask("some", "no-session", "POST", "/v1/jobs", &absent).await;
    assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{answer}");
    let batch = json!({"jobs": [absent]});
    let (status, answer) = ask("some", "no-session-of-many", "POST", "/v1/jobs/batch", &batch).await;
    assert_eq!((status, &answer["results"][0]["code"]), (202, &json!("not_found")), "{answer}");
    let unlock = json!({"token": 1, "reason": "stuck"});
    let cases = [
        ("hidden-lock", "POST", "/v1/tenants/t/unlock", "/v1/tenants/{tenant}/unlock", unlock),
        ("hidden-lease", "GET", "/v1/leases/tenant:t", "/v1/leases/{resource}", Value::Null),
        ("hidden-task", "GET", "/v1/tenants/u", "/v1/tenants/{tenant}", Value::Null),
        ("hidden-plan", "POST", "/v1/plans", "/v1/plans", made),
        ("hidden-retry", "POST", "/v1/tenants/v/retry", "/v1/tenants/{tenant}/retry", again),
    ];
    for &(id, method, path, _, ref body) in &cases {
        let (status, answer) = ask("some", id, method, path, body).await;
        assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{method} {path}: {answer}");
    }
    let (status, answer) = ask("some", "hidden-jobs", "POST", "/v1/jobs/retry", &json!({"ids": jobs})).await;
    let codes = [&answer["results"][0]["code"], &answer["results"][1]["code"]];
    assert_eq!((status, codes), (202, [&json!("not_found"); 2]), "{answer}");
    let batch = json!({"jobs": [{"payload": 1, "pool": "b"}, {"payload": 2, "pool": "b"}]});
    let (status, submitted) = ask("some", "hidden-batch", "POST", "/v1/jobs/batch", &batch).await;
    let codes = [&submitted["results"][0]["code"], &submitted["results"][1]["code"]];
    assert_eq!((status, codes), (202, [&json!("not_found"); 2]), "{submitted}");
    until("each is in the log", async || {
        let log = daemon.instance.whole_log();
        let mut ids = cases.iter().map(|(id, ..)| *id).chain(["hidden-jobs", "hidden-batch"]);
        ids.all(|id| refusals(&log, id).len() == 1)
    })
    .await;
    let log = daemon.instance.whole_log();
    for &(id, method, _, route, _) in &cases {
        let line = refusals(&log, id)[0].to_string();
        for known in [r#""level":"INFO""#, r#""principal":"some""#] {
            assert!(line.contains(known), "{known}: {line}");
        }
        assert!(line.contains(&format!("\"{route}\"")) && line.contains(&format!("\"{method}\"")), "{line}");
    }
    let line = refusals(&log, "hidden-jobs")[0].to_string();
    let first = answer["results"][0]["retry_of"].as_str().unwrap();
    for known in [r#""principal":"some""#, r#""jobs":2"#, first] {
        assert!(line.contains(known), "{known}: {line}");
    }
    let line = refusals(&log, "hidden-batch")[0].to_string();
    for known in [r#""principal":"some""#, r#""jobs":2"#, "this token sees no pool"] {
        assert!(line.contains(known), "{known}: {line}");
    }
    for id in ["not-leased", "not-made", "not-made-for-all", "no-session", "no-session-of-many"] {
        assert!(refusals(&log, id).is_empty(), "{id}");
    }
}
