//! What a train of jobs writes.

use std::collections::HashSet;
use std::sync::LazyLock;

use domain::limits::PAST_ATTEMPTS_MAX;
use domain::{JobId, Timestamp};

use super::ids;
use crate::jobs::columns::{self, expanded};
use crate::jobs::plan::{
    Admitted, AttemptGuard, Dispatched, Finish, KeptSubmit, New, Released, Requeue, Retried, WritePlan,
};
use crate::jobs::{HELD_DUE_MICROS, JobBatch, JobVerdict, JobsVerdict};
use crate::sql::{Ask, Id, Rows, Sectioned, Session, Statement, Transaction, statement};
use crate::store::committer::{Kept, Write, Written};
use crate::store::failure::write_failed;
use crate::store::fence::{fence, is_current, judge, keep_keys};
use crate::train::{Fence, TrainError, fence_claims};
use crate::{Error, Kind};

const LOCK: Statement = statement!("job_lock");
const LOCK_FINISHED: Statement = statement!("job_lock_finished");
const RETRIED: Statement = statement!("job_retried");
pub(in crate::store) static SUBMIT: LazyLock<Statement> =
    LazyLock::new(|| expanded(statement!("job_submit")));
const DISPATCH: Statement = statement!("job_dispatch");
const RUN: Statement = statement!("job_run");
const BACK: Statement = statement!("job_back");
static FINISH: LazyLock<Statement> = LazyLock::new(|| expanded(statement!("job_finish")));
const FORGET: Statement = statement!(sqlite "job_forget");
const RELEASE: Statement = statement!("job_release");
static ROUND: LazyLock<Sectioned<4>> = LazyLock::new(|| {
    Sectioned::new(expanded(statement!(postgres "job_round")), ["new", "keys", "begins", "ends"])
});

#[async_trait::async_trait]
impl Write for JobBatch {
    /// On PostgreSQL what nodes say of ends is one statement, and so is what lanes write most. Both lock the rows of each kind
    /// in the order of their ids. Should two trains wait for each other all the same, the database undoes one, which is sent
    /// again.
    async fn write_at_once(
        session: &mut Session<'_>,
        batches: &[Self],
    ) -> Result<Option<Kept<JobsVerdict>>, TrainError<JobsVerdict>> {
        if session.kind() == Kind::Sqlite {
            return Ok(None);
        }
        if batches.iter().all(Self::goes_at_once) {
            return Ok(Some(write_rounds(session, batches).await?));
        }
        if !batches.iter().all(Self::ends_attempts) {
            return Ok(None);
        }
        let mut admitted = Admitted::of(batches, vec![Fence::Holds; batches.len()]);
        let finish = finish(Kind::Postgres, &admitted.at_once().finished, None);
        let answer = session.answer(finish).await.map_err(write_failed)?;
        let written: Vec<(Id, i64)> = answer.records().map_err(write_failed)?;
        let Some((_, at)) = written.first() else { return Ok(None) };
        let at = Timestamp::from_micros(*at);
        admitted.written.extend(written.into_iter().map(|(id, _)| id.0));
        Ok(Some(Kept { verdicts: admitted.verdicts(at), mark: answer.mark() }))
    }

    async fn write(
        transaction: &mut Transaction<'_>,
        batches: &[Self],
    ) -> Result<Written<JobsVerdict>, TrainError<JobsVerdict>> {
        let (fences, _) = fence(transaction, &fence_claims(batches)).await.map_err(write_failed)?;
        let written = write(transaction, batches, fences).await.map_err(write_failed)?;
        // A lane's batch is fenced then. What a node has reported would count as stale.
        if has_unwritten_report(batches, &written.verdicts)
            && !is_current(&mut transaction.session()).await.map_err(write_failed)?
        {
            return Err(TrainError::Failed(Error::WentBack));
        }
        Ok(written)
    }
}

