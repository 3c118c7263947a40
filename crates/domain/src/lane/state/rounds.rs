//! Rounds: what commands lead to, and the batches that are committed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use crate::job::{
    Assignment, Attempt, Change, Class, CurrentAttempt, Due, Event, LiveJob, NewJob, Outcome, Revoked, State,
    Step, decide,
};
use crate::lane::jobs::{Phase, TimeUp};
use crate::lane::limits::{
    DELAY_KEPT, ROUND_BYTES_MAX, ROUND_COMMANDS_MAX, ROUND_NEW_JOBS_MAX, TIME_UP_LOOK_AGAIN,
};
use crate::lane::messages::{
    AttemptEvent, BatchId, Callers, Command, CompletionRequest, Effect, KeyedAnswer, PendingSubmission,
    PlacementRequest, Refused, ReservedSlot, SlotSearch, SlotsFound, WrittenBatch,
};
use crate::lane::round::{AfterCommit, CommittedBatch, Item, NextInLine, PendingBatch, Placing, next_batch};
use crate::lane::session::SessionState;
use crate::{JobId, NodeId, PoolName, Timestamp};

use super::{LaneState, Stage, written_job};

/// Why an attempt of which nothing is heard is taken back, in words.
pub(super) const UNACKNOWLEDGED: &str = "the node did not acknowledge the attempt in time";

impl<C: Callers> LaneState<C> {
    /// Takes commands in, and has the round committed as soon as it has its slots.
    pub(super) fn start_round(&mut self, now: Instant, effects: &mut Vec<Effect<C>>) {
        let mut round = PendingBatch::default();
        // An owner that ends has turned away what it does not take in.
        let mut others = 0;
        while others < ROUND_COMMANDS_MAX
            && let Some(command) = self.inbox.pop_front()
        {
            others += usize::from(!matches!(command, Command::Submit(_)));
            self.take_in(command, &mut round, now, effects);
        }
        if !self.stopping {
            self.look_at_due(&mut round, now, effects);
        }
        let accepted = self.accept(now, effects);
        let next = self.next_in_line(&round, now);
        let search = self.search(&round, &accepted, next.as_ref());
        let placing = Placing { round, accepted, next, is_void: false, token: self.token };
        if search.offers.is_empty() && search.requests.is_empty() {
            self.finish_round(placing, SlotsFound::default(), now, effects);
        } else {
            self.placing = Some(placing);
            effects.push(Effect::FindSlots(search));
        }
    }

    /// The scheduler has found these slots. Answers [`Effect::FindSlots`].
    pub fn slots_found(&mut self, found: SlotsFound, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        let Some(placing) = self.placing.take() else {
            self.release(found, self.token, &mut effects);
            return effects;
        };
        if placing.is_void {
            self.release(found, placing.token, &mut effects);
            self.dissolve(placing, &mut effects);
        } else {
            self.finish_round(placing, found, now, &mut effects);
        }
        self.advance(now, &mut effects);
        effects
    }

    /// The ledger has nothing under the keys of these submissions, or could not tell: then there are none. Answers
    /// [`Effect::LookUp`].
    pub fn looked_up(&mut self, mut new: Vec<PendingSubmission<C>>, now: Instant) -> Vec<Effect<C>> {
        self.look_ups -= 1;
        for one in &mut new {
            one.is_looked_up = true;
        }
        self.apply(Command::Submit(new), now)
    }

    /// Whether the ledger is being asked about submissions, which come again or are answered.
    #[must_use]
    pub const fn is_looking_up(&self) -> bool {
        self.look_ups > 0
    }

    /// Takes the submissions of a command in. Those that were looked up were taken in before.
    pub(super) fn line_up(&mut self, new: Vec<PendingSubmission<C>>) {
        if new.iter().all(|one| one.is_looked_up) {
            self.submissions.put_back(new.into_iter());
        } else {
            self.submissions.push(new);
        }
    }

    /// Gives back slots that no job gets. Slots that were offered to be passed on stay with the jobs that have them.
    fn release(&self, found: SlotsFound, token: crate::Token, effects: &mut Vec<Effect<C>>) {
        for (job, slot) in found.reserved {
            if slot.instead_of.is_none() {
                let (node, attempt) = (slot.placed.node, Attempt::NONE.next());
                effects.push(Effect::ReleaseSlot { node, job, attempt, token });
            }
        }
    }

