//! The audit: what operators changed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A change by an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditRecord {
    /// In the order of writing.
    pub id: i64,
    /// When it was written.
    #[schema(format = DateTime)]
    pub at: String,
    /// The name of the operator's token. Empty without tokens.
    pub principal: String,
    /// What was done, such as `set_policy`.
    pub action: String,
    /// To what: its kind and name, such as `signer:eip155:1:0xab`.
    pub subject: String,
    /// How it was.
    #[schema(required)]
    pub before: Option<String>,
    /// How it is. For `drain_node`, `undrain_node` and `cancel_job`, the state that was asked for. For `retry_task`, where the
    /// retry continues, and the names of the other fields that the request had, without their values. For `retry_jobs` and
    /// bulk operations, the request.
    #[schema(required)]
    pub after: Option<String>,
    /// Why, in the operator's words.
    #[schema(required)]
    pub reason: Option<String>,
    /// The id of the request.
    #[schema(required)]
    pub request_id: Option<String>,
}
