//! The order of a line, whatever fits in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::LaneId;
use crate::job::Spec;
use crate::lane::limits::JOB_BYTES;
use crate::lane::spread::Spread;
use crate::lane::testing::seed;
use crate::lane::waiting_bytes::WaitingBytes;

use super::*;

fn job(seq: u64, bytes: usize) -> Arc<LiveJob> {
    let spec = Spec::new("x".repeat(bytes));
    let lane = LaneId::parse("session:s").unwrap();
    Arc::new(LiveJob { seq: Some(seq), ..LiveJob::created(JobId::from_u128(u128::from(seq)), lane, spec) })
}

fn next(seq: u64, bytes: usize) -> Next {
    Next { job: job(seq, bytes), due: Instant::now() }
}

/// In an instance that has room for so many bytes.
fn line(room: usize) -> SessionFifo {
    SessionFifo::new(WaitingBytes::new(room).share(0))
}

#[test]
fn one_has_its_turn_until_it_has_ended() {
    let mut line = line(1 << 20);
    assert!(line.is_free());
    line.join(next(1, 1));
    line.join(next(2, 1));
    let first = line.advance().unwrap().job.id;
    assert_eq!((line.turn(), line.advance().is_none()), (Some(first), true));
    line.ended(JobId::from_u128(9));
    assert!(line.advance().is_none());
    line.ended(first);
    assert_eq!(line.advance().unwrap().job.seq, Some(2));
    line.ended(JobId::from_u128(2));
    assert!(line.is_free() && line.is_empty());
}

#[test]
fn one_that_is_called_off_in_line_is_passed_over() {
    let mut line = line(1 << 20);
    (1..=3).for_each(|seq| line.join(next(seq, 1)));
    line.advance();
    line.ended(JobId::from_u128(2));
    line.ended(JobId::from_u128(1));
    assert_eq!(line.advance().unwrap().job.seq, Some(3));
}

#[test]
fn nothing_is_free_before_a_reservation_is_gone_or_has_run_out() {
    let (mut line, now) = (line(1 << 20), Instant::now());
    let (job, attempt) = (JobId::from_u128(1), Attempt::new(1));
    line.bar(job, attempt, now + Duration::from_secs(10));
    assert!(!line.is_free() && line.barred_until(now).is_some());
    assert!(!line.unbar(job, Attempt::new(2)) && !line.is_free());
    assert!(line.unbar(job, attempt) && line.is_free() && line.barred_until(now).is_none());
    line.bar(job, attempt, now + Duration::from_secs(10));
    assert_eq!(line.barred_until(now + Duration::from_secs(10)), None);
    assert!(line.is_free());
}

#[test]
fn a_line_that_is_held_back_goes_on_one_by_one_and_as_before_once_there_is_room() {
    let memory = WaitingBytes::new(4 * JOB_BYTES);
    let (mut line, mut others) = (SessionFifo::new(memory.share(0)), memory.share(0));
    (0..4).for_each(|_| others.add(0));
    line.join(next(1, 10));
    assert_eq!(line.advance().unwrap().job.seq, Some(1), "one is taken in whatever the others have");
    line.join(next(2, 10));
    line.join(next(3, 10));
    assert_eq!(line.to_read(), None, "it waits for the end of the first");
    line.ended(JobId::from_u128(1));
    assert_eq!(line.to_read(), Some(1));
    line.fill(vec![next(2, 10), next(3, 10)]);
    assert_eq!((line.next.len(), line.to_read()), (1, None));
    line.advance();
    others.clear();
    line.ended(JobId::from_u128(2));
    line.fill(vec![next(3, 10), next(4, 10)]);
    assert_eq!((line.next.len(), line.to_read()), (2, Some(4)));
    line.fill(Vec::new());
    line.join(next(5, 10));
    assert_eq!(line.next.len(), 3, "nothing is in the ledger alone");
    drop(line);
    assert_eq!(memory.total(), 0);
}

/// Whatever fits in memory, and however often it is read anew: each has its turn once, in the order of the places.
#[test]
fn of_any_line_all_have_their_turn_in_order() {
    let mut rng = Spread::new(seed());
    for _ in 0..50 {
        // What the ledger has, by places; some of which nobody has.
        let mut ledger: BTreeMap<u64, usize> = BTreeMap::new();
        let rooms = [0, 4 << 20, 1 << 30];
        let (mut line, mut last, mut turns) = (line(rooms[rng.below(3) as usize]), 0, Vec::new());
        let mut done = Vec::new();
        for step in 0..3_000 {
            match rng.below(10) {
                0..5 if step < 2_500 => {
                    last += 1 + rng.below(2);
                    let bytes = if rng.below(100) == 0 { 1 << 20 } else { 10 };
                    ledger.insert(last, bytes);
                    line.join(next(last, bytes));
                }
                5 if rng.below(50) == 0 => {
                    let turn = line.turn().and_then(|turn| ledger.get_key_value(&(turn.as_u128() as u64)));
                    // Under way, it keeps its turn; waiting, it is found as the first of the line.
                    let is_under_way = rng.below(2) == 0;
                    let turn = turn.filter(|_| is_under_way).map(|(seq, bytes)| job(*seq, *bytes));
                    if turn.is_none() && line.turn().is_some() {
                        turns.pop();
                    }
                    line.reset(turn.as_deref());
                }
                6 if rng.below(10) == 0 => {
                    // Somewhere in the line.
                    let turn = line.turn().map(|turn| turn.as_u128() as u64);
                    let waiting: Vec<_> = ledger.keys().copied().filter(|seq| Some(*seq) != turn).collect();
                    if !waiting.is_empty() {
                        let seq = waiting[rng.below(waiting.len() as u64) as usize];
                        ledger.remove(&seq);
                        line.ended(JobId::from_u128(u128::from(seq)));
                    }
                }
                _ => {
                    if let Some(turn) = line.turn() {
                        ledger.remove(&(turn.as_u128() as u64));
                        done.push(turn.as_u128() as u64);
                        line.ended(turn);
                    }
                }
            }
            while let Some(after) = line.to_read() {
                let page = ledger.range(after + 1..).take(50).map(|(seq, bytes)| next(*seq, *bytes));
                line.fill(page.collect());
            }
            if let Some(next) = line.advance() {
                turns.push(next.job.seq.unwrap());
            }
            assert!(
                line.waiting.texts() <= FIFO_BYTES_MAX + (1 << 20) && line.next.len() <= FIFO_JOBS_MAX + 50
            );
        }
        assert!(done.is_sorted_by(|a, b| a < b), "{done:?}");
        assert!(turns.is_sorted_by(|a, b| a < b), "{turns:?}");
        while let Some(turn) = line.turn() {
            ledger.remove(&(turn.as_u128() as u64));
            line.ended(turn);
            while let Some(after) = line.to_read() {
                let page = ledger.range(after + 1..).take(50).map(|(seq, bytes)| next(*seq, *bytes));
                line.fill(page.collect());
            }
            line.advance();
        }
        assert!(ledger.is_empty() && line.is_empty(), "{} were forgotten", ledger.len());
    }
}
