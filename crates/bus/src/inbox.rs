//! Inboxes, one for each instance: messages that must arrive.
//!
//! Unlike a notice, an entry is kept until it was read, took effect and was settled; it may be delivered
//! again, so handling it twice must be harmless. Only a bus that loses its memory loses entries.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use domain::InstanceId;
use panic_guard::again_after_panics;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::Result;
use crate::limits::{
    INBOX_ENTRY_BYTES_MAX, INBOX_IDLE_MS_MAX, INBOX_SEND_BYTES_MAX, INBOX_SEND_ENTRIES_MAX,
    INBOX_SETTLE_ENTRIES_MAX, check_bytes, check_count, check_ms,
};

/// Which entry of an inbox. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    pub(crate) ms: u64,
    pub(crate) sequence: u64,
}

impl EntryId {
    /// Reads the form that [`fmt::Display`] writes.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (ms, sequence) = text.split_once('-')?;
        Some(Self { ms: ms.parse().ok()?, sequence: sequence.parse().ok()? })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.sequence)
    }
}

/// An entry of an inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Names it, to settle it by.
    pub id: EntryId,
    /// What was sent.
    pub payload: Arc<[u8]>,
}

/// The outcome of sending one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It lies in the inbox.
    Sent,
    /// There is no such inbox: never opened, closed by a survivor, or lost and not opened again yet.
    Undeliverable,
    /// The inbox holds [`crate::limits::INBOX_ENTRIES_MAX`] entries.
    Full,
}

/// Inboxes of instances. Only its owner opens one; any instance sends to it; the survivor that took a dead owner's lease
/// empties and closes it. An owner that lives all the same takes that back.
#[async_trait::async_trait]
pub trait Inboxes: Send + Sync {
    /// Opens the owner's inbox and reads it: first what was given out before and never settled, then what comes, and
    /// again what was given out and not settled for `idle`. Should the bus lose its memory, the inbox is opened anew
    /// by itself.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for an `idle` of zero or of more than [`crate::limits::INBOX_IDLE_MS_MAX`],
    /// and what the server says; repeating is harmless.
    async fn open_inbox(&self, owner: &InstanceId, idle: Duration) -> Result<Inbox>;

    /// Puts entries into an inbox, in their order, and says of each what became of it: `Full` for the last ones if
    /// there is not enough room.
    ///
    /// # Errors
    /// [`crate::Error::TooLarge`] and [`crate::Error::Invalid`] beyond [`crate::limits::INBOX_ENTRY_BYTES_MAX`],
    /// [`crate::limits::INBOX_SEND_BYTES_MAX`] or [`crate::limits::INBOX_SEND_ENTRIES_MAX`], and what the server says;
    /// after [`crate::Error::Unknown`] all or some of them may have been sent, and repeating may send them twice.
    async fn send(&self, to: &InstanceId, entries: &[&[u8]]) -> Result<Vec<Delivery>>;

    /// The effect of these entries is durable: they are acknowledged and deleted, in one step.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] beyond [`crate::limits::INBOX_SETTLE_ENTRIES_MAX`], and what the server says; repeating is
    /// harmless.
    async fn settle(&self, of: &InstanceId, entries: &[EntryId]) -> Result<()>;

    /// For a survivor: what lies in a dead owner's inbox after that entry, given out or not, at most
    /// [`crate::limits::INBOX_BATCH_ENTRIES_MAX`] at once; nothing at the end, or if there is no such inbox.
    ///
    /// # Errors
    /// What the server says.
    async fn read_inbox(&self, of: &InstanceId, after: Option<EntryId>) -> Result<Vec<Entry>>;

    /// Closes an inbox for good if it is empty, and says whether it is closed now. From then on every sender gets
    /// [`Delivery::Undeliverable`], and its owner, should it be alive after all, has nothing more to read.
    ///
    /// # Errors
    /// What the server says; repeating is harmless.
    async fn close_inbox(&self, of: &InstanceId) -> Result<bool>;

    /// For an owner that lives by its ledger: takes back that its inbox was closed, so that [`Self::open_inbox`] opens it again.
    /// An instance has closed it then that has another ledger, by which the owner is dead.
    ///
    /// # Errors
    /// What the server says; repeating is harmless.
    async fn reopen_inbox(&self, owner: &InstanceId) -> Result<()>;

    /// How many entries lie in an inbox, given out or not.
    ///
    /// # Errors
    /// What the server says.
    async fn inbox_len(&self, of: &InstanceId) -> Result<u64>;
}

/// What an owner reads of its inbox, by way of a task and a connection of its own. Dropping it ends both; what was
/// not settled stays in the inbox.
#[derive(Debug)]
pub struct Inbox {
    batches: mpsc::Receiver<Vec<Entry>>,
    task: AbortHandle,
}

