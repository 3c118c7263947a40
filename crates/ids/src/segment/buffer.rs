//! The ranges of one tag that are in memory: the one in use and, most of the time, the next one.
//!
//! What lives here: what is taken from which range, and when another is to be loaded. What must never: a wait, or
//! a clock that is not handed in.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use tokio::time::Instant;

use super::step::Step;
use crate::limits::{RANGE_USED_TO_LOAD, RATE_OVER};

/// The shortest pause after a failed load before one that no caller waits for.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The ranges of one tag.
#[derive(Debug)]
pub(super) struct Buffer {
    /// The one in use first. Each is above those before it.
    ranges: VecDeque<Range<u64>>,
    /// Lower ids may have been given here.
    end: u64,
    /// No lower id is given of the range that is on its way: the tag's start was raised to this meanwhile.
    floor: u64,
    /// How many ids the ledger gave less than that, by the last range.
    behind: u64,
    /// How long the one in use was when its use began.
    size: u64,
    loading: Loading,
    /// How long a range the newest load must bring at least.
    needed: u64,
    /// Unknown before the first load.
    step: Option<Step>,
    loaded_at: Option<Instant>,
    rate: Rate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loading {
    No,
    Yes,
    Failed(Instant),
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The ids, rising.
    Ids(Vec<Range<u64>>),
    /// There are not so many; nothing was used up. A load is under way.
    Short,
}

/// The ledger gives ids that it has given before.
#[derive(Debug)]
pub(super) struct Behind;

impl Buffer {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            ranges: VecDeque::new(),
            end: 0,
            floor: 0,
            behind: 0,
            size: 0,
            loading: Loading::No,
            needed: 0,
            step: None,
            loaded_at: None,
            rate: Rate::new(now),
        }
    }

    /// Takes `count` ids. Where a load is to be begun with this, answers how long the range is to be at least; where the tag has
    /// not so many numbers left, a range of [`Self::needed`] will do.
    pub(super) fn take(&mut self, count: u64, now: Instant) -> (Taken, Option<u64>) {
        let left = self.left();
        if left < count {
            return (Taken::Short, self.load(count - left, true, now));
        }
        self.rate.count(count, now);
        let mut taken = Vec::with_capacity(1);
        let mut missing = count;
        while missing > 0 {
            let range = self.ranges.front_mut().expect("there are as many left as were asked for");
            let from = range.start;
            range.start = range.end.min(from + missing);
            taken.push(from..range.start);
            missing -= range.start - from;
            if range.is_empty() {
                self.ranges.pop_front();
                self.size = self.ranges.front().map_or(0, |next| next.end - next.start);
            }
        }
        let used = self.size - self.ranges.front().map_or(0, |range| range.end - range.start);
        let due = self.ranges.len() < 2 && used >= self.size / RANGE_USED_TO_LOAD;
        (Taken::Ids(taken), if due { self.load(1, false, now) } else { None })
    }

    /// A range was loaded, for a tag whose step is `base` now.
    ///
    /// # Errors
    /// [`Behind`]: ids as high as the whole range may have been given here. The next load goes past them.
    pub(super) fn loaded(&mut self, range: Range<u64>, base: u64, now: Instant) -> Result<(), Behind> {
        if range.start < self.end {
            // The ledger went back: what is in memory may be granted to others.
            self.drop_ranges();
        }
        self.behind = self.end.saturating_sub(range.end);
        let range = range.start.max(self.end)..range.end;
        if range.is_empty() {
            self.failed(now);
            return Err(Behind);
        }
        self.end = range.end;
        let step = self.step.map_or_else(|| Step::new(base), |step| step.rebase(base));
        let lasted = self.loaded_at.map(|before| now.saturating_duration_since(before));
        self.step = Some(lasted.map_or(step, |lasted| step.after(lasted)));
        (self.loaded_at, self.loading) = (Some(now), Loading::No);
        // Nothing may be left of one that was taken before the start was raised. Its callers begin another load.
        let range = range.start.max(self.floor)..range.end;
        if range.is_empty() {
            return Ok(());
        }
        if self.ranges.is_empty() {
            self.size = range.end - range.start;
        }
        self.ranges.push_back(range);
        Ok(())
    }

    /// Forgets the ids in memory. None that may have been given comes again.
    pub(super) fn drop_ranges(&mut self) {
        self.ranges.clear();
        self.size = 0;
    }

    /// Forgets the ids below `start`: those in memory, and those of a range that is on its way. A load that begins later brings
    /// none of them.
    pub(super) fn forget_below(&mut self, start: u64) {
        if self.ranges.front().is_some_and(|range| range.start < start) {
            self.ranges.retain(|range| range.end > start);
            if let Some(range) = self.ranges.front_mut() {
                range.start = range.start.max(start);
            }
            self.size = self.ranges.front().map_or(0, |range| range.end - range.start);
        }
        self.floor = self.floor.max(start);
    }

    /// A load came to nothing.
    pub(super) fn failed(&mut self, now: Instant) {
        self.loading = Loading::Failed(now);
    }

    /// How long the range that is being loaded must be for the request that began the load: what it lacked, and what the ledger
    /// is behind.
    pub(super) const fn needed(&self) -> u64 {
        self.needed
    }

    /// Ids in memory.
    pub(super) fn left(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// How long the next range will be; `None` before the first.
    pub(super) fn step(&self) -> Option<u64> {
        self.step.map(Step::now)
    }

    /// Ids taken in a second, of late.
    pub(super) fn rate(&mut self, now: Instant) -> f64 {
        self.rate.per_second(now)
    }

    /// Begins a load if none is under way.
    fn load(&mut self, missing: u64, urgent: bool, now: Instant) -> Option<u64> {
        match self.loading {
            Loading::Yes => return None,
            Loading::Failed(at) if !urgent && now < at + TRY_AGAIN_AFTER => return None,
            Loading::No | Loading::Failed(_) => {}
        }
        (self.loading, self.floor) = (Loading::Yes, 0);
        self.needed = missing + self.behind;
        Some(self.step.map_or(missing, |step| step.now().max(missing)) + self.behind)
    }
}

