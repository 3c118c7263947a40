//! The desk of one signer: a bounded queue, and the task that serves it.
//!
//! In basic mode it serves in turns: take the lease, serve what is waiting, one commit per request, and give
//! the lease back as soon as nothing is left, at the latest after `tenure_max`; then pause for a moment, so
//! that other instances get their turn. In worker-queue mode it keeps the lease for as long as there is
//! work, and for a while after; all that waits shares one commit.
//!
//! The desk closes when its queue is empty and its lease given back.

use std::collections::VecDeque;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::Place;
use dashmap::Entry;
use domain::{Mode, Resource, SignerId};
use futures_util::FutureExt;
use tokio::sync::Notify;

use super::command::{Command, Ticket, Work};
use super::round::Rounds;
use super::tenure::Tenure;
use super::{Inner, Phase, Refusal, Signers};
use crate::pause::jittered;

/// The queue of one signer.
pub(super) struct Desk {
    waiting: VecDeque<Work>,
    wake: Arc<Notify>,
    /// The lease is to be given back after the round under way.
    let_go: bool,
}

/// After a turn that ran its full length, before jitter.
const TURN_PAUSE: Duration = Duration::from_millis(20);
/// Signers whose leases an instance keeps without work. With more desks open than that, leases are given
/// back at once.
const KEPT_MAX: usize = 150_000;
/// Commands decided in one round in worker-queue mode.
const ROUND_COMMANDS_MAX: usize = 512;
/// Nonces that a round may touch, counted before its last command. With that command they are as many as
/// there may be holes in memory.
const ROUND_NONCES_MAX: usize = 3_000;

const _: () = assert!(
    ROUND_NONCES_MAX + domain::limits::GRANT_NONCES_MAX <= domain::limits::HOLES_IN_MEMORY_MAX,
    "a round must be servable from the holes in memory"
);
const _: () = assert!(
    ROUND_NONCES_MAX + domain::limits::GRANT_NONCES_MAX + ROUND_COMMANDS_MAX < ledger::BATCH_ROWS_MAX,
    "a round must fit a batch: its rows, and a key for each command"
);

impl Inner {
    /// Puts a command into the signer's queue, and opens its desk if there is none.
    pub(super) fn enqueue(
        self: &Arc<Self>,
        signer: &SignerId,
        command: Command,
        deadline: Instant,
    ) -> Result<(), Refusal> {
        if self.is_over() {
            return Err(Refusal::Fenced);
        }
        let place = Arc::clone(&self.under_way).try_acquire_owned().map_err(|_| Refusal::Overloaded)?;
        let arrived = Instant::now();
        let patience = match self.mode(signer) {
            Mode::Basic => arrived + jittered(self.limits.lease_wait),
            // The other one is the owner, and that is the answer.
            Mode::WorkerQueue => arrived,
        };
        let ticket = Ticket { arrived, patience, deadline, unsure: false, _place: place };
        let work = Work { command, ticket };
        match self.desks.entry(signer.clone()) {
            Entry::Occupied(mut desk) => {
                let desk = desk.get_mut();
                if desk.waiting.len() >= self.limits.queue_max {
                    return Err(Refusal::Overloaded);
                }
                desk.waiting.push_back(work);
                desk.wake.notify_one();
            }
            Entry::Vacant(none) => {
                let wake = Arc::new(Notify::new());
                let waiting = VecDeque::from([work]);
                none.insert(Desk { waiting, wake: Arc::clone(&wake), let_go: false });
                self.open_desk(signer.clone(), wake);
            }
        }
        metrics::gauge!("fencepost_actor_queue_depth", "kind" => "signer").increment(1);
        Ok(())
    }

    fn open_desk(self: &Arc<Self>, signer: SignerId, wake: Arc<Notify>) {
        let inner = Arc::clone(self);
        tokio::spawn(async move {
            let served = AssertUnwindSafe(inner.serve(&signer, &wake)).catch_unwind().await;
            if served.is_err() {
                // A defect. Whoever waits is told by the loss of their replies; the next request opens a
                // new desk, which trusts nothing of this one.
                tracing::error!(%signer, "a signer's desk died");
                Box::pin(inner.reclaim(&signer)).await;
                if let Some((_, desk)) = inner.desks.remove(&signer) {
                    let lost = desk.waiting.len() as f64;
                    metrics::gauge!("fencepost_actor_queue_depth", "kind" => "signer").decrement(lost);
                }
            }
            inner.desk_closed.notify_waiters();
        });
    }

    /// The signer belongs elsewhere: its lease is given back after the round under way.
    pub(super) fn let_go(&self, signer: &SignerId) {
        if let Some(mut desk) = self.desks.get_mut(signer) {
            desk.let_go = true;
            desk.wake.notify_one();
        }
    }

