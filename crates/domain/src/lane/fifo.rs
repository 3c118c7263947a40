//! The order of a strict session: whose turn it is, and who is next. Pure: it decides nothing and writes nothing; time
//! comes in as an argument.
//!
//! One job has its turn, from when no job before it is unfinished until it has ended itself, through all its attempts,
//! pauses and delays. The next ones stand here in the order of their places; of a long line the rest is in the ledger, and of
//! any line, but for one job, where the instance has no room in memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::limits::{FIFO_BYTES_MAX, FIFO_JOBS_LOW, FIFO_JOBS_MAX};
use super::waiting_bytes::WaitingShare;
use crate::JobId;
use crate::job::{Attempt, LiveJob};

/// A job in the line.
#[derive(Clone)]
pub(super) struct Next {
    pub(super) job: Arc<LiveJob>,
    /// When it may be dispatched.
    pub(super) due: Instant,
}

/// An attempt that was taken back and whose reservation may still stand: nothing is placed before it is known to be
/// gone, or has run out.
struct Barrier {
    job: JobId,
    attempt: Attempt,
    until: Instant,
}

/// The line of one session.
pub(super) struct SessionFifo {
    turn: Option<JobId>,
    next: VecDeque<Next>,
    /// What these take in memory.
    waiting: WaitingShare,
    /// The place of the last job that was put in here.
    last: u64,
    /// There may be more in the ledger, behind `last`.
    has_more: bool,
    /// The instance had no room for the first of them: they are read once no job has its turn or stands here.
    is_held_back: bool,
    barrier: Option<Barrier>,
}

impl SessionFifo {
    /// A line without jobs, which takes this share of the instance's memory.
    pub(super) fn new(waiting: WaitingShare) -> Self {
        Self {
            turn: None,
            next: VecDeque::new(),
            waiting,
            last: 0,
            has_more: false,
            is_held_back: false,
            barrier: None,
        }
    }

    /// Whether a new job would have its turn at once.
    pub(super) fn is_free(&self) -> bool {
        self.is_empty() && self.barrier.is_none()
    }

    /// Whether no job has its turn or waits for it.
    pub(super) fn is_empty(&self) -> bool {
        self.has_none() && !self.has_more
    }

    /// Whether no job that is known here has its turn or waits for it.
    fn has_none(&self) -> bool {
        self.turn.is_none() && self.next.is_empty()
    }

    /// The job that has its turn.
    pub(super) const fn turn(&self) -> Option<JobId> {
        self.turn
    }

    /// Whether the job has its turn or stands here.
    pub(super) fn has(&self, job: JobId) -> bool {
        self.turn == Some(job) || self.next.iter().any(|next| next.job.id == job)
    }

    /// The job that is behind the one that has its turn, if it may be dispatched as soon as that one has ended.
    pub(super) fn behind_turn(&mut self, now: Instant) -> Option<&Next> {
        if self.barred_until(now).is_some() {
            return None;
        }
        self.next.front().filter(|next| next.due <= now)
    }

    /// An attempt of this job has begun: it has its turn.
    pub(super) fn begins(&mut self, job: JobId) {
        if self.next.front().is_some_and(|next| next.job.id == job) {
            self.advance();
        }
    }

    /// Nothing is known but the job that has an attempt under way, if any: the rest is read from the ledger.
    pub(super) fn reset(&mut self, turn: Option<&LiveJob>) {
        self.turn = turn.map(|job| job.id);
        self.last = turn.and_then(|job| job.seq).unwrap_or_default();
        self.next.clear();
        self.waiting.clear();
        (self.has_more, self.is_held_back) = (true, false);
    }

    /// A new job has its turn at once.
    pub(super) fn enter(&mut self, job: &LiveJob) {
        debug_assert!(self.has_none(), "its turn is not yet");
        self.turn = Some(job.id);
        self.last = job.seq.unwrap_or(self.last);
    }

    /// A new job is the last one in the line.
    pub(super) fn join(&mut self, next: Next) {
        let weight = next.job.spec.text_bytes();
        let fits = self.next.len() < FIFO_JOBS_MAX && self.waiting.texts() + weight <= FIFO_BYTES_MAX;
        if self.has_more || !(fits || self.next.is_empty()) {
            self.has_more = true;
        } else if self.has_room(weight) {
            self.push(next, weight);
        } else {
            (self.has_more, self.is_held_back) = (true, true);
        }
    }

    /// Behind which place to read on in the ledger, if few are left here and there are more.
    pub(super) fn to_read(&self) -> Option<u64> {
        let is_low = self.next.len() < FIFO_JOBS_LOW && self.waiting.texts() < FIFO_BYTES_MAX / 2;
        let may_read = !self.is_held_back || self.has_none();
        (self.has_more && is_low && may_read).then_some(self.last)
    }

    /// What was read behind that place. Nothing is the end of the line.
    pub(super) fn fill(&mut self, read: Vec<Next>) {
        (self.has_more, self.is_held_back) = (!read.is_empty(), false);
        for next in read {
            let weight = next.job.spec.text_bytes();
            if !self.next.is_empty() && self.waiting.texts() + weight > FIFO_BYTES_MAX {
                return;
            }
            if !self.has_room(weight) {
                self.is_held_back = true;
                return;
            }
            self.push(next, weight);
        }
    }

    /// Whether the instance has room for it, or the line has no job in memory.
    fn has_room(&self, weight: usize) -> bool {
        self.has_none() || self.waiting.has_room(1, weight)
    }

    fn push(&mut self, next: Next, weight: usize) {
        debug_assert!(next.job.seq > Some(self.last), "the order of places");
        self.last = next.job.seq.unwrap_or(self.last);
        self.waiting.add(weight);
        self.next.push_back(next);
    }

    /// The job whose turn has come now, if any: once.
    pub(super) fn advance(&mut self) -> Option<Next> {
        if self.turn.is_some() {
            return None;
        }
        let next = self.next.pop_front()?;
        self.waiting.remove(next.job.spec.text_bytes());
        self.turn = Some(next.job.id);
        Some(next)
    }

    /// The job has ended.
    pub(super) fn ended(&mut self, job: JobId) {
        if self.turn == Some(job) {
            self.turn = None;
        } else if let Some(at) = self.next.iter().position(|next| next.job.id == job)
            && let Some(gone) = self.next.remove(at)
        {
            self.waiting.remove(gone.job.spec.text_bytes());
        }
    }

    /// An attempt was taken back; its reservation has run out by `until`.
    pub(super) fn bar(&mut self, job: JobId, attempt: Attempt, until: Instant) {
        self.barrier = Some(Barrier { job, attempt, until });
    }

    /// The attempt's reservation is gone. Whether that was waited for.
    pub(super) fn unbar(&mut self, job: JobId, attempt: Attempt) -> bool {
        let is_it =
            self.barrier.as_ref().is_some_and(|barrier| (barrier.job, barrier.attempt) == (job, attempt));
        if is_it {
            self.barrier = None;
        }
        is_it
    }

    /// Until when nothing is to be placed.
    pub(super) fn barred_until(&mut self, now: Instant) -> Option<Instant> {
        self.barrier.take_if(|barrier| barrier.until <= now);
        self.barrier.as_ref().map(|barrier| barrier.until)
    }
}

#[cfg(test)]
mod tests;
