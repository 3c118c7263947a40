//! What a lane's owner reads of the ledger: everything after its lease was acquired, a little now and then. While it
//! reads, no batch is under way, so that what was read is not older than what was written. Only pages of waiting jobs are
//! read beside the rounds, see [`super::pages`]; and the bus is asked beside them for the slots of attempts, which may take
//! long: what it says of an attempt counts as long as that is its job's newest.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::JobId;
use crate::job::{Attempt, LiveJob, Revoked, RevokedAttempt, State, UnderWay, WaitingGroup};
use crate::lane::fifo::{Next, SessionFifo};
use crate::lane::limits::{LOOKUPS_AT_ONCE, READ_AGAIN_AFTER, REREAD_EVERY};
use crate::lane::messages::{AttemptEvent, Callers, Coming, Command, Effect, NodeFound, Read, Snapshot};
use crate::lane::session::SessionState;

use super::rounds::UNACKNOWLEDGED;
use super::{LaneState, Stage};

/// A read failed; it is tried again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread;

/// The look for attempts that have no slot. There is one at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum StrandedLook {
    #[default]
    Over,
    UnderWay,
    /// Everything was read again since it was asked for: its answer is nobody's.
    Void,
}

impl StrandedLook {
    /// The answer to the one that is under way will be nobody's.
    pub(super) fn forget(&mut self) {
        if *self == Self::UnderWay {
            *self = Self::Void;
        }
    }
}

impl<C: Callers> LaneState<C> {
    pub(super) fn load(&mut self, snapshot: Snapshot, now: Instant, effects: &mut Vec<Effect<C>>) {
        let Snapshot { session, in_flight, revoked, groups, coming } = snapshot;
        let has_unfinished = session.as_ref().is_none_or(|session| session.unfinished > 0);
        if self.lane.is_session()
            && let Some(session) = session
        {
            let session = SessionState::new(session, &self.settings.waiting, now);
            effects.push(Effect::Bind(session.affinity()));
            self.session = Some(session);
        }
        self.bar_again(revoked, now);
        for job in in_flight {
            self.learn(Arc::new(job), now, effects);
        }
        if self.fifo().is_some() {
            if has_unfinished {
                self.relearn_fifo(effects);
            }
        } else {
            groups.into_iter().for_each(|group| self.jobs.group_exists(group));
            self.learn_coming(coming, now);
        }
        self.plan_next_reread(now);
    }

    /// The previous owner of a strict session has taken an attempt back, and may not have heard that its reservation is gone:
    /// no job is placed before the reservation has run out.
    fn bar_again(&mut self, revoked: Option<RevokedAttempt>, now: Instant) {
        let Some(RevokedAttempt { job, attempt, ago_ms }) = revoked else { return };
        let left = self.settings.timeouts.reservation.saturating_sub(Duration::from_millis(ago_ms));
        if let Some(fifo) = self.fifo_mut()
            && !left.is_zero()
        {
            fifo.bar(job, attempt, now + left);
        }
    }

    /// A job as the ledger has it.
    pub(super) fn learn(&mut self, job: Arc<LiveJob>, now: Instant, effects: &mut Vec<Effect<C>>) {
        let newest = job.newest;
        match (newest.state, job.placed.clone()) {
            (State::Dispatched | State::Running, Some(placed)) => {
                let id = job.id;
                self.jobs.begin(job, newest, placed, now);
                self.jobs.mark_may_be_sent(id);
                self.relearn_fifo(effects);
            }
            _ if self.fifo().is_some() => self.relearn_fifo(effects),
            _ if Self::is_held(&job) => {}
            _ if job.due_at.is_some() => {
                // How long it still has is asked for with the others.
                self.wants_coming = true;
            }
            _ => self.wait_in_group(job, now, effects),
        }
    }

