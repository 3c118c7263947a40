//! Rounds of a signer's owner: what waits is taken up, what must be known is read, and what is decided leaves as one
//! batch.

use std::time::{Duration, Instant};

use super::{
    BatchId, Expires, Looked, OVERDUE_LOOK_AGAIN, OVERDUE_LOOK_EVERY, PendingBatch, Preparing,
    RETRY_PAUSE_MIN, SignerState, Step, Trust, refuse, unless_hopeless,
};
use crate::database_clock::{DueHold, Overdue};
use crate::lease::Token;
use crate::limits::{BASIC_ROUND_COMMANDS_MAX, EXPIRIES_MAX, ROUND_COMMANDS_MAX, ROUND_NONCES_MAX};
use crate::mode::Mode;
use crate::nonce::{Change, Status};
use crate::signer::batch_builder::{BatchBuilder, CommittedBatch, Decision, Grounds};
use crate::signer::command::{Answer, Caller, Command, QueuedCommand, RequestKey};
use crate::signer::effect::{Effect, Effects, Moment, Note};
use crate::signer::facts::{Facts, Round};
use crate::time::Timestamp;

impl<R: Caller> SignerState<R> {
    /// Begins the next round if there is one to begin. `true` when it needed nothing from the ledger before its
    /// decisions.
    pub(super) fn begin_round(&mut self, moment: &Moment, effects: &mut Effects<R>) -> bool {
        if !self.could_begin(moment) || !self.is_current(moment) {
            return false;
        }
        let commands = self.take_commands(moment, effects);
        if commands.is_empty() {
            return false;
        }
        self.idle_until = None;
        let round = Round(self.next_number());
        let first = |is_it: fn(&Command) -> bool| commands.iter().find(|queued| is_it(&queued.command));
        let expires = if let Some(policy) = first(|command| matches!(command, Command::SetPolicy(_))) {
            // What runs out while it is tried again and again is not waited for: something always may.
            Expires::All { by: if policy.is_retry { policy.ticket.arrived } else { moment.now } }
        } else if first(|command| matches!(command, Command::Sweep)).is_some() {
            Expires::ForATurn { since: moment.now }
        } else {
            Expires::Once
        };
        let preparing = Preparing { round, step: Step::ReadingOverdue, commands, expires };
        let sets_policy = self.pending.iter().any(|batch| batch.builder.sets_policy());
        let is_due = self.lease.as_ref().is_some_and(|lease| {
            lease.allocator.is_known() && (expires != Expires::Once || moment.now >= lease.look_for_overdue)
        });
        if is_due && !sets_policy {
            self.read_overdue(preparing, moment, effects);
            return false;
        }
        self.read_facts(preparing, moment, effects)
    }

    /// Takes what waits and can be decided together.
    fn take_commands(&mut self, moment: &Moment, effects: &mut Effects<R>) -> Vec<QueuedCommand<R>> {
        let commands_max = match self.turn.as_ref().map_or(moment.mode, |turn| turn.mode) {
            Mode::Basic => BASIC_ROUND_COMMANDS_MAX,
            Mode::WorkerQueue => ROUND_COMMANDS_MAX,
        };
        let has_shared_keys = self.has_shared_keys();
        let (mut commands, mut nonces) = (Vec::new(), 0);
        while commands.len() < commands_max
            && nonces < ROUND_NONCES_MAX
            && let Some(queued) = self.waiting.pop_front()
        {
            if let Some(queued) = unless_hopeless(queued, moment, effects) {
                // Order is kept: behind one that must wait, all wait.
                let conflicts = |batch: &PendingBatch<R>| {
                    batch.builder.conflicts_with(&queued, &self.signer, has_shared_keys)
                };
                if self.pending.iter().any(conflicts) {
                    self.waiting.push_front(queued);
                    self.is_blocked = true;
                    break;
                }
                if !queued.is_retry {
                    let waited = moment.now.saturating_duration_since(queued.ticket.arrived);
                    effects.push(Effect::Note(Note::Waited(waited)));
                }
                nonces += queued.command.nonces();
                // A key that all callers share is kept twice, and the batch has no room for more rows.
                let is_keyed = matches!(&queued.command, Command::Grant(request) if request.key.is_some());
                nonces += usize::from(has_shared_keys && is_keyed);
                commands.push(queued);
            }
        }
        commands
    }

