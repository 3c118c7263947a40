//! Who the caller is, and what it may do.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lenient;
use crate::nodes::NodeClaim;
use crate::strict::words;

words! {
    /// A scope of a token.
    pub growing enum TokenScope {
        /// See what there is.
        Read = "read",
        /// Make and change jobs, sessions, nonces, ids and plans.
        Submit = "submit",
        /// Connect as a worker node.
        Node = "node",
        /// Decide as an operator.
        Admin = "admin",
    }
}

/// The caller, as the daemon knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Whoami {
    /// The name of its token. `null` where no tokens are configured.
    #[schema(required)]
    pub name: Option<String>,
    /// The scopes of its token, with those that they include.
    #[serde(deserialize_with = "lenient::read")]
    pub scopes: Vec<TokenScope>,
    /// Whether it sees everything: its token has no patterns.
    pub sees_everything: bool,
    /// The instance that answers. `null` before the instance has completed its start.
    #[schema(required)]
    pub instance: Option<String>,
    /// Whose the id is of the node that was asked about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeClaim>,
    /// The version of the daemon.
    pub version: String,
}
