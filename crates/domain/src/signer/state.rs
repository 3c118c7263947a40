//! The state of a signer's owner. See the module above for its stages.

mod rounds;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batch_builder::BatchBuilder;
use super::command::{Answer, Caller, Command, QueuedCommand, Ticket};
use super::config::SignerConfig;
use super::effect::{Acquired, BatchId, Effect, Effects, LedgerFailure, Moment, Note, Phase};
use super::facts::{Facts, FactsRead, Round};
use super::refusal::Refusal;
use super::waiting::WaitingCommands;
use crate::database_clock::{LastKept, Overdue};
use crate::id::{InstanceId, SignerId};
use crate::lease::Token;
use crate::limits::COMMIT_AGAIN_MAX;
use crate::mode::Mode;
use crate::nonce::{Allocator, Loaded, Verdict};

/// Before a batch whose lease row was locked is sent again.
const AGAIN_PAUSE: Duration = Duration::from_millis(1);
/// Between two looks for holds that ran out, so that those that do one after the other are let go together. Those that were
/// left, since they are written just now, are looked for again after this; those that were too many, in the next round.
const OVERDUE_LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Even if no hold is known to run out, its owner looks after this: one read of an index costs little.
const OVERDUE_LOOK_EVERY: Duration = Duration::from_secs(60);
/// Between two looks at a lease that another instance has, before jitter.
const LOOK_PAUSE: Duration = Duration::from_millis(15);
/// Between two looks at a lease that has run out under another instance, before jitter.
const LAPSED_PAUSE: Duration = Duration::from_millis(100);
/// After a turn that ran its full length, before jitter.
const TURN_PAUSE: Duration = Duration::from_millis(20);
/// Between two tries at a ledger that does not answer, before jitter: doubled each time, from this one …
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(20);
/// … to this one.
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(640);
/// Room for so many commands is kept by an owner without work; what a burst took beyond that is given back.
const IDLE_CAPACITY_COMMANDS_MAX: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No lease.
    Vacant,
    Acquiring,
    Loading,
    /// There is a lease. It may be trusted or not.
    Owning,
    Releasing,
    Reclaiming,
}

/// How far what is known here can be relied on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trust {
    /// It is what the ledger has.
    Sound,
    /// It is not, or may not be.
    Reload,
    /// The same, and the ledger did not answer the last time.
    Away,
}

/// The lease's token and what its owner knows under it.
struct OwnedLease {
    token: Token,
    trust: Trust,
    /// When to look for holds that ran out: when one may have, by this process's own clock.
    look_for_overdue: Instant,
    /// How far the look has come; `None` before the first one.
    looked: Option<Looked>,
    allocator: Allocator,
}

/// How far the look for holds that ran out has come, where one read does not find all that ran out by the database's clock
/// alone.
struct Looked {
    /// The next read goes on from here: what is before it is kept, ended, or was granted since the look began. `None` where the
    /// next read begins with the first hold.
    to: Option<LastKept>,
    /// When the first of those ends that are kept before it, or were granted since it began.
    first_ends: Instant,
    /// It has come through all. It begins with the first again when that one ends, but not before this.
    again_after: Option<Instant>,
}

impl Looked {
    /// Whether the next read, which such a round asks for, begins with the first hold.
    fn begins_again(&self, expires: Expires, now: Instant) -> bool {
        self.to.is_none()
            || self.again_after.is_some_and(|after| now >= self.first_ends.max(after))
            || matches!(expires, Expires::All { by } if self.first_ends <= by)
    }
}

/// From the first acquire until the lease is given back.
struct Turn {
    /// One mode for the whole turn. A change of it hands the lease off.
    mode: Mode,
    /// The turn counts from when the lease was had, not from when it was waited for.
    had_since: Option<Instant>,
}

/// A round before its decisions.
struct Preparing<R> {
    round: Round,
    step: Step,
    commands: Vec<QueuedCommand<R>>,
    expires: Expires,
}

