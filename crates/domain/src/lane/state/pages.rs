//! Pages of jobs that wait. A group of which no job is known is read before the next round, so that nothing overtakes its jobs.
//! A group that runs low is read while the lane commits rounds, so that its nodes need not wait for the read. Where there are too
//! many groups to wait for, all are read so. A page that is read beside rounds may be older than what the lane has written
//! meanwhile, so that is noted until the page is there.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::JobId;
use crate::job::{Change, LiveJob, Priority, WaitingGroup};
use crate::lane::jobs::{GroupToFill, ReadJobs, group_of};
use crate::lane::limits::{GROUP_BYTES_MAX, GROUP_JOBS_LOW, PAGE_JOBS, UNKNOWN_GROUPS_WAIT};
use crate::lane::messages::{Callers, Effect, PageId, Read};
use crate::lane::round::CommittedBatch;
use crate::lane::waiting_bytes::WaitingShare;

use super::{LaneState, Unread};

/// The page that is being read, if one is.
#[derive(Default)]
pub(super) struct Pages {
    under_way: Option<Page>,
    last: u64,
    /// The last one had nothing that was new and could be told: what is being committed will tell.
    waits_for_commit: bool,
    /// Since when there has been a group of which no job is known.
    unknown_since: Option<Instant>,
}

struct Page {
    id: PageId,
    group: WaitingGroup,
    /// Jobs that have begun or ended meanwhile.
    written: HashSet<JobId>,
    /// Jobs of the group that came meanwhile and wait behind the others, at most [`GROUP_JOBS_LOW`] of them.
    came: Vec<Arc<LiveJob>>,
    /// What these take in memory.
    waiting: WaitingShare,
    /// The highest priority of more such jobs, which are in the ledger alone.
    left: Option<Priority>,
}

impl Pages {
    pub(super) const fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// A number behind all pages that were asked for, and before all others.
    pub(super) const fn between(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The answer to the page that is under way will be that to none.
    pub(super) fn forget(&mut self) {
        self.under_way = None;
        self.waits_for_commit = false;
    }

    fn begin(&mut self, group: WaitingGroup, waiting: WaitingShare) -> PageId {
        self.last += 1;
        let id = PageId(self.last);
        let (written, came) = (HashSet::new(), Vec::new());
        self.under_way = Some(Page { id, group, written, came, waiting, left: None });
        id
    }

    /// A batch is committed. Its new jobs are known from here on, or were left in the ledger.
    pub(super) fn committed<C: Callers>(&mut self, batch: &CommittedBatch<C>) {
        self.waits_for_commit = false;
        if let Some(page) = &mut self.under_way {
            let old = batch.writes.iter().filter(|write| !matches!(write.change, Change::Submit(_)));
            page.written.extend(old.map(|write| write.change.job()));
        }
    }

    /// A job waits behind those of its group that are in the ledger alone.
    pub(super) fn left_outside(&mut self, job: Arc<LiveJob>) {
        let Some(page) = self.under_way.as_mut().filter(|page| page.group == group_of(&job.spec)) else {
            return;
        };
        let bytes = job.spec.text_bytes();
        let fits = page.came.len() < GROUP_JOBS_LOW && page.waiting.texts() + bytes <= GROUP_BYTES_MAX;
        if fits && page.waiting.has_room(1, bytes) {
            page.waiting.add(bytes);
            page.came.push(job);
        } else {
            page.left = page.left.max(Some(job.spec.priority));
        }
    }
}

impl<C: Callers> LaneState<C> {
    /// The group of which more waiting jobs are to be read, since few of many are known.
    pub(super) fn page_to_read(&self) -> Option<GroupToFill> {
        let may_ask = self.reads_groups() && !self.is_page_awaited();
        may_ask.then(|| self.jobs.group_to_fill()).flatten()
    }

    /// Whether the lane has groups, whose jobs it reads: not where a session has an order, nor at its end.
    fn reads_groups(&self) -> bool {
        !self.stopping && self.fifo().is_none()
    }

