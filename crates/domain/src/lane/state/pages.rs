//! Pages of jobs that wait: the lane of a long backlog reads them while it commits rounds, so that its nodes need not wait for
//! the read. A page may therefore be older than what the lane has written meanwhile; that is noted until the page is there.

use std::collections::HashSet;
use std::time::Instant;

use crate::JobId;
use crate::job::{Change, LiveJob, Priority, WaitingGroup};
use crate::lane::jobs::{ReadJobs, group_of};
use crate::lane::limits::WAITING_PAGE_JOBS;
use crate::lane::messages::{Callers, Effect, PageId, Read};
use crate::lane::round::CommittedBatch;

use super::{LaneState, Unread};

/// The page that is being read, if one is.
#[derive(Default)]
pub(super) struct Pages {
    under_way: Option<Page>,
    last: u64,
}

struct Page {
    id: PageId,
    group: WaitingGroup,
    /// Jobs that have begun or ended meanwhile.
    written: HashSet<JobId>,
    /// The highest priority of the group's jobs that came meanwhile and are in the ledger alone.
    left: Option<Priority>,
}

impl Pages {
    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// The answer to the page that is under way will be that to none.
    pub(super) fn forget(&mut self) {
        self.under_way = None;
    }

    fn begin(&mut self, group: WaitingGroup) -> PageId {
        self.last += 1;
        let id = PageId(self.last);
        self.under_way = Some(Page { id, group, written: HashSet::new(), left: None });
        id
    }

    /// A batch is committed. Its new jobs are known from here on, or were left in the ledger.
    pub(super) fn committed<C: Callers>(&mut self, batch: &CommittedBatch<C>) {
        if let Some(page) = &mut self.under_way {
            let old = batch.writes.iter().filter(|write| !matches!(write.change, Change::Submit(_)));
            page.written.extend(old.map(|write| write.change.job()));
        }
    }

    /// A job that waits was left in the ledger.
    pub(super) fn left_outside(&mut self, job: &LiveJob) {
        if let Some(page) = self.under_way.as_mut().filter(|page| page.group == group_of(job)) {
            page.left = page.left.max(Some(job.spec.priority));
        }
    }
}

impl<C: Callers> LaneState<C> {
    /// The group of which more waiting jobs are to be read, since few of many are known, and how many are.
    pub(super) fn page_to_read(&self) -> Option<(WaitingGroup, usize)> {
        let is_free = !self.pages.is_under_way() && !self.stopping && self.fifo().is_none();
        is_free.then(|| self.jobs.group_to_fill()).flatten()
    }

    /// Begins to read more waiting jobs, if so.
    pub(super) fn start_page(&mut self, now: Instant, effects: &mut Vec<Effect<C>>) {
        if let Some((group, inside)) = self.page_to_read()
            && self.may_page(now)
        {
            let page = self.pages.begin(group.clone());
            let limit = WAITING_PAGE_JOBS + inside as u32;
            effects.push(Effect::Read(Read::Waiting { page, group, limit }));
        }
    }

    /// The first waiting jobs of a group were read, in their order, and whether these are all. Answers [`Read::Waiting`].
    pub fn waiting_read(
        &mut self,
        page: PageId,
        read: Result<(Vec<LiveJob>, bool), Unread>,
        now: Instant,
    ) -> Vec<Effect<C>> {
        let mut effects = Vec::new();
        if let Some(page) = self.pages.under_way.take_if(|under_way| under_way.id == page) {
            self.page_was_read(read.is_ok(), now);
            if let Ok((jobs, is_all)) = read {
                self.fill(page, jobs, is_all, now, &mut effects);
            }
        }
        self.advance(now, &mut effects);
        effects
    }