    fn has_shared_keys(&self) -> bool {
        self.lease.as_ref().is_some_and(|lease| lease.allocator.policy().shared_keys)
    }

    fn read_overdue(&mut self, mut preparing: Preparing<R>, moment: &Moment, effects: &mut Effects<R>) {
        let (mut from, mut max) = (None, EXPIRIES_MAX);
        if let Some(lease) = &mut self.lease {
            lease.look_for_overdue = moment.now + OVERDUE_LOOK_EVERY;
            let first_ends = moment.now + OVERDUE_LOOK_EVERY;
            let begun = Looked { to: None, first_ends, again_after: None };
            let goes_on = |looked: &Looked| !looked.begins_again(preparing.expires, moment.now);
            let looked = lease.looked.take().filter(goes_on).unwrap_or(begun);
            if let Some(to) = looked.to {
                from = Some(to.held_until);
                // Those are read once more.
                max += to.holds;
            }
            lease.looked = Some(looked);
        }
        preparing.step = Step::ReadingOverdue;
        effects.push(Effect::ReadOverdue { round: preparing.round, from, max });
        self.preparing = Some(preparing);
    }

    /// Applies the policy to holds that ran out; one over which the database's clock jumped is quarantined in any case.
    pub(super) fn expire(&mut self, overdue: &Overdue, moment: &Moment, effects: &mut Effects<R>) {
        let (Some(mut preparing), Some(lease)) = (self.preparing.take(), &mut self.lease) else { return };
        // What a batch on its way writes is looked at again later.
        let is_free = |due: &&DueHold| !self.pending.iter().any(|batch| batch.builder.writes(due.nonce));
        let due: Vec<_> = overdue.due.iter().filter(is_free).collect();
        let is_busy = due.len() < overdue.due.len();
        let is_left = overdue.has_more || is_busy;
        // The next round goes on where this look ends: what the next ones fill is wanted now.
        let goes_on = overdue.has_more && !(is_busy && due.is_empty());
        let first_ends =
            moment.now + overdue.next.map_or(OVERDUE_LOOK_EVERY, |next| next.min(OVERDUE_LOOK_EVERY));
        match (overdue.last_kept, &mut lease.looked) {
            // Those that are busy may be left as they are: the next look finds them again.
            (Some(to), Some(looked)) if overdue.has_more && !is_busy => {
                looked.to = Some(to);
                looked.first_ends = looked.first_ends.min(first_ends);
            }
            (_, Some(looked)) if looked.to.is_some() && !overdue.has_more => {
                let again_after = *looked.again_after.get_or_insert(moment.now + OVERDUE_LOOK_AGAIN);
                lease.look_for_overdue = lease.look_for_overdue.min(looked.first_ends.max(again_after));
            }
            _ => {}
        }
        let again = if goes_on { Duration::ZERO } else { OVERDUE_LOOK_AGAIN };
        let later = overdue.later.map(|later| later.max(OVERDUE_LOOK_AGAIN));
        for look in [overdue.next, later, is_left.then_some(again)].into_iter().flatten() {
            lease.look_for_overdue = lease.look_for_overdue.min(moment.now + look);
        }
        let target = lease.allocator.policy().on_expiry.target();
        let changes: Vec<_> = due
            .into_iter()
            .map(|&DueHold { nonce, hold, early_ms, is_doubtful }| {
                let to = if is_doubtful { Status::Quarantined } else { target };
                Change::Expire { nonce, hold, early_ms, to }
            })
            .collect();
        if changes.is_empty() {
            match preparing.expires {
                // What is on its way decides what is left to expire, or the next look finds more.
                Expires::All { .. } if is_left => {
                    self.requeue(preparing.commands);
                    self.is_blocked = !self.pending.is_empty();
                }
                Expires::ForATurn { since } if goes_on && self.has_time(since, moment) => {
                    self.read_overdue(preparing, moment, effects);
                }
                Expires::Once | Expires::ForATurn { .. } | Expires::All { .. } => {
                    self.read_facts(preparing, moment, effects);
                }
            }
            return;
        }
        let doubtful = overdue.due.iter().filter(|due| due.is_doubtful).count();
        if doubtful > 0 {
            effects.push(Effect::Note(Note::Doubtful(doubtful)));
        }
        let is_all = !is_left;
        let batch = self.send(BatchBuilder::of_changes(changes), moment, effects);
        preparing.step = Step::Expiring { batch, is_all };
        self.preparing = Some(preparing);
    }

