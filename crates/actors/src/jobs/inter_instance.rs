//! The messages that this instance sends to others: dispatches and withdrawals to the holders of nodes'
//! sockets, and reports on attempts to the owners of their lanes. All go into inboxes; `incoming` receives
//! them.
//!
//! While a call to an instance is under way, messages for it gather and are then sent together: many entries in one call, many
//! reports in one entry. An instance whose inbox does not answer holds up no message to another, nor does a ledger that does not
//! name the owner of a report's lane.
//!
//! Messages that do not arrive. If a dispatch cannot be put into an inbox, its lane learns of it and revokes
//! the attempt; if that is not known, the attempt is not acknowledged in time. If the inbox of a report is
//! full or missing, or the bus is away, the report is counted and dropped: the ledger has the same facts, and
//! the owner of a lane reads its attempts again every [`super::limits::REREAD_EVERY`]. A crash between the
//! commit of a result and its report is found in the same way.

mod instance_queues;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bus::Delivery;
use domain::job::{Attempt, Revoked};
use domain::{InstanceId, JobId, LaneId};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use panic_guard::{guarded, pause};
use tokio::sync::mpsc;

use super::finish_notices::{FinishNotice, FinishNotices};
use super::instance_message::{AttemptReport, InstanceMessage, REPORTS_PER_ENTRY};
use super::lane_owners::LaneOwnersHandle;
use super::limits::{OUTGOING_MESSAGES_MAX, REPORTS_MAX};
use super::messages::{AttemptEvent, Directory, LaneCommand};
use super::report_queue::{PendingReport, ReportQueue};
use instance_queues::InstanceQueues;

/// Messages, or reports, taken at once.
const TAKEN_AT_ONCE: usize = 512;

/// A report on its way.
struct Try {
    pending: PendingReport,
    /// The instance to which it was sent first had no inbox.
    is_again: bool,
}

impl Try {
    /// Takes the instance that it is for, as far as that is known without a look into the ledger. If that instance is dead, its
    /// inbox is closed, or emptied by the survivor that closes it.
    fn take_address(&mut self) -> Option<InstanceId> {
        let PendingReport { owner, is_forwarded, report } = &mut self.pending;
        let owner = owner.take();
        // The instance that is named owns the lane no more.
        if *is_forwarded {
            return None;
        }
        owner.or_else(|| report.lane.instance_id())
    }
}

/// The sending side of one instance.
pub(super) struct InterInstance {
    me: InstanceId,
    bus: bus::Handle,
    /// Whether there can be other instances on this bus.
    is_alone: bool,
    lanes: Arc<Directory>,
    owners: LaneOwnersHandle,
    notices: FinishNotices,
    messages: mpsc::Sender<(InstanceId, InstanceMessage)>,
    reports: mpsc::Sender<PendingReport>,
}

impl InterInstance {
    /// Must be called within a Tokio runtime. The tasks end with this.
    pub(super) fn start(
        me: InstanceId,
        bus: bus::Handle,
        is_alone: bool,
        lanes: Arc<Directory>,
        owners: LaneOwnersHandle,
    ) -> Arc<Self> {
        let (messages, sent) = mpsc::channel(OUTGOING_MESSAGES_MAX);
        let (reports, reported) = mpsc::channel(REPORTS_MAX);
        let notices = FinishNotices::start(bus.clone());
        let this = Arc::new(Self { me, bus, is_alone, lanes, owners, notices, messages, reports });
        tokio::spawn(carry_messages(Arc::downgrade(&this), sent));
        tokio::spawn(carry_reports(Arc::downgrade(&this), reported));
        this
    }

    /// The id of the sending instance.
    pub(super) const fn me(&self) -> &InstanceId {
        &self.me
    }

    /// Whether `which` is true of any other live instance. A new one may be missed for a moment.
    pub(super) fn has_other(&self, which: &dyn Fn(&InstanceId) -> bool) -> bool {
        self.owners.has_other(which)
    }

