//! Tables of steps and holds, and clocks that jump at random.

use super::*;
use crate::lane::spread::Spread;
use crate::lane::testing::seed;

const SKEW: Duration = Duration::from_secs(2);
const TEN_MINUTES: i64 = 600_000;

/// A database's clock that can be set, seen over a connection that takes `way_ms` in each direction.
struct World {
    begun: Instant,
    now_ms: i64,
    offset_ms: i64,
    way_ms: i64,
    slept_ms: u64,
    clock: DatabaseClock,
}

impl World {
    fn new() -> Self {
        let offset_ms = 1_700_000_000_000;
        Self {
            begun: Instant::now(),
            now_ms: 0,
            offset_ms,
            way_ms: 1,
            slept_ms: 0,
            clock: DatabaseClock::new(SKEW),
        }
    }

    fn own(&self) -> Instant {
        self.begun + Duration::from_millis(self.now_ms.unsigned_abs())
    }

    fn shows(&self) -> Timestamp {
        Timestamp::from_micros((self.offset_ms + self.now_ms) * 1_000)
    }

    fn looks(&mut self) -> Option<Jump> {
        let sent = self.own();
        self.now_ms += self.way_ms;
        let at = self.shows();
        self.now_ms += self.way_ms;
        let received = self.own();
        self.clock.saw(at, sent, received, Duration::from_millis(self.slept_ms))
    }

    /// The machine sleeps, and the database's clock goes on.
    fn sleep(&mut self, length_ms: i64) {
        self.offset_ms += length_ms;
        self.slept_ms += length_ms.unsigned_abs();
    }

    /// Time passes, with a look every 300 ms.
    fn pass(&mut self, length_ms: i64) -> Vec<Jump> {
        let until = self.now_ms + length_ms;
        let mut jumps = Vec::new();
        while self.now_ms + 300 < until {
            self.now_ms += 300 - 2 * self.way_ms;
            jumps.extend(self.looks());
        }
        self.now_ms = until;
        jumps
    }

    fn grant(&self, length_ms: u64) -> (Timestamp, Timestamp) {
        (self.shows(), self.shows().plus_ms(length_ms))
    }

    /// What is found of one hold.
    fn overdue(&self, (granted_at, held_until): (Timestamp, Timestamp)) -> Overdue {
        let read_at = self.shows();
        let (nonce, hold) = (Nonce::new(0).unwrap(), HoldId::from_u128(1));
        let held = HeldNonce { nonce, hold, granted_at, held_until, read_at };
        self.clock.overdue(&[held], 10, 10, self.own())
    }

    fn left_ms(&self, (written_at, held_until): (Timestamp, Timestamp)) -> u64 {
        let status = crate::nonce::Status::Held;
        let (nonce, hold) = (Nonce::new(0).unwrap(), HoldId::from_u128(1));
        let row = Row { nonce, status, hold, written_at, held_until, tx_hash: None };
        self.clock.with_left(row, self.own()).left_ms
    }
}

fn due(overdue: &Overdue) -> Option<(u64, bool)> {
    overdue.due.first().map(|due| (due.early_ms, due.is_doubtful))
}

#[test]
fn a_hold_ends_when_both_clocks_say_so() {
    let mut world = World::new();
    world.pass(1_000);
    let hold = world.grant(60_000);
    world.pass(59_000);
    assert_eq!(world.overdue(hold), Overdue { later: Some(Duration::from_secs(1)), ..Overdue::default() });
    assert!((900..=1_000).contains(&world.left_ms(hold)), "{}", world.left_ms(hold));
    world.pass(1_000);
    assert_eq!(due(&world.overdue(hold)), Some((0, false)));
    assert_eq!(world.left_ms(hold), 0);
}

