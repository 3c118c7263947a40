//! Ids as callers get them: shapes, refusals, and what the readiness check says.

use std::collections::BTreeSet;
use std::time::Instant;

use actix_web::http::Method;
use actix_web::test::read_body;
use domain::SegmentTag;
use ids::Scramble;
use ids::snowflake::{Choice, LedgerNumbers};

use super::*;

/// What the generators serve from, and the address of the server.
struct Subject {
    state: Arc<State>,
    _keeping: Keeping,
    _dir: TempDir,
}

impl Subject {
    async fn start(options: Options) -> Self {
        let dir = TempDir::new().unwrap();
        let mut services = services(&dir).await;
        let (early, keeping) = early(options);
        keeping.serve(Arc::new(LedgerNumbers {
            ledger: Arc::clone(&services.ledger),
            cluster: "test".to_owned(),
            owner: InstanceId::parse("test-1").unwrap(),
            node: "test".to_owned(),
            lease_ms: 60_000,
            may_take_from: Box::new(|_, _| true),
            inherits_until: Instant::now(),
        }));
        services.generators.scramble = Some(Scramble::new(&[7; 32]));
        let state = State::new(early, Settings::new(Auth::open()), runtime::Handle::current());
        state.open(services);
        Self { state: Arc::new(state), _keeping: keeping, _dir: dir }
    }

    async fn send(&self, method: Method, path: &str, body: Option<&str>) -> (u16, String, String) {
        let service = init_service(app(&forwarder(&self.state))).await;
        let mut request = TestRequest::default().insert_header(LOCAL).method(method).uri(path);
        if let Some(body) = body {
            request =
                request.insert_header(("content-type", "application/json")).set_payload(body.to_owned());
        }
        let answer = call_service(&service, request.to_request()).await;
        let media_type = answer.headers().get("content-type").unwrap().to_str().unwrap().to_owned();
        let status = answer.status().as_u16();
        if status == 200 && !path.contains("/snowflake/1") && body.is_none() && path != "/readyz" {
            let kept = answer.headers().get("cache-control").map(|value| value.to_str().unwrap().to_owned());
            let is_list =
                ["/v1/ids/segments", "/v1/ids/sequences"].contains(&path.split('?').next().unwrap());
            assert_eq!(kept.as_deref(), (!is_list).then_some("no-store"), "{path}");
        }
        (status, media_type, String::from_utf8(read_body(answer).await.to_vec()).unwrap())
    }

