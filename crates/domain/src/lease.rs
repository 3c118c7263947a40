//! Resources, their kinds, and the fencing token.

use std::fmt;
use std::sync::Arc;

use crate::id::{InstanceId, Invalid, SignerId};

/// What a lease can be about. The name before the colon of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKind {
    /// A blockchain account whose nonces are handed out.
    Signer,
    /// One running Fencepost process.
    Instance,
}

impl ResourceKind {
    /// All kinds, in the order of their names.
    pub const ALL: [Self; 2] = [Self::Instance, Self::Signer];

    /// The name before the colon.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Signer => "signer",
            Self::Instance => "instance",
        }
    }

    /// Reads the name.
    ///
    /// # Errors
    /// [`Invalid`], naming the kinds there are.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.as_str() == text)
            .ok_or_else(|| Invalid { what: "kind", expected: "one of instance, signer".to_owned() })
    }
}

/// A named thing that has one owner: `signer:<id>`, `instance:<id>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Resource {
    name: Arc<str>,
    kind: ResourceKind,
}

impl Resource {
    /// The resource that a signer's nonces belong to.
    #[must_use]
    pub fn signer(id: &SignerId) -> Self {
        Self { name: Arc::from(format!("signer:{id}")), kind: ResourceKind::Signer }
    }

    /// The resource by which an instance shows that it lives.
    #[must_use]
    pub fn instance(id: &InstanceId) -> Self {
        Self { name: Arc::from(format!("instance:{id}")), kind: ResourceKind::Instance }
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
        for bad in ["", "signer", "signer:", "lamp:x", "signer:a b", ":x"] {
            assert!(Resource::parse(bad).is_err(), "{bad:?}");
        }
    }
}
