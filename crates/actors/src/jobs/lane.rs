//! The owner of one lane: it alone decides about the lane's jobs, one commit after the other, and answers nothing
//! that is not committed.
//!
//! A round: take in what was asked and heard, find slots, commit all of it as one batch, then tell everybody, which may be
//! done while the next round is being committed. What a crash leaves behind after each step:
//! 1. slots reserved, nothing committed: the reservations run out;
//! 2. committed, nobody told: whoever submitted asks again under the same key; a dispatch that never left is taken
//!    back by the next owner, since nobody acknowledges it;
//! 3. dispatched: the node sends its result to whatever instance it is connected to.
//!
//! After a commit of which nobody knows the outcome the lease is acquired anew, which raises its token, and
//! everything is read again: nothing is decided on a guess.

mod conversation;
mod reading;
mod round;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::job::{Attempt, Change, Event, Newest, Outcome, Placed, Revoked, State, Step, decide};
use domain::{JobId, NodeId, PoolName, Resource, Timestamp, Token};
use ledger::LiveJob;
use nodes::Ended;
use rand::RngExt;
use tokio::sync::{mpsc, oneshot};

use super::book::{Book, Due, Phase};
use super::delivery::Dispatch;
use super::limits::{DELAY_KEPT, ROUND_JOBS_MAX, SLOTS_LEFT_TO_OTHERS};
use super::placer::{Next, Turned};
use super::tenancy::Tenancy;
use super::{Accepted, Inner, Refusal, Submission};
use conversation::Conversation;
pub(super) use round::Ends;
use round::{Item, Round, Then, Untold};

/// How long an adopted lane is kept without jobs.
const EMPTY_FOR: Duration = Duration::from_secs(5);

/// What reaches a lane's owner.
pub(super) enum Word {
    /// Jobs to be accepted.
    Submit(Vec<Asked>),
    /// A job to be called off. Answers whether it was this lane's to call off.
    Cancel(JobId, oneshot::Sender<Result<(), Refusal>>),
    /// A waiting job has a slot.
    Placed(JobId, Attempt, Spot),
    /// A waiting job was taken out of the queue for a slot that it did not get.
    Unplaced(JobId),
    /// A node's connection has ended.
    Departed(NodeId, Ended),
    /// A node whose socket is here has ended an attempt well.
    Result(Told),
    /// Something was heard of an attempt.
    Heard(JobId, Attempt, Heard),
    /// The reservation of an attempt that was taken back is gone.
    Withdrawn(JobId, Attempt),
    /// No new jobs: the session is over when those that it has are.
    Close(oneshot::Sender<Result<(), Refusal>>),
    /// Finish what is under way, give the lease back and end.
    Stop,
}

/// A slot for an attempt, and in which pool its node was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) placed: Placed,
    pub(super) pool: PoolName,
    /// The job that leaves its slot to it; `None` where one was reserved.
    pub(super) instead_of: Option<JobId>,
}

/// A submission and who waits for its answer.
pub(super) struct Asked {
    pub(super) submission: Submission,
    /// Past that nobody waits any more.
    pub(super) deadline: Instant,
    pub(super) reply: oneshot::Sender<Result<Accepted, Refusal>>,
    /// Its place among those on their way; given back with the answer.
    pub(super) _places: super::Places,
}

/// The result of an attempt, and who waits for its being written.
pub(super) struct Told {
    pub(super) job: JobId,
    pub(super) attempt: Attempt,
    pub(super) node: NodeId,
    /// JSON text.
    pub(super) output: String,
    /// Whether the slot may be passed on.
    pub(super) may_pass: bool,
    /// Dropped where nobody knows, or where it is not for the lane to say.
    pub(super) reply: oneshot::Sender<Landed>,
}

/// What became of a result that its lane wrote.
pub(super) struct Landed {
    /// If not, it was not as said any more.
    pub(super) is_written: bool,
    /// What is to have the slot now: dispatched, and with none of its own.
    pub(super) next: Option<Box<Dispatch>>,
}

/// What is heard of an attempt from the instance that holds its node's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The node has it.
    Acknowledged,
    /// It was sent, and the node's socket was closed before anything was heard of it.
    CutOff,
    /// Its node is connected to another instance than the one that it went to, and does not have it.
    Adrift,
    /// The job has its result.
    Finished,
    /// It failed, and is due again in so many milliseconds.
    Failed {
        /// At least 1.
        due_in_ms: u64,
    },
    /// It came to nothing before it began.
    Refused(Revoked, String),
}

