//! Promotion: jobs whose time has come, and for which there was no room when they were read, join the groups of those that
//! wait. From then on they are read like these: in pages, by priority, and each group has its share. While jobs are promoted
//! nothing else is under way.

use std::time::Instant;

use crate::job::PromotedJob;
use crate::lane::jobs::Promoted;
use crate::lane::limits::PROMOTED_MAX;
use crate::lane::messages::{Callers, Coming, CommitFailure, Effect};

use super::LaneState;

/// Whether jobs are to be promoted.
#[derive(Default)]
pub(super) struct Promotion {
    is_wanted: bool,
    is_under_way: bool,
    /// A round comes first, if there is work for one.
    lets_a_round: bool,
}

impl Promotion {
    pub(super) const fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    pub(super) const fn is_under_way(&self) -> bool {
        self.is_under_way
    }

    pub(super) fn round_began(&mut self) {
        self.lets_a_round = false;
    }
}

impl<C: Callers> LaneState<C> {
    /// Delayed jobs are in memory from here on, as far as there is room.
    pub(super) fn learn_coming(&mut self, coming: Coming, asked: Instant) {
        let Coming { jobs, is_cut } = coming;
        let mut are_left = is_cut && jobs.last().is_some_and(|(_, due_in_ms)| *due_in_ms == 0);
        for (job, due_in_ms) in jobs {
            if self.jobs.get(job.id).is_none() {
                let is_known = self.delay(job.into(), due_in_ms, asked, None);
                are_left |= !is_known && due_in_ms == 0;
            }
        }
        self.promotion.is_wanted |= are_left && self.fifo().is_none();
    }

    pub(super) fn wants_promotion(&self, now: Instant) -> bool {
        self.promotion.is_wanted && !(self.promotion.lets_a_round && self.has_work(now))
    }

    pub(super) fn start_promotion(&mut self, effects: &mut Vec<Effect<C>>) {
        self.promotion = Promotion { is_under_way: true, ..Promotion::default() };
        effects.push(Effect::Promote);
    }

    /// These jobs have no time any more, and wait. Answers [`Effect::Promote`].
    pub fn promoted(
        &mut self,
        promoted: Result<Vec<PromotedJob>, CommitFailure>,
        now: Instant,
    ) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if !std::mem::take(&mut self.promotion.is_under_way) {
            return effects;
        }
        match promoted {
            Ok(jobs) => {
                let is_wanted = jobs.len() >= PROMOTED_MAX as usize;
                self.promotion = Promotion { is_wanted, lets_a_round: true, ..Promotion::default() };
                for promoted in jobs {
                    let job = promoted.job;
                    match self.jobs.promote(promoted) {
                        Promoted::Inside | Promoted::Outside => {}
                        Promoted::ToEnqueue => self.enqueue(job, false, now, &mut effects),
                        Promoted::ToLookUp if self.busy.insert(job) => self.lookups.push_back(job),
                        Promoted::ToLookUp => {}
                    }
                }
            }
            Err(CommitFailure::Again) => self.promotion.is_wanted = true,
            Err(CommitFailure::Fenced | CommitFailure::Unknown) => self.begin_anew(&mut effects),
        }
        self.advance(now, &mut effects);
        effects
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::job::{CurrentAttempt, Due, LiveJob, Priority, State, WaitingGroup};
    use crate::lane::limits::{GROUP_JOBS_LOW, REREAD_EVERY};
    use crate::lane::messages::{AttemptEvent, Command, PageId, Read, Snapshot};
    use crate::lane::state::Unread;
    use crate::lane::testing::{Numbered, job, own_lane, slot, submission, waiting, words};
    use crate::{Timestamp, Token};

    fn delayed(state: &LaneState<Numbered>, number: u64) -> LiveJob {
        LiveJob { due_at: Some(Timestamp::from_micros(1)), ..waiting(&state.lane, number) }
    }

    fn promoted_job(number: u64, priority: i64) -> PromotedJob {
        let priority = Priority::new(priority).unwrap();
        PromotedJob { job: job(number), priority, group: WaitingGroup::default() }
    }

