//! What goes between instances: letters into inboxes, which must arrive or be told undeliverable, and notices, which
//! may be lost. Both gather while the bus is busy and go together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bus::{Channel, Delivery, Event};
use domain::job::{Attempt, Revoked};
use domain::{InstanceId, JobId, Resource};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::Inner;
use super::delivery::Letter;
use super::lane::{Heard, Word};

/// Letters taken at once.
const LETTERS_MAX: usize = 512;
/// Notices taken at once.
const NOTICES_AT_ONCE: usize = 512;
/// Notices in one message; each takes some 250 bytes at most.
const NOTICES_PER_MESSAGE: usize = 32;
/// Entries of an inbox that were read and not settled for so long are read again.
const INBOX_IDLE: Duration = Duration::from_secs(30);

const _: () = assert!(NOTICES_PER_MESSAGE * 300 <= bus::limits::NOTICE_BYTES_MAX);

/// What is told to the instances that do not hold a node's socket. May be lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Notice {
    lane: String,
    job: String,
    attempt: u32,
    what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum What {
    Acknowledged,
    CutOff,
    Adrift,
    Finished,
    Failed { due_in_ms: u64 },
    Rejected,
    Unlisted,
    Undeliverable,
}

impl Notice {
    pub(super) fn new(lane: &Resource, job: JobId, attempt: Attempt, heard: &Heard) -> Self {
        let what = match heard {
            Heard::Acknowledged => What::Acknowledged,
            Heard::CutOff => What::CutOff,
            Heard::Adrift => What::Adrift,
            Heard::Finished => What::Finished,
            Heard::Failed { due_in_ms } => What::Failed { due_in_ms: *due_in_ms },
            Heard::Refused(Revoked::Rejected, _) => What::Rejected,
            Heard::Refused(Revoked::Unlisted, _) => What::Unlisted,
            Heard::Refused(..) => What::Undeliverable,
        };
        Self { lane: lane.to_string(), job: job.to_string(), attempt: attempt.get(), what }
    }

    fn read(&self) -> Option<(Resource, JobId, Attempt, Heard)> {
        let refused = |why: Revoked, reason: &str| Heard::Refused(why, reason.to_owned());
        let heard = match self.what {
            What::Acknowledged => Heard::Acknowledged,
            What::CutOff => Heard::CutOff,
            What::Adrift => Heard::Adrift,
            What::Finished => Heard::Finished,
            What::Failed { due_in_ms } => Heard::Failed { due_in_ms },
            What::Rejected => refused(Revoked::Rejected, "the node would not take it"),
            What::Unlisted => refused(Revoked::Unlisted, "the node does not know of it any more"),
            What::Undeliverable => refused(Revoked::Undeliverable, "it could not be given to the node"),
        };
        Some((Resource::parse(&self.lane).ok()?, JobId::parse(&self.job)?, Attempt::new(self.attempt), heard))
    }
}

/// Sends letters on their way for as long as somebody writes any.
pub(super) async fn carry_letters(
    inner: std::sync::Weak<Inner>,
    mut letters: mpsc::UnboundedReceiver<Letter>,
) {
    let mut gathered = Vec::new();
    while letters.recv_many(&mut gathered, LETTERS_MAX).await > 0 {
        let Some(inner) = inner.upgrade() else { return };
        let mut by_holder: HashMap<InstanceId, Vec<Letter>> = HashMap::new();
        for letter in gathered.drain(..) {
            by_holder.entry(letter.holder().clone()).or_default().push(letter);
        }
        for (holder, letters) in by_holder {
            inner.send_letters(&holder, letters).await;
        }
    }
}

/// Tells notices for as long as somebody has any.
pub(super) async fn tell_notices(bus: bus::Handle, mut notices: mpsc::Receiver<Notice>) {
    let mut gathered = Vec::new();
    while notices.recv_many(&mut gathered, NOTICES_AT_ONCE).await > 0 {
        for message in gathered.chunks(NOTICES_PER_MESSAGE) {
            let payload = serde_json::to_vec(message).expect("it has text keys only");
            if let Err(error) = bus.publish(Channel::Jobs, &payload).await {
                tracing::debug!(%error, "notices of jobs were lost; the ledger has what they told");
            }
        }
        gathered.clear();
    }
}

