//! Jobs on PostgreSQL. Writes leave by train; the rest are reads.

mod partitions;
mod write;

use domain::job::{Attempt, Outcome, State};
use domain::{JobId, NodeId, PoolName, Resource, ResourceKind, SessionId, TenantId, Timestamp};
use sqlx::postgres::PgArguments;
use sqlx::query::QueryAs;
use sqlx::{AssertSqlSafe, Postgres as Dialect};
use uuid::Uuid;

use super::{Postgres, sql};
use crate::Result;
use crate::jobs::rows::{self, AttemptRow, ComingRow, FinishedRow, GroupRow, LaneRow, LiveRow, UnderWayRow};
use crate::jobs::{
    JobBatch, JobFilter, JobRecord, Jobs, JobsVerdict, KeptJobKey, LeftLane, LiveJob, PAGE_BYTES_MAX,
    UnderWay, WaitingGroup,
};
use crate::nonces::KeyScope;
use crate::records;

#[async_trait::async_trait]
impl Jobs for Postgres {
    async fn commit_jobs(&self, batch: JobBatch) -> Result<JobsVerdict> {
        self.job_trains.commit(batch, self.call_timeout).await
    }

    async fn job(&self, id: JobId) -> Result<Option<JobRecord>> {
        let id = uuid(id);
        let (live, finished): (Option<LiveRow>, Option<FinishedRow>) = self
            .reads(move |session| {
                Box::pin(async move {
                    // A job moves one way only: whoever is not found here any more is found there.
                    let live =
                        sqlx::query_as(sql!("job_show")).bind(id).fetch_optional(&mut *session).await?;
                    if live.is_some() {
                        return Ok((live, None));
                    }
                    let finished = sqlx::query_as(sql!("job_show_finished")).bind(id);
                    Ok((None, finished.fetch_optional(&mut *session).await?))
                })
            })
            .await?;
        live.map(JobRecord::try_from).or_else(|| finished.map(JobRecord::try_from)).transpose()
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<JobRecord>> {
        let (live, finished) =
            (filter.narrowed(sql!("job_list")), filter.narrowed(sql!("job_list_finished")));
        let asked = filter.clone();
        let (live, finished): (Vec<LiveRow>, Vec<FinishedRow>) = self
            .reads(move |session| {
                Box::pin(async move {
                    let (mut unfinished_rows, mut finished_rows) = (Vec::new(), Vec::new());
                    // In this order, since a job moves one way only.
                    if asked.allows_unfinished() {
                        let list = sqlx::query_as(AssertSqlSafe(live));
                        let list = bind_filter(list, &asked).bind(asked.state.map(State::as_str));
                        unfinished_rows = list.fetch_all(&mut *session).await?;
                    }
                    if asked.allows_finished() {
                        let list = sqlx::query_as(AssertSqlSafe(finished));
                        let list = bind_filter(list, &asked).bind(asked.outcome.map(Outcome::as_str));
                        finished_rows = list.fetch_all(&mut *session).await?;
                    }
                    Ok((unfinished_rows, finished_rows))
                })
            })
            .await?;
        rows::newest_first(live, finished, filter.limit)
    }

    async fn kept_job_keys(&self, scopes: &[KeyScope]) -> Result<Vec<(KeyScope, KeptJobKey)>> {
        records::all(self.key_rows(scopes).await?)
    }

    async fn in_flight(&self, lane: &Resource, after: Option<JobId>, limit: u32) -> Result<Vec<LiveJob>> {
        let (lane, after) = (lane.to_string(), after.map_or(Uuid::nil(), uuid));
        let rows: Vec<LiveRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("job_in_flight"))
                        .bind(lane)
                        .bind(after)
                        .bind(i64::from(limit))
                        .bind(PAGE_BYTES_MAX as i64)
                        .fetch_all(&mut *session)
                        .await
                })
            })
            .await?;
        records::all(rows)
    }

    async fn under_way(&self, lane: &Resource, after: Option<JobId>, limit: u32) -> Result<Vec<UnderWay>> {
        let (lane, after) = (lane.to_string(), after.map_or(Uuid::nil(), uuid));
        let rows: Vec<UnderWayRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("job_under_way"))
                        .bind(lane)
                        .bind(after)
                        .bind(i64::from(limit))
                        .fetch_all(&mut *session)
                        .await
                })
            })
            .await?;
        records::all(rows)
    }

    async fn waiting_groups(
        &self,
        lane: &Resource,
        after: Option<&WaitingGroup>,
        limit: u32,
    ) -> Result<Vec<WaitingGroup>> {
        let lane = lane.to_string();
        let (pool, tenant) = rows::group_bound(after);
        let rows: Vec<GroupRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("job_groups"))
                        .bind(lane)
                        .bind(pool)
                        .bind(tenant)
                        .bind(i64::from(limit))
                        .fetch_all(&mut *session)
                        .await
                })
            })
            .await?;
        records::all(rows)
    }

    async fn waiting(&self, lane: &Resource, group: &WaitingGroup, limit: u32) -> Result<Vec<LiveJob>> {
        let (lane, group) = (lane.to_string(), group.clone());
        let rows: Vec<LiveRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("job_waiting"))
                        .bind(lane)
                        .bind(group.pool_text())
                        .bind(group.tenant_text())
                        .bind(i64::from(limit))
                        .bind(PAGE_BYTES_MAX as i64)
                        .fetch_all(&mut *session)
                        .await
                })
            })
            .await?;
        records::all(rows)
    }

    async fn coming_due(
        &self,
        lane: &Resource,
        after: Option<(Timestamp, JobId)>,
        within_ms: u64,
        limit: u32,
    ) -> Result<Vec<(LiveJob, u64)>> {
        let (lane, within_ms) = (lane.to_string(), rows::soon(within_ms));
        // Nothing is due before 1970.
        let after_due = after.map_or(-1, |(due, _)| due.as_micros());
        let after = after.map_or(Uuid::nil(), |(_, id)| uuid(id));
        let rows: Vec<ComingRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("job_coming"))
                        .bind(lane)
                        .bind(within_ms)
                        .bind(i64::from(limit))
                        .bind(PAGE_BYTES_MAX as i64)
                        .bind(after_due)
                        .bind(after)
                        .fetch_all(&mut *session)
                        .await
                })
            })
            .await?;
        records::all(rows)
    }

    async fn left_lanes(
        &self,
        after: Option<&Resource>,
        due_within_ms: u64,
        look_at: u32,
    ) -> Result<(Vec<LeftLane>, Option<Resource>)> {
        let after = after.map_or_else(String::new, Resource::to_string);
        let rows: Vec<LaneRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("job_lanes"))
                        .bind(after)
                        .bind(rows::soon(due_within_ms))
                        .bind(i64::from(look_at))
                        .fetch_all(&mut *session)
                        .await
                })
            })
            .await?;
        rows::left_lanes(rows)
    }

    async fn lane_seq(&self, lane: &Resource) -> Result<u64> {
        if lane.kind() != ResourceKind::Session {
            return Ok(0);
        }
        let lane = lane.clone();
        let seq: i64 = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_scalar(sql!("job_seq")).bind(lane.id()).fetch_one(&mut *session).await
                })
            })
            .await?;
        records::count(seq)
    }

    async fn attempts_on(&self, node: &NodeId) -> Result<Vec<(JobId, Attempt)>> {
        let node = node.to_string();
        let rows: Vec<AttemptRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("job_on_node")).bind(node).fetch_all(&mut *session).await
                })
            })
            .await?;
        records::all(rows)
    }

    async fn attempts_of(&self, jobs: &[JobId]) -> Result<Vec<(JobId, Attempt)>> {
        let ids: Vec<_> = jobs.iter().map(|job| uuid(*job)).collect();
        let rows: Vec<AttemptRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("job_current")).bind(ids).fetch_all(&mut *session).await
                })
            })
            .await?;
        records::all(rows)
    }

    async fn purge_jobs(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.forget_finished_jobs(age_ms, limit).await
    }

    async fn make_job_partitions(&self) -> Result<()> {
        self.make_missing_partitions().await
    }
}

/// What both lists are given.
fn bind_filter<'q, T>(
    list: QueryAs<'q, Dialect, T, PgArguments>,
    filter: &JobFilter,
) -> QueryAs<'q, Dialect, T, PgArguments> {
    list.bind(filter.before.map_or(Uuid::max(), uuid))
        .bind(i64::from(filter.limit))
        .bind(PAGE_BYTES_MAX as i64)
        .bind(filter.session.as_ref().map(SessionId::to_string))
        .bind(filter.tenant.as_ref().map(TenantId::to_string))
        .bind(filter.pool.as_ref().map(PoolName::to_string))
}

fn uuid(id: JobId) -> Uuid {
    Uuid::from_u128(id.as_u128())
}
