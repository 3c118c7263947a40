//! Snowflakes under a clock that goes back, jumps ahead, stands still, or is off the database's.

use super::*;

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
