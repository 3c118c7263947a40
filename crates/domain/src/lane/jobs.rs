//! What the owner of a lane knows of its unfinished jobs, and when it must look at one again. It decides nothing and
//! writes nothing; time comes in as an argument.
//!
//! Beside the attempts under way, of which there are never more than slots, it holds at most [`JOBS_MAX`] jobs, and
//! payloads of [`JOBS_BYTES_MAX`]; `jobs/groups.rs` says how groups share that room. All lanes of the instance share its memory
//! besides: where that is full, a lane has what it may always have, and one job at least. Jobs that do not fit stay in the ledger
//! and are read from there when there is room again.

mod groups;

pub(super) use groups::{GroupToFill, Promoted, ReadJobs, group_of};

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::limits::{JOBS_BYTES_MAX, JOBS_MAX, NODE_ELSEWHERE_WAIT, TIME_UP_LATE, TIME_UP_LATE_LOOK_AGAIN};
use super::waiting_bytes::WaitingShare;
use crate::job::{Assignment, Attempt, CurrentAttempt, LiveJob, Revoked, State, WaitingGroup};
use crate::{JobId, NodeId, NodeTimeouts};
use groups::Group;

/// An unfinished job, as its lane's owner knows it.
pub(super) struct Entry {
    pub(super) job: Arc<LiveJob>,
    pub(super) newest: CurrentAttempt,
    pub(super) phase: Phase,
    /// The node that had its last attempt in vain: another one is better.
    pub(super) avoid: Option<NodeId>,
    /// It waits, and counts among the jobs of its group.
    is_in_group: bool,
    /// When it is to be looked at: delayed, until it is ready; under way, until its node must have said something.
    alarm: Option<Instant>,
}

/// Where it is.
pub(super) enum Phase {
    /// Not due yet.
    Delayed,
    /// In the queue for a slot.
    Waiting {
        /// Since when, once it was put there.
        queued_at: Option<Instant>,
    },
    /// A node has it.
    InFlight(InFlight),
}

/// An attempt under way.
#[derive(Clone)]
pub(super) struct InFlight {
    pub(super) placed: Assignment,
    /// Since when it is known here.
    pub(super) since: Instant,
    /// It was sent, and the node's socket was closed before anything was heard of it.
    is_connection_lost: bool,
    /// Its node is connected elsewhere, and does not have it.
    is_node_elsewhere: bool,
    /// It was read from the ledger: an earlier owner may have sent it, or this one under an earlier lease, and what was heard of
    /// it then is not known.
    may_be_sent: bool,
    /// It was looked at much later than its time was over.
    was_late: bool,
}

impl Entry {
    /// What it means for its attempt that the node is gone. What was sent, or may have been, may be what the node died of.
    pub(super) fn lost(&self) -> Revoked {
        match &self.phase {
            Phase::InFlight(at_node) if at_node.is_connection_lost || at_node.may_be_sent => {
                Revoked::NodeLost
            }
            _ if self.newest.state == State::Running => Revoked::NodeLost,
            _ => Revoked::NodeLostUnsent,
        }
    }

    /// Whether an attempt of it is under way that is looked at too late for the first time.
    fn is_late_now(&mut self) -> bool {
        let Phase::InFlight(at_node) = &mut self.phase else { return false };
        !std::mem::replace(&mut at_node.was_late, true)
    }

    /// What is to be done about it when its time has come.
    fn due(&self) -> TimeUp {
        let (job, attempt) = (self.job.id, self.newest.attempt);
        match &self.phase {
            // One that waits could not be looked up after it had lost its turn.
            Phase::Delayed | Phase::Waiting { .. } => TimeUp::Ready(job),
            Phase::InFlight(_) if self.newest.state == State::Running => {
                TimeUp::Revoke(job, attempt, Revoked::TimedOut)
            }
            Phase::InFlight(at_node)
                if self.job.spec.on_recovery.wants_evidence() && !at_node.is_node_elsewhere =>
            {
                TimeUp::RevokeUnsent(job, attempt)
            }
            Phase::InFlight(at_node) if at_node.is_connection_lost => {
                TimeUp::Revoke(job, attempt, Revoked::NodeLost)
            }
            Phase::InFlight(at_node) if at_node.is_node_elsewhere => {
                let why = if at_node.may_be_sent { Revoked::NodeLost } else { Revoked::Undeliverable };
                TimeUp::Revoke(job, attempt, why)
            }
            Phase::InFlight(at_node) if at_node.may_be_sent => TimeUp::LookForNode(job, attempt),
            Phase::InFlight(_) => TimeUp::Revoke(job, attempt, Revoked::NotAcknowledged),
        }
    }
}

