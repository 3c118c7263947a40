//! The statements of a train of jobs on PostgreSQL.

use std::collections::HashSet;

use domain::limits::PAST_ATTEMPTS_MAX;
use domain::{JobId, Timestamp};
use sqlx::postgres::PgArguments;
use sqlx::query::QueryAs;
use sqlx::{PgConnection, PgTransaction, Postgres as Dialect};
use uuid::Uuid;

use crate::Error;
use crate::jobs::sorted::{Aboard, Acknowledged, Back, Dispatched, Done, Ending, KeptSubmit, New, Sorted};
use crate::jobs::write::{Tables, write};
use crate::jobs::{JobBatch, JobsVerdict};
use crate::keys::Keeping;
use crate::postgres::engine::{Writes, Written, columns, fence, judge, keep_keys};
use crate::postgres::{sql, write_failed};
use crate::train::{Derailed, Fence, tenures};

/// Where lanes write at once, each row's lane is compared with all of them, and each key with all: so often at most.
const AT_ONCE_COMPARED_MAX: usize = 20_000;

#[async_trait::async_trait]
impl Writes for JobBatch {
    /// What nodes say of ends is one statement, and so is what lanes write most. Both lock the rows in the order of
    /// their ids, as all do.
    async fn write_at_once(
        connection: &mut PgConnection,
        batches: &[Self],
    ) -> Result<Option<Vec<JobsVerdict>>, Derailed<JobsVerdict>> {
        if batches.iter().all(Self::goes_at_once) {
            return Ok(write_rounds(connection, batches).await?);
        }
        if !batches.iter().all(Self::ends_attempts) {
            return Ok(None);
        }
        let mut aboard = Aboard::of(batches, vec![Fence::Holds; batches.len()]);
        let done = aboard.at_once().done;
        let written = finish(&done).fetch_all(connection).await.map_err(write_failed)?;
        let Some((_, at)) = written.first() else { return Ok(None) };
        let at = Timestamp::from_micros(*at);
        aboard.written.extend(written.into_iter().map(|(id, _)| JobId::from_u128(id.as_u128())));
        Ok(Some(aboard.verdicts(at)))
    }

    async fn write(
        transaction: &mut PgTransaction<'_>,
        batches: &[Self],
    ) -> Result<Written<JobsVerdict>, Derailed<JobsVerdict>> {
        let (fences, _) = fence(transaction, &tenures(batches)).await.map_err(write_failed)?;
        let mut session = Session { transaction };
        let (verdicts, anything) = write(&mut session, batches, fences).await.map_err(write_failed)?;
        Ok(Written { verdicts, anything })
    }
}

/// New jobs, attempts that begin, and good ends; `None` where there are too many for one statement.
async fn write_rounds(
    connection: &mut PgConnection,
    batches: &[JobBatch],
) -> Result<Option<Vec<JobsVerdict>>, Error> {
    let tenures = tenures(batches);
    let mut aboard = Aboard::of(batches, vec![Fence::Holds; batches.len()]);
    let Sorted { new, dispatched, done, .. } = aboard.at_once();
    let keyed: Vec<_> = new.iter().filter(|new| new.key.is_some()).map(|new| new.job.id).collect();
    let compared = tenures.len() * (new.len() + dispatched.len() + done.len()) + keyed.len() * keyed.len();
    if compared > AT_ONCE_COMPARED_MAX {
        return Ok(None);
    }
    let (names, tokens, owners) = columns(tenures.iter().flatten());
    let statement = sqlx::query_as(include_str!("../../../sql/postgres-only/job_round.sql"));
    let statement =
        bind_new(statement.bind(names).bind(tokens).bind(owners), &new, Timestamp::from_micros(0));
    let rows: Vec<(Option<String>, Option<Uuid>, i64)> =
        bind_completed(bind_keys(bind_dispatched(statement, &dispatched), &new), &done)
            .fetch_all(&mut *connection)
            .await
            .map_err(write_failed)?;
    let at = Timestamp::from_micros(rows.first().map_or(0, |(_, _, at)| *at));
    let held = rows.iter().filter_map(|(lease, _, _)| lease.as_deref());
    // What was written is durable by now: whatever fails here undoes nothing, and the same must not be sent again.
    let fences = judge(connection, &tenures, held.collect()).await.map_err(Error::unknown)?;
    aboard.judged(fences);
    aboard.written.extend(rows.iter().filter_map(|(_, id, _)| Some(JobId::from_u128((*id)?.as_u128()))));
    aboard.key_taken.extend(keyed);
    Ok(Some(aboard.verdicts(at)))
}

