//! How far attempts have come, as their nodes say: kept in the memory of the instance that holds the node's socket, and lost
//! with it. Of each job the newest attempt is kept, and when it was sent last.

use std::time::{Duration, Instant};

use dashmap::{DashMap, Entry};
use domain::job::Attempt;
use domain::limits::JOB_TIMEOUT_MS_MAX;
use domain::{JobId, LaneId, NodeId};
use nodes::connection::Progress;
use parking_lot::Mutex;

use super::limits::{PROGRESS_SENT_EVERY, PROGRESSES_MAX};

/// Longer than any attempt may run: older progress belongs to an attempt that has ended.
const KEPT_FOR: Duration = Duration::from_millis(2 * JOB_TIMEOUT_MS_MAX);

/// The progress of attempts on the nodes that one instance holds.
#[derive(Default)]
pub(super) struct ProgressStore {
    /// The newest attempt here of each job.
    kept: DashMap<JobId, Kept>,
    /// Progress that is newer than the last one that was sent.
    due: Mutex<Vec<JobId>>,
}

struct Kept {
    attempt: Attempt,
    node: NodeId,
    progress: Progress,
    heard: Instant,
    sent_at: Option<Instant>,
    is_due: bool,
    /// Where it was not dispatched through this instance, once it was looked up.
    lane: Lane,
}

/// The lane of a job with progress.
#[derive(Clone)]
pub(super) enum Lane {
    /// Nobody has looked it up.
    NotSought,
    /// It was looked up, and the job is not there.
    Unknown,
    /// It was looked up.
    Found(LaneId),
}

/// What is kept of a job.
pub(super) struct Known {
    pub(super) attempt: Attempt,
    pub(super) node: NodeId,
    pub(super) progress: Progress,
    pub(super) lane: Lane,
}

impl ProgressStore {
    /// Takes it down. Whether it is to be sent now: not if one was just sent.
    pub(super) fn heard(&self, node: &NodeId, job: JobId, attempt: Attempt, progress: Progress) -> bool {
        let now = Instant::now();
        let has_room = self.kept.len() < PROGRESSES_MAX;
        let new = Kept {
            attempt,
            node: node.clone(),
            progress,
            heard: now,
            sent_at: Some(now),
            is_due: false,
            lane: Lane::NotSought,
        };
        let mut kept = match self.kept.entry(job) {
            Entry::Vacant(vacant) => {
                if has_room {
                    vacant.insert(new);
                }
                return has_room;
            }
            Entry::Occupied(kept) if kept.get().attempt > attempt => return false,
            Entry::Occupied(mut kept) if kept.get().attempt < attempt => {
                kept.insert(new);
                return true;
            }
            Entry::Occupied(kept) => kept,
        };
        let kept = kept.get_mut();
        (kept.progress, kept.node, kept.heard) = (new.progress, new.node, now);
        if kept.sent_at.is_none_or(|sent_at| now.duration_since(sent_at) >= PROGRESS_SENT_EVERY) {
            (kept.sent_at, kept.is_due) = (Some(now), false);
            return true;
        }
        if !std::mem::replace(&mut kept.is_due, true) {
            self.due.lock().push(job);
        }
        false
    }

    /// It is sent with those that came too soon.
    pub(super) fn put_off(&self, job: JobId) {
        let Some(mut kept) = self.kept.get_mut(&job) else { return };
        if !std::mem::replace(&mut kept.is_due, true) {
            drop(kept);
            self.due.lock().push(job);
        }
    }

    /// Whether nobody looked up yet which lane it is of, which was not dispatched through this instance.
    pub(super) fn has_lane_to_seek(&self, job: JobId) -> bool {
        self.kept.get(&job).is_some_and(|kept| matches!(kept.lane, Lane::NotSought))
    }

    /// The jobs whose progress is to be sent by now.
    pub(super) fn take_due(&self) -> Vec<JobId> {
        let now = Instant::now();
        let due = std::mem::take(&mut *self.due.lock());
        let is_due = |job: &JobId| {
            let Some(mut kept) = self.kept.get_mut(job) else { return false };
            kept.sent_at = Some(now);
            std::mem::take(&mut kept.is_due)
        };
        due.into_iter().filter(is_due).collect()
    }

    /// The attempt is over.
    pub(super) fn forget(&self, job: JobId, attempt: Attempt) {
        self.kept.remove_if(&job, |_, kept| kept.attempt <= attempt);
    }

    /// Forgets attempts whose end was never reported.
    pub(super) fn sweep(&self) {
        self.kept.retain(|_, kept| kept.heard.elapsed() < KEPT_FOR);
    }

    /// What is kept of an attempt on this node.
    pub(super) fn of(&self, job: JobId, attempt: Attempt, node: &NodeId) -> Option<Progress> {
        let kept = self.kept.get(&job).filter(|kept| kept.attempt == attempt && kept.node == *node)?;
        Some(kept.progress.clone())
    }

    /// A node spoke of an attempt that is not its own.
    pub(super) fn forget_of(&self, job: JobId, node: &NodeId) {
        self.kept.remove_if(&job, |_, kept| kept.node == *node);
    }

    /// What is kept of a job.
    pub(super) fn known(&self, job: JobId) -> Option<Known> {
        let kept = self.kept.get(&job)?;
        let (node, progress, lane) = (kept.node.clone(), kept.progress.clone(), kept.lane.clone());
        Some(Known { attempt: kept.attempt, node, progress, lane })
    }

    /// The job's lane was looked up.
    pub(super) fn found_lane(&self, job: JobId, lane: Lane) {
        if let Some(mut kept) = self.kept.get_mut(&job) {
            kept.lane = lane;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(percent: u8) -> Progress {
        Progress { percent: nodes::connection::Percent::new(f64::from(percent)), note: None }
    }

    #[test]
    fn the_newest_is_kept_and_told_not_too_often() {
        let (store, node) = (ProgressStore::default(), NodeId::parse("n").unwrap());
        let (job, attempt) = (JobId::from_u128(1), Attempt::NONE.next());
        assert!(store.heard(&node, job, attempt, percent(1)), "the first is sent at once");
        for n in 2..9 {
            assert!(!store.heard(&node, job, attempt, percent(n)));
        }
        assert_eq!(store.of(job, attempt, &node), Some(percent(8)));
        let other = NodeId::parse("m").unwrap();
        assert_eq!(store.of(job, attempt, &other), None, "it is not its attempt");
        store.forget_of(job, &other);
        assert_eq!(store.take_due(), [job], "the last one is sent later, once");
        assert!(store.take_due().is_empty());
        store.kept.get_mut(&job).unwrap().sent_at = Instant::now().checked_sub(PROGRESS_SENT_EVERY);
        assert!(store.heard(&node, job, attempt, percent(9)));
    }

    #[test]
    fn an_older_attempt_says_nothing_any_more() {
        let (store, node) = (ProgressStore::default(), NodeId::parse("n").unwrap());
        let (job, first) = (JobId::from_u128(1), Attempt::NONE.next());
        let second = first.next();
        assert!(store.heard(&node, job, first, percent(90)));
        assert!(store.heard(&node, job, second, percent(10)), "another attempt is sent at once");
        assert!(!store.heard(&node, job, first, percent(95)));
        assert_eq!((store.of(job, first, &node), store.of(job, second, &node)), (None, Some(percent(10))));
        store.forget(job, first);
        assert!(store.known(job).is_some());
        store.forget(job, second);
        assert!(store.known(job).is_none());
    }
}
