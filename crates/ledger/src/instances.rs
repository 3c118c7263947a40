//! Instances: the incarnations of Fencepost, each with the address it serves at.

use std::collections::HashMap;

use domain::{InstanceId, Timestamp};

use crate::{Lease, Result};

/// What an instance says of itself at its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewInstance {
    /// Its id.
    pub id: InstanceId,
    /// Where others and clients reach it.
    pub url: String,
    /// The machine's name.
    pub hostname: String,
    /// Its process there.
    pub pid: u32,
    /// The version of the binary.
    pub version: String,
}

/// A live instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// What it said of itself.
    pub about: NewInstance,
    /// Whether its bus worked when it last said so; `None` for one that needs no other process.
    pub bus_up: Option<bool>,
    /// The bus that it uses; `None` until it says so.
    pub bus: Option<String>,
    /// When it started.
    pub started_at: Timestamp,
}

/// An incarnation that lives or ended a short while ago, and the lease by which it shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its id.
    pub id: InstanceId,
    /// Where others and clients reach it.
    pub url: String,
    /// Its `instance:` lease.
    pub lease: Lease,
    /// How long ago that was acquired, in milliseconds, by the database's clock; the longest time that there is, if that clock
    /// has stepped back behind it.
    pub age_ms: u64,
}

impl Peer {
    /// It lives: its lease is live, and its own. After a survivor took the lease, it does not.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.lease.is_live() && self.lease.owner.as_ref() == Some(&self.id)
    }
}

/// The instances that run, and their addresses. An instance is live while its `instance:` lease is live and its own.
#[async_trait::async_trait]
pub trait Instances: Send + Sync {
    /// Writes an incarnation down.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn register(&self, instance: &NewInstance) -> Result<()>;

    /// Notes whether an incarnation's bus works, and which it is; `None` keeps what was noted.
    ///
    /// # Errors
    /// [`crate::Error`]; repeating is harmless.
    async fn note_bus(&self, id: &InstanceId, up: Option<bool>, bus: Option<&str>) -> Result<()>;

    /// Those that live, in the order of their ids.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn live_instances(&self) -> Result<Vec<Instance>>;

    /// Those that live and those that ended less than `since_ms` ago, the living first, `limit` at most.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn peers(&self, since_ms: u64, limit: u32) -> Result<Vec<Peer>>;

    /// How many live leases each instance has, its own `instance:` lease left out; those that have none are
    /// not among them. Reads all leases, `piece` of them in a statement, so that it ends however many there are: not for
    /// every request.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn lease_counts(&self, piece: u32) -> Result<HashMap<InstanceId, u64>>;

    /// The address of an instance, dead or alive.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn instance_url(&self, id: &InstanceId) -> Result<Option<String>>;

    /// Forgets incarnations whose `instance:` lease ended or ran out more than `age_ms` ago, `limit` at most, the
    /// lease row included: such an id never comes back. One that was only away finds that its lease is lost. Answers how many.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn purge_instances(&self, age_ms: u64, limit: u32) -> Result<u64>;
}
