//! What goes into the state of a lane, and what comes out of it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::job::{
    Assignment, Attempt, Class, CurrentAttempt, Due, JobKey, JobWrite, LiveJob, Outcome, Priority,
    Requirements, Retry, Revoked, RevokedAttempt, Spec, State, WaitingGroup,
};
use crate::{ClientRef, InstanceId, JobId, LaneId, NodeId, PoolName, Timestamp, Token, session};

/// The handles by which callers are answered. The state passes them on and never looks into them.
pub trait Callers {
    /// Waits for a submission's answer.
    type Submit;
    /// Waits for a cancellation.
    type Cancel;
    /// Waits for a result to be written.
    type Complete;
    /// Waits for a session to be closed.
    type Close;
}

/// A job to be accepted.
#[derive(Clone, Debug)]
pub struct Submission {
    /// What is asked.
    pub spec: Spec,
    /// What the client of a session calls it.
    pub client_ref: Option<ClientRef>,
    /// When it may be dispatched.
    pub due: Due,
    /// Under which idempotency key.
    pub key: Option<JobKey>,
    /// The finished job that it retries, if it retries one.
    pub retry: Option<Retry>,
}

/// A caller among those whose submissions take turns in a lane: a number that no other token of the process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Submitter(pub u64);

/// A submission that waits for its commit.
pub struct PendingSubmission<C: Callers> {
    /// The id of the job, drawn for this submission and never used before.
    pub id: JobId,
    /// What is submitted.
    pub submission: Submission,
    /// The caller in whose turn it is taken in; all submissions of one command have the same. `None` without tokens: all
    /// callers then share one turn.
    pub submitter: Option<Submitter>,
    /// When it came.
    pub arrived: Instant,
    /// After this moment the caller waits no more, and nothing is written.
    pub deadline: Instant,
    /// Whether the ledger was asked about its key, and has nothing under it: see [`Effect::LookUp`].
    pub is_looked_up: bool,
    /// The caller.
    pub reply: C::Submit,
}

/// A job that was accepted: it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Its id.
    pub id: JobId,
    /// The lane that it belongs to.
    pub lane: LaneId,
    /// Its place in its session.
    pub seq: Option<u64>,
    /// When it was accepted, by the database's clock.
    pub created_at: Timestamp,
    /// Whether an earlier request under the same key made it.
    pub is_repeated: bool,
}

/// Why a lane does not do what it was asked for. Except after `OutcomeUnknown`, nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The outcome of the commit is not known; or, in a session with an order, of the commit of jobs before it.
    OutcomeUnknown,
    /// The ledger takes no such batch as the one that it was in, which is a defect.
    Defect,
    /// The lane's owner has ended, or is about to.
    Fenced,
    /// Too many submissions wait.
    Overloaded,
    /// There is no such session.
    UnknownSession,
    /// The session takes no new jobs.
    SessionClosed,
    /// The session has [`super::limits::SESSION_JOBS_MAX`] unfinished jobs.
    SessionFull,
    /// In a strict session the order of submission is the only one.
    StrictPriority,
    /// The job and its session together require more than [`crate::limits::JOB_LABELS_MAX`] labels.
    TooManyLabels,
    /// It was to be the only retry of its job, and another job has retried the same job.
    AlreadyRetried,
}

/// The output of an attempt, which its lane is to write.
pub struct CompletionRequest<C: Callers> {
    /// The job.
    pub job: JobId,
    /// Which attempt.
    pub attempt: Attempt,
    /// The node that has the attempt.
    pub node: NodeId,
    /// JSON text.
    pub output: String,
    /// Whether the slot may be passed on to the next job.
    pub may_pass: bool,
    /// The caller. Dropped without an answer where the outcome is unknown, or where the lane does not know the attempt.
    pub reply: C::Complete,
}

