//! Snowflakes under clocks, crashes and a ledger that comes and goes. Every id that is made here is held against
//! all others of its test.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;

use domain::WorkerNumber;
use tokio::time::Instant;

use super::fleet::{Fleet, fixed, pass, with_file};
use super::*;

mod by_file;
mod defects;

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
async fn a_clock_that_goes_back_by_five_ms_or_less_is_waited_for_twice_as_long() {
    for back in [1, 5] {
        let process = Fleet::new().start("a", 0, Options::default());
        process.makes().await;
        process.clock.jump(-back);
        let since = Instant::now();
        process.makes().await;
        assert_eq!(since.elapsed().as_millis() as i64, 2 * back);
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_by_more_than_five_ms_raises_an_alarm_and_one_by_less_does_not() {
    for (back, is_alarming) in [(1, false), (5, false), (6, true), (3_600_000, true)] {
        let process = Fleet::new().start("a", 0, Options::default());
        process.makes().await;
        process.clock.jump(-back);
        // There is no time to wait it out.
        assert!(process.take(1, 0).await.is_err());
        assert_eq!(process.snowflakes.shared.is_behind.load(Ordering::Relaxed), is_alarming, "{back}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_goes_back_further_is_refused_until_it_has_caught_up() {
    for back in [6, 1_000, 3_600_000] {
        let process = Fleet::new().start("a", 0, Options::default());
        process.makes().await;
        process.clock.jump(-back);
        let since = Instant::now();
        let refused = process.take(1, 1_000).await;
        assert!(matches!(refused, Err(Refusal::ClockBack { by_ms }) if by_ms as i64 == back), "{refused:?}");
        assert!(since.elapsed().is_zero(), "at once");
        pass(back as u64 / 2).await;
        assert!(process.take(1, 1_000).await.is_err() || back < 11);
        pass(back as u64 / 2).await;
        process.makes().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_ahead_makes_ids_up_to_the_mark_and_is_then_refused() {
    let process = Fleet::new().start("a", 0, Options::default());
    process.makes().await;
    process.clock.jump(900);
    process.makes().await;
    process.clock.jump(3_600_000);
    let refused = process.take(1, 10_000).await;
    assert!(
        matches!(refused, Err(Refusal::ClockOff { ahead: true, by_ms, .. }) if by_ms >= 3_600_000),
        "{refused:?}"
    );
    process.clock.jump(-3_600_000);
    process.makes().await;
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumps_ahead_keeps_its_number_from_nobody_for_long() {
    let fleet = Fleet::new();
    let process = fleet.start("a", 0, fixed(7));
    process.makes().await;
    process.clock.jump(3_600_000);
    assert!(process.take(1, 20_000).await.is_err());
    process.crash().await;
    let next = fleet.start("b", 0, fixed(7));
    let since = Instant::now();
    next.take(1, 60_000).await.unwrap();
    assert!(since.elapsed() <= Duration::from_millis(LEAD_MS_DEFAULT + CLOCK_SKEW_MS_DEFAULT + 1_000));
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_stands_still_is_refused_when_its_millisecond_is_used_up() {
    let process = Fleet::new().start("a", 0, Options::default());
    process.makes().await;
    process.clock.stand(true);
    // A single id may have begun this millisecond, at any of its first 1,024.
    process.take(3_000, 1_000).await.unwrap();
    let since = Instant::now();
    let refused = process.take(2_000, 60_000).await;
    assert!(matches!(refused, Err(Refusal::ClockStill)), "{refused:?}");
    assert!(since.elapsed() < Duration::from_secs(1), "no endless wait");
    process.clock.stand(false);
    process.take(10_000, 1_000).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_leapt_back_while_nobody_ran_waits_for_the_mark_or_takes_another_number() {
    let fleet = Fleet::new();
    let process = fleet.start("a", 900, fixed(7));
    for _ in 0..50 {
        process.makes().await;
    }
    process.crash().await;
    let elsewhere = fleet.start("a", -900, Options::default());
    assert_ne!(elsewhere.makes().await, 7, "another number is free at once");
    let restarted = fleet.start("a", -900, fixed(7));
    let since = Instant::now();
    let refused = restarted.take(1, 1_000).await;
    assert!(matches!(refused, Err(Refusal::MarkAhead { wait_ms, .. }) if wait_ms > 8_000), "{refused:?}");
    restarted.take(1, 60_000).await.unwrap();
    assert!(since.elapsed() <= Duration::from_secs(13), "lead and twice the skew: {:?}", since.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_new_holder_with_a_slower_clock_makes_nothing_that_the_old_one_still_makes() {
    let fleet = Fleet::new();
    let old = fleet.start("a", 900, fixed(7));
    old.makes().await;
    // Cut off and taken for dead, while it goes on.
    old.numbers.is_away.store(true, Ordering::Relaxed);
    let new = fleet.start("b", -900, fixed(7));
    fleet.declare_dead(&old.numbers.owner);
    let (mut by_old, mut by_new) = (0, 0);
    for _ in 0..3_000 {
        by_old += u32::from(old.take(1, 1).await.is_ok());
        by_new += u32::from(new.take(1, 1).await.is_ok());
        pass(10).await;
    }
    assert!(by_old > 100 && by_new > 1_000, "{by_old} and {by_new}");
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
async fn a_clock_too_far_off_the_databases_makes_nothing_until_it_is_mended() {
    for off in [1_200, -1_200] {
        let fleet = Fleet::new();
        let process = fleet.start("a", off, Options::default());
        let refused = process.take(1, 5_000).await;
        assert!(
            matches!(refused, Err(Refusal::ClockOff { ahead, by_ms, max_ms: 1_000 })
            if ahead == (off > 0) && (1_190..=1_210).contains(&by_ms)),
            "{refused:?}"
        );
        assert!(fleet.held().is_empty(), "no number is taken for that");
        assert!(process.snowflakes.status().refusal.is_some());
        process.clock.jump(-off);
        pass(2_000).await;
        process.makes().await;
        assert!(process.snowflakes.status().refusal.is_none());
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
    // Whoever names an instance then has ids as ever.
    let again = fleet.start("a", 0, with_file(folder.path().join("other")));
    again.makes().await;
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
