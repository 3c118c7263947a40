//! Leases: each statement is a transaction by itself, so that the loser of a race holds no lock.

use std::collections::HashSet;

use domain::{InstanceId, Resource, ResourceKind, Timestamp, Token};

use super::{Store, Way};
use crate::leases::{Acquisition, Lease, LeaseFilter, Leases, Renewal, Renewed};
use crate::records::{self, LeaseRow};
use crate::sql::{Ask, Moment, Statement, statement};
use crate::{Error, Result};

const ACQUIRE: Statement = statement!("lease_acquire");
const CREATE: Statement = statement!("lease_create");
const TAKE_OVER: Statement = statement!("lease_take_over");
const RENEW: Statement = statement!("lease_renew");
const HELD: Statement = statement!("lease_held");
const RELEASE: Statement = statement!("lease_release");
const SHOW: Statement = statement!("lease_show");
const LIST: Statement = statement!("lease_list");

/// Each round that comes to nothing is one in which somebody else got the lease and lost it again.
const ACQUIRE_ROUNDS_MAX: usize = 8;

/// Whether it is the lease by which its owner shows that it lives, which waits for no request.
fn is_own_life(resource: &Resource, owner: &InstanceId) -> bool {
    resource.kind() == ResourceKind::Instance && resource.id() == owner.as_str()
}

impl Store {
    /// Sends one of the two statements of an acquire.
    async fn take(
        &self,
        statement: &Statement,
        resource: &Resource,
        owner: &InstanceId,
        lease_ms: u64,
    ) -> Result<Option<(Token, Timestamp)>> {
        let ask = self.ask(statement).bind(resource.as_str()).bind(owner.as_str()).bind(lease_ms as i64);
        let way = if is_own_life(resource, owner) { Way::VitalWrites } else { Way::Acquires };
        self.taken(way, ask).await
    }

    /// Sends a statement that takes a lease; answers its token and its end if it did.
    async fn taken(&self, way: Way, ask: Ask) -> Result<Option<(Token, Timestamp)>> {
        let row: Option<(i64, Moment)> = self.optional(way, ask).await?;
        Ok(row.map(|(token, expires_at)| (Token::new(token), expires_at.0)))
    }

    /// Reads one lease.
    async fn look(&self, way: Way, resource: &Resource) -> Result<Option<Lease>> {
        self.record::<LeaseRow, _>(way, self.ask(&SHOW).bind(resource.as_str())).await
    }

    /// Those of the leases that still have this owner and these tokens. Locks on their rows do not matter.
    async fn held(&self, owner: &InstanceId, leases: &[&Renewal]) -> Result<HashSet<Resource>> {
        if leases.is_empty() {
            return Ok(HashSet::new());
        }
        let ask = self.ask(&HELD).rows(leases, |leases| {
            leases
                .column("resource", |lease| lease.resource.as_str())
                .column("token", |lease| lease.token.get());
        });
        let held: Vec<(String,)> = self.all(Way::VitalReads, ask.bind(owner.as_str())).await?;
        Ok(records::resources(held)?.into_iter().collect())
    }
}