struct Session<'t, 'c> {
    transaction: &'t mut PgTransaction<'c>,
}

/// A statement that answers rows.
type Statement<'a, Row> = QueryAs<'a, Dialect, Row, PgArguments>;

impl Session<'_, '_> {
    async fn ids(&mut self, statement: Statement<'_, (Uuid,)>) -> sqlx::Result<Vec<JobId>> {
        let ids = statement.fetch_all(&mut **self.transaction).await?;
        Ok(ids.into_iter().map(|(id,)| JobId::from_u128(id.as_u128())).collect())
    }
}

/// Moves jobs to where the finished ones are; answers each with the transaction's time.
fn finish<'q>(done: &'q [Done<'_>]) -> Statement<'q, (Uuid, i64)> {
    bind_endings(sqlx::query_as(sql!("job_finish")), done, |d| &d.ending)
        .bind(column(done, |d| d.outcome.as_str()))
        .bind(column(done, |d| d.dead))
        .bind(column(done, |d| d.result))
        .bind(column(done, |d| d.error.as_deref()))
        .bind(column(done, |d| d.is_free))
        .bind(PAST_ATTEMPTS_MAX as i64)
}

#[async_trait::async_trait]
impl Tables for Session<'_, '_> {
    async fn lock(&mut self, jobs: &[JobId]) -> sqlx::Result<(HashSet<JobId>, Timestamp)> {
        let rows: Vec<(Option<Uuid>, i64)> = sqlx::query_as(sql!("job_lock"))
            .bind(column(jobs, |id| uuid(*id)))
            .fetch_all(&mut **self.transaction)
            .await?;
        let at = rows.first().map_or(0, |(_, at)| *at);
        let there = rows.into_iter().filter_map(|(id, _)| Some(JobId::from_u128(id?.as_u128())));
        Ok((there.collect(), Timestamp::from_micros(at)))
    }

    async fn keep_keys(&mut self, keys: &[Keeping<'_>]) -> sqlx::Result<Vec<bool>> {
        keep_keys(self.transaction, keys).await
    }

    async fn submit(&mut self, new: &[New<'_>], at: Timestamp) -> sqlx::Result<Vec<JobId>> {
        let statement = bind_new(sqlx::query_as(sql!("job_submit")), new, at);
        self.ids(statement).await
    }

    async fn dispatch(&mut self, dispatched: &[Dispatched<'_>]) -> sqlx::Result<Vec<JobId>> {
        let statement = bind_dispatched(sqlx::query_as(sql!("job_dispatch")), dispatched);
        self.ids(statement).await
    }

    async fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> sqlx::Result<Vec<JobId>> {
        let statement = sqlx::query_as(sql!("job_run"))
            .bind(column(acknowledged, |a| uuid(a.id)))
            .bind(column(acknowledged, |a| a.attempt))
            .bind(column(acknowledged, |a| a.node));
        self.ids(statement).await
    }

    async fn put_back(&mut self, back: &[Back<'_>]) -> sqlx::Result<Vec<JobId>> {
        let statement = bind_endings(sqlx::query_as(sql!("job_back")), back, |b| &b.ending)
            .bind(column(back, |b| b.reason.as_str()))
            .bind(column(back, |b| b.due_at))
            .bind(PAST_ATTEMPTS_MAX as i64);
        self.ids(statement).await
    }

    async fn finish(&mut self, done: &[Done<'_>]) -> sqlx::Result<Vec<JobId>> {
        let finished = finish(done).fetch_all(&mut **self.transaction).await?;
        Ok(finished.into_iter().map(|(id, _)| JobId::from_u128(id.as_u128())).collect())
    }

    async fn release(&mut self, released: &[JobId]) -> sqlx::Result<Vec<JobId>> {
        self.ids(bind_range(sqlx::query_as(sql!("job_release")), released)).await
    }
}

/// New jobs, as `job_submit` takes them.
fn bind_new<'q, Row>(statement: Statement<'q, Row>, new: &'q [New<'_>], at: Timestamp) -> Statement<'q, Row> {
    statement
        .bind(column(new, |new| uuid(new.job.id)))
        .bind(column(new, |new| new.lane))
        .bind(column(new, |new| new.job.seq.unwrap_or(0) as i64))
        .bind(column(new, |new| new.job.spec.session.as_ref().map(|id| id.as_str())))
        .bind(column(new, |new| new.job.spec.tenant.as_ref().map_or("", |id| id.as_str())))
        .bind(column(new, |new| new.job.spec.needs.pool.as_ref().map_or("", |pool| pool.as_str())))
        .bind(column(new, |new| new.job.spec.needs.route.as_ref().map(|route| route.source.as_str())))
        .bind(column(new, |new| new.job.spec.needs.route.as_ref().map(|route| route.target.as_str())))
        .bind(column(new, New::requires))
        .bind(column(new, |new| i64::from(new.job.spec.priority.get())))
        .bind(column(new, |new| new.job.spec.timeout_ms as i64))
        .bind(column(new, |new| i64::from(new.job.spec.max_attempts)))
        .bind(column(new, |new| new.job.spec.backoff.initial_ms as i64))
        .bind(column(new, |new| i64::from(new.job.spec.backoff.factor_percent)))
        .bind(column(new, |new| new.job.spec.backoff.max_ms as i64))
        .bind(column(new, |new| new.job.spec.on_recovery.as_str()))
        .bind(column(new, |new| &*new.job.spec.payload))
        .bind(column(new, |new| new.job.retry_of.map(uuid)))
        .bind(column(new, |new| new.due_at(at)))
        .bind(column(new, |new| new.job.placed.as_ref().map(|placed| placed.node.as_str())))
        .bind(column(new, |new| new.job.placed.as_ref().map(|placed| placed.holder.as_str())))
        .bind(column(new, |new| new.job.client_ref.as_ref().map(|name| name.as_str())))
}

/// The keys of new jobs, NULL for those without one.
fn bind_keys<'q, Row>(statement: Statement<'q, Row>, new: &'q [New<'_>]) -> Statement<'q, Row> {
    let answer = |new: &New<'_>| new.key.map(|_| KeptSubmit::text(new.job, new.lane));
    statement
        .bind(column(new, |new| Some(new.key?.scope.scope.as_str())))
        .bind(column(new, |new| Some(new.key?.scope.key.as_str())))
        .bind(column(new, |new| Some(&new.key?.body_hash[..])))
        .bind(column(new, answer))
}

