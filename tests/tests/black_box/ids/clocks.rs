//! The real binary under clocks that are wrong (libfaketime). The clock of the wall alone is: lengths of waits, and the
//! database, go by the right time.

use std::time::{SystemTime, UNIX_EPOCH};

use testkit::fake_clock::FakeClock;

use super::*;

/// Now, in milliseconds since 1970.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

/// An instance on PostgreSQL whose clock can be set.
struct Faked {
    instance: Instance,
    clock: FakeClock,
    client: Client,
    url: String,
    given: HashSet<String>,
    database: Database,
}

impl Faked {
    /// With a clock that is so far off, in milliseconds.
    async fn start(offset_ms: i64) -> Self {
        let database = tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap();
        let clock = FakeClock::new().unwrap();
        clock.set(offset_ms).unwrap();
        let setup = Setup::basic().unwrap().database(database.url());
        let setup = setup.env("FENCEPOST__IDS__WORKER", "7").env("FENCEPOST__IDS__LEAD_MS", "6000");
        // Shorter than what a restart waits for.
        let setup = setup.env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "1500");
        let setup = setup.env("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "1500");
        let setup = setup.env("FENCEPOST__LOG__FILTER", "info,ids=debug");
        let setup = clock.variables().iter().fold(setup, |setup, (name, value)| setup.env(name, value));
        let instance = setup.start().await.unwrap();
        let url = instance.url().to_owned();
        prepare(&url).await;
        Self { instance, clock, client: patient(), url, given: HashSet::new(), database }
    }

    /// The clock runs, so far off.
    fn runs(&self, offset_ms: i64) {
        self.clock.set(offset_ms).unwrap();
    }

    /// The clock stands still at this time.
    fn stands(&self, at_ms: u64) {
        self.clock.stand(at_ms).unwrap();
    }

    async fn asks(&mut self, count: usize) -> Reply {
        let reply = get(&self.client, &self.url, &format!("/v1/ids/snowflake?count={count}")).await;
        if reply.status == 200 {
            for id in texts(&reply) {
                assert!(self.given.insert(id), "given twice: {}", reply.text);
            }
        }
        reply
    }

    async fn gives(&mut self, count: usize) {
        let reply = self.asks(count).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
    }

    /// Snowflakes are refused, in these words; the others go on.
    async fn refuses(&mut self, count: usize, words: &str) {
        let reply = self.asks(count).await;
        assert_eq!((reply.status, reply.code()), (503, "clock_behind"), "{}", reply.text);
        assert!(reply.body["detail"].as_str().unwrap().contains(words), "{words}: {}", reply.text);
        assert!(reply.retry_after.is_some(), "{}", reply.text);
        for kind in [TAG, SEQUENCE, "/v1/ids/uuid"] {
            assert_eq!(get(&self.client, &self.url, kind).await.status, 200, "{kind}");
        }
    }

