//! What nodes say of ends goes into the ledger before they are told that it counts. A good end of a job whose lane's owner
//! is on this instance too rides with that owner's next commit, and its slot may go to whoever is next by the same one.
//! Everything else is committed here, under no lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use domain::job::{Attempt, Change, Ended, Event, Newest, Outcome, Revoked, State, Step, decide};
use domain::{JobId, NodeId, Resource, ResourceKind};
use ledger::{JobBatch, JobRecord, JobVerdict, JobWrite, JobsVerdict};
use rand::RngExt;
use tokio::sync::oneshot;

use super::Inner;
use super::delivery::{Dispatch, Terms};
use super::lane::{Address, Ends, Heard, Landed, Told, Word};
use super::limits::OWNER_WAIT;
use super::watches::{Seen, What};
use crate::pause::jittered;

/// Between two tries of a commit of results, before jitter: at first, and at most.
const AGAIN_AFTER: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What became of an attempt, in its node's words.
#[derive(Clone, Debug)]
pub struct NodeResult {
    /// The job.
    pub job: JobId,
    /// Which attempt.
    pub attempt: Attempt,
    /// What came of it.
    pub output: Result<String, Failure>,
}

/// Why an attempt failed, in its node's words.
#[derive(Clone, Debug)]
pub struct Failure {
    /// What went wrong.
    pub message: String,
    /// Whether trying again may help.
    pub is_retryable: bool,
}

/// What a node is told of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is recorded, now or before.
    Committed,
    /// It is not that attempt any more.
    Stale,
}

/// Whether this very attempt of this node ended in the node's own words.
fn was_ended_by(job: &JobRecord, attempt: Attempt, node: &NodeId) -> bool {
    let of = job.attempts.iter().find(|past| past.attempt == attempt && past.node == *node);
    of.is_some_and(|past| matches!(past.ended, Ended::Succeeded | Ended::Failed))
}

impl Inner {
    /// See [`super::Jobs::results`].
    pub(super) async fn results(
        self: &Arc<Self>,
        node: &NodeId,
        results: Vec<NodeResult>,
        may_pass: bool,
    ) -> Vec<(Answer, Option<Box<Dispatch>>)> {
        let told: Vec<_> = results.iter().map(|result| self.tell_owner(node, result, may_pass)).collect();
        let (mut answers, mut next) = (vec![Answer::Stale; results.len()], Vec::new());
        let mut left = Vec::new();
        for (n, told) in told.into_iter().enumerate() {
            let landed = match told {
                // Dropped where the lane does not know; one that is busy with itself is not waited for.
                Some(told) => tokio::time::timeout(OWNER_WAIT, told).await.ok().and_then(Result::ok),
                None => None,
            };
            if landed.as_ref().is_some_and(|landed| landed.is_written) {
                answers[n] = Answer::Committed;
            } else {
                left.push(n);
            }
            next.push(landed.and_then(|landed| landed.next));
        }
        self.commit_all(node, &results, left, &mut answers).await;
        answers.into_iter().zip(next).collect()
    }

    /// A good end of a job whose lane is an instance's, and served here, is written by its owner, with what it writes next.
    /// Sessions have an order, and their jobs rather go where the last one went: their slots are not passed on.
    fn tell_owner(
        &self,
        node: &NodeId,
        result: &NodeResult,
        may_pass: bool,
    ) -> Option<oneshot::Receiver<Landed>> {
        let owner = self.writer_of(result)?;
        let (job, attempt, output) = (result.job, result.attempt, result.output.as_ref().ok()?.clone());
        let (reply, landed) = oneshot::channel();
        owner.tell(Word::Result(Told { job, attempt, node: node.clone(), output, may_pass, reply }));
        Some(landed)
    }