/// A lane's address.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) words: mpsc::UnboundedSender<Word>,
}

impl Address {
    /// A lane that has ended hears nothing; whatever was said is found in the ledger.
    pub(super) fn tell(&self, word: Word) {
        let _ = self.words.send(word);
    }
}

/// The owner of a lane.
pub(super) struct Lane {
    inner: Arc<Inner>,
    resource: Resource,
    tenancy: Tenancy,
    token: Token,
    words: mpsc::UnboundedReceiver<Word>,
    address: Address,
    book: Book,
    /// Of a session's lane: what makes it one.
    conversation: Option<Conversation>,
    /// Whoever wants the session closed.
    closing: Vec<oneshot::Sender<Result<(), Refusal>>>,
    /// Submissions that are not in a round yet.
    asked: VecDeque<Asked>,
    /// What was committed last, if nobody has been told yet.
    untold: Option<Untold>,
    reread_at: Instant,
    empty_since: Option<Instant>,
    stopping: bool,
}

/// Why an owner stops being one.
enum Over {
    /// The lease is another's.
    Lost,
    /// It has no more to do here.
    Done,
}

impl Lane {
    /// The owner of a lane whose lease was just acquired.
    pub(super) fn new(
        inner: Arc<Inner>,
        resource: Resource,
        tenancy: Tenancy,
        token: Token,
    ) -> (Self, Address) {
        let (send, words) = mpsc::unbounded_channel();
        let address = Address { words: send };
        let lane = Self {
            inner,
            resource,
            tenancy,
            token,
            words,
            address: address.clone(),
            book: Book::default(),
            conversation: None,
            closing: Vec::new(),
            asked: VecDeque::new(),
            untold: None,
            reread_at: Instant::now(),
            empty_since: None,
            stopping: false,
        };
        (lane, address)
    }

    /// Serves until the lease is lost or given back.
    pub(super) async fn run(mut self) {
        let over = match self.load().await {
            Ok(()) => self.serve().await,
            Err(over) => over,
        };
        self.inner.placer.forget_lane(&self.resource);
        if matches!(over, Over::Done) {
            self.tenancy.close(self.token).await;
        }
        // Nobody hears this owner any more; whoever still waits is told so.
        self.words.close();
        let mut left: Vec<_> = self.asked.into_iter().collect();
        while let Ok(word) = self.words.try_recv() {
            match word {
                Word::Submit(asked) => left.extend(asked),
                Word::Cancel(_, reply) | Word::Close(reply) => {
                    let _ = reply.send(Err(Refusal::Fenced));
                }
                Word::Placed(..)
                | Word::Unplaced(_)
                | Word::Result(_)
                | Word::Departed(..)
                | Word::Heard(..)
                | Word::Withdrawn(..)
                | Word::Stop => {}
            }
        }
        for reply in self.closing {
            let _ = reply.send(Err(Refusal::Fenced));
        }
        for asked in left {
            let _ = asked.reply.send(Err(Refusal::Fenced));
        }
    }

    async fn serve(&mut self) -> Over {
        loop {
            let words = self.wait().await;
            let now = Instant::now();
            let mut round = Round::after(self.untold.as_ref());
            for word in words {
                self.take_in(word, &mut round, now);
            }
            self.look_at_due(&mut round, now);
            self.pass_slots_on(&mut round);
            self.accept(&mut round, now).await;
            let is_empty = round.items.is_empty();
            if let Err(over) = self.commit(round).await {
                return over;
            }
            if is_empty || !self.may_tell_later(now) {
                self.tell().await;
            }
            if self.untold.is_some() {
                continue;
            }
            if let Err(over) = self.see_to_closing(now).await {
                return over;
            }
            if self.is_time_to_reread(now)
                && let Err(error) = self.reread().await
            {
                tracing::debug!(lane = %self.resource, %error, "the lane's jobs were not read again");
            }
            if let Err(error) = self.fill().await {
                tracing::debug!(lane = %self.resource, %error, "no more waiting jobs were read");
            }
            self.advance(now);
            if self.is_done(now) {
                return Over::Done;
            }
        }
    }

