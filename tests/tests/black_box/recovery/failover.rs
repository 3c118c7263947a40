//! Drills: a standby becomes the primary under load. What an asynchronous one lost is granted to nobody again; a
//! synchronous one lost nothing, and the instances go on by themselves, also where the old primary lives on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use testkit::PATIENCE;
use testkit::proxy::Proxy;
use testkit::servers::Postgres;
use tokio::task::JoinHandle;

use super::*;

/// How many of the last lines of an instance's log the panic of a test shows at most.
const LOG_LINES_SHOWN_MAX: usize = 200;

/// A primary with a standby, and two instances that reach whichever the proxy leads to.
struct Drill {
    primary: Arc<Postgres>,
    standby: Arc<Postgres>,
    proxy: Proxy,
    /// As the instances name it.
    database_url: String,
    instances: [Instance; 2],
    folder: tempfile::TempDir,
    granted: Arc<Granted>,
}

/// Callers at work.
struct Asking {
    stop: Arc<AtomicBool>,
    /// The ledger has been lost; from now on nothing that it grants may come.
    is_lost: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drill {
    async fn start(is_synchronous: bool) -> Self {
        let (primary, standby) = tokio::task::spawn_blocking(move || {
            let primary = Postgres::start().unwrap();
            let standby = primary.standby(primary.address(), "standby").unwrap();
            if is_synchronous {
                primary.query("alter system set synchronous_standby_names = 'standby'").unwrap();
                primary.query("select pg_reload_conf()").unwrap();
            }
            (Arc::new(primary), Arc::new(standby))
        })
        .await
        .unwrap();
        let database = primary.database().unwrap();
        let name = database.url().rsplit_once('/').unwrap().1.to_owned();
        let proxy = Proxy::start(primary.address()).await.unwrap();
        let database_url = url(proxy.address(), &name);
        let folder = tempfile::tempdir().unwrap();
        let start = async |name: &str| {
            let dir = folder.path().join(name);
            std::fs::create_dir_all(&dir).unwrap();
            let setup = Setup::in_mode("worker-queue").unwrap().database(&database_url).dir(&dir);
            // Requests that wait for the primary give up before the test does.
            let setup = setup.env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "2000");
            let setup = setup.env("FENCEPOST__LEDGER__CALL_TIMEOUT_MS", "1500");
            setup.arg("--node-name").arg(name).start().await.unwrap()
        };
        let instances = [start("one").await, start("two").await];
        make_numbers(instances[0].url()).await;
        let granted = Arc::default();
        Self { primary, standby, proxy, database_url, instances, folder, granted }
    }

    fn urls(&self) -> [String; 2] {
        self.instances.each_ref().map(|instance| instance.url().to_owned())
    }

    /// Callers of both instances, whose refusals must be among these.
    fn asking(&self, codes: &'static [&'static str]) -> Asking {
        let (stop, is_lost) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let tasks = self.urls().into_iter().map(|url| {
            let (granted, stop, is_lost) =
                (Arc::clone(&self.granted), Arc::clone(&stop), Arc::clone(&is_lost));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let was_lost = is_lost.load(Ordering::Relaxed);
                    let kinds = kinds_granted(&url, &granted, codes).await;
                    // Instances give the ids that they had in memory, which nobody else has been given.
                    let from_memory =
                        |kind: &String| ["snowflake", "segments/order"].contains(&kind.as_str());
                    assert!(
                        !was_lost || kinds.iter().all(from_memory),
                        "{kinds:?} of a ledger that went back"
                    );
                }
            })
        });
        let tasks = tasks.collect();
        Asking { stop, is_lost, tasks }
    }

    /// Waits until so many more were granted.
    async fn grants(&self, more: usize) {
        let count = || self.granted.0.lock().seen.len();
        let enough = count() + more;
        until("numbers are granted", async || count() >= enough).await;
    }

    /// The standby takes the primary's place. That lives on, and open connections to it stay.
    async fn divides(&self) {
        let standby = Arc::clone(&self.standby);
        tokio::task::spawn_blocking(move || standby.promote().unwrap()).await.unwrap();
        self.proxy.lead_to(self.standby.address());
    }

    /// All connections are cut, and new ones go to this server.
    async fn leads_all_to(&self, server: &Postgres) {
        self.proxy.lead_to(server.address());
        self.proxy.cut().await.unwrap();
        self.proxy.heal().await.unwrap();
    }

    /// The primary is gone, and the standby takes its place.
    async fn fails_over(&self) {
        let (primary, standby) = (Arc::clone(&self.primary), Arc::clone(&self.standby));
        let next = standby.address();
        tokio::task::spawn_blocking(move || {
            primary.stop_immediate().unwrap();
            standby.promote().unwrap();
        })
        .await
        .unwrap();
        self.proxy.lead_to(next);
    }
}

