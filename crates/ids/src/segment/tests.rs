//! Segments over a source in memory, under a clock that moves when everybody waits.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Semaphore;

use super::*;

const LIMIT: Duration = Duration::from_secs(10);

/// One tag, `t`, whose ranges begin at 1.
struct Source {
    next: AtomicU64,
    step: u64,
    end: u64,
    is_away: AtomicBool,
    /// A load needs one of these.
    permits: Semaphore,
    loads: AtomicU64,
}

#[derive(Clone)]
struct Shared(Arc<Source>);

#[async_trait::async_trait]
impl Ranges for Shared {
    async fn take(&self, tag: &SegmentTag, at_least: u64) -> ledger::Result<RangeTaken> {
        let source = &self.0;
        source.loads.fetch_add(1, Ordering::Relaxed);
        source.permits.acquire().await.unwrap().forget();
        if source.is_away.load(Ordering::Relaxed) {
            return Err(ledger::Error::unavailable(std::io::Error::other("away")));
        }
        if tag.as_str() != "t" {
            return Ok(RangeTaken::Unknown);
        }
        let length = source.step.max(at_least);
        let fits = |next: u64| Some(next + length).filter(|end| *end <= source.end);
        let Ok(first) = source.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) else {
            return Ok(RangeTaken::Exhausted);
        };
        Ok(RangeTaken::Taken { range: first..first + length, step: source.step })
    }
}

fn source(step: u64) -> Arc<Source> {
    Arc::new(Source {
        next: AtomicU64::new(1),
        step,
        end: u64::MAX,
        is_away: AtomicBool::new(false),
        permits: Semaphore::new(1_000_000),
        loads: AtomicU64::new(0),
    })
}

fn tag(name: &str) -> SegmentTag {
    SegmentTag::parse(name).unwrap()
}

async fn take(segments: &Segments, count: usize) -> Vec<u64> {
    segments.take(&tag("t"), count, LIMIT).await.unwrap().into_iter().flatten().collect()
}

