//! Settings: decided once, then replaced version by version.

use domain::{ClusterSecret, Mode, Modes, PoolName, Resource};
use ledger::AuditFilter;
use serde_json::{Value, json};

use crate::bench::{Bench, LONG_MS, by, eventually, signer};
use crate::opening::execute;

pub async fn the_first_to_decide_the_mode_decides(b: Bench) {
    assert_eq!(b.ledger.modes().await.unwrap(), None);
    let (one, other) =
        tokio::join!(b.ledger.decide_mode(Mode::Basic), b.ledger.decide_mode(Mode::WorkerQueue));
    let (one, other) = (one.unwrap(), other.unwrap());
    assert_eq!(one, other);
    assert_eq!((one.version, &one.only), (1, &None));
    assert_eq!(b.ledger.modes().await.unwrap(), Some(one));
}

pub async fn the_first_to_decide_the_secret_of_the_cluster_decides(b: Bench) {
    let [one, other, late] = ["a", "b", "c"].map(|text| ClusterSecret::parse(&text.repeat(40)).unwrap());
    let (first, second) =
        tokio::join!(b.ledger.decide_cluster_secret(&one), b.ledger.decide_cluster_secret(&other));
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(first, second);
    assert_eq!(b.ledger.decide_cluster_secret(&late).await.unwrap(), first);
}

pub async fn the_first_change_of_the_pools_replaces_version_1(b: Bench) {
    assert!(!b.ledger.replace_pools(2, "[2]".to_owned(), &by()).await.unwrap());
    assert!(b.ledger.replace_pools(1, "[1]".to_owned(), &by()).await.unwrap(), "nobody has read them");
    assert_eq!(b.ledger.pools().await.unwrap(), (2, "[1]".to_owned()));
}

pub async fn a_paused_pool_is_paused_until_its_time_or_its_resumption(b: Bench) {
    assert_eq!(b.ledger.pool_pauses().await.unwrap(), []);
    let pool = |name: &str| PoolName::parse(name).unwrap();
    let lasting = b.ledger.pause_pool(&pool("b"), "repair '\"", None, &by()).await.unwrap();
    assert_eq!((&lasting.pool, &*lasting.reason, lasting.until), (&pool("b"), "repair '\"", None));
    assert_eq!(lasting.principal, by().principal);
    let long = b.ledger.pause_pool(&pool("a"), "later", Some(LONG_MS), &by()).await.unwrap();
    assert_eq!(long.until, Some(long.since.plus_ms(LONG_MS)));
    assert_eq!(b.ledger.pool_pauses().await.unwrap(), [long, lasting.clone()]);
    // A pause replaces the one before, and ends by itself.
    let short = b.ledger.pause_pool(&pool("a"), "a moment", Some(1), &by()).await.unwrap();
    assert_eq!(&*short.reason, "a moment");
    eventually("it ends", async || b.ledger.pool_pauses().await.unwrap() == [lasting.clone()]).await;
    b.ledger.resume_pool(&pool("b"), &by()).await.unwrap();
    b.ledger.resume_pool(&pool("never"), &by()).await.unwrap();
    assert_eq!(b.ledger.pool_pauses().await.unwrap(), []);
    // Its time is over.
    b.ledger.resume_pool(&pool("a"), &by()).await.unwrap();
    // Each has its entry in the audit, with what it replaced, unless nothing was to be ended; the newest first.
    let filter = AuditFilter { limit: 100, ..AuditFilter::default() };
    let audited = b.ledger.audits(&filter).await.unwrap();
    let pause = |reason: &str, for_ms: Option<u64>| {
        Some(json!({"reason": reason, "by": &*by().principal, "for_ms": for_ms}))
    };
    let (long, short) = (pause("later", Some(LONG_MS)), pause("a moment", Some(1)));
    let lasting = pause("repair '\"", None);
    let read = |text: Option<&str>| text.map(|text| serde_json::from_str::<Value>(text).unwrap());
    let found: Vec<_> =
        audited.iter().map(|entry| (read(entry.before.as_deref()), read(entry.after.as_deref()))).collect();
    assert_eq!(found, [(lasting.clone(), None), (long.clone(), short), (None, long), (None, lasting)]);
}

pub async fn a_pause_that_ended_by_itself_leaves_no_row_behind_the_next_one(b: Bench) {
    let pool = |name: &str| PoolName::parse(name).unwrap();
    let lasting = b.ledger.pause_pool(&pool("a"), "lasting", None, &by()).await.unwrap();
    for name in ["b", "c"] {
        b.ledger.pause_pool(&pool(name), "a moment", Some(1), &by()).await.unwrap();
    }
    eventually("they end", async || b.ledger.pool_pauses().await.unwrap() == [lasting.clone()]).await;
    let long = b.ledger.pause_pool(&pool("d"), "later", Some(LONG_MS), &by()).await.unwrap();
    let rows = execute(&b.options.url, "UPDATE pool_pause SET reason = reason").await;
    assert_eq!(rows, 2, "the two that are in force");
    assert_eq!(b.ledger.pool_pauses().await.unwrap(), [lasting, long]);
}

pub async fn a_change_of_the_modes_names_the_version_that_it_replaces(b: Bench) {
    let first = b.ledger.decide_mode(Mode::Basic).await.unwrap();
    let only = ["canary", "x:1"].map(|name| Resource::signer(&signer(name))).into();
    let canary = Modes { mode: Mode::WorkerQueue, only: Some(only), ..first.clone() };
    let second = b.ledger.replace_modes(&canary, &by()).await.unwrap().unwrap();
    assert_eq!(second, Modes { version: 2, ..canary });
    assert_eq!(b.ledger.modes().await.unwrap(), Some(second.clone()));
    for stale in [0, 1, 3] {
        let change = Modes { version: stale, ..first.clone() };
        assert_eq!(b.ledger.replace_modes(&change, &by()).await.unwrap(), None, "{stale}");
    }
    assert_eq!(b.ledger.modes().await.unwrap(), Some(second.clone()), "nothing changed");
    let who = by();
    let changes = (0..8).map(|_| b.ledger.replace_modes(&second, &who));
    let won = futures_util::future::join_all(changes)
        .await
        .into_iter()
        .filter(|done| done.as_ref().unwrap().is_some());
    assert_eq!(won.count(), 1, "of many changes of one version one wins");
}
