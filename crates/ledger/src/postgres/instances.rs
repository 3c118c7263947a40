//! Instances on PostgreSQL.

use std::collections::HashMap;

use domain::InstanceId;

use super::{Postgres, sql};
use crate::Result;
use crate::detached::Effect;
use crate::instances::{Instance, Instances, NewInstance, Peer};
use crate::records::{self, CountRow, InstanceRow, PeerRow};

#[async_trait::async_trait]
impl Instances for Postgres {
    async fn register(&self, instance: &NewInstance) -> Result<()> {
        let instance = instance.clone();
        self.writes(move |session| {
            Box::pin(async move {
                sqlx::query(sql!("instance_register"))
                    .bind(instance.id.as_str())
                    .bind(instance.url)
                    .bind(instance.hostname)
                    .bind(i64::from(instance.pid))
                    .bind(instance.version)
                    .execute(&mut *session)
                    .await
            })
        })
        .await?;
        Ok(())
    }

    async fn note_bus(&self, id: &InstanceId, up: bool) -> Result<()> {
        let id = id.to_string();
        self.writes(move |session| {
            Box::pin(async move {
                sqlx::query(sql!("instance_bus")).bind(id).bind(up).execute(&mut *session).await
            })
        })
        .await?;
        Ok(())
    }

    async fn live_instances(&self) -> Result<Vec<Instance>> {
        let rows: Vec<InstanceRow> = self
            .reads(move |session| {
                Box::pin(async move { sqlx::query_as(sql!("instance_list")).fetch_all(&mut *session).await })
            })
            .await?;
        records::all(rows)
    }

    async fn peers(&self, since_ms: u64, limit: u32) -> Result<Vec<Peer>> {
        let rows: Vec<PeerRow> = self
            .vitally(Effect::Reads, move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("instance_peers"))
                        .bind(since_ms as i64)
                        .bind(i64::from(limit))
                        .fetch_all(&mut *session)
                        .await
                })
            })
            .await?;
        records::all(rows)
    }

    async fn lease_counts(&self) -> Result<HashMap<InstanceId, u64>> {
        let rows: Vec<CountRow> = self
            .reads(move |session| {
                Box::pin(async move { sqlx::query_as(sql!("lease_counts")).fetch_all(&mut *session).await })
            })
            .await?;
        rows.into_iter().map(TryInto::try_into).collect()
    }

    async fn instance_url(&self, id: &InstanceId) -> Result<Option<String>> {
        let id = id.to_string();
        self.reads(move |session| {
            Box::pin(async move {
                sqlx::query_scalar(sql!("instance_url")).bind(id).fetch_optional(&mut *session).await
            })
        })
        .await
    }

    async fn purge_instances(&self, age_ms: u64, limit: u32) -> Result<u64> {
        self.writes(move |session| {
            Box::pin(async move {
                // First the incarnations, then their leases. A crash in between leaves leases, which the next
                // purge finds by themselves.
                let mut purged = 0;
                for statement in [sql!("instance_purge"), sql!("lease_purge")] {
                    let done = sqlx::query(statement)
                        .bind(age_ms as i64)
                        .bind(i64::from(limit))
                        .execute(&mut *session)
                        .await?;
                    purged = done.rows_affected();
                }
                Ok(purged)
            })
        })
        .await
    }
}
