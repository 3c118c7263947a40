//! Which entries of inboxes this handle was given, and which of them took effect: so that an entry that is read again
//! because it was not settled is told apart from a copy that another hand put into the stream.

use std::collections::HashMap;
use std::sync::Mutex;

use domain::InstanceId;

use super::seal::{Origin, Place, Replays, Sealer};
use crate::limits::INBOX_ENTRIES_MAX;
use crate::{Entry, EntryId};

/// Inboxes whose entries are remembered: this instance's own, and those of dead instances that it empties.
const INBOXES_MAX: usize = 64;
/// Entries of one inbox that were given out and not settled. Beyond that all are forgotten, and may be given out again.
const GIVEN_MAX: usize = 4 * INBOX_ENTRIES_MAX;

/// What is known of the inboxes that this handle reads.
#[derive(Default)]
pub(super) struct InboxSeals(Mutex<HashMap<InstanceId, Known>>);

#[derive(Default)]
struct Known {
    settled: Replays,
    given: HashMap<EntryId, Origin>,
    given_as: HashMap<Origin, EntryId>,
}

/// Why an entry counts for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejected {
    /// No instance of this cluster sealed it for this inbox.
    Seal,
    /// It is a copy, or has taken effect.
    Replay,
}

impl Rejected {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Seal => "seal",
            Self::Replay => "replay",
        }
    }
}

impl InboxSeals {
    /// The entry with its text, if it is to take effect.
    pub(super) fn open(&self, sealer: &Sealer, of: &InstanceId, sealed: &Entry) -> Result<Entry, Rejected> {
        let (origin, text) = sealer.open(Place::Inbox(of), &sealed.payload).ok_or(Rejected::Seal)?;
        let mut inboxes = self.0.lock().expect("no holder of this lock panics");
        if inboxes.len() >= INBOXES_MAX && !inboxes.contains_key(of) {
            inboxes.clear();
        }
        let known = inboxes.entry(of.clone()).or_default();
        let is_copy = known.given_as.get(&origin).is_some_and(|id| *id != sealed.id);
        if is_copy || known.settled.has(origin) {
            return Err(Rejected::Replay);
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
        let mut inboxes = self.0.lock().expect("no holder of this lock panics");
        let Some(known) = inboxes.get_mut(of) else { return };
        for id in entries {
            if let Some(origin) = known.given.remove(id) {
                known.given_as.remove(&origin);
                known.settled.note(origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use domain::ClusterSecret;

    use super::*;
    use crate::Cluster;

    #[test]
    fn an_entry_that_was_not_settled_is_given_again_and_no_copy_of_it() {
        let secret = ClusterSecret::parse(&"s".repeat(32)).unwrap();
        let sealer = Sealer::new(&Cluster { id: "c".to_owned(), secret });
        let (seals, me) = (InboxSeals::default(), InstanceId::parse("i-1").unwrap());
        let entry =
            |sequence, sealed: &[u8]| Entry { id: EntryId { ms: 1, sequence }, payload: sealed.into() };
        let sealed = sealer.seal(Place::Inbox(&me), b"text");
        let first = entry(1, &sealed);
        let opened = seals.open(&sealer, &me, &first).unwrap();
        assert_eq!((opened.id, &*opened.payload), (first.id, &b"text"[..]));
        assert!(seals.open(&sealer, &me, &first).is_ok(), "it was not settled");
        assert_eq!(seals.open(&sealer, &me, &entry(2, &sealed)), Err(Rejected::Replay), "a copy beside it");
        seals.settle(&me, &[first.id]);
        for sequence in [1, 3] {
            assert_eq!(seals.open(&sealer, &me, &entry(sequence, &sealed)), Err(Rejected::Replay));
        }
        assert_eq!(seals.open(&sealer, &me, &entry(4, b"{}")), Err(Rejected::Seal));
        let other = InstanceId::parse("i-2").unwrap();
        assert_eq!(seals.open(&sealer, &other, &first), Err(Rejected::Seal), "it is not for that inbox");
    }
}
