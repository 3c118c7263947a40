//! Leases in SQLite.

use domain::{InstanceId, Resource, Token};
use serde_json::json;

use super::{Sqlite, sql};
use crate::Result;
use crate::leases::{self, Acquisition, Lease, LeaseFilter, Leases, Renewal, Take};
use crate::records::{self, LeaseRow, TokenRow};

#[async_trait::async_trait]
impl Leases for Sqlite {
    async fn acquire(&self, resource: &Resource, owner: &InstanceId, lease_ms: u64) -> Result<Acquisition> {
        leases::acquire(self, resource, owner, lease_ms).await
    }

    async fn take_over(
        &self,
        resource: &Resource,
        owner: &InstanceId,
        dead: &InstanceId,
        lease_ms: u64,
    ) -> Result<Option<Token>> {
        let pool = self.writer.clone();
        let (resource, owner, dead) = (resource.to_string(), owner.to_string(), dead.to_string());
        // As in `take_with`: run to its end, so that a failed commit is seen.
        let rows: Vec<TokenRow> = self
            .writes(async move {
                sqlx::query_as(sql!("lease_take_over"))
                    .bind(resource)
                    .bind(owner)
                    .bind(dead)
                    .bind(lease_ms as i64)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        Ok(rows.first().map(TokenRow::token))
    }

    async fn renew(&self, owner: &InstanceId, leases: &[Renewal]) -> Result<Vec<Resource>> {
        assert!(leases.len() <= domain::limits::RENEWALS_MAX, "the caller splits renewals");
        let pool = self.writer.clone();
        let owner = owner.to_string();
        let wanted: Vec<_> = leases
            .iter()
            .map(|lease| {
                json!({
                    "resource": lease.resource.as_str(),
                    "token": lease.token.get(),
                    "lease_ms": lease.lease_ms,
                })
            })
            .collect();
        let renewed: Vec<String> = self
            .writes(async move {
                sqlx::query_scalar(sql!("lease_renew"))
                    .bind(json!(wanted).to_string())
                    .bind(owner)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::resources(&renewed)
    }

    async fn release_all(&self, owner: &InstanceId, leases: &[(Resource, Token)]) -> Result<Vec<Resource>> {
        assert!(leases.len() <= domain::limits::RENEWALS_MAX, "the caller splits releases");
        let pool = self.writer.clone();
        let owner = owner.to_string();
        let ending: Vec<_> = leases
            .iter()
            .map(|(resource, token)| json!({ "resource": resource.as_str(), "token": token.get() }))
            .collect();
        let ended: Vec<String> = self
            .writes(async move {
                sqlx::query_scalar(sql!("lease_release"))
                    .bind(json!(ending).to_string())
                    .bind(owner)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::resources(&ended)
    }

    async fn lease(&self, resource: &Resource) -> Result<Option<Lease>> {
        let pool = self.readers.clone();
        let resource = resource.to_string();
        let row: Option<LeaseRow> = self
            .reads(
                async move { sqlx::query_as(sql!("lease_show")).bind(resource).fetch_optional(&pool).await },
            )
            .await?;
        row.map(Lease::try_from).transpose()
    }

    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<Lease>> {
        let pool = self.readers.clone();
        let (from, to) = records::lease_bounds(filter);
        let owner = filter.owner.as_ref().map(ToString::to_string);
        let limit = i64::from(filter.limit);
        let rows: Vec<LeaseRow> = self
            .reads(async move {
                sqlx::query_as(sql!("lease_list"))
                    .bind(from)
                    .bind(to)
                    .bind(owner)
                    .bind(limit)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::all(rows)
    }
}

#[async_trait::async_trait]
impl Take for Sqlite {
    async fn take(&self, resource: &Resource, owner: &InstanceId, lease_ms: u64) -> Result<Option<TokenRow>> {
        self.take_with(sql!("lease_acquire"), resource, owner, lease_ms).await
    }

    async fn create(
        &self,
        resource: &Resource,
        owner: &InstanceId,
        lease_ms: u64,
    ) -> Result<Option<TokenRow>> {
        self.take_with(sql!("lease_create"), resource, owner, lease_ms).await
    }
}

impl Sqlite {
    async fn take_with(
        &self,
        statement: &'static str,
        resource: &Resource,
        owner: &InstanceId,
        lease_ms: u64,
    ) -> Result<Option<TokenRow>> {
        let pool = self.writer.clone();
        let (resource, owner) = (resource.to_string(), owner.to_string());
        // All rows are asked for, though there is one at most: the statement commits when it is run to its
        // end, and only then is its failure seen.
        let rows: Vec<TokenRow> = self
            .writes(async move {
                sqlx::query_as(statement)
                    .bind(resource)
                    .bind(owner)
                    .bind(lease_ms as i64)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        Ok(rows.into_iter().next())
    }
}