/// What the instance that holds a node's socket reports of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AttemptEvent {
    /// The node has acknowledged it.
    Acknowledged,
    /// The node's socket was closed after the attempt was sent and before the node said anything about it.
    ConnectionLost,
    /// The node is connected to another instance than the one that the attempt was sent to, and does not have it.
    NodeElsewhere,
    /// The job has its result.
    Finished,
    /// The attempt failed; the next one is due in so many milliseconds.
    Failed {
        /// At least 1.
        due_in_ms: u64,
    },
    /// The attempt never began, or its node does not know it any more. With the reason in words.
    Revoked(Revoked, String),
}

/// What was found of an attempt of which nothing is heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFound {
    /// The node has it, as is written down.
    Running,
    /// The node may still be on the connection by which it was to be sent.
    There,
    /// That connection is over.
    Gone,
}

/// A slot for an attempt, and the pool in which its node was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedSlot {
    /// The node, and the instance that holds its socket.
    pub placed: Assignment,
    /// The pool.
    pub pool: PoolName,
    /// The job that passes its slot on to this attempt; `None` where the slot was reserved at the bus.
    pub instead_of: Option<JobId>,
}

/// What reaches a lane's owner.
pub enum Command<C: Callers> {
    /// Accept jobs.
    Submit(Vec<PendingSubmission<C>>),
    /// Cancel a job, which is counted by this. A job that has ended already counts as cancelled.
    Cancel(JobId, Class, C::Cancel),
    /// A waiting job has a slot for its next attempt.
    SlotReserved(JobId, Attempt, ReservedSlot),
    /// The scheduler took a waiting job out of its queue for a slot that it did not get.
    SlotUnavailable(JobId),
    /// A node is gone, and has not connected again.
    NodeDeparted(NodeId),
    /// A node whose socket is on this instance has completed an attempt.
    Complete(CompletionRequest<C>),
    /// Something happened to an attempt.
    Attempt(JobId, Attempt, AttemptEvent),
    /// The bus has answered that the reservation of a revoked attempt is gone.
    ReservationRemoved(JobId, Attempt),
    /// Another has written these jobs in this lane, under its lease: read them.
    Written(Vec<JobId>),
    /// The plan's owner has added these jobs to this lane, under its lease at this token: waiting, or with their first
    /// attempts, which are to be sent.
    Added(Token, Vec<LiveJob>),
    /// Transfer those of these jobs that wait for a slot here, each to an instance whose nodes can take it.
    Transfer(Vec<(JobId, InstanceId)>),
    /// Other instances have transferred jobs to this lane: look for them.
    LookForTransferred,
    /// End, if no attempt is under way, and pass the session's lease on to an instance whose nodes can take its jobs.
    PassOn(InstanceId),
    /// Close the session: it accepts no more jobs, and ends with those that it has.
    CloseSession(C::Close),
    /// Begin nothing more, finish the commit under way and the commands of which some submissions were taken in, release
    /// the lease and end. What waits for its turn is the next owner's.
    Stop,
}

/// The number of a batch, counted from 1 in each state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u64);

/// A page of jobs that an owner reads, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageId(pub u64);

/// Where the jobs of a session prefer to go: the node that had the last one, or else its pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Affinity {
    /// The node.
    pub node: NodeId,
    /// The pool.
    pub pool: Option<PoolName>,
}

/// A job that wants a slot at once.
#[derive(Clone, Debug)]
pub struct PlacementRequest {
    /// The job.
    pub job: JobId,
    /// For which attempt.
    pub attempt: Attempt,
    /// The lane's fencing token, part of the reservation's name.
    pub token: Token,
    /// Who may run it.
    pub needs: Arc<Requirements>,
    /// Who goes first.
    pub priority: Priority,
    /// Where it prefers to go.
    pub prefer: Option<Arc<Affinity>>,
}

