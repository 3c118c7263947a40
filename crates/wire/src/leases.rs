//! Leases, as they are shown.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// The resource, `kind:id`.
    pub resource: String,
    /// The instance that holds the lease, or held it last. `null` once the lease was released.
    #[schema(required)]
    pub owner: Option<String>,
    /// The fencing token of the newest acquisition. It rises with each acquisition and never starts over.
    pub fencing_token: i64,
    /// When the lease was acquired.
    #[schema(format = DateTime)]
    pub acquired_at: String,
    /// When the lease was last renewed.
    #[schema(format = DateTime)]
    pub renewed_at: String,
    /// The time until the lease expires, in milliseconds. 0 when it has expired or was released.
    pub expires_in_ms: u64,
    /// Whether an instance holds the lease, and it has not expired.
    pub live: bool,
}
