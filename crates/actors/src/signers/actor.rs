//! The actor of one signer: a thin shell round [`SignerState`].
//!
//! What lives here: calling the state, and doing what it wants done: ledger calls as futures of the actor, answers, one
//! timer, its end. What must never: a decision.
//!
//! Handlers are synchronous. A ledger call ends as a call of the state on the actor's own arbiter, so that nothing
//! interleaves with a handler.

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use actix::fut::ready;
use actix::{
    Actor, ActorContext, ActorFutureExt, AsyncContext, Context, Handler, Message, SpawnHandle, WrapFuture,
};
use domain::limits::HOLES_IN_MEMORY_MAX;
use domain::nonce::{Batch, Loaded, Verdict};
use domain::signer::{
    Acquired, Answer, BATCH_OPERATIONS, BatchId, Caller, Command, Effect, Effects, FactsRead, LedgerFailure,
    Moment, Note, Refusal, SignerState, Ticket,
};
use domain::{Mode, Nonce, Resource, SignerId, Token};
use ledger::{Fate, KeyScope, Link};
use metrics::{Counter, Histogram};
use tokio::sync::OwnedSemaphorePermit;

use super::Inner;
use super::lease::HeldLease;
use crate::queue_meter::{QueueKind, QueueMeter};
use crate::replies::ReplyTo;

/// A command for a signer's actor.
pub(super) struct Ask {
    pub(super) command: Command,
    pub(super) ticket: Ticket<WaitingCaller>,
}

/// Something has changed around the actor: its lease was lost, or the owners' phase is another.
pub(super) struct Wake;

/// The signer belongs elsewhere: its lease is to be given back.
pub(super) struct HandOff;

impl Message for Ask {
    type Result = ();
}

impl Message for Wake {
    type Result = ();
}

impl Message for HandOff {
    type Result = ();
}

/// The caller that waits for an answer.
pub(super) struct WaitingCaller {
    pub(super) answer: ReplyTo<Result<Answer, Refusal>>,
    /// Held until the command is answered; gives its place under `in_flight_max` back.
    pub(super) _place: OwnedSemaphorePermit,
}

impl Caller for WaitingCaller {
    fn has_left(&self) -> bool {
        self.answer.is_closed()
    }
}

/// Each series is looked up once, as those of [`QueueMeter`].
static GRANTED: LazyLock<Counter> = LazyLock::new(|| metrics::counter!("fencepost_nonce_grants_total"));
static COMMIT_SECONDS: LazyLock<[Histogram; BATCH_OPERATIONS.len()]> =
    LazyLock::new(|| BATCH_OPERATIONS.map(|op| metrics::histogram!("fencepost_commit_seconds", "op" => op)));

fn commit_seconds(op: &str) -> &'static Histogram {
    let at = BATCH_OPERATIONS.iter().position(|one| *one == op).expect("a batch does one of them");
    &COMMIT_SECONDS[at]
}

/// The actor of one signer.
pub(super) struct SignerActor {
    inner: Arc<Inner>,
    signer: SignerId,
    resource: Resource,
    /// Its number in the directory.
    generation: u64,
    state: SignerState<WaitingCaller>,
    held: Option<HeldLease>,
    /// The batches on their way.
    fates: Vec<(BatchId, Fate)>,
    /// What was loaded with the lease that was acquired last.
    loaded: Option<Result<Loaded, LedgerFailure>>,
    /// Commands taken from the mailbox.
    handled: u64,
    timer: Option<(Instant, SpawnHandle)>,
    queue: QueueMeter,
    /// It has said that the signer exists.
    is_known: bool,
    /// It has nothing left, and is out of the directory.
    has_ended: bool,
}

impl Actor for SignerActor {
    type Context = Context<Self>;
}

impl Handler<Ask> for SignerActor {
    type Result = ();

    fn handle(&mut self, ask: Ask, context: &mut Context<Self>) {
        self.handled += 1;
        let effects = self.state.apply(ask.command, ask.ticket, &self.moment());
        self.run(effects, context);
    }
}

impl Handler<Wake> for SignerActor {
    type Result = ();

