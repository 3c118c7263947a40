//! Drills: a backup is restored under running instances, and a file is put back. Nothing is granted until an operator
//! has recovered the ledger, and nothing is granted twice afterwards.

mod confirmations;
mod dumps;
mod failover;
mod moves;
mod restarts;

use std::collections::HashSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};
use testkit::instance::{Instance, Setup};
use testkit::process::Signal;
use testkit::servers::Database;

use crate::jobs::hand::{Hand, done};
use crate::jobs::rig::{Rig, echo};
use crate::jobs::session_client::Talk;
use crate::{patient, until};

const SIGNERS: [&str; 3] = ["a", "b", "c"];

/// No hold ends during a drill, however slow the machine is.
const HOLD_MS: u64 = 86_400_000;
/// How many of each kind are asked for at once.
const EACH: usize = 20;
/// How far ahead of the clock snowflakes can be: the default of `ids.lead_ms` and that of `ids.clock_skew_max_ms`.
const AHEAD_MS: &str = "11000";
/// What a running cluster may answer instead of a number, for a moment.
const WELL: [&str; 6] =
    ["not_owner", "lease_held", "fenced", "clock_behind", "exhausted", "ledger_unavailable"];

/// What was granted, by its kind and owner: each once.
#[derive(Default)]
struct Granted(Mutex<Numbers>);

#[derive(Default)]
struct Numbers {
    seen: HashSet<(String, String)>,
    /// The nonce that the signer's chain would name next.
    next: [u64; 3],
    /// The highest fencing token of each signer.
    tokens: [i64; 3],
}

impl Granted {
    fn add(&self, kind: &str, number: &Value) {
        let is_new = self.0.lock().seen.insert((kind.to_owned(), number.to_string()));
        assert!(is_new, "{kind} {number} was granted twice");
    }

    fn add_nonces(&self, place: usize, answer: &Value) {
        for grant in answer["grants"].as_array().unwrap() {
            self.add(SIGNERS[place], &grant["nonce"]);
            let next = &mut self.0.lock().next[place];
            *next = (*next).max(grant["nonce"].as_u64().unwrap() + 1);
        }
        let token = &mut self.0.lock().tokens[place];
        *token = (*token).max(answer["fencing_token"].as_i64().unwrap());
    }

    fn next(&self, place: usize) -> u64 {
        self.0.lock().next[place]
    }

    fn token(&self, place: usize) -> i64 {
        self.0.lock().tokens[place]
    }

    fn count(&self, kind: &str) -> usize {
        self.0.lock().seen.iter().filter(|(of, _)| of == kind).count()
    }
}

/// Asks for some of everything; says how many kinds were granted. What is refused must be refused as `codes` allow.
async fn ask_for_all(url: &str, granted: &Granted, codes: &[&str]) -> usize {
    kinds_granted(url, granted, codes).await.len()
}

/// The same; says what was granted.
async fn kinds_granted(url: &str, granted: &Granted, codes: &[&str]) -> Vec<String> {
    let (client, mut kinds) = (patient(), Vec::new());
    let check = |answer: &Value| {
        let code = answer["code"].as_str().unwrap_or_default().to_owned();
        assert!(codes.contains(&code.as_str()), "{url}: {answer}");
    };
    for (place, signer) in SIGNERS.iter().enumerate() {
        let asked = format!("{url}/v1/signers/{signer}/nonces");
        let answer = client
            .request("POST", &asked, None, Some(&json!({"count": EACH, "hold_ms": HOLD_MS})))
            .await
            .unwrap();
        match answer.status {
            201 => {
                granted.add_nonces(place, &answer.body);
                kinds.push(signer.to_string());
            }
            _ => check(&answer.body),
        }
    }
    for kind in ["snowflake", "segments/order", "sequences/invoice"] {
        let path = format!("{url}/v1/ids/{kind}?count={EACH}");
        let answer = client.request("GET", &path, None, None).await.unwrap();
        match answer.status {
            200 => {
                answer.body["ids"].as_array().unwrap().iter().for_each(|id| granted.add(kind, id));
                kinds.push(kind.to_owned());
            }
            _ => check(&answer.body),
        }
    }
    kinds
}

async fn make_numbers(url: &str) {
    for path in ["segments/order", "sequences/invoice"] {
        let answer = patient().request("PUT", &format!("{url}/v1/ids/{path}"), None, Some(&json!({}))).await;
        assert_eq!(answer.unwrap().status, 200);
    }
}

