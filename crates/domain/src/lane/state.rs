//! The state of one lane: commands, committed batches and what was read go in, effects come out.
//!
//! Commands gather until a round may begin. A round takes them in, asks for slots, and is committed as one batch, or as
//! several if it is large; then callers, nodes and watchers hear of it. One commit is under way at a time. A command about a job
//! whose write is under way waits until that is over, and until what follows from it is done.
//!
//! After a commit whose outcome is unknown the lease is acquired anew, which raises its token, and everything is read
//! again: nothing is decided on a guess. In a session with an order, the submissions behind new jobs of such a commit are refused
//! with them, so that a client's jobs come again in their order. A batch that the ledger does not take at all is undone: its
//! callers are answered, and its jobs are read again.

mod additions;
mod after;
mod ending;
mod inbox;
mod pages;
mod promotion;
mod reading;
mod rounds;
mod submissions;
mod transfers;

pub use reading::Unread;

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use super::fifo::SessionFifo;
use super::jobs::{LaneJobs, Phase};
use super::limits::{OLDER_LOOK_EVERY, REREAD_EVERY, SUBMISSIONS_WAITING_MAX};
use super::messages::{
    BatchId, Callers, Command, CommitFailure, Effect, Enqueue, PendingSubmission, Read, Refused, Snapshot,
};
use super::older_attempts::OlderAttempts;
use super::round::{CommittedBatch, Item, Placing};
use super::session::SessionState;
use super::spread::Spread;
use super::waiting_bytes::WaitingBytes;
use crate::job::{Attempt, LiveJob, OnRecovery};
use crate::{JobId, KeyScope, LaneId, NodeId, NodeTimeouts, Token};
use additions::Additions;
use after::Moment;
use ending::refuse;
use inbox::Inbox;
use pages::Pages;
use promotion::Promotion;
use reading::StrandedLook;
use submissions::Submissions;
use transfers::Transfers;

/// How a lane works.
#[derive(Clone, Debug)]
pub struct LaneSettings {
    /// Rows that one batch may have.
    pub batch_rows_max: usize,
    /// How long nodes are waited for.
    pub timeouts: NodeTimeouts,
    /// Where the random parts of pauses begin.
    pub seed: u64,
    /// The memory that all lanes of the instance share.
    pub waiting: WaitingBytes,
}

/// The stage of an owner, from acquiring the lease to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its lease is being acquired, or its jobs are being read.
    Loading,
    Serving,
    Ended,
}

/// The owner of one lane. See the [module](super) for how it is driven.
pub struct LaneState<C: Callers> {
    settings: LaneSettings,
    lane: LaneId,
    /// Whether the lane's owner ends when there is nothing left to do. That of an instance's own lane does not, and that of a
    /// plan's lane lives as long as the plan's owner.
    ends_when_idle: bool,
    token: Token,
    stage: Stage,
    jobs: LaneJobs,
    older: OlderAttempts,
    session: Option<SessionState>,
    /// Commands that are not in a round yet.
    inbox: Inbox<C>,
    /// Submissions that are not in a round yet.
    submissions: Submissions<C>,
    /// Look-ups that are under way: see [`Effect::LookUp`].
    look_ups: usize,
    /// Commands about jobs whose write is under way.
    deferred: Vec<Command<C>>,
    /// A round that waits for its slots.
    placing: Option<Placing<C>>,
    /// The rest of a round that is too large for one batch.
    to_commit: VecDeque<Item<C>>,
    /// The batch whose commit is under way.
    in_flight: Option<CommittedBatch<C>>,
    /// Jobs that a round writes, until what follows is done.
    busy: HashSet<JobId>,
    /// Keys of submissions whose commit is under way.
    busy_keys: HashSet<KeyScope>,
    /// Nodes that departed before what follows from this batch was done: attempts there may just be beginning.
    departed: Vec<(NodeId, BatchId)>,
    last_batch: u64,
    reading: Option<Read>,
    /// When the read that is under way was asked for.
    asked: Instant,
    /// Jobs to be read again, after a write found them otherwise.
    lookups: VecDeque<JobId>,
    /// So many of them are read one by one.
    single_lookups: usize,
    wants_attempts: bool,
    wants_coming: bool,
    wants_groups: bool,
    stranded: StrandedLook,
    pages: Pages,
    /// No page is read before, since the last one could not be.
    no_page_before: Option<Instant>,
    reread_at: Instant,
    closing: Vec<C::Close>,
    is_closing: bool,
    transfers: Transfers,
    promotion: Promotion,
    additions: Additions,
    /// When an attempt began last.
    began: Option<Moment>,
    /// Whether nothing is begun any more: the owner ends with what is under way.
    stopping: bool,
    is_flush_due: bool,
    empty_since: Option<Instant>,
    spread: Spread,
}

