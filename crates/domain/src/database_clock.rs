//! Tells how long ago a moment of the database's clock was, by this process's own monotonic clock.
//!
//! What lives here: what the process has seen of the database's clock since it started, and from that the age of holds.
//! What must never: a clock; every time is an argument.
//!
//! Each answer of the ledger that names the database's time is a *sample*: the clock showed that time between the sending
//! of the request and the arrival of the answer. While the samples agree on the difference between the two clocks, they
//! belong to one *frame*. A sample that does not agree shows a step of the database's clock, and begins the next frame. A
//! moment of the database's clock belongs to the frames that can have shown it: to none if a step skipped it, to two if a
//! step back repeated it. Where that leaves a choice, a hold counts as young as it can be where the question is whether it has
//! ended, and as old as it can be where a caller is to get it.
//!
//! This process's clock stands still while its machine sleeps, and other instances go on. So what the machine slept counts
//! for a hold that is to be answered with, and not for one that is to end: its caller may have slept as well.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::id::{HoldId, Nonce};
use crate::nonce::Row;
use crate::time::Timestamp;

/// A smaller step of the clock is not told from a clock that runs fast or slow.
pub const STEP_MIN: Duration = Duration::from_millis(50);
/// A larger step is reported: [`DatabaseClock::saw`].
pub const JUMP_MIN: Duration = Duration::from_secs(1);
/// A process that has just started does not know whether the clock stepped before. It counts earlier holds as younger by
/// as much as this, or as granted when it started: whichever makes them older, so that starts one after the other lengthen a
/// hold by no more than this.
pub const UNSEEN_STEP_MAX: Duration = Duration::from_secs(3_600);
/// Frames remembered. The oldest one is forgotten first.
const FRAMES_MAX: usize = 64;

const STEP: i64 = STEP_MIN.as_micros() as i64;
const UNSEEN: i64 = UNSEEN_STEP_MAX.as_micros() as i64;

/// A step of the database's clock of more than [`JUMP_MIN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jump {
    /// How far, in milliseconds. Positive is forward.
    pub by_ms: i64,
}

/// A hold that ran out by the database's clock, or may have run out by this process's clock; as the ledger has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldNonce {
    /// Which nonce.
    pub nonce: Nonce,
    /// Its hold.
    pub hold: HoldId,
    /// When it was granted, by the database's clock.
    pub granted_at: Timestamp,
    /// When it runs out, by the database's clock.
    pub held_until: Timestamp,
    /// The database's time of reading this.
    pub read_at: Timestamp,
}

/// A hold that ran out by both clocks, or by this process's clock alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueHold {
    /// Which nonce.
    pub nonce: Nonce,
    /// Its hold.
    pub hold: HoldId,
    /// How far before its end by the database's clock it is ended, in milliseconds: more than 0 after a step back.
    pub early_ms: u64,
    /// The clock jumped forward too far during the hold: the nonce is to be quarantined, whatever the policy says.
    pub is_doubtful: bool,
}

/// Where a look for holds that ran out has come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastKept {
    /// When the last hold that was kept runs out, by the database's clock.
    pub held_until: Timestamp,
    /// How many were kept that run out just then: 1 at least.
    pub holds: usize,
}

/// What was found among the holds that were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overdue {
    /// Those that ran out, longest overdue first.
    pub due: Vec<DueHold>,
    /// The last that did not by this process's clock, though it may have by the database's: it is kept. What was read before
    /// it is due, or kept as well.
    pub last_kept: Option<LastKept>,
    /// When the first of those that are kept does.
    pub next: Option<Duration>,
    /// When, by the database's clock, the first does that has not by either.
    pub later: Option<Duration>,
    /// There may be more than were read.
    pub has_more: bool,
}

/// A row, and what is left of its hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRow {
    /// The row.
    pub row: Row,
    /// What is left of its hold at least, in milliseconds; 0 if it ran out, or nobody can tell.
    pub left_ms: u64,
}

/// The database's clock as this process has seen it.
#[derive(Clone, Debug)]
pub struct DatabaseClock {
    /// A larger step forward makes holds doubtful.
    skew_max: Duration,
    /// Where this process's clock is counted from: the first sample.
    origin: Option<Instant>,
    frames: VecDeque<Frame>,
    /// How long the machine has slept, as was told last; in microseconds.
    slept: i64,
}

/// A length of time in which the difference between the clocks stayed the same. Microseconds, from the origin.
#[derive(Clone, Copy, Debug)]
struct Frame {
    /// It began no earlier.
    begin: i64,
    /// It has begun by then: its first sample had arrived.
    surely: i64,
    /// When the newest of its samples was sent.
    last_sent: i64,
    /// The database's time minus this process's is at least this …
    low: i64,
    /// … and at most this.
    high: i64,
    /// The step with which it began.
    step: i64,
    /// How long the machine had slept when its first sample had arrived.
    slept: i64,
}

/// How long ago something was, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Age {
    at_least: i64,
    /// With what the machine slept; `None` if nobody can tell.
    at_most: Option<i64>,
    /// The clock may have stepped since.
    has_stepped: bool,
    is_doubtful: bool,
}

