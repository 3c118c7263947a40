//! A SQLite file on a disk that is full for a while, or that is spoilt for a while, copies of such a file, and what waits for its
//! connections.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicUsize};

use domain::job::Requirements;
use domain::session::{Ordering, Spec};
use domain::{InstanceId, Resource, SequenceName, SessionId, SignerId};
use sqlx::sqlite::SqliteJournalMode;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::super::{PROBE, Pools, on_sqlite};
use super::*;
use crate::unwritable::{PROBE_BYTES, PROBE_NAME};
use crate::{
    Acquisition, Identity, Ids as _, Instances as _, Kind, Leases as _, Ledger as _, NewInstance, Reason,
    Renewal, Renewed, Sessions as _, Unwritable, Witness,
};

const CALL_TIMEOUT_MS: u64 = 10_000;

fn options(folder: &tempfile::TempDir, name: &str) -> Options {
    let url = format!("sqlite:{}", folder.path().join(name).display());
    let call_timeout_ms = CALL_TIMEOUT_MS;
    Options { url, connections_max: 2, connect_timeout_ms: 1_000, call_timeout_ms, expected_id: None }
}

async fn opened(folder: &tempfile::TempDir) -> Store {
    opened_by(&options(folder, "ledger.db")).await
}

async fn opened_by(options: &Options) -> Store {
    reach(options, &[runtime::Handle::current()], Migrate::Auto).await.unwrap()
}

#[tokio::test]
async fn a_file_that_cannot_be_looked_for_is_not_taken_for_a_missing_one() {
    let folder = tempfile::tempdir().unwrap();
    // As in a folder that this user may not search, which would keep nothing from root.
    std::os::unix::fs::symlink("ledger.db", folder.path().join("ledger.db")).unwrap();
    let any = options(&folder, "ledger.db");
    let expecting = Options { expected_id: Some("0".repeat(32)), ..any.clone() };
    let here = [runtime::Handle::current()];
    for refused in [
        copy(&any, &folder.path().join("copy.db")).await.err(),
        reach(&any, &here, Migrate::Check).await.err(),
        reach(&any, &here, Migrate::Existing).await.err(),
        reach(&expecting, &here, Migrate::Auto).await.err(),
    ] {
        assert!(matches!(refused, Some(Error::File { .. })), "{refused:?}");
    }
}

/// Lets the file grow by no page more, or by as many as it wants to: as a disk that is full, or has room again.
async fn limit_pages(ledger: &Store, is_full: bool) {
    let Pools::Sqlite(pools) = &ledger.pools else { panic!("not {:?}", Kind::Sqlite) };
    let pages: i64 = sqlx::query_scalar("PRAGMA page_count").fetch_one(&pools.writer).await.unwrap();
    let most = if is_full { pages } else { i64::from(u32::MAX - 1) };
    let limit = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {most}"));
    sqlx::query(limit).fetch_one(&pools.writer).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_is_retryable_and_reported_until_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    let (resource, owner) =
        (Resource::signer(&SignerId::parse("s").unwrap()), InstanceId::parse("a").unwrap());
    ledger.acquire(&resource, &owner, 60_000).await.unwrap();
    limit_pages(&ledger, true).await;
    // One statement: after a transaction that SQLite has rolled back, the connection with the limit is replaced.
    let large = NewInstance {
        id: owner.clone(),
        url: "http://127.0.0.1:1".to_owned(),
        hostname: "x".repeat(100_000),
        pid: 1,
        version: "1".to_owned(),
    };
    let refused = ledger.register(&large).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    for _ in 0..2 {
        // A small write has room where a large one has none.
        ledger.acquire(&resource, &owner, 60_000).await.unwrap();
        assert_eq!(ledger.check().await.unwrap().unwritable, Some(Unwritable::DiskFull));
    }
    limit_pages(&ledger, false).await;
    assert_eq!(ledger.check().await.unwrap().unwritable, None);
    ledger.register(&large).await.unwrap();
}

#[tokio::test]
async fn what_a_write_came_to_is_noted_also_where_its_caller_has_left() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    limit_pages(&ledger, true).await;
    let (go, gone) = oneshot::channel::<()>();
    let large = ledger.ask(&PROBE).bind(PROBE_NAME).bind(PROBE_BYTES);
    let write = ledger.with(Way::Writes, move |mut session| {
        Box::pin(async move {
            let _ = gone.await;
            session.touch(large).await
        })
    });
    assert!(tokio::time::timeout(Duration::ZERO, write).await.is_err(), "it waits");
    assert_eq!(ledger.unwritable(), None);
    go.send(()).unwrap();
    let is_noted = async {
        while ledger.unwritable() != Some(Unwritable::DiskFull) {
            tokio::task::yield_now().await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_millis(CALL_TIMEOUT_MS), is_noted);
    in_time.await.expect("nobody else notes it");
}

