//! How the keeper leaves the local file: for another ledger, for a number of its own, for a stop.

use std::sync::OnceLock;

use super::*;
use crate::snowflake::fleet::{Process, Watch, with_file};

/// A clock under which a number is recalled at the first look while there is none that ids are made under.
struct Recalling {
    clock: Arc<Watch>,
    /// From when on it is so.
    snowflakes: OnceLock<Snowflakes>,
}

impl Clock for Recalling {
    fn now_ms(&self) -> u64 {
        let is_due = |snowflakes: &&Snowflakes| {
            let times = *snowflakes.shared.recall.borrow();
            times == 0 && snowflakes.shared.current.load().is_none()
        };
        if let Some(snowflakes) = self.snowflakes.get().filter(is_due) {
            snowflakes.recall();
        }
        self.clock.now_ms()
    }
}

/// When it was made.
fn time_of(batch: &Batch) -> u64 {
    let id = batch.ids().next().unwrap();
    Layout::default().decode(id).unwrap().time_ms
}

#[tokio::test(start_paused = true)]
async fn a_new_ledger_and_a_clock_that_went_back_make_no_time_of_before_the_file_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let before = Fleet::new();
    let options = Options { lead_ms: 60_000, file: Some(folder.path().join("worker")), ..fixed(7) };
    let process = before.start("a", 0, options.clone());
    process.makes().await;
    pass(10_000).await;
    let last_ms = time_of(&process.take(1, 1_000).await.unwrap());
    process.crash().await;
    // The clocks of a new fleet begin where those of the one before began. It has no mark of the number.
    let after = Fleet::new();
    let restarted = after.start("a", 0, options);
    assert!(restarted.clock.now_ms() < last_ms);
    let first = restarted.take(1, 60_000).await.unwrap();
    assert_eq!(first.worker.get(), 7);
    assert!(time_of(&first) > last_ms, "{} is not after {last_ms}", time_of(&first));
}

#[tokio::test(start_paused = true)]
async fn a_file_is_deleted_as_soon_as_another_ledger_than_its_own_is_reached() {
    let folder = tempfile::tempdir().unwrap();
    let (before, after, file) = (Fleet::new(), Fleet::new(), folder.path().join("worker"));
    let options = Options { lead_ms: 60_000, ..with_file(file.clone()) };
    let process = before.start("a", 0, options.clone());
    process.makes().await;
    let clock = process.clock.clone();
    process.crash().await;
    assert!(file.exists());
    // It knows which ledger it is, and has no number of it.
    let restarted = after.start_cut_off("a", 0, options.clone());
    let refused = restarted.take(1, 8_000).await;
    assert!(matches!(refused, Err(Refusal::Ledger(_))), "{refused:?}");
    assert!(!file.exists());
    restarted.crash().await;
    let (_snowflakes, mut keeping) = Snowflakes::start(options, clock);
    assert_eq!(keeping.proof().await, None, "a crash leaves no proof");
}

#[tokio::test(start_paused = true)]
async fn a_stop_closes_the_files_generator_before_it_waits_for_a_ledger_that_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new();
    let options = Options { lead_ms: 60_000, ..with_file(folder.path().join("worker")) };
    let process = fleet.start("a", 0, options.clone());
    process.makes().await;
    process.crash().await;
    let restarted = fleet.start_cut_off("a", 0, options);
    restarted.makes().await;
    let (numbers, clock) = (restarted.numbers.clone(), restarted.clock.clone());
    numbers.takes_no_mark.store(true, Ordering::Relaxed);
    numbers.is_away.store(false, Ordering::Relaxed);
    pass(3_000).await;
    assert!(fleet.held().values().any(|owner| *owner == numbers.owner), "a number that is to be given back");
    let by_file = restarted.snowflakes.shared.current.load_full().unwrap();
    by_file.take(&clock, 1).unwrap();
    numbers.hangs.store(true, Ordering::Relaxed);
    let stopping = tokio::spawn(restarted.stop());
    pass(100).await;
    assert_eq!(by_file.take(&clock, 1), Err(Stop::Closed));
    assert!(!stopping.is_finished(), "the ledger is still waited for");
    stopping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_recall_before_the_file_names_the_new_number_is_not_missed() {
    let folder = tempfile::tempdir().unwrap();
    let (fleet, limit) = (Fleet::new(), Duration::from_secs(10));
    let options = Options { lead_ms: 60_000, ..with_file(folder.path().join("worker")) };
    let process = fleet.start("a", 0, options.clone());
    let before = process.makes().await;
    let clock = Arc::new(Recalling { clock: process.clock.clone(), snowflakes: OnceLock::new() });
    process.crash().await;
    let (snowflakes, keeping) = Snowflakes::start(options, clock.clone());
    assert_eq!(snowflakes.take(1, limit).await.unwrap().worker.get(), before);
    let other = fleet.start("b", 0, Options::default());
    other.numbers.takes_no_mark.store(true, Ordering::Relaxed);
    keeping.serve(other.numbers.clone());
    pass(3_000).await;
    let held = fleet.held();
    let (recalled, _) = held.iter().find(|(_, owner)| **owner == other.numbers.owner).unwrap();
    // Between the number's first mark and the file there is one look at the clock, and nothing to make ids by.
    assert!(clock.snowflakes.set(snowflakes.clone()).is_ok());
    other.numbers.takes_no_mark.store(false, Ordering::Relaxed);
    pass(3_000).await;
    assert_eq!(*snowflakes.shared.recall.borrow(), 1);
    assert_ne!(snowflakes.take(1, limit).await.unwrap().worker.get(), *recalled);
}

