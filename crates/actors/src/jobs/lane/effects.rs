//! Carries out what a lane's state decides, but its commits.

use std::collections::{HashMap, HashSet};
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use actix::Context;
use bus::{Binding, Claim, Slot};
use domain::job::{Assignment, Attempt, State};
use domain::lane::limits::PROMOTED_MAX;
use domain::lane::{
    Affinity, CommitFailure, Completed, DispatchOrder, Effect, KeyedAnswer, LaneState, NodeFound, SlotSearch,
    SlotsFound, WithdrawOrder,
};
use domain::{InstanceId, JobId, KeyScope, SessionId};
use futures_util::FutureExt;
use ledger::{HeldAttempt, KeptJobKey, PromotedJob, Unwritten, jittered};

use super::{LaneActor, LaneServices, ask, end, fenced, loaded, reads, spawn, stop_if_all_is_handled, tell};
use crate::handed_on;
use crate::jobs::delivery::{Dispatch, Withdrawal};
use crate::jobs::messages::{CompletionAnswer, CompletionOutcome, PendingSubmission, Waiting};
use crate::jobs::older_attempts;
use crate::jobs::scheduler::Scheduler;
use crate::jobs::{Accepted, Refusal};

/// How long the bus remembers which node a session used last, at least.
const BINDING_KEPT: Duration = Duration::from_secs(3_600);
/// Between two tries to close a session or to promote jobs while the lane's lease row is locked, before jitter.
const WRITE_AGAIN_AFTER: Duration = Duration::from_millis(20);

pub(super) fn carry_out(actor: &mut LaneActor, effect: Effect<Waiting>, context: &mut Context<LaneActor>) {
    let services = &actor.services;
    match effect {
        // Commits were taken out before.
        Effect::Commit(batch) => super::commit(actor, batch, context),
        Effect::Flush => {
            // Polled when the mailbox is empty.
            ask(context, ready(()), |state, (), now| state.flush(now));
        }
        Effect::FindSlots(search) => find_slots(actor, search, context),
        Effect::Submitted(reply, answer) => reply.send(answer.map_err(Refusal::from)),
        Effect::AnswerByKey(answers) => {
            tokio::spawn(answer_by_key(services.ledger.clone(), answers));
        }
        Effect::LookUp(pending) => {
            let ledger = services.ledger.clone();
            spawn(context, look_up(ledger, pending), |new, actor, context| {
                tell(actor, context, |state, now| state.looked_up(new, now));
                stop_if_all_is_handled(actor, context);
            });
        }
        // The caller may be gone.
        Effect::Cancelled(reply, answer) => drop(reply.send(answer.map_err(Refusal::from))),
        Effect::Closed(reply, answer) => drop(reply.send(answer.map_err(Refusal::from))),
        Effect::Completed(completed) => {
            let answers = completed.into_iter().map(|Completed { is_written, reply, next, .. }| {
                let next = next.map(|order| Box::new(dispatch(&order)));
                CompletionAnswer { reply, outcome: CompletionOutcome { is_written, next } }
            });
            services.host.results_written(answers.collect());
        }
        Effect::Dispatch(order) => services.host.dispatch(dispatch(&order)),
        Effect::Withdraw(WithdrawOrder { job, attempt, placed, token, is_awaited }) => {
            let tell = is_awaited.then(|| actor.handle.clone());
            let claim = Claim { slot: Slot { job, attempt }, token };
            services.scheduler.take_back(&placed.node, claim, tell);
            services.host.withdraw(Withdrawal { job, attempt, placed });
        }
        Effect::ReleaseSlot { node, job, attempt, token } => {
            let claim = Claim { slot: Slot { job, attempt }, token };
            services.scheduler.take_back(&node, claim, None);
        }
        Effect::ReleaseUnsent { node, job, attempt, token } => {
            let claim = Claim { slot: Slot { job, attempt }, token };
            services.scheduler.give_back_unsent(&node, claim, actor.handle.clone());
        }
        Effect::LookForNode { placed, attempts } => {
            let services = Arc::clone(services);
            let look = async move {
                match services.ledger.attempts_on(&placed.node).await {
                    Ok(held) => nodes_found(&services.scheduler, &placed, attempts, held),
                    Err(error) => {
                        let node = &placed.node;
                        tracing::debug!(%error, %node, "what became of a node's attempts could not be read");
                        Vec::new()
                    }
                }
            };
            ask(context, look, LaneState::node_looked_for);
        }
        Effect::SlotFreed(placed) => {
            if placed.holder != services.me
                && let Some(record) = services.registry.get(&placed.node)
            {
                services.registry.freed(&placed.node, record.stamp.epoch);
            }
        }
        Effect::Enqueue(enqueue) => services.scheduler.enqueue(&actor.handle, &actor.lane, enqueue),
        Effect::LookForOlder { job, newest, since } => {
            let services = Arc::clone(services);
            let look = async move {
                match services.ledger.job(job).await {
                    Ok(Some(record)) => older_attempts::are_over(&services.scheduler, &record, since).await,
                    Ok(None) => true,
                    Err(error) => {
                        tracing::debug!(%error, %job, "the earlier attempts of a stage are looked at again soon");
                        false
                    }
                }
            };
            spawn(context, look, move |are_over, actor: &mut LaneActor, context| {
                if are_over {
                    tell(actor, context, |state, now| state.older_are_over(job, newest, now));
                }
            });
        }
        Effect::Dequeue(job) => services.scheduler.forget(job),
        Effect::DequeueAll => services.scheduler.forget_lane(&actor.lane),
        Effect::Notify(notice) => services.host.notify(&actor.lane, notice),
        Effect::Waited(lengths) => lengths.into_iter().for_each(|length| actor.queue.waited(length)),
        Effect::Read(read) => reads::start(actor, read, context),
        Effect::AcquireAnew => {
            let (loader, token) = (actor.loader(), actor.state.token());
            spawn(context, async move { loader.anew(token).await }, loaded);
        }
        Effect::Bind(affinity) => actor.bind(affinity.as_deref()),
        Effect::CloseSession => close_session(actor, context),
        Effect::Transfer(jobs) => transfer(actor, jobs, context),
        Effect::Promote => promote(actor, context),
        Effect::Stop => {
            let handled = actor.handled;
            end(actor, Some(handled), context);
        }
    }
}

