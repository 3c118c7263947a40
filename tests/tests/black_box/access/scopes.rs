//! Every route under every scope, as the contract says it; the document names the same scopes.

use serde_json::json;

use super::operations::{self, Names, Operation};
use crate::bad_input::socket::{Answer, converse};
use crate::patient;
use crate::tokens::{Guarded, first};
use crate::web_pages::{head, status};

/// What a request needs.
#[derive(Debug, PartialEq, Eq)]
enum Needs {
    Nothing,
    AnyToken,
    Scope(&'static str),
}

/// What the contract says.
fn contract(operation: &Operation) -> Needs {
    const ADMIN: [(&str, &str); 16] = [
        ("PUT", "/v1/signers/{signer}/policy"),
        ("POST", "/v1/signers/{signer}/nonces/{nonce}/resolve"),
        ("POST", "/v1/signers/{signer}/confirm"),
        ("GET", "/v1/config/mode"),
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
        let lines: Vec<_> = log
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .filter(|line| line.to_string().contains(id) && line.to_string().contains("access is refused"))
            .collect();
        assert_eq!(lines.len(), 1, "{id}: {lines:?}");
        let line = lines[0].to_string();
        assert_eq!(lines[0]["level"], "INFO", "{line}");
        let route = path.replace("/s/", "/{signer}/").replace("/other", "/{tenant}");
        assert!(line.contains(&format!("\"{route}\"")) && line.contains(&format!("\"{method}\"")), "{line}");
        assert!(principal.is_empty() || line.contains(&format!("\"principal\":\"{principal}\"")), "{line}");
    }
    assert!(!log.contains("secret-"), "a secret is in the log");
}