    fn finish_round(
        &mut self,
        placing: Placing<C>,
        mut found: SlotsFound,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) {
        let Placing { mut round, accepted, next, .. } = placing;
        for (job, attempt, slot) in found.passed {
            if self.begin(job, attempt, slot, &mut round, effects).is_err() {
                // It is not as it was when it was enqueued; it waits again as it is known here.
                self.enqueue(job, false, now, effects);
            }
        }
        if let Some(NextInLine { job, behind }) = next
            && let Some(slot) = found.reserved.remove(&job.id)
        {
            let newest = job.newest;
            self.dispatch(job, newest, slot, Some(behind), &mut round, effects);
        }
        for (seq, pending) in accepted {
            let (mut placed, mut instead_of) = (None, None);
            if let Some(slot) = found.reserved.remove(&pending.id) {
                self.prefers(&slot.placed.node, slot.pool, effects);
                (placed, instead_of) = (Some(slot.placed), slot.instead_of);
            }
            let PendingSubmission { id, submission, reply, .. } = pending;
            let crate::lane::Submission { spec, client_ref, due, key, retry } = submission;
            let job = Arc::new(LiveJob {
                seq,
                client_ref: client_ref.clone(),
                retry_of: retry.map(|retry| retry.of),
                ..LiveJob::created(id, self.lane.clone(), spec.clone())
            });
            let new = NewJob { id, spec, seq, client_ref, due, retry, placed: placed.clone() };
            let then = AfterCommit::Submitted { reply, due, job, placed, instead_of };
            self.busy.insert(id);
            round.add(Change::Submit(Box::new(new)), key, then);
        }
        self.to_commit.extend(round.in_order());
        self.send_batch(effects);
    }

    /// Sends the next batch of a round, unless one is under way.
    pub(super) fn send_batch(&mut self, effects: &mut Vec<Effect<C>>) {
        if !self.to_commit.is_empty() && self.in_flight.is_none() {
            let items = next_batch(&mut self.to_commit, self.settings.batch_rows_max);
            let (writes, thens): (Vec<_>, Vec<_>) =
                items.into_iter().map(|item| (item.write, item.then)).unzip();
            self.last_batch += 1;
            let batch = CommittedBatch { id: BatchId(self.last_batch), writes: writes.into(), thens };
            let writes = Arc::clone(&batch.writes);
            effects.push(Effect::Commit(WrittenBatch { id: batch.id, token: self.token, writes }));
            self.in_flight = Some(batch);
        }
    }

    fn take_in(
        &mut self,
        command: Command<C>,
        round: &mut PendingBatch<C>,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) {
        if let Some(job) = written_job(&command)
            && self.busy.contains(&job)
        {
            return self.wait_for_write(command, job, round);
        }
        match command {
            Command::Submit(new) => self.line_up(new),
            Command::Stop => self.stop(now, effects),
            Command::Cancel(job, class, reply) => self.cancel(job, class, reply, round, effects),
            Command::SlotReserved(job, attempt, slot) => {
                self.slot_reserved(job, attempt, slot, round, now, effects);
            }
            Command::SlotUnavailable(job) => self.enqueue(job, true, now, effects),
            Command::Complete(request) => self.complete(request, round),
            Command::ReservationRemoved(job, attempt) => {
                if let Some(fifo) = self.fifo_mut()
                    && fifo.unbar(job, attempt)
                    && let Some(turn) = fifo.turn()
                {
                    self.jobs.hurry(turn, now);
                }
            }
            Command::CloseSession(reply) => self.closing.push(reply),
            Command::Transfer(jobs) => self.transfers.want(jobs),
            Command::LookForTransferred => self.wants_groups = self.fifo().is_none(),
            Command::PassOn(to) => self.pass_on(to, now, effects),
            Command::Written(jobs) => {
                let new = jobs.into_iter().filter(|job| self.busy.insert(*job));
                self.lookups.extend(new);
            }
            Command::Added(token, jobs) => self.take_in_added(token, jobs, now, effects),
            Command::NodeDeparted(node) => {
                for (job, attempt, why) in self.jobs.attempts_on(&node) {
                    self.revoke(job, attempt, why, "the node is gone".to_owned(), round);
                }
                // Where nothing is to follow from a batch any more, all attempts are known.
                if !self.busy.is_empty() {
                    self.departed.push((node, BatchId(self.last_batch)));
                }
            }
            Command::Attempt(job, attempt, event) => {
                self.attempt_event(job, attempt, event, round, now, effects);
            }
        }
    }

