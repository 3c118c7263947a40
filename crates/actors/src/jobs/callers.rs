//! What callers ask of jobs without a session: to accept, show, await and cancel them.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::job::State;
use domain::lane::{Accepted, Submission};
use domain::{InstanceId, JobId, LaneId};
use ledger::{JobRecord, jittered};
use tokio::sync::oneshot;

use super::keeper::LaneKeeper;
use super::lease::Adoption;
use super::lifetime::Lifetime;
use super::messages::LaneCommand;
use super::state_reads::StateReads;
use super::submission_limits::TokenSubmissions;
use super::submissions::Submissions;
use super::waiters::Waiters;
use super::{Jobs, Refusal};

/// How soon a waiter first reads the ledger if the other instances may not know yet that callers wait here; before jitter.
const LOOK_FIRST: Duration = Duration::from_millis(100);
/// How soon a waiter first reads the ledger, in case a notification was lost; before jitter.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The longest time between two reads of a waiter, which grows while it waits.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(4);
/// The pause between two lookups of a lane's owner, before jitter.
pub(super) const OWNER_LOOK_EVERY: Duration = Duration::from_millis(200);

/// The pause of a waiter before it reads the ledger again.
fn pause_before_look(before_jitter: Duration) -> Duration {
    jittered(before_jitter).min(LOOK_EVERY_MAX)
}

/// What the calls of one instance's callers use.
pub(super) struct Callers {
    pub(super) ledger: ledger::Handle,
    /// Reads the states of jobs for callers that wait for their ends.
    pub(super) states: StateReads,
    pub(super) keeper: Arc<LaneKeeper>,
    pub(super) submissions: Submissions,
    pub(super) waiters: Arc<Waiters>,
    pub(super) lifetime: Lifetime,
    /// How long a request may take altogether.
    pub(super) request_timeout: Duration,
    /// Whether the instances can tell each other of sessions, or there is only one.
    pub(super) has_sessions: bool,
}

impl Callers {
    /// The instance that owns a lane by its lease, if one does.
    pub(super) async fn owner_of(&self, lane: &LaneId) -> Result<Option<InstanceId>, Refusal> {
        let lease = self.ledger.lease(lane.lease()).await?;
        Ok(lease.filter(ledger::Lease::is_live).and_then(|lease| lease.owner))
    }
}

impl Jobs {
    /// Accepts jobs, each on its own; an answer for each, in their order. They take room of their token, if they have one.
    pub async fn submit(
        &self,
        submissions: Vec<Submission>,
        of_token: Option<&TokenSubmissions>,
    ) -> Vec<Result<Accepted, Refusal>> {
        let deadline = Instant::now() + self.callers.request_timeout;
        self.callers.submissions.submit(submissions, of_token, deadline).await
    }

    /// One job, as the ledger has it.
    ///
    /// # Errors
    /// [`Refusal::UnknownJob`], and the ledger's refusals.
    pub async fn get(&self, id: JobId) -> Result<JobRecord, Refusal> {
        let found = self.callers.ledger.job(id).await?;
        found.ok_or(Refusal::UnknownJob)
    }