async fn open_session(url: &str) -> String {
    let answer =
        patient().request("POST", &format!("{url}/v1/sessions"), None, Some(&json!({}))).await.unwrap();
    assert_eq!(answer.status, 201, "{}", answer.text);
    answer.body["id"].as_str().unwrap().to_owned()
}

/// Submits a job to the session, which gets a place there.
async fn take_place(url: &str, granted: &Granted, session: &str) {
    let job = json!({"session": session, "payload": null});
    let answer = patient().request("POST", &format!("{url}/v1/jobs"), None, Some(&job)).await.unwrap();
    assert_eq!(answer.status, 202, "{}", answer.text);
    granted.add(session, &answer.body["seq"]);
}

async fn ready_code(url: &str) -> String {
    let answer = patient().request("GET", &format!("{url}/readyz"), None, None).await.unwrap();
    answer.body["code"].as_str().or(answer.body["status"].as_str()).unwrap_or_default().to_owned()
}

/// What the gauge shows while the instance refuses everything, and when it does not.
async fn went_back_shown(url: &str) -> String {
    let answer = patient().request("GET", &format!("{url}/metrics"), None, None).await.unwrap();
    let shown = answer.text.lines().find_map(|line| line.strip_prefix("fencepost_ledger_went_back "));
    shown.unwrap_or_else(|| panic!("{}", answer.text)).to_owned()
}

/// What the instance says of its ledger.
async fn ledger_status(url: &str) -> Value {
    let answer = patient().request("GET", &format!("{url}/readyz"), None, None).await.unwrap();
    answer.body["checks"]["ledger"]["status"].clone()
}

async fn recovered(database_url: &str, dir: &Path) {
    for (option, says) in [("--dry-run", "would be recovered"), ("--confirm", "is recovered")] {
        let recover =
            Setup::command("recover").arg(option).arg("--lead-ms").arg(AHEAD_MS).database(database_url);
        let recover = recover.dir(dir);
        let ended = recover.run_to_end(testkit::PATIENCE).await.unwrap();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains(says), "{ended:?}");
    }
}

/// More nonces than one call to the ledger adds.
const LOST: u64 = 60_000;

/// A signer that has its first nonces after the backup.
const LATE: &str = "late";

async fn grant_to_late(url: &str) -> testkit::http::Reply {
    let asked = format!("{url}/v1/signers/{LATE}/nonces");
    patient().request("POST", &asked, None, Some(&json!({"hold_ms": HOLD_MS}))).await.unwrap()
}

/// Grants the signer so many nonces, from 0 on.
async fn late_has(url: &str, count: u64) {
    for nonce in 0..count {
        let answer = grant_to_late(url).await;
        assert_eq!(
            (answer.status, &answer.body["grants"][0]["nonce"]),
            (201, &json!(nonce)),
            "{}",
            answer.text
        );
    }
}

/// The recovered ledger knows nothing of the signer, which gets no nonce that it had.
async fn confirm_late(url: &str, count: u64) {
    until("the signer is recovering", async || {
        let answer = grant_to_late(url).await;
        assert_ne!(answer.status, 201, "{}", answer.text);
        answer.code() == "recovering"
    })
    .await;
    let path = format!("{url}/v1/signers/{LATE}/confirm");
    let answer = patient().request("POST", &path, None, Some(&json!({"next_nonce": count}))).await.unwrap();
    assert_eq!((answer.status, &answer.body["recovering"]), (200, &json!(false)), "{}", answer.text);
    // A deployment that sets the first nonce again undoes no confirmation.
    until("the first nonce is fixed", async || {
        let (path, first) = (format!("{url}/v1/signers/{LATE}/policy"), json!({"first_nonce": 0}));
        let answer = patient().request("PUT", &path, None, Some(&first)).await.unwrap();
        assert_ne!(answer.status, 200, "{}", answer.text);
        answer.code() == "conflict"
    })
    .await;
    until("the signer grants", async || {
        let answer = grant_to_late(url).await;
        if answer.status == 201 {
            assert_eq!(answer.body["grants"][0]["nonce"], json!(count));
        }
        answer.status == 201
    })
    .await;
}

