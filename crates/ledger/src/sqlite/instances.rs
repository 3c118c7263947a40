//! Instances in SQLite.

use std::collections::HashMap;

use domain::InstanceId;

use super::{Sqlite, sql};
use crate::Result;
use crate::instances::{Instance, Instances, NewInstance, Peer};
use crate::records::{self, CountRow, InstanceRow, PeerRow};

#[async_trait::async_trait]
impl Instances for Sqlite {
    async fn register(&self, instance: &NewInstance) -> Result<()> {
        let pool = self.writer.clone();
        let instance = instance.clone();
        self.writes(async move {
            sqlx::query(sql!("instance_register"))
                .bind(instance.id.as_str())
                .bind(instance.url)
                .bind(instance.hostname)
                .bind(i64::from(instance.pid))
                .bind(instance.version)
                .execute(&pool)
                .await
        })
        .await?;
        Ok(())
    }

    async fn note_bus(&self, id: &InstanceId, up: bool) -> Result<()> {
        let pool = self.writer.clone();
        let id = id.to_string();
        self.writes(async move { sqlx::query(sql!("instance_bus")).bind(id).bind(up).execute(&pool).await })
            .await?;
        Ok(())
    }

    async fn live_instances(&self) -> Result<Vec<Instance>> {
        let pool = self.readers.clone();
        let rows: Vec<InstanceRow> =
            self.reads(async move { sqlx::query_as(sql!("instance_list")).fetch_all(&pool).await }).await?;
        records::all(rows)
    }

    async fn peers(&self, since_ms: u64, limit: u32) -> Result<Vec<Peer>> {
        let pool = self.readers.clone();
        let rows: Vec<PeerRow> = self
            .reads(async move {
                sqlx::query_as(sql!("instance_peers"))
                    .bind(since_ms as i64)
                    .bind(i64::from(limit))
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::all(rows)
    }

    async fn lease_counts(&self) -> Result<HashMap<InstanceId, u64>> {
        let pool = self.readers.clone();
        let rows: Vec<CountRow> =
            self.reads(async move { sqlx::query_as(sql!("lease_counts")).fetch_all(&pool).await }).await?;
        rows.into_iter().map(TryInto::try_into).collect()
    }

    async fn instance_url(&self, id: &InstanceId) -> Result<Option<String>> {
        let pool = self.readers.clone();
        let id = id.to_string();
        self.reads(
            async move { sqlx::query_scalar(sql!("instance_url")).bind(id).fetch_optional(&pool).await },
        )
        .await
    }

    async fn purge_instances(&self, age_ms: u64, limit: u32) -> Result<u64> {
        let pool = self.writer.clone();
        self.writes(async move {
            // First the incarnations, then their leases. A crash in between leaves leases, which the next
            // purge finds by themselves.
            let mut purged = 0;
            for statement in [sql!("instance_purge"), sql!("lease_purge")] {
                let done =
                    sqlx::query(statement).bind(age_ms as i64).bind(i64::from(limit)).execute(&pool).await?;
                purged = done.rows_affected();
            }
            Ok(purged)
        })
        .await
    }
}