#[tokio::test]
async fn a_log_that_has_grown_long_is_cut_when_it_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    // A slow disk takes a while for it.
    let ledger = opened_by(&Options { call_timeout_ms: 120_000, ..options(&folder, "ledger.db") }).await;
    let length = || std::fs::metadata(folder.path().join("ledger.db-wal")).unwrap().len();
    let long = ledger.ask(&PROBE).bind(PROBE_NAME).bind(pools::LOG_BYTES_MAX as i64);
    ledger.touch(Way::Writes, long).await.unwrap();
    assert!(length() > pools::LOG_BYTES_MAX);
    let (resource, owner) =
        (Resource::signer(&SignerId::parse("s").unwrap()), InstanceId::parse("a").unwrap());
    ledger.acquire(&resource, &owner, 60_000).await.unwrap();
    assert!(length() <= pools::LOG_BYTES_MAX);
}

#[tokio::test]
async fn a_file_that_is_no_database_is_retryable_and_reported_until_it_is_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    let (resource, owner) =
        (Resource::signer(&SignerId::parse("s").unwrap()), InstanceId::parse("a").unwrap());
    ledger.acquire(&resource, &owner, 60_000).await.unwrap();
    let Pools::Sqlite(pools) = &ledger.pools else { panic!("not {:?}", Kind::Sqlite) };
    // What is in the log is not read from the file.
    sqlx::query(sql::sql_file!("sqlite-only", "log_empty")).execute(&pools.writer).await.unwrap();
    let file = folder.path().join("ledger.db");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(file).unwrap();
    let mut head = [0; 16];
    file.read_exact_at(&mut head, 0).unwrap();
    file.write_all_at(&[b'x'; 16], 0).unwrap();
    // Nor is what the connection has in memory.
    pools.writer.acquire().await.unwrap().close().await.unwrap();
    let refused = ledger.acquire(&resource, &owner, 60_000).await.unwrap_err();
    assert!(refused.is_retryable(), "{refused:?}");
    for _ in 0..2 {
        assert_eq!(ledger.check().await.unwrap().unwritable, Some(Unwritable::Corrupt));
    }
    file.write_all_at(&head, 0).unwrap();
    ledger.acquire(&resource, &owner, 60_000).await.unwrap();
    // Nobody has read all of the file.
    assert_eq!(ledger.check().await.unwrap().unwritable, Some(Unwritable::Corrupt));
    ledger.close().await;
    drop(ledger);
    assert_eq!(opened(&folder).await.check().await.unwrap().unwritable, None);
}

#[tokio::test]
async fn a_copy_has_its_name_only_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    let (file, partial) = (folder.path().join("copy"), folder.path().join("copy.partial"));
    let options = |name| options(&folder, name);
    std::fs::write(folder.path().join("no.db"), "no database, but a text that is long enough".repeat(100))
        .unwrap();
    crate::backup(&options("no.db"), &file).await.unwrap_err();
    assert!(!file.exists() && !partial.exists(), "a copy that failed leaves nothing");
    let missing = crate::backup(&options("none.db"), &file).await.unwrap_err();
    assert!(
        matches!(&missing, Error::Migration(why) if why.starts_with("there is no ledger at ")),
        "{missing:?}"
    );
    std::fs::write(&partial, "what a try that was killed has left").unwrap();
    let bytes = crate::backup(&options("ledger.db"), &file).await.unwrap();
    assert!(bytes > 0 && !partial.exists(), "{bytes}");
    let again = crate::backup(&options("ledger.db"), &file).await.unwrap_err();
    assert!(matches!(again, Error::File { .. }), "{again:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), bytes);
    drop(ledger);
    crate::open(&options("copy")).await.unwrap();
}

#[tokio::test]
async fn a_start_waits_for_a_file_that_another_process_has_for_a_while() {
    // One that writes keeps all others out, or those that write.
    for mode in [SqliteJournalMode::Delete, SqliteJournalMode::Wal] {
        let folder = tempfile::tempdir().unwrap();
        let patient =
            Options { connect_timeout_ms: 60_000, call_timeout_ms: 2_000, ..options(&folder, "ledger.db") };
        let hasty = Options { connect_timeout_ms: 100, ..patient.clone() };
        let path = folder.path().join("ledger.db");
        let connect = SqliteConnectOptions::new().filename(path).create_if_missing(true).journal_mode(mode);
        let mut other = SqliteConnection::connect_with(&connect).await.unwrap();
        sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
        let Err(busy) = reach(&hasty, &[runtime::Handle::current()], Migrate::Auto).await else {
            panic!("another process has it")
        };
        assert!(matches!(busy, Error::Unavailable { .. }), "{mode:?}: {busy:?}");
        // Longer than a call may take.
        let has_it = async {
            tokio::time::sleep(Duration::from_millis(2_500)).await;
            sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
        };
        let (_ledger, ()) = tokio::join!(opened_by(&patient), has_it);
    }
}

