//! What the local file proves while the ledger is not reached: under which number ids are made, and until when.

use std::collections::HashSet;

use super::*;
use crate::snowflake::fleet::with_file;

#[tokio::test(start_paused = true)]
async fn a_restart_while_the_ledger_is_away_goes_on_by_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (fleet, file) = (Fleet::new(), folder.path().join("worker"));
    let process = fleet.start("a", 0, with_file(file.clone()));
    let before = process.makes().await;
    for _ in 0..40 {
        pass(100).await;
        process.makes().await;
    }
    process.crash().await;
    let restarted = fleet.start_cut_off("a", 0, with_file(file.clone()));
    assert_eq!(restarted.makes().await, before, "the same number, without the ledger");
    // Others find the number's mark where it was.
    let other = fleet.start("b", 0, fixed(before));
    let (mut by_file, mut by_other) = (0, 0);
    for _ in 0..1_000 {
        by_file += u32::from(restarted.take(1, 1).await.is_ok());
        by_other += u32::from(other.take(1, 1).await.is_ok());
        pass(10).await;
    }
    assert!(by_file > 20 && by_other > 10, "{by_file} and {by_other}");
    restarted.numbers.is_away.store(false, Ordering::Relaxed);
    pass(5_000).await;
    assert_ne!(restarted.makes().await, before, "the ledger is there again, and the number another's");
}

