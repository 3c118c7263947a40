//! What follows from a batch once it is committed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::job::{Assignment, Attempt, Change, CurrentAttempt, Due, JobVerdict, JobWrite, LiveJob};
use crate::lane::fifo::Next;
use crate::lane::messages::{
    Accepted, AttemptEvent, BatchId, Callers, Command, Completed, DispatchOrder, Effect, JobNotice,
    KeyedAnswer, Refused, WithdrawOrder,
};
use crate::lane::round::{AfterCommit, CommittedBatch, delayed_until};
use crate::{JobId, Timestamp};

use super::{LaneState, Stage};

/// What follows from the writes of one batch.
struct Gathered<'a, C: Callers> {
    /// Results: whether each is written, and who waits for that.
    over: Vec<(JobId, bool, C::Complete)>,
    /// The attempts that get the slots of these jobs.
    next: Vec<(JobId, DispatchOrder)>,
    by_key: Vec<KeyedAnswer<C>>,
    effects: &'a mut Vec<Effect<C>>,
}

impl<'a, C: Callers> Gathered<'a, C> {
    const fn new(effects: &'a mut Vec<Effect<C>>) -> Self {
        Self { over: Vec::new(), next: Vec::new(), by_key: Vec::new(), effects }
    }

    /// To its node, or to the result that passes its slot on to it.
    fn send_on(&mut self, order: DispatchOrder, instead_of: Option<JobId>) {
        match instead_of {
            Some(over) => self.next.push((over, order)),
            None => self.effects.push(Effect::Dispatch(order)),
        }
    }
}

/// When a batch was committed.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    /// By the database's clock.
    pub(super) at: Timestamp,
    pub(super) now: Instant,
}

impl Moment {
    /// What the database's clock says at a later time, if it runs like this process's.
    pub(super) fn at_time(self, now: Instant) -> Timestamp {
        self.at.plus_ms(now.saturating_duration_since(self.now).as_millis() as u64)
    }
}