    /// The order of a strict session is read again from the ledger, behind the job that has an attempt under way.
    fn relearn_fifo(&mut self, effects: &mut Vec<Effect<C>>) {
        let under_way = self.jobs.first_under_way();
        let Some(fifo) = self.fifo() else { return };
        if under_way.is_none()
            && let Some(turn) = fifo.turn()
        {
            self.jobs.forget(turn);
            effects.push(Effect::Dequeue(turn));
        }
        if let Some(fifo) = self.fifo_mut() {
            fifo.reset(under_way.as_deref());
        }
    }

    /// Notes what is to be read now and then.
    pub(super) fn plan_reread(&mut self, now: Instant, effects: &mut Vec<Effect<C>>) {
        if now >= self.reread_at {
            self.plan_next_reread(now);
            let gone = self.jobs.make_room(self.pages.between(), |job| !self.busy.contains(&job));
            effects.extend(gone.into_iter().map(Effect::Dequeue));
            self.jobs.retry_full_groups();
            self.wants_attempts = true;
            self.wants_groups |= std::mem::take(&mut self.transfers.are_unread);
        }
    }

    /// Whether something is to be read before the next round.
    pub(super) fn wants_read(&self, now: Instant) -> bool {
        self.has_read_due() || (self.may_page(now) && self.fifo_to_read().is_some())
    }

    pub(super) fn may_page(&self, now: Instant) -> bool {
        self.no_page_before.is_none_or(|at| at <= now)
    }

    /// Whether something is to be read that is no page of jobs.
    pub(super) fn has_read_due(&self) -> bool {
        !self.lookups.is_empty() || self.wants_attempts || self.wants_coming || self.wants_groups
    }

    /// More jobs of a strict session, where few of many are known.
    pub(super) fn fifo_to_read(&self) -> Option<Read> {
        self.fifo()?.to_read().map(|after| Read::Fifo { after })
    }

    pub(super) fn start_read(&mut self, now: Instant, effects: &mut Vec<Effect<C>>) {
        let within_ms = (REREAD_EVERY * 2).as_millis() as u64;
        let lookups = self.next_lookups();
        let read = if !lookups.is_empty() {
            Some(Read::Jobs(lookups))
        } else if std::mem::take(&mut self.wants_attempts) {
            Some(Read::Attempts)
        } else if std::mem::take(&mut self.wants_coming) {
            Some(Read::Coming { within_ms })
        } else if std::mem::take(&mut self.wants_groups) {
            Some(Read::Groups)
        } else {
            self.fifo_to_read()
        };
        let Some(read) = read else { return };
        self.asked = now;
        self.reading = Some(read.clone());
        effects.push(Effect::Read(read));
    }

    /// Ends the read that is under way, if it is this one, under this lease.
    fn end_read(&mut self, is_it: impl Fn(&Read) -> bool) -> Option<Read> {
        self.reading.take_if(|read| is_it(read))
    }

    /// The first jobs to look at, up to one that is among them already. One by one where a read of all of them failed: it may
    /// be one job that cannot be read.
    fn next_lookups(&self) -> Vec<JobId> {
        let mut seen = HashSet::new();
        let most = if self.single_lookups > 0 { 1 } else { LOOKUPS_AT_ONCE };
        self.lookups.iter().take(most).copied().take_while(|job| seen.insert(*job)).collect()
    }

