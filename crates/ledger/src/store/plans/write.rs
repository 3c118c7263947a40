//! What a train of plans' steps writes: each step all of it or nothing, under its plan's lease and the locks of the tenants
//! that it is about.

use std::collections::HashMap;
use std::sync::Arc;

use domain::plan::{PlanEvent, PlanState, TaskState};
use domain::{InstanceId, LaneId, PlanId, Resource, TaskId, TenantId, Timestamp, Token};

use super::TASK_SHOW;
use crate::Kind;
use crate::jobs::columns;
use crate::jobs::plan::New;
use crate::plans::rows::{TaskRow, event_document, plan_document, stages_document, task_document};
use crate::plans::{Author, Locker, PlanBatch, PlanVerdict, changed_stages, lock_of, lock_owner};
use crate::sql::{Ask, Id, PlanKey, Statement, TaskKey, Transaction, statement};
use crate::store::audit;
use crate::store::committer::{Write, Written};
use crate::store::failure::write_failed;
use crate::store::fence::{claimed, fence};
use crate::store::jobs::{SUBMIT, removal};
use crate::train::{CommitBatch as _, Fence, FenceClaim, TrainError};

const CHANGE: Statement = statement!("plan_change");
const TASK_CHANGE: Statement = statement!("plan_task_change");
const DEFINITION_ADD: Statement = statement!("plan_definition_add");
const STAGE_RUN_SET: Statement = statement!("plan_stage_run_set");
const CHECKPOINT_ADD: Statement = statement!("plan_checkpoint_add");
const EVENT_ADD: Statement = statement!("plan_event_add");
const LOCK: Statement = statement!("tenant_lock");
const RENEW: Statement = statement!("tenant_renew");
const UNLOCK: Statement = statement!("tenant_unlock");
const OWNER: Statement = statement!(both "lease_owner");

/// What a transaction has come to, before its end.
pub(super) enum Ending {
    /// A verdict for each step.
    Written(Written<PlanVerdict>),
    /// Of a step that cannot be written, so that nothing may be committed.
    Undone(PlanVerdict),
}

/// A tenant's lock that a step needs: the lease must be held at exactly this token for the task.
struct NeededLock {
    /// The task, by its place.
    place: usize,
    lock: Resource,
    token: Token,
    owner: InstanceId,
}

impl NeededLock {
    fn claim(&self) -> FenceClaim<'_> {
        FenceClaim { resource: self.lock.clone(), owner: &self.owner, token: self.token }
    }
}

#[async_trait::async_trait]
impl Write for PlanBatch {
    async fn write(
        transaction: &mut Transaction<'_>,
        batches: &[Self],
    ) -> Result<Written<PlanVerdict>, TrainError<PlanVerdict>> {
        match write(transaction, batches).await.map_err(write_failed)? {
            Ending::Written(written) => Ok(written),
            Ending::Undone(verdict) => Err(TrainError::Spoiled(verdict)),
        }
    }
}