    /// Whether jobs would be overtaken that are in the ledger alone.
    fn has_unknown_group(&self) -> bool {
        self.reads_groups() && self.jobs.has_unknown_group()
    }

    /// Whether no page can be asked for before something else is heard.
    fn is_page_awaited(&self) -> bool {
        let waits_for_commit = self.pages.waits_for_commit && self.in_flight.is_some();
        self.pages.is_under_way() || waits_for_commit
    }

    /// Whether nothing can be done before a page is read, which something that is under way leads to.
    pub(super) fn is_held_up_by_page(&self) -> bool {
        self.is_page_awaited() && self.has_unknown_group()
    }

    /// Begins to read more waiting jobs, if so.
    pub(super) fn start_page(&mut self, now: Instant, effects: &mut Vec<Effect<C>>) {
        if let Some(GroupToFill { group, inside }) = self.page_to_read()
            && self.may_page(now)
        {
            let page = self.pages.begin(group.clone(), self.settings.waiting.share(0));
            self.jobs.asked_for(&group, page.0);
            let limit = PAGE_JOBS + inside as u32;
            effects.push(Effect::Read(Read::Waiting { page, group, limit }));
        }
    }

    /// Whether no round may begin before more was read: jobs of a group of which none is known would be overtaken.
    pub(super) fn waits_for_page(&self, now: Instant) -> bool {
        let is_long = self.pages.unknown_since.is_some_and(|since| since + UNKNOWN_GROUPS_WAIT <= now);
        self.may_page(now) && !is_long && self.has_unknown_group()
    }