/// Whether something was not written that is under no lane's lease.
fn has_unwritten_report(batches: &[JobBatch], verdicts: &[JobsVerdict]) -> bool {
    let is_unwritten = |verdict: &JobsVerdict| match verdict {
        JobsVerdict::Written { jobs, .. } => jobs.iter().any(|job| *job != JobVerdict::Written),
        JobsVerdict::Fenced | JobsVerdict::Again => true,
    };
    batches.iter().zip(verdicts).any(|(batch, verdict)| batch.lane.is_none() && is_unwritten(verdict))
}

/// New jobs, attempts that begin, and good ends.
async fn write_rounds(session: &mut Session<'_>, batches: &[JobBatch]) -> Result<Kept<JobsVerdict>, Error> {
    let claims = fence_claims(batches);
    let mut admitted = Admitted::of(batches, vec![Fence::Holds; batches.len()]);
    let WritePlan { new, dispatched, finished, .. } = admitted.at_once();
    let keyed: Vec<_> = new.iter().filter(|new| new.key.is_some()).map(|new| new.job.id).collect();
    let lanes: Vec<_> = batches.iter().filter_map(|batch| batch.lane.as_ref()).collect();
    let waits_for_ends = dispatched.iter().any(|dispatched| dispatched.behind.is_some());
    let ask = ROUND
        .with([
            !new.is_empty(),
            !keyed.is_empty(),
            !dispatched.is_empty(),
            !finished.is_empty() || waits_for_ends,
        ])
        .on(Kind::Postgres)
        .rows(&lanes, |rows| {
            rows.column("resource", |lane| lane.id.lease().as_str())
                .column("token", |lane| lane.token.get())
                .column("owner", |lane| lane.owner.as_str())
                .column("lane", |lane| lane.id.as_str());
        })
        .rows(&dispatched, |rows| {
            begun(rows);
            rows.column("behind", |dispatched| dispatched.behind.map(Id));
        })
        .rows(&new, kept_keys)
        .rows(&finished, |rows| {
            rows.column("id", |finish| Id(finish.guard.id))
                .column("lane", |finish| finish.guard.lane)
                .column("attempt", |finish| finish.guard.attempt)
                .column("node", |finish| finish.guard.node)
                .column("result", |finish| finish.result);
        })
        .rows(&new, columns::give);
    let answer = session.answer(ask).await.map_err(write_failed)?;
    let rows: Vec<(Option<String>, Option<Vec<u8>>, i64)> = answer.records().map_err(write_failed)?;
    let at = Timestamp::from_micros(rows.first().map_or(0, |(_, _, at)| *at));
    let held = rows.iter().filter_map(|(lease, _, _)| lease.as_deref()).collect();
    // What was written is durable by now: whatever fails here undoes nothing, and the same must not be sent again.
    let fences = judge(session, &claims, &held).await.map_err(Error::unknown)?;
    admitted.judged(fences);
    let written = rows.iter().filter_map(|(_, written, _)| written.as_deref());
    admitted.written.extend(
        written.flat_map(|ids| ids.as_chunks().0).map(|id| JobId::from_u128(u128::from_be_bytes(*id))),
    );
    admitted.key_taken.extend(keyed);
    Ok(Kept { verdicts: admitted.verdicts(at), mark: answer.mark() })
}

