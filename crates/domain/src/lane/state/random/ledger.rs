//! The ledger of a sequence: how it writes batches and reads jobs, and how the lane hears of both.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::{AT, Row, World};
use crate::job::{Attempt, Change, CurrentAttempt, Due, JobVerdict, JobWrite, LiveJob, State, UnderWay};
use crate::lane::jobs::group_of;
use crate::lane::messages::{Coming, Read};
use crate::lane::state::Unread;

impl World {
    /// Writes as the ledger does: each change only if its job is still as the change says.
    fn write(&mut self, writes: &[JobWrite]) -> Vec<JobVerdict> {
        let mut ended = HashSet::new();
        let verdict = |write: &JobWrite| {
            if let Change::Dispatch { behind: Some(behind), .. } = &write.change
                && !ended.contains(behind)
            {
                return JobVerdict::Stale;
            }
            let verdict = self.write_one(write);
            if verdict == JobVerdict::Written && matches!(write.change, Change::Complete { .. }) {
                ended.insert(write.change.job());
            }
            verdict
        };
        writes.iter().map(verdict).collect()
    }

    fn write_one(&mut self, write: &JobWrite) -> JobVerdict {
        let at_attempt = |row: &Row, attempt: Attempt| {
            !row.is_finished && row.live.placed.is_some() && row.live.newest.attempt == attempt
        };
        let now = self.now;
        if let Change::Submit(new) = &write.change {
            assert!(!self.rows.contains_key(&new.id), "an id is written twice");
            if let Some(key) = &write.key {
                let name = key.scope.key.to_string();
                if self.keys.contains_key(&name) {
                    return JobVerdict::KeyTaken;
                }
                self.keys.insert(name, new.id);
            }
            if let Some(seq) = new.seq {
                assert!(seq > self.last_seq, "a place is given twice");
                self.last_seq = seq;
            }
            let placed = new.placed.clone();
            let (state, attempt) = match placed {
                Some(_) => (State::Dispatched, Attempt::new(1)),
                None => (State::Created, Attempt::NONE),
            };
            let due = match new.due {
                Due::InMs(ms) if ms > 0 => Some(now + Duration::from_millis(ms)),
                _ => None,
            };
            let live = LiveJob {
                seq: new.seq,
                newest: CurrentAttempt { state, attempt, charged_attempts: 0 },
                placed,
                created_at: AT,
                due_at: due.map(|_| AT),
                ..LiveJob::created(new.id, self.lane.lane.clone(), new.spec.clone())
            };
            self.rows.insert(new.id, Row { live, due, is_finished: false });
            return JobVerdict::Written;
        }
        let Some(row) = self.rows.get_mut(&write.change.job()).filter(|row| !row.is_finished) else {
            return JobVerdict::Stale;
        };
        match &write.change {
            Change::Dispatch { attempt, placed, .. } => {
                if row.live.placed.is_some() || row.live.newest.attempt.next() != *attempt {
                    return JobVerdict::Stale;
                }
                row.live.placed = Some(placed.clone());
                row.live.newest.attempt = *attempt;
                row.live.newest.state = State::Dispatched;
            }
            Change::Revoke { attempt, why, due_in_ms, .. } => {
                let is_running = row.live.newest.state == State::Running;
                if !at_attempt(row, *attempt) || (is_running && !why.reaches_running()) {
                    return JobVerdict::Stale;
                }
                Self::back(row, *due_in_ms, why.counts(), now);
            }
            Change::End { attempt, .. } => {
                if attempt.is_some_and(|(attempt, _)| !at_attempt(row, attempt)) {
                    return JobVerdict::Stale;
                }
                row.is_finished = true;
            }
            Change::Complete { attempt, .. } => {
                if !at_attempt(row, *attempt) {
                    return JobVerdict::Stale;
                }
                row.is_finished = true;
            }
            other => panic!("not the lane's to write: {other:?}"),
        }
        JobVerdict::Written
    }

    pub(super) fn back(row: &mut Row, due_in_ms: u64, counts: bool, now: Instant) {
        row.live.placed = None;
        row.live.newest.state = State::Created;
        row.live.newest.charged_attempts += u32::from(counts);
        row.due = Some(now + Duration::from_millis(due_in_ms));
        row.live.due_at = Some(AT);
    }

