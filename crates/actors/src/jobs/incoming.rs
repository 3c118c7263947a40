//! The messages from other instances: the entries of this instance's inbox, and notices of finished jobs.
//! `inter_instance` sends them. While the ledger is asked for the jobs of dispatches, other entries are taken up.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bus::limits::{INBOX_BATCH_ENTRIES_MAX, INBOX_ENTRIES_MAX, INBOX_IDLE_MS_DEFAULT};
use bus::{Channel, EntryId, Event, Inbox};
use domain::{InstanceId, LaneId, Resource};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use ledger::{Lease, jittered};
use panic_guard::{again_after_panics, guarded, guarded_call};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::delivery::Noticed;
use super::finish_notices;
use super::instance_message::{AttemptReport, InstanceMessage};
use super::inter_instance::InterInstance;
use super::keeper::LaneKeeper;
use super::messages::AttemptEvent;
use super::node_gateway::NodeGateway;
use super::waiters::Waiters;
use super::watches::Watches;

/// How long after it was read an unsettled entry is read again.
const INBOX_IDLE: Duration = Duration::from_millis(INBOX_IDLE_MS_DEFAULT);
/// Between two tries to open the inbox, before jitter.
const OPEN_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The receiving side of one instance.
pub(super) struct Incoming {
    pub(super) bus: bus::Handle,
    pub(super) gateway: Arc<NodeGateway>,
    pub(super) inter_instance: Arc<InterInstance>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) watches: Arc<Watches>,
    pub(super) keeper: Arc<LaneKeeper>,
    /// Bounds how many sessions that were left to this instance are opened at once.
    pub(super) opening: Arc<Semaphore>,
    pub(super) read: ReadEntries,
}

/// The dispatches in this instance's inbox that were read and are not known to be settled: the bus may give them out again.
#[derive(Default)]
pub(super) struct ReadEntries(Mutex<BTreeSet<EntryId>>);

impl ReadEntries {
    /// Notes that the entry is read. Whether it was before.
    fn was_read(&self, entry: EntryId) -> bool {
        let mut read = self.0.lock();
        let was_read = !read.insert(entry);
        if read.len() > INBOX_ENTRIES_MAX {
            // An inbox has no more: the oldest are gone.
            read.pop_first();
        }
        was_read
    }

    fn settled(&self, entries: &[EntryId]) {
        let mut read = self.0.lock();
        for entry in entries {
            read.remove(entry);
        }
    }
}

impl Incoming {
    /// Reads the inbox and notices as long as another handle to this exists.
    pub(super) fn start(self: &Arc<Self>) {
        let (bus, me) = (self.bus.clone(), self.inter_instance.me().clone());
        let this = Arc::downgrade(self);
        let work = move || read_inbox(bus.clone(), me.clone(), Weak::clone(&this));
        tokio::spawn(again_after_panics("the inbox", work));
        let (mut notices, this) = (self.bus.subscribe(Channel::Jobs), Arc::downgrade(self));
        tokio::spawn(async move {
            while let Some(event) = notices.next().await {
                let Some(this) = this.upgrade() else { return };
                // Callers that missed a notice find the end of their job in the ledger.
                if let Event::Message(payload) = event {
                    guarded_call("the notices of finished jobs", || this.take_notices(&payload));
                }
            }
        });
    }

    /// Handles the entries of a dead instance's inbox, and settles them. Entries that could not be settled are handled again,
    /// which has no further effect: what was read before, here or by the dead, is never said not to have reached its node.
    pub(super) async fn take(&self, of: &InstanceId, entries: Vec<bus::Entry>) -> bus::Result<()> {
        let mut noticed = BTreeMap::new();
        let done = self.take_up(of, entries, &mut noticed);
        self.hand_out(of, noticed.into_iter().collect()).await?;
        self.settle(of, &done).await
    }

    /// The same of this instance's own inbox, without the dispatches, which are `noticed`: [`Self::hand_out`] is for these.
    async fn take_own(
        &self,
        entries: Vec<bus::Entry>,
        noticed: &mut BTreeMap<EntryId, Noticed>,
    ) -> bus::Result<()> {
        let me = self.gateway.me();
        let done = self.take_up(me, entries, noticed);
        self.settle(me, &done).await
    }