/// Looks, and answers the identity of the open file, which has lost its name, with its raised position.
async fn gone(ledger: &Store, known: &Identity) -> Identity {
    let found = ledger.witness(Some(known)).await.unwrap();
    let Witness::WentBack(open, Reason::OtherFile) = found else { panic!("{found:?}") };
    assert!(open.position > known.position, "{open}");
    open
}

/// Nothing is written or read, and nobody need begin anew.
async fn is_away(ledger: &Store) {
    let (resource, owner) =
        (Resource::signer(&SignerId::parse("s").unwrap()), InstanceId::parse("a").unwrap());
    let written = ledger.acquire(&resource, &owner, 60_000).await.unwrap_err();
    let sequence = SequenceName::parse("invoice").unwrap();
    let granted = ledger.grant_sequence(&sequence, 1).await.unwrap_err();
    let read = ledger.lease(&resource).await.unwrap_err();
    for refused in [written, granted, read] {
        assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    }
    assert!(!ledger.is_current().await.unwrap());
}

#[tokio::test]
async fn a_file_that_was_moved_is_used_again_when_it_is_back_and_opened_again() {
    let folder = tempfile::tempdir().unwrap();
    let [file, kept] = ["ledger.db", "kept"].map(|name| folder.path().join(name));
    let ledger = opened(&folder).await;
    let Witness::Current(known) = ledger.witness(None).await.unwrap() else { panic!("nothing was moved") };
    std::fs::rename(&file, &kept).unwrap();
    let moved = gone(&ledger, &known).await;
    is_away(&ledger).await;
    std::fs::rename(&kept, &file).unwrap();
    let back = gone(&ledger, &moved).await;
    is_away(&ledger).await;
    ledger.close().await;
    drop(ledger);
    let found = opened(&folder).await.witness(Some(&back)).await.unwrap();
    assert!(matches!(found, Witness::Current(_)), "{found:?}");
}

#[tokio::test]
async fn a_file_that_was_replaced_went_back_and_nothing_of_it_gets_into_the_one_that_has_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let [file, copy] = ["ledger.db", "copy"].map(|name| folder.path().join(name));
    let (resource, owner) =
        (Resource::signer(&SignerId::parse("s").unwrap()), InstanceId::parse("a").unwrap());
    let ledger = opened(&folder).await;
    let Witness::Current(known) = ledger.witness(None).await.unwrap() else { panic!("nothing was moved") };
    crate::backup(&options(&folder, "ledger.db"), &copy).await.unwrap();
    ledger.acquire(&resource, &owner, 60_000).await.unwrap();
    std::fs::rename(&copy, &file).unwrap();
    // The next one to write would be opened by the name.
    let Pools::Sqlite(pools) = &ledger.pools else { panic!("not {:?}", Kind::Sqlite) };
    pools.writer.acquire().await.unwrap().close().await.unwrap();
    let open = gone(&ledger, &known).await;
    is_away(&ledger).await;
    ledger.close().await;
    drop(ledger);
    // With the log of the other file it would be no copy any more.
    let ledger = opened(&folder).await;
    assert_eq!(ledger.lease(&resource).await.unwrap(), None);
    let found = ledger.witness(Some(&open)).await.unwrap();
    let Witness::WentBack(found, Reason::Position) = found else { panic!("{found:?}") };
    assert_eq!(found.position, known.position);
}

#[tokio::test]
async fn a_log_that_was_removed_is_noticed_and_what_it_has_is_in_the_file_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    let Witness::Current(known) = ledger.witness(None).await.unwrap() else { panic!("nothing was moved") };
    let (resource, owner) =
        (Resource::signer(&SignerId::parse("s").unwrap()), InstanceId::parse("a").unwrap());
    ledger.acquire(&resource, &owner, 60_000).await.unwrap();
    std::fs::remove_file(folder.path().join("ledger.db-wal")).unwrap();
    let open = gone(&ledger, &known).await;
    is_away(&ledger).await;
    ledger.close().await;
    drop(ledger);
    let ledger = opened(&folder).await;
    assert!(ledger.lease(&resource).await.unwrap().is_some());
    let found = ledger.witness(Some(&open)).await.unwrap();
    assert!(matches!(found, Witness::Current(_)), "{found:?}");
}

