//! One node in this instance's memory. Writers take its lock; selections read its atomics and do not wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use bus::{Epoch, NodeState, Version};
use parking_lot::{Mutex, MutexGuard};

use crate::limits::silence_max;
use crate::record::{Applied, Load, Profile, Record, Stamp, Status};

/// One connection of one node. Another connection is another entry.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) profile: Arc<Profile>,
    pub(crate) epoch: Epoch,
    /// The last update. No selection reads it.
    last_update: Mutex<LastUpdate>,
    /// The status of the last update, with what this instance itself found out, in one atomic word.
    word: AtomicU64,
    /// A [`Counted`], in one atomic word: a claim that is compared with one of its numbers alone would be granted on the other's
    /// old value, where another claim begins and ends meanwhile.
    counted: AtomicU64,
}

/// What this instance has counted itself.
#[derive(Clone, Copy)]
struct Counted {
    /// Slots that it reserved, less those that it freed, since the last update, which may not count them yet.
    since: i32,
    /// Slots that its selections are about to reserve.
    pending: u32,
}

impl Counted {
    const fn of_word(word: u64) -> Self {
        Self { since: (word >> 32) as u32 as i32, pending: word as u32 }
    }

    const fn to_word(self) -> u64 {
        (self.since as u32 as u64) << 32 | self.pending as u64
    }
}

/// What only writers look at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastUpdate {
    pub(crate) version: Version,
    pub(crate) load: Load,
    /// When something new was heard of it.
    pub(crate) heard: Instant,
    /// When its version was last compared with the bus's.
    pub(crate) compared: Instant,
    /// Since when the bus has not taken what this instance says of the node, whose socket it holds.
    unwritten_since: Option<Instant>,
}

/// The instance that holds its socket does not show itself on the bus, or is dead.
const ABANDONED: u64 = 1 << 59;
/// This instance has heard nothing of it for two heartbeats.
const SILENT: u64 = 1 << 60;
/// This connection is over.
const ENDED: u64 = 1 << 61;
/// Found full at the bus since the last update.
const FULL: u64 = 1 << 62;

/// What stands against giving a node work, apart from what a job needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    Unreachable,
    NotReady,
    Draining,
    Unhealthy,
    Full,
}

impl Entry {
    /// The entry of a record whose holder refreshed it at `heard`. Whether that holder is there is found out later.
    pub(crate) fn new(record: Record, heard: Instant, now: Instant) -> Self {
        let Record { stamp, profile, status, load } = record;
        let (version, compared) = (stamp.version, now);
        Self {
            profile,
            epoch: stamp.epoch,
            last_update: Mutex::new(LastUpdate { version, load, heard, compared, unwritten_since: None }),
            word: AtomicU64::new(status.to_word()),
            counted: AtomicU64::new(0),
        }
    }

    /// Applies an update, unless it is older than the last one. One of the same version is applied too:
    /// reserving and freeing a slot does not change the version, and this instance's own count starts again
    /// with each update.
    pub(crate) fn take(
        &self,
        version: Version,
        state: (Status, Load),
        heard: Instant,
        now: Instant,
    ) -> Applied {
        let mut last = self.last_update();
        last.compared = now;
        if version < last.version {
            return Applied::Stale;
        }
        let applied = if version == last.version { Applied::Repeated } else { Applied::New };
        let (status, load) = state;
        (last.version, last.load, last.heard) = (version, load, last.heard.max(heard));
        last.unwritten_since = None;
        // What is true but was refreshed long ago is no word from the node.
        let is_quiet = now.duration_since(last.heard) > silence_max(self.profile.heartbeat_ms);
        let kept = if is_quiet { ENDED | ABANDONED | SILENT } else { ENDED | ABANDONED };
        self.word.store(status.to_word() | self.word.load(SeqCst) & kept, SeqCst);
        self.count(|counted| counted.since = 0);
        applied
    }

    pub(crate) fn stamp(&self) -> Stamp {
        Stamp { epoch: self.epoch, version: self.last_update().version }
    }

