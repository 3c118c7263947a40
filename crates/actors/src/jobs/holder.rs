//! What an instance does for the nodes whose sockets it holds: attempts go out to them, and what they say goes into
//! the ledger before they are told that it counts.
//!
//! Results need no lease: they are compared with attempt, node and state. So any instance can take one, whoever owns
//! the lane, and exactly one counts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bus::{Claim, Reserved, Slot};
use dashmap::{DashMap, Entry};
use domain::job::{Attempt, Change, Placed, Revoked, State};
use domain::{JobId, NodeId, Resource};
use ledger::{JobBatch, JobVerdict, JobWrite, JobsVerdict};
use tokio::sync::{mpsc, oneshot};

use super::Inner;
use super::delivery::{Dispatch, Letter, Terms, Withdrawal};
use super::lane::Heard;
use super::limits::{GRANT_WAIT, RESERVATION, SOCKET_MESSAGES_MAX};
use super::watches::{Seen, What};
use crate::pause::jittered;

/// Acknowledgements are written down when the result did not come within this time.
const RUN_NOTED_AFTER: Duration = Duration::from_secs(2);
/// How often those are looked for.
const RUN_NOTED_EVERY: Duration = Duration::from_millis(250);

/// What is for a node.
#[derive(Debug)]
pub enum ToNode {
    /// An attempt, for which its slot is to be sent first.
    Dispatch(Box<Dispatch>),
    /// An attempt is called off.
    Cancel(JobId, Attempt),
    /// An operator wants it to get no more work, or to get work again.
    Drain(bool),
    /// The bus is away, and slots are wanted for these until then. `None` as long as that is for the bus to say.
    Grant(Vec<Claim>, Instant, oneshot::Sender<Option<Vec<Reserved>>>),
    /// A slot that was given so is not wanted any more.
    GiveBack(Claim),
}

/// Of one instance.
#[derive(Default)]
pub(super) struct Holder {
    sockets: DashMap<NodeId, Socket>,
    /// What its nodes were given, or listed, and has no end yet; see [`super::strays`] for what stays.
    pub(super) attempts: DashMap<(JobId, Attempt), There>,
    /// Called off, and their slots not known to be free yet.
    pub(super) called_off: DashMap<(JobId, Attempt), NodeId>,
    /// Called off, and their slots free: to be written down.
    released: Mutex<Vec<JobId>>,
    /// Acknowledged and not written down as RUNNING.
    acknowledged: Mutex<HashMap<(JobId, Attempt), (NodeId, Instant)>>,
}

/// An attempt that a node here has, or is about to have.
pub(super) struct There {
    pub(super) node: NodeId,
    /// Since when it is known here; `None` for one that the node came with.
    pub(super) since: Option<Instant>,
    /// Those of attempts that were dispatched through this instance.
    terms: Option<Terms>,
}

struct Socket {
    /// When its node said hello.
    since: Instant,
    line: mpsc::Sender<ToNode>,
}

/// The line of one node's socket: what is for the node comes out of it. Dropping it hangs up.
pub struct Line {
    inner: Arc<Inner>,
    node: NodeId,
    since: Instant,
    messages: mpsc::Receiver<ToNode>,
}

impl Line {
    /// What comes next, as many as are there, at most `max`; empty when another connection of the node has taken over.
    pub async fn next(&mut self, max: usize) -> Vec<ToNode> {
        let mut messages = Vec::new();
        self.messages.recv_many(&mut messages, max).await;
        messages
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.inner.holder.sockets.remove_if(&self.node, |_, socket| socket.since == self.since);
    }
}

impl Holder {
    fn acknowledged(&self) -> MutexGuard<'_, HashMap<(JobId, Attempt), (NodeId, Instant)>> {
        self.acknowledged.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_attached(&self, node: &NodeId) -> bool {
        self.sockets.contains_key(node)
    }

