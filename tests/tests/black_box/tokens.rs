//! Tokens: what each sees and may do, how they change while the daemon runs, and whose a node is.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use client::wire::worker::close;
use serde_json::{Value, json};
use tempfile::TempDir;
use testkit::http::Client;
use testkit::instance::{Instance, Setup};
use testkit::node::{Message, Socket};
use testkit::process::Signal;

use crate::{patient, until};

pub const HEARTBEAT: &str = r#"{"type":"heartbeat","running":[]}"#;

/// A daemon whose tokens are in a file.
pub struct Guarded {
    pub instance: Instance,
    pub file: PathBuf,
    _dir: TempDir,
}

impl Guarded {
    pub async fn start(tokens: &Value) -> Self {
        Self::on(Setup::in_mode("worker-queue").unwrap(), tokens).await
    }

    /// One that is set up like this.
    pub async fn on(setup: Setup, tokens: &Value) -> Self {
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("fencepost.toml");
        write(&file, tokens);
        let setup = setup.arg("--config").arg(file.to_str().unwrap());
        Self { instance: setup.start().await.unwrap(), file, _dir: dir }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.instance.url())
    }

    pub async fn ask(&self, token: &str, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let reply = patient().with_token(token).request(method, &self.url(path), None, body).await.unwrap();
        (reply.status, reply.body)
    }

    /// What must succeed.
    pub async fn done(&self, token: &str, method: &str, path: &str, body: Value) -> Value {
        let (status, answer) = self.ask(token, method, path, Some(&body)).await;
        assert!((200..300).contains(&status), "{method} {path} {body}: {status} {answer}");
        answer
    }

    pub async fn hello(&self, token: &str, node: &str, pools: Value) -> Socket {
        let mut socket = Socket::connect_with(self.instance.url(), token).await.unwrap();
        let hello =
            format!(r#"{{"type":"hello","node_id":"{node}","capacity":1,"pools":{pools},"running":[]}}"#);
        socket.send(Message::text(hello)).await.unwrap();
        socket
    }
}

/// Writes a configuration file with these tokens.
pub fn write(file: &PathBuf, tokens: &Value) {
    let entries = tokens.as_array().unwrap().iter().map(|entry| {
        let fields = entry.as_object().unwrap().iter().map(|(key, value)| format!("{key} = {value}\n"));
        format!("[[auth.tokens]]\n{}\n", fields.collect::<String>())
    });
    // At once, as editors and orchestrators do it.
    let beside = file.with_extension("new");
    fs::write(&beside, entries.collect::<String>()).unwrap();
    fs::rename(&beside, file).unwrap();
}

/// The close code of a socket, or the type of the first frame.
pub async fn first(socket: &mut Socket) -> String {
    loop {
        match socket.next().await {
            Some(Ok(Message::Text(text))) => {
                let frame: Value = serde_json::from_str(&text).unwrap();
                if frame["type"] != "problem" {
                    return frame["type"].as_str().unwrap().to_owned();
                }
                eprintln!("{frame}");
            }
            Some(Ok(Message::Close(Some(frame)))) => return u16::from(frame.code).to_string(),
            Some(Ok(_)) => {}
            ended => return format!("{ended:?}"),
        }
    }
}

/// The token of a tenant that sees what bears its name.
pub fn of_tenant(name: &str) -> Value {
    json!({
        "name": name, "token": name, "scopes": ["submit", "node"],
        "tenants": [name, format!("{name}-*")], "signers": [format!("{name}:*")], "pools": [name], "nodes": [format!("{name}-*")],
    })
}

/// The token of an operator who sees everything.
pub fn root() -> Value {
    json!({ "name": "root", "token": "root", "scopes": ["admin"] })
}

