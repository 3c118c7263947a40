//! How an owner ends, and how it begins anew: callers that still wait are answered, and what was reserved is given back.

use std::time::Instant;

use crate::lane::jobs::LaneJobs;
use crate::lane::limits::EMPTY_KEPT;
use crate::lane::messages::{AttemptEvent, Callers, Command, Effect, Refused};
use crate::lane::round::{AfterCommit, Placing};
use crate::lane::session::SessionState;

use super::promotion::Promotion;
use super::{LaneState, Stage};

impl<C: Callers> LaneState<C> {
    /// The owner ends: callers that still wait are refused as fenced, and so are all that come after.
    pub fn end(&mut self) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        self.stage = Stage::Ended;
        if let Some(batch) = self.in_flight.take() {
            batch.thens.into_iter().for_each(|then| failed(then, &mut effects));
        }
        for item in self.to_commit.drain(..) {
            failed(item.then, &mut effects);
        }
        if let Some(placing) = self.placing.take() {
            self.dissolve(placing, &mut effects);
        }
        for command in self.deferred.drain(..).chain(self.inbox.drain()) {
            refuse(command, &mut effects);
        }
        for submission in self.submissions.drain() {
            effects.push(Effect::Submitted(submission.reply, Err(Refused::Fenced)));
        }
        for reply in self.closing.drain(..) {
            effects.push(Effect::Closed(reply, Err(Refused::Fenced)));
        }
        effects.push(Effect::DequeueAll);
        effects
    }

    /// Nothing is begun from here on: no command is taken in and no job gets a slot. What waits is turned away, and the owner
    /// ends with what is under way. The rest of a command of which submissions were taken in belongs to that: its caller sends
    /// all of it again or nothing, and must not hear that the end of it alone was refused.
    pub(super) fn stop(&mut self, now: Instant, effects: &mut Vec<Effect<C>>) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        effects.push(Effect::DequeueAll);
        for submission in self.submissions.drain_not_begun() {
            effects.push(Effect::Submitted(submission.reply, Err(Refused::Fenced)));
        }
        let waiting: Vec<_> = self.deferred.drain(..).chain(self.inbox.drain()).collect();
        for command in waiting {
            self.turn_away(command, now, effects);
        }
    }

    /// What comes to an owner that ends is dealt with as if it had ended: callers ask the next one, and the ledger tells it the
    /// rest. A result is written by its node's instance. Of an attempt that does not count the next owner could not know that, so
    /// it is taken back.
    pub(super) fn turn_away(&mut self, command: Command<C>, now: Instant, effects: &mut Vec<Effect<C>>) {
        match command {
            Command::SlotReserved(job, attempt, slot) => {
                let node = slot.placed.node;
                effects.push(Effect::ReleaseSlot { node, job, attempt, token: self.token });
            }
            // A plan's owner that has ended has added them before: their first attempts are sent still.
            Command::Added(token, jobs) if self.stage == Stage::Serving => {
                self.take_in_added(token, jobs, now, effects);
            }
            // They are of commands that were begun.
            Command::Submit(new) if new.iter().all(|one| one.is_looked_up) => self.line_up(new),
            Command::Attempt(job, attempt, AttemptEvent::Revoked(why, reason)) if !why.counts() => {
                let event = AttemptEvent::Revoked(why, reason);
                self.inbox.push_back(Command::Attempt(job, attempt, event));
            }
            other => refuse(other, effects),
        }
    }

    /// Whether it is a session's that stops on command, and knows of jobs with which the next owner goes on at once.
    #[must_use]
    pub fn is_left_with_work(&self) -> bool {
        self.stopping && self.session.is_some() && self.knows_jobs()
    }

    fn knows_jobs(&self) -> bool {
        !self.jobs.is_empty() || self.fifo().is_some_and(|fifo| !fifo.is_empty())
    }

    pub(super) fn is_done(&mut self, now: Instant) -> bool {
        if !self.is_quiet()
            || !self.inbox.is_empty()
            || !self.deferred.is_empty()
            || !self.submissions.is_empty()
        {
            return false;
        }
        if self.lane.is_session() && self.session.is_none() {
            // It was forgotten, which it is only without jobs.
            return true;
        }
        if !self.ends_when_idle || self.knows_jobs() {
            self.empty_since = None;
            return false;
        }
        let kept = self.session.as_ref().map_or(EMPTY_KEPT, SessionState::kept_for);
        now.saturating_duration_since(*self.empty_since.get_or_insert(now)) >= kept
    }

    /// Nothing that was sent under the token counts any more, or it may not: everything is read again under the next.
    pub(super) fn begin_anew(&mut self, effects: &mut Vec<Effect<C>>) {
        self.stage = Stage::Loading;
        let written = self.in_flight.take().into_iter().flat_map(|batch| batch.thens);
        let thens: Vec<_> = written.chain(self.to_commit.drain(..).map(|item| item.then)).collect();
        let has_new = thens.iter().any(|then| matches!(then, AfterCommit::Submitted { .. }));
        thens.into_iter().for_each(|then| failed(then, effects));
        // Where jobs have an order, none is accepted before those that their callers send again.
        if has_new && self.session.as_ref().is_some_and(SessionState::has_order) {
            for submission in self.submissions.drain() {
                effects.push(Effect::Submitted(submission.reply, Err(Refused::OutcomeUnknown)));
            }
        }
        if let Some(placing) = &mut self.placing {
            placing.is_void = true;
        }
        // What waited for a write that failed is judged by what is read.
        self.inbox.put_back(self.deferred.drain(..));
        self.departed.clear();
        self.busy.clear();
        self.busy_keys.clear();
        self.lookups.clear();
        self.single_lookups = 0;
        self.stranded.forget();
        self.wants_attempts = false;
        self.wants_coming = false;
        self.wants_groups = false;
        self.reading = None;
        self.pages.forget();
        self.is_closing = false;
        self.transfers.forget();
        self.promotion = Promotion::default();
        self.jobs = LaneJobs::new(self.settings.timeouts, self.settings.waiting.share_of(&self.lane));
        self.session = None;
        effects.push(Effect::DequeueAll);
        effects.push(Effect::AcquireAnew);
    }

    /// Gives back what a round has that will not be written.
    pub(super) fn dissolve(&mut self, placing: Placing<C>, effects: &mut Vec<Effect<C>>) {
        for item in placing.round.in_order() {
            effects.extend(item.then.release(placing.token));
            failed(item.then, effects);
        }
        self.submissions.put_back(placing.accepted.into_iter().map(|(_, submission)| submission));
    }
}