#[tokio::test(start_paused = true)]
async fn a_second_outage_before_the_first_mark_ends_no_issuance_by_file_and_leaves_the_proof() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new();
    let options = Options { lead_ms: 60_000, ..with_file(folder.path().join("worker")) };
    let process = fleet.start("a", 0, options.clone());
    let before = process.makes().await;
    process.crash().await;
    for crashes_again in [true, false] {
        let restarted = fleet.start_cut_off("a", 0, options.clone());
        assert_eq!(restarted.makes().await, before, "by the file");
        restarted.numbers.takes_no_mark.store(true, Ordering::Relaxed);
        restarted.numbers.is_away.store(false, Ordering::Relaxed);
        for _ in 0..100 {
            pass(100).await;
            assert_eq!(restarted.take(1, 1).await.unwrap().worker.get(), before, "still by the file");
        }
        let owner = restarted.numbers.owner.clone();
        assert!(fleet.held().values().any(|holder| *holder == owner), "another number is acquired");
        if crashes_again {
            restarted.crash().await;
            continue;
        }
        restarted.numbers.takes_no_mark.store(false, Ordering::Relaxed);
        pass(1_000).await;
        assert_ne!(restarted.makes().await, before, "its mark is committed now");
        assert_eq!(fleet.held().values().filter(|holder| **holder == owner).count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_the_first_mark_gives_the_new_number_back_and_leaves_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (fleet, file) = (Fleet::new(), folder.path().join("worker"));
    let options = Options { lead_ms: 60_000, ..with_file(file.clone()) };
    let process = fleet.start("a", 0, options.clone());
    process.makes().await;
    process.crash().await;
    let restarted = fleet.start_cut_off("a", 0, options);
    restarted.makes().await;
    restarted.numbers.takes_no_mark.store(true, Ordering::Relaxed);
    restarted.numbers.is_away.store(false, Ordering::Relaxed);
    pass(3_000).await;
    let owner = restarted.numbers.owner.clone();
    assert!(fleet.held().values().any(|holder| *holder == owner));
    restarted.stop().await;
    assert!(fleet.held().values().all(|holder| *holder != owner));
    assert!(file.exists(), "what it says is true, and nobody lowered the mark");
}

#[tokio::test(start_paused = true)]
async fn before_anybody_reached_the_ledger_the_file_alone_is_gone_by_until_its_mark() {
    let folder = tempfile::tempdir().unwrap();
    let (fleet, options) = (Fleet::new(), with_file(folder.path().join("worker")));
    let process = fleet.start("a", 0, options.clone());
    let before = process.makes().await;
    let clock = process.clock.clone();
    process.crash().await;
    let (snowflakes, mut keeping) = Snowflakes::start(options.clone(), clock.clone());
    let proof = keeping.proof().await.unwrap();
    assert!((5_000..=10_000).contains(&(proof.as_millis() as u64)), "{proof:?}");
    let taken = snowflakes.take(100, Duration::from_secs(10)).await.unwrap();
    assert_eq!(taken.worker.get(), before);
    pass(proof.as_millis() as u64).await;
    let since = Instant::now();
    let refused = snowflakes.take(1, Duration::from_secs(10)).await;
    assert!(matches!(refused, Err(Refusal::Unreached)), "{refused:?}");
    assert!(since.elapsed() < Duration::from_secs(1), "nobody waits for what will not come");
    keeping.stop().await;
    let (_, mut keeping) = Snowflakes::start(options, clock);
    assert_eq!(keeping.proof().await, None, "its mark is past");
    // An instance that reaches the ledger then makes ids as before.
    let again = fleet.start("a", 0, with_file(folder.path().join("other")));
    again.makes().await;
}

#[tokio::test(start_paused = true)]
async fn a_stop_while_the_file_is_gone_by_is_done_at_once_and_leaves_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (fleet, file) = (Fleet::new(), folder.path().join("worker"));
    let options = Options { lead_ms: 60_000, ..with_file(file.clone()) };
    let process = fleet.start("a", 0, options.clone());
    process.makes().await;
    process.crash().await;
    for _ in 0..3 {
        let restarted = fleet.start_cut_off("a", 0, options.clone());
        restarted.makes().await;
        let (since, snowflakes) = (Instant::now(), restarted.snowflakes.clone());
        restarted.stop().await;
        assert!(since.elapsed() < Duration::from_millis(100), "{:?}", since.elapsed());
        assert!(file.exists(), "what it says is true, and nobody lowered the mark");
        let refused = snowflakes.take(1, Duration::from_secs(1)).await;
        assert!(matches!(refused, Err(Refusal::Stopped)), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_proves_nothing_is_not_gone_by() {
    let folder = tempfile::tempdir().unwrap();
    let (fleet, file, copy) = (Fleet::new(), folder.path().join("worker"), folder.path().join("copy"));
    let process = fleet.start("a", 0, with_file(file.clone()));
    process.makes().await;
    std::fs::copy(&file, &copy).unwrap();
    let refuses = async |options: Options, why: &str| {
        let cut_off = fleet.start_cut_off("a", 0, options);
        let refused = cut_off.take(1, 8_000).await;
        assert!(refused.is_err(), "{why}: {refused:?}");
        cut_off.crash().await;
    };
    refuses(with_file(copy), "a copied folder").await;
    refuses(with_file(file.clone()), "the process that wrote it lives").await;
    process.crash().await;
    refuses(Options { layout: Layout::since(1), ..with_file(file.clone()) }, "another epoch").await;
    refuses(Options { choice: Choice::DataCenter(3), ..with_file(file.clone()) }, "another data centre")
        .await;
    pass(LEAD_MS_DEFAULT).await;
    refuses(with_file(file), "its mark is past").await;
}

#[tokio::test(start_paused = true)]
async fn a_file_is_gone_by_for_its_own_ledger_alone() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new();
    let of = |address: &str, cluster: Option<&str>| Options {
        ledger: KnownLedger { address: address.to_owned(), cluster: cluster.map(str::to_owned) },
        lead_ms: 60_000,
        ..with_file(folder.path().join("worker"))
    };
    let process = fleet.start("a", 0, of("here", None));
    let before = process.makes().await;
    process.crash().await;
    for (address, cluster, counts) in [
        ("elsewhere", None, false),
        ("elsewhere", Some(fleet.cluster.as_str()), false),
        ("here", Some("another"), false),
        ("here", Some(fleet.cluster.as_str()), true),
        ("here", None, true),
    ] {
        let restarted = fleet.start_cut_off("a", 0, of(address, cluster));
        let taken = restarted.take(1, 8_000).await.map(|batch| batch.worker.get());
        assert_eq!(taken.as_ref().ok(), counts.then_some(&before), "{address} {cluster:?}: {taken:?}");
        restarted.crash().await;
    }
}

#[tokio::test(start_paused = true)]
async fn once_another_ledger_is_reached_no_id_is_made_by_the_file_and_none_of_its_number_comes_twice() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = (Fleet::new(), Fleet::new());
    let options = Options { lead_ms: 60_000, file: Some(folder.path().join("worker")), ..fixed(7) };
    let process = before.start("a", 0, options.clone());
    process.makes().await;
    let clock = process.clock.clone();
    process.crash().await;
    let (snowflakes, keeping) = Snowflakes::start(options, clock.clone());
    let limit = Duration::from_secs(10);
    snowflakes.take(1, limit).await.unwrap();
    // The clock stands: a generator that knew nothing of these ids would make them again.
    clock.stand(true);
    let mut made: HashSet<_> = snowflakes.take(2_000, limit).await.unwrap().ids().collect();
    let by_file = snowflakes.shared.current.load_full().unwrap();
    let other = after.start("b", 0, Options::default());
    keeping.serve(other.numbers.clone());
    pass(5_000).await;
    assert_eq!(by_file.take(&clock, 1), Err(Stop::Closed));
    for count in [4_000, 1, 1, 1] {
        let taken = snowflakes.take(count, Duration::from_secs(1)).await;
        assert!(taken.iter().flat_map(|batch| batch.ids()).all(|id| made.insert(id)), "{taken:?}");
    }
    clock.stand(false);
    pass(3_000).await;
    let taken = snowflakes.take(4_000, limit).await.unwrap();
    assert_eq!(taken.worker.get(), 7);
    assert!(taken.ids().all(|id| made.insert(id)));
}

#[tokio::test(start_paused = true)]
async fn the_files_generator_is_closed_when_another_number_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new();
    let (restarted, before) = fleet.restarted_by_its_file(folder.path().join("worker")).await;
    let by_file = restarted.snowflakes.shared.current.load_full().unwrap();
    restarted.numbers.is_away.store(false, Ordering::Relaxed);
    pass(3_000).await;
    assert_ne!(restarted.makes().await, before);
    assert_eq!(by_file.take(&restarted.clock, 1), Err(Stop::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_deletes_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (fleet, file) = (Fleet::new(), folder.path().join("worker"));
    let process = fleet.start("a", 0, with_file(file.clone()));
    process.makes().await;
    assert!(file.exists());
    process.stop().await;
    assert!(!file.exists());
    let again = fleet.start("a", 0, with_file(file.clone()));
    assert_eq!(again.makes().await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_file_keeps_ahead_of_issuance_while_the_ledger_does_not_answer() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new();
    let process = fleet.start("a", 0, with_file(folder.path().join("worker")));
    process.makes().await;
    process.numbers.hangs.store(true, Ordering::Relaxed);
    let since = Instant::now();
    while process.take(1, 1).await.is_ok() {
        pass(20).await;
    }
    let served = since.elapsed().as_millis() as u64;
    assert!(served >= LEAD_MS_DEFAULT - MARK_EVERY_MS_MAX - 100, "up to the mark: {served}");
}