/// Everything of one tenant, by the parameter that names it in a path.
async fn furnish(daemon: &Guarded, name: &str) -> Vec<(&'static str, String)> {
    let (tenant, signer) = (name.to_owned(), format!("{name}:1"));
    daemon.done(name, "POST", &format!("/v1/signers/{signer}/nonces"), json!({"hold_ms": 600_000})).await;
    let job = json!({"payload": "secret", "tenant": tenant, "pool": name, "delay_ms": 600_000});
    let job = daemon.done(name, "POST", "/v1/jobs", job).await;
    let session = daemon.done(name, "POST", "/v1/sessions", json!({"tenant": tenant})).await;
    let session = session["id"].as_str().unwrap().to_owned();
    let stage = json!({"name": "s", "payload": 1, "pool": name});
    let plan = json!({"start": false, "tasks": [{"tenant": tenant, "stages": [stage]}]});
    let plan = daemon.done(name, "POST", "/v1/plans", plan).await["id"].as_str().unwrap().to_owned();
    let (_, tasks) = daemon.ask(name, "GET", &format!("/v1/plans/{plan}/tasks"), None).await;
    let task = tasks["items"][0]["id"].as_str().unwrap().to_owned();
    vec![
        ("signers", signer.clone()),
        ("jobs", job["id"].as_str().unwrap().to_owned()),
        ("sessions", session),
        ("plans", plan),
        ("tasks", task),
        ("tenants", tenant),
        ("nodes", format!("{name}-1")),
        ("pools", name.to_owned()),
        ("leases", format!("signer:{signer}")),
        ("owner", format!("signer:{signer}")),
    ]
}

