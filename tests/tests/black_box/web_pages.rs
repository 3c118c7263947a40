//! A daemon without tokens, and the browser on the same machine: programs are served, pages of other sites are not.

use serde_json::Value;
use testkit::instance::Setup;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::access::operations::{self, Names};
use crate::bad_input::socket::{Answer, converse};
use crate::patient;

/// The head of a request with these headers, and no others but what its kind needs.
pub fn head(method: &str, target: &str, headers: &[(&str, &str)]) -> Vec<u8> {
    let mut head = format!("{method} {target} HTTP/1.1\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(match (method, target.contains("/ws")) {
        ("POST", _) => "content-type: application/json\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}",
        (_, true) => {
            "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
             sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        }
        _ => "connection: close\r\n\r\n",
    });
    head.into_bytes()
}

/// The status of the answer, without waiting for the end of what follows it.
pub async fn status(address: &str, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut line = [0; 12];
    stream.read_exact(&mut line).await.unwrap();
    String::from_utf8_lossy(&line).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_no_page_of_another_site_gets_anything() {
    let instance = Setup::in_mode("worker-queue").unwrap().start().await.unwrap();
    let (url, client) = (instance.url().to_owned(), patient());
    let address = url.strip_prefix("http://").unwrap().to_owned();
    let opened = client.request("POST", &format!("{url}/v1/sessions"), None, None).await.unwrap();
    let socket = format!("/v1/sessions/{}/ws", opened.body["id"].as_str().unwrap());
    let names = Names {
        signer: "victim".to_owned(),
        session: opened.body["id"].as_str().unwrap().to_owned(),
        ..Names::of_nothing()
    };
    let document = client.get(&format!("{url}/openapi.json")).await.unwrap();
    let mut asked: Vec<_> =
        operations::all(&document).iter().map(|one| (one.method.clone(), one.path(&names))).collect();
    asked.push(("GET".to_owned(), "/nowhere".to_owned()));
    asked.push(("OPTIONS".to_owned(), "/v1/jobs".to_owned()));
    asked.push(("GET".to_owned(), "/assets/app.js".to_owned()));
    asked.push(("POST".to_owned(), "/readyz".to_owned()));
    let (port, local) = (address.rsplit(':').next().unwrap(), address.as_str());
    let rebound = format!("evil.example:{port}");
    let other_port = "http://127.0.0.1:1".to_owned();
    let other_name = format!("http://localhost:{port}");
    let foreign: [&[(&str, &str)]; 8] = [
        &[("host", &rebound)],
        &[("host", &rebound), ("origin", &format!("http://{rebound}"))],
        &[("host", local), ("origin", "https://evil.example")],
        &[("host", local), ("origin", "null")],
        &[("host", local), ("origin", &other_port)],
        &[("host", local), ("origin", &other_name)],
        &[("host", local), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "no-cors")],
        &[("host", local), ("sec-fetch-site", "same-site"), ("sec-fetch-mode", "no-cors")],
    ];
    for (method, target) in &asked {
        // It shows nothing that would need a loopback name.
        let is_probe = method == "GET" && matches!(target.as_str(), "/healthz" | "/readyz");
        for headers in foreign {
            let answer = converse(&address, &head(method, target, headers)).await;
            let answer = Answer::parse(&answer).unwrap();
            if is_probe && headers[0].1 == rebound {
                assert_eq!(answer.status, 200, "{method} {target} {headers:?}: {answer:?}");
                continue;
            }
            assert_eq!(answer.status, 403, "{method} {target} {headers:?}: {answer:?}");
            let problem = answer.json();
            assert_eq!(problem["code"], "forbidden", "{method} {target} {headers:?}: {problem}");
            assert!(problem["detail"].as_str().unwrap().contains("auth.tokens"), "{problem}");
        }
        let nameless = head(method, target, &[]);
        let nameless = String::from_utf8(nameless).unwrap().replace("HTTP/1.1", "HTTP/1.0");
        let answer = converse(&address, nameless.as_bytes()).await;
        let answer = String::from_utf8_lossy(&answer);
        let expected = if is_probe { "HTTP/1.0 200" } else { "HTTP/1.0 400" };
        assert!(answer.starts_with(expected), "{method} {target} without a host: {answer}");
    }
    let victim = client.request("GET", &format!("{url}/v1/signers/victim"), None, None).await.unwrap();
    assert_eq!(victim.status, 404, "a page was granted a nonce: {}", victim.text);

    let named = format!("localhost:{port}");
    let own_page = [("host", named.as_str()), ("origin", &other_name), ("sec-fetch-site", "same-origin")];
    for headers in [&[("host", named.as_str())][..], &[("host", local)], &[("host", "[::1]:1")], &own_page] {
        for (method, target, expected) in [
            ("GET", "/healthz", "HTTP/1.1 200"),
            ("GET", "/v1/signers", "HTTP/1.1 200"),
            ("POST", "/v1/signers/own/nonces", "HTTP/1.1 201"),
            ("GET", "/v1/nodes/ws", "HTTP/1.1 101"),
            ("GET", &socket, "HTTP/1.1 101"),
        ] {
            let answered = status(&address, &head(method, target, headers)).await;
            assert_eq!(answered, expected, "{method} {target} {headers:?}");
        }
        for (method, target) in &asked {
            let answered = status(&address, &head(method, target, headers)).await;
            assert!(
                !answered.ends_with("401") && !answered.ends_with("403"),
                "{method} {target} {headers:?}: {answered}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_only_probes_are_served_through_a_proxy() {
    let instance = Setup::basic().unwrap().start().await.unwrap();
    let address = instance.url().strip_prefix("http://").unwrap();
    for name in ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"] {
        let headers = [("host", address), (name, "192.0.2.1")];
        for (method, target) in
            [("GET", "/v1/signers"), ("POST", "/v1/signers/s/nonces"), ("GET", "/"), ("GET", "/metrics")]
        {
            let answer = converse(address, &head(method, target, &headers)).await;
            let answer = Answer::parse(&answer).unwrap();
            let problem = answer.json();
            assert_eq!((answer.status, &problem["code"]), (403, &"forbidden".into()), "{target} {name}");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains("set tokens (auth.tokens) to serve it through a proxy"), "{detail}");
        }
        for (method, target) in [("GET", "/healthz"), ("GET", "/readyz"), ("HEAD", "/readyz")] {
            let answered = status(address, &head(method, target, &headers)).await;
            assert_eq!(answered, "HTTP/1.1 200", "{method} {target} {name}");
        }
    }
    for (host, is_told) in [(address, true), ("localhost", true), ("evil.example", false)] {
        let answer = converse(address, &head("GET", "/readyz", &[("host", host)])).await;
        let ready = Answer::parse(&answer).unwrap().json();
        assert_eq!(ready["status"], "ready", "{host}");
        assert_eq!(ready["checks"].as_object().unwrap().is_empty(), !is_told, "{host}: {ready}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tokens_the_token_decides_whatever_the_host_is() {
    let tokens = r#"[{"name":"t","token":"s3cret","scopes":["submit"]}]"#;
    let instance = Setup::basic().unwrap().env("FENCEPOST__AUTH__TOKENS", tokens).start().await.unwrap();
    let address = instance.url().strip_prefix("http://").unwrap().to_owned();
    let headers =
        [("host", "fencepost.example"), ("x-forwarded-for", "192.0.2.1"), ("authorization", "Bearer s3cret")];
    for (headers, expected) in [(&headers[..], 200), (&headers[..2], 401)] {
        let answer = converse(&address, &head("GET", "/v1/signers", headers)).await;
        let answer = Answer::parse(&answer).unwrap();
        assert_eq!(answer.status, expected, "{answer:?}");
        assert_ne!(answer.json(), Value::Null);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboards_files_need_no_token_and_what_they_show_does() {
    let tokens = r#"[{"name":"viewer","token":"v","scopes":["read"]},{"name":"root","token":"r","scopes":["admin"]},
        {"name":"acme","token":"a","scopes":["submit"],"tenants":["acme"]}]"#;
    let instance = Setup::basic().unwrap().env("FENCEPOST__AUTH__TOKENS", tokens).start().await.unwrap();
    let address = instance.url().strip_prefix("http://").unwrap().to_owned();
    let ask = async |target: &str, token: Option<&str>| {
        let bearer = token.map(|token| format!("Bearer {token}"));
        let host = [("host", "fencepost.example")].into_iter();
        let headers: Vec<_> = host.chain(bearer.as_deref().map(|value| ("authorization", value))).collect();
        Answer::parse(&converse(&address, &head("GET", target, &headers)).await).unwrap()
    };
    for (target, content_type) in [
        ("/", "text/html; charset=utf-8"),
        ("/assets/app.js", "text/javascript; charset=utf-8"),
        ("/assets/app.css", "text/css; charset=utf-8"),
        ("/assets/icon.svg", "image/svg+xml"),
    ] {
        let answer = ask(target, None).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, content_type), "{target}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{target}");
        assert_eq!(answer.header("referrer-policy"), "no-referrer", "{target}");
        let policy = answer.header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{target}: {policy}");
        assert!(
            policy.contains("frame-ancestors 'none'") && !policy.contains("unsafe"),
            "{target}: {policy}"
        );
    }
    for target in ["/assets/nothing.js", "/assets/..%2f..%2fCargo.toml", "/assets/index.html"] {
        let answer = ask(target, None).await;
        // A path that the table does not know is refused to strangers as any other.
        assert!(matches!(answer.status, 404 | 401), "{target}: {answer:?}");
    }
    for target in ["/v1/whoami", "/v1/stats", "/v1/jobs", "/openapi.json"] {
        assert_eq!(ask(target, None).await.status, 401, "{target}");
    }
    for (token, expected) in [
        ("v", serde_json::json!({"name": "viewer", "scopes": ["read"], "sees_everything": true})),
        (
            "r",
            serde_json::json!({"name": "root", "scopes": ["read", "submit", "node", "admin"], "sees_everything": true}),
        ),
        ("a", serde_json::json!({"name": "acme", "scopes": ["read", "submit"], "sees_everything": false})),
    ] {
        let answer = ask("/v1/whoami", Some(token)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let answer = answer.json();
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&answer[field], value, "{field} of {token}: {answer}");
        }
        assert!(answer["instance"].is_string() && answer["version"].is_string(), "{answer}");
    }
}
