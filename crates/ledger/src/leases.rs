//! Leases: who owns a resource until when.

use domain::{InstanceId, Resource, ResourceKind, Timestamp, Token};

use crate::Result;

/// The answer to an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// The lease is the asker's. Count its length from when the acquire was *sent*.
    Acquired {
        /// The token of this acquisition, one above every earlier one.
        token: Token,
        /// When it runs out by the database's clock, for the log.
        expires_at: Timestamp,
    },
    /// Another owner has a live lease, or the lease is an `instance:` lease that is not to be had.
    Held {
        /// Who; the asker where it is its own `instance:` lease, which is free and that it never has again.
        owner: InstanceId,
        /// How long it still runs, in milliseconds.
        expires_in_ms: u64,
    },
}

/// A lease to be renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// Whose lease.
    pub resource: Resource,
    /// Under which token it was acquired.
    pub token: Token,
    /// For how long from now, in milliseconds.
    pub lease_ms: u64,
}

/// What came of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease runs for its new length.
    Done,
    /// The lease still has this owner and this token, and another transaction has its row: ask again.
    Locked,
    /// The lease has another owner by now, another token, or neither.
    Lost,
}

/// A lease as it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The resource.
    pub resource: Resource,
    /// The owner; `None` once released.
    pub owner: Option<InstanceId>,
    /// The token of the newest acquisition.
    pub token: Token,
    /// When it was acquired.
    pub acquired_at: Timestamp,
    /// When it was renewed last.
    pub renewed_at: Timestamp,
    /// How long it still runs, in milliseconds; 0 when it ran out.
    pub expires_in_ms: u64,
}

impl Lease {
    /// It has an owner and has not expired.
    #[must_use]
    pub const fn is_live(&self) -> bool {
        self.owner.is_some() && self.expires_in_ms > 0
    }
}

/// Which leases to list.
#[derive(Clone, Debug, Default)]
pub struct LeaseFilter {
    /// Of this kind only.
    pub kind: Option<ResourceKind>,
    /// Of resources of that kind whose ids begin with this. Without a kind it is not looked at.
    pub prefix: String,
    /// Of this owner only.
    pub owner: Option<InstanceId>,
    /// After this resource, in the order of names.
    pub after: Option<Resource>,
    /// The most leases to list.
    pub limit: u32,
}

/// Who owns what, and until when.
#[async_trait::async_trait]
pub trait Leases: Send + Sync {
    /// Takes a lease that is free, ran out, or is the asker's own, and raises its token by one in any
    /// case. An `instance:` lease that a survivor took stays taken also when it has run out, and once it is free its own
    /// instance never has it again. A refusal takes no lock.
    /// Load the resource's state in a *later* call.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] the lease may be the asker's: acquire again.
    async fn acquire(&self, resource: &Resource, owner: &InstanceId, lease_ms: u64) -> Result<Acquisition>;

    /// Takes a lease from `dead` at once, live or not, and raises its token by one. Answers with the token, and when the lease
    /// runs out by the database's clock, for the log. `None` if it is not
    /// `dead`'s any more, or if `dead` is alive after all: its own `instance:` lease is live.
    ///
    /// Fencing makes this safe at any time. When it is wise is for the caller to know.
    ///
    /// # Errors
    /// After [`crate::Error::Unknown`] the lease may be the asker's: acquire again.
    async fn take_over(
        &self,
        resource: &Resource,
        owner: &InstanceId,
        dead: &InstanceId,
        lease_ms: u64,
    ) -> Result<Option<(Token, Timestamp)>>;

    /// Lengthens leases, also one that ran out but that nobody took. Answers for each of them, in their order.
    ///
    /// At most [`domain::limits::RENEWALS_MAX`] at once.
    ///
    /// # Errors
    /// After any error some or all may be renewed.
    async fn renew_all(&self, owner: &InstanceId, leases: &[Renewal]) -> Result<Vec<Renewed>>;

    /// Lengthens one lease.
    ///
    /// # Errors
    /// As [`Self::renew_all`].
    async fn renew(&self, owner: &InstanceId, lease: Renewal) -> Result<Renewed> {
        Ok(self.renew_all(owner, &[lease]).await?.first().copied().unwrap_or(Renewed::Lost))
    }

    /// Ends leases, and keeps their tokens. Answers those that ended. The others had another owner or token by then, or
    /// their rows were locked.
    ///
    /// At most [`domain::limits::RENEWALS_MAX`] at once.
    ///
    /// # Errors
    /// After an error the leases may still run; they then run out by themselves.
    async fn release_all(&self, owner: &InstanceId, leases: &[(Resource, Token)]) -> Result<Vec<Resource>>;

    /// Ends one lease. `false` if it had another owner or token by then.
    ///
    /// # Errors
    /// As [`Self::release_all`].
    async fn release(&self, resource: &Resource, owner: &InstanceId, token: Token) -> Result<bool> {
        Ok(!self.release_all(owner, &[(resource.clone(), token)]).await?.is_empty())
    }

    /// Reads one lease.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn lease(&self, resource: &Resource) -> Result<Option<Lease>>;

    /// Lists leases in the order of their names.
    ///
    /// # Errors
    /// [`crate::Error::Unavailable`] and defects.
    async fn leases(&self, filter: &LeaseFilter) -> Result<Vec<Lease>>;
}