#[async_trait::async_trait]
impl Leases for Store {
    /// Updates, else creates, else looks. Nothing is held between the steps; a race is won in one statement.
    async fn acquire(&self, resource: &Resource, owner: &InstanceId, lease_ms: u64) -> Result<Acquisition> {
        let reads = if is_own_life(resource, owner) { Way::VitalReads } else { Way::KeyReads };
        let mut seen = None;
        for _ in 0..ACQUIRE_ROUNDS_MAX {
            let mut taken = self.take(&ACQUIRE, resource, owner, lease_ms).await?;
            if taken.is_none() {
                taken = self.take(&CREATE, resource, owner, lease_ms).await?;
            }
            if let Some((token, expires_at)) = taken {
                return Ok(Acquisition::Acquired { token, expires_at });
            }
            match self.look(reads, resource).await? {
                Some(Lease { owner: Some(holder), expires_in_ms, .. }) if holder != *owner => {
                    if expires_in_ms > 0 {
                        return Ok(Acquisition::Held { owner: holder, expires_in_ms });
                    }
                    seen = Some(holder);
                }
                // The statement leaves it free.
                Some(Lease { owner: None, .. }) if is_own_life(resource, owner) => {
                    return Ok(Acquisition::Held { owner: owner.clone(), expires_in_ms: 0 });
                }
                // It came free, or was purged, since the statements before.
                _ => {}
            }
        }
        match seen {
            Some(owner) => Ok(Acquisition::Held { owner, expires_in_ms: 0 }),
            // Contention, and no more than that: it may be asked again.
            None => {
                Err(Error::aborted(std::io::Error::other(format!("{resource} changed hands too quickly"))))
            }
        }
    }

    async fn take_over(
        &self,
        resource: &Resource,
        owner: &InstanceId,
        dead: &InstanceId,
        lease_ms: u64,
    ) -> Result<Option<(Token, Timestamp)>> {
        let is_vital = resource.kind() == ResourceKind::Instance;
        let ask = self
            .ask(&TAKE_OVER)
            .bind(resource.as_str())
            .bind(owner.as_str())
            .bind(dead.as_str())
            .bind(lease_ms as i64);
        let way = if is_vital { Way::VitalWrites } else { Way::Acquires };
        self.taken(way, ask).await
    }

    async fn renew_all(&self, owner: &InstanceId, leases: &[Renewal]) -> Result<Vec<Renewed>> {
        assert!(leases.len() <= domain::limits::RENEWALS_MAX, "the caller splits renewals");
        let mut sorted: Vec<_> = leases.iter().collect();
        sorted.sort_unstable_by(|a, b| a.resource.cmp(&b.resource));
        let ask = self.ask(&RENEW).rows(&sorted, |leases| {
            leases
                .column("resource", |lease| lease.resource.as_str())
                .column("token", |lease| lease.token.get())
                .column("lease_ms", |lease| lease.lease_ms as i64);
        });
        let renewed: Vec<(String,)> = self.all(Way::VitalWrites, ask.bind(owner.as_str())).await?;
        let renewed: HashSet<_> = records::resources(renewed)?.into_iter().collect();
        let rest: Vec<_> = sorted.into_iter().filter(|lease| !renewed.contains(&lease.resource)).collect();
        let held = self.held(owner, &rest).await?;
        let outcome = |lease: &Renewal| match &lease.resource {
            resource if renewed.contains(resource) => Renewed::Done,
            resource if held.contains(resource) => Renewed::Locked,
            _ => Renewed::Lost,
        };
        Ok(leases.iter().map(outcome).collect())
    }

    async fn release_all(&self, owner: &InstanceId, leases: &[(Resource, Token)]) -> Result<Vec<Resource>> {
        assert!(leases.len() <= domain::limits::RENEWALS_MAX, "the caller splits releases");
        let ask = self.ask(&RELEASE).rows(leases, |leases| {
            leases
                .column("resource", |(resource, _)| resource.as_str())
                .column("token", |(_, token)| token.get());
        });
        let ended: Vec<(String,)> = self.all(Way::Writes, ask.bind(owner.as_str())).await?;
        records::resources(ended)
    }

    async fn lease(&self, resource: &Resource) -> Result<Option<Lease>> {
        self.look(Way::KeyReads, resource).await
    }

    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<Lease>> {
        let (from, to) = records::lease_bounds(filter);
        let ask = self
            .ask(&LIST)
            .bind(from)
            .bind(to)
            .bind(filter.owner.as_ref().map(InstanceId::as_str))
            .bind(i64::from(filter.limit));
        records::all(self.all::<LeaseRow>(Way::Reads, ask).await?)
    }
}