    fn promoted(numbers: impl Iterator<Item = u64>) -> Result<Vec<PromotedJob>, CommitFailure> {
        Ok(numbers.map(|number| promoted_job(number, 0)).collect())
    }

    /// A lane that has read these delayed jobs, and the page of them that it could not keep.
    fn loaded(
        jobs: &[(u64, u64)],
        is_cut: bool,
        is_full: bool,
        now: Instant,
    ) -> (LaneState<Numbered>, String) {
        let mut state = own_lane(now);
        let first = state.reloaded(Token::new(1), Snapshot::default(), now);
        assert_eq!(words(&first), "");
        if is_full {
            state.jobs.fill_up();
        }
        let jobs = jobs.iter().map(|(number, due_in_ms)| (delayed(&state, *number), *due_in_ms)).collect();
        state.learn_coming(Coming { jobs, is_cut }, now);
        let effects = state.flush(now);
        (state, words(&effects))
    }

    #[test]
    fn jobs_that_are_due_and_do_not_fit_are_promoted() {
        let now = Instant::now();
        for (jobs, is_cut, is_full, expected) in [
            (&[(1, 0), (2, 0)][..], false, false, "enqueue enqueue"),
            (&[(1, 0), (2, 0)], true, false, "promote"),
            (&[(1, 0), (2, 5_000)], true, false, "enqueue"),
            (&[(1, 0), (2, 5_000)], false, true, "promote"),
            (&[(1, 5_000)], false, true, ""),
        ] {
            let (_, found) = loaded(jobs, is_cut, is_full, now);
            assert_eq!(found, expected, "{jobs:?} {is_cut} {is_full}");
        }
    }

    #[test]
    fn promoted_jobs_are_read_with_their_group_and_those_in_the_book_keep_their_places() {
        let now = Instant::now();
        let (mut state, _) = loaded(&[(1, 0), (2, 0)], true, false, now);
        assert_eq!(words(&state.promoted(promoted(1..4), now)), "enqueue enqueue read");
        let page = (1..4).map(|number| waiting(&state.lane, number)).collect();
        assert_eq!(words(&state.waiting_read(PageId(1), Ok((page, true)), now)), "enqueue");
    }

    /// A lane of which job 1 is under way has heard that it was promoted: its attempt has failed, and the lane has no room
    /// for it. It has asked for the job.
    fn promoted_while_under_way(now: Instant) -> LaneState<Numbered> {
        let (mut state, _) = loaded(&[(1, 0)], true, true, now);
        let under_way = waiting(&state.lane, 1);
        state.jobs.begin(under_way.into(), CurrentAttempt::FIRST, slot("n").placed, now);
        assert_eq!(words(&state.promoted(promoted(1..2), now)), "read");
        state
    }

    /// A lane that knows of no job ends, if it is not the instance's own.
    #[test]
    fn a_promoted_job_that_is_under_way_leaves_no_group_behind_when_it_ends() {
        let now = Instant::now();
        let mut state = promoted_while_under_way(now);
        state.jobs_read(&[job(1)], Ok(Vec::new()), now);
        assert!(state.jobs.is_empty());
    }

    #[test]
    fn a_promoted_job_waits_though_its_failure_is_heard_of_later_and_there_is_no_room_for_it() {
        let now = Instant::now();
        let mut state = promoted_while_under_way(now);
        let failed = AttemptEvent::Failed { due_in_ms: 50 };
        state.apply(Command::Attempt(job(1), CurrentAttempt::FIRST.attempt, failed), now);
        let newest = CurrentAttempt { state: State::Created, ..CurrentAttempt::FIRST };
        let again = LiveJob { newest, ..waiting(&state.lane, 1) };
        state.jobs_read(&[job(1)], Ok(vec![again]), now);
        assert!(state.jobs.waits(job(1)) || state.jobs.has_more_outside(), "it is read with its group");
    }

