//! A defect in the keeper costs the number that it had, and no other.

use super::*;
use crate::snowflake::fleet::{Process, with_file};

/// Has the keeper panic, and waits until it has.
async fn interrupt(process: &Process) {
    process.clock.next_look_panics.store(true, Ordering::Relaxed);
    pass(5_000).await;
    assert!(!process.clock.next_look_panics.load(Ordering::Relaxed), "the keeper has ended before");
}

#[tokio::test(start_paused = true)]
async fn a_keeper_that_panics_begins_anew_and_makes_no_id_twice() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("worker");
    for options in [Options::default(), with_file(file.clone()), fixed(7)] {
        let process = Fleet::new().start("a", 0, options);
        for _ in 0..3 {
            process.makes().await;
            interrupt(&process).await;
        }
        process.makes().await;
        process.stop().await;
        assert!(!file.exists());
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_defect_no_id_is_made_by_the_file_and_none_of_its_number_comes_twice_under_another_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after, file) = (Fleet::new(), Fleet::new(), folder.path().join("worker"));
    let options = Options { lead_ms: 60_000, file: Some(file.clone()), ..fixed(7) };
    let process = before.start("a", 0, options.clone());
    process.makes().await;
    process.crash().await;
    let restarted = before.start_cut_off("a", 0, options);
    assert_eq!(restarted.makes().await, 7, "by the file");
    interrupt(&restarted).await;
    let refused = restarted.take(1, 1_000).await;
    assert!(refused.is_err() && !file.exists(), "{refused:?}");
    // It knows nothing of the ids that were made by the file, which may be as late as the mark.
    restarted.keeping.serve(after.start("b", 0, Options::default()).numbers);
    pass(2_000).await;
    let first = restarted.take(1, 100_000).await.unwrap();
    let time_ms = Layout::default().decode(first.ids().next().unwrap()).unwrap().time_ms;
    assert_eq!(first.worker.get(), 7);
    assert!(time_ms >= before.mark_ms(number(7)), "{time_ms}");
}