    /// Refuses until it gives again, by itself; answers in which words. (After a restart it may give some by its file,
    /// and then wait for the ledger.)
    async fn comes_back(&mut self, refusals: &[&str]) -> HashSet<String> {
        let (begun, mut said, mut given) = (Instant::now(), HashSet::new(), 0);
        while given < 10 {
            let reply = self.asks(1_000).await;
            if reply.status == 200 {
                given += 1;
                continue;
            }
            // A slow machine may be slow to get a number.
            let is_slow = reply.code() == "ledger_unavailable" && reply.text.contains("did not get a");
            assert!(reply.status == 503, "{}", reply.text);
            assert!(is_slow || refusals.contains(&reply.code()), "{}", reply.text);
            said.insert(reply.code().to_owned());
            assert!(begun.elapsed() < PATIENCE, "{}", reply.text);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        said
    }

    async fn rollbacks(&self) -> u64 {
        let text = metrics(&self.client, &self.instance).await;
        let line = text.lines().find_map(|line| line.strip_prefix("fencepost_clock_rollback_total "));
        line.map_or(0, |count| count.parse().unwrap())
    }

    /// What the readiness check says of snowflakes.
    async fn check(&self) -> Value {
        self.client.get(&format!("{}/readyz", self.url)).await.unwrap()["checks"]["snowflakes"].clone()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_back_by_one_to_five_ms_is_waited_for_and_nobody_is_refused() {
    let mut faked = Faked::start(0).await;
    faked.gives(1).await;
    let asking = Asking::start(4, &faked.url);
    let mut offset_ms = 0;
    for step in 0..40 {
        // Each has waited for the last step and been answered since.
        asking.answers(3).await;
        offset_ms -= 1 + step % 5;
        faked.runs(offset_ms);
    }
    asking.answers(3).await;
    let given = asking.stop().await;
    let mut seen = HashSet::new();
    assert!(given.iter().all(|id| seen.insert(id)), "given twice");
    let log = faked.instance.whole_log();
    assert!(log.contains("the clock went back a little"), "the clock went back under those who asked");
    assert_eq!(faked.rollbacks().await, 0, "what is waited out is no alarm");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_back_by_six_ms_or_an_hour_is_refused_until_it_has_caught_up() {
    let mut faked = Faked::start(0).await;
    faked.gives(1).await;
    for (times, back_ms) in [(1, 6), (2, 3_600_000)] {
        let at_ms = now_ms();
        faked.stands(at_ms);
        faked.gives(1).await;
        faked.stands(at_ms - back_ms);
        let says = format!("went back by {back_ms} ms");
        faked.refuses(1, &says).await;
        faked.refuses(10, &says).await;
        assert_eq!(faked.rollbacks().await, times, "counted once");
        let check = faked.check().await;
        assert!(check["detail"].as_str().unwrap_or_default().contains(&says), "{check}");
        // At the very time of the last id it goes on, with the next one.
        faked.stands(at_ms);
        faked.gives(1).await;
        faked.runs(0);
        faked.gives(1_000).await;
        assert_eq!(faked.check().await["status"], "ok");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_stands_still_gives_what_its_millisecond_has_and_is_then_refused() {
    let mut faked = Faked::start(0).await;
    faked.gives(1).await;
    faked.stands(now_ms() + 2);
    faked.gives(4_096).await;
    faked.refuses(1, "stands still").await;
    faked.refuses(5_000, "stands still").await;
    faked.runs(0);
    faked.comes_back(&["clock_behind"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_ahead_gets_no_further_than_the_mark_and_back_it_is_waited_for() {
    let mut faked = Faked::start(0).await;
    faked.gives(1).await;
    for ahead_ms in [3_600_000, 30_000] {
        faked.runs(ahead_ms);
        faked.refuses(1, "ahead of the database's").await;
        let begun = Instant::now();
        while faked.check().await["status"] != "warn" {
            assert!(begun.elapsed() < PATIENCE, "it is said that snowflakes are refused");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        faked.runs(0);
        faked.comes_back(&["clock_behind"]).await;
    }
    // Within the mark ids are made, and when the clock is right again they are waited for.
    faked.runs(700);
    faked.gives(1).await;
    faked.runs(0);
    faked.comes_back(&["clock_behind"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_a_slower_clock_gives_nothing_that_was_given_before() {
    let mut faked = Faked::start(900).await;
    for keeps_file in [true, false] {
        faked.runs(900);
        faked.comes_back(&["clock_behind"]).await;
        let highest = |faked: &Faked| faked.given.iter().map(|id| id.parse::<u64>().unwrap()).max();
        let before = highest(&faked).unwrap();
        faked.instance.end_by(Signal::Kill, PATIENCE).await.unwrap();
        if !keeps_file {
            std::fs::remove_file(faked.instance.dir().join("fencepost-data/worker-number")).unwrap();
        }
        faked.runs(-900);
        faked.instance.start().await.unwrap();
        faked.given.clear();
        // Until the one before is found dead its number is held; then its mark is waited for.
        let said = faked.comes_back(&["exhausted", "clock_behind"]).await;
        assert!(said.contains("clock_behind"), "{said:?}");
        assert!(faked.given.iter().all(|id| id.parse::<u64>().unwrap() > before));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_too_far_off_at_the_start_refuses_snowflakes_and_says_by_how_much() {
    let mut faked = Faked::start(-5_000).await;
    faked.refuses(1, "behind the database's").await;
    faked.runs(5_000);
    let begun = Instant::now();
    while !faked.asks(1).await.text.contains("ahead of the database's") {
        assert!(begun.elapsed() < PATIENCE, "the clock is looked at again and again");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let tries = |log: &str, word: &str| {
        let tries = log.lines().filter(|line| line.contains("no worker number for snowflakes"));
        tries.filter(|line| line.contains(word)).count()
    };
    until("the log has a second try", async || tries(&faked.instance.whole_log(), "DEBUG") > 0).await;
    assert_eq!(tries(&faked.instance.whole_log(), "WARN"), 1, "{}", faked.instance.whole_log());
    faked.runs(0);
    faked.comes_back(&["clock_behind"]).await;
}

/// Another instance on the ledger of the first, with worker number 8 and a clock of its own.
async fn beside(faked: &Faked, offset_ms: i64) -> (Instance, FakeClock) {
    let clock = FakeClock::new().unwrap();
    clock.set(offset_ms).unwrap();
    let setup = Setup::basic().unwrap().database(faked.database.url()).env("FENCEPOST__IDS__WORKER", "8");
    let setup = clock.variables().iter().fold(setup, |setup, (name, value)| setup.env(name, value));
    let other = setup.start().await.unwrap();
    see(faked, 2).await;
    (other, clock)
}

/// Waits until the first instance sees so many.
async fn see(faked: &Faked, count: usize) {
    until(&format!("{count} instances are seen"), async || {
        let cluster = get(&faked.client, &faked.url, "/v1/cluster").await;
        cluster.body["instances"].as_array().is_some_and(|all| all.len() == count)
    })
    .await;
}

/// What the first instance has handed on.
async fn handed_on(faked: &Faked) -> u64 {
    let text = metrics(&faked.client, &faked.instance).await;
    let name = "fencepost_handed_on_total{kind=\"snowflake\"} ";
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.expect("it is there from the start").parse().unwrap()
}

/// Asks until the ids are of this worker number.
async fn is_served_by(faked: &mut Faked, worker: u64) {
    let begun = Instant::now();
    loop {
        let reply = faked.asks(2).await;
        if reply.body["worker"] == worker {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "not by worker {worker}: {}", reply.text);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_with_a_wrong_clock_at_the_start_hands_snowflakes_on_to_one_whose_clock_is_right() {
    for offset_ms in [-5_000, 3_600_000] {
        let mut faked = Faked::start(offset_ms).await;
        faked.refuses(1, "the database's").await;
        assert_eq!(handed_on(&faked).await, 0);
        let (mut right, _) = beside(&faked, 0).await;
        is_served_by(&mut faked, 8).await;
        for times in 2..5 {
            let reply = faked.asks(2_000).await;
            assert_eq!((reply.status, reply.body["worker"].as_u64()), (200, Some(8)), "{}", reply.text);
            assert_eq!(texts(&reply).len(), 2_000);
            assert_eq!(handed_on(&faked).await, times);
        }
        let leaf = get(&faked.client, &faked.url, "/api/snowflake/get/any").await;
        assert_eq!(
            (leaf.status, leaf.content_type.as_str()),
            (200, "text/plain; charset=utf-8"),
            "{}",
            leaf.text
        );
        assert!(leaf.text.parse::<u64>().is_ok() && faked.given.insert(leaf.text.clone()), "{}", leaf.text);
        assert_eq!(handed_on(&faked).await, 5);
        // What is wrong with the request is still the caller's fault.
        let reply = get(&faked.client, &faked.url, "/v1/ids/snowflake?count=0").await;
        assert_eq!((reply.status, reply.code()), (400, "invalid"), "{}", reply.text);
        right.end_by(Signal::Terminate, PATIENCE).await.unwrap();
        see(&faked, 1).await;
        faked.refuses(1, "the database's").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_wrong_while_running_hands_on_until_it_is_right_and_two_wrong_ones_refuse() {
    let mut faked = Faked::start(0).await;
    faked.gives(1).await;
    let (right, clock) = beside(&faked, 0).await;
    assert_eq!(faked.asks(1).await.body["worker"], 7);
    faked.runs(-60_000);
    // The clock went back.
    is_served_by(&mut faked, 8).await;
    faked.runs(0);
    is_served_by(&mut faked, 7).await;
    faked.runs(3_600_000);
    is_served_by(&mut faked, 8).await;
    // Both are asked, once each: no request goes round.
    clock.set(-60_000).unwrap();
    faked.refuses(1, "ahead of the database's").await;
    let reply = get(&faked.client, right.url(), "/v1/ids/snowflake").await;
    assert_eq!((reply.status, reply.code()), (503, "clock_behind"), "{}", reply.text);
    clock.set(0).unwrap();
    is_served_by(&mut faked, 8).await;
    let log = format!("{}{}", faked.instance.whole_log(), right.whole_log());
    assert!(!log.contains("did not accept a forwarded request"), "{log}");
}

/// Clients that ask for snowflakes all the time and are always given some.
struct Asking {
    answered: Arc<Vec<std::sync::atomic::AtomicUsize>>,
    stop: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Asking {
    fn start(clients: usize, url: &str) -> Self {
        let answered: Arc<Vec<_>> = Arc::new((0..clients).map(|_| Default::default()).collect());
        let mut asking = Self { answered, stop: Arc::default(), tasks: Vec::new() };
        for number in 0..clients {
            let (answered, stop) = (Arc::clone(&asking.answered), Arc::clone(&asking.stop));
            let path = format!("{url}/v1/ids/snowflake?count=7");
            asking.tasks.push(tokio::spawn(async move {
                let (client, mut given) = (patient(), Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let reply = client.request("GET", &path, None, None).await.unwrap();
                    assert_eq!(reply.status, 200, "{}", reply.text);
                    given.extend(texts(&reply));
                    answered[number].fetch_add(1, Ordering::Relaxed);
                }
                given
            }));
        }
        asking
    }

    /// Waits until each was answered so many more times.
    async fn answers(&self, more: usize) {
        let begun = Instant::now();
        for (count, task) in self.answered.iter().zip(&self.tasks) {
            let enough = count.load(Ordering::Relaxed) + more;
            while count.load(Ordering::Relaxed) < enough {
                assert!(begun.elapsed() < PATIENCE && !task.is_finished(), "a client is not answered");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    }

    async fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut given = Vec::new();
        for task in self.tasks {
            given.extend(task.await.unwrap());
        }
        given
    }
}
