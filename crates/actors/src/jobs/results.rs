//! Results of attempts, as their nodes say them, go into the ledger before the nodes get `committed`. A good end
//! of a job whose lane's owner is on this instance is written with that owner's next commit, and the same commit may pass its
//! slot on to the next job. Every other result is committed here, under no lease: the ledger compares it with the row's
//! attempt, node and state. So any instance can write a result, and exactly one counts.
//!
//! After the commit a report goes to the lane's owner, if it is not the writer: a command on this instance, an entry of the
//! owner's inbox on another. A crash between the two leaves a result in the ledger that the owner reads within seconds.

use std::sync::Arc;
use std::time::Duration;

use bus::Slot;
use domain::job::{
    Attempt, Change, Class, CurrentAttempt, Ended, Event, Outcome, Revoked, State, Step, decide,
};
use domain::{JobId, LaneId, NodeId};
use ledger::{JobBatch, JobRecord, JobVerdict, JobWrite, JobsVerdict, LiveJob, jittered};
use rand::RngExt;
use tokio::sync::oneshot;

use super::delivery::{Dispatch, RetryPolicy};
use super::inter_instance::InterInstance;
use super::late_results::{LateOfWriter, LateResults};
use super::limits::OWNER_WAIT;
use super::live_job::live_job;
use super::messages::{
    AttemptEvent, CompletionAnswer, CompletionOutcome, CompletionRequest, Directory, LaneCommand, LaneHandle,
};
use super::node_gateway::NodeGateway;
use super::rates::RateCounter;
use super::revocations;
use super::waiters::Waiters;
use super::watches::{JobEvent, JobEventKind, Watches};

/// The pause after the first failed commit of results, before jitter. It doubles each time, up to [`AGAIN_AFTER_MAX`].
const AGAIN_AFTER_MIN: Duration = Duration::from_millis(50);
/// The longest pause between two tries of a commit of results, before jitter.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(2);

/// A result that is not written by then counts as its attempt's acknowledgement. Otherwise a lane whose node has sent none
/// would take the attempt back as soon as the ledger is there again, and have the job run twice.
const RESULT_ACKNOWLEDGES_AFTER: Duration = Duration::from_millis(500);

const _: () = assert!(RESULT_ACKNOWLEDGES_AFTER.as_millis() * 2 <= nodes::limits::ACK_MS_MIN as u128);

/// The end of an attempt, as its node reports it.
#[derive(Clone, Debug)]
pub struct NodeResult {
    /// The job.
    pub job: JobId,
    /// Which attempt.
    pub attempt: Attempt,
    /// What came of it.
    pub output: Result<String, Failure>,
}

/// The reason of a failure, as the node reports it.
#[derive(Clone, Debug)]
pub struct Failure {
    /// `Failed` in the node's own words. Otherwise why the attempt counts like one: its node is lost, or does not list it.
    pub ended: Ended,
    /// What went wrong.
    pub message: String,
    /// Whether trying again may help.
    pub is_retryable: bool,
}

/// The answer to a node that has sent a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is recorded, now or before.
    Committed,
    /// It is not that attempt any more.
    Stale,
}

/// Writes results. Of one instance.
pub(super) struct ResultWriter {
    pub(super) ledger: ledger::Handle,
    pub(super) gateway: Arc<NodeGateway>,
    pub(super) inter_instance: Arc<InterInstance>,
    pub(super) lanes: Arc<Directory>,
    pub(super) waiters: Arc<Waiters>,
    pub(super) watches: Arc<Watches>,
    pub(super) late: Arc<LateResults>,
    pub(super) rates: Arc<RateCounter>,
}

impl ResultWriter {
    /// See [`super::Jobs::results`].
    pub(super) async fn write(
        &self,
        node: &NodeId,
        results: Vec<NodeResult>,
        may_pass: bool,
    ) -> Vec<(Answer, Option<Box<Dispatch>>)> {
        let mut written = std::pin::pin!(self.write_all(node, &results, may_pass));
        if let Ok(answers) = tokio::time::timeout(RESULT_ACKNOWLEDGES_AFTER, written.as_mut()).await {
            return answers;
        }
        for NodeResult { job, attempt, .. } in &results {
            if self.gateway.attempts().is_expected(*job, *attempt) {
                self.gateway.acknowledged(node, *job, *attempt);
            }
        }
        written.await
    }