/// A path of the document, about this tenant's; and whether it names anything of it.
fn path_of(pattern: &str, names: &[(&'static str, String)]) -> (String, bool) {
    let (mut path, mut is_named, mut before) = (String::new(), false, "");
    for part in pattern.split('/').skip(1) {
        path.push('/');
        match names.iter().find(|(of, _)| *of == before) {
            Some((_, name)) if part.starts_with('{') => {
                path.push_str(name);
                is_named = true;
            }
            _ if part.starts_with('{') => path.push('1'),
            _ => path.push_str(part),
        }
        before = part;
    }
    (path, is_named)
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_see_nothing_of_each_other_on_any_route() {
    let daemon = Guarded::start(&json!([of_tenant("acme"), of_tenant("evil"), root()])).await;
    let mut node = daemon.hello("acme", "acme-1", json!(["acme"])).await;
    assert_eq!(first(&mut node).await, "welcome");
    let acme = furnish(&daemon, "acme").await;
    furnish(&daemon, "evil").await;
    until("the node is listed", async || daemon.ask("root", "GET", "/v1/nodes/acme-1", None).await.0 == 200)
        .await;

    let (_, document) = daemon.ask("root", "GET", "/openapi.json", None).await;
    let paths = document["paths"].as_object().unwrap();
    let mut refused = 0;
    for (pattern, operations) in paths {
        for method in operations.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            let (path, is_named) = path_of(pattern, &acme);
            let is_socket = path.ends_with("/ws");
            if is_named {
                let body = (method != "GET").then(|| json!({}));
                let (status, answer) = daemon.ask("evil", &method, &path, body.as_ref()).await;
                let code = answer["code"].as_str().unwrap_or_default();
                // What only an operator may do is refused before anything is looked at.
                assert!(
                    matches!((status, code), (404, "not_found") | (403, "forbidden")),
                    "{method} {path}: {answer}"
                );
                assert!(!answer.to_string().contains("secret"), "{method} {path}: {answer}");
                refused += 1;
            } else if method == "GET" && !is_socket && !pattern.ends_with("/events") {
                let reply = patient().with_token("evil").request("GET", &daemon.url(&path), None, None).await;
                let text = reply.unwrap().text;
                let shown: Vec<_> = acme.iter().filter(|(_, name)| text.contains(name.as_str())).collect();
                // The document's own examples speak of tenants.
                assert!(shown.is_empty() || pattern == "/openapi.json", "GET {path} shows {shown:?}: {text}");
            }
            // Its own token sees what is its own.
            if is_named && method == "GET" && !is_socket && !pattern.ends_with("/events") {
                let (status, answer) = daemon.ask("acme", "GET", &path, None).await;
                assert_eq!(status, 200, "GET {path}: {answer}");
            }
        }
    }
    assert!(refused > 30, "the document names {refused} operations on what belongs to a tenant");

    let name = |of: &str| acme.iter().find(|(kind, _)| *kind == of).unwrap().1.clone();
    for (token, count) in [("acme", 1), ("evil", 1), ("root", 2)] {
        // A page of one item is full although what is not seen lies between.
        let (_, listed) = daemon.ask(token, "GET", "/v1/sessions?open=true&limit=1", None).await;
        let items = listed["items"].as_array().unwrap();
        assert_eq!((items.len(), listed["next_cursor"].is_string()), (1, count > 1), "{token}: {listed}");
        assert_eq!(items[0]["id"] == name("sessions"), token == "acme" || items[0]["tenant"] == "acme");
        let (_, listed) = daemon.ask(token, "GET", "/v1/sessions?tenant=acme", None).await;
        let items = listed["items"].as_array().unwrap().iter();
        let ids: Vec<_> = items.map(|item| item["id"].as_str().unwrap().to_owned()).collect();
        let seen = if token == "evil" { vec![] } else { vec![name("sessions")] };
        assert_eq!((ids, &listed["next_cursor"]), (seen, &Value::Null), "{token}: {listed}");
    }
    for (path, body) in [
        ("/v1/jobs", json!({"payload": 1, "tenant": "acme", "pool": "evil"})),
        ("/v1/jobs", json!({"payload": 1, "tenant": "evil", "pool": "acme"})),
        ("/v1/jobs", json!({"payload": 1, "session": name("sessions")})),
        ("/v1/sessions", json!({"tenant": "acme"})),
        ("/v1/sessions", json!({"tenant": "evil", "pool": "acme"})),
        (
            "/v1/plans",
            json!({"tasks": [{"tenant": "acme", "stages": [{"name": "s", "payload": 1, "pool": "evil"}]}]}),
        ),
        (
            "/v1/plans",
            json!({"tasks": [{"tenant": "evil", "stages": [{"name": "s", "payload": 1, "pool": "acme"}]}]}),
        ),
    ] {
        let (status, answer) = daemon.ask("evil", "POST", path, Some(&body)).await;
        assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{path} {body}: {answer}");
    }
    let batch = json!({"jobs": [
        {"payload": 1, "tenant": "acme", "pool": "evil"},
        {"payload": 1, "session": name("sessions")},
        {"payload": 1, "tenant": "evil-2", "delay_ms": 600_000},
    ]});
    let answer = daemon.done("evil", "POST", "/v1/jobs/batch", batch).await;
    let codes: Vec<_> = answer["results"].as_array().unwrap().iter().map(|one| &one["code"]).collect();
    assert_eq!(codes, [&json!("not_found"), &json!("not_found"), &Value::Null], "{answer}");
    // A finished job of another tenant is retried neither by its id nor by a filter.
    daemon.done("acme", "POST", &format!("/v1/jobs/{}/cancel", name("jobs")), json!({})).await;
    for asked in [json!({"ids": [name("jobs")]}), json!({"outcome": "cancelled"})] {
        let answer = daemon.done("evil", "POST", "/v1/jobs/retry", asked).await;
        assert_eq!(answer["retried"], 0, "{answer}");
    }
    let (_, job) = daemon.ask("root", "GET", &format!("/v1/jobs/{}", name("jobs")), None).await;
    assert_eq!((&job["outcome"], &job["retried_as"]), (&json!("cancelled"), &Value::Null));
    let (_, plan) = daemon.ask("root", "GET", &format!("/v1/plans/{}", name("plans")), None).await;
    assert_eq!(plan["status"], "CREATED");
    // Without a pool or a tenant that is the only one, one must be named.
    let (status, answer) = daemon.ask("evil", "POST", "/v1/jobs", Some(&json!({"payload": 1}))).await;
    assert_eq!((status, &answer["code"]), (400, &json!("invalid")), "{answer}");
    // Nobody has taken the node's place.
    for (node_id, pools) in [("acme-1", json!(["evil"])), ("evil-1", json!(["acme"])), ("evil-1", json!([]))]
    {
        let mut socket = daemon.hello("evil", node_id, pools).await;
        assert_eq!(first(&mut socket).await, close::UNAUTHORIZED.to_string());
    }
    node.send(Message::text(HEARTBEAT)).await.unwrap();
    assert_eq!(first(&mut node).await, "heartbeat_ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_operation_reaches_only_what_its_token_sees_and_is_seen_by_it() {
    let daemon = Guarded::start(&json!([of_tenant("acme"), of_tenant("evil"), root()])).await;
    let (acme, evil) = (furnish(&daemon, "acme").await, furnish(&daemon, "evil").await);
    let job =
        |names: &[(&'static str, String)]| names.iter().find(|(of, _)| *of == "jobs").unwrap().1.clone();
    let body = json!({"action": "cancel", "filter": {"state": "CREATED"}});
    let everything = json!({"action": "cancel", "filter": {"state": "CREATED"}, "dry_run": true});
    let all = daemon.done("root", "POST", "/v1/bulk", everything).await["matched"].as_u64().unwrap();
    let begun = daemon.done("evil", "POST", "/v1/bulk", body).await;
    let matched = begun["matched"].as_u64().unwrap();
    assert!(matched > 0 && matched < all, "{begun}: of {all}");
    let path = format!("/v1/bulk/{}", begun["id"].as_str().unwrap());
    until("it is over", async || daemon.ask("evil", "GET", &path, None).await.1["status"] == "DONE").await;
    let (_, bulk) = daemon.ask("root", "GET", &path, None).await;
    assert_eq!((&bulk["done"], &bulk["by"]), (&json!(matched), &json!("evil")), "{bulk}");
    let state = async |id: String| {
        daemon.ask("root", "GET", &format!("/v1/jobs/{id}"), None).await.1["state"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        (state(job(&evil)).await, state(job(&acme)).await),
        ("FINISHED".to_owned(), "CREATED".to_owned())
    );
    for (method, path) in [("GET", path.clone()), ("POST", format!("{path}/cancel"))] {
        let (status, answer) = daemon.ask("acme", method, &path, None).await;
        assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{method} {path}: {answer}");
    }
    for (token, count) in [("acme", 0), ("evil", 1), ("root", 1)] {
        let (_, listed) = daemon.ask(token, "GET", "/v1/bulk", None).await;
        assert_eq!(listed["items"].as_array().unwrap().len(), count, "{token}: {listed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_say_what_a_token_may_do() {
    let token = |name: &str| json!({"name": name, "token": name, "scopes": [name]});
    let daemon =
        Guarded::start(&json!([token("read"), token("submit"), token("node"), token("admin")])).await;
    let grant = ("POST", "/v1/signers/s/nonces", json!({}));
    let policy = ("PUT", "/v1/signers/s/policy", json!({"hold_ms": 5_000}));
    let signer = ("GET", "/v1/signers", Value::Null);
    let ids = ("GET", "/v1/ids/uuid", Value::Null);
    let segment = ("PUT", "/v1/ids/segments/order", json!({"step": 100}));
    let pools = ("GET", "/v1/config/pools", Value::Null);
    let change = ("PUT", "/v1/config/pools", json!({"version": 1, "pools": []}));
    let session = daemon.done("submit", "POST", "/v1/sessions", json!({})).await;
    for ((method, path, body), allowed) in [
        (grant, &["submit", "admin"][..]),
        (policy, &["admin"]),
        (signer, &["read", "submit", "admin"]),
        (ids, &["submit", "admin"]),
        (segment, &["admin"]),
        (pools, &["read", "submit", "admin"]),
        (change, &["admin"]),
    ] {
        for token in ["read", "submit", "node", "admin"] {
            let body = (!body.is_null()).then_some(&body);
            let (status, answer) = daemon.ask(token, method, path, body).await;
            let expected = if allowed.contains(&token) { 200..300 } else { 403..404 };
            assert!(expected.contains(&status), "{token}: {method} {path}: {status} {answer}");
        }
    }
    // Who only reads hears what happens in a session, and puts nothing into it.
    let path = format!("/v1/sessions/{}/ws", session["id"].as_str().unwrap());
    let address = daemon.instance.url().strip_prefix("http://").unwrap();
    let mut request = tokio_tungstenite::tungstenite::client::IntoClientRequest::into_client_request(
        format!("ws://{address}{path}"),
    )
    .unwrap();
    request.headers_mut().insert("authorization", "Bearer read".parse().unwrap());
    request.headers_mut().insert("sec-websocket-protocol", "fencepost.v1".parse().unwrap());
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut socket, _) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    futures_util::SinkExt::send(&mut socket, Message::text(r#"{"type":"job","ref":"c1","payload":1}"#))
        .await
        .unwrap();
    loop {
        if let Message::Text(text) = futures_util::StreamExt::next(&mut socket).await.unwrap().unwrap() {
            let frame: Value = serde_json::from_str(&text).unwrap();
            assert_eq!((&frame["type"], &frame["code"]), (&json!("problem"), &json!("forbidden")), "{frame}");
            break;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_is_its_callers_own() {
    let token = |name: &str, scope: &str| json!({"name": name, "token": name, "scopes": [scope]});
    let tokens = [token("one", "submit"), token("other", "submit"), token("ops", "admin")];
    let daemon = Guarded::start(&json!(tokens)).await;
    let grant = async |token: &str, key: &str, count: u64| {
        let client = patient().with_token(token);
        let (url, body) = (daemon.url("/v1/signers/s/nonces"), json!({"count": count}));
        client.request("POST", &url, Some(key), Some(&body)).await.unwrap().body
    };
    let nonce = async |token: &str, key: &str| grant(token, key, 1).await["grants"][0]["nonce"].clone();
    let nonces = [
        nonce("one", "1").await,
        nonce("other", "1").await,
        nonce("one", "1").await,
        nonce("other", "1").await,
    ];
    assert_eq!(nonces, [json!(0), json!(1), json!(0), json!(1)]);
    // Unless the policy of the signer says that its keys are those of all.
    let share = async |shared: bool| {
        let policy = json!({"shared_keys": shared});
        let answer = daemon.done("ops", "PUT", "/v1/signers/s/policy", policy).await;
        assert_eq!(answer["policy"]["shared_keys"], json!(shared), "{answer}");
    };
    share(true).await;
    assert_eq!((nonce("one", "2").await, nonce("other", "2").await), (json!(2), json!(2)));
    assert_eq!(grant("other", "2", 2).await["code"], "key_reused");
    let (_, entries) = daemon.ask("ops", "GET", "/v1/audit?action=set_policy", None).await;
    let entry = &entries["items"][0];
    assert!(entry["before"].as_str().unwrap().contains("shared_keys=false"), "{entry}");
    assert!(entry["after"].as_str().unwrap().contains("shared_keys=true"), "{entry}");
    share(false).await;
    assert_eq!((nonce("one", "2").await, nonce("other", "2").await), (json!(2), json!(3)));
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_change_under_load_without_a_refusal() {
    let entry = |secrets: &[&str]| {
        let digests: Vec<_> = secrets.iter().map(|secret| digest_of(secret)).collect();
        json!([{ "name": "user", "sha256": digests, "scopes": ["submit", "node"] }])
    };
    let daemon = Guarded::start(&entry(&["one"])).await;
    let mut node = daemon.hello("one", "n-1", json!([])).await;
    assert_eq!(first(&mut node).await, "welcome");
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load = |secret: &str| {
        let (client, url) = (patient().with_token(secret), daemon.url("/v1/signers/s/nonces"));
        let (stop, asked) = (Arc::clone(&stop), Arc::clone(&asked));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                let reply = client.request("POST", &url, None, None).await.unwrap();
                assert_eq!(reply.status, 201, "{}", reply.text);
                asked.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let before = load("one");
    let knows = async |secret: &str| daemon.ask(secret, "GET", "/v1/signers", None).await.0 == 200;
    // The new secret beside the old one, found by looking at the file.
    write(&daemon.file, &entry(&["two", "one"]));
    until("the new secret is good", async || knows("two").await).await;
    let after = load("two");
    let count = asked.load(Ordering::Relaxed);
    until("both are served", async || asked.load(Ordering::Relaxed) > count + 100).await;
    stop.store(true, Ordering::Relaxed);
    before.await.unwrap();
    after.await.unwrap();
    node.send(Message::text(HEARTBEAT)).await.unwrap();
    assert_eq!(first(&mut node).await, "heartbeat_ok", "its caller is still configured");
    // What cannot be read changes nothing, also where it is asked for.
    fs::write(&daemon.file, "[auth]\ntokens = [{ name = \"user\" }]\n").unwrap();
    daemon.instance.process().signal(Signal::Hangup).unwrap();
    until("the refusal is logged", async || {
        daemon.instance.whole_log().contains("the tokens stay as they are")
    })
    .await;
    assert!(knows("one").await && knows("two").await);
    // Without the old one.
    write(&daemon.file, &entry(&["two"]));
    daemon.instance.process().signal(Signal::Hangup).unwrap();
    until("the old secret is not good any more", async || !knows("one").await).await;
    assert!(knows("two").await);
    // Another caller alone: the node's token was taken away.
    let mut other = entry(&["two"]);
    other[0]["name"] = json!("other");
    write(&daemon.file, &other);
    until("the socket is closed", async || first(&mut node).await == close::UNAUTHORIZED.to_string()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_whose_token_connected_it_as_long_as_it_lives() {
    let token = |name: &str| json!({"name": name, "token": name, "scopes": ["node", "submit"]});
    let daemon = Guarded::start(&json!([token("one"), token("other")])).await;
    let mut node = daemon.hello("one", "n-1", json!([])).await;
    assert_eq!(first(&mut node).await, "welcome");
    until("it is listed", async || daemon.ask("one", "GET", "/v1/nodes/n-1", None).await.0 == 200).await;
    let mut thief = daemon.hello("other", "n-1", json!([])).await;
    assert_eq!(first(&mut thief).await, close::UNAUTHORIZED.to_string());
    daemon.done("one", "POST", "/v1/jobs", json!({"payload": 7})).await;
    assert_eq!(first(&mut node).await, "dispatch", "the real one works on");
    // Its own token takes over, as ever.
    let mut again = daemon.hello("one", "n-1", json!([])).await;
    assert_eq!(first(&mut again).await, "welcome");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_the_command_line_opens_what_its_entry_says() {
    let made = Setup::command("token")
        .arg("new")
        .arg("billing")
        .arg("--scope")
        .arg("read")
        .arg("--signer")
        .arg("eip155:*")
        .arg("--expires-at")
        .arg("2999-01-01T00:00:00Z")
        .arg("--json")
        .run_to_end(Duration::from_secs(20))
        .await
        .unwrap();
    assert_eq!(made.code, Some(0), "{made:?}");
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    let (secret, entry) = (made["token"].as_str().unwrap(), &made["entry"]);
    assert!(secret.starts_with("fp_") && secret.len() > 40, "{made}");
    assert!(!entry.to_string().contains(secret), "the entry does not hold the secret");
    let daemon = Guarded::start(&json!([entry, root()])).await;
    daemon.done("root", "POST", "/v1/signers/eip155:1:0xab/nonces", json!({})).await;
    daemon.done("root", "POST", "/v1/signers/solana:1/nonces", json!({})).await;
    let seen = client_of(secret).list(&daemon.url("/v1/signers")).await.unwrap();
    assert_eq!(seen.iter().map(|one| &one["signer"]).collect::<Vec<_>>(), ["eip155:1:0xab"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_operator_changes_is_in_the_audit_with_its_request() {
    let daemon =
        Guarded::start(&json!([root(), {"name": "user", "token": "user", "scopes": ["submit"]}])).await;
    let mut node = daemon.hello("root", "n-1", json!([])).await;
    assert_eq!(first(&mut node).await, "welcome");
    until("it is listed", async || daemon.ask("root", "GET", "/v1/nodes/n-1", None).await.0 == 200).await;
    let job = daemon.done("user", "POST", "/v1/jobs", json!({"payload": 1, "delay_ms": 600_000})).await;
    let other = daemon.done("user", "POST", "/v1/jobs", json!({"payload": 1, "delay_ms": 600_000})).await;
    let grant = daemon.done("user", "POST", "/v1/signers/s/nonces", json!({})).await;
    let release = json!({"hold": grant["grants"][0]["hold"], "outcome": "unknown"});
    daemon.done("user", "POST", "/v1/signers/s/nonces/0/release", release).await;
    let cancel = |job: &Value| format!("/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
    // A caller's own work is no operator's action.
    daemon.done("user", "POST", &cancel(&other), json!({})).await;
    for (method, path, body) in [
        ("PUT", "/v1/signers/s/policy".to_owned(), json!({"max_in_flight": 9})),
        ("POST", "/v1/signers/s/nonces/0/resolve".to_owned(), json!({"outcome": "never_sent"})),
        ("PUT", "/v1/config/pools".to_owned(), json!({"version": 1, "pools": []})),
        ("PUT", "/v1/ids/segments/order".to_owned(), json!({"step": 100})),
        ("PUT", "/v1/ids/sequences/invoice".to_owned(), json!({})),
        ("POST", "/v1/nodes/n-1/drain".to_owned(), json!({})),
        ("POST", cancel(&job), json!({})),
        ("POST", format!("/v1/jobs/{}/retry", job["id"].as_str().unwrap()), json!({})),
        ("PUT", "/v1/config/mode".to_owned(), json!({"version": 1, "mode": "basic"})),
    ] {
        daemon.done("root", method, &path, body).await;
    }
    let (status, audit) = daemon.ask("root", "GET", "/v1/audit", None).await;
    assert_eq!(status, 200, "{audit}");
    let entries = audit["items"].as_array().unwrap();
    let seen: Vec<_> = entries.iter().rev().map(|one| one["action"].as_str().unwrap()).collect();
    let expected = [
        "set_policy",
        "resolve_nonce",
        "set_pools",
        "set_segment",
        "set_sequence",
        "drain_node",
        "cancel_job",
        "retry_job",
        "set_mode",
    ];
    assert_eq!(seen, expected, "{audit}");
    for entry in entries {
        let is_whole =
            entry["principal"] == "root" && entry["request_id"].as_str().is_some_and(|id| !id.is_empty());
        assert!(is_whole, "{entry}");
    }
    let policy = entries.iter().find(|one| one["action"] == "set_policy").unwrap();
    assert!(policy["before"].as_str().unwrap().contains("max_in_flight=none"), "{policy}");
    assert!(policy["after"].as_str().unwrap().contains("max_in_flight=9"), "{policy}");
    let resolved = entries.iter().find(|one| one["action"] == "resolve_nonce").unwrap();
    assert_eq!(
        (&resolved["before"], &resolved["after"]),
        (&json!("QUARANTINED"), &json!("RELEASED")),
        "{resolved}"
    );
    let cancelled = entries.iter().find(|one| one["action"] == "cancel_job").unwrap();
    assert_eq!(
        (&cancelled["before"], &cancelled["after"]),
        (&json!("CREATED"), &json!("cancelled")),
        "{cancelled}"
    );
    assert_eq!(daemon.ask("user", "GET", "/v1/audit", None).await.0, 403);
    let (_, one) = daemon.ask("root", "GET", "/v1/audit?action=set_mode&subject=config:mode", None).await;
    assert_eq!(one["items"].as_array().unwrap().len(), 1);
    let shown = Setup::command("audit")
        .arg("list")
        .arg("--url")
        .arg(daemon.instance.url())
        .arg("--token")
        .arg("root")
        .arg("--json")
        .run_to_end(testkit::PATIENCE)
        .await
        .unwrap();
    assert_eq!((shown.code, shown.stdout.lines().count()), (Some(0), expected.len()), "{shown:?}");
}

fn client_of(secret: &str) -> Client {
    patient().with_token(secret)
}

/// SHA-256, as `sha256sum` prints it.
pub fn digest_of(secret: &str) -> String {
    use std::io::Write;
    use std::process::{Command, Stdio};
    let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    sum.stdin.take().unwrap().write_all(secret.as_bytes()).unwrap();
    let printed = String::from_utf8(sum.wait_with_output().unwrap().stdout).unwrap();
    printed.split_whitespace().next().unwrap().to_owned()
}