/// Everything between BEGIN and COMMIT. Leases are locked first, those that are held before those that are taken.
pub(super) async fn write(transaction: &mut Transaction<'_>, batches: &[PlanBatch]) -> sqlx::Result<Ending> {
    let (kind, at) = (transaction.kind(), transaction.at());
    let (refusals, written_at) = fenced(transaction, batches).await?;
    let steps: Vec<_> = batches
        .iter()
        .zip(&refusals)
        .filter_map(|(step, refused)| refused.is_none().then_some(step))
        .collect();
    let mut taken = Vec::with_capacity(steps.len());
    for step in &steps {
        match lock(transaction, &step.next, &step.writes.take, step.lock_ms).await? {
            Ok(locks) => taken.push(locks),
            Err(locker) => return Ok(Ending::Undone(PlanVerdict::Locked(locker))),
        }
    }
    for step in steps.iter().filter(|step| step.writes.renews && !step.writes.held.is_empty()) {
        let ask = RENEW.on(kind).rows(&step.writes.held, |rows| {
            rows.column("resource", |(place, _)| lock_of(&step.next.tasks[*place]).as_str().to_owned())
                .column("token", |(_, token)| token.get());
        });
        transaction.touch(ask.bind(step.lock_ms as i64).at(at)).await?;
    }
    let freed: Vec<_> = steps.iter().flat_map(|step| needed(step, &step.writes.free)).collect();
    if !freed.is_empty() {
        let freed: Vec<_> = freed.iter().map(NeededLock::claim).collect();
        transaction.touch(unlock(kind, &freed).at(at)).await?;
    }
    for (ask, rows) in changes(transaction, &steps) {
        if transaction.touch(ask).await? != rows as u64 {
            return Ok(Ending::Undone(PlanVerdict::Diverged));
        }
    }
    let superseded: Vec<_> = steps.iter().flat_map(|step| step.writes.superseded.iter().copied()).collect();
    if !superseded.is_empty() {
        // Those that were dismissed before, or are forgotten, stay as they are.
        removal::dismiss(transaction, &superseded).await?;
    }
    let entries: Vec<_> = steps.iter().filter_map(|step| step.audit.as_ref()).collect();
    audit::add(transaction, &entries).await?;
    let anything = !steps.is_empty();
    let mut taken = taken.into_iter();
    let verdict = |refused: Option<PlanVerdict>| {
        refused.unwrap_or_else(|| PlanVerdict::Written {
            at: written_at,
            locks: taken.next().unwrap_or_default(),
        })
    };
    Ok(Ending::Written(Written { verdicts: refusals.into_iter().map(verdict).collect(), anything }))
}

/// Gives tenants' locks back that are held so.
pub(super) fn unlock(kind: Kind, freed: &[FenceClaim<'_>]) -> Ask {
    let freed: Vec<_> = freed.iter().collect();
    UNLOCK.on(kind).rows(&freed, claimed)
}

/// What a step says of these locks.
fn needed<'s>(
    step: &'s PlanBatch,
    locks: impl IntoIterator<Item = &'s (usize, Token)>,
) -> impl Iterator<Item = NeededLock> {
    locks.into_iter().map(|&(place, token)| {
        let task = &step.next.tasks[place];
        NeededLock { place, lock: lock_of(task), token, owner: lock_owner(task.id) }
    })
}

/// Locks the leases of plans and the locks that must be held. What is refused of each step, if anything, and the
/// transaction's time.
async fn fenced(
    transaction: &mut Transaction<'_>,
    steps: &[PlanBatch],
) -> sqlx::Result<(Vec<Option<PlanVerdict>>, Timestamp)> {
    let locks: Vec<Vec<_>> =
        steps.iter().map(|step| needed(step, step.writes.needed_locks()).collect()).collect();
    let claims: Vec<_> = steps
        .iter()
        .zip(&locks)
        .flat_map(|(step, locks)| {
            step.fence_claim().into_iter().chain(locks.iter().map(NeededLock::claim)).map(Some)
        })
        .collect();
    let (fences, at) = fence(transaction, &claims).await?;
    let mut fences = fences.as_slice();
    let mut refusals = Vec::with_capacity(steps.len());
    for locks in &locks {
        let (its, others) = fences.split_at(1 + locks.len());
        fences = others;
        let lost: Vec<_> = its[1..]
            .iter()
            .zip(locks)
            .filter(|(fence, _)| **fence == Fence::Fenced)
            .map(|(_, needed)| needed.place)
            .collect();
        refusals.push(match its[0] {
            Fence::Fenced => Some(PlanVerdict::Fenced),
            _ if !lost.is_empty() => Some(PlanVerdict::LockLost(lost)),
            _ if its.contains(&Fence::Again) => Some(PlanVerdict::Again),
            _ => None,
        });
    }
    // Without a time no lease was locked, and nothing is written.
    Ok((refusals, at.unwrap_or(Timestamp::from_micros(0))))
}