/// What is found of attempts that were placed so, where the ledger has these for the node. Those that are over are left out.
fn nodes_found(
    scheduler: &Scheduler,
    placed: &Assignment,
    attempts: Vec<(JobId, Attempt)>,
    held: Vec<HeldAttempt>,
) -> Vec<(JobId, Attempt, NodeFound)> {
    let held: HashMap<_, _> = held.into_iter().map(|one| ((one.job, one.attempt), one)).collect();
    let may_be_connected = scheduler.may_be_connected(placed);
    let found = |(job, attempt): (JobId, Attempt)| {
        let HeldAttempt { state, holder, .. } = held.get(&(job, attempt))?;
        // With what it has a node may have gone to another instance, which has noted so.
        let found = match state {
            State::Running => NodeFound::Running,
            _ if *holder != placed.holder => NodeFound::Running,
            _ if may_be_connected => NodeFound::There,
            _ => NodeFound::Gone,
        };
        Some((job, attempt, found))
    };
    attempts.into_iter().filter_map(found).collect()
}

fn dispatch(order: &DispatchOrder) -> Dispatch {
    Dispatch::new(&order.job, order.current, order.placed.clone())
}

fn find_slots(actor: &mut LaneActor, search: SlotSearch, context: &mut Context<LaneActor>) {
    let services = &actor.services;
    let has_others = services.cluster_view.view().members().nth(1).is_some();
    let (found, left) = services.scheduler.pass_on(&services.me, &actor.lane, search, has_others);
    let scheduler = Arc::clone(&services.scheduler);
    let mut placing = Box::pin(async move {
        let SlotsFound { passed, mut reserved } = found;
        if !left.is_empty() {
            reserved.extend(scheduler.place_now(left).await);
        }
        SlotsFound { passed, reserved }
    });
    match placing.as_mut().now_or_never() {
        Some(found) => tell(actor, context, |state, now| state.slots_found(found, now)),
        None => ask(context, placing, LaneState::slots_found),
    }
}