    /// A command about a job that is being written waits; one more cancellation joins the first.
    fn wait_for_write(&mut self, command: Command<C>, job: JobId, round: &mut PendingBatch<C>) {
        let other = round.items.iter_mut().find(|item| item.write.change.job() == job);
        match (command, other.map(|item| &mut item.then)) {
            (Command::Cancel(_, _, reply), Some(AfterCommit::Ended { replies, .. })) => replies.push(reply),
            (command, _) => self.deferred.push(command),
        }
    }

    fn add(&mut self, round: &mut PendingBatch<C>, job: JobId, change: Change, then: AfterCommit<C>) {
        self.busy.insert(job);
        round.add(change, None, then);
    }

    fn cancel(
        &mut self,
        job: JobId,
        class: Class,
        reply: C::Cancel,
        round: &mut PendingBatch<C>,
        effects: &mut Vec<Effect<C>>,
    ) {
        // It may be one of those that are only in the ledger: the commit finds it there or nowhere.
        let (placed, attempt) =
            self.jobs.get(job).map_or((None, Attempt::NONE), |entry| match &entry.phase {
                Phase::InFlight(at_node) => (Some(at_node.placed.clone()), entry.newest.attempt),
                Phase::Delayed | Phase::Waiting { .. } => (None, entry.newest.attempt),
            });
        effects.push(Effect::Dequeue(job));
        let change = Change::End {
            job,
            outcome: Outcome::Cancelled,
            dead: false,
            attempt: None,
            reason: "cancelled".to_owned(),
        };
        let (outcome, replies) = (Outcome::Cancelled, vec![reply]);
        let then = AfterCommit::Ended { class, outcome, placed, attempt, replies };
        self.add(round, job, change, then);
    }

    /// The result of an attempt, if it is as it is known here. If not, its node's instance finds out how things are.
    fn complete(&mut self, request: CompletionRequest<C>, round: &mut PendingBatch<C>) {
        let CompletionRequest { job, attempt, node, output, may_pass, reply } = request;
        let known = self.jobs.get(job).filter(|entry| {
            let is_there = matches!(&entry.phase, Phase::InFlight(at_node) if at_node.placed.node == node);
            is_there && entry.newest.attempt == attempt
        });
        if let Some(entry) = known {
            let class = entry.job.spec.class();
            let change = Change::Complete { job, attempt, node: node.clone(), output };
            self.add(round, job, change, AfterCommit::Completed { class, node, attempt, may_pass, reply });
        }
    }

    /// The scheduler has reserved a slot for a job that waits here.
    fn slot_reserved(
        &mut self,
        job: JobId,
        attempt: Attempt,
        slot: ReservedSlot,
        round: &mut PendingBatch<C>,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) {
        if let Err(placed) = self.begin(job, attempt, slot, round, effects) {
            effects.push(Effect::ReleaseSlot { node: placed.node, job, attempt, token: self.token });
            // If it waits still, what was reserved was for an earlier attempt of it.
            if !self.busy.contains(&job) {
                self.enqueue(job, false, now, effects);
            }
        }
    }

    /// Takes an attempt into the round that begins with a slot at hand. Answers the assignment again if it is not the
    /// attempt that the job is to have next.
    fn begin(
        &mut self,
        job: JobId,
        attempt: Attempt,
        slot: ReservedSlot,
        round: &mut PendingBatch<C>,
        effects: &mut Vec<Effect<C>>,
    ) -> Result<(), Assignment> {
        let waiting = self.jobs.get(job).filter(|entry| matches!(entry.phase, Phase::Waiting { .. }));
        let Some((live, newest)) = waiting.map(|entry| (Arc::clone(&entry.job), entry.newest)) else {
            return Err(slot.placed);
        };
        match decide(Some(newest), live.spec.max_attempts, Event::Place) {
            Ok(Step::Dispatch(next)) if next == attempt && !self.busy.contains(&job) => {}
            _ => return Err(slot.placed),
        }
        self.dispatch(live, newest, slot, None, round, effects);
        Ok(())
    }

    /// Adds the attempt after the newest one to the round.
    fn dispatch(
        &mut self,
        job: Arc<LiveJob>,
        newest: CurrentAttempt,
        slot: ReservedSlot,
        behind: Option<JobId>,
        round: &mut PendingBatch<C>,
        effects: &mut Vec<Effect<C>>,
    ) {
        let ReservedSlot { placed, pool, instead_of } = slot;
        let (id, attempt) = (job.id, newest.attempt.next());
        let current = CurrentAttempt { state: State::Dispatched, attempt, ..newest };
        let change = Change::Dispatch { job: id, attempt, placed: placed.clone(), behind };
        self.prefers(&placed.node, pool, effects);
        self.add(round, id, change, AfterCommit::Dispatched { job, current, placed, instead_of });
    }