#[tokio::test]
async fn a_connection_that_is_opened_by_the_name_of_another_file_is_not_lent() {
    let folder = tempfile::tempdir().unwrap();
    let [file, copy] = ["ledger.db", "copy"].map(|name| folder.path().join(name));
    let ledger = opened(&folder).await;
    crate::backup(&options(&folder, "ledger.db"), &copy).await.unwrap();
    std::fs::rename(&copy, &file).unwrap();
    // Before any look: no reader was opened yet, and the writer is closed.
    let Pools::Sqlite(pools) = &ledger.pools else { panic!("not {:?}", Kind::Sqlite) };
    pools.writer.acquire().await.unwrap().close().await.unwrap();
    is_away(&ledger).await;
}

#[tokio::test]
async fn a_connection_that_is_opened_again_makes_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    let Pools::Sqlite(pools) = &ledger.pools else { panic!("not {:?}", Kind::Sqlite) };
    let file = folder.path().join("ledger.db");
    std::fs::rename(&file, folder.path().join("kept")).unwrap();
    pools.writer.acquire().await.unwrap().close().await.unwrap();
    assert!(pools.writer.acquire().await.is_err() && !file.exists());
}

/// Lets each task run until it waits for something else than its turn to run: they all share the thread of the test.
async fn all_wait() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

/// The answer to what is asked for behind fifty new sessions that wait for the writer, and how many of these are written by then.
async fn behind_fifty_writes<T: Send + 'static>(
    ledger: &Arc<Store>,
    asked: impl Future<Output = T> + Send + 'static,
) -> (T, usize) {
    let Pools::Sqlite(pools) = &ledger.pools else { panic!("not {:?}", Kind::Sqlite) };
    let writer = pools.writer.acquire().await.unwrap();
    let written = Arc::<AtomicUsize>::default();
    let mut sessions = JoinSet::new();
    for number in 0..50 {
        let (ledger, written) = (Arc::clone(ledger), Arc::clone(&written));
        sessions.spawn(async move {
            let id = SessionId::parse(&format!("s{number}")).unwrap();
            let needs = Requirements::default();
            let spec = Spec { tenant: None, needs, ordering: Ordering::Strict, idle_ms: 600_000 };
            ledger.open_session(&id, &spec, None, None).await.unwrap();
            written.fetch_add(1, atomic::Ordering::Relaxed);
        });
    }
    all_wait().await;
    let asked = tokio::spawn(async move { (asked.await, written.load(atomic::Ordering::Relaxed)) });
    all_wait().await;
    drop(writer);
    let answer = asked.await.unwrap();
    sessions.join_all().await;
    answer
}

#[tokio::test]
async fn a_renewal_waits_for_one_write_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Arc::new(opened(&folder).await);
    let owner = InstanceId::parse("a").unwrap();
    let resource = Resource::instance(&owner);
    let acquired = ledger.acquire(&resource, &owner, 60_000).await.unwrap();
    let Acquisition::Acquired { token, .. } = acquired else { panic!("{acquired:?}") };
    let asked = Arc::clone(&ledger);
    let renewal = async move {
        let leases = [Renewal { resource, token, lease_ms: 60_000 }];
        asked.renew_all(&owner, &leases).await.unwrap()
    };
    let (renewed, written) = behind_fifty_writes(&ledger, renewal).await;
    assert_eq!(renewed, [Renewed::Done]);
    assert!(written <= 2, "{written} were ahead of it");
}

#[tokio::test]
async fn an_acquire_waits_for_one_write_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Arc::new(opened(&folder).await);
    let (resource, owner) =
        (Resource::signer(&SignerId::parse("s").unwrap()), InstanceId::parse("a").unwrap());
    // One statement, once there is a row.
    ledger.acquire(&resource, &owner, 60_000).await.unwrap();
    let asked = Arc::clone(&ledger);
    let acquire = async move { asked.acquire(&resource, &owner, 60_000).await.unwrap() };
    let (acquired, written) = behind_fifty_writes(&ledger, acquire).await;
    assert!(matches!(acquired, Acquisition::Acquired { .. }), "{acquired:?}");
    assert!(written <= 2, "{written} were ahead of it");
}