impl<C: Callers> LaneState<C> {
    /// The owner of a lane whose lease was just acquired, before anything was read: call [`Self::reloaded`] next.
    #[must_use]
    pub fn new(lane: LaneId, token: Token, is_adopted: bool, settings: LaneSettings, now: Instant) -> Self {
        Self {
            ends_when_idle: is_adopted && lane.plan_id().is_none(),
            token,
            stage: Stage::Loading,
            jobs: LaneJobs::new(settings.timeouts, settings.waiting.share_of(&lane)),
            older: OlderAttempts::default(),
            session: None,
            inbox: Inbox::new(),
            submissions: Submissions::new(!lane.is_session()),
            look_ups: 0,
            deferred: Vec::new(),
            placing: None,
            to_commit: VecDeque::new(),
            in_flight: None,
            busy: HashSet::new(),
            busy_keys: HashSet::new(),
            departed: Vec::new(),
            last_batch: 0,
            reading: None,
            asked: now,
            lookups: VecDeque::new(),
            single_lookups: 0,
            wants_attempts: false,
            wants_coming: false,
            wants_groups: false,
            stranded: StrandedLook::default(),
            pages: Pages::default(),
            no_page_before: None,
            reread_at: now,
            closing: Vec::new(),
            is_closing: false,
            transfers: Transfers::default(),
            promotion: Promotion::default(),
            additions: Additions::default(),
            began: None,
            stopping: false,
            is_flush_due: false,
            empty_since: None,
            spread: Spread::new(settings.seed),
            settings,
            lane,
        }
    }

    /// The token under which it writes.
    #[must_use]
    pub const fn token(&self) -> Token {
        self.token
    }

    /// Its session, of a lane that is one's and was read.
    #[must_use]
    pub const fn session(&self) -> Option<&SessionState> {
        self.session.as_ref()
    }

