//! Bad input: every route and every field, wrong in every way that a table can hold, and then at
//! random. All of it is refused with the right code, and nothing changes.

mod operations;
mod parser;
mod plans;
mod random;
pub mod socket;

use serde_json::{Value, json};
use testkit::instance::{Instance, Setup};

use operations::{Operation, SIGNER};
use socket::{Answer, Request, converse};

const BODY_BYTES_MAX: usize = 100_000;
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"];

/// A daemon with tokens, and a signer with one nonce in each state: 0 HELD, 1 CONSUMED, 2 QUARANTINED,
/// 3 RELEASED.
struct Subject {
    instance: Instance,
    address: String,
    holds: Vec<String>,
    sent: u32,
}

impl Subject {
    async fn start() -> Self {
        let mut subject = Self::bare(Setup::basic().unwrap()).await;
        subject.make_nonces().await;
        subject
    }

    /// The daemon alone, set up like this.
    async fn bare(setup: Setup) -> Self {
        let tokens = json!([
            { "name": "user", "token": "user", "scopes": ["submit"] },
            { "name": "node", "token": "node", "scopes": ["node"] },
            { "name": "admin", "token": "admin", "scopes": ["admin"] },
        ]);
        let setup = setup.env("FENCEPOST__AUTH__TOKENS", &tokens.to_string());
        let setup = setup.env("FENCEPOST__SERVER__BODY_BYTES_MAX", &BODY_BYTES_MAX.to_string());
        let instance = setup.start().await.unwrap();
        let address = instance.url().strip_prefix("http://").unwrap().to_owned();
        Self { instance, address, holds: Vec::new(), sent: 0 }
    }