    /// Returns when a job is finished, or said to be, or when that time is up, whichever comes first. Until then the job's state
    /// alone is read, at longer and longer intervals, and together with those that others wait for. This does not keep the
    /// incarnation: after its end nobody wakes the caller, and the reads go on.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn until_finished(
        &self,
        id: JobId,
        at_most: Duration,
    ) -> impl Future<Output = Result<(), Refusal>> + use<> {
        let (states, watches) = (self.callers.states.clone(), Arc::clone(&self.watches));
        let waiters = Arc::clone(&self.callers.waiters);
        async move {
            let until = Instant::now() + at_most;
            let waiter = waiters.wait_for(id);
            let mut look_after = None;
            loop {
                let mut finished = pin!(waiter.finished());
                // Registered before the look, so that an end in between is not missed.
                finished.as_mut().enable();
                // A look may take as long as the ledger does.
                let state = tokio::select! {
                    state = states.state_of(id) => state?.ok_or(Refusal::UnknownJob)?,
                    () = finished.as_mut() => return Ok(()),
                    () = tokio::time::sleep_until(until.into()) => return Ok(()),
                };
                let left = until.saturating_duration_since(Instant::now());
                if state == State::Finished || left.is_zero() {
                    return Ok(());
                }
                let is_new_here = watches.caller_waits(left.min(LOOK_EVERY_MAX));
                let after = look_after.unwrap_or(if is_new_here { LOOK_FIRST } else { LOOK_EVERY });
                let look_again = tokio::time::sleep(pause_before_look(after).min(left));
                look_after = Some((after * 2).clamp(LOOK_EVERY, LOOK_EVERY_MAX));
                tokio::select! {
                    () = finished => return Ok(()),
                    () = look_again => {}
                }
            }
        }
    }

    /// One job, when it is finished, or said to be, or when that time is up, whichever comes first.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub(crate) async fn wait(&self, id: JobId, at_most: Duration) -> Result<JobRecord, Refusal> {
        self.until_finished(id, at_most).await?;
        self.get(id).await
    }

    /// Serves a lane that nobody serves, unless another instance has its lease: a lane is not adopted by itself as long as
    /// nothing in it is due soon. A plan's lane is opened by the plan's owner, and this instance's own with its lease.
    async fn adopt_unserved(&self, lane: &LaneId, deadline: Instant) -> Result<(), Refusal> {
        let Callers { keeper, lifetime, .. } = &*self.callers;
        if lane.plan_id().is_some() || keeper.is_own(lane) || !lifetime.is_serving() {
            return Ok(());
        }
        if !lifetime.keeps_others() {
            return Err(Refusal::Fenced);
        }
        if !lifetime.takes_work() {
            return Ok(());
        }
        let adopting = tokio::time::timeout_at(deadline.into(), keeper.adopt_for("adopted", lane));
        match adopting.await.map_err(|_late| Refusal::LedgerUnavailable)?? {
            Adoption::Held(owner) => Err(Refusal::NotOwner { owner }),
            Adoption::Taken(()) | Adoption::Missed => Ok(()),
        }
    }

    /// Cancels a job in any state, and returns it as it is then. A cancelled or finished job stays as it is.
    ///
    /// # Errors
    /// [`Refusal::NotOwner`] where its lane is served by another instance.
    pub async fn cancel(&self, id: JobId) -> Result<JobRecord, Refusal> {
        let Callers { keeper, lifetime, request_timeout, .. } = &*self.callers;
        let deadline = Instant::now() + *request_timeout;
        loop {
            let job = self.get(id).await?;
            if job.state == State::Finished {
                // An earlier request may have cancelled it, and its answer was lost.
                return self.callers.ledger.settled_job(id).await?.ok_or(Refusal::UnknownJob);
            }
            let (reply, answer) = oneshot::channel();
            let command = LaneCommand::Cancel(id, job.spec.class(), reply);
            let sent = keeper.directory().try_send(&job.lane, command);
            if let Err(undelivered) = sent {
                if undelivered.is_full {
                    return Err(Refusal::Overloaded);
                }
                match self.callers.owner_of(&job.lane).await? {
                    Some(owner) if owner != *keeper.me() => return Err(Refusal::NotOwner { owner }),
                    _ if Instant::now() + OWNER_LOOK_EVERY * 2 >= deadline => {
                        return Err(Refusal::NoOwner { lane: job.lane });
                    }
                    _ => self.adopt_unserved(&job.lane, deadline).await?,
                }
                if keeper.directory().get(&job.lane).is_none() {
                    tokio::time::sleep(jittered(OWNER_LOOK_EVERY)).await;
                }
                continue;
            }
            match tokio::time::timeout_at(deadline.into(), answer).await {
                Ok(Ok(Ok(()))) => {}
                // An owner that is leaving has written nothing of it.
                Ok(Ok(Err(Refusal::Fenced)))
                    if lifetime.is_serving() && Instant::now() + OWNER_LOOK_EVERY * 2 < deadline =>
                {
                    tokio::time::sleep(jittered(OWNER_LOOK_EVERY)).await;
                }
                Ok(Ok(Err(refusal))) => return Err(refusal),
                Ok(Err(_)) => return Err(lifetime.refusal_of_lost_owner()),
                Err(_) => return Err(Refusal::LedgerUnavailable),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_waiter_never_pauses_for_longer_than_the_longest_time_between_two_reads() {
        // Half of the pauses would be longer.
        for _ in 0..200 {
            assert!(pause_before_look(LOOK_EVERY_MAX) <= LOOK_EVERY_MAX);
        }
    }
}