    /// How many submissions and other commands are in no round yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.submissions.len() + self.inbox.waiting() + self.deferred.len()
    }

    /// When [`Self::flush`] is to be called at the latest; `None` while an answer is waited for.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        let fifo_page = self.fifo_to_read();
        let wants_quiet = self.has_read_due()
            || fifo_page.is_some()
            || !self.closing.is_empty()
            || self.transfers.are_wanted()
            || self.promotion.is_wanted()
            || self.stopping;
        let is_held_up = (wants_quiet && !self.is_quiet()) || self.is_held_up_by_page();
        if self.stage != Stage::Serving || !self.can_start() || is_held_up {
            return None;
        }
        let mut at = self.reread_at;
        if let Some(alarm) = self.jobs.next_alarm() {
            at = at.min(alarm);
        }
        if let Some(page) = self.no_page_before
            && (fifo_page.is_some() || self.page_to_read().is_some())
        {
            at = at.min(page);
        }
        Some(at)
    }

    /// A command has come.
    pub fn apply(&mut self, command: Command<C>, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.stage == Stage::Ended {
            refuse(command, &mut effects);
            return effects;
        }
        match command {
            Command::Stop => self.stop(now, &mut effects),
            command if self.stopping => self.turn_away(command, now, &mut effects),
            Command::Submit(mut new) => {
                let waiting = self.submissions.len() + self.inbox.submissions();
                let room = SUBMISSIONS_WAITING_MAX.saturating_sub(waiting);
                // Those that were looked up had room before: a part of their command may be written.
                let had_room = new.iter().all(|one| one.is_looked_up);
                let beyond = new.split_off(if had_room { new.len() } else { room.min(new.len()) });
                for submission in beyond {
                    effects.push(Effect::Submitted(submission.reply, Err(Refused::Overloaded)));
                }
                if !new.is_empty() {
                    self.inbox.push_back(Command::Submit(new));
                }
            }
            other => self.inbox.push_back(other),
        }
        if self.stage == Stage::Serving && self.can_start() && !self.is_flush_due {
            self.is_flush_due = true;
            effects.push(Effect::Flush);
        }
        effects
    }

    /// No command waits at hand, or a time has come.
    pub fn flush(&mut self, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        self.is_flush_due = false;
        self.advance(now, &mut effects);
        effects
    }

    /// Everything was read, under this token. Answers [`Effect::AcquireAnew`], after which the owner serves.
    pub fn reloaded(&mut self, token: Token, snapshot: Snapshot, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.stage != Stage::Loading {
            return effects;
        }
        self.stage = Stage::Serving;
        self.token = token;
        self.load(snapshot, now, &mut effects);
        let unsent: Vec<_> = self.additions.unsent().filter(|job| self.busy.insert(*job)).collect();
        self.lookups.extend(unsent);
        self.advance(now, &mut effects);
        effects
    }

    /// The batch was not committed, or its outcome is not known: the owner acquires the lease again.
    pub fn commit_failed(&mut self, batch: BatchId) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.in_flight.as_ref().is_some_and(|one| one.id == batch) {
            self.begin_anew(&mut effects);
        }
        effects
    }

    /// The ledger takes nothing of the batch, and refuses the same again: the owner goes on, since nothing was written.
    pub fn commit_refused(&mut self, batch: BatchId, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if let Some(batch) = self.in_flight.take_if(|one| one.id == batch) {
            self.undo(batch, now, &mut effects);
        }
        effects
    }

    /// The session was closed in the ledger, or not. Answers [`Effect::CloseSession`].
    pub fn session_closed(&mut self, closed: Result<(), CommitFailure>, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if !std::mem::replace(&mut self.is_closing, false) || self.stage != Stage::Serving {
            return effects;
        }
        let answer = match closed {
            Ok(()) => Ok(()),
            Err(CommitFailure::Fenced) => Err(Refused::Fenced),
            Err(CommitFailure::Unknown | CommitFailure::Again) => Err(Refused::OutcomeUnknown),
        };
        for reply in self.closing.drain(..) {
            effects.push(Effect::Closed(reply, answer));
        }
        match closed {
            Ok(()) => {
                if let Some(session) = &mut self.session {
                    session.closed();
                }
            }
            Err(CommitFailure::Again) => {}
            Err(CommitFailure::Fenced | CommitFailure::Unknown) => self.begin_anew(&mut effects),
        }
        self.advance(now, &mut effects);
        effects
    }

    /// Does what can be done now: reads, closes, or begins rounds.
    fn advance(&mut self, now: Instant, effects: &mut Vec<Effect<C>>) {
        loop {
            if self.stage != Stage::Serving || self.is_exclusive() {
                return;
            }
            if self.stopping {
                let goes_on = self.has_submissions() || !self.inbox.is_empty();
                if goes_on && self.can_start() {
                    self.start_round(now, effects);
                    continue;
                }
                if !goes_on && self.is_quiet() {
                    effects.push(Effect::Stop);
                }
                return;
            }
            self.plan_reread(now, effects);
            if self.wants_exclusive(now) {
                if !self.is_quiet() {
                    return;
                }
                self.start_exclusive(now, effects);
                continue;
            }
            self.start_page(now, effects);
            self.note_unknown_groups(now);
            if self.waits_for_page(now) {
                return;
            }
            self.advance_fifo(now, effects);
            if !self.can_start() || !self.has_work(now) {
                break;
            }
            self.promotion.round_began();
            self.start_round(now, effects);
        }
        if self.is_done(now) {
            effects.push(Effect::Stop);
        }
    }

    /// Whether no batch, no search for slots, no look-up and no page is under way.
    fn is_quiet(&self) -> bool {
        self.in_flight.is_none()
            && self.placing.is_none()
            && self.to_commit.is_empty()
            && !self.is_looking_up()
            && !self.pages.is_under_way()
    }

    /// Whether something is under way that nothing else may be beside.
    fn is_exclusive(&self) -> bool {
        self.reading.is_some()
            || self.is_closing
            || self.transfers.are_under_way()
            || self.promotion.is_under_way()
    }

    /// Whether something is to begin that nothing else may be beside.
    fn wants_exclusive(&self, now: Instant) -> bool {
        self.wants_read(now)
            || self.wants_close(now)
            || self.transfers.are_wanted()
            || self.wants_promotion(now)
    }

    /// Begins the first of that: what is read may change the rest.
    fn start_exclusive(&mut self, now: Instant, effects: &mut Vec<Effect<C>>) {
        if self.wants_read(now) {
            self.start_read(now, effects);
        } else if self.wants_close(now) {
            self.start_close(effects);
        } else if self.transfers.are_wanted() {
            self.start_transfer(effects);
        } else {
            self.start_promotion(effects);
        }
    }

    /// Whether a round may begin.
    fn can_start(&self) -> bool {
        self.placing.is_none()
            && self.to_commit.is_empty()
            && !self.is_exclusive()
            && self.in_flight.is_none()
    }

    fn has_work(&self, now: Instant) -> bool {
        !self.inbox.is_empty()
            || self.has_submissions()
            || self.jobs.next_alarm().is_some_and(|alarm| alarm <= now)
    }

    /// Whether a round can take submissions in.
    fn has_submissions(&self) -> bool {
        self.submissions.iter().any(|waiting| self.may_submit(waiting))
    }

    /// Whether neither its job, nor the job that it retries, nor its key is in a commit that is under way.
    fn may_submit(&self, waiting: &PendingSubmission<C>) -> bool {
        !self.busy.contains(&waiting.id)
            && waiting.submission.retry.is_none_or(|retry| !self.busy.contains(&retry.of))
            && waiting.submission.key.as_ref().is_none_or(|key| !self.busy_keys.contains(&key.scope))
    }

    fn fifo(&self) -> Option<&SessionFifo> {
        self.session.as_ref()?.fifo()
    }

    fn fifo_mut(&mut self) -> Option<&mut SessionFifo> {
        self.session.as_mut()?.fifo_mut()
    }

    /// Whether no attempt of the job may begin: the ledger has held it when its lane got a new owner.
    fn is_held(job: &LiveJob) -> bool {
        job.spec.on_recovery == OnRecovery::Held
    }

    /// A job that is due at once waits from now on, here or, behind others of its group, in the ledger.
    fn wait_in_group(&mut self, job: Arc<LiveJob>, now: Instant, effects: &mut Vec<Effect<C>>) {
        let id = job.id;
        if Self::is_held(&job) {
            self.jobs.forget(id);
            return;
        }
        if self.jobs.wait_in_group(Arc::clone(&job)) {
            self.enqueue(id, false, now, effects);
        } else {
            self.pages.left_outside(job);
        }
    }

    /// Puts a job that waits into the scheduler's queue, unless its owner ends.
    fn enqueue(&mut self, job: JobId, is_back: bool, now: Instant, effects: &mut Vec<Effect<C>>) {
        if self.stopping {
            return;
        }
        if !self.jobs.get(job).is_some_and(|entry| matches!(entry.phase, Phase::Waiting { .. })) {
            return;
        }
        if let Some(until) = self.fifo_mut().and_then(|fifo| fifo.barred_until(now)) {
            return self.jobs.look_again(job, until);
        }
        if let Some((newest, since)) = self.awaits_older(job, now) {
            effects.push(Effect::LookForOlder { job, newest, since });
            return self.jobs.look_again(job, now + OLDER_LOOK_EVERY);
        }
        let since = self.jobs.queue(job, is_back, now);
        let Some(entry) = self.jobs.get(job) else { return };
        effects.push(Effect::Enqueue(Enqueue {
            job: Arc::clone(&entry.job),
            attempt: entry.newest.attempt.next(),
            token: self.token,
            avoid: entry.avoid.clone(),
            prefer: self.session.as_ref().and_then(SessionState::affinity),
            since,
            is_back,
        }));
    }

    /// The newest attempt of a stage's job, if one before may not be over, and since when that is waited for.
    fn awaits_older(&mut self, job: JobId, now: Instant) -> Option<(Attempt, Instant)> {
        self.lane.plan_id()?;
        let newest = self.jobs.get(job)?.newest;
        let since =
            (newest.charged_attempts > 0).then(|| self.older.awaited_since(job, newest.attempt, now))??;
        Some((newest.attempt, since))
    }

    /// The attempts of a job up to this one are over: it goes on its way.
    #[must_use]
    pub fn older_are_over(&mut self, job: JobId, newest: Attempt, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if self.older.are_over(job, newest) {
            self.jobs.look_no_more(job);
            self.enqueue(job, false, now, &mut effects);
        }
        effects
    }

    /// The job has ended: in a strict session the next one has its turn.
    fn over(&mut self, job: JobId, now: Instant, effects: &mut Vec<Effect<C>>) {
        self.jobs.forget(job);
        self.older.forget(job);
        effects.push(Effect::Dequeue(job));
        if let Some(session) = &mut self.session {
            session.ended(job, now);
        }
    }

    /// Whether the job is one of the unfinished ones that are known here.
    fn is_known(&self, job: JobId) -> bool {
        self.jobs.get(job).is_some() || self.fifo().is_some_and(|fifo| fifo.has(job))
    }

    /// Lets the next job of a strict session go on its way, if it is its turn.
    fn advance_fifo(&mut self, now: Instant, effects: &mut Vec<Effect<C>>) {
        if !self.is_quiet() {
            return;
        }
        let Some(next) = self.fifo_mut().and_then(SessionFifo::advance) else { return };
        if next.job.due_at.is_none() {
            self.wait_in_group(next.job, now, effects);
        } else if !Self::is_held(&next.job) {
            self.jobs.delay(next.job, next.due.max(now), None);
        }
    }

    /// Whether a caller wants the session closed, or the session was idle for as long as it may be.
    fn wants_close(&self, now: Instant) -> bool {
        if !self.closing.is_empty() {
            return true;
        }
        let is_unused = |session: &SessionState| !session.is_closed() && session.is_idle_for_long(now);
        self.submissions.is_empty() && self.inbox.is_empty() && self.session.as_ref().is_some_and(is_unused)
    }

    fn start_close(&mut self, effects: &mut Vec<Effect<C>>) {
        let answer = match &self.session {
            None => Err(Refused::UnknownSession),
            Some(session) if session.is_closed() => Ok(()),
            Some(_) => {
                self.is_closing = true;
                effects.push(Effect::CloseSession);
                return;
            }
        };
        for reply in self.closing.drain(..) {
            effects.push(Effect::Closed(reply, answer));
        }
    }

    fn plan_next_reread(&mut self, now: Instant) {
        self.reread_at = now + self.spread.jittered(REREAD_EVERY);
    }
}

/// The job that a command is about, where it must wait for a write of that job.
const fn written_job<C: Callers>(command: &Command<C>) -> Option<JobId> {
    match command {
        Command::Cancel(job, ..) | Command::Attempt(job, ..) => Some(*job),
        Command::Complete(request) => Some(request.job),
        Command::Submit(_)
        | Command::SlotReserved(..)
        | Command::SlotUnavailable(_)
        | Command::NodeDeparted(_)
        | Command::ReservationRemoved(..)
        | Command::Written(_)
        | Command::Added(..)
        | Command::Transfer(_)
        | Command::LookForTransferred
        | Command::PassOn(_)
        | Command::CloseSession(_)
        | Command::Stop => None,
    }
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