/// The writes of rows, each with the number of rows that it must touch.
fn changes(transaction: &Transaction<'_>, steps: &[&PlanBatch]) -> Vec<(Ask, usize)> {
    let (kind, at) = (transaction.kind(), transaction.at());
    let mut asks = Vec::new();
    let mut add = |ask: Ask, rows: usize| {
        if rows > 0 {
            asks.push((ask.at(at), rows));
        }
    };
    let plans: Vec<_> = steps.iter().filter(|step| step.writes.plan).map(|step| &*step.next).collect();
    let change = CHANGE.on(kind).rows(&plans, |rows| {
        rows.column("id", |plan| PlanKey(plan.id))
            .column("version", |plan| plan.version as i64)
            .column("status", |plan| plan.status().as_str())
            .column("needs_owner", |plan| plan.needs_owner())
            .column("is_over", |plan| plan.status().is_over())
            .column("document", |plan| plan_document(plan));
    });
    add(change, plans.len());
    let tasks: Vec<_> = steps.iter().flat_map(|step| step.tasks(&step.writes.tasks)).collect();
    let change = TASK_CHANGE.on(kind).rows(&tasks, |rows| {
        rows.column("id", |task| TaskKey(task.id))
            .column("version", |task| task.version as i64)
            .column("status", |task| task.status.as_str())
            .column("run", |task| i64::from(task.run))
            .column("definition", |task| i64::from(task.definition))
            .column("document", |task| task_document(task));
    });
    add(change, tasks.len());
    let defined: Vec<_> = steps.iter().flat_map(|step| step.tasks(&step.writes.definitions)).collect();
    add(define(kind, &defined), defined.len());
    let stages: Vec<_> = steps
        .iter()
        .flat_map(|step| {
            let of = |(place, run, stage): (usize, u32, usize)| {
                let task = &step.next.tasks[place];
                (task.id, run, stage, &task.stages[stage])
            };
            changed_stages(&step.next, &step.writes.events).into_iter().map(of)
        })
        .collect();
    let set = STAGE_RUN_SET.on(kind).rows(&stages, |rows| {
        rows.column("task", |(task, ..)| TaskKey(*task))
            .column("run", |(_, run, ..)| i64::from(*run))
            .column("stage", |(.., stage, _)| *stage as i64)
            .column("status", |(.., state)| state.status.as_str())
            .column("job", |(.., state)| state.job.map(Id));
    });
    add(set, stages.len());
    let checkpoints: Vec<_> = steps
        .iter()
        .flat_map(|step| {
            let checkpoints = step.writes.checkpoints.iter();
            checkpoints.map(|(place, checkpoint)| (&step.next.tasks[*place], checkpoint))
        })
        .collect();
    let save = CHECKPOINT_ADD.on(kind).rows(&checkpoints, |rows| {
        rows.column("task", |(task, _)| TaskKey(task.id))
            .column("version", |(_, checkpoint)| i64::from(checkpoint.version))
            .column("run", |(task, _)| i64::from(task.run))
            .column("definition", |(task, _)| i64::from(task.definition))
            .column("completed", |(_, checkpoint)| i64::from(checkpoint.completed))
            .column("context", |(_, checkpoint)| &*checkpoint.context);
    });
    add(save, checkpoints.len());
    let events: Vec<_> = steps
        .iter()
        .filter(|step| !step.writes.events.is_empty())
        .map(|step| NewEvents::new(step.next.id, &step.writes.events, &step.author))
        .collect();
    add(tell(kind, &events), steps.iter().map(|step| step.writes.events.len()).sum());
    let lanes: Vec<_> = steps.iter().map(|step| LaneId::plan(step.next.id)).collect();
    let new: Vec<_> = steps
        .iter()
        .zip(&lanes)
        .flat_map(|(step, lane)| {
            step.jobs.iter().map(|job| New { lane: lane.as_str(), job, key: None, due_at: None })
        })
        .collect();
    add(SUBMIT.on(kind).rows(&new, columns::give), new.len());
    asks
}