/// Hears notices for as long as somebody else holds on to the lanes.
pub(super) fn hear_notices(inner: &Arc<Inner>) {
    let mut heard = inner.bus.subscribe(Channel::Jobs);
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        while let Some(event) = heard.next().await {
            let Some(inner) = inner.upgrade() else { return };
            // What was missed is found in the ledger by whoever needs it.
            let Event::Message(payload) = event else { continue };
            let Ok(notices) = serde_json::from_slice::<Vec<Notice>>(&payload) else {
                tracing::warn!("a notice that cannot be read");
                continue;
            };
            for (lane, job, attempt, heard) in notices.iter().filter_map(Notice::read) {
                if heard == Heard::Finished {
                    inner.waiters.finished(job);
                    inner.watches.finished(&lane, job, attempt);
                    // Its node may have gone on by way of another instance.
                    inner.forget_attempt(job, attempt);
                }
                if let Some(address) = inner.lanes.get(&lane) {
                    address.tell(Word::Heard(job, attempt, heard));
                }
            }
        }
    });
}

/// Reads this instance's own inbox for as long as somebody else holds on to the lanes.
pub(super) fn read_inbox(inner: &Arc<Inner>) {
    let (bus, me) = (inner.bus.clone(), inner.me.clone());
    let inner = Arc::downgrade(inner);
    tokio::spawn(async move {
        let mut inbox = loop {
            match bus.open_inbox(&me, INBOX_IDLE).await {
                Ok(inbox) => break inbox,
                Err(error) => {
                    tracing::debug!(%error, "this instance's inbox could not be opened yet");
                    tokio::time::sleep(crate::pause::jittered(Duration::from_secs(1))).await;
                    if inner.strong_count() == 0 {
                        return;
                    }
                }
            }
        };
        while let Some(entries) = inbox.next().await {
            let Some(inner) = inner.upgrade() else { return };
            if let Err(error) = inner.take_letters(&inner.me, entries).await {
                // What is not settled is read again; a slot is sent once.
                tracing::debug!(%error, "letters were not settled");
            }
        }
    });
}

impl Inner {
    /// Sees to what lies in an inbox, and settles it.
    pub(super) async fn take_letters(
        self: &Arc<Self>,
        of: &InstanceId,
        entries: Vec<bus::Entry>,
    ) -> bus::Result<()> {
        let ids: Vec<_> = entries.iter().map(|entry| entry.id).collect();
        for entry in entries {
            match Letter::from_bytes(&entry.payload) {
                // In another's inbox: its node may have come here meanwhile; if not, the lane's owner is told.
                Some(Letter::Dispatch(dispatch)) => self.hand_over(*dispatch),
                Some(Letter::Withdrawal(withdrawal)) => self.call_off(&withdrawal),
                None => tracing::warn!(inbox = %of, entry = %entry.id, "a letter that cannot be read"),
            }
        }
        for ids in ids.chunks(bus::limits::INBOX_SETTLE_ENTRIES_MAX) {
            self.bus.settle(of, ids).await?;
        }
        Ok(())
    }

    async fn send_letters(self: &Arc<Self>, holder: &InstanceId, letters: Vec<Letter>) {
        let bytes: Vec<_> = letters.iter().map(Letter::to_bytes).collect();
        let mut at = 0;
        while at < letters.len() {
            let (mut to, mut size) = (at, 0);
            while to < letters.len()
                && to - at < bus::limits::INBOX_SEND_ENTRIES_MAX
                && (to == at || size + bytes[to].len() <= bus::limits::INBOX_SEND_BYTES_MAX)
            {
                size += bytes[to].len();
                to += 1;
            }
            let entries: Vec<_> = bytes[at..to].iter().map(Vec::as_slice).collect();
            match self.bus.send(holder, &entries).await {
                Ok(deliveries) => {
                    for (letter, delivery) in letters[at..to].iter().zip(deliveries) {
                        if let (Letter::Dispatch(dispatch), Delivery::Undeliverable | Delivery::Full) =
                            (letter, delivery)
                        {
                            let reason = format!("{holder} could not be given the dispatch");
                            let heard = Heard::Refused(Revoked::Undeliverable, reason);
                            self.tell_lane(&dispatch.terms.lane, dispatch.job, dispatch.attempt, heard);
                        }
                    }
                }
                // It may have arrived. If not, nobody acknowledges it, and it is taken back.
                Err(error) => tracing::debug!(%error, %holder, "letters may not have arrived"),
            }
            at = to;
        }
    }
}
