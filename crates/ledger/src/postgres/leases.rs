//! Leases on PostgreSQL.

use domain::{InstanceId, Resource, ResourceKind, Token};

use super::{Postgres, sql};
use crate::Result;
use crate::detached::Effect;
use crate::leases::{self, Acquisition, Lease, LeaseFilter, Leases, Renewal, Take};
use crate::records::{self, LeaseRow, TokenRow};

#[async_trait::async_trait]
impl Leases for Postgres {
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
        let is_vital = resource.kind() == ResourceKind::Instance;
        let (resource, owner, dead) = (resource.to_string(), owner.to_string(), dead.to_string());
        let pool = if is_vital { &self.vital } else { &self.pool };
        let row: Option<TokenRow> = super::run(pool, Effect::Writes, self.call_timeout, move |session| {
            Box::pin(async move {
                sqlx::query_as(sql!("lease_take_over"))
                    .bind(resource)
                    .bind(owner)
                    .bind(dead)
                    .bind(lease_ms as i64)
                    .fetch_optional(session)
                    .await
            })
        })
        .await?;
        Ok(row.map(|row| row.token()))
    }

    async fn renew(&self, owner: &InstanceId, leases: &[Renewal]) -> Result<Vec<Resource>> {
        assert!(leases.len() <= domain::limits::RENEWALS_MAX, "the caller splits renewals");
        let owner = owner.to_string();
        let mut leases: Vec<_> = leases.iter().collect();
        leases.sort_unstable_by(|a, b| a.resource.cmp(&b.resource));
        let resources: Vec<_> = leases.iter().map(|lease| lease.resource.to_string()).collect();
        let tokens: Vec<_> = leases.iter().map(|lease| lease.token.get()).collect();
        let lengths: Vec<_> = leases.iter().map(|lease| lease.lease_ms as i64).collect();
        let renewed: Vec<String> = self
            .vitally(Effect::Writes, move |session| {
                Box::pin(async move {
                    sqlx::query_scalar(sql!("lease_renew"))
                        .bind(resources)
                        .bind(tokens)
                        .bind(lengths)
                        .bind(owner)
                        .fetch_all(&mut *session)
                        .await
                })
            })
            .await?;
        records::resources(&renewed)
    }

    async fn release_all(&self, owner: &InstanceId, leases: &[(Resource, Token)]) -> Result<Vec<Resource>> {
        assert!(leases.len() <= domain::limits::RENEWALS_MAX, "the caller splits releases");
        let owner = owner.to_string();
        let resources: Vec<_> = leases.iter().map(|(resource, _)| resource.to_string()).collect();
        let tokens: Vec<_> = leases.iter().map(|(_, token)| token.get()).collect();
        let ended: Vec<String> = self
            .writes(move |session| {
                Box::pin(async move {
                    sqlx::query_scalar(sql!("lease_release"))
                        .bind(resources)
                        .bind(tokens)
                        .bind(owner)
                        .fetch_all(&mut *session)
                        .await
                })
            })
            .await?;
        records::resources(&ended)
    }

    async fn lease(&self, resource: &Resource) -> Result<Option<Lease>> {
        let resource = resource.to_string();
        let row: Option<LeaseRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("lease_show")).bind(resource).fetch_optional(&mut *session).await
                })
            })
            .await?;
        row.map(Lease::try_from).transpose()
    }

    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<Lease>> {
        let (from, to) = records::lease_bounds(filter);
        let owner = filter.owner.as_ref().map(ToString::to_string);
        let limit = i64::from(filter.limit);
        let rows: Vec<LeaseRow> = self
            .reads(move |session| {
                Box::pin(async move {
                    sqlx::query_as(sql!("lease_list"))
                        .bind(from)
                        .bind(to)
                        .bind(owner)
                        .bind(limit)
                        .fetch_all(&mut *session)
                        .await
                })
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
        let (resource, owner) = (resource.to_string(), owner.to_string());
        self.writes(move |session| {
            Box::pin(async move {
                sqlx::query_as(statement)
                    .bind(resource)
                    .bind(owner)
                    .bind(lease_ms as i64)
                    .fetch_optional(&mut *session)
                    .await
            })
        })
        .await
    }
}