/// Writes the batches that the fence lets pass; answers the verdict on every batch, and whether there is anything to
/// commit. The order is the order of locks: all rows of unfinished jobs, finished rows, unique keys, new rows, each
/// sorted. Each statement answers the jobs that were as said; those are written.
async fn write(
    transaction: &mut Transaction<'_>,
    batches: &[JobBatch],
    fences: Vec<Fence>,
) -> sqlx::Result<Written<JobsVerdict>> {
    let (kind, now) = (transaction.kind(), transaction.at());
    let mut admitted = Admitted::of(batches, fences);
    let (there, at) = lock(transaction, &admitted.ids()).await?;
    let mut plan = admitted.plan(at, |job| there.contains(&job));
    if plan.retries_any() {
        // With the rows whose slots are released: else two trains could lock the same rows in different orders.
        let not_retried = lock_finished(transaction, &plan.finished_rows()).await?;
        admitted.already_retried = plan.drop_retried(&not_retried);
    }
    let keys = plan.keys();
    if !keys.is_empty() {
        let is_new = keep_keys(transaction, &keys).await?;
        admitted.key_taken = plan.drop_taken(&is_new);
    }
    let mut asks = Vec::new();
    if !plan.new.is_empty() {
        asks.push(SUBMIT.on(kind).rows(&plan.new, columns::give).at(now));
    }
    let retries = plan.retries();
    if !plan.acknowledged.is_empty() {
        let ask = RUN.on(kind).rows(&plan.acknowledged, |rows| {
            rows.column("id", |acknowledged| Id(acknowledged.id))
                .column("attempt", |acknowledged| acknowledged.attempt)
                .column("node", |acknowledged| acknowledged.node);
        });
        asks.push(ask.at(now));
    }
    if !plan.requeued.is_empty() {
        asks.push(put_back(kind, &plan.requeued, now));
    }
    if !retries.is_empty() {
        transaction.touch(note_retries(kind, &retries)).await?;
    }
    for ask in asks {
        let written: Vec<(Id,)> = transaction.all(ask).await?;
        admitted.written.extend(written.into_iter().map(|(id,)| id.0));
    }
    if !plan.finished.is_empty() {
        let moved: Vec<(Id, i64)> = transaction.all(finish(kind, &plan.finished, now)).await?;
        let moved: Vec<_> = moved.into_iter().map(|(id, _)| id).collect();
        admitted.written.extend(moved.iter().map(|id| id.0));
        // SQLite has no statement that moves rows: they were copied.
        if kind == Kind::Sqlite {
            transaction.touch(FORGET.on(kind).array(moved)).await?;
        }
    }
    let written = &admitted.written;
    plan.dispatched.retain(|dispatched| dispatched.behind.is_none_or(|behind| written.contains(&behind)));
    if !plan.dispatched.is_empty() {
        let begun: Vec<(Id,)> =
            transaction.all(DISPATCH.on(kind).rows(&plan.dispatched, begun).at(now)).await?;
        admitted.written.extend(begun.into_iter().map(|(id,)| id.0));
    }
    if !plan.released.is_empty() {
        let released: Vec<(Id,)> = transaction.all(release(kind, &plan.released, now)).await?;
        admitted.written.extend(released.into_iter().map(|(id,)| id.0));
    }
    Ok(Written { verdicts: admitted.verdicts(at), anything: !admitted.written.is_empty() })
}

/// Locks the rows of those that are there; answers them, and the transaction's time.
async fn lock(
    transaction: &mut Transaction<'_>,
    jobs: &[JobId],
) -> sqlx::Result<(HashSet<JobId>, Timestamp)> {
    let ask = LOCK.on(transaction.kind()).array(ids(jobs));
    let rows: Vec<(Option<Id>, i64)> = transaction.all(ask.at(transaction.at())).await?;
    let at = transaction.at().or_else(|| rows.first().map(|(_, at)| *at)).unwrap_or(0);
    let there = rows.into_iter().filter_map(|(id, _)| Some(id?.0));
    Ok((there.collect(), Timestamp::from_micros(at)))
}

/// Locks the rows of those finished jobs that are there; answers those that no job has retried.
async fn lock_finished(transaction: &mut Transaction<'_>, jobs: &[JobId]) -> sqlx::Result<HashSet<JobId>> {
    let kind = transaction.kind();
    let ask = LOCK_FINISHED.on(kind).array(ids(jobs));
    let rows: Vec<(Id,)> = transaction.all(between(ask, kind, jobs.first(), jobs.last())).await?;
    Ok(rows.into_iter().map(|(id,)| id.0).collect())
}