impl Inbox {
    /// One that is fed by that future, until it ends or the bus is closed. After a panic another one goes on.
    pub(crate) fn fed_by<F>(
        closed: &watch::Sender<bool>,
        feed: impl Fn(mpsc::Sender<Vec<Entry>>) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        // One batch waits while the next is read: no more, since a batch may be large.
        let (sender, batches) = mpsc::channel(1);
        let mut closed = closed.subscribe();
        let task = tokio::spawn(async move {
            tokio::select! {
                _ = closed.wait_for(|closed| *closed) => {}
                () = again_after_panics("the reading of an inbox", move || feed(sender.clone())) => {}
            }
        });
        Self { batches, task: task.abort_handle() }
    }

    /// The next entries, one at least: those of one sender in the order in which it sent them, unless they are given
    /// out again. `None` when the bus or this inbox was closed. Nothing is lost when the wait is given up.
    pub async fn next(&mut self) -> Option<Vec<Entry>> {
        self.batches.recv().await
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Refuses what no inbox would take.
pub(crate) fn check_entries(entries: &[&[u8]]) -> Result<()> {
    check_count("entries sent at once", entries.len(), INBOX_SEND_ENTRIES_MAX)?;
    for entry in entries {
        check_bytes("an entry", entry.len(), INBOX_ENTRY_BYTES_MAX)?;
    }
    let bytes = entries.iter().map(|entry| entry.len()).sum();
    check_bytes("a call's entries", bytes, INBOX_SEND_BYTES_MAX)
}

/// Refuses to settle more than one step takes.
pub(crate) fn check_settled(entries: &[EntryId]) -> Result<()> {
    check_count("entries settled at once", entries.len(), INBOX_SETTLE_ENTRIES_MAX)
}

/// The time after which entries are given out again, in milliseconds.
pub(crate) fn check_idle(idle: Duration) -> Result<u64> {
    check_ms("an inbox's idle time", idle, INBOX_IDLE_MS_MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use testkit::PATIENCE;

    use super::*;
    use crate::Error;

    #[tokio::test]
    async fn an_inbox_is_read_on_after_a_panic_and_ends_with_its_reader() {
        let begun = Arc::new(AtomicUsize::new(0));
        let feed = move |batches: mpsc::Sender<Vec<Entry>>| {
            let begun = Arc::clone(&begun);
            async move {
                assert!(begun.fetch_add(1, Ordering::Relaxed) > 0, "made on purpose");
                let entry = Entry { id: EntryId { ms: 1, sequence: 0 }, payload: Arc::from(&b"text"[..]) };
                batches.send(vec![entry]).await.unwrap();
            }
        };
        let closed = watch::Sender::new(false);
        let mut inbox = Inbox::fed_by(&closed, feed);
        let mut next = async || tokio::time::timeout(PATIENCE, inbox.next()).await.expect("it is read on");
        assert_eq!(next().await.map(|entries| entries.len()), Some(1));
        assert_eq!(next().await, None);
    }

    #[test]
    fn entries_are_named_as_redis_names_them_and_stand_in_their_order() {
        let id = |text| EntryId::parse(text).unwrap();
        assert_eq!(id("1700000000000-7").to_string(), "1700000000000-7");
        assert!(id("9-10") > id("9-9") && id("10-0") > id("9-10"));
        for bad in ["", "7", "-", "7-", "-7", "7-x", "7-7-7"] {
            assert_eq!(EntryId::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn limits_are_refusals_that_say_what_is_allowed() {
        let largest = vec![0; INBOX_ENTRY_BYTES_MAX + 1];
        check_entries(&[&largest[1..]]).unwrap();
        assert!(matches!(check_entries(&[&largest]), Err(Error::TooLarge { what: "an entry", .. })));
        let together =
            check_entries(&[&largest[1..]; INBOX_SEND_BYTES_MAX / INBOX_ENTRY_BYTES_MAX + 1]).unwrap_err();
        assert!(matches!(together, Error::TooLarge { bytes_max: INBOX_SEND_BYTES_MAX, .. }));
        check_entries(&[&b""[..]; INBOX_SEND_ENTRIES_MAX]).unwrap();
        assert!(matches!(check_entries(&[&b""[..]; INBOX_SEND_ENTRIES_MAX + 1]), Err(Error::Invalid(_))));
        assert_eq!(check_idle(Duration::from_millis(1)).unwrap(), 1);
        assert!(check_idle(Duration::ZERO).unwrap_err().to_string().contains("1 to 3600000 ms"));
    }
}
