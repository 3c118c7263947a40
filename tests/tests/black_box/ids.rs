//! Distributed ids of the real binary: none twice, whatever happens to those that make them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::PATIENCE;
use testkit::fleet::Fleet;
use testkit::http::{Client, Reply};
use testkit::instance::{Instance, Setup};
use testkit::process::Signal;
use testkit::servers::Database;

use crate::{patient, until};

mod away;
mod by_file;
mod clocks;
mod holders;

const TAG: &str = "/v1/ids/segments/order";
const SEQUENCE: &str = "/v1/ids/sequences/invoice";
/// What clients of all kinds ask for.
const KINDS: [&str; 4] = ["/v1/ids/snowflake", TAG, SEQUENCE, "/v1/ids/uuid"];

async fn get(client: &Client, url: &str, path: &str) -> Reply {
    client.request("GET", &format!("{url}{path}"), None, None).await.unwrap()
}

async fn put(client: &Client, url: &str, path: &str, body: Value) -> Reply {
    client.request("PUT", &format!("{url}{path}"), None, Some(&body)).await.unwrap()
}

/// Makes the tag and the sequence that the tests take from.
async fn prepare(url: &str) {
    for (path, body) in [(TAG, json!({ "step": 100 })), (SEQUENCE, json!({}))] {
        make(url, path, body).await;
    }
}

/// Makes or changes a tag or a sequence. Where calls of the ledger have little time, one may be late.
async fn make(url: &str, path: &str, body: Value) {
    let client = patient();
    let made = async || put(&client, url, path, body.clone()).await.status == 200;
    until("a tag or a sequence is made", made).await;
}

fn texts(reply: &Reply) -> Vec<String> {
    reply.body["ids"].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
}

fn numbers(reply: &Reply) -> Vec<u64> {
    texts(reply).iter().map(|id| id.parse().unwrap()).collect()
}

/// One answer.
struct Taken {
    url: usize,
    sent: Instant,
    received: Instant,
    ids: Vec<String>,
}

impl Taken {
    fn number(&self, at: usize) -> u64 {
        self.ids[at].parse().unwrap()
    }
}

/// Clients that take ids of all kinds from all instances until they are stopped.
struct Takers {
    taken: Arc<Mutex<BTreeMap<&'static str, Vec<Taken>>>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Takers {
    fn start(clients: usize, urls: &[String]) -> Self {
        let mut takers = Self { taken: Arc::default(), stop: Arc::default(), tasks: Vec::new() };
        for number in 0..clients {
            let (taken, stop) = (Arc::clone(&takers.taken), Arc::clone(&takers.stop));
            takers.tasks.push(tokio::spawn(take(number, urls.to_vec(), taken, stop)));
        }
        takers
    }