    async fn get(&self, path: &str) -> Value {
        let (status, media_type, body) = self.send(Method::GET, path, None).await;
        assert_eq!((status, media_type.as_str()), (200, "application/json"), "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }

    /// How many entries the audit has.
    async fn noted(&self) -> usize {
        let filter = ledger::AuditFilter { limit: 9, ..ledger::AuditFilter::default() };
        self.state.ledger.audits(&filter).await.unwrap().len()
    }

    async fn put(&self, path: &str, body: &str) -> Value {
        let (status, _, answer) = self.send(Method::PUT, path, Some(body)).await;
        assert_eq!(status, 200, "{path} {body}: {answer}");
        serde_json::from_str(&answer).unwrap()
    }

    async fn refused(&self, method: Method, path: &str, body: Option<&str>) -> (u16, String, String) {
        let (status, media_type, text) = self.send(method, path, body).await;
        assert_eq!(media_type, "application/problem+json", "{path}: {text}");
        let problem: Value = serde_json::from_str(&text).unwrap();
        let field = |name: &str| problem[name].as_str().unwrap().to_owned();
        (status, field("code"), field("detail"))
    }
}

fn numbers(answer: &Value) -> Vec<u64> {
    answer["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().parse().unwrap()).collect()
}

#[actix_web::test]
async fn snowflakes_rise_and_are_taken_apart_again() {
    let subject = Subject::start(Options { choice: Choice::DataCenter(3), ..Options::default() }).await;
    let one = subject.get("/v1/ids/snowflake").await;
    assert!((96..128).contains(&one["worker"].as_u64().unwrap()), "of its data centre: {one}");
    let many = numbers(&subject.get("/v1/ids/snowflake?count=10000").await);
    assert_eq!(many.len(), 10_000);
    assert!(numbers(&one)[0] < many[0] && many.is_sorted());
    assert_eq!(many.iter().collect::<BTreeSet<_>>().len(), many.len());
    let parts = subject.get("/v1/ids/snowflake/1541815603606036480").await;
    assert_eq!(parts["timestamp"], "2022-06-28T16:07:40.105000Z", "{parts}");
    assert_eq!((&parts["data_center"], &parts["worker"]), (&11.into(), &26.into()));
    assert_eq!((&parts["worker_number"], &parts["sequence"]), (&378.into(), &0.into()));
}

#[actix_web::test]
async fn segments_are_made_taken_raised_and_listed() {
    let subject = Subject::start(Options::default()).await;
    let path = "/v1/ids/segments/order";
    assert_eq!(subject.refused(Method::GET, path, None).await.1, "not_found");
    let made = subject.put(path, r#"{"step":10,"description":"orders"}"#).await;
    assert_eq!((&made["start"], &made["max"], &made["step"]), (&"1".into(), &Value::Null, &10.into()));
    assert_eq!(numbers(&subject.get(path).await), [1]);
    assert_eq!(numbers(&subject.get(&format!("{path}?count=3")).await), [2, 3, 4]);

    let scrambled = subject.get(&format!("{path}?count=2&scrambled=true")).await;
    let plain: Vec<_> =
        scrambled["plain"].as_array().unwrap().iter().map(|id| id.as_str().unwrap()).collect();
    assert_eq!(plain, ["5", "6"]);
    let (key, tag) = (Scramble::new(&[7; 32]), SegmentTag::parse("order").unwrap());
    let revealed: Vec<_> = numbers(&scrambled).into_iter().map(|form| key.reveal(&tag, form)).collect();
    assert_eq!(revealed, [5, 6]);

    let raised = subject.put(path, r#"{"start":"1000"}"#).await;
    assert_eq!((&raised["start"], &raised["step"]), (&"1000".into(), &10.into()), "the rest stays");
    // A range that was being loaded ahead may have begun there, and is lost.
    let next = numbers(&subject.get(path).await)[0];
    assert!((1_000..1_100).contains(&next), "at once: {next}");
    subject.put(path, r#"{"start":1000}"#).await;
    assert_eq!(numbers(&subject.get(path).await), [next + 1], "said again it changes nothing");
    // Nor in part, and the audit has no entry.
    for again in [r#"{"step":10,"description":"orders"}"#, "{}"] {
        let said = subject.put(path, again).await;
        assert_eq!((&said["start"], &said["step"]), (&"1000".into(), &10.into()), "{again}");
    }
    assert_eq!(subject.noted().await, 2);
    subject.put(path, r#"{"description":"orders of today"}"#).await;
    assert_eq!(subject.noted().await, 3);
    subject.put(path, r#"{"description":"orders"}"#).await;
    let (status, code, detail) = subject.refused(Method::PUT, path, Some(r#"{"start":999}"#)).await;
    assert_eq!((status, code.as_str()), (409, "conflict"), "{detail}");

    let list = subject.get("/v1/ids/segments").await;
    let listed = &list["items"][0];
    assert_eq!((&listed["tag"], &listed["description"]), (&"order".into(), &"orders".into()), "{list}");
    assert!(listed["rate"].as_f64().unwrap() > 0.0 && listed["seconds_left"].as_f64().unwrap() > 0.0);
    assert!(listed["max"].as_str().unwrap().parse::<u64>().unwrap() >= 1_009, "{listed}");
}

#[actix_web::test]
async fn a_raised_start_that_is_said_again_is_used_at_once_whoever_took_from_there() {
    let subject = Subject::start(Options::default()).await;
    let path = "/v1/ids/segments/order";
    subject.put(path, r#"{"step":100}"#).await;
    assert_eq!(numbers(&subject.get(path).await), [1]);
    // The answer to the first request is lost, and another instance takes a range.
    let (tag, ledger) = (SegmentTag::parse("order").unwrap(), &subject.state.ledger);
    let change = ledger::SegmentChange { start: Some(1_000), ..ledger::SegmentChange::default() };
    let by = domain::AuditEntry::new("ops", "set_segment", "segment:order");
    assert!(matches!(ledger.put_segment(&tag, &change, &by).await.unwrap(), ledger::Put::Done(_)));
    assert!(matches!(ledger.take_range(&tag, 1).await.unwrap(), ledger::RangeTaken::Taken { .. }));
    subject.put(path, r#"{"start":1000}"#).await;
    let next = numbers(&subject.get(path).await)[0];
    assert!(next >= 1_000, "{next}");
}

#[actix_web::test]
async fn sequences_count_as_they_are_told_and_end() {
    let subject = Subject::start(Options::default()).await;
    let path = "/v1/ids/sequences/invoice";
    assert_eq!(subject.refused(Method::GET, path, None).await.1, "not_found");
    let made = subject.put(path, r#"{"start":5,"increment":3}"#).await;
    assert_eq!((&made["next"], &made["increment"]), (&"5".into(), &3.into()), "{made}");
    // Said again, wholly or in part, it changes nothing, and the audit has no entry.
    for again in [r#"{"start":5,"increment":3}"#, r#"{"increment":3}"#, "{}"] {
        assert_eq!(subject.put(path, again).await, made, "{again}");
    }
    assert_eq!(subject.noted().await, 1);
    assert_eq!(numbers(&subject.get(&format!("{path}?count=3")).await), [5, 8, 11]);
    subject.put("/v1/ids/sequences/ticket", "{}").await;
    for (query, names) in [
        ("", "invoice ticket"),
        ("?limit=1", "invoice"),
        ("?cursor=q.invoice", "ticket"),
        ("?name=invoice", "invoice"),
        ("?name=invoice&cursor=q.invoice", ""),
        ("?name=nobody-made-it", ""),
    ] {
        let list = subject.get(&format!("/v1/ids/sequences{query}")).await;
        let items = list["items"].as_array().unwrap().iter();
        let listed: Vec<_> = items.map(|item| item["name"].as_str().unwrap()).collect();
        assert_eq!(listed.join(" "), names, "{query}");
        assert_eq!(list["next_cursor"].as_str(), (query == "?limit=1").then_some("q.invoice"), "{query}");
    }
    let looked = subject.get("/v1/ids/sequences?name=invoice").await["items"][0].clone();
    assert_eq!((&looked["next"], &looked["increment"]), (&"14".into(), &3.into()), "none is taken: {looked}");
    subject.put(path, r#"{"start":"9223372036854775800"}"#).await;
    assert_eq!(numbers(&subject.get(path).await), [9_223_372_036_854_775_800]);
    let (status, _, problem) = subject.send(Method::GET, &format!("{path}?count=10"), None).await;
    assert!(status == 503 && problem.contains(r#""code":"exhausted""#), "{problem}");
    assert!(problem.contains(r#""title":"Too few numbers are left""#), "some may be left: {problem}");
    assert!(!problem.contains("retry_after_ms"), "it stays so: {problem}");
}

#[actix_web::test]
async fn leafs_paths_answer_plain_text() {
    let subject = Subject::start(Options::default()).await;
    subject.put("/v1/ids/segments/leaf", "{}").await;
    for (path, expected) in [("/api/segment/get/leaf", Some(1)), ("/api/snowflake/get/anything", None)] {
        let (status, media_type, body) = subject.send(Method::GET, path, None).await;
        assert_eq!((status, media_type.as_str()), (200, "text/plain; charset=utf-8"), "{body}");
        let id: u64 = body.parse().unwrap();
        assert!(expected.is_none_or(|expected| id == expected), "{path}: {id}");
    }
    assert_eq!(subject.refused(Method::GET, "/api/segment/get/none", None).await.0, 404);
}

#[actix_web::test]
async fn uuids_are_of_the_version_asked_for() {
    let subject = Subject::start(Options::default()).await;
    for (query, version) in [("", 7), ("?version=7&count=3", 7), ("?version=4&count=3", 4)] {
        let answer = subject.get(&format!("/v1/ids/uuid{query}")).await;
        assert_eq!(answer["version"], version);
        for id in answer["ids"].as_array().unwrap() {
            let id = uuid::Uuid::parse_str(id.as_str().unwrap()).unwrap();
            assert_eq!(id.get_version_num(), version);
        }
    }
}

#[actix_web::test]
async fn what_is_wrong_is_refused_in_words() {
    let subject = Subject::start(Options::default()).await;
    subject.put("/v1/ids/segments/t", "{}").await;
    subject.put("/v1/ids/sequences/t", "{}").await;
    for base in ["/v1/ids/snowflake", "/v1/ids/segments/t", "/v1/ids/sequences/t", "/v1/ids/uuid"] {
        for count in ["0", "10001", "-1", "+1", "1.0", "01", "", "x", "99999999999999999999"] {
            let path = format!("{base}?count={count}");
            let (status, code, detail) = subject.refused(Method::GET, &path, None).await;
            assert_eq!((status, code.as_str()), (400, "invalid"), "{path}");
            assert!(detail.contains("from 1 to 10000"), "{path}: {detail}");
        }
        let (status, code, _) = subject.refused(Method::GET, &format!("{base}?kount=1"), None).await;
        assert_eq!((status, code.as_str()), (400, "invalid"));
        assert_eq!(subject.refused(Method::POST, base, None).await.0, 405);
        assert_eq!(subject.send(Method::HEAD, base, None).await.0, 405, "it would use ids up: {base}");
    }
    for (path, says) in [
        ("/v1/ids/snowflake/9223372036854775808", "from 0 to 9223372036854775807"),
        ("/v1/ids/snowflake/x", "from 0 to 9223372036854775807"),
        ("/v1/ids/snowflake/-1", "from 0 to 9223372036854775807"),
        ("/v1/ids/segments/a%20b", "tag must be 1 to 128"),
        ("/v1/ids/segments/t?scrambled=yes", "true or false"),
        ("/v1/ids/sequences/a%2Fb", "sequence must be 1 to 128"),
        ("/v1/ids/uuid?version=1", "version must be 4 or 7"),
        ("/v1/ids/segments?cursor=x", "next_cursor"),
        ("/v1/ids/sequences?cursor=t.a", "next_cursor"),
        ("/v1/ids/sequences?name=", "sequence must be 1 to 128"),
        ("/v1/ids/sequences?limit=0", "limit must be"),
        ("/v1/ids/sequences?count=1", "unknown query parameter"),
        ("/api/segment/get/a%20b", "tag must be 1 to 128"),
        ("/api/segment/get/t?count=2", "unknown query parameter"),
    ] {
        let (status, code, detail) = subject.refused(Method::GET, path, None).await;
        assert_eq!((status, code.as_str()), (400, "invalid"), "{path}");
        assert!(detail.contains(says), "{path}: {detail}");
    }
}

#[actix_web::test]
async fn a_number_that_another_holds_is_exhausted_and_readiness_says_so() {
    let number = domain::WorkerNumber::new(9).unwrap();
    let subject = Subject::start(Options { choice: Choice::Fixed(number), ..Options::default() }).await;
    let ready = subject.get("/readyz").await;
    assert_eq!(ready["checks"]["snowflakes"]["status"], "ok", "nobody has asked yet: {ready}");
    let other = InstanceId::parse("other-1").unwrap();
    for lease in [domain::Resource::instance(&other), domain::Resource::id_worker(number)] {
        subject.state.ledger.acquire(&lease, &other, 60_000).await.unwrap();
    }
    let service = init_service(app(&forwarder(&subject.state))).await;
    for path in ["/v1/ids/snowflake", "/api/snowflake/get/any"] {
        let request = TestRequest::default().insert_header(LOCAL).uri(path);
        let answer = call_service(&service, request.to_request()).await;
        assert_eq!((answer.status().as_u16(), answer.headers().contains_key("retry-after")), (503, true));
        let problem: Value = read_body_json(answer).await;
        assert_eq!(problem["code"], "exhausted", "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("other-1"), "{problem}");
        assert!(problem["retry_after_ms"].is_u64(), "the number may come free: {problem}");
    }
    let ready = subject.get("/readyz").await;
    assert_eq!(
        (&ready["status"], &ready["checks"]["snowflakes"]["status"]),
        (&"degraded".into(), &"warn".into())
    );
}
