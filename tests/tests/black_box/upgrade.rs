//! Two releases on one ledger: instances are replaced one by one, and put back; and what a start does with older and newer
//! tables.

use futures_util::future::join_all;
use loadtest::report::Report as _;
use loadtest::scenario::job_faults::upgrade::{Plan, run};
use serde_json::{Value, json};
use testkit::PATIENCE;
use testkit::instance::{Setup, binary, last_release};
use testkit::servers::{Database, Redis};
use tokio::task::spawn_blocking;

use crate::jobs::rig::Rig;
use crate::jobs::session_client::{open, settled};
use crate::patient;

async fn database() -> Database {
    spawn_blocking(Database::fresh).await.unwrap().unwrap()
}

/// The last release is replaced by this one, instance by instance, and put back; `shape` changes how.
async fn replaced_and_put_back(shape: impl Fn(Plan) -> Plan) {
    let seed = std::env::var("FENCEPOST_SEED").ok().and_then(|seed| seed.parse().ok());
    // Long enough that a busy machine finds no instance dead.
    let plan = shape(Plan {
        env: vec![("FENCEPOST__LEASE__INSTANCE_MS".to_owned(), "5000".to_owned())],
        ..Plan::new(last_release().unwrap(), binary().unwrap())
    });
    let plan = Plan { seed: seed.unwrap_or(plan.seed), ..plan };
    eprintln!("FENCEPOST_SEED={}", plan.seed);
    let report = run(&plan, |index, to| eprintln!("instance {index} becomes {to}")).await.unwrap();
    eprintln!("{}", report.table());
    assert_eq!(report.violations, Vec::<String>::new(), "FENCEPOST_SEED={}", plan.seed);
    // Otherwise nothing was tried: one more new binary with each step, and one less.
    let [first, .., last] = &report.versions[..] else { panic!("no steps") };
    assert_eq!(first, last, "the instances run the last release again");
    let new = |versions: &Vec<String>| versions.iter().filter(|version| **version != first[0]).count();
    let counts: Vec<_> = report.versions.iter().map(new).collect();
    let expected: Vec<_> = (0..=plan.instances).chain((0..plan.instances).rev()).collect();
    assert_eq!(counts, expected, "{:?}", report.versions);
    assert!(report.jobs["succeeded"] >= 20, "{:?}", report.jobs);
    assert_eq!(report.ids.len(), 3, "{:?}", report.ids);
    assert!(report.plans["SUCCEEDED"] > 0, "{:?}", report.plans);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_promise_holds_while_the_last_release_is_replaced_by_this_one_and_put_back() {
    replaced_and_put_back(|plan| plan).await;
}

/// With tokens, instances of two releases forward nothing to each other: clients follow the owner's address.
#[tokio::test(flavor = "multi_thread")]
async fn every_promise_holds_with_tokens_while_releases_are_replaced_and_put_back() {
    replaced_and_put_back(|plan| Plan { tokens: true, instances: 2, ..plan }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_keyed_batch_that_the_last_release_forwards_in_parts_is_accepted_once() {
    let rig = Rig::beside_the_last_release().await;
    settled(&rig).await;
    let (old, new) = (0, 1);
    let (mut jobs, there) = (Vec::new(), json!(rig.urls[new]));
    while jobs.len() < 2 {
        let session = open(&rig, old, json!({})).await;
        if rig.get(old, &format!("/v1/cluster/owner/session:{session}")).await["url"] == there {
            // Due long after the test.
            jobs.push(json!({ "payload": 1, "session": session, "delay_ms": 3_600_000 }));
        }
    }
    let batch = json!({ "jobs": jobs });
    let submit = async |index: usize| {
        rig.ask_owner(index, "/v1/jobs/batch", Some(&batch), &[("idempotency-key", "k")]).await
    };
    let first = submit(old).await;
    let is_accepted = |result: &Value| result["id"].is_string();
    assert!(first.body["results"].as_array().unwrap().iter().all(is_accepted), "{}", first.text);
    for index in [new, old] {
        let again = submit(index).await;
        assert_eq!(again.body["results"], first.body["results"], "{}", again.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_may_not_migrate_is_refused_with_78_on_older_tables_and_serves_on_current_ones() {
    let database = database().await;
    let setup = || Setup::basic().unwrap().database(database.url()).arg("--migrate").arg("check");
    let sqlite = || Setup::basic().unwrap().env("FENCEPOST__LEDGER__MIGRATE", "check");
    for refused in [setup(), sqlite()] {
        let ended = refused.run_to_end(PATIENCE).await.unwrap();
        assert_eq!(ended.code, Some(78), "{}", ended.stderr);
        assert!(ended.stderr.contains("`fencepost migrate`"), "{}", ended.stderr);
    }
    let tables = "select count(*) from pg_tables where schemaname = 'public'";
    assert_eq!(database.query(tables).unwrap(), [["0"]]);
    let migrated = Setup::command("migrate").database(database.url()).run_to_end(PATIENCE).await.unwrap();
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
    let instance = setup().start().await.unwrap();
    patient().get(&format!("{}/readyz", instance.url())).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_brings_the_tables_up_to_date_says_so_before_and_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let migrate = Setup::command("migrate").binary(&last_release().unwrap()).dir(dir.path());
    let migrated = migrate.run_to_end(PATIENCE).await.unwrap();
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
    let mut instance = Setup::basic().unwrap().dir(dir.path()).start().await.unwrap();
    let lines =
        ["the tables are older than this binary and are brought up to date", "the tables are up to date"];
    let log = instance.whole_log();
    let told = lines.map(|line| log.find(line));
    assert!(told[0].is_some() && told[0] < told[1] && log.contains("the migrations 14, 15"), "{log}");
    instance.start().await.unwrap();
    let log = instance.whole_log();
    assert_eq!(lines.map(|line| log.matches(line).count()), [1, 1], "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_word_that_says_neither_auto_nor_check_is_refused_with_78() {
    let ended = Setup::basic().unwrap().arg("--migrate").arg("maybe").run_to_end(PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(78), "{}", ended.stderr);
    for word in ["ledger.migrate", "maybe", "--migrate", "auto or check"] {
        assert!(ended.stderr.contains(word), "{word:?} is not in: {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_release_goes_on_with_what_its_connections_had_prepared_when_columns_are_added() {
    let database = database().await;
    let redis = spawn_blocking(Redis::start).await.unwrap().unwrap();
    let setup = Setup::basic().unwrap().database(database.url()).arg("--redis-url").arg(&redis.url());
    let old = setup.binary(&last_release().unwrap()).start().await.unwrap();
    let http = patient();
    let sessions = format!("{}/v1/sessions", old.url());
    let opened = http.request("POST", &sessions, None, Some(&json!({}))).await.unwrap();
    assert_eq!(opened.status, 201, "{}", opened.text);
    let session = format!("{sessions}/{}", opened.body["id"].as_str().unwrap());
    let reads = async || join_all((0..100).map(|_| http.request("GET", &session, None, None))).await;
    for answer in reads().await {
        assert_eq!(answer.unwrap().status, 200);
    }
    let migrated = Setup::command("migrate").database(database.url()).run_to_end(PATIENCE).await.unwrap();
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
    for answer in reads().await {
        let answer = answer.unwrap();
        assert!([200, 503].contains(&answer.status), "{}", answer.text);
    }
    assert!(reads().await.into_iter().all(|answer| answer.unwrap().status == 200));
}

#[tokio::test(flavor = "multi_thread")]
async fn this_release_and_the_last_one_serve_on_tables_that_a_newer_one_added_to() {
    let database = database().await;
    let migrated = Setup::command("migrate").database(database.url()).run_to_end(PATIENCE).await.unwrap();
    assert_eq!(migrated.code, Some(0), "{}", migrated.stderr);
    for addition in [
        "alter table job add column from_the_future text",
        "create table from_the_future (a bigint)",
        "insert into schema_migration (version, description, success, checksum, execution_time) \
         values (9999, 'from the future', true, '', 0)",
    ] {
        database.query(addition).unwrap();
    }
    let setup = || Setup::basic().unwrap().database(database.url());
    let old = setup().binary(&last_release().unwrap()).start().await.unwrap();
    let new = setup().start().await.unwrap();
    for instance in [&old, &new] {
        let url = format!("{}/v1/signers/s/nonces", instance.url());
        let granted = patient().request("POST", &url, None, None).await.unwrap();
        assert_eq!(granted.status, 201, "{}", granted.text);
    }
    assert!(new.log().contains("newer than this binary"), "{}", new.log());
    database.query("insert into setting values ('schema.readable_from', 1, '9999', now())").unwrap();
    let refused = setup().run_to_end(PATIENCE).await.unwrap();
    assert_eq!(refused.code, Some(78), "{}", refused.stderr);
    assert!(refused.stderr.contains("newer") && refused.stderr.contains("9999"), "{}", refused.stderr);
}