    /// Waits until every kind was answered by every instance so many more times.
    async fn answers(&self, more: usize, urls: usize) {
        let count = |kind, url| {
            let taken = self.taken.lock();
            taken.get(kind).map_or(0, |all| all.iter().filter(|one| one.url == url).count())
        };
        let begun = Instant::now();
        for kind in KINDS {
            for url in 0..urls {
                let enough = count(kind, url) + more;
                while count(kind, url) < enough {
                    assert!(begun.elapsed() < PATIENCE, "no more {kind} of instance {url}");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    async fn stop(self) -> BTreeMap<&'static str, Vec<Taken>> {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        std::mem::take(&mut *self.taken.lock())
    }
}

async fn take(
    number: usize,
    urls: Vec<String>,
    taken: Arc<Mutex<BTreeMap<&'static str, Vec<Taken>>>>,
    stop: Arc<AtomicBool>,
) {
    let client = Client::new(Duration::from_secs(3)).unwrap();
    for round in number.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let (kind, url) = (KINDS[round % KINDS.len()], round / KINDS.len() % urls.len());
        let count = 1 + round % 40;
        let sent = Instant::now();
        let path = format!("{}{kind}?count={count}", urls[url]);
        match client.request("GET", &path, None, None).await {
            Ok(reply) if reply.status == 200 => {
                let one = Taken { url, sent, received: Instant::now(), ids: texts(&reply) };
                assert_eq!(one.ids.len(), count);
                taken.lock().entry(kind).or_default().push(one);
            }
            // Stopping, fenced, the ledger away, a clock to be waited for: all of it passes.
            Ok(reply) => assert_eq!(reply.status, 503, "{path}: {}", reply.text),
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn none_comes_twice(taken: &BTreeMap<&str, Vec<Taken>>) {
    for (kind, all) in taken {
        let mut seen = HashSet::new();
        for id in all.iter().flat_map(|one| &one.ids) {
            assert!(seen.insert(id), "{kind}: {id} was given twice");
        }
        eprintln!("{kind}: {} ids", seen.len());
    }
}

/// A request that was sent after an answer came gets higher ids.
fn rises<'t>(what: &str, taken: impl Iterator<Item = &'t Taken>) {
    let mut by_sending: Vec<&Taken> = taken.collect();
    let mut by_answer = by_sending.clone();
    by_sending.sort_by_key(|one| one.sent);
    by_answer.sort_by_key(|one| one.received);
    let (mut had, mut highest) = (by_answer.into_iter().peekable(), None);
    for one in by_sending {
        while let Some(before) = had.next_if(|before| before.received < one.sent) {
            highest = highest.max(Some(before.number(before.ids.len() - 1)));
        }
        assert!(highest < Some(one.number(0)), "{what}: {} after {highest:?}", one.ids[0]);
        for at in 1..one.ids.len() {
            assert!(one.number(at - 1) < one.number(at), "{what}: within an answer");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_leaves_no_id_is_refused() {
    let instance = Setup::basic().unwrap().start().await.unwrap();
    let client = patient();
    let last = u64::MAX / 2;
    for (kind, of, default) in [("segments", "step", 1_000), ("sequences", "increment", 1)] {
        for (n, (length, start, status)) in [
            (None, last - default, 200),
            (None, last - default + 1, 400),
            (Some(7), last - 7, 200),
            (Some(7), last - 6, 400),
            (Some(7), last, 400),
        ]
        .into_iter()
        .enumerate()
        {
            let path = format!("/v1/ids/{kind}/n{n}");
            let mut body = json!({ "start": start.to_string() });
            if let Some(length) = length {
                body[of] = json!(length);
            }
            let reply = put(&client, instance.url(), &path, body).await;
            assert_eq!(reply.status, status, "{path}: {}", reply.text);
            let taken =
                client.request("GET", &format!("{}{path}", instance.url()), None, None).await.unwrap();
            if status == 200 {
                assert_eq!(taken.body["ids"][0], start.to_string(), "{}", taken.text);
            } else {
                assert!(reply.body["detail"].as_str().unwrap().contains(of), "{}", reply.text);
                assert_eq!(taken.status, 404, "nothing was made: {}", taken.text);
            }
        }
        // One that exists has a length already, and its own start may be named again.
        let path = format!("/v1/ids/{kind}/n2");
        for (start, status) in [(last - 6, 400), (last - 7, 200)] {
            let reply = put(&client, instance.url(), &path, json!({ "start": start.to_string() })).await;
            assert_eq!(reply.status, status, "{path}: {}", reply.text);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_instances_never_give_an_id_twice_whatever_happens_to_them() {
    // Leases and leads so short that a pause outlasts them.
    let shape = |setup: Setup| {
        setup
            .env("FENCEPOST__IDS__LEASE_MS", "3000")
            .env("FENCEPOST__IDS__LEAD_MS", "2000")
            .env("FENCEPOST__LEASE__INSTANCE_MS", "1000")
    };
    let fleet = Fleet::start("worker-queue", 3, shape).await.unwrap();
    prepare(&fleet.urls()[0]).await;
    let takers = Takers::start(8, fleet.urls());
    takers.answers(5, 3).await;
    fleet.kill_and_restart(0, Duration::from_millis(200)).await.unwrap();
    takers.answers(5, 3).await;
    fleet.pause(1, Duration::from_secs(5)).await.unwrap();
    takers.answers(5, 3).await;
    fleet.restart_database(Duration::from_secs(1)).await.unwrap();
    takers.answers(5, 3).await;
    let mut stopped = fleet.instance(2).await;
    assert_eq!(stopped.end_by(Signal::Terminate, PATIENCE).await.unwrap().code(), Some(0));
    stopped.start().await.unwrap();
    drop(stopped);
    takers.answers(5, 3).await;
    let taken = takers.stop().await;
    none_comes_twice(&taken);
    rises("the sequence", taken[SEQUENCE].iter());
    for url in 0..3 {
        rises("segments of one instance", taken[TAG].iter().filter(|one| one.url == url));
    }
    assert_eq!(fleet.defects_logged().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_on_sqlite_that_is_killed_again_and_again_gives_no_id_twice() {
    let mut instance = Setup::basic().unwrap().start().await.unwrap();
    prepare(instance.url()).await;
    let takers = Takers::start(4, &[instance.url().to_owned()]);
    for _ in 0..3 {
        takers.answers(10, 1).await;
        instance.end_by(Signal::Kill, PATIENCE).await.unwrap();
        instance.start().await.unwrap();
    }
    takers.answers(10, 1).await;
    let taken = takers.stop().await;
    none_comes_twice(&taken);
    rises("the sequence", taken[SEQUENCE].iter());
    rises("segments", taken[TAG].iter());
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_ledger_is_away_snowflakes_and_segments_go_on() {
    const DOWN: Duration = Duration::from_secs(4);
    // Calls that fail sooner than the ledger is back.
    let shape = |setup: Setup| {
        setup
            .env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "1000")
            .env("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "500")
    };
    let fleet = Fleet::start("worker-queue", 1, shape).await.unwrap();
    let (client, url) = (patient(), fleet.urls()[0].clone());
    prepare(&url).await;
    make(&url, TAG, json!({ "step": 100_000 })).await;
    let mut seen = HashSet::new();
    for kind in ["/v1/ids/snowflake", TAG] {
        for _ in 0..2 {
            let reply = get(&client, &url, &format!("{kind}?count=10000")).await;
            assert_eq!(reply.status, 200, "{}", reply.text);
            seen.extend(texts(&reply));
        }
    }
    let begun = Instant::now();
    let hurting = fleet.restart_database(DOWN);
    let asking = async {
        let mut refused = false;
        while begun.elapsed() < DOWN {
            for kind in ["/v1/ids/snowflake", TAG] {
                let reply = get(&client, &url, &format!("{kind}?count=10")).await;
                assert_eq!(reply.status, 200, "{}", reply.text);
                for id in texts(&reply) {
                    assert!(seen.insert(id), "given twice: {}", reply.text);
                }
            }
            let reply = get(&client, &url, SEQUENCE).await;
            if reply.status != 200 {
                assert_eq!((reply.status, reply.code()), (503, "ledger_unavailable"), "{}", reply.text);
                assert!(reply.retry_after.is_some());
                refused = true;
            }
        }
        assert!(refused, "the ledger was away");
    };
    let (hurt, ()) = tokio::join!(hurting, asking);
    hurt.unwrap();
    let takers = Takers::start(2, fleet.urls());
    takers.answers(2, 1).await;
    for id in takers.stop().await["/v1/ids/snowflake"].iter().flat_map(|one| &one.ids) {
        assert!(seen.insert(id.clone()), "given twice: {id}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mark_that_lies_ahead_is_waited_for_and_only_snowflakes_wait() {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let setup = Setup::basic().unwrap().database(database.url());
    let setup = setup.env("FENCEPOST__IDS__WORKER", "5").env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "1000");
    let mut instance = setup.env("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "1000").start().await.unwrap();
    let client = patient();
    prepare(instance.url()).await;
    assert_eq!(get(&client, instance.url(), "/v1/ids/snowflake").await.status, 200);
    instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    // As a holder with a faster clock would have left it.
    let ahead = "update id_worker set mark_ms = (extract(epoch from clock_timestamp()) * 1000)::bigint + 6000 \
                 where worker = 5 returning mark_ms";
    let mark_ms: u64 = database.query(ahead).unwrap()[0][0].parse().unwrap();
    instance.start().await.unwrap();
    let begun = Instant::now();
    let refused = loop {
        let refused = get(&client, instance.url(), "/v1/ids/snowflake").await;
        // A busy machine may need longer for the worker number than a request is allowed here.
        if refused.code() != "ledger_unavailable" || begun.elapsed() > PATIENCE {
            break refused;
        }
    };
    assert_eq!((refused.status, refused.code()), (503, "clock_behind"), "{}", refused.text);
    assert!(refused.body["retry_after_ms"].as_u64().unwrap() > 500, "{}", refused.text);
    let ready = client.get(&format!("{}/readyz", instance.url())).await.unwrap();
    assert_eq!(
        (&ready["status"], &ready["checks"]["snowflakes"]["status"]),
        (&json!("degraded"), &json!("warn"))
    );
    let begun = Instant::now();
    for kind in [TAG, SEQUENCE, "/v1/ids/uuid"] {
        // The time of a request is short here: a busy machine may need several.
        while get(&client, instance.url(), kind).await.status != 200 {
            assert!(begun.elapsed() < PATIENCE, "{kind}");
        }
    }
    let made = loop {
        let reply = get(&client, instance.url(), "/v1/ids/snowflake").await;
        if reply.status == 200 {
            break numbers(&reply)[0];
        }
        assert_eq!(reply.code(), "clock_behind", "{}", reply.text);
        assert!(begun.elapsed() < PATIENCE, "{}", reply.text);
    };
    assert!((made >> 22) + 1_288_834_974_657 >= mark_ms, "{made} was made before {mark_ms}");
    let ready = client.get(&format!("{}/readyz", instance.url())).await.unwrap();
    assert_eq!(ready["checks"]["snowflakes"]["status"], "ok", "{ready}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_number_that_a_live_instance_has_is_refused_and_had_when_it_ends() {
    let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
    let setup = || Setup::basic().unwrap().database(database.url()).env("FENCEPOST__IDS__WORKER", "7");
    let (mut first, second) = (setup().start().await.unwrap(), setup().start().await.unwrap());
    let client = patient();
    let made = get(&client, first.url(), "/v1/ids/snowflake").await;
    assert_eq!((made.status, &made.body["worker"]), (200, &json!(7)), "{}", made.text);
    let refused = get(&client, second.url(), "/v1/ids/snowflake").await;
    assert_eq!((refused.status, refused.code()), (503, "exhausted"), "{}", refused.text);
    assert!(refused.text.contains(&first.ready().instance), "it says who has it: {}", refused.text);
    first.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    let begun = Instant::now();
    let next = loop {
        let reply = get(&client, second.url(), "/v1/ids/snowflake").await;
        if reply.status == 200 {
            break reply;
        }
        assert!(begun.elapsed() < PATIENCE, "{}", reply.text);
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(numbers(&made)[0] < numbers(&next)[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clean_stop_leaves_no_file_and_the_number_is_there_at_once() {
    let mut instance = Setup::basic().unwrap().start().await.unwrap();
    let (client, file) = (patient(), instance.dir().join("fencepost-data/worker-number"));
    let first = get(&client, instance.url(), "/v1/ids/snowflake").await;
    assert_eq!(first.status, 200, "{}", first.text);
    assert!(file.is_file(), "the file is written before the first id is made");
    instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    assert!(!file.exists(), "a clean stop deletes it");
    instance.start().await.unwrap();
    let begun = instance.url().to_owned();
    let next = get(&client, &begun, "/v1/ids/snowflake").await;
    assert_eq!((next.status, &next.body["worker"]), (200, &first.body["worker"]), "{}", next.text);
    assert!(numbers(&first)[0] < numbers(&next)[0]);
}

/// Asks as clients of Leaf do: a path with a key, and a body that is the id and nothing else.
async fn as_leaf_does(client: &Client, url: &str, path: &str) -> i64 {
    let reply = get(client, url, path).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    assert!(reply.content_type.starts_with("text/plain"), "{}", reply.content_type);
    reply.text.parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_leaf_is_served_as_it_is() {
    let instance = Setup::basic().unwrap().start().await.unwrap();
    prepare(instance.url()).await;
    let client = patient();
    for path in ["/api/segment/get/order", "/api/snowflake/get/order"] {
        let mut last = 0;
        for _ in 0..250 {
            let id = as_leaf_does(&client, instance.url(), path).await;
            assert!(id > last, "{path}: {id} after {last}");
            last = id;
        }
    }
    let unknown = get(&client, instance.url(), "/api/segment/get/nobody-made-it").await;
    assert_eq!((unknown.status, unknown.code()), (404, "not_found"));
}

#[tokio::test(flavor = "multi_thread")]
async fn snowflakes_tell_when_and_by_whom_they_were_made() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__IDS__DATA_CENTER", "5");
    let instance = setup.env("FENCEPOST__IDS__WORKER", "9").start().await.unwrap();
    let client = patient();
    // The worker number is acquired behind the start.
    until("it has its worker number", async || {
        get(&client, instance.url(), "/v1/ids/snowflake").await.status == 200
    })
    .await;
    let made = get(&client, instance.url(), "/v1/ids/snowflake?count=3").await;
    assert_eq!(made.body["worker"], 5 * 32 + 9, "{}", made.text);
    for id in numbers(&made) {
        let parts = get(&client, instance.url(), &format!("/v1/ids/snowflake/{id}")).await.body;
        assert_eq!((&parts["data_center"], &parts["worker"]), (&json!(5), &json!(9)), "{parts}");
        assert_eq!(parts["timestamp_ms"], (id >> 22) + 1_288_834_974_657, "{parts}");
        assert_eq!(parts["sequence"], id & 4_095, "{parts}");
        assert!(parts["timestamp"].as_str().unwrap().ends_with('Z'), "{parts}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_print_ids_a_line_each_or_the_answer_as_json() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__IDS__SCRAMBLE_KEY", &"5a".repeat(32));
    let instance = setup.start().await.unwrap();
    let run = async |words: &str| {
        let mut setup = Setup::command("id");
        for word in words.split(' ') {
            setup = setup.arg(word);
        }
        let ended = setup.arg("--url").arg(instance.url()).run_to_end(PATIENCE).await.unwrap();
        (ended.code, ended.stdout, ended.stderr)
    };
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    let (code, said, _) = run("set-segment order --step 10 --start 41").await;
    assert!(code == Some(0) && said.contains("41") && said.contains("description  -\n"), "{said}");
    assert_eq!(lines(&run("segment order --count 2").await.1), ["41", "42"]);
    let (_, scrambled, _) = run("segment order --scrambled --json").await;
    let scrambled: Value = serde_json::from_str(&scrambled).unwrap();
    assert_eq!(scrambled["plain"], json!(["43"]));
    assert_ne!(scrambled["ids"], scrambled["plain"]);
    assert_eq!(run("set-sequence invoice --start 7 --increment 2").await.0, Some(0));
    assert_eq!(lines(&run("sequence invoice --count 3").await.1), ["7", "9", "11"]);
    let (_, looked, _) = run("sequences --name invoice --json").await;
    assert_eq!(serde_json::from_str::<Value>(&looked).unwrap()["next"], "13", "a look takes none");
    assert_eq!(lines(&run("sequence invoice").await.1), ["13"]);
    assert_eq!(lines(&run("uuid --version 4 --count 2").await.1).len(), 2);
    let flake = run("snowflake").await.1;
    let (code, parts, _) = run(&format!("decode {} --json", flake.trim())).await;
    assert_eq!(code, Some(0));
    assert_eq!(serde_json::from_str::<Value>(&parts).unwrap()["id"], flake.trim());
    assert!(run("segments").await.1.contains("order"));
    assert_eq!(run("set-segment ticket --step 10").await.0, Some(0));
    let (_, first, rest) = run("segments --limit 1 --json").await;
    let [first] = &lines(&first)[..] else { panic!("one tag, so one line: {first}") };
    assert_eq!(serde_json::from_str::<Value>(first).unwrap()["tag"], "order");
    assert!(rest.contains("--cursor"), "{rest}");
    let tags = lines(&run("segments --json").await.1);
    let tags: Vec<_> =
        tags.iter().map(|line| serde_json::from_str::<Value>(line).unwrap()["tag"].clone()).collect();
    assert_eq!(tags, ["order", "ticket"]);
    let (code, _, complaint) = run("sequence nobody-made-it").await;
    assert!(code == Some(1) && complaint.contains("not_found"), "{complaint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_recovery_a_command_prints_the_servers_refusal_although_a_request_may_take_longer_than_it() {
    let setup = Setup::basic().unwrap().env("FENCEPOST__IDS__WORKER", "5");
    let mut instance = setup.env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "20000").start().await.unwrap();
    assert_eq!(get(&patient(), instance.url(), "/v1/ids/snowflake").await.status, 200);
    instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    let recover = Setup::command("recover").arg("--confirm").arg("--lead-ms").arg("300000");
    let recovered = recover.dir(instance.dir()).run_to_end(PATIENCE).await.unwrap();
    assert_eq!(recovered.code, Some(0), "{recovered:?}");
    instance.start().await.unwrap();
    let command = Setup::command("id").arg("snowflake").arg("--url").arg(instance.url());
    let ended = command.run_to_end(PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("clock_behind") && ended.stderr.contains("ids of worker 5"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_after_a_recovery_makes_no_snowflakes_by_the_local_file() {
    // Until then the file proves its number.
    let setup = Setup::basic().unwrap().env("FENCEPOST__IDS__LEAD_MS", "300000");
    let mut instance = setup.start().await.unwrap();
    let (client, path) = (patient(), "/v1/ids/snowflake");
    assert_eq!(get(&client, instance.url(), path).await.status, 200);
    let file = instance.dir().join("fencepost-data/worker-number");
    instance.end_by(Signal::Kill, PATIENCE).await.unwrap();
    assert!(file.is_file());
    let recover = Setup::command("recover").arg("--confirm").dir(instance.dir());
    let recovered = recover.run_to_end(PATIENCE).await.unwrap();
    assert_eq!(recovered.code, Some(0), "{recovered:?}");
    instance.start().await.unwrap();
    until("the file is deleted", async || !file.exists()).await;
    let reply = get(&client, instance.url(), path).await;
    assert_eq!((reply.status, reply.code()), (503, "clock_behind"), "{}", reply.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused_in_words_and_makes_nothing() {
    let instance = Setup::basic().unwrap().start().await.unwrap();
    let client = patient();
    let (tag, sequence) = ("/v1/ids/segments/t", "/v1/ids/sequences/t");
    let long = format!("/v1/ids/segments/{}", "x".repeat(129));
    let big = json!({ "description": "x".repeat(1_025) });
    for (path, body, says) in [
        (tag, json!({ "step": 0 }), "step"),
        (tag, json!({ "step": 1_000_000_001 }), "step"),
        (tag, json!({ "step": 1.5 }), "step"),
        (tag, json!({ "step": "10" }), "step"),
        (tag, json!({ "start": -1 }), "start"),
        (tag, json!({ "start": 9_223_372_036_854_775_808_u64 }), "start"),
        (tag, json!({ "start": "9223372036854775808" }), "start"),
        (tag, json!({ "start": "007" }), "start"),
        (tag, json!({ "start": null }), "start"),
        (tag, json!({ "description": 7 }), "description"),
        (tag, big, "description"),
        (tag, json!({ "stepp": 1 }), "unknown field"),
        (tag, json!([]), "invalid type: sequence, expected an object"),
        (sequence, json!({ "increment": 0 }), "increment"),
        (sequence, json!({ "increment": 1_000_000_001 }), "increment"),
        (sequence, json!({ "start": 1.0 }), "start"),
        (sequence, json!({ "step": 1 }), "unknown field"),
        (&long, json!({}), "1 to 128 characters"),
        ("/v1/ids/segments/a%20b", json!({}), "1 to 128 characters"),
        ("/v1/ids/sequences/%C3%A9", json!({}), "1 to 128 characters"),
    ] {
        let reply = put(&client, instance.url(), path, body.clone()).await;
        assert_eq!((reply.status, reply.code()), (400, "invalid"), "{path} {body}: {}", reply.text);
        assert!(reply.body["detail"].as_str().unwrap().contains(says), "{path} {body}: {}", reply.text);
        assert_eq!(reply.content_type, "application/problem+json");
    }
    for path in [tag, sequence] {
        let reply = get(&client, instance.url(), path).await;
        assert_eq!((reply.status, reply.code()), (404, "not_found"), "nothing was made: {}", reply.text);
    }
    assert_eq!(put(&client, instance.url(), tag, json!({ "start": 100 })).await.status, 200);
    let lower = put(&client, instance.url(), tag, json!({ "start": 99 })).await;
    assert_eq!((lower.status, lower.code()), (409, "conflict"), "{}", lower.text);
    let keyless = get(&client, instance.url(), &format!("{tag}?scrambled=true")).await;
    assert_eq!((keyless.status, keyless.code()), (409, "conflict"), "{}", keyless.text);
    assert!(!instance.log().contains("internal"), "{}", instance.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_are_counted_by_kind() {
    let instance = Setup::basic().unwrap().start().await.unwrap();
    prepare(instance.url()).await;
    let client = patient();
    for kind in KINDS {
        let reply = get(&client, instance.url(), &format!("{kind}?count=7")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }
    let text = metrics(&client, &instance).await;
    for kind in ["snowflake", "segment", "sequence", "uuid"] {
        let line = format!("fencepost_ids_total{{kind=\"{kind}\"}} 7");
        assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
    }
    assert!(text.contains("fencepost_segment_wait_total 1"), "the first request waited:\n{text}");
}

async fn metrics(client: &Client, instance: &Instance) -> String {
    get(client, instance.url(), "/metrics").await.text
}