    fn handle(&mut self, _: Wake, context: &mut Context<Self>) {
        self.tell(context, |state, moment| state.wake(moment));
    }
}

impl Handler<HandOff> for SignerActor {
    type Result = ();

    fn handle(&mut self, _: HandOff, context: &mut Context<Self>) {
        self.tell(context, |state, moment| state.hand_off(moment));
    }
}

impl SignerActor {
    pub(super) fn new(inner: Arc<Inner>, signer: SignerId, generation: u64) -> Self {
        Self {
            resource: Resource::signer(&signer),
            state: SignerState::new(signer.clone(), Arc::clone(&inner.config)),
            inner,
            signer,
            generation,
            held: None,
            fates: Vec::new(),
            loaded: None,
            handled: 0,
            timer: None,
            queue: QueueMeter::new(QueueKind::Signer),
            is_known: false,
            has_ended: false,
        }
    }

    fn moment(&self) -> Moment {
        Moment {
            now: Instant::now(),
            lease_until: self.held.as_ref().and_then(HeldLease::until),
            is_alive: self.inner.failure_detector.is_alive(),
            mode: self.inner.cluster_view.mode(&self.resource),
            phase: self.inner.phase(),
            may_idle: self.inner.directory.has_room(),
        }
    }

    fn tell(
        &mut self,
        context: &mut Context<Self>,
        what: impl FnOnce(&mut SignerState<WaitingCaller>, &Moment) -> Effects<WaitingCaller>,
    ) {
        let moment = self.moment();
        let effects = what(&mut self.state, &moment);
        self.run(effects, context);
    }

    fn run(&mut self, effects: Effects<WaitingCaller>, context: &mut Context<Self>) {
        for effect in effects {
            self.run_one(effect, context);
        }
        self.queue.set_depth(self.state.waiting());
    }

    fn run_one(&mut self, effect: Effect<WaitingCaller>, context: &mut Context<Self>) {
        match effect {
            Effect::Proceed => {
                // The mailbox is emptied before the actor's futures are polled.
                let proceed = ready(()).map(|(), actor: &mut Self, context: &mut Context<Self>| {
                    actor.tell(context, |state, moment| state.proceed(moment));
                });
                context.spawn(proceed);
            }
            Effect::Acquire { mode } => self.acquire(mode, context),
            Effect::Load => self.load(context),
            Effect::ReadFacts { round, keys, nonces, reads_holes } => {
                let (inner, signer) = (Arc::clone(&self.inner), self.signer.clone());
                let token = self.held.as_ref().map(HeldLease::token);
                let read = async move { inner.read_facts(&signer, token, &keys, nonces, reads_holes).await };
                self.ask(context, read, move |state, result, moment| state.facts_read(round, result, moment));
            }
            Effect::ReadOverdue { round, from, max } => {
                let (inner, signer) = (Arc::clone(&self.inner), self.signer.clone());
                let read = async move {
                    let (ahead_ms, sent) = (inner.clock.behind_ms(), Instant::now());
                    let holds = inner.ledger.overdue(&signer, ahead_ms, from, max).await?;
                    Ok(inner.clock.overdue(&holds, max, sent))
                };
                self.ask(context, read, move |state, result, moment| {
                    state.overdue_read(round, result, moment)
                });
            }
            Effect::Commit { id, op, batch, after } => self.commit(id, op, batch, after, context),
            // A caller that has left needs no answer. What was granted to it runs out.
            Effect::Reply(caller, answer) => caller.answer.send(answer),
            Effect::Release { is_awaited } => self.release(is_awaited, context),
            Effect::Reclaim => {
                self.held = None;
                let (inner, resource) = (Arc::clone(&self.inner), self.resource.clone());
                let reclaim = async move {
                    inner.reclaim(&resource).await;
                    Ok(())
                };
                self.ask(context, reclaim, |state, _, moment| state.reclaimed(moment));
            }
            Effect::WakeAt(at) => self.wake_at(at, context),
            Effect::Note(note) => self.note(note),
            Effect::Stop => {
                let directory = &self.inner.directory;
                if directory.remove_if_all_handled(&self.signer, self.generation, self.handled) {
                    self.has_ended = true;
                    context.stop();
                }
            }
        }
    }

