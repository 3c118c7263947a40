//! Transfers: jobs that wait for a slot are given to an instance whose nodes can take them, and a session's lane is passed on
//! as a whole. While jobs are transferred nothing else is under way, so that no job is written and transferred at once.

use std::time::Instant;

use crate::lane::messages::{Callers, CommitFailure, Effect};
use crate::{InstanceId, JobId};

use super::LaneState;

/// What is to leave the lane.
#[derive(Default)]
pub(super) struct Transfers {
    wanted: Vec<(JobId, InstanceId)>,
    are_under_way: bool,
    /// The instance that the session's lease is passed on to when the owner ends.
    pass_to: Option<InstanceId>,
    /// Jobs that were transferred to this lane, or one that was looked up, could not be read yet.
    pub(super) are_unread: bool,
}

impl Transfers {
    /// These jobs are to be transferred, unless others are still to be: then the instance sends them again.
    pub(super) fn want(&mut self, jobs: Vec<(JobId, InstanceId)>) {
        if self.wanted.is_empty() {
            self.wanted = jobs;
        }
    }

    pub(super) const fn are_wanted(&self) -> bool {
        !self.wanted.is_empty()
    }

    pub(super) const fn are_under_way(&self) -> bool {
        self.are_under_way
    }

    pub(super) fn forget(&mut self) {
        self.wanted.clear();
        self.are_under_way = false;
        self.are_unread = false;
    }
}

impl<C: Callers> LaneState<C> {
    /// The instance that the lease is to be passed on to at the end; `None` where it is released.
    #[must_use]
    pub const fn passes_to(&self) -> Option<&InstanceId> {
        self.transfers.pass_to.as_ref()
    }

    /// Begins to transfer the jobs that are wanted and wait for a slot.
    pub(super) fn start_transfer(&mut self, effects: &mut Vec<Effect<C>>) {
        let mut jobs = std::mem::take(&mut self.transfers.wanted);
        // A session's jobs, and those of a plan, stay in their lanes.
        let is_instances = self.lane.instance_id().is_some();
        jobs.retain(|(job, _)| is_instances && self.jobs.waits(*job) && !self.busy.contains(job));
        if !jobs.is_empty() {
            self.transfers.are_under_way = true;
            effects.push(Effect::Transfer(jobs));
        }
    }

    /// These jobs are in other lanes now. Answers [`Effect::Transfer`].
    pub fn transferred(&mut self, moved: Result<Vec<JobId>, CommitFailure>, now: Instant) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if !std::mem::take(&mut self.transfers.are_under_way) {
            return effects;
        }
        match moved {
            Ok(moved) => {
                for job in moved {
                    self.jobs.forget(job);
                    effects.push(Effect::Dequeue(job));
                }
            }
            Err(CommitFailure::Again) => {}
            Err(CommitFailure::Fenced | CommitFailure::Unknown) => self.begin_anew(&mut effects),
        }
        self.advance(now, &mut effects);
        effects
    }

    /// Whether the lane can be passed on now: it is a session's, and no attempt is under way, which may go on.
    #[must_use]
    pub fn may_pass_on(&self) -> bool {
        self.lane.is_session() && !self.stopping && self.jobs.first_under_way().is_none()
    }

    /// The owner of a session's lane ends, if it can be passed on now.
    pub(super) fn pass_on(&mut self, to: InstanceId, now: Instant, effects: &mut Vec<Effect<C>>) {
        if self.may_pass_on() {
            self.transfers.pass_to = Some(to);
            self.stop(now, effects);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::job::Attempt;
    use crate::job::{Due, JobVerdict};
    use crate::lane::messages::{Command, SlotsFound, Snapshot};
    use crate::lane::testing::{Numbered, job, own_lane, slot, submission, words};
    use crate::lane::{BatchId, PageId, Read};
    use crate::{Timestamp, Token};

    /// Applies a command and lets the round begin.
    fn give(state: &mut LaneState<Numbered>, command: Command<Numbered>, now: Instant) -> String {
        let mut effects = state.apply(command, now);
        effects.extend(state.flush(now));
        words(&effects)
    }

    fn to() -> InstanceId {
        InstanceId::parse("b").unwrap()
    }

    /// A lane with two jobs that wait.
    fn waiting(now: Instant) -> LaneState<Numbered> {
        let mut state = own_lane(now);
        state.reloaded(Token::new(1), Snapshot::default(), now);
        give(&mut state, Command::Submit(vec![submission(1, Due::Now, None, now)]), now);
        give(&mut state, Command::Submit(vec![submission(2, Due::Now, None, now)]), now);
        state.slots_found(SlotsFound::default(), now);
        state.committed(BatchId(1), Timestamp::from_micros(1), &[JobVerdict::Written], now);
        state.slots_found(SlotsFound::default(), now);
        state.committed(BatchId(2), Timestamp::from_micros(1), &[JobVerdict::Written], now);
        state
    }

    #[test]
    fn jobs_that_wait_are_transferred_and_forgotten_while_nothing_else_is_under_way() {
        let now = Instant::now();
        let mut state = waiting(now);
        let wanted = vec![(job(1), to()), (job(7), to())];
        assert_eq!(give(&mut state, Command::Transfer(wanted), now), "flush transfer(1)");
        // A slot for it comes too late, and a new job waits until the transfer is over.
        let late = Command::SlotReserved(job(1), Attempt::new(1), slot("n"));
        assert_eq!(give(&mut state, late, now), "");
        let new = Command::Submit(vec![submission(3, Due::Now, None, now)]);
        assert_eq!(give(&mut state, new, now), "");
        let effects = state.transferred(Ok(vec![job(1)]), now);
        assert_eq!(words(&effects), "dequeue release find(0,1)");
        assert!(!state.jobs.waits(job(1)) && state.jobs.waits(job(2)));
    }

    #[test]
    fn a_transfer_whose_outcome_is_not_known_has_everything_read_anew() {
        let now = Instant::now();
        for (failure, expected) in [
            (CommitFailure::Again, ""),
            (CommitFailure::Fenced, "dequeue_all anew"),
            (CommitFailure::Unknown, "dequeue_all anew"),
        ] {
            let mut state = waiting(now);
            give(&mut state, Command::Transfer(vec![(job(1), to())]), now);
            assert_eq!(words(&state.transferred(Err(failure), now)), expected);
            assert_eq!(words(&state.transferred(Ok(vec![job(1)]), now)), "", "it is answered once");
        }
    }

    #[test]
    fn a_lane_looks_for_what_was_transferred_to_it() {
        let now = Instant::now();
        let mut state = waiting(now);
        assert_eq!(give(&mut state, Command::LookForTransferred, now), "flush read");
        let group = crate::job::WaitingGroup::default();
        let effects = state.groups_read(Ok(vec![group.clone()]), now);
        assert!(
            matches!(&effects[..], [Effect::Read(Read::Waiting { group: read, .. })] if *read == group),
            "{}",
            words(&effects)
        );
        assert_eq!(words(&state.waiting_read(PageId(1), Ok((Vec::new(), true)), now)), "");
        assert_eq!(give(&mut state, Command::PassOn(to()), now), "flush");
        assert!(!state.may_pass_on() && state.passes_to().is_none(), "it is no session's");
    }
}