#[tokio::test]
async fn a_write_that_has_waited_for_its_turn_waits_for_the_writer_no_longer_than_its_call_may_take() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened_by(&Options { call_timeout_ms: 2_000, ..options(&folder, "ledger.db") }).await;
    let Pools::Sqlite(pools) = ledger.pools.clone() else { panic!("not {:?}", Kind::Sqlite) };
    let _writer = pools.writer.acquire().await.unwrap();
    let turn = Arc::clone(&pools.write_turns).acquire_owned().await.unwrap();
    let most = Duration::from_millis(1_500);
    let lent = tokio::spawn(async move { pools.lend(Way::Writes).await.map(drop) });
    tokio::time::sleep(most).await;
    drop(turn);
    // A quarter of its time is left; without the wait for its turn it would have all of it.
    let late = tokio::time::timeout(most, lent).await.expect("it waits for the writer as long as a call may");
    let late = late.unwrap().unwrap_err();
    assert!(matches!(late.driver(), Some(sqlx::Error::PoolTimedOut)), "{late:?}");
}

#[tokio::test]
async fn vital_reads_wait_for_no_request() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    let Pools::Sqlite(pools) = &ledger.pools else { panic!("not {:?}", Kind::Sqlite) };
    let resource = Resource::signer(&SignerId::parse("s").unwrap());
    let _list = pools.lend(Way::Reads).await.unwrap();
    assert_eq!(ledger.lease(&resource).await.unwrap(), None, "a read by key waits for no list");
    // None is left for requests.
    let _by_key = pools.lend(Way::KeyReads).await.unwrap();
    ledger.clock_ms().await.unwrap();
    let found = ledger.witness(None).await.unwrap();
    assert!(matches!(found, Witness::Current(_)), "{found:?}");
}

/// Counts for minutes.
const ENDLESS: sql::Statement = sql::Statement::only(
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000000000) SELECT count(*) FROM n",
);
const SHORT: sql::Statement = sql::Statement::only("SELECT 1");
const READS: [Way; 3] = [Way::Reads, Way::KeyReads, Way::VitalReads];

#[tokio::test]
async fn a_read_ends_with_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = Arc::new(opened(&folder).await.with_call_timeout(Duration::from_millis(200)));
    let mut reads = JoinSet::new();
    // As many as there are connections, or more.
    for way in READS.into_iter().flat_map(|way| [way; 2]) {
        let ledger = Arc::clone(&ledger);
        reads.spawn(async move { ledger.all::<(i64,)>(way, ledger.ask(&ENDLESS)).await });
    }
    for answer in reads.join_all().await {
        let late = answer.unwrap_err();
        assert!(matches!(late, Error::Unavailable { .. }) && late.is_late(), "{late:?}");
    }
    for way in READS {
        // Each try waits for a connection for as long as a call may take.
        let mut tries = 50;
        while let Err(error) = ledger.all::<(i64,)>(way, ledger.ask(&SHORT)).await {
            tries -= 1;
            assert!(tries > 0, "{way:?}: {error}");
        }
    }
}

#[tokio::test]
async fn a_read_that_sqlite_has_ended_is_late_and_its_connection_reads_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    let Pools::Sqlite(pools) = &ledger.pools else { panic!("not {:?}", Kind::Sqlite) };
    for way in READS {
        let endless = ledger.ask(&ENDLESS);
        let read = on_sqlite(pools, way, Duration::ZERO, move |mut session| {
            Box::pin(async move { session.touch(endless).await })
        });
        let late = read.await.unwrap_err();
        assert!(matches!(late, Error::Unavailable { .. }) && late.is_late(), "{late:?}");
        assert_eq!(ledger.one::<(i64,)>(way, ledger.ask(&SHORT)).await.unwrap(), (1,));
    }
}

#[test]
fn a_connection_that_does_not_wait_for_the_disk_is_warned_of() {
    for (synchronous, is_warned_of) in [(0, true), (1, true), (2, false), (3, false)] {
        let warnings = durability_warnings((synchronous,));
        assert_eq!(!warnings.is_empty(), is_warned_of, "{synchronous}: {warnings:?}");
    }
}

/// The driver has a line of the log for each call that got a connection later than the threshold: thousands after a stall.
#[tokio::test]
async fn calls_that_waited_for_a_connection_and_got_it_have_no_lines_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    let Pools::Sqlite(pools) = &ledger.pools else { panic!("not {:?}", Kind::Sqlite) };
    let options = pools.writer.options();
    assert!(options.get_acquire_slow_threshold() > options.get_acquire_timeout());
}

#[test]
fn a_url_that_names_a_folder_is_refused_as_that() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().display());
    let Err(Error::Address(why)) = address(&url) else { panic!("it is no file") };
    assert!(why.ends_with("names a folder; name a file in it"), "{why}");
    assert!(address(&format!("{url}/ledger.db")).is_ok());
}
