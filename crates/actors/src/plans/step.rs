//! The commit of one step of a plan.

use std::sync::Arc;
use std::time::Duration;

use domain::job::NewJob;
use domain::plan::{PlanState, Writes};
use domain::{Resource, Timestamp, Token};
use ledger::{Locker, PlanBatch, PlanVerdict, jittered};

use super::{By, Inner, stage};
use crate::jobs::PlanLane;

/// How often a commit is tried again while a lease's row is locked, before the owner acquires the lease again.
const COMMIT_TRIES_MAX: usize = 20;
/// The pause between two such tries, before jitter.
const AGAIN_AFTER: Duration = Duration::from_millis(2);
/// The pause after a step that did not reach the ledger, before jitter: its owner acquires the lease again then, on a connection
/// that may well be open.
const UNREACHED_PAUSE: Duration = Duration::from_millis(200);

/// What became of a step.
pub(super) enum Outcome {
    /// It is durable, at this time by the database's clock; with the tokens of the locks that it took.
    Written { at: Timestamp, locks: Vec<(usize, Token)> },
    /// These tasks, by their places, have lost their locks. Nothing was written.
    LockLost(Vec<usize>),
    /// Somebody else has a lock. Nothing was written.
    Locked(Locker),
    /// The retry's key was used before. Nothing was written.
    KeyTaken,
    /// It counts for nothing, since the plan or its lease is not as it was known, or it did not reach the ledger.
    NotWritten,
    /// The ledger did not answer; it may have been, or may yet be, written.
    Unknown,
    /// The ledger refuses what it would write. Nothing was written.
    Refused(String),
}

/// Commits a step under this token. Answers the jobs of the stages that begin, too: those that find free slots begin with it.
pub(super) async fn commit(
    inner: &Inner,
    lane: &PlanLane,
    token: Token,
    next: Arc<PlanState>,
    writes: &Writes,
    by: By,
) -> (Outcome, Vec<NewJob>) {
    let jobs: Option<Vec<_>> = writes.starts.iter().map(|start| stage::job(&next, start)).collect();
    let Some(mut jobs) = jobs else {
        let why = "the context or the configuration of a stage is not JSON".to_owned();
        return (Outcome::Refused(why), Vec::new());
    };
    if !jobs.is_empty() {
        // Nobody would send them. The plan's owner opens the lane again before it goes on.
        if !lane.is_open() {
            return (Outcome::NotWritten, Vec::new());
        }
        lane.place(token, &mut jobs).await;
    }
    let batch = PlanBatch {
        owner: inner.jobs.me().clone(),
        token,
        next,
        writes: writes.clone(),
        jobs,
        lock_ms: inner.config.lock_ms(),
        key: by.key,
        author: by.author,
        audit: by.audit,
    };
    let outcome = send(inner, lane, &batch).await;
    // Where nobody knows, the reservations run out.
    if !matches!(outcome, Outcome::Written { .. } | Outcome::Unknown) {
        lane.give_back(token, &batch.jobs);
    }
    (outcome, batch.jobs)
}

async fn send(inner: &Inner, lane: &PlanLane, batch: &PlanBatch) -> Outcome {
    let (plan, token) = (batch.next.id, batch.token);
    for _ in 0..COMMIT_TRIES_MAX {
        // Past the lease's end by the own clock no write leaves, whatever the database would say.
        if !lane.is_current() {
            return Outcome::NotWritten;
        }
        match inner.ledger.commit_plan_linked(batch.clone(), lane.link()).await {
            Ok(PlanVerdict::Written { at, locks }) => {
                count_renewed(batch, "renewed", batch.writes.held.len());
                return Outcome::Written { at, locks };
            }
            Ok(PlanVerdict::LockLost(tasks)) => {
                count_renewed(batch, "lost", tasks.len());
                // A lock that was to be freed or looked at, and that is another task's since it ran out, is no stale owner's.
                for (place, token) in batch.writes.held.iter().filter(|(place, _)| tasks.contains(place)) {
                    let tenant = &batch.next.tasks[*place].spec.tenant;
                    reject("tenant_lock", &Resource::tenant(tenant), *token, inner);
                }
                return Outcome::LockLost(tasks);
            }
            Ok(PlanVerdict::Locked(locker)) => return Outcome::Locked(locker),
            Ok(PlanVerdict::KeyTaken) => return Outcome::KeyTaken,
            Ok(PlanVerdict::Diverged) => {
                tracing::warn!(%plan, %token, "the plan's rows are not as its owner knows them");
                return Outcome::NotWritten;
            }
            Ok(PlanVerdict::Fenced) => {
                // The plan's lane may have acquired the lease anew, which is no loss.
                if lane.token() == token {
                    reject("plan", &Resource::plan(plan), token, inner);
                }
                return Outcome::NotWritten;
            }
            Ok(PlanVerdict::Again) => tokio::time::sleep(jittered(AGAIN_AFTER)).await,
            Err(error) => {
                count_failed(batch);
                if error.may_have_written() {
                    tracing::debug!(%error, %plan, "the outcome of a step is not known");
                    return Outcome::Unknown;
                }
                if error.is_retryable() {
                    tracing::debug!(%error, %plan, "a step is not written");
                    // A lease that is past is to be acquired anew at once.
                    if lane.is_current() {
                        tokio::time::sleep(jittered(UNREACHED_PAUSE)).await;
                    }
                    return Outcome::NotWritten;
                }
                return Outcome::Refused(error.to_string());
            }
        }
    }
    count_failed(batch);
    Outcome::NotWritten
}