/// Lets every load that is under way come to its end.
async fn settled() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ids_rise_and_none_is_left_out() {
    let segments = Segments::new(Shared(source(100)));
    let mut ids = Vec::new();
    for n in 0..500 {
        ids.extend(take(&segments, 1 + n % 13).await);
    }
    assert!(ids.iter().copied().eq(1..=ids.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_the_ledger_once_the_first_range_is_there() {
    let source = source(1_000);
    let segments = Segments::new(Shared(source.clone()));
    take(&segments, 1).await;
    for _ in 0..20_000 {
        let now = Instant::now();
        let ids = segments.take_buffered(&segments.tag(&tag("t")), 1);
        assert!(matches!(ids, Taken::Ids(_)) && now.elapsed().is_zero());
        settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_load_is_in_flight_however_many_wait_for_it() {
    let source = source(1_000);
    source.permits.forget_permits(1_000_000);
    let segments = Segments::new(Shared(source.clone()));
    let takers = (0..100).map(|_| {
        let segments = segments.clone();
        tokio::spawn(async move { take(&segments, 3).await })
    });
    let takers: Vec<_> = takers.collect();
    settled().await;
    assert_eq!(source.loads.load(Ordering::Relaxed), 1);
    source.permits.add_permits(1_000_000);
    let mut ids = HashSet::new();
    for taker in takers {
        ids.extend(taker.await.unwrap());
    }
    assert_eq!(ids, (1..=300).collect());
}

#[tokio::test(start_paused = true)]
async fn unknown_tags_are_refused_and_take_no_room_whether_the_ledger_answers_or_not() {
    let source = source(1_000);
    let segments = Segments::new(Shared(source.clone()));
    for is_away in [false, true] {
        source.is_away.store(is_away, Ordering::Relaxed);
        for n in 0..100 {
            let refused = segments.take(&tag(&format!("x{n}")), 1, LIMIT).await;
            let is_right = match refused {
                Err(Refusal::Unknown) => !is_away,
                Err(Refusal::Ledger(_)) => is_away,
                _ => false,
            };
            assert!(is_right, "{is_away}: {refused:?}");
        }
        settled().await;
        assert!(segments.inner.tags.is_empty(), "{is_away}: {}", segments.inner.tags.len());
    }
    source.is_away.store(false, Ordering::Relaxed);
    let mut ids = take(&segments, 500).await;
    settled().await;
    source.is_away.store(true, Ordering::Relaxed);
    let refused = segments.take(&tag("t"), 5_000, LIMIT).await;
    assert!(matches!(refused, Err(Refusal::Ledger(_))), "{refused:?}");
    settled().await;
    ids.extend(take(&segments, 500).await);
    assert!(ids.into_iter().eq(1..=1_000), "a tag that was loaded keeps what it has in memory");
}

#[tokio::test(start_paused = true)]
async fn with_the_ledger_away_ids_go_on_to_the_last_one_in_memory_and_come_back_by_themselves() {
    let source = source(1_000);
    let segments = Segments::new(Shared(source.clone()));
    let mut ids = take(&segments, 500).await;
    settled().await;
    source.is_away.store(true, Ordering::Relaxed);
    while let Ok(more) = segments.take(&tag("t"), 1, LIMIT).await {
        ids.extend(more.into_iter().flatten());
    }
    assert!(ids.len() >= 2_000, "both ranges: {}", ids.len());
    let refused = segments.take(&tag("t"), 1, LIMIT).await;
    assert!(matches!(refused, Err(Refusal::Ledger(_))), "{refused:?}");
    source.is_away.store(false, Ordering::Relaxed);
    ids.extend(take(&segments, 1).await);
    assert!(ids.iter().copied().eq(1..=ids.len() as u64));
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_never_answers_is_waited_for_no_longer_than_the_request_may_take() {
    let source = source(1_000);
    source.permits.forget_permits(1_000_000);
    let segments = Segments::new(Shared(source));
    let since = Instant::now();
    assert!(matches!(segments.take(&tag("t"), 1, LIMIT).await, Err(Refusal::Late)));
    assert_eq!(since.elapsed(), LIMIT);
}

/// Takes ids at a steady rate for so long; whether all were had.
async fn draws_for(segments: &Segments, rate: u64, seconds: u64) -> bool {
    for _ in 0..seconds {
        if segments.take(&tag("t"), rate as usize, Duration::from_millis(1)).await.is_err() {
            return false;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    true
}

#[tokio::test(start_paused = true)]
async fn a_step_of_600_times_the_rate_survives_ten_minutes_without_the_ledger_whenever_they_begin() {
    const RATE: u64 = 50;
    for phase in (0..3_000).step_by(37) {
        let source = source(600 * RATE);
        let segments = Segments::new(Shared(source.clone()));
        // The first range of all lasts ten minutes, and the step doubles after it.
        assert!(draws_for(&segments, RATE, 700 + phase).await);
        source.is_away.store(true, Ordering::Relaxed);
        assert!(draws_for(&segments, RATE, 600).await, "away from second {} on", 700 + phase);
        source.is_away.store(false, Ordering::Relaxed);
        assert!(draws_for(&segments, RATE, 60).await);
    }
}

#[tokio::test(start_paused = true)]
async fn the_status_tells_step_rate_and_what_is_left() {
    let segments = Segments::new(Shared(source(30_000)));
    assert_eq!(segments.status(&tag("t")), None);
    assert!(draws_for(&segments, 50, 100).await);
    let status = segments.status(&tag("t")).unwrap();
    assert!((45.0..=55.0).contains(&status.rate), "{status:?}");
    let seconds_left = status.seconds_left().unwrap();
    assert!((1_000.0..=1_200.0).contains(&seconds_left), "two ranges: {status:?}");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(segments.status(&tag("t")).unwrap().seconds_left(), None, "nobody asks");
}

#[tokio::test(start_paused = true)]
async fn what_was_forgotten_is_not_given() {
    let source = source(1_000);
    let segments = Segments::new(Shared(source.clone()));
    take(&segments, 500).await;
    settled().await;
    source.next.store(50_000, Ordering::Relaxed);
    segments.forget_below(&tag("t"), 50_000);
    assert_eq!(take(&segments, 1).await, [50_000]);
    settled().await;
    // Said again it costs no ids.
    segments.forget_below(&tag("t"), 50_000);
    assert_eq!(take(&segments, 1).await, [50_001]);
}

/// Takes its first range at once, and answers it when that is allowed.
struct Delayed {
    ranges: Shared,
    is_first: AtomicBool,
    allowed: Arc<Semaphore>,
}

#[async_trait::async_trait]
impl Ranges for Delayed {
    async fn take(&self, tag: &SegmentTag, at_least: u64) -> ledger::Result<RangeTaken> {
        let taken = self.ranges.take(tag, at_least).await;
        if self.is_first.swap(false, Ordering::Relaxed) {
            self.allowed.acquire().await.unwrap().forget();
        }
        taken
    }
}

#[tokio::test(start_paused = true)]
async fn no_id_below_a_raised_start_is_given_of_a_range_that_was_on_its_way() {
    let (source, allowed) = (source(1_000), Arc::new(Semaphore::new(0)));
    let ranges = Shared(source.clone());
    let segments = Segments::new(Delayed { ranges, is_first: true.into(), allowed: allowed.clone() });
    let taker = || {
        let segments = segments.clone();
        tokio::spawn(async move { take(&segments, 1).await })
    };
    let before = taker();
    settled().await;
    source.next.store(50_000, Ordering::Relaxed);
    segments.forget_below(&tag("t"), 50_000);
    let after = taker();
    settled().await;
    allowed.add_permits(1);
    let mut ids = [before.await.unwrap(), after.await.unwrap()].concat();
    ids.sort_unstable();
    assert_eq!(ids, [50_000, 50_001]);
}

#[tokio::test(start_paused = true)]
async fn after_the_ledger_went_back_no_id_is_given_again_and_the_tag_goes_on() {
    // As far back as a part of a range, several ranges, and to the beginning.
    for restored in [3_500, 2_001, 1] {
        let source = source(1_000);
        let segments = Segments::new(Shared(source.clone()));
        let mut ids = take(&segments, 2_500).await;
        settled().await;
        source.next.store(restored, Ordering::Relaxed);
        let mut refused = 0;
        while ids.len() < 20_000 {
            match segments.take(&tag("t"), 100, LIMIT).await {
                Ok(more) => ids.extend(more.into_iter().flatten()),
                Err(Refusal::Ledger(ledger::Error::WentBack)) => refused += 1,
                Err(other) => panic!("from {restored}: {other:?}"),
            }
            settled().await;
        }
        assert!(refused <= 1, "from {restored}: {refused}");
        assert!(ids.is_sorted_by(|a, b| a < b), "from {restored}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_dropped_is_not_given_and_ids_go_on_above_it() {
    let source = source(1_000);
    let segments = Segments::new(Shared(source.clone()));
    let given = take(&segments, 500).await;
    settled().await;
    segments.drop_ranges();
    assert_eq!(segments.status(&tag("t")).unwrap().left, 0);
    source.next.store(50_000, Ordering::Relaxed);
    assert_eq!(take(&segments, 1).await, [50_000]);
    assert_eq!(given.last(), Some(&500));
}

#[tokio::test(start_paused = true)]
async fn a_load_that_dies_keeps_nobody_from_the_next_one() {
    let segments = Segments::new(Shared(source(1_000)));
    let tag = segments.tag(&tag("t"));
    let (taken, at_least) = tag.buffer.lock().take(1, Instant::now());
    assert_eq!(taken, Taken::Short);
    let load = tokio::spawn(load_range(segments.load(&tag), at_least.unwrap()));
    load.abort();
    assert!(load.await.unwrap_err().is_cancelled());
    assert_eq!(take(&segments, 1).await, [1]);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_has_grown_past_the_last_numbers_keeps_none_of_them_back() {
    let mut limited = source(1_000);
    Arc::get_mut(&mut limited).unwrap().end = 5_001;
    let segments = Segments::new(Shared(limited));
    for expected in 1..=5_000_u64 {
        assert_eq!(take(&segments, 1).await, [expected]);
    }
    let refused = segments.take(&tag("t"), 1, LIMIT).await;
    assert!(matches!(refused, Err(Refusal::TagExhausted)), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn the_last_numbers_are_given_and_then_none() {
    let mut limited = source(1_000);
    Arc::get_mut(&mut limited).unwrap().end = 1_001;
    let segments = Segments::new(Shared(limited));
    assert_eq!(take(&segments, 1_000).await.last(), Some(&1_000));
    for _ in 0..3 {
        assert!(matches!(segments.take(&tag("t"), 1, LIMIT).await, Err(Refusal::TagExhausted)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_near_the_end_does_not_deny_that_as_many_are_left_as_are_asked_for() {
    let mut limited = source(1_000);
    Arc::get_mut(&mut limited).unwrap().end = 1_807;
    let segments = Segments::new(Shared(limited));
    take(&segments, 1).await;
    // 999 in memory and 806 in the ledger, which are fewer than a step.
    let refused = segments.take(&tag("t"), 1_500, LIMIT).await.unwrap_err().to_string();
    assert!(refused.contains("than its step") && refused.contains("a lower step"), "{refused}");
    assert_eq!(take(&segments, 999).await.last(), Some(&1_000));
}
