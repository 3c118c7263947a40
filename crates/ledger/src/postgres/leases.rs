//! Leases on PostgreSQL.

use domain::{InstanceId, Resource, Token};

use super::{Postgres, sql};
use crate::leases::{self, Acquisition, Lease, LeaseFilter, Leases, Renewal, Take};
use crate::records::{self, LeaseRow, TokenRow};
use crate::{Error, Result};

#[async_trait::async_trait]
impl Leases for Postgres {
    async fn acquire(&self, resource: &Resource, owner: &InstanceId, lease_ms: u64) -> Result<Acquisition> {
        leases::acquire(self, resource, owner, lease_ms).await
    }

    async fn renew(&self, owner: &InstanceId, leases: &[Renewal]) -> Result<Vec<Resource>> {
        assert!(leases.len() <= domain::limits::RENEWALS_MAX, "the caller splits renewals");
        let pool = self.renewals.clone();
        let owner = owner.to_string();
        let mut leases: Vec<_> = leases.iter().collect();
        leases.sort_unstable_by(|a, b| a.resource.cmp(&b.resource));
        let resources: Vec<_> = leases.iter().map(|lease| lease.resource.to_string()).collect();
        let tokens: Vec<_> = leases.iter().map(|lease| lease.token.get()).collect();
        let lengths: Vec<_> = leases.iter().map(|lease| lease.lease_ms as i64).collect();
        let renewed: Vec<String> = self
            .writes(async move {
                sqlx::query_scalar(sql!("lease_renew"))
                    .bind(resources)
                    .bind(tokens)
                    .bind(lengths)
                    .bind(owner)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        let parsed = renewed.iter().map(|name| Resource::parse(name));
        parsed.collect::<std::result::Result<_, _>>().map_err(|e| Error::Impossible(e.to_string().into()))
    }

    async fn release(&self, resource: &Resource, owner: &InstanceId, token: Token) -> Result<bool> {
        let pool = self.pool.clone();
        let (resource, owner) = (resource.to_string(), owner.to_string());
        self.writes(async move {
            let done = sqlx::query(sql!("lease_release"))
                .bind(resource)
                .bind(owner)
                .bind(token.get())
                .execute(&pool)
                .await?;
            Ok(done.rows_affected() == 1)
        })
        .await
    }

    async fn lease(&self, resource: &Resource) -> Result<Option<Lease>> {
        let pool = self.pool.clone();
        let resource = resource.to_string();
        let row: Option<LeaseRow> = self
            .reads(
                async move { sqlx::query_as(sql!("lease_show")).bind(resource).fetch_optional(&pool).await },
            )
            .await?;
        row.map(Lease::try_from).transpose()
    }

    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<Lease>> {
        let pool = self.pool.clone();
        let prefix = filter.kind.map_or_else(String::new, |kind| format!("{}:", kind.as_str()));
        let owner = filter.owner.as_ref().map(ToString::to_string);
        let after = filter.after.as_ref().map_or_else(String::new, ToString::to_string);
        let limit = i64::from(filter.limit);
        let rows: Vec<LeaseRow> = self
            .reads(async move {
                sqlx::query_as(sql!("lease_list"))
                    .bind(prefix)
                    .bind(owner)
                    .bind(after)
                    .bind(limit)
                    .fetch_all(&pool)
                    .await
            })
            .await?;
        records::all(rows)
    }
}

#[async_trait::async_trait]
impl Take for Postgres {
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

impl Postgres {
    async fn take_with(
        &self,
        statement: &'static str,
        resource: &Resource,
        owner: &InstanceId,
        lease_ms: u64,
    ) -> Result<Option<TokenRow>> {
        let pool = self.pool.clone();
        let (resource, owner) = (resource.to_string(), owner.to_string());
        self.writes(async move {
            sqlx::query_as(statement)
                .bind(resource)
                .bind(owner)
                .bind(lease_ms as i64)
                .fetch_optional(&pool)
                .await
        })
        .await
    }
}
