//! Idempotency keys: where one counts.

use crate::IdempotencyKey;

/// Where an idempotency key counts: route and path resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KeyScope {
    /// The route and resource, such as `grant signer:x`.
    pub scope: String,
    /// The caller's key.
    pub key: IdempotencyKey,
}