    /// The ledger writes the batches of a lane in their order.
    pub(super) fn write_next(&mut self, may_fail: bool) {
        if self.in_flight.is_empty() {
            return;
        }
        let batch = self.in_flight.remove(0);
        let fails = may_fail && self.chance(5);
        let is_written = !fails || self.chance(50);
        let verdicts = if is_written { self.write(&batch.writes) } else { Vec::new() };
        self.done.push((batch, (!fails).then_some(verdicts)));
    }

    /// The lane hears of one, in any order.
    pub(super) fn answer(&mut self) {
        if self.done.is_empty() {
            return;
        }
        let index = self.rng.below(self.done.len() as u64) as usize;
        let (batch, verdicts) = self.done.remove(index);
        let effects = match verdicts {
            Some(verdicts) => self.lane.committed(batch.id, AT, &verdicts, self.now),
            None => self.lane.commit_failed(batch.id),
        };
        self.take(effects);
    }

    pub(super) fn read(&mut self, may_fail: bool) {
        let Some(read) = self.reads.pop() else { return };
        let fails = may_fail && self.chance(10);
        let now = self.now;
        let effects = match read {
            Read::Jobs(ids) => {
                let rows = ids.iter().filter_map(|id| self.rows.get(id));
                let found = rows.filter(|row| !row.is_finished).map(|row| row.live.clone()).collect();
                self.lane.jobs_read(&ids, if fails { Err(Unread) } else { Ok(found) }, now)
            }
            Read::Waiting { .. } | Read::Stranded(_) => unreachable!("they are read beside the others"),
            Read::Fifo { after } => {
                let mut next: Vec<_> = self
                    .unfinished()
                    .filter(|row| row.live.placed.is_none() && row.live.seq > Some(after))
                    .map(|row| (row.live.clone(), self.due_in_ms(row)))
                    .collect();
                next.sort_unstable_by_key(|(job, _)| job.seq);
                next.truncate(3);
                self.lane.fifo_read(if fails { Err(Unread) } else { Ok(next) }, now)
            }
            Read::Groups => {
                let groups = self.groups();
                self.lane.groups_read(if fails { Err(Unread) } else { Ok(groups) }, now)
            }
            Read::Attempts => {
                let under_way =
                    self.unfinished().filter(|row| row.live.placed.is_some()).map(|row| UnderWay {
                        job: row.live.id,
                        attempt: row.live.newest.attempt,
                        state: row.live.newest.state,
                    });
                let under_way = under_way.collect();
                self.lane.attempts_read(if fails { Err(Unread) } else { Ok(under_way) }, now)
            }
            Read::Coming { .. } => {
                let coming = Coming { jobs: self.coming(), is_cut: self.chance(30) };
                self.lane.coming_read(if fails { Err(Unread) } else { Ok(coming) }, now)
            }
        };
        self.take(effects);
    }

    /// The ledger reads a page that was asked for, or the lane hears of one: in any order, and long after.
    pub(super) fn page(&mut self, may_fail: bool) {
        if self.pages.is_empty() {
            return;
        }
        let index = self.rng.below(self.pages.len() as u64) as usize;
        let Some(read) = self.pages[index].read.take() else {
            // Pages end with their limit, or where they are many bytes.
            let limit = if self.chance(50) { 1 + self.rng.below(5) as u32 } else { self.pages[index].limit };
            let mut jobs: Vec<_> = self
                .unfinished()
                .filter(|row| row.live.placed.is_none() && row.due.is_none())
                .filter(|row| group_of(&row.live.spec) == self.pages[index].group)
                .map(|row| row.live.clone())
                .collect();
            // As the ledger sorts them.
            jobs.sort_by_key(|job| (std::cmp::Reverse(job.spec.priority), job.id));
            let is_all = jobs.len() < limit as usize;
            jobs.truncate(limit as usize);
            self.pages[index].read = Some((jobs, is_all));
            return;
        };
        let page = self.pages.remove(index);
        let fails = may_fail && self.chance(10);
        // One that was asked for under an earlier lease is nobody's.
        let is_last = self.pages.iter().all(|other| other.id.0 < page.id.0);
        if is_last {
            self.is_page_awaited = false;
        }
        let answer = if fails { Err(Unread) } else { Ok(read) };
        let effects = self.lane.waiting_read(page.id, answer, self.now);
        self.take(effects);
    }
}