/// How many of the holds that ran out end before a round is decided.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expires {
    /// Those of one commit, if it is time to look for them.
    Once,
    /// For as long as a turn may last: the round has a sweep.
    ForATurn { since: Instant },
    /// All that ran out by then: the round sets a policy, and they end under the one that was in force when they ran out.
    All { by: Instant },
}

#[derive(Clone, Copy)]
enum Step {
    ReadingOverdue,
    /// Overdue holds are being expired; whether all that there were.
    Expiring {
        batch: BatchId,
        is_all: bool,
    },
    ReadingFacts {
        asked: Instant,
    },
}

/// A batch on its way.
struct PendingBatch<R> {
    id: BatchId,
    builder: BatchBuilder<R>,
    /// The batch on whose grants it was decided, if that one was not committed by then.
    after: Option<BatchId>,
    token: Token,
    sent: Instant,
    tries: usize,
    /// Its lease row was locked; it is sent again then.
    again_at: Option<Instant>,
}

/// The state of one signer's owner. `R` says where an answer goes.
pub struct SignerState<R> {
    signer: SignerId,
    config: Arc<SignerConfig>,
    waiting: WaitingCommands<R>,
    stage: Stage,
    lease: Option<OwnedLease>,
    /// How far the look had come under the lease before, if that was given back with nothing in doubt: one turn may be too
    /// short for a look.
    looked_before: Option<Looked>,
    turn: Option<Turn>,
    preparing: Option<Preparing<R>>,
    pending: Vec<PendingBatch<R>>,
    /// Nothing is begun before this.
    pause_until: Option<Instant>,
    retry_pause: Duration,
    /// An idle lease is given back then.
    idle_until: Option<Instant>,
    /// The lease is to be given back: the signer belongs elsewhere.
    is_to_hand_off: bool,
    /// The last acquire was sent without an answer: the lease may be this instance's.
    is_acquire_unanswered: bool,
    /// A command waits for a batch on its way.
    is_blocked: bool,
    /// [`Effect::Proceed`] was asked for and has not come.
    is_to_proceed: bool,
    next_number: u64,
}

impl<R: Caller> SignerState<R> {
    /// The state of an owner that has no lease yet.
    #[must_use]
    pub fn new(signer: SignerId, config: Arc<SignerConfig>) -> Self {
        assert!(config.commits_in_flight_max > 0, "no commit could ever leave");
        Self {
            signer,
            config,
            waiting: WaitingCommands::new(),
            stage: Stage::Vacant,
            lease: None,
            looked_before: None,
            turn: None,
            preparing: None,
            pending: Vec::new(),
            pause_until: None,
            retry_pause: RETRY_PAUSE_MIN,
            idle_until: None,
            is_to_hand_off: false,
            is_acquire_unanswered: false,
            is_blocked: false,
            is_to_proceed: false,
            next_number: 0,
        }
    }

    /// How many commands wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many batches are on their way.
    #[must_use]
    pub fn commits_in_flight(&self) -> usize {
        self.pending.len()
    }

    /// A command has arrived. It waits, or is refused at once.
    pub fn apply(&mut self, command: Command, ticket: Ticket<R>, moment: &Moment) -> Effects<R> {
        if moment.phase == Phase::Over {
            // It may have come after the word of the end, and is then the last that is heard.
            return self.advance(moment, vec![Effect::Reply(ticket.caller, Err(Refusal::Fenced))]);
        }
        if self.waiting.len() >= self.config.waiting_commands_max {
            return vec![Effect::Reply(ticket.caller, Err(Refusal::Overloaded))];
        }
        let number = self.next_number();
        self.waiting.push_back(QueuedCommand {
            number,
            command,
            ticket,
            lost: None,
            is_unsure: false,
            is_retry: false,
        });
        if self.is_to_proceed || !self.could_begin(moment) {
            return Vec::new();
        }
        self.is_to_proceed = true;
        vec![Effect::Proceed]
    }

    /// Begins what can be begun.
    pub fn proceed(&mut self, moment: &Moment) -> Effects<R> {
        self.is_to_proceed = false;
        self.advance(moment, Vec::new())
    }