    pub(crate) fn last_update(&self) -> MutexGuard<'_, LastUpdate> {
        self.last_update.lock()
    }

    /// The bus has not taken what this instance says of the node since then.
    pub(crate) fn unwritten(&self, since: Instant) {
        self.last_update().unwritten_since = Some(since);
    }

    pub(crate) fn unwritten_since(&self) -> Option<Instant> {
        self.last_update().unwritten_since
    }

    pub(crate) fn record(&self) -> Record {
        let LastUpdate { version, load, .. } = *self.last_update();
        let stamp = Stamp { epoch: self.epoch, version };
        Record { stamp, profile: Arc::clone(&self.profile), status: self.status(), load }
    }

    /// Whether it is given work, as this instance sees it.
    pub(crate) fn state(&self) -> NodeState {
        let word = self.word.load(SeqCst);
        match Status::from_word(word).state {
            NodeState::Accepting if word & (SILENT | ABANDONED) != 0 => NodeState::Unhealthy,
            state => state,
        }
    }

    /// The status as this instance sees it, with its own reservations.
    pub(crate) fn status(&self) -> Status {
        let word = self.word.load(SeqCst);
        let status = Status::from_word(word);
        let used = i64::from(status.capacity) - self.free();
        let used = u32::try_from(used.max(0)).unwrap_or(u32::MAX);
        Status { used, state: self.state(), ..status }
    }

    pub(crate) fn end(&self) {
        self.mark(ENDED);
    }

    pub(crate) fn is_ended(&self) -> bool {
        self.word.load(SeqCst) & ENDED != 0
    }

    pub(crate) fn fall_silent(&self) {
        self.mark(SILENT);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.word.load(SeqCst) & SILENT != 0
    }

    pub(crate) fn found_full(&self) {
        self.mark(FULL);
    }

    pub(crate) fn is_found_full(&self) -> bool {
        self.word.load(SeqCst) & FULL != 0
    }

    /// Its holder is there, or is not. Whether that is new.
    pub(crate) fn holder_is_there(&self, is_there: bool) -> bool {
        let was_there = self.word.load(SeqCst) & ABANDONED == 0;
        if is_there && !was_there {
            // Under the lock, as with every other change of the word.
            let _update = self.last_update();
            self.word.fetch_and(!ABANDONED, SeqCst);
        } else if !is_there && was_there {
            self.mark(ABANDONED);
        }
        is_there != was_there
    }

    /// Under the lock, so that an update in between is not undone.
    fn mark(&self, flag: u64) {
        let _update = self.last_update();
        self.word.fetch_or(flag, SeqCst);
    }

    /// One more slot is about to be reserved; `false`, and nothing changes, if there is none.
    pub(crate) fn claim(&self) -> bool {
        let one_more = |word| {
            let Counted { since, pending } = Counted::of_word(word);
            let is_free = self.may_work() && self.free_beside(Counted { since, pending }) > 0;
            is_free.then_some(Counted { since, pending: pending + 1 }.to_word())
        };
        self.counted.fetch_update(SeqCst, SeqCst, one_more).is_ok()
    }

    /// A claim ends, with its slot reserved or without.
    pub(crate) fn end_claim(&self, is_reserved: bool) {
        self.count(|counted| {
            counted.since += i32::from(is_reserved);
            counted.pending -= 1;
        });
    }

    /// One of its slots was freed.
    pub(crate) fn freed(&self) {
        self.count(|counted| counted.since -= 1);
        self.clear_full();
    }

    /// It may be tried again, though it was found full.
    pub(crate) fn clear_full(&self) {
        // Under the lock, as with every other change of the word.
        let _update = self.last_update();
        self.word.fetch_and(!FULL, SeqCst);
    }

    /// A reservation was taken back at the bus, be it one of this connection or of an earlier one.
    pub(crate) fn unreserved(&self) {
        // If it is counted here at all: an update may have come since it was made.
        self.count(|counted| counted.since -= i32::from(counted.since > 0));
        self.clear_full();
    }

    /// Slots that are not taken; below 0 when more are taken than there are.
    pub(crate) fn free(&self) -> i64 {
        self.free_beside(Counted::of_word(self.counted.load(SeqCst)))
    }

    /// Whether a quarter of its slots at least were free at its last update.
    pub(crate) fn had_much_room(&self) -> bool {
        let Status { capacity, used, .. } = Status::from_word(self.word.load(SeqCst));
        u64::from(used) * 4 <= u64::from(capacity) * 3
    }

    /// Whether a selection may choose it now.
    pub(crate) fn is_open(&self) -> bool {
        self.may_work() && self.free() > 0
    }

    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        let word = self.word.load(SeqCst);
        let status = Status::from_word(word);
        if word & ABANDONED != 0 {
            Some(Obstacle::Unreachable)
        } else if word & ENDED != 0 || !status.is_complete {
            Some(Obstacle::NotReady)
        } else if status.state == NodeState::Draining {
            Some(Obstacle::Draining)
        } else if status.state == NodeState::Unhealthy || word & SILENT != 0 {
            Some(Obstacle::Unhealthy)
        } else if word & FULL != 0 || self.free() <= 0 {
            Some(Obstacle::Full)
        } else {
            None
        }
    }

    /// Whether it is given work whenever it has a free slot.
    pub(crate) fn takes_work(&self) -> bool {
        matches!(self.obstacle(), None | Some(Obstacle::Full))
    }

    fn may_work(&self) -> bool {
        let word = self.word.load(SeqCst);
        let Status { is_complete, state, .. } = Status::from_word(word);
        is_complete && state == NodeState::Accepting && word & (ABANDONED | SILENT | ENDED | FULL) == 0
    }

    /// Changes what is counted, in one step.
    fn count(&self, change: impl Fn(&mut Counted)) {
        let changed = |word| {
            let mut counted = Counted::of_word(word);
            change(&mut counted);
            Some(counted.to_word())
        };
        let _ = self.counted.fetch_update(SeqCst, SeqCst, changed);
    }

    fn free_beside(&self, Counted { since, pending }: Counted) -> i64 {
        let Status { capacity, used, .. } = Status::from_word(self.word.load(SeqCst));
        i64::from(capacity) - i64::from(used) - i64::from(since) - i64::from(pending)
    }
}