impl PlacementRequest {
    /// For the first attempt of a job.
    #[must_use]
    pub fn first(job: JobId, spec: &Spec, token: Token, prefer: Option<Arc<Affinity>>) -> Self {
        let (attempt, needs) = (CurrentAttempt::FIRST.attempt, Arc::new(spec.needs.clone()));
        Self { job, attempt, token, needs, priority: spec.priority, prefer }
    }
}

/// What a round needs from the scheduler before it can be committed.
#[derive(Debug)]
pub struct SlotSearch {
    /// Jobs that end in the round, and the nodes on which each leaves a slot to the next job.
    pub offers: Vec<(JobId, NodeId)>,
    /// Whether jobs wait in the ledger alone. Then a slot goes to no new job.
    pub has_more_outside: bool,
    /// New jobs that want a slot, and the job of a strict session whose turn comes with the round.
    pub requests: Vec<PlacementRequest>,
}

/// The scheduler's answer to a [`SlotSearch`].
#[derive(Debug, Default)]
pub struct SlotsFound {
    /// Jobs of this lane that were taken out of the queue for the slots that were offered.
    pub passed: Vec<(JobId, Attempt, ReservedSlot)>,
    /// Slots for the new jobs; a job without one is missing.
    pub reserved: HashMap<JobId, ReservedSlot>,
}

/// A job that waits for a slot.
#[derive(Clone, Debug)]
pub struct Enqueue {
    /// The job.
    pub job: Arc<LiveJob>,
    /// The attempt that the slot is for.
    pub attempt: Attempt,
    /// The lane's fencing token.
    pub token: Token,
    /// The node that had the last attempt in vain.
    pub avoid: Option<NodeId>,
    /// Where it prefers to go.
    pub prefer: Option<Arc<Affinity>>,
    /// Since when it has waited in the queue.
    pub since: Instant,
    /// Whether it was taken out of the queue for nothing: then its tenant is next again.
    pub is_back: bool,
}

/// An attempt to be sent to its node.
#[derive(Clone, Debug)]
pub struct DispatchOrder {
    /// The job.
    pub job: Arc<LiveJob>,
    /// The attempt.
    pub current: CurrentAttempt,
    /// Where it goes.
    pub placed: Assignment,
}

/// An attempt that its node is not to go on with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WithdrawOrder {
    /// The job.
    pub job: JobId,
    /// Which attempt.
    pub attempt: Attempt,
    /// Where it is.
    pub placed: Assignment,
    /// The lane's fencing token.
    pub token: Token,
    /// Whether [`Command::ReservationRemoved`] is waited for.
    pub is_awaited: bool,
}

/// What became of a result that the lane wrote.
pub struct Completed<C: Callers> {
    /// The job.
    pub job: JobId,
    /// `false` where the row was not at this attempt any more.
    pub is_written: bool,
    /// The caller.
    pub reply: C::Complete,
    /// The attempt that gets the slot.
    pub next: Option<DispatchOrder>,
}

/// A submission that was not written, and whose key may have been used before: it is answered as then, or else so.
pub struct KeyedAnswer<C: Callers> {
    /// Its key.
    pub key: JobKey,
    /// The answer where nothing is kept under the key.
    pub otherwise: Refused,
    /// The caller.
    pub reply: C::Submit,
}

/// What became of a job, for those who watch it. The pool is the one that the job names, for those who count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobNotice {
    /// It was accepted.
    Created(JobId, Class),
    /// An attempt has begun, so long after the job was due; `None` where that is not known.
    Dispatched(JobId, Attempt, Assignment, Option<Duration>),
    /// An attempt was taken back, and another one follows.
    Requeued(JobId, Attempt, Assignment, Revoked),
    /// It has ended without a result. The last field says why its attempt was taken back, if the job ended by that.
    Ended(JobId, Class, Attempt, Option<Assignment>, Outcome, Option<Revoked>),
    /// It has its result, which this lane wrote. Of a plan's stage, also what it is.
    Completed(JobId, Class, Attempt, NodeId, Option<Arc<str>>),
}

