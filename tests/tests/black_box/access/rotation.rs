//! Tokens that change under load: the callers with a valid token get in, and the others lose their open connections.

use std::collections::HashMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use client::wire::worker::close;
use futures_util::StreamExt;
use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::http::plain_http;
use testkit::node::{Message, Socket};
use testkit::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::world::{self, Ground};
use crate::bad_input::socket::Answer;
use crate::tokens::{Guarded, HEARTBEAT, digest_of, first, root, write};
use crate::{patient, until};

fn entry(name: &str, secrets: &[String], scopes: &[&str]) -> Value {
    let digests: Vec<_> = secrets.iter().map(|secret| digest_of(secret)).collect();
    json!({"name": name, "sha256": digests, "scopes": scopes})
}

/// Changes the tokens, by a signal or by the file alone, and waits until a secret is good, or is not.
async fn change(daemon: &Guarded, tokens: &Value, by_signal: bool, (secret, is_good): (&str, bool)) {
    write(&daemon.file, tokens);
    if by_signal {
        daemon.instance.process().signal(Signal::Hangup).unwrap();
    }
    until("the tokens are reloaded", async || {
        let (status, answer) = daemon.ask(secret, "GET", "/v1/signers", None).await;
        assert!(matches!(status, 200 | 401), "{status} {answer}");
        (status == 200) == is_good
    })
    .await;
}