/// Counts what became of so many locks, if the step was to renew them.
fn count_renewed(batch: &PlanBatch, result: &'static str, locks: usize) {
    if batch.writes.renews {
        metrics::counter!("fencepost_lease_renew_total", "kind" => "tenant", "result" => result)
            .increment(locks as u64);
    }
}

/// Counts locks that were asked for.
pub(super) fn count_asked(result: &'static str, locks: usize) {
    metrics::counter!("fencepost_lease_acquire_total", "kind" => "tenant", "result" => result)
        .increment(locks as u64);
}

/// Counts the locks of a step that the ledger did not answer, or whose rows another transaction has.
fn count_failed(batch: &PlanBatch) {
    count_renewed(batch, "error", batch.writes.held.len());
    count_asked("error", batch.writes.take.len());
}

/// Whether two states are the same but for the locks, whose tokens a commit draws.
pub(super) fn is_same_but_locks(one: &PlanState, other: &PlanState) -> bool {
    let without = |plan: &PlanState| {
        let mut plan = plan.clone();
        for task in &mut plan.tasks {
            Arc::make_mut(task).lock = None;
        }
        plan
    };
    without(one) == without(other)
}

/// Logs and counts the lease, of the plan or of a tenant, at which a step was fenced.
fn reject(op: &'static str, resource: &Resource, token: Token, inner: &Inner) {
    metrics::counter!("fencepost_fence_reject_total", "op" => op).increment(1);
    tracing::warn!(
        %resource, operation = op, %token, instance = %inner.jobs.me(), "a stale owner was fenced"
    );
}

/// Logs and counts locks that a commit of this time took, for so many milliseconds.
pub(super) fn count_locks(plan: &PlanState, locks: &[(usize, Token)], at: Timestamp, lease_ms: u64) {
    count_asked("acquired", locks.len());
    // All times in a commit are that of its transaction.
    let expires_at = at.plus_ms(lease_ms).as_micros();
    for (place, token) in locks {
        let task = &plan.tasks[*place];
        let owner = format!("task:{}", task.id);
        metrics::counter!("fencepost_tenant_locks_total", "result" => "taken").increment(1);
        tracing::info!(
            resource = %Resource::tenant(&task.spec.tenant), %owner, %token, expires_at, lease_ms, plan = %plan.id,
            task = %task.id, "a tenant is locked"
        );
    }
}

/// Logs what waits for a person from this step on: tasks that failed or were interrupted, and a plan that begins none of its
/// others.
pub(super) fn log_attention(before: &PlanState, now: &PlanState) {
    for (was, task) in before.tasks.iter().zip(&now.tasks) {
        if task.status.wants_attention() && !was.status.wants_attention() {
            let (resource, status) = (Resource::tenant(&task.spec.tenant), task.status.as_str());
            tracing::warn!(plan = %now.id, task = %task.id, %resource, status, "a task waits for a person");
        }
    }
    let is_halted = now.is_halted && !before.is_halted;
    let is_over_time = now.is_over_time && !before.is_over_time;
    if is_halted || is_over_time {
        tracing::warn!(plan = %now.id, is_halted, is_over_time, "a plan begins no further task by itself");
    }
}

/// Logs and counts a lock that was refused.
pub(super) fn count_conflict(locker: &Locker) {
    count_asked("held", 1);
    metrics::counter!("fencepost_tenant_locks_total", "result" => "refused").increment(1);
    let (plan, task) = (locker.plan.map(|plan| plan.to_string()), locker.task.map(|task| task.to_string()));
    tracing::info!(
        resource = %Resource::tenant(&locker.tenant), plan, task, "a tenant's lock is another task's"
    );
}