    /// Jobs were read; those that are finished or not there are missing. Answers [`Read::Jobs`].
    pub fn jobs_read(
        &mut self,
        ids: &[JobId],
        found: Result<Vec<LiveJob>, Unread>,
        now: Instant,
    ) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        let is_it = |read: &Read| matches!(read, Read::Jobs(asked) if asked == ids);
        if self.end_read(is_it).is_none() || !self.lookups.iter().take(ids.len()).eq(ids) {
            self.advance(now, &mut effects);
            return effects;
        }
        if found.is_err() && ids.len() > 1 {
            self.single_lookups = ids.len();
            self.advance(now, &mut effects);
            return effects;
        }
        self.single_lookups = self.single_lookups.saturating_sub(1);
        self.lookups.drain(..ids.len());
        let mut found =
            found.map(|jobs| jobs.into_iter().map(|job| (job.id, job)).collect::<HashMap<_, _>>());
        for id in ids {
            self.busy.remove(id);
            match found.as_mut().map(|found| found.remove(id)) {
                Ok(job) => self.looked_at(*id, job.filter(|job| job.lane == self.lane), now, &mut effects),
                Err(_) => {
                    // An alarm that is set means the end of a time-out or of a delay, and stays as it is.
                    self.jobs.look_at_last(*id, now + REREAD_EVERY);
                    // Where nothing is known of it here, or for want of room nothing will be soon, it is looked for among
                    // those that wait.
                    self.transfers.are_unread |= self.fifo().is_none();
                }
            }
        }
        self.inbox.put_back(self.deferred.drain(..));
        self.advance(now, &mut effects);
        effects
    }

    /// A job of this lane was read; `None` if it is finished, or not in it.
    fn looked_at(&mut self, id: JobId, found: Option<LiveJob>, now: Instant, effects: &mut Vec<Effect<C>>) {
        match found {
            Some(job) => {
                self.jobs.forget(id);
                effects.push(Effect::Dequeue(id));
                if !self.send_unsent(&job, now, effects) {
                    self.learn(Arc::new(job), now, effects);
                }
            }
            None => {
                self.release_unsent(id, effects);
                if self.is_known(id) {
                    self.over(id, now, effects);
                } else {
                    // Its end was followed before: another write of it came too late.
                    effects.push(Effect::Dequeue(id));
                }
            }
        }
    }

    /// Jobs of a strict session were read, with the milliseconds until each is due. Answers [`Read::Fifo`].
    pub fn fifo_read(&mut self, read: Result<Vec<(LiveJob, u64)>, Unread>, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.end_read(|read| matches!(read, Read::Fifo { .. })).is_some() {
            self.page_was_read(read.is_ok(), now);
            let asked = self.asked;
            if let (Ok(read), Some(fifo)) = (read, self.fifo_mut()) {
                let next = read.into_iter().map(|(job, due_in_ms)| Next {
                    job: Arc::new(job),
                    due: asked + Duration::from_millis(due_in_ms),
                });
                fifo.fill(next.collect());
            }
        }
        self.advance(now, &mut effects);
        effects
    }

    pub(super) fn page_was_read(&mut self, is_read: bool, now: Instant) {
        self.no_page_before = (!is_read).then(|| now + self.spread.jittered(READ_AGAIN_AFTER));
    }

    /// The groups that have jobs that may be dispatched at once were read. Answers [`Read::Groups`].
    pub fn groups_read(&mut self, read: Result<Vec<WaitingGroup>, Unread>, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.end_read(|read| *read == Read::Groups).is_some() {
            match read {
                Ok(groups) => groups.into_iter().for_each(|group| self.jobs.group_may_have_more(group)),
                // The instance sends no other command for what it has found.
                Err(Unread) => self.transfers.are_unread = true,
            }
        }
        self.advance(now, &mut effects);
        effects
    }

    /// Delayed jobs were read. Answers [`Read::Coming`].
    pub fn coming_read(&mut self, read: Result<Coming, Unread>, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.end_read(|read| matches!(read, Read::Coming { .. })).is_some()
            && let Ok(read) = read
        {
            self.learn_coming(read, self.asked);
        }
        self.advance(now, &mut effects);
        effects
    }

    /// All attempts under way were read. Finds what a lost message would have told: results, failures, and attempts whose
    /// slot is gone. Answers [`Read::Attempts`].
    pub fn attempts_read(&mut self, read: Result<Vec<UnderWay>, Unread>, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.end_read(|read| *read == Read::Attempts).is_some()
            && let Ok(read) = read
        {
            let asked = self.asked;
            let mut known = HashSet::new();
            for UnderWay { job, attempt, state } in read {
                known.insert((job, attempt));
                if state == State::Running {
                    self.jobs.acknowledged(job, attempt, asked);
                }
            }
            let before = asked.checked_sub(self.settings.timeouts.reservation).unwrap_or(asked);
            for job in self.jobs.unknown_to_ledger(&known, before) {
                self.busy.insert(job);
                self.lookups.push_back(job);
            }
            match self.fifo().map(SessionFifo::turn) {
                None => self.wants_coming = true,
                // The job that has its turn is known here, or was lost on the way.
                Some(Some(turn)) if self.jobs.get(turn).is_none() => self.relearn_fifo(&mut effects),
                Some(_) => {}
            }
            let mut by_node: HashMap<_, Vec<_>> = HashMap::new();
            for (job, attempt, at_node, state) in self.jobs.old_attempts(asked) {
                by_node.entry(at_node.placed.node.clone()).or_default().push((
                    job,
                    attempt,
                    state,
                    at_node.since,
                ));
            }
            if !by_node.is_empty() && self.stranded == StrandedLook::Over {
                self.stranded = StrandedLook::UnderWay;
                effects.push(Effect::Read(Read::Stranded(by_node.into_iter().collect())));
            }
        }
        self.advance(now, &mut effects);
        effects
    }

    /// Of the attempts that were asked for, these have neither a result nor a slot; each with whether its node is surely
    /// gone. Answers [`Read::Stranded`].
    pub fn stranded_read(
        &mut self,
        lost: Vec<(JobId, Attempt, State, bool)>,
        now: Instant,
    ) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if std::mem::take(&mut self.stranded) == StrandedLook::UnderWay && !self.stopping {
            for (job, attempt, state, is_gone) in lost {
                let (why, reason) = match state {
                    State::Running if is_gone => (Revoked::NodeLost, "the node is gone"),
                    State::Running => (Revoked::Unlisted, "the node no longer lists the attempt"),
                    // Its node may be well, and never have been sent it: the end of the time to acknowledge it shows that.
                    _ if !is_gone && self.jobs.is_to_be_looked_for(job) => continue,
                    // It may be what the node died of.
                    _ if self.jobs.get(job).is_some_and(|entry| entry.lost() == Revoked::NodeLost) => {
                        (Revoked::NodeLost, self.jobs.why_lost(job))
                    }
                    State::Created | State::Dispatched | State::Finished => {
                        (Revoked::Undeliverable, "the attempt never reached the node")
                    }
                };
                let event = AttemptEvent::Revoked(why, reason.to_owned());
                self.inbox.push_back(Command::Attempt(job, attempt, event));
            }
        }
        self.advance(now, &mut effects);
        effects
    }

    /// What was found of attempts of which nothing is heard. Answers [`Effect::LookForNode`].
    pub fn node_looked_for(
        &mut self,
        found: Vec<(JobId, Attempt, NodeFound)>,
        now: Instant,
    ) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.stage != Stage::Serving || self.stopping {
            return effects;
        }
        for (job, attempt, found) in found {
            // What came meanwhile says more; if it says nothing of the end, the attempt is looked at again.
            if self.inbox.names(job) || !self.jobs.is_unacknowledged(job, attempt) {
                continue;
            }
            let revoked = |why, reason: &str| AttemptEvent::Revoked(why, reason.to_owned());
            let event = match found {
                NodeFound::Running => AttemptEvent::Acknowledged,
                NodeFound::There => revoked(Revoked::NotAcknowledged, UNACKNOWLEDGED),
                NodeFound::Gone => revoked(Revoked::NodeLost, self.jobs.why_lost(job)),
            };
            self.inbox.push_back(Command::Attempt(job, attempt, event));
        }
        self.advance(now, &mut effects);
        effects
    }
}
