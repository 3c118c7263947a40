//! The groups of a lane's jobs that wait: which of their jobs are in memory, and which group is read next.
//!
//! Of one group the lane holds at most [`GROUP_JOBS_MAX`] jobs, or [`GROUP_JOBS_ALONE_MAX`] while less than half of the room is
//! taken, and [`GROUP_BYTES_MAX`]; of jobs of a higher priority than the rest as much again. The first of a group needs no
//! room, up to as many and as much again as the lane may hold.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::{Entry, LaneJobs, Phase, weight};
use crate::JobId;
use crate::job::{LiveJob, Priority, PromotedJob, Spec, WaitingGroup};
use crate::lane::limits::{
    GROUP_BYTES_MAX, GROUP_JOBS_ALONE_MAX, GROUP_JOBS_LOW, GROUP_JOBS_MAX, JOB_BYTES, JOBS_BYTES_MAX,
    JOBS_MAX,
};
use crate::limits::{PAYLOAD_BYTES_MAX, PRIORITY_MAX};

/// The jobs of one tenant that need the same and wait: which of them are in memory.
#[derive(Default)]
pub(super) struct Group {
    inside: usize,
    bytes: usize,
    /// So many were inside when the ledger had no more that would have fitted: until there are fewer, it is not asked.
    enough: Option<usize>,
    /// Those left in the ledger have this priority at most; `None` when all are in memory. By [`Self::set_outside`].
    outside: Option<Priority>,
    /// One that was left in the ledger has a higher priority than those that were there before it, and perhaps than some inside.
    is_overtaken: bool,
    /// No more than its first job fitted when it was read last, if that did. Where the instance's memory was full: not even that,
    /// or, where other groups had most of the lane's, not enough for it not to be low.
    has_no_room: bool,
    /// The number of the last page of it that was asked for; 0 before the first.
    asked: u64,
}

impl Group {
    /// Whether few of many are in memory, and the ledger may have more that fit.
    fn is_low(&self) -> bool {
        let is_asked = self.enough.is_none_or(|enough| self.inside < enough);
        self.outside.is_some() && self.inside < GROUP_JOBS_LOW && is_asked
    }

    /// What is left in the ledger from here on; `groups` counts the groups that have something there.
    fn set_outside(&mut self, outside: Option<Priority>, groups: &mut usize) {
        *groups += usize::from(outside.is_some());
        *groups -= usize::from(self.outside.is_some());
        self.outside = outside;
    }

    /// What its jobs take in memory.
    const fn memory(&self) -> usize {
        self.bytes + self.inside * JOB_BYTES
    }
}

/// A group that has few jobs in memory and more in the ledger.
pub(in crate::lane) struct GroupToFill {
    pub(in crate::lane) group: WaitingGroup,
    /// How many of it are in memory.
    pub(in crate::lane) inside: usize,
}

/// What became of a job that was promoted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::lane) enum Promoted {
    /// It waits already.
    Inside,
    /// It was not due yet by this process's clock.
    ToEnqueue,
    /// It is to be read by itself.
    ToLookUp,
    /// It is read with its group.
    Outside,
}

/// What was read of a group.
pub(in crate::lane) struct ReadJobs {
    /// The first of those that wait, in their order.
    pub(in crate::lane) jobs: Vec<LiveJob>,
    /// Whether no others waited.
    pub(in crate::lane) is_all: bool,
    /// Whether some that were read are left out, since they do not wait any more.
    pub(in crate::lane) is_outdated: bool,
    /// The highest priority of those that came since, and are in the ledger alone.
    pub(in crate::lane) left: Option<Priority>,
}

