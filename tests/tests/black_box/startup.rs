//! From the command line to the ready line, or to an exit code that says why not.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use testkit::PATIENCE;
use testkit::fleet::Fleet;
use testkit::instance::{Ended, Ready, Setup};
use testkit::ports;
use testkit::process::Signal;
use testkit::servers::{Database, Postgres};

use crate::{patient, until};

/// What the log says of settings under which commits may be lost.
const MAY_LOSE_COMMITS: &str = "the database is not set to keep all commits";
/// What the log says of the first start on a folder or a database.
const NEW_LEDGER: &str = "there is no ledger, and a new one is made";

async fn database() -> Database {
    tokio::task::spawn_blocking(Database::fresh).await.unwrap().unwrap()
}

/// The refusal is a code and a message that has all these words.
fn assert_refused(ended: &Ended, code: i32, words: &[&str]) {
    assert_eq!(ended.code, Some(code), "{}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "{word:?} is not in: {}", ended.stderr);
    }
    assert_eq!(ended.stdout, "", "nothing was ready");
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_with_nothing_said_runs_on_sqlite_in_its_directory() {
    let listen = format!("127.0.0.1:{}", ports::free().unwrap());
    let instance = Setup::bare().env("FENCEPOST_LISTEN", &listen).start().await.unwrap();
    let ready = instance.ready();
    assert_eq!(ready.url, format!("http://{listen}"));
    assert_eq!(ready.ledger, "sqlite");
    assert!(instance.dir().join("fencepost-data/ledger.db").is_file());
    let lines: Vec<String> = instance.stdout().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 1, "one line goes to standard output, logs do not: {lines:?}");
    assert_eq!(&Ready::parse(&lines[0]).unwrap(), ready);
    let granted =
        patient().request("POST", &format!("{}/v1/signers/a/nonces", ready.url), None, None).await.unwrap();
    assert_eq!(
        (granted.status, &granted.body["owner"]),
        (201, &ready.instance.as_str().into()),
        "{}",
        granted.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_option_beats_the_environment_beats_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let address = |port: u16| format!("127.0.0.1:{port}");
    let [by_file, by_variable, by_option] = [(); 3].map(|()| address(ports::free().unwrap()));
    let file = dir.path().join("fencepost.toml");
    std::fs::write(&file, format!("[server]\nlisten = \"{by_file}\"\n")).unwrap();
    let setup = || Setup::bare().arg("--config").arg(file.to_str().unwrap());
    let url = |address: &str| format!("http://{address}");
    assert_eq!(setup().start().await.unwrap().url(), url(&by_file));
    let setup = || setup().env("FENCEPOST_LISTEN", &by_variable);
    assert_eq!(setup().start().await.unwrap().url(), url(&by_variable));
    assert_eq!(setup().arg("--listen").arg(&by_option).start().await.unwrap().url(), url(&by_option));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_daemon_on_the_same_sqlite_file_is_refused_with_the_first_ones_pid() {
    let first = Setup::basic().unwrap().start().await.unwrap();
    let second = Setup::basic().unwrap().dir(first.dir()).run_to_end(PATIENCE).await.unwrap();
    let pid = first.process().pid().to_string();
    assert_refused(&second, 78, &[pid.as_str()]);
    let by_uri = Setup::basic().unwrap().dir(first.dir()).database("sqlite:file:fencepost-data/ledger.db");
    let ended = by_uri.run_to_end(PATIENCE).await.unwrap();
    assert_refused(&ended, 78, &["sqlite:file:fencepost-data/ledger.db", "by its path"]);
    let folder = first.dir().join("fencepost-data");
    std::fs::hard_link(folder.join("ledger.db"), folder.join("other.db")).unwrap();
    let by_link = Setup::basic().unwrap().dir(first.dir()).database("sqlite:fencepost-data/other.db");
    let ended = by_link.run_to_end(PATIENCE).await.unwrap();
    assert_refused(&ended, 78, &["fencepost-data/other.db", "2 names (hard links)"]);
    patient().get(&format!("{}/readyz", first.url())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_of_open_files_that_leaves_no_room_for_callers_is_refused() {
    let database = database().await;
    let on_sqlite = || Setup::basic().unwrap();
    let on_postgres = || on_sqlite().database(database.url());
    let refused = async |setup: Setup, limit: u32, least: &str| {
        let ended = setup.descriptors(limit).run_to_end(PATIENCE).await.unwrap();
        let shown = format!("open files is {limit}");
        assert_refused(&ended, 78, &[shown.as_str(), least, "ulimit", "LimitNOFILE"]);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    };
    // Also where the runtime would not have enough. Each time the limit that is enough is named.
    for limit in [16, 64, 383, 431] {
        refused(on_sqlite(), limit, "needs 432 at least").await;
    }
    for limit in [64, 399] {
        refused(on_postgres(), limit, "needs 400 at least").await;
    }
    for (setup, limit) in [(on_sqlite(), 432), (on_postgres(), 400)] {
        let instance = setup.descriptors(limit).start().await.unwrap();
        patient().get(&format!("{}/readyz", instance.url())).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_that_cannot_be_meant_stops_the_start_with_78() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let unknown = file("unknown.toml", "[lease]\nsignor_ms = 15000\n");
    let range = file("range.toml", "[lease]\nsigner_ms = 12\n");
    let broken = file("broken.toml", "[lease\n");
    let kind = file("kind.toml", "[lease]\nsigner_ms = \"long\"\n");
    let setup = || Setup::basic().unwrap();
    let cases: Vec<(Setup, &[&str])> = vec![
        (setup().arg("--config").arg(&unknown), &["lease.signor_ms", "15000", "signer_ms"]),
        (setup().arg("--config").arg(&range), &["lease.signer_ms", "12", "1000 to 300000"]),
        (setup().arg("--config").arg(&kind), &["lease.signer_ms", "long"]),
        (setup().arg("--config").arg(&broken), &["broken.toml"]),
        (setup().arg("--config").arg("nowhere.toml"), &["nowhere.toml"]),
        (setup().env("FENCEPOST__LEASE__SIGNER_MS", "0"), &["lease.signer_ms", "0", "1000 to 300000"]),
        (setup().env("FENCEPOST__LEASE__LENGTH", "7"), &["lease.length", "7"]),
        (setup().env("FENCEPOST__NOWHERE__KEY", "7"), &["nowhere.key", "7"]),
        (Setup::bare().arg("--listen").arg("somewhere"), &["server.listen", "somewhere"]),
        (setup().arg("--database-url").arg("mysql://x/y"), &["ledger.url", "mysql", "postgres://"]),
    ];
    for (setup, words) in cases {
        assert_refused(&setup.run_to_end(PATIENCE).await.unwrap(), 78, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ids_file_with_something_else_in_it_stops_the_start_and_a_check_and_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "keep me\n").unwrap();
    std::os::unix::fs::symlink(&text, dir.path().join("link")).unwrap();
    for (file, why) in [
        ("./notes.txt", "something else than a worker number"),
        ("link", "a symbolic link"),
        ("l.db", "a file of its own"),
        ("l.db-wal", "a file of its own"),
    ] {
        for setup in [Setup::basic().unwrap(), Setup::command("check-config")] {
            let setup = setup.dir(dir.path()).env("FENCEPOST_DATABASE_URL", "sqlite:./l.db");
            let ended = setup.env("FENCEPOST__IDS__FILE", file).run_to_end(PATIENCE).await.unwrap();
            assert_refused(&ended, 78, &["ids.file", file, why]);
        }
    }
    assert_eq!(std::fs::read_to_string(&text).unwrap(), "keep me\n");
    assert!(!dir.path().join("l.db").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tokens_only_loopback_is_served() {
    for address in ["0.0.0.0:0", "[::]:0", "10.1.2.3:7070"] {
        let ended = Setup::bare().arg("--listen").arg(address).run_to_end(PATIENCE).await.unwrap();
        assert_refused(&ended, 78, &["server.listen", address, "auth.tokens"]);
    }
    for url in [
        "http://fencepost.example",
        "https://10.1.2.3:7070",
        "http://localhost.example",
        "http://[2001:db8::1]",
    ] {
        let ended = Setup::basic().unwrap().arg("--advertise").arg(url).run_to_end(PATIENCE).await.unwrap();
        assert_refused(&ended, 78, &["server.advertise", url, "auth.tokens"]);
    }
    for url in ["http://localhost:1", "http://127.9.9.9", "http://[::1]:7070"] {
        Setup::basic().unwrap().arg("--advertise").arg(url).start().await.unwrap();
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fencepost.toml");
    let tokens = "[[auth.tokens]]\nname = \"t\"\ntoken = \"s3cret\"\nscopes = [\"submit\"]\n";
    std::fs::write(&file, tokens).unwrap();
    let setup = Setup::basic().unwrap().arg("--config").arg(file.to_str().unwrap());
    let setup = setup.arg("--advertise").arg("https://fencepost.example");
    let instance = setup.start().await.unwrap();
    assert!(!instance.whole_log().contains("s3cret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_that_is_taken_stops_the_start() {
    let first = Setup::basic().unwrap().start().await.unwrap();
    let address = first.url().strip_prefix("http://").unwrap();
    let ended = Setup::bare().arg("--listen").arg(address).run_to_end(PATIENCE).await.unwrap();
    assert_refused(&ended, 69, &[address]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_postgresql_that_cannot_be_reached_ends_the_start_with_69() {
    let nobody = format!("postgres://fencepost:hunter2@127.0.0.1:{}/x", ports::free().unwrap());
    let setup = Setup::basic().unwrap().database(&nobody).env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "700");
    let began = Instant::now();
    let ended = setup.run_to_end(PATIENCE).await.unwrap();
    let named = format!("The ledger is {} (ledger.url).", nobody.replace("hunter2", "***"));
    assert_refused(&ended, 69, &[named.as_str()]);
    assert!(began.elapsed() >= Duration::from_millis(650), "it is waited for: {:?}", began.elapsed());
    assert!(!ended.stderr.contains("hunter2"), "a password was logged: {}", ended.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_instances_starting_at_once_on_an_empty_database_migrate_it_safely() {
    let fleet = Fleet::on(database().await, "basic", 4, |setup| setup).await.unwrap();
    fleet.all_ready(&patient(), PATIENCE).await.unwrap();
    let cluster = patient().get(&format!("{}/v1/cluster", fleet.urls()[0])).await.unwrap();
    let mut names = Vec::new();
    for index in 0..4 {
        names.push(fleet.instance(index).await.ready().instance.clone());
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 4, "every incarnation has a name of its own: {cluster}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_newer_than_the_binary_is_refused() {
    let database = database().await;
    let setup = || Setup::basic().unwrap().database(database.url());
    let mut instance = setup().start().await.unwrap();
    instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    database
        .query(
            "insert into _sqlx_migrations (version, description, success, checksum, execution_time) \
             values (999999, 'of the future', true, '\\x00', 0)",
        )
        .unwrap();
    for setup in [setup(), Setup::command("migrate").database(database.url())] {
        let ended = setup.run_to_end(PATIENCE).await.unwrap();
        assert_refused(&ended, 78, &["newer", "999999"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_may_lose_commits_is_served_with_a_warning() {
    let database = database().await;
    let (_, name) = database.url().rsplit_once('/').unwrap();
    database.query(&format!("ALTER DATABASE \"{name}\" SET synchronous_commit = off")).unwrap();
    let instance = Setup::basic().unwrap().database(database.url()).start().await.unwrap();
    let ready = patient().request("GET", &format!("{}/readyz", instance.url()), None, None).await.unwrap();
    assert_eq!((ready.status, &ready.body["status"]), (200, &"degraded".into()), "{}", ready.text);
    let ledger = &ready.body["checks"]["ledger"];
    let detail = "synchronous_commit is off by default, should be on: Fencepost sets it on in its own sessions, but what others \
                  commit to the database may be lost";
    assert_eq!((&ledger["status"], &ledger["detail"]), (&"warn".into(), &detail.into()), "{}", ready.text);
    until("the log says so", async || instance.whole_log().contains(MAY_LOSE_COMMITS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_to_lose_commits_while_an_instance_runs_is_told_of_once() {
    let server = tokio::task::spawn_blocking(|| Postgres::start().map(Arc::new)).await.unwrap().unwrap();
    let database = server.database().unwrap();
    let instance = Setup::basic().unwrap().database(database.url()).start().await.unwrap();
    let is_ledger = async |status: &str| {
        let readyz = format!("{}/readyz", instance.url());
        let ready = patient().request("GET", &readyz, None, None).await.unwrap();
        ready.body["checks"]["ledger"]["status"] == status
    };
    let times_told = || instance.whole_log().matches(MAY_LOSE_COMMITS).count();
    let set = |change: &str| {
        for statement in [change, "SELECT pg_reload_conf()"] {
            server.query(statement).unwrap();
        }
    };
    assert!(is_ledger("ok").await && times_told() == 0);
    set("ALTER SYSTEM SET synchronous_commit = off");
    // Also where nobody asks for `/readyz`.
    until("the log says so", async || times_told() == 1).await;
    until("it is seen", async || is_ledger("warn").await).await;
    set("ALTER SYSTEM RESET synchronous_commit");
    until("it is seen to be mended", async || is_ledger("ok").await).await;
    let mended = "the database is set to keep all commits again";
    until("the log says so", async || instance.whole_log().contains(mended)).await;
    assert_eq!(times_told(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn doubtful_settings_are_told_of_by_a_start_and_by_check_config() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("fencepost.toml");
    std::fs::write(&file, "[ledger]\nurl = \"postgres://u:s3cret@localhost/one\"\n").unwrap();
    let shape = |setup: Setup| {
        let setup = setup.arg("--config").arg(file.to_str().unwrap());
        let setup = setup.env("FENCEPOST__NONCE__KEY_RETENTION_MS", "59999");
        setup.env("FENCEPOST_DATABASE_URL", "sqlite:./other.db")
    };
    let has_all = |log: &str| {
        let said =
            ["FENCEPOST_DATABASE_URL names another ledger", "nonce.key_retention_ms (59999) is shorter"];
        said.iter().all(|said| log.contains(said))
    };
    let instance = shape(Setup::basic().unwrap()).start().await.unwrap();
    assert_eq!(instance.ready().ledger, "sqlite");
    until("the log says so", async || has_all(&instance.whole_log())).await;
    assert!(!instance.whole_log().contains("s3cret"));
    let checked = shape(Setup::command("check-config")).run_to_end(PATIENCE).await.unwrap();
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    assert!(has_all(&checked.stderr) && !checked.stderr.contains("s3cret"), "{}", checked.stderr);
}

/// The SQL that a refused start names.
fn sql_of(ended: &Ended) -> String {
    let lines =
        ended.stderr.lines().skip_while(|line| !line.contains("As a superuser of the server:")).skip(1);
    lines.map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_role_or_database_and_a_schema_without_rights_end_the_start_with_the_sql_that_mends_them() {
    let database = database().await;
    let role = format!("starter_{}", std::process::id());
    let (head, name) = database.url().rsplit_once('/').unwrap();
    let (scheme, rest) = head.split_once("://").unwrap();
    let host = rest.rsplit('@').next().unwrap();
    let missing = format!("{name}_missing");
    let url = |name: &str| format!("{scheme}://{role}@{host}/{name}");
    let serve = |name: &str| Setup::basic().unwrap().database(&url(name));
    let refused = async |name: &str, words: &[&str]| {
        let migrated = Setup::command("migrate").database(&url(name)).run_to_end(PATIENCE).await.unwrap();
        assert_refused(&migrated, 78, words);
        let served = serve(name).run_to_end(PATIENCE).await.unwrap();
        assert_refused(&served, 78, words);
        served
    };
    let ended = refused(name, &["does not exist", "CREATE ROLE", "LOGIN", &role]).await;
    database.query(&sql_of(&ended).replace('…', "secret")).unwrap();
    let ended = refused(&missing, &["does not exist", "CREATE DATABASE", &missing, &role]).await;
    database.query(&sql_of(&ended)).unwrap();
    // Older servers let everybody create tables.
    database.query("REVOKE CREATE ON SCHEMA public FROM PUBLIC").unwrap();
    let ended = refused(name, &["GRANT USAGE, CREATE ON SCHEMA", &role]).await;
    let sql = sql_of(&ended);
    database.query(&sql).unwrap();
    let instance = serve(name).start().await.unwrap();
    assert_eq!(instance.ready().ledger, "postgres");
    drop(instance);
    // The database that the second SQL made is one to start on.
    serve(&missing).start().await.unwrap();
    for statement in [
        format!("DROP DATABASE \"{missing}\" WITH (FORCE)"),
        format!("REASSIGN OWNED BY \"{role}\" TO CURRENT_USER"),
        format!("DROP OWNED BY \"{role}\""),
        format!("DROP ROLE \"{role}\""),
    ] {
        database.query(&statement).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_of_the_tables_changes_nothing_and_says_what_is_missing() {
    let database = database().await;
    let check = async || {
        let setup = Setup::command("migrate").database(database.url()).arg("--check");
        setup.run_to_end(PATIENCE).await.unwrap()
    };
    assert_refused(&check().await, 78, &["the database has no tables of a ledger; run `fencepost migrate`"]);
    let tables = "select count(*) from pg_tables where schemaname = 'public'";
    assert_eq!(database.query(tables).unwrap(), [["0"]]);
    let migrated = Setup::command("migrate").database(database.url()).run_to_end(PATIENCE).await.unwrap();
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
    assert_eq!(check().await.code, Some(0));
    let newest = "delete from schema_migration where version = (select max(version) from schema_migration)";
    database.query(newest).unwrap();
    assert_refused(
        &check().await,
        78,
        &["older than this binary: they lack migration", "`fencepost migrate`"],
    );

    let dir = tempfile::tempdir().unwrap();
    let check = Setup::command("migrate").dir(dir.path()).arg("--check").run_to_end(PATIENCE).await.unwrap();
    assert_refused(&check, 78, &["there is no ledger"]);
    assert!(!dir.path().join("fencepost-data").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_another_ledger_than_the_expected_one_is_refused_and_makes_none() {
    let expecting =
        |dir: &Path, id: &str| Setup::basic().unwrap().dir(dir).env("FENCEPOST__LEDGER__EXPECTED_ID", id);
    let dir = tempfile::tempdir().unwrap();
    let mut instance = Setup::basic().unwrap().dir(dir.path()).start().await.unwrap();
    instance.end_by(Signal::Terminate, PATIENCE).await.unwrap();
    let witness = std::fs::read(dir.path().join("fencepost-data/witness")).unwrap();
    let witness: serde_json::Value = serde_json::from_slice(&witness).unwrap();
    let id = witness["cluster"].as_str().unwrap();
    let log = instance.whole_log();
    assert!(log.contains("ledger_id") && log.contains(id), "{log}");
    assert!(log.contains(NEW_LEDGER), "{log}");
    let other = "0".repeat(32);
    let ended = expecting(dir.path(), &other).run_to_end(PATIENCE).await.unwrap();
    assert_refused(&ended, 78, &[id, &other, "ledger.expected_id"]);
    let empty = tempfile::tempdir().unwrap();
    let ended = expecting(empty.path(), id).run_to_end(PATIENCE).await.unwrap();
    assert_refused(&ended, 78, &["there is no ledger", "ledger.expected_id"]);
    assert!(!empty.path().join("fencepost-data/ledger.db").exists());
    let log = expecting(dir.path(), id).start().await.unwrap().whole_log();
    assert!(!log.contains(NEW_LEDGER), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_makes_no_ledger_beside_another_program_does_not_say_that_it_makes_one() {
    let database = database().await;
    database.query("create table _sqlx_migrations (version bigint)").unwrap();
    let ended = Setup::basic().unwrap().database(database.url()).run_to_end(PATIENCE).await.unwrap();
    assert_refused(&ended, 78, &["Nothing was made"]);
    assert!(!format!("{ended:?}").contains(NEW_LEDGER), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sighup_ends_nothing_not_even_a_start_that_waits_for_its_ledger() {
    let nobody = format!("postgres://127.0.0.1:{}/x", ports::free().unwrap());
    let setup = Setup::basic().unwrap().database(&nobody);
    let waiting = setup.env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "60000").start_command().unwrap();
    until("it waits", async || waiting.log().contains("waiting for the ledger")).await;
    for _ in 0..3 {
        waiting.process().signal(Signal::Hangup).unwrap();
    }
    waiting.process().signal(Signal::Terminate).unwrap();
    let status = waiting.process().wait(PATIENCE).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", waiting.log());
    let told = waiting.log().matches("waiting for the ledger").count();
    assert_eq!(told, 1, "one line for one outage: {}", waiting.log());
}

/// The start waits for PostgreSQL or Redis for longer than a test is patient, and so would a request that waited for the start.
async fn serves_what_needs_neither(setup: Setup, [check, other]: [&str; 2]) {
    let url = format!("http://127.0.0.1:{}", ports::free().unwrap());
    let starting = setup
        .arg("--listen")
        .arg(url.strip_prefix("http://").unwrap())
        .env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "600000")
        .env("FENCEPOST__BUS__CONNECT_TIMEOUT_MS", "600000")
        .env("FENCEPOST__SERVER__REQUEST_TIMEOUT_MS", "300000")
        .start_command()
        .unwrap();
    until("it listens", async || {
        patient().request("GET", &format!("{url}/healthz"), None, None).await.is_ok()
    })
    .await;
    let get = async |path: &str| {
        patient().request("GET", &format!("{url}{path}"), None, None).await.unwrap_or_else(|error| {
            panic!("{path} is not answered while the start waits: {error:#}: {}", starting.log())
        })
    };
    for path in ["/metrics", "/v1/whoami", "/openapi.json", "/v1/ids/uuid"] {
        assert_eq!(get(path).await.status, 200, "{path}");
    }
    let why = format!("it waits for the {check}");
    for path in ["/v1/jobs", "/v1/cluster"] {
        let reply = get(path).await;
        assert_eq!((reply.status, reply.code()), (503, "ledger_unavailable"), "{path}: {}", reply.text);
        assert!(reply.retry_after.is_some() && reply.text.contains(&why), "{path}: {}", reply.text);
    }
    let ready = get("/readyz").await;
    assert_eq!(
        (ready.status, ready.code()),
        (503, format!("{check}_unavailable").as_str()),
        "{}",
        ready.text
    );
    assert!(ready.retry_after.is_some(), "the start goes on trying: {}", ready.text);
    let checks = &ready.body["checks"];
    assert_eq!(checks[check]["status"], "down", "{}", ready.text);
    assert!(checks[check]["detail"].as_str().unwrap().ends_with(&why), "no snowflakes: {}", ready.text);
    assert!(checks[other].is_null() && checks["snowflakes"]["status"] == "warn", "{}", ready.text);
    assert_eq!(starting.stdout(), "", "it is not ready");
    starting.process().signal(Signal::Terminate).unwrap();
    assert_eq!(starting.process().wait(PATIENCE).await.unwrap().code(), Some(0), "{}", starting.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_waits_for_postgresql_or_redis_serves_what_needs_neither_and_refuses_the_rest() {
    let nobody = |scheme: &str| format!("{scheme}://127.0.0.1:{}", ports::free().unwrap());
    let on_postgresql = Setup::bare().database(&format!("{}/x", nobody("postgres")));
    serves_what_needs_neither(on_postgresql, ["ledger", "bus"]).await;
    let on_redis = Setup::bare().arg("--redis-url").arg(&nobody("redis"));
    serves_what_needs_neither(on_redis, ["bus", "ledger"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_variable_of_fenceposts_stops_the_start_and_those_of_orchestrators_do_not() {
    let setup = Setup::basic().unwrap().env("FENCEPOST_LISTN", "127.0.0.1:7070");
    assert_refused(&setup.run_to_end(PATIENCE).await.unwrap(), 78, &["FENCEPOST_LISTN", "FENCEPOST_LISTEN"]);
    let setup = Setup::basic().unwrap().env("FENCEPOST_SERVICE_HOST", "10.0.0.1");
    let instance = setup.env("FENCEPOST_PORT_7070_TCP", "tcp://10.0.0.1:7070").start().await.unwrap();
    for path in ["/healthz", "/v1/cluster", "/v1/nodes/none", "/v1/none", "/openapi.json", "/v1/jobs"] {
        let reply = patient().request("GET", &format!("{}{path}", instance.url()), None, None).await.unwrap();
        assert!(reply.text.ends_with("}\n") && !reply.text.ends_with("\n\n"), "{path}: {:?}", reply.text);
    }
    // Clients of Leaf read a number and nothing else.
    let url = format!("{}/api/snowflake/get/key", instance.url());
    let leaf = patient().request("GET", &url, None, None).await.unwrap();
    assert!(leaf.status != 200 || leaf.text.bytes().all(|byte| byte.is_ascii_digit()), "{:?}", leaf.text);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_is_too_large_is_413_alone_and_in_a_batch() {
    let instance = Setup::basic().unwrap().start().await.unwrap();
    let large = "x".repeat(1 << 20);
    let post = async |path: &str, body: serde_json::Value| {
        patient().request("POST", &format!("{}{path}", instance.url()), None, Some(&body)).await.unwrap()
    };
    let one = post("/v1/jobs", serde_json::json!({"payload": large})).await;
    assert_eq!((one.status, one.code()), (413, "too_large"), "{:.300}", one.text);
    assert!(one.text.contains("1048576 bytes"), "{:.300}", one.text);
    let batch = post("/v1/jobs/batch", serde_json::json!({"jobs": [{"payload": large}]})).await;
    assert_eq!(
        (batch.status, &batch.body["results"][0]["code"]),
        (202, &"too_large".into()),
        "{:.300}",
        batch.text
    );
}