impl Asking {
    async fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
    }
}

fn url(address: SocketAddr, database: &str) -> String {
    format!("postgres://postgres@{address}/{database}")
}

/// A job that waits for a node.
async fn submitted(url: &str) -> String {
    let job = json!({ "payload": null });
    let answer = patient().request("POST", &format!("{url}/v1/jobs"), None, Some(&job)).await.unwrap();
    assert_eq!(answer.status, 202, "{}", answer.text);
    answer.body["id"].as_str().unwrap().to_owned()
}

/// Waits until the instance has noticed the failover. Where it does not, the test ends with what it says of itself, and with the
/// end of its log.
async fn goes_on_by_the_standby(instance: &Instance) {
    let url = instance.url();
    let noticed = async {
        while failovers(url).await != 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(PATIENCE, noticed).await.is_err() {
        let ready = patient().request("GET", &format!("{url}/readyz"), None, None).await.unwrap();
        let log = instance.whole_log();
        let lines: Vec<_> = log.lines().collect();
        let last = lines[lines.len().saturating_sub(LOG_LINES_SHOWN_MAX)..].join("\n");
        panic!("the failover is not noticed: {}\n{last}", ready.text);
    }
}

async fn failovers(url: &str) -> u64 {
    let text = patient().request("GET", &format!("{url}/metrics"), None, None).await.unwrap().text;
    let line = text.lines().find_map(|line| line.strip_prefix("fencepost_ledger_failover_total "));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_asynchronous_standby_that_becomes_the_primary_grants_nothing_until_the_ledger_is_recovered() {
    let drill = Drill::start(false).await;
    for url in &drill.urls() {
        until("it is warned of", async || {
            let ready = patient().request("GET", &format!("{url}/readyz"), None, None).await.unwrap();
            let detail = ready.body["checks"]["ledger"]["detail"].as_str();
            ready.status == 200 && detail.is_some_and(|detail| detail.contains("replicates asynchronously"))
        })
        .await;
    }
    let gone = &[
        "ledger_went_back",
        "ledger_unavailable",
        "fenced",
        "not_owner",
        "lease_held",
        "clock_behind",
        "exhausted",
    ];
    let asking = drill.asking(gone);
    drill.grants(2_000).await;
    // The standby gets no more of the log, and stops replaying what it has. (While it does not replay it would not
    // hear that it is to get no more.)
    drill.standby.query("alter system set primary_conninfo = ''").unwrap();
    drill.standby.query("select pg_reload_conf()").unwrap();
    until("the standby is cut off", async || {
        drill.primary.query("select 1 from pg_stat_replication").unwrap().is_empty()
    })
    .await;
    drill.standby.query("select pg_wal_replay_pause()").unwrap();
    // What is granted now is lost, and it is little: less than the time between two looks at the ledger would show.
    drill.grants(100).await;
    drill.fails_over().await;
    asking.is_lost.store(true, Ordering::Relaxed);
    for url in &drill.urls() {
        until("the failover is noticed", async || ready_code(url).await == "ledger_went_back").await;
        let ready = patient().request("GET", &format!("{url}/readyz"), None, None).await.unwrap();
        assert!(ready.text.contains("a standby took over"), "{}", ready.text);
    }
    // Both instances refuse for as long as nobody recovers the ledger.
    for url in &drill.urls() {
        for _ in 0..10 {
            assert_eq!(ask_for_all(url, &drill.granted, &["ledger_went_back"]).await, 0);
        }
    }
    asking.stop().await;
    recovered(&drill.database_url, drill.folder.path()).await;
    for url in &drill.urls() {
        until("it serves again", async || matches!(ready_code(url).await.as_str(), "ready" | "degraded"))
            .await;
    }
    confirm_all(&drill.urls()[0], &drill.granted).await;
    confirm_nothing_more(&drill.urls()[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_synchronous_standby_that_becomes_the_primary_goes_on_and_grants_nothing_twice() {
    let drill = Drill::start(true).await;
    let asking = drill.asking(&WELL);
    drill.grants(2_000).await;
    for url in &drill.urls() {
        // A look has seen that commits wait for the standby.
        until("commits wait for it", async || ledger_status(url).await == "ok").await;
    }
    drill.fails_over().await;
    for instance in &drill.instances {
        goes_on_by_the_standby(instance).await;
    }
    drill.grants(2_000).await;
    asking.stop().await;
    for url in &drill.urls() {
        until("everything is granted", async || ask_for_all(url, &drill.granted, &WELL).await >= 3).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_primary_that_lives_on_is_left_for_the_synchronous_standby_and_not_gone_back_to() {
    let drill = Drill::start(true).await;
    let job = submitted(&drill.urls()[0]).await;
    // Reads by key have several connections.
    let reads = drill.urls().into_iter().cycle().take(16).map(|url| {
        let path = format!("{url}/v1/jobs/{job}");
        tokio::spawn(async move { patient().request("GET", &path, None, None).await.unwrap().status })
    });
    for read in reads.collect::<Vec<_>>() {
        assert_eq!(read.await.unwrap(), 200);
    }
    let asking = drill.asking(&WELL);
    drill.grants(2_000).await;
    for url in &drill.urls() {
        until("commits wait for it", async || ledger_status(url).await == "ok").await;
    }
    drill.divides().await;
    for instance in &drill.instances {
        goes_on_by_the_standby(instance).await;
    }
    drill.grants(2_000).await;
    asking.stop().await;
    for url in &drill.urls() {
        until("everything is granted", async || ask_for_all(url, &drill.granted, &WELL).await >= 3).await;
    }
    // No connection from before reads of the old primary, which has none of this.
    let job = submitted(&drill.urls()[0]).await;
    for url in &drill.urls() {
        for _ in 0..20 {
            let path = format!("{url}/v1/jobs/{job}");
            let shown = patient().request("GET", &path, None, None).await.unwrap();
            assert_eq!(shown.status, 200, "{}", shown.text);
        }
    }
    // Only the old primary can be reached: it is refused for as long as that is so.
    drill.leads_all_to(&drill.primary).await;
    for url in &drill.urls() {
        until("the old primary is noticed", async || ready_code(url).await == "ledger_went_back").await;
        let ready = patient().request("GET", &format!("{url}/readyz"), None, None).await.unwrap();
        assert!(ready.text.contains("an old primary still answers"), "{}", ready.text);
        assert_eq!(ask_for_all(url, &drill.granted, &["ledger_went_back"]).await, 0);
    }
    drill.leads_all_to(&drill.standby).await;
    for url in &drill.urls() {
        until("it serves again", async || matches!(ready_code(url).await.as_str(), "ready" | "degraded"))
            .await;
        until("everything is granted", async || ask_for_all(url, &drill.granted, &WELL).await >= 3).await;
        assert_eq!(failovers(url).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_takes_reads_only_makes_instances_unready_until_it_takes_writes() {
    let server = tokio::task::spawn_blocking(Postgres::start).await.unwrap().unwrap();
    let server = Arc::new(server);
    let database = server.database().unwrap();
    let tokens = json!([
        {"name": "all", "token": "all", "scopes": ["submit"]},
        {"name": "narrow", "token": "narrow", "scopes": ["submit"], "tenants": ["acme"]},
    ]);
    let setup = Setup::basic().unwrap().database(database.url());
    let instance = setup.env("FENCEPOST__AUTH__TOKENS", &tokens.to_string()).start().await.unwrap();
    let url = instance.url().to_owned();
    let asks = async || {
        let path = format!("{url}/v1/signers/a/nonces");
        patient().with_token("all").request("POST", &path, None, None).await.unwrap()
    };
    assert_eq!(asks().await.status, 201);
    server.query("alter system set default_transaction_read_only = on").unwrap();
    server.query("select pg_reload_conf()").unwrap();
    until("it is unready", async || {
        let ready = patient().request("GET", &format!("{url}/readyz"), None, None).await.unwrap();
        (ready.status, ready.code()) == (503, "ledger_unavailable")
            && ready.text.contains("the ledger is read-only")
    })
    .await;
    let refused = asks().await;
    assert_eq!((refused.status, refused.code()), (503, "ledger_unavailable"), "{}", refused.text);
    assert!(refused.text.contains("the ledger is read-only"), "{}", refused.text);
    // A job that is not there may be one whose deletion no standby has. Only a commit tells.
    let job = format!("{url}/v1/jobs/01890a5d-ac96-774b-bcce-b302099a8057");
    for (method, expected) in [("GET", (404, "not_found")), ("DELETE", (503, "ledger_unavailable"))] {
        for token in ["all", "narrow"] {
            let answer = patient().with_token(token).request(method, &job, None, None).await.unwrap();
            assert_eq!((answer.status, answer.code()), expected, "{method} by {token}: {}", answer.text);
        }
    }
    server.query("alter system reset default_transaction_read_only").unwrap();
    server.query("select pg_reload_conf()").unwrap();
    until("it heals", async || ready_code(&url).await == "ready" && asks().await.status == 201).await;
}