    /// The owner that writes this result, if that is not for the holder.
    pub(super) fn writer_of(&self, result: &NodeResult) -> Option<Address> {
        result.output.as_ref().ok()?;
        let lane = self.holder.lane(result.job, result.attempt);
        let lane = lane.filter(|lane| lane.kind() == ResourceKind::Instance)?;
        self.lanes.get(&lane).map(|address| address.clone())
    }

    /// What a lane's owner has written is answered, with what is to have the slot now.
    pub(super) fn answer_results(self: &Arc<Self>, ends: Ends) {
        let mut next: HashMap<_, _> = ends.next.into_iter().collect();
        for (job, is_written, reply) in ends.over {
            let follows = next.remove(&job).map(Box::new);
            if let Some(dispatch) = &follows {
                self.holder.expect(dispatch);
            }
            if let Err(Landed { next: Some(dispatch), .. }) = reply.send(Landed { is_written, next: follows })
            {
                let why = "the node's socket is not here any more";
                self.came_to_nothing(dispatch.job, dispatch.attempt, Revoked::Undeliverable, why);
            }
        }
        // Whose slot was to be passed on by an earlier commit.
        for dispatch in next.into_values() {
            self.deliver(dispatch);
        }
    }

    /// Commits results; comes back when it is known what became of each, however long that takes.
    async fn commit_all(
        self: &Arc<Self>,
        node: &NodeId,
        results: &[NodeResult],
        mut left: Vec<usize>,
        answers: &mut [Answer],
    ) {
        let mut pause = AGAIN_AFTER.0;
        while !left.is_empty() {
            match self.commit_results(node, results, &left, answers).await {
                Ok(true) => left.clear(),
                Ok(false) => tokio::time::sleep(jittered(pause)).await,
                Err(error) if error.is_retryable() => {
                    tracing::debug!(%error, %node, "results wait for the ledger");
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(AGAIN_AFTER.1);
                }
                Err(error) if left.len() > 1 => {
                    tracing::warn!(%error, %node, "results are committed one by one");
                    for n in std::mem::take(&mut left) {
                        Box::pin(self.commit_all(node, results, vec![n], answers)).await;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, %node, "the ledger refused a result");
                    left.clear();
                }
            }
        }
    }

    async fn commit_results(
        self: &Arc<Self>,
        node: &NodeId,
        results: &[NodeResult],
        of: &[usize],
        answers: &mut [Answer],
    ) -> ledger::Result<bool> {
        let mut writes = Vec::with_capacity(of.len());
        let mut written = Vec::with_capacity(of.len());
        for &n in of {
            let result = &results[n];
            match self.change(node, result).await? {
                Some(change) => {
                    writes.push(JobWrite { change, key: None });
                    written.push(n);
                }
                None => answers[n] = self.answer_again(node, result).await?,
            }
        }
        if writes.is_empty() {
            return Ok(true);
        }
        let batch = JobBatch { lane: None, writes: writes.into() };
        let verdicts = match self.ledger.commit_jobs(batch.clone()).await? {
            JobsVerdict::Written { jobs, .. } => jobs,
            // There is no lease to it; whatever it was, nothing was written.
            JobsVerdict::Fenced | JobsVerdict::Again => return Ok(false),
        };
        for ((n, write), verdict) in written.into_iter().zip(&*batch.writes).zip(verdicts) {
            let NodeResult { job, attempt, .. } = results[n];
            let terms = self.forget(job, attempt);
            answers[n] = match verdict {
                JobVerdict::Written => {
                    self.recorded(&write.change, node, attempt, terms).await;
                    Answer::Committed
                }
                _ => self.answer_again(node, &results[n]).await?,
            };
        }
        Ok(true)
    }