    fn acquire(&self, mode: Mode, context: &mut Context<Self>) {
        let (inner, resource, signer) = (Arc::clone(&self.inner), self.resource.clone(), self.signer.clone());
        let acquire = async move {
            let (acquired, sent) = inner.acquire(&resource, mode).await?;
            // A turn of basic mode acquires and loads each time. One call does both, so that the arbiter is woken once; the
            // load still begins after the acquire was answered.
            let loaded = match (mode, &acquired) {
                (Mode::Basic, Acquired::Lease(_)) => {
                    Some(inner.ledger.load(&signer, HOLES_IN_MEMORY_MAX).await)
                }
                _ => None,
            };
            Ok((acquired, sent, loaded))
        };
        self.call(context, acquire, move |actor, result, context| {
            let result = result.map(|(acquired, sent, loaded)| {
                actor.loaded = loaded.map(|loaded| loaded.map_err(|error| failure(&actor.signer, &error)));
                actor.note_acquired(acquired, sent, mode)
            });
            actor.tell(context, |state, moment| state.acquired(result, moment));
        });
    }

    fn load(&mut self, context: &mut Context<Self>) {
        if let Some(loaded) = self.loaded.take() {
            let loaded = ready(loaded).map(|loaded, actor: &mut Self, context: &mut Context<Self>| {
                actor.tell(context, |state, moment| state.loaded(loaded, moment));
            });
            context.spawn(loaded);
            return;
        }
        let (inner, signer) = (Arc::clone(&self.inner), self.signer.clone());
        let load = async move { inner.ledger.load(&signer, HOLES_IN_MEMORY_MAX).await };
        self.ask(context, load, |state, result, moment| state.loaded(result, moment));
    }

