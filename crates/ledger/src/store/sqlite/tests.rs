//! A SQLite file on a disk that is full for a while, and copies of such a file.

use domain::{InstanceId, Resource, SignerId};

use super::super::Pools;
use super::*;
use crate::{
    Identity, Instances as _, Kind, Leases as _, Ledger as _, NewInstance, Reason, Unwritable, Witness,
};

const CALL_TIMEOUT_MS: u64 = 10_000;

fn options(folder: &tempfile::TempDir, name: &str) -> Options {
    let url = format!("sqlite:{}", folder.path().join(name).display());
    Options { url, connections_max: 2, connect_timeout_ms: 1_000, call_timeout_ms: CALL_TIMEOUT_MS }
}

async fn opened(folder: &tempfile::TempDir) -> Store {
    opened_by(&options(folder, "ledger.db")).await
}

async fn opened_by(options: &Options) -> Store {
    reach(options, &[runtime::Handle::current()], Migrate::Auto).await.unwrap()
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
async fn a_copy_has_its_name_only_when_it_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = opened(&folder).await;
    let (file, partial) = (folder.path().join("copy"), folder.path().join("copy.partial"));
    let options = |name| options(&folder, name);
    std::fs::write(folder.path().join("no.db"), "no database, but a text that is long enough".repeat(100))
        .unwrap();
    crate::backup(&options("no.db"), &file).await.unwrap_err();
    assert!(!file.exists() && !partial.exists(), "a copy that failed leaves nothing");
    std::fs::write(&partial, "what a try that was killed has left").unwrap();
    let bytes = crate::backup(&options("ledger.db"), &file).await.unwrap();
    assert!(bytes > 0 && !partial.exists(), "{bytes}");
    let again = crate::backup(&options("ledger.db"), &file).await.unwrap_err();
    assert!(matches!(again, Error::File { .. }), "{again:?}");
    assert_eq!(std::fs::metadata(&file).unwrap().len(), bytes);
    drop(ledger);
    crate::open(&options("copy")).await.unwrap();
}

/// Whether the look has raised the position of the open file, which has lost its name.
fn is_of_open_file(found: &Witness, known: &Identity) -> bool {
    matches!(found, Witness::WentBack(open, Reason::OtherFile) if open.position > known.position)
}

#[tokio::test]
async fn a_file_that_lost_its_name_went_back_and_the_one_that_has_it_is_behind() {
    let folder = tempfile::tempdir().unwrap();
    let [file, kept, copy] = ["ledger.db", "kept", "copy"].map(|name| folder.path().join(name));
    // One reader, so that no look opens another one.
    let options = Options { connections_max: 1, ..options(&folder, "ledger.db") };
    let ledger = opened_by(&options).await;
    let Witness::Current(known) = ledger.witness(None).await.unwrap() else { panic!("nothing was moved") };
    crate::backup(&options, &copy).await.unwrap();
    let look = async || ledger.witness(Some(&known)).await.unwrap();
    std::fs::rename(&file, &kept).unwrap();
    let missing = look().await;
    assert!(is_of_open_file(&missing, &known), "{missing:?}");
    std::fs::rename(&kept, &file).unwrap();
    let back = look().await;
    assert!(matches!(back, Witness::Current(_)), "{back:?}");

    std::fs::rename(&copy, &file).unwrap();
    let replaced = look().await;
    assert!(is_of_open_file(&replaced, &known), "{replaced:?}");
    let Witness::WentBack(Identity { position, cluster, .. }, _) = replaced else { panic!("it went back") };
    ledger.close().await;
    drop(ledger);
    // With the log of the other file it would be no copy any more.
    let ledger = opened_by(&options).await;
    let found = ledger.witness(Some(&Identity { cluster, position, server: None })).await.unwrap();
    let Witness::WentBack(found, Reason::Position) = found else { panic!("{found:?}") };
    assert_eq!(found.position, known.position);
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