    /// What a result leads to; `None` where it is not about the newest attempt any more.
    async fn change(&self, node: &NodeId, result: &NodeResult) -> ledger::Result<Option<Change>> {
        let NodeResult { job, attempt, output } = result;
        let (job, attempt, node) = (*job, *attempt, node.clone());
        let failure = match output {
            Ok(output) => {
                return Ok(Some(Change::Complete { job, attempt, node, output: output.clone() }));
            }
            Err(failure) => failure,
        };
        let terms = match self.holder.terms(job, attempt) {
            Some(terms) => terms,
            // It was dispatched by way of another instance.
            None => match self.live_job(job).await? {
                Some(live) => Terms {
                    lane: live.lane.clone(),
                    counted: live.newest.counted,
                    max_attempts: live.spec.max_attempts,
                    backoff: live.spec.backoff,
                },
                None => return Ok(None),
            },
        };
        let newest = Newest { state: State::Running, attempt, counted: terms.counted };
        let event = Event::Failed { attempt, retryable: failure.is_retryable };
        let Ok(step) = decide(Some(newest), terms.max_attempts, event) else { return Ok(None) };
        let (due_in_ms, dead) = match step {
            // Never at once: a job that is due again is found by its time.
            Step::Retry { failures, .. } => {
                (Some(terms.backoff.pause_ms(failures, rand::rng().random()).max(1)), false)
            }
            Step::Finish { dead, .. } => (None, dead),
            Step::Dispatch(_) | Step::Run => return Ok(None),
        };
        let error = failure.message.clone();
        Ok(Some(Change::Fail { job, attempt, node, error, due_in_ms, dead }))
    }

    /// What to say of a result that was not written now: the same as before, if it was then.
    async fn answer_again(&self, node: &NodeId, result: &NodeResult) -> ledger::Result<Answer> {
        let found = self.ledger.job(result.job).await?;
        let was_written = found.is_some_and(|job| was_ended_by(&job, result.attempt, node));
        Ok(if was_written { Answer::Committed } else { Answer::Stale })
    }

    async fn recorded(
        self: &Arc<Self>,
        change: &Change,
        node: &NodeId,
        attempt: Attempt,
        terms: Option<Terms>,
    ) {
        let job = change.job();
        let heard = match change {
            Change::Fail { due_in_ms: Some(due_in_ms), .. } => Heard::Failed { due_in_ms: *due_in_ms },
            _ => Heard::Finished,
        };
        let lane = match terms {
            Some(terms) => Some(terms.lane),
            // It was dispatched by way of another instance. If it is not found, the lane's owner looks by itself.
            None => self.ledger.job(job).await.ok().flatten().map(|job| job.lane),
        };
        let outcome = match change {
            Change::Complete { .. } => Some(Outcome::Succeeded),
            Change::Fail { due_in_ms: None, .. } => Some(Outcome::Failed),
            _ => None,
        };
        self.tell_end(job, attempt, node, lane.as_ref(), outcome);
        if let Some(lane) = lane {
            self.tell_lane(&lane, job, attempt, heard);
        }
    }

    /// The owner of this lane has written the result itself.
    pub(super) fn succeeded(&self, job: JobId, attempt: Attempt, node: &NodeId, lane: &Resource) {
        self.forget(job, attempt);
        self.tell_end(job, attempt, node, Some(lane), Some(Outcome::Succeeded));
        self.tell_other_instances(lane, job, attempt, &Heard::Finished, true);
    }

    /// Tells whoever waits or watches that an attempt has ended; with its job, or without an outcome.
    fn tell_end(
        &self,
        job: JobId,
        attempt: Attempt,
        node: &NodeId,
        lane: Option<&Resource>,
        outcome: Option<Outcome>,
    ) {
        if let Some(outcome) = outcome {
            metrics::counter!("fencepost_jobs_total", "state" => "FINISHED", "outcome" => outcome.as_str())
                .increment(1);
            self.waiters.finished(job);
        }
        let state = if outcome.is_some() { State::Finished } else { State::Created };
        self.watches.tell(|| {
            let (lane, node) = (lane.cloned(), Some(node.clone()));
            Seen { job, attempt, lane, node, what: What::Changed(state, outcome) }
        });
    }
}
