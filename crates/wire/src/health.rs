//! Whether the process runs, and whether it can serve requests.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::lenient;
use crate::strict::words;

/// The process runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    #[schema(example = "ok")]
    pub status: String,
}

words! {
    /// How well the instance can serve.
    pub growing enum Readiness {
        /// Nothing is wrong.
        Ready = "ready",
        /// The instance serves, although a check found something wrong.
        Degraded = "degraded",
    }
}

words! {
    /// The finding of a check.
    pub growing enum CheckStatus {
        /// Nothing is wrong.
        Ok = "ok",
        /// It works, although something is wrong.
        Warn = "warn",
        /// It does not work.
        Down = "down",
    }
}

/// The answer of `/readyz` while the instance can serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    /// How well the instance can serve.
    #[serde(deserialize_with = "lenient::read")]
    pub status: Readiness,
    /// The checks, by name.
    pub checks: BTreeMap<String, Check>,
}

/// A check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// The finding.
    #[serde(deserialize_with = "lenient::read")]
    pub status: CheckStatus,
    /// What is wrong, and what would be right; or what the instance leaves out as it is configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
