//! The write plan of a train of jobs: the writes of all its batches by the statement that writes them, and the verdict on
//! each.

use std::collections::HashSet;

use domain::job::{
    Assignment, Attempt, Change, Due, Ended, NewJob, Outcome, Requirements, Route, WaitingGroup,
};
use domain::limits::REASON_BYTES_MAX;
use domain::{JobId, Timestamp};
use serde::{Deserialize, Serialize};

use super::{JobBatch, JobKey, JobVerdict, JobWrite, JobsVerdict};
use crate::keys::Keeping;
use crate::sql::Moment;
use crate::train::Fence;

/// A submit.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    pub(crate) lane: &'a str,
    pub(crate) job: &'a NewJob,
    pub(crate) key: Option<&'a JobKey>,
    /// When it is due, if that is later than its submit.
    pub(crate) due_at: Option<Moment>,
}

/// A finished job, and the new one that retries it.
pub(crate) struct Retried {
    pub(crate) id: JobId,
    pub(crate) retried_as: JobId,
}

/// An attempt that begins.
pub(crate) struct Dispatched<'a> {
    pub(crate) id: JobId,
    pub(crate) lane: &'a str,
    pub(crate) attempt: i64,
    pub(crate) placed: &'a Assignment,
    /// The job that must be finished by the same transaction.
    pub(crate) behind: Option<JobId>,
}

/// An attempt that its node has acknowledged.
pub(crate) struct Acknowledged<'a> {
    pub(crate) id: JobId,
    pub(crate) attempt: i64,
    pub(crate) node: &'a str,
}

/// What a row must still be for its attempt to end, and how that ends. What is `None` may be anything.
pub(crate) struct AttemptGuard<'a> {
    pub(crate) id: JobId,
    pub(crate) lane: Option<&'a str>,
    pub(crate) attempt: Option<i64>,
    pub(crate) node: Option<&'a str>,
    /// Or only from DISPATCHED.
    pub(crate) also_running: bool,
    pub(crate) counts: i64,
    pub(crate) ended: &'static str,
}

/// A job that goes back to CREATED.
pub(crate) struct Requeue<'a> {
    pub(crate) guard: AttemptGuard<'a>,
    pub(crate) reason: String,
    pub(crate) due_at: Option<Moment>,
}

/// A job that is finished.
pub(crate) struct Finish<'a> {
    pub(crate) guard: AttemptGuard<'a>,
    pub(crate) outcome: Outcome,
    pub(crate) dead: bool,
    pub(crate) result: Option<&'a str>,
    pub(crate) error: Option<String>,
    /// Its node reported the end itself, so that its slot is free.
    pub(crate) is_free: bool,
}

/// An attempt that has no slot any more.
pub(crate) struct Released {
    pub(crate) id: JobId,
    pub(crate) attempt: i64,
}

/// One list per statement.
#[derive(Default)]
pub(crate) struct WritePlan<'a> {
    pub(crate) new: Vec<New<'a>>,
    pub(crate) dispatched: Vec<Dispatched<'a>>,
    pub(crate) requeued: Vec<Requeue<'a>>,
    pub(crate) acknowledged: Vec<Acknowledged<'a>>,
    pub(crate) finished: Vec<Finish<'a>>,
    pub(crate) released: Vec<Released>,
}

/// The batches of a train of jobs that the fence lets pass.
pub(crate) struct Admitted<'a> {
    batches: &'a [JobBatch],
    fences: Vec<Fence>,
    /// Those whose write is done.
    pub(crate) written: HashSet<JobId>,
    /// Submits that were to retry once what was retried before.
    pub(crate) already_retried: HashSet<JobId>,
    /// Submits whose keys were taken.
    pub(crate) key_taken: HashSet<JobId>,
}

impl<'a> Admitted<'a> {
    pub(crate) fn of(batches: &'a [JobBatch], fences: Vec<Fence>) -> Self {
        let (written, already_retried, key_taken) = Default::default();
        Self { batches, fences, written, already_retried, key_taken }
    }

    fn writes(&self) -> impl Iterator<Item = (&'a JobBatch, &'a JobWrite)> {
        let batches = self.batches.iter().zip(&self.fences).filter(|(_, fence)| **fence == Fence::Holds);
        batches.flat_map(|(batch, _)| batch.writes.iter().map(move |write| (batch, write)))
    }

    /// The jobs whose rows are to be locked, sorted.
    pub(crate) fn ids(&self) -> Vec<JobId> {
        let locks = |write: &JobWrite| !matches!(write.change, Change::Submit(_) | Change::Release { .. });
        let ids = self.writes().filter(|(_, write)| locks(write));
        let mut ids: Vec<_> = ids.map(|(_, write)| write.change.job()).collect();
        ids.sort_unstable();
        ids
    }

