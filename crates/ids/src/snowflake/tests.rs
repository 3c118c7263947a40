//! Snowflakes under clocks, crashes and a ledger that comes and goes. Every id that is made here is held against
//! all others of its test.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use domain::WorkerNumber;
use tokio::time::Instant;

use super::fleet::{Fleet, fixed, pass};
use super::*;

mod by_file;
mod clocks;
mod defects;
mod proofs;

fn number(n: u16) -> WorkerNumber {
    WorkerNumber::new(n).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_number_is_acquired_when_the_first_id_is_asked_for() {
    let fleet = Fleet::new();
    let process = fleet.start("a", 0, Options::default());
    pass(60_000).await;
    assert!(fleet.held().is_empty() && process.snowflakes.status().worker.is_none());
    assert_eq!(process.makes().await, 0);
    assert_eq!(fleet.held().len(), 1);
    process.take(10_000, 1_000).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn consecutive_batches_lose_no_ids_of_a_millisecond() {
    let process = Fleet::new().start("a", 0, Options::default());
    process.makes().await;
    // In a millisecond that no single id has begun.
    pass(10).await;
    let mut made = BTreeMap::<u64, u64>::new();
    for _ in 0..20 {
        for id in process.take(3_000, 1_000).await.unwrap().ids() {
            *made.entry(Layout::default().decode(id).unwrap().time_ms).or_default() += 1;
        }
    }
    let (_, rest) = made.pop_last().unwrap();
    assert!(made.values().all(|count| *count == u64::from(PER_MS)), "{made:?}");
    assert_eq!(made.len() as u64 * u64::from(PER_MS) + rest, 60_000);
}

#[tokio::test(start_paused = true)]
async fn two_that_start_together_take_two_numbers() {
    let fleet = Fleet::new();
    let processes: Vec<_> = (0..20).map(|n| fleet.start(&format!("n{n}"), 0, Options::default())).collect();
    let mut numbers = futures_util::future::join_all(processes.iter().map(|process| process.makes())).await;
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_holder_cut_off_from_the_ledger_goes_on_to_its_mark_and_then_again_by_itself() {
    let process = Fleet::new().start("a", 0, Options::default());
    process.makes().await;
    pass(5_000).await;
    for hangs in [false, true] {
        let away = if hangs { &process.numbers.hangs } else { &process.numbers.is_away };
        away.store(true, Ordering::Relaxed);
        let since = Instant::now();
        while process.take(1, 1).await.is_ok() {
            pass(20).await;
        }
        let served = since.elapsed().as_millis() as u64;
        assert!((LEAD_MS_DEFAULT - MARK_EVERY_MS_MAX - 100..=LEAD_MS_DEFAULT).contains(&served), "{served}");
        pass(30_000).await;
        let refused = process.take(1, 100).await;
        assert!(matches!(refused, Err(Refusal::Ledger(_))), "{refused:?}");
        away.store(false, Ordering::Relaxed);
        pass(6_000).await;
        process.makes().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_longer_lead_buys_a_longer_time_without_the_ledger() {
    let options = Options { lead_ms: 600_000, ..Options::default() };
    let process = Fleet::new().start("a", 0, options);
    process.makes().await;
    process.numbers.is_away.store(true, Ordering::Relaxed);
    for _ in 0..590 {
        pass(1_000).await;
        process.take(1, 1).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_number_is_kept_while_its_mark_is_waited_for_longer_than_its_lease_lasts() {
    const WAIT_MS: u64 = 965_000;
    const _: () = assert!(WAIT_MS > WORKER_LEASE_MS_DEFAULT);
    let fleet = Fleet::new();
    fleet.lift_mark(number(7), WAIT_MS);
    let process = fleet.start("a", 0, fixed(7));
    let refused = process.take(1, 1_000).await;
    assert!(matches!(refused, Err(Refusal::MarkAhead { .. })), "{refused:?}");
    for second in (0..960).step_by(15) {
        pass(15_000).await;
        assert_eq!(fleet.held().get(&7), Some(&process.numbers.owner), "from second {second} on");
    }
    assert_eq!(process.makes().await, 7);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_known_to_be_too_long_is_refused_at_once_and_one_that_is_not_is_waited_for() {
    let fleet = Fleet::new();
    fleet.lift_mark(number(7), 300_000);
    let process = fleet.start("a", 0, fixed(7));
    for _ in 0..3 {
        let since = Instant::now();
        let refused = process.take(1, 10_000).await;
        assert!(
            matches!(refused, Err(Refusal::MarkAhead { wait_ms, .. }) if wait_ms > 10_000),
            "{refused:?}"
        );
        assert!(since.elapsed() < Duration::from_secs(1), "{:?}", since.elapsed());
        pass(90_000).await;
    }
    process.take(1, 60_000).await.unwrap();
}

/// A fleet whose number 7 was held, and is not.
async fn with_7_given_back() -> Arc<Fleet> {
    let fleet = Fleet::new();
    let before = fleet.start("a", 0, fixed(7));
    before.makes().await;
    before.stop().await;
    fleet
}

#[tokio::test(start_paused = true)]
async fn after_a_recovery_the_wait_is_shown_before_an_id_is_asked_for() {
    let fleet = with_7_given_back().await;
    // As far as a crash leaves it.
    fleet.lift_mark(number(7), LEAD_MS_DEFAULT);
    let crashed = fleet.start("a", 0, fixed(7));
    pass(1_000).await;
    assert!(crashed.snowflakes.status().refusal.is_none() && fleet.held().is_empty());
    fleet.lift_mark(number(7), 965_000);
    let recovered = fleet.start("a", 0, fixed(7));
    pass(1_000).await;
    let refusal = recovered.snowflakes.status().refusal;
    assert!(matches!(refusal, Some(Refusal::MarkAhead { wait_ms, .. }) if wait_ms > 900_000), "{refusal:?}");
    pass(966_000).await;
    let status = recovered.snowflakes.status();
    assert!(status.refusal.is_none() && status.worker == Some(number(7)), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn after_a_recovery_one_without_a_number_wants_none_before_an_id_is_asked_for() {
    let fleet = with_7_given_back().await;
    fleet.lift_mark(number(7), 965_000);
    // Both find that number 7 must be waited for, before one of them has it.
    let both = [fleet.start("a", 0, fixed(7)), fleet.start("b", 0, fixed(7))];
    pass(1_000).await;
    let holder = fleet.held()[&7].clone();
    let [one, other] = both;
    let (waits, idle) = if one.numbers.owner == holder { (one, other) } else { (other, one) };
    let refusal = waits.snowflakes.status().refusal;
    assert!(matches!(refusal, Some(Refusal::MarkAhead { .. })), "{refusal:?}");
    for _ in 0..3 {
        let refusal = idle.snowflakes.status().refusal;
        assert!(refusal.is_none(), "{refusal:?}");
        pass(400_000).await;
    }
    assert_eq!(waits.makes().await, 7);
    for _ in 0..2 {
        let refused = idle.take(1, 5_000).await;
        assert!(matches!(refused, Err(Refusal::NoNumber { .. })), "{refused:?}");
    }
    // From then on it wants one.
    assert!(idle.snowflakes.status().refusal.is_some());
    waits.stop().await;
    pass(2_000).await;
    assert_eq!(idle.makes().await, 7);
}

#[tokio::test(start_paused = true)]
async fn after_a_recovery_the_wait_is_shown_although_the_ledger_was_away_at_first() {
    let fleet = with_7_given_back().await;
    fleet.lift_mark(number(7), 965_000);
    let process = fleet.start_cut_off("a", 0, fixed(7));
    pass(10_000).await;
    assert!(process.snowflakes.status().refusal.is_none());
    process.numbers.is_away.store(false, Ordering::Relaxed);
    pass(5_000).await;
    let refusal = process.snowflakes.status().refusal;
    assert!(matches!(refusal, Some(Refusal::MarkAhead { .. })), "{refusal:?}");
}

#[tokio::test(start_paused = true)]
async fn the_shortest_lease_does_not_run_out_while_its_mark_is_waited_for() {
    let fleet = Fleet::new();
    fleet.lift_mark(number(7), 30_000);
    let options = Options { lead_ms: LEAD_MS_MIN, lease_ms: LEAD_MS_MIN, ..fixed(7) };
    let process = fleet.start("a", 0, options);
    let refused = process.take(1, 100).await;
    assert!(matches!(refused, Err(Refusal::MarkAhead { .. })), "{refused:?}");
    for ms in 0..5 * LEAD_MS_MIN {
        pass(1).await;
        assert_eq!(fleet.held().get(&7), Some(&process.numbers.owner), "after {ms} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn a_number_that_is_lost_while_its_mark_is_waited_for_is_replaced_by_another() {
    let fleet = Fleet::new();
    let short = |options: Options| Options { lease_ms: 30_000, ..options };
    fleet.lift_mark(number(7), 120_000);
    let process = fleet.start("a", 0, short(fixed(7)));
    assert!(process.take(1, 1_000).await.is_err());
    fleet.declare_dead(&process.numbers.owner);
    let thief = fleet.start("b", 0, short(fixed(7)));
    assert!(thief.take(1, 1_000).await.is_err());
    fleet.declare_alive(&process.numbers.owner);
    assert_eq!(fleet.held()[&7], thief.numbers.owner);
    // With its next renewal it learns that, and who has the number.
    pass(15_000).await;
    let refused = process.take(1, 1_000).await.unwrap_err();
    assert!(matches!(refused, Refusal::NoNumber { numbers: 1, .. }), "{refused:?}");
    let said = format!("is held by {}, which lives or was not found dead yet", thief.numbers.owner);
    assert!(refused.to_string().ends_with(&said), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_paused_past_its_mark_goes_on_as_soon_as_the_mark_is_renewed() {
    let fleet = Fleet::new();
    let process = fleet.start("a", 0, Options::default());
    process.makes().await;
    // As after a pause: the clock is far ahead of the mark, and the keeper had no turn.
    tokio::time::advance(Duration::from_secs(120)).await;
    let since = Instant::now();
    process.makes().await;
    assert!(since.elapsed() < Duration::from_millis(500), "{:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_call_to_the_ledger_that_panics_ends_no_issuance() {
    let process = Fleet::new().start("a", 0, Options::default());
    process.makes().await;
    process.numbers.next_call_panics.store(true, Ordering::Relaxed);
    pass(60_000).await;
    assert!(!process.numbers.next_call_panics.load(Ordering::Relaxed), "none was made");
    process.makes().await;
}

#[tokio::test(start_paused = true)]
async fn a_number_that_was_lost_is_replaced_by_another() {
    let fleet = Fleet::new();
    let process = fleet.start("a", 0, Options::default());
    let before = process.makes().await;
    fleet.declare_dead(&process.numbers.owner);
    let thief = fleet.start("b", 0, fixed(before));
    let stolen = tokio::spawn(async move { thief.take(1, 30_000).await.map(|_| thief) });
    pass(10_000).await;
    fleet.declare_alive(&process.numbers.owner);
    assert_ne!(process.makes().await, before);
    stolen.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_clean_stop_lowers_the_mark_and_the_next_start_has_its_number_at_once() {
    let fleet = Fleet::new();
    for _ in 0..10 {
        let process = fleet.start("a", 0, Options::default());
        let since = Instant::now();
        assert_eq!(process.makes().await, 0);
        assert!(since.elapsed() < Duration::from_millis(50), "{:?}", since.elapsed());
        let now = process.clock.now_ms();
        assert!(fleet.mark_ms(number(0)) > now + 5_000);
        process.stop().await;
        assert!(fleet.mark_ms(number(0)) <= now + 1, "just past the last id");
        assert!(fleet.held().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_stopped_generator_refuses() {
    let process = Fleet::new().start("a", 0, Options::default());
    process.makes().await;
    let snowflakes = process.snowflakes.clone();
    process.stop().await;
    let refused = snowflakes.take(1, Duration::from_secs(1)).await;
    assert!(matches!(refused, Err(Refusal::Stopped)), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_process_that_begins_anew_gives_its_number_back_and_acquires_another_time() {
    let fleet = Fleet::new();
    let mut process = fleet.start("a", 0, Options::default());
    process.makes().await;
    for _ in 0..5 {
        process.begin_anew();
        pass(100).await;
        process.makes().await;
        assert_eq!(fleet.held().values().collect::<Vec<_>>(), [&process.numbers.owner]);
    }
}

#[tokio::test(start_paused = true)]
async fn another_epoch_than_the_fleets_makes_nothing() {
    let fleet = Fleet::new();
    fleet.start("a", 0, Options::default()).makes().await;
    let other = Options { layout: Layout::since(1_700_000_000_000), ..Options::default() };
    let refused = fleet.start("b", 0, other).take(1, 5_000).await;
    assert!(matches!(refused, Err(Refusal::OtherEpoch { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_data_center_has_its_own_numbers() {
    let fleet = Fleet::new();
    let options = Options { choice: Choice::DataCenter(3), ..Options::default() };
    assert_eq!(fleet.start("a", 0, options).makes().await, 96);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_epoch_is_told_years_ahead_and_then_refused() {
    let year_ms = 365 * 86_400_000;
    let ending_in = |ms: u64| {
        let layout = Layout::since(fleet::BEGIN_MS + ms - (1 << 41));
        Fleet::new().start("a", 0, Options { layout, ..Options::default() })
    };
    assert_eq!(ending_in(6 * year_ms).snowflakes.status().ends_in_ms, None);
    let soon = ending_in(4 * year_ms).snowflakes.status().ends_in_ms.unwrap();
    assert!((3 * year_ms..=4 * year_ms).contains(&soon));
    let process = ending_in(1_000);
    pass(2_000).await;
    let refused = process.take(1, 1_000).await;
    assert!(matches!(refused, Err(Refusal::Ended { .. })), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn callers_wait_for_a_number_as_soon_as_the_ledger_is_reached() {
    let fleet = Fleet::new();
    let process = fleet.start_cut_off("a", 0, Options::default());
    process.numbers.is_away.store(false, Ordering::Relaxed);
    for keeper_has_looked in [false, true] {
        let (snowflakes, keeping) = Snowflakes::start(Options::default(), process.clock.clone());
        if keeper_has_looked {
            pass(1_000).await;
            assert!(matches!(snowflakes.status().refusal, Some(Refusal::Unreached)));
        }
        // No other task runs between these two.
        keeping.serve(process.numbers.clone());
        let batch = snowflakes.take(1, Duration::from_secs(1)).await;
        assert!(batch.is_ok(), "{keeper_has_looked}: {batch:?}");
        keeping.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_id_is_made_under_a_number_that_was_recalled() {
    let fleet = Fleet::new();
    let process = fleet.start("a", 0, Options::default());
    let before = process.makes().await;
    process.snowflakes.recall();
    pass(100).await;
    let after = process.makes().await;
    assert_ne!(after, before, "whose ids may have been made further than the clock is");
    pass(60_000).await;
    assert_eq!(process.makes().await, after, "it is recalled once");
}

#[tokio::test(start_paused = true)]
async fn a_recall_while_a_mark_is_waited_for_begins_the_search_anew() {
    let fleet = Fleet::new();
    fleet.lift_mark(number(0), 60_000);
    let process = fleet.start("a", 0, Options::default());
    let refused = process.take(1, 1_000).await;
    assert!(matches!(refused, Err(Refusal::MarkAhead { .. })), "{refused:?}");
    process.snowflakes.recall();
    pass(100).await;
    assert_ne!(process.makes().await, 0, "what was acquired before the recall");
}

#[tokio::test(start_paused = true)]
async fn no_number_is_acquired_of_a_ledger_that_went_back() {
    let fleet = Fleet::new();
    let process = fleet.start("a", 0, Options::default());
    process.numbers.went_back.store(true, Ordering::Relaxed);
    let refused = process.take(1, 1_000).await;
    assert!(matches!(refused, Err(Refusal::Ledger(ledger::Error::WentBack))), "{refused:?}");
    pass(10_000).await;
    assert!(fleet.held().is_empty(), "a number that could not be used");
    process.numbers.went_back.store(false, Ordering::Relaxed);
    pass(2_000).await;
    process.makes().await;
}