    /// Puts a message into the inbox of another instance, in the background. Where too much waits, it is not delivered. Nor is
    /// it to an instance that has ended by the ledger. One that reads its inbox all the same may have another ledger, and jobs
    /// of the same ids, as where one of the two ledgers is a copy of the other.
    pub(super) fn post(&self, to: InstanceId, message: InstanceMessage) {
        if self.owners.has_ended(&to) {
            return self.not_delivered(&to, &message);
        }
        // The receiver lives as long as this.
        if let Err(unsent) = self.messages.try_send((to, message)) {
            let (to, message) = unsent.into_inner();
            self.not_delivered(&to, &message);
        }
    }

    /// Reports what became of an attempt to the owner of its lane: here, or by way of the owner's inbox. `owner` is the
    /// instance that dispatched the attempt, where that is known and another one.
    pub(super) fn report(&self, report: AttemptReport, owner: Option<&InstanceId>) {
        let AttemptReport { lane, job, attempt, event } = &report;
        if *event == AttemptEvent::Finished {
            self.finished(lane, *job, *attempt);
        }
        if !self.hand_to_lane(&report) && !self.is_alone {
            self.queue(PendingReport { owner: owner.cloned(), is_forwarded: false, report });
        }
    }

    /// A report has come from another instance, for a lane of this one. If the lane is elsewhere by now, it is sent there,
    /// once.
    pub(super) fn take_report(&self, report: AttemptReport, is_forwarded: bool) {
        if self.hand_to_lane(&report) {
            return;
        }
        if is_forwarded {
            return count("no_owner", 1);
        }
        self.queue(PendingReport { owner: None, is_forwarded: true, report });
    }

    /// Tells the other instances that a job has finished, for those who wait for it there.
    pub(super) fn finished(&self, lane: &LaneId, job: JobId, attempt: Attempt) {
        if !self.is_alone && self.has_other(&|_| true) {
            self.notices.tell(FinishNotice { lane: lane.clone(), job, attempt });
        }
    }

    /// Whether the lane's owner is on this instance.
    fn hand_to_lane(&self, report: &AttemptReport) -> bool {
        let Some(handle) = self.lanes.get(&report.lane) else { return false };
        handle.send(LaneCommand::Attempt(report.job, report.attempt, report.event.clone()));
        true
    }

    fn queue(&self, pending: PendingReport) {
        if self.reports.try_send(pending).is_err() {
            count("overflow", 1);
        }
    }

    async fn send_messages(&self, to: &InstanceId, messages: &[InstanceMessage]) {
        let entries: Vec<_> = messages.iter().map(|message| message.to_bytes(&self.me)).collect();
        let mut at = 0;
        for call in calls(&entries, Vec::len) {
            let sent: Vec<_> = call.iter().map(Vec::as_slice).collect();
            match self.bus.send(to, &sent).await {
                Ok(deliveries) => {
                    let sent = messages[at..].iter().zip(deliveries);
                    let left = sent.filter(|(_, delivery)| *delivery != Delivery::Sent);
                    left.for_each(|(message, _)| self.not_delivered(to, message));
                }
                // They may have arrived. If not, nobody acknowledges the attempts, and they are taken back.
                Err(error) => tracing::debug!(%error, %to, "messages may not have arrived"),
            }
            at += call.len();
        }
    }

    fn not_delivered(&self, to: &InstanceId, message: &InstanceMessage) {
        // A node that misses the `cancel` finds out by the answer to its result.
        let InstanceMessage::Dispatch(dispatch) = message else { return };
        let reason = format!("the dispatch could not be sent to {to}");
        let event = AttemptEvent::Revoked(Revoked::Undeliverable, reason);
        let (job, attempt) = (dispatch.job, dispatch.attempt);
        self.report(AttemptReport { lane: dispatch.lane.clone(), job, attempt, event }, None);
    }

    /// Asks the ledger which instances reports are for. What is for nobody, or for a lane of this instance, is dealt with.
    async fn look_up_all(&self, reports: Vec<Try>) -> Vec<(InstanceId, Try)> {
        let mut known = HashMap::new();
        let mut addressed = Vec::with_capacity(reports.len());
        for one in reports {
            let lane = &one.pending.report.lane;
            let owner = match known.get(lane) {
                Some(known) => Option::clone(known),
                None => {
                    let owner = self.owners.owner(lane).await;
                    known.insert(lane.clone(), owner.clone());
                    owner
                }
            };
            match owner {
                Some(owner) => addressed.extend(self.unless_here(owner, one)),
                // The lane's next owner reads everything.
                None => count("no_owner", 1),
            }
        }
        addressed
    }