/// After the recovery: nothing of a signer until its next nonce is confirmed, and then nothing that was granted before.
async fn confirm_all(url: &str, granted: &Granted) {
    let client = patient();
    for (place, signer) in SIGNERS.iter().enumerate() {
        until("the signer is recovering", async || {
            let asked = format!("{url}/v1/signers/{signer}/nonces");
            let answer = client.request("POST", &asked, None, None).await.unwrap();
            assert_ne!(answer.status, 201, "{}", answer.text);
            answer.code() == "recovering"
        })
        .await;
        // One chain has many nonces that nobody here has seen.
        let lost = if place == 0 { LOST } else { 0 };
        let confirmed = json!({"next_nonce": granted.next(place) + lost});
        let path = format!("{url}/v1/signers/{signer}/confirm");
        until("the next nonce is confirmed", async || {
            let answer = client.request("POST", &path, None, Some(&confirmed)).await.unwrap();
            match answer.status {
                200 => assert_eq!(answer.body["recovering"], false, "{}", answer.text),
                // A slow machine adds a part of them within a request.
                _ => assert_eq!(answer.code(), "ledger_unavailable", "{}", answer.text),
            }
            answer.status == 200
        })
        .await;
        until("the signer grants", async || {
            let asked = format!("{url}/v1/signers/{signer}/nonces");
            let answer =
                client.request("POST", &asked, None, Some(&json!({"hold_ms": HOLD_MS}))).await.unwrap();
            if answer.status == 201 {
                let token = granted.token(place);
                assert!(answer.body["fencing_token"].as_i64().unwrap() > token, "{}: {token}", answer.text);
                granted.add_nonces(place, &answer.body);
            }
            answer.status == 201
        })
        .await;
    }
    until("everything is granted again", async || ask_for_all(url, granted, &WELL).await == 6).await;
}

/// The programs of the PostgreSQL that the tests' server is of.
pub fn tool(name: &str) -> PathBuf {
    let newest = std::fs::read_dir("/usr/lib/postgresql").unwrap().flatten().map(|entry| entry.path()).max();
    newest.unwrap().join("bin").join(name)
}

/// A table that a transaction of `psql` has locked.
pub struct LockedTable<'d> {
    database: &'d Database,
    psql: Child,
}

impl<'d> LockedTable<'d> {
    /// In this mode, as SQL names it. Every other statement that needs a mode which conflicts with it waits.
    pub async fn lock(database: &'d Database, table: &str, mode: &str) -> Self {
        let script = format!("BEGIN; LOCK TABLE {table} IN {mode} MODE; SELECT pg_sleep(600)");
        let psql =
            Command::new(tool("psql")).args(["-q", "-d", database.url(), "-c", &script]).spawn().unwrap();
        // Other databases of the server have tables of the same number.
        let locked = format!(
            "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE relation = '{table}'::regclass \
             AND granted AND query LIKE 'BEGIN; LOCK%' AND datname = current_database()"
        );
        until("the lock is held", async || !database.query(&locked).unwrap().is_empty()).await;
        Self { database, psql }
    }

    pub fn free(mut self) {
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                   WHERE query LIKE 'BEGIN; LOCK%' AND datname = current_database()";
        self.database.query(end).unwrap();
        self.psql.wait().unwrap();
    }
}

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// The page about backups and recovery.
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/recovery.md");

/// Runs the one command of that page that begins so, in this folder, with the programs of the server.
fn run_as_documented(beginning: &str, folder: &Path, database_url: &str) {
    run(&mut documented(beginning, folder, database_url));
}

