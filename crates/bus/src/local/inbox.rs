//! Inboxes in memory.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::InstanceId;
use tokio::sync::{Notify, mpsc};

use super::{Local, Shared};
use crate::inbox::{check_entries, check_idle, check_settled};
use crate::limits::{INBOX_BATCH_ENTRIES_MAX, INBOX_CLOSED_MS, INBOX_ENTRIES_MAX};
use crate::{Delivery, Entry, EntryId, Inbox, Inboxes, Result};

/// All inboxes of a hub.
#[derive(Default)]
pub(super) struct All {
    open: HashMap<InstanceId, Kept>,
    /// Those that were closed, each with the end of the time for which that is remembered.
    closed: HashMap<InstanceId, Instant>,
    /// Counts the entries of all inboxes.
    sent: u64,
}

/// One inbox.
#[derive(Default)]
struct Kept {
    entries: BTreeMap<EntryId, Lying>,
    /// Told when something came, and when the inbox is closed.
    changed: Arc<Notify>,
}

struct Lying {
    payload: Arc<[u8]>,
    /// When it was last given to the owner.
    given_out: Option<Instant>,
}

/// What a reader looks for.
#[derive(Clone, Copy)]
struct Look {
    /// Only after this entry.
    after: Option<EntryId>,
    /// Only what was given out for the last time so long ago; else everything.
    idle: Option<Duration>,
}

impl All {
    fn open(&mut self, owner: &InstanceId, now: Instant) {
        self.closed.retain(|_, end| *end > now);
        if !self.closed.contains_key(owner) {
            self.open.entry(owner.clone()).or_default();
        }
    }

    fn send(&mut self, to: &InstanceId, entries: &[&[u8]]) -> Vec<Delivery> {
        let Some(inbox) = self.open.get_mut(to) else {
            return vec![Delivery::Undeliverable; entries.len()];
        };
        let mut deliveries = Vec::with_capacity(entries.len());
        for entry in entries {
            if inbox.entries.len() >= INBOX_ENTRIES_MAX {
                deliveries.push(Delivery::Full);
                continue;
            }
            self.sent += 1;
            let id = EntryId { ms: 0, sequence: self.sent };
            inbox.entries.insert(id, Lying { payload: Arc::from(*entry), given_out: None });
            deliveries.push(Delivery::Sent);
        }
        inbox.changed.notify_one();
        deliveries
    }

    /// The next entries for the owner; `None` if there is no such inbox any more.
    fn give_out(&mut self, owner: &InstanceId, look: Look, now: Instant) -> Option<Vec<Entry>> {
        let entries = &mut self.open.get_mut(owner)?.entries;
        let after = look.after.map_or(Bound::Unbounded, Bound::Excluded);
        let is_due = |lying: &Lying| {
            look.idle.is_none_or(|idle| lying.given_out.is_some_and(|given_out| now - given_out >= idle))
        };
        let due = entries.range_mut((after, Bound::Unbounded)).filter(|(_, lying)| is_due(lying));
        let given = due.take(INBOX_BATCH_ENTRIES_MAX).map(|(id, lying)| {
            lying.given_out = Some(now);
            Entry { id: *id, payload: lying.payload.clone() }
        });
        Some(given.collect())
    }

    fn close(&mut self, of: &InstanceId, now: Instant) -> bool {
        if self.open.get(of).is_some_and(|inbox| !inbox.entries.is_empty()) {
            return false;
        }
        if let Some(inbox) = self.open.remove(of) {
            inbox.changed.notify_one();
        }
        self.closed.insert(of.clone(), now + Duration::from_millis(INBOX_CLOSED_MS));
        true
    }
}

#[async_trait::async_trait]
impl Inboxes for Local {
    async fn open_inbox(&self, owner: &InstanceId, idle: Duration) -> Result<Inbox> {
        let idle = Duration::from_millis(check_idle(idle)?);
        self.open()?.inboxes.lock().open(owner, Instant::now());
        let (hub, owner) = (self.hub.clone(), owner.clone());
        Ok(Inbox::fed_by(&self.closed, move |batches| feed(hub.clone(), owner.clone(), idle, batches)))
    }

    async fn send(&self, to: &InstanceId, entries: &[&[u8]]) -> Result<Vec<Delivery>> {
        check_entries(entries)?;
        Ok(self.open()?.inboxes.lock().send(to, entries))
    }

    async fn settle(&self, of: &InstanceId, entries: &[EntryId]) -> Result<()> {
        check_settled(entries)?;
        if let Some(inbox) = self.open()?.inboxes.lock().open.get_mut(of) {
            for entry in entries {
                inbox.entries.remove(entry);
            }
        }
        Ok(())
    }

    async fn read_inbox(&self, of: &InstanceId, after: Option<EntryId>) -> Result<Vec<Entry>> {
        let inboxes = self.open()?.inboxes.lock();
        let Some(inbox) = inboxes.open.get(of) else { return Ok(vec![]) };
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = inbox.entries.range((after, Bound::Unbounded)).take(INBOX_BATCH_ENTRIES_MAX);
        Ok(page.map(|(id, lying)| Entry { id: *id, payload: lying.payload.clone() }).collect())
    }

    async fn close_inbox(&self, of: &InstanceId) -> Result<bool> {
        Ok(self.open()?.inboxes.lock().close(of, Instant::now()))
    }

    async fn reopen_inbox(&self, owner: &InstanceId) -> Result<()> {
        self.open()?.inboxes.lock().closed.remove(owner);
        Ok(())
    }

    async fn inbox_len(&self, of: &InstanceId) -> Result<u64> {
        Ok(self.open()?.inboxes.lock().open.get(of).map_or(0, |inbox| inbox.entries.len() as u64))
    }
}

/// Hands an owner what comes, beginning with all that lies there, until the inbox is closed.
async fn feed(hub: Arc<Shared>, owner: InstanceId, idle: Duration, batches: mpsc::Sender<Vec<Entry>>) {
    let Some(changed) = hub.inboxes.lock().open.get(&owner).map(|inbox| inbox.changed.clone()) else {
        return;
    };
    let all = Look { after: None, idle: None };
    let (mut ahead, mut behind) = (all, None);
    let mut look_for_idle = Instant::now() + idle / 2;
    loop {
        let now = Instant::now();
        let look = behind.unwrap_or(ahead);
        let Some(entries) = hub.inboxes.lock().give_out(&owner, look, now) else { return };
        let next = entries.last().map(|entry| Look { after: Some(entry.id), ..look });
        if behind.is_some() {
            // Through with what idles once a look finds none; then what is new has its turn.
            behind = next;
            look_for_idle = now + idle / 2;
        } else {
            ahead = next.unwrap_or(ahead);
            behind = (now >= look_for_idle).then_some(Look { idle: Some(idle), ..all });
        }
        if !entries.is_empty() {
            if batches.send(entries).await.is_err() {
                return;
            }
        } else if look.idle.is_none() && behind.is_none() {
            // A change since the look is kept for the wait.
            let _ = tokio::time::timeout_at(look_for_idle.into(), changed.notified()).await;
        }
    }
}
