//! A daemon without tokens, and pages of other origins in a real browser: whatever a page makes the browser send is refused,
//! shows nothing and changes nothing. The daemon's own pages are served.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use testkit::instance::Instance;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::chromium::Chromium;
use super::operations::{self, Names, Operation};
use super::world::{self, Ground};
use crate::patient;

/// What a page tries.
const DRIVER: &str = include_str!("driver.js");

/// Serves an empty page to every client, on another port: below `/sandboxed` one without an origin. Answers with the port.
async fn foreign_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut request, mut bytes) = (Vec::new(), [0; 4_096]);
                while !request.windows(4).any(|end| end == b"\r\n\r\n") {
                    match stream.read(&mut bytes).await {
                        Ok(0) | Err(_) => return,
                        Ok(read) => request.extend_from_slice(&bytes[..read]),
                    }
                }
                let sandbox = if request.starts_with(b"GET /sandboxed") {
                    "content-security-policy: sandbox allow-scripts allow-forms\r\n"
                } else {
                    ""
                };
                let page = "<!doctype html><title>another page</title><body>another page</body>";
                let answer = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\n{sandbox}connection: close\r\n\
                     content-length: {}\r\n\r\n{page}",
                    page.len()
                );
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    port
}

/// A daemon without tokens that has some of everything.
async fn daemon(ground: &Ground) -> (Instance, Names) {
    let instance = ground.setup().start().await.unwrap();
    let done = async |method: &str, path: &str, body: Value| {
        let reply =
            patient().request(method, &format!("{}{path}", instance.url()), None, Some(&body)).await.unwrap();
        assert!((200..300).contains(&reply.status), "{method} {path}: {}", reply.text);
        reply.body
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let granted = done("POST", "/v1/signers/victim/nonces", json!({"hold_ms": 600_000})).await;
    let job = done("POST", "/v1/jobs", json!({"payload": 1, "delay_ms": 600_000})).await;
    let session = done("POST", "/v1/sessions", json!({})).await;
    let stage = json!({"name": "s0", "payload": 1});
    let plan = json!({"start": false, "tasks": [{"tenant": "victim", "stages": [stage]}]});
    let plan = text(&done("POST", "/v1/plans", plan).await["id"]);
    let tasks = patient().get(&format!("{}/v1/plans/{plan}/tasks", instance.url())).await.unwrap();
    done("PUT", "/v1/ids/segments/order", json!({})).await;
    done("PUT", "/v1/ids/sequences/invoice", json!({})).await;
    let names = Names {
        signer: "victim".to_owned(),
        hold: text(&granted["grants"][0]["hold"]),
        job: text(&job["id"]),
        session: text(&session["id"]),
        plan,
        task: text(&tasks["items"][0]["id"]),
        tenant: "victim".to_owned(),
        pool: "default".to_owned(),
        node: "victim".to_owned(),
        lock: 1,
    };
    (instance, names)
}

/// How many requests the daemon has answered, by route, method and status.
async fn answered(url: &str) -> BTreeMap<[String; 3], f64> {
    let text = patient().request("GET", &format!("{url}/metrics"), None, None).await.unwrap().text;
    let lines = text.lines().filter_map(|line| line.strip_prefix("fencepost_http_requests_total{"));
    lines
        .map(|line| {
            let (labels, count) = line.rsplit_once("} ").unwrap();
            let label = |name: &str| {
                let (_, rest) = labels.split_once(&format!("{name}=\"")).unwrap();
                rest.split('"').next().unwrap().to_owned()
            };
            ([label("route"), label("method"), label("status")], count.parse().unwrap())
        })
        .collect()
}

async fn operations_of(url: &str) -> Vec<Operation> {
    operations::all(&patient().get(&format!("{url}/openapi.json")).await.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_page_of_another_origin_reads_or_changes_anything_through_a_browser() {
    let ground = Ground::fresh();
    let (instance, names) = daemon(&ground).await;
    let url = instance.url().to_owned();
    let port = url.rsplit(':').next().unwrap();
    let operations = operations_of(&url).await;
    // A page whose name leads here may probe, as any load balancer may.
    let asked = |is_rebound: bool| {
        let is_probe = |one: &&Operation| matches!(one.pattern.as_str(), "/healthz" | "/readyz");
        operations
            .iter()
            .filter(|one| !(is_rebound && is_probe(one)))
            .map(|one| json!({"method": one.method, "path": one.path(&names), "body": one.body(&names)}))
            .collect::<Vec<_>>()
    };
    let foreign = foreign_server().await;
    let mut browser = Chromium::start("MAP attacker.example 127.0.0.1").await;
    let (before, counted) = (world::dump(&ground.database), answered(&url).await);

    // The last page has the daemon's own port: its name leads to the attacker first and to this machine later.
    let rebound = format!("http://attacker.example:{port}");
    for (page, origin, base) in [
        (format!("http://127.0.0.1:{foreign}/"), format!("http://127.0.0.1:{foreign}"), url.clone()),
        (format!("http://localhost:{foreign}/"), format!("http://localhost:{foreign}"), url.clone()),
        (
            format!("http://attacker.example:{foreign}/"),
            format!("http://attacker.example:{foreign}"),
            url.clone(),
        ),
        (format!("http://127.0.0.1:{foreign}/sandboxed"), "null".to_owned(), url.clone()),
        (format!("{rebound}/"), rebound.clone(), rebound.clone()),
    ] {
        browser.open(&page).await;
        assert_eq!(browser.evaluate("self.origin").await, origin, "{page}");
        let asked = asked(base == rebound);
        let outcomes = browser.evaluate(&format!("({DRIVER})({}, {})", json!(base), json!(asked))).await;
        let outcomes = outcomes.as_array().unwrap();
        assert!(outcomes.len() > 5 * asked.len(), "{page}: {} attempts", outcomes.len());
        let may_read = |outcome: &Value| origin == base && outcome == "status 403";
        let finds: Vec<_> = outcomes
            .iter()
            .filter(|one| one[1] != "refused" && one[1] != "sent" && !may_read(&one[1]))
            .collect();
        assert!(finds.is_empty(), "the page {page} got through: {finds:#?}");
    }

    browser.end().await;

    // All of it was asked, and nothing was answered but 403.
    let mut since = answered(&url).await;
    for (key, count) in &counted {
        *since.entry(key.clone()).or_default() -= count;
    }
    since.retain(|_, count| *count > 0.0);
    let served: Vec<_> =
        since.iter().filter(|([route, _, status], _)| status != "403" && route != "/metrics").collect();
    assert!(served.is_empty(), "pages of other origins were served: {served:#?}");
    for Operation { pattern, method, .. } in &operations {
        let key = [pattern.clone(), method.clone(), "403".to_owned()];
        assert!(since.contains_key(&key), "no page asked for {method} {pattern}: {since:#?}");
    }
    assert_eq!(world::dump(&ground.database), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_daemons_own_pages_are_served_in_a_browser() {
    let ground = Ground::fresh();
    let (instance, names) = daemon(&ground).await;
    let url = instance.url().to_owned();
    let port = url.rsplit(':').next().unwrap();
    let operations = operations_of(&url).await;
    let is_answered =
        |one: &&Operation| one.method == "GET" && !one.is_socket() && !one.pattern.ends_with("/events");
    let paths: Vec<_> = operations.iter().filter(is_answered).map(|one| one.path(&names)).collect();
    let paths = json!(paths);
    let mut browser = Chromium::start("").await;
    for own in [url.clone(), format!("http://localhost:{port}")] {
        browser.open(&format!("{own}/")).await;
        // Once the page has drawn itself, what it shows stands before that.
        let title = browser.evaluate("document.title").await;
        assert!(title.as_str().is_some_and(|title| title.ends_with("Fencepost")), "{own}: {title}");
        // A page without a policy of its own about what it may ask for.
        browser.open(&format!("{own}/openapi.json")).await;
        let statuses = format!(
            "Promise.all({paths}.map(async (path) => [path, (await fetch(path)).status]))\
             .then((all) => all.filter(([, status]) => status === 403 || status >= 500))"
        );
        assert_eq!(browser.evaluate(&statuses).await, json!([]), "{own}");
        let granted = "fetch('/v1/signers/own/nonces', {method: 'POST', headers: {'content-type': 'application/json'}, \
                       body: '{}'}).then((answer) => answer.status)";
        assert_eq!(browser.evaluate(granted).await, 201, "{own}");
        for path in ["/v1/nodes/ws".to_owned(), format!("/v1/sessions/{}/ws", names.session)] {
            let opened = format!(
                "new Promise((resolve) => {{ \
                 const it = new WebSocket(location.origin.replace('http', 'ws') + '{path}', 'fencepost.v1'); \
                 it.onopen = () => {{ it.close(); resolve('opened'); }}; it.onerror = () => resolve('refused'); }})"
            );
            assert_eq!(browser.evaluate(&opened).await, "opened", "{own}{path}");
        }
        let heard = format!(
            "new Promise((resolve) => {{ const it = new EventSource('/v1/jobs/{}/events'); \
             it.addEventListener('job', () => {{ it.close(); resolve('heard'); }}); it.onerror = () => resolve('refused'); }})",
            names.job
        );
        assert_eq!(browser.evaluate(&heard).await, "heard", "{own}");
    }
    browser.end().await;
}