    fn prefers(&mut self, node: &NodeId, pool: PoolName, effects: &mut Vec<Effect<C>>) {
        if let Some(session) = &mut self.session
            && session.prefers(node, pool)
        {
            effects.push(Effect::Bind(session.affinity()));
        }
    }

    fn attempt_event(
        &mut self,
        job: JobId,
        attempt: Attempt,
        event: AttemptEvent,
        round: &mut PendingBatch<C>,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) {
        let current = self.jobs.get(job).map(|entry| entry.newest).filter(|newest| newest.attempt == attempt);
        let is_current = current.is_some();
        match event {
            AttemptEvent::Acknowledged => self.jobs.acknowledged(job, attempt, now),
            AttemptEvent::ConnectionLost => self.jobs.connection_lost(job, attempt),
            // The node has acknowledged it.
            AttemptEvent::NodeElsewhere if current.is_some_and(|newest| newest.state == State::Running) => {
                let reason = "the node no longer lists the attempt".to_owned();
                self.revoke(job, attempt, Revoked::Unlisted, reason, round);
            }
            AttemptEvent::NodeElsewhere => self.jobs.node_elsewhere(job, attempt, now),
            AttemptEvent::Finished if is_current => {
                self.slot_is_free(job, effects);
                self.over(job, now, effects);
            }
            AttemptEvent::Failed { due_in_ms } if is_current => {
                self.slot_is_free(job, effects);
                self.failed_at_node(job, attempt, due_in_ms, now);
            }
            AttemptEvent::Revoked(why, reason) if is_current => self.revoke(job, attempt, why, reason, round),
            AttemptEvent::Finished | AttemptEvent::Failed { .. } | AttemptEvent::Revoked(..) => {}
        }
    }

    /// Its node has said that the attempt failed, which is written already.
    fn failed_at_node(&mut self, job: JobId, attempt: Attempt, due_in_ms: u64, now: Instant) {
        // One that waits already was told of before.
        if !self.jobs.get(job).is_some_and(|entry| matches!(entry.phase, Phase::InFlight(_))) {
            return;
        }
        let Some(entry) = self.jobs.forget(job) else { return };
        let Phase::InFlight(at_node) = entry.phase else { return };
        let charged_attempts = entry.newest.charged_attempts.saturating_add(1);
        let newest = CurrentAttempt { state: State::Created, attempt, charged_attempts };
        // When exactly stands in the ledger; 0 where this owner has begun no attempt yet.
        let at = self.began.map_or(Timestamp::from_micros(0), |began| began.at_time(now).plus_ms(due_in_ms));
        let due_at = Some(at);
        let again = LiveJob { newest, placed: None, due_at, ..LiveJob::clone(&entry.job) };
        self.delay(Arc::new(again), due_in_ms, now, Some(at_node.placed.node));
    }

    /// The job's node said itself that it is done with it. Another instance's nodes are counted here by what was
    /// reserved for them, until their next update.
    fn slot_is_free(&self, job: JobId, effects: &mut Vec<Effect<C>>) {
        if let Some(Phase::InFlight(at_node)) = self.jobs.get(job).map(|entry| &entry.phase) {
            effects.push(Effect::SlotFreed(at_node.placed.clone()));
        }
    }

