//! One round of a lane's owner: what it writes, and what follows once that is committed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::job::{Attempt, Change, Due as DueAt, NewJob, Newest, Outcome, Placed, Revoked, State};
use domain::{JobId, NodeId, Timestamp};
use futures_util::FutureExt;
use ledger::{BATCH_ROWS_MAX, JobBatch, JobKey, JobVerdict, JobWrite, JobsVerdict, LiveJob};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{Asked, Heard, Landed, Lane, Over};
use crate::jobs::delivery::{Dispatch, Withdrawal};
use crate::jobs::limits::{ROUND_BYTES_MAX, ROUND_JOBS_MAX};
use crate::jobs::placer::Want;
use crate::jobs::watches::{Seen, What};
use crate::jobs::{Accepted, Refusal, Submission};
use crate::pause::jittered;

/// How a lane's commit whose lease row was locked is tried again, before its tenure is doubted.
const AGAIN_MAX: usize = 3;

/// One write of a round, and what follows from it once it is committed.
pub(super) struct Item {
    pub(super) write: JobWrite,
    pub(super) then: Then,
}

pub(super) enum Then {
    Submitted {
        asked: Box<Asked>,
        job: Arc<LiveJob>,
        /// The job whose slot it gets, if it gets one and has none of its own.
        instead_of: Option<JobId>,
    },
    Dispatched {
        job: Arc<LiveJob>,
        newest: Newest,
        placed: Placed,
        /// The job whose slot it gets, if it has none of its own.
        instead_of: Option<JobId>,
    },
    Completed {
        node: NodeId,
        attempt: Attempt,
        may_pass: bool,
        reply: oneshot::Sender<Landed>,
    },
    Revoked {
        job: Arc<LiveJob>,
        newest: Newest,
        placed: Placed,
        due_in_ms: u64,
        why: Revoked,
    },
    Ended {
        outcome: Outcome,
        placed: Option<Placed>,
        attempt: Attempt,
        replies: Vec<oneshot::Sender<Result<(), Refusal>>>,
    },
}

/// What one round writes: each job once.
#[derive(Default)]
pub(super) struct Round {
    pub(super) items: Vec<Item>,
    /// Jobs that end in it, and the nodes on which they leave slots to others, as long as nobody has them.
    pub(super) passing: Vec<(JobId, NodeId)>,
    /// What gets the slots that others of these leave.
    successors: HashMap<JobId, Item>,
    jobs: HashSet<JobId>,
}

/// A batch that is committed, and of which nobody has been told yet.
pub(super) struct Untold {
    batch: JobBatch,
    thens: Vec<Then>,
    verdicts: Vec<JobVerdict>,
    /// By the database's clock.
    at: Timestamp,
}

impl Round {
    /// A round that leaves alone what was committed last and is not known to the book yet.
    pub(super) fn after(untold: Option<&Untold>) -> Self {
        let writes = untold.into_iter().flat_map(|untold| untold.batch.writes.iter());
        Self { jobs: writes.map(|write| write.change.job()).collect(), ..Self::default() }
    }

    pub(super) fn has(&self, job: JobId) -> bool {
        self.jobs.contains(&job)
    }

    pub(super) fn add(&mut self, change: Change, key: Option<JobKey>, then: Then) {
        self.jobs.insert(change.job());
        let over = then.instead_of();
        let item = Item { write: JobWrite { change, key }, then };
        match over {
            Some(over) => drop(self.successors.insert(over, item)),
            None => self.items.push(item),
        }
    }

    /// All of it, each successor behind the one whose slot it gets.
    fn in_order(mut self) -> VecDeque<Item> {
        let mut items = VecDeque::with_capacity(self.items.len() + self.successors.len());
        for item in self.items {
            let successor = self.successors.remove(&item.write.change.job());
            items.push_back(item);
            items.extend(successor);
        }
        items
    }
}

impl Untold {
    /// Whether there are new jobs in it that wait for a slot.
    pub(super) fn leaves_some_waiting(&self) -> bool {
        let waits = |write: &JobWrite| matches!(&write.change, Change::Submit(new) if new.placed.is_none());
        self.batch.writes.iter().any(waits)
    }
}

/// A delayed job, as the ledger has it.
fn due_at(job: &LiveJob, at: Timestamp) -> Arc<LiveJob> {
    Arc::new(LiveJob { due_at: Some(at), ..job.clone() })
}

/// A batch that is committed.
pub(super) struct Committed<'c> {
    /// By the database's clock.
    at: Timestamp,
    now: Instant,
    /// What stands under the keys that were taken.
    kept: &'c Kept,
}