    /// Runs a ledger call, and tells the state what came of it.
    fn ask<T: Send + 'static>(
        &self,
        context: &mut Context<Self>,
        call: impl Future<Output = ledger::Result<T>> + Send + 'static,
        what: impl FnOnce(
            &mut SignerState<WaitingCaller>,
            Result<T, LedgerFailure>,
            &Moment,
        ) -> Effects<WaitingCaller>
        + 'static,
    ) {
        self.call(context, call, move |actor, result, context| {
            actor.tell(context, |state, moment| what(state, result, moment));
        });
    }

    /// Runs a ledger call where the ledger's connections are, so that the arbiter is not woken for each of their
    /// packets.
    fn call<T: Send + 'static>(
        &self,
        context: &mut Context<Self>,
        call: impl Future<Output = ledger::Result<T>> + Send + 'static,
        then: impl FnOnce(&mut Self, Result<T, LedgerFailure>, &mut Context<Self>) + 'static,
    ) {
        let call = self.inner.runtime.spawn(call).into_actor(self);
        context.spawn(call.map(|result, actor, context| {
            let result = match result {
                Ok(result) => result.map_err(|error| failure(&actor.signer, &error)),
                Err(error) => {
                    tracing::error!(%error, signer = %actor.signer, "a call to the ledger panicked");
                    Err(LedgerFailure::Defect)
                }
            };
            then(actor, result, context);
        }));
    }

    /// A commit only waits for its train, which runs where the ledger was opened: no task of its own.
    fn commit(
        &mut self,
        id: BatchId,
        op: &'static str,
        batch: Batch,
        after: Option<BatchId>,
        context: &mut Context<Self>,
    ) {
        let (ledger, sent) = (self.inner.ledger.clone(), Instant::now());
        let fate_of = |id: BatchId| {
            self.fates.iter().find(|(of, _)| *of == id).map_or_else(Fate::lost, |(_, fate)| fate.clone())
        };
        let (own, after) = (Fate::default(), after.map(fate_of));
        self.fates.reserve_exact(1);
        self.fates.push((id, own.clone()));
        let link = Link::new(own, after);
        let link = match &self.held {
            Some(held) => held.bind(link),
            None => link,
        };
        let commit = async move { ledger.commit_linked(batch, link).await }.into_actor(self);
        context.spawn(commit.map(move |result, actor, context| {
            actor.fates.retain(|(of, _)| *of != id);
            if result.is_ok() {
                commit_seconds(op).record(sent.elapsed());
            }
            // Only a commit that granted something names a time.
            if let Ok(Verdict::Committed { at }) = &result
                && at.as_micros() > 0
            {
                actor.inner.clock.saw(*at, sent, Instant::now());
            }
            let result = result.map_err(|error| failure(&actor.signer, &error));
            actor.tell(context, |state, moment| state.committed(id, result, moment));
        }));
    }

    fn note_acquired(&mut self, acquired: Acquired, sent: Instant, mode: Mode) -> Acquired {
        if let Acquired::Lease(token) = acquired {
            self.held = Some(HeldLease::new(&self.inner, self.resource.clone(), token, sent, mode));
        }
        acquired
    }

    fn release(&mut self, is_awaited: bool, context: &mut Context<Self>) {
        // Renewed no more before it is released.
        let token = self.held.take().map(|held| held.token());
        let (releases, resource) = (self.inner.releases.clone(), self.resource.clone());
        let release = async move {
            if let Some(token) = token {
                releases.release(resource, token).await;
            }
        };
        if is_awaited {
            context.spawn(release.into_actor(self).map(|(), actor, context| {
                let new_owner = actor.inner.new_owner(&actor.resource);
                let new_owner = new_owner.filter(|owner| actor.inner.leave(&actor.signer, owner));
                actor.tell(context, |state, moment| state.released(new_owner, moment));
            }));
        } else {
            self.inner.runtime.spawn(release);
        }
    }

    /// A timer that is set already and goes off earlier does as well: the state then says anew what it waits for.
    fn wake_at(&mut self, at: Instant, context: &mut Context<Self>) {
        if let Some((set, timer)) = self.timer {
            if set <= at {
                return;
            }
            context.cancel_future(timer);
        }
        let length = at.saturating_duration_since(Instant::now());
        let timer = context.run_later(length.max(Duration::from_millis(1)), |actor, context| {
            actor.timer = None;
            actor.tell(context, |state, moment| state.wake(moment));
        });
        self.timer = Some((at, timer));
    }

    fn note(&mut self, note: Note) {
        match note {
            Note::Known if self.is_known => {}
            Note::Known => {
                self.is_known = true;
                self.inner.remember(&self.signer);
            }
            Note::Waited(length) => self.queue.waited(length),
            Note::Granted(nonces) => {
                GRANTED.increment(nonces as u64);
            }
            Note::Doubtful(holds) => {
                tracing::warn!(
                    signer = %self.signer, holds,
                    "the database's clock jumped during holds that ran out; their nonces are quarantined"
                );
            }
            Note::Quarantined { nonces, lowest } => {
                tracing::info!(
                    signer = %self.signer, nonces, %lowest,
                    "nonces are quarantined until their holds or an operator settle them"
                );
            }
            Note::FenceRejected { op, token } => {
                let (resource, instance) = (&self.resource, &self.inner.config.owner);
                metrics::counter!("fencepost_fence_reject_total", "op" => op).increment(1);
                tracing::warn!(%resource, operation = op, %token, %instance, "a stale owner was fenced");
            }
            Note::Diverged { op } => {
                tracing::warn!(signer = %self.signer, op, "a row differs from what its owner knew");
            }
        }
    }
}

impl Drop for SignerActor {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        // Callers see it by the loss of their answers; the next command starts an actor that trusts nothing of this one.
        if std::thread::panicking() {
            tracing::error!(signer = %self.signer, "a signer's actor panicked");
        } else {
            tracing::warn!(signer = %self.signer, "a signer's actor was stopped before it had finished");
        }
        if let Some(held) = self.held.take() {
            let (releases, resource, token) =
                (self.inner.releases.clone(), self.resource.clone(), held.token());
            self.inner.runtime.spawn(async move { releases.release(resource, token).await });
        }
        self.inner.directory.remove_dead(&self.signer, self.generation);
    }
}

fn failure(signer: &SignerId, error: &ledger::Error) -> LedgerFailure {
    if error.is_retryable() {
        tracing::debug!(%signer, %error, "the ledger did not answer; beginning again");
        return LedgerFailure::Away;
    }
    tracing::error!(%signer, %error, "the ledger failed");
    LedgerFailure::Defect
}