    fn look_at_due(&mut self, round: &mut PendingBatch<C>, now: Instant, effects: &mut Vec<Effect<C>>) {
        let mut silent = HashMap::<_, Vec<_>>::new();
        for due in self.jobs.due(now) {
            match due {
                TimeUp::Ready(job) => {
                    self.jobs.wait_after_delay(job);
                    self.enqueue(job, false, now, effects);
                }
                // The node may have said in time that it has the attempt, or how it ended.
                TimeUp::RevokeUnsent(job, _) | TimeUp::LookForNode(job, _) | TimeUp::Revoke(job, ..)
                    if self.inbox.names(job) =>
                {
                    self.jobs.look_again(job, now + TIME_UP_LOOK_AGAIN);
                }
                TimeUp::RevokeUnsent(job, attempt) => {
                    let Some(Phase::InFlight(at_node)) = self.jobs.get(job).map(|entry| &entry.phase) else {
                        continue;
                    };
                    let (node, token) = (at_node.placed.node.clone(), self.token);
                    effects.push(Effect::ReleaseUnsent { node, job, attempt, token });
                    self.jobs.look_again(job, now + self.settings.timeouts.ack);
                }
                TimeUp::LookForNode(job, attempt) => {
                    let Some(Phase::InFlight(at_node)) = self.jobs.get(job).map(|entry| &entry.phase) else {
                        continue;
                    };
                    silent.entry(at_node.placed.clone()).or_default().push((job, attempt));
                    self.jobs.look_again(job, now + self.settings.timeouts.ack);
                }
                TimeUp::Revoke(job, attempt, why) => {
                    let reason = match why {
                        Revoked::TimedOut => "the attempt ran for longer than timeout_ms",
                        Revoked::NodeLost => self.jobs.why_lost(job),
                        Revoked::Undeliverable => "the node has left the instance it was sent to",
                        _ => UNACKNOWLEDGED,
                    };
                    // What follows from a write that is under way sets its alarm anew.
                    self.revoke(job, attempt, why, reason.to_owned(), round);
                }
            }
        }
        effects.extend(silent.into_iter().map(|(placed, attempts)| Effect::LookForNode { placed, attempts }));
    }

    /// Takes an attempt back, if it is the current one and under way: another one follows, or the end.
    fn revoke(
        &mut self,
        job: JobId,
        attempt: Attempt,
        why: Revoked,
        reason: String,
        round: &mut PendingBatch<C>,
    ) {
        if self.busy.contains(&job) {
            return;
        }
        let Some(entry) = self.jobs.get(job) else { return };
        let Phase::InFlight(at_node) = &entry.phase else { return };
        let (live, newest, placed) = (Arc::clone(&entry.job), entry.newest, at_node.placed.clone());
        match decide(Some(newest), live.spec.max_attempts, Event::Revoked { attempt, why }) {
            Ok(Step::Retry { counts, failures }) => {
                let due_in_ms = live.spec.backoff.pause_ms(failures, self.spread.fraction());
                // Never at once: a job that is due again is found by its time.
                let due_in_ms = due_in_ms.max(1);
                let change = Change::Revoke { job, attempt, why, reason, due_in_ms };
                let charged_attempts = newest.charged_attempts + u32::from(counts);
                let current = CurrentAttempt { state: State::Created, attempt, charged_attempts };
                self.add(
                    round,
                    job,
                    change,
                    AfterCommit::Revoked { job: live, current, placed, due_in_ms, why },
                );
            }
            Ok(Step::Finish { outcome, dead }) => {
                let change = Change::End { job, outcome, dead, attempt: Some((attempt, why)), reason };
                let (class, placed) = (live.spec.class(), Some(placed));
                let then = AfterCommit::Ended { class, outcome, placed, attempt, replies: vec![] };
                self.add(round, job, change, then);
            }
            Ok(Step::Dispatch(_) | Step::Run) | Err(_) => {}
        }
    }

    pub(super) fn delay(&mut self, job: Arc<LiveJob>, ms: u64, now: Instant, avoid: Option<NodeId>) -> bool {
        if Self::is_held(&job) {
            self.jobs.forget(job.id);
            return true;
        }
        let length = std::time::Duration::from_millis(ms);
        // Later ones, and those that do not fit, are found in the ledger when their time comes. The job that holds up
        // the others of a strict session is kept.
        (length <= DELAY_KEPT || self.fifo().is_some()) && self.jobs.delay(job, now + length, avoid)
    }