impl LaneJobs {
    /// A job that waits for a slot from now on, having been in the ledger without a time. Whether it is in memory;
    /// if not, it is one of those outside.
    pub(in crate::lane) fn wait_in_group(&mut self, job: Arc<LiveJob>) -> bool {
        self.forget(job.id);
        let (group, priority) = (group_of(&job.spec), job.spec.priority);
        let fits = self.fits_group(&group, &job);
        let known = self.groups.entry(group).or_default();
        let is_higher = known.outside.is_none_or(|outside| priority > outside);
        if !fits || !is_higher {
            known.set_outside(known.outside.max(Some(priority)), &mut self.groups_outside);
            known.is_overtaken |= is_higher;
            return false;
        }
        self.insert_waiting(job);
        true
    }

    /// What was read of a group. Answers the jobs that are new here.
    pub(in crate::lane) fn fill(&mut self, group: &WaitingGroup, read: ReadJobs) -> Vec<JobId> {
        let ReadJobs { jobs, is_all, is_outdated, left } = read;
        let mut last = None;
        let mut new = Vec::new();
        let mut is_full = false;
        for job in jobs {
            last = Some(job.spec.priority);
            if self.entries.contains_key(&job.id) {
                continue;
            }
            if !self.fits_group(group, &job) {
                is_full = true;
                break;
            }
            new.push(job.id);
            self.insert_waiting(Arc::new(job));
        }
        // Where the instance's memory is full, those that have most of the lane's own make room for each group that is low, and
        // others only for one that has nothing there.
        let few = match self.is_memory_full() {
            true if self.others_hold_most(group) => GROUP_JOBS_LOW - 1,
            true => 0,
            false => 1,
        };
        let known = self.groups.entry(group.clone()).or_default();
        let behind = if is_all && !is_full { None } else { last.or(known.outside) };
        known.set_outside(behind.max(left), &mut self.groups_outside);
        let is_enough = (new.is_empty() && !is_outdated && left.is_none()) || is_full;
        known.enough = is_enough.then_some(known.inside);
        known.has_no_room = is_full && known.inside <= few;
        // What is next outside may be before some that are inside.
        known.is_overtaken |= is_full;
        if known.inside == 0 && known.outside.is_none() {
            self.groups.remove(group);
        }
        new
    }

    /// The group to be read next: of those that are low one of which no job is known, or one for which others have made room,
    /// and then the one that was read longest ago.
    pub(in crate::lane) fn group_to_fill(&self) -> Option<GroupToFill> {
        if !self.has_more_outside() {
            return None;
        }
        let low = self.groups.iter().filter(|(_, group)| group.is_low());
        let next = low.min_by_key(|(_, group)| (group.inside > 0 && !group.has_no_room, group.asked));
        next.map(|(name, group)| GroupToFill { group: name.clone(), inside: group.inside })
    }

    /// This page of a group is asked for.
    pub(in crate::lane) fn asked_for(&mut self, group: &WaitingGroup, page: u64) {
        if let Some(known) = self.groups.get_mut(group) {
            known.asked = page;
        }
    }

    /// Whether there is a group that is to be read, of which no job is known, and whose first job may fit.
    pub(in crate::lane) fn has_unknown_group(&self) -> bool {
        let is_unknown = |group: &Group| group.inside == 0 && !group.has_no_room && group.is_low();
        self.has_more_outside() && self.groups.values().any(is_unknown)
    }

    /// Whether there are jobs that wait in the ledger alone.
    pub(in crate::lane) const fn has_more_outside(&self) -> bool {
        self.groups_outside > 0
    }

    /// The ledger is asked again about all groups: what did not fit may now. While the instance's memory is full, groups with
    /// jobs there wait until one of these has left.
    pub(in crate::lane) fn retry_full_groups(&mut self) {
        let is_full = self.is_memory_full();
        let may_fit = self.groups.values_mut().filter(|group| !is_full || group.inside == 0);
        may_fit.for_each(|group| group.enough = None);
    }

    /// There is a group of which nothing is known yet but that it has jobs.
    pub(in crate::lane) fn group_exists(&mut self, group: WaitingGroup) {
        let known = self.groups.entry(group).or_default();
        if known.inside == 0 && known.outside.is_none() {
            // Of whatever priority.
            known.set_outside(Priority::new(i64::from(PRIORITY_MAX)).ok(), &mut self.groups_outside);
        }
    }

