//! Reads: signers, nonces, leases, the cluster, its statistics, its health, and who the caller is. And the mode of the
//! cluster, which can be changed.

use wire::List;
use wire::audit::AuditRecord;
use wire::cluster::{Cluster, ModeRequest, ModeSetting, Owner};
use wire::health::{Health, Ready};
use wire::leases::Lease;
use wire::limits::NONCE_MAX;
use wire::nonces::{NonceRecord, Signer, Status};
use wire::stats::Stats;
use wire::whoami::Whoami;

use crate::transport::Call;
use crate::{Client, Result};

/// A page of a list.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// The largest number of items, 1 to 1,000; the daemon's default without it.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

impl Page {
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let limit = self.limit.map(|limit| ("limit", limit.to_string()));
        let cursor = self.cursor.clone().map(|cursor| ("cursor", cursor));
        limit.into_iter().chain(cursor).collect()
    }
}

/// Which nonces of a signer to list.
#[derive(Clone, Debug, Default)]
pub struct NonceQuery {
    /// In this state only.
    pub status: Option<Status>,
    /// Which part.
    pub page: Page,
}

/// Which leases to list.
#[derive(Clone, Debug, Default)]
pub struct LeaseQuery {
    /// Of this kind only, such as `signer`.
    pub kind: Option<String>,
    /// Of this instance only.
    pub owner: Option<String>,
    /// Which part.
    pub page: Page,
}

/// Which changes of operators to list.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// Of this token's name only.
    pub principal: Option<String>,
    /// Of this action only.
    pub action: Option<String>,
    /// About this only.
    pub subject: Option<String>,
    /// From this time on, RFC 3339.
    pub since: Option<String>,
    /// Which part.
    pub page: Page,
}

impl Client {
    /// What operators changed, the newest first; needs the scope `admin`.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn audit(&self, wanted: &AuditQuery) -> Result<List<AuditRecord>> {
        let AuditQuery { principal, action, subject, since, page } = wanted;
        let mut query = page.query();
        let named = [("principal", principal), ("action", action), ("subject", subject), ("since", since)];
        query.extend(named.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        self.call(&Call::get(&["v1", "audit"], &query)).await
    }

    /// One signer: counts, owner, policy.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` before its first grant or policy.
    pub async fn signer(&self, signer: &str) -> Result<Signer> {
        self.call(&Call::get(&["v1", "signers", signer], &[])).await
    }

    /// The signers, in the order of their names.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn signers(&self, page: &Page) -> Result<List<Signer>> {
        self.call(&Call::get(&["v1", "signers"], &page.query())).await
    }

    /// The nonces of a signer, lowest first.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn nonces(&self, signer: &str, wanted: &NonceQuery) -> Result<List<NonceRecord>> {
        let mut query = wanted.page.query();
        query.extend(wanted.status.map(|status| ("status", status.to_string())));
        self.call(&Call::get(&["v1", "signers", signer, "nonces"], &query)).await
    }

    /// One nonce of a signer; `None` when it was never granted. The API has no call for one nonce, so this asks for
    /// a page of one, behind the nonce before it.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a signer before its first grant or policy.
    pub async fn nonce(&self, signer: &str, nonce: u64) -> Result<Option<NonceRecord>> {
        // A cursor as `next_cursor` would be. No nonce is beyond the largest one.
        let cursor = nonce.checked_sub(1).map(|before| format!("n.{}", before.min(NONCE_MAX)));
        let page = Page { limit: Some(1), cursor };
        let list = self.nonces(signer, &NonceQuery { status: None, page }).await?;
        Ok(list.items.into_iter().find(|record| record.nonce == nonce))
    }

    /// The leases, in the order of their resources.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn leases(&self, wanted: &LeaseQuery) -> Result<List<Lease>> {
        let mut query = wanted.page.query();
        query.extend(wanted.kind.clone().map(|kind| ("kind", kind)));
        query.extend(wanted.owner.clone().map(|owner| ("owner", owner)));
        self.call(&Call::get(&["v1", "leases"], &query)).await
    }

    /// One lease, by its resource `kind:id`.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` when it was never acquired.
    pub async fn lease(&self, resource: &str) -> Result<Lease> {
        self.call(&Call::get(&["v1", "leases", resource], &[])).await
    }

    /// The live instances.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn cluster(&self) -> Result<Cluster> {
        self.call(&Call::get(&["v1", "cluster"], &[])).await
    }

    /// The owner of a resource `kind:id`, such as `signer:eip155:1:0xab`.
    ///
    /// # Errors
    /// [`crate::Error`]; `not_found` for a resource that no instance owns, such as a tenant.
    pub async fn owner_of(&self, resource: &str) -> Result<Owner> {
        self.call(&Call::get(&["v1", "cluster", "owner", resource], &[])).await
    }

    /// The mode of the cluster, with the version of its setting.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn mode(&self) -> Result<ModeSetting> {
        self.call(&Call::get(&["v1", "config", "mode"], &[])).await
    }

    /// Changes the mode of the cluster; needs the scope `admin`.
    ///
    /// # Errors
    /// [`crate::Error`]; `conflict` if the version is not the newest, so also for a repetition.
    /// [`crate::Error::Lost`] where the library's own repetition after a lost answer is refused so.
    pub async fn set_mode(&self, mode: &ModeRequest) -> Result<ModeSetting> {
        self.call(&Call::put(&["v1", "config", "mode"], mode)).await
    }

    /// Who the caller is, and what its token may do. With `node` also whether the token may connect a node under this id.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn whoami(&self, node: Option<&str>) -> Result<Whoami> {
        let query: Vec<_> = node.map(|node| ("node", node.to_owned())).into_iter().collect();
        self.call(&Call::get(&["v1", "whoami"], &query)).await
    }

    /// Jobs, plans and tasks of the cluster by state, and the rates of the instance that answers.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn stats(&self) -> Result<Stats> {
        self.call(&Call::get(&["v1", "stats"], &[])).await
    }

    /// Whether the process runs. With the usual [`crate::Retry`] a check that fails is repeated for up to three seconds,
    /// and for longer at a silent host; with `attempts_max: 1` it is made once.
    ///
    /// # Errors
    /// [`crate::Error`].
    pub async fn health(&self) -> Result<Health> {
        self.call(&Call::probe(&["healthz"])).await
    }

    /// Whether the instance can serve, with its checks. It is repeated as [`Client::health`] is.
    ///
    /// # Errors
    /// [`crate::Error`]; a refusal that carries `checks` when it cannot serve.
    pub async fn ready(&self) -> Result<Ready> {
        self.call(&Call::probe(&["readyz"])).await
    }
}
