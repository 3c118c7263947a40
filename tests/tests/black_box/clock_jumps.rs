//! The database's clock jumps by ten minutes in the middle of holds under load: no nonce is granted twice within the time
//! that its caller may use it, by the caller's own clock. It jumps by an hour: a session that is used stays open. It jumps past
//! the ends of leases: their owners keep them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::fake_clock::FakeClock;
use testkit::instance::{Instance, Setup};
use testkit::process::Signal;
use testkit::servers::Postgres;
use tokio::task::JoinHandle;

use crate::{patient, until};

const TEN_MINUTES_MS: i64 = 600_000;
const HOUR_MS: i64 = 3_600_000;
const SIGNERS: [&str; 3] = ["a", "b", "c"];
/// Longer than a jump and what a test does after it take; short enough to see holds end.
const HOLD_MS: u64 = 4_000;

/// Callers that ask for nonces, settle few of them, and remember until when each may be used.
struct Callers {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    /// By signer and nonce: until when its last caller may use it.
    usable: Mutex<HashMap<(String, u64), Instant>>,
    granted: AtomicUsize,
    /// Grants of a nonce that another caller had before.
    again: AtomicUsize,
}

impl Seen {
    fn note(&self, signer: &str, grant: &Value, sent: Instant) {
        let nonce = grant["nonce"].as_u64().unwrap();
        let until = sent + Duration::from_millis(grant["held_for_ms"].as_u64().unwrap());
        let before = self.usable.lock().insert((signer.to_owned(), nonce), until);
        self.granted.fetch_add(1, Ordering::Relaxed);
        if let Some(before) = before {
            self.again.fetch_add(1, Ordering::Relaxed);
            let now = Instant::now();
            assert!(
                now >= before,
                "{signer} {nonce} was granted again {:?} before its caller's time was over",
                before - now
            );
        }
    }
}

impl Callers {
    fn start(urls: &[String]) -> Self {
        let (stop, seen) = (Arc::<AtomicBool>::default(), Arc::<Seen>::default());
        let tasks = (0..6).map(|number| {
            let (stop, seen) = (Arc::clone(&stop), Arc::clone(&seen));
            let (url, signer) = (urls[number % urls.len()].clone(), SIGNERS[number % SIGNERS.len()]);
            tokio::spawn(async move {
                let client = patient();
                while !stop.load(Ordering::Relaxed) {
                    let (path, sent) = (format!("{url}/v1/signers/{signer}/nonces"), Instant::now());
                    let asked = json!({"count": 2, "hold_ms": HOLD_MS});
                    let answer = client.request("POST", &path, None, Some(&asked)).await.unwrap();
                    if answer.status == 201 {
                        let grants = answer.body["grants"].as_array().unwrap();
                        grants.iter().for_each(|grant| seen.note(signer, grant, sent));
                    } else {
                        assert!(answer.status == 503 || answer.status == 409, "{}", answer.text);
                    }
                    // Few enough that each look finds all that are overdue.
                    tokio::time::sleep(Duration::from_millis(80)).await;
                }
            })
        });
        let tasks = tasks.collect();
        Self { stop, tasks, seen }
    }