    /// Ends attempts that a node lost, like failed ones that may be tried again, in the stead of owners that do not hear of it.
    /// Nobody knows what the node did of a stage: its plan finds the stage UNKNOWN once the time of the stage is over. A result
    /// that the node sends later is stale.
    pub(super) async fn lost(&self, node: &NodeId, attempts: &[Slot], why: Revoked, reason: &str) {
        let mut results = Vec::new();
        // One by one: their payloads may be large.
        for &Slot { job, attempt } in attempts {
            if self.is_to_be_ended(job).await {
                let (ended, message) = (Ended::Revoked(why), reason.to_owned());
                let output = Err(Failure { ended, message, is_retryable: true });
                results.push(NodeResult { job, attempt, output });
            }
        }
        self.write(node, results, false).await;
    }

    /// Whether a job has not finished and is no stage; comes back when the ledger has said so, however long that takes.
    async fn is_to_be_ended(&self, job: JobId) -> bool {
        let mut pause = AGAIN_AFTER_MIN;
        loop {
            match live_job(&self.ledger, job).await {
                Ok(live) => return live.is_some_and(|live| live.lane.plan_id().is_none()),
                Err(error) if error.is_retryable() => {
                    tracing::debug!(%error, %job, "what a lost node had could not be read yet");
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(AGAIN_AFTER_MAX);
                }
                Err(error) => {
                    tracing::error!(%error, %job, "the ledger did not say what a lost node had");
                    return false;
                }
            }
        }
    }

    async fn write_all(
        &self,
        node: &NodeId,
        results: &[NodeResult],
        may_pass: bool,
    ) -> Vec<(Answer, Option<Box<Dispatch>>)> {
        let asked: Vec<_> = results.iter().map(|result| self.ask_owner(node, result, may_pass)).collect();
        let (mut answers, mut next) = (vec![Answer::Stale; results.len()], Vec::new());
        let mut left = Vec::new();
        // For all owners together: the next attempts of those that answer wait here.
        let until = tokio::time::Instant::now() + OWNER_WAIT;
        for (n, asked) in asked.into_iter().enumerate() {
            let outcome = match asked {
                // The lane drops what it does not know. An owner that does not answer in time is not waited for.
                Some(asked) => tokio::time::timeout_at(until, asked).await.ok().and_then(Result::ok),
                None => None,
            };
            if outcome.as_ref().is_some_and(|outcome| outcome.is_written) {
                answers[n] = Answer::Committed;
            } else {
                left.push(n);
            }
            next.push(outcome.and_then(|outcome| outcome.next));
        }
        if !left.is_empty() {
            // Boxed: owners write nearly all of them.
            Box::pin(self.commit_all(node, results, left, false, &mut answers)).await;
        }
        answers.into_iter().zip(next).collect()
    }

    /// The owner of a lane writes the good ends of its jobs itself, if it is here.
    fn ask_owner(
        &self,
        node: &NodeId,
        result: &NodeResult,
        may_pass: bool,
    ) -> Option<oneshot::Receiver<CompletionOutcome>> {
        let owner = self.writer_of(result)?;
        let (job, attempt, output) = (result.job, result.attempt, result.output.as_ref().ok()?.clone());
        let (reply, outcome) = oneshot::channel();
        owner.send(LaneCommand::Complete(CompletionRequest {
            job,
            attempt,
            node: node.clone(),
            output,
            may_pass,
            reply,
        }));
        Some(outcome)
    }

    /// The owner that writes this result; `None` if this writer does.
    pub(super) fn writer_of(&self, result: &NodeResult) -> Option<LaneHandle> {
        result.output.as_ref().ok()?;
        let lane = self.gateway.attempts().lane(result.job, result.attempt)?;
        self.lanes.get(&lane)
    }

    /// Answers completions that a lane's owner has written, each with the attempt that gets the slot.
    pub(super) fn answer(&self, answers: Vec<CompletionAnswer>) {
        for CompletionAnswer { reply, outcome } in answers {
            if let Some(dispatch) = &outcome.next {
                self.gateway.attempts().expect(dispatch, std::time::Instant::now());
            }
            if let Err(CompletionOutcome { next: Some(dispatch), .. }) = reply.send(outcome) {
                let why = "the node's socket is no longer on this instance";
                self.gateway.came_to_nothing(dispatch.job, dispatch.attempt, Revoked::Undeliverable, why);
            }
        }
    }