    /// A report and the instance that it is for. One for a lane of this instance is dealt with.
    fn unless_here(&self, owner: InstanceId, one: Try) -> Option<(InstanceId, Try)> {
        if owner != self.me {
            return Some((owner, one));
        }
        // It may have moved here meanwhile; if it is only about to, its owner reads everything.
        self.hand_to_lane(&one.pending.report);
        None
    }

    /// Sends reports to one instance. Answers those for which it has no inbox: they go to the owner in the ledger.
    async fn send_reports(&self, to: &InstanceId, reports: Vec<Try>) -> Vec<Try> {
        let (mut again, mut lost) = (Vec::new(), 0);
        for is_forwarded in [false, true] {
            let of_kind = reports.iter().filter(|one| one.pending.is_forwarded == is_forwarded);
            let (tried, reports): (Vec<_>, Vec<_>) =
                of_kind.map(|one| (one.is_again, one.pending.report.clone())).unzip();
            let undelivered = self.send_reports_to(to, is_forwarded, &reports).await;
            for n in undelivered {
                if tried[n] {
                    lost += 1;
                    continue;
                }
                let report = reports[n].clone();
                let pending = PendingReport { owner: None, is_forwarded: true, report };
                again.push(Try { pending, is_again: true });
            }
        }
        count("undeliverable", lost);
        again
    }

    /// Answers the places of those for which there was no inbox.
    async fn send_reports_to(
        &self,
        to: &InstanceId,
        is_forwarded: bool,
        reports: &[AttemptReport],
    ) -> Vec<usize> {
        // Each entry, with the number of its reports.
        let mut entries = Vec::new();
        for reports in reports.chunks(REPORTS_PER_ENTRY) {
            let message = InstanceMessage::Reports { is_forwarded, reports: reports.to_vec() };
            entries.push((reports.len(), message.to_bytes(&self.me)));
        }
        let (mut at, mut undelivered) = (0, Vec::new());
        for call in calls(&entries, |(_, entry)| entry.len()) {
            let sent: Vec<_> = call.iter().map(|(_, entry)| entry.as_slice()).collect();
            let sent = self.bus.send(to, &sent).await;
            if let Err(error) = &sent {
                tracing::debug!(%error, %to, "reports may not have arrived; their lanes read the ledger");
            }
            for (n, &(of_this, _)) in call.iter().enumerate() {
                match sent.as_ref().map(|deliveries| deliveries.get(n)) {
                    Ok(Some(Delivery::Sent)) => count("sent", of_this),
                    Ok(Some(Delivery::Undeliverable)) => undelivered.extend(at..at + of_this),
                    Ok(Some(Delivery::Full)) => count("full", of_this),
                    Ok(None) | Err(_) => count("failed", of_this),
                }
                at += of_this;
            }
        }
        undelivered
    }
}

/// Reports, by what became of them.
fn count(result: &'static str, reports: usize) {
    if reports > 0 {
        let reports = reports as u64;
        metrics::counter!("fencepost_attempt_reports_total", "result" => result).increment(reports);
    }
}

/// The entries in parts, one for each call.
fn calls<T>(entries: &[T], bytes_of: impl Fn(&T) -> usize) -> Vec<&[T]> {
    let (mut calls, mut left) = (Vec::new(), entries);
    while !left.is_empty() {
        let (mut count, mut bytes) = (0, 0);
        while count < left.len().min(bus::limits::INBOX_SEND_ENTRIES_MAX)
            && (count == 0 || bytes + bytes_of(&left[count]) <= bus::limits::INBOX_SEND_BYTES_MAX)
        {
            bytes += bytes_of(&left[count]);
            count += 1;
        }
        let (call, rest) = left.split_at(count);
        calls.push(call);
        left = rest;
    }
    calls
}