    /// Handles entries of an inbox, this instance's own or a dead one's, without the dispatches, which are `noticed`. Answers
    /// those that may be settled.
    fn take_up(
        &self,
        of: &InstanceId,
        entries: Vec<bus::Entry>,
        noticed: &mut BTreeMap<EntryId, Noticed>,
    ) -> Vec<EntryId> {
        let mut done = Vec::new();
        for entry in entries {
            match InstanceMessage::from_bytes(&entry.payload) {
                // In a dead instance's inbox: the node may have connected here since; if not, nothing is said of it.
                Some(InstanceMessage::Dispatch(notice)) => {
                    let was_read = of != self.gateway.me() || self.read.was_read(entry.id);
                    // One that waits longer than the bus does comes again.
                    noticed.entry(entry.id).or_insert(Noticed { notice, was_read });
                    continue;
                }
                Some(InstanceMessage::Withdrawal(withdrawal)) => {
                    let (node, job, attempt) = (&withdrawal.placed.node, withdrawal.job, withdrawal.attempt);
                    self.gateway.cancel_at_node(node, job, attempt);
                }
                Some(InstanceMessage::Reports { is_forwarded, reports }) => {
                    reports.into_iter().for_each(|report| self.take_report(report, is_forwarded));
                }
                Some(InstanceMessage::Share(node)) => self.gateway.share(&node),
                // The look for lanes without an owner finds what was left to a dead instance.
                Some(InstanceMessage::Left(lane)) if of == self.gateway.me() && lane.is_session() => {
                    tokio::spawn(open_left(Arc::clone(&self.keeper), Arc::clone(&self.opening), lane));
                }
                Some(InstanceMessage::Left(_)) => {}
                None => tracing::warn!(inbox = %of, entry = %entry.id, "an unreadable entry is dropped"),
            }
            done.push(entry.id);
        }
        done
    }

    /// Hands dispatches to the sockets of their nodes, and settles their entries. A withdrawal that came after its dispatch has
    /// found nothing to stop by then: the ledger says that the attempt was withdrawn, or, if it was read before that, its slot is
    /// free, without which its node's socket does not send it.
    async fn hand_out(&self, of: &InstanceId, noticed: Vec<(EntryId, Noticed)>) -> bus::Result<()> {
        let (ids, noticed): (Vec<_>, Vec<_>) = noticed.into_iter().unzip();
        self.gateway.hand_noticed(noticed).await;
        self.settle(of, &ids).await
    }

    async fn settle(&self, of: &InstanceId, entries: &[EntryId]) -> bus::Result<()> {
        for entries in entries.chunks(bus::limits::INBOX_SETTLE_ENTRIES_MAX) {
            self.bus.settle(of, entries).await?;
            self.read.settled(entries);
        }
        Ok(())
    }

    /// This instance's inbox was closed, by another instance or with the bus. Whether it may be opened again: only an incarnation
    /// that lives by the ledger opens it. One that is found dead in between has an inbox to which nobody sends.
    /// `None` if that is not known yet.
    async fn reopen(&self) -> Option<bool> {
        let (keeper, me) = (&self.keeper, self.gateway.me());
        if !keeper.lifetime.is_serving() || keeper.own.token().is_none() {
            return Some(false);
        }
        let lease = keeper.services.ledger.lease(&Resource::instance(me)).await;
        let lease = lease.inspect_err(|error| {
            tracing::debug!(%error, "this instance's lease could not be read; its inbox stays closed");
        });
        if !is_its_own(lease.ok()?.as_ref(), me)? {
            return Some(false);
        }
        match self.bus.reopen_inbox(me).await {
            Ok(()) => {
                tracing::warn!(
                    "this instance lives by its ledger, and opens its inbox again: an instance of another ledger, a \
                     copy of this one or its original, may be on the same bus"
                );
                Some(true)
            }
            Err(bus::Error::Closed) => Some(false),
            Err(error) => {
                tracing::debug!(%error, "this instance's inbox could not be opened again yet");
                None
            }
        }
    }

    fn take_report(&self, report: AttemptReport, is_forwarded: bool) {
        // Most of those who wait for a job wait where it was submitted.
        if report.event == AttemptEvent::Finished {
            self.waiters.finished(report.job);
        }
        self.inter_instance.take_report(report, is_forwarded);
    }

    fn take_notices(&self, payload: &[u8]) {
        let Some(notices) = finish_notices::read(payload) else {
            tracing::warn!("an unreadable notice of finished jobs is dropped");
            return;
        };
        for notice in notices {
            self.waiters.finished(notice.job);
            self.watches.finished(&notice.lane, notice.job, notice.attempt);
            // Its node may have gone on by way of this instance.
            self.gateway.attempt_is_over(notice.job, notice.attempt);
        }
    }
}

/// Serves a session from now on that another instance has left to this one.
async fn open_left(keeper: Arc<LaneKeeper>, opening: Arc<Semaphore>, lane: LaneId) {
    let Ok(_turn) = opening.acquire().await else { return };
    if !keeper.lifetime.takes_work() || keeper.directory().contains_key(&lane) {
        return;
    }
    if let Err(error) = keeper.adopt_for("left", &lane).await {
        tracing::debug!(%error, %lane, "a session that was left to this instance is found at the next look");
    }
}

