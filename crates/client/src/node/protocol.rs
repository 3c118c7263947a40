//! The worker socket's protocol, as a node keeps it: its attempts and the results that it owes. Pure: no socket, no task,
//! no clock.
//!
//! A node *holds* an attempt from its `ack` on: first the attempt runs, then the node keeps its result until the scheduler
//! says `committed` or `stale`. Each held attempt is listed and takes one of `capacity` places. The node holds a cancelled
//! attempt until its handler has returned, and reports nothing of it.
//!
//! ```text
//!   dispatch ──▶ running ──▶ ended ──▶ (forgotten)
//!                   │ cancel,     committed, stale
//!                   │ stale
//!                   ▼
//!                stopping ──▶ (forgotten)
//!                     its handler returned
//! ```

use std::collections::{BTreeMap, VecDeque};

use wire::worker::{
    AttemptOutcome, AttemptRef, AttemptResult, Dispatch, NodeFrame, Nothing, Reject, SchedulerFrame, reason,
};

/// Attempts that are over and still remembered, so that a dispatch that arrives twice does not run again.
const OVER_MAX: usize = 1_024;

/// What the worker has to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    /// Send this frame.
    Send(NodeFrame),
    /// Run this attempt. Its `ack` came before.
    Start(Dispatch),
    /// Tell the handler of this attempt to stop.
    Stop(AttemptRef),
    /// Send a heartbeat soon: only its list tells the scheduler that a place came free.
    Beat,
}

/// One attempt that the node has.
#[derive(Clone, Debug, PartialEq)]
enum Held {
    /// Its handler works.
    Running,
    /// The scheduler cancelled it; its handler has not returned.
    Stopping,
    /// It is over; the scheduler has not settled its result.
    Ended(AttemptOutcome),
}

/// The attempts that a node has.
#[derive(Clone, Debug)]
pub(super) struct Protocol {
    capacity: usize,
    draining: bool,
    held: BTreeMap<AttemptRef, Held>,
    over: VecDeque<AttemptRef>,
}

impl Protocol {
    pub(super) const fn new(capacity: u32) -> Self {
        Self { capacity: capacity as usize, draining: false, held: BTreeMap::new(), over: VecDeque::new() }
    }

    /// What `hello` and `heartbeat` list.
    pub(super) fn listed(&self) -> Vec<AttemptRef> {
        self.held.keys().cloned().collect()
    }

    /// How many are held.
    pub(super) fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether the node holds nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// Whether the attempt's progress is worth a report.
    pub(super) fn is_running(&self, attempt: &AttemptRef) -> bool {
        self.held.get(attempt) == Some(&Held::Running)
    }

    /// What a new connection sends after `welcome`: the results that are not settled.
    pub(super) fn welcomed(&self) -> Vec<NodeFrame> {
        let drain = self.draining.then_some(NodeFrame::Drain(Nothing {}));
        let results = self.held.iter().filter_map(|(attempt, held)| match held {
            Held::Ended(outcome) => Some(result(attempt, outcome)),
            Held::Running | Held::Stopping => None,
        });
        drain.into_iter().chain(results).collect()
    }

    /// The node takes no more attempts.
    pub(super) fn drain(&mut self) -> NodeFrame {
        self.draining = true;
        NodeFrame::Drain(Nothing {})
    }

    /// Handles a frame of the scheduler. Frames about the connection itself change nothing here.
    pub(super) fn heard(&mut self, frame: SchedulerFrame) -> Vec<Effect> {
        match frame {
            SchedulerFrame::Dispatch(dispatch) => self.dispatched(dispatch),
            SchedulerFrame::Cancel(notice) => self.called_off(&notice.into()),
            SchedulerFrame::Committed(notice) | SchedulerFrame::Stale(notice) => self.settled(&notice.into()),
            SchedulerFrame::Welcome(_) | SchedulerFrame::HeartbeatOk(_) | SchedulerFrame::Problem(_) => {
                Vec::new()
            }
        }
    }

