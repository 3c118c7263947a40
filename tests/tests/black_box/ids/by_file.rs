//! Restarts while PostgreSQL is away: by the local file where that proves a worker number, and not at all where not.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use testkit::instance::Ended;
use testkit::servers::Postgres;

use super::*;

/// Length of the file.
const FILE_BYTES: usize = 1_024;

/// An instance that made snowflakes and crashed, and whose ledger is away since.
struct Rig {
    server: Arc<Postgres>,
    _database: Database,
    setup: Setup,
    instance: Instance,
    client: Client,
    url: String,
    given: HashSet<String>,
}

impl Rig {
    async fn start(lead_ms: u64, connect_timeout_ms: u64) -> Self {
        let server = Arc::new(tokio::task::spawn_blocking(Postgres::start).await.unwrap().unwrap());
        let database = server.database().unwrap();
        let setup = Setup::basic().unwrap().database(database.url());
        let setup = setup.env("FENCEPOST__IDS__LEAD_MS", &lead_ms.to_string());
        let connects = |ms: u64| setup.clone().env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", &ms.to_string());
        // While the ledger is there, a busy machine may take its time to reach it.
        let instance = connects(connect_timeout_ms.max(30_000)).start().await.unwrap();
        let setup = connects(connect_timeout_ms);
        let (client, url) = (patient(), instance.url().to_owned());
        let mut rig =
            Self { server, _database: database, setup, instance, client, url, given: HashSet::new() };
        prepare(&rig.url).await;
        for _ in 0..20 {
            assert_eq!(rig.asks(100).await.status, 200);
        }
        rig.instance.end_by(Signal::Kill, PATIENCE).await.unwrap();
        rig.server.stop_immediate().unwrap();
        rig
    }

    fn file(&self) -> PathBuf {
        self.instance.dir().join("fencepost-data/worker-number")
    }

    /// Asks for snowflakes; those given were never given before.
    async fn asks(&mut self, count: usize) -> Reply {
        let reply = get(&self.client, &self.url, &format!("/v1/ids/snowflake?count={count}")).await;
        if reply.status == 200 {
            for id in texts(&reply) {
                assert!(self.given.insert(id), "given twice: {}", reply.text);
            }
        }
        reply
    }

