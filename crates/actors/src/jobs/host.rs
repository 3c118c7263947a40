//! What the owners of lanes tell the rest of their instance: attempts for nodes, and what became of jobs.

use std::sync::Arc;

use domain::job::{Assignment, Attempt, State};
use domain::lane::JobNotice;
use domain::{InstanceId, JobId, LaneId};

use super::delivery::{Dispatch, Withdrawal};
use super::instance_message::InstanceMessage;
use super::inter_instance::InterInstance;
use super::job_metrics::JOB_METRICS;
use super::lifetime::Lifetime;
use super::messages::CompletionAnswer;
use super::node_gateway::NodeGateway;
use super::rates::RateCounter;
use super::results::ResultWriter;
use super::revocations;
use super::waiters::Waiters;
use super::watches::{JobEvent, JobEventKind, Watches};

/// The instance, as the owners of its lanes see it.
pub(super) struct InstanceHost {
    pub(super) lifetime: Lifetime,
    pub(super) gateway: Arc<NodeGateway>,
    pub(super) inter_instance: Arc<InterInstance>,
    pub(super) results: Arc<ResultWriter>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) watches: Arc<Watches>,
    pub(super) rates: Arc<RateCounter>,
}

impl InstanceHost {
    /// Whether this incarnation is over, so that nothing is written any more.
    pub(super) fn is_over(&self) -> bool {
        self.lifetime.is_over()
    }

    /// Sends an attempt to its node.
    pub(super) fn dispatch(&self, dispatch: Dispatch) {
        self.gateway.deliver(dispatch);
    }

    /// Has an attempt called off at its node.
    pub(super) fn withdraw(&self, withdrawal: Withdrawal) {
        self.gateway.withdraw(withdrawal);
    }

    /// Tells another instance that a session's lease is free, and that it is to go on with the session.
    pub(super) fn left(&self, lane: &LaneId, heir: InstanceId) {
        self.inter_instance.post(heir, InstanceMessage::Left(lane.clone()));
    }

    /// Tells those who watch a lane that its session is closed.
    pub(super) fn closed(&self, lane: &LaneId) {
        self.watches.closed(lane);
    }

    /// Answers results that were written, each with the attempt that gets its slot.
    pub(super) fn results_written(&self, answers: Vec<CompletionAnswer>) {
        self.results.answer(answers);
    }

    /// Tells those who watch what became of a job.
    pub(super) fn notify(&self, lane: &LaneId, notice: JobNotice) {
        let seen = |job: JobId, attempt: Attempt, placed: Option<Assignment>, kind: JobEventKind| {
            let node = placed.map(|placed| placed.node);
            self.watches.tell_change(|| JobEvent { job, attempt, lane: Some(lane.clone()), node, kind });
        };
        match notice {
            JobNotice::Created(job, class) => {
                self.rates.accepted(&class);
                seen(job, Attempt::NONE, None, JobEventKind::Changed(State::Created, None));
            }
            JobNotice::Dispatched(job, attempt, placed, waited) => {
                if let Some(waited) = waited {
                    JOB_METRICS.waiting_seconds.record(waited);
                }
                JOB_METRICS.dispatched.increment(1);
                seen(job, attempt, Some(placed), JobEventKind::Changed(State::Dispatched, None));
            }
            JobNotice::Requeued(job, attempt, placed, why) => {
                revocations::note(job, attempt, Some(&placed.node), why);
                seen(job, attempt, Some(placed), JobEventKind::Changed(State::Created, None));
            }
            JobNotice::Ended(job, class, attempt, placed, outcome, why) => {
                if let Some(why) = why {
                    revocations::note(job, attempt, placed.as_ref().map(|placed| &placed.node), why);
                }
                self.rates.finished(&class, outcome);
                self.inter_instance.finished(lane, job, attempt);
                self.waiters.finished(job);
                seen(job, attempt, placed, JobEventKind::Changed(State::Finished, Some(outcome)));
            }
            JobNotice::Completed(job, class, attempt, node, output) => {
                if let Some(output) = output {
                    self.waiters.set_output(job, output);
                }
                self.results.written_by_owner(job, &class, attempt, &node, lane);
            }
        }
    }
}