    /// Commits results; comes back when it is known what became of each, however long that takes.
    async fn commit_all(
        &self,
        node: &NodeId,
        results: &[NodeResult],
        mut left: Vec<usize>,
        mut is_unsure: bool,
        answers: &mut [Answer],
    ) {
        let mut pause = AGAIN_AFTER_MIN;
        let mut late = self.late.of_writer();
        while !left.is_empty() {
            match self.commit_results(node, results, &mut left, is_unsure, answers).await {
                Ok(()) if left.is_empty() => {}
                Ok(()) => tokio::time::sleep(jittered(pause)).await,
                // One that went back takes none before it is recovered: their nodes keep them.
                Err(error) if error.is_retryable() || matches!(error, ledger::Error::WentBack) => {
                    tracing::debug!(%error, %node, "results wait for the ledger");
                    is_unsure |= matches!(error, ledger::Error::Unknown { .. });
                    self.note_late(&mut late, left.iter().map(|n| &results[*n]));
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(AGAIN_AFTER_MAX);
                }
                Err(error) if left.len() > 1 => {
                    tracing::warn!(%error, %node, "results are committed one by one");
                    for n in std::mem::take(&mut left) {
                        Box::pin(self.commit_all(node, results, vec![n], is_unsure, answers)).await;
                    }
                }
                Err(error) => {
                    for NodeResult { job, attempt, .. } in left.drain(..).map(|n| &results[n]) {
                        tracing::error!(%error, %node, %job, %attempt, "the ledger refused a result");
                    }
                }
            }
        }
    }

