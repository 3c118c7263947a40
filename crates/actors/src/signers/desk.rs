//! The desk of one signer in basic mode: a bounded queue, and the task that serves it in turns.
//!
//! A turn takes the signer's lease, serves what is waiting, one commit per request, and gives the lease
//! back as soon as nothing is left, at the latest after `tenure_max`; then it pauses for a moment, so
//! that other instances get their turn. The desk closes when its queue is empty.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dashmap::Entry;
use domain::{Resource, SignerId};
use rand::RngExt;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::operations::{Granting, Operation, PolicyChange, Resolving, Settling, Sweep};
use super::tenure::{Tenure, Trouble};
use super::{Inner, Refusal, Signers};

/// An operation and where its answer goes. The other end is gone when the caller has left.
pub(super) struct Asked<O: Operation> {
    operation: O,
    reply: oneshot::Sender<Result<O::Answer, Refusal>>,
}

impl<O: Operation> Asked<O> {
    pub(super) fn new(operation: O) -> (Self, oneshot::Receiver<Result<O::Answer, Refusal>>) {
        let (reply, answer) = oneshot::channel();
        (Self { operation, reply }, answer)
    }
}

/// What can be asked of a signer's owner.
pub(super) enum Command {
    Grant(Asked<Granting>),
    Settle(Asked<Settling>),
    Resolve(Asked<Resolving>),
    SetPolicy(Asked<PolicyChange>),
    Sweep(Asked<Sweep>),
}

/// A command that waits.
pub(super) struct Work {
    command: Command,
    arrived: Instant,
    deadline: Instant,
    /// Held until the command is answered; gives its place under `in_flight_max` back.
    _place: OwnedSemaphorePermit,
}

/// The queue of one signer.
#[derive(Default)]
pub(super) struct Desk {
    waiting: VecDeque<Work>,
}

/// Between two looks at a lease that another instance has, before jitter.
const LOOK_PAUSE: Duration = Duration::from_millis(15);
/// After a turn that ran its full length, before jitter.
const TURN_PAUSE: Duration = Duration::from_millis(20);
/// Between two tries at a ledger that does not answer: doubled each time, from the first to the second.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(20);
const RETRY_PAUSE_MAX: Duration = Duration::from_millis(640);

impl Inner {
    /// Puts a command into the signer's queue, and opens its desk if there is none.
    pub(super) fn enqueue(
        self: &Arc<Self>,
        signer: &SignerId,
        command: Command,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        let place = Arc::clone(&self.under_way).try_acquire_owned().map_err(|_| Refusal::Overloaded)?;
        let work = Work { command, arrived: Instant::now(), deadline, _place: place };
        match self.desks.entry(signer.clone()) {
            Entry::Occupied(mut desk) => {
                let waiting = &mut desk.get_mut().waiting;
                if waiting.len() >= self.limits.queue_max {
                    return Err(Refusal::Overloaded);
                }
                waiting.push_back(work);
            }
            Entry::Vacant(none) => {
                none.insert(Desk { waiting: VecDeque::from([work]) });
                self.open_desk(signer.clone());
            }
        }
        metrics::gauge!("fencepost_actor_queue_depth", "kind" => "signer").increment(1);
        Ok(())
    }

    fn open_desk(self: &Arc<Self>, signer: SignerId) {
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let desk = tokio::spawn({
                let (inner, signer) = (Arc::clone(&inner), signer.clone());
                async move { inner.serve(&signer).await }
            });
            if let Err(error) = desk.await {
                // A defect. Whoever waits is told by the loss of their replies; the next request opens a
                // new desk, which trusts nothing of this one.
                tracing::error!(%signer, %error, "a signer's desk died");
                inner.reclaim(&signer).await;
                if let Some((_, desk)) = inner.desks.remove(&signer) {
                    let lost = desk.waiting.len() as f64;
                    metrics::gauge!("fencepost_actor_queue_depth", "kind" => "signer").decrement(lost);
                }
            }
            inner.desk_closed.notify_waiters();
        });
    }

    /// The next command, if one waits.
    fn next(&self, signer: &SignerId) -> Option<Work> {
        let work = self.desks.get_mut(signer)?.waiting.pop_front()?;
        metrics::gauge!("fencepost_actor_queue_depth", "kind" => "signer").decrement(1);
        metrics::histogram!("fencepost_actor_queue_seconds", "kind" => "signer")
            .record(work.arrived.elapsed());
        Some(work)
    }

    async fn serve(&self, signer: &SignerId) {
        // Closing and the look for more are one step: whoever enqueues finds the desk open or gone.
        while self.desks.remove_if(signer, |_, desk| desk.waiting.is_empty()).is_none() {
            let mut tenure = None;
            // The turn counts from when the lease was had, not from when it was waited for.
            let mut had_since: Option<Instant> = None;
            let is_over =
                |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= self.limits.tenure_max);
            while !is_over(had_since)
                && let Some(work) = self.next(signer)
            {
                self.attend(signer, &mut tenure, work).await;
                had_since = had_since.or(tenure.is_some().then(Instant::now));
            }
            if let Some(tenure) = tenure {
                tenure.close(self).await;
            }
            if is_over(had_since) {
                tokio::time::sleep(jittered(TURN_PAUSE)).await;
            }
        }
    }

    /// Ends a lease that this instance has without anybody here knowing its token: what an acquire left
    /// behind whose answer was lost, or a desk that died. Only to be called while no desk of the signer
    /// could have it rightly.
    async fn reclaim(&self, signer: &SignerId) {
        let resource = Resource::signer(signer);
        let ended = async {
            match self.ledger.lease(&resource).await? {
                Some(lease) if lease.owner.as_ref() == Some(&self.owner) => {
                    self.ledger.release(&resource, &self.owner, lease.token).await
                }
                _ => Ok(false),
            }
        };
        if let Err(error) = ended.await {
            tracing::warn!(%resource, %error, "a lease that nobody uses runs out by itself");
        }
    }

    async fn attend(&self, signer: &SignerId, tenure: &mut Option<Tenure>, work: Work) {
        let deadline = work.deadline;
        let patience = work.arrived + jittered(self.limits.lease_wait);
        let mut service = Service { inner: self, signer, tenure, deadline, patience };
        match work.command {
            Command::Grant(asked) => service.serve(asked).await,
            Command::Settle(asked) => service.serve(asked).await,
            Command::Resolve(asked) => service.serve(asked).await,
            Command::SetPolicy(asked) => service.serve(asked).await,
            Command::Sweep(asked) => service.serve(asked).await,
        }
    }
}