/// A node and attempts that it has, by the lane's knowledge; each with the time since when the lane knows so.
pub type AttemptsAt = (NodeId, Vec<(JobId, Attempt, State, Instant)>);

/// What is to be read for a lane. No batch is under way meanwhile, where nothing else is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// Unfinished jobs, each once; answered by [`super::LaneState::jobs_read`].
    Jobs(Vec<JobId>),
    /// The first waiting jobs of a group, read beside the rounds; answered by [`super::LaneState::waiting_read`].
    Waiting {
        /// Which read this is.
        page: PageId,
        /// Which group.
        group: WaitingGroup,
        /// The largest number to read.
        limit: u32,
    },
    /// The jobs of a strict session behind a place; answered by [`super::LaneState::fifo_read`].
    Fifo {
        /// The place.
        after: u64,
    },
    /// The groups that have jobs that may be dispatched at once; answered by [`super::LaneState::groups_read`].
    Groups,
    /// All attempts under way; answered by [`super::LaneState::attempts_read`].
    Attempts,
    /// Delayed jobs that come due within this many milliseconds; answered by [`super::LaneState::coming_read`].
    Coming {
        /// The time.
        within_ms: u64,
    },
    /// Which of these attempts have neither a result nor a slot, asked of the bus beside the rounds; answered by
    /// [`super::LaneState::stranded_read`].
    Stranded(Vec<AttemptsAt>),
}

/// A batch to be committed under the lane's lease.
#[derive(Clone, Debug)]
pub struct WrittenBatch {
    /// Its number.
    pub id: BatchId,
    /// Under which acquired lease.
    pub token: Token,
    /// At most one write for each job.
    pub writes: Arc<[JobWrite]>,
}

/// What the shell of a lane is to do.
pub enum Effect<C: Callers> {
    /// Call [`super::LaneState::flush`] when no command waits at hand.
    Flush,
    /// Commit; answered by [`super::LaneState::committed`], [`super::LaneState::commit_refused`] or
    /// [`super::LaneState::commit_failed`].
    Commit(WrittenBatch),
    /// Find slots; answered by [`super::LaneState::slots_found`].
    FindSlots(SlotSearch),
    /// Answer a submission.
    Submitted(C::Submit, Result<Accepted, Refused>),
    /// Read what is kept under the keys, and answer the submissions.
    AnswerByKey(Vec<KeyedAnswer<C>>),
    /// Read what is kept under the keys of these submissions, which may be repetitions. Answer those that are, or all if that
    /// cannot be read; [`super::LaneState::looked_up`] takes the others, or none.
    LookUp(Vec<PendingSubmission<C>>),
    /// Answer a cancellation.
    Cancelled(C::Cancel, Result<(), Refused>),
    /// Answer results.
    Completed(Vec<Completed<C>>),
    /// Answer a caller that wants the session closed.
    Closed(C::Close, Result<(), Refused>),
    /// Send an attempt to its node.
    Dispatch(DispatchOrder),
    /// Call an attempt off and remove its reservation.
    Withdraw(WithdrawOrder),
    /// Give a slot back that was reserved for an attempt that did not begin.
    ReleaseSlot {
        /// The node.
        node: NodeId,
        /// The job.
        job: JobId,
        /// The attempt.
        attempt: Attempt,
        /// The token under which it was reserved.
        token: Token,
    },
    /// Give a slot back if its attempt was not sent yet; if it is given back, the attempt is to be reported as
    /// [`Revoked::NotAcknowledged`].
    ReleaseUnsent {
        /// The node.
        node: NodeId,
        /// The job.
        job: JobId,
        /// The attempt.
        attempt: Attempt,
        /// The token under which it was reserved.
        token: Token,
    },
    /// Find out what became of attempts that may have been sent before this owner knew of them, and of which nothing is heard;
    /// answered by [`super::LaneState::node_looked_for`], or not at all, where that cannot be read: they are looked for again.
    LookForNode {
        /// Where they were placed.
        placed: Assignment,
        /// The attempts.
        attempts: Vec<(JobId, Attempt)>,
    },
    /// A node of another instance is done with an attempt: one of its slots is free.
    SlotFreed(Assignment),
    /// Put a job into the scheduler's queue.
    Enqueue(Enqueue),
    /// Look whether the attempts of a job up to this one, whose end has been waited for since then, are over; if they are,
    /// answered by [`super::LaneState::older_are_over`].
    LookForOlder {
        /// The job.
        job: JobId,
        /// The newest of them.
        newest: Attempt,
        /// Since when.
        since: Instant,
    },
    /// Take a job out of the scheduler's queue.
    Dequeue(JobId),
    /// Take all jobs of this lane out of the scheduler's queue.
    DequeueAll,
    /// Tell those who watch.
    Notify(JobNotice),
    /// Note how long the submissions of a round waited for it.
    Waited(Vec<Duration>),
    /// Read.
    Read(Read),
    /// Acquire the lease anew, which raises its token, and read everything; answered by [`super::LaneState::reloaded`].
    AcquireAnew,
    /// Note at the bus who serves the session, and where its last job went.
    Bind(Option<Arc<Affinity>>),
    /// Close the session in the ledger; answered by [`super::LaneState::session_closed`].
    CloseSession,
    /// Transfer these jobs in the ledger; answered by [`super::LaneState::transferred`].
    Transfer(Vec<(JobId, InstanceId)>),
    /// Have delayed jobs that are due wait, the first [`super::limits::PROMOTED_MAX`] of them by their times; answered by
    /// [`super::LaneState::promoted`].
    Promote,
    /// There is nothing left to do. The owner may end, unless more has come meanwhile.
    Stop,
}