    /// Time has passed, the lease was lost, or the owners' phase has changed.
    pub fn wake(&mut self, moment: &Moment) -> Effects<R> {
        self.advance(moment, Vec::new())
    }

    /// The signer belongs elsewhere. Its lease is given back after the round under way.
    pub fn hand_off(&mut self, moment: &Moment) -> Effects<R> {
        self.is_to_hand_off |= self.lease.is_some() || self.stage == Stage::Acquiring;
        self.advance(moment, Vec::new())
    }

    /// The ledger's answer to [`Effect::Acquire`].
    pub fn acquired(&mut self, result: Result<Acquired, LedgerFailure>, moment: &Moment) -> Effects<R> {
        debug_assert_eq!(self.stage, Stage::Acquiring);
        let mut effects = Vec::new();
        self.is_acquire_unanswered = matches!(result, Err(LedgerFailure::Away));
        self.stage = if self.lease.is_some() { Stage::Owning } else { Stage::Vacant };
        match result {
            Ok(Acquired::Lease(token)) => {
                self.lease = Some(OwnedLease {
                    token,
                    trust: Trust::Reload,
                    look_for_overdue: moment.now,
                    looked: self.looked_before.take(),
                    allocator: Allocator::new(Loaded::default()),
                });
                self.stage = Stage::Loading;
                effects.push(Effect::Load);
                return effects;
            }
            Ok(Acquired::Held { owner, expires_in_ms }) => {
                let refusal = match self.turn.as_ref().map_or(moment.mode, |turn| turn.mode) {
                    Mode::Basic => Refusal::LeaseHeld { owner, expires_in_ms },
                    Mode::WorkerQueue => Refusal::NotOwner { owner, expires_in_ms },
                };
                self.refuse_where(|ticket| moment.now >= ticket.patience, &refusal, &mut effects);
                if !self.waiting.is_empty() {
                    self.pause_until = Some(moment.now + (self.config.sources.jittered)(LOOK_PAUSE));
                }
            }
            Ok(Acquired::Lapsed) => {
                if !self.waiting.is_empty() {
                    self.pause_until = Some(moment.now + (self.config.sources.jittered)(LAPSED_PAUSE));
                }
            }
            Err(LedgerFailure::Away) => self.away(moment, &mut effects),
            Err(LedgerFailure::Defect) => self.refuse_waiting(&Refusal::Internal, &mut effects),
        }
        self.advance(moment, effects)
    }

    /// The ledger's answer to [`Effect::Load`].
    pub fn loaded(&mut self, result: Result<Loaded, LedgerFailure>, moment: &Moment) -> Effects<R> {
        debug_assert_eq!(self.stage, Stage::Loading);
        let mut effects = Vec::new();
        self.stage = Stage::Owning;
        if let Some(turn) = &mut self.turn {
            turn.had_since.get_or_insert(moment.now);
        }
        match result {
            Ok(loaded) => {
                if let Some(lease) = &mut self.lease {
                    lease.allocator = Allocator::new(loaded);
                    lease.trust = Trust::Sound;
                    if lease.allocator.is_known() {
                        effects.push(Effect::Note(Note::Known));
                    }
                }
            }
            Err(LedgerFailure::Away) => self.away(moment, &mut effects),
            Err(LedgerFailure::Defect) => self.refuse_waiting(&Refusal::Internal, &mut effects),
        }
        self.advance(moment, effects)
    }

    /// The ledger's answer to [`Effect::ReadOverdue`].
    pub fn overdue_read(
        &mut self,
        round: Round,
        result: Result<Overdue, LedgerFailure>,
        moment: &Moment,
    ) -> Effects<R> {
        let mut effects = Vec::new();
        if !self.is_preparing(round) {
            return effects;
        }
        match result {
            Ok(overdue) if self.is_current(moment) => self.expire(&overdue, moment, &mut effects),
            // Looked at again under the next lease.
            Ok(_) => self.lose_trust(Trust::Reload),
            Err(failure) => self.reading_failed(failure, moment, &mut effects),
        }
        self.advance(moment, effects)
    }

