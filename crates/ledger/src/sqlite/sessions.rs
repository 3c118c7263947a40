//! Sessions in SQLite.

use domain::session::Spec;
use domain::{JobId, Resource, ResourceKind, SessionId};
use serde_json::json;

use super::engine::{fence, keep_keys};
use super::{Sqlite, sql};
use crate::jobs::rows::{ComingRow, Moment};
use crate::jobs::sorted::requires;
use crate::jobs::{JobKey, Lane, LiveJob, PAGE_BYTES_MAX};
use crate::records::{self, KeyRow};
use crate::sessions::rows::{self, CountsRow, IdleRow, PlaceRow, ResultRow, SessionRow};
use crate::sessions::{
    Closed, Make, Making, Opened, SessionCounts, SessionRecord, SessionResults, Sessions, check_is_session,
    keeping, open,
};
use crate::train::Fence;
use crate::{KeyScope, Result};

#[async_trait::async_trait]
impl Sessions for Sqlite {
    async fn open_session(&self, id: &SessionId, spec: &Spec, key: Option<&JobKey>) -> Result<Opened> {
        open(self, id, spec, key).await
    }

    async fn session(&self, id: &SessionId) -> Result<Option<SessionRecord>> {
        let id = id.to_string();
        let pool = self.readers.clone();
        let row: Option<SessionRow> = self
            .reads(async move { sqlx::query_as(sql!("session_show")).bind(id).fetch_optional(&pool).await })
            .await?;
        row.map(SessionRecord::try_from).transpose()
    }

    async fn session_counts(&self, id: &SessionId) -> Result<SessionCounts> {
        let id = id.to_string();
        let pool = self.readers.clone();
        let row: CountsRow = self
            .reads(async move { sqlx::query_as(sql!("session_counts")).bind(id).fetch_one(&pool).await })
            .await?;
        row.try_into()
    }

    async fn close_session(&self, lane: &Lane) -> Result<Closed> {
        check_is_session(lane)?;
        let lane = lane.clone();
        let pool = self.writer.clone();
        self.writes(async move {
            let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
            if fence(&mut transaction, &[Some(lane.tenure())]).await? != [Fence::Holds] {
                transaction.rollback().await?;
                return Ok(Closed::Fenced);
            }
            let at: i64 = sqlx::query_scalar(sql!("clock")).fetch_one(&mut *transaction).await?;
            let close = sqlx::query(sql!("session_close")).bind(lane.resource.id()).bind(at);
            close.execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(Closed::Yes)
        })
        .await
    }

    async fn line(&self, lane: &Resource, after_seq: u64, limit: u32) -> Result<Vec<(LiveJob, u64)>> {
        if lane.kind() != ResourceKind::Session {
            return Ok(Vec::new());
        }
        let lane = lane.clone();
        let pool = self.readers.clone();
        let rows: Vec<ComingRow> = self
            .reads(async move {
                sqlx::query_as(sql!("job_line"))
                    .bind(lane.as_str())
                    .bind(lane.id())
                    .bind(rows::place(after_seq))
                    .bind(i64::from(limit))
                    .bind(PAGE_BYTES_MAX as i64)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::all(rows)
    }

    async fn session_results(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<SessionResults> {
        let id = id.to_string();
        let pool = self.readers.clone();
        let rows: Vec<ResultRow> = self
            .reads(async move {
                sqlx::query_as(sql!("session_results"))
                    .bind(id)
                    .bind(rows::place(after_seq))
                    .bind(i64::from(limit))
                    .bind(PAGE_BYTES_MAX as i64)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        rows::results(rows)
    }

    async fn finished_places(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<(u64, JobId)>> {
        let id = id.to_string();
        let pool = self.readers.clone();
        let rows: Vec<PlaceRow> = self
            .reads(async move {
                sqlx::query_as(sql!("session_places"))
                    .bind(id)
                    .bind(rows::place(after_seq))
                    .bind(i64::from(limit))
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::all(rows)
    }

    async fn idle_sessions(
        &self,
        after: Option<&SessionId>,
        limit: u32,
    ) -> Result<(Vec<SessionId>, Option<SessionId>)> {
        let after = after.map_or_else(String::new, SessionId::to_string);
        let pool = self.readers.clone();
        let rows: Vec<IdleRow> = self
            .reads(async move {
                let idle = sqlx::query_as(sql!("session_idle")).bind(after).bind(i64::from(limit));
                idle.fetch_all(&pool).await
            })
            .await?;
        rows::idle(rows)
    }

    async fn purge_sessions(&self, age_ms: u64, limit: u32) -> Result<u64> {
        let pool = self.writer.clone();
        self.writes(async move {
            let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
            let at: i64 = sqlx::query_scalar(sql!("clock")).fetch_one(&mut *transaction).await?;
            let before = at.saturating_sub_unsigned(age_ms.saturating_mul(1_000));
            let purged: Vec<String> = sqlx::query_scalar(sql!("session_purge"))
                .bind(before)
                .bind(i64::from(limit))
                .fetch_all(&mut *transaction)
                .await?;
            sqlx::query(include_str!("../../sql/sqlite-only/session_free.sql"))
                .bind(json!(purged).to_string())
                .execute(&mut *transaction)
                .await?;
            transaction.commit().await?;
            Ok(purged.len() as u64)
        })
        .await
    }
}

#[async_trait::async_trait]
impl Make for Sqlite {
    async fn make(&self, id: &SessionId, spec: &Spec, key: Option<&JobKey>) -> Result<Making> {
        let (id, spec, key) = (id.clone(), spec.clone(), key.cloned());
        let pool = self.writer.clone();
        self.writes(async move {
            let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
            let at: i64 = sqlx::query_scalar(sql!("clock")).fetch_one(&mut *transaction).await?;
            if let Some(key) = &key
                && keep_keys(&mut transaction, &[keeping(&id, key)], at).await? != [true]
            {
                transaction.rollback().await?;
                return Ok(Making::KeyTaken);
            }
            let route = spec.needs.route.as_ref();
            // All rows are asked for, though there is one at most: see `take_with`.
            let made: Vec<Moment> = sqlx::query_scalar(sql!("session_create"))
                .bind(id.as_str())
                .bind(spec.needs.pool.as_ref().map_or("", |pool| pool.as_str()))
                .bind(route.map(|route| route.source.as_str()))
                .bind(route.map(|route| route.target.as_str()))
                .bind(requires(&spec.needs))
                .bind(spec.ordering.as_str())
                .bind(spec.idle_ms as i64)
                .bind(at)
                .fetch_all(&mut *transaction)
                .await?;
            let Some(at) = made.first() else {
                transaction.rollback().await?;
                return Ok(Making::Exists);
            };
            transaction.commit().await?;
            Ok(Making::Made(at.0))
        })
        .await
    }

    async fn shown_keys(&self, scopes: &[KeyScope]) -> Result<Vec<KeyRow>> {
        self.key_rows(scopes).await
    }
}