    pub(super) fn drain(&self, node: &NodeId, is_drained: bool) -> bool {
        self.sockets.get(node).is_some_and(|socket| socket.line.try_send(ToNode::Drain(is_drained)).is_ok())
    }

    /// Slots of a node whose socket is here, given by the holder itself since the bus cannot be asked. `None` where that
    /// is not for it to say.
    pub(super) async fn grant(&self, node: &NodeId, claims: &[Claim]) -> Option<Vec<Reserved>> {
        let (reply, answer) = oneshot::channel();
        let wish = ToNode::Grant(claims.to_vec(), Instant::now() + RESERVATION, reply);
        self.sockets.get(node)?.line.try_send(wish).ok()?;
        // What is given unheard runs out.
        tokio::time::timeout(GRANT_WAIT, answer).await.ok()?.ok()?
    }

    pub(super) fn give_back(&self, node: &NodeId, claim: Claim) {
        if let Some(socket) = self.sockets.get(node) {
            // What is not given back runs out.
            let _ = socket.line.try_send(ToNode::GiveBack(claim));
        }
    }

    /// The lane of an attempt that was dispatched through this instance.
    pub(super) fn lane(&self, job: JobId, attempt: Attempt) -> Option<Resource> {
        self.terms(job, attempt).map(|terms| terms.lane)
    }

    fn forget(&self, job: JobId, attempt: Attempt) -> Option<Terms> {
        self.acknowledged().remove(&(job, attempt));
        self.attempts.remove(&(job, attempt)).and_then(|(_, there)| there.terms)
    }

    pub(super) fn terms(&self, job: JobId, attempt: Attempt) -> Option<Terms> {
        self.attempts.get(&(job, attempt)).and_then(|there| there.terms.clone())
    }

    /// A node here is about to have the attempt.
    pub(super) fn expect(&self, dispatch: &Dispatch) {
        let (since, terms) = (Some(Instant::now()), Some(dispatch.terms.clone()));
        let there = There { node: dispatch.placed.node.clone(), since, terms };
        self.attempts.insert((dispatch.job, dispatch.attempt), there);
    }

    /// A node has connected with these.
    fn came_with(&self, node: &NodeId, listed: &[Slot]) {
        for Slot { job, attempt } in listed {
            let there = || There { node: node.clone(), since: None, terms: None };
            self.attempts.entry((*job, *attempt)).or_insert_with(there);
        }
        // What it was to stop and does not list has stopped.
        let mut stopped = Vec::new();
        self.called_off.retain(|(job, attempt), of| {
            let is_there = of != node || listed.contains(&Slot { job: *job, attempt: *attempt });
            if !is_there {
                stopped.push(*job);
            }
            is_there
        });
        self.released.lock().unwrap_or_else(PoisonError::into_inner).extend(stopped);
    }
}

impl Inner {
    pub(super) fn forget(&self, job: JobId, attempt: Attempt) -> Option<Terms> {
        self.progresses.forget(job, attempt);
        self.holder.forget(job, attempt)
    }

    /// The attempt is over, says another instance: whoever has it here need not go on.
    pub(super) fn forget_attempt(&self, job: JobId, attempt: Attempt) {
        // Most are none of this instance's.
        let node = self.holder.attempts.get(&(job, attempt)).map(|there| there.node.clone());
        match node {
            Some(node) => self.leave_off(node, job, attempt),
            None if self.progresses.has(job) => self.progresses.forget(job, attempt),
            None => {}
        }
    }

    /// Has an attempt of a node called off, if its socket is here; it is not looked after any more.
    pub(super) fn leave_off(&self, node: NodeId, job: JobId, attempt: Attempt) {
        self.call_off(&Withdrawal { job, attempt, placed: Placed { node, holder: self.me.clone() } });
    }

