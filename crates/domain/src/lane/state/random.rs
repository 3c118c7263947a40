//! Random sequences of everything that can happen to a lane, against a simple ledger, scheduler and nodes.
//!
//! Checked at each step: no job is written by two batches at once, nothing leaves that is not committed, each caller is
//! answered once, and truly; of a strict session one job is under way at a time, in the order of the places; an owner that
//! gets `Stop` ends, and has answered everybody; no caller's submissions change places. Checked at the end, when everybody
//! works: all jobs that were accepted are finished, and nobody waits.

mod ledger;
mod memory;
mod moves;
mod turns;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::*;
use crate::Timestamp;
use crate::job::{Attempt, Class, Due, JobVerdict, Revoked, State, WaitingGroup};
use crate::lane::jobs::group_of;
use crate::lane::messages::{
    AttemptEvent, AttemptsAt, Coming, Completed, PageId, ReservedSlot, SessionSnapshot, SlotsFound,
    WrittenBatch,
};
use crate::lane::testing::{Numbered, completion, job, node, seed, settings, slot, submission, waiting};
use crate::session::{Ordering, Spec};

const AT: Timestamp = Timestamp::from_micros(1_000_000);

/// A job as the ledger has it.
#[derive(Clone)]
struct Row {
    live: LiveJob,
    due: Option<Instant>,
    is_finished: bool,
}

struct AskedPage {
    id: PageId,
    group: WaitingGroup,
    limit: u32,
    /// The jobs, and whether these are all that wait.
    read: Option<(Vec<LiveJob>, bool)>,
}

struct World {
    rng: Spread,
    lane: LaneState<Numbered>,
    memory: WaitingBytes,
    is_strict: bool,
    is_session: bool,
    /// Whether no new job gets a slot at once.
    is_unserved: bool,
    now: Instant,
    token: i64,
    rows: BTreeMap<JobId, Row>,
    keys: HashMap<String, JobId>,
    last_seq: u64,
    /// Batches that the lane has sent, in their order.
    in_flight: Vec<WrittenBatch>,
    /// Batches that are written, or not, and of which the lane has not heard. `None`: nobody knows.
    done: Vec<(WrittenBatch, Option<Vec<JobVerdict>>)>,
    reads: Vec<Read>,
    /// Attempts whose slots are asked for, perhaps under a lease that is gone.
    stranded: Option<Vec<AttemptsAt>>,
    /// Pages that were asked for, also under leases that are gone, with how they were when the ledger read them.
    pages: Vec<AskedPage>,
    is_page_awaited: bool,
    searches: Vec<usize>,
    wanted: Vec<JobId>,
    /// Jobs that leave their slots to those that are wanted.
    offers: Vec<JobId>,
    /// Jobs whose transfer is under way.
    leaving: Option<Vec<JobId>>,
    is_promoting: bool,
    loads: usize,
    closes: usize,
    flushes: usize,
    queue: BTreeMap<JobId, Attempt>,
    /// Attempts that nodes have.
    at_nodes: BTreeMap<JobId, (Attempt, bool)>,
    dispatched: HashSet<(JobId, Attempt)>,
    removals: Vec<(JobId, Attempt)>,
    silent: Vec<(JobId, Attempt)>,
    submitted: HashSet<u64>,
    cancelling: HashSet<u64>,
    has_stopped: bool,
    next: u64,
    turns: turns::Turns,
}

impl World {
    fn new(seed: u64, ordering: Option<Ordering>, memory: &WaitingBytes) -> Self {
        let now = Instant::now();
        let name = if ordering.is_some() { "session:s" } else { "instance:i" };
        let lane = LaneId::parse(name).unwrap();
        let settings = LaneSettings { waiting: memory.clone(), ..settings(seed) };
        let mut world = Self {
            rng: Spread::new(seed),
            lane: LaneState::new(lane, Token::new(1), ordering.is_some(), settings, now),
            memory: memory.clone(),
            is_strict: ordering == Some(Ordering::Strict),
            is_session: ordering.is_some(),
            is_unserved: false,
            now,
            token: 1,
            rows: BTreeMap::new(),
            keys: HashMap::new(),
            last_seq: 0,
            in_flight: Vec::new(),
            done: Vec::new(),
            reads: Vec::new(),
            stranded: None,
            pages: Vec::new(),
            is_page_awaited: false,
            searches: Vec::new(),
            wanted: Vec::new(),
            offers: Vec::new(),
            leaving: None,
            is_promoting: false,
            loads: 1,
            closes: 0,
            flushes: 0,
            queue: BTreeMap::new(),
            at_nodes: BTreeMap::new(),
            dispatched: HashSet::new(),
            removals: Vec::new(),
            silent: Vec::new(),
            submitted: HashSet::new(),
            cancelling: HashSet::new(),
            has_stopped: false,
            next: 1,
            turns: turns::Turns::new(ordering),
        };
        world.load();
        world
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    fn any<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        (!of.is_empty()).then(|| of[self.rng.below(of.len() as u64) as usize].clone())
    }