    /// A handler has returned.
    pub(super) fn ended(&mut self, attempt: &AttemptRef, outcome: AttemptOutcome) -> Option<Effect> {
        match self.held.get_mut(attempt)? {
            held @ Held::Running => {
                let frame = result(attempt, &outcome);
                *held = Held::Ended(outcome);
                Some(Effect::Send(frame))
            }
            Held::Stopping => {
                self.forget(attempt);
                Some(Effect::Beat)
            }
            Held::Ended(_) => None,
        }
    }

    /// Answers every dispatch with `ack` or `reject`, and with the result if there is one.
    fn dispatched(&mut self, dispatch: Dispatch) -> Vec<Effect> {
        let attempt = AttemptRef { job: dispatch.job.clone(), attempt: dispatch.attempt };
        match self.held.get(&attempt) {
            Some(Held::Running) => return vec![ack(attempt)],
            Some(Held::Ended(outcome)) => {
                let result = result(&attempt, outcome);
                return vec![ack(attempt), Effect::Send(result)];
            }
            Some(Held::Stopping) => return vec![reject(attempt, "cancelled on this node")],
            None => {}
        }
        if self.over.contains(&attempt) {
            return vec![reject(attempt, "already finished on this node")];
        }
        let of_the_job = AttemptRef { job: attempt.job.clone(), attempt: 0 }..;
        let others = self.held.range(of_the_job).map(|(other, _)| other);
        let others: Vec<AttemptRef> = others.take_while(|other| other.job == attempt.job).cloned().collect();
        if others.iter().any(|other| other.attempt > attempt.attempt) {
            return vec![reject(attempt, "this node has a newer attempt")];
        }
        if self.draining {
            return vec![reject(attempt, reason::DRAINING)];
        }
        if self.held.len() >= self.capacity {
            return vec![reject(attempt, reason::FULL)];
        }
        // A scheduler that dispatches a newer attempt has revoked the older ones.
        let mut effects: Vec<Effect> = others.iter().flat_map(|older| self.called_off(older)).collect();
        self.held.insert(attempt.clone(), Held::Running);
        effects.extend([ack(attempt), Effect::Start(dispatch)]);
        effects
    }

    /// A result that was sent stays until it is settled: the scheduler's answer is on its way.
    fn called_off(&mut self, attempt: &AttemptRef) -> Vec<Effect> {
        match self.held.get_mut(attempt) {
            Some(held @ Held::Running) => {
                *held = Held::Stopping;
                vec![Effect::Stop(attempt.clone())]
            }
            Some(Held::Stopping | Held::Ended(_)) | None => Vec::new(),
        }
    }

    fn settled(&mut self, attempt: &AttemptRef) -> Vec<Effect> {
        if let Some(Held::Ended(_)) = self.held.get(attempt) {
            self.forget(attempt);
        }
        // If it still runs, its result is not wanted any more.
        self.called_off(attempt)
    }

    fn forget(&mut self, attempt: &AttemptRef) {
        if let Some((attempt, _)) = self.held.remove_entry(attempt) {
            if self.over.len() == OVER_MAX {
                self.over.pop_front();
            }
            self.over.push_back(attempt);
        }
    }
}

const fn ack(attempt: AttemptRef) -> Effect {
    Effect::Send(NodeFrame::Ack(attempt))
}

fn reject(attempt: AttemptRef, reason: &str) -> Effect {
    let AttemptRef { job, attempt } = attempt;
    Effect::Send(NodeFrame::Reject(Reject { job, attempt, reason: reason.to_owned() }))
}

fn result(attempt: &AttemptRef, outcome: &AttemptOutcome) -> NodeFrame {
    let AttemptRef { job, attempt } = attempt.clone();
    // The scheduler knows the span that it dispatched. One of the last release would refuse the field.
    NodeFrame::Result(AttemptResult { job, attempt, outcome: outcome.clone(), traceparent: None })
}

#[cfg(test)]
mod tests;
