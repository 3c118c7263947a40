//! A pooler between the daemon and PostgreSQL: one that gives sessions serves, one that does not is refused by name.

use testkit::PATIENCE;
use testkit::instance::Setup;
use testkit::servers::{Database, PgBouncer, PoolMode};

use crate::{Load, patient};

async fn behind(mode: PoolMode) -> (Database, PgBouncer) {
    let started = tokio::task::spawn_blocking(move || {
        let database = Database::fresh().unwrap();
        let pooler = PgBouncer::start(&database, mode).unwrap();
        (database, pooler)
    });
    started.await.unwrap()
}

async fn assert_refused(setup: Setup) {
    let ended = setup.run_to_end(PATIENCE).await.unwrap();
    assert_eq!(ended.code, Some(78), "{}", ended.stderr);
    for word in ["transaction pooling", "pool_mode = session"] {
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
        assert_refused(Setup::basic().unwrap().database(pooler.url())).await;
        assert_refused(Setup::command("migrate").database(pooler.url())).await;
        let tables = "select count(*) from pg_tables where schemaname = 'public'";
        assert_eq!(database.query(tables).unwrap(), [["0"]], "{mode:?}");
    }
}