    async fn make_nonces(&mut self) {
        let nonces = format!("/v1/signers/{SIGNER}/nonces");
        let granted = self.ask("POST", &nonces, r#"{"count":4,"hold_ms":3600000}"#).await;
        let grants = granted["grants"].as_array().unwrap();
        self.holds = grants.iter().map(|grant| grant["hold"].as_str().unwrap().to_owned()).collect();
        for (nonce, end, rest) in [
            (1, "consume", r#""tx_hash":"0x01""#),
            (2, "release", r#""outcome":"unknown""#),
            (3, "release", r#""outcome":"never_sent""#),
        ] {
            let body = format!(r#"{{"hold":"{}",{rest}}}"#, self.holds[nonce]);
            self.ask("POST", &format!("{nonces}/{nonce}/{end}"), &body).await;
        }
    }

    /// A request that must succeed.
    async fn ask(&self, method: &str, path: &str, body: &str) -> Value {
        let mut request = Request::new(method, path).token("admin");
        if !body.is_empty() {
            request = request.json(body);
        }
        let answer = request.send(&self.address).await;
        assert!((200..300).contains(&answer.status), "{method} {path} {body}: {answer:?}");
        answer.json()
    }

    /// All that the API shows of nonces, signers and leases, but for what passes by itself.
    async fn dump(&self) -> Value {
        let lease = format!("/v1/leases/signer:{SIGNER}");
        // In basic mode the lease is let go soon after the last work.
        while self.ask("GET", &lease, "").await["live"] == true {
            tokio::task::yield_now().await;
        }
        let mut signers = self.ask("GET", "/v1/signers", "").await;
        for signer in signers["items"].as_array_mut().unwrap() {
            signer.as_object_mut().unwrap().remove("oldest_hold_ms");
        }
        let nonces = self.ask("GET", &format!("/v1/signers/{SIGNER}/nonces"), "").await;
        let leases = self.ask("GET", "/v1/leases?kind=signer", "").await;
        json!({ "signers": signers, "nonces": nonces, "leases": leases })
    }

    /// Sends a request that must be refused like this.
    async fn refused(&mut self, request: Request, status: u16, code: &str) -> (Answer, Value) {
        self.sent += 1;
        let id = format!("bad-{}", self.sent);
        let request = request.header("x-request-id", id.clone());
        let answer = request.send(&self.address).await;
        let shown = || {
            let mut shown = request.clone();
            if let Some(body) = &mut shown.body {
                body.truncate(300);
            }
            format!("{shown:?}\n{answer:?}\n{}", String::from_utf8_lossy(&answer.body))
        };
        assert_eq!(answer.status, status, "{}", shown());
        assert_eq!(answer.header("content-type"), "application/problem+json", "{}", shown());
        assert_eq!(answer.header("x-request-id"), id, "{}", shown());
        if request.method == "HEAD" {
            return (answer, Value::Null);
        }
        let problem = answer.json();
        assert_eq!(problem["code"], code, "{}", shown());
        assert_eq!(problem["status"], status, "{}", shown());
        assert_eq!(problem["type"], format!("urn:fencepost:problem:{code}"), "{}", shown());
        assert_eq!(problem["request_id"], id.as_str(), "{}", shown());
        for text in ["title", "detail"] {
            assert!(problem[text].as_str().is_some_and(|text| !text.is_empty()), "{}", shown());
        }
        (answer, problem)
    }

    /// As [`Self::refused`], as `invalid` for this reason.
    async fn invalid(&mut self, request: Request, reason: &str) {
        let (_, problem) = self.refused(request, 400, "invalid").await;
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains(reason), "{reason:?} is not named: {detail}");
        assert!(detail.chars().count() <= 401, "echoed at length: {detail}");
    }

    async fn no_defect_was_counted(&self) {
        let answer = Request::new("GET", "/metrics").token("node").send(&self.address).await;
        let text = String::from_utf8(answer.body).unwrap();
        let counted = text.lines().find(|line| line.starts_with("fencepost_internal_errors_total"));
        assert!(counted.is_none_or(|line| line.ends_with(" 0")), "{counted:?}\n{}", self.instance.log());
        assert!(text.contains("fencepost_http_requests_total{"), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_field_wrong_in_every_way_is_invalid_and_changes_nothing() {
    let mut subject = Subject::start().await;
    let operations = operations::with_body(&subject.holds[0]);
    let before = subject.dump().await;

    for operation in &operations {
        for (field, request) in operation.wrong_fields() {
            subject.invalid(request, &field).await;
        }
        bodies(&mut subject, operation).await;
    }
    settlement_lists(&mut subject).await;
    misplaced_tx_hashes(&mut subject).await;
    paths_and_queries(&mut subject, &operations).await;
    idempotency_keys(&mut subject).await;

    assert_eq!(subject.dump().await, before);
    subject.no_defect_was_counted().await;
    eprintln!("{} requests were refused", subject.sent);

    // The table proves something only if each operation succeeds with nothing wrong. (The hole that
    // is there is granted, nonce 0 settled by the first that may.)
    for operation in &operations {
        let answer = operation.with(&operation.right()).send(&subject.address).await;
        let expected = match operation.path.rsplit('/').next().unwrap() {
            "nonces" => 201,
            "release" => 409,
            _ => 200,
        };
        assert_eq!(answer.status, expected, "{}: {answer:?}", operation.path);
    }
}

async fn bodies(subject: &mut Subject, operation: &Operation) {
    for (body, reason) in [
        ("", "missing"),
        ("{", ""),
        ("}", ""),
        ("{}}", ""),
        ("{} {}", ""),
        ("{\"a\"}", ""),
        ("{'a':1}", ""),
        ("{a:1}", ""),
        ("{\"a\":1,}", ""),
        ("{,}", ""),
        ("// no\n{}", ""),
        ("null", ""),
        ("true", ""),
        ("7", ""),
        ("\"text\"", ""),
        ("[]", "invalid type: sequence, expected an object"),
        (" [{}]", "invalid type: sequence, expected an object"),
        ("\u{feff}{}", ""),
        ("\0", ""),
        ("   ", ""),
    ] {
        if !(operation.optional && body.is_empty()) {
            subject.invalid(operation.request().json(body), reason).await;
        }
    }
    if !operation.optional {
        subject.invalid(operation.request(), "missing").await;
    }
    let deep = format!("{{\"a\":{}", "[".repeat(50_000));
    subject.invalid(operation.request().json(deep), "").await;
    for bytes in [&b"\xff\xfe{}"[..], b"{\"hold\":\"\xc3\x28\"}", b"{\"\xf0\x9f\":1}"] {
        subject.invalid(operation.request().json(bytes), "UTF-8").await;
    }

    let body = operation.with(&operation.right()).body.unwrap();
    for media_type in [
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/jsonp",
        "application/json; charset=latin1",
        "application/problem+json",
        "json",
        "",
    ] {
        let request = operation.request().header("content-type", media_type).body(body.clone());
        subject.refused(request, 415, "unsupported_media_type").await;
    }
    let untyped = operation.request().body(body.clone());
    subject.refused(untyped, 415, "unsupported_media_type").await;
    let twice = operation.request().json(body.clone()).header("content-type", "application/json");
    subject.refused(twice, 415, "unsupported_media_type").await;
    let packed = operation.request().json(body).header("content-encoding", "gzip");
    subject.refused(packed, 415, "unsupported_media_type").await;

    let mut long = operation.request().json("{}");
    long.body = Some(vec![b' '; operation.bytes_max + 1]);
    subject.refused(long, 413, "too_large").await;
    let declared = operation.request().header("content-type", "application/json");
    let declared = declared.header("content-length", (1_u64 << 40).to_string());
    subject.refused(declared, 413, "too_large").await;
    let mut chunked = operation.request().header("content-type", "application/json");
    chunked = chunked.header("transfer-encoding", "chunked");
    let mut bytes = format!("{:x}\r\n", operation.bytes_max + 1).into_bytes();
    bytes.resize(bytes.len() + operation.bytes_max + 1, b' ');
    subject.refused_raw(chunked, &bytes, 413, "too_large").await;
}

impl Subject {
    /// A request whose body is sent as it is, without a length.
    async fn refused_raw(&mut self, request: Request, body: &[u8], status: u16, code: &str) {
        let mut bytes =
            format!("{} {} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n", request.method, request.target)
                .into_bytes();
        for (name, value) in &request.headers {
            bytes.extend([name.as_bytes(), b": ", value, b"\r\n"].concat());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        let answer = Answer::parse(&converse(&self.address, &bytes).await).unwrap();
        assert_eq!((answer.status, &answer.json()["code"]), (status, &Value::from(code)), "{answer:?}");
    }
}

async fn settlement_lists(subject: &mut Subject) {
    let hold = subject.holds[0].clone();
    let item = format!(r#"{{"nonce":0,"hold":"{hold}","outcome":"never_sent"}}"#);
    let request = |body: String| {
        Request::new("POST", &format!("/v1/signers/{SIGNER}/settlements")).token("user").json(body)
    };
    for list in ["null", "{}", "7", "\"x\"", "[]", "[null]", "[1]", "[\"x\"]", "[[]]", "[{}]"] {
        let wrong = request(format!(r#"{{"settlements":{list}}}"#));
        subject.invalid(wrong, "settlements").await;
    }
    let as_array = format!(r#"[0,"{hold}","never_sent"]"#);
    subject.invalid(request(format!(r#"{{"settlements":[{as_array}]}}"#)), "settlements[0]").await;
    // One wrong item refuses all, and none of the right ones counts.
    let mixed = format!(r#"{{"settlements":[{item},{{"nonce":-1}}]}}"#);
    subject.invalid(request(mixed), "settlements[1].nonce").await;
    let many = vec![item.as_str(); 1_001].join(",");
    assert!(many.len() < BODY_BYTES_MAX);
    subject.invalid(request(format!(r#"{{"settlements":[{many}]}}"#)), "1 to 1000").await;
    subject
        .invalid(request(format!(r#"{{"settlements":[{item}],"settlements":[{item}]}}"#)), "duplicate")
        .await;
    subject.invalid(request(format!(r#"{{"settlements":[{item}],"more":1}}"#)), "unknown field `more`").await;
}

async fn misplaced_tx_hashes(subject: &mut Subject) {
    let hold = subject.holds[0].clone();
    for outcome in ["never_sent", "unknown"] {
        let item = format!(r#"{{"nonce":0,"hold":"{hold}","outcome":"{outcome}","tx_hash":"0x1"}}"#);
        let path = format!("/v1/signers/{SIGNER}/settlements");
        let request =
            Request::new("POST", &path).token("user").json(format!(r#"{{"settlements":[{item}]}}"#));
        subject.invalid(request, "settlements[0].tx_hash").await;
    }
    let path = format!("/v1/signers/{SIGNER}/nonces/2/resolve");
    let body = r#"{"outcome":"never_sent","tx_hash":"0x1"}"#;
    subject.invalid(Request::new("POST", &path).token("admin").json(body), "tx_hash").await;
}

async fn paths_and_queries(subject: &mut Subject, operations: &[Operation]) {
    let long = "x".repeat(129);
    let signers = [
        &long,
        "%20",
        "a%20b",
        "a%2Fb",
        "%2F",
        "a%252Fb",
        "%00",
        "a%0Ab",
        "%C3%A9",
        "%ff",
        "%F0%9F%92%A9",
        "%",
        "%zz",
        "..",
        ".",
        "a;b",
        "a+b",
        "a%2Bb",
        "{x}",
        "a,b",
        "~",
        "a*b",
        "a'b",
        "a%22b",
        "a%5Cb",
        "a%25b",
    ];
    let resources =
        ["x", "lamp:x", "signer:", "signer:%20", ":x", "signer", "SIGNER:x", "instance:a%2Fb", "signer:a*"];
    let nonces = [
        "-1",
        "+1",
        "1.5",
        "1e3",
        "x",
        "0x1",
        "01",
        "%20",
        "1%20",
        "9007199254740992",
        "18446744073709551616",
        "99999999999999999999999",
        "%D9%A1",
        "1%2F2",
        "null",
        "..",
        "%00",
    ];
    for operation in operations {
        let right = operation.with(&operation.right());
        for signer in signers {
            let target = operation.path.replace(SIGNER, signer);
            subject.invalid(Request { target, ..right.clone() }, "signer").await;
        }
        if operation.path.contains("/nonces/") {
            for nonce in nonces {
                let end = operation.path.rsplit('/').next().unwrap();
                let target = format!("/v1/signers/{SIGNER}/nonces/{nonce}/{end}");
                subject.invalid(Request { target, ..right.clone() }, "nonce").await;
            }
        }
        for query in ["?x=1", "?limit=1", "?count=1", "?=", "?%00"] {
            let target = format!("{}{query}", operation.path);
            subject.invalid(Request { target, ..right.clone() }, "query parameter").await;
        }
    }

    let get = |target: &str| Request::new("GET", target).token("user");
    for signer in signers {
        subject.invalid(get(&format!("/v1/signers/{signer}")), "signer").await;
        subject.invalid(get(&format!("/v1/signers/{signer}/nonces")), "signer").await;
    }
    for resource in resources {
        subject.invalid(get(&format!("/v1/leases/{resource}")), "must be").await;
    }
    let lists = ["/v1/signers".to_owned(), format!("/v1/signers/{SIGNER}/nonces"), "/v1/leases".to_owned()];
    for list in &lists {
        for limit in
            ["0", "1001", "-1", "+1", "1.0", "1e2", "x", "", "01", "%201", "99999999999999999999", "null"]
        {
            subject.invalid(get(&format!("{list}?limit={limit}")), "limit").await;
        }
        let too_long = format!("n.{}", "1".repeat(300));
        let cursors = [
            "",
            "x",
            "n",
            "n.",
            "n.x",
            "n.-1",
            "n.9007199254740992",
            "s.",
            "s.%20",
            "l.",
            "l.x",
            "l.lamp:x",
            "%00",
            "%ff",
        ];
        for cursor in cursors.iter().copied().chain([too_long.as_str()]) {
            subject.invalid(get(&format!("{list}?cursor={cursor}")), "cursor").await;
        }
        for twice in ["limit=1&limit=1", "cursor=n.1&cursor=n.1"] {
            subject.invalid(get(&format!("{list}?{twice}")), "once").await;
        }
        for unknown in ["x=1", "Limit=1", "limit%20=1", "limit=1&x", "offset=0"] {
            subject.invalid(get(&format!("{list}?{unknown}")), "unknown query parameter").await;
        }
    }
    for status in ["", "x", "HELD,RELEASED", "null", "%00", "HELD%20"] {
        subject.invalid(get(&format!("{}?status={status}", lists[1])), "status").await;
    }
    for name in ["principal", "action", "subject"] {
        for text in ["a%00", "%ff"] {
            let path = format!("/v1/audit?{name}={text}");
            subject.invalid(Request::new("GET", &path).token("admin"), name).await;
        }
    }
    for kind in ["", "x", "Signer", "signer:", "sessions"] {
        subject.invalid(get(&format!("/v1/leases?kind={kind}")), "kind").await;
    }
    for owner in ["", &long, "a%20b", "a%2Fb", "%00"] {
        subject.invalid(get(&format!("/v1/leases?owner={owner}")), "owner").await;
    }
    for fixed in
        ["/v1/cluster".to_owned(), format!("/v1/signers/{SIGNER}"), format!("/v1/leases/signer:{SIGNER}")]
    {
        subject.invalid(get(&format!("{fixed}?limit=1")), "query parameter").await;
    }
}

async fn idempotency_keys(subject: &mut Subject) {
    let grant = || Request::new("POST", &format!("/v1/signers/{SIGNER}/nonces")).token("user");
    let long = "k".repeat(129);
    for key in ["", "a b", "\t", "\u{e9}", &long] {
        subject.invalid(grant().header("idempotency-key", key), "Idempotency-Key").await;
    }
    subject.invalid(grant().header("idempotency-key", vec![b'a', 0xff]), "Idempotency-Key").await;
    let twice = grant().header("idempotency-key", "a").header("Idempotency-Key", "a");
    subject.invalid(twice, "once").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_refuses_strangers_wrong_scopes_wrong_methods_and_unknown_paths() {
    let mut subject = Subject::start().await;
    let before = subject.dump().await;
    for (path, methods, token) in operations::paths() {
        for method in METHODS {
            let request = || Request::new(method, &path);
            if !token.is_empty() {
                for stranger in [
                    request(),
                    request().token("nobody"),
                    request().token(""),
                    request().token("user user"),
                    request().token(&"x".repeat(5_000)),
                    request().header("authorization", "Basic dXNlcjp1c2Vy"),
                    request().header("authorization", "user"),
                    request().header("authorization", vec![0xff, 0xfe]),
                    request().token("admin").token("admin"),
                ] {
                    let (answer, _) = subject.refused(stranger, 401, "unauthorized").await;
                    assert_eq!(answer.header("www-authenticate"), "Bearer");
                }
            }
            if !methods.contains(&method) {
                // A token with another scope would not help.
                for known in ["user", "node", "admin"] {
                    let (answer, _) =
                        subject.refused(request().token(known), 405, "method_not_allowed").await;
                    assert_eq!(answer.header("allow"), methods.join(", "), "{known}: {method} {path}");
                }
                continue;
            }
            if (path.starts_with("/v1") || path.starts_with("/api")) && token != "node" {
                subject.refused(request().token("node"), 403, "forbidden").await;
            }
            if token == "admin" {
                subject.refused(request().token("user"), 403, "forbidden").await;
            }
        }
        if path != "/" {
            subject.refused(Request::new("GET", &format!("{path}/")).token("admin"), 404, "not_found").await;
        }
    }
    for path in [
        "/v1",
        "/v1/",
        "/v2/signers",
        "/nope",
        "//",
        "/v1/signers//nonces",
        "/V1/signers",
        "/v1/jobs/x/y",
        "/v1/jobs//cancel",
        "/v1/nodes/x/y",
        "/v1/ids",
        "/api/segment/get",
        "/v1/config/pool",
        "/v1/cluster/owner",
        "/v1/signers/x/nonces/0",
        "/v1/signers/x/y/z",
        "/v1/leases/a/b",
        "/openapi",
        "/.env",
        "/%2e%2e/etc/passwd",
        "/healthz%00",
        "/healthz/x",
    ] {
        subject.refused(Request::new("GET", path), 401, "unauthorized").await;
        for token in ["user", "node", "admin"] {
            subject.refused(Request::new("GET", path).token(token), 404, "not_found").await;
            subject.refused(Request::new("POST", path).token(token).json("{}"), 404, "not_found").await;
        }
    }
    // What is encoded is served under the access of what it means.
    let encoded = format!("/v1/signers/{SIGNER}/nonces/2/%72esolve");
    let request = Request::new("POST", &encoded).token("user").json(r#"{"outcome":"consumed"}"#);
    subject.refused(request, 403, "forbidden").await;

    assert_eq!(subject.dump().await, before);
    subject.no_defect_was_counted().await;
    eprintln!("{} requests were refused", subject.sent);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_contradicts_the_ledger_is_refused_and_changes_no_nonce() {
    let mut subject = Subject::start().await;
    let nonces = format!("/v1/signers/{SIGNER}/nonces");
    let before = subject.ask("GET", &nonces, "").await;
    let holds = subject.holds.clone();
    let other = "00000000-0000-4000-8000-000000000000";

    for (nonce, hold, end, rest, code) in [
        (0, other, "consume", "", "stale_hold"),
        (0, "not a hold", "consume", "", "stale_hold"),
        (0, "ünïcödé \\u0000 \\n", "consume", "", "stale_hold"),
        (0, holds[1].as_str(), "consume", "", "stale_hold"),
        (0, other, "release", r#","outcome":"unknown""#, "stale_hold"),
        (1, other, "consume", "", "stale_hold"),
        (1, holds[1].as_str(), "consume", r#","tx_hash":"0x02""#, "already_settled"),
        (1, holds[1].as_str(), "release", r#","outcome":"never_sent""#, "already_settled"),
        (1, holds[1].as_str(), "release", r#","outcome":"unknown""#, "already_settled"),
        (2, other, "release", r#","outcome":"never_sent""#, "stale_hold"),
        (4, other, "consume", "", "stale_hold"),
        (9_007_199_254_740_991_u64, other, "consume", "", "stale_hold"),
        (9_007_199_254_740_991, other, "release", r#","outcome":"unknown""#, "stale_hold"),
    ] {
        let body = format!(r#"{{"hold":"{hold}"{rest}}}"#);
        let request = Request::new("POST", &format!("{nonces}/{nonce}/{end}")).token("user").json(body);
        subject.refused(request, 409, code).await;
    }
    for (nonce, body, status, code) in [
        (0, r#"{"outcome":"consumed"}"#, 409, "conflict"),
        (1, r#"{"outcome":"never_sent"}"#, 409, "already_settled"),
        (1, r#"{"outcome":"consumed","tx_hash":"0x02"}"#, 409, "already_settled"),
        (3, r#"{"outcome":"consumed"}"#, 409, "conflict"),
        (4, r#"{"outcome":"consumed"}"#, 404, "not_found"),
        (9_007_199_254_740_991_u64, r#"{"outcome":"never_sent"}"#, 404, "not_found"),
    ] {
        let request = Request::new("POST", &format!("{nonces}/{nonce}/resolve")).token("admin").json(body);
        subject.refused(request, status, code).await;
    }
    let settlements = json!({ "settlements": [
        { "nonce": 0, "hold": other, "outcome": "consumed" },
        { "nonce": 1, "hold": holds[1], "outcome": "unknown" },
        { "nonce": 4, "hold": other, "outcome": "never_sent" },
        { "nonce": 1, "hold": holds[1], "outcome": "consumed", "tx_hash": "0x01" },
    ]});
    let path = format!("/v1/signers/{SIGNER}/settlements");
    let settled = subject.ask("POST", &path, &settlements.to_string()).await;
    let codes: Vec<_> = settled["results"].as_array().unwrap().iter().map(|result| &result["code"]).collect();
    assert_eq!(codes, [&json!("stale_hold"), &json!("already_settled"), &json!("stale_hold"), &Value::Null]);
    assert_eq!(settled["results"][3], json!({ "nonce": 1, "status": "CONSUMED" }));

    let policy = format!("/v1/signers/{SIGNER}/policy");
    let moved = Request::new("PUT", &policy).token("admin").json(r#"{"first_nonce":7}"#);
    let (_, problem) = subject.refused(moved, 409, "conflict").await;
    assert_eq!(problem["first_nonce"], 0);
    let confirmed = Request::new("POST", &format!("/v1/signers/{SIGNER}/confirm"));
    let confirmed = confirmed.token("admin").json(r#"{"next_nonce":3}"#);
    let (_, problem) = subject.refused(confirmed, 409, "conflict").await;
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("nonce 3 is not the one that was confirmed for it last, if any was"), "{detail}");

    for (method, path, body) in [
        ("GET", "/v1/signers/stranger", ""),
        ("GET", "/v1/signers/stranger/nonces", ""),
        (
            "POST",
            "/v1/signers/stranger/settlements",
            r#"{"settlements":[{"nonce":0,"hold":"h","outcome":"unknown"}]}"#,
        ),
        ("POST", "/v1/signers/stranger/nonces/0/consume", r#"{"hold":"h"}"#),
        ("POST", "/v1/signers/stranger/nonces/0/release", r#"{"hold":"h","outcome":"unknown"}"#),
        ("POST", "/v1/signers/stranger/nonces/0/resolve", r#"{"outcome":"consumed"}"#),
        ("GET", "/v1/leases/signer:stranger", ""),
        ("GET", "/v1/leases/instance:stranger", ""),
    ] {
        let mut request = Request::new(method, path).token("admin");
        if !body.is_empty() {
            request = request.json(body);
        }
        subject.refused(request, 404, "not_found").await;
    }

    // The window counts nonces 0 (HELD) and 2 (QUARANTINED).
    subject.ask("PUT", &policy, r#"{"max_in_flight":3}"#).await;
    let two = Request::new("POST", &nonces).token("user").json(r#"{"count":2}"#);
    let (answer, problem) = subject.refused(two, 429, "window_full").await;
    assert_eq!((&problem["in_flight"], &problem["max_in_flight"]), (&json!(2), &json!(3)));
    assert!(problem["retry_after_ms"].is_u64() && answer.header("retry-after").parse::<u64>().unwrap() >= 1);
    let four = Request::new("POST", &nonces).token("user").json(r#"{"count":4}"#);
    let (answer, problem) = subject.refused(four, 429, "window_full").await;
    assert!(problem["retry_after_ms"].is_null() && answer.header("retry-after").is_empty(), "{problem}");
    let shown = subject.ask("PUT", &policy, r#"{"max_in_flight":null}"#).await;
    assert_eq!(shown["policy"]["max_in_flight"], Value::Null);

    assert_eq!(subject.ask("GET", &nonces, "").await, before);
    assert_eq!(subject.ask("GET", "/v1/signers", "").await["items"].as_array().unwrap().len(), 1);

    // The end of the numbers.
    let end = "/v1/signers/at-the-end";
    subject.ask("PUT", &format!("{end}/policy"), r#"{"first_nonce":9007199254740991}"#).await;
    let two = Request::new("POST", &format!("{end}/nonces")).token("user").json(r#"{"count":2}"#);
    subject.refused(two, 503, "exhausted").await;
    let last = subject.ask("POST", &format!("{end}/nonces"), "").await;
    assert_eq!(last["grants"][0]["nonce"], 9_007_199_254_740_991_u64);
    let one = Request::new("POST", &format!("{end}/nonces")).token("user");
    subject.refused(one, 503, "exhausted").await;
    assert_eq!(subject.ask("GET", end, "").await["held"], 1);
    subject.no_defect_was_counted().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_with_another_body_is_refused_and_the_same_body_however_spelled_is_not() {
    let mut subject = Subject::start().await;
    let path = "/v1/signers/keyed/nonces";
    let grant = |body: &str| {
        let request = Request::new("POST", path).token("user").header("idempotency-key", "one");
        if body.is_empty() { request } else { request.json(body) }
    };
    let first = grant("").send(&subject.address).await;
    assert_eq!(first.status, 201);
    for same in ["{}", r#"{"count":1}"#, " { \"count\" : 1 } "] {
        let again = grant(same).send(&subject.address).await;
        assert_eq!(
            (again.status, &again.json()["grants"][0]["hold"]),
            (201, &first.json()["grants"][0]["hold"])
        );
    }
    for other in [r#"{"count":2}"#, r#"{"hold_ms":60000}"#] {
        subject.refused(grant(other), 422, "key_reused").await;
    }
    assert_eq!(subject.ask("GET", "/v1/signers/keyed", "").await["next_nonce"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn request_ids_unfit_for_a_log_line_are_replaced() {
    let subject = Subject::start().await;
    let long = "x".repeat(129);
    for bad in ["", "a b", "é", &long, "a\tb"] {
        let request = Request::new("GET", "/v1/signers").token("user").header("x-request-id", bad);
        let answer = request.send(&subject.address).await;
        let id = answer.header("x-request-id");
        assert_eq!((answer.status, id.len()), (200, 36), "{bad:?} gave {id:?}");
    }
    let head = Request::new("HEAD", "/v1/signers").token("user").send(&subject.address).await;
    assert_eq!((head.status, head.body.len()), (200, 0));
}