/// Results that were committed, and what follows them on their slots.
#[derive(Default)]
pub(in crate::jobs) struct Ends {
    pub(in crate::jobs) over: Vec<(JobId, bool, oneshot::Sender<Landed>)>,
    pub(in crate::jobs) next: Vec<(JobId, Dispatch)>,
}

/// What stands under keys, by their scopes and names.
type Kept = HashMap<(String, String), ledger::KeptJobKey>;

/// The answer to a submission whose key was used: the same as then. `None` if it was not.
fn replay(kept: &Kept, key: Option<&JobKey>) -> Option<Result<Accepted, Refusal>> {
    let key = key?;
    let kept = kept.get(&(key.scope.scope.clone(), key.scope.key.to_string()))?;
    if kept.body_hash != key.body_hash {
        return Some(Err(Refusal::KeyReused));
    }
    let (id, lane) = (kept.job, kept.lane.clone());
    Some(Ok(Accepted { id, lane, seq: kept.seq, created_at: kept.created_at }))
}

impl Committed<'_> {
    /// The answer to a submission whose key was taken.
    fn replay(&self, key: Option<&JobKey>) -> Result<Accepted, Refusal> {
        replay(self.kept, key).unwrap_or(Err(Refusal::LedgerUnavailable))
    }
}

impl Then {
    /// The job of the same round whose slot it gets, if it gets one so.
    const fn instead_of(&self) -> Option<JobId> {
        match self {
            Self::Submitted { instead_of, .. } | Self::Dispatched { instead_of, .. } => *instead_of,
            Self::Completed { .. } | Self::Revoked { .. } | Self::Ended { .. } => None,
        }
    }

    /// Nobody knows whether it was written.
    fn failed(self) {
        match self {
            Self::Submitted { asked, .. } => {
                let _ = asked.reply.send(Err(Refusal::LedgerUnavailable));
            }
            Self::Ended { replies, .. } => {
                for reply in replies {
                    let _ = reply.send(Err(Refusal::LedgerUnavailable));
                }
            }
            // What becomes of these is read again, a result by its holder; a reservation runs out.
            Self::Dispatched { .. } | Self::Completed { .. } | Self::Revoked { .. } => {}
        }
    }
}

impl Lane {
    /// Takes submissions into the round, as many as fit, each with a slot if there is one for it now. One whose key is
    /// in the round already waits for the next: it is answered as the first one was.
    pub(super) async fn accept(&mut self, round: &mut Round, now: Instant) {
        let mut bytes = 0;
        let (mut accepted, mut keys, mut next) = (Vec::new(), HashSet::new(), Vec::new());
        let mut refused = Vec::new();
        while accepted.len() < ROUND_JOBS_MAX
            && bytes < ROUND_BYTES_MAX
            && let Some(mut asked) = self.asked.pop_front()
        {
            if now >= asked.deadline {
                // Whoever asked was told so long ago.
                continue;
            }
            if let Some(key) = &asked.submission.key
                && !keys.insert(key.scope.clone())
            {
                next.push(asked);
                continue;
            }
            let seq = match self.admit(&mut asked.submission.spec) {
                Ok(seq) => seq,
                Err(refusal) => {
                    refused.push((asked, refusal));
                    continue;
                }
            };
            bytes += asked.submission.spec.payload.len();
            accepted.push((JobId::from_u128(Uuid::now_v7().as_u128()), seq, asked));
        }
        next.into_iter().rev().for_each(|asked| self.asked.push_front(asked));
        self.refuse(refused).await;
        if accepted.is_empty() {
            return;
        }
        let is_due = |asked: &Asked| asked.submission.due == DueAt::Now && !self.stopping;
        // In a strict session only the first can have its turn now.
        let may_go = match self.line() {
            Some(line) => usize::from(line.is_free()),
            None => accepted.len(),
        };
        let prefer = self.affinity();
        let mut slots = HashMap::new();
        let now_due = accepted.iter().take(may_go).filter(|(_, _, asked)| is_due(asked));
        for (job, _, asked) in now_due.clone() {
            let Some((over, node)) = round.passing.last() else { break };
            let spec = &asked.submission.spec;
            if let Some(pool) = self.inner.placer.would_take(node, &spec.needs, spec.priority) {
                slots.insert(*job, self.passed(*over, node.clone(), pool));
                round.passing.pop();
            }
        }
        let others = now_due.filter(|(job, _, _)| !slots.contains_key(job));
        let wants = others.map(|(job, _, asked)| Want {
            job: *job,
            attempt: Attempt::NONE.next(),
            token: self.token,
            needs: Arc::new(asked.submission.spec.needs.clone()),
            priority: asked.submission.spec.priority,
            prefer: prefer.clone(),
        });
        let (wants, placer) = (wants.collect(), Arc::clone(&self.inner.placer));
        let mut placing = pin!(placer.place_now(wants));
        let placed = match placing.as_mut().now_or_never() {
            Some(placed) => placed,
            // Nobody waits for the bus to be told what is committed.
            None => tokio::join!(placing, self.tell()).0,
        };
        slots.extend(placed);
        for (id, seq, asked) in accepted {
            let (mut placed, mut instead_of) = (None, None);
            if let Some(spot) = slots.remove(&id) {
                self.prefers(&spot.placed.node, spot.pool);
                (placed, instead_of) = (Some(spot.placed), spot.instead_of);
            }
            let Submission { spec, client_ref, due, key, retry_of } = &asked.submission;
            let new = NewJob {
                id,
                spec: spec.clone(),
                seq,
                client_ref: client_ref.clone(),
                due: *due,
                retry_of: *retry_of,
                placed: placed.clone(),
            };
            let (job, key) = (Arc::new(self.live(&new)), key.clone());
            let then = Then::Submitted { asked: Box::new(asked), job, instead_of };
            round.add(Change::Submit(Box::new(new)), key, then);
        }
    }