/// Keeps a node's socket busy until told to stop; ends with what the socket said last.
fn beats(mut socket: Socket, stop: Arc<AtomicBool>) -> tokio::task::JoinHandle<String> {
    tokio::spawn(async move {
        loop {
            if stop.load(Ordering::Relaxed) {
                return "served".to_owned();
            }
            if socket.send(Message::text(HEARTBEAT)).await.is_err() {
                return first(&mut socket).await;
            }
            let said = first(&mut socket).await;
            if said != "heartbeat_ok" {
                return said;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_change_round_after_round_and_nobody_who_has_one_is_refused() {
    const ROUNDS: usize = 6;
    const CALLERS: usize = 4;
    let secret = |round: usize| format!("secret-of-round-{round}");
    let scopes = ["submit", "node"];
    let steady = entry("steady", &["steady".to_owned()], &scopes);
    let with = |secrets: &[String]| json!([entry("user", secrets, &scopes), steady]);
    let daemon = Arc::new(Guarded::start(&with(&[secret(0)])).await);
    let stop = Arc::new(AtomicBool::new(false));
    let undisturbed = beats(world::node(&daemon, "steady", "steady-1", "p").await, Arc::clone(&stop));
    let session = daemon.done("steady", "POST", "/v1/sessions", json!({})).await;
    let session = session["id"].as_str().unwrap().to_owned();
    let mut socket = world::session_socket(daemon.instance.url(), "steady", &session).await;

    let (announce, current) = watch::channel(secret(0));
    // How many requests were answered under each secret.
    let answered: Arc<Mutex<HashMap<(usize, String), usize>>> = Arc::default();
    let callers: Vec<_> = (0..CALLERS)
        .map(|number| {
            let (current, answered, stop) = (current.clone(), Arc::clone(&answered), Arc::clone(&stop));
            let url = daemon.url("/v1/signers/s/nonces");
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let secret = current.borrow().clone();
                    let reply =
                        patient().with_token(&secret).request("POST", &url, None, None).await.unwrap();
                    assert_eq!(reply.status, 201, "{secret}: {}", reply.text);
                    *answered.lock().entry((number, secret)).or_default() += 1;
                }
            })
        })
        .collect();
    let all_use = async |secret: &str| {
        until("all callers use the secret", async || {
            let answered = answered.lock();
            (0..CALLERS)
                .all(|number| answered.get(&(number, secret.to_owned())).is_some_and(|count| *count > 2))
        })
        .await;
    };
    all_use(&secret(0)).await;
    for round in 1..=ROUNDS {
        let (old, new) = (secret(round - 1), secret(round));
        change(&daemon, &with(&[new.clone(), old.clone()]), round % 2 == 0, (&new, true)).await;
        announce.send(new.clone()).unwrap();
        all_use(&new).await;
        let mut node = world::node(&daemon, &new, "user-1", "p").await;
        change(&daemon, &with(std::slice::from_ref(&new)), round % 2 == 1, (&old, false)).await;
        // A socket under the new secret stays open where the old one is gone.
        node.send(Message::text(HEARTBEAT)).await.unwrap();
        assert_eq!(first(&mut node).await, "heartbeat_ok");
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    assert_eq!(undisturbed.await.unwrap(), "served");
    let job = r#"{"type":"job","ref":"c1","payload":1}"#;
    futures_util::SinkExt::send(&mut socket, Message::text(job)).await.unwrap();
    loop {
        if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
            assert!(text.contains("accepted"), "{text}");
            break;
        }
    }
}

/// All that a caller may keep open.
struct Open {
    node: Socket,
    session: tokio_tungstenite::WebSocketStream<TcpStream>,
    streams: Vec<(&'static str, reqwest::Response)>,
}

impl Open {
    /// Opens everything with a token that may do everything.
    async fn with(daemon: &Guarded, secret: &str) -> Self {
        let session = daemon.done(secret, "POST", "/v1/sessions", json!({})).await;
        let session = session["id"].as_str().unwrap().to_owned();
        let job = daemon.done(secret, "POST", "/v1/jobs", json!({"payload": 1, "delay_ms": 600_000})).await;
        let stage = json!({"name": "s0", "payload": 1});
        let plan = json!({"start": false, "tasks": [{"tenant": secret, "stages": [stage]}]});
        let plan = daemon.done(secret, "POST", "/v1/plans", plan).await;
        let http = plain_http(testkit::PATIENCE).unwrap();
        let mut streams = Vec::new();
        for (what, path) in [
            ("a job's", format!("/v1/jobs/{}/events", job["id"].as_str().unwrap())),
            ("a plan's", format!("/v1/plans/{}/events", plan["id"].as_str().unwrap())),
            ("everybody's", "/v1/events".to_owned()),
        ] {
            let stream =
                http.get(daemon.url(&path)).bearer_auth(secret).header("accept", "text/event-stream");
            let mut stream = stream.send().await.unwrap().error_for_status().unwrap();
            stream.chunk().await.unwrap().expect("a stream begins with a line");
            streams.push((what, stream));
        }
        Self {
            node: world::node(daemon, secret, &format!("node-of-{secret}"), "p").await,
            session: world::session_socket(daemon.instance.url(), secret, &session).await,
            streams,
        }
    }

    /// Waits until all of it has ended, though the caller reads and asks on.
    async fn ends(mut self, why: &str) {
        let ended = async {
            loop {
                match self.node.next().await {
                    Some(Ok(Message::Close(Some(frame)))) => {
                        assert_eq!(u16::from(frame.code), close::UNAUTHORIZED, "{why}");
                        break assert!(frame.reason.contains("may do less"), "{why}: {}", frame.reason);
                    }
                    Some(Ok(_)) => {}
                    other => panic!("{why}: the node's socket ended with {other:?}"),
                }
            }
            loop {
                match self.session.next().await {
                    Some(Ok(Message::Close(Some(frame)))) => {
                        assert_eq!(u16::from(frame.code), close::UNAUTHORIZED, "{why}");
                        break assert!(frame.reason.contains("may do less"), "{why}: {}", frame.reason);
                    }
                    Some(Ok(_)) => {}
                    other => panic!("{why}: the session's socket ended with {other:?}"),
                }
            }
            for (what, stream) in &mut self.streams {
                while stream
                    .chunk()
                    .await
                    .unwrap_or_else(|error| panic!("{why}: {what} stream: {error}"))
                    .is_some()
                {}
            }
        };
        tokio::time::timeout(testkit::PATIENCE, ended)
            .await
            .unwrap_or_else(|_| panic!("{why}: something stays open"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_taken_away_expires_or_may_do_less_loses_what_is_open() {
    let secrets = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let expiring = |end: Option<Duration>| {
        let mut expiring = entry("expiring", &secrets(&["expiring"]), &["admin"]);
        if let Some(end) = end {
            expiring["expires_at"] = json!(date(SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + end));
        }
        expiring
    };
    let steady = entry("steady", &secrets(&["steady"]), &["admin"]);
    let removed = entry("removed", &secrets(&["removed"]), &["admin"]);
    let replaced = |names: &[&str]| entry("replaced", &secrets(names), &["admin"]);
    let narrowed = |scopes: &[&str]| entry("narrowed", &secrets(&["narrowed"]), scopes);
    let bounded = |is_bounded: bool| {
        let mut bounded = entry("bounded", &secrets(&["bounded"]), &["admin"]);
        if is_bounded {
            bounded["tenants"] = json!(["acme"]);
        }
        bounded
    };
    let tokens = json!([
        steady,
        expiring(None),
        removed,
        replaced(&["new", "replaced"]),
        narrowed(&["admin"]),
        bounded(false)
    ]);
    let daemon = Guarded::start(&tokens).await;
    let mut open = Vec::new();
    for name in ["expiring", "removed", "replaced", "narrowed", "bounded"] {
        open.push((name, Open::with(&daemon, name).await));
    }
    let mut steady_ones = Open::with(&daemon, "steady").await;
    let tokens = json!([
        steady,
        expiring(Some(Duration::from_secs(3))),
        replaced(&["new"]),
        narrowed(&["submit"]),
        bounded(true)
    ]);
    change(&daemon, &tokens, true, ("removed", false)).await;
    for (name, open) in open {
        open.ends(name).await;
    }
    // Who changed nothing keeps everything.
    steady_ones.node.send(Message::text(HEARTBEAT)).await.unwrap();
    assert_eq!(first(&mut steady_ones.node).await, "heartbeat_ok");
    let (_, job) = daemon.ask("steady", "GET", "/v1/jobs?limit=1", None).await;
    let cancel = format!("/v1/jobs/{}/cancel", job["items"][0]["id"].as_str().unwrap());
    daemon.done("steady", "POST", &cancel, json!({})).await;
    for (what, stream) in &mut steady_ones.streams {
        if *what != "a plan's" {
            stream.chunk().await.unwrap().unwrap_or_else(|| panic!("{what} stream has ended"));
        }
    }
}

/// A client that listens to a session in which jobs end all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_taken_away_loses_a_socket_that_is_never_idle() {
    let steady = entry("steady", &["steady".to_owned()], &["admin"]);
    let removed = entry("removed", &["removed".to_owned()], &["read"]);
    let daemon = Guarded::start(&json!([steady, removed])).await;
    let session = daemon.done("steady", "POST", "/v1/sessions", json!({"ordering": "none"})).await;
    let session = session["id"].as_str().unwrap();
    let mut socket = world::session_socket(daemon.instance.url(), "removed", session).await;
    let goes_on = async {
        loop {
            let job = json!({"session": session, "payload": 1, "delay_ms": 600_000});
            let job = daemon.done("steady", "POST", "/v1/jobs", job).await;
            let cancel = format!("/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
            daemon.done("steady", "POST", &cancel, json!({})).await;
        }
    };
    let ends = async {
        // Results come.
        while !matches!(socket.next().await.unwrap().unwrap(), Message::Text(_)) {}
        change(&daemon, &json!([steady]), true, ("removed", false)).await;
        let closed = async {
            loop {
                match socket.next().await {
                    Some(Ok(Message::Close(Some(frame)))) => break u16::from(frame.code),
                    Some(Ok(_)) => {}
                    other => panic!("the socket ended with {other:?}"),
                }
            }
        };
        // Much earlier than the daemon's next ping.
        let code = tokio::time::timeout(Duration::from_secs(5), closed).await;
        assert_eq!(code.expect("the socket is closed"), close::UNAUTHORIZED);
    };
    tokio::select! {
        () = goes_on => {}
        () = ends => {}
    }
}

/// Changes, with their bodies.
const CHANGES: [(&str, &str, &str); 6] = [
    ("PUT", "/v1/signers/s/policy", r#"{"hold_ms":5000}"#),
    ("POST", "/v1/jobs", r#"{"payload":1}"#),
    ("POST", "/v1/jobs/batch", r#"{"jobs":[{"payload":1}]}"#),
    ("POST", "/v1/sessions", "{}"),
    ("POST", "/v1/plans", r#"{"start":false,"tasks":[{"tenant":"t","stages":[{"name":"s","payload":1}]}]}"#),
    ("POST", "/v1/bulk", r#"{"action":"cancel","filter":{"state":"CREATED"}}"#),
];

/// A request that the daemon has let in, and whose body is held back.
struct HeldBack {
    what: String,
    stream: TcpStream,
    body: Vec<u8>,
}

impl HeldBack {
    /// Sends the head of a change, and waits until the daemon looks at it.
    async fn begun(
        daemon: &Guarded,
        secret: &str,
        (method, path, body): (&str, &str, &str),
        is_chunked: bool,
    ) -> Self {
        const GO_ON: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
        let length = body.len();
        let (header, body) = if is_chunked {
            ("transfer-encoding: chunked".to_owned(), format!("{length:x}\r\n{body}\r\n0\r\n\r\n"))
        } else {
            (format!("content-length: {length}"), body.to_owned())
        };
        let what = format!("{method} {path} of {secret}, {header}");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {secret}\r\n\
             connection: close\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n{header}\r\n\r\n"
        );
        let mut stream =
            TcpStream::connect(daemon.instance.url().strip_prefix("http://").unwrap()).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut said = vec![0; GO_ON.len()];
        stream.read_exact(&mut said).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&said), String::from_utf8_lossy(GO_ON), "{what}");
        Self { what, stream, body: body.into_bytes() }
    }

    /// All changes, by each of some tokens.
    async fn all(daemon: &Guarded, secrets: &[&str]) -> Vec<Self> {
        let mut held = Vec::new();
        for secret in secrets {
            for change in CHANGES {
                for is_chunked in [false, true] {
                    held.push(Self::begun(daemon, secret, change, is_chunked).await);
                }
            }
        }
        held
    }

    /// Sends the body, and reads the answer.
    async fn ends(mut self) -> (String, Answer) {
        self.stream.write_all(&self.body).await.unwrap();
        let mut answer = Vec::new();
        self.stream.read_to_end(&mut answer).await.unwrap();
        let answer = Answer::parse(&answer).unwrap_or_else(|| panic!("{}: no answer", self.what));
        (self.what, answer)
    }
}

/// Checks that none of [`CHANGES`] was made.
async fn nothing_was_made(daemon: &Guarded) {
    for path in ["/v1/signers", "/v1/jobs", "/v1/sessions", "/v1/plans", "/v1/bulk"] {
        let (_, listed) = daemon.ask("steady", "GET", path, None).await;
        assert_eq!(listed["items"], json!([]), "{path}: {listed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_done_for_a_token_that_is_taken_away_before_the_body_comes() {
    let named = |name: &str| entry(name, &[name.to_owned()], &["admin"]);
    let mut expired = named("expired");
    let daemon = Guarded::start(&json!([named("steady"), named("removed"), expired])).await;
    let held = HeldBack::all(&daemon, &["removed", "expired"]).await;
    expired["expires_at"] = json!("2001-01-01T00:00:00Z");
    change(&daemon, &json!([named("steady"), expired]), true, ("removed", false)).await;
    for held in held {
        let (what, answer) = held.ends().await;
        assert_eq!((answer.status, &answer.json()["code"]), (401, &json!("unauthorized")), "{what}");
    }
    nothing_was_made(&daemon).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_may_do_less_before_the_body_comes_does_what_it_may_do_then() {
    let with = |name: &str, scopes: &[&str]| entry(name, &[name.to_owned()], scopes);
    let (steady, gone) = (with("steady", &["admin"]), with("gone", &["read"]));
    let mut bounded = with("bounded", &["admin"]);
    let before =
        json!([steady, gone, with("narrowed", &["admin"]), bounded, with("still", &["submit", "node"])]);
    let daemon = Guarded::start(&before).await;
    let held = HeldBack::all(&daemon, &["narrowed"]).await;
    let unseen = HeldBack::begun(&daemon, "bounded", CHANGES[0], false).await;
    let allowed = HeldBack::begun(&daemon, "still", CHANGES[1], false).await;
    bounded["signers"] = json!(["other:*"]);
    let after = json!([steady, with("narrowed", &["read"]), bounded, with("still", &["submit"])]);
    change(&daemon, &after, true, ("gone", false)).await;
    for held in held {
        let (what, answer) = held.ends().await;
        assert_eq!((answer.status, &answer.json()["code"]), (403, &json!("forbidden")), "{what}: {answer:?}");
    }
    let (what, answer) = unseen.ends().await;
    assert_eq!((answer.status, &answer.json()["code"]), (404, &json!("not_found")), "{what}: {answer:?}");
    nothing_was_made(&daemon).await;
    // What the token may do then is done.
    let (what, answer) = allowed.ends().await;
    assert_eq!(answer.status, 202, "{what}: {answer:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_changes_no_token_says_what_has_no_effect_and_is_not_in_the_audit() {
    let both = json!([root(), {"name": "revoked", "token": "revoked", "scopes": ["read"]}]);
    let ground = Ground::fresh();
    let setup = ground.setup().env("FENCEPOST__AUTH__TOKENS", &both.to_string());
    let daemon = Guarded::on(setup, &both).await;
    let times = |words: &str| daemon.instance.whole_log().matches(words).count();
    let logged = async |words: &str| until(words, async || times(words) > 0).await;
    // The variable's tokens count.
    write(&daemon.file, &json!([root()]));
    logged("the tokens of FENCEPOST__AUTH__TOKENS count").await;
    assert_eq!(daemon.ask("revoked", "GET", "/v1/signers", None).await.0, 200);
    std::fs::write(&daemon.file, "[lease]\nsigner_ms = 11000\n[nonce]\nqueue_max = 5\n").unwrap();
    daemon.instance.process().signal(Signal::Hangup).unwrap();
    logged("lease.signer_ms, nonce.queue_max").await;
    let away = daemon.file.with_extension("away");
    std::fs::rename(&daemon.file, &away).unwrap();
    logged("the configuration file is gone").await;
    std::fs::rename(&away, &daemon.file).unwrap();
    logged("the configuration file is back").await;
    assert_eq!(times("the configuration file is gone"), 1);
    let (_, listed) = daemon.ask("root", "GET", "/v1/audit?action=reload_tokens", None).await;
    assert_eq!(listed["items"], json!([]), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_is_refused_is_shown_as_such_until_one_is_taken() {
    let tokens = json!([root()]);
    let daemon = Guarded::start(&tokens).await;
    let is_shown = async |series: &str| {
        let client = patient().with_token("root");
        let reply = client.request("GET", &daemon.url("/metrics"), None, None).await.unwrap();
        reply.text.lines().any(|line| line == series)
    };
    let refused = "fencepost_file_refused{of=\"tokens\"}";
    assert!(is_shown(&format!("{refused} 0")).await, "it is there from the start");
    std::fs::write(&daemon.file, "[lease]\nno_such_key = 1\n").unwrap();
    until("it is refused", async || is_shown(&format!("{refused} 1")).await).await;
    assert_eq!(daemon.ask("root", "GET", "/v1/signers", None).await.0, 200);
    write(&daemon.file, &tokens);
    until("it is taken", async || is_shown(&format!("{refused} 0")).await).await;
}

/// A time since 1970 as RFC 3339 in UTC.
fn date(at: Duration) -> String {
    let seconds = format!("@{}", at.as_secs());
    let said = Command::new("date").args(["-u", "-d", &seconds, "+%Y-%m-%dT%H:%M:%SZ"]).output().unwrap();
    String::from_utf8(said.stdout).unwrap().trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_operation_is_left_by_an_instance_with_older_tokens_to_one_that_knows_its_token() {
    const JOBS: usize = 12;
    let ground = Ground::fresh();
    let new = json!({"name": "new", "token": "new", "scopes": ["submit"]});
    let mut newer = Guarded::on(ground.setup(), &json!([root(), new])).await;
    let older = Guarded::on(ground.setup(), &json!([root()])).await;
    for _ in 0..JOBS {
        let job = json!({"payload": 1, "kind": "k", "delay_ms": 600_000});
        let job = newer.done("new", "POST", "/v1/jobs", job).await;
        let cancel = format!("/v1/jobs/{}/cancel", job["id"].as_str().unwrap());
        newer.done("new", "POST", &cancel, json!({})).await;
    }
    // Slow enough for its owner to die in the middle.
    let asked = json!({"action": "delete", "filter": {"kind": "k"}, "rate": 2});
    let begun = newer.done("new", "POST", "/v1/bulk", asked).await;
    assert_eq!(begun["matched"], JOBS);
    let bulk = format!("/v1/bulk/{}", begun["id"].as_str().unwrap());
    newer.instance.end_by(Signal::Kill, testkit::PATIENCE).await.unwrap();
    until("the other instance leaves it", async || {
        older.instance.whole_log().contains("is left to an instance that knows its token")
    })
    .await;
    let mut shown = Value::Null;
    until("no instance has it", async || {
        shown = older.ask("root", "GET", &bulk, None).await.1;
        assert_ne!(shown["instance"], "nobody", "{shown}");
        let listed = older.ask("root", "GET", "/v1/bulk", None).await.1;
        shown.get("instance") == Some(&Value::Null)
            && listed["items"][0].get("instance") == Some(&Value::Null)
    })
    .await;
    newer.instance.start().await.unwrap();
    until("the bulk operation is over", async || {
        shown = older.ask("root", "GET", &bulk, None).await.1;
        !shown["finished_at"].is_null()
    })
    .await;
    assert_eq!((&shown["status"], &shown["done"]), (&json!("DONE"), &json!(JOBS)), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repetition_under_a_key_names_no_job_or_session_that_its_token_sees_no_more() {
    let of = |tenant: &str| json!([{"name": "x", "token": "x", "scopes": ["submit"], "tenants": [tenant]}]);
    let ground = Ground::fresh();
    let daemon = Guarded::on(ground.setup(), &of("x1")).await;
    // The token's only tenant is meant.
    let job = json!({"payload": 1, "delay_ms": 600_000});
    let batch = json!({"jobs": [job, job]});
    let send = async |path: &str, body: &Value| {
        let client = patient().with_token("x");
        let reply = client.request("POST", &daemon.url(path), Some("k"), Some(body)).await.unwrap();
        (reply.status, reply.body)
    };
    let all = async || {
        let (one, session) = (send("/v1/jobs", &job).await, send("/v1/sessions", &json!({})).await);
        [one, session, send("/v1/jobs/batch", &batch).await]
    };
    let made = all().await;
    assert_eq!(made.each_ref().map(|(status, _)| *status), [202, 201, 202], "{made:?}");
    let path = format!("/v1/jobs/{}", made[0].1["id"].as_str().unwrap());
    let now_sees = async |tenant: &str, status: u16| {
        write(&daemon.file, &of(tenant));
        until("the tokens are reloaded", async || daemon.ask("x", "GET", &path, None).await.0 == status)
            .await;
    };
    now_sees("x2", 404).await;
    let [one, session, batch] = all().await;
    for (status, answer) in [one, session] {
        assert_eq!((status, &answer["code"]), (404, &json!("not_found")), "{answer}");
    }
    let codes: Vec<_> = batch.1["results"].as_array().unwrap().iter().map(|one| &one["code"]).collect();
    assert_eq!((batch.0, codes), (202, vec![&json!("not_found"); 2]), "{}", batch.1);
    now_sees("x1", 200).await;
    assert_eq!(all().await, made, "it sees them again");
}