#[test]
fn a_jump_forward_holds_expiry_back_by_as_much_and_is_reported_once() {
    for (jump_ms, is_reported, is_doubtful) in [
        (500, false, false),
        (1_500, true, false),
        (TEN_MINUTES, true, true),
        (100 * 365 * 86_400_000, true, true),
    ] {
        let mut world = World::new();
        world.pass(1_000);
        let hold = world.grant(60_000);
        world.pass(30_000);
        world.offset_ms += jump_ms;
        let jumps = world.pass(29_000);
        assert_eq!(jumps.len(), usize::from(is_reported), "{jumps:?}");
        assert!(jumps.iter().all(|jump| (jump.by_ms - jump_ms).abs() <= 2), "{jumps:?}");
        let found = world.overdue(hold);
        assert!(found.due.is_empty(), "{jump_ms}: {found:?}");
        if jump_ms > 1_000 {
            let next = found.next.unwrap();
            let kept = LastKept { held_until: hold.1, holds: 1 };
            assert!(found.last_kept == Some(kept) && next <= Duration::from_millis(1_010), "{found:?}");
        }
        assert!((900..=1_000).contains(&world.left_ms(hold)));
        world.pass(1_010);
        assert_eq!(due(&world.overdue(hold)), Some((0, is_doubtful)), "{jump_ms}");
        // What is granted after the jump is not in doubt.
        let later = world.grant(60_000);
        world.pass(59_000);
        assert!(world.overdue(later).due.is_empty());
        world.pass(1_010);
        assert_eq!(due(&world.overdue(later)), Some((0, false)));
    }
}

#[test]
fn a_look_has_come_to_the_last_hold_that_is_kept_before_one_that_it_does_not_answer() {
    let mut world = World::new();
    world.pass(1_000);
    let (ended, kept) = (world.grant(1_000), world.grant(600_000));
    world.pass(30_000);
    world.offset_ms += TEN_MINUTES;
    world.pass(1_000);
    let read_at = world.shows();
    let (nonce, hold) = (Nonce::new(0).unwrap(), HoldId::from_u128(1));
    let read = [ended, kept, kept, ended].map(|(granted_at, held_until)| HeldNonce {
        nonce,
        hold,
        granted_at,
        held_until,
        read_at,
    });
    let overdue = |max, due_max| world.clock.overdue(&read, max, due_max, world.own());
    for (max, due_max, due, holds, has_more) in
        [(5, 5, 2, 2, false), (4, 4, 2, 2, true), (3, 4, 1, 2, true), (2, 4, 1, 1, true), (4, 1, 1, 2, true)]
    {
        let found = overdue(max, due_max);
        assert_eq!((found.due.len(), found.has_more), (due, has_more), "{max} {due_max}: {found:?}");
        assert_eq!(found.last_kept, Some(LastKept { held_until: kept.1, holds }), "{max} {due_max}");
    }
    let none = overdue(5, 0);
    assert!(none.has_more && none.last_kept.is_none() && none.due.is_empty(), "{none:?}");
}

#[test]
fn a_jump_back_makes_no_hold_longer() {
    for jump_ms in [1_500, TEN_MINUTES, 50 * 365 * 86_400_000] {
        let mut world = World::new();
        world.pass(1_000);
        let hold = world.grant(60_000);
        world.pass(30_000);
        world.offset_ms -= jump_ms;
        let jumps = world.pass(29_000);
        assert_eq!(jumps.len(), 1, "{jumps:?}");
        assert!(world.overdue(hold).due.is_empty());
        assert!((900..=1_000).contains(&world.left_ms(hold)), "{}", world.left_ms(hold));
        world.pass(1_010);
        assert_eq!(world.left_ms(hold), 0);
        if jump_ms > 30_000 {
            let (early_ms, is_doubtful) = due(&world.overdue(hold)).unwrap();
            assert!(early_ms.abs_diff(jump_ms as u64) < 100 && !is_doubtful, "{early_ms}");
        }
    }
}

#[test]
fn what_the_machine_slept_counts_for_a_hold_that_is_answered_with_and_not_for_one_that_ends() {
    let mut world = World::new();
    world.pass(1_000);
    let hold = world.grant(120_000);
    world.sleep(60_000);
    world.looks();
    assert!((59_900..=60_000).contains(&world.left_ms(hold)), "{}", world.left_ms(hold));
    world.pass(1_000);
    let later = world.grant(120_000);
    world.pass(1_000);
    assert!((118_900..=119_000).contains(&world.left_ms(later)), "{}", world.left_ms(later));
    // Its caller may have slept as well.
    world.pass(60_000);
    assert_eq!(world.left_ms(hold), 0);
    assert!(world.overdue(hold).due.is_empty());
    world.pass(60_010);
    assert!(due(&world.overdue(hold)).is_some());
}

