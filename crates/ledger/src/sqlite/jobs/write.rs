//! The statements of a train of jobs in SQLite.

use std::collections::HashSet;

use domain::limits::PAST_ATTEMPTS_MAX;
use domain::{JobId, Timestamp};
use serde_json::{Value, json};
use sqlx::SqliteTransaction;

use crate::jobs::rows::Id;
use crate::jobs::sorted::{Acknowledged, Back, Dispatched, Done, Ending, New};
use crate::jobs::write::{Tables, write};
use crate::jobs::{JobBatch, JobsVerdict};
use crate::keys::Keeping;
use crate::sqlite::engine::{Writes, Written, fence, keep_keys};
use crate::sqlite::{sql, write_failed};
use crate::train::{Derailed, tenures};

#[async_trait::async_trait]
impl Writes for JobBatch {
    async fn write(
        transaction: &mut SqliteTransaction<'_>,
        batches: &[Self],
        at: i64,
    ) -> Result<Written<JobsVerdict>, Derailed<JobsVerdict>> {
        let fences = fence(transaction, &tenures(batches)).await.map_err(write_failed)?;
        let mut session = Session { transaction, at };
        let (verdicts, anything) = write(&mut session, batches, fences).await.map_err(write_failed)?;
        Ok(Written { verdicts, anything })
    }
}

struct Session<'t, 'c> {
    transaction: &'t mut SqliteTransaction<'c>,
    at: i64,
}

impl Session<'_, '_> {
    /// Runs a statement that is given a list of rows and the time, and perhaps how many past attempts to keep.
    async fn ids(
        &mut self,
        statement: &'static str,
        rows: impl Iterator<Item = Value>,
    ) -> sqlx::Result<Vec<JobId>> {
        let ids: Vec<Id> = sqlx::query_scalar(statement)
            .bind(Value::from_iter(rows).to_string())
            .bind(self.at)
            .bind(PAST_ATTEMPTS_MAX as i64)
            .fetch_all(&mut **self.transaction)
            .await?;
        Ok(ids.into_iter().map(|id| id.0).collect())
    }
}

#[async_trait::async_trait]
impl Tables for Session<'_, '_> {
    async fn lock(&mut self, jobs: &[JobId]) -> sqlx::Result<(HashSet<JobId>, Timestamp)> {
        let there = self.ids(sql!("job_lock"), texts(jobs)).await?;
        Ok((there.into_iter().collect(), Timestamp::from_micros(self.at)))
    }

    async fn keep_keys(&mut self, keys: &[Keeping<'_>]) -> sqlx::Result<Vec<bool>> {
        keep_keys(self.transaction, keys, self.at).await
    }

    async fn submit(&mut self, new: &[New<'_>], at: Timestamp) -> sqlx::Result<Vec<JobId>> {
        let rows = new.iter().map(|new| {
            let (job, spec) = (new.job, &new.job.spec);
            let route = spec.needs.route.as_ref();
            json!({
                "id": job.id.to_string(),
                "lane": new.lane,
                "seq": job.seq.unwrap_or(0),
                "client_ref": job.client_ref.as_ref().map(|name| name.as_str()),
                "session": spec.session.as_ref().map(|id| id.as_str()),
                "tenant": spec.tenant.as_ref().map_or("", |id| id.as_str()),
                "pool": spec.needs.pool.as_ref().map_or("", |pool| pool.as_str()),
                "source": route.map(|route| route.source.as_str()),
                "target": route.map(|route| route.target.as_str()),
                "requires": new.requires(),
                "priority": spec.priority.get(),
                "timeout_ms": spec.timeout_ms,
                "max_attempts": spec.max_attempts,
                "initial_ms": spec.backoff.initial_ms,
                "factor_percent": spec.backoff.factor_percent,
                "max_ms": spec.backoff.max_ms,
                "on_recovery": spec.on_recovery.as_str(),
                "payload": &*spec.payload,
                "retry_of": job.retry_of.map(|id| id.to_string()),
                "due_at": new.due_at(at),
                "node": job.placed.as_ref().map(|placed| placed.node.as_str()),
                "holder": job.placed.as_ref().map(|placed| placed.holder.as_str()),
            })
        });
        self.ids(sql!("job_submit"), rows).await
    }

    async fn dispatch(&mut self, dispatched: &[Dispatched<'_>]) -> sqlx::Result<Vec<JobId>> {
        let rows = dispatched.iter().map(|d| {
            json!({
                "id": d.id.to_string(),
                "lane": d.lane,
                "attempt": d.attempt,
                "node": d.placed.node.as_str(),
                "holder": d.placed.holder.as_str(),
            })
        });
        self.ids(sql!("job_dispatch"), rows).await
    }

    async fn acknowledge(&mut self, acknowledged: &[Acknowledged<'_>]) -> sqlx::Result<Vec<JobId>> {
        let row =
            |a: &Acknowledged<'_>| json!({ "id": a.id.to_string(), "attempt": a.attempt, "node": a.node });
        self.ids(sql!("job_run"), acknowledged.iter().map(row)).await
    }

    async fn put_back(&mut self, back: &[Back<'_>]) -> sqlx::Result<Vec<JobId>> {
        let rows = back.iter().map(|b| {
            let mut row = ending(&b.ending);
            row["reason"] = json!(b.reason);
            row["due_at"] = json!(b.due_at);
            row
        });
        self.ids(sql!("job_back"), rows).await
    }

    async fn finish(&mut self, done: &[Done<'_>]) -> sqlx::Result<Vec<JobId>> {
        let rows = done.iter().map(|d| {
            let mut row = ending(&d.ending);
            row["outcome"] = json!(d.outcome.as_str());
            row["dead"] = json!(d.dead);
            row["result"] = json!(d.result);
            row["error"] = json!(d.error);
            row["is_free"] = json!(d.is_free);
            row
        });
        let moved = self.ids(sql!("job_finish"), rows).await?;
        let forget = include_str!("../../../sql/sqlite-only/job_forget.sql");
        self.ids(forget, texts(&moved)).await?;
        Ok(moved)
    }

    async fn release(&mut self, released: &[JobId]) -> sqlx::Result<Vec<JobId>> {
        self.ids(sql!("job_release"), texts(released)).await
    }
}

fn texts(ids: &[JobId]) -> impl Iterator<Item = Value> {
    ids.iter().map(|id| json!(id.to_string()))
}

fn ending(ending: &Ending<'_>) -> Value {
    json!({
        "id": ending.id.to_string(),
        "lane": ending.lane,
        "attempt": ending.attempt,
        "node": ending.node,
        "also_running": ending.also_running,
        "counts": ending.counts,
        "ended": ending.ended,
    })
}