    fn fill(
        &mut self,
        page: Page,
        mut jobs: Vec<LiveJob>,
        is_all: bool,
        now: Instant,
        effects: &mut Vec<Effect<C>>,
    ) {
        let Page { group, written, left, .. } = page;
        let mut read = ReadJobs { jobs: Vec::new(), is_all, is_outdated: false, left };
        jobs.retain(|job| {
            // Of a job that is just being made, or called off, the commit decides what it is.
            let is_undecided = self.busy.contains(&job.id) && self.jobs.get(job.id).is_none();
            let is_outdated = is_undecided || written.contains(&job.id);
            read.is_outdated |= is_outdated;
            !is_outdated && !Self::is_held(job)
        });
        read.jobs = jobs;
        for job in self.jobs.fill(&group, read) {
            self.enqueue(job, false, now, effects);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::job::{Attempt, CurrentAttempt, Due, JobVerdict, State};
    use crate::lane::messages::{BatchId, Command, CommitFailure, SlotsFound, Snapshot};
    use crate::lane::testing::{Numbered, completion, job, own_lane, slot, submission, words};
    use crate::{Timestamp, Token};

    const AT: Timestamp = Timestamp::from_micros(1);

    fn group() -> WaitingGroup {
        WaitingGroup { pool: None, tenant: None }
    }

    fn snapshot() -> Snapshot {
        Snapshot { groups: vec![group()], ..Snapshot::default() }
    }

    /// A lane that reads its first page.
    fn reading(now: Instant) -> LaneState<Numbered> {
        let mut state = own_lane(1, now);
        assert_eq!(words(&state.reloaded(Token::new(1), snapshot(), now)), "read");
        state
    }

    /// A job that waits, as the ledger has it.
    fn row(state: &LaneState<Numbered>, n: u64, now: Instant) -> LiveJob {
        LiveJob {
            id: job(n),
            lane: state.lane.clone(),
            seq: None,
            client_ref: None,
            spec: submission(n, Due::Now, None, now).submission.spec,
            newest: CurrentAttempt { state: State::Created, attempt: Attempt::NONE, charged_attempts: 0 },
            placed: None,
            retry_of: None,
            created_at: AT,
            due_at: None,
            dispatched_at: None,
            running_at: None,
        }
    }

    fn give(state: &mut LaneState<Numbered>, command: Command<Numbered>, now: Instant) -> String {
        let mut effects = state.apply(command, now);
        effects.extend(state.flush(now));
        words(&effects)
    }

    fn submit(state: &mut LaneState<Numbered>, n: u64, now: Instant) {
        assert_eq!(
            give(state, Command::Submit(vec![submission(n, Due::Now, None, now)]), now),
            "flush find(0,1)"
        );
    }

    /// Commits the batch that is under way.
    fn commit(state: &mut LaneState<Numbered>, now: Instant) -> String {
        words(&state.committed(BatchId(state.last_batch), AT, &[JobVerdict::Written], now))
    }

    #[test]
    fn rounds_go_on_while_a_page_is_read() {
        let now = Instant::now();
        let mut state = reading(now);
        submit(&mut state, 1, now);
        let found = SlotsFound { reserved: [(job(1), slot("n"))].into(), ..SlotsFound::default() };
        assert_eq!(words(&state.slots_found(found, now)), "commit(submit)");
        assert_eq!(commit(&mut state, now), "accepted notify notify dequeue dispatch");
        let page = vec![row(&state, 8, now), row(&state, 9, now)];
        assert_eq!(words(&state.waiting_read(PageId(1), Ok((page, true)), now)), "enqueue enqueue");
        assert!(!state.jobs.has_more_outside());
    }

    #[test]
    fn a_job_that_was_written_meanwhile_is_not_taken_from_the_page() {
        let now = Instant::now();
        let mut state = reading(now);
        let old = row(&state, 1, now);
        assert_eq!(
            words(&state.waiting_read(PageId(1), Ok((vec![old.clone()], false)), now)),
            "enqueue read"
        );
        let reserved = Command::SlotReserved(job(1), Attempt::new(1), slot("n"));
        assert_eq!(give(&mut state, reserved, now), "flush commit(dispatch)");
        assert_eq!(commit(&mut state, now), "notify dequeue dispatch");
        assert_eq!(give(&mut state, completion(1, 1, "n"), now), "flush find(1,0)");
        assert_eq!(words(&state.slots_found(SlotsFound::default(), now)), "commit(complete)");
        assert_eq!(commit(&mut state, now), "dequeue notify completed");
        // Nothing new is on it, and it does not say that nothing else waits: there is more to be read at once.
        assert_eq!(words(&state.waiting_read(PageId(2), Ok((vec![old], false)), now)), "read");
        assert_eq!(words(&state.waiting_read(PageId(3), Ok((Vec::new(), true)), now)), "");
    }

    #[test]
    fn a_job_that_is_just_being_made_is_not_taken_from_the_page() {
        let now = Instant::now();
        let mut state = reading(now);
        submit(&mut state, 1, now);
        assert_eq!(words(&state.slots_found(SlotsFound::default(), now)), "commit(submit)");
        let page = vec![row(&state, 1, now)];
        assert_eq!(words(&state.waiting_read(PageId(1), Ok((page, true)), now)), "");
        assert_eq!(commit(&mut state, now), "accepted notify enqueue");
    }

    #[test]
    fn a_job_that_came_meanwhile_is_read_with_the_next_page() {
        let now = Instant::now();
        let mut state = reading(now);
        submit(&mut state, 1, now);
        state.slots_found(SlotsFound::default(), now);
        assert_eq!(commit(&mut state, now), "accepted notify", "the others of its group are before it");
        assert_eq!(words(&state.waiting_read(PageId(1), Ok((Vec::new(), true)), now)), "read");
        let page = vec![row(&state, 1, now)];
        assert_eq!(words(&state.waiting_read(PageId(2), Ok((page, true)), now)), "enqueue");
        assert!(!state.jobs.has_more_outside());
    }

    #[test]
    fn the_answer_to_a_page_of_an_earlier_lease_is_nobodys() {
        let now = Instant::now();
        let mut state = reading(now);
        submit(&mut state, 1, now);
        state.slots_found(SlotsFound::default(), now);
        let failed = state.commit_failed(BatchId(1), CommitFailure::Unknown, now);
        assert_eq!(words(&failed), "refused(OutcomeUnknown) dequeue_all anew");
        assert_eq!(words(&state.reloaded(Token::new(2), snapshot(), now)), "read");
        assert_eq!(words(&state.waiting_read(PageId(1), Ok((Vec::new(), true)), now)), "");
        let page = vec![row(&state, 1, now)];
        assert_eq!(words(&state.waiting_read(PageId(2), Ok((page, true)), now)), "enqueue");
    }

    #[test]
    fn nothing_else_is_read_while_a_page_is() {
        let now = Instant::now();
        let mut state = reading(now);
        assert_eq!(give(&mut state, Command::LookForTransferred, now), "flush");
        assert_eq!(words(&state.waiting_read(PageId(1), Ok((Vec::new(), true)), now)), "read");
        assert_eq!(words(&state.groups_read(Ok(Vec::new()), now)), "");
    }
}
