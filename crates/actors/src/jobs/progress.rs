//! How far attempts have come, as their nodes say. It is kept in the memory of whoever holds the node's socket, and lost
//! with it. Other instances ask for it, or are told as long as somebody watches there.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dashmap::{DashMap, Entry};
use domain::job::{Attempt, State};
use domain::limits::JOB_TIMEOUT_MS_MAX;
use domain::{JobId, NodeId, Resource};
use ledger::JobRecord;
use nodes::connection::Progress;

use super::Inner;
use super::limits::{PROGRESS_TOLD_EVERY, PROGRESSES_MAX};
use super::watches::{Seen, What};

/// No attempt runs for so long: what was heard before is of one that is over.
const KEPT_FOR: Duration = Duration::from_millis(2 * JOB_TIMEOUT_MS_MAX);

/// Of the nodes that one instance holds.
#[derive(Default)]
pub(super) struct Progresses {
    /// Of each job its newest attempt here.
    kept: DashMap<JobId, Kept>,
    /// What is newer than what was told of it.
    due: Mutex<Vec<JobId>>,
}

struct Kept {
    attempt: Attempt,
    node: NodeId,
    progress: Progress,
    heard: Instant,
    told: Option<Instant>,
    is_due: bool,
    /// Where it was not dispatched through this instance, once it was looked up.
    lane: Lane,
}

#[derive(Clone)]
enum Lane {
    NotSought,
    Unknown,
    Found(Resource),
}

impl Progresses {
    /// Takes it down. Whether it is to be told now: not if that was just done.
    fn heard(&self, node: &NodeId, job: JobId, attempt: Attempt, progress: Progress) -> bool {
        let now = Instant::now();
        let has_room = self.kept.len() < PROGRESSES_MAX;
        let new = Kept {
            attempt,
            node: node.clone(),
            progress,
            heard: now,
            told: Some(now),
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
        if kept.told.is_none_or(|told| now.duration_since(told) >= PROGRESS_TOLD_EVERY) {
            (kept.told, kept.is_due) = (Some(now), false);
            return true;
        }
        if !std::mem::replace(&mut kept.is_due, true) {
            self.due.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        }
        false
    }

    /// It is told with those that came too soon.
    fn put_off(&self, job: JobId) {
        let Some(mut kept) = self.kept.get_mut(&job) else { return };
        if !std::mem::replace(&mut kept.is_due, true) {
            drop(kept);
            self.due.lock().unwrap_or_else(PoisonError::into_inner).push(job);
        }
    }

    /// Whether nobody looked up yet which lane it is of, which was not dispatched through this instance.
    fn has_lane_to_seek(&self, job: JobId) -> bool {
        self.kept.get(&job).is_some_and(|kept| matches!(kept.lane, Lane::NotSought))
    }

    /// Those that are to be told by now.
    fn take_due(&self) -> Vec<JobId> {
        let now = Instant::now();
        let due = std::mem::take(&mut *self.due.lock().unwrap_or_else(PoisonError::into_inner));
        let is_due = |job: &JobId| {
            let Some(mut kept) = self.kept.get_mut(job) else { return false };
            kept.told = Some(now);
            std::mem::take(&mut kept.is_due)
        };
        due.into_iter().filter(is_due).collect()
    }

    pub(super) fn has(&self, job: JobId) -> bool {
        self.kept.contains_key(&job)
    }

    /// The attempt is over.
    pub(super) fn forget(&self, job: JobId, attempt: Attempt) {
        self.kept.remove_if(&job, |_, kept| kept.attempt <= attempt);
    }

    /// Forgets those of which nobody said that they are over.
    pub(super) fn sweep(&self) {
        self.kept.retain(|_, kept| kept.heard.elapsed() < KEPT_FOR);
    }

    fn of(&self, job: JobId, attempt: Attempt) -> Option<Progress> {
        self.kept.get(&job).filter(|kept| kept.attempt == attempt).map(|kept| kept.progress.clone())
    }
}

impl Inner {
    pub(super) fn progressed(&self, node: &NodeId, job: JobId, attempt: Attempt, progress: Progress) {
        if !self.progresses.heard(node, job, attempt, progress) || self.watches.has_nobody() {
            return;
        }
        match self.progress_seen(job) {
            // Its node has come from another instance: told when that is looked up.
            Some(Seen { lane: None, .. }) if self.progresses.has_lane_to_seek(job) => {
                self.progresses.put_off(job);
            }
            Some(seen) => self.watches.tell(|| seen),
            None => {}
        }
    }