impl<C: Callers> LaneState<C> {
    /// The batch is committed, at that time by the database's clock, with a verdict for each of its writes. Answers
    /// [`Effect::Commit`]. Where nothing of the next round depends on it, the next commit
    /// begins before callers and nodes hear of this one.
    pub fn committed(
        &mut self,
        batch: BatchId,
        at: Timestamp,
        verdicts: &[JobVerdict],
        now: Instant,
    ) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        let Some(batch) = self.in_flight.take_if(|one| one.id == batch) else { return effects };
        self.send_batch(&mut effects);
        for key in batch.keys() {
            self.busy_keys.remove(key);
        }
        if self.may_follow_later(&batch, now) && self.can_start() && self.has_work(now) {
            self.start_round(now, &mut effects);
        }
        let jobs: Vec<_> = batch.jobs().collect();
        let id = batch.id;
        self.pages.committed(&batch);
        self.follow_all(batch, verdicts, Moment { at, now }, &mut effects);
        self.go_on_after(id, &jobs, now, &mut effects);
        effects
    }

    /// What follows from a batch is done: what waited for it has its turn.
    fn go_on_after(&mut self, batch: BatchId, jobs: &[JobId], now: Instant, effects: &mut Vec<Effect<C>>) {
        self.revoke_on_departed(batch, jobs);
        for job in jobs {
            if !self.lookups.contains(job) {
                self.busy.remove(job);
            }
        }
        self.inbox.put_back(self.deferred.drain(..));
        self.advance(now, effects);
    }

    /// The ledger does not take the batch, and nothing of it is written: its callers are answered, and the jobs that it was to
    /// change are read again. A node's result is left to the instance that holds the node's socket.
    pub(super) fn undo(&mut self, batch: CommittedBatch<C>, now: Instant, effects: &mut Vec<Effect<C>>) {
        self.send_batch(effects);
        for key in batch.keys() {
            self.busy_keys.remove(key);
        }
        let (id, jobs) = (batch.id, batch.jobs().collect::<Vec<_>>());
        self.pages.committed(&batch);
        let mut gathered = Gathered::new(effects);
        for (then, write) in batch.thens.into_iter().zip(&*batch.writes) {
            self.not_written(then, write, JobVerdict::Refused, &mut gathered);
        }
        let Gathered { over, by_key, effects, .. } = gathered;
        // The instance that holds a node's socket writes a result that is not answered.
        drop(over);
        if !by_key.is_empty() {
            effects.push(Effect::AnswerByKey(by_key));
        }
        self.go_on_after(id, &jobs, now, effects);
    }

    /// Attempts that this batch has begun on nodes that departed meanwhile go elsewhere.
    fn revoke_on_departed(&mut self, batch: BatchId, jobs: &[JobId]) {
        for (node, last) in &self.departed {
            if batch > *last {
                continue;
            }
            let there = self.jobs.attempts_on(node).into_iter().filter(|(job, ..)| jobs.contains(job));
            for (job, attempt, why) in there {
                let event = AttemptEvent::Revoked(why, "the node is gone".to_owned());
                self.inbox.push_back(Command::Attempt(job, attempt, event));
            }
        }
        self.departed.clear();
    }

    /// Whether what follows from the batch may wait until the next round is on its way, since nothing is to be done that
    /// must know of it.
    fn may_follow_later(&self, batch: &CommittedBatch<C>, now: Instant) -> bool {
        self.stage == Stage::Serving
            && self.session.is_none()
            && self.closing.is_empty()
            && !self.stopping
            && !self.wants_read(now)
            && !self.waits_for_page(now)
            && now < self.reread_at
            && !batch.leaves_some_waiting()
    }

    fn follow_all(
        &mut self,
        batch: CommittedBatch<C>,
        verdicts: &[JobVerdict],
        moment: Moment,
        effects: &mut Vec<Effect<C>>,
    ) {
        let mut gathered = Gathered::new(effects);
        for ((then, write), verdict) in batch.thens.into_iter().zip(&*batch.writes).zip(verdicts) {
            self.follow(then, write, *verdict, moment, &mut gathered);
        }
        let Gathered { over, mut next, by_key, effects } = gathered;
        if !by_key.is_empty() {
            effects.push(Effect::AnswerByKey(by_key));
        }
        let completed: Vec<_> = over
            .into_iter()
            .map(|(job, is_written, reply)| {
                let follows = next.iter().position(|(over, _)| *over == job);
                let next = follows.map(|index| next.swap_remove(index).1);
                Completed { job, is_written, reply, next }
            })
            .collect();
        if !completed.is_empty() {
            effects.push(Effect::Completed(completed));
        }
        // Whose slot was to be passed on by an earlier commit.
        effects.extend(next.into_iter().map(|(_, order)| Effect::Dispatch(order)));
    }

    fn follow(
        &mut self,
        then: AfterCommit<C>,
        write: &JobWrite,
        verdict: JobVerdict,
        moment: Moment,
        gathered: &mut Gathered<'_, C>,
    ) {
        if let (Some(session), Some(key)) = (&mut self.session, &write.key)
            && matches!(verdict, JobVerdict::Written | JobVerdict::KeyTaken)
        {
            session.note_key(key);
        }
        if verdict != JobVerdict::Written {
            return self.not_written(then, write, verdict, gathered);
        }
        let (id, now) = (write.change.job(), moment.now);
        match then {
            AfterCommit::Submitted { reply, due, job, placed, instead_of } => {
                let first = gathered.effects.len();
                if let Some(order) = self.submitted(reply, due, job, placed, moment, gathered.effects) {
                    gathered.send_on(order, instead_of);
                    // The node gets the job before the caller gets its answer, since the job takes longer. A session's client
                    // hears that a job is accepted before it can hear of the result.
                    if self.session.is_none() {
                        gathered.effects[first..].rotate_left(1);
                    }
                }
            }
            AfterCommit::Dispatched { job, current, placed, instead_of } => {
                if let Some(fifo) = self.fifo_mut() {
                    fifo.begins(id);
                }
                let order = self.dispatched(job, current, placed, moment, gathered.effects);
                gathered.send_on(order, instead_of);
            }
            AfterCommit::Completed { class, node, attempt, reply, may_pass: _ } => {
                gathered.over.push((id, true, reply));
                self.over(id, now, gathered.effects);
                let notice = JobNotice::Completed(id, class, attempt, node, self.output_for_plan(write));
                gathered.effects.push(Effect::Notify(notice));
            }
            AfterCommit::Revoked { job, current, placed, due_in_ms, why } => {
                let notice = JobNotice::Requeued(id, current.attempt, placed.clone(), why);
                self.revoked(&job, current, placed, due_in_ms, moment, gathered.effects);
                gathered.effects.push(Effect::Notify(notice));
            }
            AfterCommit::Ended { class, outcome, placed, attempt, replies } => {
                self.ended(id, attempt, placed.as_ref(), now, gathered.effects);
                let why = match &write.change {
                    Change::End { attempt, .. } => attempt.map(|(_, why)| why),
                    _ => None,
                };
                let notice = JobNotice::Ended(id, class, attempt, placed, outcome, why);
                gathered.effects.push(Effect::Notify(notice));
                gathered.effects.extend(replies.into_iter().map(|reply| Effect::Cancelled(reply, Ok(()))));
            }
        }
    }

    /// A write was not carried out: its job is not as it was known here, or the ledger does not take the write. A slot that was
    /// reserved for it is given back, callers are answered, and a job that was there before is read again.
    fn not_written(
        &mut self,
        then: AfterCommit<C>,
        write: &JobWrite,
        verdict: JobVerdict,
        gathered: &mut Gathered<'_, C>,
    ) {
        let job = write.change.job();
        gathered.effects.extend(then.release(self.token));
        match then {
            AfterCommit::Submitted { reply, .. } => {
                if let Some(session) = &mut self.session {
                    session.not_admitted();
                }
                let otherwise = match verdict {
                    JobVerdict::AlreadyRetried => Refused::AlreadyRetried,
                    JobVerdict::Refused => Refused::Defect,
                    JobVerdict::Written | JobVerdict::KeyTaken | JobVerdict::Stale => Refused::OutcomeUnknown,
                };
                match write.key.clone() {
                    Some(key) => gathered.by_key.push(KeyedAnswer { key, otherwise, reply }),
                    None => gathered.effects.push(Effect::Submitted(reply, Err(otherwise))),
                }
            }
            AfterCommit::Dispatched { .. } => {
                // One that was to begin behind another stands in the line as before.
                if !matches!(write.change, Change::Dispatch { behind: Some(_), .. }) {
                    self.lookups.push_back(job);
                }
            }
            AfterCommit::Completed { reply, .. } => {
                gathered.over.push((job, false, reply));
                self.lookups.push_back(job);
            }
            AfterCommit::Revoked { .. } => self.lookups.push_back(job),
            AfterCommit::Ended { replies, .. } => {
                self.lookups.push_back(job);
                let answer = if verdict == JobVerdict::Refused { Err(Refused::Defect) } else { Ok(()) };
                gathered.effects.extend(replies.into_iter().map(|reply| Effect::Cancelled(reply, answer)));
            }
        }
    }

    /// A job is accepted: its caller is answered, and it goes on its way. If it has begun, it is to be sent.
    fn submitted(
        &mut self,
        reply: C::Submit,
        due: Due,
        mut job: Arc<LiveJob>,
        placed: Option<Assignment>,
        moment: Moment,
        effects: &mut Vec<Effect<C>>,
    ) -> Option<DispatchOrder> {
        let Moment { at, now } = moment;
        // Nobody else has it yet, so nothing is copied.
        Arc::make_mut(&mut job).created_at = at;
        let (lane, is_repeated) = (self.lane.clone(), false);
        let accepted = Accepted { id: job.id, lane, seq: job.seq, created_at: at, is_repeated };
        effects.push(Effect::Submitted(reply, Ok(accepted)));
        effects.push(Effect::Notify(JobNotice::Created(job.id, job.spec.class())));
        match (placed, due) {
            (Some(placed), _) => {
                if let Some(fifo) = self.fifo_mut() {
                    fifo.enter(&job);
                }
                return Some(self.dispatched(job, CurrentAttempt::FIRST, placed, moment, effects));
            }
            (None, Due::Now | Due::InMs(0)) => self.set_out(job, None, now, effects),
            (None, Due::At(moment)) if moment <= at => self.set_out(job, None, now, effects),
            (None, Due::InMs(ms)) => self.set_out(job, Some((at.plus_ms(ms), ms)), now, effects),
            (None, Due::At(moment)) => self.set_out(job, Some((moment, moment.ms_since(at))), now, effects),
        }
        None
    }

    /// A new job without a slot: behind the others of its strict session, in the queue, or waiting for its time.
    fn set_out(
        &mut self,
        job: Arc<LiveJob>,
        delay: Option<(Timestamp, u64)>,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) {
        let (job, ms) = match delay {
            Some((at, ms)) => (delayed_until(&job, at), ms),
            None => (job, 0),
        };
        if let Some(fifo) = self.fifo_mut() {
            fifo.join(Next { job, due: now + Duration::from_millis(ms) });
            return;
        }
        match delay {
            Some(_) => {
                self.delay(job, ms, now, None);
            }
            None => self.wait_in_group(job, now, effects),
        }
    }

    /// An attempt has begun: from here on it is awaited. What is to be sent.
    pub(super) fn dispatched(
        &mut self,
        job: Arc<LiveJob>,
        current: CurrentAttempt,
        placed: Assignment,
        moment: Moment,
        effects: &mut Vec<Effect<C>>,
    ) -> DispatchOrder {
        let waited = waited(&job, moment.at);
        self.began = Some(moment);
        effects.push(Effect::Notify(JobNotice::Dispatched(job.id, current.attempt, placed.clone(), waited)));
        // It may have been enqueued again while its slot was on its way.
        effects.push(Effect::Dequeue(job.id));
        self.older.forget(job.id);
        self.jobs.begin(Arc::clone(&job), current, placed.clone(), moment.now);
        DispatchOrder { job, current, placed }
    }

    /// What a plan's owner gets of a result that was written.
    fn output_for_plan(&self, write: &JobWrite) -> Option<Arc<str>> {
        match &write.change {
            Change::Complete { output, .. } if self.lane.plan_id().is_some() => {
                Some(Arc::from(output.as_str()))
            }
            _ => None,
        }
    }

    /// An attempt is revoked: the job waits for the next one, which avoids the node.
    fn revoked(
        &mut self,
        job: &LiveJob,
        current: CurrentAttempt,
        placed: Assignment,
        due_in_ms: u64,
        moment: Moment,
        effects: &mut Vec<Effect<C>>,
    ) {
        self.jobs.forget(job.id);
        self.withdraw(job.id, current.attempt, &placed, moment.now, effects);
        let due_at = Some(moment.at.plus_ms(due_in_ms));
        let again = LiveJob { newest: current, placed: None, due_at, ..job.clone() };
        self.delay(Arc::new(again), due_in_ms, moment.now, Some(placed.node));
    }

    /// A job is over without a result: a node that has it is not to go on.
    fn ended(
        &mut self,
        job: JobId,
        attempt: Attempt,
        placed: Option<&Assignment>,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) {
        if !self.is_known(job) {
            self.ended_unknown(job);
        }
        self.over(job, now, effects);
        if let Some(placed) = placed {
            self.withdraw(job, attempt, placed, now, effects);
        }
    }

    /// The node is not to go on with an attempt: what was only reserved is free, what was sent is called off. In a strict
    /// session nothing is placed before the reservation is gone, or has run out.
    fn withdraw(
        &mut self,
        job: JobId,
        attempt: Attempt,
        placed: &Assignment,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) {
        let expires = now + self.settings.timeouts.reservation;
        let is_awaited = self.fifo_mut().is_some_and(|fifo| {
            fifo.bar(job, attempt, expires);
            true
        });
        let (placed, token) = (placed.clone(), self.token);
        effects.push(Effect::Withdraw(WithdrawOrder { job, attempt, placed, token, is_awaited }));
    }
}

/// How long the job has been due, by the database's clock.
fn waited(job: &LiveJob, at: Timestamp) -> Option<Duration> {
    let due = job.due_at.unwrap_or(job.created_at);
    let micros = at.as_micros().checked_sub(due.as_micros()).filter(|_| due.as_micros() > 0)?;
    Some(Duration::from_micros(u64::try_from(micros).unwrap_or(0)))
}