/// What follows from a write whose outcome is not known.
fn failed<C: Callers>(then: AfterCommit<C>, effects: &mut Vec<Effect<C>>) {
    match then {
        AfterCommit::Submitted { reply, .. } => {
            effects.push(Effect::Submitted(reply, Err(Refused::OutcomeUnknown)));
        }
        AfterCommit::Ended { replies, .. } => {
            for reply in replies {
                effects.push(Effect::Cancelled(reply, Err(Refused::OutcomeUnknown)));
            }
        }
        // What becomes of these is read again, a result by its node's instance; a reservation runs out.
        AfterCommit::Dispatched { .. } | AfterCommit::Completed { .. } | AfterCommit::Revoked { .. } => {}
    }
}

/// The owner has ended, or ends.
pub(super) fn refuse<C: Callers>(command: Command<C>, effects: &mut Vec<Effect<C>>) {
    match command {
        Command::Submit(submissions) => {
            for submission in submissions {
                effects.push(Effect::Submitted(submission.reply, Err(Refused::Fenced)));
            }
        }
        Command::Cancel(_, _, reply) => effects.push(Effect::Cancelled(reply, Err(Refused::Fenced))),
        Command::CloseSession(reply) => effects.push(Effect::Closed(reply, Err(Refused::Fenced))),
        // Whatever these were about is found in the ledger; a reservation runs out.
        Command::SlotReserved(..)
        | Command::SlotUnavailable(_)
        | Command::NodeDeparted(_)
        | Command::Complete(_)
        | Command::Attempt(..)
        | Command::ReservationRemoved(..)
        | Command::Written(_)
        | Command::Added(..)
        | Command::Transfer(_)
        | Command::LookForTransferred
        | Command::PassOn(_)
        | Command::Stop => {}
    }
}
