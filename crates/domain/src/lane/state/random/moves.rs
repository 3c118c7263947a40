//! What moves jobs that wait: from one lane to another, and from those that are delayed to the others.

use super::World;
use crate::job::PromotedJob;
use crate::lane::jobs::group_of;
use crate::lane::messages::CommitFailure;

impl World {
    /// The ledger moves jobs to another lane, or does not, or nobody knows. They are over for this lane.
    pub(super) fn transfer(&mut self, may_fail: bool) {
        let Some(jobs) = self.leaving.take() else { return };
        let fails = may_fail && self.chance(20);
        let mut moved = Vec::new();
        if !fails || self.chance(50) {
            for id in jobs {
                let row = self.rows.get_mut(&id).unwrap();
                let waits = !row.is_finished && row.live.placed.is_none();
                if waits && row.due.is_none_or(|due| due <= self.now) {
                    row.is_finished = true;
                    moved.push(id);
                }
            }
        }
        let answer = if fails { Err(CommitFailure::Unknown) } else { Ok(moved) };
        let effects = self.lane.transferred(answer, self.now);
        self.take(effects);
    }

    /// Jobs that are due wait from now on, or do not, or nobody knows.
    pub(super) fn promote(&mut self, may_fail: bool) {
        if !std::mem::take(&mut self.is_promoting) {
            return;
        }
        let fails = may_fail && self.chance(20);
        let mut promoted = Vec::new();
        if !fails || self.chance(50) {
            let now = self.now;
            let waits = self.rows.values_mut().filter(|row| !row.is_finished && row.live.placed.is_none());
            for row in waits.filter(|row| row.due.is_some_and(|due| due <= now)) {
                (row.due, row.live.due_at) = (None, None);
                let (job, priority) = (row.live.id, row.live.spec.priority);
                promoted.push(PromotedJob { job, priority, group: group_of(&row.live.spec) });
            }
        }
        let answer = if fails { Err(CommitFailure::Unknown) } else { Ok(promoted) };
        let effects = self.lane.promoted(answer, self.now);
        self.take(effects);
    }
}