    /// Tells whoever asked that a job is not taken; one that was accepted before under its key is answered as then.
    async fn refuse(&self, refused: Vec<(Asked, Refusal)>) {
        if refused.is_empty() {
            return;
        }
        let keys = refused.iter().filter_map(|(asked, _)| Some(asked.submission.key.as_ref()?.scope.clone()));
        let kept = self.kept_keys(&keys.collect::<Vec<_>>()).await;
        for (asked, refusal) in refused {
            let answer = replay(&kept, asked.submission.key.as_ref()).unwrap_or(Err(refusal));
            // Whoever asked may be gone.
            let _ = asked.reply.send(answer);
        }
    }

    /// A new job, as it is known here.
    fn live(&self, new: &NewJob) -> LiveJob {
        LiveJob {
            id: new.id,
            lane: self.resource.clone(),
            seq: new.seq,
            client_ref: new.client_ref.clone(),
            spec: new.spec.clone(),
            newest: Newest { state: State::Created, attempt: Attempt::NONE, counted: 0 },
            placed: None,
            retry_of: new.retry_of,
            // By the database's clock: nobody here asks for it.
            created_at: Timestamp::from_micros(0),
            due_at: None,
            dispatched_at: None,
            running_at: None,
        }
    }

    /// Commits the round, as one batch if it fits. What follows from one batch is seen to while the next is written, and
    /// from the last one with [`Self::tell`].
    pub(super) async fn commit(&mut self, round: Round) -> Result<(), Over> {
        let mut items = round.in_order();
        while !items.is_empty() {
            let (mut rows, mut count) = (1, 0);
            while let Some(item) = items.get(count) {
                // What follows another is written with it.
                let next = items.get(count + 1).filter(|next| next.then.instead_of().is_some());
                rows += item.write.rows() + next.map_or(0, |next| next.write.rows());
                if rows > BATCH_ROWS_MAX && count > 0 {
                    break;
                }
                count += 1 + usize::from(next.is_some());
            }
            let batch: Vec<_> = items.drain(..count).collect();
            if !self.commit_batch(batch).await {
                for item in items {
                    item.then.failed();
                }
                return self.anew().await;
            }
        }
        Ok(())
    }

    /// Whether it was committed. If not, nobody knows what became of it.
    async fn commit_batch(&mut self, items: Vec<Item>) -> bool {
        let (writes, thens): (Vec<_>, Vec<_>) = items.into_iter().map(|item| (item.write, item.then)).unzip();
        let lane =
            ledger::Lane { resource: self.resource.clone(), owner: self.inner.me.clone(), token: self.token };
        let batch = JobBatch { lane: Some(lane), writes: writes.into() };
        let ledger = self.inner.ledger.clone();
        for _ in 0..AGAIN_MAX {
            // Past the lease's end by the own clock no write leaves, whatever the database would say.
            if !self.tenancy.is_current() {
                break;
            }
            match tokio::join!(ledger.commit_jobs(batch.clone()), self.tell()).0 {
                Ok(JobsVerdict::Written { at, jobs: verdicts }) => {
                    self.untold = Some(Untold { batch, thens, verdicts, at });
                    return true;
                }
                Ok(JobsVerdict::Again) => tokio::time::sleep(jittered(Duration::from_millis(1))).await,
                Ok(JobsVerdict::Fenced) => {
                    metrics::counter!("fencepost_fence_reject_total", "op" => "jobs").increment(1);
                    tracing::warn!(
                        resource = %self.resource, token = %self.token, owner = %self.inner.me, op = "jobs", "fenced"
                    );
                    break;
                }
                Err(error) if error.is_retryable() => {
                    tracing::debug!(%error, lane = %self.resource, "the outcome of a commit is not known");
                    break;
                }
                Err(error) => {
                    tracing::error!(%error, lane = %self.resource, "the ledger refused what it should have taken");
                    break;
                }
            }
        }
        self.tell().await;
        thens.into_iter().for_each(Then::failed);
        false
    }