    /// The ledger's answer to [`Effect::ReadFacts`].
    pub fn facts_read(
        &mut self,
        round: Round,
        result: Result<FactsRead, LedgerFailure>,
        moment: &Moment,
    ) -> Effects<R> {
        let mut effects = Vec::new();
        if !self.is_preparing(round) {
            return effects;
        }
        match result {
            // A recovery of the ledger, and a confirmation, end a lease that lasts by this process's own clock.
            Ok(FactsRead { is_owned, .. }) if !is_owned || !self.is_current(moment) => {
                self.lose_trust(Trust::Reload);
            }
            Ok(read) => {
                if let Some(Preparing { step: Step::ReadingFacts { asked }, commands, .. }) =
                    self.preparing.take()
                {
                    if let (Some(lease), Some((holes, is_complete))) = (&mut self.lease, read.holes) {
                        lease.allocator.refill(holes, is_complete);
                    }
                    let facts = Facts::new(read.kept, read.rows, asked);
                    self.decide(commands, &facts, moment, &mut effects);
                }
            }
            Err(failure) => self.reading_failed(failure, moment, &mut effects),
        }
        self.advance(moment, effects)
    }

    /// The ledger's answer to [`Effect::Commit`].
    pub fn committed(
        &mut self,
        id: BatchId,
        result: Result<Verdict, LedgerFailure>,
        moment: &Moment,
    ) -> Effects<R> {
        let mut effects = Vec::new();
        let Some(at) = self.pending.iter().position(|batch| batch.id == id) else {
            return effects;
        };
        self.is_blocked = false;
        let mut batch = self.pending.remove(at);
        let op = batch.builder.operation();
        match result {
            Ok(Verdict::Committed { at }) => {
                effects.push(Effect::Note(Note::Known));
                let committed = batch.builder.committed(at, batch.sent, moment.now);
                self.note_committed(committed, moment, &mut effects);
                self.expired(id, moment, &mut effects);
            }
            Ok(Verdict::Again) => {
                batch.tries += 1;
                if batch.tries < COMMIT_AGAIN_MAX {
                    batch.again_at = Some(moment.now + AGAIN_PAUSE);
                    self.pending.insert(at, batch);
                } else {
                    self.decide_again(batch, false, Trust::Reload);
                }
            }
            // What was decided beside the taken key, or on a batch that was lost, is not in the ledger either.
            Ok(Verdict::KeyTaken | Verdict::Undone) => self.decide_again(batch, false, Trust::Reload),
            Ok(Verdict::Diverged) => {
                effects.push(Effect::Note(Note::Diverged { op }));
                self.decide_again(batch, false, Trust::Reload);
            }
            Ok(Verdict::Fenced) => {
                effects.push(Effect::Note(Note::FenceRejected { op, token: batch.token }));
                let prepared = self.preparing.take().map(|round| round.commands).unwrap_or_default();
                for queued in batch.builder.undecided(false).chain(prepared) {
                    refuse(queued, Refusal::Fenced, &mut effects);
                }
                if self.lease.take().is_some() {
                    self.stage = Stage::Reclaiming;
                    effects.push(Effect::Reclaim);
                }
            }
            // Only commands whose write certainly failed are refused as such.
            Err(LedgerFailure::Away) => {
                self.decide_again(batch, true, Trust::Away);
                self.away(moment, &mut effects);
            }
            Err(LedgerFailure::Defect) => {
                self.refuse_defective(batch.builder, &mut effects);
                self.lose_trust(Trust::Reload);
            }
        }
        self.advance(moment, effects)
    }

    /// The ledger does not take a batch. If entries of the audit were part of it, they may be why: what they are about is
    /// refused, and the rest is decided again, without them. Otherwise nobody knows which command is at fault.
    fn refuse_defective(&mut self, batch: BatchBuilder<R>, effects: &mut Effects<R>) {
        let is_audited = |queued: &QueuedCommand<R>| queued.ticket.audit.is_some();
        let (audited, mut rest): (Vec<_>, Vec<_>) = batch.undecided(false).partition(is_audited);
        let refused = if audited.is_empty() {
            rest.extend(self.preparing.take().map(|round| round.commands).unwrap_or_default());
            rest
        } else {
            self.requeue(rest);
            audited
        };
        for queued in refused {
            refuse(queued, Refusal::Internal, effects);
        }
    }

