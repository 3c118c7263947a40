//! Sessions on PostgreSQL.

use domain::session::Spec;
use domain::{JobId, Resource, ResourceKind, SessionId};
use sqlx::Connection;

use super::engine::{fence, keep_keys};
use super::{Postgres, sql};
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
impl Sessions for Postgres {
    async fn open_session(&self, id: &SessionId, spec: &Spec, key: Option<&JobKey>) -> Result<Opened> {
        open(self, id, spec, key).await
    }

    async fn session(&self, id: &SessionId) -> Result<Option<SessionRecord>> {
        let id = id.to_string();
        let row: Option<SessionRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("session_show")).bind(id).fetch_optional(session).await
                })
            })
            .await?;
        row.map(SessionRecord::try_from).transpose()
    }

    async fn session_counts(&self, id: &SessionId) -> Result<SessionCounts> {
        let id = id.to_string();
        let row: CountsRow = self
            .reads(move |session| {
                Box::pin(
                    async move { sqlx::query_as(sql!("session_counts")).bind(id).fetch_one(session).await },
                )
            })
            .await?;
        row.try_into()
    }

    async fn close_session(&self, lane: &Lane) -> Result<Closed> {
        check_is_session(lane)?;
        let lane = lane.clone();
        self.writes(move |session| {
            Box::pin(async move {
                let mut transaction = session.begin().await?;
                let (fences, _) = fence(&mut transaction, &[Some(lane.tenure())]).await?;
                let closed = match fences[..] {
                    [Fence::Holds] => Closed::Yes,
                    [Fence::Again] => Closed::Again,
                    _ => Closed::Fenced,
                };
                if closed != Closed::Yes {
                    transaction.rollback().await?;
                    return Ok(closed);
                }
                sqlx::query(sql!("session_close"))
                    .bind(lane.resource.id())
                    .execute(&mut *transaction)
                    .await?;
                transaction.commit().await?;
                Ok(closed)
            })
        })
        .await
    }

    async fn line(&self, lane: &Resource, after_seq: u64, limit: u32) -> Result<Vec<(LiveJob, u64)>> {
        if lane.kind() != ResourceKind::Session {
            return Ok(Vec::new());
        }
        let lane = lane.clone();
        let rows: Vec<ComingRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("job_line"))
                        .bind(lane.as_str())
                        .bind(lane.id())
                        .bind(rows::place(after_seq))
                        .bind(i64::from(limit))
                        .bind(PAGE_BYTES_MAX as i64)
                        .fetch_all(session)
                        .await
                })
            })
            .await?;
        records::all(rows)
    }

    async fn session_results(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<SessionResults> {
        let id = id.to_string();
        let rows: Vec<ResultRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("session_results"))
                        .bind(id)
                        .bind(rows::place(after_seq))
                        .bind(i64::from(limit))
                        .bind(PAGE_BYTES_MAX as i64)
                        .fetch_all(session)
                        .await
                })
            })
            .await?;
        rows::results(rows)
    }

    async fn finished_places(&self, id: &SessionId, after_seq: u64, limit: u32) -> Result<Vec<(u64, JobId)>> {
        let id = id.to_string();
        let rows: Vec<PlaceRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("session_places"))
                        .bind(id)
                        .bind(rows::place(after_seq))
                        .bind(i64::from(limit))
                        .fetch_all(session)
                        .await
                })
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
        let rows: Vec<IdleRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    let idle = sqlx::query_as(sql!("session_idle")).bind(after).bind(i64::from(limit));
                    idle.fetch_all(session).await
                })
            })
            .await?;
        rows::idle(rows)
    }

    async fn purge_sessions(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.writes(move |session| {
            Box::pin(async move {
                let purge = sqlx::query(sql!("session_purge")).bind(age_ms as i64).bind(i64::from(limit));
                Ok(purge.execute(session).await?.rows_affected())
            })
        })
        .await
    }
}

#[async_trait::async_trait]
impl Make for Postgres {
    async fn make(&self, id: &SessionId, spec: &Spec, key: Option<&JobKey>) -> Result<Making> {
        let (id, spec, key) = (id.clone(), spec.clone(), key.cloned());
        self.writes(move |session| {
            Box::pin(async move {
                let mut transaction = session.begin().await?;
                if let Some(key) = &key
                    && keep_keys(&mut transaction, &[keeping(&id, key)]).await? != [true]
                {
                    transaction.rollback().await?;
                    return Ok(Making::KeyTaken);
                }
                let route = spec.needs.route.as_ref();
                let made: Option<Moment> = sqlx::query_scalar(sql!("session_create"))
                    .bind(id.as_str())
                    .bind(spec.needs.pool.as_ref().map_or("", |pool| pool.as_str()))
                    .bind(route.map(|route| route.source.as_str()))
                    .bind(route.map(|route| route.target.as_str()))
                    .bind(requires(&spec.needs))
                    .bind(spec.ordering.as_str())
                    .bind(spec.idle_ms as i64)
                    .fetch_optional(&mut *transaction)
                    .await?;
                match made {
                    Some(at) => {
                        transaction.commit().await?;
                        Ok(Making::Made(at.0))
                    }
                    None => {
                        transaction.rollback().await?;
                        Ok(Making::Exists)
                    }
                }
            })
        })
        .await
    }

    async fn shown_keys(&self, scopes: &[KeyScope]) -> Result<Vec<KeyRow>> {
        self.key_rows(scopes).await
    }
}