/// Writes on finished jobs which new job retries each.
fn note_retries(kind: Kind, retries: &[Retried]) -> Ask {
    let ask = RETRIED.on(kind).rows(retries, |rows| {
        rows.column("id", |retry| Id(retry.id)).column("retried_as", |retry| Id(retry.retried_as));
    });
    between(ask, kind, retries.first().map(|retry| &retry.id), retries.last().map(|retry| &retry.id))
}

/// Adds the lowest and the highest id of finished jobs, by which PostgreSQL leaves partitions out.
pub(in crate::store) fn between(
    ask: Ask,
    kind: Kind,
    lowest: Option<&JobId>,
    highest: Option<&JobId>,
) -> Ask {
    match kind {
        Kind::Postgres => ask.bind(lowest.copied().map(Id)).bind(highest.copied().map(Id)),
        Kind::Sqlite => ask,
    }
}

/// Attempts that begin.
fn begun(rows: &mut Rows<'_, '_, Dispatched<'_>>) {
    rows.column("id", |dispatched| Id(dispatched.id))
        .column("lane", |dispatched| dispatched.lane)
        .column("attempt", |dispatched| dispatched.attempt)
        .column("node", |dispatched| dispatched.placed.node.as_str())
        .column("holder", |dispatched| dispatched.placed.holder.as_str());
}

/// The keys of new jobs, NULL for those without one.
fn kept_keys(rows: &mut Rows<'_, '_, New<'_>>) {
    rows.column("scope", |new| Some(new.key?.scope.scope.as_str()))
        .column("key", |new| Some(new.key?.scope.key.as_str()))
        .column("body_hash", |new| Some(&new.key?.body_hash[..]))
        .column("answer", |new| new.key.map(|_| KeptSubmit::text(new.job, new.lane)));
}

/// Puts jobs back to CREATED.
fn put_back(kind: Kind, requeued: &[Requeue<'_>], now: Option<i64>) -> Ask {
    let ask = BACK.on(kind).rows(requeued, |rows| {
        guards(rows, |requeue| &requeue.guard);
        rows.column("reason", |requeue| requeue.reason.as_str()).column("due_at", |requeue| requeue.due_at);
    });
    ask.at(now).bind(PAST_ATTEMPTS_MAX as i64).bind(HELD_DUE_MICROS)
}

/// Moves jobs to where the finished ones are; answers each with the transaction's time.
fn finish(kind: Kind, finished: &[Finish<'_>], now: Option<i64>) -> Ask {
    let ask = FINISH.on(kind).rows(finished, |rows| {
        guards(rows, |finish| &finish.guard);
        rows.column("outcome", |finish| finish.outcome.as_str())
            .column("dead", |finish| finish.dead)
            .column("result", |finish| finish.result)
            .column("error", |finish| finish.error.as_deref())
            .column("is_free", |finish| finish.is_free);
    });
    ask.at(now).bind(PAST_ATTEMPTS_MAX as i64)
}

/// Notes that slots are free.
fn release(kind: Kind, released: &[Released], now: Option<i64>) -> Ask {
    let ask = RELEASE.on(kind).rows(released, |rows| {
        rows.column("id", |released| Id(released.id)).column("attempt", |released| released.attempt);
    });
    let (lowest, highest) = (released.first(), released.last());
    between(ask.at(now), kind, lowest.map(|lowest| &lowest.id), highest.map(|highest| &highest.id))
}

fn guards<'i, T>(rows: &mut Rows<'i, '_, T>, guard: impl Fn(&'i T) -> &'i AttemptGuard<'i>) {
    rows.column("id", |row| Id(guard(row).id))
        .column("lane", |row| guard(row).lane)
        .column("attempt", |row| guard(row).attempt)
        .column("node", |row| guard(row).node)
        .column("also_running", |row| guard(row).also_running)
        .column("counts", |row| guard(row).counts)
        .column("ended", |row| guard(row).ended);
}