    /// A stage whose result cannot be committed has no checkpoint either.
    fn note_late<'r>(&self, late: &mut LateOfWriter, results: impl Iterator<Item = &'r NodeResult>) {
        for NodeResult { job, attempt, .. } in results {
            let lane = self.gateway.attempts().lane(*job, *attempt);
            let Some(plan) = lane.and_then(|lane| lane.plan_id()) else { continue };
            metrics::counter!("fencepost_checkpoint_write_failures_total").increment(1);
            if late.insert(*job, plan) {
                tracing::warn!(%plan, %job, "the result of a stage waits for the ledger; its node keeps it");
            }
        }
    }

    /// Commits those that are `left`, and takes out each whose answer is known. Where an earlier commit of them may have been
    /// written, what follows from it has not been done. After an error those that are left have no answer yet.
    async fn commit_results(
        &self,
        node: &NodeId,
        results: &[NodeResult],
        left: &mut Vec<usize>,
        is_unsure: bool,
        answers: &mut [Answer],
    ) -> ledger::Result<()> {
        let (mut writes, mut written) = (Vec::with_capacity(left.len()), Vec::with_capacity(left.len()));
        let mut waiting = std::mem::take(left).into_iter();
        while let Some(n) = waiting.next() {
            let result = &results[n];
            let answer = match self.change(node, result).await {
                Ok(Some(change)) => {
                    writes.push(JobWrite { change, key: None });
                    written.push(n);
                    continue;
                }
                Ok(None) => self.answer_again(node, result, is_unsure).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok((answer, follows)) => {
                    answers[n] = answer;
                    self.recorded(node, result, follows).await;
                }
                Err(error) => {
                    left.extend(written.into_iter().chain([n]).chain(waiting));
                    return Err(error);
                }
            }
        }
        if writes.is_empty() {
            return Ok(());
        }
        let batch = JobBatch { lane: None, writes: writes.into() };
        let verdicts = match self.ledger.commit_jobs(batch.clone()).await {
            Ok(JobsVerdict::Written { jobs, .. }) => jobs,
            not_written => {
                *left = written;
                // Without an error, there is no leased lane that it could be fenced by: whatever it was, nothing was written.
                return not_written.map(drop);
            }
        };
        let mut failed = None;
        for ((n, write), verdict) in written.into_iter().zip(batch.writes.iter()).zip(verdicts) {
            let (answer, follows) = if verdict == JobVerdict::Written {
                (Answer::Committed, consequence(&write.change))
            } else if failed.is_some() {
                left.push(n);
                continue;
            } else {
                match self.answer_again(node, &results[n], is_unsure).await {
                    Ok(answer) => answer,
                    // It is asked for again: what follows from those that are written is done once, now.
                    Err(error) => {
                        left.push(n);
                        failed = Some(error);
                        continue;
                    }
                }
            };
            answers[n] = answer;
            self.recorded(node, &results[n], follows).await;
        }
        failed.map_or(Ok(()), Err)
    }

    /// What a result leads to; `None` where it is not about the newest attempt any more.
    async fn change(&self, node: &NodeId, result: &NodeResult) -> ledger::Result<Option<Change>> {
        let (job, attempt) = (result.job, result.attempt);
        let policy = match (&result.output, self.gateway.attempts().policy(job, attempt)) {
            // That it is the newest is for the ledger to find out.
            (Ok(_), _) => None,
            (Err(_), Some(policy)) => Some(policy),
            // It was dispatched to another instance.
            (Err(_), None) => match live_job(&self.ledger, job).await? {
                // An earlier commit of this result may have counted it already.
                Some(live) if is_under_way(&live, attempt, node) => Some(RetryPolicy::of(&live, live.newest)),
                _ => return Ok(None),
            },
        };
        Ok(change_of(node, result, policy.as_ref(), rand::rng().random()))
    }

    /// What to say of a result that was not written now: the same as before, if it was then. And what follows from it, if that
    /// may not have been done. It is stale only in a ledger that is as far as is known.
    async fn answer_again(
        &self,
        node: &NodeId,
        result: &NodeResult,
        is_unsure: bool,
    ) -> ledger::Result<(Answer, Option<Consequence>)> {
        // After `committed` its node forgets it.
        let found = self.ledger.settled_job(result.job).await?;
        if let Some(job) = found.filter(|job| was_ended_by(job, result, node)) {
            let follows = is_unsure.then(|| consequence_in(&job, result.attempt)).flatten();
            return Ok((Answer::Committed, follows));
        }
        // A ledger that went back may lack the job, or the attempt: its node keeps the result.
        if !self.ledger.is_current().await? {
            return Err(ledger::Error::WentBack);
        }
        metrics::counter!("fencepost_fence_reject_total", "op" => "result").increment(1);
        tracing::info!(
            resource = %result.job, operation = "result", token = %result.attempt, instance = %self.gateway.me(),
            %node, "the result of an attempt that is over was fenced"
        );
        Ok((Answer::Stale, None))
    }

    /// The answer to a result is known, so its attempt is removed, unless it is another node's. If something
    /// follows from it, this counts an attempt that was revoked, wakes those who wait for its job, and reports to the owner of
    /// its lane.
    async fn recorded(&self, node: &NodeId, result: &NodeResult, follows: Option<Consequence>) {
        let (job, attempt) = (result.job, result.attempt);
        // Something follows only where the ledger has the attempt for this node.
        let is_anothers = follows.is_none() && self.gateway.attempts().is_anothers(node, job, attempt);
        let policy = if is_anothers { None } else { self.gateway.recorded(job, attempt) };
        let Some(Consequence { event, outcome }) = follows else { return };
        if let Err(Failure { ended: Ended::Revoked(why), .. }) = &result.output {
            revocations::note(job, attempt, Some(node), *why);
        }
        let (lane, class) = match &policy {
            Some(policy) => (Some(policy.lane.clone()), policy.class.clone()),
            // It was dispatched to another instance. If it is not found, the lane's owner reads it by itself.
            None => match self.ledger.job(job).await.ok().flatten() {
                Some(job) => (Some(job.lane), job.spec.class()),
                None => (None, Class::default()),
            },
        };
        self.tell_end(job, &class, attempt, node, lane.as_ref(), outcome);
        match (policy, lane) {
            (Some(policy), _) => self.gateway.report(&policy, job, attempt, event),
            (None, Some(lane)) => self.gateway.report_to_lane(lane, job, attempt, event),
            (None, None) => {}
        }
    }

    /// The owner of this lane has written the result itself.
    pub(super) fn written_by_owner(
        &self,
        job: JobId,
        class: &Class,
        attempt: Attempt,
        node: &NodeId,
        lane: &LaneId,
    ) {
        self.gateway.recorded(job, attempt);
        self.tell_end(job, class, attempt, node, Some(lane), Some(Outcome::Succeeded));
        // Other instances get a notice if callers wait there. They also do if the node may have connected there meanwhile: it
        // must stop.
        let is_wanted = self.watches.any_wants_finish_notices()
            || self.inter_instance.has_other(&|other| self.watches.wants_finish_notices(other))
            || !self.gateway.is_attached(node);
        if is_wanted {
            self.inter_instance.finished(lane, job, attempt);
        }
    }

    /// Wakes callers that wait for the job, and notifies watches, that an attempt has ended; without an outcome, its job has
    /// not.
    fn tell_end(
        &self,
        job: JobId,
        class: &Class,
        attempt: Attempt,
        node: &NodeId,
        lane: Option<&LaneId>,
        outcome: Option<Outcome>,
    ) {
        if let Some(outcome) = outcome {
            self.rates.finished(class, outcome);
            self.waiters.finished(job);
        }
        let state = if outcome.is_some() { State::Finished } else { State::Created };
        self.watches.tell_change(|| {
            let (lane, node) = (lane.cloned(), Some(node.clone()));
            JobEvent { job, attempt, lane, node, kind: JobEventKind::Changed(state, outcome) }
        });
    }
}