    /// All writes of batches that go at once, as [`JobBatch::goes_at_once`] and [`JobBatch::ends_attempts`] say:
    /// nothing in them depends on the time, nor on what is there.
    pub(crate) fn at_once(&self) -> WritePlan<'a> {
        self.plan(Timestamp::from_micros(0), |_| true)
    }

    /// All writes that may still be done at that time, now that it is known which unfinished jobs are there, each list in
    /// the order of its jobs. The rows of the others must not be touched: they are not locked.
    pub(crate) fn plan(&self, at: Timestamp, is_there: impl Fn(JobId) -> bool) -> WritePlan<'a> {
        let mut plan = WritePlan::default();
        for (batch, write) in self.writes() {
            let lane = batch.lane.as_ref().map_or("", |lane| lane.id.as_str());
            match &write.change {
                Change::Submit(job) => {
                    plan.new.push(New { lane, job, key: write.key.as_ref(), due_at: due_at(job.due, at) });
                }
                Change::Release { job, attempt } => {
                    plan.released.push(Released { id: *job, attempt: i64::from(attempt.get()) });
                }
                change if is_there(change.job()) => plan.push(change, lane, at),
                _ => {}
            }
        }
        plan.new.sort_unstable_by_key(|new| new.job.id);
        plan.dispatched.sort_unstable_by_key(|dispatched| dispatched.id);
        plan.finished.sort_unstable_by_key(|finish| finish.guard.id);
        plan.released.sort_unstable_by_key(|released| released.id);
        plan
    }

    /// The fence has looked by now.
    pub(crate) fn judged(&mut self, fences: Vec<Fence>) {
        self.fences = fences;
    }

    /// The verdict on every batch.
    pub(crate) fn verdicts(&self, at: Timestamp) -> Vec<JobsVerdict> {
        let verdict = |write: &JobWrite| {
            let job = write.change.job();
            if self.written.contains(&job) {
                JobVerdict::Written
            } else if self.key_taken.contains(&job) {
                JobVerdict::KeyTaken
            } else if self.already_retried.contains(&job) {
                JobVerdict::AlreadyRetried
            } else {
                JobVerdict::Stale
            }
        };
        let batches = self.batches.iter().zip(&self.fences);
        let verdicts = batches.map(|(batch, fence)| match fence {
            Fence::Holds => JobsVerdict::Written { at, jobs: batch.writes.iter().map(verdict).collect() },
            Fence::Again => JobsVerdict::Again,
            Fence::Fenced => JobsVerdict::Fenced,
        });
        verdicts.collect()
    }
}

impl<'a> WritePlan<'a> {
    /// Whether any of the new jobs retries another.
    pub(crate) fn retries_any(&self) -> bool {
        self.new.iter().any(|new| new.job.retry.is_some())
    }

    /// The finished jobs whose rows are written, sorted: those that are retried, and those whose slots are released.
    pub(crate) fn finished_rows(&self) -> Vec<JobId> {
        let retried = self.new.iter().filter_map(|new| Some(new.job.retry?.of));
        let mut ids: Vec<_> = retried.chain(self.released.iter().map(|released| released.id)).collect();
        ids.sort_unstable();
        ids
    }

    /// Drops the new jobs that were to retry once what was retried before, or is gone, and answers them.
    pub(crate) fn drop_retried(&mut self, not_retried: &HashSet<JobId>) -> HashSet<JobId> {
        let stays =
            |new: &New<'_>| new.job.retry.is_none_or(|retry| !retry.once || not_retried.contains(&retry.of));
        let dropped = self.new.iter().filter(|new| !stays(new)).map(|new| new.job.id).collect();
        self.new.retain(stays);
        dropped
    }

    /// What the new jobs retry, in the order of the retried ones.
    pub(crate) fn retries(&self) -> Vec<Retried> {
        let retried = |new: &New<'_>| Some(Retried { id: new.job.retry?.of, retried_as: new.job.id });
        let mut retries: Vec<_> = self.new.iter().filter_map(retried).collect();
        retries.sort_unstable_by_key(|retry| retry.id);
        retries
    }