/// Takes the locks of these tasks' tenants, all or none; answers their tokens, or who has one that was not to be had.
pub(super) async fn lock(
    transaction: &mut Transaction<'_>,
    plan: &PlanState,
    take: &[usize],
    lock_ms: u64,
) -> sqlx::Result<Result<Vec<(usize, Token)>, Locker>> {
    let taken: Vec<_> = take.iter().map(|place| &plan.tasks[*place]).collect();
    let taken: Vec<_> = taken.into_iter().map(|task| (lock_of(task), lock_owner(task.id))).collect();
    if taken.is_empty() {
        return Ok(Ok(Vec::new()));
    }
    let ask = LOCK
        .on(transaction.kind())
        .rows(&taken, |rows| {
            rows.column("resource", |(lock, _)| lock.as_str()).column("owner", |(_, owner)| owner.as_str());
        })
        .bind(lock_ms as i64);
    let rows: Vec<(String, i64)> = transaction.all(ask.at(transaction.at())).await?;
    let tokens: HashMap<_, _> = rows.into_iter().collect();
    let mut locks = Vec::with_capacity(taken.len());
    for (place, (lock, _)) in take.iter().zip(&taken) {
        let Some(token) = tokens.get(lock.as_str()) else {
            return Ok(Err(locker(transaction, lock).await?));
        };
        locks.push((*place, Token::new(*token)));
    }
    Ok(Ok(locks))
}

/// Who has a lock that was not to be had.
pub(super) async fn locker(transaction: &mut Transaction<'_>, lock: &Resource) -> sqlx::Result<Locker> {
    let owner: Option<(Option<String>,)> =
        transaction.optional(OWNER.on(transaction.kind()).bind(lock.as_str())).await?;
    let owner = owner.and_then(|(owner,)| owner).unwrap_or_default();
    let task = owner.strip_prefix("task:").and_then(TaskId::parse);
    let plan = match task {
        Some(task) => {
            let ask = TASK_SHOW.on(transaction.kind()).bind(TaskKey(task));
            transaction.optional::<TaskRow>(ask).await?.map(|row| row.plan())
        }
        None => None,
    };
    let tenant = TenantId::parse(lock.id()).map_err(|error| sqlx::Error::Decode(error.into()))?;
    Ok(Locker { tenant, task, plan })
}

pub(super) fn define(kind: Kind, tasks: &[&Arc<TaskState>]) -> Ask {
    DEFINITION_ADD.on(kind).rows(tasks, |rows| {
        rows.column("task", |task| TaskKey(task.id))
            .column("version", |task| i64::from(task.definition))
            .column("stages", |task| stages_document(&task.spec.stages));
    })
}

/// What happened to one plan.
pub(super) struct NewEvents {
    plan: PlanId,
    /// Each about a task or the whole plan, as its document.
    events: Vec<(Option<TaskId>, String)>,
}

impl NewEvents {
    pub(super) fn new(plan: PlanId, events: &[PlanEvent], author: &Author) -> Self {
        let events = events.iter().map(|event| (event.task, event_document(event, author))).collect();
        Self { plan, events }
    }
}

/// Adds what happened to plans, each of them once.
pub(super) fn tell(kind: Kind, plans: &[NewEvents]) -> Ask {
    let events: Vec<_> = (1_i64..)
        .zip(plans)
        .flat_map(|(of, new)| (1_i64..).zip(&new.events).map(move |event| (new.plan, of, event)))
        .collect();
    let plans = plans.iter().map(|new| PlanKey(new.plan)).collect();
    EVENT_ADD.on(kind).array(plans).rows(&events, |rows| {
        rows.column("plan", |(plan, ..)| PlanKey(*plan))
            .column("of", |(_, of, _)| *of)
            .column("task", |(.., (_, (task, _)))| task.map(TaskKey))
            .column("document", |(.., (_, (_, document)))| document.as_str())
            .column("place", |(.., (place, _))| *place);
    })
}