    /// The answer to an awaited [`Effect::Release`], whatever the ledger said: the lease runs out by itself. After a
    /// hand-off, waiting requests are refused with the name of the new owner, if the signer is left to one.
    pub fn released(&mut self, new_owner: Option<InstanceId>, moment: &Moment) -> Effects<R> {
        debug_assert_eq!(self.stage, Stage::Releasing);
        let mut effects = Vec::new();
        if let Some(owner) = new_owner.filter(|_| self.is_to_hand_off) {
            self.refuse_waiting(&Refusal::NotOwner { owner, expires_in_ms: 0 }, &mut effects);
        }
        self.end_turn(moment);
        self.advance(moment, effects)
    }

    /// The answer to [`Effect::Reclaim`], whatever the ledger said.
    pub fn reclaimed(&mut self, moment: &Moment) -> Effects<R> {
        debug_assert_eq!(self.stage, Stage::Reclaiming);
        self.stage = Stage::Vacant;
        self.advance(moment, Vec::new())
    }

    fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn is_preparing(&self, round: Round) -> bool {
        self.preparing.as_ref().is_some_and(|preparing| preparing.round == round)
    }

    /// Whether it can be decided upon: what is known is what the ledger has, and the lease surely lasts by this
    /// process's own clock. A process that was paused finds out here; one that is paused after this look is stopped by
    /// the fence.
    fn is_current(&self, moment: &Moment) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.trust == Trust::Sound)
            && moment.lease_until.is_some_and(|until| moment.now < until)
            && moment.is_alive
    }

    fn is_turn_over(&self, moment: &Moment) -> bool {
        self.turn.as_ref().is_some_and(|turn| {
            turn.mode == Mode::Basic
                && turn.had_since.is_some_and(|since| {
                    moment.now.saturating_duration_since(since) >= self.config.lease_kept_max
                })
        })
    }

    fn could_begin(&self, moment: &Moment) -> bool {
        matches!(self.stage, Stage::Vacant | Stage::Owning)
            && self.pause_until.is_none_or(|until| moment.now >= until)
            && self.preparing.is_none()
            && (!self.is_blocked || self.pending.is_empty())
            && (self.pending.is_empty() || self.may_begin_beside())
    }

    /// Whether a batch may leave while others are on their way. One that waits to be sent again is not.
    fn may_begin_beside(&self) -> bool {
        self.pending.len() < self.config.commits_in_flight_max
            && self.waiting.nonces() >= self.config.nonces_beside_min
            && self.pending.iter().all(|batch| batch.again_at.is_none())
    }

    /// Begins all that can be begun now. Every call of the state ends here.
    fn advance(&mut self, moment: &Moment, mut effects: Effects<R>) -> Effects<R> {
        self.send_again(moment, &mut effects);
        if moment.phase == Phase::Over {
            if let Some(preparing) = self.preparing.take() {
                self.requeue(preparing.commands);
            }
            self.refuse_waiting(&Refusal::Fenced, &mut effects);
            self.pause_until = None;
        }
        if let Some(until) = self.pause_until {
            if moment.now < until {
                effects.push(Effect::WakeAt(until));
                return effects;
            }
            self.pause_until = None;
        }
        match self.stage {
            Stage::Vacant => self.advance_vacant(moment, effects),
            Stage::Owning => self.advance_owning(moment, effects),
            Stage::Acquiring | Stage::Loading | Stage::Releasing | Stage::Reclaiming => effects,
        }
    }

    fn advance_vacant(&mut self, moment: &Moment, mut effects: Effects<R>) -> Effects<R> {
        // Their verdicts first: what they have written is loaded then.
        if !self.pending.is_empty() {
            return effects;
        }
        self.is_to_hand_off = false;
        if self.is_turn_over(moment) {
            self.end_turn(moment);
            return self.advance(moment, effects);
        }
        self.drop_hopeless(moment, &mut effects);
        if !self.waiting.is_empty() {
            self.acquire(moment, &mut effects);
        } else if std::mem::take(&mut self.is_acquire_unanswered) {
            self.stage = Stage::Reclaiming;
            effects.push(Effect::Reclaim);
        } else {
            self.turn = None;
            effects.push(Effect::Stop);
        }
        effects
    }

    fn advance_owning(&mut self, moment: &Moment, mut effects: Effects<R>) -> Effects<R> {
        if !self.is_current(moment)
            && let Some(preparing) = self.preparing.take()
        {
            self.requeue(preparing.commands);
        }
        let is_to_end = self.is_to_hand_off || moment.phase == Phase::Over || self.is_turn_over(moment);
        if self.is_current(moment) {
            while !is_to_end && self.begin_round(moment, &mut effects) {}
            if self.preparing.is_some() || !self.pending.is_empty() {
                return effects;
            }
            if !is_to_end {
                if !self.waiting.is_empty() {
                    // Only after a round that has spoiled what it was decided on.
                    return if self.is_current(moment) { effects } else { self.advance(moment, effects) };
                }
                if self.lingers(moment, &mut effects) {
                    return effects;
                }
            }
            return self.release(moment, effects);
        }
        if !self.pending.is_empty() {
            return effects;
        }
        self.drop_hopeless(moment, &mut effects);
        if is_to_end || self.waiting.is_empty() {
            return self.release(moment, effects);
        }
        self.acquire(moment, &mut effects);
        effects
    }

    /// With nothing to do: whether the lease is kept for a while all the same.
    fn lingers(&mut self, moment: &Moment, effects: &mut Effects<R>) -> bool {
        let keeps = self.turn.as_ref().is_some_and(|turn| turn.mode == Mode::WorkerQueue);
        // The next request finds out whether the signer was confirmed meanwhile.
        let is_recovering = self.lease.as_ref().is_some_and(|lease| lease.allocator.is_recovering());
        if !keeps || is_recovering || moment.phase != Phase::Serving || !moment.may_idle {
            return false;
        }
        let idle = self.config.idle;
        let until = *self.idle_until.get_or_insert_with(|| moment.now + (self.config.sources.jittered)(idle));
        if moment.now >= until {
            return false;
        }
        self.waiting.shrink_to(IDLE_CAPACITY_COMMANDS_MAX);
        effects.push(Effect::WakeAt(until));
        true
    }

    fn acquire(&mut self, moment: &Moment, effects: &mut Effects<R>) {
        // An instance that cannot show that it lives writes for nobody until it can.
        if !moment.is_alive {
            self.away(moment, effects);
            effects.extend(self.pause_until.map(Effect::WakeAt));
            return;
        }
        let turn = self.turn.get_or_insert(Turn { mode: moment.mode, had_since: None });
        effects.push(Effect::Acquire { mode: turn.mode });
        self.stage = Stage::Acquiring;
        self.idle_until = None;
    }

    fn release(&mut self, moment: &Moment, mut effects: Effects<R>) -> Effects<R> {
        let is_sound = self.is_current(moment);
        let lease = self.lease.take();
        let is_awaited = lease.as_ref().is_some_and(|lease| lease.trust != Trust::Away);
        let looked = lease.filter(|_| is_sound).and_then(|lease| lease.looked);
        // What others grant from now on may end before what is kept.
        self.looked_before =
            looked.map(|looked| Looked { first_ends: looked.first_ends.min(moment.now), ..looked });
        effects.push(Effect::Release { is_awaited });
        self.stage = Stage::Releasing;
        if is_awaited {
            return effects;
        }
        self.end_turn(moment);
        self.advance(moment, effects)
    }

    /// The lease is given back.
    fn end_turn(&mut self, moment: &Moment) {
        self.stage = Stage::Vacant;
        if self.is_turn_over(moment) {
            self.pause_until = Some(moment.now + (self.config.sources.jittered)(TURN_PAUSE));
        }
        self.turn = None;
        self.idle_until = None;
        self.is_to_hand_off = false;
    }

    /// A batch was not surely committed. Its commands are decided again on what the ledger has then.
    fn decide_again(&mut self, batch: PendingBatch<R>, is_unsure: bool, trust: Trust) {
        self.requeue(batch.builder.undecided(is_unsure));
        self.lose_trust(trust);
    }

    /// Nothing is decided any more on what is known. The lease stays, to be acquired anew or given back.
    fn lose_trust(&mut self, trust: Trust) {
        if let Some(preparing) = self.preparing.take() {
            self.requeue(preparing.commands);
        }
        if let Some(lease) = &mut self.lease {
            lease.trust = trust;
        }
    }

    fn reading_failed(&mut self, failure: LedgerFailure, moment: &Moment, effects: &mut Effects<R>) {
        match failure {
            LedgerFailure::Away => self.away(moment, effects),
            LedgerFailure::Defect => {
                for queued in self.preparing.take().map(|round| round.commands).unwrap_or_default() {
                    refuse(queued, Refusal::Internal, effects);
                }
                self.lose_trust(Trust::Reload);
            }
        }
    }

    /// The ledger does not answer: a pause, for as long as anybody has time for one.
    fn away(&mut self, moment: &Moment, effects: &mut Effects<R>) {
        self.lose_trust(Trust::Away);
        self.drop_hopeless(moment, effects);
        let latest = self.waiting.iter().map(|queued| queued.ticket.deadline).max();
        self.pause_until = latest.map(|latest| {
            let pause = (self.config.sources.jittered)(self.retry_pause);
            (moment.now + pause).min(latest)
        });
        self.retry_pause = (self.retry_pause * 2).min(RETRY_PAUSE_MAX);
    }

    /// Puts commands back to where they were in the queue.
    fn requeue(&mut self, commands: impl IntoIterator<Item = QueuedCommand<R>>) {
        self.waiting.put_back(commands.into_iter().map(|queued| QueuedCommand { is_retry: true, ..queued }));
    }

    /// What a caller that has left asked for is not begun: nobody would ever settle what it grants. Nor is what has
    /// waited too long: each such try would keep those behind it waiting too.
    fn drop_hopeless(&mut self, moment: &Moment, effects: &mut Effects<R>) {
        let is_hopeless = |queued: &QueuedCommand<R>| {
            queued.ticket.caller.has_left() || moment.now >= queued.ticket.deadline
        };
        if !self.waiting.iter().any(is_hopeless) {
            return;
        }
        for queued in self.waiting.take() {
            if let Some(queued) = unless_hopeless(queued, moment, effects) {
                self.waiting.push_back(queued);
            }
        }
    }

    fn refuse_where(
        &mut self,
        is_refused: impl Fn(&Ticket<R>) -> bool,
        refusal: &Refusal,
        effects: &mut Effects<R>,
    ) {
        for queued in self.waiting.take() {
            if is_refused(&queued.ticket) {
                refuse(queued, refusal.clone(), effects);
            } else {
                self.waiting.push_back(queued);
            }
        }
    }

    fn refuse_waiting(&mut self, refusal: &Refusal, effects: &mut Effects<R>) {
        self.refuse_where(|_| true, refusal, effects);
    }
}

/// Refuses a command; where something may have been written all the same, by saying that this is not known.
fn refuse<R>(queued: QueuedCommand<R>, refusal: Refusal, effects: &mut Effects<R>) {
    let refusal = if queued.is_unsure { Refusal::LedgerUnavailable } else { refusal };
    effects.push(Effect::Reply(queued.ticket.caller, Err(refusal)));
}

fn unless_hopeless<R: Caller>(
    queued: QueuedCommand<R>,
    moment: &Moment,
    effects: &mut Effects<R>,
) -> Option<QueuedCommand<R>> {
    if queued.ticket.caller.has_left() {
        return None;
    }
    if moment.now >= queued.ticket.deadline {
        let refused: Result<Answer, _> = Err(Refusal::LedgerUnavailable);
        effects.push(Effect::Reply(queued.ticket.caller, refused));
        return None;
    }
    Some(queued)
}