impl LaneActor {
    fn session(&self) -> Option<SessionId> {
        self.lane.session_id()
    }

    /// Notes at the bus who serves the session, and where its last job went. May be lost: it is a preference.
    fn bind(&self, affinity: Option<&Affinity>) {
        let Some(id) = self.session() else { return };
        let (node, pool) =
            affinity.map_or((None, None), |known| (Some(known.node.clone()), known.pool.clone()));
        let binding = Binding { instance: self.services.me.clone(), token: self.state.token(), node, pool };
        let kept = self.state.session().map_or(BINDING_KEPT, |session| session.idle().max(BINDING_KEPT));
        let bus = self.services.bus.clone();
        tokio::spawn(async move {
            if let Err(error) = bus.bind_session(&id, &binding, kept).await {
                tracing::debug!(%error, session = %id, "a session's binding could not be stored");
            }
        });
    }

    fn unbind(&self) {
        let Some(id) = self.session() else { return };
        let (bus, token) = (self.services.bus.clone(), self.state.token());
        tokio::spawn(async move {
            if let Err(error) = bus.unbind_session(&id, token).await {
                tracing::debug!(%error, session = %id, "a session's binding was not removed; it expires");
            }
        });
    }
}

/// Writes in the lane, unless its lease may have run out. By `then` the state learns what came of it.
fn write_in_lane<T: 'static>(
    actor: &mut LaneActor,
    write: impl AsyncFnOnce(Arc<LaneServices>, ledger::Lane) -> Result<T, CommitFailure> + 'static,
    context: &mut Context<LaneActor>,
    then: impl FnOnce(Result<T, CommitFailure>, &mut LaneActor, &mut Context<LaneActor>) + 'static,
) {
    let (services, lease) = (Arc::clone(&actor.services), Arc::clone(&actor.lease));
    let lane = lane_of(actor);
    let written = async move {
        match lease.is_current() {
            true => write(services, lane).await,
            false => Err(CommitFailure::Fenced),
        }
    };
    spawn(context, written, then);
}

fn close_session(actor: &mut LaneActor, context: &mut Context<LaneActor>) {
    let close = async |services: Arc<LaneServices>, lane| close(&services, &lane).await;
    write_in_lane(actor, close, context, |closed, actor, context| {
        if closed.is_ok() {
            tracing::info!(resource = %actor.lane, token = %actor.state.token(), "a session is closed");
            actor.unbind();
            actor.services.host.closed(&actor.lane);
        }
        tell(actor, context, |state, now| state.session_closed(closed, now));
    });
}

async fn close(services: &LaneServices, lane: &ledger::Lane) -> Result<(), CommitFailure> {
    let closed = services.ledger.close_session(lane).await;
    paused(outcome(closed, lane, "close_session")).await
}

/// What the ledger's answer to a write in the lane means to its owner.
fn outcome<T>(
    answer: ledger::Result<Result<T, Unwritten>>,
    lane: &ledger::Lane,
    operation: &'static str,
) -> Result<T, CommitFailure> {
    match answer {
        Ok(Ok(written)) => Ok(written),
        Ok(Err(Unwritten::Again)) => Err(CommitFailure::Again),
        Ok(Err(Unwritten::Fenced)) => {
            fenced(lane, operation);
            Err(CommitFailure::Fenced)
        }
        Err(error) => {
            tracing::debug!(%error, lane = %lane.id, operation, "the outcome of a write in the lane is not known");
            Err(CommitFailure::Unknown)
        }
    }
}

/// Answers the same, after a pause where the write is to be tried again.
async fn paused<T>(outcome: Result<T, CommitFailure>) -> Result<T, CommitFailure> {
    if matches!(outcome, Err(CommitFailure::Again)) {
        tokio::time::sleep(jittered(WRITE_AGAIN_AFTER)).await;
    }
    outcome
}

fn lane_of(actor: &LaneActor) -> ledger::Lane {
    ledger::Lane { id: actor.lane.clone(), owner: actor.services.me.clone(), token: actor.state.token() }
}