/// Attempts that begin, as `job_dispatch` takes them.
fn bind_dispatched<'q, Row>(
    statement: Statement<'q, Row>,
    dispatched: &'q [Dispatched<'_>],
) -> Statement<'q, Row> {
    statement
        .bind(column(dispatched, |d| uuid(d.id)))
        .bind(column(dispatched, |d| d.lane))
        .bind(column(dispatched, |d| d.attempt))
        .bind(column(dispatched, |d| d.placed.node.as_str()))
        .bind(column(dispatched, |d| d.placed.holder.as_str()))
}

/// Good ends, as `job_round` takes them.
fn bind_completed<'q, Row>(statement: Statement<'q, Row>, done: &'q [Done<'_>]) -> Statement<'q, Row> {
    statement
        .bind(column(done, |d| uuid(d.ending.id)))
        .bind(column(done, |d| d.ending.lane))
        .bind(column(done, |d| d.ending.attempt))
        .bind(column(done, |d| d.ending.node))
        .bind(column(done, |d| d.result))
}

/// Ids in their order, with the first and the last.
fn bind_range<'q>(statement: Statement<'q, (Uuid,)>, ids: &[JobId]) -> Statement<'q, (Uuid,)> {
    let ids = column(ids, |id| uuid(*id));
    let (lowest, highest) = (ids.first().copied(), ids.last().copied());
    statement.bind(ids).bind(lowest).bind(highest)
}

fn bind_endings<'q, 'e: 'q, T, Row>(
    statement: Statement<'q, Row>,
    rows: &'e [T],
    ending: impl Fn(&'e T) -> &'e Ending<'e>,
) -> Statement<'q, Row> {
    statement
        .bind(column(rows, |row| uuid(ending(row).id)))
        .bind(column(rows, |row| ending(row).lane))
        .bind(column(rows, |row| ending(row).attempt))
        .bind(column(rows, |row| ending(row).node))
        .bind(column(rows, |row| ending(row).also_running))
        .bind(column(rows, |row| ending(row).counts))
        .bind(column(rows, |row| ending(row).ended))
}

/// One column of the rows.
fn column<'a, T, U>(rows: &'a [T], of: impl Fn(&'a T) -> U) -> Vec<U> {
    rows.iter().map(of).collect()
}

fn uuid(id: JobId) -> Uuid {
    Uuid::from_u128(id.as_u128())
}
