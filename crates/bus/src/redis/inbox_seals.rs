//! Which entries of inboxes this handle was given, and which of them took effect: so that an entry that is read again
//! because it was not settled is told apart from a copy that another hand put into the stream.

use std::collections::{HashMap, VecDeque};

use domain::InstanceId;
use parking_lot::Mutex;

use super::seal::{Origin, Place, Replays, Sealer};
use crate::limits::{INBOX_ENTRIES_MAX, INBOX_SETTLE_ENTRIES_MAX};
use crate::{Entry, EntryId};

/// Inboxes whose entries are remembered: this instance's own, and those of dead instances that it empties. Beyond that the
/// dead one that was read longest ago is forgotten.
const INBOXES_MAX: usize = 64;
/// Entries of one inbox that were given out and not settled. Beyond that all are forgotten, and may be given out again.
const GIVEN_MAX: usize = 4 * INBOX_ENTRIES_MAX;
/// Settled entries of one inbox whose ids are known. Beyond that all ids are forgotten, and what lies there still counts as a
/// copy.
const SETTLED_MAX: usize = 4 * INBOX_ENTRIES_MAX;
/// Those that were removed last among them: they may have been read just before.
const REMOVED_MAX: usize = INBOX_SETTLE_ENTRIES_MAX;

/// What is known of the inboxes that this handle reads.
#[derive(Default)]
pub(super) struct InboxSeals(Mutex<Remembered>);

#[derive(Default)]
struct Remembered {
    inboxes: HashMap<InstanceId, Known>,
    reads: u64,
}

#[derive(Default)]
struct Known {
    /// Whether this handle opened the inbox, as its owner.
    is_own: bool,
    /// When it was last read, as [`Remembered::reads`] counts.
    read_at: u64,
    settled: Replays,
    settled_ids: HashMap<EntryId, Origin>,
    /// Those of `settled_ids` that were removed, in that order.
    removed: VecDeque<EntryId>,
    given: HashMap<EntryId, Origin>,
    given_as: HashMap<Origin, EntryId>,
}

/// Why an entry counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// No instance of this cluster sealed it for this inbox.
    Seal,
    /// It is a copy.
    Replay,
    /// This handle has settled it, and it was not removed, as where the server's answer did not come.
    Settled,
}

impl Rejected {
    /// How the metrics and the log call it; `None` for what no other hand put there.
    pub(super) const fn reported_as(self) -> Option<&'static str> {
        match self {
            Self::Seal => Some("seal"),
            Self::Replay => Some("replay"),
            Self::Settled => None,
        }
    }
}

impl Remembered {
    fn of(&mut self, of: &InstanceId) -> &mut Known {
        self.reads += 1;
        if self.inboxes.len() >= INBOXES_MAX && !self.inboxes.contains_key(of) {
            // Of its own only the newest is read: an instance that begins anew has another name.
            let longest_ago = self.inboxes.iter().min_by_key(|(_, known)| (known.is_own, known.read_at));
            let longest_ago = longest_ago.map(|(of, _)| of.clone());
            longest_ago.map(|of| self.inboxes.remove(&of));
        }
        let known = self.inboxes.entry(of.clone()).or_default();
        known.read_at = self.reads;
        known
    }
}

impl InboxSeals {
    /// This handle is the owner of the inbox.
    pub(super) fn opened(&self, of: &InstanceId) {
        self.0.lock().of(of).is_own = true;
    }

    /// The inbox is closed for good: nothing of it is read any more.
    pub(super) fn closed(&self, of: &InstanceId) {
        self.0.lock().inboxes.remove(of);
    }

    /// The entry with its text, if it is to take effect.
    pub(super) fn open(&self, sealer: &Sealer, of: &InstanceId, sealed: &Entry) -> Result<Entry, Rejected> {
        let (origin, text) = sealer.open(Place::Inbox(of), &sealed.payload).ok_or(Rejected::Seal)?;
        let mut remembered = self.0.lock();
        let known = remembered.of(of);
        let is_replay = match known.given_as.get(&origin) {
            // Whatever was settled since: this entry was given out, and not settled.
            Some(given_as) => *given_as != sealed.id,
            None => known.settled.has(origin),
        };
        if is_replay {
            let is_there_still = known.settled_ids.get(&sealed.id) == Some(&origin);
            return Err(if is_there_still { Rejected::Settled } else { Rejected::Replay });
        }
        if known.given.len() >= GIVEN_MAX {
            known.given.clear();
            known.given_as.clear();
        }
        known.given.insert(sealed.id, origin);
        known.given_as.insert(origin, sealed.id);
        Ok(Entry { id: sealed.id, payload: text.into() })
    }

    /// The effect of these entries is durable: they never take effect again.
    pub(super) fn settle(&self, of: &InstanceId, entries: &[EntryId]) {
        let mut remembered = self.0.lock();
        let Some(known) = remembered.inboxes.get_mut(of) else { return };
        for id in entries {
            if let Some(origin) = known.given.remove(id) {
                known.given_as.remove(&origin);
                known.settled.note(origin);
                if known.settled_ids.len() >= SETTLED_MAX {
                    known.settled_ids.clear();
                    known.removed.clear();
                }
                known.settled_ids.insert(*id, origin);
            }
        }
    }