#[test]
fn what_is_granted_after_the_last_jump_is_not_in_doubt() {
    let mut world = World::new();
    world.pass(1_000);
    for step_ms in [TEN_MINUTES, -TEN_MINUTES, -TEN_MINUTES] {
        world.offset_ms += step_ms;
        assert_eq!(world.pass(1_000).len(), 1);
        let hold = world.grant(5_000);
        world.pass(4_000);
        assert!(world.overdue(hold).due.is_empty(), "{step_ms}");
        world.pass(1_010);
        assert_eq!(due(&world.overdue(hold)), Some((0, false)), "{step_ms}");
    }
}

#[test]
fn the_search_ahead_ends_when_the_clock_is_where_it_was() {
    let mut world = World::new();
    world.pass(1_000);
    world.offset_ms -= 10_000;
    world.pass(1_000);
    assert!((9_900..10_100).contains(&world.clock.behind_ms(world.own())));
    world.pass(9_500);
    assert_eq!(world.clock.behind_ms(world.own()), 0);
}

#[test]
fn what_was_written_before_a_jump_forward_looks_older_by_as_much() {
    let mut world = World::new();
    let ahead_ms = |world: &World| world.clock.ahead_ms(Duration::from_secs(60), world.own());
    world.pass(1_000);
    assert_eq!(ahead_ms(&world), 0);
    world.offset_ms += TEN_MINUTES;
    world.pass(1_000);
    assert!(ahead_ms(&world).abs_diff(TEN_MINUTES as u64) < 5, "{}", ahead_ms(&world));
    world.offset_ms -= TEN_MINUTES;
    world.pass(1_000);
    assert!(ahead_ms(&world) < 5, "{}", ahead_ms(&world));
    world.offset_ms += TEN_MINUTES;
    world.pass(58_000);
    assert!(ahead_ms(&world).abs_diff(TEN_MINUTES as u64) < 5, "{}", ahead_ms(&world));
    // What is not older than a minute was written behind the jump.
    world.pass(3_000);
    assert_eq!(ahead_ms(&world), 0);
}

#[test]
fn a_process_that_has_just_started_counts_earlier_holds_from_its_start_or_as_an_hour_younger() {
    // Of an hour that the clock may have jumped it knows nothing; a hold that is overdue by more has ended.
    for (length_ms, passed_ms, waits_ms) in [
        (60_000, 10_000, 60_000),
        (60_000, 600_000, 60_000),
        (60_000, 3_600_000 + 61_000, 0),
        (7_200_000, 7_100_000, 100_000 + 3_600_000),
    ] {
        let mut world = World::new();
        let hold = world.grant(length_ms);
        world.now_ms += passed_ms;
        world.looks();
        if waits_ms > 0 {
            world.pass(waits_ms - 1_000);
            assert!(world.overdue(hold).due.is_empty(), "{length_ms} {passed_ms}");
        }
        world.pass(1_010);
        assert_eq!(due(&world.overdue(hold)), Some((0, false)), "{length_ms} {passed_ms}");
    }
}

#[test]
fn processes_that_start_one_after_the_other_end_a_hold_an_hour_late_at_most() {
    let mut world = World::new();
    let hold = world.grant(30_000);
    while world.overdue(hold).due.is_empty() {
        // Each starts before the hold has lasted its length by the count of the one before it.
        world.clock = DatabaseClock::new(SKEW);
        world.looks();
        world.pass(25_000);
    }
    assert!((3_630_000..3_660_000).contains(&world.now_ms), "{}", world.now_ms);
}

#[test]
fn a_process_that_has_seen_nothing_ends_nothing() {
    let mut world = World::new();
    let hold = world.grant(60_000);
    world.now_ms += 120_000;
    assert!(world.overdue(hold).due.is_empty());
    assert_eq!((world.left_ms(hold), world.clock.behind_ms(world.own())), (0, 0));
}