impl Inner {
    /// Reads what a round must know under the lease of this token: in four statements at most, however many commands.
    async fn read_facts(
        &self,
        signer: &SignerId,
        token: Option<Token>,
        keys: &[KeyScope],
        mut nonces: Vec<Nonce>,
        reads_holes: bool,
    ) -> ledger::Result<FactsRead> {
        let holes = match reads_holes {
            true => Some(self.ledger.holes(signer, HOLES_IN_MEMORY_MAX).await?),
            false => None,
        };
        let kept = if keys.is_empty() { Vec::new() } else { self.ledger.kept_keys(keys).await? };
        for (_, kept) in &kept {
            nonces.extend(kept.answer.grants.iter().map(|(nonce, _)| *nonce));
        }
        if nonces.is_empty() {
            return Ok(FactsRead { kept, rows: Vec::new(), holes, is_owned: true });
        }
        nonces.sort_unstable();
        nonces.dedup();
        let sent = Instant::now();
        let read = self.ledger.rows(signer, &nonces).await?;
        let rows = self.clock.with_left(read.value, read.at, sent);
        let is_owned = kept.is_empty() || self.has_lease(&Resource::signer(signer), token).await?;
        Ok(FactsRead { kept, rows, holes, is_owned })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::time::Duration;

    use cluster::{ClusterView, FailureDetector, Identity};
    use domain::InstanceId;
    use domain::signer::GrantRequest;

    use super::super::{Limits, Signers};
    use super::*;
    use crate::arbiters::Arbiters;
    use crate::database_clock::SharedClock;
    use crate::test_ledger;

    struct Defect;

    impl Message for Defect {
        type Result = ();
    }

    impl Handler<Defect> for SignerActor {
        type Result = ();

        fn handle(&mut self, _: Defect, _: &mut Context<Self>) {
            panic!("made on purpose");
        }
    }

    async fn signers(folder: &tempfile::TempDir) -> Signers {
        let ledger = test_ledger::open(folder).await;
        let limits = Limits {
            lease: Duration::from_secs(15),
            hold_ms: 60_000,
            lease_wait: Duration::from_millis(250),
            lease_kept_max: Duration::from_millis(100),
            idle: Duration::from_secs(30),
            request_timeout: Duration::from_secs(5),
            queue_max: 100,
            in_flight_max: 1_000,
        };
        let me = Identity { id: InstanceId::parse("me-1").unwrap(), url: "http://me".to_owned() };
        let cluster_view = ClusterView::alone(&me, Mode::WorkerQueue);
        let arbiters = Arbiters::start(NonZeroUsize::MIN).unwrap();
        let clock = SharedClock::new(Duration::from_secs(1));
        Signers::start(arbiters, ledger, me.id, FailureDetector::alone(), cluster_view, clock, limits)
    }

    fn one() -> GrantRequest {
        GrantRequest { count: 1, hold_ms: None, key: None }
    }

    #[tokio::test]
    async fn a_panic_in_a_handler_costs_one_actor_and_the_next_request_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let signers = signers(&folder).await;
        let (one_signer, other) = (SignerId::parse("one").unwrap(), SignerId::parse("other").unwrap());
        for signer in [&one_signer, &other] {
            signers.grant(signer, one()).await.unwrap();
        }
        // The command is in the mailbox, behind the defect, when the actor dies.
        let lost = {
            let grant = signers.grant(&one_signer, one());
            let mut grant = Box::pin(grant);
            signers.inner.directory.address(&one_signer).unwrap().do_send(Defect);
            std::future::poll_fn(|context| std::task::Poll::Ready(grant.as_mut().poll(context).is_ready()))
                .await;
            grant.await
        };
        // Sent before or after its end; either way it was not lost without an answer.
        assert!(matches!(lost, Err(Refusal::Internal) | Ok(_)), "{lost:?}");
        let served = signers.grant(&one_signer, one()).await.unwrap();
        assert!(served.grants[0].nonce.get() <= 2);
        assert!(signers.owns(&other), "nobody else's actor is touched");
        signers.stop().await;
        assert_eq!(signers.under_way(), 0);
    }
}