fn transfer(actor: &mut LaneActor, jobs: Vec<(JobId, InstanceId)>, context: &mut Context<LaneActor>) {
    let transfer =
        async move |services: Arc<LaneServices>, from| transfer_in_ledger(&services, &from, &jobs).await;
    write_in_lane(actor, transfer, context, |moved, actor, context| {
        tell(actor, context, |state, now| state.transferred(moved, now));
    });
}

async fn transfer_in_ledger(
    services: &LaneServices,
    from: &ledger::Lane,
    jobs: &[(JobId, InstanceId)],
) -> Result<Vec<JobId>, CommitFailure> {
    let moved = outcome(services.ledger.transfer_jobs(from, jobs).await, from, "transfer_jobs")?;
    handed_on::count("job", moved.len() as u64);
    tracing::debug!(lane = %from.id, jobs = moved.len(), "jobs were transferred to other instances");
    Ok(moved)
}

fn promote(actor: &mut LaneActor, context: &mut Context<LaneActor>) {
    let promote = async |services: Arc<LaneServices>, lane| promote_in_ledger(&services, &lane).await;
    write_in_lane(actor, promote, context, |promoted, actor, context| {
        tell(actor, context, |state, now| state.promoted(promoted, now));
    });
}

async fn promote_in_ledger(
    services: &LaneServices,
    lane: &ledger::Lane,
) -> Result<Vec<PromotedJob>, CommitFailure> {
    let promoted = services.ledger.promote_jobs(lane, PROMOTED_MAX).await;
    let jobs = paused(outcome(promoted, lane, "promote_jobs")).await?;
    tracing::debug!(lane = %lane.id, jobs = jobs.len(), "delayed jobs that are due wait with the others");
    Ok(jobs)
}

/// Answers submissions that were not written: as the first one under their key was, if there was one. Where that cannot
/// be read, nobody knows whether there was one.
async fn answer_by_key(ledger: ledger::Handle, answers: Vec<KeyedAnswer<Waiting>>) {
    let scopes = answers.iter().map(|answer| answer.key.scope.clone()).collect();
    let kept = kept(&ledger, scopes).await;
    for KeyedAnswer { key, otherwise, reply } in answers {
        reply.send(match &kept {
            Ok(kept) => kept
                .get(&key.scope)
                .map_or_else(|| Err(otherwise.into()), |kept| answer_again(&key.body_hash, kept)),
            Err(refusal) => Err(refusal.clone()),
        });
    }
}

/// Answers those of these submissions that are repetitions, or all if nobody can tell. The others are returned.
async fn look_up(ledger: ledger::Handle, pending: Vec<PendingSubmission>) -> Vec<PendingSubmission> {
    let scopes = pending.iter().filter_map(|one| Some(one.submission.key.as_ref()?.scope.clone())).collect();
    let kept = kept(&ledger, scopes).await;
    let mut new = Vec::new();
    for one in pending {
        let key = one.submission.key.as_ref();
        match &kept {
            Ok(kept) => match key.and_then(|key| Some((key, kept.get(&key.scope)?))) {
                Some((key, kept)) => {
                    let answer = answer_again(&key.body_hash, kept);
                    one.reply.send(answer);
                }
                None => new.push(one),
            },
            Err(refusal) => one.reply.send(Err(refusal.clone())),
        }
    }
    new
}

/// What is kept under these keys.
async fn kept(
    ledger: &ledger::Handle,
    scopes: HashSet<KeyScope>,
) -> Result<HashMap<KeyScope, KeptJobKey>, Refusal> {
    let scopes: Vec<_> = scopes.into_iter().collect();
    let kept = ledger.kept_job_keys(&scopes).await?;
    Ok(kept.into_iter().collect())
}

/// The answer to the first submission under a key, for another one of this body.
fn answer_again(body_hash: &[u8; 32], kept: &KeptJobKey) -> Result<Accepted, Refusal> {
    if kept.body_hash != *body_hash {
        return Err(Refusal::KeyReused);
    }
    let KeptJobKey { job, lane, seq, created_at, .. } = kept.clone();
    Ok(Accepted { id: job, lane, seq, created_at, is_repeated: true })
}