/// Counts over two spells of time, so that the rate is always of a whole one.
#[derive(Debug)]
struct Rate {
    since: Instant,
    counted: u64,
    before: f64,
}

impl Rate {
    const fn new(now: Instant) -> Self {
        Self { since: now, counted: 0, before: 0.0 }
    }

    fn count(&mut self, count: u64, now: Instant) {
        self.turn(now);
        self.counted += count;
    }

    fn per_second(&mut self, now: Instant) -> f64 {
        self.turn(now);
        // The spell before counts for the part of this one that is still to come.
        let over = now.saturating_duration_since(self.since).as_secs_f64() / RATE_OVER.as_secs_f64();
        self.counted as f64 / RATE_OVER.as_secs_f64() + self.before * (1.0 - over)
    }

    fn turn(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since);
        if passed >= RATE_OVER {
            let just_over = passed < RATE_OVER * 2;
            self.before = if just_over { self.counted as f64 / passed.as_secs_f64() } else { 0.0 };
            (self.since, self.counted) = (now, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(ranges: &[(u64, u64)], now: Instant) -> Buffer {
        let mut buffer = Buffer::new(now);
        for (first, end) in ranges {
            assert!(matches!(buffer.take(100_000, now), (Taken::Short, Some(_))));
            buffer.loaded(*first..*end, 100, now).unwrap();
        }
        buffer
    }

    fn ids(taken: (Taken, Option<u64>)) -> (Vec<(u64, u64)>, bool) {
        let (Taken::Ids(ids), load) = taken else { panic!("{taken:?}") };
        (ids.into_iter().map(|range| (range.start, range.end)).collect(), load.is_some())
    }

    #[test]
    fn the_next_range_is_loaded_when_a_tenth_is_used_and_only_once() {
        let now = Instant::now();
        let mut buffer = buffer(&[(1, 101)], now);
        assert_eq!(ids(buffer.take(9, now)), (vec![(1, 10)], false));
        assert_eq!(ids(buffer.take(1, now)), (vec![(10, 11)], true));
        assert_eq!(ids(buffer.take(1, now)), (vec![(11, 12)], false), "one load in flight");
        buffer.loaded(201..301, 100, now).unwrap();
        assert_eq!(ids(buffer.take(50, now)), (vec![(12, 62)], false), "two ranges are enough");
        assert_eq!(ids(buffer.take(39, now)), (vec![(62, 101)], false), "a fresh range has nothing used");
        assert_eq!(ids(buffer.take(10, now)), (vec![(201, 211)], true));
    }

    #[test]
    fn a_batch_may_span_ranges_and_is_given_whole_or_not_at_all() {
        let now = Instant::now();
        let mut buffer = buffer(&[(1, 11), (21, 31)], now);
        assert_eq!(buffer.take(21, now), (Taken::Short, Some(200)), "the step has doubled by now");
        assert_eq!(buffer.take(30, now), (Taken::Short, None));
        assert_eq!(buffer.left(), 20, "nothing was used up");
        assert_eq!(ids(buffer.take(15, now)).0, [(1, 11), (21, 26)]);
        buffer.loaded(41..51, 100, now).unwrap();
        assert_eq!(ids(buffer.take(15, now)), (vec![(26, 31), (41, 51)], true), "nothing is left");
    }

    #[test]
    fn a_load_is_as_long_as_the_wish_needs() {
        let now = Instant::now();
        let mut buffer = buffer(&[(1, 101)], now);
        assert_eq!(buffer.take(10_000, now), (Taken::Short, Some(9_900)));
    }

    #[test]
    fn a_load_that_failed_is_tried_again_by_the_next_request() {
        let now = Instant::now();
        let mut buffer = buffer(&[(1, 101)], now);
        assert!(ids(buffer.take(20, now)).1);
        buffer.failed(now);
        assert!(!ids(buffer.take(1, now)).1, "not at once, where nobody waits for it");
        assert!(ids(buffer.take(1, now + TRY_AGAIN_AFTER)).1);
        buffer.failed(now);
        assert_eq!(buffer.take(80, now), (Taken::Short, Some(100)), "at once, where somebody does");
    }

    #[test]
    fn what_was_given_is_not_given_again_though_the_ledger_does() {
        let now = Instant::now();
        let mut buffer = buffer(&[(1, 101), (101, 201)], now);
        assert_eq!(ids(buffer.take(10, now)).0, [(1, 11)]);
        assert!(buffer.loaded(51..101, 100, now).is_err());
        assert_eq!(buffer.left(), 0, "others may have been given what is in memory");
        let (taken, at_least) = buffer.take(10, now);
        assert_eq!((taken, at_least), (Taken::Short, Some(300)), "a step, and what the ledger is behind");
        assert_eq!(buffer.needed(), 110, "what is missing, and what the ledger is behind");
        buffer.loaded(101..401, 100, now).unwrap();
        assert_eq!(ids(buffer.take(10, now)).0, [(201, 211)]);
        buffer.drop_ranges();
        assert_eq!(buffer.take(10, now).1, Some(400), "nothing more is to be made up for");
    }

    #[test]
    fn ids_below_a_raised_start_are_given_neither_from_memory_nor_from_a_range_on_its_way() {
        let now = Instant::now();
        let mut buffer = buffer(&[(1, 101), (1_000, 1_100)], now);
        buffer.forget_below(1_000);
        assert_eq!(buffer.left(), 100, "said again it costs no ids");
        buffer.forget_below(1_000);
        assert_eq!(ids(buffer.take(10, now)), (vec![(1_000, 1_010)], true));
        buffer.forget_below(1_050);
        assert_eq!(ids(buffer.take(10, now)), (vec![(1_050, 1_060)], false));
        buffer.forget_below(2_000);
        assert_eq!(buffer.left(), 0);
        assert_eq!(buffer.take(10, now), (Taken::Short, None), "what is on its way comes first");
        buffer.loaded(1_100..1_200, 100, now).expect("no id of it was given before");
        assert_eq!(buffer.left(), 0);
        assert!(matches!(buffer.take(10, now), (Taken::Short, Some(_))), "another load");
        buffer.forget_below(3_000);
        buffer.loaded(2_950..3_050, 100, now).unwrap();
        assert_eq!(ids(buffer.take(10, now)).0, [(3_000, 3_010)]);
    }

    #[test]
    fn the_rate_is_of_the_last_spell() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut rate = Rate::new(start);
        for second in 0..=25 {
            rate.count(100, at(second));
        }
        assert!((90.0..=110.0).contains(&rate.per_second(at(25))), "{rate:?}");
        assert!(rate.per_second(at(40)) < 100.0);
        assert!(rate.per_second(at(60)) < f64::EPSILON, "long over");
    }
}