    /// Sees to what follows from the last commit.
    pub(super) async fn tell(&mut self) {
        let Some(Untold { batch, thens, verdicts, at }) = self.untold.take() else { return };
        let kept = self.taken_keys(&batch.writes, &verdicts).await;
        let committed = Committed { at, now: Instant::now(), kept: &kept };
        let mut ends = Ends::default();
        for ((then, write), verdict) in thens.into_iter().zip(&*batch.writes).zip(verdicts) {
            self.follow(then, write, verdict, &committed, &mut ends).await;
        }
        self.inner.answer_results(ends);
    }

    /// The answers under the keys that were taken.
    async fn taken_keys(&self, writes: &[JobWrite], verdicts: &[JobVerdict]) -> Kept {
        let taken = writes.iter().zip(verdicts).filter(|(_, verdict)| **verdict == JobVerdict::KeyTaken);
        let scopes: Vec<_> = taken.filter_map(|(write, _)| Some(write.key.as_ref()?.scope.clone())).collect();
        self.kept_keys(&scopes).await
    }

    async fn kept_keys(&self, scopes: &[ledger::KeyScope]) -> Kept {
        if scopes.is_empty() {
            return Kept::new();
        }
        match self.inner.ledger.kept_job_keys(scopes).await {
            Ok(kept) => {
                let name = |scope: ledger::KeyScope| (scope.scope, scope.key.to_string());
                kept.into_iter().map(|(scope, kept)| (name(scope), kept)).collect()
            }
            Err(error) => {
                tracing::debug!(%error, "kept keys were not read");
                Kept::new()
            }
        }
    }

    /// What a write leads to, once its verdict is known.
    async fn follow(
        &mut self,
        then: Then,
        write: &JobWrite,
        verdict: JobVerdict,
        committed: &Committed<'_>,
        ends: &mut Ends,
    ) {
        let (id, now) = (write.change.job(), committed.now);
        let is_written = verdict == JobVerdict::Written;
        match then {
            Then::Submitted { asked, job, instead_of } => {
                let Change::Submit(new) = &write.change else { return };
                if is_written {
                    let dispatch = self.submitted(asked, job, new.placed.clone(), committed);
                    dispatch.into_iter().for_each(|dispatch| self.send_on(dispatch, instead_of, ends));
                    return;
                }
                if let (Some(placed), None) = (&new.placed, instead_of) {
                    self.inner.placer.give_back(&placed.node, id, Attempt::NONE.next(), self.token);
                }
                self.not_admitted();
                let _ = asked.reply.send(committed.replay(write.key.as_ref()));
            }
            Then::Dispatched { job, newest, placed, instead_of } => {
                if is_written {
                    let dispatch = self.dispatched(job, newest, placed, now);
                    self.send_on(dispatch, instead_of, ends);
                } else {
                    // It is not as it was known here: what is so is read again.
                    if instead_of.is_none() {
                        self.inner.placer.give_back(&placed.node, id, newest.attempt, self.token);
                    }
                    self.look_up(id, now).await;
                }
            }
            Then::Completed { node, attempt, reply, may_pass: _ } => {
                ends.over.push((id, is_written, reply));
                if is_written {
                    self.over(id, now);
                    self.inner.succeeded(id, attempt, &node, &self.resource);
                } else {
                    self.look_up(id, now).await;
                }
            }
            Then::Revoked { job, newest, placed, due_in_ms, why } => {
                if !is_written {
                    self.look_up(id, now).await;
                    return;
                }
                metrics::counter!("fencepost_dispatch_revoked_total", "reason" => why.as_str()).increment(1);
                self.book.forget(id);
                self.withdraw(id, newest.attempt, &placed);
                self.seen(id, newest.attempt, Some(&placed), What::Changed(State::Created, None));
                let mut again = LiveJob::clone(&job);
                again.newest = newest;
                again.placed = None;
                again.due_at = Some(committed.at.plus_ms(due_in_ms));
                self.delay(Arc::new(again), due_in_ms, now, Some(placed.node));
            }
            Then::Ended { outcome, placed, attempt, replies } => {
                if is_written {
                    metrics::counter!(
                        "fencepost_jobs_total", "state" => "FINISHED", "outcome" => outcome.as_str()
                    )
                    .increment(1);
                    self.over(id, now);
                    if let Some(placed) = &placed {
                        self.withdraw(id, attempt, placed);
                    }
                    self.inner.tell_lane(&self.resource, id, attempt, Heard::Finished);
                    self.inner.waiters.finished(id);
                    let what = What::Changed(State::Finished, Some(outcome));
                    self.seen(id, attempt, placed.as_ref(), what);
                } else {
                    self.look_up(id, now).await;
                }
                for reply in replies {
                    // Whoever asked may be gone.
                    let _ = reply.send(Ok(()));
                }
            }
        }
    }