    /// Whether what follows from the last commit may wait for the next one to be under way, since nothing is to be done
    /// that must know of it.
    fn may_tell_later(&self, now: Instant) -> bool {
        self.conversation.is_none()
            && self.closing.is_empty()
            && !self.stopping
            && !self.is_time_to_reread(now)
            && self.book.group_to_fill().is_none()
            && !self.untold.as_ref().is_some_and(Untold::leaves_some_waiting)
    }

    /// Until there is something to do: at least one word, or a time that has come.
    async fn wait(&mut self) -> Vec<Word> {
        let mut words = Vec::new();
        if !self.asked.is_empty() || self.stopping || self.untold.is_some() {
            while words.len() < ROUND_JOBS_MAX
                && let Ok(word) = self.words.try_recv()
            {
                words.push(word);
            }
            return words;
        }
        let until = self.book.next_alarm().map_or(self.reread_at, |at| at.min(self.reread_at));
        tokio::select! {
            _ = self.words.recv_many(&mut words, ROUND_JOBS_MAX) => {}
            () = tokio::time::sleep_until(until.into()) => {}
        }
        words
    }

    fn take_in(&mut self, word: Word, round: &mut Round, now: Instant) {
        match word {
            Word::Submit(asked) => self.asked.extend(asked),
            Word::Stop => self.stopping = true,
            Word::Cancel(job, reply) => self.cancel(job, reply, round),
            Word::Placed(job, attempt, spot) => self.placed(job, attempt, spot, round),
            Word::Result(told) => self.told(told, round),
            Word::Withdrawn(job, attempt) => self.withdrawn(job, attempt, now),
            Word::Close(reply) => self.closing.push(reply),
            Word::Unplaced(job) => self.enqueue_as(job, true),
            Word::Departed(node, how) => self.departed(&node, how, round),
            Word::Heard(job, attempt, heard) => self.heard(job, attempt, heard, round, now),
        }
    }

    /// What a lost node had goes elsewhere. One that has connected anew says itself what it still has.
    fn departed(&mut self, node: &NodeId, how: Ended, round: &mut Round) {
        if how == Ended::Replaced {
            return;
        }
        for (job, attempt, why) in self.book.on_node(node) {
            self.revoke(job, attempt, why, "the node is gone".to_owned(), round);
        }
    }

    fn cancel(&mut self, job: JobId, reply: oneshot::Sender<Result<(), Refusal>>, round: &mut Round) {
        let other = round.items.iter_mut().find(|item| item.write.change.job() == job);
        if let Some(Item { then: Then::Ended { replies, .. }, .. }) = other {
            replies.push(reply);
            return;
        }
        if round.has(job) {
            // Something else is being written of it: the next round.
            self.address.tell(Word::Cancel(job, reply));
            return;
        }
        // It may be one of those that are only in the ledger: the commit finds it there or nowhere.
        let (placed, attempt) =
            self.book.get(job).map_or((None, Attempt::NONE), |entry| match &entry.phase {
                Phase::Flying(flight) => (Some(flight.placed.clone()), entry.newest.attempt),
                Phase::Delayed | Phase::Waiting => (None, entry.newest.attempt),
            });
        self.inner.placer.forget(job);
        let change = Change::End {
            job,
            outcome: Outcome::Cancelled,
            dead: false,
            attempt: None,
            reason: "cancelled".to_owned(),
        };
        round.add(
            change,
            None,
            Then::Ended { outcome: Outcome::Cancelled, placed, attempt, replies: vec![reply] },
        );
    }

    /// The result of an attempt, if it is as it is known here. If not, it is for the holder to find out how things are.
    fn told(&mut self, told: Told, round: &mut Round) {
        let Told { job, attempt, node, output, may_pass, reply } = told;
        let is_known = self.book.get(job).is_some_and(|entry| {
            let is_there = matches!(&entry.phase, Phase::Flying(flight) if flight.placed.node == node);
            is_there && entry.newest.attempt == attempt
        });
        if is_known && !round.has(job) {
            let change = Change::Complete { job, attempt, node: node.clone(), output };
            round.add(change, None, Then::Completed { node, attempt, may_pass, reply });
        }
    }