    /// The ledger may have more jobs of a group than are known here, of whatever priority.
    pub(in crate::lane) fn group_may_have_more(&mut self, group: WaitingGroup) {
        let known = self.groups.entry(group).or_default();
        known.set_outside(Priority::new(i64::from(PRIORITY_MAX)).ok(), &mut self.groups_outside);
        known.enough = None;
    }

    /// A delayed job waits with its group from now on. One that is in memory keeps its place; whether it was not due yet.
    /// Of another one, whether it must be looked up, since it is to be served before some that are in memory, or since its
    /// attempt is under way as far as is known.
    pub(in crate::lane) fn promote(&mut self, promoted: PromotedJob) -> Promoted {
        let PromotedJob { job, priority, group } = promoted;
        match self.entries.get(&job) {
            // Its attempt has failed, which is not heard of yet: where it has no room in memory, no delay would lead to it then.
            Some(Entry { phase: Phase::InFlight(_), .. }) => return Promoted::ToLookUp,
            Some(entry) if entry.is_in_group => return Promoted::Inside,
            _ => {}
        }
        let known = self.groups.entry(group).or_default();
        let Some(entry) = self.entries.get_mut(&job) else {
            if known.inside >= GROUP_JOBS_LOW && known.outside.is_none_or(|outside| priority > outside) {
                return Promoted::ToLookUp;
            }
            known.set_outside(known.outside.max(Some(priority)), &mut self.groups_outside);
            known.enough = None;
            return Promoted::Outside;
        };
        entry.is_in_group = true;
        self.in_groups += 1;
        known.inside += 1;
        known.bytes += weight(&entry.job);
        if matches!(entry.phase, Phase::Waiting { .. }) {
            return Promoted::Inside;
        }
        entry.phase = Phase::Waiting { queued_at: None };
        self.look_no_more(job);
        Promoted::ToEnqueue
    }

    /// Where a group has no room, the largest others give up half of the room in memory, or of what the lane has there while
    /// the instance's memory is full, and are read again after it, as if they had been asked for by this page. So do jobs that
    /// are before others of their group which have a higher priority and are in the ledger alone. Answers the jobs that left.
    pub(in crate::lane) fn make_room(&mut self, page: u64, may_leave: impl Fn(JobId) -> bool) -> Vec<JobId> {
        let overtaken = self.groups.iter_mut().filter_map(|(name, group)| {
            let is_overtaken = std::mem::take(&mut group.is_overtaken);
            group.outside.filter(|_| is_overtaken).map(|outside| (name.clone(), outside))
        });
        let overtaken: HashMap<_, _> = overtaken.collect();
        let largest = match self.groups.values().any(|group| group.has_no_room && group.outside.is_some()) {
            true => self.largest_groups(),
            false => HashSet::new(),
        };
        if largest.is_empty() && overtaken.is_empty() {
            return Vec::new();
        }
        let waiting = self.entries.iter().filter(|(job, entry)| entry.is_in_group && may_leave(**job));
        let gone: Vec<_> = waiting
            .map(|(job, entry)| (*job, entry.job.spec.priority, group_of(&entry.job.spec)))
            .filter(|(_, priority, group)| {
                largest.contains(group) || overtaken.get(group).is_some_and(|outside| priority < outside)
            })
            .collect();
        let left = gone.into_iter().map(|(job, priority, group)| {
            let known = self.groups.entry(group).or_default();
            known.set_outside(known.outside.max(Some(priority)), &mut self.groups_outside);
            (known.enough, known.asked) = (None, page);
            self.forget(job);
            job
        });
        left.collect()
    }