#[test]
fn a_late_answer_from_before_a_jump_is_no_second_jump() {
    let mut world = World::new();
    world.pass(1_000);
    let (sent, before) = (world.own(), world.shows());
    world.offset_ms += TEN_MINUTES;
    world.now_ms += 10;
    assert!(world.looks().is_some());
    assert_eq!(world.clock.saw(before, sent, world.own(), Duration::ZERO), None);
    world.now_ms += 10;
    assert_eq!(world.looks(), None);
}

#[test]
fn a_slow_answer_shows_no_jump_and_a_clock_that_drifts_none_either() {
    let mut world = World::new();
    world.pass(1_000);
    world.way_ms = 4_000;
    assert_eq!(world.looks(), None);
    world.way_ms = 1;
    let hold = world.grant(86_400_000);
    // Half a part in a thousand: 43 s a day.
    for _ in 0..86_400 {
        world.offset_ms += i64::from(world.now_ms % 2_000 < 1_000);
        world.now_ms += 998;
        assert_eq!(world.looks(), None);
    }
    let age = world.clock.age(hold.0, world.own());
    assert!(age.at_most.unwrap() >= age.at_least);
}

#[test]
fn no_more_frames_than_the_limit_are_kept() {
    let mut world = World::new();
    for number in 0..1_000 {
        world.offset_ms += if number % 2 == 0 { 5_000 } else { -5_000 };
        world.now_ms += 10;
        world.looks();
    }
    assert_eq!(world.clock.frames.len(), FRAMES_MAX);
}

/// Clocks that jump at random: no hold ends inside its length, none is answered as longer than it is, and each ends.
#[test]
fn holds_keep_their_length_under_any_clock() {
    let first = seed();
    for case in 0..100 {
        let seed = first.wrapping_add(case);
        let mut random = Spread::new(seed);
        let mut world = World::new();
        world.way_ms = random.below(20) as i64;
        world.pass(1_000);
        let mut live: Vec<((Timestamp, Timestamp), i64, u64, i64)> = Vec::new();
        let mut ended = 0;
        for _ in 0..200 {
            match random.below(10) {
                0 => {
                    let size = [200, 1_200, 30_000, TEN_MINUTES][random.below(4) as usize];
                    world.offset_ms += if random.below(2) == 0 { size } else { -size };
                }
                1..6 => {
                    let length = 100 + random.below(100_000);
                    live.push((world.grant(length), world.now_ms, world.slept_ms, length as i64));
                }
                6 => world.sleep([200, 30_000, TEN_MINUTES][random.below(3) as usize]),
                _ => drop(world.pass(1 + random.below(20_000) as i64)),
            }
            // As an owner does: what it reads tells it the time.
            world.looks();
            live.retain(|(hold, since, slept_since, length)| {
                let passed = world.now_ms - since;
                let slept = (world.slept_ms - slept_since) as i64;
                let left = world.left_ms(*hold) as i64;
                assert!(
                    left <= (length - passed - slept).max(0) + 1,
                    "seed {seed}: {left} of {length} after {passed}, of which it slept {slept} more"
                );
                let is_due = !world.overdue(*hold).due.is_empty();
                assert!(!is_due || passed >= length - 1, "seed {seed}: ended {passed} into {length}");
                ended += usize::from(is_due);
                !is_due
            });
        }
        assert!(ended > 0 || live.len() < 50, "seed {seed}: nothing ends");
        // The clock is left alone: each hold ends when it has come to where it was.
        world.pass(12 * TEN_MINUTES);
        let furthest = live.iter().map(|(hold, ..)| hold.1).max();
        if let Some(furthest) = furthest {
            world.pass(furthest.ms_since(world.shows()) as i64 + 100_000);
        }
        for (hold, ..) in live {
            assert!(!world.overdue(hold).due.is_empty(), "seed {seed}: {hold:?} never ends");
        }
    }
}

#[test]
fn what_the_clock_shows_now_is_known_through_jumps_and_between_samples() {
    let mut world = World::new();
    assert_eq!(world.clock.shows(world.own()), None);
    for jump_ms in [0, TEN_MINUTES, -3 * TEN_MINUTES] {
        world.offset_ms += jump_ms;
        world.pass(1_000);
        let known = world.clock.shows(world.own()).unwrap();
        let off = known.as_micros().abs_diff(world.shows().as_micros());
        assert!(off <= 2_000, "{off} us off after a jump of {jump_ms} ms");
    }
}