    /// The slots of what ends in this round go to those who are next: they begin with the same commit. Whatever becomes
    /// of a result, its node is done with it, so that the slot is free either way.
    fn pass_slots_on(&mut self, round: &mut Round) {
        if self.stopping {
            return;
        }
        let ends = round.items.iter().filter_map(|item| match &item.then {
            Then::Completed { node, may_pass: true, .. } => Some((item.write.change.job(), node.clone())),
            _ => None,
        });
        let ends: Vec<_> = ends.collect();
        let (has_others, has_more) = (self.inner.has_others(), self.book.has_more_outside());
        for (over, node) in ends {
            if has_others && rand::rng().random_ratio(1, SLOTS_LEFT_TO_OTHERS) {
                continue;
            }
            match self.inner.placer.next_on(&node, &self.resource) {
                Next::This(job, turned, pool) => {
                    let spot = self.passed(over, node, pool);
                    if self.begin(job, turned.attempt, spot, round).is_err() {
                        // It is not as it was when it was put there; it finds its way back by what is known of it here.
                        self.enqueue(job);
                    }
                }
                Next::Nobody if !has_more => round.passing.push((over, node)),
                Next::Nobody | Next::Another => {}
            }
        }
    }

    /// The slot that a job leaves.
    fn passed(&self, over: JobId, node: NodeId, pool: PoolName) -> Spot {
        Spot { placed: Placed { node, holder: self.inner.me.clone() }, pool, instead_of: Some(over) }
    }

    /// The placer has reserved a slot for a job that waits here.
    fn placed(&mut self, job: JobId, attempt: Attempt, spot: Spot, round: &mut Round) {
        if let Err(placed) = self.begin(job, attempt, spot, round) {
            self.inner.placer.give_back(&placed.node, job, attempt, self.token);
            // If it waits still, what was reserved was for an earlier attempt of it.
            if !round.has(job) {
                self.enqueue(job);
            }
        }
    }

    /// Takes an attempt into the round that begins with a slot at hand. Answers the place again if it is not the attempt
    /// that the job is to have next.
    fn begin(&mut self, job: JobId, attempt: Attempt, spot: Spot, round: &mut Round) -> Result<(), Placed> {
        let Spot { placed, pool, instead_of } = spot;
        let waiting = self.book.get(job).filter(|entry| matches!(entry.phase, Phase::Waiting));
        let Some((live, newest)) = waiting.map(|entry| (Arc::clone(&entry.job), entry.newest)) else {
            return Err(placed);
        };
        match decide(Some(newest), live.spec.max_attempts, Event::Place) {
            Ok(Step::Dispatch(next)) if next == attempt && !round.has(job) => {}
            _ => return Err(placed),
        }
        let newest = Newest { state: State::Dispatched, attempt, ..newest };
        let change = Change::Dispatch { job, attempt, placed: placed.clone() };
        self.prefers(&placed.node, pool);
        round.add(change, None, Then::Dispatched { job: live, newest, placed, instead_of });
        Ok(())
    }

    fn heard(&mut self, job: JobId, attempt: Attempt, heard: Heard, round: &mut Round, now: Instant) {
        let is_newest = |lane: &Self| lane.book.get(job).is_some_and(|entry| entry.newest.attempt == attempt);
        match heard {
            Heard::Acknowledged => self.book.acknowledged(job, attempt, now),
            Heard::CutOff => self.book.cut_off(job, attempt),
            Heard::Adrift => self.book.adrift(job, attempt, now),
            Heard::Finished => {
                if is_newest(self) {
                    self.slot_is_free(job);
                    self.over(job, now);
                }
            }
            Heard::Failed { due_in_ms } => {
                if is_newest(self) {
                    self.slot_is_free(job);
                }
                if is_newest(self)
                    && let Some(entry) = self.book.forget(job)
                    && let Phase::Flying(flight) = entry.phase
                {
                    let newest = Newest {
                        state: State::Created,
                        attempt,
                        counted: entry.newest.counted.saturating_add(1),
                    };
                    // When exactly stands in the ledger.
                    let due_at = Some(Timestamp::from_micros(0));
                    let again = LiveJob { newest, placed: None, due_at, ..LiveJob::clone(&entry.job) };
                    self.delay(Arc::new(again), due_in_ms, now, Some(flight.placed.node));
                }
            }
            Heard::Refused(why, reason) => {
                if is_newest(self) {
                    self.revoke(job, attempt, why, reason, round);
                }
            }
        }
    }

    /// The job's node said itself that it is done with it. Another instance's nodes are counted here by what was
    /// reserved for them, until their next news.
    fn slot_is_free(&self, job: JobId) {
        let Some(Phase::Flying(flight)) = self.book.get(job).map(|entry| &entry.phase) else { return };
        let registry = &self.inner.registry;
        if flight.placed.holder != self.inner.me
            && let Some(record) = registry.get(&flight.placed.node)
        {
            registry.freed(&flight.placed.node, record.stamp.epoch);
        }
    }