    /// The commands of the next round; `None` when the lease is to be given back first.
    fn take(&self, signer: &SignerId, mode: Mode) -> Option<VecDeque<Work>> {
        let commands_max = match mode {
            Mode::Basic => 1,
            Mode::WorkerQueue => ROUND_COMMANDS_MAX,
        };
        let mut works = VecDeque::new();
        let mut nonces = 0;
        if let Some(mut desk) = self.desks.get_mut(signer) {
            if std::mem::take(&mut desk.let_go) {
                return None;
            }
            while works.len() < commands_max
                && nonces < ROUND_NONCES_MAX
                && let Some(work) = desk.waiting.pop_front()
            {
                nonces += work.nonces();
                works.push_back(work);
            }
        }
        metrics::gauge!("fencepost_actor_queue_depth", "kind" => "signer").decrement(works.len() as f64);
        let waited = metrics::histogram!("fencepost_actor_queue_seconds", "kind" => "signer");
        works.iter().for_each(|work| waited.record(work.ticket.arrived.elapsed()));
        Some(works)
    }

    async fn serve(&self, signer: &SignerId, wake: &Notify) {
        // Closing and the look for more are one step: whoever enqueues finds the desk open or gone.
        while self.desks.remove_if(signer, |_, desk| desk.waiting.is_empty()).is_none() {
            // One mode for the whole turn. A change of it lets go of the lease.
            let mode = self.mode(signer);
            let (mut tenure, mut unheard, mut let_go) = (None, false, false);
            // The turn counts from when the lease was had, not from when it was waited for.
            let mut had_since: Option<Instant> = None;
            while !self.is_turn_over(mode, had_since) {
                let Some(works) = self.take(signer, mode) else {
                    let_go = true;
                    break;
                };
                if works.is_empty() && !self.lingers(mode, tenure.as_ref(), wake).await {
                    break;
                }
                let (tenure, unheard) = (&mut tenure, &mut unheard);
                // In a box of its own: an idle owner is to be small, and a round is not.
                Box::pin(Rounds { inner: self, signer, mode, tenure, unheard, works }.run()).await;
                had_since = had_since.or(tenure.is_some().then(Instant::now));
            }
            if let Some(tenure) = tenure {
                Box::pin(tenure.close(self)).await;
            }
            if unheard {
                Box::pin(self.reclaim(signer)).await;
            }
            if let_go {
                self.send_on(signer);
            }
            if self.is_turn_over(mode, had_since) {
                tokio::time::sleep(jittered(TURN_PAUSE)).await;
            }
        }
    }

    /// Whoever waits for a signer that was handed off is told to whom.
    fn send_on(&self, signer: &SignerId) {
        let resource = Resource::signer(signer);
        if self.outlook.mode(&resource) != Mode::WorkerQueue {
            return;
        }
        let Place::There(owner) = self.outlook.place(&resource) else { return };
        let waiting = self.desks.get_mut(signer).map(|mut desk| std::mem::take(&mut desk.waiting));
        let waiting = waiting.unwrap_or_default();
        metrics::gauge!("fencepost_actor_queue_depth", "kind" => "signer").decrement(waiting.len() as f64);
        for work in waiting {
            work.refuse(Refusal::NotOwner { owner: owner.id.clone(), expires_in_ms: 0 });
        }
    }

    fn is_turn_over(&self, mode: Mode, had_since: Option<Instant>) -> bool {
        mode == Mode::Basic && had_since.is_some_and(|since| since.elapsed() >= self.limits.tenure_max)
    }

    /// With nothing waiting: waits for more while the lease is worth keeping. `false` when it is to be given
    /// back.
    async fn lingers(&self, mode: Mode, tenure: Option<&Tenure>, wake: &Notify) -> bool {
        let is_worth_it = tenure.is_some_and(Tenure::is_current) && self.desks.len() <= KEPT_MAX;
        if mode == Mode::Basic || !is_worth_it {
            return false;
        }
        let mut phase = self.phase.subscribe();
        tokio::select! {
            () = wake.notified() => true,
            () = tokio::time::sleep(jittered(self.limits.idle)) => false,
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => false,
        }
    }

    /// Ends a lease that this instance has without anybody here knowing its token: what an acquire left
    /// behind whose answer was lost, or a desk that died. Only to be called while no desk of the signer
    /// could have it rightly.
    pub(super) async fn reclaim(&self, signer: &SignerId) {
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
}

impl Signers {
    /// How many requests are under way, for tests and the metric.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.inner.limits.in_flight_max - self.inner.under_way.available_permits()
    }
}