async fn read_inbox(bus: bus::Handle, me: InstanceId, this: Weak<Incoming>) {
    while let Some(inbox) = open_inbox(&bus, &me, &this).await {
        read_on(inbox, &this).await;
        if !reopen_when_known(&this).await {
            return;
        }
    }
}

/// Opens the inbox, as soon as that can be done. `None` when nobody uses it any more.
async fn open_inbox(bus: &bus::Handle, me: &InstanceId, this: &Weak<Incoming>) -> Option<Inbox> {
    loop {
        match bus.open_inbox(me, INBOX_IDLE).await {
            Ok(inbox) => return Some(inbox),
            Err(error) => {
                tracing::debug!(%error, "this instance's inbox could not be opened yet");
                tokio::time::sleep(jittered(OPEN_AGAIN_AFTER)).await;
                if this.strong_count() == 0 {
                    return None;
                }
            }
        }
    }
}

/// Calls [`Incoming::reopen`] until it knows. Whether the inbox may be opened then.
async fn reopen_when_known(this: &Weak<Incoming>) -> bool {
    loop {
        tokio::time::sleep(jittered(OPEN_AGAIN_AFTER)).await;
        let Some(incoming) = this.upgrade() else { return false };
        if let Some(is_opened) = incoming.reopen().await {
            return is_opened;
        }
    }
}

/// Whether an instance's lease, as it was read, is its own and live. `None` if its own lease has run out, and it may renew that
/// yet; one that is another's, free or gone never is its own again.
fn is_its_own(lease: Option<&Lease>, instance: &InstanceId) -> Option<bool> {
    match lease {
        Some(lease) if lease.owner.as_ref() == Some(instance) => lease.is_live().then_some(true),
        _ => Some(false),
    }
}

/// Reads the inbox until it is closed, or nobody uses it any more.
async fn read_on(mut inbox: Inbox, this: &Weak<Incoming>) {
    // Few dispatches are handed out at once, since their jobs may be large.
    let (mut noticed, mut handed_out) = (BTreeMap::new(), FuturesUnordered::new());
    loop {
        tokio::select! {
            entries = inbox.next(), if noticed.len() < INBOX_ENTRIES_MAX => {
                let (Some(entries), Some(this)) = (entries, this.upgrade()) else { return };
                // After a panic they are read again as well.
                if let Some(Err(error)) = guarded("the inbox", this.take_own(entries, &mut noticed)).await {
                    tracing::debug!(%error, "entries could not be settled; they will be read again");
                }
            }
            Some(()) = handed_out.next() => {}
        }
        if handed_out.is_empty() && !noticed.is_empty() {
            let Some(this) = this.upgrade() else { return };
            let first = std::iter::from_fn(|| noticed.pop_first());
            let next: Vec<_> = first.take(INBOX_BATCH_ENTRIES_MAX).collect();
            handed_out.push(async move {
                let work = this.hand_out(this.gateway.me(), next);
                if let Some(Err(error)) = guarded("the dispatches in the inbox", work).await {
                    tracing::debug!(%error, "dispatches could not be settled; they will be read again");
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use bus::Hub;
    use domain::{Timestamp, Token};

    use super::*;

    #[test]
    fn a_lease_that_ran_out_may_be_renewed_and_one_that_is_lost_is_lost() {
        let [me, other] = ["me", "other"].map(|id| InstanceId::parse(id).unwrap());
        let lease = |owner: Option<&InstanceId>, expires_in_ms| Lease {
            resource: Resource::instance(&me),
            owner: owner.cloned(),
            token: Token::new(1),
            acquired_at: Timestamp::from_micros(0),
            renewed_at: Timestamp::from_micros(0),
            expires_in_ms,
        };
        assert_eq!(is_its_own(None, &me), Some(false));
        for (owner, left_ms, expected) in [
            (Some(&me), 1, Some(true)),
            (Some(&me), 0, None),
            (Some(&other), 1, Some(false)),
            (Some(&other), 0, Some(false)),
            (None, 0, Some(false)),
        ] {
            assert_eq!(is_its_own(Some(&lease(owner, left_ms)), &me), expected, "{owner:?} {left_ms}");
        }
    }

    #[tokio::test]
    async fn an_entry_was_read_until_it_is_settled() {
        let (bus, me) = (Hub::default().join(), InstanceId::parse("me").unwrap());
        drop(bus.open_inbox(&me, INBOX_IDLE).await.unwrap());
        bus.send(&me, &[b"a", b"b"]).await.unwrap();
        let entries = bus.read_inbox(&me, None).await.unwrap();
        let [a, b] = &entries[..] else { panic!("two were sent, not {entries:?}") };
        let read = ReadEntries::default();
        assert!(!read.was_read(a.id) && !read.was_read(b.id));
        assert!(read.was_read(a.id) && read.was_read(b.id));
        read.settled(&[a.id]);
        assert!(!read.was_read(a.id) && read.was_read(b.id));
    }
}