impl DatabaseClock {
    /// Of a process that has seen nothing yet. A step forward of more than `skew_max` makes holds doubtful.
    #[must_use]
    pub const fn new(skew_max: Duration) -> Self {
        Self { skew_max, origin: None, frames: VecDeque::new(), slept: 0 }
    }

    /// The clock showed `at` between the two moments, and the machine had slept for so long since it was booted. Answers the
    /// jump that this shows.
    pub fn saw(&mut self, at: Timestamp, sent: Instant, received: Instant, slept: Duration) -> Option<Jump> {
        self.origin.get_or_insert(sent);
        let slept = micros(slept);
        self.slept = self.slept.max(slept);
        let (sent, received) = (self.micros(sent), self.micros(received));
        let (low, high) = (at.as_micros().saturating_sub(received), at.as_micros().saturating_sub(sent));
        let Some(frame) = self.frames.back_mut() else {
            let begin = i64::MIN;
            let first = Frame { begin, surely: received, last_sent: sent, low, high, step: 0, slept };
            self.frames.push_back(first);
            return None;
        };
        if low <= frame.high.saturating_add(STEP) && high >= frame.low.saturating_sub(STEP) {
            frame.agree(low, high);
            frame.last_sent = frame.last_sent.max(sent);
            return None;
        }
        // An answer that comes late may tell of the frame before.
        if sent < frame.surely {
            return None;
        }
        let step = (low / 2 + high / 2).saturating_sub(frame.low / 2 + frame.high / 2);
        let begin = frame.last_sent;
        self.frames.push_back(Frame { begin, surely: received, last_sent: sent, low, high, step, slept });
        if self.frames.len() > FRAMES_MAX {
            self.frames.pop_front();
            if let Some(first) = self.frames.front_mut() {
                first.begin = i64::MIN;
            }
        }
        let is_jump = step.unsigned_abs() > JUMP_MIN.as_micros() as u64;
        is_jump.then_some(Jump { by_ms: step / 1_000 })
    }

    /// What the clock shows now, as far as this process can tell; `None` before the first sample.
    #[must_use]
    pub fn shows(&self, now: Instant) -> Option<Timestamp> {
        let current = self.frames.back()?;
        let difference = current.low / 2 + current.high / 2;
        Some(Timestamp::from_micros(self.micros(now).saturating_add(difference)))
    }

    /// How far ahead of the database's time holds may have run out by this process's clock, in milliseconds: 0 unless the
    /// database's clock stepped back and has not yet come to where it was.
    #[must_use]
    pub fn behind_ms(&self, now: Instant) -> u64 {
        let Some(current) = self.frames.back() else { return 0 };
        let shows = self.micros(now).saturating_add(current.low);
        let behind = self.frames.iter().zip(self.frames.iter().skip(1)).filter_map(|(frame, next)| {
            let showed = next.surely.saturating_add(frame.high);
            (showed > shows.saturating_add(STEP)).then(|| frame.high.saturating_sub(current.low))
        });
        u64::try_from(behind.max().unwrap_or(0)).map_or(0, |behind| behind.div_ceil(1_000))
    }

    /// Whether the clock was read after this time, or as shortly before.
    #[must_use]
    pub fn was_read(&self, after: Instant, or_before: Duration) -> bool {
        let since = self.micros(after).saturating_sub(micros(or_before));
        self.frames.back().is_some_and(|frame| frame.last_sent >= since)
    }

    /// How far the clock has stepped forward since some moment of the last `within`, in milliseconds: what was written
    /// then, before a step, looks so much older than it is. What was written before that is older than `within` in any case.
    #[must_use]
    pub fn ahead_ms(&self, within: Duration, now: Instant) -> u64 {
        let Some(current) = self.frames.back() else { return 0 };
        let since = self.micros(now).saturating_sub(micros(within));
        let before =
            self.frames.iter().zip(self.frames.iter().skip(1)).filter(|(_, next)| next.surely >= since);
        let ahead = before.map(|(frame, _)| current.high.saturating_sub(frame.low)).max().unwrap_or(0);
        u64::try_from(ahead).map_or(0, |ahead| ahead.div_ceil(1_000))
    }