    /// Tells what came too soon after the one before, and what was put off.
    pub(super) async fn tell_progress(&self) {
        let mut is_ledger_away = false;
        for job in self.progresses.take_due() {
            if self.watches.has_nobody() {
                continue;
            }
            let Some(mut seen) = self.progress_seen(job) else { continue };
            if seen.lane.is_none() && !is_ledger_away && self.progresses.has_lane_to_seek(job) {
                match self.live_job(job).await {
                    Ok(live) => {
                        seen.lane = live.map(|live| live.lane);
                        self.found_lane(job, seen.lane.clone().map_or(Lane::Unknown, Lane::Found));
                    }
                    Err(error) => {
                        tracing::debug!(%error, %job, "the lane of a job was not found");
                        is_ledger_away = true;
                    }
                }
            }
            self.watches.tell(|| seen);
        }
    }

    fn found_lane(&self, job: JobId, lane: Lane) {
        if let Some(mut kept) = self.progresses.kept.get_mut(&job) {
            kept.lane = lane;
        }
    }

    /// How far a job is whose node is connected here, as it is told.
    pub(super) fn progress_seen(&self, job: JobId) -> Option<Seen> {
        let (attempt, node, progress, found) = {
            let kept = self.progresses.kept.get(&job)?;
            (kept.attempt, kept.node.clone(), kept.progress.clone(), kept.lane.clone())
        };
        let lane = self.holder.lane(job, attempt).or(match found {
            Lane::Found(lane) => Some(lane),
            Lane::NotSought | Lane::Unknown => None,
        });
        Some(Seen { job, attempt, lane, node: Some(node), what: What::Progressed(progress) })
    }

    pub(super) async fn progress(&self, job: &JobRecord) -> Option<Progress> {
        if !matches!(job.state, State::Dispatched | State::Running) {
            return None;
        }
        if let Some(progress) = self.progresses.of(job.id, job.attempt) {
            return Some(progress);
        }
        let placed = job.placed.as_ref()?;
        // The node may have connected to another instance since.
        let holder = self.registry.get(&placed.node).map(|record| record.profile.holder.clone());
        let holder = holder.filter(|holder| *holder != self.me)?;
        self.watches.ask(job.id, job.attempt, &holder).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(percent: u8) -> Progress {
        Progress { percent: Some(percent), note: None }
    }

    #[test]
    fn the_newest_is_kept_and_told_not_too_often() {
        let (progresses, node) = (Progresses::default(), NodeId::parse("n").unwrap());
        let (job, attempt) = (JobId::from_u128(1), Attempt::NONE.next());
        assert!(progresses.heard(&node, job, attempt, percent(1)), "the first is told at once");
        for n in 2..9 {
            assert!(!progresses.heard(&node, job, attempt, percent(n)));
        }
        assert_eq!(progresses.of(job, attempt), Some(percent(8)));
        assert_eq!(progresses.take_due(), [job], "the last one is told later, once");
        assert!(progresses.take_due().is_empty());
        progresses.kept.get_mut(&job).unwrap().told = Instant::now().checked_sub(PROGRESS_TOLD_EVERY);
        assert!(progresses.heard(&node, job, attempt, percent(9)));
    }

    #[test]
    fn an_older_attempt_says_nothing_any_more() {
        let (progresses, node) = (Progresses::default(), NodeId::parse("n").unwrap());
        let (job, first) = (JobId::from_u128(1), Attempt::NONE.next());
        let second = first.next();
        assert!(progresses.heard(&node, job, first, percent(90)));
        assert!(progresses.heard(&node, job, second, percent(10)), "another attempt is told at once");
        assert!(!progresses.heard(&node, job, first, percent(95)));
        assert_eq!((progresses.of(job, first), progresses.of(job, second)), (None, Some(percent(10))));
        progresses.forget(job, first);
        assert!(progresses.has(job));
        progresses.forget(job, second);
        assert!(!progresses.has(job));
    }
}