/// What is to be done about a job whose time has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimeUp {
    /// It may be dispatched.
    Ready(JobId),
    /// Its attempt is to be taken back.
    Revoke(JobId, Attempt, Revoked),
    /// Its attempt is to be taken back if it was never sent.
    RevokeUnsent(JobId, Attempt),
    /// Its attempt may have been sent before it was known here: its node is to be looked for.
    LookForNode(JobId, Attempt),
}

/// The unfinished jobs of one lane.
pub(super) struct LaneJobs {
    timeouts: NodeTimeouts,
    entries: HashMap<JobId, Entry>,
    /// The attempts under way.
    in_flight: usize,
    /// What the others take in memory.
    waiting: WaitingShare,
    /// Those of them that count among the jobs of a group.
    in_groups: usize,
    groups: HashMap<WaitingGroup, Group>,
    /// How many of them have jobs that are in the ledger alone. Mostly none has, and then no group need be looked at.
    groups_outside: usize,
    /// The alarms of all entries.
    alarms: BTreeSet<(Instant, JobId)>,
}

impl LaneJobs {
    /// The jobs of a lane that takes this share of the instance's memory.
    pub(super) fn new(timeouts: NodeTimeouts, waiting: WaitingShare) -> Self {
        Self {
            timeouts,
            entries: HashMap::new(),
            in_flight: 0,
            waiting,
            in_groups: 0,
            groups: HashMap::new(),
            groups_outside: 0,
            alarms: BTreeSet::new(),
        }
    }

    pub(super) fn get(&self, job: JobId) -> Option<&Entry> {
        self.entries.get(&job)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.groups.is_empty()
    }

    /// An attempt was committed: from here on it is awaited. Always fits, since slots are few.
    pub(super) fn begin(
        &mut self,
        job: Arc<LiveJob>,
        newest: CurrentAttempt,
        placed: Assignment,
        now: Instant,
    ) {
        self.forget(job.id);
        let wait = match newest.state {
            State::Running => self.left_to_run(&job),
            State::Created | State::Dispatched | State::Finished => self.timeouts.ack,
        };
        let phase = Phase::InFlight(InFlight {
            placed,
            since: now,
            is_connection_lost: false,
            is_node_elsewhere: false,
            may_be_sent: false,
            was_late: false,
        });
        self.insert(Entry { job, newest, phase, avoid: None, is_in_group: false, alarm: Some(now + wait) });
    }

    /// How long the attempt of a job that was read as RUNNING may go on. Its node may have ended it while nobody could write
    /// that: to say so it has as long as a node may be away, and no longer than a whole run.
    fn left_to_run(&self, job: &LiveJob) -> Duration {
        let whole = run_for(job);
        let left = whole.saturating_sub(Duration::from_millis(job.running_for_ms));
        left.max(self.timeouts.offline).min(whole)
    }

    /// The node has it: its running time begins.
    pub(super) fn acknowledged(&mut self, job: JobId, attempt: Attempt, now: Instant) {
        let Some(entry) = self.entries.get_mut(&job).filter(|entry| entry.newest.attempt == attempt) else {
            return;
        };
        if let Phase::InFlight(at_node) = &mut entry.phase
            && entry.newest.state == State::Dispatched
        {
            at_node.was_late = false;
            entry.newest.state = State::Running;
            let ends = now + run_for(&entry.job);
            self.look_again(job, ends);
        }
    }

    /// The attempt of a job that was read from the ledger is awaited: whether it was sent is not known.
    pub(super) fn mark_may_be_sent(&mut self, job: JobId) {
        if let Some(Entry { phase: Phase::InFlight(at_node), .. }) = self.entries.get_mut(&job) {
            at_node.may_be_sent = true;
        }
    }

    /// The node's socket was closed after it was sent.
    pub(super) fn connection_lost(&mut self, job: JobId, attempt: Attempt) {
        let entry = self.entries.get_mut(&job).filter(|entry| entry.newest.attempt == attempt);
        if let Some(Phase::InFlight(at_node)) = entry.map(|entry| &mut entry.phase) {
            at_node.is_connection_lost = true;
        }
    }

    /// Its node is connected elsewhere, and does not have it: nothing but the word that it was sent, and the socket cut,
    /// is waited for.
    pub(super) fn node_elsewhere(&mut self, job: JobId, attempt: Attempt, now: Instant) {
        let Some(entry) = self.entries.get_mut(&job).filter(|entry| entry.newest.attempt == attempt) else {
            return;
        };
        let is_awaited = entry.newest.state == State::Dispatched;
        if let Phase::InFlight(at_node) = &mut entry.phase
            && is_awaited
            && !std::mem::replace(&mut at_node.is_node_elsewhere, true)
        {
            let until = now + NODE_ELSEWHERE_WAIT;
            let at = entry.alarm.map_or(until, |alarm| alarm.min(until));
            self.look_again(job, at);
        }
    }