    /// Which of the holds ran out. They are in the order in which they do by the database's clock. `max` were asked for, and the
    /// next behind them; `due_max` are answered at most, and what comes behind these is not looked at.
    #[must_use]
    pub fn overdue(&self, holds: &[HeldNonce], max: usize, due_max: usize, now: Instant) -> Overdue {
        let mut overdue = Overdue { has_more: holds.len() >= max, ..Overdue::default() };
        let behind = i64::try_from(self.behind_ms(now)).unwrap_or(i64::MAX).saturating_mul(1_000);
        for (number, held) in holds.iter().enumerate() {
            let early = held.held_until.as_micros().saturating_sub(held.read_at.as_micros());
            if early > behind {
                overdue.later = Some(Duration::from_micros((early - behind).unsigned_abs()));
                overdue.has_more = number >= max;
                break;
            }
            // There may be others before it that were not read.
            if number >= max {
                break;
            }
            let age = self.age(held.granted_at, now);
            let length = held.held_until.as_micros().saturating_sub(held.granted_at.as_micros());
            let is_late = held.held_until <= held.read_at;
            // Without a step in between, the database's word is exact; this process's lacks what the answer took.
            let is_exact = is_late && !age.has_stepped;
            let missing = length - age.at_least - if is_exact { STEP } else { 0 };
            if missing > 0 {
                let next = Duration::from_micros(missing.unsigned_abs());
                let same = overdue.last_kept.filter(|last| last.held_until == held.held_until);
                let holds = same.map_or(0, |last| last.holds) + 1;
                overdue.last_kept = Some(LastKept { held_until: held.held_until, holds });
                overdue.next = Some(overdue.next.map_or(next, |earlier| earlier.min(next)));
            } else if overdue.due.len() < due_max {
                let early_ms = if is_late { 0 } else { held.held_until.ms_since(held.read_at) + 1 };
                let (nonce, hold, is_doubtful) = (held.nonce, held.hold, age.is_doubtful);
                overdue.due.push(DueHold { nonce, hold, early_ms, is_doubtful });
            } else {
                overdue.has_more = true;
                break;
            }
        }
        overdue
    }

    /// A row, with what is left of its hold. What the machine slept is known up to the last sample.
    #[must_use]
    pub fn with_left(&self, row: Row, now: Instant) -> ReadRow {
        let length = row.held_until.as_micros().saturating_sub(row.written_at.as_micros());
        let left = self.age(row.written_at, now).at_most.map_or(0, |age| length.saturating_sub(age));
        ReadRow { row, left_ms: u64::try_from(left).map_or(0, |left| left / 1_000) }
    }

    fn age(&self, at: Timestamp, now: Instant) -> Age {
        let (at, now) = (at.as_micros(), self.micros(now));
        let (mut latest, mut earliest) = (None::<i64>, None::<i64>);
        let (mut oldest_frame, mut newest_frame) = (None::<usize>, None::<usize>);
        for (number, frame) in self.frames.iter().enumerate() {
            let end = self.frames.get(number + 1).map_or(now, |next| next.surely);
            let (from, to) = (at.saturating_sub(frame.high), at.saturating_sub(frame.low));
            if to < frame.begin.saturating_sub(STEP) || from > end.saturating_add(STEP) {
                continue;
            }
            let mut to = to.min(end);
            if number == 0 {
                to = to.max(to.saturating_add(UNSEEN).min(frame.surely));
            }
            oldest_frame = oldest_frame.or(Some(number));
            newest_frame = Some(number);
            latest = Some(latest.map_or(to, |latest| latest.max(to)));
            let from = from.max(frame.begin).min(end);
            earliest = Some(earliest.map_or(from, |earliest| earliest.min(from)));
        }
        // No frame has shown that time: it was before the first one, or between the last two.
        let latest = latest.or_else(|| self.frames.back().map(|current| current.surely)).unwrap_or(now);
        let after = |frame: Option<usize>| self.frames.iter().skip(frame.unwrap_or(0) + 1);
        let step_max = micros(self.skew_max);
        Age {
            at_least: now.saturating_sub(latest).max(0),
            at_most: earliest.map(|earliest| {
                now.saturating_sub(earliest).max(0).saturating_add(self.slept_since(earliest))
            }),
            has_stepped: after(oldest_frame).next().is_some(),
            // Its length is counted from the latest moment that it can be. Doubt beyond that would quarantine whatever is
            // granted while the clock repeats a time.
            is_doubtful: after(newest_frame).any(|frame| frame.step > step_max),
        }
    }

    /// How long the machine has slept since then, at most. The database's time tells how long ago what was written before
    /// the first sample was, sleep included.
    fn slept_since(&self, at: i64) -> i64 {
        let begun = self.frames.iter().rev().find(|frame| frame.surely < at).or_else(|| self.frames.front());
        begun.map_or(0, |frame| self.slept.saturating_sub(frame.slept).max(0))
    }

    /// This process's time, from the origin.
    fn micros(&self, at: Instant) -> i64 {
        let Some(origin) = self.origin else { return 0 };
        match at.checked_duration_since(origin) {
            Some(since) => micros(since),
            None => -micros(origin.saturating_duration_since(at)),
        }
    }
}

impl Frame {
    /// Narrows the difference between the clocks down by a sample; or follows it, as far as need be, where one of the
    /// clocks runs faster than the other.
    fn agree(&mut self, low: i64, high: i64) {
        let (narrowed_low, narrowed_high) = (self.low.max(low), self.high.min(high));
        (self.low, self.high) = match narrowed_low <= narrowed_high {
            true => (narrowed_low, narrowed_high),
            false if low > self.high => (low, low),
            false => (high, high),
        };
    }
}

fn micros(length: Duration) -> i64 {
    i64::try_from(length.as_micros()).unwrap_or(i64::MAX)
}