    /// Takes submissions out, their callers in turn, as many as one round may have, and gives them their places. In a session
    /// without order the ledger is asked first about those that may be repetitions. A submission waits
    /// for another one's commit if that one has the same key, or retries the same job: the ledger then answers it by what
    /// the first one wrote. Where nothing is written under a key, all that have it are refused, or looked up, in one round: a
    /// round for each of them would go through all others.
    fn accept(
        &mut self,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) -> Vec<(Option<u64>, PendingSubmission<C>)> {
        let mut bytes = 0;
        let (mut accepted, mut later, mut by_key) = (Vec::new(), Vec::new(), Vec::new());
        let mut maybe_repeated = Vec::new();
        while accepted.len() < ROUND_NEW_JOBS_MAX
            && bytes < ROUND_BYTES_MAX
            && let Some(mut pending) = self.submissions.pop_next()
        {
            if now >= pending.deadline {
                // The caller was answered when its time was up.
                continue;
            }
            if !self.may_submit(&pending) {
                // What it waits for may be written under its key.
                pending.is_looked_up = false;
                later.push(pending);
                continue;
            }
            if self.may_have_come(&pending) {
                maybe_repeated.push(pending);
                continue;
            }
            match self.admit(&mut pending, now) {
                Ok(seq) => {
                    bytes += pending.submission.spec.text_bytes();
                    if let Some(key) = &pending.submission.key {
                        self.busy_keys.insert(key.scope.clone());
                    }
                    self.busy.extend(pending.submission.retry.map(|retry| retry.of));
                    accepted.push((seq, pending));
                }
                Err(refused) => match pending.submission.key {
                    Some(key) => by_key.push(KeyedAnswer { key, otherwise: refused, reply: pending.reply }),
                    None => effects.push(Effect::Submitted(pending.reply, Err(refused))),
                },
            }
        }
        self.submissions.put_back(later.into_iter());
        if !by_key.is_empty() {
            effects.push(Effect::AnswerByKey(by_key));
        }
        if !maybe_repeated.is_empty() {
            self.look_ups += 1;
            effects.push(Effect::LookUp(maybe_repeated));
        }
        if !accepted.is_empty() {
            let waited = accepted.iter().map(|(_, pending)| now.saturating_duration_since(pending.arrived));
            effects.push(Effect::Waited(waited.collect()));
        }
        accepted
    }

    /// Whether it may be a repetition that would take a place for nothing.
    fn may_have_come(&self, pending: &PendingSubmission<C>) -> bool {
        let session = self.session.as_ref().filter(|_| !pending.is_looked_up);
        session.is_some_and(|session| session.may_have_come(&pending.submission))
    }

    fn admit(&mut self, pending: &mut PendingSubmission<C>, now: Instant) -> Result<Option<u64>, Refused> {
        match &mut self.session {
            Some(session) => session.admit(&mut pending.submission.spec, now).map(Some),
            None if self.lane.is_session() => Err(Refused::UnknownSession),
            None => Ok(None),
        }
    }

    /// In a strict session the next job may begin with the commit that ends the one before it, if no attempt of it was ever
    /// made and it waits for nothing else.
    fn next_in_line(&mut self, round: &PendingBatch<C>, now: Instant) -> Option<NextInLine> {
        let fifo = self.fifo_mut()?;
        let behind = fifo.turn()?;
        let job = Arc::clone(&fifo.behind_turn(now)?.job);
        let ends = |item: &Item<C>| {
            item.write.change.job() == behind && matches!(item.then, AfterCommit::Completed { .. })
        };
        let may = job.newest.attempt == Attempt::NONE && job.due_at.is_none() && !Self::is_held(&job);
        (may && !self.busy.contains(&job.id) && round.items.iter().any(ends))
            .then_some(NextInLine { job, behind })
    }

    /// The slots that the round leaves, and those that it wants.
    fn search(
        &self,
        round: &PendingBatch<C>,
        accepted: &[(Option<u64>, PendingSubmission<C>)],
        next: Option<&NextInLine>,
    ) -> SlotSearch {
        let mut search = SlotSearch {
            offers: Vec::new(),
            has_more_outside: self.jobs.has_more_outside(),
            requests: Vec::new(),
        };
        if self.stopping || self.stage != Stage::Serving {
            return search;
        }
        // Whatever becomes of a result, its node is done with the attempt, so that the slot is free either way. A new job that
        // gets one is written behind its job, which would mix up the places of new jobs in a session.
        let may_pass_on = self.session.is_none() || self.fifo().is_some();
        search.offers.extend(round.items.iter().filter_map(|item| match &item.then {
            AfterCommit::Completed { node, may_pass: true, .. } if may_pass_on => {
                Some((item.write.change.job(), node.clone()))
            }
            _ => None,
        }));
        // In a strict session only the first can have its turn now.
        let may_go = match self.fifo() {
            Some(fifo) => usize::from(fifo.is_free()),
            None => accepted.len(),
        };
        let prefer = self.session.as_ref().and_then(SessionState::affinity);
        let request = |job, spec| PlacementRequest::first(job, spec, self.token, prefer.clone());
        search.requests.extend(next.map(|next| request(next.job.id, &next.job.spec)));
        let due = accepted.iter().take(may_go).filter(|(_, one)| one.submission.due == Due::Now);
        search.requests.extend(due.map(|(_, one)| request(one.id, &one.submission.spec)));
        search
    }
}