fn documented(beginning: &str, folder: &Path, database_url: &str) -> Command {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let commands: Vec<_> = page.lines().filter(|line| line.starts_with(beginning)).collect();
    assert_eq!(commands.len(), 1, "{commands:?}");
    let path = format!("{}:{}", tool("").display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-c", commands[0]]).current_dir(folder);
    shell.env("PATH", path).env("FENCEPOST_DATABASE_URL", database_url);
    shell
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_granted_twice_after_a_backup_was_restored_under_running_instances() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let start = async |name: &str| {
        let dir = folder.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        let setup = Setup::in_mode("worker-queue").unwrap().database(database.url()).dir(&dir);
        setup.arg("--node-name").arg(name).start().await.unwrap()
    };
    let mut instances = [start("one").await, start("two").await];
    let urls = instances.each_ref().map(|instance| instance.url().to_owned());
    make_numbers(&urls[0]).await;
    let granted = Granted::default();
    for round in 0..20 {
        ask_for_all(&urls[round % 2], &granted, &WELL).await;
    }
    run_as_documented("schema=", folder.path(), database.url());
    for round in 0..60 {
        ask_for_all(&urls[round % 2], &granted, &WELL).await;
    }
    late_has(&urls[0], 3).await;
    for kind in [SIGNERS[0], "snowflake", "segments/order", "sequences/invoice"] {
        assert!(granted.count(kind) >= 1_000, "{kind}: {}", granted.count(kind));
    }
    // Long enough that the position has risen since.
    tokio::time::sleep(Duration::from_secs(1)).await;
    run_as_documented("tail ", folder.path(), database.url());
    // From now on nothing that the ledger grants. Until the next look an instance gives ids that it had in memory, which
    // nobody else has been given.
    let gone = [
        "ledger_went_back",
        "ledger_unavailable",
        "fenced",
        "not_owner",
        "lease_held",
        "clock_behind",
        "internal",
    ];
    let restored = Instant::now();
    while restored.elapsed() < Duration::from_secs(3) {
        for url in &urls {
            let kinds = kinds_granted(url, &granted, &gone).await;
            let is_known = restored.elapsed() > Duration::from_secs(1);
            let from_memory =
                |kind: &String| !is_known && ["snowflake", "segments/order"].contains(&kind.as_str());
            assert!(kinds.iter().all(from_memory), "{kinds:?} granted by a ledger that went back");
        }
    }
    for url in &urls {
        until("it is noticed", async || ready_code(url).await == "ledger_went_back").await;
        assert_eq!(went_back_shown(url).await, "1", "{url}");
    }
    // An instance that starts with what it remembers refuses as well.
    instances[1].process().signal(Signal::Kill).unwrap();
    let status = instances[1].ended(testkit::PATIENCE).await.unwrap();
    assert!(!status.success());
    let starting = instances[1].launch().unwrap();
    until("the restarted one refuses", async || {
        let asked = patient().request("GET", &format!("{}/readyz", urls[1]), None, None).await;
        asked.is_ok_and(|answer| answer.code() == "ledger_went_back")
    })
    .await;
    assert_eq!(went_back_shown(&urls[1]).await, "1", "the first scrape after a start shows it too");
    recovered(database.url(), folder.path()).await;
    instances[1].becomes_ready(starting).await.unwrap();
    for url in &urls {
        until("it serves again", async || matches!(ready_code(url).await.as_str(), "ready" | "degraded"))
            .await;
        assert_eq!(went_back_shown(url).await, "0", "{url}");
    }
    confirm_late(&urls[0], 3).await;
    confirm_all(&urls[0], &granted).await;
    confirm_nothing_more(&urls[1]).await;
}

/// A signer that grants again has nothing to confirm.
async fn confirm_nothing_more(url: &str) {
    let path = format!("{url}/v1/signers/a/confirm");
    let answer = patient().request("POST", &path, None, Some(&json!({"next_nonce": 0}))).await.unwrap();
    assert_eq!((answer.status, answer.code()), (409, "conflict"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovered_ledger_from_before_the_clusters_secret_gets_it_from_the_instances() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let start =
        async || Setup::in_mode("worker-queue").unwrap().database(database.url()).start().await.unwrap();
    let mut instances = [start().await, start().await];
    let urls = instances.each_ref().map(|instance| instance.url().to_owned());
    let secret = || database.query("SELECT value FROM setting WHERE name = 'cluster-secret'").unwrap();
    let before = secret();
    assert_eq!(before.len(), 1);
    database.query("DELETE FROM setting WHERE name = 'cluster-secret'").unwrap();
    database.query("UPDATE ledger_identity SET position = position - 1000").unwrap();
    for url in &urls {
        until("it is noticed", async || ready_code(url).await == "ledger_went_back").await;
    }
    recovered(database.url(), folder.path()).await;
    until("the secret is there again", async || secret() == before).await;
    let ended = instances[1].end_by(Signal::Terminate, testkit::PATIENCE).await.unwrap();
    assert_eq!(ended.code(), Some(0));
    instances[1].start().await.unwrap();
    let ask = async |url: &str, signer: &str, what: &str, body: Option<&Value>| {
        let path = format!("{url}/v1/signers/{signer}/{what}");
        patient().request("POST", &path, None, body).await.unwrap().status
    };
    for signer in SIGNERS {
        let first = json!({"next_nonce": 0});
        until("the signer is confirmed", async || {
            ask(&urls[0], signer, "confirm", Some(&first)).await == 200
        })
        .await;
    }
    // One of the two instances forwards each of them.
    until("both instances grant nonces of all signers", async || {
        for (url, signer) in urls.iter().flat_map(|url| SIGNERS.map(|signer| (url, signer))) {
            if ask(url, signer, "nonces", None).await != 201 {
                return false;
            }
        }
        true
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_granted_twice_after_a_file_was_put_back() {
    let folder = tempfile::tempdir().unwrap();
    let start = async || -> Instance {
        Setup::in_mode("worker-queue").unwrap().dir(folder.path()).start().await.unwrap()
    };
    let stop = async |mut instance: Instance| {
        assert_eq!(instance.end_by(Signal::Terminate, testkit::PATIENCE).await.unwrap().code(), Some(0));
    };
    let granted = Granted::default();
    let first = start().await;
    make_numbers(first.url()).await;
    let (used, unused) = (open_session(first.url()).await, open_session(first.url()).await);
    take_place(first.url(), &granted, &used).await;
    for _ in 0..5 {
        ask_for_all(first.url(), &granted, &WELL).await;
    }
    let (file, copy) = (folder.path().join("fencepost-data/ledger.db"), folder.path().join("copy"));
    for (path, mode) in [(file.as_path(), 0o600), (file.parent().unwrap(), 0o700)] {
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
    }
    // While the daemon writes, which never delays the copy for ever.
    let backup =
        async || Setup::command("backup").arg("copy").dir(folder.path()).run_to_end(testkit::PATIENCE).await;
    let (made, _) = tokio::join!(backup(), ask_for_all(first.url(), &granted, &WELL));
    let made = made.unwrap();
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(backup().await.unwrap().code, Some(78), "a copy is never overwritten");
    stop(first).await;
    let second = start().await;
    for _ in 0..20 {
        ask_for_all(second.url(), &granted, &WELL).await;
        for session in [&used, &unused] {
            take_place(second.url(), &granted, session).await;
        }
    }
    late_has(second.url(), 3).await;
    stop(second).await;
    let data = file.parent().unwrap();
    std::fs::copy(&copy, data.join("restored.db")).unwrap();
    run_as_documented("mkdir before ", data, "");
    let refused = Setup::in_mode("worker-queue").unwrap().dir(folder.path());
    let ended = refused.run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(78), "{ended:?}");
    assert!(ended.stderr.contains("fencepost recover --confirm"), "{ended:?}");
    recovered("sqlite:./fencepost-data/ledger.db", folder.path()).await;
    let third = start().await;
    confirm_late(third.url(), 3).await;
    confirm_all(third.url(), &granted).await;
    for session in [&used, &unused] {
        take_place(third.url(), &granted, session).await;
    }
    stop(third).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_from_just_before_a_stop_is_behind_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    let setup = || Setup::basic().unwrap().dir(folder.path());
    let mut instance = setup().start().await.unwrap();
    let backup = Setup::command("backup").arg("copy").dir(folder.path());
    let made = backup.run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(made.code, Some(0), "{made:?}");
    late_has(instance.url(), 1).await;
    assert_eq!(instance.end_by(Signal::Terminate, testkit::PATIENCE).await.unwrap().code(), Some(0));
    std::fs::copy(folder.path().join("copy"), folder.path().join("fencepost-data/ledger.db")).unwrap();
    let ended = setup().run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(78), "{ended:?}");
    assert!(ended.stderr.contains("fencepost recover --confirm"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_name_looks_like_a_uri_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let _instance = Setup::basic().unwrap().dir(folder.path()).start().await.unwrap();
    let backup = Setup::command("backup").arg("file:copy.db").dir(folder.path());
    let made = backup.run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(made.code, Some(0), "{made:?}");
    let copy = std::fs::read(folder.path().join("file:copy.db")).unwrap();
    assert!(copy.starts_with(b"SQLite format 3\0"), "{} bytes: {made:?}", copy.len());
    assert!(!folder.path().join("copy.db.partial").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_replaced_under_a_running_daemon_is_noticed_and_behind_at_the_next_start() {
    let folder = tempfile::tempdir().unwrap();
    // A reader that is opened later would open the other file.
    let setup = || Setup::basic().unwrap().dir(folder.path()).env("FENCEPOST__LEDGER__CONNECTIONS_MAX", "2");
    let mut instance = setup().start().await.unwrap();
    let url = instance.url().to_owned();
    let backup = Setup::command("backup").arg("copy").dir(folder.path());
    let made = backup.run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(made.code, Some(0), "{made:?}");
    late_has(&url, 1).await;
    std::fs::rename(folder.path().join("copy"), folder.path().join("fencepost-data/ledger.db")).unwrap();
    until("it is noticed", async || ready_code(&url).await == "ledger_went_back").await;
    let refused = grant_to_late(&url).await;
    assert_eq!(refused.code(), "ledger_went_back", "{}", refused.text);
    assert_eq!(instance.end_by(Signal::Terminate, testkit::PATIENCE).await.unwrap().code(), Some(0));
    let ended = setup().run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(78), "{ended:?}");
    assert!(ended.stderr.contains("fencepost recover --confirm"), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_daemon_whose_file_is_replaced_accepts_and_commits_nothing_on_open_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let shape = |setup: Setup| setup.dir(folder.path()).env("FENCEPOST__SERVER__DRAIN_TIMEOUT_MS", "1000");
    let rig = Rig::alone_and(shape).await;
    let mut hand = Hand::greeted(&rig, 0, "n", json!([])).await;
    let id = rig.submit(0, echo(1)).await;
    let given = hand.given().await;
    let session = open_session(&rig.urls[0]).await;
    let mut talk = Talk::open(&rig, 0, &session, None).await;
    talk.job("before", echo(2)).await;
    assert_eq!(talk.next().await["type"], "accepted");
    let backup = Setup::command("backup").arg("copy").dir(folder.path());
    let made = backup.run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(made.code, Some(0), "{made:?}");
    let [file, kept, copy] =
        ["fencepost-data/ledger.db", "kept", "copy"].map(|name| folder.path().join(name));
    std::fs::rename(&file, &kept).unwrap();
    std::fs::rename(&copy, &file).unwrap();
    until("it is noticed", async || ready_code(&rig.urls[0]).await == "ledger_went_back").await;
    hand.say(done(&given, 1)).await;
    talk.job("after", echo(3)).await;
    let refused = tokio::select! {
        refused = talk.next() => refused,
        () = hand.beat() => unreachable!("it never comes back"),
    };
    assert_eq!(refused["type"], "problem", "{refused}");
    // It would have been answered long before.
    assert_eq!(hand.within(Duration::from_millis(100), "committed").await, None);
    drop((hand, talk));
    rig.end(0, Signal::Terminate).await;
    std::fs::rename(&kept, &file).unwrap();
    rig.instance(0).await.start().await.unwrap();
    assert_ne!(rig.job(0, &id).await["state"], "FINISHED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nodes_result_waits_while_the_ledger_counts_as_gone_back() {
    let rig = Rig::together(1).await;
    let mut hand = Hand::greeted(&rig, 0, "n", json!([])).await;
    rig.submit(0, echo(1)).await;
    let given = hand.given().await;
    let database = rig.database.as_ref().unwrap();
    database.query("UPDATE ledger_identity SET position = 0").unwrap();
    until("it is noticed", async || ready_code(&rig.urls[0]).await == "ledger_went_back").await;
    hand.say(done(&given, 1)).await;
    until("its commit was tried", async || {
        rig.instance(0).await.whole_log().contains("results wait for the ledger")
    })
    .await;
    let answer = tokio::time::timeout(Duration::from_millis(100), hand.any(&["committed", "stale"])).await;
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(database.query("SELECT count(*) FROM job").unwrap(), [["1"]], "it is unfinished");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ledger_that_goes_away_before_it_is_looked_at_ends_the_start_with_69() {
    let database = tokio::task::spawn_blocking(|| Database::fresh().unwrap()).await.unwrap();
    let migrated =
        Setup::command("migrate").database(database.url()).run_to_end(testkit::PATIENCE).await.unwrap();
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
    // The start gets as far as its first look.
    let lock = LockedTable::lock(&database, "ledger_identity", "ACCESS EXCLUSIVE").await;
    let setup = Setup::basic().unwrap().database(database.url());
    let setup = setup.env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "700");
    let ended = setup.run_to_end(testkit::PATIENCE).await;
    lock.free();
    let ended = ended.unwrap();
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(69), ""), "{}", ended.stderr);
}