    /// A node's new connection: from now on it gets what is for the node.
    pub(super) fn attach(self: &Arc<Self>, node: &NodeId, since: Instant) -> Line {
        let (line, messages) = mpsc::channel(SOCKET_MESSAGES_MAX);
        match self.holder.sockets.entry(node.clone()) {
            // A newer connection was quicker; this one hears at once that it is replaced.
            Entry::Occupied(newer) if newer.get().since > since => {}
            Entry::Occupied(mut older) => {
                older.insert(Socket { since, line });
            }
            Entry::Vacant(none) => {
                none.insert(Socket { since, line });
            }
        }
        Line { inner: Arc::clone(self), node: node.clone(), since, messages }
    }

    /// Sends an attempt on its way.
    pub(super) fn deliver(self: &Arc<Self>, dispatch: Dispatch) {
        if dispatch.placed.holder == self.me {
            self.hand_over(dispatch);
        } else {
            self.post(Letter::Dispatch(Box::new(dispatch)));
        }
    }

    /// Has an attempt called off at its node.
    pub(super) fn withdraw(self: &Arc<Self>, withdrawal: Withdrawal) {
        if withdrawal.placed.holder == self.me {
            self.call_off(&withdrawal);
        } else {
            self.post(Letter::Withdrawal(withdrawal));
        }
    }

    /// Gives an attempt to the socket of its node, if that is here.
    pub(super) fn hand_over(self: &Arc<Self>, dispatch: Dispatch) {
        let (job, attempt, node) = (dispatch.job, dispatch.attempt, dispatch.placed.node.clone());
        self.holder.expect(&dispatch);
        let sent = match self.holder.sockets.get(&node) {
            Some(socket) => socket.line.try_send(ToNode::Dispatch(Box::new(dispatch))).is_ok(),
            None => false,
        };
        if !sent {
            self.came_to_nothing(
                job,
                attempt,
                Revoked::Undeliverable,
                "the node's socket is not here, or full",
            );
        }
    }

    pub(super) fn call_off(&self, withdrawal: &Withdrawal) {
        let Withdrawal { job, attempt, placed } = withdrawal;
        self.forget(*job, *attempt);
        if let Some(socket) = self.holder.sockets.get(&placed.node)
            // A node that is not told finds out by the answer to its result.
            && socket.line.try_send(ToNode::Cancel(*job, *attempt)).is_ok()
        {
            self.holder.called_off.insert((*job, *attempt), placed.node.clone());
        }
    }

    /// The attempt's slot is free.
    pub(super) fn slot_freed(&self, job: JobId, attempt: Attempt) {
        if self.holder.called_off.remove(&(job, attempt)).is_some() {
            self.holder.released.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        }
    }

    /// The attempt never began.
    pub(super) fn came_to_nothing(
        self: &Arc<Self>,
        job: JobId,
        attempt: Attempt,
        why: Revoked,
        reason: &str,
    ) {
        if let Some(terms) = self.forget(job, attempt) {
            self.tell_lane(&terms.lane, job, attempt, Heard::Refused(why, reason.to_owned()));
        }
    }

    /// See [`super::Jobs::attempts_on`].
    pub(super) async fn attempts_on(
        self: &Arc<Self>,
        node: &NodeId,
        listed: &[Slot],
    ) -> ledger::Result<Vec<Slot>> {
        self.holder.came_with(node, listed);
        let mut there = Vec::new();
        for (job, attempt) in self.ledger.attempts_on(node).await? {
            let slot = Slot { job, attempt };
            if listed.contains(&slot) {
                there.push(slot);
                continue;
            }
            let Some(live) = self.live_job(job).await?.filter(|live| live.newest.attempt == attempt) else {
                continue;
            };
            let heard = match live.newest.state {
                State::Running => {
                    Heard::Refused(Revoked::Unlisted, "the node does not know of it any more".to_owned())
                }
                // It may be on its way to the socket that this is about.
                _ if live.placed.as_ref().is_some_and(|placed| placed.holder == self.me) => {
                    there.push(slot);
                    continue;
                }
                // Whoever it went to cannot send it any more: that is an older connection's.
                _ => Heard::Adrift,
            };
            self.tell_lane(&live.lane, job, attempt, heard);
        }
        Ok(there)
    }