    pub(super) fn note_unknown_groups(&mut self, now: Instant) {
        let since = self.pages.unknown_since.unwrap_or(now);
        self.pages.unknown_since = self.has_unknown_group().then_some(since);
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
        let Page { group, written, came, waiting, left, .. } = page;
        let mut read = ReadJobs { jobs: Vec::new(), is_all, is_outdated: false, left };
        jobs.retain(|job| {
            // Of a job that is just being made, or called off, the commit decides what it is.
            let is_undecided = self.busy.contains(&job.id) && self.jobs.get(job.id).is_none();
            let is_outdated = is_undecided || written.contains(&job.id);
            read.is_outdated |= is_outdated;
            !is_outdated && !Self::is_held(job)
        });
        read.jobs = jobs;
        let is_outdated = read.is_outdated;
        let new = self.jobs.fill(&group, read);
        self.pages.waits_for_commit = new.is_empty() && is_outdated;
        for job in new {
            self.enqueue(job, false, now, effects);
        }
        // They count where they are taken in.
        drop(waiting);
        for job in came {
            let is_known = self.jobs.get(job.id).is_some() || written.contains(&job.id);
            if !is_known && !self.busy.contains(&job.id) {
                self.wait_in_group(job, now, effects);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::job::{Attempt, Due, JobVerdict, PromotedJob};
    use crate::lane::limits::{
        GROUP_JOBS_ALONE_MAX, JOB_BYTES, LANE_BYTES_OWN, REREAD_EVERY, WAITING_BYTES_MAX,
    };
    use crate::lane::messages::{BatchId, Command, SlotsFound, Snapshot};
    use crate::lane::testing::{
        Numbered, completion, job, own_lane, settings, slot, submission, waiting, words,
    };
    use crate::lane::{LaneSettings, WaitingBytes};
    use crate::{LaneId, Timestamp, Token};

    const AT: Timestamp = Timestamp::from_micros(1);

    fn group() -> WaitingGroup {
        WaitingGroup::default()
    }

    fn snapshot() -> Snapshot {
        Snapshot { groups: vec![group()], ..Snapshot::default() }
    }

    /// A lane that reads its first page.
    fn reading(now: Instant) -> LaneState<Numbered> {
        let mut state = own_lane(now);
        assert_eq!(words(&state.reloaded(Token::new(1), snapshot(), now)), "read");
        state
    }

    /// A lane of an instance with so much memory for all of them, which reads its first page.
    fn reading_with(memory: usize, groups: Vec<WaitingGroup>, now: Instant) -> LaneState<Numbered> {
        let settings = LaneSettings { waiting: WaitingBytes::new(memory), ..settings(1) };
        let lane = LaneId::parse("instance:i").unwrap();
        let mut state = LaneState::new(lane, Token::new(1), false, settings, now);
        let effects = state.reloaded(Token::new(1), Snapshot { groups, ..Snapshot::default() }, now);
        assert_eq!(words(&effects), "read");
        state
    }

    /// Jobs of this group, from this number on, which fill the bytes that a lane may always have.
    fn filling(state: &LaneState<Numbered>, group: &WaitingGroup, first: u64) -> Vec<LiveJob> {
        let large = LANE_BYTES_OWN / 8;
        let mut template = waiting(&state.lane, 1);
        template.spec.tenant.clone_from(&group.tenant);
        template.spec.payload = "7".repeat(large - JOB_BYTES).into();
        (0..8).map(|n| LiveJob { id: job(first + n), ..template.clone() }).collect()
    }

    /// Everything that is asked for is read, where these jobs wait in the ledger, in their order.
    fn read_all(
        state: &mut LaneState<Numbered>,
        mut effects: Vec<Effect<Numbered>>,
        jobs: &[LiveJob],
        now: Instant,
    ) {
        while let Some(effect) = effects.pop() {
            match effect {
                Effect::Read(Read::Attempts) => effects.extend(state.attempts_read(Ok(Vec::new()), now)),
                Effect::Read(Read::Coming { .. }) => {
                    effects.extend(state.coming_read(Ok(Default::default()), now));
                }
                Effect::Read(Read::Waiting { page, group, .. }) => {
                    let page_jobs = jobs.iter().filter(|one| group_of(&one.spec) == group).cloned();
                    effects.extend(state.waiting_read(page, Ok((page_jobs.collect(), true)), now));
                }
                _ => {}
            }
        }
    }

    fn give(state: &mut LaneState<Numbered>, command: Command<Numbered>, now: Instant) -> String {
        let mut effects = state.apply(command, now);
        effects.extend(state.flush(now));
        words(&effects)
    }

    fn submit(state: &mut LaneState<Numbered>, n: u64, now: Instant) {
        let new = Command::Submit(vec![submission(n, Due::Now, None, now)]);
        assert_eq!(give(state, new, now), "flush find(0,1)");
        assert_eq!(words(&state.slots_found(SlotsFound::default(), now)), "commit(submit)");
    }

    /// Commits the batch that is under way.
    fn commit(state: &mut LaneState<Numbered>, now: Instant) -> String {
        words(&state.committed(BatchId(state.last_batch), AT, &[JobVerdict::Written], now))
    }

    /// A lane that knows jobs 101 and 102, and reads what comes behind them.
    fn reading_more(now: Instant) -> LaneState<Numbered> {
        let mut state = reading(now);
        let page = vec![waiting(&state.lane, 101), waiting(&state.lane, 102)];
        let effects = state.waiting_read(PageId(1), Ok((page, false)), now);
        assert_eq!(words(&effects), "enqueue enqueue read");
        state
    }

    /// What follows from the second page.
    fn second_page(state: &mut LaneState<Numbered>, jobs: &[u64], is_all: bool, now: Instant) -> String {
        let jobs = jobs.iter().map(|n| waiting(&state.lane, *n)).collect();
        words(&state.waiting_read(PageId(2), Ok((jobs, is_all)), now))
    }

    #[test]
    fn no_round_begins_before_a_group_of_which_nothing_is_known_was_read() {
        let now = Instant::now();
        let mut state = reading(now);
        assert_eq!(give(&mut state, Command::Submit(vec![submission(7, Due::Now, None, now)]), now), "flush");
        assert_eq!(state.wake_at(), None, "the page is waited for");
        let page = vec![waiting(&state.lane, 1)];
        assert_eq!(words(&state.waiting_read(PageId(1), Ok((page, false)), now)), "enqueue read find(0,1)");
    }

    #[test]
    fn groups_are_read_in_turns() {
        let now = Instant::now();
        let mut state = own_lane(now);
        let groups: Vec<_> = ["a", "b", "c"]
            .map(|name| {
                let tenant = Some(crate::TenantId::parse(name).unwrap());
                WaitingGroup { tenant, ..WaitingGroup::default() }
            })
            .into();
        let mut effects =
            state.reloaded(Token::new(1), Snapshot { groups: groups.clone(), ..Snapshot::default() }, now);
        let mut read = Vec::new();
        for n in 1..=9 {
            let Some(Effect::Read(Read::Waiting { page, group, .. })) = effects.pop() else {
                panic!("nothing is read: {}", words(&effects));
            };
            // Each time there is one job more, and others behind it.
            let mut job = waiting(&state.lane, n);
            job.spec.tenant.clone_from(&group.tenant);
            read.push(groups.iter().position(|other| *other == group).unwrap());
            effects = state.waiting_read(page, Ok((vec![job], false)), now);
        }
        for turns in read.chunks(3) {
            assert_eq!(turns.iter().sum::<usize>(), 3, "{read:?}");
        }
        assert_eq!(read[..3], read[3..6]);
    }

    fn named(index: usize) -> WaitingGroup {
        let tenant = Some(crate::TenantId::parse(&format!("t{index}")).unwrap());
        WaitingGroup { tenant, ..WaitingGroup::default() }
    }

    /// What follows from a page, which the last effect asked for, with these jobs of its group.
    fn page_of(
        state: &mut LaneState<Numbered>,
        effects: &mut Vec<Effect<Numbered>>,
        jobs: impl Iterator<Item = u64>,
        now: Instant,
    ) -> WaitingGroup {
        let Some(Effect::Read(Read::Waiting { page, group, .. })) = effects.pop() else {
            panic!("nothing is read: {}", words(effects));
        };
        let mut template = waiting(&state.lane, 1);
        (template.spec.needs, template.spec.tenant) = (group.needs.clone(), group.tenant.clone());
        let jobs = jobs.map(|n| LiveJob { id: job(n), ..template.clone() });
        *effects = state.waiting_read(page, Ok((jobs.collect(), true)), now);
        group
    }

    #[test]
    fn jobs_that_no_node_serves_stand_before_none_that_need_something_else() {
        let now = Instant::now();
        let mut state = own_lane(now);
        let mut unserved = group();
        unserved.needs.requires = vec![crate::Label::parse("absent").unwrap()];
        let groups = vec![unserved.clone(), group()];
        let mut effects = state.reloaded(Token::new(1), Snapshot { groups, ..Snapshot::default() }, now);
        let many = 10_000..=10_000 + GROUP_JOBS_ALONE_MAX as u64;
        let mut enqueued = Vec::new();
        for _ in 0..2 {
            let is_unserved = matches!(effects.last(), Some(Effect::Read(Read::Waiting { group, .. })) if *group == unserved);
            let jobs = if is_unserved { many.clone() } else { 7..=7 };
            page_of(&mut state, &mut effects, jobs, now);
            enqueued.extend(effects.iter().filter_map(|effect| match effect {
                Effect::Enqueue(one) => Some(one.job.id),
                _ => None,
            }));
        }
        assert_eq!(enqueued.len(), GROUP_JOBS_ALONE_MAX + 1);
        assert!(enqueued.contains(&job(7)));
        assert!(state.jobs.has_more_outside(), "one of the others waits in the ledger");
    }

    #[test]
    fn rounds_do_not_wait_for_long_where_many_groups_are_unknown() {
        let now = Instant::now();
        let mut state = own_lane(now);
        let groups: Vec<_> = (0..10).map(named).collect();
        let mut effects = state.reloaded(Token::new(1), Snapshot { groups, ..Snapshot::default() }, now);
        page_of(&mut state, &mut effects, 1..2, now);
        let mut new = submission(7, Due::Now, None, now);
        new.submission.spec.tenant = named(99).tenant;
        assert_eq!(give(&mut state, Command::Submit(vec![new]), now), "flush");
        page_of(&mut state, &mut effects, 2..3, now + UNKNOWN_GROUPS_WAIT / 2);
        assert_eq!(words(&effects), "enqueue read");
        let late = now + UNKNOWN_GROUPS_WAIT;
        page_of(&mut state, &mut effects, 3..4, late);
        assert_eq!(words(&effects), "enqueue read find(0,1)");
    }

    #[test]
    fn a_group_of_which_nothing_fits_holds_up_no_round() {
        let now = Instant::now();
        let mut state = own_lane(now);
        let groups = vec![named(0), named(1)];
        let mut effects = state.reloaded(Token::new(1), Snapshot { groups, ..Snapshot::default() }, now);
        state.jobs.fill_up();
        page_of(&mut state, &mut effects, 1..2, now);
        page_of(&mut state, &mut effects, 2..3, now);
        assert_eq!(words(&effects), "");
        state.jobs.retry_full_groups();
        assert_eq!(
            give(&mut state, Command::Submit(vec![submission(7, Due::Now, None, now)]), now),
            "flush read find(0,1)"
        );
    }

    /// Jobs of 1 MiB, each of which needs something else that no node has, fill the lane's memory.
    #[test]
    fn a_group_without_room_gets_some_at_the_next_look() {
        let now = Instant::now();
        let mut state = own_lane(now);
        let unserved = 200_usize;
        let groups: Vec<_> = (0..=unserved).map(named).collect();
        let mut effects = state.reloaded(Token::new(1), Snapshot { groups, ..Snapshot::default() }, now);
        let large = |state: &mut LaneState<Numbered>, effects: &mut Vec<Effect<Numbered>>, now| {
            let Some(Effect::Read(Read::Waiting { page, group, .. })) = effects.pop() else { return false };
            let mut template = waiting(&state.lane, 1);
            template.spec.tenant = group.tenant.clone();
            template.spec.payload = "7".repeat(1 << 20).into();
            let index: u64 = group.tenant.as_ref().unwrap().as_str()[1..].parse().unwrap();
            let one = LiveJob { id: job(10_000 + index), ..template };
            *effects = state.waiting_read(page, Ok((vec![one], true)), now);
            true
        };
        while large(&mut state, &mut effects, now) {}
        let known =
            |state: &LaneState<Numbered>, index: usize| state.jobs.get(job(10_000 + index as u64)).is_some();
        let inside =
            |state: &LaneState<Numbered>| (0..=unserved).filter(|index| known(state, *index)).count();
        assert!((100..200).contains(&inside(&state)), "{}", inside(&state));
        // Each has its turn, however long the others stay.
        let mut seen = vec![false; unserved + 1];
        let mut at = now;
        for _ in 0..20 {
            at += REREAD_EVERY * 2;
            effects = state.flush(at);
            while let Some(effect) = effects.pop() {
                match effect {
                    Effect::Read(Read::Attempts) => effects.extend(state.attempts_read(Ok(Vec::new()), at)),
                    Effect::Read(Read::Coming { .. }) => {
                        effects.extend(state.coming_read(Ok(Default::default()), at));
                    }
                    Effect::Read(read) => {
                        effects.push(Effect::Read(read));
                        while large(&mut state, &mut effects, at) {}
                    }
                    _ => {}
                }
            }
            seen.iter_mut().enumerate().for_each(|(index, seen)| *seen |= known(&state, index));
        }
        let unseen: Vec<_> = (0..=unserved).filter(|index| !seen[*index]).collect();
        assert!(unseen.is_empty(), "never in memory: {unseen:?}");
        assert!(inside(&state) < 200);
    }

    #[test]
    fn a_group_is_not_kept_at_few_jobs_by_another_that_fills_the_lanes_own_memory() {
        let now = Instant::now();
        let (unserved, served) = (named(0), named(1));
        for (left, few) in [(0, 1), (3 * JOB_BYTES, 2)] {
            let mut state = reading_with(0, vec![unserved.clone()], now);
            let mut ledger = filling(&state, &unserved, 100);
            let payload = &mut ledger[0].spec.payload;
            *payload = "7".repeat(payload.len() - left).into();
            let effects = state.waiting_read(PageId(1), Ok((ledger.clone(), true)), now);
            assert_eq!(effects.len(), 8, "{}", words(&effects));
            let small = (1..=10).map(|n| {
                let mut one = waiting(&state.lane, n);
                one.spec.tenant.clone_from(&served.tenant);
                one
            });
            ledger.extend(small);
            assert_eq!(give(&mut state, Command::LookForTransferred, now), "flush read");
            let effects = state.groups_read(Ok(vec![served.clone()]), now);
            read_all(&mut state, effects, &ledger, now);
            let inside =
                |state: &LaneState<Numbered>| (1..=10).filter(|n| state.jobs.get(job(*n)).is_some()).count();
            assert_eq!(inside(&state), few, "the other one has the rest");
            let later = now + REREAD_EVERY * 2;
            let effects = state.flush(later);
            read_all(&mut state, effects, &ledger, later);
            assert_eq!(inside(&state), 10, "{left}");
            let reserved = Command::SlotReserved(job(1), Attempt::new(1), slot("n"));
            assert_eq!(give(&mut state, reserved, later), "flush commit(dispatch)");
            assert_eq!(commit(&mut state, later), "notify dequeue dispatch", "no page is read for it");
        }
    }

    #[test]
    fn rounds_go_on_while_a_page_is_read() {
        let now = Instant::now();
        let mut state = reading_more(now);
        let reserved = Command::SlotReserved(job(101), Attempt::new(1), slot("n"));
        assert_eq!(give(&mut state, reserved, now), "flush commit(dispatch)");
        assert_eq!(commit(&mut state, now), "notify dequeue dispatch");
        assert_eq!(second_page(&mut state, &[101, 102, 103], true, now), "enqueue");
        assert!(!state.jobs.has_more_outside());
    }

    #[test]
    fn a_job_that_was_written_meanwhile_is_not_taken_from_the_page() {
        let now = Instant::now();
        let mut state = reading_more(now);
        let reserved = Command::SlotReserved(job(101), Attempt::new(1), slot("n"));
        give(&mut state, reserved, now);
        commit(&mut state, now);
        assert_eq!(give(&mut state, completion(101, 1, "n"), now), "flush find(1,0)");
        assert_eq!(words(&state.slots_found(SlotsFound::default(), now)), "commit(complete)");
        assert_eq!(commit(&mut state, now), "dequeue notify completed");
        // Nothing new is on it, and it does not say that nothing else waits: there is more to be read at once.
        assert_eq!(second_page(&mut state, &[101, 102], false, now), "read");
        assert_eq!(words(&state.waiting_read(PageId(3), Ok((Vec::new(), true)), now)), "");
    }

    #[test]
    fn a_job_that_is_just_being_made_is_not_taken_from_the_page() {
        let now = Instant::now();
        for (is_all, expected) in [(true, "accepted notify enqueue"), (false, "accepted notify read")] {
            let mut state = reading_more(now);
            submit(&mut state, 1, now);
            assert_eq!(second_page(&mut state, &[1], is_all, now), "", "the commit is waited for");
            assert_eq!(commit(&mut state, now), expected);
        }
    }

    #[test]
    fn a_job_that_came_meanwhile_is_behind_those_of_the_page() {
        let now = Instant::now();
        for (is_all, expected) in [(true, "enqueue enqueue"), (false, "enqueue read")] {
            let mut state = reading_more(now);
            submit(&mut state, 1, now);
            assert_eq!(commit(&mut state, now), "accepted notify", "the others of its group are before it");
            assert_eq!(second_page(&mut state, &[103], is_all, now), expected);
            assert_eq!(state.jobs.has_more_outside(), !is_all);
        }
        // Of more than are kept in mind the ledger is asked again.
        for (page, expected) in [(&[103][..], "enqueue read"), (&[], "read")] {
            let mut state = reading_more(now);
            for _ in 0..=GROUP_JOBS_LOW {
                state.pages.left_outside(Arc::new(waiting(&state.lane, 103)));
            }
            assert_eq!(second_page(&mut state, page, true, now), expected);
        }
        // One that was called off again is forgotten.
        let mut state = reading_more(now);
        submit(&mut state, 1, now);
        commit(&mut state, now);
        let cancel = Command::Cancel(job(1), crate::job::Class::default(), 7);
        assert_eq!(give(&mut state, cancel, now), "flush dequeue commit(end)");
        assert_eq!(commit(&mut state, now), "dequeue notify cancelled");
        assert_eq!(second_page(&mut state, &[103], true, now), "enqueue");
    }

    #[test]
    fn the_answer_to_a_page_of_an_earlier_lease_is_nobodys() {
        let now = Instant::now();
        let mut state = reading_more(now);
        submit(&mut state, 1, now);
        let failed = state.commit_failed(BatchId(1));
        assert_eq!(words(&failed), "refused(OutcomeUnknown) dequeue_all anew");
        assert_eq!(words(&state.reloaded(Token::new(2), snapshot(), now)), "read");
        assert_eq!(second_page(&mut state, &[], true, now), "");
        let page = vec![waiting(&state.lane, 1)];
        assert_eq!(words(&state.waiting_read(PageId(3), Ok((page, true)), now)), "enqueue");
    }

    /// Has a job of a higher priority accepted; what follows from its commit.
    fn submit_higher(state: &mut LaneState<Numbered>, n: u64, now: Instant) -> Vec<Effect<Numbered>> {
        let mut higher = submission(n, Due::Now, None, now);
        higher.submission.spec.priority = Priority::new(1).unwrap();
        assert_eq!(give(state, Command::Submit(vec![higher]), now), "flush find(0,1)");
        assert_eq!(words(&state.slots_found(SlotsFound::default(), now)), "commit(submit)");
        state.committed(BatchId(state.last_batch), AT, &[JobVerdict::Written], now)
    }

    #[test]
    fn higher_jobs_do_not_wait_behind_a_group_that_is_full() {
        let now = Instant::now();
        for memory in [WAITING_BYTES_MAX, 0] {
            let mut state = reading_with(memory, vec![group()], now);
            let template = waiting(&state.lane, 1);
            let jobs =
                (0..=GROUP_JOBS_ALONE_MAX as u64).map(|n| LiveJob { id: job(1_000 + n), ..template.clone() });
            state.waiting_read(PageId(1), Ok((jobs.collect(), true)), now);
            assert!(state.jobs.has_more_outside());
            submit(&mut state, 1, now);
            assert_eq!(commit(&mut state, now), "accepted notify");
            assert_eq!(words(&submit_higher(&mut state, 2, now)), "accepted notify enqueue", "{memory}");
        }
    }

    #[test]
    fn a_higher_job_that_found_no_room_is_before_the_others_after_the_next_look() {
        let now = Instant::now();
        for is_promoted in [false, true] {
            let mut state = reading_with(0, vec![group()], now);
            let lower = filling(&state, &group(), 100);
            let effects = state.waiting_read(PageId(1), Ok((lower.clone(), true)), now);
            assert_eq!(effects.len(), 8, "{}", words(&effects));
            let mut higher = waiting(&state.lane, 2);
            higher.spec.priority = Priority::new(1).unwrap();
            let promoted =
                PromotedJob { job: higher.id, priority: higher.spec.priority, group: group_of(&higher.spec) };
            let mut ledger = vec![higher];
            ledger.extend(lower);
            let effects = if is_promoted {
                state.start_promotion(&mut Vec::new());
                state.promoted(Ok(vec![promoted]), now)
            } else {
                submit_higher(&mut state, 2, now)
            };
            read_all(&mut state, effects, &ledger, now);
            assert!(state.jobs.get(job(2)).is_none(), "there is no room");
            let later = now + REREAD_EVERY * 2;
            let effects = state.flush(later);
            read_all(&mut state, effects, &ledger, later);
            assert!(state.jobs.get(job(2)).is_some(), "{is_promoted}");
            let inside = ledger.iter().filter(|one| state.jobs.get(one.id).is_some()).count();
            assert_eq!(inside, 8, "the last of the others has no room");
        }
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
