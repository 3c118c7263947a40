//! Resources, their kinds, and the fencing token.

use std::fmt;
use std::sync::Arc;

use crate::id::{InstanceId, Invalid, PlanId, SessionId, SignerId, TenantId, WorkerNumber};
use crate::limits::ID_WORKER_MAX;
use crate::named::named;

named!(
    /// What a lease can be about. The name before the colon of a resource.
    ResourceKind, "kind" {
        /// A worker number of the snowflake scheme.
        IdWorker = "id-worker",
        /// One running Fencepost process.
        Instance = "instance",
        /// A plan, whose stages are jobs.
        Plan = "plan",
        /// One client's conversation, whose jobs have an order.
        Session = "session",
        /// A blockchain account whose nonces are handed out.
        Signer = "signer",
        /// A tenant that plans work on. Its lease is a lock: a task owns it, and no instance.
        Tenant = "tenant",
    }
);

/// A named thing that has one owner: `signer:<id>`, `session:<id>`, `instance:<id>`, `id-worker:<n>`,
/// `plan:<id>`, `tenant:<id>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    name: Arc<str>,
    kind: ResourceKind,
}

impl Resource {
    /// The resource that a signer's nonces belong to.
    #[must_use]
    pub fn signer(id: &SignerId) -> Self {
        Self { name: id.resource_name(), kind: ResourceKind::Signer }
    }

    /// The resource by which an instance shows that it lives.
    #[must_use]
    pub fn instance(id: &InstanceId) -> Self {
        Self { name: id.resource_name(), kind: ResourceKind::Instance }
    }

    /// The resource that a session's jobs belong to.
    #[must_use]
    pub fn session(id: &SessionId) -> Self {
        Self { name: id.resource_name(), kind: ResourceKind::Session }
    }

    /// The resource that a plan's tasks belong to.
    #[must_use]
    pub fn plan(id: PlanId) -> Self {
        Self { name: Arc::from(format!("plan:{id}")), kind: ResourceKind::Plan }
    }

    /// The resource of a tenant's lock.
    #[must_use]
    pub fn tenant(id: &TenantId) -> Self {
        Self { name: id.resource_name(), kind: ResourceKind::Tenant }
    }

    /// The resource of a snowflake worker's number.
    #[must_use]
    pub fn id_worker(number: WorkerNumber) -> Self {
        Self { name: Arc::from(format!("id-worker:{number}")), kind: ResourceKind::IdWorker }
    }

    /// Reads `kind:id`.
    ///
    /// # Errors
    /// [`Invalid`] for an unknown kind or an id outside that kind's characters.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let (kind, id) = text.split_once(':').ok_or_else(|| Invalid {
            what: "resource",
            expected: "kind:id, such as signer:eip155:1:0xab".to_owned(),
        })?;
        match ResourceKind::parse(kind)? {
            ResourceKind::Signer => SignerId::parse(id).map(|id| Self::signer(&id)),
            ResourceKind::Instance => InstanceId::parse(id).map(|id| Self::instance(&id)),
            ResourceKind::Session => SessionId::parse(id).map(|id| Self::session(&id)),
            ResourceKind::Tenant => TenantId::parse(id).map(|id| Self::tenant(&id)),
            // One spelling, the one that is printed.
            ResourceKind::Plan => match PlanId::parse(id) {
                Some(plan) if plan.to_string() == id => Ok(Self::plan(plan)),
                _ => Err(Invalid { what: "plan", expected: "a UUID in lower case with hyphens".to_owned() }),
            },
            // One spelling each: `+7` or `007` would be another resource than `7`.
            ResourceKind::IdWorker => match id.parse::<u16>() {
                Ok(number) if number.to_string() == id => WorkerNumber::new(number).map(Self::id_worker),
                _ => Err(Invalid { what: "worker", expected: format!("0 to {ID_WORKER_MAX}") }),
            },
        }
    }

    /// `kind:id`, as the ledger and the outside know it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> ResourceKind {
        self.kind
    }

    /// The part after the kind's colon.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.name[self.kind.as_str().len() + 1..]
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The fencing token: rises by one with every acquisition of its resource and never starts over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(i64);

impl Token {
    /// Under it nobody has owned the resource before. It is that of the first acquisition, but for names that may have been
    /// leased before a ledger was restored and recovered: signers, tenants, worker numbers.
    pub const FIRST: Self = Self(1);

    /// A token as the ledger holds it (positive).
    #[must_use]
    pub const fn new(number: i64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_read_back_what_they_print() {
        let signer = Resource::parse("signer:eip155:1:0xab").unwrap();
        assert_eq!((signer.kind(), signer.id()), (ResourceKind::Signer, "eip155:1:0xab"));
        assert_eq!(Resource::parse(signer.as_str()).unwrap(), signer);
        let instance = Resource::parse("instance:a-1").unwrap();
        assert_eq!((instance.kind(), instance.id()), (ResourceKind::Instance, "a-1"));
        for good in ["session:s-1", "id-worker:0", "id-worker:1023"] {
            assert_eq!(Resource::parse(good).unwrap().as_str(), good);
        }
        for bad in [
            "",
            "signer",
            "signer:",
            "lamp:x",
            "signer:a b",
            ":x",
            "id-worker:1024",
            "id-worker:+7",
            "id-worker:007",
        ] {
            assert!(Resource::parse(bad).is_err(), "{bad:?}");
        }
    }
}
