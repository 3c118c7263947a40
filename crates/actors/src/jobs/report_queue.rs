//! Reports of attempts that wait to be sent to other instances. Pure: the time is an argument.
//!
//! An acknowledgement waits for a moment. If the attempt ends before it was sent, its end says as much; most short jobs
//! so cost one report.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use domain::job::Attempt;
use domain::{InstanceId, JobId};

use super::instance_message::AttemptReport;
use super::messages::AttemptEvent;

/// How long an acknowledgement waits. A lane waits for it much longer before it takes the attempt back.
const ACKNOWLEDGEMENTS_GATHERED: Duration = Duration::from_millis(100);

const _: () = assert!(ACKNOWLEDGEMENTS_GATHERED.as_millis() * 10 <= nodes::limits::ACK_MS_MIN as u128);

/// A report, and its receiver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingReport {
    /// The instance that owned the lane when it dispatched the attempt, if that is known. The lane may have moved since.
    pub(super) owner: Option<InstanceId>,
    /// Whether another instance has sent it here, which does not own the lane either.
    pub(super) is_forwarded: bool,
    pub(super) report: AttemptReport,
}

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct ReportQueue {
    ready: Vec<PendingReport>,
    acknowledgements: HashMap<(JobId, Attempt), PendingReport>,
    /// When the acknowledgements are sent.
    due_at: Option<Instant>,
}

impl ReportQueue {
    pub(super) fn add(&mut self, pending: PendingReport, now: Instant) {
        let of = (pending.report.job, pending.report.attempt);
        if pending.report.event == AttemptEvent::Acknowledged {
            self.acknowledgements.insert(of, pending);
            self.due_at.get_or_insert(now + ACKNOWLEDGEMENTS_GATHERED);
        } else {
            self.acknowledgements.remove(&of);
            self.ready.push(pending);
        }
    }

    /// When something is to be sent that is not yet; `None` while nothing is.
    pub(super) const fn due_at(&self) -> Option<Instant> {
        self.due_at
    }

    /// What is to be sent now, in the order in which it happened to each attempt.
    pub(super) fn take_due(&mut self, now: Instant) -> Vec<PendingReport> {
        let mut due = std::mem::take(&mut self.ready);
        if self.due_at.is_some_and(|at| at <= now) {
            self.due_at = None;
            due.extend(self.acknowledgements.drain().map(|(_, pending)| pending));
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use domain::LaneId;

    use super::*;

    fn pending(job: u128, event: AttemptEvent) -> PendingReport {
        let lane = LaneId::parse("session:s").unwrap();
        let (job, attempt) = (JobId::from_u128(job), Attempt::new(1));
        PendingReport {
            owner: None,
            is_forwarded: false,
            report: AttemptReport { lane, job, attempt, event },
        }
    }

    #[test]
    fn ends_are_due_at_once_and_acknowledgements_after_a_moment() {
        let (mut queue, now) = (ReportQueue::default(), Instant::now());
        assert_eq!(queue.due_at(), None);
        queue.add(pending(1, AttemptEvent::Acknowledged), now);
        queue.add(pending(2, AttemptEvent::Finished), now);
        queue.add(pending(3, AttemptEvent::Acknowledged), now + ACKNOWLEDGEMENTS_GATHERED / 2);
        assert_eq!(queue.take_due(now), [pending(2, AttemptEvent::Finished)]);
        let due_at = queue.due_at().unwrap();
        assert_eq!(due_at, now + ACKNOWLEDGEMENTS_GATHERED, "the first one says when");
        assert!(queue.take_due(due_at - Duration::from_millis(1)).is_empty());
        let mut due = queue.take_due(due_at);
        due.sort_unstable_by_key(|pending| pending.report.job);
        assert_eq!(due, [1, 3].map(|job| pending(job, AttemptEvent::Acknowledged)));
        assert_eq!((queue.due_at(), queue.take_due(due_at)), (None, vec![]));
    }

    #[test]
    fn an_attempt_that_ended_is_not_acknowledged_any_more() {
        let (mut queue, now) = (ReportQueue::default(), Instant::now());
        for job in 1..=3 {
            queue.add(pending(job, AttemptEvent::Acknowledged), now);
        }
        queue.add(pending(1, AttemptEvent::Finished), now);
        queue.add(pending(2, AttemptEvent::ConnectionLost), now);
        let late = now + ACKNOWLEDGEMENTS_GATHERED;
        let due: Vec<_> = queue.take_due(late).into_iter().map(|pending| pending.report.event).collect();
        assert_eq!(due, [AttemptEvent::Finished, AttemptEvent::ConnectionLost, AttemptEvent::Acknowledged]);
    }
}
