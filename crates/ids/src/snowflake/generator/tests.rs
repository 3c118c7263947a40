//! The generator under clocks of every kind.

use std::collections::HashSet;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::SystemClock;
use crate::limits::EPOCH_MS_DEFAULT as EPOCH;

/// Shows the time that it holds.
struct Dial(AtomicU64);

impl Clock for Dial {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Dial {
    fn at(ms: u64) -> Self {
        Self(AtomicU64::new(EPOCH + ms))
    }

    fn set(&self, ms: u64) {
        self.0.store(EPOCH + ms, Ordering::Relaxed);
    }
}

fn generator(start: u64, limit: u64) -> Generator {
    let mut generator = Generator::new(Layout::default(), WorkerNumber::new(7).unwrap(), EPOCH + start);
    generator.begin = || 0;
    generator.raise_limit(EPOCH.saturating_add(limit));
    generator
}

/// Time since the epoch and sequence.
fn parts(id: u64) -> (u64, u16) {
    let parts = Layout::default().decode(id).unwrap();
    assert_eq!(parts.worker.get(), 7);
    (parts.time_ms - EPOCH, parts.sequence)
}

#[test]
fn ids_of_a_millisecond_follow_each_other_and_the_next_begins_anew() {
    let (clock, generator) = (Dial::at(100), generator(100, 200));
    let take = |count| generator.take(&clock, count).map(|run| (parts(run.first), run.count));
    assert_eq!(take(1), Ok(((100, 0), 1)));
    assert_eq!(take(3), Ok(((100, 1), 3)));
    assert_eq!(take(10_000), Ok(((100, 4), 4_092)), "as many as it still has");
    assert_eq!(take(1), Err(Stop::Full));
    clock.set(101);
    assert_eq!(take(0), Ok(((101, 0), 1)), "one at least");
}

#[test]
fn single_ids_at_a_low_rate_are_spread_over_the_remainders_of_small_numbers() {
    let clock = Dial::at(0);
    let generator = Generator::new(Layout::default(), WorkerNumber::new(7).unwrap(), EPOCH);
    generator.raise_limit(u64::MAX);
    let ids: Vec<_> = (0..20_000)
        .map(|ms| {
            clock.set(10 + ms);
            generator.take(&clock, 1).unwrap().first
        })
        .collect();
    assert!(ids.is_sorted());
    for modulus in [2, 3, 8, 10, 64] {
        let mut counts = vec![0_u64; modulus as usize];
        ids.iter().for_each(|id| counts[(id % modulus) as usize] += 1);
        let mean = ids.len() as u64 / modulus;
        // Ten standard deviations at least: 20,000 draws of one in 64.
        let is_even = counts.iter().all(|count| count.abs_diff(mean) <= mean * 6 / 10);
        assert!(is_even, "modulo {modulus}: {counts:?}");
    }
    // All of a millisecond is there for one that wants many, and three quarters for those that want one.
    clock.set(30_000);
    assert_eq!(generator.take(&clock, u32::MAX).unwrap().count, PER_MS);
    clock.set(30_001);
    let singles = std::iter::from_fn(|| generator.take(&clock, 1).ok()).count();
    assert!((3 * PER_MS / 4..=PER_MS).contains(&(singles as u32)), "{singles}");
}

#[test]
fn a_clock_that_goes_back_is_told_by_how_much_and_nothing_is_made() {
    for back in [1, 5, 6, 3_600_000] {
        let (clock, generator) = (Dial::at(5_000_000), generator(1, u64::MAX));
        let first = generator.take(&clock, 1).unwrap().first;
        clock.set(5_000_000 - back);
        assert_eq!(generator.take(&clock, 1), Err(Stop::Behind { by_ms: back }));
        clock.set(4_999_999);
        assert_eq!(generator.take(&clock, 1), Err(Stop::Behind { by_ms: 1 }));
        clock.set(5_000_000);
        assert_eq!(generator.take(&clock, 1).unwrap().first, first + 1, "caught up, it counts on");
    }
}

#[test]
fn nothing_is_made_before_the_start_nor_at_the_limit() {
    let (clock, generator) = (Dial::at(99), generator(100, 110));
    assert_eq!(generator.take(&clock, 1), Err(Stop::Full), "as if the millisecond before were used up");
    clock.set(98);
    assert_eq!(generator.take(&clock, 1), Err(Stop::Behind { by_ms: 1 }));
    for (now, made) in [(100, true), (109, true), (110, false), (1_000_000, false)] {
        clock.set(now);
        let taken = generator.take(&clock, 1);
        assert_eq!(taken.is_ok(), made, "{now}: {taken:?}");
        assert!(made || taken == Err(Stop::AtLimit));
    }
    generator.raise_limit(EPOCH + 50);
    clock.set(109);
    assert!(generator.take(&clock, 1).is_ok(), "the limit only rises");
}

#[test]
fn a_forward_jump_past_the_limit_makes_nothing_that_could_come_again() {
    let (clock, generator) = (Dial::at(100), generator(100, 200));
    generator.take(&clock, 1).unwrap();
    clock.set(3_600_000);
    assert_eq!(generator.take(&clock, 1), Err(Stop::AtLimit));
    clock.set(101);
    assert!(generator.take(&clock, 1).is_ok(), "back again, it was never ahead");
}

#[test]
fn a_clock_that_stands_still_ends_with_its_millisecond() {
    let (clock, generator) = (Dial::at(100), generator(100, 200));
    let made: usize =
        (0..10).filter_map(|_| generator.take(&clock, 1_000).ok()).map(|run| run.count as usize).sum();
    assert_eq!(made, 4_096);
    assert_eq!(generator.take(&clock, 1), Err(Stop::Full));
}

#[test]
fn the_end_of_the_epoch_is_an_end() {
    let (clock, generator) = (Dial::at(TIME_END - 1), generator(1, u64::MAX));
    assert_eq!(parts(generator.take(&clock, 1).unwrap().first), (TIME_END - 1, 0));
    clock.set(TIME_END);
    assert_eq!(generator.take(&clock, 1), Err(Stop::Ended));
    let before = Dial(AtomicU64::new(0));
    assert!(matches!(generator.take(&before, 1), Err(Stop::Behind { .. })), "before the epoch");
}

#[test]
fn a_closed_generator_makes_nothing_and_tells_where_it_ended() {
    assert_eq!(generator(100, 200).close(), EPOCH + 100, "one that made none ends where it began");
    let (clock, generator) = (Dial::at(150), generator(100, 200));
    generator.take(&clock, 4_096).unwrap();
    assert_eq!(generator.close(), EPOCH + 151);
    clock.set(160);
    assert_eq!(generator.take(&clock, 1), Err(Stop::Closed));
    assert_eq!(generator.close(), EPOCH + 151, "twice is once");
}

#[test]
fn many_threads_never_share_an_id_and_reach_every_one_of_a_millisecond() {
    let (clock, generator) = (Dial::at(100), generator(100, u64::MAX));
    let ids: Vec<u64> = std::thread::scope(|scope| {
        let takers = (0..8).map(|n| {
            let (clock, generator) = (&clock, &generator);
            scope.spawn(move || {
                let mut mine = Vec::new();
                for ms in 100..150 {
                    clock.0.fetch_max(EPOCH + ms, Ordering::Relaxed);
                    while let Ok(run) = generator.take(clock, 1 + n) {
                        mine.extend(run.ids());
                        if mine.len() % 97 == 0 {
                            break;
                        }
                    }
                }
                assert!(mine.is_sorted(), "each one's rise");
                mine
            })
        });
        let takers: Vec<_> = takers.collect();
        takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
    });
    let seen: HashSet<_> = ids.iter().collect();
    assert_eq!(seen.len(), ids.len());
    let last = ids.iter().filter(|id| parts(**id).0 == 149).count();
    assert!(last <= 4_096);
}

#[test]
fn closing_under_way_leaves_no_id_at_or_past_where_it_ended() {
    for _ in 0..200 {
        let generator = generator(1, u64::MAX);
        let (ended, made) = std::thread::scope(|scope| {
            let taker = scope.spawn(|| {
                let mut last = 0;
                loop {
                    match generator.take(&SystemClock, 1) {
                        Ok(run) => last = run.first,
                        Err(Stop::Closed) => return last,
                        Err(_) => std::hint::spin_loop(),
                    }
                }
            });
            std::thread::yield_now();
            (generator.close(), taker.join().unwrap())
        });
        assert!(made == 0 || parts(made).0 + EPOCH < ended);
    }
}

#[test]
fn the_real_clock_gives_ids_without_an_end() {
    let generator = generator(1, u64::MAX);
    let (mut made, mut last) = (0, 0);
    let patience = Instant::now() + Duration::from_secs(20);
    while made < 50_000 {
        assert!(Instant::now() < patience, "{made} in 20 s");
        match generator.take(&SystemClock, 1_000) {
            Ok(run) => {
                assert!(run.first > last);
                last = run.first + u64::from(run.count) - 1;
                made += run.count;
            }
            Err(Stop::Full) => std::hint::spin_loop(),
            Err(other) => panic!("{other:?}"),
        }
    }
}

proptest! {
    #[test]
    fn no_id_comes_twice_or_falls_whatever_the_clock_does(
        times in proptest::collection::vec((0..40_u64, 1..6_000_u32), 1..300),
        limits in proptest::collection::vec(0..60_u64, 1..300),
    ) {
        let (clock, generator) = (Dial::at(1), generator(5, 10));
        let (mut last, mut limit) = (0, 10);
        for ((time, count), more) in times.iter().zip(limits.iter().cycle()) {
            clock.set(*time);
            if let Ok(run) = generator.take(&clock, *count) {
                prop_assert!(run.first > last);
                prop_assert!((5..limit).contains(&parts(run.first).0));
                last = run.first + u64::from(run.count) - 1;
                prop_assert_eq!(parts(last).0, *time);
            }
            limit = limit.max(*more);
            generator.raise_limit(EPOCH + *more);
        }
    }
}