    /// Waits until so many more nonces were granted, and so many of them again.
    async fn go_on(&self, more: usize, more_again: usize) {
        let count = || (self.seen.granted.load(Ordering::Relaxed), self.seen.again.load(Ordering::Relaxed));
        let (granted, again) = count();
        until("nonces are granted", async || {
            // A caller that panicked tells why below.
            self.tasks.iter().any(JoinHandle::is_finished)
                || (count().0 >= granted + more && count().1 >= again + more_again)
        })
        .await;
    }

    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

async fn jumps(url: &str, direction: &str) -> u64 {
    let text = patient().request("GET", &format!("{url}/metrics"), None, None).await.unwrap().text;
    let name = format!("fencepost_database_clock_jump_total{{direction=\"{direction}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

async fn statuses(url: &str, signer: &str, status: &str) -> usize {
    let path = format!("{url}/v1/signers/{signer}/nonces?status={status}&limit=1000");
    patient().get(&path).await.unwrap()["items"].as_array().unwrap().len()
}

/// The clock jumps forward and back in the middle of holds.
async fn holds_outlast_jumps(clock: &FakeClock, instances: &[Instance]) {
    let urls: Vec<_> = instances.iter().map(|instance| instance.url().to_owned()).collect();
    let callers = Callers::start(&urls);
    // Until holds end and nonces are granted again.
    callers.go_on(100, 20).await;
    for (offset_ms, direction) in [(TEN_MINUTES_MS, "forward"), (0, "back"), (-TEN_MINUTES_MS, "back")] {
        let mut before = Vec::new();
        for url in &urls {
            before.push(jumps(url, direction).await);
        }
        clock.set(offset_ms).unwrap();
        for (url, before) in urls.iter().zip(before) {
            until("the jump is counted", async || jumps(url, direction).await > before).await;
        }
        callers.go_on(50, 0).await;
        // What was granted after the jump ends as ever.
        if direction == "back" {
            callers.go_on(50, 20).await;
        }
    }
    callers.stop().await;
    for instance in instances {
        assert!(instance.whole_log().contains("the database's clock jumped"), "{}", instance.log());
    }
    // Holds over which the clock jumped forward by more than is allowed are quarantined when they end.
    until("holds in doubt are quarantined", async || {
        let mut quarantined = 0;
        for signer in SIGNERS {
            quarantined += statuses(&urls[0], signer, "QUARANTINED").await;
        }
        quarantined > 0
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_nonce_is_granted_twice_within_its_time_when_the_clock_of_the_server_jumps() {
    let clock = FakeClock::new().unwrap();
    let variables = clock.variables();
    let server = tokio::task::spawn_blocking(|| Postgres::start_under(variables)).await.unwrap().unwrap();
    let database = Arc::new(server).database().unwrap();
    let start = async || {
        let setup = Setup::in_mode("worker-queue").unwrap().database(database.url());
        setup.env("FENCEPOST__NONCE__SWEEP_INTERVAL_MS", "500").start().await.unwrap()
    };
    let instances = [start().await, start().await];
    holds_outlast_jumps(&clock, &instances).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_nonce_is_granted_twice_within_its_time_when_the_clock_of_the_machine_jumps() {
    let clock = FakeClock::new().unwrap();
    let mut setup = Setup::in_mode("worker-queue").unwrap().env("FENCEPOST__NONCE__SWEEP_INTERVAL_MS", "500");
    setup = clock.variables().iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    let instance = setup.start().await.unwrap();
    holds_outlast_jumps(&clock, std::slice::from_ref(&instance)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_gets_the_time_that_is_left_when_the_clock_goes_back() {
    let clock = FakeClock::new().unwrap();
    let mut setup = Setup::basic().unwrap();
    setup = clock.variables().iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    let instance = setup.start().await.unwrap();
    let (client, path) = (patient(), format!("{}/v1/signers/a/nonces", instance.url()));
    let asked = json!({"hold_ms": 60_000});
    let first = client.request("POST", &path, Some("k"), Some(&asked)).await.unwrap();
    // It was granted before, and ends no later.
    let end = Instant::now() + Duration::from_millis(60_000);
    assert_eq!(first.status, 201, "{}", first.text);
    for (offset_ms, direction) in [(-TEN_MINUTES_MS, "back"), (0, "forward")] {
        let before = jumps(instance.url(), direction).await;
        clock.set(offset_ms).unwrap();
        until("the jump is counted", async || jumps(instance.url(), direction).await > before).await;
        let asked_again = Instant::now();
        let again = client.request("POST", &path, Some("k"), Some(&asked)).await.unwrap();
        assert_eq!(again.status, 201, "{}", again.text);
        assert_eq!(again.body["grants"][0]["hold"], first.body["grants"][0]["hold"]);
        let left = Duration::from_millis(again.body["grants"][0]["held_for_ms"].as_u64().unwrap());
        assert!(asked_again + left <= end, "{}", again.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn holds_of_an_owner_that_died_keep_their_time_when_the_clock_jumps() {
    let clock = FakeClock::new().unwrap();
    let variables = clock.variables();
    let server = tokio::task::spawn_blocking(|| Postgres::start_under(variables)).await.unwrap().unwrap();
    let database = Arc::new(server).database().unwrap();
    let start = async || {
        let setup = Setup::basic().unwrap().database(database.url());
        setup.env("FENCEPOST__NONCE__SWEEP_INTERVAL_MS", "200").start().await.unwrap()
    };
    let (mut first, second) = (start().await, start().await);
    let (client, asked) = (patient(), json!({"count": 3, "hold_ms": 6_000}));
    let path = |url: &str| format!("{url}/v1/signers/a/nonces");
    let sent = Instant::now();
    let granted = client.request("POST", &path(first.url()), None, Some(&asked)).await.unwrap();
    assert_eq!(granted.status, 201, "{}", granted.text);
    assert!(!first.end_by(Signal::Kill, testkit::PATIENCE).await.unwrap().success());
    clock.set(TEN_MINUTES_MS).unwrap();
    // An instance that starts after the jump knows nothing of it.
    let third = start().await;
    for url in [second.url(), third.url()] {
        let beside = client.request("POST", &path(url), None, None).await.unwrap();
        if beside.status == 201 && sent.elapsed() < Duration::from_millis(6_000) {
            assert!(beside.body["grants"][0]["nonce"].as_u64().unwrap() > 2, "{}", beside.text);
        }
    }
    until("the holds end", async || statuses(second.url(), "a", "HELD").await <= 2).await;
    assert!(sent.elapsed() >= Duration::from_millis(6_000), "held for {:?}", sent.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_used_a_moment_ago_stays_open_when_the_clock_jumps_forward() {
    let clock = FakeClock::new().unwrap();
    let mut setup = Setup::in_mode("worker-queue").unwrap();
    setup = clock.variables().iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    let instance = setup.start().await.unwrap();
    let (client, url) = (patient(), instance.url().to_owned());
    let post = async |path: &str, body: Value| {
        client.request("POST", &format!("{url}{path}"), None, Some(&body)).await.unwrap()
    };
    let open = async |idle_ms: i64| {
        let opened = post("/v1/sessions", json!({"idle_ms": idle_ms})).await;
        assert_eq!(opened.status, 201, "{}", opened.text);
        opened.body["id"].as_str().unwrap().to_owned()
    };
    let is_closed = async |id: &str| {
        client.get(&format!("{url}/v1/sessions/{id}")).await.unwrap()["closed_at"].is_string()
    };
    let (used, unused) = (open(HOUR_MS).await, open(1_000).await);
    let before = jumps(&url, "forward").await;
    clock.set(HOUR_MS).unwrap();
    until("the jump is counted", async || jumps(&url, "forward").await > before).await;
    // A look for idle sessions finds both by the times in their rows.
    until("the session that nobody uses is closed", async || is_closed(&unused).await).await;
    // The first owner of the session that is used has nothing to do after this.
    let refused = post("/v1/jobs", json!({"payload": 1, "session": used, "priority": 1})).await;
    assert_eq!(refused.status, 400, "a strict session has no priorities: {}", refused.text);
    let accepted = post("/v1/jobs", json!({"payload": 1, "session": used})).await;
    assert_eq!(accepted.status, 202, "{}", accepted.text);
    assert!(!is_closed(&used).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_plan_is_taken_from_an_owner_that_lives_when_the_clock_jumps_past_the_end_of_its_lease() {
    let clock = FakeClock::new().unwrap();
    let variables = clock.variables();
    let server = tokio::task::spawn_blocking(|| Postgres::start_under(variables)).await.unwrap().unwrap();
    let database = Arc::new(server).database().unwrap();
    let start =
        async || Setup::in_mode("worker-queue").unwrap().database(database.url()).start().await.unwrap();
    let instances = [start().await, start().await];
    let urls = [instances[0].url(), instances[1].url()];
    let client = patient();
    // Each has renewed itself for long enough to take what has run out.
    for url in urls {
        until("both are on the ring", async || {
            let cluster = client.get(&format!("{url}/v1/cluster")).await.unwrap();
            let shown = cluster["instances"].as_array().unwrap();
            shown.iter().filter(|one| one["on_ring"] == true).count() == 2
        })
        .await;
    }
    let mut plans = Vec::new();
    for number in 0..16 {
        let url = urls[number % 2];
        // No node takes its stage.
        let stages = json!([{"name": "s", "payload": 1}]);
        let asked = json!({"start": true, "tasks": [{"tenant": format!("t{number}"), "stages": stages}]});
        let made = client.request("POST", &format!("{url}/v1/plans"), None, Some(&asked)).await.unwrap();
        assert_eq!(made.status, 201, "{}", made.text);
        plans.push(format!("{url}/v1/plans/{}", made.body["id"].as_str().unwrap()));
    }
    let owners = || {
        let owned = "select resource, owner, fencing_token from lease \
                     where resource like 'plan:%' and expires_at > now() order by resource";
        tokio::task::block_in_place(|| database.query(owned)).unwrap()
    };
    until("all have owners", async || owners().len() == plans.len()).await;
    let before = owners();
    // Longer than a plan's lease, which is renewed when a third of it is over.
    clock.set(20_000).unwrap();
    for url in urls {
        until("the jump is counted", async || jumps(url, "forward").await > 0).await;
    }
    until("all have owners again", async || owners().len() == plans.len()).await;
    assert_eq!(owners(), before);
    for plan in plans {
        let shown = client.get(&plan).await.unwrap();
        assert_eq!(shown["status"], "RUNNING", "{shown}");
    }
}