    #[test]
    fn a_promoted_job_that_cannot_be_looked_up_is_looked_for_among_those_that_wait() {
        let now = Instant::now();
        let mut state = promoted_while_under_way(now);
        let failed = AttemptEvent::Failed { due_in_ms: 50 };
        state.apply(Command::Attempt(job(1), CurrentAttempt::FIRST.attempt, failed), now);
        state.jobs_read(&[job(1)], Err(Unread), now);
        assert!(state.jobs.get(job(1)).is_none(), "there is no room for it");
        let later = now + REREAD_EVERY * 2;
        assert_eq!(words(&state.flush(later)), "read");
        assert_eq!(words(&state.attempts_read(Ok(Vec::new()), later)), "read");
        let effects = state.coming_read(Ok(Coming::default()), later);
        assert!(matches!(&effects[..], [Effect::Read(Read::Groups)]), "{}", words(&effects));
    }

    /// Many wait in memory, and nobody asks the ledger for more of them.
    #[test]
    fn a_promoted_job_does_not_wait_behind_those_of_a_lower_priority() {
        let now = Instant::now();
        let mut state = own_lane(now);
        let groups = vec![WaitingGroup::default()];
        state.reloaded(Token::new(1), Snapshot { groups, ..Snapshot::default() }, now);
        let page = (100..101 + GROUP_JOBS_LOW as u64).map(|number| waiting(&state.lane, number)).collect();
        state.waiting_read(PageId(1), Ok((page, true)), now);
        state.learn_coming(Coming { jobs: vec![(delayed(&state, 1), 0)], is_cut: true }, now);
        state.flush(now);
        let high = vec![promoted_job(7, 5)];
        assert_eq!(words(&state.promoted(Ok(high), now)), "read", "of this job alone");
        let mut found = waiting(&state.lane, 7);
        found.spec.priority = Priority::new(5).unwrap();
        assert_eq!(
            words(&state.jobs_read(&[job(7)], Ok(vec![found]), now)),
            "dequeue enqueue enqueue",
            "and of what is due"
        );
    }

    #[test]
    fn a_round_comes_between_two_promotions() {
        let now = Instant::now();
        let (mut state, _) = loaded(&[(1, 0)], true, false, now);
        let new = Command::Submit(vec![submission(7, Due::InMs(60_000), None, now)]);
        assert_eq!(words(&state.apply(new, now)), "");
        let many = 1_000..1_000 + u64::from(PROMOTED_MAX);
        let effects = state.promoted(promoted(many.clone()), now);
        assert_eq!(words(&effects), "read", "nothing overtakes the jobs of the group");
        let page = vec![waiting(&state.lane, 1_000)];
        let effects = state.waiting_read(PageId(1), Ok((page, true)), now);
        assert_eq!(words(&effects), "enqueue enqueue commit(submit)", "also of the one in memory");
        let written = [crate::job::JobVerdict::Written];
        let batch = crate::lane::messages::BatchId(state.last_batch);
        let effects = state.committed(batch, Timestamp::from_micros(1), &written, now);
        assert_eq!(words(&effects), "accepted notify promote");
        assert_eq!(words(&state.promoted(promoted(9..10), now)), "read");
    }

    #[test]
    fn after_a_promotion_whose_outcome_is_unknown_everything_is_read_again() {
        let now = Instant::now();
        for (failure, expected) in [
            (CommitFailure::Unknown, "dequeue_all anew"),
            (CommitFailure::Fenced, "dequeue_all anew"),
            (CommitFailure::Again, "promote"),
        ] {
            let (mut state, _) = loaded(&[(1, 0)], true, false, now);
            assert_eq!(words(&state.promoted(Err(failure), now)), expected);
        }
    }

    #[test]
    fn nothing_else_begins_while_jobs_are_promoted() {
        let now = Instant::now();
        let (mut state, _) = loaded(&[(1, 0)], true, false, now);
        let new = Command::Submit(vec![submission(7, Due::Now, None, now)]);
        assert_eq!(words(&state.apply(new, now)), "");
        assert_eq!(words(&state.flush(now + Duration::from_secs(60))), "");
        assert_eq!(state.wake_at(), None);
    }
}