    /// These entries are not in the inbox any more.
    pub(super) fn removed(&self, of: &InstanceId, entries: &[EntryId]) {
        let mut remembered = self.0.lock();
        let Some(known) = remembered.inboxes.get_mut(of) else { return };
        known.removed.extend(entries.iter().filter(|id| known.settled_ids.contains_key(*id)));
        while known.removed.len() > REMOVED_MAX {
            known.removed.pop_front().map(|id| known.settled_ids.remove(&id));
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::ClusterSecret;

    use super::*;
    use crate::Cluster;

    fn sealer() -> Sealer {
        let secret = ClusterSecret::parse(&"s".repeat(32)).unwrap();
        Sealer::new(&Cluster { id: "c".to_owned(), secret })
    }

    fn entry(sequence: u64, sealed: &[u8]) -> Entry {
        Entry { id: EntryId { ms: 1, sequence }, payload: sealed.into() }
    }

    #[test]
    fn an_entry_that_was_not_settled_is_given_again_however_many_were_settled_since() {
        let (sealer, seals, me) = (sealer(), InboxSeals::default(), InstanceId::parse("i-1").unwrap());
        let first = entry(0, &sealer.seal(Place::Inbox(&me), b"text"));
        assert!(seals.open(&sealer, &me, &first).is_ok());
        for sequence in 1..10_000 {
            let next = entry(sequence, &sealer.seal(Place::Inbox(&me), b"text"));
            assert!(seals.open(&sealer, &me, &next).is_ok());
            seals.settle(&me, &[next.id]);
        }
        assert!(seals.open(&sealer, &me, &first).is_ok());
        seals.settle(&me, &[first.id]);
        assert_eq!(seals.open(&sealer, &me, &first), Err(Rejected::Settled));
    }

    #[test]
    fn what_was_settled_and_lies_there_still_is_no_copy_and_is_not_reported() {
        let (sealer, seals, me) = (sealer(), InboxSeals::default(), InstanceId::parse("i-1").unwrap());
        let sealed = sealer.seal(Place::Inbox(&me), b"text");
        let first = entry(0, &sealed);
        let settled = |entry: &Entry| {
            seals.open(&sealer, &me, entry).unwrap();
            seals.settle(&me, &[entry.id]);
        };
        let why = |entry: &Entry| seals.open(&sealer, &me, entry).unwrap_err().reported_as();
        settled(&first);
        assert_eq!(why(&first), None, "the answer to its removal did not come");
        assert_eq!(why(&entry(1, &sealed)), Some("replay"));
        let other = entry(0, &sealer.seal(Place::Inbox(&me), b"text"));
        settled(&entry(2, &other.payload));
        assert_eq!(why(&other), Some("replay"), "it lies where another one lay");
        // It may have been read before it was removed.
        seals.removed(&me, &[first.id]);
        assert_eq!(why(&first), None);
        for sequence in 3..3 + REMOVED_MAX as u64 {
            let next = entry(sequence, &sealer.seal(Place::Inbox(&me), b"text"));
            settled(&next);
            seals.removed(&me, &[next.id]);
        }
        assert_eq!(why(&first), Some("replay"), "it was removed long ago");
    }

    #[test]
    fn inboxes_of_the_dead_are_forgotten_before_this_instances_own() {
        let (sealer, seals) = (sealer(), InboxSeals::default());
        let [me, before] = ["me", "before"].map(|id| InstanceId::parse(id).unwrap());
        let settled = |of: &InstanceId| {
            let first = entry(1, &sealer.seal(Place::Inbox(of), b"text"));
            seals.open(&sealer, of, &first).unwrap();
            seals.settle(of, &[first.id]);
            first
        };
        let is_known = |of, entry: &Entry| seals.open(&sealer, of, entry) == Err(Rejected::Settled);
        seals.opened(&before);
        let of_before = settled(&before);
        seals.opened(&me);
        let mine = settled(&me);
        let dead: Vec<_> = (0..2 * INBOXES_MAX)
            .map(|number| InstanceId::parse(&format!("dead-{number}")).unwrap())
            .map(|id| (settled(&id), id))
            .collect();
        let known = seals.0.lock().inboxes.len();
        assert_eq!(known, INBOXES_MAX);
        assert!(is_known(&me, &mine) && is_known(&before, &of_before));
        let (last, id) = dead.last().unwrap();
        assert!(is_known(id, last));
        let (first, id) = &dead[0];
        assert!(!is_known(id, first), "it was read longest ago");
        seals.closed(id);
        assert!(!seals.0.lock().inboxes.contains_key(id));
        // An instance that began anew that often has nothing left to read under its first names.
        for number in 0..INBOXES_MAX {
            seals.opened(&InstanceId::parse(&format!("anew-{number}")).unwrap());
        }
        assert_eq!(seals.0.lock().inboxes.len(), INBOXES_MAX);
    }

    #[test]
    fn an_entry_that_was_not_settled_is_given_again_and_no_copy_of_it() {
        let (sealer, seals, me) = (sealer(), InboxSeals::default(), InstanceId::parse("i-1").unwrap());
        let sealed = sealer.seal(Place::Inbox(&me), b"text");
        let first = entry(1, &sealed);
        let opened = seals.open(&sealer, &me, &first).unwrap();
        assert_eq!((opened.id, &*opened.payload), (first.id, &b"text"[..]));
        assert!(seals.open(&sealer, &me, &first).is_ok(), "it was not settled");
        assert_eq!(seals.open(&sealer, &me, &entry(2, &sealed)), Err(Rejected::Replay), "a copy beside it");
        seals.settle(&me, &[first.id]);
        for (sequence, why) in [(1, Rejected::Settled), (3, Rejected::Replay)] {
            assert_eq!(seals.open(&sealer, &me, &entry(sequence, &sealed)), Err(why));
        }
        assert_eq!(seals.open(&sealer, &me, &entry(4, b"{}")), Err(Rejected::Seal));
        let other = InstanceId::parse("i-2").unwrap();
        assert_eq!(seals.open(&sealer, &other, &first), Err(Rejected::Seal), "it is not for that inbox");
    }
}