/// A session as the ledger has it when the owner has acquired the lease.
#[derive(Clone, Debug)]
pub struct SessionSnapshot {
    /// What was asked of it.
    pub spec: session::Spec,
    /// Whether it takes no more jobs.
    pub is_closed: bool,
    /// How long ago something last happened, in milliseconds.
    pub idle_for_ms: u64,
    /// The highest place given, 0 for none.
    pub last_seq: u64,
    /// How many of its jobs are unfinished.
    pub unfinished: u64,
    /// Where its last job went.
    pub affinity: Option<Affinity>,
    /// Of a session without order: what clients call the last [`super::limits::RECENT_KEYS_MAX`] jobs, in the order of their
    /// places.
    pub recent_refs: Vec<ClientRef>,
}

/// Delayed jobs, by their times.
#[derive(Debug, Default)]
pub struct Coming {
    /// Each with the milliseconds until it is due.
    pub jobs: Vec<(LiveJob, u64)>,
    /// There are more behind them.
    pub is_cut: bool,
}

/// Everything that a lane's owner reads after it has acquired the lease.
#[derive(Debug, Default)]
pub struct Snapshot {
    /// The session, of a lane that is one's. `None` where it was forgotten, which it is only without jobs.
    pub session: Option<SessionSnapshot>,
    /// Jobs that are DISPATCHED or RUNNING.
    pub in_flight: Vec<LiveJob>,
    /// Of a strict session that has no attempt under way: the attempt that was taken back last, if its reservation may
    /// still stand.
    pub revoked: Option<RevokedAttempt>,
    /// Groups that have jobs that are due.
    pub groups: Vec<WaitingGroup>,
    /// Its delayed jobs that are due soon.
    pub coming: Coming,
}

/// Why a batch, a close, a transfer or a promotion was not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFailure {
    /// The lease is another's, or was acquired anew: nothing was written.
    Fenced,
    /// Whether it was written is not known.
    Unknown,
    /// Nothing was written; the same may be tried again.
    Again,
}