    /// Whether a sweep that began then goes on.
    fn has_time(&self, since: Instant, moment: &Moment) -> bool {
        moment.now.saturating_duration_since(since) < self.config.lease_kept_max
    }

    /// A batch was committed: if a round waited for it to expire what was overdue, that round goes on, or expires more.
    pub(super) fn expired(&mut self, id: BatchId, moment: &Moment, effects: &mut Effects<R>) {
        let is_it = |preparing: &mut Preparing<R>| matches!(preparing.step, Step::Expiring { batch, .. } if batch == id);
        let Some(preparing) = self.preparing.take_if(is_it) else { return };
        if !self.is_current(moment) {
            self.requeue(preparing.commands);
            return;
        }
        let is_all = matches!(preparing.step, Step::Expiring { is_all: true, .. });
        match preparing.expires {
            Expires::ForATurn { since } if !is_all && self.has_time(since, moment) => {
                self.read_overdue(preparing, moment, effects);
            }
            // In a round of its own, so that neither a turn nor a command outlives its time.
            Expires::All { .. } if !is_all => self.requeue(preparing.commands),
            Expires::Once | Expires::ForATurn { .. } | Expires::All { .. } => {
                self.read_facts(preparing, moment, effects);
            }
        }
    }

    /// Reads what the round must know. `true` where that is nothing, and the round is decided.
    fn read_facts(&mut self, mut preparing: Preparing<R>, moment: &Moment, effects: &mut Effects<R>) -> bool {
        // Under the lease, and after what changes it was committed.
        let has_shared_keys = self.has_shared_keys();
        let Some(lease) = &self.lease else { return false };
        let (mut keys, mut nonces) = (Vec::new(), Vec::new());
        let (mut has_grants, mut touched) = (false, 0);
        for queued in &preparing.commands {
            touched += queued.command.nonces();
            match &queued.command {
                Command::Grant(request) => {
                    has_grants = true;
                    let scopes = |key: &RequestKey| key.scopes(&self.signer, has_shared_keys);
                    keys.extend(request.key.as_ref().map(scopes).unwrap_or_default());
                    let lost = queued.lost.iter().flat_map(|answer| &answer.grants);
                    nonces.extend(lost.map(|(nonce, _)| *nonce));
                }
                Command::Settle(settlements) => {
                    nonces.extend(settlements.iter().map(|settlement| settlement.nonce));
                }
                Command::Resolve(request) => nonces.push(request.nonce),
                Command::SetPolicy(_) | Command::Sweep => {}
            }
        }
        // Settlements count too: one that comes late takes a hole away before a grant behind it is decided.
        let lacks_holes = has_grants && lease.allocator.lacks_holes_for(touched);
        if lacks_holes && !self.pending.is_empty() {
            // What is on its way may make or fill holes while they are read.
            self.requeue(preparing.commands);
            self.is_blocked = true;
            return false;
        }
        if !lacks_holes && keys.is_empty() && nonces.is_empty() {
            self.decide(preparing.commands, &Facts::none(moment.now), moment, effects);
            return true;
        }
        nonces.sort_unstable();
        nonces.dedup();
        preparing.step = Step::ReadingFacts { asked: moment.now };
        effects.push(Effect::ReadFacts { round: preparing.round, keys, nonces, reads_holes: lacks_holes });
        self.preparing = Some(preparing);
        false
    }