    /// To its node, or to whoever passes a slot on to it.
    fn send_on(&self, dispatch: Dispatch, instead_of: Option<JobId>, ends: &mut Ends) {
        match instead_of {
            Some(over) => ends.next.push((over, dispatch)),
            None => self.inner.deliver(dispatch),
        }
    }

    /// A job is accepted: whoever asked is told, and it goes on its way. If it has begun, it is to be sent.
    fn submitted(
        &mut self,
        asked: Box<Asked>,
        job: Arc<LiveJob>,
        placed: Option<Placed>,
        committed: &Committed<'_>,
    ) -> Option<Dispatch> {
        metrics::counter!("fencepost_jobs_total", "state" => "CREATED", "outcome" => "").increment(1);
        let (at, now, due) = (committed.at, committed.now, asked.submission.due);
        let accepted = Accepted { id: job.id, lane: self.resource.clone(), seq: job.seq, created_at: at };
        // Whoever asked may be gone; the job is not.
        let _ = asked.reply.send(Ok(accepted));
        self.seen(job.id, Attempt::NONE, None, What::Changed(State::Created, None));
        match (placed, due) {
            (Some(placed), _) => {
                let attempt = Attempt::NONE.next();
                if let Some(line) = self.line_mut() {
                    line.enter(&job);
                }
                let newest = Newest { state: State::Dispatched, attempt, counted: 0 };
                return Some(self.dispatched(job, newest, placed, now));
            }
            (None, DueAt::Now | DueAt::InMs(0)) => self.set_out(job, None, now),
            (None, DueAt::At(moment)) if moment <= at => self.set_out(job, None, now),
            (None, DueAt::InMs(ms)) => self.set_out(job, Some((at.plus_ms(ms), ms)), now),
            (None, DueAt::At(moment)) => self.set_out(job, Some((moment, moment.ms_since(at))), now),
        }
        None
    }

    /// A new job without a slot: in line, in the queue, or waiting for its time.
    fn set_out(&mut self, job: Arc<LiveJob>, delay: Option<(Timestamp, u64)>, now: Instant) {
        let (job, ms) = match delay {
            Some((at, ms)) => (due_at(&job, at), ms),
            None => (job, 0),
        };
        if self.join_line(&job, now + Duration::from_millis(ms)) {
            return;
        }
        match delay {
            Some(_) => self.delay(job, ms, now, None),
            None => self.wait_in_group(job),
        }
    }

    /// An attempt has begun: from here on it is awaited. What is to be sent.
    fn dispatched(&mut self, job: Arc<LiveJob>, newest: Newest, placed: Placed, now: Instant) -> Dispatch {
        metrics::counter!("fencepost_jobs_total", "state" => "DISPATCHED", "outcome" => "").increment(1);
        self.seen(job.id, newest.attempt, Some(&placed), What::Changed(State::Dispatched, None));
        let dispatch = Dispatch::new(&job, newest, placed.clone());
        // It may have been put there again while its slot was on its way.
        self.inner.placer.forget(job.id);
        self.book.fly(job, newest, placed, now);
        dispatch
    }

    /// The node is not to go on with an attempt: what was only reserved is free, what was sent is called off.
    fn withdraw(&mut self, job: JobId, attempt: Attempt, placed: &Placed) {
        let tell = self.bar(job, attempt).then(|| self.address.clone());
        self.inner.placer.take_back(&placed.node, job, attempt, self.token, tell);
        self.inner.withdraw(Withdrawal { job, attempt, placed: placed.clone() });
    }

    /// Tells those who watch, if anybody does.
    fn seen(&self, job: JobId, attempt: Attempt, placed: Option<&Placed>, what: What) {
        self.inner.watches.tell(|| Seen {
            job,
            attempt,
            lane: Some(self.resource.clone()),
            node: placed.map(|placed| placed.node.clone()),
            what,
        });
    }
}