    /// The node has the attempt.
    pub(super) fn acknowledged(self: &Arc<Self>, node: &NodeId, job: JobId, attempt: Attempt) {
        let lane = self.holder.lane(job, attempt);
        self.holder.acknowledged().insert((job, attempt), (node.clone(), Instant::now()));
        // Of what came by way of another instance the lane hears when it is written down.
        if let Some(lane) = lane {
            self.tell_lane(&lane, job, attempt, Heard::Acknowledged);
        }
    }

    /// The node had the attempt sent, and its socket is closed.
    pub(super) fn cut_off(self: &Arc<Self>, job: JobId, attempt: Attempt) {
        if let Some(lane) = self.holder.lane(job, attempt) {
            self.tell_lane(&lane, job, attempt, Heard::CutOff);
        }
    }

    /// Writes down what runs without a result yet, for as long as somebody else holds on to this.
    pub(super) fn note_running(self: &Arc<Self>) {
        let inner = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(jittered(RUN_NOTED_EVERY)).await;
                let Some(inner) = inner.upgrade() else { return };
                inner.tell_progress().await;
                inner.write_running().await;
                inner.write_released().await;
            }
        });
    }

    /// Writes down that slots are free of jobs that were called off.
    async fn write_released(&self) {
        let mut released =
            std::mem::take(&mut *self.holder.released.lock().unwrap_or_else(PoisonError::into_inner));
        released.sort_unstable();
        released.dedup();
        for jobs in released.chunks(domain::limits::BATCH_JOBS_MAX) {
            let write = |job: &JobId| JobWrite { change: Change::Release { job: *job }, key: None };
            let batch = JobBatch { lane: None, writes: jobs.iter().map(write).collect() };
            if let Err(error) = self.ledger.commit_jobs(batch).await {
                tracing::debug!(%error, "slots that are free are not written down yet");
                self.holder.released.lock().unwrap_or_else(PoisonError::into_inner).extend(jobs);
            }
        }
    }

    async fn write_running(&self) {
        let mut due: Vec<_> = {
            let acknowledged = self.holder.acknowledged();
            let is_due = acknowledged.iter().filter(|(_, (_, at))| at.elapsed() >= RUN_NOTED_AFTER);
            is_due.map(|((job, attempt), (node, _))| (*job, *attempt, node.clone())).collect()
        };
        due.sort_unstable();
        for chunk in due.chunks(domain::limits::BATCH_JOBS_MAX) {
            let write = |(job, attempt, node): &(JobId, Attempt, NodeId)| JobWrite {
                change: Change::Run { job: *job, attempt: *attempt, node: node.clone() },
                key: None,
            };
            let batch = JobBatch { lane: None, writes: chunk.iter().map(write).collect() };
            match self.ledger.commit_jobs(batch).await {
                Ok(verdict) => {
                    let mut acknowledged = self.holder.acknowledged();
                    for (job, attempt, _) in chunk {
                        acknowledged.remove(&(*job, *attempt));
                    }
                    drop(acknowledged);
                    self.tell_running(chunk, &verdict);
                    let running = chunk.len() as u64;
                    metrics::counter!("fencepost_jobs_total", "state" => "RUNNING", "outcome" => "")
                        .increment(running);
                }
                Err(error) => tracing::debug!(%error, "acknowledgements are not written down yet"),
            }
        }
    }

    fn tell_running(&self, noted: &[(JobId, Attempt, NodeId)], verdict: &JobsVerdict) {
        let JobsVerdict::Written { jobs, .. } = verdict else { return };
        let written = noted.iter().zip(jobs).filter(|(_, verdict)| **verdict == JobVerdict::Written);
        for ((job, attempt, node), _) in written {
            self.watches.tell(|| Seen {
                job: *job,
                attempt: *attempt,
                lane: self.holder.lane(*job, *attempt),
                node: Some(node.clone()),
                what: What::Changed(State::Running, None),
            });
        }
    }
}