    /// Asks until snowflakes are given.
    async fn has_snowflakes(&mut self) {
        let begun = Instant::now();
        loop {
            let path = format!("{}/v1/ids/snowflake", self.url);
            match self.client.request("GET", &path, None, None).await {
                Ok(reply) if reply.status == 200 => break,
                // What the one before may have made is waited for.
                Ok(reply) => {
                    assert_eq!((reply.status, reply.code()), (503, "clock_behind"), "{}", reply.text)
                }
                Err(_) => {}
            }
            assert!(begun.elapsed() < PATIENCE, "{}", self.instance.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(self.asks(1_000).await.status, 200);
    }

    /// Starts it in a folder, and sees it end by itself.
    async fn ends(&self, dir: &Path) -> Ended {
        self.setup.clone().dir(dir).run_to_end(PATIENCE).await.unwrap()
    }

    /// Writes the file anew, whole and in its place, with one thing changed.
    fn rewrite(&self, change: impl FnOnce(&mut Value)) {
        let text = std::fs::read_to_string(self.file()).unwrap();
        let mut record: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        change(&mut record);
        let line = record.to_string();
        let mut bytes = format!("{line}\n{}\n", sha256(&line)).into_bytes();
        bytes.resize(FILE_BYTES, b'\n');
        std::fs::write(self.file(), bytes).unwrap();
    }
}

fn sha256(text: &str) -> String {
    let mut sum = Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    sum.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let said = String::from_utf8(sum.wait_with_output().unwrap().stdout).unwrap();
    said.split(' ').next().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_while_the_ledger_is_away_makes_snowflakes_by_its_file_and_all_else_when_it_is_back() {
    let mut rig = Rig::start(60_000, 40_000).await;
    // Told to stop meanwhile it stops, and the next start finds the file as it was.
    let starting = rig.instance.launch().unwrap();
    rig.has_snowflakes().await;
    starting.process().signal(Signal::Terminate).unwrap();
    assert_eq!(starting.process().wait(PATIENCE).await.unwrap().code(), Some(0), "{}", rig.instance.log());
    assert!(rig.file().is_file(), "there is no mark to be lowered, so it stays true");

    let starting = rig.instance.launch().unwrap();
    rig.has_snowflakes().await;
    let ready = get(&rig.client, &rig.url, "/readyz").await;
    assert_eq!((ready.status, ready.code()), (503, "ledger_unavailable"), "{}", ready.text);
    assert!(ready.text.contains("it waits for the ledger; it issues snowflakes only"), "{}", ready.text);
    let checks = &ready.body["checks"];
    assert_eq!(
        (&checks["ledger"]["status"], &checks["snowflakes"]["status"]),
        (&json!("down"), &json!("ok"))
    );
    for path in [
        "/healthz",
        "/metrics",
        "/openapi.json",
        "/",
        "/v1/whoami",
        "/v1/ids/uuid",
        "/v1/ids/snowflake/1",
        "/api/snowflake/get/k",
    ] {
        let reply = get(&rig.client, &rig.url, path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        rig.given.extend(path.starts_with("/api").then_some(reply.text));
    }
    for path in [TAG, SEQUENCE, "/v1/signers", "/v1/jobs", "/v1/cluster", "/v1/config/mode"] {
        let reply = get(&rig.client, &rig.url, path).await;
        assert_eq!((reply.status, reply.code()), (503, "ledger_unavailable"), "{path}: {}", reply.text);
        assert!(reply.retry_after.is_some(), "{path}");
    }
    let posted =
        rig.client.request("POST", &format!("{}/v1/signers/s/nonces", rig.url), None, None).await.unwrap();
    assert_eq!((posted.status, posted.code()), (503, "ledger_unavailable"), "{}", posted.text);
    assert_eq!(get(&rig.client, &rig.url, "/v1/nobody").await.status, 404);

    rig.server.boot().unwrap();
    rig.instance.becomes_ready(starting).await.unwrap();
    for path in [TAG, SEQUENCE, "/v1/ids/uuid", "/v1/cluster"] {
        let reply = get(&rig.client, &rig.url, path).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
    }
    assert_eq!(get(&rig.client, &rig.url, "/readyz").await.status, 200);
    rig.has_snowflakes().await;
    for _ in 0..50 {
        assert_eq!(rig.asks(1_000).await.status, 200);
    }
    rig.instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    assert!(!rig.file().exists(), "{}", rig.instance.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn by_its_file_an_instance_serves_up_to_the_mark_and_then_ends_with_69() {
    let mut rig = Rig::start(10_000, 700).await;
    let setup = rig.setup.clone().dir(rig.instance.dir());
    let ending = tokio::spawn(setup.run_to_end(PATIENCE));
    rig.has_snowflakes().await;
    let ended = ending.await.unwrap().unwrap();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(69), ""), "{}", ended.stderr);
    let highest = rig.given.iter().map(|id| id.parse::<u64>().unwrap()).max().unwrap();
    rig.server.boot().unwrap();
    let mark_ms: u64 = rig._database.query("select mark_ms from id_worker").unwrap()[0][0].parse().unwrap();
    assert!((highest >> 22) + 1_288_834_974_657 < mark_ms);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_once_that_the_mark_of_the_file_is_past() {
    let mut rig = Rig::start(10_000, 60_000).await;
    let starting = rig.instance.launch().unwrap();
    rig.has_snowflakes().await;
    let said = |rig: &Rig| {
        rig.instance.whole_log().matches("the machine's clock has come to the mark of the local file").count()
    };
    until("the mark is past", async || said(&rig) > 0).await;
    rig.server.boot().unwrap();
    rig.instance.becomes_ready(starting).await.unwrap();
    rig.has_snowflakes().await;
    assert_eq!(said(&rig), 1, "{}", rig.instance.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_proves_nothing_lets_no_restart_serve_while_the_ledger_is_away() {
    // A lead that outlasts all of the starts, so that at the end the file still proves its number.
    let rig = Rig::start(300_000, 700).await;
    let whole = std::fs::read(rig.file()).unwrap();
    let refuses = async |dir: &Path, why: &str| {
        let ended = rig.ends(dir).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(69), ""), "{why}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{why} is not in: {}", ended.stderr);
        assert!(!ended.stderr.contains("issuing snowflakes by the local file"), "{why}: {}", ended.stderr);
    };
    let here = rig.instance.dir().to_owned();
    for (name, other, why) in [
        ("boot", "00000000-0000-4000-8000-000000000000", "started anew since it was written"),
        ("machine", "00000000000000000000000000000000", "another machine"),
    ] {
        rig.rewrite(|record| record["place"][name] = json!(other));
        refuses(&here, why).await;
        std::fs::write(rig.file(), &whole).unwrap();
    }
    rig.rewrite(|record| drop(record.as_object_mut().unwrap().remove("ledger")));
    refuses(&here, "does not name its ledger").await;
    std::fs::write(rig.file(), &whole).unwrap();
    rig.rewrite(|record| record["ledger"]["cluster"] = json!("00000000-0000-4000-8000-000000000000"));
    refuses(&here, "of another ledger than the one known").await;
    std::fs::write(rig.file(), &whole).unwrap();
    // In the same folder on another database, whether the witness is there or not.
    let witness = here.join("fencepost-data/witness");
    let remembered = std::fs::read(&witness).unwrap();
    for is_remembered in [true, false] {
        if !is_remembered {
            std::fs::remove_file(&witness).unwrap();
        }
        let elsewhere = Setup::basic().unwrap().database(&rig.server.url("another"));
        let elsewhere = elsewhere.env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "700").dir(&here);
        let ended = elsewhere.run_to_end(PATIENCE).await.unwrap();
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(69), ""), "{}", ended.stderr);
        assert!(ended.stderr.contains("of a ledger at another address"), "{}", ended.stderr);
    }
    std::fs::write(&witness, remembered).unwrap();
    rig.rewrite(|record| (record["issued_ms"], record["mark_ms"]) = (json!(1), json!(1_700_000_000_000_u64)));
    refuses(&here, "its mark is past").await;
    std::fs::write(rig.file(), &whole[..FILE_BYTES / 4]).unwrap();
    refuses(&here, "not whole").await;
    std::fs::write(rig.file(), &whole).unwrap();
    let copied = tempfile::tempdir().unwrap();
    let folder = copied.path().join("fencepost-data");
    std::fs::create_dir(&folder).unwrap();
    std::fs::copy(rig.file(), folder.join("worker-number")).unwrap();
    refuses(copied.path(), "it is a copy").await;
    let empty = tempfile::tempdir().unwrap();
    refuses(empty.path(), "").await;

    // Put back as it was, it proves again.
    let mut rig = rig;
    let _starting = rig.instance.launch().unwrap();
    rig.has_snowflakes().await;
}
