//! Settings under which commits may be lost; and answers that a new primary is asked for.

use domain::{BulkId, ClusterSecret, InstanceId, JobId, Resource, SignerId};
use testkit::servers::Database;

use super::*;
use crate::{
    Acquisition, BulkAction, BulkMade, BulkStatus, BulkStep, Bulks as _, JobFilter, Leases as _, Ledger as _,
    NewBulk, Settings as _, Transfers as _, Witness,
};

#[test]
fn each_setting_under_which_a_commit_may_be_lost_is_warned_of() {
    for (fsync, commit, pages, lags, is_standby, told) in [
        ("off", "on", "on", false, false, &["fsync is off, should be on"][..]),
        ("on", "on", "on", false, false, &[]),
        ("on", "remote_apply", "on", false, false, &[]),
        ("on", "true", "on", false, false, &[]),
        ("on", "off", "on", false, false, &["synchronous_commit is off by default, should be on"]),
        ("on", "local", "on", false, false, &["synchronous_commit is local by default, should be on"]),
        (
            "on",
            "remote_write",
            "on",
            false,
            false,
            &["synchronous_commit is remote_write by default, should be on"],
        ),
        ("on", "on", "off", false, false, &["full_page_writes is off, should be on"]),
        ("on", "on", "on", true, false, &["a standby replicates asynchronously"]),
        ("on", "on", "on", false, true, &["the server is a standby and takes no writes"]),
        ("off", "on", "off", false, false, &["fsync is off", "full_page_writes is off"]),
    ] {
        let settings = (fsync.to_owned(), commit.to_owned(), pages.to_owned(), lags, is_standby);
        let warnings = durability_warnings(&settings);
        let is_told = warnings.iter().zip(told).all(|(warning, told)| warning.contains(told));
        assert!(is_told && warnings.len() == told.len(), "{settings:?}: {warnings:?}");
    }
}

#[tokio::test]
async fn a_server_that_never_answers_is_waited_for_until_the_limit_alone() {
    // The system accepts the connection, and nobody reads from it.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://u@{}/f?sslmode=disable", listener.local_addr().unwrap());
    let pool = || PgPoolOptions::new().connect_lazy_with(connect_options(&url).unwrap());
    let read_turns = Arc::new(Semaphore::new(1));
    let pools = Pools { requests: pool(), read_turns, by_keys: pool(), vital: pool(), looks: pool() };
    let looked = pools.connect(Duration::from_millis(50));
    let looked = tokio::time::timeout(Duration::from_secs(20), looked).await.expect("it has a limit");
    assert!(looked.is_err_and(|error| error.is_retryable()));
}

/// Such a mark is kept until the next look ([`Remembered::must_have`]).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_gives_or_ends_ownership_or_makes_a_setting_has_a_mark() {
    let database = tokio::task::spawn_blocking(|| Database::migrated().unwrap()).await.unwrap();
    let options = Options {
        url: database.url().to_owned(),
        connections_max: 8,
        connect_timeout_ms: 20_000,
        call_timeout_ms: 20_000,
        expected_id: None,
    };
    let ledger = reach(&options, &[runtime::Handle::current()], Migrate::Auto).await.unwrap();
    // Before a look there is no server to compare with.
    let looked = ledger.witness(None).await.unwrap();
    assert!(matches!(&looked, Witness::Current(found) if found.server.is_some()), "{looked:?}");
    // How many there are since it was called last.
    let marks = || {
        let kept = ledger.remembered.must_have(i64::MAX).len();
        ledger.remembered.raised(ledger.remembered.begins_look());
        kept
    };
    let [me, other] = ["a", "b"].map(|name| InstanceId::parse(name).unwrap());
    let signer = Resource::signer(&SignerId::parse("s").unwrap());
    let acquired = ledger.acquire(&signer, &me, 60_000).await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
    ledger.acquire(&Resource::instance(&other), &other, 60_000).await.unwrap();
    let new = NewBulk {
        id: BulkId::from_u128(1),
        principal: String::new(),
        action: BulkAction::Cancel,
        filter: JobFilter::default(),
        before: ledger.bulk_now().await.unwrap(),
        rate: 1,
        matched: 1,
        owner: me.clone(),
        key_hash: None,
        body_hash: "h".to_owned(),
    };
    let made = ledger.create_bulk(&new, None).await.unwrap();
    assert!(matches!(made, BulkMade::Made(_)), "{made:?}");
    assert_eq!(marks(), 3, "one each");
    let open = ledger.open_bulks().await.unwrap().remove(0);
    assert_eq!(marks(), 0, "a read has none");

    let taken = ledger.take_bulk(&open, &me).await.unwrap().unwrap();
    assert_eq!(marks(), 1, "taken by another owner, or anew");
    let noted = ledger.note_progress(&taken, JobId::from_u128(1), &BulkStep::default()).await.unwrap();
    assert_eq!((noted.is_some(), marks()), (true, 1), "how far it has come");
    let ended = ledger.finish_bulk(&taken, BulkStatus::Done, None).await.unwrap();
    assert_eq!((ended.is_some(), marks()), (true, 1), "its end");
    assert_eq!(ledger.take_bulk(&open, &me).await.unwrap(), None);
    assert_eq!(marks(), 0, "nothing was written");

    assert!(ledger.pass_lease(&signer, &me, token, &other, 60_000).await.unwrap());
    assert_eq!(marks(), 1, "passed on");

    let secret = ClusterSecret::parse(&"a".repeat(40)).unwrap();
    for decided in [1, 0] {
        assert_eq!(ledger.decide_cluster_secret(&secret).await.unwrap(), secret);
        assert_eq!(marks(), decided, "only the first time it is written");
    }
    ledger.close().await;
}
