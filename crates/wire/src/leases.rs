//! Leases, as the audit shows them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A lease as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Lease {
    /// What it is about, `kind:id`.
    pub resource: String,
    /// The instance that has it, or had it last; `null` once released.
    #[schema(required)]
    pub owner: Option<String>,
    /// The token of the newest acquisition. It rises with each and never starts over.
    pub fencing_token: i64,
    /// When it was acquired.
    #[schema(format = DateTime)]
    pub acquired_at: String,
    /// When it was renewed last.
    #[schema(format = DateTime)]
    pub renewed_at: String,
    /// How long it still runs, in milliseconds; 0 when it ran out or was released.
    pub expires_in_ms: u64,
    /// Whether somebody has it and it has not run out.
    pub live: bool,
}