    fn look_at_due(&mut self, round: &mut Round, now: Instant) {
        for due in self.book.due(now) {
            match due {
                Due::Ready(job) => {
                    self.book.wait_after_delay(job);
                    self.enqueue(job);
                }
                Due::Revoke(job, attempt, why) => {
                    let reason = match why {
                        Revoked::TimedOut => "it ran for longer than timeout_ms",
                        Revoked::NodeLost => "the node's socket was closed after it was sent",
                        Revoked::Undeliverable => "its node has left the instance that it went to",
                        _ => "the node did not acknowledge it in time",
                    };
                    self.revoke(job, attempt, why, reason.to_owned(), round);
                }
            }
        }
    }

    /// Takes an attempt back, if it is the newest and under way: another one follows, or the end.
    fn revoke(&mut self, job: JobId, attempt: Attempt, why: Revoked, reason: String, round: &mut Round) {
        if round.has(job) {
            return;
        }
        let Some(entry) = self.book.get(job) else { return };
        let Phase::Flying(flight) = &entry.phase else { return };
        let (live, newest, placed) = (Arc::clone(&entry.job), entry.newest, flight.placed.clone());
        match decide(Some(newest), live.spec.max_attempts, Event::Revoked { attempt, why }) {
            Ok(Step::Retry { counts, failures }) => {
                let due_in_ms = live.spec.backoff.pause_ms(failures, rand::rng().random());
                // Never at once: a job that is due again is found by its time.
                let due_in_ms = due_in_ms.max(1);
                let change = Change::Revoke { job, attempt, why, reason, due_in_ms };
                let newest =
                    Newest { state: State::Created, attempt, counted: newest.counted + u32::from(counts) };
                round.add(change, None, Then::Revoked { job: live, newest, placed, due_in_ms, why });
            }
            Ok(Step::Finish { outcome, dead }) => {
                let change = Change::End { job, outcome, dead, attempt: Some((attempt, why)), reason };
                let then = Then::Ended { outcome, placed: Some(placed), attempt, replies: vec![] };
                round.add(change, None, then);
            }
            Ok(Step::Dispatch(_) | Step::Run) | Err(_) => {}
        }
    }

    fn delay(&mut self, job: Arc<LiveJob>, ms: u64, now: Instant, avoid: Option<NodeId>) {
        let length = Duration::from_millis(ms);
        // Later ones, and those that do not fit, are found in the ledger when their time comes. Whoever holds up a line
        // is kept.
        if length <= DELAY_KEPT || self.line().is_some() {
            self.book.delay(job, now + length, avoid);
        }
    }

    /// A job that is due at once waits from now on, here or, behind others of its group, in the ledger.
    fn wait_in_group(&mut self, job: Arc<LiveJob>) {
        let id = job.id;
        if self.book.wait_in_group(job) {
            self.enqueue(id);
        }
    }

    /// Puts a job that waits into the queue for a slot.
    fn enqueue(&mut self, job: JobId) {
        self.enqueue_as(job, false);
    }

    fn enqueue_as(&mut self, job: JobId, is_back: bool) {
        if !self.book.get(job).is_some_and(|entry| matches!(entry.phase, Phase::Waiting)) {
            return;
        }
        if let Some(until) = self.barred_until(Instant::now()) {
            return self.book.look_again(job, until);
        }
        let Some(entry) = self.book.get(job) else { return };
        let turned = Turned {
            lane: self.address.clone(),
            resource: self.resource.clone(),
            attempt: entry.newest.attempt.next(),
            token: self.token,
            avoid: entry.avoid.clone(),
            prefer: self.affinity(),
        };
        self.inner.placer.wait(turned, &entry.job, is_back);
    }

    fn is_done(&mut self, now: Instant) -> bool {
        if self.stopping {
            return self.asked.is_empty() && self.words.is_empty();
        }
        if !self.tenancy.is_adopted()
            || !self.book.is_empty()
            || self.line().is_some_and(|line| !line.is_empty())
        {
            self.empty_since = None;
            return false;
        }
        let kept = self.conversation.as_ref().map_or(EMPTY_FOR, Conversation::kept_for);
        now.duration_since(*self.empty_since.get_or_insert(now)) >= kept
    }
}