    fn unfinished(&self) -> impl Iterator<Item = &Row> {
        self.rows.values().filter(|row| !row.is_finished)
    }

    fn load(&mut self) {
        self.loads -= 1;
        self.token += 1;
        let in_flight =
            self.unfinished().filter(|row| row.live.placed.is_some()).map(|row| row.live.clone()).collect();
        let session = self.is_session.then(|| SessionSnapshot {
            spec: Spec {
                tenant: None,
                needs: crate::job::Requirements::default(),
                ordering: if self.is_strict { Ordering::Strict } else { Ordering::Free },
                idle_ms: 600_000_000,
            },
            is_closed: false,
            idle_for_ms: 0,
            last_seq: self.last_seq,
            unfinished: self.unfinished().count() as u64,
            affinity: None,
            recent_refs: Vec::new(),
        });
        let groups = if self.is_strict { Vec::new() } else { self.groups() };
        let jobs = if self.is_strict { Vec::new() } else { self.coming() };
        let coming = Coming { jobs, is_cut: false };
        let snapshot = Snapshot { session, in_flight, groups, coming, ..Snapshot::default() };
        let effects = self.lane.reloaded(Token::new(self.token), snapshot, self.now);
        self.take(effects);
    }

    /// The groups that have jobs that wait.
    fn groups(&self) -> Vec<WaitingGroup> {
        let waiting = self.unfinished().filter(|row| row.live.placed.is_none() && row.due.is_none());
        let groups: HashSet<_> = waiting.map(|row| group_of(&row.live.spec)).collect();
        groups.into_iter().collect()
    }

    fn due_in_ms(&self, row: &Row) -> u64 {
        row.due.map_or(0, |due| due.saturating_duration_since(self.now).as_millis() as u64)
    }

    fn coming(&self) -> Vec<(LiveJob, u64)> {
        let delayed = self.unfinished().filter(|row| row.live.placed.is_none() && row.due.is_some());
        delayed.map(|row| (row.live.clone(), self.due_in_ms(row))).collect()
    }

    fn give(&mut self, command: Command<Numbered>) {
        let effects = self.lane.apply(command, self.now);
        self.take(effects);
    }

    fn take(&mut self, effects: Vec<Effect<Numbered>>) {
        for effect in effects {
            self.carry_out(effect);
        }
    }

