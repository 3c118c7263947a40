//! A pooler between the daemon and PostgreSQL: one that gives sessions serves, one that does not, or drops the URL's options, is
//! refused by name.

use testkit::PATIENCE;
use testkit::instance::Setup;
use testkit::servers::{Database, PgBouncer, PoolMode};

use crate::{Load, patient};

async fn behind(mode: PoolMode) -> (Database, PgBouncer) {
    behind_with(mode, "").await
}

/// The same where the pooler has these lines of configuration too.
async fn behind_with(mode: PoolMode, more: &'static str) -> (Database, PgBouncer) {
    let started = tokio::task::spawn_blocking(move || {
        let database = Database::fresh().unwrap();
        let pooler = PgBouncer::start_with(&database, mode, more).unwrap();
        (database, pooler)
    });
    started.await.unwrap()
}

async fn assert_refused(setup: Setup, words: &[&str]) {
    let ended = setup.run_to_end(PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(78), "{}", ended.stderr);
    for word in words {
        assert!(ended.stderr.contains(word), "{word:?} is not in: {}", ended.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_gives_sessions_serves() {
    let (database, pooler) = behind(PoolMode::Session).await;
    let instance = Setup::basic().unwrap().database(pooler.url()).start().await.unwrap();
    let mut load = Load::start(4, &[instance.url().to_owned()]);
    load.successes(100).await;
    load.stop().await;
    patient().get(&format!("{}/readyz", instance.url())).await.unwrap();
    let sessions = "select pid from pg_stat_activity where application_name like 'fencepost%'";
    assert!(!database.query(sessions).unwrap().is_empty(), "the sessions have names");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_gives_no_sessions_is_refused_with_78_and_nothing_is_created() {
    for mode in [PoolMode::Transaction, PoolMode::Statement] {
        let (database, pooler) = behind(mode).await;
        let words = ["transaction pooling", "pool_mode = session"];
        assert_refused(Setup::basic().unwrap().database(pooler.url()), &words).await;
        assert_refused(Setup::command("migrate").database(pooler.url()), &words).await;
        let tables = "select count(*) from pg_tables where schemaname = 'public'";
        assert_eq!(database.query(tables).unwrap(), [["0"]], "{mode:?}");
    }
}

/// Two instances of which one reaches the server by a pooler would each have a ledger, and grant the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_drops_the_options_of_the_url_is_refused_with_78_and_nothing_is_created() {
    let (database, pooler) =
        behind_with(PoolMode::Session, "ignore_startup_parameters = options, extra_float_digits").await;
    database.query("create schema aside").unwrap();
    for options in ["options[search_path]=aside", "options=-c%20search_path%3Daside"] {
        let url = format!("{}?{options}", pooler.url());
        let words = ["search_path = aside", "ignore_startup_parameters", "SET search_path = aside;"];
        assert_refused(Setup::basic().unwrap().database(&url), &words).await;
        assert_refused(Setup::command("migrate").database(&url), &words).await;
    }
    let tables =
        "select schemaname, count(*) from pg_tables where schemaname in ('public', 'aside') group by 1";
    assert!(database.query(tables).unwrap().is_empty());
    // Without the pooler they arrive, also where the server writes a value in another way.
    let direct = format!("{}?options[search_path]=aside&options[work_mem]=8192", database.url());
    drop(Setup::basic().unwrap().database(&direct).start().await.unwrap());
    assert_eq!(database.query(tables).unwrap()[0][0], "aside");
    // Fencepost's sessions have their own limits whatever becomes of these.
    let limited = format!("{}?options[statement_timeout]=5000", pooler.url());
    drop(Setup::basic().unwrap().database(&limited).start().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_with_one_connection_is_named_as_what_may_have_none_left() {
    let (_database, pooler) = behind_with(PoolMode::Session, "default_pool_size = 1").await;
    let setup = Setup::basic().unwrap().env("FENCEPOST__LEDGER__CONNECT_TIMEOUT_MS", "3000");
    let ended = setup.database(pooler.url()).run_to_end(PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(69), "{}", ended.stderr);
    assert!(ended.stderr.contains("default_pool_size"), "{}", ended.stderr);
    let (_database, pooler) = behind_with(PoolMode::Transaction, "default_pool_size = 1").await;
    assert_refused(Setup::basic().unwrap().database(pooler.url()), &["transaction pooling"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_that_gives_sessions_as_they_were_left_is_refused_with_78() {
    let (_database, pooler) = behind_with(PoolMode::Session, "server_reset_query =").await;
    let migrate = || Setup::command("migrate").database(pooler.url());
    let first = migrate().run_to_end(PATIENCE).await.unwrap();
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert_refused(migrate(), &["server_reset_query = DISCARD ALL"]).await;
}