/// Carries messages. After a panic those on their way are lost, as after calls without an answer.
async fn carry_messages(
    this: Weak<InterInstance>,
    mut messages: mpsc::Receiver<(InstanceId, InstanceMessage)>,
) {
    while guarded("the messages to other instances", send_on(&this, &mut messages)).await.is_none() {
        pause().await;
    }
}

/// Carries reports. After a panic those on their way are lost, as after calls without an answer.
async fn carry_reports(this: Weak<InterInstance>, mut reports: mpsc::Receiver<PendingReport>) {
    while guarded("the reports to other instances", report_on(&this, &mut reports)).await.is_none() {
        pause().await;
    }
}

async fn send_on(this: &Weak<InterInstance>, messages: &mut mpsc::Receiver<(InstanceId, InstanceMessage)>) {
    let mut queues = InstanceQueues::new(OUTGOING_MESSAGES_MAX);
    let (mut gathered, mut under_way) = (Vec::new(), FuturesUnordered::new());
    loop {
        tokio::select! {
            taken = messages.recv_many(&mut gathered, TAKEN_AT_ONCE) => {
                if taken == 0 {
                    return;
                }
            }
            Some(to) = under_way.next() => queues.answered(&to),
        }
        let Some(this) = this.upgrade() else { return };
        for (to, message) in gathered.drain(..) {
            if let Err((to, message)) = queues.add(to, message) {
                this.not_delivered(&to, &message);
            }
        }
        for (to, messages) in queues.take_ready() {
            let this = Arc::clone(&this);
            under_way.push(async move {
                // After a panic it is as after a call without an answer.
                guarded("the messages to another instance", this.send_messages(&to, &messages)).await;
                to
            });
        }
    }
}

async fn report_on(this: &Weak<InterInstance>, reports: &mut mpsc::Receiver<PendingReport>) {
    let mut queues = InstanceQueues::new(REPORTS_MAX);
    let (mut queue, mut gathered, mut under_way) =
        (ReportQueue::default(), Vec::new(), FuturesUnordered::new());
    // The ledger is asked for the owners of their lanes, of some at once, one such call at a time.
    let (mut unaddressed, mut looked_up) = (Vec::new(), FuturesUnordered::new());
    loop {
        let due_at = queue.due_at();
        let due = async {
            match due_at {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        let (mut to_send, mut addressed) = (Vec::new(), Vec::new());
        tokio::select! {
            taken = reports.recv_many(&mut gathered, TAKEN_AT_ONCE) => {
                if taken == 0 {
                    return;
                }
            }
            () = due => {}
            Some((to, again)) = under_way.next() => {
                queues.answered(&to);
                to_send = again;
            }
            Some(found) = looked_up.next() => addressed = found,
        }
        let now = Instant::now();
        gathered.drain(..).for_each(|pending| queue.add(pending, now));
        let due = queue.take_due(now);
        to_send.extend(due.into_iter().map(|pending| Try { pending, is_again: false }));
        let Some(this) = this.upgrade() else { return };
        let mut unknown = Vec::new();
        for mut one in to_send {
            // Of an instance that has ended by the ledger, another one has the lane, or nobody.
            match one.take_address().filter(|owner| !this.owners.has_ended(owner)) {
                Some(owner) => addressed.extend(this.unless_here(owner, one)),
                None => unknown.push(one),
            }
        }
        let room = REPORTS_MAX - unaddressed.len();
        count("overflow", unknown.len().saturating_sub(room));
        unaddressed.extend(unknown.into_iter().take(room));
        if looked_up.is_empty() && !unaddressed.is_empty() {
            let some = unaddressed.len().min(TAKEN_AT_ONCE);
            let (this, reports) = (Arc::clone(&this), unaddressed.drain(..some).collect());
            looked_up.push(async move {
                let found = guarded("the look for the owners of lanes", this.look_up_all(reports)).await;
                found.unwrap_or_default()
            });
        }
        for (to, report) in addressed {
            if queues.add(to, report).is_err() {
                count("overflow", 1);
            }
        }
        for (to, reports) in queues.take_ready() {
            let this = Arc::clone(&this);
            under_way.push(async move {
                let again = guarded("the reports to another instance", this.send_reports(&to, reports)).await;
                (to, again.unwrap_or_default())
            });
        }
    }
}

#[cfg(test)]
mod tests;