    /// A job that is to be dispatched at `at`, if it fits; if not, it is found again in the ledger by its time. Whether it
    /// fits. `avoid` is the node of its last attempt, where that has ended since the job was read.
    pub(super) fn delay(&mut self, job: Arc<LiveJob>, at: Instant, avoid: Option<NodeId>) -> bool {
        self.forget(job.id);
        let is_alone = self.entries.len() == self.in_flight;
        let fits = self.has_times_the_room(1, &job) && (is_alone || self.has_memory(1, &job));
        if fits {
            let (newest, avoid) = (job.newest, avoid.or_else(|| job.last_node.clone()));
            let (phase, alarm) = (Phase::Delayed, Some(at));
            self.insert(Entry { job, newest, phase, avoid, is_in_group: false, alarm });
        }
        fits
    }

    /// A delayed job whose time has come. Its place is kept.
    pub(super) fn wait_after_delay(&mut self, job: JobId) {
        if let Some(entry) = self.entries.get_mut(&job) {
            entry.phase = Phase::Waiting { queued_at: None };
        }
    }

    /// The job is put into the queue; back into it, if it was taken out for nothing. Since when it has waited there.
    pub(super) fn queue(&mut self, job: JobId, is_back: bool, now: Instant) -> Instant {
        let Some(Entry { phase: Phase::Waiting { queued_at }, .. }) = self.entries.get_mut(&job) else {
            return now;
        };
        let since = queued_at.filter(|_| is_back).unwrap_or(now);
        *queued_at = Some(since);
        since
    }

    /// Whether it waits for a slot.
    pub(super) fn waits(&self, job: JobId) -> bool {
        self.entries.get(&job).is_some_and(|entry| matches!(entry.phase, Phase::Waiting { .. }))
    }

    /// Nothing is known of the job any more.
    pub(super) fn forget(&mut self, job: JobId) -> Option<Entry> {
        let entry = self.entries.remove(&job)?;
        if matches!(entry.phase, Phase::InFlight(_)) {
            self.in_flight -= 1;
        } else {
            self.waiting.remove(weight(&entry.job));
        }
        if let Some(at) = entry.alarm {
            self.alarms.remove(&(at, job));
        }
        if entry.is_in_group {
            self.leave_group(&entry.job);
        }
        Some(entry)
    }

    /// What has come due by now, each once: who asks sees to it, or has it looked at again. An attempt that came due long ago is
    /// put off once: what its node said may not be read yet.
    pub(super) fn due(&mut self, now: Instant) -> Vec<TimeUp> {
        let mut due = Vec::new();
        while let Some((at, job)) = self.alarms.first().copied()
            && at <= now
        {
            self.alarms.pop_first();
            let Some(entry) = self.entries.get_mut(&job) else { continue };
            entry.alarm = None;
            if now.saturating_duration_since(at) >= TIME_UP_LATE && entry.is_late_now() {
                self.look_again(job, now + TIME_UP_LATE_LOOK_AGAIN);
            } else {
                due.push(entry.due());
            }
        }
        due
    }

    /// When [`Self::due`] may have something.
    pub(super) fn next_alarm(&self) -> Option<Instant> {
        self.alarms.first().map(|(at, _)| *at)
    }

    /// Has the job looked at then, and not before.
    pub(super) fn look_again(&mut self, job: JobId, at: Instant) {
        let Some(entry) = self.entries.get_mut(&job) else { return };
        if let Some(before) = entry.alarm.replace(at) {
            self.alarms.remove(&(before, job));
        }
        self.alarms.insert((at, job));
    }

    /// Has the job looked at then, if no time is set for it yet.
    pub(super) fn look_at_last(&mut self, job: JobId, at: Instant) {
        if self.entries.get(&job).is_some_and(|entry| entry.alarm.is_none()) {
            self.look_again(job, at);
        }
    }

    /// It is looked at for another reason.
    pub(super) fn look_no_more(&mut self, job: JobId) {
        if let Some(at) = self.entries.get_mut(&job).and_then(|entry| entry.alarm.take()) {
            self.alarms.remove(&(at, job));
        }
    }