    fn carry_out(&mut self, effect: Effect<Numbered>) {
        match effect {
            Effect::Flush => self.flushes += 1,
            Effect::Commit(batch) => {
                assert_eq!(batch.token, Token::new(self.token));
                assert!(self.leaving.is_none() && !self.is_promoting, "jobs are transferred alone");
                let under_way = self.in_flight.iter().chain(self.done.iter().map(|(batch, _)| batch));
                let mut jobs: HashSet<_> =
                    under_way.flat_map(|other| other.writes.iter().map(|write| write.change.job())).collect();
                for write in batch.writes.iter() {
                    assert!(jobs.insert(write.change.job()), "a job is written twice at once");
                }
                self.in_flight.push(batch);
                assert!(self.in_flight.len() + self.done.len() <= 1, "two commits at once");
            }
            Effect::FindSlots(search) => {
                self.turns.taken(&search);
                assert!(!(self.is_strict && search.requests.len() > 1), "one has its turn");
                self.wanted = search.requests.iter().map(|request| request.job).collect();
                self.offers = search.offers.into_iter().map(|(job, _)| job).collect();
                self.searches.push(search.requests.len());
            }
            Effect::Submitted(caller, answer) => {
                assert!(self.submitted.remove(&caller), "answered twice");
                if let Ok(accepted) = answer {
                    assert!(self.rows.contains_key(&accepted.id), "accepted, and not written");
                }
            }
            Effect::AnswerByKey(answers) => {
                for answer in answers {
                    assert!(self.submitted.remove(&answer.reply), "answered twice");
                }
            }
            Effect::LookUp(pending) => {
                assert!(self.is_session && !self.is_strict, "places are no gaps elsewhere");
                let name = |one: &PendingSubmission<Numbered>| {
                    one.submission.key.as_ref().unwrap().scope.key.to_string()
                };
                let (kept, new): (Vec<_>, Vec<_>) =
                    pending.into_iter().partition(|one| self.keys.contains_key(&name(one)));
                for one in kept {
                    assert!(self.submitted.remove(&one.reply), "answered twice");
                }
                let effects = self.lane.looked_up(new, self.now);
                self.take(effects);
            }
            Effect::Cancelled(caller, answer) => {
                assert!(self.cancelling.remove(&caller), "answered twice");
                let _ = answer;
            }
            Effect::Completed(completed) => {
                for Completed { job, is_written, next, .. } in completed {
                    assert!(!is_written || self.rows[&job].is_finished);
                    if let Some(order) = next {
                        self.send(order.job.id, order.current.attempt);
                    }
                }
            }
            Effect::Dispatch(order) => self.send(order.job.id, order.current.attempt),
            Effect::Withdraw(order) => {
                if self.at_nodes.get(&order.job).is_some_and(|(attempt, _)| *attempt == order.attempt) {
                    self.at_nodes.remove(&order.job);
                }
                if order.is_awaited {
                    self.removals.push((order.job, order.attempt));
                }
            }
            Effect::Enqueue(enqueue) => {
                self.queue.insert(enqueue.job.id, enqueue.attempt);
                assert!(!self.is_strict || self.queue.len() == 1, "one has its turn");
            }
            Effect::LookForOlder { .. } => unreachable!("only lanes of plans do"),
            Effect::LookForNode { attempts, .. } => self.silent.extend(attempts),
            Effect::Dequeue(job) => drop(self.queue.remove(&job)),
            Effect::DequeueAll => self.queue.clear(),
            Effect::Read(Read::Waiting { page: id, group, limit }) => {
                let is_free = self.reads.is_empty()
                    && self.leaving.is_none()
                    && !self.is_promoting
                    && !self.is_page_awaited;
                assert!(is_free, "pages are read one by one, and beside rounds alone");
                self.is_page_awaited = true;
                self.pages.push(AskedPage { id, group, limit, read: None });
            }
            Effect::Read(Read::Stranded(nodes)) => {
                assert!(self.stranded.replace(nodes).is_none(), "it is asked for slots once at a time");
            }
            Effect::Read(read) => {
                assert!(self.is_quiet() && self.leaving.is_none() && !self.is_promoting, "it reads alone");
                self.reads.push(read);
            }
            Effect::AcquireAnew => {
                self.loads += 1;
                self.turns.begin_anew();
                (self.leaving, self.is_promoting) = (None, false);
                self.is_page_awaited = false;
                self.in_flight.clear();
                self.done.clear();
            }
            Effect::CloseSession => self.closes += 1,
            Effect::Promote => {
                assert!(self.is_quiet() && self.leaving.is_none(), "jobs are promoted alone");
                self.is_promoting = true;
            }
            Effect::Transfer(jobs) => {
                assert!(
                    self.is_quiet() && self.leaving.is_none() && !self.is_promoting,
                    "jobs are transferred alone"
                );
                self.leaving = Some(jobs.into_iter().map(|(job, _)| job).collect());
            }
            Effect::Closed(..)
            | Effect::ReleaseSlot { .. }
            | Effect::ReleaseUnsent { .. }
            | Effect::SlotFreed(_)
            | Effect::Notify(_)
            | Effect::Waited(_)
            | Effect::Bind(_) => {}
            Effect::Stop => self.has_stopped = true,
        }
    }

    fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && self.done.is_empty() && self.reads.is_empty() && !self.is_page_awaited
    }

    /// An attempt leaves for its node: only if it is so in the ledger, or was, and never twice.
    fn send(&mut self, id: JobId, attempt: Attempt) {
        assert!(self.dispatched.insert((id, attempt)), "sent twice");
        let row = &self.rows[&id];
        assert!(row.live.newest.attempt >= attempt, "sent, and not written");
        if self.is_strict {
            let before = self.unfinished().any(|other| other.live.seq < row.live.seq);
            assert!(!before, "sent before its turn");
        }
        self.at_nodes.insert(id, (attempt, false));
    }

    /// Another lane's owner has moved a job here.
    fn receive(&mut self) {
        let id = job(self.next);
        let mut live = waiting(&self.lane.lane, self.next);
        live.spec.max_attempts = 1_000;
        self.next += 1;
        self.rows.insert(id, Row { live, due: None, is_finished: false });
        self.give(Command::LookForTransferred);
    }

    fn find(&mut self, percent: u64) {
        let Some(_) = self.searches.pop() else { return };
        let mut found = SlotsFound::default();
        for id in std::mem::take(&mut self.wanted) {
            if self.chance(percent) && !self.is_unserved {
                let instead_of = if self.chance(70) { self.offers.pop() } else { None };
                found.reserved.insert(id, ReservedSlot { instead_of, ..slot("n") });
            }
        }
        let effects = self.lane.slots_found(found, self.now);
        self.take(effects);
    }

    fn schedule(&mut self, percent: u64) {
        let waiting: Vec<_> = self.queue.keys().copied().collect();
        let Some(id) = self.any(&waiting) else { return };
        let Some(attempt) = self.queue.remove(&id) else { return };
        if self.chance(percent) {
            self.give(Command::SlotReserved(id, attempt, slot("n")));
        } else {
            self.give(Command::SlotUnavailable(id));
        }
    }

    /// Something happens at a node; whether the lane hears of it is left to chance.
    fn work(&mut self, is_good: bool) {
        let there: Vec<_> = self.at_nodes.keys().copied().collect();
        let Some(id) = self.any(&there) else { return };
        let (attempt, is_acknowledged) = self.at_nodes[&id];
        let is_heard = is_good || self.chance(70);
        let event = |event| Command::Attempt(id, attempt, event);
        let is_current = {
            let row = &self.rows[&id];
            !row.is_finished && row.live.placed.is_some() && row.live.newest.attempt == attempt
        };
        if !is_current {
            self.at_nodes.remove(&id);
            return;
        }
        if !is_acknowledged && !is_good && self.chance(40) {
            self.at_nodes.insert(id, (attempt, true));
            let row = self.rows.get_mut(&id).unwrap();
            row.live.newest.state = State::Running;
            if is_heard {
                self.give(event(AttemptEvent::Acknowledged));
            }
            return;
        }
        self.at_nodes.remove(&id);
        match self.rng.below(if is_good { 2 } else { 6 }) {
            0 => {
                let mut request = completion(1, 1, "n");
                if let Command::Complete(request) = &mut request {
                    (request.job, request.attempt) = (id, attempt);
                }
                self.give(request);
                if !is_good {
                    // It failed before that, as its node's instance has written.
                    if self.chance(20) {
                        let now = self.now;
                        Self::back(self.rows.get_mut(&id).unwrap(), 50, true, now);
                    }
                    return;
                }
                // The lane may not know it: then its node's instance writes it.
                self.settle();
                let row = self.rows.get_mut(&id).unwrap();
                let is_there = row.live.placed.is_some() && row.live.newest.attempt == attempt;
                if is_there {
                    row.is_finished = true;
                    self.give(event(AttemptEvent::Finished));
                }
            }
            1 | 2 => {
                self.rows.get_mut(&id).unwrap().is_finished = true;
                if is_heard {
                    self.give(event(AttemptEvent::Finished));
                }
            }
            3 => {
                let now = self.now;
                Self::back(self.rows.get_mut(&id).unwrap(), 50, true, now);
                if is_heard {
                    self.give(event(AttemptEvent::Failed { due_in_ms: 50 }));
                }
            }
            4 => self.give(event(AttemptEvent::Revoked(Revoked::Rejected, "no".to_owned()))),
            _ => self.give(event(AttemptEvent::ConnectionLost)),
        }
    }

    fn flush(&mut self) {
        self.flushes = 0;
        let effects = self.lane.flush(self.now);
        self.take(effects);
    }

    fn step(&mut self) {
        match self.rng.below(if self.is_session { 17 } else { 20 }) {
            17 => {
                let to = crate::InstanceId::parse("other").unwrap();
                let jobs: Vec<_> = (1..self.next).map(|n| (job(n), to.clone())).collect();
                self.give(Command::Transfer(jobs));
            }
            18 if self.is_promoting => self.promote(true),
            18 => self.transfer(true),
            19 => self.receive(),
            0..=2 => {
                let count = 1 + self.rng.below(3);
                let by = self.any(&turns::SUBMITTERS).flatten();
                let mut new = Vec::new();
                for _ in 0..count {
                    let due = if self.chance(25) { Due::InMs(self.rng.below(3_000)) } else { Due::Now };
                    let key = if self.chance(30) { Some(self.rng.below(5).to_string()) } else { None };
                    let mut pending = submission(self.next, due, key.as_deref(), self.now);
                    // Failures do not end a job here.
                    pending.submission.spec.max_attempts = 1_000;
                    let priority = self.rng.below(3) as i64;
                    pending.submission.spec.priority = crate::job::Priority::new(priority).unwrap();
                    let tenants = ["a", "b"].map(|name| crate::TenantId::parse(name).unwrap());
                    // A session is one tenant's.
                    pending.submission.spec.tenant = self.any(&tenants).filter(|_| !self.is_session);
                    if self.chance(30) {
                        pending.submission.spec.payload = memory::large();
                    }
                    self.turns.submitted(&mut pending, by);
                    self.submitted.insert(self.next);
                    self.next += 1;
                    new.push(pending);
                }
                self.give(Command::Submit(new));
            }
            3 if self.next > 1 => {
                let of = 1 + self.rng.below(self.next - 1);
                self.next += 1;
                self.cancelling.insert(self.next);
                self.turns.cancelled(job(of));
                self.give(Command::Cancel(job(of), Class::default(), self.next));
            }
            4 | 5 => self.flush(),
            6 => self.write_next(true),
            7 => self.answer(),
            8 if self.chance(30) => self.look_for_slots(),
            8 => self.read(true),
            15 => self.page(true),
            9 => self.find(70),
            16 if self.chance(10) => self.hand_on(),
            10 => self.schedule(70),
            11 | 12 => self.work(false),
            13 => self.now += Duration::from_millis(self.rng.below(4_000)),
            14 if self.chance(20) => {
                self.at_nodes.clear();
                self.give(Command::NodeDeparted(node("n")));
            }
            _ => {
                if let Some((id, attempt)) = self.removals.pop() {
                    self.give(Command::ReservationRemoved(id, attempt));
                }
            }
        }
        if self.loads > 0 && self.chance(60) {
            self.load();
        }
        if let Some(session) = self.lane.session() {
            let unfinished = self.unfinished().count() as u64;
            assert!(session.unfinished() >= unfinished, "a job is counted down twice");
        }
        assert!(self.lane.jobs.counts_groups_right());
    }

    /// Everything that is under way comes to its end.
    fn settle(&mut self) {
        for _ in 0..1_000 {
            if self.loads > 0 {
                self.load();
            }
            self.go_on();
            let is_at_rest = self.loads == 0
                && self.flushes == 0
                && self.searches.is_empty()
                && self.pages.is_empty()
                && self.leaving.is_none()
                && !self.is_promoting
                && self.is_quiet();
            if is_at_rest {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Everybody works until all is done.
    fn finish(&mut self) {
        for _ in 0..2_000 {
            self.settle();
            while let Some((id, attempt)) = self.removals.pop() {
                self.give(Command::ReservationRemoved(id, attempt));
            }
            for _ in 0..self.queue.len() {
                self.schedule(100);
            }
            self.settle();
            for _ in 0..self.at_nodes.len() {
                self.work(true);
            }
            self.settle();
            if self.unfinished().next().is_none() && self.submitted.is_empty() && self.cancelling.is_empty() {
                return;
            }
            self.now += Duration::from_millis(500);
        }
        let left: Vec<_> =
            self.unfinished().map(|row| (row.live.id, row.live.newest, row.due.is_some())).collect();
        panic!("never finished: {left:?}, {:?} {:?} wait", self.submitted, self.cancelling);
    }
}

fn sequences(ordering: Option<Ordering>, salt: u64) {
    let seed = seed().wrapping_add(salt);
    for case in 0..300 {
        let memory = memory::of_case(case);
        let mut world = World::new(seed.wrapping_add(case * 1_000), ordering, &memory);
        for _ in 0..120 {
            world.step();
        }
        world.finish();
    }
}

#[test]
fn a_lane_keeps_its_promises() {
    sequences(None, 1);
}

#[test]
fn a_strict_session_keeps_its_promises_and_its_order() {
    sequences(Some(Ordering::Strict), 2);
}

#[test]
fn a_session_without_order_keeps_its_promises() {
    sequences(Some(Ordering::Free), 3);
}