/// What is to be written of a result; `None` where the attempt cannot have it any more. A failure needs the job's `policy`;
/// `random`, of 0 to 1, spreads the retries.
fn change_of(
    node: &NodeId,
    result: &NodeResult,
    policy: Option<&RetryPolicy>,
    random: f64,
) -> Option<Change> {
    let NodeResult { job, attempt, output } = result;
    let (job, attempt, node) = (*job, *attempt, node.clone());
    let failure = match output {
        Ok(output) => return Some(Change::Complete { job, attempt, node, output: output.clone() }),
        Err(failure) => failure,
    };
    let RetryPolicy { charged_attempts, max_attempts, backoff, .. } = policy?;
    let newest = CurrentAttempt { state: State::Running, attempt, charged_attempts: *charged_attempts };
    let event = Event::Failed { attempt, retryable: failure.is_retryable };
    let (due_in_ms, dead) = match decide(Some(newest), *max_attempts, event).ok()? {
        // Never at once: a job that is due again is found by its time.
        Step::Retry { failures, .. } => (Some(backoff.pause_ms(failures, random).max(1)), false),
        Step::Finish { dead, .. } => (None, dead),
        Step::Dispatch(_) | Step::Run => return None,
    };
    let (ended, error) = (failure.ended, failure.message.clone());
    Some(Change::Fail { job, attempt, node, ended, error, due_in_ms, dead })
}

/// What follows from a result that is written.
#[derive(Debug, PartialEq, Eq)]
struct Consequence {
    /// For the owner of the job's lane.
    event: AttemptEvent,
    /// How the job has ended, if it has.
    outcome: Option<Outcome>,
}

/// `None` for a change that is no result.
const fn consequence(change: &Change) -> Option<Consequence> {
    let (event, outcome) = match change {
        Change::Complete { .. } => (AttemptEvent::Finished, Some(Outcome::Succeeded)),
        Change::Fail { due_in_ms: None, .. } => (AttemptEvent::Finished, Some(Outcome::Failed)),
        Change::Fail { due_in_ms: Some(due_in_ms), .. } => {
            (AttemptEvent::Failed { due_in_ms: *due_in_ms }, None)
        }
        Change::Submit(_)
        | Change::Dispatch { .. }
        | Change::Revoke { .. }
        | Change::End { .. }
        | Change::Run { .. }
        | Change::Release { .. } => return None,
    };
    Some(Consequence { event, outcome })
}

/// What follows from the end of an attempt that its node has reported, as the job's row says it; `None` where the owner of the
/// job's lane has gone on since.
fn consequence_in(job: &JobRecord, attempt: Attempt) -> Option<Consequence> {
    if job.attempt != attempt {
        return None;
    }
    match &job.finished {
        None => {
            let ended = job.attempts.iter().find(|past| past.attempt == attempt)?;
            // As it was written then; no clock of this process is asked.
            let due_in_ms = job.due_at.map_or(0, |due| due.ms_since(ended.at)).max(1);
            Some(Consequence { event: AttemptEvent::Failed { due_in_ms }, outcome: None })
        }
        Some(finished) => match finished.outcome {
            Outcome::Succeeded | Outcome::Failed => {
                Some(Consequence { event: AttemptEvent::Finished, outcome: Some(finished.outcome) })
            }
            Outcome::Cancelled | Outcome::TimedOut => None,
        },
    }
}

/// Whether this is the attempt that the job has under way, at this node.
fn is_under_way(live: &LiveJob, attempt: Attempt, node: &NodeId) -> bool {
    live.newest.attempt == attempt && live.placed.as_ref().is_some_and(|placed| placed.node == *node)
}

/// Whether this very attempt of this node ended as the result says: in the node's own words, or revoked for the same reason.
fn was_ended_by(job: &JobRecord, result: &NodeResult, node: &NodeId) -> bool {
    let of = job.attempts.iter().find(|past| past.attempt == result.attempt && past.node == *node);
    of.is_some_and(|past| match &result.output {
        Err(Failure { ended: Ended::Revoked(why), .. }) => past.ended == Ended::Revoked(*why),
        Ok(_) | Err(_) => matches!(past.ended, Ended::Succeeded | Ended::Failed),
    })
}

#[cfg(test)]
mod tests;