    pub(super) fn decide(
        &mut self,
        commands: Vec<QueuedCommand<R>>,
        facts: &Facts,
        moment: &Moment,
        effects: &mut Effects<R>,
    ) {
        if self.pending.iter().any(|batch| batch.again_at.is_some()) {
            // It waits to be sent again, and nothing can follow it meanwhile.
            self.requeue(commands);
            self.is_blocked = true;
            return;
        }
        let Some(lease) = &mut self.lease else { return };
        let mut builder = BatchBuilder::default();
        let mut grounds = Grounds {
            config: &self.config,
            signer: &self.signer,
            token: lease.token,
            allocator: &mut lease.allocator,
            facts,
            is_beside_another: !self.pending.is_empty(),
            now: moment.now,
        };
        let (mut deferred, mut repeated) = (Vec::new(), Vec::new());
        for queued in commands {
            if !deferred.is_empty() {
                deferred.push(queued);
                continue;
            }
            match builder.decide(&mut grounds, queued) {
                Decision::Added => {}
                Decision::Answered(caller, answer) => effects.push(Effect::Reply(caller, answer)),
                Decision::Found(caller, grants) => {
                    effects.push(Effect::Note(Note::Granted(grants.grants.len())));
                    effects.push(Effect::Reply(caller, Ok(Answer::Granted(grants))));
                }
                Decision::Refused(queued, refusal) => refuse(queued, refusal, effects),
                Decision::Deferred(queued) => deferred.push(queued),
                Decision::Repeated(queued) => repeated.push(queued),
            }
        }
        deferred.append(&mut repeated);
        if builder.has_answers() {
            if builder.has_writes() {
                self.send(builder, moment, effects);
            } else {
                // Nothing changes: what was read is the answer.
                let at = Timestamp::from_micros(0);
                let committed = builder.committed(at, moment.now, moment.now);
                self.note_committed(committed, moment, effects);
            }
        }
        if !deferred.is_empty() {
            self.requeue(deferred);
            self.is_blocked = !self.pending.is_empty();
        }
    }

    fn send(&mut self, builder: BatchBuilder<R>, moment: &Moment, effects: &mut Effects<R>) -> BatchId {
        let id = BatchId(self.next_number());
        let token = self.lease.as_ref().map_or(Token::new(0), |lease| lease.token);
        let batch = builder.batch(&self.config, &self.signer, token);
        let is_before = |batch: &&PendingBatch<R>| batch.builder.has_grants();
        let after =
            self.pending.iter().rfind(is_before).filter(|_| builder.has_grants()).map(|batch| batch.id);
        effects.push(Effect::Commit { id, op: builder.operation(), batch, after });
        // Most owners never have a second one.
        self.pending.reserve_exact(1);
        self.pending.push(PendingBatch {
            id,
            builder,
            after,
            token,
            sent: moment.now,
            tries: 0,
            again_at: None,
        });
        id
    }

    /// Sends batches again whose lease row was locked, and whose pause is over.
    pub(super) fn send_again(&mut self, moment: &Moment, effects: &mut Effects<R>) {
        let mut at = 0;
        while at < self.pending.len() {
            let Some(again_at) = self.pending[at].again_at else {
                at += 1;
                continue;
            };
            if moment.now < again_at {
                effects.push(Effect::WakeAt(again_at));
            } else if self.is_current(moment) {
                let pending = &mut self.pending[at];
                pending.again_at = None;
                pending.sent = moment.now;
                let batch = pending.builder.batch(&self.config, &self.signer, pending.token);
                let (id, op) = (pending.id, pending.builder.operation());
                // While the state is trusted, the one before was committed or is on its way.
                let after = pending.after.filter(|after| self.pending.iter().any(|batch| batch.id == *after));
                effects.push(Effect::Commit { id, op, batch, after });
            } else {
                let batch = self.pending.remove(at);
                self.decide_again(batch, false, Trust::Reload);
                continue;
            }
            at += 1;
        }
    }

    pub(super) fn note_committed(
        &mut self,
        committed: CommittedBatch<R>,
        moment: &Moment,
        effects: &mut Effects<R>,
    ) {
        self.retry_pause = RETRY_PAUSE_MIN;
        if let Some(lease) = &mut self.lease {
            lease.allocator.note(&committed.moved);
            if committed.must_reload && lease.trust == Trust::Sound {
                lease.trust = Trust::Reload;
            }
            if let Some(hold_ms) = committed.shortest_hold_ms {
                let runs_out = moment.now + Duration::from_millis(hold_ms);
                lease.look_for_overdue = lease.look_for_overdue.min(runs_out);
                // It may run out before what the look has come to.
                if let Some(looked) = &mut lease.looked {
                    looked.first_ends = looked.first_ends.min(runs_out);
                }
            }
        }
        if committed.granted > 0 {
            effects.push(Effect::Note(Note::Granted(committed.granted)));
        }
        let mut quarantined = committed.moved.iter().filter(|change| change.quarantines());
        if let Some(lowest) = quarantined.next().map(Change::nonce) {
            let nonces = 1 + quarantined.count();
            effects.push(Effect::Note(Note::Quarantined { nonces, lowest }));
        }
        effects
            .extend(committed.replies.into_iter().map(|(caller, answer)| Effect::Reply(caller, Ok(answer))));
    }
}