    /// The keys of the new jobs, with the answer that each is to be given again.
    pub(crate) fn keys(&self) -> Vec<Keeping<'a>> {
        let keys = self.new.iter().filter_map(|new| Some((new, new.key?)));
        let keep = |(new, key): (&New<'_>, &'a JobKey)| Keeping {
            scope: &key.scope,
            body_hash: &key.body_hash,
            answer: KeptSubmit::text(new.job, new.lane),
        };
        keys.map(keep).collect()
    }

    /// Drops the new jobs whose key was taken, and answers them. `is_new` is of [`Self::keys`], in their order.
    pub(crate) fn drop_taken(&mut self, is_new: &[bool]) -> HashSet<JobId> {
        let (mut is_new, mut taken) = (is_new.iter(), HashSet::new());
        self.new.retain(|new| {
            let stays = new.key.is_none() || is_new.next().is_some_and(|new| *new);
            if !stays {
                taken.insert(new.job.id);
            }
            stays
        });
        taken
    }

    /// A change of a job that is there.
    fn push(&mut self, change: &'a Change, lane: &'a str, at: Timestamp) {
        let due = |in_ms: u64| (in_ms > 0).then(|| Moment(at.plus_ms(in_ms)));
        let number = |attempt: Attempt| i64::from(attempt.get());
        match change {
            Change::Submit(_) | Change::Release { .. } => unreachable!("sorted before"),
            Change::Dispatch { job, attempt, placed, behind } => {
                let (id, attempt, behind) = (*job, number(*attempt), *behind);
                self.dispatched.push(Dispatched { id, lane, attempt, placed, behind });
            }
            Change::Revoke { job, attempt, why, reason, due_in_ms } => {
                let guard = AttemptGuard {
                    id: *job,
                    lane: Some(lane),
                    attempt: Some(number(*attempt)),
                    node: None,
                    also_running: why.reaches_running(),
                    counts: i64::from(why.counts()),
                    ended: Ended::Revoked(*why).as_str(),
                };
                self.requeued.push(Requeue { guard, reason: kept(reason), due_at: due(*due_in_ms) });
            }
            Change::End { job, outcome, dead, attempt, reason } => {
                let guard = AttemptGuard {
                    id: *job,
                    lane: Some(lane),
                    attempt: attempt.map(|(attempt, _)| number(attempt)),
                    node: None,
                    also_running: attempt.is_none_or(|(_, why)| why.reaches_running()),
                    counts: attempt.map_or(0, |(_, why)| i64::from(why.counts())),
                    ended: attempt.map_or(Ended::Cancelled, |(_, why)| Ended::Revoked(why)).as_str(),
                };
                let error = (!reason.is_empty()).then(|| kept(reason));
                let (outcome, dead) = (*outcome, *dead);
                self.finished.push(Finish { guard, outcome, dead, result: None, error, is_free: false });
            }
            Change::Run { job, attempt, node } => {
                let (attempt, node) = (number(*attempt), node.as_str());
                self.acknowledged.push(Acknowledged { id: *job, attempt, node });
            }
            Change::Complete { job, attempt, node, output } => {
                let ended = Ended::Succeeded;
                self.finished.push(Finish {
                    guard: AttemptGuard::reported((*job, number(*attempt)), lane, node.as_str(), 0, ended),
                    outcome: Outcome::Succeeded,
                    dead: false,
                    result: Some(output),
                    error: None,
                    is_free: true,
                });
            }
            Change::Fail { job, attempt, node, ended, error, due_in_ms, dead } => {
                let guard = AttemptGuard::reported((*job, number(*attempt)), lane, node.as_str(), 1, *ended);
                match due_in_ms {
                    Some(ms) => self.requeued.push(Requeue { guard, reason: kept(error), due_at: due(*ms) }),
                    None => self.finished.push(Finish {
                        guard,
                        outcome: Outcome::Failed,
                        dead: *dead,
                        result: None,
                        error: Some(kept(error)),
                        is_free: true,
                    }),
                }
            }
        }
    }
}

impl<'a> AttemptGuard<'a> {
    /// The guard of an end that the node itself reported, to the lane's owner or to the instance that holds the node's socket; or
    /// of one that this instance has found instead of the owner.
    fn reported(of: (JobId, i64), lane: &'a str, node: &'a str, counts: i64, ended: Ended) -> Self {
        let ((id, attempt), lane) = (of, Some(lane).filter(|lane| !lane.is_empty()));
        let (attempt, node) = (Some(attempt), Some(node));
        Self { id, lane, attempt, node, also_running: true, counts, ended: ended.as_str() }
    }
}

/// When a job is due, if that is later than its submit at that time.
fn due_at(due: Due, at: Timestamp) -> Option<Moment> {
    let due = match due {
        Due::Now => return None,
        Due::InMs(ms) => at.plus_ms(ms),
        Due::At(due) => due,
    };
    (due > at).then_some(Moment(due))
}

/// A group as the index of waiting jobs has it. No name in it has a slash.
pub(crate) fn group_key(group: &WaitingGroup) -> String {
    let route = group.needs.route.as_ref();
    let route = route.map_or_else(String::new, |Route { source, target }| format!("{source}:{target}"));
    format!("{}/{}/{}/{route}", group.pool_text(), group.tenant_text(), requires(&group.needs))
}

/// Labels that are required, as they are kept.
pub(crate) fn requires(needs: &Requirements) -> String {
    needs.requires.iter().map(domain::Label::as_str).collect::<Vec<_>>().join(" ")
}

/// The answer to a submit as it is kept under its key, which knows the time: JSON text.
#[derive(Serialize, Deserialize)]
pub(crate) struct KeptSubmit {
    pub(crate) job: String,
    pub(crate) lane: String,
    /// Missing in answers of the time before sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seq: Option<u64>,
}

impl KeptSubmit {
    pub(crate) fn text(new: &NewJob, lane: &str) -> String {
        let (job, lane) = (new.id.to_string(), lane.to_owned());
        let kept = Self { job, lane, seq: new.seq };
        serde_json::to_string(&kept).expect("numbers and texts always serialise")
    }
}

/// A reason as it is kept: no longer than it may be, and without what the tables cannot hold.
fn kept(reason: &str) -> String {
    let end = reason.floor_char_boundary(REASON_BYTES_MAX);
    reason[..end].replace('\0', " ")
}