#[tokio::test(start_paused = true)]
async fn after_a_recovery_one_that_went_by_its_file_wants_a_number_before_an_id_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new();
    let options = Options { lead_ms: 60_000, file: Some(folder.path().join("worker")), ..fixed(7) };
    let process = fleet.start("a", 0, options.clone());
    process.makes().await;
    process.crash().await;
    let restarted = fleet.start_cut_off("a", 0, options);
    while restarted.snowflakes.status().worker.is_none() {
        pass(100).await;
    }
    fleet.lift_mark(number(7), 965_000);
    let other = fleet.start("b", 0, fixed(7));
    pass(1_000).await;
    assert_eq!(fleet.held().get(&7), Some(&other.numbers.owner));
    restarted.snowflakes.recall();
    restarted.numbers.is_away.store(false, Ordering::Relaxed);
    pass(5_000).await;
    let status = restarted.snowflakes.status();
    assert!(matches!(status.refusal, Some(Refusal::NoNumber { .. })), "{status:?}");
    assert!(status.worker.is_none(), "{status:?}");
    other.stop().await;
    pass(966_000).await;
    assert_eq!(restarted.snowflakes.status().worker, Some(number(7)));
}

/// No file, and none that a restart finds.
async fn leaves_no_proof(process: Process, options: Options, what: &str) {
    assert!(!options.file.as_ref().unwrap().exists(), "{what}");
    let clock = process.clock.clone();
    process.crash().await;
    let (_snowflakes, mut keeping) = Snowflakes::start(options, clock);
    assert_eq!(keeping.proof().await, None, "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_number_that_is_dropped_since_the_ledger_went_back_leaves_no_file() {
    for is_found_by_the_mark in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (fleet, file) = (Fleet::new(), folder.path().join("worker"));
        let options = Options { lead_ms: 60_000, ..with_file(file.clone()) };
        let process = fleet.start("a", 0, options.clone());
        process.makes().await;
        assert!(file.exists());
        let by_number = process.snowflakes.shared.current.load_full().unwrap();
        if is_found_by_the_mark {
            process.numbers.went_back.store(true, Ordering::Relaxed);
        } else {
            // So that no other number is acquired, whose file would be there.
            process.numbers.is_away.store(true, Ordering::Relaxed);
            process.snowflakes.recall();
        }
        pass(5_000).await;
        assert_eq!(by_number.take(&process.clock, 1), Err(Stop::Closed));
        leaves_no_proof(process, options, &format!("by the mark: {is_found_by_the_mark}")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_gone_by_is_deleted_once_its_ledger_went_back() {
    for what in ["it is recalled", "before another number is acquired", "before its first mark"] {
        let folder = tempfile::tempdir().unwrap();
        let fleet = Fleet::new();
        let options = Options { lead_ms: 60_000, ..with_file(folder.path().join("worker")) };
        let process = fleet.start("a", 0, options.clone());
        process.makes().await;
        process.crash().await;
        let restarted = fleet.start_cut_off("a", 0, options.clone());
        restarted.makes().await;
        let by_file = restarted.snowflakes.shared.current.load_full().unwrap();
        let numbers = restarted.numbers.clone();
        if what == "it is recalled" {
            restarted.snowflakes.recall();
        } else {
            let is_acquired = what == "before its first mark";
            numbers.takes_no_mark.store(is_acquired, Ordering::Relaxed);
            numbers.went_back.store(!is_acquired, Ordering::Relaxed);
            numbers.is_away.store(false, Ordering::Relaxed);
            pass(3_000).await;
            assert_eq!(fleet.held().values().any(|owner| *owner == numbers.owner), is_acquired, "{what}");
            numbers.went_back.store(true, Ordering::Relaxed);
            numbers.takes_no_mark.store(false, Ordering::Relaxed);
        }
        pass(3_000).await;
        assert_eq!(by_file.take(&restarted.clock, 1), Err(Stop::Closed), "{what}");
        leaves_no_proof(restarted, options, what).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_recall_after_a_number_was_taken_by_another_deletes_the_file_that_still_names_it() {
    for is_recalled in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let (fleet, file) = (Fleet::new(), folder.path().join("worker"));
        let options = Options { lead_ms: 60_000, file: Some(file.clone()), ..fixed(7) };
        let process = fleet.start("a", 0, options.clone());
        process.makes().await;
        let other = fleet.start("b", 0, Options { lead_ms: 60_000, ..fixed(7) });
        fleet.declare_dead(&process.numbers.owner);
        let refused = other.take(1, 1_000).await;
        assert!(matches!(refused, Err(Refusal::MarkAhead { .. })), "{refused:?}");
        pass(5_000).await;
        assert!(process.snowflakes.status().worker.is_none(), "it was lost");
        assert!(file.exists(), "what it says is true: the other one begins at its mark");
        if is_recalled {
            process.snowflakes.recall();
            pass(3_000).await;
            leaves_no_proof(process, options, "recalled").await;
            continue;
        }
        process.crash().await;
        let restarted = fleet.start_cut_off("a", 0, options);
        assert_eq!(restarted.makes().await, 7);
        restarted.take(10_000, 10_000).await.unwrap();
        other.take(10_000, 90_000).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_start_by_the_file_a_caller_at_the_limit_of_a_lost_number_is_served_under_another() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new();
    let (restarted, before) = fleet.restarted_by_its_file(folder.path().join("worker")).await;
    restarted.numbers.is_away.store(false, Ordering::Relaxed);
    pass(3_000).await;
    let lost = restarted.makes().await;
    assert_ne!(lost, before, "the ledger's");
    // Its mark has just been renewed: by itself it hears of the loss three seconds later.
    let mark_ms = fleet.mark_ms(number(lost));
    while fleet.mark_ms(number(lost)) == mark_ms {
        pass(10).await;
    }
    fleet.declare_dead(&restarted.numbers.owner);
    let other = fleet.start("b", 0, Options { lead_ms: 60_000, ..fixed(lost) });
    let refused = other.take(1, 100).await;
    assert!(matches!(refused, Err(Refusal::MarkAhead { .. })), "{refused:?}");
    assert_eq!(restarted.makes().await, lost, "it has not heard of the loss");
    // At the limit the caller asks for a renewal, and the clock is right again before another number is looked for.
    restarted.clock.jump(20_000);
    let is_righted = async { restarted.clock.jump(-20_000) };
    let (taken, ()) = tokio::join!(restarted.take(1, 10_000), is_righted);
    assert_ne!(taken.unwrap().worker.get(), lost);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_could_not_be_deleted_is_deleted_as_soon_as_that_is_possible() {
    let folder = tempfile::tempdir().unwrap();
    let (fleet, [place, kept]) = (Fleet::new(), ["place", "kept"].map(|name| folder.path().join(name)));
    let file = place.join("worker");
    let options = Options { lead_ms: 60_000, ..with_file(file.clone()) };
    let process = fleet.start("a", 0, options.clone());
    process.makes().await;
    process.crash().await;
    let restarted = fleet.start_cut_off("a", 0, options.clone());
    restarted.makes().await;
    // Nothing can be deleted in what is no folder.
    std::fs::rename(&place, &kept).unwrap();
    std::fs::write(&place, "").unwrap();
    restarted.snowflakes.recall();
    pass(3_000).await;
    assert!(kept.join("worker").exists());
    // The clock of the test goes on while a file is worked at: what is under way ends first.
    let work_ends = || std::thread::sleep(Duration::from_millis(20));
    work_ends();
    std::fs::remove_file(&place).unwrap();
    std::fs::rename(&kept, &place).unwrap();
    for _ in 0..500 {
        if !file.exists() {
            break;
        }
        pass(3_000).await;
        work_ends();
    }
    leaves_no_proof(restarted, options, "nobody asked for an id").await;
}