    /// Attempts that were under way before `before`, and are not among those that the ledger knows of.
    pub(super) fn unknown_to_ledger(&self, known: &HashSet<(JobId, Attempt)>, before: Instant) -> Vec<JobId> {
        let under_way = self.entries.iter().filter(|(id, entry)| match &entry.phase {
            Phase::InFlight(at_node) => {
                at_node.since < before && !known.contains(&(**id, entry.newest.attempt))
            }
            Phase::Delayed | Phase::Waiting { .. } => false,
        });
        under_way.map(|(id, _)| *id).collect()
    }

    /// Whether the attempt of a job may have been sent before it was known here, and nothing says that its node's connection of
    /// then is over: [`TimeUp::LookForNode`] comes of it in its time. Never so of a stage, whose attempts are revoked on
    /// evidence alone.
    pub(super) fn is_to_be_looked_for(&self, job: JobId) -> bool {
        self.entries.get(&job).is_some_and(|entry| matches!(entry.due(), TimeUp::LookForNode(..)))
    }

    /// Whether the attempt is under way, and its node has not acknowledged it.
    pub(super) fn is_unacknowledged(&self, job: JobId, attempt: Attempt) -> bool {
        self.entries.get(&job).is_some_and(|entry| {
            let is_awaited = entry.newest.state == State::Dispatched && entry.newest.attempt == attempt;
            is_awaited && matches!(entry.phase, Phase::InFlight(_))
        })
    }

    /// Why the attempt of a job was lost with its node though the node has not acknowledged it, in words.
    pub(super) fn why_lost(&self, job: JobId) -> &'static str {
        match self.entries.get(&job).map(|entry| &entry.phase) {
            Some(Phase::InFlight(at_node)) if !at_node.is_connection_lost => {
                "the node's socket was closed, and the attempt may have been sent before"
            }
            _ => "the node's socket was closed after the attempt was sent",
        }
    }

    /// A job with an attempt under way, if there is one.
    pub(super) fn first_under_way(&self) -> Option<Arc<LiveJob>> {
        let mut under_way = self.entries.values().filter(|entry| matches!(entry.phase, Phase::InFlight(_)));
        under_way.next().map(|entry| Arc::clone(&entry.job))
    }

    /// A job that waits is looked at now; one whose time has not come is not.
    pub(super) fn hurry(&mut self, job: JobId, now: Instant) {
        if self.entries.get(&job).is_some_and(|entry| matches!(entry.phase, Phase::Waiting { .. })) {
            self.look_again(job, now);
        }
    }

    /// Attempts that this node has, and what it means for each that the node is gone.
    pub(super) fn attempts_on(&self, node: &NodeId) -> Vec<(JobId, Attempt, Revoked)> {
        let there = self.entries.iter().filter(|(_, entry)| match &entry.phase {
            Phase::InFlight(at_node) => at_node.placed.node == *node,
            Phase::Delayed | Phase::Waiting { .. } => false,
        });
        there.map(|(id, entry)| (*id, entry.newest.attempt, entry.lost())).collect()
    }

    /// Attempts that have been under way for a while, by their nodes.
    pub(super) fn old_attempts(&self, now: Instant) -> Vec<(JobId, Attempt, &InFlight, State)> {
        let under_way = self.entries.iter().filter_map(|(id, entry)| match &entry.phase {
            Phase::InFlight(at_node)
                if now.saturating_duration_since(at_node.since) >= self.timeouts.stranded =>
            {
                Some((*id, entry.newest.attempt, at_node, entry.newest.state))
            }
            _ => None,
        });
        under_way.collect()
    }

    /// Whether the lane has room for the job, if it may have so many times its limits.
    fn has_times_the_room(&self, times: usize, job: &LiveJob) -> bool {
        self.entries.len() - self.in_flight < times * JOBS_MAX
            && self.waiting.texts() + weight(job) <= times * JOBS_BYTES_MAX
    }

    /// Whether the instance has room for the job, if the lane may always have so many times its own bytes.
    fn has_memory(&self, times: usize, job: &LiveJob) -> bool {
        self.waiting.has_room(times, weight(job))
    }

    /// As if no job more would fit.
    #[cfg(test)]
    pub(super) fn fill_up(&mut self) {
        self.waiting.add(2 * JOBS_BYTES_MAX);
    }

    fn insert(&mut self, entry: Entry) {
        if matches!(entry.phase, Phase::InFlight(_)) {
            self.in_flight += 1;
        } else {
            self.waiting.add(weight(&entry.job));
        }
        if let Some(at) = entry.alarm {
            self.alarms.insert((at, entry.job.id));
        }
        self.entries.insert(entry.job.id, entry);
    }
}

fn run_for(job: &LiveJob) -> Duration {
    Duration::from_millis(job.spec.timeout_ms)
}

fn weight(job: &LiveJob) -> usize {
    job.spec.text_bytes()
}