    /// The largest groups that together have half of the room.
    fn largest_groups(&self) -> HashSet<WaitingGroup> {
        let is_full = self.is_memory_full();
        let held = |group: &Group| if is_full { group.memory() } else { group.bytes };
        let mut largest: Vec<_> =
            self.groups.iter().filter(|(_, group)| group.inside > 1 || group.bytes > 0).collect();
        largest.sort_by_key(|(_, group)| std::cmp::Reverse((held(group), group.inside)));
        let room = if is_full { JOBS_BYTES_MAX.min(self.waiting.bytes()) } else { JOBS_BYTES_MAX };
        let (mut jobs, mut bytes) = (0, 0);
        largest
            .into_iter()
            .take_while(|(_, group)| {
                let is_enough = jobs >= JOBS_MAX / 2 || bytes >= room.div_ceil(2);
                (jobs, bytes) = (jobs + group.inside, bytes + held(group));
                !is_enough
            })
            .map(|(name, _)| name.clone())
            .collect()
    }

    /// Whether the instance may have no room for the next job.
    fn is_memory_full(&self) -> bool {
        !self.waiting.has_room(1, PAYLOAD_BYTES_MAX)
    }

    /// Whether other groups have more than half of the bytes that the lane may always have.
    fn others_hold_most(&self, group: &WaitingGroup) -> bool {
        let others = self.groups.iter().filter(|(name, _)| *name != group);
        let others: usize = others.map(|(_, other)| other.memory()).sum();
        2 * others > self.waiting.own()
    }

    /// The first of a group fits where others do not: none is kept from its turn by them. The first of all groups fits, however
    /// full the instance's memory is.
    fn fits_group(&self, group: &WaitingGroup, job: &LiveJob) -> bool {
        let none = Group::default();
        let known = self.groups.get(group).unwrap_or(&none);
        // While there is room for everybody, more than its share saves reading them again.
        let share = match self.entries.len() - self.in_flight < JOBS_MAX / 2 {
            true => GROUP_JOBS_ALONE_MAX,
            false => GROUP_JOBS_MAX,
        };
        // Those of a higher priority than the ones outside have as much again: they must not wait behind those inside.
        let shares = 1 + usize::from(known.outside.is_some_and(|outside| job.spec.priority > outside));
        let has_share =
            known.inside < shares * share && known.bytes + weight(job) <= shares * GROUP_BYTES_MAX;
        let is_first = known.inside == 0 && (self.in_groups == 0 || self.has_memory(2, job));
        (is_first && self.has_times_the_room(2, job))
            || (has_share && self.has_times_the_room(1, job) && self.has_memory(shares, job))
    }

    /// Whether the groups are counted right that have jobs in the ledger alone.
    #[cfg(test)]
    pub(in crate::lane) fn counts_groups_right(&self) -> bool {
        self.groups.values().filter(|group| group.outside.is_some()).count() == self.groups_outside
    }

    fn insert_waiting(&mut self, job: Arc<LiveJob>) {
        let known = self.groups.entry(group_of(&job.spec)).or_default();
        known.inside += 1;
        known.bytes += weight(&job);
        self.in_groups += 1;
        let (newest, avoid) = (job.newest, job.last_node.clone());
        self.insert(Entry {
            job,
            newest,
            phase: Phase::Waiting { queued_at: None },
            avoid,
            is_in_group: true,
            alarm: None,
        });
    }

    /// A job that counted among those of its group has left memory.
    pub(super) fn leave_group(&mut self, job: &LiveJob) {
        self.in_groups -= 1;
        let group = group_of(&job.spec);
        if let Some(known) = self.groups.get_mut(&group) {
            known.inside -= 1;
            known.bytes -= weight(job);
            if known.inside == 0 && known.outside.is_none() {
                self.groups.remove(&group);
            }
        }
    }
}

pub(in crate::lane) fn group_of(spec: &Spec) -> WaitingGroup {
    WaitingGroup { tenant: spec.tenant.clone(), needs: spec.needs.clone() }
}