/// The serving of one command.
struct Service<'a> {
    inner: &'a Inner,
    signer: &'a SignerId,
    tenure: &'a mut Option<Tenure>,
    /// When the caller is told that the ledger does not answer.
    deadline: Instant,
    /// When the caller is told that another instance has the lease.
    patience: Instant,
}

impl Service<'_> {
    /// Serves one operation to its end: an answer, or a refusal.
    async fn serve<O: Operation>(&mut self, mut asked: Asked<O>) {
        // Work whose caller has left is not begun: nobody would ever settle what it grants.
        if asked.reply.is_closed() {
            return;
        }
        // Nor is work that waited too long: each such try would keep those behind it waiting too.
        let answer = if Instant::now() < self.deadline {
            self.until_known(&mut asked.operation).await
        } else {
            Err(Refusal::LedgerUnavailable)
        };
        // The caller may have left meanwhile; a hold that nobody knows of runs out.
        let _ = asked.reply.send(answer);
    }

    /// Tries until the outcome is known: done, refused, or out of time. A try that may or may not have
    /// been committed ends the tenure, so that the next one begins with an acquire and a load (I9).
    async fn until_known<O: Operation>(&mut self, operation: &mut O) -> Result<O::Answer, Refusal> {
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            let (inner, deadline) = (self.inner, self.deadline);
            let tried = match self.tenure().await {
                Ok(tenure) => operation.attempt(inner, tenure, deadline).await,
                Err(trouble) => Err(trouble),
            };
            match tried {
                Ok(answer) => return Ok(answer),
                Err(Trouble::Refused(refusal)) => return Err(refusal),
                Err(Trouble::Fenced { op }) => {
                    self.report_fenced(op);
                    self.inner.reclaim(self.signer).await;
                    return Err(Refusal::Fenced);
                }
                Err(Trouble::Defect) => {
                    self.spoil();
                    return Err(Refusal::Internal);
                }
                // The state in memory and the ledger differ, or may: begin again from the ledger.
                Err(Trouble::Reload) => self.spoil(),
                Err(Trouble::Away) => {
                    if let Some(tenure) = self.tenure {
                        tenure.spoil_away();
                    }
                    if Instant::now() + pause >= self.deadline {
                        return Err(Refusal::LedgerUnavailable);
                    }
                    tokio::time::sleep(jittered(pause)).await;
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
            }
            if Instant::now() >= self.deadline {
                return Err(Refusal::LedgerUnavailable);
            }
        }
    }

    fn spoil(&mut self) {
        if let Some(tenure) = self.tenure {
            tenure.spoil();
        }
    }

    fn report_fenced(&mut self, operation: &'static str) {
        let token = self.tenure.take().map_or(0, |tenure| tenure.token().get());
        let (resource, instance) = (Resource::signer(self.signer), &self.inner.owner);
        metrics::counter!("fencepost_fence_reject_total", "op" => operation).increment(1);
        tracing::warn!(%resource, operation, token, %instance, "a stale owner was fenced");
    }

    /// The tenure under which to serve: the one there is while its lease surely lasts, else a new one,
    /// waited for as long as patience goes.
    async fn tenure(&mut self) -> Result<&mut Tenure, Trouble> {
        if !self.tenure.as_ref().is_some_and(Tenure::is_current) {
            let acquired = loop {
                match Tenure::acquire(self.inner, self.signer).await {
                    Err(Trouble::Refused(Refusal::LeaseHeld { .. })) if Instant::now() < self.patience => {
                        tokio::time::sleep(jittered(LOOK_PAUSE)).await;
                    }
                    acquired => break acquired?,
                }
            };
            // Kept before it is loaded: whatever happens from here on, the lease is to be given back.
            self.tenure.insert(acquired).load(self.inner).await?;
        }
        Ok(self.tenure.as_mut().expect("just opened"))
    }
}

/// Asks the ledger again until it answers or the deadline has passed. For reads, which may be repeated.
pub(super) async fn until<T, F>(deadline: Instant, mut read: impl FnMut() -> F) -> Result<T, Refusal>
where
    F: Future<Output = ledger::Result<T>>,
{
    let mut pause = RETRY_PAUSE_MIN;
    loop {
        match read().await {
            Ok(answer) => return Ok(answer),
            Err(error) if error.is_retryable() && Instant::now() + pause < deadline => {
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(RETRY_PAUSE_MAX);
            }
            Err(error) => return Err(super::refusal::of_ledger(&error)),
        }
    }
}

/// Half to one and a half times as long, so that those who wait for the same do not come in step.
pub(super) fn jittered(length: Duration) -> Duration {
    length.mul_f64(rand::rng().random_range(0.5..1.5))
}

impl Signers {
    /// How many requests are under way, for tests and the metric.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.inner.limits.in_flight_max - self.inner.under_way.available_permits()
    }
}
