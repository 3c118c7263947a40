//! Whether the process runs, and whether it can serve.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::strict::words;

/// The process runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`.
    #[schema(example = "ok")]
    pub status: String,
}

words! {
    /// How well it can serve.
    pub enum Readiness {
        /// All is well.
        Ready = "ready",
        /// It serves, and something is not as it should be.
        Degraded = "degraded",
    }
}

words! {
    /// What a check found.
    pub enum CheckStatus {
        /// All is well.
        Ok = "ok",
        /// It works, and is not as it should be.
        Warn = "warn",
        /// It does not work.
        Down = "down",
    }
}

/// The answer of `/readyz` while it can serve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Ready {
    /// How well it can serve.
    pub status: Readiness,
    /// What was looked at, by name.
    pub checks: BTreeMap<String, Check>,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// What was found.
    pub status: CheckStatus,
    /// What is not as it should be, and what would be right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}
